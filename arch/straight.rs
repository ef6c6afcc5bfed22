//! The straight path's return, as the trampolines of both machines call it.

use crate::addr::StackKey;
use crate::arch::live::ENGINE;
use crate::arch::{tracer, tramp};
use crate::task::TaskTrace;

/// Called by the balanced hooker while there is a straight path: the task's block, where the return address stands until it is loaded,
/// the time, and what the function returned. Whether it was a call of that path; its return address stands at `slot` then.
pub(crate) extern "C" fn fgraph_straight_leave(
    task: Option<&TaskTrace>,
    slot: *mut usize,
    end: u64,
    retval: u64,
    second: u64,
) -> bool {
    let Some(task) = task else { return false };
    let key = StackKey::new(slot.addr() + tramp::KEY_ABOVE_SLOT);
    // SAFETY: the hooker returns through `slot`.
    unsafe {
        ENGINE.leave_straight(task, key, slot, |call, depth, context| {
            let state = tramp::state_of_prefixed(call.func);
            tracer::straight_call(call, state, [retval, second], end, depth, context, task);
        })
    }
}
