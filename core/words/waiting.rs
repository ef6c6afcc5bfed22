//! Words that name a module which is not there. They wait for it, and wait again when it has gone.
//!
//! A fixed number of places with text of bounded length serves all sets. A place belongs to one attachment of one user: the slot,
//! and what the clock of the slots said when the user came. So nothing has to be told when a user leaves.

use crate::engine::WhichSet;

/// How many words can wait, in all sets together.
pub const MAX_WAITING: usize = 32;

/// The longest word that can wait, in bytes.
pub const LONGEST_WAITING: usize = 128;

/// A set of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SetId {
    pub(crate) slot: usize,
    /// What the slots' clock said when the user came.
    pub(crate) since: u64,
    pub(crate) which: WhichSet,
}

#[derive(Clone, Copy, Debug)]
struct Kept {
    owner: SetId,
    /// No two words have the same, and later ones a greater.
    stamp: u64,
    len: u8,
    text: [u8; LONGEST_WAITING],
}

impl Kept {
    fn text(&self) -> &str {
        // Cut from a `str` as a whole, in `Draft::commit`.
        self.text.get(..usize::from(self.len)).and_then(|text| core::str::from_utf8(text).ok()).unwrap_or("")
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Waiting {
    places: [Option<Kept>; MAX_WAITING],
    /// The last stamp that was given.
    clock: u64,
}

/// A word in a draft: one that waits already, in a place, or a new one.
#[derive(Clone, Copy, Debug)]
enum Entry<'t> {
    Old(usize),
    New(&'t str),
}

/// What a set's words are going to be, if all goes well.
#[derive(Debug)]
pub(crate) struct Draft<'t> {
    owner: SetId,
    entries: [Option<Entry<'t>>; MAX_WAITING],
}

impl Waiting {
    pub(crate) const fn new() -> Self {
        Self { places: [None; MAX_WAITING], clock: 0 }
    }

    /// All words, and whose they are.
    pub(crate) fn all(&self) -> impl Iterator<Item = (SetId, &str)> {
        self.places.iter().flatten().map(|kept| (kept.owner, kept.text()))
    }

    /// The words of a set that have a greater stamp than this, with their stamps, in the order in which they came.
    pub(crate) fn since(&self, owner: SetId, stamp: u64) -> impl Iterator<Item = (u64, &str)> {
        let next = move |stamp| {
            let later = self.places.iter().flatten().filter(|kept| kept.owner == owner && kept.stamp > stamp);
            later.min_by_key(|kept| kept.stamp)
        };
        let words = core::iter::successors(next(stamp), move |kept| next(kept.stamp));
        words.map(|kept| (kept.stamp, kept.text()))
    }

    fn place_of(&self, owner: SetId, word: &str) -> Option<usize> {
        let is_it = |kept: &Kept| kept.owner == owner && kept.text() == word;
        self.places.iter().position(|place| place.as_ref().is_some_and(is_it))
    }

    /// Forgets what nobody waits for any more.
    pub(crate) fn retain(&mut self, keep: impl Fn(SetId) -> bool) {
        for place in &mut self.places {
            *place = place.filter(|kept| keep(kept.owner));
        }
    }

    /// Begins a change to the words of a set: with those that it has, or without.
    pub(crate) fn draft<'t>(&self, owner: SetId, with_old: bool) -> Draft<'t> {
        let mut draft = Draft { owner, entries: [None; MAX_WAITING] };
        if with_old {
            for (place, kept) in self.places.iter().enumerate() {
                draft.entries[place] = kept.filter(|kept| kept.owner == owner).map(|_| Entry::Old(place));
            }
        }
        draft
    }
}

impl<'t> Draft<'t> {
    fn text<'w>(&self, waiting: &'w Waiting, entry: Entry<'t>) -> &'w str
    where
        't: 'w,
    {
        match entry {
            Entry::Old(place) => waiting.places[place].as_ref().map_or("", Kept::text),
            Entry::New(text) => text,
        }
    }

    /// Adds a word, of [`LONGEST_WAITING`] bytes at most. Whether there is room; a word that is there already needs none.
    #[must_use]
    pub(crate) fn add(&mut self, waiting: &Waiting, word: &'t str) -> bool {
        if self.entries.iter().flatten().any(|entry| self.text(waiting, *entry) == word) {
            return true;
        }
        let others = waiting.all().filter(|(owner, _)| *owner != self.owner).count();
        if others + self.entries.iter().flatten().count() >= MAX_WAITING {
            return false;
        }
        let entry = waiting.place_of(self.owner, word).map_or(Entry::New(word), Entry::Old);
        match self.entries.iter_mut().find(|entry| entry.is_none()) {
            Some(free) => {
                *free = Some(entry);
                true
            }
            None => false,
        }
    }

    /// Takes out the words that `is_meant` says. How many.
    pub(crate) fn forget(&mut self, waiting: &Waiting, is_meant: impl Fn(&str) -> bool) -> usize {
        let mut forgotten = 0;
        for index in 0..self.entries.len() {
            if self.entries[index].is_some_and(|entry| is_meant(self.text(waiting, entry))) {
                self.entries[index] = None;
                forgotten += 1;
            }
        }
        forgotten
    }

    /// Makes it so. There is room: `add` saw to that, and nobody else has been here since.
    pub(crate) fn commit(self, waiting: &mut Waiting) {
        let stays = |place: usize| {
            self.entries.iter().flatten().any(|entry| matches!(entry, Entry::Old(old) if *old == place))
        };
        for (index, place) in waiting.places.iter_mut().enumerate() {
            *place = place.filter(|kept| kept.owner != self.owner || stays(index));
        }
        for entry in self.entries.iter().flatten() {
            let Entry::New(word) = entry else { continue };
            let mut text = [0; LONGEST_WAITING];
            let free = waiting.places.iter_mut().find(|place| place.is_none());
            let (Some(room), Some(free)) = (text.get_mut(..word.len()), free) else { continue };
            room.copy_from_slice(word.as_bytes());
            waiting.clock += 1;
            let (owner, stamp, len) = (self.owner, waiting.clock, word.len() as u8);
            *free = Some(Kept { owner, stamp, len, text });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::string::{String, ToString};
    use std::vec::Vec;

    use crate::testing::storm;

    fn set(slot: usize, which: WhichSet) -> SetId {
        SetId { slot, since: slot as u64 + 1, which }
    }

    fn words_of(waiting: &Waiting, owner: SetId) -> Vec<String> {
        let mut words: Vec<String> = waiting.since(owner, 0).map(|(_, text)| text.to_string()).collect();
        words.sort();
        words
    }

    #[test]
    fn a_draft_that_is_dropped_changes_nothing() {
        let mut waiting = Waiting::new();
        let mut draft = waiting.draft(set(1, WhichSet::Filter), true);
        assert!(draft.add(&waiting, "a:mod:x") && draft.add(&waiting, "b:mod:x"));
        draft.commit(&mut waiting);
        let mut draft = waiting.draft(set(1, WhichSet::Filter), false);
        assert!(draft.add(&waiting, "c:mod:x"));
        assert_eq!(draft.forget(&waiting, |_| true), 1);
        assert_eq!(words_of(&waiting, set(1, WhichSet::Filter)), ["a:mod:x", "b:mod:x"]);
        assert_eq!(words_of(&waiting, set(1, WhichSet::Notrace)), [""; 0]);
    }

    #[test]
    fn a_full_table_takes_what_is_there_and_what_takes_the_place_of_it() {
        let mut waiting = Waiting::new();
        let words: Vec<String> = (0..MAX_WAITING).map(|n| std::format!("f{n}:mod:x")).collect();
        let owner = set(3, WhichSet::Notrace);
        let mut draft = waiting.draft(owner, true);
        assert!(words.iter().all(|word| draft.add(&waiting, word)));
        assert!(!draft.add(&waiting, "one:mod:more") && draft.add(&waiting, "f0:mod:x"));
        draft.commit(&mut waiting);
        assert!(!waiting.draft(set(3, WhichSet::Filter), true).add(&waiting, "one:mod:more"));
        let mut draft = waiting.draft(owner, true);
        assert!(!draft.add(&waiting, "one:mod:more"));
        let mut draft = waiting.draft(owner, false);
        assert!(words.iter().skip(1).all(|word| draft.add(&waiting, word)));
        assert!(draft.add(&waiting, "one:mod:more"));
        draft.commit(&mut waiting);
        let words = words_of(&waiting, owner);
        assert!(
            words.iter().any(|word| word == "one:mod:more") && !words.iter().any(|word| word == "f0:mod:x")
        );
        assert_eq!(waiting.all().count(), MAX_WAITING);
    }

    #[test]
    fn the_table_is_a_list_for_each_set() {
        storm(40, 1, |random| {
            let mut waiting = Waiting::new();
            let owners = [set(0, WhichSet::Filter), set(0, WhichSet::Notrace), set(7, WhichSet::Filter)];
            let mut model: [Vec<String>; 3] = Default::default();
            let words: Vec<String> = (0..30).map(|n| std::format!("f{n}:mod:x")).collect();
            for _ in 0..if cfg!(miri) { 5 } else { 60 } {
                let who = random.below(3);
                let with_old = random.one_in(2);
                let mut draft = waiting.draft(owners[who], with_old);
                let mut list = if with_old { model[who].clone() } else { Vec::new() };
                let others: usize = (0..3).filter(|n| *n != who).map(|n| model[n].len()).sum();
                for _ in 0..random.below(20) {
                    let word = random.pick(&words);
                    if random.one_in(4) {
                        let was = list.len();
                        list.retain(|there| there != word);
                        assert_eq!(draft.forget(&waiting, |there| there == word), was - list.len());
                    } else {
                        let fits = list.contains(word) || others + list.len() < MAX_WAITING;
                        assert_eq!(draft.add(&waiting, word), fits);
                        if fits && !list.contains(word) {
                            list.push(word.clone());
                        }
                    }
                }
                if !random.one_in(3) {
                    draft.commit(&mut waiting);
                    list.sort();
                    model[who] = list;
                }
                for (owner, list) in owners.iter().zip(&model) {
                    assert_eq!(&words_of(&waiting, *owner), list);
                }
            }
            waiting.retain(|owner| owner.slot != 0);
            assert_eq!(words_of(&waiting, owners[0]), [""; 0]);
            assert_eq!(words_of(&waiting, owners[2]), model[2]);
        });
    }
}
