//! Known bugs of sites: how far a branch reaches, what must stand there before it is changed, and which function it is of.

use std::vec::Vec;

use super::cpu::{Cpu, Loadable, Runs, What, ops, told};
use crate::addr::{FuncAddr, SiteAddr};
use crate::engine::image::{Image, for_plain_sites};
use crate::engine::{Engine, Error, SetChange, WhichSet};
use crate::filter::Filter;
use crate::graph::world::funcs;
use crate::machine::OutOfRange;
use crate::machine::Pair;
use crate::ops::OpsFlags;
use crate::site::Flavor;
use crate::testing::Random;
use crate::testing::kernel::{self, Fake};

const SITES: usize = 6;

fn image<T: Runs>() -> Image {
    Loadable::new::<T>(SITES, 0, 0, &mut Random::new(8)).kernel
}

/// The branch of a site counts from here.
fn branch<T: Runs>(site: usize) -> usize {
    site + if T::ALIGN == 4 { 4 } else { 0 }
}

/// The first address that a branch at `from` does not reach, forwards, and the last that it does, backwards.
fn reach<T: Runs>(from: usize) -> (usize, usize) {
    if T::ALIGN == 4 {
        (from + (1 << 27), from.wrapping_sub(1 << 27))
    } else {
        (from + 5 + (1 << 31), (from + 5).wrapping_sub(1 << 31))
    }
}

/// Both ends, for both trampolines: the last place that is reached works, the next one is refused by name, and nothing is
/// written for it.
fn branch_range_is_half_open<T: Runs>() {
    let plain = image::<T>();
    let first = plain.traceable().next().expect("a site").clone();
    let from = branch::<T>(first.site);
    let (forwards, backwards) = reach::<T>(from);
    let step = T::ALIGN;
    let only = Filter::only(funcs([first.addr]));
    for (to, reached) in
        [(forwards - step, true), (forwards, false), (backwards, true), (backwards.wrapping_sub(step), false)]
    {
        for flags in [OpsFlags::empty(), OpsFlags::SAVE_REGS] {
            let mut image = plain.clone();
            if flags.is_empty() {
                image.trampolines.classic.args = to;
            } else {
                image.trampolines.classic.regs = to;
            }
            let engine = image.start::<T>();
            let user = ops::<T>(0, flags, only);
            let writes = kernel::with(|kernel| kernel.writes.len());
            if reached {
                assert_eq!(engine.register_ops(user), Ok(()), "{to:#x} from {from:#x}");
                assert_eq!(engine.unregister_ops(user), Ok(()));
            } else {
                let refused = Err(Error::OutOfRange(OutOfRange { from, to }));
                assert_eq!(engine.register_ops(user), refused);
                assert_eq!(kernel::with(|kernel| kernel.writes.len()), writes);
                assert!(!engine.is_stopped());
            }
            assert_eq!(kernel::text(), image.text_with::<T>(|_| Flavor::Off));
        }
    }
}

/// Enable, change the trampoline, disable: each compares the text with what the one before wrote. They must mean the same,
/// also where a trampoline is only just within reach, in the kernel and in modules.
fn disable_expects_what_enable_wrote<T: Runs>() {
    let mut loadable = Loadable::new::<T>(SITES, 1, 3, &mut Random::new(4));
    let last = loadable.images().flat_map(|image| image.traceable()).map(|f| f.site).max().expect("a site");
    let first = loadable.images().flat_map(|image| image.traceable()).map(|f| f.site).min().expect("a site");
    let far =
        Pair { args: reach::<T>(branch::<T>(first)).0 - T::ALIGN, regs: reach::<T>(branch::<T>(last)).1 };
    let near = loadable.kernel.trampolines.classic;
    for pair in [near, far, Pair { args: far.regs, regs: far.args }] {
        loadable.kernel.trampolines.classic = pair;
        loadable.modules[0].trampolines.classic = pair;
        let engine = loadable.start::<T>();
        let (_, report) = super::cpu::load(engine, &loadable.modules[0]).expect("a good module");
        assert!(report.sites > 0);
        let (args, regs) =
            (ops::<T>(0, OpsFlags::empty(), Filter::ALL), ops::<T>(1, OpsFlags::SAVE_REGS, Filter::ALL));
        let is = |flavor: Flavor| {
            let text = loadable.text(|_, image| image.text_with::<T>(|_| flavor));
            assert_eq!(kernel::text(), text, "{flavor:?}");
        };
        is(Flavor::Off);
        for _ in 0..2 {
            assert_eq!(engine.register_ops(args), Ok(()));
            is(Flavor::Args);
            assert_eq!(engine.register_ops(regs), Ok(()));
            is(Flavor::Regs);
            assert_eq!(engine.unregister_ops(regs), Ok(()));
            is(Flavor::Args);
            assert_eq!(engine.unregister_ops(args), Ok(()));
            is(Flavor::Off);
            assert_eq!(engine.register_ops(regs), Ok(()));
            is(Flavor::Regs);
            assert_eq!(engine.unregister_ops(regs), Ok(()));
            is(Flavor::Off);
        }
    }
}

/// The symbol of a function with a landing pad is not its site: both names lead to it, in a lookup and in a set, and callbacks
/// are told the symbol. What lies between or behind is no name of it.
fn a_function_behind_a_landing_pad_is_found_by_its_symbol<T: Runs>() {
    let image = image::<T>();
    let engine: &Engine<Fake, T> = image.start::<T>();
    let padded: Vec<_> = image.traceable().filter(|function| function.addr != function.site).collect();
    assert!(!padded.is_empty() && padded.len() < SITES, "sites of both kinds");
    for function in image.traceable() {
        let both = Some((FuncAddr::new(function.addr), SiteAddr::new(function.site)));
        for name in [function.addr, function.site] {
            assert_eq!(engine.location(name), both, "{name:#x}");
        }
        for near in [function.addr.wrapping_sub(1), function.addr + 1, function.site + 1, function.site + 4] {
            assert_eq!(engine.location(near), None, "{near:#x}");
        }
        for name in [function.addr, function.site] {
            let user = ops::<T>(0, OpsFlags::empty(), Filter::only(funcs([name])));
            let cpu = Cpu::new(engine);
            assert_eq!(engine.register_ops(user), Ok(()));
            assert_eq!(cpu.run_all(&image), [(What::Entry, 0, function.addr)]);
            let less = SetChange::Remove(funcs([function.addr]));
            assert_eq!(engine.change_ops(user, WhichSet::Filter, less), Ok(()));
            assert_eq!(engine.stats().patched, 0, "taken out by its symbol");
            let more = SetChange::Add(funcs([function.site]));
            assert_eq!(engine.change_ops(user, WhichSet::Filter, more), Ok(()));
            assert_eq!(engine.stats().patched, 1, "put in by its site");
            assert_eq!(engine.unregister_ops(user), Ok(()));
        }
    }
}

/// A function that is kept out must not be had by naming its neighbour's pad, nor by an address near it.
fn what_is_no_function_cannot_be_named<T: Runs>() {
    let image = image::<T>();
    let engine = image.start::<T>();
    let notrace = image.functions.iter().filter(|function| function.notrace);
    let mut names: Vec<usize> = notrace.flat_map(|function| [function.addr, function.site]).collect();
    names.extend(image.traceable().flat_map(|function| [function.addr + 1, function.site + T::SLED]));
    names.extend([0, 1, usize::MAX, usize::MAX - 3, image.base - 16, image.text().end]);
    for name in names {
        let func = FuncAddr::new(name);
        assert_eq!(engine.location(name), None, "{name:#x}");
        let user = ops::<T>(0, OpsFlags::empty(), Filter::only(funcs([name])));
        assert_eq!(engine.register_ops(user), Err(Error::NotTraceable { func }));
    }
    assert_eq!(kernel::text(), image.text_with::<T>(|_| Flavor::Off));
}

/// The words of a table need not be in order: the lowest and the highest function of an unsorted one are found.
fn both_ends_of_an_unsorted_table_are_found<T: Runs>() {
    let image = image::<T>();
    let mut entries = image.entries();
    let middle = entries.len() / 2;
    entries.rotate_left(middle);
    image.boot::<T>();
    let engine = crate::engine::image::new_engine::<T>();
    let source = image.source(entries, image.functions.len());
    let report = crate::engine::image::init(engine, source, image.trampolines).expect("a good image");
    assert!(report.unsorted);
    let cpu = Cpu::new(engine);
    assert_eq!(engine.register_ops(ops::<T>(0, OpsFlags::empty(), Filter::ALL)), Ok(()));
    let ends = [image.traceable().next(), image.traceable().last()].map(|function| function.expect("one"));
    for function in ends {
        assert_eq!(engine.location(function.addr).map(|(func, _)| func.get()), Some(function.addr));
        cpu.run(&image, function);
        assert_eq!(told(), [(What::Entry, 0, function.addr)]);
    }
}

for_plain_sites! {
    branch_range_is_half_open
    disable_expects_what_enable_wrote
    a_function_behind_a_landing_pad_is_found_by_its_symbol
    what_is_no_function_cannot_be_named
    both_ends_of_an_unsorted_table_are_found
}
