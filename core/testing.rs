//! For unit tests: a driver that runs an interrupt at a chosen step, seeded random numbers, memory that lives for ever,
//! and, in [`kernel`], a platform over text that is only a few bytes.

use core::cell::{Cell, RefCell};
use std::boxed::Box;
use std::string::String;
use std::sync::{Mutex, PoisonError};
use std::thread_local;
use std::vec::Vec;

use crate::addr::SiteAddr;
use crate::machine::{Code, Plan};

pub(crate) mod kernel;
mod threads;

thread_local! {
    /// Interrupt points until the interrupt; `None` when none is to come.
    static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
    static HANDLER: RefCell<Option<Box<Handler<'static>>>> = const { RefCell::new(None) };
}

/// An interrupt; after how many more points it comes again, if it does.
type Handler<'a> = dyn FnMut() -> Option<usize> + 'a;

/// A place where an interrupt may come.
pub(crate) fn interrupt_point() {
    match LEFT.get() {
        None => {}
        Some(0) => {
            LEFT.set(None);
            let handler = HANDLER.with_borrow_mut(Option::take);
            if let Some(mut handler) = handler
                && let Some(left) = handler()
            {
                HANDLER.set(Some(handler));
                LEFT.set(Some(left));
            }
        }
        Some(n) => LEFT.set(Some(n - 1)),
    }
}

/// Takes the handler out again, also when a test fails: what it borrows is about to end.
struct Disarm;

impl Drop for Disarm {
    fn drop(&mut self) {
        LEFT.set(None);
        HANDLER.with_borrow_mut(Option::take);
    }
}

/// Runs `body`, with `interrupt` at its `step`th interrupt point. Whether the interrupt came. An interrupt may itself call this:
/// that is an interrupt of the interrupt.
pub(crate) fn with_interrupt_at<R>(
    step: usize,
    mut interrupt: impl FnMut(),
    body: impl FnOnce() -> R,
) -> (R, bool) {
    let mut came = false;
    let once = || {
        came = true;
        interrupt();
        None
    };
    (with_interrupts_at(step, once, body), came)
}

/// Runs `body`, with `interrupt` at its `step`th interrupt point, and again as many points later as it says.
pub(crate) fn with_interrupts_at<R>(
    step: usize,
    interrupt: impl FnMut() -> Option<usize>,
    body: impl FnOnce() -> R,
) -> R {
    let interrupt: Box<Handler<'_>> = Box::new(interrupt);
    // SAFETY: `Disarm` takes the handler out again before what it borrows ends, whichever way this function is left.
    let interrupt: Box<Handler<'static>> = unsafe { core::mem::transmute(interrupt) };
    let _disarm = Disarm;
    HANDLER.set(Some(interrupt));
    LEFT.set(Some(step));
    body()
}

/// What stands at `site` after each write of a plan; each write must find what it expects.
pub(crate) fn apply(site: SiteAddr, before: Code, plan: &Plan) -> Vec<Code> {
    let mut bytes = before.as_slice().to_vec();
    let mut seen = Vec::new();
    for write in plan.iter().flatten() {
        let at = write.addr - site.get();
        let there = &mut bytes[at..at + write.new.as_slice().len()];
        assert_eq!(there, write.old.as_slice(), "a write does not find what it expects");
        there.copy_from_slice(write.new.as_slice());
        seen.push(Code::new(&bytes));
    }
    seen
}

/// Random numbers that are the same for the same seed (splitmix64).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A number below `end`, which is not 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.word() % end as u64) as usize
    }

    /// A number from `first` to `last`.
    pub(crate) fn between(&mut self, first: usize, last: usize) -> usize {
        first + self.below(last - first + 1)
    }

    /// True one time in `n`.
    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

fn number_from_env(name: &str) -> Option<u64> {
    let text: String = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not {text:?}")))
}

/// Says which seed failed.
struct Round(u64);

impl Drop for Round {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::eprintln!("failed with seed {0}: FGRAPH_SEED={0} runs it first", self.0);
        }
    }
}

/// Runs `round` with one seed after another: `rounds` of them (`under_miri` in Miri), times `FGRAPH_STORM`, from
/// `FGRAPH_SEED` on.
pub(crate) fn storm(rounds: usize, under_miri: usize, mut round: impl FnMut(&mut Random)) {
    let rounds = if cfg!(miri) { under_miri } else { rounds } as u64;
    let first = number_from_env("FGRAPH_SEED").unwrap_or(1);
    for seed in first..first + rounds * number_from_env("FGRAPH_STORM").unwrap_or(1) {
        let _tell = Round(seed);
        round(&mut Random::new(seed));
    }
}

/// A pointer that only has to be there, so that a leak checker finds what was kept.
struct Kept(#[expect(dead_code, reason = "for the leak checker")] *mut ());

// SAFETY: the pointer is never used.
unsafe impl Send for Kept {}

static KEPT: Mutex<Vec<Kept>> = Mutex::new(Vec::new());

/// Lets a value live for ever.
pub(crate) fn keep<T: Send>(value: T) -> &'static mut T {
    let kept: *mut T = Box::into_raw(Box::new(value));
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).push(Kept(kept.cast()));
    // SAFETY: from a box that is never freed; the list above does not use its pointer.
    unsafe { &mut *kept }
}

/// Lets the elements of a list live for ever.
pub(crate) fn keep_all<T: Send>(values: Vec<T>) -> &'static mut [T] {
    keep(values.into_boxed_slice())
}
