//! The words of one shadow-stack frame. Pure functions over a `u64`; `shadow` decides when they are stored.
//!
//! ```text
//!             +0 real return address
//!             +1 function (FuncAddr)
//!             +2 key (StackKey)
//!             +3 control word:  63..36 stamp | 35..12 want | 11..10 state | 9..0 distance
//!             +4 data blocks, each: header word (slot << 16 | words), then its words;
//!                of a frame of the straight path one word alone, of the only user that wants it
//! ```
//!
//! * distance: words from the start of the frame below to the start of this one; 0 for the lowest.
//! * state: see [`State`].
//! * want: one bit for each graph user that asked for the return.
//! * stamp: the registration count when the frame was sealed. A slot that was taken later is another user's, and its bit
//!   in an older frame means nothing.

use static_assertions::const_assert_eq;

use crate::users::{ALL_SLOTS, SLOTS};

/// Words of a frame without data.
pub(crate) const FRAME_WORDS: usize = 4;

pub(crate) const RET: usize = 0;
pub(crate) const FUNC: usize = 1;
pub(crate) const KEY: usize = 2;
pub(crate) const CONTROL: usize = 3;

pub(crate) const DISTANCE_BITS: u32 = 10;
const STATE_BITS: u32 = 2;
const WANT_BITS: u32 = 24;
const STAMP_BITS: u32 = 28;

const STATE_SHIFT: u32 = DISTANCE_BITS;
const WANT_SHIFT: u32 = STATE_SHIFT + STATE_BITS;
const STAMP_SHIFT: u32 = WANT_SHIFT + WANT_BITS;

const_assert_eq!(STAMP_SHIFT + STAMP_BITS, u64::BITS);
const_assert_eq!(WANT_BITS as usize, SLOTS);

/// The most words of one frame, data and headers included.
pub(crate) const MAX_FRAME_WORDS: usize = (1 << DISTANCE_BITS) - 1;

/// The most registrations of graph users in the life of a kernel: beyond it stamps would repeat.
pub(crate) const MAX_STAMP: u64 = (1 << STAMP_BITS) - 1;

/// What a frame's words may be believed to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum State {
    /// Left behind, or not written yet: only the distance is right.
    Dead = 0,
    /// Return address, function and key are right; entry callbacks are running and the return is not hooked yet.
    Building = 1,
    /// Everything is right, data blocks included.
    Sealed = 2,
    /// The same of a frame that the trampolines pushed by themselves, for one user: [`straight`](crate::straight).
    Straight = 3,
}

impl State {
    /// Whether everything is right.
    #[inline]
    pub(crate) const fn is_sealed(self) -> bool {
        matches!(self, Self::Sealed | Self::Straight)
    }
}

/// The control word, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Control {
    pub(crate) distance: usize,
    pub(crate) state: State,
    pub(crate) want: u32,
    pub(crate) stamp: u64,
}

impl Control {
    #[inline]
    pub(crate) const fn encode(self) -> u64 {
        self.distance as u64
            | (self.state as u64) << STATE_SHIFT
            | ((self.want & ALL_SLOTS) as u64) << WANT_SHIFT
            | (self.stamp & MAX_STAMP) << STAMP_SHIFT
    }

    #[inline]
    pub(crate) const fn decode(word: u64) -> Self {
        let state = match (word >> STATE_SHIFT) & ((1 << STATE_BITS) - 1) {
            1 => State::Building,
            2 => State::Sealed,
            3 => State::Straight,
            _ => State::Dead,
        };
        Self {
            distance: (word & ((1 << DISTANCE_BITS) - 1)) as usize,
            state,
            want: (word >> WANT_SHIFT) as u32 & ALL_SLOTS,
            stamp: word >> STAMP_SHIFT,
        }
    }
}

/// The header of a block of reserved data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataHeader {
    pub(crate) slot: usize,
    pub(crate) words: usize,
}

impl DataHeader {
    #[inline]
    pub(crate) const fn encode(self) -> u64 {
        (self.slot as u64) << 16 | self.words as u64
    }

    #[inline]
    pub(crate) const fn decode(word: u64) -> Self {
        Self { slot: ((word >> 16) & 0xffff) as usize, words: (word & 0xffff) as usize }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_words_come_back_as_they_were() {
        for distance in [0, 1, 4, 37, MAX_FRAME_WORDS] {
            for state in [State::Dead, State::Building, State::Sealed, State::Straight] {
                for want in [0, 1, 0x80_0000, 0x5a_a55a, ALL_SLOTS] {
                    for stamp in [0, 1, 0x0f0_f0f0, MAX_STAMP] {
                        let control = Control { distance, state, want, stamp };
                        assert_eq!(Control::decode(control.encode()), control);
                    }
                }
            }
        }
    }

    #[test]
    fn a_word_of_zero_is_a_dead_frame_at_the_bottom() {
        let control = Control::decode(0);
        assert_eq!((control.state, control.distance), (State::Dead, 0));
    }

    #[test]
    fn data_headers_come_back_as_they_were() {
        for slot in 0..SLOTS {
            for words in [1, 2, 31, 32] {
                let header = DataHeader { slot, words };
                assert_eq!(DataHeader::decode(header.encode()), header);
            }
        }
    }
}
