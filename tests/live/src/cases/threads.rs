//! Several CPUs: threads that run the same traced functions while users come and go.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, mpsc};

use fgraph::{Filter, OpsFlags};

use crate::log;
use crate::process::{self, SYNC_WORKS, TRAPS, Thread, USUAL_STACK};
use crate::runner;
use crate::signals;
use crate::users::{User, assert_settled, only};
use crate::work::{self, Results, fib, fib_result};

const WORKERS: usize = 4;

/// How many traced calls each worker has to see before a case ends, however rarely it gets a CPU.
const CALLS: u64 = 50_000;

/// Users that come and go, each of another kind.
fn user(kind: usize, filter: Filter) -> User {
    match kind {
        0 => User::op(log::count_op, OpsFlags::empty(), filter),
        1 => User::op(log::count_op, OpsFlags::SAVE_REGS, filter),
        2 => User::counting(filter),
        _ => User::uninterested(filter),
    }
}

fn work_until(done: &AtomicBool, right: Results, thread: &'static Thread) -> usize {
    let mut rounds = 0;
    while !done.load(Relaxed) {
        assert_eq!(work::round(), right);
        rounds += 1;
    }
    assert_settled(thread);
    rounds
}

fn users_come_and_go(changes: usize, interrupts: usize) {
    if !SYNC_WORKS.load(Relaxed) {
        runner::skip("membarrier(2) cannot synchronise cores here");
    }
    process::init().expect("the sites are good");
    let right = work::round();
    signals::handle(interrupt, signals::Stack::Own);
    let done = Arc::new(AtomicBool::new(false));
    let (tell, told) = mpsc::channel();
    let worker = || {
        let (done, tell) = (done.clone(), tell.clone());
        std::thread::spawn(move || {
            let thread = Thread::enter(USUAL_STACK);
            signals::use_own_stack();
            if interrupts != 0 {
                signals::storm(thread, interrupts);
            }
            tell.send(thread).expect("the case waits for it");
            work_until(&done, right, thread)
        })
    };
    let workers: Vec<_> = (0..WORKERS).map(|_| worker()).collect();
    let threads: Vec<_> = (0..WORKERS).map(|_| told.recv().expect("every worker tells")).collect();

    // All functions, or some of them.
    let all = work::funcs();
    let filters = [only(&all), only(&all[..2]), only(&all[1..3])];
    let mut users: [Option<User>; 8] = [const { None }; 8];
    let mut random = 1usize;
    let mut changed = 0;
    while changed < changes
        || threads.iter().any(|thread| !signals::is_over(thread) || thread.trace.stats().calls < CALLS)
    {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let number = (random >> 33) % users.len();
        users[number] = match users[number].take() {
            Some(_) => None,
            None => Some(user(number % 4, filters[(random >> 40) % filters.len()])),
        };
        changed += 1;
    }
    users.fill_with(|| None);
    assert_eq!(fgraph::stats().patched, 0);
    done.store(true, Relaxed);
    let rounds: usize = workers.into_iter().map(|worker| worker.join().expect("a worker ends")).sum();
    let stats: Vec<_> = threads.iter().map(|thread| thread.trace.stats()).collect();
    let calls: u64 = stats.iter().map(|stats| stats.calls).sum();
    let refused: u64 = stats.iter().map(|stats| stats.recursed + stats.overrun).sum();
    assert_eq!((refused, WRONG.load(Relaxed)), (0, 0), "{stats:?}");
    assert!(log::ENTRIES.load(Relaxed) >= log::RETURNS.load(Relaxed));
    print!(
        "({changed} changes, {rounds} rounds, {calls} hooked calls, {} breakpoints) ",
        TRAPS.load(Relaxed)
    );
}

static WRONG: AtomicUsize = AtomicUsize::new(0);

#[unsafe(link_section = ".text.notrace")]
fn interrupt() {
    let right = fib(4) == fib_result(4);
    WRONG.fetch_add(usize::from(!right), Relaxed);
}

pub fn users_come_and_go_while_threads_call() {
    users_come_and_go(1000 * runner::storm(), 0);
}

pub fn users_come_and_go_while_threads_are_interrupted() {
    users_come_and_go(1000 * runner::storm(), 2000 * runner::storm());
}
