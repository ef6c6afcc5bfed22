//! What is built on graph users: data of many users, slots that change hands, probes, and the profiler.

use alloc::{boxed::Box, vec, vec::Vec};
use core::hint::black_box;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use fgraph::{
    AbandonedCall, Arm, EntryCall, FgraphOps, Fprobe, FprobeHit, FtraceFprobe, FtraceRegs, FuncAddr,
    LimitOptions, PROFILE_WORDS, ProfileRow, Profiler, Regs, ReturnCall, Want,
};

use super::depth::{JUMPED, around, descend};
use super::probe::{Graph, addr, clobber_scratch, only};
use super::{CaseResult, Outcome, check, check_eq};
use crate::{
    machine,
    percpu::MAX_CPUS,
    platform::Kernel,
    sched::{self, Task},
    tracing,
};

/// A tree of calls.
#[inline(never)]
extern "C" fn tree(depth: usize) -> usize {
    match depth {
        0 => leaf(black_box(1)),
        _ => tree(black_box(depth - 1)) + leaf(black_box(depth)),
    }
}

#[inline(never)]
extern "C" fn leaf(n: usize) -> usize {
    black_box(n + 1)
}

/// Words of the users, one size after another.
const SIZES: [usize; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 28, 31, 32];
const DEPTH: usize = 10;

static ENTRIES: [AtomicU64; SIZES.len()] = [const { AtomicU64::new(0) }; SIZES.len()];
static RETURNS: [AtomicU64; SIZES.len()] = [const { AtomicU64::new(0) }; SIZES.len()];
static WRONG: AtomicU64 = AtomicU64::new(0);

fn forget_counts() {
    WRONG.store(0, Relaxed);
    ENTRIES.iter().chain(&RETURNS).for_each(|count| count.store(0, Relaxed));
}

/// What user `user` leaves in word `index` of a call.
#[inline(always)]
fn mark(user: usize, func: FuncAddr, depth: u32, index: usize) -> usize {
    func.get() ^ user << 48 ^ (depth as usize) << 32 ^ index << 56
}

/// The user's number is its word; user n says no to every call whose depth is a multiple of n + 2.
#[unsafe(link_section = ".text.notrace")]
fn marking_entry(call: &mut EntryCall<'_, FtraceRegs>, ops: &FgraphOps) -> Want {
    let (user, func, depth) = (ops.private(), call.func(), call.depth());
    let Some(data) = call.reserve(SIZES[user]) else {
        WRONG.fetch_add(1, Relaxed);
        return Want::Nothing;
    };
    for (index, word) in data.iter().enumerate() {
        word.store(mark(user, func, depth, index), Relaxed);
    }
    clobber_scratch();
    if depth as usize % (user + 2) == user + 1 {
        return Want::Nothing;
    }
    ENTRIES[user].fetch_add(1, Relaxed);
    call.task_word().fetch_add(1, Relaxed);
    Want::Return
}

#[unsafe(link_section = ".text.notrace")]
fn marking_return(call: &mut ReturnCall<'_, FtraceRegs>, ops: &FgraphOps) {
    let (user, func, depth) = (ops.private(), call.func(), call.depth());
    let data = call.data().unwrap_or(&[]);
    let right = data.len() == SIZES[user]
        && data.iter().enumerate().all(|(index, word)| word.load(Relaxed) == mark(user, func, depth, index));
    let returns = RETURNS[user].fetch_add(1, Relaxed);
    call.task_word().fetch_sub(1, Relaxed);
    // The innermost call around that this user wants.
    let up = if depth >= 1 && (depth as usize - 1) % (user + 2) == user + 1 { 2 } else { 1 };
    let parent = call.parent_data(1).map(|data| data[0].load(Relaxed));
    let depth_of_parent = depth.checked_sub(up);
    let should = depth_of_parent.map(|depth| mark(user, FuncAddr::new(addr!(tree)), depth, 0));
    if !right || parent != should || returns >= ENTRIES[user].load(Relaxed) {
        WRONG.fetch_add(1, Relaxed);
    }
    clobber_scratch();
}

pub fn sixteen_users_keep_their_data_apart() -> CaseResult {
    forget_counts();
    let words = (DEPTH + 2) * (4 + SIZES.iter().map(|size| 1 + size).sum::<usize>());
    let mut users = Vec::new();
    for user in 0..SIZES.len() {
        let filter = only(&[addr!(tree), addr!(leaf)]);
        users.push(Graph::register(marking_entry, marking_return, filter, user)?);
    }
    tracing::set_shadow_words(words);
    let task = sched::spawn("tree", || {
        for _ in 0..20 {
            black_box(tree(black_box(DEPTH)));
        }
    });
    tracing::set_shadow_words(tracing::SHADOW_WORDS);
    sched::join(task);
    drop(users);
    check_eq!(WRONG.load(Relaxed), 0, "wrong data");
    let calls = 20 * 2 * (DEPTH as u64 + 1);
    for user in 0..SIZES.len() {
        let (entries, returns) = (ENTRIES[user].load(Relaxed), RETURNS[user].load(Relaxed));
        check_eq!(returns, entries, alloc::format!("returns of user {user}"));
        check!(entries > 0 && entries <= calls, "{entries} calls of {calls} for user {user}");
    }
    let stats = task.trace_block().stats();
    check_eq!((stats.calls, stats.returns, stats.overrun), (calls, calls, 0), "calls, returns, overrun");
    Ok(())
}

static WOKEN: AtomicUsize = AtomicUsize::new(0);

#[inline(never)]
extern "C" fn sleepy(n: usize) -> usize {
    sched::park();
    leaf(black_box(n))
}

#[unsafe(link_section = ".text.notrace")]
fn counting_entry(call: &mut EntryCall<'_, FtraceRegs>, ops: &FgraphOps) -> Want {
    // The word of an earlier user of the slot must be gone, and so must its data.
    if call.task_word().swap(ops.private(), Relaxed) != 0 && call.func().get() == addr!(sleepy) {
        WRONG.fetch_add(1, Relaxed);
    }
    ENTRIES[0].fetch_add(1, Relaxed);
    match call.reserve(1) {
        Some([word]) => word.store(ops.private(), Relaxed),
        _ => return Want::Nothing,
    }
    Want::Return
}

#[unsafe(link_section = ".text.notrace")]
fn counting_return(call: &mut ReturnCall<'_, FtraceRegs>, ops: &FgraphOps) {
    let there = call.data().and_then(|data| data.first()).map(|word| word.load(Relaxed));
    if there != Some(ops.private()) {
        WRONG.fetch_add(1, Relaxed);
    }
    RETURNS[0].fetch_add(1, Relaxed);
}

pub fn a_slot_changes_hands_while_calls_sleep() -> CaseResult {
    const SLEEPERS: usize = 5;
    // More often than there are slots.
    const ROUNDS: usize = 3 * fgraph::MAX_USERS;
    forget_counts();
    WOKEN.store(0, Relaxed);
    let filter = || only(&[addr!(sleepy)]);
    let mut user = Some(Graph::register(counting_entry, counting_return, filter(), 1)?);
    let sleepers: Vec<&'static Task> = (0..SLEEPERS)
        .map(|n| {
            sched::spawn_with(
                "sleepy",
                |n| {
                    WOKEN.fetch_add(sleepy(black_box(n)), Relaxed);
                },
                n,
            )
        })
        .collect();
    while ENTRIES[0].load(Relaxed) < SLEEPERS as u64 {
        sched::sleep_ms(1);
    }
    for round in 2..ROUNDS {
        drop(user.take());
        user = Some(Graph::register(counting_entry, counting_return, filter(), round)?);
        let awake = sched::spawn_with(
            "awake",
            |n| {
                black_box(sleepy(black_box(n)));
            },
            0,
        );
        sched::unpark(awake);
        sched::join(awake);
    }
    let after_rounds = RETURNS[0].load(Relaxed);
    sleepers.iter().for_each(|task| sched::unpark(task));
    sleepers.iter().for_each(|task| sched::join(task));
    drop(user);
    check_eq!(after_rounds, ROUNDS as u64 - 2, "returns of calls that did not sleep through a change");
    check_eq!(RETURNS[0].load(Relaxed), after_rounds, "returns told to a user that was not there");
    check_eq!(WRONG.load(Relaxed), 0, "words and data of other users");
    check_eq!(WOKEN.load(Relaxed), (1..=SLEEPERS).sum(), "results");
    for task in sleepers {
        let stats = task.trace_block().stats();
        check_eq!((stats.calls, stats.returns, stats.depth), (1, 1, 0), "calls, returns and depth");
    }
    Ok(())
}

static LEFT: AtomicU64 = AtomicU64::new(0);

#[unsafe(link_section = ".text.notrace")]
fn on_abandoned(call: &mut AbandonedCall<'_, FtraceRegs>, ops: &FgraphOps) {
    let user = ops.private();
    let first = call.data().and_then(|data| data.first()).map(|word| word.load(Relaxed));
    let count = LEFT.fetch_add(1, Relaxed);
    // Newest first, each with its depth and its data.
    let depth = (JUMPED as u64 - count % JUMPED as u64) as u32;
    let should = Some(mark(user, FuncAddr::new(addr!(descend)), depth, 0));
    if call.func().get() != addr!(descend) || call.depth() != depth || first != should {
        WRONG.fetch_add(1, Relaxed);
    }
    clobber_scratch();
}

#[unsafe(link_section = ".text.notrace")]
fn all_entries(call: &mut EntryCall<'_, FtraceRegs>, ops: &FgraphOps) -> Want {
    let (func, depth) = (call.func(), call.depth());
    let Some([word]) = call.reserve(1) else { return Want::Nothing };
    word.store(mark(ops.private(), func, depth, 0), Relaxed);
    ENTRIES[0].fetch_add(1, Relaxed);
    Want::Return
}

#[unsafe(link_section = ".text.notrace")]
fn all_returns(_call: &mut ReturnCall<'_, FtraceRegs>, _ops: &FgraphOps) {
    RETURNS[0].fetch_add(1, Relaxed);
}

pub fn calls_that_a_jump_left_are_told() -> CaseResult {
    forget_counts();
    LEFT.store(0, Relaxed);
    let before = machine::current().trace_block().stats();
    let filter = only(&[addr!(descend), addr!(around)]);
    let ops: &'static FgraphOps = Box::leak(Box::new(
        FgraphOps::new(all_entries, all_returns, filter).with_abandoned(on_abandoned).with_private(9),
    ));
    fgraph::register_ftrace_graph(ops)?;
    let results = [around(), around(), around()];
    fgraph::unregister_ftrace_graph(ops)?;
    let after = machine::current().trace_block().stats();
    check_eq!(results, [123; 3], "results");
    check_eq!(WRONG.load(Relaxed), 0, "what was told of calls that were left");
    check_eq!(LEFT.load(Relaxed), 3 * JUMPED as u64, "calls that were left");
    check_eq!(after.abandoned - before.abandoned, 3 * JUMPED as u64, "abandoned");
    check_eq!(ENTRIES[0].load(Relaxed), 3 * (1 + JUMPED as u64), "entries");
    check_eq!((RETURNS[0].load(Relaxed), after.depth), (3, before.depth), "returns and depth");
    Ok(())
}

#[unsafe(link_section = ".text.notrace")]
fn probe_entry(probe: &FtraceFprobe, hit: &mut FprobeHit<'_, FtraceRegs>) -> Arm {
    ENTRIES[probe.private()].fetch_add(1, Relaxed);
    let argument = hit.fregs().argument(0).unwrap_or(0);
    if let [func, arg] = hit.data() {
        func.store(hit.ip().get(), Relaxed);
        arg.store(argument, Relaxed);
    }
    clobber_scratch();
    // Every fourth argument is of no interest at the exit.
    if argument % 4 == 3 { Arm::Nothing } else { Arm::Exit }
}

#[unsafe(link_section = ".text.notrace")]
fn probe_exit(probe: &FtraceFprobe, hit: &mut FprobeHit<'_, FtraceRegs>) {
    RETURNS[probe.private()].fetch_add(1, Relaxed);
    let value = hit.fregs().return_value();
    let right = match hit.data() {
        [func, arg] => func.load(Relaxed) == hit.ip().get() && arg.load(Relaxed) + 1 == value,
        _ => false,
    };
    if !right || hit.fregs().ip() != hit.parent_ip().get() {
        WRONG.fetch_add(1, Relaxed);
    }
    clobber_scratch();
}

fn funcs(funcs: &[usize]) -> &'static [FuncAddr] {
    let mut funcs: Vec<FuncAddr> = funcs.iter().copied().map(FuncAddr::new).collect();
    funcs.sort_unstable();
    Box::leak(funcs.into_boxed_slice())
}

fn probed<T>(result: Result<T, fgraph::FprobeError>) -> Result<T, Outcome> {
    result.map_err(|error| Outcome::Failed(alloc::format!("{error}")))
}

pub fn a_probe_sees_both_ends_of_a_call() -> CaseResult {
    forget_counts();
    let (leaves, both) = (funcs(&[addr!(leaf)]), funcs(&[addr!(leaf), addr!(tree)]));
    let pair: &'static FtraceFprobe =
        Box::leak(Box::new(Fprobe::both(leaves, probe_entry, probe_exit).with_data(2)));
    let plain: &'static FtraceFprobe = Box::leak(Box::new(Fprobe::entry(both, probe_entry).with_private(1)));
    probed(fgraph::register_fprobe(pair))?;
    let plain_there = fgraph::register_fprobe(plain);
    let again = fgraph::register_fprobe(pair);
    let before = machine::current().trace_block().stats();
    let sum = tree(black_box(DEPTH));
    // Of `tree` alone no return is caught.
    let hooked = machine::current().trace_block().stats().calls - before.calls;
    let gone = [fgraph::unregister_fprobe(pair), fgraph::unregister_fprobe(plain)];
    let untraced = tree(black_box(DEPTH));
    probed(plain_there)?;
    gone.into_iter().try_for_each(probed)?;
    check_eq!(again, Err(fgraph::FprobeError::AlreadyRegistered), "registered twice");
    check_eq!(sum, untraced, "result");
    let (leaves, trees) = (DEPTH as u64 + 1, DEPTH as u64 + 1);
    // Arguments 1, 1 to DEPTH; 3, 7 are vetoed.
    let vetoed = (1..=DEPTH).filter(|n| n % 4 == 3).count() as u64;
    check_eq!(ENTRIES[0].load(Relaxed), leaves, "entries of the pair");
    check_eq!(RETURNS[0].load(Relaxed), leaves - vetoed, "exits of the pair");
    check_eq!(hooked, leaves - vetoed, "returns that were caught");
    check_eq!(ENTRIES[1].load(Relaxed), leaves + trees, "entries of the plain probe");
    check_eq!(WRONG.load(Relaxed), 0, "wrong data, value or ip");
    check_eq!((pair.nmissed(), plain.nmissed()), (0, 0), "missed");
    Ok(())
}

pub fn a_probe_takes_functions_by_words() -> CaseResult {
    forget_counts();
    let mut room = [FuncAddr::new(0); 8];
    let found = fgraph::functions_of_words("*::probes::t[q-s]ee *::probes::sl??py !*::sleepy", &mut room);
    let refused = |error| Outcome::Failed(alloc::format!("{error}"));
    let words: Vec<usize> = found.map_err(refused)?.iter().map(|func| func.get()).collect();
    check_eq!(words, [addr!(tree)], "what the words take");
    let probe: &'static FtraceFprobe = Box::leak(Box::new(Fprobe::entry(funcs(&words), probe_entry)));
    probed(fgraph::register_fprobe(probe))?;
    black_box(tree(black_box(DEPTH)));
    probed(fgraph::unregister_fprobe(probe))?;
    check_eq!(ENTRIES[0].load(Relaxed), DEPTH as u64 + 1, "entries");
    Ok(())
}

type Profile = Profiler<Kernel, FtraceRegs>;

/// Functions that a profile has room for.
const ROOM: usize = 16;

fn profiler(functions: &[usize]) -> Result<&'static Profile, Outcome> {
    let profiler: &'static Profile = Box::leak(Box::new(Profiler::new(only(functions))));
    for cpu in 0..MAX_CPUS {
        let words = Box::leak(vec![0; ROOM * PROFILE_WORDS].into_boxed_slice());
        profiler.lend(cpu, words).map_err(|error| Outcome::Failed(alloc::format!("{error}")))?;
    }
    Ok(profiler)
}

/// What is known of a function on all CPUs.
fn row(profiler: &Profile, func: usize) -> Result<ProfileRow, Outcome> {
    let mut rows = vec![ProfileRow::EMPTY; ROOM * MAX_CPUS];
    let rows = profiler.rows_of_all(&mut rows).map_err(|error| Outcome::Failed(alloc::format!("{error}")))?;
    let row = rows.iter().find(|row| row.func.get() == func).copied();
    Ok(row.unwrap_or(ProfileRow { func: FuncAddr::new(func), ..ProfileRow::EMPTY }))
}

pub fn the_profiler_counts_every_call() -> CaseResult {
    const TASKS: usize = 3;
    const TREES: u64 = 500;
    let functions = [addr!(tree), addr!(leaf)];
    let (whole, own) = (profiler(&functions)?, profiler(&functions)?);
    own.limits().set_options(LimitOptions::all() - LimitOptions::GRAPH_TIME);
    fgraph::register_ftrace_graph(whole.ops())?;
    let both = fgraph::register_ftrace_graph(own.ops());
    let tasks: [&'static Task; TASKS] = core::array::from_fn(|_| {
        sched::spawn("profiled", || {
            for _ in 0..TREES {
                black_box(tree(black_box(DEPTH)));
            }
        })
    });
    tasks.into_iter().for_each(sched::join);
    fgraph::unregister_ftrace_graph(whole.ops())?;
    both.and_then(|()| fgraph::unregister_ftrace_graph(own.ops()))?;
    let calls = TASKS as u64 * TREES * (DEPTH as u64 + 1);
    for profiler in [whole, own] {
        let (trees, leaves) = (row(profiler, functions[0])?, row(profiler, functions[1])?);
        check_eq!((trees.hits, leaves.hits), (calls, calls), "calls of tree and of leaf");
        check!(trees.average_ns() <= trees.time_ns, "average {} of {}", trees.average_ns(), trees.time_ns);
        for cpu in 0..MAX_CPUS {
            check_eq!(profiler.lost(cpu), Ok(0), "calls without a place");
        }
    }
    // A tree of depth n has n trees inside, each counted again in the one around it, but not in the own times.
    let (all, alone) = (row(whole, functions[0])?, row(own, functions[0])?);
    check!(all.time_ns > alone.time_ns, "{} ns in all, {} ns alone", all.time_ns, alone.time_ns);
    Ok(())
}

const NAPS: u64 = 3;
const NAP_MS: u64 = 4;

#[inline(never)]
extern "C" fn nap() {
    sched::sleep_ms(NAP_MS);
}

pub fn sleep_is_left_out_of_a_profile() -> CaseResult {
    let (with, without) = (profiler(&[addr!(nap)])?, profiler(&[addr!(nap)])?);
    without.limits().set_options(LimitOptions::all() - LimitOptions::SLEEP_TIME);
    fgraph::register_ftrace_graph(with.ops())?;
    let both = fgraph::register_ftrace_graph(without.ops());
    let block = machine::current().trace_block();
    let (began, slept) = (machine::clock_ns(), block.slept_ns());
    for _ in 0..NAPS {
        nap();
    }
    let (took, slept) = (machine::clock_ns() - began, block.slept_ns() - slept);
    fgraph::unregister_ftrace_graph(with.ops())?;
    both.and_then(|()| fgraph::unregister_ftrace_graph(without.ops()))?;
    let (with, without) = (row(with, addr!(nap))?, row(without, addr!(nap))?);
    check_eq!((with.hits, without.hits), (NAPS, NAPS), "calls");
    check!(slept > 0 && slept <= took, "{slept} ns asleep of {took}");
    check!(with.time_ns >= NAPS * NAP_MS * 1_000_000, "{} ns with the sleep", with.time_ns);
    // The time that the task had a CPU, in the calls, is at most what it had one in all.
    check!(without.time_ns <= took - slept, "{} ns without, of {took} - {slept}", without.time_ns);
    Ok(())
}
