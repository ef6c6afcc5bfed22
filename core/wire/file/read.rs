//! Reading a trace. Total: any bytes whatever give chunks, or say what is wrong with them, and an end.

use core::fmt;

use super::{
    CpuTotals, End, FileError, Function, FunctionFlags, HEAD_LEN, Head, Kind, MAGIC, MAX_PAYLOAD, MarkName,
    Meta, TaskName, VERSION, checksum,
};
use crate::text::COMM_LEN;

/// What [`find`] saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A chunk begins at this byte, and this is its head. The bytes before are no part of a chunk, or of a damaged one.
    Head(usize, Head),
    /// A chunk of a version that this crate does not read begins at this byte: the version.
    Version(usize, u8),
    /// No chunk begins before this byte. From there on it needs more bytes to say.
    More(usize),
}

/// Looks for the next chunk in some bytes that may begin anywhere.
pub fn find(bytes: &[u8]) -> Found {
    let mut at = 0;
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        let Some(next) = rest.iter().position(|byte| *byte == MAGIC[0]) else {
            return Found::More(bytes.len());
        };
        at += next;
        let here = rest.get(next..).unwrap_or(&[]);
        let known = here.len().min(MAGIC.len());
        if here.get(..known) == MAGIC.get(..known) {
            let Some(head) = here.first_chunk::<HEAD_LEN>() else { return Found::More(at) };
            match head_of(head) {
                Some(Ok(head)) => return Found::Head(at, head),
                Some(Err(version)) => return Found::Version(at, version),
                None => {}
            }
        }
        at += 1;
    }
    Found::More(bytes.len())
}

/// The head, or its version if that is another one; `None` if these bytes are no head.
fn head_of(head: &[u8; HEAD_LEN]) -> Option<Result<Head, u8>> {
    let mut fields = Fields(head);
    let magic: [u8; 8] = fields.bytes().ok()?;
    let [version, kind, ..]: [u8; 4] = fields.bytes().ok()?;
    let len = u32::from_le_bytes(fields.bytes().ok()?);
    let number = u32::from_le_bytes(fields.bytes().ok()?);
    let payload_sum = u32::from_le_bytes(fields.bytes().ok()?);
    let _zero: [u8; 4] = fields.bytes().ok()?;
    let sum = u32::from_le_bytes(fields.bytes().ok()?);
    if magic != MAGIC || sum != checksum(head.get(..HEAD_LEN - 4)?) {
        return None;
    }
    if version != VERSION {
        return Some(Err(version));
    }
    let kind = Kind::from_number(kind);
    (len as usize <= MAX_PAYLOAD).then_some(Ok(Head { kind, len, number, checksum: payload_sum }))
}

/// Bytes that are no part of a whole chunk. What comes behind is found all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// From byte `at` on, `bytes` of them belong to no chunk.
    Noise {
        /// The first byte.
        at: u64,
        /// How many.
        bytes: u64,
    },
    /// The payload of the chunk at byte `at` does not add up.
    Payload {
        /// Where the chunk begins.
        at: u64,
        /// What it would have had.
        kind: Kind,
    },
    /// The file ends in the middle of the chunk at byte `at`.
    Truncated {
        /// Where the chunk begins.
        at: u64,
        /// Bytes that are missing.
        missing: u64,
    },
    /// The chunk at byte `at` is of a version that this crate does not read.
    Version {
        /// Where the chunk begins.
        at: u64,
        /// Its version.
        version: u8,
    },
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Noise { at, bytes } => write!(f, "byte {at}: {bytes} bytes that are no part of the trace"),
            Self::Payload { at, kind } => write!(f, "byte {at}: a damaged chunk ({kind:?})"),
            Self::Truncated { at, missing } => {
                write!(f, "byte {at}: the file ends in the middle of a chunk, {missing} bytes too early")
            }
            Self::Version { at, version } => {
                write!(f, "byte {at}: a chunk of version {version}, and this reader knows version {VERSION}")
            }
        }
    }
}

impl core::error::Error for Damage {}

/// A whole chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk<'a> {
    /// Where it begins.
    pub at: u64,
    /// What it is.
    pub head: Head,
    /// What it has, its checksum being right.
    pub payload: &'a [u8],
}

/// The chunks of a trace in memory, and what is between them.
#[derive(Clone, Debug)]
pub struct Chunks<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Where noise began that has not been told.
    noise: usize,
}

impl<'a> Chunks<'a> {
    /// The chunks of these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, noise: 0 }
    }

    /// Tells the noise before byte `to`, if there is any.
    fn tell_noise(&mut self, to: usize) -> Option<Damage> {
        let bytes = to.checked_sub(self.noise).filter(|bytes| *bytes > 0)?;
        let at = self.noise as u64;
        self.noise = to;
        Some(Damage::Noise { at, bytes: bytes as u64 })
    }
}

impl<'a> Iterator for Chunks<'a> {
    type Item = Result<Chunk<'a>, Damage>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.bytes.get(self.at..)?;
        let (skip, head) = match find(rest) {
            Found::Head(skip, head) => (skip, Ok(head)),
            Found::Version(skip, version) => (skip, Err(version)),
            Found::More(_) => {
                self.at = self.bytes.len();
                return self.tell_noise(self.at).map(Err);
            }
        };
        let start = self.at + skip;
        if let Some(noise) = self.tell_noise(start) {
            self.at = start;
            return Some(Err(noise));
        }
        let at = start as u64;
        let here = rest.get(skip..).unwrap_or(&[]);
        let damage = match head {
            Err(version) => Damage::Version { at, version },
            Ok(head) => match here.get(HEAD_LEN..head.chunk_len()) {
                None => Damage::Truncated { at, missing: (head.chunk_len() - here.len()) as u64 },
                Some(padded) => {
                    let payload = padded.get(..head.len as usize).unwrap_or(padded);
                    if checksum(payload) == head.checksum {
                        self.at = start + head.chunk_len();
                        self.noise = self.at;
                        return Some(Ok(Chunk { at, head, payload }));
                    }
                    Damage::Payload { at, kind: head.kind }
                }
            },
        };
        // Its bytes may have been lost and the next chunk come early, so only the head is passed over. What follows up to the next
        // chunk is its payload, and not told again.
        self.at = start + HEAD_LEN;
        self.noise = match find(self.bytes.get(self.at..).unwrap_or(&[])) {
            Found::Head(skip, _) | Found::Version(skip, _) => self.at + skip,
            Found::More(_) => self.bytes.len(),
        };
        self.at = self.noise;
        Some(Err(damage))
    }
}

/// Parts of a payload, taken one by one.
#[derive(Clone, Copy, Debug)]
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], FileError> {
        let short = FileError::Short { needed: len, bytes: self.0.len() };
        let (taken, rest) = self.0.split_at_checked(len).ok_or(short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], FileError> {
        let short = FileError::Short { needed: N, bytes: self.0.len() };
        let (taken, rest) = self.0.split_first_chunk().ok_or(short)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u16(&mut self) -> Result<u16, FileError> {
        self.bytes().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, FileError> {
        self.bytes().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, FileError> {
        self.bytes().map(u64::from_le_bytes)
    }
}

fn text(bytes: &[u8]) -> Result<&str, FileError> {
    core::str::from_utf8(bytes).map_err(|error| FileError::Name(error.valid_up_to()))
}

impl<'a> Meta<'a> {
    /// What a payload of [`Kind::Meta`] says.
    pub fn decode(payload: &'a [u8]) -> Result<Self, FileError> {
        let mut fields = Fields(payload);
        let machine = fields.u16()?;
        let len = usize::from(fields.u16()?);
        let cpus = fields.u32()?;
        let ticks_per_second = fields.u64()?;
        let (start, wall_ns, slide) = (fields.u64()?, fields.u64()?, fields.u64()?);
        let kernel = text(fields.take(len)?)?;
        if ticks_per_second == 0 {
            return Err(FileError::NoTicks);
        }
        Ok(Self { machine, cpus, ticks_per_second, start, wall_ns, slide, kernel })
    }
}

impl End {
    /// What a payload of [`Kind::End`] says.
    pub fn decode(payload: &[u8]) -> Result<Self, FileError> {
        let mut fields = Fields(payload);
        Ok(Self { chunks: fields.u64()?, pages: fields.u64()?, bytes: fields.u64()? })
    }
}

/// The small things in a payload, one after another. Those with a bad name are told and passed over; a payload that ends in the
/// middle of one is the end.
#[derive(Clone, Debug)]
pub struct Items<'a, T> {
    fields: Fields<'a>,
    one: fn(&mut Fields<'a>) -> Result<T, FileError>,
}

impl<T> Iterator for Items<'_, T> {
    type Item = Result<T, FileError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.fields.0.is_empty() {
            return None;
        }
        let item = (self.one)(&mut self.fields);
        if let Err(FileError::Short { .. }) = item {
            self.fields.0 = &[];
        }
        Some(item)
    }
}

/// What a payload of [`Kind::Functions`] has.
pub fn functions(payload: &[u8]) -> Items<'_, Function<'_>> {
    Items {
        fields: Fields(payload),
        one: |fields| {
            let (addr, index, len) = (fields.u64()?, fields.u32()?, fields.u16()?);
            let [module, flags] = fields.bytes()?;
            let (name, module) = (fields.take(len.into())?, fields.take(module.into())?);
            let flags = FunctionFlags::from_bits_retain(flags);
            Ok(Function { index, addr, name: text(name)?, module: text(module)?, flags })
        },
    }
}

/// What a payload of [`Kind::Tasks`] has.
pub fn tasks(payload: &[u8]) -> Items<'_, TaskName> {
    Items {
        fields: Fields(payload),
        one: |fields| Ok(TaskName { task: fields.u32()?, comm: fields.bytes::<COMM_LEN>()? }),
    }
}

/// What a payload of [`Kind::Totals`] has.
pub fn totals(payload: &[u8]) -> Items<'_, CpuTotals> {
    Items {
        fields: Fields(payload),
        one: |fields| {
            let (cpu, _zero) = (fields.u32()?, fields.u32()?);
            Ok(CpuTotals { cpu, records: fields.u64()?, refused: fields.u64()?, pages: fields.u64()? })
        },
    }
}

/// What a payload of [`Kind::Marks`] has.
pub fn marks(payload: &[u8]) -> Items<'_, MarkName<'_>> {
    Items {
        fields: Fields(payload),
        one: |fields| {
            let (id, len, _zero) = (fields.u32()?, fields.u16()?, fields.u16()?);
            Ok(MarkName { id, name: text(fields.take(len.into())?)? })
        },
    }
}
