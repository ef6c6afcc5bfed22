//! The functions that can be traced, as the table that words choose from: the kernel's first, then each module's, by address;
//! a function that has several names has several lines.
//!
//! Under the lock, so that no module comes or goes meanwhile. A step to the next line costs little, one back goes through all
//! lines before; whoever chooses from the table goes through it from the start.

use core::cell::Cell;
use core::marker::PhantomData;

use crate::addr::{FuncAddr, SiteAddr};
use crate::machine::Machine;
use crate::select::FunctionTable;
use crate::sites::{Groups, ModuleId};
use crate::words::book::{Book, Names};

/// See the module.
#[derive(Debug)]
pub(super) struct Functions<'e, M: Machine> {
    sites: &'e Groups,
    book: &'e Book,
    /// The one module that is looked at, if not all are.
    only: Option<ModuleId>,
    len: usize,
    /// The line that was asked for last.
    last: Cell<Option<Line>>,
    _machine: PhantomData<fn(M)>,
}

/// A line of the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    /// Its number, from 0.
    pub(super) number: usize,
    pub(super) module: ModuleId,
    /// The number of the site in the module.
    pub(super) index: usize,
    pub(super) site: SiteAddr,
    pub(super) func: FuncAddr,
    pub(super) names: Names,
    /// Which of the names this line is for.
    pub(super) name: usize,
}

impl<'e, M: Machine> Functions<'e, M> {
    /// The functions of the kernel and of all modules, or of one.
    pub(super) fn new(sites: &'e Groups, book: &'e Book, only: Option<ModuleId>) -> Self {
        let mut table = Self { sites, book, only, len: 0, last: Cell::new(None), _machine: PhantomData };
        table.len = table.lines(None).count();
        table
    }

    /// The lines behind one, or all.
    pub(super) fn lines(&self, behind: Option<Line>) -> impl Iterator<Item = Line> {
        core::iter::successors(self.after(behind), |line| self.after(Some(*line)))
    }

    fn after(&self, line: Option<Line>) -> Option<Line> {
        let number = line.map_or(0, |line| line.number + 1);
        if let Some(line) = line
            && line.name + 1 < line.names.count
        {
            return Some(Line { number, name: line.name + 1, ..line });
        }
        self.sites
            .modules()
            .filter(|module| self.only.is_none_or(|only| only == *module))
            .filter(|module| line.is_none_or(|line| line.module <= *module))
            .find_map(|module| {
                let before = line.filter(|line| line.module == module);
                self.first_from(
                    module,
                    before.map_or(0, |line| line.index + 1),
                    before.map(|line| line.names),
                )
            })
            .map(|found| Line { number, ..found })
    }

    /// The first function of a module whose site has this number or a greater one.
    fn first_from(&self, module: ModuleId, index: usize, behind: Option<Names>) -> Option<Line> {
        let table = self.sites.table(module);
        let index = (index..table.len()).find(|index| !table.state(*index).notrace)?;
        let site = table.addr(index);
        let func = M::func(site, table.state(index).layout);
        let names = self.book.names_at(module, func, behind.unwrap_or_default());
        Some(Line { number: 0, module, index, site, func, names, name: 0 })
    }

    /// The line of a name of a function, without its number; `None` if the function is not there any more.
    pub(super) fn line_of(
        &self,
        module: ModuleId,
        index: usize,
        name: usize,
        func: FuncAddr,
    ) -> Option<Line> {
        let there = self.sites.modules().any(|there| there == module);
        let line = there.then(|| self.first_from(module, index, None)).flatten()?;
        (line.index == index && line.func == func).then_some(Line { name, ..line })
    }

    /// The line with this number.
    pub(super) fn line(&self, number: usize) -> Option<Line> {
        let last = self.last.get();
        let line = match last {
            Some(last) if last.number == number => return Some(last),
            Some(last) if last.number < number => self.lines(Some(last)).nth(number - last.number - 1),
            _ => self.lines(None).nth(number),
        };
        self.last.set(line);
        line
    }

    /// The name that a line is for, as the symbol table has it; empty if the function has none.
    pub(super) fn name_of(&self, line: Line) -> &'e str {
        if line.names.count == 0 {
            return "";
        }
        self.book.name(line.module, line.names.first + line.name).unwrap_or("")
    }

    pub(super) fn book(&self) -> &'e Book {
        self.book
    }
}

impl<M: Machine> FunctionTable for Functions<'_, M> {
    fn len(&self) -> usize {
        self.len
    }

    fn raw_name(&self, index: usize) -> &str {
        self.line(index).map_or("", |line| self.name_of(line))
    }

    fn module(&self, index: usize) -> Option<&str> {
        self.book.module_name(self.line(index)?.module)
    }

    fn file(&self, index: usize) -> Option<&str> {
        let line = self.line(index)?;
        if line.names.count == 0 {
            return None;
        }
        self.book.file(line.module, line.names.first + line.name)
    }

    fn addr(&self, index: usize) -> FuncAddr {
        self.line(index).map_or(FuncAddr::new(0), |line| line.func)
    }
}
