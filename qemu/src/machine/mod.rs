//! What a machine must supply to the demo kernel. Both machines have the same file names and the same functions; this
//! file is the list, and everything above it is portable.
//!
//! | name | what it is |
//! | --- | --- |
//! | `kernel.ld` | the linker script, given to the linker by `build.rs`. Symbols: `__text_start`, `__text_end`; `__fgraph_text_start`, `__fgraph_text_stop` around `.text.notrace`; `__fgraph_sites_start`, `__fgraph_sites_stop` around `__patchable_function_entries` |
//! | `boot` | `_start`: from the machine's reset or loader state to [`crate::kernel_main`] on the boot stack, in 64-bit mode, with the MMU and caches on, traps installed, interrupts masked |
//! | `init_cpu(&'static PerCpu, &'static Task)` | makes the per-CPU block and the current task reachable on this CPU; called once, by [`crate::sched::init_cpu`], before anything uses either |
//! | `per_cpu() -> &'static PerCpu` | the block of the CPU this runs on. Only meaningful while the caller cannot migrate |
//! | `current() -> &'static Task` | the running task, read in one instruction, so that a migration cannot tear it |
//! | `counts() -> u32`, `raise_counts(u32)`, `lower_counts(u32)`, `set_switch_due(bool)`, `TaskCounts`, `NO_SWITCH_DUE` | the nesting counts of [`crate::context`], with whether a switch is due beside them, laid out as [`fgraph::CpuWords`] says; what a task has of them |
//! | `PREEMPT_COUNT`, `CPU_NUMBER` | where the tracer's trampolines find them, and the CPU's number |
//! | `console_write(&[u8])` | writes bytes to the serial line, polling; usable from any context, panic included |
//! | `console_read() -> Option<u8>` | the next byte that came in on the serial line, if there is one; for one task |
//! | `exit(Exit) -> !` | leaves QEMU with the exit code that `Exit` stands for: 33, 35 or 37. Comes from any context, and again if leaving itself traps |
//! | `command_line(&mut [u8]) -> usize` | copies the kernel command line without the kernel's own file name, returns its length |
//! | `irqs_off() -> IrqState`, `irqs_restore(IrqState)`, `irqs_on()`, `irqs_enabled() -> bool` | the interrupt mask of this CPU; `IrqState` is `Copy`. Those that change it are compiler barriers |
//! | `wait_for_interrupt()` | sleeps until an interrupt is due, and not at all if one is; called and returns with interrupts off, may let them in meanwhile |
//! | `relax()` | what a CPU does between two looks at what another one must change |
//! | `clock_ns() -> u64` | monotonic nanoseconds since boot, one register read and one multiplication, no lock |
//! | `clock_rate() -> (u64, u64)` | what the clock counts: the counter at its 0, and counts a second |
//! | `HostFile` | a file of the host: `create(&str) -> Option<HostFile>`, `write(&[u8]) -> bool`; the path is the machine's affair |
//! | `timer_start(hz: u32)` | starts the periodic interrupt of this CPU: [`crate::context::irq_enter`], acknowledge, [`crate::sched::tick`], [`crate::context::irq_exit`] as the last thing, which may switch tasks |
//! | `timer_stop()` | ends it on this CPU, until the next `timer_start` |
//! | `timer_set_hz(hz: u32)` | changes its rate, on every CPU; task context, interrupts on |
//! | `cpus_present() -> usize` | how many CPUs the machine has, 1 at least |
//! | `start_cpus(count: usize)` | starts CPUs 1 to `count - 1`, each of which arrives at [`crate::smp::secondary_main`] as CPU 0 did at `kernel_main`; does not wait for them |
//! | `send_ipi(cpu: usize, Ipi)` | interrupts another CPU that runs, which calls [`crate::smp::interrupt`] as its timer calls `tick`. What was written before is seen there |
//! | `nmi_self() -> bool` | sends an NMI to this CPU, whose handler calls [`crate::nmi::handle`]; it has come when this returns. False for a machine without |
//! | `send_nmi(cpu: usize) -> bool` | the same to any CPU that runs; it may come after the return |
//! | `stop_others()`, `stop() -> !` | makes the other CPUs call [`crate::panic::stop_if_over`], by NMI; stops this CPU for good |
//! | `switch(prev: &'static Task, next: &'static Task)` | interrupts are off; saves the callee-saved registers on prev's stack, changes stack and current task, returns as `next` |
//! | `prepare_stack(top: usize, entry: extern "C" fn() -> !) -> usize` | builds the frame from which `switch` starts a new task; returns the saved stack pointer |
//! | `stopped_at(&Task) -> Start` | where a walk of the stack of a task starts that does not run, and will not as long as the walk takes |
//! | `interrupted(pc, record) -> Option<Registers>` | if `pc` is where a handler returns to the trap entry, whose frame record stands at `record`: the registers of what was interrupted |
//! | `text_range() -> Range<usize>` | the executable mapping of the kernel's text |
//! | `text_alias(usize) -> *mut u8` | the writable alias of a text address; nothing is writable and executable through one mapping |
//! | `sync_core()` | executes a context-synchronising instruction |
//! | `sync_cores()` | every CPU has executed one when it returns: [`crate::smp::sync_cores`] |
//! | `readable(addr: usize, len: usize) -> bool` | whether these bytes are memory that can be read without a fault or an effect; true for no bytes |
//! | `Keys`, `Keys::BOOT`, `Keys::new(pid)` | what a task's return addresses are signed with, where the machine does that; `switch` changes them |
//! | `PTR_AUTH` | which bits of a return address are its signature |
//! | `guards() -> Guards` | what guards control flow, and what does not |
//! | `has_landing_pads() -> bool` | whether the whole image was compiled with landing pads, so that modules must be too |
//! | `TrapFrame` | the registers of an interrupted context, `ip()`, `sp()`, `fp()`, `registers()`; the trap entry builds a frame record, so that a walk along frame pointers goes through it |
//!
//! A fault that nothing handles shows all registers by `emergency!`, then calls [`crate::panic::trap_context`] and exits with
//! [`Exit::Crashed`]. What a tracer's callbacks call, and the trap path, is outside tracing (see the crate's head): tiny
//! functions are `#[inline(always)]`, others carry `#[unsafe(link_section = ".text.notrace")]`.

use core::fmt;

use cfg_if::cfg_if;

mod note;

cfg_if! {
    if #[cfg(target_arch = "aarch64")] {
        mod arm64;
        pub use arm64::*;
    } else if #[cfg(target_arch = "x86_64")] {
        mod x86_64;
        pub use x86_64::*;
    } else {
        compile_error!("the demo kernel runs on aarch64 and x86_64");
    }
}

/// What one CPU asks of another by interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ipi {
    /// To look at its `need_resched`.
    Reschedule,
    /// To execute a context-synchronising instruction and say so.
    Sync,
    /// To run what its mailbox has.
    Call,
}

/// Whether the CPU checks something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// It does: what, in words.
    #[cfg_attr(target_arch = "x86_64", expect(dead_code, reason = "QEMU's CPUs enforce nothing there"))]
    Enforced(&'static str),
    /// It does not: why.
    Not(&'static str),
}

impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Enforced(what) => write!(f, "enforced: {what}"),
            Self::Not(why) => write!(f, "not enforced: {why}"),
        }
    }
}

/// What guards control flow.
#[derive(Clone, Copy, Debug)]
pub struct Guards {
    /// Return addresses on the stack.
    pub returns: Guard,
    /// Where indirect branches may go.
    pub branches: Guard,
}

/// How the kernel ends; `qemu/run` makes 0, 1 and 2 of it. Every variant has an exit code of its own for whoever started QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Everything that was asked for was done.
    Success,
    /// A test case failed.
    Failed,
    /// A panic, or a fault that nothing handles.
    Crashed,
}
