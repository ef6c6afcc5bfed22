//! Where every atomic and every ordering of the engine comes from, so that a model checker can be put here.
//!
//! The traced path writes per-task and per-CPU words only. What interrupts it runs on the same CPU, so program order is
//! all that is needed between them, and [`signal_fence`] keeps the compiler to it.

pub(crate) use core::hint::spin_loop;
pub(crate) use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence, fence,
};

/// Keeps the compiler from moving memory accesses across: the other party is an interrupt on this CPU, or a stack
/// walker that looks at this task while it is stopped.
#[inline(always)]
pub(crate) fn signal_fence() {
    compiler_fence(Ordering::SeqCst);
}

/// A place where an interrupt may come. Nothing in the kernel; in unit tests the driver in `testing` may run an interrupt
/// there.
#[cfg(not(test))]
#[inline(always)]
pub(crate) fn interrupt_point() {}

#[cfg(test)]
pub(crate) use crate::testing::interrupt_point;
