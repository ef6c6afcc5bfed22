//! What callbacks change takes effect: arguments, results, and where a call goes.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use fgraph::{
    EntryCall, FgraphOps, FtraceOps, FtraceRegs, FuncAddr, OpsFlags, Regs, RetAddr, ReturnCall, Want,
};

use crate::log::{self, Kind};
use crate::machine::{self, live_tail_first, live_tail_second, live_tail_third};
use crate::process::{self, Thread};
use crate::users::{User, addr, assert_settled, only};

static BODIES: AtomicUsize = AtomicUsize::new(0);

/// Says when it has been run.
#[inline(never)]
extern "C" fn twice(n: usize) -> usize {
    BODIES.fetch_add(1, Relaxed);
    black_box(n) * 2
}

#[inline(never)]
extern "C" fn thrice(n: usize) -> usize {
    black_box(n) * 3
}

#[inline(never)]
fn both(n: u64) -> (u64, u64) {
    (black_box(n) + 1, n + 2)
}

/// Calls `twice`: the result, and how often its body ran.
fn call_twice(n: usize) -> (usize, usize) {
    let before = BODIES.load(Relaxed);
    let result = twice(black_box(n));
    (result, BODIES.load(Relaxed) - before)
}

#[unsafe(link_section = ".text.notrace")]
fn add_to_result(call: &mut ReturnCall<'_, FtraceRegs>, _ops: &FgraphOps) {
    let value = call.retval() + 1_000_000;
    // SAFETY: the traced functions return integers.
    unsafe { call.fregs_mut().set_return_value(value) };
    machine::clobber();
}

#[unsafe(link_section = ".text.notrace")]
fn change_second(call: &mut ReturnCall<'_, FtraceRegs>, _ops: &FgraphOps) {
    machine::set_second_result(call.fregs_mut(), 77);
}

pub fn a_changed_result_reaches_the_caller() {
    process::init().expect("the sites are good");
    let user = User::graph(log::entry, add_to_result, only(&[addr!(twice)]));
    assert_eq!(call_twice(4), (1_000_008, 1));
    let more = User::graph(log::entry, add_to_result, only(&[addr!(twice)]));
    assert_eq!(call_twice(4), (2_000_008, 1));
    drop((user, more));
    assert_eq!(call_twice(4), (8, 1));

    let user = User::graph(log::entry, change_second, only(&[addr!(both)]));
    assert_eq!(both(black_box(3)), (4, 77));
    drop(user);
    assert_eq!(both(black_box(3)), (4, 5));

    // Every function of a chain of tail calls returns, and each return may change the result.
    let chain = [addr!(live_tail_first), addr!(live_tail_second), addr!(live_tail_third)];
    let _user = User::graph(log::entry, add_to_result, only(&chain));
    assert_eq!(live_tail_first(5), 3_000_112);
    assert_settled(Thread::current().expect("this thread is traced"));
}

#[unsafe(link_section = ".text.notrace")]
fn set_argument(_ip: FuncAddr, _parent_ip: RetAddr, _ops: &FtraceOps, fregs: &mut FtraceRegs) {
    // SAFETY: the traced function takes an integer.
    let in_register = unsafe { fregs.set_argument(0, 50) };
    BODIES.fetch_add(usize::from(!in_register) * 1000, Relaxed);
    machine::clobber();
}

pub fn a_changed_argument_reaches_the_function() {
    process::init().expect("the sites are good");
    for flags in [OpsFlags::empty(), OpsFlags::SAVE_REGS] {
        let _user = User::op(set_argument, flags, only(&[addr!(twice)]));
        assert_eq!(call_twice(4), (100, 1));
    }
}

#[unsafe(link_section = ".text.notrace")]
fn op_instead(_ip: FuncAddr, _parent_ip: RetAddr, _ops: &FtraceOps, fregs: &mut FtraceRegs) {
    // SAFETY: the traced function returns an integer, and its caller does not mind.
    unsafe {
        fregs.set_return_value(31337);
        fregs.return_early();
    }
    machine::clobber();
}

#[unsafe(link_section = ".text.notrace")]
fn graph_instead(call: &mut EntryCall<'_, FtraceRegs>, _ops: &FgraphOps) -> Want {
    // SAFETY: as above.
    unsafe {
        call.fregs_mut().set_return_value(4242);
        call.fregs_mut().return_early();
    }
    machine::clobber();
    Want::Return
}

#[unsafe(link_section = ".text.notrace")]
fn graph_instead_untold(call: &mut EntryCall<'_, FtraceRegs>, ops: &FgraphOps) -> Want {
    let _ = graph_instead(call, ops);
    Want::Nothing
}

pub fn a_call_can_return_before_it_starts() {
    process::init().expect("the sites are good");
    let funcs = only(&[addr!(twice)]);
    for flags in [OpsFlags::empty(), OpsFlags::SAVE_REGS] {
        // By an op, before the graph user is asked and after.
        let op = User::op(op_instead, flags, funcs);
        assert_eq!(call_twice(4), (31337, 0));
        let graph = User::noting(funcs);
        assert_eq!(call_twice(4), (31337, 0));
        drop(op);
        let op = User::op(op_instead, flags, funcs);
        assert_eq!(call_twice(4), (31337, 0));
        drop((op, graph));
        let events = log::take();
        let kinds: Vec<_> = events.iter().map(|event| event.kind).collect();
        assert_eq!(kinds, [Kind::Entry, Kind::Return, Kind::Entry, Kind::Return]);
        assert_eq!([events[1].values[0], events[3].values[0]], [31337; 2]);
    }
    let graph = User::graph(graph_instead, log::ret, funcs);
    assert_eq!(call_twice(4), (4242, 0));
    let told: Vec<_> = log::take().iter().map(|event| (event.kind, event.values[0])).collect();
    assert_eq!(told, [(Kind::Return, 4242)]);
    drop(graph);

    let graph = User::graph(graph_instead_untold, log::ret, funcs);
    assert_eq!((call_twice(4), log::take().len()), ((4242, 0), 0));
    drop(graph);
    assert_eq!(call_twice(4), (8, 1));
    assert_settled(Thread::current().expect("this thread is traced"));
}

#[unsafe(link_section = ".text.notrace")]
fn redirect(_ip: FuncAddr, _parent_ip: RetAddr, _ops: &FtraceOps, fregs: &mut FtraceRegs) {
    // SAFETY: both functions have the same type.
    unsafe { fregs.set_ip(thrice as *const () as usize) };
    machine::clobber();
}

pub fn a_call_can_be_sent_to_another_function() {
    process::init().expect("the sites are good");
    for flags in [OpsFlags::empty(), OpsFlags::SAVE_REGS] {
        let redirect = User::op(redirect, flags, only(&[addr!(twice)]));
        assert_eq!(call_twice(4), (12, 0));
        // The other function is traced, too: it returns first, as after a tail call.
        let noting = User::noting(only(&[addr!(twice), addr!(thrice)]));
        assert_eq!(call_twice(4), (12, 0));
        drop((redirect, noting));
        let told: Vec<_> = log::take().iter().map(|event| (event.kind, event.func)).collect();
        let [twice, thrice] = [addr!(twice), addr!(thrice)];
        let nested =
            [(Kind::Entry, twice), (Kind::Entry, thrice), (Kind::Return, thrice), (Kind::Return, twice)];
        assert_eq!(told, nested);
    }
    assert_settled(Thread::current().expect("this thread is traced"));
}
