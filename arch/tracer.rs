//! The tracers of this crate: function_graph, whose records are calls with their times and what they returned, and function, whose
//! records are entries. Both write to one ring buffer for each CPU, which [`trace`](crate::trace) reads.
//!
//! A call is recorded once, when it returns; it keeps the time of its entry on the shadow stack until then. What has not returned is
//! not in the buffers.

use crate::addr::{FuncAddr, RetAddr};
use crate::arch::FtraceRegs;
use crate::arch::live::{Bound, ENGINE};
use crate::arch::tramp;
use crate::filter::Filter;
use crate::graph::{EntryCall, GraphOps, ReturnCall, Want};
use crate::ops::{Ops, OpsFlags};
use crate::platform::{Context, Platform};
use crate::regs::Regs;
use crate::ring::{Brief, Ring};
use crate::site::StateWord;
use crate::straight;
use crate::sync::{AtomicU32, Ordering};
use crate::task::TaskTrace;
use crate::wire::{Call, Hit, MAX_DATA, Mark, Record, Who};

/// The most CPUs that are recorded; what others do is lost, and counted nowhere.
pub const MAX_CPUS: usize = 64;

static RINGS: [Ring; MAX_CPUS] = [const { Ring::new() }; MAX_CPUS];

bitflags::bitflags! {
    /// What is recorded of a call beside its times.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Recorded: u32 {
        /// The register that it returned something in, if it returned anything (`funcgraph-retval`).
        const RETVAL = 1 << 0;
        /// The second such register.
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
    GraphOps::new(entry, ret, filter).straight()
}

/// The function tracer as a user of entries for [`register_ftrace_function`](crate::register_ftrace_function).
pub const fn function(filter: Filter) -> Ops<FtraceRegs> {
    Ops::new(hit, OpsFlags::empty(), filter)
}

/// The address of the function that has a number in records; `None` if its module is gone. Task context.
pub fn numbered_function(number: u32) -> Option<FuncAddr> {
    ENGINE.numbered_function(number)
}

/// The time of records.
#[inline]
fn now() -> u64 {
    if Bound::counts_time() { tramp::counter() } else { Bound::clock_ns() }
}

/// Records a mark of a user's own on this CPU, with the first [`MAX_DATA`] words of `data`. `false` if it was refused, or nothing is
/// recorded. Any context.
pub fn mark(id: u32, data: &[u64]) -> bool {
    Bound::preempt_disable();
    let mark = Mark {
        id,
        who: who(Bound::context()),
        time: now(),
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
        time: now(),
        parent_ip: parent_ip.get() as u64,
    };
    // A refusal is counted.
    let _ = ring.record(&Record::Hit(hit));
}

/// What is kept of a call until it returns: the time of its entry.
const START: usize = 0;

fn entry(call: &mut EntryCall<'_, FtraceRegs>, _ops: &GraphOps<FtraceRegs>) -> Want {
    let Some(data) = call.reserve(straight::DATA_WORDS) else { return Want::Nothing };
    // As late as possible: what runs before belongs to the tracer, not to the function.
    data[START].store(now() as usize, Ordering::Relaxed);
    Want::Return
}

fn ret(call: &mut ReturnCall<'_, FtraceRegs>, _ops: &GraphOps<FtraceRegs>) {
    let end = now();
    let Some(data) = call.data() else { return };
    let start = data[START].load(Ordering::Relaxed) as u64;
    let retvals = call.fregs().return_values().map(|value| value as u64);
    let (func, depth, who) = (ENGINE.function_number(call.func()), call.depth(), who(call.context()));
    let Some(ring) = here() else { return };
    record(
        ring,
        &Returned {
            func,
            depth,
            who,
            start,
            end,
            retvals,
            ret_addr: call.ret_addr(),
            overrun: call.overrun() as u32,
        },
    );
}

/// A call of the straight path returned. Preemption is off.
#[inline(always)]
pub(crate) fn straight_call(
    call: &straight::Call,
    state: *const StateWord,
    retvals: [u64; 2],
    end: u64,
    depth: u32,
    context: Context,
    task: &TaskTrace,
) {
    let Some(ring) = here() else { return };
    let (func, who, overrun) = (ENGINE.number_of_state(state), who(context), task.overrun() as u32);
    let &straight::Call { start, ret_addr, .. } = call;
    // Twice the same code, so that neither looks whether there is a value.
    let brief = Brief { func, depth, who, start, end, retval: None };
    if overrun == 0 && recorded() == Recorded::RETVAL {
        let _ = ring.call(&Brief { retval: Some(retvals[0]), ..brief });
        return;
    }
    if overrun == 0 && recorded().is_empty() {
        let _ = ring.call(&brief);
        return;
    }
    straight_call_otherwise(ring, func, depth, who, [start, end], retvals, ret_addr, overrun);
}

/// The rest of [`straight_call`]. By value, so that the usual way keeps nothing in memory.
#[expect(clippy::too_many_arguments, reason = "a structure would be filled on the usual way too")]
#[inline(never)]
fn straight_call_otherwise(
    ring: &Ring,
    func: u32,
    depth: u32,
    who: Who,
    [start, end]: [u64; 2],
    retvals: [u64; 2],
    ret_addr: RetAddr,
    overrun: u32,
) {
    record(ring, &Returned { func, depth, who, start, end, retvals, ret_addr, overrun });
}

/// All that can be recorded of a call.
struct Returned {
    func: u32,
    depth: u32,
    who: Who,
    start: u64,
    end: u64,
    retvals: [u64; 2],
    ret_addr: RetAddr,
    overrun: u32,
}

/// Records a call, as far as that is wanted. A refusal is counted.
#[inline(always)]
fn record(ring: &Ring, call: &Returned) {
    let recorded = recorded();
    if recorded.intersects(Recorded::SECOND | Recorded::RET_ADDR) || call.overrun != 0 {
        return record_all(ring, recorded, call);
    }
    let retval = recorded.contains(Recorded::RETVAL).then_some(call.retvals[0]);
    let &Returned { func, depth, who, start, end, .. } = call;
    let _ = ring.call(&Brief { func, depth, who, start, end, retval });
}

#[cold]
#[inline(never)]
fn record_all(ring: &Ring, recorded: Recorded, call: &Returned) {
    let [retval, second] = call.retvals;
    let _ = ring.record(&Record::Call(Call {
        retval: recorded.contains(Recorded::RETVAL).then_some(retval),
        retval2: recorded.contains(Recorded::SECOND).then_some(second),
        overrun: call.overrun,
        ret_addr: recorded.contains(Recorded::RET_ADDR).then_some(call.ret_addr.get() as u64),
        ..Call::new(call.func, call.depth, call.who, call.start, call.end)
    }));
}
