//! Several CPUs: starting them, and what one asks of another by interrupt.
//!
//! Invariants:
//! * A CPU is in `ONLINE` from when it can be interrupted and run tasks, for good. Its number is its place in
//!   [`PER_CPU`](crate::percpu::PER_CPU).
//! * Who waits here for another CPU has interrupts on, and so holds no lock that is taken with interrupts off, and answers
//!   meanwhile what is asked of its own CPU: two CPUs can wait for each other.
//!
//! The boot code of each machine calls [`secondary_main`], its interrupt dispatch [`interrupt`]; the rest is for tasks.

use core::{
    mem, ptr,
    sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering},
};

use spin::mutex::Mutex;

use crate::{
    console::println,
    context,
    lock::{IrqsOff, Relax},
    machine::{self, Ipi},
    panic,
    percpu::MAX_CPUS,
    sched,
    start::TICK_HZ,
    tracing,
};

/// How long the boot CPU waits for the others.
const START_PATIENCE_NS: u64 = 5_000_000_000;

/// The CPUs that run, by bit. CPU 0 does from the start.
static ONLINE: AtomicU32 = AtomicU32::new(1);

/// The CPUs that run, by bit.
#[inline(always)]
pub fn online() -> u32 {
    ONLINE.load(Ordering::Acquire)
}

/// How many CPUs run.
pub fn count() -> usize {
    online().count_ones() as usize
}

/// Whether CPU `cpu` runs.
pub fn is_online(cpu: usize) -> bool {
    cpus(online()).any(|one| one == cpu)
}

/// The CPUs of a set, by number.
#[inline(always)]
pub fn cpus(set: u32) -> impl Iterator<Item = usize> {
    (0..MAX_CPUS).filter(move |cpu| set & 1 << cpu != 0)
}

/// Starts the machine's other CPUs, as many as this kernel knows, and waits for them. Called once, by the boot CPU,
/// before there are tasks; the heap is there, and the tracer has prepared the text, which other CPUs have not
/// fetched yet.
pub fn start_others() {
    let wanted = machine::cpus_present().min(MAX_CPUS);
    if wanted <= 1 {
        return;
    }
    machine::start_cpus(wanted);
    let deadline = machine::clock_ns() + START_PATIENCE_NS;
    while count() < wanted && machine::clock_ns() < deadline {
        machine::relax();
    }
    if count() < wanted {
        println!("only {} of {wanted} CPUs run", count());
    }
}

/// What the machine's boot code calls, once, on each CPU but the first: a stack, 64-bit mode, MMU and caches on, traps
/// installed, interrupts masked. Becomes the CPU's idle task.
///
/// Outside tracing, like all that runs before it on this CPU, because a trampoline would look for the current task. From
/// `init_cpu` on it finds one that is not traced, and from `adopt` on one that is.
#[unsafe(link_section = ".text.notrace")]
pub fn secondary_main(cpu: usize) -> ! {
    sched::init_cpu(cpu);
    tracing::adopt(machine::current());
    machine::timer_start(TICK_HZ);
    ONLINE.fetch_or(1 << cpu, Ordering::SeqCst);
    // What changed in the text before that: later changes wait for this CPU.
    machine::sync_core();
    sched::idle()
}

/// What another CPU asks of this one. Called by the machine's interrupt dispatch.
#[inline(never)] // the first function of an interrupt that a tracer may see
pub fn interrupt(ipi: Ipi) {
    match ipi {
        // The flag is set already, and the end of the interrupt looks at it.
        Ipi::Reschedule => {}
        Ipi::Sync => answer_sync(),
        Ipi::Call => answer_call(),
    }
}

/// A value in a cache line of its own.
#[repr(align(64))]
struct Line<T>(T);

/// How many synchronisations have been asked for.
static SYNCS_ASKED: Line<AtomicU64> = Line(AtomicU64::new(0));

/// How many of them each CPU has answered: all that were asked for by then.
static SYNCS_ANSWERED: [Line<AtomicU64>; MAX_CPUS] = [const { Line(AtomicU64::new(0)) }; MAX_CPUS];

/// Returns when every CPU that runs has executed a context-synchronising instruction after the call began, and so
/// fetches instructions as they were then or later. What [`machine::sync_cores`] is.
///
/// For task context with interrupts on, and for the boot CPU as long as there is no other. A CPU that has its interrupts
/// off is waited for.
#[unsafe(link_section = ".text.notrace")]
pub fn sync_cores() {
    context::preempt_disable();
    let this = machine::per_cpu().cpu;
    let others = online() & !(1 << this);
    // Release is what it must be at least: it comes after what the caller wrote, and pairs with `answer_sync`.
    let ticket = SYNCS_ASKED.0.fetch_add(1, Ordering::SeqCst) + 1;
    for cpu in 0..MAX_CPUS {
        if others & 1 << cpu != 0 {
            machine::send_ipi(cpu, Ipi::Sync);
        }
    }
    for (cpu, answered) in SYNCS_ANSWERED.iter().enumerate() {
        if others & 1 << cpu != 0 {
            wait_for(|| answered.0.load(Ordering::SeqCst) >= ticket);
        }
    }
    machine::sync_core();
    context::preempt_enable();
}

/// Synchronises this CPU and says so.
#[unsafe(link_section = ".text.notrace")]
fn answer_sync() {
    // Acquire: what was written before the question is seen by what this CPU fetches behind the barrier.
    let asked = SYNCS_ASKED.0.load(Ordering::Acquire);
    machine::sync_core();
    SYNCS_ANSWERED[machine::per_cpu().cpu].0.store(asked, Ordering::SeqCst);
    wake_waiters();
    // Where an emulator runs all CPUs in turn, the next one's turn begins now and not with the next interrupt: who asked
    // waits for this CPU and for those behind it.
    machine::relax();
}

/// What a CPU shall run for another one.
struct Mailbox {
    /// Who holds it may use `work`. Taken in task context, preemption held, interrupts on; never by interrupts.
    turn: Mutex<(), Relax>,
    /// Null, or a `fn()` that has not been run to its end.
    work: AtomicPtr<()>,
}

static MAILBOXES: [Line<Mailbox>; MAX_CPUS] =
    [const { Line(Mailbox { turn: Mutex::new(()), work: AtomicPtr::new(ptr::null_mut()) }) }; MAX_CPUS];

/// Runs `work` on CPU `cpu`, in an interrupt there or, on the caller's own, with interrupts off, and returns when it has
/// been run. For task context with interrupts on.
///
/// # Panics
///
/// If that CPU does not run.
pub fn call(cpu: usize, work: fn()) {
    assert!(is_online(cpu), "there is no CPU {cpu} to call");
    context::preempt_disable();
    if cpu == machine::per_cpu().cpu {
        let _masked = IrqsOff::new();
        work();
    } else {
        let mailbox = &MAILBOXES[cpu].0;
        let _turn = mailbox.turn.lock();
        mailbox.work.store(work as *mut (), Ordering::Release);
        machine::send_ipi(cpu, Ipi::Call);
        wait_for(|| mailbox.work.load(Ordering::SeqCst).is_null());
    }
    context::preempt_enable();
}

/// Runs `work` on every CPU but the caller's, one after the other. As [`call`].
pub fn call_others(work: fn()) {
    context::preempt_disable();
    let others = online() & !(1 << machine::per_cpu().cpu);
    cpus(others).for_each(|cpu| call(cpu, work));
    context::preempt_enable();
}

/// Runs what another CPU left for this one.
fn answer_call() {
    let mailbox = &MAILBOXES[machine::per_cpu().cpu].0;
    let work = mailbox.work.load(Ordering::Acquire);
    if work.is_null() {
        return;
    }
    // SAFETY: not null, so `call` stored a `fn()`.
    let work = unsafe { mem::transmute::<*mut (), fn()>(work) };
    work();
    mailbox.work.store(ptr::null_mut(), Ordering::SeqCst);
    wake_waiters();
    machine::relax(); // as in `answer_sync`
}

/// How often a CPU that waits for another one looks before it sleeps.
const LOOKS: u32 = 100;

/// The CPUs, by bit, that sleep until another one has answered, or are about to.
static WAITERS: Line<AtomicU32> = Line(AtomicU32::new(0));

/// Waits until `answered`, which another CPU makes true in [`interrupt`] before it calls [`wake_waiters`]. Preemption is
/// held and interrupts are on.
///
/// The sleep is for emulated CPUs, of which there may be more than real ones: there a CPU that spins keeps the one from
/// running that it waits for.
#[inline(always)]
fn wait_for(answered: impl Fn() -> bool) {
    for _ in 0..LOOKS {
        if answered() {
            return;
        }
        panic::stop_if_over();
        machine::relax();
    }
    let this = 1 << machine::per_cpu().cpu;
    // SeqCst here and for the answers: either the other CPU finds the bit, or this one the answer.
    WAITERS.0.fetch_or(this, Ordering::SeqCst);
    loop {
        let _masked = IrqsOff::new();
        if answered() {
            break;
        }
        panic::stop_if_over();
        machine::wait_for_interrupt();
    }
    WAITERS.0.fetch_and(!this, Ordering::Relaxed);
}

/// Ends the sleep of the CPUs that wait for an answer: it may have been for them.
#[unsafe(link_section = ".text.notrace")]
fn wake_waiters() {
    let waiters = WAITERS.0.load(Ordering::SeqCst) & !(1 << machine::per_cpu().cpu);
    for cpu in 0..MAX_CPUS {
        if waiters & 1 << cpu != 0 {
            machine::send_ipi(cpu, Ipi::Reschedule);
        }
    }
}
