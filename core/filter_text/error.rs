//! What is wrong with a filter, and the line that shows where.

use core::fmt;

use crate::pattern::LONGEST_GLOB;

/// Why a word is no filter. Every variant has the column, in bytes from the start of the text, of what is
/// wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the columns are described above")]
pub enum ParseError {
    /// There is nothing, or no name where one must be.
    NoName { column: usize },
    /// `!` twice.
    DoubleNot { column: usize },
    /// One word was asked for and there is another.
    SecondWord { column: usize },
    /// An empty module before a name, or `mod` with nothing behind it.
    NoModule { column: usize },
    /// A module before the name and one behind it.
    TwoModules { column: usize },
    /// `@` with nothing behind it.
    NoFile { column: usize },
    /// Neither a number nor a star behind `#`.
    BadCopy { column: usize },
    /// An index of a function has a module, a file or a copy.
    QualifiedIndex { column: usize },
    /// Functions and copies are counted from 1.
    Zero { column: usize },
    /// A number that no list is long enough for.
    NumberTooLarge { column: usize },
    /// A colon with nothing behind it.
    NoCommand { column: usize },
    /// A command and a colon with nothing behind it.
    NoCount { column: usize },
    /// A count beyond 64 bits.
    CountTooLarge { column: usize },
    /// A pattern with wildcards that is too long.
    PatternTooLong {
        column: usize,
        /// Bytes it has.
        len: usize,
    },
}

impl ParseError {
    /// Where it is, in bytes from the start of the text.
    pub fn column(&self) -> usize {
        match *self {
            Self::NoName { column }
            | Self::DoubleNot { column }
            | Self::SecondWord { column }
            | Self::NoModule { column }
            | Self::TwoModules { column }
            | Self::NoFile { column }
            | Self::BadCopy { column }
            | Self::QualifiedIndex { column }
            | Self::Zero { column }
            | Self::NumberTooLarge { column }
            | Self::NoCommand { column }
            | Self::NoCount { column }
            | Self::CountTooLarge { column }
            | Self::PatternTooLong { column, .. } => column,
        }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NoName { .. } => f.write_str("a function's name is missing; `*` means all"),
            Self::DoubleNot { .. } => f.write_str("one `!` is enough"),
            Self::SecondWord { .. } => f.write_str("only one filter was expected"),
            Self::NoModule { .. } => f.write_str("a module's name is missing"),
            Self::TwoModules { .. } => f.write_str("there is a module already"),
            Self::NoFile { .. } => f.write_str("a file's name is missing"),
            Self::BadCopy { .. } => f.write_str("`#` wants the number of a copy, or `*` for all of them"),
            Self::QualifiedIndex { .. } => {
                f.write_str("a function that is given by its index needs nothing else")
            }
            Self::Zero { .. } => f.write_str("the first one is 1"),
            Self::NumberTooLarge { .. } => f.write_str("there are not so many functions"),
            Self::NoCommand { .. } => f.write_str("a command is missing"),
            Self::NoCount { .. } => f.write_str("a count is missing"),
            Self::CountTooLarge { .. } => f.write_str("nobody counts so far"),
            Self::PatternTooLong { len, .. } => {
                write!(f, "a pattern of {len} bytes; the longest with wildcards has {LONGEST_GLOB}")
            }
        }
    }
}

impl core::error::Error for ParseError {}

/// The line of a text that has a column, and below it a caret in that column. Every character takes one
/// place; those that a terminal would act on are shown as `?`, except tabs.
///
/// ```
/// assert_eq!(
///     fgraph::filter_text::Caret::new("vfs_read#x", 9).labelled("  Command: ").to_string(),
///     "  Command: vfs_read#x\n                    ^\n"
/// );
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Caret<'a> {
    text: &'a str,
    column: usize,
    label: &'a str,
}

impl<'a> Caret<'a> {
    /// Points at a byte of the text, or at its end.
    pub fn new(text: &'a str, column: usize) -> Self {
        Self { text, column: column.min(text.len()), label: "" }
    }

    /// Puts something before the text, and room for it before the caret.
    #[must_use]
    pub fn labelled(self, label: &'a str) -> Self {
        Self { label, ..self }
    }
}

impl fmt::Display for Caret<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;

        let line_starts = |(at, _): (usize, char)| at + 1;
        let from =
            self.text.char_indices().take_while(|(at, _)| *at < self.column).filter(|(_, c)| *c == '\n');
        let from = from.last().map_or(0, line_starts);
        let line = self.text.get(from..).and_then(|rest| rest.split('\n').next()).unwrap_or("");
        f.write_str(self.label)?;
        for c in line.chars() {
            f.write_char(if c.is_control() && c != '\t' { '?' } else { c })?;
        }
        f.write_char('\n')?;
        let before = line.char_indices().take_while(|(at, _)| from + at < self.column).map(|(_, c)| c);
        for c in self.label.chars().chain(before) {
            f.write_char(if c == '\t' { '\t' } else { ' ' })?;
        }
        f.write_str("^\n")
    }
}
