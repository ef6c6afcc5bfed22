//! A user's set, read back as words: writing what was read makes the same set.
//!
//! The functions first, each by a word that takes it and no other; then the words that wait. Where the set is everything or
//! nothing, a line says so. Which word that is, is found out by looking up what is about to be shown: the name as people
//! read it if it is nobody else's, then the name in the symbol table, with the module and with its number among those of that
//! name; and if nothing else helps, the number of its line. So a function costs a pass over all functions; the common case, a name of C that
//! is unique, one over all names.

use core::fmt::{self, Write};

use crate::engine::table::{Functions, Line};
use crate::engine::{Engine, Error, WhichSet};
use crate::filter_text::FilterLine;
use crate::graph::GraphOps;
use crate::machine::Machine;
use crate::ops::Ops;
use crate::platform::Platform;
use crate::select::{FunctionTable, KERNEL_MODULE, Selection, select};
use crate::site::State;
use crate::users::User;
use crate::words::place::{NameForm, Place, Position, Progress, Spelling, Window};
use crate::words::waiting::SetId;
use crate::words::{Desk, Marker};

/// The longest word that is looked up before it is shown. A longer one is replaced by the number of its line.
const LONGEST: usize = 512;

impl<P: Platform, M: Machine> Engine<P, M> {
    /// Shows a set of a user of entries as words, one a line.
    ///
    /// # Errors
    /// [`Error::NotRegistered`] if the user has no slot. What `out` refuses ends it early, and is the inner result.
    pub fn show_ops_words(
        &self,
        ops: &'static Ops<M::Regs>,
        which: WhichSet,
        out: &mut dyn Write,
    ) -> Result<fmt::Result, Error> {
        self.show_words(User::Entry(ops), which, out)
    }

    /// The same for a graph user.
    ///
    /// # Errors
    /// As for users of entries.
    pub fn show_graph_words(
        &self,
        ops: &'static GraphOps<M::Regs>,
        which: WhichSet,
        out: &mut dyn Write,
    ) -> Result<fmt::Result, Error> {
        self.show_words(User::Graph(ops), which, out)
    }

    /// Reads the next bytes of what [`show_ops_words`](Self::show_ops_words) shows. How many; 0 at the end.
    ///
    /// # Errors
    /// [`Error::NotRegistered`].
    pub fn read_ops_words(
        &self,
        ops: &'static Ops<M::Regs>,
        which: WhichSet,
        place: &mut Place,
        bytes: &mut [u8],
    ) -> Result<usize, Error> {
        self.read_words(User::Entry(ops), which, place, bytes)
    }

    /// The same for a graph user.
    ///
    /// # Errors
    /// As for users of entries.
    pub fn read_graph_words(
        &self,
        ops: &'static GraphOps<M::Regs>,
        which: WhichSet,
        place: &mut Place,
        bytes: &mut [u8],
    ) -> Result<usize, Error> {
        self.read_words(User::Graph(ops), which, place, bytes)
    }

    fn show_words(
        &self,
        user: User<M::Regs>,
        which: WhichSet,
        out: &mut dyn Write,
    ) -> Result<fmt::Result, Error> {
        let mut result = Ok(());
        self.each_word(user, which, Place::START, &mut |at, _, line| {
            if at == Position::End {
                return Next::Stop;
            }
            result = out.write_fmt(*line).and_then(|()| out.write_char('\n'));
            if result.is_ok() { Next::Go } else { Next::Stop }
        })?;
        Ok(result)
    }

    fn read_words(
        &self,
        user: User<M::Regs>,
        which: WhichSet,
        place: &mut Place,
        bytes: &mut [u8],
    ) -> Result<usize, Error> {
        let from = *place;
        let mut reading = Reading { place, bytes, filled: 0 };
        self.each_word(user, which, from, &mut |at, spelling, line| reading.line(at, spelling, line))?;
        Ok(reading.filled)
    }

    /// Calls `each` with every line from a place on, the one that was begun included, until that says to stop.
    fn each_word(
        &self,
        user: User<M::Regs>,
        which: WhichSet,
        from: Place,
        each: &mut Each<'_>,
    ) -> Result<(), Error> {
        let _control = self.control.lock();
        let desk = self.desk.lock();
        let slot = self.users.slot_of(user).ok_or(Error::NotRegistered)?;
        let set = SetId { slot, since: self.users.since(slot), which };
        let lines = Lines { engine: self, desk: &desk, set, from };
        if matches!(lines.all(each), Next::Go) {
            each(Position::End, None, &format_args!(""));
        }
        Ok(())
    }
}

/// Whether more lines are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Next {
    Go,
    Stop,
}

/// Lines on their way into a reader's bytes.
pub(in crate::engine) struct Reading<'p, 'b> {
    pub(in crate::engine) place: &'p mut Place,
    pub(in crate::engine) bytes: &'b mut [u8],
    pub(in crate::engine) filled: usize,
}

impl Reading<'_, '_> {
    /// Takes what fits of a line, and remembers how far that is.
    pub(in crate::engine) fn line(
        &mut self,
        at: Position,
        spelling: Option<Spelling>,
        line: &fmt::Arguments<'_>,
    ) -> Next {
        if at == Position::End {
            *self.place = Place { at, progress: Progress::Done, spelling: None };
            return Next::Stop;
        }
        let begun = match self.place.progress {
            Progress::Bytes(bytes) if self.place.at == at => bytes,
            _ => 0,
        };
        let Some(room) = self.bytes.get_mut(self.filled..).filter(|room| !room.is_empty()) else {
            return Next::Stop;
        };
        let mut window = Window::new(begun, room);
        let _ = window.write_fmt(*line).and_then(|()| window.write_char('\n'));
        let (filled, is_full) = (window.filled(), window.is_full());
        self.filled += filled;
        let progress = if is_full { Progress::Bytes(begun + filled) } else { Progress::Done };
        *self.place = Place { at, progress, spelling };
        if is_full { Next::Stop } else { Next::Go }
    }
}

/// The lines of a set.
struct Lines<'e, P: Platform, M: Machine> {
    engine: &'e Engine<P, M>,
    desk: &'e Desk,
    set: SetId,
    from: Place,
}

/// Told of each line: where it is, how its function is spelt, what it says.
pub(in crate::engine) type Each<'a> = dyn FnMut(Position, Option<Spelling>, &fmt::Arguments<'_>) -> Next + 'a;

impl<P: Platform, M: Machine> Lines<'_, P, M> {
    fn all(&self, each: &mut Each<'_>) -> Next {
        let mut next = Next::Go;
        match self.from.at {
            Position::Start => next = self.marker().map_or(next, |marker| self.show_marker(marker, each)),
            Position::Marker(marker) if self.from.begun() => next = self.show_marker(marker, each),
            _ => {}
        }
        if next == Next::Go && !matches!(self.from.at, Position::Waiting(_) | Position::End) {
            next = self.functions(each);
        }
        if next == Next::Go && self.from.at != Position::End {
            next = self.waiting(each);
        }
        next
    }

    fn marker(&self) -> Option<Marker> {
        match self.everything() {
            true => Some(Marker::All),
            false => self.is_empty().then_some(Marker::Nothing),
        }
    }

    fn show_marker(&self, marker: Marker, each: &mut Each<'_>) -> Next {
        each(Position::Marker(marker), None, &format_args!("{}", marker.line(self.set.which)))
    }

    fn everything(&self) -> bool {
        self.engine.users.everything(self.set.slot, self.set.which)
    }

    fn is_empty(&self) -> bool {
        let sites = &self.engine.sites;
        let has = |module| sites.table(module).iter::<M>().any(|(.., state)| self.has(state));
        !sites.modules().any(has) && self.desk.waiting.since(self.set, 0).next().is_none()
    }

    fn has(&self, state: State) -> bool {
        let mask = match self.set.which {
            WhichSet::Filter => state.include,
            WhichSet::Notrace => state.exclude,
        };
        mask & 1 << self.set.slot != 0
    }

    fn functions(&self, each: &mut Each<'_>) -> Next {
        let sites = &self.engine.sites;
        let table = Functions::<M>::new(sites, &self.desk.book, None);
        if let Position::Function { module, site, name, func } = self.from.at
            && self.from.begun()
        {
            let next = match (table.line_of(module, site, name, func), self.from.spelling) {
                (Some(line), Some(spelling)) => self.function(&table, line, spelling, each),
                // It is gone, and its line ends here.
                _ => end_begun(self.from, each),
            };
            if next == Next::Stop {
                return next;
            }
        }
        if self.everything() {
            return Next::Go;
        }
        let is_behind = |line: &Line| match self.from.at {
            Position::Function { module, site, .. } => (line.module, line.index) > (module, site),
            _ => true,
        };
        let members = table.lines(None).filter(|line| {
            let first = line.name == 0;
            first && is_behind(line) && self.has(sites.table(line.module).state(line.index))
        });
        for line in members {
            let spelling = spelling(&table, line);
            if self.function(&table, line, spelling, each) == Next::Stop {
                return Next::Stop;
            }
        }
        Next::Go
    }

    fn function(
        &self,
        table: &Functions<'_, M>,
        line: Line,
        spelling: Spelling,
        each: &mut Each<'_>,
    ) -> Next {
        let Line { module, index: site, name, func, .. } = line;
        let word = Word::of(table, line, spelling);
        each(Position::Function { module, site, name, func }, Some(spelling), &format_args!("{word}"))
    }

    fn waiting(&self, each: &mut Each<'_>) -> Next {
        let waiting = &self.desk.waiting;
        let behind = match self.from.at {
            Position::Waiting(stamp) if self.from.begun() => {
                let is_there = waiting.since(self.set, stamp - 1).any(|(there, _)| there == stamp);
                if !is_there && end_begun(self.from, each) == Next::Stop {
                    return Next::Stop;
                }
                if is_there { stamp - 1 } else { stamp }
            }
            Position::Waiting(stamp) => stamp,
            _ => 0,
        };
        for (stamp, word) in waiting.since(self.set, behind) {
            if each(Position::Waiting(stamp), None, &format_args!("{word}")) == Next::Stop {
                return Next::Stop;
            }
        }
        Next::Go
    }
}

/// Ends a line that was begun and whose rest is not known any more.
pub(in crate::engine) fn end_begun(from: Place, each: &mut Each<'_>) -> Next {
    let Progress::Bytes(bytes) = from.progress else { return Next::Go };
    // So many bytes of it are skipped, whatever they are.
    each(from.at, from.spelling, &format_args!("{:bytes$}", ""))
}

/// The word that takes a function and no other.
fn spelling<M: Machine>(table: &Functions<'_, M>, line: Line) -> Spelling {
    let raw = table.name_of(line);
    let in_module = table.book().module_name(line.module).is_some();
    if is_plain(raw) && !in_module && table.book().functions_named(raw) == 1 {
        return Spelling::Name { name: NameForm::Raw, module: false, copy: None };
    }
    let by = |name, module, copy| Spelling::Name { name, module, copy };
    let plainly = [
        (!in_module).then_some(by(NameForm::Path, false, None)),
        Some(by(NameForm::Path, true, None)),
        Some(by(NameForm::Raw, true, None)),
    ];
    let takes = |spelling: &Spelling| takes_only(table, line, *spelling);
    if raw.is_empty() {
        return Spelling::Index(line.number + 1);
    }
    if let Some(found) = plainly.into_iter().flatten().find(takes) {
        return found;
    }
    // Of those with this name in this module, as `select` counts them: each address once.
    let mut last = None;
    let same = table.lines(None).take_while(|other| other.number <= line.number).filter(|other| {
        let is_one = other.module == line.module && table.name_of(*other) == raw && last != Some(other.func);
        if is_one {
            last = Some(other.func);
        }
        is_one
    });
    let numbered = by(NameForm::Raw, true, Some(same.count()));
    if takes(&numbered) { numbered } else { Spelling::Index(line.number + 1) }
}

/// Whether a name stands for itself in a word, and people read it as it is.
fn is_plain(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'$');
    !name.is_empty()
        && name.bytes().all(is_plain)
        && !name.bytes().all(|byte| byte.is_ascii_digit())
        && !name.starts_with("_R")
        && !name.starts_with("_ZN")
        && !name.contains(".llvm.")
}

/// Whether a word, read as anybody's would be, takes this function and no other.
fn takes_only<M: Machine>(table: &Functions<'_, M>, line: Line, spelling: Spelling) -> bool {
    let mut bytes = [0; LONGEST];
    let mut window = Window::new(0, &mut bytes);
    if write!(window, "{}", Word::of(table, line, spelling)).is_err() {
        return false;
    }
    let len = window.filled();
    let word = bytes.get(..len).and_then(|word| core::str::from_utf8(word).ok()).unwrap_or("");
    let Ok(word) = FilterLine::parse(word) else { return false };
    let mut is_this = false;
    let plain = !word.remove && word.command.is_none();
    let mut look = |number| is_this |= table.addr(number) == line.func;
    plain && select(&word, table, &mut look) == Ok(Selection::Functions(1)) && is_this
}

/// A function in a word.
struct Word<'a> {
    spelling: Spelling,
    raw: &'a str,
    module: &'a str,
}

impl<'a> Word<'a> {
    fn of<M: Machine>(table: &Functions<'a, M>, line: Line, spelling: Spelling) -> Self {
        let module = table.book().module_name(line.module).unwrap_or(KERNEL_MODULE);
        Self { spelling, raw: table.name_of(line), module }
    }
}

impl fmt::Display for Word<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, module, copy) = match self.spelling {
            Spelling::Index(number) => return write!(f, "{number}"),
            Spelling::Name { name, module, copy } => (name, module, copy),
        };
        if module {
            write!(f, "{}:", self.module)?;
        }
        match name {
            NameForm::Path => write_path(self.raw, f)?,
            NameForm::Raw => f.write_str(self.raw)?,
        }
        match copy {
            Some(copy) => write!(f, "#{copy}"),
            None => Ok(()),
        }
    }
}

/// A name as people read it.
pub(in crate::engine) fn write_path(raw: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    #[cfg(feature = "symbols")]
    return write!(f, "{}", crate::symbols::Demangled(raw));
    #[cfg(not(feature = "symbols"))]
    f.write_str(raw)
}
