//! Every register that a traced function's caller or body may rely on, through each trampoline: patterns in, patterns
//! compared at the function's first instruction, other patterns back, compared behind the call.

use core::hint::black_box;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Relaxed};

use fgraph::{FtraceOps, FtraceRegs, FuncAddr, OpsFlags, Regs, RetAddr, Saved};

use super::probe::{Graph, Op, Probe, addr, clobber_scratch, note_entry, only};
use super::straight::{Recorded, tracer_records};
use super::{CaseResult, check, check_eq};

#[cfg(target_arch = "aarch64")]
use arm64 as machine;
#[cfg(target_arch = "x86_64")]
use x86_64 as machine;

/// The block that the assembly reads and writes: what is loaded before the call, what the callee found, what it returned with,
/// what the caller found.
#[repr(C)]
struct Io {
    before: [usize; machine::COUNT],
    at_entry: [usize; machine::COUNT],
    at_return: [usize; machine::COUNT],
    after: [usize; machine::COUNT],
}

/// The traced function of one layout.
#[derive(Clone, Copy)]
struct Callee {
    /// Loads the registers from the block, calls it, and writes to the block what it comes back with.
    through: unsafe extern "C" fn(*mut Io),
    func: usize,
}

unsafe extern "C" {
    fn case_registers(io: *mut Io);
    fn case_registers_callee();
    fn case_registers_prefixed(io: *mut Io);
    fn case_registers_prefixed_callee();
}

/// What calls the function of each layout, and that function.
fn callees() -> [Callee; 2] {
    [
        Callee { through: case_registers, func: case_registers_callee as *const () as usize },
        Callee {
            through: case_registers_prefixed,
            func: case_registers_prefixed_callee as *const () as usize,
        },
    ]
}

/// Where the callee finds the block, with no register free to point to it.
#[unsafe(no_mangle)]
static CASE_REGISTERS_IO: AtomicPtr<Io> = AtomicPtr::new(core::ptr::null_mut());

fn pattern(round: usize) -> [usize; machine::COUNT] {
    core::array::from_fn(|n| (0x0101_0101_0101_0101 * (n + 1)) ^ (round << 56) | 0xf000_0000_0000_0000)
}

fn run_once(callee: Callee) -> CaseResult {
    let zero = [0; machine::COUNT];
    let mut io = Io { before: pattern(1), at_entry: zero, at_return: pattern(2), after: zero };
    CASE_REGISTERS_IO.store(&mut io, Relaxed);
    // SAFETY: the routine keeps the calling convention, and the block lives until it returns; the callee is the only other user.
    unsafe { (callee.through)(&mut io) };
    for n in 0..machine::COUNT {
        check_eq!(io.at_entry[n], io.before[n], machine::NAMES[n]);
        // What the callee may change, it has changed; the rest it left alone.
        let expected = if machine::is_scratch(n) { io.at_return[n] } else { io.before[n] };
        check_eq!(io.after[n], expected, machine::NAMES[n]);
    }
    Ok(())
}

fn run(flags: OpsFlags, with_return: bool) -> CaseResult {
    for callee in callees() {
        through(callee.func, || run_once(callee), flags, with_return)?;
    }
    Ok(())
}

/// Runs `once`, which calls `callee` once and compares: untraced, traced in the way that is asked for, untraced again.
fn through(callee: usize, once: impl Fn() -> CaseResult, flags: OpsFlags, with_return: bool) -> CaseResult {
    once()?;
    let probe = Probe::new();
    let filter = only(&[callee]);
    {
        let _op = Op::register(note_entry, flags, filter, probe.word())?;
        if with_return {
            let graph = Probe::new();
            let _graph = Graph::probing(graph, filter)?;
            once()?;
            check_eq!(graph.counts(), (1, 1), "graph events");
            check_eq!(graph.mismatches.load(Relaxed), 0, "mismatches");
        } else {
            once()?;
        }
    }
    check_eq!(probe.counts(), (1, 0), "entries");
    check_eq!(probe.log()[0].func, callee, "ip");
    once()
}

pub fn registers_come_through_args() -> CaseResult {
    run(OpsFlags::empty(), false)
}

pub fn registers_come_through_regs() -> CaseResult {
    run(OpsFlags::SAVE_REGS, false)
}

pub fn registers_come_through_args_and_return() -> CaseResult {
    run(OpsFlags::empty(), true)
}

pub fn registers_come_through_regs_and_return() -> CaseResult {
    run(OpsFlags::SAVE_REGS, true)
}

pub fn registers_come_through_the_tracer() -> CaseResult {
    for callee in callees() {
        run_once(callee)?;
        let calls = tracer_records(&[callee.func], || run_once(callee))?;
        let expected = Recorded::new(callee.func, 0, pattern(2)[0] as u64);
        check_eq!(calls, [expected], "what was recorded");
        run_once(callee)?;
    }
    Ok(())
}

/// What [`compare_callee_saved`] found: the first register that was wrong, plus one; or that the flavour was.
static WRONG: AtomicUsize = AtomicUsize::new(0);
const WRONG_FLAVOUR: usize = usize::MAX;

#[unsafe(link_section = ".text.notrace")]
fn compare_callee_saved(_ip: FuncAddr, _parent_ip: RetAddr, _ops: &FtraceOps, fregs: &mut FtraceRegs) {
    let expected = pattern(1);
    if fregs.saved() != Saved::Regs {
        WRONG.store(WRONG_FLAVOUR, Relaxed);
    }
    for (n, value) in machine::shown(fregs) {
        if expected[n] != value {
            WRONG.store(n + 1, Relaxed);
        }
    }
    clobber_scratch();
}

pub fn the_regs_flavour_shows_every_register() -> CaseResult {
    WRONG.store(0, Relaxed);
    for callee in callees() {
        let _op = Op::register(compare_callee_saved, OpsFlags::SAVE_REGS, only(&[callee.func]), 0)?;
        run_once(callee)?;
    }
    let wrong = WRONG.load(Relaxed);
    check!(wrong != WRONG_FLAVOUR, "the args trampoline was used");
    check!(wrong == 0, "{} is not what it was at the entry", machine::NAMES[wrong - 1]);
    Ok(())
}

#[inline(never)]
extern "C" fn many(
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
    g: usize,
    h: usize,
    i: usize,
    j: usize,
    k: u8,
    l: usize,
) -> usize {
    let all = [a, b, c, d, e, f, g, h, i, j, k as usize, l];
    black_box(all.iter().enumerate().map(|(n, value)| (n + 1) * value).sum())
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Big([usize; 9]);

#[inline(never)]
extern "C" fn big(seed: usize, other: usize) -> Big {
    black_box(Big(core::array::from_fn(|n| seed * (n + 1) + other)))
}

#[inline(never)]
fn rust_big(seed: usize) -> [usize; 5] {
    black_box(core::array::from_fn(|n| seed + n))
}

#[inline(never)]
extern "C" fn wide(a: u128, b: u64) -> u128 {
    black_box(a.rotate_left(64) ^ u128::from(b))
}

#[inline(never)]
fn pair(a: usize) -> (usize, usize) {
    black_box((a + 1, !a))
}

#[inline(never)]
fn result(a: u64) -> Result<u64, u64> {
    if black_box(a) & 1 == 0 { Ok(a) } else { Err(!a) }
}

fn call_all() -> CaseResult {
    let b = black_box::<usize>;
    let sum = (1..=12).map(|n| n * n).sum::<usize>();
    check_eq!(
        many(b(1), b(2), b(3), b(4), b(5), b(6), b(7), b(8), b(9), b(10), b(11) as u8, b(12)),
        sum,
        "many"
    );
    check_eq!(big(b(5), b(3)), Big(core::array::from_fn(|n| 5 * (n + 1) + 3)), "struct through memory");
    check_eq!(rust_big(b(7)), [7, 8, 9, 10, 11], "Rust array through memory");
    let value = 0x0123_4567_89ab_cdef_1122_3344_5566_7788;
    check_eq!(wide(black_box(value), 0xff), value.rotate_left(64) ^ 0xff, "128 bits");
    check_eq!(pair(b(41)), (42, !41), "pair");
    check_eq!(result(black_box(8)), Ok(8), "Ok");
    check_eq!(result(black_box(9)), Err(!9), "Err");
    Ok(())
}

pub fn stack_arguments_and_wide_results_come_through() -> CaseResult {
    let funcs = [addr!(many), addr!(big), addr!(rust_big), addr!(wide), addr!(pair), addr!(result)];
    call_all()?;
    for flags in [OpsFlags::empty(), OpsFlags::SAVE_REGS] {
        let (op, graph) = (Probe::new(), Probe::new());
        {
            let _op = Op::register(note_entry, flags, only(&funcs), op.word())?;
            let _graph = Graph::probing(graph, only(&funcs))?;
            call_all()?;
        }
        check_eq!(op.counts(), (7, 0), "entries");
        check_eq!(graph.counts(), (7, 7), "graph events");
        let value: u128 = 0x0123_4567_89ab_cdef_1122_3344_5566_7788;
        let expected = value.rotate_left(64) ^ 0xff;
        let seen = graph.log().into_iter().find(|event| event.is_return && event.func == addr!(wide));
        let halves = [expected as usize, (expected >> 64) as usize];
        check_eq!(
            seen.map(|event| [event.values[0], event.values[1]]),
            Some(halves),
            "both return registers"
        );
    }
    call_all()
}

pub fn vector_registers_come_through() -> CaseResult {
    machine::vectors()
}

#[cfg(target_arch = "aarch64")]
mod arm64 {
    use super::{FtraceRegs, Io};
    use core::mem::offset_of;

    #[cfg(target_feature = "neon")]
    mod vectors;
    #[cfg(target_feature = "neon")]
    pub use vectors::vectors;

    /// x0 to x15, x18 to x29.
    pub const COUNT: usize = 28;

    pub const NAMES: [&str; COUNT] = [
        "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15",
        "x18", "x19", "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28", "x29",
    ];

    /// Whether the callee loads a new value: all that a callee may change.
    pub fn is_scratch(n: usize) -> bool {
        n <= 16
    }

    /// All that the regs flavour shows, by index.
    pub fn shown(fregs: &FtraceRegs) -> impl Iterator<Item = (usize, usize)> + '_ {
        (0..COUNT).map(|n| match n {
            0..=15 => (n, fregs.x[n]),
            27 => (n, fregs.fp),
            _ => (n, fregs.x[n + 2]),
        })
    }

    #[cfg(not(target_feature = "neon"))]
    pub fn vectors() -> crate::cases::CaseResult {
        Err(crate::cases::Outcome::Skipped("this target keeps Rust from vector registers"))
    }

    core::arch::global_asm!(
        // loads or stores all registers at x16 + offset
        ".macro case_all op, pair, offset",
        "\\pair x0, x1, [x16, #\\offset]",
        "\\pair x2, x3, [x16, #\\offset + 16]",
        "\\pair x4, x5, [x16, #\\offset + 32]",
        "\\pair x6, x7, [x16, #\\offset + 48]",
        "\\pair x8, x9, [x16, #\\offset + 64]",
        "\\pair x10, x11, [x16, #\\offset + 80]",
        "\\pair x12, x13, [x16, #\\offset + 96]",
        "\\pair x14, x15, [x16, #\\offset + 112]",
        "\\op x18, [x16, #\\offset + 128]",
        ".endm",
        ".macro case_rest op, pair, offset",
        "\\pair x19, x20, [x16, #\\offset + 136]",
        "\\pair x21, x22, [x16, #\\offset + 152]",
        "\\pair x23, x24, [x16, #\\offset + 168]",
        "\\pair x25, x26, [x16, #\\offset + 184]",
        "\\pair x27, x28, [x16, #\\offset + 200]",
        "\\op x29, [x16, #\\offset + 216]",
        ".endm",
        ".macro case_io",
        "adrp x16, CASE_REGISTERS_IO",
        "ldr x16, [x16, #:lo12:CASE_REGISTERS_IO]",
        ".endm",
        ".pushsection .text.case_registers, \"ax\", @progbits",
        ".balign 16",
        // NAME(io): x0 = io. Calls the callee of the name.
        ".macro case_calls name, callee",
        ".globl \\name",
        "\\name:",
        "hint #34", // bti c: it is called by address
        "stp x29, x30, [sp, #-112]!",
        "stp x19, x20, [sp, #16]",
        "stp x21, x22, [sp, #32]",
        "stp x23, x24, [sp, #48]",
        "stp x25, x26, [sp, #64]",
        "stp x27, x28, [sp, #80]",
        "str x18, [sp, #96]",
        "add x16, x0, #{before}",
        "case_all ldr, ldp, 0",
        "case_rest ldr, ldp, 0",
        "bl \\callee",
        "case_io",
        "add x16, x16, #{after}",
        "case_all str, stp, 0",
        "case_rest str, stp, 0",
        "ldp x19, x20, [sp, #16]",
        "ldp x21, x22, [sp, #32]",
        "ldp x23, x24, [sp, #48]",
        "ldp x25, x26, [sp, #64]",
        "ldp x27, x28, [sp, #80]",
        "ldr x18, [sp, #96]",
        "ldp x29, x30, [sp], #112",
        "ret",
        ".endm",
        "case_calls case_registers, case_registers_callee",
        "case_calls case_registers_prefixed, case_registers_prefixed_callee",
        // The traced function.
        ".macro case_body",
        "case_io",
        "add x16, x16, #{at_entry}",
        "case_all str, stp, 0",
        "case_rest str, stp, 0",
        "case_io",
        "add x16, x16, #{at_return}",
        "case_all ldr, ldp, 0",
        "ret",
        ".endm",
        // With the sleds a compiler would have made, of both layouts.
        ".balign 16",
        ".globl case_registers_callee",
        ".type case_registers_callee, %function",
        "case_registers_callee:",
        "2: nop",
        "nop",
        "case_body",
        ".size case_registers_callee, . - case_registers_callee",
        ".balign 16",
        "3: nop",
        "nop",
        ".globl case_registers_prefixed_callee",
        ".type case_registers_prefixed_callee, %function",
        "case_registers_prefixed_callee:",
        "nop",
        "nop",
        "case_body",
        ".size case_registers_prefixed_callee, . - case_registers_prefixed_callee",
        ".popsection",
        ".pushsection __patchable_function_entries, \"awo\", @progbits, .text.case_registers",
        ".balign 8",
        ".quad 2b",
        ".quad 3b",
        ".popsection",
        ".purgem case_all",
        ".purgem case_rest",
        ".purgem case_io",
        ".purgem case_calls",
        ".purgem case_body",
        before = const offset_of!(Io, before),
        at_entry = const offset_of!(Io, at_entry),
        at_return = const offset_of!(Io, at_return),
        after = const offset_of!(Io, after),
    );
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use super::{FtraceRegs, Io};
    use crate::cases::{CaseResult, Outcome};
    use core::mem::offset_of;

    /// Every general register but rsp, and r11, which no call keeps.
    pub const COUNT: usize = 14;

    pub const NAMES: [&str; COUNT] =
        ["rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "rbx", "rbp", "r12", "r13", "r14", "r15"];

    /// Whether the callee loads a new value: all that a callee may change.
    pub fn is_scratch(n: usize) -> bool {
        n <= 7
    }

    /// All that the regs flavour shows, by index.
    pub fn shown(fregs: &FtraceRegs) -> impl Iterator<Item = (usize, usize)> + '_ {
        let f = fregs;
        [f.rax, f.rcx, f.rdx, f.rsi, f.rdi, f.r8, f.r9, f.r10, f.rbx, f.rbp, f.r12, f.r13, f.r14, f.r15]
            .into_iter()
            .enumerate()
    }

    pub fn vectors() -> CaseResult {
        Err(Outcome::Skipped("this target keeps Rust from vector registers"))
    }

    core::arch::global_asm!(
        ".macro case_store offset",
        "mov [r11 + \\offset], rax",
        "mov [r11 + \\offset + 8], rcx",
        "mov [r11 + \\offset + 16], rdx",
        "mov [r11 + \\offset + 24], rsi",
        "mov [r11 + \\offset + 32], rdi",
        "mov [r11 + \\offset + 40], r8",
        "mov [r11 + \\offset + 48], r9",
        "mov [r11 + \\offset + 56], r10",
        "mov [r11 + \\offset + 64], rbx",
        "mov [r11 + \\offset + 72], rbp",
        "mov [r11 + \\offset + 80], r12",
        "mov [r11 + \\offset + 88], r13",
        "mov [r11 + \\offset + 96], r14",
        "mov [r11 + \\offset + 104], r15",
        ".endm",
        ".macro case_load offset",
        "mov rax, [r11 + \\offset]",
        "mov rcx, [r11 + \\offset + 8]",
        "mov rdx, [r11 + \\offset + 16]",
        "mov rsi, [r11 + \\offset + 24]",
        "mov rdi, [r11 + \\offset + 32]",
        "mov r8, [r11 + \\offset + 40]",
        "mov r9, [r11 + \\offset + 48]",
        "mov r10, [r11 + \\offset + 56]",
        ".endm",
        ".macro case_load_rest offset",
        "mov rbx, [r11 + \\offset + 64]",
        "mov rbp, [r11 + \\offset + 72]",
        "mov r12, [r11 + \\offset + 80]",
        "mov r13, [r11 + \\offset + 88]",
        "mov r14, [r11 + \\offset + 96]",
        "mov r15, [r11 + \\offset + 104]",
        ".endm",
        ".pushsection .text.case_registers, \"ax\", @progbits",
        ".balign 16",
        // NAME(io): rdi = io. Calls the callee of the name.
        ".macro case_calls name, callee",
        ".globl \\name",
        "\\name:",
        "endbr64", // it is called by address
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "sub rsp, 8",
        "mov r11, rdi",
        "case_load {before}",
        "case_load_rest {before}",
        "call \\callee",
        "mov r11, qword ptr [rip + CASE_REGISTERS_IO]",
        "case_store {after}",
        "add rsp, 8",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
        ".endm",
        "case_calls case_registers, case_registers_callee",
        "case_calls case_registers_prefixed, case_registers_prefixed_callee",
        // The traced function.
        ".macro case_body",
        "mov r11, qword ptr [rip + CASE_REGISTERS_IO]",
        "case_store {at_entry}",
        "case_load {at_return}",
        "ret",
        ".endm",
        // With the sleds a compiler would have made, of both layouts.
        ".balign 16",
        ".globl case_registers_callee",
        ".type case_registers_callee, @function",
        "case_registers_callee:",
        "2: .byte 0x0f, 0x1f, 0x44, 0x00, 0x08",
        "case_body",
        ".size case_registers_callee, . - case_registers_callee",
        ".balign 16",
        "3: .fill 16, 1, 0x90",
        ".globl case_registers_prefixed_callee",
        ".type case_registers_prefixed_callee, @function",
        "case_registers_prefixed_callee:",
        ".byte 0x66, 0x90",
        "case_body",
        ".size case_registers_prefixed_callee, . - case_registers_prefixed_callee",
        ".popsection",
        ".pushsection __patchable_function_entries, \"awo\", @progbits, .text.case_registers",
        ".balign 8",
        ".quad 2b",
        ".quad 3b",
        ".popsection",
        ".purgem case_calls",
        ".purgem case_body",
        ".purgem case_store",
        ".purgem case_load",
        ".purgem case_load_rest",
        before = const offset_of!(Io, before),
        at_entry = const offset_of!(Io, at_entry),
        at_return = const offset_of!(Io, at_return),
        after = const offset_of!(Io, after),
    );
}
