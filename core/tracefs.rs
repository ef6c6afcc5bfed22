//! The tracefs: the files that people who trace with Linux know, as functions that read and write.
//!
//! [`Tracefs`] is what an embedder mounts, or puts behind a shell. It keeps nothing but the log of what was refused: what the files
//! say is the tracer's ([`tracing::Tracing`]) and the engine's ([`control::Functions`]). A write is a whole `open`, `write`, `close`; a
//! reading is a value of the reader's own, so that any number of readers can be at any place. Nothing is allocated. Task context.
//!
//! # What differs from Linux
//! * A text that is written takes effect as a whole or not at all, however many words it has.
//! * `instances` is there and empty: this crate has one tracer, and directories cannot be made in it.
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
use log::Log;
use tracing::Tracing;
use tree::{Dir, File, Node, Tree};

pub use commands::{Commands, MAX_COMMANDS};
pub use engine::{EngineFunctions, FileSets, FilesUsers, SetsMemory};
pub use error::{Cause, FsError, Refused};
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
    tracing: &'a dyn Tracing,
    functions: &'a dyn Functions,
    /// Held while a file is read or written, so that tracer and engine see one at a time.
    log: Mutex<Log>,
}

impl fmt::Debug for Tracefs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracefs").finish_non_exhaustive()
    }
}

impl<'a> Tracefs<'a> {
    /// The files of a tracer and an engine.
    pub const fn new(tracing: &'a dyn Tracing, functions: &'a dyn Functions) -> Self {
        Self { tracing, functions, log: Mutex::new(Log::new()) }
    }

    fn tree<R>(&self, look: impl FnOnce(&Tree<'_>) -> R) -> R {
        let has = |option| self.option(option).is_some();
        look(&Tree { cpus: self.tracing.cpus(), has: &has })
    }

    fn find(&self, path: &str) -> Result<Node, FsError> {
        self.tree(|tree| tree.find(path)).ok_or(FsError::NoSuchFile)
    }

    fn file(&self, path: &str) -> Result<File, FsError> {
        match self.find(path)? {
            Node::File(file) => Ok(file),
            Node::Dir(_) => Err(FsError::IsDirectory),
        }
    }

    /// Calls `each` with everything in a directory.
    ///
    /// # Errors
    /// [`FsError::NoSuchFile`], [`FsError::NotDirectory`].
    pub fn list(&self, path: &str, mut each: impl FnMut(Entry)) -> Result<(), FsError> {
        let Node::Dir(dir) = self.find(path)? else { return Err(FsError::NotDirectory) };
        self.tree(|tree| {
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

    /// Makes a directory: an instance. There are none.
    ///
    /// # Errors
    /// [`FsError::NoInstances`], always.
    pub fn mkdir(&self, _path: &str) -> Result<(), FsError> {
        Err(FsError::NoInstances)
    }

    /// Removes a directory. There is none that can be.
    ///
    /// # Errors
    /// [`FsError::NoInstances`] for a directory; [`FsError::NoSuchFile`], [`FsError::NotDirectory`].
    pub fn rmdir(&self, path: &str) -> Result<(), FsError> {
        match self.find(path)? {
            Node::Dir(
                Dir::Root | Dir::Options | Dir::PerCpu | Dir::Cpu(_) | Dir::TraceStat | Dir::Instances,
            ) => Err(FsError::NoInstances),
            Node::File(_) => Err(FsError::NotDirectory),
        }
    }

    fn option(&self, option: TraceOption) -> Option<bool> {
        match option {
            TraceOption::SleepTime => Some(self.functions.sleep_time()),
            TraceOption::GraphTime => Some(self.functions.graph_time()),
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
