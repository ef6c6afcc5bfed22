//! What users keep: data of their own for a call, a word for a task, and what they learn of calls that never return.

use core::cell::{Cell, RefCell};
use std::rc::Rc;
use std::vec::Vec;

use super::world::{Block, World, on_both_machines, play, play_all, user};
use super::{GraphOps, Want};
use crate::filter::Filter;
use crate::sync::{AtomicUsize, Ordering};

const F: usize = 0x1000;
const RET: usize = 0x4_0000;

fn publish<R: Block>(world: &World<R>, count: usize) -> Vec<&'static GraphOps<R>> {
    let users: Vec<_> = (0..count).map(|number| user(number, Filter::ALL)).collect();
    assert!(users.iter().all(|user| world.graph.publish(user)));
    users
}

fn values(data: Option<&[AtomicUsize]>) -> Vec<usize> {
    data.into_iter().flatten().map(|word| word.load(Ordering::Relaxed)).collect()
}

fn fill(data: Option<&[AtomicUsize]>, value: usize) {
    data.into_iter().flatten().for_each(|word| word.store(value, Ordering::Relaxed));
}

/// Five users reserve; each set of them says no. The others find theirs.
fn users_that_say_no_cost_the_others_nothing<R: Block>() {
    const USERS: usize = 5;
    for wanting in 0..1 << USERS {
        // All that want fit, and one that does not; so what is given back is used again.
        let words =
            4 + (0..USERS).filter(|n| wanting >> n & 1 == 1).map(|n| 2 + n).sum::<usize>() + 1 + USERS;
        let world = World::<R>::new(words);
        let returns = Rc::new(RefCell::new(Vec::new()));
        let seen = returns.clone();
        play::<R>(
            move |call, ops| {
                let number = ops.private();
                let data = call.reserve(1 + number);
                assert!(data.is_some(), "user {number} of {wanting:#b}");
                fill(data, F | number);
                if wanting >> number & 1 == 1 { Want::Return } else { Want::Nothing }
            },
            move |call, ops| seen.borrow_mut().push((ops.private(), values(call.data()))),
        );
        publish(&world, USERS);
        let call = world.call(F, RET);
        assert_eq!(call.hooked(), wanting != 0);
        assert_eq!(world.ret(call, 0).0, RET);
        let should: Vec<_> =
            (0..USERS).filter(|n| wanting >> n & 1 == 1).map(|n| (n, vec![F | n; 1 + n])).collect();
        assert_eq!(*returns.borrow(), should, "{wanting:#b}");
    }
}

/// Data of the calls around, past those that the user did not want and those of others.
fn parents_are_the_calls_that_the_user_wanted<R: Block>() {
    let world = World::<R>::new(200);
    let seen = Rc::new(RefCell::new(Vec::new()));
    let (at_entry, at_return) = (seen.clone(), seen.clone());
    // User 0 wants every call, user 1 every second.
    play::<R>(
        move |call, ops| {
            let wants = ops.private() == 0 || call.depth() % 2 == 0;
            fill(call.reserve(1), 100 * ops.private() + call.depth() as usize);
            let above: Vec<_> = (0..5).map(|up| values(call.parent_data(up))).collect();
            at_entry.borrow_mut().push((ops.private(), call.depth(), above.concat()));
            if wants { Want::Return } else { Want::Nothing }
        },
        move |call, ops| {
            let above: Vec<_> = (0..5).map(|up| values(call.parent_data(up))).collect();
            at_return.borrow_mut().push((ops.private(), call.depth(), above.concat()));
        },
    );
    publish(&world, 2);
    let calls: Vec<_> = (0..4).map(|n| world.call(F + 16 * n, RET)).collect();
    calls.into_iter().rev().for_each(|call| assert_eq!(world.ret(call, 0).0, RET));
    let entries = [
        (0, 0, vec![0]),
        (1, 0, vec![100]),
        (0, 1, vec![1, 0]),
        (1, 1, vec![101, 100]),
        (0, 2, vec![2, 1, 0]),
        (1, 2, vec![102, 100]),
        (0, 3, vec![3, 2, 1, 0]),
        (1, 3, vec![103, 102, 100]),
    ];
    let returns = [
        (0, 3, vec![3, 2, 1, 0]),
        (0, 2, vec![2, 1, 0]),
        (1, 2, vec![102, 100]),
        (0, 1, vec![1, 0]),
        (0, 0, vec![0]),
        (1, 0, vec![100]),
    ];
    assert_eq!(*seen.borrow(), [&entries[..], &returns].concat());
}

fn calls_that_a_jump_left_are_told_newest_first<R: Block>() {
    let world = World::<R>::new(200);
    let told = Rc::new(RefCell::new(Vec::new()));
    let (left, returned) = (told.clone(), told.clone());
    play_all::<R>(
        |call, ops| {
            fill(call.reserve(2), call.func().get() + ops.private());
            if ops.private() == 1 && call.depth() == 2 { Want::Nothing } else { Want::Return }
        },
        move |call, ops| returned.borrow_mut().push(('r', ops.private(), call.depth(), values(call.data()))),
        move |call, ops| {
            assert_eq!(call.ret_addr().get(), RET + call.depth() as usize);
            assert_eq!(call.func().get(), F + 16 * call.depth() as usize);
            left.borrow_mut().push(('a', ops.private(), call.depth(), values(call.data())));
        },
    );
    let users = publish(&world, 3);
    let calls: Vec<_> = (0..4).map(|n| world.call(F + 16 * n, RET + n)).collect();
    // One of the users goes before it would be told.
    assert!(world.graph.retract(users[2]).is_some());
    world.unwind_to(calls[1].sp);
    assert!(told.borrow().is_empty(), "nobody has found out yet");
    assert_eq!(world.ret(calls[0], 0).0, RET);
    let data = |depth: usize, user: usize| vec![F + 16 * depth + user; 2];
    let should = [
        ('a', 0, 3, data(3, 0)),
        ('a', 1, 3, data(3, 1)),
        ('a', 0, 2, data(2, 0)),
        ('a', 0, 1, data(1, 0)),
        ('a', 1, 1, data(1, 1)),
        ('r', 0, 0, data(0, 0)),
        ('r', 1, 0, data(0, 1)),
    ];
    assert_eq!(*told.borrow(), should);
    let stats = world.task.stats();
    assert_eq!((stats.abandoned, stats.depth, world.task.frames().count()), (3, 0, 0));
}

fn a_users_word_begins_at_zero<R: Block>() {
    let world = World::<R>::new(200);
    let seen = Rc::new(Cell::new(usize::MAX));
    let see = seen.clone();
    play::<R>(
        move |call, _| {
            see.set(call.task_word().fetch_add(1, Ordering::Relaxed));
            Want::Return
        },
        |call, _| {
            call.task_word().fetch_add(10, Ordering::Relaxed);
        },
    );
    for _ in 0..3 {
        let users = publish(&world, 1);
        for should in [0, 11, 22] {
            let call = world.call(F, RET);
            assert_eq!(seen.get(), should);
            world.ret(call, 0);
        }
        // A call that was under way changes nothing of the next user's word.
        let call = world.call(F, RET);
        world.graph.retract(users[0]);
        let next = publish(&world, 1);
        world.ret(call, 0);
        let call = world.call(F, RET);
        assert_eq!(seen.get(), 0);
        world.ret(call, 0);
        world.graph.retract(next[0]);
    }
}

on_both_machines! {
    users_that_say_no_cost_the_others_nothing
    parents_are_the_calls_that_the_user_wanted
    calls_that_a_jump_left_are_told_newest_first
    a_users_word_begins_at_zero
}
