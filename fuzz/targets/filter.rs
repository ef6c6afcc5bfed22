//! The words of the filter files, and what they take from a small table.
//!
//! Whatever the text is: it is read without a panic, what is taken is there and in order, a refused word takes nothing, and every
//! error has a column within the text.
#![no_main]

use fgraph::FuncAddr;
use fgraph::filter_text::{Caret, FilterLine, ModuleScope, Target, words};
use fgraph::select::{FunctionTable, Selection, candidates, select};
use libfuzzer_sys::fuzz_target;

/// Name, module, file, address.
type Function = (&'static str, Option<&'static str>, Option<&'static str>, usize);

/// What the words are selected from: aliases, copies, suffixes, modules, files, and both manglings of Rust.
const TABLE: &[Function] = &[
    ("schedule", None, Some("kernel/sched/core.c"), 0x1000),
    ("vfs_read", None, Some("fs/read_write.c"), 0x1100),
    ("vfs_write", None, Some("fs/read_write.c"), 0x1200),
    ("__x64_sys_read", None, None, 0x1300),
    ("__se_sys_read", None, None, 0x1300),
    ("helper", None, Some("a.c"), 0x1400),
    ("helper", None, Some("b.c"), 0x1500),
    ("helper.llvm.123", None, None, 0x1600),
    ("once.llvm.77", None, None, 0x1700),
    ("copy.isra.0", None, None, 0x1800),
    ("copy.part.0.cold", None, None, 0x1900),
    ("traceoff", Some("odd"), None, 0x2000),
    ("ext4_read", Some("ext4"), Some("fs/ext4/file.c"), 0x2100),
    ("helper", Some("ext4"), None, 0x2200),
    ("_ZN4core3ptr13drop_in_place17h0123456789abcdefE", None, None, 0x3000),
    ("_RNvC6_123foo3bar", None, None, 0x3100),
    ("_RINvCs1234_7mycrate3fooNtB2_3BarE", Some("rust"), Some("lib.rs"), 0x3200),
    ("_RNvXs_Cs1234_7mycrateNtB4_3BarNtB4_5Trait2go", Some("rust"), None, 0x3300),
];

struct Table;

impl FunctionTable for Table {
    fn len(&self) -> usize {
        TABLE.len()
    }
    fn raw_name(&self, index: usize) -> &str {
        TABLE[index].0
    }
    fn module(&self, index: usize) -> Option<&str> {
        TABLE[index].1
    }
    fn file(&self, index: usize) -> Option<&str> {
        TABLE[index].2
    }
    fn addr(&self, index: usize) -> FuncAddr {
        FuncAddr::new(TABLE[index].3)
    }
}

fuzz_target!(|text: &str| {
    let mut last = 0;
    let mut count = 0;
    for word in words(text) {
        count += 1;
        match word {
            Ok(line) => {
                // Where it says, and in order.
                assert_eq!(text.get(line.column..line.column + line.text().len()), Some(line.text()));
                assert!(line.column >= last);
                last = line.column + line.text().len();
                look(text, &line);
            }
            Err(error) => {
                within(text, error.column());
                let _ = error.to_string();
            }
        }
    }
    if FilterLine::parse(text).is_ok() {
        assert_eq!(count, 1, "{text:?}");
    }
});

fn within(text: &str, column: usize) {
    assert!(column <= text.len() && text.is_char_boundary(column), "column {column} in {text:?}");
    let _ = Caret::new(text, column).to_string();
}

fn look(text: &str, line: &FilterLine<'_>) {
    // What is shown reads as what it was, but for where it stands.
    let shown = line.to_string();
    let again = FilterLine::parse(&shown).expect("a word that was read once");
    assert_eq!((again.remove, again.command.is_some()), (line.remove, line.command.is_some()));
    if let (Some(command), Some(same)) = (line.command, again.command) {
        assert_eq!(command.to_string(), same.to_string());
        within(text, command.column);
    }
    match line.target {
        Target::Index { column, .. } => within(text, column),
        Target::Name(name) => {
            within(text, name.name.column);
            if let ModuleScope::Loaded(part) | ModuleScope::WhenLoaded { module: part, .. } = name.module {
                within(text, part.column);
            }
        }
    }

    let mut taken = Vec::new();
    match select(line, &Table, &mut |index| taken.push(index)) {
        Ok(Selection::Functions(count)) => {
            assert!(count > 0 && count == taken.len(), "{shown:?}: {count}, {taken:?}");
            assert!(taken.is_sorted_by(|a, b| a < b), "{shown:?}: {taken:?}");
            assert!(taken.iter().all(|index| *index < TABLE.len()));
            // No function under two names.
            assert!(
                taken.windows(2).all(|pair| TABLE[pair[0]].3 != TABLE[pair[1]].3),
                "{shown:?}: {taken:?}"
            );
        }
        Ok(Selection::Pending) => assert!(taken.is_empty(), "{shown:?}"),
        Err(error) => {
            assert!(taken.is_empty(), "{shown:?}");
            within(text, error.column());
            let _ = error.to_string();
        }
    }
    let mut last = None;
    candidates(line, &Table, &mut |candidate| {
        assert!(candidate.index < TABLE.len() && last.is_none_or(|last| last < candidate.index));
        last = Some(candidate.index);
        let _ = candidate.to_string();
    });
}
