//! Makes BTF for tests, one type after another.

use std::vec::Vec;

use crate::btf::raw::kinds;
use crate::btf::{Btf, Sections, Word};
use crate::testing::{keep, keep_all};

/// A member: its name, type, offset in bits, and width if it is a bit field.
pub(crate) type Field<'n> = (&'n str, u32, u32, Option<u8>);

/// BTF that is being made. The first type has the id 1.
#[derive(Clone, Debug)]
pub(crate) struct Make {
    pub(crate) types: Vec<u8>,
    pub(crate) strings: Vec<u8>,
    pub(crate) next: u32,
    /// Bytes of strings of the base.
    string_base: u32,
}

impl Make {
    pub(crate) fn new() -> Self {
        Self { types: Vec::new(), strings: vec![0], next: 1, string_base: 0 }
    }

    /// BTF that goes on behind this one.
    pub(crate) fn split(base: &Self) -> Self {
        let string_base = base.strings.len() as u32;
        Self { types: Vec::new(), strings: Vec::new(), next: base.next, string_base }
    }

    pub(crate) fn string(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        let at = self.string_base + self.strings.len() as u32;
        self.strings.extend(text.as_bytes());
        self.strings.push(0);
        at
    }

    pub(crate) fn raw(&mut self, name: &str, info: u32, word: u32, tail: &[u32]) -> u32 {
        let name = self.string(name);
        for word in [name, info, word].iter().chain(tail) {
            self.types.extend(word.to_le_bytes());
        }
        self.next += 1;
        self.next - 1
    }

    fn plain(&mut self, kind: u32, name: &str, word: u32) -> u32 {
        self.raw(name, kind << 24, word, &[])
    }

    pub(crate) fn int(&mut self, name: &str, size: u32, encoding: u32) -> u32 {
        self.raw(name, kinds::INT << 24, size, &[encoding << 24 | size.wrapping_mul(8) & 0xff])
    }

    pub(crate) fn float(&mut self, name: &str, size: u32) -> u32 {
        self.plain(kinds::FLOAT, name, size)
    }

    pub(crate) fn ptr(&mut self, to: u32) -> u32 {
        self.plain(kinds::PTR, "", to)
    }

    pub(crate) fn typedef(&mut self, name: &str, of: u32) -> u32 {
        self.plain(kinds::TYPEDEF, name, of)
    }

    pub(crate) fn constant(&mut self, of: u32) -> u32 {
        self.plain(kinds::CONST, "", of)
    }

    pub(crate) fn volatile(&mut self, of: u32) -> u32 {
        self.plain(kinds::VOLATILE, "", of)
    }

    pub(crate) fn restrict(&mut self, of: u32) -> u32 {
        self.plain(kinds::RESTRICT, "", of)
    }

    pub(crate) fn type_tag(&mut self, name: &str, of: u32) -> u32 {
        self.plain(kinds::TYPE_TAG, name, of)
    }

    pub(crate) fn fwd(&mut self, name: &str, union: bool) -> u32 {
        self.raw(name, kinds::FWD << 24 | u32::from(union) << 31, 0, &[])
    }

    pub(crate) fn array(&mut self, element: u32, index: u32, len: u32) -> u32 {
        self.raw("", kinds::ARRAY << 24, 0, &[element, index, len])
    }

    fn composite(&mut self, kind: u32, name: &str, size: u32, fields: &[Field<'_>]) -> u32 {
        let sized = fields.iter().any(|(.., bits)| bits.is_some());
        let mut tail = Vec::new();
        for (name, ty, offset, bits) in fields {
            tail.extend([self.string(name), *ty, offset | u32::from(bits.unwrap_or(0)) << 24]);
        }
        self.raw(name, kind << 24 | u32::from(sized) << 31 | fields.len() as u32, size, &tail)
    }

    pub(crate) fn structure(&mut self, name: &str, size: u32, fields: &[Field<'_>]) -> u32 {
        self.composite(kinds::STRUCT, name, size, fields)
    }

    pub(crate) fn union(&mut self, name: &str, size: u32, fields: &[Field<'_>]) -> u32 {
        self.composite(kinds::UNION, name, size, fields)
    }

    /// Fields in bytes, without bit fields.
    pub(crate) fn fields(&mut self, name: &str, size: u32, fields: &[(&str, u32, u32)]) -> u32 {
        let fields: Vec<_> = fields.iter().map(|(name, ty, at)| (*name, *ty, at * 8, None)).collect();
        self.structure(name, size, &fields)
    }

    pub(crate) fn enumeration(
        &mut self,
        name: &str,
        size: u32,
        signed: bool,
        constants: &[(&str, i64)],
    ) -> u32 {
        let mut tail = Vec::new();
        for (name, value) in constants {
            tail.extend([self.string(name), *value as u32]);
        }
        let info = kinds::ENUM << 24 | u32::from(signed) << 31 | constants.len() as u32;
        self.raw(name, info, size, &tail)
    }

    pub(crate) fn enumeration64(&mut self, name: &str, signed: bool, constants: &[(&str, i64)]) -> u32 {
        let mut tail = Vec::new();
        for (name, value) in constants {
            tail.extend([self.string(name), *value as u32, (*value >> 32) as u32]);
        }
        let info = kinds::ENUM64 << 24 | u32::from(signed) << 31 | constants.len() as u32;
        self.raw(name, info, 8, &tail)
    }

    pub(crate) fn proto(&mut self, ret: u32, params: &[(&str, u32)]) -> u32 {
        let mut tail = Vec::new();
        for (name, ty) in params {
            tail.extend([self.string(name), *ty]);
        }
        self.raw("", kinds::FUNC_PROTO << 24 | params.len() as u32, ret, &tail)
    }

    /// A FUNC with a prototype of its own.
    pub(crate) fn function(&mut self, name: &str, ret: u32, params: &[(&str, u32)]) -> u32 {
        let proto = self.proto(ret, params);
        self.raw(name, kinds::FUNC << 24 | 1, proto, &[])
    }

    pub(crate) fn tag(&mut self, text: &str, target: u32, component: i32) -> u32 {
        self.raw(text, kinds::DECL_TAG << 24, target, &[component as u32])
    }

    pub(crate) fn variable(&mut self, name: &str, ty: u32) -> u32 {
        self.raw(name, kinds::VAR << 24, ty, &[1])
    }

    pub(crate) fn section(&mut self, name: &str, size: u32, variables: &[[u32; 3]]) -> u32 {
        self.raw(name, kinds::DATASEC << 24 | variables.len() as u32, size, variables.as_flattened())
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        with_header(&self.types, &self.strings)
    }

    /// The BTF, with its index, for ever.
    pub(crate) fn btf(&self) -> Btf<'static> {
        open(keep_all(self.bytes())).unwrap()
    }

    /// The same as split BTF.
    pub(crate) fn btf_on(&self, base: Btf<'static>) -> Btf<'static> {
        open_split(keep_all(self.bytes()), base).unwrap()
    }
}

pub(crate) fn with_header(types: &[u8], strings: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x9f, 0xeb, 1, 0];
    for word in [24, 0, types.len() as u32, types.len() as u32, strings.len() as u32] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(types);
    bytes.extend(strings);
    bytes
}

fn memory(sections: Sections<'_>) -> Result<&'static mut [Word], crate::btf::BtfError> {
    Ok(keep_all(vec![[0; 4]; sections.count()?.words()]))
}

pub(crate) fn open(bytes: &'static [u8]) -> Result<Btf<'static>, crate::btf::BtfError> {
    let sections = Sections::parse(bytes)?;
    Btf::index(sections, memory(sections)?)
}

pub(crate) fn open_split(
    bytes: &'static [u8],
    base: Btf<'static>,
) -> Result<Btf<'static>, crate::btf::BtfError> {
    let sections = Sections::parse(bytes)?;
    Btf::index_split(sections, keep(base), memory(sections)?)
}
