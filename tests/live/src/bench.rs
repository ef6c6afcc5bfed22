//! What a traced call costs here, in nanoseconds of this machine: the best of many rounds, over the same calls without a tracer, round
//! by round in turn. A figure of one run on one machine; nothing is tested by it.

use std::hint::black_box;
use std::time::Instant;

use fgraph::{EntryCall, FgraphOps, FtraceOps, FtraceRegs, FuncAddr, OpsFlags, RetAddr, ReturnCall, Want};

use crate::process;
use crate::records;
use crate::users::{User, addr, only};
use crate::work::down;

/// Calls of a round, about.
const CALLS: usize = 20_000;
const ROUNDS: usize = 60;

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

/// Prints a line for each kind of user and depth.
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
}
