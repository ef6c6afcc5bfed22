//! The clock and the periodic interrupt: time stamp counter and APIC timer, both measured against the one
//! timer whose rate is known, channel 2 of the 8254.
//!
//! Invariant: `SCALE` and `TIMER_HZ` are never 0 once the boot code has called [`init`].

use core::{
    arch::x86_64::_rdtsc,
    sync::atomic::{AtomicU64, Ordering},
};

use super::{apic, port::Port};
use crate::{lock::IrqsOff, machine, percpu::MAX_CPUS, sched, smp};

/// What the 8254 counts in a second, whatever else is in the machine.
const PIT_HZ: u64 = 1_193_182;
// SAFETY: of these: the 8254's registers, and it has no access to memory.
const PIT_CHANNEL_2: Port = unsafe { Port::new(0x42) };
// SAFETY: as above.
const PIT_COMMAND: Port = unsafe { Port::new(0x43) };
/// Channel 2, low byte then high byte, counts down once.
const PIT_COUNT_DOWN: u8 = 0b1011_0000;
/// Channel 2, keep the count for reading.
const PIT_LATCH: u8 = 0b1000_0000;

// SAFETY: the gate and the output of channel 2, and the speaker.
const GATE: Port = unsafe { Port::new(0x61) };
const GATE_OPEN: u8 = 1 << 0;
const GATE_SPEAKER: u8 = 1 << 1;
/// The count has come to its end.
const GATE_OUTPUT: u8 = 1 << 5;

/// How long the measurement takes, in counts of the 8254, of which it has 65535: 25 ms.
const MEASURED: u64 = PIT_HZ / 40;
/// Rates to live with if nothing can be measured.
const FALLBACK_TSC_HZ: u64 = 1_000_000_000;
const FALLBACK_TIMER_HZ: u64 = 62_500_000;

/// The time stamp counter at boot.
static START: AtomicU64 = AtomicU64::new(0);
/// Nanoseconds for each count, as a fraction of 2^32.
static SCALE: AtomicU64 = AtomicU64::new(0);
/// What the APIC timer counts in a second.
static TIMER_HZ: AtomicU64 = AtomicU64::new(FALLBACK_TIMER_HZ);
/// Nanoseconds from one timer interrupt to the next.
static PERIOD_NS: AtomicU64 = AtomicU64::new(0);
/// When the next is due, by CPU.
static DUE_NS: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];

#[inline(always)]
fn counter() -> u64 {
    // SAFETY: reads a counter that every 64-bit CPU has. No barrier: an early read by a few instructions is as
    //         true a time as any.
    unsafe { _rdtsc() }
}

/// The three counters at one moment, all counting up from the start of the measurement.
#[derive(Clone, Copy)]
struct Moment {
    tsc: u64,
    timer: u64,
    pit: u64,
}

impl Moment {
    /// The best of several tries: whatever keeps this CPU from running in between makes the time between the
    /// first and the last read longer.
    fn now() -> Self {
        let mut best = Self::read();
        for _ in 0..15 {
            let next = Self::read();
            if next.1 < best.1 {
                best = next;
            }
        }
        best.0
    }

    /// The counters, and how long reading them took.
    fn read() -> (Self, u64) {
        let before = counter();
        PIT_COMMAND.write(PIT_LATCH);
        let timer = apic::timer_count();
        let took = counter().saturating_sub(before);
        let (low, high) = (PIT_CHANNEL_2.read(), PIT_CHANNEL_2.read());
        let pit = u16::from_le_bytes([low, high]);
        let moment = Self { tsc: before, timer: u64::from(u32::MAX - timer), pit: u64::from(u16::MAX - pit) };
        (moment, took)
    }
}

/// Starts the clock at 0. Called by the boot code, before anything asks for the time and after the APIC is set
/// up.
pub(super) fn init() {
    // A measurement fails if something keeps this CPU from running until the 8254 has come to its end.
    let (tsc_hz, timer_hz) = (0..20).find_map(|_| measure()).unwrap_or((FALLBACK_TSC_HZ, FALLBACK_TIMER_HZ));
    TIMER_HZ.store(timer_hz, Ordering::Relaxed);
    SCALE.store((1_000_000_000 << 32) / tsc_hz, Ordering::Relaxed);
    START.store(counter(), Ordering::Relaxed);
}

/// The rates of the time stamp counter and of the APIC timer, neither of them 0.
fn measure() -> Option<(u64, u64)> {
    let gate = GATE.read() & !(GATE_SPEAKER | GATE_OPEN);
    GATE.write(gate);
    PIT_COMMAND.write(PIT_COUNT_DOWN);
    PIT_CHANNEL_2.write(0xff);
    PIT_CHANNEL_2.write(0xff);
    apic::set_timer(u32::MAX);
    GATE.write(gate | GATE_OPEN);

    let from = Moment::now();
    while Moment::read().0.pit < MEASURED && GATE.read() & GATE_OUTPUT == 0 {}
    let to = Moment::now();
    // The 8254 goes on counting from the top, so the counts mean something only if it has not been there.
    let ended = GATE.read() & GATE_OUTPUT != 0;
    GATE.write(gate);
    apic::set_timer(0);

    let pit = to.pit.checked_sub(from.pit).filter(|&counts| counts != 0 && !ended)?;
    let rate = |counts: u64| counts.checked_mul(PIT_HZ).map(|counts| counts / pit).filter(|&hz| hz != 0);
    let tsc_hz = rate(to.tsc.checked_sub(from.tsc)?)?;
    let timer_hz = rate(to.timer.checked_sub(from.timer)?)?;
    Some((tsc_hz, timer_hz))
}

/// Nanoseconds since boot, never going back.
#[inline(always)]
pub fn clock_ns() -> u64 {
    ns_of(counter())
}

/// What the counter's value is on the clock.
#[inline(always)]
pub fn ns_of(count: u64) -> u64 {
    let counts = count.saturating_sub(START.load(Ordering::Relaxed));
    ((u128::from(counts) * u128::from(SCALE.load(Ordering::Relaxed))) >> 32) as u64
}

/// The counter at the clock's 0, and its counts a second.
pub fn clock_rate() -> (u64, u64) {
    (START.load(Ordering::Relaxed), (1_000_000_000 << 32) / SCALE.load(Ordering::Relaxed).max(1))
}

/// Starts the periodic interrupt of this CPU, `hz` times a second.
pub fn timer_start(hz: u32) {
    apic::enable_timer();
    set_period(hz);
    restart();
}

/// Ends it on this CPU, until the next [`timer_start`].
pub fn timer_stop() {
    apic::disable_timer();
}

/// Changes its rate, and that of the other CPUs, counting from now. Rates that are 0 or above the clock's are taken as
/// the nearest possible. For task context with interrupts on.
pub fn timer_set_hz(hz: u32) {
    set_period(hz);
    restart();
    smp::call_others(restart);
}

fn set_period(hz: u32) {
    PERIOD_NS.store((1_000_000_000 / u64::from(hz.max(1))).max(1), Ordering::Relaxed);
}

/// Makes the period count from now on this CPU.
fn restart() {
    // An interrupt in between would set the timer by half of what is new.
    let _irqs = IrqsOff::new();
    let now = clock_ns();
    arm(now, now + PERIOD_NS.load(Ordering::Relaxed));
}

/// The periodic interrupt.
pub(super) fn interrupt() {
    let period = PERIOD_NS.load(Ordering::Relaxed);
    let next = DUE_NS[machine::per_cpu().cpu].load(Ordering::Relaxed).wrapping_add(period);
    // After a long stop, periods that have passed are not made up for. This is why the timer is not left to
    // repeat itself: how many of its interrupts come then is up to the host.
    let now = clock_ns();
    arm(now, if next > now { next } else { now + period });
    sched::tick();
}

/// Makes the timer of this CPU interrupt once, at `due` or a little later.
fn arm(now: u64, due: u64) {
    DUE_NS[machine::per_cpu().cpu].store(due, Ordering::Relaxed);
    let counts = (u128::from(due - now) * u128::from(TIMER_HZ.load(Ordering::Relaxed))) / 1_000_000_000 + 1;
    apic::set_timer(u32::try_from(counts).unwrap_or(u32::MAX));
}
