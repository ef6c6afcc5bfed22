//! The source files that functions come from: a table of its own behind the blob, which a reader that does not know it takes for unused
//! space.
//!
//! Integers are little-endian; offsets are from the end of the blob.
//!
//! | at | bytes | what |
//! |---:|------:|------|
//! |  0 | 8     | magic: `FGSYMFIL`; anything else, and no function has a file |
//! |  8 | 4     | entries `n`, as many as the blob has |
//! | 12 | 4     | files `m` |
//! | 16 | 4     | bytes of file names `s` |
//! | 20 | 4     | 0 |
//! | 24 | 4m    | where each file's name starts in the strings; ascending; each ends where the next begins |
//! |    | 4n    | the file of each entry, counted from 0; [`NO_FILE`] if it is not known |
//! |    | s     | strings: UTF-8, one after the other, nothing between |

use core::fmt;

/// First bytes of the table.
pub const MAGIC: [u8; 8] = *b"FGSYMFIL";
/// Bytes before the starts of the names.
pub const HEADER_LEN: usize = 24;
/// The file of a function whose file is not known.
pub const NO_FILE: u32 = u32::MAX;

/// Why the bytes behind a blob are no table of files, although they begin like one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilesError {
    /// It is for another number of functions.
    Entries {
        /// Functions it is for.
        have: u32,
        /// Functions of the blob.
        want: u32,
    },
    /// It is longer than the bytes at hand.
    Truncated {
        /// Bytes that its header asks for.
        length: u64,
        /// Bytes there are.
        have: usize,
    },
    /// A file's name is empty, runs backwards, leaves the strings or splits a character.
    Name {
        /// Which file.
        file: u32,
        /// Where its name is said to start.
        offset: u32,
    },
    /// A function is from a file that is not listed.
    NoSuchFile {
        /// Which entry of the blob.
        index: u32,
        /// Which file.
        file: u32,
    },
    /// The strings are not UTF-8.
    NotUtf8 {
        /// Offset into the strings of the first wrong byte.
        offset: usize,
    },
}

impl fmt::Display for FilesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Entries { have, want } => write!(f, "source files of {have} symbols, and there are {want}"),
            Self::Truncated { length, have } => {
                write!(f, "source files of {length} bytes, of which only {have} are there")
            }
            Self::Name { file, offset } => {
                write!(f, "source file {file} has no name at {offset:#x} of their strings")
            }
            Self::NoSuchFile { index, file } => {
                write!(f, "symbol {index} is from file {file}, which is not there")
            }
            Self::NotUtf8 { offset } => {
                write!(f, "the source files are not UTF-8 at {offset:#x} of their strings")
            }
        }
    }
}

/// A table that was checked as a whole, or none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Files<'a> {
    // Invariant, established by `parse`: `names` ascends and cuts `strings` at characters; `of` has numbers below
    // the length of `names`, or `NO_FILE`.
    names: &'a [[u8; 4]],
    of: &'a [[u8; 4]],
    strings: &'a str,
}

fn number(word: &[u8; 4]) -> u32 {
    u32::from_le_bytes(*word)
}

impl<'a> Files<'a> {
    /// No function has a file.
    pub(super) const NONE: Self = Self { names: &[], of: &[], strings: "" };

    /// Opens the table that `bytes` begins with, for `entries` functions; [`NONE`](Self::NONE) if it begins with something else.
    pub(super) fn parse(bytes: &'a [u8], entries: u32) -> Result<Self, FilesError> {
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER_LEN>() else { return Ok(Self::NONE) };
        let (magic, header) = header.split_at(MAGIC.len());
        if magic != MAGIC {
            return Ok(Self::NONE);
        }
        let [have, files, string_bytes, ..] = header.as_chunks().0 else { return Ok(Self::NONE) };
        let [have, files, string_bytes] = [have, files, string_bytes].map(number);
        if have != entries {
            return Err(FilesError::Entries { have, want: entries });
        }
        let length = 4 * (u64::from(files) + u64::from(entries)) + u64::from(string_bytes);
        let truncated = FilesError::Truncated { length, have: rest.len() };
        let body = usize::try_from(length).ok().and_then(|length| rest.get(..length)).ok_or(truncated)?;
        // The body has room for all three, so neither cut can fail.
        let (names, body) = body.split_at_checked(files as usize * 4).ok_or(truncated)?;
        let (of, strings) = body.split_at_checked(entries as usize * 4).ok_or(truncated)?;
        let strings = core::str::from_utf8(strings)
            .map_err(|error| FilesError::NotUtf8 { offset: error.valid_up_to() })?;
        let table = Self { names: names.as_chunks().0, of: of.as_chunks().0, strings };
        table.check(files)?;
        Ok(table)
    }

    fn check(&self, files: u32) -> Result<(), FilesError> {
        for (file, word) in (0..).zip(self.names) {
            if self.name(file).is_none_or(str::is_empty) {
                return Err(FilesError::Name { file, offset: number(word) });
            }
        }
        for (index, word) in (0..).zip(self.of) {
            let file = number(word);
            if file >= files && file != NO_FILE {
                return Err(FilesError::NoSuchFile { index, file });
            }
        }
        Ok(())
    }

    fn name(&self, file: u32) -> Option<&'a str> {
        let file = usize::try_from(file).ok()?;
        let start = number(self.names.get(file)?) as usize;
        let end = self.names.get(file + 1).map_or(self.strings.len(), |word| number(word) as usize);
        self.strings.get(start..end)
    }

    /// The file of an entry of the blob.
    pub(super) fn of(&self, index: usize) -> Option<&'a str> {
        self.name(number(self.of.get(index)?))
    }
}
