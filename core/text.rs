//! Call graphs as text, in the function_graph layout that kernel engineers read every day.
//!
//! Events go in, one at a time, in the order of their time and with the CPUs mixed; lines come out. The layout is
//! that of Linux byte for byte, so that eyes, scripts and importers made for it work here too.
//!
//! Invariant: one event gives whole lines only, whatever bytes its names hold. What has been printed before on a
//! CPU decides how its next line looks (a closing brace says its name only if its opening was not shown), and that
//! memory is [`CpuState`], which changes only after an event has been written completely: an event whose write
//! failed may be given again.
//!
//! Called by whoever reads trace records: the `trace` and `trace_pipe` files, the demo kernel's console, the host
//! tool. Never on the traced path. Nothing here allocates, and nothing here is generic except [`Printer::merged`].

mod function;
mod page;

use core::fmt::{self, Write};
use core::iter::Peekable;

use crate::platform::Context;

pub use function::{LineOptions, function_header, function_line, trace_header};
use page::{Opening, Page, decimal_digits, lossy};

pub(crate) use page::write_time;

bitflags::bitflags! {
    /// What the lines show. The names are those of the `funcgraph-` options, `ABSTIME` for `funcgraph-abstime`
    /// and so on.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Options: u32 {
        /// The CPU column.
        const CPU = 1 << 0;
        /// The time a call took.
        const DURATION = 1 << 1;
        /// A mark in front of a duration that is long: `+` above 10 us up to `$` above 1 s.
        const OVERHEAD = 1 << 2;
        /// The task column.
        const PROC = 1 << 3;
        /// Every closing brace says the name of its function.
        const TAIL = 1 << 4;
        /// Return values.
        const RETVAL = 1 << 5;
        /// Return values are always hexadecimal, error numbers too. Without effect unless `RETVAL` is set.
        const RETVAL_HEX = 1 << 6;
        /// Where each call was made.
        const RETADDR = 1 << 7;
        /// The time of each line.
        const ABSTIME = 1 << 8;
        /// Interrupts, with an arrow at both ends. If not set, all that runs in them is left out.
        const IRQS = 1 << 9;
        /// After each closing brace, how many calls the task could not follow.
        const OVERRUN = 1 << 10;
        /// Arguments.
        const ARGS = 1 << 11;
        /// Arguments and return values are shown by type, by what [`Resolve`] knows of types; `RETVAL_HEX` comes before it. Without
        /// effect unless `ARGS` or `RETVAL` is set.
        const TYPED = 1 << 12;
        /// No columns, whichever are asked for, and no heads for them: the option `nocontext-info`.
        const BARE = 1 << 13;
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::CPU | Self::DURATION | Self::OVERHEAD | Self::IRQS
    }
}

/// Bytes of a task's name, with the zero that ends it if it is shorter.
pub const COMM_LEN: usize = 16;

/// Who ran when an event was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// The task's number.
    pub pid: u32,
    /// The task's name up to its first zero byte. Any bytes will do.
    pub comm: [u8; COMM_LEN],
}

impl Task {
    /// A task by number and name; of a long name only the first bytes are kept.
    pub const fn new(pid: u32, name: &str) -> Self {
        let (bytes, mut comm, mut i) = (name.as_bytes(), [0; COMM_LEN], 0);
        while i < bytes.len() && i < COMM_LEN {
            comm[i] = bytes[i];
            i += 1;
        }
        Self { pid, comm }
    }
}

/// One thing that happened.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// The CPU in whose buffer it is recorded.
    pub cpu: u32,
    /// When it was recorded.
    pub time_ns: u64,
    /// The task that ran.
    pub task: Task,
    /// What it was.
    pub kind: Kind<'a>,
}

/// What an [`Event`] tells.
#[derive(Clone, Copy, Debug)]
pub enum Kind<'a> {
    /// A function was called.
    Entry {
        /// The function.
        func: usize,
        /// How many traced calls this one is inside of.
        depth: u32,
        /// Where it returns to, if that was recorded.
        ret_addr: Option<usize>,
        /// The words that hold its arguments, as [`Resolve::write_args`] wants them; empty if not recorded.
        args: &'a [usize],
    },
    /// A function returned.
    Return {
        /// The function.
        func: usize,
        /// How many traced calls it was inside of.
        depth: u32,
        /// How long it ran.
        duration_ns: u64,
        /// What was recorded of its return value.
        retval: Option<Retval<'a>>,
        /// How many calls the task could not follow so far, for want of room on its shadow stack.
        overrun: u32,
    },
    /// A function was called, as the function tracer has it: nothing is known of its return.
    Hit {
        /// The function.
        func: usize,
        /// Where it was called from.
        parent_ip: usize,
        /// How deep in interrupts.
        context: Context,
    },
    /// Events that were recorded here and overwritten before they were read.
    Lost {
        /// How many; zero if nobody knows.
        count: u64,
    },
    /// Who called a function.
    Stack {
        /// The function, where it was called, where that was called, and so on.
        addrs: &'a [usize],
        /// Whether there were more.
        cut: bool,
        /// How deep in interrupts.
        context: Context,
    },
    /// Anything else that was recorded between calls.
    Comment {
        /// Which event it is, for [`Resolve::write_comment`].
        event: u32,
        /// What was recorded with it.
        data: &'a [u8],
        /// How deep in interrupts.
        context: Context,
    },
}

impl Event<'_> {
    /// Whether this is an entry and `next`, which came after it on its CPU, is its return: the call was a leaf.
    fn is_closed_by(&self, next: &Event<'_>) -> bool {
        let same_place = self.cpu == next.cpu && self.task.pid == next.task.pid;
        match (self.kind, next.kind) {
            (Kind::Entry { func, depth, .. }, Kind::Return { func: returned, depth: level, .. }) => {
                same_place && func == returned && depth == level
            }
            _ => false,
        }
    }
}

/// What was recorded of a return value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retval<'a> {
    /// The first register for values: rax or x0.
    pub first: usize,
    /// The second, rdx or x1, if it was recorded.
    pub second: Option<usize>,
    /// The first bytes of a value that was returned in memory, if they were recorded.
    pub memory: &'a [u8],
}

/// How a return value is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetvalForm {
    /// Error numbers are decimal and negative, everything else is hexadecimal.
    Errors,
    /// Everything is hexadecimal.
    Hex,
}

/// What addresses and recorded values are called. Whatever is written here is shown as it is, except that
/// characters that would break the line or its order appear as `?`.
pub trait Resolve {
    /// Writes the name of the function at `func`.
    fn name(&self, func: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result;

    /// Writes the place in the code at `addr`, which is seldom the start of a function: `name+0x1c/0x80`.
    fn place(&self, addr: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{addr:#x}")
    }

    /// Writes the function that calls from `addr`, which is seldom its start: `name`, without the place.
    fn caller(&self, addr: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name(addr, f)
    }

    /// If an interrupt begins with the function at `func`.
    fn is_irq_entry(&self, _func: usize) -> bool {
        false
    }

    /// If the function at `func` returns anything in registers. Where this is not known, it does. What was recorded of memory is shown by
    /// type even if not.
    fn has_retval(&self, _func: usize) -> bool {
        true
    }

    /// Writes a value that the function at `func` returned.
    fn write_retval(
        &self,
        _func: usize,
        retval: Retval<'_>,
        form: RetvalForm,
        f: &mut fmt::Formatter<'_>,
    ) -> fmt::Result {
        write_raw_retval(retval.first, form, f)
    }

    /// Writes a value that the function at `func` returned, by its type. Where that is not known, it is shown as without types.
    fn write_typed_retval(&self, func: usize, retval: Retval<'_>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_retval(func, retval, RetvalForm::Errors, f)
    }

    /// Writes the arguments that the function at `func` was called with.
    fn write_args(&self, _func: usize, args: &[usize], f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, arg) in args.iter().enumerate() {
            write!(f, "{}{arg:#x}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }

    /// Writes the arguments by their types. Where these are not known, they are shown as without types.
    fn write_typed_args(&self, func: usize, args: &[usize], f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_args(func, args, f)
    }

    /// Writes what `event` says. `data` is taken for text unless this is replaced.
    fn write_comment(&self, _event: u32, data: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
        lossy(data).try_for_each(|c| f.write_char(c))
    }
}

/// [`Resolve`] for when there is no symbol table: functions are numbers.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoNames;

impl Resolve for NoNames {
    fn name(&self, func: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.place(func, f)
    }
}

/// Why an event was not printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The event is of a CPU for which there is no [`CpuState`].
    NoSuchCpu(u32),
    /// The text could not be written. Nothing of the event is remembered, so it may be given again.
    Write,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchCpu(cpu) => write!(f, "event of CPU {cpu}, which the printer was not made for"),
            Self::Write => f.write_str("the text could not be written"),
        }
    }
}

impl core::error::Error for Error {}

impl From<fmt::Error> for Error {
    fn from(_: fmt::Error) -> Self {
        Self::Write
    }
}

/// Depths at which an opening is remembered. A closing brace that is deeper always says its name.
const DEPTHS: usize = 64;

/// What has been printed so far for one CPU. It belongs to the CPU, not to the task: a task that closes what another
/// one of the same CPU opened at that depth gets no name, as everywhere in this layout.
#[derive(Clone, Debug)]
pub struct CpuState {
    /// The task of the line before. The first task of a CPU is not announced.
    task: Option<Task>,
    /// Depth of the innermost call that is open.
    depth: Option<u32>,
    /// Depth of the interrupt that is being left out.
    hidden_from: Option<u32>,
    /// The leaf that has been printed with its return, which is the next event here, so that it is not shown again.
    leaf: Option<(usize, u32, u32)>,
    /// The function whose opening was shown at each depth, or zero.
    opened: [usize; DEPTHS],
}

impl CpuState {
    /// A CPU of which nothing has been printed.
    pub const NEW: Self =
        Self { task: None, depth: None, hidden_from: None, leaf: None, opened: [0; DEPTHS] };

    fn remember_opened(&mut self, depth: u32, func: usize) {
        if let Some(opened) = usize::try_from(depth).ok().and_then(|depth| self.opened.get_mut(depth)) {
            *opened = func;
        }
    }

    fn opening(&self, depth: u32, func: usize) -> Opening {
        let opened = usize::try_from(depth).ok().and_then(|depth| self.opened.get(depth));
        if func != 0 && opened == Some(&func) { Opening::Shown } else { Opening::NotShown }
    }

    /// Whether the event belongs to an interrupt that is left out.
    fn hides(&mut self, kind: Kind<'_>, resolve: &dyn Resolve) -> bool {
        match (kind, self.hidden_from) {
            (Kind::Lost { .. }, _) => false,
            (Kind::Entry { func, depth, .. }, None) if resolve.is_irq_entry(func) => {
                self.hidden_from = Some(depth);
                true
            }
            // The interrupt's own return may have been lost: one further out tells the same.
            (Kind::Return { depth, .. }, Some(from)) if depth <= from => {
                self.hidden_from = None;
                true
            }
            (_, hidden_from) => hidden_from.is_some(),
        }
    }
}

impl Default for CpuState {
    fn default() -> Self {
        Self::NEW
    }
}

/// Prints events. The memory is the caller's: one [`CpuState`] for each CPU, and their number is also what the CPU
/// column is made wide enough for.
#[derive(Debug)]
pub struct Printer<'s> {
    options: Options,
    /// The CPU of the first state.
    first: u32,
    cpus: &'s mut [CpuState],
}

impl<'s> Printer<'s> {
    /// A printer for the CPUs 0 to `cpus.len() - 1`, which goes on where these states are.
    pub fn new(options: Options, cpus: &'s mut [CpuState]) -> Self {
        Self { options, first: 0, cpus }
    }

    /// The same for one CPU.
    pub fn of_cpu(options: Options, cpu: u32, state: &'s mut CpuState) -> Self {
        Self { options, first: cpu, cpus: core::slice::from_mut(state) }
    }

    /// Writes the lines that open a trace: the tracer's name, and a head for each column.
    pub fn header(&self, out: &mut dyn Write) -> fmt::Result {
        out.write_str("# tracer: function_graph\n#\n")?;
        if self.options.contains(Options::BARE) {
            return Ok(());
        }
        let shown = |option, text| if self.options.contains(option) { text } else { "" };
        writeln!(
            out,
            "#{}{}{}{}               FUNCTION CALLS",
            shown(Options::ABSTIME, "     TIME       "),
            shown(Options::CPU, " CPU"),
            shown(Options::PROC, "  TASK/PID       "),
            shown(Options::DURATION, "  DURATION   "),
        )?;
        writeln!(
            out,
            "#{}{}{}{}               |   |   |   |",
            shown(Options::ABSTIME, "      |         "),
            shown(Options::CPU, " |  "),
            shown(Options::PROC, "   |    |        "),
            shown(Options::DURATION, "   |   |      "),
        )
    }

    /// Prints one event. `next` is the event after it in the same CPU's buffer, if there is one already: an entry
    /// whose return comes next is printed in one line with it. That return is still to be given in its turn, and
    /// prints nothing then, so the caller keeps no account of it.
    pub fn event(
        &mut self,
        event: &Event<'_>,
        next: Option<&Event<'_>>,
        resolve: &dyn Resolve,
        out: &mut dyn Write,
    ) -> Result<(), Error> {
        let last = u64::from(self.first) + self.cpus.len() as u64;
        let cpu_width = decimal_digits(last.saturating_sub(1));
        let place = event.cpu.checked_sub(self.first).and_then(|place| usize::try_from(place).ok());
        let state = place.and_then(|place| self.cpus.get_mut(place));
        let state = state.ok_or(Error::NoSuchCpu(event.cpu))?;
        let mut page = Page { options: self.options, cpu_width, resolve, out };

        if let (Some(leaf), Kind::Return { func, depth, .. }) = (state.leaf.take(), event.kind)
            && leaf == (func, depth, event.task.pid)
        {
            return Ok(());
        }
        if !self.options.contains(Options::IRQS) && state.hides(event.kind, resolve) {
            return Ok(());
        }
        if let Kind::Lost { count } = event.kind {
            page.lost(event.cpu, count)?;
            // What was open may have been closed and opened again meanwhile. A name too many does no harm.
            state.opened = [0; DEPTHS];
            return Ok(());
        }

        page.task_switch(state.task, event)?;
        match event.kind {
            Kind::Entry { func, depth, ret_addr, args } => {
                let leaf = next.filter(|next| event.is_closed_by(next)).map(|next| next.kind);
                page.irq_arrow(event, func, "==========>")?;
                page.columns(event)?;
                if let Some(Kind::Return { duration_ns, retval, .. }) = leaf {
                    page.duration(duration_ns)?;
                    page.leaf(func, depth, ret_addr, args, retval)?;
                    page.irq_arrow(event, func, "<==========")?;
                    state.leaf = Some((func, depth, event.task.pid));
                    state.remember_opened(depth, 0);
                    state.depth = depth.checked_sub(1);
                } else {
                    page.no_duration()?;
                    page.opening(func, depth, ret_addr, args)?;
                    state.remember_opened(depth, func);
                    state.depth = Some(depth);
                }
            }
            Kind::Return { func, depth, duration_ns, retval, overrun } => {
                page.columns(event)?;
                page.duration(duration_ns)?;
                page.closing(func, depth, retval, state.opening(depth, func))?;
                page.overrun(overrun)?;
                page.irq_arrow(event, func, "<==========")?;
                state.remember_opened(depth, 0);
                state.depth = depth.checked_sub(1);
            }
            Kind::Comment { event: id, data, .. } => {
                page.columns(event)?;
                page.no_duration()?;
                page.comment(state.depth, id, data)?;
            }
            Kind::Stack { addrs, cut, .. } => {
                page.columns(event)?;
                page.no_duration()?;
                page.stack(state.depth, addrs, cut)?;
            }
            Kind::Hit { func, parent_ip, .. } => {
                page.columns(event)?;
                page.no_duration()?;
                page.hit(state.depth, func, parent_ip)?;
            }
            Kind::Lost { .. } => {}
        }
        state.task = Some(event.task);
        Ok(())
    }

    /// Prints all events of several buffers, each in its own order, together in the order of their time. Of events
    /// with the same time, those of the first buffer come first.
    pub fn merged<'a, I: Iterator<Item = Event<'a>>>(
        &mut self,
        buffers: &mut [Peekable<I>],
        resolve: &dyn Resolve,
        out: &mut dyn Write,
    ) -> Result<(), Error> {
        loop {
            let heads = buffers.iter_mut().filter_map(|buffer| Some((buffer.peek()?.time_ns, buffer)));
            let Some((_, buffer)) = heads.min_by_key(|(time, _)| *time) else { return Ok(()) };
            if let Some(event) = buffer.next() {
                self.event(&event, buffer.peek(), resolve, out)?;
            }
        }
    }
}

/// Writes a return value of which no type is known, like Linux does: a register in hexadecimal, unless it holds an
/// error number and `form` wants these in decimal.
pub fn write_raw_retval(value: usize, form: RetvalForm, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    // A 32-bit error comes back in a register whose upper half is zero.
    let wide = value as u64;
    let signed = if usize::BITS == 64 && wide <= u64::from(u32::MAX) {
        i64::from(wide as u32 as i32)
    } else {
        value as isize as i64
    };
    if form == RetvalForm::Errors && (-4095..0).contains(&signed) {
        write!(f, "{signed}")
    } else {
        write!(f, "{value:#x}")
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::string::String;
    use std::vec::Vec;

    /// Room for so many bytes.
    struct Short(usize);

    impl Write for Short {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0 = self.0.checked_sub(text.len()).ok_or(fmt::Error)?;
            Ok(())
        }
    }

    #[test]
    fn what_could_not_be_written_can_be_given_again() {
        let entry = |func, depth| Kind::Entry { func, depth, ret_addr: None, args: &[] };
        let back = |func, depth| Kind::Return { func, depth, duration_ns: 1, retval: None, overrun: 0 };
        let comment = Kind::Comment { event: 0, data: b"x", context: Context::Task };
        let kinds = [
            [entry(1, 0), entry(2, 1), back(2, 1), comment, back(1, 0)],
            [back(9, 4), comment, entry(3, 2), Kind::Lost { count: 3 }, back(3, 2)],
        ];
        let event = |(i, kind)| Event { cpu: 0, time_ns: i, task: Task::new(i as u32 / 5, "t"), kind };
        let events: Vec<Event<'_>> = (0..).zip(kinds.as_flattened().iter().copied()).map(event).collect();

        for options in [Options::default(), Options::all() - Options::BARE, Options::all()] {
            let (mut plain, mut tried) = ([CpuState::NEW], [CpuState::NEW]);
            let mut plain = Printer::new(options, &mut plain);
            let mut tried = Printer::new(options, &mut tried);
            for (i, event) in events.iter().enumerate() {
                let (mut want, mut got) = (String::new(), String::new());
                plain.event(event, events.get(i + 1), &NoNames, &mut want).unwrap();
                for room in 0..want.len() {
                    let short = tried.event(event, events.get(i + 1), &NoNames, &mut Short(room));
                    assert_eq!(short, Err(Error::Write), "event {i}, room for {room}");
                }
                tried.event(event, events.get(i + 1), &NoNames, &mut got).unwrap();
                assert_eq!(got, want, "event {i}");
            }
        }
    }
}
