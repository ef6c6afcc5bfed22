//! The tracers of this crate: function_graph, whose records are calls with their times and what they returned, and function, whose
//! records are entries. Both write to one ring buffer for each CPU, which [`trace`](crate::trace) reads. They are there once for the
//! top directory of the [`tracefs`](crate::tracefs), of which most of this module speaks, and once for each instance (`array`).
//!
//! A call is recorded once, when it returns; it keeps the time of its entry on the shadow stack until then. What has not returned is
//! not in the buffers.

use core::cell::UnsafeCell;
use core::fmt;

use crate::addr::{FuncAddr, RetAddr};
use crate::arch::FtraceRegs;
use crate::arch::live::{Bound, ENGINE};
use crate::arch::tramp;
use crate::engine::Error;
use crate::filter::Filter;
use crate::graph::{AbandonedCall, EntryCall, GraphOps, ReturnCall, Want};
use crate::limits::{LIMIT_WORDS, Limits};
use crate::machine::Path;
use crate::ops::{Ops, OpsFlags};
use crate::platform::{Context, Platform};
use crate::regs::Regs;
use crate::ring::{Brief, Buffer, Ring};
use crate::shadow::MAX_DATA_WORDS;
use crate::site::Kept;
use crate::straight::{self, Plain};
use crate::sync::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use crate::task::TaskTrace;
use crate::text::Resolve;
use crate::trace::write_latest;
use crate::tracefs::recording::Entered;
pub use crate::tracefs::recording::Recorded;
use crate::values::{AddressAt, ResultAt};
use crate::wire::tree::{Key, Node};
use crate::wire::{Call, Hit, MAX_ARGS, MAX_DATA, MAX_MEMORY, Mark, Record, Who, pieces};

mod array;
mod stack;

pub use array::MAX_INSTANCES;
pub(crate) use array::{INSTANCES, InstanceArray};
use array::{Top, TraceArray};
pub(crate) use stack::mark_stack;
use stack::mark_stack_in;

/// The most CPUs that are recorded; what others do is lost, and counted nowhere.
#[doc(inline)]
pub use crate::quiesce::MAX_CPUS;

/// Whose buffers the return trampolines write by themselves too.
pub(crate) static RINGS: [Ring; MAX_CPUS] = [const { Ring::new() }; MAX_CPUS];

static RECORDED: AtomicU32 = AtomicU32::new(Recorded::RETVAL.bits());

/// Chooses what is recorded of calls that return from now on; arguments, of those that are entered from now on. Task context.
pub fn set_recorded(recorded: Recorded) {
    let before = self::recorded();
    RECORDED.store(recorded.bits(), Ordering::Relaxed);
    if before != recorded {
        ENGINE.path_changed();
    }
}

/// Whether the function tracer records who calls behind each entry.
static STACKS: AtomicBool = AtomicBool::new(false);

/// Lets the function tracer record who calls behind each entry, as a mark [`STACK_MARK`](crate::wire::STACK_MARK); or not. Task context.
pub fn set_stacks(on: bool) {
    STACKS.store(on, Ordering::Relaxed);
}

/// How many return registers each function uses, by its number.
static RETURN_REGISTERS: AtomicPtr<ReturnRegisters> = AtomicPtr::new(core::ptr::null_mut());

/// How many return registers functions use, by their numbers in records: 0, 1 or 2; of a function beyond the last nobody knows. See
/// [`Values::return_registers`](crate::values::Values::return_registers).
#[derive(Debug)]
pub struct ReturnRegisters(&'static [u8]);

impl ReturnRegisters {
    /// Of the functions with the numbers from 0 on.
    pub const fn new(counts: &'static [u8]) -> Self {
        Self(counts)
    }
}

/// Tells how many return registers functions use, so that no register is recorded in which nothing was returned: where both are asked
/// for ([`Recorded::SECOND`]), each call gets what its function uses. Without it both are recorded of each. Task context.
pub fn set_return_registers(registers: &'static ReturnRegisters) {
    RETURN_REGISTERS.store(core::ptr::from_ref(registers).cast_mut(), Ordering::Release);
    ENGINE.path_changed();
}

/// How many return registers a function uses.
#[inline(always)]
fn return_registers(func: u32) -> u8 {
    // SAFETY: null, or from `set_return_registers`: for ever, and read only. The acquire pairs with the release there.
    let known = unsafe { RETURN_REGISTERS.load(Ordering::Acquire).as_ref() };
    known.and_then(|known| known.0.get(func as usize)).map_or(2, |count| *count)
}

/// What each function returns in memory, by its number.
static RESULTS: AtomicPtr<Results> = AtomicPtr::new(core::ptr::null_mut());

/// What functions return in memory, by their numbers in records; of a function beyond the last nobody knows. See
/// [`Values::result_at`](crate::values::Values::result_at).
#[derive(Debug)]
pub struct Results(&'static [Option<ResultAt>]);

impl Results {
    /// Of the functions with the numbers from 0 on.
    pub const fn new(results: &'static [Option<ResultAt>]) -> Self {
        Self(results)
    }

    fn of(&self, func: u32) -> Option<ResultAt> {
        self.0.get(func as usize).copied().flatten()
    }
}

/// Tells what functions return in memory: the first bytes of that, up to [`MAX_MEMORY`], are recorded from now on where return values
/// are ([`Recorded::RETVAL`]). Calls of these functions do not take the straight path, so that those of all others cost what they did;
/// but where that path is, only of functions that have never been traced before: how many it is too late for. To be called before
/// anything is traced, in task context.
///
/// # Errors
/// [`Error::Write`](crate::Error::Write) and the like, see [`init`](crate::init).
pub fn set_results(results: &'static Results) -> Result<usize, Error> {
    let path = |func| if results.of(func).is_some() { Path::General } else { Path::Any };
    let late = ENGINE.choose_paths(&path)?;
    RESULTS.store(core::ptr::from_ref(results).cast_mut(), Ordering::Release);
    Ok(late)
}

/// What functions return in memory, if anybody said so and it is to be recorded.
#[inline(always)]
fn results(array: impl TraceArray) -> Option<&'static Results> {
    // SAFETY: null, or from `set_results`: for ever, and read only. The acquire pairs with the release there.
    let results = unsafe { RESULTS.load(Ordering::Acquire).as_ref() };
    results.filter(|_| array.recorded().contains(Recorded::RETVAL))
}

/// The address that a call is given for what it returns in memory, if it must be kept until then.
fn address_given(results: &Results, call: &EntryCall<'_, FtraceRegs>) -> Option<usize> {
    match results.of(ENGINE.function_number(call.func()))?.at {
        AddressAt::Returned(_) => None,
        AddressAt::Indirect => call.fregs().result_address(),
        AddressAt::Argument(number) => call.fregs().argument(number.into()),
    }
}

/// Where a call that returns left something in memory, if it did: `data` is what was kept of its entry.
fn behind(results: &Results, func: u32, retvals: [u64; 2], data: &[AtomicUsize]) -> Option<Behind> {
    let ResultAt { at, bytes } = results.of(func)?;
    let addr = match (at, data.len()) {
        (AddressAt::Returned(number), _) => retvals.get(usize::from(number)).map(|addr| *addr as usize),
        (_, WITH_RESULT | WITH_ARGS_AND_RESULT) => data.last().map(|word| word.load(Ordering::Relaxed)),
        // It was entered before anybody had said so.
        _ => None,
    };
    Some(Behind { addr: addr?, bytes })
}

/// What is recorded of a call of this function.
#[inline(always)]
fn recorded_of(array: impl TraceArray, func: u32) -> Recorded {
    let recorded = array.recorded();
    if !recorded.contains(Recorded::RETVAL | Recorded::SECOND) {
        return recorded;
    }
    match return_registers(func) {
        0 => recorded - (Recorded::RETVAL | Recorded::SECOND),
        1 => recorded - Recorded::SECOND,
        _ => recorded,
    }
}

/// What of this function's calls the trampolines record.
fn kept(func: u32) -> Kept {
    match recorded_of(Top, func) {
        Recorded::RETVAL => Kept::Value,
        recorded if recorded.is_empty() => Kept::Nothing,
        _ => Kept::More,
    }
}

/// What is recorded of calls.
pub fn recorded() -> Recorded {
    Top.recorded()
}

/// The ring of a CPU, or `None` beyond the last: give it a buffer, and switch it on.
pub fn ring(cpu: usize) -> Option<&'static Ring> {
    RINGS.get(cpu)
}

/// What both tracers leave out; the function tracer, as far as tasks go. The one of [`LiveFunctions`](crate::LiveFunctions). Who changes
/// it in another way calls [`limits_changed`] afterwards.
pub const fn limits() -> &'static Limits {
    &LIMITS
}

static LIMITS: Limits = Limits::new();

/// Lets the trampolines do as much of the work by themselves as the limits leave to them. Task context.
pub fn limits_changed() {
    ENGINE.path_changed();
}

/// The function_graph tracer as a graph user for [`register_ftrace_graph`](crate::register_ftrace_graph).
pub const fn function_graph(filter: Filter) -> GraphOps<FtraceRegs> {
    GraphOps::new(entry, ret, filter).with_abandoned(abandoned).straight(Plain { from: plain_from, kept })
}

/// Which calls the straight path must record to do what [`entry`] and [`ret`] would, by their counts; `None` if it cannot.
fn plain_from() -> Option<u64> {
    if LIMITS.are_any_but_thresh() || recorded().contains(Recorded::ARGS) {
        return None;
    }
    match LIMITS.thresh_ns() {
        0 => Some(0),
        ns => Bound::counts_of_ns(ns),
    }
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

/// The most calls that [`write_latest_calls`] shows of a CPU.
pub const LATEST_CALLS: usize = 32;

/// Writes the last calls of each CPU, at most [`LATEST_CALLS`]: for a panic handler. Takes no lock and allocates nothing; key and names must
/// do as well. Any context, once: a second one, from a panic on top, writes nothing.
///
/// # Errors
/// What `out` refuses.
pub fn write_latest_calls(key: &dyn Key, names: &dyn Resolve, out: &mut dyn fmt::Write) -> fmt::Result {
    static NODES: LatestNodes = LatestNodes(UnsafeCell::new([Node::EMPTY; LATEST_CALLS]));
    static USED: AtomicBool = AtomicBool::new(false);

    if USED.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    // SAFETY: only who was the first to set the flag, which is never taken back, comes here.
    let nodes = unsafe { &mut *NODES.0.get() };
    let mut buffers = RINGS.iter().filter_map(Ring::buffer);
    buffers.try_for_each(|buffer| write_latest(buffer, nodes, key, names, out))
}

/// A panic handler has no stack to spare.
struct LatestNodes(UnsafeCell<[Node; LATEST_CALLS]>);

// SAFETY: who may use it is settled by a flag beside it.
unsafe impl Sync for LatestNodes {}

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
    let done = Top.here().is_some_and(|ring| ring.record(&Record::Mark(mark)));
    Bound::preempt_enable();
    done
}

/// Records a text on this CPU. `false` if a piece was refused, or nothing is recorded. Task context.
pub(crate) fn mark_text(text: &[u8]) -> bool {
    mark_text_in(Top, text)
}

fn mark_text_in(array: impl TraceArray, text: &[u8]) -> bool {
    Bound::preempt_disable();
    let (who, time) = (who(Bound::context()), now());
    let mut pieces = pieces(text);
    // Without another task in between, so that a reader puts them together again.
    let done = array
        .here()
        .is_some_and(|ring| pieces.all(|piece| ring.record(&Record::Mark(piece.mark(who, time)))));
    Bound::preempt_enable();
    done
}

#[inline]
fn who(context: Context) -> Who {
    Who { task: Bound::task_id(), context }
}

fn hit(func: FuncAddr, parent_ip: RetAddr, _ops: &Ops<FtraceRegs>, fregs: &mut FtraceRegs) {
    hit_in(Top, func, parent_ip, fregs);
}

#[inline(always)]
fn hit_in(array: impl TraceArray, func: FuncAddr, parent_ip: RetAddr, fregs: &FtraceRegs) {
    // First, so that a hit alone keeps nothing for it.
    if array.stacks() {
        return hit_with_callers(array, func, parent_ip, fregs);
    }
    record_hit(array, func, parent_ip);
}

/// Whether it is one that is recorded; a refusal is counted.
#[inline(always)]
fn record_hit(array: impl TraceArray, func: FuncAddr, parent_ip: RetAddr) -> bool {
    let Some(ring) = array.here().filter(|ring| ring.is_on()) else { return false };
    let who = who(Bound::context());
    if !array.limits().counts_task(who.task) {
        return false;
    }
    let hit = Hit { func: ENGINE.function_number(func), who, time: now(), parent_ip: parent_ip.get() as u64 };
    let _ = ring.hit(&hit);
    true
}

#[cold]
#[inline(never)]
fn hit_with_callers(array: impl TraceArray, func: FuncAddr, parent_ip: RetAddr, fregs: &FtraceRegs) {
    if record_hit(array, func, parent_ip) {
        let (key, task, sp, fp) = (fregs.key(), fregs.task(), fregs.sp(), fregs.fp());
        mark_stack_in(array, &Entered { func, parent_ip, key, task, sp, fp });
    }
}

/// What is kept of a call until it returns: the time of its entry, and its arguments behind that if they are wanted. With limits, their
/// words stand before that.
const START: usize = 0;

const ARGS: usize = START + straight::DATA_WORDS;

/// What a call under way takes of its task's shadow stack, in bytes, if the trampolines hooked it for the tracer alone.
pub const FRAME_BYTES: usize = straight::FRAME_WORDS * size_of::<usize>();

/// Words of the tracer's own for a call with arguments, and without. One more is the address of the memory that it returns something in.
const WITH_ARGS: usize = ARGS + MAX_ARGS;
const WITHOUT: usize = straight::DATA_WORDS;
const WITH_ARGS_AND_RESULT: usize = WITH_ARGS + 1;
const WITH_RESULT: usize = WITHOUT + 1;

/// Whether so many words are the tracer's own, or behind those of the limits.
const fn is_own(words: usize) -> bool {
    matches!(words, WITHOUT | WITH_RESULT | WITH_ARGS | WITH_ARGS_AND_RESULT)
}

const _: () = {
    assert!(LIMIT_WORDS + WITH_ARGS_AND_RESULT <= MAX_DATA_WORDS);
    let mut words = 0;
    while words <= MAX_DATA_WORDS {
        // The number tells which they are.
        assert!(!(is_own(words) && words >= LIMIT_WORDS && is_own(words - LIMIT_WORDS)));
        words += 1;
    }
};

fn entry(call: &mut EntryCall<'_, FtraceRegs>, _ops: &GraphOps<FtraceRegs>) -> Want {
    entry_in(Top, call)
}

#[inline(always)]
fn entry_in(array: impl TraceArray, call: &mut EntryCall<'_, FtraceRegs>) -> Want {
    match results(array) {
        None => enter(array, call, None),
        Some(results) => enter_typed(array, call, results),
    }
}

/// On its own, so that who says nothing of results does not pay for them.
#[inline(never)]
fn enter_typed(array: impl TraceArray, call: &mut EntryCall<'_, FtraceRegs>, results: &Results) -> Want {
    let result = address_given(results, call);
    enter(array, call, result)
}

#[inline(always)]
fn enter(array: impl TraceArray, call: &mut EntryCall<'_, FtraceRegs>, result: Option<usize>) -> Want {
    let (wants_args, limits) = (array.recorded().contains(Recorded::ARGS), array.limits());
    let words = if wants_args { WITH_ARGS } else { WITHOUT } + usize::from(result.is_some());
    let data = if limits.are_any() {
        let begun = limits
            .admit(call, Bound::task_id())
            .and_then(|admitted| limits.begin(call, admitted, Bound::clock_ns(), words));
        match begun {
            Ok(data) => data,
            Err(want) => return want,
        }
    } else {
        match call.reserve(words) {
            Some(data) => data,
            None => return Want::Nothing,
        }
    };
    if let (Some(result), Some(word)) = (result, data.last()) {
        word.store(result, Ordering::Relaxed);
    }
    if wants_args && let Some(args) = data.get(ARGS..WITH_ARGS) {
        for (number, word) in args.iter().enumerate() {
            word.store(call.fregs().argument(number).unwrap_or(0), Ordering::Relaxed);
        }
    }
    let Some(start) = data.get(START) else { return Want::Nothing };
    // As late as possible: what runs before belongs to the tracer, not to the function.
    start.store(now() as usize, Ordering::Relaxed);
    Want::Return
}

fn ret(call: &mut ReturnCall<'_, FtraceRegs>, _ops: &GraphOps<FtraceRegs>) {
    ret_in(Top, call);
}

#[inline(always)]
fn ret_in(array: impl TraceArray, call: &mut ReturnCall<'_, FtraceRegs>) {
    let (end, limits) = (now(), array.limits());
    let own = match call.data() {
        // It began without limits, so they know nothing of it.
        Some(data) if is_own(data.len()) => {
            let start = data.get(START).map_or(0, |start| start.load(Ordering::Relaxed) as u64);
            if limits.thresh_ns() != 0 && !array.is_long(end.saturating_sub(start)) {
                return;
            }
            (data, 0)
        }
        _ => {
            let now_ns = Bound::clock_ns();
            let Some(done) = limits.finish(call, now_ns) else { return };
            let took_ns = now_ns.saturating_sub(done.began_ns);
            (done.data, left_out(took_ns, took_ns.saturating_sub(done.duration_ns)))
        }
    };
    let (data, left_out) = own;
    let Some(start) = data.get(START) else { return };
    let start = start.load(Ordering::Relaxed) as u64;
    // What is left out is left out at its beginning, as everywhere.
    let start = start.saturating_add(portion(end.saturating_sub(start), left_out));
    let retvals = call.fregs().return_values().map(|value| value as u64);
    let (func, depth, who) = (ENGINE.function_number(call.func()), call.depth(), who(call.context()));
    let mut args = [0; MAX_ARGS];
    let mut count = 0;
    for (arg, word) in args.iter_mut().zip(data.get(ARGS..WITH_ARGS).unwrap_or(&[])).take(ARG_REGISTERS) {
        *arg = word.load(Ordering::Relaxed) as u64;
        count += 1;
    }
    let args = args.get(..count).unwrap_or(&[]);
    let Some(ring) = array.here() else { return };
    let (ret_addr, overrun) = (call.ret_addr(), call.overrun() as u32);
    let returned = Returned { func, depth, who, start, end, retvals, ret_addr, overrun };
    match results(array) {
        None => record(array, ring, &returned, args),
        Some(results) => record_typed(array, ring, results, &returned, args, data),
    }
}

/// Integer arguments that travel in registers.
const ARG_REGISTERS: usize = if cfg!(target_arch = "x86_64") { 6 } else { 8 };

/// Which part of a time a shorter one is, in parts of 2^20.
fn left_out(whole: u64, part: u64) -> u64 {
    // Both shortened alike, to 44 bits of the longer one, so that nothing overflows.
    let shift = 20u32.saturating_sub(whole.leading_zeros());
    let (whole, part) = (whole >> shift, part >> shift);
    if part == 0 { 0 } else { (part << 20) / whole.max(1) }
}

/// So many parts of 2^20 of a time.
fn portion(time: u64, parts: u64) -> u64 {
    if parts == 0 { 0 } else { (time >> 20) * parts + (((time & 0xf_ffff) * parts) >> 20) }
}

fn abandoned(call: &mut AbandonedCall<'_, FtraceRegs>, _ops: &GraphOps<FtraceRegs>) {
    LIMITS.forget(call);
}

/// A call of the straight path that returned.
#[derive(Clone, Copy)]
pub(crate) struct StraightCall {
    pub(crate) number: u32,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) retvals: [u64; 2],
    pub(crate) ret_addr: RetAddr,
}

/// A call of the straight path returned. Preemption is off.
#[inline(always)]
pub(crate) fn straight_call(call: StraightCall, depth: u32, context: Context, task: &TaskTrace) {
    let Some(ring) = Top.here() else { return };
    let StraightCall { number: func, start, end, retvals, ret_addr } = call;
    let (who, overrun) = (who(context), task.overrun() as u32);
    if context == Context::Task {
        task.remember_who(who);
    }
    // Twice the same code, so that neither looks whether there is a value.
    let brief = Brief { func, depth, who, start, end, retval: None };
    let recorded = match recorded() {
        Recorded::RETVAL => Recorded::RETVAL,
        _ => recorded_of(Top, func),
    };
    if overrun == 0 && recorded == Recorded::RETVAL {
        let _ = ring.call(&Brief { retval: Some(retvals[0]), ..brief });
        return;
    }
    if overrun == 0 && recorded.is_empty() {
        let _ = ring.call(&brief);
        return;
    }
    straight_call_otherwise(ring, func, depth, who, [start, end], retvals, ret_addr, overrun);
}

/// A call of the straight path returned, in a task without interrupts on top, and a trampoline has made the buffer busy for it.
#[cold]
pub(crate) fn claimed_call(buffer: &Buffer, call: StraightCall, depth: u32, task: &TaskTrace) {
    let who = who(Context::Task);
    task.remember_who(who);
    let recorded = recorded_of(Top, call.number);
    let [retval, second] = call.retvals;
    let _ = buffer.claimed(&Record::Call(Call {
        retval: recorded.contains(Recorded::RETVAL).then_some(retval),
        retval2: recorded.contains(Recorded::SECOND).then_some(second),
        overrun: task.overrun() as u32,
        ret_addr: recorded.contains(Recorded::RET_ADDR).then_some(call.ret_addr.get() as u64),
        ..Call::new(call.number, depth, who, call.start, call.end)
    }));
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
    record(Top, ring, &Returned { func, depth, who, start, end, retvals, ret_addr, overrun }, &[]);
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

/// A value in memory, and how many of its bytes are recorded.
#[derive(Clone, Copy)]
struct Behind {
    addr: usize,
    bytes: u8,
}

/// Records a call, as far as that is wanted. A refusal is counted.
#[inline(always)]
fn record(array: impl TraceArray, ring: &Ring, call: &Returned, args: &[u64]) {
    let recorded = recorded_of(array, call.func);
    if recorded.intersects(Recorded::SECOND | Recorded::RET_ADDR) || call.overrun != 0 || !args.is_empty() {
        return record_all(ring, recorded, call, args);
    }
    let retval = recorded.contains(Recorded::RETVAL).then_some(call.retvals[0]);
    let &Returned { func, depth, who, start, end, .. } = call;
    let _ = ring.call(&Brief { func, depth, who, start, end, retval });
}

#[cold]
#[inline(never)]
fn record_all(ring: &Ring, recorded: Recorded, call: &Returned, args: &[u64]) {
    if args.is_empty() {
        let _ = ring.long_call(&whole(recorded, call, &[]));
    } else {
        let _ = ring.record(&Record::Call(whole(recorded, call, args)));
    }
}

/// The same with what was returned in memory, if anything was. `data` is what was kept of the call's entry.
#[inline(never)]
fn record_typed(
    array: impl TraceArray,
    ring: &Ring,
    results: &Results,
    call: &Returned,
    args: &[u64],
    data: &[AtomicUsize],
) {
    let Some(behind) = behind(results, call.func, call.retvals, data) else {
        return record(array, ring, call, args);
    };
    let recorded = recorded_of(array, call.func);
    let mut memory = [0; MAX_MEMORY / 8];
    let memory_len = behind.read(&mut memory);
    let memory = memory.get(..usize::from(memory_len).div_ceil(8)).unwrap_or(&[]);
    let _ = ring.record(&Record::Call(Call { memory, memory_len, ..whole(recorded, call, args) }));
}

/// The record of a call, but for memory.
#[inline(always)]
fn whole<'a>(recorded: Recorded, call: &Returned, args: &'a [u64]) -> Call<'a> {
    let [retval, second] = call.retvals;
    Call {
        retval: recorded.contains(Recorded::RETVAL).then_some(retval),
        retval2: recorded.contains(Recorded::SECOND).then_some(second),
        overrun: call.overrun,
        args,
        ret_addr: recorded.contains(Recorded::RET_ADDR).then_some(call.ret_addr.get() as u64),
        ..Call::new(call.func, call.depth, call.who, call.start, call.end)
    }
}

impl Behind {
    /// Reads it into words; how many bytes there are: none if it cannot be read.
    fn read(self, words: &mut [u64; MAX_MEMORY / 8]) -> u8 {
        let mut bytes = [0; MAX_MEMORY];
        let Some(wanted) = bytes.get_mut(..self.bytes.into()) else { return 0 };
        if Bound::read(self.addr, wanted).is_err() {
            return 0;
        }
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        self.bytes
    }
}
