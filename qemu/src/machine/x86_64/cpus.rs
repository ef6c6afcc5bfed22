//! Starting the other CPUs.
//!
//! They are not asked who they are: all of them start at once, and each takes the next number (see `boot`). So nobody has
//! to read the firmware's tables for their identities.

use core::{ptr, slice};

use super::{apic, boot, clock, memory};
use crate::machine;

/// How long a reset CPU needs before it can be started, and how long it may take to notice the start; Intel SDM volume 3,
/// 10.4.4.
const AFTER_RESET_NS: u64 = 10_000_000;
const AFTER_START_NS: u64 = 200_000;

/// Starts all CPUs of the machine, of which those with numbers from `count` on stop at once. Does not wait for them.
pub fn start_cpus(_count: usize) {
    let code = boot::start_code();
    let page = ptr::with_exposed_provenance_mut::<u8>(memory::START_PAGE);
    // SAFETY: 1. The page is mapped, writable and for this alone. 2. The code is smaller.
    unsafe { slice::from_raw_parts_mut(page, code.len()) }.copy_from_slice(code);
    apic::reset_others();
    wait(AFTER_RESET_NS);
    // The second for a CPU that has missed the first; others take no notice of it.
    for _ in 0..2 {
        apic::start_others();
        wait(AFTER_START_NS);
    }
}

fn wait(ns: u64) {
    let until = clock::clock_ns() + ns;
    while clock::clock_ns() < until {
        machine::relax();
    }
}
