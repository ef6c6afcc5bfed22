//! From what users want to what stands in the text. Under the lock, in task context.

use super::{Control, Engine, Error, patched};
use crate::addr::SiteAddr;
use crate::machine::{Code, MAX_STEPS, Machine, Sled, Trampolines};
use crate::ops::Ops;
use crate::platform::Platform;
use crate::site::{Flavor, State, read_site};
use crate::sites::ModuleId;
use crate::users::{Mask, SCRATCH, slots};

/// What becomes different: one user, one module, or the switch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    /// Users whose functions are patched in the text as it is.
    pub(super) before: Mask,
    /// Users whose functions will be.
    pub(super) after: Mask,
    /// Users that will be registered, patched or not: for conflicts, so that the tracer can be switched on.
    pub(super) registered: Mask,
    /// The user in this slot will have the sets of the scratch slot.
    pub(super) sets: Option<usize>,
    /// Nobody will want functions of this module.
    pub(super) leaving: Option<ModuleId>,
    /// Users with a trampoline of their own that sleds must not jump to.
    pub(super) detour: Mask,
}

impl Change {
    /// No change at all.
    pub(super) fn none(control: &Control) -> Self {
        Self {
            before: patched(control),
            after: patched(control),
            registered: control.enabled,
            sets: None,
            leaving: None,
            detour: 0,
        }
    }
}

/// Masks of the users that need something, asked for once in an update.
struct Needs {
    all: Mask,
    regs: Mask,
    modify_ip: Mask,
    direct: Mask,
}

impl<P: Platform, M: Machine> Engine<P, M> {
    /// Writes what is to stand at a group's sites before they are used. On an error tracing has stopped for good if anything
    /// was written.
    pub(super) fn prepare(&self, module: ModuleId, trampolines: Trampolines) -> Result<(), Error> {
        let table = self.sites.table(module);
        let plan = |index, site, state: State| {
            M::prepare(site, state.layout, &trampolines, table.state_addr(index)).map_err(Error::OutOfRange)
        };
        for (index, site, _, state) in table.iter::<M>() {
            plan(index, site, state)?;
        }
        for (index, site, _, state) in table.iter::<M>() {
            for (addr, code) in plan(index, site, state)?.into_iter().flatten() {
                self.write(addr, code)?;
            }
        }
        P::sync_cores();
        Ok(())
    }

    /// Brings every site's text to what the users need after `change`.
    pub(super) fn update(&self, change: Change, trampolines: Trampolines) -> Result<(), Error> {
        self.plan(change, trampolines)?;
        self.apply(change, trampolines)
    }

    /// Sets every site's target, and compares the text with what should stand there: nothing is written before all of it is
    /// right. On an error no target is left.
    pub(super) fn plan(&self, change: Change, trampolines: Trampolines) -> Result<(), Error> {
        let planned = self.plan_all(change, trampolines);
        if let Err(error) = planned {
            self.for_each_state(|_, _, state| State { target: state.current, ..state });
            if matches!(error, Error::Surprise { .. }) {
                self.stop();
            }
        }
        planned
    }

    /// Carries out what was planned: the plans' first writes, a core sync, their second writes, and so on. With INT3 that is
    /// the batch protocol, with the tables themselves as the batch.
    pub(super) fn apply(&self, change: Change, trampolines: Trampolines) -> Result<(), Error> {
        let needs = self.needs(change);
        for step in 0..MAX_STEPS {
            let mut wrote = false;
            for module in self.sites.modules() {
                let changing = self.sites.table(module).iter::<M>().filter(|(.., s)| s.current != s.target);
                for (_, site, _, state) in changing {
                    let (before, after) = wanting(module, state, change, &needs);
                    let from = self.sled(state, state.current, before, &needs, &trampolines);
                    let to = self.sled(state, state.target, after, &needs, &trampolines);
                    let plan = M::plan(site, state.layout, from, to).map_err(Error::OutOfRange)?;
                    if let Some(write) = plan[step] {
                        self.write(write.addr, write.new)?;
                        wrote = true;
                    }
                }
            }
            if wrote {
                P::sync_cores();
            }
        }
        self.for_each_state(|_, _, state| State {
            current: state.target,
            touched: state.touched || state.target != state.current,
            ..state
        });
        Ok(())
    }

    fn needs(&self, change: Change) -> Needs {
        let with = |needs: fn(&Ops<M::Regs>) -> bool| {
            slots(change.registered | change.before)
                .filter(|slot| self.users.entry(*slot).is_some_and(needs))
                .fold(0, |mask: Mask, slot| mask | 1 << slot)
        };
        Needs {
            all: self.users.all(),
            regs: with(Ops::needs_regs),
            modify_ip: with(Ops::modifies_ip),
            direct: with(|ops| ops.direct_target() != 0),
        }
    }

    fn plan_all(&self, change: Change, trampolines: Trampolines) -> Result<(), Error> {
        let needs = self.needs(change);
        for module in self.sites.modules() {
            let table = self.sites.table(module);
            for (index, site, func, state) in table.iter::<M>() {
                let (before, after) = wanting(module, state, change, &needs);
                if (after & change.registered & needs.modify_ip).count_ones() > 1 {
                    return Err(Error::IpModifyConflict { func });
                }
                let target = self.flavor(site, state, after & change.after, change, &needs);
                if target == state.current {
                    continue;
                }
                let from = self.sled(state, state.current, before, &needs, &trampolines);
                let to = self.sled(state, target, after, &needs, &trampolines);
                M::plan(site, state.layout, from, to).map_err(Error::OutOfRange)?;
                let expected = M::code(site, state.layout, from).map_err(Error::OutOfRange)?;
                let found = read_site::<P>(site, expected);
                if found != expected {
                    return Err(Error::Surprise { site, expected, found });
                }
                table.set_state(index, State { target, ..state });
            }
        }
        Ok(())
    }

    /// What a site must do for `users`, and no more.
    fn flavor(&self, site: SiteAddr, state: State, users: Mask, change: Change, needs: &Needs) -> Flavor {
        if users == 0 {
            Flavor::Off
        } else if users & needs.regs != 0 {
            Flavor::Regs
        } else if users & !(needs.direct & !change.detour) == 0
            && M::jumps(state.layout)
            && M::code(site, state.layout, self.jump(users, needs)).is_ok()
        {
            Flavor::Direct
        } else {
            Flavor::Args
        }
    }

    /// What the sled does for a flavor, where `users` are those that want the function.
    fn sled(&self, state: State, flavor: Flavor, users: Mask, needs: &Needs, all: &Trampolines) -> Sled {
        let pair = M::trampolines(state.layout, all);
        match flavor {
            Flavor::Off => Sled::Off,
            Flavor::Args => Sled::Call(pair.args),
            Flavor::Regs => Sled::Call(pair.regs),
            Flavor::Direct => self.jump(users, needs),
        }
    }

    /// A jump to the one of `users` that has a trampoline of its own.
    fn jump(&self, users: Mask, needs: &Needs) -> Sled {
        let direct = slots(users & needs.direct).find_map(|slot| self.users.entry(slot));
        direct.map_or(Sled::Off, |ops| Sled::Jump(ops.direct_target()))
    }

    /// Writes text, or stops tracing for good.
    pub(super) fn write(&self, addr: usize, code: Code) -> Result<(), Error> {
        // SAFETY: the bytes are a plan's, for a site that was decoded and compared under the lock that is held.
        unsafe { P::write_text(addr, code.as_slice()) }.map_err(|error| {
            self.stop();
            Error::Write(error)
        })
    }
}

/// The users that want a function, among those that are patched now and among those that will be registered.
fn wanting(module: ModuleId, state: State, change: Change, needs: &Needs) -> (Mask, Mask) {
    let before = state.wanted_by(needs.all);
    let mut after = before;
    if let Some(slot) = change.sets {
        after = after & !(1 << slot) | (after >> SCRATCH & 1) << slot;
    }
    if change.leaving == Some(module) {
        after = 0;
    }
    (before & change.before, after & change.registered)
}
