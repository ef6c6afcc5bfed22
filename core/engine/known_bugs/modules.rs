//! Known bugs of code that comes and goes.

use std::vec::Vec;

use super::cpu::{Cpu, Loadable, Runs, What, add, load, ops, told};
use crate::addr::{FuncAddr, SiteAddr};
use crate::engine::image::{Image, for_plain_sites, target};
use crate::engine::{Engine, Error, SetChange, WhichSet};
use crate::filter::{Filter, FuncSet};
use crate::graph::world::funcs;
use crate::machine::OutOfRange;
use crate::ops::OpsFlags;
use crate::site::{Flavor, SiteError};
use crate::testing::Random;
use crate::testing::kernel::{self, Fake};

fn start<T: Runs>() -> (Loadable, &'static Engine<Fake, T>, Cpu<T>) {
    let loadable = Loadable::new::<T>(4, 2, 3, &mut Random::new(14));
    let engine = loadable.start::<T>();
    (loadable, engine, Cpu::new(engine))
}

fn func(image: &Image) -> FuncAddr {
    FuncAddr::new(image.traceable().next().expect("a function").addr)
}

/// What is asked about a module that is gone finds nothing, and no set remembers its functions: another module that is
/// loaded to the same place is wanted by nobody who named the old one.
fn a_module_that_is_gone_leaves_no_site_and_no_member<T: Runs>() {
    let (loadable, engine, cpu) = start::<T>();
    let module = &loadable.modules[0];
    let name = func(module);
    let user = ops::<T>(1, OpsFlags::empty(), Filter::NONE);
    assert_eq!(engine.register_ops(user), Ok(()));
    let add_it = SetChange::Add(core::slice::from_ref(&name));
    for _ in 0..3 {
        assert_eq!(
            engine.change_ops(user, WhichSet::Filter, add_it),
            Err(Error::NotTraceable { func: name })
        );
        let (id, _) = load(engine, module).expect("a good module");
        assert_eq!(cpu.run_all(module), [], "named before it was gone");
        assert_eq!(engine.change_ops(user, WhichSet::Filter, add_it), Ok(()));
        assert_eq!(cpu.run_all(module), [(What::Entry, 1, name.get())]);
        assert_eq!(engine.remove_module(id), Ok(()));
        assert_eq!(engine.location(name.get()), None);
        assert!(!engine.text_reserved(module.text()));
        module.traceable().for_each(|function| assert_eq!(target(engine, function), None));
        engine.functions(|info| assert!(!module.text().contains(&info.func.get())));
        assert_eq!((engine.stats().patched, engine.remove_module(id)), (0, Err(Error::NoSuchModule)));
        let off = loadable.text(|index, image| match index {
            0 | 1 => image.text_with::<T>(|_| Flavor::Off),
            _ => image.bytes.clone(),
        });
        assert_eq!(kernel::text(), off);
    }
}

/// Users of everything want a new module's functions, from before any of them runs; users that leave everything out do not.
fn everything_holds_for_modules_that_come_later<T: Runs>() {
    let (loadable, engine, cpu) = start::<T>();
    let module = &loadable.modules[1];
    let out = Filter { include: FuncSet::All, exclude: FuncSet::All };
    let some = Filter::only(funcs([func(&loadable.kernel).get()]));
    for (number, filter) in [Filter::ALL, out, some].into_iter().enumerate() {
        assert_eq!(engine.register_ops(ops::<T>(number, OpsFlags::empty(), filter)), Ok(()));
    }
    load(engine, module).expect("a good module");
    let told = cpu.run_all(module);
    assert_eq!(told.len(), module.traceable().count());
    assert!(told.iter().all(|(.., user, _)| *user == 0), "{told:?}");
}

/// A module whose trampoline is too far away is refused, and none of its sites is left.
fn a_module_out_of_reach_is_refused_and_leaves_nothing<T: Runs>() {
    let (mut loadable, ..) = start::<T>();
    // Only the kernel's sites reach it.
    let last = loadable.kernel.traceable().map(|function| function.site).max().expect("a site");
    let back = if T::ALIGN == 4 { 1 << 27 } else { (1 << 31) - 5 };
    let branch = |site: usize| site + if T::ALIGN == 4 { 4 } else { 0 };
    loadable.kernel.trampolines.classic.args = branch(last).wrapping_sub(back);
    let engine = loadable.start::<T>();
    let cpu = Cpu::new(engine);
    assert_eq!(engine.register_ops(ops::<T>(0, OpsFlags::empty(), Filter::ALL)), Ok(()));
    let module = &loadable.modules[0];
    let site = module.traceable().next().expect("a site").site;
    let refused = OutOfRange { from: branch(site), to: loadable.kernel.trampolines.classic.args };
    for _ in 0..2 {
        assert_eq!(load(engine, module).map(|_| ()), Err(Error::OutOfRange(refused)));
        assert_eq!((engine.location(site), engine.is_stopped()), (None, false));
        assert_eq!(engine.stats().sites, loadable.kernel.traceable().count());
        // Its code may run all the same.
        assert_eq!(cpu.run_all(module), []);
        assert_eq!(cpu.run_all(&loadable.kernel).len(), loadable.kernel.traceable().count());
    }
}

/// A module's table that is loaded a second time, or names the kernel's own sites: two records of one site would each expect
/// what they wrote themselves.
fn a_site_that_is_there_already_is_refused<T: Runs>() {
    let (loadable, engine, cpu) = start::<T>();
    let (kernel_image, module) = (&loadable.kernel, &loadable.modules[0]);
    let (id, _) = load(engine, module).expect("a good module");
    let text = kernel::text();
    for image in [module, kernel_image] {
        let refused = add(engine, image).map(|_| ());
        assert!(matches!(refused, Err(Error::Sites(_))), "{refused:?}");
        assert_eq!(kernel::text(), text);
        image.traceable().for_each(|function| assert_eq!(target(engine, function), Some(Flavor::Off)));
    }
    let user = ops::<T>(0, OpsFlags::empty(), Filter::ALL);
    assert_eq!(engine.register_ops(user), Ok(()));
    assert_eq!((engine.remove_module(id), engine.unregister_ops(user)), (Ok(()), Ok(())));
    assert!(!engine.is_stopped());
    assert_eq!(cpu.run_all(kernel_image), []);
}

/// The same when the other record lies a few bytes off, before or behind.
fn a_site_that_shares_bytes_with_one_of_another_table_is_refused<T: Runs>() {
    let mut loadable = Loadable::new::<T>(3, 1, 2, &mut Random::new(31));
    let (sled, module) = (nops::<T>(), &mut loadable.modules[0]);
    let first = module.traceable().next().expect("a function").site;
    let start = first - module.base;
    module.bytes[start..start + T::SLED].copy_from_slice(&sled[..T::SLED]);
    module.bytes.splice(start + T::SLED..start + 2 * T::SLED, sled[..T::SLED].iter().copied());
    module.functions.iter_mut().filter(|f| f.site == first).for_each(|f| f.sled = sled[..T::SLED].to_vec());
    let module = &loadable.modules[0];
    for (there, new) in [(first, first + T::ALIGN), (first + T::ALIGN, first)] {
        let engine = loadable.start::<T>();
        let source = |entry: usize| module.source(vec![entry], 1);
        kernel::with(|kernel| kernel.sleds.push(first..first + T::SLED + T::ALIGN));
        // SAFETY: nothing executes this text.
        assert!(unsafe { engine.add_module(source(there)) }.is_ok());
        kernel::poke(module.base, &module.bytes);
        let (site, other) = (SiteAddr::new(first), SiteAddr::new(first + T::ALIGN));
        // SAFETY: as above.
        let refused = unsafe { engine.add_module(source(new)) }.map(|_| ());
        assert_eq!(refused, Err(Error::Sites(SiteError::Overlapping { site, other })));
        assert_eq!(engine.location(new), None);
        assert_eq!(engine.location(there).map(|(_, site)| site.get()), Some(there));
    }
}

/// NOPs that can be cut anywhere.
fn nops<T: Runs>() -> Vec<u8> {
    let begins = T::begins();
    let equal = |sled: &&Vec<u8>| sled[..T::ALIGN] == sled[T::ALIGN..][..T::ALIGN];
    let sled = begins.iter().map(|begin| &begin.sled).find(equal);
    sled.expect("one").repeat(2)
}

/// Wrong bytes, too few words, no site at all: the place that the module would have had is free again, and has no sites.
fn a_module_that_is_refused_takes_no_place<T: Runs>() {
    let (loadable, engine, _) = start::<T>();
    let module = &loadable.modules[0];
    let site = module.traceable().last().expect("a site").site;
    for _ in 0..40 {
        kernel::poke(site, T::NO_SLEDS[0]);
        let wrong = add(engine, module).map(|_| ());
        assert!(
            matches!(wrong, Err(Error::Sites(SiteError::UnexpectedBytes { site: at, .. })) if at == SiteAddr::new(site))
        );
        kernel::poke(module.base, &module.bytes);
        // SAFETY: nothing executes this text.
        let none = unsafe { engine.add_module(module.source(vec![0, usize::MAX], 2)) };
        assert!(matches!(none, Err(Error::Sites(SiteError::NoSites { .. }))));
        // SAFETY: as above.
        let few = unsafe { engine.add_module(module.source(module.entries(), 0)) };
        assert!(matches!(few, Err(Error::Sites(SiteError::NoRoom { .. }))));
        assert_eq!(engine.stats().sites, loadable.kernel.traceable().count());
    }
    assert!(load(engine, module).is_ok());
    assert_eq!(told(), []);
}

for_plain_sites! {
    a_module_that_is_gone_leaves_no_site_and_no_member
    everything_holds_for_modules_that_come_later
    a_module_out_of_reach_is_refused_and_leaves_nothing
    a_site_that_is_there_already_is_refused
    a_site_that_shares_bytes_with_one_of_another_table_is_refused
    a_module_that_is_refused_takes_no_place
}
