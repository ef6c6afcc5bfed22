//! From the entries of types to types.
//!
//! A type is converted with what it holds by value. What it points to is noted by name and converted later, by
//! [`Converter::define_noted`], so the depth of a call here is that of nesting by value, which is limited.

use std::collections::{HashMap, HashSet};

use gimli::AttributeValue;

use super::Reason;
use super::rust::Repr;
use super::units::{Die, Entry, Language, Units, flag, number};
use crate::btf::types::{Composite, Identity, Member, Parameter, Qualifier, Text, Type, TypeId, Types, VOID};

/// How deep types may nest by value or by pointers to pointers.
const DEPTH: u32 = 200;

/// How many fields, values or parameters BTF can count.
const MAX_PARTS: usize = u16::MAX as usize;
/// Where the last field can be in a struct with bitfields: their sizes take the upper bits of the number.
const MAX_OFFSET_WITH_BITFIELDS: u32 = (1 << 24) - 1;

/// Encodings of an integer, as BTF has them.
const SIGNED: u8 = 1;
const CHAR: u8 = 2;
const BOOL: u8 = 4;

/// How a class of C++ is passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    ByReference,
    /// It may be.
    Unsure,
}

pub(crate) struct Converter<'u, 'd> {
    pub(crate) units: &'u Units<'d>,
    pub(crate) types: Types,
    /// Namespaces of named types, where they are in any.
    pub(crate) scopes: HashMap<Die, Text>,
    /// How Rust's compiler handles a struct or union, where it was found out while it was made.
    pub(crate) reprs: HashMap<TypeId, Repr>,
    /// C++ classes that are not passed as they are, or for which it is not known.
    pub(crate) classes: HashMap<TypeId, Class>,
    /// By entry and whether it stands behind a pointer.
    done: HashMap<(Die, bool), Result<TypeId, Reason>>,
    noted: Vec<Die>,
    /// What has been noted, by name, size, and where it is written. A header is in every unit that includes it, and need be read once.
    written: HashSet<(Identity, Option<u64>, (Text, u64))>,
    /// Names of source files, by unit and number.
    files: HashMap<(u32, u64), Option<Text>>,
    depth: u32,
}

impl<'u, 'd> Converter<'u, 'd> {
    pub(crate) fn new(units: &'u Units<'d>) -> Self {
        Self {
            units,
            types: Types::default(),
            scopes: HashMap::new(),
            reprs: HashMap::new(),
            classes: HashMap::new(),
            done: HashMap::new(),
            noted: Vec::new(),
            written: HashSet::new(),
            files: HashMap::new(),
            depth: 0,
        }
    }

    /// Converts what is only pointed to, and what that points to. Which of these have no form stay names.
    pub(crate) fn define_noted(&mut self) {
        while let Some(die) = self.noted.pop() {
            let _ = self.convert(die, false);
        }
    }

    /// The type of an attribute of that name; void if there is none.
    pub(crate) fn of(&mut self, from: Die, entry: &Entry<'d>, behind: bool) -> Result<TypeId, Reason> {
        match self.units.refers(from, entry, gimli::DW_AT_type)? {
            Some(die) => self.convert(die, behind),
            None => Ok(VOID),
        }
    }

    /// What an entry's pointer points to: void where that has no form.
    fn pointee(&mut self, from: Die, entry: &Entry<'d>) -> TypeId {
        self.of(from, entry, true).unwrap_or(VOID)
    }

    pub(crate) fn convert(&mut self, die: Die, behind: bool) -> Result<TypeId, Reason> {
        if let Some(done) = self.done.get(&(die, behind)) {
            return done.clone();
        }
        if self.depth == DEPTH {
            return Err(Reason::Type("it nests too deep".into()));
        }
        // Whoever comes back here by value is wrong; by pointer only through what has no name.
        self.done.insert((die, behind), Err(Reason::Malformed("a type that contains itself".into())));
        self.depth += 1;
        let converted = self.one(die, behind);
        self.depth -= 1;
        self.done.insert((die, behind), converted.clone());
        converted
    }

    fn name(&mut self, die: Die, entry: &Entry<'d>) -> Text {
        let name = self.units.text(die, entry, gimli::DW_AT_name).unwrap_or_default();
        self.types.text(&name)
    }

    fn one(&mut self, die: Die, behind: bool) -> Result<TypeId, Reason> {
        let entry = self.units.entry(die)?;
        // A stand-in for a type in a unit of its own.
        if let Some(definition) = self.units.refers(die, &entry, gimli::DW_AT_signature)? {
            return self.convert(definition, behind);
        }
        let made = match entry.tag() {
            gimli::DW_TAG_base_type => self.base(die, &entry)?,
            gimli::DW_TAG_unspecified_type => Type::Void,
            gimli::DW_TAG_pointer_type
            | gimli::DW_TAG_reference_type
            | gimli::DW_TAG_rvalue_reference_type => Type::Pointer { to: self.pointee(die, &entry) },
            gimli::DW_TAG_const_type => self.qualified(Qualifier::Const, die, &entry, behind)?,
            gimli::DW_TAG_volatile_type => self.qualified(Qualifier::Volatile, die, &entry, behind)?,
            gimli::DW_TAG_restrict_type => self.qualified(Qualifier::Restrict, die, &entry, behind)?,
            gimli::DW_TAG_atomic_type | gimli::DW_TAG_immutable_type => return self.of(die, &entry, behind),
            gimli::DW_TAG_typedef => {
                let name = self.name(die, &entry);
                Type::Typedef { name, of: self.of(die, &entry, behind)? }
            }
            gimli::DW_TAG_array_type => return self.array(die, &entry, behind),
            gimli::DW_TAG_subroutine_type => self.prototype(die, &entry)?,
            gimli::DW_TAG_enumeration_type => self.enumeration(die, &entry)?,
            gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type | gimli::DW_TAG_union_type => {
                return self.composite(die, &entry, behind);
            }
            other => return Err(Reason::Type(other.to_string())),
        };
        Ok(self.types.add(made))
    }

    /// The file and line that a type is written at, if that is said.
    fn written_at(&mut self, die: Die, entry: &Entry<'d>) -> Option<(Text, u64)> {
        let line = number(entry, gimli::DW_AT_decl_line)?;
        let AttributeValue::FileIndex(index) = entry.attr_value(gimli::DW_AT_decl_file)? else { return None };
        let file = match self.files.get(&(die.unit, index)) {
            Some(file) => *file,
            None => {
                let path = self.units.file(die, index);
                let file = path.map(|path| self.types.text(&path));
                self.files.insert((die.unit, index), file);
                file
            }
        };
        Some((file?, line))
    }

    fn base(&mut self, die: Die, entry: &Entry<'d>) -> Result<Type, Reason> {
        let name = self.name(die, entry);
        let size = number(entry, gimli::DW_AT_byte_size)
            .or_else(|| number(entry, gimli::DW_AT_bit_size).map(|bits| bits.div_ceil(8)))
            .ok_or(Reason::Malformed("a base type without a size".into()))?;
        let encoding = match entry.attr_value(gimli::DW_AT_encoding) {
            Some(AttributeValue::Encoding(encoding)) => encoding,
            _ => gimli::DW_ATE_unsigned,
        };
        let size32 = u32::try_from(size).unwrap_or(u32::MAX);
        if size == 0 {
            return Ok(Type::Composite(self.empty(name)));
        }
        let encoding = match encoding {
            gimli::DW_ATE_float if [2, 4, 8, 12, 16].contains(&size) => {
                return Ok(Type::Float { name, size: size32 });
            }
            gimli::DW_ATE_complex_float if [8, 16, 32].contains(&size) => {
                let (part, re, im) = (size32 / 2, self.types.text("re"), self.types.text("im"));
                let float = self.types.text(match part {
                    4 => "float",
                    8 => "double",
                    _ => "long double",
                });
                let of = self.types.add(Type::Float { name: float, size: part });
                let member = |name, at: u32| Member { name, of, bit_offset: at * 8, bit_size: 0 };
                let mut composite = self.empty(name);
                composite.size = size32;
                composite.members = vec![member(re, 0), member(im, part)];
                return Ok(Type::Composite(composite));
            }
            gimli::DW_ATE_boolean => BOOL,
            gimli::DW_ATE_signed | gimli::DW_ATE_signed_char => SIGNED,
            gimli::DW_ATE_unsigned | gimli::DW_ATE_unsigned_char => 0,
            gimli::DW_ATE_UTF => {
                if size == 4 {
                    CHAR
                } else {
                    0
                }
            }
            gimli::DW_ATE_address => 0,
            other => return Err(Reason::Type(format!("{other} of {size} bytes"))),
        };
        if size > 16 || !size.is_power_of_two() {
            return Err(Reason::Type(format!("integer of {size} bytes")));
        }
        Ok(Type::Int { name, size: size32, encoding })
    }

    fn empty(&self, name: Text) -> Composite {
        let identity = Identity { is_union: false, name, scope: Text(0) };
        Composite { identity, size: 0, members: Vec::new(), tags: Vec::new() }
    }

    fn qualified(
        &mut self,
        with: Qualifier,
        die: Die,
        entry: &Entry<'d>,
        behind: bool,
    ) -> Result<Type, Reason> {
        Ok(Type::Qualified { with, of: self.of(die, entry, behind)? })
    }

    fn array(&mut self, die: Die, entry: &Entry<'d>, behind: bool) -> Result<TypeId, Reason> {
        if flag(entry, gimli::DW_AT_GNU_vector) {
            return Err(Reason::Type("vector".into()));
        }
        let mut of = self.of(die, entry, behind)?;
        let mut counts = Vec::new();
        for (_, child) in self.units.children(die)? {
            if child.tag() == gimli::DW_TAG_subrange_type {
                let bound = number(&child, gimli::DW_AT_upper_bound);
                // An array without a length has no bound, or one below its start, which is -1.
                let count = number(&child, gimli::DW_AT_count)
                    .or_else(|| bound.map(|bound| bound.wrapping_add(1)))
                    .filter(|count| *count != 1 << 32);
                let count = u32::try_from(count.unwrap_or(0));
                counts.push(count.map_err(|_| Reason::Type("array of more than 2^32 elements".into()))?);
            }
        }
        for count in counts.into_iter().rev() {
            of = self.types.add(Type::Array { of, count });
        }
        Ok(of)
    }

    /// What a function returns: nothing, where it is a type without values.
    pub(crate) fn returned(&mut self, of: TypeId) -> TypeId {
        match self.types.get(of) {
            Type::Composite(it)
                if it.size == 0 && ["()", "!"].contains(&self.types.str(it.identity.name)) =>
            {
                VOID
            }
            _ => of,
        }
    }

    /// The type of a function that is called through a pointer.
    fn prototype(&mut self, die: Die, entry: &Entry<'d>) -> Result<Type, Reason> {
        let returns = self.of(die, entry, true)?;
        let returns = self.returned(returns);
        let mut parameters = Vec::new();
        for (at, child) in self.units.children(die)? {
            let of = match child.tag() {
                gimli::DW_TAG_formal_parameter => self.of(at, &child, true)?,
                gimli::DW_TAG_unspecified_parameters => VOID,
                _ => continue,
            };
            parameters.push(Parameter { name: Text(0), of });
        }
        fits("parameters", parameters.len())?;
        Ok(Type::Prototype { returns, parameters })
    }

    fn enumeration(&mut self, die: Die, entry: &Entry<'d>) -> Result<Type, Reason> {
        let name = self.name(die, entry);
        let size = number(entry, gimli::DW_AT_byte_size).unwrap_or(4);
        if ![1, 2, 4, 8].contains(&size) {
            return Err(Reason::Type(format!("enum of {size} bytes")));
        }
        // A form without a sign gives its bits; the type below says whether the highest is a sign.
        let of = match self.units.refers(die, entry, gimli::DW_AT_type)? {
            Some(of) => self.convert(of, false)?,
            None => VOID,
        };
        let mut is_signed = matches!(self.types.get(of), Type::Int { encoding: SIGNED, .. });
        let mut values = Vec::new();
        for (at, child) in self.units.children(die)? {
            if child.tag() == gimli::DW_TAG_enumerator {
                let value = child.attr(gimli::DW_AT_const_value);
                let value = value.and_then(|value| match value.value() {
                    AttributeValue::Sdata(value) => Some(value),
                    other if is_signed => other.sdata_value(),
                    other => other.udata_value().map(u64::cast_signed),
                });
                values.push((self.name(at, &child), value.unwrap_or(0)));
            }
        }
        fits("values of an enum", values.len())?;
        is_signed = values.iter().any(|value| value.1 < 0) && !(size == 8 && !is_signed && of != VOID);
        Ok(Type::Enum { name, size: size as u32, is_signed, values })
    }

    fn composite(&mut self, die: Die, entry: &Entry<'d>, behind: bool) -> Result<TypeId, Reason> {
        let name = self.name(die, entry);
        let scope = self.scopes.get(&die).copied().unwrap_or_default();
        let is_union = entry.tag() == gimli::DW_TAG_union_type;
        let children = if behind && name != Text(0) { Vec::new() } else { self.units.children(die)? };
        let language = self.units.slot(die).language;
        let variants = children.iter().find(|(_, child)| child.tag() == gimli::DW_TAG_variant_part);
        let identity = Identity { is_union: is_union || variants.is_some(), name, scope };
        let is_declaration = flag(entry, gimli::DW_AT_declaration);
        if is_declaration && !behind {
            return Err(Reason::Type(format!("{} is only declared", self.types.str(name))));
        }
        if name != Text(0) && behind {
            // Whether it is a union is known only when its variants are seen.
            let is_union = match language {
                Language::Rust if !is_union => self
                    .units
                    .children(die)?
                    .iter()
                    .any(|(_, child)| child.tag() == gimli::DW_TAG_variant_part),
                _ => is_union,
            };
            let identity = Identity { is_union, ..identity };
            if !is_declaration && !self.done.contains_key(&(die, false)) {
                let is_new = match self.written_at(die, entry) {
                    Some(written) => {
                        self.written.insert((identity, number(entry, gimli::DW_AT_byte_size), written))
                    }
                    None => true,
                };
                if is_new {
                    self.noted.push(die);
                }
            }
            return Ok(self.types.add(Type::Named(identity)));
        }
        let size = number(entry, gimli::DW_AT_byte_size)
            .and_then(|size| u32::try_from(size).ok())
            .ok_or(Reason::Type("struct without a size, or of 4 GiB".into()))?;
        let mut composite = Composite { identity, size, members: Vec::new(), tags: Vec::new() };
        let align = number(entry, gimli::DW_AT_alignment);
        if let Some((part, part_entry)) = variants {
            let (part, part_entry) = (*part, part_entry.clone());
            return self.variants(part, &part_entry, composite, align);
        }
        self.members(&mut composite, &children)?;
        if language == Language::Rust {
            return Ok(self.finish_rust(composite, align));
        }
        let class = if language == Language::Cpp { self.class(entry, &composite, &children) } else { None };
        let id = self.types.add(Type::Composite(composite));
        if let Some(class) = class {
            self.classes.insert(id, class);
        }
        Ok(id)
    }

    /// Whether a class of C++ has something to do when it is copied or ends. GCC does not say that it is passed by reference then.
    fn class(&self, entry: &Entry<'d>, of: &Composite, children: &[(Die, Entry<'d>)]) -> Option<Class> {
        match entry.attr_value(gimli::DW_AT_calling_convention) {
            Some(AttributeValue::CallingConvention(gimli::DW_CC_pass_by_reference)) => {
                return Some(Class::ByReference);
            }
            Some(AttributeValue::CallingConvention(gimli::DW_CC_pass_by_value)) => return None,
            _ => {}
        }
        let own = self.types.str(of.identity.name).split('<').next().unwrap_or_default();
        let has_own = children.iter().any(|(at, child)| {
            child.tag() == gimli::DW_TAG_subprogram
                && self
                    .units
                    .text(*at, child, gimli::DW_AT_name)
                    .is_some_and(|name| name.trim_start_matches('~') == own)
        });
        let has_part =
            of.members.iter().any(|member| self.classes.contains_key(&self.types.plain(member.of)));
        (has_own || has_part).then_some(Class::Unsure)
    }

    /// Adds the fields of a struct or union, sorted by offset.
    pub(crate) fn members(
        &mut self,
        composite: &mut Composite,
        children: &[(Die, Entry<'d>)],
    ) -> Result<(), Reason> {
        for (at, child) in children {
            let is_member = match child.tag() {
                // A static member of a class is a declaration.
                gimli::DW_TAG_member => {
                    !flag(child, gimli::DW_AT_declaration) && !flag(child, gimli::DW_AT_external)
                }
                gimli::DW_TAG_inheritance => true,
                _ => false,
            };
            if !is_member {
                continue;
            }
            let of = self.of(*at, child, false)?;
            let bit_size = number(child, gimli::DW_AT_bit_size).unwrap_or(0);
            let bytes = member_offset(child)?;
            let mut bits = bytes.checked_mul(8);
            if let Some(start) = number(child, gimli::DW_AT_data_bit_offset) {
                bits = Some(start);
            } else if let Some(from_top) = number(child, gimli::DW_AT_bit_offset) {
                // The old way, which counts from the highest bit of what is stored.
                let stored = number(child, gimli::DW_AT_byte_size).unwrap_or_else(|| self.types.size(of));
                let end = bits.and_then(|bits| bits.checked_add(stored.checked_mul(8)?));
                bits = end.and_then(|end| end.checked_sub(from_top)?.checked_sub(bit_size));
            }
            let bit_offset = bits.and_then(|bits| u32::try_from(bits).ok());
            let (Some(bit_offset), Ok(bit_size)) = (bit_offset, u8::try_from(bit_size)) else {
                return Err(Reason::Type(format!("field at byte {bytes}")));
            };
            let name = self.name(*at, child);
            composite.members.push(Member { name, of, bit_offset, bit_size });
        }
        composite.members.sort_by_key(|member| member.bit_offset);
        let has_bits = composite.members.iter().any(|member| member.bit_size != 0);
        let last = composite.members.last().map_or(0, |member| member.bit_offset);
        if has_bits && last > MAX_OFFSET_WITH_BITFIELDS {
            return Err(Reason::Type(format!("struct with bitfields and a field at bit {last}")));
        }
        fits("fields", composite.members.len())
    }
}

/// Whether BTF can count so many.
pub(crate) fn fits(what: &str, count: usize) -> Result<(), Reason> {
    if count <= MAX_PARTS { Ok(()) } else { Err(Reason::Type(format!("{count} {what}"))) }
}

/// Bytes from the start of the struct.
fn member_offset(entry: &Entry<'_>) -> Result<u64, Reason> {
    match entry.attr_value(gimli::DW_AT_data_member_location) {
        None => Ok(0),
        Some(AttributeValue::Exprloc(expression)) => {
            let encoding = gimli::Encoding { address_size: 8, format: gimli::Format::Dwarf32, version: 4 };
            match expression.operations(encoding).next()? {
                Some(gimli::Operation::PlusConstant { value }) => Ok(value),
                _ => Err(Reason::Type("field at a place that is computed (virtual base)".into())),
            }
        }
        Some(value) => value.udata_value().ok_or(Reason::Malformed("a field's place".into())),
    }
}
