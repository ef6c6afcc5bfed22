//! Instances beside the top directory, all of one engine.

use std::string::String;
use std::vec::Vec;

use super::super::tests::{Files, files, hit};
use super::*;
use crate::engine::image::{Target, for_both_machines};
use crate::filter::Filter;
use crate::graph::{EntryCall, GraphOps, ReturnCall, Want};
use crate::limits::Limits;
use crate::ops::{Ops, OpsFlags};
use crate::regs::Regs;
use crate::ring::Ring;
use crate::sync::{AtomicBool, Ordering};
use crate::testing::keep;
use crate::testing::kernel::Fake;
use crate::text::NoNames;
use crate::tracefs::recording::tests::World;
use crate::tracefs::recording::{Entered, Recorded, Recorder, RingTracing};
use crate::tracefs::tracing::Tracer;
use crate::tracefs::{Commands, FsError, InstancePlace, Open, Tracefs};

fn entry<R: Regs>(_: &mut EntryCall<'_, R>, _: &GraphOps<R>) -> Want {
    Want::Return
}

fn ret<R: Regs>(_: &mut ReturnCall<'_, R>, _: &GraphOps<R>) {}

/// Rings of a world, and users of an engine.
struct Users<T: Target> {
    engine: &'static Engine<Fake, T>,
    world: &'static World,
    keeper: &'static Ops<T::Regs>,
    function: &'static Ops<T::Regs>,
    graph: &'static GraphOps<T::Regs>,
    limits: &'static Limits,
    /// No tracer can be started.
    refuses: AtomicBool,
}

impl<T: Target> Users<T> {
    fn new(engine: &'static Engine<Fake, T>) -> &'static Self {
        let ops = || -> &'static Ops<T::Regs> { keep(Ops::new(hit, OpsFlags::empty(), Filter::ALL)) };
        keep(Self {
            engine,
            world: World::new(),
            keeper: ops(),
            function: ops(),
            graph: keep(GraphOps::new(entry, ret, Filter::ALL)),
            limits: keep(Limits::new()),
            refuses: AtomicBool::new(false),
        })
    }

    /// An instance of them, whose buffers have so many KiB.
    fn instance(&'static self, kb: u64) -> &'static EngineInstance<Fake, T> {
        let tracing = keep(RingTracing::new(self.world, self));
        let users = FilesUsers {
            keeper: self.keeper,
            graph_keeper: None,
            function: self.function,
            graph: self.graph,
            limits: self.limits,
            followers: &[],
            profiler: None,
            commands: keep(Commands::new()),
            tracing,
            names: &NoNames,
        };
        keep(EngineInstance::new(self.engine, users, kb))
    }
}

impl<T: Target> Recorder for Users<T> {
    fn ring(&self, cpu: usize) -> Option<&'static Ring> {
        self.world.ring(cpu)
    }
    fn start(&self, tracer: Tracer) -> Result<(), Error> {
        match tracer {
            _ if self.refuses.load(Ordering::Relaxed) => Err(Error::TooManyUsers { max: 0 }),
            Tracer::Nop => Ok(()),
            Tracer::Function => self.engine.register_ops(self.function),
            Tracer::FunctionGraph => self.engine.register_graph(self.graph),
        }
    }
    fn stop(&self, tracer: Tracer) -> Result<(), Error> {
        match tracer {
            Tracer::Nop => Ok(()),
            Tracer::Function => self.engine.unregister_ops(self.function),
            Tracer::FunctionGraph => self.engine.unregister_graph(self.graph),
        }
    }
    fn set_recorded(&self, recorded: Recorded) {
        self.world.set_recorded(recorded);
    }
    fn set_stacks(&self, on: bool) {
        self.world.set_stacks(on);
    }
    fn mark(&self, text: &[u8]) -> bool {
        self.world.mark(text)
    }
    fn stack(&self, entered: &Entered) {
        self.world.stack(entered);
    }
}

/// A top directory with two places, and who is in them.
struct Kernel<T: Target> {
    top: &'static Files<T>,
    users: [&'static Users<T>; 2],
    fs: Tracefs<'static>,
}

fn kernel<T: Target>(kb: u64) -> Kernel<T> {
    let top: &'static Files<T> = keep(files::<T>());
    let users = [Users::new(top.engine), Users::new(top.engine)];
    let places = keep(users.map(|users| InstancePlace::new(users.instance(kb))));
    let fs = Tracefs::new(top.tracing, &top.functions).with_instances(places);
    Kernel { top, users, fs }
}

impl<T: Target> Kernel<T> {
    fn echo(&self, text: &str, path: &str) {
        let written = self.fs.write(path, text.as_bytes(), Open::Replace);
        assert_eq!(written, Ok(text.len()), "{text:?} > {path}");
    }

    fn cat(&self, path: &str) -> String {
        let mut bytes = vec![0; 4096];
        let mut len = 0;
        while let got @ 1.. = self.fs.read_at(path, len, &mut bytes[len..]).expect("a file") {
            len += got;
        }
        String::from_utf8(bytes[..len].to_vec()).expect("text")
    }
}

fn tracers_of_instances_are_users_beside_the_top_ones<T: Target>() {
    let kernel = kernel::<T>(2);
    let [a, b] = kernel.users;
    assert_eq!((kernel.fs.mkdir("instances/a"), kernel.fs.mkdir("instances/b")), (Ok(()), Ok(())));
    kernel.echo("1 2", "instances/a/set_ftrace_filter");
    kernel.echo("3", "instances/b/set_ftrace_filter");
    assert_eq!(kernel.top.engine.stats().patched, 0);
    kernel.echo("function", "instances/a/current_tracer");
    assert_eq!(kernel.top.engine.stats().patched, 2);
    kernel.echo("function_graph", "instances/b/current_tracer");
    assert_eq!(kernel.top.engine.stats().patched, 3);
    let engine = kernel.top.engine;
    assert!(engine.has_ops(a.function) && !engine.has_graph(a.graph) && engine.has_graph(b.graph));
    // Its filter is its own, at any time.
    kernel.echo("3 4", "instances/a/set_ftrace_filter");
    assert_eq!(engine.stats().patched, 2);
    assert_eq!(kernel.cat("instances/b/set_ftrace_filter"), "3\n");
    assert_eq!(kernel.cat("set_ftrace_filter"), "#### all functions enabled ####\n");
    kernel.echo("function_graph", "instances/a/current_tracer");
    assert!(!engine.has_ops(a.function) && engine.has_graph(a.graph));
    // A running tracer is stopped, and the other goes on.
    assert_eq!(kernel.fs.rmdir("instances/a"), Ok(()));
    assert_eq!((engine.has_graph(a.graph), engine.stats().patched), (false, 1));
    assert_eq!(kernel.fs.rmdir("instances/b"), Ok(()));
    assert_eq!(engine.stats().patched, 0);
}

fn an_instance_leaves_nothing_to_the_next<T: Target>() {
    let kernel = kernel::<T>(2);
    let world = kernel.users[0].world;
    let files = [
        "set_ftrace_filter",
        "set_ftrace_notrace",
        "set_ftrace_pid",
        "set_ftrace_notrace_pid",
        "current_tracer",
        "tracing_on",
        "tracing_cpumask",
        "trace_options",
        "buffer_size_kb",
        "trace",
        "snapshot",
        "error_log",
    ];
    let mut at_first: Option<Vec<String>> = None;
    // More often than the engine has places.
    for round in 0..crate::MAX_USERS + 2 {
        assert_eq!(kernel.fs.mkdir("instances/a"), Ok(()), "{round}");
        let said = files.map(|file| kernel.cat(&std::format!("instances/a/{file}"))).to_vec();
        assert_eq!(at_first.get_or_insert(said.clone()), &said, "{round}");
        kernel.echo("7", "instances/a/set_ftrace_notrace_pid");
        assert!(!kernel.users[0].limits.counts_task(7));
        kernel.echo("hello", "instances/a/trace_marker");
        kernel.echo("4 1:traceoff 2:snapshot", "instances/a/set_ftrace_filter");
        kernel.echo("3", "instances/a/set_ftrace_notrace");
        kernel.echo("9", "instances/a/set_ftrace_pid");
        kernel.echo(if round % 2 == 0 { "function" } else { "function_graph" }, "instances/a/current_tracer");
        kernel.echo("1", "instances/a/snapshot");
        kernel.echo("1", "instances/a/tracing_cpumask");
        for option in ["sleep-time", "funcgraph-irqs", "overwrite", "markers", "funcgraph-cpu"] {
            kernel.echo("0", &std::format!("instances/a/options/{option}"));
        }
        kernel.echo("1", "instances/a/options/func_stack_trace");
        assert!(world.stacks());
        kernel.fs.write("instances/a/set_ftrace_pid", b"x", Open::Append).expect_err("no number");
        // Its command switches its recording, and no other's.
        kernel.top.enter(1);
        assert_eq!(
            (kernel.cat("instances/a/tracing_on").as_str(), kernel.cat("tracing_on").as_str()),
            ("0\n", "1\n")
        );
        assert_eq!(kernel.fs.rmdir("instances/a"), Ok(()));
        assert_eq!(kernel.top.engine.stats().patched, 0, "{round}");
        assert!(kernel.users[0].limits.counts_task(7) && !kernel.users[0].limits.are_any());
        assert!(!world.stacks() && world.ring(0).is_some_and(|ring| ring.buffer().is_none()));
        // One to record into and one for a snapshot, for each CPU, and no new ones later.
        assert_eq!(world.spares(), 2 * 3, "{round}");
    }
}

fn an_instance_without_memory_is_not_made<T: Target>() {
    let kernel = kernel::<T>(2);
    let world = kernel.users[0].world;
    for cpus in 0..3 {
        world.has_memory_for(cpus);
        let refused = Err(FsError::Tracing(TracingError::NoMemory { kb: 2, most_kb: 16 }));
        assert_eq!(kernel.fs.mkdir("instances/a"), refused);
        assert_eq!(kernel.fs.rmdir("instances/a"), Err(FsError::NoSuchFile));
        assert_eq!(world.spares(), cpus, "those that some CPUs got");
    }
    world.has_memory_for(3);
    assert_eq!(kernel.fs.mkdir("instances/a"), Ok(()));
}

fn a_tracer_that_was_refused_leaves_with_its_instance<T: Target>() {
    let kernel = kernel::<T>(2);
    let (engine, users) = (kernel.top.engine, kernel.users[0]);
    assert_eq!(kernel.fs.mkdir("instances/a"), Ok(()));
    users.refuses.store(true, Ordering::Relaxed);
    for tracer in ["function", "function_graph"] {
        let path = "instances/a/current_tracer";
        assert!(kernel.fs.write(path, tracer.as_bytes(), Open::Replace).is_err());
        assert_eq!(kernel.cat(path), "nop\n");
    }
    assert_eq!(kernel.fs.rmdir("instances/a"), Ok(()));
    let gone = Err(Error::NotRegistered);
    assert_eq!((engine.unregister_ops(users.function), engine.unregister_graph(users.graph)), (gone, gone));
}

for_both_machines! {
    a_tracer_that_was_refused_leaves_with_its_instance
    an_instance_leaves_nothing_to_the_next
    an_instance_without_memory_is_not_made
    tracers_of_instances_are_users_beside_the_top_ones
}
