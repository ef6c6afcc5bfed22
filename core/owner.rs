//! How a callback of this crate's own finds what its ops are a part of: a `static` cannot name its own address when it is made.

use crate::sync::{AtomicPtr, Ordering};

/// Null, or the address of a value that lives for ever.
#[derive(Debug)]
pub(crate) struct Owner(AtomicPtr<()>);

impl Owner {
    pub(crate) const fn none() -> Self {
        Self(AtomicPtr::new(core::ptr::null_mut()))
    }

    /// Says what the ops are a part of. Before they are registered; once more changes nothing.
    pub(crate) fn set<T: Sync>(&self, owner: &'static T) {
        self.0.store(core::ptr::from_ref(owner).cast_mut().cast(), Ordering::Release);
    }

    /// What was said.
    ///
    /// # Safety
    /// Whatever was [`set`](Self::set) here is a `T`.
    #[inline]
    pub(crate) unsafe fn get<T: Sync>(&self) -> Option<&'static T> {
        let owner: *const T = self.0.load(Ordering::Acquire).cast();
        // SAFETY: null, or from a `&'static T` in `set`, by the caller's promise.
        unsafe { owner.as_ref() }
    }
}
