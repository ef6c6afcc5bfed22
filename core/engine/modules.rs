//! Code that is loaded at run time: its sites come, and go without a trace. Under the lock, in task context.

use super::{Engine, Error};
use crate::addr::SiteAddr;
use crate::machine::Machine;
use crate::platform::Platform;
use crate::site::{SiteError, SiteReport, SiteSource, State};
use crate::sites::{Groups, ModuleId};
use crate::users::ALL_SLOTS;

impl<P: Platform, M: Machine> Engine<P, M> {
    /// Adds the sites of code that was loaded at run time, before any of it runs. Users that want everything want it too.
    ///
    /// # Errors
    /// As [`init`](Self::init); [`Error::TooManyModules`].
    ///
    /// # Safety
    /// As [`init`](Self::init), for the module's text; and its memory stays as it is until [`remove_module`](Self::remove_module)
    /// has returned.
    pub unsafe fn add_module(&self, source: SiteSource) -> Result<(ModuleId, SiteReport), Error> {
        let control = self.control.lock();
        let trampolines = self.ready(&control)?;
        let module = self.sites.free().ok_or(Error::TooManyModules { max: Groups::MAX_MODULES })?;
        let report = self.sites.table(module).build_module::<M, P>(source).map_err(Error::Sites)?;
        let table = self.sites.table(module);
        if let Some(overlapping) = self.overlapping(module) {
            // Nobody has seen it: it is not published.
            table.forget();
            return Err(Error::Sites(overlapping));
        }
        let exclude = self.users.all_notrace();
        for (index, .., state) in table.iter::<M>() {
            table.set_state(index, State { exclude, ..state });
        }
        self.sites.publish(module);
        let done = self.prepare(module).and_then(|()| self.update(&control, trampolines));
        if let Err(error) = done {
            self.drop_module(module);
            return Err(error);
        }
        Ok((module, report))
    }

    /// Takes the sites of a module out again: nothing of it is patched any more, no user's set has its functions, and when this
    /// returns nothing here refers to its memory. Its code must not be running.
    ///
    /// # Errors
    /// [`Error::NoSuchModule`]; what goes wrong with the text, but the module is out even so.
    pub fn remove_module(&self, module: ModuleId) -> Result<(), Error> {
        let control = self.control.lock();
        let trampolines = self.ready(&control);
        if module == ModuleId::KERNEL || !self.sites.modules().any(|there| there == module) {
            return Err(Error::NoSuchModule);
        }
        let table = self.sites.table(module);
        for (index, .., state) in table.iter::<M>() {
            table.set_state(index, State { include: 0, exclude: ALL_SLOTS, ..state });
        }
        let done = trampolines.and_then(|trampolines| self.update(&control, trampolines));
        self.drop_module(module);
        done
    }

    /// A site of a table that is not published yet which shares bytes with one that is there. Each of them would take what the
    /// other wrote for a surprise.
    fn overlapping(&self, module: ModuleId) -> Option<SiteError> {
        self.sites.table(module).iter::<M>().find_map(|(_, new, ..)| {
            let first = new.get().saturating_sub(M::SLED - M::ALIGN);
            let mut near = (first..new.get().saturating_add(M::SLED)).step_by(M::ALIGN).map(SiteAddr::new);
            let is_there = |site: &SiteAddr| {
                self.sites.modules().any(|there| self.sites.table(there).find(*site).is_some())
            };
            let there = near.find(is_there)?;
            Some(SiteError::Overlapping { site: new.min(there), other: new.max(there) })
        })
    }

    fn drop_module(&self, module: ModuleId) {
        self.sites.retract(module);
        self.quiesce.synchronize::<P>();
        self.sites.table(module).forget();
    }
}
