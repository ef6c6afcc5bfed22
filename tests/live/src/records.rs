//! What the function_graph tracer records in this process: a ring buffer for each thread.

use std::sync::atomic::AtomicU64;

use fgraph::FuncAddr;
use fgraph::ring::{Buffer, Item, Mode};
use fgraph::tracer;
use fgraph::wire::{Record, Who};

/// Threads that can be recorded.
const THREADS: usize = 16;
const PAGE_WORDS: usize = 512;
const WORDS: usize = 64 * PAGE_WORDS;

fn buffers() -> impl Iterator<Item = &'static Buffer> {
    (0..THREADS).filter_map(|cpu| tracer::ring(cpu)?.buffer())
}

/// Gives each thread a buffer, and lets it be written. Once.
pub fn open() {
    for cpu in 0..THREADS {
        let words: Vec<AtomicU64> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
        let buffer =
            Buffer::new(cpu as u16, Box::leak(words.into_boxed_slice()), PAGE_WORDS, Mode::Overwrite);
        let ring = tracer::ring(cpu).expect("there are more rings than that");
        ring.swap(Some(Box::leak(Box::new(buffer.expect("enough memory"))))).expect("nobody reads");
        ring.on();
    }
}

/// How many calls were recorded, those that were overwritten since included. None may have been refused.
pub fn count() -> u64 {
    buffers()
        .map(Buffer::counts)
        .map(|counts| {
            assert_eq!(counts.refused, 0, "refused records");
            counts.records
        })
        .sum()
}

/// A call that was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The function.
    pub func: FuncAddr,
    /// How many calls were around it.
    pub depth: u32,
    /// What it returned.
    pub retval: Option<u64>,
    /// By whom.
    pub who: Who,
}

/// The functions of the calls that were recorded since the last time, and what they returned.
pub fn take() -> Vec<(FuncAddr, Option<u64>)> {
    take_all().iter().map(|call| (call.func, call.retval)).collect()
}

/// The calls that were recorded since the last time. Their times are in order, and none is negative.
pub fn take_all() -> Vec<Recorded> {
    let mut calls = Vec::new();
    for buffer in buffers() {
        let mut page = vec![0; buffer.page_len()];
        let mut last = 0;
        let mut reader = buffer.consume(&mut page).expect("nobody else reads");
        while let Some(item) = reader.next() {
            let Item::Record(Record::Call(call)) = item else { panic!("{item:?} among the calls") };
            assert!(last <= call.end && call.start <= call.end, "{call:?} behind {last}");
            last = call.end;
            calls.push(Recorded {
                func: tracer::numbered_function(call.func).expect("a function with a number"),
                depth: call.depth,
                retval: call.retval,
                who: call.who,
            });
        }
    }
    calls
}
