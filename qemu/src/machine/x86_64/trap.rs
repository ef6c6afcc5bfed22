//! Traps: the 256 entries, the frame that is saved, and what is done with each kind.
//!
//! Everything here is outside tracing but the functions called between `irq_enter` and `irq_exit`. A trap
//! saves the interrupted registers behind a frame record, so that a walk along frame pointers goes through it
//! into the interrupted function.

use core::{
    arch::{asm, global_asm},
    mem::{self, offset_of, size_of},
    ptr,
    sync::atomic::{AtomicBool, AtomicPtr, Ordering},
};

use fgraph::unwind::Registers;

use super::apic;
use crate::{
    console::emergency,
    context,
    machine::{self, Exit},
    nmi, panic,
};

// Vectors with a meaning of their own here; Intel SDM volume 3, 7.3.1 has them all.
pub(super) const NMI: usize = 2;
const BREAKPOINT: usize = 3;
pub(super) const DOUBLE_FAULT: usize = 8;
const PAGE_FAULT: usize = 14;
pub(super) const MACHINE_CHECK: usize = 18;
/// From here on vectors are interrupts.
const FIRST_INTERRUPT: usize = 32;

/// The exceptions for which the CPU pushes an error code, by bit.
const WITH_ERROR_CODE: u32 =
    1 << 8 | 1 << 10 | 1 << 11 | 1 << 12 | 1 << 13 | 1 << 14 | 1 << 17 | 1 << 21 | 3 << 29;

/// The registers of an interrupted context, as the trap entry leaves them on the stack. What a handler changes
/// here, but for the record, the interrupted context finds changed.
#[repr(C)]
pub struct TrapFrame {
    r15: u64,
    r14: u64,
    r13: u64,
    r12: u64,
    r11: u64,
    r10: u64,
    r9: u64,
    r8: u64,
    rdi: u64,
    rsi: u64,
    rdx: u64,
    rcx: u64,
    rbx: u64,
    rax: u64,
    /// The interrupted frame pointer, and the first half of the frame record. rbp points here in the handlers.
    rbp: u64,
    /// The second half: `rip` as it was.
    record_ip: u64,
    /// What the CPU pushed for the exception, or 0.
    error_code: u64,
    /// Where the trap came, and where it returns to.
    rip: u64,
    cs: u64,
    rflags: u64,
    rsp: u64,
    ss: u64,
}

const _: () = assert!(size_of::<TrapFrame>() == 22 * 8 && size_of::<TrapFrame>().is_multiple_of(16));
const _: () = assert!(offset_of!(TrapFrame, rax) == 13 * 8);
const _: () = assert!(offset_of!(TrapFrame, record_ip) == offset_of!(TrapFrame, rbp) + 8);
const _: () = assert!(offset_of!(TrapFrame, error_code) == offset_of!(TrapFrame, record_ip) + 8);
const _: () = assert!(offset_of!(TrapFrame, rip) == offset_of!(TrapFrame, error_code) + 8);
// What the way out of a breakpoint rests on.
const _: () = assert!(offset_of!(TrapFrame, rsp) == offset_of!(TrapFrame, rip) + 3 * 8);

impl TrapFrame {
    /// Where the context was interrupted.
    #[inline(always)]
    pub fn ip(&self) -> usize {
        self.rip as usize
    }

    /// Its stack pointer.
    #[inline(always)]
    pub fn sp(&self) -> usize {
        self.rsp as usize
    }

    /// Its frame pointer.
    #[inline(always)]
    pub fn fp(&self) -> usize {
        self.rbp as usize
    }

    /// What a stack walk starts from.
    #[inline(always)]
    pub fn registers(&self) -> Registers {
        let (mut pc, mut sp) = (self.ip(), self.sp());
        // An interrupt at the end of a breakpoint: what that was in goes on with the next instruction.
        let word = ptr::with_exposed_provenance::<usize>(sp);
        if pc == fgraph_demo_breakpoint_return as *const () as usize
            && super::readable(sp, size_of::<usize>())
        {
            // SAFETY: aligned, as the end of a breakpoint has left it, and readable, as just tested.
            pc = unsafe { word.read_volatile() };
            sp += size_of::<usize>();
        }
        Registers { pc, sp, fp: self.fp(), link: 0, scratch: [self.r11 as usize, 0] }
    }

    /// Makes the context go on at `ip`.
    ///
    /// # Safety
    ///
    /// `ip` must be code that can run with the registers that the context has.
    #[inline(always)]
    pub unsafe fn set_ip(&mut self, ip: usize) {
        self.rip = ip as u64;
    }

    /// Changes the context's r11.
    ///
    /// # Safety
    ///
    /// The code where the context goes on can run with it.
    #[inline(always)]
    pub unsafe fn set_r11(&mut self, value: usize) {
        self.r11 = value as u64;
    }
}

// Each vector has 16 bytes. All of them begin with a landing pad, push 0 in place of an error code, if there is none, and their number,
// and share the rest. The CPU aligns rsp to 16 before it pushes five words; interrupts are off.
//
//   rsp by the CPU ->  +---------------------------+
//                      | ss, rsp, rflags, cs, rip  |
//                      | error code                |
//                      | rip again (number before) |  the frame record
//                      | rbp                       |  <- rbp in the handler
//                      | rax ... r15               |
//              rsp ->  +---------------------------+  = &TrapFrame
//
// The handler is called as handler(rdi: &mut TrapFrame, rsi: number), interrupts off, and returns so.
//
// The breakpoint returns without iretq, which would let the next NMI in: if the breakpoint was hit in an NMI
// handler, that one would start on top of the stack that the first is still using. So rip and rflags go right
// below the interrupted stack, for popf and ret. They may take the place of ss and rsp, which have been read by
// then, but not of rip, where rsp waits for its turn.
global_asm!(
    ".set FRAME_RECORD_IP, {record_ip}",
    ".set FRAME_RIP, {rip}",
    ".set FRAME_RFLAGS, {rflags}",
    ".set FRAME_RSP, {rsp}",

    ".macro fgraph_demo_save",
    "    cld",
    "    push rbp",
    "    mov  rbp, rsp",                        // the frame chain goes on into the interrupted function
    "    push rax",
    "    push rbx",
    "    push rcx",
    "    push rdx",
    "    push rsi",
    "    push rdi",
    "    push r8",
    "    push r9",
    "    push r10",
    "    push r11",
    "    push r12",
    "    push r13",
    "    push r14",
    "    push r15",
    "    mov  rdi, rsp",                        // frame
    "    mov  rsi, [rsp + FRAME_RECORD_IP]",    // number
    "    mov  rax, [rsp + FRAME_RIP]",
    "    mov  [rsp + FRAME_RECORD_IP], rax",
    ".endm",

    ".macro fgraph_demo_restore",
    "    pop  r15",
    "    pop  r14",
    "    pop  r13",
    "    pop  r12",
    "    pop  r11",
    "    pop  r10",
    "    pop  r9",
    "    pop  r8",
    "    pop  rdi",
    "    pop  rsi",
    "    pop  rdx",
    "    pop  rcx",
    "    pop  rbx",
    "    pop  rax",
    "    pop  rbp",
    ".endm",

    ".pushsection .text.notrace.vectors, \"ax\", @progbits",
    ".global fgraph_demo_vectors",
    ".type fgraph_demo_vectors, @function",
    ".balign 16",
    "fgraph_demo_vectors:",
    ".set fgraph_demo_number, 0",
    ".rept 256",
    ".balign 16",
    "    endbr64",
    ".if fgraph_demo_number >= 32 || ({with_error_code} >> (fgraph_demo_number & 31)) & 1 == 0",
    "    push 0",
    ".endif",
    "    push fgraph_demo_number",
    ".if fgraph_demo_number == {breakpoint}",
    "    jmp  3f",
    ".else",
    "    jmp  2f",
    ".endif",
    ".set fgraph_demo_number, fgraph_demo_number + 1",
    ".endr",
    ".balign 16",

    "2:  fgraph_demo_save",
    "    call {handler}",
    "    fgraph_demo_restore",
    "    add  rsp, 16",                         // the record's rip, error code
    "    iretq",

    "3:  fgraph_demo_save",
    "    call {handler}",
    "    mov  rax, [rsp + FRAME_RSP]",
    "    mov  rcx, [rsp + FRAME_RIP]",
    "    mov  rdx, [rsp + FRAME_RFLAGS]",
    "    mov  [rax - 8], rcx",
    "    mov  [rax - 16], rdx",
    "    sub  rax, 16",
    "    mov  [rsp + FRAME_RIP], rax",          // what rsp will be for popf
    "    fgraph_demo_restore",
    "    mov  rsp, [rsp + FRAME_RIP - FRAME_RECORD_IP]",
    "    popfq",                                // an interrupt may come in from here on
    ".global fgraph_demo_breakpoint_return",
    "fgraph_demo_breakpoint_return:",
    "    ret",
    "    .size fgraph_demo_vectors, . - fgraph_demo_vectors",
    ".global fgraph_demo_vectors_end",
    "fgraph_demo_vectors_end:",
    ".popsection",
    record_ip = const offset_of!(TrapFrame, record_ip),
    rip = const offset_of!(TrapFrame, rip),
    rflags = const offset_of!(TrapFrame, rflags),
    rsp = const offset_of!(TrapFrame, rsp),
    breakpoint = const BREAKPOINT,
    with_error_code = const WITH_ERROR_CODE,
    handler = sym handle,
);

unsafe extern "C" {
    /// The first entry; not a function to call.
    fn fgraph_demo_vectors();
    /// The `ret` by which a breakpoint goes on; everything but the address has been restored.
    fn fgraph_demo_breakpoint_return();
    /// Behind the last instruction.
    fn fgraph_demo_vectors_end();
}

/// If `pc` is where a handler returns to the trap entry, whose frame record stands at `record`: the registers of what was
/// interrupted.
#[unsafe(link_section = ".text.notrace")]
pub fn interrupted(pc: usize, record: usize) -> Option<Registers> {
    let entry = fgraph_demo_vectors as *const () as usize..fgraph_demo_vectors_end as *const () as usize;
    let frame = record.wrapping_sub(offset_of!(TrapFrame, rbp));
    if !entry.contains(&pc)
        || !frame.is_multiple_of(mem::align_of::<TrapFrame>())
        || !super::readable(frame, size_of::<TrapFrame>())
    {
        return None;
    }
    // SAFETY: aligned and readable, as just tested; any bytes are a trap frame, and a handler is at work on it.
    let frame = unsafe { &*ptr::with_exposed_provenance::<TrapFrame>(frame) };
    Some(frame.registers())
}

/// Where the entry of `vector` is.
pub(super) fn stub(vector: usize) -> usize {
    fgraph_demo_vectors as *const () as usize + 16 * vector
}

/// What is asked about each breakpoint; null, or a `fn(&mut TrapFrame) -> bool`.
static BREAKPOINT_HOOK: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

/// Makes `hook` what is asked about each breakpoint: whether it was one of the hook's, and has been handled.
///
/// It runs in the interrupted context, which may be any, with interrupts off, and must not be traced. `ip` is
/// behind the breakpoint.
pub fn set_breakpoint_hook(hook: fn(&mut TrapFrame) -> bool) {
    BREAKPOINT_HOOK.store(hook as *mut (), Ordering::Release);
}

/// Every trap.
#[unsafe(link_section = ".text.notrace")]
extern "C" fn handle(frame: &mut TrapFrame, vector: usize) {
    match vector {
        FIRST_INTERRUPT.. => {
            context::irq_enter();
            apic::dispatch(vector);
            context::irq_exit();
        }
        NMI => nmi::handle(frame),
        BREAKPOINT => {
            let hook = BREAKPOINT_HOOK.load(Ordering::Acquire);
            if hook.is_null() {
                die(frame, vector);
            }
            // SAFETY: not null, so `set_breakpoint_hook` stored it.
            let hook = unsafe { mem::transmute::<*mut (), fn(&mut TrapFrame) -> bool>(hook) };
            if !hook(frame) {
                die(frame, vector);
            }
        }
        _ => die(frame, vector),
    }
}

/// What an exception is called.
#[unsafe(link_section = ".text.notrace")]
fn name(vector: usize, error_code: u64) -> &'static str {
    match vector {
        0 => "division error",
        1 => "debug exception",
        BREAKPOINT => "breakpoint",
        4 => "overflow",
        5 => "out of bounds",
        6 => "undefined instruction",
        7 => "floating point",
        DOUBLE_FAULT => "double fault",
        10 => "bad task state segment",
        11 => "segment not present",
        12 => "stack segment fault",
        13 => "general protection fault",
        PAGE_FAULT if error_code & 1 << 4 != 0 => "instruction fetch fault",
        PAGE_FAULT if error_code & 1 << 1 != 0 => "write fault",
        PAGE_FAULT => "read fault",
        17 => "misaligned access",
        MACHINE_CHECK => "machine check",
        19 => "vector floating point",
        _ => "exception",
    }
}

/// Something is being reported already.
static DYING: AtomicBool = AtomicBool::new(false);

/// Shows everything and leaves QEMU.
#[unsafe(link_section = ".text.notrace")]
fn die(frame: &TrapFrame, vector: usize) -> ! {
    panic::take_over();
    if DYING.swap(true, Ordering::Relaxed) {
        machine::exit(Exit::Crashed);
    }
    let address: u64;
    // SAFETY: reads CR2.
    unsafe { asm!("mov {}, cr2", out(reg) address, options(nomem, nostack, preserves_flags)) };
    emergency!(
        "trap: {} at {:#018x}, address {address:#018x}, vector {vector}, error code {:#x}",
        name(vector, frame.error_code),
        frame.rip,
        frame.error_code
    );
    emergency!("  rax {:#018x}  rbx {:#018x}  rcx {:#018x}", frame.rax, frame.rbx, frame.rcx);
    emergency!("  rdx {:#018x}  rsi {:#018x}  rdi {:#018x}", frame.rdx, frame.rsi, frame.rdi);
    emergency!("  r8  {:#018x}  r9  {:#018x}  r10 {:#018x}", frame.r8, frame.r9, frame.r10);
    emergency!("  r11 {:#018x}  r12 {:#018x}  r13 {:#018x}", frame.r11, frame.r12, frame.r13);
    emergency!("  r14 {:#018x}  r15 {:#018x}  rbp {:#018x}", frame.r14, frame.r15, frame.rbp);
    emergency!(
        "  rsp {:#018x}  rflags {:#x}  cs {:#x}  ss {:#x}",
        frame.rsp,
        frame.rflags,
        frame.cs,
        frame.ss
    );
    panic::trap_context(frame);
    machine::exit(Exit::Crashed);
}
