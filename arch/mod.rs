//! What depends on the machine. `arm64` and `x86_64` have the same file names; everything in them but `tramp` is data and
//! pure functions, compiled and tested on every host.
//!
//! A machine's live half (`tramp`) must supply: `Live` (its [`Machine`](crate::machine::Machine)), `trampolines()`, `return_hooker()`,
//! `flush(addr, len)`, `counter()`, and for the straight path `state_of_prefixed(func)`.

use cfg_if::cfg_if;

pub mod arm64;
pub mod x86_64;

cfg_if! {
    if #[cfg(target_arch = "aarch64")] {
        use self::arm64 as machine;
    } else if #[cfg(target_arch = "x86_64")] {
        use self::x86_64 as machine;
    } else {
        compile_error!("fgraph traces aarch64 and x86_64");
    }
}

pub use machine::regs::FtraceRegs;

#[cfg(feature = "trampolines")]
pub(crate) use machine::tramp;

#[cfg(feature = "trampolines")]
pub(crate) mod live;
#[cfg(feature = "trampolines")]
mod offsets;
#[cfg(feature = "selftest")]
pub mod selftest;
#[cfg(feature = "trampolines")]
mod straight;
#[cfg(feature = "trampolines")]
pub(crate) mod tracefs;
#[cfg(feature = "trampolines")]
pub mod tracer;

use crate::platform::TaskRegister;

/// Whether this machine's trampolines can start from `register`; for the binding macro.
#[doc(hidden)]
pub const fn register_fits(register: TaskRegister) -> bool {
    matches!(register, TaskRegister::Gs) == cfg!(target_arch = "x86_64")
}
