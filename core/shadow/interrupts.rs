//! The shadow stack with an interrupt at every step of every operation.
//!
//! For each operation of a random sequence, and each of its interrupt points, the operation is done once on a copy of the
//! stack with an interrupt there: one that walks, one that calls functions of its own, and one whose calls are themselves interrupted,
//! at each of *their* steps. Whatever an interrupt sees must be a whole chain: the one before the operation, or the one after.

use core::cell::{Cell, RefCell};
use std::vec::Vec;

use super::model::{Chains, Chooser, Model, Op, Outcome, run, stack};
use super::*;
use crate::testing::{Random, storm, with_interrupt_at, with_interrupts_at};

/// Addresses of frames that an interrupt leaves behind.
const STRAY: usize = 0x1000_0000;

/// A copy of a stack.
struct Copy {
    state: u64,
    words: Vec<usize>,
}

impl Copy {
    fn of(shadow: &Shadow) -> Self {
        let len = shadow.len.load(Ordering::Relaxed);
        let words = (0..len).map(|index| shadow.word(index).load(Ordering::Relaxed)).collect();
        Self { state: shadow.state.load(Ordering::Relaxed), words }
    }

    fn put(&self, shadow: &Shadow) {
        shadow.state.store(self.state, Ordering::Relaxed);
        for (index, word) in self.words.iter().enumerate() {
            shadow.word(index).store(*word, Ordering::Relaxed);
        }
    }
}

/// What interrupts may see at this moment: of the operation that is under way in the innermost context.
type Legal = RefCell<Chains>;

/// An interrupt that walks.
fn walker(shadow: &Shadow, legal: &Legal) -> usize {
    let seen: Vec<FrameView> = shadow.walk().collect();
    let legal = legal.borrow();
    let state = legal.iter().position(|chain| *chain == seen);
    state.unwrap_or_else(|| panic!("a walker saw {seen:#x?}, but not one of {legal:#x?}"))
}

/// An interrupt that calls `pushes` functions, and returns from them all. With `inner`, it is interrupted itself at that step; whether
/// that came.
fn caller(shadow: &Shadow, legal: &Legal, random: &mut Random, pushes: usize, inner: Option<usize>) -> bool {
    walker(shadow, legal);
    let found = shadow.position();
    let mut model = Model::on_top_of(shadow);
    // Interrupts run further down the stack than what they interrupt.
    let first_key = 0x1000_0000 * if inner.is_some() { 4 } else { 2 };
    let mut chooser = Chooser::new(first_key, pushes, random);

    let own_legal = Legal::new(vec![model.chain()]);
    let inner_seed = random.word();
    let innermost = || {
        caller(shadow, &own_legal, &mut Random::new(inner_seed), 1 + inner_seed as usize % 3, None);
    };
    let mut body = || {
        let mut steps = 0;
        while chooser.pushes > 0 || !model.frames.is_empty() {
            // A few steps at random, then straight back.
            steps += 1;
            let op = if steps < 12 {
                chooser.choose(&model, random)
            } else {
                chooser.pushes = 0;
                match model.chain().first() {
                    Some(_) if model.frames.is_empty() => break,
                    Some(newest) if newest.sealed => Op::Return { key: newest.key.get() },
                    Some(_) => Op::Cancel,
                    None => break,
                }
            };
            step(&op, shadow, &mut model, &own_legal);
        }
    };
    let came = match inner {
        Some(at) => with_interrupt_at(at, innermost, body).1,
        None => {
            body();
            false
        }
    };
    assert!(shadow.position() == found, "the interrupt itself did not leave the stack as it found it");
    came
}

/// One operation of an interrupt: done, compared with its model, and visible to interrupts of it.
fn step(op: &Op, shadow: &Shadow, model: &mut Model, legal: &Legal) {
    let newest = model.newest();
    let (expected, chains) = model.apply(op);
    legal.replace(chains);
    let outcome = run(op, shadow, newest);
    assert_eq!(outcome, expected, "{op:?} in an interrupt");
    model.check_words(shadow);
}

/// Does `op` on a copy of the stack, with `interrupt` at `at`. Whether it came.
fn attempt(
    op: &Op,
    at: usize,
    (copy, scratch): (&Copy, &Shadow),
    (before, after): (&Model, &Model),
    expected: &Outcome,
    interrupt: impl FnMut(),
) -> bool {
    copy.put(scratch);
    let (outcome, came) = with_interrupt_at(at, interrupt, || run(op, scratch, before.newest()));
    assert_eq!(outcome, *expected, "{op:?} with an interrupt at its step {at}");
    after.check(scratch);
    came
}

#[test]
fn an_interrupt_at_any_step_sees_a_whole_chain_and_leaves_the_stack_right() {
    let (mut walks, mut calls, mut nested) = (0usize, 0usize, 0usize);
    storm(6, 1, |random| {
        let capacity = *random.pick(&[9, 13, 21, 40, 75, 120]);
        let (shadow, scratch) = (stack(capacity), stack(capacity));
        let mut model = Model::empty(capacity);
        let mut chooser = Chooser::new(0x7fff_0000, usize::MAX, random);
        for _ in 0..if cfg!(miri) { 8 } else { 40 } {
            let op = chooser.choose(&model, random);
            let before = model.clone();
            let (expected, chains) = model.apply(&op);
            let legal = Legal::new(chains);
            let copy = Copy::of(&shadow);
            let (stacks, models) = ((&copy, &scratch), (&before, &model));

            // What walkers see goes forward only.
            let latest = Cell::new(0);
            let walk = || {
                let state = walker(&scratch, &legal);
                let same = |state: usize| legal.borrow()[state] == legal.borrow()[latest.get()];
                assert!(state >= latest.get() || same(state), "{op:?}: a walker saw an earlier state again");
                latest.set(state.max(latest.get()));
            };
            walks += (0..).take_while(|at| attempt(&op, *at, stacks, models, &expected, walk)).count();

            for at in 0.. {
                let seed = random.word();
                let pushes = random.between(1, 3);
                let call = || {
                    caller(&scratch, &legal, &mut Random::new(seed), pushes, None);
                };
                if !attempt(&op, at, stacks, models, &expected, call) {
                    break;
                }
                calls += 1;
                // In Miri every step would take too long.
                let stride = if cfg!(miri) { 61 } else { 1 };
                for inner in (random.below(stride)..).step_by(stride) {
                    let inner_came = Cell::new(false);
                    let interrupt = || {
                        let random = &mut Random::new(seed);
                        inner_came.set(caller(&scratch, &legal, random, pushes, Some(inner)));
                    };
                    assert!(attempt(&op, at, stacks, models, &expected, interrupt));
                    if !inner_came.get() {
                        break;
                    }
                    nested += 1;
                }
            }

            assert_eq!(run(&op, &shadow, before.newest()), expected);
            model.check(&shadow);
        }
    });
    std::println!("{walks} walks, {calls} calls in interrupts, {nested} in interrupts of interrupts");
    assert!(walks > 0 && calls > 0 && nested > 0);
}

/// Two interrupts of one operation: the first never gives its frames back, the second walks. It may see the strays, but
/// each frame that it sees must be one that somebody pushed.
#[test]
fn a_walker_sees_no_mixture_of_a_stray_frame_and_a_new_one() {
    let stray = FrameView {
        ret_addr: RetAddr::new(STRAY),
        func: FuncAddr::new(STRAY),
        key: StackKey::new(STRAY),
        sealed: true,
    };
    let mut strays = 0;
    storm(10, 1, |random| {
        let (shadow, scratch) = (stack(75), stack(75));
        let mut model = Model::empty(75);
        let mut chooser = Chooser::new(0x7fff_0000, usize::MAX, random);
        for _ in 0..if cfg!(miri) { 8 } else { 40 } {
            let op = chooser.choose(&model, random);
            let before = model.clone();
            let (expected, chains) = model.apply(&op);
            let copy = Copy::of(&shadow);
            for (at, later) in (0..).flat_map(|at| (0..12).map(move |later| (at, later))) {
                copy.put(&scratch);
                let mut interrupts = 0;
                let interrupt = || {
                    interrupts += 1;
                    if interrupts == 1 {
                        let pushed = scratch.push(stray.ret_addr, stray.func, stray.key);
                        scratch.seal(pushed.ok()?, 1, 1);
                        return Some(later);
                    }
                    let seen: Vec<FrameView> = scratch.walk().collect();
                    strays += seen.iter().filter(|view| **view == stray).count();
                    let others: Vec<FrameView> = seen.into_iter().filter(|view| *view != stray).collect();
                    assert!(chains.contains(&others), "{op:?}: {others:#x?}, {later} after strays at {at}");
                    None
                };
                with_interrupts_at(at, interrupt, || run(&op, &scratch, before.newest()));
                if interrupts == 0 {
                    break;
                }
            }
            assert_eq!(run(&op, &shadow, before.newest()), expected);
        }
    });
    assert!(strays > 0);
}

/// An interrupt handler that leaves its functions by a non-local jump never gives its frames back. That costs its own
/// frames, and at worst data of the call that it interrupted; no frame below.
#[test]
fn frames_that_an_interrupt_left_behind_cost_no_frame_below() {
    storm(30, 2, |random| {
        let capacity = *random.pick(&[16, 21, 40, 75, 120]);
        let (shadow, scratch) = (stack(capacity), stack(capacity));
        let mut model = Model::empty(capacity);
        let mut chooser = Chooser::new(0x7fff_0000, usize::MAX, random);
        for _ in 0..if cfg!(miri) { 10 } else { 60 } {
            let op = chooser.choose(&model, random);
            let before = model.clone();
            let (expected, _) = model.apply(&op);
            let copy = Copy::of(&shadow);
            let frames = random.between(1, 3);
            for at in 0.. {
                copy.put(&scratch);
                let interrupt = || {
                    for n in 0..frames {
                        let (ret, func) = (RetAddr::new(STRAY + n), FuncAddr::new(STRAY));
                        let pushed = scratch.push(ret, func, StackKey::new(STRAY));
                        let Ok(frame) = pushed else { break };
                        let _ = scratch.reserve(frame, 0, n + 1);
                        scratch.seal(frame, 1, 1);
                    }
                };
                let (outcome, came) =
                    with_interrupt_at(at, interrupt, || run(&op, &scratch, before.newest()));
                // Room and data may be lost to the strays; the addresses may not.
                if let (Outcome::Returned(is), Outcome::Returned(should)) = (&outcome, &expected) {
                    let addresses = |returned: &super::model::Returned| returned.addresses();
                    assert_eq!(is.as_ref().map(addresses), should.as_ref().map(addresses), "{op:?} at {at}");
                }
                let refused = (&outcome, &expected) == (&Outcome::Fits(false), &Outcome::Fits(true));
                let chain = if refused { before.chain() } else { model.chain() };
                let seen: Vec<FrameView> = scratch.walk().filter(|view| view.func.get() != STRAY).collect();
                assert_eq!(seen, chain, "{op:?} with strays at its step {at}");
                if !came {
                    break;
                }
            }
            assert_eq!(run(&op, &shadow, before.newest()), expected);
        }
    });
}
