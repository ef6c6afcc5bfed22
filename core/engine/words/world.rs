//! A kernel with names, and two modules that can be loaded: for the tests of words.

use std::string::{String, ToString};
use std::vec::Vec;

use crate::addr::FuncAddr;
use crate::engine::image::{Function, Image, Target, init, new_engine};
use crate::engine::{Engine, Error, LoadedModule, WhichSet};
use crate::filter::Filter;
use crate::ops::{Ops, OpsFlags};
use crate::site::{SiteSource, State};
use crate::sites::ModuleId;
use crate::symbols::Symbols;
use crate::symbols::tests::{blob, files_table};
use crate::testing::kernel::{self, Fake};
use crate::testing::{Random, keep, keep_all};
use crate::words::{List, Mode, ModuleNames, Place, WordError};

/// The modules' names.
pub(super) const MODULES: [&str; 2] = ["ext4", "xfs"];

/// The source files of all functions.
pub(super) const FILES: [&str; 2] = ["fs/one.c", "drivers/net/two.rs"];

/// Which of [`FILES`] the function at this address comes from.
pub(super) fn file_number(addr: usize) -> usize {
    (addr >> 4 ^ addr >> 5 ^ addr >> 6) % FILES.len()
}

/// A function with its name.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) name: &'static str,
    /// Which of [`MODULES`], if any.
    pub(super) module: Option<usize>,
    pub(super) addr: usize,
}

pub(super) struct World<T: Target> {
    pub(super) image: Image,
    pub(super) engine: &'static Engine<Fake, T>,
    /// Every function that can be traced, also of modules that are not loaded, as the list has them.
    pub(super) rows: Vec<Row>,
    pub(super) loaded: [Option<ModuleId>; 2],
}

/// A set, as tests name it.
pub(super) type Set<T> = (&'static Ops<<T as crate::machine::Machine>::Regs>, WhichSet);

impl<T: Target> World<T> {
    /// A kernel with functions of these names, and two modules with functions of those. Several names with a bar between are all one
    /// function's.
    pub(super) fn new(kernel: &[&'static str], modules: [&[&'static str]; 2], random: &mut Random) -> Self {
        let count = kernel.len() + modules[0].len() + modules[1].len();
        // What is kept out is the kernel's, so that none of it is behind the kernel's functions.
        let image = loop {
            let image = Image::new::<T>(count, random);
            let last = image.traceable().nth(kernel.len() - 1).expect("a function");
            if image.notrace.end <= last.addr {
                break image;
            }
        };
        let names = [kernel, modules[0], modules[1]].concat();
        let owner = |n: usize| n.checked_sub(kernel.len()).map(|n| usize::from(n >= modules[0].len()));
        let functions: Vec<Function> = image.traceable().cloned().collect();
        let mut rows = Vec::new();
        for (n, (function, names)) in functions.iter().zip(&names).enumerate() {
            for name in names.split('|') {
                rows.push(Row { name, module: owner(n), addr: function.addr });
            }
        }
        image.boot::<T>();
        let engine = new_engine::<T>();
        let world = Self { image, engine, rows, loaded: [None; 2] };
        let source = world.source(None);
        init(engine, source, world.image.trampolines).expect("a good image");
        engine.set_symbols(world.symbols(None));
        world
    }

    fn source(&self, module: Option<usize>) -> SiteSource {
        let mut sites: Vec<usize> = self
            .image
            .traceable()
            .filter(|function| self.rows.iter().any(|row| row.module == module && row.addr == function.addr))
            .map(|function| function.entry)
            .collect();
        if module.is_none() {
            sites.extend(self.image.functions.iter().filter(|f| f.notrace).map(|f| f.entry));
            return self.image.source_of(sites, self.image.notrace.clone());
        }
        self.image.source_of(sites, 0..0)
    }

    /// The symbols of a module or of the kernel; the kernel's have functions that cannot be traced too.
    pub(super) fn symbols(&self, module: Option<usize>) -> Symbols<'static> {
        let base = self.image.base;
        let mut entries: Vec<(u32, u32, &str)> = self
            .rows
            .iter()
            .filter(|row| row.module == module)
            .map(|row| ((row.addr - base) as u32, 16, row.name))
            .collect();
        if module.is_none() {
            let kept_out = self.image.functions.iter().filter(|function| function.notrace);
            entries.extend(kept_out.map(|function| ((function.addr - base) as u32, 16, "kept_out")));
            entries.sort_by_key(|entry| entry.0);
        }
        let mut bytes = blob(base as u64, &entries);
        let file_of = |entry: &(u32, u32, &str)| file_number(base + entry.0 as usize) as u32;
        bytes.extend(files_table(&FILES, &entries.iter().map(file_of).collect::<Vec<_>>()));
        Symbols::parse(keep_all(bytes)).expect("a good blob")
    }

    pub(super) fn load(&mut self, module: usize) -> Result<LoadedModule, Error> {
        let names = ModuleNames::new(MODULES[module]).with_symbols(self.symbols(Some(module)));
        // SAFETY: nothing executes this text, and tables live for ever.
        let loaded = unsafe { self.engine.add_named_module(self.source(Some(module)), names) }?;
        self.loaded[module] = Some(loaded.module);
        Ok(loaded)
    }

    pub(super) fn unload(&mut self, module: usize) {
        let id = self.loaded[module].take().expect("it is loaded");
        assert_eq!(self.engine.remove_module(id), Ok(()));
        // The next load brings the text as the compiler left it.
        for function in self.image.traceable() {
            if self.rows.iter().any(|row| row.module == Some(module) && row.addr == function.addr) {
                kernel::poke(function.span().start, self.image.compiled(function));
            }
        }
    }

    /// The functions that are there now, a line for each name: the kernel's, then the modules' in the order of their numbers.
    pub(super) fn table(&self) -> Vec<Row> {
        let mut table: Vec<Row> = self.rows.iter().filter(|row| row.module.is_none()).cloned().collect();
        let mut modules: Vec<(ModuleId, usize)> =
            (0..2).filter_map(|module| Some((self.loaded[module]?, module))).collect();
        modules.sort();
        for (_, module) in modules {
            table.extend(self.rows.iter().filter(|row| row.module == Some(module)).cloned());
        }
        table
    }

    /// The state of a function's site.
    pub(super) fn state(&self, addr: usize) -> State {
        let (module, index) = self.engine.sites.find_func::<T>(FuncAddr::new(addr)).expect("a function");
        self.engine.sites.table(module).state(index)
    }

    /// The functions of a set, by the names of their first lines; `None` if it is everything.
    pub(super) fn members(&self, (ops, which): Set<T>) -> Option<Vec<String>> {
        self.addrs((ops, which)).map(|addrs| {
            let name = |addr: &usize| {
                self.rows.iter().find(|row| row.addr == *addr).map_or("?", |row| row.name).to_string()
            };
            addrs.iter().map(name).collect()
        })
    }

    /// The same by address.
    pub(super) fn addrs(&self, (ops, which): Set<T>) -> Option<Vec<usize>> {
        let slot = self.engine.users.slot_of(crate::users::User::Entry(ops)).expect("a slot");
        if self.engine.users.everything(slot, which) {
            return None;
        }
        let mut addrs: Vec<usize> = self.table().iter().map(|row| row.addr).collect();
        addrs.dedup();
        addrs.retain(|addr| {
            let state = self.state(*addr);
            let mask = if which == WhichSet::Filter { state.include } else { state.exclude };
            mask & 1 << slot != 0
        });
        Some(addrs)
    }

    pub(super) fn write(&self, (ops, which): Set<T>, text: &str, mode: Mode) -> Result<(), WordError> {
        self.engine.write_ops_words(ops, which, text, mode)
    }

    /// The set as words.
    pub(super) fn read(&self, (ops, which): Set<T>) -> String {
        let mut text = String::new();
        assert_eq!(self.engine.show_ops_words(ops, which, &mut text), Ok(Ok(())));
        text
    }

    /// The set as words, read in pieces of random sizes up to `longest`.
    pub(super) fn read_in_pieces(&self, (ops, which): Set<T>, longest: usize, random: &mut Random) -> String {
        let mut place = Place::START;
        pieces(longest, random, |bytes| {
            self.engine.read_ops_words(ops, which, &mut place, bytes).expect("a slot")
        })
    }

    pub(super) fn list(&self, list: List) -> String {
        let mut text = String::new();
        assert_eq!(self.engine.show_list(list, &mut text), Ok(()));
        text
    }
}

/// All that a reader gives, in pieces.
pub(super) fn pieces(
    longest: usize,
    random: &mut Random,
    mut read: impl FnMut(&mut [u8]) -> usize,
) -> String {
    let mut text = Vec::new();
    loop {
        let mut piece = vec![0; random.between(longest.div_ceil(2), longest)];
        let got = read(&mut piece);
        text.extend(&piece[..got]);
        if got == 0 {
            return String::from_utf8(text).expect("text");
        }
    }
}

/// A user that wants nothing, registered.
pub(super) fn user<T: Target>(world: &World<T>, flags: OpsFlags) -> &'static Ops<T::Regs> {
    let ops = keep(Ops::new(|_, _, _, _| {}, flags, Filter::NONE));
    assert_eq!(world.engine.register_ops(ops), Ok(()));
    ops
}
