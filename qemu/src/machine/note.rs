//! What the linker found to be true of everything it linked: the note of GNU properties.
//!
//! Three words, a name of one word, then properties of a type, a size and data that fill eight bytes each time (the gABI's Linux
//! extensions; AAELF64 6.2). A property of the kind "all must have it" is there only if every object file had it, the standard
//! library included, whose usual build has none.

use core::slice;

unsafe extern "C" {
    static __properties_start: u32;
    static __properties_end: u32;
}

const HEADER_WORDS: usize = 4;

/// The bits of the property `kind`; 0 if there is none. Runs with the MMU off too.
#[inline(always)]
pub(super) fn features(kind: u32) -> u32 {
    let (start, end) = (&raw const __properties_start, &raw const __properties_end);
    // SAFETY: read-only words between two of the linker script's symbols, 8-aligned by it.
    let note = unsafe { slice::from_raw_parts(start, (end.addr() - start.addr()) / 4) };
    let mut properties = note.get(HEADER_WORDS..).unwrap_or_default();
    while let [this, size, rest @ ..] = properties {
        if let (true, [features, ..]) = (*this == kind, rest) {
            return *features;
        }
        properties = rest.get(size.div_ceil(8) as usize * 2..).unwrap_or_default();
    }
    0
}
