//! What is wrong with a word of a filter file.

use core::fmt;

use crate::engine::Error;
use crate::filter_text::ParseError;
use crate::select::SelectError;

/// Why words were not taken: nothing was changed then, by none of them, unless the cause is an [`Error`] that says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WordError {
    /// Where it is, in bytes from the start of the text.
    pub column: usize,
    /// Where the word starts.
    pub start: usize,
    /// Where the word ends.
    pub end: usize,
    /// What it is.
    pub cause: Cause,
}

/// What is wrong with a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// It is no filter.
    Parse(ParseError),
    /// It takes no function.
    Select(SelectError),
    /// It has a command behind it. Commands are not carried out by the sets.
    Command,
    /// It is to take away what waits for a module, but nothing like it waits.
    NotWaiting,
    /// It would have to wait for a module, and all places are taken.
    WaitingFull {
        /// How many there are.
        max: usize,
    },
    /// It would have to wait for a module, and is too long for that.
    WaitingTooLong {
        /// Bytes it has.
        len: usize,
        /// Bytes that there is room for.
        max: usize,
    },
    /// The functions are wanted now, and its module is not there.
    NotThere,
    /// It takes more functions than there is room for.
    NoRoom {
        /// How many there is room for.
        room: usize,
        /// How many more there would be.
        more: usize,
    },
    /// The functions are there, and cannot have this user. The column is that of the word that takes them.
    Engine(Error),
}

impl WordError {
    /// The word itself, out of the text that was written.
    pub fn word<'t>(&self, text: &'t str) -> &'t str {
        text.get(self.start..self.end).unwrap_or("")
    }
}

impl fmt::Display for WordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause.fmt(f)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Parse(error) => error.fmt(f),
            Self::Select(error) => error.fmt(f),
            Self::Command => f.write_str("a set of functions takes no commands"),
            Self::NotWaiting => f.write_str("no such module is there, and no such word waits for one"),
            Self::WaitingFull { max } => {
                write!(f, "{max} words wait for their modules already, and no more can")
            }
            Self::WaitingTooLong { len, max } => {
                write!(f, "a word that waits for its module may have {max} bytes, and this has {len}")
            }
            Self::NotThere => f.write_str("the module is not there, and a list waits for none"),
            Self::NoRoom { room, more } => {
                write!(f, "there is room for {room} functions, and not for {more} more")
            }
            Self::Engine(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for WordError {}
