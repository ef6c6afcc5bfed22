//! What a task remembers for one user's [`Limits`](super::Limits), in one word. Pure functions.
//!
//! ```text
//!     63..40 changes of the pid sets that the verdict is for, 0 for no verdict | 39 verdict
//!     38..26 never | 25..13 inside, in an interrupt | 12..0 inside
//! ```
//!
//! A mark is 0, or one more than the depth of the call that set it. Calls deeper than a mark can tell all set the largest one, which
//! is taken away by the first of them that ends: too early, never too late.

/// A mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// In a function of `set_graph_function`.
    Inside = 0,
    /// The same, called in an interrupt.
    InsideIrq = 1,
    /// In a function of `set_graph_notrace`.
    Never = 2,
}

const MARKS: [Mark; 3] = [Mark::Inside, Mark::InsideIrq, Mark::Never];
const MARK_BITS: u32 = 13;
const MARK: usize = (1 << MARK_BITS) - 1;
const VERDICT_SHIFT: u32 = 3 * MARK_BITS;
const CHANGES_SHIFT: u32 = VERDICT_SHIFT + 1;
/// How many values of the changes there are, without that for no verdict.
const CHANGES: u32 = (1 << (usize::BITS - CHANGES_SHIFT)) - 1;

/// The word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State(usize);

impl State {
    pub(super) const fn of(word: usize) -> Self {
        Self(word)
    }

    pub(super) const fn word(self) -> usize {
        self.0
    }

    fn mark(self, mark: Mark) -> usize {
        self.0 >> (mark as u32 * MARK_BITS) & MARK
    }

    fn with(self, mark: Mark, value: usize) -> Self {
        let shift = mark as u32 * MARK_BITS;
        Self(self.0 & !(MARK << shift) | value << shift)
    }

    fn value(depth: u32) -> usize {
        (depth as usize).saturating_add(1).min(MARK)
    }

    #[inline]
    pub(super) fn is_in(self, mark: Mark) -> bool {
        self.mark(mark) != 0
    }

    /// The call at `depth` sets a mark.
    pub(super) fn set(&mut self, mark: Mark, depth: u32) {
        *self = self.with(mark, Self::value(depth));
    }

    fn cleared(self, goes: impl Fn(usize) -> bool) -> Self {
        MARKS.into_iter().filter(|mark| goes(self.mark(*mark))).fold(self, |state, mark| state.with(mark, 0))
    }

    /// Without the marks of the call at `depth`, which ends.
    pub(super) fn without(self, depth: u32) -> Self {
        self.cleared(|value| value == Self::value(depth))
    }

    /// Without marks of calls that cannot be under way when one at `depth` is entered. The deepest marks may be of any depth.
    #[inline]
    pub(super) fn without_stale(self, depth: u32) -> Self {
        let value = Self::value(depth);
        self.cleared(|mark| mark != 0 && mark >= value && value < MARK)
    }

    /// What the task was told after the last of `changes`, which is not 0.
    #[inline]
    pub(super) fn verdict(self, changes: u32) -> Option<bool> {
        let for_this = self.0 >> CHANGES_SHIFT == Self::changes(changes);
        for_this.then_some(self.0 >> VERDICT_SHIFT & 1 == 1)
    }

    pub(super) fn set_verdict(&mut self, changes: u32, counts: bool) {
        let marks = self.0 & ((1 << VERDICT_SHIFT) - 1);
        self.0 = marks | usize::from(counts) << VERDICT_SHIFT | Self::changes(changes) << CHANGES_SHIFT;
    }

    fn changes(changes: u32) -> usize {
        (changes % CHANGES) as usize + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_and_verdict_do_not_touch_each_other() {
        for set in MARKS {
            for depth in [0, 1, 7, 8189, 8190, 8191, u32::MAX] {
                let mut state = State::of(0);
                state.set_verdict(5, true);
                let before = state;
                state.set(set, depth);
                for mark in MARKS {
                    assert_eq!(state.is_in(mark), mark == set, "{mark:?} after {set:?} at {depth}");
                }
                assert_eq!(state.verdict(5), Some(true));
                assert_eq!(state.without(depth), before);
            }
        }
    }

    #[test]
    fn a_mark_is_stale_for_whoever_is_not_deeper() {
        let mut state = State::of(0);
        state.set(Mark::Inside, 5);
        assert!(state.without_stale(6).is_in(Mark::Inside));
        assert!(!state.without_stale(5).is_in(Mark::Inside));
        assert!(!state.without_stale(0).is_in(Mark::Inside));
        let mut deepest = State::of(0);
        deepest.set(Mark::Never, 20_000);
        assert!(deepest.without_stale(20_001).is_in(Mark::Never));
        assert!(!deepest.without_stale(8000).is_in(Mark::Never));
    }

    #[test]
    fn a_verdict_is_for_one_change() {
        let mut state = State::of(0);
        for changes in [1, 2, CHANGES - 1, CHANGES, CHANGES + 1, u32::MAX] {
            assert_eq!(state.verdict(changes), None);
            for counts in [false, true] {
                state.set_verdict(changes, counts);
                assert_eq!(state.verdict(changes), Some(counts));
                assert_eq!(state.verdict(changes.wrapping_add(1)), None);
            }
        }
    }
}
