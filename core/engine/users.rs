//! Users come, go, and change what they want. Under the lock, in task context.
//!
//! A set lives in the sites' state words, one bit a slot. A change is first written to the scratch slot, which no traced path
//! looks at, and planned from there; only what will succeed is copied to the user's own bits.

use super::update::Change;
use super::{Control, Engine, Error, patched};
use crate::addr::{FuncAddr, SiteAddr};
use crate::graph::GraphOps;
use crate::machine::Machine;
use crate::ops::{Ops, OpsFlags};
use crate::platform::Platform;
use crate::regs::Regs;
use crate::site::State;
use crate::users::{Enabled, MAX_USERS, Mask, SCRATCH, User, slots};

/// One of the two sets of functions that a user has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhichSet {
    /// What it wants (`set_ftrace_filter`).
    Filter,
    /// What it does not want even so (`set_ftrace_notrace`).
    Notrace,
}

/// A change to a set of functions. Lists are in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetChange<'a> {
    /// Everything, those of modules loaded later included.
    All,
    /// Nothing.
    Clear,
    /// These and no others.
    Replace(&'a [FuncAddr]),
    /// These too. Everything and these is everything.
    Add(&'a [FuncAddr]),
    /// These not.
    Remove(&'a [FuncAddr]),
}

impl<P: Platform, M: Machine> Engine<P, M> {
    /// Registers a user of entries: see [`register_ftrace_function`](crate::register_ftrace_function).
    ///
    /// # Errors
    /// See there.
    pub fn register_ops(&self, ops: &'static Ops<M::Regs>) -> Result<(), Error> {
        self.register(User::Entry(ops))
    }

    /// Takes a user of entries out. When this returns, no callback of it is under way or will come.
    ///
    /// # Errors
    /// [`Error::NotRegistered`], and what goes wrong with the text; the user is out even then.
    pub fn unregister_ops(&self, ops: &'static Ops<M::Regs>) -> Result<(), Error> {
        self.unregister(User::Entry(ops))
    }

    /// Registers a graph user.
    ///
    /// # Errors
    /// As for users of entries.
    pub fn register_graph(&self, ops: &'static GraphOps<M::Regs>) -> Result<(), Error> {
        self.register(User::Graph(ops))
    }

    /// Takes a graph user out. When this returns, no callback of it is under way or will come; calls that are under way still
    /// return through their hooks, and their returns are not told any more.
    ///
    /// # Errors
    /// As for users of entries.
    pub fn unregister_graph(&self, ops: &'static GraphOps<M::Regs>) -> Result<(), Error> {
        self.unregister(User::Graph(ops))
    }

    fn register(&self, user: User<M::Regs>) -> Result<(), Error> {
        let mut control = self.control.lock();
        let trampolines = self.ready(&control)?;
        if control.switched_off && flags(user).contains(OpsFlags::PERMANENT) {
            return Err(Error::Permanent);
        }
        let attached = self.users.slot_of(user);
        let slot = match attached {
            Some(slot) if control.enabled & 1 << slot != 0 => return Err(Error::AlreadyRegistered),
            Some(slot) => slot,
            None => self.attach(user)?,
        };
        let registered = control.enabled | 1 << slot;
        let after = if control.switched_off { 0 } else { registered };
        let change = Change { after, registered, ..Change::none(&control) };
        let planned = self.plan(change, trampolines);
        if let Err(error) = planned {
            // Nobody saw it: it was not enabled. Who got its slot earlier, by a change, keeps it, and the sets.
            if attached.is_none() {
                self.detach(slot);
            }
            return Err(error);
        }
        control.enabled = registered;
        if !control.switched_off {
            // Before the text, so that no CPU comes through a site and finds nobody.
            self.users.set_enabled(slot, Enabled::Yes);
        }
        if let Err(error) = self.apply(change, trampolines) {
            self.withdraw(&mut control, slot);
            self.choose_path();
            return Err(error);
        }
        self.choose_path();
        Ok(())
    }

    fn unregister(&self, user: User<M::Regs>) -> Result<(), Error> {
        let mut control = self.control.lock();
        let slot = self.users.slot_of(user).ok_or(Error::NotRegistered)?;
        let trampolines = self.ready(&control);
        let before = patched(&control);
        control.enabled &= !(1 << slot);
        self.users.set_enabled(slot, Enabled::No);
        let change = Change { before, ..Change::none(&control) };
        let updated = trampolines.and_then(|trampolines| self.update(change, trampolines));
        self.withdraw(&mut control, slot);
        self.choose_path();
        updated
    }

    /// Gives a user a slot and its first sets, but does not enable it.
    pub(super) fn attach(&self, user: User<M::Regs>) -> Result<usize, Error> {
        let filter = match user {
            User::Entry(ops) => *ops.filter(),
            User::Graph(ops) => *ops.filter(),
        };
        let sets: [(_, SetChange<'_>); 2] =
            [(WhichSet::Filter, filter.include.into()), (WhichSet::Notrace, filter.exclude.into())];
        let slot = self.users.attach(user).ok_or(Error::TooManyUsers { max: MAX_USERS })?;
        for (which, set) in sets {
            if let Err(error) = self.check(user, which, set) {
                self.detach(slot);
                return Err(error);
            }
            self.set(slot, which, set);
        }
        Ok(slot)
    }

    /// Takes a user out of its slot, once nobody uses it any more.
    fn withdraw(&self, control: &mut Control, slot: usize) {
        control.enabled &= !(1 << slot);
        self.users.set_enabled(slot, Enabled::No);
        self.quiesce.synchronize::<P>();
        self.detach(slot);
    }

    /// Frees the slot of a user that no traced path sees.
    pub(super) fn detach(&self, slot: usize) {
        self.forget_sets(slot);
        self.users.detach(slot);
    }

    pub(super) fn forget_sets(&self, slot: usize) {
        self.users.set_everything(slot, WhichSet::Filter, false);
        self.users.set_everything(slot, WhichSet::Notrace, false);
        self.for_each_state(|_, _, state| {
            let bit = 1 << slot;
            State { include: state.include & !bit, exclude: state.exclude & !bit, ..state }
        });
    }

    /// As [`change_ops`](Self::change_ops), for either kind of user.
    fn change(&self, user: User<M::Regs>, which: WhichSet, change: SetChange<'_>) -> Result<(), Error> {
        let control = self.control.lock();
        let trampolines = self.ready(&control)?;
        self.check(user, which, change)?;
        let attached = self.users.slot_of(user);
        let slot = match attached {
            Some(slot) => slot,
            None => self.attach(user)?,
        };
        self.copy_sets(slot, SCRATCH);
        self.set(SCRATCH, which, change);
        // The text first: a call that reaches the engine too early finds nobody who wants it, one that does not reach it any
        // more is one that nobody will want.
        let sets = Change { sets: Some(slot), ..Change::none(&control) };
        let changed = self.update(sets, trampolines);
        if changed.is_ok() {
            self.copy_sets(SCRATCH, slot);
            self.forget_waiting(slot, which, change);
        } else if attached.is_none() {
            self.detach(slot);
        }
        self.forget_sets(SCRATCH);
        changed
    }

    /// Changes a set of a user that is registered, or that will be: then it keeps its slot until it is unregistered. For each
    /// function the change takes effect in one store; a function that is wanted before and after misses no call.
    ///
    /// # Errors
    /// [`Error::NotTraceable`], [`Error::UnsortedFilter`], [`Error::IpModifyConflict`], [`Error::IpModifyNeedsFilter`],
    /// [`Error::TooManyUsers`], [`Error::OutOfRange`]: the set is as it was, and was so throughout. [`Error::Surprise`] and
    /// [`Error::Write`] stop tracing.
    pub fn change_ops(
        &self,
        ops: &'static Ops<M::Regs>,
        which: WhichSet,
        to: SetChange<'_>,
    ) -> Result<(), Error> {
        self.change(User::Entry(ops), which, to)
    }

    /// [`change_ops`](Self::change_ops) for a graph user.
    ///
    /// # Errors
    /// See there.
    pub fn change_graph(
        &self,
        ops: &'static GraphOps<M::Regs>,
        which: WhichSet,
        to: SetChange<'_>,
    ) -> Result<(), Error> {
        self.change(User::Graph(ops), which, to)
    }

    /// The traced path looks at "everything" first and at the state then. So with everything set first and cleared last, and
    /// `include` left alone while it is set, it finds what was wanted before or what is wanted after, whenever it looks.
    pub(super) fn copy_sets(&self, from: usize, to: usize) {
        let everything = self.users.everything(from, WhichSet::Filter);
        if everything {
            self.users.set_everything(to, WhichSet::Filter, true);
        }
        let notrace = self.users.everything(from, WhichSet::Notrace);
        self.users.set_everything(to, WhichSet::Notrace, notrace);
        self.for_each_state(|_, _, state| {
            let copied = |mask: Mask| mask & !(1 << to) | (mask >> from & 1) << to;
            State { include: copied(state.include), exclude: copied(state.exclude), ..state }
        });
        if !everything {
            self.users.set_everything(to, WhichSet::Filter, false);
        }
    }

    /// Whether a user's set may be changed like this.
    pub(super) fn check(
        &self,
        user: User<M::Regs>,
        which: WhichSet,
        change: SetChange<'_>,
    ) -> Result<(), Error> {
        if let SetChange::Replace(funcs) | SetChange::Add(funcs) | SetChange::Remove(funcs) = change {
            if let Some(pair) = funcs.windows(2).find(|pair| pair[0] >= pair[1]) {
                return Err(Error::UnsortedFilter { func: pair[1] });
            }
            for func in funcs {
                self.sites.find_func::<M>(*func).ok_or(Error::NotTraceable { func: *func })?;
            }
        }
        let harmless = match (which, change) {
            (WhichSet::Filter, SetChange::All) => false,
            (WhichSet::Filter, _) | (WhichSet::Notrace, SetChange::Clear | SetChange::Remove(_)) => true,
            (WhichSet::Notrace, _) => false,
        };
        if flags(user).intersects(OpsFlags::IPMODIFY.union(OpsFlags::DIRECT)) && !harmless {
            return Err(Error::IpModifyNeedsFilter);
        }
        Ok(())
    }

    /// Writes one set of a slot that no traced path looks at. A function may be named by its entry or by its site.
    pub(super) fn set(&self, slot: usize, which: WhichSet, change: SetChange<'_>) {
        let bit: Mask = 1 << slot;
        let was_all = self.users.everything(slot, which);
        self.for_each_state(|func, site, state| {
            let among = |funcs: &[FuncAddr]| {
                funcs
                    .binary_search(&func)
                    .or_else(|_| funcs.binary_search(&FuncAddr::new(site.get())))
                    .is_ok()
            };
            let mask = if which == WhichSet::Filter { state.include } else { state.exclude };
            let had = mask & bit != 0;
            let has = match (which, change) {
                // Behind "everything" nobody asks for the members: see `copy_sets` for who relies on their staying.
                (WhichSet::Filter, SetChange::All) => had,
                (WhichSet::Notrace, SetChange::All) => true,
                (_, SetChange::Clear) => false,
                (_, SetChange::Replace(funcs)) => among(funcs),
                (_, SetChange::Add(funcs)) => had || among(funcs),
                (_, SetChange::Remove(funcs)) => (had || was_all) && !among(funcs),
            };
            let mask = if has { mask | bit } else { mask & !bit };
            match which {
                WhichSet::Filter => State { include: mask, ..state },
                WhichSet::Notrace => State { exclude: mask, ..state },
            }
        });
        let all = match change {
            SetChange::All => true,
            SetChange::Add(_) => was_all,
            SetChange::Clear | SetChange::Replace(_) | SetChange::Remove(_) => false,
        };
        self.users.set_everything(slot, which, all);
    }

    pub(super) fn for_each_state(&self, change: impl Fn(FuncAddr, SiteAddr, State) -> State) {
        for module in self.sites.modules() {
            let table = self.sites.table(module);
            for (index, site, func, state) in table.iter::<M>() {
                let changed = change(func, site, state);
                if changed != state {
                    table.set_state(index, changed);
                }
            }
        }
    }

    /// The global switch (`ftrace_enabled`): off, no user is called, and no site is patched. Users stay registered.
    ///
    /// # Errors
    /// [`Error::Permanent`] when a permanent user is registered; what goes wrong with the text.
    pub fn set_enabled(&self, enabled: bool) -> Result<(), Error> {
        let mut control = self.control.lock();
        let trampolines = self.ready(&control)?;
        let permanent =
            |slot| self.users.user(slot).is_some_and(|user| flags(user).contains(OpsFlags::PERMANENT));
        if !enabled && slots(control.enabled).any(permanent) {
            return Err(Error::Permanent);
        }
        let before = patched(&control);
        let after = if enabled { control.enabled } else { 0 };
        let change = Change { before, after, ..Change::none(&control) };
        self.plan(change, trampolines)?;
        control.switched_off = !enabled;
        for slot in slots(control.enabled) {
            self.users.set_enabled(slot, if enabled { Enabled::Yes } else { Enabled::No });
        }
        let applied = self.apply(change, trampolines);
        self.choose_path();
        applied
    }

    /// What a user of the straight path wants has changed: it may have to leave it, or can take it again. Task context.
    pub fn path_changed(&self) {
        let _control = self.control.lock();
        self.users.straight.off();
        self.choose_path();
    }

    /// Lets the functions of a user with a trampoline of its own go on elsewhere (`modify_ftrace_direct`). Each call goes to the
    /// one or to the other.
    ///
    /// # Errors
    /// [`Error::NotDirect`]; what goes wrong with the text.
    ///
    /// # Safety
    /// As for [`Ops::direct`].
    pub unsafe fn modify_direct(&self, ops: &'static Ops<M::Regs>, target: usize) -> Result<(), Error> {
        let control = self.control.lock();
        let trampolines = self.ready(&control)?;
        if !ops.flags().contains(OpsFlags::DIRECT) || target == 0 {
            return Err(Error::NotDirect);
        }
        let Some(slot) = self.users.slot_of(User::Entry(ops)) else {
            ops.set_direct_target(target);
            return Ok(());
        };
        // No sled jumps there while it changes: what stands in the text is always where a user's functions go.
        self.update(Change { detour: 1 << slot, ..Change::none(&control) }, trampolines)?;
        ops.set_direct_target(target);
        self.update(Change::none(&control), trampolines)
    }
}

fn flags<R: Regs>(user: User<R>) -> OpsFlags {
    match user {
        User::Entry(ops) => ops.flags(),
        User::Graph(_) => OpsFlags::empty(),
    }
}

#[cfg(test)]
impl<P: Platform, M: Machine> Engine<P, M> {
    pub(crate) fn has_ops(&self, ops: &'static Ops<M::Regs>) -> bool {
        self.has(User::Entry(ops))
    }

    pub(crate) fn has_graph(&self, ops: &'static GraphOps<M::Regs>) -> bool {
        self.has(User::Graph(ops))
    }

    fn has(&self, user: User<M::Regs>) -> bool {
        let control = self.control.lock();
        self.users.slot_of(user).is_some_and(|slot| control.enabled & 1 << slot != 0)
    }
}
