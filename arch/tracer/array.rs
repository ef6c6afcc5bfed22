//! For whom the tracers record: `trace_array`, as the field calls it. The top directory's is made of statics, which the straight path's
//! assembly knows; those of instances are [`INSTANCES`], and a callback finds its own by the number in its ops.

use super::{Bound, ENGINE, LIMITS, MAX_CPUS, RECORDED, RINGS, Recorded, STACKS};
use crate::arch::FtraceRegs;
use crate::filter::Filter;
use crate::graph::{AbandonedCall, EntryCall, GraphOps, ReturnCall, Want};
use crate::limits::Limits;
use crate::ops::{Ops, OpsFlags};
use crate::platform::Platform;
use crate::ring::Ring;
use crate::sync::{AtomicBool, AtomicU32, Ordering};
use crate::tracefs::Commands;
use crate::{FuncAddr, RetAddr};

/// The most instances. Each takes up to four of the engine's [`MAX_USERS`](crate::MAX_USERS) places: what keeps its filter files, its
/// tracer, the one that takes its turn, and its function commands; the top directory takes six, and others are to find some.
pub const MAX_INSTANCES: usize = 4;

const _: () = assert!(4 * MAX_INSTANCES + 6 < crate::MAX_USERS);

/// What a tracer's callbacks ask. Compiled once for the top directory, as if there were nothing else, and once for all instances.
pub(super) trait TraceArray: Copy {
    /// Where its records go, by CPU.
    fn rings(self) -> &'static [Ring; MAX_CPUS];

    /// What is recorded of calls.
    fn recorded(self) -> Recorded;

    /// Whether who calls is recorded behind each entry.
    fn stacks(self) -> bool;

    /// What is left out.
    fn limits(self) -> &'static Limits;

    /// Whether a call that began without limits, and took so long on the records' clock, is as long as the threshold that there is now.
    fn is_long(self, took: u64) -> bool;

    /// The ring of the CPU this runs on. Preemption is off.
    #[inline(always)]
    fn here(self) -> Option<&'static Ring> {
        self.rings().get(Bound::cpu_id())
    }
}

/// The top directory's.
#[derive(Clone, Copy)]
pub(super) struct Top;

impl TraceArray for Top {
    #[inline(always)]
    fn rings(self) -> &'static [Ring; MAX_CPUS] {
        &RINGS
    }
    #[inline(always)]
    fn recorded(self) -> Recorded {
        Recorded::from_bits_truncate(RECORDED.load(Ordering::Relaxed))
    }
    #[inline(always)]
    fn stacks(self) -> bool {
        STACKS.load(Ordering::Relaxed)
    }
    #[inline(always)]
    fn limits(self) -> &'static Limits {
        &LIMITS
    }
    /// It may have begun on the straight path.
    #[inline(always)]
    fn is_long(self, took: u64) -> bool {
        ENGINE.is_straight_long(took)
    }
}

/// An instance's, with all users that it can have.
#[derive(Debug)]
pub(crate) struct InstanceArray {
    pub(super) rings: [Ring; MAX_CPUS],
    recorded: AtomicU32,
    stacks: AtomicBool,
    pub(crate) limits: Limits,
    /// Keeps the sets of its filter files; never registered.
    pub(crate) keeper: Ops<FtraceRegs>,
    pub(crate) function: Ops<FtraceRegs>,
    pub(crate) graph: GraphOps<FtraceRegs>,
    pub(crate) commands: Commands<FtraceRegs>,
}

impl InstanceArray {
    const fn new(number: usize) -> Self {
        Self {
            rings: [const { Ring::new() }; MAX_CPUS],
            recorded: AtomicU32::new(Recorded::RETVAL.bits()),
            stacks: AtomicBool::new(false),
            limits: Limits::new(),
            keeper: Ops::new(hit, OpsFlags::empty(), Filter::ALL).with_private(number),
            function: Ops::new(hit, OpsFlags::empty(), Filter::ALL).with_private(number),
            graph: GraphOps::new(entry, ret, Filter::ALL).with_abandoned(abandoned).with_private(number),
            commands: Commands::new(),
        }
    }

    pub(crate) fn ring(&'static self, cpu: usize) -> Option<&'static Ring> {
        self.rings.get(cpu)
    }

    pub(crate) fn set_recorded(&self, recorded: Recorded) {
        self.recorded.store(recorded.bits(), Ordering::Relaxed);
    }

    pub(crate) fn set_stacks(&self, on: bool) {
        self.stacks.store(on, Ordering::Relaxed);
    }

    pub(crate) fn mark_text(&'static self, text: &[u8]) -> bool {
        super::mark_text_in(self, text)
    }

    pub(crate) fn mark_stack(&'static self, entered: &super::Entered) {
        super::mark_stack_in(self, entered);
    }
}

pub(crate) static INSTANCES: [InstanceArray; MAX_INSTANCES] =
    [InstanceArray::new(0), InstanceArray::new(1), InstanceArray::new(2), InstanceArray::new(3)];

impl TraceArray for &'static InstanceArray {
    #[inline(always)]
    fn rings(self) -> &'static [Ring; MAX_CPUS] {
        &self.rings
    }
    #[inline(always)]
    fn recorded(self) -> Recorded {
        Recorded::from_bits_truncate(self.recorded.load(Ordering::Relaxed))
    }
    #[inline(always)]
    fn stacks(self) -> bool {
        self.stacks.load(Ordering::Relaxed)
    }
    #[inline(always)]
    fn limits(self) -> &'static Limits {
        &self.limits
    }
    fn is_long(self, took: u64) -> bool {
        let thresh_ns = self.limits.thresh_ns();
        let least = if Bound::counts_time() { Bound::counts_of_ns(thresh_ns) } else { Some(thresh_ns) };
        least.is_none_or(|least| took >= least)
    }
}

fn hit(func: FuncAddr, parent_ip: RetAddr, ops: &Ops<FtraceRegs>, fregs: &mut FtraceRegs) {
    if let Some(instance) = INSTANCES.get(ops.private()) {
        super::hit_in(instance, func, parent_ip, fregs);
    }
}

fn entry(call: &mut EntryCall<'_, FtraceRegs>, ops: &GraphOps<FtraceRegs>) -> Want {
    INSTANCES.get(ops.private()).map_or(Want::Nothing, |instance| super::entry_in(instance, call))
}

fn ret(call: &mut ReturnCall<'_, FtraceRegs>, ops: &GraphOps<FtraceRegs>) {
    if let Some(instance) = INSTANCES.get(ops.private()) {
        super::ret_in(instance, call);
    }
}

fn abandoned(call: &mut AbandonedCall<'_, FtraceRegs>, ops: &GraphOps<FtraceRegs>) {
    if let Some(instance) = INSTANCES.get(ops.private()) {
        instance.limits.forget(call);
    }
}
