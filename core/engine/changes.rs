//! Sets that change while their users are registered, and modules that come and go, against a plain model: after each step
//! the text of every site is exactly what the sets demand.

use std::collections::BTreeSet;
use std::vec::Vec;

use super::image::{Image, Target, for_both_machines, for_branching_sleds};
use super::{Engine, Error, SetChange, WhichSet};
use crate::addr::FuncAddr;
use crate::filter::Filter;
use crate::ops::{Ops, OpsFlags};
use crate::site::Flavor;
use crate::testing::kernel::{self, Fake};
use crate::testing::{Random, keep, storm};

/// A user, and its sets as a user of the tracer would write them down.
struct Known<T: Target> {
    ops: &'static Ops<T::Regs>,
    include: BTreeSet<usize>,
    exclude: BTreeSet<usize>,
    flavor: Flavor,
}

fn needed<T: Target>(users: &[Known<T>], addr: usize) -> Flavor {
    let wanting = users.iter().filter(|u| u.include.contains(&addr) && !u.exclude.contains(&addr));
    wanting.map(|user| user.flavor).max().unwrap_or(Flavor::Off)
}

fn some(all: &[usize], random: &mut Random) -> Vec<usize> {
    let of = random.between(1, 4);
    all.iter().copied().filter(|_| random.one_in(of)).collect()
}

fn change<T: Target>(
    engine: &'static Engine<Fake, T>,
    all: &[usize],
    user: &mut Known<T>,
    random: &mut Random,
) {
    let (which, set) = if random.one_in(3) {
        (WhichSet::Notrace, &mut user.exclude)
    } else {
        (WhichSet::Filter, &mut user.include)
    };
    let listed = some(all, random);
    let funcs: Vec<FuncAddr> = listed.iter().copied().map(FuncAddr::new).collect();
    let listed: BTreeSet<usize> = listed.into_iter().collect();
    let to = match random.below(5) {
        0 => {
            *set = all.iter().copied().collect();
            SetChange::All
        }
        1 => {
            set.clear();
            SetChange::Clear
        }
        2 => {
            *set = listed;
            SetChange::Replace(&funcs)
        }
        3 => {
            set.extend(listed);
            SetChange::Add(&funcs)
        }
        _ => {
            set.retain(|addr| !listed.contains(addr));
            SetChange::Remove(&funcs)
        }
    };
    assert_eq!(engine.change_ops(user.ops, which, to), Ok(()), "{which:?} {to:?}");
}

fn every_change_of_a_set_reaches_the_text<T: Target>() {
    storm(20, 1, |random| {
        let image = Image::new::<T>(random.between(1, 12), random);
        let engine = image.start::<T>();
        let all: Vec<usize> = image.traceable().map(|function| function.addr).collect();
        let mut users: Vec<Known<T>> = (0..4)
            .map(|n| {
                let (flags, flavor) = if n == 0 {
                    (OpsFlags::SAVE_REGS, Flavor::Regs)
                } else {
                    (OpsFlags::empty(), Flavor::Args)
                };
                let ops: &'static Ops<T::Regs> = keep(Ops::new(|_, _, _, _| {}, flags, Filter::NONE));
                assert_eq!(engine.register_ops(ops), Ok(()));
                Known { ops, include: BTreeSet::new(), exclude: BTreeSet::new(), flavor }
            })
            .collect();
        for _ in 0..if cfg!(miri) { 10 } else { 60 } {
            let user = random.below(users.len());
            change(engine, &all, &mut users[user], random);
            assert_eq!(
                kernel::text(),
                image.text_with::<T>(|function| needed(&users, function.addr)),
                "text"
            );
        }
        for user in &users {
            assert_eq!(engine.unregister_ops(user.ops), Ok(()));
        }
        assert_eq!(kernel::text(), image.text_with::<T>(|_| Flavor::Off));
    });
}

fn an_emptied_filter_never_means_everything<T: Target>() {
    let mut random = Random::new(1);
    let image = Image::new::<T>(5, &mut random);
    let engine = image.start::<T>();
    let Some(func) = image.traceable().next().map(|function| FuncAddr::new(function.addr)) else { return };
    let ops: &'static Ops<T::Regs> = keep(Ops::new(|_, _, _, _| {}, OpsFlags::empty(), Filter::NONE));
    assert_eq!(engine.register_ops(ops), Ok(()));
    assert_eq!(engine.change_ops(ops, WhichSet::Filter, SetChange::Add(&[func])), Ok(()));
    assert_eq!(engine.stats().patched, 1);
    assert_eq!(engine.change_ops(ops, WhichSet::Filter, SetChange::Remove(&[func])), Ok(()));
    assert_eq!(engine.stats().patched, 0);
}

fn a_refused_change_leaves_everything_as_it_was<T: Target>() {
    let mut random = Random::new(2);
    let image = Image::new::<T>(6, &mut random);
    let engine = image.start::<T>();
    let all: Vec<FuncAddr> = image.traceable().map(|function| FuncAddr::new(function.addr)).collect();
    let Some(first) = all.first().copied() else { return };
    let ops: &'static Ops<T::Regs> = keep(Ops::new(|_, _, _, _| {}, OpsFlags::IPMODIFY, Filter::NONE));
    let other: &'static Ops<T::Regs> = keep(Ops::new(|_, _, _, _| {}, OpsFlags::IPMODIFY, Filter::NONE));
    for user in [ops, other] {
        assert_eq!(engine.register_ops(user), Ok(()));
    }
    assert_eq!(engine.change_ops(ops, WhichSet::Filter, SetChange::Add(&[first])), Ok(()));
    let before = kernel::text();
    let nowhere = FuncAddr::new(0x10);
    for (user, which, to, refused) in [
        (ops, WhichSet::Filter, SetChange::Add(&[nowhere][..]), Error::NotTraceable { func: nowhere }),
        (ops, WhichSet::Filter, SetChange::Add(&[first, first][..]), Error::UnsortedFilter { func: first }),
        (ops, WhichSet::Filter, SetChange::All, Error::IpModifyNeedsFilter),
        (ops, WhichSet::Notrace, SetChange::Add(&[first][..]), Error::IpModifyNeedsFilter),
        (other, WhichSet::Filter, SetChange::Add(&[first][..]), Error::IpModifyConflict { func: first }),
    ] {
        assert_eq!(engine.change_ops(user, which, to), Err(refused));
        assert_eq!(kernel::text(), before, "text after {refused:?}");
        assert_eq!(engine.stats().patched, 1);
    }
}

fn the_switch_takes_everybody_out_and_back<T: Target>() {
    let mut random = Random::new(3);
    let image = Image::new::<T>(6, &mut random);
    let engine = image.start::<T>();
    let ops: &'static Ops<T::Regs> = keep(Ops::new(|_, _, _, _| {}, OpsFlags::empty(), Filter::ALL));
    let permanent: &'static Ops<T::Regs> = keep(Ops::new(|_, _, _, _| {}, OpsFlags::PERMANENT, Filter::NONE));
    assert_eq!(engine.register_ops(ops), Ok(()));
    let patched = kernel::text();
    assert_eq!(engine.set_enabled(false), Ok(()));
    assert_eq!(kernel::text(), image.text_with::<T>(|_| Flavor::Off));
    assert_eq!(engine.register_ops(permanent), Err(Error::Permanent));
    assert_eq!(engine.set_enabled(true), Ok(()));
    assert_eq!(kernel::text(), patched);
    assert_eq!(engine.register_ops(permanent), Ok(()));
    assert_eq!(engine.set_enabled(false), Err(Error::Permanent));
    assert_eq!(kernel::text(), patched);
}

/// While nothing is patched nobody asks how far a trampoline is; so a user can come that keeps the switch from going on again.
fn a_switch_that_cannot_be_turned_stays_where_it_was<T: Target>() {
    let mut image = Image::new::<T>(6, &mut Random::new(4));
    let far = (image.text().end + T::REACH + 16) & !3;
    for pair in [&mut image.trampolines.classic, &mut image.trampolines.balanced] {
        pair.regs = far;
    }
    let engine = image.start::<T>();
    let near: &'static Ops<T::Regs> = keep(Ops::new(|_, _, _, _| {}, OpsFlags::empty(), Filter::ALL));
    let far: &'static Ops<T::Regs> = keep(Ops::new(|_, _, _, _| {}, OpsFlags::SAVE_REGS, Filter::ALL));
    assert_eq!((engine.register_ops(near), engine.set_enabled(false)), (Ok(()), Ok(())));
    assert_eq!(engine.register_ops(far), Ok(()));
    for _ in 0..2 {
        assert!(matches!(engine.set_enabled(true), Err(Error::OutOfRange(_))));
        assert_eq!(kernel::text(), image.text_with::<T>(|_| Flavor::Off));
        engine.functions(|info| assert_eq!(info.users, 0, "the tracer is off still"));
    }
    let permanent = keep(Ops::new(|_, _, _, _| {}, OpsFlags::PERMANENT, Filter::NONE));
    assert_eq!(engine.register_ops(permanent), Err(Error::Permanent), "off still");
    assert_eq!((engine.unregister_ops(far), engine.set_enabled(true)), (Ok(()), Ok(())));
    assert_eq!(kernel::text(), image.text_with::<T>(|_| Flavor::Args));
}

for_both_machines! {
    every_change_of_a_set_reaches_the_text
    an_emptied_filter_never_means_everything
    a_refused_change_leaves_everything_as_it_was
    the_switch_takes_everybody_out_and_back
}

for_branching_sleds! { a_switch_that_cannot_be_turned_stays_where_it_was }
