//! The [`Functions`] of a real engine.
//!
//! What the filter files say is kept by a user of entries that is never registered, the keeper: tracers come and go, and a user
//! that goes loses its sets. A tracer that comes is given the keeper's sets first ([`Functions::prepare`]), and one that is there gets
//! them with each write. Words that wait for a module are the keeper's alone: after modules were loaded,
//! [`EngineFunctions::refresh`] hands their functions on.
//!
//! The limits are kept, for a tracer that asks them (depth, threshold, interrupts, sleep-time, graph-time); this crate's own
//! function_graph does not.
//!
//! Function commands, the profiler, `set_graph_function`, `set_graph_notrace` and sets of tasks are refused
//! ([`FunctionsError::NotSupported`], or the word's own cause): nothing here carries them out.

use core::fmt;

use spin::Mutex;

use super::control::{FilterFile, Functions, FunctionsError, PidFile};
use super::tracing::{Shown, TextPlace, Tracer};
use super::{Cause, Refused};
use crate::engine::{Engine, Error, WhichSet};
use crate::graph::GraphOps;
use crate::limits::{LimitOptions, Limits};
use crate::machine::Machine;
use crate::ops::Ops;
use crate::platform::Platform;
use crate::regs::Regs;
use crate::users::User;
use crate::words::{List, Mode, Place};

/// The users that the files speak of. All are kept in `static`s.
#[derive(Debug)]
pub struct FilesUsers<R: Regs> {
    /// Keeps the sets of the filter files; never registered. Its callback is never called, and its filter is what the files say first.
    pub keeper: &'static Ops<R>,
    /// The function tracer.
    pub function: &'static Ops<R>,
    /// The function_graph tracer.
    pub graph: &'static GraphOps<R>,
    /// What a tracer may ask about its calls.
    pub limits: &'static Limits,
}

/// See the module.
#[derive(Debug)]
pub struct EngineFunctions<P: Platform, M: Machine> {
    engine: &'static Engine<P, M>,
    users: FilesUsers<M::Regs>,
    /// The tracer that was prepared last.
    tracer: Mutex<Tracer>,
}

impl<P: Platform, M: Machine> EngineFunctions<P, M> {
    /// The functions of an engine.
    pub const fn new(engine: &'static Engine<P, M>, users: FilesUsers<M::Regs>) -> Self {
        Self { engine, users, tracer: Mutex::new(Tracer::Nop) }
    }

    /// Gives the tracer in use the functions of modules that came meanwhile. Task context.
    ///
    /// # Errors
    /// What goes wrong with the text.
    pub fn refresh(&self) -> Result<(), Error> {
        let tracer = *self.tracer.lock();
        self.adopt(tracer)
    }

    fn adopt(&self, tracer: Tracer) -> Result<(), Error> {
        let user = match tracer {
            Tracer::Nop => return Ok(()),
            Tracer::Function => User::Entry(self.users.function),
            Tracer::FunctionGraph => User::Graph(self.users.graph),
        };
        self.engine.adopt_sets(self.users.keeper, user)
    }

    fn which(file: FilterFile) -> Option<WhichSet> {
        match file {
            FilterFile::Filter => Some(WhichSet::Filter),
            FilterFile::Notrace => Some(WhichSet::Notrace),
            FilterFile::GraphFunction | FilterFile::GraphNotrace => None,
        }
    }

    fn limit(&self, option: LimitOptions) -> bool {
        self.users.limits.options().contains(option)
    }

    fn set_limit(&self, option: LimitOptions, on: bool) {
        let mut options = self.users.limits.options();
        options.set(option, on);
        self.users.limits.set_options(options);
    }
}

/// An empty filter file is everything.
const EVERYTHING: &str = "#### all functions enabled ####";

impl<P: Platform, M: Machine> Functions for EngineFunctions<P, M> {
    fn write_words(&self, file: FilterFile, text: &str, mode: Mode) -> Result<(), Refused> {
        let which = Self::which(file).ok_or(FunctionsError::NotSupported)?;
        let is_empty = mode == Mode::Replace && text.trim_ascii().is_empty();
        let text = if is_empty && which == WhichSet::Filter { EVERYTHING } else { text };
        self.engine.write_ops_words(self.users.keeper, which, text, mode)?;
        self.refresh().map_err(|error| Refused::at(0, Cause::Functions(error.into())))
    }

    fn read_words(
        &self,
        file: FilterFile,
        place: &mut Place,
        bytes: &mut [u8],
    ) -> Result<usize, FunctionsError> {
        let which = Self::which(file).ok_or(FunctionsError::NotSupported)?;
        match self.engine.read_ops_words(self.users.keeper, which, place, bytes) {
            // Nothing was written yet: no words make it a user with a slot.
            Err(Error::NotRegistered) => {
                let made = self.engine.write_ops_words(self.users.keeper, which, "", Mode::Append);
                made.map_err(|_| FunctionsError::NotSupported)?;
                Ok(self.engine.read_ops_words(self.users.keeper, which, place, bytes)?)
            }
            read => Ok(read?),
        }
    }

    fn read_list(&self, list: List, place: &mut Place, bytes: &mut [u8]) -> usize {
        self.engine.read_list(list, place, bytes)
    }

    fn next_command(&self, _place: &mut TextPlace, _out: &mut dyn fmt::Write) -> Shown {
        Shown::End
    }

    fn pids(&self, _file: PidFile, _each: &mut dyn FnMut(u32)) -> bool {
        false
    }

    fn set_pids(&self, _file: PidFile, pids: Option<&[u32]>) -> Result<(), FunctionsError> {
        if pids.is_none() { Ok(()) } else { Err(FunctionsError::NotSupported) }
    }

    fn max_depth(&self) -> u32 {
        self.users.limits.max_depth()
    }

    fn set_max_depth(&self, depth: u32) {
        self.users.limits.set_max_depth(depth);
    }

    fn thresh_ns(&self) -> u64 {
        self.users.limits.thresh_ns()
    }

    fn set_thresh_ns(&self, ns: u64) {
        self.users.limits.set_thresh_ns(ns);
    }

    fn sleep_time(&self) -> bool {
        self.limit(LimitOptions::SLEEP_TIME)
    }

    fn set_sleep_time(&self, on: bool) {
        self.set_limit(LimitOptions::SLEEP_TIME, on);
    }

    fn graph_time(&self) -> bool {
        self.limit(LimitOptions::GRAPH_TIME)
    }

    fn set_graph_time(&self, on: bool) {
        self.set_limit(LimitOptions::GRAPH_TIME, on);
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
        false
    }

    fn set_profiles(&self, on: bool) -> Result<(), FunctionsError> {
        if on { Err(FunctionsError::NotSupported) } else { Ok(()) }
    }

    fn next_profile(
        &self,
        _cpu: usize,
        _place: &mut TextPlace,
        _out: &mut dyn fmt::Write,
    ) -> Result<Shown, FunctionsError> {
        Err(FunctionsError::NotSupported)
    }
}
