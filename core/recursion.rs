//! The recursion guard: one bit per group and context in a word of the task, and a token that holds it.
//!
//! A task's word is written by the task and by what interrupts it, each leaving the word as it found it, so plain loads and
//! stores are enough. [`Platform::context`](crate::Platform::context) says which context runs; a group also has one *transition* bit, which lets through
//! one event that an interrupt produces before the kernel counts itself as interrupted.

use crate::platform::Context;
use crate::sync::{AtomicU32, Ordering, interrupt_point};

/// Parts of the engine that guard themselves separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Group {
    /// Dispatching to `ftrace_ops`.
    Ops = 0,
    /// Entry and return callbacks of graph users.
    Graph = 1,
}

/// Four contexts and the transition bit.
const BITS_PER_GROUP: u32 = 5;
const TRANSITION: u32 = 4;

/// A task's recursion bits.
#[derive(Debug)]
pub(crate) struct Recursion(AtomicU32);

/// Proof that this context holds the guard of a group; dropping it gives the guard back.
#[must_use = "the guard is given back when the token is dropped"]
pub(crate) struct Guarded<'a> {
    bits: &'a AtomicU32,
    held: u32,
}

impl Recursion {
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Takes the guard of `group`, or `None` if `context` is in it already, its one transition included.
    #[inline]
    pub(crate) fn enter(&self, group: Group, context: Context) -> Option<Guarded<'_>> {
        let bits = self.0.load(Ordering::Relaxed);
        let first = group as u32 * BITS_PER_GROUP;
        let mut held = 1 << (first + context as u32);
        if bits & held != 0 {
            held = 1 << (first + TRANSITION);
            if bits & held != 0 {
                return None;
            }
        }
        // An interrupt between load and store sets and clears bits of its own; `bits` is still the word's value.
        interrupt_point();
        self.0.store(bits | held, Ordering::Relaxed);
        crate::sync::signal_fence();
        Some(Guarded { bits: &self.0, held })
    }
}

impl Drop for Guarded<'_> {
    #[inline]
    fn drop(&mut self) {
        crate::sync::signal_fence();
        let bits = self.bits.load(Ordering::Relaxed);
        self.bits.store(bits & !self.held, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const CONTEXTS: [Context; 4] = [Context::Task, Context::SoftIrq, Context::Irq, Context::Nmi];

    #[test]
    fn each_context_enters_once_and_one_of_them_once_more() {
        let recursion = Recursion::new();
        let tokens: Vec<_> =
            CONTEXTS.iter().map(|&c| recursion.enter(Group::Ops, c).expect("first entry")).collect();
        let transition = recursion.enter(Group::Ops, Context::Irq).expect("the transition");
        for context in CONTEXTS {
            assert!(recursion.enter(Group::Ops, context).is_none(), "{context:?} entered a third time");
        }
        drop(transition);
        drop(tokens);
        assert_eq!(recursion.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn groups_do_not_shut_each_other_out() {
        let recursion = Recursion::new();
        let _ops = recursion.enter(Group::Ops, Context::Task).expect("ops");
        let _ops_transition = recursion.enter(Group::Ops, Context::Task).expect("transition");
        assert!(recursion.enter(Group::Graph, Context::Task).is_some());
    }

    #[test]
    fn an_interrupt_inside_enter_leaves_the_word_right() {
        let recursion = Recursion::new();
        crate::testing::with_interrupt_at(
            0,
            || {
                let token = recursion.enter(Group::Ops, Context::Irq);
                assert!(token.is_some());
            },
            || {
                let token = recursion.enter(Group::Ops, Context::Task).expect("task");
                assert_eq!(recursion.0.load(Ordering::Relaxed), 1);
                drop(token);
            },
        );
        assert_eq!(recursion.0.load(Ordering::Relaxed), 0);
    }
}
