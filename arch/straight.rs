//! The straight path's record, as the trampolines of both machines call it.

use crate::arch::live::ENGINE;
use crate::arch::tracer;
use crate::straight;
use crate::task::TaskTrace;

/// Called by the balanced hooker when a call of the straight path has returned that may have to be recorded, or is deeper than any before:
/// the task's block, the frame, the time, and what the function returned. The hooker pops the frame afterwards.
pub(crate) extern "C" fn fgraph_straight_record(
    task: &TaskTrace,
    frame: &straight::Frame,
    end: u64,
    retval: u64,
    second: u64,
) {
    let took = end.wrapping_sub(frame.start());
    ENGINE.record_straight(task, took, |depth, context| {
        tracer::straight_call(frame, [retval, second], end, depth, context, task);
    });
}
