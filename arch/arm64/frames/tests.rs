//! Frames through single instructions, by tables.

use std::vec::Vec;

use super::*;
use crate::unwind::Place;

const STP: u32 = 0xa9bf_7bfd; // stp x29, x30, [sp, #-16]!
const MOV_FP: u32 = 0x9100_03fd; // mov x29, sp
const LDP: u32 = 0xa8c1_7bfd; // ldp x29, x30, [sp], #16
const RET: u32 = 0xd65f_03c0;

/// The states before each of these instructions and behind the last, from `state` on.
fn follow(mut state: State, words: &[u32]) -> (Vec<State>, Vec<Flow>) {
    let (mut states, mut flows) = (vec![state], Vec::new());
    for (n, word) in words.iter().enumerate() {
        let code = Code {
            bytes: &word.to_le_bytes(),
            at: 0x1000 + 4 * n,
            prefixed: false,
            start: 0x1000,
            trampolines: &(0x8000..0x9000),
        };
        flows.push(Arm64::step(code, &mut state).expect("every word is four bytes").flow);
        states.push(state);
    }
    (states, flows)
}

fn places(state: &State) -> (Value, Option<Place>, Option<Place>) {
    (state.get(Some(SP)), state.place(Value::Return), state.place(Value::Fp))
}

#[test]
fn a_frame_is_set_up_and_taken_down() {
    // mov x17, x30; bl 0x8000 (a sled); paciasp; ...; autiasp; ret
    let bl = crate::arch::arm64::insn::bl(0x1004, 0x8000).expect("in reach");
    let words = [MOV_X17_LR, bl, 0xd503_233f, STP, MOV_FP, LDP, 0xd503_23bf, RET];
    let (states, flows) = follow(Arm64::entry(Reached::Called), &words);
    let (link, fp) = (Some(Place::Register(LINK)), Some(Place::Register(FP)));
    let saved = (Value::Cfa(-16), Some(Place::Slot(-8)), Some(Place::Slot(-16)));
    for (n, state) in states.iter().enumerate() {
        let should = if (4..=5).contains(&n) { saved } else { (Value::Cfa(0), link, fp) };
        assert_eq!(places(state), should, "before instruction {n}");
    }
    assert_eq!(states[5].get(Some(FP)), Value::Cfa(-16));
    assert!(flows[..7].iter().all(|flow| *flow == Flow::Next));
    assert_eq!(flows[7], Flow::Stop);
}

#[test]
fn a_call_costs_the_link_register_unless_it_is_a_sleds() {
    let bl = crate::arch::arm64::insn::bl(0x1000, 0x4000).expect("in reach");
    let (states, _) = follow(Arm64::entry(Reached::Called), &[bl]);
    assert_eq!(states[1].place(Value::Return), None);
}

#[test]
fn branches_go_where_they_say() {
    for (name, word, flow) in [
        ("b +8", 0x1400_0002, Flow::Jump(Some(0x1008))),
        ("b.ne -4", 0x54ff_ffe1, Flow::Branch(0x0ffc)),
        ("cbz x0, +16", 0xb400_0080, Flow::Branch(0x1010)),
        ("tbnz w1, #0, +12", 0x3700_0061, Flow::Branch(0x100c)),
        ("br x16", 0xd61f_0200, Flow::Jump(None)),
        ("blr x8", 0xd63f_0100, Flow::Next),
        ("retaa", 0xd65f_0bff, Flow::Stop),
        ("eret", 0xd69f_03e0, Flow::Stop),
        ("brk #1", 0xd420_0020, Flow::Stop),
        ("svc #0", 0xd400_0001, Flow::Next),
        ("udf #0", 0, Flow::Stop),
        ("b to a trampoline", 0x1400_1c00, Flow::Next),
    ] {
        assert_eq!(follow(Arm64::entry(Reached::Called), &[word]).1, [flow], "{name}");
    }
}

#[test]
fn what_is_overwritten_is_lost() {
    for (name, word, place) in [
        ("mov x29, #1", 0xd280_003d, None),
        ("ldr x29, [x0]", 0xf940_001d, None),
        ("and sp, x9, #~15", 0x927c_ed3f, Some(Place::Register(FP))),
        ("tst w8, #1", 0x7200_011f, Some(Place::Register(FP))),
        ("ldr d29, [x0]", 0xfd40_001d, Some(Place::Register(FP))),
        ("msr sp_el0, x0", 0xd518_4100, Some(Place::Register(FP))),
    ] {
        let (states, _) = follow(Arm64::entry(Reached::Called), &[word]);
        assert_eq!(states[1].place(Value::Fp), place, "{name}");
        let sp = if name.starts_with("and sp") { Value::Other } else { Value::Cfa(0) };
        assert_eq!(states[1].get(Some(SP)), sp, "{name}");
    }
    // str xzr over the saved pair
    let (states, _) = follow(Arm64::entry(Reached::Called), &[STP, MOV_FP, 0xf900_07ff]);
    assert_eq!(states[3].place(Value::Return), Some(Place::Register(LINK)));
    assert_eq!(states[3].place(Value::Fp), Some(Place::Slot(-16)));
}
