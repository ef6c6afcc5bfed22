//! The kernel's check of itself, without any tracer: `selfcheck` on the command line. A tracer's test means
//! something only on a kernel that is known to switch, preempt, sleep and allocate correctly by itself.
//!
//! Every check runs in the main task, alone, and leaves no task behind. Those that look at what one CPU does have the
//! main task and theirs kept on CPU 0; `several_cpus` has those for which there are more. What depends on the host's
//! speed has a deadline of [`PATIENCE_NS`], which no sane host needs.

mod several_cpus;

use alloc::{format, string::String, vec, vec::Vec};
use core::{
    array, hint, ptr, slice,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
};

use crate::{
    console::println,
    context::{self, Level},
    heap,
    lock::IrqsOff,
    machine::{self, Exit},
    sched::{self, State, Task},
    start::TICK_HZ,
};

/// What went wrong, if anything.
type Outcome = Result<(), String>;

/// A check: its name, which says what must hold, and what looks whether it does.
type Check = (&'static str, fn() -> Outcome);

/// The checks of what one CPU does, in the order in which they run.
const CHECKS: &[Check] = &[
    ("tasks_have_stacks_of_their_own", tasks_have_stacks_of_their_own),
    ("loops_are_preempted", loops_are_preempted),
    ("sleepers_wake_in_order", sleepers_wake_in_order),
    ("yielding_needs_no_timer", yielding_needs_no_timer),
    ("join_waits_for_exit", join_waits_for_exit),
    ("exit_ends_a_task_anywhere", exit_ends_a_task_anywhere),
    ("stacks_are_reused", stacks_are_reused),
    ("heap_serves_several_tasks", heap_serves_several_tasks),
    ("preemption_hold_keeps_the_cpu", preemption_hold_keeps_the_cpu),
    ("contexts_nest", contexts_nest),
    ("masked_interrupts_stay_away", masked_interrupts_stay_away),
    ("nmi_leaves_the_counts_alone", nmi_leaves_the_counts_alone),
    ("clock_runs_with_the_timer", clock_runs_with_the_timer),
    ("readable_knows_the_mappings", readable_knows_the_mappings),
    ("text_has_an_alias", text_has_an_alias),
];

/// How long a check waits for what must happen.
const PATIENCE_NS: u64 = 10_000_000_000;

/// How many tasks a check starts.
const TASKS: usize = 4;

macro_rules! ensure {
    ($condition:expr, $($why:tt)*) => {
        if !$condition {
            return Err(::alloc::format!($($why)*));
        }
    };
}

use ensure;

/// Runs all checks and says how each went.
pub fn run() -> Exit {
    sched::pin(0);
    let mut failed = run_all(CHECKS);
    sched::unpin();
    failed += run_all(several_cpus::CHECKS);
    println!("{} passed, {failed} failed", CHECKS.len() + several_cpus::CHECKS.len() - failed);
    if failed == 0 { Exit::Success } else { Exit::Failed }
}

/// Runs some checks. How many failed.
fn run_all(checks: &[Check]) -> usize {
    let mut failed = 0;
    for (name, check) in checks {
        match check().and_then(|()| counts_are_zero()) {
            Ok(()) => println!("ok {name}"),
            Err(why) => {
                println!("FAIL {name}: {why}");
                failed += 1;
            }
        }
    }
    failed
}

/// What must hold after every check.
fn counts_are_zero() -> Outcome {
    let counts = context::counts();
    ensure!(counts == 0, "nesting counts are {counts:#x} afterwards");
    ensure!(machine::irqs_enabled(), "interrupts are off afterwards");
    Ok(())
}

/// Starts [`TASKS`] tasks, numbered by their argument.
fn spawn_all(name: &'static str, body: fn(usize)) -> [&'static Task; TASKS] {
    array::from_fn(|index| sched::spawn_with(name, body, index))
}

/// Waits for all of them, and looks at what they left.
fn join_all(tasks: &[&'static Task]) -> Outcome {
    for task in tasks {
        sched::join(task);
    }
    for task in tasks {
        ensure!(task.state() == State::Dead, "task {} is {:?} when joined", task.pid, task.state());
        // It ends inside its last switch, which has a preemption hold.
        if let Some(counts) = task.counts.left() {
            ensure!(counts == context::PREEMPT_ONE, "task {} died with nesting counts {counts:#x}", task.pid);
        }
    }
    Ok(())
}

/// Waits, asleep, until `done`; `false` if that never comes.
fn wait_until(mut done: impl FnMut() -> bool) -> bool {
    let deadline = machine::clock_ns() + PATIENCE_NS;
    while !done() {
        if machine::clock_ns() > deadline {
            return false;
        }
        sched::sleep_ms(1);
    }
    true
}

/// Waits, on the CPU, for `ticks` timer interrupts; `false` if they never come.
fn spin_ticks(ticks: u64) -> bool {
    let seen = || machine::per_cpu().ticks.load(Ordering::Relaxed);
    let (start, deadline) = (seen(), machine::clock_ns() + PATIENCE_NS);
    while seen() - start < ticks {
        if machine::clock_ns() > deadline {
            return false;
        }
        hint::spin_loop();
    }
    true
}

/// A computation with more live values than it has registers to spare, whose result any lost register spoils.
#[inline(always)]
fn mix(seed: u64, rounds: u32, mut between: impl FnMut()) -> u64 {
    let mut words: [u64; 12] = array::from_fn(|index| seed.wrapping_mul(index as u64 * 2 + 1));
    for _ in 0..rounds {
        for index in 0..12 {
            let other = words[(index + 5) % 12];
            words[index] = words[index].rotate_left(13).wrapping_add(other ^ 0x9e37_79b9_7f4a_7c15);
        }
        between();
    }
    words.iter().fold(0, |sum, &word| sum.wrapping_mul(31) ^ word)
}

fn tasks_have_stacks_of_their_own() -> Outcome {
    static LOCALS: [AtomicUsize; TASKS] = [const { AtomicUsize::new(0) }; TASKS];
    static PIDS: [AtomicU32; TASKS] = [const { AtomicU32::new(0) }; TASKS];
    static ARRIVED: AtomicUsize = AtomicUsize::new(0);
    static SPOILT: AtomicBool = AtomicBool::new(false);

    fn body(index: usize) {
        let local = hint::black_box([index; 64]);
        LOCALS[index].store(local.as_ptr().addr(), Ordering::Relaxed);
        PIDS[index].store(machine::current().pid, Ordering::Relaxed);
        ARRIVED.fetch_add(1, Ordering::Relaxed);
        // All of them are inside at once.
        while ARRIVED.load(Ordering::Relaxed) < TASKS {
            sched::yield_now();
        }
        if hint::black_box(&local).iter().any(|&word| word != index) {
            SPOILT.store(true, Ordering::Relaxed);
        }
    }

    let tasks = spawn_all("stack", body);
    join_all(&tasks)?;
    for (index, task) in tasks.iter().enumerate() {
        let (range, local) = (task.stack_range(), LOCALS[index].load(Ordering::Relaxed));
        ensure!(range.contains(&local), "a local at {local:#x} is not in the stack {range:x?}");
        let pid = PIDS[index].load(Ordering::Relaxed);
        ensure!(pid == task.pid, "task {} finds itself to be {pid}", task.pid);
        for other in &tasks[..index] {
            let other = other.stack_range();
            ensure!(range.end <= other.start || other.end <= range.start, "{range:x?} overlaps {other:x?}");
        }
    }
    ensure!(!SPOILT.load(Ordering::Relaxed), "a task's locals changed while others ran");
    Ok(())
}

fn loops_are_preempted() -> Outcome {
    const ROUNDS: u32 = 500;
    static LAPS: [AtomicU64; TASKS] = [const { AtomicU64::new(0) }; TASKS];
    static EXPECTED: [AtomicU64; TASKS] = [const { AtomicU64::new(0) }; TASKS];
    static WRONG: AtomicU64 = AtomicU64::new(0);
    static STOP: AtomicBool = AtomicBool::new(false);

    fn body(index: usize) {
        while !STOP.load(Ordering::Relaxed) {
            let result = mix(hint::black_box(index as u64 + 1), ROUNDS, || ());
            if result != EXPECTED[index].load(Ordering::Relaxed) {
                WRONG.fetch_add(1, Ordering::Relaxed);
            }
            LAPS[index].fetch_add(1, Ordering::Relaxed);
        }
    }

    for (index, expected) in EXPECTED.iter().enumerate() {
        let _alone = IrqsOff::new();
        expected.store(mix(hint::black_box(index as u64 + 1), ROUNDS, || ()), Ordering::Relaxed);
    }
    let tasks = spawn_all("loop", body);
    let mut progress = Ok(());
    for window in 0..5 {
        let before: [u64; TASKS] = array::from_fn(|index| LAPS[index].load(Ordering::Relaxed));
        let all_ran = || before.iter().zip(&LAPS).all(|(&old, laps)| laps.load(Ordering::Relaxed) > old);
        if !wait_until(all_ran) {
            progress =
                Err(format!("in window {window} not every loop got on: before it {before:?}, now {LAPS:?}"));
            break;
        }
    }
    STOP.store(true, Ordering::Relaxed);
    join_all(&tasks)?;
    progress?;
    for task in tasks {
        ensure!(task.switches() >= 2, "task {} was switched to {} times", task.pid, task.switches());
    }
    let wrong = WRONG.load(Ordering::Relaxed);
    ensure!(wrong == 0, "{wrong} computations were spoilt by an interrupt");
    Ok(())
}

fn sleepers_wake_in_order() -> Outcome {
    const STEP_NS: u64 = 20_000_000;
    static BASE_NS: AtomicU64 = AtomicU64::new(0);
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    static ORDER: [AtomicUsize; TASKS] = [const { AtomicUsize::new(usize::MAX) }; TASKS];
    static EARLY: AtomicBool = AtomicBool::new(false);

    fn body(index: usize) {
        // The first to start is the last to wake but for the second: 2, 3, 0, 1.
        let wakeup_ns = BASE_NS.load(Ordering::Relaxed) + STEP_NS * ((index + 2) % TASKS) as u64;
        // On a busy host two are due at one tick; the next tick must not come between waking and saying so.
        let _masked = IrqsOff::new();
        sched::sleep_until(wakeup_ns);
        if machine::clock_ns() < wakeup_ns {
            EARLY.store(true, Ordering::Relaxed);
        }
        ORDER[NEXT.fetch_add(1, Ordering::Relaxed)].store(index, Ordering::Relaxed);
    }

    // Late enough for all of them to be asleep by then.
    BASE_NS.store(machine::clock_ns() + 300_000_000, Ordering::Relaxed);
    let tasks = spawn_all("sleep", body);
    join_all(&tasks)?;
    let order: [usize; TASKS] = array::from_fn(|place| ORDER[place].load(Ordering::Relaxed));
    ensure!(order == [2, 3, 0, 1], "they woke in the order {order:?}");
    ensure!(!EARLY.load(Ordering::Relaxed), "one woke early");

    let start = machine::clock_ns();
    sched::sleep_ms(30);
    let slept = machine::clock_ns() - start;
    ensure!(slept >= 30_000_000, "30 ms of sleep took {slept} ns");
    Ok(())
}

fn yielding_needs_no_timer() -> Outcome {
    const TURNS: u32 = 400;
    static TURN: AtomicUsize = AtomicUsize::new(0);
    static RESULTS: [AtomicU64; TASKS] = [const { AtomicU64::new(0) }; TASKS];

    fn body(index: usize) {
        let result = mix(hint::black_box(index as u64 + 7), TURNS, || {
            while TURN.load(Ordering::Relaxed) != index {
                sched::yield_now();
            }
            TURN.store((index + 1) % TASKS, Ordering::Relaxed);
        });
        RESULTS[index].store(result, Ordering::Relaxed);
    }

    machine::timer_set_hz(1);
    let ticks_before = machine::per_cpu().ticks.load(Ordering::Relaxed);
    let tasks = spawn_all("yield", body);
    let joined = join_all(&tasks);
    let ticks = machine::per_cpu().ticks.load(Ordering::Relaxed) - ticks_before;
    machine::timer_set_hz(TICK_HZ);
    joined?;
    // Had a tick been needed for every turn, there would be 1600.
    ensure!(ticks < 20, "{ticks} ticks went by");
    for (index, result) in RESULTS.iter().enumerate() {
        let expected = mix(hint::black_box(index as u64 + 7), TURNS, || ());
        ensure!(result.load(Ordering::Relaxed) == expected, "task {index} lost a register in a switch");
    }
    Ok(())
}

fn join_waits_for_exit() -> Outcome {
    static GO: AtomicBool = AtomicBool::new(false);
    static TARGET: AtomicUsize = AtomicUsize::new(0);
    static JOINED: AtomicUsize = AtomicUsize::new(0);

    fn target() {
        while !GO.load(Ordering::Relaxed) {
            sched::sleep_ms(1);
        }
    }
    fn joiner(_: usize) {
        let target = ptr::with_exposed_provenance::<Task>(TARGET.load(Ordering::Relaxed));
        // SAFETY: the address of a task, stored before this one was made; tasks live for ever.
        sched::join(unsafe { &*target });
        JOINED.fetch_add(1, Ordering::Relaxed);
    }

    let target = sched::spawn("target", target);
    TARGET.store(ptr::from_ref(target).expose_provenance(), Ordering::Relaxed);
    let joiners = spawn_all("joiner", joiner);
    let blocked = wait_until(|| joiners.iter().all(|joiner| joiner.state() == State::Blocked));
    sched::sleep_ms(20);
    let early = JOINED.load(Ordering::Relaxed);
    GO.store(true, Ordering::Relaxed);
    join_all(&joiners)?;
    ensure!(blocked, "not every joiner waits");
    ensure!(early == 0, "{early} joins came back although the task runs");
    ensure!(target.state() == State::Dead, "the joins came back but the task is {:?}", target.state());
    // Once more, now that there is nothing to wait for.
    join_all(&[target])
}

fn exit_ends_a_task_anywhere() -> Outcome {
    static REACHED: AtomicU32 = AtomicU32::new(0);

    #[inline(never)]
    fn deep(depth: u32) -> u32 {
        if hint::black_box(depth) == 0 {
            REACHED.store(1, Ordering::Relaxed);
            sched::exit();
        }
        deep(depth - 1) + 1
    }
    fn body() {
        let depth = deep(20);
        REACHED.store(depth, Ordering::Relaxed);
    }

    join_all(&[sched::spawn("exit", body)])?;
    let reached = REACHED.load(Ordering::Relaxed);
    ensure!(reached == 1, "the task went on after its exit, or never came to it ({reached})");
    Ok(())
}

fn stacks_are_reused() -> Outcome {
    // Without reuse this would be more than twice the heap.
    const MANY: usize = 600;
    static RUNS: AtomicUsize = AtomicUsize::new(0);

    fn body() {
        RUNS.fetch_add(1, Ordering::Relaxed);
    }

    for _ in 0..MANY {
        join_all(&[sched::spawn("short", body)])?;
    }
    let runs = RUNS.load(Ordering::Relaxed);
    ensure!(runs == MANY, "{runs} of {MANY} tasks ran");
    Ok(())
}

fn heap_serves_several_tasks() -> Outcome {
    static GO: AtomicBool = AtomicBool::new(false);
    static SPOILT: AtomicBool = AtomicBool::new(false);

    fn body(index: usize) {
        while !GO.load(Ordering::Relaxed) {
            sched::sleep_ms(1);
        }
        let mut kept: Vec<Vec<usize>> = Vec::new();
        for round in 0..400_usize {
            kept.push(vec![index * 1000 + round; 1 + (round * 37 + index * 11) % 300]);
            if round % 3 == 2 {
                let block = kept.swap_remove(round % kept.len());
                if block.iter().any(|&word| word != block[0] || word / 1000 != index) {
                    SPOILT.store(true, Ordering::Relaxed);
                }
            }
            if round % 16 == index {
                sched::yield_now();
            }
        }
        if kept.iter().any(|block| block.iter().any(|&word| word != block[0] || word / 1000 != index)) {
            SPOILT.store(true, Ordering::Relaxed);
        }
    }

    let tasks = spawn_all("heap", body);
    // The tasks themselves stay allocated, so the balance begins here.
    let before = heap::used();
    GO.store(true, Ordering::Relaxed);
    join_all(&tasks)?;
    let after = heap::used();
    ensure!(!SPOILT.load(Ordering::Relaxed), "a block changed under its owner");
    ensure!(before == after, "{before} bytes were in use before and {after} afterwards");
    Ok(())
}

fn preemption_hold_keeps_the_cpu() -> Outcome {
    static RAN: AtomicBool = AtomicBool::new(false);

    fn body() {
        RAN.store(true, Ordering::Relaxed);
    }

    context::preempt_disable();
    context::preempt_disable();
    let task = sched::spawn("eager", body);
    let ticked = spin_ticks(4);
    let held = context::counts();
    context::preempt_enable();
    let early = RAN.load(Ordering::Relaxed);
    let due = machine::per_cpu().need_resched.load(Ordering::Relaxed);
    context::preempt_enable_no_resched();
    context::preempt_disable();
    context::preempt_enable();
    let at_once = RAN.load(Ordering::Relaxed);
    join_all(&[task])?;
    ensure!(ticked, "no timer interrupt came");
    ensure!(held == 2 * context::PREEMPT_ONE, "two holds made the nesting counts {held:#x}");
    ensure!(!early, "another task ran although preemption was held");
    ensure!(due, "the timer did not ask for a switch");
    ensure!(at_once, "the switch that was due did not happen when the hold ended");
    Ok(())
}

fn contexts_nest() -> Outcome {
    let levels = {
        // As a trap would find it; the exits do not switch, because something is held below each of them.
        let masked = IrqsOff::new();
        let task = context::level();
        context::soft_enter();
        let soft = context::level();
        context::irq_enter();
        let hard = context::level();
        context::nmi_enter();
        let nmi = context::level();
        context::nmi_exit();
        let hard_again = context::level();
        context::irq_exit();
        drop(masked);
        let soft_again = context::level();
        context::soft_exit();
        [task, soft, hard, nmi, hard_again, soft_again, context::level()]
    };
    let expected = [Level::Task, Level::Soft, Level::Hard, Level::Nmi, Level::Hard, Level::Soft, Level::Task];
    ensure!(levels == expected, "the contexts were {levels:?}");
    Ok(())
}

fn masked_interrupts_stay_away() -> Outcome {
    let ticks = || machine::per_cpu().ticks.load(Ordering::Relaxed);
    ensure!(spin_ticks(1), "no timer interrupt came");
    let (before, after) = {
        let _masked = IrqsOff::new();
        ensure!(!machine::irqs_enabled(), "interrupts are on after masking them");
        let nested = IrqsOff::new();
        drop(nested);
        ensure!(!machine::irqs_enabled(), "the inner mask's end unmasked the outer");
        let before = ticks();
        let until = machine::clock_ns() + 4 * 1_000_000_000 / u64::from(TICK_HZ);
        while machine::clock_ns() < until {
            hint::spin_loop();
        }
        (before, ticks())
    };
    ensure!(before == after, "{} ticks came through the mask", after - before);
    ensure!(spin_ticks(1), "no timer interrupt came after unmasking");
    Ok(())
}

fn nmi_leaves_the_counts_alone() -> Outcome {
    if !machine::nmi_self() {
        println!("   there are no NMIs on this machine");
        return Ok(());
    }
    for _ in 0..100 {
        let masked = IrqsOff::new();
        ensure!(machine::nmi_self(), "an NMI could not be sent");
        drop(masked);
        counts_are_zero()?;
    }
    Ok(())
}

fn clock_runs_with_the_timer() -> Outcome {
    let mut last = machine::clock_ns();
    for _ in 0..100_000 {
        let now = machine::clock_ns();
        ensure!(now >= last, "it went back from {last} to {now}");
        last = now;
    }
    const PERIODS: u64 = 25;
    ensure!(spin_ticks(1), "no timer interrupt came");
    let start = machine::clock_ns();
    ensure!(spin_ticks(PERIODS), "the timer stopped");
    let elapsed = machine::clock_ns() - start;
    // A late interrupt shortens the period behind it, so one period may be missing. A busy host can only add
    // time.
    let least = (PERIODS - 1) * 1_000_000_000 / u64::from(TICK_HZ);
    ensure!(elapsed >= least, "{PERIODS} periods took {elapsed} ns, which is less than {least}");
    Ok(())
}

fn readable_knows_the_mappings() -> Outcome {
    static DATA: AtomicU64 = AtomicU64::new(1);
    let text = machine::text_range();
    let data = ptr::from_ref(&DATA).addr();
    let stack = ptr::from_ref(&text).addr();
    let alias = machine::text_alias(text.start).addr();
    let yes = [(text.start, text.len()), (data, 8), (stack, 8), (stack & !4095, 4097), (alias, 8), (0, 0)];
    for (address, length) in yes {
        ensure!(machine::readable(address, length), "{length} bytes at {address:#x} are not readable");
    }
    let no = [
        (0, 1),
        (8, 8),
        (usize::MAX - 7, 8),
        (usize::MAX - 7, 16),
        (data, usize::MAX),
        (0x8000_0000_0000, 8),
        (0x0123_4567_89ab_cdef, 1),
        (text.start, 1 << 40),
    ];
    for (address, length) in no {
        ensure!(!machine::readable(address, length), "{length} bytes at {address:#x} are readable");
    }
    Ok(())
}

fn text_has_an_alias() -> Outcome {
    let text = machine::text_range();
    let alias = machine::text_alias(text.start);
    ensure!(alias.addr() != text.start, "the alias of {:#x} is itself", text.start);
    // SAFETY: both are mappings of the kernel's text, which nothing writes meanwhile.
    let (executed, aliased) = unsafe {
        (
            slice::from_raw_parts(ptr::with_exposed_provenance::<u8>(text.start), text.len()),
            slice::from_raw_parts(alias.cast_const(), text.len()),
        )
    };
    ensure!(executed == aliased, "the alias shows other bytes");
    machine::sync_cores();
    Ok(())
}
