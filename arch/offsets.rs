//! What the assembly of both machines knows of the shadow stack, computed from the types.

use memoffset::offset_of;

use crate::frame::{CONTROL, FUNC, KEY, RET};
use crate::shadow::Shadow;
use crate::task::TaskTrace;
use crate::{frame, straight};

const WORD: usize = size_of::<usize>();

pub(crate) const TASK_STATE: usize = offset_of!(TaskTrace, shadow) + offset_of!(Shadow, state);
pub(crate) const TASK_WORDS: usize = offset_of!(TaskTrace, shadow) + offset_of!(Shadow, words);
pub(crate) const TASK_LEN: usize = offset_of!(TaskTrace, shadow) + offset_of!(Shadow, len);
pub(crate) const TASK_PAUSE: usize = offset_of!(TaskTrace, pause);
pub(crate) const TASK_DEPTH: usize = offset_of!(TaskTrace, depth);
pub(crate) const TASK_MAX_DEPTH: usize = offset_of!(TaskTrace, max_depth);
pub(crate) const TASK_RETURNS: usize = offset_of!(TaskTrace, straight_returns);
/// Of the half of the state that says where the newest frame is: both machines store the lower half first.
pub(crate) const TASK_NEWEST: usize = TASK_STATE + WORD / 2;

/// The words of a frame of the straight path, in bytes from its start, and how many words there are.
pub(crate) const FRAME_RET: usize = RET * WORD;
pub(crate) const FRAME_FUNC: usize = FUNC * WORD;
pub(crate) const FRAME_KEY: usize = KEY * WORD;
pub(crate) const FRAME_CONTROL: usize = CONTROL * WORD;
pub(crate) const FRAME_DATA: usize = frame::FRAME_WORDS * WORD;
pub(crate) const FRAME_TIME: usize = FRAME_DATA + WORD;
pub(crate) const STRAIGHT_WORDS: usize = straight::FRAME_WORDS;

/// More than any distance: what the control words of two frames differ by that are otherwise the same.
pub(crate) const DISTANCES: usize = 1 << frame::DISTANCE_BITS;
