//! The interrupt controller: GICv3 with one security state, as QEMU has it without `secure=on`.
//!
//! All interrupts are Group 1. Ordinary ones have priority [`PRIORITY`], and the mask admits what is more
//! urgent than [`PRIORITY_MASK`], which leaves room: raising the mask to [`PRIORITY`] later keeps ordinary
//! interrupts out while more urgent ones still come, which is how arm64 gets NMIs without hardware for them.

use core::{arch::asm, ptr};

use super::clock;
use crate::console::println;

/// The priority of ordinary interrupts; lower is more urgent.
const PRIORITY: u32 = 0xa0;
/// The CPU's priority mask: everything is admitted.
const PRIORITY_MASK: u64 = 0xf0;

/// The distributor, and the redistributor of CPU 0, of which each CPU has one.
const DISTRIBUTOR: usize = 0x0800_0000;
const REDISTRIBUTORS: usize = 0x080a_0000;
const REDISTRIBUTOR_SIZE: usize = 0x2_0000;

// Distributor registers and bits.
const GICD_CTLR: usize = 0x0000;
const GICD_CTLR_GROUP1: u32 = 1 << 1;
const GICD_CTLR_ARE: u32 = 1 << 4;
const GICD_CTLR_RWP: u32 = 1 << 31;

// Redistributor registers; the second 64 KiB are about this CPU's own interrupts, 0 to 31.
const GICR_WAKER: usize = 0x0014;
const GICR_WAKER_SLEEP: u32 = 1 << 1;
const GICR_WAKER_ASLEEP: u32 = 1 << 2;
const GICR_IGROUPR0: usize = 0x1_0080;
const GICR_ISENABLER0: usize = 0x1_0100;
const GICR_ICENABLER0: usize = 0x1_0180;
const GICR_IPRIORITYR: usize = 0x1_0400;

/// Interrupt numbers from here on say that there was none.
const SPECIAL: u64 = 1020;

fn read(address: usize) -> u32 {
    // SAFETY: the addresses above are registers of the GIC, mapped as device memory.
    unsafe { ptr::with_exposed_provenance::<u32>(address).read_volatile() }
}

fn write(address: usize, value: u32) {
    // SAFETY: as for `read`; the values written here configure interrupts and touch no memory.
    unsafe { ptr::with_exposed_provenance_mut::<u32>(address).write_volatile(value) }
}

/// Sets up what all CPUs share.
pub(super) fn init_distributor() {
    write(DISTRIBUTOR + GICD_CTLR, GICD_CTLR_ARE);
    wait_for_distributor();
    write(DISTRIBUTOR + GICD_CTLR, GICD_CTLR_ARE | GICD_CTLR_GROUP1);
    wait_for_distributor();
}

fn wait_for_distributor() {
    while read(DISTRIBUTOR + GICD_CTLR) & GICD_CTLR_RWP != 0 {}
}

/// Sets up what CPU `cpu`, which is the caller's, has for itself. All its interrupts are disabled.
pub(super) fn init_cpu(cpu: usize) {
    let base = REDISTRIBUTORS + cpu * REDISTRIBUTOR_SIZE;
    write(base + GICR_WAKER, read(base + GICR_WAKER) & !GICR_WAKER_SLEEP);
    while read(base + GICR_WAKER) & GICR_WAKER_ASLEEP != 0 {}
    write(base + GICR_ICENABLER0, !0);
    write(base + GICR_IGROUPR0, !0);
    for four in 0..8 {
        write(base + GICR_IPRIORITYR + 4 * four, PRIORITY * 0x0101_0101);
    }
    // SAFETY: the CPU interface's registers, by their numbers: ICC_SRE (use registers, not memory), ICC_PMR,
    //         ICC_BPR1, ICC_CTLR (end of interrupt also deactivates), ICC_IGRPEN1. Interrupts are masked.
    unsafe {
        asm!(
            "mrs {value}, S3_0_C12_C12_5",
            "orr {value}, {value}, #1",
            "msr S3_0_C12_C12_5, {value}",
            "isb",
            "msr S3_0_C4_C6_0, {mask}",
            "msr S3_0_C12_C12_3, xzr",
            "msr S3_0_C12_C12_4, xzr",
            "mov {value}, #1",
            "msr S3_0_C12_C12_7, {value}",
            "isb",
            value = out(reg) _,
            mask = in(reg) PRIORITY_MASK,
            options(nostack, preserves_flags),
        );
    }
}

/// Enables interrupt `number`, below 32, of CPU `cpu`.
pub(super) fn enable(cpu: usize, number: u32) {
    write(REDISTRIBUTORS + cpu * REDISTRIBUTOR_SIZE + GICR_ISENABLER0, 1 << number);
}

/// Takes the pending interrupt, handles it and says so, so that the caller may switch to another task.
#[inline(never)] // its caller is outside tracing, and this need not be
pub(super) fn dispatch() {
    let taken: u64;
    // SAFETY: ICC_IAR1: acknowledges the interrupt. The barrier orders it before what the handler does to its
    //         device.
    unsafe {
        asm!("mrs {}, S3_0_C12_C12_0", "dsb sy", out(reg) taken, options(nostack, preserves_flags));
    }
    let number = taken & 0xff_ffff;
    if number >= SPECIAL {
        return;
    }
    if number == u64::from(clock::INTERRUPT) {
        clock::interrupt();
    } else {
        println!("interrupt {number}, which nobody enabled");
    }
    // SAFETY: ICC_EOIR1 with the value that ICC_IAR1 gave.
    unsafe { asm!("msr S3_0_C12_C12_1, {}", "isb", in(reg) taken, options(nostack, preserves_flags)) };
}
