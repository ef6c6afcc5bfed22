//! The function_graph tracer: a graph user that records entries and returns, with times and return registers, in one log per CPU.

use crate::arch::FtraceRegs;
use crate::arch::live::Bound;
use crate::filter::Filter;
use crate::graph::{EntryCall, GraphOps, ReturnCall, Want};
use crate::platform::Platform;
use crate::record::{CpuLog, When};
use crate::regs::Regs;
use crate::sync::Ordering;

/// The most CPUs that are recorded; events of others are lost, and counted on the last.
pub const MAX_CPUS: usize = 64;

static LOGS: [CpuLog; MAX_CPUS] = [const { CpuLog::new() }; MAX_CPUS];

/// The log of a CPU: give it memory before tracing starts, read it when you like.
pub fn log(cpu: usize) -> &'static CpuLog {
    &LOGS[cpu.min(MAX_CPUS - 1)]
}

/// The tracer as a graph user for [`register_ftrace_graph`](crate::register_ftrace_graph). One of them at a time: they share the logs.
pub const fn function_graph(filter: Filter) -> GraphOps<FtraceRegs> {
    GraphOps::new(entry, ret, filter)
}

fn entry(call: &mut EntryCall<'_, FtraceRegs>, _ops: &GraphOps<FtraceRegs>) -> Want {
    let (func, ret_addr, depth) = (call.func(), call.ret_addr(), call.depth());
    let Some(data) = call.reserve(1) else { return Want::Nothing };
    // As late as possible: what runs before belongs to the tracer, not to the function.
    let time_ns = Bound::clock_ns();
    data[0].store(time_ns as usize, Ordering::Relaxed);
    let when = When { time_ns, pid: Bound::task_id(), depth };
    if log(Bound::cpu_id()).entry(when, func.get(), ret_addr.get()) { Want::Return } else { Want::Nothing }
}

fn ret(call: &mut ReturnCall<'_, FtraceRegs>, _ops: &GraphOps<FtraceRegs>) {
    let time_ns = Bound::clock_ns();
    let Some(call_time) = call.data().map(|data| data[0].load(Ordering::Relaxed)) else { return };
    let when = When { time_ns, pid: Bound::task_id(), depth: call.depth() };
    let overrun = call.overrun() as u32;
    log(Bound::cpu_id()).ret(
        when,
        call.func().get(),
        call_time as u64,
        call.fregs().return_values(),
        overrun,
    );
}
