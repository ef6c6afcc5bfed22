//! The function_graph tracer as the only user: the straight path's assembly, where a site has a prefix, and its records.

use alloc::{vec, vec::Vec};
use core::hint::black_box;

use fgraph::ring::Item;
use fgraph::tracer;
use fgraph::wire::Record;

use super::depth::{JUMPED, around, case_tail_first, case_tail_second, descend};
use super::load::{inner, outer};
use super::probe::{Graph, addr, only};
use super::{CaseResult, Outcome, check_eq};
use crate::{buffers, machine, sched};

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
