//! The words of the filter files: what one of them says, before any function is looked up.
//!
//! ```text
//! word      = ["!"] ( INDEX | name ) [":mod:" ["!"] MODULE] [":" COMMAND [":" ARGUMENT]... [":" COUNT]]
//! name      = [MODULE ":"] NAME ["@" FILE] ["#" ( COPY | "*" )]
//! ```
//!
//! `NAME`, `MODULE` and `FILE` are patterns (see [`Pattern`]); [`names`](crate::names) says what a name means
//! and [`select`](crate::select) which functions are taken. `INDEX` and `COPY` count from 1. `!` takes away
//! instead of adding; before a module pattern it means all functions that are not in such a module, those of
//! the kernel itself included. An empty module pattern is any module.
//!
//! * Blanks separate words, and a single colon separates parts; `::` belongs to a path. Inside `<…>` and
//!   `{…}` that close on the same line neither does, so that `<r::S as r::Tr>::go` is one word. A backslash
//!   takes any meaning from the character behind it.
//! * `MODULE:NAME` and `NAME:COMMAND` look alike: a part is a command if it is one of [`COMMANDS`], or if a
//!   count follows it and nothing else. So a function that is called like a command is named by
//!   `NAME:mod:MODULE`. Whether a command exists is for those to say who carry it out; they have its column.
//! * There are no regular expressions and no comments. `^(?!x).*` is a glob, and no function matches it.
//!
//! Invariant: whatever the text is, it is read in one pass without memory, and a word that is not understood
//! is an error with a column, never a filter. Users: the filter files, boot parameters, whatever takes a
//! function's name from people.

use core::fmt;
use core::num::NonZeroUsize;

use crate::pattern::Pattern;

mod cut;
mod error;
#[cfg(test)]
pub(crate) mod tests;

pub use cut::Words;
pub use error::{Caret, ParseError};

/// What may follow a name and a colon, by the names that ftrace gives them. `mod` is not among them: it
/// narrows the name, and a command may come behind it.
pub const COMMANDS: [&str; 8] =
    ["traceon", "traceoff", "stacktrace", "snapshot", "dump", "cpudump", "enable_event", "disable_event"];

/// How filter files show that a command has no count, and what they put before one that it has. Both are
/// understood, so that what was read can be written back.
const UNLIMITED: &str = "unlimited";
const COUNT: &str = "count=";

/// One word of a filter. Shown, it is the word as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterLine<'a> {
    text: &'a str,
    /// Where the word starts in the text that it was read from, in bytes. All columns count from there.
    pub column: usize,
    /// Whether the functions, or the command, are to be taken away.
    pub remove: bool,
    /// Which functions.
    pub target: Target<'a>,
    /// What is to happen at them, if they are not just to be traced.
    pub command: Option<Command<'a>>,
}

/// Which functions a word speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// One line of the list of functions.
    Index {
        /// Which line; the first is 1.
        number: NonZeroUsize,
        /// Where that stands.
        column: usize,
    },
    /// Functions by name.
    Name(NameTarget<'a>),
}

/// Functions by name, and what tells those of one name apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameTarget<'a> {
    /// The name.
    pub name: Part<'a>,
    /// In which modules.
    pub module: ModuleScope<'a>,
    /// In which source files.
    pub file: Option<Part<'a>>,
    /// How many functions may have the name.
    pub copies: Copies,
}

/// A pattern in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    /// The pattern.
    pub pattern: Pattern<'a>,
    /// Where it starts.
    pub column: usize,
}

/// Which modules are looked into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModuleScope<'a> {
    /// Everywhere: no module was written.
    Everywhere,
    /// `module:name`: modules that are there now.
    Loaded(Part<'a>),
    /// `name:mod:module`: to be remembered if there is no such module yet.
    WhenLoaded {
        /// The modules.
        module: Part<'a>,
        /// All but these.
        inverted: bool,
    },
}

/// What is taken if several functions match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    /// Nothing was written: all that match a pattern, but a name without wildcards must be unique.
    Unstated,
    /// `#*`: all of them.
    All,
    /// `#n`: this one of them.
    Number {
        /// Which, in the order of the list of functions; the first is 1.
        number: NonZeroUsize,
        /// Where that stands.
        column: usize,
    },
}

/// What is to happen at functions. Shown, it is what filter files show: `traceoff:count=3`,
/// `snapshot:unlimited`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command<'a> {
    /// What to do; not looked up yet.
    pub name: &'a str,
    /// Where it stands.
    pub column: usize,
    /// What stands between the name and the count: the `sys:event` of `enable_event:sys:event:3`.
    pub arguments: &'a str,
    /// How often; no limit if that was not written.
    pub count: Option<u64>,
}

impl<'a> FilterLine<'a> {
    /// Reads a text that is one word. Blanks around it do not matter.
    pub fn parse(text: &'a str) -> Result<Self, ParseError> {
        let mut words = words(text);
        let line = words.next().unwrap_or(Err(ParseError::NoName { column: text.len() }))?;
        match words.next() {
            None => Ok(line),
            Some(Ok(next)) => Err(ParseError::SecondWord { column: next.column }),
            Some(Err(error)) => Err(error),
        }
    }

    /// The word as it was written.
    pub fn text(&self) -> &'a str {
        self.text
    }

    fn parse_word(word: Span<'a>) -> Result<Self, ParseError> {
        let (remove, body) = match word.strip_prefix('!') {
            Some(body) if body.text.starts_with('!') => {
                return Err(ParseError::DoubleNot { column: body.column });
            }
            Some(body) => (true, body),
            None => (false, word),
        };
        let parts = Parts::of(body);
        if parts.name.text.is_empty() {
            return Err(ParseError::NoName { column: parts.name.column });
        }
        let (scope, command) = match parts.tail {
            Some(tail) => parse_tail(tail)?,
            None => (None, None),
        };
        let module = match (parts.module, scope) {
            (Some(_), Some(second)) => return Err(ParseError::TwoModules { column: second.column() }),
            (Some(module), None) if module.text.is_empty() => {
                return Err(ParseError::NoModule { column: module.column });
            }
            (Some(module), None) => ModuleScope::Loaded(module.pattern()?),
            (None, scope) => scope.unwrap_or(ModuleScope::Everywhere),
        };
        let target = parse_target(parts.name, module)?;
        Ok(Self { text: word.text, column: word.column, remove, target, command })
    }
}

impl fmt::Display for FilterLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text)
    }
}

impl fmt::Display for Command<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        if !self.arguments.is_empty() {
            write!(f, ":{}", self.arguments)?;
        }
        match self.count {
            Some(count) => write!(f, ":{COUNT}{count}"),
            None => write!(f, ":{UNLIMITED}"),
        }
    }
}

impl ModuleScope<'_> {
    fn column(&self) -> usize {
        match self {
            Self::Everywhere => 0,
            Self::Loaded(module) | Self::WhenLoaded { module, .. } => module.column,
        }
    }
}

/// The words of a text, each read.
///
/// A word that cannot be read is an error, and the ones behind it still come: who wants all or nothing reads
/// them all before doing anything.
pub fn words(text: &str) -> Words<'_> {
    Words::new(text)
}

/// Text and where it stands.
#[derive(Clone, Copy)]
struct Span<'a> {
    text: &'a str,
    column: usize,
}

impl<'a> Span<'a> {
    fn strip_prefix(self, prefix: char) -> Option<Self> {
        let text = self.text.strip_prefix(prefix)?;
        Some(Self { text, column: self.column + prefix.len_utf8() })
    }

    /// What stands before a byte at `at`, which is an ASCII character, and what behind it.
    fn around(self, at: usize) -> (Self, Self) {
        let before = self.text.get(..at).unwrap_or("");
        let behind = self.text.get(at + 1..).unwrap_or("");
        (Self { text: before, ..self }, Self { text: behind, column: self.column + at + 1 })
    }

    fn split_at_colon(self) -> (Self, Option<Self>) {
        match cut::first_colon(self.text) {
            Some(at) => {
                let (before, behind) = self.around(at);
                (before, Some(behind))
            }
            None => (self, None),
        }
    }

    fn pattern(self) -> Result<Part<'a>, ParseError> {
        match Pattern::parse(self.text) {
            Ok(pattern) => Ok(Part { pattern, column: self.column }),
            Err(error) => Err(ParseError::PatternTooLong { column: self.column, len: error.len }),
        }
    }

    /// A number, or a count as filter files show it.
    fn is_count(self) -> bool {
        self.text == UNLIMITED
            || Self { text: self.text.strip_prefix(COUNT).unwrap_or(self.text), ..self }.is_decimal()
    }

    fn is_decimal(self) -> bool {
        !self.text.is_empty() && self.text.bytes().all(|byte| byte.is_ascii_digit())
    }
}

/// The parts of a word between colons.
struct Parts<'a> {
    module: Option<Span<'a>>,
    name: Span<'a>,
    /// From `mod` or the command on.
    tail: Option<Span<'a>>,
}

impl<'a> Parts<'a> {
    fn of(body: Span<'a>) -> Self {
        let starts_tail = |part: Span<'_>| part.text == "mod" || COMMANDS.contains(&part.text);
        let (first, behind_first) = body.split_at_colon();
        let Some(behind_first) = behind_first else { return Self { module: None, name: first, tail: None } };
        let (second, behind_second) = behind_first.split_at_colon();
        let is_counted = behind_second.is_some_and(Span::is_count);
        if starts_tail(second) || is_counted || second.text.is_empty() && behind_second.is_none() {
            return Self { module: None, name: first, tail: Some(behind_first) };
        }
        Self { module: Some(first), name: second, tail: behind_second }
    }
}

type Tail<'a> = (Option<ModuleScope<'a>>, Option<Command<'a>>);

/// Reads what follows the name and a colon.
fn parse_tail(tail: Span<'_>) -> Result<Tail<'_>, ParseError> {
    let (first, behind) = tail.split_at_colon();
    if first.text != "mod" {
        return Ok((None, Some(parse_command(tail)?)));
    }
    let Some(behind) = behind else {
        return Err(ParseError::NoModule { column: tail.column + tail.text.len() });
    };
    let (module, command) = behind.split_at_colon();
    let (inverted, module) = match module.strip_prefix('!') {
        Some(module) if module.text.starts_with('!') => {
            return Err(ParseError::DoubleNot { column: module.column });
        }
        Some(module) => (true, module),
        None => (false, module),
    };
    let scope = ModuleScope::WhenLoaded { module: module.pattern()?, inverted };
    match command {
        Some(second) if second.split_at_colon().0.text == "mod" => {
            Err(ParseError::TwoModules { column: second.column })
        }
        Some(command) => Ok((Some(scope), Some(parse_command(command)?))),
        None => Ok((Some(scope), None)),
    }
}

fn parse_command(text: Span<'_>) -> Result<Command<'_>, ParseError> {
    let (name, behind) = text.split_at_colon();
    if name.text.is_empty() {
        return Err(ParseError::NoCommand { column: name.column });
    }
    let mut command = Command { name: name.text, column: name.column, arguments: "", count: None };
    let Some(arguments) = behind else { return Ok(command) };
    command.arguments = arguments.text;
    let (before, last) = match arguments.text.rfind(':') {
        Some(at) => arguments.around(at),
        None => (Span { text: "", ..arguments }, arguments),
    };
    let number = match last.text.strip_prefix(COUNT) {
        Some(number) => Span { text: number, column: last.column + COUNT.len() },
        None => last,
    };
    if number.text.is_empty() {
        return Err(ParseError::NoCount { column: number.column });
    }
    if number.is_decimal() {
        let count = number.text.parse();
        command.count = Some(count.map_err(|_| ParseError::CountTooLarge { column: number.column })?);
        command.arguments = before.text;
    } else if last.text == UNLIMITED {
        command.arguments = before.text;
    }
    Ok(command)
}

/// Reads `INDEX` or `NAME[@FILE][#COPY]`.
fn parse_target<'a>(text: Span<'a>, module: ModuleScope<'a>) -> Result<Target<'a>, ParseError> {
    let (named, copies) = match cut::first_of(text.text, b'#') {
        Some(at) => {
            let (named, copies) = text.around(at);
            (named, parse_copies(copies)?)
        }
        None => (text, Copies::Unstated),
    };
    let (name, file) = match cut::first_of(named.text, b'@') {
        Some(at) => {
            let (name, file) = named.around(at);
            if file.text.is_empty() {
                return Err(ParseError::NoFile { column: file.column });
            }
            (name, Some(file.pattern()?))
        }
        None => (named, None),
    };
    if name.text.is_empty() {
        return Err(ParseError::NoName { column: name.column });
    }
    if name.is_decimal() {
        if file.is_some() || copies != Copies::Unstated || module != ModuleScope::Everywhere {
            return Err(ParseError::QualifiedIndex { column: name.column });
        }
        return Ok(Target::Index { number: number(name)?, column: name.column });
    }
    Ok(Target::Name(NameTarget { name: name.pattern()?, module, file, copies }))
}

fn parse_copies(text: Span<'_>) -> Result<Copies, ParseError> {
    match text.text {
        "*" => Ok(Copies::All),
        _ if text.is_decimal() => Ok(Copies::Number { number: number(text)?, column: text.column }),
        _ => Err(ParseError::BadCopy { column: text.column }),
    }
}

fn number(text: Span<'_>) -> Result<NonZeroUsize, ParseError> {
    let value = text.text.parse().map_err(|_| ParseError::NumberTooLarge { column: text.column })?;
    NonZeroUsize::new(value).ok_or(ParseError::Zero { column: text.column })
}
