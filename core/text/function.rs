//! Hits of functions as text, in the layout that the function tracer has.
//!
//! ```text
//!             init-1       [001] ..h..   236.800215: vfs_open <-path_openat
//! ```

use core::fmt::{self, Write};

use super::page::{callers, foreign, lossy};
use super::{Event, Kind, Resolve};
use crate::platform::Context;

bitflags::bitflags! {
    /// What the lines show. The names are those of the options in `trace_options`, `IRQ_INFO` for `irq-info` and so on.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct LineOptions: u32 {
        /// Task, CPU, flags and time stand before what happened.
        const CONTEXT_INFO = 1 << 0;
        /// The column of flags. Without effect unless `CONTEXT_INFO` is set.
        const IRQ_INFO = 1 << 1;
        /// Who called.
        const PRINT_PARENT = 1 << 2;
        /// Where in a function, and how long that is: `name+0x1c/0x80`.
        const SYM_OFFSET = 1 << 3;
        /// The address behind each name.
        const SYM_ADDR = 1 << 4;
        /// A text that was written to `trace_marker` stands alone.
        const MSG_ONLY = 1 << 5;
    }
}

impl Default for LineOptions {
    fn default() -> Self {
        Self::CONTEXT_INFO | Self::IRQ_INFO | Self::PRINT_PARENT
    }
}

/// [`trace_header`] of the function tracer.
pub fn function_header(out: &mut dyn Write, shown: u64, written: u64, cpus: usize) -> fmt::Result {
    trace_header(out, "function", LineOptions::default(), shown, written, cpus)
}

/// What stands above the lines of a tracer that has one for each event. `cpus` is how many CPUs there are, `shown` how many entries
/// are in the buffers, `written` how many have been.
pub fn trace_header(
    out: &mut dyn Write,
    tracer: &str,
    lines: LineOptions,
    shown: u64,
    written: u64,
    cpus: usize,
) -> fmt::Result {
    writeln!(out, "# tracer: {tracer}\n#")?;
    if !lines.contains(LineOptions::CONTEXT_INFO) {
        return Ok(());
    }
    writeln!(out, "# entries-in-buffer/entries-written: {shown}/{written}   #P:{cpus}\n#")?;
    out.write_str(if lines.contains(LineOptions::IRQ_INFO) {
        "#                                _-----=> irqs-off/BH-disabled
#                               / _----=> need-resched
#                              | / _---=> hardirq/softirq
#                              || / _--=> preempt-depth
#                              ||| / _-=> migrate-disable
#                              |||| /     delay
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
#              | |         |   |||||     |         |
"
    } else {
        "#           TASK-PID     CPU#     TIMESTAMP  FUNCTION
#              | |         |         |         |
"
    })
}

/// Writes an event's line; of calls that have two, that of the entry. Of the five flags the third is known: `s` in a soft
/// interrupt, `h` in a hard one, `Z` in an NMI; the others are dots.
pub fn function_line(
    event: &Event<'_>,
    lines: LineOptions,
    resolve: &dyn Resolve,
    out: &mut dyn Write,
) -> fmt::Result {
    let (func, parent_ip, context) = match event.kind {
        Kind::Hit { func, parent_ip, context } => (func, Some(parent_ip), context),
        Kind::Entry { func, ret_addr, .. } => (func, ret_addr, Context::Task),
        Kind::Return { .. } => return Ok(()),
        Kind::Lost { count } => return writeln!(out, "CPU:{} [LOST {count} EVENTS]", event.cpu),
        Kind::Stack { addrs, cut, context } => {
            begin(event, context, lines, out)?;
            callers(out, addrs, cut, lines, resolve)?;
            return out.write_char('\n');
        }
        Kind::Comment { event: id, data, context } => {
            if !lines.contains(LineOptions::MSG_ONLY) {
                begin(event, context, lines, out)?;
                out.write_str("tracing_mark_write: ")?;
            }
            foreign(out, |f| resolve.write_comment(id, data, f))?;
            return out.write_char('\n');
        }
    };
    begin(event, context, lines, out)?;
    symbol(out, func, Symbol::Function, lines, resolve)?;
    if let Some(parent_ip) = parent_ip.filter(|_| lines.contains(LineOptions::PRINT_PARENT)) {
        out.write_str(" <-")?;
        symbol(out, parent_ip, Symbol::Caller, lines, resolve)?;
    }
    out.write_char('\n')
}

/// What an address is of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Symbol {
    /// A function, by its own address.
    Function,
    /// One that calls from there.
    Caller,
}

/// Writes what an address is called, with as much beside the name as `lines` asks for.
pub(super) fn symbol(
    out: &mut dyn Write,
    addr: usize,
    symbol: Symbol,
    lines: LineOptions,
    resolve: &dyn Resolve,
) -> fmt::Result {
    foreign(out, |f| match symbol {
        _ if lines.contains(LineOptions::SYM_OFFSET) => resolve.place(addr, f),
        Symbol::Function => resolve.name(addr, f),
        Symbol::Caller => resolve.caller(addr, f),
    })?;
    if lines.contains(LineOptions::SYM_ADDR) { write!(out, " <{addr:016x}>") } else { Ok(()) }
}

/// Task, CPU, flags and time.
fn begin(event: &Event<'_>, context: Context, lines: LineOptions, out: &mut dyn Write) -> fmt::Result {
    if !lines.contains(LineOptions::CONTEXT_INFO) {
        return Ok(());
    }
    let comm = event.task.comm.split(|byte| *byte == 0).next().unwrap_or(&[]);
    let comm = if comm.is_empty() { &b"<...>"[..] } else { comm };
    (lossy(comm).count()..16).try_for_each(|_| out.write_char(' '))?;
    lossy(comm).try_for_each(|c| out.write_char(c))?;
    write!(out, "-{:<7} [{:03}] ", event.task.pid, event.cpu)?;
    if lines.contains(LineOptions::IRQ_INFO) {
        let flag = match context {
            Context::Task => '.',
            Context::SoftIrq => 's',
            Context::Irq => 'h',
            Context::Nmi => 'Z',
        };
        write!(out, "..{flag}..")?;
    }
    let (seconds, micros) = (event.time_ns / 1_000_000_000, event.time_ns / 1000 % 1_000_000);
    write!(out, " {seconds:5}.{micros:06}: ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Task;
    use std::string::String;

    struct Names;
    impl Resolve for Names {
        fn name(&self, func: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(if func == 1 { "vfs_open" } else { "path_openat\t" })
        }
        fn place(&self, addr: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.name(addr, f)?;
            f.write_str(if addr == 1 { "+0x0/0xf0" } else { "+0x2b/0xc0" })
        }
    }

    fn line(event: &Event<'_>) -> String {
        line_with(LineOptions::default(), event)
    }

    fn line_with(lines: LineOptions, event: &Event<'_>) -> String {
        let mut text = String::new();
        function_line(event, lines, &Names, &mut text).expect("strings take everything");
        text
    }

    #[test]
    fn a_hit_looks_as_linux_prints_it() {
        let kind = Kind::Hit { func: 1, parent_ip: 2, context: Context::Task };
        let event = Event { cpu: 1, time_ns: 236_800_215_999, task: Task::new(1, "init"), kind };
        assert_eq!(
            line(&event),
            "            init-1       [001] .....   236.800215: vfs_open <-path_openat?\n"
        );
    }

    #[test]
    fn interrupts_losses_and_unknown_tasks_have_their_marks() {
        let kind = Kind::Hit { func: 1, parent_ip: 2, context: Context::Irq };
        let event = Event { cpu: 0, time_ns: 1_000, task: Task::new(7, ""), kind };
        assert_eq!(
            line(&event),
            "           <...>-7       [000] ..h..     0.000001: vfs_open <-path_openat?\n"
        );
        assert_eq!(line(&Event { kind: Kind::Lost { count: 3 }, ..event }), "CPU:0 [LOST 3 EVENTS]\n");
    }

    #[test]
    fn options_add_and_take_away_what_linux_does() {
        let kind = Kind::Hit { func: 1, parent_ip: 2, context: Context::SoftIrq };
        let hit = Event { cpu: 1, time_ns: 236_800_215_999, task: Task::new(1, "init"), kind };
        let (usual, bare) = (LineOptions::default(), LineOptions::PRINT_PARENT);
        for (lines, want) in [
            (usual, "            init-1       [001] ..s..   236.800215: vfs_open <-path_openat?"),
            (
                usual - LineOptions::IRQ_INFO,
                "            init-1       [001]    236.800215: vfs_open <-path_openat?",
            ),
            (
                usual - LineOptions::PRINT_PARENT,
                "            init-1       [001] ..s..   236.800215: vfs_open",
            ),
            (bare, "vfs_open <-path_openat?"),
            (LineOptions::IRQ_INFO, "vfs_open"),
            (bare | LineOptions::SYM_OFFSET, "vfs_open+0x0/0xf0 <-path_openat?+0x2b/0xc0"),
            (bare | LineOptions::SYM_ADDR, "vfs_open <0000000000000001> <-path_openat? <0000000000000002>"),
            (LineOptions::SYM_ADDR | LineOptions::SYM_OFFSET, "vfs_open+0x0/0xf0 <0000000000000001>"),
            (bare | LineOptions::MSG_ONLY, "vfs_open <-path_openat?"),
        ] {
            assert_eq!(line_with(lines, &hit).trim_end_matches('\n'), want, "{lines:?}");
        }
        let stack = Event { kind: Kind::Stack { addrs: &[1, 2], cut: true, context: Context::Irq }, ..hit };
        assert_eq!(
            line(&stack),
            "            init-1       [001] ..h..   236.800215: <stack trace>\n => vfs_open\n => path_openat?\n => ...\n"
        );
        assert_eq!(
            line_with(LineOptions::SYM_OFFSET, &stack),
            "<stack trace>\n => vfs_open+0x0/0xf0\n => path_openat?+0x2b/0xc0\n => ...\n"
        );
        let comment = Kind::Comment { event: 0, data: b"hello", context: Context::Task };
        let comment = Event { kind: comment, ..hit };
        assert_eq!(line_with(usual | LineOptions::MSG_ONLY, &comment), "hello\n");
        assert_eq!(line_with(bare, &comment), "tracing_mark_write: hello\n");
        let lost = Event { kind: Kind::Lost { count: 3 }, ..hit };
        assert_eq!(line_with(LineOptions::empty(), &lost), "CPU:1 [LOST 3 EVENTS]\n");
    }

    #[test]
    fn heads_tell_only_of_the_columns_that_are_there() {
        let head = |lines| {
            let mut text = String::new();
            trace_header(&mut text, "function", lines, 2, 3, 4).expect("strings take everything");
            text
        };
        assert_eq!(head(LineOptions::IRQ_INFO), "# tracer: function\n#\n");
        let want = "\
# tracer: function
#
# entries-in-buffer/entries-written: 2/3   #P:4
#
#           TASK-PID     CPU#     TIMESTAMP  FUNCTION
#              | |         |         |         |
";
        assert_eq!(head(LineOptions::CONTEXT_INFO), want);
        let mut usual = String::new();
        function_header(&mut usual, 2, 3, 4).expect("strings take everything");
        assert_eq!(head(LineOptions::default()), usual);
        assert!(usual.contains("|||||  TIMESTAMP"), "{usual}");
    }
}
