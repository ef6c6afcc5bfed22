//! What limits do in particular cases.

use core::cell::{Cell, RefCell};
use std::rc::Rc;
use std::vec::Vec;

use super::{LIMIT_WORDS, LimitOptions, Limits};
use crate::filter::{Filter, FuncSet};
use crate::graph::Want;
use crate::graph::world::{Block, World, funcs, on_both_machines, play_all, user};
use crate::shadow::MAX_DATA_WORDS;
use crate::testing::keep;

const F: usize = 0x1000;
const G: usize = 0x2000;
const H: usize = 0x3000;
const RET: usize = 0x4_0000;

/// Functions: with the duration at a return, without at an entry that counts.
type Told = Vec<(usize, Option<u64>)>;

/// A world with one limited user that reserves so many words, and what it is told.
struct Limited<R: Block> {
    world: Rc<World<R>>,
    limits: &'static Limits,
    clock: Rc<Cell<u64>>,
    told: Rc<RefCell<Told>>,
}

impl<R: Block> Limited<R> {
    fn new(shadow_words: usize, words: usize) -> Self {
        let world = World::<R>::new(shadow_words);
        let limits: &'static Limits = keep(Limits::new());
        let (clock, told) = (Rc::new(Cell::new(0)), Rc::new(RefCell::new(Vec::new())));
        let (at_entry, at_return) = ((clock.clone(), told.clone()), (clock.clone(), told.clone()));
        play_all::<R>(
            move |call, _| {
                let begun = limits
                    .admit(call, 1)
                    .and_then(|admitted| limits.begin(call, admitted, at_entry.0.get(), words));
                match begun {
                    Ok(_) => {
                        at_entry.1.borrow_mut().push((call.func().get(), None));
                        Want::Return
                    }
                    Err(want) => want,
                }
            },
            move |call, _| {
                if let Some(done) = limits.finish(call, at_return.0.get()) {
                    at_return.1.borrow_mut().push((call.func().get(), Some(done.duration_ns)));
                }
            },
            move |call, _| limits.forget(call),
        );
        assert!(world.graph.publish(user(0, Filter::ALL)));
        Self { world, limits, clock, told }
    }

    /// A call of `func` that takes so long, with `inside` in the middle of it.
    fn call(&self, func: usize, ns: u64, inside: impl FnOnce()) {
        let call = self.world.call(func, RET);
        self.clock.set(self.clock.get() + ns);
        inside();
        assert_eq!(self.world.ret(call, 0).0, RET);
    }

    fn sleep(&self, ns: u64) {
        self.world.task.switched_out(self.clock.get());
        self.clock.set(self.clock.get() + ns);
        self.world.task.switched_in(self.clock.get());
    }

    fn told(&self) -> Told {
        self.told.take()
    }

    fn never(&self, func: usize) {
        self.limits.set_graph_notrace(keep(FuncSet::Some(funcs([func]))));
    }

    fn only(&self, func: usize) {
        self.limits.set_graph_function(keep(FuncSet::Some(funcs([func]))));
    }
}

/// Linux once left a task in the notrace state for ever when a threshold was set.
fn a_threshold_does_not_keep_a_task_in_notrace<R: Block>() {
    let limited = Limited::<R>::new(200, 0);
    limited.limits.set_thresh_ns(100);
    limited.never(F);
    for _ in 0..3 {
        limited.call(F, 500, || limited.call(G, 500, || ()));
        assert_eq!(limited.told(), []);
        limited.call(G, 500, || limited.call(H, 99, || ()));
        assert_eq!(limited.told(), [(G, None), (H, None), (G, Some(599))]);
    }
}

/// Linux once subtracted it in the threshold's handler and then in the normal one.
fn sleep_is_subtracted_once_with_a_threshold_too<R: Block>() {
    for thresh in [0, 1, 70] {
        let limited = Limited::<R>::new(200, 0);
        limited.limits.set_thresh_ns(thresh);
        limited.call(F, 70, || limited.sleep(30));
        limited.limits.set_options(LimitOptions::all() - LimitOptions::SLEEP_TIME);
        limited.call(F, 70, || limited.sleep(30));
        let told = [(F, None), (F, Some(100)), (F, None), (F, Some(70))];
        assert_eq!(limited.told(), told, "threshold {thresh}");
    }
}

fn the_threshold_is_what_is_just_long_enough<R: Block>() {
    let limited = Limited::<R>::new(200, 0);
    limited.limits.set_thresh_ns(100);
    for ns in [99, 100, 101] {
        limited.call(F, ns, || ());
    }
    assert_eq!(limited.told(), [(F, None), (F, None), (F, Some(100)), (F, None), (F, Some(101))]);
}

fn own_time_leaves_out_the_calls_inside<R: Block>() {
    let limited = Limited::<R>::new(400, 0);
    limited.limits.set_options(LimitOptions::all() - LimitOptions::GRAPH_TIME);
    limited.call(F, 10, || {
        limited.call(G, 20, || limited.call(H, 40, || ()));
        limited.call(H, 80, || ());
    });
    let returns: Vec<_> = limited.told().into_iter().filter(|(_, ns)| ns.is_some()).collect();
    assert_eq!(returns, [(H, Some(40)), (G, Some(20)), (H, Some(80)), (F, Some(10))]);

    // What was begun before a change is ended as it was begun.
    limited.call(F, 10, || {
        limited.limits.set_options(LimitOptions::all());
        limited.call(G, 20, || limited.call(H, 40, || ()));
    });
    let returns: Vec<_> = limited.told().into_iter().filter(|(_, ns)| ns.is_some()).collect();
    assert_eq!(returns, [(H, Some(40)), (G, Some(60)), (F, Some(10))]);
}

fn a_jump_out_of_a_listed_function_ends_its_state<R: Block>() {
    let limited = Limited::<R>::new(400, 0);
    limited.never(G);
    let outer = limited.world.call(F, RET);
    let jumped = limited.world.call(G, RET);
    limited.world.unwind_to(jumped.sp);
    // Nobody knows yet that the call of G is over.
    limited.call(H, 1, || ());
    assert_eq!(limited.world.ret(outer, 0).0, RET);
    limited.call(H, 1, || ());
    assert_eq!(limited.told(), [(F, None), (F, Some(1)), (H, None), (H, Some(1))]);
}

/// A return that nobody is told of, because the tracer stopped or was busy, leaves a mark behind; the next entry that is not
/// deeper finds it out.
fn a_mark_whose_call_ended_untold_goes_with_the_next_entry<R: Block>() {
    for (set_never, then) in [(true, vec![(H, None), (H, Some(1))]), (false, Vec::new())] {
        let limited = Limited::<R>::new(400, 0);
        if set_never {
            limited.never(G);
        } else {
            limited.only(G);
        }
        let call = limited.world.call(G, RET);
        limited.world.stopped.set(true);
        assert_eq!(limited.world.ret(call, 0).0, RET);
        limited.world.stopped.set(false);
        limited.told();
        limited.call(H, 1, || ());
        assert_eq!(limited.told(), then);
    }
}

fn a_call_without_room_leaves_no_mark<R: Block>() {
    // One call fits, and of another the frame alone.
    let limited = Limited::<R>::new(4 + 1 + LIMIT_WORDS + 4, 0);
    let outer = limited.world.call(F, RET);
    limited.only(G);
    limited.call(G, 1, || ());
    assert_eq!(limited.world.ret(outer, 0).0, RET);
    limited.told();
    limited.call(H, 1, || ());
    assert_eq!(limited.told(), [], "H is not inside G");
    limited.call(G, 1, || ());
    assert_eq!(limited.told(), [(G, None), (G, Some(1))]);
}

fn the_most_words_are_what_one_call_may_reserve<R: Block>() {
    for (words, fit) in [(MAX_DATA_WORDS - LIMIT_WORDS, true), (MAX_DATA_WORDS - LIMIT_WORDS + 1, false)] {
        let limited = Limited::<R>::new(400, words);
        limited.call(F, 1, || ());
        assert_eq!(!limited.told().is_empty(), fit, "{words} words");
    }
    let limited = Limited::<R>::new(400, usize::MAX);
    limited.call(F, 1, || ());
    assert_eq!(limited.told(), []);
}

on_both_machines! {
    a_threshold_does_not_keep_a_task_in_notrace
    sleep_is_subtracted_once_with_a_threshold_too
    the_threshold_is_what_is_just_long_enough
    own_time_leaves_out_the_calls_inside
    a_jump_out_of_a_listed_function_ends_its_state
    a_mark_whose_call_ended_untold_goes_with_the_next_entry
    a_call_without_room_leaves_no_mark
    the_most_words_are_what_one_call_may_reserve
}
