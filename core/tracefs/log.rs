//! `error_log`: what was refused last, in the layout that Linux uses, with a caret below what is wrong.

use core::fmt;

use super::tree::File;
use super::{Cause, Refused};
use crate::filter_text::Caret;

/// Refusals that are kept.
pub const LOGGED: usize = 8;

/// Bytes that are kept of the line that was refused.
const LINE: usize = 160;

#[derive(Clone, Copy, Debug)]
struct Entry {
    time_ns: u64,
    file: File,
    cause: Cause,
    line: [u8; LINE],
    len: usize,
    column: usize,
    /// Which line of a text that has several it is, and the column there, both from 1.
    place: Option<(usize, usize)>,
}

/// See the module. The oldest first.
#[derive(Debug)]
pub(super) struct Log {
    entries: [Option<Entry>; LOGGED],
}

impl Log {
    pub(super) const fn new() -> Self {
        Self { entries: [None; LOGGED] }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::new();
    }

    /// Notes a refusal; the oldest goes.
    pub(super) fn note(&mut self, time_ns: u64, file: File, text: &[u8], refused: Refused) {
        let (line, column) = line_of(text, refused.column);
        let mut entry = Entry {
            time_ns,
            file,
            cause: refused.cause,
            line: [0; LINE],
            len: 0,
            column: column.min(LINE),
            place: place_in(text, refused.column),
        };
        for (to, from) in entry.line.iter_mut().zip(line) {
            *to = *from;
            entry.len += 1;
        }
        self.entries.rotate_left(1);
        if let Some(last) = self.entries.last_mut() {
            *last = Some(entry);
        }
        // Those that are there stand at the end, so empty places are in front.
    }
}

/// The line and the column there of a place in a text of several lines, from 1.
fn place_in(text: &[u8], column: usize) -> Option<(usize, usize)> {
    let before = text.get(..column).unwrap_or(text);
    let start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    let has_several = text.trim_ascii().contains(&b'\n');
    has_several.then_some((line, before.len() - start + 1))
}

/// The line of a text that has a column, and the column in it. Of a long one a part around the column.
fn line_of(text: &[u8], column: usize) -> (&[u8], usize) {
    let column = column.min(text.len());
    let (before, behind) = text.split_at(column);
    let start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let end = behind.iter().position(|byte| *byte == b'\n').map_or(text.len(), |at| column + at);
    let (line, column) = (text.get(start..end).unwrap_or(&[]), column - start);
    if line.len() <= LINE {
        return (line, column);
    }
    let mut from = column.saturating_sub(LINE / 2).min(line.len() - LINE);
    // Not in the middle of a character.
    while from < column && line.get(from).is_some_and(|byte| byte & 0xc0 == 0x80) {
        from += 1;
    }
    let part = line.get(from..).unwrap_or(&[]);
    (part.get(..LINE).unwrap_or(part), column - from)
}

impl fmt::Display for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.entries.iter().flatten().try_for_each(|entry| entry.fmt(f))
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, micros) = (self.time_ns / 1_000_000_000, self.time_ns / 1000 % 1_000_000);
        write!(f, "[{seconds:>5}.{micros:06}] {}: error: ", self.file)?;
        match self.place {
            None => writeln!(f, "{}", self.cause)?,
            // Who wrote several lines wants to know what became of the others.
            Some((line, column)) => {
                let others = if self.cause.keeps_all() { "; nothing of the text took effect" } else { "" };
                writeln!(f, "line {line}, column {column}: {}{others}", self.cause)?;
            }
        }
        let line = self.line.get(..self.len).unwrap_or(&[]);
        // Bytes that are no text are shown up to there; what follows is cut.
        let shown = match core::str::from_utf8(line) {
            Ok(line) => line,
            Err(error) => {
                line.get(..error.valid_up_to()).and_then(|line| core::str::from_utf8(line).ok()).unwrap_or("")
            }
        };
        Caret::new(shown, self.column).labelled("  Command: ").fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tree::Top;
    use super::*;
    use std::string::ToString;

    const FILE: File = File::Top(Top::CurrentTracer);

    #[test]
    fn an_entry_points_at_the_column_as_linux_does() {
        let mut log = Log::new();
        log.note(63_448_578_999, FILE, b"bad name\n", Refused::at(4, Cause::SecondWord));
        let text = "[   63.448578] current_tracer: error: one word is enough\n  Command: bad name\n               ^\n";
        assert_eq!(log.to_string(), text);
        log.note(123_456_000_000_000, FILE, b"a\nbb \xff\n", Refused::at(5, Cause::NotText));
        let more = "[123456.000000] current_tracer: error: line 2, column 4: this is no text; nothing of the text took \
             effect\n  Command: bb \n              ^\n";
        assert_eq!(log.to_string(), std::format!("{text}{more}"));
        log.clear();
        assert_eq!(log.to_string(), "");
    }

    #[test]
    fn the_last_ones_are_kept() {
        let mut log = Log::new();
        for n in 0..20_u8 {
            log.note(u64::from(n) * 1_000_000_000, FILE, &[b'a' + n], Refused::at(0, Cause::NoSuchTracer));
        }
        let text = log.to_string();
        assert_eq!(text.matches("error:").count(), LOGGED);
        assert!(text.starts_with("[   12.000000]") && text.contains("Command: t\n"), "{text}");
    }

    #[test]
    fn of_a_long_line_the_part_around_the_column_is_kept() {
        let long = "é".repeat(500) + "x" + &"ü".repeat(500);
        for (column, at) in [(0, 0), (1000, 1000), (2001, 2001), (5000, 2001)] {
            let (line, column) = line_of(long.as_bytes(), column);
            assert!(line.len() <= LINE && column <= line.len());
            assert_eq!(line.get(column), long.as_bytes().get(at));
            let mut log = Log::new();
            log.note(0, FILE, long.as_bytes(), Refused::at(at, Cause::NotNumber));
            let text = log.to_string();
            let mut lines = text.lines().skip(1);
            let (command, caret) = (lines.next().expect("command"), lines.next().expect("caret"));
            let pointed = command.chars().nth(caret.chars().count() - 1);
            assert_eq!(pointed, long.get(at..).and_then(|rest| rest.chars().next()), "{text}");
        }
    }
}
