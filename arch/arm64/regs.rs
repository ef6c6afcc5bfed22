//! The registers of a traced function on arm64, as the trampolines lay them out on the stack. What differs from x86_64 is said
//! here; the rest is the same.
//!
//! Conventions: AAPCS64 6.8 (arguments in x0 to x7, then the stack; results in x0 and x1; x8 has the address of a result
//! in memory; x29 frame pointer; x30 link register).

use memoffset::offset_of;
use static_assertions::const_assert_eq;

use crate::addr::{RetAddr, StackKey};
use crate::regs::{Regs, Saved};
use crate::task::TaskTrace;

/// Saved registers of a traced function (`ftrace_regs`).
///
/// With [`Saved::Args`], x0 to x15, x18, `fp`, `lr`, `sp` and `pc` are real; with [`Saved::Regs`] also x19 to x28; with [`Saved::Return`]
/// the same as with `Args`, as the function left them, without `lr`. x16 and x17 belong to nobody at a function's entry and are not kept.
#[derive(Debug)]
#[repr(C)]
pub struct FtraceRegs {
    /// x0 to x28.
    pub x: [usize; 29],
    /// x29, the frame pointer.
    pub fp: usize,
    /// x30 as at the function's first instruction: where it returns to.
    pub lr: usize,
    /// The stack pointer. Not loaded back.
    pub sp: usize,
    /// Where execution goes on.
    pub pc: usize,
    saved: usize,
    task: *const TaskTrace,
    /// Keeps the size a multiple of 16, as `sp` must be.
    _pad: usize,
}

const_assert_eq!(size_of::<FtraceRegs>() % 16, 0);
const_assert_eq!(size_of::<FtraceRegs>(), 36 * 8);
const_assert_eq!(align_of::<FtraceRegs>(), 8);
const_assert_eq!(offset_of!(FtraceRegs, x), 0);
const_assert_eq!(offset_of!(FtraceRegs, fp), 29 * 8);
// Stored as pairs.
const_assert_eq!(offset_of!(FtraceRegs, lr), offset_of!(FtraceRegs, fp) + 8);
const_assert_eq!(offset_of!(FtraceRegs, pc), offset_of!(FtraceRegs, sp) + 8);
const_assert_eq!(offset_of!(FtraceRegs, task), offset_of!(FtraceRegs, saved) + 8);

/// `ip` that stands for "return at once"; the live half puts a `ret` in its place.
pub(crate) const RETURN_EARLY: usize = 0;

pub(crate) const OFFSET_SAVED: usize = offset_of!(FtraceRegs, saved);

impl FtraceRegs {
    /// A block as a trampoline would fill it, for tests and for whoever delivers entries in another way.
    ///
    /// # Safety
    /// 1. `sp` is what [`Regs::sp`] says, in a stack that stays as it is for the life of the block.
    /// 2. `task` is null or lives for ever.
    pub const unsafe fn from_raw(saved: Saved, ip: usize, sp: usize, task: *const TaskTrace) -> Self {
        Self { x: [0; 29], fp: 0, lr: 0, sp, pc: ip, saved: saved as usize, task, _pad: 0 }
    }
}

impl Regs for FtraceRegs {
    #[inline]
    fn saved(&self) -> Saved {
        match self.saved {
            1 => Saved::Args,
            2 => Saved::Regs,
            _ => Saved::Return,
        }
    }

    #[inline]
    fn ip(&self) -> usize {
        self.pc
    }

    #[inline]
    unsafe fn set_ip(&mut self, ip: usize) {
        self.pc = ip;
    }

    #[inline]
    fn sp(&self) -> usize {
        self.sp
    }

    #[inline]
    fn fp(&self) -> usize {
        self.fp
    }

    #[inline]
    fn key(&self) -> StackKey {
        // A function returns with the `sp` it was entered with.
        StackKey::new(self.sp)
    }

    #[inline]
    fn return_address(&self) -> RetAddr {
        RetAddr::new(if self.saved() == Saved::Return { self.pc } else { self.lr })
    }

    #[inline]
    unsafe fn set_return_address(&mut self, addr: RetAddr) {
        self.lr = addr.get();
    }

    #[inline]
    fn argument(&self, n: usize) -> Option<usize> {
        self.x[..8].get(n).copied()
    }

    fn result_address(&self) -> Option<usize> {
        Some(self.x[8])
    }

    unsafe fn set_argument(&mut self, n: usize, value: usize) -> bool {
        self.x[..8].get_mut(n).map(|argument| *argument = value).is_some()
    }

    fn stack_arguments(&self) -> usize {
        self.sp
    }

    #[inline]
    fn return_value(&self) -> usize {
        self.x[0]
    }

    #[inline]
    fn return_values(&self) -> [usize; 2] {
        [self.x[0], self.x[1]]
    }

    #[inline]
    unsafe fn set_return_value(&mut self, value: usize) {
        self.x[0] = value;
    }

    unsafe fn return_early(&mut self) {
        self.pc = RETURN_EARLY;
    }

    #[inline]
    unsafe fn resume_at(&mut self, addr: RetAddr) {
        self.pc = addr.get();
        let slot = self.sp.wrapping_sub(size_of::<usize>());
        // SAFETY: the return trampoline keeps its frame record right below the caller's `sp`, with the address it returns
        // to in the upper word.
        unsafe { core::ptr::with_exposed_provenance_mut::<usize>(slot).write(addr.get()) };
    }

    #[inline]
    fn task(&self) -> Option<&'static TaskTrace> {
        // SAFETY: the trampolines load this from where `Platform::CURRENT` leads: null, or a block that lives as long as
        // the task; whoever runs here with the reference runs in that task.
        unsafe { self.task.as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regs(saved: Saved, sp: usize) -> FtraceRegs {
        // SAFETY: nothing reads the stack in these tests but the one that says so; the task is null.
        unsafe { FtraceRegs::from_raw(saved, 0x1234, sp, core::ptr::null()) }
    }

    #[test]
    fn eight_arguments_are_in_registers() {
        let mut fregs = regs(Saved::Args, 0x8000);
        for n in 0..8 {
            // SAFETY: nothing runs with these registers.
            assert!(unsafe { fregs.set_argument(n, 100 + n) });
        }
        assert_eq!(&fregs.x[..9], [100, 101, 102, 103, 104, 105, 106, 107, 0]);
        assert_eq!(fregs.argument(8), None);
        assert_eq!(fregs.stack_arguments(), 0x8000);
    }

    #[test]
    fn the_return_address_is_the_link_register() {
        let mut fregs = regs(Saved::Regs, 0x8000);
        fregs.lr = 0xaaaa;
        assert_eq!(fregs.return_address(), RetAddr::new(0xaaaa));
        // SAFETY: nothing runs with these registers.
        unsafe { fregs.set_return_address(RetAddr::new(0xbbbb)) };
        assert_eq!(fregs.lr, 0xbbbb);
    }

    #[test]
    fn entry_and_return_have_the_same_key() {
        assert_eq!(regs(Saved::Args, 0x8000).key(), regs(Saved::Return, 0x8000).key());
    }

    #[test]
    fn the_real_address_goes_to_the_frame_record() {
        let mut stack = [0usize; 4];
        let mut fregs = regs(Saved::Return, stack.as_mut_ptr().wrapping_add(3).expose_provenance());
        // SAFETY: `stack` outlives the block, and nothing returns through it.
        unsafe { fregs.resume_at(RetAddr::new(0x77)) };
        assert_eq!(stack, [0, 0, 0x77, 0]);
        assert_eq!(fregs.return_address(), RetAddr::new(0x77));
    }
}
