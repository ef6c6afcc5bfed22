//! The platform: a text of bytes, at an address that nothing else has, which counts what is done to it.

use std::cell::RefCell;
use std::process::abort;

use fgraph::{Context, CurrentTask, Fatal, Platform, ReadFault, TaskRegister, TextWriteError};

/// Where the text starts.
pub(crate) const BASE: usize = 0x4000_0000;

/// What was done to the text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) reads: usize,
    pub(crate) writes: usize,
    pub(crate) syncs: usize,
}

#[derive(Default)]
struct Text {
    bytes: Vec<u8>,
    done: Done,
}

impl Text {
    fn at(&mut self, addr: usize, len: usize) -> Option<&mut [u8]> {
        let start = addr.checked_sub(BASE)?;
        self.bytes.get_mut(start..start.checked_add(len)?)
    }
}

thread_local! {
    static TEXT: RefCell<Text> = RefCell::new(Text::default());
}

/// Puts another text there.
pub(crate) fn load(bytes: Vec<u8>) {
    TEXT.set(Text { bytes, done: Done::default() });
}

/// What was done since this was last asked.
pub(crate) fn done() -> Done {
    TEXT.with_borrow_mut(|text| std::mem::take(&mut text.done))
}

/// The platform.
#[derive(Debug)]
pub(crate) enum Bench {}

// SAFETY: 1. Nothing comes through trampolines. 2. There are no interrupts, and 3. there is one thread. 4. What is written goes to
// the text's bytes.
unsafe impl Platform for Bench {
    const CURRENT: CurrentTask = CurrentTask { register: TaskRegister::Gs, offset: 0 };

    fn context() -> Context {
        Context::Task
    }

    fn cpu_id() -> usize {
        0
    }

    fn clock_ns() -> u64 {
        0
    }

    fn task_id() -> u32 {
        0
    }

    fn preempt_disable() {}

    fn preempt_enable() {}

    unsafe fn write_text(addr: usize, bytes: &[u8]) -> Result<(), TextWriteError> {
        TEXT.with_borrow_mut(|text| {
            text.done.writes += 1;
            let there = text.at(addr, bytes.len()).ok_or(TextWriteError { addr, len: bytes.len() })?;
            there.copy_from_slice(bytes);
            Ok(())
        })
    }

    fn sync_cores() {
        TEXT.with_borrow_mut(|text| text.done.syncs += 1);
    }

    fn read(addr: usize, bytes: &mut [u8]) -> Result<(), ReadFault> {
        TEXT.with_borrow_mut(|text| {
            text.done.reads += 1;
            bytes.copy_from_slice(text.at(addr, bytes.len()).ok_or(ReadFault { addr })?);
            Ok(())
        })
    }

    fn fatal(why: Fatal) -> ! {
        eprintln!("fgraph-bench: {why}");
        abort()
    }
}
