//! Deliberate disasters, which show that the kernel's own failures have the exit codes they should:
//! `crash=KIND` on the command line.

use core::{hint, ptr};

use crate::{
    console::println,
    machine::{self, Exit},
};

/// A disaster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// A panic.
    Panic,
    /// A panic while a panic's message is being formatted.
    PanicTwice,
    /// A read through a null pointer.
    Read,
    /// A write to the kernel's text through the mapping that executes.
    Text,
    /// A call into data.
    Execute,
    /// A recursion that ends below the stack.
    Stack,
    /// A CPU that no interrupt reaches; only a time limit ends it.
    Hang,
}

impl Crash {
    /// The disaster that the command line calls `name`.
    pub fn by_name(name: &str) -> Option<Self> {
        Some(match name {
            "panic" => Self::Panic,
            "panic-twice" => Self::PanicTwice,
            "read" => Self::Read,
            "text" => Self::Text,
            "execute" => Self::Execute,
            "stack" => Self::Stack,
            "hang" => Self::Hang,
            _ => return None,
        })
    }
}

/// Runs into `crash`. Coming back at all is a failure.
pub fn run(crash: Crash) -> Exit {
    match crash {
        Crash::Panic => panic!("as the command line wishes"),
        Crash::PanicTwice => panic!("{}", PanicsWhenShown),
        Crash::Read => {
            // SAFETY: none; the fault is the point. Black-boxed, so that the compiler cannot know what it
            //         does.
            let value = unsafe { hint::black_box(ptr::without_provenance::<u64>(8)).read_volatile() };
            println!("read {value:#x} through a null pointer");
        }
        Crash::Text => {
            let text = ptr::with_exposed_provenance_mut::<u8>(machine::text_range().start);
            // SAFETY: none; the fault is the point. If it does not come, the byte is as it was.
            unsafe { text.write_volatile(text.read_volatile()) };
            println!("wrote to {text:p}, which is text");
        }
        Crash::Execute => {
            let data = hint::black_box([0_u64; 4]);
            // SAFETY: none; the fault is the point.
            let call = unsafe { core::mem::transmute::<*const u64, extern "C" fn()>(data.as_ptr()) };
            call();
            println!("executed {:p}, which is data", data.as_ptr());
        }
        Crash::Stack => {
            let depth = overflow(0);
            // The canary is looked at on the way out of the CPU.
            crate::sched::yield_now();
            println!("overflowed the stack {depth} calls deep");
        }
        Crash::Hang => {
            let _ = machine::irqs_off();
            loop {
                hint::spin_loop();
            }
        }
    }
    Exit::Failed
}

/// Calls itself until it is below the stack, but not far.
fn overflow(depth: u32) -> u32 {
    let block = hint::black_box([depth; 64]);
    let here = block.as_ptr().addr();
    let bottom = machine::current().stack_range().start;
    if here < bottom { depth } else { hint::black_box(overflow(depth + 1)).max(block[0]) }
}

/// Panics in `Display`.
struct PanicsWhenShown;

impl core::fmt::Display for PanicsWhenShown {
    fn fmt(&self, _: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        panic!("while showing the first panic");
    }
}
