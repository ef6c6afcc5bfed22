//! The bytes of BTF: its header, its two sections, and the records that types are.
//!
//! Invariant: [`Sections`] lie where the header says and their strings end with a zero. Of the records nothing is known until they
//! have been walked; [`Record::read`] gives one whole record or says what is wrong with it.

use super::Word;
use super::error::{BtfError, Section};

/// Bytes of the header that this reader uses. Later formats may have more behind them.
const HEADER_LEN: usize = 24;

/// Longest name that is read: of a longer one, the rest does not count. (Linux has no name longer than 511.)
pub const MAX_NAME: usize = 1024;

/// The numbers that kinds have in the format.
pub(super) mod kinds {
    pub(in super::super) const INT: u32 = 1;
    pub(in super::super) const PTR: u32 = 2;
    pub(in super::super) const ARRAY: u32 = 3;
    pub(in super::super) const STRUCT: u32 = 4;
    pub(in super::super) const UNION: u32 = 5;
    pub(in super::super) const ENUM: u32 = 6;
    pub(in super::super) const FWD: u32 = 7;
    pub(in super::super) const TYPEDEF: u32 = 8;
    pub(in super::super) const VOLATILE: u32 = 9;
    pub(in super::super) const CONST: u32 = 10;
    pub(in super::super) const RESTRICT: u32 = 11;
    pub(in super::super) const FUNC: u32 = 12;
    pub(in super::super) const FUNC_PROTO: u32 = 13;
    pub(in super::super) const VAR: u32 = 14;
    pub(in super::super) const DATASEC: u32 = 15;
    pub(in super::super) const FLOAT: u32 = 16;
    pub(in super::super) const DECL_TAG: u32 = 17;
    pub(in super::super) const TYPE_TAG: u32 = 18;
    pub(in super::super) const ENUM64: u32 = 19;
}

/// The types and strings of one piece of BTF, found by its header and not looked into yet.
#[derive(Clone, Copy, Debug)]
pub struct Sections<'a> {
    pub(super) types: &'a [u8],
    pub(super) strings: &'a [u8],
}

/// How much there is in BTF.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Types; void, which has no record, is not counted.
    pub types: u32,
    /// Types that have a name. DECL_TAGs, whose name is a remark, are not counted.
    pub named: u32,
    /// DECL_TAGs.
    pub tags: u32,
}

impl Counts {
    /// Words of memory that an index needs.
    pub fn words(&self) -> usize {
        [self.types, self.named, self.tags].iter().fold(0, |sum, n| sum.saturating_add(*n as usize))
    }
}

impl<'a> Sections<'a> {
    /// Finds the sections. Reads the header only.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, BtfError> {
        let short = BtfError::TooShort { have: bytes.len() };
        let (header, _) = bytes.split_first_chunk::<HEADER_LEN>().ok_or(short)?;
        match header.first_chunk() {
            Some([0x9f, 0xeb]) => {}
            Some([0xeb, 0x9f]) => return Err(BtfError::BigEndian),
            magic => return Err(BtfError::BadMagic(magic.copied().unwrap_or_default())),
        }
        let [_, _, version, flags, ..] = *header;
        if version != 1 {
            return Err(BtfError::Version(version));
        }
        if flags != 0 {
            return Err(BtfError::Flags(flags));
        }
        let (words, _) = header.as_chunks::<4>();
        let field = |n: usize| words.get(n).map_or(0, |word| u32::from_le_bytes(*word));
        let len = field(1);
        if (len as usize) < HEADER_LEN {
            return Err(BtfError::HeaderLength { len });
        }
        let body = bytes.get(len as usize..).ok_or(BtfError::HeaderLength { len })?;
        let cut = |section, offset: u32, len: u32| {
            let end = (offset as usize).checked_add(len as usize);
            let bytes = end.and_then(|end| body.get(offset as usize..end));
            bytes.ok_or(BtfError::SectionRange { section, offset, len })
        };
        let types = cut(Section::Types, field(2), field(3))?;
        if field(2) % 4 != 0 {
            return Err(BtfError::SectionRange { section: Section::Types, offset: field(2), len: field(3) });
        }
        let strings = cut(Section::Strings, field(4), field(5))?;
        if strings.last().is_some_and(|last| *last != 0) {
            return Err(BtfError::Strings { len: strings.len() });
        }
        Ok(Self { types, strings })
    }

    /// Counts what there is, by walking over the records once.
    pub fn count(&self) -> Result<Counts, BtfError> {
        let mut counts = Counts::default();
        for record in self.records(1) {
            let record = record?;
            counts.types = counts.types.checked_add(1).ok_or(BtfError::TooManyTypes)?;
            counts.named += u32::from(record.is_named());
            counts.tags += u32::from(record.kind == kinds::DECL_TAG);
        }
        Ok(counts)
    }

    /// The records in their order; the first has the id `first`. Ends behind an error.
    pub(super) fn records(&self, first: u32) -> Records<'a> {
        Records { types: self.types, at: 0, id: first }
    }
}

/// A record of the type section.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record<'a> {
    pub(super) id: u32,
    pub(super) at: u32,
    pub(super) name: u32,
    pub(super) kind: u32,
    pub(super) flag: bool,
    /// Members, parameters and so on; what FUNC has as its linkage.
    pub(super) vlen: u32,
    /// A size, or the id of a type.
    pub(super) word: u32,
    pub(super) tail: &'a [u8],
}

impl<'a> Record<'a> {
    /// The record at this place, and where the next one starts.
    pub(super) fn read(types: &'a [u8], at: u32, id: u32) -> Result<(Self, u32), BtfError> {
        let truncated = BtfError::Truncated { id, offset: at };
        let rest = types.get(at as usize..).ok_or(truncated)?;
        let (head, rest) = rest.split_first_chunk::<12>().ok_or(truncated)?;
        let [name, info, word] = words(head);
        // Linux had 16 bits for the length and 5 for the kind, with zeros above both. A reader that takes those in refuses nothing
        // that was right, and what was wrong is seen by its length or kind.
        let (vlen, kind) = (info & 0xff_ffff, info >> 24 & 0x7f);
        let tail_len = match kind {
            kinds::INT | kinds::VAR | kinds::DECL_TAG => 4,
            kinds::ARRAY => 12,
            kinds::STRUCT | kinds::UNION | kinds::DATASEC | kinds::ENUM64 => 12 * vlen,
            kinds::ENUM | kinds::FUNC_PROTO => 8 * vlen,
            kinds::PTR | kinds::FWD | kinds::TYPEDEF | kinds::VOLATILE | kinds::CONST | kinds::RESTRICT => 0,
            kinds::FUNC | kinds::FLOAT | kinds::TYPE_TAG => 0,
            _ => return Err(BtfError::UnknownKind { id, offset: at, kind }),
        };
        let tail = rest.get(..tail_len as usize).ok_or(truncated)?;
        let next = at.checked_add(12).and_then(|next| next.checked_add(tail_len)).ok_or(truncated)?;
        Ok((Self { id, at, name, kind, flag: info >> 31 != 0, vlen, word, tail }, next))
    }

    /// Whether it is found by its name. A tag's name is a remark.
    pub(super) fn is_named(&self) -> bool {
        self.name != 0 && self.kind != kinds::DECL_TAG && self.kind != kinds::TYPE_TAG
    }

    /// The type that a DECL_TAG stands on, and the component: members and parameters from 1, 0 for the whole.
    pub(super) fn tag_target(&self) -> (u32, u32) {
        let component = self.tail.first_chunk().map_or(0, |word| u32::from_le_bytes(*word).wrapping_add(1));
        (self.word, component)
    }

    /// Calls `check` with the id of every type that this one refers to.
    pub(super) fn references(
        &self,
        mut check: impl FnMut(u32) -> Result<(), BtfError>,
    ) -> Result<(), BtfError> {
        match self.kind {
            kinds::INT | kinds::FLOAT | kinds::FWD | kinds::ENUM | kinds::ENUM64 => Ok(()),
            kinds::ARRAY => {
                self.tail.as_chunks().0.iter().take(2).try_for_each(|id| check(u32::from_le_bytes(*id)))
            }
            kinds::STRUCT | kinds::UNION => self.entries::<12>(1).try_for_each(check),
            kinds::DATASEC => self.entries::<12>(0).try_for_each(check),
            kinds::FUNC_PROTO => {
                check(self.word)?;
                self.entries::<8>(1).try_for_each(check)
            }
            _ => check(self.word),
        }
    }

    /// Calls `check` with the place of every name.
    pub(super) fn names(&self, mut check: impl FnMut(u32) -> Result<(), BtfError>) -> Result<(), BtfError> {
        check(self.name)?;
        match self.kind {
            kinds::STRUCT | kinds::UNION | kinds::ENUM64 => self.entries::<12>(0).try_for_each(check),
            kinds::ENUM | kinds::FUNC_PROTO => self.entries::<8>(0).try_for_each(check),
            _ => Ok(()),
        }
    }

    /// Word `n` of every entry of `N` bytes.
    fn entries<const N: usize>(&self, n: usize) -> impl Iterator<Item = u32> + use<'a, N> {
        let entries = self.tail.as_chunks::<N>().0.iter();
        entries.map(move |entry| entry.as_chunks().0.get(n).map_or(0, |word| u32::from_le_bytes(*word)))
    }
}

/// The records of a type section, made by [`Sections::records`].
#[derive(Clone, Debug)]
pub(super) struct Records<'a> {
    types: &'a [u8],
    at: u32,
    id: u32,
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, BtfError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at as usize >= self.types.len() {
            return None;
        }
        let result = Record::read(self.types, self.at, self.id).and_then(|(record, next)| {
            self.at = next;
            self.id = self.id.checked_add(1).ok_or(BtfError::TooManyTypes)?;
            Ok(record)
        });
        if result.is_err() {
            self.at = u32::MAX;
            self.types = &[];
        }
        Some(result)
    }
}

/// The numbers in some bytes.
pub(super) fn words<const N: usize, const BYTES: usize>(bytes: &[u8; BYTES]) -> [u32; N] {
    const { assert!(N * 4 == BYTES) };
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    words
}

/// The strings that names stand in: those of the base, and behind them the own ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strings<'a> {
    pub(super) base: &'a [u8],
    pub(super) own: &'a [u8],
}

impl<'a> Strings<'a> {
    /// The bytes of a name, empty where there is none.
    pub(super) fn bytes(&self, name: u32) -> &'a [u8] {
        let name = name as usize;
        let from = match name.checked_sub(self.base.len()) {
            Some(own) => self.own.get(own..),
            None => self.base.get(name..),
        };
        let from = from.unwrap_or_default();
        let most = from.get(..MAX_NAME).unwrap_or(from);
        let len = most.iter().position(|byte| *byte == 0).unwrap_or(most.len());
        most.get(..len).unwrap_or_default()
    }

    /// A name, as far as it is text.
    pub(super) fn text(&self, name: u32) -> &'a str {
        let bytes = self.bytes(name);
        let good = match core::str::from_utf8(bytes) {
            Ok(text) => return text,
            Err(error) => error.valid_up_to(),
        };
        bytes.get(..good).and_then(|good| core::str::from_utf8(good).ok()).unwrap_or_default()
    }

    /// Checks that a name is there. One in the base must start where a name of the base starts: else it is another base.
    pub(super) fn check(&self, id: u32, name: u32) -> Result<(), BtfError> {
        let at = name as usize;
        if name == 0 {
            return Ok(());
        }
        if at >= self.base.len().saturating_add(self.own.len()) {
            return Err(BtfError::NameRange { id, name });
        }
        match self.base.get(at.wrapping_sub(1)) {
            Some(before) if at < self.base.len() && *before != 0 => Err(BtfError::NameSplit { id, name }),
            _ => Ok(()),
        }
    }
}

/// The number in a word of an index.
pub(super) fn number(word: &Word) -> u32 {
    u32::from_le_bytes(*word)
}
