//! What this kernel does for the tracer beside [`platform`](crate::platform): a trace block and a shadow stack for each task,
//! the start with the linker's site table, and names.

use alloc::{boxed::Box, vec};
use core::sync::atomic::{AtomicUsize, Ordering};

use fgraph::text::{self, Resolve, Retval};
use fgraph::{Error, FuncAddr, Hooking, Layouts, SiteReport, SiteSource, TaskTrace};

use crate::{
    lock::IrqLock,
    machine,
    sched::{self, Task},
    types,
};

fgraph::symbol_space!(512 * 1024);

/// Words of a shadow stack: a page of 4 KiB.
pub const SHADOW_WORDS: usize = 512;

/// How many words the shadow stacks of tasks get that are spawned from now on; 0 for none.
static WORDS_FOR_NEW: AtomicUsize = AtomicUsize::new(SHADOW_WORDS);

/// Sets how many words the shadow stack of each task gets that is spawned from now on; 0 for none.
pub fn set_shadow_words(words: usize) {
    WORDS_FOR_NEW.store(words, Ordering::Relaxed);
}

/// Whether a function starts at an address: Rust's have prefixes where the kernel is built so, assembly's never.
fn is_function(func: FuncAddr) -> bool {
    let found = symbols().ok().and_then(|symbols| symbols.by_address(func.get() as u64));
    found.is_some_and(|symbol| symbol.offset == 0)
}

/// What [`start`] came to.
static STARTED: IrqLock<Option<Result<SiteReport, Error>>> = IrqLock::new(None);

/// Initialises the tracer at boot. What came of it is asked for later: the kernel runs without a tracer too.
pub fn start(hooking: Hooking) {
    let report = init(hooking);
    *STARTED.lock() = Some(report);
}

/// What the tracer found at boot.
pub fn started() -> Result<SiteReport, Error> {
    STARTED.lock().unwrap_or(Err(Error::NotInitialised))
}

/// Makes the boot context traceable and hands the sites over. Before other tasks run.
fn init(hooking: Hooking) -> Result<SiteReport, Error> {
    adopt(machine::current());
    #[cfg(target_arch = "x86_64")]
    machine::set_breakpoint_hook(crate::platform::on_breakpoint);
    if let Ok(symbols) = symbols() {
        fgraph::set_symbols(symbols);
    }
    // SAFETY: the kernel's linker scripts include all three fragments, and this is the only call.
    let source = unsafe { fgraph::linker::site_source(machine::text_range()) };
    let source = SiteSource { layouts: Layouts::Mixed(is_function), hooking, ..source };
    // SAFETY: 1. The source is this image's. 2. Only the boot context runs, on one CPU.
    unsafe { fgraph::init(source) }
}

/// Gives a task its trace block and shadow stack. The task is new, or the caller.
pub fn adopt(task: &'static Task) {
    let words = WORDS_FOR_NEW.load(Ordering::Relaxed);
    let block = task.trace_block();
    if words > 0 {
        // Never freed: tasks are not either, and a dead one's memory goes on in `bury`.
        let stack = SPARE.lock().take_if(|stack| stack.len() == words);
        let stack = stack.unwrap_or_else(|| Box::leak(vec![0; words].into_boxed_slice()));
        if let Err(error) = block.give_stack(stack) {
            crate::console::println!("task {}: {error}", task.name());
        }
    }
    task.publish_trace_block();
}

/// A dead task's shadow stack, for the next that is spawned.
static SPARE: IrqLock<Option<&'static mut [usize]>> = IrqLock::new(None);

/// Takes a dead task's shadow stack back, with the frames of the functions that it died in.
pub fn bury(task: &'static Task) {
    let block: &TaskTrace = task.trace_block();
    // SAFETY: the task is dead.
    unsafe { block.forget_frames() };
    // SAFETY: as above.
    if let Ok(stack) = unsafe { block.take_stack() } {
        *SPARE.lock() = Some(stack);
    }
}

/// Names from the image's own symbols and tasks.
pub struct Names;

impl Resolve for Names {
    fn name(&self, func: usize, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match symbols().ok().and_then(|symbols| symbols.by_address(func as u64)) {
            Some(symbol) if symbol.offset == 0 => write!(f, "{}", symbol.demangled()),
            Some(symbol) => write!(f, "{}+{:#x}", symbol.demangled(), symbol.offset),
            None => write!(f, "{func:#x}"),
        }
    }

    fn place(&self, addr: usize, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match symbols().ok().and_then(|symbols| symbols.by_address(addr as u64)) {
            Some(symbol) => write!(f, "{}+{:#x}/{:#x}", symbol.demangled(), symbol.offset, symbol.size),
            None => write!(f, "{addr:#x}"),
        }
    }

    fn caller(&self, addr: usize, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match symbols().ok().and_then(|symbols| symbols.by_address(addr as u64)) {
            Some(symbol) => write!(f, "{}", symbol.demangled()),
            None => write!(f, "{addr:#x}"),
        }
    }

    fn is_irq_entry(&self, func: usize) -> bool {
        func == sched::tick as *const () as usize
    }

    fn has_retval(&self, func: usize) -> bool {
        types::with_recorded(|types| types.has_retval(func))
    }

    fn write_typed_retval(
        &self,
        func: usize,
        retval: Retval<'_>,
        f: &mut core::fmt::Formatter<'_>,
    ) -> core::fmt::Result {
        types::with_recorded(|types| types.write_typed_retval(func, retval, f))
    }

    fn write_typed_args(
        &self,
        func: usize,
        args: &[usize],
        f: &mut core::fmt::Formatter<'_>,
    ) -> core::fmt::Result {
        types::with_recorded(|types| types.write_typed_args(func, args, f))
    }
}

/// An address as its function's name.
pub struct Named(pub usize);

impl core::fmt::Display for Named {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        Names.name(self.0, f)
    }
}

/// A task's number and name, for the printer.
pub fn task_of(pid: u32) -> text::Task {
    text::Task::new(pid, sched::name_of(pid).unwrap_or(""))
}
