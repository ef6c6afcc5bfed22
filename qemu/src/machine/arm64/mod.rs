//! arm64: QEMU's `virt` machine with a Cortex-A72, GICv3 and semihosting, at EL1.
//!
//! Register use: `SP_EL0` is the current [`Task`](crate::sched::Task) (the kernel runs with `SPSel` 1 and has
//! no EL0), `TPIDR_EL1` this CPU's [`PerCpu`](crate::percpu::PerCpu). Floating point stays off: its use
//! traps.

mod boot;
mod clock;
mod cpu;
mod gic;
mod host;
mod memory;
mod serial;
mod switch;
mod trap;

pub use clock::{clock_ns, timer_set_hz, timer_start};
pub use cpu::{
    IrqState, current, init_cpu, irqs_enabled, irqs_off, irqs_on, irqs_restore, nmi_self, per_cpu, set_nmi_hook,
    sync_cores, wait_for_interrupt,
};
pub use host::{command_line, exit};
pub use memory::{readable, text_alias, text_range};
pub use serial::console_write;
pub use switch::{prepare_stack, switch};
pub use trap::TrapFrame;
