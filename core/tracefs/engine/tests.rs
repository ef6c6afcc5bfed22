//! What the files make of an engine: sets, limits, the profiler.

use std::string::String;
use std::vec::Vec;

use super::super::recording::tests::{World as RecordingWorld, lend};
use super::super::tracing::{Buffers, SnapshotAct, TraceText, Tracing};
use super::*;
use crate::addr::{FuncAddr, RetAddr};
use crate::engine::image::{Image, Target, for_both_machines};
use crate::filter::{Filter, FuncSet};
use crate::graph::world::Block;
use crate::graph::{EntryCall, ReturnCall, Want};
use crate::ops::OpsFlags;
use crate::profile::PROFILE_WORDS;
use crate::regs::Regs;
use crate::task::TaskTrace;
use crate::testing::kernel::Fake;
use crate::testing::{Random, keep, keep_all};
use crate::text::NoNames;

pub(super) fn hit<R: Regs>(_: FuncAddr, _: RetAddr, _: &Ops<R>, _: &mut R) {}

fn entry<R: Regs>(_: &mut EntryCall<'_, R>, _: &GraphOps<R>) -> Want {
    Want::Return
}

fn ret<R: Regs>(_: &mut ReturnCall<'_, R>, _: &GraphOps<R>) {}

pub(super) struct Files<T: Target> {
    pub(super) engine: &'static Engine<Fake, T>,
    pub(super) functions: EngineFunctions<Fake, T>,
    limits: &'static Limits,
    /// Those of an instance.
    follower: &'static Limits,
    graph: &'static GraphOps<T::Regs>,
    profiler: &'static Profiler<Fake, T::Regs>,
    pub(super) tracing: &'static RingTracing,
    /// The functions, as index words count them.
    funcs: Vec<FuncAddr>,
}

pub(super) fn files<T: Target>() -> Files<T> {
    let image = Image::new::<T>(5, &mut Random::new(8));
    let engine = image.start::<T>();
    let ops = || -> &'static Ops<T::Regs> { keep(Ops::new(hit, OpsFlags::empty(), Filter::ALL)) };
    let graph: &'static GraphOps<T::Regs> = keep(GraphOps::new(entry, ret, Filter::ALL));
    let profiler: &'static Profiler<Fake, T::Regs> = keep(Profiler::new(Filter::ALL));
    let limits: &'static Limits = keep(Limits::new());
    let follower: &'static Limits = keep(Limits::new());
    let world = RecordingWorld::new();
    let tracing: &'static RingTracing = keep(RingTracing::new(world, world));
    let (keeper, graph_keeper, function) = (ops(), ops(), ops());
    let users = FilesUsers {
        keeper,
        graph_keeper: Some(graph_keeper),
        function,
        graph,
        limits,
        followers: keep_all(vec![follower]),
        profiler: Some(profiler),
        commands: keep(Commands::new()),
        tracing,
        names: &NoNames,
    };
    let funcs = image.traceable().map(|function| FuncAddr::new(function.addr)).collect();
    let functions = EngineFunctions::new(engine, users);
    Files { engine, functions, limits, follower, graph, profiler, tracing, funcs }
}

impl<T: Target> Files<T> {
    fn lend(&self, functions: usize) {
        let set = || keep_all(vec![FuncAddr::new(0); 2 * functions]);
        self.functions.lend_sets(SetsMemory { sets: keep(FileSets::new()), functions: [set(), set()] });
    }

    fn write(&self, file: FilterFile, text: &str) -> Result<(), Refused> {
        self.functions.write_words(file, text, Mode::Replace)
    }

    fn read(&self, file: FilterFile) -> String {
        let (mut place, mut all) = (Place::START, Vec::new());
        loop {
            let mut bytes = [0; 7];
            match self.functions.read_words(file, &mut place, &mut bytes).expect("a set") {
                0 => return String::from_utf8(all).expect("text"),
                got => all.extend_from_slice(&bytes[..got]),
            }
        }
    }

    fn commands(&self) -> String {
        let (mut place, mut text) = (TextPlace::START, String::new());
        while self.functions.next_command(&mut place, &mut text) == Shown::Text {}
        text
    }

    /// The function with this index is called, from 0x2000.
    pub(super) fn enter(&self, index: usize) {
        let task: &'static TaskTrace = keep(TaskTrace::new());
        let sp = keep_all(vec![0usize; 64]).as_mut_ptr().expose_provenance() + 256;
        let ip = self.funcs[index - 1];
        let (_, site) = self.engine.location(ip.get()).expect("a site");
        // SAFETY: words that live for ever.
        let mut fregs = unsafe { T::Regs::entry(ip, sp, 0x2000, task) };
        self.engine.entry(site, ip, &mut fregs, RetAddr::new(0x3000));
    }

    /// How many stacks of a function's are in some buffers.
    fn stacks(&self, buffers: Buffers, index: usize) -> usize {
        let (mut place, mut text) = (TextPlace::START, String::new());
        let what = TraceText { buffers, cpu: None };
        while self.tracing.next_text(what, &mut place, &mut text) == Ok(Shown::Text) {}
        text.matches(&std::format!(": <stack trace>\n => {:#x}\n => 0x2000\n", self.funcs[index - 1].get()))
            .count()
    }

    fn listed(&self, set: &'static FuncSet) -> Vec<usize> {
        let FuncSet::Some(funcs) = set else { return Vec::new() };
        funcs
            .iter()
            .map(|func| self.funcs.iter().position(|other| other == func).expect("one of them") + 1)
            .collect()
    }

    fn pids(&self, file: PidFile) -> Option<Vec<u32>> {
        let mut all = Vec::new();
        self.functions.pids(file, &mut |pid| all.push(pid)).then_some(all)
    }
}

fn sets_of_the_graph_reach_the_limits<T: Target>() {
    let files = files::<T>();
    let not_supported = Err(Refused::at(0, Cause::Functions(FunctionsError::NotSupported)));
    assert_eq!(files.write(FilterFile::GraphFunction, "1"), not_supported);
    assert_eq!(files.write(FilterFile::GraphFunction, ""), Ok(()));
    files.lend(4);
    let too_many = FunctionsError::TooMany { count: 5, max: 4 };
    assert_eq!(files.write(FilterFile::GraphNotrace, "1"), Err(Refused::at(0, Cause::Functions(too_many))));
    files.lend(5);
    for (mode, text, members) in [
        (Mode::Replace, "2 1", &[1, 2][..]),
        (Mode::Append, "4", &[1, 2, 4]),
        (Mode::Append, "!2", &[1, 4]),
        (Mode::Replace, "5", &[5]),
        (Mode::Append, "!5", &[]),
    ] {
        for file in [FilterFile::GraphFunction, FilterFile::GraphNotrace] {
            assert_eq!(files.functions.write_words(file, text, mode), Ok(()), "{text}");
        }
        assert_eq!(files.listed(files.limits.graph_function()), members, "{text}");
        assert_eq!(files.listed(files.limits.graph_notrace()), members, "{text}");
        assert_eq!(files.listed(files.follower.graph_function()), members, "{text}");
        assert_eq!(files.listed(files.follower.graph_notrace()), members, "{text}");
        // Nobody is a user because of that.
        assert_eq!(files.engine.stats().patched, 0);
    }
    assert_eq!(*files.limits.graph_function(), FuncSet::None);
    assert_eq!(files.write(FilterFile::GraphFunction, "3 1"), Ok(()));
    assert_eq!(files.read(FilterFile::GraphFunction), "1\n3\n");
    let refused = files.write(FilterFile::GraphFunction, "2 99").expect_err("no such function");
    assert_eq!((refused.column, files.listed(files.limits.graph_function())), (2, vec![1, 3]));
    assert_eq!(files.write(FilterFile::GraphFunction, "\n"), Ok(()));
    assert_eq!(files.write(FilterFile::GraphNotrace, ""), Ok(()));
    assert_eq!(
        (*files.limits.graph_function(), *files.limits.graph_notrace()),
        (FuncSet::All, FuncSet::None)
    );
    assert!(!files.limits.are_any());
    assert_eq!(files.read(FilterFile::GraphFunction), "#### all functions enabled ####\n");
}

fn a_tracer_that_comes_has_what_the_filter_files_say<T: Target>() {
    let files = files::<T>();
    assert_eq!(files.write(FilterFile::Filter, "1 2 3"), Ok(()));
    assert_eq!(files.write(FilterFile::Notrace, "2"), Ok(()));
    files.functions.prepare(Tracer::FunctionGraph).expect("its sets");
    assert_eq!(files.engine.stats().patched, 0);
    files.engine.register_graph(files.graph).expect("a user");
    assert_eq!(files.engine.stats().patched, 2);
    assert_eq!(files.write(FilterFile::Filter, ""), Ok(()));
    assert_eq!(files.engine.stats().patched, 4);
}

fn tasks_and_numbers_reach_the_limits<T: Target>() {
    let files = files::<T>();
    let functions = &files.functions;
    assert_eq!(functions.set_pids(PidFile::Pid, Some(&[1])), Err(FunctionsError::NotSupported));
    files.lend(5);
    assert_eq!(functions.set_pids(PidFile::Pid, Some(&[4, 9])), Ok(()));
    assert_eq!(functions.set_pids(PidFile::NotracePid, Some(&[9])), Ok(()));
    assert_eq!([3, 4, 9].map(|pid| files.limits.counts_task(pid)), [false, true, false]);
    assert_eq!(files.pids(PidFile::Pid), Some(vec![4, 9]));
    assert!(files.limits.are_any());
    assert_eq!(functions.set_pids(PidFile::Pid, None), Ok(()));
    assert_eq!([3, 4, 9].map(|pid| files.limits.counts_task(pid)), [true, true, false]);
    assert_eq!(functions.set_pids(PidFile::NotracePid, None), Ok(()));
    assert_eq!((files.pids(PidFile::NotracePid), files.limits.are_any()), (None, false));
    functions.set_max_depth(3);
    functions.set_thresh_ns(7_000);
    for limits in [files.limits, files.follower] {
        assert_eq!((limits.max_depth(), limits.thresh_ns()), (3, 7_000));
    }
    functions.set_sleep_time(false);
    functions.set_graph_time(false);
    assert!(!functions.sleep_time() && !functions.graph_time());
    assert!(files.limits.options().contains(LimitOptions::GRAPH_TIME), "that is the profiler's");
    assert!(!files.profiler.limits().options().contains(LimitOptions::SLEEP_TIME));
    // Tasks and switches are an instance's own.
    assert!(files.follower.counts_task(9) && files.follower.options() == LimitOptions::all());
}

fn the_profiler_follows_the_filter_files<T: Target>() {
    let files = files::<T>();
    assert_eq!(files.functions.set_profiles(true), Err(FunctionsError::NotSupported));
    files.profiler.lend(1, keep_all(vec![0; 8 * PROFILE_WORDS])).expect("memory");
    files.functions.lend_profile_rows(keep_all(vec![ProfileRow::EMPTY; 8]));
    assert_eq!(files.write(FilterFile::Filter, "1 2"), Ok(()));
    for _ in 0..2 {
        assert_eq!((files.functions.set_profiles(true), files.functions.profiles()), (Ok(()), true));
        assert_eq!(files.engine.stats().patched, 2);
    }
    assert_eq!(files.write(FilterFile::Filter, "3"), Ok(()));
    assert_eq!(files.engine.stats().patched, 1);
    let (mut place, mut text) = (TextPlace::START, String::new());
    while files.functions.next_profile(1, &mut place, &mut text) == Ok(Shown::Text) {}
    assert_eq!((text.lines().count(), place.texts), (2, 1));
    assert_eq!((files.functions.set_profiles(false), files.functions.profiles()), (Ok(()), false));
    assert_eq!(files.engine.stats().patched, 0);
}

fn commands_switch_at_their_functions<T: Target>() {
    let files = files::<T>();
    let commands = || files.commands();
    let enter = |index| {
        files.enter(index);
        files.tracing.is_on()
    };
    for (text, column, cause) in [("1:dump", 2, Cause::NoSuchCommand), ("!1:traceoff", 0, Cause::NoneThere)] {
        assert_eq!(files.write(FilterFile::Filter, text), Err(Refused { column, cause }), "{text}");
        assert_eq!((commands(), files.engine.stats().patched), (String::new(), 0), "{text}");
    }
    let refused = files.write(FilterFile::Filter, "1:traceon 99:traceoff").expect_err("no such function");
    assert_eq!((refused.column, commands()), (10, String::new()));

    assert_eq!(files.write(FilterFile::Filter, "1:traceoff:2 2:traceon"), Ok(()));
    let [one, two] = [files.funcs[0], files.funcs[1]].map(FuncAddr::get);
    assert_eq!(commands(), std::format!("{one:#x}:traceoff:count=2\n{two:#x}:traceon:unlimited\n"));
    assert_eq!(files.engine.stats().patched, 2);
    assert!(!enter(1), "switched off");
    assert!(!enter(1), "it was off, and that does not count");
    assert!(enter(2));
    assert!(!enter(1));
    assert!(enter(2));
    assert!(enter(1), "twice is enough");
    assert_eq!(commands(), std::format!("{one:#x}:traceoff:count=0\n{two:#x}:traceon:unlimited\n"));
    assert_eq!(
        files.functions.write_words(FilterFile::Filter, "!2:traceon 1:traceoff", Mode::Append),
        Ok(())
    );
    assert_eq!(
        (commands(), files.engine.stats().patched),
        (std::format!("{one:#x}:traceoff:unlimited\n"), 1)
    );
    assert!(!enter(1));
    assert_eq!(files.write(FilterFile::Filter, "!*:traceoff"), Ok(()));
    assert_eq!((commands(), files.engine.stats().patched), (String::new(), 0));
}

fn commands_record_stacks_and_take_snapshots<T: Target>() {
    let files = files::<T>();
    let stacks =
        || [Buffers::Live, Buffers::Snapshot].map(|buffers| [1, 2].map(|f| files.stacks(buffers, f)));
    // Without buffers nothing is set aside, and nothing is counted.
    lend(files.tracing, 8);
    assert!(!files.tracing.has_snapshot());
    assert_eq!(files.write(FilterFile::Filter, "1:snapshot:1 1:stacktrace:2 2:stacktrace"), Ok(()));
    assert!(files.tracing.has_snapshot());
    files.enter(2);
    assert_eq!(stacks(), [[0, 1], [0, 0]]);
    files.enter(1);
    assert_eq!(stacks(), [[0, 0], [1, 1]], "the stack is in the snapshot");
    (0..3).for_each(|_| files.enter(1));
    assert_eq!(stacks(), [[1, 0], [1, 1]], "a second stack, and no second snapshot");
    let [one, two] = [files.funcs[0], files.funcs[1]].map(FuncAddr::get);
    assert_eq!(
        files.commands(),
        std::format!(
            "{one:#x}:snapshot:count=0\n{one:#x}:stacktrace:count=0\n{two:#x}:stacktrace:unlimited\n"
        )
    );
    let write = |text: &str| files.functions.write_words(FilterFile::Filter, text, Mode::Append);
    assert_eq!(write("!1:stacktrace 1:snapshot:7 1:traceoff"), Ok(()));
    files.enter(1);
    assert_eq!((files.tracing.is_on(), stacks()), (false, [[0, 0], [1, 0]]));
    files.enter(1);
    files.enter(2);
    assert_eq!(stacks(), [[0, 0], [1, 0]], "nothing happens while nothing is recorded");
    assert!(
        files.commands().starts_with(&std::format!("{one:#x}:snapshot:count=6\n")),
        "{}",
        files.commands()
    );
    files.tracing.set_on(true);
    files.tracing.snapshot(SnapshotAct::Free, None).expect("freed");
    files.enter(2);
    files.enter(1);
    assert_eq!((files.tracing.has_snapshot(), files.stacks(Buffers::Live, 2)), (false, 1));
    assert!(
        files.commands().starts_with(&std::format!("{one:#x}:snapshot:count=6\n")),
        "{}",
        files.commands()
    );
    assert_eq!(write("!*:snapshot !*:traceoff !*:stacktrace"), Ok(()));
    assert_eq!((files.commands(), files.engine.stats().patched), (String::new(), 0));
}

fn a_text_has_functions_and_commands<T: Target>() {
    let files = files::<T>();
    let names: Vec<String> = files.funcs.iter().map(|func| std::format!("{:#x}", func.get())).collect();
    lend(files.tracing, 8);
    let functions = || files.read(FilterFile::Filter);
    assert_eq!(files.write(FilterFile::Filter, "1 2:traceoff:3\n3\n4:stacktrace\n"), Ok(()));
    let commands = std::format!("{}:traceoff:count=3\n{}:stacktrace:unlimited\n", names[1], names[3]);
    assert_eq!((functions().as_str(), files.commands()), ("1\n3\n", commands.clone()));
    // A later line that is wrong keeps the lines before it from taking effect, functions and commands.
    for (text, column) in [
        ("2\n5:traceoff\n4 99\n", 15),
        ("2\n5:traceoff\n99:traceoff\n", 13),
        ("2\n5:traceoff\n!1:traceoff\n", 13),
        ("2\n5:traceoff\n4:frobnicate:1\n", 15),
        ("5:snapshot 5: 2\n", 13),
    ] {
        for mode in [Mode::Replace, Mode::Append] {
            let refused = files.functions.write_words(FilterFile::Filter, text, mode).expect_err("wrong");
            assert_eq!((refused.column, refused.cause.keeps_all()), (column, true), "{text:?}: {refused}");
            assert_eq!((functions().as_str(), files.commands()), ("1\n3\n", commands.clone()), "{text:?}");
        }
    }
    assert!(!files.tracing.has_snapshot());
    let append = |text| files.functions.write_words(FilterFile::Filter, text, Mode::Append);
    assert_eq!(append("!1\n!2:traceoff\n5"), Ok(()));
    let commands = std::format!("{}:stacktrace:unlimited\n", names[3]);
    assert_eq!((functions().as_str(), files.commands()), ("3\n5\n", commands));
    // Commands alone leave functions as they are, but a file that is truncated has none then, which is everything.
    assert_eq!(append("!4:stacktrace 1:traceon"), Ok(()));
    assert_eq!(functions(), "3\n5\n");
    assert_eq!(files.write(FilterFile::Filter, "2:traceon"), Ok(()));
    assert_eq!(functions(), "#### all functions enabled ####\n");
    let commands = std::format!("{}:traceon:unlimited\n{}:traceon:unlimited\n", names[0], names[1]);
    assert_eq!(files.commands(), commands);
    // What is no command's file takes none.
    assert!(files.write(FilterFile::Notrace, "1 2:traceoff").is_err());
}

for_both_machines! {
    a_text_has_functions_and_commands
    commands_record_stacks_and_take_snapshots
    commands_switch_at_their_functions
    sets_of_the_graph_reach_the_limits
    a_tracer_that_comes_has_what_the_filter_files_say
    tasks_and_numbers_reach_the_limits
    the_profiler_follows_the_filter_files
}
