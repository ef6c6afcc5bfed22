//! The registers of a traced function on x86_64, as the trampolines lay them out on the stack.
//!
//! Conventions: System V psABI 1.0, 3.2.3 (arguments in rdi, rsi, rdx, rcx, r8, r9, then the stack; results in rax and rdx).

use memoffset::offset_of;
use static_assertions::{const_assert, const_assert_eq};

use crate::addr::{RetAddr, StackKey};
use crate::regs::{Regs, Saved};
use crate::task::TaskTrace;

/// Saved registers of a traced function (`ftrace_regs`).
///
/// Which fields are real depends on the trampoline: with [`Saved::Args`] those up to `rip`, with [`Saved::Regs`] all of them, with
/// [`Saved::Return`] those up to `rip` as the function left them. The others hold whatever was on the stack. r11 belongs to
/// nobody at a function's entry and is not kept.
#[derive(Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the fields are the registers of the same names")]
pub struct FtraceRegs {
    pub rax: usize,
    pub rcx: usize,
    pub rdx: usize,
    pub rsi: usize,
    pub rdi: usize,
    pub r8: usize,
    pub r9: usize,
    pub r10: usize,
    pub rbp: usize,
    /// At entry the address of the return address; at return the caller's stack pointer, one word above it.
    pub rsp: usize,
    /// Where execution goes on.
    pub rip: usize,
    saved: usize,
    task: *const TaskTrace,
    pub rbx: usize,
    pub r12: usize,
    pub r13: usize,
    pub r14: usize,
    pub r15: usize,
    /// Control flags as they were; the arithmetic ones are the trampoline's.
    pub rflags: usize,
    /// Keeps the size a multiple of 16, so that the stack stays aligned.
    _pad: usize,
}

const_assert_eq!(size_of::<FtraceRegs>() % 16, 0);
const_assert_eq!(size_of::<FtraceRegs>(), 20 * 8);
const_assert_eq!(align_of::<FtraceRegs>(), 8);
const_assert_eq!(offset_of!(FtraceRegs, rax), 0);
const_assert_eq!(offset_of!(FtraceRegs, r10), 7 * 8);
const_assert_eq!(offset_of!(FtraceRegs, rip), 10 * 8);
const_assert_eq!(offset_of!(FtraceRegs, task), 12 * 8);
const_assert_eq!(offset_of!(FtraceRegs, rflags), 18 * 8);
// What every trampoline fills lies before what only the regs trampoline does.
const_assert!(offset_of!(FtraceRegs, rip) < offset_of!(FtraceRegs, rbx));

/// `ip` that stands for "return at once"; the live half puts a `ret` in its place.
pub(crate) const RETURN_EARLY: usize = 0;

pub(crate) const OFFSET_SAVED: usize = offset_of!(FtraceRegs, saved);
pub(crate) const OFFSET_TASK: usize = offset_of!(FtraceRegs, task);

impl FtraceRegs {
    fn argument_mut(&mut self, n: usize) -> Option<&mut usize> {
        Some(match n {
            0 => &mut self.rdi,
            1 => &mut self.rsi,
            2 => &mut self.rdx,
            3 => &mut self.rcx,
            4 => &mut self.r8,
            5 => &mut self.r9,
            _ => return None,
        })
    }

    /// A block as a trampoline would fill it, for tests and for whoever delivers entries in another way.
    ///
    /// # Safety
    /// 1. `sp` is what [`Regs::sp`] says for `saved`, in a stack that stays as it is for the life of the block.
    /// 2. `task` is null or lives for ever.
    pub const unsafe fn from_raw(saved: Saved, ip: usize, sp: usize, task: *const TaskTrace) -> Self {
        Self {
            rax: 0,
            rcx: 0,
            rdx: 0,
            rsi: 0,
            rdi: 0,
            r8: 0,
            r9: 0,
            r10: 0,
            rbp: 0,
            rsp: sp,
            rip: ip,
            saved: saved as usize,
            task,
            rbx: 0,
            r12: 0,
            r13: 0,
            r14: 0,
            r15: 0,
            rflags: 0,
            _pad: 0,
        }
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
        self.rip
    }

    #[inline]
    unsafe fn set_ip(&mut self, ip: usize) {
        self.rip = ip;
    }

    #[inline]
    fn sp(&self) -> usize {
        self.rsp
    }

    #[inline]
    fn fp(&self) -> usize {
        self.rbp
    }

    #[inline]
    fn key(&self) -> StackKey {
        let below = if self.saved() == Saved::Return { size_of::<usize>() } else { 0 };
        StackKey::new(self.rsp.wrapping_sub(below))
    }

    #[inline]
    fn return_address(&self) -> RetAddr {
        if self.saved() == Saved::Return {
            return RetAddr::new(self.rip);
        }
        // SAFETY: at entry the word at `rsp` is the return address, on a stack that the traced function is about to run
        // on: it can be read, and nobody else accesses it now. A block that was made by hand promises the same.
        RetAddr::new(unsafe { core::ptr::with_exposed_provenance::<usize>(self.rsp).read() })
    }

    #[inline]
    unsafe fn set_return_address(&mut self, addr: RetAddr) {
        // SAFETY: as in `return_address`; the caller answers for what it means.
        unsafe { core::ptr::with_exposed_provenance_mut::<usize>(self.rsp).write(addr.get()) };
    }

    #[inline]
    fn argument(&self, n: usize) -> Option<usize> {
        [self.rdi, self.rsi, self.rdx, self.rcx, self.r8, self.r9].get(n).copied()
    }

    fn result_address(&self) -> Option<usize> {
        None
    }

    unsafe fn set_argument(&mut self, n: usize, value: usize) -> bool {
        self.argument_mut(n).map(|argument| *argument = value).is_some()
    }

    fn stack_arguments(&self) -> usize {
        self.rsp.wrapping_add(size_of::<usize>())
    }

    #[inline]
    fn return_value(&self) -> usize {
        self.rax
    }

    #[inline]
    fn return_values(&self) -> [usize; 2] {
        [self.rax, self.rdx]
    }

    #[inline]
    unsafe fn set_return_value(&mut self, value: usize) {
        self.rax = value;
    }

    unsafe fn return_early(&mut self) {
        self.rip = RETURN_EARLY;
    }

    #[inline]
    unsafe fn resume_at(&mut self, addr: RetAddr) {
        self.rip = addr.get();
        let slot = self.rsp.wrapping_sub(size_of::<usize>());
        // SAFETY: the return trampoline has reserved the word below its `rsp` again and returns through it.
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

    fn regs(saved: Saved, stack: &[usize], at: usize) -> FtraceRegs {
        let sp = stack[at..].as_ptr().expose_provenance();
        // SAFETY: `stack` outlives the block in every test; the task is null.
        unsafe { FtraceRegs::from_raw(saved, 0x1234, sp, core::ptr::null()) }
    }

    #[test]
    fn arguments_are_in_the_order_of_the_psabi() {
        let mut fregs = regs(Saved::Args, &[0; 2], 0);
        for n in 0..6 {
            // SAFETY: nothing runs with these registers.
            assert!(unsafe { fregs.set_argument(n, 100 + n) });
            assert_eq!(fregs.argument(n), Some(100 + n));
        }
        assert_eq!(
            [fregs.rdi, fregs.rsi, fregs.rdx, fregs.rcx, fregs.r8, fregs.r9],
            [100, 101, 102, 103, 104, 105]
        );
        assert_eq!(fregs.argument(6), None);
        // SAFETY: as above.
        assert!(!unsafe { fregs.set_argument(6, 1) });
    }

    #[test]
    fn the_return_address_is_the_word_at_rsp() {
        let mut stack = [0xaaaausize, 0xbbbb];
        let sp = stack.as_mut_ptr().expose_provenance();
        // SAFETY: `stack` outlives the block.
        let mut fregs = unsafe { FtraceRegs::from_raw(Saved::Args, 0, sp, core::ptr::null()) };
        assert_eq!(fregs.return_address(), RetAddr::new(0xaaaa));
        assert_eq!(fregs.key(), StackKey::new(sp));
        // SAFETY: nothing returns through it.
        unsafe { fregs.set_return_address(RetAddr::new(0xcccc)) };
        assert_eq!(stack, [0xcccc, 0xbbbb]);
    }

    #[test]
    fn entry_and_return_have_the_same_key() {
        let stack = [0usize; 4];
        let entry = regs(Saved::Args, &stack, 1);
        let ret = regs(Saved::Return, &stack, 2);
        assert_eq!(entry.key(), ret.key());
    }

    #[test]
    fn the_real_address_goes_to_the_slot_below() {
        let mut stack = [0usize; 3];
        let sp = stack.as_mut_ptr().wrapping_add(2).expose_provenance();
        // SAFETY: `stack` outlives the block.
        let mut fregs = unsafe { FtraceRegs::from_raw(Saved::Return, 0, sp, core::ptr::null()) };
        // SAFETY: nothing returns through it.
        unsafe { fregs.resume_at(RetAddr::new(0x77)) };
        assert_eq!(stack, [0, 0x77, 0]);
        assert_eq!(fregs.return_address(), RetAddr::new(0x77));
    }
}
