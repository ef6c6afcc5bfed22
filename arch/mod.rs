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

use crate::platform::{CpuWords, Platform, TaskRegister};
use crate::quiesce::MAX_CPUS;

/// Whether this machine's trampolines can start from `register`; for the binding macro.
#[doc(hidden)]
pub const fn register_fits(register: TaskRegister) -> bool {
    matches!(register, TaskRegister::Gs) == cfg!(target_arch = "x86_64")
}

/// The words of a platform, for the linker; without any the trampolines do not use what this says.
#[doc(hidden)]
pub const fn cpu_words<P: Platform>() -> CpuWords {
    match P::WORDS {
        Some(words) => words,
        None => CpuWords { preempt_count: 0, cpu: 0, cpus: 0 },
    }
}

/// Refuses to compile a binding whose words the trampolines cannot reach.
#[doc(hidden)]
pub const fn check_words<P: Platform>() {
    let words = cpu_words::<P>();
    assert!(words.cpus <= MAX_CPUS, "CpuWords::cpus is more than MAX_CPUS");
    if !cfg!(target_arch = "x86_64") {
        assert!(
            words.preempt_count < 4096 && words.preempt_count.is_multiple_of(8),
            "CpuWords::preempt_count must be a multiple of 8 below 4096"
        );
        assert!(
            words.cpu < 4096 && words.cpu.is_multiple_of(8),
            "CpuWords::cpu must be a multiple of 8 below 4096"
        );
    }
}
