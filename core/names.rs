//! Whether a function is meant by a name that somebody wrote: symbols have suffixes and mangled names, people
//! write neither.
//!
//! Of one symbol there are up to five texts, and a [`Rank`] for each. In the order in which they win:
//!
//! | rank         | text                                            | for instance                         |
//! |--------------|-------------------------------------------------|--------------------------------------|
//! | `Raw`        | the name in the symbol table                    | `_RINvCs…_1r6helperlEB2_`, `foo.llvm.123` |
//! | `Unpromoted` | without the `.llvm.123` that a promoted local has | `foo`                              |
//! | `Path`       | demangled; hashes count only if written         | `<r::S<u8> as r::Tr>::go`, `r::helper::<i32>` |
//! | `Bare`       | that, without generic arguments                 | `<r::S as r::Tr>::go`, `r::helper`   |
//! | `Plain`      | that, with the type instead of `<type as trait>` | `r::S::go`, `r::helper`             |
//!
//! A name without wildcards means the functions that have it at the best rank that any function has: who
//! writes `foo` does not mean `foo.llvm.123` if there is a `foo`. A name with wildcards means every function
//! of which any of the texts matches.
//!
//! `.isra.0`, `.constprop.0`, `.part.0` and `.cold` are part of a name in all five texts. The code behind
//! them is not the function as it was written: parts of it only, or with other arguments. Who wants
//! `foo.isra.0` says so, and [`is_variant`] helps to suggest it.
//!
//! Demangling needs the feature `symbols`; without it the first two texts are all there is. Called when
//! filters are written, never on the traced path: a name that nests deeply needs stack.

use crate::pattern::Pattern;

#[cfg(feature = "symbols")]
mod plain;
#[cfg(feature = "symbols")]
mod rust;

/// How closely a symbol's name is what was written. The smaller, the closer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// The name in the symbol table.
    Raw,
    /// The name without the suffix of a promoted local.
    Unpromoted,
    /// The demangled path.
    Path,
    /// The demangled path without generic arguments.
    Bare,
    /// The demangled path without generic arguments, and without the trait that a method implements.
    Plain,
}

impl Rank {
    /// The rank that all others are closer than.
    pub const LAST: Self = Self::Plain;
}

/// A name as it was written, made ready to be compared with many symbols.
#[derive(Clone, Copy, Debug)]
pub struct WrittenName<'a> {
    pattern: Pattern<'a>,
    #[cfg(feature = "symbols")]
    hints: rust::Hints<'a>,
}

impl<'a> WrittenName<'a> {
    /// Prepares a name or a pattern for names.
    pub fn new(pattern: Pattern<'a>) -> Self {
        Self {
            pattern,
            #[cfg(feature = "symbols")]
            hints: rust::Hints::of(&pattern),
        }
    }

    /// The name with every character standing for itself, if it has wildcards that may be meant as parts of a
    /// Rust path: `<[u8]>::len`, `<*mut T as r::Tr>::go`.
    pub fn read_literally(pattern: &Pattern<'a>) -> Option<Self> {
        let could_be_path = pattern.text().contains("::") && pattern.text().contains(['[', '<']);
        (cfg!(feature = "symbols") && !pattern.is_exact() && could_be_path)
            .then(|| Self::new(Pattern::verbatim(pattern.text())))
    }

    /// The pattern that the name was made from.
    pub fn pattern(&self) -> &Pattern<'a> {
        &self.pattern
    }

    /// The best rank at which a symbol has this name, if that is `worst` or better. `raw` is the name in the
    /// symbol table.
    pub fn rank(&self, raw: &str, worst: Rank) -> Option<Rank> {
        if self.pattern.matches(raw) {
            return Some(Rank::Raw);
        }
        if worst < Rank::Unpromoted {
            return None;
        }
        if let Some((name, tail)) = unpromoted(raw) {
            let mut matcher = self.pattern.matcher();
            let _ = matcher.feed(name) && matcher.feed(tail);
            if matcher.matched() {
                return Some(Rank::Unpromoted);
            }
        }
        #[cfg(feature = "symbols")]
        if worst > Rank::Unpromoted {
            return self.hints.rank(&self.pattern, raw).filter(|&rank| rank <= worst);
        }
        None
    }
}

/// A name without the suffix that makes a promoted local unique in the whole program: what stands before it,
/// and what other compiler passes have put behind it. `None` if there is no such suffix.
fn unpromoted(raw: &str) -> Option<(&str, &str)> {
    let (name, rest) = raw.split_once(".llvm.")?;
    let tail = rest.trim_start_matches(|c| matches!(c, '0'..='9' | 'A'..='F' | '@'));
    let is_suffix = tail.len() < rest.len() && (tail.is_empty() || tail.starts_with('.'));
    (is_suffix && !name.is_empty()).then_some((name, tail))
}

/// The suffixes that compilers give to code made from a function. All but the fourth are followed by a
/// number.
const SUFFIXES: [&str; 5] = [".isra.", ".constprop.", ".part.", ".cold", ".llvm."];

/// Whether two names differ, and only in what a compiler appends: `foo`, `foo.isra.0`, `foo.part.0.cold`.
pub fn is_variant(one: &str, other: &str) -> bool {
    let stem =
        |name: &str| SUFFIXES.iter().filter_map(|suffix| name.find(suffix)).min().unwrap_or(name.len());
    let (one_stem, other_stem) = (one.get(..stem(one)), other.get(..stem(other)));
    one != other && one_stem == other_stem && one_stem != Some("")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(written: &str, raw: &str) -> Option<Rank> {
        WrittenName::new(Pattern::parse(written).unwrap()).rank(raw, Rank::LAST)
    }

    #[test]
    fn only_the_promotion_suffix_is_hidden() {
        for (written, raw, expected) in [
            ("foo", "foo", Some(Rank::Raw)),
            ("foo", "foo.llvm.123", Some(Rank::Unpromoted)),
            ("foo.llvm.123", "foo.llvm.123", Some(Rank::Raw)),
            ("foo.llvm.*", "foo.llvm.123", Some(Rank::Raw)),
            ("foo.cold", "foo.llvm.123.cold", Some(Rank::Unpromoted)),
            ("foo", "foo.llvm.123.cold", None),
            ("foo", "foo.llvm.", None),
            ("foo", "foo.llvm.12x", None),
            ("", ".llvm.12", None),
            ("foo", "foo.cold", None),
            ("foo", "foo.part.0", None),
            ("foo", "foo.isra.0", None),
            ("foo", "foo.constprop.0.isra.1", None),
            ("foo.isra.0", "foo.isra.0", Some(Rank::Raw)),
            ("foo.isra.0", "foo", None),
            ("fo\\o", "foo.llvm.1", Some(Rank::Unpromoted)),
            ("f[o]o", "foo.llvm.1", Some(Rank::Unpromoted)),
            ("*o", "foo.llvm.1", Some(Rank::Unpromoted)),
            ("foo*", "foo.cold", Some(Rank::Raw)),
        ] {
            assert_eq!(rank(written, raw), expected, "{written} for {raw}");
        }
    }

    #[test]
    fn worse_ranks_are_left_out_on_request() {
        let name = WrittenName::new(Pattern::parse("foo").unwrap());
        assert_eq!(name.rank("foo.llvm.1", Rank::Raw), None);
        assert_eq!(name.rank("foo.llvm.1", Rank::Unpromoted), Some(Rank::Unpromoted));
        assert_eq!(name.rank("foo", Rank::Raw), Some(Rank::Raw));
    }

    #[test]
    fn variants_share_their_stem() {
        for (one, other, expected) in [
            ("foo", "foo.isra.0", true),
            ("foo.isra.0", "foo", true),
            ("foo.isra.0", "foo.constprop.0.isra.1", true),
            ("foo", "foo.part.0", true),
            ("foo", "foo.cold", true),
            ("foo", "foo", false),
            ("foo", "foobar", false),
            ("foo", "foo.bar", false),
            (".cold", ".isra.0", false),
        ] {
            assert_eq!(is_variant(one, other), expected, "{one} and {other}");
        }
    }
}
