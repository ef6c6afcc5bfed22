//! What guards control flow beside the tracer: signed return addresses, and landing pads. Cases here show that they are in
//! force; that tracing goes on under them is what all others show.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::{CaseResult, Outcome};
use crate::{
    console::println,
    machine::{self, Guard},
};

/// Whether the guards must be there: the word `guarded` on the command line.
pub static EXPECTED: AtomicBool = AtomicBool::new(false);

/// Says what is enforced, and why not.
pub fn show() {
    let guards = machine::guards();
    println!("guards: return addresses: {}", guards.returns);
    println!("guards: indirect branches: {}", guards.branches);
}

/// Ends a case that needs a guard which is not there.
fn need(guard: Guard) -> CaseResult {
    match guard {
        Guard::Enforced(_) => Ok(()),
        Guard::Not(why) if EXPECTED.load(Relaxed) => Err(Outcome::Failed(why.into())),
        Guard::Not(why) => Err(Outcome::Skipped(why)),
    }
}

pub fn a_branch_to_no_landing_pad_faults() -> CaseResult {
    need(machine::guards().branches)?;
    #[cfg(target_arch = "aarch64")]
    arm64::branches()?;
    Ok(())
}

pub fn signed_returns_are_checked_with_the_tasks_key() -> CaseResult {
    need(machine::guards().returns)?;
    #[cfg(target_arch = "aarch64")]
    arm64::signatures()?;
    Ok(())
}

#[cfg(target_arch = "aarch64")]
mod arm64 {
    use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::{CaseResult, machine};
    use crate::{cases::check, sched};

    const MODIFIERS: usize = 4;

    static SIGNED: [AtomicUsize; MODIFIERS] = [const { AtomicUsize::new(0) }; MODIFIERS];

    fn all(address: usize) -> [usize; MODIFIERS] {
        core::array::from_fn(|modifier| machine::sign(address, modifier * 16))
    }

    fn sign_elsewhere() {
        let address = machine::text_range().start;
        for (cell, signed) in SIGNED.iter().zip(all(address)) {
            cell.store(signed, Relaxed);
        }
    }

    pub(super) fn branches() -> CaseResult {
        for _ in 0..3 {
            check!(machine::a_branch_to_no_pad_faults(), "it landed");
        }
        Ok(())
    }

    pub(super) fn signatures() -> CaseResult {
        let address = machine::text_range().start;
        let mine = all(address);
        for (n, signed) in mine.into_iter().enumerate() {
            check!(machine::PTR_AUTH.strip(signed) == address, "{signed:#x} is not {address:#x}, signed");
            check!(machine::is_signed(signed, n * 16), "{signed:#x} is refused");
            for wrong in [signed ^ 1 << 50, signed ^ 1 << 40, signed ^ 4] {
                check!(!machine::is_signed(wrong, n * 16), "{wrong:#x} is taken for {signed:#x}");
            }
        }
        // Each of a signature's 24 bits is a coin toss between two keys.
        sched::join(sched::spawn("sign", sign_elsewhere));
        let theirs = SIGNED.each_ref().map(|cell| cell.load(Relaxed));
        check!(theirs != mine, "another task signs with the same key: {mine:x?}");
        // The key came back with this task.
        check!(all(address) == mine, "the key has changed");
        Ok(())
    }
}
