//! What a type is: its kind, and the lists that some kinds have.
//!
//! Everything here is a view of bytes that the index has walked: reading does not fail, and a list is as long as its record.

use super::raw::{Record, Strings, kinds, words};

/// A type.
#[derive(Clone, Copy, Debug)]
pub struct Type<'a> {
    /// Its number; 0 is void.
    pub id: u32,
    /// Its name, empty if it has none. Cut after [`MAX_NAME`](super::MAX_NAME) bytes, and where it is not UTF-8.
    pub name: &'a str,
    /// What it is.
    pub kind: Kind<'a>,
}

impl Type<'_> {
    /// Void.
    pub(super) const VOID: Self = Self { id: 0, name: "", kind: Kind::Void };
}

/// What a type is. Other types are given by their ids.
#[derive(Clone, Copy, Debug)]
pub enum Kind<'a> {
    /// No value.
    Void,
    /// An integer.
    Int(Int),
    /// A pointer to this type.
    Ptr(u32),
    /// An array.
    Array {
        /// Type of an element.
        element: u32,
        /// Type that it is indexed by, of which nothing depends.
        index: u32,
        /// Elements.
        len: u32,
    },
    /// A structure.
    Struct {
        /// Bytes.
        size: u32,
        /// Its members.
        members: Members<'a>,
    },
    /// A union.
    Union {
        /// Bytes.
        size: u32,
        /// Its members.
        members: Members<'a>,
    },
    /// An enumeration, of up to 64 bits.
    Enum {
        /// Bytes.
        size: u32,
        /// Its constants.
        constants: Constants<'a>,
    },
    /// A structure or union of which only the name is known.
    Fwd {
        /// Which of the two.
        union: bool,
    },
    /// Another name of a type.
    Typedef(u32),
    /// `volatile`.
    Volatile(u32),
    /// `const`.
    Const(u32),
    /// `restrict`.
    Restrict(u32),
    /// A function.
    Func {
        /// Its FUNC_PROTO.
        proto: u32,
        /// 0 static, 1 global, 2 extern.
        linkage: u32,
    },
    /// The types of a function.
    FuncProto {
        /// Of what it returns; 0 for nothing.
        ret: u32,
        /// Of its parameters.
        params: Params<'a>,
    },
    /// A variable.
    Var {
        /// Its type.
        ty: u32,
        /// 0 static, 1 global, 2 extern.
        linkage: u32,
    },
    /// A section of variables.
    DataSec {
        /// Bytes.
        size: u32,
        /// What stands in it.
        variables: Variables<'a>,
    },
    /// A floating-point number.
    Float {
        /// Bytes.
        size: u32,
    },
    /// A remark on another type or on a member or parameter of it; its name is the remark.
    DeclTag {
        /// The type.
        target: u32,
        /// The member or parameter, `None` for the whole.
        component: Option<u32>,
    },
    /// A remark on a type that a pointer leads to; its name is the remark.
    TypeTag(u32),
}

impl<'a> Kind<'a> {
    pub(super) fn of(record: &Record<'a>, strings: Strings<'a>) -> Self {
        let (word, tail) = (record.word, record.tail);
        let extra = tail.first_chunk().map_or(0, |word| u32::from_le_bytes(*word));
        match record.kind {
            kinds::INT => Self::Int(Int {
                size: word,
                bits: extra as u8,
                offset: (extra >> 16) as u8,
                encoding: Encoding::from_bits_retain((extra >> 24) as u8 & 0xf),
            }),
            kinds::PTR => Self::Ptr(word),
            kinds::ARRAY => {
                let [element, index, len] = tail.first_chunk::<12>().map_or([0; 3], words);
                Self::Array { element, index, len }
            }
            kinds::STRUCT | kinds::UNION => {
                let members = Members { entries: tail.as_chunks().0, strings, sized: record.flag };
                if record.kind == kinds::STRUCT {
                    Self::Struct { size: word, members }
                } else {
                    Self::Union { size: word, members }
                }
            }
            kinds::ENUM => {
                let entries = Entries::Narrow(tail.as_chunks().0);
                Self::Enum { size: word, constants: Constants { entries, strings, signed: record.flag } }
            }
            kinds::ENUM64 => {
                let entries = Entries::Wide(tail.as_chunks().0);
                Self::Enum { size: word, constants: Constants { entries, strings, signed: record.flag } }
            }
            kinds::FWD => Self::Fwd { union: record.flag },
            kinds::TYPEDEF => Self::Typedef(word),
            kinds::VOLATILE => Self::Volatile(word),
            kinds::CONST => Self::Const(word),
            kinds::RESTRICT => Self::Restrict(word),
            kinds::FUNC => Self::Func { proto: word, linkage: record.vlen },
            kinds::FUNC_PROTO => {
                Self::FuncProto { ret: word, params: Params { entries: tail.as_chunks().0, strings } }
            }
            kinds::VAR => Self::Var { ty: word, linkage: extra },
            kinds::DATASEC => {
                Self::DataSec { size: word, variables: Variables { entries: tail.as_chunks().0 } }
            }
            kinds::FLOAT => Self::Float { size: word },
            kinds::DECL_TAG => {
                Self::DeclTag { target: word, component: Some(extra).filter(|extra| *extra != u32::MAX) }
            }
            kinds::TYPE_TAG => Self::TypeTag(word),
            // The walk lets no other kind pass.
            _ => Self::Void,
        }
    }
}

/// An integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Int {
    /// Bytes, up to 16.
    pub size: u32,
    /// Bits of them that are the value.
    pub bits: u8,
    /// Where these start, from the lowest bit.
    pub offset: u8,
    /// How the value is meant.
    pub encoding: Encoding,
}

bitflags::bitflags! {
    /// How an integer is meant.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Encoding: u8 {
        /// It has a sign.
        const SIGNED = 1;
        /// It is a character.
        const CHAR = 2;
        /// It is true or false.
        const BOOL = 4;
    }
}

/// Makes a list over entries of fixed size.
macro_rules! list {
    ($list:ident of $item:ident) => {
        impl<'a> $list<'a> {
            /// How many there are.
            pub fn len(&self) -> usize {
                self.entries.len()
            }

            /// Whether there are none.
            pub fn is_empty(&self) -> bool {
                self.entries.len() == 0
            }

            /// All of them, in their order.
            pub fn iter(&self) -> impl Iterator<Item = $item<'a>> + Clone + use<'a> {
                let list = *self;
                (0..self.len()).filter_map(move |n| list.get(n))
            }
        }
    };
}

/// The members of a structure or union.
#[derive(Clone, Copy, Debug)]
pub struct Members<'a> {
    entries: &'a [[u8; 12]],
    strings: Strings<'a>,
    /// The upper byte of an offset is the width of a bit field.
    sized: bool,
}

/// A member of a structure or union.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member<'a> {
    /// Its name; empty for an anonymous structure or union.
    pub name: &'a str,
    /// Its type.
    pub ty: u32,
    /// Bits from the start, counted from the lowest bit of the first byte.
    pub bit_offset: u32,
    /// Width in bits, if it is a bit field.
    pub bits: Option<u8>,
}

list!(Members of Member);

impl<'a> Members<'a> {
    /// Member `n`.
    pub fn get(&self, n: usize) -> Option<Member<'a>> {
        let [name, ty, offset] = words(self.entries.get(n)?);
        let width = if self.sized { (offset >> 24) as u8 } else { 0 };
        Some(Member {
            name: self.strings.text(name),
            ty,
            bit_offset: if self.sized { offset & 0xff_ffff } else { offset },
            bits: Some(width).filter(|width| *width != 0),
        })
    }
}

/// The constants of an enumeration.
#[derive(Clone, Copy, Debug)]
pub struct Constants<'a> {
    entries: Entries<'a>,
    strings: Strings<'a>,
    signed: bool,
}

#[derive(Clone, Copy, Debug)]
enum Entries<'a> {
    Narrow(&'a [[u8; 8]]),
    Wide(&'a [[u8; 12]]),
}

impl Entries<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Narrow(entries) => entries.len(),
            Self::Wide(entries) => entries.len(),
        }
    }
}

/// A constant of an enumeration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Constant<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its value: sign-extended if the enumeration is signed, else zero-extended.
    pub value: u64,
}

list!(Constants of Constant);

impl<'a> Constants<'a> {
    /// Whether values have a sign.
    pub fn signed(&self) -> bool {
        self.signed
    }

    /// Constant `n`.
    pub fn get(&self, n: usize) -> Option<Constant<'a>> {
        let (name, value) = match self.entries {
            Entries::Narrow(entries) => {
                let [name, value] = words(entries.get(n)?);
                (name, if self.signed { value as i32 as u64 } else { u64::from(value) })
            }
            Entries::Wide(entries) => {
                let [name, low, high] = words(entries.get(n)?);
                (name, u64::from(high) << 32 | u64::from(low))
            }
        };
        Some(Constant { name: self.strings.text(name), value })
    }
}

/// The parameters of a function.
#[derive(Clone, Copy, Debug)]
pub struct Params<'a> {
    entries: &'a [[u8; 8]],
    strings: Strings<'a>,
}

/// A parameter of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param<'a> {
    /// Its name, which may be missing.
    pub name: &'a str,
    /// Its type. 0 for the last one: any number of arguments may follow.
    pub ty: u32,
}

list!(Params of Param);

impl<'a> Params<'a> {
    /// Parameter `n`.
    pub fn get(&self, n: usize) -> Option<Param<'a>> {
        let [name, ty] = words(self.entries.get(n)?);
        Some(Param { name: self.strings.text(name), ty })
    }
}

/// What stands in a section of variables.
#[derive(Clone, Copy, Debug)]
pub struct Variables<'a> {
    entries: &'a [[u8; 12]],
}

/// A variable in a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its VAR.
    pub ty: u32,
    /// Where it starts, in bytes.
    pub offset: u32,
    /// Its bytes.
    pub size: u32,
}

impl Variables<'_> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Variable `n`.
    pub fn get(&self, n: usize) -> Option<Variable> {
        let [ty, offset, size] = words(self.entries.get(n)?);
        Some(Variable { ty, offset, size })
    }
}
