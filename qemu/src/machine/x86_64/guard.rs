//! Landing pads: what of them is in the image. Nothing is enforced: the CPU would need CET, which QEMU's do not have.

use core::arch::x86_64::{__cpuid, __cpuid_count};

use fgraph::unwind::PtrAuth;

use crate::machine::{Guard, Guards, note};

/// Return addresses are as they are.
pub const PTR_AUTH: PtrAuth = PtrAuth::NONE;

/// This machine signs nothing.
#[derive(Clone, Copy)]
pub struct Keys;

impl Keys {
    /// None.
    pub const BOOT: Self = Self;

    /// None.
    pub fn new(_pid: u32) -> Self {
        Self
    }
}

const FEATURE_1_AND: u32 = 0xc000_0002;
const FEATURE_1_IBT: u32 = 1 << 0;

/// Whether everything that an indirect branch may reach was compiled to begin with a landing pad.
pub fn has_landing_pads() -> bool {
    note::features(FEATURE_1_AND) & FEATURE_1_IBT != 0
}

/// What is enforced.
pub fn guards() -> Guards {
    let features = if __cpuid(0).eax >= 7 { __cpuid_count(7, 0) } else { __cpuid(0) };
    let has_ibt = __cpuid(0).eax >= 7 && features.edx & 1 << 20 != 0;
    let branches = match (has_landing_pads(), has_ibt) {
        (false, _) => "not everything was compiled with landing pads",
        (true, false) => {
            "all that was compiled has landing pads, and this CPU does not look for them (no IBT)"
        }
        (true, true) => "all that was compiled has landing pads, and this kernel does not turn IBT on",
    };
    Guards { returns: Guard::Not("this machine does not sign them"), branches: Guard::Not(branches) }
}
