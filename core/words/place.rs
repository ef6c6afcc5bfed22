//! How a text that is made line by line is read in pieces of any size: where the reader is, and what of a line fits.
//!
//! Nothing is kept of the text. A line that was begun is finished, whatever happens between two reads; of the others, each is
//! shown as it is when the reader gets there.

use core::fmt;

use crate::addr::FuncAddr;
use crate::sites::ModuleId;
use crate::words::Marker;

/// How far somebody has read a list or a set. A fresh one is at the beginning.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub(crate) at: Position,
    pub(crate) progress: Progress,
    /// The word that the line at `at` was begun with.
    pub(crate) spelling: Option<Spelling>,
}

/// Which line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    /// The first one, whatever it is.
    Start,
    /// One that stands for all functions or for none.
    Marker(Marker),
    /// A function's: its module, the number of its site, which of its names; and where it starts.
    Function { module: ModuleId, site: usize, name: usize, func: FuncAddr },
    /// A word that waits for a module: its stamp.
    Waiting(u64),
    /// There are no more.
    End,
}

/// How far that line has been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// So many bytes.
    Bytes(usize),
    /// All of it.
    Done,
}

/// How a word names a function and no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// By name.
    Name {
        name: NameForm,
        /// Whether its module stands before the name.
        module: bool,
        /// Which of several.
        copy: Option<usize>,
    },
    /// By the number of its line in the list of functions, from 1.
    Index(usize),
}

/// Which of its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameForm {
    /// As people read it.
    Path,
    /// As the symbol table has it.
    Raw,
}

impl Place {
    /// The beginning.
    pub const START: Self = Self { at: Position::Start, progress: Progress::Bytes(0), spelling: None };

    /// Whether everything has been read.
    pub fn is_end(&self) -> bool {
        self.at == Position::End
    }

    /// Whether the line has been begun, and not been finished.
    pub(crate) fn begun(&self) -> bool {
        matches!(self.progress, Progress::Bytes(1..))
    }
}

impl Default for Place {
    fn default() -> Self {
        Self::START
    }
}

/// Takes what fits into a few bytes, from some byte of a line on.
#[derive(Debug)]
pub(crate) struct Window<'b> {
    skip: usize,
    bytes: &'b mut [u8],
    filled: usize,
    full: bool,
}

impl<'b> Window<'b> {
    pub(crate) fn new(skip: usize, bytes: &'b mut [u8]) -> Self {
        Self { skip, bytes, filled: 0, full: false }
    }

    /// Bytes that were taken.
    pub(crate) fn filled(&self) -> usize {
        self.filled
    }

    /// Whether there was more than room.
    pub(crate) fn is_full(&self) -> bool {
        self.full
    }
}

impl fmt::Write for Window<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let skipped = self.skip.min(text.len());
        self.skip -= skipped;
        let rest = text.as_bytes().get(skipped..).unwrap_or(&[]);
        let room = self.bytes.get_mut(self.filled..).unwrap_or(&mut []);
        let len = rest.len().min(room.len());
        if let (Some(to), Some(from)) = (room.get_mut(..len), rest.get(..len)) {
            to.copy_from_slice(from);
        }
        self.filled += len;
        self.full |= len < rest.len();
        if self.full { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use core::fmt::Write;

    #[test]
    fn a_window_takes_what_fits_behind_what_is_skipped() {
        for skip in 0..8 {
            for len in 0..8 {
                let mut bytes = [0; 8];
                let mut window = Window::new(skip, &mut bytes[..len]);
                let whole = window.write_str("ab").and_then(|()| window.write_str("cdé"));
                let expected = "abcdé".as_bytes().get(skip..).unwrap_or(&[]);
                assert_eq!(whole.is_err(), expected.len() > len, "{skip} {len}");
                assert_eq!(window.is_full(), expected.len() > len, "{skip} {len}");
                let filled = window.filled();
                assert_eq!(&bytes[..filled], &expected[..expected.len().min(len)], "{skip} {len}");
            }
        }
    }
}
