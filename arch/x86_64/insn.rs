//! The few x86_64 instructions that sites are made of. Intel SDM volume 2.

/// `call rel32`: E8, then the distance from the next instruction.
pub const CALL_LEN: usize = 5;

/// `int3`.
pub const INT3: u8 = 0xcc;

/// `endbr64`, the landing pad of indirect branches.
pub const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// The five-byte NOP of the SDM's table (NOP, "Recommended Multi-Byte Sequence").
pub const NOP5: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];

/// The two-byte NOP of the SDM's table, which compilers emit too.
pub const NOP2: [u8; 2] = [0x66, 0x90];

/// Encodes `call to` at `at`; `None` if the distance does not fit 32 bits.
pub fn call(at: usize, to: usize) -> Option<[u8; CALL_LEN]> {
    let next = at.wrapping_add(CALL_LEN);
    let distance = i32::try_from(to.wrapping_sub(next) as isize).ok()?;
    let [a, b, c, d] = distance.to_le_bytes();
    Some([0xe8, a, b, c, d])
}

/// `jmp rel8`: then the distance from the next instruction.
pub const JMP_SHORT: u8 = 0xeb;

/// Encodes `jmp to` at `at` (E9 rel32); `None` if the distance does not fit 32 bits.
pub fn jmp(at: usize, to: usize) -> Option<[u8; CALL_LEN]> {
    let [_, a, b, c, d] = call(at, to)?;
    Some([0xe9, a, b, c, d])
}

/// Encodes `lea r11, [rip + distance]`.
pub const fn lea_r11(distance: i32) -> [u8; 7] {
    let [a, b, c, d] = distance.to_le_bytes();
    [0x4c, 0x8d, 0x1d, a, b, c, d]
}

/// Where the `call rel32` with these bytes at `at` goes; `None` if it is another instruction.
pub fn call_target(at: usize, bytes: &[u8]) -> Option<usize> {
    match *bytes {
        [0xe8, a, b, c, d, ..] => {
            let distance = i32::from_le_bytes([a, b, c, d]) as isize;
            Some(at.wrapping_add(CALL_LEN).wrapping_add_signed(distance))
        }
        _ => None,
    }
}

/// Length of the NOP that `bytes` begin with; `None` if they begin with anything else, or a NOP that is cut off.
///
/// NOPs here are `90` and `0F 1F /0` with any addressing form, behind any number of `66` and `2E` prefixes. (`F3 90` is
/// PAUSE.)
pub fn nop_len(bytes: &[u8]) -> Option<usize> {
    let prefixes = bytes.iter().take_while(|byte| matches!(byte, 0x66 | 0x2e)).count();
    let len = match *bytes.get(prefixes..)? {
        [0x90, ..] => 1,
        [0x0f, 0x1f, modrm, ref rest @ ..] if modrm & 0x38 == 0 => 3 + operand_len(modrm, rest)?,
        _ => return None,
    };
    (prefixes + len <= bytes.len()).then_some(prefixes + len)
}

/// Bytes that follow a ModRM byte: SIB and displacement (SDM 2.1.3, table 2-2).
fn operand_len(modrm: u8, rest: &[u8]) -> Option<usize> {
    let (mode, rm) = (modrm >> 6, modrm & 7);
    let sib = usize::from(mode != 3 && rm == 4);
    let base_is_disp32 = match (mode, rm) {
        (0, 5) => true,
        (0, 4) => rest.first()? & 7 == 5,
        _ => false,
    };
    let displacement = match mode {
        0 if base_is_disp32 => 4,
        1 => 1,
        2 => 4,
        _ => 0,
    };
    Some(sib + displacement)
}

/// How many NOPs fill `bytes` exactly; `None` if they do not.
pub fn nops_filling(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    let mut count = 0;
    while at < bytes.len() {
        at += nop_len(&bytes[at..])?;
        count += 1;
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_reach_exactly_two_gibibytes() {
        let at = 0x1_0000_0000usize;
        let next = at + 5;
        for (to, reaches) in [
            (next + 0x7fff_ffff, true),
            (next + 0x8000_0000, false),
            (next - 0x8000_0000, true),
            (next - 0x8000_0001, false),
            (next, true),
        ] {
            let bytes = call(at, to);
            assert_eq!(bytes.is_some(), reaches, "to {to:#x}");
            if let Some(bytes) = bytes {
                assert_eq!(call_target(at, &bytes), Some(to));
            }
        }
    }

    #[test]
    fn calls_are_encoded_as_the_manual_says() {
        assert_eq!(call(0x1000, 0x1005), Some([0xe8, 0, 0, 0, 0]));
        assert_eq!(call(0x1000, 0x1000), Some([0xe8, 0xfb, 0xff, 0xff, 0xff]));
        assert_eq!(call_target(0x1000, &[0xe9, 0, 0, 0, 0]), None);
        assert_eq!(call_target(0x1000, &[0xe8, 0, 0, 0]), None);
    }

    #[test]
    fn nops_of_compilers_and_of_the_manual_are_known() {
        let table: &[(&str, &[u8], Option<usize>)] = &[
            ("90", &[0x90], Some(1)),
            ("66 90", &[0x66, 0x90], Some(2)),
            ("nopl (rax)", &[0x0f, 0x1f, 0x00], Some(3)),
            ("nopl 0(rax)", &[0x0f, 0x1f, 0x40, 0x00], Some(4)),
            ("rustc", &[0x0f, 0x1f, 0x44, 0x00, 0x08], Some(5)),
            ("kernel", &NOP5, Some(5)),
            ("66 0f 1f 44", &[0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00], Some(6)),
            ("nopl 0(rax) disp32", &[0x0f, 0x1f, 0x80, 0, 0, 0, 0], Some(7)),
            ("nopl 0(rax,rax) disp32", &[0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0], Some(8)),
            ("cs nopw", &[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0], Some(10)),
            ("rip relative", &[0x0f, 0x1f, 0x05, 0, 0, 0, 0], Some(7)),
            ("sib without base", &[0x0f, 0x1f, 0x04, 0x25, 0, 0, 0, 0], Some(8)),
            ("four prefixes", &[0x66, 0x66, 0x66, 0x66, 0x90], Some(5)),
            ("pause", &[0xf3, 0x90], None),
            ("0f 1f /1", &[0x0f, 0x1f, 0x48, 0x00], None),
            ("push", &[0x55], None),
            ("cut off", &[0x0f, 0x1f, 0x44, 0x00], None),
            ("cut off sib", &[0x0f, 0x1f, 0x04], None),
            ("prefixes only", &[0x66, 0x66], None),
            ("nothing", &[], None),
        ];
        for (name, bytes, len) in table {
            assert_eq!(nop_len(bytes), *len, "{name}");
        }
    }

    #[test]
    fn a_sled_is_filled_exactly_or_not_at_all() {
        assert_eq!(nops_filling(&[0x90; 5]), Some(5));
        assert_eq!(nops_filling(&[0x0f, 0x1f, 0x44, 0x00, 0x08]), Some(1));
        assert_eq!(nops_filling(&[0x66, 0x90, 0x0f, 0x1f, 0x00]), Some(2));
        assert_eq!(nops_filling(&[0x90, 0x90, 0x90, 0x90, 0x55]), None);
        assert_eq!(nops_filling(&[0x90, 0x0f, 0x1f, 0x44, 0x00]), None);
    }

    #[test]
    fn no_bytes_make_the_decoder_panic() {
        let mut bytes = [0u8; 5];
        for a in 0..=255u8 {
            for b in 0..=255u8 {
                bytes[0] = 0x0f;
                bytes[1] = 0x1f;
                bytes[2] = a;
                bytes[3] = b;
                let _ = nop_len(&bytes);
                bytes[0] = a;
                bytes[1] = b;
                let _ = nop_len(&bytes);
            }
        }
    }
}
