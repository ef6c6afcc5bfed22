//! Words of filter files, with the symbol table of the running kernel: globs, paths as people write them, names that several
//! functions have, and sets and lists that are read back.

use alloc::{boxed::Box, string::String, string::ToString, vec::Vec};
use core::hint::black_box;

use fgraph::select::SelectError;
use fgraph::words::{Cause, List, Mode, Place};
use fgraph::{Filter, FtraceOps, OpsFlags, WhichSet};

use super::load;
use super::probe::{Probe, addr, note_entry};
use super::{CaseResult, Outcome, check, check_eq};
use crate::tracing;

// What each computes is unlike any other function: the compiler makes one of those that are alike.

#[inline(never)]
extern "C" fn chosen_first(n: usize) -> usize {
    black_box(n ^ 0x7261)
}

#[inline(never)]
extern "C" fn chosen_second(n: usize) -> usize {
    black_box(n ^ 0x7262)
}

/// There is another one of this name in `load.rs`.
#[inline(never)]
fn twin(n: usize) -> usize {
    black_box(n ^ 0x7500)
}

/// Several functions under one path.
#[inline(never)]
fn sized<T>(n: usize) -> usize {
    black_box(n ^ 0x7300 ^ size_of::<T>())
}

trait Corners {
    fn corners(&self) -> usize;
}

struct Square;

struct Polygon(usize);

impl Corners for Square {
    #[inline(never)]
    fn corners(&self) -> usize {
        black_box(0x7404)
    }
}

impl Corners for Polygon {
    #[inline(never)]
    fn corners(&self) -> usize {
        black_box(self.0 ^ 0x7405)
    }
}

/// Calls each of them once.
fn call_all() -> usize {
    let n = black_box(1);
    let sized = sized::<u8>(n) + sized::<u64>(n);
    chosen_first(n) + chosen_second(n) + sized + Square.corners() + Polygon(n).corners()
}

const CALLS: u64 = 6;

/// A path of this file, as people write it.
macro_rules! path {
    ($($rest:literal)*) => {
        concat!(module_path!(), "::", $($rest)*)
    };
}

/// A user of entries that wants nothing yet, until dropped.
struct User {
    ops: &'static FtraceOps,
    probe: &'static Probe,
}

impl User {
    fn register() -> Result<Self, Outcome> {
        // They were given to the tracer at the start.
        if tracing::symbols().is_err() {
            return Err(Outcome::Skipped("no symbols are embedded in this kernel"));
        }
        let probe = Probe::new();
        let ops = FtraceOps::new(note_entry, OpsFlags::empty(), Filter::NONE).with_private(probe.word());
        let ops: &'static FtraceOps = Box::leak(Box::new(ops));
        fgraph::register_ftrace_function(ops)?;
        Ok(Self { ops, probe })
    }

    fn write(&self, text: &str) -> CaseResult {
        let written = fgraph::ftrace_set_filter_words(self.ops, WhichSet::Filter, text, Mode::Replace);
        written.map_err(|error| Outcome::Failed(alloc::format!("{text}: {error} at {}", error.column)))
    }

    /// Which of the functions above are called now.
    fn called(&self) -> Vec<usize> {
        let before = self.probe.log().len();
        black_box(call_all());
        self.probe.log().iter().skip(before).map(|seen| seen.func).collect()
    }

    fn read(&self) -> Result<String, Outcome> {
        let mut text = String::new();
        let shown = fgraph::ftrace_show_filter_words(self.ops, WhichSet::Filter, &mut text)?;
        check!(shown.is_ok(), "a string refused text");
        Ok(text)
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let _ = fgraph::unregister_ftrace_function(self.ops);
    }
}

fn count_lines(list: List) -> usize {
    let mut text = String::new();
    let _ = fgraph::show_list(list, &mut text);
    text.lines().count()
}

pub fn words_choose_functions_by_their_names() -> CaseResult {
    let user = User::register()?;
    let (first, second) = (addr!(chosen_first), addr!(chosen_second));
    let (square, polygon) = (addr!(<Square as Corners>::corners), addr!(<Polygon as Corners>::corners));
    let (small, large) = (addr!(sized::<u8>), addr!(sized::<u64>));
    for (text, expected) in [
        (path!("chosen_first"), &[first][..]),
        ("*::words::chosen_*", &[first, second]),
        (path!("sized::<u64>"), &[large]),
        (path!("sized#*"), &[small, large]),
        (path!("Polygon::corners"), &[polygon]),
        ("<*Square as *>::corners", &[square]),
        (concat!("*::cases::words::* !", path!("chosen_second"), " !*::corners !*sized*"), &[first]),
        ("!*", &[]),
    ] {
        user.write(text)?;
        check_eq!(user.called(), expected, text);
    }
    // Only what is called: this file's own functions among them.
    user.write("*::cases::words::*")?;
    let called = user.called();
    check!(called.len() as u64 >= CALLS, "only {called:x?} of *::cases::words::*");
    check_eq!(count_lines(List::Enabled), fgraph::stats().patched, "lines of enabled_functions");
    check!(count_lines(List::Available) >= fgraph::stats().sites, "available_filter_functions is short");
    drop(user);
    check_eq!(count_lines(List::Enabled), 0, "functions that are left enabled");
    check!(count_lines(List::Touched) > 0, "nothing was touched");
    Ok(())
}

pub fn a_file_tells_equal_names_apart() -> CaseResult {
    let user = User::register()?;
    let (here, there) = (addr!(twin), addr!(load::twin));
    for (text, expected) in [
        ("*::twin", &[here, there][..]),
        ("*::twin@words.rs", &[here]),
        ("*::twin@cases/load.rs", &[there]),
        ("*::twin@src/cases/[l]*.rs", &[there]),
        ("*::twin !*::twin@load.rs", &[here]),
        (concat!(path!("twin"), "@qemu/src/cases/words.rs"), &[here]),
    ] {
        user.write(text)?;
        let before = user.probe.log().len();
        black_box(twin(1) + load::twin(1));
        let called: Vec<usize> = user.probe.log().iter().skip(before).map(|seen| seen.func).collect();
        check_eq!(called, expected, text);
    }
    let text = concat!(path!("twin"), "@load.rs");
    let refused = fgraph::ftrace_set_filter_words(user.ops, WhichSet::Filter, text, Mode::Append);
    check!(refused.is_err(), "{text} was taken");
    let text = "*::twin@oads.rs";
    let Err(refused) = fgraph::ftrace_set_filter_words(user.ops, WhichSet::Filter, text, Mode::Append) else {
        return Err(Outcome::Failed("half a file name was taken".into()));
    };
    let column = "*::twin@".len();
    check_eq!(refused.cause, Cause::Select(SelectError::NoFile { column }), "cause");
    Ok(())
}

pub fn ambiguous_words_are_refused_with_candidates() -> CaseResult {
    let user = User::register()?;
    user.write(path!("chosen_first"))?;
    let before = user.read()?;
    let text = concat!("*::words::chosen_second ", path!("sized"));
    let refused = fgraph::ftrace_set_filter_words(user.ops, WhichSet::Filter, text, Mode::Append);
    let Err(refused) = refused else {
        return Err(Outcome::Failed("an ambiguous word was taken".into()));
    };
    let column = "*::words::chosen_second ".len();
    check_eq!(refused.column, column, "column");
    check_eq!(refused.cause, Cause::Select(SelectError::Ambiguous { column, count: 2 }), "cause");
    check_eq!(user.read()?, before, "the set after a refusal");
    check_eq!(user.called(), [addr!(chosen_first)], "what is called after a refusal");
    let mut candidates = Vec::new();
    let listed = fgraph::word_candidates(refused.word(text), |found| candidates.push(found.to_string()));
    check!(listed.is_ok() && candidates.len() == 2, "candidates {candidates:?}");
    for candidate in &candidates {
        check!(candidate.contains("sized::<"), "candidate {candidate}");
    }
    user.write(path!("sized#2"))?;
    check_eq!(user.called().len(), 1, "calls of one of two");
    for text in [path!("chosen_third"), "^(?!x).*", path!("chosen_first:traceoff"), "x##"] {
        let refused = fgraph::ftrace_set_filter_words(user.ops, WhichSet::Filter, text, Mode::Append);
        check!(refused.is_err(), "{text} was taken");
    }
    Ok(())
}

pub fn what_is_read_of_a_set_makes_the_same_set() -> CaseResult {
    let (user, other) = (User::register()?, User::register()?);
    for text in ["*", "!*", "*::cases::words::*", "*sched*", "*::workload::* *::run none:mod:none", "1 2 3"] {
        user.write(text)?;
        let read = user.read()?;
        let mut bytes = Vec::new();
        let (mut place, mut piece) = (Place::START, [0; 100]);
        loop {
            let got = fgraph::ftrace_read_filter_words(user.ops, WhichSet::Filter, &mut place, &mut piece)?;
            bytes.extend_from_slice(&piece[..got]);
            if got == 0 {
                break;
            }
        }
        check!(bytes == read.as_bytes(), "read in pieces, {text} is something else");
        other.write(&read)?;
        check_eq!(other.read()?, read, text);
        let mut enabled = Ok(());
        fgraph::functions(|info| {
            if !matches!(info.users, 0 | 2) {
                enabled = Err(info.func);
            }
        });
        check!(enabled.is_ok(), "{text}: {enabled:?} is wanted by one of the two");
    }
    Ok(())
}
