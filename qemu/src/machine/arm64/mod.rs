//! arm64: QEMU's `virt` machine with a Cortex-A72, GICv3 and semihosting, at EL1.
//!
//! Register use: `SP_EL0` is the current [`Task`](crate::sched::Task) (the kernel runs with `SPSel` 1 and has
//! no EL0), `TPIDR_EL1` this CPU's [`PerCpu`](crate::percpu::PerCpu).
//!
//! NMIs are fast interrupts (FIQ), which the GIC makes of its Group 0. `PSTATE.I` is what the kernel masks interrupts with;
//! `PSTATE.F` is set in a fast interrupt's handler, where the CPU does it, and in the first and last instructions of others.
//!
//! Built for `aarch64-unknown-none-softfloat`, floating point stays off: its use traps. Built for
//! `aarch64-unknown-none`, compiled code has the vector registers wherever it runs, interrupt handlers included:
//! traps save all of them, and the switch those that calls keep.
//!
//! Compiled with `-Zbranch-protection=bti,pac-ret`, return addresses are signed and functions have landing pads. What
//! the CPU knows of that is turned on at boot: signatures always, with a key for each task, guarded text only if the whole image has pads, for
//! which the standard library must be compiled too, with `-Zbuild-std=core,alloc,compiler_builtins`. QEMU's
//! Cortex-A72 knows neither, its `max` both (`QEMU_CPU=max qemu/run ...`).

mod boot;
mod clock;
mod cpu;
mod cpus;
mod gic;
mod guard;
mod host;
mod memory;
mod serial;
mod switch;
mod trap;

pub use clock::{clock_ns, clock_rate, ns_of, timer_set_hz, timer_start, timer_stop};
pub use cpu::{
    CPU_NUMBER, IrqState, NO_SWITCH_DUE, PREEMPT_COUNT, TaskCounts, counts, current, init_cpu, irqs_enabled,
    irqs_off, irqs_on, irqs_restore, lower_counts, per_cpu, raise_counts, set_switch_due, wait_for_interrupt,
};
pub use cpus::{cpus_present, relax, start_cpus, stop, sync_core};
pub use gic::{nmi_self, send_ipi, send_nmi, stop_others};
pub use guard::{Keys, PTR_AUTH, a_branch_to_no_pad_faults, guards, has_landing_pads, is_signed, sign};
pub use host::{HostFile, command_line, exit};
pub use memory::{readable, text_alias, text_range};
pub use serial::{console_read, console_write};
pub use switch::{prepare_stack, stopped_at, switch};
pub use trap::{TrapFrame, interrupted};

pub use crate::smp::sync_cores;
