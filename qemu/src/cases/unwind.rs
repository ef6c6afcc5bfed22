//! Stack walks by a sampling interrupt: whatever it interrupts, the walk shows who called whom.
//!
//! Load tasks run through random calls of functions of many shapes. Each function notes itself on its task's list when it has been entered,
//! and takes itself off before it returns; before a call it notes whom it calls. A walk must show exactly the functions on the list, in
//! their order, and at most one more: the one that is being called or has just returned.

use core::arch::global_asm;
use core::hint::black_box;
use core::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst, compiler_fence,
};

use fgraph::unwind::{End, Kind, Start};
use fgraph::{Filter, TaskTrace};

use super::probe::{Graph, Probe, addr};
use super::{CaseResult, LONG, Outcome, check, check_eq};
use crate::{
    backtrace, buffers,
    console::println,
    context, machine,
    sched::{self, Task},
    start,
    tracing::Named,
};

/// Load tasks at most.
const TASKS: usize = 4;
/// The deepest chain of test functions.
const DEPTH: usize = 12;
/// Frames of a walk that are kept: those of the interrupt come on top of the task's.
const FRAMES: usize = 96;
const SAMPLES: u64 = 1_000;
const LONG_SAMPLES: u64 = 50_000;
/// So that a machine without a working timer fails instead of running for ever.
const ROUNDS_AT_MOST: u64 = 400_000_000;
/// Samples a second at first, and at most.
const SAMPLE_HZ: u32 = 20;
const MOST_HZ: u64 = 1000;
/// Walks that tell how many samples a second leave the tasks some time.
const TRIALS: u64 = 10;

/// What a load task says of itself. Written by the task, read by interrupts on top of it.
#[repr(C, align(64))]
struct Truth {
    trace_block: AtomicUsize,
    depth: AtomicUsize,
    stack: [AtomicUsize; DEPTH + 4],
    /// Whom it calls, and whom that one jumps to.
    calling: [AtomicUsize; 2],
    random: AtomicU64,
}

static TRUTHS: [Truth; TASKS] = [const {
    Truth {
        trace_block: AtomicUsize::new(0),
        depth: AtomicUsize::new(0),
        stack: [const { AtomicUsize::new(0) }; DEPTH + 4],
        calling: [const { AtomicUsize::new(0) }; 2],
        random: AtomicU64::new(0),
    }
}; TASKS];

impl Truth {
    #[inline(always)]
    fn enter(&self, func: usize) {
        let depth = self.depth.load(Relaxed);
        self.stack[depth].store(func, Relaxed);
        self.depth.store(depth + 1, Relaxed);
        signal_fence();
        self.calls(0, 0);
    }

    /// Behind it `func` only returns; the list says so as its caller did when it called it.
    #[inline(always)]
    fn leave(&self, func: usize) {
        self.calling[0].store(func, Relaxed);
        signal_fence();
        self.depth.store(self.depth.load(Relaxed) - 1, Relaxed);
    }

    #[inline(always)]
    fn calls(&self, func: usize, jumps_to: usize) {
        self.calling[1].store(jumps_to, Relaxed);
        self.calling[0].store(func, Relaxed);
        signal_fence();
    }

    #[inline(always)]
    fn random(&self) -> u64 {
        let mut word = self.random.load(Relaxed);
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        self.random.store(word, Relaxed);
        word
    }
}

/// The order of stores as interrupts on top of the task see it.
#[inline(always)]
fn signal_fence() {
    compiler_fence(SeqCst);
}

type Func = extern "C" fn(&'static Truth, usize) -> usize;

unsafe extern "C" {
    /// Adds, in a loop, without a frame record of its own.
    safe fn case_walk_leaf(truth: &'static Truth, n: usize) -> usize;
    /// Jumps to [`case_walk_jumped_to`].
    safe fn case_walk_jumps(truth: &'static Truth, n: usize) -> usize;
    /// Has a record of its own on one way only.
    safe fn case_walk_half(truth: &'static Truth, n: usize) -> usize;
}

#[cfg(target_arch = "aarch64")]
global_asm!(
    ".pushsection .text.case_walk, \"ax\", @progbits",
    ".balign 16",
    ".globl case_walk_leaf",
    ".type case_walk_leaf, %function",
    "case_walk_leaf:",
    "2: nop",
    "nop",
    "mov x9, #20",
    "5: add x1, x1, x9",
    "subs x9, x9, #1",
    "b.ne 5b",
    "mov x0, x1",
    "ret",
    ".size case_walk_leaf, . - case_walk_leaf",
    ".balign 16",
    // Two NOPs of the sled before the function.
    "3: nop",
    "nop",
    ".globl case_walk_jumps",
    ".type case_walk_jumps, %function",
    "case_walk_jumps:",
    "nop",
    "nop",
    "stp x29, x30, [sp, #-32]!",
    "mov x29, sp",
    "add x1, x1, #0",
    "ldp x29, x30, [sp], #32",
    "b case_walk_jumped_to",
    ".size case_walk_jumps, . - case_walk_jumps",
    ".balign 16",
    ".globl case_walk_half",
    ".type case_walk_half, %function",
    "case_walk_half:",
    "4: nop",
    "nop",
    "tbnz x1, #0, 6f",
    "mov x0, x1",
    "ret",
    "6: sub sp, sp, #48",
    "stp x29, x30, [sp, #32]",
    "add x29, sp, #32",
    "bl case_walk_leaf",
    "ldp x29, x30, [sp, #32]",
    "add sp, sp, #48",
    "ret",
    ".size case_walk_half, . - case_walk_half",
    ".popsection",
    ".pushsection __patchable_function_entries, \"awo\", @progbits, .text.case_walk",
    ".balign 8",
    ".quad 2b",
    ".quad 3b",
    ".quad 4b",
    ".popsection",
);

#[cfg(target_arch = "x86_64")]
global_asm!(
    ".pushsection .text.case_walk, \"ax\", @progbits",
    ".balign 16",
    ".globl case_walk_leaf",
    ".type case_walk_leaf, @function",
    "case_walk_leaf:",
    "2: .byte 0x0f, 0x1f, 0x44, 0x00, 0x00",
    "push rbx",
    "mov ebx, 20",
    "5: add rsi, rbx",
    "dec rbx",
    "jne 5b",
    "mov rax, rsi",
    "pop rbx",
    "ret",
    ".size case_walk_leaf, . - case_walk_leaf",
    ".balign 16",
    // 16 bytes of NOPs before the function, and one NOP of two.
    "3: .fill 16, 1, 0x90",
    ".globl case_walk_jumps",
    ".type case_walk_jumps, @function",
    "case_walk_jumps:",
    ".byte 0x66, 0x90",
    "push rbp",
    "mov rbp, rsp",
    "add rsi, 0",
    "pop rbp",
    "jmp case_walk_jumped_to",
    ".size case_walk_jumps, . - case_walk_jumps",
    ".balign 16",
    ".globl case_walk_half",
    ".type case_walk_half, @function",
    "case_walk_half:",
    "4: .byte 0x0f, 0x1f, 0x44, 0x00, 0x00",
    "test sil, 1",
    "jne 6f",
    "mov rax, rsi",
    "ret",
    "6: push rbp",
    "mov rbp, rsp",
    "sub rsp, 48",
    "call case_walk_leaf",
    "leave",
    "ret",
    ".size case_walk_half, . - case_walk_half",
    ".popsection",
    ".pushsection __patchable_function_entries, \"awo\", @progbits, .text.case_walk",
    ".balign 8",
    ".quad 2b",
    ".quad 3b",
    ".quad 4b",
    ".popsection",
);

/// What a function does between noting itself and taking itself off the list: calls, until it is deep enough.
#[inline(always)]
fn calls_on(truth: &'static Truth, n: usize) -> usize {
    let mut sum = n;
    for _ in 0..truth.random() % 3 {
        let kind = truth.random();
        if n == 0 {
            break;
        }
        sum += match kind % 10 {
            0 => call(truth, n, case_walk_leaf, 0),
            1 => call(truth, n, case_walk_jumps, addr!(case_walk_jumped_to)),
            // On one of its ways it calls the leaf.
            2 => call(truth, n, case_walk_half, addr!(case_walk_leaf)),
            3 => {
                truth.calls(addr!(many_arguments), 0);
                let value = many_arguments(truth, n, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12);
                truth.calls(0, 0);
                value
            }
            4 | 5 => call(truth, n, wide, 0),
            6 => call(truth, n, recursive, 0),
            7 => call(truth, n, by_pointer, 0),
            _ => call(truth, n, plain, 0),
        };
    }
    sum
}

#[inline(always)]
fn call(truth: &'static Truth, n: usize, func: Func, jumps_to: usize) -> usize {
    truth.calls(func as usize, jumps_to);
    let value = func(truth, black_box(n - 1));
    truth.calls(0, 0);
    value
}

#[inline(never)]
extern "C" fn plain(truth: &'static Truth, n: usize) -> usize {
    truth.enter(addr!(plain));
    let value = calls_on(truth, n) + 1;
    truth.leave(addr!(plain));
    value
}

#[inline(never)]
extern "C" fn wide(truth: &'static Truth, n: usize) -> usize {
    truth.enter(addr!(wide));
    let words = black_box([n; 40]);
    let value = calls_on(truth, n) + words[n % 40];
    black_box(&words);
    truth.leave(addr!(wide));
    value
}

#[inline(never)]
extern "C" fn recursive(truth: &'static Truth, n: usize) -> usize {
    truth.enter(addr!(recursive));
    let value = if n > 0 && truth.random() & 1 == 0 {
        call(truth, n, recursive, 0) + 3
    } else {
        calls_on(truth, n) + 4
    };
    truth.leave(addr!(recursive));
    value
}

#[inline(never)]
extern "C" fn by_pointer(truth: &'static Truth, n: usize) -> usize {
    truth.enter(addr!(by_pointer));
    let func: Func = black_box(if truth.random() & 1 == 0 { plain } else { wide });
    let value = if n > 0 { call(truth, n, func, 0) } else { 5 };
    truth.leave(addr!(by_pointer));
    value
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn case_walk_jumped_to(truth: &'static Truth, n: usize) -> usize {
    truth.enter(addr!(case_walk_jumped_to));
    let value = calls_on(truth, n) + 6;
    truth.leave(addr!(case_walk_jumped_to));
    value
}

/// Half of the arguments come on the stack, so the return address is not what lies next to the caller's frame.
#[inline(never)]
extern "C" fn many_arguments(
    truth: &'static Truth,
    n: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
    g: usize,
    h: usize,
    i: usize,
    j: usize,
    k: usize,
    l: usize,
) -> usize {
    truth.enter(addr!(many_arguments));
    let value = calls_on(truth, n.saturating_sub(1)) + black_box(c + d + e + f + g + h + i + j + k + l);
    truth.leave(addr!(many_arguments));
    value
}

fn is_test_function(func: usize) -> bool {
    [
        addr!(plain),
        addr!(wide),
        addr!(recursive),
        addr!(by_pointer),
        addr!(many_arguments),
        addr!(case_walk_jumped_to),
        addr!(case_walk_leaf),
        addr!(case_walk_jumps),
        addr!(case_walk_half),
    ]
    .contains(&func)
}

static STOP: AtomicBool = AtomicBool::new(false);
static SAMPLED: AtomicU64 = AtomicU64::new(0);
/// Nanoseconds that walks have taken.
static WALKING: AtomicU64 = AtomicU64::new(0);
static COUNTS: [AtomicU64; 6] = [const { AtomicU64::new(0) }; 6];
/// The last frame that was certain of a walk that was uncertain.
static UNCERTAIN_IN: AtomicUsize = AtomicUsize::new(0);
/// Walks of tasks that were stopped.
static STOPPED: AtomicU64 = AtomicU64::new(0);
const UNCERTAIN: usize = 0;
const HOOKED: usize = 1;
const IN_TRAMPOLINE: usize = 2;
const CALLED: usize = 3;
const FROM_INTERRUPT: usize = 4;
const IN_TEST_FUNCTION: usize = 5;

/// The first walk that was wrong.
static WRONG: Wrong = Wrong {
    taken: AtomicBool::new(false),
    ready: AtomicBool::new(false),
    truth: [const { AtomicUsize::new(0) }; DEPTH + 6],
    frames: [const { [const { AtomicUsize::new(0) }; 2] }; FRAMES],
    why: AtomicUsize::new(0),
};

struct Wrong {
    taken: AtomicBool,
    ready: AtomicBool,
    truth: [AtomicUsize; DEPTH + 6],
    frames: [[AtomicUsize; 2]; FRAMES],
    why: AtomicUsize,
}

const REASONS: [&str; 4] = ["", "other functions than there are", "no end of the stack", "too many frames"];

fn load(index: usize) {
    let truth = &TRUTHS[index];
    let block: *const TaskTrace = machine::current().trace_block();
    truth.random.store(0x9e37_79b9_7f4a_7c15 ^ (index as u64 + 1) << 20, Relaxed);
    truth.trace_block.store(block.addr(), Relaxed);
    let mut rounds = 0;
    while !STOP.load(Relaxed) && rounds < ROUNDS_AT_MOST {
        truth.calls(addr!(plain), 0);
        black_box(plain(truth, DEPTH));
        truth.calls(0, 0);
        rounds += 1;
    }
    truth.trace_block.store(0, Relaxed);
}

/// What the timer interrupt calls.
#[inline(never)]
fn sample() {
    look_at(machine::current(), backtrace::here());
}

/// Compares a walk of the stack of `task` with what the task says, if it says anything. It is interrupted by the caller, or
/// stopped.
fn look_at(task: &'static Task, start: Start) -> bool {
    let block: *const TaskTrace = task.trace_block();
    let Some(truth) = TRUTHS.iter().find(|truth| truth.trace_block.load(Relaxed) == block.addr()) else {
        return false;
    };
    let began = machine::clock_ns();
    let stacks = [task.stack_range()];
    let mut walk = backtrace::walk(task, &stacks, start);
    let mut frames = [(0, Kind::Certain); FRAMES];
    let mut count = 0;
    let mut chain = [0; DEPTH + 6];
    let mut perhaps = None;
    let mut length = 0;
    let mut why = 0;
    let mut interrupted_at = 0;
    for frame in walk.by_ref() {
        if count == FRAMES {
            why = 3;
            break;
        }
        frames[count] = (frame.pc, frame.kind);
        count += 1;
        if frame.hooked {
            COUNTS[HOOKED].fetch_add(1, Relaxed);
        }
        let func = backtrace::function_of(frame.pc, frame.is_return);
        if !frame.is_return && interrupted_at == 0 {
            interrupted_at = func;
            let counted = if frame.kind == Kind::Trampoline { Some(IN_TRAMPOLINE) } else { None };
            let counted = counted.or(is_test_function(func).then_some(IN_TEST_FUNCTION));
            if let Some(counted) = counted {
                COUNTS[counted].fetch_add(1, Relaxed);
            }
            COUNTS[FROM_INTERRUPT].fetch_add(1, Relaxed);
        }
        if !is_test_function(func) {
            if frame.kind == Kind::Uncertain {
                COUNTS[UNCERTAIN].fetch_add(1, Relaxed);
                UNCERTAIN_IN.store(frames[count.saturating_sub(2)].0, Relaxed);
            }
        } else if length == chain.len() {
            why = 3;
            break;
        } else {
            if frame.kind == Kind::Uncertain {
                perhaps = Some(length);
                COUNTS[UNCERTAIN].fetch_add(1, Relaxed);
                UNCERTAIN_IN.store(frames[count.saturating_sub(2)].0, Relaxed);
            }
            chain[length] = func;
            length += 1;
        }
    }
    if why == 0 && walk.end() != Some(End::Bottom) {
        why = 2;
    }
    // With what may not be there, or without.
    let mut right = is_right(truth, &chain[..length]);
    if let Some(index) = perhaps
        && !right
    {
        chain.copy_within(index + 1..length, index);
        right = is_right(truth, &chain[..length - 1]);
    }
    if why == 0 && !right {
        why = 1;
    }
    if length != truth.depth.load(Relaxed) {
        COUNTS[CALLED].fetch_add(1, Relaxed);
    }
    if why != 0 && !WRONG.taken.swap(true, Relaxed) {
        WRONG.why.store(why, Relaxed);
        for (kept, frame) in WRONG.frames.iter().zip(&frames[..count]) {
            kept[0].store(frame.0, Relaxed);
            kept[1].store(frame.1 as usize, Relaxed);
        }
        let depth = truth.depth.load(Relaxed);
        let calling = truth.calling.each_ref().map(|func| func.load(Relaxed));
        let stack = truth.stack[..depth].iter().rev().map(|func| func.load(Relaxed));
        for (kept, func) in WRONG.truth.iter().zip(calling.into_iter().chain(stack)) {
            kept.store(func, Relaxed);
        }
        WRONG.ready.store(true, Relaxed);
    }
    WALKING.fetch_add(machine::clock_ns() - began, Relaxed);
    SAMPLED.fetch_add(1, Relaxed);
    true
}

/// Whether this is what the task says of itself, the innermost function first.
fn is_right(truth: &Truth, chain: &[usize]) -> bool {
    let depth = truth.depth.load(Relaxed);
    let Some(more) = chain.len().checked_sub(depth) else { return false };
    let (called, chain) = chain.split_at(more);
    let [calling, jumps_to] = truth.calling.each_ref().map(|func| func.load(Relaxed));
    let same = |(is, should): (&usize, &AtomicUsize)| *is == should.load(Relaxed);
    let called = match *called {
        [] => true,
        [one] => one == calling || one == jumps_to,
        // One that calls another without saying so.
        [first, second] => (first, second) == (jumps_to, calling),
        _ => false,
    };
    called && chain.iter().zip(truth.stack[..depth].iter().rev()).all(same)
}

pub fn every_walk_shows_who_called_whom() -> CaseResult {
    let probe = Probe::new();
    walks_under(SAMPLES, || Graph::probing(probe, Filter::ALL))?;
    check_eq!(probe.mismatches.load(Relaxed), 0, "mismatches");
    Ok(())
}

/// The frames of the straight path, which the trampolines push and pop without a call.
pub fn every_walk_is_right_under_the_tracer() -> CaseResult {
    buffers::make(16);
    buffers::switch(true);
    let done = walks_under(SAMPLES / 2, || Graph::tracing(Filter::ALL));
    buffers::switch(false);
    done
}

/// Takes samples while a user that `register` makes comes and goes.
fn walks_under(short: u64, register: impl Fn() -> Result<Graph, fgraph::Error>) -> CaseResult {
    let wanted = if LONG.load(Relaxed) { LONG_SAMPLES } else { short };
    STOP.store(false, Relaxed);
    SAMPLED.store(0, Relaxed);
    STOPPED.store(0, Relaxed);
    WALKING.store(0, Relaxed);
    COUNTS.iter().for_each(|count| count.store(0, Relaxed));
    machine::timer_set_hz(SAMPLE_HZ);
    sched::set_tick_hook(Some(sample));
    // The first task shares its CPU with this one, so it is stopped whenever this one holds the CPU.
    sched::pin(0);
    let pinned = sched::spawn_with("walked", load, 0);
    sched::unpin();
    let others: [&'static Task; TASKS - 1] =
        core::array::from_fn(|n| sched::spawn_with("walked", load, n + 1));
    sched::pin(0);
    let result = sample_until(wanted, register, pinned);
    sched::unpin();
    STOP.store(true, Relaxed);
    others.into_iter().chain([pinned]).for_each(sched::join);
    sched::set_tick_hook(None);
    machine::timer_set_hz(start::TICK_HZ);
    result?;
    let counts = COUNTS.each_ref().map(|count| count.load(Relaxed));
    println!(
        "{} walks, {} of them of stopped tasks; {} hooked frames; interrupted in trampolines {}, in the functions {}; being called or returning {}, uncertain {}",
        SAMPLED.load(Relaxed),
        STOPPED.load(Relaxed),
        counts[HOOKED],
        counts[IN_TRAMPOLINE],
        counts[IN_TEST_FUNCTION],
        counts[CALLED],
        counts[UNCERTAIN]
    );
    if counts[UNCERTAIN] > 0 {
        println!("  in {}", Named(UNCERTAIN_IN.load(Relaxed)));
    }
    if WRONG.ready.load(Relaxed) {
        return Err(show_wrong());
    }
    // A task that has given its CPU away itself is not interrupted.
    let interrupted = SAMPLED.load(Relaxed) - counts[FROM_INTERRUPT];
    check!(interrupted <= STOPPED.load(Relaxed), "{interrupted} walks did not come to what they interrupted");
    check!(STOPPED.load(Relaxed) > 0, "no stopped task was walked");
    check!(counts[HOOKED] > wanted, "only {} hooked frames", counts[HOOKED]);
    check!(counts[UNCERTAIN] * 50 < wanted, "{} uncertain frames", counts[UNCERTAIN]);
    Ok(())
}

/// A third of the samples with everything traced, a third while that comes and goes, a third without.
fn sample_until(
    wanted: u64,
    register: impl Fn() -> Result<Graph, fgraph::Error>,
    pinned: &'static Task,
) -> CaseResult {
    {
        let _user = register()?;
        sleep_until(TRIALS, pinned);
        // However slow the machine is: half of the time is for the tasks.
        let walk_ns = WALKING.load(Relaxed) / SAMPLED.load(Relaxed).max(1);
        machine::timer_set_hz((500_000_000 / walk_ns.max(1)).clamp(5, MOST_HZ) as u32);
        sleep_until(wanted / 3, pinned);
    }
    while SAMPLED.load(Relaxed) < wanted * 2 / 3 && !WRONG.ready.load(Relaxed) {
        let _user = register()?;
        sched::sleep_ms(1);
    }
    sleep_until(wanted, pinned);
    Ok(())
}

/// Sleeps until so many walks were done, and walks the stack of the stopped task whenever it wakes.
fn sleep_until(samples: u64, pinned: &'static Task) {
    while SAMPLED.load(Relaxed) < samples && !WRONG.ready.load(Relaxed) {
        sched::sleep_ms(1);
        context::preempt_disable();
        let looked = look_at(pinned, machine::stopped_at(pinned));
        STOPPED.fetch_add(u64::from(looked), Relaxed);
        context::preempt_enable();
    }
}

fn show_wrong() -> Outcome {
    for kept in &WRONG.frames {
        let [pc, kind] = kept.each_ref().map(|word| word.load(Relaxed));
        if pc != 0 {
            println!("  walk: {pc:#x} {} ({kind})", Named(pc));
        }
    }
    for (n, func) in WRONG.truth.iter().enumerate() {
        let func = func.load(Relaxed);
        if func != 0 {
            println!("  {}: {}", if n < 2 { "calls" } else { "runs" }, Named(func));
        }
    }
    Outcome::Failed(alloc::format!("a walk showed {}", REASONS[WRONG.why.load(Relaxed) % REASONS.len()]))
}
