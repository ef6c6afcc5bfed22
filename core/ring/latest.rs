//! The last records of a buffer, for who has nothing left but this CPU: no lock, no memory to speak of, any context.

use super::Buffer;
use crate::sync::Ordering::{Acquire, Relaxed};
use crate::wire::{Chain, Decoder, HEADER_WORDS, MAX_WORDS, PageHeader, Record, counts, words_of};

impl Buffer {
    /// Calls `each` with the last `count` records, or with as many as are there, oldest first. Whether that is all of them: false if a
    /// writer overtook it, and what had not been given then is missing. What was consumed or reset is given too.
    pub fn latest(&self, count: u64, each: &mut dyn FnMut(&Record<'_>)) -> bool {
        let commit = self.writer.commit.load(Acquire);
        let Some(last) = commit.checked_sub(1) else { return true };
        let from = self.writer.records.load(Relaxed).saturating_sub(count);
        let oldest = self.page_range().start;
        let mut page = self.page_of(last);
        let mut header = loop {
            let Some(header) = self.header(page) else { return false };
            // Pages that were entered and have nothing yet stand behind `commit`.
            if header.records <= from || page <= oldest {
                break header;
            }
            page -= 1;
        };
        loop {
            let end = commit.min((page + 1) << self.page_log2);
            if !self.give_page(page, &header, end, from, each) {
                return false;
            }
            if end >= commit {
                return true;
            }
            page += 1;
            let Some(next) = self.header(page) else { return false };
            header = next;
        }
    }

    fn header(&self, page: u64) -> Option<PageHeader> {
        let mut words = [0; HEADER_WORDS];
        for (word, position) in words.iter_mut().zip(page << self.page_log2..) {
            *word = self.word(position).load(Relaxed);
        }
        let header = PageHeader::decode(&words).ok().map(|(header, _)| header);
        header.filter(|_| self.is_there(page))
    }

    /// Gives the records of a page from number `from` on.
    fn give_page(
        &self,
        page: u64,
        header: &PageHeader,
        end: u64,
        from: u64,
        each: &mut dyn FnMut(&Record<'_>),
    ) -> bool {
        let mut position = (page << self.page_log2) + HEADER_WORDS as u64;
        let mut number = header.records;
        let mut chain = Chain { base: header.base, who: header.who };
        while position < end {
            // No record of ours is longer.
            let mut words = [0; MAX_WORDS];
            let have = words.len().min((end - position) as usize);
            for (word, position) in words.iter_mut().take(have).zip(position..) {
                *word = self.word(position).load(Relaxed);
            }
            if !self.is_there(page) {
                return false;
            }
            let [first, second, ..] = words;
            let len = words_of(first);
            let Some(record) = words.get(..have).and_then(|words| words.get(..len)).filter(|_| len != 0)
            else {
                return false;
            };
            if counts(first) {
                if number >= from
                    && let Some(Ok(record)) = Decoder::new(record, chain).next()
                {
                    each(&record);
                }
                number += 1;
            }
            chain.pass(first, second);
            position += len as u64;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Brief, Item, Mode};
    use super::*;
    use crate::platform::Context;
    use crate::sync::AtomicU64;
    use crate::testing::{keep_all, storm};
    use crate::wire::{Mark, Who};
    use std::string::String;
    use std::vec::Vec;

    #[test]
    fn the_last_records_are_those_that_a_reader_sees_last() {
        storm(400, 4, |random| {
            let words = keep_all((0..64 << random.below(5)).map(|_| AtomicU64::new(0)).collect::<Vec<_>>());
            let buffer = Buffer::new(0, words, 64, Mode::Overwrite).expect("it fits");
            let mut time = 0;
            for _ in 0..random.below(200) {
                let scale = 1 << random.below(25);
                time += random.below(scale) as u64;
                let who = Who { task: random.below(3) as u32, context: Context::Task };
                if random.one_in(5) {
                    let data = &[7; 16][..random.below(17)];
                    assert!(buffer.record(&Record::Mark(Mark { id: 3, who, time, data, cut: false })));
                } else {
                    let retval = random.one_in(2).then_some(time);
                    let start = time.saturating_sub(9);
                    assert!(buffer.call(&Brief { func: 1, depth: 0, who, start, end: time, retval }));
                }
            }
            let mut room = [0; 64];
            let mut reader = buffer.peek(&mut room).expect("room");
            let mut want: Vec<String> = Vec::new();
            while let Some(item) = reader.next() {
                if let Item::Record(record) = item {
                    want.push(std::format!("{record:?}"));
                }
            }
            let count = random.below(60);
            let mut got: Vec<String> = Vec::new();
            assert!(buffer.latest(count as u64, &mut |record| got.push(std::format!("{record:?}"))));
            assert_eq!(got, want[want.len().saturating_sub(count)..]);
        });
    }
}
