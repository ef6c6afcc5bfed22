//! x86_64: QEMU's `q35` machine, started through the PVH entry, with the local APIC and the `isa-debug-exit`
//! device.
//!
//! Register use: the base of `gs` is this CPU's [`PerCpu`](crate::percpu::PerCpu), which holds the current
//! [`Task`](crate::sched::Task); there is no user mode, so it never changes. Floating point and vector
//! instructions stay off: their use traps.

mod apic;
mod boot;
mod clock;
mod cpu;
mod cpus;
mod descriptors;
mod guard;
mod host;
mod memory;
mod port;
mod serial;
mod switch;
mod trap;

pub use apic::{nmi_self, send_ipi, send_nmi, stop_others};
pub use clock::{clock_ns, clock_rate, ns_of, timer_set_hz, timer_start, timer_stop};
pub use cpu::{
    CPU_NUMBER, IrqState, NO_SWITCH_DUE, PREEMPT_COUNT, TaskCounts, counts, current, init_cpu, irqs_enabled,
    irqs_off, irqs_on, irqs_restore, lower_counts, per_cpu, raise_counts, relax, set_switch_due, stop,
    sync_core, wait_for_interrupt,
};
pub use cpus::start_cpus;
pub use guard::{Keys, PTR_AUTH, guards, has_landing_pads};
pub use host::{HostFile, command_line, cpus_present, exit};
pub use memory::{readable, text_alias, text_range};
pub use serial::{console_read, console_write};
pub use switch::{prepare_stack, stopped_at, switch};
pub use trap::set_breakpoint_hook;
pub use trap::{TrapFrame, interrupted};

pub use crate::smp::sync_cores;
