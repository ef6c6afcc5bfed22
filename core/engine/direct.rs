//! Users with trampolines of their own: the sled jumps there if nothing else is wanted and it can, and through the tracer's
//! trampoline otherwise.

use std::vec::Vec;

use super::image::{Function, Image, Target, for_both_machines, target};
use super::{Engine, Error, SetChange, WhichSet};
use crate::addr::FuncAddr;
use crate::filter::Filter;
use crate::graph::world::{funcs, user};
use crate::ops::{Ops, OpsFlags};
use crate::site::Flavor;
use crate::testing::kernel::{self, Fake};
use crate::testing::{Random, keep};
use crate::words::List;

struct World<T: Target> {
    image: Image,
    engine: &'static Engine<Fake, T>,
    /// A trampoline of a user's.
    near: usize,
}

fn world<T: Target>() -> World<T> {
    let image = Image::new::<T>(6, &mut Random::new(5));
    let engine = image.start::<T>();
    let near = image.base + 0x20_0000;
    World { image, engine, near }
}

impl<T: Target> World<T> {
    fn func(&self, n: usize) -> FuncAddr {
        FuncAddr::new(self.image.traceable().nth(n).expect("a function").addr)
    }

    fn direct(&self, to: usize, numbers: &[usize]) -> &'static Ops<T::Regs> {
        let only = Filter::only(funcs(numbers.iter().map(|n| self.func(*n).get()).collect::<Vec<_>>()));
        // SAFETY: nothing executes this text.
        keep(unsafe { Ops::direct(to, OpsFlags::empty(), only) })
    }

    fn ops(&self, flags: OpsFlags, numbers: &[usize]) -> &'static Ops<T::Regs> {
        let only = Filter::only(funcs(numbers.iter().map(|n| self.func(*n).get()).collect::<Vec<_>>()));
        keep(Ops::new(|_, _, _, _| {}, flags, only))
    }

    /// The text is as it should be, with functions that jump to `to`, or go through the tracer where they cannot.
    fn check(&self, jumping: &[(usize, usize)], others: &[(usize, Flavor)]) {
        let number = |function: &Function| {
            self.image.traceable().position(|f| f.addr == function.addr).expect("a function")
        };
        let sled = |function: &Function| {
            let n = number(function);
            if let Some((_, to)) = jumping.iter().find(|(number, _)| *number == n) {
                let through = || self.image.sled::<T>(function, Flavor::Args);
                return T::jumping(function, *to).unwrap_or_else(through);
            }
            let flavor = others.iter().find(|(number, _)| *number == n).map_or(Flavor::Off, |(_, f)| *f);
            self.image.sled::<T>(function, flavor)
        };
        assert_eq!(kernel::text(), self.image.text_with_sleds::<T>(sled));
    }
}

fn a_site_with_nothing_else_to_do_jumps_straight<T: Target>() {
    let world = world::<T>();
    let (near, engine) = (world.near, world.engine);
    let direct = world.direct(near, &[0, 2]);
    assert_eq!(engine.register_ops(direct), Ok(()));
    world.check(&[(0, near), (2, near)], &[]);
    // With company it goes through the tracer, which tells the others first.
    let graph = user(0, Filter::only(funcs([world.func(2).get(), world.func(3).get()])));
    assert_eq!(engine.register_graph(graph), Ok(()));
    world.check(&[(0, near)], &[(2, Flavor::Args), (3, Flavor::Args)]);
    let regs = world.ops(OpsFlags::SAVE_REGS, &[0]);
    assert_eq!(engine.register_ops(regs), Ok(()));
    world.check(&[], &[(0, Flavor::Regs), (2, Flavor::Args), (3, Flavor::Args)]);
    assert_eq!((engine.unregister_ops(regs), engine.unregister_graph(graph)), (Ok(()), Ok(())));
    world.check(&[(0, near), (2, near)], &[]);
    // Its functions can change like anybody's.
    assert_eq!(engine.change_ops(direct, WhichSet::Filter, SetChange::Remove(&[world.func(2)])), Ok(()));
    assert_eq!(engine.change_ops(direct, WhichSet::Filter, SetChange::Add(&[world.func(5)])), Ok(()));
    world.check(&[(0, near), (5, near)], &[]);
    assert_eq!(engine.set_enabled(false), Ok(()));
    world.check(&[], &[]);
    assert_eq!(engine.set_enabled(true), Ok(()));
    world.check(&[(0, near), (5, near)], &[]);
    assert_eq!(engine.unregister_ops(direct), Ok(()));
    world.check(&[], &[]);
}

fn a_trampoline_beyond_reach_is_gone_to_by_the_tracer<T: Target>() {
    let world = world::<T>();
    let far = (world.image.text().end + 2 * T::REACH) & !3;
    let direct = world.direct(far, &[1]);
    assert_eq!(world.engine.register_ops(direct), Ok(()));
    world.check(&[], &[(1, Flavor::Args)]);
    assert_eq!(world.engine.unregister_ops(direct), Ok(()));
    world.check(&[], &[]);
}

fn only_one_user_decides_where_a_function_goes_on<T: Target>() {
    let world = world::<T>();
    let (near, engine) = (world.near, world.engine);
    let direct = world.direct(near, &[0, 1]);
    assert_eq!(engine.register_ops(direct), Ok(()));
    let conflict = Err(Error::IpModifyConflict { func: world.func(1) });
    for other in [world.direct(near + 16, &[1, 2]), world.ops(OpsFlags::IPMODIFY, &[1, 3])] {
        assert_eq!(engine.register_ops(other), conflict);
        world.check(&[(0, near), (1, near)], &[]);
    }
    // SAFETY: nothing executes this text.
    let all = keep(unsafe { Ops::direct(near, OpsFlags::empty(), Filter::ALL) });
    assert_eq!(engine.register_ops(all), Err(Error::IpModifyNeedsFilter));
    world.check(&[(0, near), (1, near)], &[]);
}

/// No sled ever jumps to an address that is not the user's at that moment.
fn a_trampoline_is_changed_by_way_of_the_tracer<T: Target>() {
    let world = world::<T>();
    let (near, next, engine) = (world.near, world.near + 0x40, world.engine);
    let direct = world.direct(near, &[0, 4]);
    // Before it is registered it is a number.
    // SAFETY: nothing executes this text.
    assert_eq!(unsafe { engine.modify_direct(direct, next) }, Ok(()));
    assert_eq!(engine.register_ops(direct), Ok(()));
    world.check(&[(0, next), (4, next)], &[]);

    let function = world.image.traceable().next().expect("a function").clone();
    let through = world.image.sled::<T>(&function, Flavor::Args);
    let jumps: Vec<Vec<u8>> = [next, near].iter().filter_map(|to| T::jumping(&function, *to)).collect();
    let (sled, has_jumps) = (function.sled_range(), !jumps.is_empty());
    let seen = std::rc::Rc::new(core::cell::RefCell::new(Vec::new()));
    let log = seen.clone();
    kernel::with(|kernel| {
        kernel.watch = Some(std::rc::Rc::new(move |kernel: &kernel::Kernel| {
            log.borrow_mut().push(kernel.at(sled.start, sled.len()).to_vec());
        }));
    });
    // SAFETY: nothing executes this text.
    assert_eq!(unsafe { engine.modify_direct(direct, near) }, Ok(()));
    kernel::with(|kernel| kernel.watch = None);
    world.check(&[(0, near), (4, near)], &[]);
    let seen = seen.borrow();
    assert_eq!(seen.contains(&through), has_jumps, "{seen:02x?}");
    assert_eq!(target(engine, &function), Some(if has_jumps { Flavor::Direct } else { Flavor::Args }));

    let plain = world.ops(OpsFlags::empty(), &[1]);
    for (ops, to) in [(plain, near), (direct, 0)] {
        // SAFETY: nothing executes this text.
        assert_eq!(unsafe { engine.modify_direct(ops, to) }, Err(Error::NotDirect));
    }
}

/// `enabled_functions` tells who goes on where; a function that only jumps has no trampoline of ours to tell of.
fn a_function_that_goes_on_elsewhere_is_listed_with_where<T: Target>() {
    let world = world::<T>();
    let (near, engine) = (world.near, world.engine);
    let direct = world.direct(near, &[0]);
    assert_eq!(engine.register_ops(direct), Ok(()));
    let listed = || {
        let mut text = std::string::String::new();
        engine.show_list(List::Enabled, &mut text).expect("a string takes text");
        text
    };
    let line = std::format!("{:#x} (1)     D     \tdirect(jmp)-->{near:#x}", world.func(0).get());
    let text = listed();
    assert!(text.starts_with(&line), "{text:?} does not begin with {line:?}");
    let first = world.image.traceable().next().expect("a function");
    assert_eq!(text.contains("tramp:"), T::jumping(first, near).is_none(), "{text:?}");
    assert_eq!(text.lines().count(), 1);
    let mut modified = 0;
    engine.functions(|info| modified += usize::from(info.ip_modify));
    assert_eq!((engine.unregister_ops(direct), listed(), modified), (Ok(()), std::string::String::new(), 1));
}

for_both_machines! {
    a_function_that_goes_on_elsewhere_is_listed_with_where
    a_site_with_nothing_else_to_do_jumps_straight
    a_trampoline_beyond_reach_is_gone_to_by_the_tracer
    only_one_user_decides_where_a_function_goes_on
    a_trampoline_is_changed_by_way_of_the_tracer
}
