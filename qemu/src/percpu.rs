//! What each CPU has for itself. Nothing here is shared between CPUs on the traced path.

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64};

use fgraph::TaskTrace;

use crate::machine;
use crate::sched::Task;

/// The most CPUs this kernel uses; [`crate::smp`] says which of them run.
pub const MAX_CPUS: usize = 4;

/// One CPU's block. x86_64 reaches it through `gs`, arm64 through `TPIDR_EL1`.
///
/// On x86_64 `current` and `trace` are read with one `gs`-relative load each, so a task that is about to migrate
/// still reads its own. On arm64 the current task is in `SP_EL0` for the same reason, and these fields are unused.
#[repr(C, align(64))]
pub struct PerCpu {
    /// This block's own address, for code that needs it as a pointer.
    pub this: AtomicPtr<PerCpu>,
    /// x86_64: the task that runs on this CPU.
    pub current: AtomicPtr<Task>,
    /// x86_64: `current`'s trace block, or null; written by the context switch.
    pub trace: AtomicPtr<TaskTrace>,
    /// Which CPU this is, from 0.
    pub cpu: usize,
    /// x86_64: nesting of the context that runs here: bits 0-7 preemption holds, 8-15 soft interrupts, 16-19 hard interrupts, 20-23 NMIs;
    /// and bit 31 while no switch is due. A task that does not run has one hold, its own end of the switch.
    pub preempt_count: AtomicU32,
    /// A switch is due; looked at when the last interrupt or preemption hold ends. Another CPU sets it with the
    /// scheduler's lock held, and sends an interrupt.
    pub need_resched: AtomicBool,
    /// Timer interrupts taken.
    pub ticks: AtomicU64,
    /// The task that runs when no other wants to.
    pub idle: AtomicPtr<Task>,
}

impl PerCpu {
    /// The block of CPU `cpu`, not in use yet.
    pub const fn new(cpu: usize) -> Self {
        Self {
            this: AtomicPtr::new(core::ptr::null_mut()),
            current: AtomicPtr::new(core::ptr::null_mut()),
            trace: AtomicPtr::new(core::ptr::null_mut()),
            cpu,
            preempt_count: AtomicU32::new(machine::NO_SWITCH_DUE),
            need_resched: AtomicBool::new(false),
            ticks: AtomicU64::new(0),
            idle: AtomicPtr::new(core::ptr::null_mut()),
        }
    }
}

/// All blocks, by CPU number.
pub static PER_CPU: [PerCpu; MAX_CPUS] = [PerCpu::new(0), PerCpu::new(1), PerCpu::new(2), PerCpu::new(3)];
