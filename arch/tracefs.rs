//! The tracefs's view of the one engine of an image: its users, and what records for them.

use crate::addr::{FuncAddr, RetAddr};
use crate::arch::FtraceRegs;
use crate::arch::live::{Bound, ENGINE};
use crate::arch::{tracer, tramp};
use crate::engine::Error;
use crate::filter::Filter;
use crate::graph::GraphOps;
use crate::ops::{Ops, OpsFlags};
use crate::profile::{ProfileError, ProfileRow, Profiler};
use crate::ring::Ring;
use crate::text::Resolve;
use crate::tracefs::control::Functions;
use crate::tracefs::recording::{Entered, Recorded, Recorder, RingTracing};
use crate::tracefs::tracing::Tracer;
use crate::tracefs::{Commands, EngineFunctions, FilesUsers, SetsMemory};

static KEEPER: Ops<FtraceRegs> = Ops::new(kept, OpsFlags::empty(), Filter::ALL);
static GRAPH_KEEPER: Ops<FtraceRegs> = Ops::new(kept, OpsFlags::empty(), Filter::ALL);
static FUNCTION: Ops<FtraceRegs> = tracer::function(Filter::ALL);
static GRAPH: GraphOps<FtraceRegs> = tracer::function_graph(Filter::ALL);
static COMMANDS: Commands<FtraceRegs> = Commands::new();
static PROFILER: Profiler<Bound, FtraceRegs> = Profiler::new(Filter::ALL);

/// Keepers are never registered.
fn kept(_ip: FuncAddr, _parent_ip: RetAddr, _ops: &Ops<FtraceRegs>, _fregs: &mut FtraceRegs) {}

/// What the files need of this image's engine: made once, kept in a `static`, and given to [`Tracefs`](crate::tracefs::Tracefs).
#[derive(Debug)]
pub struct LiveFunctions(EngineFunctions<Bound, tramp::Live>);

impl LiveFunctions {
    /// The engine; `tracing` is what function commands switch, `names` are for them and for the profiler's tables. One is enough:
    /// several would change the same sets.
    pub const fn new(tracing: &'static RingTracing, names: &'static (dyn Resolve + Sync)) -> Self {
        let users = FilesUsers {
            keeper: &KEEPER,
            graph_keeper: &GRAPH_KEEPER,
            function: &FUNCTION,
            graph: &GRAPH,
            limits: tracer::limits(),
            profiler: &PROFILER,
            commands: &COMMANDS,
            tracing,
            names,
        };
        Self(EngineFunctions::new(&ENGINE, users))
    }

    /// As the files want it.
    pub fn functions(&self) -> &dyn Functions {
        &self.0
    }

    /// See [`EngineFunctions::lend_sets`].
    pub fn lend_sets(&self, memory: SetsMemory) {
        self.0.lend_sets(memory);
    }

    /// Lends a CPU the profiler's table: see [`Profiler::lend`].
    ///
    /// # Errors
    /// See there.
    pub fn lend_profile(&self, cpu: usize, words: &'static mut [usize]) -> Result<(), ProfileError> {
        PROFILER.lend(cpu, words)
    }

    /// See [`EngineFunctions::lend_profile_rows`].
    pub fn lend_profile_rows(&self, rows: &'static mut [ProfileRow]) {
        self.0.lend_profile_rows(rows);
    }

    /// See [`EngineFunctions::refresh`].
    ///
    /// # Errors
    /// See there.
    pub fn refresh(&self) -> Result<(), Error> {
        self.0.refresh()
    }
}

/// Starts the tracers of this image, for [`RingTracing`](crate::tracefs::recording::RingTracing).
#[derive(Debug)]
pub struct LiveRecorder;

impl Recorder for LiveRecorder {
    fn ring(&self, cpu: usize) -> Option<&'static Ring> {
        tracer::ring(cpu)
    }

    fn start(&self, tracer: Tracer) -> Result<(), Error> {
        match tracer {
            Tracer::Nop => Ok(()),
            Tracer::Function => ENGINE.register_ops(&FUNCTION),
            Tracer::FunctionGraph => ENGINE.register_graph(&GRAPH),
        }
    }

    fn stop(&self, tracer: Tracer) -> Result<(), Error> {
        match tracer {
            Tracer::Nop => Ok(()),
            Tracer::Function => ENGINE.unregister_ops(&FUNCTION),
            Tracer::FunctionGraph => ENGINE.unregister_graph(&GRAPH),
        }
    }

    fn set_recorded(&self, recorded: Recorded) {
        tracer::set_recorded(recorded);
    }

    fn set_stacks(&self, on: bool) {
        tracer::set_stacks(on);
    }

    fn mark(&self, text: &[u8]) -> bool {
        tracer::mark_text(text)
    }

    fn stack(&self, entered: &Entered) {
        tracer::mark_stack(entered);
    }
}
