//! Interrupts that call traced functions, at any instruction of traced functions, trampolines and callbacks.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use fgraph::{Context, Filter};

use crate::log;
use crate::machine;
use crate::process::{self, Thread};
use crate::records;
use crate::runner;
use crate::signals::{self, HANDLED, Stack};
use crate::users::{User, addr, assert_settled, only};
use crate::work::{self, ROUND_CALLS, fib, fib_calls, fib_result};

/// What an interrupt found that should not be.
static WRONG: AtomicUsize = AtomicUsize::new(0);
/// Frames that interrupts have walked over.
static WALKED: AtomicUsize = AtomicUsize::new(0);

/// What an interrupt does: calls a traced function, and walks what is under way.
#[unsafe(link_section = ".text.notrace")]
fn interrupt() {
    let right = fib(black_box(4)) == fib_result(4);
    WRONG.fetch_add(usize::from(!right), Relaxed);
    walk();
}

/// Every frame must be of a function that is traced, and lead back into the text.
#[unsafe(link_section = ".text.notrace")]
fn walk() {
    let Some(thread) = Thread::current() else { return };
    let text = process::text();
    let mut newest_first = 0;
    for frame in thread.trace.frames() {
        let known = frame.func == addr!(fib) || work::funcs().contains(&frame.func);
        let leads_back = text.contains(&frame.ret_addr.get());
        WRONG.fetch_add(usize::from(!(known && leads_back)), Relaxed);
        newest_first += 1;
    }
    WALKED.fetch_add(newest_first, Relaxed);
}

/// Who is told of calls while interrupts come.
#[derive(Clone, Copy)]
enum Told {
    /// A user of entries, and one of the graph.
    Users,
    /// The function_graph tracer alone, whose entries and returns are the trampolines' own.
    Tracer,
}

impl Told {
    /// Registers them.
    fn register(self) -> Vec<User> {
        let filter = only(&work::funcs());
        match self {
            Self::Users => {
                vec![User::op(log::count_op, fgraph::OpsFlags::SAVE_REGS, filter), User::counting(filter)]
            }
            Self::Tracer => {
                records::open();
                vec![User::tracing(filter)]
            }
        }
    }

    /// They were told of so many calls, all of which returned.
    fn check(self, calls: usize) {
        match self {
            Self::Users => {
                let told = [&log::OPS, &log::ENTRIES, &log::RETURNS].map(|count| count.load(Relaxed));
                assert_eq!(told, [calls; 3]);
            }
            Self::Tracer => assert_eq!(records::count(), calls as u64),
        }
    }
}

fn signals_are_traced_on_top(stack: Stack, told: Told) {
    process::init().expect("the sites are good");
    let right = work::round();
    let _users = told.register();
    if stack == Stack::Own {
        signals::use_own_stack();
    }
    signals::handle(interrupt, stack);
    let thread = Thread::current().expect("this thread is traced");
    signals::storm(thread, 15_000 * runner::storm());
    let mut rounds = 0;
    while !signals::is_over(thread) {
        assert_eq!(work::round(), right);
        rounds += 1;
    }

    let stats = thread.trace.stats();
    assert_settled(thread);
    assert_eq!((WRONG.load(Relaxed), stats.recursed, stats.overrun), (0, 0, 0), "{stats:?}");
    let calls = rounds * ROUND_CALLS + HANDLED.load(Relaxed) * fib_calls(4);
    assert_eq!(stats.calls as usize, calls, "after {rounds} rounds");
    told.check(calls);
    assert!(WALKED.load(Relaxed) > HANDLED.load(Relaxed), "interrupts came where nothing was under way");
}

pub fn signals_on_the_same_stack_are_traced_on_top() {
    signals_are_traced_on_top(Stack::Same, Told::Users);
}

pub fn signals_on_a_stack_of_their_own_are_traced_on_top() {
    signals_are_traced_on_top(Stack::Own, Told::Users);
}

pub fn signals_are_recorded_by_the_tracer_alone() {
    signals_are_traced_on_top(Stack::Same, Told::Tracer);
}

extern "C" fn stepped_body() {
    let right = fib(black_box(3)) == fib_result(3) && work::floats(black_box(1), 1.0, 2.0, 3.0) == 8.0;
    WRONG.fetch_add(usize::from(!right) << 32, Relaxed);
}

static STEPS: AtomicUsize = AtomicUsize::new(0);
static INTERRUPTS: AtomicUsize = AtomicUsize::new(0);

#[unsafe(link_section = ".text.notrace")]
fn step(_ip: usize, _sp: usize) {
    let step = STEPS.fetch_add(1, Relaxed);
    if step % EVERY.load(Relaxed) == PHASE.load(Relaxed)
        && let Some(thread) = Thread::current()
    {
        INTERRUPTS.fetch_add(1, Relaxed);
        thread.interrupted(Context::Irq, interrupt);
    }
}

/// Which steps an interrupt follows.
static EVERY: AtomicUsize = AtomicUsize::new(1);
static PHASE: AtomicUsize = AtomicUsize::new(0);

/// Interrupts come after every `every`th step, in as many runs as there are: after each step once. A short storm leaves runs out.
fn interrupted_at_every_step(told: Told, every: usize) {
    if !machine::CAN_STEP {
        runner::skip("no single steps on this machine");
    }
    process::init().expect("the sites are good");
    let _users = told.register();
    EVERY.store(every, Relaxed);
    let left_out = if every == 1 { 1 } else { 20_usize.div_ceil(runner::storm()) };
    for phase in (0..every).step_by(left_out) {
        PHASE.store(phase, Relaxed);
        STEPS.store(0, Relaxed);
        machine::stepped(stepped_body, step);
        let steps = STEPS.load(Relaxed);
        assert!(steps > 1000, "{steps} steps");
    }

    let thread = Thread::current().expect("this thread is traced");
    assert_settled(thread);
    let (interrupts, stats) = (INTERRUPTS.load(Relaxed), thread.trace.stats());
    assert_eq!((WRONG.load(Relaxed), stats.recursed, stats.overrun), (0, 0, 0), "{stats:?}");
    let runs = every.div_ceil(left_out);
    let calls = runs * (fib_calls(3) + 2) + interrupts * fib_calls(4);
    assert_eq!(stats.calls as usize, calls, "after {interrupts} interrupts");
    told.check(calls);
}

pub fn an_interrupt_after_every_instruction_disturbs_nothing() {
    interrupted_at_every_step(Told::Users, 1);
}

pub fn an_interrupt_after_every_instruction_is_recorded_by_the_tracer_alone() {
    // A record that is being made begins again when others were made meanwhile, so there must be some time between interrupts.
    interrupted_at_every_step(Told::Tracer, 1009);
}

/// Ordinary code, the library's generics that it is made of included.
fn ordinary(n: u64) -> String {
    let mut map = std::collections::BTreeMap::new();
    let mut words: Vec<String> = (0..n).map(|i| format!("{:x}", i.wrapping_mul(0x9e37_79b9))).collect();
    words.sort_by(|a, b| b.len().cmp(&a.len()).then(a.cmp(b)));
    for word in &words {
        *map.entry(word.len()).or_insert(0.0) += f64::from(u32::from_str_radix(word, 16).unwrap_or(0)) / 3.0;
    }
    words.retain(|word| word.contains('a'));
    format!("{map:?} {}", words.concat())
}

pub fn everything_at_once_can_be_traced() {
    process::init().expect("the sites are good");
    let right = ordinary(black_box(300));
    signals::use_own_stack();
    signals::handle(interrupt_anywhere, Stack::Own);
    let thread = Thread::current().expect("this thread is traced");
    let op = User::op(log::count_op, fgraph::OpsFlags::empty(), Filter::ALL);
    let graph = User::counting(Filter::ALL);
    signals::storm(thread, 3000 * runner::storm());
    let mut different = 0;
    while !signals::is_over(thread) {
        different += usize::from(ordinary(black_box(300)) != right);
    }
    drop((op, graph));
    assert_eq!(different, 0);
    let stats = thread.trace.stats();
    assert_settled(thread);
    assert_eq!((WRONG.load(Relaxed), stats.recursed, stats.overrun), (0, 0, 0), "{stats:?}");
    assert_eq!(log::ENTRIES.load(Relaxed), stats.calls as usize);
    // But for those around which the user went.
    assert!(log::RETURNS.load(Relaxed) + 8 >= log::ENTRIES.load(Relaxed));
    assert!(stats.calls as usize > HANDLED.load(Relaxed) * fib_calls(4), "{stats:?}");
}

#[unsafe(link_section = ".text.notrace")]
fn interrupt_anywhere() {
    let right = fib(black_box(4)) == fib_result(4);
    WRONG.fetch_add(usize::from(!right), Relaxed);
}
