//! The tracer's own self-tests, called as an embedder calls them at boot: in a task, once the tracer has started. `selftest` as a
//! case's name stands for all of them.

use alloc::{format, string::String};

use fgraph::selftest::{self, NotRun, Outcome as Ended};

use super::Outcome;
use crate::machine;

/// Whether `only` names all of them; `None` does too.
pub fn are_wanted(only: Option<&str>) -> bool {
    only.is_none_or(|only| only == "selftest")
}

/// Runs them, each with a result of its own.
pub fn run(result: &mut dyn FnMut(&str, Result<(), Outcome>)) {
    selftest::run(machine::current().trace_block(), &mut |report| {
        let outcome = match report.outcome {
            Ended::Passed => Ok(()),
            Ended::Failed(failure) => Err(Outcome::Failed(format!("{failure}"))),
            Ended::NotRun(why) => Err(Outcome::Failed(not_run(why))),
        };
        result(&format!("selftest_{}", report.name), outcome);
    });
}

/// This kernel has everything that a self-test needs, so one that was not run is a failure here.
fn not_run(why: NotRun) -> String {
    format!("not run: {why}")
}
