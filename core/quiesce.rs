//! When is nobody using what was taken away? The grace period of the tracer.
//!
//! Everything the traced path loads from the registry (users, site groups) it loads and uses between [`Quiesce::enter`]
//! and the drop of its guard, with preemption off. So each CPU has a count of how many such sections are under way on it, a
//! task and interrupts on top of it, and a count of how often the last of them ended. Both are written by that CPU alone.
//!
//! # The argument
//! The control side takes something away (a store), then calls [`Quiesce::synchronize`]. That first makes every CPU
//! execute a full barrier ([`Platform::sync_cores`], an interrupt). For a section on some CPU, either
//! 1. its `enter` came after that CPU's barrier: then all its loads come after, and see the store; or
//! 2. it came before: then the barrier made `active` visible, and `synchronize` sees it, unless the section has ended. It waits
//!    until `active` is 0, or until `ended` has changed, which it only does at a moment when `active` was 0: all sections of that
//!    CPU that began before have ended then, and case 1 holds for the next.
//!
//! So the traced path needs no barrier of its own, only the compiler's. A task that is preempted inside a trampoline, before or
//! behind the section, holds nothing: it has loaded nothing yet, or has let go of it. Trampolines are never freed.

use crate::platform::Platform;
use crate::sync::{AtomicU32, AtomicU64, Ordering, signal_fence};

/// The most CPUs.
pub const MAX_CPUS: usize = 64;

/// One CPU's sections. A cache line of its own, so no two CPUs write to one.
#[derive(Debug)]
#[repr(align(64))]
struct Cpu {
    active: AtomicU32,
    ended: AtomicU64,
}

/// See the module. Its model in every order of steps is in `tests/loom`, its test with threads in `testing/threads.rs`.
#[derive(Debug)]
pub(crate) struct Quiesce<const CPUS: usize = MAX_CPUS> {
    cpus: [Cpu; CPUS],
}

/// Proof that what is loaded from the registry stays valid: until this is dropped, nobody's memory is reused.
#[must_use = "the section ends when the guard is dropped"]
#[derive(Debug)]
pub(crate) struct Section<'a> {
    cpu: &'a Cpu,
}

impl<const CPUS: usize> Quiesce<CPUS> {
    pub(crate) const fn new() -> Self {
        Self { cpus: [const { Cpu { active: AtomicU32::new(0), ended: AtomicU64::new(0) } }; CPUS] }
    }

    /// Begins a section on `cpu`, which the caller runs on and stays on. `None` for a CPU beyond the last.
    #[inline]
    pub(crate) fn enter(&self, cpu: usize) -> Option<Section<'_>> {
        let cpu = self.cpus.get(cpu)?;
        // An interrupt in between raises and lowers it again, so the sum is right.
        cpu.active.store(cpu.active.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        signal_fence();
        Some(Section { cpu })
    }

    /// Returns when every section that could have seen what was taken away before has ended. Task context, preemptible or not,
    /// not inside a section; waits for other CPUs.
    pub(crate) fn synchronize<P: Platform>(&self) {
        P::sync_cores();
        for cpu in &self.cpus {
            let ended = cpu.ended.load(Ordering::Acquire);
            while cpu.active.load(Ordering::Acquire) != 0 && cpu.ended.load(Ordering::Acquire) == ended {
                crate::sync::spin_loop();
            }
        }
    }
}

impl Drop for Section<'_> {
    #[inline]
    fn drop(&mut self) {
        let left = self.cpu.active.load(Ordering::Relaxed) - 1;
        if left == 0 {
            // Before `active` falls: who sees the new count knows that all sections up to here used their loads up.
            self.cpu.ended.store(self.cpu.ended.load(Ordering::Relaxed) + 1, Ordering::Release);
        }
        self.cpu.active.store(left, Ordering::Release);
    }
}
