//! All sites of an image: the kernel's table, and one for each module that is loaded.
//!
//! Modules come and go under the control side's lock. The traced path looks a site up within a section of `quiesce`; a table
//! is forgotten only after `synchronize`, so what a lookup found stays valid to the section's end.

use crate::addr::{FuncAddr, SiteAddr};
use crate::bits::ones;
use crate::machine::Machine;
use crate::site::{SiteTable, State, StateWord};
use crate::sync::{AtomicU32, Ordering};
use crate::wire::NO_FUNC;

use recent::Recent;

mod recent;

/// A group of sites: the kernel's, or a module's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ModuleId(u8);

impl ModuleId {
    /// The kernel itself.
    pub const KERNEL: Self = Self(0);

    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

pub(crate) const MAX_GROUPS: usize = 32;

/// See the module.
#[derive(Debug)]
pub(crate) struct Groups {
    tables: [SiteTable; MAX_GROUPS],
    /// Modules that are looked at, one bit each; the kernel always is.
    used: AtomicU32,
    /// How many functions have a number so far. Those of modules that were removed are not given again, so that what was
    /// recorded does not change its meaning.
    numbers: AtomicU32,
    recent: Recent,
}

impl Groups {
    pub(crate) const MAX_MODULES: usize = MAX_GROUPS - 1;

    pub(crate) const fn new() -> Self {
        Self {
            tables: [const { SiteTable::new() }; MAX_GROUPS],
            used: AtomicU32::new(1),
            numbers: AtomicU32::new(0),
            recent: Recent::new(),
        }
    }

    pub(crate) fn kernel(&self) -> &SiteTable {
        &self.tables[0]
    }

    pub(crate) fn table(&self, module: ModuleId) -> &SiteTable {
        &self.tables[module.index()]
    }

    /// The kernel and the modules that are loaded.
    #[inline]
    pub(crate) fn modules(&self) -> impl Iterator<Item = ModuleId> + use<> {
        ones(u64::from(self.used.load(Ordering::Acquire))).map(|index| ModuleId(index as u8))
    }

    /// A place for another module. Control side.
    pub(crate) fn free(&self) -> Option<ModuleId> {
        let index = (!self.used.load(Ordering::Relaxed)).trailing_zeros();
        (index < MAX_GROUPS as u32).then_some(ModuleId(index as u8))
    }

    /// Gives a table's functions numbers that nobody had before. If there are not so many, they are recorded as
    /// [`NO_FUNC`](crate::wire::NO_FUNC). Control side.
    pub(crate) fn number(&self, module: ModuleId) {
        let table = self.table(module);
        let first = self.numbers.load(Ordering::Relaxed);
        let behind = u32::try_from(table.len()).ok().and_then(|len| first.checked_add(len));
        let behind = behind.filter(|behind| *behind <= NO_FUNC);
        table.set_first_number(if behind.is_some() { first } else { NO_FUNC });
        self.numbers.store(behind.unwrap_or(first), Ordering::Relaxed);
    }

    /// The number of the function whose state this is. Compares addresses, and looks at no memory of a module: any context.
    #[inline]
    pub(crate) fn number_of_state(&self, word: *const StateWord) -> u32 {
        if let Some(index) = self.kernel().index_of_state(word) {
            return index as u32;
        }
        self.number_in_modules(word)
    }

    #[cold]
    fn number_in_modules(&self, word: *const StateWord) -> u32 {
        self.modules()
            .find_map(|module| self.number_at(module, self.table(module).index_of_state(word)?))
            .unwrap_or(NO_FUNC)
    }

    /// The number of a table's function.
    fn number_at(&self, module: ModuleId, index: usize) -> Option<u32> {
        let number = self.table(module).first_number().saturating_add(index as u32);
        (number < NO_FUNC).then_some(number)
    }

    /// The number of a function that can be traced.
    #[inline]
    pub(crate) fn number_of<M: Machine>(&self, func: FuncAddr) -> u32 {
        let guess = self.recent.guess(func);
        if self.kernel().is_func::<M>(guess as usize, func) { guess } else { self.search_number::<M>(func) }
    }

    #[cold]
    #[inline(never)]
    fn search_number<M: Machine>(&self, func: FuncAddr) -> u32 {
        let Some((module, index)) = self.find_func::<M>(func) else { return NO_FUNC };
        let number = self.number_at(module, index);
        if let (ModuleId::KERNEL, Some(number)) = (module, number) {
            self.recent.keep(func, number);
        }
        number.unwrap_or(NO_FUNC)
    }

    /// The function that has a number, if its module is still there.
    pub(crate) fn numbered<M: Machine>(&self, number: u32) -> Option<FuncAddr> {
        self.modules().filter(|_| number < NO_FUNC).find_map(|module| {
            let table = self.table(module);
            let index = number.checked_sub(table.first_number())? as usize;
            (index < table.len()).then(|| M::func(table.addr(index), table.state(index).layout))
        })
    }

    /// Lets a table that has been built be seen. Control side.
    pub(crate) fn publish(&self, module: ModuleId) {
        self.number(module);
        self.used.fetch_or(1 << module.0, Ordering::Release);
    }

    /// Hides a module's table from lookups that begin later. Control side.
    pub(crate) fn retract(&self, module: ModuleId) {
        self.used.fetch_and(!(1 << module.0), Ordering::Release);
    }

    /// The state of the site at exactly this address.
    #[inline]
    pub(crate) fn state(&self, site: SiteAddr) -> Option<State> {
        self.modules().find_map(|module| {
            let table = self.table(module);
            table.find(site).map(|index| table.state(index))
        })
    }

    /// The site of a function that can be traced, by its entry or by the site itself.
    pub(crate) fn find_func<M: Machine>(&self, func: FuncAddr) -> Option<(ModuleId, usize)> {
        self.modules().find_map(|module| {
            let table = self.table(module);
            let at = |addr: usize| {
                let index = table.find(SiteAddr::new(addr))?;
                let state = table.state(index);
                (!state.notrace).then_some((index, M::func(table.addr(index), state.layout)))
            };
            let here = at(func.get());
            let behind_pad = || at(func.get().checked_add(M::PAD)?).filter(|(_, entry)| *entry == func);
            here.or_else(behind_pad).map(|(index, _)| (module, index))
        })
    }
}
