//! The function_graph tracer as the only user: the straight path's assembly, where a site has a prefix, and its records.

use alloc::{vec, vec::Vec};
use core::hint::black_box;

use fgraph::ring::Item;
use fgraph::tracer;
use fgraph::wire::Record;
use fgraph::{LimitOptions, OpsFlags};

use super::depth::{JUMPED, around, case_tail_first, case_tail_second, descend};
use super::load::{inner, outer};
use super::probe::{Graph, Op, Probe, addr, note_entry, only};
use super::{CaseResult, Outcome, check, check_eq};
use crate::{buffers, lock::IrqLock, machine, sched};

/// Memory for the records of a case, for each CPU.
const BUFFER_KB: usize = 64;

/// What a record says of a call, beside its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The function.
    pub func: usize,
    /// Hooked calls around it.
    pub depth: u32,
    /// What it returned, if that was recorded.
    pub retval: Option<u64>,
    /// Its first argument, if arguments were recorded.
    pub argument: Option<u64>,
}

impl Recorded {
    /// A call of which no arguments were recorded.
    pub fn new(func: usize, depth: u32, retval: u64) -> Self {
        Self { func, depth, retval: Some(retval), argument: None }
    }
}

/// What the tracer alone records of `funcs` while `run` runs, in the order of their returns.
pub fn tracer_records(funcs: &[usize], run: impl FnOnce() -> CaseResult) -> Result<Vec<Recorded>, Outcome> {
    // One buffer has all of it.
    sched::pin(0);
    buffers::make(BUFFER_KB);
    buffers::switch(true);
    let done = Graph::tracing(only(funcs)).map_err(Outcome::from).and_then(|_tracer| run());
    buffers::switch(false);
    sched::unpin();
    done?;
    let mut calls = Vec::new();
    for buffer in buffers::all() {
        let mut page = vec![0; buffer.page_len()];
        let mut reader = buffer
            .consume(&mut page)
            .map_err(|error| Outcome::Failed(alloc::format!("the buffer cannot be read: {error}")))?;
        while let Some(item) = reader.next() {
            match item {
                Item::Record(Record::Call(call)) => calls.push(Recorded {
                    func: tracer::numbered_function(call.func).map_or(0, |func| func.get()),
                    depth: call.depth,
                    retval: call.retval,
                    argument: call.args.first().copied(),
                }),
                other => return Err(Outcome::Failed(alloc::format!("{other:x?} among the calls"))),
            }
        }
    }
    Ok(calls)
}

pub fn the_tracer_records_every_call() -> CaseResult {
    let (outer_at, inner_at) = (addr!(outer), addr!(inner));
    let before = machine::current().trace_block().stats();
    let mut results = Vec::new();
    let calls = tracer_records(&[outer_at, inner_at], || {
        results = (0..20).map(|n| outer(black_box(n))).collect();
        Ok(())
    })?;
    let expected: Vec<Recorded> = results
        .iter()
        .flat_map(|result| [Recorded::new(inner_at, 1, result - 1), Recorded::new(outer_at, 0, *result)])
        .collect();
    check_eq!(calls, expected, "calls");
    let after = machine::current().trace_block().stats();
    check_eq!(
        (after.calls - before.calls, after.returns - before.returns, after.depth),
        (40, 40, before.depth),
        "calls, returns, depth"
    );
    Ok(())
}

/// n + ... + 1, so many calls below the first.
#[inline(never)]
extern "C" fn sum_down(n: u64) -> u64 {
    if n == 0 { 0 } else { sum_down(black_box(n - 1)) + black_box(n) }
}

/// Calls that a record in short has room for, and others: small and large results, many levels, long times, and more of them than a page
/// holds.
fn calls_of_all_kinds() -> CaseResult {
    for round in 0..10_u64 {
        for n in [0, 1, 2, 3, 30, 31, 32, 33, 40] {
            check_eq!(sum_down(black_box(n)), n * (n + 1) / 2, "sum");
        }
        black_box(outer(black_box(u64::MAX << round)));
        let end = machine::clock_ns() + 300_000;
        while machine::clock_ns() < end {}
    }
    Ok(())
}

/// The same calls are recorded the same way by the trampolines and by Rust, which is asked when there is a second user.
pub fn trampolines_record_what_rust_would() -> CaseResult {
    let funcs = [addr!(sum_down), addr!(outer), addr!(inner)];
    let probe = Probe::new();
    let alone = tracer_records(&funcs, calls_of_all_kinds)?;
    let together = tracer_records(&funcs, || {
        let _other = Graph::probing(probe, only(&funcs)).map_err(Outcome::from)?;
        calls_of_all_kinds()
    })?;
    check_eq!(alone.len(), probe.counts().1 as usize, "records");
    check!(alone.len() > 1500, "only {} calls", alone.len());
    if let Some((one, other)) = alone.iter().zip(&together).find(|(one, other)| one != other) {
        return Err(Outcome::Failed(alloc::format!("{one:x?} alone, {other:x?} with another user")));
    }
    check_eq!(alone.len(), together.len(), "records with another user");
    Ok(())
}

pub fn the_tracer_records_arguments() -> CaseResult {
    let (outer_at, inner_at) = (addr!(outer), addr!(inner));
    let before = tracer::recorded();
    // Which takes the general path, and gives the straight one back.
    tracer::set_recorded(before | tracer::Recorded::ARGS);
    let calls = tracer_records(&[outer_at, inner_at], || {
        black_box(outer(black_box(0x1234_5678_9abc_def0)));
        tracer::set_recorded(before);
        black_box(outer(black_box(7)));
        Ok(())
    });
    tracer::set_recorded(before);
    let seen: Vec<_> = calls?.iter().map(|call| (call.func, call.depth, call.argument)).collect();
    let argument = Some(0x1234_5678_9abc_def0);
    let with = [(inner_at, 1, argument), (outer_at, 0, argument)];
    let without = [(inner_at, 1, None), (outer_at, 0, None)];
    check_eq!(seen, [with, without].concat(), "calls");
    Ok(())
}

pub fn the_tracer_records_tail_calls() -> CaseResult {
    let (first, second) = (addr!(case_tail_first), addr!(case_tail_second));
    let calls = tracer_records(&[first, second], || {
        // SAFETY: a function of one number.
        check_eq!(unsafe { case_tail_first(black_box(5)) }, 16, "result");
        Ok(())
    })?;
    let expected = [Recorded::new(second, 1, 16), Recorded::new(first, 0, 16)];
    check_eq!(calls, expected, "calls");
    Ok(())
}

pub fn the_tracer_drops_what_a_jump_left() -> CaseResult {
    let block = machine::current().trace_block();
    let before = block.stats();
    let calls = tracer_records(&[addr!(descend), addr!(around), addr!(outer)], || {
        check_eq!(around(), 123, "jumped");
        black_box(outer(black_box(1)));
        Ok(())
    })?;
    let after = block.stats();
    check_eq!(after.abandoned - before.abandoned, JUMPED as u64, "abandoned");
    check_eq!(after.depth, before.depth, "depth");
    let seen: Vec<_> = calls.iter().map(|call| (call.func, call.depth)).collect();
    check_eq!(seen, [(addr!(around), 0), (addr!(outer), 0)], "calls");
    check_eq!(calls[0].retval, Some(123), "what the jump came back with");
    Ok(())
}

/// Calls `inner`, which is short, and stays for the threshold and more if `n` is odd.
#[inline(never)]
extern "C" fn odd_is_long(n: u64) -> u64 {
    let until = machine::clock_ns() + THRESH_NS;
    while n & 1 == 1 && machine::clock_ns() <= until {}
    inner(n) ^ inner(n + 1)
}

/// So long that what is not meant to be does not get there, unless it is interrupted.
const THRESH_NS: u64 = 20_000_000;

/// On the straight path, where the assembly decides, and on the other.
pub fn the_tracer_leaves_out_short_calls() -> CaseResult {
    let funcs = [addr!(odd_is_long), addr!(inner)];
    for options in [LimitOptions::all(), LimitOptions::all() - LimitOptions::SLEEP_TIME] {
        let before = machine::current().trace_block().stats();
        tracer::limits().set_thresh_ns(THRESH_NS);
        tracer::limits().set_options(options);
        tracer::limits_changed();
        let calls = tracer_records(&funcs, || {
            // The CPU is this task's, so that no call gets long by waiting for it.
            let irqs = machine::irqs_off();
            (0..10).for_each(|n| {
                black_box(odd_is_long(black_box(n)));
            });
            machine::irqs_restore(irqs);
            Ok(())
        });
        tracer::limits().set_thresh_ns(0);
        tracer::limits().set_options(LimitOptions::all());
        tracer::limits_changed();
        let calls = calls?;
        let long: Vec<_> = calls.iter().filter(|call| call.func == addr!(odd_is_long)).collect();
        // A short call is long while the host runs something else.
        check!(long.len() >= 5, "{} of 5 long calls with {options:?}", long.len());
        check!(calls.len() < 25, "{} of 30 calls with {options:?}", calls.len());
        let after = machine::current().trace_block().stats();
        check_eq!(
            (after.calls - before.calls, after.returns - before.returns),
            (30, 30),
            "calls and returns"
        );
    }
    Ok(())
}

static COMES: IrqLock<Option<Op>> = IrqLock::new(None);

/// Lets another user come, and stay.
#[inline(never)]
extern "C" fn lets_one_come(_: u64) -> u64 {
    let op = Op::register(note_entry, OpsFlags::empty(), only(&[addr!(inner)]), Probe::new().word());
    *COMES.lock() = op.ok();
    0
}

/// Such a call begins on the straight path, and returns on the other.
pub fn a_threshold_counts_for_calls_that_change_paths() -> CaseResult {
    const FOREVER_NS: u64 = 3_600_000_000_000;
    for (thresh_ns, recorded) in [(0, 1), (FOREVER_NS, 0)] {
        tracer::limits().set_thresh_ns(thresh_ns);
        tracer::limits_changed();
        let mut came = false;
        let calls = tracer_records(&[addr!(lets_one_come)], || {
            black_box(lets_one_come(black_box(1)));
            came = COMES.lock().take().is_some();
            Ok(())
        });
        tracer::limits().set_thresh_ns(0);
        tracer::limits_changed();
        check!(came, "the other user was refused");
        check_eq!(calls?.len(), recorded, "calls with a threshold of so many ns");
    }
    Ok(())
}
