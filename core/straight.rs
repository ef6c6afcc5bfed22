//! The straight path: what the trampolines do by themselves when one graph user, the function_graph tracer, is the only user there is.
//!
//! Entry and return are assembly. The entry pushes the frame that [`graph::enter`](crate::graph::enter) would have pushed for the tracer,
//! with the time in it. The return finds it, pops it, and writes the record to the ring of its CPU, as `Buffer::call` would
//! (`core/ring/write.rs`). Nothing is called in the usual case: a function of the kernel's of whose result one register is kept or nothing, in a
//! task without interrupts on top that had the buffer last, at a depth that it has been at, with times and a number that a record in short has, on
//! a platform with [`CpuWords`](crate::CpuWords). What is left in any other case is done in Rust (`arch/straight.rs`), which is told how far
//! the assembly has come.
//!
//! Frames of this path can be returned through by the other, so the switch between them, [`Straight`], may be thrown at any time: a call
//! that saw it on goes on as if it had begun before. Frames of the other path are not taken for this one's, by their
//! [`State`]: their functions may have no prefix, which is what leads to their numbers here.
//!
//! No section of `quiesce` is needed, since nothing that could be taken away is used: a buffer that was is at rest when every CPU's
//! holds of preemption have ended, and those include the assembly's. And no recursion guard is, where nothing that could be traced is called.

use static_assertions::const_assert_eq;

use crate::frame::{CONTROL, Control, FUNC, KEY, RET, State};
use crate::site::Kept;
use crate::sync::{AtomicU64, AtomicUsize, Ordering};
use crate::users::Mask;

/// Words that the tracer keeps in a frame: the time of the entry.
pub(crate) const DATA_WORDS: usize = 1;

/// Words of a frame of the straight path.
#[cfg(any(feature = "trampolines", test))]
pub(crate) const FRAME_WORDS: usize = crate::frame::FRAME_WORDS + DATA_WORDS;

/// What the straight path asks its user. Control side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plain {
    /// Which calls are recorded: those that took as many counts. `None` while the path cannot do what the callbacks do.
    pub(crate) from: fn() -> Option<u64>,
    /// What is recorded of the calls of a function, by its number.
    pub(crate) kept: fn(u32) -> Kept,
}

/// What the control word is while there is no straight path: that of no frame, whose lower half is 0.
pub(crate) const OFF: u64 = 1 << 63;

/// The switch. The assembly reads its words.
#[derive(Debug)]
#[repr(C, align(32))]
pub(crate) struct Straight {
    /// The control word of a sealed frame that the tracer wants, without its distance; [`OFF`] while there is no straight path.
    pub(crate) control: AtomicU64,
    /// What `control` is, or was last: for who has seen that it is on and had no register to keep it in.
    pub(crate) sealed: AtomicU64,
    /// Calls that took less are not recorded, in counts of the tracer's clock.
    pub(crate) least: AtomicU64,
    /// Where the state words of the functions are, from number 0 on, whose calls the trampolines record: that of each says so.
    pub(crate) states: AtomicUsize,
}

const_assert_eq!(KEY - FUNC, FUNC - RET);
// And loads the key with the control word.
const_assert_eq!(KEY + 1, CONTROL);
const_assert_eq!(DATA_WORDS, 1);

impl Straight {
    pub(crate) const fn new() -> Self {
        Self {
            control: AtomicU64::new(OFF),
            sealed: AtomicU64::new(0),
            least: AtomicU64::new(0),
            states: AtomicUsize::new(0),
        }
    }

    /// No straight path from now on. Any context.
    pub(crate) fn off(&self) {
        // A read-modify-write, like that of `on`: see `Engine::choose_path`.
        let _ = self.control.swap(OFF, Ordering::AcqRel);
    }

    /// The user in `slot` is the only one, and is the tracer, which wants calls that took `least` or longer; `stamp` is that of frames
    /// that are sealed now. Control side.
    pub(crate) fn on(&self, slot: usize, stamp: u64, least: u64) {
        self.least.store(least, Ordering::Relaxed);
        let want: Mask = 1 << slot;
        let control = Control { distance: 0, state: State::Straight, want, stamp };
        self.sealed.store(control.encode(), Ordering::Relaxed);
        let _ = self.control.swap(control.encode(), Ordering::AcqRel);
    }

    /// The control word, if there is a straight path.
    #[cfg(test)]
    pub(crate) fn is_on(&self) -> Option<u64> {
        Some(self.control.load(Ordering::Relaxed)).filter(|control| *control != OFF)
    }
}

#[cfg(test)]
mod tests;
