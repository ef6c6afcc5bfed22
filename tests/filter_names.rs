//! The filter language against the functions of a real kernel, and against what Linux selected from them.
//!
//! The answers of Linux are lines of `PATTERN rc=… n=… md5=… first=…`: what a write of the pattern to its
//! filter file returned, and of the names that could be read back then how many, their MD5 (a name a line)
//! and the first of them. Where nothing matched, the write failed and what was read back is a line that says
//! all functions are traced.

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use fgraph::FuncAddr;
use fgraph::filter_text::{FilterLine, words};
use fgraph::select::{FunctionTable, SelectError, Selection, candidates, select};

/// Functions in the order of their list; the place in it is as good as an address.
#[derive(Default)]
struct Functions {
    names: Vec<String>,
    modules: Vec<Option<&'static str>>,
}

impl FunctionTable for Functions {
    fn len(&self) -> usize {
        self.names.len()
    }

    fn raw_name(&self, index: usize) -> &str {
        &self.names[index]
    }

    fn module(&self, index: usize) -> Option<&str> {
        self.modules.get(index).copied().flatten()
    }

    fn file(&self, _index: usize) -> Option<&str> {
        None
    }

    fn addr(&self, index: usize) -> FuncAddr {
        FuncAddr::new(0x1000 + 16 * index)
    }
}

fn samples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/samples")
}

/// What a program writes when it is given `input`; `None` if it is not there or fails.
fn output_of(program: &str, arguments: &[&str], input: &[u8]) -> Option<Vec<u8>> {
    let mut command = Command::new(program);
    let mut child = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
    let mut stdin = child.stdin.take()?;
    let input = input.to_vec();
    // In a thread, for the program may write before it has read everything.
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().ok()?;
    writer.join().ok()?.ok()?;
    output.status.success().then_some(output.stdout)
}

/// The functions that could be traced in Linux 6.12 on a machine. `None`, with the reason printed, where they
/// cannot be had.
fn functions(machine: &str) -> Option<Functions> {
    let file = samples().join(format!("names/linux-6.12-{machine}-available_filter_functions.txt.xz"));
    let Ok(packed) = fs::read(&file) else {
        println!("skipped: there are no recorded names at ../shared/samples/names");
        return None;
    };
    let Some(text) = output_of("xz", &["-dc"], &packed) else {
        println!("skipped: the recorded names cannot be unpacked without xz");
        return None;
    };
    let names: Vec<_> = String::from_utf8(text).unwrap().lines().map(str::to_owned).collect();
    assert!(names.len() > 40_000, "{}: only {} names", file.display(), names.len());
    Some(Functions { names, modules: Vec::new() })
}

/// The beginning of the MD5 of some functions' names, as long as Linux's answers have it.
fn digest(functions: &Functions, indices: &[usize]) -> Option<String> {
    let text: String = indices.iter().map(|&index| format!("{}\n", functions.names[index])).collect();
    let sum = String::from_utf8(output_of("md5sum", &[], text.as_bytes())?).ok()?;
    sum.get(..12).map(str::to_owned)
}

/// What all words of a text select together.
fn taken(text: &str, functions: &Functions) -> Result<Vec<usize>, SelectError> {
    let lines: Vec<_> =
        words(text).map(|word| word.unwrap_or_else(|error| panic!("{text}: {error}"))).collect();
    let mut indices = Vec::new();
    for line in lines {
        let selection = select(&line, functions, &mut |index| indices.push(index))?;
        assert!(matches!(selection, Selection::Functions(_)), "{text}: {selection:?}");
    }
    indices.sort_unstable();
    indices.dedup();
    Ok(indices)
}

fn count_of_candidates(word: &str, functions: &Functions) -> usize {
    let mut count = 0;
    candidates(&FilterLine::parse(word).unwrap(), functions, &mut |candidate| {
        count += 1;
        assert_eq!(candidate.number, Some(count), "{word}");
    });
    count
}

/// One answer of Linux.
struct Row<'t> {
    pattern: &'t str,
    accepted: bool,
    n: usize,
    md5: &'t str,
    first: Vec<&'t str>,
}

impl<'t> Row<'t> {
    fn read(line: &'t str) -> Option<Self> {
        let mut columns = line.split('\t');
        let pattern = columns.next()?;
        let accepted = columns.next()?.strip_prefix("rc=")? == "0";
        let n = columns.next()?.strip_prefix("n=")?.parse().ok()?;
        let md5 = columns.next()?.strip_prefix("md5=")?;
        let first = columns.next()?.strip_prefix("first=")?.split_terminator(',').collect();
        Some(Self { pattern, accepted, n, md5, first })
    }

    /// The list of names has no modules. A module's functions are neighbours, so the answer for all functions
    /// of one says where they are; and its MD5 says whether that is right.
    fn find_module(&self, functions: &mut Functions) {
        let Some(("*", module)) = self.pattern.split_once(":mod:") else { return };
        if module.starts_with('!') {
            return;
        }
        let from = functions.names.iter().position(|name| *name == self.first[0]).unwrap();
        functions.modules.resize(functions.names.len(), None);
        functions.modules[from..from + self.n].fill(Some(String::leak(module.to_owned())));
    }
}

/// The selection of a row must be that of Linux: as many functions, and the same ones.
fn compare(row: &Row<'_>, word: &str, functions: &Functions) {
    let indices = taken(word, functions).unwrap_or_else(|error| panic!("{word}: {error}"));
    assert_eq!(indices.len(), row.n, "{word}");
    let first: Vec<_> = indices.iter().take(3).map(|&index| &functions.names[index]).collect();
    assert_eq!(first, row.first, "{word}");
    match digest(functions, &indices) {
        Some(md5) => assert_eq!(md5, row.md5, "{word}: as many functions as Linux has, but others"),
        None => println!("{word}: not compared name by name without md5sum"),
    }
}

#[test]
fn globs_select_what_linux_selected() {
    let Ok(text) = fs::read_to_string(samples().join("linux-6.12/globs-x86_64.tsv")) else {
        println!("skipped: there are no recorded answers at ../shared/samples/linux-6.12");
        return;
    };
    let Some(mut functions) = functions("x86_64") else { return };
    let rows: Vec<_> = text
        .lines()
        .map(|line| Row::read(line).unwrap_or_else(|| panic!("no answer can be read from {line:?}")))
        .collect();
    rows.iter().for_each(|row| row.find_module(&mut functions));
    let (mut same, mut refused, mut ambiguous) = (0, 0, 0);
    for row in &rows {
        let word = row.pattern;
        match taken(word, &functions) {
            Ok(_) => {
                assert!(row.accepted, "{word}: Linux refused it");
                compare(row, word, &functions);
                same += 1;
            }
            // Linux traces all functions of the name. Here that has to be asked for.
            Err(SelectError::Ambiguous { count, .. }) => {
                assert!(row.accepted, "{word}: Linux refused it");
                assert_eq!(count, row.n, "{word}");
                assert_eq!(count_of_candidates(word, &functions), row.n, "{word}");
                compare(row, &format!("{word}#*"), &functions);
                ambiguous += 1;
            }
            // Linux refuses it too, and then traces everything.
            Err(error) => {
                assert!(!row.accepted, "{word}: {error}");
                assert_eq!((row.n, &row.first[..]), (1, &["####"][..]), "{word}");
                refused += 1;
            }
        }
    }
    println!(
        "{} answers: {same} the same, {refused} refused here and there, {ambiguous} ambiguous",
        rows.len()
    );
    assert!(same > 0 && refused > 0 && ambiguous > 0);
}

#[test]
fn every_kind_of_glob_selects_what_a_plain_search_selects() {
    type Plain = fn(&str) -> bool;
    let searches: [(&str, Plain); 12] = [
        ("*schedule*", |name| name.contains("schedule")),
        ("schedule*", |name| name.starts_with("schedule")),
        ("*_schedule", |name| name.ends_with("_schedule")),
        ("*pin*lock", |name| name.ends_with("lock") && name[..name.len() - 4].contains("pin")),
        ("vfs_[a-m]*", |name| {
            name.strip_prefix("vfs_").is_some_and(|rest| rest.starts_with(|c: char| ('a'..='m').contains(&c)))
        }),
        ("vfs_[!a-m]*", |name| {
            name.strip_prefix("vfs_")
                .is_some_and(|rest| rest.starts_with(|c: char| !('a'..='m').contains(&c)))
        }),
        ("sch?dule", |name| name.len() == 8 && name.starts_with("sch") && name.ends_with("dule")),
        ("[!x]chedule", |name| name.len() == 8 && !name.starts_with('x') && name.ends_with("chedule")),
        ("??", |name| name.len() == 2),
        ("vfs_\\read", |name| name == "vfs_read"),
        ("*.part.*.constprop.*", |name| {
            name.split_once(".part.").is_some_and(|(_, rest)| rest.contains(".constprop."))
        }),
        ("[_a]*[0-9]", |name| name.starts_with(['_', 'a']) && name.ends_with(|c: char| c.is_ascii_digit())),
    ];
    for machine in ["x86_64", "arm64"] {
        let Some(functions) = functions(machine) else { return };
        for (glob, plain) in searches {
            let expected: Vec<_> =
                (0..functions.len()).filter(|&index| plain(&functions.names[index])).collect();
            let found =
                taken(glob, &functions).unwrap_or_else(|error| panic!("{glob} on {machine}: {error}"));
            assert_eq!(found, expected, "{glob} on {machine}");
        }
        for nothing in ["?", "[vfs_read", "[^x]chedule", "vfs_read.*", "^vfs_read$", "^(?!x).*"] {
            assert!(taken(nothing, &functions).is_err(), "{nothing} on {machine}");
        }
    }
    let Some(functions) = functions("x86_64") else { return };
    assert_eq!(taken("*schedule*", &functions).map(|found| found.len()), Ok(112), "as in Linux");
}

#[test]
fn names_that_several_functions_have_are_refused_and_told_apart() {
    let Some(functions) = functions("x86_64") else { return };
    let mut places: HashMap<&str, Vec<usize>> = HashMap::new();
    for (index, name) in functions.names.iter().enumerate() {
        places.entry(name).or_default().push(index);
    }
    for (name, count) in [("type_show", 13), ("init_once", 9), ("id_show", 4)] {
        assert_eq!(places[name].len(), count, "{name}: other names than these tests were made for");
    }
    let mut several = 0;
    for (name, places) in places.iter().filter(|(_, places)| places.len() > 1) {
        several += 1;
        let count = places.len();
        assert_eq!(taken(name, &functions), Err(SelectError::Ambiguous { column: 0, count }), "{name}");
        // The others cost time and say little more.
        if several % 10 != 0 && !["type_show", "init_once", "id_show"].contains(name) {
            continue;
        }
        assert_eq!(&taken(&format!("{name}#*"), &functions).unwrap(), places, "{name}");
        for number in [1, count] {
            let word = format!("{name}#{number}");
            assert_eq!(taken(&word, &functions), Ok(vec![places[number - 1]]), "{word}");
        }
        let copy = count + 1;
        assert_eq!(
            taken(&format!("{name}#{copy}"), &functions),
            Err(SelectError::CopyBeyondEnd { column: name.len() + 1, copy, count }),
            "{name}"
        );
    }
    println!("{several} names with several functions");
    for (name, places) in places.iter().filter(|(_, places)| places.len() == 1).take(40) {
        assert_eq!(&taken(name, &functions).unwrap(), places, "{name}");
        assert_eq!(&taken(&(places[0] + 1).to_string(), &functions).unwrap(), places, "{name} by index");
    }
}

#[test]
fn a_function_that_has_only_variants_is_refused_and_they_are_listed() {
    let Some(functions) = functions("x86_64") else { return };
    let variants: Vec<_> = functions.names.iter().filter(|name| name.contains(".isra.")).collect();
    assert!(!variants.is_empty());
    for name in variants.iter().take(10) {
        assert!(taken(name, &functions).is_ok_and(|found| found.len() == 1), "{name}");
        let (stem, _) = name.split_once('.').unwrap();
        if functions.names.iter().any(|other| other == stem) {
            continue;
        }
        assert_eq!(taken(stem, &functions), Err(SelectError::NoFunction { column: 0 }), "{stem}");
        let mut listed = Vec::new();
        candidates(&FilterLine::parse(stem).unwrap(), &functions, &mut |similar| {
            listed.push(similar.raw_name)
        });
        assert!(listed.contains(&name.as_str()), "{stem}: {listed:?}");
    }
}

/// Prints how long a million functions take. There is no limit to hold, so nobody need wait for it.
#[test]
#[ignore = "prints times, which say something in a release build only"]
fn a_million_functions() {
    let names = (0..1_000_000).map(|index| match index % 4 {
        0 => format!("subsystem_{index}_read.isra.0"),
        1 => format!("_RNvNtCs1234_6kernel5sched16function_{index:07}"),
        2 => format!("_ZN6kernel2fs4file16function_{index:07}17h0123456789abcdefE"),
        _ => format!("type_show_{}", index % 999_983),
    });
    let functions = Functions { names: names.collect(), modules: Vec::new() };
    for word in [
        "type_show_3",
        "subsystem_*",
        "*read*isra*",
        "[!_]*_?8*[0-9]",
        "kernel::fs::file::function_0000002",
        "kernel::fs::file::function_0000002#1",
        "kernel::sched::*",
        "*::function_*9",
        "no_such_name",
        "no::such::name",
        "999999",
    ] {
        let start = Instant::now();
        let found = taken(word, &functions).map(|found| found.len());
        println!("{:>8.1} ms  {word}: {found:?}", start.elapsed().as_secs_f64() * 1e3);
    }
}
