//! Globs as the filter files of ftrace know them, matched against text that may arrive in pieces.
//!
//! | written       | stands for |
//! |---------------|------------|
//! | `*`           | any text, also none |
//! | `?`           | one character |
//! | `[a-fx]`      | one character of the class; a `]` in first place and a `-` at either end are members |
//! | `[!a-f]`      | one character that is not in the class; `^` does not negate, it is a member |
//! | `\c`          | the character `c` itself; inside a class `\` is a member like any other |
//! | anything else | itself: so does a `[` that no `]` closes, and a `\` at the very end |
//!
//! Invariant: a [`Matcher`] needs no memory but its own, whatever the pattern and the text, and looks at each
//! character of the text once. Its work per character is bounded by the length of the pattern, so no pattern
//! is expensive. Called when a filter is written; nothing here is for the traced path.

use core::fmt;
use core::str::Chars;

/// Bytes of the longest pattern that may have wildcards. What has none may be of any length.
pub const LONGEST_GLOB: usize = 64 * WORDS - 1;

/// Words of a set of positions in a pattern, its end included.
const WORDS: usize = 8;

/// A pattern with wildcards is longer than [`LONGEST_GLOB`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PatternTooLong {
    /// Bytes it has.
    pub len: usize,
}

impl fmt::Display for PatternTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a pattern of {} bytes; the longest with wildcards has {LONGEST_GLOB}", self.len)
    }
}

impl core::error::Error for PatternTooLong {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The text stands for itself, to the last byte.
    Verbatim,
    /// No wildcard, but backslashes that are not part of the name.
    Escaped,
    /// Nothing but stars.
    Everything,
    Glob,
}

/// One pattern, as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern<'a> {
    text: &'a str,
    kind: Kind,
    // Where the last `]` stands, 0 without one. A `[` behind it is not looked at twice.
    last_close: usize,
}

impl<'a> Pattern<'a> {
    /// Reads a pattern. The empty text is a pattern that only empty text matches.
    pub fn parse(text: &'a str) -> Result<Self, PatternTooLong> {
        let mut pattern = Self { text, kind: Kind::Verbatim, last_close: text.rfind(']').unwrap_or(0) };
        let (mut wild, mut only_stars, mut at) = (false, true, 0);
        while let Some((element, after)) = pattern.element(at) {
            wild |= !matches!(element, Element::Char(_));
            only_stars &= matches!(element, Element::Star);
            at = after;
        }
        pattern.kind = match wild {
            true if only_stars => Kind::Everything,
            true if text.len() > LONGEST_GLOB => return Err(PatternTooLong { len: text.len() }),
            true => Kind::Glob,
            false if text.contains('\\') => Kind::Escaped,
            false => Kind::Verbatim,
        };
        Ok(pattern)
    }

    /// The pattern that matches this text and nothing else, whatever characters are in it.
    pub const fn verbatim(text: &'a str) -> Self {
        Self { text, kind: Kind::Verbatim, last_close: 0 }
    }

    /// The pattern as it was written.
    pub const fn text(&self) -> &'a str {
        self.text
    }

    /// Whether it can match only one text: it has no wildcard.
    pub const fn is_exact(&self) -> bool {
        matches!(self.kind, Kind::Verbatim | Kind::Escaped)
    }

    /// Whether the text is compared as it stands: there is neither a wildcard nor a backslash in it.
    pub const fn is_verbatim(&self) -> bool {
        matches!(self.kind, Kind::Verbatim)
    }

    /// Whether the whole of `text` matches.
    pub fn matches(&self, text: &str) -> bool {
        match self.kind {
            Kind::Verbatim => self.text == text,
            Kind::Everything => true,
            Kind::Escaped | Kind::Glob => {
                let mut matcher = self.matcher();
                matcher.feed(text);
                matcher.matched()
            }
        }
    }

    /// Starts a match against text that comes in pieces.
    pub fn matcher(&self) -> Matcher<'a> {
        let state = match self.kind {
            Kind::Verbatim => State::Verbatim(self.text),
            Kind::Escaped => State::Escaped(self.text.chars()),
            Kind::Everything => State::Settled,
            Kind::Glob => {
                let mut progress = Progress { star: None, others: [0; WORDS] };
                match progress.enter(self, 0) {
                    Reached::End => State::Settled,
                    Reached::Position => State::Glob(progress),
                }
            }
        };
        Matcher { pattern: *self, state }
    }

    /// What stands at `at`, which is where an element starts, and where the next one does. `None` at the end.
    fn element(&self, at: usize) -> Option<(Element<'a>, usize)> {
        let rest = self.text.get(at..)?;
        let mut chars = rest.chars();
        let first = chars.next()?;
        let (element, tail) = match first {
            '*' => (Element::Star, chars.as_str()),
            '?' => (Element::Any, chars.as_str()),
            '\\' => (Element::Char(chars.next().unwrap_or('\\')), chars.as_str()),
            '[' if at < self.last_close => match Class::parse(chars.as_str()) {
                Some((class, tail)) => (Element::Class(class), tail),
                None => (Element::Char('['), chars.as_str()),
            },
            other => (Element::Char(other), chars.as_str()),
        };
        Some((element, at + (rest.len() - tail.len())))
    }

    fn star_at(&self, at: usize) -> bool {
        self.text.as_bytes().get(at) == Some(&b'*')
    }
}

impl fmt::Display for Pattern<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text)
    }
}

#[derive(Clone, Copy)]
enum Element<'a> {
    Star,
    Any,
    Class(Class<'a>),
    Char(char),
}

#[derive(Clone, Copy)]
struct Class<'a> {
    members: &'a str,
    negated: bool,
}

impl<'a> Class<'a> {
    /// Reads a class whose `[` came just before, and says what follows it. `None` if nothing closes it.
    fn parse(text: &'a str) -> Option<(Self, &'a str)> {
        let (negated, body) = match text.strip_prefix('!') {
            Some(body) => (true, body),
            None => (false, text),
        };
        let first = body.chars().next()?.len_utf8();
        let close = first + body.get(first..)?.find(']')?;
        Some((Self { members: body.get(..close)?, negated }, body.get(close + 1..)?))
    }

    fn has(&self, wanted: char) -> bool {
        let mut chars = self.members.chars();
        let mut found = false;
        while let Some(low) = chars.next() {
            let mut ahead = chars.clone();
            let high = match (ahead.next(), ahead.next()) {
                (Some('-'), Some(high)) => {
                    chars = ahead;
                    high
                }
                _ => low,
            };
            found |= low <= wanted && wanted <= high;
        }
        found != self.negated
    }
}

/// Where a match has got to. Made by [`Pattern::matcher`].
#[derive(Clone, Debug)]
pub struct Matcher<'a> {
    pattern: Pattern<'a>,
    state: State<'a>,
}

#[derive(Clone, Debug)]
enum State<'a> {
    /// What must still come.
    Verbatim(&'a str),
    Escaped(Chars<'a>),
    Glob(Progress),
    /// Whatever comes, it matches.
    Settled,
    /// Whatever comes, it does not match.
    Failed,
}

impl Matcher<'_> {
    /// Takes the next piece of the text, and says whether more text can still make a difference: after
    /// `false` the answer is settled.
    pub fn feed(&mut self, text: &str) -> bool {
        let goes_on = match &mut self.state {
            State::Settled | State::Failed => return false,
            State::Verbatim(rest) => match rest.strip_prefix(text) {
                Some(left) => {
                    *rest = left;
                    true
                }
                None => false,
            },
            State::Escaped(rest) => text.chars().all(|c| {
                let expected = match rest.next() {
                    Some('\\') => rest.next().or(Some('\\')),
                    other => other,
                };
                expected == Some(c)
            }),
            State::Glob(progress) => match progress.follow(&self.pattern, text) {
                Some(Reached::Position) => true,
                Some(Reached::End) => {
                    self.state = State::Settled;
                    return false;
                }
                None => false,
            },
        };
        if !goes_on {
            self.state = State::Failed;
        }
        goes_on
    }

    /// Whether the text that was fed matches, if it ends here.
    pub fn matched(&self) -> bool {
        match &self.state {
            State::Settled => true,
            State::Failed => false,
            State::Verbatim(rest) => rest.is_empty(),
            State::Escaped(rest) => rest.as_str().is_empty(),
            State::Glob(progress) => progress.is_at(self.pattern.text.len()),
        }
    }
}

/// Whether a match got to a place from where all text leads to the end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reached {
    Position,
    End,
}

/// Every position in a glob that the text so far can have led to.
///
/// Of several stars only the last counts. The positions before it are pointless: whatever text leads from
/// there to the end must come by this star, and the star can as well take that text from here on.
#[derive(Clone, Debug)]
struct Progress {
    /// The star that was come by. What follows it can start at every character.
    star: Option<usize>,
    /// The other positions, a bit for each byte of the pattern and one for its end. All lie behind what
    /// follows the star, and none is that of a star. A glob has at most [`LONGEST_GLOB`] bytes, so each has
    /// its bit.
    others: [u64; WORDS],
}

impl Progress {
    fn is_at(&self, at: usize) -> bool {
        self.others.get(at / 64).is_some_and(|word| word >> (at % 64) & 1 != 0)
    }

    /// Adds a position that the text led to.
    fn enter(&mut self, pattern: &Pattern<'_>, mut at: usize) -> Reached {
        if !pattern.star_at(at) {
            if let Some(word) = self.others.get_mut(at / 64) {
                *word |= 1 << (at % 64);
            }
            return Reached::Position;
        }
        while pattern.star_at(at + 1) {
            at += 1;
        }
        *self = Self { star: Some(at), others: [0; WORDS] };
        if at + 1 == pattern.text.len() { Reached::End } else { Reached::Position }
    }

    /// Follows a text from every position. `None` if it leads nowhere.
    fn follow(&mut self, pattern: &Pattern<'_>, text: &str) -> Option<Reached> {
        let words = pattern.text.len() / 64 + 1;
        let mut rest = text;
        loop {
            if self.others.iter().take(words).all(|&word| word == 0) {
                // Everything starts anew behind the star, so what cannot start there can be passed over.
                if let Some((Element::Char(first), _)) = pattern.element(self.star? + 1) {
                    rest = rest.get(rest.find(first).unwrap_or(rest.len())..)?;
                }
            }
            let mut chars = rest.chars();
            let Some(c) = chars.next() else { return Some(Reached::Position) };
            rest = chars.as_str();
            if self.step(pattern, words, c) == Reached::End {
                return Some(Reached::End);
            }
        }
    }

    /// Follows one character. What comes after a position that it has led to lies further on, and positions
    /// are taken in ascending order; so a star that is entered makes none of those pointless that are entered
    /// later.
    fn step(&mut self, pattern: &Pattern<'_>, words: usize, c: char) -> Reached {
        let mut next = Self { star: self.star, others: [0; WORDS] };
        let mut follow = |at: usize| match pattern.element(at) {
            Some((Element::Char(expected), after)) if expected == c => next.enter(pattern, after),
            Some((Element::Any, after)) => next.enter(pattern, after),
            Some((Element::Class(class), after)) if class.has(c) => next.enter(pattern, after),
            _ => Reached::Position,
        };
        if let Some(star) = self.star
            && follow(star + 1) == Reached::End
        {
            return Reached::End;
        }
        for (index, &word) in self.others.iter().enumerate().take(words) {
            let mut left = word;
            while left != 0 {
                let at = index * 64 + left.trailing_zeros() as usize;
                left &= left - 1;
                if follow(at) == Reached::End {
                    return Reached::End;
                }
            }
        }
        *self = next;
        Reached::Position
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::string::String;
    use std::vec::Vec;

    fn pattern(text: &str) -> Pattern<'_> {
        Pattern::parse(text).unwrap()
    }

    #[test]
    fn globs_match_what_they_say() {
        for (glob, yes, no) in [
            ("vfs_read", &["vfs_read"][..], &["vfs_rea", "vfs_reads", "", "xvfs_read"][..]),
            ("vfs_*", &["vfs_", "vfs_read", "vfs_*"], &["vfs", "xvfs_"]),
            ("*_read", &["vfs_read", "_read", "_read_read"], &["vfs_reads"]),
            ("*read*", &["read", "vfs_readv", "reread"], &["raed"]),
            ("sch*ule", &["schedule", "schule"], &["schedules", "sch"]),
            ("a*b*c", &["abc", "axbxc", "abcbc"], &["ac", "acb"]),
            ("sch?dule", &["schedule", "schödule"], &["schdule", "scheedule"]),
            ("?", &["x", "ö"], &["", "xx"]),
            ("**", &["", "x"], &[]),
            ("*?*", &["x", "xyz"], &[""]),
            ("[Ss]chedule", &["schedule", "Schedule"], &["chedule", "Sschedule"]),
            ("[!x]chedule", &["schedule", "!chedule"], &["xchedule"]),
            ("[^x]y", &["^y", "xy"], &["ay"]),
            ("vfs_[a-m]*", &["vfs_a", "vfs_mknod"], &["vfs_read", "vfs_"]),
            ("[a-]x", &["ax", "-x"], &["bx"]),
            ("[-a]x", &["ax", "-x"], &["bx"]),
            ("[]a]x", &["]x", "ax"], &["[x"]),
            ("[!]a]x", &["bx"], &["]x", "ax"]),
            ("[z-a]x", &[], &["ax", "zx", "mx"]),
            ("[a\\]x", &["ax", "\\x"], &["]x"]),
            ("[à-ü]x", &["öx"], &["ox"]),
            ("[a!]x", &["ax", "!x"], &["bx"]),
            ("[vfs_read", &["[vfs_read"], &["v", "vfs_read"]),
            ("[]", &["[]"], &["]", ""]),
            ("[!]", &["[!]"], &["a", "!"]),
            ("[[]", &["["], &["[["]),
            ("a]b", &["a]b"], &["ab"]),
            ("*[x", &["[x", "a[x"], &["x"]),
            ("vfs_\\read", &["vfs_read"], &["vfs_\\read"]),
            ("a\\*b", &["a*b"], &["axb", "a\\*b"]),
            ("*\\?", &["?", "a?"], &["ab"]),
            ("a\\\\", &["a\\"], &["a", "a\\\\"]),
            ("a\\", &["a\\"], &["a"]),
            ("*\\", &["a\\"], &["a"]),
            ("\\[a]", &["[a]"], &["a"]),
            ("*.isra.*", &["f.isra.0"], &["f.isra", "fxisra.0"]),
            ("", &[""], &["x"]),
        ] {
            for text in yes {
                assert!(pattern(glob).matches(text), "{glob} matches {text:?}");
            }
            for text in no {
                assert!(!pattern(glob).matches(text), "{glob} does not match {text:?}");
            }
        }
    }

    #[test]
    fn only_wildcards_ask_for_many() {
        for (text, exact) in [
            ("vfs_read", true),
            ("vfs_\\read", true),
            ("a\\*", true),
            ("[vfs_read", true),
            ("[]", true),
            ("^vfs", true),
            ("", true),
            ("*", false),
            ("?", false),
            ("[a]", false),
            ("a\\\\*", false),
        ] {
            assert_eq!(pattern(text).is_exact(), exact, "{text}");
        }
        assert!(Pattern::verbatim("<*mut T as a>::b").is_exact());
        assert!(Pattern::verbatim("[a]*").matches("[a]*"));
    }

    /// The plainest matcher there can be; it takes for ever on hostile patterns.
    fn model(pattern: &[char], text: &[char]) -> bool {
        let Some((&first, rest)) = pattern.split_first() else { return text.is_empty() };
        let one = |matches: bool, rest: &[char]| matches && model(rest, &text[1..]);
        match first {
            '*' => (0..=text.len()).any(|skipped| model(rest, &text[skipped..])),
            _ if text.is_empty() => false,
            '?' => one(true, rest),
            '\\' if !rest.is_empty() => one(rest[0] == text[0], &rest[1..]),
            '[' => {
                let negated = rest.first() == Some(&'!');
                let members = if negated { &rest[1..] } else { rest };
                let close = members.iter().skip(1).position(|&c| c == ']').map(|found| found + 1);
                let Some(close) = close else { return one(text[0] == '[', rest) };
                let (mut found, mut at) = (false, 0);
                while at < close {
                    let is_range = at + 2 < close && members[at + 1] == '-';
                    let high = if is_range { members[at + 2] } else { members[at] };
                    found |= (members[at]..=high).contains(&text[0]);
                    at += if is_range { 3 } else { 1 };
                }
                one(found != negated, &members[close + 1..])
            }
            other => one(other == text[0], rest),
        }
    }

    #[test]
    fn random_globs_match_as_the_model_does() {
        let mut seed = 0x2545_f491_4f6c_dd1d_u64;
        let mut random = |below: usize| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            (seed >> 20) as usize % below
        };
        let (mut matching, rounds) = (0, if cfg!(miri) { 300 } else { 200_000 });
        for _ in 0..rounds {
            let glob: String = (0..random(8))
                .map(|_| ['a', 'b', 'ö', '*', '?', '[', ']', '!', '-', '\\'][random(10)])
                .collect();
            let text: String = (0..random(6)).map(|_| ['a', 'b', 'ö', 'c', '[', '\\'][random(6)]).collect();
            let expected = model(&glob.chars().collect::<Vec<_>>(), &text.chars().collect::<Vec<_>>());
            assert_eq!(pattern(&glob).matches(&text), expected, "{glob:?} against {text:?}");
            let mut in_pieces = pattern(&glob).matcher();
            text.chars().for_each(|c| _ = in_pieces.feed(c.encode_utf8(&mut [0; 4])));
            assert_eq!(in_pieces.matched(), expected, "{glob:?} against {text:?}, character by character");
            matching += usize::from(expected);
        }
        assert!(matching > rounds / 50, "only {matching} matches: this tested little");
    }

    #[test]
    fn a_hostile_glob_is_not_expensive() {
        // Backtracking matchers need about 2^80 steps for these.
        let glob = "*a".repeat(LONGEST_GLOB / 2 - 1) + "*b";
        let text = "a".repeat(if cfg!(miri) { 300 } else { 100_000 });
        assert!(!pattern(&glob).matches(&text));
        assert!(pattern(&glob).matches(&(text + "b")));
    }

    #[test]
    fn a_settled_match_asks_for_no_more_text() {
        let mut matcher = pattern("vfs_*").matcher();
        assert!(matcher.feed("vfs"));
        assert!(!matcher.matched());
        assert!(!matcher.feed("_"));
        assert!(matcher.matched());
        assert!(!matcher.feed("read"));
        assert!(matcher.matched());
        let mut matcher = pattern("vfs").matcher();
        assert!(!matcher.feed("ext4"));
        assert!(!matcher.feed("vfs"));
        assert!(!matcher.matched());
    }

    #[test]
    fn length_is_limited_only_with_wildcards() {
        let long = "a".repeat(LONGEST_GLOB + 1);
        assert!(pattern(&long).matches(&long));
        assert!(pattern(&(String::from("\\") + &long)).matches(&long));
        let fits = String::from("*") + &long[2..];
        assert!(pattern(&fits).matches(&long));
        assert!(!pattern(&fits).matches(&long[3..]));
        let glob = String::from("*") + &long[1..];
        let error = Pattern::parse(&glob).unwrap_err();
        assert_eq!(error, PatternTooLong { len: LONGEST_GLOB + 1 });
        assert!(std::format!("{error}").contains("512 bytes"), "{error}");
        assert!(pattern(&"*".repeat(4096)).matches("x"), "many stars are one");
    }
}
