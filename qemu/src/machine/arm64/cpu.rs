//! This CPU: its current task, its block, its interrupt mask. One or two instructions each, and outside
//! tracing by being inlined everywhere.

use core::{arch::asm, ptr};

use crate::{percpu::PerCpu, sched::Task};

/// What `DAIF` was.
#[derive(Clone, Copy)]
pub struct IrqState(u64);

/// `DAIF.I`: interrupts are masked.
const MASKED: u64 = 1 << 7;
/// `DAIF.F`: fast interrupts are, which are the NMIs.
const NMIS_MASKED: u64 = 1 << 6;

/// Whether compiled code uses vector registers: it does in a kernel for `aarch64-unknown-none`, not for
/// `aarch64-unknown-none-softfloat`.
pub(super) const HAS_VECTORS: bool = cfg!(target_feature = "neon");

/// `CPACR_EL1`: floating point and vectors are admitted if code was compiled to use them, else they trap.
pub(super) const CPACR: u64 = if HAS_VECTORS { 0b11 << 20 } else { 0 };

/// Makes `block` and `task` what [`per_cpu`] and [`current`] return on this CPU.
#[inline(always)]
pub fn init_cpu(block: &'static PerCpu, task: &'static Task) {
    // SAFETY: both registers are for this alone. A memory clobber, so that no `current` moves in front of it.
    unsafe {
        asm!(
            "msr tpidr_el1, {block}",
            "msr sp_el0, {task}",
            block = in(reg) ptr::from_ref(block),
            task = in(reg) ptr::from_ref(task),
            options(nostack, preserves_flags),
        );
    }
}

/// The block of the CPU this runs on. Only meaningful while the caller cannot migrate.
#[inline(always)]
pub fn per_cpu() -> &'static PerCpu {
    let block: *const PerCpu;
    // SAFETY: reads a register. Not `pure`: after a preemption another CPU may answer.
    unsafe { asm!("mrs {}, tpidr_el1", out(reg) block, options(nomem, nostack, preserves_flags)) };
    // SAFETY: `init_cpu` stored a reference to a static before anything asked.
    unsafe { &*block }
}

/// The running task. One instruction, so a migration cannot tear it.
#[inline(always)]
pub fn current() -> &'static Task {
    let task: *const Task;
    // SAFETY: reads a register. `pure`, because for the code of one task the answer never changes.
    unsafe { asm!("mrs {}, sp_el0", out(reg) task, options(pure, readonly, nostack, preserves_flags)) };
    // SAFETY: `init_cpu` and `switch` store references to tasks, which live for ever, before anything asked.
    unsafe { &*task }
}

/// Masks interrupts; the result says whether they were masked.
#[inline(always)]
pub fn irqs_off() -> IrqState {
    let state;
    // SAFETY: masking interrupts breaks nothing. A memory clobber: what follows must not move in front of it.
    unsafe { asm!("mrs {}, daif", "msr daifset, #2", out(reg) state, options(nostack, preserves_flags)) };
    IrqState(state)
}

/// Makes the mask what it was.
#[inline(always)]
pub fn irqs_restore(state: IrqState) {
    // SAFETY: the value was read from the same register. A memory clobber: what precedes must not move behind
    //         it.
    unsafe { asm!("msr daif, {}", in(reg) state.0, options(nostack, preserves_flags)) };
}

/// Unmasks interrupts, fast interrupts and system errors.
#[inline(always)]
pub fn irqs_on() {
    // SAFETY: the vectors are installed before anything unmasks.
    unsafe { asm!("msr daifclr, #7", options(nostack, preserves_flags)) };
}

/// Lets NMIs in: for a trap's handler, once what the next trap overwrites is saved.
#[inline(always)]
pub(super) fn nmis_on() {
    // SAFETY: the vectors are installed. A memory clobber, as for `irqs_off`.
    unsafe { asm!("msr daifclr, #1", options(nostack, preserves_flags)) };
}

/// Keeps NMIs out: before a trap's end loads what the next trap overwrites.
#[inline(always)]
pub(super) fn nmis_off() {
    // SAFETY: masking breaks nothing. A memory clobber, as for `irqs_off`.
    unsafe { asm!("msr daifset, #1", options(nostack, preserves_flags)) };
}

/// Whether NMIs are let in: not in an NMI's handler, and not before the first task runs on this CPU.
#[inline(always)]
pub(super) fn nmis_enabled() -> bool {
    let state: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mrs {}, daif", out(reg) state, options(nomem, nostack, preserves_flags)) };
    state & NMIS_MASKED == 0
}

/// Whether interrupts are unmasked.
#[inline(always)]
pub fn irqs_enabled() -> bool {
    let state: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mrs {}, daif", out(reg) state, options(nomem, nostack, preserves_flags)) };
    state & MASKED == 0
}

/// Sleeps until an interrupt is due; interrupts are off before and afterwards.
#[inline(always)]
pub fn wait_for_interrupt() {
    // SAFETY: waits. `DAIF` keeps interrupts from being taken, not from ending this.
    unsafe { asm!("wfi", options(nostack, preserves_flags)) };
}
