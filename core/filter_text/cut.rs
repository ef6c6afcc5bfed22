//! Where the words of a filter end, and where their parts do.
//!
//! Invariant: each byte is looked at a bounded number of times. A bracket that does not close on its line
//! protects nothing, and nor does any behind it on that line, so that no bracket is searched for twice.

use core::ops::Range;

use super::{FilterLine, ParseError, Span};

/// Iterator over the words of a text, made by [`words`](super::words).
#[derive(Clone, Debug)]
pub struct Words<'a> {
    text: &'a str,
    /// How far the text has been read; always at a character's start.
    at: usize,
    brackets: Brackets,
}

impl<'a> Words<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0, brackets: Brackets::Protect }
    }

    /// The next word, and where it stands.
    pub(crate) fn next_at(&mut self) -> Option<(Range<usize>, Result<FilterLine<'a>, ParseError>)> {
        let word = self.next_span()?;
        Some((word.column..word.column + word.text.len(), FilterLine::parse_word(word)))
    }

    /// Leaves out what stands before `at`, which is where a character starts, behind what has been read and on the same line.
    pub(crate) fn skip_to(&mut self, at: usize) {
        self.at = at;
    }

    fn next_span(&mut self) -> Option<Span<'a>> {
        let bytes = self.text.as_bytes();
        while let Some(&byte) = bytes.get(self.at).filter(|byte| is_blank(**byte)) {
            self.at += 1;
            if byte == b'\n' {
                self.brackets = Brackets::Protect;
            }
        }
        let from = self.at;
        while bytes.get(self.at).is_some_and(|byte| !is_blank(*byte)) {
            self.at = self.brackets.after(self.text, self.at);
        }
        // Both ends are at the text's ends or next to a blank, so they cut no character.
        self.text.get(from..self.at).filter(|word| !word.is_empty()).map(|text| Span { text, column: from })
    }
}

impl<'a> Iterator for Words<'a> {
    type Item = Result<FilterLine<'a>, ParseError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_span().map(FilterLine::parse_word)
    }
}

/// Blanks are ASCII only, as everything that has a meaning here.
fn is_blank(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0x0b
}

/// Whether brackets still keep what is in them together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Brackets {
    Protect,
    /// One did not close.
    Ignore,
}

impl Brackets {
    /// Where the next thing starts that can have a meaning, behind the character or the group at `at`.
    fn after(&mut self, text: &str, at: usize) -> usize {
        let bytes = text.as_bytes();
        match bytes.get(at) {
            Some(b'\\') => {
                let escaped = text.get(at + 1..).and_then(|rest| rest.chars().next());
                at + 1 + escaped.filter(|c| *c != '\n').map_or(0, char::len_utf8)
            }
            Some(b'<' | b'{') if *self == Self::Protect => match end_of_group(bytes, at) {
                Some(end) => end,
                None => {
                    *self = Self::Ignore;
                    at + 1
                }
            },
            _ => at + 1,
        }
    }
}

/// Where a group ends that is opened at `at`. Groups nest; the arrow of `fn() -> T` closes none, `.>` in the
/// old mangling.
fn end_of_group(bytes: &[u8], at: usize) -> Option<usize> {
    let mut depth = 0_usize;
    let mut previous = 0;
    for (index, &byte) in bytes.iter().enumerate().skip(at) {
        match byte {
            b'<' | b'{' => depth += 1,
            b'>' if matches!(previous, b'-' | b'.') => {}
            b'>' | b'}' => depth -= 1,
            b'\n' => return None,
            _ => {}
        }
        if depth == 0 {
            return Some(index + 1);
        }
        previous = byte;
    }
    None
}

/// The places in a word that are neither in a group nor behind a backslash, and the bytes there.
fn open_bytes(text: &str) -> impl Iterator<Item = (usize, u8)> {
    let mut brackets = Brackets::Protect;
    let mut at = 0;
    core::iter::from_fn(move || {
        let here = at;
        let byte = *text.as_bytes().get(here)?;
        at = brackets.after(text, here);
        // What was skipped has no meaning, and neither has the backslash or the bracket that says so.
        Some((here, if at == here + 1 { byte } else { 0 }))
    })
}

/// The first `wanted`, an ASCII character, that has its meaning.
pub(super) fn first_of(text: &str, wanted: u8) -> Option<usize> {
    open_bytes(text).find(|&(_, byte)| byte == wanted).map(|(at, _)| at)
}

/// The first colon that stands alone. Two or more belong to a path.
pub(super) fn first_colon(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut previous = 0;
    open_bytes(text)
        .find(|&(at, byte)| {
            let alone = byte == b':' && previous != b':' && bytes.get(at + 1) != Some(&b':');
            previous = byte;
            alone
        })
        .map(|(at, _)| at)
}
