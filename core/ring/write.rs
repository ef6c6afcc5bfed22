//! How records get into a buffer. On the traced path, on the buffer's CPU, with preemption off; interrupts on top of each other.
//! The module [`ring`](super) has the protocol and why it holds.

use super::{Brief, Buffer};
use crate::sync::{Ordering, fence, interrupt_point, signal_fence};
use crate::wire::{Chain, HEADER_WORDS, MAX_WORDS, PageHeader, Record, Who, counts, encode, short, words_of};

use Ordering::{Acquire, Relaxed, Release};

const HEADER: u64 = HEADER_WORDS as u64;

/// Room for a record, and where it goes.
struct Place {
    /// Where the record begins.
    start: u64,
    end: u64,
    /// The page that must be opened for it.
    opens: Option<u64>,
}

impl Buffer {
    /// Records a call at its return; `false` when it was refused, and counted.
    #[inline]
    pub(super) fn call(&self, call: &Brief) -> bool {
        let writer = &self.writer;
        if writer.busy.load(Relaxed) != 0 {
            return self.behind(&Record::Call(call.whole()));
        }
        interrupt_point();
        writer.busy.store(1, Relaxed);
        signal_fence();
        interrupt_point();
        let at = writer.commit.load(Relaxed);
        let delta = call.end.wrapping_sub(writer.base.load(Relaxed));
        let duration = call.end.wrapping_sub(call.start);
        let fits = short(call.func, call.depth, delta, duration, call.retval);
        if let Some((word, len)) = fits
            && writer.who.load(Relaxed) == call.who.word()
        {
            let end = at.wrapping_add(len as u64);
            if end <= writer.limit.load(Relaxed) {
                interrupt_point();
                writer.claim.store(end, Relaxed);
                signal_fence();
                interrupt_point();
                if writer.nested.load(Relaxed) <= at || self.claim_stands(end) {
                    // A record of one word overwrites the value, so that no branch is needed.
                    self.word(end.wrapping_sub(1)).store(call.retval.unwrap_or(0), Relaxed);
                    interrupt_point();
                    self.word(at).store(word, Relaxed);
                    interrupt_point();
                    writer.base.store(call.end, Relaxed);
                    self.commit_one(end);
                    return true;
                }
            }
        }
        self.outermost(&Record::Call(call.whole()))
    }

    /// Records anything, like [`call`](Self::call).
    pub(super) fn record(&self, record: &Record<'_>) -> bool {
        if matches!(record, Record::Unknown(_)) {
            return false;
        }
        if self.writer.busy.load(Relaxed) != 0 {
            return self.behind(record);
        }
        interrupt_point();
        self.writer.busy.store(1, Relaxed);
        signal_fence();
        interrupt_point();
        self.outermost(record)
    }

    /// If nested writers have come to stand behind the claim that ends at `end`, and not in it. Asked by the outermost, of whom
    /// `nested > commit` holds. Positions only grow, so no earlier `first` can be taken for this one.
    #[cold]
    fn claim_stands(&self, end: u64) -> bool {
        self.writer.first.load(Relaxed) == end
    }

    /// The outermost is done: one more record up to `end`.
    #[inline(always)]
    fn commit_one(&self, end: u64) {
        let writer = &self.writer;
        // Only the outermost stores here, and interrupts on top of it are nested.
        writer.records.store(writer.records.load(Relaxed).wrapping_add(1), Relaxed);
        interrupt_point();
        writer.commit.store(end, Release);
        signal_fence();
        interrupt_point();
        writer.busy.store(0, Relaxed);
        signal_fence();
        interrupt_point();
        if writer.nested.load(Relaxed) > end {
            self.take_in_late();
        }
    }

    /// Commits what nested writers wrote behind the outermost one, which has just stopped being busy.
    #[cold]
    #[inline(never)]
    fn take_in_late(&self) {
        let writer = &self.writer;
        // Each round that finds something was interrupted by a nested writer meanwhile.
        while writer.nested.load(Relaxed) > writer.commit.load(Relaxed) {
            interrupt_point();
            writer.busy.store(1, Relaxed);
            signal_fence();
            interrupt_point();
            self.take_in();
            interrupt_point();
            writer.busy.store(0, Relaxed);
            signal_fence();
            interrupt_point();
        }
    }

    /// Counts and commits what nested writers wrote. The outermost, without a claim that stands.
    fn take_in(&self) {
        let writer = &self.writer;
        // A claim that did not stand may end behind the new commit, and must not be taken for one that does.
        writer.claim.store(0, Relaxed);
        signal_fence();
        loop {
            interrupt_point();
            let (from, to) = (writer.commit.load(Relaxed), writer.nested.load(Relaxed));
            if to <= from {
                return;
            }
            self.count(from, to);
            writer.commit.store(to, Release);
            signal_fence();
        }
    }

    /// Counts the records from one position to another, and tells the pages that begin there how many came before.
    fn count(&self, from: u64, to: u64) {
        let mut records = self.writer.records.load(Relaxed);
        let mut at = from;
        while at < to {
            if self.offset(at) == 0 {
                self.word(at + 4).store(records, Relaxed);
                at += HEADER;
                continue;
            }
            let first = self.word(at).load(Relaxed);
            records += u64::from(counts(first));
            // At least one, so that this ends whatever happened to the memory.
            at += words_of(first).max(1) as u64;
        }
        self.writer.records.store(records, Relaxed);
    }

    /// The outermost writer, which is busy, with all that is not done in [`call`](Self::call): another task, a long record, a new
    /// page, interrupts that came in between.
    #[cold]
    #[inline(never)]
    fn outermost(&self, record: &Record<'_>) -> bool {
        let writer = &self.writer;
        let mut words = [0; MAX_WORDS];
        loop {
            self.take_in();
            interrupt_point();
            let at = writer.commit.load(Relaxed);
            self.adopt(at);
            let mut chain =
                Chain { base: writer.base.load(Relaxed), who: Who::from_word(writer.who.load(Relaxed)) };
            let mut len = encode(record, Some(&mut chain), &mut words) as u64;
            let mut place = self.place(at, len);
            if let Some(page) = place.opens {
                if !self.may_open(page, Some(at)) {
                    interrupt_point();
                    let _ = writer.refused.fetch_add(1, Relaxed);
                    writer.busy.store(0, Relaxed);
                    signal_fence();
                    interrupt_point();
                    self.take_in_late();
                    return false;
                }
                chain = Self::chain_from(record);
                len = encode(record, Some(&mut chain), &mut words) as u64;
                place.end = place.start + len;
            }
            interrupt_point();
            writer.claim.store(place.end, Relaxed);
            signal_fence();
            interrupt_point();
            if writer.nested.load(Relaxed) > at && !self.claim_stands(place.end) {
                continue;
            }
            if let Some(page) = place.opens {
                self.enter(page);
                self.open(at, page, Self::chain_from(record));
                writer.limit.store((page + 1) << self.page_log2, Relaxed);
            }
            self.put(&place, &words);
            writer.base.store(chain.base, Relaxed);
            writer.who.store(chain.who.word(), Relaxed);
            self.commit_one(place.end);
            return true;
        }
    }

    /// A writer on top of another one: it reserves behind, and what it writes stands alone. The commit is the outermost's.
    #[cold]
    #[inline(never)]
    fn behind(&self, record: &Record<'_>) -> bool {
        let writer = &self.writer;
        let mut words = [0; MAX_WORDS];
        let len = encode(record, None, &mut words) as u64;
        let place = loop {
            interrupt_point();
            let (nested, commit) = (writer.nested.load(Relaxed), writer.commit.load(Relaxed));
            // The outermost's claim stands only if no nested writer had come before it was made.
            let first = nested <= commit;
            let at = if first { writer.claim.load(Relaxed).max(commit) } else { nested };
            let place = self.place(at, len);
            if place.opens.is_some_and(|page| !self.may_open(page, None)) {
                let _ = writer.refused.fetch_add(1, Relaxed);
                return false;
            }
            interrupt_point();
            if writer.nested.compare_exchange(nested, place.end, Relaxed, Relaxed).is_ok() {
                interrupt_point();
                if first {
                    writer.first.store(at, Relaxed);
                }
                if let Some(page) = place.opens {
                    self.enter(page);
                    self.open(at, page, Self::chain_from(record));
                } else {
                    // The outermost may have claimed a page that it has not entered yet.
                    self.enter(self.page_of(place.start));
                }
                break place;
            }
        };
        self.put(&place, &words);
        true
    }

    /// Where `len` words go if all before `at` is taken.
    fn place(&self, at: u64, len: u64) -> Place {
        let offset = self.offset(at);
        if offset != 0 && offset + len <= self.page_words() {
            return Place { start: at, end: at + len, opens: None };
        }
        let page = self.page_of(at + self.page_words() - 1);
        let start = (page << self.page_log2) + HEADER;
        Place { start, end: start + len, opens: Some(page) }
    }

    /// What the first record of a page is decoded with, if it is this one.
    fn chain_from(record: &Record<'_>) -> Chain {
        match record {
            Record::Call(call) => Chain { base: call.end.max(call.start), who: call.who },
            Record::Entry(entry) => Chain { base: entry.time, who: entry.who },
            Record::Mark(mark) => Chain { base: mark.time, who: mark.who },
            Record::Unknown(_) => Chain { base: 0, who: Who::NOBODY },
        }
    }

    /// If the place of a page may be had, for the outermost writer at a position, or a nested one.
    fn may_open(&self, page: u64, outermost_at: Option<u64>) -> bool {
        let Some(old) = page.checked_sub(self.pages()) else { return true };
        if self.shared.stops_when_full.load(Relaxed) {
            // What has been consumed has been committed before.
            let consumed = self.shared.consumed.load(Acquire);
            self.page_of(consumed) > old || outermost_at.is_some_and(|at| consumed >= at)
        } else {
            // The outermost has nothing of its own in there; a nested one must spare what the outermost is writing.
            outermost_at.is_some() || old < self.page_of(self.writer.commit.load(Relaxed))
        }
    }

    /// Tells readers that a page's place is about to be written. One read-modify-write for a page: a nested writer may have been
    /// further already.
    fn enter(&self, page: u64) {
        interrupt_point();
        let _ = self.writer.entered.fetch_max(page + 1, Relaxed);
        // Against a reader's acquire fence: whoever sees a word of this page sees that it has been entered.
        fence(Release);
    }

    /// Fills the page that ends from `at` on, and writes the head of the next. The number of records is right for the outermost; it
    /// sets it for pages of nested ones.
    fn open(&self, at: u64, page: u64, chain: Chain) {
        let start = page << self.page_log2;
        // If there is only one page, its end is the new page's end, and interrupts may have written there already.
        let fills = if self.pages() > 1 { at..start } else { start..start };
        for position in fills {
            self.word(position).store(0, Relaxed);
        }
        let header = PageHeader {
            cpu: self.cpu,
            words_log2: self.page_log2 as u8,
            sequence: page,
            base: chain.base,
            who: chain.who,
            records: self.writer.records.load(Relaxed),
            refused: self.writer.refused.load(Relaxed),
        };
        for (position, word) in (start..).zip(header.encode()) {
            interrupt_point();
            self.word(position).store(word, Relaxed);
        }
    }

    /// If nested writers opened the page of `at`, it is decoded from its header on: nothing in it has moved the base since.
    fn adopt(&self, at: u64) {
        let offset = self.offset(at);
        let limit = at - offset + self.page_words();
        if offset != 0 && self.writer.limit.load(Relaxed) != limit {
            let start = at - offset;
            self.writer.base.store(self.word(start + 2).load(Relaxed), Relaxed);
            self.writer.who.store(self.word(start + 3).load(Relaxed), Relaxed);
            self.writer.limit.store(limit, Relaxed);
        }
    }

    fn put(&self, place: &Place, words: &[u64; MAX_WORDS]) {
        for (position, &word) in (place.start..place.end).zip(words) {
            interrupt_point();
            self.word(position).store(word, Relaxed);
        }
    }
}
