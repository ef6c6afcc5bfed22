//! Where the conventions have parameters, as far as it is simple: to be compared with where the debug information has them.
//!
//! Invariant: a place is given only where every parameter before it is of a kind that all versions of the convention pass
//! in the same way; behind the first that is not, nothing is. Who reads the types has the whole of the conventions.

use super::convert::Converter;
use super::place::{Piece, Place};
use super::rust::{Repr, Scalar};
use crate::btf::types::{TypeId, Types, VOID};
use crate::image::Machine;

/// How a function is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Convention {
    C,
    Rust,
}

/// How a value is handed over.
enum Passed {
    /// It has no bytes.
    Not,
    /// In one place for integers, or in two of their own of which the second has what starts at that byte.
    Words(Option<u64>),
    /// In two registers, or if these are not left, on the stack.
    Both,
    /// By its address.
    Behind,
    /// On the stack: its size.
    OnStack(u64),
}

struct Next {
    registers: u8,
    used: u8,
    stack: u64,
}

impl Next {
    fn word(&mut self) -> Piece {
        if self.used < self.registers {
            self.used += 1;
            Piece::Register(self.used - 1)
        } else {
            self.stack += 8;
            Piece::Stack(self.stack - 8)
        }
    }
}

/// How a value is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Returned {
    /// In registers, or not at all.
    InRegisters,
    /// In memory that the caller gives, whose address is an argument before the first, or on arm64 in a register of its own.
    InMemory,
}

/// Where each parameter is expected, if `used` registers are taken before the first; `None` for what has no bytes and what is
/// not simple.
pub(crate) fn expected(
    converter: &Converter<'_, '_>,
    machine: Machine,
    convention: Convention,
    used: u8,
    parameters: &[TypeId],
) -> Vec<Option<Place>> {
    let registers = match machine {
        Machine::X86_64 => 6,
        Machine::Arm64 => 8,
    };
    let mut next = Next { registers, used, stack: 0 };
    let mut places = vec![None; parameters.len()];
    for (place, of) in places.iter_mut().zip(parameters) {
        let passed = match convention {
            Convention::Rust => by_rust(converter, *of),
            Convention::C => by_c(&converter.types, machine, *of),
        };
        *place = match passed {
            None => return places,
            Some(Passed::Not) => None,
            Some(Passed::Words(second)) => {
                let first = next.word();
                Some(Place::Pieces(first, second.map(|at| (at, next.word()))))
            }
            Some(Passed::Both) if next.used + 2 <= next.registers => {
                let first = next.word();
                Some(Place::Pieces(first, Some((8, next.word()))))
            }
            Some(Passed::Both) => {
                // On arm64 what follows does not get the register that is left.
                if machine == Machine::Arm64 {
                    next.used = next.registers;
                }
                next.stack += 16;
                Some(Place::Pieces(Piece::Stack(next.stack - 16), None))
            }
            Some(Passed::Behind) => match next.word() {
                Piece::Register(n) => Some(Place::Behind(n)),
                Piece::Stack(_) => None,
            },
            Some(Passed::OnStack(size)) => {
                let at = next.stack;
                next.stack = at.saturating_add(size.next_multiple_of(8));
                Some(Place::Pieces(Piece::Stack(at), None))
            }
        };
    }
    places
}

/// How a value of this type is returned; `None` if that is not simple.
pub(crate) fn returned(
    converter: &Converter<'_, '_>,
    machine: Machine,
    convention: Convention,
    of: TypeId,
) -> Option<Returned> {
    let types = &converter.types;
    let size = types.size(of);
    if of == VOID || size <= 8 {
        return Some(Returned::InRegisters);
    }
    let by_size = if size > 16 { Returned::InMemory } else { Returned::InRegisters };
    match (convention, machine) {
        // As seen from rustc 1.84 on to 1.95: what is neither a scalar nor a pair goes through memory if it is larger than a register.
        (Convention::Rust, _) => Some(match converter.repr(of) {
            Repr::Scalar(_) => Returned::InRegisters,
            Repr::Pair(..) => by_size,
            Repr::Aggregate | Repr::Empty => Returned::InMemory,
        }),
        (Convention::C, Machine::Arm64) => (!types.layout(of).has_float).then_some(by_size),
        (Convention::C, Machine::X86_64) => {
            let is_simple = !types.layout(of).has_float && (size > 16 || types.layout(of).is_aligned);
            is_simple.then_some(by_size)
        }
    }
}

fn by_rust(converter: &Converter<'_, '_>, of: TypeId) -> Option<Passed> {
    let size = converter.types.size(of);
    let is_word = |scalar: Scalar| !matches!(scalar, Scalar::Float(_)) && scalar.size() <= 8;
    match converter.repr(of) {
        Repr::Empty => Some(Passed::Not),
        Repr::Scalar(scalar) => is_word(scalar).then_some(Passed::Words(None)),
        Repr::Pair(a, at, b) => (is_word(a) && is_word(b)).then_some(Passed::Words(Some(at.into()))),
        Repr::Aggregate if converter.types.layout(of).has_float => None,
        Repr::Aggregate if size <= 8 => Some(Passed::Words(None)),
        Repr::Aggregate => Some(Passed::Behind),
    }
}

fn by_c(types: &Types, machine: Machine, of: TypeId) -> Option<Passed> {
    let size = types.size(of);
    if size == 0 {
        return (of != VOID).then_some(Passed::Not);
    }
    // An alignment of 16 has rules of its own.
    if types.layout(of).has_float || types.layout(of).align > 8 {
        return None;
    }
    match (size, machine) {
        (0..=16, Machine::X86_64) if !types.layout(of).is_aligned => None,
        (0..=8, _) => Some(Passed::Words(None)),
        (9..=16, _) => Some(Passed::Both),
        (_, Machine::X86_64) => Some(Passed::OnStack(size)),
        (_, Machine::Arm64) => Some(Passed::Behind),
    }
}

/// Whether what is known of a place cannot be where it was expected.
pub(crate) fn contradicts(known: Place, expected: Place) -> bool {
    match (known, expected) {
        (Place::Pieces(a, second), Place::Pieces(b, other)) => {
            a != b || second.zip(other).is_some_and(|(second, other)| second != other)
        }
        (known, expected) => known != expected,
    }
}
