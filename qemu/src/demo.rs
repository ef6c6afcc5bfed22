//! The demo: the kernel unpacks its initrd while the function_graph tracer watches every function, and the console shows
//! what happened.

use alloc::{boxed::Box, vec::Vec};
use core::fmt;

use fgraph::record::Record;
use fgraph::text::{CpuState, Event, Kind, Options, Printer};
use fgraph::{FgraphOps, Filter, tracer};

use crate::{
    console::{print, println},
    machine::{self, Exit},
    percpu::MAX_CPUS,
    start,
    tracing::{self, Named, Names},
    workload,
};

/// Timer interrupts a second: often enough that a switch in the middle of a call can be seen.
const TICK_HZ: u32 = 1000;

/// Records kept for each CPU.
const RECORDS: usize = 32 * 1024;

/// Lines shown of the beginning, and around a preemption.
const LINES_SHOWN: usize = 64;

static GRAPH: FgraphOps = tracer::function_graph(Filter::ALL);

/// Console output that skips lines: a long graph is shown in parts.
struct Excerpt {
    line: usize,
    shown: core::ops::Range<usize>,
}

impl fmt::Write for Excerpt {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for part in text.split_inclusive('\n') {
            if self.shown.contains(&self.line) {
                print!("{part}");
            }
            self.line += usize::from(part.ends_with('\n'));
        }
        Ok(())
    }
}

/// Counts lines.
struct Lines(usize);

impl fmt::Write for Lines {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 += text.matches('\n').count();
        Ok(())
    }
}

/// Runs the demo.
pub fn run() -> Exit {
    let report = match tracing::started() {
        Ok(report) => report,
        Err(error) => {
            let site = error.site().map(|site| alloc::format!(" (in {})", Named(site.get())));
            println!("fgraph: {error}{}", site.unwrap_or_default());
            return Exit::Failed;
        }
    };
    if let Err(error) = tracing::symbols() {
        println!("fgraph: no function names: {error}");
    }
    for cpu in 0..MAX_CPUS {
        let records: Vec<Record> = (0..RECORDS).map(|_| Record::new()).collect();
        tracer::log(cpu).give(Box::leak(records.into_boxed_slice()));
    }

    machine::timer_set_hz(TICK_HZ);
    if let Err(error) = fgraph::register_ftrace_graph(&GRAPH) {
        println!("fgraph: {error}");
        return Exit::Failed;
    }
    let patched = fgraph::stats().patched;
    let result = workload::run();
    let ended = fgraph::unregister_ftrace_graph(&GRAPH);
    machine::timer_set_hz(start::TICK_HZ);

    show_graph();
    println!("\n{result}\n");
    let figures = Figures::new();
    println!(
        "sites found     {:>8}   ({} more are the tracer's own and kept out)",
        report.sites, report.notrace
    );
    println!("sites patched   {patched:>8}");
    println!("calls traced    {:>8}   ({} returned while the tracer was on)", figures.calls, figures.returns);
    println!("deepest nesting {:>8}", figures.deepest);
    println!("lost records    {:>8}", figures.lost);
    if let Some(trouble) = result.trouble {
        println!("the workload failed: {trouble}");
        return Exit::Failed;
    }
    if let Err(error) = ended {
        println!("fgraph: {error}");
        return Exit::Failed;
    }
    Exit::Success
}

/// All events, those of each CPU in order, merged by time.
fn print_all(out: &mut dyn fmt::Write, header: bool) {
    let mut cpus = [const { CpuState::NEW }; MAX_CPUS];
    let options = Options::default() | Options::PROC | Options::RETVAL | Options::RETVAL_HEX;
    let mut printer = Printer::new(options, &mut cpus);
    let mut logs: [_; MAX_CPUS] =
        core::array::from_fn(|cpu| tracer::log(cpu).events(cpu as u32, &tracing::task_of).peekable());
    // The console takes everything.
    if header {
        let _ = printer.header(out);
    }
    let _ = printer.merged(&mut logs, &Names, out);
}

/// Shows the beginning of the graph and the first preemption of the workload in it.
fn show_graph() {
    let mut lines = Lines(0);
    print_all(&mut lines, true);
    let total = lines.0;
    print_all(&mut Excerpt { line: 0, shown: 0..LINES_SHOWN }, true);

    if let Some(at) = line_of_preemption() {
        let begin = at.saturating_sub(LINES_SHOWN / 3).max(LINES_SHOWN);
        let end = (begin + LINES_SHOWN).min(total);
        println!(
            " ... {} lines on, the timer takes the CPU from a task in the middle of its work:",
            begin - LINES_SHOWN
        );
        print_all(&mut Excerpt { line: 0, shown: begin..end }, true);
        println!(" ... {} lines more", total - end);
    } else {
        println!(" ... {} lines more", total.saturating_sub(LINES_SHOWN));
    }
}

/// In which line of the graph a task is first switched away from deep in its work, which it did not ask for: those that
/// wait do it a few calls below their first.
fn line_of_preemption() -> Option<usize> {
    const DEEP: u32 = 5;
    let mut events = tracer::log(0).events(0, &tracing::task_of).peekable();
    let mut lines = Lines(4);
    let mut cpus = [const { CpuState::NEW }; MAX_CPUS];
    let mut printer = Printer::new(Options::default(), &mut cpus);
    let mut before: Option<(u32, u32)> = None;
    // The events up to there, printed without showing them.
    while let Some(event) = events.next() {
        let (pid, depth) = (event.task.pid, event_depth(&event));
        let preempted = before.is_some_and(|(before, depth)| before != pid && depth >= DEEP);
        if preempted && lines.0 > LINES_SHOWN {
            return Some(lines.0);
        }
        before = Some((pid, depth));
        let _ = printer.event(&event, events.peek(), &Names, &mut lines);
    }
    None
}

fn event_depth(event: &Event<'_>) -> u32 {
    match event.kind {
        Kind::Entry { depth, .. } | Kind::Return { depth, .. } => depth,
        _ => 0,
    }
}

/// Figures over all logs.
struct Figures {
    calls: usize,
    returns: usize,
    deepest: u32,
    lost: usize,
}

impl Figures {
    fn new() -> Self {
        let mut figures = Self { calls: 0, returns: 0, deepest: 0, lost: 0 };
        for cpu in 0..MAX_CPUS {
            let log = tracer::log(cpu);
            figures.lost += log.counts().1;
            for event in log.events(cpu as u32, &tracing::task_of) {
                match event.kind {
                    Kind::Entry { depth, .. } => {
                        figures.calls += 1;
                        figures.deepest = figures.deepest.max(depth + 1);
                    }
                    Kind::Return { .. } => figures.returns += 1,
                    _ => {}
                }
            }
        }
        figures
    }
}
