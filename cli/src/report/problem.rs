//! What is wrong with a trace of which the rest can be used.

use std::fmt;

use fgraph::wire::WireError;
use fgraph::wire::file::{Damage, FileError, Kind};

/// Something that could not be read, or is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// Bytes that are no whole chunk.
    Damage(Damage),
    /// The chunk at this byte has a right checksum and a content that cannot be read.
    Content(u64, Kind, FileError),
    /// The page at this byte has records that cannot be read.
    Page(u64, WireError),
    /// Chunks are missing: how many numbers are.
    Missing(u64),
    /// There is no end: the trace was cut off.
    NoEnd,
    /// Nothing says how fast the clock is, or on which machine this was.
    NoMeta,
    /// A line of text that no tracer writes: its number, and how it begins.
    Line(u64, String),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damage(damage) => damage.fmt(f),
            Self::Content(at, kind, error) => {
                write!(f, "byte {at}: a chunk ({kind:?}) that makes no sense: {error}")
            }
            Self::Page(at, error) => write!(f, "byte {at}: a page with records that make no sense: {error}"),
            Self::Missing(count) => write!(f, "{count} chunks are missing"),
            Self::NoEnd => f.write_str("the trace has no end: it was cut off"),
            Self::NoMeta => {
                f.write_str("nothing says how fast the clock is: its ticks are shown as nanoseconds")
            }
            Self::Line(number, text) => write!(f, "line {number}: not a line of function_graph: {text:?}"),
        }
    }
}

/// Problems that were found, the first of them kept.
#[derive(Debug, Default)]
pub struct Problems {
    /// Some of them.
    pub first: Vec<Problem>,
    /// How many there were.
    pub count: u64,
}

impl Problems {
    /// As many are kept.
    const KEPT: usize = 20;

    /// Adds one.
    pub fn add(&mut self, problem: Problem) {
        self.count += 1;
        if self.first.len() < Self::KEPT {
            self.first.push(problem);
        }
    }
}
