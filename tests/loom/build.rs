//! Makes the mutants: the sources that are model-checked, each with one mistake in it.
//!
//! A mutant is the text of core/ with one piece replaced, so it is never out of date: when the piece is not there any more,
//! the build says so. The models must object to every one of them, or they would not object to anything.

use std::fmt::Write as _;
use std::path::Path;

/// A mistake: the name of its module, what stands in the source, and what stands there instead.
type Mutant = (&'static str, &'static str, &'static str);

/// Mistakes of `core/quiesce.rs`.
const QUIESCE: &[Mutant] = &[
    ("no_barrier", "P::sync_cores();", ""),
    ("no_waiting", "while cpu.active", "while false && cpu.active"),
    ("forgets_a_cpu", "for cpu in &self.cpus {", "for cpu in &self.cpus[1..] {"),
    ("waits_for_any_end", "if left == 0 {", "{"),
    (
        "counts_ends_before_the_barrier",
        "P::sync_cores();\n        for cpu in &self.cpus {\n            let ended = cpu.ended.load(Ordering::Acquire);",
        "let before = self.cpus.each_ref().map(|cpu| cpu.ended.load(Ordering::Acquire));\n        P::sync_cores();\n        \
         for (cpu, ended) in self.cpus.iter().zip(before) {",
    ),
    (
        "leaves_relaxed",
        "self.cpu.active.store(left, Ordering::Release)",
        "self.cpu.active.store(left, Ordering::Relaxed)",
    ),
    ("ends_relaxed", "+ 1, Ordering::Release)", "+ 1, Ordering::Relaxed)"),
    ("looks_relaxed", "cpu.active.load(Ordering::Acquire)", "cpu.active.load(Ordering::Relaxed)"),
    (
        "counts_after_leaving",
        "        if left == 0 {",
        "        self.cpu.active.store(left, Ordering::Release);\n        if left == 0 {",
    ),
    (
        "counts_relaxed",
        "cpu.ended.load(Ordering::Acquire) == ended",
        "cpu.ended.load(Ordering::Relaxed) == ended",
    ),
];

/// Mistakes of `core/users.rs`.
const USERS: &[Mutant] = &[
    ("everyone_was_there", "self.since[slot].load(Ordering::Relaxed) <= stamp", "slot < SLOTS || stamp == 0"),
    ("nobody_was_there_yet", "load(Ordering::Relaxed) <= stamp", "load(Ordering::Relaxed) < stamp"),
    ("since_for_ever", "self.since[slot].store(now, Ordering::Relaxed);", ""),
    ("clock_stands_still", "self.clock.store(now, Ordering::Release);", ""),
    (
        "masks_are_relaxed",
        "Enabled::Yes => mask.fetch_or(1 << slot, Ordering::Release)",
        "Enabled::Yes => mask.fetch_or(1 << slot, Ordering::Relaxed)",
    ),
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let out = std::env::var("OUT_DIR").expect("cargo names a folder");
    for (name, mutants) in [("quiesce", QUIESCE), ("users", USERS)] {
        let source = format!("../../core/{name}.rs");
        println!("cargo::rerun-if-changed={source}");
        let text = std::fs::read_to_string(&source).unwrap_or_else(|error| panic!("{source}: {error}"));
        // The documentation of a file cannot stand inside a module's braces.
        let text: String =
            text.lines().filter(|line| !line.starts_with("//!")).flat_map(|line| [line, "\n"]).collect();
        let mut modules = String::new();
        for (mutant, old, new) in mutants {
            let places = text.matches(old).count();
            assert_eq!(
                places, 1,
                "{source} has {places} places {old:?}: bring the mutant {mutant} up to date"
            );
            let text = text.replace(old, new);
            write!(modules, "pub(crate) mod {mutant} {{\n{text}\n}}\n").expect("a string takes all");
        }
        let file = Path::new(&out).join(format!("{name}.rs"));
        std::fs::write(&file, modules).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }
}
