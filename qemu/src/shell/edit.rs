//! A line that is being typed: echo, backspace, ^C, ^U, ^D, and the lines before by the arrow keys.

use alloc::{collections::VecDeque, string::String, vec::Vec};

use crate::{
    console::{print, write_bytes},
    machine, sched,
};

/// The longest line, in bytes; what is typed beyond is not taken.
const MAX_LINE: usize = 1024;

/// Lines that are remembered.
const MAX_HISTORY: usize = 32;

/// What came of a line.
pub enum Typed {
    /// It was ended.
    Line(String),
    /// It was given up (^C).
    Interrupt,
    /// There will be no more (^D on an empty line).
    End,
}

/// See the module.
pub struct Editor {
    line: Vec<u8>,
    history: Vec<Vec<u8>>,
    /// A line ended with a carriage return: a line feed behind it belongs to it.
    after_return: bool,
    /// What was typed while a command ran.
    ahead: VecDeque<u8>,
}

/// ^C
const INTERRUPT: u8 = 0x03;

impl Editor {
    pub const fn new() -> Self {
        Self { line: Vec::new(), history: Vec::new(), after_return: false, ahead: VecDeque::new() }
    }

    /// Whether a command that runs is to end: ^C was typed. All else that was is for the next line.
    pub fn is_interrupted(&mut self) -> bool {
        while let Some(byte) = machine::console_read() {
            if byte == INTERRUPT {
                self.ahead.clear();
                print!("^C\n");
                return true;
            }
            // What does not fit a line would not be taken then either.
            if self.ahead.len() < MAX_LINE {
                self.ahead.push_back(byte);
            }
        }
        false
    }

    /// Waits for a byte.
    fn byte(&mut self) -> u8 {
        loop {
            if let Some(byte) = self.ahead.pop_front().or_else(machine::console_read) {
                return byte;
            }
            sched::sleep_ms(1);
        }
    }

    /// Reads a line; the prompt has been printed, and is printed again where the line is.
    pub fn line(&mut self, prompt: &str) -> Typed {
        self.line.clear();
        let mut shown = self.history.len();
        loop {
            let byte = self.byte();
            if core::mem::take(&mut self.after_return) && byte == b'\n' {
                continue;
            }
            match byte {
                b'\r' | b'\n' => {
                    self.after_return = byte == b'\r';
                    print!("\n");
                    self.remember();
                    return Typed::Line(String::from_utf8_lossy(&self.line).into_owned());
                }
                INTERRUPT => {
                    print!("^C\n");
                    return Typed::Interrupt;
                }
                0x04 if self.line.is_empty() => {
                    print!("\n");
                    return Typed::End;
                }
                0x08 | 0x7f => self.erase_character(),
                0x15 => self.replace(prompt, Vec::new()),
                0x1b => self.arrow(prompt, &mut shown),
                0x20.. if self.line.len() < MAX_LINE => {
                    self.line.push(byte);
                    write_bytes(&[byte]);
                }
                _ => {}
            }
        }
    }

    fn remember(&mut self) {
        if self.line.is_empty() || self.history.last() == Some(&self.line) {
            return;
        }
        if self.history.len() == MAX_HISTORY {
            self.history.remove(0);
        }
        self.history.push(self.line.clone());
    }

    /// Takes the last character away, which may have several bytes.
    fn erase_character(&mut self) {
        while let Some(byte) = self.line.pop() {
            if byte & 0xc0 != 0x80 {
                print!("\x08 \x08");
                return;
            }
        }
    }

    /// Shows another line instead.
    fn replace(&mut self, prompt: &str, line: Vec<u8>) {
        self.line = line;
        print!("\r\x1b[K{prompt}");
        write_bytes(&self.line);
    }

    /// The rest of a key of several bytes: up and down are known.
    fn arrow(&mut self, prompt: &str, shown: &mut usize) {
        if self.byte() != b'[' {
            return;
        }
        match self.byte() {
            b'A' => *shown = shown.saturating_sub(1),
            b'B' => *shown = (*shown + 1).min(self.history.len()),
            _ => return,
        }
        let line = self.history.get(*shown).cloned().unwrap_or_default();
        self.replace(prompt, line);
    }
}
