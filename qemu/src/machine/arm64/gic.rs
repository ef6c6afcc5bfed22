//! The interrupt controller: GICv3 with one security state, as QEMU has it without `secure=on`.
//!
//! Ordinary interrupts are Group 1, and reach a CPU as IRQ. One that CPUs send each other is Group 0 and reaches it as FIQ: the
//! NMI, as the kernel masks IRQs only. It is more urgent too, so that it also comes while the handler of another one
//! runs.

use core::{arch::asm, ops::Range, ptr};

use super::{super::Ipi, clock, cpu, memory};
use crate::{console::println, lock::IrqsOff, machine, percpu::MAX_CPUS, smp};

/// The priority of ordinary interrupts; lower is more urgent.
const PRIORITY: u32 = 0xa0;
/// The priority of the NMI.
const NMI_PRIORITY: u32 = 0x20;
/// The CPU's priority mask: everything is admitted.
const PRIORITY_MASK: u64 = 0xf0;

/// The distributor, and the redistributor of CPU 0, of which each CPU has one.
const DISTRIBUTOR: usize = 0x0800_0000;
const REDISTRIBUTORS: usize = 0x080a_0000;
const REDISTRIBUTOR_SIZE: usize = 0x2_0000;

// Distributor registers and bits.
const GICD_CTLR: usize = 0x0000;
const GICD_CTLR_GROUP0: u32 = 1 << 0;
const GICD_CTLR_GROUP1: u32 = 1 << 1;
const GICD_CTLR_ARE: u32 = 1 << 4;
const GICD_CTLR_RWP: u32 = 1 << 31;

// Redistributor registers; the second 64 KiB are about this CPU's own interrupts, 0 to 31.
const GICR_TYPER: usize = 0x0008;
/// The last of all CPUs; a bit of the lower half, while the upper half is the CPU's affinity.
const GICR_TYPER_LAST: u32 = 1 << 4;
const GICR_WAKER: usize = 0x0014;
const GICR_WAKER_SLEEP: u32 = 1 << 1;
const GICR_WAKER_ASLEEP: u32 = 1 << 2;
const GICR_IGROUPR0: usize = 0x1_0080;
const GICR_ISENABLER0: usize = 0x1_0100;
const GICR_ICENABLER0: usize = 0x1_0180;
const GICR_ISPENDR0: usize = 0x1_0200;
const GICR_IPRIORITYR: usize = 0x1_0400;

/// Interrupts from other CPUs: the numbers that are sent by software.
const RESCHEDULE: u32 = 0;
const SYNC: u32 = 1;
const CALL: u32 = 2;
const NMI: u32 = 3;
const FROM_CPUS: Range<u32> = RESCHEDULE..NMI + 1;

/// Interrupt numbers from here on say that there was none.
const SPECIAL: u64 = 1020;

#[inline(always)]
fn read(address: usize) -> u32 {
    // SAFETY: the addresses above are registers of the GIC, mapped as device memory.
    unsafe { ptr::with_exposed_provenance::<u32>(address).read_volatile() }
}

#[inline(always)]
fn write(address: usize, value: u32) {
    // SAFETY: as for `read`; the values written here configure interrupts and touch no memory.
    unsafe { ptr::with_exposed_provenance_mut::<u32>(address).write_volatile(value) }
}

/// Sets up what all CPUs share.
pub(super) fn init_distributor() {
    write(DISTRIBUTOR + GICD_CTLR, GICD_CTLR_ARE);
    wait_for_distributor();
    write(DISTRIBUTOR + GICD_CTLR, GICD_CTLR_ARE | GICD_CTLR_GROUP0 | GICD_CTLR_GROUP1);
    wait_for_distributor();
}

fn wait_for_distributor() {
    while read(DISTRIBUTOR + GICD_CTLR) & GICD_CTLR_RWP != 0 {}
}

/// Sets up what CPU `cpu`, which is the caller's, has for itself. All its interrupts are disabled but those from other
/// CPUs.
#[unsafe(link_section = ".text.notrace")]
pub(super) fn init_cpu(cpu: usize) {
    let base = REDISTRIBUTORS + cpu * REDISTRIBUTOR_SIZE;
    write(base + GICR_WAKER, read(base + GICR_WAKER) & !GICR_WAKER_SLEEP);
    while read(base + GICR_WAKER) & GICR_WAKER_ASLEEP != 0 {}
    write(base + GICR_ICENABLER0, !0);
    write(base + GICR_IGROUPR0, !(1 << NMI));
    for four in 0..8 {
        write(base + GICR_IPRIORITYR + 4 * four, PRIORITY * 0x0101_0101);
    }
    let (four, shift) = (NMI / 4, NMI % 4 * 8);
    let priorities = (PRIORITY * 0x0101_0101) & !(0xff << shift) | NMI_PRIORITY << shift;
    write(base + GICR_IPRIORITYR + 4 * four as usize, priorities);
    FROM_CPUS.for_each(|number| enable(cpu, number));
    // SAFETY: the CPU interface's registers, by their numbers: ICC_SRE (use registers, not memory), ICC_PMR,
    //         ICC_BPR0, ICC_BPR1, ICC_CTLR (end of interrupt also deactivates), ICC_IGRPEN0 and 1. Interrupts are masked.
    unsafe {
        asm!(
            "mrs {value}, S3_0_C12_C12_5",
            "orr {value}, {value}, #1",
            "msr S3_0_C12_C12_5, {value}",
            "isb",
            "msr S3_0_C4_C6_0, {mask}",
            "msr S3_0_C12_C8_3, xzr",
            "msr S3_0_C12_C12_3, xzr",
            "msr S3_0_C12_C12_4, xzr",
            "mov {value}, #1",
            "msr S3_0_C12_C12_6, {value}",
            "msr S3_0_C12_C12_7, {value}",
            "isb",
            value = out(reg) _,
            mask = in(reg) PRIORITY_MASK,
            options(nostack, preserves_flags),
        );
    }
}

/// How many CPUs there are, as far as their redistributors are mapped.
pub(super) fn count_cpus() -> usize {
    let mapped = (memory::GIC + memory::BLOCK_SIZE - REDISTRIBUTORS) / REDISTRIBUTOR_SIZE;
    let last = |cpu| read(REDISTRIBUTORS + cpu * REDISTRIBUTOR_SIZE + GICR_TYPER) & GICR_TYPER_LAST != 0;
    (0..mapped).position(last).map_or(mapped, |last| last + 1)
}

/// What CPU `cpu` is called, as in `GICR_TYPER`: affinities 3 to 0, a byte each.
#[inline(always)]
pub(super) fn affinity(cpu: usize) -> u32 {
    read(REDISTRIBUTORS + cpu * REDISTRIBUTOR_SIZE + GICR_TYPER + 4)
}

/// Interrupts CPU `cpu`, which runs.
#[unsafe(link_section = ".text.notrace")]
pub fn send_ipi(cpu: usize, ipi: Ipi) {
    send(
        cpu,
        match ipi {
            Ipi::Reschedule => RESCHEDULE,
            Ipi::Sync => SYNC,
            Ipi::Call => CALL,
        },
    );
}

/// Sends an NMI to CPU `cpu`, which runs, and says that it did. It comes at any time, or after the handler of the one
/// before it.
#[unsafe(link_section = ".text.notrace")]
pub fn send_nmi(cpu: usize) -> bool {
    // SAFETY: ICC_SGI0R. The barrier as in `send`.
    unsafe {
        asm!("dsb ishst", "msr S3_0_C12_C11_7, {}", "isb", in(reg) to(cpu, NMI),
            options(nostack, preserves_flags));
    }
    true
}

/// Sends an NMI to this CPU and says that it did. It has come when this returns, except that a second one
/// waits for the end of a handler that is running.
#[unsafe(link_section = ".text.notrace")]
pub fn nmi_self() -> bool {
    // The caller may be moved until interrupts are off.
    let _masked = IrqsOff::new();
    let this = machine::per_cpu().cpu;
    let sent = send_nmi(this);
    let pending = || read(REDISTRIBUTORS + this * REDISTRIBUTOR_SIZE + GICR_ISPENDR0) & 1 << NMI != 0;
    // It is taken from the controller in its handler.
    while cpu::nmis_enabled() && pending() {}
    sent
}

/// Takes the pending NMI from the controller; `None` if there is none.
#[inline(always)]
pub(super) fn take_nmi() -> Option<u64> {
    let taken: u64;
    // SAFETY: ICC_IAR0, as for `dispatch`.
    unsafe {
        asm!("mrs {}, S3_0_C12_C8_0", "dsb sy", out(reg) taken, options(nostack, preserves_flags));
    }
    (taken & 0xff_ffff < SPECIAL).then_some(taken)
}

/// Says that the NMI that [`take_nmi`] gave has been handled.
#[inline(always)]
pub(super) fn end_nmi(taken: u64) {
    // SAFETY: ICC_EOIR0 with the value that ICC_IAR0 gave.
    unsafe { asm!("msr S3_0_C12_C8_1, {}", "isb", in(reg) taken, options(nostack, preserves_flags)) };
}

/// Stops the other CPUs, by NMI.
#[unsafe(link_section = ".text.notrace")]
pub fn stop_others() {
    let others = smp::online() & !(1 << machine::per_cpu().cpu);
    for cpu in 0..MAX_CPUS {
        if others & 1 << cpu != 0 {
            send_nmi(cpu);
        }
    }
}

/// Sends interrupt `number`, which is not the NMI, to CPU `cpu`.
#[inline(always)]
fn send(cpu: usize, number: u32) {
    // SAFETY: ICC_SGI1R. The first barrier: what was written before is seen by the CPU that is interrupted.
    unsafe {
        asm!("dsb ishst", "msr S3_0_C12_C11_5, {}", "isb", in(reg) to(cpu, number),
            options(nostack, preserves_flags));
    }
}

/// The word that sends interrupt `number` to CPU `cpu`, when it is written to the register of the interrupt's group.
#[inline(always)]
fn to(cpu: usize, number: u32) -> u64 {
    let affinity = u64::from(affinity(cpu));
    let (affinity_3, affinity_2, affinity_1) = (affinity >> 24, affinity >> 16 & 0xff, affinity >> 8 & 0xff);
    let (range, in_range) = ((affinity & 0xff) >> 4, affinity & 0xf);
    affinity_3 << 48
        | range << 44
        | affinity_2 << 32
        | u64::from(number) << 24
        | affinity_1 << 16
        | 1 << in_range
}

/// Enables interrupt `number`, below 32, of CPU `cpu`.
#[inline(always)]
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
    match number as u32 {
        clock::INTERRUPT => clock::interrupt(),
        RESCHEDULE => smp::interrupt(Ipi::Reschedule),
        SYNC => smp::interrupt(Ipi::Sync),
        CALL => smp::interrupt(Ipi::Call),
        _ => println!("interrupt {number}, which nobody enabled"),
    }
    // SAFETY: ICC_EOIR1 with the value that ICC_IAR1 gave.
    unsafe { asm!("msr S3_0_C12_C12_1, {}", "isb", in(reg) taken, options(nostack, preserves_flags)) };
}
