//! Code that is loaded at run time: its sites come, and go without a trace. Under the lock, in task context.

use super::update::Change;
use super::{Engine, Error};
use crate::addr::SiteAddr;
use crate::machine::{Layout, Machine};
use crate::platform::Platform;
use crate::site::{SiteError, SiteReport, SiteSource, State};
use crate::sites::{Groups, ModuleId};
use crate::users::ALL_SLOTS;
use crate::words::ModuleNames;

/// A module that was added, and the words that had waited for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadedModule {
    /// By which it is removed again.
    pub module: ModuleId,
    /// What its site table was like.
    pub report: SiteReport,
    /// Words that took functions of it.
    pub taken: usize,
    /// Words that were for it, and took none: no function has the name, or several have. They go on waiting.
    pub refused: usize,
}

impl<P: Platform, M: Machine> Engine<P, M> {
    /// Adds the sites of code that was loaded at run time, before any of it runs. Users that want everything want it too. It has
    /// no name: see [`add_named_module`](Self::add_named_module).
    ///
    /// # Errors
    /// As [`init`](Self::init); [`Error::TooManyModules`]. After [`Error::Write`] its code must not run: see
    /// [`add_module`](crate::add_module).
    ///
    /// # Safety
    /// As [`init`](Self::init), for the module's text, as it was compiled; and its memory stays as it is until [`remove_module`](Self::remove_module)
    /// has returned.
    pub unsafe fn add_module(&self, source: SiteSource) -> Result<(ModuleId, SiteReport), Error> {
        self.add(source, None).map(|loaded| (loaded.module, loaded.report))
    }

    /// Adds the sites of a module, and gives their functions to the sets whose words have waited for a module of that name
    /// (`NAME:mod:MODULE`): all of it takes effect in the one update that patches the module.
    ///
    /// # Errors
    /// As [`add_module`](Self::add_module).
    ///
    /// # Safety
    /// As [`add_module`](Self::add_module); what `names` refers to stays as long as the text.
    pub unsafe fn add_named_module(
        &self,
        source: SiteSource,
        names: ModuleNames,
    ) -> Result<LoadedModule, Error> {
        self.add(source, Some(names))
    }

    fn add(&self, source: SiteSource, names: Option<ModuleNames>) -> Result<LoadedModule, Error> {
        let control = self.control.lock();
        let trampolines = self.ready(&control)?;
        let module = self.sites.free().ok_or(Error::TooManyModules { max: Groups::MAX_MODULES })?;
        let report = self
            .sites
            .table(module)
            .build_module::<M, P>(source, self.sites.kernel().is_guarded())
            .map_err(Error::Sites)?;
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
        let (taken, refused) = names.map_or((0, 0), |names| self.introduce(module, names));
        let done =
            self.prepare(module, trampolines).and_then(|()| self.update(Change::none(&control), trampolines));
        if let Err(error) = done {
            self.drop_module(module);
            return Err(error);
        }
        Ok(LoadedModule { module, report, taken, refused })
    }

    /// Takes the sites of a module out again: nothing of it is patched any more, no user's set has its functions, and when this
    /// returns nothing here refers to its memory. Its code must not be running. Words that waited for it wait again.
    ///
    /// # Errors
    /// [`Error::NoSuchModule`]; what goes wrong with the text, but the module is out even so.
    pub fn remove_module(&self, module: ModuleId) -> Result<(), Error> {
        let control = self.control.lock();
        let trampolines = self.ready(&control);
        if module == ModuleId::KERNEL || !self.sites.modules().any(|there| there == module) {
            return Err(Error::NoSuchModule);
        }
        let leaving = Change { leaving: Some(module), ..Change::none(&control) };
        let done = trampolines.and_then(|trampolines| self.update(leaving, trampolines));
        let table = self.sites.table(module);
        for (index, .., state) in table.iter::<M>() {
            table.set_state(index, State { include: 0, exclude: ALL_SLOTS, ..state });
        }
        self.drop_module(module);
        done
    }

    /// A site of a table that is not published yet which shares bytes with one that is there. Each of them would take what the
    /// other wrote for a surprise.
    fn overlapping(&self, module: ModuleId) -> Option<SiteError> {
        self.sites.table(module).iter::<M>().find_map(|(_, new, _, state)| {
            let span = M::span(new, state.layout);
            let near = self.sites.modules().flat_map(|there| {
                let table = self.sites.table(there);
                table.around(new).map(|index| (table.addr(index), table.state(index).layout))
            });
            let shares = |(site, layout): &(SiteAddr, Layout)| {
                let other = M::span(*site, *layout);
                span.start < other.end && other.start < span.end
            };
            let (there, _) = { near }.find(shares)?;
            Some(SiteError::Overlapping { site: new.min(there), other: new.max(there) })
        })
    }

    fn drop_module(&self, module: ModuleId) {
        self.sites.retract(module);
        self.quiesce.synchronize::<P>();
        self.sites.table(module).forget();
        self.desk.lock().book.close(module);
    }
}
