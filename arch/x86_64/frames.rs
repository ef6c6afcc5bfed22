//! What x86_64 instructions do to frames: their length, and the few that matter. Intel SDM volume 2, chapter 2 and
//! appendix A.
//!
//! What is not listed here, and writes a register that is followed, makes its value unknown.

use crate::arch::x86_64::insn::{CALL_LEN, lea_r11};
use crate::arch::x86_64::patch::{LEA_DISTANCE, PREFIX_JMP, SHORT, X86_64};
use crate::unwind::{
    CallFrames, Code, FP, Flow, PREFIX, Reached, SCRATCH, SP, State, Step, TEMP, Value, WORD,
};

const RAX: u8 = 0;
const RSP: u8 = 4;
const RBP: u8 = 5;
const R11: u8 = 11;

/// How far apart a large frame is touched, so that none reaches beyond a guard page unnoticed.
const PROBE: i32 = 4096;

/// The register that is followed.
fn reg(n: u8) -> Option<usize> {
    Some(match n {
        RSP => SP,
        RBP => FP,
        R11 => SCRATCH[0],
        RAX => TEMP[0],
        _ => return None,
    })
}

/// An instruction, taken apart.
#[derive(Clone, Copy, Debug)]
struct Insn {
    len: usize,
    /// 0: one byte; 1: behind 0F; 2, 3: behind 0F 38, 0F 3A. Vector prefixes as what they stand for.
    map: u8,
    opcode: u8,
    vector: bool,
    rex: u8,
    /// Operands have two bytes.
    short: bool,
    modrm: Option<ModRm>,
    imm: i32,
}

#[derive(Clone, Copy, Debug)]
struct ModRm {
    /// Register number, or part of the opcode.
    reg: u8,
    /// The other register, if it is one.
    rm: Option<u8>,
    /// The base register of a memory operand that has a base and no index.
    base: Option<u8>,
    displacement: i32,
}

struct Bytes<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Bytes<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    /// A signed number of 0, 1, 2, 4 or 8 bytes, of which the lower four count.
    fn number(&mut self, len: usize) -> Option<i32> {
        let bytes = self.bytes.get(self.at..self.at + len)?;
        self.at += len;
        Some(match *bytes {
            [] => 0,
            [a] => i32::from(i8::from_le_bytes([a])),
            [a, b] => i32::from(i16::from_le_bytes([a, b])),
            [a, b, c, d, ..] => i32::from_le_bytes([a, b, c, d]),
            _ => return None,
        })
    }
}

/// Whether an opcode of the one-byte map has a ModRM byte.
fn has_modrm(opcode: u8) -> bool {
    match opcode {
        0x00..=0x3f => opcode & 7 < 4,
        0x63 | 0x69 | 0x6b | 0x80..=0x8f | 0xc0 | 0xc1 | 0xc6 | 0xc7 | 0xd0..=0xd3 | 0xd8..=0xdf => true,
        _ => matches!(opcode, 0xf6 | 0xf7 | 0xfe | 0xff),
    }
}

/// The same of the two-byte map.
fn has_modrm_behind_0f(opcode: u8) -> bool {
    !matches!(
        opcode,
        0x05..=0x0b | 0x0e | 0x30..=0x37 | 0x77 | 0x80..=0x8f | 0xa0..=0xa2 | 0xa8..=0xaa | 0xc8..=0xcf
    )
}

/// Bytes of the immediate operand, in the one-byte map; `reg` is that of the ModRM byte.
fn immediate(opcode: u8, reg: u8, rex: u8, short: bool, short_address: bool) -> usize {
    let word = if short { 2 } else { 4 };
    match opcode {
        0x00..=0x3f if opcode & 7 == 4 => 1,
        0x00..=0x3f if opcode & 7 == 5 => word,
        0x68 | 0x69 | 0x81 | 0xa9 | 0xc7 => word,
        0x6a | 0x6b | 0x70..=0x80 | 0x83 | 0xa8 | 0xb0..=0xb7 | 0xc0 | 0xc1 | 0xc6 | 0xcd => 1,
        0xb8..=0xbf if rex & 8 != 0 => 8,
        0xb8..=0xbf => word,
        0xa0..=0xa3 if short_address => 4,
        0xa0..=0xa3 => 8,
        0xc2 => 2,
        0xc8 => 3,
        0xe0..=0xe7 | 0xeb => 1,
        0xe8 | 0xe9 => 4,
        0xf6 if reg < 2 => 1,
        0xf7 if reg < 2 => word,
        _ => 0,
    }
}

fn modrm(bytes: &mut Bytes<'_>, rex: u8) -> Option<ModRm> {
    let byte = bytes.byte()?;
    let (mode, low) = (byte >> 6, byte & 7);
    let reg = byte >> 3 & 7 | (rex & 4) << 1;
    if mode == 3 {
        return Some(ModRm { reg, rm: Some(low | (rex & 1) << 3), base: None, displacement: 0 });
    }
    let (mut base, mut displacement) = (Some(low | (rex & 1) << 3), [0, 1, 4][mode as usize]);
    if low == 4 {
        let sib = bytes.byte()?;
        let indexed = sib >> 3 & 7 | (rex & 2) << 2 != 4;
        base = Some(sib & 7 | (rex & 1) << 3);
        if mode == 0 && sib & 7 == 5 {
            (base, displacement) = (None, 4);
        }
        if indexed {
            base = None;
        }
    } else if mode == 0 && low == 5 {
        (base, displacement) = (None, 4);
    }
    Some(ModRm { reg, rm: None, base, displacement: bytes.number(displacement)? })
}

fn decode(bytes: &[u8]) -> Option<Insn> {
    let mut bytes = Bytes { bytes, at: 0 };
    let (mut short, mut short_address) = (false, false);
    loop {
        match bytes.peek()? {
            0x66 => short = true,
            0x67 => short_address = true,
            0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 | 0xf0 | 0xf2 | 0xf3 => {}
            _ => break,
        }
        bytes.at += 1;
    }
    let mut rex = 0;
    if bytes.peek()? & 0xf0 == 0x40 {
        rex = bytes.byte()?;
    }
    let (mut map, mut vector) = (0, false);
    let mut opcode = bytes.byte()?;
    match opcode {
        0x0f => {
            map = 1;
            opcode = bytes.byte()?;
            if let 0x38 | 0x3a = opcode {
                map = if opcode == 0x38 { 2 } else { 3 };
                opcode = bytes.byte()?;
            }
        }
        // VEX and EVEX: the bits of REX are inverted.
        0xc5 => {
            let second = bytes.byte()?;
            (map, vector, rex) = (1, true, !second >> 5 & 4);
            opcode = bytes.byte()?;
        }
        0xc4 => {
            let second = bytes.byte()?;
            bytes.byte()?;
            (map, vector, rex) = (second & 31, true, !second >> 5);
            opcode = bytes.byte()?;
        }
        0x62 => {
            let second = bytes.byte()?;
            bytes.number(2)?;
            (map, vector, rex) = (second & 7, true, !second >> 5);
            opcode = bytes.byte()?;
        }
        _ => {}
    }
    let with_modrm = match map {
        0 => has_modrm(opcode),
        1 => has_modrm_behind_0f(opcode),
        2 | 3 => true,
        _ => return None,
    };
    let modrm = if with_modrm { Some(modrm(&mut bytes, rex)?) } else { None };
    let len = match map {
        0 => immediate(opcode, modrm.map_or(0, |modrm| modrm.reg & 7), rex, short, short_address),
        1 => match opcode {
            0x80..=0x8f => 4,
            0x70..=0x73 | 0xa4 | 0xac | 0xba | 0xc2 | 0xc4..=0xc6 => 1,
            _ => 0,
        },
        3 => 1,
        _ => 0,
    };
    let imm = if len == 3 { bytes.number(1)? & bytes.number(2)? } else { bytes.number(len)? };
    Some(Insn { len: bytes.at, map, opcode, vector, rex, short, modrm, imm })
}

impl Insn {
    /// The register in the low bits of the opcode.
    fn low(&self) -> u8 {
        self.opcode & 7 | (self.rex & 1) << 3
    }

    /// Bytes of the operand, at most.
    fn operand(&self, byte: bool) -> i32 {
        match (byte, self.wide()) {
            (true, _) => 1,
            (false, false) if self.short => 2,
            (false, false) => 4,
            (false, true) => WORD,
        }
    }

    /// A whole register is moved: 64 bits.
    fn wide(&self) -> bool {
        self.rex & 8 != 0
    }
}

/// The address of a memory operand.
fn address(modrm: &ModRm, state: &State) -> Value {
    state.get(modrm.base.and_then(reg)).plus(modrm.displacement)
}

/// What a call does not preserve (psABI 3.2.1), of what is followed.
fn call(state: &mut State) {
    state.clobber(&[SCRATCH[0], TEMP[0]]);
}

fn push(state: &mut State, value: Value) {
    state.add_sp(-WORD);
    state.store(state.get(Some(SP)), value);
}

fn pop(state: &mut State) -> Value {
    let value = state.load(state.get(Some(SP)));
    state.add_sp(WORD);
    value
}

/// Register `n` has an unknown value, or the register that it is part of.
fn lose(state: &mut State, insn: &Insn, n: u8, byte: bool) {
    // Without REX, byte registers 4 to 7 are the second bytes of 0 to 3.
    let n = if byte && insn.rex == 0 && (4..8).contains(&n) { n - 4 } else { n };
    state.set(reg(n), Value::Other);
}

/// A register or memory operand is written with something unknown.
fn lose_operand(state: &mut State, insn: &Insn, byte: bool) {
    match insn.modrm {
        Some(ModRm { rm: Some(rm), .. }) => lose(state, insn, rm, byte),
        Some(modrm) => state.overwrite(address(&modrm, state), insn.operand(byte)),
        None => {}
    }
}

/// One-byte opcodes.
fn one_byte(insn: &Insn, code: &Code<'_>, state: &mut State) -> Option<Flow> {
    let next = code.at.wrapping_add(insn.len);
    let target = next.wrapping_add_signed(insn.imm as isize);
    let modrm = insn.modrm;
    let byte = insn.opcode & 1 == 0;
    match (insn.opcode, modrm) {
        (0x50..=0x57, _) => {
            let value = state.get(reg(insn.low()));
            push(state, value);
        }
        (0x58..=0x5f, _) => {
            let value = pop(state);
            state.set(reg(insn.low()), value);
        }
        (0x68 | 0x6a | 0x9c, _) => push(state, Value::Other),
        (0x9d, _) => {
            pop(state);
        }
        (0x8f, Some(modrm)) => {
            let value = pop(state);
            match modrm.rm {
                Some(rm) => state.set(reg(rm), value),
                // The address is computed with the stack pointer behind the pop.
                None => state.store(address(&modrm, state), value),
            }
        }
        (0x89, Some(modrm)) if insn.wide() => {
            let value = state.get(reg(modrm.reg));
            match modrm.rm {
                Some(rm) => state.set(reg(rm), value),
                None => state.store(address(&modrm, state), value),
            }
        }
        (0x8b, Some(modrm)) if insn.wide() => {
            let value = match modrm.rm {
                Some(rm) => state.get(reg(rm)),
                None => state.load(address(&modrm, state)),
            };
            state.set(reg(modrm.reg), value);
        }
        (0x8d, Some(modrm)) => {
            let value = if insn.wide() { address(&modrm, state) } else { Value::Other };
            state.set(reg(modrm.reg), value);
        }
        (0x81 | 0x83, Some(ModRm { reg: 0 | 5 | 8 | 13, rm: Some(rm), .. })) if insn.wide() => {
            let is_sub = modrm.is_some_and(|modrm| modrm.reg & 7 == 5);
            // The step of a loop that touches each page of a large frame: how often it is done, `cmp` will tell.
            let value = if is_sub && insn.imm == PROBE { Value::Other } else { state.get(reg(rm)) };
            state.set(reg(rm), value.plus(if is_sub { insn.imm.checked_neg()? } else { insn.imm }));
        }
        (0x39, Some(ModRm { reg: other, rm: Some(RSP), .. }))
        | (0x3b, Some(ModRm { reg: RSP, rm: Some(other), .. })) => {
            // Such a loop ends when they are equal.
            state.set(Some(SP), state.get(reg(other)));
        }
        // cmp and test.
        (0x38..=0x3d | 0x84 | 0x85 | 0xa8 | 0xa9, _) => {}
        (0x80..=0x83, Some(ModRm { reg: 7 | 15, .. }))
        | (0xf6 | 0xf7, Some(ModRm { reg: 0 | 1 | 8 | 9, .. })) => {}
        (0xf6 | 0xf7, Some(ModRm { reg: 2 | 3 | 10 | 11, .. })) => lose_operand(state, insn, byte),
        (0xf6 | 0xf7, _) => state.set(reg(RAX), Value::Other),
        (0x00..=0x3f, Some(modrm)) => {
            if insn.opcode & 2 == 0 {
                lose_operand(state, insn, byte);
            } else {
                lose(state, insn, modrm.reg, byte);
            }
        }
        (0x63 | 0x69 | 0x6b | 0x8a | 0x8b, Some(modrm)) => lose(state, insn, modrm.reg, insn.opcode == 0x8a),
        (0x80..=0x83 | 0x88 | 0x89 | 0xc0 | 0xc1 | 0xc6 | 0xc7 | 0xd0..=0xd3, _) => {
            lose_operand(state, insn, byte);
        }
        (0x86 | 0x87, Some(modrm)) => {
            lose_operand(state, insn, byte);
            lose(state, insn, modrm.reg, byte);
        }
        // Two at once: the accumulator and another one.
        (0x91..=0x97, _) => {
            lose(state, insn, insn.low(), false);
            state.set(reg(RAX), Value::Other);
        }
        (0xb0..=0xbf, _) => lose(state, insn, insn.low(), insn.opcode < 0xb8),
        (0xc9, _) => {
            let frame = state.get(Some(FP));
            state.set(Some(SP), frame);
            let value = pop(state);
            state.set(Some(FP), value);
        }
        (0x70..=0x7f | 0xe0..=0xe3, _) => return Some(Flow::Branch(target)),
        (0xc2 | 0xc3 | 0xca | 0xcb | 0xcf, _) => return Some(Flow::Stop),
        (0xe8, _) => {
            // The return hooker calls what comes next, only to push.
            if (0..=16).contains(&insn.imm) && code.trampolines.contains(&code.at) {
                push(state, Value::Other);
                return Some(Flow::Jump(Some(target)));
            }
            call(state);
        }
        (0xe9 | 0xeb, _) => {
            // From a sled to a trampoline, which comes back.
            let sled = code.at.wrapping_sub(code.start) < CALL_LEN;
            let prefix = (code.start.wrapping_sub(32)..code.start).contains(&target);
            if sled && (prefix || code.trampolines.contains(&target)) && !code.trampolines.contains(&code.at)
            {
                return Some(Flow::Next);
            }
            return Some(Flow::Jump(Some(target)));
        }
        (0xff, Some(modrm)) => match modrm.reg & 7 {
            2 | 3 => call(state),
            4 | 5 => return Some(Flow::Jump(None)),
            6 => {
                let value = match modrm.rm {
                    Some(rm) => state.get(reg(rm)),
                    None => state.load(address(&modrm, state)),
                };
                push(state, value);
            }
            _ => lose_operand(state, insn, false),
        },
        (0xfe, _) => lose_operand(state, insn, true),
        // Frames of another kind.
        (
            0xc8 | 0x06 | 0x07 | 0x0e | 0x16 | 0x17 | 0x1e | 0x1f | 0x60..=0x62 | 0x9a | 0xc4 | 0xc5 | 0xea,
            _,
        ) => {
            return None;
        }
        // Whatever is left writes the accumulator at most: strings, in, cbw, moves from absolute addresses, x87.
        _ => state.set(reg(RAX), Value::Other),
    }
    Some(Flow::Next)
}

/// Two-byte opcodes and those behind them.
fn two_bytes(insn: &Insn, code: &Code<'_>, state: &mut State) -> Flow {
    if insn.vector {
        return Flow::Next;
    }
    match (insn.map, insn.opcode, insn.modrm) {
        (1, 0x80..=0x8f, _) => {
            return Flow::Branch(code.at.wrapping_add(insn.len).wrapping_add_signed(insn.imm as isize));
        }
        (1, 0x0b, _) => return Flow::Stop,
        (1, 0xc8..=0xcf, _) => lose(state, insn, insn.low(), false),
        (1, 0x90..=0x9f | 0xb0, _) => lose_operand(state, insn, true),
        (
            1,
            0x02 | 0x03 | 0x2c | 0x2d | 0x40..=0x4f | 0x50 | 0xaf | 0xb6..=0xb8 | 0xbc..=0xbf | 0xc5 | 0xd7,
            Some(modrm),
        )
        | (2, 0xf0 | 0xf1 | 0xf6, Some(modrm)) => lose(state, insn, modrm.reg, false),
        (1, 0x00 | 0x20 | 0x21 | 0x7e | 0xa3..=0xa5 | 0xab..=0xad | 0xb1 | 0xb3 | 0xba | 0xbb | 0xc7, _)
        | (3, 0x14..=0x17, _) => lose_operand(state, insn, false),
        (1, 0xc0 | 0xc1, Some(modrm)) => {
            lose_operand(state, insn, insn.opcode == 0xc0);
            lose(state, insn, modrm.reg, insn.opcode == 0xc0);
        }
        // rdtsc, cpuid, rdmsr and the like.
        (1, 0x01 | 0x05 | 0x30..=0x37 | 0xa2, _) => state.clobber(&[TEMP[0], SCRATCH[0]]),
        // Stores of vectors.
        (1, 0x13 | 0x17 | 0xd6, Some(modrm)) if modrm.rm.is_none() => {
            state.overwrite(address(&modrm, state), WORD);
        }
        // Single numbers are shorter, but their prefix is not looked at; saved registers do not lie next to them.
        (1, 0x29 | 0x2b | 0x7f | 0xe7, Some(modrm)) if modrm.rm.is_none() => {
            state.overwrite(address(&modrm, state), 2 * WORD);
        }
        _ => {}
    }
    Flow::Next
}

impl CallFrames for X86_64 {
    const LONGEST: usize = 15;

    // The return address stands above the frame pointer, and its place is the key.
    const KEY_ABOVE_RECORD: usize = 8;
    // Where a sled called the trampoline, a copy of the return address and what the call pushed lie between them, and no keys.
    const KEY_ABOVE_TRACED: usize = 8;
    const KEY: i32 = -WORD;

    fn entry(reached: Reached) -> State {
        match reached {
            Reached::Called | Reached::BySled => State::at_entry(-WORD).with_home(-WORD, true),
            // The stub pushes it.
            Reached::ByTrap => State::at_entry(0).with_home(-WORD, false).with(SCRATCH[0], Value::Return),
            Reached::AtReturn => State::at_entry(0).with_home(-WORD, false),
        }
    }

    const PREFIX_CODE: &'static [usize] = &[0, PREFIX_JMP];

    fn is_prefix(before: &[u8; PREFIX]) -> bool {
        before.starts_with(&lea_r11(LEA_DISTANCE))
    }

    fn trampoline(bytes: &[u8]) -> Reached {
        match bytes {
            // What is only a `ret` was returned to in a function's place.
            [0xc3, ..] => Reached::Called,
            // push r11
            [0x41, 0x53, ..] => Reached::ByTrap,
            _ => Reached::BySled,
        }
    }

    fn step(code: Code<'_>, state: &mut State) -> Option<Step> {
        let sled = matches!(code.at.wrapping_sub(code.start), 0 | 4);
        if code.bytes.first()? == &crate::arch::x86_64::insn::INT3 {
            // A site that is being patched, or what fills up the space between functions.
            let flow = if sled { Flow::Next } else { Flow::Stop };
            let len = match (sled, code.prefixed) {
                (true, true) => SHORT,
                (true, false) => CALL_LEN,
                (false, _) => 1,
            };
            return Some(Step { len, flow });
        }
        let insn = decode(code.bytes)?;
        if insn.map == 0 && insn.opcode == 0xe8 && sled {
            let target = code.at.wrapping_add(insn.len).wrapping_add_signed(insn.imm as isize);
            if code.trampolines.contains(&target) {
                return Some(Step::next(insn.len));
            }
        }
        let flow =
            if insn.map == 0 { one_byte(&insn, &code, state)? } else { two_bytes(&insn, &code, state) };
        Some(Step { len: insn.len, flow })
    }
}

#[cfg(test)]
mod tests;
