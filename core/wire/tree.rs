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

use core::iter::from_fn;

use super::{Call, Entry, Mark, Record, Who};
use crate::text::{Event, Kind, Task};

/// What a [`Tree`] keeps of one record. Arguments and data are left out.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    what: What,
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
    Lost(u64),
}

impl Node {
    /// Memory.
    pub const EMPTY: Self = Self { what: What::Lost(0), entries: None, next: None };

    /// Which task called, when, and how deep: of calls only.
    fn call(&self) -> Option<(u32, u64, u32)> {
        match &self.what {
            What::Call(call) => Some((call.who.task, call.start, call.depth)),
            What::Open(entry) => Some((entry.who.task, entry.time, entry.depth)),
            What::Mark(_) | What::Lost(_) => None,
        }
    }

    /// When the record was written, if it is known.
    fn time(&self) -> Option<u64> {
        match &self.what {
            What::Call(call) => Some(call.end),
            What::Open(_) | What::Lost(_) => None,
            What::Mark(mark) => Some(mark.time),
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
    /// So many records are missing.
    Lost(u64),
}

impl Line {
    /// The line as events for [`Printer`](crate::text::Printer): a leaf is two, all others one. `addr` gives functions their
    /// addresses, `task` gives tasks their names; `cpu` is whose records these are.
    pub fn events(
        &self,
        cpu: u32,
        addr: &dyn Fn(u32) -> usize,
        task: &dyn Fn(u32) -> Task,
    ) -> impl Iterator<Item = Event<'static>> {
        let begin = |who: Who, func, depth, time_ns, ret_addr: Option<u64>| {
            let ret_addr = ret_addr.map(|addr| addr as usize);
            let kind = Kind::Entry { func: addr(func), depth, ret_addr, args: &[] };
            Some(Event { cpu, time_ns, task: task(who.task), kind })
        };
        let enter = |call: &Call<'static>| begin(call.who, call.func, call.depth, call.start, call.ret_addr);
        let end = |call: &Call<'static>| {
            let retval = [call.retval.unwrap_or(0) as usize, call.retval2.unwrap_or(0) as usize];
            let (func, depth, overrun) = (addr(call.func), call.depth, call.overrun);
            let kind = Kind::Return { func, depth, duration_ns: call.end - call.start, retval, overrun };
            Some(Event { cpu, time_ns: call.end, task: task(call.who.task), kind })
        };
        let [first, second] = match self {
            Self::Entry(call) => [enter(call), None],
            Self::Open(entry) => {
                [begin(entry.who, entry.func, entry.depth, entry.time, entry.ret_addr), None]
            }
            Self::Leaf(call) => [enter(call), end(call)],
            Self::Exit(call) => [end(call), None],
            Self::Mark(mark) => {
                let kind = Kind::Comment { event: mark.id, data: &[] };
                [Some(Event { cpu, time_ns: mark.time, task: task(mark.who.task), kind }), None]
            }
            // The printer shows no time for it.
            Self::Lost(count) => {
                let kind = Kind::Lost { count: *count };
                [Some(Event { cpu, time_ns: 0, task: task(0), kind }), None]
            }
        };
        first.into_iter().chain(second)
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
    /// The time of the last line that was given. What was entered before has had its chance.
    given: Option<u64>,
}

impl<'m> Tree<'m> {
    /// A tree over lent memory. The more nodes, the longer a call may be and still have its opening shown.
    pub fn new(nodes: &'m mut [Node]) -> Self {
        Self { nodes, len: 0, given: None }
    }

    /// How many records there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// If there are no records.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds the next record. Those of unknown kinds are left out. Entries, of calls that have not returned, come last.
    pub fn push(&mut self, record: &Record<'_>) -> Result<(), Full> {
        self.add(match *record {
            Record::Call(call) => What::Call(Call { args: &[], ..call }),
            Record::Entry(entry) => What::Open(Entry { args: &[], ..entry }),
            Record::Mark(mark) => What::Mark(Mark { data: &[], ..mark }),
            Record::Unknown(_) => return Ok(()),
        })
    }

    /// Says that so many records are missing here.
    pub fn push_lost(&mut self, count: u64) -> Result<(), Full> {
        self.add(What::Lost(count))
    }

    fn add(&mut self, what: What) -> Result<(), Full> {
        let (at, room) = (self.len, self.nodes.len());
        *self.nodes.get_mut(at).ok_or(Full { room })? = Node { what, entries: None, next: None };
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

    /// The lines of what has been pushed, in order; forgets it. What is pushed afterwards goes on from there.
    pub fn lines(&mut self) -> impl Iterator<Item = Line> {
        let nodes = &self.nodes[..self.len];
        self.given = nodes.iter().filter_map(Node::time).max().max(self.given);
        self.len = 0;
        let mut at = 0;
        // The rest of what is entered before the line of `at`.
        let mut next = nodes.first().and_then(|node| node.entries);
        let mut leaf = false;
        from_fn(move || {
            loop {
                if let Some(index) = next {
                    let node = nodes.get(index)?;
                    next = node.next;
                    match node.what {
                        // Its exit comes next: one line for both.
                        What::Call(_) if index == at && next.is_none() => leaf = true,
                        What::Call(call) => return Some(Line::Entry(call)),
                        What::Open(entry) => return Some(Line::Open(entry)),
                        What::Mark(_) | What::Lost(_) => {}
                    }
                    continue;
                }
                let node = nodes.get(at)?;
                at += 1;
                next = nodes.get(at).and_then(|node| node.entries);
                return Some(match node.what {
                    What::Call(call) if core::mem::take(&mut leaf) => Line::Leaf(call),
                    What::Call(call) => Line::Exit(call),
                    What::Mark(mark) => Line::Mark(mark),
                    What::Lost(count) => Line::Lost(count),
                    // Its line was the one of its entry.
                    What::Open(_) => continue,
                });
            }
        })
    }
}

#[cfg(test)]
mod tests;
