//! Stack walks that stay true while return addresses are replaced.
//!
//! Two things can hide a caller from a walk along frame records. A hooked function's return address is the return hooker's,
//! and the real one is on the shadow stack: [`Cursor`] translates. And code that is interrupted may not have its own
//! frame record yet, or not any more: then the chain of records begins one caller too late. So the walker reads the interrupted
//! function's instructions up to where it was interrupted ([`CallFrames`]), and knows from them where the return
//! address is; this crate's trampolines are nothing special to it. Where that cannot be told, it says so by an
//! [`Uncertain`](Kind::Uncertain) frame, and gives no wrong one.
//!
//! # Who runs here
//! Any context, NMI included: no lock, no memory but the walker's own, every read through [`Inspect::read`]. A walk looks at the caller's task, at the
//! task that the caller interrupted, or at a task that is stopped for as long as the walk takes. A task that runs
//! meanwhile gives a wrong chain, and nothing worse.

use core::fmt;
use core::ops::Range;

use crate::addr::RetAddr;
use crate::platform::ReadFault;

mod cursor;
mod sweep;
mod walker;

pub use cursor::{Cursor, Keys, Translated};
pub use sweep::{
    CallFrames, Code, FP, Flow, LINK, PREFIX, Reached, SCRATCH, SP, State, Step, TEMP, Value, WORD,
};
pub use walker::Unwinder;

#[cfg(test)]
pub(crate) use sweep::Place;

/// Registers that a walk starts from: of interrupted code, or of the trap frame that another walk has come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// Where it was interrupted.
    pub pc: usize,
    /// The stack pointer.
    pub sp: usize,
    /// The frame pointer (x29, rbp).
    pub fp: usize,
    /// arm64: x30. x86_64: nothing, 0.
    pub link: usize,
    /// The registers that this crate's trampolines carry addresses in: x16 and x17; on x86_64 r11 and nothing.
    pub scratch: [usize; 2],
}

/// Where a walk starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// At any instruction.
    Interrupted(Registers),
    /// In a function that has called another one, and so has its frame record, to which `fp` points: the walker's own
    /// caller, or a task that was switched away from.
    Called {
        /// Where that call returns to.
        pc: usize,
        /// The frame pointer.
        fp: usize,
    },
}

/// What is known of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It is there.
    Certain,
    /// It is there, and is one of this crate's trampolines: nothing that the program called.
    Trampoline,
    /// Only behind an interrupted function: it may have no frame record of its own at this place, in which case this is its
    /// caller as far as can be told (0 if not at all); or it has one, and this frame is not there.
    Uncertain,
}

/// One frame of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackFrame {
    /// Where it was interrupted, or where the call that it has made returns to.
    pub pc: usize,
    /// Whether that can be relied on.
    pub kind: Kind,
    /// Whether `pc` is where a call returns to: then it belongs to the call before it, which may be the last instruction of
    /// its function.
    pub is_return: bool,
    /// Whether the address came from the shadow stack.
    pub hooked: bool,
}

/// Why a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum End {
    /// The end of the stack: a frame without a caller. The chain is whole.
    Bottom,
    /// A frame pointer that is not aligned, or that leads to none of the stacks.
    BadFrame {
        /// The frame pointer.
        fp: usize,
    },
    /// A frame pointer that does not lead up the stack, or back to a stack that was left.
    NotUp {
        /// The frame pointer.
        fp: usize,
    },
    /// Memory of the stack could not be read.
    Unreadable {
        /// The first byte.
        addr: usize,
    },
    /// A hooked return address, but no frame on the shadow stack that it belongs to.
    NoShadowFrame {
        /// The first key that the frame could have had.
        key: usize,
    },
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bottom => f.write_str("the end of the stack"),
            Self::BadFrame { fp } => write!(f, "the frame pointer {fp:#x} leads to none of the stacks"),
            Self::NotUp { fp } => write!(f, "the frame pointer {fp:#x} does not lead up the stack"),
            Self::Unreadable { addr } => write!(f, "the stack cannot be read at {addr:#x}"),
            Self::NoShadowFrame { key } => {
                write!(f, "a hooked return address, and no shadow frame with the key {key:#x} or above")
            }
        }
    }
}

/// What the walker asks of the kernel. All of it is called in the walk's own context.
pub trait Inspect {
    /// Reads memory without faulting, whatever `addr` is. (What [`Platform::read`](crate::Platform::read) does.)
    ///
    /// # Errors
    /// It cannot be read.
    fn read(&self, addr: usize, bytes: &mut [u8]) -> Result<(), ReadFault>;

    /// The addresses of the function that `pc` lies in, trampolines included, from its symbol on. `None` if that is not
    /// known: then an interrupted function's caller is uncertain.
    fn function(&self, pc: usize) -> Option<Range<usize>> {
        let _ = pc;
        None
    }

    /// If `pc` is where a handler returns into the kernel's trap entry, whose frame record stands at `record`: the
    /// registers of what was interrupted. `None` for everything else; then the walk goes on by the record, and the
    /// caller of what was interrupted may be missing.
    fn interrupted(&self, pc: usize, record: usize) -> Option<Registers> {
        let _ = (pc, record);
        None
    }
}

/// The addresses that a walker must know of the hooks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hooks {
    /// Where hooked functions return to: those of the straight path, those hooked the classic way, those hooked the balanced way. Right
    /// before the first and before the last stands the call of these functions.
    pub hookers: [RetAddr; 3],
    /// All trampolines. Those at entries are the first of them.
    pub trampolines: Range<usize>,
    /// The entry trampolines that sleds jump to, the last of those at entries.
    pub jumped: Range<usize>,
}

impl Hooks {
    /// Whether `pc` lies in an entry trampoline.
    fn is_entry(&self, pc: usize) -> bool {
        (self.trampolines.start..self.jumped.end).contains(&pc)
    }

    /// Whether a return address is one that hooked functions have.
    fn is_hooker(&self, addr: RetAddr) -> bool {
        self.hookers.contains(&addr)
    }
}

/// Pointer authentication: which bits of an address hold a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PtrAuth {
    /// Those bits; 0 where addresses are not signed. Bit 55 is never one of them: it says which half of the address space
    /// an address belongs to (Arm ARM D8.9.1).
    pub mask: usize,
}

impl PtrAuth {
    /// Addresses are as they are.
    pub const NONE: Self = Self { mask: 0 };

    /// The bits between a virtual address of `va_bits` bits and bit 55, and those above it unless the top byte is
    /// ignored.
    pub const fn arm64(va_bits: u32, top_byte_ignored: bool) -> Self {
        let all = if va_bits < usize::BITS { usize::MAX << va_bits } else { 0 };
        let top = if top_byte_ignored { 0 } else { 0xff << 56 };
        Self { mask: all & (!(0xff << 56) | top) & !(1 << 55) }
    }

    /// The address without a signature. What has none stays as it is.
    #[inline]
    pub const fn strip(self, addr: usize) -> usize {
        if addr & 1 << 55 == 0 { addr & !self.mask } else { addr | self.mask }
    }
}

#[cfg(test)]
mod tests;
