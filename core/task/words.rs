//! One word for each graph user in a task, zero when the user was registered.
//!
//! Registering walks no tasks: beside a word stands the count of registrations when it was begun, and a word that was
//! begun before its slot's present user came is begun anew by whoever asks first, the task or an interrupt on top of it.
//!
//! # Invariant
//! A slot has two cells; `begun` says which is the word, and the other is zero whenever nobody begins anew. Beginning anew is one
//! exchange of `begun`, from the stale value to one that names the other cell. Of the task and the interrupts inside that sequence
//! one succeeds; only that one clears the cell that was given up, and nobody writes to that cell any more: a slot does not
//! change hands within a section of `quiesce`.

use crate::regs::Regs;
use crate::sync::{AtomicU64, AtomicUsize, Ordering, interrupt_point};
use crate::users::{SLOTS, Users};

/// See the module.
#[derive(Debug)]
pub(crate) struct Words([Word; SLOTS]);

#[derive(Debug)]
struct Word {
    /// The count of registrations when the word was begun, and in the lowest bit the cell it is in.
    begun: AtomicU64,
    cells: [AtomicUsize; 2],
}

impl Words {
    pub(crate) const fn new() -> Self {
        Self([const { Word { begun: AtomicU64::new(0), cells: [const { AtomicUsize::new(0) }; 2] } }; SLOTS])
    }

    /// The word of the user in `slot`. On the task itself, within a section, with the user loaded from its slot before: then its
    /// registration has been counted.
    #[inline]
    pub(crate) fn of<R: Regs>(&self, users: &Users<R>, slot: usize) -> &AtomicUsize {
        let word = &self.0[slot];
        let begun = word.begun.load(Ordering::Relaxed);
        if users.was_there(slot, begun >> 1) {
            return &word.cells[(begun & 1) as usize];
        }
        word.begin(begun, users.stamp())
    }
}

impl Word {
    #[cold]
    fn begin(&self, stale: u64, now: u64) -> &AtomicUsize {
        let other = !stale & 1;
        interrupt_point();
        match self.begun.compare_exchange(stale, now << 1 | other, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => {
                interrupt_point();
                self.cells[(stale & 1) as usize].store(0, Ordering::Relaxed);
                &self.cells[other as usize]
            }
            // An interrupt has begun it meanwhile.
            Err(begun) => &self.cells[(begun & 1) as usize],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::x86_64::regs::FtraceRegs;
    use crate::filter::Filter;
    use crate::graph::world::user;
    use crate::testing::{Random, storm, with_interrupt_at};
    use crate::users::User;

    const SLOT: usize = 0;

    fn next_user(users: &Users<FtraceRegs>) {
        users.detach(SLOT);
        assert_eq!(users.attach(User::Graph(user(0, Filter::ALL))), Some(SLOT));
    }

    #[test]
    fn a_word_is_zero_for_each_user_of_the_slot() {
        let (users, words) = (Users::new(), Words::new());
        for round in 1..9 {
            next_user(&users);
            assert_eq!(words.of(&users, SLOT).load(Ordering::Relaxed), 0, "user {round}");
            words.of(&users, SLOT).store(round, Ordering::Relaxed);
            assert_eq!(words.of(&users, SLOT).load(Ordering::Relaxed), round);
        }
    }

    /// Whatever an interrupt adds is there afterwards, whenever it comes.
    #[test]
    fn nothing_that_an_interrupt_writes_is_lost() {
        storm(20, 3, |random: &mut Random| {
            for at in 0.. {
                let (users, words) = (Users::new(), Words::new());
                // Some users before: their words are in the way.
                for _ in 0..random.below(4) {
                    next_user(&users);
                    words.of(&users, SLOT).store(random.word() as usize, Ordering::Relaxed);
                }
                next_user(&users);
                let add = || {
                    words.of(&users, SLOT).fetch_add(1, Ordering::Relaxed);
                };
                let ((), came) = with_interrupt_at(at, add, add);
                let now = words.of(&users, SLOT).load(Ordering::Relaxed);
                assert_eq!(now, 1 + usize::from(came), "an interrupt at {at}");
                let word = &words.0[SLOT];
                let other = !word.begun.load(Ordering::Relaxed) & 1;
                assert_eq!(
                    word.cells[other as usize].load(Ordering::Relaxed),
                    0,
                    "the cell that is not in use"
                );
                if !came {
                    break;
                }
            }
        });
    }
}
