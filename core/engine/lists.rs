//! The lists of functions as text, laid out as the files of ftrace are, so that what reads those reads these.
//!
//! A line of `enabled_functions` has the function, how many users it has, a letter for each of what it needs or has had, and
//! then its users: the trampoline that its sled calls and the callback, and for the graph both callbacks of each user.
//!
//! | letter | meaning |
//! |--------|---------|
//! | `R`    | the regs trampoline |
//! | `I`    | a user changes where it goes on |
//! | `D`    | a user has a trampoline of its own, which follows |
//! | `O`    | never: every prefixed site has its state, whatever its users are |
//! | `M`    | as `I` |

use core::fmt::{self, Write};

use super::table::{Functions, Line};
use super::words::read::{Each, Next, Reading, end_begun, write_path};
use super::{Control, Engine, Phase, patched};
use crate::machine::Machine;
use crate::ops::OpsFlags;
use crate::platform::Platform;
use crate::site::{Flavor, State};
use crate::users::{Mask, slots};
use crate::words::book::Book;
use crate::words::place::{Place, Position, Progress};
use crate::words::{Desk, List};

impl<P: Platform, M: Machine> Engine<P, M> {
    /// Shows a list. `out` is called under the tracer's lock: it must not ask the tracer for anything.
    ///
    /// # Errors
    /// What `out` refuses ends it early.
    pub fn show_list(&self, list: List, out: &mut dyn Write) -> fmt::Result {
        let mut result = Ok(());
        self.each_listed(list, Place::START, &mut |at, _, line| {
            if at != Position::End {
                result = out.write_fmt(*line).and_then(|()| out.write_char('\n'));
            }
            if result.is_ok() { Next::Go } else { Next::Stop }
        });
        result
    }

    /// Reads the next bytes of a list. How many; 0 at the end.
    pub fn read_list(&self, list: List, place: &mut Place, bytes: &mut [u8]) -> usize {
        let from = *place;
        let mut reading = Reading { place, bytes, filled: 0 };
        self.each_listed(list, from, &mut |at, spelling, line| reading.line(at, spelling, line));
        reading.filled
    }

    fn each_listed(&self, list: List, from: Place, each: &mut Each<'_>) {
        let control = self.control.lock();
        let desk = self.desk.lock();
        if from.at == Position::End {
            return;
        }
        let listing = Listing { engine: self, control: &control, desk: &desk, list };
        if listing.lines(from, each) == Next::Go {
            each(Position::End, None, &format_args!(""));
        }
    }
}

/// A list on its way out.
struct Listing<'e, P: Platform, M: Machine> {
    engine: &'e Engine<P, M>,
    control: &'e Control,
    desk: &'e Desk,
    list: List,
}

impl<P: Platform, M: Machine> Listing<'_, P, M> {
    fn lines(&self, from: Place, each: &mut Each<'_>) -> Next {
        let table = Functions::<M>::new(&self.engine.sites, &self.desk.book, None);
        let mut behind = None;
        if let Position::Function { module, site, name, func } = from.at {
            let last = table.line_of(module, site, name, func);
            if from.progress != Progress::Done {
                let next = match last {
                    Some(line) => self.line(&table, line, each),
                    None => end_begun(from, each),
                };
                if next == Next::Stop {
                    return next;
                }
            }
            behind = Some((module, site, name));
        }
        let is_behind =
            |line: &Line| behind.is_none_or(|behind| (line.module, line.index, line.name) > behind);
        for line in table.lines(None).filter(|line| is_behind(line) && self.has(line)) {
            if self.line(&table, line, each) == Next::Stop {
                return Next::Stop;
            }
        }
        Next::Go
    }

    fn state(&self, line: &Line) -> State {
        self.engine.sites.table(line.module).state(line.index)
    }

    fn has(&self, line: &Line) -> bool {
        let first = line.name == 0;
        match self.list {
            List::Available | List::AvailableAddrs => true,
            List::Enabled => first && self.state(line).current != Flavor::Off,
            List::Touched => first && self.state(line).touched,
        }
    }

    fn line(&self, table: &Functions<'_, M>, line: Line, each: &mut Each<'_>) -> Next {
        let Line { module, index: site, name, func, .. } = line;
        let at = Position::Function { module, site, name, func };
        let named =
            Named { raw: table.name_of(line), func: func.get(), module: table.book().module_name(module) };
        match self.list {
            List::Available => each(at, None, &format_args!("{named}")),
            List::AvailableAddrs => each(at, None, &format_args!("{:x} {named}", line.site.get())),
            List::Enabled | List::Touched => {
                let uses = self.uses(self.state(&line));
                each(at, None, &format_args!("{named} {uses}"))
            }
        }
    }

    fn uses(&self, state: State) -> Uses<'_, P, M> {
        let trampoline = match (self.control.phase, state.current) {
            (Phase::Ready { trampolines }, Flavor::Args) => {
                Some(M::trampolines(state.layout, &trampolines).args)
            }
            (Phase::Ready { trampolines }, Flavor::Regs) => {
                Some(M::trampolines(state.layout, &trampolines).regs)
            }
            _ => None,
        };
        let users = state.wanted_by(self.engine.users.all()) & patched(self.control);
        Uses { engine: self.engine, book: &self.desk.book, users, flavor: state.current, trampoline }
    }
}

/// A function, as lists name it.
struct Named<'a> {
    raw: &'a str,
    func: usize,
    module: Option<&'a str>,
}

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.raw {
            "" => write!(f, "{:#x}", self.func)?,
            raw => write_path(raw, f)?,
        }
        match self.module {
            Some(module) => write!(f, " [{module}]"),
            None => Ok(()),
        }
    }
}

/// What is behind a function in the list of those that are patched.
struct Uses<'e, P: Platform, M: Machine> {
    engine: &'e Engine<P, M>,
    book: &'e Book,
    users: Mask,
    flavor: Flavor,
    trampoline: Option<usize>,
}

impl<P: Platform, M: Machine> fmt::Display for Uses<'_, P, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let users = &self.engine.users;
        let code = |addr| Code { book: self.book, addr };
        let modifies = |slot| users.entry(slot).is_some_and(|ops| ops.flags().contains(OpsFlags::IPMODIFY));
        let modified = slots(self.users).any(modifies);
        let letter = |letter, shown| if shown { letter } else { "  " };
        let direct =
            slots(self.users).filter_map(|slot| users.entry(slot)).find(|ops| ops.direct_target() != 0);
        let r = letter(" R", self.flavor == Flavor::Regs);
        let (i, d, m) = (letter(" I", modified), letter(" D", direct.is_some()), letter(" M", modified));
        write!(f, "({}){r}{i}{d}  {m} ", self.users.count_ones())?;
        if let Some(ops) = direct {
            write!(f, "\tdirect(jmp)-->{}", code(ops.direct_target()))?;
        }
        let Some(trampoline) = self.trampoline.map(code) else { return Ok(()) };
        for ops in slots(self.users).filter_map(|slot| users.entry(slot)) {
            let callback = code((ops.func() as *const ()).addr());
            write!(f, "\ttramp: {trampoline} ({callback}) ->{callback}")?;
        }
        let mut graphs = slots(self.users).filter_map(|slot| users.graph(slot)).peekable();
        if graphs.peek().is_some() {
            write!(f, "\ttramp: {trampoline}\tsubops:")?;
        }
        for ops in graphs {
            let (entry, ret) = ops.callbacks();
            let (entry, ret) = (code((entry as *const ()).addr()), code((ret as *const ()).addr()));
            write!(f, " {{ent:{entry} ret:{ret}}}")?;
        }
        Ok(())
    }
}

/// An address in code: the function it is in, how far in, how long that is.
struct Code<'e> {
    book: &'e Book,
    addr: usize,
}

impl fmt::Display for Code<'_> {
    #[cfg(feature = "symbols")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((symbol, module)) = self.book.lookup(self.addr) else {
            return write!(f, "{:#x}", self.addr);
        };
        write!(f, "{}+{:#x}/{:#x}", symbol.demangled(), symbol.offset, symbol.size)?;
        match module {
            Some(module) => write!(f, " [{module}]"),
            None => Ok(()),
        }
    }

    #[cfg(not(feature = "symbols"))]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let _ = self.book;
        write!(f, "{:#x}", self.addr)
    }
}
