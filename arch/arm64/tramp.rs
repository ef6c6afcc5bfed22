//! The arm64 trampolines: the binding of `asm/arm64`, and the functions they call.

use core::arch::{asm, global_asm};

use memoffset::offset_of;

use crate::addr::{FuncAddr, RetAddr, SiteAddr};
use crate::arch::arm64::insn::is_landing_pad;
use crate::arch::arm64::offsets as o;
use crate::arch::arm64::patch::{Arm64, PREFIX, SLED, TAG_PAD, TAG_PREFIX};
use crate::arch::arm64::regs::{FtraceRegs, RETURN_EARLY};
use crate::arch::live::{Bound, ENGINE};
use crate::arch::offsets as shadow;
use crate::arch::straight::{self, fgraph_straight_record};
use crate::arch::tracer;
use crate::engine::Engine;
use crate::machine::{Pair, Trampolines};
use crate::regs::Regs;
use crate::ring::offsets as ring;
use crate::site::{KEPT_NOTHING, KEPT_VALUE, StateWord};
use crate::straight::Straight;
use crate::wire;

pub(crate) type Live = Arm64;

/// Vector registers carry arguments and results exactly where the target lets Rust use them.
const VECTORS: usize = if cfg!(target_feature = "neon") { o::VECTORS } else { 0 };

global_asm!(
    ".set FGRAPH_REGS_SIZE, {regs_size}",
    ".set FGRAPH_REGS_X, {regs_x}",
    ".set FGRAPH_REGS_FP_LR, {regs_fp_lr}",
    ".set FGRAPH_REGS_SP_PC, {regs_sp_pc}",
    ".set FGRAPH_REGS_PC, {regs_pc}",
    ".set FGRAPH_REGS_SAVED_TASK, {regs_saved_task}",
    ".set FGRAPH_REGS_TASK, {regs_task}",
    ".set FGRAPH_SAVED_ARGS, {saved_args}",
    ".set FGRAPH_SAVED_REGS, {saved_regs}",
    ".set FGRAPH_SAVED_RETURN, {saved_return}",
    ".set FGRAPH_TASK_NEST, {task_nest}",
    ".set FGRAPH_TASK_REFUSED, {task_refused}",
    ".set FGRAPH_MAX_NEST, {max_nest}",
    ".set FGRAPH_VECTORS, {vectors}",
    ".set FGRAPH_TAGS, {tags}",
    ".set FGRAPH_SLED, {sled}",
    ".set FGRAPH_TAG_PAD, {tag_pad}",
    ".set FGRAPH_TAG_PREFIX_BIT, {tag_prefix}",
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
    ".set FGRAPH_TASK_RETURNS_APART, {task_returns_apart}",
    ".set FGRAPH_STRAIGHT_BIT, {straight_bit}",
    ".set FGRAPH_PREFIX, {prefix}",
    ".set FGRAPH_DEPTH_SHIFT, {depth_shift}",
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
    ".set FGRAPH_KEPT_VALUE_BIT, {kept_value}",
    ".set FGRAPH_KEPT_NOTHING_BIT, {kept_nothing}",
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
    include_str!("../../asm/arm64/entry.s"),
    include_str!("../../asm/arm64/balanced.s"),
    include_str!("../../asm/arm64/straight.s"),
    include_str!("../../asm/arm64/exit.s"),
    regs_size = const o::REGS_SIZE,
    regs_x = const o::REGS_X,
    regs_fp_lr = const o::REGS_FP_LR,
    regs_sp_pc = const o::REGS_SP_PC,
    regs_pc = const o::REGS_PC,
    regs_saved_task = const o::REGS_SAVED_TASK,
    regs_task = const o::REGS_TASK,
    saved_args = const o::SAVED_ARGS,
    saved_regs = const o::SAVED_REGS,
    saved_return = const o::SAVED_RETURN,
    task_nest = const o::TASK_NEST,
    task_refused = const o::TASK_REFUSED,
    max_nest = const o::TASK_MAX_NEST,
    vectors = const VECTORS,
    tags = const o::TAGS,
    sled = const o::SLED,
    tag_pad = const o::TAG_PAD_BIT,
    tag_prefix = const o::TAG_PREFIX_BIT,
    balanced_handler = sym fgraph_balanced_handler,
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
    task_returns_apart = const shadow::TASK_RETURNS_APART,
    straight_bit = const shadow::STRAIGHT_BIT,
    prefix = const PREFIX,
    depth_shift = const wire::DEPTH_SHIFT,
    distances = const shadow::DISTANCES,
    straight_least = const Engine::<Bound, Live>::STRAIGHT + offset_of!(Straight, least),
    straight_states = const Engine::<Bound, Live>::STRAIGHT + offset_of!(Straight, states),
    straight = const Engine::<Bound, Live>::STRAIGHT,
    engine = sym ENGINE,
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
    kept_value = const KEPT_VALUE.trailing_zeros(),
    kept_nothing = const KEPT_NOTHING.trailing_zeros(),
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
    straight_record = sym fgraph_straight_record,
    entry_handler = sym fgraph_entry_handler,
    return_handler = sym fgraph_return_handler,
);

unsafe extern "C" {
    fn fgraph_args_entry();
    fn fgraph_regs_entry();
    fn fgraph_balanced_regs_entry();
    fn fgraph_return_early();
    fn fgraph_return_hooker();
    fn fgraph_balanced_hooker();
    fn fgraph_straight_entry();
    fn fgraph_straight_hooker();
}

pub(crate) fn trampolines() -> Trampolines {
    let classic =
        Pair { args: fgraph_args_entry as *const () as usize, regs: fgraph_regs_entry as *const () as usize };
    let balanced = Pair {
        args: fgraph_straight_entry as *const () as usize,
        regs: fgraph_balanced_regs_entry as *const () as usize,
    };
    Trampolines { classic, balanced, guarded: classic }
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

/// Called by the classic entry trampolines with their register block.
extern "C" fn fgraph_entry_handler(fregs: &mut FtraceRegs) {
    let site = fregs.ip().wrapping_sub(SLED);
    let pad = core::ptr::with_exposed_provenance::<u32>(site.wrapping_sub(4));
    // SAFETY: a site lies in mapped text, with at least this crate's own functions before it, and text can be read.
    let func = if is_landing_pad(unsafe { pad.read() }) { site.wrapping_sub(4) } else { site };
    ENGINE.entry(SiteAddr::new(site), FuncAddr::new(func), fregs, return_hooker());
    return_early_if_asked(fregs);
}

/// Called by the balanced entry trampolines with their register block and what the site loaded.
extern "C" fn fgraph_balanced_handler(fregs: &mut FtraceRegs, tagged: usize) {
    let tags = (tagged & o::TAGS) as u8;
    let site = tagged - usize::from(tags);
    let func = site - if tags & TAG_PAD != 0 { 4 } else { 0 };
    let [.., hooker] = return_hookers();
    if tags & TAG_PREFIX != 0 {
        // Functions are aligned to instructions, which is not enough for an address.
        let prefix = core::ptr::with_exposed_provenance::<[u32; 2]>(func - PREFIX);
        // SAFETY: the tag says that `prepare` wrote the address of the site's state word there, before the function could run.
        let [low, high] = unsafe { prefix.read() };
        let state = core::ptr::with_exposed_provenance::<StateWord>(low as usize | (high as usize) << 32);
        // SAFETY: the state word lives as long as the function's code, which is being executed.
        let state = unsafe { &*state };
        ENGINE.entry_of(state, FuncAddr::new(func), fregs, hooker);
    } else {
        ENGINE.entry(SiteAddr::new(site), FuncAddr::new(func), fregs, hooker);
    }
    return_early_if_asked(fregs);
}

#[inline]
fn return_early_if_asked(fregs: &mut FtraceRegs) {
    if fregs.ip() == RETURN_EARLY {
        // SAFETY: a `ret` returns to the caller with the registers of the block, which is what was asked for.
        unsafe { fregs.set_ip(fgraph_return_early as *const () as usize) };
    }
}

/// The virtual counter. No barrier: an early read by a few instructions is as true a time as any.
#[inline(always)]
pub(crate) fn counter() -> u64 {
    let count;
    // SAFETY: reads CNTVCT_EL0, which `counts_time` says that the kernel uses.
    unsafe { asm!("mrs {}, cntvct_el0", out(reg) count, options(nomem, nostack, preserves_flags)) };
    count
}

/// Called by the return hooker with its register block.
extern "C" fn fgraph_return_handler(fregs: &mut FtraceRegs) {
    // SAFETY: the return hooker filled the block in its own frame.
    unsafe { ENGINE.leave(fregs) };
}

/// Makes new text visible to instruction fetch of all cores: clean to the point of unification, then invalidate (Arm ARM
/// B2.7.4.2). The addresses are of the executable mapping; data caches behave as physically tagged, so the lines that were
/// written through the alias are the ones that get cleaned.
pub(crate) fn flush(addr: usize, len: usize) {
    // The smallest line there is; a larger one is only cleaned more than once.
    const LINE: usize = 16;
    let start = addr & !(LINE - 1);
    for line in (start..addr + len).step_by(LINE) {
        // SAFETY: cleaning a line by address changes no data; the address is mapped text.
        unsafe { asm!("dc cvau, {}", in(reg) line, options(nostack, preserves_flags)) };
    }
    // SAFETY: a barrier.
    unsafe { asm!("dsb ish", options(nostack, preserves_flags)) };
    for line in (start..addr + len).step_by(LINE) {
        // SAFETY: invalidating an instruction line changes no data; the address is mapped text.
        unsafe { asm!("ic ivau, {}", in(reg) line, options(nostack, preserves_flags)) };
    }
    // SAFETY: barriers.
    unsafe { asm!("dsb ish", "isb", options(nostack, preserves_flags)) };
}
