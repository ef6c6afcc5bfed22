//! Calls that do not nest neatly: too deep, tail calls, and calls that nothing returns from.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use fgraph::{EntryCall, FgraphOps, FtraceRegs, Regs, ReturnCall, Want};

use crate::log::{self, Kind};
use crate::machine::{
    live_catch, live_tail_first, live_tail_loop, live_tail_second, live_tail_third, live_tail_untraced,
    live_throw,
};
use crate::process::{self, Thread};
use crate::users::{User, addr, assert_settled, only};
use crate::work::down;

/// Words of a frame without data.
const FRAME: usize = 4;

const fn sum_to(n: usize) -> usize {
    n * (n + 1) / 2
}

pub fn recursion_deeper_than_the_stack_costs_the_trace_only() {
    process::init().expect("the sites are good");
    let _user = User::noting(only(&[addr!(down)]));
    let thread = Thread::enter(64 * FRAME);
    assert_eq!(down(black_box(200)), sum_to(200));
    let stats = thread.trace.stats();
    assert_eq!((stats.calls, stats.returns, stats.max_depth, stats.overrun), (64, 64, 64, 201 - 64));
    assert_settled(thread);
    let events = log::take();
    assert_eq!(events.len(), 128);
    let (entries, returns) = events.split_at(64);
    for (depth, (entry, ret)) in entries.iter().zip(returns.iter().rev()).enumerate() {
        let n = 200 - depth;
        assert_eq!((entry.kind, entry.depth as usize, entry.values[0]), (Kind::Entry, depth, n));
        assert_eq!((ret.kind, ret.depth as usize, ret.values[0]), (Kind::Return, depth, sum_to(n)));
        assert_eq!(entry.parent, ret.parent);
    }
}

static WRONG_DATA: AtomicUsize = AtomicUsize::new(0);

#[unsafe(link_section = ".text.notrace")]
fn keep_argument(call: &mut EntryCall<'_, FtraceRegs>, _ops: &FgraphOps) -> Want {
    let n = call.fregs().argument(0).unwrap_or(0);
    let Some(data) = call.reserve(3) else { return Want::Nothing };
    data[0].store(n, Relaxed);
    data[2].store(!n, Relaxed);
    Want::Return
}

#[unsafe(link_section = ".text.notrace")]
fn compare_argument(call: &mut ReturnCall<'_, FtraceRegs>, _ops: &FgraphOps) {
    let right = call.data().is_some_and(|data| {
        let n = data[0].load(Relaxed);
        data.len() == 3
            && data[1].load(Relaxed) == 0
            && data[2].load(Relaxed) == !n
            && call.retval() == sum_to(n)
    });
    WRONG_DATA.fetch_add(usize::from(!right), Relaxed);
}

pub fn data_stays_with_its_call() {
    process::init().expect("the sites are good");
    let _user = User::graph(keep_argument, compare_argument, only(&[addr!(down)]));
    let thread = Thread::enter(20 * (FRAME + 4) + FRAME);
    assert_eq!(down(black_box(50)), sum_to(50));
    let stats = thread.trace.stats();
    // The last frame has room, but its data has not: that call is given up.
    assert_eq!((stats.calls, stats.overrun, WRONG_DATA.load(Relaxed)), (20, 0, 0), "{stats:?}");
    assert_settled(thread);
}

pub fn tail_calls_close_every_frame() {
    process::init().expect("the sites are good");
    let funcs = [addr!(live_tail_first), addr!(live_tail_second), addr!(live_tail_third)];
    let _user = User::noting(only(&funcs));
    let thread = Thread::current().expect("this thread is traced");
    for call in [live_tail_first as extern "C" fn(usize) -> usize, live_tail_untraced] {
        assert_eq!(black_box(call)(5), 112);
        let events = log::take();
        assert_eq!(events.len(), 6);
        for (depth, func) in funcs.into_iter().enumerate() {
            let (entry, ret) = (events[depth], events[5 - depth]);
            assert_eq!((entry.kind, entry.func, entry.depth as usize), (Kind::Entry, func, depth));
            assert_eq!((ret.kind, ret.func, ret.depth as usize), (Kind::Return, func, depth));
            assert_eq!((ret.parent, ret.values[0]), (entry.parent, 112));
            // A function that was jumped to returns to where its caller's return is caught.
            let caught = fgraph::trampoline_range().contains(&entry.parent.get());
            assert_eq!(caught, depth > 0);
        }
        assert_eq!(events.iter().map(|event| event.sp).min(), Some(events[0].sp));
        assert_settled(thread);
    }
    // The last one alone.
    drop(_user);
    let _user = User::noting(only(&funcs[2..]));
    assert_eq!((live_tail_first(7), log::take().len()), (116, 2));
    assert_settled(thread);
}

pub fn a_loop_of_tail_calls_fills_the_stack_and_empties_it() {
    process::init().expect("the sites are good");
    let _user = User::counting(only(&[addr!(live_tail_loop)]));
    let thread = Thread::enter(64 * FRAME);
    for times in 1..=3 {
        assert_eq!(live_tail_loop(1000, 5), 5 + sum_to(1000));
        let stats = thread.trace.stats();
        assert_eq!((stats.calls, stats.overrun, stats.max_depth), (64 * times, (1001 - 64) * times, 64));
        assert_settled(thread);
    }
}

/// Throws from `n` calls below.
#[inline(never)]
extern "C" fn throw_below(n: usize) -> usize {
    if n == 0 {
        // SAFETY: `catching` or `catch_here` is around this, and nothing between has anything to drop.
        unsafe { live_throw(42) }
    }
    black_box(throw_below as extern "C" fn(usize) -> usize)(n - 1) + 1
}

#[inline(never)]
extern "C" fn inner(n: usize) -> usize {
    black_box(n) + 7
}

/// Catches, and goes on calling.
#[inline(never)]
extern "C" fn catching(n: usize) -> usize {
    // SAFETY: `throw_below` throws to here, over frames that have nothing to drop.
    let caught = unsafe { live_catch(throw_below, n) };
    black_box(inner(caught)) + 1000
}

pub fn a_jump_over_calls_is_noticed_at_the_next_return() {
    process::init().expect("the sites are good");
    let _user = User::noting(only(&[addr!(throw_below), addr!(catching), addr!(inner)]));
    let thread = Thread::current().expect("this thread is traced");
    let mut abandoned = 0;
    for n in [0, 1, 2, 30] {
        assert_eq!(catching(black_box(n)), 1049);
        abandoned += n as u64 + 1;
        let stats = thread.trace.stats();
        assert_eq!((stats.abandoned, stats.depth), (abandoned, 0), "{n}");
        assert_settled(thread);

        let events = log::take();
        let returns: Vec<_> = events
            .iter()
            .filter(|event| event.kind == Kind::Return)
            .map(|event| (event.func, event.values[0], event.depth))
            .collect();
        // Calls that nothing returned through still count as being around the call after the jump.
        assert_eq!(returns, [(addr!(inner), 49, n as u32 + 2), (addr!(catching), 1049, 0)], "{n}");
        assert_eq!(events.len(), 1 + (n + 1) + 1 + 2, "{n}");
    }
}

pub fn jumps_to_where_nothing_is_traced_leave_the_calls_right() {
    process::init().expect("the sites are good");
    let _user = User::counting(only(&[addr!(throw_below), addr!(inner), addr!(down)]));
    let thread = Thread::enter(64 * FRAME);
    for times in 0..100 {
        // SAFETY: `throw_below` throws to here, over frames that have nothing to drop.
        let caught = unsafe { live_catch(throw_below, black_box(2)) };
        assert_eq!((caught, inner(caught)), (42, 49), "{times}");
    }
    assert_eq!(down(black_box(10)), sum_to(10));
    let stats = thread.trace.stats();
    assert_eq!(stats.calls + stats.overrun, 100 * (3 + 1) + 11, "{stats:?}");
    assert_eq!(stats.calls, stats.returns + stats.abandoned + u64::from(stats.depth), "{stats:?}");
}
