//! Why something asked of the tracer was not done.

use core::fmt;

use crate::addr::{FuncAddr, SiteAddr};
use crate::machine::{Code, OutOfRange};
use crate::platform::TextWriteError;
use crate::site::SiteError;

/// Why something asked of the tracer was not done. Unless it says so, everything is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The site table was not accepted.
    Sites(SiteError),
    /// `init` was called before, successfully or not.
    AlreadyInitialised,
    /// `init` has not been called, or failed.
    NotInitialised,
    /// The user is registered already.
    AlreadyRegistered,
    /// The user is not registered.
    NotRegistered,
    /// All slots are taken.
    TooManyUsers {
        /// How many there are.
        max: usize,
    },
    /// A function that was named has no site, or one that must not be traced.
    NotTraceable {
        /// The function.
        func: FuncAddr,
    },
    /// Two users want to change where the same function goes on.
    IpModifyConflict {
        /// The function.
        func: FuncAddr,
    },
    /// A user that changes where functions go on must name them, and cannot have a notrace set.
    IpModifyNeedsFilter,
    /// A user without a trampoline of its own, or no address for one.
    NotDirect,
    /// No room for another module's sites.
    TooManyModules {
        /// How many there are.
        max: usize,
    },
    /// There is no such module (any more).
    NoSuchModule,
    /// A permanent user is registered, so tracing cannot be switched off; or it was to be registered while it is.
    Permanent,
    /// A set of functions is not in ascending order.
    UnsortedFilter {
        /// The first function that is not above the one before it.
        func: FuncAddr,
    },
    /// A trampoline is too far from a site.
    OutOfRange(OutOfRange),
    /// A site's text is not what the engine left there. Tracing has stopped for good.
    Surprise {
        /// The site.
        site: SiteAddr,
        /// What should stand there.
        expected: Code,
        /// What was found; empty if it could not be read.
        found: Code,
    },
    /// The platform failed to write text. Tracing has stopped for good.
    Write(TextWriteError),
    /// Tracing had been stopped for good before.
    Stopped,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sites(error) => error.fmt(f),
            Self::AlreadyInitialised => f.write_str("the tracer has been initialised before"),
            Self::NotInitialised => f.write_str("the tracer has not been initialised"),
            Self::AlreadyRegistered => f.write_str("the user is registered already"),
            Self::NotRegistered => f.write_str("the user is not registered"),
            Self::TooManyUsers { max } => write!(f, "all {max} slots for users are taken"),
            Self::NotTraceable { func } => {
                write!(f, "function {func} cannot be traced: it has no site, or is kept out")
            }
            Self::IpModifyConflict { func } => {
                write!(f, "function {func} has a user already that changes where it goes on")
            }
            Self::IpModifyNeedsFilter => {
                f.write_str("a user that changes where functions go on must name them, without a notrace set")
            }
            Self::NotDirect => f.write_str("the user has no trampoline of its own, or was given none"),
            Self::TooManyModules { max } => write!(f, "all {max} places for modules are taken"),
            Self::NoSuchModule => f.write_str("there is no such module"),
            Self::Permanent => {
                f.write_str("a permanent user and a tracer that is switched off exclude each other")
            }
            Self::UnsortedFilter { func } => {
                write!(f, "a set of functions must be sorted: {func} is not above the one before it")
            }
            Self::OutOfRange(error) => error.fmt(f),
            Self::Surprise { site, expected, found } => {
                write!(
                    f,
                    "text at site {site} was changed by someone else: expected {expected}, found {found}; tracing has stopped"
                )
            }
            Self::Write(error) => write!(f, "{error}; tracing has stopped"),
            Self::Stopped => f.write_str("tracing has been stopped for good"),
        }
    }
}

impl core::error::Error for Error {}

impl Error {
    /// The site that is to blame, if it is one.
    pub fn site(&self) -> Option<SiteAddr> {
        match self {
            Self::Sites(error) => error.site(),
            Self::Surprise { site, .. } => Some(*site),
            _ => None,
        }
    }
}
