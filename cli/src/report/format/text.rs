//! The layout of function_graph.

use std::fmt;
use std::io::{self, Write};

use fgraph::Context;
use fgraph::text::{CpuState, Event as Printed, Kind, Options, Printer, Resolve, Retval, RetvalForm};

use super::super::event::{Args, Call, Caller, Event, Func, What};
use super::super::names::Names;
use super::super::types::Typed;
use super::Format;

/// Prints.
pub(in super::super) struct Text<'k, W> {
    out: W,
    typed: Option<&'k Typed<'k>>,
    options: Options,
    cpus: Vec<CpuState>,
    line: String,
}

impl<'k, W: Write> Text<'k, W> {
    /// `cpus` is how many there are at least.
    pub(in super::super) fn new(
        mut out: W,
        options: Options,
        cpus: u32,
        typed: Option<&'k Typed<'k>>,
    ) -> io::Result<Self> {
        let mut cpus = vec![CpuState::NEW; cpus.max(1) as usize];
        let mut line = String::new();
        // Writing to a `String` cannot fail.
        let _ = Printer::new(options, &mut cpus).header(&mut line);
        out.write_all(line.as_bytes())?;
        line.clear();
        Ok(Self { out, typed, options, cpus, line })
    }
}

/// What the printer asks about one event. Functions are counted from 1: for the printer, 0 is none.
struct About<'a> {
    names: &'a Names,
    call: Option<&'a Call>,
    caller: Option<Caller>,
    typed: Option<&'a Typed<'a>>,
    /// Whether addresses are asked about, not functions.
    stack: bool,
}

impl About<'_> {
    /// Types, and the address of a function.
    fn typed(&self, func: usize) -> Option<(&Typed<'_>, u64)> {
        let function = self.names.get(func.wrapping_sub(1) as Func).filter(|function| function.addr != 0)?;
        Some((self.typed?, function.addr))
    }
}

impl Resolve for About<'_> {
    fn name(&self, func: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.stack {
            return f.write_str(&self.names.code(func as u64));
        }
        f.write_str(self.names.function(func.wrapping_sub(1) as Func))
    }

    fn place(&self, addr: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.caller {
            Some(caller) => f.write_str(&self.names.caller(caller)),
            None => write!(f, "{addr:#x}"),
        }
    }

    fn caller(&self, addr: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.stack {
            return self.name(addr, f);
        }
        self.place(addr, f)
    }

    fn is_irq_entry(&self, func: usize) -> bool {
        self.names.get(func.wrapping_sub(1) as Func).is_some_and(|function| function.irq_entry)
    }

    fn has_retval(&self, func: usize) -> bool {
        let by_type = self.typed(func).and_then(|(typed, addr)| typed.has_retval(addr, &[]));
        by_type.unwrap_or_else(|| {
            !self.names.get(func.wrapping_sub(1) as Func).is_some_and(|function| function.void)
        })
    }

    fn write_typed_retval(&self, func: usize, retval: Retval<'_>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let registers = [Some(retval.first), retval.second];
        let registers: Vec<_> = registers.into_iter().flatten().collect();
        match self.typed(func).and_then(|(typed, addr)| typed.retval(addr, &registers, retval.memory)) {
            Some(text) => f.write_str(&text),
            None => self.write_retval(func, retval, RetvalForm::Errors, f),
        }
    }

    fn write_typed_args(&self, func: usize, args: &[usize], f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_words = matches!(self.call, Some(Call { args: Args::Words(_), .. }));
        match self.typed(func).filter(|_| is_words).and_then(|(typed, addr)| typed.args(addr, args)) {
            Some(text) => f.write_str(&text),
            None => self.write_args(func, args, f),
        }
    }

    fn write_args(&self, _: usize, args: &[usize], f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Call { args: Args::Text(text), .. }) = self.call {
            return f.write_str(text);
        }
        for (i, arg) in args.iter().enumerate() {
            write!(f, "{}{arg:#x}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

fn addr(caller: Option<Caller>) -> Option<usize> {
    caller.map(|caller| match caller {
        Caller::Addr(addr) => addr as usize,
        // `place` knows it.
        Caller::Place(_) => 0,
    })
}

fn enter(call: &Call) -> Kind<'_> {
    // Text is written by `write_args`, which is asked if there is anything.
    let args = match &call.args {
        Args::None => &[][..],
        Args::Words(words) => words,
        Args::Text(_) => &[0],
    };
    Kind::Entry { func: call.func as usize + 1, depth: call.depth, ret_addr: addr(call.caller), args }
}

fn leave(call: &Call) -> Kind<'_> {
    Kind::Return {
        func: call.func as usize + 1,
        depth: call.depth,
        duration_ns: call.duration().unwrap_or(0),
        retval: call.retval.map(|first| Retval {
            first: first as usize,
            second: call.retval2.map(|second| second as usize),
            memory: &call.memory,
        }),
        overrun: call.overrun,
    }
}

impl<W: Write> Format for Text<'_, W> {
    fn event(&mut self, event: &Event, names: &Names) -> io::Result<()> {
        if self.cpus.len() <= event.cpu as usize {
            self.cpus.resize(event.cpu as usize + 1, CpuState::NEW);
        }
        let call = event.call();
        let caller = match &event.what {
            What::Hit { caller, .. } => *caller,
            _ => call.and_then(|call| call.caller),
        };
        let stack = matches!(event.what, What::Stack { .. });
        let about = About { names, call, caller, typed: self.typed, stack };
        let task = names.task(event.task);
        let context = Context::Task;
        let at = |time_ns, kind| Printed { cpu: event.cpu, time_ns, task, kind };
        let (text, addrs): (String, Vec<usize>);
        let kinds = match &event.what {
            What::Enter(call) => [Some(at(event.time, enter(call))), None],
            What::Leave(call) => [Some(at(event.time, leave(call))), None],
            What::Leaf(call) => {
                [Some(at(event.time, enter(call))), Some(at(call.end.unwrap_or(event.time), leave(call)))]
            }
            What::Mark { id, data } => {
                text = names.mark(*id, data);
                [Some(at(event.time, Kind::Comment { event: 0, data: text.as_bytes(), context })), None]
            }
            What::Stack { addrs: words, cut } => {
                addrs = words.iter().map(|addr| *addr as usize).collect();
                [Some(at(event.time, Kind::Stack { addrs: &addrs, cut: *cut, context })), None]
            }
            What::Note(note) => {
                [Some(at(event.time, Kind::Comment { event: 0, data: note.as_bytes(), context })), None]
            }
            What::Hit { func, caller } => {
                let parent_ip = addr(*caller).unwrap_or(0);
                [Some(at(event.time, Kind::Hit { func: *func as usize + 1, parent_ip, context })), None]
            }
            What::Lost(count) => [Some(at(event.time, Kind::Lost { count: *count })), None],
        };
        let mut printer = Printer::new(self.options, &mut self.cpus);
        let [first, second] = &kinds;
        for (one, next) in [(first, second), (second, &None)] {
            if let Some(one) = one {
                // A `String` takes everything, and the CPU is there.
                let _ = printer.event(one, next.as_ref(), &about, &mut self.line);
            }
        }
        self.out.write_all(self.line.as_bytes())?;
        self.line.clear();
        Ok(())
    }

    fn finish(&mut self, _: &Names) -> io::Result<()> {
        self.out.flush()
    }
}
