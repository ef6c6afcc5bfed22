//! The straight path: what the trampolines do by themselves when one graph user, the function_graph tracer, is the only user there is.
//!
//! The entry is assembly: it pushes the frame that [`graph::enter`](crate::graph::enter) would have pushed for the tracer, with the
//! time in it, and calls nothing. The return is `Engine::leave_straight` and the record. Frames of this path can be returned through by
//! the other, so the switch between them, [`Straight`], may be thrown at any time: a call that saw it on goes on as if it had begun before.
//! Frames of the other path are not taken for this one's: their functions may have no prefix, which is what leads to their numbers here.
//!
//! No section of `quiesce` is needed, since nothing that could be taken away is used; and no recursion guard at the entry,
//! since nothing that could be traced is called.

use memoffset::offset_of;
use static_assertions::const_assert_eq;

use crate::addr::{FuncAddr, RetAddr};
use crate::frame::{Control, DataHeader, FUNC, KEY, RET, State};
use crate::sync::{AtomicU64, Ordering};
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
}

// The arm64 assembly loads both words as a pair.
const_assert_eq!(offset_of!(Straight, header) - offset_of!(Straight, control), 8);
const_assert_eq!(KEY - FUNC, FUNC - RET);

impl Straight {
    pub(crate) const fn new() -> Self {
        Self { control: AtomicU64::new(0), header: AtomicU64::new(0), sealed: AtomicU64::new(0) }
    }

    /// No straight path from now on. Any context.
    pub(crate) fn off(&self) {
        // A read-modify-write, like that of `on`: see `Engine::choose_path`.
        let _ = self.control.swap(0, Ordering::AcqRel);
    }

    /// The user in `slot` is the only one, and is the tracer; `stamp` is that of frames that are sealed now. Control side.
    pub(crate) fn on(&self, slot: usize, stamp: u64) {
        let header = DataHeader { slot, words: DATA_WORDS };
        self.header.store(header.encode() | MARK, Ordering::Relaxed);
        let want: Mask = 1 << slot;
        let control = Control { distance: 0, state: State::Sealed, want, stamp };
        // An entry on another CPU may see this and still the header of an earlier slot. Its return goes the other way then, where that
        // user's data is not the tracer's, so the call is not recorded; and it comes back.
        self.sealed.store(control.encode(), Ordering::Relaxed);
        let _ = self.control.swap(control.encode(), Ordering::AcqRel);
    }

    /// The two words.
    #[inline(always)]
    pub(crate) fn words(&self) -> (u64, u64) {
        (self.control.load(Ordering::Relaxed), self.header.load(Ordering::Relaxed))
    }
}

/// A frame of the straight path that is being returned through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) ret_addr: RetAddr,
    pub(crate) func: FuncAddr,
    /// When it was entered.
    pub(crate) start: u64,
    /// Where the frame begins, and how far from there the one below does: for the pop.
    pub(crate) newest: u32,
    pub(crate) distance: u32,
}

#[cfg(test)]
mod tests;
