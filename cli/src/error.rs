//! Why an input cannot be used. What can be used and is wrong is a [`Finding`](crate::check::Finding)
//! instead.

use std::fmt;
use std::io;
use std::path::PathBuf;

use fgraph::btf::image::{ImageError, layout as types_layout};
use fgraph::pattern::PatternTooLong;
use fgraph::symbols::SymbolsError;
use fgraph::symbols::layout::SECTION;

use crate::btf::write::TooMuch;
use crate::embed::types::Without;
use crate::sites::TableError;

/// Why a command could not do its work. Each ends with exit code 2.
#[derive(Debug)]
pub enum Error {
    /// The file cannot be read.
    Read(PathBuf, io::Error),
    /// The result cannot be written; the file that was to be replaced is as it was.
    Write(PathBuf, io::Error),
    /// Standard output does not take the text.
    Print(io::Error),
    /// The file does not start like an ELF file.
    NotElf,
    /// An ELF file that is not 64-bit little-endian: its class and its data encoding.
    NotLittle64(u8, u8),
    /// An ELF file for a machine that fgraph does not know.
    Machine(u16),
    /// An ELF file that is neither a linked image nor a relocatable object: its type.
    FileType(u16),
    /// The ELF file contradicts itself or is cut off.
    Malformed(object::read::Error),
    /// An object file where a linked image is needed.
    NotLinked,
    /// The image has no symbol table.
    NoSymbolTable,
    /// The symbol table has no function in an executable section.
    NoFunctions,
    /// The image has no section to put the names into.
    NoSpace,
    /// The section has no bytes in the file.
    SpaceNotInFile,
    /// What stands in the section was not put there by `symbol_space!`.
    SpaceNotReserved(SymbolsError),
    /// The space says it has more bytes than its section.
    SpaceCapacity {
        /// What the space says.
        capacity: u64,
        /// Bytes of the section.
        section: u64,
    },
    /// The names need more bytes than were reserved.
    SpaceTooSmall {
        /// Bytes reserved.
        have: u64,
        /// Bytes needed.
        need: u64,
    },
    /// Types were asked for, and there are none.
    NoTypes(Without),
    /// The section for types has no bytes in the file.
    TypesNotInFile,
    /// What stands in the section for types was not put there by `type_space!`.
    TypesNotReserved(ImageError),
    /// The space for types says it has more bytes than its section.
    TypesCapacity {
        /// What the space says.
        capacity: u64,
        /// Bytes of the section.
        section: u64,
    },
    /// The types need more bytes than were reserved.
    TypesTooSmall {
        /// Bytes reserved.
        have: u64,
        /// Bytes needed.
        need: u64,
    },
    /// The types cannot be written as the kernel reads them.
    Types(ImageError),
    /// More types than BTF can hold.
    TooManyTypes(TooMuch),
    /// The functions lie too far apart for the format: the lowest and the highest start.
    Span(u64, u64),
    /// More names than the format can hold, in number or in bytes.
    TooManyNames(u64),
    /// The table of patch sites cannot be read.
    Table(TableError),
    /// The file is no trace: how it begins, and what it seems to be.
    Foreign(PathBuf, Vec<u8>, Option<&'static str>),
    /// A glob is too long.
    Pattern(PatternTooLong),
    /// A format for programs would go to a terminal.
    BinaryToTerminal,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(path, error) => write!(f, "cannot read {}: {error}", path.display()),
            Self::Write(path, error) => write!(f, "cannot write {}: {error}", path.display()),
            Self::Print(error) => write!(f, "cannot write to standard output: {error}"),
            Self::NotElf => write!(f, "not an ELF file"),
            Self::NotLittle64(class, encoding) => {
                write!(f, "not a 64-bit little-endian ELF file (class {class}, encoding {encoding})")
            }
            Self::Machine(machine) => {
                write!(f, "an ELF file for machine {machine}; fgraph knows x86_64 (62) and arm64 (183)")
            }
            Self::FileType(kind) => {
                write!(f, "an ELF file of type {kind}, neither linked nor an object file")
            }
            Self::Malformed(error) => write!(f, "malformed ELF file: {error}"),
            Self::NotLinked => write!(f, "an object file; this needs a linked kernel"),
            Self::NoSymbolTable => write!(f, "the image has no symbol table: use it before it is stripped"),
            Self::NoFunctions => write!(f, "the symbol table has no function in an executable section"),
            Self::NoSpace => write!(
                f,
                "the image has no section {SECTION}: reserve it with `fgraph::symbol_space!(BYTES)`, use the \
                 `symbols()` that this defines, and have the linker script keep the section under its name"
            ),
            Self::SpaceNotInFile => {
                write!(f, "section {SECTION} has no bytes in the file: it must be loaded data")
            }
            Self::SpaceNotReserved(error) => {
                write!(f, "section {SECTION} does not hold a space made by `symbol_space!`: {error}")
            }
            Self::SpaceCapacity { capacity, section } => {
                write!(f, "the reserved space says {capacity} bytes, its section {SECTION} has {section}")
            }
            Self::SpaceTooSmall { have, need } => write!(
                f,
                "the names need {need} bytes and {have} are reserved: use `symbol_space!({})`",
                need.checked_next_multiple_of(4096).unwrap_or(*need)
            ),
            Self::NoTypes(why) => write!(f, "no types: {why}"),
            Self::TypesNotInFile => {
                write!(
                    f,
                    "section {} has no bytes in the file: it must be loaded data",
                    types_layout::SECTION
                )
            }
            Self::TypesNotReserved(error) => write!(
                f,
                "section {} does not hold a space made by `type_space!`: {error}",
                types_layout::SECTION
            ),
            Self::TypesCapacity { capacity, section } => write!(
                f,
                "the reserved space says {capacity} bytes, its section {} has {section}",
                types_layout::SECTION
            ),
            Self::TypesTooSmall { have, need } => write!(
                f,
                "the types need {need} bytes and {have} are reserved: use `type_space!({})`",
                need.checked_next_multiple_of(4096).unwrap_or(*need)
            ),
            Self::Types(error) => write!(f, "the types cannot be written: {error}"),
            Self::TooManyTypes(TooMuch(what, count)) => write!(f, "{count} {what} are too many"),
            Self::Span(low, high) => {
                write!(f, "functions from {low:#x} to {high:#x} lie more than 4 GiB apart")
            }
            Self::TooManyNames(count) => write!(f, "{count} names or bytes of names are too many"),
            Self::Table(error) => write!(f, "{error}"),
            Self::Foreign(path, _, Some(seems)) => write!(f, "{} is no trace, but {seems}", path.display()),
            Self::Foreign(path, start, None) if start.is_empty() => {
                write!(f, "{} is empty", path.display())
            }
            Self::Foreign(path, start, None) => {
                write!(f, "{} is no trace: it begins with {}", path.display(), start.escape_ascii())
            }
            Self::Pattern(error) => write!(f, "{error}"),
            Self::BinaryToTerminal => {
                write!(f, "this format is for programs: give a file with --output, or send it to one")
            }
        }
    }
}

impl std::error::Error for Error {}

impl From<object::read::Error> for Error {
    fn from(error: object::read::Error) -> Self {
        Self::Malformed(error)
    }
}
