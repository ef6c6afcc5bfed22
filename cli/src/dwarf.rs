//! From DWARF to types: which prototype the function at an address has.
//!
//! A function's debugging entry is found by the address of its first instruction and by nothing else: names can be
//! equal, and a clone has the name of what it was cloned from. What a compiler changed in a signature is seen in
//! where the entry says that parameters are at the first instruction. Split units are read from their
//! own files; which of these are missing is told.
//!
//! Invariant: what is wrong in one unit or type takes away the functions that need it, with a [`Reason`], and
//! nothing else. Types of a C++ program are taken as far as C has them.

mod convert;
mod functions;
mod place;
mod rust;
mod sections;
mod signature;
mod split;
mod units;

use std::collections::BTreeMap;
use std::fmt;

use crate::btf::types::Types;
use crate::btf::write::Function;
use crate::image::Machine;
pub use sections::{Sections, address};
pub use split::{Split, SplitError};

/// A function whose prototype is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'w> {
    /// Its first instruction, as [`address`] has it.
    pub address: u64,
    /// Its symbol, which may tell that it is a part or a clone of another.
    pub name: &'w str,
    /// What else it is called.
    pub aliases: &'w [&'w str],
    /// Its code, or the beginning of it.
    pub code: &'w [u8],
    /// Whether nothing outside of the image can call it, so that the optimiser of all of it may have changed how it is called.
    pub is_local: bool,
}

/// A function whose prototype was found.
#[derive(Clone, Debug)]
pub struct Described {
    /// Its first instruction.
    pub address: u64,
    /// What is to be written.
    pub function: Function,
}

/// What was found.
#[derive(Debug)]
pub struct Prototypes {
    /// The types that the functions need.
    pub types: Types,
    /// Functions, in the order in which they were wanted.
    pub functions: Vec<Described>,
    /// What was left out.
    pub report: Report,
}

/// Finds the prototypes of functions, which must ascend by address.
pub fn prototypes(
    sections: &Sections<'_>,
    split: &Split,
    machine: Machine,
    wanted: &[Wanted<'_>],
) -> Prototypes {
    functions::read(&units::Units::load(sections.dwarf(), split), machine, wanted)
}

/// Why a function has no prototype.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// No unit describes a function at its address.
    NoDebugInfo,
    /// It is a part of another function.
    Part,
    /// Several functions of different types are one piece of code.
    Folded,
    /// A type that BTF, or this tool, has no form for.
    Type(String),
    /// Its entry contradicts the format.
    Malformed(String),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDebugInfo => write!(f, "no debug information"),
            Self::Part => write!(f, "a part of another function"),
            Self::Folded => write!(f, "one code for functions of different types"),
            Self::Type(what) => write!(f, "no form for a type: {what}"),
            Self::Malformed(what) => write!(f, "malformed: {what}"),
        }
    }
}

impl From<gimli::Error> for Reason {
    fn from(error: gimli::Error) -> Self {
        Self::Malformed(error.to_string())
    }
}

/// What was left out, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Units of any kind.
    pub units: usize,
    /// Why units whose types are in files of their own were not read, for each of these.
    pub split: Vec<String>,
    /// Units that cannot be read, and the first reason.
    pub malformed: Vec<String>,
    /// Functions with a prototype that the source has.
    pub as_written: usize,
    /// Functions whose signature was changed, with what is known of it.
    pub changed: usize,
    /// Functions without a prototype.
    pub left_out: Vec<(u64, String, Reason)>,
    /// Parameters whose place at entry the debug information says.
    pub places: usize,
}

impl Report {
    /// How many functions were left out for which reason.
    pub fn reasons(&self) -> BTreeMap<&Reason, usize> {
        let mut counts = BTreeMap::new();
        for (_, _, reason) in &self.left_out {
            *counts.entry(reason).or_default() += 1;
        }
        counts
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} prototypes from {} units", self.as_written + self.changed, self.units)?;
        if self.changed != 0 {
            write!(f, ", of them with a changed signature {}", self.changed)?;
        }
        for (reason, count) in self.reasons() {
            write!(f, "; left out {count}: {reason}")?;
        }
        if let Some(first) = self.split.first() {
            write!(f, "; {} split units not read: {first}", self.split.len())?;
        }
        if let Some(first) = self.malformed.first() {
            write!(f, "; {} units not read: {first}", self.malformed.len())?;
        }
        Ok(())
    }
}
