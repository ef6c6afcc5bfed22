//! Cases for users of the function graph. Every one of them also checks that entries and returns come in pairs, with the data that
//! was reserved at the entry.

use super::probe::{self, DATA_WORDS, Registered, count, entry, ret};
use super::targets::{Target, nest, one};
use super::{Stop, done, same};
use crate::arch::{FtraceRegs, live};
use crate::engine::SetChange;
use crate::filter::Filter;
use crate::graph::{GraphOps, GraphReturnFunc, ReturnCall};
use crate::ops::{Ops, OpsFlags};
use crate::regs::Regs;
use crate::task::TaskTrace;

type Graph = GraphOps<FtraceRegs>;

/// A user that notes calls in the probe of this number, and reserves as many words as that one's number says.
const fn noting(number: usize, at_return: GraphReturnFunc<FtraceRegs>) -> Graph {
    // What it wants, each case says.
    GraphOps::new(entry, at_return, Filter::NONE).with_private(number)
}

static USERS: [Graph; DATA_WORDS.len()] = [noting(0, ret), noting(1, ret), noting(2, ret), noting(3, ret)];

/// A user of entries that counts beside them.
static OP: Ops<FtraceRegs> = Ops::new(count, OpsFlags::empty(), Filter::NONE).with_private(4);

/// How deep calls nest below the first: a shadow stack of a hundred words has room for it with every user's data.
const DEPTH: usize = 2;

/// Rounds of calls.
const ROUNDS: usize = 16;

/// Calls `nest` so often; every result must be right.
fn call_nested(rounds: usize, when: &'static str) -> Result<(), Stop> {
    for _ in 0..rounds {
        same("result", when, nest(DEPTH), DEPTH + 11)?;
    }
    Ok(())
}

/// What a user of the nested functions should have been told.
fn check_nested(number: usize, rounds: usize, when: &'static str) -> Result<(), Stop> {
    let seen = probe::of(number);
    let nested = rounds * (DEPTH + 1);
    same("entries of the function that nests", when, seen.entries(Target::Nest), nested)?;
    same("returns of the function that nests", when, seen.returns(Target::Nest), nested)?;
    same("entries of the innermost function", when, seen.entries(Target::One), rounds)?;
    same("returns of the innermost function", when, seen.returns(Target::One), rounds)?;
    seen.check_paired(when)
}

/// With every function traced, so many calls are so many entries and returns, properly nested, and the task is left as it was.
pub(super) fn graph(task: &TaskTrace) -> Result<(), Stop> {
    let depth = task.stats().depth as usize;
    let user = Registered::graph(&USERS[0], SetChange::All)?;
    call_nested(ROUNDS, "with every function traced")?;
    user.out()?;
    check_nested(0, ROUNDS, "with every function traced")?;
    call_nested(1, "without any user")?;
    check_nested(0, ROUNDS, "after the user has gone")?;
    same("open calls of the task", "after all", task.stats().depth as usize, depth)
}

/// A graph user and a user of entries on one function are told of each call, whoever came first.
pub(super) fn graph_and_another_op(_task: &TaskTrace) -> Result<(), Stop> {
    let function = [Target::One.addr()];
    let (graph, op) = (probe::of(0), probe::of(4));
    let check = |when, in_graph, in_op| {
        same("graph entries", when, graph.entries(Target::One), in_graph)?;
        same("graph returns", when, graph.returns(Target::One), in_graph)?;
        same("hits of the user of entries", when, op.entries(Target::One), in_op)
    };
    let graph_user = Registered::graph(&USERS[0], SetChange::Replace(&function))?;
    let entry_user = Registered::op(&OP, SetChange::Replace(&function))?;
    same("result", "with both users", one(4), 5)?;
    check("after one call with both users", 1, 1)?;
    graph_user.out()?;
    same("result", "with the user of entries alone", one(4), 5)?;
    check("after another with the user of entries alone", 1, 2)?;
    let graph_user = Registered::graph(&USERS[0], SetChange::Replace(&function))?;
    same("result", "with both users again", one(4), 5)?;
    check("after another with both users again", 2, 3)?;
    entry_user.out()?;
    same("result", "with the graph user alone", one(4), 5)?;
    check("after another with the graph user alone", 3, 3)?;
    graph_user.out()?;
    same("hits of other functions or tasks", "after all", graph.elsewhere() + op.elsewhere(), 0)?;
    graph.check_paired("after all")
}

/// A user with a trampoline of its own: the function goes on in [`Target::Two`], and calls are graph events of the function that was
/// called, whoever came first.
pub(super) fn graph_and_direct(_task: &TaskTrace) -> Result<(), Stop> {
    // SAFETY: what it goes to is set before it is registered, and is a function of the same type as the one that is wanted.
    static DIRECT: Ops<FtraceRegs> = unsafe { Ops::direct(0, OpsFlags::empty(), Filter::NONE) };
    let function = [Target::One.addr()];
    let graph = probe::of(0);
    let check = |when, result, in_graph| {
        same("result", when, one(4), result)?;
        same("graph entries", when, graph.entries(Target::One), in_graph)?;
        same("graph returns", when, graph.returns(Target::One), in_graph)
    };
    // SAFETY: as above.
    let aimed = unsafe { live::ftrace_modify_direct(&DIRECT, Target::Two.addr().get()) };
    done("giving a user its trampoline", aimed)?;
    let direct = Registered::op(&DIRECT, SetChange::Replace(&function))?;
    check("with the trampoline alone", 8, 0)?;
    let user = Registered::graph(&USERS[0], SetChange::Replace(&function))?;
    check("with a graph user beside it", 8, 1)?;
    same("return value", "as the graph user sees it", graph.retval(), 8)?;
    direct.out()?;
    check("with the graph user alone", 5, 2)?;
    let direct = Registered::op(&DIRECT, SetChange::Replace(&function))?;
    check("with the trampoline beside it", 8, 3)?;
    user.out()?;
    check("with the trampoline alone again", 8, 3)?;
    direct.out()?;
    check("without any user", 5, 3)?;
    graph.check_paired("after all")
}

/// What a user reserves and fills at an entry it finds at the return.
pub(super) fn storage<const NUMBER: usize>(_task: &TaskTrace) -> Result<(), Stop> {
    let functions = Target::sorted([Target::One, Target::Nest]);
    let user = Registered::graph(&USERS[NUMBER], SetChange::Replace(&functions))?;
    call_nested(ROUNDS, "with one user")?;
    user.out()?;
    check_nested(NUMBER, ROUNDS, "with one user")
}

/// Four users on the same functions, each with data of another size: none finds another's.
pub(super) fn storage_multi(_task: &TaskTrace) -> Result<(), Stop> {
    let functions = Target::sorted([Target::One, Target::Nest]);
    let [first, second, third, fourth] =
        USERS.each_ref().map(|user| Registered::graph(user, SetChange::Replace(&functions)));
    let (first, second, third, fourth) = (first?, second?, third?, fourth?);
    call_nested(ROUNDS, "with four users")?;
    for number in 0..USERS.len() {
        check_nested(number, ROUNDS, "with four users")?;
    }
    // One in the middle goes: the others do not notice.
    second.out()?;
    call_nested(ROUNDS, "with three of four users")?;
    for number in [0, 2, 3] {
        check_nested(number, 2 * ROUNDS, "with three of four users")?;
    }
    check_nested(1, ROUNDS, "after the user has gone")?;
    first.out()?;
    third.out()?;
    fourth.out()
}

/// What [`ret_77`] makes of a return value.
const CHANGED: usize = 77;

fn ret_77(call: &mut ReturnCall<'_, FtraceRegs>, ops: &Graph) {
    ret(call, ops);
    if Target::at(call.func()) == Some(Target::One) {
        // SAFETY: the function returns a `usize`, and the self-tests are its only caller.
        unsafe { call.fregs_mut().set_return_value(CHANGED) };
    }
}

/// A return value is seen, and a changed one is what the caller gets.
pub(super) fn retval(_task: &TaskTrace) -> Result<(), Stop> {
    static CHANGING: Graph = noting(1, ret_77);
    let function = [Target::One.addr()];
    let user = Registered::graph(&USERS[0], SetChange::Replace(&function))?;
    for n in [0, 4, usize::MAX - 1] {
        same("result", "with a user that looks at it", one(n), n + 1)?;
        same("return value", "as the user sees it", probe::of(0).retval(), n + 1)?;
    }
    user.out()?;
    let user = Registered::graph(&CHANGING, SetChange::Replace(&function))?;
    same("result", "with a user that changes it", one(4), CHANGED)?;
    same("return value", "as the user saw it before it changed it", probe::of(1).retval(), 5)?;
    user.out()?;
    same("result", "without any user", one(4), 5)
}

/// Calls of a task that is paused so many times are not told to graph users; dropping it undoes them all.
struct Pauses<'a> {
    task: &'a TaskTrace,
    count: usize,
}

impl Pauses<'_> {
    fn pause(&mut self) {
        self.task.pause();
        self.count += 1;
    }

    fn resume(&mut self) {
        self.task.resume();
        self.count -= 1;
    }
}

impl Drop for Pauses<'_> {
    fn drop(&mut self) {
        for _ in 0..self.count {
            self.task.resume();
        }
    }
}

/// A paused task runs unhooked, until it has been resumed as often; users of entries are told all the same.
pub(super) fn pause(task: &TaskTrace) -> Result<(), Stop> {
    let function = [Target::One.addr()];
    let graph_user = Registered::graph(&USERS[0], SetChange::Replace(&function))?;
    let entry_user = Registered::op(&OP, SetChange::Replace(&function))?;
    let check = |when, in_graph, in_op| {
        same("result", when, one(4), 5)?;
        same("graph entries", when, probe::of(0).entries(Target::One), in_graph)?;
        same("graph returns", when, probe::of(0).returns(Target::One), in_graph)?;
        same("hits of the user of entries", when, probe::of(4).entries(Target::One), in_op)
    };
    check("before the pause", 1, 1)?;
    let mut pauses = Pauses { task, count: 0 };
    pauses.pause();
    check("in the pause", 1, 2)?;
    pauses.pause();
    pauses.resume();
    check("in the pause, after one of two was undone", 1, 3)?;
    pauses.resume();
    check("after the pause", 2, 4)?;
    drop(pauses);
    graph_user.out()?;
    entry_user.out()?;
    probe::of(0).check_paired("after all")
}
