//! The interrupt controller: the local APIC of each CPU, through its registers in memory, and interrupts from one
//! CPU to another. The two 8259 of old are masked, and nothing uses an I/O APIC.

use core::{
    ptr,
    sync::atomic::{AtomicU32, Ordering},
};

use super::{super::Ipi, clock, memory, port::Port};
use crate::{console::println, lock::IrqsOff, machine, percpu::MAX_CPUS, smp};

// SAFETY: the mask registers of both 8259, which keep their interrupts from everybody.
const PIC_MASKS: [Port; 2] = unsafe { [Port::new(0x21), Port::new(0xa1)] };

/// Vectors of the interrupts from other CPUs.
const RESCHEDULE: usize = 0xf0;
const SYNC: usize = 0xf1;
const CALL: usize = 0xf2;
/// Vectors of the interrupts that the APIC makes itself.
const TIMER: usize = 0xec;
const ERROR: usize = 0xfe;
/// What the APIC delivers when the interrupt it announced has gone; nobody acknowledges it.
const SPURIOUS: usize = 0xff;

/// Registers, by their offset; Intel SDM volume 3, 12.4.1.
#[derive(Clone, Copy)]
#[repr(usize)]
enum Register {
    Id = 0x20,
    TaskPriority = 0x80,
    EndOfInterrupt = 0xb0,
    Spurious = 0xf0,
    CommandLow = 0x300,
    CommandHigh = 0x310,
    Timer = 0x320,
    /// The line on which an 8259 would interrupt.
    Line0 = 0x350,
    /// The line of NMIs from outside.
    Line1 = 0x360,
    Error = 0x370,
    TimerInitialCount = 0x380,
    TimerCount = 0x390,
    TimerDivide = 0x3e0,
}

const ENABLED: u32 = 1 << 8;
const MASKED: u32 = 1 << 16;
const DELIVER_NMI: u32 = 0b100 << 8;
const DELIVER_INIT: u32 = 0b101 << 8;
/// With the number of the page where the CPU starts as the vector.
const DELIVER_START: u32 = 0b110 << 8;
const COMMAND_PENDING: u32 = 1 << 12;
const COMMAND_ASSERT: u32 = 1 << 14;
/// To all CPUs of the machine but this one, whatever they are called.
const COMMAND_OTHERS: u32 = 0b11 << 18;
/// The timer counts every 16th cycle of its clock.
const TIMER_DIVIDE_16: u32 = 0b0011;

#[inline(always)]
fn read(register: Register) -> u32 {
    let address = memory::APIC + register as usize;
    // SAFETY: a register of the APIC, mapped as device memory; reading those above has no effect.
    unsafe { ptr::with_exposed_provenance::<u32>(address).read_volatile() }
}

#[inline(always)]
fn write(register: Register, value: u32) {
    let address = memory::APIC + register as usize;
    // SAFETY: as for `read`; the values written here configure and send interrupts whose handlers exist, and
    //         touch no memory.
    unsafe { ptr::with_exposed_provenance_mut::<u32>(address).write_volatile(value) }
}

/// What interrupts for each CPU are addressed to: the APIC's identity, where its register has it.
static IDENTITIES: [AtomicU32; MAX_CPUS] = [const { AtomicU32::new(0) }; MAX_CPUS];

/// Sets the APIC of CPU `cpu`, which is the caller's, up; the timer does not interrupt yet. The firmware has enabled it
/// as such. Called by the boot code.
#[unsafe(link_section = ".text.notrace")]
pub(super) fn init(cpu: usize) {
    if cpu == 0 {
        for port in PIC_MASKS {
            port.write(0xff);
        }
    }
    IDENTITIES[cpu].store(read(Register::Id), Ordering::Relaxed);
    write(Register::TaskPriority, 0);
    write(Register::Line0, MASKED);
    write(Register::Line1, DELIVER_NMI);
    write(Register::Error, ERROR as u32);
    write(Register::Timer, MASKED | TIMER as u32);
    write(Register::TimerDivide, TIMER_DIVIDE_16);
    write(Register::Spurious, ENABLED | SPURIOUS as u32);
}

/// Lets the timer of this CPU interrupt.
pub(super) fn enable_timer() {
    write(Register::Timer, TIMER as u32);
}

/// Keeps the timer of this CPU from interrupting.
pub(super) fn disable_timer() {
    write(Register::Timer, MASKED | TIMER as u32);
}

/// Makes the timer interrupt once, after `count` of its cycles, and forget what it was set to before.
#[inline(always)]
pub(super) fn set_timer(count: u32) {
    write(Register::TimerInitialCount, count);
}

/// How many cycles the timer has left.
#[inline(always)]
pub(super) fn timer_count() -> u32 {
    read(Register::TimerCount)
}

/// Has the APIC send what `low` says to what `high` says.
///
/// With interrupts off, because the handlers of some send interrupts too, which must not come between the two writes.
/// NMI handlers do not.
#[inline(always)]
fn send(high: u32, low: u32) {
    let _masked = IrqsOff::new();
    write(Register::CommandHigh, high);
    // An uncached write, which comes after all writes before it (Intel SDM volume 3, 9.2.2).
    write(Register::CommandLow, low | COMMAND_ASSERT);
    while read(Register::CommandLow) & COMMAND_PENDING != 0 {
        machine::relax();
    }
}

/// Interrupts CPU `cpu`, which runs.
#[unsafe(link_section = ".text.notrace")]
pub fn send_ipi(cpu: usize, ipi: Ipi) {
    let vector = match ipi {
        Ipi::Reschedule => RESCHEDULE,
        Ipi::Sync => SYNC,
        Ipi::Call => CALL,
    };
    send(IDENTITIES[cpu].load(Ordering::Relaxed), vector as u32);
}

/// Sends an NMI to CPU `cpu`, which runs, and says that it did. It comes at any time, or after the handler of the one
/// before it.
#[unsafe(link_section = ".text.notrace")]
pub fn send_nmi(cpu: usize) -> bool {
    // By number, because the shorthand for oneself cannot send NMIs (Intel SDM volume 3, table 12-1).
    send(IDENTITIES[cpu].load(Ordering::Relaxed), DELIVER_NMI);
    true
}

/// Sends an NMI to this CPU and says that it did. It has come when this returns, except that a second one
/// waits for the end of a handler that is running.
#[unsafe(link_section = ".text.notrace")]
pub fn nmi_self() -> bool {
    // The caller may be moved until interrupts are off.
    let _masked = IrqsOff::new();
    send_nmi(machine::per_cpu().cpu)
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

/// Resets all other CPUs, which then wait for [`start_others`].
pub(super) fn reset_others() {
    send(0, COMMAND_OTHERS | DELIVER_INIT);
}

/// Starts all other CPUs that wait for it at [`memory::START_PAGE`], in real mode.
pub(super) fn start_others() {
    send(0, COMMAND_OTHERS | DELIVER_START | (memory::START_PAGE >> 12) as u32);
}

/// Handles the interrupt `vector` and says so, so that the caller may switch to another task.
#[inline(never)] // its caller is outside tracing, and this need not be
pub(super) fn dispatch(vector: usize) {
    match vector {
        TIMER => clock::interrupt(),
        RESCHEDULE => smp::interrupt(Ipi::Reschedule),
        SYNC => smp::interrupt(Ipi::Sync),
        CALL => smp::interrupt(Ipi::Call),
        SPURIOUS => return,
        ERROR => println!("an error of the local APIC"),
        _ => println!("interrupt {vector}, which nobody enabled"),
    }
    write(Register::EndOfInterrupt, 0);
}
