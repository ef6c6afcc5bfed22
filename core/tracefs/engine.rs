//! The [`Functions`] of a real engine.
//!
//! What the filter files say is kept by a user of entries that is never registered, the keeper: tracers come and go, and a user
//! that goes loses its sets. A tracer that comes is given the keeper's sets first ([`Functions::prepare`]), and one that is there gets
//! them with each write. Words that wait for a module are the keeper's alone: after modules were loaded,
//! [`EngineFunctions::refresh`] hands their functions on.
//!
//! `set_graph_function` and `set_graph_notrace` are the filter and the notrace set of another keeper. Its functions are copied to lent
//! memory, where the limits look for them. So it is with sets of tasks (`sets`).
//!
//! Function commands are a user of their own ([`Commands`]).
//!
//! An instance ([`EngineInstance`]) has a keeper, tracers, limits and commands of its own. What it has not, it does not have a user for;
//! limits that are set in the top directory alone are set in its limits as well.

use core::fmt;

use spin::Mutex;

use super::commands::Commands;
use super::control::{FilterFile, Functions, FunctionsError, PidFile};
use super::recording::RingTracing;
use super::tracing::{Shown, TextPlace, Tracer};
use super::{Cause, Refused};
use crate::engine::{Engine, Error, WhichSet};
use crate::filter_text::words;
use crate::graph::GraphOps;
use crate::limits::{LimitOptions, Limits};
use crate::machine::Machine;
use crate::ops::Ops;
use crate::platform::Platform;
use crate::profile::{ProfileRow, Profiler, write_profile_head, write_profile_row};
use crate::text::Resolve;
use crate::users::User;
use crate::words::{List, Marker, Mode, Place};

mod instance;
mod sets;

pub use instance::EngineInstance;
pub use sets::{FileSets, SetsMemory};

use sets::Sets;

/// The users that the files speak of. All are kept in `static`s.
pub struct FilesUsers<P: Platform, M: Machine> {
    /// Keeps the sets of the filter files; never registered. Its callback is never called, and its filter is what the files say first.
    pub keeper: &'static Ops<M::Regs>,
    /// The same for `set_graph_function` and `set_graph_notrace`. `None` for an instance.
    pub graph_keeper: Option<&'static Ops<M::Regs>>,
    /// The function tracer.
    pub function: &'static Ops<M::Regs>,
    /// The function_graph tracer.
    pub graph: &'static GraphOps<M::Regs>,
    /// What both tracers ask about their calls.
    pub limits: &'static Limits,
    /// Limits of instances, in which `set_graph_function`, `set_graph_notrace`, `max_graph_depth` and `tracing_thresh` are set too.
    pub followers: &'static [&'static Limits],
    /// The profiler. `None` for an instance.
    pub profiler: Option<&'static Profiler<P, M::Regs>>,
    /// The function commands, and what they switch.
    pub commands: &'static Commands<M::Regs>,
    /// See `commands`.
    pub tracing: &'static RingTracing,
    /// Names, for the profiler's tables and for commands.
    pub names: &'static (dyn Resolve + Sync),
}

impl<P: Platform, M: Machine> fmt::Debug for FilesUsers<P, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FilesUsers").finish_non_exhaustive()
    }
}

/// The profiler, and which of its tables is being read.
#[derive(Debug)]
struct Profile {
    is_on: bool,
    /// Lent, to sort a table in.
    rows: &'static mut [ProfileRow],
    /// The table that is in `rows`, how many rows it has, and the place of its reader.
    cpu: usize,
    count: usize,
    stamp: u64,
}

/// See the module.
pub struct EngineFunctions<P: Platform, M: Machine> {
    engine: &'static Engine<P, M>,
    users: FilesUsers<P, M>,
    /// The tracer that was prepared last.
    tracer: Mutex<Tracer>,
    sets: Mutex<Option<Sets>>,
    profile: Mutex<Option<Profile>>,
}

impl<P: Platform, M: Machine> fmt::Debug for EngineFunctions<P, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineFunctions").finish_non_exhaustive()
    }
}

impl<P: Platform, M: Machine> EngineFunctions<P, M> {
    /// The functions of an engine.
    pub const fn new(engine: &'static Engine<P, M>, users: FilesUsers<P, M>) -> Self {
        Self {
            engine,
            users,
            tracer: Mutex::new(Tracer::Nop),
            sets: Mutex::new(None),
            profile: Mutex::new(None),
        }
    }

    /// Lends the memory for sets of tasks and for the functions of `set_graph_function` and `set_graph_notrace`: until then those files
    /// can be emptied only.
    pub fn lend_sets(&self, memory: SetsMemory) {
        *self.sets.lock() = Some(Sets::new(memory));
    }

    /// Lends rows to sort a CPU's profile in: one for each function that its table has room for. The tables themselves are lent by
    /// [`Profiler::lend`]. Until then there is no profiler.
    pub fn lend_profile_rows(&self, rows: &'static mut [ProfileRow]) {
        *self.profile.lock() = Some(Profile { is_on: false, rows, cpu: 0, count: 0, stamp: 0 });
    }

    /// Gives the tracer in use the functions of modules that came meanwhile. Task context.
    ///
    /// # Errors
    /// What goes wrong with the text.
    pub fn refresh(&self) -> Result<(), Error> {
        self.publish(WhichSet::Filter)?;
        self.publish(WhichSet::Notrace)?;
        let tracer = *self.tracer.lock();
        self.adopt(tracer)?;
        if let Some(profiler) = self.users.profiler.filter(|_| self.profiles()) {
            self.engine.adopt_sets(self.users.keeper, User::Graph(profiler.ops()))?;
        }
        Ok(())
    }

    /// Forgets all that the files were told: for an instance that is removed, whose tracer has stopped.
    fn forget(&self) {
        let FilesUsers { keeper, function, graph, commands, limits, .. } = self.users;
        commands.forget(self.engine);
        *self.tracer.lock() = Tracer::Nop;
        // Users that were given sets and never came, too. Who is not there has none, and if something is wrong with the text, they are out
        // even so.
        let _ = self.engine.unregister_ops(keeper);
        let _ = self.engine.unregister_ops(function);
        let _ = self.engine.unregister_graph(graph);
        // There is room for no set.
        let _ = self.set_pids(PidFile::Pid, None);
        let _ = self.set_pids(PidFile::NotracePid, None);
        limits.set_options(LimitOptions::all());
    }

    fn adopt(&self, tracer: Tracer) -> Result<(), Error> {
        let user = match tracer {
            Tracer::Nop => return Ok(()),
            Tracer::Function => User::Entry(self.users.function),
            Tracer::FunctionGraph => User::Graph(self.users.graph),
        };
        self.engine.adopt_sets(self.users.keeper, user)
    }

    fn which(&self, file: FilterFile) -> Result<(&'static Ops<M::Regs>, WhichSet), FunctionsError> {
        let graphs = self.users.graph_keeper.ok_or(FunctionsError::NotSupported);
        match file {
            FilterFile::Filter => Ok((self.users.keeper, WhichSet::Filter)),
            FilterFile::Notrace => Ok((self.users.keeper, WhichSet::Notrace)),
            FilterFile::GraphFunction => Ok((graphs?, WhichSet::Filter)),
            FilterFile::GraphNotrace => Ok((graphs?, WhichSet::Notrace)),
        }
    }

    /// Limits that hold for the top directory's tracer, and for those of instances.
    fn graph_limits(&self) -> impl Iterator<Item = &'static Limits> {
        core::iter::once(self.users.limits).chain(self.users.followers.iter().copied())
    }

    /// Limits that hold for the tracer of these files, and for the profiler.
    fn own_limits(&self) -> impl Iterator<Item = &'static Limits> {
        core::iter::once(self.users.limits).chain(self.users.profiler.map(Profiler::limits))
    }

    /// Lets the limits see a set of the graph keeper.
    fn publish(&self, which: WhichSet) -> Result<(), Error> {
        let Some(keeper) = self.users.graph_keeper else { return Ok(()) };
        let mut sets = self.sets.lock();
        let Some(sets) = &mut *sets else { return Ok(()) };
        // What the set before the last one used is filled next.
        self.engine.synchronize();
        // SAFETY: all limits have been given the set that came after it, callbacks look at the sets within a section, and the line
        // above has waited for those that began before.
        let set = unsafe { sets.functions(which, |room| self.engine.members(keeper, which, room)) };
        match set {
            // Nothing was ever written.
            Err(Error::NotRegistered) => return Ok(()),
            Err(error) => return Err(error),
            Ok(set) if which == WhichSet::Filter => {
                self.graph_limits().for_each(|limits| limits.set_graph_function(set));
            }
            Ok(set) => self.graph_limits().for_each(|limits| limits.set_graph_notrace(set)),
        }
        self.engine.path_changed();
        Ok(())
    }

    fn limit(&self, option: LimitOptions) -> bool {
        self.users.limits.options().contains(option)
    }

    fn set_limit(&self, option: LimitOptions, on: bool) {
        for limits in self.own_limits() {
            let mut options = limits.options();
            options.set(option, on);
            limits.set_options(options);
        }
        self.engine.path_changed();
    }
}

fn has_commands(text: &str) -> bool {
    words(text).any(|word| word.is_ok_and(|line| line.command.is_some()))
}

/// Whether anything is said of functions, understood or not.
fn has_functions(text: &str) -> bool {
    words(text).any(|word| word.map_or(true, |line| line.command.is_none()))
}

impl<P: Platform, M: Machine> Functions for EngineFunctions<P, M> {
    fn write_words(&self, file: FilterFile, text: &str, mode: Mode) -> Result<(), Refused> {
        let (keeper, which) = self.which(file)?;
        let is_graphs = matches!(file, FilterFile::GraphFunction | FilterFile::GraphNotrace);
        if is_graphs && !text.trim_ascii().is_empty() {
            let room = self.sets.lock().as_ref().map(|sets| sets.room(which));
            let max = room.ok_or(FunctionsError::NotSupported)?;
            let count = self.engine.stats().sites;
            // Then no text can be too much.
            if count > max {
                return Err(FunctionsError::TooMany { count, max }.into());
            }
        }
        let functions = || {
            // An empty filter file is everything, whatever commands it has.
            let is_empty = mode == Mode::Replace && !has_functions(text);
            let text = if is_empty && which == WhichSet::Filter { Marker::All.line(which) } else { text };
            if file == FilterFile::Filter {
                self.engine.write_ops_words_beside_commands(keeper, which, text, mode)?;
            } else {
                self.engine.write_ops_words(keeper, which, text, mode)?;
            }
            let done = if is_graphs { self.publish(which) } else { self.refresh() };
            done.map_err(|error| Refused::at(0, Cause::Functions(error.into())))
        };
        if file == FilterFile::Filter && has_commands(text) {
            return self.users.commands.write(self.engine, self.users.tracing, text, functions);
        }
        functions()
    }

    fn read_words(
        &self,
        file: FilterFile,
        place: &mut Place,
        bytes: &mut [u8],
    ) -> Result<usize, FunctionsError> {
        let (keeper, which) = self.which(file)?;
        match self.engine.read_ops_words(keeper, which, place, bytes) {
            // Nothing was written yet: no words make it a user with a slot.
            Err(Error::NotRegistered) => {
                let made = self.engine.write_ops_words(keeper, which, "", Mode::Append);
                made.map_err(|_| FunctionsError::NotSupported)?;
                Ok(self.engine.read_ops_words(keeper, which, place, bytes)?)
            }
            read => Ok(read?),
        }
    }

    fn read_list(&self, list: List, place: &mut Place, bytes: &mut [u8]) -> usize {
        self.engine.read_list(list, place, bytes)
    }

    fn next_command(&self, place: &mut TextPlace, out: &mut dyn fmt::Write) -> Shown {
        self.users.commands.next(place, self.users.names, out)
    }

    fn pids(&self, file: PidFile, each: &mut dyn FnMut(u32)) -> bool {
        let sets = self.sets.lock();
        let pids = sets.as_ref().and_then(|sets| sets.listed(file));
        pids.into_iter().flatten().for_each(|pid| each(*pid));
        pids.is_some()
    }

    fn set_pids(&self, file: PidFile, pids: Option<&[u32]>) -> Result<(), FunctionsError> {
        let mut sets = self.sets.lock();
        let Some(sets) = &mut *sets else {
            return if pids.is_none() { Ok(()) } else { Err(FunctionsError::NotSupported) };
        };
        self.engine.synchronize();
        // SAFETY: as in `publish`; the limits get the set at once, and nobody is between.
        let set = unsafe { sets.tasks(file, pids) }?;
        for limits in self.own_limits() {
            match file {
                PidFile::Pid => limits.set_pids(set),
                PidFile::NotracePid => limits.set_notrace_pids(set),
            }
        }
        self.engine.path_changed();
        Ok(())
    }

    fn max_depth(&self) -> u32 {
        self.users.limits.max_depth()
    }

    fn set_max_depth(&self, depth: u32) {
        self.graph_limits().for_each(|limits| limits.set_max_depth(depth));
        self.engine.path_changed();
    }

    fn thresh_ns(&self) -> u64 {
        self.users.limits.thresh_ns()
    }

    fn set_thresh_ns(&self, ns: u64) {
        self.graph_limits().for_each(|limits| limits.set_thresh_ns(ns));
        self.engine.path_changed();
    }

    fn sleep_time(&self) -> bool {
        self.limit(LimitOptions::SLEEP_TIME)
    }

    fn set_sleep_time(&self, on: bool) {
        self.set_limit(LimitOptions::SLEEP_TIME, on);
    }

    fn graph_time(&self) -> bool {
        self.users
            .profiler
            .is_some_and(|profiler| profiler.limits().options().contains(LimitOptions::GRAPH_TIME))
    }

    fn set_graph_time(&self, on: bool) {
        let Some(limits) = self.users.profiler.map(Profiler::limits) else { return };
        let mut options = limits.options();
        options.set(LimitOptions::GRAPH_TIME, on);
        limits.set_options(options);
    }

    fn set_irqs(&self, on: bool) {
        self.set_limit(LimitOptions::IRQS, on);
    }

    fn prepare(&self, tracer: Tracer) -> Result<(), FunctionsError> {
        self.adopt(tracer)?;
        *self.tracer.lock() = tracer;
        Ok(())
    }

    fn profiles(&self) -> bool {
        self.profile.lock().as_ref().is_some_and(|profile| profile.is_on)
    }

    fn set_profiles(&self, on: bool) -> Result<(), FunctionsError> {
        let mut profile = self.profile.lock();
        let (Some(profile), Some(profiler)) = (&mut *profile, self.users.profiler) else {
            return if on { Err(FunctionsError::NotSupported) } else { Ok(()) };
        };
        if profile.is_on == on {
            return Ok(());
        }
        let ops = profiler.ops();
        if on {
            profiler.clear();
            profile.stamp += 1;
            self.engine.adopt_sets(self.users.keeper, User::Graph(ops))?;
            self.engine.register_graph(ops)?;
            profile.is_on = true;
            return Ok(());
        }
        // It is out even if something goes wrong.
        profile.is_on = false;
        Ok(self.engine.unregister_graph(ops)?)
    }

    fn next_profile(
        &self,
        cpu: usize,
        place: &mut TextPlace,
        out: &mut dyn fmt::Write,
    ) -> Result<Shown, FunctionsError> {
        let mut profile = self.profile.lock();
        let profile = profile.as_mut().zip(self.users.profiler).ok_or(FunctionsError::NotSupported)?;
        let (profile, profiler) = profile;
        if place.stamp != profile.stamp || cpu != profile.cpu || place.stamp == 0 {
            profile.count = profiler.rows(cpu, profile.rows)?.len();
            profile.cpu = cpu;
            profile.stamp += 1;
            place.stamp = profile.stamp;
        }
        let written = match place.texts.checked_sub(1) {
            None => write_profile_head(out),
            Some(row) => {
                let rows = profile.rows.get(..profile.count).unwrap_or(&[]);
                let Some(row) = rows.get(row as usize) else { return Ok(Shown::End) };
                write_profile_row(out, row, self.users.names)
            }
        };
        if written.is_ok() {
            place.texts += 1;
        }
        Ok(Shown::Text)
    }
}

#[cfg(test)]
mod tests;
