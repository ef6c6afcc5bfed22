//! The kernel command line: words separated by blanks, of which at most one says what to run.
//!
//! | word | what is run |
//! | --- | --- |
//! | `demo` | the demo, as without any word |
//! | `shell` | a shell on the serial line, with the tracer's files |
//! | `test` | all boot tests |
//! | `case=NAME` | the boot tests of that name |
//! | `long` | nothing of its own: boot tests take many more samples where they take any |
//! | `guarded` | nothing of its own: boot tests of what guards control flow fail where it is not enforced, and are not skipped |
//! | `bench` | measurements of what a traced call costs |
//! | `selfcheck` | the check of this kernel itself, without the tracer |
//! | `crash=KIND` | one deliberate disaster, see [`Crash`] |
//! | `trace=PATH` | nothing of its own: the demo writes what it recorded to this file of the host |
//! | `classic` | no command: the tracer replaces return addresses although it could do without |

use core::{fmt, str, sync::atomic::Ordering};

use crate::{cases, crash::Crash};

/// What to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// The demo.
    Demo,
    /// The shell.
    Shell,
    /// All boot tests.
    Test,
    /// The boot tests of this name.
    Case(&'a str),
    /// What a traced call costs.
    Bench,
    /// The kernel's check of itself.
    SelfCheck,
    /// A deliberate disaster.
    Crash(Crash),
}

/// What is wrong with a command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error<'a> {
    /// It is not UTF-8.
    NotText,
    /// Nothing here is called that.
    UnknownWord(&'a str),
    /// A second word says what to run.
    SecondCommand(&'a str),
}

impl fmt::Display for Error<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotText => f.write_str("not UTF-8"),
            Self::UnknownWord(word) => write!(f, "unknown word `{word}`"),
            Self::SecondCommand(word) => write!(f, "`{word}` comes after another command"),
        }
    }
}

/// Asks for the classic way of hooking.
pub const CLASSIC: &str = "classic";

/// The file of the host that a trace goes to.
pub fn trace(line: &[u8]) -> Option<&str> {
    str::from_utf8(line).ok()?.split_ascii_whitespace().find_map(|word| word.strip_prefix("trace="))
}

/// Whether a word that is no command is on the line.
pub fn has(line: &[u8], wanted: &str) -> bool {
    str::from_utf8(line).is_ok_and(|line| line.split_ascii_whitespace().any(|word| word == wanted))
}

/// Finds out what to run.
pub fn parse(line: &[u8]) -> Result<Command<'_>, Error<'_>> {
    let line = str::from_utf8(line).map_err(|_| Error::NotText)?;
    let mut command = None;
    for word in line.split_ascii_whitespace().filter(|word| *word != CLASSIC && !word.starts_with("trace=")) {
        if word == "long" {
            cases::LONG.store(true, Ordering::Relaxed);
            continue;
        }
        if word == "guarded" {
            cases::guard::EXPECTED.store(true, Ordering::Relaxed);
            continue;
        }
        if command.is_some() {
            return Err(Error::SecondCommand(word));
        }
        command = Some(parse_word(word)?);
    }
    Ok(command.unwrap_or(Command::Demo))
}

fn parse_word(word: &str) -> Result<Command<'_>, Error<'_>> {
    Ok(match (word, word.split_once('=')) {
        ("demo", _) => Command::Demo,
        ("shell", _) => Command::Shell,
        ("test", _) => Command::Test,
        ("bench", _) => Command::Bench,
        ("selfcheck", _) => Command::SelfCheck,
        (_, Some(("case", name))) if !name.is_empty() => Command::Case(name),
        (_, Some(("crash", kind))) => Command::Crash(Crash::by_name(kind).ok_or(Error::UnknownWord(word))?),
        _ => return Err(Error::UnknownWord(word)),
    })
}
