//! Writes the symbol blob that `fgraph::symbols` reads. The format is documented there.
//!
//! Invariant: the same functions give the same bytes, which is how `check` finds a blob that is out of date.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use fgraph::symbols::files::{self, NO_FILE};
use fgraph::symbols::layout::{
    AT_BASE, AT_CAPACITY, AT_COUNT, AT_LENGTH, AT_STRING_BYTES, AT_VERSION, HEADER_LEN, MAGIC, VERSION,
    blob_len,
};

use crate::Error;
use crate::image::Function;

/// Makes a blob of functions that are sorted as [`Image::functions`](crate::image::Image::functions) are, for
/// a space of `capacity` bytes. It may come out longer than the space; that is for the caller to see.
///
/// A function whose symbol has no size is given all bytes up to the next one, or to the end of its section.
/// `files` has the source file of each of the functions; if none is known, no table of files follows the blob.
pub fn build(functions: &[Function<'_>], files: &[Option<String>], capacity: u64) -> Result<Vec<u8>, Error> {
    let (Some(first), Some(last)) = (functions.first(), functions.last()) else {
        return Err(Error::NoFunctions);
    };
    let base = first.at.offset;
    let count = u32::try_from(functions.len()).map_err(|_| Error::TooManyNames(functions.len() as u64))?;
    let string_bytes: u64 = functions.iter().map(|function| function.name.len() as u64).sum();
    let string_bytes = u32::try_from(string_bytes).map_err(|_| Error::TooManyNames(string_bytes))?;
    let length = blob_len(count, string_bytes);

    let (mut starts, mut sizes, mut names) = (Vec::new(), Vec::new(), Vec::new());
    let mut strings = String::new();
    for (index, function) in functions.iter().enumerate() {
        let start = function.at.offset.checked_sub(base).and_then(|start| u32::try_from(start).ok());
        starts.extend(start.ok_or(Error::Span(base, last.at.offset))?.to_le_bytes());
        // A size beyond 4 GiB is as good as one up to there: the next function starts before that.
        sizes.extend(u32::try_from(effective_size(functions, index)).unwrap_or(u32::MAX).to_le_bytes());
        // The strings stay below `string_bytes`, which fits.
        names.extend((strings.len() as u32).to_le_bytes());
        strings.push_str(function.name);
    }

    let mut blob = vec![0; HEADER_LEN];
    let mut put = |at: usize, value: &[u8]| blob[at..at + value.len()].copy_from_slice(value);
    put(0, &MAGIC);
    put(AT_VERSION, &VERSION.to_le_bytes());
    put(AT_CAPACITY, &capacity.to_le_bytes());
    put(AT_LENGTH, &length.to_le_bytes());
    put(AT_BASE, &base.to_le_bytes());
    put(AT_COUNT, &count.to_le_bytes());
    put(AT_STRING_BYTES, &string_bytes.to_le_bytes());
    for part in [starts.as_slice(), &sizes, &names, strings.as_bytes()] {
        blob.extend_from_slice(part);
    }
    blob.extend(table_of(files, count)?);
    Ok(blob)
}

/// The table of files, for `count` functions. Files come in the order in which functions first need them.
fn table_of(files: &[Option<String>], count: u32) -> Result<Vec<u8>, Error> {
    if files.iter().all(Option::is_none) {
        return Ok(Vec::new());
    }
    let (mut known, mut names, mut of) = (HashMap::new(), Vec::new(), Vec::new());
    let mut strings = String::new();
    let number = |n: usize| u32::try_from(n).map_err(|_| Error::TooManyNames(n as u64));
    for file in files.iter().map(Option::as_deref) {
        let next = number(known.len())?;
        let file = match file {
            None => NO_FILE,
            Some(file) => match known.entry(file) {
                Entry::Occupied(there) => *there.get(),
                Entry::Vacant(new) => {
                    names.extend(number(strings.len())?.to_le_bytes());
                    strings.push_str(file);
                    *new.insert(next)
                }
            },
        };
        of.extend(file.to_le_bytes());
    }
    let mut table = Vec::from(files::MAGIC);
    for word in [count, number(known.len())?, number(strings.len())?, 0] {
        table.extend(word.to_le_bytes());
    }
    for part in [names.as_slice(), &of, strings.as_bytes()] {
        table.extend_from_slice(part);
    }
    Ok(table)
}

fn effective_size(functions: &[Function<'_>], index: usize) -> u64 {
    let function = &functions[index];
    if function.size != 0 {
        return function.size.min(function.room);
    }
    let next =
        functions[index..].iter().map(|other| other.at.offset).find(|start| *start > function.at.offset);
    next.map_or(function.room, |next| function.room.min(next - function.at.offset))
}
