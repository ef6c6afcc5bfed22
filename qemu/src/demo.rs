//! The demo: the kernel unpacks its initrd while the function_graph tracer watches every function, and the console shows
//! what happened.

use core::fmt;

use fgraph::text::{CpuState, Event, Kind, Options, Printer};
use fgraph::trace::Reading;
use fgraph::tracer::Recorded;
use fgraph::{FgraphOps, Filter, tracer};

use crate::{
    buffers::{self, Key},
    console::{print, println},
    export,
    machine::{self, Exit},
    percpu::MAX_CPUS,
    start,
    tracing::{self, Named, Names},
    types, workload,
};

/// Timer interrupts a second: often enough that a switch in the middle of a call can be seen.
const TICK_HZ: u32 = 1000;

/// Memory for each CPU's records.
const BUFFER_KB: usize = 512;

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

/// Runs the demo. What was recorded goes to a file of the host, if there is a path.
pub fn run(trace: Option<&str>) -> Exit {
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
    if let Err(error) = types::tell_tracer() {
        println!("fgraph: {error}");
    }
    // Values of two registers are shown by their types.
    tracer::set_recorded(Recorded::RETVAL | Recorded::SECOND);
    buffers::make(BUFFER_KB);
    buffers::switch(true);

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
    println!("calls traced    {:>8}", figures.calls);
    println!("deepest nesting {:>8}", figures.deepest);
    println!("lost records    {:>8}", figures.lost);
    let tenths = figures.bytes * 10 / figures.calls.max(1);
    println!("bytes recorded  {:>8}   ({}.{} a call)", figures.bytes, tenths / 10, tenths % 10);
    match trace.map(export::to_host) {
        None => {}
        Some(Ok(written)) => println!("trace file      {:>8} bytes, {} pages", written.bytes, written.pages),
        Some(Err(error)) => {
            println!("trace file: {error}");
            return Exit::Failed;
        }
    }
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
    let options = Options::default() | Options::PROC | Options::RETVAL | Options::TYPED;
    let mut printer = Printer::new(options, &mut cpus);
    // The console takes everything.
    if header {
        let _ = printer.header(out);
    }
    buffers::with_trace(Reading::Peek, |trace| {
        let _ = trace.print(&mut printer, &Key, &Names, out);
    });
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
    let mut lines = Lines(4);
    let mut cpus = [const { CpuState::NEW }; MAX_CPUS];
    let mut printer = Printer::new(Options::default(), &mut cpus);
    let mut before: Option<(u32, u32)> = None;
    let mut found = None;
    buffers::with_trace(Reading::Peek, |trace| {
        // The events up to there, printed without showing them.
        let mut each = |event: &Event<'_>, next: Option<&Event<'_>>| {
            if event.cpu != 0 {
                return printer.event(event, next, &Names, &mut lines);
            }
            let (pid, depth) = (event.task.pid, event_depth(event));
            let preempted = before.is_some_and(|(before, depth)| before != pid && depth >= DEEP);
            if preempted && found.is_none() && lines.0 > LINES_SHOWN {
                found = Some(lines.0);
            }
            before = Some((pid, depth));
            printer.event(event, next, &Names, &mut lines)
        };
        while trace.next(&Key, &mut each).is_some() {}
    });
    found
}

fn event_depth(event: &Event<'_>) -> u32 {
    match event.kind {
        Kind::Entry { depth, .. } | Kind::Return { depth, .. } => depth,
        _ => 0,
    }
}

/// Figures over all buffers.
#[derive(Default)]
struct Figures {
    calls: u64,
    deepest: u32,
    lost: u64,
    bytes: u64,
}

impl Figures {
    fn new() -> Self {
        let mut figures = Self::default();
        buffers::with_trace(Reading::Peek, |trace| {
            let mut each = |event: &Event<'_>, _: Option<&Event<'_>>| {
                match event.kind {
                    Kind::Return { depth, .. } => {
                        figures.calls += 1;
                        figures.deepest = figures.deepest.max(depth + 1);
                    }
                    Kind::Lost { count } => figures.lost += count,
                    _ => {}
                }
                Ok::<(), ()>(())
            };
            while trace.next(&Key, &mut each).is_some() {}
        });
        figures.bytes = buffers::all().map(|buffer| buffer.bytes()).sum();
        figures
    }
}
