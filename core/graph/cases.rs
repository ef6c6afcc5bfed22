//! What the graph does in particular cases, on the register blocks of both machines.

use core::cell::{Cell, RefCell};
use std::rc::Rc;
use std::vec::Vec;

use super::world::{Block, World, funcs, on_both_machines, play, user};
use super::{Callbacks, GraphOps, Want};
use crate::addr::StackKey;
use crate::filter::Filter;
use crate::frame::MAX_STAMP;
use crate::platform::{Context, Fatal};
use crate::shadow::StackError;
use crate::sync::Ordering;
use crate::task::TaskStats;
use crate::users::MAX_USERS;

const F: usize = 0x1000;
const G: usize = 0x2000;
const RET: usize = 0x4_0000;

/// (user, 'e' or 'r', function, depth), in the order the callbacks were called.
type Told = Rc<RefCell<Vec<(usize, char, usize, u32)>>>;

/// Users that want every return, and note what they are told.
fn noting<R: Block>() -> Told {
    let told = Told::default();
    let (at_entry, at_return) = (told.clone(), told.clone());
    play::<R>(
        move |call, ops| {
            at_entry.borrow_mut().push((ops.private(), 'e', call.func().get(), call.depth()));
            Want::Return
        },
        move |call, ops| {
            at_return.borrow_mut().push((ops.private(), 'r', call.func().get(), call.depth()));
        },
    );
    told
}

fn publish<R: Block>(world: &World<R>, number: usize) -> &'static GraphOps<R> {
    let user = user(number, Filter::ALL);
    assert!(world.graph.publish(user));
    user
}

fn a_task_without_a_shadow_stack_is_left_alone<R: Block>() {
    let told = noting::<R>();
    let world = World::<R>::new(0);
    publish(&world, 0);
    let call = world.call(F, RET);
    assert_eq!((call.addr, world.task.stats()), (RET, TaskStats::default()));
    assert_eq!(world.leave(call.sp, 0), Err(Fatal::NoStack { key: call.key() }));
    // SAFETY: the world's stack.
    let mut fregs = unsafe { R::ret(call.sp, 0, core::ptr::null()) };
    let left = world.graph.leave(None, Context::Task, Callbacks::Call, &mut fregs);
    assert_eq!(left, Err(Fatal::NoStack { key: call.key() }), "a task without a block");
    assert!(told.borrow().is_empty());
}

fn a_return_without_a_frame_tells_what_there_is<R: Block>() {
    noting::<R>();
    let world = World::<R>::new(64);
    publish(&world, 0);
    let key = StackKey::new(0x30);
    assert_eq!(world.leave(0x30, 0), Err(Fatal::NoFrame { key, newest: None, newest_return: None }));
    world.call(F, RET);
    let call = world.call(G, RET + 16);
    let stats = world.task.stats();
    let Err(Fatal::NoFrame { key, newest, newest_return }) = world.leave(0x30, 0) else {
        panic!("a frame was found");
    };
    assert_eq!((key.get(), newest), (0x30, Some(call.key())));
    assert_eq!(newest_return.map(|ret| ret.get()), Some(RET + 16));
    assert_eq!((world.task.stats(), world.task.frames().count()), (stats, 2), "nothing was changed");
    assert_eq!(world.ret(call, 7), (RET + 16, 7));
}

fn the_new_user_of_a_slot_is_not_told_of_an_old_call<R: Block>() {
    let told = noting::<R>();
    let world = World::<R>::new(64);
    let (old, stays) = (publish(&world, 0), publish(&world, 1));
    let call = world.call(F, RET);
    assert_eq!(world.graph.retract(old), Some(0));
    let new = publish(&world, 2);
    let inner = world.call(G, RET + 16);
    assert_eq!(world.ret(inner, 0).0, RET + 16);
    assert_eq!(world.ret(call, 0).0, RET);
    let entries = [(0, 'e', F, 0), (1, 'e', F, 0), (2, 'e', G, 1), (1, 'e', G, 1)];
    assert_eq!(told.borrow()[..4], entries);
    assert_eq!(told.borrow()[4..], [(2, 'r', G, 1), (1, 'r', G, 1), (1, 'r', F, 0)]);

    // The same user in the same slot is a new registration too.
    told.borrow_mut().clear();
    let call = world.call(F, RET);
    assert_eq!(world.graph.retract(new), Some(0));
    assert_eq!(world.graph.retract(stays), Some(1));
    assert!(world.graph.publish(new));
    assert_eq!(world.ret(call, 0).0, RET);
    assert_eq!(*told.borrow(), [(2, 'e', F, 0), (1, 'e', F, 0)]);
    assert_eq!(world.task.frames().count(), 0);
}

fn registrations_end_before_stamps_repeat<R: Block>() {
    let told = noting::<R>();
    let world = World::<R>::new(64);
    world.graph.users.set_clock(MAX_STAMP - 2);
    let old = publish(&world, 0);
    let call = world.call(F, RET);
    assert_eq!(world.graph.retract(old), Some(0));
    publish(&world, 1);
    assert_eq!(world.ret(call, 0).0, RET);
    let call = world.call(G, RET);
    assert_eq!(world.ret(call, 0).0, RET);
    assert_eq!(*told.borrow(), [(0, 'e', F, 0), (1, 'e', G, 0), (1, 'r', G, 0)]);
    assert!(!world.graph.publish(user(2, Filter::ALL)), "the stamp after the last");
}

/// A user whose callbacks call a traced function, up to `levels` deep; `at_return` says in which of them.
fn calling<R: Block>(world: &Rc<World<R>>, told: &Told, levels: usize, at_return: bool) {
    let left = Rc::new(Cell::new(levels));
    let call_again = {
        let world = world.clone();
        move || {
            if left.get() > 0 {
                left.set(left.get() - 1);
                let call = world.call(G, RET + 0x100 * left.get());
                assert_eq!(world.ret(call, 0).0, RET + 0x100 * left.get());
                left.set(left.get() + 1);
            }
        }
    };
    let (again_at_entry, again_at_return) = (call_again.clone(), call_again);
    let (at_entry, told) = (told.clone(), told.clone());
    play::<R>(
        move |call, ops| {
            at_entry.borrow_mut().push((ops.private(), 'e', call.func().get(), call.depth()));
            if !at_return {
                again_at_entry();
            }
            Want::Return
        },
        move |call, ops| {
            told.borrow_mut().push((ops.private(), 'r', call.func().get(), call.depth()));
            if at_return {
                again_at_return();
            }
        },
    );
}

fn a_callback_that_calls_traced_functions_is_told_of_one_of_them<R: Block>() {
    // One level by the transition bit; the second finds both bits taken and runs untraced.
    for (at_return, levels, recursed) in [(false, 1, 0), (true, 1, 0), (false, 2, 1), (true, 2, 1)] {
        let case = (at_return, levels);
        let told = Told::default();
        let world = World::<R>::new(64);
        publish(&world, 0);
        calling(&world, &told, levels, at_return);
        let call = world.call(F, RET);
        assert_eq!(world.ret(call, 0).0, RET);
        let expected = if at_return {
            [(0, 'e', F, 0), (0, 'r', F, 0), (0, 'e', G, 1), (0, 'r', G, 1)]
        } else {
            [(0, 'e', F, 0), (0, 'e', G, 1), (0, 'r', G, 1), (0, 'r', F, 0)]
        };
        assert_eq!(*told.borrow(), expected, "{case:?}");
        let stats = world.task.stats();
        let should = TaskStats { calls: 2, returns: 2, max_depth: 2, recursed, ..TaskStats::default() };
        assert_eq!(stats, should, "{case:?}");
        assert_eq!(world.task.frames().count(), 0, "{case:?}");
    }
}

fn users_change_the_return_value_one_after_another<R: Block>() {
    let world = World::<R>::new(64);
    play::<R>(
        |_, _| Want::Return,
        |call, ops| {
            let value = call.retval() * 10 + ops.private();
            // SAFETY: nothing runs with these registers.
            unsafe { call.fregs_mut().set_return_value(value) };
        },
    );
    for number in 1..=3 {
        publish(&world, number);
    }
    let call = world.call(F, RET);
    assert_eq!(world.ret(call, 9), (RET, 9123));
}

fn a_call_that_returns_early_is_told_like_any_other<R: Block>() {
    for want in [Want::Return, Want::Nothing] {
        let world = World::<R>::new(64);
        let returns = Rc::new(Cell::new(0));
        let seen = returns.clone();
        play::<R>(
            move |call, _| {
                // SAFETY: nothing runs with these registers.
                unsafe {
                    call.fregs_mut().set_return_value(5);
                    call.fregs_mut().return_early();
                }
                want
            },
            move |_, _| seen.set(seen.get() + 1),
        );
        publish(&world, 0);
        let call = world.call(F, RET);
        assert!(call.early);
        assert_eq!(call.hooked(), want == Want::Return);
        assert_eq!(world.ret(call, 5), (RET, 5));
        assert_eq!(returns.get(), usize::from(want == Want::Return));
    }
}

fn a_paused_task_has_no_new_calls_but_old_ones_return<R: Block>() {
    let told = noting::<R>();
    let world = World::<R>::new(64);
    publish(&world, 0);
    world.task.resume();
    let old = world.call(F, RET);
    world.task.pause();
    world.task.pause();
    assert!(!world.call(G, RET).hooked());
    world.task.resume();
    let inner = world.call(G, RET);
    assert!(!inner.hooked(), "paused twice, resumed once");
    assert_eq!(world.ret(old, 0).0, RET);
    world.task.resume();
    assert!(world.call(G, RET).hooked());
    assert_eq!(*told.borrow(), [(0, 'e', F, 0), (0, 'r', F, 0), (0, 'e', G, 0)]);
}

fn a_stopped_tracer_still_returns<R: Block>() {
    let told = noting::<R>();
    let world = World::<R>::new(64);
    publish(&world, 0);
    let outer = world.call(F, RET);
    let inner = world.tail_call(outer, G);
    world.stopped.set(true);
    assert_eq!(world.ret(inner, 3), (RET, 3));
    assert_eq!(*told.borrow(), [(0, 'e', F, 0), (0, 'e', G, 1)]);
    let should = TaskStats { calls: 2, returns: 2, max_depth: 2, ..TaskStats::default() };
    assert_eq!((world.task.stats(), world.task.frames().count()), (should, 0));
}

fn a_call_that_nobody_wants_leaves_no_trace<R: Block>() {
    // One frame and one block of 32 words: whoever says no must give its words back for the next to fit.
    let world = World::<R>::new(4 + 33);
    let wanting = Rc::new(Cell::new(usize::MAX));
    let wanted = wanting.clone();
    play::<R>(
        move |call, ops| {
            assert_eq!(call.reserve(32).map(<[_]>::len), Some(32), "user {}", ops.private());
            if ops.private() == wanted.get() { Want::Return } else { Want::Nothing }
        },
        |call, ops| {
            assert_eq!(ops.private(), 5);
            assert_eq!(call.data().map(<[_]>::len), Some(32));
        },
    );
    for number in 0..6 {
        publish(&world, number);
    }
    let call = world.call(F, RET);
    assert_eq!((call.addr, world.task.stats()), (RET, TaskStats::default()));
    assert_eq!(world.task.frames().count(), 0);
    wanting.set(5);
    let call = world.call(F, RET);
    assert!(call.hooked());
    assert_eq!(world.ret(call, 0).0, RET);
}

fn every_user_finds_its_own_data<R: Block>() {
    let world = World::<R>::new(2048);
    let words = |number: usize, func: usize| (number * 7 + func / F) % 33;
    play::<R>(
        move |call, ops| {
            let number = ops.private();
            let func = call.func().get();
            for (i, word) in call.reserve(words(number, func)).into_iter().flatten().enumerate() {
                assert_eq!(word.load(Ordering::Relaxed), 0);
                word.store(func << 16 | number << 8 | i, Ordering::Relaxed);
            }
            Want::Return
        },
        move |call, ops| {
            let (number, func) = (ops.private(), call.func().get());
            let data = call.data().into_iter().flatten().map(|word| word.load(Ordering::Relaxed));
            let expected = (0..words(number, func)).map(|i| func << 16 | number << 8 | i);
            assert!(data.eq(expected), "user {number} in {func:#x}");
        },
    );
    for number in 0..MAX_USERS {
        publish(&world, number);
    }
    assert!(!world.graph.publish(user(MAX_USERS, Filter::ALL)), "one too many");
    let outer = world.call(F, RET);
    for func in (0..7).map(|n| F * (n + 2)) {
        let inner = world.call(func, RET + func);
        assert!(inner.hooked(), "{func:#x}");
        assert_eq!(world.ret(inner, 0).0, RET + func);
    }
    assert_eq!(world.ret(outer, 0).0, RET);
    assert_eq!(world.task.stats().returns, 8);
}

fn a_full_stack_costs_the_trace_not_the_call<R: Block>() {
    let told = noting::<R>();
    let world = World::<R>::new(2 * 4 + 3);
    publish(&world, 0);
    let calls: Vec<_> = (0..5).map(|n| world.call(F, RET + n)).collect();
    let hooked: Vec<_> = calls.iter().map(|call| call.hooked()).collect();
    assert_eq!(hooked, [true, true, false, false, false]);
    for (n, call) in calls.into_iter().enumerate().rev() {
        assert_eq!(world.ret(call, 0).0, RET + n);
    }
    let should = TaskStats { calls: 2, returns: 2, max_depth: 2, overrun: 3, ..TaskStats::default() };
    assert_eq!((world.task.stats(), told.borrow().len()), (should, 4));
}

fn a_filter_is_asked_for_each_function<R: Block>() {
    let told = noting::<R>();
    let world = World::<R>::new(64);
    let only_g = user(0, Filter::only(funcs([G])));
    assert!(world.graph.publish(only_g));
    assert!(!world.call(F, RET).hooked());
    assert!(world.call(G, RET).hooked());
    assert_eq!(*told.borrow(), [(0, 'e', G, 0)]);
    assert_eq!(
        (world.graph.wants(crate::FuncAddr::new(F)), world.graph.wants(crate::FuncAddr::new(G))),
        (false, true)
    );
}

fn a_dead_task_is_stripped_of_its_frames<R: Block>() {
    noting::<R>();
    let world = World::<R>::new(64);
    publish(&world, 0);
    let outer = world.call(F, RET);
    world.tail_call(outer, G);
    world.call(F, RET);
    // SAFETY: nothing of this task runs.
    unsafe {
        assert_eq!(world.task.take_stack().err(), Some(StackError::InUse { frames: 3 }));
        assert_eq!(world.task.forget_frames(), 3);
        assert_eq!(world.task.take_stack().map(|words| words.len()), Ok(64));
        assert_eq!(world.task.forget_frames(), 0);
    }
    let should = TaskStats { calls: 3, max_depth: 3, abandoned: 3, ..TaskStats::default() };
    assert_eq!((world.task.stats(), world.task.has_stack()), (should, false));
}

on_both_machines! {
    a_task_without_a_shadow_stack_is_left_alone
    a_return_without_a_frame_tells_what_there_is
    the_new_user_of_a_slot_is_not_told_of_an_old_call
    registrations_end_before_stamps_repeat
    a_callback_that_calls_traced_functions_is_told_of_one_of_them
    users_change_the_return_value_one_after_another
    a_call_that_returns_early_is_told_like_any_other
    a_paused_task_has_no_new_calls_but_old_ones_return
    a_stopped_tracer_still_returns
    a_call_that_nobody_wants_leaves_no_trace
    every_user_finds_its_own_data
    a_full_stack_costs_the_trace_not_the_call
    a_filter_is_asked_for_each_function
    a_dead_task_is_stripped_of_its_frames
}
