//! Types and the functions that have them, in the running image: a blob that `fgraph embed` writes, read in place.
//!
//! Invariant: a [`Types`] exists only over bytes that [`Types::parse`] has checked as a whole; its methods neither allocate nor fail nor
//! panic, and the lookup by address takes no lock. The image provides the room with [`type_space!`](crate::type_space); the host tool
//! fills it by [`write()`], which needs neither `std` nor `alloc` either.
//!
//! # The format, version 1
//!
//! All integers are little-endian. Offsets are from the first byte of the magic.
//!
//! | at | bytes | what |
//! |---:|------:|------|
//! |  0 | 8     | magic: `FGTYPTAB`, or `FGTYPRSV` in a space that is reserved and holds nothing yet |
//! |  8 | 4     | version |
//! | 12 | 4     | flags, 0 |
//! | 16 | 8     | capacity: bytes reserved in the image, 0 if the blob does not lie in such a space |
//! | 24 | 8     | length: bytes of the blob, header included; 0 in an empty space |
//! | 32 | 8     | base: the link address that starts are counted from |
//! | 40 | 4     | functions `n` |
//! | 44 | 4     | bytes of BTF `b` |
//! | 48 | 4     | types `t` |
//! | 52 | 4     | named types `m` |
//! | 56 | 4     | DECL_TAGs `d` |
//! | 60 | 4     | 0 |
//! | 64 | 4n    | starts: where each function starts, from the base; strictly ascending |
//! |    | 4n    | sizes: bytes of each function, 0 if not known |
//! |    | 4n    | ids: the FUNC of each function |
//! |    | 4t    | offsets: where each type starts in the types of the BTF |
//! |    | 4m    | names: ids of named types, by the bytes of the name, then by id |
//! |    | 4d    | tags: ids of DECL_TAGs, by target, component (the whole first), then by id |
//! |    | b     | the BTF, as it would stand in a `.BTF` section |
//!
//! One address has one function here; of code that several functions share, the writer leaves out those that differ in type.

use core::fmt;
use core::hint::black_box;

use super::index::Index;
use super::raw::{Counts, Sections, number};
use super::{Btf, BtfError, Kind, Word};

/// Where things stand in the blob. Readers need only [`Types`], writers only [`write`](fn@write).
pub mod layout {
    /// First bytes of a blob.
    pub const MAGIC: [u8; 8] = *b"FGTYPTAB";
    /// First bytes of a space that is reserved and empty.
    pub const MAGIC_RESERVED: [u8; 8] = *b"FGTYPRSV";
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
    /// Offset of the counts, five times `u32`: functions, bytes of BTF, types, named types, DECL_TAGs.
    pub const AT_COUNTS: usize = 40;
    /// Bytes of the header; the starts follow.
    pub const HEADER_LEN: usize = 64;
    /// The section that a reserved space lies in.
    pub const SECTION: &str = ".fgraph_types";
}

/// Why bytes are not a blob of types, or why one could not be written. `index` counts functions from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageError {
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
        /// All parts together.
        parts: u64,
    },
    /// A function that does not start above the one before it, or ends beyond the last address.
    Address {
        /// Which function.
        index: usize,
        /// Its start, counted from the base.
        start: u32,
    },
    /// A function whose id is not one of a FUNC.
    NotAFunction {
        /// Which function.
        index: usize,
        /// The id.
        id: u32,
    },
    /// The BTF, or its index.
    Btf(BtfError),
    /// To be written: a function that starts below the base or 4 GiB and more above it.
    FarFromBase {
        /// Which function.
        index: usize,
        /// Where it starts.
        start: u64,
    },
    /// To be written: more functions or more bytes than the format can count.
    TooMuch,
    /// To be written: not enough room.
    NoRoom {
        /// Bytes needed.
        need: usize,
        /// Bytes given.
        have: usize,
    },
}

impl fmt::Display for ImageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::TooShort { have } => {
                write!(f, "{have} bytes are no types: their header alone has {}", layout::HEADER_LEN)
            }
            Self::Empty { capacity } => {
                write!(f, "{capacity} bytes are reserved for types and empty: run `fgraph embed KERNEL`")
            }
            Self::BadMagic(magic) => write!(f, "no types start with \"{}\"", magic.escape_ascii()),
            Self::Version(version) => {
                write!(f, "types of version {version}; this reader knows version {}", layout::VERSION)
            }
            Self::Flags(flags) => write!(f, "types with unknown flags {flags:#x}"),
            Self::Truncated { length, have } => {
                write!(f, "types of {length} bytes, of which only {have} are there")
            }
            Self::LengthMismatch { length, parts } => {
                write!(f, "the types say they have {length} bytes, but their parts have {parts}")
            }
            Self::Address { index, start } => {
                write!(
                    f,
                    "typed function {index} at base + {start:#x} is not above the one before it, or has no end"
                )
            }
            Self::NotAFunction { index, id } => {
                write!(f, "typed function {index} has type {id}, which is no function")
            }
            Self::Btf(error) => error.fmt(f),
            Self::FarFromBase { index, start } => {
                write!(f, "typed function {index} at {start:#x} is too far from the base")
            }
            Self::TooMuch => f.write_str("more functions or types than can be counted"),
            Self::NoRoom { need, have } => write!(f, "the types need {need} bytes; {have} are there"),
        }
    }
}

impl core::error::Error for ImageError {}

impl From<BtfError> for ImageError {
    fn from(error: BtfError) -> Self {
        Self::Btf(error)
    }
}

/// A function and its types, for [`write()`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// Its address, as its symbol has it.
    pub start: u64,
    /// Its bytes, 0 if not known: then only its first byte is known to be of it.
    pub size: u32,
    /// Its FUNC.
    pub id: u32,
}

/// Types, and which function has which.
#[derive(Clone, Copy, Debug)]
pub struct Types<'a> {
    // Invariant, established by `parse`: the three tables have one length, `starts` ascends, ids are of FUNCs.
    btf: Btf<'a>,
    base: u64,
    slide: u64,
    starts: &'a [Word],
    sizes: &'a [Word],
    ids: &'a [Word],
}

impl<'a> Types<'a> {
    /// Checks a blob and opens it. `bytes` may go on behind the blob, as a reserved space does.
    ///
    /// Reads everything once, and every name a few times: call it when tracing is set up and keep what it returns.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ImageError> {
        let too_short = ImageError::TooShort { have: bytes.len() };
        let (header, _) = bytes.split_first_chunk::<{ layout::HEADER_LEN }>().ok_or(too_short)?;
        let magic: [u8; 8] = field(header, 0);
        if magic != layout::MAGIC && magic != layout::MAGIC_RESERVED {
            return Err(ImageError::BadMagic(magic));
        }
        let version = u32::from_le_bytes(field(header, layout::AT_VERSION));
        if version != layout::VERSION {
            return Err(ImageError::Version(version));
        }
        if magic == layout::MAGIC_RESERVED {
            return Err(ImageError::Empty {
                capacity: u64::from_le_bytes(field(header, layout::AT_CAPACITY)),
            });
        }
        let flags = u32::from_le_bytes(field(header, layout::AT_FLAGS));
        if flags != 0 {
            return Err(ImageError::Flags(flags));
        }
        let length = u64::from_le_bytes(field(header, layout::AT_LENGTH));
        let count = |n: usize| u32::from_le_bytes(field(header, layout::AT_COUNTS + 4 * n));
        let [functions, btf_len, types, names, tags] = [count(0), count(1), count(2), count(3), count(4)];
        let words = 3 * u64::from(functions) + u64::from(types) + u64::from(names) + u64::from(tags);
        let parts = layout::HEADER_LEN as u64 + 4 * words + u64::from(btf_len);
        if parts != length {
            return Err(ImageError::LengthMismatch { length, parts });
        }
        let truncated = ImageError::Truncated { length, have: bytes.len() };
        let blob = usize::try_from(length).ok().and_then(|length| bytes.get(..length)).ok_or(truncated)?;
        let mut rest = blob.get(layout::HEADER_LEN..).unwrap_or_default();
        // The blob has `parts` bytes, so none of the cuts can fail.
        let mut table = |len: u32| {
            let (table, behind) = rest.split_at_checked(len as usize * 4).unwrap_or_default();
            rest = behind;
            table.as_chunks::<4>().0
        };
        let [starts, sizes, ids] = [table(functions), table(functions), table(functions)];
        let index = Index { offsets: table(types), names: table(names), tags: table(tags) };
        let btf = Btf::without_index(Sections::parse(rest)?, None)?.with_index(index)?;
        let base = u64::from_le_bytes(field(header, layout::AT_BASE));
        let types = Self { btf, base, slide: 0, starts, sizes, ids };
        types.check_functions()?;
        Ok(types)
    }

    fn check_functions(&self) -> Result<(), ImageError> {
        let mut lowest = 0;
        for (index, ((start, size), id)) in self.starts.iter().zip(self.sizes).zip(self.ids).enumerate() {
            let (start, size, id) = (number(start), number(size), number(id));
            let end = self.base.checked_add(start.into()).and_then(|at| at.checked_add(size.into()));
            if u64::from(start) < lowest || end.is_none() {
                return Err(ImageError::Address { index, start });
            }
            lowest = u64::from(start) + 1;
            if !self.btf.get(id).is_some_and(|ty| matches!(ty.kind, Kind::Func { .. })) {
                return Err(ImageError::NotAFunction { index, id });
            }
        }
        Ok(())
    }

    /// The same types for an image that runs `slide` bytes above its link address (wrapping).
    #[must_use]
    pub fn with_slide(self, slide: u64) -> Self {
        Self { slide, ..self }
    }

    /// The types.
    pub fn btf(&self) -> Btf<'a> {
        self.btf
    }

    /// How many functions have types.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Whether no function has.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// The id of the FUNC of the function that `addr` lies in, or that starts there. In O(log n).
    pub fn function_at(&self, addr: u64) -> Option<u32> {
        let offset = addr.wrapping_sub(self.slide).checked_sub(self.base)?;
        let n = self.starts.partition_point(|start| u64::from(number(start)) <= offset).checked_sub(1)?;
        let distance = offset - u64::from(number(self.starts.get(n)?));
        let is_inside = distance == 0 || distance < u64::from(number(self.sizes.get(n)?));
        is_inside.then(|| self.ids.get(n).map(number)).flatten()
    }
}

/// `N` bytes of the header. `at` is one of the layout's constants, all of which leave room for their field.
fn field<const N: usize>(header: &[u8; layout::HEADER_LEN], at: usize) -> [u8; N] {
    header.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

/// Bytes of the blob for these functions and types.
pub fn blob_len(functions: &[Function], btf: &[u8]) -> Result<usize, ImageError> {
    let counts = Sections::parse(btf)?.count()?;
    let words = functions.len().checked_mul(3).and_then(|words| words.checked_add(counts.words()));
    let bytes = words.and_then(|words| words.checked_mul(4)).and_then(|bytes| bytes.checked_add(btf.len()));
    bytes.and_then(|bytes| bytes.checked_add(layout::HEADER_LEN)).ok_or(ImageError::TooMuch)
}

/// Writes a blob to the start of `out` and says how many bytes it has. `functions` ascend by their start; `capacity` is that of the
/// space it is for, or 0. What has been written is a blob that [`Types::parse`] takes.
pub fn write(
    functions: &[Function],
    btf: &[u8],
    base: u64,
    capacity: u64,
    out: &mut [u8],
) -> Result<usize, ImageError> {
    let length = blob_len(functions, btf)?;
    let have = out.len();
    let out = out.get_mut(..length).ok_or(ImageError::NoRoom { need: length, have })?;
    let counts = Sections::parse(btf)?.count()?;
    let narrow = |len: usize| u32::try_from(len).map_err(|_| ImageError::TooMuch);
    let (header, rest) = out.split_at_mut(layout::HEADER_LEN);
    header.fill(0);
    let mut put = |at: usize, bytes: &[u8]| {
        if let Some(to) = header.get_mut(at..at + bytes.len()) {
            to.copy_from_slice(bytes);
        }
    };
    put(0, &layout::MAGIC);
    put(layout::AT_VERSION, &layout::VERSION.to_le_bytes());
    put(layout::AT_CAPACITY, &capacity.to_le_bytes());
    put(layout::AT_LENGTH, &(length as u64).to_le_bytes());
    put(layout::AT_BASE, &base.to_le_bytes());
    let Counts { types, named, tags } = counts;
    for (n, count) in [narrow(functions.len())?, narrow(btf.len())?, types, named, tags].iter().enumerate() {
        put(layout::AT_COUNTS + 4 * n, &count.to_le_bytes());
    }

    // `blob_len` has made room for all of these.
    let (tables, room) = rest.split_at_mut(functions.len() * 12);
    let (index, room) = room.split_at_mut(counts.words() * 4);
    room.copy_from_slice(btf);
    let (starts, tables) = tables.as_chunks_mut::<4>().0.split_at_mut(functions.len());
    let (sizes, ids) = tables.split_at_mut(functions.len());
    for (n, (function, ((start, size), id))) in
        functions.iter().zip(starts.iter_mut().zip(sizes).zip(ids)).enumerate()
    {
        let offset = function.start.checked_sub(base).and_then(|offset| u32::try_from(offset).ok());
        let offset = offset.ok_or(ImageError::FarFromBase { index: n, start: function.start })?;
        *start = offset.to_le_bytes();
        *size = function.size.to_le_bytes();
        *id = function.id.to_le_bytes();
    }
    Btf::index(Sections::parse(btf)?, index.as_chunks_mut().0)?;
    Types::parse(out)?;
    Ok(length)
}

/// Room for a blob in an image, made by [`type_space!`](crate::type_space). `N` is its capacity.
#[repr(C, align(8))]
#[derive(Debug)]
pub struct TypeSpace<const N: usize> {
    bytes: [u8; N],
}

impl<const N: usize> TypeSpace<N> {
    /// A space that holds nothing but the mark by which the host tool knows it.
    pub const fn reserved() -> Self {
        const { assert!(N >= layout::HEADER_LEN, "a type space must hold at least the header") };
        let mut bytes = [0; N];
        put(&mut bytes, 0, &layout::MAGIC_RESERVED);
        put(&mut bytes, layout::AT_VERSION, &layout::VERSION.to_le_bytes());
        put(&mut bytes, layout::AT_CAPACITY, &(N as u64).to_le_bytes());
        Self { bytes }
    }

    /// What the image has there, which is not what the compiler saw: the host tool writes it after linking.
    #[inline]
    pub fn bytes(&'static self) -> &'static [u8] {
        // The static is immutable and its initial value known, so the optimiser may answer any read of it with that value. It cannot
        // see which object this reference names.
        &black_box(self).bytes
    }

    /// Opens the types that were embedded.
    #[inline]
    pub fn types(&'static self) -> Result<Types<'static>, ImageError> {
        Types::parse(self.bytes())
    }
}

const fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    let mut index = 0;
    while index < value.len() {
        bytes[at + index] = value[index];
        index += 1;
    }
}

/// Reserves bytes for types in the image, and defines `types()` to read them:
///
/// ```
/// fgraph::type_space!(1024 * 1024);
///
/// match types() {
///     Ok(types) => println!("{} functions have types", types.len()),
///     Err(error) => println!("{error}"), // ... run `fgraph embed KERNEL`
/// }
/// ```
///
/// The space lies in a section of its own, `.fgraph_types`, which the kernel's linker script must keep under that name and load. Once
/// per image: the symbol is exported, so that a second one fails to link.
#[macro_export]
macro_rules! type_space {
    ($bytes:expr) => {
        #[used]
        #[unsafe(link_section = ".fgraph_types")]
        #[unsafe(export_name = "__fgraph_type_space")]
        static FGRAPH_TYPE_SPACE: $crate::btf::image::TypeSpace<{ $bytes }> =
            $crate::btf::image::TypeSpace::reserved();

        /// The types that `fgraph embed` put into this image.
        pub(crate) fn types()
        -> ::core::result::Result<$crate::btf::image::Types<'static>, $crate::btf::image::ImageError> {
            FGRAPH_TYPE_SPACE.types()
        }
    };
}
