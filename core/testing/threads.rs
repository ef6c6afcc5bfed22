//! The grace period among real threads, which Miri checks for races. In every order of steps,
//! and with interrupts between any two: `tests/loom`.

use std::boxed::Box;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::vec::Vec;

use crate::quiesce::Quiesce;
use crate::sync::{AtomicPtr, AtomicUsize, Ordering};
use crate::testing::kernel::{self, Fake};

const CPUS: usize = 2;
const GONE: usize = usize::MAX;

/// The barrier's interrupts: how many were sent, and how many each CPU took.
#[derive(Default)]
struct Barriers {
    sent: AtomicUsize,
    taken: [AtomicUsize; CPUS],
}

impl Barriers {
    fn send(&self) {
        let number = self.sent.fetch_add(1, Ordering::SeqCst) + 1;
        for taken in &self.taken {
            while taken.load(Ordering::Acquire) < number {
                thread::yield_now();
            }
        }
    }

    fn take(&self, cpu: usize) {
        let sent = self.sent.load(Ordering::Acquire);
        self.taken[cpu].swap(sent, Ordering::SeqCst);
    }
}

/// A reader that fails holds nobody up.
struct Reader<'a>(&'a Barriers, usize);

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        self.0.taken[self.1].store(usize::MAX, Ordering::Release);
    }
}

/// One thread for each CPU reads a number that another thread replaces, and the old one is reused.
#[test]
fn what_is_taken_away_can_be_reused() {
    let replacements = if cfg!(miri) { 20 } else { 100 };
    let quiesce = Arc::new(Quiesce::<CPUS>::new());
    let barriers = Arc::new(Barriers::default());
    let current = Arc::new(AtomicPtr::new(Box::into_raw(Box::new(0usize))));
    let readers: Vec<_> = (0..CPUS)
        .map(|cpu| {
            let (quiesce, barriers, current) =
                (Arc::clone(&quiesce), Arc::clone(&barriers), Arc::clone(&current));
            thread::spawn(move || {
                let _reader = Reader(&barriers, cpu);
                let mut last = 0;
                while last < replacements {
                    let section = quiesce.enter(cpu).unwrap();
                    let inner = quiesce.enter(cpu);
                    let number = current.load(Ordering::Acquire);
                    thread::yield_now();
                    barriers.take(cpu);
                    drop(inner);
                    barriers.take(cpu);
                    thread::yield_now();
                    // SAFETY: the section is under way, so it is not reused yet: that is what is tested.
                    let number = unsafe { *number };
                    assert!(number != GONE && number >= last);
                    last = number;
                    drop(section);
                    barriers.take(cpu);
                    thread::yield_now();
                }
                // From here on the CPU is idle: it takes every interrupt.
                while barriers.sent.load(Ordering::Acquire) <= replacements {
                    barriers.take(cpu);
                    thread::yield_now();
                }
            })
        })
        .collect();

    kernel::boot(0, Vec::new(), Vec::new());
    let sent = Arc::clone(&barriers);
    kernel::with(|kernel| kernel.watch = Some(Rc::new(move |_| sent.send())));
    let mut gone = Vec::new();
    for number in 1..=replacements {
        let old = current.swap(Box::into_raw(Box::new(number)), Ordering::AcqRel);
        quiesce.synchronize::<Fake>();
        // Not freed before the end: who uses it even so is to find this, and not what the allocator makes of it.
        // SAFETY: from a box, and nobody uses it any more.
        unsafe { *old = GONE };
        gone.push(old);
    }
    barriers.sent.fetch_add(1, Ordering::Release);
    for reader in readers {
        reader.join().unwrap();
    }
    gone.push(current.load(Ordering::Relaxed));
    for number in gone {
        // SAFETY: from a box, and the readers are gone.
        drop(unsafe { Box::from_raw(number) });
    }
}

#[test]
fn a_cpu_beyond_the_last_has_no_section() {
    let quiesce = Quiesce::<CPUS>::new();
    assert!(quiesce.enter(CPUS - 1).is_some() && quiesce.enter(CPUS).is_none());
    assert!(quiesce.enter(usize::MAX).is_none());
}

#[test]
fn nobody_waits_for_sections_that_have_ended() {
    kernel::boot(0, Vec::new(), Vec::new());
    let quiesce = Quiesce::<CPUS>::new();
    for cpu in 0..CPUS {
        drop((quiesce.enter(cpu), quiesce.enter(cpu)));
    }
    quiesce.synchronize::<Fake>();
    assert_eq!(kernel::with(|kernel| kernel.syncs), 1);
}
