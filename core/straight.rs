//! The straight path: what the trampolines do by themselves when one graph user, the function_graph tracer, is the only user there is.
//!
//! The entry is assembly: it pushes the frame that [`graph::enter`](crate::graph::enter) would have pushed for the tracer, with the
//! time in it, and calls nothing. The return is [`leave`] and the record. A frame of either path can be returned through by the
//! other, so the switch between them, [`Straight`], may be thrown at any time: a call that saw it on goes on as if it had begun before.
//!
//! No section of `quiesce` is needed, since nothing that could be taken away is used; and no recursion guard at the entry,
//! since nothing that could be traced is called.

use crate::addr::{FuncAddr, RetAddr};
use crate::frame::{Control, DataHeader, State};
use crate::sync::{AtomicU64, Ordering};
use crate::users::Mask;

/// Words that the tracer keeps in a frame: the time of the entry.
pub(crate) const DATA_WORDS: usize = 1;

/// Words of a frame of the straight path.
pub(crate) const FRAME_WORDS: usize = crate::frame::FRAME_WORDS + 1 + DATA_WORDS;

/// The switch. The assembly reads both words.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Straight {
    /// The control word of a sealed frame that the tracer wants, without its distance; 0 while there is no straight path.
    pub(crate) control: AtomicU64,
    /// The header of the tracer's data. Meaningless while there is no straight path.
    pub(crate) header: AtomicU64,
}

impl Straight {
    pub(crate) const fn new() -> Self {
        Self { control: AtomicU64::new(0), header: AtomicU64::new(0) }
    }

    /// No straight path from now on. Any context.
    pub(crate) fn off(&self) {
        self.control.store(0, Ordering::Relaxed);
    }

    /// The user in `slot` is the only one, and is the tracer; `stamp` is that of frames that are sealed now. Control side.
    pub(crate) fn on(&self, slot: usize, stamp: u64) {
        let header = DataHeader { slot, words: DATA_WORDS };
        self.header.store(header.encode(), Ordering::Relaxed);
        let want: Mask = 1 << slot;
        let control = Control { distance: 0, state: State::Sealed, want, stamp };
        // An entry that sees this control and an older header is another user's frame with data that nobody finds: that user had the
        // slot before, and its frames have another stamp. So the order decides nothing but how soon the path is taken.
        self.control.store(control.encode(), Ordering::Release);
    }

    #[inline(always)]
    pub(crate) fn control(&self) -> u64 {
        self.control.load(Ordering::Relaxed)
    }
}

/// A frame of the straight path that is being returned through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) ret_addr: RetAddr,
    pub(crate) func: FuncAddr,
    /// When it was entered.
    pub(crate) start: u64,
    /// From where to what lies below: for the pop.
    pub(crate) newest: u32,
    pub(crate) distance: u32,
}
