//! The work itself, with published crates and without anything of the kernel: inflating, walking the archive, checksums, and
//! counting words. Bad data gives an error, never a panic.

use alloc::{collections::VecDeque, string::String, vec::Vec};
use core::fmt;

use hashbrown::{DefaultHashBuilder, HashMap};
use miniz_oxide::{DataFormat, MZFlush, MZStatus, inflate::stream};
use tar_no_std::TarArchiveRef;

/// How much is inflated at a time.
const CHUNK: usize = 4096;

/// What is wrong with an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArchiveError {
    /// The compressed bytes make no sense, or end too early.
    Inflate {
        /// How many bytes came out before that.
        after: usize,
    },
    /// What came out is no tar archive.
    NotTar,
    /// A file's name is not text.
    Name,
}

impl fmt::Display for ArchiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inflate { after } => write!(f, "the compressed archive is broken after {after} bytes"),
            Self::NotTar => f.write_str("no tar archive came out"),
            Self::Name => f.write_str("a file's name is not text"),
        }
    }
}

/// A file of the archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its path.
    pub name: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// Inflates a zlib stream, a chunk at a time.
#[inline(never)]
pub fn inflate_all(compressed: &[u8]) -> Result<Vec<u8>, ArchiveError> {
    let mut state = stream::InflateState::new_boxed(DataFormat::Zlib);
    let mut out = Vec::new();
    let mut rest = compressed;
    loop {
        let done = inflate_chunk(&mut state, &mut rest, &mut out)?;
        if done {
            return Ok(out);
        }
    }
}

/// Inflates one chunk; whether it was the last.
#[inline(never)]
fn inflate_chunk(
    state: &mut stream::InflateState,
    rest: &mut &[u8],
    out: &mut Vec<u8>,
) -> Result<bool, ArchiveError> {
    let mut chunk = [0; CHUNK];
    let broken = ArchiveError::Inflate { after: out.len() };
    let step = stream::inflate(state, rest, &mut chunk, MZFlush::None);
    *rest = rest.get(step.bytes_consumed..).unwrap_or_default();
    let produced = chunk.get(..step.bytes_written).unwrap_or_default();
    out.extend_from_slice(produced);
    match step.status {
        Ok(MZStatus::StreamEnd) => Ok(true),
        Ok(_) if step.bytes_written > 0 || step.bytes_consumed > 0 => Ok(false),
        _ => Err(broken),
    }
}

/// The files of a tar archive.
#[inline(never)]
pub fn files(archive: &[u8]) -> Result<VecDeque<File>, ArchiveError> {
    let archive = TarArchiveRef::new(archive).map_err(|_| ArchiveError::NotTar)?;
    archive.entries().map(|entry| copy_file(&entry)).collect()
}

#[inline(never)]
fn copy_file(entry: &tar_no_std::ArchiveEntry<'_>) -> Result<File, ArchiveError> {
    let name = entry.filename();
    let name = name.as_str().map_err(|_| ArchiveError::Name)?;
    Ok(File { name: name.into(), bytes: entry.data().to_vec() })
}

/// The CRC-32 of some bytes.
#[inline(never)]
pub fn checksum(bytes: &[u8]) -> u32 {
    static CRC: crc::Crc<u32> = crc::Crc::<u32>::new(&crc::CRC_32_ISO_HDLC);
    let mut digest = CRC.digest();
    for block in bytes.chunks(1024) {
        checksum_block(&mut digest, block);
    }
    digest.finalize()
}

#[inline(never)]
fn checksum_block(digest: &mut crc::Digest<'_, u32>, block: &[u8]) {
    digest.update(block);
}

/// Words and how often each was seen.
#[derive(Default)]
pub struct Words {
    counts: HashMap<Vec<u8>, u32, DefaultHashBuilder>,
    total: usize,
}

impl Words {
    /// Counts the words of a text.
    #[inline(never)]
    pub fn count(&mut self, text: &[u8]) {
        for line in text.split(|byte| *byte == b'\n') {
            self.count_line(line);
        }
    }

    #[inline(never)]
    fn count_line(&mut self, line: &[u8]) {
        let words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        for word in words {
            *self.counts.entry_ref(word).or_insert(0) += 1;
            self.total += 1;
        }
    }

    /// How many words there were.
    pub fn total(&self) -> usize {
        self.total
    }

    /// How many different ones.
    pub fn different(&self) -> usize {
        self.counts.len()
    }

    /// The word seen most often; of several the first in the alphabet.
    pub fn commonest(&self) -> Option<(&[u8], u32)> {
        let commonest = self.counts.iter().max_by(|a, b| a.1.cmp(b.1).then_with(|| b.0.cmp(a.0)));
        commonest.map(|(word, count)| (word.as_slice(), *count))
    }
}
