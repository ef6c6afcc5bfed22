//! smoke
use alloc::{boxed::Box, vec::Vec};
use fgraph::{Filter, FgraphOps, record::Record, text::{CpuState, Options, Printer}, tracer};
use crate::{console::{println, print}, machine::Exit, tracing, sched};

#[inline(never)]
fn fib(n: u64) -> u64 { if n < 2 { n } else { fib(n-1) + fib(n-2) } }

static GRAPH: FgraphOps = tracer::function_graph(Filter::ALL);

struct Out;
impl core::fmt::Write for Out { fn write_str(&mut self, s: &str) -> core::fmt::Result { print!("{s}"); Ok(()) } }

pub fn run() -> Exit {
    println!("{:?}", tracing::started());
    let records: Vec<Record> = (0..4096).map(|_| Record::new()).collect();
    tracer::log(0).give(Box::leak(records.into_boxed_slice()));
    println!("{:?}", fgraph::register_ftrace_graph(&GRAPH).map_err(|e| println!("{e}")));
    let t = sched::spawn("fib", || { core::hint::black_box(fib(core::hint::black_box(5))); });
    sched::join(t);
    println!("{:?}", fgraph::unregister_ftrace_graph(&GRAPH));
    println!("{:?} {:?}", fgraph::stats(), tracer::log(0).counts());
    let mut cpus = [CpuState::NEW];
    let mut printer = Printer::new(Options::default() | Options::RETVAL | Options::RETVAL_HEX | Options::PROC, &mut cpus);
    let _ = printer.header(&mut Out);
    let events = tracer::log(0).events(0, &tracing::task_of).peekable();
    let _ = printer.merged(&mut [events], &tracing::Names, &mut Out);
    Exit::Success
}
