//! `fgraph check`: what is wrong with a linked kernel before it runs, because nothing says so when it does.

use std::fmt::{self, Write};

use fgraph::symbols::layout::SECTION;
use fgraph::symbols::{Demangled, Symbols as Table, SymbolsError};

use crate::image::Image;
use crate::sites::{Listing, NOTRACE_MARKS, TABLE_MARKS, TableError, notrace_range};
use crate::{Error, blob, embed, files, pads};

/// Of what can be many, this many are listed.
const SHOWN: usize = 20;

/// Whether function names are expected in the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symbols {
    /// Their absence is a finding.
    Expected,
    /// The kernel goes without.
    Ignored,
}

/// Whether functions must begin with landing pads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LandingPads {
    /// It does not matter.
    Ignored,
    /// All whose address is taken must, but these, which are reached by no indirect call or jump.
    Expected(Vec<String>),
}

/// Something that is wrong with an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// There is a table of sites, and it is empty.
    NoSites,
    /// There is no table of sites that can be read.
    Table(TableError),
    /// The range that is never patched has no start or no stop: their values.
    NotraceMissing(Option<u64>, Option<u64>),
    /// The range that is never patched is empty or runs backwards: start and stop.
    NotraceEmpty(u64, u64),
    /// Entries of the table that are zero or undefined: how many.
    ZeroEntries(usize),
    /// Places that several entries point at.
    Duplicates(Vec<String>),
    /// Entries that do not point into executable sections.
    OutsideCode(Vec<String>),
    /// Entries where no instruction of this machine can start.
    Misaligned(Vec<String>),
    /// Functions of the tracer itself that could be patched.
    OwnFunctions(Vec<String>),
    /// Landing pads were asked for, and the image has no relocations that tell whose address is taken.
    NoRelocations,
    /// Functions whose address is taken, without a landing pad.
    NoLandingPad(Vec<String>),
    /// Functions that need no landing pad, as was said, but there is none of that name whose address is taken and that has no pad.
    NoSuchException(Vec<String>),
    /// The image has no space for function names.
    NoSymbolSpace,
    /// The space for function names cannot be used: why.
    SymbolSpace(String),
    /// The table of function names is empty or damaged.
    SymbolTable(SymbolsError),
    /// The table of function names is not that of this image: names it has, names the image has.
    SymbolsStale(usize, usize),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSites | Self::Table(TableError::Missing) => {
                let what = match self {
                    Self::NoSites => "the table of patch sites is empty",
                    _ => "no table of patch sites",
                };
                write!(
                    f,
                    "{what}: build the kernel with `-Zpatchable-function-entry=...` and include fgraph's linker \
                     fragment, which collects the sites between {} and {}",
                    TABLE_MARKS.0, TABLE_MARKS.1
                )
            }
            Self::Table(error) => write!(f, "{error}"),
            Self::NotraceMissing(start, stop) => {
                let missing = match (start, stop) {
                    (Some(_), _) => NOTRACE_MARKS.1.into(),
                    (_, Some(_)) => NOTRACE_MARKS.0.into(),
                    _ => format!("{} and {}", NOTRACE_MARKS.0, NOTRACE_MARKS.1),
                };
                write!(
                    f,
                    "no range that stays untraced ({missing} not defined): include fgraph's linker fragment, or the \
                     tracer will trace itself"
                )
            }
            Self::NotraceEmpty(start, stop) => write!(
                f,
                "the range that stays untraced is empty ({start:#x} to {stop:#x}): include fgraph's linker fragment \
                 before the script's own text patterns"
            ),
            Self::ZeroEntries(count) => write!(f, "entries of the table that point nowhere ({count})"),
            Self::Duplicates(places) => list(f, "places that several entries point at", places),
            Self::OutsideCode(places) => list(f, "entries outside executable sections", places),
            Self::Misaligned(places) => list(f, "entries where no instruction can start", places),
            Self::OwnFunctions(names) => list(
                f,
                "functions of the tracer that can be patched, outside the range that stays untraced",
                names,
            ),
            Self::NoRelocations => write!(
                f,
                "nothing tells whose address is taken: link the kernel with `--emit-relocs` to check landing pads"
            ),
            Self::NoLandingPad(names) => {
                list(f, "functions whose address is taken, and that begin with no landing pad", names)
            }
            Self::NoSuchException(names) => {
                list(f, "exceptions that are none: no such function, or it has its landing pad", names)
            }
            Self::NoSymbolSpace => write!(
                f,
                "no function names: no section {SECTION}. Reserve it with `fgraph::symbol_space!(BYTES)` and run \
                 `fgraph embed`, or check with --without-symbols"
            ),
            Self::SymbolSpace(error) => write!(f, "no function names: {error}"),
            Self::SymbolTable(error) => write!(f, "no function names: {error}"),
            Self::SymbolsStale(have, want) => write!(
                f,
                "the function names are not those of this image ({have} embedded, {want} in the symbol table): run \
                 `fgraph embed` again"
            ),
        }
    }
}

fn list(f: &mut fmt::Formatter<'_>, what: &str, items: &[String]) -> fmt::Result {
    write!(f, "{what} ({}):", items.len())?;
    for item in items.iter().take(SHOWN) {
        write!(f, "\n    {item}")?;
    }
    match items.len().checked_sub(SHOWN) {
        Some(more) if more != 0 => write!(f, "\n    and {more} more"),
        _ => Ok(()),
    }
}

/// What a check found, and what it looked at.
#[derive(Clone, Debug)]
pub struct Report {
    /// Everything that is wrong.
    pub findings: Vec<Finding>,
    /// Sites in the table.
    pub sites: usize,
    /// Sites in the range that stays untraced.
    pub notrace: usize,
    /// Function names in the image.
    pub names: usize,
    /// Functions whose address is taken, if landing pads were asked for.
    pub taken: Option<usize>,
}

impl Report {
    /// The report for people, about an image of that name.
    pub fn text(&self, image: &dyn fmt::Display) -> String {
        let mut text = String::new();
        let (sites, notrace, names) = (self.sites, self.notrace, self.names);
        let summed =
            format!("sites: {sites}, of them in the notrace range {notrace}; function names: {names}");
        let pads = self.taken.map(|taken| format!("; addresses of {taken} functions are taken"));
        let summed = summed + pads.as_deref().unwrap_or_default();
        // Writing to a `String` cannot fail.
        let _ = match self.findings.len() {
            0 => writeln!(text, "{image}: ok: {summed}"),
            1 => writeln!(text, "{image}: 1 finding: {summed}"),
            count => writeln!(text, "{image}: {count} findings: {summed}"),
        };
        for finding in &self.findings {
            let _ = writeln!(text, "  {finding}");
        }
        text
    }
}

/// Checks a linked image.
pub fn check(image: &Image<'_>, symbols: Symbols, pads: &LandingPads) -> Result<Report, Error> {
    if !image.is_linked {
        return Err(Error::NotLinked);
    }
    if !image.has_symbols {
        return Err(Error::NoSymbolTable);
    }
    let mut report = Report { findings: Vec::new(), sites: 0, notrace: 0, names: 0, taken: None };
    match Listing::new(image) {
        Ok(listing) => check_sites(image, &listing, &mut report),
        Err(error) => report.findings.push(Finding::Table(error)),
    }
    match notrace_range(image)? {
        (Some(start), Some(stop)) if start < stop => {}
        (Some(start), Some(stop)) => report.findings.push(Finding::NotraceEmpty(start, stop)),
        (start, stop) => report.findings.push(Finding::NotraceMissing(start, stop)),
    }
    if symbols == Symbols::Expected {
        check_symbols(image, &mut report)?;
    }
    if let LandingPads::Expected(exceptions) = pads {
        check_pads(image, exceptions, &mut report)?;
    }
    Ok(report)
}

fn check_pads(image: &Image<'_>, exceptions: &[String], report: &mut Report) -> Result<(), Error> {
    let Some(pads) = pads::of(image)? else {
        report.findings.push(Finding::NoRelocations);
        return Ok(());
    };
    report.taken = Some(pads.taken);
    let is_excepted = |name: &str| exceptions.iter().any(|exception| exception == name);
    let missing = pads.missing.iter().filter(|function| !is_excepted(function.name));
    let missing: Vec<String> = missing
        .map(|function| format!("{}  {}", image.show(function.at), Demangled(function.name)))
        .collect();
    let is_missing = |name: &&String| pads.missing.iter().any(|function| function.name == name.as_str());
    let wrong: Vec<String> = exceptions.iter().filter(|name| !is_missing(name)).cloned().collect();
    if !missing.is_empty() {
        report.findings.push(Finding::NoLandingPad(missing));
    }
    if !wrong.is_empty() {
        report.findings.push(Finding::NoSuchException(wrong));
    }
    Ok(())
}

fn check_sites(image: &Image<'_>, listing: &Listing<'_, '_>, report: &mut Report) {
    report.sites = listing.sites.len();
    report.notrace = listing.notrace();
    if listing.sites.is_empty() {
        report.findings.push(Finding::NoSites);
    }
    if listing.zeros != 0 {
        report.findings.push(Finding::ZeroEntries(listing.zeros));
    }
    let (mut outside, mut misaligned, mut own) = (Vec::new(), Vec::new(), Vec::new());
    for site in &listing.sites {
        let Some(at) = site.word.target else { continue };
        if image.code_at(at).is_none() {
            outside.push(image.show(at));
        } else if at.offset % image.machine.instruction_alignment() != 0 {
            misaligned.push(image.show(at));
        }
        if let Some((function, _)) = site.function.filter(|_| !site.is_notrace)
            && is_own(function.name)
        {
            own.push(format!("{}  {}", image.show(function.at), Demangled(function.name)));
        }
    }
    let duplicates = listing.duplicates.iter().map(|at| image.show(*at)).collect();
    for (places, finding) in [
        (duplicates, Finding::Duplicates as fn(Vec<String>) -> Finding),
        (outside, Finding::OutsideCode),
        (misaligned, Finding::Misaligned),
        (own, Finding::OwnFunctions),
    ] {
        if !places.is_empty() {
            report.findings.push(finding(places));
        }
    }
}

fn check_symbols(image: &Image<'_>, report: &mut Report) -> Result<(), Error> {
    let (data, capacity) = match embed::space(image) {
        Ok((_, data, capacity)) => (data, capacity),
        Err(Error::NoSpace) => {
            report.findings.push(Finding::NoSymbolSpace);
            return Ok(());
        }
        Err(error) => {
            report.findings.push(Finding::SymbolSpace(error.to_string()));
            return Ok(());
        }
    };
    match Table::parse(data) {
        Ok(table) => {
            report.names = table.len();
            // Of a stripped image the files are not known any more, and those that were embedded may be right.
            let files = if image.has_debug_info() { files::of(image) } else { Vec::new() };
            if !data.starts_with(&blob::build(&image.functions, &files, capacity)?) {
                report.findings.push(Finding::SymbolsStale(table.len(), image.functions.len()));
            }
        }
        Err(error) => report.findings.push(Finding::SymbolTable(error)),
    }
    Ok(())
}

/// Whether a mangled name says that its function belongs to the crate `fgraph`, or is an instance made for
/// its types. A module of that name in another crate, or a longer name with these letters in it, does not
/// count.
pub fn is_own(name: &str) -> bool {
    const IDENT: &str = "6fgraph";
    const IMPL: &str = "fgraph..";
    if name.starts_with("_R") {
        // A crate's root is `C`, then `s`, base 62 and `_` if it has a disambiguator, then its name.
        name.match_indices(IDENT).any(|(at, _)| match name[..at].strip_suffix('_') {
            Some(before) => before.rsplit('_').next().is_some_and(|run| run.contains("Cs")),
            None => name[..at].ends_with('C'),
        })
    } else if let Some(path) = name.strip_prefix("_ZN") {
        // The crate comes first in a path; in the name of an impl, where the path of a type begins.
        path.starts_with(IDENT) || path.match_indices(IMPL).any(|(at, _)| path[..at].ends_with('$'))
    } else {
        false
    }
}
