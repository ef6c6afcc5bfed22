//! Which functions words take from small tables, and that no text takes others than a plain search does.

use super::*;

use std::string::{String, ToString};
use std::vec::Vec;

use crate::filter_text::words;

/// Name, module, file and address.
type Row = (&'static str, Option<&'static str>, Option<&'static str>, usize);

struct Table<'a>(&'a [Row]);

impl FunctionTable for Table<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn raw_name(&self, index: usize) -> &str {
        self.0[index].0
    }

    fn module(&self, index: usize) -> Option<&str> {
        self.0[index].1
    }

    fn file(&self, index: usize) -> Option<&str> {
        self.0[index].2
    }

    fn addr(&self, index: usize) -> FuncAddr {
        FuncAddr::new(self.0[index].3)
    }
}

const ROWS: [Row; 12] = [
    ("vfs_read", None, Some("fs/read_write.c"), 0x10),
    ("vfs_write", None, Some("fs/read_write.c"), 0x20),
    ("id_show", None, Some("drivers/core/a.c"), 0x30),
    ("id_show", None, Some("drivers/core/bus.c"), 0x40),
    ("do_open.isra.0", None, None, 0x50),
    ("do_open.part.1", None, None, 0x60),
    ("old_name", None, None, 0x70),
    ("new_name", None, None, 0x70),
    ("promoted.llvm.123", None, None, 0x80),
    ("id_show", Some("ext4"), Some("fs/ext4/sysfs.c"), 0x90),
    ("ext4_read", Some("ext4"), Some("fs/ext4/file.c"), 0xa0),
    ("dump", Some("btrfs"), None, 0xb0),
];

fn taken(word: &str, rows: &[Row]) -> Result<(Selection, Vec<usize>), SelectError> {
    let line = FilterLine::parse(word).unwrap_or_else(|error| panic!("{word:?}: {error}"));
    let mut indices = Vec::new();
    let selection = select(&line, &Table(rows), &mut |index| indices.push(index));
    if selection.is_err() {
        assert!(indices.is_empty(), "{word}: an error took {indices:?}");
    }
    selection.map(|selection| (selection, indices))
}

fn listed(word: &str, rows: &[Row]) -> Vec<String> {
    let mut list = Vec::new();
    candidates(&FilterLine::parse(word).unwrap(), &Table(rows), &mut |candidate| {
        list.push(candidate.to_string())
    });
    list
}

#[test]
fn words_take_the_functions_they_name() {
    for (word, expected) in [
        ("vfs_read", &[0][..]),
        ("!vfs_read", &[0]),
        ("vfs_*", &[0, 1]),
        ("*", &[0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11]),
        ("1", &[0]),
        ("12", &[11]),
        ("id_show#1", &[2]),
        ("id_show#2", &[3]),
        ("id_show#3", &[9]),
        ("id_show#*", &[2, 3, 9]),
        ("[i]d_show", &[2, 3, 9]),
        ("vfs_*#2", &[1]),
        ("id_show@bus.c", &[3]),
        ("id_show@core/bus.c", &[3]),
        ("id_show@drivers/core/bus.c", &[3]),
        ("id_show@b*.c", &[3]),
        ("id_show@drivers/*", &[2, 3]),
        ("*@file.c", &[10]),
        ("ext4:id_show", &[9]),
        ("ext?:id_show", &[9]),
        ("vmlinux:id_show#2", &[3]),
        ("vmlinux:id_show@a.c", &[2]),
        ("?*:id_show", &[2, 3, 9]),
        ("id_show:mod:ext4", &[9]),
        ("id_show:mod:!ext4", &[2, 3]),
        ("id_show:mod:", &[9]),
        ("id_show:mod:!", &[2, 3]),
        ("id_show:mod:!?*", &[2, 3]),
        ("*:mod:!*", &[0, 1, 2, 3, 4, 5, 6, 8]),
        ("*:mod:*", &[9, 10, 11]),
        ("ext4_*:mod:ext4:traceoff:3", &[10]),
        ("dump:mod:btrfs", &[11]),
        ("btrfs:dump#1", &[11]),
        ("promoted", &[8]),
        ("promoted.llvm.123", &[8]),
        ("do_open.isra.0", &[4]),
        ("do_open.*", &[4, 5]),
        ("new_name", &[7]),
        ("???_name", &[6]),
        ("n*_name", &[7]),
    ] {
        let (selection, indices) = taken(word, &ROWS).unwrap_or_else(|error| panic!("{word}: {error}"));
        assert_eq!(indices, expected, "{word}");
        assert_eq!(selection, Selection::Functions(expected.len()), "{word}");
    }
}

#[test]
fn what_is_not_there_is_an_error_at_its_column() {
    for (word, expected) in [
        ("vfs_open", SelectError::NoFunction { column: 0 }),
        ("!vfs_open", SelectError::NoFunction { column: 1 }),
        ("vfs_open*", SelectError::NothingMatches { column: 0 }),
        ("^(?!x).*", SelectError::NothingMatches { column: 0 }),
        ("do_open", SelectError::NoFunction { column: 0 }),
        ("vfs_read.isra.0", SelectError::NoFunction { column: 0 }),
        ("13", SelectError::IndexBeyondEnd { column: 0, index: 13, len: 12 }),
        ("id_show", SelectError::Ambiguous { column: 0, count: 3 }),
        ("!id_show", SelectError::Ambiguous { column: 1, count: 3 }),
        ("id_sho\\w", SelectError::Ambiguous { column: 0, count: 3 }),
        ("vmlinux:id_show", SelectError::Ambiguous { column: 8, count: 2 }),
        ("id_show#4", SelectError::CopyBeyondEnd { column: 8, copy: 4, count: 3 }),
        ("ext4:id_show#2", SelectError::CopyBeyondEnd { column: 13, copy: 2, count: 1 }),
        ("xfs:id_show", SelectError::NoModule { column: 0 }),
        ("vfs_read:tracof", SelectError::NoModule { column: 0 }),
        ("ext4:vfs_read", SelectError::NoFunction { column: 5 }),
        ("vfs_read:mod:ext4", SelectError::NoFunction { column: 0 }),
        ("vfs_*:mod:ext4", SelectError::NothingMatches { column: 0 }),
        ("dump:mod:!btrfs", SelectError::NoFunction { column: 0 }),
        ("vfs_read@bus.c", SelectError::NoFunction { column: 0 }),
        ("vfs_read@us.c", SelectError::NoFile { column: 9 }),
        ("vfs_read@fs", SelectError::NoFile { column: 9 }),
        ("do_open.isra.0@x.c", SelectError::NoFile { column: 15 }),
        ("btrfs:id_show@sysfs.c", SelectError::NoFile { column: 14 }),
    ] {
        assert_eq!(taken(word, &ROWS), Err(expected), "{word}");
        assert!(!expected.to_string().is_empty());
    }
    assert_eq!(taken("x", &[]), Err(SelectError::NoFunction { column: 0 }));
    assert_eq!(taken("*", &[]), Err(SelectError::NothingMatches { column: 0 }));
    assert_eq!(taken("1", &[]), Err(SelectError::IndexBeyondEnd { column: 0, index: 1, len: 0 }));
    assert_eq!(taken("m:x", &[]), Err(SelectError::NoModule { column: 0 }));
    assert_eq!(taken("x:mod:!m", &ROWS[9..10]), Err(SelectError::NoFunction { column: 0 }));
    assert_eq!(taken("x:mod:!ext4", &ROWS[9..10]), Err(SelectError::NoModule { column: 7 }));
}

#[test]
fn a_module_that_is_not_there_is_waited_for() {
    for word in ["f:mod:xfs", "*:mod:xfs", "!f:mod:xf*", "f@x.c:mod:xfs", "f#2:mod:xfs"] {
        assert_eq!(taken(word, &ROWS), Ok((Selection::Pending, Vec::new())), "{word}");
    }
    let later = [("f", Some("xfs"), None, 0x10)];
    assert_eq!(taken("f:mod:xfs", &later), Ok((Selection::Functions(1), Vec::from([0]))));
    assert_eq!(taken("f:mod:", &ROWS[..9]), Ok((Selection::Pending, Vec::new())), "no module at all");
}

#[test]
fn the_better_rank_wins() {
    let rows: [Row; 4] = [
        ("foo.llvm.1", None, None, 0x10),
        ("foo", None, None, 0x20),
        ("foo.llvm.2", None, None, 0x30),
        ("foo.cold", None, None, 0x40),
    ];
    assert_eq!(taken("foo", &rows).unwrap().1, [1]);
    assert_eq!(taken("foo.cold", &rows).unwrap().1, [3]);
    assert_eq!(taken("foo.llvm.*", &rows).unwrap().1, [0, 2]);
    assert_eq!(taken("foo*", &rows).unwrap().1, [0, 1, 2, 3]);
    let without = [rows[0], rows[2], rows[3]];
    assert_eq!(taken("foo", &without), Err(SelectError::Ambiguous { column: 0, count: 2 }));
    assert_eq!(taken("foo#2", &without).unwrap().1, [1]);
}

#[test]
fn candidates_are_numbered_as_copies_are() {
    assert_eq!(
        listed("id_show", &ROWS),
        [
            "#1 id_show drivers/core/a.c 0x30",
            "#2 id_show drivers/core/bus.c 0x40",
            "#3 id_show [ext4] fs/ext4/sysfs.c 0x90",
        ]
    );
    assert_eq!(listed("vmlinux:id_show#9", &ROWS).len(), 2);
    assert_eq!(listed("do_open", &ROWS), ["do_open.isra.0 0x50", "do_open.part.1 0x60"]);
    assert_eq!(listed("vfs_read.isra.0", &ROWS), ["vfs_read fs/read_write.c 0x10"]);
    assert_eq!(listed("vfs_open", &ROWS), [""; 0]);
    assert_eq!(listed("do_ope[n]", &ROWS), [""; 0]);
    assert_eq!(listed("13", &ROWS), [""; 0]);
}

#[cfg(feature = "symbols")]
#[test]
fn rust_functions_are_taken_as_people_write_them() {
    let rows: [Row; 8] = [
        ("_RINvCshp5d4tyNz3J_1r6helperlEB2_", None, None, 0x10),
        ("_RINvCshp5d4tyNz3J_1r6helpermEB2_", None, None, 0x20),
        ("_RNvCshp5d4tyNz3J_1r3run", None, None, 0x30),
        ("_RNvXCshp5d4tyNz3J_1rNtB2_1SNtB2_2Tr2go", None, None, 0x40),
        ("_ZN6kernel5sched4pick17h0123456789abcdefE", None, None, 0x50),
        ("_ZN6kernel5sched4pick17hfedcba9876543210E", None, None, 0x60),
        ("_ZN37_$LT$$u5b$T$u5d$$u20$as$u20$r..Tr$GT$2go17h0123456789abcdefE", None, None, 0x70),
        ("vfs_read", None, None, 0x80),
    ];
    for (word, expected) in [
        ("r::run", Ok(&[2][..])),
        ("r::helper::<i32>", Ok(&[0])),
        ("r::helper", Err(SelectError::Ambiguous { column: 0, count: 2 })),
        ("r::helper#2", Ok(&[1])),
        ("r::helper#*", Ok(&[0, 1])),
        ("r::helpe[r]", Ok(&[0, 1])),
        ("<r::S as r::Tr>::go", Ok(&[3])),
        ("r::S::go", Ok(&[3])),
        ("<* as r::Tr>::go", Ok(&[3, 6])),
        ("<[T] as r::Tr>::go", Ok(&[6])),
        ("<\\[T] as *>*", Ok(&[6])),
        ("kernel::sched::pick", Err(SelectError::Ambiguous { column: 0, count: 2 })),
        ("kernel::sched::pick::hfedcba9876543210", Ok(&[5])),
        ("kernel::*", Ok(&[4, 5])),
        ("_ZN6kernel5sched4pick17hfedcba9876543210E", Ok(&[5])),
        ("_R*", Ok(&[0, 1, 2, 3])),
        ("*::*", Ok(&[0, 1, 2, 3, 4, 5, 6])),
    ] {
        assert_eq!(taken(word, &rows).map(|taken| taken.1), expected.map(Vec::from), "{word}");
    }
    assert_eq!(listed("r::helper", &rows), ["#1 r::helper::<i32> 0x10", "#2 r::helper::<u32> 0x20"]);
}

#[test]
fn garbage_takes_what_a_plain_search_takes() {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let rows: [Row; 7] = [
        ("a", None, None, 1),
        ("b", None, Some("go"), 2),
        ("a", Some("ext4"), Some("a/b"), 3),
        ("go", Some("a"), None, 4),
        ("a.llvm.1", Some("b"), None, 5),
        ("ab", None, None, 6),
        ("_RNvC1r1S", Some("ext4"), None, 7),
    ];
    let (mut some, mut none) = (0, 0);
    for _ in 0..if cfg!(miri) { 300 } else { 40_000 } {
        let text = crate::filter_text::tests::garbage(&mut seed, 7);
        for line in words(&text).filter_map(Result::ok) {
            let mut indices = Vec::new();
            match select(&line, &Table(&rows), &mut |index| indices.push(index)) {
                Ok(selection) => {
                    let count = if selection == Selection::Pending { 0 } else { indices.len() };
                    let expected = if let Selection::Functions(count) = selection { count } else { 0 };
                    assert_eq!(count, expected, "{text:?}");
                    assert!(
                        indices.is_sorted_by(|a, b| a < b) && indices.iter().all(|&index| index < 7),
                        "{text:?}"
                    );
                    if let Target::Name(target) = line.target
                        && target.module == ModuleScope::Everywhere
                        && target.file.is_none()
                        && !target.name.pattern.is_exact()
                        && matches!(target.copies, Copies::Unstated | Copies::All)
                    {
                        let plainly = |row: &Row| {
                            let short = row.0.strip_suffix(".llvm.1").unwrap_or(row.0);
                            let path = if cfg!(feature = "symbols") && row.0 == "_RNvC1r1S" {
                                "r::S"
                            } else {
                                row.0
                            };
                            [row.0, short, path].iter().any(|name| target.name.pattern.matches(name))
                        };
                        let expected: Vec<_> = (0..7).filter(|&index| plainly(&rows[index])).collect();
                        assert_eq!(indices, expected, "{text:?}");
                    }
                    some += 1;
                }
                Err(error) => {
                    none += 1;
                    assert!(indices.is_empty() && text.is_char_boundary(error.column()), "{text:?}: {error}");
                }
            }
            candidates(&line, &Table(&rows), &mut |candidate| assert!(candidate.index < 7));
        }
    }
    assert!(some > 1_000 && none > 1_000 || cfg!(miri), "{some} took something, {none} did not");
}
