//! Cases for users of function entries.

use super::probe::{self, Registered, count};
use super::targets::{ARGUMENTS, SIX, Target, one, six, two};
use super::{NotRun, Stop, done, refuses, same, within};
use crate::addr::{FuncAddr, RetAddr};
use crate::arch::{FtraceRegs, live};
use crate::engine::{Error, SetChange, WhichSet};
use crate::filter::Filter;
use crate::ops::{Ops, OpsFlags, OpsFunc};
use crate::regs::{Regs, Saved};
use crate::sync::{AtomicUsize, Ordering};
use crate::task::TaskTrace;

type Entries = Ops<FtraceRegs>;

/// A user that counts in the probe of this number.
const fn counting(number: usize) -> Entries {
    user(count, OpsFlags::empty(), number)
}

const fn user(func: OpsFunc<FtraceRegs>, flags: OpsFlags, number: usize) -> Entries {
    // What it wants, each case says.
    Ops::new(func, flags, Filter::NONE).with_private(number)
}

static A: Entries = counting(0);
static B: Entries = counting(1);
static BOTH: Entries = counting(2);
static GLOBAL: Entries = counting(3);
static LATE: Entries = counting(4);

/// Ends the case if tracing is not ready, or switched off.
pub(super) fn check_switched_on() -> Result<(), Stop> {
    static PERMANENT: Entries = user(count, OpsFlags::PERMANENT, 0);
    match Registered::try_op(&PERMANENT, SetChange::Clear) {
        Ok(registered) => registered.out(),
        Err(Error::NotInitialised) => Err(Stop::NotRun(NotRun::NotInitialised)),
        Err(Error::Permanent) => Err(Stop::NotRun(NotRun::SwitchedOff)),
        Err(Error::TooManyUsers { max }) => Err(Stop::NotRun(NotRun::NoSlot { max })),
        Err(error) => done("registering a user of nothing", Err(error)),
    }
}

/// A user of one function: told of nothing before a call, once of a call, of nothing afterwards.
pub(super) fn dynamic_ftrace(_task: &TaskTrace) -> Result<(), Stop> {
    let seen = probe::of(0);
    let user = Registered::op(&A, SetChange::Replace(&[Target::One.addr()]))?;
    same("hits", "before any call", seen.entries(Target::One), 0)?;
    same("result", "of a function that is not wanted", two(4), 8)?;
    same("hits", "after a call that is not wanted", seen.entries(Target::Two), 0)?;
    same("result", "of the wanted function", one(4), 5)?;
    same("hits", "after one call", seen.entries(Target::One), 1)?;
    user.out()?;
    same("result", "without any user", one(4), 5)?;
    same("hits", "after the user has gone", seen.entries(Target::One), 1)?;
    same("hits of other functions or tasks", "after all", seen.elsewhere(), 0)
}

/// What the users A, B, A+B, the global one and the one that comes late should have been told so far.
type Hits = [usize; 5];

fn check_hits(when: &'static str, expected: Hits) -> Result<(), Stop> {
    const WHOSE: [&str; 5] = [
        "hits of the user of A",
        "hits of the user of B",
        "hits of the user of A and B",
        "hits of the global user",
        "hits of the late user",
    ];
    for (number, (whose, expected)) in WHOSE.into_iter().zip(expected).enumerate() {
        let seen = probe::of(number);
        same(whose, when, seen.entries(Target::One) + seen.entries(Target::Two), expected)?;
    }
    Ok(())
}

/// [`dynamic_ops`] without a global user.
pub(super) fn dynamic_ops_1(_task: &TaskTrace) -> Result<(), Stop> {
    dynamic_ops(None)
}

/// [`dynamic_ops`] with a user of everything from the start on.
pub(super) fn dynamic_ops_2(_task: &TaskTrace) -> Result<(), Stop> {
    dynamic_ops(Some(&GLOBAL))
}

/// Users of A, of B and of both, then one more: exact hits after each call, while filters change and users go in the order
/// in which they came.
fn dynamic_ops(global: Option<&'static Entries>) -> Result<(), Stop> {
    // What the global user should have been told, if there is one.
    let all = |hits| if global.is_some() { hits } else { 0 };
    let (a, b) = (Target::One.addr(), Target::Two.addr());
    let user_of_a = Registered::op(&A, SetChange::Replace(&[a]))?;
    let user_of_b = Registered::op(&B, SetChange::Replace(&[b]))?;
    let user_of_both =
        Registered::op(&BOTH, SetChange::Replace(&Target::sorted([Target::One, Target::Two])))?;
    let global = global.map(|ops| Registered::op(ops, SetChange::All)).transpose()?;
    check_hits("before any call", [0, 0, 0, 0, 0])?;
    one(1);
    check_hits("after A", [1, 0, 1, all(1), 0])?;
    two(1);
    check_hits("after A, B", [1, 1, 2, all(2), 0])?;

    let late = Registered::op(&LATE, SetChange::All)?;
    one(1);
    check_hits("after A with the late user", [2, 1, 3, all(3), 1])?;
    two(1);
    check_hits("after A, B with the late user", [2, 2, 4, all(4), 2])?;

    done(
        "removing a function from a live filter",
        live::ftrace_set_filter(&BOTH, WhichSet::Filter, SetChange::Remove(&[a])),
    )?;
    one(1);
    check_hits("after A, which was removed from a filter", [3, 2, 4, all(5), 3])?;
    two(1);
    check_hits("after B, which was left in that filter", [3, 3, 5, all(6), 4])?;

    // In the order in which they came, not the other way round.
    user_of_a.out()?;
    one(1);
    check_hits("after A without its own user", [3, 3, 5, all(7), 5])?;
    user_of_b.out()?;
    user_of_both.out()?;
    if let Some(global) = global {
        global.out()?;
    }
    two(1);
    check_hits("after B with the late user alone", [3, 3, 5, all(7), 6])?;
    late.out()?;
    one(1);
    two(1);
    check_hits("after A, B without any user", [3, 3, 5, all(7), 6])?;
    for number in 0..3 {
        same("hits of other functions or tasks", "after all", probe::of(number).elsewhere(), 0)?;
    }
    Ok(())
}

/// Counts, and calls the traced function whenever it is told of it.
fn call_again(ip: FuncAddr, _parent_ip: RetAddr, ops: &Entries, fregs: &mut FtraceRegs) {
    probe::of(ops.private()).note_entry(ip, fregs);
    one(1);
}

/// Counts, and calls the traced function when it is told of it for the first time.
fn call_again_once(ip: FuncAddr, _parent_ip: RetAddr, ops: &Entries, fregs: &mut FtraceRegs) {
    if probe::of(ops.private()).note_entry(ip, fregs) == Some(1) {
        one(1);
    }
}

/// A callback that calls the traced function without end is protected by the core: told once, or once more.
pub(super) fn recursion(task: &TaskTrace) -> Result<(), Stop> {
    static RECURSING: Entries = user(call_again, OpsFlags::RECURSION, 0);
    let before = task.stats().recursed;
    let user = Registered::op(&RECURSING, SetChange::Replace(&[Target::One.addr()]))?;
    same("result", "of a call whose callback recurses", one(4), 5)?;
    within("hits", "after one call", probe::of(0).entries(Target::One), 1, 2)?;
    let kept_out = (task.stats().recursed - before) as usize;
    within("calls kept out", "after one call", kept_out, 1, usize::MAX)?;
    user.out()?;
    let hits = probe::of(0).entries(Target::One);
    one(4);
    same("hits", "after the user has gone", probe::of(0).entries(Target::One), hits)
}

/// A callback that protects itself is told of the one call that it makes.
pub(super) fn recursion_safe(_task: &TaskTrace) -> Result<(), Stop> {
    static RECURSING_ONCE: Entries = user(call_again_once, OpsFlags::empty(), 0);
    let user = Registered::op(&RECURSING_ONCE, SetChange::Replace(&[Target::One.addr()]))?;
    same("result", "of a call whose callback calls once", one(4), 5)?;
    same("hits", "after one call", probe::of(0).entries(Target::One), 2)?;
    one(4);
    same("hits", "after another call", probe::of(0).entries(Target::One), 3)?;
    user.out()
}

/// Of the newest call of the user with this number: which registers came, and how many of the arguments were right.
static SAVED: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];
static RIGHT: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];

fn look_at_regs(ip: FuncAddr, parent_ip: RetAddr, ops: &Entries, fregs: &mut FtraceRegs) {
    let number = ops.private() % SAVED.len();
    if probe::of(number).note_entry(ip, fregs).is_none() {
        return;
    }
    SAVED[number].store(fregs.saved() as usize, Ordering::Relaxed);
    let mut right = 0;
    for (n, expected) in ARGUMENTS.iter().enumerate() {
        right += usize::from(fregs.argument(n) == Some(*expected));
    }
    // On no machine do fewer than six arguments travel in registers. The stack is that of the call.
    right += usize::from(fregs.return_address() == parent_ip);
    right += usize::from(fregs.sp() == fregs.key().get());
    RIGHT[number].store(right, Ordering::Relaxed);
}

/// Users that ask for every register get them, also beside one that does not ask; arguments are right in any case.
pub(super) fn regs(_task: &TaskTrace) -> Result<(), Stop> {
    static ARGS: Entries = user(look_at_regs, OpsFlags::SAVE_ARGS, 0);
    static REGS: Entries = user(look_at_regs, OpsFlags::SAVE_REGS, 1);
    static IF_SUPPORTED: Entries = user(look_at_regs, OpsFlags::SAVE_REGS_IF_SUPPORTED, 2);
    const FLAVOR: &str = "flavour of registers (1 for arguments, 2 for every one)";
    let function = [Target::Six.addr()];
    let look = |number: usize, when: &'static str, hits, least| {
        same("hits", when, probe::of(number).entries(Target::Six), hits)?;
        within(FLAVOR, when, SAVED[number].load(Ordering::Relaxed), least, Saved::Regs as usize)?;
        same("arguments and stack words that are right", when, RIGHT[number].swap(0, Ordering::Relaxed), 8)
    };
    // Somebody else's user may bring every register to this one as well.
    let args = Registered::op(&ARGS, SetChange::Replace(&function))?;
    same("result", "with a user of arguments", six(), SIX)?;
    look(0, "with a user of arguments", 1, Saved::Args as usize)?;

    let every = Registered::op(&REGS, SetChange::Replace(&function))?;
    same("result", "with a user of every register", six(), SIX)?;
    look(0, "beside a user of every register", 2, Saved::Args as usize)?;
    look(1, "with a user of every register", 1, Saved::Regs as usize)?;
    args.out()?;
    every.out()?;

    // Both machines have a regs trampoline, so it is supported.
    let if_supported = Registered::op(&IF_SUPPORTED, SetChange::Replace(&function))?;
    same("result", "with a user of every register if supported", six(), SIX)?;
    look(2, "with a user of every register if supported", 1, Saved::Regs as usize)?;
    if_supported.out()?;
    same("result", "without any user", six(), SIX)
}

fn go_to_two(ip: FuncAddr, _parent_ip: RetAddr, ops: &Entries, fregs: &mut FtraceRegs) {
    if probe::of(ops.private()).note_entry(ip, fregs).is_some() {
        // SAFETY: both functions have the same type, and nothing of the first has run.
        unsafe { fregs.set_ip(Target::Two.addr().get()) };
    }
}

/// One user may change where a function goes on, and it takes effect; a second one is refused, and is not when the first has gone.
pub(super) fn ipmodify(_task: &TaskTrace) -> Result<(), Stop> {
    static FIRST: Entries = user(go_to_two, OpsFlags::IPMODIFY, 0);
    static SECOND: Entries = user(go_to_two, OpsFlags::IPMODIFY.union(OpsFlags::SAVE_REGS), 1);
    let func = Target::One.addr();
    refuses(
        "changing the ip of every function",
        Registered::try_op(&FIRST, SetChange::All).map(drop),
        Error::IpModifyNeedsFilter,
    )?;
    let first = Registered::op(&FIRST, SetChange::Replace(&[func]))?;
    same("result", "with a changed ip", one(4), 8)?;
    refuses(
        "a second user that changes the ip",
        Registered::try_op(&SECOND, SetChange::Replace(&[func])).map(drop),
        Error::IpModifyConflict { func },
    )?;
    same("result", "after a conflict was refused", one(4), 8)?;
    same("hits", "after two calls", probe::of(0).entries(Target::One), 2)?;
    same("hits of the refused user", "after one call", probe::of(1).entries(Target::One), 0)?;
    first.out()?;
    same("result", "after the user has gone", one(4), 5)?;
    let second = Registered::op(&SECOND, SetChange::Replace(&[func]))?;
    same("result", "with a changed ip and every register", one(4), 8)?;
    second.out()?;
    same("result", "without any user", one(4), 5)
}

/// Switches tracing on again when dropped.
struct SwitchedOff;

impl Drop for SwitchedOff {
    fn drop(&mut self) {
        // It was on before, so nothing can be in the way but what stops tracing, which later cases report.
        let _ = live::ftrace_set_enabled(true);
    }
}

/// Switched off, no user is told of anything; a permanent user and the switch exclude each other.
pub(super) fn permanent_and_global_switch(_task: &TaskTrace) -> Result<(), Stop> {
    static PERMANENT: Entries = user(count, OpsFlags::PERMANENT, 1);
    let function = [Target::One.addr()];
    let hits = |number: usize| probe::of(number).entries(Target::One);
    let user = Registered::op(&A, SetChange::Replace(&function))?;
    one(4);
    same("hits", "before tracing is switched off", hits(0), 1)?;
    match live::ftrace_set_enabled(false) {
        Err(Error::Permanent) => return Err(Stop::NotRun(NotRun::PermanentUser)),
        switched => done("switching off", switched)?,
    }
    let off = SwitchedOff;
    same("result", "with tracing switched off", one(4), 5)?;
    same("hits", "with tracing switched off", hits(0), 1)?;
    refuses(
        "a permanent user while tracing is switched off",
        Registered::try_op(&PERMANENT, SetChange::Replace(&function)).map(drop),
        Error::Permanent,
    )?;
    done("switching on", live::ftrace_set_enabled(true))?;
    drop(off);
    one(4);
    same("hits", "with tracing switched on again", hits(0), 2)?;

    let permanent = Registered::op(&PERMANENT, SetChange::Replace(&function))?;
    let answer = live::ftrace_set_enabled(false);
    let off = answer.is_ok().then_some(SwitchedOff);
    refuses("switching off under a permanent user", answer, Error::Permanent)?;
    drop(off);
    one(4);
    same("hits of the permanent user", "after one call", hits(1), 1)?;
    same("hits", "beside the permanent user", hits(0), 3)?;
    permanent.out()?;
    user.out()?;
    one(4);
    same("hits", "after the users have gone", hits(0) + hits(1), 4)
}
