//! Types of functions for a linked kernel: which functions, from its debug information, and into which bytes.
//!
//! Invariant: a function is in the blob only if its entry was found by its address; what was left out is in the report.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::path::Path;

use fgraph::btf::image::layout::{AT_CAPACITY, HEADER_LEN, SECTION};
use fgraph::btf::image::{Function, ImageError, Types, blob_len, write as write_blob};

use crate::Error;
use crate::btf::write;
use crate::dwarf::{Report, Sections, Split, Wanted, address, prototypes};
use crate::image::{self, Image, Place};
use crate::sites::{Listing, TableError};

/// How much of a function's code is looked at.
const BEGINNING: usize = 512;

/// Types of an image, before it is known where they go.
#[derive(Debug)]
pub struct Made {
    /// BTF with a header, little-endian.
    pub btf: Vec<u8>,
    /// The functions, ascending.
    pub functions: Vec<Function>,
    /// What was found and left out.
    pub report: Report,
}

/// Why there are no types to be put anywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Without {
    /// The image has no debug information.
    NoDebugInfo,
    /// The debug information cannot be read: why.
    Unreadable(String),
}

impl fmt::Display for Without {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDebugInfo => write!(f, "the image has no debug information"),
            Self::Unreadable(why) => write!(f, "the debug information cannot be read: {why}"),
        }
    }
}

/// The functions that can be traced: those with a site outside of the range that is never patched, or without a table of
/// sites, all. The first of each place.
fn traceable<'i, 'd>(image: &'i Image<'d>) -> Result<Vec<&'i image::Function<'d>>, Error> {
    let mut functions: Vec<_> = image.functions.iter().collect();
    functions.dedup_by_key(|function| function.at);
    match Listing::new(image) {
        Ok(listing) => {
            let sites = listing.sites.iter().filter(|site| !site.is_notrace);
            let with_site: HashSet<Place> =
                sites.filter_map(|site| Some(site.function.as_ref()?.0.at)).collect();
            functions.retain(|function| with_site.contains(&function.at));
            Ok(functions)
        }
        Err(TableError::Missing) => Ok(functions),
        Err(error) => Err(Error::Table(error)),
    }
}

/// Makes the types of an image. In an object file, addresses are as [`address`] has them. `path` is where the image is, for units whose
/// debug information is in files of their own, see [`Split::of`].
pub fn make(image: &Image<'_>, path: Option<&Path>) -> Result<Result<Made, Without>, Error> {
    if !image.has_debug_info() {
        return Ok(Err(Without::NoDebugInfo));
    }
    let sections = match Sections::load(image) {
        Ok(sections) => sections,
        Err(why) => return Ok(Err(Without::Unreadable(why))),
    };
    let functions = traceable(image)?;
    let mut names: HashMap<Place, Vec<&str>> = HashMap::new();
    for function in &image.functions {
        names.entry(function.at).or_default().push(function.name);
    }
    let wanted: Vec<_> = functions
        .iter()
        .map(|function| Wanted {
            address: address(function.at),
            name: function.name,
            // The first is the name itself.
            aliases: names[&function.at].get(1..).unwrap_or_default(),
            code: image.bytes_at(function.at, BEGINNING),
            is_local: function.binding == image::Binding::Local,
        })
        .collect();
    let mut found = prototypes(&sections, &Split::of(&sections, path), image.machine, &wanted);
    let plain: Vec<_> = found.functions.iter().map(|described| described.function.clone()).collect();
    let (btf, ids) = write::write(&mut found.types, &plain).map_err(Error::TooManyTypes)?;
    let mut sizes = functions.iter().map(|function| (address(function.at), function.size));
    let functions = found.functions.iter().zip(ids).map(|(described, id)| {
        // Both ascend.
        let size = loop {
            match sizes.next() {
                Some((at, size)) if at == described.address => break size,
                Some(_) => {}
                None => break 0,
            }
        };
        Function { start: described.address, size: u32::try_from(size).unwrap_or(0), id }
    });
    Ok(Ok(Made { btf, functions: functions.collect(), report: found.report }))
}

impl Made {
    /// The blob, for a space of that capacity or for a file, which has 0.
    pub fn blob(&self, capacity: u64) -> Result<Vec<u8>, Error> {
        let base = self.functions.first().map_or(0, |function| function.start);
        let length = blob_len(&self.functions, &self.btf).map_err(Error::Types)?;
        if capacity != 0 && length as u64 > capacity {
            return Err(Error::TypesTooSmall { have: capacity, need: length as u64 });
        }
        let mut blob = vec![0; length];
        write_blob(&self.functions, &self.btf, base, capacity, &mut blob).map_err(Error::Types)?;
        Ok(blob)
    }
}

/// The space that an image reserves for types, if it does: where in the file, and how many bytes of it are ours. What is in
/// it beyond the header does not matter.
pub fn space(image: &Image<'_>) -> Result<Option<Range<usize>>, Error> {
    let Some((_, section)) = image.sections_named(SECTION).next() else { return Ok(None) };
    let data = section.data.ok_or(Error::TypesNotInFile)?;
    if let Err(error @ (ImageError::TooShort { .. } | ImageError::BadMagic(_) | ImageError::Version(_))) =
        Types::parse(data)
    {
        return Err(Error::TypesNotReserved(error));
    }
    let capacity = data.get(AT_CAPACITY..).and_then(|rest| rest.first_chunk()).copied().unwrap_or_default();
    let capacity = u64::from_le_bytes(capacity);
    if capacity < HEADER_LEN as u64 || capacity > data.len() as u64 {
        return Err(Error::TypesCapacity { capacity, section: data.len() as u64 });
    }
    // The section's bytes were read from the file, so its range lies in the file, and the capacity in the range.
    let start = section.file_offset as usize;
    Ok(Some(start..start + capacity as usize))
}
