//! What the control side does when something is wrong: text that someone else changed, a platform that fails to write,
//! trampolines out of reach, and callers that ask for the impossible. On both machines.

use std::vec::Vec;

use super::image::{
    Function, Image, Target, for_both_machines, for_branching_sleds, init, new_engine, target,
};
use super::model::watch;
use super::{Engine, Error, SetChange, WhichSet};
use crate::addr::{FuncAddr, SiteAddr};
use crate::filter::{Filter, FuncSet};
use crate::graph::world::{funcs, user};
use crate::machine::{Code, OutOfRange};
use crate::ops::{Ops, OpsFlags};
use crate::platform::TextWriteError;
use crate::site::Flavor;
use crate::testing::kernel::{self, Fake};
use crate::testing::{Random, keep};
use crate::users::MAX_USERS;

const SITES: usize = 6;

fn image<T: Target>() -> Image {
    Image::new::<T>(SITES, &mut Random::new(5))
}

fn ops<T: Target>(flags: OpsFlags, filter: Filter) -> &'static Ops<T::Regs> {
    keep(Ops::new(|_, _, _, _| {}, flags, filter))
}

fn args<T: Target>() -> &'static Ops<T::Regs> {
    ops::<T>(OpsFlags::empty(), Filter::ALL)
}

fn regs<T: Target>() -> &'static Ops<T::Regs> {
    ops::<T>(OpsFlags::SAVE_REGS, Filter::ALL)
}

fn writes() -> usize {
    kernel::with(|kernel| kernel.writes.len())
}

/// Tracing has stopped for good: nobody gets in any more, and no text is written.
fn is_stopped<T: Target>(engine: &Engine<Fake, T>) {
    let text = kernel::text();
    assert!(engine.is_stopped());
    assert_eq!(engine.register_ops(args::<T>()), Err(Error::Stopped));
    assert_eq!(engine.register_graph(user(0, Filter::ALL)), Err(Error::Stopped));
    assert_eq!(kernel::text(), text);
}

fn a_surprise_at_any_site_writes_nothing_and_stops_for_good<T: Target>() {
    let image = image::<T>();
    for function in image.traceable() {
        for wrong in [0, function.sled.len() - 1] {
            let engine = image.start::<T>();
            let there = args::<T>();
            engine.register_ops(there).expect("nothing is wrong yet");
            let mut found = image.sled::<T>(function, Flavor::Args);
            let expected = Code::new(&found);
            found[wrong] ^= 0x10;
            kernel::poke(function.site, &found);
            let (text, written) = (kernel::text(), writes());

            let surprise =
                Error::Surprise { site: SiteAddr::new(function.site), expected, found: Code::new(&found) };
            let new = regs::<T>();
            assert_eq!(engine.register_ops(new), Err(surprise));
            assert_eq!(surprise.site(), Some(SiteAddr::new(function.site)));
            assert_eq!((kernel::text(), writes()), (text, written), "nothing was written");
            assert!(!engine.has_ops(new) && engine.has_ops(there));
            image.traceable().for_each(|f| assert_eq!(target(engine, f), Some(Flavor::Args)));
            is_stopped(engine);
        }
    }
}

fn a_surprise_while_a_user_leaves_lets_it_out<T: Target>() {
    let image = image::<T>();
    let last = image.traceable().last().expect("a site");
    let engine = image.start::<T>();
    let (first, second) = (args::<T>(), user(0, Filter::ALL));
    engine.register_ops(first).expect("registered");
    kernel::with(|kernel| kernel.unreadable.push(last.site..last.site + 1));
    let (text, expected) = (kernel::text(), Code::new(&image.sled::<T>(last, Flavor::Args)));
    let surprise = Error::Surprise { site: SiteAddr::new(last.site), expected, found: Code::new(&[]) };
    assert_eq!(engine.unregister_ops(first), Err(surprise));
    assert_eq!((engine.has_ops(first), kernel::text()), (false, text));
    is_stopped(engine);

    let engine = image.start::<T>();
    engine.register_graph(second).expect("registered");
    kernel::with(|kernel| kernel.unreadable.push(last.site..last.site + 1));
    assert_eq!(engine.unregister_graph(second), Err(surprise));
    assert!(!engine.has_graph(second));
    is_stopped(engine);
}

/// A site that nobody wants to change is not looked at: another tool's text there is no business of the tracer's.
fn text_that_need_not_change_is_not_looked_at<T: Target>() {
    let image = image::<T>();
    let engine = image.start::<T>();
    let sites: Vec<&Function> = image.traceable().collect();
    kernel::poke(sites[0].site, &vec![0x42; sites[0].sled.len()]);
    let only = ops::<T>(OpsFlags::empty(), Filter::only(funcs([sites[1].addr])));
    assert_eq!(engine.register_ops(only), Ok(()));
    assert_eq!(engine.unregister_ops(only), Ok(()));
}

/// Wherever the platform fails, each site can be run into, and the trap handler knows the way.
fn a_failing_write_at_any_step_stops_for_good<T: Target>() {
    let image = image::<T>();
    for graph in [false, true] {
        for left in 0.. {
            let engine = image.start::<T>();
            engine.register_ops(args::<T>()).expect("registered");
            let (new, of_graph) = (regs::<T>(), user(0, Filter::ALL));
            let (from, to) = if graph { (Flavor::Off, Flavor::Args) } else { (Flavor::Args, Flavor::Regs) };
            let engine = if graph { image.start::<T>() } else { engine };
            watch(engine, &image, |_| (from, to));
            kernel::with(|kernel| kernel.writes_left = Some(left));
            let done = if graph { engine.register_graph(of_graph) } else { engine.register_ops(new) };
            if done.is_ok() {
                assert_eq!(left, writes());
                break;
            }
            let Err(Error::Write(TextWriteError { addr, len })) = done else { panic!("{done:?}") };
            let site = image.traceable().find(|f| f.sled_range().contains(&addr));
            assert!(site.is_some_and(|site| addr + len <= site.sled_range().end), "{addr:#x}");
            assert_eq!(writes(), left);
            assert!(!engine.has_ops(new) && !engine.has_graph(of_graph));
            for function in image.traceable() {
                let start = function.site - image.base;
                let there = kernel::text()[start..start + function.sled.len()].to_vec();
                let (old, new) = (image.sled::<T>(function, from), image.sled::<T>(function, to));
                assert!(T::on_the_way(&old, &new).contains(&there), "after {left} writes: {there:02x?}");
                assert_eq!(target(engine, function), Some(to), "after {left} writes");
            }
            is_stopped(engine);
        }
    }
}

fn a_user_that_leaves_while_writing_fails_is_out<T: Target>() {
    let image = image::<T>();
    let engine = image.start::<T>();
    let old = args::<T>();
    engine.register_ops(old).expect("registered");
    kernel::with(|kernel| kernel.writes_left = Some(2));
    assert!(matches!(engine.unregister_ops(old), Err(Error::Write(_))));
    assert!(!engine.has_ops(old));
    is_stopped(engine);
}

/// Starts with a trampoline for all registers that only the sites from the middle on can reach.
fn half_out_of_range<T: Target>(image: &mut Image) -> (&'static Engine<Fake, T>, OutOfRange) {
    let sites: Vec<usize> = image.traceable().map(|function| function.site).collect();
    let far = (sites[SITES / 2] + T::REACH) & !3;
    for pair in [&mut image.trampolines.classic, &mut image.trampolines.balanced] {
        pair.regs = far;
    }
    let engine = image.start::<T>();
    let branch = sites[0] + if T::ALIGN == 4 { 4 } else { 0 };
    (engine, OutOfRange { from: branch, to: far })
}

fn a_trampoline_out_of_reach_is_refused_and_all_stays_as_it_was<T: Target>() {
    let mut image = image::<T>();
    let (engine, out_of_range) = half_out_of_range::<T>(&mut image);
    let (near, far) = (args::<T>(), regs::<T>());
    let sites: Vec<usize> = image.traceable().map(|function| function.addr).collect();
    for there in [None, Some(near)] {
        if let Some(there) = there {
            engine.register_ops(there).expect("within reach");
        }
        let flavor = if there.is_some() { Flavor::Args } else { Flavor::Off };
        let written = writes();
        assert_eq!(engine.register_ops(far), Err(Error::OutOfRange(out_of_range)));
        assert_eq!((writes(), engine.has_ops(far), engine.is_stopped()), (written, false, false));
        assert_eq!(kernel::text(), image.text_with::<T>(|_| flavor));
        image.traceable().for_each(|f| assert_eq!(target(engine, f), Some(flavor)));
    }
    // What is within reach can still be had.
    let some = ops::<T>(OpsFlags::SAVE_REGS, Filter::only(funcs(sites[SITES / 2 + 1..].to_vec())));
    assert_eq!(engine.register_ops(some), Ok(()));
    assert_eq!(engine.unregister_ops(some), Ok(()));
    assert_eq!(engine.unregister_ops(near), Ok(()));
    assert_eq!(kernel::text(), image.text_with::<T>(|_| Flavor::Off));
}

fn a_graph_out_of_reach_is_refused_too<T: Target>() {
    let mut image = image::<T>();
    let far = (image.text().end + T::REACH + 16) & !3;
    for pair in [&mut image.trampolines.classic, &mut image.trampolines.balanced] {
        pair.args = far;
    }
    let engine = image.start::<T>();
    let (user, all, some) = (user(0, Filter::ALL), regs::<T>(), image.traceable().skip(1));
    for _ in 0..2 {
        assert!(matches!(engine.register_graph(user), Err(Error::OutOfRange(_))));
        assert!(!engine.has_graph(user));
        assert_eq!(kernel::text(), image.text_with::<T>(|_| Flavor::Off));
    }
    // Neither the user nor the graph itself is left behind.
    let some = ops::<T>(OpsFlags::SAVE_REGS, Filter::only(funcs(some.map(|function| function.addr))));
    assert_eq!(engine.register_ops(some), Ok(()));
    assert!(matches!(engine.register_graph(user), Err(Error::OutOfRange(_))), "the first site needs args");
    assert_eq!(engine.register_ops(all), Ok(()));
    assert_eq!(engine.register_graph(user), Ok(()), "all sites have more than args already");
    assert_eq!(kernel::text(), image.text_with::<T>(|_| Flavor::Regs));
    // It is out although the text could not follow.
    assert!(matches!(engine.unregister_ops(all), Err(Error::OutOfRange(_))));
    assert!(!engine.has_ops(all) && !engine.is_stopped());
    assert_eq!(kernel::text(), image.text_with::<T>(|_| Flavor::Regs));
}

fn callers_that_ask_for_the_impossible_are_told<T: Target>() {
    let image = image::<T>();
    let engine = image.start::<T>();
    let (one, graph) = (args::<T>(), user(0, Filter::ALL));
    assert_eq!(engine.unregister_ops(one), Err(Error::NotRegistered));
    assert_eq!(engine.unregister_graph(graph), Err(Error::NotRegistered));
    assert_eq!((engine.register_ops(one), engine.register_graph(graph)), (Ok(()), Ok(())));
    assert_eq!(engine.register_ops(one), Err(Error::AlreadyRegistered));
    assert_eq!(engine.register_graph(graph), Err(Error::AlreadyRegistered));

    let unsorted = |addrs: Vec<usize>| FuncSet::Some(funcs(addrs));
    for (case, filter, func) in [
        ("descending", Filter { include: unsorted(vec![16, 32, 24]), exclude: FuncSet::None }, 24),
        ("twice", Filter { include: unsorted(vec![16, 16]), exclude: FuncSet::None }, 16),
        ("exclude", Filter { include: FuncSet::All, exclude: unsorted(vec![9, 3, 1]) }, 3),
    ] {
        let error = Error::UnsortedFilter { func: FuncAddr::new(func) };
        let (entries, graph) = (ops::<T>(OpsFlags::empty(), filter), user(1, filter));
        assert_eq!(engine.register_ops(entries), Err(error), "{case}");
        assert_eq!(engine.register_graph(graph), Err(error), "{case}");
        assert!(!engine.has_ops(entries) && !engine.has_graph(graph), "{case}");
    }
    assert_eq!(kernel::text(), image.text_with::<T>(|_| Flavor::Args));
}

fn all_users_share_the_slots<T: Target>() {
    let too_many = Err(Error::TooManyUsers { max: MAX_USERS });
    let image = image::<T>();
    let engine = image.start::<T>();
    let all: Vec<_> = (0..16).map(|_| args::<T>()).collect();
    all.iter().for_each(|ops| assert_eq!(engine.register_ops(ops), Ok(())));
    let graphs: Vec<_> = (16..MAX_USERS).map(|number| user(number, Filter::ALL)).collect();
    graphs.iter().for_each(|user| assert_eq!(engine.register_graph(user), Ok(())));
    let (one_more, graph) = (regs::<T>(), user(0, Filter::ALL));
    for _ in 0..2 {
        assert_eq!(engine.register_ops(one_more), too_many);
        assert_eq!(engine.register_graph(graph), too_many);
        assert_eq!(engine.change_graph(graph, WhichSet::Filter, SetChange::Clear), too_many);
        assert!(!engine.has_ops(one_more) && !engine.has_graph(graph));
        assert_eq!(kernel::text(), image.text_with::<T>(|_| Flavor::Args));
    }
    assert_eq!(engine.unregister_ops(all[7]), Ok(()));
    assert_eq!(engine.register_graph(graph), Ok(()));
    assert_eq!(engine.register_ops(one_more), too_many);
    assert_eq!(engine.unregister_graph(graphs[2]), Ok(()));
    assert_eq!(engine.register_ops(one_more), Ok(()));
    assert_eq!(engine.register_graph(graphs[2]), too_many);
    assert_eq!(kernel::text(), image.text_with::<T>(|_| Flavor::Regs));
}

fn a_tracer_that_was_stopped_stays_stopped<T: Target>() {
    let image = image::<T>();
    let engine = image.start::<T>();
    engine.register_ops(args::<T>()).expect("registered");
    engine.stop();
    is_stopped(engine);
    assert_eq!(kernel::text(), image.text_with::<T>(|_| Flavor::Args), "stopping writes no text");

    let fresh = new_engine::<T>();
    image.boot::<T>();
    fresh.stop();
    let _ = init(fresh, image.source(image.entries(), 20), image.trampolines);
    is_stopped(fresh);
}

for_both_machines! {
    a_surprise_at_any_site_writes_nothing_and_stops_for_good
    a_surprise_while_a_user_leaves_lets_it_out
    text_that_need_not_change_is_not_looked_at
    a_failing_write_at_any_step_stops_for_good
    a_user_that_leaves_while_writing_fails_is_out
    callers_that_ask_for_the_impossible_are_told
    all_users_share_the_slots
    a_tracer_that_was_stopped_stays_stopped
}

for_branching_sleds! {
    a_trampoline_out_of_reach_is_refused_and_all_stays_as_it_was
    a_graph_out_of_reach_is_refused_too
}
