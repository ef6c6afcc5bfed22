//! The context switch.

use core::{
    arch::global_asm,
    mem::{offset_of, size_of},
    ptr,
    sync::atomic::Ordering,
};

use fgraph::unwind::Start;

use super::{cpu::HAS_VECTORS, memory};
use crate::sched::Task;

/// What a task that does not run has on top of its stack; `Task::saved_sp` points here.
#[repr(C)]
struct Switched {
    /// x19 to x28. Of a task that never ran: x19 is the entry.
    x19: [u64; 10],
    /// x29, the frame pointer.
    fp: u64,
    /// x30, where `switch` returns to.
    lr: u64,
    /// d8 to d15, `FPCR` and a word to fill up; nothing where code has no vector registers.
    vectors: [u64; VECTOR_WORDS],
}

const VECTOR_WORDS: usize = if HAS_VECTORS { 10 } else { 0 };

const _: () =
    assert!(size_of::<Switched>() == 96 + 8 * VECTOR_WORDS && size_of::<Switched>().is_multiple_of(16));
const _: () = assert!(offset_of!(Switched, lr) == offset_of!(Switched, fp) + 8);

// fgraph_demo_switch(x0: prev, x1: next). Interrupts are off. By the calling convention the caller has saved
// x0-x17 and expects x19-x29 and sp back, which it gets when somebody switches to prev. x18 is nobody's. With
// vector registers it also expects d8-d15, and how it rounds (FPCR); the rest of them it has saved.
//
//        sp on entry ->  +--------------------+
//                        | FPCR               |  \ only with vector registers
//                        | d8 ... d15         |  /
//                        | x29, x30           |
//                        | x19 ... x28        |
//   Task::saved_sp   ->  +--------------------+
//
// Between the two writes that make next current the stack is still prev's: no trap can look, because
// interrupts are off and nothing here faults.
//
// fgraph_demo_first is where a task that never ran returns to: x19 is its entry, which never returns.
global_asm!(
    ".set SWITCHED_SIZE, {size}",
    ".set SWITCHED_X19, {x19}",
    ".set SWITCHED_FP, {fp}",
    ".set SWITCHED_D8, {vectors}",
    ".set SWITCHED_HAS_VECTORS, {has_vectors}",
    ".set TASK_SAVED_SP, {saved_sp}",
    ".set TASK_KEYS, {keys}",
    ".pushsection .text.notrace.switch, \"ax\", %progbits",
    ".global fgraph_demo_switch",
    ".type fgraph_demo_switch, %function",
    ".balign 16",
    "fgraph_demo_switch:",
    "    sub  sp, sp, #SWITCHED_SIZE",
    "    stp  x19, x20, [sp, #SWITCHED_X19]",
    "    stp  x21, x22, [sp, #SWITCHED_X19 + 16]",
    "    stp  x23, x24, [sp, #SWITCHED_X19 + 32]",
    "    stp  x25, x26, [sp, #SWITCHED_X19 + 48]",
    "    stp  x27, x28, [sp, #SWITCHED_X19 + 64]",
    "    stp  x29, x30, [sp, #SWITCHED_FP]",
    ".if SWITCHED_HAS_VECTORS",
    "    stp  d8, d9, [sp, #SWITCHED_D8]",
    "    stp  d10, d11, [sp, #SWITCHED_D8 + 16]",
    "    stp  d12, d13, [sp, #SWITCHED_D8 + 32]",
    "    stp  d14, d15, [sp, #SWITCHED_D8 + 48]",
    "    mrs  x9, fpcr",
    "    str  x9, [sp, #SWITCHED_D8 + 64]",
    ".endif",
    "    mov  x9, sp",
    "    str  x9, [x0, #TASK_SAVED_SP]",      // prev is as it will be found again
    "    ldr  x9, [x1, #TASK_SAVED_SP]",
    "    msr  sp_el0, x1",                    // next is current
    "    mov  sp, x9",                        // and runs on its own stack
    "    mrs  x9, sctlr_el1",
    "    tbz  x9, #{signed_returns}, 2f",     // this CPU signs nothing
    "    ldp  x9, x10, [x1, #TASK_KEYS]",
    "    msr  S3_0_C2_C1_0, x9",              // APIAKeyLo_EL1
    "    msr  S3_0_C2_C1_1, x10",             // APIAKeyHi_EL1
    "    isb",                                // next's callers check their return addresses with it
    "2:",
    ".if SWITCHED_HAS_VECTORS",
    "    ldr  x9, [sp, #SWITCHED_D8 + 64]",
    "    msr  fpcr, x9",
    "    ldp  d14, d15, [sp, #SWITCHED_D8 + 48]",
    "    ldp  d12, d13, [sp, #SWITCHED_D8 + 32]",
    "    ldp  d10, d11, [sp, #SWITCHED_D8 + 16]",
    "    ldp  d8, d9, [sp, #SWITCHED_D8]",
    ".endif",
    "    ldp  x29, x30, [sp, #SWITCHED_FP]",
    "    ldp  x27, x28, [sp, #SWITCHED_X19 + 64]",
    "    ldp  x25, x26, [sp, #SWITCHED_X19 + 48]",
    "    ldp  x23, x24, [sp, #SWITCHED_X19 + 32]",
    "    ldp  x21, x22, [sp, #SWITCHED_X19 + 16]",
    "    ldp  x19, x20, [sp, #SWITCHED_X19]",
    "    add  sp, sp, #SWITCHED_SIZE",
    "    ret",                                // into next's call of this, or fgraph_demo_first
    "    .size fgraph_demo_switch, . - fgraph_demo_switch",

    ".type fgraph_demo_first, %function",
    ".global fgraph_demo_first",
    "fgraph_demo_first:",
    "    mov  x30, xzr",                      // nobody called the entry
    "    mov  x16, x19",                      // a branch by x16 may land where a call may
    "    br   x16",
    "    .size fgraph_demo_first, . - fgraph_demo_first",
    ".popsection",
    size = const size_of::<Switched>(),
    x19 = const offset_of!(Switched, x19),
    fp = const offset_of!(Switched, fp),
    vectors = const offset_of!(Switched, vectors),
    has_vectors = const HAS_VECTORS as usize,
    saved_sp = const offset_of!(Task, saved_sp),
    keys = const offset_of!(Task, keys),
    signed_returns = const memory::SCTLR_SIGNED_RETURNS.trailing_zeros(),
);

unsafe extern "C" {
    fn fgraph_demo_switch(prev: *const u8, next: *const u8);
    fn fgraph_demo_first();
}

/// Stops running `prev`, runs `next`, and returns when something switches back. The caller holds the
/// scheduler's lock, with interrupts off, and `next` is a task that was switched away from or prepared.
#[inline(always)]
pub fn switch(prev: &'static Task, next: &'static Task) {
    // SAFETY: `next.saved_sp` is what this function or `prepare_stack` left there, and the scheduler's lock
    //         keeps every other CPU from running it.
    unsafe { fgraph_demo_switch(ptr::from_ref(prev).cast(), ptr::from_ref(next).cast()) }
}

/// Where a walk of the stack of `task` starts, which has been switched away from and stays so.
pub fn stopped_at(task: &Task) -> Start {
    let saved = task.saved_sp.load(Ordering::Relaxed);
    // SAFETY: what a task that does not run has on top of its stack.
    let switched = unsafe { &*ptr::with_exposed_provenance::<Switched>(saved) };
    Start::Called { pc: switched.lr as usize, fp: switched.fp as usize }
}

/// Builds what [`switch`] expects at the top of a new task's stack; returns the saved stack pointer. `top` is
/// the 16-aligned end of a stack on which nobody runs.
pub fn prepare_stack(top: usize, entry: extern "C" fn() -> !) -> usize {
    let saved_sp = top - size_of::<Switched>();
    let first: unsafe extern "C" fn() = fgraph_demo_first;
    // FPCR 0 is what compiled code expects: round to nearest, nothing traps.
    let mut frame = Switched { x19: [0; 10], fp: 0, lr: first as usize as u64, vectors: [0; VECTOR_WORDS] };
    frame.x19[0] = entry as usize as u64;
    // SAFETY: the bytes below `top` belong to the new task, which does not run yet; 16-aligned as `top` is.
    unsafe { ptr::with_exposed_provenance_mut::<Switched>(saved_sp).write(frame) };
    saved_sp
}
