//! The index of a piece of BTF: where each type is, types by name, remarks by what they stand on.
//!
//! Invariant: an [`Index`] of a [`Btf`] is whole: every own type has its offset, every named one stands once among the names, every
//! DECL_TAG once among the tags, and both are sorted. It is made here, or checked here if it was made elsewhere.

use super::error::{BtfError, Table};
use super::raw::{Counts, Sections, kinds, number};
use super::{Btf, Word};

/// Three tables of little-endian words.
#[derive(Clone, Copy, Debug)]
pub(super) struct Index<'a> {
    /// Where each type starts, in the order of their ids.
    pub(super) offsets: &'a [Word],
    /// Ids of named types, sorted by the bytes of the name, then by id.
    pub(super) names: &'a [Word],
    /// Ids of DECL_TAGs, sorted by target, component (the whole first), then by id.
    pub(super) tags: &'a [Word],
}

impl Index<'_> {
    pub(super) const EMPTY: Self = Self { offsets: &[], names: &[], tags: &[] };
}

impl<'a> Btf<'a> {
    /// Looks at every record, and hands its offset to `found`. All there is to check without an index is checked here.
    fn walk(&self, end: u32, mut found: impl FnMut(u32, u32, bool, bool)) -> Result<(), BtfError> {
        for record in (Sections { types: self.types, strings: self.strings.own }).records(self.first) {
            let record = record?;
            let id = record.id;
            record.references(|refers_to| match refers_to < end {
                true => Ok(()),
                false => Err(BtfError::NoSuchType { id, refers_to }),
            })?;
            record.names(|name| self.strings.check(id, name))?;
            found(id, record.at, record.is_named(), record.kind == kinds::DECL_TAG);
        }
        Ok(())
    }

    fn count(&self) -> Result<(Counts, u32), BtfError> {
        let counts = Sections { types: self.types, strings: self.strings.own }.count()?;
        let end = self.first.checked_add(counts.types).ok_or(BtfError::TooManyTypes)?;
        Ok((counts, end))
    }

    /// Makes the index of BTF that has none yet.
    pub(super) fn build_index(mut self, memory: &'a mut [Word]) -> Result<Self, BtfError> {
        let (counts, end) = self.count()?;
        let no_room = BtfError::NoRoom { need: counts.words(), have: memory.len() };
        let (offsets, rest) = memory.split_at_mut_checked(counts.types as usize).ok_or(no_room)?;
        let (names, rest) = rest.split_at_mut_checked(counts.named as usize).ok_or(no_room)?;
        let (tags, _) = rest.split_at_mut_checked(counts.tags as usize).ok_or(no_room)?;
        let (mut to, mut to_names, mut to_tags) = (offsets.iter_mut(), names.iter_mut(), tags.iter_mut());
        self.walk(end, |id, at, is_named, is_tag| {
            // As many as have been counted.
            let put = |word: Option<&mut Word>, value: u32| {
                if let Some(word) = word {
                    *word = value.to_le_bytes();
                }
            };
            put(to.next(), at);
            if is_named {
                put(to_names.next(), id);
            }
            if is_tag {
                put(to_tags.next(), id);
            }
        })?;
        self.index.offsets = offsets;
        names.sort_unstable_by(|a, b| self.name_key(a).cmp(&self.name_key(b)));
        tags.sort_unstable_by_key(|tag| (self.tag_key(number(tag)), number(tag)));
        self.index = Index { names, tags, ..self.index };
        Ok(self)
    }

    /// Takes an index that was made before, if it is the right one.
    pub(super) fn with_index(mut self, index: Index<'a>) -> Result<Self, BtfError> {
        let (counts, end) = self.count()?;
        let wrong = |table, entry| Err(BtfError::BadIndex { table, entry });
        for (table, words, count) in [
            (Table::Offsets, index.offsets, counts.types),
            (Table::Names, index.names, counts.named),
            (Table::Tags, index.tags, counts.tags),
        ] {
            if words.len() != count as usize {
                return wrong(table, words.len());
            }
        }
        let (mut entry, mut bad) = (0, None);
        let mut offsets = index.offsets.iter();
        self.walk(end, |_, at, _, _| {
            if offsets.next().map(number) != Some(at) && bad.is_none() {
                bad = Some(entry);
            }
            entry += 1;
        })?;
        if let Some(entry) = bad {
            return wrong(Table::Offsets, entry);
        }
        self.index = index;
        // As many as there are of that sort, each of that sort, and no two the same: so all of them.
        for (entry, word) in index.names.iter().enumerate() {
            let before = entry.checked_sub(1).and_then(|entry| index.names.get(entry));
            let is_named = self.record(number(word)).is_some_and(|record| record.is_named());
            if !is_named || before.is_some_and(|before| self.name_key(before) >= self.name_key(word)) {
                return wrong(Table::Names, entry);
            }
        }
        let tag_key = |word: &Word| (self.tag_key(number(word)), number(word));
        for (entry, word) in index.tags.iter().enumerate() {
            let before = entry.checked_sub(1).and_then(|entry| index.tags.get(entry));
            let is_tag = self.record(number(word)).is_some_and(|record| record.kind == kinds::DECL_TAG);
            if !is_tag || before.is_some_and(|before| tag_key(before) >= tag_key(word)) {
                return wrong(Table::Tags, entry);
            }
        }
        Ok(self)
    }

    fn name_key(&self, word: &Word) -> (&'a [u8], u32) {
        (self.name_bytes(number(word)), number(word))
    }
}
