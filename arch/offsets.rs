//! What the assembly of both machines knows of the shadow stack, computed from the types.

use memoffset::offset_of;

use crate::frame::{CONTROL, FUNC, KEY, RET};
#[cfg(target_arch = "aarch64")]
use crate::frame::{Control, State};
use crate::shadow::Shadow;
use crate::site::StateWord;
use crate::task::TaskTrace;
use crate::{frame, straight};

const WORD: usize = size_of::<usize>();

pub(crate) const TASK_STATE: usize = offset_of!(TaskTrace, shadow) + offset_of!(Shadow, state);
pub(crate) const TASK_WORDS: usize = offset_of!(TaskTrace, shadow) + offset_of!(Shadow, words);
pub(crate) const TASK_ROOM: usize = offset_of!(TaskTrace, room);
pub(crate) const TASK_DEPTH: usize = offset_of!(TaskTrace, depth);
pub(crate) const TASK_MAX_DEPTH: usize = offset_of!(TaskTrace, max_depth);
pub(crate) const TASK_USUAL_DEPTH: usize = offset_of!(TaskTrace, usual_depth);
pub(crate) const TASK_WHO: usize = offset_of!(TaskTrace, who);
pub(crate) const TASK_RETURNS: usize = offset_of!(TaskTrace, straight_returns);
#[cfg(target_arch = "aarch64")]
pub(crate) const TASK_RETURNS_APART: usize = offset_of!(TaskTrace, straight_returns_apart);
/// A bit that the control words of the straight path have, by its number.
#[cfg(target_arch = "aarch64")]
pub(crate) const STRAIGHT_BIT: u32 = control(State::Straight).trailing_zeros();
// It is not a bit of what the word is while there is no straight path.
#[cfg(target_arch = "aarch64")]
const _: () = assert!(straight::OFF & 1 << STRAIGHT_BIT == 0);

#[cfg(target_arch = "aarch64")]
const fn control(state: State) -> u64 {
    Control { distance: 0, state, want: 0, stamp: 0 }.encode()
}
/// What interrupts on top of a task count in its `preempt_count`: see [`CpuWords`](crate::CpuWords).
pub(crate) const INTERRUPTS: u32 = 0x00ff_ff00;
pub(crate) const STATE_LOG2: u32 = size_of::<StateWord>().trailing_zeros();
/// Of the half of the state that says where the newest frame is: both machines store the lower half first.
pub(crate) const TASK_NEWEST: usize = TASK_STATE + WORD / 2;

/// The words of a frame of the straight path, in bytes from its start, and how many words there are.
pub(crate) const FRAME_RET: usize = RET * WORD;
pub(crate) const FRAME_FUNC: usize = FUNC * WORD;
pub(crate) const FRAME_KEY: usize = KEY * WORD;
pub(crate) const FRAME_CONTROL: usize = CONTROL * WORD;
pub(crate) const FRAME_TIME: usize = frame::FRAME_WORDS * WORD;
pub(crate) const STRAIGHT_WORDS: usize = straight::FRAME_WORDS;

/// More than any distance: what the control words of two frames differ by that are otherwise the same.
pub(crate) const DISTANCES: usize = 1 << frame::DISTANCE_BITS;
