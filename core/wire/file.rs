//! A trace as it leaves the kernel: a stream of chunks, for a file of the host or a wire that loses bytes.
//!
//! Every chunk says what it is, how long, and what its bytes add up to, so that a reader finds the next one behind whatever was
//! damaged, and can use all others. Pages are those of [`wire`](super), whole: each can be read without the others.
//!
//! # A chunk
//!
//! ```text
//! byte  0  magic: f6 "GTRACE" 0a
//!       8  version (1 byte) | kind (1 byte) | zero (2 bytes)
//!      12  bytes of the payload, at most 1 MiB
//!      16  number: how many chunks were written before
//!      20  checksum of the payload
//!      24  zero
//!      28  checksum of the 28 bytes before
//!      32  payload, then zeros up to a multiple of 8
//! ```
//!
//! Numbers are little-endian and have four bytes here. Checksums are CRC-32, as zlib, PNG and Ethernet have it.
//!
//! # Payloads
//!
//! ```text
//! kind 1  meta: machine (2, its ELF number) | bytes of the kernel's name (2) | CPUs (4) | clock ticks a second (8) | the clock when
//!         the trace began (8) | the time of day then, ns since 1970, or 0 (8) | the slide: run address - link address (8) | name
//! kind 2  functions: address (8) | index (4) | bytes of its name (2) | bytes of its module's name (1) | flags (1) | name | module
//! kind 3  tasks: number (4) | name (16, zeros behind it)
//! kind 4  a page of one CPU, as words of 8 bytes: what is committed of it
//! kind 5  totals of CPUs: CPU (4) | zero (4) | records (8) | refused records (8) | pages (8)
//! kind 6  names of marks: number (4) | bytes of its name (2) | zero (2) | name
//! kind 7  end: chunks (8) | pages (8) | bytes (8) before this chunk
//! ```
//!
//! Kinds 2, 3, 5 and 6 have as many of these as the payload has room for. What a later version adds stands behind the rest (meta,
//! end) or is a kind of its own; readers pass over both. Meta comes first and end last, the others in any order, and several times: of
//! two pages with one CPU and sequence number, the longer one counts; of other things, the last.
//!
//! # Writing and reading
//! [`Writer`] needs a sink for bytes and 1 KiB, and allocates nothing. [`Chunks`] reads what is in memory; [`find`] is what it is made
//! of, for a reader of files.

use core::fmt;

mod read;
mod write;

#[cfg(test)]
mod tests;

pub use read::{Chunk, Chunks, Damage, Found, Items, find, functions, marks, tasks, totals};
pub use write::Writer;

use crate::text::COMM_LEN;

/// The version of the chunks that this crate writes and reads.
pub const VERSION: u8 = 1;

/// What every chunk begins with.
pub const MAGIC: [u8; 8] = *b"\xf6GTRACE\n";

/// Bytes before the payload.
pub const HEAD_LEN: usize = 32;

/// Bytes of the longest payload, and so of the longest page.
pub const MAX_PAYLOAD: usize = 1 << 20;

/// Bytes of the longest name of a function, a mark or a kernel; longer ones are cut.
pub const MAX_NAME: usize = 900;

/// What a chunk has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A [`Meta`].
    Meta,
    /// [`Function`]s.
    Functions,
    /// [`TaskName`]s.
    Tasks,
    /// A page of records.
    Page,
    /// [`CpuTotals`].
    Totals,
    /// [`MarkName`]s.
    Marks,
    /// An [`End`].
    End,
    /// Something that this version does not know.
    Unknown(u8),
}

impl Kind {
    /// The number that stands in the chunk.
    pub const fn number(self) -> u8 {
        match self {
            Self::Meta => 1,
            Self::Functions => 2,
            Self::Tasks => 3,
            Self::Page => 4,
            Self::Totals => 5,
            Self::Marks => 6,
            Self::End => 7,
            Self::Unknown(number) => number,
        }
    }

    /// The kind with this number.
    pub const fn from_number(number: u8) -> Self {
        match number {
            1 => Self::Meta,
            2 => Self::Functions,
            3 => Self::Tasks,
            4 => Self::Page,
            5 => Self::Totals,
            6 => Self::Marks,
            7 => Self::End,
            other => Self::Unknown(other),
        }
    }
}

/// What is known of a chunk before its payload is looked at. Its own checksum was right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// What it has.
    pub kind: Kind,
    /// Bytes of the payload, without the zeros behind it.
    pub len: u32,
    /// How many chunks were written before.
    pub number: u32,
    /// What the payload's checksum must be.
    pub checksum: u32,
}

impl Head {
    /// Bytes of the whole chunk.
    pub const fn chunk_len(&self) -> usize {
        HEAD_LEN + (self.len as usize).next_multiple_of(8)
    }

    /// The bytes that stand before the payload.
    pub fn encode(&self) -> [u8; HEAD_LEN] {
        let mut head = [0; HEAD_LEN];
        let mut put = |at: usize, bytes: &[u8]| {
            for (byte, value) in head.iter_mut().skip(at).zip(bytes) {
                *byte = *value;
            }
        };
        put(0, &MAGIC);
        put(8, &[VERSION, self.kind.number()]);
        put(12, &self.len.to_le_bytes());
        put(16, &self.number.to_le_bytes());
        put(20, &self.checksum.to_le_bytes());
        let sum = checksum(&head[..HEAD_LEN - 4]);
        for (byte, value) in head[HEAD_LEN - 4..].iter_mut().zip(sum.to_le_bytes()) {
            *byte = value;
        }
        head
    }
}

/// What the whole trace is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta<'a> {
    /// The machine, by its ELF number: 62 for x86_64, 183 for arm64.
    pub machine: u16,
    /// How many CPUs there are.
    pub cpus: u32,
    /// Clock ticks a second; never 0 when read.
    pub ticks_per_second: u64,
    /// The clock when the trace began.
    pub start: u64,
    /// The time of day then, in nanoseconds since 1970; 0 if it is not known.
    pub wall_ns: u64,
    /// What is to be added to an address in the kernel's file for the address in the trace, modulo 2^64.
    pub slide: u64,
    /// What the kernel calls itself.
    pub kernel: &'a str,
}

/// What a function is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function<'a> {
    /// Its index in the site table, which records have.
    pub index: u32,
    /// Its address.
    pub addr: u64,
    /// Its name as the symbol table has it, mangled if it is; empty if nobody knows.
    pub name: &'a str,
    /// The module it is in; empty for the kernel itself.
    pub module: &'a str,
    /// What else is known.
    pub flags: FunctionFlags,
}

bitflags::bitflags! {
    /// What else is known of a function.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct FunctionFlags: u8 {
        /// An interrupt begins with it.
        const IRQ_ENTRY = 1 << 0;
        /// It returns nothing.
        const VOID = 1 << 1;
        /// The name was cut.
        const CUT = 1 << 2;
    }
}

/// What a task is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskName {
    /// Its number, which records have.
    pub task: u32,
    /// Its name, up to its first zero byte.
    pub comm: [u8; COMM_LEN],
}

/// What went into a CPU's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuTotals {
    /// The CPU.
    pub cpu: u32,
    /// Records that were written, those overwritten since included.
    pub records: u64,
    /// Records that were refused.
    pub refused: u64,
    /// Pages that were opened.
    pub pages: u64,
}

/// What a user's mark is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkName<'a> {
    /// Its number, which records have.
    pub id: u32,
    /// Its name.
    pub name: &'a str,
}

/// The end of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Chunks before.
    pub chunks: u64,
    /// Pages among them.
    pub pages: u64,
    /// Bytes before.
    pub bytes: u64,
}

/// What is wrong with a payload whose checksum is right, or cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileError {
    /// The payload, or what is left of it, has fewer bytes than it needs.
    Short {
        /// Bytes it needs.
        needed: usize,
        /// Bytes that are there.
        bytes: usize,
    },
    /// A name is not UTF-8: how many of its bytes are.
    Name(usize),
    /// The clock stands still: it has no ticks.
    NoTicks,
    /// A page of so many words is longer than a chunk may be.
    Page(usize),
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { needed, bytes } => write!(f, "{bytes} bytes, where {needed} are needed"),
            Self::Name(valid) => write!(f, "a name that is no UTF-8 from byte {valid} on"),
            Self::NoTicks => f.write_str("a clock of no ticks a second"),
            Self::Page(words) => {
                write!(f, "a page of {words} words, and a chunk has room for {}", MAX_PAYLOAD / 8)
            }
        }
    }
}

impl core::error::Error for FileError {}

/// Nanoseconds of a time in ticks. Exact up to rounding down, and saturates.
pub fn ticks_to_ns(ticks: u64, ticks_per_second: u64) -> u64 {
    const SECOND: u128 = 1_000_000_000;
    let ns = u128::from(ticks) * SECOND / u128::from(ticks_per_second.max(1));
    u64::try_from(ns).unwrap_or(u64::MAX)
}

/// The checksum of chunks. Tables and no vector instructions, since a kernel's target may not have any.
const CRC_32: crc::Crc<u32, crc::Table<16>> = crc::Crc::<u32, crc::Table<16>>::new(&crc::CRC_32_ISO_HDLC);

/// The checksum of some bytes: CRC-32.
pub fn checksum(bytes: &[u8]) -> u32 {
    CRC_32.checksum(bytes)
}
