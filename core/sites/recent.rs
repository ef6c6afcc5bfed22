//! Numbers of the kernel's functions that were asked for lately: guesses, so that most questions need no search.

use crate::addr::FuncAddr;
use crate::sync::{AtomicU32, Ordering};

const PLACES: usize = 512;

/// A number for each of [`PLACES`] groups of functions. Whoever reads one looks whether it is right, so any context on any CPU may write.
#[derive(Debug)]
pub(super) struct Recent([AtomicU32; PLACES]);

impl Recent {
    pub(super) const fn new() -> Self {
        Self([const { AtomicU32::new(0) }; PLACES])
    }

    /// What may be the function's number.
    #[inline]
    pub(super) fn guess(&self, func: FuncAddr) -> u32 {
        self.place(func).load(Ordering::Relaxed)
    }

    /// Keeps it, at the expense of another function's.
    pub(super) fn keep(&self, func: FuncAddr, number: u32) {
        self.place(func).store(number, Ordering::Relaxed);
    }

    #[inline]
    fn place(&self, func: FuncAddr) -> &AtomicU32 {
        // Functions lie 16 bytes apart, more or less.
        let hash = (func.get() >> 4) ^ (func.get() >> 13);
        &self.0[hash % PLACES]
    }
}
