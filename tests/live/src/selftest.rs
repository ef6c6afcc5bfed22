//! The tracer's own self-tests as an embedder calls them: each is one case, in a process of its own, and all of them in one
//! process are another.

use fgraph::selftest::{self, NotRun, Outcome};

use crate::process::{self, Thread};
use crate::runner::{Case, skip};
use crate::users::assert_settled;

/// One case for each self-test, by its place in the tracer's list.
macro_rules! cases {
    ($($n:literal)*) => {
        [$((selftest::CASES[$n].name(), one::<$n> as fn())),*]
    };
}

/// Every self-test, by the tracer's name for it.
pub const CASES: [Case; selftest::CASES.len()] = cases!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16);

/// What can be said of all of them.
pub const ABOUT_ALL: [Case; 4] = [
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
        Outcome::NotRun(why) => skip(&why.to_string()),
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
