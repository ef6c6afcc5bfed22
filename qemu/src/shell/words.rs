//! A line as words, quoted as in sh: blanks part words, unless they are quoted; `'` quotes everything up to the next, `"` everything but
//! `\` and `"`, `\` one character; a `#` that begins a word begins a comment. `> FILE` and `>> FILE` say where the output goes, and a `&` at the
//! end that nobody waits for it.

use alloc::{string::String, vec::Vec};
use core::{fmt, iter::Peekable, str::Chars};

/// A command.
pub struct Command {
    /// Its name and what stands behind it.
    pub words: Vec<String>,
    /// Where its output goes, if not to the console.
    pub target: Option<Target>,
    /// Nobody waits for it.
    pub in_background: bool,
}

/// Where output goes.
pub struct Target {
    /// The file.
    pub path: String,
    /// What the file has stays.
    pub appends: bool,
}

/// What is wrong with a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseError {
    /// This quote has no other one.
    Open(char),
    /// Nothing stands behind `>`.
    NoTarget,
    /// A character that sh would do something with, and this shell does not.
    NotKnown(char),
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(quote) => write!(f, "a {quote} is missing"),
            Self::NoTarget => f.write_str("a file is missing behind >"),
            Self::NotKnown(char) => write!(f, "{char} does nothing here; quote it"),
        }
    }
}

/// Reads a line; `None` if there is nothing on it.
pub fn parse(line: &str) -> Result<Option<Command>, ParseError> {
    let mut chars = line.chars().peekable();
    let mut command = Command { words: Vec::new(), target: None, in_background: false };
    loop {
        while chars.next_if(|c| c.is_ascii_whitespace()).is_some() {}
        match chars.peek() {
            None | Some('#') => break,
            Some('>') => {
                chars.next();
                let appends = chars.next_if_eq(&'>').is_some();
                while chars.next_if(|c| c.is_ascii_whitespace()).is_some() {}
                let path = word(&mut chars)?;
                if path.is_empty() {
                    return Err(ParseError::NoTarget);
                }
                command.target = Some(Target { path, appends });
            }
            // What stands behind it would be another command.
            Some('&') if !command.in_background => {
                chars.next();
                command.in_background = true;
            }
            Some(_) if command.in_background => return Err(ParseError::NotKnown('&')),
            Some(c @ ('|' | '<' | ';' | '&' | '$' | '`')) => return Err(ParseError::NotKnown(*c)),
            Some(_) => command.words.push(word(&mut chars)?),
        }
    }
    Ok((!command.words.is_empty() || command.target.is_some()).then_some(command))
}

/// The next word; empty if none begins here, or only quotes.
fn word(chars: &mut Peekable<Chars<'_>>) -> Result<String, ParseError> {
    let mut word = String::new();
    while let Some(c) =
        chars.next_if(|c| !c.is_ascii_whitespace() && !matches!(c, '>' | '|' | '<' | ';' | '&'))
    {
        match c {
            '\'' => loop {
                match chars.next() {
                    Some('\'') => break,
                    Some(c) => word.push(c),
                    None => return Err(ParseError::Open('\'')),
                }
            },
            '"' => loop {
                match chars.next() {
                    Some('"') => break,
                    Some('\\') => match chars.next() {
                        Some(c @ ('"' | '\\' | '$' | '`')) => word.push(c),
                        Some(c) => word.extend(['\\', c]),
                        None => return Err(ParseError::Open('"')),
                    },
                    Some(c) => word.push(c),
                    None => return Err(ParseError::Open('"')),
                }
            },
            '\\' => word.extend(chars.next()),
            c => word.push(c),
        }
    }
    Ok(word)
}
