//! I/O ports.

use core::arch::asm;

/// A port whose device touches no memory, so that reading and writing it is safe.
#[derive(Clone, Copy)]
pub(super) struct Port(u16);

impl Port {
    /// The port of this number.
    ///
    /// # Safety
    ///
    /// Neither a read nor a write of it may affect memory.
    pub(super) const unsafe fn new(number: u16) -> Self {
        Self(number)
    }

    /// Reads a byte.
    #[inline(always)]
    pub(super) fn read(self) -> u8 {
        let value;
        // SAFETY: affects no memory (invariant of `Port`).
        unsafe { asm!("in al, dx", in("dx") self.0, out("al") value, options(nostack, preserves_flags)) };
        value
    }

    /// Writes two bytes at once.
    #[inline(always)]
    pub(super) fn write_u16(self, value: u16) {
        // SAFETY: affects no memory (invariant of `Port`).
        unsafe { asm!("out dx, ax", in("dx") self.0, in("ax") value, options(nostack, preserves_flags)) };
    }

    /// Writes a byte.
    #[inline(always)]
    pub(super) fn write(self, value: u8) {
        // SAFETY: affects no memory (invariant of `Port`).
        unsafe { asm!("out dx, al", in("dx") self.0, in("al") value, options(nostack, preserves_flags)) };
    }
}
