//! What the files need of the tracer: the trait [`Tracing`], which a tracer on ring buffers implements.
//!
//! Every function is called in task context, by one file at a time (the files hold their lock meanwhile), unless it says
//! otherwise. None may call the files. What is refused changes nothing.

use core::fmt;

use super::TraceOption;
use crate::engine::Error;

/// What is recorded (`current_tracer`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracer {
    /// Nothing.
    Nop,
    /// Entries of functions.
    Function,
    /// Calls, with their times.
    FunctionGraph,
}

impl Tracer {
    /// All of them, in the order in which `available_tracers` has them.
    pub const ALL: [Self; 3] = [Self::FunctionGraph, Self::Function, Self::Nop];

    /// What it is called.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nop => "nop",
            Self::Function => "function",
            Self::FunctionGraph => "function_graph",
        }
    }

    /// The tracer of that name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tracer| tracer.name() == name)
    }
}

/// Which buffers are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffers {
    /// Those that are recorded into.
    Live,
    /// Those that were set aside.
    Snapshot,
}

/// A text of events that is read without being consumed: `trace`, `per_cpu/cpuN/trace`, `snapshot`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceText {
    /// Of which buffers.
    pub buffers: Buffers,
    /// Of one CPU, or of all merged by time.
    pub cpu: Option<usize>,
}

/// How far a text has been read. Made by the files as [`START`](Self::START), and moved on only by who writes the text.
///
/// Both numbers are free for that to use. What is meant: the state of a reader (positions in rings, a printer) is kept once, beside the
/// tracer, with the place that it stands at. A place that is the kept one goes on there; any other begins again, and passes over so many
/// texts. So nothing has to be told when a reader goes away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextPlace {
    /// Which reading this is; 0 for one that has not begun.
    pub stamp: u64,
    /// How many texts there were.
    pub texts: u64,
}

impl TextPlace {
    /// The beginning.
    pub const START: Self = Self { stamp: 0, texts: 0 };
}

/// What came of asking for the next text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// Something was written, or passed over without a text; there may be more.
    Text,
    /// Nothing was written: for now, there is no more.
    End,
}

/// The figures of one CPU (`per_cpu/cpuN/stats`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuStats {
    /// Records that can be read.
    pub entries: u64,
    /// Records that were overwritten before anybody read them.
    pub overrun: u64,
    /// Records that were lost to a writer that was interrupted for too long.
    pub commit_overrun: u64,
    /// Bytes that the readable records take.
    pub bytes: u64,
    /// When the oldest of them was written.
    pub oldest_ns: u64,
    /// The time now.
    pub now_ns: u64,
    /// Records that were refused by a full buffer.
    pub dropped: u64,
    /// Records that were consumed.
    pub read: u64,
}

/// What `snapshot` is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotAct {
    /// `0`: the snapshot is given up with its memory.
    Free,
    /// `1`: what was recorded until now is set aside, and recording goes on in the other buffers, which are had first if they are not
    /// there.
    Take,
    /// Anything else: the snapshot is emptied, and its memory stays.
    Clear,
}

/// Why the tracer does not do what a file was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TracingError {
    /// There is no such CPU.
    NoSuchCpu {
        /// The number.
        cpu: usize,
        /// How many there are.
        cpus: usize,
    },
    /// It cannot do that at all.
    NotSupported,
    /// Not now: somebody is reading, or recording into, what is to change.
    Busy,
    /// There is not so much memory.
    NoMemory {
        /// KiB that were asked for, of each CPU.
        kb: u64,
        /// KiB that each CPU can have.
        most_kb: u64,
    },
    /// There are no buffers for a snapshot.
    NoSnapshot,
    /// Nothing is recorded while the tracer is off.
    Off,
    /// The engine does not.
    Engine(Error),
}

impl fmt::Display for TracingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchCpu { cpu, cpus } => write!(f, "there is no CPU {cpu}: there are {cpus}"),
            Self::NotSupported => f.write_str("this tracer cannot do that"),
            Self::Busy => f.write_str("the buffers are in use"),
            Self::NoMemory { kb, most_kb } => {
                write!(f, "there is no memory for {kb} KiB of each CPU: {most_kb} are possible")
            }
            Self::NoSnapshot => f.write_str("there are no buffers for a snapshot"),
            Self::Off => f.write_str("recording is switched off"),
            Self::Engine(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for TracingError {}

impl From<Error> for TracingError {
    fn from(error: Error) -> Self {
        Self::Engine(error)
    }
}

/// What the files need of the tracer. See the module.
pub trait Tracing: Sync {
    /// How many CPUs there are.
    fn cpus(&self) -> usize;

    /// The time, on the clock of the records.
    fn now_ns(&self) -> u64;

    /// What is recorded.
    fn tracer(&self) -> Tracer;

    /// Records something else. What was recorded goes, if it is another tracer's; the same tracer once more changes nothing.
    ///
    /// # Errors
    /// Usually [`TracingError::Engine`].
    fn set_tracer(&self, tracer: Tracer) -> Result<(), TracingError>;

    /// Whether anything is written to the buffers (`tracing_on`).
    fn is_on(&self) -> bool;

    /// Switches that. Any context.
    fn set_on(&self, on: bool);

    /// An option; `None` for one that this tracer does not have. Such a one is in no file. `sleep-time` and `graph-time` never
    /// come here, since they belong to the limits.
    fn option(&self, option: TraceOption) -> Option<bool>;

    /// Sets an option.
    ///
    /// # Errors
    /// [`TracingError::NotSupported`] for one that it does not have.
    fn set_option(&self, option: TraceOption, on: bool) -> Result<(), TracingError>;

    /// The names of the clocks there are, and which of them is used, by its place.
    fn clocks(&self) -> (&[&str], usize) {
        (&["local"], 0)
    }

    /// Uses another clock, by its place. What was recorded goes.
    ///
    /// # Errors
    /// As the tracer has them.
    fn set_clock(&self, clock: usize) -> Result<(), TracingError> {
        if clock == 0 { Ok(()) } else { Err(TracingError::NotSupported) }
    }

    /// Writes the text of the next event, and moves the place behind it; the head of the trace is the first text. The text is whole
    /// lines. If `out` refuses, the place stays, and the same text is asked for again.
    ///
    /// # Errors
    /// [`TracingError::NoSuchCpu`], [`TracingError::NoSnapshot`].
    fn next_text(
        &self,
        text: TraceText,
        place: &mut TextPlace,
        out: &mut dyn fmt::Write,
    ) -> Result<Shown, TracingError>;

    /// Writes the text of the next event and consumes it (`trace_pipe`); there is no head. If `out` refuses, the event stays.
    ///
    /// # Errors
    /// [`TracingError::NoSuchCpu`]; [`TracingError::Busy`] if another reader consumes.
    fn next_piped(&self, cpu: Option<usize>, out: &mut dyn fmt::Write) -> Result<Shown, TracingError>;

    /// Forgets what was recorded, on one CPU or on all.
    ///
    /// # Errors
    /// [`TracingError::NoSuchCpu`], [`TracingError::Busy`].
    fn clear(&self, cpu: Option<usize>) -> Result<(), TracingError>;

    /// The size of a CPU's buffer, in KiB.
    ///
    /// # Errors
    /// [`TracingError::NoSuchCpu`].
    fn buffer_kb(&self, cpu: usize) -> Result<u64, TracingError>;

    /// Changes that, on one CPU or on all, to at least so many KiB. Never called with 0.
    ///
    /// # Errors
    /// [`TracingError::NoSuchCpu`], [`TracingError::NoMemory`], [`TracingError::Busy`].
    fn set_buffer_kb(&self, cpu: Option<usize>, kb: u64) -> Result<(), TracingError>;

    /// The figures of a CPU.
    ///
    /// # Errors
    /// [`TracingError::NoSuchCpu`].
    fn stats(&self, cpu: usize) -> Result<CpuStats, TracingError>;

    /// Whether there are buffers for a snapshot.
    fn has_snapshot(&self) -> bool;

    /// Does something to the snapshot of one CPU or of all.
    ///
    /// # Errors
    /// [`TracingError::NoSuchCpu`], [`TracingError::NotSupported`], [`TracingError::NoMemory`], [`TracingError::Busy`].
    fn snapshot(&self, act: SnapshotAct, cpu: Option<usize>) -> Result<(), TracingError>;

    /// Records a text of a person's own, one line without its end; never empty. What is too long for one record takes several.
    ///
    /// # Errors
    /// [`TracingError::Off`], [`TracingError::NotSupported`].
    fn mark(&self, text: &[u8]) -> Result<(), TracingError>;

    /// Calls `each` with the tasks whose names are known: number and name, in any order.
    fn tasks(&self, each: &mut dyn FnMut(u32, &str));

    /// The CPUs on which anything is recorded, a bit for each.
    fn cpumask(&self) -> u64;

    /// Changes that. Bits of CPUs that are not there are never set.
    ///
    /// # Errors
    /// As the tracer has them.
    fn set_cpumask(&self, mask: u64) -> Result<(), TracingError>;
}
