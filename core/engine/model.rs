//! Users that come and go at random, against a plain model: after each step the text of every site is exactly what the set
//! of users demands. Meanwhile every write is watched.

use std::rc::Rc;
use std::vec::Vec;

use super::image::{Function, Image, Target, for_both_machines, target};
use super::{Engine, Error, Stats};
use crate::addr::{FuncAddr, SiteAddr};
use crate::filter::{Filter, FuncSet};
use crate::graph::GraphOps;
use crate::graph::world::{funcs, user};
use crate::machine::MAX_STEPS;
use crate::ops::{Ops, OpsFlags};
use crate::site::Flavor;
use crate::testing::kernel::{self, Fake, Kernel};
use crate::testing::{Random, keep, storm};
use crate::users::MAX_USERS;

mod everything;
mod plain;

/// A user, and what is known of it without the tracer.
enum User<T: Target> {
    Ops(&'static Ops<T::Regs>),
    Graph(&'static GraphOps<T::Regs>),
}

struct Known<T: Target> {
    user: User<T>,
    wants: Vec<usize>,
    /// The first function that a set names although it cannot be traced.
    not_traceable: Option<usize>,
    flavor: Flavor,
    registered: bool,
}

/// A random filter, and the functions that pass it. Now and then it names what cannot be traced.
fn filter(image: &Image, random: &mut Random) -> (Filter, Vec<usize>) {
    let every = random.one_in(8);
    let all = image.functions.iter().filter(|function| every || !function.notrace);
    let all: Vec<usize> = all.map(|function| function.addr).collect();
    let some = |random: &mut Random| -> Vec<usize> {
        let of = random.between(1, 6);
        all.iter().copied().filter(|_| random.one_in(of)).collect()
    };
    let (include, exclude) = (some(random), some(random));
    let set = |addrs: &Vec<usize>| FuncSet::Some(funcs(addrs.clone()));
    match random.below(8) {
        0 => (Filter::ALL, all),
        1 => (Filter::NONE, Vec::new()),
        2 => (Filter { include: FuncSet::All, exclude: FuncSet::All }, Vec::new()),
        3 => {
            let wants = all.iter().copied().filter(|addr| !exclude.contains(addr)).collect();
            (Filter { include: FuncSet::All, exclude: set(&exclude) }, wants)
        }
        4 => {
            let wants = include.iter().copied().filter(|addr| !exclude.contains(addr)).collect();
            (Filter { include: set(&include), exclude: set(&exclude) }, wants)
        }
        _ => (Filter { include: set(&include), exclude: FuncSet::None }, include),
    }
}

/// The first function in a filter that cannot be traced.
fn not_traceable(image: &Image, filter: &Filter) -> Option<usize> {
    [filter.include, filter.exclude].into_iter().find_map(|set| {
        let FuncSet::Some(funcs) = set else { return None };
        let kept_out = |func: &&FuncAddr| image.functions.iter().any(|f| f.notrace && f.addr == func.get());
        funcs.iter().find(kept_out).map(|func| func.get())
    })
}

fn known<T: Target>(number: usize, image: &Image, random: &mut Random) -> Known<T> {
    let (filter, wants) = filter(image, random);
    let not_traceable = not_traceable(image, &filter);
    if random.one_in(2) {
        return Known {
            user: User::Graph(user(number, filter)),
            wants,
            not_traceable,
            flavor: Flavor::Args,
            registered: false,
        };
    }
    let save_regs = random.one_in(3);
    let flags = if save_regs { OpsFlags::SAVE_REGS } else { OpsFlags::empty() };
    let ops = keep(Ops::new(|_, _, _, _| {}, flags, filter));
    let flavor = if save_regs { Flavor::Regs } else { Flavor::Args };
    Known { user: User::Ops(ops), wants, not_traceable, flavor, registered: false }
}

/// What the users need of a function.
fn needed<T: Target>(users: &[Known<T>], function: &Function) -> Flavor {
    let wanting = users.iter().filter(|user| user.registered && user.wants.contains(&function.addr));
    wanting.map(|user| user.flavor).max().unwrap_or(Flavor::Off)
}

/// How many slots are taken.
fn taken<T: Target>(users: &[Known<T>]) -> usize {
    users.iter().filter(|user| user.registered).count()
}

/// From now on every write and core sync must leave each site in a state on the way from old to new, with the trap handler
/// told where it leads.
pub(super) fn watch<T: Target>(
    engine: &'static Engine<Fake, T>,
    image: &Image,
    change: impl Fn(&Function) -> (Flavor, Flavor),
) {
    let sites: Vec<_> = (image.traceable())
        .map(|function| {
            let (from, to) = change(function);
            let way = T::on_the_way(&image.sled::<T>(function, from), &image.sled::<T>(function, to));
            (function.clone(), to, way)
        })
        .collect();
    let watch = move |kernel: &Kernel| {
        for (function, to, way) in &sites {
            let there = kernel.at(function.site, function.sled.len()).to_vec();
            assert!(way.contains(&there), "{there:02x?} at {:#x}, not one of {way:02x?}", function.site);
            assert_eq!(target(engine, function), Some(*to), "target of {:#x}", function.site);
        }
    };
    kernel::with(|kernel| {
        kernel.watch = Some(Rc::new(watch));
        kernel.writes.clear();
    });
}

/// The writes since `watch`: never two at one site without a core sync between, and one after the last; and `grace` more
/// syncs behind them, for a grace period.
pub(super) fn check_syncs<T: Target>(image: &Image, syncs_before: usize, grace: usize) {
    kernel::with(|kernel| {
        let (writes, syncs) = (&kernel.writes, kernel.syncs - grace);
        for function in image.traceable() {
            let site = function.sled_range();
            let own: Vec<usize> = writes.iter().filter(|w| site.contains(&w.addr)).map(|w| w.syncs).collect();
            assert!(
                own.windows(2).all(|pair| pair[0] < pair[1]),
                "{site:x?} was written twice between syncs"
            );
        }
        assert!(writes.iter().all(|write| write.syncs < syncs), "no sync after the last write");
        let used = syncs - syncs_before;
        assert_eq!(used == 0, writes.is_empty(), "a sync for nothing, or a grace period too few");
        assert!(used <= MAX_STEPS, "{used} syncs for one update");
    });
}

/// Registers a user, or takes it out; it must go as the model says.
fn step<T: Target>(
    engine: &'static Engine<Fake, T>,
    image: &Image,
    users: &mut [Known<T>],
    (index, register): (usize, bool),
) {
    let taken = taken(users);
    let expected = match (register, users[index].registered, users[index].not_traceable) {
        (true, true, _) => Err(Error::AlreadyRegistered),
        (false, false, _) => Err(Error::NotRegistered),
        (true, false, _) if taken == MAX_USERS => Err(Error::TooManyUsers { max: MAX_USERS }),
        (true, false, Some(func)) => Err(Error::NotTraceable { func: FuncAddr::new(func) }),
        _ => Ok(()),
    };

    let before: Vec<Flavor> = image.functions.iter().map(|function| needed(users, function)).collect();
    if expected.is_ok() {
        users[index].registered = register;
    }
    let after: Vec<Flavor> = image.functions.iter().map(|function| needed(users, function)).collect();
    watch(engine, image, |function| {
        let at = image.functions.iter().position(|f| f.site == function.site).expect("of this image");
        (before[at], after[at])
    });
    let syncs = kernel::with(|kernel| kernel.syncs);
    let (done, is_registered) = match users[index].user {
        User::Ops(ops) => {
            let done = if register { engine.register_ops(ops) } else { engine.unregister_ops(ops) };
            (done, engine.has_ops(ops))
        }
        User::Graph(user) => {
            let done = if register { engine.register_graph(user) } else { engine.unregister_graph(user) };
            (done, engine.has_graph(user))
        }
    };
    assert_eq!(done, expected);
    assert_eq!(is_registered, users[index].registered);
    check_syncs::<T>(image, syncs, usize::from(!register && done.is_ok()));
}

fn check<T: Target>(engine: &Engine<Fake, T>, image: &Image, users: &[Known<T>]) {
    assert_eq!(kernel::text(), image.text_with::<T>(|function| needed(users, function)), "text");
    let patched = image.traceable().filter(|function| needed(users, function) != Flavor::Off).count();
    let sites = image.traceable().count();
    assert_eq!(engine.stats(), Stats { sites, patched, notrace: image.functions.len() - sites });
    for function in &image.functions {
        let state = (!function.notrace).then(|| needed(users, function));
        assert_eq!(target(engine, function), state);
        assert_eq!(engine.target_of(SiteAddr::new(function.site + 2)), None);
    }
}

fn the_text_is_always_what_the_users_need<T: Target>() {
    let (mut updates, mut crowds) = (0, 0);
    storm(30, 2, |random| {
        let image = Image::new::<T>(random.between(1, if cfg!(miri) { 6 } else { 30 }), random);
        let engine = image.start::<T>();
        let mut users: Vec<Known<T>> = (0..60).map(|number| known(number, &image, random)).collect();
        check(engine, &image, &users);
        for _ in 0..if cfg!(miri) { 20 } else { 200 } {
            let index = random.below(users.len());
            // Now and then what makes no sense.
            let register = users[index].registered == random.one_in(10);
            step(engine, &image, &mut users, (index, register));
            check(engine, &image, &users);
            updates += kernel::with(|kernel| kernel.writes.len());
            crowds += usize::from(taken(&users) == MAX_USERS);
        }
        while let Some(index) = users.iter().position(|user| user.registered) {
            step(engine, &image, &mut users, (index, false));
        }
        check(engine, &image, &users);
        assert_eq!(kernel::text(), image.text_with::<T>(|_| Flavor::Off));
    });
    std::println!("{updates} writes, {crowds} times all slots were taken");
    assert!(updates > 0 && (crowds > 0 || cfg!(miri)));
}

for_both_machines! { the_text_is_always_what_the_users_need }
