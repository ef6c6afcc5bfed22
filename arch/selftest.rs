//! Self-tests that an embedder runs once at boot: does the tracer do on this kernel and this machine what it promises?
//!
//! Every case traces functions that come with this crate, calls them, and compares what its users were told with what must
//! be. They get a site only if this crate is compiled with patchable entries like the rest of the kernel (`RUSTFLAGS` do
//! that); if not, nothing is run, and the reports say so.
//!
//! ```no_run
//! # use fgraph::TaskTrace;
//! # macro_rules! printk { ($($text:tt)*) => { std::println!($($text)*) } }
//! /// In a task, once `fgraph::init` has succeeded. `current` is this task's block, with a shadow stack.
//! fn test_the_tracer(current: &TaskTrace) {
//!     let summary = fgraph::selftest::run(current, &mut |report| printk!("fgraph: {report}"));
//!     assert_eq!(summary.failed, 0, "the tracer does not work on this kernel");
//! }
//! ```
//!
//! prints a line for each case, such as
//!
//! ```text
//! fgraph: ok dynamic_ftrace
//! fgraph: FAILED recursion: hits, after one call: 0 instead of 1 to 2
//! fgraph: not run graph: the task has no shadow stack
//! ```
//!
//! # What goes on meanwhile
//! Other CPUs, tasks and interrupts may run, and other users may be registered: only what the calling task calls is counted.
//! Some cases want every function for a moment, and one switches tracing off and on again, so nobody's trace of that
//! time is complete. When [`run`] returns, every user of its own is out. Up to five slots are needed.

mod entries;
mod graph;
mod probe;
mod targets;

use core::fmt;

use crate::addr::FuncAddr;
use crate::arch::live;
use crate::engine::Error;
use crate::sync::{AtomicBool, Ordering};
use crate::task::TaskTrace;

use targets::Target;

/// What one case found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The case.
    pub name: &'static str,
    /// How it ended.
    pub outcome: Outcome,
}

/// How a case ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// Everything was as it must be.
    Passed,
    /// Something was not.
    Failed(Failure),
    /// This could not be tested.
    NotRun(NotRun),
}

/// What was expected, and what was seen instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// A number or an address is wrong.
    Number {
        /// What was counted or read.
        what: &'static str,
        /// At which point.
        when: &'static str,
        /// What it should be.
        expected: usize,
        /// What it is.
        seen: usize,
    },
    /// A number is out of bounds.
    Bounds {
        /// What was counted.
        what: &'static str,
        /// At which point.
        when: &'static str,
        /// The least it should be.
        least: usize,
        /// The most it should be.
        most: usize,
        /// What it is.
        seen: usize,
    },
    /// The tracer refused what it should have done.
    Refused {
        /// What was asked of it.
        what: &'static str,
        /// Its answer.
        error: Error,
    },
    /// The tracer did not refuse what it should have refused, or for another reason.
    NotRefused {
        /// What was asked of it.
        what: &'static str,
        /// What should have been the answer.
        expected: Error,
        /// What it was.
        seen: Result<(), Error>,
    },
}

/// Why a case was not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotRun {
    /// [`init`](crate::init) has not been called, or failed.
    NotInitialised,
    /// Tracing has been stopped for good.
    Stopped,
    /// Tracing is switched off ([`ftrace_set_enabled`](crate::ftrace_set_enabled)).
    SwitchedOff,
    /// Another task runs the self-tests.
    Busy,
    /// A function of the self-tests cannot be traced.
    NoSite {
        /// The function.
        func: FuncAddr,
    },
    /// Other users have the slots that are needed.
    NoSlot {
        /// How many slots there are.
        max: usize,
    },
    /// The task has no shadow stack.
    NoShadowStack,
    /// The task is paused ([`TaskTrace::pause`]).
    Paused,
    /// A permanent user is registered, so tracing cannot be switched off.
    PermanentUser,
}

/// How many cases ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Cases that passed.
    pub passed: usize,
    /// Cases that failed.
    pub failed: usize,
    /// Cases that were not run.
    pub not_run: usize,
}

/// One self-test.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    name: &'static str,
    needs: Needs,
    run: fn(&TaskTrace) -> Result<(), Stop>,
}

/// What a case needs of the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    /// A trace block.
    Block,
    /// A shadow stack, and calls that are traced.
    Stack,
}

/// Why a case did not get to its end.
#[derive(Clone, Copy, Debug)]
enum Stop {
    Failed(Failure),
    NotRun(NotRun),
}

/// Every self-test, in the order in which [`run`] runs them.
pub const CASES: &[Case] = &[
    Case { name: "dynamic_ftrace", needs: Needs::Block, run: entries::dynamic_ftrace },
    Case { name: "dynamic_ops_1", needs: Needs::Block, run: entries::dynamic_ops_1 },
    Case { name: "dynamic_ops_2", needs: Needs::Block, run: entries::dynamic_ops_2 },
    Case { name: "recursion", needs: Needs::Block, run: entries::recursion },
    Case { name: "recursion_safe", needs: Needs::Block, run: entries::recursion_safe },
    Case { name: "regs", needs: Needs::Block, run: entries::regs },
    Case { name: "ipmodify", needs: Needs::Block, run: entries::ipmodify },
    Case {
        name: "permanent_and_global_switch",
        needs: Needs::Block,
        run: entries::permanent_and_global_switch,
    },
    Case { name: "graph", needs: Needs::Stack, run: graph::graph },
    Case { name: "graph_and_another_op", needs: Needs::Stack, run: graph::graph_and_another_op },
    Case { name: "graph_and_direct", needs: Needs::Stack, run: graph::graph_and_direct },
    Case { name: "storage_of_1_word", needs: Needs::Stack, run: graph::storage::<0> },
    Case { name: "storage_of_2_words", needs: Needs::Stack, run: graph::storage::<1> },
    Case { name: "storage_of_4_words", needs: Needs::Stack, run: graph::storage::<2> },
    Case { name: "storage_of_8_words", needs: Needs::Stack, run: graph::storage::<3> },
    Case { name: "storage_multi", needs: Needs::Stack, run: graph::storage_multi },
    Case { name: "retval", needs: Needs::Stack, run: graph::retval },
    Case { name: "pause", needs: Needs::Stack, run: graph::pause },
];

/// Runs every self-test, and hands each one's report to `report` as it ends, with none of the self-tests' users registered
/// then. `task` is the calling task's own block, the one that [`Platform::CURRENT`](crate::Platform::CURRENT) leads to.
///
/// Task context, preemptible, after [`init`](crate::init); takes the tracer's lock and changes text.
pub fn run(task: &TaskTrace, report: &mut dyn FnMut(&Report)) -> Summary {
    let mut summary = Summary::default();
    for case in CASES {
        let outcome = case.run(task);
        match outcome {
            Outcome::Passed => summary.passed += 1,
            Outcome::Failed(_) => summary.failed += 1,
            Outcome::NotRun(_) => summary.not_run += 1,
        }
        report(&Report { name: case.name, outcome });
    }
    summary
}

impl Case {
    /// The case's name: a word of `a` to `z`, digits and `_`.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Runs this one alone; as [`run`].
    pub fn run(&self, task: &TaskTrace) -> Outcome {
        let Some(_turn) = Turn::take() else { return Outcome::NotRun(NotRun::Busy) };
        probe::reset(Some(task));
        let ended = self.missing(task).and_then(|()| (self.run)(task));
        probe::reset(None);
        match ended {
            Ok(()) => Outcome::Passed,
            Err(Stop::Failed(failure)) => Outcome::Failed(failure),
            Err(Stop::NotRun(why)) => Outcome::NotRun(why),
        }
    }

    /// Ends the case if it has not what it needs.
    fn missing(&self, task: &TaskTrace) -> Result<(), Stop> {
        if live::is_dead() {
            return Err(Stop::NotRun(NotRun::Stopped));
        }
        entries::check_switched_on()?;
        for func in Target::ALL.map(Target::addr) {
            if live::ftrace_location(func.get()).is_none() {
                return Err(Stop::NotRun(NotRun::NoSite { func }));
            }
        }
        match self.needs {
            Needs::Stack if !task.has_stack() => Err(Stop::NotRun(NotRun::NoShadowStack)),
            Needs::Stack if task.is_paused() => Err(Stop::NotRun(NotRun::Paused)),
            _ => Ok(()),
        }
    }
}

/// The right to run a case: what is counted in is there once.
struct Turn;

static TAKEN: AtomicBool = AtomicBool::new(false);

impl Turn {
    fn take() -> Option<Self> {
        TAKEN.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).ok().map(|_| Self)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        TAKEN.store(false, Ordering::Release);
    }
}

/// Fails the case unless a number is what it should be.
fn same(what: &'static str, when: &'static str, seen: usize, expected: usize) -> Result<(), Stop> {
    if seen == expected {
        return Ok(());
    }
    Err(Stop::Failed(Failure::Number { what, when, expected, seen }))
}

/// Fails the case unless a number is within bounds.
fn within(
    what: &'static str,
    when: &'static str,
    seen: usize,
    least: usize,
    most: usize,
) -> Result<(), Stop> {
    if (least..=most).contains(&seen) {
        return Ok(());
    }
    Err(Stop::Failed(Failure::Bounds { what, when, least, most, seen }))
}

/// Fails the case unless the tracer did what it was asked.
fn done(what: &'static str, answer: Result<(), Error>) -> Result<(), Stop> {
    answer.map_err(|error| Stop::Failed(Failure::Refused { what, error }))
}

/// Fails the case unless the tracer refused for this reason.
fn refuses(what: &'static str, seen: Result<(), Error>, expected: Error) -> Result<(), Stop> {
    if seen == Err(expected) {
        return Ok(());
    }
    Err(Stop::Failed(Failure::NotRefused { what, expected, seen }))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.outcome {
            Outcome::Passed => write!(f, "ok {}", self.name),
            Outcome::Failed(failure) => write!(f, "FAILED {}: {failure}", self.name),
            Outcome::NotRun(why) => write!(f, "not run {}: {why}", self.name),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Number { what, when, expected, seen } => {
                write!(f, "{what}, {when}: {seen} instead of {expected}")
            }
            Self::Bounds { what, when, least, most, seen } if least == most => {
                write!(f, "{what}, {when}: {seen} instead of {least}")
            }
            Self::Bounds { what, when, least, most, seen } => {
                write!(f, "{what}, {when}: {seen} instead of {least} to {most}")
            }
            Self::Refused { what, error } => write!(f, "{what} was refused: {error}"),
            Self::NotRefused { what, expected, seen: Ok(()) } => {
                write!(f, "{what} was not refused: expected \"{expected}\"")
            }
            Self::NotRefused { what, expected, seen: Err(error) } => {
                write!(f, "{what} was refused with \"{error}\": expected \"{expected}\"")
            }
        }
    }
}

impl fmt::Display for NotRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotInitialised => f.write_str("the tracer has not been initialised"),
            Self::Stopped => f.write_str("tracing has been stopped for good"),
            Self::SwitchedOff => f.write_str("tracing is switched off"),
            Self::Busy => f.write_str("another task runs the self-tests"),
            Self::NoSite { func } => write!(
                f,
                "the crate was built without patchable entries (the function at {func} has no site, or is kept out)"
            ),
            Self::NoSlot { max } => write!(f, "too few of the {max} slots for users are free"),
            Self::NoShadowStack => f.write_str("the task has no shadow stack"),
            Self::Paused => f.write_str("the task is paused"),
            Self::PermanentUser => {
                f.write_str("a permanent user is registered, so tracing cannot be switched off")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use std::collections::BTreeSet;

    #[test]
    fn reports_say_what_was_expected_and_what_was_seen() {
        let say = |stop: Result<(), Stop>| {
            let Err(Stop::Failed(failure)) = stop else { panic!("{stop:?}") };
            Report { name: "x", outcome: Outcome::Failed(failure) }.to_string()
        };
        assert_eq!(say(same("hits", "after a call", 3, 1)), "FAILED x: hits, after a call: 3 instead of 1");
        assert_eq!(say(within("hits", "then", 0, 1, 2)), "FAILED x: hits, then: 0 instead of 1 to 2");
        assert_eq!(say(within("hits", "then", 1, 2, 2)), "FAILED x: hits, then: 1 instead of 2");
        assert_eq!(
            say(done("it", Err(Error::NotRegistered))),
            "FAILED x: it was refused: the user is not registered"
        );
        assert_eq!(
            say(refuses("it", Ok(()), Error::NotRegistered)),
            "FAILED x: it was not refused: expected \"the user is not registered\""
        );
        assert_eq!(
            say(refuses("it", Err(Error::NoSuchModule), Error::Stopped)),
            "FAILED x: it was refused with \"there is no such module\": expected \
             \"tracing has been stopped for good\""
        );
        let not_run = Report { name: "x", outcome: Outcome::NotRun(NotRun::Busy) };
        assert_eq!(not_run.to_string(), "not run x: another task runs the self-tests");
        assert_eq!(Report { name: "x", outcome: Outcome::Passed }.to_string(), "ok x");
    }

    #[test]
    fn what_is_right_lets_the_case_go_on() {
        assert!(same("n", "now", 1, 1).is_ok());
        assert!(within("n", "now", 1, 1, 2).is_ok() && within("n", "now", 2, 1, 2).is_ok());
        assert!(within("n", "now", 3, 1, 2).is_err());
        assert!(done("it", Ok(())).is_ok());
        assert!(refuses("it", Err(Error::Permanent), Error::Permanent).is_ok());
    }

    #[test]
    fn names_are_words_and_differ() {
        let names: BTreeSet<_> = CASES.iter().map(Case::name).collect();
        assert_eq!(names.len(), CASES.len());
        for name in names {
            assert!(name.bytes().all(|c| matches!(c, b'a'..=b'z' | b'0'..=b'9' | b'_')), "{name}");
        }
    }

    #[test]
    fn one_task_at_a_time_has_the_turn() {
        let first = Turn::take().expect("free");
        assert!(Turn::take().is_none());
        drop(first);
        assert!(Turn::take().is_some());
    }

    #[test]
    fn a_target_does_what_the_cases_rely_on() {
        assert_eq!((targets::one(4), targets::two(4), targets::nest(3)), (5, 8, 14));
        assert_eq!(targets::six(), targets::SIX);
        for target in Target::ALL {
            assert_eq!(Target::at(target.addr()), Some(target));
        }
        assert_eq!(Target::at(FuncAddr::new(0)), None);
        let sorted = Target::sorted(Target::ALL);
        assert!(sorted.is_sorted_by(|a, b| a < b), "{sorted:?}");
    }
}
