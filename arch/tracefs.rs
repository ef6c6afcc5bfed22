//! The tracefs's view of the one engine of an image.

use crate::arch::FtraceRegs;
use crate::arch::live::{Bound, ENGINE};
use crate::arch::tramp;
use crate::engine::Error;
use crate::tracefs::control::Functions;
use crate::tracefs::{EngineFunctions, FilesUsers};

/// What the files need of this image's engine: made once, kept in a `static`, and given to [`Tracefs`](crate::tracefs::Tracefs).
#[derive(Debug)]
pub struct LiveFunctions(EngineFunctions<Bound, tramp::Live>);

impl LiveFunctions {
    /// The engine, with the users that its files speak of.
    pub const fn new(users: FilesUsers<FtraceRegs>) -> Self {
        Self(EngineFunctions::new(&ENGINE, users))
    }

    /// As the files want it.
    pub fn functions(&self) -> &dyn Functions {
        &self.0
    }

    /// See [`EngineFunctions::refresh`].
    ///
    /// # Errors
    /// See there.
    pub fn refresh(&self) -> Result<(), Error> {
        self.0.refresh()
    }
}
