//! The demo kernel: a scheduler, a timer, a console and a heap, no more than a tracer needs to show what it
//! can do.
//!
//! `machine` brings the CPU up and supplies what differs between machines; everything else is portable. The
//! kernel command line says what to run, see [`command_line`].
//!
//! # Tracing
//!
//! The kernel is built with patchable entries in nearly every function. Functions that must never be traced
//! carry `#[unsafe(link_section = ".text.notrace")]`, which the linker script gathers in a range that the
//! site table skips: what the tracer's callbacks call, the trap path outside `irq_enter`/`irq_exit`, the
//! inside of the context switch, the console and the panic path. Accessors of a few instructions are
//! `#[inline(always)]` instead.

#![cfg_attr(target_os = "none", no_std)]
#![cfg_attr(target_os = "none", no_main)]
#![cfg_attr(
    target_os = "none",
    expect(unreachable_pub, reason = "a program has no outside; `pub` means for the other modules")
)]

#[cfg(target_os = "none")]
extern crate alloc;

// The kernel; a hosted target gets the stub below and none of this.
#[cfg(target_os = "none")]
mod backtrace;
#[cfg(target_os = "none")]
mod bench;
#[cfg(target_os = "none")]
mod buffers;
#[cfg(target_os = "none")]
mod cases;
#[cfg(target_os = "none")]
mod command_line;
#[cfg(target_os = "none")]
mod console;
#[cfg(target_os = "none")]
mod context;
#[cfg(target_os = "none")]
mod crash;
#[cfg(target_os = "none")]
mod demo;
#[cfg(target_os = "none")]
mod export;
#[cfg(target_os = "none")]
mod heap;
#[cfg(target_os = "none")]
mod lock;
#[cfg(target_os = "none")]
mod machine;
#[cfg(target_os = "none")]
mod nmi;
#[cfg(target_os = "none")]
mod panic;
#[cfg(target_os = "none")]
mod percpu;
#[cfg(target_os = "none")]
mod platform;
#[cfg(target_os = "none")]
mod sched;
#[cfg(target_os = "none")]
mod selfcheck;
#[cfg(target_os = "none")]
mod shell;
#[cfg(target_os = "none")]
mod smp;
#[cfg(target_os = "none")]
mod start;
#[cfg(target_os = "none")]
mod task;
#[cfg(target_os = "none")]
mod tracefs;
#[cfg(target_os = "none")]
mod tracing;
#[cfg(target_os = "none")]
mod types;
#[cfg(target_os = "none")]
mod workload;

#[cfg(target_os = "none")]
pub use start::kernel_main;

/// The stub that lets `cargo clippy --workspace` see this package on the host.
#[cfg(not(target_os = "none"))]
fn main() {
    eprintln!("this is a kernel: boot it with `make demo`");
    std::process::exit(2);
}
