//! Deliberate disasters, which show that the kernel's own failures have the exit codes they should:
//! `crash=KIND` on the command line.

use core::{
    hint, ptr,
    sync::atomic::{AtomicUsize, Ordering},
};

use fgraph::{FgraphOps, Filter, tracer};

use crate::{
    buffers,
    console::println,
    machine::{self, Exit},
    sched, smp, workload,
};

/// A disaster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// A panic.
    Panic,
    /// A panic of a kernel that is traced.
    Traced,
    /// A panic while a panic's message is being formatted.
    PanicTwice,
    /// A panic on the last CPU, while all others print.
    PanicElsewhere,
    /// A panic on every CPU at once, of which one is reported.
    PanicEverywhere,
    /// A read through a null pointer.
    Read,
    /// A write to the kernel's text through the mapping that executes.
    Text,
    /// A call into data.
    Execute,
    /// An indirect branch to where no landing pad is, which faults where text is guarded.
    NoPad,
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
            "traced" => Self::Traced,
            "panic-twice" => Self::PanicTwice,
            "panic-elsewhere" => Self::PanicElsewhere,
            "panic-everywhere" => Self::PanicEverywhere,
            "read" => Self::Read,
            "text" => Self::Text,
            "execute" => Self::Execute,
            "no-pad" => Self::NoPad,
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
        Crash::Traced => {
            static GRAPH: FgraphOps = tracer::function_graph(Filter::ALL);

            buffers::make(64);
            buffers::switch(true);
            if let Err(error) = fgraph::register_ftrace_graph(&GRAPH) {
                println!("fgraph: {error}");
                return Exit::Failed;
            }
            let report = workload::run();
            panic!("while everything is traced: {}", report.trouble.as_deref().unwrap_or("no trouble"));
        }
        Crash::PanicTwice => panic!("{}", PanicsWhenShown),
        Crash::PanicElsewhere => {
            let mut last = 0;
            for cpu in smp::cpus(smp::online()) {
                sched::spawn_on(cpu, "print", print_for_ever, cpu);
                last = cpu;
            }
            sched::sleep_ms(100);
            let task = sched::spawn_on(last, "panic", |cpu| panic!("on CPU {cpu}, while others print"), last);
            sched::join(task);
        }
        Crash::PanicEverywhere => {
            for cpu in smp::cpus(smp::online()) {
                sched::spawn_on(cpu, "panic", panic_with_the_others, cpu);
            }
            sched::park();
        }
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
        Crash::NoPad => {
            #[cfg(target_arch = "aarch64")]
            // SAFETY: the branch is to the next instruction; where text is guarded, its fault is the point.
            unsafe {
                core::arch::asm!("adr {0}, 2f", "br {0}", "2: nop", out(reg) _, options(nomem, nostack));
            }
            println!("landed where no pad is");
        }
        Crash::Stack => {
            let depth = overflow(0);
            // The canary is looked at on the way out of the CPU.
            sched::yield_now();
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

/// Prints lines.
fn print_for_ever(cpu: usize) {
    loop {
        println!("CPU {cpu} prints a line that is long enough to be cut in the middle of it");
    }
}

/// Panics when a task on every CPU is about to.
fn panic_with_the_others(cpu: usize) {
    static ARRIVED: AtomicUsize = AtomicUsize::new(0);

    ARRIVED.fetch_add(1, Ordering::Relaxed);
    while ARRIVED.load(Ordering::Relaxed) < smp::count() {
        machine::relax();
    }
    panic!("on CPU {cpu}, like on all others");
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
