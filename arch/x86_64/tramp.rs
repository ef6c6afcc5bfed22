//! The x86_64 trampolines: the binding of `asm/x86_64`, and the functions they call.

use core::arch::global_asm;

use memoffset::offset_of;

use crate::addr::{FuncAddr, RetAddr, SiteAddr};
use crate::arch::live::{Bound, ENGINE};
use crate::arch::offsets as shadow;
use crate::arch::straight::{self, fgraph_straight_record};
use crate::arch::tracer;
use crate::arch::x86_64::insn::{CALL_LEN, ENDBR64};
use crate::arch::x86_64::offsets as o;
use crate::arch::x86_64::patch::{SHORT, X86_64};
use crate::arch::x86_64::regs::{FtraceRegs, RETURN_EARLY};
use crate::engine::Engine;
use crate::machine::{Machine, Pair, Trampolines};
use crate::regs::Regs;
use crate::ring::offsets as ring;
use crate::site::{Flavor, KEPT_NOTHING, KEPT_VALUE, StateWord};
use crate::straight::Straight;
use crate::wire;

pub(crate) type Live = X86_64;

/// Vector registers carry arguments and results exactly where the target lets Rust use them.
const VECTORS: usize = if cfg!(target_feature = "sse") { o::VECTORS } else { 0 };

global_asm!(
    ".set FGRAPH_REGS_SIZE, {regs_size}",
    ".set FGRAPH_REGS_RAX, {regs_rax}",
    ".set FGRAPH_REGS_RCX, {regs_rcx}",
    ".set FGRAPH_REGS_RDX, {regs_rdx}",
    ".set FGRAPH_REGS_RSI, {regs_rsi}",
    ".set FGRAPH_REGS_RDI, {regs_rdi}",
    ".set FGRAPH_REGS_R8, {regs_r8}",
    ".set FGRAPH_REGS_R9, {regs_r9}",
    ".set FGRAPH_REGS_R10, {regs_r10}",
    ".set FGRAPH_REGS_RBP, {regs_rbp}",
    ".set FGRAPH_REGS_RSP, {regs_rsp}",
    ".set FGRAPH_REGS_RIP, {regs_rip}",
    ".set FGRAPH_REGS_SAVED, {regs_saved}",
    ".set FGRAPH_REGS_TASK, {regs_task}",
    ".set FGRAPH_REGS_RBX, {regs_rbx}",
    ".set FGRAPH_REGS_R12, {regs_r12}",
    ".set FGRAPH_REGS_R13, {regs_r13}",
    ".set FGRAPH_REGS_R14, {regs_r14}",
    ".set FGRAPH_REGS_R15, {regs_r15}",
    ".set FGRAPH_REGS_RFLAGS, {regs_rflags}",
    ".set FGRAPH_SAVED_ARGS, {saved_args}",
    ".set FGRAPH_SAVED_REGS, {saved_regs}",
    ".set FGRAPH_SAVED_RETURN, {saved_return}",
    ".set FGRAPH_TASK_NEST, {task_nest}",
    ".set FGRAPH_TASK_REFUSED, {task_refused}",
    ".set FGRAPH_MAX_NEST, {max_nest}",
    ".set FGRAPH_VECTORS, {vectors}",
    ".set FGRAPH_STATE_REGS, {state_regs}",
    ".set FGRAPH_PAD_FIRST, {pad_first}",
    ".set FGRAPH_PAD_LEN, {pad_len}",
    ".set FGRAPH_SHORT_SLED, {short_sled}",
    ".set FGRAPH_STATE_BEFORE, {state_before}",
    ".set FGRAPH_TASK_STATE, {task_state}",
    ".set FGRAPH_TASK_WORDS, {task_words}",
    ".set FGRAPH_TASK_ROOM, {task_room}",
    ".set FGRAPH_TASK_DEPTH, {task_depth}",
    ".set FGRAPH_FRAME_RET, {frame_ret}",
    ".set FGRAPH_FRAME_FUNC, {frame_func}",
    ".set FGRAPH_FRAME_KEY, {frame_key}",
    ".set FGRAPH_FRAME_CONTROL, {frame_control}",
    ".set FGRAPH_FRAME_TIME, {frame_time}",
    ".set FGRAPH_STRAIGHT_WORDS, {straight_words}",
    ".set FGRAPH_TASK_NEWEST, {task_newest}",
    ".set FGRAPH_TASK_MAX_DEPTH, {task_max_depth}",
    ".set FGRAPH_TASK_RETURNS, {task_returns}",
    ".set FGRAPH_DISTANCES, {distances}",
    ".set FGRAPH_RING_LOG2, {ring_log2}",
    ".set FGRAPH_RING_BUSY, {ring_busy}",
    ".set FGRAPH_RING_BASE, {ring_base}",
    ".set FGRAPH_RING_WHO, {ring_who}",
    ".set FGRAPH_RING_LIMIT, {ring_limit}",
    ".set FGRAPH_RING_RECORDS, {ring_records}",
    ".set FGRAPH_RING_NESTED, {ring_nested}",
    ".set FGRAPH_RING_FIRST_WORD, {ring_first_word}",
    ".set FGRAPH_RING_MASK, {ring_mask}",
    ".set FGRAPH_RING_SHORT, {ring_short}",
    ".set FGRAPH_TASK_WHO, {task_who}",
    ".set FGRAPH_TASK_USUAL_DEPTH, {task_usual_depth}",
    ".set FGRAPH_INTERRUPTS, {interrupts}",
    ".set FGRAPH_KEPT_VALUE, {kept_value}",
    ".set FGRAPH_KEPT_NOTHING, {kept_nothing}",
    ".set FGRAPH_WRITTEN, {written}",
    ".set FGRAPH_SWITCH_DUE, {switch_due}",
    ".set FGRAPH_FUNC_SHIFT, {func_shift}",
    ".set FGRAPH_DURATION_SHIFT, {duration_shift}",
    ".set FGRAPH_DELTA_SHIFT, {delta_shift}",
    ".set FGRAPH_TIME_BITS, {time_bits}",
    ".set FGRAPH_TAG_VOID, {tag_void}",
    ".set FGRAPH_TAG_VALUE, {tag_value}",
    ".set FGRAPH_TAG_SMALL, {tag_small}",
    ".set FGRAPH_SMALL_VALUES, {small_values}",
    ".set FGRAPH_STATE_LOG2, {state_log2}",
    include_str!("../../asm/x86_64/entry.s"),
    include_str!("../../asm/x86_64/balanced.s"),
    include_str!("../../asm/x86_64/straight.s"),
    include_str!("../../asm/x86_64/exit.s"),
    regs_size = const o::REGS_SIZE,
    regs_rax = const o::REGS_RAX,
    regs_rcx = const o::REGS_RCX,
    regs_rdx = const o::REGS_RDX,
    regs_rsi = const o::REGS_RSI,
    regs_rdi = const o::REGS_RDI,
    regs_r8 = const o::REGS_R8,
    regs_r9 = const o::REGS_R9,
    regs_r10 = const o::REGS_R10,
    regs_rbp = const o::REGS_RBP,
    regs_rsp = const o::REGS_RSP,
    regs_rip = const o::REGS_RIP,
    regs_saved = const o::REGS_SAVED,
    regs_task = const o::REGS_TASK,
    regs_rbx = const o::REGS_RBX,
    regs_r12 = const o::REGS_R12,
    regs_r13 = const o::REGS_R13,
    regs_r14 = const o::REGS_R14,
    regs_r15 = const o::REGS_R15,
    regs_rflags = const o::REGS_RFLAGS,
    saved_args = const o::SAVED_ARGS,
    saved_regs = const o::SAVED_REGS,
    saved_return = const o::SAVED_RETURN,
    task_nest = const o::TASK_NEST,
    task_refused = const o::TASK_REFUSED,
    max_nest = const o::TASK_MAX_NEST,
    vectors = const VECTORS,
    state_regs = const o::STATE_REGS,
    pad_first = const o::PAD_FIRST,
    pad_len = const o::PAD_LEN,
    short_sled = const o::SHORT_SLED,
    state_before = const o::STATE_BEFORE,
    prefixed_handler = sym fgraph_prefixed_handler,
    task_state = const shadow::TASK_STATE,
    task_words = const shadow::TASK_WORDS,
    task_room = const shadow::TASK_ROOM,
    task_depth = const shadow::TASK_DEPTH,
    frame_ret = const shadow::FRAME_RET,
    frame_func = const shadow::FRAME_FUNC,
    frame_key = const shadow::FRAME_KEY,
    frame_control = const shadow::FRAME_CONTROL,
    frame_time = const shadow::FRAME_TIME,
    straight_words = const shadow::STRAIGHT_WORDS,
    task_newest = const shadow::TASK_NEWEST,
    task_max_depth = const shadow::TASK_MAX_DEPTH,
    task_returns = const shadow::TASK_RETURNS,
    distances = const shadow::DISTANCES,
    straight = const Engine::<Bound, Live>::STRAIGHT,
    straight_sealed = const Engine::<Bound, Live>::STRAIGHT + offset_of!(Straight, sealed),
    engine = sym ENGINE,
    straight_least = const Engine::<Bound, Live>::STRAIGHT + offset_of!(Straight, least),
    ring_log2 = const ring::RING_LOG2,
    ring_busy = const ring::BUSY,
    ring_base = const ring::BASE,
    ring_who = const ring::WHO,
    ring_limit = const ring::LIMIT,
    ring_records = const ring::RECORDS,
    ring_nested = const ring::NESTED,
    ring_first_word = const ring::FIRST_WORD,
    ring_mask = const ring::MASK,
    ring_short = const ring::SHORT,
    task_who = const shadow::TASK_WHO,
    task_usual_depth = const shadow::TASK_USUAL_DEPTH,
    interrupts = const shadow::INTERRUPTS,
    kept_value = const KEPT_VALUE,
    kept_nothing = const KEPT_NOTHING,
    written = const straight::WRITTEN,
    switch_due = const straight::SWITCH_DUE,
    func_shift = const wire::FUNC_SHIFT,
    duration_shift = const wire::DURATION_SHIFT,
    delta_shift = const wire::DELTA_SHIFT,
    time_bits = const wire::TIME_BITS,
    tag_void = const wire::TAG_VOID,
    tag_value = const wire::TAG_VALUE,
    tag_small = const wire::TAG_SMALL,
    small_values = const wire::SMALL_VALUES,
    state_log2 = const shadow::STATE_LOG2,
    rings = sym tracer::RINGS,
    straight_states = const Engine::<Bound, Live>::STRAIGHT + offset_of!(Straight, states),
    straight_record = sym fgraph_straight_record,
    entry_handler = sym fgraph_entry_handler,
    return_handler = sym fgraph_return_handler,
);

unsafe extern "C" {
    fn fgraph_args_entry();
    fn fgraph_regs_entry();
    fn fgraph_balanced_entry();
    fn fgraph_guarded_entry();
    fn fgraph_return_early();
    fn fgraph_return_hooker();
    fn fgraph_balanced_hooker();
    fn fgraph_straight_entry();
    fn fgraph_straight_hooker();
    fn fgraph_trap_args_entry();
    fn fgraph_trap_regs_entry();
}

pub(crate) fn trampolines() -> Trampolines {
    // The trampolines of prefixed sites save what the site's state word asks for.
    let either = |entry: *const ()| Pair { args: entry as usize, regs: entry as usize };
    Trampolines {
        classic: Pair {
            args: fgraph_args_entry as *const () as usize,
            regs: fgraph_regs_entry as *const () as usize,
        },
        balanced: Pair {
            args: fgraph_straight_entry as *const () as usize,
            regs: fgraph_balanced_entry as *const () as usize,
        },
        guarded: either(fgraph_guarded_entry as *const ()),
    }
}

/// The address that functions return to which were hooked the classic way.
#[inline]
pub(crate) fn return_hooker() -> RetAddr {
    RetAddr::new(fgraph_return_hooker as *const () as usize)
}

/// All addresses that functions return to which were hooked: on the straight path, the classic way, the balanced way.
pub(crate) fn return_hookers() -> [RetAddr; 3] {
    let straight = RetAddr::new(fgraph_straight_hooker as *const () as usize);
    [straight, return_hooker(), RetAddr::new(fgraph_balanced_hooker as *const () as usize)]
}

/// Called by the entry trampolines of plain sites with their register block.
extern "C" fn fgraph_entry_handler(fregs: &mut FtraceRegs) {
    let site = fregs.ip().wrapping_sub(CALL_LEN);
    let pad = core::ptr::with_exposed_provenance::<[u8; 4]>(site.wrapping_sub(ENDBR64.len()));
    // SAFETY: a site lies in mapped text, with at least this crate's own functions before it, and text can be read.
    let func = if unsafe { pad.read() } == ENDBR64 { site.wrapping_sub(ENDBR64.len()) } else { site };
    ENGINE.entry(SiteAddr::new(site), FuncAddr::new(func), fregs, return_hooker());
    return_early_if_asked(fregs);
}

/// Called by the entry trampolines of prefixed sites with their register block, the site's state word, the function, and where it
/// returns to when it is hooked.
extern "C" fn fgraph_prefixed_handler(
    fregs: &mut FtraceRegs,
    state: &StateWord,
    func: FuncAddr,
    hooker: RetAddr,
) {
    let pad = if X86_64::has_pad(state.load().layout) { ENDBR64.len() } else { 0 };
    // SAFETY: this is where the function goes on by itself.
    unsafe { fregs.set_ip(func.get() + pad + SHORT) };
    ENGINE.entry_of(state, func, fregs, hooker);
    return_early_if_asked(fregs);
}

#[inline]
fn return_early_if_asked(fregs: &mut FtraceRegs) {
    if fregs.ip() == RETURN_EARLY {
        // SAFETY: a `ret` returns to the caller with the registers of the block, which is what was asked for.
        unsafe { fregs.set_ip(fgraph_return_early as *const () as usize) };
    }
}

/// The time-stamp counter.
#[inline(always)]
pub(crate) fn counter() -> u64 {
    // SAFETY: every x86_64 machine has it, and `counts_time` says that the kernel uses it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Called by the return hooker with its register block.
extern "C" fn fgraph_return_handler(fregs: &mut FtraceRegs) {
    // SAFETY: the return hooker filled the block in its own frame.
    unsafe { ENGINE.leave(fregs) };
}

/// How to go on from a breakpoint trap (#BP) that hit a site which is being patched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrapResume {
    /// The new `rip`.
    pub rip: usize,
    /// The new `r11`.
    pub r11: usize,
}

/// For the kernel's #BP handler: `rip` as the trap pushed it, one behind the INT3. `None` if the breakpoint is not one of ours:
/// then it is the kernel's own business. Otherwise put both registers into the trap frame and return from the trap.
///
/// Any context, any stack; takes no lock. The handler itself, and all it runs before, must not be traced.
///
/// The site goes on as its new instruction would. A call needs the return address pushed, which a trap handler on the
/// interrupted stack cannot do: the words below are its own frame. So the handler only loads r11, which nobody needs at a function's
/// entry, and a stub pushes it.
pub fn breakpoint(rip: usize) -> Option<TrapResume> {
    let site = SiteAddr::new(rip.wrapping_sub(1));
    let (flavor, layout) = ENGINE.target_of(site)?;
    let behind = X86_64::resume(site, layout);
    let rip = match (flavor, X86_64::prefix(site, layout)) {
        (Flavor::Off, _) => behind,
        // The prefix loads r11 itself.
        (_, Some(prefix)) => prefix,
        (Flavor::Regs, None) => fgraph_trap_regs_entry as *const () as usize,
        // The engine knows where the user's own trampoline is.
        (Flavor::Args | Flavor::Direct, None) => fgraph_trap_args_entry as *const () as usize,
    };
    Some(TrapResume { rip, r11: behind })
}

/// Makes new text visible to instruction fetch: on x86_64 the core synchronisation does it.
#[inline]
pub(crate) fn flush(_addr: usize, _len: usize) {}
