//! What holds with several CPUs, and with one as well as far as it means anything there.
//!
//! The main task runs anywhere here, and its tasks do unless they are pinned. What a check finds out in a task, it leaves
//! in its statics; a check runs once.

use alloc::{vec, vec::Vec};
use core::{
    hint, ptr,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use super::{Check, Outcome, PATIENCE_NS, ensure, join_all, mix, wait_until};
use crate::{
    console::println,
    context, heap,
    lock::IrqsOff,
    machine, nmi,
    percpu::{MAX_CPUS, PER_CPU},
    sched::{self, State, Task},
    smp,
    start::TICK_HZ,
};

pub(super) const CHECKS: &[Check] = &[
    ("all_cpus_come_up", all_cpus_come_up),
    ("every_cpu_runs_a_task_at_once", every_cpu_runs_a_task_at_once),
    ("pinned_tasks_stay", pinned_tasks_stay),
    ("a_task_moves_where_it_is_pinned", a_task_moves_where_it_is_pinned),
    ("tasks_inherit_their_cpus", tasks_inherit_their_cpus),
    ("tasks_migrate_under_load", tasks_migrate_under_load),
    ("a_runnable_task_finds_an_idle_cpu", a_runnable_task_finds_an_idle_cpu),
    ("unparking_comes_before_parking_too", unparking_comes_before_parking_too),
    ("no_wake_up_is_lost", no_wake_up_is_lost),
    ("calls_run_on_their_cpu", calls_run_on_their_cpu),
    ("cores_synchronise_from_everywhere", cores_synchronise_from_everywhere),
    ("synchronising_waits_for_a_masked_cpu", synchronising_waits_for_a_masked_cpu),
    ("heap_serves_all_cpus", heap_serves_all_cpus),
    ("nmis_reach_every_cpu", nmis_reach_every_cpu),
    // The last one: the kernel ends on a CPU that is not the first.
    ("the_clock_is_one_for_all", the_clock_is_one_for_all),
];

/// The CPU that the caller runs on, or ran on a moment ago unless it is pinned.
fn this_cpu() -> usize {
    machine::per_cpu().cpu
}

/// The CPUs that run.
fn cpus() -> Vec<usize> {
    smp::cpus(smp::online()).collect()
}

/// Starts a pinned task on each CPU, with the CPU's number as its argument.
fn spawn_everywhere(name: &'static str, body: fn(usize)) -> Vec<&'static Task> {
    cpus().into_iter().map(|cpu| sched::spawn_on(cpu, name, body, cpu)).collect()
}

/// Waits, on the CPU, until `count` callers have come with the same `arrived`; `false` if they never do.
fn meet(arrived: &AtomicUsize, count: usize) -> bool {
    arrived.fetch_add(1, Relaxed);
    spin_until(|| arrived.load(Relaxed) >= count)
}

/// Waits, on the CPU, until `done`; `false` if that never comes.
fn spin_until(mut done: impl FnMut() -> bool) -> bool {
    let deadline = machine::clock_ns() + PATIENCE_NS;
    while !done() {
        if machine::clock_ns() > deadline {
            return false;
        }
        machine::relax();
    }
    true
}

/// Starts tasks and waits until they have exited, while no CPU but the first has a periodic interrupt: a tick finds what
/// another interrupt should have told, and so would hide that it is missing. The first CPU is for the caller, who looks
/// after the tasks; `start` is told which the others are. The tasks, which may still run if they take too long.
fn without_ticks(start: impl FnOnce(&[usize]) -> Vec<&'static Task>) -> (bool, Vec<&'static Task>) {
    sched::pin(0);
    let others: Vec<_> = cpus().into_iter().filter(|&cpu| cpu != 0).collect();
    others.iter().for_each(|&cpu| smp::call(cpu, machine::timer_stop));
    let tasks = start(&others);
    let done = wait_until(|| tasks.iter().all(|task| task.state() == State::Dead));
    others.iter().for_each(|&cpu| smp::call(cpu, || machine::timer_start(TICK_HZ)));
    sched::unpin();
    (done, tasks)
}

fn all_cpus_come_up() -> Outcome {
    let (present, online) = (machine::cpus_present(), cpus());
    println!("   {} of {present} CPUs run", online.len());
    ensure!(online.len() == present.min(MAX_CPUS), "of {present} CPUs only {online:?} run");
    let ticks = |cpu: usize| PER_CPU[cpu].ticks.load(Relaxed);
    let before: Vec<u64> = online.iter().map(|&cpu| ticks(cpu)).collect();
    let ticked = wait_until(|| online.iter().zip(&before).all(|(&cpu, &before)| ticks(cpu) >= before + 3));
    ensure!(ticked, "not every CPU takes timer interrupts");
    Ok(())
}

fn every_cpu_runs_a_task_at_once() -> Outcome {
    static ARRIVED: AtomicUsize = AtomicUsize::new(0);
    static SEEN: AtomicU32 = AtomicU32::new(0);
    static STACKS: [AtomicUsize; MAX_CPUS] = [const { AtomicUsize::new(0) }; MAX_CPUS];
    static FAILED: AtomicBool = AtomicBool::new(false);

    fn body(index: usize) {
        let local = index;
        STACKS[index].store(ptr::from_ref(&local).addr(), Relaxed);
        // As nobody gives up its CPU, all of them come only if each has one.
        context::preempt_disable();
        SEEN.fetch_or(1 << this_cpu(), Relaxed);
        if !meet(&ARRIVED, smp::count()) {
            FAILED.store(true, Relaxed);
        }
        context::preempt_enable();
    }

    let tasks: Vec<_> = (0..smp::count()).map(|index| sched::spawn_with("at once", body, index)).collect();
    join_all(&tasks)?;
    ensure!(!FAILED.load(Relaxed), "{} of {} tasks ran at once", ARRIVED.load(Relaxed), tasks.len());
    let seen = SEEN.load(Relaxed);
    ensure!(seen == smp::online(), "they ran on the CPUs {seen:#b} of {:#b}", smp::online());
    for (task, local) in tasks.iter().zip(&STACKS) {
        let (range, local) = (task.stack_range(), local.load(Relaxed));
        ensure!(range.contains(&local), "a local at {local:#x} is not in the stack {range:x?}");
    }
    Ok(())
}

fn pinned_tasks_stay() -> Outcome {
    const PER_CPU_TASKS: usize = 2;
    static STRAYED: AtomicUsize = AtomicUsize::new(0);
    static LAPS: AtomicUsize = AtomicUsize::new(0);

    fn body(cpu: usize) {
        for lap in 0..200 {
            mix(hint::black_box(1), 200, || {
                if this_cpu() != cpu {
                    STRAYED.fetch_add(1, Relaxed);
                }
            });
            match lap % 20 {
                19 => sched::sleep_ms(1),
                _ => sched::yield_now(),
            }
            LAPS.fetch_add(1, Relaxed);
        }
    }

    let mut tasks = Vec::new();
    for _ in 0..PER_CPU_TASKS {
        tasks.extend(spawn_everywhere("pinned", body));
    }
    join_all(&tasks)?;
    let (laps, strayed) = (LAPS.load(Relaxed), STRAYED.load(Relaxed));
    ensure!(laps == 200 * tasks.len(), "{laps} laps of {} tasks", tasks.len());
    ensure!(strayed == 0, "a pinned task found itself on another CPU {strayed} times");
    Ok(())
}

fn a_task_moves_where_it_is_pinned() -> Outcome {
    const ROUNDS: usize = 300;
    static STRAYED: AtomicUsize = AtomicUsize::new(0);
    static MOVED: AtomicUsize = AtomicUsize::new(0);

    fn body(first: usize) {
        let cpus: Vec<_> = cpus().into_iter().filter(|&cpu| cpu >= first).collect();
        for round in 0..ROUNDS {
            // Every pair of CPUs in turn, the same one twice included.
            let cpu = cpus[(round + round / cpus.len()) % cpus.len()];
            sched::pin(cpu);
            if this_cpu() != cpu {
                STRAYED.fetch_add(1, Relaxed);
            }
            MOVED.fetch_add(1, Relaxed);
        }
    }

    let first = usize::from(smp::count() > 1);
    let (done, tasks) = without_ticks(|_| vec![sched::spawn_with("move", body, first)]);
    let moved = MOVED.load(Relaxed);
    join_all(&tasks)?;
    ensure!(done, "it did not come further than {moved} of {ROUNDS} times without a tick");
    let strayed = STRAYED.load(Relaxed);
    ensure!(strayed == 0, "it was on another CPU {strayed} times of {ROUNDS}");
    Ok(())
}

fn tasks_inherit_their_cpus() -> Outcome {
    static STRAYED: AtomicBool = AtomicBool::new(false);

    fn body(cpu: usize) {
        for _ in 0..20 {
            if this_cpu() != cpu {
                STRAYED.store(true, Relaxed);
            }
            sched::yield_now();
        }
    }

    for cpu in cpus() {
        sched::pin(cpu);
        let tasks: Vec<_> = (0..3).map(|_| sched::spawn_with("heir", body, cpu)).collect();
        sched::unpin();
        join_all(&tasks)?;
    }
    ensure!(!STRAYED.load(Relaxed), "a task ran where its maker was not to run");
    Ok(())
}

fn tasks_migrate_under_load() -> Outcome {
    const MOST: usize = 2 * MAX_CPUS + 1;
    const ROUNDS: u32 = 300;
    static STOP: AtomicBool = AtomicBool::new(false);
    static EXPECTED: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];
    static WRONG: AtomicU64 = AtomicU64::new(0);
    static MOVES: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];

    fn body(index: usize) {
        let mut last = this_cpu();
        let mut lap = 0_u32;
        while !STOP.load(Relaxed) {
            let result = mix(hint::black_box(index as u64 + 1), ROUNDS, || {
                let here = this_cpu();
                if here != last {
                    last = here;
                    MOVES[index].fetch_add(1, Relaxed);
                }
            });
            if result != EXPECTED[index].load(Relaxed) {
                WRONG.fetch_add(1, Relaxed);
            }
            lap += 1;
            if lap.is_multiple_of(5) {
                sched::yield_now();
            }
        }
    }

    // More tasks than CPUs, and never a multiple.
    let count = 2 * smp::count() + 1;
    let wanted = if smp::count() == 1 { 0 } else { 20 };
    for (index, expected) in EXPECTED.iter().enumerate() {
        expected.store(mix(hint::black_box(index as u64 + 1), ROUNDS, || ()), Relaxed);
    }
    let tasks: Vec<_> = (0..count).map(|index| sched::spawn_with("migrate", body, index)).collect();
    let moved = wait_until(|| MOVES[..count].iter().all(|moves| moves.load(Relaxed) >= wanted));
    sched::sleep_ms(100);
    STOP.store(true, Relaxed);
    join_all(&tasks)?;
    ensure!(moved, "the tasks changed their CPU {:?} times, at most", &MOVES[..count]);
    let wrong = WRONG.load(Relaxed);
    ensure!(wrong == 0, "{wrong} computations were spoilt by a migration");
    Ok(())
}

fn a_runnable_task_finds_an_idle_cpu() -> Outcome {
    static RAN: AtomicUsize = AtomicUsize::new(0);

    fn body(_: usize) {
        RAN.fetch_add(1, Relaxed);
    }

    if smp::count() == 1 {
        println!("   there is one CPU, and the check runs on it");
        return Ok(());
    }
    let mut missed = None;
    without_ticks(|_| {
        for round in 1..=100 {
            // This CPU, which alone has a tick, is kept all the while, so that another one must take the task.
            sched::pin(0);
            context::preempt_disable();
            sched::unpin();
            let task = sched::spawn_with("eager", body, 0);
            let ran = spin_until(|| RAN.load(Relaxed) == round);
            context::preempt_enable();
            sched::join(task);
            if !ran {
                missed = Some(round);
                break;
            }
        }
        Vec::new()
    });
    ensure!(missed.is_none(), "no other CPU took task {missed:?} without a tick");
    Ok(())
}

fn unparking_comes_before_parking_too() -> Outcome {
    static ME: AtomicUsize = AtomicUsize::new(0);

    fn body(_: usize) {
        unpark(&ME);
    }

    sched::unpark(machine::current());
    sched::unpark(machine::current());
    // Two of them are as good as one.
    sched::park();
    ME.store(ptr::from_ref(machine::current()).expose_provenance(), Relaxed);
    let task = sched::spawn_with("unpark", body, 0);
    sched::park();
    join_all(&[task])
}

/// Unparks the task whose address is in `place`, once it is there.
fn unpark(place: &AtomicUsize) {
    while place.load(Relaxed) == 0 {
        sched::yield_now();
    }
    let task = ptr::with_exposed_provenance::<Task>(place.load(Relaxed));
    // SAFETY: the address of a task; tasks live for ever.
    sched::unpark(unsafe { &*task });
}

fn no_wake_up_is_lost() -> Outcome {
    const ROUNDS: usize = 3_000;
    static STOP: AtomicBool = AtomicBool::new(false);
    static TASKS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
    static ROUND: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

    /// Player 0 serves; each of them waits for the other one's turn, asleep.
    fn body(player: usize) {
        TASKS[player].store(ptr::from_ref(machine::current()).expose_provenance(), Relaxed);
        for round in 1..=ROUNDS {
            let due = if player == 0 { round - 1 } else { round };
            while ROUND[1 - player].load(Relaxed) < due && !STOP.load(Relaxed) {
                sched::park();
            }
            ROUND[player].store(round, Relaxed);
            unpark(&TASKS[1 - player]);
            if STOP.load(Relaxed) {
                break;
            }
        }
    }

    // Every pair of CPUs that are not the first, as far as there are two.
    for index in 0..smp::count() - 1 {
        for player in 0..2 {
            TASKS[player].store(0, Relaxed);
            ROUND[player].store(0, Relaxed);
        }
        let (done, players) = without_ticks(|others| {
            let pair = [others[index], others[(index + 1) % others.len()]];
            (0..2).map(|player| sched::spawn_on(pair[player], "ping-pong", body, player)).collect()
        });
        let rounds = [0, 1].map(|player| ROUND[player].load(Relaxed));
        STOP.store(!done, Relaxed);
        if !done {
            players.iter().copied().for_each(sched::unpark);
        }
        join_all(&players)?;
        ensure!(done, "pair {index} of CPUs came to rounds {rounds:?} of {ROUNDS} without a tick");
    }
    Ok(())
}

fn calls_run_on_their_cpu() -> Outcome {
    const CALLS: usize = 200;
    static RAN: [AtomicUsize; MAX_CPUS] = [const { AtomicUsize::new(0) }; MAX_CPUS];
    static MISSED: AtomicUsize = AtomicUsize::new(0);

    fn work() {
        // Not atomic: each CPU has its own count, and an interrupt for one caller is over before that for the next.
        let ran = &RAN[this_cpu()];
        ran.store(ran.load(Relaxed) + 1, Relaxed);
        // Long enough for the caller to sleep.
        mix(hint::black_box(1), 200, || ());
    }
    fn body(_: usize) {
        for _ in 0..CALLS {
            cpus().into_iter().for_each(|cpu| smp::call(cpu, work));
        }
    }
    fn alone(_: usize) {
        for call in 1..=CALLS {
            for cpu in cpus() {
                smp::call(cpu, work);
                if RAN[cpu].load(Relaxed) != call {
                    MISSED.fetch_add(1, Relaxed);
                }
            }
        }
    }

    // One caller at first, to see that each call is run where it should be when the caller goes on.
    let (done, tasks) = without_ticks(|others| match others {
        [.., last] => vec![sched::spawn_on(*last, "call", alone, 0)],
        [] => vec![sched::spawn_with("call", alone, 0)],
    });
    join_all(&tasks)?;
    ensure!(done, "calls were not answered without a tick");
    let missed = MISSED.load(Relaxed);
    ensure!(missed == 0, "{missed} calls did not run where they should, or not before the caller went on");

    let (done, tasks) = without_ticks(|_| spawn_everywhere("call", body));
    join_all(&tasks)?;
    ensure!(done, "calls from everywhere were not answered without a tick");
    let wanted = CALLS * (1 + tasks.len());
    for cpu in cpus() {
        let ran = RAN[cpu].load(Relaxed);
        ensure!(ran == wanted, "{ran} of {wanted} calls of CPU {cpu} ran there");
    }
    Ok(())
}

fn cores_synchronise_from_everywhere() -> Outcome {
    const TIMES: usize = 1_000;
    static ARRIVED: AtomicUsize = AtomicUsize::new(0);
    static DONE: AtomicUsize = AtomicUsize::new(0);

    fn body(_: usize) {
        meet(&ARRIVED, smp::count());
        for time in 0..TIMES {
            machine::sync_cores();
            if time % 64 == 63 {
                // Now and then the others find a CPU that answers late.
                let _masked = IrqsOff::new();
                mix(hint::black_box(1), 500, || ());
            }
        }
        DONE.fetch_add(TIMES, Relaxed);
    }

    let (in_time, tasks) = without_ticks(|_| spawn_everywhere("sync", body));
    join_all(&tasks)?;
    ensure!(in_time, "synchronisations were not answered without a tick");
    let (done, wanted) = (DONE.load(Relaxed), TIMES * tasks.len());
    ensure!(done == wanted, "{done} of {wanted}");
    Ok(())
}

fn synchronising_waits_for_a_masked_cpu() -> Outcome {
    const MASKED_NS: u64 = 20_000_000;
    static MASKED: AtomicBool = AtomicBool::new(false);
    static LEAVING: AtomicBool = AtomicBool::new(false);

    fn body(_: usize) {
        let _masked = IrqsOff::new();
        MASKED.store(true, Relaxed);
        let until = machine::clock_ns() + MASKED_NS;
        while machine::clock_ns() < until {
            machine::relax();
        }
        LEAVING.store(true, Relaxed);
    }

    sched::pin(0);
    let mut outcome = Ok(());
    for cpu in cpus().into_iter().filter(|&cpu| cpu != 0) {
        MASKED.store(false, Relaxed);
        LEAVING.store(false, Relaxed);
        let task = sched::spawn_on(cpu, "masked", body, 0);
        let masked = spin_until(|| MASKED.load(Relaxed));
        machine::sync_cores();
        let leaving = LEAVING.load(Relaxed);
        join_all(&[task])?;
        if !masked || !leaving {
            outcome = Err(alloc::format!("CPU {cpu} had its interrupts off and was not waited for"));
        }
    }
    sched::unpin();
    outcome
}

fn heap_serves_all_cpus() -> Outcome {
    static ARRIVED: AtomicUsize = AtomicUsize::new(0);
    static GO: AtomicBool = AtomicBool::new(false);
    static SPOILT: AtomicUsize = AtomicUsize::new(0);

    fn body(cpu: usize) {
        while !GO.load(Relaxed) {
            sched::sleep_ms(1);
        }
        meet(&ARRIVED, smp::count());
        let mut kept: Vec<Vec<usize>> = Vec::new();
        let mut spoilt = 0;
        for round in 0..2_000_usize {
            kept.push(vec![cpu * 10_000 + round; 1 + (round * 37 + cpu * 11) % 300]);
            if kept.len() > 40 {
                let block = kept.swap_remove(round * 7 % kept.len());
                spoilt += usize::from(block.iter().any(|&word| word != block[0] || word / 10_000 != cpu));
            }
        }
        spoilt += kept.iter().filter(|block| block.iter().any(|&word| word / 10_000 != cpu)).count();
        SPOILT.fetch_add(spoilt, Relaxed);
    }

    let tasks = spawn_everywhere("heap", body);
    // The tasks themselves stay allocated, so the balance begins here.
    let before = heap::used();
    GO.store(true, Relaxed);
    join_all(&tasks)?;
    let (after, spoilt) = (heap::used(), SPOILT.load(Relaxed));
    ensure!(spoilt == 0, "{spoilt} blocks changed under their owner");
    ensure!(before == after, "{before} bytes were in use before and {after} afterwards");
    Ok(())
}

fn nmis_reach_every_cpu() -> Outcome {
    const NMIS: usize = 100;
    static TAKEN: [AtomicUsize; MAX_CPUS] = [const { AtomicUsize::new(0) }; MAX_CPUS];
    static OTHER_LEVELS: AtomicUsize = AtomicUsize::new(0);

    fn count(_: &mut machine::TrapFrame) {
        // This CPU's alone, and NMIs do not interrupt each other.
        let taken = &TAKEN[this_cpu()];
        taken.store(taken.load(Relaxed) + 1, Relaxed);
        if context::level() != context::Level::Nmi {
            OTHER_LEVELS.fetch_add(1, Relaxed);
        }
    }

    if !machine::nmi_self() {
        println!("   there are no NMIs on this machine");
        return Ok(());
    }
    nmi::set_hook(count);
    let mut outcome = Ok(());
    for cpu in cpus() {
        for sent in 1..=NMIS {
            // Two at once may come as one, so each is waited for.
            machine::send_nmi(cpu);
            if !spin_until(|| TAKEN[cpu].load(Relaxed) == sent) {
                let taken = TAKEN[cpu].load(Relaxed);
                outcome = Err(alloc::format!("CPU {cpu} took {taken} NMIs of {sent}"));
                break;
            }
        }
    }
    nmi::set_hook(|_| {});
    ensure!(OTHER_LEVELS.load(Relaxed) == 0, "the context within an NMI was another one");
    outcome
}

fn the_clock_is_one_for_all() -> Outcome {
    const ROUNDS: usize = 400;
    let cpus = cpus();
    let mut last = machine::clock_ns();
    let mut back = None;
    for round in 0..ROUNDS {
        sched::pin(cpus[(round + 1) % cpus.len()]);
        let now = machine::clock_ns();
        if now < last {
            back = Some((last, now));
        }
        last = now;
    }
    sched::pin(cpus[cpus.len() - 1]);
    match back {
        Some((last, now)) => Err(alloc::format!("it went back from {last} to {now} with a change of CPU")),
        None => Ok(()),
    }
}
