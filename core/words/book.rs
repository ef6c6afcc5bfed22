//! The names of functions: the kernel's symbol table, and for each module its name and its own table.

use crate::addr::FuncAddr;
use crate::sites::{MAX_GROUPS, ModuleId};
#[cfg(feature = "symbols")]
use crate::symbols::{Symbol, Symbols};

/// The name of a module that was added without one.
const UNNAMED: &str = "unnamed";

/// What a module is called, and what its functions are.
#[derive(Clone, Copy, Debug)]
pub struct ModuleNames {
    name: &'static str,
    #[cfg(feature = "symbols")]
    symbols: Option<Symbols<'static>>,
}

impl ModuleNames {
    /// A module whose functions have no names of their own: they can be taken by wildcards and by index.
    pub const fn new(name: &'static str) -> Self {
        Self {
            name,
            #[cfg(feature = "symbols")]
            symbols: None,
        }
    }

    /// The same with the names of its functions.
    #[cfg(feature = "symbols")]
    #[must_use]
    pub const fn with_symbols(self, symbols: Symbols<'static>) -> Self {
        Self { symbols: Some(symbols), ..self }
    }

    /// What the module is called.
    pub const fn name(&self) -> &'static str {
        self.name
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Book {
    /// By the index of a [`ModuleId`]. The kernel's has no name, and neither has one that was added without.
    groups: [Option<ModuleNames>; MAX_GROUPS],
}

/// The names that start at one address, as numbers of symbols.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Names {
    pub(crate) first: usize,
    pub(crate) count: usize,
}

impl Book {
    pub(crate) const fn new() -> Self {
        Self { groups: [None; MAX_GROUPS] }
    }

    /// The names of a module, or the kernel's.
    pub(crate) fn open(&mut self, module: ModuleId, names: ModuleNames) {
        self.groups[module.index()] = Some(names);
    }

    /// A module is gone, and its names with it.
    pub(crate) fn close(&mut self, module: ModuleId) {
        self.groups[module.index()] = None;
    }

    /// What a module is called; `None` for the kernel.
    pub(crate) fn module_name(&self, module: ModuleId) -> Option<&'static str> {
        let named = self.groups[module.index()].as_ref().map_or(UNNAMED, |names| names.name);
        (module != ModuleId::KERNEL).then_some(named)
    }
}

#[cfg(feature = "symbols")]
impl Book {
    pub(crate) fn symbols(&self, module: ModuleId) -> Option<&Symbols<'static>> {
        self.groups[module.index()].as_ref()?.symbols.as_ref()
    }

    /// The names of a function. `behind` are those of a function below it in the same module, or none.
    pub(crate) fn names_at(&self, module: ModuleId, func: FuncAddr, behind: Names) -> Names {
        let Some(symbols) = self.symbols(module) else { return Names::default() };
        let first = symbols.next_from(func.get() as u64, behind.first + behind.count);
        let here = |index: &usize| symbols.get(*index).is_some_and(|s| s.start == func.get() as u64);
        Names { first, count: (first..).take_while(here).count() }
    }

    /// One of the names that [`names_at`](Self::names_at) found.
    pub(crate) fn name(&self, module: ModuleId, number: usize) -> Option<&'static str> {
        Some(self.symbols(module)?.get(number)?.name)
    }

    /// The source file of the function that has this name.
    pub(crate) fn file(&self, module: ModuleId, number: usize) -> Option<&'static str> {
        self.symbols(module)?.get(number)?.file
    }

    /// How many functions of all modules, whether or not they can be traced, have this name in their symbol table; counted up to 2.
    pub(crate) fn functions_named(&self, raw: &str) -> usize {
        let tables = self.groups.iter().flatten().filter_map(|names| names.symbols.as_ref());
        let named =
            |symbols: &Symbols<'static>| symbols.iter().filter(|symbol| symbol.name == raw).take(2).count();
        tables.map(named).sum()
    }

    /// The function that an address lies in, and its module.
    pub(crate) fn lookup(&self, addr: usize) -> Option<(Symbol<'static>, Option<&'static str>)> {
        self.groups.iter().enumerate().find_map(|(index, names)| {
            let names = names.as_ref()?;
            let symbol = names.symbols.as_ref()?.by_address(addr as u64)?;
            Some((symbol, (index != ModuleId::KERNEL.index()).then_some(names.name)))
        })
    }
}

#[cfg(not(feature = "symbols"))]
impl Book {
    pub(crate) fn names_at(&self, _module: ModuleId, _func: FuncAddr, _behind: Names) -> Names {
        Names::default()
    }

    pub(crate) fn name(&self, _module: ModuleId, _number: usize) -> Option<&'static str> {
        None
    }

    pub(crate) fn file(&self, _module: ModuleId, _number: usize) -> Option<&'static str> {
        None
    }

    pub(crate) fn functions_named(&self, _raw: &str) -> usize {
        0
    }
}
