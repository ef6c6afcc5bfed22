//! Exceptions: the vectors, the frame that is saved, and what is done with each kind.
//!
//! Everything here is outside tracing but the functions called between `irq_enter` and `irq_exit`. A trap
//! saves the interrupted registers on the stack of the task it interrupted, behind a frame record, so that a
//! walk along frame pointers goes through it into the interrupted function.

use core::{
    arch::{asm, global_asm},
    mem::{align_of, offset_of, size_of},
    ptr,
    sync::atomic::{AtomicBool, Ordering},
};

use fgraph::unwind::Registers;

use super::{
    cpu::{self, HAS_VECTORS},
    gic, guard,
};
use crate::{
    console::emergency,
    context,
    machine::{self, Exit},
    nmi, panic,
};

/// The registers of an interrupted context, as the trap entry leaves them on the stack.
#[repr(C)]
pub struct TrapFrame {
    /// x0 to x30.
    x: [u64; 31],
    /// The stack pointer when the trap came.
    sp: u64,
    /// `ELR_EL1`: where the trap came, and where it returns to.
    pc: u64,
    /// `SPSR_EL1`.
    pstate: u64,
    /// The frame record: the interrupted frame pointer, and `pc` as the return address. x29 points here in
    /// the handlers.
    record: [u64; 2],
    /// q0 to q31, then `FPCR` and `FPSR`; nothing where code has no vector registers. Of q8 to q15 handlers keep the
    /// lower halves only.
    vectors: [[u64; 2]; VECTOR_PAIRS],
}

const VECTOR_PAIRS: usize = if HAS_VECTORS { 33 } else { 0 };

const _: () =
    assert!(size_of::<TrapFrame>() == 288 + 16 * VECTOR_PAIRS && size_of::<TrapFrame>().is_multiple_of(16));
const _: () = assert!(offset_of!(TrapFrame, sp) == offset_of!(TrapFrame, x) + 31 * 8);
const _: () = assert!(offset_of!(TrapFrame, pstate) == offset_of!(TrapFrame, pc) + 8);

impl TrapFrame {
    /// Where the context was interrupted.
    #[inline(always)]
    pub fn ip(&self) -> usize {
        self.pc as usize
    }

    /// Its stack pointer.
    #[inline(always)]
    pub fn sp(&self) -> usize {
        self.sp as usize
    }

    /// Its frame pointer.
    #[inline(always)]
    pub fn fp(&self) -> usize {
        self.x[29] as usize
    }

    /// What a stack walk starts from.
    #[inline(always)]
    pub fn registers(&self) -> Registers {
        let [scratch @ .., link] = [16, 17, 30].map(|n| self.x[n] as usize);
        Registers { pc: self.ip(), sp: self.sp(), fp: self.fp(), link, scratch }
    }
}

// Each vector has 32 instructions. All of them save x0 and x1, say in x0 which vector they are and in x1
// which handler is theirs, and share the rest. SP_EL1 is the interrupted task's stack, 16-aligned by
// SCTLR_EL1.SA.
//
//   interrupted sp ->  +---------------------------+
//                      | FPCR, FPSR                |  \ only with vector registers
//                      | q0 ... q31                |  /
//                      | record: x29, ELR          |  <- x29 in the handler
//                      | pc, pstate                |
//                      | x30, sp                   |
//                      | x0 ... x29                |
//               sp ->  +---------------------------+  = &TrapFrame
//
// The handler is called as handler(x0: &mut TrapFrame, x1: vector), all exceptions masked, and returns so.
global_asm!(
    ".set FRAME_SIZE, {size}",
    ".set FRAME_X, {x}",
    ".set FRAME_SP, {sp}",
    ".set FRAME_PC, {pc}",
    ".set FRAME_RECORD, {record}",
    ".set FRAME_Q, {vectors}",
    ".set FRAME_FPCR, FRAME_Q + 16 * 32",
    ".set FRAME_HAS_VECTORS, {has_vectors}",

    // All vector registers, by op stp or ldp.
    ".macro fgraph_demo_all_vectors op",
    "    \\op  q0, q1, [sp, #FRAME_Q]",
    "    \\op  q2, q3, [sp, #FRAME_Q + 16 * 2]",
    "    \\op  q4, q5, [sp, #FRAME_Q + 16 * 4]",
    "    \\op  q6, q7, [sp, #FRAME_Q + 16 * 6]",
    "    \\op  q8, q9, [sp, #FRAME_Q + 16 * 8]",
    "    \\op  q10, q11, [sp, #FRAME_Q + 16 * 10]",
    "    \\op  q12, q13, [sp, #FRAME_Q + 16 * 12]",
    "    \\op  q14, q15, [sp, #FRAME_Q + 16 * 14]",
    "    \\op  q16, q17, [sp, #FRAME_Q + 16 * 16]",
    "    \\op  q18, q19, [sp, #FRAME_Q + 16 * 18]",
    "    \\op  q20, q21, [sp, #FRAME_Q + 16 * 20]",
    "    \\op  q22, q23, [sp, #FRAME_Q + 16 * 22]",
    "    \\op  q24, q25, [sp, #FRAME_Q + 16 * 24]",
    "    \\op  q26, q27, [sp, #FRAME_Q + 16 * 26]",
    "    \\op  q28, q29, [sp, #FRAME_Q + 16 * 28]",
    "    \\op  q30, q31, [sp, #FRAME_Q + 16 * 30]",
    ".endm",

    ".macro fgraph_demo_vector number, handler",
    ".balign 128",
    "    sub  sp, sp, #FRAME_SIZE",
    "    stp  x0, x1, [sp, #FRAME_X]",
    "    mov  x0, #\\number",
    "    adr  x1, \\handler",
    "    b    2f",
    ".endm",

    ".pushsection .text.notrace.vectors, \"ax\", %progbits",
    ".global fgraph_demo_vectors",
    ".type fgraph_demo_vectors, %function",
    ".balign 2048",
    "fgraph_demo_vectors:",
    // With SP_EL0, which is never the stack pointer here.
    "    fgraph_demo_vector 0, {unexpected}",
    "    fgraph_demo_vector 1, {unexpected}",
    "    fgraph_demo_vector 2, {unexpected}",
    "    fgraph_demo_vector 3, {unexpected}",
    // From this kernel.
    "    fgraph_demo_vector 4, {sync}",
    "    fgraph_demo_vector 5, {irq}",
    "    fgraph_demo_vector 6, {fiq}",
    "    fgraph_demo_vector 7, {unexpected}",
    // From EL0, of which there is none, 64 bits and 32 bits.
    "    fgraph_demo_vector 8, {unexpected}",
    "    fgraph_demo_vector 9, {unexpected}",
    "    fgraph_demo_vector 10, {unexpected}",
    "    fgraph_demo_vector 11, {unexpected}",
    "    fgraph_demo_vector 12, {unexpected}",
    "    fgraph_demo_vector 13, {unexpected}",
    "    fgraph_demo_vector 14, {unexpected}",
    "    fgraph_demo_vector 15, {unexpected}",
    ".balign 128",

    "2:  stp  x2, x3, [sp, #FRAME_X + 8 * 2]",
    "    stp  x4, x5, [sp, #FRAME_X + 8 * 4]",
    "    stp  x6, x7, [sp, #FRAME_X + 8 * 6]",
    "    stp  x8, x9, [sp, #FRAME_X + 8 * 8]",
    "    stp  x10, x11, [sp, #FRAME_X + 8 * 10]",
    "    stp  x12, x13, [sp, #FRAME_X + 8 * 12]",
    "    stp  x14, x15, [sp, #FRAME_X + 8 * 14]",
    "    stp  x16, x17, [sp, #FRAME_X + 8 * 16]",
    "    stp  x18, x19, [sp, #FRAME_X + 8 * 18]",
    "    stp  x20, x21, [sp, #FRAME_X + 8 * 20]",
    "    stp  x22, x23, [sp, #FRAME_X + 8 * 22]",
    "    stp  x24, x25, [sp, #FRAME_X + 8 * 24]",
    "    stp  x26, x27, [sp, #FRAME_X + 8 * 26]",
    "    stp  x28, x29, [sp, #FRAME_X + 8 * 28]",
    "    add  x9, sp, #FRAME_SIZE",
    "    mrs  x10, elr_el1",
    "    mrs  x11, spsr_el1",
    "    stp  x30, x9, [sp, #FRAME_X + 8 * 30]",  // x30 and the interrupted sp
    "    stp  x10, x11, [sp, #FRAME_PC]",
    "    stp  x29, x10, [sp, #FRAME_RECORD]",
    "    add  x29, sp, #FRAME_RECORD",            // the frame chain goes on into the interrupted function
    ".if FRAME_HAS_VECTORS",
    "    fgraph_demo_all_vectors stp",
    "    mrs  x10, fpcr",
    "    mrs  x11, fpsr",
    "    str  x10, [sp, #FRAME_FPCR]",            // too far for a pair
    "    str  x11, [sp, #FRAME_FPCR + 8]",
    "    msr  fpcr, xzr",                         // handlers round as all compiled code does
    ".endif",
    "    mov  x9, x1",
    "    mov  x1, x0",                            // vector
    "    mov  x0, sp",                            // frame
    "    blr  x9",

    ".if FRAME_HAS_VECTORS",
    "    ldr  x11, [sp, #FRAME_FPCR + 8]",
    "    ldr  x10, [sp, #FRAME_FPCR]",
    "    msr  fpsr, x11",
    "    msr  fpcr, x10",
    "    fgraph_demo_all_vectors ldp",
    ".endif",
    "    ldp  x10, x11, [sp, #FRAME_PC]",
    "    msr  elr_el1, x10",                      // nothing may trap from here on, and nothing does
    "    msr  spsr_el1, x11",
    "    ldr  x30, [sp, #FRAME_X + 8 * 30]",
    "    ldp  x28, x29, [sp, #FRAME_X + 8 * 28]",
    "    ldp  x26, x27, [sp, #FRAME_X + 8 * 26]",
    "    ldp  x24, x25, [sp, #FRAME_X + 8 * 24]",
    "    ldp  x22, x23, [sp, #FRAME_X + 8 * 22]",
    "    ldp  x20, x21, [sp, #FRAME_X + 8 * 20]",
    "    ldp  x18, x19, [sp, #FRAME_X + 8 * 18]",
    "    ldp  x16, x17, [sp, #FRAME_X + 8 * 16]",
    "    ldp  x14, x15, [sp, #FRAME_X + 8 * 14]",
    "    ldp  x12, x13, [sp, #FRAME_X + 8 * 12]",
    "    ldp  x10, x11, [sp, #FRAME_X + 8 * 10]",
    "    ldp  x8, x9, [sp, #FRAME_X + 8 * 8]",
    "    ldp  x6, x7, [sp, #FRAME_X + 8 * 6]",
    "    ldp  x4, x5, [sp, #FRAME_X + 8 * 4]",
    "    ldp  x2, x3, [sp, #FRAME_X + 8 * 2]",
    "    ldp  x0, x1, [sp, #FRAME_X]",
    "    add  sp, sp, #FRAME_SIZE",
    "    eret",
    "    .size fgraph_demo_vectors, . - fgraph_demo_vectors",
    ".global fgraph_demo_vectors_end",
    "fgraph_demo_vectors_end:",
    ".popsection",
    ".purgem fgraph_demo_all_vectors",
    size = const size_of::<TrapFrame>(),
    x = const offset_of!(TrapFrame, x),
    sp = const offset_of!(TrapFrame, sp),
    pc = const offset_of!(TrapFrame, pc),
    record = const offset_of!(TrapFrame, record),
    vectors = const offset_of!(TrapFrame, vectors),
    has_vectors = const HAS_VECTORS as usize,
    sync = sym handle_sync,
    irq = sym handle_irq,
    fiq = sym handle_fiq,
    unexpected = sym handle_unexpected,
);

unsafe extern "C" {
    /// The vector table; not a function to call.
    pub(super) fn fgraph_demo_vectors();
    /// Behind the last instruction.
    fn fgraph_demo_vectors_end();
}

/// If `pc` is where a handler returns to the trap entry, whose frame record stands at `record`: the registers of what was
/// interrupted.
#[unsafe(link_section = ".text.notrace")]
pub fn interrupted(pc: usize, record: usize) -> Option<Registers> {
    let entry = fgraph_demo_vectors as *const () as usize..fgraph_demo_vectors_end as *const () as usize;
    let frame = record.wrapping_sub(offset_of!(TrapFrame, record));
    if !entry.contains(&pc)
        || !frame.is_multiple_of(align_of::<TrapFrame>())
        || !super::readable(frame, size_of::<TrapFrame>())
    {
        return None;
    }
    // SAFETY: aligned and readable, as just tested; any bytes are a trap frame, and a handler is at work on it.
    let frame = unsafe { &*ptr::with_exposed_provenance::<TrapFrame>(frame) };
    Some(frame.registers())
}

/// A hardware interrupt.
#[unsafe(link_section = ".text.notrace")]
extern "C" fn handle_irq(_frame: &mut TrapFrame, _vector: u64) {
    context::irq_enter();
    cpu::nmis_on();
    gic::dispatch();
    context::irq_exit();
    cpu::nmis_off();
}

/// A fast interrupt: an NMI. None comes within it, because the CPU masks them until its end.
#[unsafe(link_section = ".text.notrace")]
extern "C" fn handle_fiq(frame: &mut TrapFrame, _vector: u64) {
    if let Some(taken) = gic::take_nmi() {
        nmi::handle(frame);
        gic::end_nmi(taken);
    }
}

/// `SPSR_EL1.BTYPE`: by what kind of branch the next instruction was reached.
const BTYPE: u64 = 0b11 << 10;

/// A synchronous exception: a fault, or a breakpoint. Only those of the probes have a use.
#[unsafe(link_section = ".text.notrace")]
extern "C" fn handle_sync(frame: &mut TrapFrame, _vector: u64) {
    let (syndrome, address) = syndrome();
    let class = syndrome >> 26 & 0x3f;
    if let (0x0d | 0x1c, Some(resume)) = (class, guard::after_fault(frame.ip())) {
        frame.pc = resume as u64;
        frame.pstate &= !BTYPE;
        return;
    }
    let what = match class {
        0x00 => "undefined instruction",
        0x07 => "floating point",
        0x0d => "branch to no landing pad",
        0x0e => "illegal execution state",
        0x15 => "system call",
        0x1c => "wrong signature",
        0x21 => "instruction fetch fault",
        0x22 => "misaligned pc",
        0x25 if syndrome & 1 << 6 != 0 => "write fault",
        0x25 => "read fault",
        0x26 => "misaligned sp",
        0x3c => "breakpoint",
        _ => "exception",
    };
    die(frame, what, syndrome, address)
}

/// An exception for which there is no reason at all.
#[unsafe(link_section = ".text.notrace")]
extern "C" fn handle_unexpected(frame: &mut TrapFrame, vector: u64) {
    let what = match vector {
        0..4 => "exception on SP_EL0",
        7 => "system error",
        _ => "exception from EL0",
    };
    let (syndrome, address) = syndrome();
    die(frame, what, syndrome, address)
}

/// `ESR_EL1` and `FAR_EL1`.
#[inline(always)]
fn syndrome() -> (u64, u64) {
    let (syndrome, address);
    // SAFETY: reads two registers.
    unsafe {
        asm!("mrs {}, esr_el1", "mrs {}, far_el1", out(reg) syndrome, out(reg) address,
            options(nomem, nostack, preserves_flags));
    }
    (syndrome, address)
}

/// Something is being reported already.
static DYING: AtomicBool = AtomicBool::new(false);

/// Shows everything and leaves QEMU.
#[unsafe(link_section = ".text.notrace")]
fn die(frame: &TrapFrame, what: &str, syndrome: u64, address: u64) -> ! {
    panic::take_over();
    if DYING.swap(true, Ordering::Relaxed) {
        machine::exit(Exit::Crashed);
    }
    emergency!("trap: {what} at {:#018x}, address {address:#018x}, syndrome {syndrome:#010x}", frame.ip());
    if syndrome >> 26 & 0x3f == 0x3c {
        emergency!("  brk {:#x}", syndrome & 0xffff);
    }
    let mut number = 0;
    while number < 30 {
        emergency!(
            "  x{:<2} {:#018x}  x{:<2} {:#018x}",
            number,
            frame.x[number],
            number + 1,
            frame.x[number + 1]
        );
        number += 2;
    }
    emergency!("  x30 {:#018x}  sp  {:#018x}  pstate {:#010x}", frame.x[30], frame.sp, frame.pstate);
    panic::trap_context(frame);
    machine::exit(Exit::Crashed);
}
