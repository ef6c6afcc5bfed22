//! Reading a buffer while it is written. Any CPU, task context: nothing here waits for a writer, and no writer waits for this.

use core::ops::Range;

use spin::{Mutex, MutexGuard};

use super::{Buffer, RingError};
use crate::sync::{Ordering, fence, interrupt_point, spin_loop};
use crate::wire::{Chain, Decoder, HEADER_WORDS, PageHeader, Record, Who, counts, words_of};

use Ordering::{Acquire, Relaxed, Release};

/// How far a reader is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    pub(super) position: u64,
    /// Records and refusals that were seen, or reported as lost.
    pub(super) records: u64,
    pub(super) refused: u64,
    /// Records that were handed out since the last reset.
    pub(super) read: u64,
    /// What the record at `position` is decoded with, if it is not at the beginning of a page.
    chain: Chain,
}

impl Cursor {
    pub(super) const WORDS: usize = 6;

    /// For who keeps it in words.
    pub(super) fn words(&self) -> [u64; Self::WORDS] {
        let Self { position, records, refused, read, chain } = *self;
        [position, records, refused, read, chain.base, chain.who.word()]
    }

    /// The other way.
    pub(super) fn from_words(words: [u64; Self::WORDS]) -> Self {
        let [position, records, refused, read, base, who] = words;
        Self { position, records, refused, read, chain: Chain { base, who: Who::from_word(who) } }
    }

    pub(super) const START: Self =
        Self { position: 0, records: 0, refused: 0, read: 0, chain: Chain { base: 0, who: Who::NOBODY } };
}

/// What a reader finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item<'a> {
    /// So many records are missing here: overwritten before they were read, or refused. Refusals are told at the next page,
    /// or at the end.
    Lost(u64),
    /// A record.
    Record(Record<'a>),
}

/// A reader's own place, or the one that all consumers share.
#[derive(Debug)]
enum Place<'a> {
    Own(Cursor),
    Consumer(MutexGuard<'a, Cursor>),
}

/// Reads a buffer from its oldest record on. At the end it may be asked again: there may be more then.
#[derive(Debug)]
pub struct Reader<'a> {
    buffer: &'a Buffer,
    place: Place<'a>,
    /// What is written from here on is not read.
    until: u64,
    /// Copied words, good ones only.
    copy: &'a mut [u64],
    /// Which of them have not been read yet.
    have: Range<usize>,
}

/// What comes next, as places in the copy.
enum Found {
    Lost(u64),
    Record { words: Range<usize>, chain: Chain },
}

impl Buffer {
    /// A reader that leaves everything where it is. `copy` is its room: [`page_len`](Self::page_len) words.
    pub fn peek<'a>(&'a self, copy: &'a mut [u64]) -> Result<Reader<'a>, RingError> {
        let floor = self.shared.floor.get();
        Reader::new(self, Place::Own(floor), copy)
    }

    /// A reader that leaves everything where it is, and passes over what was consumed. It ends at what is there now, so that who is
    /// recorded himself comes to an end too.
    pub fn peek_rest<'a>(&'a self, copy: &'a mut [u64]) -> Result<Reader<'a>, RingError> {
        let until = self.writer.commit.load(Acquire);
        Ok(Reader { until, ..Reader::new(self, Place::Own(self.rest()), copy)? })
    }

    /// Where what was neither forgotten nor consumed begins; a consumer that is at it right now does not count.
    pub(super) fn rest(&self) -> Cursor {
        let floor = self.shared.floor.get();
        let consumer = Mutex::try_lock(&self.shared.consumer).map(|cursor| *cursor);
        consumer.filter(|cursor| cursor.position > floor.position).unwrap_or(floor)
    }

    /// A reader that goes on where the last consumer stopped, one at a time. A record is consumed when it is handed out; where the buffer
    /// stops when full, that makes room.
    pub fn consume<'a>(&'a self, copy: &'a mut [u64]) -> Result<Reader<'a>, RingError> {
        let cursor = Mutex::try_lock(&self.shared.consumer).ok_or(RingError::Consumed)?;
        Reader::new(self, Place::Consumer(cursor), copy)
    }

    /// Forgets all records, and the losses. Writers need not stop for it; readers that are under way finish the page they have copied.
    pub fn reset(&self) {
        while !self.try_reset() {
            spin_loop();
        }
    }

    /// The same in any context, if nobody else does just that right now. Whether it was done.
    pub fn try_reset(&self) -> bool {
        let Some(writing) = self.shared.floor.try_write() else { return false };
        let floor = self.end();
        writing.set(floor);
        let _ = self.shared.consumed.fetch_max(floor.position, Release);
        if let Some(mut consumer) = Mutex::try_lock(&self.shared.consumer)
            && consumer.position <= floor.position
        {
            *consumer = floor;
        }
        true
    }

    /// Sequence numbers of the pages that are there, the one being written included.
    pub fn page_range(&self) -> Range<u64> {
        let end = self.writer.entered.load(Relaxed);
        end.saturating_sub(self.pages())..end
    }

    /// Copies what is committed of a page, for [`wire::page`](crate::wire::page): as many words as this says.
    pub fn copy_page(&self, sequence: u64, copy: &mut [u64]) -> Result<usize, RingError> {
        if copy.len() < self.page_len() {
            return Err(RingError::Room(copy.len()));
        }
        let gone = RingError::NoPage(sequence);
        let start = sequence.checked_mul(self.page_words()).ok_or(gone)?;
        let commit = self.writer.commit.load(Acquire);
        if commit <= start {
            return Err(gone);
        }
        self.copy(start..commit, copy).ok_or(gone)
    }

    /// Copies from a position to another, or to the end of the page if that comes first. `None` if the page was entered again.
    fn copy(&self, positions: Range<u64>, copy: &mut [u64]) -> Option<usize> {
        let page = self.page_of(positions.start);
        let end = positions.end.min((page + 1) << self.page_log2);
        for (word, position) in copy.iter_mut().zip(positions.start..end) {
            interrupt_point();
            *word = self.word(position).load(Relaxed);
        }
        self.is_there(page).then_some((end - positions.start) as usize)
    }

    /// If a page has not been entered again: then what was loaded of it before is good.
    pub(super) fn is_there(&self, page: u64) -> bool {
        // Against the release fence behind the store to `entered`.
        fence(Acquire);
        interrupt_point();
        page + self.pages() >= self.writer.entered.load(Relaxed)
    }

    /// Behind the last record that is committed. Any context, on top of a writer too: it does not wait for one.
    fn end(&self) -> Cursor {
        let mut commit = self.writer.commit.load(Acquire);
        loop {
            let Some(last) = commit.checked_sub(1) else { return Cursor::START };
            let page = self.page_of(last);
            let mut position = page << self.page_log2;
            let mut header = [0; HEADER_WORDS];
            for (word, position) in header.iter_mut().zip(position..) {
                *word = self.word(position).load(Relaxed);
            }
            position += HEADER_WORDS as u64;
            let mut chain = Chain { base: header[2], who: Who::from_word(header[3]) };
            let mut records = header[4];
            while position < commit {
                let (first, second) = (self.word(position), self.word(position + 1));
                let (first, second) = (first.load(Relaxed), second.load(Relaxed));
                chain.pass(first, second);
                records += u64::from(counts(first));
                position += words_of(first).max(1) as u64;
            }
            let refused = self.writer.refused.load(Relaxed);
            if self.is_there(page) {
                return Cursor { position: commit, records, refused, read: 0, chain };
            }
            let now = self.writer.commit.load(Acquire);
            if now == commit {
                // What overwrites the page is not committed yet, and may be what this interrupts. So nothing committed is there any more,
                // and what comes begins with a page, which has its own chain. The record under way may be among those counted here.
                let records = self.writer.records.load(Relaxed);
                let position = (page + 1) << self.page_log2;
                return Cursor { position, records, refused, ..Cursor::START };
            }
            commit = now;
        }
    }
}

impl<'a> Reader<'a> {
    fn new(buffer: &'a Buffer, place: Place<'a>, copy: &'a mut [u64]) -> Result<Self, RingError> {
        if copy.len() < buffer.page_len() {
            return Err(RingError::Room(copy.len()));
        }
        Ok(Self { buffer, place, until: u64::MAX, copy, have: 0..0 })
    }

    /// Ends the reading, and gives the room back.
    pub fn into_room(self) -> &'a mut [u64] {
        self.copy
    }

    /// The next record or loss; `None` when there is no more now.
    #[expect(clippy::should_implement_trait, reason = "what it gives is borrowed from the reader's copy")]
    pub fn next(&mut self) -> Option<Item<'_>> {
        match self.find()? {
            Found::Lost(count) => Some(Item::Lost(count)),
            Found::Record { words, chain } => {
                let words = self.copy.get(words).unwrap_or(&[]);
                match Decoder::new(words, chain).next() {
                    Some(Ok(record)) => Some(Item::Record(record)),
                    // No writer of ours wrote this.
                    _ => Some(Item::Lost(1)),
                }
            }
        }
    }

    fn find(&mut self) -> Option<Found> {
        loop {
            if let Some(found) = self.find_in_copy() {
                if let Place::Consumer(cursor) = &self.place {
                    // The copy is done, so the place may be overwritten. Others only ever raise it: `reset`.
                    let _ = self.buffer.shared.consumed.fetch_max(cursor.position, Release);
                }
                return Some(found);
            }
            match self.refill() {
                Refilled::Lost(count) => return Some(Found::Lost(count)),
                Refilled::Words => {}
                Refilled::Nothing => return None,
            }
        }
    }

    fn find_in_copy(&mut self) -> Option<Found> {
        let cursor = self.place.cursor();
        while let Some(rest) = self.copy.get(self.have.clone())
            && let Some(&first) = rest.first()
        {
            let len = words_of(first);
            if len == 0 || len > rest.len() {
                // No writer of ours wrote this. The next page says how many records it was.
                cursor.position += rest.len() as u64;
                self.have = 0..0;
                break;
            }
            let chain = cursor.chain;
            let words = self.have.start..self.have.start + len;
            cursor.chain.pass(first, rest.get(1).copied().unwrap_or(0));
            cursor.position += len as u64;
            self.have.start = words.end;
            if counts(first) {
                cursor.records += 1;
                cursor.read += 1;
                // What fills the page goes with its last record, so that the page is free then.
                let filling = rest.iter().skip(len).take_while(|&&word| word == 0).count();
                cursor.position += filling as u64;
                self.have.start += filling;
                return Some(Found::Record { words, chain });
            }
        }
        None
    }

    /// Copies what comes next, up to the end of a page.
    fn refill(&mut self) -> Refilled {
        let buffer = self.buffer;
        let cursor = self.place.cursor();
        loop {
            let floor = buffer.shared.floor.get();
            if cursor.position < floor.position {
                *cursor = floor;
            }
            let commit = buffer.writer.commit.load(Acquire).min(self.until);
            let oldest = buffer.page_range().start << buffer.page_log2;
            cursor.position = cursor.position.max(oldest);
            if cursor.position >= commit {
                let refused = buffer.writer.refused.load(Relaxed);
                let lost = refused.saturating_sub(cursor.refused);
                cursor.refused += lost;
                return if lost == 0 { Refilled::Nothing } else { Refilled::Lost(lost) };
            }
            let Some(len) = buffer.copy(cursor.position..commit, self.copy) else { continue };
            if buffer.offset(cursor.position) != 0 {
                self.have = 0..len;
                return Refilled::Words;
            }
            let Ok((header, header_len)) = PageHeader::decode(&self.copy[..len]) else {
                // No writer of ours wrote this.
                cursor.position += len as u64;
                continue;
            };
            self.have = header_len..len;
            cursor.position += header_len as u64;
            cursor.chain = Chain { base: header.base, who: header.who };
            let overwritten = header.records.saturating_sub(cursor.records);
            let refused = header.refused.saturating_sub(cursor.refused);
            cursor.records = header.records;
            cursor.refused += refused;
            let lost = overwritten + refused;
            return if lost == 0 { Refilled::Words } else { Refilled::Lost(lost) };
        }
    }
}

/// What a refill came to.
enum Refilled {
    /// There is something in the copy, and it follows a loss.
    Lost(u64),
    /// There is something in the copy.
    Words,
    Nothing,
}

impl Place<'_> {
    fn cursor(&mut self) -> &mut Cursor {
        match self {
            Place::Own(cursor) => cursor,
            Place::Consumer(cursor) => cursor,
        }
    }
}
