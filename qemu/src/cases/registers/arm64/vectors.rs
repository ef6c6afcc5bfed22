//! The vector registers, on a target whose code uses them: those that hold arguments and results come through
//! each trampoline, those that calls keep are kept, and interrupts and switches leave all of them alone.

use core::hint::black_box;
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::Relaxed};

use fgraph::{FtraceOps, FtraceRegs, FuncAddr, OpsFlags, RetAddr};

use crate::cases::probe::{Graph, Op, Probe, addr, note_entry, only};
use crate::cases::registers::through;
use crate::cases::{CaseResult, check, check_eq};
use crate::{machine, percpu::MAX_CPUS, sched, sched::Task};

pub fn vectors() -> CaseResult {
    for flags in [OpsFlags::empty(), OpsFlags::SAVE_REGS] {
        for with_return in [false, true] {
            through(case_vectors_callee as *const () as usize, call_once, flags, with_return)?;
        }
        floating_point(flags)?;
    }
    interrupts()?;
    switches()
}

/// What is loaded before the call, what the callee found, what it returned with, what the caller found.
#[repr(C)]
struct Io {
    before: [u128; 16],
    at_entry: [u128; 16],
    at_return: [u128; RESULTS],
    after: [u128; 16],
}

/// q0 to q7 hold arguments and results. Of q8 to q15 calls keep the lower halves, and of the others nothing.
const RESULTS: usize = 8;

/// Where the callee finds the block, with no register free to point to it.
#[unsafe(no_mangle)]
static CASE_VECTORS_IO: AtomicPtr<Io> = AtomicPtr::new(core::ptr::null_mut());

/// Registers with nothing in common, not even their halves.
fn pattern<const N: usize>(round: usize) -> [u128; N] {
    core::array::from_fn(|n| {
        let half = (0x0101_0101_0101_0101 * (n as u128 + 1)) ^ ((round as u128) << 56);
        !half << 64 | half
    })
}

fn call_once() -> CaseResult {
    let mut io = Io { before: pattern(1), at_entry: [0; 16], at_return: pattern(2), after: [0; 16] };
    CASE_VECTORS_IO.store(&mut io, Relaxed);
    // SAFETY: the routine keeps the calling convention, and the block lives until it returns; the callee is the
    //         only other user.
    unsafe { case_vectors(&mut io) };
    for n in 0..RESULTS {
        check_eq!(io.at_entry[n], io.before[n], alloc::format!("q{n} at the entry"));
        check_eq!(io.after[n], io.at_return[n], alloc::format!("q{n} after the return"));
    }
    for n in RESULTS..16 {
        check_eq!(io.at_entry[n] as u64, io.before[n] as u64, alloc::format!("d{n} at the entry"));
        check_eq!(io.after[n] as u64, io.before[n] as u64, alloc::format!("d{n} after the return"));
    }
    Ok(())
}

/// Ten, of which two are on the stack.
#[inline(never)]
#[expect(clippy::too_many_arguments, reason = "the point is those on the stack")]
fn weigh(a: f64, b: f64, c: f64, d: f64, e: f64, f: f64, g: f64, h: f64, i: f64, j: f64) -> f64 {
    let all = [a, b, c, d, e, f, g, h, i, j];
    black_box(all.iter().enumerate().map(|(n, value)| (n + 1) as f64 * value).sum())
}

/// Four results in registers.
#[repr(C)]
struct Quad([f64; 4]);

#[inline(never)]
extern "C" fn quad(seed: f64, scale: f32) -> Quad {
    black_box(Quad(core::array::from_fn(|n| seed * f64::from(scale) + n as f64)))
}

#[inline(never)]
fn mixed(n: usize, x: f32, k: u8, y: f64) -> f32 {
    black_box(n as f32 * x + f32::from(k) * y as f32)
}

/// Every number here is exact, so that a wrong bit is a wrong result.
fn call_floating_point() -> CaseResult {
    let b = black_box::<f64>;
    let sum = weigh(b(1.0), b(2.0), b(3.0), b(4.0), b(5.0), b(6.0), b(7.0), b(8.0), b(9.0), b(10.5));
    check_eq!(sum.to_bits(), 390.0_f64.to_bits(), "ten arguments");
    let Quad(four) = quad(b(1.5), black_box(0.25));
    check_eq!(four.map(f64::to_bits), [0.375_f64, 1.375, 2.375, 3.375].map(f64::to_bits), "four results");
    check_eq!(
        mixed(black_box(3), black_box(0.5), black_box(4), b(-2.0)).to_bits(),
        (-6.5_f32).to_bits(),
        "mixed"
    );
    Ok(())
}

fn floating_point(flags: OpsFlags) -> CaseResult {
    let funcs = [addr!(weigh), addr!(quad), addr!(mixed)];
    call_floating_point()?;
    let (op, graph) = (Probe::new(), Probe::new());
    {
        let _op = Op::register(note_entry, flags, only(&funcs), op.word())?;
        let _graph = Graph::probing(graph, only(&funcs))?;
        call_floating_point()?;
    }
    check_eq!(op.counts(), (3, 0), "entries");
    check_eq!(graph.counts(), (3, 3), "graph events");
    call_floating_point()
}

/// All that a context has in vector registers.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Registers {
    q: [u128; 32],
    fpcr: u64,
    fpsr: u64,
}

/// More than there are CPUs, so that they must share.
const HOLDERS: usize = MAX_CPUS + 2;
const SWITCHES_WANTED: u64 = 10;
const PATIENCE_NS: u64 = 10_000_000_000;

static STOP: AtomicBool = AtomicBool::new(false);
/// The first register that a task found changed, plus one.
static WRONG: AtomicUsize = AtomicUsize::new(0);
const WRONG_FPCR: usize = 33;
const WRONG_FPSR: usize = 34;
const WRONG_FPCR_IN_INTERRUPT: usize = 35;

impl Registers {
    /// What task `number` holds: numbers of its own, a way of rounding, and some of the flags that a calculation
    /// leaves.
    fn of(number: usize) -> Self {
        Self { q: pattern(number + 3), fpcr: (number as u64 % 3 + 1) << 22, fpsr: number as u64 + 1 }
    }

    fn zero() -> Self {
        Self { q: [0; 32], fpcr: 0, fpsr: 0 }
    }
}

/// Holds numbers of its own in all registers until it is told to stop, doing nothing else.
fn holder(number: usize) {
    let (before, mut after) = (Registers::of(number), Registers::zero());
    // SAFETY: the routine keeps the calling convention; it reads the first block and the flag and writes the
    //         second block.
    unsafe { case_vectors_hold(&before, &mut after, STOP.as_ptr()) };
    if let Some(n) = (0..32).find(|n| before.q[*n] != after.q[*n]) {
        WRONG.store(n + 1, Relaxed);
    } else if before != after {
        WRONG.store(if before.fpcr != after.fpcr { WRONG_FPCR } else { WRONG_FPSR }, Relaxed);
    }
}

/// Lets the others have a turn, holding numbers of its own in the registers that a call keeps.
fn yielder(number: usize) {
    extern "C" fn turn() {
        sched::yield_now();
    }

    for _ in 0..SWITCHES_WANTED {
        let (before, mut after) = (Registers::of(number), Registers::zero());
        // SAFETY: as in `holder`; `turn` calculates nothing, so it matters to nobody how numbers are rounded.
        unsafe { case_vectors_call(&before, &mut after, turn) };
        if let Some(n) = (RESULTS..16).find(|n| before.q[*n] as u64 != after.q[*n] as u64) {
            WRONG.store(n + 1, Relaxed);
        } else if before.fpcr != after.fpcr {
            WRONG.store(WRONG_FPCR, Relaxed);
        }
    }
}

fn nothing_was_wrong() -> CaseResult {
    match WRONG.load(Relaxed) {
        0 => {}
        WRONG_FPCR => check!(false, "a task found fpcr changed"),
        WRONG_FPSR => check!(false, "a task found fpsr changed"),
        WRONG_FPCR_IN_INTERRUPT => check!(false, "an interrupt handler rounds as what it interrupted"),
        n => check!(false, "a task found q{} changed", n - 1),
    }
    Ok(())
}

/// Tasks that give way by themselves keep what calls keep.
fn switches() -> CaseResult {
    WRONG.store(0, Relaxed);
    let tasks: [&'static Task; HOLDERS] = core::array::from_fn(|n| sched::spawn_with("yielder", yielder, n));
    tasks.into_iter().for_each(sched::join);
    nothing_was_wrong()
}

/// A user of entries in interrupts.
#[unsafe(link_section = ".text.notrace")]
fn in_interrupt(ip: FuncAddr, parent_ip: RetAddr, ops: &FtraceOps, fregs: &mut FtraceRegs) {
    let fpcr: u64;
    // SAFETY: reads a register.
    unsafe { core::arch::asm!("mrs {}, fpcr", out(reg) fpcr, options(nomem, nostack, preserves_flags)) };
    if fpcr != 0 {
        WRONG.store(WRONG_FPCR_IN_INTERRUPT, Relaxed);
    }
    note_entry(ip, parent_ip, ops, fregs);
}

/// Tasks that hold numbers in all registers are interrupted and switched away from, with callbacks in the
/// interrupts.
fn interrupts() -> CaseResult {
    STOP.store(false, Relaxed);
    WRONG.store(0, Relaxed);
    let (op, graph) = (Probe::new(), Probe::new());
    let tasks: [&'static Task; HOLDERS];
    {
        let ticks = only(&[addr!(sched::tick)]);
        let _op = Op::register(in_interrupt, OpsFlags::empty(), ticks, op.word())?;
        let _graph = Graph::probing(graph, ticks)?;
        tasks = core::array::from_fn(|n| sched::spawn_with("holder", holder, n));
        let deadline = machine::clock_ns() + PATIENCE_NS;
        while tasks.iter().any(|task| task.switches() < SWITCHES_WANTED) && machine::clock_ns() < deadline {
            sched::sleep_ms(5);
        }
        STOP.store(true, Relaxed);
        tasks.into_iter().for_each(sched::join);
    }
    nothing_was_wrong()?;
    for task in tasks {
        check!(task.switches() >= SWITCHES_WANTED, "a task was only switched to {} times", task.switches());
    }
    let (calls, _) = op.counts();
    check!(calls >= SWITCHES_WANTED, "only {calls} callbacks in interrupts");
    check_eq!(graph.mismatches.load(Relaxed), 0, "mismatches");
    Ok(())
}

unsafe extern "C" {
    fn case_vectors(io: *mut Io);
    fn case_vectors_callee();
    fn case_vectors_hold(before: *const Registers, after: *mut Registers, stop: *const bool);
    fn case_vectors_call(before: *const Registers, after: *mut Registers, call: extern "C" fn());
}

core::arch::global_asm!(
    ".macro case_save_d",
    "stp d8, d9, [sp, #16]",
    "stp d10, d11, [sp, #32]",
    "stp d12, d13, [sp, #48]",
    "stp d14, d15, [sp, #64]",
    ".endm",
    ".macro case_restore_d",
    "ldp d8, d9, [sp, #16]",
    "ldp d10, d11, [sp, #32]",
    "ldp d12, d13, [sp, #48]",
    "ldp d14, d15, [sp, #64]",
    ".endm",
    // op: stp or ldp, at base + offset
    ".macro case_q0_q7 op, base, offset",
    "\\op q0, q1, [\\base, #\\offset]",
    "\\op q2, q3, [\\base, #\\offset + 32]",
    "\\op q4, q5, [\\base, #\\offset + 64]",
    "\\op q6, q7, [\\base, #\\offset + 96]",
    ".endm",
    ".macro case_q8_q15 op, base, offset",
    "\\op q8, q9, [\\base, #\\offset]",
    "\\op q10, q11, [\\base, #\\offset + 32]",
    "\\op q12, q13, [\\base, #\\offset + 64]",
    "\\op q14, q15, [\\base, #\\offset + 96]",
    ".endm",
    ".macro case_q16_q31 op, base, offset",
    "\\op q16, q17, [\\base, #\\offset]",
    "\\op q18, q19, [\\base, #\\offset + 32]",
    "\\op q20, q21, [\\base, #\\offset + 64]",
    "\\op q22, q23, [\\base, #\\offset + 96]",
    "\\op q24, q25, [\\base, #\\offset + 128]",
    "\\op q26, q27, [\\base, #\\offset + 160]",
    "\\op q28, q29, [\\base, #\\offset + 192]",
    "\\op q30, q31, [\\base, #\\offset + 224]",
    ".endm",
    ".pushsection .text.case_vectors, \"ax\", @progbits",
    // case_vectors(io): x0 = io
    ".balign 16",
    ".globl case_vectors",
    ".type case_vectors, %function",
    "case_vectors:",
    "stp x29, x30, [sp, #-96]!",
    "mov x29, sp",
    "case_save_d",
    "str x19, [sp, #80]",
    "mov x19, x0",
    "case_q0_q7 ldp, x19, {before}",
    "case_q8_q15 ldp, x19, {before} + 128",
    "bl case_vectors_callee",
    "case_q0_q7 stp, x19, {after}",
    "case_q8_q15 stp, x19, {after} + 128",
    "ldr x19, [sp, #80]",
    "case_restore_d",
    "ldp x29, x30, [sp], #96",
    "ret",
    ".size case_vectors, . - case_vectors",
    // The traced function, with the sled a compiler would have made.
    ".balign 16",
    ".globl case_vectors_callee",
    ".type case_vectors_callee, %function",
    "case_vectors_callee:",
    "2: nop",
    "nop",
    "adrp x16, CASE_VECTORS_IO",
    "ldr x16, [x16, #:lo12:CASE_VECTORS_IO]",
    "case_q0_q7 stp, x16, {at_entry}",
    "case_q8_q15 stp, x16, {at_entry} + 128",
    "case_q0_q7 ldp, x16, {at_return}",
    "ret",
    ".size case_vectors_callee, . - case_vectors_callee",
    // case_vectors_hold(before, after, stop)
    ".balign 16",
    ".globl case_vectors_hold",
    ".type case_vectors_hold, %function",
    "case_vectors_hold:",
    "stp x29, x30, [sp, #-96]!",
    "mov x29, sp",
    "case_save_d",
    "mrs x9, fpcr",
    "str x9, [sp, #80]",
    "ldr x9, [x0, #{fpcr}]",
    "ldr x10, [x0, #{fpsr}]",
    "msr fpcr, x9",
    "msr fpsr, x10",
    "case_q0_q7 ldp, x0, 0",
    "case_q8_q15 ldp, x0, 128",
    "case_q16_q31 ldp, x0, 256",
    "3: ldrb w9, [x2]",
    "cbz w9, 3b",
    "case_q0_q7 stp, x1, 0",
    "case_q8_q15 stp, x1, 128",
    "case_q16_q31 stp, x1, 256",
    "mrs x9, fpcr",
    "mrs x10, fpsr",
    "str x9, [x1, #{fpcr}]",
    "str x10, [x1, #{fpsr}]",
    "ldr x9, [sp, #80]",
    "msr fpcr, x9",
    "case_restore_d",
    "ldp x29, x30, [sp], #96",
    "ret",
    ".size case_vectors_hold, . - case_vectors_hold",
    // case_vectors_call(before, after, call)
    ".balign 16",
    ".globl case_vectors_call",
    ".type case_vectors_call, %function",
    "case_vectors_call:",
    "stp x29, x30, [sp, #-112]!",
    "mov x29, sp",
    "case_save_d",
    "mrs x9, fpcr",
    "str x9, [sp, #80]",
    "str x1, [sp, #96]",
    "ldr x9, [x0, #{fpcr}]",
    "msr fpcr, x9",
    "case_q8_q15 ldp, x0, 128",
    "blr x2",
    "ldr x1, [sp, #96]",
    "case_q8_q15 stp, x1, 128",
    "mrs x9, fpcr",
    "str x9, [x1, #{fpcr}]",
    "ldr x9, [sp, #80]",
    "msr fpcr, x9",
    "case_restore_d",
    "ldp x29, x30, [sp], #112",
    "ret",
    ".size case_vectors_call, . - case_vectors_call",
    ".popsection",
    ".pushsection __patchable_function_entries, \"awo\", @progbits, .text.case_vectors",
    ".balign 8",
    ".quad 2b",
    ".popsection",
    ".purgem case_save_d",
    ".purgem case_restore_d",
    ".purgem case_q0_q7",
    ".purgem case_q8_q15",
    ".purgem case_q16_q31",
    before = const offset_of!(Io, before),
    at_entry = const offset_of!(Io, at_entry),
    at_return = const offset_of!(Io, at_return),
    after = const offset_of!(Io, after),
    fpcr = const offset_of!(Registers, fpcr),
    fpsr = const offset_of!(Registers, fpsr),
);
