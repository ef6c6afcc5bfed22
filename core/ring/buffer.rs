//! The memory of a ring buffer, and the words that say what is in it.

use spin::Mutex;

use super::RingError;
use super::floor::Floor;
use super::read::Cursor;
use crate::sync::{AtomicBool, AtomicU64, Ordering};
use crate::wire::{HEADER_WORDS, MAX_WORDS};

/// What a full buffer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The oldest page is overwritten.
    Overwrite,
    /// What comes is refused, until a consumer has read the oldest page.
    StopWhenFull,
}

/// What went into a buffer since it was made. Exact when nobody writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Records that were written, those overwritten since included.
    pub records: u64,
    /// Records that were refused.
    pub refused: u64,
}

/// What the writers keep. See [`ring`](super) for who stores what; all positions count words.
#[derive(Debug)]
#[repr(C, align(128))]
pub(super) struct Writer {
    /// First, where the trampolines of arm64 release it most cheaply.
    pub(super) commit: AtomicU64,
    pub(super) busy: AtomicU64,
    /// The time of the last record that the outermost writer wrote, and who that was.
    pub(super) base: AtomicU64,
    pub(super) who: AtomicU64,
    /// The end of the page for which `base` and `who` hold.
    pub(super) limit: AtomicU64,
    /// Records before `commit`.
    pub(super) records: AtomicU64,
    pub(super) nested: AtomicU64,
    pub(super) first: AtomicU64,
    /// Pages that were opened. Raised by whoever comes first, once a page.
    pub(super) entered: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) words: Words,
}

/// What the readers keep, on a line of their own.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Shared {
    /// The end of what has been consumed.
    pub(super) consumed: AtomicU64,
    pub(super) stops_when_full: AtomicBool,
    pub(super) taken: AtomicBool,
    /// Where the consumer goes on.
    pub(super) consumer: Mutex<Cursor>,
    /// What was recorded before is forgotten.
    pub(super) floor: Floor,
}

/// The memory.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Words {
    /// Invariant: `mask + 1` words, lent for ever. A pointer, whose place in memory the trampolines can know.
    pub(super) first: *const AtomicU64,
    pub(super) mask: u64,
}

// SAFETY: it stands for a `&'static [AtomicU64]`, which is both.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// The word at a position.
    #[inline(always)]
    pub(super) fn at(self, position: u64) -> &'static AtomicU64 {
        // SAFETY: masked, so at most `mask`, and there are `mask + 1` words for ever (invariant of `first`).
        unsafe { &*self.first.add((position & self.mask) as usize) }
    }
}

/// A ring buffer over lent memory. All of it is for one CPU's writers; readers may be anywhere.
#[derive(Debug)]
#[repr(C)]
pub struct Buffer {
    pub(super) writer: Writer,
    pub(super) page_log2: u32,
    pub(super) cpu: u16,
    pub(super) shared: Shared,
}

impl Buffer {
    /// The fewest words of a page: a header and the longest record.
    pub const MIN_PAGE_WORDS: usize = (HEADER_WORDS + MAX_WORDS).next_power_of_two();

    /// A buffer over `words`, a power of two of pages of `page_words` each, which is a power of two as well: 512 is good, or
    /// [`MIN_PAGE_WORDS`](Self::MIN_PAGE_WORDS) where memory is short. `cpu` is whose records it has. What the words hold does not matter.
    pub const fn new(
        cpu: u16,
        words: &'static [AtomicU64],
        page_words: usize,
        mode: Mode,
    ) -> Result<Self, RingError> {
        if !page_words.is_power_of_two() || page_words < Self::MIN_PAGE_WORDS {
            return Err(RingError::PageWords(page_words));
        }
        if !words.len().is_power_of_two() || words.len() < page_words {
            return Err(RingError::Words(words.len()));
        }
        const fn zero() -> AtomicU64 {
            AtomicU64::new(0)
        }
        Ok(Self {
            writer: Writer {
                busy: zero(),
                commit: zero(),
                base: zero(),
                who: zero(),
                limit: zero(),
                records: zero(),
                nested: zero(),
                first: zero(),
                entered: zero(),
                refused: zero(),
                words: Words { first: words.as_ptr(), mask: words.len() as u64 - 1 },
            },
            page_log2: page_words.trailing_zeros(),
            cpu,
            shared: Shared {
                consumed: zero(),
                stops_when_full: AtomicBool::new(matches!(mode, Mode::StopWhenFull)),
                taken: AtomicBool::new(false),
                consumer: Mutex::new(Cursor::START),
                floor: Floor::new(),
            },
        })
    }

    /// The memory. For several accesses: the compiler cannot know that it stays where it is.
    #[inline(always)]
    pub(super) fn words(&self) -> Words {
        self.writer.words
    }

    /// The word at a position.
    #[inline(always)]
    pub(super) fn word(&self, position: u64) -> &'static AtomicU64 {
        self.writer.words.at(position)
    }

    pub(super) fn page_words(&self) -> u64 {
        1 << self.page_log2
    }

    /// How far into its page a position is.
    pub(super) fn offset(&self, position: u64) -> u64 {
        position & (self.page_words() - 1)
    }

    /// The number of a position's page.
    pub(super) fn page_of(&self, position: u64) -> u64 {
        position >> self.page_log2
    }

    pub(super) fn pages(&self) -> u64 {
        (self.writer.words.mask >> self.page_log2) + 1
    }

    /// Whose records these are.
    pub fn cpu(&self) -> u16 {
        self.cpu
    }

    /// Words of a page, which is the room that a reader needs.
    pub fn page_len(&self) -> usize {
        1 << self.page_log2
    }

    /// What went in.
    pub fn counts(&self) -> Counts {
        Counts {
            records: self.writer.records.load(Ordering::Relaxed),
            refused: self.writer.refused.load(Ordering::Relaxed),
        }
    }

    /// How many bytes have been written, headers of pages included, those overwritten since too.
    pub fn bytes(&self) -> u64 {
        self.writer.commit.load(Ordering::Relaxed) * size_of::<u64>() as u64
    }

    /// What is done when the buffer is full, from the next page on. A buffer that is changed to stop is full until what it holds
    /// has been consumed or reset.
    pub fn set_mode(&self, mode: Mode) {
        self.shared.stops_when_full.store(mode == Mode::StopWhenFull, Ordering::Relaxed);
    }

    /// What is done when the buffer is full.
    pub fn mode(&self) -> Mode {
        if self.shared.stops_when_full.load(Ordering::Relaxed) { Mode::StopWhenFull } else { Mode::Overwrite }
    }

    /// For a ring.
    pub(super) fn take(&self) -> Result<(), RingError> {
        if self.shared.taken.swap(true, Ordering::AcqRel) { Err(RingError::InUse) } else { Ok(()) }
    }

    pub(super) fn give_back(&self) {
        self.shared.taken.store(false, Ordering::Release);
    }
}
