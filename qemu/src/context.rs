//! Which context this is: the nesting counts of what runs on this CPU (`machine::counts`), preemption holds, and
//! entering and leaving interrupts.
//!
//! Invariant: whoever raises a count lowers it before the context below continues, so a read-modify-write of
//! plain loads and stores cannot lose an interrupt's update. All of it is outside tracing: the tracer's
//! callbacks ask here, and the trap path runs it before the tracer could tell that it is in an interrupt.
//!
//! The tracer's trampolines know the counts too, and whether a switch is due: see [`fgraph::CpuWords`].

use core::sync::atomic::Ordering;

use crate::{machine, sched};

/// One preemption hold; bits 0-7.
pub const PREEMPT_ONE: u32 = 1;
/// One soft interrupt; bits 8-15.
pub const SOFT_ONE: u32 = 1 << 8;
/// All soft interrupts.
pub const SOFT_MASK: u32 = 0xff << 8;
/// One hard interrupt; bits 16-19.
pub const HARD_ONE: u32 = 1 << 16;
/// All hard interrupts.
pub const HARD_MASK: u32 = 0xf << 16;
/// One NMI; bits 20-23.
pub const NMI_ONE: u32 = 1 << 20;
/// All NMIs.
pub const NMI_MASK: u32 = 0xf << 20;

/// What kind of context runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// A task.
    Task,
    /// A soft interrupt.
    Soft,
    /// A hardware interrupt.
    Hard,
    /// An NMI.
    Nmi,
}

/// What kind of context this is.
#[inline(always)]
pub fn level() -> Level {
    match counts() {
        // First what is asked most often.
        counts if counts & (NMI_MASK | HARD_MASK | SOFT_MASK) == 0 => Level::Task,
        counts if counts & NMI_MASK != 0 => Level::Nmi,
        counts if counts & HARD_MASK != 0 => Level::Hard,
        _ => Level::Soft,
    }
}

/// The nesting counts; 0 is plain, preemptible task context.
#[inline(always)]
pub fn counts() -> u32 {
    machine::counts()
}

#[inline(always)]
fn raise(one: u32) {
    machine::raise_counts(one);
}

#[inline(always)]
fn lower(one: u32) {
    machine::lower_counts(one);
}

/// Keeps this task on its CPU until the matching enable. Nests up to 255 deep.
#[inline(always)]
pub fn preempt_disable() {
    raise(PREEMPT_ONE);
}

/// Ends a [`preempt_disable`] and switches to another task if that is due by now.
#[inline(always)]
pub fn preempt_enable() {
    preempt_enable_no_resched();
    if machine::per_cpu().need_resched.load(Ordering::Relaxed) {
        preempt_schedule();
    }
}

/// The same without a call that a tracer could see on the way to the switch: it is the tracer that asks. The interrupt that wanted the
/// switch may have come within the tracer's section, and so may all of them.
#[inline(always)]
pub fn preempt_enable_notrace() {
    lower(PREEMPT_ONE);
    if machine::per_cpu().need_resched.load(Ordering::Relaxed) {
        preempt_schedule_notrace();
    }
}

/// Ends a [`preempt_disable`] and leaves a switch that is due to the next interrupt or enable.
#[inline(always)]
pub fn preempt_enable_no_resched() {
    lower(PREEMPT_ONE);
}

/// Switches if this is plain task context with interrupts on.
#[unsafe(link_section = ".text.notrace")]
#[inline(never)]
fn preempt_schedule() {
    // An interrupt between these tests and the switch may do the switch itself; then there is one in vain.
    if counts() == 0 && machine::irqs_enabled() {
        sched::schedule();
    }
}

/// The same for the tracer. Were the function that switches traced with interrupts on, its own entry would come here again, and
/// deeper at each interrupt.
#[unsafe(link_section = ".text.notrace")]
#[inline(never)]
fn preempt_schedule_notrace() {
    if counts() == 0 && machine::irqs_enabled() {
        sched::schedule_notrace();
    }
}

/// Begins a soft interrupt: what a kernel does for interrupts later, with interrupts on. It is not preempted.
#[inline(always)]
pub fn soft_enter() {
    raise(SOFT_ONE);
}

/// Ends a [`soft_enter`] and switches to another task if that is due by now.
#[inline(always)]
pub fn soft_exit() {
    lower(SOFT_ONE);
    if machine::per_cpu().need_resched.load(Ordering::Relaxed) {
        preempt_schedule();
    }
}

/// The trap entry calls this first, interrupts being off, when it has taken a hardware interrupt.
#[inline(always)]
pub fn irq_enter() {
    raise(HARD_ONE);
}

/// The trap entry calls this last, interrupts still off and the interrupt acknowledged. It may switch to
/// other tasks and come back much later, and on another CPU; the interrupted registers are on this task's
/// stack.
#[inline(always)]
pub fn irq_exit() {
    lower(HARD_ONE);
    if machine::per_cpu().need_resched.load(Ordering::Relaxed) {
        if counts() == 0 {
            sched::schedule();
        } else {
            // Whoever ends the last hold without asking the CPU's block sees it there.
            machine::set_switch_due(true);
        }
    }
}

/// The trap entry calls this first when it has taken an NMI.
#[inline(always)]
pub fn nmi_enter() {
    raise(NMI_ONE);
}

/// The trap entry calls this last when it has taken an NMI. Never switches: an NMI may have hit the
/// scheduler.
#[inline(always)]
pub fn nmi_exit() {
    lower(NMI_ONE);
}
