//! Words that are written to a user's set. Under the lock, in task context.
//!
//! Every word is read and looked up before anything changes. What they take is marked in the scratch slot, as for any change of
//! a set, and planned and carried out from there: so all words of one text take effect together or not at all.

use super::table::{Functions, Line};
use super::update::Change;
use super::{Engine, Error, SetChange, WhichSet};
use crate::filter_text::{Copies, FilterLine, ModuleScope, NameTarget, Target, words};
use crate::graph::GraphOps;
use crate::machine::Machine;
use crate::ops::Ops;
use crate::platform::Platform;
use crate::select::{Candidate, Selection, candidates, select};
use crate::site::State;
use crate::sites::ModuleId;
use crate::users::{Mask, SCRATCH, User};
use crate::words::waiting::{Draft, SetId, Waiting};
use crate::words::{Cause, Desk, LONGEST_WAITING, MAX_WAITING, Marker, Mode, ModuleNames, WordError};

mod list;
#[cfg(all(test, feature = "symbols"))]
mod model;
pub(super) mod read;
#[cfg(all(test, feature = "symbols"))]
mod tests;
#[cfg(all(test, feature = "symbols"))]
mod world;

impl<P: Platform, M: Machine> Engine<P, M> {
    /// Gives the kernel's functions their names: once, when symbols are there. Until then only wildcards and indices take any.
    #[cfg(feature = "symbols")]
    pub fn set_symbols(&self, symbols: crate::symbols::Symbols<'static>) {
        let _control = self.control.lock();
        self.desk.lock().book.open(ModuleId::KERNEL, ModuleNames::new("").with_symbols(symbols));
    }

    /// Writes words to a set of a user of entries: all of them or none, in one update. `ftrace_set_filter_words` has the rules.
    ///
    /// # Errors
    /// See there.
    pub fn write_ops_words(
        &self,
        ops: &'static Ops<M::Regs>,
        which: WhichSet,
        text: &str,
        mode: Mode,
    ) -> Result<(), WordError> {
        self.write_words(User::Entry(ops), which, text, mode, Commands::Refused)
    }

    /// The same, with words that have commands left out: somebody else carries those out.
    ///
    /// # Errors
    /// As for [`write_ops_words`](Self::write_ops_words).
    pub(crate) fn write_ops_words_beside_commands(
        &self,
        ops: &'static Ops<M::Regs>,
        which: WhichSet,
        text: &str,
        mode: Mode,
    ) -> Result<(), WordError> {
        self.write_words(User::Entry(ops), which, text, mode, Commands::LeftOut)
    }

    /// The same for a graph user.
    ///
    /// # Errors
    /// See there.
    pub fn write_graph_words(
        &self,
        ops: &'static GraphOps<M::Regs>,
        which: WhichSet,
        text: &str,
        mode: Mode,
    ) -> Result<(), WordError> {
        self.write_words(User::Graph(ops), which, text, mode, Commands::Refused)
    }

    fn write_words(
        &self,
        user: User<M::Regs>,
        which: WhichSet,
        text: &str,
        mode: Mode,
        commands: Commands,
    ) -> Result<(), WordError> {
        let of_no_word = |error| WordError { column: 0, start: 0, end: 0, cause: Cause::Engine(error) };
        let control = self.control.lock();
        let trampolines = self.ready(&control).map_err(of_no_word)?;
        let mut desk = self.desk.lock();
        let Desk { book, waiting } = &mut *desk;
        waiting.retain(|owner| self.is_there(owner));

        let attached = self.users.slot_of(user);
        let slot = match attached {
            Some(slot) => slot,
            None => self.attach(user).map_err(of_no_word)?,
        };
        let set = SetId { slot, since: self.users.since(slot), which };
        self.copy_sets(slot, SCRATCH);
        let table = Functions::<M>::new(&self.sites, book, None);
        let mut taking =
            Taking { engine: self, table: &table, waiting, user, set, gives_way: false, commands };
        let draft = taking.text(text, mode);
        let done = draft.and_then(|draft| {
            // The text first, as for any change of a set.
            let change = Change { sets: Some(slot), ..Change::none(&control) };
            let updated = self.update(change, trampolines);
            updated.map(|()| draft).map_err(|error| blame(&table, text, error).unwrap_or(of_no_word(error)))
        });
        match &done {
            Ok(_) => self.copy_sets(SCRATCH, slot),
            Err(_) if attached.is_none() => self.detach(slot),
            Err(_) => {}
        }
        self.forget_sets(SCRATCH);
        done.map(|draft| draft.commit(waiting))
    }

    /// The functions that a word may mean, for people to choose from: see [`candidates`].
    ///
    /// # Errors
    /// What is wrong with the word.
    pub fn word_candidates(
        &self,
        word: &str,
        mut each: impl FnMut(Candidate<'_>),
    ) -> Result<(), crate::filter_text::ParseError> {
        let line = FilterLine::parse(word)?;
        let _control = self.control.lock();
        let desk = self.desk.lock();
        candidates(&line, &Functions::<M>::new(&self.sites, &desk.book, None), &mut |found| each(found));
        Ok(())
    }

    /// Gives `to` the sets of `from`, in one update; words that wait for modules stay with `from`. `from` gets a slot if it has none.
    pub(crate) fn adopt_sets(&self, from: &'static Ops<M::Regs>, to: User<M::Regs>) -> Result<(), Error> {
        let control = self.control.lock();
        let trampolines = self.ready(&control)?;
        let slot_of = |user| match self.users.slot_of(user) {
            Some(slot) => Ok((slot, false)),
            None => self.attach(user).map(|slot| (slot, true)),
        };
        let (from, _) = slot_of(User::Entry(from))?;
        let (to, is_new) = slot_of(to)?;
        self.copy_sets(from, SCRATCH);
        let updated = self.update(Change { sets: Some(to), ..Change::none(&control) }, trampolines);
        match updated {
            Ok(_) => self.copy_sets(SCRATCH, to),
            Err(_) if is_new => self.detach(to),
            Err(_) => {}
        }
        self.forget_sets(SCRATCH);
        updated
    }

    /// Whether the user whose set this was has its slot still.
    fn is_there(&self, set: SetId) -> bool {
        self.users.user(set.slot).is_some() && self.users.since(set.slot) == set.since
    }

    /// A set is given another content, so no word waits for it any more.
    pub(super) fn forget_waiting(&self, slot: usize, which: WhichSet, change: SetChange<'_>) {
        if matches!(change, SetChange::All | SetChange::Clear | SetChange::Replace(_)) {
            self.desk.lock().waiting.retain(|set| (set.slot, set.which) != (slot, which));
        }
    }

    /// Names a module, and gives its functions to the sets whose words have waited for it. How many words took some, and how many
    /// were meant for it and took none. Before its sites are patched.
    pub(super) fn introduce(&self, module: ModuleId, names: ModuleNames) -> (usize, usize) {
        let mut desk = self.desk.lock();
        desk.book.open(module, names);
        let table = Functions::<M>::new(&self.sites, &desk.book, Some(module));
        let (mut taken, mut refused) = (0, 0);
        for (set, word) in desk.waiting.all().filter(|(set, _)| self.is_there(*set)) {
            let Ok(line) = FilterLine::parse(word) else { continue };
            let mut put = |number| self.put(table.line(number), (set.slot, set.which), Membership::In);
            match select(&line, &table, &mut put) {
                Ok(Selection::Functions(_)) => taken += 1,
                Ok(Selection::Pending) => {}
                Err(_) => refused += 1,
            }
        }
        (taken, refused)
    }

    /// Puts a function into a set, or takes it out.
    fn put(&self, line: Option<Line>, (slot, which): (usize, WhichSet), membership: Membership) {
        let Some(line) = line else { return };
        let table = self.sites.table(line.module);
        let state = table.state(line.index);
        let changed = |mask: Mask| match membership {
            Membership::In => mask | 1 << slot,
            Membership::Out => mask & !(1 << slot),
        };
        let state = match which {
            WhichSet::Filter => State { include: changed(state.include), ..state },
            WhichSet::Notrace => State { exclude: changed(state.exclude), ..state },
        };
        table.set_state(line.index, state);
    }
}

/// Whether a function is to be in a set.
#[derive(Clone, Copy)]
enum Membership {
    In,
    Out,
}

/// What becomes of words that have commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Commands {
    Refused,
    LeftOut,
}

/// Words on their way into the scratch slot.
struct Taking<'e, P: Platform, M: Machine> {
    engine: &'e Engine<P, M>,
    table: &'e Functions<'e, M>,
    waiting: &'e Waiting,
    user: User<M::Regs>,
    set: SetId,
    /// The filter is everything, and stops being that with the first function that is named.
    gives_way: bool,
    commands: Commands,
}

impl<P: Platform, M: Machine> Taking<'_, P, M> {
    /// Takes all words of a text. What they leave waiting is the result.
    fn text<'t>(&mut self, text: &'t str, mode: Mode) -> Result<Draft<'t>, WordError> {
        let which = self.set.which;
        let mut draft = self.waiting.draft(self.set, mode == Mode::Append);
        match mode {
            Mode::Replace => self.engine.set(SCRATCH, which, SetChange::Clear),
            Mode::Append => self.gives_way = which == WhichSet::Filter && self.is_everything(),
        }
        let mut words = words(text);
        while let Some((at, word)) = words.next_at() {
            let error = |(column, cause)| WordError { column, start: at.start, end: at.end, cause };
            if let Some(marker) = text.get(at.start..).and_then(|rest| Marker::starting(rest, which)) {
                words.skip_to(at.start + marker.line(which).len());
                if marker == Marker::All {
                    self.everything().map_err(|cause| error((at.start, cause)))?;
                }
                continue;
            }
            let line = word.map_err(|cause| error((cause.column(), Cause::Parse(cause))))?;
            self.word(&line, &mut draft).map_err(error)?;
        }
        if which == WhichSet::Filter && self.is_everything() {
            // The members stay behind "everything": the traced path may look at them until it sees that.
            let copied = |mask: Mask| mask & !(1 << SCRATCH) | (mask >> self.set.slot & 1) << SCRATCH;
            self.engine.for_each_state(|_, _, state| State { include: copied(state.include), ..state });
        }
        Ok(draft)
    }

    fn is_everything(&self) -> bool {
        self.engine.users.everything(SCRATCH, self.set.which)
    }

    fn change(&mut self, change: SetChange<'_>) {
        self.engine.set(SCRATCH, self.set.which, change);
        self.gives_way = false;
    }

    fn check(&self, change: SetChange<'_>) -> Result<(), Cause> {
        self.engine.check(self.user, self.set.which, change).map_err(Cause::Engine)
    }

    fn everything(&mut self) -> Result<(), Cause> {
        self.check(SetChange::All)?;
        self.change(SetChange::All);
        Ok(())
    }

    fn word<'t>(&mut self, line: &FilterLine<'t>, draft: &mut Draft<'t>) -> Result<(), (usize, Cause)> {
        match line.command {
            Some(_) if self.commands == Commands::LeftOut => return Ok(()),
            Some(command) => return Err((command.column, Cause::Command)),
            None => {}
        }
        if means_everything(line) {
            if line.remove {
                self.change(SetChange::Clear);
                return Ok(());
            }
            return self.everything().map_err(|cause| (line.column, cause));
        }
        if line.remove { self.remove(line, draft) } else { self.add(line, draft) }
    }

    fn add<'t>(&mut self, line: &FilterLine<'t>, draft: &mut Draft<'t>) -> Result<(), (usize, Cause)> {
        self.check(SetChange::Add(&[])).map_err(|cause| (line.column, cause))?;
        if self.gives_way {
            self.change(SetChange::Clear);
        }
        // A word that waits somewhere does so here too, whether or not its module is there: so what was read of a set can be
        // written, and waits again.
        let waits = self.waiting.all().any(|(_, word)| word == line.text());
        let waits = match self.select(line, Membership::In) {
            Ok(Selection::Pending) => true,
            Ok(Selection::Functions(_)) => waits,
            Err(_) if waits => true,
            Err(error) => return Err(error),
        };
        if waits {
            let word = line.text();
            if word.len() > LONGEST_WAITING {
                let cause = Cause::WaitingTooLong { len: word.len(), max: LONGEST_WAITING };
                return Err((line.column, cause));
            }
            if !draft.add(self.waiting, word) {
                return Err((line.column, Cause::WaitingFull { max: MAX_WAITING }));
            }
        }
        Ok(())
    }

    fn remove<'t>(&mut self, line: &FilterLine<'t>, draft: &mut Draft<'t>) -> Result<(), (usize, Cause)> {
        let forgotten = match awaited(line) {
            Some((target, module)) => {
                let same_word = line.text().strip_prefix('!');
                let every_name = is_star(target);
                draft.forget(self.waiting, |word| {
                    let of_module = || {
                        let there = FilterLine::parse(word).ok();
                        there.and_then(|there| awaited(&there).map(|(_, m)| m == module)).unwrap_or(false)
                    };
                    Some(word) == same_word || every_name && of_module()
                })
            }
            None => 0,
        };
        if self.is_everything() {
            // All but some is a set of its own.
            self.change(SetChange::Remove(&[]));
        }
        match self.select(line, Membership::Out) {
            Ok(Selection::Functions(_)) => Ok(()),
            _ if forgotten > 0 => Ok(()),
            Ok(Selection::Pending) => Err((line.column, Cause::NotWaiting)),
            Err(error) => Err(error),
        }
    }

    fn select(&self, line: &FilterLine<'_>, membership: Membership) -> Result<Selection, (usize, Cause)> {
        let mut put = |number| {
            self.engine.put(self.table.line(number), (SCRATCH, self.set.which), membership);
        };
        select(line, self.table, &mut put).map_err(|error| (error.column(), Cause::Select(error)))
    }
}

/// The word that takes the function which the engine objects to.
fn blame<M: Machine>(table: &Functions<'_, M>, text: &str, error: Error) -> Option<WordError> {
    let Error::IpModifyConflict { func } = error else { return None };
    let mut words = words(text);
    while let Some((at, word)) = words.next_at() {
        let Ok(line) = word else { continue };
        let mut takes = false;
        let mut look = |number| takes |= table.line(number).is_some_and(|line| line.func == func);
        if !line.remove && select(&line, table, &mut look).is_ok() && takes {
            return Some(WordError {
                column: at.start,
                start: at.start,
                end: at.end,
                cause: Cause::Engine(error),
            });
        }
    }
    None
}

/// What a word means and which module it waits for, if it can wait.
fn awaited<'l, 't>(line: &'l FilterLine<'t>) -> Option<(&'l NameTarget<'t>, &'t str)> {
    let Target::Name(target) = &line.target else { return None };
    match target.module {
        ModuleScope::WhenLoaded { module, inverted: false } => Some((target, module.pattern.text())),
        _ => None,
    }
}

/// Whether a word is a lone star: everything, those of modules loaded later included.
fn means_everything(line: &FilterLine<'_>) -> bool {
    let Target::Name(target) = &line.target else { return false };
    is_star(target) && target.module == ModuleScope::Everywhere
}

fn is_star(target: &NameTarget<'_>) -> bool {
    let any_copy = matches!(target.copies, Copies::Unstated | Copies::All);
    target.file.is_none() && any_copy && target.name.pattern.text().bytes().all(|byte| byte == b'*')
}
