//! How records get into a buffer. On the traced path, on the buffer's CPU, with preemption off; interrupts on top of each other.
//! The module [`ring`](super) has the protocol and why it holds.

use super::{Brief, Buffer};
use crate::sync::{Ordering, fence, interrupt_point, signal_fence};
use crate::wire::{
    Call, Chain, FEW_WORDS, HEADER_WORDS, Hit, MAX_DEPTH, MAX_WORDS, PageHeader, Record, Who, call_words,
    counts, encode, has_few, hit_words, is_long, short, words_of,
};

use Ordering::{Acquire, Relaxed, Release};

const HEADER: u64 = HEADER_WORDS as u64;

/// What `busy` is while the outermost writer needs this many words at most, the longest record in short, or does not know yet.
/// No record ends here, because a page's header is longer.
pub(crate) const SHORT: u64 = 2;

/// Which writer a call is recorded by.
#[derive(Clone, Copy)]
enum Way {
    Outermost = 0,
    Behind = 1,
}

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
    #[inline(always)]
    pub(super) fn call(&self, call: &Brief) -> bool {
        let writer = &self.writer;
        if writer.busy.load(Relaxed) != 0 {
            return self.call_slowly(Way::Behind, call);
        }
        interrupt_point();
        writer.busy.store(SHORT, Relaxed);
        signal_fence();
        interrupt_point();
        let at = writer.commit.load(Relaxed);
        let delta = call.end.wrapping_sub(writer.base.load(Relaxed));
        let duration = call.end.wrapping_sub(call.start);
        let Some((word, len)) = short(call.func, call.depth, delta, duration, call.retval) else {
            return self.call_slowly(Way::Outermost, call);
        };
        let end = at.wrapping_add(len as u64);
        if end > writer.limit.load(Relaxed) || writer.who.load(Relaxed) != call.who.word() {
            return self.call_slowly(Way::Outermost, call);
        }
        let words = self.words();
        interrupt_point();
        // A record of one word overwrites the value, so that no branch is needed.
        words.at(end.wrapping_sub(1)).store(call.retval.unwrap_or(0), Relaxed);
        interrupt_point();
        words.at(at).store(word, Relaxed);
        interrupt_point();
        writer.base.store(call.end, Relaxed);
        self.commit_one(end)
    }

    /// The ways of a call that are not the usual one. The call goes in registers, so that the usual way keeps nothing in memory.
    #[inline(always)]
    fn call_slowly(&self, way: Way, call: &Brief) -> bool {
        let what = u64::from(call.func)
            | u64::from(call.depth.min(MAX_DEPTH)) << 32
            | u64::from(call.retval.is_some()) << 48
            | (way as u64) << 49;
        self.call_again(what, call.who.word(), call.start, call.end, call.retval.unwrap_or(0))
    }

    #[cold]
    #[inline(never)]
    fn call_again(&self, what: u64, who: u64, start: u64, end: u64, value: u64) -> bool {
        let depth = (what >> 32) as u32 & MAX_DEPTH;
        let mut call = Call::new(what as u32, depth, Who::from_word(who), start, end);
        call.retval = (what >> 48 & 1 != 0).then_some(value);
        if what >> 49 == Way::Behind as u64 {
            self.behind(&Record::Call(call))
        } else {
            self.outermost::<FEW_WORDS>(&Record::Call(call))
        }
    }

    /// Goes on for a trampoline that has made this busy and then could not record a call by itself: records it, like
    /// [`call`](Self::call).
    #[cfg_attr(not(feature = "trampolines"), expect(dead_code, reason = "the trampolines come here"))]
    pub(crate) fn claimed(&self, record: &Record<'_>) -> bool {
        self.outermost::<FEW_WORDS>(record)
    }

    /// Goes on for a trampoline that has made this busy, and records nothing.
    #[cfg_attr(not(feature = "trampolines"), expect(dead_code, reason = "the trampolines come here"))]
    pub(crate) fn give_up(&self) {
        self.writer.busy.store(0, Relaxed);
        signal_fence();
        self.take_in_late(false);
    }

    /// Commits what nested writers wrote behind the record of a trampoline.
    #[cfg_attr(not(feature = "trampolines"), expect(dead_code, reason = "the trampolines come here"))]
    pub(crate) fn take_in_behind(&self) {
        self.take_in_late(true);
    }

    /// Records a hit, like [`call`](Self::call).
    #[inline(always)]
    pub(super) fn hit(&self, hit: &Hit) -> bool {
        if self.writer.busy.load(Relaxed) != 0 {
            return self.behind(&Record::Hit(*hit));
        }
        let words = hit_words(hit);
        let done = self.long(hit.who, hit.time, |_| Some((words, words.len())));
        done.unwrap_or_else(|| self.outermost::<FEW_WORDS>(&Record::Hit(*hit)))
    }

    /// Records a call without arguments and memory, in long, like [`call`](Self::call).
    #[inline(always)]
    pub(super) fn long_call(&self, call: &Call<'_>) -> bool {
        if self.writer.busy.load(Relaxed) != 0 {
            return self.behind(&Record::Call(*call));
        }
        let done = self.long(call.who, call.end, |base| call_words(call, base));
        done.unwrap_or_else(|| self.outermost::<FEW_WORDS>(&Record::Call(*call)))
    }

    /// Records anything, like [`call`](Self::call).
    pub(super) fn record(&self, record: &Record<'_>) -> bool {
        if matches!(record, Record::Unknown(_)) {
            return false;
        }
        if self.writer.busy.load(Relaxed) != 0 {
            return self.behind(record);
        }
        if let Record::Call(call) = record
            && is_long(call)
        {
            return self.long_call(call);
        }
        interrupt_point();
        self.writer.busy.store(SHORT, Relaxed);
        signal_fence();
        interrupt_point();
        if has_few(record) {
            self.outermost::<FEW_WORDS>(record)
        } else {
            self.outermost::<MAX_WORDS>(record)
        }
    }

    /// The outermost writer, with a long record that moves the base to `time`, and of which `words` says the words and how many there
    /// are, being told the base. `None` where it has to think: another task, a new page, interrupts that came in between. It is busy then.
    #[inline(always)]
    fn long<const N: usize>(
        &self,
        who: Who,
        time: u64,
        words: impl FnOnce(u64) -> Option<([u64; N], usize)>,
    ) -> Option<bool> {
        let writer = &self.writer;
        interrupt_point();
        writer.busy.store(SHORT, Relaxed);
        signal_fence();
        interrupt_point();
        let at = writer.commit.load(Relaxed);
        let (words, len) = words(writer.base.load(Relaxed))?;
        let end = at.wrapping_add(len as u64);
        if end > writer.limit.load(Relaxed) || writer.who.load(Relaxed) != who.word() {
            return None;
        }
        interrupt_point();
        writer.busy.store(end, Relaxed);
        signal_fence();
        interrupt_point();
        // As in `outermost`: those that came before that store did not leave enough free.
        if writer.nested.load(Relaxed) > at && writer.first.load(Relaxed) != end {
            return None;
        }
        let place = self.words();
        for (position, &word) in (at..end).zip(&words) {
            interrupt_point();
            place.at(position).store(word, Relaxed);
        }
        interrupt_point();
        writer.base.store(time, Relaxed);
        Some(self.commit_one(end))
    }

    /// The outermost is done: one more record up to `end`.
    #[inline(always)]
    fn commit_one(&self, end: u64) -> bool {
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
            return self.take_in_late(true);
        }
        true
    }

    /// Commits what nested writers wrote behind the outermost one, which has just stopped being busy; hands `done` through.
    #[cold]
    #[inline(never)]
    fn take_in_late(&self, done: bool) -> bool {
        let writer = &self.writer;
        // Each round that finds something was interrupted by a nested writer meanwhile.
        while writer.nested.load(Relaxed) > writer.commit.load(Relaxed) {
            interrupt_point();
            writer.busy.store(SHORT, Relaxed);
            signal_fence();
            interrupt_point();
            self.take_in();
            interrupt_point();
            writer.busy.store(0, Relaxed);
            signal_fence();
            interrupt_point();
        }
        done
    }

    /// Counts and commits what nested writers wrote. The outermost, with nothing of its own that is not committed.
    #[inline]
    fn take_in(&self) {
        interrupt_point();
        if self.writer.nested.load(Relaxed) > self.writer.commit.load(Relaxed) {
            self.take_in_all();
        }
    }

    #[cold]
    #[inline(never)]
    fn take_in_all(&self) {
        let writer = &self.writer;
        loop {
            interrupt_point();
            let (from, to) = (writer.commit.load(Relaxed), writer.nested.load(Relaxed));
            if to <= from {
                return;
            }
            // What was kept free for the outermost's record and not used, a word or two.
            for position in from..writer.first.load(Relaxed) {
                self.word(position).store(0, Relaxed);
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
    /// page, interrupts that came in between. `N` is as many words as the record may have.
    #[inline(never)]
    fn outermost<const N: usize>(&self, record: &Record<'_>) -> bool {
        let writer = &self.writer;
        let mut words = [0; N];
        loop {
            // What an earlier round kept for itself is given up.
            writer.busy.store(SHORT, Relaxed);
            signal_fence();
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
                    return self.take_in_late(false);
                }
                chain = Self::chain_from(record);
                len = encode(record, Some(&mut chain), &mut words) as u64;
                place.end = place.start + len;
            }
            interrupt_point();
            writer.busy.store(place.end, Relaxed);
            signal_fence();
            interrupt_point();
            // Nested writers that came before that store did not leave enough free.
            if writer.nested.load(Relaxed) > at && writer.first.load(Relaxed) != place.end {
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
            return self.commit_one(place.end);
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
            let first = nested <= commit;
            let at = if first { self.behind_outermost(commit) } else { nested };
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
                    // The outermost may be about to enter a page that it keeps room in.
                    self.enter(self.page_of(place.start));
                }
                break place;
            }
        };
        self.put(&place, &words);
        true
    }

    /// Behind what the outermost keeps free for itself.
    fn behind_outermost(&self, commit: u64) -> u64 {
        match self.writer.busy.load(Relaxed) {
            // It does not know yet how much it needs. If this does not fit the page, it will think again.
            SHORT => (commit + SHORT).min(commit.next_multiple_of(self.page_words())),
            end => end.max(commit),
        }
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
            Record::Hit(hit) => Chain { base: hit.time, who: hit.who },
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
    #[inline]
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

    #[inline]
    fn put(&self, place: &Place, words: &[u64]) {
        for (position, &word) in (place.start..place.end).zip(words) {
            interrupt_point();
            self.word(position).store(word, Relaxed);
        }
    }
}
