//! What is left of the straight path's records, as the trampolines of both machines call it.

use crate::addr::RetAddr;
use crate::arch::live::ENGINE;
use crate::arch::tracer::{self, StraightCall};
use crate::ring::Buffer;
use crate::site::StateWord;
use crate::task::TaskTrace;
use crate::wire::{FUNC_SHIFT, SHORT_FUNCS, TAG_MASK};

/// What the trampoline says that it has done, if it is not the address of a buffer: nothing; or all, but a switch of tasks is due.
pub(crate) const NOTHING: usize = 0;
pub(crate) const SWITCH_DUE: usize = 1;

/// What it adds to the address of a buffer that it has written the record to: nested writers may have left theirs behind it.
pub(crate) const WRITTEN: usize = 1;

/// What a function returned, as the trampolines of both machines keep it.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Results {
    second: u64,
    first: u64,
    ret_addr: usize,
}

/// Called by the straight hooker when a call of the straight path has returned and it cannot do all by itself: the task's block, the
/// function, when it returned, when it was entered, what it returned, and `done`. The frame is popped.
///
/// `done` may be the address of the buffer that the call is to be recorded in: then that was made busy, and preemption is held. With
/// [`WRITTEN`], the record is there, and preemption is held.
///
/// The function is the address of its state word; or the record that was begun, whose tag the address does not have; or nothing, if the
/// record is there.
pub(crate) extern "C" fn fgraph_straight_record(
    task: &TaskTrace,
    function: usize,
    end: u64,
    start: u64,
    results: &Results,
    done: usize,
) {
    let call = || StraightCall {
        number: number(function),
        start,
        end,
        retvals: [results.first, results.second],
        ret_addr: RetAddr::new(results.ret_addr),
    };
    match done {
        NOTHING => ENGINE.record_straight(task, end.wrapping_sub(start), |depth, context| {
            tracer::straight_call(call(), depth, context, task);
        }),
        SWITCH_DUE => ENGINE.switch_straight(task),
        _ => {
            let buffer = core::ptr::with_exposed_provenance::<Buffer>(done & !WRITTEN);
            // SAFETY: the trampoline found the address in one of the rings, where only buffers' are that live for ever.
            let buffer = unsafe { &*buffer };
            ENGINE.finish_straight(task, |depth| match depth {
                _ if done & WRITTEN != 0 => buffer.take_in_behind(),
                Some(depth) => tracer::claimed_call(buffer, call(), depth, task),
                None => buffer.give_up(),
            });
        }
    }
}

/// The number of a function, as the assembly names it.
#[inline(always)]
fn number(function: usize) -> u32 {
    if function & TAG_MASK != 0 {
        return (function >> FUNC_SHIFT) as u32 & (SHORT_FUNCS - 1);
    }
    ENGINE.number_of_state(core::ptr::with_exposed_provenance::<StateWord>(function))
}
