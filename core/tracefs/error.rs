//! Why a file was not read or written, and what is wrong with a text that was refused.

use core::fmt;

use super::control::FunctionsError;
use super::tracing::TracingError;
use crate::words;

/// Why a file was not read or written. Nothing is changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FsError {
    /// There is no such file or directory.
    NoSuchFile,
    /// It is a directory, and a file was wanted.
    IsDirectory,
    /// It is a file, and a directory was wanted.
    NotDirectory,
    /// It can only be written.
    NotReadable,
    /// It can only be read.
    NotWritable,
    /// It has no offsets: what is read is gone.
    NoOffsets,
    /// It is there already.
    Exists,
    /// Directories are made and removed in `instances` alone.
    NotPermitted,
    /// The name is too long.
    NameTooLong {
        /// Its bytes.
        len: usize,
        /// How many are possible.
        max: usize,
    },
    /// There are as many instances as there can be.
    TooManyInstances {
        /// How many.
        max: usize,
    },
    /// Files of the instance are being read.
    Busy {
        /// Readings that there are.
        readings: usize,
    },
    /// The text is refused; `error_log` has a line about it.
    Refused(Refused),
    /// The tracer has nothing to read.
    Tracing(TracingError),
    /// The engine has nothing to read.
    Functions(FunctionsError),
}

/// What is wrong with a text that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Where, in bytes from its start.
    pub column: usize,
    /// What.
    pub cause: Cause,
}

/// What is wrong with a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// It is not UTF-8.
    NotText,
    /// There is nothing.
    Empty,
    /// One word was wanted.
    SecondWord,
    /// A decimal number was wanted.
    NotNumber,
    /// A hexadecimal number was wanted, with commas perhaps.
    NotMask,
    /// 0 or 1 was wanted.
    NotSwitch,
    /// The number is too large.
    TooLarge {
        /// The largest.
        most: u64,
    },
    /// More than nothing was wanted.
    Zero,
    /// A CPU of the mask is not there.
    NoSuchCpus {
        /// How many there are.
        cpus: usize,
    },
    /// No tracer is called that.
    NoSuchTracer,
    /// No option is called that.
    NoSuchOption,
    /// No clock is called that.
    NoSuchClock,
    /// No command is called that.
    NoSuchCommand,
    /// The functions of the text were taken, but the engine does not carry out its commands.
    CommandsNot(FunctionsError),
    /// No function that the word speaks of has that command.
    NoneThere,
    /// A word of a filter is wrong.
    Word(words::Cause),
    /// The tracer does not.
    Tracing(TracingError),
    /// The engine does not.
    Functions(FunctionsError),
}

impl Cause {
    /// Whether nothing of the text took effect. What goes wrong while the engine changes code may leave some of it changed, as the error
    /// says then.
    pub const fn keeps_all(&self) -> bool {
        !matches!(
            self,
            Self::CommandsNot(_)
                | Self::Functions(FunctionsError::Engine(_))
                | Self::Word(words::Cause::Engine(_))
                | Self::Tracing(TracingError::Engine(_) | TracingError::Off)
        )
    }
}

impl Refused {
    /// Something is wrong at a column.
    pub const fn at(column: usize, cause: Cause) -> Self {
        Self { column, cause }
    }
}

impl From<words::WordError> for Refused {
    fn from(error: words::WordError) -> Self {
        Self { column: error.column, cause: Cause::Word(error.cause) }
    }
}

impl From<TracingError> for Refused {
    fn from(error: TracingError) -> Self {
        Self { column: 0, cause: Cause::Tracing(error) }
    }
}

impl From<FunctionsError> for Refused {
    fn from(error: FunctionsError) -> Self {
        Self { column: 0, cause: Cause::Functions(error) }
    }
}

impl From<Refused> for FsError {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

impl From<TracingError> for FsError {
    fn from(error: TracingError) -> Self {
        Self::Tracing(error)
    }
}

impl From<FunctionsError> for FsError {
    fn from(error: FunctionsError) -> Self {
        Self::Functions(error)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotText => f.write_str("this is no text"),
            Self::Empty => f.write_str("something is missing here"),
            Self::SecondWord => f.write_str("one word is enough"),
            Self::NotNumber => f.write_str("a decimal number is expected"),
            Self::NotMask => f.write_str("a hexadecimal mask of CPUs is expected"),
            Self::NotSwitch => f.write_str("0 or 1 is expected"),
            Self::TooLarge { most } => write!(f, "the largest number here is {most}"),
            Self::Zero => f.write_str("it must be more than 0"),
            Self::NoSuchCpus { cpus } => write!(f, "there are {cpus} CPUs, and one of them must be left"),
            Self::NoSuchTracer => f.write_str("no such tracer; `available_tracers` has them"),
            Self::NoSuchOption => f.write_str("no such option; `trace_options` has them"),
            Self::NoSuchClock => f.write_str("no such clock; `trace_clock` has them"),
            Self::NoSuchCommand => {
                f.write_str("no such command; there are traceon, traceoff, stacktrace and snapshot")
            }
            Self::CommandsNot(error) => write!(f, "the functions were taken, and the commands not: {error}"),
            Self::NoneThere => f.write_str("no function of these has this command"),
            Self::Word(cause) => cause.fmt(f),
            Self::Tracing(error) => error.fmt(f),
            Self::Functions(error) => error.fmt(f),
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause.fmt(f)
    }
}

impl fmt::Display for FsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchFile => f.write_str("no such file or directory"),
            Self::IsDirectory => f.write_str("is a directory"),
            Self::NotDirectory => f.write_str("not a directory"),
            Self::NotReadable => f.write_str("this file can only be written"),
            Self::NotWritable => f.write_str("this file can only be read"),
            Self::NoOffsets => f.write_str("this file is read from where the last read ended"),
            Self::Exists => f.write_str("it is there already"),
            Self::NotPermitted => f.write_str("directories are made and removed in `instances` alone"),
            Self::NameTooLong { len, max } => write!(f, "a name of {len} bytes; {max} are possible"),
            Self::TooManyInstances { max } => write!(f, "there can be {max} instances, and there are"),
            Self::Busy { readings } => write!(f, "{readings} of its files are open"),
            Self::Refused(refused) => refused.fmt(f),
            Self::Tracing(error) => error.fmt(f),
            Self::Functions(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for FsError {}
impl core::error::Error for Refused {}

impl FsError {
    /// The number that Linux's errors have (`errno.h`): for embedders with system calls.
    pub fn errno(&self) -> i32 {
        const EPERM: i32 = 1;
        const ENOENT: i32 = 2;
        const ENOMEM: i32 = 12;
        const EACCES: i32 = 13;
        const EBUSY: i32 = 16;
        const EEXIST: i32 = 17;
        const ENODEV: i32 = 19;
        const ENOTDIR: i32 = 20;
        const EISDIR: i32 = 21;
        const EINVAL: i32 = 22;
        const ENOSPC: i32 = 28;
        const ESPIPE: i32 = 29;
        const ENAMETOOLONG: i32 = 36;
        let of_tracing = |error: &TracingError| match error {
            TracingError::NoMemory { .. } => ENOMEM,
            TracingError::Busy => EBUSY,
            TracingError::Engine(_) => ENODEV,
            _ => EINVAL,
        };
        let of_functions = |error: &FunctionsError| match error {
            FunctionsError::TooMany { .. } => ENOSPC,
            FunctionsError::NotSupported | FunctionsError::Engine(_) => ENODEV,
            FunctionsError::Profile(_) => EINVAL,
        };
        match self {
            Self::NoSuchFile => ENOENT,
            Self::IsDirectory => EISDIR,
            Self::NotDirectory => ENOTDIR,
            Self::NotReadable | Self::NotWritable => EACCES,
            Self::NoOffsets => ESPIPE,
            Self::Exists => EEXIST,
            Self::NotPermitted => EPERM,
            Self::NameTooLong { .. } => ENAMETOOLONG,
            Self::TooManyInstances { .. } => ENOSPC,
            Self::Busy { .. } => EBUSY,
            Self::Refused(Refused { cause: Cause::Tracing(error), .. }) | Self::Tracing(error) => {
                of_tracing(error)
            }
            Self::Refused(Refused { cause: Cause::Functions(error) | Cause::CommandsNot(error), .. })
            | Self::Functions(error) => of_functions(error),
            Self::Refused(_) => EINVAL,
        }
    }
}
