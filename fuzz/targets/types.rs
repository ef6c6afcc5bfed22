//! The types of an image, and values by them, from bytes that may be anything.
//!
//! Bytes are tried as a blob of types, as BTF, and as the type section and the strings of BTF whose header fits them. What is accepted
//! must give what it says it has, be written into a blob and read back, and show every value of it in a text with an end.
#![no_main]

use std::fmt::Write;

use fgraph::btf::image::{Function, Types, write};
use fgraph::btf::{Btf, Kind, Sections};
use fgraph::values::{Entered, Floats, Machine, Memory, NoMemory, Returned, RetvalAt, Values};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(types) = Types::parse(bytes) {
        ask(&types.btf());
    }
    try_btf(bytes);
    try_btf(&with_header(bytes));
});

/// BTF whose types are the first bytes and whose strings are the rest. The first byte says how many words the types have.
fn with_header(bytes: &[u8]) -> Vec<u8> {
    let (words, body) = bytes.split_first().map_or((0, bytes), |(words, body)| (usize::from(*words), body));
    let types = (4 * words).min(body.len() / 4 * 4);
    let mut btf = vec![0x9f, 0xeb, 1, 0];
    // One zero in front of the strings, and one behind.
    for word in [24, 0, types as u32, types as u32, (body.len() - types + 2) as u32] {
        btf.extend(word.to_le_bytes());
    }
    btf.extend(&body[..types]);
    btf.push(0);
    btf.extend(&body[types..]);
    btf.push(0);
    btf
}

fn try_btf(bytes: &[u8]) {
    let Ok(sections) = Sections::parse(bytes) else { return };
    let Ok(counts) = sections.count() else { return };
    let mut memory = vec![[0; 4]; counts.words()];
    let Ok(btf) = Btf::index(sections, &mut memory) else { return };
    assert_eq!(btf.end(), counts.types + 1);
    ask(&btf);

    // The same in a blob, each function 16 bytes behind the one before.
    let all = btf.iter().filter(|ty| matches!(ty.kind, Kind::Func { .. }));
    let functions: Vec<_> =
        (0..).zip(all).map(|(n, ty)| Function { start: 0x1000 + 16 * n, size: 8, id: ty.id }).collect();
    let mut blob = vec![0; 64 + 12 * functions.len() + 4 * counts.words() + bytes.len()];
    let len = write(&functions, bytes, 0x1000, 0, &mut blob).expect("it has been read, and there is room");
    let types = Types::parse(&blob[..len]).expect("it has been written");
    assert_eq!((types.len(), types.btf().end()), (functions.len(), btf.end()));
    for function in &functions {
        for (at, expected) in [(0, Some(function.id)), (7, Some(function.id)), (8, None)] {
            assert_eq!(types.function_at(function.start + at), expected, "{at}");
        }
    }
}

/// Memory that has the same byte everywhere.
struct Everywhere;

impl Memory for Everywhere {
    fn read(&self, _addr: u64, into: &mut [u8]) -> bool {
        into.fill(0x41);
        true
    }
}

fn ask(btf: &Btf<'_>) {
    for ty in btf.iter() {
        let _ = (btf.size(ty.id), btf.resolve(ty.id), btf.tags(ty.id).count(), btf.function(ty.name));
        // A name that is cut, or is none, is not found; a tag's is a remark.
        let named = !ty.name.is_empty() && ty.name.len() < 512;
        if named && !matches!(ty.kind, Kind::DeclTag { .. } | Kind::TypeTag(_)) {
            let same = btf.iter().filter(|other| other.name == ty.name).count();
            assert!(btf.by_name(ty.name).count() <= same);
        }
    }
    let words: [usize; 8] = [0x10, usize::MAX - 1, 0, 0x4141, 1, 2, 1 << 63, 0xffff_fff5];
    for machine in [Machine::Arm64, Machine::X86_64] {
        for (memory, floats) in
            [(&NoMemory as &dyn Memory, Floats::Vector), (&Everywhere as &dyn Memory, Floats::General)]
        {
            let values = Values::new(*btf, machine).with_memory(memory).with_floats(floats);
            for id in 0..=btf.end() {
                let mut text = Limited(0);
                let kept = [1; 9];
                let kept = kept.get(..id as usize % 10).unwrap_or(&[]);
                let returned = Returned { registers: &words[..2], memory: Some(0x40), kept };
                let shown = values.write_retval(id, &returned, &mut text);
                shown
                    .and(values.write_args(id, &Entered { registers: &words, stack: Some(0x80), indirect: None }, &mut text))
                    .expect("a text with an end");
                assert!(values.result_at(id).is_none_or(|result| result.bytes != 0));
                if values.retval_at(id) == Some(RetvalAt::Nothing) {
                    let mut text = Limited(Limited::MOST);
                    values.write_retval(id, &returned, &mut text).expect("nothing");
                }
            }
        }
    }
}

/// A text that may become only so long.
struct Limited(usize);

impl Limited {
    const MOST: usize = 1 << 17;
}

impl Write for Limited {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0 += text.len();
        if self.0 > Self::MOST { Err(std::fmt::Error) } else { Ok(()) }
    }
}
