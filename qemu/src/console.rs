//! Printing to the serial line: [`print!`], [`println!`], and [`emergency!`] for the panic path.
//!
//! Invariant: one `print!` comes out in one piece as long as nothing goes wrong, printing never waits for a lock
//! that its own CPU holds, and once a CPU ends the kernel, no other prints any more. Callers are tasks, interrupt handlers, NMI handlers and the panic handler,
//! so everything here is outside tracing.

use core::{
    fmt::{self, Write},
    sync::atomic::{AtomicUsize, Ordering},
};

use crate::{lock::IrqsOff, machine, panic};

/// Prints to the console, formatted as by `core::format_args!`.
macro_rules! print {
    ($($arg:tt)*) => { $crate::console::print_locked(::core::format_args!($($arg)*)) };
}

/// Prints a line to the console.
macro_rules! println {
    ($($arg:tt)*) => { $crate::console::print!("{}\n", ::core::format_args!($($arg)*)) };
}

/// Prints a line without taking the console lock: for panics and faults, whoever holds it.
macro_rules! emergency {
    ($($arg:tt)*) => {
        $crate::console::print_unlocked(::core::format_args!("{}\n", ::core::format_args!($($arg)*)))
    };
}

pub(crate) use {emergency, print, println};

/// No CPU holds the console.
const FREE: usize = usize::MAX;

/// The CPU that prints, or [`FREE`].
static OWNER: AtomicUsize = AtomicUsize::new(FREE);

/// Prints while no other CPU does. What `print!` calls.
///
/// Interrupts are off meanwhile, so only an NMI or a panic can come here on a CPU that already prints; it
/// goes ahead without the lock, and the two texts mix rather than one of them waiting for ever.
#[unsafe(link_section = ".text.notrace")]
pub fn print_locked(args: fmt::Arguments<'_>) {
    let _irqs = IrqsOff::new();
    let cpu = machine::per_cpu().cpu;
    if OWNER.load(Ordering::Relaxed) == cpu {
        print_unlocked(args);
        return;
    }
    // Acquire and Release pair up between CPUs, so that the bytes of one print are with the device before the
    // next.
    while OWNER.compare_exchange_weak(FREE, cpu, Ordering::Acquire, Ordering::Relaxed).is_err() {
        panic::stop_if_over();
        machine::relax();
    }
    print_unlocked(args);
    OWNER.store(FREE, Ordering::Release);
}

/// Prints bytes as [`print_locked`] prints text.
#[unsafe(link_section = ".text.notrace")]
pub fn write_bytes(bytes: &[u8]) {
    let _irqs = IrqsOff::new();
    let cpu = machine::per_cpu().cpu;
    let is_ours = OWNER.load(Ordering::Relaxed) == cpu;
    while !is_ours && OWNER.compare_exchange_weak(FREE, cpu, Ordering::Acquire, Ordering::Relaxed).is_err() {
        panic::stop_if_over();
        machine::relax();
    }
    panic::stop_if_over();
    machine::console_write(bytes);
    if !is_ours {
        OWNER.store(FREE, Ordering::Release);
    }
}

/// Ends the line that somebody may have been in the middle of. For the CPU that ends the kernel.
#[unsafe(link_section = ".text.notrace")]
pub fn break_line() {
    if OWNER.load(Ordering::Relaxed) != FREE {
        machine::console_write(b"\n");
    }
}

/// Prints at once. What `emergency!` calls.
#[unsafe(link_section = ".text.notrace")]
pub fn print_unlocked(args: fmt::Arguments<'_>) {
    // The only error is one that a `Display` of the arguments made up; there is no one to tell.
    let _ = Serial.write_fmt(args);
}

/// The serial line. All three methods are written out, because provided ones would be compiled into traced
/// text.
pub struct Serial;

impl Write for Serial {
    #[unsafe(link_section = ".text.notrace")]
    fn write_str(&mut self, text: &str) -> fmt::Result {
        panic::stop_if_over();
        machine::console_write(text.as_bytes());
        Ok(())
    }

    #[unsafe(link_section = ".text.notrace")]
    fn write_char(&mut self, char: char) -> fmt::Result {
        panic::stop_if_over();
        machine::console_write(char.encode_utf8(&mut [0; 4]).as_bytes());
        Ok(())
    }

    #[unsafe(link_section = ".text.notrace")]
    fn write_fmt(&mut self, args: fmt::Arguments<'_>) -> fmt::Result {
        fmt::write(self, args)
    }
}
