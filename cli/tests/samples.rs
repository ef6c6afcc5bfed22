//! Real compilers' files. They are not part of the repository; a clone without them says so and passes.
//! `FGRAPH_SAMPLES` names their folder; it has a folder `elf`.

use std::fs;
use std::path::PathBuf;

use fgraph_cli::image::{Image, Machine};
use fgraph_cli::sites::Listing;

fn samples() -> Option<PathBuf> {
    let beside = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/samples"));
    let folder = std::env::var_os("FGRAPH_SAMPLES").map_or(beside, PathBuf::from).join("elf");
    if folder.is_dir() {
        return Some(folder);
    }
    println!("skipped: no folder {}; FGRAPH_SAMPLES can name another", folder.display());
    None
}

/// The sites of a file: raw name of the function and distance from its start.
fn sites(bytes: &[u8]) -> Vec<(String, i64)> {
    let image = Image::parse(bytes).unwrap();
    let listing = Listing::new(&image).unwrap();
    assert_eq!((listing.zeros, listing.duplicates.len()), (0, 0));
    let owner = |site: &fgraph_cli::sites::Site<'_>| site.function.map(|(f, at)| (f.name.to_owned(), at));
    listing.sites.iter().map(|site| owner(site).expect("each site has a function")).collect()
}

#[test]
fn every_layout_of_a_record_leads_to_its_function() {
    let Some(folder) = samples() else { return };
    // Of each file: how many sites, and how often a record points how far behind its function's start.
    let cases: &[(&str, &[(i64, usize)])] = &[
        ("rs-a64-pfe2.o", &[(0, 8)]),
        ("rs-a64-pfe2-bti.o", &[(0, 1), (4, 7)]),
        ("rs-a64-pfe4_2-v0.o", &[(-8, 8)]),
        ("rs-a64-pfe4_2-bti.o", &[(-8, 8)]),
        ("rs-x64-pfe5-v0.o", &[(0, 8)]),
        ("rs-x64-pfe16_11-ibt.o", &[(-11, 8)]),
        ("x64-pfe5.o", &[(0, 12)]),
        ("x64-pfe5-sections.o", &[(0, 12)]),
        ("x64-pfe5-comdat.o", &[(0, 4)]),
        ("x64-pfe16_11.o", &[(-11, 12)]),
        ("x64-fentry-record.o", &[(0, 12)]),
        ("x64-linked-gc.elf", &[(0, 12)]),
    ];
    for (file, expected) in cases {
        let sites = sites(&fs::read(folder.join(file)).unwrap());
        for (distance, count) in *expected {
            let found = sites.iter().filter(|site| site.1 == *distance).count();
            assert_eq!(found, *count, "{file}: sites at {distance}");
        }
        assert_eq!(sites.len(), expected.iter().map(|case| case.1).sum::<usize>(), "{file}");
        let mut names: Vec<_> = sites.iter().map(|site| &site.0).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), sites.len(), "{file}: each site has a function of its own");
    }
}

#[test]
fn a_function_that_is_only_called_directly_has_no_landing_pad() {
    let Some(folder) = samples() else { return };
    let bytes = fs::read(folder.join("rs-a64-pfe2-bti.o")).unwrap();
    let sites = sites(&bytes);
    assert!(sites.contains(&("_RINvCshp5d4tyNz3J_1r6helperlEB2_".into(), 0)));
    assert!(sites.contains(&("ret_int".into(), 4)));
    assert_eq!(Image::parse(&bytes).unwrap().machine, Machine::Arm64);
}

#[test]
fn the_linked_sample_is_unsorted_and_found_at_both_ends() {
    let Some(folder) = samples() else { return };
    let bytes = fs::read(folder.join("x64-linked-gc.elf")).unwrap();
    let image = Image::parse(&bytes).unwrap();
    let listing = Listing::new(&image).unwrap();
    assert_eq!(listing.descents, 1);
    let at = |address: u64| {
        let site = listing.sites.iter().find(|site| site.word.value == address).unwrap();
        site.function.unwrap().0.name
    };
    assert_eq!((at(0x40_1000), at(0x40_10e0)), ("cold_fn", "never"));
    let without: Vec<_> = listing.without_site.iter().map(|function| function.name).collect();
    assert_eq!(without, [""; 0]);
}

#[test]
fn cut_samples_never_panic() {
    let Some(folder) = samples() else { return };
    for entry in fs::read_dir(folder).unwrap() {
        let bytes = fs::read(entry.unwrap().path()).unwrap();
        for length in (0..bytes.len()).step_by(131).chain(0..256) {
            if let Ok(image) = Image::parse(bytes.get(..length).unwrap_or(&bytes)) {
                let _ = Listing::new(&image);
            }
        }
    }
}
