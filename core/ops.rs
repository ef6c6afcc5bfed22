//! `ftrace_ops`: users of function entries, their registry, and the dispatch of one entry to them.
//!
//! Registering and unregistering is the control side's (`engine`, under its lock); the traced path only loads slots. A slot is
//! published last and cleared first, and an `Ops` is `'static`, so a dispatch that loaded one before may still call it.

use bitflags::bitflags;

use crate::addr::{FuncAddr, RetAddr};
use crate::filter::Filter;
use crate::regs::Regs;
use crate::sync::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

bitflags! {
    /// What an `ftrace_ops` needs; the names are the field's own.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct OpsFlags: u32 {
        /// The callback needs every register ([`Saved::Regs`](crate::Saved::Regs)), not the argument registers alone.
        const SAVE_REGS = 1 << 0;
    }
}

/// A callback at a function's entry.
///
/// It runs with preemption off, in whatever context the function was called, and must not sleep. It should not be traced;
/// if it is, its own calls reach it once more and then run untraced.
pub type OpsFunc<R> = fn(ip: FuncAddr, parent_ip: RetAddr, ops: &Ops<R>, fregs: &mut R);

/// One user of function entries. Kept in a `static` by whoever registers it.
#[derive(Debug)]
pub struct Ops<R: Regs> {
    func: OpsFunc<R>,
    flags: OpsFlags,
    filter: Filter,
    private: usize,
    registered: AtomicBool,
}

impl<R: Regs> Ops<R> {
    /// A user that wants `func` called at the entry of every function that `filter` lets through.
    pub const fn new(func: OpsFunc<R>, flags: OpsFlags, filter: Filter) -> Self {
        Self { func, flags, filter, private: 0, registered: AtomicBool::new(false) }
    }

    /// The same with a word of the user's own.
    pub const fn with_private(mut self, private: usize) -> Self {
        self.private = private;
        self
    }

    /// The user's own word.
    #[inline]
    pub fn private(&self) -> usize {
        self.private
    }

    /// What the user needs.
    pub fn flags(&self) -> OpsFlags {
        self.flags
    }

    /// Which functions the user wants.
    pub fn filter(&self) -> &Filter {
        &self.filter
    }

    /// Whether the user is registered.
    pub fn is_registered(&self) -> bool {
        self.registered.load(Ordering::Relaxed)
    }
}

/// How many users a [`Slots`] holds at most.
pub(crate) const MAX_OPS: usize = 16;

/// Registered users, by slot.
#[derive(Debug)]
pub(crate) struct Slots<T: 'static> {
    slots: [AtomicPtr<T>; MAX_OPS],
    /// One bit for each slot that is in use. Changed by the control side only.
    active: AtomicU32,
}

impl<T: Sync + 'static> Slots<T> {
    pub(crate) const fn new() -> Self {
        Self { slots: [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_OPS], active: AtomicU32::new(0) }
    }

    /// The lowest free slot.
    pub(crate) fn free_slot(&self) -> Option<usize> {
        let free = (!self.active.load(Ordering::Relaxed)).trailing_zeros() as usize;
        (free < MAX_OPS).then_some(free)
    }

    /// Publishes `user` in a free slot. Control side only.
    pub(crate) fn publish(&self, slot: usize, user: &'static T) {
        self.slots[slot].store(core::ptr::from_ref(user).cast_mut(), Ordering::Release);
        self.active.fetch_or(1 << slot, Ordering::Release);
    }

    /// Takes `user` out; its slot number, if it was there. Control side only.
    pub(crate) fn retract(&self, user: &'static T) -> Option<usize> {
        let slot = self.iter().find(|(_, there)| core::ptr::eq(*there, user))?.0;
        self.active.fetch_and(!(1 << slot), Ordering::Release);
        self.slots[slot].store(core::ptr::null_mut(), Ordering::Release);
        Some(slot)
    }

    /// The user in `slot`.
    #[inline]
    pub(crate) fn get(&self, slot: usize) -> Option<&'static T> {
        // One load: the slot may change at any moment.
        let user = self.slots[slot].load(Ordering::Acquire);
        // SAFETY: null, or a pointer made from a `&'static T` in `publish`.
        unsafe { user.as_ref() }
    }

    /// All users, in ascending slot order.
    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &'static T)> {
        let mut left = self.active.load(Ordering::Acquire);
        core::iter::from_fn(move || {
            while left != 0 {
                let slot = left.trailing_zeros() as usize;
                left &= left - 1;
                if let Some(user) = self.get(slot) {
                    return Some((slot, user));
                }
            }
            None
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.active.load(Ordering::Relaxed) == 0
    }
}

impl<R: Regs> Slots<Ops<R>> {
    /// Calls every user that wants `ip`, in ascending slot order.
    #[inline]
    pub(crate) fn dispatch(&self, ip: FuncAddr, parent_ip: RetAddr, fregs: &mut R) {
        for (_, ops) in self.iter() {
            if ops.filter.wants(ip) {
                (ops.func)(ip, parent_ip, ops, fregs);
            }
        }
    }
}

impl<R: Regs> Ops<R> {
    /// Marks the user as registered; `false` if it is already.
    pub(crate) fn claim(&self) -> bool {
        !self.registered.swap(true, Ordering::Relaxed)
    }

    /// Undoes [`claim`](Self::claim).
    pub(crate) fn release(&self) {
        self.registered.store(false, Ordering::Relaxed);
    }
}
