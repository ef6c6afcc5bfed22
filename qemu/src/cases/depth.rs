//! The shadow stack at its ends: full, shared by tail calls, jumped over, and entered again by a callback.

use core::hint::black_box;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use fgraph::{EntryCall, FgraphOps, FtraceRegs, OpsFlags, ReturnCall, Want};

use super::probe::{Graph, Op, Probe, addr, only};
use super::{CaseResult, check, check_eq};
use crate::{machine, sched, tracing};

/// Recurses `n` deep and comes back with a value that shows that every level did.
#[inline(never)]
extern "C" fn recurse(n: usize) -> usize {
    if n == 0 { 1 } else { black_box(recurse(black_box(n - 1))) + n }
}

const DEPTH: usize = 200;
const FRAMES: usize = 64;
/// The words of one frame with the probe's two words of data and their header.
const FRAME_WORDS: usize = 4 + 3;

static RECURSED: AtomicUsize = AtomicUsize::new(0);

pub fn recursion_beyond_the_shadow_stack_is_counted() -> CaseResult {
    let probe = Probe::new();
    tracing::set_shadow_words(FRAMES * FRAME_WORDS);
    let task = {
        let _user = Graph::probing(probe, only(&[addr!(recurse)]))?;
        let task = sched::spawn("recurse", || RECURSED.store(recurse(black_box(DEPTH)), Relaxed));
        tracing::set_shadow_words(tracing::SHADOW_WORDS);
        sched::join(task);
        task
    };
    check_eq!(RECURSED.load(Relaxed), DEPTH * (DEPTH + 1) / 2 + 1, "result");
    let stats = task.trace_block().stats();
    check_eq!(probe.counts(), (FRAMES as u64, FRAMES as u64), "entries and returns");
    check_eq!(probe.mismatches.load(Relaxed), 0, "mismatches");
    check_eq!(stats.calls, FRAMES as u64, "hooked calls");
    check_eq!(stats.returns, FRAMES as u64, "returns");
    check_eq!(stats.max_depth, FRAMES as u32, "deepest");
    check_eq!(stats.overrun, (DEPTH + 1 - FRAMES) as u64, "overrun");
    check_eq!(stats.depth, 0, "depth left");
    check_eq!(RECURSED.swap(0, Relaxed), recurse(black_box(DEPTH)), "untraced");
    Ok(())
}

unsafe extern "C" {
    pub(super) fn case_tail_first(n: usize) -> usize;
    pub(super) fn case_tail_second(n: usize) -> usize;
    fn case_jump_save(body: extern "C" fn(usize), n: usize) -> usize;
    fn case_jump_back(value: usize) -> !;
}

// case_tail_first adds 1 and jumps to case_tail_second, which adds 10 and returns.
//
// case_jump_save(body, n) calls body(n) and returns 0, or what case_jump_back was given: that one restores the callee-saved
// registers and the stack as they were in case_jump_save. Not reentrant.
#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(
    ".pushsection .text.case_tail, \"ax\", @progbits",
    ".balign 16",
    // Two NOPs of the sled before the function.
    "2: nop",
    "nop",
    ".globl case_tail_first",
    ".type case_tail_first, %function",
    "case_tail_first:",
    "nop",
    "nop",
    "add x0, x0, #1",
    "b case_tail_second",
    ".size case_tail_first, . - case_tail_first",
    ".balign 16",
    ".globl case_tail_second",
    ".type case_tail_second, %function",
    "case_tail_second:",
    "3: nop",
    "nop",
    "add x0, x0, #10",
    "ret",
    ".size case_tail_second, . - case_tail_second",
    ".popsection",
    ".pushsection __patchable_function_entries, \"awo\", @progbits, .text.case_tail",
    ".balign 8",
    ".quad 2b",
    ".quad 3b",
    ".popsection",
    ".pushsection .text.case_jump, \"ax\", @progbits",
    ".globl case_jump_save",
    "case_jump_save:",
    "stp x29, x30, [sp, #-96]!",
    "mov x29, sp",
    "stp x19, x20, [sp, #16]",
    "stp x21, x22, [sp, #32]",
    "stp x23, x24, [sp, #48]",
    "stp x25, x26, [sp, #64]",
    "stp x27, x28, [sp, #80]",
    "adrp x16, CASE_JUMP_SP",
    "mov x17, sp",
    "str x17, [x16, #:lo12:CASE_JUMP_SP]",
    "mov x16, x0",
    "mov x0, x1",
    "blr x16",
    "mov x0, #0",
    "4: ldp x19, x20, [sp, #16]",
    "ldp x21, x22, [sp, #32]",
    "ldp x23, x24, [sp, #48]",
    "ldp x25, x26, [sp, #64]",
    "ldp x27, x28, [sp, #80]",
    "ldp x29, x30, [sp], #96",
    "ret",
    ".globl case_jump_back",
    "case_jump_back:",
    "adrp x16, CASE_JUMP_SP",
    "ldr x16, [x16, #:lo12:CASE_JUMP_SP]",
    "mov sp, x16",
    "b 4b",
    ".popsection",
);

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".pushsection .text.case_tail, \"ax\", @progbits",
    ".balign 16",
    // 16 bytes of NOPs before the function, and one NOP of two.
    "2: .fill 16, 1, 0x90",
    ".globl case_tail_first",
    ".type case_tail_first, @function",
    "case_tail_first:",
    ".byte 0x66, 0x90",
    "add rdi, 1",
    "jmp case_tail_second",
    ".size case_tail_first, . - case_tail_first",
    ".balign 16",
    ".globl case_tail_second",
    ".type case_tail_second, @function",
    "case_tail_second:",
    // Five NOPs of one byte, as gcc makes them.
    "3: .byte 0x90, 0x90, 0x90, 0x90, 0x90",
    "lea rax, [rdi + 10]",
    "ret",
    ".size case_tail_second, . - case_tail_second",
    ".popsection",
    ".pushsection __patchable_function_entries, \"awo\", @progbits, .text.case_tail",
    ".balign 8",
    ".quad 2b",
    ".quad 3b",
    ".popsection",
    ".pushsection .text.case_jump, \"ax\", @progbits",
    ".globl case_jump_save",
    "case_jump_save:",
    "push rbp",
    "mov rbp, rsp",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "sub rsp, 8",
    "mov [rip + CASE_JUMP_SP], rsp",
    "mov rax, rdi",
    "mov rdi, rsi",
    "call rax",
    "xor eax, eax",
    "4: add rsp, 8",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "pop rbp",
    "ret",
    ".globl case_jump_back",
    "case_jump_back:",
    "mov rax, rdi",
    "mov rsp, [rip + CASE_JUMP_SP]",
    "jmp 4b",
    ".popsection",
);

/// Where [`case_jump_save`] keeps its stack pointer.
#[unsafe(no_mangle)]
static CASE_JUMP_SP: AtomicUsize = AtomicUsize::new(0);

pub fn tail_calls_close_both_frames() -> CaseResult {
    let probe = Probe::new();
    let (first, second) = (addr!(case_tail_first), addr!(case_tail_second));
    {
        let _user = Graph::probing(probe, only(&[first, second]))?;
        // SAFETY: a function of one number.
        check_eq!(unsafe { case_tail_first(black_box(5)) }, 16, "result");
    }
    // SAFETY: as above.
    check_eq!(unsafe { case_tail_first(black_box(5)) }, 16, "result untraced");
    let order: alloc::vec::Vec<_> = probe.log().iter().map(|e| (e.func, e.depth, e.is_return)).collect();
    // Both frames have one place on the stack; the later one returns first.
    check_eq!(order, [(first, 0, false), (second, 1, false), (second, 1, true), (first, 0, true)], "order");
    check_eq!(probe.mismatches.load(Relaxed), 0, "mismatches");
    check_eq!(machine::current().trace_block().stats().depth, 0, "depth");
    Ok(())
}

/// How many frames [`around`] jumps over.
pub(super) const JUMPED: usize = 10;

#[inline(never)]
pub(super) extern "C" fn descend(n: usize) {
    if n == 1 {
        // SAFETY: `case_jump_save` is below on this stack; the functions in between own nothing.
        unsafe { case_jump_back(123) }
    }
    descend(black_box(n - 1));
    black_box(n);
}

/// Calls `descend`, [`JUMPED`] deep, and comes back by a jump, with 123.
#[inline(never)]
pub(super) extern "C" fn around() -> usize {
    // SAFETY: `descend` ends in the jump back.
    black_box(unsafe { case_jump_save(descend, black_box(JUMPED)) })
}

pub fn a_long_jump_leaves_its_frames_behind() -> CaseResult {
    let block = machine::current().trace_block();
    let before = block.stats();
    let probe = Probe::new();
    {
        let _user = Graph::probing(probe, only(&[addr!(descend), addr!(around), addr!(recurse)]))?;
        check_eq!(around(), 123, "jumped");
        check_eq!(recurse(black_box(3)), 7, "a call after it");
    }
    let after = block.stats();
    check_eq!(after.abandoned - before.abandoned, JUMPED as u64, "abandoned");
    check_eq!(after.depth, before.depth, "depth");
    check_eq!(probe.counts(), (1 + JUMPED as u64 + 4, 1 + 4), "entries and returns");
    check_eq!(probe.mismatches.load(Relaxed), 0, "mismatches");
    let last = probe.log().into_iter().rfind(|event| event.func == addr!(around));
    check_eq!(
        last.map(|event| (event.is_return, event.depth, event.values[0])),
        Some((true, 0, 123)),
        "return"
    );
    Ok(())
}

static HITS: AtomicU64 = AtomicU64::new(0);

#[inline(never)]
extern "C" fn helper(n: usize) -> usize {
    black_box(n + 1)
}

/// A callback that is as careless as can be: it calls what is traced.
#[unsafe(link_section = ".text.notrace")]
fn careless(
    _ip: fgraph::FuncAddr,
    _parent: fgraph::RetAddr,
    _ops: &fgraph::FtraceOps,
    _fregs: &mut FtraceRegs,
) {
    HITS.fetch_add(1, Relaxed);
    helper(black_box(1));
}

#[unsafe(link_section = ".text.notrace")]
fn careless_entry(_call: &mut EntryCall<'_, FtraceRegs>, _ops: &FgraphOps) -> Want {
    HITS.fetch_add(1, Relaxed);
    helper(black_box(1));
    Want::Return
}

#[unsafe(link_section = ".text.notrace")]
fn careless_return(_call: &mut ReturnCall<'_, FtraceRegs>, _ops: &FgraphOps) {
    HITS.fetch_add(1, Relaxed);
    helper(black_box(1));
}

pub fn a_callback_that_calls_traced_code_ends() -> CaseResult {
    let block = machine::current().trace_block();
    for flags in [OpsFlags::empty(), OpsFlags::SAVE_REGS] {
        HITS.store(0, Relaxed);
        {
            let _user = Op::register(careless, flags, only(&[addr!(helper)]), 0)?;
            check_eq!(helper(black_box(1)), 2, "result");
        }
        let hits = HITS.load(Relaxed);
        check!((1..=2).contains(&hits), "{hits} entries for one call");
    }
    HITS.store(0, Relaxed);
    let before = block.stats();
    {
        let _user = Graph::register(careless_entry, careless_return, only(&[addr!(helper)]), 0)?;
        check_eq!(helper(black_box(1)), 2, "result");
    }
    let (hits, after) = (HITS.load(Relaxed), block.stats());
    check!((2..=6).contains(&hits), "{hits} callbacks for one call");
    check!(after.recursed > before.recursed, "no recursion was counted");
    check_eq!(after.calls - before.calls, after.returns - before.returns, "calls and returns");
    check_eq!(after.depth, before.depth, "depth");
    Ok(())
}
