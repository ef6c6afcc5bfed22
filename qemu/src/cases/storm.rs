//! Several CPUs run through traced functions while another one changes what is traced.

use core::hint::black_box;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use fgraph::OpsFlags;

use super::probe::{Graph, Op, Probe, addr, note_entry, only};
use super::{CaseResult, Outcome, check, check_eq};
use crate::{
    machine, nmi,
    sched::{self, Task},
    smp,
};

/// Changes of the traced functions: each makes one round of patching, or more.
const SWITCHES: u64 = 2_000;

static STOP: AtomicBool = AtomicBool::new(false);
static CALLS: AtomicU64 = AtomicU64::new(0);
static WRONG: AtomicU64 = AtomicU64::new(0);

#[inline(never)]
extern "C" fn outer(n: u64) -> u64 {
    black_box(inner(black_box(n)) + 1)
}

#[inline(never)]
extern "C" fn inner(n: u64) -> u64 {
    black_box(n.rotate_left(9) ^ n)
}

fn looping(_: usize) {
    let expected = (7u64.rotate_left(9) ^ 7) + 1;
    let mut calls = 0;
    while !STOP.load(Relaxed) {
        if outer(black_box(7)) != expected {
            WRONG.fetch_add(1, Relaxed);
        }
        calls += 1;
    }
    CALLS.fetch_add(calls, Relaxed);
}

/// Runs `change` while every other CPU runs through `outer` and `inner`; the tasks, dead.
fn while_others_call(change: impl FnOnce() -> CaseResult) -> Result<[Option<&'static Task>; 4], Outcome> {
    if smp::count() < 2 {
        return Err(Outcome::Skipped("there is one CPU"));
    }
    STOP.store(false, Relaxed);
    CALLS.store(0, Relaxed);
    WRONG.store(0, Relaxed);
    sched::pin(0);
    let mut tasks = [None; 4];
    for cpu in (1..smp::count()).take(tasks.len()) {
        tasks[cpu] = Some(sched::spawn_on(cpu, "looping", looping, cpu));
    }
    let result = change();
    STOP.store(true, Relaxed);
    tasks.into_iter().flatten().for_each(sched::join);
    sched::unpin();
    result?;
    check_eq!(WRONG.load(Relaxed), 0, "wrong results");
    for task in tasks.into_iter().flatten() {
        let stats = task.trace_block().stats();
        check_eq!((stats.returns, stats.depth), (stats.calls, 0), "returns and depth of a task");
        check_eq!(
            (stats.overrun, stats.abandoned, stats.recursed),
            (0, 0, 0),
            "overrun, abandoned, recursed"
        );
    }
    Ok(tasks)
}

pub fn other_cpus_miss_no_call_while_text_changes() -> CaseResult {
    let (steady, regs, graph) = (Probe::new(), Probe::new(), Probe::new());
    let funcs = only(&[addr!(outer), addr!(inner)]);
    let user = Op::register(note_entry, OpsFlags::empty(), funcs, steady.word())?;
    let done = while_others_call(|| {
        for n in 0..SWITCHES / 4 {
            let _regs = Op::register(note_entry, OpsFlags::SAVE_REGS, funcs, regs.word())?;
            let _graph =
                Graph::probing(graph, only(&[if n % 2 == 0 { addr!(inner) } else { addr!(outer) }]))?;
        }
        // Where an emulator runs one CPU at a time, the others may have called nothing while these were there. They will now.
        let _regs = Op::register(note_entry, OpsFlags::SAVE_REGS, funcs, regs.word())?;
        let _graph = Graph::probing(graph, funcs)?;
        while regs.entries.load(Relaxed) == 0 || graph.entries.load(Relaxed) == 0 {
            core::hint::spin_loop();
        }
        Ok(())
    });
    drop(user);
    done?;
    // One user was there all the time: the others' coming and going cost it no call, and gave it none twice.
    check_eq!(steady.entries.load(Relaxed), 2 * CALLS.load(Relaxed), "entries of the user that stayed");
    check!(regs.entries.load(Relaxed) > 0 && graph.entries.load(Relaxed) > 0, "the others saw nothing");
    check!(regs.entries.load(Relaxed) < 2 * CALLS.load(Relaxed), "the others saw everything");
    check_eq!(graph.mismatches.load(Relaxed), 0, "mismatches");
    check_eq!(fgraph::stats().patched, 0, "patched sites left");
    Ok(())
}

pub fn nmis_come_while_text_changes() -> CaseResult {
    if !machine::nmi_self() {
        return Err(Outcome::Skipped("this machine has no NMI yet"));
    }
    let probe = Probe::new();
    let funcs = only(&[addr!(outer), addr!(inner)]);
    nmi::set_hook(on_nmi);
    let tasks = while_others_call(|| {
        for _ in 0..SWITCHES / 4 {
            let _user = Graph::probing(probe, funcs)?;
            machine::nmi_self();
        }
        Ok(())
    });
    nmi::set_hook(|_| {});
    tasks?;
    check_eq!(probe.mismatches.load(Relaxed), 0, "mismatches");
    check!(
        probe.interrupts.load(Relaxed) >= SWITCHES / 4,
        "only {} calls in NMIs",
        probe.interrupts.load(Relaxed)
    );
    Ok(())
}

#[unsafe(link_section = ".text.notrace")]
fn on_nmi(_frame: &mut machine::TrapFrame) {
    outer(black_box(1));
}
