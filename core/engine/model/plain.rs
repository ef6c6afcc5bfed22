//! The engine as its users would describe it: sets of functions, a list of users, what is loaded, and the switch. No bits, no
//! scratch slot, no plans.

use std::collections::{BTreeMap, BTreeSet};
use std::vec::Vec;

use crate::addr::FuncAddr;
use crate::engine::image::{Function, Image};
use crate::engine::known_bugs::cpu::{Loadable, Told, What};
use crate::engine::{Error, SetChange, WhichSet};
use crate::filter::Filter;
use crate::ops::OpsFlags;
use crate::site::Flavor;
use crate::sites::ModuleId;
use crate::users::MAX_USERS;

/// A set as it is written down.
#[derive(Clone, Debug, Default)]
pub(super) struct Set {
    all: bool,
    members: BTreeSet<usize>,
}

impl Set {
    fn has(&self, func: usize) -> bool {
        self.all || self.members.contains(&func)
    }

    /// Changes the set; `loaded` is every function there is.
    fn change(&mut self, to: SetChange<'_>, loaded: &[&Function]) {
        let among = |listed: &[FuncAddr]| -> BTreeSet<usize> {
            let named = |function: &&&Function| {
                listed.iter().any(|name| [function.addr, function.site].contains(&name.get()))
            };
            loaded.iter().filter(named).map(|function| function.addr).collect()
        };
        match to {
            SetChange::All => *self = Self { all: true, members: BTreeSet::new() },
            SetChange::Clear => *self = Self::default(),
            SetChange::Replace(listed) => *self = Self { all: false, members: among(listed) },
            SetChange::Add(listed) => self.members.extend(among(listed)),
            SetChange::Remove(listed) => {
                if self.all {
                    self.members = loaded.iter().map(|function| function.addr).collect();
                    self.all = false;
                }
                let listed = among(listed);
                self.members.retain(|func| !listed.contains(func));
            }
        }
    }
}

/// What a user is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Ops(OpsFlags),
    Graph,
}

impl Kind {
    pub(super) fn has(self, flag: OpsFlags) -> bool {
        matches!(self, Self::Ops(flags) if flags.contains(flag))
    }

    fn flavor(self) -> Flavor {
        if self.has(OpsFlags::SAVE_REGS) { Flavor::Regs } else { Flavor::Args }
    }
}

#[derive(Clone, Debug)]
pub(super) struct User {
    pub(super) kind: Kind,
    /// What it comes with.
    pub(super) filter: Filter,
    slot: Option<usize>,
    pub(super) enabled: bool,
    include: Set,
    exclude: Set,
    /// How often it was given a slot.
    times: usize,
}

impl User {
    pub(super) fn new(kind: Kind, filter: Filter) -> Self {
        let (include, exclude) = (Set::default(), Set::default());
        Self { kind, filter, slot: None, enabled: false, include, exclude, times: 0 }
    }

    fn wants(&self, func: usize) -> bool {
        self.include.has(func) && !self.exclude.has(func)
    }
}

/// What one traced call owes at its return: users by number, and how often each had come.
pub(super) type Owed = Vec<(usize, usize)>;

/// The whole.
#[derive(Clone, Debug)]
pub(super) struct Plain<'a> {
    loadable: &'a Loadable,
    /// Which image each table is of.
    pub(super) loaded: BTreeMap<ModuleId, usize>,
    pub(super) users: Vec<User>,
    pub(super) switched_off: bool,
    touched: BTreeSet<usize>,
}

impl<'a> Plain<'a> {
    pub(super) fn new(loadable: &'a Loadable, users: Vec<User>) -> Self {
        let loaded = BTreeMap::from([(ModuleId::KERNEL, 0)]);
        Self { loadable, loaded, users, switched_off: false, touched: BTreeSet::new() }
    }

    pub(super) fn image(&self, index: usize) -> &'a Image {
        self.loadable.images().nth(index).expect("an image")
    }

    /// Everything that can be traced, in the engine's order.
    pub(super) fn functions(&self) -> Vec<(ModuleId, &'a Image, &'a Function)> {
        let of = |(module, index): (&ModuleId, &usize)| {
            let (module, image) = (*module, self.image(*index));
            image.traceable().map(move |function| (module, image, function))
        };
        self.loaded.iter().flat_map(of).collect()
    }

    fn loaded_functions(&self) -> Vec<&'a Function> {
        self.functions().into_iter().map(|(.., function)| function).collect()
    }

    fn wanting(&self, func: usize) -> impl Iterator<Item = (usize, &User)> {
        self.users.iter().enumerate().filter(move |(_, user)| user.enabled && user.wants(func))
    }

    /// How many users a function has, and whether one of them changes where it goes on.
    pub(super) fn users_of(&self, func: usize) -> (u32, bool) {
        if self.switched_off {
            return (0, false);
        }
        let modifies = self.wanting(func).any(|(_, user)| user.kind.has(OpsFlags::IPMODIFY));
        (self.wanting(func).count() as u32, modifies)
    }

    /// What the text of a function must do.
    pub(super) fn flavor(&self, func: usize) -> Flavor {
        if self.switched_off {
            return Flavor::Off;
        }
        self.wanting(func).map(|(_, user)| user.kind.flavor()).max().unwrap_or(Flavor::Off)
    }

    pub(super) fn was_touched(&self, func: usize) -> bool {
        self.touched.contains(&func)
    }

    fn note_touched(&mut self, before: &Self) {
        for function in self.loaded_functions() {
            if self.flavor(function.addr) != before.flavor(function.addr) {
                self.touched.insert(function.addr);
            }
        }
    }

    /// Who is told of a call, in which order; and who of its return.
    pub(super) fn call(&self, func: usize) -> (Vec<Told>, Owed) {
        if self.switched_off {
            return (Vec::new(), Vec::new());
        }
        let mut told: Vec<(What, usize, usize)> = Vec::new();
        let mut owed = Vec::new();
        for (number, user) in self.wanting(func) {
            let slot = user.slot.expect("enabled users have one");
            let what = if user.kind == Kind::Graph { What::GraphEntry } else { What::Entry };
            told.push((what, slot, number));
            if user.kind == Kind::Graph {
                owed.push((slot, number, user.times));
            }
        }
        told.sort_unstable();
        owed.sort_unstable();
        let told = told.into_iter().map(|(what, _, number)| (what, number, func)).collect();
        (told, owed.into_iter().map(|(_, number, times)| (number, times)).collect())
    }

    /// Who is told of the return of a call.
    pub(super) fn ret(&self, func: usize, owed: &Owed) -> Vec<Told> {
        let told = |(number, times): &(usize, usize)| {
            let user = &self.users[*number];
            (user.enabled && user.times == *times && !self.switched_off).then_some((
                What::Return,
                *number,
                func,
            ))
        };
        owed.iter().filter_map(told).collect()
    }

    /// Whether a set may be changed so.
    fn check(&self, user: usize, which: WhichSet, to: SetChange<'_>) -> Result<(), Error> {
        let listed = match to {
            SetChange::Replace(listed) | SetChange::Add(listed) | SetChange::Remove(listed) => listed,
            SetChange::All | SetChange::Clear => &[],
        };
        for (index, func) in listed.iter().enumerate() {
            if index > 0 && *func <= listed[index - 1] {
                return Err(Error::UnsortedFilter { func: *func });
            }
        }
        let loaded = self.loaded_functions();
        let is_there = |func: &&FuncAddr| loaded.iter().any(|f| [f.addr, f.site].contains(&func.get()));
        if let Some(func) = listed.iter().find(|func| !is_there(func)) {
            return Err(Error::NotTraceable { func: *func });
        }
        let names_functions = match (which, to) {
            (WhichSet::Filter, SetChange::All) => false,
            (WhichSet::Filter, _) | (_, SetChange::Clear | SetChange::Remove(_)) => true,
            _ => false,
        };
        if self.users[user].kind.has(OpsFlags::IPMODIFY) && !names_functions {
            return Err(Error::IpModifyNeedsFilter);
        }
        Ok(())
    }

    fn set(&mut self, user: usize, which: WhichSet, to: SetChange<'_>) {
        let loaded = self.loaded_functions();
        let user = &mut self.users[user];
        match which {
            WhichSet::Filter => user.include.change(to, &loaded),
            WhichSet::Notrace => user.exclude.change(to, &loaded),
        }
    }

    fn attach(&mut self, user: usize) -> Result<(), Error> {
        let free = |slot: &usize| !self.users.iter().any(|user| user.slot == Some(*slot));
        let slot = (0..MAX_USERS).find(free).ok_or(Error::TooManyUsers { max: MAX_USERS })?;
        let filter = self.users[user].filter;
        for (which, set) in [(WhichSet::Filter, filter.include), (WhichSet::Notrace, filter.exclude)] {
            self.check(user, which, set.into())?;
            self.set(user, which, set.into());
        }
        self.users[user].slot = Some(slot);
        self.users[user].times += 1;
        Ok(())
    }

    fn detach(&mut self, user: usize) {
        let there = &mut self.users[user];
        *there = User { times: there.times, ..User::new(there.kind, there.filter) };
    }

    fn find_conflict(&self) -> Result<(), Error> {
        let modifies =
            |func| self.wanting(func).filter(|(_, user)| user.kind.has(OpsFlags::IPMODIFY)).count();
        match self.loaded_functions().iter().find(|function| modifies(function.addr) > 1) {
            Some(function) => Err(Error::IpModifyConflict { func: FuncAddr::new(function.addr) }),
            None => Ok(()),
        }
    }

    /// Does something wholly or not at all.
    fn try_to(&mut self, run: impl FnOnce(&mut Self) -> Result<(), Error>) -> Result<(), Error> {
        let before = self.clone();
        let done = run(self);
        match done {
            Ok(()) => self.note_touched(&before),
            Err(_) => *self = before,
        }
        done
    }

    pub(super) fn register(&mut self, user: usize) -> Result<(), Error> {
        self.try_to(|plain| {
            let there = &plain.users[user];
            if plain.switched_off && there.kind.has(OpsFlags::PERMANENT) {
                return Err(Error::Permanent);
            }
            if there.enabled {
                return Err(Error::AlreadyRegistered);
            }
            if there.slot.is_none() {
                plain.attach(user)?;
            }
            plain.users[user].enabled = true;
            plain.find_conflict()
        })
    }

    pub(super) fn unregister(&mut self, user: usize) -> Result<(), Error> {
        self.try_to(|plain| {
            plain.users[user].slot.ok_or(Error::NotRegistered)?;
            plain.detach(user);
            Ok(())
        })
    }

    pub(super) fn change(&mut self, user: usize, which: WhichSet, to: SetChange<'_>) -> Result<(), Error> {
        self.try_to(|plain| {
            plain.check(user, which, to)?;
            if plain.users[user].slot.is_none() {
                plain.attach(user)?;
            }
            plain.set(user, which, to);
            plain.find_conflict()
        })
    }

    pub(super) fn switch(&mut self, on: bool) -> Result<(), Error> {
        self.try_to(|plain| {
            let permanent = |user: &User| user.enabled && user.kind.has(OpsFlags::PERMANENT);
            if !on && plain.users.iter().any(permanent) {
                return Err(Error::Permanent);
            }
            plain.switched_off = !on;
            Ok(())
        })
    }

    pub(super) fn load(&mut self, module: ModuleId, image: usize) {
        let text = self.image(image).text();
        self.touched.retain(|func| !text.contains(func));
        assert!(self.loaded.insert(module, image).is_none(), "a module's id was given out twice");
        for function in self.image(image).traceable() {
            if self.flavor(function.addr) != Flavor::Off {
                self.touched.insert(function.addr);
            }
        }
    }

    pub(super) fn unload(&mut self, module: ModuleId) -> Result<(), Error> {
        let there = self.loaded.get(&module).filter(|_| module != ModuleId::KERNEL);
        let text = self.image(*there.ok_or(Error::NoSuchModule)?).text();
        self.loaded.remove(&module);
        for user in &mut self.users {
            user.include.members.retain(|func| !text.contains(func));
            user.exclude.members.retain(|func| !text.contains(func));
        }
        Ok(())
    }
}
