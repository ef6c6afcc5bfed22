//! What a traced call costs, in instructions: with QEMU's `-icount shift=0` each instruction takes one nanosecond of the machine's
//! time, so two runs agree. Without it, the figures are nanoseconds of somebody else's computer, and say little.
//!
//! An empty function is called in a loop with interrupts off, untraced first; what a call costs more when it is traced is one line of
//! the form `bench NAME INSTRUCTIONS`, where the instructions have one decimal. Then the demo's work is done with everything traced and
//! without (`bench-workload NAME FIGURE`), and what things take is printed (`bench-bytes NAME BYTES`).
//!
//! With several CPUs, all that is measured is the same loop on several of them at once (`bench-cpus CPUS INSTRUCTIONS`): the machine's time
//! is that of all CPUs then, so the figure would rise if they waited for each other.

use alloc::{boxed::Box, vec, vec::Vec};
use core::{
    hint::black_box,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
};

use fgraph::ring::{Buffer, Item};
use fgraph::tracer::{self, Recorded};
use fgraph::wire::Record;
use fgraph::{
    Arm, FgraphOps, Filter, Fprobe, FtraceOps, FtraceRegs, FuncAddr, GraphOps, OpsFlags, TaskTrace, Want,
};

use crate::{
    buffers,
    console::println,
    machine::{self, Exit},
    sched, smp, workload,
};

/// Calls of a measurement.
const CALLS: u64 = 20_000;

/// Memory for the records of a measurement, and more.
const BUFFER_KB: usize = 512;

/// The same for the demo's work.
const WORKLOAD_KB: usize = 1024;

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
    // The site saves every register then, because its user of entries asks for them.
    let hooked = || with_graphs(Vec::from([hooking(only(leaf))]), || report("graph-and-op-with-regs", plain));
    let mut done = Ok(());
    with_op(FtraceOps::new(no_op, OpsFlags::SAVE_REGS, only(leaf)), || done = hooked())?;
    done?;
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

/// Prints what the demo's work takes, done by one task with interrupts off, when every function is traced, every call recorded and every
/// record kept.
fn whole_kernel() -> Result<(), fgraph::Error> {
    let at_once = || {
        let state = machine::irqs_off();
        let from = machine::clock_ns();
        let trouble = workload::at_once();
        let took = machine::clock_ns() - from;
        machine::irqs_restore(state);
        (took, trouble)
    };
    // Once for the translator.
    let (_, trouble) = at_once();
    let (untraced, _) = at_once();
    buffers::make(WORKLOAD_KB);
    buffers::switch(true);
    let figures = || {
        buffers::all()
            .map(|buffer| (buffer.counts(), buffer.bytes()))
            .fold((0, 0, 0), |sum, (counts, bytes)| {
                (sum.0 + counts.records, sum.1 + counts.refused, sum.2 + bytes)
            })
    };
    let mut traced = 0;
    with_graphs(Vec::from([tracer::function_graph(Filter::ALL)]), || {
        at_once();
        // What is recorded of this one is read.
        buffers::switch(false);
        buffers::make(WORKLOAD_KB);
        buffers::switch(true);
        (traced, _) = at_once();
        buffers::switch(false);
    })?;
    let (records, refused, bytes) = figures();
    let mut kept = 0;
    for buffer in buffers::all() {
        let mut page = vec![0; buffer.page_len()];
        let Ok(mut reader) = buffer.consume(&mut page) else { continue };
        while let Some(item) = reader.next() {
            kept += u64::from(matches!(item, Item::Record(Record::Call(_))));
        }
    }
    if let Some(trouble) = trouble {
        println!("the work went wrong: {trouble}");
    }
    println!("bench-workload untraced-instructions {untraced}");
    println!("bench-workload traced-instructions {traced}");
    println!("bench-workload calls {records}");
    println!("bench-workload lost {}", records - kept + refused);
    let hundredths = traced * 100 / untraced.max(1);
    println!("bench-workload factor {}.{:02}", hundredths / 100, hundredths % 100);
    let tenths = (traced - untraced) * 10 / records.max(1);
    println!("bench-workload instructions-a-call {}.{}", tenths / 10, tenths % 10);
    let tenths = untraced * 10 / records.max(1);
    println!("bench-workload instructions-between-calls {}.{}", tenths / 10, tenths % 10);
    let tenths = bytes * 10 / records.max(1);
    println!("bench-workload bytes-a-call {}.{}", tenths / 10, tenths % 10);
    Ok(())
}

/// Prints what things take.
fn memory() {
    for (name, bytes) in [
        ("a-site-beside-the-compilers", size_of::<u64>()),
        ("a-task", size_of::<TaskTrace>()),
        ("a-call-under-way", tracer::FRAME_BYTES),
        ("a-graph-user", size_of::<FgraphOps>()),
        ("a-user-of-entries", size_of::<FtraceOps>()),
        ("a-buffer-beside-its-words", size_of::<Buffer>()),
    ] {
        println!("bench-bytes {name} {bytes}");
    }
}

/// Who has come to the start, and who is through.
static READY: AtomicUsize = AtomicUsize::new(0);
static DONE: AtomicUsize = AtomicUsize::new(0);
static PARTIES: AtomicUsize = AtomicUsize::new(0);
static BEGUN: AtomicU64 = AtomicU64::new(0);
static ENDED: AtomicU64 = AtomicU64::new(0);

/// One CPU's part.
fn party(_: usize) {
    let state = machine::irqs_off();
    run(100);
    let parties = PARTIES.load(Ordering::Relaxed);
    if READY.fetch_add(1, Ordering::AcqRel) + 1 == parties {
        BEGUN.store(machine::clock_ns(), Ordering::Release);
    }
    while BEGUN.load(Ordering::Acquire) == 0 {
        machine::relax();
    }
    run(CALLS);
    if DONE.fetch_add(1, Ordering::AcqRel) + 1 == parties {
        ENDED.store(machine::clock_ns(), Ordering::Release);
    }
    machine::irqs_restore(state);
}

/// Tenths of an instruction of a round, on so many CPUs at once.
fn round_on(cpus: usize) -> u64 {
    PARTIES.store(cpus, Ordering::Relaxed);
    for word in [&READY, &DONE] {
        word.store(0, Ordering::Relaxed);
    }
    BEGUN.store(0, Ordering::Relaxed);
    let tasks: Vec<_> = (0..cpus).map(|cpu| sched::spawn_on(cpu, "party", party, cpu)).collect();
    tasks.into_iter().for_each(sched::join);
    let took = ENDED.load(Ordering::Relaxed) - BEGUN.load(Ordering::Relaxed);
    took * 10 / (CALLS * cpus as u64)
}

/// Prints what a recorded call takes on one CPU, and on several at once.
fn scaling(cpus: usize) -> Result<(), fgraph::Error> {
    buffers::make(BUFFER_KB);
    buffers::switch(true);
    for at_once in [1, 2, 4].into_iter().filter(|at_once| *at_once <= cpus) {
        let plain = round_on(at_once);
        with_graphs(Vec::from([tracer::function_graph(only(leaf))]), || {
            let more = round_on(at_once).saturating_sub(plain);
            println!("bench-cpus {at_once} {}.{}", more / 10, more % 10);
        })?;
    }
    buffers::switch(false);
    Ok(())
}

/// Runs all measurements.
pub fn run_all() -> Exit {
    black_box(other(black_box(1)));
    let measure = || match smp::count() {
        1 => {
            all()?;
            memory();
            whole_kernel()
        }
        cpus => scaling(cpus),
    };
    if let Err(error) = crate::tracing::started().map(drop).and_then(|()| measure()) {
        println!("fgraph: {error}");
        return Exit::Failed;
    }
    Exit::Success
}
