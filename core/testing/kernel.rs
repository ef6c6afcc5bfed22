//! A platform for tests: each thread has a kernel of its own, whose text is a few bytes at an address that only this module
//! knows how to read and write. Every write must lie within a site; reads and writes fail on demand. Before a write, and around a
//! core sync, an interrupt may come.

use core::cell::RefCell;
use core::ops::Range;
use std::boxed::Box;
use std::rc::Rc;
use std::thread_local;
use std::vec::Vec;

use crate::platform::{Context, CurrentTask, Fatal, Platform, ReadFault, TaskRegister, TextWriteError};
use crate::sync::interrupt_point;

/// The platform.
#[derive(Debug)]
pub(crate) enum Fake {}

/// A write that was done, or refused because it was to fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) addr: usize,
    pub(crate) bytes: Vec<u8>,
    /// How many core syncs there had been.
    pub(crate) syncs: usize,
}

/// Looks at a kernel after each write and each core sync.
pub(crate) type Watch = Rc<dyn Fn(&Kernel)>;

/// The kernel of this thread.
#[derive(Default)]
pub(crate) struct Kernel {
    pub(crate) base: usize,
    pub(crate) text: Vec<u8>,
    /// Where writes are allowed: the sleds.
    pub(crate) sleds: Vec<Range<usize>>,
    /// What cannot be read although it is text.
    pub(crate) unreadable: Vec<Range<usize>>,
    /// The writes so far.
    pub(crate) writes: Vec<Written>,
    /// How many more writes succeed, if not all.
    pub(crate) writes_left: Option<usize>,
    pub(crate) syncs: usize,
    pub(crate) watch: Option<Watch>,
    /// Nesting of preemption off.
    pub(crate) preempt_off: usize,
    /// What the code in question runs in.
    pub(crate) context: Option<Context>,
    pub(crate) fatal: Option<Fatal>,
    pub(crate) clock_ns: u64,
    pub(crate) cpu: usize,
}

impl Kernel {
    /// The text at `addr`.
    pub(crate) fn at(&self, addr: usize, len: usize) -> &[u8] {
        let start = addr - self.base;
        &self.text[start..start + len]
    }
}

thread_local! {
    static KERNEL: RefCell<Kernel> = RefCell::new(Kernel::default());
}

/// Starts this thread's kernel anew.
pub(crate) fn boot(base: usize, text: Vec<u8>, sleds: Vec<Range<usize>>) {
    KERNEL.set(Kernel { base, text, sleds, ..Kernel::default() });
}

/// Looks at this thread's kernel, or changes it. Nothing that reaches the platform may be called inside.
pub(crate) fn with<R>(look: impl FnOnce(&mut Kernel) -> R) -> R {
    KERNEL.with_borrow_mut(look)
}

/// A copy of all text.
pub(crate) fn text() -> Vec<u8> {
    with(|kernel| kernel.text.clone())
}

/// Changes text behind the tracer's back.
pub(crate) fn poke(addr: usize, bytes: &[u8]) {
    with(|kernel| {
        let start = addr - kernel.base;
        kernel.text[start..start + bytes.len()].copy_from_slice(bytes);
    });
}

fn watch() {
    let watch = with(|kernel| kernel.watch.clone());
    if let Some(watch) = watch {
        KERNEL.with_borrow(|kernel| watch(kernel));
    }
}

// SAFETY: 1. Nothing is entered through trampolines here. 2. The context is what the test says. 3. Tests run on one
// thread each. 4. Writes go to the thread's own bytes.
unsafe impl Platform for Fake {
    const CURRENT: CurrentTask = CurrentTask {
        register: if crate::arch::register_fits(TaskRegister::Gs) {
            TaskRegister::Gs
        } else {
            TaskRegister::TpidrEl0
        },
        offset: 0,
    };

    fn context() -> Context {
        with(|kernel| kernel.context.unwrap_or(Context::Task))
    }

    fn cpu_id() -> usize {
        // Also from within a `watch`.
        KERNEL.with_borrow(|kernel| kernel.cpu)
    }

    fn clock_ns() -> u64 {
        KERNEL.with_borrow(|kernel| kernel.clock_ns)
    }

    fn counts_time() -> bool {
        true
    }

    fn task_id() -> u32 {
        0
    }

    fn preempt_disable() {
        with(|kernel| kernel.preempt_off += 1);
    }

    fn preempt_enable() {
        with(|kernel| {
            assert!(kernel.preempt_off > 0, "preemption is enabled once too often");
            kernel.preempt_off -= 1;
        });
    }

    unsafe fn write_text(addr: usize, bytes: &[u8]) -> Result<(), TextWriteError> {
        interrupt_point();
        let written = with(|kernel| {
            let end = addr + bytes.len();
            let inside = kernel.sleds.iter().any(|sled| sled.start <= addr && end <= sled.end);
            assert!(inside && !bytes.is_empty(), "a write of {bytes:02x?} at {addr:#x} is not within a site");
            if let Some(left) = &mut kernel.writes_left {
                *left = left.checked_sub(1).ok_or(TextWriteError { addr, len: bytes.len() })?;
            }
            let start = addr - kernel.base;
            kernel.text[start..start + bytes.len()].copy_from_slice(bytes);
            let syncs = kernel.syncs;
            kernel.writes.push(Written { addr, bytes: bytes.to_vec(), syncs });
            Ok(())
        });
        if written.is_ok() {
            watch();
        }
        written
    }

    fn sync_cores() {
        interrupt_point();
        with(|kernel| kernel.syncs += 1);
        watch();
        interrupt_point();
    }

    fn read(addr: usize, bytes: &mut [u8]) -> Result<(), ReadFault> {
        with(|kernel| {
            let fault = ReadFault { addr };
            let end = addr.checked_add(bytes.len()).ok_or(fault)?;
            let start = addr.checked_sub(kernel.base).ok_or(fault)?;
            if kernel.unreadable.iter().any(|hole| addr < hole.end && hole.start < end) {
                return Err(fault);
            }
            bytes.copy_from_slice(kernel.text.get(start..start + bytes.len()).ok_or(fault)?);
            Ok(())
        })
    }

    fn fatal(why: Fatal) -> ! {
        with(|kernel| kernel.fatal = Some(why));
        std::eprintln!("fatal: {why}");
        // Without the message of a panic: some tests mean to get here.
        std::panic::resume_unwind(Box::new(why))
    }
}

// The trampolines of the host, if they are in the test binary, call these.
#[cfg(feature = "trampolines")]
crate::bind_platform!(Fake);
