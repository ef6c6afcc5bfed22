//! The panic handler: says where and in what task, and leaves QEMU with the code for a crash.

use core::{
    panic::PanicInfo,
    sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
};

use fgraph::{
    tracer,
    unwind::{End, Kind, Start},
};

use crate::{
    backtrace, buffers,
    console::{self, emergency},
    context,
    machine::{self, Exit, TrapFrame},
    smp, task,
    tracing::{Named, Names},
};

/// Nobody ends the kernel.
const NOBODY: usize = usize::MAX;

/// The CPU that ends the kernel, or [`NOBODY`]; it stays the one.
static ENDING: AtomicUsize = AtomicUsize::new(NOBODY);

/// The CPUs that have stopped, and the one that ends the kernel, by bit.
static STOPPED: AtomicU32 = AtomicU32::new(0);

/// How long the CPU that ends the kernel waits for the others to stop.
const STOP_PATIENCE_NS: u64 = 50_000_000;

/// Makes this CPU the one that ends the kernel, and stops all others: what it prints from now on comes out in one
/// piece, and it alone leaves QEMU. Comes back as often as that CPU calls it, with interrupts off, and never on
/// another CPU, of which one may have come later with an end of its own.
#[unsafe(link_section = ".text.notrace")]
pub fn take_over() {
    let _ = machine::irqs_off();
    let this = machine::per_cpu().cpu;
    // Relaxed here and below: nothing is handed over but the number.
    match ENDING.compare_exchange(NOBODY, this, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => {
            STOPPED.fetch_or(1 << this, Ordering::Relaxed);
            machine::stop_others();
            // A CPU with its interrupts off may not notice before it prints, or never.
            let deadline = machine::clock_ns() + STOP_PATIENCE_NS;
            while smp::online() & !STOPPED.load(Ordering::Relaxed) != 0 && machine::clock_ns() < deadline {
                machine::relax();
            }
            console::break_line();
        }
        Err(ending) if ending == this => {}
        Err(_) => stop(),
    }
}

/// Stops this CPU for good.
#[unsafe(link_section = ".text.notrace")]
fn stop() -> ! {
    let _ = machine::irqs_off();
    STOPPED.fetch_or(1 << machine::per_cpu().cpu, Ordering::Relaxed);
    machine::stop()
}

/// Stops this CPU if another one ends the kernel. For whoever prints, whoever waits for another CPU, and whoever is told
/// to stop.
#[unsafe(link_section = ".text.notrace")]
#[inline(always)]
pub fn stop_if_over() {
    let ending = ENDING.load(Ordering::Relaxed);
    if ending != NOBODY && ending != machine::per_cpu().cpu {
        stop();
    }
}

/// A panic is being reported.
static PANICKING: AtomicBool = AtomicBool::new(false);

/// Called by the language. Takes no lock, because the panicking code may hold any of them, and allocates
/// nothing.
#[panic_handler]
#[unsafe(link_section = ".text.notrace")]
fn panic(info: &PanicInfo<'_>) -> ! {
    take_over();
    fgraph::ftrace_kill();
    if PANICKING.swap(true, Ordering::Relaxed) {
        machine::exit(Exit::Crashed);
    }
    match info.location() {
        Some(at) => emergency!("panic: {} at {}:{}:{}", info.message(), at.file(), at.line(), at.column()),
        None => emergency!("panic: {}", info.message()),
    }
    crash_context();
    callers(backtrace::here());
    latest_calls();
    machine::exit(Exit::Crashed);
}

/// Says what each CPU did last, if it was traced.
#[unsafe(link_section = ".text.notrace")]
fn latest_calls() {
    // What the console refuses, nobody can be told.
    let _ = tracer::write_latest_calls(&buffers::Key, &Names, &mut console::Serial);
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

/// How many callers are shown.
const CALLERS_SHOWN: usize = 32;

/// Says what an interrupted context was doing: where it was, and who called it.
#[unsafe(link_section = ".text.notrace")]
pub fn trap_context(frame: &TrapFrame) {
    crash_context();
    emergency!("  at {:#x}, sp {:#x}", frame.ip(), frame.sp());
    // What was interrupted has been shown.
    callers(Start::Interrupted(frame.registers()));
    latest_calls();
}

/// Says who called whom, from the caller of `start` on. What ends the list is no failure of its own.
#[unsafe(link_section = ".text.notrace")]
fn callers(start: Start) {
    let task = machine::current();
    // An idle task is on its CPU's boot stack, of which it is only known that it goes on upwards.
    let known = task.stack_range();
    let here = match start {
        Start::Interrupted(registers) => registers.sp,
        Start::Called { fp, .. } => fp,
    };
    let around = here..here.saturating_add(task::STACK_SIZE);
    let stacks = if known.is_empty() { [around, 0..0] } else { [known, around] };
    let mut walk = backtrace::walk(task, &stacks, start);
    for frame in walk.by_ref().skip(1).take(CALLERS_SHOWN) {
        let how = match (frame.kind, frame.is_return) {
            (Kind::Uncertain, _) => "perhaps called from",
            (Kind::Trampoline, _) => "through the tracer at",
            (Kind::Certain, true) => "called from",
            (Kind::Certain, false) => "interrupted at",
        };
        // The call is in front of its return address, which may be behind its function.
        let within = frame.pc.wrapping_sub(usize::from(frame.is_return));
        emergency!("  {how} {:#x} {}", frame.pc, Named(within));
    }
    if let Some(end) = walk.end().filter(|end| *end != End::Bottom) {
        emergency!("  {end}");
    }
}

/// A hooked function returned and nobody knows where to: says why, and leaves QEMU with the code for a crash.
#[unsafe(link_section = ".text.notrace")]
pub fn fatal_trace(why: fgraph::Fatal) -> ! {
    take_over();
    emergency!("fgraph: {why}");
    crash_context();
    callers(backtrace::here());
    machine::exit(Exit::Crashed);
}
