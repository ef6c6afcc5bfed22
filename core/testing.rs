//! For unit tests: a driver that runs an interrupt at a chosen step, a fake platform over fake text, and helpers.

use core::cell::{Cell, RefCell};
use std::boxed::Box;
use std::thread_local;
use std::vec::Vec;

use crate::addr::SiteAddr;
use crate::machine::{Code, Plan};

thread_local! {
    /// Interrupt points until the interrupt; `None` when none is to come.
    static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
    static HANDLER: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) };
}

/// A place where an interrupt may come.
pub(crate) fn interrupt_point() {
    match LEFT.get() {
        None => {}
        Some(0) => {
            LEFT.set(None);
            let handler = HANDLER.with_borrow_mut(Option::take);
            if let Some(mut handler) = handler {
                handler();
            }
        }
        Some(n) => LEFT.set(Some(n - 1)),
    }
}

/// Runs `body`, with `interrupt` at its `step`th interrupt point. Whether the interrupt came.
pub(crate) fn with_interrupt_at<R>(
    step: usize,
    interrupt: impl FnMut(),
    body: impl FnOnce() -> R,
) -> (R, bool) {
    let interrupt: Box<dyn FnMut() + '_> = Box::new(interrupt);
    // SAFETY: the handler is taken out again below, before what it borrows ends; a panic in `body` ends the test, and
    // the thread with it, without another interrupt point.
    let interrupt: Box<dyn FnMut()> = unsafe { core::mem::transmute(interrupt) };
    HANDLER.set(Some(interrupt));
    LEFT.set(Some(step));
    let result = body();
    LEFT.set(None);
    let came = HANDLER.with_borrow_mut(Option::take).is_none();
    (result, came)
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
