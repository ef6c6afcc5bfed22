//! Each way in which an image can be wrong is found, and a right one is not accused.

mod common;

use common::{DATA, Kernel, OWN, TABLE, TEXT, function, mark};
use fgraph::symbols::SymbolsError;
use fgraph_cli::Error;
use fgraph_cli::check::{Finding, LandingPads, Report, Symbols, check, is_own};
use fgraph_cli::embed::embed;
use fgraph_cli::image::Image;
use fgraph_cli::sites::{Listing, Names, TableError};
use object::elf;

/// The report about a kernel that has had its names embedded.
fn report(kernel: &Kernel) -> Report {
    let mut file = kernel.build();
    embed(&mut file).unwrap();
    check(&Image::parse(&file).unwrap(), Symbols::Expected, &LandingPads::Ignored).unwrap()
}

#[test]
fn a_good_kernel_has_no_findings() {
    for relocated in [false, true] {
        let report = report(&Kernel { relocated, ..Kernel::good() });
        assert_eq!(report.findings, []);
        assert_eq!((report.sites, report.notrace, report.names), (3, 1, 4));
        assert!(
            report
                .text(&"k")
                .starts_with("k: ok: sites: 3, of them in the notrace range 1; function names: 4")
        );
    }
}

#[test]
fn each_defect_of_the_sites_is_found() {
    let good = Kernel::good;
    let place = |offset: u64| format!("{:#x}", TEXT + offset);
    let bare =
        Kernel { table: None, ..good() }.without("__fgraph_sites_start").without("__fgraph_sites_stop");
    let arm64 = Kernel { machine: elf::EM_AARCH64, ..good() };
    let cases = [
        ("no table", bare, Finding::Table(TableError::Missing)),
        ("empty table", good().with_table(&[]), Finding::NoSites),
        (
            "one mark",
            good().without("__fgraph_sites_stop"),
            Finding::Table(TableError::OneMark(Some(TABLE), None)),
        ),
        (
            "marks that run backwards",
            good().moved("__fgraph_sites_stop", TABLE - 8),
            Finding::Table(TableError::Range(TABLE, TABLE - 8)),
        ),
        (
            "half an entry",
            good().moved("__fgraph_sites_stop", TABLE + 12),
            Finding::Table(TableError::Range(TABLE, TABLE + 12)),
        ),
        (
            "marks around nothing",
            good().moved("__fgraph_sites_stop", TABLE + 0x80_0000),
            Finding::Table(TableError::NotInFile(TABLE, TABLE + 0x80_0000)),
        ),
        (
            "no notrace range",
            good().without("__fgraph_text_start").without("__fgraph_text_stop").without(OWN),
            Finding::NotraceMissing(None, None),
        ),
        (
            "half a notrace range",
            good().without("__fgraph_text_start").without(OWN),
            Finding::NotraceMissing(None, Some(TEXT + 0x300)),
        ),
        (
            "empty notrace range",
            good().moved("__fgraph_text_stop", TEXT + 0x200).without(OWN),
            Finding::NotraceEmpty(TEXT + 0x200, TEXT + 0x200),
        ),
        ("zero", good().with_table(&[TEXT + 0x10, 0, 0]), Finding::ZeroEntries(2)),
        (
            "duplicate",
            good().with_table(&[TEXT + 0x10, TEXT + 0x40, TEXT + 0x10, TEXT + 0x10]),
            Finding::Duplicates(vec![place(0x10)]),
        ),
        (
            "outside code",
            good().with_table(&[TEXT + 0x10, TEXT + 0x400, DATA, u64::MAX]),
            Finding::OutsideCode(vec![place(0x400), format!("{DATA:#x}"), format!("{:#x}", u64::MAX)]),
        ),
        ("misaligned", arm64.with_table(&[TEXT + 0x10, TEXT + 0x42]), Finding::Misaligned(vec![place(0x42)])),
        (
            "the tracer itself",
            good().moved("__fgraph_text_start", TEXT + 0x280),
            Finding::OwnFunctions(vec![format!("{}  <fgraph::shadow::Shadow>::push", place(0x200))]),
        ),
    ];
    for (case, kernel, expected) in cases {
        let report = report(&kernel);
        assert_eq!(report.findings, [expected], "{case}");
        let text = report.text(&"k");
        assert!(text.starts_with("k: 1 finding: "), "{case}: {text}");
    }
}

#[test]
fn unsorted_sites_are_fine() {
    let report = report(&Kernel::good().with_table(&[TEXT + 0x200, TEXT + 0x10, TEXT + 0x44]));
    assert_eq!(report.findings, []);
}

#[test]
fn an_image_without_sites_is_told_which_flag_and_fragment() {
    for finding in [Finding::NoSites, Finding::Table(TableError::Missing)] {
        let text = finding.to_string();
        assert!(text.contains("-Zpatchable-function-entry") && text.contains("linker fragment"), "{text}");
    }
}

#[test]
fn each_defect_of_the_names_is_found() {
    let of = |file: &[u8], symbols| {
        check(&Image::parse(file).unwrap(), symbols, &LandingPads::Ignored).unwrap().findings
    };
    let empty = Kernel::good().build();
    assert_eq!(of(&empty, Symbols::Expected), [Finding::SymbolTable(SymbolsError::Empty { capacity: 4096 })]);
    assert_eq!(of(&empty, Symbols::Ignored), []);
    let none = Kernel { space: None, ..Kernel::good() }.build();
    assert_eq!(of(&none, Symbols::Expected), [Finding::NoSymbolSpace]);
    assert_eq!(of(&none, Symbols::Ignored), []);
    let other = Kernel { space: Some(vec![0xaa; 100]), ..Kernel::good() }.build();
    assert!(matches!(of(&other, Symbols::Expected)[..], [Finding::SymbolSpace(_)]));

    // The names of one image in another.
    let mut file = Kernel::good().build();
    embed(&mut file).unwrap();
    let space = Some(file[0x4000..0x5000].to_vec());
    for (case, kernel) in [
        ("one more", Kernel::good().with(function("new", 0x80, 8))),
        ("moved", Kernel::good().moved("main", TEXT + 0x14)),
        ("renamed", Kernel::good().without("main").with(function("mine", 0x10, 0x20))),
    ] {
        let stale = Kernel { space: space.clone(), ..kernel }.build();
        assert!(matches!(of(&stale, Symbols::Expected)[..], [Finding::SymbolsStale(4, _)]), "{case}");
    }
    file[0x4000 + 48] ^= 0xff;
    assert!(matches!(of(&file, Symbols::Expected)[..], [Finding::SymbolTable(_)]));
}

#[test]
fn only_linked_images_are_checked() {
    let object = Kernel { file_type: elf::ET_REL, ..Kernel::good() }.build();
    assert!(matches!(
        check(&Image::parse(&object).unwrap(), Symbols::Expected, &LandingPads::Ignored),
        Err(Error::NotLinked)
    ));
    let stripped = Kernel { with_symbol_table: false, ..Kernel::good() }.build();
    assert!(matches!(
        check(&Image::parse(&stripped).unwrap(), Symbols::Expected, &LandingPads::Ignored),
        Err(Error::NoSymbolTable)
    ));
}

#[test]
fn long_lists_are_cut() {
    let many = |count| Finding::Duplicates((0..count).map(|n| format!("{n:#x}")).collect());
    assert!(many(20).to_string().ends_with("0x13"));
    assert!(many(25).to_string().ends_with("and 5 more"));
}

#[test]
fn names_of_the_tracer_are_told_from_others() {
    for (name, expected) in [
        ("_RNvMNtCs1234_6fgraph6shadowNtB2_6Shadow4push", true),
        ("_RNvC6fgraph4push", true),
        ("_RNvCs_6fgraph4push", true),
        ("_RINvNtCs5x_4core3ptr13drop_in_placeNtCs1234_6fgraph4RingEB4_", true),
        ("_ZN6fgraph6shadow4push17h0123456789abcdefE", true),
        ("_ZN45_$LT$fgraph..Ring$u20$as$u20$core..fmt..Debug$GT$3fmt17h0123456789abcdefE", true),
        ("_ZN4core3ptr34drop_in_place$LT$fgraph..Ring$GT$17h0123456789abcdefE", true),
        ("_RNvNtCs1234_6kernel6fgraph4init", false),
        ("_RNvCs1234_16fgraph_something4init", false),
        ("_RNvCs1234_7fgraphs4init", false),
        ("_RNvCs1234_7kernel_6fgraph", false),
        ("_ZN6kernel6fgraph4init17h0123456789abcdefE", false),
        ("_ZN16fgraph_something4init17h0123456789abcdefE", false),
        ("_ZN40_$LT$myfgraph..Ring$u20$as$u20$core..X$GT$3fmt17h0123456789abcdefE", false),
        ("_ZN40_$LT$my_fgraph..Ring$u20$as$u20$core..X$GT$3fmt17h0123456789abcdefE", false),
        ("_ZN40_$LT$kernel..fgraph..Ring$u20$as$u20$core..X$GT$3fmt17h0123456789abcdefE", false),
        ("fgraph_return", false),
        ("not_6fgraph", false),
        ("", false),
    ] {
        assert_eq!(is_own(name), expected, "{name}");
    }
}

#[test]
fn the_listing_says_whose_site_it_is() {
    let kernel = Kernel::good()
        .with(function("prefixed", 0x90, 0x40))
        .with(function("no_size", 0x100, 0))
        .with_table(&[
            TEXT + 0x10,
            TEXT + 0x44,
            TEXT + 0x85,
            TEXT + 0x104,
            TEXT + 0x2c,
            TEXT + 0x3f0,
            DATA,
            0,
            TEXT + 0x200,
        ]);
    let file = kernel.build();
    let image = Image::parse(&file).unwrap();
    let listing = Listing::new(&image).unwrap();
    let functions: Vec<_> = listing
        .sites
        .iter()
        .map(|site| site.function.map(|(function, distance)| (function.name, distance)))
        .collect();
    assert_eq!(
        functions,
        [
            Some(("main", 0)),
            Some(("_RNvCshp5d4tyNz3J_1r7ret_big", 4)),
            Some(("prefixed", -0xb)),
            Some(("no_size", 4)),
            // Deep inside one function and close before another: a record points at an entry, so it is the
            // other's.
            Some(("_RNvCshp5d4tyNz3J_1r7ret_big", -0x14)),
            None,
            None,
            None,
            Some((OWN, 0)),
        ]
    );
    assert_eq!(listing.zeros, 1);
    assert_eq!(listing.descents, 2);
    assert_eq!(listing.without_site.iter().map(|function| function.name).collect::<Vec<_>>(), ["untraced"]);

    let text = listing.text(Names::Demangled);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[1], "0xffffffff81000044  90 90 90 90 90 90 90 90  r::ret_big+0x4");
    assert!(lines[2].ends_with("  prefixed-0xb"), "{text}");
    assert!(lines[5].ends_with("  ?"), "{text}");
    assert!(lines[6].ends_with("  (outside executable sections)"), "{text}");
    assert!(lines[7].ends_with("  (points nowhere)"), "{text}");
    assert!(lines[8].ends_with("push+0x0  notrace"), "{text}");
    assert_eq!(
        lines[9],
        "sites: 9, of them zero 1, duplicate 0, out of order 2, in the notrace range 1; functions without a site: 1"
    );
    assert!(listing.text(Names::Raw).contains("_RNvCshp5d4tyNz3J_1r7ret_big+0x4"));
}

#[test]
fn marks_win_over_the_section() {
    let kernel = Kernel::good()
        .without("__fgraph_sites_start")
        .without("__fgraph_sites_stop")
        .with(mark("__fgraph_sites_start", TABLE + 8))
        .with(mark("__fgraph_sites_stop", TABLE + 16));
    for (case, kernel, expected) in [
        ("marks", kernel.clone(), vec![TEXT + 0x44]),
        ("marks, relocated", Kernel { relocated: true, ..kernel.clone() }, vec![TEXT + 0x44]),
        (
            "section",
            kernel.without("__fgraph_sites_start").without("__fgraph_sites_stop"),
            vec![TEXT + 0x10, TEXT + 0x44, TEXT + 0x200],
        ),
    ] {
        let file = kernel.build();
        let image = Image::parse(&file).unwrap();
        let values: Vec<_> = Listing::new(&image).unwrap().sites.iter().map(|site| site.word.value).collect();
        assert_eq!(values, expected, "{case}");
    }
}

#[test]
fn landing_pads_cannot_be_told_without_relocations() {
    let mut file = Kernel::good().build();
    embed(&mut file).unwrap();
    let wants = LandingPads::Expected(Vec::new());
    let report = check(&Image::parse(&file).unwrap(), Symbols::Expected, &wants).unwrap();
    assert_eq!((report.findings, report.taken), (vec![Finding::NoRelocations], None));
}
