//! Frames of the straight path among frames of the other, against a plain list; and when there is a straight path.

use std::vec::Vec;

use super::*;
use crate::addr::StackKey;
use crate::engine::Error;
use crate::engine::image::{Image, Target, for_both_machines};
use crate::filter::Filter;
use crate::graph::{GraphOps, Want};
use crate::ops::{Ops, OpsFlags};
use crate::shadow::{FrameView, Shadow};
use crate::sync::{interrupt_point, signal_fence};
use crate::task::{MAX_NEST, TaskTrace};
use crate::testing::{Random, keep, keep_all, storm, with_interrupt_at};

const SLOT: usize = 3;
const STAMP: u64 = 77;

/// What the assembly does at an entry, store by store. `false` where it goes the other way.
fn enter(
    shadow: &Shadow,
    straight: &Straight,
    ret_addr: usize,
    func: usize,
    key: usize,
    time: usize,
) -> bool {
    let (control, header) = straight.words();
    if control == 0 {
        return false;
    }
    interrupt_point();
    let state = shadow.state.load(Ordering::Relaxed);
    let (newest, top) = (state >> 32, state & 0xffff_ffff);
    let end = top + FRAME_WORDS as u64;
    if end > shadow.len.load(Ordering::Relaxed) as u64 {
        return false;
    }
    // SAFETY: the bound was just looked at; the tests give the stack memory that lives for ever.
    let words =
        unsafe { core::slice::from_raw_parts(shadow.words.load(Ordering::Relaxed).add(top as usize), 6) };
    let set = |index: usize, value: usize| {
        interrupt_point();
        words[index].store(value, Ordering::Relaxed);
    };
    let distance = top - newest;
    set(crate::frame::CONTROL, distance as usize);
    signal_fence();
    interrupt_point();
    shadow.state.store(top << 32 | end, Ordering::Relaxed);
    set(crate::frame::CONTROL, distance as usize);
    set(RET, ret_addr);
    set(FUNC, func);
    set(KEY, key);
    set(crate::frame::FRAME_WORDS, header as usize);
    set(crate::frame::CONTROL, (control | distance) as usize);
    set(crate::frame::FRAME_WORDS + 1, time);
    true
}

fn stack(words: usize) -> Shadow {
    let shadow = Shadow::new();
    shadow.give(keep_all(vec![0; words])).expect("it has none");
    shadow
}

fn on() -> Straight {
    let straight = Straight::new();
    straight.on(SLOT, STAMP);
    straight
}

/// A frame of the other path, as the tracer would have it.
fn enter_otherwise(shadow: &Shadow, number: usize) -> bool {
    let Ok(frame) = shadow.push(RetAddr::new(number), FuncAddr::new(number), StackKey::new(number)) else {
        return false;
    };
    let Some(data) = shadow.reserve(frame, SLOT, DATA_WORDS) else {
        shadow.pop(frame);
        return false;
    };
    data[0].store(number, Ordering::Relaxed);
    shadow.seal(frame, 1 << SLOT, STAMP);
    true
}

/// Returns through the newest frame, whose key is `number`, straight if it is of that path and this is `allowed`.
fn leave(shadow: &Shadow, straight: &Straight, number: usize, allowed: bool) -> bool {
    if let Some(call) = shadow.straight(straight.words(), StackKey::new(number)).filter(|_| allowed) {
        assert_eq!((call.ret_addr.get(), call.func.get(), call.start), (number, number, number as u64));
        shadow.pop_straight(call);
        return true;
    }
    let found = shadow.find(StackKey::new(number)).expect("it is there");
    let (ret_addr, func, want, stamp) = shadow.settle(found);
    assert_eq!(
        (found.abandoned, ret_addr.get(), func.get(), want, stamp),
        (0, number, number, 1 << SLOT, STAMP)
    );
    let data = shadow.data(found.frame, SLOT).expect("both paths keep the time");
    assert_eq!(data[0].load(Ordering::Relaxed), number);
    shadow.pop(found.frame);
    false
}

#[test]
fn frames_of_both_paths_lie_on_one_stack() {
    storm(300, 6, |random| {
        let (shadow, straight) = (stack(random.between(6, 60)), on());
        let mut model: Vec<(usize, bool)> = Vec::new();
        for number in 1..200 {
            let room = shadow.len.load(Ordering::Relaxed) - model.len() * FRAME_WORDS;
            if random.one_in(2) {
                let is_straight = random.one_in(2);
                let pushed = match is_straight {
                    true => enter(&shadow, &straight, number, number, number, number),
                    false => enter_otherwise(&shadow, number),
                };
                assert_eq!(pushed, room >= FRAME_WORDS);
                model.extend(pushed.then_some((number, is_straight)));
            } else if let Some((number, is_straight)) = model.pop() {
                let allowed = random.one_in(2);
                assert_eq!(leave(&shadow, &straight, number, allowed), is_straight && allowed);
            }
            let seen: Vec<FrameView> = shadow.walk().collect();
            let keys: Vec<usize> = seen.iter().map(|frame| frame.key.get()).collect();
            let want: Vec<usize> = model.iter().rev().map(|(number, _)| *number).collect();
            assert_eq!(keys, want);
            assert!(seen.iter().all(|frame| frame.sealed && frame.ret_addr.get() == frame.key.get()));
        }
    });
}

#[test]
fn an_interrupt_at_any_step_finds_a_whole_chain_and_leaves_it() {
    // An interrupt that walks, and calls functions on either path.
    let interrupt = |shadow: &Shadow, straight: &Straight, may_be: &[&[usize]]| {
        let keys = || shadow.walk().map(|frame| frame.key.get()).collect::<Vec<_>>();
        let before = keys();
        assert!(may_be.contains(&before.as_slice()), "{before:?} is none of {may_be:?}");
        assert!(enter(shadow, straight, 1000, 1000, 1000, 1000));
        assert!(enter_otherwise(shadow, 1001));
        assert!(enter(shadow, straight, 1002, 1002, 1002, 1002));
        assert_eq!(keys(), [&[1002, 1001, 1000][..], &before].concat());
        for (number, is_straight) in [(1002, true), (1001, false), (1000, true)] {
            assert_eq!(leave(shadow, straight, number, true), is_straight);
        }
        assert_eq!(keys(), before);
    };
    for below in 0..3 {
        let (mut step, mut came) = (0, true);
        while came {
            let (shadow, straight) = (stack(64), on());
            let mut chain: Vec<usize> = (1..=below).rev().collect();
            for number in 1..=below {
                assert!(enter(&shadow, &straight, number, number, number, number));
            }
            let outside = chain.clone();
            chain.insert(0, 9);
            let may_be: [&[usize]; 2] = [&outside, &chain];
            let at = |shadow: &Shadow| interrupt(shadow, &straight, &may_be);
            ((), came) = with_interrupt_at(
                step,
                || at(&shadow),
                || {
                    assert!(enter(&shadow, &straight, 9, 9, 9, 9));
                    assert!(leave(&shadow, &straight, 9, true));
                },
            );
            assert_eq!(shadow.walk().count(), below);
            step += 1;
        }
        assert!(step > 15, "only {step} steps");
    }
}

#[test]
fn other_frames_are_not_taken_for_its_own() {
    let (shadow, straight) = (stack(64), on());
    let key = StackKey::new(5);
    assert_eq!(shadow.straight(straight.words(), key), None, "an empty stack");
    assert!(enter(&shadow, &straight, 5, 5, 5, 5));
    assert!(shadow.straight(straight.words(), key).is_some());
    assert_eq!(shadow.straight(straight.words(), StackKey::new(6)), None, "another key");
    for (slot, stamp) in [(SLOT + 1, STAMP), (SLOT, STAMP + 1)] {
        let other = Straight::new();
        other.on(slot, stamp);
        assert_eq!(shadow.straight(other.words(), key), None, "slot {slot}, stamp {stamp}");
    }
    straight.off();
    assert_eq!(shadow.straight(straight.words(), key), None, "while it is off");
    assert!(!leave(&shadow, &straight, 5, true), "it comes back the other way");
    straight.on(SLOT, STAMP);
    assert!(enter_otherwise(&shadow, 5));
    assert_eq!(shadow.straight(straight.words(), key), None, "a frame of the other path");
}

/// What the embedder's functions do that is traced by mistake ends at the count of nested trampolines; the call comes back all the same.
fn a_return_too_deep_in_the_tracer_is_not_recorded<T: Target>() {
    let image = Image::new::<T>(4, &mut Random::new(1));
    let engine = image.start::<T>();
    let tracer: &'static GraphOps<T::Regs> =
        keep(GraphOps::new(|_, _| Want::Return, |_, _| {}, Filter::ALL).straight(|| true));
    assert_eq!(engine.register_graph(tracer), Ok(()));
    let task: &'static TaskTrace = keep(TaskTrace::new());
    task.give_stack(keep_all(vec![0; 64])).expect("it has none");
    for (nest, recorded) in [(0, 1), (MAX_NEST - 1, 1), (MAX_NEST, 0)] {
        let before = task.stats();
        task.nest.store(nest, Ordering::Relaxed);
        assert!(enter(&task.shadow, engine.straight(), 0x1000, 0x2000, 0x3000, 5));
        task.depth.store(1, Ordering::Relaxed);
        let (mut slot, mut calls) = (0, Vec::new());
        // SAFETY: the test is the trampoline.
        let left = unsafe {
            engine.leave_straight(task, StackKey::new(0x3000), &mut slot, |call, depth, _| {
                assert_eq!(task.nest.load(Ordering::Relaxed), nest + 1);
                calls.push((call.func, call.start, depth));
            })
        };
        assert_eq!((left, slot, calls.len()), (true, 0x1000, recorded), "{nest}");
        assert!(calls.iter().all(|call| *call == (FuncAddr::new(0x2000), 5, 0)), "{calls:?}");
        let after = task.stats();
        assert_eq!((after.depth, task.frames().count(), task.nest.load(Ordering::Relaxed)), (0, 0, nest));
        assert_eq!(after.returns - before.returns, recorded as u64, "{nest}");
        assert_eq!(after.recursed - before.recursed, 1 - recorded as u64, "{nest}");
    }
}

fn there_is_a_straight_path_for_the_tracer_alone<T: Target>() {
    let image = Image::new::<T>(4, &mut Random::new(1));
    let engine = image.start::<T>();
    let is_on = || engine.straight().words().0 != 0;
    let graph = || GraphOps::<T::Regs>::new(|_, _| Want::Nothing, |_, _| {}, Filter::ALL);
    let tracer: &'static GraphOps<T::Regs> = keep(graph().straight(|| true));
    let second: &'static GraphOps<T::Regs> = keep(graph().straight(|| true));
    let other: &'static GraphOps<T::Regs> = keep(graph());
    let ops: &'static Ops<T::Regs> = keep(Ops::new(|_, _, _, _| {}, OpsFlags::empty(), Filter::NONE));
    assert!(!is_on(), "nobody is there");
    assert_eq!(engine.register_graph(other), Ok(()));
    assert!(!is_on(), "a user with callbacks");
    assert_eq!(engine.unregister_graph(other), Ok(()));
    assert_eq!(engine.register_graph(tracer), Ok(()));
    assert!(is_on(), "the tracer alone");
    let changes: [[&dyn Fn() -> Result<(), Error>; 2]; 4] = [
        [&|| engine.register_graph(other), &|| engine.unregister_graph(other)],
        [&|| engine.register_ops(ops), &|| engine.unregister_ops(ops)],
        [&|| engine.register_graph(second), &|| engine.unregister_graph(second)],
        [&|| engine.set_enabled(false), &|| engine.set_enabled(true)],
    ];
    for (n, [come, go]) in changes.into_iter().enumerate() {
        assert_eq!((come(), is_on()), (Ok(()), false), "change {n}");
        assert_eq!((go(), is_on()), (Ok(()), true), "back from change {n}");
    }
    assert_eq!(engine.register_ops(ops), Ok(()));
    assert!(!is_on(), "a second user");
    assert_eq!(engine.unregister_graph(tracer), Ok(()));
    assert!(!is_on(), "only the second user");
    assert_eq!((engine.unregister_ops(ops), engine.register_graph(tracer)), (Ok(()), Ok(())));
    assert!(is_on(), "alone again");
    engine.stop();
    assert!(!is_on(), "stopped for good");
    assert!(engine.unregister_graph(tracer).is_err() && !is_on());
}

for_both_machines! {
    a_return_too_deep_in_the_tracer_is_not_recorded
    there_is_a_straight_path_for_the_tracer_alone
}
