//! What DECL_TAGs say of functions and types of Rust, and of where values are: the part of the form that is text.
//!
//! Every remark starts with `fgraph:`; others are not for this reader. One that cannot be read makes what it is about unknown, never
//! something else.

use super::place::{Piece, Place, REGISTERS};
use crate::btf::Btf;

/// How a function is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Convention {
    /// As the machine's psABI has it for C.
    C,
    /// As Rust calls its own.
    Rust,
    /// Either.
    Unknown,
}

/// How values look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    C,
    Rust,
}

/// The remarks on a function as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OfFunction {
    pub(super) convention: Convention,
    pub(super) style: Style,
    /// Where the return value is, if not where the convention has it.
    pub(super) ret: Option<Where>,
}

/// Where a value is said to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Where {
    Nowhere,
    One(Piece),
    Two(Piece, Piece),
    /// At the address in this register.
    At(Piece),
    /// At the address that was in this argument register at the entry.
    Given(u8),
}

impl Where {
    /// The place of a value of `size` bytes that is cut at `split` if it has two pieces.
    pub(super) fn place(self, split: u64) -> Place {
        match self {
            Self::Nowhere => Place::Unknown,
            Self::One(Piece::Stack(offset)) => Place::OnStack(offset),
            Self::One(piece) => Place::Pieces { first: piece, second: None, split: 8 },
            Self::Two(first, second) => Place::Pieces { first, second: Some(second), split },
            Self::At(piece) => Place::At(piece),
            Self::Given(n) => Place::Given(n),
        }
    }
}

fn parse_where(text: &str) -> Where {
    let number = |text: &str| if text.len() > 9 { None } else { text.parse::<u64>().ok() };
    let register =
        |text: &str| number(text).filter(|n| *n < REGISTERS as u64).map(|n| Piece::Register(n as u8));
    let piece = |text: &str| match text.split_at_checked(1)? {
        ("r", n) => register(n),
        ("s", n) => number(n).map(Piece::Stack),
        _ => None,
    };
    let read = match text.split_once(',') {
        Some((first, second)) => piece(first).zip(piece(second)).map(|(a, b)| Where::Two(a, b)),
        None => match text.split_at_checked(1) {
            Some(("m", n)) => register(n).map(Where::At),
            Some(("e", n)) => register(n).and_then(|piece| match piece {
                Piece::Register(n) => Some(Where::Given(n)),
                _ => None,
            }),
            _ => piece(text).map(Where::One),
        },
    };
    read.unwrap_or(Where::Nowhere)
}

/// The remarks on a function. Unreadable ones make it unknown.
pub(super) fn of_function(btf: &Btf<'_>, func: u32) -> OfFunction {
    let mut remarks = OfFunction { convention: Convention::C, style: Style::C, ret: None };
    for (component, text) in btf.tags(func) {
        if component.is_some() {
            continue;
        }
        if let Some(abi) = text.strip_prefix("fgraph:abi=") {
            (remarks.convention, remarks.style) = match abi {
                "rust" => (Convention::Rust, Style::Rust),
                "rust-c" => (Convention::C, Style::Rust),
                "rust-unknown" => (Convention::Unknown, Style::Rust),
                _ => (Convention::Unknown, Style::C),
            };
        } else if let Some(place) = text.strip_prefix("fgraph:ret=") {
            remarks.ret = Some(parse_where(place));
        }
    }
    remarks
}

/// Where a parameter is said to be.
pub(super) fn of_parameter(btf: &Btf<'_>, func: u32, param: u32) -> Option<Where> {
    let mut here = btf.tags(func).filter(|(component, _)| *component == Some(param));
    here.find_map(|(_, text)| text.strip_prefix("fgraph:loc=").map(parse_where))
}

/// What a structure or union of Rust is, beyond its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Special {
    /// A pointer and a length in bytes of text.
    Text(Fat),
    /// A pointer and a number of elements.
    Slice(Fat),
    /// An enum: where its discriminant is, and its bytes (0: it has none).
    Variants { at: u32, size: u32 },
}

/// Where a pointer and the length behind it are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fat {
    /// They are all that there is.
    Members,
    /// At these bytes.
    At { pointer: u32, len: u32 },
}

pub(super) fn special(btf: &Btf<'_>, ty: u32) -> Option<Special> {
    let mut whole = btf.tags(ty).filter(|(component, _)| component.is_none());
    whole.find_map(|(_, text)| {
        let (what, at) = text.split_once('=').map_or((text, None), |(what, at)| (what, Some(at)));
        match what {
            "fgraph:str" => Some(Special::Text(fat(at)?)),
            "fgraph:slice" => Some(Special::Slice(fat(at)?)),
            "fgraph:variants" => {
                let (at, size) = numbers(at?)?;
                matches!(size, 0 | 1 | 2 | 4 | 8).then_some(Special::Variants { at, size })
            }
            _ => None,
        }
    })
}

fn fat(at: Option<&str>) -> Option<Fat> {
    let Some(at) = at else { return Some(Fat::Members) };
    let (pointer, len) = numbers(at)?;
    Some(Fat::At { pointer, len })
}

fn numbers(text: &str) -> Option<(u32, u32)> {
    let (first, second) = text.split_once(',')?;
    Some((first.parse().ok()?, second.parse().ok()?))
}

/// Where the second of two scalars starts that a type is handled as.
pub(super) fn pair(btf: &Btf<'_>, ty: u32) -> Option<u64> {
    let mut whole = btf.tags(ty).filter(|(component, _)| component.is_none());
    whole.find_map(|(_, text)| text.strip_prefix("fgraph:pair=")?.parse().ok())
}

/// The member that holds for this discriminant; `None` without one for a type that has only its default.
pub(super) fn variant(btf: &Btf<'_>, ty: u32, discriminant: Option<u64>) -> Option<u32> {
    let mut default = None;
    for (component, text) in btf.tags(ty) {
        let (Some(member), Some(value)) = (component, text.strip_prefix("fgraph:variant=")) else { continue };
        if value == "default" {
            default = Some(member);
        } else if let Some(discriminant) = discriminant {
            let holds = match value.split_once("..=") {
                Some((first, last)) => match (first.parse::<u64>(), last.parse::<u64>()) {
                    (Ok(first), Ok(last)) => (first..=last).contains(&discriminant),
                    // Nothing is known of the others then either.
                    _ => return None,
                },
                None => value.parse::<u64>().ok()? == discriminant,
            };
            if holds {
                return Some(member);
            }
        }
    }
    default
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_or_unknown() {
        use Piece::{Register, Stack};
        for (text, expected) in [
            ("r0", Where::One(Register(0))),
            ("r7", Where::One(Register(7))),
            ("r8", Where::Nowhere),
            ("s16", Where::One(Stack(16))),
            ("r1,r2", Where::Two(Register(1), Register(2))),
            ("r5,s0", Where::Two(Register(5), Stack(0))),
            ("m3", Where::At(Register(3))),
            ("e0", Where::Given(0)),
            ("e8", Where::Nowhere),
            ("e0,r1", Where::Nowhere),
            ("none", Where::Nowhere),
            ("", Where::Nowhere),
            ("r", Where::Nowhere),
            ("r-1", Where::Nowhere),
            ("r1,", Where::Nowhere),
            ("r1,r2,r3", Where::Nowhere),
            ("\u{e9}1", Where::Nowhere),
            ("s99999999999999999999", Where::Nowhere),
        ] {
            assert_eq!(parse_where(text), expected, "{text}");
        }
    }
}
