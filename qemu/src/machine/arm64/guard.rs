//! Signed return addresses and landing pads: what of it is in the image, what this CPU enforces, and probes that show it.
//!
//! Return addresses are signed with key A of instructions, which the boot code sets and turns on where the CPU has it. Each task has its own
//! key; the switch changes it. The probes are the only code that may run into a fault here, and the fault's handler knows
//! where they go on.

use core::{
    arch::{asm, global_asm},
    hint::black_box,
};

use fgraph::unwind::PtrAuth;

use super::{clock, memory};
use crate::machine::{Guard, Guards, note};

/// Where addresses are signed: `TCR_EL1` gives them 39 bits, and ignores none above.
pub const PTR_AUTH: PtrAuth = PtrAuth::arm64(39, false);

/// The two halves of a key. A demo has nobody to keep it secret from.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Keys([u64; 2]);

impl Keys {
    /// What every CPU boots with, and its idle task keeps.
    pub const BOOT: Self = {
        let low = 0x6b65_7920_6f66_2061;
        Self([low, !low])
    };

    /// The boot key's first half.
    pub(super) const BOOT_LOW: u64 = Self::BOOT.0[0];

    /// A key for task `pid`, other than everybody else's.
    pub fn new(pid: u32) -> Self {
        let mut state = clock::clock_ns() ^ u64::from(pid) << 32;
        Self([(); 2].map(|()| {
            // splitmix64, a public-domain generator.
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ mixed >> 31
        }))
    }
}

const FEATURE_1_AND: u32 = 0xc000_0000;
const FEATURE_1_BTI: u32 = 1 << 0;

/// Whether every function that an indirect branch may reach begins with a landing pad. Text is guarded then.
#[inline(always)]
pub fn has_landing_pads() -> bool {
    note::features(FEATURE_1_AND) & FEATURE_1_BTI != 0
}

/// What is enforced.
pub fn guards() -> Guards {
    Guards { returns: returns(), branches: branches() }
}

/// `SCTLR_EL1`.
fn control() -> u64 {
    let control;
    // SAFETY: reads a register.
    unsafe { asm!("mrs {}, sctlr_el1", out(reg) control, options(nomem, nostack, preserves_flags)) };
    control
}

/// Not inlined: reads its own frame record, in which compiled code has left its return address, signed or not.
#[inline(never)]
fn returns() -> Guard {
    if black_box(control)() & memory::SCTLR_SIGNED_RETURNS == 0 {
        return Guard::Not("this CPU does not sign addresses");
    }
    let link: usize;
    // SAFETY: x29 points to this function's frame record: the kernel is compiled with frame pointers.
    unsafe { asm!("ldr {}, [x29, #8]", out(reg) link, options(readonly, nostack, preserves_flags)) };
    if link & PTR_AUTH.mask == 0 {
        return Guard::Not("the kernel was not compiled to sign them");
    }
    Guard::Enforced("signed and checked, each task with a key of its own")
}

fn branches() -> Guard {
    let features: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mrs {}, id_aa64pfr1_el1", out(reg) features, options(nomem, nostack, preserves_flags)) };
    if features & 0xf == 0 {
        return Guard::Not("this CPU does not look for landing pads");
    }
    if !has_landing_pads() {
        return Guard::Not("not everything was compiled with landing pads");
    }
    Guard::Enforced("to landing pads only, text is guarded")
}

// fgraph_demo_try_branch() -> 1 if a branch to where no pad is faulted, 0 if it landed.
// fgraph_demo_sign(x0: address, x1: modifier) -> the address, signed by the current key.
// fgraph_demo_check(x0: signed address, x1: modifier) -> the address if the signature is its own; another one, or 0 after a
// fault, if not.
global_asm!(
    ".pushsection .text.notrace.guard, \"ax\", %progbits",
    ".balign 16",
    ".type fgraph_demo_try_branch, %function",
    ".global fgraph_demo_try_branch",
    "fgraph_demo_try_branch:",
    "    mov  x0, xzr",
    "    adr  x16, fgraph_demo_no_pad",
    "    br   x16",
    ".global fgraph_demo_no_pad",
    "fgraph_demo_no_pad:",
    "    ret",
    ".global fgraph_demo_refused",
    "fgraph_demo_refused:",
    "    mov  x0, #1",
    "    ret",
    "    .size fgraph_demo_try_branch, . - fgraph_demo_try_branch",
    ".type fgraph_demo_sign, %function",
    ".global fgraph_demo_sign",
    "fgraph_demo_sign:",
    "    mov  x17, x0",
    "    mov  x16, x1",
    "    hint #8", // pacia1716
    "    mov  x0, x17",
    "    ret",
    "    .size fgraph_demo_sign, . - fgraph_demo_sign",
    ".type fgraph_demo_check, %function",
    ".global fgraph_demo_check",
    "fgraph_demo_check:",
    "    mov  x17, x0",
    "    mov  x16, x1",
    "    mov  x0, xzr",
    ".global fgraph_demo_may_be_wrong",
    "fgraph_demo_may_be_wrong:",
    "    hint #12", // autia1716; faults on CPUs that check at once
    "    mov  x0, x17",
    ".global fgraph_demo_is_wrong",
    "fgraph_demo_is_wrong:",
    "    ret",
    "    .size fgraph_demo_check, . - fgraph_demo_check",
    ".popsection",
);

unsafe extern "C" {
    safe fn fgraph_demo_try_branch() -> usize;
    safe fn fgraph_demo_sign(address: usize, modifier: usize) -> usize;
    safe fn fgraph_demo_check(address: usize, modifier: usize) -> usize;
    // Not functions to call.
    fn fgraph_demo_no_pad();
    fn fgraph_demo_refused();
    fn fgraph_demo_may_be_wrong();
    fn fgraph_demo_is_wrong();
}

/// Whether a branch to where no landing pad is faults.
pub fn a_branch_to_no_pad_faults() -> bool {
    fgraph_demo_try_branch() != 0
}

/// `address` signed with the current task's key, and `modifier` beside it.
pub fn sign(address: usize, modifier: usize) -> usize {
    fgraph_demo_sign(address, modifier)
}

/// Whether `signed` is what [`sign`] makes of an address and `modifier`.
pub fn is_signed(signed: usize, modifier: usize) -> bool {
    fgraph_demo_check(signed, modifier) == PTR_AUTH.strip(signed)
}

/// Where a probe goes on after its fault at `pc`; `None` if the fault is nobody's.
#[inline(always)]
pub(super) fn after_fault(pc: usize) -> Option<usize> {
    let address = |label: unsafe extern "C" fn()| label as usize;
    if pc == address(fgraph_demo_no_pad) {
        Some(address(fgraph_demo_refused))
    } else if pc == address(fgraph_demo_may_be_wrong) {
        Some(address(fgraph_demo_is_wrong))
    } else {
        None
    }
}
