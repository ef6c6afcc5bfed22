//! The tracer's own self-tests as an embedder calls them: each is one case, in a process of its own, and all of them in one
//! process are another.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Barrier};

use fgraph::selftest::{self, NotRun, Outcome};
use fgraph::{Filter, OpsFlags};

use crate::process::{self, SYNC_WORKS, Thread, USUAL_STACK};
use crate::runner::{Case, skip};
use crate::users::{User, assert_settled};
use crate::{log, machine, work};

/// One case for each self-test, by its place in the tracer's list.
macro_rules! cases {
    ($($n:literal)*) => {
        [$((selftest::CASES[$n].name(), one::<$n> as fn())),*]
    };
}

/// Every self-test, by the tracer's name for it.
pub const CASES: [Case; selftest::CASES.len()] = cases!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17);

/// What can be said of all of them.
pub const ABOUT_ALL: &[Case] = &[
    ("selftests_run_twice_and_leave_nothing_behind", run_twice_and_leave_nothing_behind),
    ("selftests_are_right_beside_other_users_and_threads", are_right_beside_other_users_and_threads),
    ("selftests_say_why_they_cannot_run", say_why_they_cannot_run),
    ("selftests_find_another_tasks_block", find_another_tasks_block),
];

fn current() -> &'static Thread {
    Thread::current().expect("the runner made this thread one that is traced")
}

fn one<const N: usize>() {
    process::init().expect("the program can be traced");
    match selftest::CASES[N].run(&current().trace) {
        Outcome::Passed => {}
        Outcome::Failed(failure) => panic!("{failure}"),
        // This program has everything that a self-test needs.
        Outcome::NotRun(why) => panic!("not run: {why}"),
    }
    assert_settled(current());
}

fn all_pass() {
    let mut reports = 0;
    let summary = selftest::run(&current().trace, &mut |report| {
        assert_eq!(report.outcome, Outcome::Passed, "{report}");
        assert_eq!(report.name, selftest::CASES[reports].name());
        reports += 1;
    });
    assert_eq!((summary.passed, summary.failed, summary.not_run), (reports, 0, 0));
    assert_eq!(reports, selftest::CASES.len());
}

fn run_twice_and_leave_nothing_behind() {
    process::init().expect("the program can be traced");
    let text = process::snapshot();
    all_pass();
    all_pass();
    assert_eq!(fgraph::stats().patched, 0, "patched sites");
    assert!(process::snapshot() == text, "text is not as it was");
    assert_settled(current());
}

fn are_right_beside_other_users_and_threads() {
    const THREADS: usize = 3;
    if !SYNC_WORKS.load(Relaxed) {
        skip("membarrier(2) cannot synchronise cores here");
    }
    process::init().expect("the program can be traced");
    let right = work::round();
    let done = Arc::new(AtomicBool::new(false));
    let started = Arc::new(Barrier::new(THREADS + 1));
    let workers: [_; THREADS] = std::array::from_fn(|_| {
        let (done, started) = (done.clone(), started.clone());
        std::thread::spawn(move || {
            let thread = Thread::enter(USUAL_STACK);
            started.wait();
            while !done.load(Relaxed) {
                assert_eq!(work::round(), right);
            }
            assert_settled(thread);
        })
    });
    started.wait();
    {
        let _users = [
            User::counting(Filter::ALL),
            User::op(log::count_op, OpsFlags::SAVE_REGS, Filter::ALL),
            User::uninterested(Filter::ALL),
        ];
        all_pass();
    }
    all_pass();
    done.store(true, Relaxed);
    for worker in workers {
        worker.join().expect("a worker ends");
    }
    assert_settled(current());
}

/// Runs them all where those that `concerns` says cannot be run, for this reason.
fn not_run(why: NotRun, concerns: impl Fn(&str) -> bool) {
    let summary = selftest::run(&current().trace, &mut |report| {
        let expected = if concerns(report.name) { Outcome::NotRun(why) } else { Outcome::Passed };
        assert_eq!(report.outcome, expected, "{report}");
    });
    let concerned = selftest::CASES.iter().filter(|case| concerns(case.name())).count();
    assert_ne!(concerned, 0);
    assert_eq!((summary.not_run, summary.failed), (concerned, 0));
}

fn say_why_they_cannot_run() {
    not_run(NotRun::NotInitialised, |_| true);
    process::init().expect("the program can be traced");
    all_pass();

    fgraph::ftrace_set_enabled(false).expect("nobody is permanent");
    not_run(NotRun::SwitchedOff, |_| true);
    fgraph::ftrace_set_enabled(true).expect("nobody is permanent");

    let needs_stack = |name: &str| {
        ["graph", "storage", "retval", "pause"].iter().any(|beginning| name.starts_with(beginning))
    };
    current().trace.pause();
    not_run(NotRun::Paused, needs_stack);
    current().trace.resume();

    let permanent = User::op(log::count_op, OpsFlags::PERMANENT, Filter::NONE);
    not_run(NotRun::PermanentUser, |name| name == "permanent_and_global_switch");
    drop(permanent);

    let max = fgraph::MAX_USERS;
    let mut users: Vec<User> =
        (0..max).map(|_| User::op(log::count_op, OpsFlags::empty(), Filter::NONE)).collect();
    not_run(NotRun::NoSlot { max }, |_| true);
    // Slots that a case had before it found too few are free again.
    users.truncate(max - 3);
    not_run(NotRun::NoSlot { max }, |name| {
        ["dynamic_ops_1", "dynamic_ops_2", "storage_multi"].contains(&name)
    });
    users.truncate(max - 5);
    all_pass();
    drop(users);

    Thread::enter(0);
    not_run(NotRun::NoShadowStack, needs_stack);
    Thread::enter(USUAL_STACK);
    all_pass();
    assert_settled(current());

    fgraph::ftrace_kill();
    not_run(NotRun::Stopped, |_| true);
}

fn find_another_tasks_block() {
    process::init().expect("the program can be traced");
    let here = current();
    let other = Thread::enter(USUAL_STACK);
    machine::set_current(here);
    let mut first = None;
    let summary = selftest::run(&other.trace, &mut |report| first = first.or(Some(*report)));
    let first = first.expect("a report of the first case");
    let text = "FAILED dynamic_ftrace: hits, after one call: 0 instead of 1";
    assert_eq!(first.to_string(), text);
    // All but those that look only at what takes effect.
    assert!(summary.failed >= selftest::CASES.len() - 1, "{summary:?}");
    assert_eq!((fgraph::stats().patched, summary.not_run), (0, 0));
    all_pass();
}
