//! Blobs made by a writer, cut short, and damaged; and the names of compilers.

use super::*;

use std::string::{String, ToString};
use std::vec::Vec;

const BASE: u64 = 0xffff_ffff_8100_0000;

/// The plainest writer there can be; what goes in comes out, right or wrong.
pub(crate) fn blob(base: u64, entries: &[(u32, u32, &str)]) -> Vec<u8> {
    let strings: String = entries.iter().map(|entry| entry.2).collect();
    let mut bytes = Vec::from(layout::MAGIC);
    bytes.extend(layout::VERSION.to_le_bytes());
    bytes.extend(0_u32.to_le_bytes());
    bytes.extend(0_u64.to_le_bytes());
    bytes.extend(layout::blob_len(entries.len() as u32, strings.len() as u32).to_le_bytes());
    bytes.extend(base.to_le_bytes());
    bytes.extend((entries.len() as u32).to_le_bytes());
    bytes.extend((strings.len() as u32).to_le_bytes());
    bytes.extend(entries.iter().flat_map(|entry| entry.0.to_le_bytes()));
    bytes.extend(entries.iter().flat_map(|entry| entry.1.to_le_bytes()));
    let mut at = 0;
    for entry in entries {
        bytes.extend((at as u32).to_le_bytes());
        at += entry.2.len();
    }
    bytes.extend(strings.as_bytes());
    bytes
}

const SAMPLE: [(u32, u32, &str); 6] = [
    (0x10, 0x20, "first"),
    (0x30, 0x10, "shown"),
    (0x30, 0x18, "alias_longer"),
    (0x60, 0, "no_size"),
    (0x80, 0x10, "größe.llvm.123"),
    (0x90, 0x40, "_ZN6kernel5sched4pick17h0123456789abcdefE"),
];

#[test]
fn what_is_written_is_read_back() {
    let bytes = blob(BASE, &SAMPLE);
    let symbols = Symbols::parse(&bytes).unwrap();
    let read: Vec<_> =
        symbols.iter().map(|symbol| ((symbol.start - BASE) as u32, symbol.size, symbol.name)).collect();
    assert_eq!(read, SAMPLE);
    assert_eq!(symbols.len(), SAMPLE.len());
    let mut longer = bytes.clone();
    longer.extend([0xff; 100]);
    assert_eq!(Symbols::parse(&longer).unwrap().len(), SAMPLE.len(), "bytes behind the blob do not matter");
    assert!(Symbols::parse(&blob(BASE, &[])).unwrap().is_empty());
}

#[test]
fn an_address_finds_the_function_it_lies_in() {
    let bytes = blob(BASE, &SAMPLE);
    let symbols = Symbols::parse(&bytes).unwrap();
    for (case, addr, expected) in [
        ("below the base", BASE - 1, None),
        ("zero", 0, None),
        ("before the first", BASE + 0xf, None),
        ("first byte of the first", BASE + 0x10, Some(("first", 0))),
        ("last byte of the first", BASE + 0x2f, Some(("first", 0x1f))),
        ("of two names the first", BASE + 0x30, Some(("shown", 0))),
        ("inside both", BASE + 0x3f, Some(("shown", 0xf))),
        ("only the alias is that long", BASE + 0x40, Some(("alias_longer", 0x10))),
        ("gap", BASE + 0x48, None),
        ("start of one without a size", BASE + 0x60, Some(("no_size", 0))),
        ("behind the start of one without a size", BASE + 0x61, None),
        ("last byte of the last", BASE + 0xcf, Some((SAMPLE[5].2, 0x3f))),
        ("past the end", BASE + 0xd0, None),
        ("last address", u64::MAX, None),
    ] {
        let found = symbols.by_address(addr).map(|symbol| (symbol.name, symbol.offset));
        assert_eq!(found, expected, "{case}");
    }
}

#[test]
fn lookup_agrees_with_a_linear_search() {
    let names: Vec<String> = (0..300).map(|n| std::format!("f{n}")).collect();
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let mut start = 0;
    let entries: Vec<_> = names
        .iter()
        .map(|name| {
            start += random(4) as u32 * 8;
            (start, random(40) as u32, name.as_str())
        })
        .collect();
    let bytes = blob(BASE, &entries);
    let symbols = Symbols::parse(&bytes).unwrap();
    for addr in 0..start + 100 {
        let last = entries.iter().map(|entry| entry.0).filter(|start| *start <= addr).max();
        let expected = entries
            .iter()
            .find(|entry| Some(entry.0) == last && (entry.0 == addr || addr - entry.0 < entry.1))
            .map(|entry| entry.2);
        assert_eq!(symbols.by_address(BASE + u64::from(addr)).map(|symbol| symbol.name), expected, "{addr}");
    }
}

#[test]
fn a_moved_image_is_looked_up_where_it_runs() {
    let bytes = blob(BASE, &SAMPLE);
    for slide in [0x20_0000, 0x20_0000_u64.wrapping_neg(), 0u64.wrapping_sub(BASE)] {
        let symbols = Symbols::parse(&bytes).unwrap().with_slide(slide);
        let start = BASE.wrapping_add(slide).wrapping_add(0x10);
        let symbol = symbols.by_address(start + 4).unwrap();
        assert_eq!((symbol.start, symbol.name, symbol.offset), (start, "first", 4), "{slide:#x}");
        assert_eq!(symbols.iter().next().map(|symbol| symbol.start), Some(start), "{slide:#x}");
    }
}

#[test]
fn names_are_found_raw_and_demangled() {
    let entries = [
        (0, 8, "type_show"),
        (8, 8, "type_show"),
        (16, 8, "read_iter.llvm.3433979326929198294"),
        (24, 8, "both.llvm.1"),
        (32, 8, "both"),
        (40, 8, "both.cold"),
        (48, 8, "foo.constprop.0.isra.1"),
        (56, 8, "_ZN6kernel5sched4pick17h0123456789abcdefE"),
        (64, 8, "_RNvCshp5d4tyNz3J_1r7ret_big"),
    ];
    let bytes = blob(0, &entries);
    let symbols = Symbols::parse(&bytes).unwrap();
    let cases: &[(&str, &[u64])] = &[
        ("type_show", &[0, 8]),
        ("read_iter", &[16]),
        ("read_iter.llvm.3433979326929198294", &[16]),
        ("both", &[32]),
        ("both.cold", &[40]),
        ("foo", &[]),
        ("foo.constprop.0.isra.1", &[48]),
        ("kernel::sched::pick", &[56]),
        ("kernel::sched::pic", &[]),
        ("kernel::sched::pick2", &[]),
        ("_ZN6kernel5sched4pick17h0123456789abcdefE", &[56]),
        ("r::ret_big", &[64]),
        ("", &[]),
    ];
    for (name, expected) in cases {
        let found: Vec<u64> = symbols.by_name(name).map(|symbol| symbol.start).collect();
        assert_eq!(found, *expected, "{name}");
    }
}

#[test]
fn each_defect_has_its_own_error() {
    type Edit = fn(&mut Vec<u8>);
    let cases: &[(&str, Edit, SymbolsError)] = &[
        ("short", |b| b.truncate(47), SymbolsError::TooShort { have: 47 }),
        ("magic", |b| b[0] = b'X', SymbolsError::BadMagic(*b"XGSYMTAB")),
        ("version", |b| b[8] = 2, SymbolsError::Version(2)),
        ("flags", |b| b[12] = 4, SymbolsError::Flags(4)),
        ("cut", |b| b.truncate(205), SymbolsError::Truncated { length: 206, have: 205 }),
        ("length", |b| b[24] += 1, SymbolsError::LengthMismatch { length: 207, parts: 206 }),
        (
            "count",
            |b| b[43] = 0xff,
            SymbolsError::LengthMismatch { length: 206, parts: 206 + 12 * 0xff00_0000 },
        ),
        ("base", |b| b[32..40].fill(0xff), SymbolsError::AddressOverflow { index: 0, start: 0x10 }),
        ("order", |b| b[49] = 1, SymbolsError::Unsorted { index: 1, start: 0x30 }),
        ("name empty", |b| b[96 + 4] = 0, SymbolsError::NameRange { index: 0, offset: 0 }),
        ("name outside", |b| b[96 + 21] = 9, SymbolsError::NameRange { index: 4, offset: 29 }),
        ("split", |b| b[96 + 16] += 3, SymbolsError::NameSplitsCharacter { index: 3, offset: 22 }),
        ("not UTF-8", |b| b[120] = 0xff, SymbolsError::NotUtf8 { offset: 0 }),
    ];
    for (case, edit, expected) in cases {
        let mut bytes = blob(BASE, &SAMPLE);
        assert_eq!(bytes.len(), 206, "the edits count on this");
        edit(&mut bytes);
        let error = Symbols::parse(&bytes).unwrap_err();
        assert_eq!(error, *expected, "{case}");
        assert!(!error.to_string().is_empty(), "{case}");
    }
}

/// Uses everything that a parsed table offers.
fn exercise(symbols: &Symbols<'_>) {
    for symbol in *symbols {
        for addr in [symbol.start, symbol.start.wrapping_add(3), symbol.start.wrapping_sub(1)] {
            let _ = symbols.by_address(addr);
        }
        assert!(symbols.by_address(symbol.start).is_some(), "each start is found");
        assert!(symbols.by_name(symbol.name).any(|found| found.start == symbol.start));
    }
    assert_eq!(symbols.iter().count(), symbols.len(), "no entry of a checked table is unreadable");
}

#[test]
fn truncation_anywhere_is_an_error() {
    let bytes = blob(BASE, &SAMPLE);
    for length in 0..bytes.len() {
        assert!(Symbols::parse(&bytes[..length]).is_err(), "{length} bytes");
    }
}

#[test]
fn any_byte_may_have_any_value() {
    let mut bytes = blob(BASE, &SAMPLE);
    for index in 0..bytes.len() {
        let right = bytes[index];
        for value in 0..=u8::MAX {
            bytes[index] = value;
            if let Ok(symbols) = Symbols::parse(&bytes) {
                exercise(&symbols);
            }
        }
        bytes[index] = right;
    }
}

#[test]
fn demangling() {
    for (raw, expected) in [
        ("vfs_read", "vfs_read"),
        ("getname_flags.part.0", "getname_flags.part.0"),
        ("foo.isra.0.cold", "foo.isra.0.cold"),
        ("foo.llvm.123", "foo"),
        ("foo.llvm.3F@2", "foo"),
        ("foo.llvm.123.cold", "foo.cold"),
        ("foo.llvm.", "foo.llvm."),
        ("foo.llvm.bar", "foo.llvm.bar"),
        (".llvm.1", ".llvm.1"),
        ("_RNvCshp5d4tyNz3J_1r7ret_big", "r::ret_big"),
        ("_RINvCshp5d4tyNz3J_1r6helperlEB2_", "r::helper::<i32>"),
        ("_RNvXCshp5d4tyNz3J_1rNtB2_1SNtB2_2Tr2go", "<r::S as r::Tr>::go"),
        ("_RNvCshp5d4tyNz3J_1r7ret_big.isra.0", "r::ret_big.isra.0"),
        ("_RNvCshp5d4tyNz3J_1r7ret_big.llvm.77", "r::ret_big"),
        (
            "_ZN4core3ptr18real_drop_in_place17h11c589efaa8cb821E.constprop.0",
            "core::ptr::real_drop_in_place.constprop.0",
        ),
        (
            "_ZN3app4main28_$u7b$$u7b$closure$u7d$$u7d$17h0123456789abcdefE.llvm.10317035631373510462",
            "app::main::{{closure}}",
        ),
        (
            "_ZN45_$LT$fgraph..Ring$u20$as$u20$fgraph..Sink$GT$3put17h0123456789abcdefE",
            "<fgraph::Ring as fgraph::Sink>::put",
        ),
        // C++, which is not ours to demangle.
        ("_Z2twIiET_S0_", "_Z2twIiET_S0_"),
        ("_ZN3foo3barEv", "_ZN3foo3barEv"),
        // Without the underscore it is a C function, whatever it looks like.
        ("RNvCshp5d4tyNz3J_1r7ret_big", "RNvCshp5d4tyNz3J_1r7ret_big"),
        ("ZN4testE", "ZN4testE"),
        // Malformed.
        ("_RINvCshGpAVYOtgW1_1a1fRDG_INt", "_RINvCshGpAVYOtgW1_1a1fRDG_INt"),
        ("_R", "_R"),
        ("_RNvC", "_RNvC"),
        ("_ZN", "_ZN"),
        ("_ZN99fooE", "_ZN99fooE"),
        ("_ZN4test", "_ZN4test"),
        // A type that refers to itself: the demangler says so in the middle of the path.
        ("_RINvC1a1fRB7_E", "_RINvC1a1fRB7_E"),
        ("", ""),
    ] {
        assert_eq!(Demangled(raw).to_string(), expected, "{raw}");
        assert!(Demangled(raw) == *expected, "{raw}");
    }
}

/// A number as v0 names write it: digits stand for one less, none for 0, and an underscore ends it.
fn base_62(number: usize) -> String {
    const DIGITS: &[u8; 62] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    let mut text = Vec::from([b'_']);
    let mut rest = number.checked_sub(1);
    while let Some(value) = rest {
        text.insert(0, DIGITS[value % 62]);
        rest = (value >= 62).then_some(value / 62);
    }
    String::from_utf8(text).unwrap()
}

#[test]
fn a_name_of_endless_text_stays_raw() {
    // Each tuple holds the one before it twice, by reference: 2^40 integers in all.
    let mut bomb = String::from("_RIC1aTllE");
    let mut previous = 4;
    for _ in 0..39 {
        let here = bomb.len() - 2;
        let reference = base_62(previous);
        bomb.push_str(&std::format!("TB{reference}B{reference}E"));
        previous = here;
    }
    bomb.push('E');
    assert!(rustc_demangle::try_demangle(&bomb).is_ok(), "{bomb} is well-formed");
    assert_eq!(Demangled(&bomb).to_string(), bomb);
    let long = std::format!("_RNvC1a{}{}", 9000, "x".repeat(9000));
    assert_eq!(Demangled(&long).to_string(), long);
}

#[test]
fn cut_and_bent_names_never_panic() {
    for name in [
        "_RNvXCshp5d4tyNz3J_1rNtB2_1SNtB2_2Tr2go.llvm.12.cold",
        "_RINvCshp5d4tyNz3J_1r6helperlEB2_",
        "_ZN3app4main28_$u7b$$u7b$closure$u7d$$u7d$17h0123456789abcdefE.llvm.10317035631373510462",
    ] {
        for length in 0..=name.len() {
            let _ = Demangled(&name[..length]).to_string();
        }
        for index in 0..name.len() {
            for value in 0x20..0x7f_u8 {
                let mut bent = Vec::from(name);
                bent[index] = value;
                let bent = String::from_utf8(bent).unwrap();
                let text = Demangled(&bent).to_string();
                assert!(!text.contains("{invalid syntax}"), "{bent} became {text}");
            }
        }
    }
}

/// A table of files behind a blob: the names of the files, and for each entry its file.
pub(crate) fn files_table(names: &[&str], of: &[u32]) -> Vec<u8> {
    let strings = names.concat();
    let mut bytes = Vec::from(files::MAGIC);
    for word in [of.len() as u32, names.len() as u32, strings.len() as u32, 0] {
        bytes.extend(word.to_le_bytes());
    }
    let mut at = 0;
    for name in names {
        bytes.extend((at as u32).to_le_bytes());
        at += name.len();
    }
    bytes.extend(of.iter().flat_map(|file| file.to_le_bytes()));
    bytes.extend(strings.as_bytes());
    bytes
}

#[test]
fn files_stand_behind_the_blob() {
    let names = ["fs/read.rs", "größe.c"];
    let of = [0, 1, files::NO_FILE, 1, 0, 0];
    let mut bytes = blob(BASE, &SAMPLE);
    let bare = bytes.len();
    bytes.extend(files_table(&names, &of));
    let symbols = Symbols::parse(&bytes).unwrap();
    let read: Vec<_> = symbols.iter().map(|symbol| symbol.file).collect();
    let expected = of.map(|file| names.get(file as usize).copied());
    assert_eq!(read, expected);
    assert_eq!(symbols.by_address(BASE + 0x15).unwrap().file, Some("fs/read.rs"));
    // Cut short it is refused, or no such table any more; never a file that is not there.
    for len in bare..bytes.len() {
        match Symbols::parse(&bytes[..len]) {
            Ok(symbols) => {
                assert!(len < bare + files::HEADER_LEN, "{len}");
                assert!(symbols.iter().all(|symbol| symbol.file.is_none()));
            }
            Err(error) => assert!(matches!(error, SymbolsError::Files(_)), "{len}: {error}"),
        }
    }
    for index in bare..bytes.len() {
        for value in [0, 1, 2, 6, 0x7f, 0x80, 0xff] {
            let mut bent = bytes.clone();
            bent[index] = value;
            if let Ok(symbols) = Symbols::parse(&bent) {
                symbols.iter().for_each(|symbol| assert!(symbol.file.is_none_or(|file| !file.is_empty())));
            }
        }
    }
}

#[test]
fn damaged_files_are_refused_by_what_is_wrong() {
    use files::FilesError;
    for (case, table, error) in [
        ("entries", files_table(&["a"], &[0; 5]), FilesError::Entries { have: 5, want: 6 }),
        (
            "no such file",
            files_table(&["a"], &[0, 0, 1, 0, 0, 0]),
            FilesError::NoSuchFile { index: 2, file: 1 },
        ),
        ("empty name", files_table(&["a", ""], &[0; 6]), FilesError::Name { file: 1, offset: 1 }),
    ] {
        let mut bytes = blob(BASE, &SAMPLE);
        bytes.extend(table);
        assert_eq!(Symbols::parse(&bytes).unwrap_err(), SymbolsError::Files(error), "{case}");
    }
}

mod space {
    crate::symbol_space!(256);

    #[test]
    fn an_empty_space_says_what_to_run() {
        let error = symbols().unwrap_err();
        assert_eq!(error, super::SymbolsError::Empty { capacity: 256 });
        assert!(std::string::ToString::to_string(&error).contains("fgraph embed KERNEL"));
        assert_eq!(FGRAPH_SYMBOL_SPACE.bytes().as_ptr().align_offset(8), 0);
    }
}
