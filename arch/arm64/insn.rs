//! The few arm64 instructions that sites are made of. Arm ARM (DDI 0487) chapter C6.2.

/// `nop`.
pub const NOP: u32 = 0xd503_201f;

/// `mov x17, x30` (`orr x17, xzr, x30`).
pub const MOV_X17_LR: u32 = 0xaa1e_03f1;

/// `bti c`, the landing pad of indirect calls.
pub const BTI_C: u32 = 0xd503_245f;

/// `bti jc`, the landing pad of indirect calls and jumps.
pub const BTI_JC: u32 = 0xd503_24df;

const BL: u32 = 0x9400_0000;
const B: u32 = 0x1400_0000;
const BL_MASK: u32 = 0xfc00_0000;

/// How far `bl` reaches: from -128 MiB to one instruction below +128 MiB.
const REACH: isize = 1 << 27;

/// Encodes `bl to` at `at`; `None` if that is out of reach, or either is not on an instruction.
pub fn bl(at: usize, to: usize) -> Option<u32> {
    Some(BL | distance(at, to)?)
}

/// Encodes `b to` at `at`; `None` as for [`bl`].
pub fn b(at: usize, to: usize) -> Option<u32> {
    Some(B | distance(at, to)?)
}

fn distance(at: usize, to: usize) -> Option<u32> {
    let distance = to.wrapping_sub(at) as isize;
    if !at.is_multiple_of(4) || !to.is_multiple_of(4) || !(-REACH..REACH).contains(&distance) {
        return None;
    }
    Some((distance >> 2) as u32 & !BL_MASK)
}

/// Encodes `adr x17, . + bytes`; only the two low bits of `bytes`.
pub const fn adr_x17(bytes: u8) -> u32 {
    0x1000_0011 | (bytes as u32 & 3) << 29
}

/// Where the `bl` with this word at `at` goes; `None` if it is another instruction.
pub fn bl_target(at: usize, word: u32) -> Option<usize> {
    if word & BL_MASK != BL {
        return None;
    }
    // Sign-extends the 26 bits, and multiplies by 4.
    let distance = ((word << 6) as i32 >> 4) as isize;
    Some(at.wrapping_add_signed(distance))
}

/// Whether a function's entry may begin with this word as its landing pad.
pub fn is_landing_pad(word: u32) -> bool {
    matches!(word, BTI_C | BTI_JC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bl_reaches_exactly_128_mebibytes() {
        let at = 0x4000_0000usize;
        for (offset, reaches) in [
            (0x07ff_fffcisize, true),
            (0x0800_0000, false),
            (-0x0800_0000, true),
            (-0x0800_0004, false),
            (0, true),
            (4, true),
            (-4, true),
            (2, false),
        ] {
            let to = at.wrapping_add_signed(offset);
            let word = bl(at, to);
            assert_eq!(word.is_some(), reaches, "offset {offset:#x}");
            if let Some(word) = word {
                assert_eq!(bl_target(at, word), Some(to), "offset {offset:#x}");
            }
        }
        assert_eq!(bl(at + 1, at + 4), None);
    }

    #[test]
    fn bl_is_encoded_as_the_manual_says() {
        assert_eq!(bl(0x1000, 0x1000), Some(0x9400_0000));
        assert_eq!(bl(0x1000, 0x1004), Some(0x9400_0001));
        assert_eq!(bl(0x1000, 0x0ffc), Some(0x97ff_ffff));
    }

    #[test]
    fn b_reaches_what_bl_does_and_is_no_bl() {
        assert_eq!(b(0x1000, 0x0ffc), Some(0x17ff_ffff));
        assert_eq!(b(0x1000, 0x1004), Some(0x1400_0001));
        assert_eq!(b(0x4000_0000, 0x4800_0000), None);
        assert_eq!(bl_target(0x1000, 0x1400_0001), None);
    }

    #[test]
    fn adr_is_encoded_as_the_manual_says() {
        assert_eq!(adr_x17(0), 0x1000_0011);
        assert_eq!(adr_x17(1), 0x3000_0011);
        assert_eq!(adr_x17(3), 0x7000_0011);
    }

    #[test]
    fn other_words_are_no_bl() {
        for word in [NOP, MOV_X17_LR, BTI_C, 0x1400_0001, 0xd65f_03c0, 0] {
            assert_eq!(bl_target(0x1000, word), None, "{word:#x}");
        }
    }
}
