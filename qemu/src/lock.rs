//! A spin lock that keeps interrupts off while it is held, for data that interrupt handlers use too.
//!
//! Invariant: whoever holds one cannot be interrupted on its CPU, so no interrupt can spin on a lock that the
//! context below it holds. Not for NMI handlers, which nothing keeps away. Used by the heap and, in part, by
//! the scheduler.

use core::ops::{Deref, DerefMut};

use spin::{
    mutex::{Mutex, MutexGuard},
    relax::RelaxStrategy,
};

use crate::{
    machine::{self, IrqState},
    panic,
};

/// What a CPU does between two looks at a lock that another one holds: see [`machine::relax`].
pub enum Relax {}

impl RelaxStrategy for Relax {
    #[inline(always)]
    fn relax() {
        // The other one may never release it: it may have panicked.
        panic::stop_if_over();
        machine::relax();
    }
}

/// The guard that [`IrqLock::lock_with`] gives.
pub type Held<'a, T> = MutexGuard<'a, T, Relax>;

/// Interrupts are off on this CPU while one of these lives; dropping it restores what was before.
pub struct IrqsOff(IrqState);

impl IrqsOff {
    /// Masks interrupts.
    #[inline(always)]
    pub fn new() -> Self {
        Self(machine::irqs_off())
    }
}

impl Drop for IrqsOff {
    #[inline(always)]
    fn drop(&mut self) {
        machine::irqs_restore(self.0);
    }
}

/// The lock.
pub struct IrqLock<T> {
    inner: Mutex<T, Relax>,
}

/// Access to what an [`IrqLock`] guards. The fields drop in this order: unlock first, interrupts back on
/// after it.
pub struct IrqGuard<'a, T> {
    guard: Held<'a, T>,
    _irqs: IrqsOff,
}

impl<T> IrqLock<T> {
    /// An unlocked lock around `value`.
    pub const fn new(value: T) -> Self {
        Self { inner: Mutex::new(value) }
    }

    /// Masks interrupts, then takes the lock.
    #[inline]
    pub fn lock(&self) -> IrqGuard<'_, T> {
        let irqs = IrqsOff::new();
        IrqGuard { guard: self.lock_with(&irqs), _irqs: irqs }
    }

    /// Takes the lock for a caller that has interrupts off, and keeps them off at least until it has dropped
    /// the guard or handed the lock over.
    #[inline(always)]
    pub fn lock_with(&self, _off: &IrqsOff) -> Held<'_, T> {
        self.inner.lock()
    }

    /// Releases a lock whose guard was forgotten.
    ///
    /// # Safety
    ///
    /// Whoever took the lock has forgotten the guard and uses what it guards no more; this is the only
    /// release.
    #[inline(always)]
    pub unsafe fn release_forgotten(&self) {
        // SAFETY: the caller's promise is what `force_unlock` asks for.
        unsafe { self.inner.force_unlock() }
    }
}

impl<T> Deref for IrqGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for IrqGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}
