//! The clock and the periodic interrupt, both from the virtual generic timer.

use core::{
    arch::asm,
    sync::atomic::{AtomicU64, Ordering},
};

use super::gic;
use crate::{machine, sched, smp};

/// The virtual timer's interrupt: the same number on every CPU.
pub(super) const INTERRUPT: u32 = 27;

/// The counter at boot.
static START: AtomicU64 = AtomicU64::new(0);
/// Nanoseconds for each count, as a fraction of 2^32.
static SCALE: AtomicU64 = AtomicU64::new(0);
/// Counts from one timer interrupt to the next.
static PERIOD: AtomicU64 = AtomicU64::new(0);

#[inline(always)]
fn counter() -> u64 {
    let count;
    // SAFETY: reads CNTVCT_EL0. No barrier: an early read by a few instructions is as true a time as any.
    unsafe { asm!("mrs {}, cntvct_el0", out(reg) count, options(nomem, nostack, preserves_flags)) };
    count
}

fn frequency() -> u64 {
    let hz;
    // SAFETY: reads CNTFRQ_EL0.
    unsafe { asm!("mrs {}, cntfrq_el0", out(reg) hz, options(nomem, nostack, preserves_flags)) };
    hz
}

/// Starts the clock at 0. Called by the boot code, before anything asks for the time.
pub(super) fn init() {
    START.store(counter(), Ordering::Relaxed);
    SCALE.store((1_000_000_000 << 32) / frequency(), Ordering::Relaxed);
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
    set_period(hz);
    restart();
    gic::enable(machine::per_cpu().cpu, INTERRUPT);
}

/// Ends it on this CPU, until the next [`timer_start`].
pub fn timer_stop() {
    // SAFETY: CNTV_CTL_EL0 of this CPU: disabled, and its interrupt line with it.
    unsafe { asm!("msr cntv_ctl_el0, xzr", "isb", options(nostack, preserves_flags)) };
}

/// Changes its rate, and that of the other CPUs, counting from now. Rates that are 0 or above the counter's are taken as
/// the nearest possible. For task context with interrupts on.
pub fn timer_set_hz(hz: u32) {
    set_period(hz);
    restart();
    smp::call_others(restart);
}

fn set_period(hz: u32) {
    PERIOD.store((frequency() / u64::from(hz.max(1))).max(1), Ordering::Relaxed);
}

/// Makes the period count from now on this CPU.
fn restart() {
    arm(counter() + PERIOD.load(Ordering::Relaxed));
}

/// The periodic interrupt.
pub(super) fn interrupt() {
    let period = PERIOD.load(Ordering::Relaxed);
    let next = due().wrapping_add(period);
    // After a long stop, periods that have passed are not made up for.
    let now = counter();
    arm(if next > now { next } else { now + period });
    sched::tick();
}

/// When the timer is due.
fn due() -> u64 {
    let count;
    // SAFETY: reads CNTV_CVAL_EL0.
    unsafe { asm!("mrs {}, cntv_cval_el0", out(reg) count, options(nomem, nostack, preserves_flags)) };
    count
}

/// Makes the timer due at `count`, and lowers its interrupt line until then.
fn arm(count: u64) {
    // SAFETY: CNTV_CVAL_EL0 and CNTV_CTL_EL0 (enabled, not masked) of this CPU; the interrupt has a handler.
    unsafe {
        asm!("msr cntv_cval_el0, {}", "msr cntv_ctl_el0, {}", "isb", in(reg) count, in(reg) 1_u64,
            options(nostack, preserves_flags));
    }
}
