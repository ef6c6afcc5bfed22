//! The pieces that lines of the function_graph layout are made of: columns, marks, arrows and calls.
//!
//! Invariant: only the pieces here end a line. All text from outside, the names of functions and tasks, values and
//! comments, comes through [`foreign`] or [`harmless`], which let no character pass that could.
//!
//! Called by [`Printer`](super::Printer), which decides what is shown and in which order.

use core::fmt::{self, Write};

use super::function::{LineOptions, Symbol, symbol};
use super::{Event, Options, Resolve, Retval, RetvalForm, Task};

/// Depths that are told apart by indentation. An event may claim any depth; its line stays finite.
const MAX_INDENT: u32 = 512;

/// Columns of a task, with the spaces around it.
const TASK_WIDTH: usize = 14;

/// Characters of a task's name that are shown.
const COMM_SHOWN: usize = 7;

/// Characters of a duration's number, the point included, that the column has room for.
const DURATION_WIDTH: usize = 8;

/// A duration gets the first mark whose limit, in nanoseconds, it is longer than.
const MARKS: [(u64, char); 6] = [
    (1_000_000_000, '$'),
    (100_000_000, '@'),
    (10_000_000, '*'),
    (1_000_000, '#'),
    (100_000, '!'),
    (10_000, '+'),
];

/// If the line that opened a call is to be seen above.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Opening {
    Shown,
    NotShown,
}

/// The pieces of lines, and where they go.
pub(super) struct Page<'a> {
    pub(super) options: Options,
    pub(super) cpu_width: usize,
    pub(super) resolve: &'a dyn Resolve,
    pub(super) out: &'a mut dyn Write,
}

impl Page<'_> {
    /// Writes what others say, made harmless.
    fn foreign(&mut self, text: impl Fn(&mut fmt::Formatter<'_>) -> fmt::Result) -> fmt::Result {
        foreign(self.out, text)
    }

    fn name(&mut self, func: usize) -> fmt::Result {
        let resolve = self.resolve;
        self.foreign(|f| resolve.name(func, f))
    }

    /// `name(args)`
    fn call(&mut self, func: usize, args: &[usize]) -> fmt::Result {
        let resolve = self.resolve;
        self.name(func)?;
        self.out.write_char('(')?;
        if self.options.contains(Options::ARGS) && !args.is_empty() {
            let typed = self.options.contains(Options::TYPED);
            self.foreign(|f| {
                if typed {
                    resolve.write_typed_args(func, args, f)
                } else {
                    resolve.write_args(func, args, f)
                }
            })?;
        }
        self.out.write_char(')')
    }

    fn indent(&mut self, levels: u32) -> fmt::Result {
        (0..levels.min(MAX_INDENT)).try_for_each(|_| self.out.write_str("  "))
    }

    pub(super) fn lost(&mut self, cpu: u32, count: u64) -> fmt::Result {
        match count {
            0 => writeln!(self.out, "CPU:{cpu} [LOST EVENTS]"),
            _ => writeln!(self.out, "CPU:{cpu} [LOST {count} EVENTS]"),
        }
    }

    fn cpu(&mut self, cpu: u32) -> fmt::Result {
        write!(self.out, " {cpu:>width$}) ", width = self.cpu_width)
    }

    /// `comm-pid` in the middle of its column; an odd space goes after it.
    fn task(&mut self, task: &Task) -> fmt::Result {
        let bytes = task.comm.split(|byte| *byte == 0).next().unwrap_or_default();
        let name = match (bytes, task.pid) {
            ([], 0) => b"<idle>",
            ([], _) => "<...>".as_bytes(),
            _ => bytes,
        };
        let name = lossy(name).map(harmless).take(COMM_SHOWN);
        let width = name.clone().count() + 1 + decimal_digits(u64::from(task.pid));
        let spaces = TASK_WIDTH.saturating_sub(width);
        write!(self.out, "{:before$}", "", before = spaces / 2)?;
        for c in name {
            self.out.write_char(c)?;
        }
        write!(self.out, "-{}{:after$}", task.pid, "", after = spaces - spaces / 2)
    }

    pub(super) fn task_switch(&mut self, before: Option<Task>, event: &Event<'_>) -> fmt::Result {
        const RULE: &str = " ------------------------------------------\n";
        let Some(before) = before.filter(|before| before.pid != event.task.pid) else { return Ok(()) };
        self.out.write_str(RULE)?;
        self.cpu(event.cpu)?;
        self.task(&before)?;
        self.out.write_str(" => ")?;
        self.task(&event.task)?;
        write!(self.out, "\n{RULE}\n")
    }

    fn shows_column(&self, column: Options) -> bool {
        self.options.contains(column) && !self.options.contains(Options::BARE)
    }

    /// The columns before the duration.
    pub(super) fn columns(&mut self, event: &Event<'_>) -> fmt::Result {
        if self.shows_column(Options::ABSTIME) {
            let us = event.time_ns / 1000;
            write!(self.out, "{:5}.{:06} |  ", us / 1_000_000, us % 1_000_000)?;
        }
        if self.shows_column(Options::CPU) {
            self.cpu(event.cpu)?;
        }
        if self.shows_column(Options::PROC) {
            self.task(&event.task)?;
            self.out.write_str(" | ")?;
        }
        Ok(())
    }

    pub(super) fn no_duration(&mut self) -> fmt::Result {
        let shown = self.shows_column(Options::DURATION);
        self.out.write_str(if shown { "              |  " } else { "" })
    }

    pub(super) fn duration(&mut self, ns: u64) -> fmt::Result {
        if !self.shows_column(Options::DURATION) {
            return Ok(());
        }
        let mark = MARKS.iter().find(|(limit, _)| ns > *limit).map_or(' ', |(_, mark)| *mark);
        let mark = if self.options.contains(Options::OVERHEAD) { mark } else { ' ' };
        write!(self.out, "{mark} ")?;
        write_time(self.out, ns)?;
        self.out.write_str("|  ")
    }

    /// A line of its own where an interrupt begins or ends.
    pub(super) fn irq_arrow(&mut self, event: &Event<'_>, func: usize, arrow: &str) -> fmt::Result {
        if !self.resolve.is_irq_entry(func) {
            return Ok(());
        }
        self.columns(event)?;
        if self.shows_column(Options::DURATION) {
            writeln!(self.out, "  {arrow} |")
        } else {
            writeln!(self.out, "{arrow}")
        }
    }

    pub(super) fn opening(
        &mut self,
        func: usize,
        depth: u32,
        ret_addr: Option<usize>,
        args: &[usize],
    ) -> fmt::Result {
        self.indent(depth)?;
        self.call(func, args)?;
        self.out.write_str(" {")?;
        if let Some(addr) = ret_addr.filter(|_| self.options.contains(Options::RETADDR)) {
            self.out.write_str(" /*")?;
            self.caller(addr)?;
            self.out.write_str(" */")?;
        }
        self.out.write_char('\n')
    }

    pub(super) fn leaf(
        &mut self,
        func: usize,
        depth: u32,
        ret_addr: Option<usize>,
        args: &[usize],
        retval: Option<Retval<'_>>,
    ) -> fmt::Result {
        self.indent(depth)?;
        self.call(func, args)?;
        self.out.write_char(';')?;
        let ret_addr = ret_addr.filter(|_| self.options.contains(Options::RETADDR));
        let retval = retval.filter(|retval| self.shows_retval(func, *retval));
        if ret_addr.is_some() || retval.is_some() {
            self.out.write_str(" /*")?;
            if let Some(addr) = ret_addr {
                self.caller(addr)?;
            }
            if let Some(retval) = retval {
                self.retval(func, retval)?;
            }
            self.out.write_str(" */")?;
        }
        self.out.write_char('\n')
    }

    pub(super) fn closing(
        &mut self,
        func: usize,
        depth: u32,
        retval: Option<Retval<'_>>,
        opening: Opening,
    ) -> fmt::Result {
        self.indent(depth)?;
        self.out.write_char('}')?;
        let retval = retval.filter(|retval| self.shows_retval(func, *retval));
        if opening == Opening::NotShown || retval.is_some() || self.options.contains(Options::TAIL) {
            self.out.write_str(" /* ")?;
            self.name(func)?;
            if let Some(retval) = retval {
                self.retval(func, retval)?;
            }
            self.out.write_str(" */")?;
        }
        self.out.write_char('\n')
    }

    pub(super) fn overrun(&mut self, overrun: u32) -> fmt::Result {
        if self.options.contains(Options::OVERRUN) {
            writeln!(self.out, " (Overruns: {overrun})")?;
        }
        Ok(())
    }

    /// Inside the outermost call, and outside of all calls, a comment is not indented.
    pub(super) fn comment(&mut self, depth: Option<u32>, event: u32, data: &[u8]) -> fmt::Result {
        let resolve = self.resolve;
        self.indent(depth.filter(|depth| *depth > 0).map_or(0, |depth| depth.saturating_add(1)))?;
        self.out.write_str("/* ")?;
        self.foreign(|f| resolve.write_comment(event, data, f))?;
        self.out.write_str(" */\n")
    }

    /// A stack is a comment of several lines, of which only the first is indented.
    pub(super) fn stack(&mut self, depth: Option<u32>, addrs: &[usize], cut: bool) -> fmt::Result {
        self.indent(depth.filter(|depth| *depth > 0).map_or(0, |depth| depth.saturating_add(1)))?;
        self.out.write_str("/* ")?;
        callers(self.out, addrs, cut, LineOptions::default(), self.resolve)?;
        self.out.write_str(" */\n")
    }

    /// A hit between calls is shown like a comment: it has no return to wait for.
    pub(super) fn hit(&mut self, depth: Option<u32>, func: usize, parent_ip: usize) -> fmt::Result {
        let resolve = self.resolve;
        self.indent(depth.filter(|depth| *depth > 0).map_or(0, |depth| depth.saturating_add(1)))?;
        self.out.write_str("/* ")?;
        self.name(func)?;
        self.out.write_str(" <-")?;
        self.foreign(|f| resolve.caller(parent_ip, f))?;
        self.out.write_str(" */\n")
    }

    fn caller(&mut self, addr: usize) -> fmt::Result {
        let resolve = self.resolve;
        self.out.write_str(" <-")?;
        self.foreign(|f| resolve.place(addr, f))
    }

    fn shows_retval(&self, func: usize, retval: Retval<'_>) -> bool {
        let has_memory = self.shows_types() && !retval.memory.is_empty();
        self.options.contains(Options::RETVAL) && (has_memory || self.resolve.has_retval(func))
    }

    fn shows_types(&self) -> bool {
        self.options.contains(Options::TYPED) && !self.options.contains(Options::RETVAL_HEX)
    }

    fn retval(&mut self, func: usize, retval: Retval<'_>) -> fmt::Result {
        let hex = self.options.contains(Options::RETVAL_HEX);
        let form = if hex { RetvalForm::Hex } else { RetvalForm::Errors };
        let resolve = self.resolve;
        self.out.write_str(" ret=")?;
        if self.shows_types() {
            return self.foreign(|f| resolve.write_typed_retval(func, retval, f));
        }
        self.foreign(|f| resolve.write_retval(func, retval, form, f))
    }
}

/// Something written by a function.
struct Text<F>(F);

impl<F: Fn(&mut fmt::Formatter<'_>) -> fmt::Result> fmt::Display for Text<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (self.0)(f)
    }
}

/// Writes text from outside.
pub(super) fn foreign(
    out: &mut dyn Write,
    text: impl Fn(&mut fmt::Formatter<'_>) -> fmt::Result,
) -> fmt::Result {
    write!(Harmless { out, newline_held: false }, "{}", Text(text))
}

/// Writes a stack as Linux does, without the end of its last line: a function, and a line for each caller.
pub(super) fn callers(
    out: &mut dyn Write,
    addrs: &[usize],
    cut: bool,
    lines: LineOptions,
    resolve: &dyn Resolve,
) -> fmt::Result {
    out.write_str("<stack trace>")?;
    for (index, &addr) in addrs.iter().enumerate() {
        out.write_str("\n => ")?;
        symbol(out, addr, if index == 0 { Symbol::Function } else { Symbol::Caller }, lines, resolve)?;
    }
    if cut { out.write_str("\n => ...") } else { Ok(()) }
}

/// A filter for text from outside. One newline at the very end is dropped, as printed text often has one.
struct Harmless<'a> {
    out: &'a mut dyn Write,
    newline_held: bool,
}

impl Write for Harmless<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if text.is_empty() {
            return Ok(());
        }
        if self.newline_held {
            self.newline_held = false;
            self.out.write_char('?')?;
        }
        let body = text.strip_suffix('\n').unwrap_or(text);
        self.newline_held = body.len() < text.len();
        let mut rest = body;
        while let Some((at, c)) = rest.char_indices().find(|(_, c)| harmless(*c) != *c) {
            self.out.write_str(&rest[..at])?;
            self.out.write_char('?')?;
            rest = &rest[at + c.len_utf8()..];
        }
        self.out.write_str(rest)
    }
}

/// The character, or `?` if it would end the line, move about in it or turn its direction.
fn harmless(c: char) -> char {
    let breaks = c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if breaks { '?' } else { c }
}

/// The characters of text that may not be text, with `?` for what is not.
pub(super) fn lossy(bytes: &[u8]) -> impl Iterator<Item = char> + Clone {
    bytes.utf8_chunks().flat_map(|chunk| {
        let broken = !chunk.invalid().is_empty();
        chunk.valid().chars().chain(broken.then_some('?'))
    })
}

pub(super) fn decimal_digits(value: u64) -> usize {
    value.checked_ilog10().map_or(1, |log| log as usize + 1)
}

/// A time in microseconds, in a column of twelve characters: also that of the profiler's table.
pub(crate) fn write_time(out: &mut (impl fmt::Write + ?Sized), ns: u64) -> fmt::Result {
    let us = ns / 1000;
    let digits = decimal_digits(us);
    write!(out, "{us}")?;
    // The column is narrow: a long time loses decimals, from the seventh digit on all of them and the point.
    let decimals = DURATION_WIDTH.saturating_sub(digits + 1).min(3);
    let mut width = digits;
    if decimals > 0 {
        let fraction = (ns % 1000) / [1000, 100, 10, 1][decimals];
        write!(out, ".{fraction:0decimals$}")?;
        width += 1 + decimals;
    }
    write!(out, " us {:pad$}", "", pad = DURATION_WIDTH.saturating_sub(width))
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::super::{COMM_LEN, NoNames, write_raw_retval};
    use super::*;
    use std::format;
    use std::string::{String, ToString};
    use std::vec::Vec;

    /// What `write` puts on a page with these options and eleven CPUs.
    fn page(options: Options, write: impl Fn(&mut Page<'_>) -> fmt::Result) -> String {
        let mut out = String::new();
        write(&mut Page { options, cpu_width: 2, resolve: &NoNames, out: &mut out }).unwrap();
        out
    }

    #[test]
    fn durations_are_cut_not_rounded_and_keep_the_column_as_long_as_they_can() {
        let table = [
            (0, "  0.000 us    |  "),
            (999, "  0.999 us    |  "),
            (1_999, "  1.999 us    |  "),
            (9_999_999, "# 9999.999 us |  "),
            (12_345_678, "* 12345.67 us |  "),
            (99_999_999, "* 99999.99 us |  "),
            (123_456_999, "@ 123456.9 us |  "),
            (1_234_567_999, "$ 1234567 us  |  "),
            (12_345_678_999, "$ 12345678 us |  "),
            (123_456_789_999, "$ 123456789 us |  "),
            (u64::MAX, "$ 18446744073709551 us |  "),
        ];
        for (ns, want) in table {
            assert_eq!(page(Options::default(), |page| page.duration(ns)), want, "{ns} ns");
        }
    }

    #[test]
    fn a_mark_needs_more_than_its_limit() {
        for (limit, mark) in MARKS {
            let below = MARKS.iter().find(|(other, _)| *other < limit).map_or(' ', |(_, mark)| *mark);
            for (ns, want) in [(limit, below), (limit + 1, mark)] {
                let text = page(Options::default(), |page| page.duration(ns));
                assert_eq!(text.chars().next(), Some(want), "{ns} ns");
                let text = page(Options::DURATION, |page| page.duration(ns));
                assert_eq!(text.chars().next(), Some(' '), "{ns} ns without marks");
            }
        }
    }

    #[test]
    fn task_is_cut_and_centred() {
        let comm = |bytes: &[u8]| {
            let mut comm = [0; COMM_LEN];
            comm[..bytes.len()].copy_from_slice(bytes);
            comm
        };
        let table: [(&[u8], u32, &str); 10] = [
            (b"a", 1, "     a-1      "),
            (b"ab", 1, "     ab-1     "),
            (b"exactly", 12, "  exactly-12  "),
            (b"longer than that", 123456, "longer -123456"),
            (b"longer than that", 4294967295, "longer -4294967295"),
            (b"", 0, "   <idle>-0   "),
            (b"", 7, "   <...>-7    "),
            (b"a\nb\x7f\0c", 3, "    a?b?-3    "),
            (b"\xffx\xc3", 3, "    ?x?-3     "),
            ("äöü".as_bytes(), 3, "    äöü-3     "),
        ];
        for (name, pid, want) in table {
            let task = Task { pid, comm: comm(name) };
            assert_eq!(page(Options::PROC, |page| page.task(&task)), want, "{name:?}");
        }
        assert_eq!(Task::new(1, "0123456789abcdefgh").comm, *b"0123456789abcdef");
    }

    #[test]
    fn return_values_are_errors_only_in_the_error_range() {
        let narrow = |value: i32| value as u32 as usize;
        let table = [
            (0, "0x0"),
            (22, "0x16"),
            (-22_isize as usize, "-22"),
            (-1_isize as usize, "-1"),
            (-4095_isize as usize, "-4095"),
            (narrow(-22), "-22"),
            (narrow(-4095), "-4095"),
            (isize::MAX as usize, "0x7fffffffffffffff"),
            (-4096_isize as usize, "0xfffffffffffff000"),
            (narrow(-4096), "0xfffff000"),
            (narrow(i32::MIN), "0x80000000"),
            (0x1_ffff_ffea, "0x1ffffffea"),
        ];
        let text = |value, form| {
            Text(move |f: &mut fmt::Formatter<'_>| write_raw_retval(value, form, f)).to_string()
        };
        for (value, want) in table {
            assert_eq!(text(value, RetvalForm::Errors), want);
            assert_eq!(text(value, RetvalForm::Hex), format!("{value:#x}"));
        }
    }

    #[test]
    fn foreign_text_cannot_break_a_line_however_it_is_cut() {
        let text = "<A as B<'_>>::c{{closure}} \u{1b}[2J\tä\r\n\u{85}\u{202e}\u{2029}*/\n\n";
        let want = "<A as B<'_>>::c{{closure}} ?[2J?ä?????*/?";
        let cuts: Vec<usize> = (0..=text.len()).filter(|at| text.is_char_boundary(*at)).collect();
        for at in cuts {
            let (first, second) = text.split_at(at);
            let shown = page(Options::CPU, |page| page.foreign(|f| write!(f, "{first}{second}")));
            // Two newlines end the text: one is dropped, the other one is shown.
            assert_eq!(shown, want, "cut at {at}");
        }
    }
}
