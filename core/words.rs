//! The filter files of a tracer: words are written to a user's set, and the set is read back as words.
//!
//! Here is what that needs beside the engine's sites: the names of functions (`book`), the words that wait for a module
//! (`waiting`), how a text is read piece by piece (`place`), and what can be wrong with a word (`error`). The engine keeps the first
//! two on a desk; they are used under the control side's lock, never on the traced path.
//!
//! What a word says is in [`filter_text`](crate::filter_text), which functions it takes in [`select`](crate::select).

pub(crate) mod book;
pub(crate) mod error;
pub(crate) mod place;
pub(crate) mod waiting;

pub use book::ModuleNames;
pub use error::{Cause, WordError};
pub use place::Place;
pub use waiting::{LONGEST_WAITING, MAX_WAITING};

use crate::engine::WhichSet;

/// What becomes of the functions that a set has when words are written to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// They go, and the words that wait for modules too: a file that is opened and truncated. Without a word, the set is empty
    /// afterwards, which is not the same as everything.
    Replace,
    /// They stay. Only a filter that is everything is given up for the first function that is named.
    Append,
}

/// A list of functions that can be had as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// `available_filter_functions`: every function that can be traced, a line for each of its names. Index words count these
    /// lines.
    Available,
    /// `available_filter_functions_addrs`: the same, each line after the address of the site.
    AvailableAddrs,
    /// `enabled_functions`: those that are patched, each once; how many users they have, what those need, and who they are.
    Enabled,
    /// `touched_functions`: those that have been patched since the start; otherwise the same.
    Touched,
}

/// What stands in a file instead of functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Marker {
    /// The set is everything.
    All,
    /// The set is nothing.
    Nothing,
}

impl Marker {
    /// The line, as it is read and as it may be written.
    pub(crate) const fn line(self, which: WhichSet) -> &'static str {
        match (which, self) {
            (WhichSet::Filter, Self::All) => "#### all functions enabled ####",
            (WhichSet::Filter, Self::Nothing) => "#### no functions enabled ####",
            (WhichSet::Notrace, Self::All) => "#### all functions disabled ####",
            (WhichSet::Notrace, Self::Nothing) => "#### no functions disabled ####",
        }
    }

    /// The marker that `text` begins with.
    pub(crate) fn starting(text: &str, which: WhichSet) -> Option<Self> {
        [Self::All, Self::Nothing].into_iter().find(|marker| text.starts_with(marker.line(which)))
    }
}

/// What the engine keeps for words.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) book: book::Book,
    pub(crate) waiting: waiting::Waiting,
}

impl Desk {
    pub(crate) const fn new() -> Self {
        Self { book: book::Book::new(), waiting: waiting::Waiting::new() }
    }
}
