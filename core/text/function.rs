//! Hits of functions as text, in the layout that the function tracer has.
//!
//! ```text
//!             init-1       [001] ..h..   236.800215: vfs_open <-path_openat
//! ```

use core::fmt::{self, Write};

use super::page::{callers, foreign, lossy};
use super::{Event, Kind, Resolve};
use crate::platform::Context;

/// [`trace_header`] of the function tracer.
pub fn function_header(out: &mut dyn Write, shown: u64, written: u64, cpus: usize) -> fmt::Result {
    trace_header(out, "function", shown, written, cpus)
}

/// What stands above the lines of a tracer that has one for each event. `cpus` is how many CPUs there are, `shown` how many entries
/// are in the buffers, `written` how many have been.
pub fn trace_header(out: &mut dyn Write, tracer: &str, shown: u64, written: u64, cpus: usize) -> fmt::Result {
    writeln!(
        out,
        "# tracer: {tracer}\n#\n# entries-in-buffer/entries-written: {shown}/{written}   #P:{cpus}\n#"
    )?;
    out.write_str(
        "#                                _-----=> irqs-off/BH-disabled
#                               / _----=> need-resched
#                              | / _---=> hardirq/softirq
#                              || / _--=> preempt-depth
#                              ||| / _-=> migrate-disable
#                              |||| /     delay
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
#              | |         |   |||||     |         |
",
    )
}

/// Writes an event's line; of calls that have two, that of the entry. Of the five flags the third is known: `s` in a soft
/// interrupt, `h` in a hard one, `Z` in an NMI; the others are dots.
pub fn function_line(event: &Event<'_>, resolve: &dyn Resolve, out: &mut dyn Write) -> fmt::Result {
    let (func, parent_ip, context) = match event.kind {
        Kind::Hit { func, parent_ip, context } => (func, Some(parent_ip), context),
        Kind::Entry { func, ret_addr, .. } => (func, ret_addr, Context::Task),
        Kind::Return { .. } => return Ok(()),
        Kind::Lost { count } => return writeln!(out, "CPU:{} [LOST {count} EVENTS]", event.cpu),
        Kind::Stack { addrs, cut } => {
            begin(event, Context::Task, out)?;
            callers(out, addrs, cut, resolve)?;
            return out.write_char('\n');
        }
        Kind::Comment { event: id, data } => {
            begin(event, Context::Task, out)?;
            out.write_str("tracing_mark_write: ")?;
            foreign(out, |f| resolve.write_comment(id, data, f))?;
            return out.write_char('\n');
        }
    };
    begin(event, context, out)?;
    foreign(out, |f| resolve.name(func, f))?;
    if let Some(parent_ip) = parent_ip {
        out.write_str(" <-")?;
        foreign(out, |f| resolve.caller(parent_ip, f))?;
    }
    out.write_char('\n')
}

/// Task, CPU, flags and time.
fn begin(event: &Event<'_>, context: Context, out: &mut dyn Write) -> fmt::Result {
    let comm = event.task.comm.split(|byte| *byte == 0).next().unwrap_or(&[]);
    let comm = if comm.is_empty() { &b"<...>"[..] } else { comm };
    (lossy(comm).count()..16).try_for_each(|_| out.write_char(' '))?;
    lossy(comm).try_for_each(|c| out.write_char(c))?;
    let flag = match context {
        Context::Task => '.',
        Context::SoftIrq => 's',
        Context::Irq => 'h',
        Context::Nmi => 'Z',
    };
    let (seconds, micros) = (event.time_ns / 1_000_000_000, event.time_ns / 1000 % 1_000_000);
    write!(out, "-{:<7} [{:03}] ..{flag}.. {seconds:5}.{micros:06}: ", event.task.pid, event.cpu)
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
    }

    fn line(event: &Event<'_>) -> String {
        let mut text = String::new();
        function_line(event, &Names, &mut text).expect("strings take everything");
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
}
