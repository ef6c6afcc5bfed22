//! What filter words are understood as, which errors they give where, and that no text does any harm.

use super::*;

use std::string::{String, ToString};
use std::vec::Vec;

fn parse(text: &str) -> FilterLine<'_> {
    FilterLine::parse(text).unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

/// What a word was understood as, in one line.
fn shown(line: &FilterLine<'_>) -> String {
    let part = |part: &Part<'_>| std::format!("{}@{}", part.pattern, part.column);
    let mut text = String::from(if line.remove { "not " } else { "" });
    match &line.target {
        Target::Index { number, column } => text += &std::format!("index {number}@{column}"),
        Target::Name(target) => {
            text += &part(&target.name);
            match &target.module {
                ModuleScope::Everywhere => {}
                ModuleScope::Loaded(module) => text += &std::format!(" in {}", part(module)),
                ModuleScope::WhenLoaded { module, inverted: false } => {
                    text += &std::format!(" mod {}", part(module));
                }
                ModuleScope::WhenLoaded { module, inverted: true } => {
                    text += &std::format!(" mod not {}", part(module));
                }
            }
            if let Some(file) = &target.file {
                text += &std::format!(" from {}", part(file));
            }
            match target.copies {
                Copies::Unstated => {}
                Copies::All => text += " all",
                Copies::Number { number, column } => text += &std::format!(" copy {number}@{column}"),
            }
        }
    }
    if let Some(command) = &line.command {
        text += &std::format!(" do {command}@{}", command.column);
    }
    text
}

#[test]
fn words_say_what_they_mean() {
    for (word, expected) in [
        ("vfs_read", "vfs_read@0"),
        ("!vfs_read", "not vfs_read@1"),
        ("vfs_*", "vfs_*@0"),
        ("getname_flags.part.0", "getname_flags.part.0@0"),
        ("größe", "größe@0"),
        ("^(?!x).*", "^(?!x).*@0"),
        ("12", "index 12@0"),
        ("!12", "not index 12@1"),
        ("12:traceoff:3", "index 12@0 do traceoff:count=3@3"),
        ("9p_read", "9p_read@0"),
        ("f:mod:ext4", "f@0 mod ext4@6"),
        ("f:mod:!ext4", "f@0 mod not ext4@7"),
        ("f:mod:", "f@0 mod @6"),
        ("f:mod:!", "f@0 mod not @7"),
        ("!f:mod:ext*", "not f@1 mod ext*@7"),
        ("f:mod:ext4:traceoff:5", "f@0 mod ext4@6 do traceoff:count=5@11"),
        ("ext4:f", "f@5 in ext4@0"),
        ("ext4:f:stacktrace", "f@5 in ext4@0 do stacktrace:unlimited@7"),
        ("ext4:f:traceon:2", "f@5 in ext4@0 do traceon:count=2@7"),
        ("mod:f", "f@4 in mod@0"),
        ("f@core.c", "f@0 from core.c@2"),
        ("f@sched/*", "f@0 from sched/*@2"),
        ("f#3", "f@0 copy 3@2"),
        ("f#*", "f@0 all"),
        ("!ext4:f@core.c#3:snapshot", "not f@6 in ext4@1 from core.c@8 copy 3@15 do snapshot:unlimited@17"),
        ("f:traceon", "f@0 do traceon:unlimited@2"),
        ("f:traceon:unlimited", "f@0 do traceon:unlimited@2"),
        ("f:traceon:count=4", "f@0 do traceon:count=4@2"),
        ("f:enable_event:sched:sched_switch", "f@0 do enable_event:sched:sched_switch:unlimited@2"),
        ("f:enable_event:sched:sched_switch:2", "f@0 do enable_event:sched:sched_switch:count=2@2"),
        ("f:trace:7", "f@0 do trace:count=7@2"),
        ("f:g:trace", "g@2 in f@0 do trace:unlimited@4"),
        ("f:traceon:x", "f@0 do traceon:x:unlimited@2"),
        ("f:dump", "f@0 do dump:unlimited@2"),
        ("f:mod:ext4:nothing", "f@0 mod ext4@6 do nothing:unlimited@11"),
        ("r::S::go", "r::S::go@0"),
        ("r::S::go:traceoff", "r::S::go@0 do traceoff:unlimited@9"),
        ("ext4:r::S::go", "r::S::go@5 in ext4@0"),
        ("::go", "::go@0"),
        ("ext4::", "ext4::@0"),
        ("r::helper::<a::B, c::D>#2", "r::helper::<a::B, c::D>@0 copy 2@24"),
        ("<r::S as r::Tr>::go:mod:x", "<r::S as r::Tr>::go@0 mod x@24"),
        ("<fn(u8) -> u8 as r::Tr>::go", "<fn(u8) -> u8 as r::Tr>::go@0"),
        ("p::drop<(A, fn(B) .> C)>:dump", "p::drop<(A, fn(B) .> C)>@0 do dump:unlimited@25"),
        ("r::run::{closure#0}", "r::run::{closure#0}@0"),
        ("r::run::{closure#0}#2", "r::run::{closure#0}@0 copy 2@20"),
        ("r::run::{{closure}}", "r::run::{{closure}}@0"),
        ("r::{shim:vtable#0}", "r::{shim:vtable#0}@0"),
        ("a\\:b", "a\\:b@0"),
        ("a\\ b", "a\\ b@0"),
        ("a\\#2", "a\\#2@0"),
        ("a\\ö:b", "b@5 in a\\ö@0"),
        ("\\!a", "\\!a@0"),
        ("\\12", "\\12@0"),
        ("a<b", "a<b@0"),
        (" f ", "f@1"),
    ] {
        assert_eq!(shown(&parse(word)), expected, "{word:?}");
    }
}

#[test]
fn errors_point_at_the_column() {
    for (word, expected) in [
        ("", ParseError::NoName { column: 0 }),
        ("  ", ParseError::NoName { column: 2 }),
        ("!", ParseError::NoName { column: 1 }),
        ("!!x", ParseError::DoubleNot { column: 1 }),
        (" a  b ", ParseError::SecondWord { column: 4 }),
        ("a !!b", ParseError::DoubleNot { column: 3 }),
        (":traceoff", ParseError::NoName { column: 0 }),
        ("!:mod:ext4", ParseError::NoName { column: 1 }),
        (":f", ParseError::NoModule { column: 0 }),
        ("f:", ParseError::NoCommand { column: 2 }),
        ("ext4:", ParseError::NoCommand { column: 5 }),
        ("ext4:f:", ParseError::NoCommand { column: 7 }),
        ("f:mod", ParseError::NoModule { column: 5 }),
        ("f:mod:!!x", ParseError::DoubleNot { column: 7 }),
        ("f:mod:x:", ParseError::NoCommand { column: 8 }),
        ("f:mod:x:mod:y", ParseError::TwoModules { column: 8 }),
        ("ext4:f:mod:x", ParseError::TwoModules { column: 11 }),
        ("f:traceon:", ParseError::NoCount { column: 10 }),
        ("f:traceon:count=", ParseError::NoCount { column: 16 }),
        ("f:enable_event:a:b:", ParseError::NoCount { column: 19 }),
        ("f:traceon:18446744073709551616", ParseError::CountTooLarge { column: 10 }),
        ("f#", ParseError::BadCopy { column: 2 }),
        ("f#x", ParseError::BadCopy { column: 2 }),
        ("f#-1", ParseError::BadCopy { column: 2 }),
        ("f#1#2", ParseError::BadCopy { column: 2 }),
        ("f#0", ParseError::Zero { column: 2 }),
        ("0", ParseError::Zero { column: 0 }),
        ("99999999999999999999", ParseError::NumberTooLarge { column: 0 }),
        ("####", ParseError::BadCopy { column: 1 }),
        ("#1", ParseError::NoName { column: 0 }),
        ("@x", ParseError::NoName { column: 0 }),
        ("f@", ParseError::NoFile { column: 2 }),
        ("f@#2", ParseError::NoFile { column: 2 }),
        ("5#1", ParseError::QualifiedIndex { column: 0 }),
        ("ext4:5:traceoff", ParseError::QualifiedIndex { column: 5 }),
        ("5:mod:ext4", ParseError::QualifiedIndex { column: 0 }),
        ("!5@core.c", ParseError::QualifiedIndex { column: 1 }),
    ] {
        let error = FilterLine::parse(word).unwrap_err();
        assert_eq!(error, expected, "{word:?}");
        assert_eq!(error.column(), expected.column());
    }
    let long = std::format!("ext4:{}*", "a".repeat(600));
    assert_eq!(FilterLine::parse(&long), Err(ParseError::PatternTooLong { column: 5, len: 601 }));
    let file = std::format!("f@{}*", "a".repeat(600));
    assert_eq!(FilterLine::parse(&file), Err(ParseError::PatternTooLong { column: 2, len: 601 }));
}

#[test]
fn blanks_separate_words() {
    for (text, expected) in [
        ("", &[][..]),
        (" \t\r\n\u{b}\u{c}", &[]),
        (" a  b ", &["1 a", "4 b"]),
        ("a\n\nb\tc\r\n", &["0 a", "3 b", "5 c"]),
        ("<a b>::c d", &["0 <a b>::c", "9 d"]),
        ("{a b} c", &["0 {a b}", "6 c"]),
        ("<a <b> c d", &["0 <a", "3 <b>", "7 c", "9 d"]),
        ("<a b\nc> d\n<e f>", &["0 <a", "3 b", "5 c>", "8 d", "10 <e f>"]),
        ("a\\ b c\\", &["0 a\\ b", "5 c\\"]),
        ("a\\\nb", &["0 a\\", "3 b"]),
        ("ä ö", &["0 ä", "3 ö"]),
        ("a\u{a0}b", &["0 a\u{a0}b"]),
        ("a->b c> d", &["0 a->b", "5 c>", "8 d"]),
    ] {
        let read: Vec<_> =
            words(text).map(Result::unwrap).map(|line| std::format!("{} {line}", line.column)).collect();
        assert_eq!(read, expected, "{text:?}");
    }
}

#[test]
fn a_wrong_word_does_not_hide_the_next() {
    let read: Vec<_> = words("!! a f#x").collect();
    assert_eq!(read.len(), 3);
    assert_eq!(read[0], Err(ParseError::DoubleNot { column: 1 }));
    assert_eq!(shown(&read[1].unwrap()), "a@3");
    assert_eq!(read[2], Err(ParseError::BadCopy { column: 7 }));
}

#[test]
fn the_caret_stands_below_its_column() {
    for (text, column, expected) in [
        ("vfs_read#x", 9, "  Command: vfs_read#x\n                    ^\n"),
        ("", 0, "  Command: \n           ^\n"),
        ("ab", 2, "  Command: ab\n             ^\n"),
        ("ab", 99, "  Command: ab\n             ^\n"),
        ("a\nbc\nd", 3, "  Command: bc\n            ^\n"),
        ("a\nbc\nd", 2, "  Command: bc\n           ^\n"),
        ("a\nbc\nd", 1, "  Command: a\n            ^\n"),
        ("ö\tx", 3, "  Command: ö\tx\n            \t^\n"),
        ("\u{1b}[2Jx", 4, "  Command: ?[2Jx\n               ^\n"),
    ] {
        assert_eq!(Caret::new(text, column).labelled("  Command: ").to_string(), expected, "{text:?}");
    }
}

#[test]
fn commands_are_shown_in_words_that_can_be_read_back() {
    for word in ["f:traceoff", "f:traceoff:3", "f:enable_event:a:b", "f:enable_event:a:b:3", "f:what:9"] {
        let line = parse(word);
        let command = line.command.unwrap();
        let shown = std::format!("f:{command}");
        let again = parse(&shown);
        let read = again.command.unwrap();
        assert_eq!(
            (read.name, read.arguments, read.count),
            (command.name, command.arguments, command.count),
            "{word} is shown as {shown}"
        );
    }
}

/// Random text in which everything that has a meaning is frequent.
pub(crate) fn garbage(seed: &mut u64, longest: usize) -> String {
    const PIECES: [&str; 40] = [
        ":",
        "::",
        "!",
        "#",
        "@",
        "*",
        "?",
        "[",
        "]",
        "\\",
        "<",
        ">",
        "{",
        "}",
        "->",
        " ",
        "\n",
        "\t",
        "a",
        "b",
        "go",
        "r::S",
        "0",
        "1",
        "2",
        "99999999999999999999",
        "mod",
        "traceoff",
        "traceon",
        "count=",
        "unlimited",
        "ext4",
        "ö",
        "\u{0}",
        "\u{1b}",
        ".llvm.1",
        ".cold",
        "_R",
        "_ZN",
        " as ",
    ];
    let mut random = |below: usize| {
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        (*seed >> 20) as usize % below
    };
    let pieces = random(longest);
    (0..pieces).map(|_| PIECES[random(PIECES.len())]).collect()
}

#[test]
fn garbage_is_read_or_refused() {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let (mut read, mut refused) = (0, 0);
    for _ in 0..if cfg!(miri) { 300 } else { 40_000 } {
        let text = garbage(&mut seed, 16);
        let mut end = 0;
        for word in words(&text) {
            match word {
                Ok(line) => {
                    read += 1;
                    assert!(line.column >= end, "{text:?}: words overlap");
                    end = line.column + line.text().len();
                    assert_eq!(text.get(line.column..end), Some(line.text()), "{text:?}");
                    let shown = line.to_string();
                    let again = words(&shown).next().unwrap();
                    // A bracket that closes only in the next word protects in the text, and not in the word.
                    assert_eq!(again.map(|line| shown.starts_with(line.text())), Ok(true), "{text:?}");
                    let tail = Caret::new(&text, line.column).to_string();
                    assert!(tail.ends_with("^\n"), "{text:?}");
                }
                Err(error) => {
                    refused += 1;
                    assert!(error.column() >= end, "{text:?}: {error} at {}", error.column());
                    assert!(text.is_char_boundary(error.column()), "{text:?}: {error} at {}", error.column());
                    assert!(
                        !error.to_string().is_empty()
                            && !Caret::new(&text, error.column()).to_string().is_empty()
                    );
                }
            }
        }
    }
    assert!(
        read > 10_000 && refused > 10_000 || cfg!(miri),
        "{read} read, {refused} refused: this tested little"
    );
}

#[test]
fn hostile_brackets_are_not_searched_for_twice() {
    let many = if cfg!(miri) { 1000 } else { 200_000 };
    for text in ["<".repeat(many), "< ".repeat(many / 2), "{<".repeat(many / 2), "<>".repeat(many / 2)] {
        assert!(words(&text).count() >= 1);
        assert!(words(&(text + "\n")).count() >= 1);
    }
}
