//! Function names in the running image: a table that `fgraph embed KERNEL` writes, read in place.
//!
//! Invariant: a [`Symbols`] exists only over bytes that [`Symbols::parse`] has checked as a whole; its
//! methods neither allocate nor fail nor panic. The lookup by address writes nothing and takes no lock, so an
//! interrupt may use it; names are demangled when they are shown, which belongs on the reader's side of a
//! trace (see [`Demangled`]). Users: whatever shows an address to people or takes a name from them. The image
//! provides the room with [`symbol_space!`](crate::symbol_space); the host tool fills it, with the constants
//! in [`layout`].
//!
//! # The format, version 1
//!
//! All integers are little-endian, whatever the machine. Offsets are from the first byte of the magic.
//!
//! | at | bytes    | what |
//! |---:|---------:|------|
//! |  0 | 8        | magic: `FGSYMTAB`, or `FGSYMRSV` in a space that is reserved and holds nothing yet |
//! |  8 | 4        | version |
//! | 12 | 4        | flags, 0 |
//! | 16 | 8        | capacity: bytes reserved in the image, 0 if the blob does not lie in such a space |
//! | 24 | 8        | length: bytes of the blob, header and strings included; 0 in an empty space |
//! | 32 | 8        | base: the link address that starts are counted from |
//! | 40 | 4        | count: entries `n` |
//! | 44 | 4        | bytes of names `s` |
//! | 48 | 4n       | starts: where each function starts, from the base; never descending |
//! |    | 4n       | sizes: bytes of each function, 0 if not known |
//! |    | 4n       | names: where each name starts in the strings; ascending; each name ends where the next begins |
//! |    | s        | strings: the names as the symbol table has them, UTF-8, one after the other, nothing between |
//!
//! Several names of one address are neighbours, and the first of them is the one to show. The writer decides
//! which: global before local before weak, then the shorter, then by text. Behind the blob, [`files`] may follow.

use core::fmt;
use core::hint::black_box;

use files::{Files, FilesError};

pub mod files;

/// Where things stand in the blob. Readers need only [`Symbols`]; these constants are for writers.
pub mod layout {
    /// First bytes of a blob.
    pub const MAGIC: [u8; 8] = *b"FGSYMTAB";
    /// First bytes of a space that is reserved and empty.
    pub const MAGIC_RESERVED: [u8; 8] = *b"FGSYMRSV";
    /// The version that this crate reads, and that its reserved spaces ask for.
    pub const VERSION: u32 = 1;
    /// Offset of the version, `u32`.
    pub const AT_VERSION: usize = 8;
    /// Offset of the flags, `u32`.
    pub const AT_FLAGS: usize = 12;
    /// Offset of the capacity, `u64`.
    pub const AT_CAPACITY: usize = 16;
    /// Offset of the length, `u64`.
    pub const AT_LENGTH: usize = 24;
    /// Offset of the base address, `u64`.
    pub const AT_BASE: usize = 32;
    /// Offset of the number of entries, `u32`.
    pub const AT_COUNT: usize = 40;
    /// Offset of the number of bytes in the strings, `u32`.
    pub const AT_STRING_BYTES: usize = 44;
    /// Bytes of the header; the starts follow.
    pub const HEADER_LEN: usize = 48;
    /// The section that a reserved space lies in.
    pub const SECTION: &str = ".fgraph_symbols";

    /// Bytes of a blob with `count` entries and `string_bytes` bytes of names.
    pub const fn blob_len(count: u32, string_bytes: u32) -> u64 {
        HEADER_LEN as u64 + 12 * count as u64 + string_bytes as u64
    }
}

/// Why bytes are not a symbol blob. Each variant carries the value that was wrong; `index` counts entries
/// from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SymbolsError {
    /// Fewer bytes than a header has.
    TooShort {
        /// Bytes there are.
        have: usize,
    },
    /// The space is reserved and nothing has been embedded.
    Empty {
        /// Bytes reserved.
        capacity: u64,
    },
    /// Neither a blob nor a reserved space starts with these bytes.
    BadMagic([u8; 8]),
    /// A version that this crate does not read.
    Version(u32),
    /// Flags that this version does not have.
    Flags(u32),
    /// The blob says it is longer than the bytes at hand.
    Truncated {
        /// What the header says.
        length: u64,
        /// Bytes there are.
        have: usize,
    },
    /// The parts do not add up to the stated length.
    LengthMismatch {
        /// What the header says.
        length: u64,
        /// Header, entries and strings together.
        parts: u64,
    },
    /// A function ends beyond the last address.
    AddressOverflow {
        /// Which entry.
        index: u32,
        /// Its start, counted from the base.
        start: u32,
    },
    /// A start below the one before it.
    Unsorted {
        /// Which entry.
        index: u32,
        /// Its start, counted from the base.
        start: u32,
    },
    /// A name that is empty, runs backwards or leaves the strings.
    NameRange {
        /// Which entry.
        index: u32,
        /// Where its name is said to start.
        offset: u32,
    },
    /// A name that begins or ends inside a character.
    NameSplitsCharacter {
        /// Which entry.
        index: u32,
        /// Where its name starts.
        offset: u32,
    },
    /// The strings are not UTF-8.
    NotUtf8 {
        /// Offset into the strings of the first wrong byte.
        offset: usize,
    },
    /// What follows the blob is a damaged table of source files.
    Files(FilesError),
}

impl fmt::Display for SymbolsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::TooShort { have } => {
                write!(f, "{have} bytes are no symbol table: its header alone has {}", layout::HEADER_LEN)
            }
            Self::Empty { capacity } => {
                write!(f, "{capacity} bytes are reserved for symbols and empty: run `fgraph embed KERNEL`")
            }
            Self::BadMagic(magic) => write!(f, "no symbol table starts with \"{}\"", magic.escape_ascii()),
            Self::Version(version) => {
                write!(f, "symbol table of version {version}; this reader knows version {}", layout::VERSION)
            }
            Self::Flags(flags) => write!(f, "symbol table with unknown flags {flags:#x}"),
            Self::Truncated { length, have } => {
                write!(f, "symbol table of {length} bytes, of which only {have} are there")
            }
            Self::LengthMismatch { length, parts } => {
                write!(f, "symbol table says it has {length} bytes, but its parts have {parts}")
            }
            Self::AddressOverflow { index, start } => {
                write!(f, "symbol {index} at base + {start:#x} ends beyond the last address")
            }
            Self::Unsorted { index, start } => {
                write!(f, "symbol {index} at base + {start:#x} lies below the one before it")
            }
            Self::NameRange { index, offset } => {
                write!(f, "symbol {index} has no name at {offset:#x} of the strings")
            }
            Self::NameSplitsCharacter { index, offset } => {
                write!(f, "the name of symbol {index}, at {offset:#x} of the strings, splits a character")
            }
            Self::NotUtf8 { offset } => write!(f, "the names are not UTF-8 at {offset:#x} of the strings"),
            Self::Files(error) => write!(f, "{error}"),
        }
    }
}

impl core::error::Error for SymbolsError {}

/// A function that the table knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol<'a> {
    /// Its first byte, at run time.
    pub start: u64,
    /// Its bytes, 0 if not known.
    pub size: u32,
    /// Its name as the symbol table has it.
    pub name: &'a str,
    /// How far behind the start the address lies that was asked for; 0 where none was.
    pub offset: u64,
    /// The source file that it comes from, if that is known.
    pub file: Option<&'a str>,
}

impl<'a> Symbol<'a> {
    /// The name as people read it.
    pub fn demangled(&self) -> Demangled<'a> {
        Demangled(self.name)
    }
}

/// Function names, read in place from bytes that were checked.
#[derive(Clone, Copy, Debug)]
pub struct Symbols<'a> {
    // Invariant, established by `parse`: the three slices have one length, which fits a `u32`; `starts` never
    // descends and `base + start + size` fits a `u64`; `names` ascends and cuts `strings` at characters.
    base: u64,
    slide: u64,
    starts: &'a [[u8; 4]],
    sizes: &'a [[u8; 4]],
    names: &'a [[u8; 4]],
    strings: &'a str,
    files: Files<'a>,
}

impl<'a> Symbols<'a> {
    /// Checks a blob and opens it. `bytes` may go on behind the blob, as a reserved space does.
    ///
    /// Reads every byte of the blob once: call it when tracing is set up and keep what it returns.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, SymbolsError> {
        let too_short = SymbolsError::TooShort { have: bytes.len() };
        let (header, _) = bytes.split_first_chunk::<{ layout::HEADER_LEN }>().ok_or(too_short)?;
        let magic = field::<8>(header, 0);
        if magic != layout::MAGIC && magic != layout::MAGIC_RESERVED {
            return Err(SymbolsError::BadMagic(magic));
        }
        let version = u32::from_le_bytes(field(header, layout::AT_VERSION));
        if version != layout::VERSION {
            return Err(SymbolsError::Version(version));
        }
        if magic == layout::MAGIC_RESERVED {
            let capacity = u64::from_le_bytes(field(header, layout::AT_CAPACITY));
            return Err(SymbolsError::Empty { capacity });
        }
        let flags = u32::from_le_bytes(field(header, layout::AT_FLAGS));
        if flags != 0 {
            return Err(SymbolsError::Flags(flags));
        }

        let length = u64::from_le_bytes(field(header, layout::AT_LENGTH));
        let count = u32::from_le_bytes(field(header, layout::AT_COUNT));
        let string_bytes = u32::from_le_bytes(field(header, layout::AT_STRING_BYTES));
        let parts = layout::blob_len(count, string_bytes);
        if parts != length {
            return Err(SymbolsError::LengthMismatch { length, parts });
        }
        let truncated = SymbolsError::Truncated { length, have: bytes.len() };
        let blob = usize::try_from(length).ok().and_then(|length| bytes.get(..length)).ok_or(truncated)?;
        // The blob has `parts` bytes, so `4 * count` fits a `usize` and none of the four cuts can fail.
        let words = count as usize * 4;
        let (_, rest) = blob.split_at_checked(layout::HEADER_LEN).ok_or(truncated)?;
        let (starts, rest) = rest.split_at_checked(words).ok_or(truncated)?;
        let (sizes, rest) = rest.split_at_checked(words).ok_or(truncated)?;
        let (names, strings) = rest.split_at_checked(words).ok_or(truncated)?;
        let strings = core::str::from_utf8(strings)
            .map_err(|error| SymbolsError::NotUtf8 { offset: error.valid_up_to() })?;

        let symbols = Self {
            base: u64::from_le_bytes(field(header, layout::AT_BASE)),
            slide: 0,
            starts: starts.as_chunks().0,
            sizes: sizes.as_chunks().0,
            names: names.as_chunks().0,
            strings,
            files: Files::NONE,
        };
        symbols.check_entries()?;
        let behind = bytes.get(blob.len()..).unwrap_or_default();
        let files = Files::parse(behind, count).map_err(SymbolsError::Files)?;
        Ok(Self { files, ..symbols })
    }

    fn check_entries(&self) -> Result<(), SymbolsError> {
        let mut previous = 0;
        for (index, ((start, size), name)) in self.starts.iter().zip(self.sizes).zip(self.names).enumerate() {
            let (start, size) = (u32::from_le_bytes(*start), u32::from_le_bytes(*size));
            let offset = u32::from_le_bytes(*name);
            let end = self.name_end(index);
            // `count` is a `u32` in the header, so every index is.
            let index = index as u32;
            if self
                .base
                .checked_add(u64::from(start))
                .and_then(|at| at.checked_add(u64::from(size)))
                .is_none()
            {
                return Err(SymbolsError::AddressOverflow { index, start });
            }
            if start < previous {
                return Err(SymbolsError::Unsorted { index, start });
            }
            previous = start;
            if offset as usize >= end || end > self.strings.len() {
                return Err(SymbolsError::NameRange { index, offset });
            }
            if self.strings.get(offset as usize..end).is_none() {
                return Err(SymbolsError::NameSplitsCharacter { index, offset });
            }
        }
        Ok(())
    }

    /// The same table for an image that runs `slide` bytes above its link address (wrapping: a negative slide
    /// is its two's complement). A position-independent image needs this, and one that places itself at
    /// random.
    #[must_use]
    pub fn with_slide(self, slide: u64) -> Self {
        Self { slide, ..self }
    }

    /// Number of names, aliases included.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Whether the table holds no name at all.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// The function that `addr` lies in, or that starts there. In O(log n), and the names of one address one
    /// by one.
    ///
    /// Where functions overlap, the one that starts last wins; behind its end there is none.
    pub fn by_address(&self, addr: u64) -> Option<Symbol<'a>> {
        let offset = addr.wrapping_sub(self.slide).checked_sub(self.base)?;
        let start_at = |word: &[u8; 4]| u64::from(u32::from_le_bytes(*word));
        let after = self.starts.partition_point(|word| start_at(word) <= offset);
        let start = start_at(self.starts.get(after.checked_sub(1)?)?);
        let first = self.starts.partition_point(|word| start_at(word) < start);
        let distance = offset - start;
        let mut names_there = (first..after).filter_map(|index| self.get(index));
        names_there
            .find(|symbol| distance == 0 || distance < u64::from(symbol.size))
            .map(|symbol| Symbol { offset: distance, ..symbol })
    }

    /// All names in ascending order of address; of one address, the name to show comes first.
    pub fn iter(&self) -> Iter<'a> {
        Iter { symbols: *self, next: 0 }
    }

    /// The number of the first name that starts at `addr` or above; `from` is such that all names before it start below. The
    /// answer is mostly near, when one function after another is asked for.
    pub(crate) fn next_from(&self, addr: u64, from: usize) -> usize {
        /// How far to look one by one.
        const NEAR: usize = 8;

        let starts_below = |index: usize| self.get(index).is_some_and(|symbol| symbol.start < addr);
        if let Some(near) = (from..from + NEAR).find(|index| !starts_below(*index)) {
            return near;
        }
        let (mut low, mut high) = (from + NEAR, self.len());
        while low < high {
            let middle = low.midpoint(high);
            if starts_below(middle) { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// All functions of that name: raw, or demangled, or without the `.llvm.` suffix of a promoted local.
    ///
    /// A function that has exactly this raw name hides those that only read alike. `.cold`, `.part.0` and the
    /// like are other code, and their suffix is part of the name. Looks at every entry.
    pub fn by_name<'n>(&self, name: &'n str) -> ByName<'a, 'n> {
        let exact = self.iter().any(|symbol| symbol.name == name);
        ByName { iter: self.iter(), name, exact }
    }

    /// The name with this number, in the order of [`iter`](Self::iter).
    pub(crate) fn get(&self, index: usize) -> Option<Symbol<'a>> {
        let start = u32::from_le_bytes(*self.starts.get(index)?);
        let size = u32::from_le_bytes(*self.sizes.get(index)?);
        let from = u32::from_le_bytes(*self.names.get(index)?) as usize;
        let name = self.strings.get(from..self.name_end(index))?;
        let start = self.base.wrapping_add(u64::from(start)).wrapping_add(self.slide);
        Some(Symbol { start, size, name, offset: 0, file: self.files.of(index) })
    }

    fn name_end(&self, index: usize) -> usize {
        match self.names.get(index + 1) {
            Some(word) => u32::from_le_bytes(*word) as usize,
            None => self.strings.len(),
        }
    }
}

/// `N` bytes of the header. `at` is one of the layout's constants, all of which leave room for their field.
fn field<const N: usize>(header: &[u8; layout::HEADER_LEN], at: usize) -> [u8; N] {
    header.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

impl<'a> IntoIterator for Symbols<'a> {
    type Item = Symbol<'a>;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

/// Iterator over all names, made by [`Symbols::iter`].
#[derive(Clone, Debug)]
pub struct Iter<'a> {
    symbols: Symbols<'a>,
    next: usize,
}

impl<'a> Iterator for Iter<'a> {
    type Item = Symbol<'a>;

    fn next(&mut self) -> Option<Symbol<'a>> {
        let symbol = self.symbols.get(self.next)?;
        self.next += 1;
        Some(symbol)
    }
}

/// Iterator over the functions of one name, made by [`Symbols::by_name`].
#[derive(Clone, Debug)]
pub struct ByName<'a, 'n> {
    iter: Iter<'a>,
    name: &'n str,
    exact: bool,
}

impl<'a> Iterator for ByName<'a, '_> {
    type Item = Symbol<'a>;

    fn next(&mut self) -> Option<Symbol<'a>> {
        let (name, exact) = (self.name, self.exact);
        self.iter.find(|symbol| if exact { symbol.name == name } else { symbol.demangled() == *name })
    }
}

/// A name as people read it, made while it is shown: Rust paths of both manglings without their hashes, and
/// any name without the `.llvm.123` of a promoted local. `.isra.0`, `.constprop.0`, `.part.0` and `.cold`
/// stay. What cannot be demangled whole, within [`Demangled::LIMIT`], is shown as the symbol table has it.
///
/// Demangling needs stack in proportion to how deep the name nests, and the demangler gives up only at 500
/// levels: not something for an interrupt or for the traced path.
#[derive(Clone, Copy, Debug)]
pub struct Demangled<'a>(
    /// The name as the symbol table has it.
    pub &'a str,
);

impl<'a> Demangled<'a> {
    /// Longest text that is shown demangled. A short name can stand for an endless one by referring to its
    /// own parts.
    pub const LIMIT: usize = 8192;

    /// The name up to a `.llvm.` suffix, and what follows that suffix.
    fn without_promotion(&self) -> (&'a str, &'a str) {
        const MARK: &str = ".llvm.";
        if let Some((name, rest)) = self.0.split_once(MARK) {
            let digits = |c: char| matches!(c, '0'..='9' | 'A'..='F' | '@');
            let tail = rest.trim_start_matches(digits);
            if !name.is_empty() && tail.len() < rest.len() && (tail.is_empty() || tail.starts_with('.')) {
                return (name, tail);
            }
        }
        (self.0, "")
    }
}

impl fmt::Display for Demangled<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, tail) = self.without_promotion();
        match demangle_whole(name) {
            Some(path) => write!(f, "{path:#}")?,
            None => f.write_str(name)?,
        }
        f.write_str(tail)
    }
}

impl PartialEq<str> for Demangled<'_> {
    fn eq(&self, text: &str) -> bool {
        use fmt::Write;
        let mut compare = Expect { rest: text };
        write!(compare, "{self}").is_ok() && compare.rest.is_empty()
    }
}

/// Demangles a name that comes out whole. The demangler also takes names without the underscore that every
/// ELF symbol has, which a C function may bear by chance, and writes its own complaints into the middle of a
/// path; both are not for us.
fn demangle_whole(name: &str) -> Option<rustc_demangle::Demangle<'_>> {
    use fmt::Write;
    if !name.starts_with("_ZN") && !name.starts_with("_R") {
        return None;
    }
    let path = rustc_demangle::try_demangle(name).ok()?;
    write!(Rehearsal { left: Demangled::LIMIT }, "{path:#}").ok()?;
    Some(path)
}

/// Takes a name to find out whether it is whole and not too long. Refusing text makes the demangler stop
/// there.
struct Rehearsal {
    left: usize,
}

impl fmt::Write for Rehearsal {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if ["{invalid syntax}", "{recursion limit reached}", "{size limit reached}"].contains(&text) {
            return Err(fmt::Error);
        }
        self.left = self.left.checked_sub(text.len()).ok_or(fmt::Error)?;
        Ok(())
    }
}

/// Compares what is written with a text, without keeping it.
struct Expect<'t> {
    rest: &'t str,
}

impl fmt::Write for Expect<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.rest = self.rest.strip_prefix(text).ok_or(fmt::Error)?;
        Ok(())
    }
}

/// Room for a blob in an image, made by [`symbol_space!`](crate::symbol_space). `N` is its capacity.
#[repr(C, align(8))]
#[derive(Debug)]
pub struct SymbolSpace<const N: usize> {
    bytes: [u8; N],
}

impl<const N: usize> SymbolSpace<N> {
    /// A space that holds nothing but the mark by which the host tool knows it.
    pub const fn reserved() -> Self {
        const { assert!(N >= layout::HEADER_LEN, "a symbol space must hold at least the header") };
        let mut bytes = [0; N];
        put(&mut bytes, 0, &layout::MAGIC_RESERVED);
        put(&mut bytes, layout::AT_VERSION, &layout::VERSION.to_le_bytes());
        put(&mut bytes, layout::AT_CAPACITY, &(N as u64).to_le_bytes());
        Self { bytes }
    }

    /// What the image has there, which is not what the compiler saw: the host tool writes it after linking.
    #[inline]
    pub fn bytes(&'static self) -> &'static [u8] {
        // The static is immutable and its initial value known, so the optimiser may answer any read of it
        // with that value. It cannot see which object this reference names.
        &black_box(self).bytes
    }

    /// Opens the table that was embedded.
    #[inline]
    pub fn symbols(&'static self) -> Result<Symbols<'static>, SymbolsError> {
        Symbols::parse(self.bytes())
    }
}

const fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    let mut index = 0;
    while index < value.len() {
        bytes[at + index] = value[index];
        index += 1;
    }
}

/// Reserves bytes for function names in the image, and defines `symbols()` to read them:
///
/// ```
/// fgraph::symbol_space!(512 * 1024);
///
/// match symbols() {
///     Ok(symbols) => println!("{} names", symbols.len()),
///     Err(error) => println!("{error}"), // ... run `fgraph embed KERNEL`
/// }
/// ```
///
/// The space lies in a section of its own, `.fgraph_symbols`, which the kernel's linker script must keep
/// under that name and load. Once per image: the symbol is exported, so that a second one fails to link.
/// `fgraph embed` says how many bytes are needed if the space is too small; about 60 bytes for each function
/// is a start.
#[macro_export]
macro_rules! symbol_space {
    ($bytes:expr) => {
        #[used]
        #[unsafe(link_section = ".fgraph_symbols")]
        #[unsafe(export_name = "__fgraph_symbol_space")]
        static FGRAPH_SYMBOL_SPACE: $crate::symbols::SymbolSpace<{ $bytes }> =
            $crate::symbols::SymbolSpace::reserved();

        /// The function names that `fgraph embed` put into this image.
        pub(crate) fn symbols()
        -> ::core::result::Result<$crate::symbols::Symbols<'static>, $crate::symbols::SymbolsError> {
            FGRAPH_SYMBOL_SPACE.symbols()
        }
    };
}

#[cfg(test)]
pub(crate) mod tests;
