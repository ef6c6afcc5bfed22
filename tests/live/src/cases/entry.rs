//! One call: what callbacks are told of it, who is traced, and what the text looks like.

use std::hint::black_box;
use std::sync::atomic::Ordering::Relaxed;

use fgraph::{Filter, FtraceOps, FtraceRegs, FuncAddr, OpsFlags, RetAddr, Saved};

use crate::log::{self, Kind};
use crate::machine::{self, Registers, live_call, live_call_return};
use crate::process::{self, Thread};
use crate::users::{User, addr, assert_settled, only};

#[inline(never)]
extern "C" fn six(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> usize {
    black_box(a) + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f
}

#[inline(never)]
extern "C" fn other(n: usize) -> usize {
    black_box(n) ^ 0x55
}

const SIX: [usize; 6] = [11, 22, 33, 44, 55, 66];
const SUM: usize = 11 + 44 + 99 + 176 + 275 + 396;

fn call_six() -> usize {
    let [a, b, c, d, e, f] = black_box(SIX);
    six(a, b, c, d, e, f)
}

pub fn one_call_is_one_entry_and_one_return() {
    process::init().expect("the sites are good");
    let mut registers = Registers::ZERO;
    for (number, argument) in machine::ARGUMENTS.into_iter().zip(SIX) {
        registers.general[number] = argument;
    }
    let call = || {
        let mut after = Registers::ZERO;
        // SAFETY: `six` takes these arguments and no others.
        unsafe { live_call(addr!(six).get(), &registers, &mut after) };
        after.general[machine::RESULTS[0]]
    };
    assert_eq!((call(), log::take().len()), (SUM, 0), "untraced");

    let parent = RetAddr::new(live_call_return as *const () as usize);
    for flags in [OpsFlags::empty(), OpsFlags::SAVE_REGS] {
        let user = User::op(log::op, flags, only(&[addr!(six)]));
        assert_eq!(call(), SUM);
        drop(user);
        let [event] = log::take()[..] else { panic!("not one event of an op with {flags:?}") };
        assert_eq!((event.kind, event.func, event.parent, event.values), (Kind::Op, addr!(six), parent, SIX));
    }

    let user = User::noting(only(&[addr!(six)]));
    assert_eq!(call(), SUM);
    drop(user);
    let [entry, ret] = log::take()[..] else { panic!("not two events of a graph user") };
    assert_eq!((entry.kind, entry.func, entry.parent, entry.values), (Kind::Entry, addr!(six), parent, SIX));
    assert_eq!((ret.kind, ret.func, ret.parent, ret.values[0]), (Kind::Return, addr!(six), parent, SUM));
    assert_eq!((entry.depth, ret.depth, ret.saved), (0, 0, Saved::Return));

    let thread = Thread::current().expect("this thread is traced");
    let stats = thread.trace.stats();
    assert_eq!((stats.calls, stats.returns, stats.max_depth, stats.recursed), (1, 1, 1, 0));
    assert_settled(thread);

    assert_eq!((call(), log::take().len()), (SUM, 0), "untraced again");
}

pub fn what_is_not_wanted_is_not_patched() {
    let report = process::init().expect("the sites are good");
    assert!(report.sites > 20 && report.notrace > 20, "{report:?}");
    assert_eq!((report.empty, report.outside, report.duplicates), (0, 0, 0));
    let stop = process::notrace_end();
    assert!(process::functions().iter().all(|func| func.get() >= stop), "a function in the notrace range");
    assert!(process::functions().contains(&addr!(six)));

    let one = User::noting(only(&[addr!(six)]));
    assert_eq!(fgraph::stats().patched, 1);
    let two = User::op(log::op, OpsFlags::empty(), only(&[addr!(six), addr!(other)]));
    assert_eq!(fgraph::stats().patched, 2);
    let none = User::op(log::op, OpsFlags::empty(), Filter::NONE);
    assert_eq!(fgraph::stats().patched, 2);
    other(black_box(1));
    assert_eq!(log::take().len(), 1);
    call_six();
    let kinds: Vec<_> = log::take().iter().map(|event| event.kind).collect();
    // Users of entries come first, whoever registered first.
    assert_eq!(kinds, [Kind::Op, Kind::Entry, Kind::Return]);
    drop((one, two, none));
    assert_eq!(fgraph::stats().patched, 0);
}

pub fn text_is_as_before_when_nobody_is_left() {
    let compiled = process::snapshot();
    process::init().expect("the sites are good");
    let prepared = process::snapshot();
    let user = User::counting(Filter::ALL);
    let patched = fgraph::stats().patched;
    drop(user);
    assert_eq!(patched, fgraph::stats().sites);
    assert!(process::snapshot() == prepared, "text differs from what it was before a user came and went");
    // And what `init` prepared is in the sleds.
    let text = process::text();
    let mut rest = 0;
    for func in process::functions() {
        let start = func.get() - machine::PREFIX - text.start;
        assert!(compiled[rest..start] == prepared[rest..start], "text before {func} was changed");
        rest = func.get() - text.start + machine::PAD + machine::SLED;
    }
    assert!(compiled[rest..] == prepared[rest..], "text behind the last function was changed");
}

pub fn a_thread_without_a_block_is_not_traced() {
    process::init().expect("the sites are good");
    let _op = User::op(log::op, OpsFlags::empty(), only(&[addr!(six)]));
    let _graph = User::noting(only(&[addr!(six)]));
    let here = machine::current();
    machine::set_current(std::ptr::null());
    assert_eq!(call_six(), SUM);
    machine::set_current(here);
    assert_eq!(log::take().len(), 0);
    assert_eq!((call_six(), log::take().len()), (SUM, 3));
}

pub fn a_thread_without_a_stack_reaches_ops_only() {
    process::init().expect("the sites are good");
    let _op = User::op(log::op, OpsFlags::empty(), only(&[addr!(six)]));
    let _graph = User::noting(only(&[addr!(six)]));
    let thread = Thread::enter(0);
    assert_eq!(call_six(), SUM);
    let kinds: Vec<_> = log::take().iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [Kind::Op]);
    assert_eq!(thread.trace.stats(), fgraph::TaskStats::default());
}

#[unsafe(link_section = ".text.notrace")]
fn op_that_calls(_ip: FuncAddr, _parent_ip: RetAddr, _ops: &FtraceOps, _fregs: &mut FtraceRegs) {
    log::OPS.fetch_add(1, Relaxed);
    other(black_box(1));
    machine::clobber();
}

pub fn a_callback_that_calls_is_told_once_more() {
    process::init().expect("the sites are good");
    let _op = User::op(op_that_calls, OpsFlags::empty(), only(&[addr!(six), addr!(other)]));
    for calls in 1..=3 {
        assert_eq!(call_six(), SUM);
        // The call itself, and the one that its callback makes; the one that that callback makes is refused.
        assert_eq!(log::OPS.load(Relaxed), 2 * calls);
        let stats = Thread::current().expect("this thread is traced").trace.stats();
        assert_eq!(stats.recursed, calls as u64);
    }
}

/// A traced function, from what runs before any guard is taken.
#[unsafe(link_section = ".text.notrace")]
fn call_other() {
    other(black_box(1));
}

pub fn a_tracer_that_traces_itself_is_stopped() {
    process::init().expect("the sites are good");
    let _op = User::op(log::count_op, OpsFlags::empty(), only(&[addr!(six), addr!(other)]));
    process::set_hook(&process::CONTEXT_HOOK, Some(call_other));
    assert_eq!(call_six(), SUM);
    process::set_hook(&process::CONTEXT_HOOK, None);
    // Eight trampolines at once, as the task's block counts them; the ninth refused, and nothing left behind.
    let thread = Thread::current().expect("this thread is traced");
    assert_eq!((log::OPS.load(Relaxed), thread.trace.stats().recursed), (8, 1));
    assert_eq!(call_six(), SUM);
    assert_eq!((log::OPS.load(Relaxed), thread.trace.stats().recursed), (9, 1));
    assert_settled(thread);
}
