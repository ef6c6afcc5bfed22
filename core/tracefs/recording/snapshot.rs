//! The buffers beside those that are recorded into: where a snapshot is, and how it gets there.
//!
//! A snapshot is taken by exchanging every CPU's buffer with its spare one, by a person in task context, or by a function command in
//! any context. Who exchanges buffers, or changes which there are, has claimed them. A command waits for nobody: if it finds them
//! claimed, it leaves word, and who has them takes the snapshot as soon as he is done. Two that fall together are one.
//!
//! Readers need not know. A reader of the buffer that was set aside goes on in it, and one of the snapshot that was there before comes
//! to its end. A pipe first gives what it has read, and goes on in the buffer that is recorded into then.

use super::super::tracing::{SnapshotAct, TracingError};
use super::{RingTracing, State, kib};
use crate::quiesce::MAX_CPUS;
use crate::ring::Buffer;
use crate::sync::{AtomicBool, AtomicPtr, Ordering, interrupt_point, spin_loop};

/// See the module.
#[derive(Debug)]
pub(super) struct Spares {
    /// One for each CPU, or null. Who stores here has claimed them.
    buffers: [AtomicPtr<Buffer>; MAX_CPUS],
    claimed: AtomicBool,
    /// Somebody in any context wants a snapshot.
    pub(super) wanted: AtomicBool,
}

impl Spares {
    pub(super) const fn new() -> Self {
        Self {
            buffers: [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_CPUS],
            claimed: AtomicBool::new(false),
            wanted: AtomicBool::new(false),
        }
    }

    pub(super) fn get(&self, cpu: usize) -> Option<&'static Buffer> {
        let buffer = self.buffers.get(cpu)?.load(Ordering::Acquire);
        // SAFETY: null, or made of a `&'static Buffer` by `put`.
        unsafe { buffer.as_ref() }
    }

    /// Whether there are any.
    pub(super) fn are_any(&self) -> bool {
        (0..MAX_CPUS).any(|cpu| self.get(cpu).is_some())
    }

    /// For who has claimed them.
    fn put(&self, cpu: usize, buffer: Option<&'static Buffer>) {
        let new = buffer.map_or(core::ptr::null_mut(), |buffer| core::ptr::from_ref(buffer).cast_mut());
        if let Some(place) = self.buffers.get(cpu) {
            place.store(new, Ordering::Release);
        }
    }
}

/// The spare buffers are the holder's.
struct Claim<'a>(&'a RingTracing);

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        interrupt_point();
        self.0.spares.claimed.store(false, Ordering::SeqCst);
        interrupt_point();
        self.0.take_wanted();
    }
}

impl RingTracing {
    /// Sets aside what was recorded until now, in the buffers that are there for it; nothing without them. Any context.
    pub fn snapshot_now(&self) {
        self.spares.wanted.store(true, Ordering::SeqCst);
        self.take_wanted();
    }

    /// Whether there are buffers for [`snapshot_now`](Self::snapshot_now). Any context.
    pub fn can_snapshot(&self) -> bool {
        self.spares.are_any()
    }

    /// Gets the buffers for [`snapshot_now`](Self::snapshot_now), as large as those that are recorded into. Task context.
    ///
    /// # Errors
    /// [`TracingError::NoMemory`].
    pub fn make_spares(&self) -> Result<(), TracingError> {
        let state = self.state.lock();
        let claim = self.claim();
        let made = self.spares_for_all(&state);
        drop((claim, state));
        made
    }

    /// Takes the snapshot that is wanted, if any. Who has the buffers does so behind the release, so that of two who come here at the
    /// same time one sees it: the stores and loads of both flags are in one order.
    pub(super) fn take_wanted(&self) {
        let Spares { claimed, wanted, .. } = &self.spares;
        while wanted.load(Ordering::SeqCst) {
            interrupt_point();
            if claimed.swap(true, Ordering::SeqCst) {
                return;
            }
            interrupt_point();
            let mut done = true;
            if wanted.swap(false, Ordering::SeqCst) {
                interrupt_point();
                done = self.exchange_emptied();
            }
            if !done {
                // Interrupted by this is somebody who empties a buffer that this must empty. He comes here when he is done: `clear`.
                wanted.store(true, Ordering::SeqCst);
            }
            claimed.store(false, Ordering::SeqCst);
            interrupt_point();
            if !done {
                return;
            }
        }
    }

    fn exchange_emptied(&self) -> bool {
        let cpus = 0..self.host.cpus().min(MAX_CPUS);
        // All before the first is exchanged: the next try must not bring one back.
        if !cpus.clone().filter_map(|cpu| self.spares.get(cpu)).all(Buffer::try_reset) {
            return false;
        }
        self.exchange(cpus);
        true
    }

    /// Task context; the caller has the state's lock, so that only commands are in the way, and they do not wait.
    fn claim(&self) -> Claim<'_> {
        while self.spares.claimed.swap(true, Ordering::SeqCst) {
            spin_loop();
        }
        interrupt_point();
        Claim(self)
    }

    /// Exchanges some CPUs' buffers with the spare ones, which are empty. For who has claimed them.
    fn exchange(&self, cpus: core::ops::Range<usize>) {
        for cpu in cpus {
            let (Some(ring), Some(spare)) = (self.recorder.ring(cpu), self.spares.get(cpu)) else { continue };
            interrupt_point();
            // An embedder who swaps buffers by himself has his way: that CPU is in no snapshot then.
            if ring.buffer().is_some()
                && let Ok(old) = ring.exchange(spare)
            {
                self.spares.put(cpu, old);
            }
        }
    }

    /// Gives every CPU that has a buffer a spare one of its size, or none a new one. For who has claimed them.
    fn spares_for_all(&self, state: &State) -> Result<(), TracingError> {
        let mut new = [None; MAX_CPUS];
        let mut refused = None;
        for (cpu, new) in new.iter_mut().enumerate().take(self.host.cpus()) {
            let Some(live) = self.live(cpu).filter(|_| self.spares.get(cpu).is_none()) else { continue };
            match self.new_buffer(state, cpu, kib(live)) {
                Ok(buffer) => *new = Some(buffer),
                Err(error) => refused = Some(error),
            }
        }
        if let Some(error) = refused {
            return Err(self.take_back(&new, error));
        }
        for (cpu, new) in new.into_iter().enumerate() {
            if new.is_some() {
                self.spares.put(cpu, new);
            }
        }
        Ok(())
    }

    /// Gives buffers back that were never used.
    fn take_back(&self, buffers: &[Option<&'static Buffer>], error: TracingError) -> TracingError {
        buffers.iter().flatten().for_each(|buffer| self.host.give_back(buffer));
        error
    }

    /// What the file `snapshot` is told.
    pub(super) fn snapshot_act(&self, act: SnapshotAct, cpu: Option<usize>) -> Result<(), TracingError> {
        let cpus = self.scope(cpu)?;
        let mut state = self.state.lock();
        let claim = self.claim();
        match act {
            SnapshotAct::Take => {
                self.spares_for_all(&state)?;
                cpus.clone().filter_map(|cpu| self.spares.get(cpu)).for_each(Buffer::reset);
                self.exchange(cpus);
            }
            SnapshotAct::Clear => cpus.filter_map(|cpu| self.spares.get(cpu)).for_each(Buffer::reset),
            SnapshotAct::Free if cpu.is_some() => return Err(TracingError::NotSupported),
            SnapshotAct::Free => {
                let gone: [_; MAX_CPUS] = core::array::from_fn(|cpu| self.spares.get(cpu));
                (0..MAX_CPUS).for_each(|cpu| self.spares.put(cpu, None));
                self.leave(&mut state);
                gone.into_iter().flatten().for_each(|buffer| self.host.give_back(buffer));
            }
        }
        drop((claim, state));
        Ok(())
    }

    /// Gives some CPUs buffers of another size, spare ones included if there are any: all of them or none.
    pub(super) fn resize(&self, cpu: Option<usize>, kb: u64) -> Result<(), TracingError> {
        let cpus = self.scope(cpu)?;
        let mut state = self.state.lock();
        let claim = self.claim();
        let mut new = [[None; 2]; MAX_CPUS];
        let mut refused = None;
        for (cpu, new) in new.iter_mut().enumerate().skip(cpus.start).take(cpus.len()) {
            let has_spare = self.spares.get(cpu).is_some();
            for new in new.iter_mut().take(1 + usize::from(has_spare)) {
                match self.new_buffer(&state, cpu, kb) {
                    Ok(buffer) => *new = Some(buffer),
                    Err(error) => refused = Some(error),
                }
            }
        }
        if let Some(error) = refused {
            return Err(self.take_back(new.as_flattened(), error));
        }
        let mut old = [[None; 2]; MAX_CPUS];
        let mut done = Ok(());
        for (cpu, ([live, spare], old)) in new.into_iter().zip(&mut old).enumerate() {
            let (Some(ring), Some(live)) = (self.recorder.ring(cpu), live) else { continue };
            interrupt_point();
            match ring.swap(Some(live)) {
                Ok(before) => old[0] = before,
                Err(_) => done = Err(TracingError::Busy),
            }
            if spare.is_some() {
                old[1] = self.spares.get(cpu);
                self.spares.put(cpu, spare);
            }
        }
        self.leave(&mut state);
        old.as_flattened().iter().flatten().for_each(|buffer| self.host.give_back(buffer));
        drop((claim, state));
        done
    }

    /// Lets no reader of these files be at any buffer but those that are recorded into. What pipes have read they still give.
    fn leave(&self, state: &mut State) {
        state.kept = None;
        let Some(memory) = &mut state.memory else { return };
        memory.text.stop(None);
        self.follow(memory.pipe.parts);
    }
}
