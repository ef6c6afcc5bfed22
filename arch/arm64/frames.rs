//! What arm64 instructions do to frames. Encodings: Arm ARM (DDI 0487) C4.1 and C6.2.
//!
//! What is not listed here, and writes a register that is followed, makes its value unknown. Where the same bits name a register that is only read
//! (stores), that costs an answer, and gives no wrong one.

use crate::arch::arm64::insn::{MOV_X17_LR, bl_target};
use crate::arch::arm64::patch::Arm64;
use crate::unwind::{
    CallFrames, Code, FP, Flow, LINK, PREFIX, Reached, SCRATCH, SP, State, Step, TEMP, Value, WORD,
};

/// `sp` or the zero register.
const R31: u32 = 31;

/// `sub sp, sp, #4096`
const PROBE: u32 = 0xd140_07ff;

/// The register that is followed, of number `n`; 31 is `sp`.
fn reg(n: u32) -> Option<usize> {
    Some(match n & 31 {
        R31 => SP,
        29 => FP,
        30 => LINK,
        16 => SCRATCH[0],
        17 => SCRATCH[1],
        9 => TEMP[0],
        10 => TEMP[1],
        _ => return None,
    })
}

/// The same where 31 is the zero register.
fn reg_or_zero(n: u32) -> Option<usize> {
    if n & 31 == R31 { None } else { reg(n) }
}

/// Bits `low..low + bits` of `word`, sign-extended.
fn signed(word: u32, low: u32, bits: u32) -> i32 {
    (word << (u32::BITS - low - bits)) as i32 >> (u32::BITS - bits)
}

fn branch(at: usize, word: u32, low: u32, bits: u32) -> usize {
    at.wrapping_add_signed(signed(word, low, bits) as isize * 4)
}

/// What a call does not preserve (AAPCS64 6.1.1).
fn call(state: &mut State) {
    state.clobber(&[LINK, SCRATCH[0], SCRATCH[1], TEMP[0], TEMP[1]]);
}

/// Loads and stores of one register or two: where, and how the base register changes.
struct Access {
    base: Option<usize>,
    at: Value,
    after: Value,
}

/// Of a pair: the immediate counts in units of `size`; 1 is post-index, 3 pre-index.
fn pair_access(word: u32, size: i32, state: &State) -> Access {
    let base = reg(word >> 5);
    let (from, offset) = (state.get(base), signed(word, 15, 7) * size);
    match word >> 23 & 3 {
        1 => Access { base, at: from, after: from.plus(offset) },
        3 => Access { base, at: from.plus(offset), after: from.plus(offset) },
        _ => Access { base, at: from.plus(offset), after: from },
    }
}

fn pair(word: u32, state: &mut State) {
    let (first, second) = (word & 31, word >> 10 & 31);
    let (opc, vector, load) = (word >> 30, word >> 26 & 1 == 1, word >> 22 & 1 == 1);
    let size = match (vector, opc) {
        (true, opc) => 4 << opc,
        (false, 2) => 8,
        (false, _) => 4,
    };
    let access = pair_access(word, size, state);
    if !vector && opc == 2 {
        if load {
            let (low, high) = (state.load(access.at), state.load(access.at.plus(WORD)));
            state.set(access.base, access.after);
            state.set(reg_or_zero(first), low);
            state.set(reg_or_zero(second), high);
            return;
        }
        let (low, high) = (state.get(reg_or_zero(first)), state.get(reg_or_zero(second)));
        state.store(access.at, low);
        state.store(access.at.plus(WORD), high);
    } else if load && !vector {
        state.set(reg_or_zero(first), Value::Other);
        state.set(reg_or_zero(second), Value::Other);
    } else if !load {
        state.overwrite(access.at, 2 * size);
    }
    state.set(access.base, access.after);
}

/// One register, with an unsigned offset, or a signed one with or without writing the base back.
fn single(word: u32, state: &mut State) {
    let base = reg(word >> 5);
    let from = state.get(base);
    let vector = word >> 26 & 1 == 1;
    let scale = word >> 30;
    let (at, after) = if word >> 24 & 1 == 1 {
        let offset = (word >> 10 & 0xfff) << scale;
        (from.plus(offset as i32), from)
    } else if word >> 21 & 1 == 1 {
        if word >> 10 & 3 != 2 {
            // An atomic operation, or a load through a signed address.
            state.set(reg_or_zero(word), Value::Other);
            if word >> 10 & 3 != 0 {
                state.set(base, Value::Other);
            }
            return;
        }
        // A register offset: anywhere.
        (Value::Other, from)
    } else {
        let offset = signed(word, 12, 9);
        match word >> 10 & 3 {
            1 => (from, from.plus(offset)),
            3 => (from.plus(offset), from.plus(offset)),
            _ => (from.plus(offset), from),
        }
    };
    let opc = word >> 22 & 3;
    if vector {
        // Vectors of 16 bytes have opc 2 and 3.
        if opc & 1 == 0 {
            state.overwrite(at, if opc == 2 { 16 } else { 1 << scale });
        }
    } else if opc == 0 {
        if scale == 3 {
            state.store(at, state.get(reg_or_zero(word)));
        } else {
            state.overwrite(at, 1 << scale);
        }
    } else {
        let value = if scale == 3 && opc == 1 { state.load(at) } else { Value::Other };
        state.set(base, after);
        state.set(reg_or_zero(word), value);
        return;
    }
    state.set(base, after);
}

impl CallFrames for Arm64 {
    const LONGEST: usize = 4;

    // A function's frame is at least its record.
    const KEY_ABOVE_RECORD: usize = 16;
    const KEY_ABOVE_TRACED: usize = 16;

    // The callee returns with the `sp` it was entered with.
    const KEY: i32 = 0;

    fn entry(reached: Reached) -> State {
        let state = State::at_entry(0);
        match reached {
            Reached::Called | Reached::ByTrap => state.with(LINK, Value::Return),
            Reached::BySled => state.with(LINK, Value::Return).with(SCRATCH[1], Value::Parent),
            // The hooker's frame record keeps it.
            Reached::AtReturn => state.with_home(-WORD, false),
        }
    }

    // It is no code.
    const PREFIX_CODE: &'static [usize] = &[];

    fn is_prefix(_before: &[u8; PREFIX]) -> bool {
        // All sleds have one length.
        false
    }

    fn trampoline(bytes: &[u8]) -> Reached {
        const RET: u32 = 0xd65f_03c0;
        // What is only a `ret` was returned to in a function's place.
        if bytes.starts_with(&RET.to_le_bytes()) { Reached::Called } else { Reached::BySled }
    }

    fn step(code: Code<'_>, state: &mut State) -> Option<Step> {
        let word = u32::from_le_bytes(code.bytes.get(..4)?.try_into().ok()?);
        let at = code.at;
        let mut flow = Flow::Next;
        // Branches, exception generation and system instructions.
        if word & 0xfc00_0000 == 0x1400_0000 {
            let target = branch(at, word, 0, 26);
            // From a sled into a trampoline, which comes back.
            if !code.trampolines.contains(&target) || code.trampolines.contains(&at) {
                flow = Flow::Jump(Some(target));
            }
        } else if let Some(target) = bl_target(at, word) {
            if code.trampolines.contains(&target) && !code.trampolines.contains(&at) {
                // From a sled: x30 is the return address again behind it, and x17 is anything.
                state.clobber(&SCRATCH);
            } else {
                call(state);
            }
        } else if word & 0xff00_0000 == 0x5400_0000 || word & 0x7e00_0000 == 0x3400_0000 {
            flow = Flow::Branch(branch(at, word, 5, 19));
        } else if word & 0x7e00_0000 == 0x3600_0000 {
            flow = Flow::Branch(branch(at, word, 5, 14));
        } else if word & 0xfe00_0000 == 0xd600_0000 {
            match word >> 21 & 7 {
                1 => call(state),
                0 => flow = Flow::Jump(None),
                _ => flow = Flow::Stop,
            }
        } else if word & 0xffe0_001f == 0xd420_0000 || word & 0xffff_0000 == 0 {
            flow = Flow::Stop;
        } else if word == MOV_X17_LR || word & 0xffe0_ffe0 == 0xaa00_03e0 {
            // mov
            let value = state.get(reg_or_zero(word >> 16));
            state.set(reg_or_zero(word), value);
        } else if matches!(word & 0xff80_0000, 0x9100_0000 | 0xd100_0000) {
            // add, sub (immediate), with `sp` as 31.
            let shift = if word >> 22 & 1 == 1 { 12 } else { 0 };
            let offset = ((word >> 10 & 0xfff) << shift) as i32;
            // The step of a loop that touches each page of a large frame: how often it is done, `cmp` will tell.
            let value = if word == PROBE { Value::Other } else { state.get(reg(word >> 5)) };
            state.set(reg(word), value.plus(if word >> 30 & 1 == 1 { -offset } else { offset }));
        } else if word & 0xffe0_ffff == 0xeb20_63ff {
            // cmp sp, Xm: such a loop ends when they are equal.
            let value = state.get(reg_or_zero(word >> 16));
            state.set(Some(SP), value);
        } else if word & 0x3a00_0000 == 0x2800_0000 {
            pair(word, state);
        } else if word & 0x3a00_0000 == 0x3800_0000 {
            single(word, state);
        } else if word & 0x0a00_0000 == 0x0800_0000 {
            // Other loads and stores: exclusive, literal, structures of vectors. None changes `sp` but the last.
            let structure = word & 0xbe00_0000 == 0x0c00_0000;
            state.set(if structure { reg(word >> 5) } else { reg_or_zero(word) }, Value::Other);
        } else if word & 0x0e00_0000 == 0x0e00_0000 {
            // Vectors and floating point; conversions may write a general register.
            if word & 0x5f20_0000 == 0x1e20_0000 && word & 0xfc00 == 0 {
                state.set(reg_or_zero(word), Value::Other);
            }
        } else if word & 0xff00_0000 != 0xd500_0000 {
            // Data processing. Logical operations with an immediate, and additions of a register with an extension, may
            // write `sp`, unless they set the flags.
            let logical = word & 0x1f80_0000 == 0x1200_0000 && word >> 29 & 3 != 3;
            let extended = word & 0x3fe0_0000 == 0x0b20_0000;
            state.set(if logical || extended { reg(word) } else { reg_or_zero(word) }, Value::Other);
        } else if word & 0xfff0_0000 == 0xd530_0000 {
            state.set(reg_or_zero(word), Value::Other);
        }
        Some(Step { len: 4, flow })
    }
}

#[cfg(test)]
mod tests;
