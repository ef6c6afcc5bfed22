//! What a case needs to know of x86_64.

use super::Branch;
use std::arch::{asm, global_asm};
use std::mem::offset_of;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Relaxed};

use fgraph::{CpuWords, CurrentTask, FtraceRegs, TaskRegister};

use crate::process::{TRAPS, Thread};

/// The registers that cases load, compare and note; the assembly knows its layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Registers {
    /// By their numbers: rax rcx rdx rbx rsp rbp rsi rdi r8 to r15.
    pub general: [usize; 16],
    /// xmm0 to xmm15.
    pub vector: [[u64; 2]; 16],
}

/// How many general registers there are.
pub const GENERAL: usize = 16;
/// The two that carry results.
pub const RESULTS: [usize; 2] = [0, 2];
/// The stack pointer.
pub const SP: usize = 4;
/// Those that carry arguments, in their order.
pub const ARGUMENTS: [usize; 6] = [7, 6, 2, 1, 8, 9];
/// The one that is lost at a function's entry and at its return, and the stack pointer, which is never loaded.
pub const NOT_KEPT: &[usize] = &[11, SP];
/// Those that a function gives back as they were.
pub const CALLEE_SAVED: &[usize] = &[3, 5, 12, 13, 14, 15];
/// Vector registers that carry arguments, and so must come through; the others belong to the callee.
pub const VECTORS_KEPT: usize = 8;

impl Registers {
    /// No register holds anything.
    pub const ZERO: Self = Self { general: [0; 16], vector: [[0; 2]; 16] };
}

/// The general registers of a block that the regs trampoline filled; 0 for those that it does not keep.
#[inline(always)]
pub fn general_of(fregs: &FtraceRegs) -> [usize; 16] {
    [
        fregs.rax, fregs.rcx, fregs.rdx, fregs.rbx, fregs.rsp, fregs.rbp, fregs.rsi, fregs.rdi, fregs.r8,
        fregs.r9, fregs.r10, 0, fregs.r12, fregs.r13, fregs.r14, fregs.r15,
    ]
}

/// Changes the second result register.
#[inline(always)]
pub fn set_second_result(fregs: &mut FtraceRegs, value: usize) {
    fregs.rdx = value;
}

/// What the assembly and the cases share.
pub static mut SAW: Registers = Registers::ZERO;
/// As above.
pub static mut GIVES: Registers = Registers::ZERO;
static CATCHER: AtomicUsize = AtomicUsize::new(0);

global_asm!(
    ".set LIVE_VECTORS, {vectors}",
    ".set LIVE_PREFIX, {prefix}",
    include_str!("x86_64.s"),
    vectors = const offset_of!(Registers, vector),
    prefix = const PREFIX,
    saw = sym SAW,
    gives = sym GIVES,
    catcher = sym CATCHER,
);

/// See [`fgraph::Platform::CURRENT`]: `gs` is free in a Linux program, and its base is made the thread's.
pub const CURRENT: CurrentTask =
    CurrentTask { register: TaskRegister::Gs, offset: offset_of!(Thread, current) };

/// See [`fgraph::Platform::WORDS`].
pub const WORDS: Option<CpuWords> = Some(CpuWords {
    preempt_count: offset_of!(Thread, counts),
    cpu: offset_of!(Thread, id),
    cpus: fgraph::MAX_CPUS,
});

/// The calling thread; null if it is not traced. Every thread that asks has been given a base, or was started by one that had.
#[inline(always)]
pub fn current() -> *const Thread {
    let thread;
    // SAFETY: a load from what `set_current` made the base.
    unsafe {
        asm!("mov {}, gs:[{offset}]", out(reg) thread, offset = const offset_of!(Thread, current),
            options(nostack, preserves_flags, readonly));
    }
    thread
}

/// Makes `thread` the current one; null is a thread that is not traced.
pub fn set_current(thread: *const Thread) {
    const ARCH_SET_GS: libc::c_int = 0x1001;
    // Of one that is not traced, only the word is looked at.
    static NOBODY: [AtomicUsize; size_of::<Thread>() / size_of::<usize>()] =
        [const { AtomicUsize::new(0) }; size_of::<Thread>() / size_of::<usize>()];
    let base: *const () = if thread.is_null() { NOBODY.as_ptr().cast() } else { thread.cast() };
    // SAFETY: nothing else in a Linux program uses `gs`.
    let done = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SET_GS, base) };
    assert_eq!(done, 0, "arch_prctl(2): {}", std::io::Error::last_os_error());
}

/// Overwrites every register that a callback may, vector registers included.
#[inline(always)]
pub fn clobber() {
    // SAFETY: all that is written is declared.
    unsafe {
        asm!(
            "mov rax, -0x2152411021524111",
            ".irp r, rcx, rdx, rsi, rdi, r8, r9, r10, r11",
            "mov \\r, rax",
            ".endr",
            ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
            "movq xmm\\n, rax",
            "punpcklqdq xmm\\n, xmm\\n",
            ".endr",
            "cmp rax, 0",
            out("rax") _,
            clobber_abi("C"),
            options(nostack, nomem),
        );
    }
}

/// The bytes of a sled, and the most that a landing pad before it takes.
pub const SLED: usize = if cfg!(prefixed_sites) { 2 } else { 5 };
/// As above.
pub const PAD: usize = 4;
/// Whether text is the same for all that users may need.
pub const ONE_WAY_ON: bool = cfg!(prefixed_sites);
/// What stands before the function.
pub const PREFIX: usize = if cfg!(prefixed_sites) { 16 } else { 0 };

/// Whether a function with these first bytes begins with a landing pad.
pub fn is_landing_pad(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0xf3, 0x0f, 0x1e, 0xfa])
}

/// NOPs that fill a sled, and are not those that a Rust compiler puts there.
pub const OTHER_NOPS: [u8; SLED] = [0x90; SLED];
/// What no compiler puts there.
pub const NO_SLED: [u8; SLED] = {
    let mut bytes = [0x90; SLED];
    bytes[0] = 0xc3;
    bytes
};
/// How many writes, each followed by a synchronisation, change a site. While one is under way, whoever comes there traps.
pub const STEPS: usize = 3;
/// Whether [`stepped`] works.
pub const CAN_STEP: bool = true;

/// Lets the tracer go on from breakpoints at sites that are being patched.
pub fn catch_traps() {
    // SAFETY: all zeros are a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_trap as *const () as usize;
    // A handler that interrupts this one may run into a breakpoint, too.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_RESTART;
    // SAFETY: the handler only uses what a handler may.
    let done = unsafe { libc::sigaction(libc::SIGTRAP, &raw const action, std::ptr::null_mut()) };
    assert_eq!(done, 0);
}

/// Makes text that was written visible to whoever runs it: here it is.
pub fn flush(_addr: usize, _len: usize) {}

/// What is called after every instruction while [`stepped`] runs.
static STEP: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

#[unsafe(link_section = ".text.notrace")]
extern "C" fn on_trap(_signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel's, for this handler alone.
    let (code, registers) =
        unsafe { ((*info).si_code, &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs) };
    if code == libc::TRAP_TRACE {
        let step = STEP.load(Relaxed);
        if !step.is_null() {
            // SAFETY: only `stepped` sets it, from a function of this type.
            let step: fn(usize, usize) = unsafe { std::mem::transmute(step) };
            let [ip, sp] =
                [libc::REG_RIP, libc::REG_RSP].map(|register| registers[register as usize] as usize);
            step(ip, sp);
        }
        return;
    }
    match fgraph::breakpoint(registers[libc::REG_RIP as usize] as usize) {
        Some(resume) => {
            TRAPS.fetch_add(1, Relaxed);
            registers[libc::REG_RIP as usize] = resume.rip as i64;
            registers[libc::REG_R11 as usize] = resume.r11 as i64;
        }
        None => std::process::abort(),
    }
}

/// What an instruction does to the processor's own list of return addresses, if it has one (a shadow stack, or the predictor's).
pub fn branch_at(ip: usize) -> Branch {
    // Prefixes: operand size, repeats, segments and notrack, REX.
    let mut at = ip;
    // SAFETY: the instruction was just run, and text can be read.
    let byte = |at: usize| unsafe { std::ptr::with_exposed_provenance::<u8>(at).read() };
    while matches!(byte(at), 0x66 | 0xf2 | 0xf3 | 0x3e | 0x2e | 0x40..=0x4f) {
        at += 1;
    }
    match byte(at) {
        0xe8 => Branch::Call,
        // The group whose third is an indirect call.
        0xff if byte(at + 1) >> 3 & 7 == 2 => Branch::Call,
        0xc3 | 0xc2 => Branch::Return,
        _ => Branch::Other,
    }
}

/// Runs `body`, and after each of its instructions `step`, with the address of the next one and the stack pointer. Both must be outside tracing;
/// what `body` calls need not.
pub fn stepped(body: extern "C" fn(), step: fn(usize, usize)) {
    STEP.store(step as *mut (), Relaxed);
    // SAFETY: the trap flag makes the processor trap after every instruction, which the handler returns from as if
    // nothing had been. The stack is aligned for the call by hand.
    unsafe {
        asm!(
            "mov r12, rsp",
            "and rsp, -16",
            "pushfq",
            "or qword ptr [rsp], 0x100",
            "popfq",
            "call {body}",
            "pushfq",
            "and qword ptr [rsp], -0x101",
            "popfq",
            "mov rsp, r12",
            body = in(reg) body,
            out("r12") _,
            clobber_abi("C"),
        );
    }
    STEP.store(std::ptr::null_mut(), Relaxed);
}
