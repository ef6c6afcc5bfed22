//! Every number that the x86_64 assembly knows by name, computed from the types; those of the shadow stack are in
//! `arch/offsets.rs`, for both machines.

use memoffset::offset_of;

use crate::arch::x86_64::insn::ENDBR64;
use crate::arch::x86_64::patch::{PREFIX, PREFIX_STATE, SHORT};
use crate::arch::x86_64::regs::{FtraceRegs, OFFSET_SAVED, OFFSET_TASK};
use crate::regs::Saved;
use crate::site::Flavor;
use crate::task::{MAX_NEST, TaskTrace};

pub(crate) const REGS_SIZE: usize = size_of::<FtraceRegs>();
pub(crate) const REGS_RAX: usize = offset_of!(FtraceRegs, rax);
pub(crate) const REGS_RCX: usize = offset_of!(FtraceRegs, rcx);
pub(crate) const REGS_RDX: usize = offset_of!(FtraceRegs, rdx);
pub(crate) const REGS_RSI: usize = offset_of!(FtraceRegs, rsi);
pub(crate) const REGS_RDI: usize = offset_of!(FtraceRegs, rdi);
pub(crate) const REGS_R8: usize = offset_of!(FtraceRegs, r8);
pub(crate) const REGS_R9: usize = offset_of!(FtraceRegs, r9);
pub(crate) const REGS_R10: usize = offset_of!(FtraceRegs, r10);
pub(crate) const REGS_RBP: usize = offset_of!(FtraceRegs, rbp);
pub(crate) const REGS_RSP: usize = offset_of!(FtraceRegs, rsp);
pub(crate) const REGS_RIP: usize = offset_of!(FtraceRegs, rip);
pub(crate) const REGS_SAVED: usize = OFFSET_SAVED;
pub(crate) const REGS_TASK: usize = OFFSET_TASK;
pub(crate) const REGS_RBX: usize = offset_of!(FtraceRegs, rbx);
pub(crate) const REGS_R12: usize = offset_of!(FtraceRegs, r12);
pub(crate) const REGS_R13: usize = offset_of!(FtraceRegs, r13);
pub(crate) const REGS_R14: usize = offset_of!(FtraceRegs, r14);
pub(crate) const REGS_R15: usize = offset_of!(FtraceRegs, r15);
pub(crate) const REGS_RFLAGS: usize = offset_of!(FtraceRegs, rflags);

pub(crate) const SAVED_ARGS: usize = Saved::Args as usize;
pub(crate) const SAVED_REGS: usize = Saved::Regs as usize;
pub(crate) const SAVED_RETURN: usize = Saved::Return as usize;

pub(crate) const TASK_NEST: usize = offset_of!(TaskTrace, nest);
pub(crate) const TASK_REFUSED: usize = offset_of!(TaskTrace, nest_refused);
pub(crate) const TASK_MAX_NEST: u32 = MAX_NEST;

/// Bits of a state word's lowest byte, one of which is set when the site's users need every register. (The other flavors that
/// have it set are not of prefixed sites.)
pub(crate) const STATE_REGS: usize = Flavor::Regs as usize;

/// The first byte of a landing pad, which no sled begins with, and the pad's length.
pub(crate) const PAD_FIRST: usize = ENDBR64[0] as usize;
pub(crate) const PAD_LEN: usize = ENDBR64.len();

/// From where a prefix keeps the distance of the state word to the function.
pub(crate) const STATE_BEFORE: usize = PREFIX - PREFIX_STATE;

/// The sled of a prefixed site.
pub(crate) const SHORT_SLED: usize = SHORT;

/// Bytes for xmm0 to xmm7.
pub(crate) const VECTORS: usize = 8 * 16;
