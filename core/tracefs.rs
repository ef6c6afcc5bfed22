//! The tracefs: the files that people who trace with Linux know, as functions that read and write.
//!
//! [`Tracefs`] is what an embedder mounts, or puts behind a shell. It keeps nothing but the log of what was refused: what the files
//! say is the tracer's ([`tracing::Tracing`]) and the engine's ([`control::Functions`]). A write is a whole `open`, `write`, `close`; a
//! reading is a value of the reader's own, so that any number of readers can be at any place. Nothing is allocated. Task context.
//!
//! A directory in `instances` has files of the same names over a tracer of its own, [`Instance`]; the embedder gives places for them.
//!
//! # What differs from Linux
//! * A text that is written takes effect as a whole or not at all, however many words it has.
//! * There can be as many instances as there are places for them. What an instance has of `set_graph_function`, `max_graph_depth` and
//!   `tracing_thresh` is the top directory's, as on Linux; `sleep-time` and `funcgraph-irqs` are its own, as on Linux since 6.19.
//! * Options of all tracers are always in `trace_options`.
//! * Of the function commands there are `traceon`, `traceoff`, `stacktrace` and `snapshot`. What changes nothing counts nothing: a stack or
//!   a snapshot while nothing is recorded, a snapshot without buffers.
//! * What is wrong in a text of several lines is logged with its line, its column, and what became of the rest.
//! * A filter from which the last function was taken away is nothing, and not everything; writing nothing to it (`echo > file`)
//!   makes it everything, as ever.

mod commands;
pub mod control;
mod engine;
mod error;
mod instances;
mod log;
mod options;
mod read;
pub mod recording;
pub mod tracing;
mod tree;
mod value;
mod write;

#[cfg(test)]
mod mock;
#[cfg(test)]
mod tests;

use core::fmt;

use spin::Mutex;

use control::Functions;
use instances::{InstanceName, instance_in};
use log::Log;
use tracing::Tracing;
use tree::{Dir, File, Name, Node, Tree};

pub use commands::{Commands, MAX_COMMANDS};
pub use engine::{EngineFunctions, EngineInstance, FileSets, FilesUsers, SetsMemory};
pub use error::{Cause, FsError, Refused};
pub use instances::{Instance, InstancePlace, MAX_INSTANCE_NAME};
pub use log::LOGGED;
pub use options::TraceOption;
pub use read::{MAX_TEXT, Reading};
pub use write::MAX_PIDS;

use crate::words::Mode;

/// How a file is opened to be written.
pub type Open = Mode;

/// A name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    name: tree::Name,
    /// Whether it is a directory.
    pub is_dir: bool,
    /// Whether it can be read, or listed.
    pub reads: bool,
    /// Whether it can be written.
    pub writes: bool,
}

/// Its name.
impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

/// The files. See the module.
pub struct Tracefs<'a> {
    top: Files<'a>,
    places: &'a [InstancePlace<'a>],
    /// The top directory's. Held while any file is read or written, so that tracer and engine see one at a time, and while instances are
    /// looked for, made and removed.
    log: Mutex<Log>,
}

impl fmt::Debug for Tracefs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracefs").finish_non_exhaustive()
    }
}

/// What the files of the top directory, or those of an instance, speak of.
#[derive(Clone, Copy)]
struct Files<'a> {
    tracing: &'a dyn Tracing,
    functions: &'a dyn Functions,
    is_top: bool,
}

/// An instance; `None` for the top directory.
type Place<'a> = Option<&'a InstancePlace<'a>>;

impl<'a> Tracefs<'a> {
    /// The files of a tracer and an engine, without a place for an instance.
    pub const fn new(tracing: &'a dyn Tracing, functions: &'a dyn Functions) -> Self {
        Self { top: Files { tracing, functions, is_top: true }, places: &[], log: Mutex::new(Log::new()) }
    }

    /// The same with places for instances.
    pub const fn with_instances(mut self, places: &'a [InstancePlace<'a>]) -> Self {
        self.places = places;
        self
    }

    fn files(&self, place: Place<'a>) -> Files<'a> {
        match place {
            None => self.top,
            Some(place) => {
                let instance = place.instance();
                Files { tracing: instance.tracing(), functions: instance.functions(), is_top: false }
            }
        }
    }

    /// What is at a path. Under the lock.
    fn find(&self, path: &str) -> Result<(Place<'a>, Node), FsError> {
        let (place, rest) = match instance_in(path) {
            None => (None, path),
            Some((name, rest)) => {
                let is_it = |there: &InstanceName| there.as_str() == name;
                let mut places = self.places.iter();
                let place = places.find(|place| place.name().as_ref().is_some_and(is_it));
                (Some(place.ok_or(FsError::NoSuchFile)?), rest)
            }
        };
        let node = self.files(place).tree(|tree| tree.find(rest));
        Ok((place, node.ok_or(FsError::NoSuchFile)?))
    }

    /// Under the lock.
    fn file(&self, path: &str) -> Result<(Place<'a>, File), FsError> {
        match self.find(path)? {
            (place, Node::File(file)) => Ok((place, file)),
            (_, Node::Dir(_)) => Err(FsError::IsDirectory),
        }
    }

    /// Calls `each` with everything in a directory.
    ///
    /// # Errors
    /// [`FsError::NoSuchFile`], [`FsError::NotDirectory`].
    pub fn list(&self, path: &str, mut each: impl FnMut(Entry)) -> Result<(), FsError> {
        let found = {
            let _one = self.log.lock();
            self.find(path)?
        };
        let (place, Node::Dir(dir)) = found else { return Err(FsError::NotDirectory) };
        if dir == Dir::Instances {
            for place in self.places {
                let name = {
                    let _one = self.log.lock();
                    place.name()
                };
                if let Some(name) = name {
                    each(Entry { name: Name::Given(name), is_dir: true, reads: true, writes: false });
                }
            }
        }
        self.files(place).tree(|tree| {
            tree.list(dir, &mut |name, node| {
                let access = match node {
                    Node::Dir(_) => (true, true, false),
                    Node::File(file) => (false, file.access().reads(), file.access().writes()),
                };
                let (is_dir, reads, writes) = access;
                each(Entry { name, is_dir, reads, writes });
            });
        });
        Ok(())
    }

    /// Makes a directory in `instances`: an instance, with buffers of its own.
    ///
    /// # Errors
    /// [`FsError::Exists`], [`FsError::NotPermitted`] anywhere else, [`FsError::NameTooLong`], [`FsError::TooManyInstances`],
    /// [`FsError::NoSuchFile`], [`FsError::NotDirectory`]; [`FsError::Tracing`] if there is no memory for it.
    pub fn mkdir(&self, path: &str) -> Result<(), FsError> {
        let _one = self.log.lock();
        if path.is_empty() {
            return Err(FsError::NoSuchFile);
        }
        let path = path.trim_end_matches('/');
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        if name == ".." || self.find(path).is_ok() {
            return Err(FsError::Exists);
        }
        match self.find(parent)? {
            (None, Node::Dir(Dir::Instances)) => {}
            (_, Node::Dir(_)) => return Err(FsError::NotPermitted),
            (_, Node::File(_)) => return Err(FsError::NotDirectory),
        }
        let name = InstanceName::new(name)
            .ok_or(FsError::NameTooLong { len: name.len(), max: MAX_INSTANCE_NAME })?;
        let free = self.places.iter().find(|place| place.name().is_none());
        free.ok_or(FsError::TooManyInstances { max: self.places.len() })?.make(name)
    }

    /// Removes an instance, with what it has recorded; a tracer that runs in it is stopped.
    ///
    /// # Errors
    /// [`FsError::Busy`] while a file of it is being read; [`FsError::NotPermitted`] for any other directory, [`FsError::NoSuchFile`],
    /// [`FsError::NotDirectory`].
    pub fn rmdir(&self, path: &str) -> Result<(), FsError> {
        let _one = self.log.lock();
        match self.find(path)? {
            (Some(place), Node::Dir(Dir::Root)) => place.remove(),
            (_, Node::Dir(_)) => Err(FsError::NotPermitted),
            (_, Node::File(_)) => Err(FsError::NotDirectory),
        }
    }
}

impl Files<'_> {
    fn tree<R>(&self, look: impl FnOnce(&Tree<'_>) -> R) -> R {
        let has = |option| self.option(option).is_some();
        look(&Tree { is_top: self.is_top, cpus: self.tracing.cpus(), has: &has })
    }

    fn option(&self, option: TraceOption) -> Option<bool> {
        match option {
            TraceOption::SleepTime => Some(self.functions.sleep_time()),
            // The profiler's, of which there is one.
            TraceOption::GraphTime => self.is_top.then(|| self.functions.graph_time()),
            // One for the whole kernel on Linux, too.
            TraceOption::PrintkMsgOnly if !self.is_top => None,
            option => self.tracing.option(option),
        }
    }

    fn set_option(&self, option: TraceOption, on: bool) -> Result<(), Refused> {
        match option {
            TraceOption::SleepTime => self.functions.set_sleep_time(on),
            TraceOption::GraphTime => self.functions.set_graph_time(on),
            option => {
                self.tracing.set_option(option, on)?;
                if option == TraceOption::Irqs {
                    self.functions.set_irqs(on);
                }
            }
        }
        Ok(())
    }
}
