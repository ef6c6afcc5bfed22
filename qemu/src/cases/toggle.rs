//! Text that changes while tasks run through it.

use alloc::vec::Vec;
use core::hint::black_box;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use fgraph::{Filter, OpsFlags};

use super::probe::{Graph, Op, Probe, addr, note_entry, only};
use super::{CaseResult, check, check_eq};
use crate::{
    machine,
    sched::{self, Task},
    start,
};

const TOGGLES: u64 = 1_000;

static STOP: AtomicBool = AtomicBool::new(false);
static CALLS: AtomicU64 = AtomicU64::new(0);
static WRONG: AtomicU64 = AtomicU64::new(0);

#[inline(never)]
extern "C" fn outer(n: u64) -> u64 {
    black_box(inner(black_box(n)) + 1)
}

#[inline(never)]
extern "C" fn inner(n: u64) -> u64 {
    black_box(n.rotate_left(7) ^ n)
}

fn load() {
    let expected = (5u64.rotate_left(7) ^ 5) + 1;
    while !STOP.load(Relaxed) {
        if outer(black_box(5)) != expected {
            WRONG.fetch_add(1, Relaxed);
        }
        CALLS.fetch_add(1, Relaxed);
    }
}

/// Runs `toggle` over and over while three tasks run through `outer` and `inner`. The tasks, dead.
fn under_load(mut toggle: impl FnMut(u64) -> CaseResult) -> Result<[&'static Task; 3], super::Outcome> {
    STOP.store(false, Relaxed);
    CALLS.store(0, Relaxed);
    WRONG.store(0, Relaxed);
    machine::timer_set_hz(4000);
    let tasks: [&'static Task; 3] = core::array::from_fn(|_| sched::spawn("load", load));
    let mut result = Ok(());
    for n in 0..TOGGLES {
        result = toggle(n);
        if result.is_err() {
            break;
        }
        if n % 16 == 0 {
            sched::yield_now();
        }
    }
    STOP.store(true, Relaxed);
    tasks.into_iter().for_each(sched::join);
    machine::timer_set_hz(start::TICK_HZ);
    result?;
    check_eq!(WRONG.load(Relaxed), 0, "wrong results");
    check!(CALLS.load(Relaxed) > 1_000, "only {} calls", CALLS.load(Relaxed));
    for task in tasks {
        let stats = task.trace_block().stats();
        check_eq!((stats.returns, stats.depth), (stats.calls, 0), "returns and depth of a task");
        check_eq!((stats.overrun, stats.abandoned), (0, 0), "overrun and abandoned");
    }
    check_eq!(fgraph::stats().patched, 0, "patched sites left");
    Ok(tasks)
}

pub fn tracing_toggles_under_load() -> CaseResult {
    let probe = Probe::new();
    let funcs = only(&[addr!(outer), addr!(inner)]);
    let tasks = under_load(|_| {
        let _user = Graph::probing(probe, funcs)?;
        check_eq!(fgraph::stats().patched, 2, "patched sites");
        let target = probe.entries.load(Relaxed) + 3;
        while probe.entries.load(Relaxed) < target {
            sched::yield_now();
        }
        Ok(())
    })?;
    let (entries, returns) = probe.counts();
    // A call that returns when its user is gone already is not told.
    check!(returns <= entries, "{returns} returns of {entries} calls");
    check!(entries >= 3 * TOGGLES, "only {entries} entries");
    check_eq!(probe.mismatches.load(Relaxed), 0, "mismatches");
    let hooked: u64 = tasks.iter().map(|task| task.trace_block().stats().calls).sum();
    check_eq!(hooked, entries, "hooked calls");
    Ok(())
}

pub fn trampolines_switch_under_load() -> CaseResult {
    let (args, regs) = (Probe::new(), Probe::new());
    let funcs = only(&[addr!(outer), addr!(inner)]);
    // One user stays, so from its first call on no call may be missed, whatever the other one does to the sites.
    let steady = Op::register(note_entry, OpsFlags::empty(), funcs, args.word())?;
    let done = under_load(|_| {
        let before = args.entries.load(Relaxed);
        let _user = Op::register(note_entry, OpsFlags::SAVE_REGS, funcs, regs.word())?;
        while args.entries.load(Relaxed) < before + 4 {
            sched::yield_now();
        }
        Ok(())
    });
    drop(steady);
    match done {
        // The steady user's own sites.
        Err(super::Outcome::Failed(why)) if why.starts_with("patched sites left") => {}
        other => drop(other?),
    }
    let seen = args.entries.load(Relaxed);
    check_eq!(seen, 2 * CALLS.load(Relaxed), "entries of the steady user");
    check!(
        (4 * TOGGLES..=seen).contains(&(regs.entries.load(Relaxed) + 4 * TOGGLES)),
        "entries of the other user"
    );
    Ok(())
}

pub fn everything_is_traced_at_once() -> CaseResult {
    let probe = Probe::new();
    let sites = fgraph::stats().sites;
    {
        let _user = Graph::probing(probe, Filter::ALL)?;
        check_eq!(fgraph::stats().patched, sites, "patched sites");
        // Allocation, tasks, timers, sleeping: whatever the kernel has.
        let tasks: Vec<&'static Task> = (0..4)
            .map(|_| {
                sched::spawn("all", || {
                    for n in 0..20 {
                        let numbers: Vec<u64> = (0..100).map(|k| outer(k + n)).collect();
                        black_box(numbers);
                        sched::sleep_ms(1);
                    }
                })
            })
            .collect();
        for task in &tasks {
            sched::join(task);
        }
        for task in tasks {
            let stats = task.trace_block().stats();
            check!(stats.calls > 4_000, "only {} calls", stats.calls);
            // It died inside `exit` and what that called.
            let pending = task.trace_block().frames().count() as u64;
            check_eq!(stats.returns + pending + stats.abandoned, stats.calls, "returns and pending frames");
        }
    }
    check_eq!(fgraph::stats().patched, 0, "patched sites left");
    check_eq!(probe.mismatches.load(Relaxed), 0, "mismatches");
    Ok(())
}
