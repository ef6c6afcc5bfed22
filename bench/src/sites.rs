//! What goes through all sites, measured through the public engine.

use std::time::{Duration, Instant};

use fgraph::filter_text::FilterLine;
use fgraph::select::{FunctionTable, Selection, select};
use fgraph::x86_64::patch::X86_64;
use fgraph::{
    Engine, Filter, FuncAddr, Hooking, Layouts, Ops, OpsFlags, Pair, SetChange, SiteSource, Trampolines,
    WhichSet,
};

use crate::count::allocations;
use crate::image::Image;
use crate::text::{self, Bench, Done};

/// How often each is measured.
pub(crate) const ROUNDS: usize = 3;

/// What is measured, in this order.
pub(crate) const OPERATIONS: [&str; 7] = [
    "init, table in order",
    "init, table in no order",
    "one name among all",
    "a glob over all names",
    "give a user what the glob took",
    "enable everything",
    "disable everything",
];

/// What a table of so many sites costs.
#[derive(Clone, Debug)]
pub(crate) struct Costs {
    pub(crate) sites: usize,
    /// What the compiler leaves.
    pub(crate) table_bytes: usize,
    /// What the engine is given besides.
    pub(crate) state_bytes: usize,
    /// What it has in any case.
    pub(crate) engine_bytes: usize,
    /// How many functions the glob takes.
    pub(crate) globbed: usize,
    /// The best time of each operation.
    pub(crate) times: [Duration; OPERATIONS.len()],
}

/// Measures a table of `sites` sites.
pub(crate) fn measure(sites: usize) -> Costs {
    let image = Image::new(sites);
    let mut costs = Costs {
        sites,
        table_bytes: 0,
        state_bytes: 0,
        engine_bytes: size_of::<Engine<Bench, X86_64>>(),
        globbed: 0,
        times: [Duration::MAX; OPERATIONS.len()],
    };
    for _ in 0..ROUNDS {
        let times = round(&image, &mut costs);
        for (best, time) in costs.times.iter_mut().zip(times) {
            *best = time.min(*best);
        }
    }
    costs
}

/// Everything once.
fn round(image: &Image, costs: &mut Costs) -> [Duration; OPERATIONS.len()] {
    let sites = image.len();
    let (_, shuffled) = start(image, image.shuffled_entries(), costs);
    let (engine, ordered) = start(image, image.entries(), costs);

    let exact = image.raw_name((sites / 2) | 1).to_owned();
    let (one, taken) = taken(image, &exact);
    assert_eq!(taken.len(), 1);
    let (glob, funcs) = self::taken(image, "*_page_*");
    assert!(!funcs.is_empty() && funcs.len() < sites);
    costs.globbed = funcs.len();

    let ops = Box::leak(Box::new(Ops::new(|_, _, _, _| {}, OpsFlags::empty(), Filter::ALL)));
    let some = Box::leak(Box::new(Ops::new(|_, _, _, _| {}, OpsFlags::empty(), Filter::NONE)));
    let (give, done) = timed(|| {
        engine.register_ops(some).expect("a user");
        engine
            .change_ops(some, WhichSet::Filter, SetChange::Replace(&funcs))
            .expect("functions that are there");
    });
    // INT3, the tail, the first byte, each for all sites and then a core sync.
    assert_eq!((done.writes, done.syncs), (3 * funcs.len(), 3));
    engine.unregister_ops(some).expect("a registered user");
    text::done();

    let (enable, done) = timed(|| engine.register_ops(ops).expect("a user"));
    assert_eq!((done.writes, done.syncs), (3 * sites, 3));
    assert_eq!(engine.stats().patched, sites);
    let (disable, done) = timed(|| engine.unregister_ops(ops).expect("a registered user"));
    // One more sync for the grace period.
    assert_eq!((done.writes, done.syncs), (3 * sites, 4));
    assert_eq!(engine.stats().patched, 0);
    [ordered, shuffled, one, glob, give, enable, disable]
}

/// A new engine, and how long its `init` took.
fn start(image: &Image, entries: Vec<usize>, costs: &mut Costs) -> (Box<Engine<Bench, X86_64>>, Duration) {
    text::load(image.text());
    let engine = Box::new(Engine::<Bench, X86_64>::new());
    let states = vec![0u64; entries.len()];
    costs.table_bytes = size_of_val(&*entries);
    costs.state_bytes = size_of_val(&*states);
    let source = SiteSource {
        entries: entries.leak(),
        states: states.leak(),
        text: image.text_range(),
        notrace: image.notrace(),
        layouts: Layouts::Plain,
        hooking: Hooking::Classic,
    };
    let pair = Pair { args: image.text_range().end + 0x1000, regs: image.text_range().end + 0x2000 };
    let trampolines = Trampolines { classic: pair, balanced: pair, guarded: pair };
    // SAFETY: nothing executes this text.
    let (time, done) = timed(|| unsafe { engine.init(source, trampolines) }.expect("a good image"));
    assert_eq!(done.syncs, 1);
    (engine, time)
}

/// What a word of a filter takes, in ascending order, and how long that took.
fn taken(image: &Image, word: &str) -> (Duration, Vec<FuncAddr>) {
    let line = FilterLine::parse(word).expect("a word");
    let mut funcs = Vec::with_capacity(image.len());
    let (time, _) = timed(|| {
        let selection = select(&line, image, &mut |index| funcs.push(image.addr(index)));
        assert!(matches!(selection, Ok(Selection::Functions(_))), "{word}: {selection:?}");
    });
    (time, funcs)
}

/// Runs it, and says how long it took and what was done to the text. It must not allocate.
fn timed<R>(run: impl FnOnce() -> R) -> (Duration, Done) {
    text::done();
    let before = allocations();
    let start = Instant::now();
    let _ = std::hint::black_box(run());
    let time = start.elapsed();
    assert_eq!(allocations(), before, "the engine allocates nothing");
    (time, text::done())
}
