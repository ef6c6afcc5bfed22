//! Where a parameter is when the first instruction of its function runs, as the debug information says.
//!
//! A location holds from where its list begins it, which with patchable sites is behind the NOPs: what stands before must
//! be instructions that leave the argument registers alone. What is on the frame of unoptimised code is not there yet.

use gimli::{AttributeValue, Expression, Operation, Register};

use super::sections::Slice;
use super::units::{Die, Entry, Units};
use crate::image::Machine;

/// How far into a function its arguments may first be said to be.
const PROLOGUE: u64 = 256;

/// A part of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// In the argument register of this number, in the order of the convention.
    Register(u8),
    /// So many bytes above the first argument on the stack.
    Stack(u64),
}

/// Where a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The bytes from the first on, and those from some later one on.
    Pieces(Piece, Option<(u64, Piece)>),
    /// Behind the address in this register.
    Behind(u8),
}

impl Place {
    /// Whether it is where nothing else can be before: with the arguments that the caller put on the stack.
    fn is_on_stack(self) -> bool {
        match self {
            Self::Pieces(Piece::Stack(_), second) => {
                second.is_none_or(|(_, at)| matches!(at, Piece::Stack(_)))
            }
            _ => false,
        }
    }

    /// As it is said in a tag; `None` for what the tag cannot say. The second piece starts at `split`.
    pub(crate) fn text(self, split: u64) -> Option<String> {
        let piece = |piece| match piece {
            Piece::Register(n) => format!("r{n}"),
            Piece::Stack(offset) => format!("s{offset}"),
        };
        match self {
            Self::Pieces(first, None) => Some(piece(first)),
            Self::Pieces(first, Some((at, second))) if at == split => {
                Some(format!("{},{}", piece(first), piece(second)))
            }
            Self::Pieces(..) => None,
            Self::Behind(n) => Some(format!("m{n}")),
        }
    }
}

/// Argument registers by their numbers in DWARF, in the order of the convention.
fn arguments(machine: Machine) -> &'static [u16] {
    match machine {
        Machine::X86_64 => &[5, 4, 1, 2, 8, 9],
        Machine::Arm64 => &[0, 1, 2, 3, 4, 5, 6, 7],
    }
}

/// Finds out where the parameters of one function are.
pub(crate) struct Places<'p, 'd> {
    pub(crate) units: &'p Units<'d>,
    pub(crate) machine: Machine,
    /// The entry of the function.
    pub(crate) function: Die,
    /// The function's first instruction.
    pub(crate) start: u64,
    /// The code from there on.
    pub(crate) code: &'p [u8],
    /// Whether places on the frame are counted from where the caller's frame ends.
    pub(crate) is_frame_of_caller: bool,
    /// Whether all parameters come in registers.
    pub(crate) has_registers_for_all: bool,
}

impl<'d> Places<'_, 'd> {
    /// Where a parameter is at the first instruction. The entry is that of the function itself, and not of what it was made from.
    pub(crate) fn of(&self, entry: &Entry<'d>) -> Option<Place> {
        let slot = self.units.slot(self.function);
        let encoding = slot.unit.encoding();
        let value = entry.attr_value(gimli::DW_AT_location)?;
        if let AttributeValue::Exprloc(expression) = value {
            // It holds where the variable lives, which may begin anywhere: one that came on the stack may only later be in a register.
            let place = self.read(expression, encoding);
            return place.filter(|place| self.has_registers_for_all || place.is_on_stack());
        }
        let mut list = self.units.dwarf(self.function).attr_locations(&slot.unit, value).ok()??;
        let mut first: Option<(u64, Expression<Slice<'d>>)> = None;
        while let Ok(Some(location)) = list.next() {
            if location.range.begin >= self.start && first.is_none_or(|(at, _)| location.range.begin < at) {
                first = Some((location.range.begin, location.data));
            }
        }
        let (begin, expression) = first?;
        let before = begin.checked_sub(self.start).filter(|before| *before <= PROLOGUE)?;
        if !keeps_arguments(self.machine, self.code.get(..before as usize)?) {
            return None;
        }
        self.read(expression, encoding)
    }

    fn read(&self, expression: Expression<Slice<'d>>, encoding: gimli::Encoding) -> Option<Place> {
        let mut operations = expression.operations(encoding);
        let mut pieces: Vec<(u64, Place)> = Vec::new();
        let (mut bits, mut current) = (0, Vec::new());
        while let Some(operation) = operations.next().ok()? {
            match operation {
                Operation::Piece { size_in_bits, bit_offset: None | Some(0) } => {
                    if !current.is_empty() {
                        pieces.push((bits / 8, self.one(&current)?));
                        current.clear();
                    }
                    bits += size_in_bits;
                }
                Operation::Piece { .. } => return None,
                other => current.push(other),
            }
        }
        if !current.is_empty() {
            pieces.push((bits / 8, self.one(&current)?));
        }
        match pieces.as_slice() {
            [(0, place)] => Some(*place),
            [(0, Place::Pieces(first, None)), (at, Place::Pieces(second, None))] => {
                Some(Place::Pieces(*first, Some((*at, *second))))
            }
            _ => None,
        }
    }

    fn one(&self, operations: &[Operation<Slice<'d>>]) -> Option<Place> {
        let register = |register: Register| {
            let n = arguments(self.machine).iter().position(|argument| *argument == register.0)?;
            u8::try_from(n).ok()
        };
        let whole = |n| Place::Pieces(Piece::Register(n), None);
        match *operations {
            [Operation::Register { register: it }] => register(it).map(whole),
            [Operation::RegisterOffset { register: it, offset: 0, .. }] => register(it).map(Place::Behind),
            // Its low bits: what is above them is not part of the value.
            [
                Operation::RegisterOffset { register: it, offset: 0, .. },
                ref cut @ ..,
                Operation::StackValue,
            ] => is_cut(cut).then(|| register(it).map(whole))?,
            // Where the caller's frame ends its arguments begin, on both machines.
            [Operation::FrameOffset { offset }] if self.is_frame_of_caller => {
                let offset = u64::try_from(offset).ok()?;
                Some(Place::Pieces(Piece::Stack(offset), None))
            }
            _ => None,
        }
    }
}

/// Whether operations do nothing but take away high bits.
fn is_cut(operations: &[Operation<Slice<'_>>]) -> bool {
    match operations {
        [] => true,
        [Operation::UnsignedConstant { value }, Operation::And, rest @ ..] => {
            value.wrapping_add(1).is_power_of_two() && is_cut(rest)
        }
        [Operation::Convert { .. }, rest @ ..] => is_cut(rest),
        _ => false,
    }
}

/// Whether this code is of instructions with which functions begin, none of which changes a register for arguments.
fn keeps_arguments(machine: Machine, mut code: &[u8]) -> bool {
    match machine {
        Machine::Arm64 => {
            let (words, rest) = code.as_chunks();
            rest.is_empty() && words.iter().all(|word| keeps_arguments_arm64(u32::from_le_bytes(*word)))
        }
        Machine::X86_64 => {
            while !code.is_empty() {
                let Some(len) = prologue_x86_64(code) else { return false };
                code = code.get(len..).unwrap_or_default();
            }
            true
        }
    }
}

/// Whether this code does nothing: a patchable site, or a landing pad.
pub(crate) fn is_site(machine: Machine, mut code: &[u8]) -> bool {
    match machine {
        Machine::Arm64 => {
            let (words, rest) = code.as_chunks();
            rest.is_empty() && words.iter().all(|word| is_hint(u32::from_le_bytes(*word)))
        }
        Machine::X86_64 => {
            while let Some(first) = code.first() {
                let Some(len) =
                    prologue_x86_64(code).filter(|_| [0x90, 0x66, 0x2e, 0x0f, 0xf3].contains(first))
                else {
                    return false;
                };
                code = code.get(len..).unwrap_or_default();
            }
            true
        }
    }
}

/// NOP, BTI, PACIASP.
fn is_hint(word: u32) -> bool {
    word & 0xffff_f01f == 0xd503_201f
}

fn keeps_arguments_arm64(word: u32) -> bool {
    let (to, from) = (word & 31, word >> 5 & 31);
    match word {
        _ if is_hint(word) => true,
        // STP and STR of anything to where x31, the stack, points; with the stack moved or not.
        _ if word & 0xfe40_0000 == 0xa800_0000 => from == 31,
        _ if word & 0xffe0_0000 == 0xf800_0000 || word & 0xffc0_0000 == 0xf900_0000 => from == 31,
        // ADD and SUB of a number to the stack pointer, into it or the frame pointer.
        _ if word & 0xbf80_0000 == 0x9100_0000 => from == 31 && (to == 31 || to == 29),
        _ => false,
    }
}

/// Bytes of the instruction that code begins with, if it is one that functions begin with.
fn prologue_x86_64(code: &[u8]) -> Option<usize> {
    match code {
        // NOPs, of which the long ones have an operand.
        [0x90, ..] => Some(1),
        [0x66, rest @ ..] => prologue_x86_64(rest)
            .filter(|_| matches!(rest, [0x66 | 0x90 | 0x2e | 0x0f, ..]))
            .map(|len| len + 1),
        [0x2e, rest @ ..] => prologue_x86_64(rest).filter(|_| matches!(rest, [0x0f, ..])).map(|len| len + 1),
        [0x0f, 0x1f, operand, rest @ ..] => {
            let (mode, has_index) = (operand >> 6, operand & 7 == 4);
            let extra = usize::from(has_index) + [0, 1, 4, 0][usize::from(mode)];
            (rest.len() >= extra && mode != 3).then_some(3 + extra)
        }
        // ENDBR64.
        [0xf3, 0x0f, 0x1e, 0xfa, ..] => Some(4),
        // PUSH.
        [0x50..=0x57, ..] => Some(1),
        [0x41, 0x50..=0x57, ..] => Some(2),
        // MOV RBP, RSP in both its forms.
        [0x48, 0x89, 0xe5, ..] | [0x48, 0x8b, 0xec, ..] => Some(3),
        // SUB RSP.
        [0x48, 0x83, 0xec, _, ..] => Some(4),
        [0x48, 0x81, 0xec, _, _, _, _, ..] => Some(7),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const X86_64: Machine = Machine::X86_64;

    fn arm64(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn what_functions_begin_with_keeps_arguments() {
        let beginnings: [&[u8]; 8] = [
            &[],
            // ENDBR64; the longest NOPs; PUSH RBP; MOV RBP, RSP
            &[
                0xf3, 0x0f, 0x1e, 0xfa, 0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, 0x55, 0x48, 0x89,
                0xe5,
            ],
            // XCHG AX, AX; NOP DWORD PTR [RAX]; NOP DWORD PTR [RAX+RAX]; NOP
            &[0x66, 0x90, 0x0f, 0x1f, 0, 0x0f, 0x1f, 0x44, 0, 0, 0x90],
            // PUSH R15, R14, RBX; SUB RSP, 8
            &[0x41, 0x57, 0x41, 0x56, 0x53, 0x48, 0x83, 0xec, 8],
            // SUB RSP, 0x1000
            &[0x48, 0x81, 0xec, 0, 0x10, 0, 0],
            &[0x90; 16],
            &[0x66, 0x0f, 0x1f, 0x44, 0, 0],
            &[0x0f, 0x1f, 0x80, 0, 0, 0, 0],
        ];
        for code in beginnings {
            assert!(keeps_arguments(X86_64, code), "{code:02x?}");
        }
        // NOP; BTI c; PACIASP; STP x29, x30, [sp, #-32]!; STR x19, [sp, #16]; MOV x29, sp; SUB sp, sp, #0x40
        let code =
            [0xd503_201f, 0xd503_245f, 0xd503_233f, 0xa9be_7bfd, 0xf900_0bf3, 0x9100_03fd, 0xd101_03ff];
        for len in 0..=code.len() {
            assert!(keeps_arguments(Machine::Arm64, &arm64(&code[..len])), "{len}");
        }
    }

    #[test]
    fn what_changes_an_argument_is_seen() {
        let changes: [&[u8]; 6] = [
            // MOV EDI, ESI; XOR EDI, EDI; POP RDI; LEA RDI, [RSI]; CALL; INC RDI
            &[0x89, 0xf7],
            &[0x31, 0xff],
            &[0x5f],
            &[0x48, 0x8d, 0x3e],
            &[0xe8, 0, 0, 0, 0],
            &[0x48, 0xff, 0xc7],
        ];
        for change in changes {
            assert!(!keeps_arguments(X86_64, change), "{change:02x?}");
            assert!(!keeps_arguments(X86_64, &[&[0x55, 0x48, 0x89, 0xe5], change].concat()), "{change:02x?}");
        }
        // MOV x0, x1; MOV w0, #1; LDR x0, [sp]; LDP x0, x1, [sp]; ADD x0, sp, #8; BL; STR x0, [x1]
        for change in
            [0xaa01_03e0, 0x5280_0020, 0xf940_03e0, 0xa940_07e0, 0x9100_23e0, 0x9400_0001, 0xf900_0020]
        {
            assert!(!keeps_arguments(Machine::Arm64, &arm64(&[0xd503_201f, change])), "{change:#x}");
        }
        assert!(!keeps_arguments(Machine::Arm64, &[0x1f, 0x20, 3]), "a part of an instruction");
        assert!(!keeps_arguments(X86_64, &[0x48, 0x83]), "a part of an instruction");
    }

    /// A site does nothing; what else a function begins with is no site.
    #[test]
    fn a_site_is_nothing_but_nops_and_pads() {
        assert!(is_site(X86_64, &[0xf3, 0x0f, 0x1e, 0xfa, 0x90, 0x66, 0x90, 0x0f, 0x1f, 0x44, 0, 0]));
        assert!(!is_site(X86_64, &[0x90, 0x55]));
        assert!(is_site(Machine::Arm64, &arm64(&[0xd503_201f, 0xd503_245f])));
        assert!(!is_site(Machine::Arm64, &arm64(&[0xd503_201f, 0xa9be_7bfd])));
    }

    #[test]
    fn places_are_written_as_they_are_read() {
        let register = Piece::Register;
        for (place, split, text) in [
            (Place::Pieces(register(0), None), 8, Some("r0")),
            (Place::Pieces(register(5), Some((8, register(6)))), 8, Some("r5,r6")),
            (Place::Pieces(register(1), Some((4, register(2)))), 4, Some("r1,r2")),
            // A part that is not where the reader cuts.
            (Place::Pieces(register(1), Some((4, register(2)))), 8, None),
            (Place::Pieces(Piece::Stack(16), None), 8, Some("s16")),
            (Place::Pieces(register(7), Some((8, Piece::Stack(0)))), 8, Some("r7,s0")),
            (Place::Behind(3), 8, Some("m3")),
        ] {
            assert_eq!(place.text(split).as_deref(), text, "{place:?}");
        }
    }
}
