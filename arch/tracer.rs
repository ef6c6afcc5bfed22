//! The tracers of this crate: function_graph, whose records are calls with their times and what they returned, and function, whose
//! records are entries. Both write to one ring buffer for each CPU, which [`trace`](crate::trace) reads.
//!
//! A call is recorded once, when it returns; it keeps the time of its entry on the shadow stack until then. What has not returned is
//! not in the buffers.

use crate::addr::{FuncAddr, RetAddr};
use crate::arch::FtraceRegs;
use crate::arch::live::{Bound, ENGINE};
use crate::filter::Filter;
use crate::graph::{EntryCall, GraphOps, ReturnCall, Want};
use crate::ops::{Ops, OpsFlags};
use crate::platform::{Context, Platform};
use crate::regs::Regs;
use crate::ring::{Brief, Ring};
use crate::sync::{AtomicU32, Ordering};
use crate::wire::{Call, Hit, MAX_DATA, Mark, Record, Who};

/// The most CPUs that are recorded; what others do is lost, and their own rings say nothing of it.
pub const MAX_CPUS: usize = 64;

static RINGS: [Ring; MAX_CPUS] = [const { Ring::new() }; MAX_CPUS];

bitflags::bitflags! {
    /// What is recorded of a call beside its times.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Recorded: u32 {
        /// What it returned (`funcgraph-retval`): both registers, the second only with [`SECOND`](Self::SECOND).
        const RETVAL = 1 << 0;
        /// The second return register too.
        const SECOND = 1 << 1;
        /// Where it returned to (`funcgraph-retaddr`).
        const RET_ADDR = 1 << 2;
    }
}

static RECORDED: AtomicU32 = AtomicU32::new(Recorded::RETVAL.bits());

/// Chooses what is recorded of calls that return from now on. Any context.
pub fn set_recorded(recorded: Recorded) {
    RECORDED.store(recorded.bits(), Ordering::Relaxed);
}

/// What is recorded of calls.
pub fn recorded() -> Recorded {
    Recorded::from_bits_truncate(RECORDED.load(Ordering::Relaxed))
}

/// The ring of a CPU, or `None` beyond the last: give it a buffer, and switch it on.
pub fn ring(cpu: usize) -> Option<&'static Ring> {
    RINGS.get(cpu)
}

/// The function_graph tracer as a graph user for [`register_ftrace_graph`](crate::register_ftrace_graph).
pub const fn function_graph(filter: Filter) -> GraphOps<FtraceRegs> {
    GraphOps::new(entry, ret, filter)
}

/// The function tracer as a user of entries for [`register_ftrace_function`](crate::register_ftrace_function).
pub const fn function(filter: Filter) -> Ops<FtraceRegs> {
    Ops::new(hit, OpsFlags::empty(), filter)
}

/// The address of the function that has a number in records; `None` if its module is gone. Task context.
pub fn numbered_function(number: u32) -> Option<FuncAddr> {
    ENGINE.numbered_function(number)
}

/// Records a mark of a user's own on this CPU, with the first [`MAX_DATA`] words of `data`. `false` if it was refused, or nothing is
/// recorded. Any context.
pub fn mark(id: u32, data: &[u64]) -> bool {
    Bound::preempt_disable();
    let mark = Mark {
        id,
        who: who(Bound::context()),
        time: Bound::clock_ns(),
        data: data.get(..MAX_DATA).unwrap_or(data),
        cut: data.len() > MAX_DATA,
    };
    let done = here().is_some_and(|ring| ring.record(&Record::Mark(mark)));
    Bound::preempt_enable();
    done
}

/// The ring of the CPU this runs on. Preemption is off.
#[inline]
fn here() -> Option<&'static Ring> {
    RINGS.get(Bound::cpu_id())
}

#[inline]
fn who(context: Context) -> Who {
    Who { task: Bound::task_id(), context }
}

fn hit(func: FuncAddr, parent_ip: RetAddr, _ops: &Ops<FtraceRegs>, _fregs: &mut FtraceRegs) {
    let Some(ring) = here().filter(|ring| ring.is_on()) else { return };
    let hit = Hit {
        func: ENGINE.function_number(func),
        who: who(Bound::context()),
        time: Bound::clock_ns(),
        parent_ip: parent_ip.get() as u64,
    };
    // A refusal is counted.
    let _ = ring.record(&Record::Hit(hit));
}

/// What is kept of a call until it returns.
const START: usize = 0;
const CPU: usize = 1;
const WORDS: usize = 2;

fn entry(call: &mut EntryCall<'_, FtraceRegs>, _ops: &GraphOps<FtraceRegs>) -> Want {
    if !here().is_some_and(Ring::is_on) {
        return Want::Nothing;
    }
    let Some(data) = call.reserve(WORDS) else { return Want::Nothing };
    data[CPU].store(Bound::cpu_id(), Ordering::Relaxed);
    // As late as possible: what runs before belongs to the tracer, not to the function.
    data[START].store(Bound::clock_ns() as usize, Ordering::Relaxed);
    Want::Return
}

fn ret(call: &mut ReturnCall<'_, FtraceRegs>, _ops: &GraphOps<FtraceRegs>) {
    let end = Bound::clock_ns();
    let (Some(ring), Some(data)) = (here(), call.data()) else { return };
    let start = data[START].load(Ordering::Relaxed) as u64;
    let from = data[CPU].load(Ordering::Relaxed);
    let recorded = recorded();
    let [retval, second] = call.fregs().return_values().map(|value| value as u64);
    let (func, depth, who) = (ENGINE.function_number(call.func()), call.depth(), who(call.context()));
    let retval = recorded.contains(Recorded::RETVAL).then_some(retval);
    let overrun = call.overrun() as u32;
    let plain = !recorded.intersects(Recorded::SECOND | Recorded::RET_ADDR) && overrun == 0;
    // A refusal is counted.
    let _ = if plain && from == Bound::cpu_id() {
        ring.call(&Brief { func, depth, who, start, end, retval })
    } else {
        ring.record(&Record::Call(Call {
            retval,
            retval2: recorded.contains(Recorded::SECOND).then_some(second),
            overrun,
            from_cpu: (from != Bound::cpu_id()).then_some(from as u32),
            ret_addr: recorded.contains(Recorded::RET_ADDR).then_some(call.ret_addr().get() as u64),
            ..Call::new(func, depth, who, start, end)
        }))
    };
}
