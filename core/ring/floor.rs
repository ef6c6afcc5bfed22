//! Where what was not forgotten begins. Read in any context, and changed by one at a time.
//!
//! Two copies, of which one is right and the other is the next: who reads does not wait for who is writing, and may come on top of him.
//! `turn` says which is right. A reader looks at it again behind an acquire fence: as long as it is the same, nobody has begun to write
//! to the copy that he read, because that only begins behind a release fence after the store of the next turn.

use super::read::Cursor;
use crate::sync::{AtomicBool, AtomicU64, Ordering, fence, interrupt_point};

use Ordering::{Acquire, Relaxed, Release};

/// See the module.
#[derive(Debug)]
pub(super) struct Floor {
    turn: AtomicU64,
    copies: [[AtomicU64; Cursor::WORDS]; 2],
    writing: AtomicBool,
}

/// The right to change it, one at a time.
#[must_use = "it is given back when this is dropped"]
pub(super) struct Writing<'f>(&'f Floor);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.writing.store(false, Release);
    }
}

impl Floor {
    /// Nothing was forgotten.
    pub(super) const fn new() -> Self {
        // Those of `Cursor::START` are zeros; a test holds them to that.
        Self {
            turn: AtomicU64::new(0),
            copies: [const { [const { AtomicU64::new(0) }; Cursor::WORDS] }; 2],
            writing: AtomicBool::new(false),
        }
    }

    /// What it is. Any context.
    pub(super) fn get(&self) -> Cursor {
        loop {
            let turn = self.turn.load(Acquire);
            interrupt_point();
            let words = self.copy(turn).each_ref().map(|word| word.load(Relaxed));
            fence(Acquire);
            interrupt_point();
            // Each round that fails, another change was complete.
            if self.turn.load(Relaxed) == turn {
                return Cursor::from_words(words);
            }
        }
    }

    /// `None` if somebody else is at it right now. Any context.
    pub(super) fn try_write(&self) -> Option<Writing<'_>> {
        (!self.writing.swap(true, Acquire)).then_some(Writing(self))
    }

    fn copy(&self, turn: u64) -> &[AtomicU64; Cursor::WORDS] {
        let [even, odd] = &self.copies;
        if turn & 1 == 0 { even } else { odd }
    }
}

impl Writing<'_> {
    pub(super) fn set(&self, cursor: Cursor) {
        let next = self.0.turn.load(Relaxed).wrapping_add(1);
        // Against the acquire fence of readers: who sees a word of this sees the turn that the copy is not right in.
        fence(Release);
        for (to, word) in self.0.copy(next).iter().zip(cursor.words()) {
            interrupt_point();
            to.store(word, Relaxed);
        }
        interrupt_point();
        self.0.turn.store(next, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::with_interrupt_at;
    use std::thread;
    use std::vec::Vec;

    fn all(n: u64) -> Cursor {
        // Who ran is a number of 32 bits, and a context.
        Cursor::from_words([n; Cursor::WORDS])
    }

    #[test]
    fn it_begins_at_the_start() {
        assert_eq!(Floor::new().get().words(), Cursor::START.words());
    }

    #[test]
    fn who_comes_on_top_of_a_change_sees_all_or_nothing_of_it_and_may_not_change_it() {
        let mut seen = Vec::new();
        for step in 0.. {
            let floor = Floor::new();
            floor.try_write().expect("nobody else").set(all(1));
            let look = || {
                assert!(floor.try_write().is_none());
                seen.push(floor.get().words());
            };
            let ((), came) = with_interrupt_at(step, look, || {
                floor.try_write().expect("nobody else").set(all(2));
            });
            assert_eq!(floor.get().words(), all(2).words());
            if !came {
                break;
            }
        }
        assert!(seen.len() > Cursor::WORDS && seen.iter().all(|words| *words == all(1).words()), "{seen:?}");
    }

    #[test]
    fn a_reader_that_is_overtaken_looks_again() {
        for step in 0.. {
            let floor = Floor::new();
            let change = || (1..=3).for_each(|n| floor.try_write().expect("nobody else").set(all(n)));
            let (words, came) = with_interrupt_at(step, change, || floor.get().words());
            if !came {
                break;
            }
            assert_eq!(words, all(3).words(), "{step}");
        }
    }

    #[test]
    fn other_threads_see_whole_places() {
        let rounds = if cfg!(miri) { 50 } else { 20_000 };
        let floor = Floor::new();
        thread::scope(|scope| {
            scope.spawn(|| {
                for n in 1..=rounds {
                    floor.try_write().expect("nobody else").set(all(n));
                }
            });
            let mut last = 0;
            while last < rounds {
                let words = floor.get().words();
                assert!(words == all(words[0]).words() && words[0] >= last, "{words:?} behind {last}");
                last = words[0];
            }
        });
    }
}
