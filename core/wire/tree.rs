//! From records, which stand in the order of returns, back to lines in the order of calls: entries, leaves and exits.
//!
//! For readers; not on the traced path, and not fast. The memory is the caller's.
//!
//! A [`Tree`] is given the records of one CPU in their order, and then gives their lines. A call's line of entry goes before
//! everything that happened on the CPU since: before the first call that is inside of it, which its depth tells, and before
//! what other tasks did meanwhile, which the time tells. Depth comes first, because a clock may stand still.
//!
//! What was lost takes no line with it: a call whose children are lost is a leaf, and children without a parent stand alone. A call
//! that was entered before the last batch of lines was given has its exit only: its opening could not be shown then.

use super::{
    Call, Entry, Hit, MAX_ARGS, MAX_DATA, MAX_MEMORY, MAX_TEXT_WORDS, Mark, Record, STACK_MARK, TEXT_MARK,
    Who,
};
use crate::text::{Event, Kind, Retval, Task};

/// Where in a [`Tree`]'s words stand the data of a mark, or the arguments of a call and behind them what it returned in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extra {
    at: u32,
    len: u32,
}

// `Tree::is_full` looks for as many words as either may have.
const _: () = assert!(MAX_ARGS + MAX_MEMORY / 8 <= MAX_DATA);

/// What a [`Tree`] keeps of one record.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    what: What,
    extra: Extra,
    /// The first of the nodes whose lines of entry go before this one's own line, in their order; and the next of those after this.
    entries: Option<usize>,
    next: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Call(Call<'static>),
    /// Entered, and not left.
    Open(Entry<'static>),
    Mark(Mark<'static>),
    Hit(Hit),
    Lost(u64),
}

impl Node {
    /// Memory.
    pub const EMPTY: Self =
        Self { what: What::Lost(0), extra: Extra { at: 0, len: 0 }, entries: None, next: None };

    /// Which task called, when, and how deep: of calls only.
    fn call(&self) -> Option<(u32, u64, u32)> {
        match &self.what {
            What::Call(call) => Some((call.who.task, call.start, call.depth)),
            What::Open(entry) => Some((entry.who.task, entry.time, entry.depth)),
            What::Mark(_) | What::Hit(_) | What::Lost(_) => None,
        }
    }

    /// When the record was written, if it is known.
    fn time(&self) -> Option<u64> {
        match &self.what {
            What::Call(call) => Some(call.end),
            What::Open(_) | What::Lost(_) => None,
            What::Mark(mark) => Some(mark.time),
            What::Hit(hit) => Some(hit.time),
        }
    }
}

/// A line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// A call begins that is not a leaf.
    Entry(Call<'static>),
    /// A call begins that has not returned.
    Open(Entry<'static>),
    /// A call without anything in it.
    Leaf(Call<'static>),
    /// A call returns. If its opening was not shown, it was before what was given earlier.
    Exit(Call<'static>),
    /// Something else.
    Mark(Mark<'static>),
    /// A function was entered, and nothing more is known.
    Hit(Hit),
    /// So many records are missing.
    Lost(u64),
}

impl Line {
    /// The line as events for [`Printer`](crate::text::Printer): a leaf is two, all others one. `cpu` is whose records these are,
    /// `extra` what [`Tree::extra`] says, `room` where it is put for the event.
    pub fn events<'r>(
        &self,
        cpu: u32,
        key: &dyn Key,
        extra: &[u64],
        room: &'r mut ExtraRoom,
    ) -> [Option<Event<'r>>; 2] {
        let is_text = matches!(self, Self::Mark(mark) if mark.id == TEXT_MARK);
        let memory_len = match self {
            Self::Entry(call) | Self::Leaf(call) | Self::Exit(call) => usize::from(call.memory_len),
            _ => 0,
        };
        let (extra, memory) = extra.split_at(extra.len().saturating_sub(memory_len.div_ceil(8)));
        let memory = room.memory.fill(memory, memory_len);
        let (args, data) = if is_text {
            (&[][..], fill_with_text(&mut room.bytes, extra))
        } else {
            fill(&mut room.words, &mut room.bytes, extra)
        };
        let begin = |who: Who, func, depth, time, ret_addr: Option<u64>| {
            let ret_addr = ret_addr.map(|addr| addr as usize);
            let kind = Kind::Entry { func: key.addr(func), depth, ret_addr, args };
            Some(Event { cpu, time_ns: key.time_ns(time), task: key.task(who.task), kind })
        };
        let enter = |call: &Call<'static>| begin(call.who, call.func, call.depth, call.start, call.ret_addr);
        let end = |call: &Call<'static>| {
            let second = call.retval2.map(|second| second as usize);
            let retval = call.retval.map(|first| Retval { first: first as usize, second, memory });
            let (func, depth, overrun) = (key.addr(call.func), call.depth, call.overrun);
            let time_ns = key.time_ns(call.end);
            let duration_ns = time_ns.saturating_sub(key.time_ns(call.start));
            let kind = Kind::Return { func, depth, duration_ns, retval, overrun };
            Some(Event { cpu, time_ns, task: key.task(call.who.task), kind })
        };
        let other =
            |time, task, kind| Some(Event { cpu, time_ns: key.time_ns(time), task: key.task(task), kind });
        match self {
            Self::Entry(call) => [enter(call), None],
            Self::Open(entry) => {
                [begin(entry.who, entry.func, entry.depth, entry.time, entry.ret_addr), None]
            }
            Self::Leaf(call) => [enter(call), end(call)],
            Self::Exit(call) => [end(call), None],
            Self::Mark(mark) if mark.id == STACK_MARK => {
                let Who { task, context } = mark.who;
                [other(mark.time, task, Kind::Stack { addrs: args, cut: mark.cut, context }), None]
            }
            Self::Mark(mark) => {
                let Who { task, context } = mark.who;
                [other(mark.time, task, Kind::Comment { event: mark.id, data, context }), None]
            }
            Self::Hit(hit) => {
                let (parent_ip, context) = (hit.parent_ip as usize, hit.who.context);
                let kind = Kind::Hit { func: key.addr(hit.func), parent_ip, context };
                [other(hit.time, hit.who.task, kind), None]
            }
            // The printer shows no time for it.
            Self::Lost(count) => [other(0, 0, Kind::Lost { count: *count }), None],
        }
    }
}

/// Room for what a line has beside itself, as [`Event`] wants it.
#[derive(Clone, Copy, Debug)]
pub struct ExtraRoom {
    words: [usize; MAX_DATA],
    bytes: [u8; MAX_TEXT_WORDS * 8],
    memory: Memory,
}

impl ExtraRoom {
    /// Empty room.
    pub const NEW: Self = Self { words: [0; MAX_DATA], bytes: [0; MAX_TEXT_WORDS * 8], memory: Memory::NEW };
}

/// The words, and their bytes up to the first zero.
fn fill<'r>(
    words: &'r mut [usize; MAX_DATA],
    bytes: &'r mut [u8; MAX_TEXT_WORDS * 8],
    extra: &[u64],
) -> (&'r [usize], &'r [u8]) {
    let len = extra.len().min(MAX_DATA);
    for (index, &word) in extra.iter().take(len).enumerate() {
        words[index] = word as usize;
        bytes[index * 8..][..8].copy_from_slice(&word.to_le_bytes());
    }
    let bytes = &bytes[..len * 8];
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    (&words[..len], &bytes[..end])
}

/// The bytes of a text: each of its pieces has zeros behind it.
fn fill_with_text<'r>(room: &'r mut [u8; MAX_TEXT_WORDS * 8], extra: &[u64]) -> &'r [u8] {
    let bytes = extra.iter().flat_map(|word| word.to_le_bytes()).filter(|byte| *byte != 0);
    let mut len = 0;
    for (to, byte) in room.iter_mut().zip(bytes) {
        (*to, len) = (byte, len + 1);
    }
    &room[..len]
}

/// What a call returned in memory, as bytes again.
#[derive(Clone, Copy, Debug)]
struct Memory([u8; MAX_MEMORY]);

impl Memory {
    /// Nothing.
    const NEW: Self = Self([0; MAX_MEMORY]);

    /// The first `len` bytes of these words; none if there are not so many.
    fn fill(&mut self, words: &[u64], len: usize) -> &[u8] {
        for (to, word) in self.0.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        let is_there = len <= words.len() * 8;
        self.0.get(..len).filter(|_| is_there).unwrap_or(&[])
    }
}

/// What the numbers in records stand for.
pub trait Key {
    /// The address of the function that has this number, or the number if nobody knows any more.
    fn addr(&self, func: u32) -> usize;

    /// A task's name.
    fn task(&self, number: u32) -> Task;

    /// Nanoseconds of a time, which is in the clock's unit.
    fn time_ns(&self, time: u64) -> u64 {
        time
    }
}

/// There is no room for another record: the lines must be taken first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// How many records there is room for.
    pub room: usize,
}

impl core::fmt::Display for Full {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "the tree has room for {} records, and has them", self.room)
    }
}

impl core::error::Error for Full {}

/// Records of one CPU, and the lines they make.
#[derive(Debug)]
pub struct Tree<'m> {
    nodes: &'m mut [Node],
    len: usize,
    words: &'m mut [u64],
    words_used: usize,
    /// The time of the last line that was given. What was entered before has had its chance.
    given: Option<u64>,
    reading: Reading,
}

impl<'m> Tree<'m> {
    /// A tree over lent memory. The more nodes, the longer a call may be and still have its opening shown. Without
    /// [`with_words`](Self::with_words) arguments and data are left out.
    pub fn new(nodes: &'m mut [Node]) -> Self {
        let reading = Reading { end: 0, at: 0, next: None, leaf: false };
        Self { nodes, len: 0, words: &mut [], words_used: 0, given: None, reading }
    }

    /// The same with room for arguments of calls and data of marks; those that find none are left out.
    pub fn with_words(self, words: &'m mut [u64]) -> Self {
        Self { words, ..self }
    }

    /// What a line of the batch that was closed last has beside itself, for [`Line::events`].
    pub fn extra(&self, extra: Extra) -> &[u64] {
        let at = extra.at as usize;
        self.words.get(at..at + extra.len as usize).unwrap_or(&[])
    }

    fn keep(&mut self, words: &[u64], more: &[u64]) -> Extra {
        let (at, len) = (self.words_used, words.len() + more.len());
        let Some(place) = self.words.get_mut(at..at + len) else { return Extra::default() };
        let (first, second) = place.split_at_mut(words.len());
        first.copy_from_slice(words);
        second.copy_from_slice(more);
        self.words_used += len;
        Extra { at: at as u32, len: len as u32 }
    }

    /// How many records there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// If there is no room for another record: its node, or all words that it may have, if there ever is room for these.
    pub fn is_full(&self) -> bool {
        let words = self.words.len();
        self.len == self.nodes.len() || words >= MAX_DATA && words - self.words_used < MAX_DATA
    }

    /// If there are no records.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts the next piece of a text behind the last, if nothing stands between them. Whether it did.
    fn join(&mut self, piece: &Mark<'_>) -> bool {
        let Some(node) = self.len.checked_sub(1).and_then(|last| self.nodes.get_mut(last)) else {
            return false;
        };
        let What::Mark(mark) = &mut node.what else { return false };
        let (at, len) = (node.extra.at as usize, node.extra.len as usize);
        let words = self.words_used..self.words_used + piece.data.len();
        if (mark.id, piece.id, mark.who, mark.cut) != (TEXT_MARK, TEXT_MARK, piece.who, true)
            || at + len != words.start
            || len + words.len() > MAX_TEXT_WORDS
        {
            return false;
        }
        let Some(room) = self.words.get_mut(words.clone()) else { return false };
        room.copy_from_slice(piece.data);
        self.words_used = words.end;
        node.extra.len += piece.data.len() as u32;
        mark.cut = piece.cut;
        true
    }

    /// Adds the next record. Those of unknown kinds are left out. Entries, of calls that have not returned, come last.
    pub fn push(&mut self, record: &Record<'_>) -> Result<(), Full> {
        let (what, words, memory): (_, &[u64], &[u64]) = match *record {
            Record::Call(call) => {
                (What::Call(Call { args: &[], memory: &[], ..call }), call.args, call.memory)
            }
            Record::Entry(entry) => (What::Open(Entry { args: &[], ..entry }), entry.args, &[]),
            Record::Mark(mark) if self.join(&mark) => return Ok(()),
            Record::Mark(mark) => (What::Mark(Mark { data: &[], ..mark }), mark.data, &[]),
            Record::Hit(hit) => (What::Hit(hit), &[], &[]),
            Record::Unknown(_) => return Ok(()),
        };
        self.add(what)?;
        self.nodes[self.len - 1].extra = self.keep(words, memory);
        Ok(())
    }

    /// Says that so many records are missing here.
    pub fn push_lost(&mut self, count: u64) -> Result<(), Full> {
        self.add(What::Lost(count))
    }

    fn add(&mut self, what: What) -> Result<(), Full> {
        let (at, room) = (self.len, self.nodes.len());
        *self.nodes.get_mut(at).ok_or(Full { room })? =
            Node { what, extra: Extra::default(), entries: None, next: None };
        self.len += 1;
        if let Some((task, start, depth)) = self.nodes[at].call()
            && self.given.is_none_or(|given| given < start)
        {
            let before = self.before(at, task, start, depth);
            self.insert(at, before, (start, depth));
        }
        Ok(())
    }

    /// Before which node's line the entry of the newest goes.
    fn before(&self, at: usize, task: u32, start: u64, depth: u32) -> usize {
        let older = || self.nodes[..at].iter().enumerate().rev();
        // What its task did inside of it: deeper calls, back to one that is not, or that began earlier.
        let own = older().filter_map(|(index, other)| match other.what {
            What::Call(call) if call.who.task == task => Some((index, call)),
            _ => None,
        });
        let inside = own.take_while(|(_, call)| call.depth > depth && call.start >= start);
        // What others did since, and marks.
        let others = older().filter(|(_, other)| other.call().is_none_or(|(by, ..)| by != task));
        let others = others.filter_map(|(index, other)| Some((index, other.time()?)));
        let since = others.take_while(|(_, time)| *time > start);
        // All that have not returned stand at one place, so that they come in their order there.
        let open = older().take_while(|(_, other)| matches!(other.what, What::Open(_)));
        let is_open = matches!(self.nodes[at].what, What::Open(_));
        let own_place = open.last().filter(|_| is_open).map_or(at, |(index, _)| index);
        let first_inside = inside.last().map_or(own_place, |(index, _)| index);
        since.last().map_or(first_inside, |(index, _)| index.min(first_inside))
    }

    /// Puts a node among those that are entered before another: by time, and outer calls first.
    fn insert(&mut self, at: usize, before: usize, key: (u64, u32)) {
        let mut previous = None;
        let mut next = self.nodes[before].entries;
        while let Some(index) = next
            && self.nodes[index].call().is_some_and(|(_, start, depth)| (start, depth) < key)
        {
            previous = next;
            next = self.nodes[index].next;
        }
        self.nodes[at].next = next;
        match previous {
            None => self.nodes[before].entries = Some(at),
            Some(previous) => self.nodes[previous].next = Some(at),
        }
    }

    /// Forgets everything, as if it were new.
    pub fn clear(&mut self) {
        (self.len, self.words_used, self.given) = (0, 0, None);
        self.reading = Reading { end: 0, at: 0, next: None, leaf: false };
    }

    /// The lines of what has been pushed, in order; forgets it. What is pushed afterwards goes on from there.
    pub fn lines(&mut self) -> impl Iterator<Item = Line> {
        self.close();
        core::iter::from_fn(|| self.next_line().map(|(line, _)| line))
    }

    /// Ends a batch: the lines of what has been pushed come from [`next_line`](Self::next_line), to the last, before more is pushed.
    pub fn close(&mut self) {
        let nodes = &self.nodes[..self.len];
        self.given = nodes.iter().filter_map(Node::time).max().max(self.given);
        self.reading =
            Reading { end: self.len, at: 0, next: nodes.first().and_then(|node| node.entries), leaf: false };
        self.len = 0;
        self.words_used = 0;
    }

    /// The next line of the batch that was closed last, and what [`extra`](Self::extra) shows more of it.
    pub fn next_line(&mut self) -> Option<(Line, Extra)> {
        let nodes = &self.nodes[..self.reading.end];
        let Reading { at, next, leaf, .. } = &mut self.reading;
        loop {
            if let Some(index) = *next {
                let node = nodes.get(index)?;
                *next = node.next;
                match node.what {
                    // Its exit comes next: one line for both.
                    What::Call(_) if index == *at && next.is_none() => *leaf = true,
                    What::Call(call) => return Some((Line::Entry(call), node.extra)),
                    What::Open(entry) => return Some((Line::Open(entry), node.extra)),
                    What::Mark(_) | What::Hit(_) | What::Lost(_) => {}
                }
                continue;
            }
            let node = nodes.get(*at)?;
            *at += 1;
            *next = nodes.get(*at).and_then(|node| node.entries);
            let line = match node.what {
                What::Call(call) if core::mem::take(leaf) => Line::Leaf(call),
                What::Call(call) => Line::Exit(call),
                What::Mark(mark) => Line::Mark(mark),
                What::Hit(hit) => Line::Hit(hit),
                What::Lost(count) => Line::Lost(count),
                // Its line was the one of its entry.
                What::Open(_) => continue,
            };
            return Some((line, node.extra));
        }
    }
}

/// How far the lines of a batch have been given.
#[derive(Clone, Copy, Debug)]
struct Reading {
    /// Nodes of the batch.
    end: usize,
    /// The node whose own line comes next, behind the rest of those that are entered before it.
    at: usize,
    next: Option<usize>,
    leaf: bool,
}

#[cfg(test)]
mod tests;
