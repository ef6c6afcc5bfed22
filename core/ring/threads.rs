//! A writer and readers on threads of their own. (In Miri, with its weak memory: the fences are needed.)

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::model::buffer;
use super::{Brief, Buffer, Item, Mode, Reader};
use crate::platform::Context;
use crate::testing::Random;
use crate::wire::{Call, Record, Who};

/// The `n`th record: everything in it follows from the number and its end, and the end grows.
fn brief(n: u64, end: u64) -> Brief {
    let mut random = Random::new(n);
    let func = (n & 0xf_ffff) as u32;
    let retval = [None, Some(0), Some(n), Some(random.word())][random.below(4)];
    let who = Who { task: (n / 50) as u32, context: Context::Task };
    Brief { func, depth: random.below(32) as u32, who, start: end - random.below(500) as u64, end, retval }
}

/// When the `n`th record ends.
fn end_of(n: u64) -> u64 {
    1000 + n * 700
}

/// Reads until the writer has stopped and everything is read; how many records were seen, and lost.
fn read(mut reader: Reader<'_>, stopped: &AtomicBool) -> (u64, u64) {
    let (mut next, mut seen, mut lost) = (0, 0, 0);
    loop {
        let last = stopped.load(Ordering::Acquire);
        loop {
            match reader.next() {
                None => break,
                Some(Item::Lost(count)) => lost += count,
                Some(Item::Record(Record::Call(call))) => {
                    let n = (call.end - 1000) / 700;
                    assert!(n >= next, "{n} after {next}");
                    let want = brief(n, end_of(n));
                    let whole = Call::new(want.func, want.depth, want.who, want.start, want.end);
                    assert_eq!(call, Call { retval: want.retval, ..whole });
                    (next, seen) = (n + 1, seen + 1);
                }
                Some(item) => panic!("never written: {item:?}"),
            }
        }
        if last {
            return (seen, lost);
        }
        thread::yield_now();
    }
}

fn storm(mode: Mode, pages: usize, records: u64) {
    let buffer = buffer(pages, Buffer::MIN_PAGE_WORDS, mode);
    let stopped = AtomicBool::new(false);
    let (peeked, consumed, taken) = thread::scope(|scope| {
        let peek = scope.spawn(|| read(buffer.peek(&mut [0; Buffer::MIN_PAGE_WORDS]).unwrap(), &stopped));
        let consume =
            scope.spawn(|| read(buffer.consume(&mut [0; Buffer::MIN_PAGE_WORDS]).unwrap(), &stopped));
        let mut taken = 0;
        for n in 0..records {
            taken += u64::from(buffer.call(&brief(n, end_of(n))));
            if n % 300 == 0 {
                thread::yield_now();
            }
        }
        stopped.store(true, Ordering::Release);
        (peek.join().unwrap(), consume.join().unwrap(), taken)
    });
    for (seen, lost) in [peeked, consumed] {
        assert_eq!(seen + lost, records);
    }
    let counts = buffer.counts();
    assert_eq!((counts.records, counts.refused), (taken, records - taken));
    if mode == Mode::StopWhenFull {
        assert_eq!(consumed, (taken, records - taken), "what was taken must be read");
    } else {
        assert_eq!(taken, records);
    }
    std::println!("{mode:?}, {pages} pages: of {records}, peeked {peeked:?}, consumed {consumed:?}");
}

#[test]
fn a_writer_and_two_readers_agree() {
    let records = if cfg!(miri) { 400 } else { 300_000 };
    for pages in [1, 2, 8] {
        for mode in [Mode::Overwrite, Mode::StopWhenFull] {
            storm(mode, pages, records);
        }
    }
}
