//! Types of functions and data, read in place from BTF: that of a running Linux, of one of its modules, or the one that `fgraph embed`
//! puts into an image.
//!
//! Invariant: a [`Btf`] exists only over bytes that have been walked as a whole: every record lies in the types, every name in the
//! strings, and every id that is referred to exists. So its methods do not fail for want of any of these, neither allocate nor panic,
//! and do work in proportion to what they give back. Chains and nesting of types may still be endless, and are cut.
//!
//! A type is found by its number in O(1) and by its name in O(log n), by an index: the host tool writes it beside the BTF
//! ([`image`]), or [`Btf::index`] makes it in memory that the embedder gives.
//!
//! Used when traces are shown, never on the traced path. The format is described in the kernel's documentation of BTF; what Rust needs
//! beyond it is in [`crate::values`].

pub mod image;

mod error;
mod index;
mod kind;
mod raw;
#[cfg(test)]
pub(crate) mod tests;

pub use error::{BtfError, Section, Table};
pub use kind::{
    Constant, Constants, Encoding, Int, Kind, Member, Members, Param, Params, Type, Variable, Variables,
};
pub use raw::{Counts, MAX_NAME, Sections};

use index::Index;
use raw::{Record, Strings, number};

/// A word of an index: a little-endian number, wherever it stands.
pub type Word = [u8; 4];

/// Longest chain of type definitions, modifiers and arrays that is followed.
pub const MAX_CHAIN: usize = 32;

/// Bytes of a pointer.
pub(crate) const POINTER: u32 = 8;

/// Types that have been walked, with their index.
#[derive(Clone, Copy, Debug)]
pub struct Btf<'a> {
    base: Option<&'a Btf<'a>>,
    types: &'a [u8],
    strings: Strings<'a>,
    /// Id of the first type here.
    first: u32,
    index: Index<'a>,
}

/// What a name says of a function.
#[derive(Clone, Copy, Debug)]
pub enum FunctionByName<'a> {
    /// There is no function of this name.
    None,
    /// The function, or the first of several that have the same types.
    One(Type<'a>),
    /// Functions of this name have different types. Which one is meant, the name does not say.
    Ambiguous,
}

impl<'a> Btf<'a> {
    /// Walks over the types and makes their index in `memory`, which must have as many words as [`Counts::words`] says. Memory beyond
    /// that is left alone.
    ///
    /// Takes time in proportion to n log n for n names: call it once, when tracing is set up.
    pub fn index(sections: Sections<'a>, memory: &'a mut [Word]) -> Result<Self, BtfError> {
        Self::without_index(sections, None)?.build_index(memory)
    }

    /// The same for split BTF, which goes on where `base` ends: that of a kernel module.
    pub fn index_split(
        sections: Sections<'a>,
        base: &'a Btf<'a>,
        memory: &'a mut [Word],
    ) -> Result<Self, BtfError> {
        Self::without_index(sections, Some(base))?.build_index(memory)
    }

    fn without_index(sections: Sections<'a>, base: Option<&'a Btf<'a>>) -> Result<Self, BtfError> {
        let strings = Strings { base: base.map_or(&[], |base| base.strings.own), own: sections.strings };
        if base.is_none() && sections.strings.first() != Some(&0) {
            return Err(BtfError::Strings { len: sections.strings.len() });
        }
        if base.is_some_and(|base| base.base.is_some()) {
            return Err(BtfError::BaseIsSplit);
        }
        Ok(Self {
            base,
            types: sections.types,
            strings,
            first: base.map_or(1, Btf::end),
            index: Index::EMPTY,
        })
    }

    /// The id behind the last type.
    pub fn end(&self) -> u32 {
        // The walk has counted them in a `u32`.
        self.first + self.index.offsets.len() as u32
    }

    /// The id of the first type that is not the base's: 1 unless this is split.
    pub fn first(&self) -> u32 {
        self.first
    }

    /// The type with this id; void has 0.
    pub fn get(&self, id: u32) -> Option<Type<'a>> {
        if id == 0 {
            return Some(Type::VOID);
        }
        match id.checked_sub(self.first) {
            None => self.base?.get(id),
            Some(n) => {
                let offset = number(self.index.offsets.get(n as usize)?);
                let (record, _) = Record::read(self.types, offset, id).ok()?;
                Some(Type { id, name: self.strings.text(record.name), kind: Kind::of(&record, self.strings) })
            }
        }
    }

    /// All types but void, those of the base first.
    pub fn iter(&self) -> impl Iterator<Item = Type<'a>> + use<'a> {
        let btf = *self;
        (1..self.end()).filter_map(move |id| btf.get(id))
    }

    /// The types of this name, of the base first. In O(log n).
    pub fn by_name<'n>(&self, name: &'n str) -> impl Iterator<Item = Type<'a>> + use<'a, 'n> {
        let btf = *self;
        let own = self.named(name);
        let base = self.base.map(|base| base.named(name));
        base.into_iter().flatten().chain(own).filter_map(move |id| btf.get(id))
    }

    /// Ids of the own types of this name.
    fn named<'n>(&self, name: &'n str) -> impl Iterator<Item = u32> + use<'a, 'n> {
        let name = name.as_bytes();
        let name = name.get(..MAX_NAME).unwrap_or(name);
        let btf = *self;
        let bytes_of = move |word: &Word| btf.name_bytes(number(word));
        let from = btf.index.names.partition_point(|word| bytes_of(word) < name);
        let rest = btf.index.names.get(from..).unwrap_or_default();
        rest.iter().take_while(move |word| bytes_of(word) == name).map(number)
    }

    /// The function of this name. Where several have it, they must agree on their types.
    pub fn function(&self, name: &str) -> FunctionByName<'a> {
        let mut functions = self.by_name(name).filter_map(|ty| match ty.kind {
            Kind::Func { proto, .. } => Some((ty, proto)),
            _ => None,
        });
        let Some((first, proto)) = functions.next() else { return FunctionByName::None };
        if functions.all(|(_, other)| self.same_prototype(proto, other)) {
            FunctionByName::One(first)
        } else {
            FunctionByName::Ambiguous
        }
    }

    /// Whether values of two functions are taken and shown alike.
    fn same_prototype(&self, one: u32, other: u32) -> bool {
        if one == other {
            return true;
        }
        let proto = |id| match self.get(id)?.kind {
            Kind::FuncProto { ret, params } => Some((ret, params)),
            _ => None,
        };
        let (Some((ret, params)), Some((other_ret, others))) = (proto(one), proto(other)) else {
            return false;
        };
        params.len() == others.len()
            && self.same_value(ret, other_ret)
            && params.iter().zip(others.iter()).all(|(a, b)| a.name == b.name && self.same_value(a.ty, b.ty))
    }

    /// Whether two types are the same, as far as a value of them shows. What pointers lead to does not count.
    fn same_value(&self, one: u32, other: u32) -> bool {
        let (Ok(a), Ok(b)) = (self.resolve(one), self.resolve(other)) else { return false };
        let same_members = |a: Members<'_>, b: Members<'_>| {
            let same = |(a, b): (Member<'_>, Member<'_>)| {
                a.name == b.name && a.bit_offset == b.bit_offset && a.bits == b.bits
            };
            a.len() == b.len() && a.iter().zip(b.iter()).all(same)
        };
        match (a.kind, b.kind) {
            _ if a.id == b.id => true,
            (Kind::Ptr(_), Kind::Ptr(_)) => true,
            (Kind::Int(a), Kind::Int(b)) => a == b,
            (Kind::Float { size }, Kind::Float { size: other }) => size == other,
            (Kind::Struct { size, members }, Kind::Struct { size: other, members: others })
            | (Kind::Union { size, members }, Kind::Union { size: other, members: others }) => {
                a.name == b.name && size == other && same_members(members, others)
            }
            (Kind::Enum { size, constants }, Kind::Enum { size: other, constants: others }) => {
                size == other && constants.len() == others.len() && constants.iter().eq(others.iter())
            }
            _ => false,
        }
    }

    /// What a type is behind type definitions and modifiers.
    pub fn resolve(&self, id: u32) -> Result<Type<'a>, BtfError> {
        let mut at = id;
        for _ in 0..MAX_CHAIN {
            let ty = self.get(at).ok_or(BtfError::NoSuchType { id: 0, refers_to: at })?;
            at = match ty.kind {
                Kind::Typedef(next) | Kind::Volatile(next) | Kind::Const(next) | Kind::Restrict(next) => next,
                Kind::TypeTag(next) => next,
                _ => return Ok(ty),
            };
        }
        Err(BtfError::TooDeep { id: at })
    }

    /// Bytes of a value of this type.
    pub fn size(&self, id: u32) -> Result<u64, BtfError> {
        let (mut at, mut times) = (id, 1u64);
        for _ in 0..MAX_CHAIN {
            let ty = self.resolve(at)?;
            let size = match ty.kind {
                Kind::Array { element, len, .. } => {
                    times = times.checked_mul(len.into()).ok_or(BtfError::NoSize { id })?;
                    at = element;
                    continue;
                }
                Kind::Ptr(_) => POINTER,
                Kind::Int(Int { size, .. }) | Kind::Float { size } => size,
                Kind::Struct { size, .. } | Kind::Union { size, .. } | Kind::Enum { size, .. } => size,
                _ => return Err(BtfError::NoSize { id: ty.id }),
            };
            return times.checked_mul(size.into()).ok_or(BtfError::NoSize { id });
        }
        Err(BtfError::TooDeep { id: at })
    }

    /// The remarks on a type, with the member or parameter that each is about, `None` for the whole. In O(log n), and the remarks one
    /// by one. Those of the base come first.
    pub fn tags(&self, id: u32) -> impl Iterator<Item = (Option<u32>, &'a str)> + use<'a> {
        let own = self.own_tags(id);
        let base = self.base.map(|base| base.own_tags(id));
        base.into_iter().flatten().chain(own)
    }

    fn own_tags(&self, target: u32) -> impl Iterator<Item = (Option<u32>, &'a str)> + use<'a> {
        let btf = *self;
        let from = btf.index.tags.partition_point(|word| btf.tag_key(number(word)).0 < target);
        let rest = btf.index.tags.get(from..).unwrap_or_default();
        let tags = rest.iter().take_while(move |word| btf.tag_key(number(word)).0 == target);
        tags.filter_map(move |word| {
            let record = btf.record(number(word))?;
            Some((record.tag_target().1.checked_sub(1), btf.strings.text(record.name)))
        })
    }

    fn record(&self, id: u32) -> Option<Record<'a>> {
        let n = id.checked_sub(self.first)?;
        let offset = number(self.index.offsets.get(n as usize)?);
        Record::read(self.types, offset, id).ok().map(|(record, _)| record)
    }

    fn name_bytes(&self, id: u32) -> &'a [u8] {
        self.record(id).map_or(&[], |record| self.strings.bytes(record.name))
    }

    /// What tags are sorted by.
    fn tag_key(&self, id: u32) -> (u32, u32) {
        self.record(id).map_or((0, 0), |record| record.tag_target())
    }
}
