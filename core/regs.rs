//! What the engine and callbacks ask of saved registers, whichever machine saved them.
//!
//! The blocks themselves are `arch::*::regs::FtraceRegs`; both are compiled and tested on every host.

use crate::addr::{RetAddr, StackKey};
use crate::task::TaskTrace;

/// Which trampoline filled a register block, and so which registers in it are real.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Saved {
    /// At a function's entry: argument registers, stack and frame pointer, return address, ip.
    Args = 1,
    /// At a function's entry: every general register.
    Regs = 2,
    /// At a function's return: return registers, stack and frame pointer, and the ip it returns to.
    Return = 3,
}

/// Saved registers of a traced function, at its entry or at its return.
///
/// # Reading
/// Everything here may be read in a callback, in any context.
///
/// # Changing
/// Every setter is unsafe for the same reason: what is written is loaded into the machine when the callback is done, and
/// the traced code relies on it. The caller must know the traced function's calling convention and types.
pub trait Regs: 'static {
    /// Which registers are real.
    fn saved(&self) -> Saved;

    /// Where execution goes on: at entry the instruction behind the sled, at return the real return address.
    fn ip(&self) -> usize;

    /// Sends execution elsewhere.
    ///
    /// # Safety
    /// `ip` must be an instruction that can run with the registers and the stack of this moment.
    unsafe fn set_ip(&mut self, ip: usize);

    /// The stack pointer: at entry as at the function's first instruction, at return as the caller will have it.
    fn sp(&self) -> usize;

    /// The frame pointer (x29, rbp), which at entry still is the caller's.
    fn fp(&self) -> usize;

    /// The key of the shadow frame that belongs to this entry or return.
    fn key(&self) -> StackKey;

    /// Where the traced function returns to, read from where the machine keeps it: x30, or the word at `sp`. While
    /// several hooks stand on one call this is what the latest of them left there. At return, the same as `ip`.
    fn return_address(&self) -> RetAddr;

    /// Makes the traced function return elsewhere. Entry only.
    ///
    /// # Safety
    /// `addr` must be code that expects to be returned to from the traced function: the return hooker, or code that
    /// gets on with the caller's stack and registers.
    unsafe fn set_return_address(&mut self, addr: RetAddr);

    /// Integer argument `n` (from 0), if it travels in a register: six on x86_64, eight on arm64. Entry only. What
    /// travels there depends on the function's types; upper bits of narrow arguments are not defined.
    fn argument(&self, n: usize) -> Option<usize>;

    /// The address of the memory for a large return value, if the machine has a register for nothing else: x8. Entry only; whether it
    /// holds one, the function's type says.
    fn result_address(&self) -> Option<usize>;

    /// Changes integer argument `n`; `false` if it does not travel in a register.
    ///
    /// # Safety
    /// The value must be valid for the parameter's type.
    unsafe fn set_argument(&mut self, n: usize, value: usize) -> bool;

    /// The address of the first argument word on the stack at entry.
    fn stack_arguments(&self) -> usize;

    /// The first return register (x0, rax). Whether the function returns anything in it, its type says.
    fn return_value(&self) -> usize;

    /// Both return registers (x0 and x1, rax and rdx): a 128-bit value or a pair comes in both.
    fn return_values(&self) -> [usize; 2];

    /// Changes the first return register.
    ///
    /// # Safety
    /// The value must be valid for the function's return type.
    unsafe fn set_return_value(&mut self, value: usize);

    /// At entry: the function is not run but returns to its caller at once, with the return value set before.
    ///
    /// # Safety
    /// The caller must be able to go on although nothing of the function was done, and the return value must have been
    /// set if it has one.
    unsafe fn return_early(&mut self);

    /// At return: puts the real return address where the trampoline and any stack walker will find it.
    ///
    /// # Safety
    /// `self` must lie in the frame of the return trampoline.
    unsafe fn resume_at(&mut self, addr: RetAddr);

    /// The trace block of the task whose registers these are, as the trampoline loaded it; `None` only at a return
    /// whose task was left without a block.
    fn task(&self) -> Option<&'static TaskTrace>;
}
