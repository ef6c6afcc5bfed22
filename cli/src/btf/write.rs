//! Types and functions as BTF: header version 1, little-endian.
//!
//! Invariant: the bytes hold what is reachable from the functions and nothing else, types once each, texts once
//! each. The same input gives the same bytes.

use std::collections::HashMap;

use super::types::{Parameter, Qualifier, Text, Type, TypeId, Types, VOID};

/// A function to be written.
#[derive(Clone, Debug)]
pub struct Function {
    /// Its name.
    pub name: Text,
    /// Whether other object files see it.
    pub is_global: bool,
    /// A [`Type::Prototype`].
    pub prototype: TypeId,
    /// Parameter, or -1 for the function, and text.
    pub tags: Vec<(i32, Text)>,
}

/// More than BTF can hold: what of, and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMuch(pub &'static str, pub u64);

const HEADER_LEN: u32 = 24;
/// Kinds, by their numbers in the format.
mod kind {
    pub(super) const INT: u32 = 1;
    pub(super) const PTR: u32 = 2;
    pub(super) const ARRAY: u32 = 3;
    pub(super) const STRUCT: u32 = 4;
    pub(super) const UNION: u32 = 5;
    pub(super) const ENUM: u32 = 6;
    pub(super) const FWD: u32 = 7;
    pub(super) const TYPEDEF: u32 = 8;
    pub(super) const VOLATILE: u32 = 9;
    pub(super) const CONST: u32 = 10;
    pub(super) const RESTRICT: u32 = 11;
    pub(super) const FUNC: u32 = 12;
    pub(super) const FUNC_PROTO: u32 = 13;
    pub(super) const FLOAT: u32 = 16;
    pub(super) const DECL_TAG: u32 = 17;
    pub(super) const ENUM64: u32 = 19;
}

/// The name that C compilers give the type of an array's index.
const INDEX: &str = "__ARRAY_SIZE_TYPE__";

struct Writer<'t> {
    types: &'t mut Types,
    /// Numbers in the file.
    ids: HashMap<TypeId, u32>,
    order: Vec<TypeId>,
    out: Vec<u8>,
    strings: Vec<u8>,
    string_at: HashMap<Text, u32>,
}

/// Writes functions and their types: the bytes, and the number of each function in them.
pub fn write(types: &mut Types, functions: &[Function]) -> Result<(Vec<u8>, Vec<u32>), TooMuch> {
    let index = types.text(INDEX);
    let index = types.add(Type::Int { name: index, size: 4, encoding: 0 });
    let mut writer = Writer {
        types,
        ids: HashMap::from([(VOID, 0)]),
        order: Vec::new(),
        out: Vec::new(),
        strings: vec![0],
        string_at: HashMap::from([(Text(0), 0)]),
    };
    let prototypes: Vec<_> = functions.iter().map(|function| writer.number(function.prototype)).collect();
    // Numbering one type can bring more behind the end.
    let mut next = 0;
    let mut has_array = false;
    while let Some(id) = writer.order.get(next).copied() {
        next += 1;
        has_array |= matches!(writer.types.get(id), Type::Array { .. });
        for child in children(writer.types.get(id)) {
            writer.number(child);
        }
    }
    if has_array {
        writer.number(index);
    }
    for id in writer.order.clone() {
        writer.one(id, index)?;
    }
    let mut next = writer.order.len() as u32;
    let mut numbers = Vec::with_capacity(functions.len());
    for (function, prototype) in functions.iter().zip(prototypes) {
        let name = writer.string(function.name);
        writer.head(name, kind::FUNC, u32::from(function.is_global), false, prototype);
        next += 1;
        numbers.push(next);
    }
    // Tags stand behind everything, so that a reader of prototypes alone need not see them.
    for id in writer.order.clone() {
        if let Type::Composite(composite) = writer.types.get(id).clone() {
            writer.tags(writer.ids[&id], &composite.tags);
        }
    }
    for (function, number) in functions.iter().zip(&numbers) {
        writer.tags(*number, &function.tags);
    }
    writer.finish().map(|bytes| (bytes, numbers))
}

fn children(of: &Type) -> Vec<TypeId> {
    match of {
        Type::Pointer { to: of }
        | Type::Qualified { of, .. }
        | Type::Typedef { of, .. }
        | Type::Array { of, .. } => vec![*of],
        Type::Composite(composite) => composite.members.iter().map(|member| member.of).collect(),
        Type::Prototype { returns, parameters } => {
            let parameters = parameters.iter().map(|Parameter { of, .. }| *of);
            std::iter::once(*returns).chain(parameters).collect()
        }
        _ => Vec::new(),
    }
}

impl Writer<'_> {
    fn number(&mut self, id: TypeId) -> u32 {
        let id = self.types.resolve(id);
        let next = self.order.len() as u32 + 1;
        let number = *self.ids.entry(id).or_insert(next);
        if number == next {
            self.order.push(id);
        }
        number
    }

    fn string(&mut self, text: Text) -> u32 {
        if let Some(at) = self.string_at.get(&text) {
            return *at;
        }
        let at = self.strings.len() as u32;
        self.strings.extend_from_slice(self.types.str(text).as_bytes());
        self.strings.push(0);
        self.string_at.insert(text, at);
        at
    }

    fn word(&mut self, word: u32) {
        self.out.extend_from_slice(&word.to_le_bytes());
    }

    fn head(&mut self, name: u32, kind: u32, vlen: u32, flag: bool, size_or_type: u32) {
        self.word(name);
        self.word(vlen | (kind << 24) | (u32::from(flag) << 31));
        self.word(size_or_type);
    }

    fn one(&mut self, id: TypeId, index: TypeId) -> Result<(), TooMuch> {
        let of = self.types.get(id).clone();
        let vlen =
            |what, count: usize| u16::try_from(count).map(u32::from).map_err(|_| TooMuch(what, count as u64));
        match of {
            Type::Void => {}
            Type::Int { name, size, encoding } => {
                let name = self.string(name);
                self.head(name, kind::INT, 0, false, size);
                self.word((u32::from(encoding) << 24) | (size * 8));
            }
            Type::Float { name, size } => {
                let name = self.string(name);
                self.head(name, kind::FLOAT, 0, false, size);
            }
            Type::Pointer { to } => {
                let to = self.number(to);
                self.head(0, kind::PTR, 0, false, to);
            }
            Type::Qualified { with, of } => {
                let of = self.number(of);
                let kind = match with {
                    Qualifier::Const => kind::CONST,
                    Qualifier::Volatile => kind::VOLATILE,
                    Qualifier::Restrict => kind::RESTRICT,
                };
                self.head(0, kind, 0, false, of);
            }
            Type::Typedef { name, of } => {
                let (name, of) = (self.string(name), self.number(of));
                self.head(name, kind::TYPEDEF, 0, false, of);
            }
            Type::Array { of, count } => {
                let (of, index) = (self.number(of), self.number(index));
                self.head(0, kind::ARRAY, 0, false, 0);
                for word in [of, index, count] {
                    self.word(word);
                }
            }
            Type::Enum { name, size, is_signed, values } => {
                let vlen = vlen("values of an enum", values.len())?;
                let name = self.string(name);
                let is_wide = size > 4;
                self.head(name, if is_wide { kind::ENUM64 } else { kind::ENUM }, vlen, is_signed, size);
                for (name, value) in values {
                    let name = self.string(name);
                    self.word(name);
                    // Cut to the width: the sign is said by the flag.
                    self.word(value as u32);
                    if is_wide {
                        self.word((value >> 32) as u32);
                    }
                }
            }
            Type::Composite(composite) => {
                let vlen = vlen("members of a struct", composite.members.len())?;
                let name = self.string(composite.identity.name);
                let kind = if composite.identity.is_union { kind::UNION } else { kind::STRUCT };
                let has_bits = composite.members.iter().any(|member| member.bit_size != 0);
                self.head(name, kind, vlen, has_bits, composite.size);
                for member in composite.members {
                    let (name, of) = (self.string(member.name), self.number(member.of));
                    let bits = if has_bits { u32::from(member.bit_size) << 24 } else { 0 };
                    if has_bits && member.bit_offset >> 24 != 0 {
                        return Err(TooMuch("bits of a struct with bitfields", u64::from(member.bit_offset)));
                    }
                    for word in [name, of, bits | member.bit_offset] {
                        self.word(word);
                    }
                }
            }
            Type::Named(identity) => {
                let name = self.string(identity.name);
                self.head(name, kind::FWD, 0, identity.is_union, 0);
            }
            Type::Prototype { returns, parameters } => {
                let vlen = vlen("parameters", parameters.len())?;
                let returns = self.number(returns);
                self.head(0, kind::FUNC_PROTO, vlen, false, returns);
                for parameter in parameters {
                    let (name, of) = (self.string(parameter.name), self.number(parameter.of));
                    self.word(name);
                    self.word(of);
                }
            }
        }
        Ok(())
    }

    fn tags(&mut self, target: u32, tags: &[(i32, Text)]) {
        for (component, text) in tags {
            let text = self.string(*text);
            self.head(text, kind::DECL_TAG, 0, false, target);
            self.word(*component as u32);
        }
    }

    fn finish(self) -> Result<Vec<u8>, TooMuch> {
        let length = |what, part: &[u8]| {
            u32::try_from(part.len())
                .ok()
                .filter(|length| *length < i32::MAX as u32)
                .ok_or(TooMuch(what, part.len() as u64))
        };
        let (types, strings) =
            (length("bytes of types", &self.out)?, length("bytes of names", &self.strings)?);
        let mut bytes = vec![0x9f, 0xeb, 1, 0];
        for word in [HEADER_LEN, 0, types, types, strings] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(&self.out);
        bytes.extend_from_slice(&self.strings);
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use fgraph::btf::{Btf, Kind, Sections};

    use super::super::types::{Composite, Identity, Member};
    use super::*;

    fn int(types: &mut Types, name: &str, size: u32) -> TypeId {
        let name = types.text(name);
        types.add(Type::Int { name, size, encoding: 0 })
    }

    fn identity(types: &mut Types, name: &str, scope: &str) -> Identity {
        Identity { is_union: false, name: types.text(name), scope: types.text(scope) }
    }

    fn composite(identity: Identity, size: u32, members: &[(Text, TypeId, u32, u8)]) -> Type {
        let members = members.iter().map(|(name, of, bit_offset, bit_size)| Member {
            name: *name,
            of: *of,
            bit_offset: *bit_offset,
            bit_size: *bit_size,
        });
        Type::Composite(Composite { identity, size, members: members.collect(), tags: Vec::new() })
    }

    fn function(types: &mut Types, name: &str, parameter: TypeId) -> Function {
        let parameters = vec![Parameter { name: types.text("p"), of: parameter }];
        let prototype = types.add(Type::Prototype { returns: VOID, parameters });
        Function { name: types.text(name), is_global: false, prototype, tags: Vec::new() }
    }

    /// What the first parameter of each function points to.
    fn pointees(bytes: &[u8], ids: &[u32]) -> Vec<String> {
        let sections = Sections::parse(bytes).unwrap();
        let mut words = vec![[0; 4]; sections.count().unwrap().words()];
        let btf = Btf::index(sections, &mut words).unwrap();
        let pointee = |id: &u32| {
            let Kind::Func { proto, .. } = btf.get(*id).unwrap().kind else { panic!("{id}") };
            let Kind::FuncProto { params, .. } = btf.get(proto).unwrap().kind else { panic!("{proto}") };
            let Kind::Ptr(to) = btf.get(params.get(0).unwrap().ty).unwrap().kind else {
                panic!("no pointer")
            };
            let to = btf.get(to).unwrap();
            match to.kind {
                Kind::Struct { size, members } => format!("{} {size} {}", to.name, members.len()),
                Kind::Fwd { union } => format!("{} declared {union}", to.name),
                other => panic!("{other:?}"),
            }
        };
        ids.iter().map(pointee).collect()
    }

    #[test]
    fn names_become_their_only_definition_or_stay_names() {
        let mut types = Types::default();
        let word = int(&mut types, "word", 8);
        let field = types.text("field");
        let mut functions = Vec::new();
        for (name, sizes) in [("one", &[8][..]), ("none", &[]), ("two", &[8, 16])] {
            let identity = identity(&mut types, name, "");
            let of = types.add(Type::Named(identity));
            let pointer = types.add(Type::Pointer { to: of });
            functions.push(function(&mut types, name, pointer));
            for size in sizes {
                types.add(composite(identity, *size, &[(field, word, 0, 0)]));
            }
        }
        let (bytes, ids) = write(&mut types, &functions).unwrap();
        assert_eq!(pointees(&bytes, &ids), ["one 8 1", "none declared false", "two declared false"]);
    }

    #[test]
    fn the_same_name_in_another_namespace_is_another_type() {
        let mut types = Types::default();
        let word = int(&mut types, "word", 8);
        let field = types.text("field");
        let mut functions = Vec::new();
        for (scope, size) in [("a", 8), ("b", 16)] {
            let identity = identity(&mut types, "same", scope);
            types.add(composite(identity, size, &[(field, word, 0, 0)]));
            let of = types.add(Type::Named(identity));
            let pointer = types.add(Type::Pointer { to: of });
            functions.push(function(&mut types, scope, pointer));
        }
        let (bytes, ids) = write(&mut types, &functions).unwrap();
        assert_eq!(pointees(&bytes, &ids), ["same 8 1", "same 16 1"]);
    }

    #[test]
    fn a_struct_that_points_to_itself_is_written_once() {
        let mut types = Types::default();
        let identity = identity(&mut types, "list", "");
        let named = types.add(Type::Named(identity));
        let pointer = types.add(Type::Pointer { to: named });
        let (next, prev) = (types.text("next"), types.text("prev"));
        types.add(composite(identity, 16, &[(next, pointer, 0, 0), (prev, pointer, 64, 0)]));
        let functions = [function(&mut types, "f", pointer), function(&mut types, "g", pointer)];
        let (bytes, ids) = write(&mut types, &functions).unwrap();
        assert_eq!(pointees(&bytes, &ids), ["list 16 2"; 2]);
        // Pointer, struct, prototype; two functions.
        assert_eq!(Sections::parse(&bytes).unwrap().count().unwrap().types, 5);
    }

    #[test]
    fn what_no_function_needs_is_not_written() {
        let mut types = Types::default();
        int(&mut types, "unused", 4);
        types.text("unused too");
        let (bytes, ids) = write(&mut types, &[]).unwrap();
        assert!(ids.is_empty());
        assert_eq!(bytes.len(), HEADER_LEN as usize + 1, "a header and an empty name");
        assert!(Sections::parse(&bytes).is_ok());
    }

    #[test]
    fn more_than_the_format_counts_is_an_error() {
        let mut types = Types::default();
        let word = int(&mut types, "word", 4);
        let name = types.text("x");
        let parameter = Parameter { name, of: word };
        let with = |types: &mut Types, count| {
            let parameters = vec![parameter.clone(); count];
            let prototype = types.add(Type::Prototype { returns: VOID, parameters });
            write(types, &[Function { name, is_global: true, prototype, tags: Vec::new() }]).map(|_| ())
        };
        assert_eq!(with(&mut types, 65535), Ok(()));
        assert_eq!(with(&mut types, 65536), Err(TooMuch("parameters", 65536)));
        for (bit_size, at, fits) in [(3, (1 << 24) - 8, true), (3, 1 << 24, false), (0, 1 << 24, true)] {
            let mut types = Types::default();
            let word = int(&mut types, "word", 4);
            let (first, last) = (types.text("first"), types.text("last"));
            let identity = identity(&mut types, "large", "");
            let of =
                types.add(composite(identity, 1 << 22, &[(first, word, 0, bit_size), (last, word, at, 0)]));
            let pointer = types.add(Type::Pointer { to: of });
            let function = function(&mut types, "f", pointer);
            let written = write(&mut types, &[function]);
            assert_eq!(written.is_ok(), fits, "{bit_size} {at}");
        }
    }
}
