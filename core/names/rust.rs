//! The texts of a mangled Rust name, compared with what was written while the demangler shows them.
//!
//! Nothing is kept: text goes from the demangler straight into the matchers, and the first mismatch of all of
//! them ends it.

use core::fmt::{self, Write};

use super::Rank;
use super::plain::{Keep, WithoutGenerics};
use crate::pattern::{Matcher, Pattern};
use crate::symbols::Demangled;

/// What is known of a written name before any symbol is seen, so that few need demangling.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hints<'a> {
    /// Part of an identifier that the mangled name of a match contains, letter by letter. Empty if none is
    /// known.
    part: &'a str,
    /// Nothing mangled can match: every path has a `::`, and what was written has none.
    never: bool,
}

impl<'a> Hints<'a> {
    pub(super) fn of(pattern: &Pattern<'a>) -> Self {
        let text = pattern.text();
        Self {
            part: if pattern.is_verbatim() || !text.contains(['[', '\\']) { part_of(text) } else { "" },
            never: pattern.is_exact() && !text.contains("::"),
        }
    }

    /// The best rank of a symbol's demangled texts.
    pub(super) fn rank(&self, pattern: &Pattern<'_>, raw: &str) -> Option<Rank> {
        let is_rust = raw.starts_with("_R") || raw.starts_with("_ZN");
        if self.never || !is_rust || !raw.contains(self.part) {
            return None;
        }
        let mut texts = Texts {
            path: pattern.matcher(),
            bare: WithoutGenerics::new(Keep::Trait, pattern.matcher()),
            plain: WithoutGenerics::new(Keep::Type, pattern.matcher()),
        };
        // An error here only says that no more text was needed.
        let _ = write!(texts, "{}", Demangled(raw));
        if texts.path.matched() || pattern.is_exact() && is_unabridged(pattern, raw) {
            return Some(Rank::Path);
        }
        if texts.bare.matched() {
            return Some(Rank::Bare);
        }
        texts.plain.matched().then_some(Rank::Plain)
    }
}

/// The longest beginning of an identifier behind a `::`. Manglings spell identifiers out, at least their
/// ASCII letters up to the first other one. Names of primitive types they do not, but those never follow a
/// `::`; nor do they spell out closures, whose names start with a brace.
fn part_of(text: &str) -> &str {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let parts = text.split("::").skip(1).map(|after| {
        let len = after.find(|c| !is_part(c)).unwrap_or(after.len());
        after.get(..len).unwrap_or("")
    });
    parts.max_by_key(|part| part.len()).unwrap_or("")
}

/// Whether what was written is the path with all that is hidden otherwise: hashes, and the types of
/// constants.
fn is_unabridged(pattern: &Pattern<'_>, raw: &str) -> bool {
    let (name, tail) = super::unpromoted(raw).unwrap_or((raw, ""));
    let Ok(path) = rustc_demangle::try_demangle(name) else { return false };
    let mut text = Text(pattern.matcher());
    let _ = write!(text, "{path}{tail}");
    text.0.matched()
}

/// All texts of a path at once.
struct Texts<'p> {
    path: Matcher<'p>,
    bare: WithoutGenerics<'p>,
    plain: WithoutGenerics<'p>,
}

impl Write for Texts<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let path = self.path.feed(text);
        let bare = self.bare.feed(text);
        let plain = self.plain.feed(text);
        if path || bare || plain { Ok(()) } else { Err(fmt::Error) }
    }
}

struct Text<'p>(Matcher<'p>);

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.feed(text) { Ok(()) } else { Err(fmt::Error) }
    }
}

#[cfg(test)]
mod tests {
    use crate::names::{Rank, WrittenName};
    use crate::pattern::Pattern;

    const RUN: &str = "_RNvCshp5d4tyNz3J_1r3run";
    const HELPER: &str = "_RINvCshp5d4tyNz3J_1r6helperlEB2_";
    const GO: &str = "_RNvXCshp5d4tyNz3J_1rNtB2_1SNtB2_2Tr2go";
    const PICK: &str = "_ZN6kernel5sched4pick17h0123456789abcdefE";
    const PUSH: &str = "_ZN5alloc3vec16Vec$LT$T$C$A$GT$4push17h0123456789abcdefE";
    const LEN: &str = "_ZN4core5slice29_$LT$impl$u20$$u5b$T$u5d$$GT$3len17h0123456789abcdefE";
    const SLICE_GO: &str = "_ZN37_$LT$$u5b$T$u5d$$u20$as$u20$r..Tr$GT$2go17h0123456789abcdefE";
    const CHUNK: &str = "_RINvMNtCsgEmfK2I1SDS_4core5sliceSh11first_chunkKj4_ECscy0OK5Bcn9l_6fgraph";
    const CLOSURE: &str =
        "_ZN3app4main28_$u7b$$u7b$closure$u7d$$u7d$17h0123456789abcdefE.llvm.10317035631373510462";

    fn rank(written: &str, raw: &str) -> Option<Rank> {
        WrittenName::new(Pattern::parse(written).unwrap()).rank(raw, Rank::LAST)
    }

    #[test]
    fn paths_match_as_people_write_them() {
        let (path, bare, plain) = (Some(Rank::Path), Some(Rank::Bare), Some(Rank::Plain));
        for (written, raw, expected) in [
            (RUN, RUN, Some(Rank::Raw)),
            ("r::run", RUN, path),
            ("r::*", RUN, path),
            ("*::r[tu]n", RUN, path),
            ("r::ru", RUN, None),
            ("r::run2", RUN, None),
            ("run", RUN, None),
            ("r::helper::<i32>", HELPER, path),
            ("r::helper", HELPER, bare),
            ("r::helper::<u32>", HELPER, None),
            ("*::helper", HELPER, bare),
            ("*::helper::<?32>", HELPER, path),
            ("<r::S as r::Tr>::go", GO, path),
            ("<* as r::Tr>::go", GO, path),
            ("r::S::go", GO, plain),
            ("r::S::*", GO, plain),
            ("r::Tr::go", GO, None),
            ("kernel::sched::pick", PICK, path),
            ("kernel::sched::pick::h0123456789abcdef", PICK, path),
            ("kernel::sched::pick::h0123456789abcdee", PICK, None),
            ("r\\[cab8d006d9d4b3ed]::run", RUN, path),
            ("<\\[u8]>::first_chunk::<4usize>", CHUNK, path),
            ("<\\[u8]>::first_chunk::<4>", CHUNK, path),
            ("<\\[u8]>::first_chunk", CHUNK, bare),
            ("kernel::*", PICK, path),
            ("kernel::sch\\ed::pick", PICK, path),
            ("kernel::s[c]hed::pick", PICK, path),
            ("alloc::vec::Vec<T,A>::push", PUSH, path),
            ("alloc::vec::Vec::push", PUSH, bare),
            ("core::slice::<impl [T]>::len", LEN, None),
            ("core::slice::<impl \\[T]>::len", LEN, path),
            ("core::slice::len", LEN, bare),
            ("app::main::{{closure}}", CLOSURE, path),
            ("app::main::*", CLOSURE, path),
            ("app::main", CLOSURE, None),
        ] {
            assert_eq!(rank(written, raw), expected, "{written} for {raw}");
        }
    }

    #[test]
    fn a_path_with_brackets_can_be_read_literally() {
        for (written, raw) in [
            ("core::slice::<impl [T]>::len", LEN),
            ("<[T] as r::Tr>::go", SLICE_GO),
            ("r[cab8d006d9d4b3ed]::run", RUN),
        ] {
            let pattern = Pattern::parse(written).unwrap();
            assert_eq!(WrittenName::new(pattern).rank(raw, Rank::LAST), None, "{written} as a pattern");
            let literal = WrittenName::read_literally(&pattern).unwrap();
            assert_eq!(literal.rank(raw, Rank::LAST), Some(Rank::Path), "{written} for {raw}");
        }
        for written in ["kernel::*", "vfs_[a-z]*", "r::run", "*"] {
            assert!(WrittenName::read_literally(&Pattern::parse(written).unwrap()).is_none(), "{written}");
        }
    }

    #[test]
    fn suffixes_of_rust_functions_are_part_of_the_path() {
        for (suffix, written, expected) in [
            (".llvm.123", "kernel::sched::pick", Some(Rank::Path)),
            (".cold", "kernel::sched::pick", None),
            (".cold", "kernel::sched::pick.cold", Some(Rank::Path)),
            (".llvm.123", "kernel::sched::pick::h0123456789abcdef", Some(Rank::Path)),
        ] {
            let raw = std::format!("{PICK}{suffix}");
            assert_eq!(rank(written, &raw), expected, "{written} for {raw}");
        }
    }

    #[test]
    fn names_that_cannot_be_demangled_match_raw_only() {
        for raw in ["_RDG_INt", "_ZN3fooE$", "_R", "_ZN", "_ZN99999999999999999999x", "_RNvC1aB_"] {
            assert_eq!(rank(raw, raw), Some(Rank::Raw));
            assert_eq!(rank("*::x", raw), None, "{raw}");
            assert_eq!(rank("a::b", raw), None, "{raw}");
        }
    }

    #[test]
    fn hints_never_hide_a_match() {
        for raw in [RUN, HELPER, GO, PICK, PUSH, LEN, SLICE_GO, CLOSURE] {
            let shown = std::string::ToString::to_string(&crate::symbols::Demangled(raw));
            let name = WrittenName::new(Pattern::verbatim(&shown));
            assert_eq!(name.rank(raw, Rank::LAST), Some(Rank::Path), "{shown} for {raw}");
        }
    }
}
