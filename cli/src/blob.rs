//! Writes the symbol blob that `fgraph::symbols` reads. The format is documented there.
//!
//! Invariant: the same functions give the same bytes, which is how `check` finds a blob that is out of date.

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
pub fn build(functions: &[Function<'_>], capacity: u64) -> Result<Vec<u8>, Error> {
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
    Ok(blob)
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
