//! The [`Tracing`] of a kernel that records into this crate's ring buffers.
//!
//! [`RingTracing`] is what stands between the files and the rings: it switches them, resizes them, sets them aside, and makes text of
//! them. Two things are behind traits: the [`Recorder`], which starts and stops tracers ([`LiveRecorder`](crate::LiveRecorder) is the
//! one of this image), and the [`Host`], which is what only the embedder knows: memory, time, tasks and names.
//!
//! # What differs from Linux
//! * A buffer that gets another size is a new one: what was in the old one goes.
//! * `trace` and `per_cpu/cpuN/trace` go on recording meanwhile; who reads sees what is there when he comes to it.
//! * With `trace_pipe`, a call that took longer than the lent memory has room for is shown by its return alone.

use core::fmt;

use spin::Mutex;

use super::TraceOption;
use super::tracing::{
    Buffers, CpuStats, Shown, SnapshotAct, TextPlace, TraceText, Tracer, Tracing, TracingError,
};
use crate::addr::{FuncAddr, RetAddr, StackKey};
use crate::engine::Error;
use crate::quiesce::MAX_CPUS;
use crate::ring::{Buffer, Mode, Ring};
use crate::sync::{AtomicBool, AtomicU64, Ordering};
use crate::task::TaskTrace;
use crate::text::{CpuState, Options, Printer, Resolve, function_line, trace_header};
use crate::trace::{Part, Reading, Trace};
use crate::wire::text_len;
use crate::wire::tree::Key;

mod life;
mod look;
mod snapshot;

pub use life::InstanceMemory;
use look::Look;
use snapshot::Spares;

bitflags::bitflags! {
    /// What is recorded of a call beside its times.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Recorded: u32 {
        /// The register that it returned something in, if it returned anything (`funcgraph-retval`).
        const RETVAL = 1 << 0;
        /// The second such register; of functions that use it, where somebody has told which do.
        const SECOND = 1 << 1;
        /// Where it returned to (`funcgraph-retaddr`).
        const RET_ADDR = 1 << 2;
        /// The argument registers at its entry (`funcgraph-args`).
        const ARGS = 1 << 3;
    }
}

/// What only the embedder knows. Task context, except for [`cpus`](Self::cpus).
pub trait Host: Sync {
    /// How many CPUs there are; the same number always. Any context.
    fn cpus(&self) -> usize;

    /// The time, as [`Key::time_ns`] has it for a record that is made now.
    fn now_ns(&self) -> u64;

    /// What numbers in records stand for.
    fn key(&self) -> &dyn Key;

    /// Names.
    fn names(&self) -> &dyn Resolve;

    /// Calls `each` with the tasks whose names are known: number and name.
    fn tasks(&self, each: &mut dyn FnMut(u32, &str));

    /// A buffer of at least so many KiB for this CPU's records, which is in no ring.
    ///
    /// # Errors
    /// There is no such memory: how many KiB each CPU can have.
    fn buffer(&self, cpu: usize, kb: u64) -> Result<&'static Buffer, u64>;

    /// A buffer is not needed any more. A record that was begun may still be finished in it until every CPU has once let preemption
    /// happen; it may be handed out again at once, for the same CPU.
    fn give_back(&self, buffer: &'static Buffer);

    /// Memory for an instance: asked for once for each place that is ever used, and kept by it. `None` if there is none, as without
    /// instances.
    fn instance_memory(&self) -> Option<InstanceMemory> {
        None
    }
}

/// What starts tracers. Task context, except for the rings.
pub trait Recorder: Sync {
    /// The ring of a CPU. Any context.
    fn ring(&self, cpu: usize) -> Option<&'static Ring>;

    /// Lets a tracer record; nothing for [`Tracer::Nop`].
    ///
    /// # Errors
    /// As [`Engine::register_graph`](crate::Engine::register_graph).
    fn start(&self, tracer: Tracer) -> Result<(), Error>;

    /// Takes a tracer out.
    ///
    /// # Errors
    /// As [`Engine::unregister_graph`](crate::Engine::unregister_graph): the tracer is out even then.
    fn stop(&self, tracer: Tracer) -> Result<(), Error>;

    /// Chooses what is recorded of calls.
    fn set_recorded(&self, recorded: Recorded);

    /// Whether the function tracer records who calls behind each entry, as [`stack`](Self::stack) does.
    fn set_stacks(&self, on: bool);

    /// Records a text on this CPU: its [`pieces`](crate::wire::pieces), with no other task in between. Whether all were taken.
    fn mark(&self, text: &[u8]) -> bool;

    /// Records who calls a function that is being entered, on this CPU, as [`STACK_MARK`](crate::wire::STACK_MARK). Any context, with
    /// preemption off.
    fn stack(&self, entered: &Entered);
}

/// Bytes of a text that no other task comes in between.
const MARKED_AT_ONCE: usize = 4096;

/// A function that is being entered.
#[derive(Clone, Copy, Debug)]
pub struct Entered {
    /// The function.
    pub func: FuncAddr,
    /// Where it returns to; perhaps the return hooker.
    pub parent_ip: RetAddr,
    /// The key of its shadow frame, if it has one.
    pub key: StackKey,
    /// The task that enters it.
    pub task: Option<&'static TaskTrace>,
    /// The stack pointer.
    pub sp: usize,
    /// The frame pointer, which is its caller's.
    pub fp: usize,
}

/// Memory for one reader: a part and a state for each CPU. The parts are idle.
#[derive(Debug)]
pub struct ReaderMemory {
    /// A part for each CPU.
    pub parts: &'static mut [Part<'static>],
    /// What has been printed of each.
    pub printed: &'static mut [CpuState],
}

impl ReaderMemory {
    fn scope(&mut self, cpu: Option<usize>) -> (&mut [Part<'static>], &mut [CpuState]) {
        let parts = match cpu {
            None => &mut *self.parts,
            Some(cpu) => self.parts.get_mut(cpu..=cpu).unwrap_or(&mut []),
        };
        (parts, self.printed)
    }

    fn stop(&mut self, cpu: Option<usize>) {
        self.scope(cpu).0.iter_mut().for_each(Part::stop);
    }

    fn print_anew(&mut self) {
        self.printed.fill(CpuState::NEW);
    }
}

/// All memory that reading takes.
#[derive(Debug)]
pub struct TracingMemory {
    /// For `trace`, `per_cpu/cpuN/trace` and `snapshot`.
    pub text: ReaderMemory,
    /// For `trace_pipe` and `per_cpu/cpuN/trace_pipe`.
    pub pipe: ReaderMemory,
    /// Room for a page of a buffer, for figures.
    pub page: &'static mut [u64],
}

/// The reading that goes on where it is, if its place comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kept {
    text: TraceText,
    place: TextPlace,
}

#[derive(Debug)]
struct State {
    tracer: Tracer,
    look: Look,
    overwrites: bool,
    marks: bool,
    stacks: bool,
    memory: Option<TracingMemory>,
    kept: Option<Kept>,
    /// How many readings have begun.
    stamp: u64,
    /// Records that were there when the kept reading began, and how many had been written.
    counted: [u64; 2],
}

/// See the module. Kept in a `static`.
pub struct RingTracing {
    host: &'static dyn Host,
    recorder: &'static dyn Recorder,
    on: AtomicBool,
    cpumask: AtomicU64,
    spares: Spares,
    state: Mutex<State>,
}

impl fmt::Debug for RingTracing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingTracing").finish_non_exhaustive()
    }
}

impl RingTracing {
    /// Nothing is recorded, and there are no buffers.
    pub const fn new(host: &'static dyn Host, recorder: &'static dyn Recorder) -> Self {
        Self {
            host,
            recorder,
            on: AtomicBool::new(true),
            cpumask: AtomicU64::new(u64::MAX),
            spares: Spares::new(),
            state: Mutex::new(State::new()),
        }
    }

    fn new_buffer(&self, state: &State, cpu: usize, kb: u64) -> Result<&'static Buffer, TracingError> {
        let buffer = self.host.buffer(cpu, kb).map_err(|most_kb| TracingError::NoMemory { kb, most_kb })?;
        buffer.reset();
        buffer.set_mode(state.mode());
        Ok(buffer)
    }

    /// Records who calls a function. Any context, with preemption off.
    pub(super) fn record_stack(&self, entered: &Entered) {
        self.recorder.stack(entered);
    }

    /// Makes the rings what `on` and the mask say. Who changes those comes here afterwards, in any context, so the last one sees all.
    fn settle(&self) {
        loop {
            let (on, mask) = (self.on.load(Ordering::SeqCst), self.cpumask.load(Ordering::SeqCst));
            for cpu in 0..self.host.cpus().min(MAX_CPUS) {
                let Some(ring) = self.recorder.ring(cpu) else { continue };
                if on && mask & 1 << cpu != 0 { ring.on() } else { ring.off() }
            }
            if on == self.on.load(Ordering::SeqCst) && mask == self.cpumask.load(Ordering::SeqCst) {
                return;
            }
        }
    }

    /// The CPUs that a file speaks of.
    fn scope(&self, cpu: Option<usize>) -> Result<core::ops::Range<usize>, TracingError> {
        let cpus = self.cpus();
        match cpu {
            None => Ok(0..cpus),
            Some(cpu) if cpu < cpus => Ok(cpu..cpu + 1),
            Some(cpu) => Err(TracingError::NoSuchCpu { cpu, cpus }),
        }
    }

    fn live(&self, cpu: usize) -> Option<&'static Buffer> {
        self.recorder.ring(cpu)?.buffer()
    }

    fn buffer_of(&self, buffers: Buffers, cpu: usize) -> Option<&'static Buffer> {
        match buffers {
            Buffers::Live => self.live(cpu),
            Buffers::Snapshot => self.spares.get(cpu),
        }
    }

    /// Begins a reading: counts what is there, and lets the parts read it.
    fn begin_text(&self, state: &mut State, text: TraceText) -> Result<(), TracingError> {
        let cpus = self.scope(text.cpu)?;
        if text.buffers == Buffers::Snapshot && !self.spares.are_any() {
            return Err(TracingError::NoSnapshot);
        }
        state.kept = None;
        state.stamp += 1;
        state.counted = [0; 2];
        let Some(mut memory) = state.memory.take() else { return Err(TracingError::NotSupported) };
        memory.text.stop(None);
        memory.text.print_anew();
        for cpu in cpus {
            let Some(buffer) = self.buffer_of(text.buffers, cpu) else { continue };
            if let Ok(figures) = buffer.figures(memory.page) {
                state.counted[0] += figures.entries;
                state.counted[1] += figures.entries + figures.overwritten + figures.read;
            }
            // A part without room for a page shows nothing.
            let _ = memory.text.parts.get_mut(cpu).map(|part| part.start(buffer, Reading::PeekRest));
        }
        state.memory = Some(memory);
        Ok(())
    }

    /// Writes the head or the next event.
    fn write_text(
        &self,
        state: &mut State,
        kept: Kept,
        out: &mut dyn fmt::Write,
    ) -> Result<Shown, fmt::Error> {
        let State { tracer, look, counted, memory: Some(memory), .. } = state else { return Ok(Shown::End) };
        if kept.place.texts == 0 {
            match tracer {
                Tracer::FunctionGraph => Printer::new(look.graph(), memory.text.printed).header(out)?,
                tracer => {
                    trace_header(out, tracer.name(), look.lines(), counted[0], counted[1], self.cpus())?
                }
            }
            return Ok(Shown::Text);
        }
        let (parts, printed) = memory.text.scope(kept.text.cpu);
        self.write_event((*tracer, *look), parts, printed, out)
    }

    fn write_event(
        &self,
        (tracer, look): (Tracer, Look),
        parts: &mut [Part<'static>],
        printed: &mut [CpuState],
        out: &mut dyn fmt::Write,
    ) -> Result<Shown, fmt::Error> {
        let names = self.host.names();
        // The column of CPUs is as wide as they need.
        let printed = printed.get_mut(..self.cpus()).unwrap_or(&mut []);
        let mut printer = Printer::new(look.graph(), printed);
        let written = Trace::new(parts).next(self.host.key(), &mut |event, next| match tracer {
            Tracer::FunctionGraph => printer.event(event, next, names, out).map_err(|_| fmt::Error),
            Tracer::Function | Tracer::Nop => function_line(event, look.lines(), names, out),
        });
        match written {
            None => Ok(Shown::End),
            Some(written) => written.map(|()| Shown::Text),
        }
    }

    /// Lets pipes that have begun go on in the buffers that are recorded into.
    fn follow(&self, pipes: &mut [Part<'static>]) {
        for (cpu, part) in pipes.iter_mut().enumerate() {
            if let Some(buffer) = self.live(cpu).filter(|_| !part.is_idle()) {
                part.follow(buffer);
            }
        }
    }
}

/// Forgets everything that is written to it.
struct Nowhere;

impl fmt::Write for Nowhere {
    fn write_str(&mut self, _: &str) -> fmt::Result {
        Ok(())
    }
}

fn kib(buffer: &Buffer) -> u64 {
    buffer.len() as u64 * 8 / 1024
}

impl State {
    const fn new() -> Self {
        Self {
            tracer: Tracer::Nop,
            look: Look::FIRST,
            overwrites: true,
            marks: true,
            stacks: false,
            memory: None,
            kept: None,
            stamp: 0,
            counted: [0; 2],
        }
    }

    fn mode(&self) -> Mode {
        if self.overwrites { Mode::Overwrite } else { Mode::StopWhenFull }
    }

    /// What some CPUs have recorded is forgotten, and what readers have read of it.
    fn forget(&mut self, cpu: Option<usize>) {
        self.kept = None;
        if let Some(memory) = &mut self.memory {
            memory.text.stop(None);
            memory.pipe.stop(cpu);
            if cpu.is_none() {
                memory.pipe.print_anew();
            }
        }
    }

    fn recorded(&self) -> Recorded {
        let (mut recorded, shown) = (Recorded::RETVAL, self.look.graph());
        recorded.set(Recorded::RET_ADDR, shown.contains(Options::RETADDR));
        recorded.set(Recorded::ARGS, shown.contains(Options::ARGS));
        recorded.set(Recorded::SECOND, shown.contains(Options::RETVAL));
        recorded
    }
}

impl Tracing for RingTracing {
    fn cpus(&self) -> usize {
        self.host.cpus().min(MAX_CPUS)
    }

    fn now_ns(&self) -> u64 {
        self.host.now_ns()
    }

    fn tracer(&self) -> Tracer {
        self.state.lock().tracer
    }

    fn set_tracer(&self, tracer: Tracer) -> Result<(), TracingError> {
        let mut state = self.state.lock();
        let before = state.tracer;
        if tracer == before {
            return Ok(());
        }
        // The new one first: if it is refused, nothing has changed.
        self.recorder.start(tracer)?;
        let stopped = self.recorder.stop(before);
        state.tracer = tracer;
        state.forget(None);
        (0..self.cpus()).filter_map(|cpu| self.live(cpu)).for_each(Buffer::reset);
        Ok(stopped?)
    }

    fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    fn set_on(&self, on: bool) {
        self.on.store(on, Ordering::SeqCst);
        self.settle();
    }

    fn option(&self, option: TraceOption) -> Option<bool> {
        let state = self.state.lock();
        match option {
            TraceOption::Overwrite => Some(state.overwrites),
            TraceOption::Markers => Some(state.marks),
            TraceOption::FuncStackTrace => Some(state.stacks),
            option => state.look.has(option),
        }
    }

    fn set_option(&self, option: TraceOption, on: bool) -> Result<(), TracingError> {
        let mut state = self.state.lock();
        match option {
            TraceOption::Overwrite => {
                state.overwrites = on;
                let mode = state.mode();
                let buffers = |cpu| [self.live(cpu), self.spares.get(cpu)].into_iter().flatten();
                (0..self.cpus()).flat_map(buffers).for_each(|buffer| buffer.set_mode(mode));
            }
            TraceOption::Markers => state.marks = on,
            TraceOption::FuncStackTrace => {
                state.stacks = on;
                self.recorder.set_stacks(on);
            }
            option => {
                state.look.set(option, on).ok_or(TracingError::NotSupported)?;
                self.recorder.set_recorded(state.recorded());
            }
        }
        Ok(())
    }

    fn next_text(
        &self,
        text: TraceText,
        place: &mut TextPlace,
        out: &mut dyn fmt::Write,
    ) -> Result<Shown, TracingError> {
        self.scope(text.cpu)?;
        let mut state = self.state.lock();
        let mut kept = Kept { text, place: *place };
        if *place == TextPlace::START || state.kept != Some(kept) {
            self.begin_text(&mut state, text)?;
            kept.place = TextPlace { stamp: state.stamp, texts: 0 };
            while kept.place.texts < place.texts {
                if self.write_text(&mut state, kept, &mut Nowhere) != Ok(Shown::Text) {
                    return Ok(Shown::End);
                }
                kept.place.texts += 1;
            }
        }
        let shown = match self.write_text(&mut state, kept, out) {
            Ok(Shown::End) => Shown::End,
            Ok(Shown::Text) => {
                kept.place.texts += 1;
                Shown::Text
            }
            Err(fmt::Error) => Shown::Text,
        };
        state.kept = Some(kept);
        *place = kept.place;
        Ok(shown)
    }

    fn next_piped(&self, cpu: Option<usize>, out: &mut dyn fmt::Write) -> Result<Shown, TracingError> {
        let cpus = self.scope(cpu)?;
        let mut state = self.state.lock();
        let State { tracer, look, memory: Some(memory), .. } = &mut *state else {
            return Err(TracingError::NotSupported);
        };
        for cpu in cpus {
            if let (Some(buffer), Some(part)) = (self.live(cpu), memory.pipe.parts.get_mut(cpu))
                && part.is_idle()
            {
                part.start(buffer, Reading::Consume).map_err(|_| TracingError::Busy)?;
            }
        }
        self.follow(memory.pipe.parts);
        let (parts, printed) = memory.pipe.scope(cpu);
        Ok(self.write_event((*tracer, *look), parts, printed, out).unwrap_or(Shown::Text))
    }

    fn clear(&self, cpu: Option<usize>) -> Result<(), TracingError> {
        let cpus = self.scope(cpu)?;
        self.state.lock().forget(cpu);
        cpus.filter_map(|cpu| self.live(cpu)).for_each(Buffer::reset);
        // One that came on top may have found a buffer being emptied.
        self.take_wanted();
        Ok(())
    }

    fn buffer_kb(&self, cpu: usize) -> Result<u64, TracingError> {
        self.scope(Some(cpu))?;
        Ok(self.live(cpu).map_or(0, kib))
    }

    fn set_buffer_kb(&self, cpu: Option<usize>, kb: u64) -> Result<(), TracingError> {
        self.resize(cpu, kb)
    }

    fn stats(&self, cpu: usize) -> Result<CpuStats, TracingError> {
        self.scope(Some(cpu))?;
        let mut state = self.state.lock();
        let memory = state.memory.as_mut().ok_or(TracingError::NotSupported)?;
        let now_ns = self.now_ns();
        let Some(buffer) = self.live(cpu) else { return Ok(CpuStats { now_ns, ..CpuStats::default() }) };
        let figures = buffer.figures(memory.page).map_err(|_| TracingError::NotSupported)?;
        Ok(CpuStats {
            entries: figures.entries,
            overrun: figures.overwritten,
            commit_overrun: 0,
            bytes: figures.bytes,
            oldest_ns: if figures.entries == 0 { 0 } else { self.host.key().time_ns(figures.oldest) },
            now_ns,
            dropped: figures.refused,
            read: figures.read,
        })
    }

    fn has_snapshot(&self) -> bool {
        self.spares.are_any()
    }

    fn snapshot(&self, act: SnapshotAct, cpu: Option<usize>) -> Result<(), TracingError> {
        self.snapshot_act(act, cpu)
    }

    fn mark(&self, text: &[u8]) -> Result<(), TracingError> {
        if !self.is_on() || !self.state.lock().marks {
            return Err(TracingError::Off);
        }
        let mut rest = text;
        while !rest.is_empty() {
            // Preemption is off for so long.
            let (part, behind) = rest.split_at(text_len(rest, MARKED_AT_ONCE));
            if !self.recorder.mark(part) {
                return Err(TracingError::Off);
            }
            rest = behind;
        }
        Ok(())
    }

    fn tasks(&self, each: &mut dyn FnMut(u32, &str)) {
        self.host.tasks(each);
    }

    fn cpumask(&self) -> u64 {
        let cpus = self.cpus();
        let all = if cpus >= 64 { u64::MAX } else { (1 << cpus) - 1 };
        self.cpumask.load(Ordering::Relaxed) & all
    }

    fn set_cpumask(&self, mask: u64) -> Result<(), TracingError> {
        self.cpumask.store(mask, Ordering::SeqCst);
        self.settle();
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests;
