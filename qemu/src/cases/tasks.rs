//! Tracing and the scheduler: calls preempted in the middle, tasks that never return, die, or are not traced.

use core::hint::black_box;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use fgraph::{EntryCall, FgraphOps, FtraceOps, FtraceRegs, FuncAddr, OpsFlags, RetAddr, ReturnCall, Want};

use super::probe::{Graph, Op, Probe, addr, only};
use super::{CaseResult, Outcome, check, check_eq};
use crate::{
    machine, nmi,
    sched::{self, Task},
    start, tracing,
};

/// Timer interrupts a second while a storm runs.
const STORM_HZ: u32 = 4000;

/// Restores the tick when dropped.
struct FastTimer;

impl FastTimer {
    fn new() -> Self {
        machine::timer_set_hz(STORM_HZ);
        Self
    }
}

impl Drop for FastTimer {
    fn drop(&mut self) {
        machine::timer_set_hz(start::TICK_HZ);
    }
}

/// A small tree of calls: 1 + 3 + 9 of them, long enough to be preempted within.
#[inline(never)]
extern "C" fn root(seed: usize) -> usize {
    (0..3).map(|n| branch(black_box(seed + n))).sum::<usize>() ^ seed
}

#[inline(never)]
extern "C" fn branch(seed: usize) -> usize {
    (0..3).map(|n| leaf(black_box(seed * 3 + n))).sum::<usize>() + 1
}

#[inline(never)]
extern "C" fn leaf(seed: usize) -> usize {
    let mut value = seed;
    for _ in 0..20 {
        value = black_box(value).wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
    }
    value >> 32
}

const CALLS_PER_ROOT: u64 = 13;
const STORM_TASKS: u64 = 5;
const STORM_ROOTS: u64 = 100_000 / CALLS_PER_ROOT / STORM_TASKS + 1;
const PREEMPTIONS_WANTED: u64 = 20;
/// So that a machine without a working timer fails instead of running for ever.
const ROOTS_AT_MOST: u64 = 40 * STORM_ROOTS;

static EXPECTED: AtomicUsize = AtomicUsize::new(0);
static WRONG: AtomicU64 = AtomicU64::new(0);
static ROOTS: AtomicU64 = AtomicU64::new(0);

fn storm(_: usize) {
    let me = machine::current();
    let mut roots = 0;
    while roots < STORM_ROOTS || me.switches() < PREEMPTIONS_WANTED && roots < ROOTS_AT_MOST {
        if root(black_box(7)) != EXPECTED.load(Relaxed) {
            WRONG.fetch_add(1, Relaxed);
        }
        roots += 1;
    }
    ROOTS.fetch_add(roots, Relaxed);
}

pub fn preempted_calls_stay_with_their_tasks() -> CaseResult {
    EXPECTED.store(root(black_box(7)), Relaxed);
    WRONG.store(0, Relaxed);
    ROOTS.store(0, Relaxed);
    let probe = Probe::new();
    let tasks: [&'static Task; STORM_TASKS as usize];
    {
        let _user =
            Graph::probing(probe, only(&[addr!(root), addr!(branch), addr!(leaf), addr!(sched::tick)]))?;
        let _timer = FastTimer::new();
        // On one CPU, so that they take it from each other.
        tasks = core::array::from_fn(|_| sched::spawn_on(0, "storm", storm, 0));
        tasks.into_iter().for_each(sched::join);
    }
    let calls = ROOTS.load(Relaxed) * CALLS_PER_ROOT;
    let interrupts = probe.interrupts.load(Relaxed);
    let (entries, returns) = probe.counts();
    check_eq!(WRONG.load(Relaxed), 0, "wrong results");
    check!(calls >= 100_000, "only {calls} calls");
    check_eq!(entries - interrupts, calls, "entries of tasks");
    check_eq!(returns, entries, "returns");
    check_eq!(probe.mismatches.load(Relaxed), 0, "mismatches");
    check!(interrupts >= PREEMPTIONS_WANTED, "only {interrupts} interrupts");
    let mut hooked = 0;
    for task in tasks {
        let stats = task.trace_block().stats();
        hooked += stats.calls;
        check!(
            task.switches() >= PREEMPTIONS_WANTED,
            "a task was only switched to {} times",
            task.switches()
        );
        check_eq!((stats.returns, stats.depth), (stats.calls, 0), "returns and depth of a task");
        check_eq!(
            (stats.overrun, stats.abandoned, stats.recursed),
            (0, 0, 0),
            "overrun, abandoned, recursed"
        );
    }
    check!(
        hooked >= calls && hooked <= entries,
        "{hooked} calls hooked in the tasks of {calls}, {entries} in all"
    );
    Ok(())
}

/// What the timer's interrupt does when somebody waits for a turn.
#[inline(always)]
fn ask_for_switch() {
    machine::per_cpu().need_resched.store(true, Relaxed);
}

#[unsafe(link_section = ".text.notrace")]
fn ask_at_entry(_: FuncAddr, _: RetAddr, _: &FtraceOps, _: &mut FtraceRegs) {
    ask_for_switch();
}

#[unsafe(link_section = ".text.notrace")]
fn ask_at_graph_entry(_: &mut EntryCall<'_, FtraceRegs>, _: &FgraphOps) -> Want {
    ask_for_switch();
    Want::Nothing
}

#[unsafe(link_section = ".text.notrace")]
fn want_return(_: &mut EntryCall<'_, FtraceRegs>, _: &FgraphOps) -> Want {
    Want::Return
}

#[unsafe(link_section = ".text.notrace")]
fn ask_at_return(_: &mut ReturnCall<'_, FtraceRegs>, _: &FgraphOps) {
    ask_for_switch();
}

#[unsafe(link_section = ".text.notrace")]
fn nothing(_: &mut ReturnCall<'_, FtraceRegs>, _: &FgraphOps) {}

/// Whether a task that waits for CPU 0, which is this one, has run when a traced call is over. Nothing else makes it run.
fn another_ran_at_a_call() -> bool {
    static RAN: AtomicBool = AtomicBool::new(false);
    RAN.store(false, Relaxed);
    let waiting = sched::spawn_on(0, "waiting", |_| RAN.store(true, Relaxed), 0);
    let early = RAN.load(Relaxed);
    black_box(leaf(black_box(1)));
    let ran = RAN.load(Relaxed);
    sched::join(waiting);
    ran && !early
}

pub fn a_switch_asked_for_in_a_callback_comes_behind_it() -> CaseResult {
    sched::pin(0);
    machine::timer_stop();
    let done = switches_behind_callbacks();
    machine::timer_start(start::TICK_HZ);
    sched::unpin();
    let [idle, op, entry, ret] = done?;
    check!(!idle, "the other task ran although nobody asked for a switch");
    check!(op, "no switch behind a callback at an entry");
    check!(entry, "no switch behind a graph user's entry");
    check!(ret, "no switch behind a graph user's return");
    Ok(())
}

fn switches_behind_callbacks() -> Result<[bool; 4], fgraph::Error> {
    let funcs = only(&[addr!(leaf)]);
    let idle = {
        let _user = Graph::register(want_return, nothing, funcs, 0)?;
        another_ran_at_a_call()
    };
    let op = {
        let _user = Op::register(ask_at_entry, OpsFlags::empty(), funcs, 0)?;
        another_ran_at_a_call()
    };
    let entry = {
        let _user = Graph::register(ask_at_graph_entry, nothing, funcs, 0)?;
        another_ran_at_a_call()
    };
    let _user = Graph::register(want_return, ask_at_return, funcs, 0)?;
    Ok([idle, op, entry, another_ran_at_a_call()])
}

static STEPS: AtomicUsize = AtomicUsize::new(0);

#[inline(never)]
fn forever() -> ! {
    loop {
        STEPS.fetch_add(1, Relaxed);
        sched::sleep_ms(1);
        STEPS.fetch_add(leaf(black_box(1)) & 1, Relaxed);
    }
}

pub fn a_function_that_never_returns_harms_nobody() -> CaseResult {
    let funcs = only(&[addr!(forever), addr!(leaf)]);
    let probe = Probe::new();
    let task = {
        let _user = Graph::probing(probe, funcs)?;
        let task = sched::spawn("forever", || forever());
        let begun = STEPS.load(Relaxed);
        while STEPS.load(Relaxed) < begun + 4 {
            sched::sleep_ms(1);
        }
        task
    };
    let log = probe.log();
    check!(!log.iter().any(|e| e.func == addr!(forever) && e.is_return), "it returned");
    check_eq!(log.iter().filter(|e| e.func == addr!(forever)).count(), 1, "entries");
    check!(
        log.iter().any(|e| e.func == addr!(leaf) && e.is_return && e.depth == 1),
        "no call inside it was seen"
    );
    // Its frame stays, whoever is registered later.
    let late = Probe::new();
    {
        let _user = Graph::probing(late, funcs)?;
        let seen = STEPS.load(Relaxed);
        while STEPS.load(Relaxed) < seen + 4 {
            sched::sleep_ms(1);
        }
    }
    let (entries, returns) = late.counts();
    check!(entries >= 1, "no calls inside it");
    check!(returns == entries || returns + 1 == entries, "{returns} returns of {entries} calls inside it");
    check_eq!(late.mismatches.load(Relaxed), 0, "mismatches");
    check_eq!(
        task.trace_block().frames().last().map(|frame| frame.func.get()),
        Some(addr!(forever)),
        "frame"
    );
    Ok(())
}

#[inline(never)]
extern "C" fn dying(n: usize) -> usize {
    if n == 0 {
        sched::exit();
    }
    black_box(dying(black_box(n - 1))) + 1
}

pub fn a_task_may_die_with_frames_pending() -> CaseResult {
    const DEPTH: usize = 5;
    let probe = Probe::new();
    {
        let _user = Graph::probing(probe, only(&[addr!(dying), addr!(root), addr!(branch), addr!(leaf)]))?;
        let dead = sched::spawn("dying", || {
            dying(black_box(DEPTH));
        });
        sched::join(dead);
        check_eq!(dead.trace_block().stats().depth, DEPTH as u32 + 1, "frames pending");
        // The next tasks get its stack and its shadow stack.
        for _ in 0..3 {
            let heir = sched::spawn("heir", || {
                black_box(root(black_box(3)));
            });
            sched::join(heir);
            let stats = heir.trace_block().stats();
            check_eq!((stats.calls, stats.returns, stats.depth), (13, 13, 0), "the next task");
        }
        check_eq!(dead.trace_block().stats().abandoned, DEPTH as u64 + 1, "frames forgotten");
    }
    check_eq!(probe.mismatches.load(Relaxed), 0, "mismatches");
    Ok(())
}

pub fn a_task_without_a_stack_runs_unhooked() -> CaseResult {
    let probe = Probe::new();
    {
        let _user = Graph::probing(probe, only(&[addr!(root)]))?;
        tracing::set_shadow_words(0);
        let task = sched::spawn("bare", || {
            black_box(root(black_box(3)));
        });
        tracing::set_shadow_words(tracing::SHADOW_WORDS);
        sched::join(task);
        check!(!task.trace_block().has_stack(), "the task has a shadow stack");
        check_eq!(probe.counts(), (0, 0), "events");
        black_box(root(black_box(3)));
    }
    check_eq!(probe.counts(), (1, 1), "events of a task with a stack");
    Ok(())
}

pub fn a_paused_task_runs_unhooked() -> CaseResult {
    let block = machine::current().trace_block();
    let probe = Probe::new();
    {
        let _user = Graph::probing(probe, only(&[addr!(root)]))?;
        block.pause();
        block.pause();
        root(black_box(3));
        block.resume();
        root(black_box(3));
        check_eq!(probe.counts(), (0, 0), "events while paused");
        block.resume();
        root(black_box(3));
    }
    check_eq!(probe.counts(), (1, 1), "events after it");
    Ok(())
}

static NMIS_DONE: AtomicBool = AtomicBool::new(false);

pub fn an_nmi_may_come_anywhere() -> CaseResult {
    const NMIS: u64 = 2_000;
    if !machine::nmi_self() {
        return Err(Outcome::Skipped("this machine has no NMI yet"));
    }
    EXPECTED.store(root(black_box(7)), Relaxed);
    NMIS_DONE.store(false, Relaxed);
    WRONG.store(0, Relaxed);
    let probe = Probe::new();
    {
        let _user = Graph::probing(probe, only(&[addr!(root), addr!(branch), addr!(leaf), addr!(nmi_work)]))?;
        nmi::set_hook(on_nmi);
        let worker = sched::spawn("worker", || {
            while !NMIS_DONE.load(Relaxed) {
                if root(black_box(7)) != EXPECTED.load(Relaxed) {
                    WRONG.fetch_add(1, Relaxed);
                }
            }
        });
        for _ in 0..NMIS {
            machine::nmi_self();
            black_box(root(black_box(7)));
        }
        NMIS_DONE.store(true, Relaxed);
        sched::join(worker);
        nmi::set_hook(|_| {});
    }
    let (entries, returns) = probe.counts();
    check_eq!(returns, entries, "returns");
    check_eq!(probe.mismatches.load(Relaxed), 0, "mismatches");
    check_eq!(WRONG.load(Relaxed), 0, "wrong results");
    check!(
        probe.interrupts.load(Relaxed) >= NMIS,
        "only {} traced calls in NMIs",
        probe.interrupts.load(Relaxed)
    );
    Ok(())
}

#[inline(never)]
extern "C" fn nmi_work(n: usize) -> usize {
    black_box(leaf(n) + 1)
}

#[unsafe(link_section = ".text.notrace")]
fn on_nmi(_frame: &mut machine::TrapFrame) {
    nmi_work(black_box(1));
}
