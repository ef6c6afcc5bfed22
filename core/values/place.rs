//! Where arguments and return values are: the psABIs of both machines for C, and what Rust does.
//!
//! Invariant: a place is given only where the convention is certain; everything behind an argument of unknown size is unknown. Where a
//! value goes through vector registers, which no trampoline keeps, its place is lost, and those of others are still right.
//!
//! What Rust does is not promised anywhere; this is rustc's behaviour as of 1.95, by the layout it computes: a scalar is in a register,
//! a pair of scalars in two, and anything else in one if it has up to 8 bytes. What is larger is behind an address; returned, in memory
//! that the caller gives. Where another compiler did otherwise, whoever writes the types must say so.

use super::layout::{Part, Scalar, Shape};
use super::remarks::{self, Convention};
use super::{Floats, Machine};
use crate::btf::Btf;

/// Most registers for arguments on any machine.
pub(super) const REGISTERS: usize = 8;

/// A part of a value that is in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// In this register for arguments, or this return register.
    Register(u8),
    /// So many bytes above the first argument on the stack.
    Stack(u64),
    /// In a register that is not kept.
    Lost,
}

/// Where a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It has no bytes.
    Nothing,
    /// In one or two pieces, of which the second holds what starts at byte `split`.
    Pieces { first: Piece, second: Option<Piece>, split: u64 },
    /// On the stack, as in any memory.
    OnStack(u64),
    /// In memory, at the address that this piece holds.
    At(Piece),
    /// In memory, at the address that was given in the register that is only for that.
    Indirect,
    /// In memory, at the address that was given in this register for arguments.
    Given(u8),
    /// Nobody knows.
    Unknown,
}

impl Place {
    /// Whether the value has an address.
    pub(super) fn is_in_memory(self) -> bool {
        matches!(self, Self::At(_) | Self::Indirect | Self::Given(_))
    }

    fn one(piece: Piece) -> Self {
        Self::Pieces { first: piece, second: None, split: 8 }
    }

    fn two(first: Piece, second: Piece, split: u64) -> Self {
        Self::Pieces { first, second: Some(second), split }
    }
}

/// What there is to know for placing a value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules<'r, 'a> {
    pub(super) btf: &'r Btf<'a>,
    pub(super) machine: Machine,
    pub(super) floats: Floats,
}

impl Rules<'_, '_> {
    fn shape(&self, ty: u32) -> Option<Shape> {
        let mut shape = Shape::of(self.btf, ty)?;
        if self.floats == Floats::General {
            for part in &mut shape.parts {
                *part = if *part == Part::Float { Part::Integer } else { *part };
            }
            shape.floats = None;
            if let Some(Scalar::Float(size)) = shape.single {
                shape.single = Some(Scalar::Integer(size));
            }
        }
        Some(shape)
    }

    /// Where the second scalar of a pair begins.
    fn pair(&self, ty: u32, shape: &Shape) -> Option<u64> {
        // Without vector registers a pair with a floating-point number is no longer one on arm64.
        if self.floats == Floats::General && self.machine == Machine::Arm64 && shape.has_float {
            return None;
        }
        let ty = self.btf.resolve(ty).ok()?;
        remarks::pair(self.btf, ty.id).filter(|second| (1..shape.size).contains(second))
    }

    /// Where a value of this type is when the function returns.
    pub(super) fn returned(&self, convention: Convention, ty: u32) -> Place {
        let (vectors, general) = self.floats.either();
        let place = Self { floats: vectors, ..*self }.returned_one_way(convention, ty);
        let also = Self { floats: general, ..*self }.returned_one_way(convention, ty);
        if place == also { place } else { Place::Unknown }
    }

    fn returned_one_way(&self, convention: Convention, ty: u32) -> Place {
        let by = |convention| match self.shape(ty) {
            None => Place::Unknown,
            Some(shape) if shape.size == 0 => Place::Nothing,
            Some(shape) if convention == Convention::Rust => self.returned_by_rust(ty, &shape),
            Some(shape) => self.returned_by_c(&shape),
        };
        match convention {
            Convention::Unknown => {
                Some(by(Convention::C)).filter(|c| *c == by(Convention::Rust)).unwrap_or(Place::Unknown)
            }
            known => by(known),
        }
    }

    fn in_memory(&self) -> Place {
        match self.machine {
            // rax holds the address that was given.
            Machine::X86_64 => Place::At(Piece::Register(0)),
            Machine::Arm64 => Place::Indirect,
        }
    }

    fn returned_by_c(&self, shape: &Shape) -> Place {
        match self.machine {
            Machine::X86_64 => match Parts::of(shape) {
                None => self.in_memory(),
                Some(parts) if parts.0.contains(&Part::Extended) => Place::Unknown,
                Some(parts) => parts.place(&mut (0..).map(Piece::Register)),
            },
            Machine::Arm64 if vectors(shape).is_some() => Place::Unknown,
            Machine::Arm64 if shape.size > 16 => self.in_memory(),
            Machine::Arm64 => registers(shape.size, 0),
        }
    }

    fn returned_by_rust(&self, ty: u32, shape: &Shape) -> Place {
        if let Some(split) = self.pair(ty, shape).filter(|_| shape.size <= 16) {
            if split > 8 {
                return Place::Unknown;
            }
            let mut next = (0..).map(Piece::Register);
            let mut half =
                |part| if part == Part::Integer { next.next().unwrap_or(Piece::Lost) } else { Piece::Lost };
            let first = half(self.half(ty, 0, split));
            return Place::two(first, half(self.half(ty, split, shape.size)), split);
        }
        match shape.single {
            Some(Scalar::Float(_)) => Place::Unknown,
            Some(Scalar::Integer(_)) => registers(shape.size, 0),
            None if shape.size <= 8 => registers(shape.size, 0),
            None => self.in_memory(),
        }
    }

    /// What a half of a pair is. Both halves may stand in the same eight bytes, so their parts do not tell.
    fn half(&self, ty: u32, from: u64, to: u64) -> Part {
        let float = self.floats == Floats::Vector && Shape::has_float(self.btf, ty, from, to);
        if float { Part::Float } else { Part::Integer }
    }
}

/// `size` bytes in one or two registers from `first` on.
fn registers(size: u64, first: u8) -> Place {
    if size <= 8 {
        Place::one(Piece::Register(first))
    } else {
        Place::two(Piece::Register(first), Piece::Register(first + 1), 8)
    }
}

/// How many vector registers a value takes on arm64, if it goes there: a floating-point number, or up to four alike.
fn vectors(shape: &Shape) -> Option<u64> {
    let width = shape.floats.filter(|width| *width > 0 && shape.size.is_multiple_of(*width))?;
    let count = (0..=4).find(|count| count * width == shape.size)?;
    (count > 0 && !shape.packed).then_some(count)
}

/// The eight-byte parts of a value that x86_64 passes in registers.
struct Parts([Part; 2]);

impl Parts {
    /// `None` for what goes through memory.
    fn of(shape: &Shape) -> Option<Self> {
        if shape.size > 16 || (shape.packed && shape.composite) {
            return None;
        }
        Some(Self(shape.parts))
    }

    fn count(&self, wanted: Part) -> usize {
        self.0.iter().filter(|part| **part == wanted).count()
    }

    /// The place, with integers in what comes next.
    fn place(&self, next: &mut dyn Iterator<Item = Piece>) -> Place {
        let mut piece = |part| match part {
            Part::Integer => next.next().unwrap_or(Piece::Lost),
            _ => Piece::Lost,
        };
        let [first, second] = self.0;
        let first = piece(first);
        match second {
            Part::Nothing => Place::one(first),
            second => Place::two(first, piece(second), 8),
        }
    }
}

/// Gives places to arguments, one after the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arguments<'r, 'a> {
    rules: Rules<'r, 'a>,
    /// Not `Unknown`.
    convention: Convention,
    next: usize,
    vectors: usize,
    stack: u64,
    /// An argument came of which nothing is known.
    lost: bool,
}

impl<'r, 'a> Arguments<'r, 'a> {
    /// For a function that returns this type.
    pub(super) fn new(rules: Rules<'r, 'a>, convention: Convention, ret: u32) -> Self {
        let place = if ret == 0 { Place::Nothing } else { rules.returned(convention, ret) };
        // The address of the memory for the return value is an argument before the first.
        let hidden = rules.machine == Machine::X86_64 && matches!(place, Place::At(_));
        let known = match place {
            Place::Unknown => {
                rules.machine == Machine::Arm64 || rules.shape(ret).is_some_and(|shape| shape.size <= 16)
            }
            _ => true,
        };
        Self { rules, convention, next: usize::from(hidden), vectors: 0, stack: 0, lost: !known }
    }

    /// The place of the next argument.
    pub(super) fn place(&mut self, ty: u32) -> Place {
        let Some(shape) = self.rules.shape(ty).filter(|_| !self.lost) else {
            self.lost = true;
            return Place::Unknown;
        };
        match (shape.size, self.convention, self.rules.machine) {
            (0, ..) => Place::Nothing,
            (_, Convention::Rust, _) => self.by_rust(ty, &shape),
            (.., Machine::X86_64) => self.on_x86_64(&shape),
            (.., Machine::Arm64) => self.on_arm64(&shape),
        }
    }

    fn limit(&self) -> usize {
        self.rules.machine.argument_registers()
    }

    fn on_x86_64(&mut self, shape: &Shape) -> Place {
        let Some(parts) = Parts::of(shape).filter(|parts| parts.count(Part::Extended) == 0) else {
            return self.on_stack(shape);
        };
        // A 16-byte float has one vector register for both halves.
        let vectors = if shape.floats == Some(16) { 1 } else { parts.count(Part::Float) };
        let integers = parts.count(Part::Integer);
        if self.next + integers > self.limit() || self.vectors + vectors > 8 {
            return self.on_stack(shape);
        }
        self.vectors += vectors;
        let from = self.next;
        self.next += integers;
        parts.place(&mut (from as u8..).map(Piece::Register))
    }

    fn on_arm64(&mut self, shape: &Shape) -> Place {
        if let Some(count) = vectors(shape) {
            if self.vectors + count as usize > 8 {
                self.vectors = 8;
                return self.on_stack(shape);
            }
            self.vectors += count as usize;
            return Place::Pieces { first: Piece::Lost, second: Some(Piece::Lost), split: 8 };
        }
        if shape.size > 16 {
            return Place::At(self.word());
        }
        let count = if shape.size > 8 { 2 } else { 1 };
        if shape.align >= 16 {
            self.next = self.next.next_multiple_of(2);
        }
        if self.next + count > self.limit() {
            // What follows does not get the register that is left.
            self.next = self.limit();
            return self.on_stack(shape);
        }
        let from = self.next;
        self.next += count;
        registers(shape.size, from as u8)
    }

    fn by_rust(&mut self, ty: u32, shape: &Shape) -> Place {
        let rules = self.rules;
        if let Some(split) = rules.pair(ty, shape) {
            if split > 8 || shape.size - split > 8 {
                self.lost = true;
                return Place::Unknown;
            }
            let first = self.scalar(rules.half(ty, 0, split));
            let second = self.scalar(rules.half(ty, split, shape.size));
            return Place::two(first, second, split);
        }
        match shape.single {
            Some(Scalar::Float(size)) if size <= 8 => Place::one(self.scalar(Part::Float)),
            Some(Scalar::Integer(16)) if self.rules.machine == Machine::X86_64 => self.on_x86_64(shape),
            Some(Scalar::Integer(16)) => self.on_arm64(shape),
            Some(Scalar::Float(_)) => {
                self.lost = true;
                Place::Unknown
            }
            _ if shape.size <= 8 => Place::one(self.word()),
            _ => Place::At(self.word()),
        }
    }

    fn scalar(&mut self, part: Part) -> Piece {
        if part != Part::Float {
            return self.word();
        }
        if self.vectors < 8 {
            self.vectors += 1;
        } else {
            self.stack += 8;
        }
        Piece::Lost
    }

    /// One integer register, or eight bytes of the stack.
    fn word(&mut self) -> Piece {
        if self.next < self.limit() {
            self.next += 1;
            return Piece::Register(self.next as u8 - 1);
        }
        let at = self.stack;
        self.stack = at.saturating_add(8);
        Piece::Stack(at)
    }

    fn on_stack(&mut self, shape: &Shape) -> Place {
        let end = self.stack.checked_next_multiple_of(shape.align.clamp(8, 16)).and_then(|at| {
            let end = at.checked_add(shape.size)?.checked_next_multiple_of(8)?;
            self.stack = end;
            Some(at)
        });
        match end {
            Some(at) => Place::OnStack(at),
            None => {
                self.lost = true;
                Place::Unknown
            }
        }
    }
}
