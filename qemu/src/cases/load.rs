//! Tasks that run through two small functions as fast as they can, while a case changes what is traced of them.

use core::hint::black_box;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use super::probe::{addr, only};
use super::{CaseResult, LONG, check_eq};
use crate::sched::{self, Task};

/// Runs of [`outer`] since the load began, of all its tasks; exact when they are dead.
static CALLS: AtomicU64 = AtomicU64::new(0);
static WRONG: AtomicU64 = AtomicU64::new(0);
static STOP: AtomicBool = AtomicBool::new(false);

#[inline(never)]
pub extern "C" fn outer(n: u64) -> u64 {
    black_box(inner(black_box(n)) + 1)
}

#[inline(never)]
pub extern "C" fn inner(n: u64) -> u64 {
    black_box(n.rotate_left(9) ^ n)
}

/// Both functions.
pub fn both() -> fgraph::Filter {
    only(&[addr!(outer), addr!(inner)])
}

/// What a case does so often, or with the word `long` as often as `long` says.
pub fn rounds(short: u64, long: u64) -> u64 {
    if LONG.load(Relaxed) { long } else { short }
}

/// How often [`outer`] ran, and so [`inner`].
pub fn calls() -> u64 {
    CALLS.load(Relaxed)
}

/// What each task of the load does until [`end`].
pub fn work() {
    let expected = (7u64.rotate_left(9) ^ 7) + 1;
    while !STOP.load(Relaxed) {
        if outer(black_box(7)) != expected {
            WRONG.fetch_add(1, Relaxed);
        }
        CALLS.fetch_add(1, Relaxed);
    }
}

/// Before tasks of a load are spawned.
pub fn begin() {
    STOP.store(false, Relaxed);
    CALLS.store(0, Relaxed);
    WRONG.store(0, Relaxed);
}

/// Ends the tasks of a load.
pub fn end(tasks: &[&'static Task]) {
    STOP.store(true, Relaxed);
    tasks.iter().for_each(|task| sched::join(task));
}

/// What is right of any load that has ended.
pub fn check(tasks: &[&'static Task]) -> CaseResult {
    check_eq!(WRONG.load(Relaxed), 0, "wrong results");
    for task in tasks {
        let stats = task.trace_block().stats();
        check_eq!((stats.returns, stats.depth), (stats.calls, 0), "returns and depth of a task");
        check_eq!(
            (stats.overrun, stats.abandoned, stats.recursed),
            (0, 0, 0),
            "overrun, abandoned, recursed"
        );
    }
    Ok(())
}

/// There is another one of this name in `words.rs`.
#[inline(never)]
pub(super) fn twin(n: usize) -> usize {
    core::hint::black_box(n ^ 0x7501)
}
