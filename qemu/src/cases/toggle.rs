//! Text that changes while tasks run through it.

use alloc::vec::Vec;
use core::hint::black_box;
use core::sync::atomic::Ordering::Relaxed;

use fgraph::{Filter, OpsFlags};

use super::load::{self, both, outer};
use super::probe::{Graph, Op, Probe, note_entry};
use super::{CaseResult, check, check_eq};
use crate::{
    buffers, machine,
    sched::{self, Task},
    start,
};

fn toggles() -> u64 {
    load::rounds(1_000, 10_000)
}

/// Runs `toggle` over and over while three tasks run through the load, preempted often. The tasks, dead.
fn under_load(mut toggle: impl FnMut() -> CaseResult) -> Result<[&'static Task; 3], super::Outcome> {
    load::begin();
    machine::timer_set_hz(4000);
    let tasks: [&'static Task; 3] = core::array::from_fn(|_| sched::spawn("load", load::work));
    let mut result = Ok(());
    for n in 0..toggles() {
        result = toggle();
        if result.is_err() {
            break;
        }
        if n % 16 == 0 {
            sched::yield_now();
        }
    }
    load::end(&tasks);
    machine::timer_set_hz(start::TICK_HZ);
    result?;
    load::check(&tasks)?;
    check!(load::calls() > 1_000, "only {} calls", load::calls());
    Ok(tasks)
}

pub fn tracing_toggles_under_load() -> CaseResult {
    let probe = Probe::new();
    let tasks = under_load(|| {
        let _user = Graph::probing(probe, both())?;
        check_eq!(fgraph::stats().patched, 2, "patched sites");
        let target = probe.entries.load(Relaxed) + 3;
        while probe.entries.load(Relaxed) < target {
            sched::yield_now();
        }
        Ok(())
    })?;
    check_eq!(fgraph::stats().patched, 0, "patched sites left");
    let (entries, returns) = probe.counts();
    // A call that returns when its user is gone already is not told.
    check!(returns <= entries, "{returns} returns of {entries} calls");
    check!(entries >= 3 * toggles(), "only {entries} entries");
    check_eq!(probe.mismatches.load(Relaxed), 0, "mismatches");
    let hooked: u64 = tasks.iter().map(|task| task.trace_block().stats().calls).sum();
    check_eq!(hooked, entries, "hooked calls");
    Ok(())
}

/// Records that the CPUs' buffers were given, and those of them that they refused.
fn recorded() -> (u64, u64) {
    buffers::all()
        .map(fgraph::ring::Buffer::counts)
        .fold((0, 0), |(records, refused), counts| (records + counts.records, refused + counts.refused))
}

pub fn the_tracer_misses_no_call_while_others_come() -> CaseResult {
    buffers::make(16);
    buffers::switch(true);
    let probe = Probe::new();
    // Alone it takes the straight path, beside another user the general one, and calls return through both.
    let tracer = Graph::tracing(both())?;
    let done = under_load(|| {
        let alone = recorded().0 + 3;
        while recorded().0 < alone {
            sched::yield_now();
        }
        let _user = Graph::probing(probe, both())?;
        let target = probe.entries.load(Relaxed) + 3;
        while probe.entries.load(Relaxed) < target {
            sched::yield_now();
        }
        Ok(())
    });
    drop(tracer);
    buffers::switch(false);
    done?;
    check_eq!(recorded(), (2 * load::calls(), 0), "records, refused ones");
    check_eq!(probe.mismatches.load(Relaxed), 0, "mismatches");
    Ok(())
}

pub fn the_tracer_comes_and_goes_under_load() -> CaseResult {
    buffers::make(16);
    buffers::switch(true);
    let done = under_load(|| {
        let _tracer = Graph::tracing(both())?;
        let target = recorded().0 + 3;
        while recorded().0 < target {
            sched::yield_now();
        }
        Ok(())
    });
    buffers::switch(false);
    let tasks = done?;
    check_eq!(fgraph::stats().patched, 0, "patched sites left");
    let (records, refused) = recorded();
    let hooked: u64 = tasks.iter().map(|task| task.trace_block().stats().calls).sum();
    check_eq!(refused, 0, "refused records");
    // A call that returns when the tracer is gone already is not recorded.
    check!((3 * toggles()..=hooked).contains(&records), "{records} records of {hooked} hooked calls");
    Ok(())
}

pub fn trampolines_switch_under_load() -> CaseResult {
    let (args, regs) = (Probe::new(), Probe::new());
    // One user stays, so from its first call on no call may be missed, whatever the other one does to the sites.
    let steady = Op::register(note_entry, OpsFlags::empty(), both(), args.word())?;
    let done = under_load(|| {
        let before = args.entries.load(Relaxed);
        let _user = Op::register(note_entry, OpsFlags::SAVE_REGS, both(), regs.word())?;
        while args.entries.load(Relaxed) < before + 4 {
            sched::yield_now();
        }
        Ok(())
    });
    drop(steady);
    done?;
    check_eq!(fgraph::stats().patched, 0, "patched sites left");
    let seen = args.entries.load(Relaxed);
    check_eq!(seen, 2 * load::calls(), "entries of the steady user");
    check!(
        (4 * toggles()..=seen).contains(&(regs.entries.load(Relaxed) + 4 * toggles())),
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
