//! What a traced call costs, in instructions: with QEMU's `-icount shift=0` each instruction takes one nanosecond of the machine's
//! time, so two runs agree. Without it, the figures are nanoseconds of somebody else's computer, and say little.
//!
//! An empty function is called in a loop with interrupts off, untraced first; what a call costs more when it is traced is one line of
//! the form `bench NAME INSTRUCTIONS`, where the instructions have one decimal.

use alloc::{boxed::Box, vec, vec::Vec};
use core::hint::black_box;

use fgraph::ring::Item;
use fgraph::tracer::{self, Recorded};
use fgraph::wire::Record;
use fgraph::{Arm, FgraphOps, Filter, Fprobe, FtraceOps, FtraceRegs, FuncAddr, GraphOps, OpsFlags, Want};

use crate::{
    buffers,
    console::println,
    machine::{self, Exit},
};

/// Calls of a measurement.
const CALLS: u64 = 20_000;

/// Memory for the records of a measurement, and more.
const BUFFER_KB: usize = 512;

/// What is called.
#[inline(never)]
extern "C" fn leaf(n: usize) -> usize {
    black_box(n)
}

/// Something else that is traced.
#[inline(never)]
extern "C" fn other(n: usize) -> usize {
    black_box(n + 1)
}

/// Tenths of an instruction for one round of the loop.
fn round() -> u64 {
    let state = machine::irqs_off();
    // Once for the translator, which may take the machine's time for what it does first.
    run(100);
    let from = machine::clock_ns();
    run(CALLS);
    let to = machine::clock_ns();
    machine::irqs_restore(state);
    (to - from) * 10 / CALLS
}

#[inline(never)]
#[unsafe(link_section = ".text.notrace")]
fn run(calls: u64) {
    for n in 0..calls {
        // A value that a record needs a word for.
        leaf(black_box(n as usize | 0x1000));
    }
}

/// Prints what a round costs more than one without a tracer.
fn report(name: &str, plain: u64) {
    let more = round().saturating_sub(plain);
    println!("bench {name} {}.{}", more / 10, more % 10);
}

/// Prints how long the calls took by their records, on average: a few instructions are the function's own.
fn report_duration() {
    let (mut calls, mut ns) = (0, 0);
    for buffer in buffers::all() {
        let mut page = vec![0; buffer.page_len()];
        let Ok(mut reader) = buffer.consume(&mut page) else { continue };
        while let Some(item) = reader.next() {
            if let Item::Record(Record::Call(call)) = item {
                calls += 1;
                ns += machine::ns_of(call.end) - machine::ns_of(call.start);
            }
        }
    }
    let tenths = ns * 10 / calls.max(1);
    println!("bench duration {}.{}", tenths / 10, tenths % 10);
}

fn only(func: extern "C" fn(usize) -> usize) -> Filter {
    Filter::only(Box::leak(Box::new([FuncAddr::new(func as *const () as usize)])))
}

fn keep<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

fn no_op(_: FuncAddr, _: fgraph::RetAddr, _: &FtraceOps, _: &mut FtraceRegs) {}

/// Runs `measure` with a user of entries.
fn with_op(op: FtraceOps, measure: impl FnOnce()) -> Result<(), fgraph::Error> {
    let op = keep(op);
    fgraph::register_ftrace_function(op)?;
    measure();
    fgraph::unregister_ftrace_function(op)
}

/// Runs `measure` with graph users.
fn with_graphs(users: Vec<FgraphOps>, measure: impl FnOnce()) -> Result<(), fgraph::Error> {
    let users: Vec<&'static FgraphOps> = users.into_iter().map(keep).collect();
    for user in &users {
        fgraph::register_ftrace_graph(user)?;
    }
    measure();
    for user in users {
        fgraph::unregister_ftrace_graph(user)?;
    }
    Ok(())
}

fn hooking(filter: Filter) -> FgraphOps {
    GraphOps::new(|_, _| Want::Return, |_, _| {}, filter)
}

fn all() -> Result<(), fgraph::Error> {
    let plain = round();
    println!("bench loop {}.{}", plain / 10, plain % 10);
    report("untraced", plain);
    with_op(FtraceOps::new(no_op, OpsFlags::empty(), only(leaf)), || report("function-op", plain))?;
    with_op(FtraceOps::new(no_op, OpsFlags::SAVE_REGS, only(leaf)), || report("function-op-regs", plain))?;
    let uninterested = GraphOps::new(|_, _| Want::Nothing, |_, _| {}, only(leaf));
    with_graphs(Vec::from([uninterested]), || report("graph-entry-only", plain))?;
    with_graphs(Vec::from([hooking(only(leaf))]), || report("graph-hooking", plain))?;
    with_graphs((0..16).map(|_| hooking(only(leaf))).collect(), || report("graph-hooking-16", plain))?;
    with_graphs(Vec::from([hooking(only(other))]), || report("filter-miss", plain))?;

    buffers::make(BUFFER_KB);
    with_graphs(Vec::from([tracer::function_graph(only(leaf))]), || {
        report("graph-off", plain);
        buffers::switch(true);
        tracer::set_recorded(Recorded::empty());
        report("graph-record", plain);
        tracer::set_recorded(Recorded::RETVAL);
        report("graph-record-retval", plain);
        report_duration();
        tracer::limits().set_thresh_ns(1_000_000);
        tracer::limits_changed();
        report("graph-thresh", plain);
        tracer::limits().set_thresh_ns(0);
        tracer::limits_changed();
        tracer::set_recorded(Recorded::RETVAL | Recorded::SECOND | Recorded::RET_ADDR);
        report("graph-record-all", plain);
        tracer::set_recorded(Recorded::RETVAL);
    })?;
    with_op(tracer::function(only(leaf)), || report("function-record", plain))?;
    buffers::switch(false);

    let funcs: &'static [FuncAddr] = Box::leak(Box::new([FuncAddr::new(leaf as *const () as usize)]));
    let probe = keep(Fprobe::both(funcs, |_, _| Arm::Exit, |_, _| {}));
    if let Err(error) = fgraph::register_fprobe(probe) {
        println!("fprobe: {error}");
        return Ok(());
    }
    report("fprobe-pair", plain);
    // Registered above.
    let _ = fgraph::unregister_fprobe(probe);
    Ok(())
}

/// Runs all measurements.
pub fn run_all() -> Exit {
    black_box(other(black_box(1)));
    if let Err(error) = crate::tracing::started().map(drop).and_then(|()| all()) {
        println!("fgraph: {error}");
        return Exit::Failed;
    }
    Exit::Success
}
