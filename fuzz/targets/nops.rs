//! The NOP decoder of x86_64 sites against a whole decoder.
//!
//! A sled that is taken for a NOP of another length would be patched in the middle of an instruction.
#![no_main]

use fgraph::x86_64::insn::{nop_len, nops_filling};
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic};
use libfuzzer_sys::fuzz_target;

/// The longest instruction (SDM 2.3.11). fgraph does not look further than a sled, which is shorter.
const LONGEST: usize = 15;

fuzz_target!(|bytes: &[u8]| {
    let bytes = &bytes[..bytes.len().min(LONGEST)];
    let ours = nop_len(bytes);
    let instruction = decoded(bytes);
    if let Some(len) = ours {
        assert!(len > 0 && len <= bytes.len(), "{len} bytes of {bytes:02x?}");
        assert_eq!((instruction.len(), instruction.mnemonic()), (len, Mnemonic::Nop), "{bytes:02x?}");
        // It reads no further than its end.
        assert_eq!(nop_len(&bytes[..len]), ours, "{bytes:02x?}");
        assert_eq!(nop_len(&bytes[..len - 1]), None, "{bytes:02x?}");
    } else if instruction.mnemonic() == Mnemonic::Nop {
        assert!(!is_compilers(bytes), "not known: {bytes:02x?}");
    }

    let mut rest = bytes;
    let mut count = 0;
    while let Some(len) = nop_len(rest) {
        rest = &rest[len..];
        count += 1;
    }
    assert_eq!(nops_filling(bytes), rest.is_empty().then_some(count), "{bytes:02x?}");
});

fn decoded(bytes: &[u8]) -> Instruction {
    Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE).decode()
}

/// Whether a NOP is one of those that compilers and assemblers emit: `90` and `0F 1F /0`, behind `66` and `2E` only.
fn is_compilers(bytes: &[u8]) -> bool {
    let opcode = bytes.iter().position(|byte| !matches!(byte, 0x66 | 0x2e)).unwrap_or(bytes.len());
    match bytes[opcode..] {
        [0x90, ..] => true,
        [0x0f, 0x1f, modrm, ..] => modrm & 0x38 == 0,
        _ => false,
    }
}
