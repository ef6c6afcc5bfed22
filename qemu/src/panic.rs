//! The panic handler: says where and in what task, and leaves QEMU with the code for a crash.

use core::{
    mem,
    panic::PanicInfo,
    ptr,
    sync::atomic::{AtomicBool, Ordering},
};

use crate::{
    console::emergency,
    context,
    machine::{self, Exit, TrapFrame},
};

/// A panic is being reported.
static PANICKING: AtomicBool = AtomicBool::new(false);

/// Called by the language. Takes no lock, because the panicking code may hold any of them, and allocates
/// nothing.
#[panic_handler]
#[unsafe(link_section = ".text.notrace")]
fn panic(info: &PanicInfo<'_>) -> ! {
    let _ = machine::irqs_off();
    fgraph::ftrace_kill();
    if PANICKING.swap(true, Ordering::Relaxed) {
        machine::exit(Exit::Crashed);
    }
    match info.location() {
        Some(at) => emergency!("panic: {} at {}:{}:{}", info.message(), at.file(), at.line(), at.column()),
        None => emergency!("panic: {}", info.message()),
    }
    crash_context();
    machine::exit(Exit::Crashed);
}

/// Says where the CPU was, for panics and for faults that nothing handles.
#[unsafe(link_section = ".text.notrace")]
pub fn crash_context() {
    let task = machine::current();
    let stack = task.stack_range();
    emergency!(
        "  cpu {}, task {} (pid {}), context {:?} ({:#x}), stack {:#x}..{:#x}",
        machine::per_cpu().cpu,
        task.name(),
        task.pid,
        context::level(),
        context::counts(),
        stack.start,
        stack.end
    );
}

/// How many callers of a faulting function are shown.
const CALLERS_SHOWN: usize = 32;

/// Says what an interrupted context was doing: where it was, and who called it by its chain of frame records.
/// A broken chain ends the list and nothing else.
#[unsafe(link_section = ".text.notrace")]
pub fn trap_context(frame: &TrapFrame) {
    crash_context();
    emergency!("  at {:#x}, sp {:#x}", frame.ip(), frame.sp());
    let mut record = frame.fp();
    for _ in 0..CALLERS_SHOWN {
        if !record.is_multiple_of(mem::align_of::<usize>())
            || !machine::readable(record, mem::size_of::<[usize; 2]>())
        {
            break;
        }
        // SAFETY: 1. Aligned and readable, as just tested. 2. Any bytes are two words.
        let [caller, return_address] =
            unsafe { ptr::with_exposed_provenance::<[usize; 2]>(record).read_volatile() };
        if return_address == 0 {
            break;
        }
        emergency!("  called from {return_address:#x}");
        // A stack grows down, so a chain that does not go up is broken.
        if caller <= record {
            break;
        }
        record = caller;
    }
}

/// A hooked function returned and nobody knows where to: says why, and leaves QEMU with the code for a crash.
#[unsafe(link_section = ".text.notrace")]
pub fn fatal_trace(why: fgraph::Fatal) -> ! {
    let _ = machine::irqs_off();
    emergency!("fgraph: {why}");
    crash_context();
    machine::exit(Exit::Crashed);
}
