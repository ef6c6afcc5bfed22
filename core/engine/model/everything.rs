//! Everything the control side can be asked, at random, against [`Plain`]: users come, go and change their sets, modules are
//! loaded and unloaded, the switch is turned, and much of it makes no sense. Calls go on meanwhile. Now and then a write
//! fails, or a site's text was changed by someone else: then tracing has stopped, and what is under way still returns.

use std::collections::BTreeMap;
use std::string::String;
use std::vec::Vec;

use super::plain::{Kind, Owed, Plain, User};
use crate::addr::{FuncAddr, SiteAddr};
use crate::engine::image::{Function, Image, Target, for_plain_sites, target};
use crate::engine::known_bugs::cpu::{Call, Cpu, Loadable, Runs, add, graph, load, ops, told};
use crate::engine::{Engine, Error, FunctionInfo, SetChange, Stats, WhichSet};
use crate::filter::{Filter, FuncSet};
use crate::graph::GraphOps;
use crate::machine::Code;
use crate::ops::{Ops, OpsFlags};
use crate::site::{Flavor, SiteError};
use crate::sites::{Groups, ModuleId};
use crate::testing::kernel::{self, Fake};
use crate::testing::{Random, keep_all, storm};
use crate::users::MAX_USERS;

enum Handle<T: Target> {
    Ops(&'static Ops<T::Regs>),
    Graph(&'static GraphOps<T::Regs>),
}

/// What the control side is asked for.
#[derive(Clone, Copy, Debug)]
enum Ask {
    Register(usize),
    Unregister(usize),
    Change(usize, WhichSet, SetChange<'static>),
    Switch(bool),
    Load(usize),
    Unload(ModuleId),
}

/// What is wrong when it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Nothing,
    /// So many writes succeed.
    Writes(usize),
    /// The text of this function's site was changed.
    Text(usize),
}

/// How it went: what was done and told, and each reason for which something was not done.
#[derive(Debug, Default)]
struct Counts {
    done: usize,
    told: usize,
    not_done: BTreeMap<String, usize>,
}

impl Counts {
    fn note(&mut self, error: Error) {
        let text = std::format!("{error:?}");
        let variant = text.split([' ', '(']).next().unwrap_or_default();
        *self.not_done.entry(String::from(variant)).or_default() += 1;
    }
}

/// Reasons that a long storm must have met.
const REASONS: [&str; 13] = [
    "AlreadyRegistered",
    "NotRegistered",
    "TooManyUsers",
    "NotTraceable",
    "IpModifyConflict",
    "IpModifyNeedsFilter",
    "TooManyModules",
    "NoSuchModule",
    "Permanent",
    "UnsortedFilter",
    "Sites",
    "Surprise",
    "Write",
];

struct Round<'a, 'b, T: Runs> {
    loadable: &'a Loadable,
    engine: &'static Engine<Fake, T>,
    handles: Vec<Handle<T>>,
    plain: Plain<'a>,
    cpu: Cpu<T>,
    calls: Vec<(Call, Owed)>,
    /// What must stand in each image that is not loaded.
    unloaded: Vec<Vec<u8>>,
    /// Modules that have been unloaded.
    gone: Vec<ModuleId>,
    counts: &'b mut Counts,
}

/// A list of functions to be named in a set; now and then one that cannot be traced, or one out of order.
fn list(plain: &Plain<'_>, loadable: &Loadable, random: &mut Random) -> &'static [FuncAddr] {
    let of = random.between(1, 6);
    let mut listed = Vec::new();
    for (.., function) in plain.functions() {
        if random.one_in(of) {
            listed.push(if random.one_in(8) { function.site } else { function.addr });
        }
    }
    if random.one_in(20) {
        let images: Vec<&Image> = loadable.images().collect();
        let functions = &random.pick(&images).functions;
        listed.push(random.pick(functions).addr + random.below(2) * 2);
    }
    listed.sort_unstable();
    if random.one_in(20) && !listed.is_empty() {
        let (from, to) = (random.below(listed.len()), random.below(listed.len()));
        listed[to] = listed[from];
    } else {
        listed.dedup();
    }
    keep_all(listed.into_iter().map(FuncAddr::new).collect())
}

fn set(plain: &Plain<'_>, loadable: &Loadable, random: &mut Random) -> FuncSet {
    match random.below(6) {
        0 => FuncSet::All,
        1 => FuncSet::None,
        _ => FuncSet::Some(list(plain, loadable, random)),
    }
}

fn some_user(plain: &Plain<'_>, loadable: &Loadable, random: &mut Random) -> User {
    let flags = [
        OpsFlags::empty(),
        OpsFlags::empty(),
        OpsFlags::SAVE_REGS,
        OpsFlags::IPMODIFY,
        OpsFlags::IPMODIFY | OpsFlags::SAVE_REGS,
    ];
    let mut flags = *random.pick(&flags);
    if random.one_in(25) {
        flags |= OpsFlags::PERMANENT;
    }
    let kind = if random.one_in(3) { Kind::Graph } else { Kind::Ops(flags) };
    if kind.has(OpsFlags::IPMODIFY) && !random.one_in(4) {
        return User::new(kind, Filter::only(list(plain, loadable, random)));
    }
    let include = set(plain, loadable, random);
    let exclude = if random.one_in(3) { set(plain, loadable, random) } else { FuncSet::None };
    User::new(kind, Filter { include, exclude })
}

impl<'a, 'b, T: Runs> Round<'a, 'b, T> {
    fn new(loadable: &'a Loadable, random: &mut Random, counts: &'b mut Counts) -> Self {
        let engine = loadable.start::<T>();
        let mut plain = Plain::new(loadable, Vec::new());
        plain.users = (0..MAX_USERS + 7).map(|_| some_user(&plain, loadable, random)).collect();
        let handle = |(number, user): (usize, &User)| match user.kind {
            Kind::Ops(flags) => Handle::Ops(ops::<T>(number, flags, user.filter)),
            Kind::Graph => Handle::Graph(graph::<T>(number, user.filter)),
        };
        Self {
            loadable,
            engine,
            handles: plain.users.iter().enumerate().map(handle).collect(),
            plain,
            cpu: Cpu::new(engine),
            calls: Vec::new(),
            unloaded: loadable.images().map(|image| image.bytes.clone()).collect(),
            gone: Vec::new(),
            counts,
        }
    }

    fn some_ask(&self, random: &mut Random) -> Ask {
        let user = random.below(self.handles.len());
        let there = &self.plain.users[user];
        match random.below(20) {
            0 if !random.one_in(3) => Ask::Switch(self.plain.switched_off),
            0 => Ask::Switch(random.one_in(2)),
            1 | 2 => Ask::Load(random.below(self.unloaded.len())),
            3 => {
                let ids: Vec<ModuleId> = self.plain.loaded.keys().chain(&self.gone).copied().collect();
                Ask::Unload(*random.pick(&ids))
            }
            4..=9 => {
                let listed = list(&self.plain, self.loadable, random);
                let to = match random.below(8) {
                    0 => SetChange::All,
                    1 => SetChange::Clear,
                    2 | 3 => SetChange::Replace(listed),
                    4 | 5 => SetChange::Add(listed),
                    _ => SetChange::Remove(listed),
                };
                Ask::Change(user, if random.one_in(3) { WhichSet::Notrace } else { WhichSet::Filter }, to)
            }
            // Mostly what makes sense.
            _ if there.enabled == random.one_in(8) => Ask::Register(user),
            _ => Ask::Unregister(user),
        }
    }

    /// Asks the engine.
    fn ask(&self, ask: Ask) -> Result<Option<ModuleId>, Error> {
        let engine = self.engine;
        match ask {
            Ask::Register(user) => match self.handles[user] {
                Handle::Ops(ops) => engine.register_ops(ops),
                Handle::Graph(ops) => engine.register_graph(ops),
            },
            Ask::Unregister(user) => match self.handles[user] {
                Handle::Ops(ops) => engine.unregister_ops(ops),
                Handle::Graph(ops) => engine.unregister_graph(ops),
            },
            Ask::Change(user, which, to) => match self.handles[user] {
                Handle::Ops(ops) => engine.change_ops(ops, which, to),
                Handle::Graph(ops) => engine.change_graph(ops, which, to),
            },
            Ask::Switch(on) => engine.set_enabled(on),
            Ask::Load(image) => {
                return load(engine, self.plain.image(image)).map(|(module, _)| Some(module));
            }
            Ask::Unload(module) => engine.remove_module(module),
        }
        .map(|()| None)
    }

    /// What the model makes of it; a module's id is the engine's to choose.
    fn predict(&mut self, ask: Ask) -> Result<(), Error> {
        match ask {
            Ask::Register(user) => self.plain.register(user),
            Ask::Unregister(user) => self.plain.unregister(user),
            Ask::Change(user, which, to) => self.plain.change(user, which, to),
            Ask::Switch(on) => self.plain.switch(on),
            Ask::Unload(module) => self.plain.unload(module),
            Ask::Load(_) if self.plain.loaded.len() > Groups::MAX_MODULES => {
                Err(Error::TooManyModules { max: Groups::MAX_MODULES })
            }
            Ask::Load(_) => Ok(()),
        }
    }

    /// Whether the embedder could ask that: code that is loaded is not loaded, and code that runs not unloaded.
    fn is_possible(&self, ask: Ask) -> bool {
        let runs = |image: usize| {
            self.calls.iter().any(|(call, _)| self.plain.image(image).text().contains(&call.func))
        };
        match ask {
            Ask::Load(image) => !self.plain.loaded.values().any(|there| *there == image),
            Ask::Unload(module) => {
                let image = self.plain.loaded.get(&module).filter(|_| module != ModuleId::KERNEL);
                image.is_none_or(|image| !runs(*image))
            }
            _ => true,
        }
    }

    /// Asks for something, which must go as the model says. Whether tracing goes on.
    fn step(&mut self, ask: Ask, wrong: Wrong) -> bool {
        let before = self.plain.clone();
        let expected = self.predict(ask);
        let loads = if let Ask::Load(image) = ask { Some(image) } else { None };
        let mut kept = None;
        let mut expected = match (expected, wrong) {
            // Only what is to be changed is looked at, and only if nothing else is wrong.
            (Ok(()), Wrong::Text(func)) => {
                let (from, to) = (before.flavor(func), self.plain.flavor(func));
                let (image, function) = self.find(func);
                let mut found = image.sled::<T>(function, from);
                let was = Code::new(&found);
                found[T::SLED - 1] ^= 0x40;
                kernel::poke(function.site, &found);
                kept = Some((function.site, was));
                let site = SiteAddr::new(function.site);
                let changes = if let Ask::Unload(module) = ask {
                    // Its sites need no user for that.
                    image.base == before.image(before.loaded[&module]).base && from != Flavor::Off
                } else {
                    from != to
                };
                if changes {
                    Err(Error::Surprise { site, expected: was, found: Code::new(&found) })
                } else {
                    Ok(())
                }
            }
            (expected, _) => expected,
        };
        if let Wrong::Writes(left) = wrong {
            kernel::with(|kernel| kernel.writes_left = Some(left));
        }
        let text = kernel::text();
        let writes = kernel::with(|kernel| kernel.writes.len());
        let done = self.ask(ask);
        if let (Ok(()), Err(Error::Write(error))) = (expected, done) {
            assert_eq!(
                kernel::with(|kernel| kernel.writes_left),
                Some(0),
                "{ask:?}: a write that did not fail"
            );
            expected = Err(Error::Write(error));
        }
        assert_eq!(done.map(|_| ()), expected, "{ask:?}, {wrong:?}");
        kernel::with(|kernel| kernel.writes_left = None);

        if let Err(error) = expected {
            self.counts.note(error);
        }
        match expected {
            Err(Error::Surprise { .. }) => {
                assert_eq!(kernel::text(), text, "nothing is written when text is not as it should be");
                self.stopped(ask, &before);
                return false;
            }
            Err(Error::Write(_)) => {
                self.half_written(ask, &before);
                self.stopped(ask, &before);
                return false;
            }
            Err(_) => {
                if let Some(image) = loads {
                    self.unloaded[image] = self.plain.image(image).bytes.clone();
                } else {
                    assert_eq!(kernel::text(), text, "{ask:?} was refused");
                }
                assert_eq!(kernel::with(|kernel| kernel.writes.len()), writes, "{ask:?} was refused");
            }
            Ok(()) => self.counts.done += 1,
        }
        if let Some((site, was)) = kept {
            kernel::poke(site, was.as_slice());
        }
        if let (Some(image), Ok(Some(module))) = (loads, done) {
            self.plain.load(module, image);
        }
        if let (Ask::Unload(module), Ok(())) = (ask, expected) {
            let image = before.loaded[&module];
            self.unloaded[image] = self.plain.image(image).text_with::<T>(|_| Flavor::Off);
            self.gone.push(module);
        }
        true
    }

    fn find(&self, func: usize) -> (&'a Image, &'a Function) {
        let of =
            |image: &'a Image| image.traceable().find(|f| f.addr == func).map(|function| (image, function));
        self.loadable.images().find_map(of).expect("a function")
    }

    /// Everything is as the model says.
    fn check(&self) {
        let loaded: Vec<usize> = self.plain.loaded.values().copied().collect();
        let text = self.loadable.text(|index, image| {
            if loaded.contains(&index) {
                image.text_with::<T>(|function| self.plain.flavor(function.addr))
            } else {
                self.unloaded[index].clone()
            }
        });
        assert_eq!(kernel::text(), text, "text");

        let mut listed = Vec::new();
        self.engine.functions(|info| listed.push(info));
        let functions = self.plain.functions();
        let info = |(module, _, function): &(ModuleId, &Image, &Function)| {
            let (users, ip_modify) = self.plain.users_of(function.addr);
            FunctionInfo {
                func: FuncAddr::new(function.addr),
                site: SiteAddr::new(function.site),
                module: *module,
                flavor: self.plain.flavor(function.addr),
                users,
                ip_modify,
                touched: self.plain.was_touched(function.addr),
            }
        };
        assert_eq!(listed, functions.iter().map(info).collect::<Vec<_>>());
        for (.., function) in &functions {
            assert_eq!(target(self.engine, function), Some(self.plain.flavor(function.addr)));
        }
        let all: usize = loaded.iter().map(|index| self.plain.image(*index).functions.len()).sum();
        let patched = listed.iter().filter(|info| info.flavor != Flavor::Off).count();
        let sites = listed.len();
        assert_eq!(self.engine.stats(), Stats { sites, patched, notrace: all - sites });
        for (index, image) in self.loadable.images().enumerate() {
            if !loaded.contains(&index) {
                for function in &image.functions {
                    assert_eq!(target(self.engine, function), None, "a site of code that is gone");
                }
            }
        }
        self.check_users(&self.plain);
    }

    fn check_users(&self, plain: &Plain<'_>) {
        for (number, handle) in self.handles.iter().enumerate() {
            let has = match handle {
                Handle::Ops(ops) => self.engine.has_ops(ops),
                Handle::Graph(ops) => self.engine.has_graph(ops),
            };
            assert_eq!(has, plain.users[number].enabled, "user {number}");
        }
    }

    /// Begins or ends a call; who must be told is told, and nobody else.
    fn call(&mut self, random: &mut Random) {
        if self.calls.len() < 20 && random.one_in(2) {
            let (_, image, function) = *random.pick(&self.plain.functions());
            let (should, owed) = self.plain.call(function.addr);
            let call = self.cpu.call(image, function);
            assert_eq!(told(), should);
            assert_eq!(call.hooked, !owed.is_empty());
            self.counts.told += should.len();
            self.calls.push((call, owed));
        } else if let Some((call, owed)) = self.calls.pop() {
            self.cpu.finish(call);
            assert_eq!(told(), self.plain.ret(call.func, &owed));
        }
    }

    /// A write failed: each site is on its way, and who comes through gets on.
    fn half_written(&self, ask: Ask, before: &Plain<'_>) {
        let unloaded = if let Ask::Unload(module) = ask { before.loaded.get(&module) } else { None };
        for (module, image, function) in before.functions() {
            let there = kernel::with(|kernel| kernel.at(function.site, T::SLED).to_vec());
            let gone = unloaded == Some(&before.loaded[&module]);
            let from = before.flavor(function.addr);
            let to = if gone { Flavor::Off } else { self.plain.flavor(function.addr) };
            let (old, new) = (image.sled::<T>(function, from), image.sled::<T>(function, to));
            assert!(
                T::on_the_way(&old, &new).contains(&there),
                "{ask:?}: {there:02x?} at {:#x}",
                function.site
            );
        }
    }

    /// Tracing has stopped: nobody is called, nothing is written, calls that are under way return, and who wants out gets out.
    fn stopped(&mut self, ask: Ask, before: &Plain<'_>) {
        assert!(self.engine.is_stopped());
        match ask {
            // Who leaves is out even so.
            Ask::Unregister(_) | Ask::Unload(_) => self.check_users(&self.plain),
            // The switch was thrown before the text failed to follow; users are registered either way.
            Ask::Register(_) | Ask::Change(..) | Ask::Switch(_) | Ask::Load(_) => self.check_users(before),
        }
        let text = kernel::text();
        let still = if let Ask::Unload(_) = ask { &self.plain } else { before };
        for (_, image, function) in still.functions() {
            // What someone else wrote there cannot be run.
            let there = kernel::with(|kernel| kernel.at(function.site, T::SLED).to_vec());
            let own = [Flavor::Off, Flavor::Args, Flavor::Regs].map(|f| image.sled::<T>(function, f));
            if T::traps(&there) || own.contains(&there) {
                let call = self.cpu.call(image, function);
                assert!(!call.hooked);
                self.cpu.finish(call);
            }
        }
        while let Some((call, _)) = self.calls.pop() {
            self.cpu.finish(call);
        }
        assert_eq!(told(), [], "nobody is told of anything");

        assert_eq!(self.ask(Ask::Switch(true)), Err(Error::Stopped));
        for index in 1..self.unloaded.len() {
            let image = self.plain.image(index);
            if !before.loaded.values().any(|there| *there == index) {
                assert_eq!(add(self.engine, image).map(|_| ()), Err(Error::Stopped));
            }
        }
        for user in 0..self.handles.len() {
            assert_eq!(self.ask(Ask::Change(user, WhichSet::Filter, SetChange::All)), Err(Error::Stopped));
            assert_eq!(self.ask(Ask::Register(user)), Err(Error::Stopped));
            if before.users[user].enabled && !matches!(ask, Ask::Unregister(there) if there == user) {
                assert_eq!(self.ask(Ask::Unregister(user)), Err(Error::Stopped));
            }
            // Once is enough, and then it is out.
            let out = self.ask(Ask::Unregister(user));
            assert!(matches!(out, Err(Error::NotRegistered | Error::Stopped)), "{out:?}");
            assert_eq!(self.ask(Ask::Unregister(user)), Err(Error::NotRegistered));
        }
        for module in still.loaded.keys().filter(|module| **module != ModuleId::KERNEL) {
            assert_eq!(self.ask(Ask::Unload(*module)), Err(Error::Stopped));
            assert_eq!(self.ask(Ask::Unload(*module)), Err(Error::NoSuchModule));
        }
        assert_eq!(kernel::text(), text, "no text is written any more");
    }

    /// A module that cannot be loaded leaves everything as it was.
    fn load_badly(&mut self, image: usize, random: &mut Random) {
        if self.plain.loaded.len() > Groups::MAX_MODULES || !self.is_possible(Ask::Load(image)) {
            return;
        }
        let image_of = self.plain.image(image);
        kernel::poke(image_of.base, &image_of.bytes);
        let victims: Vec<&Function> = image_of.traceable().collect();
        let site = random.pick(&victims).site;
        let found: &[u8] = random.pick::<&[u8]>(T::NO_SLEDS);
        let found = Code::new(found);
        kernel::poke(site, found.as_slice());
        let text = kernel::text();
        let site = SiteAddr::new(site);
        let error = SiteError::UnexpectedBytes { site, expected: T::EXPECTED, found };
        assert_eq!(add(self.engine, image_of).map(|_| ()), Err(Error::Sites(error)));
        assert_eq!(kernel::text(), text);
        kernel::poke(image_of.base, &image_of.bytes);
        self.unloaded[image] = image_of.bytes.clone();
        self.counts.note(Error::Sites(error));
    }
}

fn round<T: Runs>(random: &mut Random, steps: usize, counts: &mut Counts) {
    let (sites, modules) = match random.below(6) {
        _ if cfg!(miri) => (3, 1),
        0 => (3, Groups::MAX_MODULES + 1),
        _ => (random.between(1, 10), random.between(1, 4)),
    };
    let loadable = Loadable::new::<T>(sites, modules, 4, random);
    let mut round = Round::<T>::new(&loadable, random, counts);
    if modules > Groups::MAX_MODULES {
        // The last of them finds no place.
        (1..=modules).for_each(|image| assert!(round.step(Ask::Load(image), Wrong::Nothing)));
    }
    round.check();
    for _ in 0..steps {
        round.call(random);
        if random.one_in(30) {
            round.load_badly(random.between(1, modules), random);
        }
        let ask = round.some_ask(random);
        if !round.is_possible(ask) {
            continue;
        }
        let wrong = match random.below(60) {
            0 | 1 => Wrong::Writes(random.below(12)),
            2 | 3 => Wrong::Text(random.pick(&round.plain.functions()).2.addr),
            _ => Wrong::Nothing,
        };
        if !round.step(ask, wrong) {
            return;
        }
        round.check();
    }
    while let Some((call, owed)) = round.calls.pop() {
        round.cpu.finish(call);
        assert_eq!(told(), round.plain.ret(call.func, &owed));
    }
    for user in 0..round.handles.len() {
        round.step(Ask::Unregister(user), Wrong::Nothing);
    }
    round.check();
    assert_eq!(round.engine.stats().patched, 0);
}

fn whatever_is_asked_the_text_and_the_calls_are_as_the_model_says<T: Runs>() {
    let mut counts = Counts::default();
    storm(60, 1, |random| round::<T>(random, if cfg!(miri) { 15 } else { 150 }, &mut counts));
    std::println!("{counts:?}");
    assert!(counts.done > 0 && counts.told > 0);
    if !cfg!(miri) {
        for reason in REASONS {
            assert!(
                counts.not_done.contains_key(reason),
                "nothing failed for {reason}: the storm is too short"
            );
        }
    }
}

for_plain_sites! { whatever_is_asked_the_text_and_the_calls_are_as_the_model_says }
