//! The straight path: what the trampolines do by themselves when one graph user, the function_graph tracer, is the only user there is.
//!
//! Entry and return are assembly. The entry pushes the frame that [`graph::enter`](crate::graph::enter) would have pushed for the tracer,
//! with the time in it. The return finds it, has `Engine::record_straight` record the call, and pops it; if the call was too short to be
//! recorded, nothing is called at all. Frames of this path can be returned through by the other, so the switch between them, [`Straight`],
//! may be thrown at any time: a call that saw it on goes on as if it had begun before. Frames of the other path are not taken for this
//! one's: their functions may have no prefix, which is what leads to their numbers here.
//!
//! No section of `quiesce` is needed, since nothing that could be taken away is used; and no recursion guard where nothing that could
//! be traced is called.

use memoffset::offset_of;
use static_assertions::const_assert_eq;

use crate::addr::{FuncAddr, RetAddr};
use crate::frame::{CONTROL, Control, DataHeader, FUNC, KEY, RET, State};
use crate::sync::{AtomicU64, AtomicUsize, Ordering};
use crate::users::Mask;

/// Words that the tracer keeps in a frame: the time of the entry.
pub(crate) const DATA_WORDS: usize = 1;

/// Words of a frame of the straight path.
pub(crate) const FRAME_WORDS: usize = crate::frame::FRAME_WORDS + 1 + DATA_WORDS;

/// What the header of the data has in a frame of this path, beside what [`DataHeader`] keeps there.
const MARK: u64 = 1 << 63;

/// The switch. The assembly reads its words.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Straight {
    /// The control word of a sealed frame that the tracer wants, without its distance; 0 while there is no straight path.
    pub(crate) control: AtomicU64,
    /// The header of the tracer's data, marked. Meaningless while there is no straight path.
    pub(crate) header: AtomicU64,
    /// What `control` is, or was last: for who has seen that it is not 0 and had no register to keep it in.
    pub(crate) sealed: AtomicU64,
    /// Calls that took less are not recorded, in counts of the tracer's clock.
    pub(crate) least: AtomicU64,
}

// The arm64 assembly loads both words as a pair.
const_assert_eq!(offset_of!(Straight, header) - offset_of!(Straight, control), 8);
const_assert_eq!(KEY - FUNC, FUNC - RET);
// And loads the key with the control word, and the data's header with the time.
const_assert_eq!(KEY + 1, CONTROL);
const_assert_eq!(DATA_WORDS, 1);

impl Straight {
    pub(crate) const fn new() -> Self {
        Self {
            control: AtomicU64::new(0),
            header: AtomicU64::new(0),
            sealed: AtomicU64::new(0),
            least: AtomicU64::new(0),
        }
    }

    /// No straight path from now on. Any context.
    pub(crate) fn off(&self) {
        // A read-modify-write, like that of `on`: see `Engine::choose_path`.
        let _ = self.control.swap(0, Ordering::AcqRel);
    }

    /// The user in `slot` is the only one, and is the tracer, which wants calls that took `least` or longer; `stamp` is that of frames
    /// that are sealed now. Control side.
    pub(crate) fn on(&self, slot: usize, stamp: u64, least: u64) {
        self.least.store(least, Ordering::Relaxed);
        let header = DataHeader { slot, words: DATA_WORDS };
        self.header.store(header.encode() | MARK, Ordering::Relaxed);
        let want: Mask = 1 << slot;
        let control = Control { distance: 0, state: State::Sealed, want, stamp };
        // An entry on another CPU may see this and still the header of an earlier slot. Its return goes the other way then, where that
        // user's data is not the tracer's, so the call is not recorded; and it comes back.
        self.sealed.store(control.encode(), Ordering::Relaxed);
        let _ = self.control.swap(control.encode(), Ordering::AcqRel);
    }

    /// The control word and the header.
    #[cfg(test)]
    pub(crate) fn words(&self) -> (u64, u64) {
        (self.control.load(Ordering::Relaxed), self.header.load(Ordering::Relaxed))
    }
}

/// A frame of the straight path that is being returned through: the words that the assembly found it by are right.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Frame([AtomicUsize; FRAME_WORDS]);

#[cfg_attr(not(feature = "trampolines"), expect(dead_code, reason = "the trampolines have them"))]
impl Frame {
    #[inline(always)]
    pub(crate) fn ret_addr(&self) -> RetAddr {
        RetAddr::new(self.0[RET].load(Ordering::Relaxed))
    }

    #[inline(always)]
    pub(crate) fn func(&self) -> FuncAddr {
        FuncAddr::new(self.0[FUNC].load(Ordering::Relaxed))
    }

    /// When the function was entered, in counts.
    #[inline(always)]
    pub(crate) fn start(&self) -> u64 {
        self.0[FRAME_WORDS - DATA_WORDS].load(Ordering::Relaxed) as u64
    }
}

#[cfg(test)]
mod tests;
