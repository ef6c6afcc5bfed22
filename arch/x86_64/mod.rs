//! x86_64. `regs`, `insn`, `patch` and `offsets` compile and are tested on every host; `tramp` is the live half.

pub mod frames;
pub mod insn;
#[cfg_attr(
    not(all(target_arch = "x86_64", feature = "trampolines")),
    expect(dead_code, reason = "the numbers are for the live half; their asserts are for every host")
)]
pub(crate) mod offsets;
pub mod patch;
pub mod regs;
#[cfg(all(target_arch = "x86_64", feature = "trampolines"))]
pub(crate) mod tramp;
