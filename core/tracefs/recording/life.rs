//! How a tracing gets its memory and its buffers, and how an instance's gives the buffers back.

use super::super::SetsMemory;
use super::super::tracing::{SnapshotAct, Tracing, TracingError};
use super::{Host, RingTracing, State, TracingMemory};
use crate::sync::Ordering;

/// All memory that an instance takes beside its buffers.
#[derive(Debug)]
pub struct InstanceMemory {
    /// For its readers.
    pub readers: TracingMemory,
    /// For its sets of tasks. It needs no room for functions.
    pub sets: SetsMemory,
}

impl RingTracing {
    pub(crate) fn host(&self) -> &'static dyn Host {
        self.host
    }

    /// Lends the memory for readers, and gives each CPU a buffer of at least so many KiB, unless it has one. Once, before the files are
    /// used.
    ///
    /// # Errors
    /// [`TracingError::NoMemory`]
    pub fn begin(&self, memory: TracingMemory, kb: u64) -> Result<(), TracingError> {
        self.lend(memory);
        self.give_buffers(kb)
    }

    /// Lends the memory for readers.
    pub(crate) fn lend(&self, memory: TracingMemory) {
        self.state.lock().memory = Some(memory);
    }

    /// Whether that was done.
    pub(crate) fn has_memory(&self) -> bool {
        self.state.lock().memory.is_some()
    }

    /// Gives each CPU a buffer of at least so many KiB, unless it has one.
    ///
    /// # Errors
    /// [`TracingError::NoMemory`]
    pub(crate) fn give_buffers(&self, kb: u64) -> Result<(), TracingError> {
        let state = self.state.lock();
        for cpu in 0..self.cpus() {
            let Some(ring) = self.recorder.ring(cpu) else { continue };
            if ring.buffer().is_none() {
                let buffer = self.new_buffer(&state, cpu, kb)?;
                ring.swap(Some(buffer)).map_err(|_| TracingError::Busy)?;
            }
        }
        drop(state);
        self.settle();
        Ok(())
    }

    /// Gives all buffers back, and is as it was at first but for the memory for readers, which stays. For an instance whose tracer was
    /// stopped, and whose function commands and readings are gone.
    pub(crate) fn end(&self) {
        // Nothing is wrong with freeing those of all CPUs.
        let _ = self.snapshot_act(SnapshotAct::Free, None);
        let mut state = self.state.lock();
        state.forget(None);
        for ring in (0..self.cpus()).filter_map(|cpu| self.recorder.ring(cpu)) {
            // No buffer is nobody's, so it is not refused.
            if let Ok(Some(buffer)) = ring.swap(None) {
                self.host.give_back(buffer);
            }
        }
        let State { memory, stamp, .. } = core::mem::replace(&mut *state, State::new());
        (state.memory, state.stamp) = (memory, stamp);
        self.recorder.set_recorded(state.recorded());
        self.recorder.set_stacks(state.stacks);
        drop(state);
        self.on.store(true, Ordering::SeqCst);
        self.cpumask.store(u64::MAX, Ordering::SeqCst);
        self.settle();
    }
}
