//! The list of known bugs in `core/engine/known_bugs.rs` is whole: each bug has its line, and each test that a line names
//! exists and is run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

const LIST: &str = "core/engine/known_bugs.rs";

/// Bugs that must be in the list: of Linux's ftrace and of other tracers.
fn wanted() -> BTreeSet<String> {
    let of = |kind: &'static str, numbers: &'static [u32]| {
        numbers.iter().map(move |number| format!("{kind}-{number:02}"))
    };
    (18..=30)
        .chain(40..=49)
        .map(|number: u32| number.to_string())
        .chain(of("PT", &[1, 2, 3, 4, 6, 7, 8, 10, 11, 14, 17, 19, 20, 21, 22, 23]))
        .chain(of("FL", &[1, 3, 4, 5, 6, 7, 10, 12, 13, 15, 17, 19]))
        .chain(of("SM", &[1, 2, 4, 6, 8, 9]))
        .collect()
}

/// What a line says keeps a bug away.
#[derive(Debug, PartialEq, Eq)]
enum Kept {
    Tests(Vec<String>),
    /// The reason why there is none.
    None(String),
}

/// The lines of a list, by bug.
fn lines(source: &str) -> Result<BTreeMap<String, Kept>, String> {
    let docs = source.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim_end);
    let mut entries: Vec<String> = Vec::new();
    let mut inside = false;
    for line in docs {
        if let Some(entry) = line.strip_prefix(" * ") {
            entries.push(entry.to_owned());
            inside = true;
        } else if let (true, Some(more)) = (inside, line.strip_prefix("   ")) {
            let entry = entries.last_mut().expect("inside an entry");
            entry.push(' ');
            entry.push_str(more.trim());
        } else {
            inside = false;
        }
    }
    let mut kept = BTreeMap::new();
    for entry in entries {
        let (bug, says) = entry.split_once(": ").ok_or_else(|| format!("no bug: {entry}"))?;
        let tests: Vec<String> = says.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        let line = match (says.split_once("None: "), tests.is_empty()) {
            (Some((_, reason)), true) if !reason.trim().is_empty() => Kept::None(reason.to_owned()),
            (None, false) if says.matches('`').count() % 2 == 0 => Kept::Tests(tests),
            _ => return Err(format!("{bug} has neither tests nor a reason, or both: {says}")),
        };
        if kept.insert(bug.to_owned(), line).is_some() {
            return Err(format!("{bug} is there twice"));
        }
    }
    Ok(kept)
}

/// Names of all tests: functions with the attribute, and those that a list gives to a runner by their names.
fn tests_of(sources: &str) -> BTreeSet<String> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let code = sources.lines().map(|line| line.split("//").next().unwrap_or_default());
    let (mut words, mut defined, mut marked) = (BTreeMap::<&str, usize>::new(), Vec::new(), BTreeSet::new());
    let mut attribute = false;
    for line in code {
        let line_words: Vec<&str> = line.split(|c| !is_word(c)).filter(|word| !word.is_empty()).collect();
        line_words.iter().for_each(|word| *words.entry(word).or_default() += 1);
        let function = line_words.iter().position(|word| *word == "fn").and_then(|at| line_words.get(at + 1));
        if let Some(name) = function {
            defined.push(*name);
            if attribute {
                marked.insert(*name);
            }
        }
        let trimmed = line.trim();
        attribute = trimmed == "#[test]" || attribute && (trimmed.starts_with("#[") || trimmed.is_empty());
    }
    let is_run = |name: &&&str| marked.contains(**name) || words[**name] > 1;
    defined.iter().filter(is_run).map(|name| (*name).to_owned()).collect()
}

fn sources(folder: &Path, all: &mut String) {
    for entry in fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.unwrap().path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            sources(&path, all);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            all.push_str(&fs::read_to_string(&path).unwrap());
            all.push('\n');
        }
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn every_known_bug_has_a_test_or_a_reason() {
    let list = lines(&fs::read_to_string(root().join(LIST)).unwrap()).unwrap();
    assert_eq!(list.keys().cloned().collect::<BTreeSet<_>>(), wanted());
    let mut all = String::new();
    for room in ["core", "arch", "cli", "qemu", "tests"] {
        sources(&root().join(room), &mut all);
    }
    let tests = tests_of(&all);
    let mut missing = Vec::new();
    for (bug, kept) in &list {
        let Kept::Tests(named) = kept else { continue };
        missing
            .extend(named.iter().filter(|name| !tests.contains(*name)).map(|name| format!("{bug}: {name}")));
    }
    assert_eq!(missing, [""; 0], "tests that do not exist");
}

#[test]
fn a_line_has_tests_or_a_reason() {
    let list = |text: &str| lines(text.replace('|', "\n//! ").trim_start());
    let tests = |names: &[&str]| Kept::Tests(names.iter().map(|name| (*name).to_owned()).collect());
    let good = list("|Head.||* 1: it broke. `a`,|  `b`|* X-02: it|  hung. None: it|  cannot.||`c`|").unwrap();
    assert_eq!(good["1"], tests(&["a", "b"]));
    assert_eq!(good["X-02"], Kept::None("it cannot.".to_owned()));
    assert_eq!(good.len(), 2);
    for bad in [
        "|* 1: it broke.",
        "|* 1 `a`",
        "|* 1: `a` None: so.",
        "|* 1: None: ",
        "|* 1: `a|* 2: `b`",
        "|* 1: `a`|* 1: `b`",
    ] {
        assert!(list(bad).is_err(), "{bad}");
    }
}

#[test]
fn only_what_is_run_is_a_test() {
    let source = "#[test]\n#[ignore]\nfn marked() {}\nfn listed<T: A>() {}\nfn alone() {} // alone\n#[test]\nmod a {}\nfn after() {}\n\
        both! { listed }";
    assert_eq!(tests_of(source), BTreeSet::from(["marked".to_owned(), "listed".to_owned()]));
}

/// Out of a hooked function and back into its caller there is no indirect jump: a return needs no landing pad, and one that
/// brings a call of its own leaves the predictions of the callers right.
#[test]
fn hooked_functions_return_by_a_return() {
    // Of one macro the two hookers of a machine are made; the last lines are those for functions that were not called by us.
    for (path, hooker, end) in [
        ("asm/x86_64/exit.s", "\\name:", &["call 2f", "int3", "2:  mov [rsp], r11", "ret"][..]),
        ("asm/arm64/exit.s", "\\name:", &["ret"][..]),
    ] {
        let text = fs::read_to_string(root().join(path)).unwrap();
        let (_, body) = text.split_once(hooker).unwrap_or_else(|| panic!("{path} has no {hooker}"));
        let (body, _) = body.split_once(".size \\name").unwrap();
        let code = instructions(body);
        assert!(code.ends_with(end), "{path} ends in {:?}", &code[code.len().saturating_sub(6)..]);
        let jumps = ["jmp", "br ", "blr", "bx "];
        assert!(!code.iter().any(|line| jumps.iter().any(|jump| line.starts_with(jump))), "{path}: {code:?}");
    }
}

/// The straight path's hooker leaves by a return as well, or to the other hooker.
#[test]
fn the_straight_hooker_returns_by_a_return() {
    for path in ["asm/x86_64/straight.s", "asm/arm64/straight.s"] {
        let text = fs::read_to_string(root().join(path)).unwrap();
        let (_, body) = text.split_once("\nfgraph_straight_hooker:").unwrap();
        let (body, _) = body.split_once(".size fgraph_straight_hooker").unwrap();
        let code = instructions(body);
        assert!(code.contains(&"ret"), "{path}: {code:?}");
        let calls: Vec<&&str> =
            code.iter().filter(|line| line.starts_with("call ") || line.starts_with("bl ")).collect();
        assert_eq!(calls.len(), 1, "{path}: {calls:?}");
        for line in code.iter().filter(|line| line.starts_with("jmp ") || line.starts_with("b ")) {
            let target = line.split_whitespace().nth(1).unwrap();
            let is_label = target.trim_end_matches(['b', 'f']).parse::<u32>().is_ok();
            assert!(is_label || target == "fgraph_balanced_hooker", "{path}: {line}");
        }
        assert!(!code.iter().any(|line| ["br ", "blr "].iter().any(|jump| line.starts_with(jump))), "{path}");
    }
}

/// The lines that are instructions.
fn instructions(body: &str) -> Vec<&str> {
    body.lines()
        .map(|line| line.split(['#', ';']).next().unwrap_or_default().split("//").next().unwrap_or_default())
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('.'))
        .collect()
}
