//! Several CPUs run through traced functions while another one changes what is traced.

use alloc::vec::Vec;
use core::hint::black_box;
use core::sync::atomic::Ordering::Relaxed;

use fgraph::{FuncAddr, OpsFlags, SetChange, WhichSet};

use super::load::{self, both, inner, outer};
use super::probe::{Graph, Op, Probe, addr, note_entry, only};
use super::{CaseResult, Outcome, check, check_eq};
use crate::{machine, nmi, sched, smp};

/// Changes of the traced functions, each of which patches them: with the word `long`, as many as kernel people ask for.
fn switches() -> u64 {
    load::rounds(2_000, 20_000)
}

/// Changes in one round of [`other_cpus_miss_no_call_while_text_changes`].
const IN_A_ROUND: u64 = 6;

/// Runs `change` while every other CPU runs through the load.
fn while_others_call(change: impl FnOnce() -> CaseResult) -> CaseResult {
    if smp::count() < 2 {
        return Err(Outcome::Skipped("there is one CPU"));
    }
    load::begin();
    sched::pin(0);
    let tasks: Vec<_> =
        (1..smp::count()).map(|cpu| sched::spawn_on(cpu, "looping", |_| load::work(), cpu)).collect();
    // So that there are calls that nobody saw who comes later.
    while load::calls() == 0 {
        core::hint::spin_loop();
    }
    let result = change();
    load::end(&tasks);
    sched::unpin();
    result?;
    load::check(&tasks)
}

pub fn other_cpus_miss_no_call_while_text_changes() -> CaseResult {
    let (steady, regs, graph) = (Probe::new(), Probe::new(), Probe::new());
    let one = [FuncAddr::new(addr!(inner))];
    let user = Op::register(note_entry, OpsFlags::empty(), both(), steady.word())?;
    let done = while_others_call(|| {
        for n in 0..switches() / IN_A_ROUND {
            let with_regs = Op::register(note_entry, OpsFlags::SAVE_REGS, both(), regs.word())?;
            let _graph =
                Graph::probing(graph, only(&[if n % 2 == 0 { addr!(inner) } else { addr!(outer) }]))?;
            with_regs.change(WhichSet::Filter, SetChange::Remove(&one))?;
            with_regs.change(WhichSet::Filter, SetChange::Add(&one))?;
        }
        // Where an emulator runs one CPU at a time, the others may have called nothing while these were there. They will now.
        let _regs = Op::register(note_entry, OpsFlags::SAVE_REGS, both(), regs.word())?;
        let _graph = Graph::probing(graph, both())?;
        while regs.entries.load(Relaxed) == 0 || graph.entries.load(Relaxed) == 0 {
            core::hint::spin_loop();
        }
        Ok(())
    });
    drop(user);
    done?;
    // One user was there all the time: the others' coming and going cost it no call, and gave it none twice.
    check_eq!(steady.entries.load(Relaxed), 2 * load::calls(), "entries of the user that stayed");
    check!(regs.entries.load(Relaxed) > 0 && graph.entries.load(Relaxed) > 0, "the others saw nothing");
    check!(regs.entries.load(Relaxed) < 2 * load::calls(), "the others saw everything");
    check_eq!(graph.mismatches.load(Relaxed), 0, "mismatches");
    check_eq!(fgraph::stats().patched, 0, "patched sites left");
    Ok(())
}

pub fn nmis_come_while_text_changes() -> CaseResult {
    if !machine::nmi_self() {
        return Err(Outcome::Skipped("this machine has no NMI yet"));
    }
    let probe = Probe::new();
    // A user comes and goes in each round.
    let rounds = switches() / 2;
    nmi::set_hook(on_nmi);
    let done = while_others_call(|| {
        for _ in 0..rounds {
            let _user = Graph::probing(probe, both())?;
            machine::nmi_self();
        }
        Ok(())
    });
    nmi::set_hook(|_| {});
    done?;
    check_eq!(probe.mismatches.load(Relaxed), 0, "mismatches");
    check!(probe.interrupts.load(Relaxed) >= rounds, "only {} calls in NMIs", probe.interrupts.load(Relaxed));
    check_eq!(fgraph::stats().patched, 0, "patched sites left");
    Ok(())
}

#[unsafe(link_section = ".text.notrace")]
fn on_nmi(_frame: &mut machine::TrapFrame) {
    outer(black_box(1));
}
