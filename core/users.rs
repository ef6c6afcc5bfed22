//! Who is registered: one row of slots for users of entries and users of the graph together.
//!
//! A slot's number is also its bit in every site's state word, so which users want a function is one AND of masks, whatever
//! their filters look like.
//!
//! The control side attaches, enables, disables and detaches, under its lock. The traced path loads masks and pointers, between
//! [`quiesce`](crate::quiesce)'s `enter` and `leave`: so what a detached slot pointed to is unused once
//! `synchronize` has returned.

use crate::bits::ones;
use crate::engine::WhichSet;
use crate::frame::MAX_STAMP;
use crate::graph::GraphOps;
use crate::ops::Ops;
use crate::regs::Regs;
use crate::straight::{Plain, Straight};
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering, interrupt_point};

/// Slots, each with a bit of its own in every site's state.
pub(crate) const SLOTS: usize = 24;

/// The most users, of entries and of the graph together.
pub const MAX_USERS: usize = SLOTS - 1;

/// The slot that is no user's: where a user's sets are kept while others are tried.
pub(crate) const SCRATCH: usize = SLOTS - 1;

/// A set of slots, one bit each.
pub(crate) type Mask = u32;

/// Every slot's bit.
pub(crate) const ALL_SLOTS: Mask = (1 << SLOTS) - 1;

/// A user, by what it wants to be told.
#[derive(Debug)]
pub(crate) enum User<R: Regs> {
    Entry(&'static Ops<R>),
    Graph(&'static GraphOps<R>),
}

impl<R: Regs> Clone for User<R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R: Regs> Copy for User<R> {}

/// See the module.
#[derive(Debug)]
pub(crate) struct Users<R: Regs> {
    entry: [AtomicPtr<Ops<R>>; SLOTS],
    graph: [AtomicPtr<GraphOps<R>>; SLOTS],
    /// Enabled users of entries.
    entry_mask: AtomicU32,
    /// Enabled users of the graph.
    graph_mask: AtomicU32,
    /// Users that want every function but those excluded.
    all_mask: AtomicU32,
    /// Users that exclude every function, those of modules loaded later included. For the control side alone: the traced path
    /// finds it in the sites' states.
    all_notrace: AtomicU32,
    /// How often a slot was given out.
    clock: AtomicU64,
    /// For each slot, what `clock` said when its user came.
    since: [AtomicU64; SLOTS],
    /// Whether the trampolines may do by themselves what the only user wants.
    pub(crate) straight: Straight,
}

impl<R: Regs> Users<R> {
    pub(crate) const fn new() -> Self {
        Self {
            entry: [const { AtomicPtr::new(core::ptr::null_mut()) }; SLOTS],
            graph: [const { AtomicPtr::new(core::ptr::null_mut()) }; SLOTS],
            entry_mask: AtomicU32::new(0),
            graph_mask: AtomicU32::new(0),
            all_mask: AtomicU32::new(0),
            all_notrace: AtomicU32::new(0),
            clock: AtomicU64::new(0),
            since: [const { AtomicU64::new(0) }; SLOTS],
            straight: Straight::new(),
        }
    }

    /// From here to the words of the straight path.
    pub(crate) const STRAIGHT: usize = core::mem::offset_of!(Self, straight);

    /// Gives the user a slot, not enabled yet. `None` when there is none, or stamps would repeat. Control side.
    pub(crate) fn attach(&self, user: User<R>) -> Option<usize> {
        let slot = (0..MAX_USERS).find(|slot| self.user(*slot).is_none())?;
        let now = self.clock.load(Ordering::Relaxed) + 1;
        if now > MAX_STAMP {
            return None;
        }
        // A frame that read `clock` before keeps a smaller stamp than the slot's new user, whatever it reads next.
        self.since[slot].store(now, Ordering::Relaxed);
        self.clock.store(now, Ordering::Release);
        match user {
            User::Entry(ops) => {
                self.entry[slot].store(core::ptr::from_ref(ops).cast_mut(), Ordering::Release)
            }
            User::Graph(ops) => {
                self.graph[slot].store(core::ptr::from_ref(ops).cast_mut(), Ordering::Release)
            }
        }
        Some(slot)
    }

    /// Takes a disabled user out of its slot. Control side.
    pub(crate) fn detach(&self, slot: usize) {
        self.entry[slot].store(core::ptr::null_mut(), Ordering::Release);
        self.graph[slot].store(core::ptr::null_mut(), Ordering::Release);
    }

    /// Lets the traced path see the user, or not. Control side.
    pub(crate) fn set_enabled(&self, slot: usize, enabled: Enabled) {
        // Before the change can be seen; `choose_path` decides anew.
        self.straight.off();
        let mask = if self.is_graph(slot) { &self.graph_mask } else { &self.entry_mask };
        match enabled {
            Enabled::Yes => mask.fetch_or(1 << slot, Ordering::Release),
            Enabled::No => mask.fetch_and(!(1 << slot), Ordering::Release),
        };
    }

    /// Takes the straight path if there is one for the users that are enabled, behind `prepare`. Control side.
    pub(crate) fn choose_path(&self, prepare: impl FnOnce(Plain)) {
        let (entries, graphs) = (self.entries(), self.graphs());
        let slot = graphs.trailing_zeros() as usize;
        let only = entries == 0 && graphs.is_power_of_two();
        if only
            && let Some(plain) = self.graph(slot).and_then(GraphOps::plain)
            && let Some(least) = (plain.from)()
        {
            prepare(plain);
            self.straight.on(slot, self.stamp(), least);
        }
    }

    /// Says that one of the slot's sets is everything, or is what the sites' states say. Control side.
    pub(crate) fn set_everything(&self, slot: usize, which: WhichSet, everything: bool) {
        let mask = self.everything_mask(which);
        if everything {
            mask.fetch_or(1 << slot, Ordering::Release);
        } else {
            mask.fetch_and(!(1 << slot), Ordering::Release);
        }
        interrupt_point();
    }

    /// Whether one of the slot's sets is everything. Control side.
    pub(crate) fn everything(&self, slot: usize, which: WhichSet) -> bool {
        self.everything_mask(which).load(Ordering::Relaxed) & 1 << slot != 0
    }

    fn everything_mask(&self, which: WhichSet) -> &AtomicU32 {
        match which {
            WhichSet::Filter => &self.all_mask,
            WhichSet::Notrace => &self.all_notrace,
        }
    }

    /// Users that exclude everything. Control side.
    pub(crate) fn all_notrace(&self) -> Mask {
        self.all_notrace.load(Ordering::Relaxed)
    }

    /// Users that want every function but those excluded. To be asked for before a site's state is loaded: a filter that stops
    /// being everything has its members in the states by then.
    #[inline]
    pub(crate) fn all(&self) -> Mask {
        let all = self.all_mask.load(Ordering::Acquire);
        interrupt_point();
        all
    }

    /// Enabled users of entries.
    #[inline]
    pub(crate) fn entries(&self) -> Mask {
        self.entry_mask.load(Ordering::Acquire)
    }

    /// Enabled users of the graph.
    #[inline]
    pub(crate) fn graphs(&self) -> Mask {
        self.graph_mask.load(Ordering::Acquire)
    }

    /// The user of entries in `slot`.
    #[inline]
    pub(crate) fn entry(&self, slot: usize) -> Option<&'static Ops<R>> {
        // SAFETY: null, or made from a `&'static` in `attach`.
        unsafe { self.entry[slot].load(Ordering::Acquire).as_ref() }
    }

    /// The graph user in `slot`.
    #[inline]
    pub(crate) fn graph(&self, slot: usize) -> Option<&'static GraphOps<R>> {
        // SAFETY: null, or made from a `&'static` in `attach`.
        unsafe { self.graph[slot].load(Ordering::Acquire).as_ref() }
    }

    fn is_graph(&self, slot: usize) -> bool {
        !self.graph[slot].load(Ordering::Relaxed).is_null()
    }

    /// Whoever is attached to `slot`.
    pub(crate) fn user(&self, slot: usize) -> Option<User<R>> {
        self.entry(slot).map(User::Entry).or_else(|| self.graph(slot).map(User::Graph))
    }

    /// The slot of a user.
    pub(crate) fn slot_of(&self, user: User<R>) -> Option<usize> {
        (0..MAX_USERS).find(|slot| match (self.user(*slot), user) {
            (Some(User::Entry(there)), User::Entry(ops)) => core::ptr::eq(there, ops),
            (Some(User::Graph(there)), User::Graph(ops)) => core::ptr::eq(there, ops),
            _ => false,
        })
    }

    #[cfg(test)]
    pub(crate) fn set_clock(&self, clock: u64) {
        self.clock.store(clock, Ordering::Relaxed);
    }

    /// What `clock` said when the slot's user came: tells it from any other that the slot has had or will have.
    pub(crate) fn since(&self, slot: usize) -> u64 {
        self.since[slot].load(Ordering::Relaxed)
    }

    /// The stamp of a frame that is made now.
    #[inline]
    pub(crate) fn stamp(&self) -> u64 {
        self.clock.load(Ordering::Acquire)
    }

    /// Whether the user in `slot` was there already when the frame with this stamp was made.
    #[inline]
    pub(crate) fn was_there(&self, slot: usize, stamp: u64) -> bool {
        self.since[slot].load(Ordering::Relaxed) <= stamp
    }
}

/// Whether the traced path sees a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Enabled {
    /// It does.
    Yes,
    /// It does not.
    No,
}

/// The slots of a mask, ascending.
#[inline]
pub(crate) fn slots(mask: Mask) -> impl Iterator<Item = usize> {
    ones(u64::from(mask))
}
