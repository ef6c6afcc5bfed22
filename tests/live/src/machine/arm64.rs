//! What a case needs to know of arm64. As in x86_64.rs, but for what is said here.

use super::Branch;
use std::arch::{asm, global_asm};
use std::mem::offset_of;
use std::sync::atomic::AtomicUsize;

use fgraph::{CpuWords, CurrentTask, FtraceRegs, TaskRegister};

use crate::process::Thread;

/// The registers that cases load, compare and note; the assembly knows its layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Registers {
    /// x0 to x30, and sp.
    pub general: [usize; GENERAL],
    /// v0 to v31.
    pub vector: [[u64; 2]; 32],
}

/// How many general registers there are.
pub const GENERAL: usize = 32;
/// The two that carry results.
pub const RESULTS: [usize; 2] = [0, 1];
/// The stack pointer.
pub const SP: usize = 31;
/// Those that carry arguments, in their order.
pub const ARGUMENTS: [usize; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
/// Those that are lost at a function's entry and at its return, the link register, and the stack pointer.
pub const NOT_KEPT: &[usize] = &[16, 17, 30, SP];
/// Those that a function gives back as they were.
pub const CALLEE_SAVED: &[usize] = &[19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29];
/// Vector registers that carry arguments, and so must come through.
pub const VECTORS_KEPT: usize = 8;

impl Registers {
    /// No register holds anything.
    pub const ZERO: Self = Self { general: [0; GENERAL], vector: [[0; 2]; 32] };
}

/// The general registers of a block that the regs trampoline filled.
#[inline(always)]
pub fn general_of(fregs: &FtraceRegs) -> [usize; GENERAL] {
    let mut general = [0; GENERAL];
    let mut n = 0;
    while n < fregs.x.len() {
        general[n] = fregs.x[n];
        n += 1;
    }
    general[29] = fregs.fp;
    general[30] = fregs.lr;
    general[SP] = fregs.sp;
    general
}

/// Changes the second result register.
#[inline(always)]
pub fn set_second_result(fregs: &mut FtraceRegs, value: usize) {
    fregs.x[RESULTS[1]] = value;
}

/// What the assembly and the cases share.
pub static mut SAW: Registers = Registers::ZERO;
/// As above.
pub static mut GIVES: Registers = Registers::ZERO;
static CATCHER: AtomicUsize = AtomicUsize::new(0);

global_asm!(
    ".set LIVE_VECTORS, {vectors}",
    ".set LIVE_PREFIX, {prefix}",
    include_str!("arm64.s"),
    vectors = const offset_of!(Registers, vector),
    prefix = const PREFIX,
    saw = sym SAW,
    gives = sym GIVES,
    catcher = sym CATCHER,
);

/// `TPIDR_EL0` leads to two words that belong to the C library (ELF for the Arm 64-bit architecture, thread-local storage,
/// variant 1), of which the second has no use in glibc and musl. It is null in a new thread.
const OFFSET: usize = 8;

/// See [`fgraph::Platform::CURRENT`].
pub const CURRENT: CurrentTask = CurrentTask { register: TaskRegister::TpidrEl0, offset: OFFSET };

/// See [`fgraph::Platform::WORDS`]: they would have to stand in the C library's block.
pub const WORDS: Option<CpuWords> = None;

/// The calling thread; null if it is not traced.
#[inline(always)]
pub fn current() -> *const Thread {
    let thread;
    // SAFETY: a load of the word described above.
    unsafe {
        asm!("mrs {0}, tpidr_el0", "ldr {0}, [{0}, #{offset}]", out(reg) thread, offset = const OFFSET,
            options(nostack, preserves_flags, readonly));
    }
    thread
}

/// Makes `thread` the current one; null is a thread that is not traced.
pub fn set_current(thread: *const Thread) {
    // SAFETY: a store to the word described above, which nobody else uses.
    unsafe {
        asm!("mrs {scratch}, tpidr_el0", "str {thread}, [{scratch}, #{offset}]", scratch = out(reg) _,
            thread = in(reg) thread, offset = const OFFSET, options(nostack, preserves_flags));
    }
}

/// Overwrites every register that a callback may, vector registers included.
#[inline(always)]
pub fn clobber() {
    // SAFETY: all that is written is declared: of v8 to v15 only the upper halves change, which nobody keeps.
    unsafe {
        asm!(
            "mov x0, #0xdead",
            ".irp n, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 30",
            "mov x\\n, x0",
            ".endr",
            ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31",
            "dup v\\n\\().2d, x0",
            ".endr",
            "cmp x0, #0",
            clobber_abi("C"),
            options(nostack, nomem),
        );
    }
}

/// The bytes of a sled, and of a landing pad before it.
pub const SLED: usize = 8;
/// As above.
pub const PAD: usize = 4;
/// Whether text is the same for all that users may need.
pub const ONE_WAY_ON: bool = false;
/// What stands before the function.
pub const PREFIX: usize = if cfg!(prefixed_sites) { 8 } else { 0 };

/// Whether a function with these first bytes begins with a landing pad, `bti c`.
pub fn is_landing_pad(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0x5f, 0x24, 0x03, 0xd5])
}

/// Two hints without a meaning, which are not what the tracer puts there.
pub const OTHER_NOPS: [u8; SLED] = [0x1f, 0x20, 0x03, 0xd5, 0x1f, 0x26, 0x03, 0xd5];
/// What no compiler puts there.
pub const NO_SLED: [u8; SLED] = [0xc0, 0x03, 0x5f, 0xd6, 0x1f, 0x20, 0x03, 0xd5];
/// How many writes, each followed by a synchronisation, change a site. Nobody traps meanwhile.
pub const STEPS: usize = 1;
/// Whether [`stepped`] works: a process cannot ask for it.
pub const CAN_STEP: bool = false;

/// Nobody traps.
pub fn catch_traps() {}

/// Not here.
pub fn stepped(_body: extern "C" fn(), _step: fn(usize, usize)) {}

/// Not here.
pub fn branch_at(_ip: usize) -> Branch {
    Branch::Other
}

/// Makes text that was written visible to whoever runs it.
pub fn flush(addr: usize, len: usize) {
    for line in (addr & !15..addr + len).step_by(16) {
        // SAFETY: cache maintenance changes no data; the address is mapped text.
        unsafe {
            asm!("dc cvau, {0}", "dsb ish", "ic ivau, {0}", in(reg) line, options(nostack, preserves_flags))
        };
    }
    // SAFETY: barriers.
    unsafe { asm!("dsb ish", "isb", options(nostack, preserves_flags)) };
}
