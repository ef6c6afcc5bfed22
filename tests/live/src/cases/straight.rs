//! What the trampolines record by themselves, when the function_graph tracer is the only user.

use std::hint::black_box;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::log;
use crate::process::{self, Thread};
use crate::records::{self, Recorded};
use crate::users::{User, addr, assert_settled, only};
use crate::work::{down, fib, fib_result, pair};

/// Calls that a record in short has room for, and others: small and large results, many levels, long times, and more of them than a page holds.
fn calls() {
    for n in 0..12 {
        assert_eq!(fib(black_box(n)), fib_result(n));
    }
    for n in [0, 1, 2, 30, 31, 32, 33, 40] {
        assert_eq!(down(black_box(n)), n * (n + 1) / 2);
    }
    for words in [(0, 1), (1, 0), (2, 2), (u64::MAX, 7), (1 << 63, 1 << 62)] {
        assert_ne!(black_box(pair as fn(usize, (u64, u64)) -> (u64, u64))(black_box(1), words), (5, 5));
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_micros(300) {}
    }
}

/// What is recorded of these calls, and how many there were.
fn recorded() -> (Vec<Recorded>, u64) {
    let thread = Thread::current().expect("this thread is traced");
    let before = thread.trace.stats().returns;
    // The first is not known yet to the trampolines, nor how deep it goes.
    for _ in 0..2 {
        calls();
    }
    assert_settled(thread);
    (records::take_all(), thread.trace.stats().returns - before)
}

/// The same calls are recorded the same way by the trampolines and by Rust, which is asked when there is a second user.
pub fn trampolines_record_what_rust_would() {
    process::init().expect("the sites are good");
    records::open();
    let filter = only(&[addr!(fib), addr!(down), addr!(pair)]);
    let _tracer = User::tracing(filter);
    let (alone, calls_alone) = recorded();
    let other = User::counting(filter);
    let (together, calls_together) = recorded();
    drop(other);
    assert_eq!(log::RETURNS.load(Relaxed) as u64, calls_together);
    let (again, calls_again) = recorded();
    assert_eq!([calls_alone, calls_together, calls_again], [alone.len() as u64; 3]);
    assert!(alone.len() > 1000, "{} calls", alone.len());
    assert!(alone == together, "{:?}", alone.iter().zip(&together).find(|(one, other)| one != other));
    assert!(alone == again, "{:?}", alone.iter().zip(&again).find(|(one, other)| one != other));
}

/// Whoever asks for a switch of tasks while a call is recorded gets it when the record is there.
pub fn a_switch_that_is_due_is_made_behind_the_record() {
    process::init().expect("the sites are good");
    records::open();
    let _tracer = User::tracing(only(&[addr!(fib)]));
    let thread = Thread::current().expect("this thread is traced");
    assert_eq!(fib(black_box(1)), 1);
    for asked in 1..10 {
        thread.ask_for_switch();
        assert_eq!(fib(black_box(1)), 1);
        assert_eq!((thread.switches(), thread.holds()), (asked, 0));
        assert_eq!(fib(black_box(1)), 1);
        assert_eq!(thread.switches(), asked, "nobody asked for another");
    }
    assert_eq!(records::count(), 19);
    assert_settled(thread);
}
