//! Function commands: what is to happen when a function is entered, `vfs_read:traceoff:3`.
//!
//! A user of entries with a table of functions, what each does, and how often still. It is registered while there are any, for their
//! functions alone. Who writes the table holds a lock; the callback looks at it without one, and counts down.
//!
//! There are `traceon`, `traceoff`, `stacktrace` and `snapshot`; a function may have one of each. The buffers that a snapshot needs are
//! had when its command is written.

use core::fmt;

use spin::Mutex;

use super::control::FunctionsError;
use super::recording::{Entered, RingTracing};
use super::tracing::{Shown, TextPlace, Tracing};
use super::{Cause, Refused};
use crate::addr::{FuncAddr, RetAddr};
use crate::ascending::Ascending;
use crate::engine::{Engine, SetChange, WhichSet};
use crate::filter::Filter;
use crate::filter_text::{FilterLine, words};
use crate::machine::Machine;
use crate::ops::{Ops, OpsFlags};
use crate::platform::Platform;
use crate::regs::Regs;
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::text::Resolve;

/// The most commands, each of one function.
pub const MAX_COMMANDS: usize = 64;

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Act {
    TraceOff,
    TraceOn,
    StackTrace,
    Snapshot,
}

impl Act {
    const ALL: [Self; 4] = [Self::TraceOff, Self::TraceOn, Self::StackTrace, Self::Snapshot];

    fn name(self) -> &'static str {
        match self {
            Self::TraceOff => "traceoff",
            Self::TraceOn => "traceon",
            Self::StackTrace => "stacktrace",
            Self::Snapshot => "snapshot",
        }
    }

    fn of_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|act| *act as u32 == number)
    }

    /// Whether it does anything while records are written, or while none are.
    fn works(self, on: bool) -> bool {
        on == (self != Self::TraceOn)
    }
}

/// A command of one function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Command {
    func: FuncAddr,
    act: Act,
    /// How often still; `None` for always.
    left: Option<u64>,
}

/// How often still, as a word that the callback counts down: so often, or always.
const ALWAYS: u64 = u64::MAX;

/// A place of the table.
#[derive(Debug)]
struct Place {
    /// 0 for none.
    func: AtomicUsize,
    left: AtomicU64,
    /// The number of an [`Act`].
    act: AtomicU32,
}

impl Place {
    const fn empty() -> Self {
        Self { func: AtomicUsize::new(0), left: AtomicU64::new(0), act: AtomicU32::new(0) }
    }

    fn get(&self) -> Option<Command> {
        let func = self.func.load(Ordering::Acquire);
        let left = self.left.load(Ordering::Relaxed);
        let act = Act::of_number(self.act.load(Ordering::Relaxed))?;
        let left = (left != ALWAYS).then_some(left);
        (func != 0).then_some(Command { func: FuncAddr::new(func), act, left })
    }

    /// Control side. The place is empty, and no callback looks at what was there before.
    fn fill(&self, command: &Command) {
        self.act.store(command.act as u32, Ordering::Relaxed);
        self.left.store(command.left.unwrap_or(ALWAYS), Ordering::Relaxed);
        self.func.store(command.func.get(), Ordering::Release);
    }

    /// Takes one of the times that are left. Any context.
    fn take_one(&self) -> bool {
        let less = |left: u64| if left == ALWAYS { Some(left) } else { left.checked_sub(1) };
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
}

/// The commands of an image. See the module; kept in a `static`.
#[derive(Debug)]
pub struct Commands<R: Regs> {
    ops: Ops<R>,
    table: [Place; MAX_COMMANDS],
    /// What they switch; null until there was one.
    tracing: AtomicPtr<RingTracing>,
    /// One writer at a time.
    control: Mutex<()>,
}

impl<R: Regs> Commands<R> {
    /// None.
    pub const fn new() -> Self {
        Self {
            ops: Ops::new(entered, OpsFlags::empty(), Filter::NONE),
            table: [const { Place::empty() }; MAX_COMMANDS],
            tracing: AtomicPtr::new(core::ptr::null_mut()),
            control: Mutex::new(()),
        }
    }

    fn ops(&'static self) -> &'static Ops<R> {
        self.ops.owner.set(self);
        &self.ops
    }

    fn tracing(&self) -> Option<&'static RingTracing> {
        // SAFETY: null, or from a `&'static` in `write`.
        unsafe { self.tracing.load(Ordering::Acquire).as_ref() }
    }

    /// Writes the next command, by its place in the table.
    pub(super) fn next(&self, place: &mut TextPlace, names: &dyn Resolve, out: &mut dyn fmt::Write) -> Shown {
        let from = place.texts as usize;
        let rest = self.table.iter().enumerate().skip(from);
        let Some((at, command)) = rest.filter_map(|(at, place)| Some((at, place.get()?))).next() else {
            return Shown::End;
        };
        let name = Name { func: command.func, names };
        let written = match command.left {
            None => writeln!(out, "{name}:{}:unlimited", command.act.name()),
            Some(left) => writeln!(out, "{name}:{}:count={left}", command.act.name()),
        };
        if written.is_ok() {
            place.texts = at as u64 + 1;
        }
        Shown::Text
    }

    /// Carries the commands of a text out: all of them or none. `functions` does the same with the rest of the text; it comes in between,
    /// when nothing can be wrong with the commands any more but that the engine has no place for their user.
    pub(super) fn write<P: Platform, M: Machine<Regs = R>>(
        &'static self,
        engine: &'static Engine<P, M>,
        tracing: &'static RingTracing,
        text: &str,
        functions: impl FnOnce() -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        let _one = self.control.lock();
        let mut draft = Draft {
            commands: self.table.each_ref().map(Place::get),
            changed: [false; MAX_COMMANDS],
            first: None,
            alone: true,
        };
        let mut words = words(text);
        while let Some((_, word)) = words.next_at() {
            let line = word.map_err(|cause| {
                Refused::at(cause.column(), Cause::Word(crate::words::Cause::Parse(cause)))
            })?;
            draft.word(engine, text, &line)?;
        }
        if draft.commands.iter().flatten().any(|command| command.act == Act::Snapshot) {
            tracing.make_spares()?;
        }
        self.tracing.store(core::ptr::from_ref(tracing).cast_mut(), Ordering::Release);
        functions()?;
        self.publish(engine, &draft).map_err(|error| {
            let column = draft.first.unwrap_or(0);
            Refused::at(column, if draft.alone { Cause::Functions(error) } else { Cause::CommandsNot(error) })
        })
    }

    /// Drops all commands. They are gone when this returns, whatever the engine says of the text.
    pub(super) fn forget<P: Platform, M: Machine<Regs = R>>(&'static self, engine: &'static Engine<P, M>) {
        let _one = self.control.lock();
        let _ = engine.unregister_ops(self.ops());
        self.table.iter().for_each(|place| place.func.store(0, Ordering::Release));
    }

    /// Under the lock.
    fn publish<P: Platform, M: Machine<Regs = R>>(
        &'static self,
        engine: &'static Engine<P, M>,
        draft: &Draft,
    ) -> Result<(), FunctionsError> {
        let mut room = [FuncAddr::new(0); MAX_COMMANDS];
        let mut funcs = Ascending::new(&mut room);
        draft.commands.iter().flatten().for_each(|command| funcs.add(command.func));
        let funcs = funcs.into_slice();
        let had_any = self.table.iter().any(|place| place.get().is_some());
        if !funcs.is_empty() {
            engine.change_ops(self.ops(), WhichSet::Filter, SetChange::Replace(funcs))?;
            if !had_any {
                engine.register_ops(self.ops())?;
            }
        }
        let changed = || {
            let places = self.table.iter().zip(&draft.commands).zip(&draft.changed);
            places.filter(|(_, changed)| **changed).map(|(pair, _)| pair)
        };
        changed().for_each(|(place, _)| place.func.store(0, Ordering::Release));
        // So that no callback takes an old function's command for the new one's. What others are counted down to stays.
        engine.synchronize();
        changed().for_each(|(place, command)| command.iter().for_each(|command| place.fill(command)));
        if funcs.is_empty() && had_any {
            engine.unregister_ops(self.ops())?;
        }
        Ok(())
    }
}

impl<R: Regs> Default for Commands<R> {
    fn default() -> Self {
        Self::new()
    }
}

/// A function's name, for text.
struct Name<'a> {
    func: FuncAddr,
    names: &'a dyn Resolve,
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.names.name(self.func.get(), f)
    }
}

/// The table as it will be.
struct Draft {
    commands: [Option<Command>; MAX_COMMANDS],
    changed: [bool; MAX_COMMANDS],
    /// Where the first command stands.
    first: Option<usize>,
    /// No word of the text is a function's.
    alone: bool,
}

impl Draft {
    fn word<P: Platform, M: Machine>(
        &mut self,
        engine: &Engine<P, M>,
        text: &str,
        line: &FilterLine<'_>,
    ) -> Result<(), Refused> {
        let Some(command) = line.command else {
            self.alone = false;
            return Ok(());
        };
        self.first = self.first.or(Some(command.column));
        let act = Act::ALL.into_iter().find(|act| act.name() == command.name);
        let act = act.ok_or(Refused::at(command.column, Cause::NoSuchCommand))?;
        // Up to the colon before the command.
        let begin = line.column + usize::from(line.remove);
        let target = text.get(begin..command.column.saturating_sub(1)).unwrap_or("");
        let mut room = [FuncAddr::new(0); MAX_COMMANDS];
        let funcs = engine.functions_of_words(target, &mut room).map_err(|error| {
            let refused = Refused::from(error);
            Refused { column: begin + refused.column, ..refused }
        })?;
        let mut done = false;
        for &func in funcs {
            let is_it =
                |there: &Option<Command>| there.is_some_and(|there| (there.func, there.act) == (func, act));
            let place = self.commands.iter().position(is_it);
            if line.remove {
                done |= place.is_some_and(|place| self.set(place, None));
                continue;
            }
            let place = place.or_else(|| self.commands.iter().position(Option::is_none));
            let full = FunctionsError::TooMany { count: MAX_COMMANDS + 1, max: MAX_COMMANDS };
            let place = place.ok_or(Refused::at(line.column, Cause::Functions(full)))?;
            done |= self.set(place, Some(Command { func, act, left: command.count }));
        }
        if done { Ok(()) } else { Err(Refused::at(line.column, Cause::NoneThere)) }
    }

    /// Whether there is such a place.
    fn set(&mut self, place: usize, command: Option<Command>) -> bool {
        let places = self.commands.get_mut(place).zip(self.changed.get_mut(place));
        places.map(|(there, changed)| (*there, *changed) = (command, true)).is_some()
    }
}

/// A function with a command was entered. Any context.
fn entered<R: Regs>(ip: FuncAddr, parent_ip: RetAddr, ops: &Ops<R>, fregs: &mut R) {
    // SAFETY: this callback is private, and only `Commands::new` makes ops with it: those of a `Self`, which leave it through
    // `Commands::ops` alone, by shared reference. That is who sets their owner.
    let Some(commands) = (unsafe { ops.owner.get::<Commands<R>>() }) else { return };
    let Some(tracing) = commands.tracing() else { return };
    // What one hit does, it does with what it found, whatever the order of its commands: what changes nothing does not count.
    let on = tracing.is_on();
    let mut due = [false; Act::ALL.len()];
    for place in &commands.table {
        if place.func.load(Ordering::Acquire) != ip.get() {
            continue;
        }
        let Some(act) = Act::of_number(place.act.load(Ordering::Relaxed)) else { continue };
        let works = act.works(on) && (act != Act::Snapshot || tracing.can_snapshot());
        if let Some(due) = due.get_mut(act as usize) {
            *due |= works && place.take_one();
        }
    }
    let [off, on, stack, snapshot] = due;
    // The stack is in the snapshot, and both are there before nothing is recorded any more.
    if stack {
        let (key, task, sp, fp) = (fregs.key(), fregs.task(), fregs.sp(), fregs.fp());
        tracing.record_stack(&Entered { func: ip, parent_ip, key, task, sp, fp });
    }
    if snapshot {
        tracing.snapshot_now();
    }
    if on || off {
        tracing.set_on(on);
    }
}
