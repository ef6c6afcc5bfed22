//! Frames through single instructions, by tables.

use super::*;
use crate::testing::storm;
use crate::unwind::Place;

fn follow(mut state: State, bytes: &[u8]) -> Option<(State, Step)> {
    let code = Code { bytes, at: 0x1010, start: 0x1000, prefixed: false, trampolines: &(0x8000..0x9000) };
    let step = X86_64::step(code, &mut state)?;
    Some((state, step))
}

#[test]
fn a_frame_is_set_up_and_taken_down() {
    let mut state = X86_64::entry(Reached::Called);
    let (fp, saved) = (Place::Register(FP), Place::Slot(-16));
    for (name, bytes, sp, place) in [
        ("push rbp", &[0x55][..], Value::Cfa(-16), saved),
        ("mov rbp, rsp", &[0x48, 0x89, 0xe5], Value::Cfa(-16), saved),
        ("push rbx", &[0x53], Value::Cfa(-24), saved),
        ("sub rsp, 0x48", &[0x48, 0x83, 0xec, 0x48], Value::Cfa(-96), saved),
        ("and rsp, -64", &[0x48, 0x83, 0xe4, 0xc0], Value::Other, saved),
        ("lea rsp, [rbp - 8]", &[0x48, 0x8d, 0x65, 0xf8], Value::Cfa(-24), saved),
        ("pop rbx", &[0x5b], Value::Cfa(-16), saved),
        ("pop rbp", &[0x5d], Value::Cfa(-8), fp),
    ] {
        state = follow(state, bytes).expect(name).0;
        assert_eq!((state.get(Some(SP)), state.place(Value::Fp)), (sp, Some(place)), "{name}");
        assert_eq!(state.place(Value::Return), Some(Place::Slot(-8)), "{name}");
    }
    assert_eq!(follow(state, &[0xc3]).expect("ret").1, Step { len: 1, flow: Flow::Stop });
}

#[test]
fn instructions_are_as_long_as_the_manual_says() {
    for (name, bytes) in [
        ("mov rax, imm64", &[0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8][..]),
        ("mov ax, imm16", &[0x66, 0xb8, 1, 2]),
        ("mov eax, [moffs64]", &[0xa1, 1, 2, 3, 4, 5, 6, 7, 8]),
        ("mov r11, gs:[disp32]", &[0x65, 0x4c, 0x8b, 0x1c, 0x25, 1, 0, 0, 0]),
        ("test dword [rax], imm32", &[0xf7, 0x00, 1, 2, 3, 4]),
        ("not dword [rax]", &[0xf7, 0x10]),
        ("add word [rax], imm16", &[0x66, 0x81, 0x00, 1, 2]),
        ("enter-like operands: ret imm16", &[0xc2, 8, 0]),
        ("lock cmpxchg16b [rdi]", &[0xf0, 0x48, 0x0f, 0xc7, 0x0f]),
        ("movups [rsp+0x78], xmm3", &[0x0f, 0x11, 0x5c, 0x24, 0x78]),
        ("pshufd imm8", &[0x66, 0x0f, 0x70, 0xc1, 0x44]),
        ("palignr imm8", &[0x66, 0x0f, 0x3a, 0x0f, 0xc1, 8]),
        ("crc32", &[0xf2, 0x48, 0x0f, 0x38, 0xf1, 0xc0]),
        ("vpaddd", &[0xc5, 0xfd, 0xfe, 0xc1]),
        ("vpermq imm8", &[0xc4, 0xe3, 0xfd, 0x00, 0xc1, 0x44]),
        ("vmovdqu64 zmm", &[0x62, 0xf1, 0xfe, 0x48, 0x6f, 0x07]),
        ("long nop", &[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0]),
        ("endbr64", &[0xf3, 0x0f, 0x1e, 0xfa]),
        ("mov [rip + disp32], imm32", &[0xc7, 0x05, 1, 2, 3, 4, 5, 6, 7, 8]),
        ("jmp [table + 8*rax]", &[0xff, 0x24, 0xc5, 1, 2, 3, 4]),
    ] {
        let mut padded = bytes.to_vec();
        padded.resize(24, 0xcc);
        let (_, step) = follow(X86_64::entry(Reached::Called), &padded).expect(name);
        assert_eq!(step.len, bytes.len(), "{name}");
        for cut in 0..bytes.len() {
            let cut = follow(X86_64::entry(Reached::Called), &bytes[..cut]);
            assert!(cut.is_none_or(|(_, step)| step.len <= bytes.len()), "{name}");
        }
    }
}

#[test]
fn branches_go_where_they_say() {
    for (name, bytes, flow) in [
        ("jmp short", &[0xeb, 0x10][..], Flow::Jump(Some(0x1022))),
        ("jmp", &[0xe9, 0xf0, 0xff, 0xff, 0xff], Flow::Jump(Some(0x1005))),
        ("je short", &[0x74, 0xfe], Flow::Branch(0x1010)),
        ("jae", &[0x0f, 0x83, 0, 1, 0, 0], Flow::Branch(0x1116)),
        ("call", &[0xe8, 4, 0, 0, 0], Flow::Next),
        ("jmp rax", &[0xff, 0xe0], Flow::Jump(None)),
        ("ud2", &[0x0f, 0x0b], Flow::Stop),
        ("int3 between functions", &[0xcc], Flow::Stop),
        ("repz ret", &[0xf3, 0xc3], Flow::Stop),
    ] {
        assert_eq!(follow(X86_64::entry(Reached::Called), bytes).expect(name).1.flow, flow, "{name}");
    }
}

#[test]
fn a_sled_changes_nothing_in_any_of_its_states() {
    let call = crate::arch::x86_64::insn::call(0x1000, 0x8000).expect("in reach");
    let trap = [0xcc, call[1], call[2], call[3], call[4]];
    for sled in [call, trap, [0x0f, 0x1f, 0x44, 0x00, 0x08]] {
        let mut state = X86_64::entry(Reached::Called);
        let code =
            Code { bytes: &sled, at: 0x1000, start: 0x1000, prefixed: false, trampolines: &(0x8000..0x9000) };
        assert_eq!(X86_64::step(code, &mut state), Some(Step::next(5)), "{sled:x?}");
        assert_eq!(state, X86_64::entry(Reached::Called), "{sled:x?}");
    }
}

#[test]
fn no_bytes_make_the_decoder_panic() {
    storm(20_000, 200, |random| {
        let bytes: [u8; 15] = core::array::from_fn(|_| {
            let byte = random.word() as u8;
            if random.one_in(2) {
                *random.pick(&[0x0f, 0x48, 0x66, 0xc5, 0xc4, 0x62, 0xff, 0x83, 0xf7])
            } else {
                byte
            }
        });
        let len = random.between(0, 15);
        if let Some((_, step)) = follow(X86_64::entry(Reached::Called), &bytes[..len]) {
            assert!((1..=len).contains(&step.len) || bytes[0] == 0xcc, "{bytes:x?}");
        }
    });
}
