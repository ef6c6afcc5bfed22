//! The symbol table of an image, read from bytes that may be anything.
//!
//! Bytes as they are seldom get behind the header; so they are also tried behind a header that fits them. What is
//! accepted must answer every question as a plain walk over the table would.
#![no_main]

use fgraph::symbols::{Symbols, layout};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(symbols) = Symbols::parse(bytes) {
        ask(&symbols);
    }
    if let Ok(symbols) = Symbols::parse(&with_header(bytes)) {
        ask(&symbols);
    }
});

/// A blob whose entries and names are `bytes`. Its first byte says how many entries, the second where the base is.
fn with_header(bytes: &[u8]) -> Vec<u8> {
    let (count, base, body) = match bytes {
        [count, base, body @ ..] => (u32::from(*count), *base, body),
        _ => (0, 0, bytes),
    };
    let count = count.min(body.len() as u32 / 12);
    let strings = body.len() as u32 - 12 * count;
    let mut blob = Vec::from(layout::MAGIC);
    blob.extend(layout::VERSION.to_le_bytes());
    blob.extend(0u32.to_le_bytes());
    blob.extend(0u64.to_le_bytes());
    blob.extend(layout::blob_len(count, strings).to_le_bytes());
    // Near either end of the addresses, and far from both.
    blob.extend((u64::from(base) << 56).wrapping_sub(u64::from(base & 1)).to_le_bytes());
    blob.extend(count.to_le_bytes());
    blob.extend(strings.to_le_bytes());
    assert_eq!(blob.len(), layout::HEADER_LEN);
    blob.extend(body);
    blob
}

fn ask(symbols: &Symbols<'_>) {
    let all: Vec<_> = symbols.iter().collect();
    assert_eq!((all.len(), all.is_empty()), (symbols.len(), symbols.is_empty()));
    assert!(all.is_sorted_by_key(|symbol| symbol.start));
    for symbol in &all {
        assert!(!symbol.name.is_empty());
        let _ = symbol.demangled().to_string();
        assert!(symbols.by_name(symbol.name).any(|found| found == *symbol), "{symbol:?}");
        let (start, end) = (symbol.start, symbol.start + u64::from(symbol.size));
        for addr in [start, start.wrapping_sub(1), start.wrapping_add(1), end.wrapping_sub(1), end] {
            // The last start at or below it decides, and of its names the first that is long enough.
            let last = all.iter().map(|other| other.start).filter(|start| *start <= addr).max();
            let expected = all.iter().find(|other| {
                Some(other.start) == last
                    && (addr == other.start || addr - other.start < u64::from(other.size))
            });
            let found = symbols.by_address(addr);
            assert_eq!(
                found.map(|found| (found.start, found.name)),
                expected.map(|s| (s.start, s.name)),
                "{addr:#x}"
            );
            assert!(found.is_none_or(|found| found.start + found.offset == addr));
        }
    }
    // Another place in memory is the same table.
    let moved = symbols.with_slide(0x1234_5000);
    for (symbol, there) in all.iter().zip(moved.iter()) {
        assert_eq!(symbol.start.wrapping_add(0x1234_5000), there.start);
        assert_eq!(moved.by_address(there.start).map(|found| found.offset), Some(0));
    }
}
