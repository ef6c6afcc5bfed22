//! This CPU: its current task, its block, its interrupt mask. One or two instructions each, and outside
//! tracing by being inlined everywhere.

use core::{
    arch::asm,
    mem::offset_of,
    ptr,
    sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence},
};

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

/// What a task has of the nesting counts: all. Only the task itself and interrupts on top of it write them, and each leaves them as it
/// found them, so plain load, add and store are enough.
#[derive(Debug)]
#[repr(C, align(8))]
pub struct TaskCounts {
    /// Bits 0-7 preemption holds, 8-15 soft interrupts, 16-19 hard interrupts, 20-23 NMIs.
    counts: AtomicU32,
    /// 0 if a switch is due. Inverted, so that these 64 bits are 0 when the last hold ends and one is.
    no_switch_due: AtomicU32,
    /// The CPU that it runs on, or ran on last.
    cpu: AtomicU64,
}

/// Where the tracer's trampolines find them.
pub const PREEMPT_COUNT: usize = offset_of!(Task, counts);
/// As above.
pub const CPU_NUMBER: usize = offset_of!(Task, counts) + offset_of!(TaskCounts, cpu);

impl TaskCounts {
    /// Of a task that runs.
    pub const fn new() -> Self {
        Self { counts: AtomicU32::new(0), no_switch_due: AtomicU32::new(1), cpu: AtomicU64::new(0) }
    }

    /// Of a task that has never run: it has the hold that ends a switch.
    pub const fn held() -> Self {
        Self { counts: AtomicU32::new(crate::context::PREEMPT_ONE), ..Self::new() }
    }

    /// What they are while the task does not run, if they are its own.
    pub fn left(&self) -> Option<u32> {
        Some(self.counts.load(Ordering::Relaxed))
    }

    /// The task is about to run on CPU `cpu`, interrupts being off.
    #[inline(always)]
    pub fn moves_to(&self, cpu: usize) {
        self.cpu.store(cpu as u64, Ordering::Relaxed);
    }
}

/// x86_64's.
pub const NO_SWITCH_DUE: u32 = 0;

/// The nesting counts of what runs here.
#[inline(always)]
pub fn counts() -> u32 {
    current().counts.counts.load(Ordering::Relaxed)
}

/// Adds to the counts.
#[inline(always)]
pub fn raise_counts(one: u32) {
    let counts = &current().counts.counts;
    counts.store(counts.load(Ordering::Relaxed).wrapping_add(one), Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
}

/// Takes from the counts.
#[inline(always)]
pub fn lower_counts(one: u32) {
    compiler_fence(Ordering::SeqCst);
    let counts = &current().counts.counts;
    counts.store(counts.load(Ordering::Relaxed).wrapping_sub(one), Ordering::Relaxed);
}

/// Says beside the counts whether a switch is due.
#[inline(always)]
pub fn set_switch_due(due: bool) {
    current().counts.no_switch_due.store(u32::from(!due), Ordering::Relaxed);
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
