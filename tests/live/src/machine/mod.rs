//! What a case needs to know of the machine it runs on: both machines have the same items.

#[cfg(target_arch = "aarch64")]
mod arm64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use arm64::*;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;

/// What an instruction does that calls and returns are paired by.
#[cfg_attr(target_arch = "aarch64", expect(dead_code, reason = "nothing is stepped there"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Branch {
    /// It keeps the address behind it, and goes elsewhere.
    Call,
    /// It goes where the stack says.
    Return,
    /// None of these.
    Other,
}

// The functions of the `.s` files, the same on both machines.
unsafe extern "C" {
    /// Calls `function` with the registers of `before`, and puts those that it leaves into `after`.
    pub fn live_call(function: usize, before: &Registers, after: &mut Registers);
    /// Where a function called by [`live_call`] returns to.
    pub safe fn live_call_return();
    /// Keeps the registers it is entered with in [`SAW`], and leaves those of [`GIVES`].
    pub safe fn live_probe();
    /// (n + 1) * 2 + 100, by two tail calls, to the two below.
    pub safe fn live_tail_first(n: usize) -> usize;
    /// n * 2 + 100.
    pub safe fn live_tail_second(n: usize) -> usize;
    /// n + 100.
    pub safe fn live_tail_third(n: usize) -> usize;
    /// A tail call of [`live_tail_first`] from a function that is not traced.
    pub safe fn live_tail_untraced(n: usize) -> usize;
    /// sum + n + ... + 1, by n tail calls of itself.
    pub safe fn live_tail_loop(n: usize, sum: usize) -> usize;
    /// What `function(argument)` returns, or what [`live_throw`] is given below it.
    pub fn live_catch(function: extern "C" fn(usize) -> usize, argument: usize) -> usize;
    /// How far the stack pointer is from where the calling convention wants it; for a caller that is outside tracing.
    pub safe fn live_misalignment() -> usize;
    /// Leaves everything up to the last [`live_catch`] as it is, and goes on there.
    pub fn live_throw(value: usize) -> !;
}
