//! Frames of the straight path among frames of the other, against a plain list; and when there is a straight path.

use std::vec::Vec;

use super::*;
use crate::addr::{FuncAddr, RetAddr, StackKey};
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
    let Some(control) = straight.is_on() else { return false };
    interrupt_point();
    let state = shadow.state.load(Ordering::Relaxed);
    let (newest, top) = (state >> 32, state & 0xffff_ffff);
    let end = top + FRAME_WORDS as u64;
    if end > shadow.len.load(Ordering::Relaxed) as u64 {
        return false;
    }
    let words = words_at(shadow, top);
    let set = |index: usize, value: usize| {
        interrupt_point();
        words[index].store(value, Ordering::Relaxed);
    };
    let distance = top - newest;
    set(CONTROL, distance as usize);
    signal_fence();
    interrupt_point();
    shadow.state.store(top << 32 | end, Ordering::Relaxed);
    set(CONTROL, distance as usize);
    set(RET, ret_addr);
    set(FUNC, func);
    set(KEY, key);
    set(CONTROL, (control | distance) as usize);
    set(FRAME_WORDS - 1, time);
    true
}

/// What the assembly knows of a frame that it returns through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Call {
    ret_addr: usize,
    func: usize,
    start: usize,
    newest: u64,
    distance: u64,
}

/// What the assembly does at a return, load by load: the newest frame, if it has this key and is of the straight path. `None` where it
/// goes the other way.
fn find(shadow: &Shadow, straight: &Straight, key: usize) -> Option<Call> {
    interrupt_point();
    let newest = shadow.state.load(Ordering::Relaxed) >> 32;
    let words = words_at(shadow, newest);
    let get = |index: usize| {
        interrupt_point();
        words[index].load(Ordering::Relaxed)
    };
    let distance = get(CONTROL) as u64 ^ straight.control.load(Ordering::Relaxed);
    let is_its_own = distance < 1 << crate::frame::DISTANCE_BITS;
    // The rest of the frame is looked at only then: before, it may lie beyond the stack.
    (is_its_own && get(KEY) == key).then(|| Call {
        ret_addr: get(RET),
        func: get(FUNC),
        start: get(FRAME_WORDS - 1),
        newest,
        distance,
    })
}

/// And then, store by store, when the return address is where the trampoline takes it from.
fn pop(shadow: &Shadow, call: Call) {
    interrupt_point();
    words_at(shadow, call.newest)[CONTROL].store(call.distance as usize, Ordering::Relaxed);
    signal_fence();
    interrupt_point();
    shadow.state.store((call.newest - call.distance) << 32 | call.newest, Ordering::Relaxed);
    signal_fence();
    interrupt_point();
}

fn words_at(shadow: &Shadow, start: u64) -> &'static [AtomicUsize] {
    let words = shadow.words.load(Ordering::Relaxed);
    let bound = shadow.len.load(Ordering::Relaxed) - start as usize;
    // SAFETY: within the bound; the tests give the stack memory that lives for ever.
    unsafe { core::slice::from_raw_parts(words.add(start as usize), FRAME_WORDS.min(bound)) }
}

fn stack(words: usize) -> Shadow {
    let shadow = Shadow::new();
    shadow.give(keep_all(vec![0; words])).expect("it has none");
    shadow
}

fn on() -> Straight {
    let straight = Straight::new();
    straight.on(SLOT, STAMP, 0);
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
    if let Some(call) = find(shadow, straight, number).filter(|_| allowed) {
        assert_eq!((call.ret_addr, call.func, call.start), (number, number, number));
        pop(shadow, call);
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
            let words = |is_straight: bool| if is_straight { FRAME_WORDS } else { FRAME_WORDS + 1 };
            let used: usize = model.iter().map(|(_, is_straight)| words(*is_straight)).sum();
            let room = shadow.len.load(Ordering::Relaxed) - used;
            if random.one_in(2) {
                let is_straight = random.one_in(2);
                let pushed = match is_straight {
                    true => enter(&shadow, &straight, number, number, number, number),
                    false => enter_otherwise(&shadow, number),
                };
                assert_eq!(pushed, room >= words(is_straight));
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
    assert_eq!(find(&shadow, &straight, 5), None, "an empty stack");
    assert!(enter(&shadow, &straight, 5, 5, 5, 5));
    assert!(find(&shadow, &straight, 5).is_some());
    assert_eq!(find(&shadow, &straight, 6), None, "another key");
    for (slot, stamp) in [(SLOT + 1, STAMP), (SLOT, STAMP + 1)] {
        let other = Straight::new();
        other.on(slot, stamp, 0);
        assert_eq!(find(&shadow, &other, 5), None, "slot {slot}, stamp {stamp}");
    }
    straight.off();
    assert_eq!(find(&shadow, &straight, 5), None, "while it is off");
    assert!(!leave(&shadow, &straight, 5, true), "it comes back the other way");
    assert!(find(&shadow, &on(), 5).is_none(), "a frame that was popped");
    straight.on(SLOT, STAMP, 0);
    assert!(enter_otherwise(&shadow, 5));
    assert_eq!(find(&shadow, &straight, 5), None, "a frame of the other path");
}

fn tracer<T: Target>(from: fn() -> Option<u64>) -> &'static GraphOps<T::Regs> {
    keep(
        GraphOps::new(|_, _| Want::Return, |_, _| {}, Filter::ALL)
            .straight(Plain { from, kept: |_| Kept::Value }),
    )
}

/// What the embedder's functions do that is traced by mistake ends at the count of nested trampolines.
fn a_return_too_deep_in_the_tracer_is_not_recorded<T: Target>() {
    let image = Image::new::<T>(4, &mut Random::new(1));
    let engine = image.start::<T>();
    assert_eq!(engine.register_graph(tracer::<T>(|| Some(0))), Ok(()));
    let task = TaskTrace::new();
    for (nest, recorded) in [(0, 1), (MAX_NEST - 1, 1), (MAX_NEST, 0)] {
        let before = task.stats();
        task.nest.store(nest, Ordering::Relaxed);
        let mut depths = Vec::new();
        engine.record_straight(&task, 5, |depth, _| {
            assert_eq!(task.nest.load(Ordering::Relaxed), nest + 1);
            depths.push(depth);
        });
        assert_eq!(depths, vec![0; recorded], "{nest}");
        assert_eq!(task.nest.load(Ordering::Relaxed), nest);
        assert_eq!(task.stats().recursed - before.recursed, 1 - recorded as u64, "{nest}");
    }
}

fn a_return_is_recorded_if_it_took_long_enough<T: Target>() {
    let image = Image::new::<T>(4, &mut Random::new(1));
    let engine = image.start::<T>();
    let task = TaskTrace::new();
    let takes = |took: u64| {
        let mut told = false;
        engine.record_straight(&task, took, |_, _| told = true);
        told
    };
    for (from, recorded) in [
        (tracer::<T>(|| Some(0)), [true; 3]),
        (tracer::<T>(|| Some(7)), [false, true, true]),
        (tracer::<T>(|| Some(u64::MAX)), [false, false, true]),
    ] {
        assert_eq!(engine.register_graph(from), Ok(()));
        assert_eq!([6, 7, u64::MAX].map(takes), recorded);
        assert_eq!(engine.unregister_graph(from), Ok(()));
    }
}

fn the_deepest_call_is_known_when_it_returns<T: Target>() {
    let image = Image::new::<T>(4, &mut Random::new(1));
    let engine = image.start::<T>();
    let task = TaskTrace::new();
    for (depth, deepest) in [(0, 1), (4, 5), (2, 5), (5, 6)] {
        task.depth.store(depth, Ordering::Relaxed);
        engine.record_straight(&task, 0, |_, _| {});
        assert_eq!(task.stats().max_depth, deepest, "behind a call of depth {depth}");
    }
}

fn there_is_a_straight_path_for_the_tracer_alone<T: Target>() {
    let image = Image::new::<T>(4, &mut Random::new(1));
    let engine = image.start::<T>();
    let is_on = || engine.straight().is_on().is_some();
    let graph = || GraphOps::<T::Regs>::new(|_, _| Want::Nothing, |_, _| {}, Filter::ALL);
    let first: &'static GraphOps<T::Regs> = tracer::<T>(|| Some(0));
    let second: &'static GraphOps<T::Regs> = tracer::<T>(|| Some(0));
    let other: &'static GraphOps<T::Regs> = keep(graph());
    let ops: &'static Ops<T::Regs> = keep(Ops::new(|_, _, _, _| {}, OpsFlags::empty(), Filter::NONE));
    assert!(!is_on(), "nobody is there");
    assert_eq!(engine.register_graph(other), Ok(()));
    assert!(!is_on(), "a user with callbacks");
    assert_eq!(engine.unregister_graph(other), Ok(()));
    assert_eq!(engine.register_graph(first), Ok(()));
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
    assert_eq!(engine.unregister_graph(first), Ok(()));
    assert!(!is_on(), "only the second user");
    assert_eq!((engine.unregister_ops(ops), engine.register_graph(first)), (Ok(()), Ok(())));
    assert!(is_on(), "alone again");
    engine.stop();
    assert!(!is_on(), "stopped for good");
    assert!(engine.unregister_graph(first).is_err() && !is_on());
}

for_both_machines! {
    a_return_too_deep_in_the_tracer_is_not_recorded
    a_return_is_recorded_if_it_took_long_enough
    the_deepest_call_is_known_when_it_returns
    there_is_a_straight_path_for_the_tracer_alone
}
