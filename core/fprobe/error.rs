//! Why something asked of the probes was not done.

use core::fmt;

use crate::addr::FuncAddr;
use crate::engine::Error;

/// Why something asked of the probes was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FprobeError {
    /// The probe names no function.
    NoFunctions,
    /// The probe wants more data for a call than there can be.
    TooMuchData {
        /// How many words it wants.
        words: usize,
        /// How many it may.
        max: usize,
    },
    /// A function is named by another address than its entry.
    NotAnEntry {
        /// The address.
        func: FuncAddr,
    },
    /// The probe is registered already.
    AlreadyRegistered,
    /// The probe is not registered.
    NotRegistered,
    /// All places are taken.
    TooManyProbes {
        /// How many there are.
        max: usize,
    },
    /// The engine refused: a function cannot be traced, the list is not in ascending order, and so on.
    Engine(Error),
}

impl fmt::Display for FprobeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFunctions => f.write_str("the probe names no function"),
            Self::TooMuchData { words, max } => {
                write!(f, "{words} words of data for a call: {max} are possible")
            }
            Self::NotAnEntry { func } => write!(f, "{func} is not the entry of a function"),
            Self::AlreadyRegistered => f.write_str("the probe is registered already"),
            Self::NotRegistered => f.write_str("the probe is not registered"),
            Self::TooManyProbes { max } => write!(f, "all {max} places for probes are taken"),
            Self::Engine(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for FprobeError {}
