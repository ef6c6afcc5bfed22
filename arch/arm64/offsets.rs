//! Every number that the arm64 assembly knows by name, computed from the types; those of the shadow stack are in
//! `arch/offsets.rs`, for both machines.

use memoffset::offset_of;

use crate::arch::arm64::patch::{self, TAG_PAD, TAG_PREFIX};
use crate::arch::arm64::regs::{FtraceRegs, OFFSET_SAVED};
use crate::regs::Saved;
use crate::task::{MAX_NEST, TaskTrace};

pub(crate) const REGS_SIZE: usize = size_of::<FtraceRegs>();
/// Of x0; register n stands n words behind.
pub(crate) const REGS_X: usize = offset_of!(FtraceRegs, x);
/// Of x29 and x30.
pub(crate) const REGS_FP_LR: usize = offset_of!(FtraceRegs, fp);
/// Of sp and pc.
pub(crate) const REGS_SP_PC: usize = offset_of!(FtraceRegs, sp);
/// Of `saved` and `task`.
pub(crate) const REGS_SAVED_TASK: usize = OFFSET_SAVED;
pub(crate) const REGS_TASK: usize = OFFSET_SAVED + 8;
pub(crate) const REGS_PC: usize = offset_of!(FtraceRegs, pc);

pub(crate) const SAVED_ARGS: usize = Saved::Args as usize;
pub(crate) const SAVED_REGS: usize = Saved::Regs as usize;
pub(crate) const SAVED_RETURN: usize = Saved::Return as usize;

pub(crate) const TASK_NEST: usize = offset_of!(TaskTrace, nest);
pub(crate) const TASK_REFUSED: usize = offset_of!(TaskTrace, nest_refused);
pub(crate) const TASK_MAX_NEST: u32 = MAX_NEST;

/// The bits of what balanced sites load that are not the site's address.
pub(crate) const TAGS: usize = (TAG_PAD | TAG_PREFIX) as usize;

/// One of them: a landing pad stands before the site, of four bytes.
pub(crate) const TAG_PAD_BIT: usize = TAG_PAD as usize;
const _: () = assert!(TAG_PAD == 1);
/// The other, by its number: the site has a prefix.
pub(crate) const TAG_PREFIX_BIT: u32 = TAG_PREFIX.trailing_zeros();

/// The sled.
pub(crate) const SLED: usize = patch::SLED;

/// Bytes for q0 to q7.
pub(crate) const VECTORS: usize = 8 * 16;
