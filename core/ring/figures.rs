//! What can be said of a buffer without reading all of it: what is there, and what became of the rest.

use spin::Mutex;

use super::{Buffer, Item, RingError};
use crate::sync::Ordering::Relaxed;
use crate::wire::{PageHeader, Record};

/// The figures of a buffer since it was made or reset. Exact when nobody writes and nobody reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Records that are there and were not consumed.
    pub entries: u64,
    /// Records that were overwritten before a consumer read them.
    pub overwritten: u64,
    /// Records that were refused.
    pub refused: u64,
    /// Records that were consumed.
    pub read: u64,
    /// Bytes that the entries take.
    pub bytes: u64,
    /// When the oldest of them was recorded, in the clock's unit; 0 without any.
    pub oldest: u64,
}

impl Buffer {
    /// What is there. `copy` is room as for a reader. Task context.
    ///
    /// # Errors
    /// [`RingError::Room`]
    pub fn figures(&self, copy: &mut [u64]) -> Result<Figures, RingError> {
        if copy.len() < self.page_len() {
            return Err(RingError::Room(copy.len()));
        }
        let floor = self.shared.floor.get();
        let read = Mutex::try_lock(&self.shared.consumer)
            .filter(|cursor| cursor.position >= floor.position)
            .map_or(0, |cursor| cursor.read);
        let rest = self.rest();
        let written = self.writer.records.load(Relaxed);
        let refused = self.writer.refused.load(Relaxed).saturating_sub(floor.refused);
        // What stands before the oldest page is gone.
        let oldest_page = self.page_range().start;
        let (mut begin, mut gone) = (rest.position, rest.records);
        if let Ok(len) = self.copy_page(oldest_page, copy)
            && let Ok((header, _)) = PageHeader::decode(copy.get(..len).unwrap_or(&[]))
            && oldest_page << self.page_log2 > rest.position
        {
            (begin, gone) = (oldest_page << self.page_log2, header.records);
        }
        let entries = written.saturating_sub(gone);
        let since = written.saturating_sub(floor.records);
        let bytes = self.writer.commit.load(Relaxed).saturating_sub(begin) * size_of::<u64>() as u64;
        let mut oldest = 0;
        let mut reader = self.peek_rest(copy)?;
        while let Some(item) = reader.next() {
            let Item::Record(record) = item else { continue };
            oldest = match record {
                Record::Call(call) => call.end,
                Record::Entry(entry) => entry.time,
                Record::Mark(mark) => mark.time,
                Record::Hit(hit) => hit.time,
                Record::Unknown(_) => continue,
            };
            break;
        }
        Ok(Figures {
            entries,
            overwritten: since.saturating_sub(entries).saturating_sub(read),
            refused,
            read,
            bytes: if entries == 0 { 0 } else { bytes },
            oldest,
        })
    }

    /// Words of its memory.
    pub fn len(&self) -> usize {
        (self.pages() << self.page_log2) as usize
    }

    /// Never: a buffer has a page.
    pub fn is_empty(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Brief, Mode};
    use super::*;
    use crate::sync::AtomicU64;
    use crate::testing::{keep_all, storm};
    use crate::wire::Who;
    use std::vec::Vec;

    fn buffer(pages: usize, mode: Mode) -> Buffer {
        let words = keep_all((0..pages * 64).map(|_| AtomicU64::new(0)).collect::<Vec<_>>());
        Buffer::new(0, words, 64, mode).expect("it fits")
    }

    fn call(buffer: &Buffer, time: u64) -> bool {
        buffer.call(&Brief { func: 1, depth: 0, who: Who::NOBODY, start: time, end: time, retval: None })
    }

    #[test]
    fn the_figures_are_what_reading_would_find() {
        storm(300, 4, |random| {
            let mode = if random.one_in(3) { Mode::StopWhenFull } else { Mode::Overwrite };
            let buffer = buffer(1 << random.below(4), mode);
            let (mut time, mut written, mut refused, mut read, mut room) = (0, 0, 0, 0, [0; 64]);
            for _ in 0..random.below(400) {
                match random.below(20) {
                    0 => {
                        buffer.reset();
                        (written, refused, read) = (0, 0, 0);
                    }
                    1 | 2 => {
                        let mut reader = buffer.consume(&mut room).expect("room");
                        for _ in 0..random.below(60) {
                            match reader.next() {
                                Some(Item::Record(_)) => read += 1,
                                Some(Item::Lost(_)) => {}
                                None => break,
                            }
                        }
                    }
                    _ => {
                        time += 3;
                        if call(&buffer, time) { written += 1 } else { refused += 1 }
                    }
                }
            }
            let figures = buffer.figures(&mut room).expect("room");
            let (mut entries, mut oldest) = (0, 0);
            let mut reader = buffer.peek_rest(&mut room).expect("room");
            while let Some(item) = reader.next() {
                if let Item::Record(Record::Call(call)) = item {
                    oldest = if entries == 0 { call.end } else { oldest };
                    entries += 1;
                }
            }
            let overwritten = written - entries - read;
            let bytes = figures.bytes;
            assert_eq!(figures, Figures { entries, overwritten, refused, read, bytes, oldest });
            assert!(bytes >= 8 * entries && (bytes == 0) == (entries == 0), "{figures:?}");
        });
    }
}
