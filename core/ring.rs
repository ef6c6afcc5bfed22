//! Per-CPU ring buffers: written by one CPU in any context, read by any other meanwhile, over memory the embedder lends.
//!
//! A [`Buffer`] is the memory and what is known about it; a [`Ring`] is one CPU's switch between buffers. Records are those of
//! [`wire`](crate::wire).
//!
//! # Writers
//! All writers of a buffer run on one CPU with preemption off, so what interrupts one finishes before it goes on. That is what
//! makes do with plain loads and stores where other buffers need read-modify-writes. A position is a count of words since the
//! buffer was made, and never goes back. In short:
//!
//! * `commit` is the end of what is complete. It is moved by the *outermost* writer only, and it is where its record goes.
//! * `busy` is not 0 while a writer is under way. It says what the outermost keeps for itself: two words behind `commit`, or all up to
//!   some position. A writer that comes on top is *nested*, and reserves behind that.
//! * `nested` is the end of what nested writers reserved; only they move it, by compare-and-swap, since they are rare. `first` is
//!   where the first of them began.
//!
//! ```text
//! outermost: busy = 2; at = commit; write at `at`, one word or two; commit = at + len; busy = 0;
//!            if nested > commit: take in what nested writers left behind
//! nested:    at = if nested > commit { nested } else { first = commit + 2 }; nested = at + len; write
//! ```
//!
//! So the outermost reserves nothing in the usual case, and has nothing to look at before it writes: an interrupt at any place
//! finds `busy` set and stays away from its two words, or finds it 0, and then is done before the outermost loads `commit`. A word
//! that was kept and not used becomes padding. An outermost writer that needs more sets `busy` to where its record will end, and
//! then looks whether nested writers came before that: if `first` is not where it should be, it takes them in, and starts again
//! behind them.
//!
//! A reader sees nothing of nested records before the outermost commits them. The outermost also counts them then, by
//! walking over them, so that a page's header has the exact number of records before it.
//!
//! # Pages
//! The memory is a power of two of pages of equal size. No record crosses a page's end, and a page begins with all that is needed to
//! decode it alone. A writer raises `entered` before it writes to a page, and a release fence stands between; a reader
//! copies, and looks at `entered` behind an acquire fence. If the page had not been entered again by then, no copied word is
//! of the new one; else the copy is thrown away and its records are counted as lost, by the difference between the number of
//! records before the next page and the number the reader has seen.
//!
//! A page is not overwritten while the outermost writer has not committed it: what is nested and would have to is refused, and counted.

use core::fmt;

use crate::sync::{AtomicBool, AtomicPtr, Ordering, spin_loop};
use crate::wire::{Call, Hit, Record, Who};

mod buffer;
mod figures;
mod floor;
mod latest;
#[cfg(feature = "trampolines")]
pub(crate) mod offsets;
mod read;
mod write;

#[cfg(test)]
mod measure;
#[cfg(test)]
mod model;
#[cfg(test)]
mod threads;

pub use buffer::{Buffer, Counts, Mode};
pub use figures::Figures;
pub use read::{Item, Reader};

/// A call that returned, as almost all are recorded: nothing of it needs more than a few words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Brief {
    /// The function's number: of the kernel's, its index in the site table.
    pub func: u32,
    /// How many calls of the task are around this one.
    pub depth: u32,
    /// Who ran when it returned.
    pub who: Who,
    /// When it was entered.
    pub start: u64,
    /// When it returned.
    pub end: u64,
    /// What it returned, if that is wanted.
    pub retval: Option<u64>,
}

/// What does not fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingError {
    /// Pages must have a power of two of words, and at least [`Buffer::MIN_PAGE_WORDS`].
    PageWords(usize),
    /// The memory, of so many words, is not a power of two of pages.
    Words(usize),
    /// The buffer is some ring's already: two CPUs may not write to it.
    InUse,
    /// Somebody else is exchanging the ring's buffer right now.
    Swapped,
    /// A reader needs room for a page, and this is less.
    Room(usize),
    /// Another consumer is reading.
    Consumed,
    /// The page with this sequence number is not there: overwritten, or not written yet.
    NoPage(u64),
}

impl fmt::Display for RingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PageWords(words) => write!(
                f,
                "pages of {words} words, where a power of two from {} on is needed",
                Buffer::MIN_PAGE_WORDS
            ),
            Self::Words(words) => write!(f, "{words} words of memory are not a power of two of pages"),
            Self::InUse => f.write_str("the buffer belongs to a ring already"),
            Self::Swapped => f.write_str("the ring's buffer is being exchanged"),
            Self::Room(words) => write!(f, "{words} words are not enough for a page"),
            Self::Consumed => f.write_str("somebody else is consuming this buffer"),
            Self::NoPage(sequence) => write!(f, "page {sequence} is not in the buffer"),
        }
    }
}

impl core::error::Error for RingError {}

/// One CPU's buffer, and whether it is written. Starts off, without a buffer.
///
/// [`on`](Self::on), [`off`](Self::off) and [`exchange`](Self::exchange) may be called in any context, on any CPU; [`swap`](Self::swap) is
/// for task context. A writer that is under way goes on in the buffer it started in: one that was taken away is at rest once every CPU's
/// preemption-off sections have ended, which is also when its memory can be used for something else.
#[derive(Debug)]
#[repr(C, align(32))]
pub struct Ring {
    /// What is written to: null when off.
    pub(crate) active: AtomicPtr<Buffer>,
    /// The buffer there is, or null.
    buffer: AtomicPtr<Buffer>,
    on: AtomicBool,
    /// One swap at a time.
    swapping: AtomicBool,
}

impl Ring {
    /// A ring without a buffer.
    pub const fn new() -> Self {
        Self {
            active: AtomicPtr::new(core::ptr::null_mut()),
            buffer: AtomicPtr::new(core::ptr::null_mut()),
            on: AtomicBool::new(false),
            swapping: AtomicBool::new(false),
        }
    }

    /// Where to write, if anywhere. Any context, on the ring's CPU.
    #[inline(always)]
    fn active(&self) -> Option<&'static Buffer> {
        let buffer = self.active.load(Ordering::Acquire);
        // SAFETY: null, or made of a `&'static Buffer` by `put`.
        unsafe { buffer.as_ref() }
    }

    /// Makes `active` what the switch and the buffer say.
    ///
    /// Others may do so at the same time, on other CPUs or on top. Who changed one of the two comes here afterwards, and all accesses are
    /// in one order: so of two that store different things here, the one that had looked too early finds that out behind its store, and
    /// stores again.
    fn settle(&self) {
        loop {
            let (on, buffer) = (self.on.load(Ordering::SeqCst), self.buffer.load(Ordering::SeqCst));
            self.active.store(if on { buffer } else { core::ptr::null_mut() }, Ordering::SeqCst);
            if on == self.on.load(Ordering::SeqCst) && buffer == self.buffer.load(Ordering::SeqCst) {
                return;
            }
        }
    }

    /// Records a call at its return. `false` when it was refused, and counted, or the ring is off. Any context, on the ring's CPU, with
    /// preemption off.
    #[inline(always)]
    pub fn call(&self, call: &Brief) -> bool {
        self.active().is_some_and(|buffer| buffer.call(call))
    }

    /// Records a function that was entered, like [`call`](Self::call).
    #[inline(always)]
    pub fn hit(&self, hit: &Hit) -> bool {
        self.active().is_some_and(|buffer| buffer.hit(hit))
    }

    /// Records a call without arguments and memory, of which a short record has not enough, like [`call`](Self::call).
    #[cfg_attr(not(feature = "trampolines"), expect(dead_code, reason = "the tracers have them"))]
    #[inline(always)]
    pub(crate) fn long_call(&self, call: &Call<'_>) -> bool {
        self.active().is_some_and(|buffer| buffer.long_call(call))
    }

    /// Records anything, like [`call`](Self::call).
    pub fn record(&self, record: &Record<'_>) -> bool {
        self.active().is_some_and(|buffer| buffer.record(record))
    }

    /// Writes from now on; without a buffer, from when there is one. Any context.
    pub fn on(&self) {
        self.on.store(true, Ordering::SeqCst);
        self.settle();
    }

    /// Writes no more. Any context.
    pub fn off(&self) {
        self.on.store(false, Ordering::SeqCst);
        self.settle();
    }

    /// If records are written.
    pub fn is_on(&self) -> bool {
        self.active().is_some()
    }

    /// Takes the buffer away and gives another, or none: for more or less memory, or for a snapshot, with a spare buffer that becomes
    /// the one to write. The ring stays on or off. The old buffer can be read as before, and be given to a ring again.
    ///
    /// # Errors
    /// [`RingError::InUse`]: the buffer is some ring's already.
    pub fn swap(&self, buffer: Option<&'static Buffer>) -> Result<Option<&'static Buffer>, RingError> {
        if let Some(buffer) = buffer {
            buffer.take()?;
        }
        while self.swapping.swap(true, Ordering::Acquire) {
            spin_loop();
        }
        Ok(self.put(buffer))
    }

    /// Takes the buffer away and gives another, in any context and on any CPU: what [`swap`](Self::swap) does, but it waits for nobody.
    ///
    /// # Errors
    /// [`RingError::InUse`]: the buffer is some ring's already. [`RingError::Swapped`]: somebody else is at it right now.
    pub fn exchange(&self, buffer: &'static Buffer) -> Result<Option<&'static Buffer>, RingError> {
        buffer.take()?;
        if self.swapping.swap(true, Ordering::Acquire) {
            buffer.give_back();
            return Err(RingError::Swapped);
        }
        Ok(self.put(Some(buffer)))
    }

    /// Puts a buffer in the place of the one there is, which is what this returns. Who comes here has set `swapping`; on return it is
    /// taken back.
    fn put(&self, buffer: Option<&'static Buffer>) -> Option<&'static Buffer> {
        let old = self.buffer();
        let new = buffer.map_or(core::ptr::null_mut(), |buffer| core::ptr::from_ref(buffer).cast_mut());
        self.buffer.store(new, Ordering::SeqCst);
        self.settle();
        if let Some(old) = old {
            old.give_back();
        }
        self.swapping.store(false, Ordering::Release);
        old
    }

    /// The buffer, to be read.
    pub fn buffer(&self) -> Option<&'static Buffer> {
        // SAFETY: null, or made of a `&'static Buffer` by `put`.
        unsafe { self.buffer.load(Ordering::Acquire).as_ref() }
    }
}

impl Default for Ring {
    fn default() -> Self {
        Self::new()
    }
}
