//! `fgraph sites`: where the compiler left room to patch, and whose function that is.
//!
//! The table is what the running tracer will see: from `__fgraph_sites_start` to `__fgraph_sites_stop`, which
//! the linker fragment defines. Without these marks, as in object files, the sections that compilers put
//! their records into.

use std::collections::HashSet;
use std::fmt::{self, Write};

use fgraph::symbols::Demangled;

use crate::image::{Function, Image, Place, Word};

/// What the linker fragment puts around the table of sites.
pub const TABLE_MARKS: (&str, &str) = ("__fgraph_sites_start", "__fgraph_sites_stop");
/// What the linker fragment puts around the code that is never patched.
pub const NOTRACE_MARKS: (&str, &str) = ("__fgraph_text_start", "__fgraph_text_stop");
/// Where compilers put their records: for `-fpatchable-function-entry`, and for `-mrecord-mcount`.
pub const SECTIONS: [&str; 2] = ["__patchable_function_entries", "__mcount_loc"];

/// A landing pad (ENDBR64, BTI) and then some: a record this far into a function is still its entry.
const PAD: u64 = 16;
/// The most that a record can lie before its function: a record of a prefixed site points at the prefix.
const PREFIX: u64 = 64;

/// Why there is no table to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableError {
    /// Neither marks nor sections.
    Missing,
    /// One mark without the other: the values of start and stop.
    OneMark(Option<u64>, Option<u64>),
    /// The marks do not enclose whole entries: the values of start and stop.
    Range(u64, u64),
    /// No section of the file has the bytes between the marks: the values of start and stop.
    NotInFile(u64, u64),
    /// The file contradicts itself.
    Malformed(object::read::Error),
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (start_mark, stop_mark) = TABLE_MARKS;
        let or_missing = |value: &Option<u64>| value.map_or("missing".into(), |value| format!("{value:#x}"));
        match self {
            Self::Missing => write!(f, "no patch sites: neither {start_mark} nor a section {}", SECTIONS[0]),
            Self::OneMark(start, stop) => {
                write!(f, "{start_mark} is {}, {stop_mark} is {}", or_missing(start), or_missing(stop))
            }
            Self::Range(start, stop) => {
                write!(f, "{start_mark} {start:#x} to {stop_mark} {stop:#x} is no range of 8-byte entries")
            }
            Self::NotInFile(start, stop) => {
                write!(f, "no section of the file has the sites from {start:#x} to {stop:#x}")
            }
            Self::Malformed(error) => write!(f, "malformed ELF file: {error}"),
        }
    }
}

impl std::error::Error for TableError {}

impl From<object::read::Error> for TableError {
    fn from(error: object::read::Error) -> Self {
        Self::Malformed(error)
    }
}

/// How names are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// As people read them.
    Demangled,
    /// As the symbol table has them.
    Raw,
}

/// An entry of the table.
#[derive(Clone, Copy, Debug)]
pub struct Site<'d> {
    /// What the entry holds.
    pub word: Word,
    /// The function whose entry this is, and how far behind its start the record points: negative for a
    /// prefixed site.
    pub function: Option<(Function<'d>, i64)>,
    /// Whether it lies in the range that the tracer never patches.
    pub is_notrace: bool,
}

/// All sites of an image, in the order of the table.
#[derive(Debug)]
pub struct Listing<'i, 'd> {
    image: &'i Image<'d>,
    /// Entries, also those that point nowhere.
    pub sites: Vec<Site<'d>>,
    /// Entries that are zero or undefined.
    pub zeros: usize,
    /// Places that more than one entry points at.
    pub duplicates: Vec<Place>,
    /// Entries that point below the one before them.
    pub descents: usize,
    /// First entry of each function without a site; the notrace range is left out, nothing is patched there.
    pub without_site: Vec<Function<'d>>,
}

/// The range that is never patched, if the image has both marks: start and stop.
pub fn notrace_range(image: &Image<'_>) -> object::read::Result<(Option<u64>, Option<u64>)> {
    Ok((image.mark(NOTRACE_MARKS.0)?, image.mark(NOTRACE_MARKS.1)?))
}

fn read_table(image: &Image<'_>) -> Result<Vec<Word>, TableError> {
    match (image.mark(TABLE_MARKS.0)?, image.mark(TABLE_MARKS.1)?) {
        (Some(start), Some(stop)) => {
            let length = stop.checked_sub(start).filter(|length| length % 8 == 0);
            let length = length.ok_or(TableError::Range(start, stop))?;
            if length == 0 {
                return Ok(Vec::new());
            }
            let covering = image.section_over(start, stop).ok_or(TableError::NotInFile(start, stop))?;
            Ok(image.words(covering.0, start - covering.1.address, length)?)
        }
        (None, None) => {
            let mut words = Vec::new();
            let mut found = false;
            for name in SECTIONS {
                for (index, section) in image.sections_named(name) {
                    found = true;
                    words.extend(image.words(index, 0, section.size)?);
                }
            }
            if found { Ok(words) } else { Err(TableError::Missing) }
        }
        (start, stop) => Err(TableError::OneMark(start, stop)),
    }
}

/// The function that a record belongs to. Functions are sorted, the one to show first at each place.
fn owner<'d>(functions: &[Function<'d>], at: Place) -> Option<(Function<'d>, i64)> {
    let after = functions.partition_point(|function| function.at <= at);
    let before = functions[..after].last().map(|last| {
        let first = functions.partition_point(|function| function.at < last.at);
        functions[first]
    });
    let before = before.filter(|function| function.at.section == at.section);
    let before = before.map(|function| (function, at.offset - function.at.offset));
    let next = functions
        .get(after)
        .filter(|function| function.at.section == at.section && function.at.offset - at.offset <= PREFIX);
    // A function written in assembly may not say its size; what follows its landing pad is still its own.
    let before = before.filter(|(function, distance)| match function.size {
        0 => *distance <= PAD / 2,
        size => *distance < size,
    });
    match (before, next) {
        (Some((function, distance)), _) if distance <= PAD => Some((function, distance as i64)),
        // The distance is at most `PREFIX`.
        (_, Some(function)) => Some((*function, -((function.at.offset - at.offset) as i64))),
        (Some((function, distance)), None) => {
            i64::try_from(distance).ok().map(|distance| (function, distance))
        }
        (None, None) => None,
    }
}

impl<'i, 'd> Listing<'i, 'd> {
    /// Reads the table and finds out whose sites these are.
    pub fn new(image: &'i Image<'d>) -> Result<Self, TableError> {
        let notrace = match notrace_range(image)? {
            (Some(start), Some(stop)) => start..stop,
            _ => 0..0,
        };
        let is_notrace = |at: Place| notrace.contains(&at.offset);
        let words = read_table(image)?;
        let sites: Vec<_> = words
            .iter()
            .map(|word| Site {
                word: *word,
                function: word.target.and_then(|at| owner(&image.functions, at)),
                is_notrace: word.target.is_some_and(is_notrace),
            })
            .collect();

        let targets: Vec<Place> = words.iter().filter_map(|word| word.target).collect();
        let mut sorted = targets.clone();
        sorted.sort();
        let mut duplicates: Vec<Place> =
            sorted.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
        duplicates.dedup();
        let with_site: HashSet<Place> =
            sites.iter().filter_map(|site| Some(site.function.as_ref()?.0.at)).collect();
        let mut without_site: Vec<_> = image.functions.clone();
        without_site.dedup_by_key(|function| function.at);
        without_site.retain(|function| !with_site.contains(&function.at) && !is_notrace(function.at));
        Ok(Self {
            image,
            zeros: words.len() - targets.len(),
            duplicates,
            descents: targets.windows(2).filter(|pair| pair[1] < pair[0]).count(),
            without_site,
            sites,
        })
    }

    /// Number of sites in the range that the tracer never patches.
    pub fn notrace(&self) -> usize {
        self.sites.iter().filter(|site| site.is_notrace).count()
    }

    /// The list and its sum, for people.
    pub fn text(&self, names: Names) -> String {
        let shown: Vec<_> = self.sites.iter().map(|site| self.columns(site, names)).collect();
        let width = shown.iter().map(|columns| columns[0].len()).max().unwrap_or(0);
        let mut text = String::new();
        for [place, bytes, function, mark] in shown {
            let line = format!("{place:<width$}  {bytes:<23}  {function}{mark}");
            text.push_str(line.trim_end());
            text.push('\n');
        }
        // Writing to a `String` cannot fail.
        let _ = writeln!(
            text,
            "sites: {}, of them zero {}, duplicate {}, out of order {}, in the notrace range {}; \
             functions without a site: {}",
            self.sites.len(),
            self.zeros,
            self.duplicates.len(),
            self.descents,
            self.notrace(),
            self.without_site.len()
        );
        text
    }

    fn columns(&self, site: &Site<'d>, names: Names) -> [String; 4] {
        let Some(at) = site.word.target else {
            return [
                format!("{:#x}", site.word.value),
                String::new(),
                "(points nowhere)".into(),
                String::new(),
            ];
        };
        let bytes: Vec<_> = self.image.bytes_at(at, 8).iter().map(|byte| format!("{byte:02x}")).collect();
        let function = match &site.function {
            None if self.image.code_at(at).is_none() => "(outside executable sections)".into(),
            None => "?".into(),
            Some((function, distance)) => {
                let sign = if *distance < 0 { '-' } else { '+' };
                let distance = distance.unsigned_abs();
                match names {
                    Names::Raw => format!("{}{sign}{distance:#x}", function.name),
                    Names::Demangled => format!("{}{sign}{distance:#x}", Demangled(function.name)),
                }
            }
        };
        let mark = if site.is_notrace { "  notrace" } else { "" };
        [self.image.show(at), bytes.join(" "), function, mark.into()]
    }
}
