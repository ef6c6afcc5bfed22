//! Instances: the directories that people make in `instances/`, each with buffers, a tracer and filters of its own.
//!
//! How many there can be is settled by the embedder, who gives a place for each; this image's engine has work for
//! [`MAX_INSTANCES`](crate::MAX_INSTANCES). A place is somebody's from `mkdir` to `rmdir`, and is given out again then, with the memory
//! that it was lent.
//!
//! All of a place is read and changed under the lock of the files, but for the count of its readings, which go away whenever they like.

use core::fmt;

use spin::Mutex;

use super::FsError;
use super::control::Functions;
use super::log::Log;
use super::tracing::{Tracing, TracingError};
use crate::sync::{AtomicUsize, Ordering};

/// The longest name of an instance, in bytes: that of Linux's files.
pub const MAX_INSTANCE_NAME: usize = 255;

/// What one instance works with. It is there all the time, and idle while the instance is not.
pub trait Instance: Sync {
    /// Its tracer.
    fn tracing(&self) -> &dyn Tracing;

    /// Its view of the engine. Without a profiler, and without sets and limits of the graph that are the top directory's alone.
    fn functions(&self) -> &dyn Functions;

    /// Begins: gets buffers, and is as a kernel's tracer is at the start. It is idle before.
    ///
    /// # Errors
    /// [`TracingError::NoMemory`]: it is idle still.
    fn make(&self) -> Result<(), TracingError>;

    /// Ends, whatever it was doing: stops its tracer, gives its buffers back and forgets what it was told.
    fn remove(&self);
}

/// The name of an instance.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct InstanceName {
    bytes: [u8; MAX_INSTANCE_NAME],
    len: usize,
}

impl InstanceName {
    /// `None` if it is too long.
    pub(super) fn new(name: &str) -> Option<Self> {
        let mut made = Self { bytes: [0; MAX_INSTANCE_NAME], len: name.len() };
        made.bytes.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
        Some(made)
    }

    pub(super) fn as_str(&self) -> &str {
        // It was made of one.
        self.bytes.get(..self.len).and_then(|bytes| core::str::from_utf8(bytes).ok()).unwrap_or("")
    }
}

impl fmt::Debug for InstanceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

/// A place for an instance. See the module.
pub struct InstancePlace<'a> {
    instance: &'a dyn Instance,
    /// What it is called, while it is there.
    name: Mutex<Option<InstanceName>>,
    /// Readings of its files.
    open: AtomicUsize,
    pub(super) log: Mutex<Log>,
}

impl fmt::Debug for InstancePlace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InstancePlace").finish_non_exhaustive()
    }
}

impl<'a> InstancePlace<'a> {
    /// An empty place.
    pub const fn new(instance: &'a dyn Instance) -> Self {
        Self { instance, name: Mutex::new(None), open: AtomicUsize::new(0), log: Mutex::new(Log::new()) }
    }

    pub(super) fn instance(&self) -> &'a dyn Instance {
        self.instance
    }

    pub(super) fn name(&self) -> Option<InstanceName> {
        *self.name.lock()
    }

    /// Makes the instance. Under the lock of the files; the place is empty.
    pub(super) fn make(&self, name: InstanceName) -> Result<(), FsError> {
        self.instance.make()?;
        self.log.lock().clear();
        *self.name.lock() = Some(name);
        Ok(())
    }

    /// Removes it. Under the lock of the files.
    pub(super) fn remove(&self) -> Result<(), FsError> {
        // Nobody comes meanwhile, and who leaves is seen here next time.
        let readings = self.open.load(Ordering::Acquire);
        if readings != 0 {
            return Err(FsError::Busy { readings });
        }
        self.instance.remove();
        *self.name.lock() = None;
        Ok(())
    }

    /// A reading begins. Under the lock of the files; the instance is there.
    pub(super) fn hold(&'a self) -> Hold<'a> {
        self.open.fetch_add(1, Ordering::Relaxed);
        Hold(self)
    }
}

/// Keeps an instance from being removed.
#[derive(Debug)]
pub(super) struct Hold<'a>(&'a InstancePlace<'a>);

impl<'a> Hold<'a> {
    pub(super) fn place(&self) -> &'a InstancePlace<'a> {
        self.0
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Release);
    }
}

/// The first name in a path, and what stands behind it.
fn first(mut path: &str) -> Option<(&str, &str)> {
    loop {
        path = path.trim_start_matches('/');
        let (part, rest) = path.split_at(path.find('/').unwrap_or(path.len()));
        match part {
            "" => return None,
            "." => path = rest,
            part => return Some((part, rest)),
        }
    }
}

/// The instance that a path leads into, and the way from there.
pub(super) fn instance_in(path: &str) -> Option<(&str, &str)> {
    let (dir, rest) = first(path)?;
    if dir == super::tree::INSTANCES { first(rest) } else { None }
}

#[cfg(test)]
mod tests;
