//! Reading a trace: the records of all CPUs, as events in the order of time.
//!
//! For readers, in task context; writers need not stop. A [`Trace`] has a [`Part`] for each CPU, over memory that the caller lends: the
//! more, the longer a call may be and still have its opening shown (see [`wire::tree`](crate::wire::tree)).

use core::fmt;

use crate::ring::{Buffer, Item, Reader, RingError};
use crate::text::{self, Event, LineOptions, Printer, Resolve};
use crate::wire::tree::{Extra, ExtraRoom, Key, Line, Node, Tree};

/// What a part needs beside its nodes: room to copy a page, and words for arguments and marks.
#[derive(Debug)]
pub struct PartMemory<'m> {
    /// [`Buffer::page_len`] words.
    pub page: &'m mut [u64],
    /// A node for each record of a batch; without any, nothing is read.
    pub nodes: &'m mut [Node],
    /// Words for arguments of calls and data of marks; may be empty.
    pub words: &'m mut [u64],
}

/// How a buffer is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// What is read stays (`trace`).
    Peek,
    /// The same, without what was consumed before.
    PeekRest,
    /// What is read is gone (`trace_pipe`).
    Consume,
}

/// Where a part's records come from.
#[derive(Debug)]
enum Source<'m> {
    /// From nowhere: room for a page.
    Idle(&'m mut [u64]),
    Peek(Reader<'m>),
    /// A consumer for each batch, so that nobody is kept from consuming in between.
    Consume(&'m Buffer, &'m mut [u64]),
}

/// One CPU's records.
#[derive(Debug)]
pub struct Part<'m> {
    cpu: u32,
    source: Source<'m>,
    tree: Tree<'m>,
    /// The lines whose events come next: the second is there to see whether the first closes at once.
    ahead: [Option<Ahead>; 2],
}

/// A line, and which of its events is next.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    line: Line,
    extra: Extra,
    event: usize,
}

impl<'m> Part<'m> {
    /// Begins to read a CPU's buffer.
    ///
    /// # Errors
    /// [`RingError::Room`] if the page does not fit, [`RingError::Consumed`] if somebody else consumes.
    pub fn new(buffer: &'m Buffer, reading: Reading, memory: PartMemory<'m>) -> Result<Self, RingError> {
        let mut part = Self::idle(memory);
        part.start(buffer, reading)?;
        Ok(part)
    }

    /// A part that reads nothing yet.
    pub fn idle(memory: PartMemory<'m>) -> Self {
        let PartMemory { page, nodes, words } = memory;
        Self {
            cpu: 0,
            source: Source::Idle(page),
            tree: Tree::new(nodes).with_words(words),
            ahead: [None; 2],
        }
    }

    /// Begins to read another buffer, or the same from the beginning. What was read before and not given is forgotten; so it is with
    /// what was consumed.
    ///
    /// # Errors
    /// As for [`new`](Self::new); the part is idle then.
    pub fn start(&mut self, buffer: &'m Buffer, reading: Reading) -> Result<(), RingError> {
        self.stop();
        self.cpu = buffer.cpu().into();
        let Source::Idle(page) = &mut self.source else { return Ok(()) };
        if page.len() < buffer.page_len() {
            return Err(RingError::Room(page.len()));
        }
        if reading == Reading::Consume {
            // Room for it there is; who consumes right now is told here and not at every batch.
            drop(buffer.consume(page)?);
        }
        let page = core::mem::take(page);
        self.source = match reading {
            Reading::Peek => Source::Peek(buffer.peek(page)?),
            Reading::PeekRest => Source::Peek(buffer.peek_rest(page)?),
            Reading::Consume => Source::Consume(buffer, page),
        };
        Ok(())
    }

    /// A consuming part goes on in another buffer of its CPU, in which records are that came after those of the first. What has been read
    /// is given before. Others stay where they are, and so does a part without room for the buffer's pages.
    pub fn follow(&mut self, other: &'m Buffer) {
        if let Source::Consume(buffer, page) = &mut self.source
            && page.len() >= other.page_len()
        {
            *buffer = other;
        }
    }

    /// Reads nothing any more: the buffer is not touched from here on.
    pub fn stop(&mut self) {
        self.source = match core::mem::replace(&mut self.source, Source::Idle(&mut [])) {
            Source::Peek(reader) => Source::Idle(reader.into_room()),
            Source::Idle(page) | Source::Consume(_, page) => Source::Idle(page),
        };
        self.tree.clear();
        self.ahead = [None; 2];
    }

    /// If it reads nothing.
    pub fn is_idle(&self) -> bool {
        matches!(self.source, Source::Idle(_))
    }

    /// Reads the next batch into the tree: as many records as there is room for.
    fn fill(&mut self) {
        match &mut self.source {
            Source::Idle(_) => {}
            Source::Peek(reader) => fill(&mut self.tree, reader),
            // Nothing for now while somebody else consumes.
            Source::Consume(buffer, page) => {
                if let Ok(mut reader) = buffer.consume(page) {
                    fill(&mut self.tree, &mut reader);
                }
            }
        }
        self.tree.close();
    }

    fn next_ahead(&mut self) -> Option<Ahead> {
        let (line, extra) = self.tree.next_line()?;
        Some(Ahead { line, extra, event: 0 })
    }

    /// Sees that the next lines are known, as far as there are any. Lines of one batch only: words of the last are gone with the next.
    fn look_ahead(&mut self) {
        if self.ahead[0].is_none() {
            self.ahead = [self.ahead[1].take(), None];
        }
        if self.ahead[0].is_none() {
            self.ahead[0] = self.next_ahead();
        }
        if self.ahead[0].is_none() {
            self.fill();
            self.ahead[0] = self.next_ahead();
        }
        if self.ahead[1].is_none() {
            self.ahead[1] = self.next_ahead();
        }
    }

    /// The event of a line that is ahead.
    fn event<'r>(&self, ahead: Ahead, key: &dyn Key, room: &'r mut ExtraRoom) -> Option<Event<'r>> {
        ahead.line.events(self.cpu, key, self.tree.extra(ahead.extra), room).into_iter().nth(ahead.event)?
    }

    /// The event behind a line's next one.
    fn behind(&self, ahead: Ahead) -> Option<Ahead> {
        let next = Ahead { event: ahead.event + 1, ..ahead };
        if matches!(ahead.line, Line::Leaf(_)) && ahead.event == 0 { Some(next) } else { self.ahead[1] }
    }

    /// The first event was given.
    fn pass(&mut self) {
        self.ahead[0] = match self.ahead[0].take() {
            Some(ahead) if matches!(ahead.line, Line::Leaf(_)) && ahead.event == 0 => {
                Some(Ahead { event: 1, ..ahead })
            }
            _ => None,
        };
    }
}

fn fill(tree: &mut Tree<'_>, reader: &mut Reader<'_>) {
    while !tree.is_full() {
        match reader.next() {
            None => break,
            // Unknown kinds take no room, and there is some.
            Some(Item::Record(record)) => drop(tree.push(&record)),
            Some(Item::Lost(count)) => drop(tree.push_lost(count)),
        }
    }
}

/// The records of several CPUs.
#[derive(Debug)]
pub struct Trace<'t, 'm> {
    parts: &'t mut [Part<'m>],
}

impl<'t, 'm> Trace<'t, 'm> {
    /// Reads some CPUs together.
    pub fn new(parts: &'t mut [Part<'m>]) -> Self {
        Self { parts }
    }

    /// Calls `each` with the next event and the one that follows it on its CPU, if that is known. `None` at the end, where one may ask
    /// again later. Of events with the same time, those of the first part come first; a loss comes before all else.
    ///
    /// An event whose `each` fails is given again.
    #[expect(clippy::type_complexity, reason = "an alias would hide what `each` is given")]
    pub fn next<E>(
        &mut self,
        key: &dyn Key,
        each: &mut dyn FnMut(&Event<'_>, Option<&Event<'_>>) -> Result<(), E>,
    ) -> Option<Result<(), E>> {
        let (mut room, mut behind_room) = (ExtraRoom::NEW, ExtraRoom::NEW);
        let mut first: Option<(u64, usize)> = None;
        for (index, part) in self.parts.iter_mut().enumerate() {
            part.look_ahead();
            let Some(ahead) = part.ahead[0] else { continue };
            let Some(event) = part.event(ahead, key, &mut room) else { continue };
            if first.is_none_or(|(time, _)| event.time_ns < time) {
                first = Some((event.time_ns, index));
            }
        }
        let part = self.parts.get_mut(first?.1)?;
        let ahead = part.ahead[0]?;
        let event = part.event(ahead, key, &mut room)?;
        let behind = part.behind(ahead).and_then(|behind| part.event(behind, key, &mut behind_room));
        let given = each(&event, behind.as_ref());
        if given.is_ok() {
            part.pass();
        }
        Some(given)
    }

    /// Prints what there is in the function_graph layout.
    ///
    /// # Errors
    /// See [`text::Error`]. What could not be written is given again by the next call.
    pub fn print(
        &mut self,
        printer: &mut Printer<'_>,
        key: &dyn Key,
        resolve: &dyn Resolve,
        out: &mut dyn fmt::Write,
    ) -> Result<(), text::Error> {
        while let Some(printed) = self.next(key, &mut |event, next| printer.event(event, next, resolve, out))
        {
            printed?;
        }
        Ok(())
    }

    /// Prints what there is in the layout of the function tracer.
    ///
    /// # Errors
    /// What `out` refuses.
    pub fn print_hits(
        &mut self,
        key: &dyn Key,
        resolve: &dyn Resolve,
        out: &mut dyn fmt::Write,
    ) -> fmt::Result {
        while let Some(printed) =
            self.next(key, &mut |event, _| text::function_line(event, LineOptions::default(), resolve, out))
        {
            printed?;
        }
        Ok(())
    }
}

mod latest;

pub use latest::write_latest;

#[cfg(test)]
mod tests;
