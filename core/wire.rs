//! The binary format of trace records: words of 64 bits, in pages that can each be read alone.
//!
//! One call is one record, written at its return: function, depth, both times and what it returned, mostly in one or two words.
//! The order of a buffer is therefore that of returns, and [`tree`] turns it back into the order of calls. A call has no half
//! that could be overwritten without the other: a record is there whole, or the call is among the lost. Calls that never
//! return, or have not yet, are [`Entry`] records, made from the shadow stack when a trace or a task ends.
//!
//! # A page
//!
//! ```text
//! word 0   15..0 "FG" | 23..16 version | 31..24 words of the header | 47..32 CPU | 55..48 log2 of the page's words
//!      1   sequence: how many pages the CPU opened before
//!      2   base time of the first record
//!      3   who: 31..0 task | 33..32 context
//!      4   records before this page, on this CPU
//!      5   records that were refused before this page
//!      6.. records; none crosses the end of its page, and zero words fill what is left
//! ```
//!
//! # A record
//!
//! Bits 2..0 of its first word are its tag. Tags 1 to 4 are a call in short:
//!
//! ```text
//! 63..46 time since the base | 45..28 duration | 27..8 function | 7..3 depth | 2..0 tag
//! tag 1: nothing returned, or not wanted   2: the value is the next word   3: it returned 0   4: it returned 1
//! ```
//!
//! Tag 7 is everything else; its length lets a reader pass over kinds it does not know. Tag 0 is a word of padding if the
//! word is zero; other words of tag 0 and tag 5 (one word) and tag 6 (two words) are kept for later.
//!
//! ```text
//! 63..56 flags | 55..42 depth | 41..16 function or number | 15..8 words of the record, this one included | 7..3 kind | 2..0 = 7
//! kind 1  who runs from here on: 47..16 task | 49..48 context
//! kind 2  time: the next word is the base from here on
//! kind 3  call: SOLO ? who, end time, duration : (63..32 end time since the base, signed | 31..0 duration)
//!         then [returned] [second register] [overrun] [CPU of the entry] [return address], each if flagged; then arguments
//! kind 4  entry of a call that has not returned: time, [who if SOLO], [return address], arguments
//! kind 5  mark of a user's own: time, [who if SOLO], data
//! kind 6  hit of a function, whose return is not recorded: time, [who if SOLO], caller
//! kind 7  call that returned something in memory, always SOLO: (47..40 bytes of that | 33..0 who), end time, duration,
//!         then what is flagged as in kind 3; then the bytes, in as many words as they need; then arguments
//! ```
//!
//! Every record but a SOLO one is decoded with the base time and the who that stand before it, and moves the base to its own
//! time (the end of a call). A SOLO record needs nothing and changes nothing: interrupts that hit a writer write those, because
//! where their record comes to stand, the interrupted writer's base is not settled. All times are in the clock's unit. On
//! another machine, words are little-endian.
//!
//! What a kind has is settled for ever, since readers take the words behind for arguments. So a call with something new in it is a kind
//! of its own, and SOLO: readers that do not know the kind pass over that call, and all others are as they were.

use core::fmt;

use crate::platform::Context;

mod decode;
mod encode;
pub mod file;
mod piece;
pub mod tree;

#[cfg(test)]
mod tests;

pub(crate) use decode::{Chain, counts, words_of};
pub use decode::{Decoder, page, words_from_bytes};
pub(crate) use encode::{call_words, encode, has_few, hit_words, is_long, short};
pub(crate) use piece::text_len;
pub use piece::{Piece, pieces};

/// The version of the format that this crate writes and reads.
pub const VERSION: u8 = 1;

/// Words of a page's header.
pub const HEADER_WORDS: usize = 6;

/// The most arguments of a call that are kept.
pub const MAX_ARGS: usize = 8;

/// The most bytes that are kept of what a call returned in memory. It is a cache line, so that what a call costs has an end; most values are
/// smaller (`Result<String, _>` has 24), and of larger ones the beginning is where compilers mostly put what says which variant it is.
pub const MAX_MEMORY: usize = 64;

/// The most words of a mark's data that are kept.
pub const MAX_DATA: usize = 16;

/// Functions (and numbers of marks) are recorded if they are below; all others appear as this one.
pub const NO_FUNC: u32 = (1 << 26) - 1;

/// The number of marks whose data is text: its bytes, and zeros behind them. Text that is too long for one record goes on in the next of
/// its task: all but the last are [`cut`](Mark::cut). See [`pieces`].
pub const TEXT_MARK: u32 = 0;

/// The most words of a text that are put together again; a longer one is several texts.
pub const MAX_TEXT_WORDS: usize = 8 * MAX_DATA;

/// The number of marks whose data is a stack: a function, where it was called, where that was called, and so on; [`cut`](Mark::cut) if
/// there were more. Users number their own marks below.
pub const STACK_MARK: u32 = NO_FUNC - 1;

/// Calls that are deeper are recorded with this depth.
pub const MAX_DEPTH: u32 = (1 << 14) - 1;

/// The most words that [`encode`] makes of one record, with a word for who and two for the time before it.
pub(crate) const MAX_WORDS: usize = 32;

/// The same of one without arguments and data.
pub(crate) const FEW_WORDS: usize = 12;

const MAGIC: u64 = 0x4746;

/// Bits of a time and of a function in a call in short: a quarter of a millisecond, and a million functions.
pub(crate) const TIME_BITS: u32 = 18;
const FUNC_BITS: u32 = 20;
const DEPTH_BITS: u32 = 5;
pub(crate) const DEPTH_SHIFT: u32 = 3;
pub(crate) const FUNC_SHIFT: u32 = DEPTH_SHIFT + DEPTH_BITS;
pub(crate) const DURATION_SHIFT: u32 = FUNC_SHIFT + FUNC_BITS;
pub(crate) const DELTA_SHIFT: u32 = DURATION_SHIFT + TIME_BITS;
/// Depths and functions of a call in short are below.
pub(crate) const SHORT_DEPTHS: u32 = 1 << DEPTH_BITS;
pub(crate) const SHORT_FUNCS: u32 = 1 << FUNC_BITS;
const _: () = assert!(DELTA_SHIFT + TIME_BITS == 64);

pub(crate) const TAG_VOID: u64 = 1;
pub(crate) const TAG_VALUE: u64 = 2;
pub(crate) const TAG_SMALL: u64 = 3;
/// Values below need no word of their own.
pub(crate) const SMALL_VALUES: u64 = 2;
const TAG_TWO_WORDS: u64 = 6;
const TAG_LONG: u64 = 7;
#[cfg_attr(not(feature = "trampolines"), expect(dead_code, reason = "the trampolines ask"))]
pub(crate) const TAG_MASK: usize = 7;

const KIND_WHO: u8 = 1;
const KIND_TIME: u8 = 2;
const KIND_CALL: u8 = 3;
const KIND_ENTRY: u8 = 4;
const KIND_MARK: u8 = 5;
const KIND_HIT: u8 = 6;
const KIND_MEMORY: u8 = 7;

/// Where the second word of a call that returned in memory says how many bytes there are.
const MEMORY_SHIFT: u32 = 40;

bitflags::bitflags! {
    /// What a long record has.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Has: u8 {
        const SOLO = 1 << 0;
        const RETVAL = 1 << 1;
        const RETVAL2 = 1 << 2;
        const OVERRUN = 1 << 3;
        const FROM_CPU = 1 << 4;
        const RET_ADDR = 1 << 5;
        /// There were more arguments, or more data.
        const CUT = 1 << 6;
    }
}

/// Who ran: a task, and how deep in interrupts on top of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Who {
    /// The task's number.
    pub task: u32,
    /// The context.
    pub context: Context,
}

impl Who {
    /// Nobody in particular: what a buffer starts with.
    pub const NOBODY: Self = Self { task: 0, context: Context::Task };

    #[inline(always)]
    pub(crate) const fn word(self) -> u64 {
        self.task as u64 | (self.context as u64) << 32
    }

    pub(crate) const fn from_word(word: u64) -> Self {
        let context = match word >> 32 & 3 {
            0 => Context::Task,
            1 => Context::SoftIrq,
            2 => Context::Irq,
            _ => Context::Nmi,
        };
        Self { task: word as u32, context }
    }
}

/// A call that returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call<'a> {
    /// The function's number: of the kernel's, its index in the site table.
    pub func: u32,
    /// How many calls of the task are around this one.
    pub depth: u32,
    /// Who ran when it returned.
    pub who: Who,
    /// When it was entered.
    pub start: u64,
    /// When it returned; recorded as `start` if it is before.
    pub end: u64,
    /// What it returned, if that was wanted.
    pub retval: Option<u64>,
    /// The second register of what it returned.
    pub retval2: Option<u64>,
    /// The first bytes of what it returned in memory, eight in a word; none if it did not, or that was not wanted.
    pub memory: &'a [u64],
    /// How many bytes these are, at most [`MAX_MEMORY`]. In a [`tree::Line`] the words stand elsewhere.
    pub memory_len: u8,
    /// How many calls its task could not follow so far, for want of room on its shadow stack.
    pub overrun: u32,
    /// The CPU it was entered on, if that was another.
    pub from_cpu: Option<u32>,
    /// Where it returns to, if that was wanted.
    pub ret_addr: Option<u64>,
    /// The words it was called with, if they were wanted: the first [`MAX_ARGS`].
    pub args: &'a [u64],
    /// If there were more arguments.
    pub cut: bool,
}

impl Call<'_> {
    /// A call of which only this much is known.
    pub const fn new(func: u32, depth: u32, who: Who, start: u64, end: u64) -> Self {
        Self {
            func,
            depth,
            who,
            start,
            end,
            retval: None,
            retval2: None,
            memory: &[],
            memory_len: 0,
            overrun: 0,
            from_cpu: None,
            ret_addr: None,
            args: &[],
            cut: false,
        }
    }
}

/// A call that has not returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The function's number: of the kernel's, its index in the site table.
    pub func: u32,
    /// How many calls of the task are around this one.
    pub depth: u32,
    /// Who entered it.
    pub who: Who,
    /// When it was entered.
    pub time: u64,
    /// Where it will return to, if that was wanted.
    pub ret_addr: Option<u64>,
    /// The words it was called with, if they were wanted: the first [`MAX_ARGS`].
    pub args: &'a [u64],
    /// If there were more arguments.
    pub cut: bool,
}

/// Something else that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark<'a> {
    /// What, in the user's numbering; below [`STACK_MARK`], unless it is that.
    pub id: u32,
    /// Who ran.
    pub who: Who,
    /// When.
    pub time: u64,
    /// What was recorded with it: the first [`MAX_DATA`] words.
    pub data: &'a [u64],
    /// If there was more data.
    pub cut: bool,
}

/// A function that was entered, and of which nothing more was recorded: the function tracer's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// The function's number: of the kernel's, its index in the site table.
    pub func: u32,
    /// Who entered it.
    pub who: Who,
    /// When.
    pub time: u64,
    /// Where it was called from: the address it will return to.
    pub parent_ip: u64,
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// A call that returned.
    Call(Call<'a>),
    /// A call that has not returned.
    Entry(Entry<'a>),
    /// Something else.
    Mark(Mark<'a>),
    /// A function was entered.
    Hit(Hit),
    /// A record of a kind that this version does not know, as it stands. It cannot be written.
    Unknown(&'a [u64]),
}

/// What stands at the head of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageHeader {
    /// The CPU whose page it is.
    pub cpu: u16,
    /// Words of the whole page, as a power of two.
    pub words_log2: u8,
    /// How many pages the CPU opened before.
    pub sequence: u64,
    /// The time that the first record's is counted from.
    pub base: u64,
    /// Who runs at the first record.
    pub who: Who,
    /// How many records were written before this page.
    pub records: u64,
    /// How many records were refused before this page.
    pub refused: u64,
}

impl PageHeader {
    /// The words of a header.
    pub const fn encode(&self) -> [u64; HEADER_WORDS] {
        let what = MAGIC
            | (VERSION as u64) << 16
            | (HEADER_WORDS as u64) << 24
            | (self.cpu as u64) << 32
            | (self.words_log2 as u64) << 48;
        [what, self.sequence, self.base, self.who.word(), self.records, self.refused]
    }

    /// The header at the beginning of `words`, and how many words it has: later headers of this version may have more.
    pub fn decode(words: &[u64]) -> Result<(Self, usize), WireError> {
        let &[what, ref rest @ ..] = words else { return Err(WireError::Short { needed: 1, words: 0 }) };
        if what & 0xffff != MAGIC {
            return Err(WireError::NoPage(what));
        }
        let version = (what >> 16) as u8;
        if version != VERSION {
            return Err(WireError::Version(version));
        }
        let len = usize::from((what >> 24) as u8);
        if len < HEADER_WORDS {
            return Err(WireError::Header(len));
        }
        let &[sequence, base, who, records, refused, ..] = rest else {
            return Err(WireError::Short { needed: len, words: words.len() });
        };
        if words.len() < len {
            return Err(WireError::Short { needed: len, words: words.len() });
        }
        let header = Self {
            cpu: (what >> 32) as u16,
            words_log2: (what >> 48) as u8,
            sequence,
            base,
            who: Who::from_word(who),
            records,
            refused,
        };
        Ok((header, len))
    }
}

/// Words that are no trace. What was decoded before stays valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// A page does not begin like one, but with this word.
    NoPage(u64),
    /// A page of a version that this crate does not read.
    Version(u8),
    /// A page's header has so few words.
    Header(usize),
    /// Something has fewer words than it needs.
    Short {
        /// Words it needs.
        needed: usize,
        /// Words that are there.
        words: usize,
    },
    /// A record says that it has no words.
    Empty(u64),
    /// Bytes that are no whole number of words, or more words than there is room for.
    Bytes(usize),
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPage(word) => write!(f, "a page begins with {word:#018x}, which is no page header"),
            Self::Version(found) => {
                write!(f, "the trace has version {found}, and this reader knows version {VERSION}")
            }
            Self::Header(words) => {
                write!(f, "a page header of {words} words, where {HEADER_WORDS} are the fewest")
            }
            Self::Short { needed, words } => write!(f, "{words} words, where {needed} are needed"),
            Self::Empty(word) => write!(f, "record {word:#018x} says that it has no words"),
            Self::Bytes(bytes) => {
                write!(f, "{bytes} bytes are no whole number of words, or more than there is room for")
            }
        }
    }
}

impl core::error::Error for WireError {}
