//! The graph with an interrupt at every step of entries and returns: one that is traced itself, one that walks the stack, and
//! the control side on another CPU.

use core::cell::{Cell, RefCell};
use std::rc::Rc;
use std::vec::Vec;

use super::Want;
use super::world::{Block, Call, HOOKER, World, on_both_machines, play, user};
use crate::filter::Filter;
use crate::platform::Context;
use crate::sync::Ordering;
use crate::task::TaskStats;
use crate::testing::with_interrupt_at;

const F: usize = 0x1000;
const G: usize = 0x2000;
const H: usize = 0x3000;
const IN_INTERRUPT: usize = 0x8000;
const RET: usize = 0x4_0000;

/// What a callback was told: the user, whether at the entry, the function, its return address, and the data it left at entry.
type Told = Rc<RefCell<Vec<(usize, bool, usize, usize, Vec<usize>)>>>;

/// Users that note everything. User n reserves n words, and wants every return.
fn noting<R: Block>() -> Told {
    let told = Told::default();
    let (at_entry, at_return) = (told.clone(), told.clone());
    play::<R>(
        move |call, ops| {
            let (func, ret) = (call.func().get(), call.ret_addr().get());
            for word in call.reserve(ops.private()).into_iter().flatten() {
                word.store(func ^ ret, Ordering::Relaxed);
            }
            at_entry.borrow_mut().push((ops.private(), true, func, ret, Vec::new()));
            Want::Return
        },
        move |call, ops| {
            let data = call.data().into_iter().flatten().map(|word| word.load(Ordering::Relaxed)).collect();
            let (func, ret) = (call.func().get(), call.ret_addr().get());
            at_return.borrow_mut().push((ops.private(), false, func, ret, data));
        },
    );
    told
}

/// Three calls, the second ending in a tail call.
fn scenario<R: Block>(world: &World<R>) {
    let outer = world.call(F, RET);
    let inner = world.call(G, RET + 0x10);
    let inner = world.tail_call(inner, H);
    assert!(outer.hooked() && inner.hooked());
    assert_eq!(world.ret(inner, 1), (RET + 0x10, 1));
    assert_eq!(world.ret(outer, 2), (RET, 2));
}

fn a_world<R: Block>() -> Rc<World<R>> {
    let world = World::<R>::new(200);
    for number in 1..=2 {
        assert!(world.graph.publish(user(number, Filter::ALL)));
    }
    world
}

/// An interrupt, which calls a traced function. `inner` is an interrupt of it, and the step it comes at.
fn interrupt<R: Block>(world: &World<R>, context: Context, inner: Option<(Context, usize)>) -> bool {
    let outer = world.context.replace(context);
    let body = || {
        let call = world.call(IN_INTERRUPT, context as usize);
        assert_eq!(world.ret(call, 0), (context as usize, 0));
    };
    let came = match inner {
        Some((context, at)) => {
            let inner = || {
                interrupt(world, context, None);
            };
            with_interrupt_at(at, inner, body).1
        }
        None => {
            body();
            false
        }
    };
    world.context.set(outer);
    came
}

fn traced_interrupts_disturb_nothing<R: Block>() {
    let told = noting::<R>();
    let world = a_world::<R>();
    scenario(&world);
    let plain = told.take();
    assert_eq!(plain.len(), 12);

    // The second is an interrupt that has not counted itself as one yet: it may find the guard taken, once its one
    // transition is used up; then it is not traced, and that is counted.
    let mut points = 0;
    for (name, context, inner) in [
        ("irq", Context::Irq, None),
        ("uncounted", Context::Task, None),
        ("nmi in irq", Context::Irq, Some(Context::Nmi)),
        ("uncounted in uncounted", Context::Task, Some(Context::Task)),
    ] {
        let mut at = 0;
        let mut inner_at = 0;
        loop {
            let before = world.task.stats();
            let inner_came = Cell::new(false);
            let handler = || inner_came.set(interrupt(&world, context, inner.map(|inner| (inner, inner_at))));
            let ((), came) = with_interrupt_at(at, handler, || scenario(&world));
            let case = (name, at, inner_at);
            let events = told.take();
            let of_interrupts = events.iter().filter(|event| event.2 == IN_INTERRUPT).count();
            let others: Vec<_> = events.into_iter().filter(|event| event.2 != IN_INTERRUPT).collect();
            assert_eq!(others, plain, "{case:?}");

            let now = world.task.stats();
            let (calls, returns) = (now.calls - before.calls, now.returns - before.returns);
            let interrupts = u64::from(came) + u64::from(inner_came.get());
            assert_eq!((calls, now.depth, now.overrun, now.abandoned), (returns, 0, 0, 0), "{case:?}");
            if context == Context::Irq {
                assert_eq!((calls, now.recursed), (3 + interrupts, 0), "{case:?}");
                assert_eq!(of_interrupts as u64, 4 * interrupts, "{case:?}");
            } else {
                let kept_out = now.recursed - before.recursed;
                assert!(calls + kept_out >= 3 + interrupts, "{case:?}: {calls} calls, {kept_out} kept out");
            }
            assert_eq!(world.task.frames().count(), 0, "{case:?}");
            if !came {
                break;
            }
            points += 1;
            (at, inner_at) = match inner {
                // In Miri not every one.
                Some(_) if inner_came.get() => (at, inner_at + if cfg!(miri) { 61 } else { 1 }),
                _ => (at + if cfg!(miri) { 7 } else { 1 }, 0),
            };
        }
    }
    std::println!("{points} places for an interrupt");
}

/// Whoever walks the stack while the return hooker works must find where each function returns to: in the frame, or where
/// the return hooker will take it from.
fn a_stack_walker_finds_the_address_at_every_step_of_a_return<R: Block>() {
    noting::<R>();
    let world = a_world::<R>();
    let mut unlike = [0; 2];
    for at in 0.. {
        let outer = world.call(F, RET + 4 * at);
        let left = world.call(G, RET + 0x1000);
        let inner = world.call(G, RET + 0x2000);
        let slot = core::ptr::with_exposed_provenance_mut::<usize>(R::resume_slot(outer.sp));
        // SAFETY: a word of the world's stack. On x86_64 it is the one that the entry hooked; on arm64 nothing stood there yet.
        unsafe { slot.write(HOOKER) };
        let walk = || {
            let in_frame = world.task.frames().find(|frame| frame.sealed && frame.key == outer.key());
            match in_frame {
                Some(frame) => {
                    assert_eq!(frame.ret_addr.get(), RET + 4 * at);
                    unlike[0] += 1;
                }
                None => {
                    // SAFETY: as above.
                    assert_eq!(unsafe { slot.read() }, RET + 4 * at, "at step {at}");
                    unlike[1] += 1;
                }
            }
        };
        // A non-local jump over the two inner ones, so that this return settles, too.
        let _: (Call, Call) = (left, inner);
        let (ret, came) = with_interrupt_at(at, walk, || world.ret(outer, 0));
        assert_eq!(ret.0, RET + 4 * at);
        if !came {
            break;
        }
    }
    assert!(unlike[0] > 0 && unlike[1] > 0, "both places were seen: {unlike:?}");
}

/// At an entry the frame must be complete before the address is taken away.
fn a_stack_walker_finds_the_address_at_every_step_of_an_entry<R: Block>() {
    noting::<R>();
    let world = a_world::<R>();
    let probe = world.call(F, RET);
    world.ret(probe, 0);
    // On arm64 the address is in the link register, which only the interrupted code has.
    let slot = core::ptr::with_exposed_provenance_mut::<usize>(R::resume_slot(probe.sp));
    for at in 0.. {
        // SAFETY: a word of the world's stack.
        unsafe { slot.write(0) };
        let walk = || {
            let sealed = world.task.frames().any(|frame| frame.sealed && frame.key == probe.key());
            // SAFETY: as above.
            assert!(sealed || unsafe { slot.read() } != HOOKER, "at step {at}");
        };
        let (call, came) = with_interrupt_at(at, walk, || world.call(F, RET));
        assert_eq!(call.sp, probe.sp);
        assert_eq!(world.ret(call, 0).0, RET);
        if !came {
            break;
        }
    }
}

/// The control side takes a user out and puts another in its slot, at any step. Nobody may be told of a return
/// whose entry it was not told of, and all calls return to where they came from.
fn a_slot_that_changes_hands_at_any_step_mixes_no_users<R: Block>() {
    let told = noting::<R>();
    // In Miri not every one.
    for at in (0..).step_by(if cfg!(miri) { 5 } else { 1 }) {
        let world = World::<R>::new(200);
        let (stays, goes) = (user(1, Filter::ALL), user(2, Filter::ALL));
        let comes = user(3, Filter::ALL);
        assert!(world.graph.publish(stays) && world.graph.publish(goes));
        let change = || {
            let slot = world.graph.disable(goes);
            world.graph.when_quiescent(move |graph| {
                assert_eq!(graph.retract(goes), slot);
                assert!(graph.publish(comes));
                assert_eq!(graph.retract(comes), slot, "the slot is taken again at once");
                assert!(graph.publish(comes));
            });
        };
        let ((), came) = with_interrupt_at(at, change, || scenario(&world));
        let events = told.take();
        for (index, (number, _, func, ret, data)) in events.iter().enumerate().filter(|(_, event)| !event.1) {
            let entry = (*number, true, *func, *ret, Vec::new());
            assert!(events[..index].contains(&entry), "at {at}: user {number} had no entry of {func:#x}");
            assert_eq!(*data, vec![func ^ ret; *number], "at {at}: data of user {number}");
        }
        let of = |number: usize| events.iter().filter(|event| event.0 == number).count();
        assert_eq!(of(1), 6, "at {at}: the user that stays misses nothing");
        let should = TaskStats { calls: 3, returns: 3, max_depth: 3, ..TaskStats::default() };
        assert_eq!(world.task.stats(), should, "at {at}");
        if !came {
            assert_eq!((of(2), of(3)), (6, 0));
            break;
        }
    }
}

on_both_machines! {
    traced_interrupts_disturb_nothing
    a_stack_walker_finds_the_address_at_every_step_of_an_entry
    a_stack_walker_finds_the_address_at_every_step_of_a_return
    a_slot_that_changes_hands_at_any_step_mixes_no_users
}
