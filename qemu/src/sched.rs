//! The preemptive round-robin scheduler of all CPUs: one queue of runnable tasks, one list of sleepers, a switch at
//! every tick on which somebody waits.
//!
//! Invariants:
//! * Every list, `Queues::idle` and every task's `state`, `next`, `joiners`, `cpus`, `unparked` and `wakeup_ns` are
//!   guarded by one lock, `QUEUES`, that is only taken with interrupts off.
//! * The lock is held *across* the switch of stacks and released by the task that arrives ([`arrived`]), on the same
//!   CPU. So no other CPU can pick up a task that is still on its way out, and an exited task's stack gets no new
//!   owner while it is in use.
//! * A task is in one list at most. The running tasks, the parked ones and the idle tasks are in none.
//! * Whenever the lock is free, no CPU in `Queues::idle` could run a task of the queue: who makes a task runnable
//!   takes an idle CPU for it out of the set, and sees to it that this one looks at the queue ([`Queues::kick`]).
//!   So no wake-up is lost, and none waits for a tick while a CPU has nothing to do.
//!
//! Tasks call everything here but [`tick`], which the timer interrupt of each machine calls between
//! `context::irq_enter` and `context::irq_exit`.

use core::{
    mem, ptr,
    sync::atomic::{AtomicPtr, AtomicU32, Ordering},
};

use crate::{
    context,
    lock::{Held, IrqLock, IrqsOff},
    machine::{self, Ipi},
    percpu::{MAX_CPUS, PER_CPU},
    smp,
    task::{ANY_CPU, Entry, Stack},
    tracing,
};

pub use crate::task::{State, Task};

/// All lists of tasks.
struct Queues {
    /// Who waits for a turn, longest first.
    runnable: Fifo,
    /// Who waits for a time, soonest first, linked by `next`.
    sleepers: Option<&'static Task>,
    /// Exited tasks whose stack has no new owner, linked by `next`.
    graves: Option<&'static Task>,
    /// The CPUs, by bit, that run their idle task and that nobody has sent to the queue since.
    idle: u32,
}

static QUEUES: IrqLock<Queues> = IrqLock::new(Queues {
    runnable: Fifo { first: None, last: None },
    sleepers: None,
    graves: None,
    idle: 0,
});

/// The number of the task spawned next.
static NEXT_PID: AtomicU32 = AtomicU32::new(1);

/// How many tasks can be named after they are dead: the first ones.
pub const NAMED_TASKS: usize = 1024;

/// These tasks, by number.
static NAMES: [AtomicPtr<Task>; NAMED_TASKS] = [const { AtomicPtr::new(ptr::null_mut()) }; NAMED_TASKS];

/// The name of task `pid`; of the first thousand it is known.
pub fn name_of(pid: u32) -> Option<&'static str> {
    if pid == 0 {
        return Some("idle");
    }
    linked(NAMES.get(pid as usize)?).map(Task::name)
}

/// What the boot context of each CPU becomes.
static IDLE: [Task; MAX_CPUS] =
    [Task::idle("idle/0"), Task::idle("idle/1"), Task::idle("idle/2"), Task::idle("idle/3")];

/// Makes the caller's context the idle task of CPU `cpu`. Called once on each CPU, before it uses anything
/// else.
///
/// # Panics
///
/// If there is no CPU of that number.
#[unsafe(link_section = ".text.notrace")]
pub fn init_cpu(cpu: usize) {
    let (block, idle) = (&PER_CPU[cpu], &IDLE[cpu]);
    block.this.store(ptr::from_ref(block).cast_mut(), Ordering::Relaxed);
    block.idle.store(ptr::from_ref(idle).cast_mut(), Ordering::Relaxed);
    idle.counts.moves_to(cpu);
    machine::init_cpu(block, idle);
}

/// What the idle task does once the CPU is set up: nothing, as long as there is nothing for this CPU to do.
pub fn idle() -> ! {
    machine::irqs_on();
    loop {
        // Says to the others that this CPU idles, unless there is something in the queue. Most switches away from
        // here happen at an interrupt's exit.
        schedule();
        let _masked = IrqsOff::new();
        // An interrupt can ask for a switch and find that it may not: a tracer's callback holds this CPU. With
        // interrupts off nothing can come between the look and the sleep.
        if !machine::per_cpu().need_resched.load(Ordering::Relaxed) {
            machine::wait_for_interrupt();
        }
    }
}

/// A hook for whoever keeps something for each task: nobody else knows `task` yet, and it has not run.
#[inline(always)]
fn on_spawn(task: &'static Task) {
    tracing::adopt(task);
}

/// Starts a task that runs `body` and then exits. It may run where its maker may: see [`pin`].
///
/// # Panics
///
/// If the heap has no room for a stack.
pub fn spawn(name: &'static str, body: fn()) -> &'static Task {
    spawn_entry(name, Entry::Plain(body), own_cpus())
}

/// Starts a task that runs `body(arg)` and then exits. It may run where its maker may: see [`pin`].
///
/// # Panics
///
/// If the heap has no room for a stack.
pub fn spawn_with(name: &'static str, body: fn(usize), arg: usize) -> &'static Task {
    spawn_entry(name, Entry::WithArg(body, arg), own_cpus())
}

/// Starts a task that runs `body(arg)` on CPU `cpu` and then exits.
///
/// # Panics
///
/// If that CPU does not run, or the heap has no room for a stack.
pub fn spawn_on(cpu: usize, name: &'static str, body: fn(usize), arg: usize) -> &'static Task {
    spawn_entry(name, Entry::WithArg(body, arg), only(cpu))
}

/// Where the running task may run, which only it changes.
fn own_cpus() -> u32 {
    machine::current().cpus.load(Ordering::Relaxed)
}

/// CPU `cpu` alone, by bit.
fn only(cpu: usize) -> u32 {
    assert!(smp::is_online(cpu), "there is no CPU {cpu} to run on");
    1 << cpu
}

/// Moves the running task to CPU `cpu` and keeps it there, and with it every task that it spawns from now on.
///
/// # Panics
///
/// If that CPU does not run.
pub fn pin(cpu: usize) {
    set_cpus(only(cpu));
}

/// Lets the running task, and what it spawns from now on, run anywhere.
pub fn unpin() {
    set_cpus(ANY_CPU);
}

fn set_cpus(cpus: u32) {
    let irqs = IrqsOff::new();
    let queues = QUEUES.lock_with(&irqs);
    machine::current().cpus.store(cpus, Ordering::Relaxed);
    if cpus & 1 << machine::per_cpu().cpu == 0 {
        // Only a CPU that may will run it again.
        leave_cpu(queues);
    }
}

fn spawn_entry(name: &'static str, entry: Entry, cpus: u32) -> &'static Task {
    let grave = QUEUES.lock().take_grave();
    if let Some(dead) = grave {
        tracing::bury(dead);
    }
    let Some(stack) = grave.and_then(Task::stack).or_else(Stack::allocate) else {
        panic!("no memory for the stack of task {name}");
    };
    let task = Task::new(NEXT_PID.fetch_add(1, Ordering::Relaxed), name, entry, cpus, stack, start);
    on_spawn(task);
    if let Some(slot) = NAMES.get(task.pid as usize) {
        slot.store(link(Some(task)), Ordering::Release);
    }
    QUEUES.lock().make_runnable(task);
    task
}

/// Where every spawned task begins: it arrives from a switch like any other.
#[unsafe(link_section = ".text.notrace")]
extern "C" fn start() -> ! {
    // SAFETY: this is the first thing the task does after the switch to it.
    unsafe { arrived() };
    machine::irqs_on();
    match machine::current().entry() {
        Entry::Boot => {}
        Entry::Plain(body) => body(),
        Entry::WithArg(body, arg) => body(arg),
    }
    exit()
}

/// Ends the running task. Its `Task` stays; its stack goes to a task spawned later.
pub fn exit() -> ! {
    let task = machine::current();
    {
        let irqs = IrqsOff::new();
        let mut queues = QUEUES.lock_with(&irqs);
        task.set_state(State::Dead);
        queues.wake_joiners(task);
        // The lock is held until the switch has left this stack.
        task.next.store(link(queues.graves), Ordering::Relaxed);
        queues.graves = Some(task);
        leave_cpu(queues);
    }
    unreachable!("task {} runs although it has exited", task.name());
}

/// Waits until `task` has exited.
///
/// # Panics
///
/// If a task waits for itself.
pub fn join(task: &'static Task) {
    let me = machine::current();
    assert!(!ptr::eq(me, task), "task {} waits for itself", me.name());
    let irqs = IrqsOff::new();
    // A joiner is woken by the exit only, so one round is enough.
    let queues = QUEUES.lock_with(&irqs);
    if task.state() == State::Dead {
        return;
    }
    me.set_state(State::Blocked);
    me.next.store(task.joiners.load(Ordering::Relaxed), Ordering::Relaxed);
    task.joiners.store(link(Some(me)), Ordering::Relaxed);
    leave_cpu(queues);
}

/// Waits until somebody unparks the running task, or has done so since it last parked.
pub fn park() {
    let me = machine::current();
    let irqs = IrqsOff::new();
    let queues = QUEUES.lock_with(&irqs);
    if me.unparked.swap(false, Ordering::Relaxed) {
        return;
    }
    me.set_state(State::Parked);
    leave_cpu(queues);
}

/// Ends the [`park`] of `task`: the one it is in, or else its next one.
pub fn unpark(task: &'static Task) {
    let mut queues = QUEUES.lock();
    if task.state() == State::Parked {
        task.set_state(State::Runnable);
        queues.make_runnable(task);
    } else {
        task.unparked.store(true, Ordering::Relaxed);
    }
}

/// Lets every other runnable task have a turn first.
pub fn yield_now() {
    schedule();
}

/// Sleeps for at least `ms` milliseconds; the timer's period is the grain.
pub fn sleep_ms(ms: u64) {
    sleep_until(machine::clock_ns().saturating_add(ms.saturating_mul(1_000_000)));
}

/// Sleeps until [`machine::clock_ns`] is `wakeup_ns` or more.
pub fn sleep_until(wakeup_ns: u64) {
    let irqs = IrqsOff::new();
    let mut queues = QUEUES.lock_with(&irqs);
    let me = machine::current();
    me.set_state(State::Sleeping);
    me.wakeup_ns.store(wakeup_ns, Ordering::Relaxed);
    queues.add_sleeper(me);
    leave_cpu(queues);
}

/// What is called at each tick; null, or a `fn()`.
static TICK_HOOK: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

/// Makes `hook` what is called at each tick on each CPU, in the interrupt; `None` for nothing.
pub fn set_tick_hook(hook: Option<fn()>) {
    TICK_HOOK.store(hook.map_or(ptr::null_mut(), |hook| hook as *mut ()), Ordering::Release);
}

/// The periodic interrupt: wakes who is due, and asks for a switch if somebody waits for a turn.
#[inline(never)] // the first function of an interrupt that a tracer may see
pub fn tick() {
    let cpu = machine::per_cpu();
    cpu.ticks.store(cpu.ticks.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    let irqs = IrqsOff::new();
    let mut queues = QUEUES.lock_with(&irqs);
    queues.wake_sleepers(machine::clock_ns());
    if queues.runnable.any_for(cpu.cpu) {
        cpu.need_resched.store(true, Ordering::Relaxed);
    }
    drop(queues);
    let hook = TICK_HOOK.load(Ordering::Acquire);
    if !hook.is_null() {
        // SAFETY: not null, so `set_tick_hook` stored it.
        let hook = unsafe { mem::transmute::<*mut (), fn()>(hook) };
        hook();
    }
}

/// Gives the CPU to the task that has waited longest of those that may have it, if there is one; the caller stays runnable. Comes back
/// when it is the caller's turn again.
#[inline(never)] // a name that traces are expected to show
pub fn schedule() {
    let irqs = IrqsOff::new();
    leave_cpu(QUEUES.lock_with(&irqs));
}

/// The same, traced only where interrupts are off.
#[inline(always)]
pub fn schedule_notrace() {
    let irqs = IrqsOff::new();
    leave_cpu(QUEUES.lock_with(&irqs));
}

/// Switches away from the running task, which is in the list that its state says or, if it is runnable, in
/// none yet. Interrupts are off. Comes back, without the lock, when the task is switched to again, on whatever CPU.
fn leave_cpu(mut queues: Held<'static, Queues>) {
    let prev = machine::current();
    let counts = context::counts();
    assert!(counts == 0, "task {} switches with nesting counts {counts:#x}", prev.name());
    assert!(prev.stack_is_sealed(), "task {} has overflowed its stack", prev.name());

    let cpu = machine::per_cpu();
    cpu.need_resched.store(false, Ordering::Relaxed);
    machine::set_switch_due(false);
    // SAFETY: `init_cpu` stored a reference to a static there, before any task ran.
    let idle: &'static Task = unsafe { &*cpu.idle.load(Ordering::Relaxed) };
    let goes_on = prev.state() == State::Runnable && !ptr::eq(prev, idle);
    if goes_on {
        queues.runnable.push(prev);
    }
    let next = queues.runnable.pop_for(cpu.cpu).unwrap_or(idle);
    if ptr::eq(next, idle) {
        queues.idle |= 1 << cpu.cpu;
    } else {
        queues.idle &= !(1 << cpu.cpu);
    }
    if !ptr::eq(prev, next) {
        if goes_on {
            // Another CPU may have nothing better to do.
            queues.kick(prev);
        }
        mem::forget(queues); // `arrived` releases it, on the other side
        switch_to(prev, next);
    }
}

/// Changes the running task. No traced function may run between the change of the current task and that of
/// the stack, and the preemption hold keeps anything that a hook calls from switching once more.
#[unsafe(link_section = ".text.notrace")]
#[inline(never)]
fn switch_to(prev: &'static Task, next: &'static Task) {
    context::preempt_disable();
    next.switches.store(next.switches.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    next.counts.moves_to(machine::per_cpu().cpu);
    prev.trace_block().switched_out(machine::clock_ns());
    machine::switch(prev, next);
    machine::current().trace_block().switched_in(machine::clock_ns());
    // SAFETY: this is the first thing the task does after the switch to it.
    unsafe { arrived() };
}

/// The end of every switch, in the task that was switched to: releases the lock that the task before it took,
/// and the preemption hold that this task has had since it was switched away from or made.
///
/// # Safety
///
/// Once after each switch, interrupts still being off.
#[unsafe(link_section = ".text.notrace")]
#[inline(always)]
unsafe fn arrived() {
    // SAFETY: the task that switched here holds the lock, has forgotten its guard, and cannot touch what the
    //         lock guards before it is itself switched to with the lock held (contract of this function).
    unsafe { QUEUES.release_forgotten() };
    context::preempt_enable_no_resched();
}

impl Queues {
    /// Puts a task that is in no list, and whose state says that it may run, into the queue.
    fn make_runnable(&mut self, task: &'static Task) {
        self.runnable.push(task);
        self.kick(task);
    }

    /// Sends an idle CPU to the queue, in which `task` is, if there is one that may run it.
    ///
    /// That CPU will find its `need_resched` when it leaves the interrupt, and look: it cannot have looked before,
    /// because the lock is held here.
    fn kick(&mut self, task: &'static Task) {
        let able = self.idle & task.cpus.load(Ordering::Relaxed);
        if able == 0 {
            return;
        }
        let this = machine::per_cpu().cpu;
        // This CPU needs no interrupt: it is in one, above its idle task.
        let cpu = if able & 1 << this != 0 { this } else { able.trailing_zeros() as usize };
        self.idle &= !(1 << cpu);
        PER_CPU[cpu].need_resched.store(true, Ordering::Relaxed);
        if cpu != this {
            machine::send_ipi(cpu, Ipi::Reschedule);
        }
    }

    /// Puts `task` among the sleepers, behind those that are due no later.
    fn add_sleeper(&mut self, task: &'static Task) {
        let wakeup_ns = task.wakeup_ns.load(Ordering::Relaxed);
        let mut before: Option<&'static Task> = None;
        let mut after = self.sleepers;
        while let Some(sleeper) = after
            && sleeper.wakeup_ns.load(Ordering::Relaxed) <= wakeup_ns
        {
            before = after;
            after = linked(&sleeper.next);
        }
        task.next.store(link(after), Ordering::Relaxed);
        match before {
            Some(sleeper) => sleeper.next.store(link(Some(task)), Ordering::Relaxed),
            None => self.sleepers = Some(task),
        }
    }

    /// Makes the sleepers that are due runnable.
    fn wake_sleepers(&mut self, now_ns: u64) {
        while let Some(sleeper) = self.sleepers
            && sleeper.wakeup_ns.load(Ordering::Relaxed) <= now_ns
        {
            self.sleepers = linked(&sleeper.next);
            sleeper.set_state(State::Runnable);
            self.make_runnable(sleeper);
        }
    }

    /// Makes the tasks that wait for `task` runnable.
    fn wake_joiners(&mut self, task: &'static Task) {
        let mut waiting = linked(&task.joiners);
        task.joiners.store(link(None), Ordering::Relaxed);
        while let Some(joiner) = waiting {
            waiting = linked(&joiner.next);
            joiner.set_state(State::Runnable);
            self.make_runnable(joiner);
        }
    }

    /// A task that has exited and whose stack has no new owner, if there is one.
    fn take_grave(&mut self) -> Option<&'static Task> {
        let grave = self.graves?;
        self.graves = linked(&grave.next);
        Some(grave)
    }
}

/// A queue of tasks, linked by `next`.
struct Fifo {
    first: Option<&'static Task>,
    last: Option<&'static Task>,
}

impl Fifo {
    /// Adds a task that is in no list.
    fn push(&mut self, task: &'static Task) {
        task.next.store(link(None), Ordering::Relaxed);
        match self.last {
            Some(last) => last.next.store(link(Some(task)), Ordering::Relaxed),
            None => self.first = Some(task),
        }
        self.last = Some(task);
    }

    /// Takes out the task that has been in longest of those that may run on CPU `cpu`.
    fn pop_for(&mut self, cpu: usize) -> Option<&'static Task> {
        let mut before: Option<&'static Task> = None;
        let mut task = self.first?;
        while !may_run_on(task, cpu) {
            before = Some(task);
            task = linked(&task.next)?;
        }
        let after = linked(&task.next);
        match before {
            Some(before) => before.next.store(link(after), Ordering::Relaxed),
            None => self.first = after,
        }
        if after.is_none() {
            self.last = before;
        }
        Some(task)
    }

    /// Whether a task in it may run on CPU `cpu`.
    fn any_for(&self, cpu: usize) -> bool {
        let mut waiting = self.first;
        while let Some(task) = waiting {
            if may_run_on(task, cpu) {
                return true;
            }
            waiting = linked(&task.next);
        }
        false
    }
}

/// Whether `task` may run on CPU `cpu`.
fn may_run_on(task: &Task, cpu: usize) -> bool {
    task.cpus.load(Ordering::Relaxed) & 1 << cpu != 0
}

/// A task as a list link.
fn link(task: Option<&'static Task>) -> *mut Task {
    task.map_or(ptr::null_mut(), |task| ptr::from_ref(task).cast_mut())
}

/// What a list link points to.
fn linked(link: &AtomicPtr<Task>) -> Option<&'static Task> {
    // SAFETY: links are private to the scheduler and hold null or, by `link`, a task that lives for ever.
    unsafe { link.load(Ordering::Relaxed).as_ref() }
}
