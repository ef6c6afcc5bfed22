//! The files over real rings, with a recorder that is told what to record.

use super::super::mock::Mock;
use super::super::{FileSets, FsError, Open, SetsMemory, Tracefs};
use super::*;
use crate::platform::Context;
use crate::ring::Brief;
use crate::sync::AtomicUsize;
use crate::testing::{keep, keep_all, storm};
use crate::text::{NoNames, Task};
use crate::wire::tree::Node;
use crate::wire::{Hit, MAX_DATA, MAX_TEXT_WORDS, Mark, Record, STACK_MARK, TEXT_MARK, Who, pieces};
use std::string::String;
use std::sync::Mutex as StdMutex;
use std::vec::Vec;

const CPUS: usize = 3;
const MOST_KB: u64 = 16;

/// Both traits: a kernel with three CPUs.
pub(in crate::tracefs) struct World {
    rings: [Ring; CPUS],
    /// Buffers that are in no ring, by CPU.
    spare: StdMutex<Vec<(usize, &'static Buffer)>>,
    started: StdMutex<Vec<Tracer>>,
    refuses: AtomicBool,
    stacks: AtomicBool,
    /// How many CPUs there is memory for.
    has_memory_for: AtomicUsize,
    recorded: StdMutex<Recorded>,
    time: AtomicU64,
}

impl Key for World {
    fn addr(&self, func: u32) -> usize {
        func as usize
    }
    fn task(&self, number: u32) -> Task {
        Task::new(number, "t")
    }
}

impl Host for World {
    fn cpus(&self) -> usize {
        CPUS
    }
    fn now_ns(&self) -> u64 {
        self.time.load(Ordering::Relaxed)
    }
    fn key(&self) -> &dyn Key {
        self
    }
    fn names(&self) -> &dyn Resolve {
        &NoNames
    }
    fn tasks(&self, each: &mut dyn FnMut(u32, &str)) {
        each(7, "t");
    }
    fn buffer(&self, cpu: usize, kb: u64) -> Result<&'static Buffer, u64> {
        let words = (kb.next_power_of_two() * 128) as usize;
        if kb > MOST_KB || cpu >= self.has_memory_for.load(Ordering::Relaxed) {
            return Err(MOST_KB);
        }
        let mut spare = self.spare.lock().expect("spare");
        if let Some(at) = spare.iter().position(|(owner, buffer)| *owner == cpu && buffer.len() == words) {
            return Ok(spare.swap_remove(at).1);
        }
        let words = keep_all((0..words).map(|_| AtomicU64::new(0)).collect::<Vec<_>>());
        Ok(keep(Buffer::new(cpu as u16, words, 64, Mode::Overwrite).expect("it fits")))
    }
    fn give_back(&self, buffer: &'static Buffer) {
        self.spare.lock().expect("spare").push((buffer.cpu().into(), buffer));
    }
    fn instance_memory(&self) -> Option<InstanceMemory> {
        let readers = TracingMemory { text: reader(8), pipe: reader(8), page: keep_all(vec![0; 64]) };
        let sets = SetsMemory { sets: keep(FileSets::new()), functions: [&mut [], &mut []] };
        Some(InstanceMemory { readers, sets })
    }
}

impl Recorder for World {
    fn ring(&self, cpu: usize) -> Option<&'static Ring> {
        // SAFETY: a world is kept for ever.
        self.rings.get(cpu).map(|ring| unsafe { &*core::ptr::from_ref(ring) })
    }
    fn start(&self, tracer: Tracer) -> Result<(), Error> {
        if self.refuses.load(Ordering::Relaxed) {
            return Err(Error::NotInitialised);
        }
        self.started.lock().expect("started").push(tracer);
        Ok(())
    }
    fn stop(&self, tracer: Tracer) -> Result<(), Error> {
        self.started.lock().expect("started").retain(|started| *started != tracer);
        Ok(())
    }
    fn set_recorded(&self, recorded: Recorded) {
        *self.recorded.lock().expect("recorded") = recorded;
    }
    fn set_stacks(&self, on: bool) {
        self.stacks.store(on, Ordering::Relaxed);
    }
    fn mark(&self, text: &[u8]) -> bool {
        let time = self.time.fetch_add(1, Ordering::Relaxed);
        pieces(text).all(|piece| self.rings[0].record(&Record::Mark(piece.mark(WHO, time))))
    }
    fn stack(&self, entered: &Entered) {
        let time = self.time.fetch_add(1, Ordering::Relaxed);
        let data = [entered.func.get() as u64, entered.parent_ip.get() as u64];
        let mark = Mark { id: STACK_MARK, who: WHO, time, data: &data, cut: false };
        assert!(self.rings[0].record(&Record::Mark(mark)));
    }
}

const WHO: Who = Who { task: 7, context: Context::Task };

impl World {
    pub(in crate::tracefs) fn new() -> &'static Self {
        keep(Self {
            rings: [const { Ring::new() }; CPUS],
            spare: StdMutex::new(Vec::new()),
            started: StdMutex::new(Vec::new()),
            refuses: AtomicBool::new(false),
            stacks: AtomicBool::new(false),
            has_memory_for: AtomicUsize::new(CPUS),
            recorded: StdMutex::new(Recorded::RETVAL),
            time: AtomicU64::new(1000),
        })
    }

    /// There is memory for so many CPUs.
    pub(in crate::tracefs) fn has_memory_for(&self, cpus: usize) {
        self.has_memory_for.store(cpus, Ordering::Relaxed);
    }

    /// Whether who calls is to be recorded.
    pub(in crate::tracefs) fn stacks(&self) -> bool {
        self.stacks.load(Ordering::Relaxed)
    }

    /// Buffers that are in no ring.
    pub(in crate::tracefs) fn spares(&self) -> usize {
        self.spare.lock().expect("spare").len()
    }

    /// A call that takes 500 ns. Whether it was recorded.
    fn call(&self, cpu: usize, func: u32) -> bool {
        let start = self.time.fetch_add(500, Ordering::Relaxed);
        let end = start + 500;
        self.rings[cpu].call(&Brief { func, depth: 0, who: WHO, start, end, retval: None })
    }
}

fn reader(nodes: usize) -> ReaderMemory {
    let parts = (0..CPUS).map(|_| {
        let (page, words) = (keep_all(vec![0; 64]), keep_all(vec![0; 64]));
        Part::idle(crate::trace::PartMemory { page, nodes: keep_all(vec![Node::EMPTY; nodes]), words })
    });
    ReaderMemory { parts: keep_all(parts.collect()), printed: keep_all(vec![CpuState::NEW; CPUS]) }
}

fn kernel(nodes: usize) -> (&'static World, Tracefs<'static>) {
    let (world, _, fs) = kernel_and_tracing(nodes);
    (world, fs)
}

fn kernel_and_tracing(nodes: usize) -> (&'static World, &'static RingTracing, Tracefs<'static>) {
    let world = World::new();
    let tracing: &RingTracing = keep(RingTracing::new(world, world));
    lend(tracing, nodes);
    (world, tracing, Tracefs::new(tracing, keep(Mock::new())))
}

/// Gives each CPU a buffer of 2 KiB.
pub(in crate::tracefs) fn lend(tracing: &RingTracing, nodes: usize) {
    let memory = TracingMemory { text: reader(nodes), pipe: reader(nodes), page: keep_all(vec![0; 64]) };
    tracing.begin(memory, 2).expect("there is memory");
}

fn cat_by(fs: &Tracefs<'_>, path: &str, piece: usize) -> String {
    let mut reading = fs.open(path).expect("it can be read");
    let (mut all, mut bytes) = (Vec::new(), vec![0; piece]);
    loop {
        match fs.read(&mut reading, &mut bytes).expect("it is read") {
            0 => return String::from_utf8(all).expect("text"),
            got => all.extend_from_slice(&bytes[..got]),
        }
    }
}

fn cat(fs: &Tracefs<'_>, path: &str) -> String {
    cat_by(fs, path, 4096)
}

fn echo(fs: &Tracefs<'_>, text: &str, path: &str) -> Result<usize, FsError> {
    fs.write(path, text.as_bytes(), Open::Replace)
}

fn lines(text: &str) -> usize {
    text.lines().filter(|line| !line.starts_with('#')).count()
}

mod snapshots;

#[test]
fn a_trace_stays_and_a_pipe_consumes() {
    let (world, fs) = kernel(16);
    echo(&fs, "function_graph", "current_tracer").expect("a tracer");
    assert_eq!(*world.started.lock().expect("started"), [Tracer::FunctionGraph]);
    assert!(world.call(0, 0x10) && world.call(1, 0x11) && world.call(0, 0x12));
    let text = cat(&fs, "trace");
    assert!(text.starts_with("# tracer: function_graph\n#\n# CPU  DURATION "), "{text}");
    let events = " 0)   0.500 us    |  0x10();\n 1)   0.500 us    |  0x11();\n 0)   0.500 us    |  0x12();\n";
    assert!(text.ends_with(events), "{text}");
    assert_eq!(cat(&fs, "trace"), text);
    for piece in [1, 3, 100] {
        assert_eq!(cat_by(&fs, "trace", piece), text);
    }
    assert_eq!(lines(&cat(&fs, "per_cpu/cpu1/trace")), 1);
    assert_eq!(cat(&fs, "per_cpu/cpu1/trace_pipe"), " 1)   0.500 us    |  0x11();\n");
    assert_eq!(lines(&cat(&fs, "trace")), 2);
    assert_eq!(cat(&fs, "trace_pipe"), events.replace(" 1)   0.500 us    |  0x11();\n", ""));
    assert_eq!((lines(&cat(&fs, "trace")), cat(&fs, "trace_pipe")), (0, String::new()));
    assert!(world.call(2, 0x13));
    assert_eq!(cat(&fs, "trace_pipe"), " 2)   0.500 us    |  0x13();\n");
}

#[test]
fn two_readers_at_once_see_the_same_trace() {
    let (world, fs) = kernel(4);
    echo(&fs, "function_graph", "current_tracer").expect("a tracer");
    (0..20).for_each(|func| assert!(world.call(func % 3, 0x10 + func as u32)));
    let whole = cat(&fs, "trace");
    assert_eq!(lines(&whole), 20);
    let mut readings = [fs.open("trace").expect("open"), fs.open("trace").expect("open")];
    let mut texts = [Vec::new(), Vec::new()];
    for step in 0..2000 {
        let mut bytes = [0; 20];
        let one = usize::from(step % 3 == 0);
        let got = fs.read(&mut readings[one], &mut bytes).expect("read");
        texts[one].extend_from_slice(&bytes[..got]);
    }
    assert!(texts.iter().all(|text| text == whole.as_bytes()));
}

#[test]
fn what_was_recorded_goes_with_its_tracer_and_by_a_write() {
    let (world, fs) = kernel(16);
    echo(&fs, "function", "current_tracer").expect("a tracer");
    let hit = Hit { func: 1, who: WHO, time: 5_000, parent_ip: 2 };
    assert!(world.rings[1].record(&Record::Hit(hit)));
    let text = cat(&fs, "trace");
    assert!(
        text.starts_with("# tracer: function\n#\n# entries-in-buffer/entries-written: 1/1   #P:3\n"),
        "{text}"
    );
    assert!(text.ends_with("               t-7       [001] .....     0.000005: 0x1 <-0x2\n"), "{text}");
    echo(&fs, "hello", "trace_marker").expect("a mark");
    assert!(cat(&fs, "trace").contains(" tracing_mark_write: hello\n"));
    echo(&fs, "function", "current_tracer").expect("the same");
    assert_eq!(lines(&cat(&fs, "trace")), 2);
    echo(&fs, "", "trace").expect("cleared");
    assert_eq!(lines(&cat(&fs, "trace")), 0);
    assert!(world.call(0, 1));
    world.refuses.store(true, Ordering::Relaxed);
    assert!(echo(&fs, "function_graph", "current_tracer").is_err());
    assert_eq!((cat(&fs, "current_tracer").as_str(), lines(&cat(&fs, "trace"))), ("function\n", 1));
    world.refuses.store(false, Ordering::Relaxed);
    echo(&fs, "nop", "current_tracer").expect("none");
    assert_eq!(lines(&cat(&fs, "trace")), 0);
    assert!(cat(&fs, "trace").starts_with("# tracer: nop\n"));
}

#[test]
fn a_mark_has_any_length_and_nothing_of_it_is_lost() {
    storm(60, 4, |random| {
        let (_, tracing, fs) = kernel_and_tracing(1 + random.below(9));
        echo(&fs, "16", "buffer_size_kb").expect("a size");
        let mut all = String::new();
        for _ in 0..4 {
            let len = *random.pick(&[1, 7, 8, 127, 128, 129, 500, 1023, 1024, 1025, 1500]);
            let text: String = (0..).map(|_| *random.pick(&['a', 'é', '→', ' '])).take(len).collect();
            all += &text;
            tracing.mark(text.as_bytes()).expect("recorded");
        }
        if random.one_in(4) {
            // More than is marked at once; alone, so that nothing is overwritten.
            all = "→".repeat(3000);
            echo(&fs, "", "trace").expect("cleared");
            tracing.mark(all.as_bytes()).expect("recorded");
        }
        let text = cat(&fs, "trace");
        let marks = text.lines().filter_map(|line| Some(line.split_once("tracing_mark_write: ")?.1));
        assert_eq!(marks.clone().collect::<String>(), all);
        assert!(marks.clone().all(|mark| mark.len() <= MAX_TEXT_WORDS * 8));
    });
    let (world, fs) = kernel(16);
    let long = "x".repeat(300);
    echo(&fs, &long, "trace_marker").expect("a mark");
    assert!(cat(&fs, "trace").contains(&std::format!(" tracing_mark_write: {long}\n")), "in one line");
    // An interrupt came between the pieces: they stand in lines of their own.
    let mark = |data: &'static [u64], cut| Record::Mark(Mark { id: TEXT_MARK, who: WHO, time: 5, data, cut });
    let other = Record::Hit(Hit { func: 1, who: WHO, time: 5, parent_ip: 2 });
    const WORD: u64 = u64::from_le_bytes(*b"12345678");
    for record in [mark(&[WORD; MAX_DATA], true), other, mark(&[WORD], false)] {
        assert!(world.rings[1].record(&record));
    }
    let text = cat(&fs, "per_cpu/cpu1/trace");
    assert_eq!(lines(&text), 3, "{text}");
    assert!(
        text.contains(&std::format!(": {}\n", "12345678".repeat(MAX_DATA))) && text.contains(": 12345678\n")
    );
    // A byte that ends texts is shown, and ends nothing.
    echo(&fs, "a\0b", "trace_marker").expect("a mark");
    assert!(cat(&fs, "trace").contains(": a?b\n"));
}

#[test]
fn switches_hold_the_recording_up() {
    let (world, fs) = kernel(16);
    echo(&fs, "0", "tracing_on").expect("off");
    assert!(!world.call(0, 1));
    assert!(echo(&fs, "x", "trace_marker").is_err());
    echo(&fs, "1", "tracing_on").expect("on");
    echo(&fs, "5", "tracing_cpumask").expect("a mask");
    assert!(world.call(0, 1) && !world.call(1, 1) && world.call(2, 1));
    echo(&fs, "0", "tracing_on").expect("off");
    echo(&fs, "7", "tracing_cpumask").expect("a mask");
    assert!(!world.call(1, 1));
    echo(&fs, "1", "tracing_on").expect("on");
    assert!(world.call(1, 1));
    echo(&fs, "nomarkers", "trace_options").expect("an option");
    assert!(echo(&fs, "x", "trace_marker").is_err());
}

#[test]
fn a_buffer_gets_another_size_or_stays_as_it_is() {
    let (world, fs) = kernel(16);
    assert_eq!(cat(&fs, "buffer_total_size_kb"), "6\n");
    echo(&fs, "3", "per_cpu/cpu1/buffer_size_kb").expect("a size");
    assert_eq!(
        (cat(&fs, "buffer_size_kb").as_str(), cat(&fs, "buffer_total_size_kb").as_str()),
        ("X\n", "8\n")
    );
    assert!(world.call(0, 1) && world.call(1, 1));
    assert!(echo(&fs, "17", "buffer_size_kb").is_err());
    assert_eq!(lines(&cat(&fs, "trace")), 2);
    assert_eq!(cat(&fs, "buffer_total_size_kb"), "8\n");
    echo(&fs, "16", "buffer_size_kb").expect("a size");
    assert_eq!((cat(&fs, "buffer_size_kb").as_str(), lines(&cat(&fs, "trace"))), ("16\n", 0));
    assert_eq!(world.spare.lock().expect("spare").len(), 4);
    assert!(world.call(0, 1));
    assert_eq!(lines(&cat(&fs, "trace_pipe")), 1);
}

#[test]
fn a_snapshot_is_the_trace_of_that_moment() {
    let (world, fs) = kernel(16);
    echo(&fs, "function_graph", "current_tracer").expect("a tracer");
    assert!(world.call(0, 1) && world.call(1, 2));
    echo(&fs, "1", "snapshot").expect("taken");
    assert_eq!((lines(&cat(&fs, "snapshot")), lines(&cat(&fs, "trace"))), (2, 0));
    assert!(world.call(1, 3));
    assert_eq!((lines(&cat(&fs, "snapshot")), lines(&cat(&fs, "trace"))), (2, 1));
    echo(&fs, "1", "per_cpu/cpu1/snapshot").expect("taken");
    assert!(cat(&fs, "per_cpu/cpu1/snapshot").contains("0x3();"));
    assert!(cat(&fs, "per_cpu/cpu0/snapshot").contains("0x1();"));
    echo(&fs, "4", "buffer_size_kb").expect("a size");
    assert!(world.call(2, 4));
    echo(&fs, "1", "snapshot").expect("taken, with buffers of the new size");
    assert_eq!((lines(&cat(&fs, "snapshot")), cat(&fs, "buffer_size_kb").as_str()), (1, "4\n"));
    echo(&fs, "2", "snapshot").expect("emptied");
    assert_eq!(lines(&cat(&fs, "snapshot")), 0);
    assert!(echo(&fs, "0", "per_cpu/cpu0/snapshot").is_err());
    echo(&fs, "0", "snapshot").expect("freed");
    assert!(cat(&fs, "snapshot").contains("Snapshot is freed"));
}

#[test]
fn options_choose_how_lines_look() {
    let (world, fs) = kernel(16);
    echo(&fs, "function", "current_tracer").expect("a tracer");
    for who in [WHO, Who { context: Context::Irq, ..WHO }] {
        assert!(world.rings[1].record(&Record::Hit(Hit { func: 1, who, time: 5_000, parent_ip: 2 })));
    }
    let data = [1, 2];
    let stack = Mark { id: STACK_MARK, who: WHO, time: 6_000, data: &data, cut: false };
    assert!(world.rings[1].record(&Record::Mark(stack)));
    let text = u64::from_le_bytes(*b"hello\0\0\0");
    let mark = Mark { id: TEXT_MARK, who: WHO, time: 7_000, data: &[text], cut: false };
    assert!(world.rings[1].record(&Record::Mark(mark)));

    let plain = "               t-7       [001] .....     0.000005: 0x1 <-0x2
               t-7       [001] ..h..     0.000005: 0x1 <-0x2
               t-7       [001] .....     0.000006: <stack trace>
 => 0x1
 => 0x2
               t-7       [001] .....     0.000007: tracing_mark_write: hello
";
    let shown =
        || cat(&fs, "trace").lines().filter(|line| !line.starts_with('#')).fold(String::new(), with_line);
    assert_eq!(shown(), plain);
    for (option, want) in [
        ("noirq-info", plain.replace(".....", "").replace("..h..", "")),
        ("noprint-parent", plain.replace(" <-0x2", "")),
        ("sym-addr", plain.replace("0x1", "0x1 <0000000000000001>").replace("0x2", "0x2 <0000000000000002>")),
        (
            "printk-msg-only",
            plain.replace("               t-7       [001] .....     0.000007: tracing_mark_write: ", ""),
        ),
        (
            "nocontext-info",
            plain
                .lines()
                .map(|line| line.split_once(": ").map_or(line, |line| line.1))
                .fold(String::new(), with_line),
        ),
    ] {
        echo(&fs, option, "trace_options").expect("an option");
        assert_eq!(shown(), want, "{option}");
        let back = option.strip_prefix("no").map_or(std::format!("no{option}"), String::from);
        echo(&fs, &back, "trace_options").expect("an option");
        assert_eq!(shown(), plain, "{back}");
    }
    echo(&fs, "0", "options/irq-info").expect("an option");
    let head = "\
# tracer: function
#
# entries-in-buffer/entries-written: 4/4   #P:3
#
#           TASK-PID     CPU#     TIMESTAMP  FUNCTION
#              | |         |         |         |
";
    assert!(cat(&fs, "trace").starts_with(&std::format!("{head}  ")), "{}", cat(&fs, "trace"));
    echo(&fs, "nocontext-info", "trace_options").expect("an option");
    assert!(cat(&fs, "trace").starts_with("# tracer: function\n#\n0x1 <-0x2\n"));
    echo(&fs, "function_graph", "current_tracer").expect("a tracer");
    assert!(world.call(0, 1));
    assert_eq!(cat(&fs, "trace"), "# tracer: function_graph\n#\n0x1();\n");
    assert_eq!(cat(&fs, "trace_pipe"), "0x1();\n");
    echo(&fs, "func_stack_trace", "trace_options").expect("an option");
    assert!(world.stacks.load(Ordering::Relaxed) && cat(&fs, "options/func_stack_trace") == "1\n");
    echo(&fs, "0", "options/func_stack_trace").expect("an option");
    assert!(!world.stacks.load(Ordering::Relaxed));
}

fn with_line(text: String, line: &str) -> String {
    text + line + "\n"
}

#[test]
fn options_choose_what_is_recorded_and_shown() {
    let (world, fs) = kernel(16);
    echo(&fs, "function_graph", "current_tracer").expect("a tracer");
    assert!(world.call(0, 1));
    echo(&fs, "funcgraph-retaddr", "trace_options").expect("an option");
    echo(&fs, "1", "options/funcgraph-args").expect("an option");
    echo(&fs, "nofuncgraph-cpu", "trace_options").expect("an option");
    let recorded = *world.recorded.lock().expect("recorded");
    assert_eq!(recorded, Recorded::RETVAL | Recorded::RET_ADDR | Recorded::ARGS);
    assert!(cat(&fs, "trace").ends_with("  0.500 us    |  0x1();\n"));
    assert!(echo(&fs, "func-args", "trace_options").is_err());
    echo(&fs, "nooverwrite", "trace_options").expect("an option");
    while world.call(0, 1) {}
    let stats = cat(&fs, "per_cpu/cpu0/stats");
    assert!(stats.contains("overrun: 0\n") && stats.contains("dropped events: 1\n"), "{stats}");
    assert_eq!(lines(&cat(&fs, "trace_pipe")) as u64, entries(&stats) + 1);
    let stats = cat(&fs, "per_cpu/cpu0/stats");
    assert!(world.call(0, 1) && stats.contains("entries: 0\n"), "{stats}");
}

fn entries(stats: &str) -> u64 {
    let line = stats.lines().next().and_then(|line| line.strip_prefix("entries: "));
    line.and_then(|number| number.parse().ok()).expect("entries")
}

#[test]
fn nothing_is_shown_twice_and_what_is_missing_is_told() {
    storm(60, 4, |random| {
        let (world, fs) = kernel(1 + random.below(20));
        echo(&fs, "function_graph", "current_tracer").expect("a tracer");
        let (mut written, mut shown, mut lost) = (0, 0, 0);
        for _ in 0..random.below(300) {
            if random.one_in(12) {
                let text = cat_by(&fs, "trace_pipe", 1 + random.below(200));
                for line in text.lines() {
                    match line.split_once("[LOST ") {
                        Some((_, rest)) => {
                            let count = rest.split(' ').next().and_then(|count| count.parse::<u64>().ok());
                            lost += count.expect("a count");
                        }
                        None => shown += 1,
                    }
                }
            } else {
                (0..random.below(40)).for_each(|_| {
                    assert!(world.call(random.below(CPUS), 5));
                    written += 1;
                });
            }
            assert!(shown + lost <= written);
        }
        shown += cat(&fs, "trace_pipe").lines().filter(|line| !line.contains("LOST")).count() as u64;
        let stats: u64 = (0..CPUS)
            .map(|cpu| cat(&fs, &std::format!("per_cpu/cpu{cpu}/stats")))
            .map(|stats| {
                assert_eq!(entries(&stats), 0, "{stats}");
                let overrun = stats.lines().find_map(|line| line.strip_prefix("overrun: "));
                overrun.and_then(|number| number.parse::<u64>().ok()).expect("overrun")
            })
            .sum();
        assert_eq!(shown + stats, written);
    });
}
