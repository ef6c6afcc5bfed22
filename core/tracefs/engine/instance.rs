//! An instance of a real engine, over ring buffers.

use core::fmt;

use super::super::Instance;
use super::super::control::Functions;
use super::super::recording::InstanceMemory;
use super::super::tracing::{Tracer, Tracing, TracingError};
use super::{EngineFunctions, FilesUsers};
use crate::engine::{Engine, Error};
use crate::machine::Machine;
use crate::platform::Platform;

/// See the module. Kept in a `static`.
pub struct EngineInstance<P: Platform, M: Machine> {
    functions: EngineFunctions<P, M>,
    /// KiB of each CPU's buffer at first.
    kb: u64,
}

impl<P: Platform, M: Machine> fmt::Debug for EngineInstance<P, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineInstance").finish_non_exhaustive()
    }
}

impl<P: Platform, M: Machine> EngineInstance<P, M> {
    /// An instance that is idle. The users are its own, and so are tracing's recorder and its rings; each CPU's buffer has at least `kb`
    /// KiB when it is made.
    pub const fn new(engine: &'static Engine<P, M>, users: FilesUsers<P, M>, kb: u64) -> Self {
        Self { functions: EngineFunctions::new(engine, users), kb }
    }

    /// See [`EngineFunctions::refresh`].
    ///
    /// # Errors
    /// See there.
    pub fn refresh(&self) -> Result<(), Error> {
        self.functions.refresh()
    }
}

impl<P: Platform, M: Machine> Instance for EngineInstance<P, M> {
    fn tracing(&self) -> &dyn Tracing {
        self.functions.users.tracing
    }

    fn functions(&self) -> &dyn Functions {
        &self.functions
    }

    fn make(&self) -> Result<(), TracingError> {
        let tracing = self.functions.users.tracing;
        if !tracing.has_memory() {
            let memory = tracing.host().instance_memory();
            let memory = memory.ok_or(TracingError::NoMemory { kb: self.kb, most_kb: 0 })?;
            let InstanceMemory { readers, sets } = memory;
            self.functions.lend_sets(sets);
            tracing.lend(readers);
        }
        // Nothing is left of buffers that not all CPUs got.
        tracing.give_buffers(self.kb).inspect_err(|_| tracing.end())
    }

    fn remove(&self) {
        let tracing = self.functions.users.tracing;
        // First who records into the buffers. The tracer is out even if the engine says that something is wrong with the text.
        let _ = tracing.set_tracer(Tracer::Nop);
        self.functions.forget();
        tracing.end();
    }
}

#[cfg(test)]
mod tests;
