//! What the files need of the engine: the trait [`Functions`]. `EngineFunctions` implements it for a real one.
//!
//! As for the tracer: task context, one file at a time, and what is refused changes nothing.

use core::fmt;

use super::Refused;
use super::tracing::{Shown, TextPlace, Tracer};
use crate::engine::Error;
use crate::profile::ProfileError;
use crate::words::{List, Mode, Place};

/// A set of functions that is written as words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterFile {
    /// `set_ftrace_filter`
    Filter,
    /// `set_ftrace_notrace`
    Notrace,
    /// `set_graph_function`
    GraphFunction,
    /// `set_graph_notrace`
    GraphNotrace,
}

/// A set of tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PidFile {
    /// `set_ftrace_pid`
    Pid,
    /// `set_ftrace_notrace_pid`
    NotracePid,
}

/// Why the engine does not do what a file was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FunctionsError {
    /// There is no room for so many.
    TooMany {
        /// How many there would be.
        count: usize,
        /// How many there can be.
        max: usize,
    },
    /// The memory for this was not given.
    NotSupported,
    /// The profiler does not.
    Profile(ProfileError),
    /// The engine does not.
    Engine(Error),
}

impl fmt::Display for FunctionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany { count, max } => write!(f, "there is room for {max}, not for {count}"),
            Self::NotSupported => f.write_str("this kernel gave no memory for that"),
            Self::Profile(error) => error.fmt(f),
            Self::Engine(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for FunctionsError {}

impl From<Error> for FunctionsError {
    fn from(error: Error) -> Self {
        Self::Engine(error)
    }
}

impl From<ProfileError> for FunctionsError {
    fn from(error: ProfileError) -> Self {
        Self::Profile(error)
    }
}

/// What the files need of the engine. See the module.
pub trait Functions: Sync {
    /// Carries out a text that was written to a set's file: all of it or nothing. With [`Mode::Replace`], a text without any function's
    /// word makes what an empty file means: everything for a filter, nothing for a notrace set. Words with commands are for
    /// `set_ftrace_filter` alone; what commands there were stays.
    ///
    /// # Errors
    /// What is wrong with which word.
    fn write_words(&self, file: FilterFile, text: &str, mode: Mode) -> Result<(), Refused>;

    /// Reads the next bytes of a set. How many; 0 at the end.
    ///
    /// # Errors
    /// Usually none.
    fn read_words(
        &self,
        file: FilterFile,
        place: &mut Place,
        bytes: &mut [u8],
    ) -> Result<usize, FunctionsError>;

    /// Reads the next bytes of a list. How many; 0 at the end.
    fn read_list(&self, list: List, place: &mut Place, bytes: &mut [u8]) -> usize;

    /// Writes the next command as a line, `func:traceoff:count=3` or `func:traceoff:unlimited`.
    fn next_command(&self, place: &mut TextPlace, out: &mut dyn fmt::Write) -> Shown;

    /// Calls `each` with the tasks of a set, in ascending order. Whether there is a set: without one, every task counts.
    fn pids(&self, file: PidFile, each: &mut dyn FnMut(u32)) -> bool;

    /// Makes a set of tasks, in ascending order; `None` for no set.
    ///
    /// # Errors
    /// [`FunctionsError::TooMany`].
    fn set_pids(&self, file: PidFile, pids: Option<&[u32]>) -> Result<(), FunctionsError>;

    /// `max_graph_depth`
    fn max_depth(&self) -> u32;

    /// Sets that.
    fn set_max_depth(&self, depth: u32);

    /// `tracing_thresh`, in nanoseconds.
    fn thresh_ns(&self) -> u64;

    /// Sets that.
    fn set_thresh_ns(&self, ns: u64);

    /// The option `sleep-time`.
    fn sleep_time(&self) -> bool;

    /// Sets that.
    fn set_sleep_time(&self, on: bool);

    /// The option `graph-time`, of the profiler.
    fn graph_time(&self) -> bool;

    /// Sets that.
    fn set_graph_time(&self, on: bool);

    /// The option `funcgraph-irqs`, as far as recording goes; the tracer is told too.
    fn set_irqs(&self, on: bool);

    /// Gives a tracer's users what the filter files say, before they are registered. Nothing for [`Tracer::Nop`].
    ///
    /// # Errors
    /// [`FunctionsError::Engine`].
    fn prepare(&self, tracer: Tracer) -> Result<(), FunctionsError>;

    /// Whether the profiler runs (`function_profile_enabled`).
    fn profiles(&self) -> bool;

    /// Starts the profiler with empty tables, or stops it; once more changes nothing.
    ///
    /// # Errors
    /// [`FunctionsError::NotSupported`], [`FunctionsError::Engine`].
    fn set_profiles(&self, on: bool) -> Result<(), FunctionsError>;

    /// Writes the next text of a CPU's profile: its two lines of head, then a line for each function.
    ///
    /// # Errors
    /// [`FunctionsError::NotSupported`], [`FunctionsError::Profile`].
    fn next_profile(
        &self,
        cpu: usize,
        place: &mut TextPlace,
        out: &mut dyn fmt::Write,
    ) -> Result<Shown, FunctionsError>;
}
