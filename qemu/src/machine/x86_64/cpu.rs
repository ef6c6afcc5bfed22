//! This CPU: its current task, its block, its interrupt mask. A few instructions each, and outside tracing by
//! being inlined everywhere.

use core::{
    arch::{asm, x86_64::__cpuid},
    hint,
    mem::offset_of,
    ptr,
    sync::atomic::Ordering,
};

use crate::{percpu::PerCpu, sched::Task};

/// What `rflags` was.
#[derive(Clone, Copy)]
pub struct IrqState(u64);

/// `rflags.IF`: interrupts are admitted.
const ADMITTED: u64 = 1 << 9;

const MSR_GS_BASE: u32 = 0xc000_0101;

/// Makes `block` and `task` what [`per_cpu`] and [`current`] return on this CPU.
#[inline(always)]
pub fn init_cpu(block: &'static PerCpu, task: &'static Task) {
    block.current.store(ptr::from_ref(task).cast_mut(), Ordering::Relaxed);
    block.trace.store(task.trace.load(Ordering::Relaxed), Ordering::Relaxed);
    let base = ptr::from_ref(block).expose_provenance() as u64;
    // SAFETY: the base of gs is for this alone. A memory clobber, so that no `current` moves in front of it.
    unsafe {
        asm!(
            "wrmsr",
            in("ecx") MSR_GS_BASE,
            in("eax") base as u32,
            in("edx") (base >> 32) as u32,
            options(nostack, preserves_flags),
        );
    }
}

/// The block of the CPU this runs on. Only meaningful while the caller cannot migrate.
#[inline(always)]
pub fn per_cpu() -> &'static PerCpu {
    let block: *const PerCpu;
    // SAFETY: reads the block's first word. Not `pure`: after a preemption another CPU may answer.
    unsafe {
        asm!(
            "mov {}, gs:[{this}]",
            out(reg) block,
            this = const offset_of!(PerCpu, this),
            options(readonly, nostack, preserves_flags),
        );
    }
    // SAFETY: `init_cpu` made the base of gs a static's address before anything asked, and that static's
    //         `this` says so.
    unsafe { &*block }
}

/// The running task. One instruction, so a migration cannot tear it.
#[inline(always)]
pub fn current() -> &'static Task {
    let task: *const Task;
    // SAFETY: reads a word of the block. `pure`, because for the code of one task the answer never changes.
    unsafe {
        asm!(
            "mov {}, gs:[{current}]",
            out(reg) task,
            current = const offset_of!(PerCpu, current),
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    // SAFETY: `init_cpu` and `switch` store references to tasks, which live for ever, before anything asked.
    unsafe { &*task }
}

/// Where the tracer's trampolines find the nesting counts and the number of the CPU.
pub const PREEMPT_COUNT: usize = offset_of!(PerCpu, preempt_count);
/// As above.
pub const CPU_NUMBER: usize = offset_of!(PerCpu, cpu);

/// In `PerCpu::preempt_count`: no switch is due. Inverted, so that all is 0 when the last hold ends and one is.
pub const NO_SWITCH_DUE: u32 = 1 << 31;

/// What a task has of the nesting counts: nothing, they are the CPU's. A task that is switched to has the hold that the one before it took.
#[derive(Debug)]
pub struct TaskCounts(());

impl TaskCounts {
    /// Of a task that runs.
    pub const fn new() -> Self {
        Self(())
    }

    /// Of a task that has never run.
    pub const fn held() -> Self {
        Self(())
    }

    /// What they are while the task does not run, if they are its own.
    pub fn left(&self) -> Option<u32> {
        None
    }

    /// The task is about to run on CPU `_cpu`, interrupts being off.
    #[inline(always)]
    pub fn moves_to(&self, _cpu: usize) {}
}

/// The nesting counts of what runs here.
#[inline(always)]
pub fn counts() -> u32 {
    let counts: u32;
    // SAFETY: reads the block's word.
    unsafe {
        asm!(
            "mov {:e}, gs:[{word}]",
            out(reg) counts,
            word = const offset_of!(PerCpu, preempt_count),
            options(readonly, nostack, preserves_flags),
        );
    }
    counts & !NO_SWITCH_DUE
}

/// Adds to the counts. One instruction, which no interrupt or migration comes between.
#[inline(always)]
pub fn raise_counts(one: u32) {
    // SAFETY: changes the block's word, which is nobody else's. A compiler barrier, as what the counts guard stands behind.
    unsafe {
        asm!("add dword ptr gs:[{word}], {:e}", in(reg) one, word = const offset_of!(PerCpu, preempt_count), options(nostack));
    }
}

/// Takes from the counts.
#[inline(always)]
pub fn lower_counts(one: u32) {
    // SAFETY: as above.
    unsafe {
        asm!("sub dword ptr gs:[{word}], {:e}", in(reg) one, word = const offset_of!(PerCpu, preempt_count), options(nostack));
    }
}

/// Says beside the counts whether a switch is due. The caller cannot migrate.
#[inline(always)]
pub fn set_switch_due(due: bool) {
    let word = &per_cpu().preempt_count;
    if due {
        word.fetch_and(!NO_SWITCH_DUE, Ordering::Relaxed);
    } else {
        word.fetch_or(NO_SWITCH_DUE, Ordering::Relaxed);
    }
}

#[inline(always)]
fn flags() -> u64 {
    let flags;
    // SAFETY: there is no red zone that the push could hit. No `nomem`, for the same push, and so this is a
    //         compiler barrier as well.
    unsafe { asm!("pushfq", "pop {}", out(reg) flags, options(preserves_flags)) };
    flags
}

#[inline(always)]
fn mask() {
    // SAFETY: masking interrupts breaks nothing. A memory clobber: what follows must not move in front of it.
    unsafe { asm!("cli", options(nostack, preserves_flags)) };
}

/// Masks interrupts; the result says whether they were masked.
#[inline(always)]
pub fn irqs_off() -> IrqState {
    let state = flags();
    mask();
    IrqState(state)
}

/// Makes the mask what it was.
#[inline(always)]
pub fn irqs_restore(state: IrqState) {
    // Not by popf, which is many times slower than both of these.
    if state.0 & ADMITTED != 0 { irqs_on() } else { mask() }
}

/// Unmasks interrupts.
#[inline(always)]
pub fn irqs_on() {
    // SAFETY: the vectors are installed before anything unmasks. A memory clobber: what precedes must not
    //         move behind it.
    unsafe { asm!("sti", options(nostack, preserves_flags)) };
}

/// Whether interrupts are unmasked.
#[inline(always)]
pub fn irqs_enabled() -> bool {
    flags() & ADMITTED != 0
}

/// Sleeps until an interrupt, and not at all if one is due; interrupts are off before and afterwards.
#[inline(always)]
pub fn wait_for_interrupt() {
    // SAFETY: `sti` lets nothing in before the next instruction is done, so what is due ends the sleep. The handlers may
    //         have changed memory when it is over, and use this stack.
    unsafe { asm!("sti", "hlt", "cli", options(preserves_flags)) };
}

/// What a CPU does between two looks at what another one must change.
#[inline(always)]
pub fn relax() {
    hint::spin_loop();
}

/// Stops this CPU for good; an NMI is no reason to go on.
#[unsafe(link_section = ".text.notrace")]
pub fn stop() -> ! {
    loop {
        // SAFETY: stops.
        unsafe { asm!("cli", "hlt", options(nomem, nostack)) };
    }
}

/// Executes a context-synchronising instruction.
#[inline(always)]
pub fn sync_core() {
    // Intel SDM volume 3, 9.3: of the serialising instructions, the one that changes nothing.
    let _ = __cpuid(0);
}
