//! What the calling conventions ask of a type: its size, its alignment, and which kinds of registers its bytes belong in.
//!
//! Sources: "System V Application Binary Interface, AMD64 Architecture Processor Supplement", section 3.2.3; "Procedure Call Standard
//! for the Arm 64-bit Architecture", sections 5.9 and 6.8. Alignment that attributes ask for is not in BTF, so it is that of the
//! members.

use crate::btf::{Btf, Kind};

/// Deepest nesting of structures and arrays that is looked into.
const MAX_DEPTH: u32 = 16;

/// Members and elements that are looked at in one type.
const MAX_SCALARS: u32 = 512;

/// Bytes of the largest value that can be in registers: four vectors. In a larger one an element of an array is like the next.
const SMALL: u64 = 64;

/// The scalars in a type, summed up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Bytes.
    pub(super) size: u64,
    /// Largest alignment of its scalars.
    pub(super) align: u64,
    /// A member that does not stand where its alignment wants it.
    pub(super) packed: bool,
    /// What the first and second eight bytes hold.
    pub(super) parts: [Part; 2],
    /// One of its scalars is a floating-point number.
    pub(super) has_float: bool,
    /// All scalars are floating-point numbers of so many bytes.
    pub(super) floats: Option<u64>,
    /// It is a structure, union or array.
    pub(super) composite: bool,
    /// The one scalar that it consists of, with newtypes around it.
    pub(super) single: Option<Scalar>,
}

/// What eight bytes of a value hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Nothing,
    Float,
    /// `long double`, which has registers of its own.
    Extended,
    Integer,
}

/// A number or pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scalar {
    Integer(u64),
    Float(u64),
}

impl Shape {
    /// The shape of a type; `None` if it has no value or is too large a thing to be looked into.
    pub(super) fn of(btf: &Btf<'_>, ty: u32) -> Option<Self> {
        let size = btf.size(ty).ok()?;
        let composite = matches!(
            btf.resolve(ty).ok()?.kind,
            Kind::Struct { .. } | Kind::Union { .. } | Kind::Array { .. }
        );
        let mut shape = Self {
            size,
            align: 1,
            packed: false,
            parts: [Part::Nothing; 2],
            has_float: false,
            floats: None,
            composite,
            single: single(btf, ty, size, MAX_DEPTH),
        };
        let mut walk = Walk::new(btf, &mut shape);
        walk.visit(ty, 0, MAX_DEPTH)?;
        if let Widths::Floats(width) = walk.widths {
            shape.floats = Some(width);
        }
        Some(shape)
    }

    /// Whether a floating-point number stands in these bytes of a type that has a shape.
    pub(super) fn has_float(btf: &Btf<'_>, ty: u32, from: u64, to: u64) -> bool {
        let Some(mut shape) = Self::of(btf, ty) else { return true };
        let mut walk = Walk::new(btf, &mut shape);
        walk.watched = (from, to);
        walk.visit(ty, 0, MAX_DEPTH).is_none() || walk.has_float
    }
}

/// The scalar that a type is, if it is one with only newtypes around it.
fn single(btf: &Btf<'_>, ty: u32, size: u64, depth: u32) -> Option<Scalar> {
    let ty = btf.resolve(ty).ok()?;
    match ty.kind {
        Kind::Int(_) | Kind::Enum { .. } | Kind::Ptr(_) => Some(Scalar::Integer(size)),
        Kind::Float { .. } => Some(Scalar::Float(size)),
        Kind::Struct { members, .. } => {
            let mut filled = members.iter().take(64).filter(|member| btf.size(member.ty) != Ok(0));
            let member = filled.next().filter(|member| btf.size(member.ty) == Ok(size))?;
            (depth > 0 && filled.next().is_none()).then(|| single(btf, member.ty, size, depth - 1)).flatten()
        }
        _ => None,
    }
}

enum Widths {
    None,
    Floats(u64),
    Mixed,
}

struct Walk<'w, 'a> {
    btf: &'w Btf<'a>,
    left: u32,
    shape: &'w mut Shape,
    widths: Widths,
    /// Bytes in which floating-point numbers are looked for.
    watched: (u64, u64),
    has_float: bool,
}

impl<'w, 'a> Walk<'w, 'a> {
    fn new(btf: &'w Btf<'a>, shape: &'w mut Shape) -> Self {
        Self { btf, left: MAX_SCALARS, shape, widths: Widths::None, watched: (0, 0), has_float: false }
    }

    /// Looks at what stands at `at` bytes; `None` when it is too much.
    fn visit(&mut self, ty: u32, at: u64, depth: u32) -> Option<()> {
        self.left = self.left.checked_sub(1)?;
        let depth = depth.checked_sub(1)?;
        let size = self.btf.size(ty).ok()?;
        let ty = self.btf.resolve(ty).ok()?;
        match ty.kind {
            Kind::Int(_) | Kind::Enum { .. } | Kind::Ptr(_) => self.scalar(Part::Integer, at, size),
            Kind::Float { .. } => {
                self.widths = match self.widths {
                    Widths::None => Widths::Floats(size),
                    Widths::Floats(width) if width == size => Widths::Floats(size),
                    _ => Widths::Mixed,
                };
                self.shape.has_float = true;
                let (from, to) = self.watched;
                self.has_float |= at < to && at.saturating_add(size) > from;
                // The name tells the 80 bits of x87 from the other 16-byte numbers.
                let extended = size == 16 && ty.name == "long double";
                self.place(if extended { Part::Extended } else { Part::Float }, at, size);
            }
            Kind::Array { element, len, .. } => {
                let each = self.btf.size(element).ok()?;
                let seen = match each {
                    0 => 0,
                    _ if self.shape.size > SMALL => 1,
                    _ => u64::from(len),
                };
                for n in 0..seen {
                    self.visit(element, at.checked_add(n * each)?, depth)?;
                }
            }
            Kind::Struct { members, .. } | Kind::Union { members, .. } => {
                for member in members.iter() {
                    match member.bits {
                        Some(bits) => {
                            self.left = self.left.checked_sub(1)?;
                            let unit = self.btf.size(member.ty).ok()?;
                            self.shape.align = self.shape.align.max(unit.clamp(1, 16).next_power_of_two());
                            let first = u64::from(member.bit_offset);
                            let last = first + u64::from(bits) - 1;
                            self.mark(
                                Part::Integer,
                                at.checked_add(first / 8)?,
                                at.checked_add(last / 8 + 1)?,
                            );
                            self.widths = Widths::Mixed;
                        }
                        None => {
                            // A member that is no bit field starts at a byte.
                            if !member.bit_offset.is_multiple_of(8) {
                                return None;
                            }
                            self.visit(member.ty, at.checked_add(u64::from(member.bit_offset / 8))?, depth)?;
                        }
                    }
                }
            }
            _ => return None,
        }
        Some(())
    }

    fn scalar(&mut self, part: Part, at: u64, size: u64) {
        self.widths = Widths::Mixed;
        self.place(part, at, size);
    }

    fn place(&mut self, part: Part, at: u64, size: u64) {
        let align = size.clamp(1, 16).next_power_of_two();
        self.shape.align = self.shape.align.max(align);
        self.shape.packed |= !at.is_multiple_of(align);
        self.mark(part, at, at.saturating_add(size));
    }

    /// The eight bytes that these bytes touch hold this.
    fn mark(&mut self, part: Part, from: u64, to: u64) {
        let [first, second] = &mut self.shape.parts;
        if from < 8 && to > 0 {
            *first = merge(*first, part);
        }
        if from < 16 && to > 8 {
            *second = merge(*second, part);
        }
    }
}

/// What eight bytes hold in which both of these stand.
fn merge(one: Part, other: Part) -> Part {
    use Part::{Extended, Float, Integer, Nothing};
    match (one, other) {
        (Nothing, part) | (part, Nothing) => part,
        (Integer, _) | (_, Integer) => Integer,
        (Extended, _) | (_, Extended) => Extended,
        (Float, Float) => Float,
    }
}
