//! The tracefs's view of the one engine of an image: its users, and what records for them.

use crate::addr::{FuncAddr, RetAddr};
use crate::arch::FtraceRegs;
use crate::arch::live::{Bound, ENGINE};
use crate::arch::{tracer, tramp};
use crate::engine::Error;
use crate::filter::Filter;
use crate::graph::GraphOps;
use crate::limits::Limits;
use crate::ops::{Ops, OpsFlags};
use crate::profile::{ProfileError, ProfileRow, Profiler};
use crate::ring::Ring;
use crate::text::Resolve;
use crate::tracefs::control::Functions;
use crate::tracefs::recording::{Entered, Host, Recorded, Recorder, RingTracing};
use crate::tracefs::tracing::{Tracer, Tracing, TracingError};
use crate::tracefs::{
    Commands, EngineFunctions, EngineInstance, FilesUsers, Instance, InstancePlace, SetsMemory,
};
use tracer::{INSTANCES, InstanceArray, MAX_INSTANCES};

static KEEPER: Ops<FtraceRegs> = Ops::new(kept, OpsFlags::empty(), Filter::ALL);
static GRAPH_KEEPER: Ops<FtraceRegs> = Ops::new(kept, OpsFlags::empty(), Filter::ALL);
static FUNCTION: Ops<FtraceRegs> = tracer::function(Filter::ALL);
static GRAPH: GraphOps<FtraceRegs> = tracer::function_graph(Filter::ALL);
static COMMANDS: Commands<FtraceRegs> = Commands::new();
static PROFILER: Profiler<Bound, FtraceRegs> = Profiler::new(Filter::ALL);

static FOLLOWERS: [&Limits; MAX_INSTANCES] =
    [&INSTANCES[0].limits, &INSTANCES[1].limits, &INSTANCES[2].limits, &INSTANCES[3].limits];

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
            graph_keeper: Some(&GRAPH_KEEPER),
            function: &FUNCTION,
            graph: &GRAPH,
            limits: tracer::limits(),
            followers: &FOLLOWERS,
            profiler: Some(&PROFILER),
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

/// Starts the tracers of an instance.
#[derive(Debug)]
struct InstanceRecorder(&'static InstanceArray);

static RECORDERS: [InstanceRecorder; MAX_INSTANCES] = [
    InstanceRecorder(&INSTANCES[0]),
    InstanceRecorder(&INSTANCES[1]),
    InstanceRecorder(&INSTANCES[2]),
    InstanceRecorder(&INSTANCES[3]),
];

impl Recorder for InstanceRecorder {
    fn ring(&self, cpu: usize) -> Option<&'static Ring> {
        self.0.ring(cpu)
    }

    fn start(&self, tracer: Tracer) -> Result<(), Error> {
        match tracer {
            Tracer::Nop => Ok(()),
            Tracer::Function => ENGINE.register_ops(&self.0.function),
            Tracer::FunctionGraph => ENGINE.register_graph(&self.0.graph),
        }
    }

    fn stop(&self, tracer: Tracer) -> Result<(), Error> {
        match tracer {
            Tracer::Nop => Ok(()),
            Tracer::Function => ENGINE.unregister_ops(&self.0.function),
            Tracer::FunctionGraph => ENGINE.unregister_graph(&self.0.graph),
        }
    }

    fn set_recorded(&self, recorded: Recorded) {
        self.0.set_recorded(recorded);
    }

    fn set_stacks(&self, on: bool) {
        self.0.set_stacks(on);
    }

    fn mark(&self, text: &[u8]) -> bool {
        self.0.mark_text(text)
    }

    fn stack(&self, entered: &Entered) {
        self.0.mark_stack(entered);
    }
}

/// What an instance of this image works with. All of them are made once, in three `static`s: their tracing, themselves, and the places
/// that [`Tracefs::with_instances`](crate::tracefs::Tracefs::with_instances) is given.
#[derive(Debug)]
pub struct LiveInstance(EngineInstance<Bound, tramp::Live>);

impl LiveInstance {
    /// What records for them: the first `static`.
    pub const fn tracings(host: &'static dyn Host) -> [RingTracing; MAX_INSTANCES] {
        const fn one(host: &'static dyn Host, number: usize) -> RingTracing {
            RingTracing::new(host, &RECORDERS[number])
        }
        [one(host, 0), one(host, 1), one(host, 2), one(host, 3)]
    }

    /// All of them, the second `static`. Names are for their function commands; `kb` is the size of each CPU's buffer at first.
    pub const fn all(
        tracings: &'static [RingTracing; MAX_INSTANCES],
        names: &'static (dyn Resolve + Sync),
        kb: u64,
    ) -> [Self; MAX_INSTANCES] {
        const fn one(
            tracings: &'static [RingTracing; MAX_INSTANCES],
            names: &'static (dyn Resolve + Sync),
            kb: u64,
            number: usize,
        ) -> LiveInstance {
            let array = &INSTANCES[number];
            let users = FilesUsers {
                keeper: &array.keeper,
                graph_keeper: None,
                function: &array.function,
                graph: &array.graph,
                limits: &array.limits,
                followers: &[],
                profiler: None,
                commands: &array.commands,
                tracing: &tracings[number],
                names,
            };
            LiveInstance(EngineInstance::new(&ENGINE, users, kb))
        }
        [
            one(tracings, names, kb, 0),
            one(tracings, names, kb, 1),
            one(tracings, names, kb, 2),
            one(tracings, names, kb, 3),
        ]
    }

    /// The places for them: the third `static`.
    pub const fn places(all: &'static [Self; MAX_INSTANCES]) -> [InstancePlace<'static>; MAX_INSTANCES] {
        [
            InstancePlace::new(&all[0]),
            InstancePlace::new(&all[1]),
            InstancePlace::new(&all[2]),
            InstancePlace::new(&all[3]),
        ]
    }

    /// See [`EngineFunctions::refresh`]; for each of them.
    ///
    /// # Errors
    /// See there.
    pub fn refresh(&self) -> Result<(), Error> {
        self.0.refresh()
    }
}

impl Instance for LiveInstance {
    fn tracing(&self) -> &dyn Tracing {
        self.0.tracing()
    }

    fn functions(&self) -> &dyn Functions {
        self.0.functions()
    }

    fn make(&self) -> Result<(), TracingError> {
        self.0.make()
    }

    fn remove(&self) {
        self.0.remove();
    }
}
