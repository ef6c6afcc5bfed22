//! Text while it is patched, and text that is not what the tracer left there.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use fgraph::{Error, FuncAddr, OpsFlags, SiteAddr, SiteError};

use crate::log;
use crate::machine::{self, SLED};
use crate::process::{self, FAIL_WRITES, SYNC_HOOK, TRAPS, Thread, set_hook, snapshot};
use crate::users::{User, addr, assert_settled, new_graph, new_op, only};

#[inline(never)]
extern "C" fn first(n: usize) -> usize {
    black_box(n) + 1
}

#[inline(never)]
extern "C" fn second(n: usize) -> usize {
    black_box(n) + 2
}

#[inline(never)]
extern "C" fn third(n: usize) -> usize {
    black_box(n) + 3
}

/// What someone else puts into a sled: another NOP, so that the function still runs.
fn change_sled(func: FuncAddr) -> [u8; SLED] {
    // SAFETY: a NOP for a NOP, in text that was made writable; nobody is running the function.
    unsafe { process::overwrite(func.get(), &machine::OTHER_NOPS) };
    machine::OTHER_NOPS
}

static HOOK_CALLS: AtomicUsize = AtomicUsize::new(0);
static HOOK_WRONG: AtomicUsize = AtomicUsize::new(0);

/// A core that comes through a site that is just being patched.
#[unsafe(link_section = ".text.notrace")]
fn call_while_patching() {
    let right = second(black_box(5)) == 7;
    HOOK_WRONG.fetch_add(usize::from(!right), Relaxed);
    HOOK_CALLS.fetch_add(1, Relaxed);
}

pub fn a_site_between_two_steps_does_what_it_will_do() {
    process::init().expect("the sites are good");
    let told = || {
        let counts = [&HOOK_CALLS, &TRAPS, &log::OPS, &log::ENTRIES, &log::RETURNS];
        counts.map(|count| count.swap(0, Relaxed))
    };
    let (steps, traps) = (machine::STEPS, machine::STEPS - 1);
    let funcs = only(&[addr!(first), addr!(second), addr!(third)]);
    set_hook(&SYNC_HOOK, Some(call_while_patching));

    // Off to args: whoever comes after the first step is told already.
    let args = User::op(log::count_op, OpsFlags::empty(), funcs);
    assert_eq!(told(), [steps, traps, steps, 0, 0], "off to args");
    let graph = User::counting(funcs);
    assert_eq!(told(), [0; 5], "args, for one more");
    let regs = User::op(log::count_op, OpsFlags::SAVE_REGS, funcs);
    // Where a site has one way to be on, no text changes for what its users need.
    let (more_steps, more_traps) = if machine::ONE_WAY_ON { (0, 0) } else { (steps, traps) };
    assert_eq!(told(), [more_steps, more_traps, 2 * more_steps, more_steps, more_steps], "args to regs");
    // Whoever goes has cores synchronised once more, for the grace period; the text is settled by then.
    let (more, other) = (steps + 1, more_steps + 1);
    drop(regs);
    assert_eq!(told(), [other, more_traps, other, other, other], "regs to args");
    drop(args);
    assert_eq!(told(), [1, 0, 0, 1, 1], "args, for one less");
    drop(graph);
    assert_eq!(told(), [more, traps, 0, 0, 0], "args to off");
    let graph = User::counting(funcs);
    assert_eq!(told(), [steps, traps, 0, steps, steps], "off to args, for a graph user");
    drop(graph);
    set_hook(&SYNC_HOOK, None);
    assert_eq!(HOOK_WRONG.load(Relaxed), 0);
    assert_settled(Thread::current().expect("this thread is traced"));
}

fn snapshot_at(addr: usize, len: usize) -> Vec<u8> {
    snapshot()[addr - process::text().start..][..len].to_vec()
}

fn assert_stopped() {
    assert!(fgraph::is_dead());
    let op = new_op(log::op, OpsFlags::empty(), only(&[addr!(first)]));
    assert_eq!(fgraph::register_ftrace_function(op), Err(Error::Stopped));
    let graph = new_graph(log::entry, log::ret, only(&[addr!(first)]));
    assert_eq!(fgraph::register_ftrace_graph(graph), Err(Error::Stopped));
    assert_eq!((first(1), second(1), third(1)), (2, 3, 4));
    assert_eq!(log::take().len(), 0);
}

pub fn a_changed_site_is_refused_when_a_user_comes() {
    process::init().expect("the sites are good");
    let prepared = process::text_at(addr!(second).get());
    let found = change_sled(addr!(second));
    let before = snapshot();
    let op = new_op(log::op, OpsFlags::empty(), only(&[addr!(first), addr!(second), addr!(third)]));
    let Err(Error::Surprise { site, expected, found: code }) = fgraph::register_ftrace_function(op) else {
        panic!("registered");
    };
    assert_eq!(site, SiteAddr::new(addr!(second).get()));
    assert_eq!((expected.as_slice(), code.as_slice()), (&prepared[..], &found[..]));
    assert!(snapshot() == before, "something was written");
    assert_stopped();
    assert_eq!(fgraph::unregister_ftrace_function(op), Err(Error::NotRegistered));
}

pub fn a_site_that_is_no_sled_is_refused_at_start() {
    // `ret`, or whatever: no sled of a compiler.
    let found = machine::NO_SLED;
    // SAFETY: nobody is running the function, and nobody will.
    unsafe { process::overwrite(addr!(second).get(), &found) };
    let before = snapshot();
    let Err(Error::Sites(SiteError::UnexpectedBytes { site, found: code, .. })) = process::init() else {
        panic!("accepted");
    };
    // The table leads to what stands before the function.
    assert_eq!(site, SiteAddr::new(addr!(second).get() - machine::PREFIX));
    assert_eq!(code.as_slice()[..], snapshot_at(site.get(), code.as_slice().len()));
    assert!(snapshot() == before, "something was written");
    let op = new_op(log::op, OpsFlags::empty(), only(&[addr!(first)]));
    assert_eq!(fgraph::register_ftrace_function(op), Err(Error::NotInitialised));
    assert_eq!(first(1), 2);
}

pub fn text_that_cannot_be_written_stops_tracing() {
    process::init().expect("the sites are good");
    let before = snapshot();
    FAIL_WRITES.store(true, Relaxed);
    let op = new_op(log::op, OpsFlags::empty(), only(&[addr!(first), addr!(second)]));
    let result = fgraph::register_ftrace_function(op);
    assert!(matches!(result, Err(Error::Write(_))), "{result:?}");
    assert!(snapshot() == before, "something was written");
    assert_stopped();
}

static STOP_BELOW: AtomicBool = AtomicBool::new(false);

/// A traced function below which tracing is stopped.
#[inline(never)]
extern "C" fn outer(n: usize) -> usize {
    if STOP_BELOW.swap(false, Relaxed) {
        change_sled(addr!(third));
        let op = new_op(log::op, OpsFlags::empty(), only(&[addr!(third)]));
        assert!(matches!(fgraph::register_ftrace_function(op), Err(Error::Surprise { .. })));
    }
    first(black_box(n)) * 10
}

#[inline(never)]
extern "C" fn outermost(n: usize) -> usize {
    outer(black_box(n)) + 1
}

pub fn calls_that_are_under_way_return_after_tracing_has_stopped() {
    process::init().expect("the sites are good");
    let user = User::noting(only(&[addr!(outermost), addr!(outer), addr!(first)]));
    assert_eq!((outermost(1), log::take().len()), (21, 6));
    STOP_BELOW.store(true, Relaxed);
    assert_eq!(outermost(1), 21);
    assert_eq!(log::take().len(), 2, "the two entries before");
    assert_settled(Thread::current().expect("this thread is traced"));
    // The sites are still on; they lead nowhere now.
    assert_eq!((outermost(2), log::take().len()), (31, 0));
    let User::Graph(graph) = &user else { unreachable!() };
    assert_eq!(fgraph::unregister_ftrace_graph(graph), Err(Error::Stopped));
    assert_stopped();
    std::mem::forget(user);
}
