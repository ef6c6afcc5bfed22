//! What is written comes back, also from between damage, and any bytes whatever give an end.

use std::string::{String, ToString};
use std::vec::Vec;

use super::*;
use crate::testing::storm;

/// Miri is slow.
const STEP: usize = if cfg!(miri) { 997 } else { 1 };

const META: Meta<'_> = Meta {
    machine: 183,
    cpus: 4,
    ticks_per_second: 62_500_000,
    start: 77,
    wall_ns: 1_700_000_000_000_000_000,
    slide: 0xffff_ffff_ff00_0000,
    kernel: "démo 1",
};

fn function(index: u32, name: &str) -> Function<'_> {
    let flags = if index.is_multiple_of(2) { FunctionFlags::VOID } else { FunctionFlags::IRQ_ENTRY };
    Function { index, addr: 0x1000 + u64::from(index), name, module: "ext4", flags }
}

const NAMES: [&str; 3] = ["_RNvCs1234_7mycrate3foo", "vfs_read", ""];

fn page_words(sequence: u64, len: usize) -> Vec<u64> {
    (0..len as u64).map(|word| word << 32 | sequence).collect()
}

fn task(task: u32) -> TaskName {
    TaskName { task, comm: *b"kworker/0:1\0\0\0\0\0" }
}

const TOTALS: CpuTotals = CpuTotals { cpu: 3, records: 1000, refused: 5, pages: 9 };
const MARK: MarkName<'_> = MarkName { id: 9, name: "irq on" };

/// A trace of everything, with this many pages.
fn trace(pages: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut sink = |part: &[u8]| bytes.extend_from_slice(part);
    let mut writer = Writer::new(&mut sink);
    writer.meta(&META);
    for index in 0..40 {
        writer.function(&function(index, NAMES[index as usize % NAMES.len()]));
    }
    writer.task(&task(7));
    writer.task(&task(8));
    writer.mark(&MARK);
    for sequence in 0..pages {
        writer.page(&page_words(sequence, 100 + sequence as usize % 50)).unwrap();
    }
    writer.totals(&TOTALS);
    let end = writer.finish();
    assert_eq!(end.pages, pages);
    // The end chunk has 24 bytes.
    assert_eq!(end.bytes, (bytes.len() - HEAD_LEN - 24) as u64);
    bytes
}

fn words(payload: &[u8]) -> Vec<u64> {
    payload.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect()
}

#[test]
fn what_is_written_comes_back() {
    let bytes = trace(3);
    let chunks: Vec<_> = Chunks::new(&bytes).map(|chunk| chunk.unwrap()).collect();
    let numbers: Vec<_> = chunks.iter().map(|chunk| chunk.head.number).collect();
    assert_eq!(numbers, (0..chunks.len() as u32).collect::<Vec<_>>());
    let of = |kind| chunks.iter().filter(move |chunk| chunk.head.kind == kind);
    assert_eq!(of(Kind::Meta).map(|chunk| Meta::decode(chunk.payload)).collect::<Vec<_>>(), [Ok(META)]);
    let all: Vec<_> = of(Kind::Functions).flat_map(|chunk| functions(chunk.payload)).collect();
    assert_eq!(all.len(), 40);
    assert!(of(Kind::Functions).count() > 1, "more than one chunk has room for");
    for (index, found) in (0..).zip(all) {
        assert_eq!(found, Ok(function(index, NAMES[index as usize % NAMES.len()])));
    }
    let all: Vec<_> = of(Kind::Tasks).flat_map(|chunk| tasks(chunk.payload)).collect();
    assert_eq!(all, [Ok(task(7)), Ok(task(8))]);
    let all: Vec<_> = of(Kind::Marks).flat_map(|chunk| marks(chunk.payload)).collect();
    assert_eq!(all, [Ok(MARK)]);
    let all: Vec<_> = of(Kind::Totals).flat_map(|chunk| totals(chunk.payload)).collect();
    assert_eq!(all, [Ok(TOTALS)]);
    let all: Vec<_> = of(Kind::Page).map(|chunk| words(chunk.payload)).collect();
    assert_eq!(all, [page_words(0, 100), page_words(1, 101), page_words(2, 102)]);
    let last = chunks.last().unwrap();
    let end = End::decode(last.payload).unwrap();
    assert_eq!((last.head.kind, end.chunks), (Kind::End, chunks.len() as u64 - 1));
}

#[test]
fn the_checksum_is_the_one_that_everybody_has() {
    assert_eq!(checksum(b"123456789"), 0xcbf4_3926);
}

#[test]
fn long_names_are_cut_between_characters_and_say_so() {
    let mut bytes = Vec::new();
    let mut sink = |part: &[u8]| bytes.extend_from_slice(part);
    let mut writer = Writer::new(&mut sink);
    let long = String::from("x") + &"é".repeat(1000);
    writer.meta(&Meta { kernel: &long, ..META });
    writer.function(&Function { module: &long, ..function(1, &long) });
    writer.mark(&MarkName { id: 1, name: &long });
    writer.finish();
    let chunks: Vec<_> = Chunks::new(&bytes).map(|chunk| chunk.unwrap()).collect();
    assert_eq!(Meta::decode(chunks[0].payload).unwrap().kernel.len(), 899);
    let found = functions(chunks[1].payload).next().unwrap().unwrap();
    assert_eq!((found.name.len(), found.module.len()), (645, 255));
    assert!(found.flags.contains(FunctionFlags::CUT | FunctionFlags::IRQ_ENTRY));
    assert!(long.starts_with(found.name));
    assert_eq!(marks(chunks[2].payload).next().unwrap().unwrap().name.len(), 899);
}

#[test]
fn a_page_that_is_too_long_is_refused_and_the_longest_is_not() {
    let mut bytes = Vec::new();
    let mut sink = |part: &[u8]| bytes.extend_from_slice(part);
    let mut writer = Writer::new(&mut sink);
    let longest = page_words(1, MAX_PAYLOAD / 8);
    writer.page(&longest).unwrap();
    let too_long = page_words(1, MAX_PAYLOAD / 8 + 1);
    assert_eq!(writer.page(&too_long), Err(FileError::Page(MAX_PAYLOAD / 8 + 1)));
    writer.finish();
    let chunks: Vec<_> = Chunks::new(&bytes).map(|chunk| chunk.unwrap()).collect();
    assert_eq!((chunks.len(), words(chunks[0].payload)), (2, longest));
}

#[test]
fn wrong_payloads_are_refused_and_what_was_whole_stays() {
    assert_eq!(Meta::decode(&[0; 39]), Err(FileError::Short { needed: 8, bytes: 7 }));
    assert_eq!(Meta::decode(&[0; 40]), Err(FileError::NoTicks));
    let mut named = [0; 41];
    named[2] = 2;
    assert_eq!(Meta::decode(&named), Err(FileError::Short { needed: 2, bytes: 1 }));
    assert_eq!(End::decode(&[0; 23]), Err(FileError::Short { needed: 8, bytes: 7 }));
    assert!(End::decode(&[0; 99]).is_ok(), "later versions have more");

    let mut payload = [[0; 20]; 3].concat();
    payload.truncate(59);
    let found: Vec<_> = tasks(&payload).collect();
    assert!(matches!(found[..], [Ok(_), Ok(_), Err(FileError::Short { needed: 16, bytes: 15 })]));

    let name = |byte| [&[1, 0, 0, 0, 2, 0, 0, 0, b'a', byte][..]].concat();
    let payload = [name(0xff), name(b'b')].concat();
    let found: Vec<_> = marks(&payload).collect();
    assert_eq!(found, [Err(FileError::Name(1)), Ok(MarkName { id: 1, name: "ab" })]);
}

/// Whatever one byte becomes, only the chunk that it is in is lost, and the loss is told.
#[test]
fn a_damaged_byte_costs_its_chunk_and_no_other() {
    let bytes = trace(2);
    let whole: Vec<_> = Chunks::new(&bytes).map(|chunk| chunk.unwrap()).collect();
    for at in (0..bytes.len()).step_by(STEP) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        let hit = whole.iter().find(|chunk| (at as u64) < chunk.at + chunk.head.chunk_len() as u64).unwrap();
        let found: Vec<_> = Chunks::new(&damaged).collect();
        let in_padding = at as u64 >= hit.at + (HEAD_LEN + hit.payload.len()) as u64;
        let want: Vec<_> = whole.iter().filter(|chunk| in_padding || chunk.at != hit.at).collect();
        let got: Vec<_> = found.iter().flatten().collect();
        assert_eq!(got, want, "byte {at}");
        let in_head = (at as u64) < hit.at + HEAD_LEN as u64;
        let told: Vec<_> = found.iter().filter_map(|chunk| chunk.err()).collect();
        let noise = Damage::Noise { at: hit.at, bytes: hit.head.chunk_len() as u64 };
        let payload = Damage::Payload { at: hit.at, kind: hit.head.kind };
        let want = [if in_head { noise } else { payload }];
        assert_eq!(told, want[..usize::from(!in_padding)], "byte {at}");
    }
}

#[test]
fn a_file_that_ends_anywhere_gives_what_was_before() {
    let bytes = trace(2);
    let whole: Vec<_> = Chunks::new(&bytes).map(|chunk| chunk.unwrap()).collect();
    for len in (0..bytes.len()).step_by(STEP) {
        let found: Vec<_> = Chunks::new(&bytes[..len]).collect();
        let end = |chunk: &&Chunk<'_>| chunk.at as usize + chunk.head.chunk_len() <= len;
        let want: Vec<_> = whole.iter().take_while(end).map(|chunk| Ok(*chunk)).collect();
        assert_eq!(found[..want.len()], want, "{len} bytes");
        let rest = len - whole[..want.len()].last().map_or(0, |c| c.at as usize + c.head.chunk_len());
        let at = (len - rest) as u64;
        let told = match rest {
            0 => None,
            1..HEAD_LEN => Some(Damage::Noise { at, bytes: rest as u64 }),
            _ => {
                let needed = whole[want.len()].head.chunk_len();
                Some(Damage::Truncated { at, missing: (needed - rest) as u64 })
            }
        };
        assert_eq!(found.get(want.len()).copied(), told.map(Err), "{len} bytes");
        assert!(found.len() <= want.len() + 1, "{len} bytes");
    }
}

/// A wire that loses bytes, and on which others write.
#[test]
fn lost_and_foreign_bytes_cost_no_chunk_that_is_whole() {
    let bytes = trace(20);
    let whole: Vec<_> = Chunks::new(&bytes).map(|chunk| chunk.unwrap()).collect();
    storm(300, 2, |random| {
        let mut damaged = bytes.clone();
        let mut want: Vec<u32> = (0..whole.len() as u32).collect();
        for _ in 0..random.between(1, 4) {
            let chunk = random.pick(&whole);
            let start = damaged.windows(chunk.head.chunk_len()).position(|window| {
                let at = chunk.at as usize;
                window == &bytes[at..at + window.len()]
            });
            // It may have been hit before.
            let Some(start) = start else { continue };
            let len = HEAD_LEN + chunk.payload.len();
            let from = start + random.below(len);
            if random.one_in(2) {
                let to = from + 1 + random.below(start + len - from);
                damaged.drain(from..to);
                want.retain(|number| *number != chunk.head.number);
            } else {
                let noises = [&b"\xf6GTRACE\n"[..], b"kernel: hello\r\n", b"\xf6"];
                let noise = *random.pick(&noises);
                damaged.splice(from..from, noise.iter().copied());
                // Before its first byte there is no chunk to hit.
                want.retain(|number| from == start || *number != chunk.head.number);
            }
        }
        let got: Vec<_> = Chunks::new(&damaged).flatten().map(|chunk| chunk.head.number).collect();
        assert_eq!(got, want);
        assert!(damaged == bytes || Chunks::new(&damaged).any(|chunk| chunk.is_err()));
    });
}

#[test]
fn another_version_is_named_and_passed_over() {
    let mut bytes = trace(1);
    let mut other = Head { kind: Kind::Page, len: 8, number: 0, checksum: 0 }.encode();
    other[8] = 2;
    let sum = checksum(&other[..28]);
    other[28..].copy_from_slice(&sum.to_le_bytes());
    let count = Chunks::new(&bytes).count();
    bytes.splice(0..0, other.into_iter().chain([1; 8]));
    let found: Vec<_> = Chunks::new(&bytes).collect();
    assert_eq!(found[0], Err(Damage::Version { at: 0, version: 2 }));
    assert_eq!(found.iter().flatten().count(), count);
    assert!(found[0].unwrap_err().to_string().contains("version 2"));
}

#[test]
fn any_bytes_give_an_end() {
    let seed = trace(2);
    storm(2000, 10, |random| {
        let mut bytes: Vec<u8> = (0..random.below(300)).map(|_| random.word() as u8).collect();
        if random.one_in(2) {
            bytes = seed.clone();
            for _ in 0..random.below(20) {
                let at = random.below(bytes.len());
                bytes[at] = random.word() as u8;
            }
        }
        let mut end = 0;
        for chunk in Chunks::new(&bytes) {
            let at = match chunk {
                Ok(chunk) => chunk.at,
                Err(Damage::Noise { at, .. } | Damage::Payload { at, .. }) => at,
                Err(Damage::Truncated { at, .. } | Damage::Version { at, .. }) => at,
            };
            assert!(at >= end, "{chunk:?} behind byte {end}");
            end = at + u64::from(chunk.is_ok());
        }
        let _ = (Meta::decode(&bytes), End::decode(&bytes));
        assert!(functions(&bytes).count() <= bytes.len());
        assert!(tasks(&bytes).count() + totals(&bytes).count() + marks(&bytes).count() <= 3 * bytes.len());
    });
}

#[test]
fn ticks_become_nanoseconds() {
    assert_eq!(ticks_to_ns(62_500_000, 62_500_000), 1_000_000_000);
    assert_eq!(ticks_to_ns(u64::MAX, 1_000_000_000), u64::MAX);
    assert_eq!(ticks_to_ns(u64::MAX, 1), u64::MAX);
    assert_eq!(ticks_to_ns(7, 3_000_000_000), 2);
    assert_eq!(ticks_to_ns(7, 0), 7_000_000_000);
}
