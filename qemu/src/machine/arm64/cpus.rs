//! The other CPUs: how many there are, and starting and stopping them.

use core::{
    arch::asm,
    sync::atomic::{AtomicBool, Ordering},
};

use super::{boot, gic};
use crate::console::println;

/// PSCI's function to start a CPU: who, where, and what to have in x0 there. Arm DEN 0022, 5.6.
const PSCI_CPU_ON: u64 = 0xc400_0003;

/// `CurrentEL` of EL2.
const EL2: u64 = 2 << 2;

/// The kernel was entered at EL2.
static ENTERED_AT_EL2: AtomicBool = AtomicBool::new(false);

/// Keeps `CurrentEL` as the kernel was entered with. Called by the boot code.
pub(super) fn init(entered: u64) {
    ENTERED_AT_EL2.store(entered == EL2, Ordering::Relaxed);
}

/// Calls the firmware; what it says, which is negative for an error.
///
/// # Safety
///
/// The function, with these arguments, does nothing to this CPU or to the memory of this kernel that it could not stand.
#[unsafe(link_section = ".text.notrace")]
pub(super) unsafe fn psci(function: u64, arguments: [u64; 3]) -> i64 {
    let [first, second, third] = arguments;
    let result;
    // The firmware is where the kernel cannot be: QEMU's is above the level at which it starts a kernel.
    if ENTERED_AT_EL2.load(Ordering::Relaxed) {
        // SAFETY: 1. The caller vouches for the function. 2. The registers are those that a call may change (SMCCC 1.1).
        unsafe {
            asm!("smc #0", inlateout("x0") function => result, inlateout("x1") first => _,
                inlateout("x2") second => _, inlateout("x3") third => _, options(nostack));
        }
    } else {
        // SAFETY: as above.
        unsafe {
            asm!("hvc #0", inlateout("x0") function => result, inlateout("x1") first => _,
                inlateout("x2") second => _, inlateout("x3") third => _, options(nostack));
        }
    }
    result
}

/// How many CPUs the machine has.
pub fn cpus_present() -> usize {
    gic::count_cpus()
}

/// Starts CPUs 1 to `count - 1`. Does not wait for them.
pub fn start_cpus(count: usize) {
    for cpu in 1..count {
        // As in MPIDR_EL1, where affinity 3 is not next to the others.
        let affinity = u64::from(gic::affinity(cpu));
        let target = (affinity >> 24) << 32 | affinity & 0xff_ffff;
        let entry = boot::fgraph_demo_secondary as *const () as u64;
        // SAFETY: starts a CPU that is off, at code that is made for it, with a stack of its own.
        let result = unsafe { psci(PSCI_CPU_ON, [target, entry, cpu as u64]) };
        if result != 0 {
            println!("CPU {cpu} cannot be started: PSCI says {result}");
        }
    }
}

/// Stops this CPU for good.
#[unsafe(link_section = ".text.notrace")]
pub fn stop() -> ! {
    loop {
        // SAFETY: masks everything and waits.
        unsafe { asm!("msr daifset, #0xf", "wfi", options(nomem, nostack, preserves_flags)) };
    }
}

/// What a CPU does between two looks at what another one must change. An emulator that runs all CPUs in turn takes it
/// as the end of this one's turn.
#[inline(always)]
pub fn relax() {
    // SAFETY: a hint.
    unsafe { asm!("yield", options(nomem, nostack, preserves_flags)) };
}

/// Executes a context-synchronising instruction.
#[inline(always)]
pub fn sync_core() {
    // SAFETY: a barrier. A memory clobber, so that nothing is read or written before it that comes after it.
    unsafe { asm!("isb", options(nostack, preserves_flags)) };
}
