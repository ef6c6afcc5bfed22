//! What Rust has and C has not: enums with data, slices, and values that are handled as two scalars.

use gimli::AttributeValue;

use super::Reason;
use super::convert::{Converter, fits};
use super::units::{Die, Entry, number};
use crate::btf::types::{Composite, Member, Type, TypeId};

/// Something in one register; its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scalar {
    Int(u32),
    Float(u32),
    Pointer,
}

impl Scalar {
    pub(crate) fn size(self) -> u32 {
        match self {
            Self::Int(size) | Self::Float(size) => size,
            Self::Pointer => 8,
        }
    }

    /// What two variants have in common: a pointer and an integer of its size are one thing.
    fn common(self, other: Self) -> Option<Self> {
        match (self, other) {
            _ if self == other => Some(self),
            (Self::Pointer, Self::Int(8)) | (Self::Int(8), Self::Pointer) => Some(Self::Int(8)),
            _ => None,
        }
    }
}

/// How Rust's compiler handles the values of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repr {
    Empty,
    Scalar(Scalar),
    /// Two scalars, the second at that offset.
    Pair(Scalar, u32, Scalar),
    Aggregate,
}

impl Repr {
    /// The same for a type of that alignment: a pair is one only if nothing else, be it without bytes, asks for more than its halves.
    fn aligned(self, align: Option<u64>) -> Self {
        match (self, align) {
            (Self::Pair(a, _, b), Some(align)) if align != u64::from(a.size().max(b.size())) => {
                Self::Aggregate
            }
            _ => self,
        }
    }
}

/// Where a type that owns memory has its address, and how many elements are there.
#[derive(Clone, Copy, Debug)]
struct Owner {
    pointer: u32,
    len: u32,
}

/// How deep the pointer of such a type is looked for.
const OWNER_DEPTH: u32 = 8;

/// A pair of that size: nothing packed and nothing over-aligned.
fn pair(a: Scalar, offset: u32, b: Scalar, size: u32) -> Repr {
    let end = (offset + b.size()).next_multiple_of(a.size().max(b.size()));
    if offset == a.size().next_multiple_of(b.size()) && size == end {
        Repr::Pair(a, offset, b)
    } else {
        Repr::Aggregate
    }
}

impl<'d> Converter<'_, 'd> {
    pub(crate) fn repr(&self, id: TypeId) -> Repr {
        if let Some(known) = self.reprs.get(&id) {
            return *known;
        }
        match self.types.get(id) {
            Type::Int { size, .. } | Type::Enum { size, .. } => Repr::Scalar(Scalar::Int(*size)),
            Type::Float { size, .. } => Repr::Scalar(Scalar::Float(*size)),
            Type::Pointer { .. } => Repr::Scalar(Scalar::Pointer),
            Type::Composite(composite) => self.struct_repr(composite),
            Type::Array { .. } if self.types.size(id) == 0 => Repr::Empty,
            Type::Void => Repr::Empty,
            Type::Typedef { of, .. } | Type::Qualified { of, .. } => self.repr(*of),
            _ => Repr::Aggregate,
        }
    }

    fn struct_repr(&self, of: &Composite) -> Repr {
        if of.size == 0 {
            return Repr::Empty;
        }
        let mut parts = of.members.iter().filter_map(|member| match self.repr(member.of) {
            Repr::Empty => None,
            repr => Some((member.bit_offset / 8, repr, self.types.size(member.of))),
        });
        let parts = (parts.next(), parts.next(), parts.next());
        if of.identity.is_union {
            // Only the unions that are the same as what they hold can be told from those of C.
            let is_transparent = self.types.str(of.identity.name).starts_with("MaybeUninit<");
            return match parts {
                (Some((0, repr, size)), None, None) if is_transparent && size == u64::from(of.size) => repr,
                _ => Repr::Aggregate,
            };
        }
        match parts {
            (None, ..) => Repr::Aggregate,
            (Some((0, repr, size)), None, None) if size == u64::from(of.size) => repr,
            (Some((0, Repr::Scalar(a), _)), Some((offset, Repr::Scalar(b), _)), None) => {
                pair(a, offset, b, of.size)
            }
            _ => Repr::Aggregate,
        }
    }

    /// Adds a struct or union of Rust, with what has to be said about it.
    pub(crate) fn finish_rust(&mut self, mut of: Composite, align: Option<u64>) -> TypeId {
        let repr = self.struct_repr(&of).aligned(align);
        let names: Vec<_> = of.members.iter().map(|member| self.types.str(member.name)).collect();
        if names == ["data_ptr", "length"] {
            let what = pointee_name(self.types.str(of.identity.name));
            if what == "str" {
                self.tag(&mut of, -1, "fgraph:str");
            } else if what.starts_with('[') {
                self.tag(&mut of, -1, "fgraph:slice");
            }
        } else if let Some((what, Owner { pointer, len })) = self.owned(&of) {
            self.tag(&mut of, -1, &format!("fgraph:{what}={pointer},{len}"));
        }
        self.add_rust(of, repr)
    }

    /// What owns its text or its elements: `String`, and `Vec` of the library and of Linux.
    fn owned(&self, of: &Composite) -> Option<(&'static str, Owner)> {
        let name = self.types.str(of.identity.name);
        if name.starts_with("Vec<") {
            return Some(("slice", self.owner(of)?));
        }
        if name != "String" {
            return None;
        }
        let mut filled = of.members.iter().filter(|member| self.types.size(member.of) != 0);
        let (Some(member), None) = (filled.next(), filled.next()) else { return None };
        let Type::Composite(inner) = self.types.get(member.of) else { return None };
        let is_bytes = self.types.str(inner.identity.name).starts_with("Vec<u8");
        let Owner { pointer, len } = self.owner(inner).filter(|_| is_bytes)?;
        let at = member.bit_offset / 8;
        Some(("str", Owner { pointer: at + pointer, len: at + len }))
    }

    /// A `Vec`: the one pointer in it, wherever its parts keep that, and its field `len`.
    fn owner(&self, of: &Composite) -> Option<Owner> {
        let len = of.members.iter().find(|member| self.types.str(member.name) == "len")?;
        let is_count = self.repr(len.of) == Repr::Scalar(Scalar::Int(8));
        let mut pointers = Vec::new();
        self.pointers(of, 0, OWNER_DEPTH, &mut pointers);
        match pointers.as_slice() {
            [pointer] if is_count => Some(Owner { pointer: *pointer, len: len.bit_offset / 8 }),
            _ => None,
        }
    }

    /// Where there are pointers by value.
    fn pointers(&self, of: &Composite, at: u32, depth: u32, found: &mut Vec<u32>) {
        for member in of.members.iter().filter(|_| depth > 0) {
            let at = at + member.bit_offset / 8;
            match self.types.get(member.of) {
                Type::Pointer { .. } => found.push(at),
                Type::Composite(inner) => self.pointers(inner, at, depth - 1, found),
                _ => {}
            }
        }
    }

    fn add_rust(&mut self, mut of: Composite, repr: Repr) -> TypeId {
        if let Repr::Pair(_, offset, _) = repr {
            self.tag(&mut of, -1, &format!("fgraph:pair={offset}"));
        }
        let id = self.types.add(Type::Composite(of));
        self.reprs.insert(id, repr);
        id
    }

    fn tag(&mut self, of: &mut Composite, component: i32, text: &str) {
        let text = self.types.text(text);
        of.tags.push((component, text));
    }

    /// An enum with data: its variant part, and the enum with nothing in it yet.
    pub(crate) fn variants(
        &mut self,
        part: Die,
        entry: &Entry<'d>,
        mut of: Composite,
        align: Option<u64>,
    ) -> Result<TypeId, Reason> {
        of.identity.is_union = true;
        let mut discriminant = None;
        if let Some(member) = self.units.refers(part, entry, gimli::DW_AT_discr)? {
            let member_entry = self.units.entry(member)?;
            let id = self.of(member, &member_entry, false)?;
            let at = number(&member_entry, gimli::DW_AT_data_member_location).unwrap_or(0);
            discriminant = Some((at as u32, self.types.size(id) as u32));
        }
        let is_known = discriminant.is_none_or(|(_, size)| [1, 2, 4, 8].contains(&size));
        if is_known {
            let (at, size) = discriminant.unwrap_or_default();
            self.tag(&mut of, -1, &format!("fgraph:variants={at},{size}"));
        }
        let mut has_default = false;
        for (at, variant) in self.units.children(part)? {
            if variant.tag() != gimli::DW_TAG_variant {
                continue;
            }
            let values = discriminant_values(&variant, discriminant.map_or(8, |(_, size)| size));
            for (at, child) in self.units.children(at)? {
                if child.tag() != gimli::DW_TAG_member {
                    continue;
                }
                let name = self.units.text(at, &child, gimli::DW_AT_name).unwrap_or_default();
                let name = self.types.text(&name);
                let id = self.of(at, &child, false)?;
                let index = of.members.len() as i32;
                of.members.push(Member { name, of: id, bit_offset: 0, bit_size: 0 });
                has_default |= values.is_empty();
                if !is_known {
                    continue;
                }
                if values.is_empty() {
                    self.tag(&mut of, index, "fgraph:variant=default");
                }
                for (low, high) in &values {
                    let text = if low == high { format!("{low}") } else { format!("{low}..={high}") };
                    self.tag(&mut of, index, &format!("fgraph:variant={text}"));
                }
            }
        }
        fits("variants", of.members.len())?;
        let repr = self.enum_repr(&of, discriminant, has_default).aligned(align);
        Ok(self.add_rust(of, repr))
    }

    fn enum_repr(&self, of: &Composite, discriminant: Option<(u32, u32)>, has_default: bool) -> Repr {
        if of.size == 0 {
            return Repr::Empty;
        }
        let variants: Vec<_> = of
            .members
            .iter()
            .map(|member| match self.types.get(member.of) {
                Type::Composite(variant) => Some(variant),
                _ => None,
            })
            .collect();
        // Fields of each variant that hold something: offset, size, kind.
        let fields = |variant: &Composite| -> Vec<(u32, Repr)> {
            let fields = variant.members.iter().map(|member| (member.bit_offset / 8, self.repr(member.of)));
            fields.filter(|(_, repr)| *repr != Repr::Empty).collect()
        };
        if variants.iter().any(Option::is_none) {
            return Repr::Aggregate;
        }
        let all: Vec<_> = variants.iter().flatten().map(|variant| (*variant, fields(variant))).collect();
        let holding: Vec<_> = all.iter().filter(|(_, fields)| !fields.is_empty()).collect();
        let Some((at, tag_size)) = discriminant else {
            return match holding.as_slice() {
                [(one, _)] => self.struct_repr(&Composite { size: of.size, ..(*one).clone() }),
                _ => Repr::Aggregate,
            };
        };
        if has_default {
            return match holding.as_slice() {
                [(one, _)] => self.struct_repr(&Composite { size: of.size, ..(*one).clone() }),
                [] if u64::from(tag_size) == u64::from(of.size) => Repr::Scalar(Scalar::Int(tag_size)),
                _ => Repr::Aggregate,
            };
        }
        if at != 0 || !tag_size.is_power_of_two() {
            return Repr::Aggregate;
        }
        let tag = Scalar::Int(tag_size);
        let mut common: Option<(u32, Scalar)> = None;
        for (_, fields) in holding {
            let [(offset, Repr::Scalar(scalar))] = fields.as_slice() else { return Repr::Aggregate };
            common = match common {
                None => Some((*offset, *scalar)),
                Some((same, other)) if same == *offset => match other.common(*scalar) {
                    Some(scalar) => Some((same, scalar)),
                    None => return Repr::Aggregate,
                },
                Some(_) => return Repr::Aggregate,
            };
        }
        match common {
            None if tag_size == of.size => Repr::Scalar(tag),
            None => Repr::Aggregate,
            Some((offset, scalar)) => pair(tag, offset, scalar, of.size),
        }
    }
}

/// What a pointer's name says that it points to.
fn pointee_name(name: &str) -> &str {
    let prefixes = ["&mut ", "&", "*const ", "*mut ", "alloc::boxed::Box<", "Box<"];
    let rest = prefixes.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or("");
    if name.contains("Box<") && rest.starts_with("str") { "str" } else { rest }
}

/// The values of a variant's discriminant, from and to, cut to its bytes; none for the variant of all others.
fn discriminant_values(variant: &Entry<'_>, size: u32) -> Vec<(u64, u64)> {
    let cut = |value: u64| if size < 8 { value & ((1 << (8 * size)) - 1) } else { value };
    let value = variant.attr(gimli::DW_AT_discr_value);
    if let Some(value) = value {
        let raw = match value.value() {
            AttributeValue::Sdata(value) => Some(value.cast_unsigned()),
            AttributeValue::Block(block) => {
                block.slice().first_chunk().map(|bytes: &[u8; 8]| u64::from_le_bytes(*bytes))
            }
            other => other.udata_value().or_else(|| other.sdata_value().map(i64::cast_unsigned)),
        };
        return raw.map(|value| (cut(value), cut(value))).into_iter().collect();
    }
    let Some(AttributeValue::Block(mut list)) = variant.attr_value(gimli::DW_AT_discr_list) else {
        return Vec::new();
    };
    let mut values = Vec::new();
    use gimli::Reader as _;
    while let Ok(kind) = list.read_uleb128() {
        let Ok(low) = list.read_uleb128() else { break };
        let high = if kind == 0 { Ok(low) } else { list.read_uleb128() };
        let Ok(high) = high else { break };
        values.push((cut(low), cut(high)));
    }
    values
}
