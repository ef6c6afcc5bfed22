//! A set of types in which equal ones are one.
//!
//! Invariant: whoever refers to a named struct or union through a pointer refers to its name ([`Type::Named`]), so
//! no type refers to itself, and equality of types is equality of values. Names are resolved when the set is
//! written ([`Types::resolve`]): to the definition if the whole image has one, else to a forward declaration. So a
//! struct that one compilation unit only declares is the same as one that another defines, and two different
//! structs of one name are never taken for each other.

use std::collections::HashMap;

/// Number of a type in its set; 0 is void.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TypeId(pub u32);

/// No type.
pub const VOID: TypeId = TypeId(0);

/// Number of a text in its set; 0 is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Text(pub u32);

/// What a qualifier says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Qualifier {
    /// `const`
    Const,
    /// `volatile`
    Volatile,
    /// `restrict`
    Restrict,
}

/// A field of a struct or union.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    /// Its name, empty if it has none.
    pub name: Text,
    /// Its type.
    pub of: TypeId,
    /// Where it starts, in bits from the start of the struct.
    pub bit_offset: u32,
    /// Bits of a bitfield, 0 for what is none.
    pub bit_size: u8,
}

/// How a struct or union is known by others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Union, or struct.
    pub is_union: bool,
    /// Its short name.
    pub name: Text,
    /// The namespaces that it stands in.
    pub scope: Text,
}

/// A struct or union.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Composite {
    /// How others know it.
    pub identity: Identity,
    /// Bytes.
    pub size: u32,
    /// Fields, ascending by offset.
    pub members: Vec<Member>,
    /// What cannot be said otherwise: member, or -1 for the whole, and text.
    pub tags: Vec<(i32, Text)>,
}

/// A parameter of a prototype. Neither name nor type: more may follow, as in `printf`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Parameter {
    /// Its name.
    pub name: Text,
    /// Its type.
    pub of: TypeId,
}

/// A type. Sizes are bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are those of BTF")]
pub enum Type {
    Void,
    Int { name: Text, size: u32, encoding: u8 },
    Float { name: Text, size: u32 },
    Pointer { to: TypeId },
    Qualified { with: Qualifier, of: TypeId },
    Typedef { name: Text, of: TypeId },
    Array { of: TypeId, count: u32 },
    Enum { name: Text, size: u32, is_signed: bool, values: Vec<(Text, i64)> },
    Composite(Composite),
    Named(Identity),
    Prototype { returns: TypeId, parameters: Vec<Parameter> },
}

/// What calling conventions ask of a type, found out once, when it is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Whether there is a floating-point number in it.
    pub has_float: bool,
    /// Bytes, at least 1: that of its largest part.
    pub align: u64,
    /// Whether all parts are where their alignment wants them, so that nothing is packed.
    pub is_aligned: bool,
}

impl Layout {
    fn plain(align: u64) -> Self {
        Self { has_float: false, align: align.max(1), is_aligned: true }
    }
}

/// The set.
#[derive(Debug)]
pub struct Types {
    types: Vec<Type>,
    layouts: Vec<Layout>,
    ids: HashMap<Type, TypeId>,
    texts: Vec<Box<str>>,
    text_ids: HashMap<Box<str>, Text>,
    definitions: HashMap<Identity, Vec<TypeId>>,
    resolved: HashMap<TypeId, TypeId>,
}

impl Default for Types {
    fn default() -> Self {
        Self {
            types: vec![Type::Void],
            layouts: vec![Layout::plain(1)],
            ids: HashMap::from([(Type::Void, VOID)]),
            texts: vec!["".into()],
            text_ids: HashMap::from([("".into(), Text(0))]),
            definitions: HashMap::new(),
            resolved: HashMap::new(),
        }
    }
}

impl Types {
    /// The number of a text. What stands behind a NUL, which no name has, is cut off.
    pub fn text(&mut self, text: &str) -> Text {
        let text = text.split('\0').next().unwrap_or_default();
        if let Some(id) = self.text_ids.get(text) {
            return *id;
        }
        let id = Text(self.texts.len() as u32);
        self.texts.push(text.into());
        self.text_ids.insert(text.into(), id);
        id
    }

    /// The text of a number of this set.
    pub fn str(&self, text: Text) -> &str {
        &self.texts[text.0 as usize]
    }

    /// The type of a number of this set.
    pub fn get(&self, id: TypeId) -> &Type {
        &self.types[id.0 as usize]
    }

    /// How many types there are, void included.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.types.len()
    }

    /// The number of a type, which is a new one only if no equal one is there.
    pub fn add(&mut self, of: Type) -> TypeId {
        if let Some(id) = self.ids.get(&of) {
            return *id;
        }
        let id = TypeId(self.types.len() as u32);
        if let Type::Composite(composite) = &of
            && composite.identity.name != Text(0)
        {
            self.definitions.entry(composite.identity).or_default().push(id);
        }
        self.layouts.push(self.layout_of(&of));
        self.types.push(of.clone());
        self.ids.insert(of, id);
        id
    }

    /// How conventions see a type of this set.
    pub fn layout(&self, id: TypeId) -> Layout {
        self.layouts[id.0 as usize]
    }

    fn layout_of(&self, of: &Type) -> Layout {
        match of {
            Type::Int { size, .. } | Type::Enum { size, .. } => Layout::plain((*size).into()),
            Type::Float { size, .. } => Layout { has_float: true, ..Layout::plain((*size).into()) },
            Type::Pointer { .. } => Layout::plain(8),
            Type::Typedef { of, .. } | Type::Qualified { of, .. } | Type::Array { of, .. } => {
                self.layout(*of)
            }
            Type::Composite(of) => of.members.iter().fold(Layout::plain(1), |whole, member| {
                let part = self.layout(member.of);
                let is_placed = member.bit_size != 0
                    || (member.bit_offset.is_multiple_of(8)
                        && u64::from(member.bit_offset / 8).is_multiple_of(part.align));
                Layout {
                    has_float: whole.has_float || part.has_float,
                    align: whole.align.max(part.align),
                    is_aligned: whole.is_aligned && is_placed && part.is_aligned,
                }
            }),
            Type::Void | Type::Named(_) | Type::Prototype { .. } => Layout::plain(1),
        }
    }

    /// Whether there is a definition of that name.
    pub fn is_defined(&self, identity: &Identity) -> bool {
        self.definitions.contains_key(identity)
    }

    /// Names that more than one definition has.
    pub fn ambiguous(&self) -> impl Iterator<Item = Identity> {
        self.definitions.iter().filter(|(_, all)| all.len() > 1).map(|(identity, _)| *identity)
    }

    /// The same type with each name replaced by its definition, down to structs and unions, whose members keep
    /// theirs. A name that stays has no definition, or several.
    pub fn resolve(&mut self, id: TypeId) -> TypeId {
        if let Some(done) = self.resolved.get(&id) {
            return *done;
        }
        let of = self.get(id).clone();
        let done = match of {
            Type::Named(identity) => match self.definitions.get(&identity).map(Vec::as_slice) {
                Some([one]) => *one,
                _ => id,
            },
            Type::Pointer { to } => {
                let to = self.resolve(to);
                self.add(Type::Pointer { to })
            }
            Type::Qualified { with, of } => {
                let of = self.resolve(of);
                self.add(Type::Qualified { with, of })
            }
            Type::Typedef { name, of } => {
                let of = self.resolve(of);
                self.add(Type::Typedef { name, of })
            }
            Type::Array { of, count } => {
                let of = self.resolve(of);
                self.add(Type::Array { of, count })
            }
            Type::Prototype { returns, mut parameters } => {
                let returns = self.resolve(returns);
                for parameter in &mut parameters {
                    parameter.of = self.resolve(parameter.of);
                }
                self.add(Type::Prototype { returns, parameters })
            }
            _ => id,
        };
        self.resolved.insert(id, done);
        done
    }

    /// The type below typedefs and qualifiers.
    pub fn plain(&self, mut id: TypeId) -> TypeId {
        while let Type::Typedef { of, .. } | Type::Qualified { of, .. } = self.get(id) {
            id = *of;
        }
        id
    }

    /// Bytes of a type; 0 for what has none.
    pub fn size(&self, id: TypeId) -> u64 {
        match self.get(self.plain(id)) {
            Type::Int { size, .. } | Type::Float { size, .. } | Type::Enum { size, .. } => u64::from(*size),
            Type::Pointer { .. } => 8,
            Type::Array { of, count } => self.size(*of).saturating_mul(u64::from(*count)),
            Type::Composite(composite) => u64::from(composite.size),
            _ => 0,
        }
    }
}
