//! What `init` makes of good, odd and broken site tables, on both machines. When it refuses, no byte of text may have changed.

use std::vec::Vec;

use super::Error;
use super::image::{Begin, Image, Target, for_both_machines, functions, init, new_engine, target};
use crate::addr::SiteAddr;
use crate::filter::Filter;
use crate::machine::{Code, Layouts};
use crate::ops::{Ops, OpsFlags};
use crate::platform::TextWriteError;
use crate::site::{Flavor, SiteError, SiteReport, SiteSource};
use crate::testing::{Random, keep, kernel};

fn image<T: Target>() -> Image {
    Image::new::<T>(7, &mut Random::new(11))
}

/// `init` with this table must fail like this, and leave everything alone.
fn refused<T: Target>(case: &str, image: &Image, entries: Vec<usize>, states: usize, expected: Error) {
    let before = kernel::text();
    let engine = new_engine::<T>();
    let source = image.source(entries, states);
    assert_eq!(init(engine, source, image.trampolines), Err(expected), "{case}");
    kernel::with(|kernel| assert!(kernel.writes.is_empty(), "{case}: {:?}", kernel.writes));
    assert_eq!(kernel::text(), before, "{case}");
    assert_eq!(
        expected.site().is_some(),
        matches!(expected, Error::Sites(SiteError::UnexpectedBytes { .. } | SiteError::Unreadable { .. }))
    );

    let ops = keep(Ops::new(|_, _, _, _| {}, OpsFlags::empty(), Filter::ALL));
    assert_eq!(engine.register_ops(ops), Err(Error::NotInitialised), "{case}");
    assert!(!engine.has_ops(ops) && !engine.is_stopped(), "{case}");
    let again = image.source(image.entries(), 100);
    assert_eq!(init(engine, again, image.trampolines), Err(Error::AlreadyInitialised), "{case}");
    assert_eq!((engine.stats(), kernel::text()), (Default::default(), before), "{case}");
}

fn no_sites(report: SiteReport) -> Error {
    Error::Sites(SiteError::NoSites { report })
}

fn tables_without_a_site_are_refused<T: Target>() {
    let image = image::<T>();
    image.boot::<T>();
    let notrace: Vec<usize> = image.functions.iter().filter(|f| f.notrace).map(|f| f.entry).collect();
    let (start, end) = (image.base, image.text().end);
    let outside = vec![start - 16, end, end - T::MIN_SITE + T::ALIGN, usize::MAX - 15, 16];
    for (case, entries, report) in [
        ("empty", vec![], SiteReport::default()),
        ("zeros", vec![0; 4], SiteReport { empty: 4, ..SiteReport::default() }),
        ("ones", vec![usize::MAX; 2], SiteReport { empty: 2, ..SiteReport::default() }),
        ("notrace", notrace, SiteReport { notrace: 3, ..SiteReport::default() }),
        ("outside", outside, SiteReport { outside: 5, unsorted: true, ..SiteReport::default() }),
    ] {
        refused::<T>(case, &image, entries, 10, no_sites(report));
    }
}

fn an_odd_table_is_sorted_out_and_counted<T: Target>() {
    let image = image::<T>();
    image.boot::<T>();
    let (start, end) = (image.base, image.text().end);
    let mut entries = image.entries();
    entries.reverse();
    entries.extend([
        0,
        usize::MAX,
        0,
        image.functions[2].entry,
        image.functions[2].entry,
        image.functions[9].entry,
    ]);
    entries.extend([start - T::ALIGN, end, end - T::MIN_SITE + T::ALIGN, 8, usize::MAX - 3]);
    let mut outside = 5;
    if T::ALIGN > 1 {
        entries.extend([image.functions[1].entry + 1, image.functions[1].entry + 2]);
        outside += 2;
    }
    let engine = new_engine::<T>();
    let report = init(engine, image.source(entries, image.functions.len()), image.trampolines);
    let landing_pads = image.landing_pads();
    let should =
        SiteReport { sites: 7, notrace: 3, empty: 3, duplicates: 3, outside, landing_pads, unsorted: true };
    assert_eq!(report, Ok(should));
    assert_eq!(kernel::text(), image.text_with::<T>(|_| Flavor::Off));
    let funcs: Vec<usize> = functions(engine).iter().map(|func| func.get()).collect();
    assert_eq!(funcs, image.traceable().map(|function| function.addr).collect::<Vec<_>>());
    let stats = engine.stats();
    assert_eq!((stats.sites, stats.patched, stats.notrace), (7, 0, 3));
    for function in &image.functions {
        let should = (!function.notrace).then_some(Flavor::Off);
        assert_eq!(target(engine, function), should);
        assert_eq!(engine.target_of(SiteAddr::new(function.site + 1)), None);
    }
    let again = image.source(image.entries(), 100);
    assert_eq!(init(engine, again, image.trampolines), Err(Error::AlreadyInitialised));
}

fn a_sorted_table_is_reported_as_such<T: Target>() {
    let image = image::<T>();
    image.boot::<T>();
    let source = image.source(image.entries(), 10);
    let report = init(new_engine::<T>(), source, image.trampolines);
    let landing_pads = image.landing_pads();
    assert_eq!(report, Ok(SiteReport { sites: 7, notrace: 3, landing_pads, ..SiteReport::default() }));
}

fn the_last_sled_may_end_where_the_text_does<T: Target>() {
    let mut image = image::<T>();
    let last = image.functions.last().expect("a function").clone();
    assert!(!last.notrace);
    image.bytes.truncate(last.sled_range().end - image.base);
    image.boot::<T>();
    let source = image.source(image.entries(), 10);
    let report = init(new_engine::<T>(), source, image.trampolines).expect("a good image");
    assert_eq!((report.sites, report.outside), (7, 0));
}

fn too_few_state_words_are_refused<T: Target>() {
    let image = image::<T>();
    image.boot::<T>();
    let mut entries = image.entries();
    // What falls away needs no state.
    entries.extend([0, 0, entries[4]]);
    for states in [0, 1, 9] {
        let expected = Error::Sites(SiteError::NoRoom { entries: 10, states });
        refused::<T>("too few", &image, entries.clone(), states, expected);
    }
    assert!(init(new_engine::<T>(), image.source(entries, 10), image.trampolines).is_ok());
}

fn a_notrace_range_must_be_part_of_the_text<T: Target>() {
    let good = image::<T>();
    let text = good.text();
    for (case, notrace) in [
        ("empty", text.start..text.start),
        ("backwards", text.start + 32..text.start + 16),
        ("begins before the text", text.start - 16..text.start + 16),
        ("ends behind the text", text.start..text.end + 16),
        ("elsewhere", 0x1000..0x2000),
    ] {
        let image = Image { notrace: notrace.clone(), ..good.clone() };
        image.boot::<T>();
        let expected = SiteError::NoNotraceRange { start: notrace.start, end: notrace.end };
        refused::<T>(case, &image, image.entries(), 10, Error::Sites(expected));
    }
}

fn unexpected_bytes_at_any_site_are_told_and_nothing_is_written<T: Target>() {
    let image = image::<T>();
    for function in image.traceable() {
        let site = SiteAddr::new(function.entry);
        for found in T::NO_SLEDS {
            image.boot::<T>();
            // A prefix, a landing pad or a sled, in turn what comes first.
            kernel::poke(function.entry, found);
            let there = (image.text().end - function.entry).min(T::window(image.layouts())).min(16);
            let found = kernel::with(|kernel| Code::new(kernel.at(function.entry, there)));
            let expected = SiteError::UnexpectedBytes { site, expected: T::EXPECTED, found };
            refused::<T>("unexpected bytes", &image, image.entries(), 10, Error::Sites(expected));
        }
        image.boot::<T>();
        let last = function.sled_range().end - 1;
        kernel::with(|kernel| kernel.unreadable.push(last..last + 1));
        let expected = SiteError::Unreadable { site };
        refused::<T>("unreadable", &image, image.entries(), 10, Error::Sites(expected));
    }
}

/// Whether sites have prefixes or not, an image may say that functions are known by symbols: then they must be.
fn a_site_of_no_known_function_is_refused<T: Target>() {
    let image = image::<T>();
    let first = image.traceable().next().expect("a function");
    image.boot::<T>();
    let source = |is_function| {
        let source = image.source(image.entries(), 10);
        SiteSource { layouts: Layouts::Mixed(is_function), ..source }
    };
    let refused = init(new_engine::<T>(), source(|_| false), image.trampolines);
    let site = SiteAddr::new(first.entry);
    assert_eq!(refused, Err(Error::Sites(SiteError::NoFunction { site })));
    image.boot::<T>();
    let report = init(new_engine::<T>(), source(|_| true), image.trampolines);
    assert_eq!(report.map(|report| report.sites), Ok(7));
}

/// A record of a prefixed site leads to its prefix, which may well look like the sled of a plain one.
fn records_that_name_padding_are_refused<T: Target>() {
    let image = image::<T>();
    image.boot::<T>();
    let source = SiteSource { layouts: Layouts::Plain, ..image.source(image.entries(), 10) };
    let report = init(new_engine::<T>(), source, image.trampolines);
    let is_prefixed = matches!(image.layouts(), Layouts::Prefixed);
    let refused = matches!(report, Err(Error::Sites(_)));
    assert_eq!(refused, is_prefixed, "{report:?}");
    kernel::with(|kernel| assert!(!refused || kernel.writes.is_empty()));
}

fn what_is_in_the_notrace_range_need_not_be_understood<T: Target>() {
    let image = image::<T>();
    for found in T::NO_SLEDS {
        image.boot::<T>();
        for function in image.functions.iter().filter(|function| function.notrace) {
            kernel::poke(function.entry, found);
        }
        let hole = image.functions.iter().find(|function| function.notrace).expect("a function").entry;
        kernel::with(|kernel| kernel.unreadable.push(hole..hole + 1));
        let report = init(new_engine::<T>(), image.source(image.entries(), 10), image.trampolines);
        assert_eq!(report.map(|report| (report.sites, report.notrace)), Ok((7, 3)));
    }
}

/// Two entries nearer to each other than a sled: patching one would destroy the other.
fn sites_that_overlap_are_refused<T: Target>() {
    let mut image = image::<T>();
    let begins = T::begins();
    let equal = |sled: &&Begin| sled.sled[..T::ALIGN] == sled.sled[T::ALIGN..][..T::ALIGN];
    let begin = begins.iter().rfind(equal).expect("a sled of equal instructions");
    // As near as a table can have them.
    let step = if begin.prefix.is_empty() { T::ALIGN } else { 8 };
    let nop = &begin.sled[..T::ALIGN];
    let end = image.text().end;
    let len = begin.prefix.len() + begin.sled.len() + step;
    image.bytes.extend(nop.iter().cycle().take(len));
    image.boot::<T>();
    let refused = init(new_engine::<T>(), image.source(vec![end, end + step], 2), image.trampolines);
    let site = SiteAddr::new(end + begin.prefix.len());
    let other = SiteAddr::new(end + begin.prefix.len() + step);
    assert_eq!(refused, Err(Error::Sites(SiteError::Overlapping { site, other })));
    assert_eq!(kernel::text(), image.bytes);
}

fn a_failing_write_at_any_site_stops_the_tracer<T: Target>() {
    let image = image::<T>();
    image.boot::<T>();
    init(new_engine::<T>(), image.source(image.entries(), 10), image.trampolines).expect("a good image");
    let writes = kernel::with(|kernel| kernel.writes.clone());
    assert!(!writes.is_empty());
    for (left, write) in writes.iter().enumerate() {
        image.boot::<T>();
        kernel::with(|kernel| kernel.writes_left = Some(left));
        let engine = new_engine::<T>();
        let error = TextWriteError { addr: write.addr, len: write.bytes.len() };
        let refused = init(engine, image.source(image.entries(), 10), image.trampolines);
        assert_eq!(refused, Err(Error::Write(error)));
        assert!(engine.is_stopped());
        let ops = keep(Ops::new(|_, _, _, _| {}, OpsFlags::empty(), Filter::ALL));
        assert_eq!(engine.register_ops(ops), Err(Error::Stopped));
    }
}

fn an_engine_that_was_not_initialised_registers_nobody<T: Target>() {
    let image = image::<T>();
    image.boot::<T>();
    let engine = new_engine::<T>();
    let ops = keep(Ops::new(|_, _, _, _| {}, OpsFlags::empty(), Filter::ALL));
    assert_eq!(engine.register_ops(ops), Err(Error::NotInitialised));
    assert_eq!(engine.unregister_ops(ops), Err(Error::NotRegistered));
    assert_eq!((functions(engine).len(), engine.target_of(SiteAddr::new(image.base))), (0, None));
    assert_eq!(kernel::text(), image.bytes);
}

for_both_machines! {
    tables_without_a_site_are_refused
    an_odd_table_is_sorted_out_and_counted
    a_sorted_table_is_reported_as_such
    the_last_sled_may_end_where_the_text_does
    too_few_state_words_are_refused
    a_notrace_range_must_be_part_of_the_text
    unexpected_bytes_at_any_site_are_told_and_nothing_is_written
    a_site_of_no_known_function_is_refused
    records_that_name_padding_are_refused
    what_is_in_the_notrace_range_need_not_be_understood
    sites_that_overlap_are_refused
    a_failing_write_at_any_site_stops_the_tracer
    an_engine_that_was_not_initialised_registers_nobody
}
