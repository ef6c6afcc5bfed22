//! What the trampolines know of a ring, to record a call in short as [`Buffer::call`](super::Buffer) does, in the same order.

use memoffset::offset_of;

use super::buffer::{Words, Writer};
use super::{Buffer, Ring};

pub(crate) use super::write::SHORT;

/// Between the rings of a row, as a power of two.
pub(crate) const RING_LOG2: u32 = size_of::<Ring>().trailing_zeros();
const _: () = assert!(size_of::<Ring>() == 1 << RING_LOG2);
/// The assembly adds nothing to where a ring is.
const _: () = assert!(offset_of!(Ring, active) == 0);
/// The same of a buffer, whose commit is stored through the pointer to it.
const _: () = assert!(COMMIT == 0);

const WRITER: usize = offset_of!(Buffer, writer);
const COMMIT: usize = WRITER + offset_of!(Writer, commit);
pub(crate) const BUSY: usize = WRITER + offset_of!(Writer, busy);
pub(crate) const BASE: usize = WRITER + offset_of!(Writer, base);
pub(crate) const WHO: usize = WRITER + offset_of!(Writer, who);
pub(crate) const LIMIT: usize = WRITER + offset_of!(Writer, limit);
pub(crate) const RECORDS: usize = WRITER + offset_of!(Writer, records);
pub(crate) const NESTED: usize = WRITER + offset_of!(Writer, nested);
pub(crate) const FIRST_WORD: usize = WRITER + offset_of!(Writer, words) + offset_of!(Words, first);
pub(crate) const MASK: usize = WRITER + offset_of!(Writer, words) + offset_of!(Words, mask);
