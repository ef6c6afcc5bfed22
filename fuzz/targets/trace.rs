//! The file of a trace, read from bytes that may be anything.
//!
//! Bytes as they are seldom have a right checksum; so they are also tried as the payload of each kind. Whatever they are: reading ends,
//! what is given lies in the bytes and in order, and a whole chunk between any bytes is found.
#![no_main]

use fgraph::text::{CpuState, NoNames, Options, Printer, Task};
use fgraph::wire;
use fgraph::wire::file::{self, Chunks, Damage, End, Found, Head, Kind, Meta};
use fgraph::wire::tree::{ExtraRoom, Key, Node, Tree};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    walk(bytes);
    for number in 0..9 {
        let head = Head {
            kind: Kind::from_number(number),
            len: bytes.len() as u32,
            number: 0,
            checksum: file::checksum(bytes),
        };
        let mut chunk = Vec::from(head.encode());
        chunk.extend(bytes);
        chunk.resize(head.chunk_len(), 0);
        payload(bytes);
        let only: Vec<_> = Chunks::new(&chunk).flatten().collect();
        assert!(only.len() == 1 && only[0].payload == bytes, "{only:?}");
        // Behind damage that is no chunk itself.
        if bytes.len() < 200 && matches!(file::find(bytes), Found::More(_)) {
            let noisy = [bytes, &chunk].concat();
            walk(&noisy);
            let found = Chunks::new(&noisy).flatten().any(|found| found.payload == bytes);
            assert!(found, "{noisy:?}");
        }
    }
});

fn walk(bytes: &[u8]) {
    let mut end = 0;
    for chunk in Chunks::new(bytes) {
        let (from, to) = match chunk {
            Ok(chunk) => {
                payload(chunk.payload);
                (chunk.at, chunk.at + chunk.head.chunk_len() as u64)
            }
            Err(Damage::Noise { at, bytes }) => (at, at + bytes),
            Err(Damage::Payload { at, .. } | Damage::Truncated { at, .. } | Damage::Version { at, .. }) => {
                (at, at + 1)
            }
        };
        assert!(from >= end && to > from && to <= bytes.len() as u64, "{chunk:?}");
        end = to;
    }
}

fn payload(bytes: &[u8]) {
    let _ = (Meta::decode(bytes), End::decode(bytes));
    assert!(file::functions(bytes).count() <= bytes.len());
    assert!(file::tasks(bytes).count() <= bytes.len());
    assert!(file::totals(bytes).count() <= bytes.len());
    assert!(file::marks(bytes).count() <= bytes.len());
    let words: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    if let Ok((_, records)) = wire::page(&words) {
        assert!(records.clone().count() <= words.len());
        lines(records);
    }
}

struct Numbers;

impl Key for Numbers {
    fn addr(&self, func: u32) -> usize {
        func as usize
    }

    fn task(&self, number: u32) -> Task {
        Task::new(number, "")
    }
}

/// Whatever the records are, they have lines, and these a text.
fn lines(records: wire::Decoder<'_>) {
    let (mut nodes, mut words) = (vec![Node::EMPTY; 16], vec![0; 40]);
    let mut tree = Tree::new(&mut nodes).with_words(&mut words);
    for record in records.flatten().take(16) {
        let _ = tree.push(&record);
    }
    tree.close();
    let mut states = [CpuState::NEW];
    let mut printer = Printer::new(Options::all() - Options::BARE, &mut states);
    let (mut room, mut text) = (ExtraRoom::NEW, String::new());
    while let Some((line, extra)) = tree.next_line() {
        for event in line.events(0, &Numbers, tree.extra(extra), &mut room).into_iter().flatten() {
            printer.event(&event, None, &NoNames, &mut text).expect("a `String` takes everything");
        }
    }
}
