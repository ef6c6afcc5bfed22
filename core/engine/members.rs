//! The functions of a user's set as a list of addresses, for who looks at sets without the sites' states.

use super::{Engine, Error, WhichSet};
use crate::addr::FuncAddr;
use crate::machine::Machine;
use crate::ops::Ops;
use crate::platform::Platform;
use crate::users::User;

/// What is in a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Members {
    /// Everything.
    All,
    /// So many functions. If there was no room for all of them, those that came first are there.
    Some(usize),
}

impl<P: Platform, M: Machine> Engine<P, M> {
    /// Writes the functions of a set to `out`, in ascending order.
    ///
    /// # Errors
    /// [`Error::NotRegistered`] for a user without a slot.
    pub(crate) fn members(
        &self,
        ops: &'static Ops<M::Regs>,
        which: WhichSet,
        out: &mut [FuncAddr],
    ) -> Result<Members, Error> {
        let _control = self.control.lock();
        let slot = self.users.slot_of(User::Entry(ops)).ok_or(Error::NotRegistered)?;
        if self.users.everything(slot, which) {
            return Ok(Members::All);
        }
        let mut count = 0;
        for module in self.sites.modules() {
            for (_, _, func, state) in self.sites.table(module).iter::<M>() {
                let mask = if which == WhichSet::Filter { state.include } else { state.exclude };
                if mask & 1 << slot == 0 {
                    continue;
                }
                if let Some(place) = out.get_mut(count) {
                    *place = func;
                }
                count += 1;
            }
        }
        // Modules may be anywhere.
        out.get_mut(..count).unwrap_or(&mut []).sort_unstable();
        Ok(Members::Some(count))
    }
}
