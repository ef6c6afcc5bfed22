//! What can be wrong with BTF, and where.

use core::fmt;

/// Why bytes are not BTF that can be read, or why a type cannot be followed. Offsets of types count from the start of the type section,
/// offsets of names from the start of the strings, those of a base included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BtfError {
    /// Fewer bytes than a header has.
    TooShort {
        /// Bytes there are.
        have: usize,
    },
    /// BTF does not start with these bytes.
    BadMagic([u8; 2]),
    /// Made for a machine of the other byte order.
    BigEndian,
    /// A version of the format that is not known.
    Version(u8),
    /// Flags in the header, of which none is known.
    Flags(u8),
    /// The header says it has this many bytes, which are too few or more than there are.
    HeaderLength {
        /// What it says.
        len: u32,
    },
    /// The types or the strings do not lie in the file, or the types not at a multiple of four.
    SectionRange {
        /// Which of them.
        section: Section,
        /// Where it is said to start, behind the header.
        offset: u32,
        /// Bytes it is said to have.
        len: u32,
    },
    /// The strings do not end with a zero, or those of a base do not start with an empty one.
    Strings {
        /// Bytes of the strings.
        len: usize,
    },
    /// The section ends inside of a type.
    Truncated {
        /// The type.
        id: u32,
        /// Where it starts.
        offset: u32,
    },
    /// A kind of type that is not known. What follows it cannot be found then.
    UnknownKind {
        /// The type.
        id: u32,
        /// Where it starts.
        offset: u32,
        /// The kind.
        kind: u32,
    },
    /// A name outside of the strings.
    NameRange {
        /// The type that has it.
        id: u32,
        /// Where it is said to start.
        name: u32,
    },
    /// A name that starts inside of another name of the base: this is not the base that it was made for.
    NameSplit {
        /// The type that has it.
        id: u32,
        /// Where it is said to start.
        name: u32,
    },
    /// A type that refers to a type which does not exist. That of a module without its base does.
    NoSuchType {
        /// The type that refers, 0 if none does.
        id: u32,
        /// To which.
        refers_to: u32,
    },
    /// More types than can be numbered.
    TooManyTypes,
    /// The base has a base itself.
    BaseIsSplit,
    /// Not enough memory was given for the index.
    NoRoom {
        /// Words needed.
        need: usize,
        /// Words given.
        have: usize,
    },
    /// The index that stands beside the BTF does not belong to it.
    BadIndex {
        /// Which of its tables.
        table: Table,
        /// The first wrong entry.
        entry: usize,
    },
    /// A chain of types, or of types in types, that is longer than it may be, or turns in a circle.
    TooDeep {
        /// Where it was given up.
        id: u32,
    },
    /// A type that no value can have: a function, a structure of which only the name is known.
    NoSize {
        /// The type.
        id: u32,
    },
}

/// A section of BTF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// The types.
    Types,
    /// The strings.
    Strings,
}

/// A table of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// Where each type is.
    Offsets,
    /// Types in the order of their names.
    Names,
    /// DECL_TAGs in the order of what they stand on.
    Tags,
}

impl fmt::Display for BtfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::TooShort { have } => write!(f, "{have} bytes are no BTF: its header alone has more"),
            Self::BadMagic(magic) => write!(f, "no BTF starts with \"{}\"", magic.escape_ascii()),
            Self::BigEndian => f.write_str("BTF of a big-endian machine"),
            Self::Version(version) => write!(f, "BTF of version {version}; this reader knows version 1"),
            Self::Flags(flags) => write!(f, "BTF with unknown flags {flags:#x}"),
            Self::HeaderLength { len } => write!(f, "a header of {len} bytes does not fit this BTF"),
            Self::SectionRange { section, offset, len } => {
                let section = if section == Section::Types { "types" } else { "strings" };
                write!(f, "the {section} of this BTF cannot be {len} bytes at {offset:#x}")
            }
            Self::Strings { len } => {
                write!(f, "{len} bytes of strings do not start with an empty one or do not end with a zero")
            }
            Self::Truncated { id, offset } => {
                write!(f, "type {id} at {offset:#x} goes on behind the end of the types")
            }
            Self::UnknownKind { id, offset, kind } => {
                write!(f, "type {id} at {offset:#x} is of kind {kind}, which is not known")
            }
            Self::NameRange { id, name } => {
                write!(
                    f,
                    "type {id} has a name at {name:#x}, outside of the strings (is this BTF of a module without its base?)"
                )
            }
            Self::NameSplit { id, name } => {
                write!(f, "type {id} has a name at {name:#x}, inside of another one: this is not its base")
            }
            Self::NoSuchType { id: 0, refers_to } => write!(f, "there is no type {refers_to}"),
            Self::NoSuchType { id, refers_to } => {
                write!(f, "type {id} refers to type {refers_to}, which does not exist")
            }
            Self::TooManyTypes => f.write_str("more types than can be numbered"),
            Self::BaseIsSplit => f.write_str("the base has a base itself"),
            Self::NoRoom { need, have } => {
                write!(f, "the index needs {need} words, and has been given {have}")
            }
            Self::BadIndex { table, entry } => {
                let table = match table {
                    Table::Offsets => "offsets",
                    Table::Names => "names",
                    Table::Tags => "tags",
                };
                write!(f, "entry {entry} of the {table} does not belong to this BTF")
            }
            Self::TooDeep { id } => write!(f, "type {id} is at the end of too long a chain"),
            Self::NoSize { id } => write!(f, "type {id} has no size"),
        }
    }
}

impl core::error::Error for BtfError {}
