//! From what users want to what stands in the text. Under the lock, in task context.

use super::{Control, Engine, Error, Trampolines};
use crate::machine::{Code, MAX_STEPS, Machine, Sled};
use crate::ops::{Ops, OpsFlags};
use crate::platform::Platform;
use crate::site::{Flavor, State, read_site};
use crate::sites::ModuleId;
use crate::users::{Mask, SCRATCH, slots};

/// What a plan takes for true that is not so yet.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pretend {
    /// Nothing.
    Nothing,
    /// The user in this slot is registered.
    Registered(usize),
    /// The user in this slot has the sets of the scratch slot.
    Changed(usize),
}

impl<P: Platform, M: Machine> Engine<P, M> {
    /// Writes what stands at a group's sites while they are off, where the compiler left something else.
    pub(super) fn prepare(&self, module: ModuleId) -> Result<(), Error> {
        for (_, site, _, state) in self.sites.table(module).iter::<M>() {
            if M::needs_preparing(state.layout) {
                let off = M::code(site, state.layout, Sled::Off).map_err(Error::OutOfRange)?;
                self.write(site.get(), off)?;
            }
        }
        P::sync_cores();
        Ok(())
    }

    /// Brings every site's text to what the enabled users need.
    pub(super) fn update(&self, control: &Control, trampolines: Trampolines) -> Result<(), Error> {
        self.plan(control, Pretend::Nothing, trampolines)?;
        self.apply(trampolines)
    }

    /// Sets every site's target, and compares the text with what should stand there: nothing is written before all of it is
    /// right. On an error no target is left.
    pub(super) fn plan(
        &self,
        control: &Control,
        pretend: Pretend,
        trampolines: Trampolines,
    ) -> Result<(), Error> {
        let planned = self.plan_all(control, pretend, trampolines);
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
    pub(super) fn apply(&self, trampolines: Trampolines) -> Result<(), Error> {
        for step in 0..MAX_STEPS {
            let mut wrote = false;
            for module in self.sites.modules() {
                let changing = self.sites.table(module).iter::<M>().filter(|(.., s)| s.current != s.target);
                for (_, site, _, state) in changing {
                    let from = sled(state.current, trampolines);
                    let to = sled(state.target, trampolines);
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

    fn plan_all(&self, control: &Control, pretend: Pretend, trampolines: Trampolines) -> Result<(), Error> {
        let all = self.users.all();
        let registered = match pretend {
            Pretend::Registered(slot) => control.enabled | 1 << slot,
            Pretend::Nothing | Pretend::Changed(_) => control.enabled,
        };
        let with = |needs: fn(&Ops<M::Regs>) -> bool| {
            slots(registered)
                .filter(|slot| self.users.entry(*slot).is_some_and(needs))
                .fold(0, |mask: Mask, slot| mask | 1 << slot)
        };
        let regs = with(Ops::needs_regs);
        let ip_modify = with(|ops| ops.flags().contains(OpsFlags::IPMODIFY));
        for module in self.sites.modules() {
            let table = self.sites.table(module);
            for (index, site, func, state) in table.iter::<M>() {
                let mut wanting = state.wanted_by(all);
                if let Pretend::Changed(slot) = pretend {
                    wanting = wanting & !(1 << slot) | (wanting >> SCRATCH & 1) << slot;
                }
                let users = wanting & registered;
                // Also while the switch is off, so that it can be switched on.
                if (users & ip_modify).count_ones() > 1 {
                    return Err(Error::IpModifyConflict { func });
                }
                let users = if control.switched_off { 0 } else { users };
                let target = match users {
                    0 => Flavor::Off,
                    users if users & regs != 0 => Flavor::Regs,
                    _ => Flavor::Args,
                };
                if target == state.current {
                    continue;
                }
                let from = sled(state.current, trampolines);
                M::plan(site, state.layout, from, sled(target, trampolines)).map_err(Error::OutOfRange)?;
                let expected = M::code(site, state.layout, from).map_err(Error::OutOfRange)?;
                let found = read_site::<M, P>(site).map_or(Code::new(&[]), |(_, found)| found);
                if found != expected {
                    return Err(Error::Surprise { site, expected, found });
                }
                table.set_state(index, State { target, ..state });
            }
        }
        Ok(())
    }

    /// Writes text, or stops tracing for good.
    fn write(&self, addr: usize, code: Code) -> Result<(), Error> {
        // SAFETY: the bytes are a plan's, for a site that was decoded and compared under the lock that is held.
        unsafe { P::write_text(addr, code.as_slice()) }.map_err(|error| {
            self.stop();
            Error::Write(error)
        })
    }
}

fn sled(flavor: Flavor, trampolines: Trampolines) -> Sled {
    match flavor {
        Flavor::Off => Sled::Off,
        Flavor::Args => Sled::Call(trampolines.args),
        Flavor::Regs => Sled::Call(trampolines.regs),
    }
}
