//! Paths of Rust functions without their generic arguments, made piece by piece while a path is demangled.
//!
//! Two things go. What stands in `<…>` behind a name or behind `::` is generic arguments (or the `impl` block
//! that old mangling shows in this place), and goes with the `::` before it. Any other `<…>` is a type; only
//! in [`Keep::Type`] it loses its brackets and the trait that it names:
//!
//! | path                                        | `Keep::Trait`             | `Keep::Type` |
//! |---------------------------------------------|---------------------------|--------------|
//! | `r::helper::<i32>`                          | `r::helper`               | `r::helper`  |
//! | `<r::S<u8> as r::Tr<u16>>::go`              | `<r::S as r::Tr>::go`     | `r::S::go`   |
//! | `<alloc::vec::Vec<u8>>::push`               | `<alloc::vec::Vec>::push` | `alloc::vec::Vec::push` |
//! | `<[T] as r::Tr>::go::{closure#0}`           | as it is                  | `[T]::go::{closure#0}` |
//! | `core::num::<impl core::fmt::X for u32>::f` | `core::num::f`            | `core::num::f` |
//!
//! Invariant: any text may come, well-formed or not, in pieces cut anywhere.

use crate::pattern::Matcher;

/// What is kept of `<type as trait>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    /// All of it.
    Trait,
    /// Only the type.
    Type,
}

/// Takes a path, and feeds what is left of it to a matcher.
#[derive(Debug)]
pub(super) struct WithoutGenerics<'p> {
    keep: Keep,
    matcher: Matcher<'p>,
    /// What came last.
    previous: char,
    /// Text that came but is not fed yet, for what follows may do away with it: the beginning of `::` or ` as
    /// `.
    held: &'static str,
    /// How many brackets must close before text counts again; 0 while it does.
    skipping: usize,
    /// The text that does not count names the trait of a `<type as trait>`.
    in_trait: bool,
    /// Brackets around types that were left out and have not been closed.
    types: usize,
}

impl<'p> WithoutGenerics<'p> {
    pub(super) fn new(keep: Keep, matcher: Matcher<'p>) -> Self {
        Self { keep, matcher, previous: ' ', held: "", skipping: 0, in_trait: false, types: 0 }
    }

    /// Takes the next piece, and says whether more can still make a difference.
    pub(super) fn feed(&mut self, text: &str) -> bool {
        let mut rest = text;
        loop {
            if self.skipping == 0 && self.held.is_empty() {
                let (plain, others) = rest.split_at(rest.find([':', '<', '>', ' ']).unwrap_or(rest.len()));
                if let Some(last) = plain.chars().next_back() {
                    self.previous = last;
                    if !self.matcher.feed(plain) {
                        return false;
                    }
                }
                rest = others;
            }
            let mut chars = rest.chars();
            let Some(c) = chars.next() else { return true };
            rest = chars.as_str();
            let goes_on = self.take(c);
            self.previous = c;
            if !goes_on {
                return false;
            }
        }
    }

    /// Whether the text that came matches, if it ends here.
    pub(super) fn matched(mut self) -> bool {
        self.release();
        self.matcher.matched()
    }

    fn take(&mut self, c: char) -> bool {
        // The arrow of `fn() -> T` closes nothing. The old mangling has no `-` and makes `.>` of it.
        let closes = c == '>' && !matches!(self.previous, '-' | '.');
        if self.skipping > 0 {
            self.skipping += usize::from(c == '<');
            self.skipping -= usize::from(closes);
            if self.skipping == 0 && self.in_trait {
                self.in_trait = false;
                self.types -= 1;
            }
            return true;
        }
        match (self.held, c) {
            ("::", '<') => {
                self.held = "";
                self.skipping = 1;
                return true;
            }
            (_, '<') if self.previous.is_alphanumeric() || matches!(self.previous, '_' | '}') => {
                self.skipping = 1;
                return self.release();
            }
            (":", ':') => self.held = "::",
            (" ", 'a') => self.held = " a",
            (" a", 's') => self.held = " as",
            (" as", ' ') => {
                self.held = "";
                self.skipping = 1;
                self.in_trait = true;
            }
            _ => return self.release() && self.take_plain(c, closes),
        }
        true
    }

    /// Takes a character that nothing is held for.
    fn take_plain(&mut self, c: char, closes: bool) -> bool {
        match c {
            ':' => self.held = ":",
            ' ' if self.types > 0 => self.held = " ",
            '<' if self.keep == Keep::Type => self.types += 1,
            '>' if closes && self.types > 0 => self.types -= 1,
            _ => return self.matcher.feed(c.encode_utf8(&mut [0; 4])),
        }
        true
    }

    fn release(&mut self) -> bool {
        let held = core::mem::take(&mut self.held);
        held.is_empty() || self.matcher.feed(held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::pattern::Pattern;

    fn becomes(keep: Keep, path: &str, expected: &str) -> bool {
        let pattern = Pattern::verbatim(expected);
        let mut whole = WithoutGenerics::new(keep, pattern.matcher());
        whole.feed(path);
        let mut in_pieces = WithoutGenerics::new(keep, pattern.matcher());
        path.chars().for_each(|c| _ = in_pieces.feed(c.encode_utf8(&mut [0; 4])));
        let matched = whole.matched();
        assert_eq!(in_pieces.matched(), matched, "{path}, character by character");
        matched
    }

    #[test]
    fn generics_go_and_types_stay() {
        for (path, bare, plain) in [
            ("r::run", "r::run", "r::run"),
            ("r::helper::<i32>", "r::helper", "r::helper"),
            ("r::helper::<r::S<u8>, fn(u8) -> u8>::x", "r::helper::x", "r::helper::x"),
            ("<r::S as r::Tr>::go", "<r::S as r::Tr>::go", "r::S::go"),
            ("<r::S<u8> as r::Tr<u16>>::go::<u32>", "<r::S as r::Tr>::go", "r::S::go"),
            ("<r::S>::new", "<r::S>::new", "r::S::new"),
            ("<alloc::vec::Vec<u8>>::push", "<alloc::vec::Vec>::push", "alloc::vec::Vec::push"),
            ("alloc::vec::Vec<T,A>::push", "alloc::vec::Vec::push", "alloc::vec::Vec::push"),
            ("<<r::S as r::Tr>::Out as r::Tr>::go", "<<r::S as r::Tr>::Out as r::Tr>::go", "r::S::Out::go"),
            ("<[T] as r::Tr>::go::{closure#0}", "<[T] as r::Tr>::go::{closure#0}", "[T]::go::{closure#0}"),
            ("<&mut W as r::Tr>::go", "<&mut W as r::Tr>::go", "&mut W::go"),
            (
                "<[<r::S as r::Tr>::Out; 4] as r::Tr>::go",
                "<[<r::S as r::Tr>::Out; 4] as r::Tr>::go",
                "[r::S::Out; 4]::go",
            ),
            ("<fn(u8) -> u8 as r::Tr>::go", "<fn(u8) -> u8 as r::Tr>::go", "fn(u8) -> u8::go"),
            (
                "core::ptr::drop_in_place<(&str,fn(&str) .> bool)>",
                "core::ptr::drop_in_place",
                "core::ptr::drop_in_place",
            ),
            ("core::num::<impl core::fmt::X for u32>::f", "core::num::f", "core::num::f"),
            ("r::run::{closure#0}::<u8>", "r::run::{closure#0}", "r::run::{closure#0}"),
            ("<r::größe<u8>>::go", "<r::größe>::go", "r::größe::go"),
            ("<r::assert as r::ask>::as", "<r::assert as r::ask>::as", "r::assert::as"),
            ("r::{shim:vtable#0}", "r::{shim:vtable#0}", "r::{shim:vtable#0}"),
            ("r::x.cold", "r::x.cold", "r::x.cold"),
            ("a as b", "a as b", "a as b"),
            ("", "", ""),
            // Not paths.
            ("a:", "a:", "a:"),
            ("a:::<b>c", "a:::<b>c", "a:::bc"),
            ("a>b", "a>b", "a>b"),
            ("a::<b", "a", "a"),
            ("<a as", "<a as", "a as"),
            ("<a as b>>c", "<a as b>>c", "a>c"),
        ] {
            assert!(becomes(Keep::Trait, path, bare), "{path} is {bare}");
            assert!(becomes(Keep::Type, path, plain), "{path} is {plain}");
            assert!(!becomes(Keep::Type, path, "other"), "{path}");
        }
    }
}
