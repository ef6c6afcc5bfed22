//! What a traced call costs here, in nanoseconds of this machine: the best of many rounds, over the same calls without a tracer, round
//! by round in turn. A figure of one run on one machine; nothing is tested by it.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use fgraph::{
    EntryCall, FgraphOps, Filter, FtraceOps, FtraceRegs, FuncAddr, OpsFlags, RetAddr, ReturnCall, Want,
};

use crate::misses::Misses;
use crate::process::{self, Thread};
use crate::records;
use crate::users::{User, addr, only};
use crate::work::down;

/// Calls of a round, about.
const CALLS: usize = 20_000;
const ROUNDS: usize = 60;
const THREAD_ROUNDS: usize = 30;

/// Words of a thread's shadow stack.
const SHADOW_WORDS: usize = 1024;

/// How deep the calls are nested.
const DEPTHS: [usize; 3] = [0, 4, 16];

#[unsafe(link_section = ".text.notrace")]
fn op(_ip: FuncAddr, _parent_ip: RetAddr, _ops: &FtraceOps, _fregs: &mut FtraceRegs) {}

#[unsafe(link_section = ".text.notrace")]
fn entry(_call: &mut EntryCall<'_, FtraceRegs>, _ops: &FgraphOps) -> Want {
    Want::Return
}

#[unsafe(link_section = ".text.notrace")]
fn ret(_call: &mut ReturnCall<'_, FtraceRegs>, _ops: &FgraphOps) {}

/// Nanoseconds of a call in one round.
fn round(depth: usize) -> f64 {
    let runs = CALLS / (depth + 1);
    let begin = Instant::now();
    for _ in 0..runs {
        black_box(down(black_box(depth)));
    }
    begin.elapsed().as_nanos() as f64 / (runs * (depth + 1)) as f64
}

/// The fewest nanoseconds that a call took without users, and with those that `register` makes.
fn compare(depth: usize, register: &dyn Fn() -> User) -> (f64, f64) {
    let (mut plain, mut traced) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..ROUNDS {
        plain = plain.min(round(depth));
        let _user = register();
        round(depth);
        traced = traced.min(round(depth));
    }
    (plain, traced)
}

/// Nanoseconds of a call on each of so many threads at once, the mean of the threads: of the best round.
fn at_once(threads: usize, rounds: usize) -> f64 {
    let start = Barrier::new(threads);
    let mean = |times: &[f64]| times.iter().sum::<f64>() / times.len() as f64;
    let times: Vec<Vec<f64>> = std::thread::scope(|scope| {
        let run = || {
            Thread::enter(SHADOW_WORDS);
            (0..rounds)
                .map(|_| {
                    start.wait();
                    round(0)
                })
                .collect()
        };
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        running.into_iter().map(|thread| thread.join().expect("it only calls")).collect()
    });
    let all = |round: usize| times.iter().map(|of_thread| of_thread[round]).collect::<Vec<_>>();
    (0..rounds).map(|round| mean(&all(round))).fold(f64::INFINITY, f64::min)
}

/// Prints what a recorded call takes on one thread, and on two at once.
fn run_at_once(way: &str, filter: Filter) {
    println!("{:<26} {:>7} {:>9} {:>9} {:>9}", "nanoseconds a call", "threads", "untraced", "traced", "more");
    for threads in [1, 2] {
        let plain = at_once(threads, THREAD_ROUNDS);
        let user = User::tracing(filter);
        let traced = at_once(threads, THREAD_ROUNDS);
        drop(user);
        let name = format!("{way}, graph with record");
        println!("{name:<26} {threads:>7} {plain:>9.1} {traced:>9.1} {:>9.1}", traced - plain);
    }
}

/// Prints how many branches of a call were predicted wrong, if somebody counts.
fn run_misses(way: &str, users: &[(&str, &dyn Fn() -> User)]) {
    let misses = match Misses::open() {
        Ok(misses) => misses,
        Err(error) => {
            println!("branches predicted wrong: not counted, perf_event_open(2): {error}");
            return;
        }
    };
    let of_a_call = |depth: usize| {
        round(depth);
        let before = misses.count();
        round(depth);
        (misses.count() - before) as f64 / CALLS as f64
    };
    println!("{:<26} {:>5} {:>9} {:>9}", "branches predicted wrong", "depth", "untraced", "traced");
    for (name, register) in users {
        for depth in DEPTHS {
            let plain = of_a_call(depth);
            let user = register();
            let traced = of_a_call(depth);
            drop(user);
            println!("{:<26} {depth:>5} {plain:>9.3} {traced:>9.3}", format!("{way}, {name}"));
        }
    }
}

/// Prints a line for each kind of user and depth, and what else can be measured.
pub fn run() {
    process::prepare();
    process::init().expect("the sites are good");
    records::open();
    let filter = only(&[addr!(down)]);
    let way = if cfg!(all(prefixed_sites, not(landing_pads))) { "balanced" } else { "classic" };
    println!("{:<26} {:>5} {:>9} {:>9} {:>9}", "nanoseconds a call", "depth", "untraced", "traced", "more");
    let users: [(&str, &dyn Fn() -> User); 3] = [
        ("function op", &|| User::op(op, OpsFlags::empty(), filter)),
        ("graph user", &|| User::graph(entry, ret, filter)),
        ("graph with record", &|| User::tracing(filter)),
    ];
    for (name, register) in users {
        for depth in DEPTHS {
            let (plain, traced) = compare(depth, register);
            let name = format!("{way}, {name}");
            println!("{name:<26} {depth:>5} {plain:>9.1} {traced:>9.1} {:>9.1}", traced - plain);
        }
    }
    run_misses(way, &users);
    run_at_once(way, filter);
}
