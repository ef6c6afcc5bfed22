//! Known bugs of users and their sets: who is left behind after a failure, and what a set means when it is empty, shared or
//! taken away.

use std::collections::BTreeSet;
use std::vec::Vec;

use super::cpu::{Cpu, Loadable, Runs, What, graph, ops, told};
use crate::addr::FuncAddr;
use crate::engine::image::{Image, for_plain_sites};
use crate::engine::{Engine, Error, SetChange, WhichSet};
use crate::filter::{Filter, FuncSet};
use crate::graph::world::funcs;
use crate::ops::OpsFlags;
use crate::site::Flavor;
use crate::testing::kernel::{self, Fake};
use crate::testing::{Random, storm};
use crate::users::MAX_USERS;

const SITES: usize = 6;

/// A kernel of its own for each test, without modules.
fn start<T: Runs>() -> (Image, &'static Engine<Fake, T>, Cpu<T>) {
    let image = Loadable::new::<T>(SITES, 0, 0, &mut Random::new(8)).kernel;
    let engine = image.start::<T>();
    let cpu = Cpu::new(engine);
    (image, engine, cpu)
}

fn addr(image: &Image, index: usize) -> usize {
    image.traceable().nth(index).expect("a function").addr
}

/// How many functions each user is told of when each is called once, and that nobody is told twice.
fn told_of<T: Runs>(cpu: &Cpu<T>, image: &Image, user: usize) -> Vec<usize> {
    let told = cpu.run_all(image);
    let of: Vec<usize> =
        told.iter().filter(|(what, there, _)| *what != What::Return && *there == user).map(|t| t.2).collect();
    assert_eq!(of.iter().collect::<BTreeSet<_>>().len(), of.len(), "told twice of a function");
    of
}

/// A start that fails must leave nobody on a list that later calls or listings go through.
fn a_user_whose_start_failed_is_not_left_behind<T: Runs>() {
    let (image, engine, cpu) = start::<T>();
    let (first, second) = (addr(&image, 0), addr(&image, 1));
    let there = ops::<T>(0, OpsFlags::IPMODIFY, Filter::only(funcs([first])));
    assert_eq!(engine.register_ops(there), Ok(()));
    let nowhere = FuncAddr::new(0x10);
    let exclude = |addrs: Vec<usize>| Filter { include: FuncSet::All, exclude: FuncSet::Some(funcs(addrs)) };
    for (filter, refused) in [
        (Filter::only(funcs([first, second])), Error::IpModifyConflict { func: FuncAddr::new(first) }),
        (Filter::ALL, Error::IpModifyNeedsFilter),
        (Filter::only(funcs([nowhere.get()])), Error::NotTraceable { func: nowhere }),
        (Filter::only(funcs([second, first])), Error::UnsortedFilter { func: FuncAddr::new(first) }),
    ] {
        let user = ops::<T>(1, OpsFlags::IPMODIFY, filter);
        assert_eq!(engine.register_ops(user), Err(refused));
        assert_eq!(engine.unregister_ops(user), Err(Error::NotRegistered), "left behind after {refused:?}");
        assert_eq!(told_of(&cpu, &image, 1), []);
    }
    let graph_user = graph::<T>(2, exclude(vec![second, first]));
    assert!(engine.register_graph(graph_user).is_err());
    assert_eq!(engine.unregister_graph(graph_user), Err(Error::NotRegistered));
    // All slots but one are free still.
    let all: Vec<_> = (1..MAX_USERS).map(|n| ops::<T>(n, OpsFlags::empty(), Filter::NONE)).collect();
    all.iter().for_each(|user| assert_eq!(engine.register_ops(user), Ok(())));
}

/// The same when the text is to blame: then nobody is called any more either.
fn a_user_whose_text_failed_is_not_left_behind<T: Runs>() {
    for written in [None, Some(0), Some(3)] {
        let (image, engine, cpu) = start::<T>();
        let (user, graph_user) = (ops::<T>(1, OpsFlags::empty(), Filter::ALL), graph::<T>(2, Filter::ALL));
        kernel::with(|kernel| kernel.writes_left = written);
        if written.is_none() {
            let last = image.traceable().last().expect("a site").site;
            kernel::with(|kernel| kernel.unreadable.push(last..last + 1));
        }
        let failed = engine.register_ops(user);
        assert!(matches!(failed, Err(Error::Surprise { .. } | Error::Write(_))), "{failed:?}");
        assert_eq!(engine.register_graph(graph_user), Err(Error::Stopped));
        for _ in 0..2 {
            assert_eq!(engine.unregister_ops(user), Err(Error::NotRegistered));
            assert_eq!(engine.unregister_graph(graph_user), Err(Error::NotRegistered));
        }
        assert_eq!(cpu.run_all(&image), []);
    }
}

/// A user that is refused for its second set must not leave its first one to the next user of the slot.
fn a_user_refused_for_its_second_set_leaves_no_first_one<T: Runs>() {
    let (image, engine, cpu) = start::<T>();
    for include in [FuncSet::All, FuncSet::Some(funcs([addr(&image, 0), addr(&image, 3)]))] {
        let filter = Filter { include, exclude: FuncSet::Some(funcs([0x10])) };
        let refused = Err(Error::NotTraceable { func: FuncAddr::new(0x10) });
        assert_eq!(engine.register_ops(ops::<T>(1, OpsFlags::empty(), filter)), refused);
        let next = ops::<T>(2, OpsFlags::empty(), Filter::NONE);
        assert_eq!(engine.register_ops(next), Ok(()));
        assert_eq!((engine.stats().patched, told_of(&cpu, &image, 2)), (0, vec![]));
        let more = SetChange::Add(funcs([addr(&image, 1)]));
        assert_eq!(engine.change_ops(next, WhichSet::Filter, more), Ok(()));
        assert_eq!(told_of(&cpu, &image, 2), [addr(&image, 1)]);
        assert_eq!(engine.unregister_ops(next), Ok(()));
    }
}

/// Nor does a user that is gone.
fn the_next_user_of_a_slot_inherits_no_set<T: Runs>() {
    let (image, engine, cpu) = start::<T>();
    let out = FuncSet::Some(funcs([addr(&image, 2)]));
    for filter in [
        Filter::ALL,
        Filter { include: FuncSet::All, exclude: FuncSet::All },
        Filter { include: FuncSet::Some(funcs([addr(&image, 0)])), exclude: out },
    ] {
        let (user, next) = (ops::<T>(1, OpsFlags::empty(), filter), graph::<T>(2, Filter::NONE));
        assert_eq!((engine.register_ops(user), engine.unregister_ops(user)), (Ok(()), Ok(())));
        assert_eq!(engine.register_graph(next), Ok(()));
        assert_eq!((engine.stats().patched, told_of(&cpu, &image, 2)), (0, vec![]), "{filter:?}");
        assert_eq!(engine.change_graph(next, WhichSet::Filter, SetChange::All), Ok(()));
        assert_eq!(told_of(&cpu, &image, 2).len(), SITES, "{filter:?}");
        assert_eq!(engine.unregister_graph(next), Ok(()));
    }
}

/// "None yet" and "everything" are not the same, however many users are joined.
fn a_second_user_added_to_none_does_not_become_everything<T: Runs>() {
    let (image, engine, cpu) = start::<T>();
    let one = funcs([addr(&image, 4)]);
    let users = [Filter::NONE, Filter::only(&[]), Filter::only(one), Filter::NONE];
    let users: Vec<_> = users.into_iter().enumerate().map(|(n, filter)| graph::<T>(n, filter)).collect();
    for (number, user) in users.iter().enumerate() {
        assert_eq!(engine.register_graph(user), Ok(()));
        assert_eq!(engine.stats().patched, usize::from(number >= 2), "with {} users", number + 1);
    }
    for (number, user) in users.iter().enumerate() {
        let should = if number == 2 { vec![one[0].get()] } else { vec![] };
        assert_eq!(told_of(&cpu, &image, number), should);
        assert_eq!(engine.unregister_graph(user), Ok(()));
        assert_eq!(engine.stats().patched, usize::from(number < 2), "without {} users", number + 1);
    }
}

/// Two users of one function: it is patched once, counts two, and stays until the second has gone, in either order.
fn a_function_that_two_users_share_is_there_until_both_are_gone<T: Runs>() {
    let (image, engine, cpu) = start::<T>();
    let shared = funcs([addr(&image, 1), addr(&image, 2)]);
    let count = |addr: usize| {
        let mut users = None;
        engine.functions(|info| {
            if info.func.get() == addr {
                users = Some(info.users);
            }
        });
        users
    };
    for first_goes_first in [true, false] {
        // One list, used by both, and the entry and the return of one thing that is probed.
        let (one, two) =
            (ops::<T>(1, OpsFlags::empty(), Filter::only(shared)), graph::<T>(2, Filter::only(shared)));
        assert_eq!((engine.register_ops(one), engine.register_graph(two)), (Ok(()), Ok(())));
        assert_eq!((engine.stats().patched, count(shared[0].get())), (2, Some(2)));
        let unregister_one = || assert_eq!(engine.unregister_ops(one), Ok(()));
        let unregister_two = || assert_eq!(engine.unregister_graph(two), Ok(()));
        if first_goes_first {
            unregister_one()
        } else {
            unregister_two()
        }
        assert_eq!((engine.stats().patched, count(shared[0].get())), (2, Some(1)));
        let left = if first_goes_first { 2 } else { 1 };
        assert_eq!(told_of(&cpu, &image, left).len(), 2);
        assert_eq!(told_of(&cpu, &image, 3 - left), []);
        if first_goes_first {
            unregister_two()
        } else {
            unregister_one()
        }
        assert_eq!((engine.stats().patched, count(shared[0].get())), (0, Some(0)));
        assert_eq!(kernel::text(), image.text_with::<T>(|_| Flavor::Off));
        assert_eq!(cpu.run_all(&image), []);
    }
}

/// A notrace set belongs to its own user's filter. Two users, each with both sets; then they go in both orders.
fn notrace_sets_of_several_users_are_not_mixed<T: Runs>() {
    storm(40, 1, |random| {
        let image = Image::new::<T>(8, random);
        let engine = image.start::<T>();
        let cpu = Cpu::new(engine);
        let all: Vec<usize> = image.traceable().map(|function| function.addr).collect();
        let mut some = || -> Vec<usize> { all.iter().copied().filter(|_| random.one_in(2)).collect() };
        let sets: Vec<(Option<Vec<usize>>, Vec<usize>)> =
            vec![(Some(some()), some()), (Some(some()), some()), (None, some()), (None, some())];
        let users: Vec<_> = sets
            .iter()
            .enumerate()
            .map(|(number, (include, exclude))| {
                let include =
                    include.as_ref().map_or(FuncSet::All, |addrs| FuncSet::Some(funcs(addrs.clone())));
                graph::<T>(number, Filter { include, exclude: FuncSet::Some(funcs(exclude.clone())) })
            })
            .collect();
        let wants = |number: usize| -> Vec<usize> {
            let (include, exclude) = &sets[number];
            let included = |addr: &usize| include.as_ref().is_none_or(|there| there.contains(addr));
            all.iter().copied().filter(|addr| included(addr) && !exclude.contains(addr)).collect()
        };
        let check = |there: &[usize]| {
            let wanted: BTreeSet<usize> = there.iter().flat_map(|number| wants(*number)).collect();
            let text = image.text_with::<T>(|f| match wanted.contains(&f.addr) {
                true => Flavor::Args,
                false => Flavor::Off,
            });
            assert_eq!(kernel::text(), text, "with {there:?}");
            (0..users.len()).for_each(|number| {
                let should = if there.contains(&number) { wants(number) } else { vec![] };
                assert_eq!(told_of(&cpu, &image, number), should, "user {number} of {there:?}");
            });
        };
        for order in [[0, 1], [1, 0], [2, 3], [3, 2], [0, 3], [3, 1]] {
            let mut there = Vec::new();
            for number in order {
                assert_eq!(engine.register_graph(users[number]), Ok(()));
                there.push(number);
                check(&there);
            }
            while !there.is_empty() {
                assert_eq!(engine.unregister_graph(users[there.remove(0)]), Ok(()));
                check(&there);
            }
        }
    });
}

/// Also when there is no text to change, or none that can be, whoever leaves waits for those who may be using it: at least
/// one core sync between its last call and the end.
fn who_leaves_is_waited_for_even_if_no_text_changes<T: Runs>() {
    let syncs = || kernel::with(|kernel| kernel.syncs);
    let (image, engine, _) = start::<T>();
    let user = |filter| ops::<T>(1, OpsFlags::empty(), filter);
    let leaves = |filter, how: &str| {
        let leaving = user(filter);
        let writes = kernel::with(|kernel| kernel.writes.len());
        assert_eq!(engine.register_ops(leaving), Ok(()), "{how}");
        let before = syncs();
        assert_eq!(engine.unregister_ops(leaving), Ok(()), "{how}");
        assert!(syncs() > before, "{how}: nobody waited");
        assert_eq!(kernel::with(|kernel| kernel.writes.len()), writes, "{how}: text was written");
    };
    leaves(Filter::NONE, "a user of nothing");
    let stays = user(Filter::ALL);
    assert_eq!(engine.register_ops(stays), Ok(()));
    leaves(Filter::ALL, "another user wants the same");
    assert_eq!(engine.set_enabled(false), Ok(()));
    leaves(Filter::ALL, "the tracer is switched off");
    assert_eq!(engine.set_enabled(true), Ok(()));
    let graph_user = graph::<T>(2, Filter::ALL);
    assert_eq!(engine.register_graph(graph_user), Ok(()));
    engine.stop();
    let before = syncs();
    assert_eq!(engine.unregister_graph(graph_user), Err(Error::Stopped));
    assert!(syncs() > before, "the tracer has stopped, but callbacks may be under way");
    assert_eq!(kernel::text(), image.text_with::<T>(|_| Flavor::Args));
}

/// A graph user that left is not told of returns that its own calls still owe, whoever has its slot by then.
fn a_user_that_left_is_told_of_no_return_and_neither_is_who_took_its_slot<T: Runs>() {
    let (image, engine, cpu) = start::<T>();
    let function = image.traceable().next().expect("a function");
    // More rounds than there are slots: every slot changes hands.
    let first = graph::<T>(0, Filter::ALL);
    assert_eq!(engine.register_graph(first), Ok(()));
    let call = cpu.call(&image, function);
    assert_eq!(told(), [(What::GraphEntry, 0, function.addr)]);
    assert_eq!(engine.unregister_graph(first), Ok(()));
    let next: Vec<_> = (1..=MAX_USERS).map(|number| graph::<T>(number, Filter::ALL)).collect();
    next.iter().for_each(|user| assert_eq!(engine.register_graph(user), Ok(())));
    cpu.finish(call);
    assert_eq!(told(), []);
    // Itself, come back, is another registration.
    assert_eq!(engine.unregister_graph(next[3]), Ok(()));
    let call = cpu.call(&image, function);
    assert_eq!((engine.register_graph(next[3]), told().len()), (Ok(()), MAX_USERS - 1));
    cpu.finish(call);
    let returns = told();
    assert_eq!(returns.len(), MAX_USERS - 1);
    assert!(!returns.contains(&(What::Return, 4, function.addr)));
}

for_plain_sites! {
    a_user_whose_start_failed_is_not_left_behind
    a_user_whose_text_failed_is_not_left_behind
    a_user_refused_for_its_second_set_leaves_no_first_one
    the_next_user_of_a_slot_inherits_no_set
    a_second_user_added_to_none_does_not_become_everything
    a_function_that_two_users_share_is_there_until_both_are_gone
    notrace_sets_of_several_users_are_not_mixed
    who_leaves_is_waited_for_even_if_no_text_changes
    a_user_that_left_is_told_of_no_return_and_neither_is_who_took_its_slot
}
