//! Known bugs of several CPUs. Each CPU is a thread here; they share one text and one engine.
//!
//! [`Turns`] lets two CPUs run by turns, changing over at interrupt points as a seed says, so that an interleaving that fails
//! can be run again. From the first core sync on both run freely: who waits for the other then needs no turn.

use core::cell::{Cell, RefCell};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex, PoisonError};
use std::thread;
use std::thread_local;
use std::vec::Vec;

use super::cpu::Runs;
use crate::addr::{FuncAddr, RetAddr, SiteAddr};
use crate::engine::image::{Function, Image, for_plain_sites};
use crate::engine::{Engine, Error, SetChange, WhichSet};
use crate::filter::Filter;
use crate::graph::world::{Block, HOOKER, funcs};
use crate::graph::{GraphOps, Want};
use crate::machine::{Hooking, Layouts};
use crate::ops::{Ops, OpsFlags};
use crate::platform::{Context, CurrentTask, Fatal, Platform, ReadFault, TextWriteError};
use crate::regs::{Regs, Saved};
use crate::site::{Flavor, SiteSource};
use crate::task::TaskTrace;
use crate::testing::kernel::Fake;
use crate::testing::{Random, keep, keep_all, storm, with_interrupts_at};

/// What the CPUs share beside the engine.
#[derive(Debug)]
struct Shared {
    base: usize,
    text: Mutex<Vec<u8>>,
    syncs: AtomicUsize,
    turns: Turns,
}

/// Whose turn it is.
#[derive(Debug)]
struct Turns {
    state: Mutex<Turn>,
    changed: Condvar,
}

#[derive(Debug)]
struct Turn {
    cpu: usize,
    /// Everybody runs.
    free: bool,
    random: Random,
}

impl Turns {
    /// CPU 0 begins.
    fn new(random: Random) -> Self {
        Self { state: Mutex::new(Turn { cpu: 0, free: false, random }), changed: Condvar::new() }
    }

    fn with(&self, change: impl FnOnce(&mut Turn)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    /// From now on everybody runs.
    fn free(&self) {
        self.with(|turn| turn.free = true);
    }

    fn wait(&self, cpu: usize) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let not_mine = |turn: &mut Turn| !turn.free && turn.cpu != cpu;
        drop(self.changed.wait_while(state, not_mine).unwrap_or_else(PoisonError::into_inner));
    }

    /// At a point where the other CPU may go on.
    fn pass(&self, cpu: usize) {
        self.with(|turn| {
            if turn.random.one_in(2) {
                turn.cpu = 1 - cpu;
            }
        });
        self.wait(cpu);
    }
}

/// A CPU is done, or its test has failed: nobody waits for it any more.
struct Over<'a>(&'a Turns);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.free();
    }
}

thread_local! {
    static SHARED: RefCell<Option<Arc<Shared>>> = const { RefCell::new(None) };
    static CPU: Cell<usize> = const { Cell::new(0) };
}

fn shared() -> Arc<Shared> {
    SHARED.with_borrow(Clone::clone).expect("this thread is a CPU")
}

/// The platform.
#[derive(Debug)]
enum Smp {}

// SAFETY: 1. Nothing is entered through trampolines here. 2. There are only tasks. 3. A thread is one CPU to its end.
// 4. Writes go to the CPUs' shared bytes, which nothing executes.
unsafe impl Platform for Smp {
    const CURRENT: CurrentTask = Fake::CURRENT;

    fn context() -> Context {
        Context::Task
    }

    fn cpu_id() -> usize {
        CPU.get()
    }

    fn clock_ns() -> u64 {
        0
    }

    fn task_id() -> u32 {
        0
    }

    fn preempt_disable() {}

    fn preempt_enable() {}

    unsafe fn write_text(addr: usize, bytes: &[u8]) -> Result<(), TextWriteError> {
        let shared = shared();
        let mut text = shared.text.lock().unwrap_or_else(PoisonError::into_inner);
        let start = addr - shared.base;
        text[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn sync_cores() {
        let shared = shared();
        shared.syncs.fetch_add(1, Ordering::SeqCst);
        shared.turns.free();
        core::sync::atomic::fence(Ordering::SeqCst);
    }

    fn read(addr: usize, bytes: &mut [u8]) -> Result<(), ReadFault> {
        let shared = shared();
        let text = shared.text.lock().unwrap_or_else(PoisonError::into_inner);
        let start = addr.checked_sub(shared.base).ok_or(ReadFault { addr })?;
        bytes.copy_from_slice(text.get(start..start + bytes.len()).ok_or(ReadFault { addr })?);
        Ok(())
    }

    fn fatal(why: Fatal) -> ! {
        panic!("{why}")
    }
}

/// An image, an engine, and what makes a thread a CPU of theirs.
struct Machine<T: Runs> {
    image: Image,
    engine: &'static Engine<Smp, T>,
    shared: Arc<Shared>,
}

impl<T: Runs> Machine<T> {
    fn start(random: &mut Random) -> Self {
        let image = Image::new::<T>(4, random);
        let turns = Turns::new(random.clone());
        let text = Mutex::new(image.bytes.clone());
        let shared = Arc::new(Shared { base: image.base, text, syncs: AtomicUsize::new(0), turns });
        let engine = keep(Engine::<Smp, T>::new());
        let machine = Self { image, engine, shared };
        machine.become_cpu(0);
        let functions = machine.image.functions.len();
        let source = machine.image.source(machine.image.entries(), functions);
        // SAFETY: nothing executes this text.
        let report = unsafe { engine.init(source, machine.image.trampolines) };
        assert!(report.is_ok());
        machine
    }

    fn become_cpu(&self, cpu: usize) {
        SHARED.set(Some(self.shared.clone()));
        CPU.set(cpu);
    }

    fn function(&self, index: usize) -> &Function {
        self.image.traceable().nth(index).expect("a function")
    }

    fn text(&self) -> Vec<u8> {
        self.shared.text.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn syncs(&self) -> usize {
        self.shared.syncs.load(Ordering::SeqCst)
    }
}

/// Runs a CPU with a full barrier at each interrupt point: between the beginning of a section and its first load of what can be
/// taken away there is one. A kernel's `sync_cores` makes every CPU execute one wherever it is; a thread cannot do that to
/// another, so each does it to itself.
fn with_barriers(run: impl FnOnce()) {
    let barrier = || {
        core::sync::atomic::fence(Ordering::SeqCst);
        Some(0)
    };
    with_interrupts_at(0, barrier, run);
}

/// A task of a CPU.
struct Task {
    task: &'static TaskTrace,
    sp: usize,
}

impl Task {
    fn new() -> Self {
        let task = keep(TaskTrace::new());
        task.give_stack(keep_all(vec![0; 64])).expect("enough words");
        let stack = keep_all(vec![0usize; 16]).as_mut_ptr().expose_provenance();
        Self { task, sp: stack + size_of::<[usize; 8]>() }
    }

    /// Comes through a site that calls the args trampoline, and returns.
    fn call<T: Runs>(&self, engine: &Engine<Smp, T>, site: usize, func: usize) {
        let func = FuncAddr::new(func);
        // SAFETY: a word of this task's stack.
        let mut fregs = unsafe { T::fregs(Saved::Args, func, self.sp, 0x7000, self.task) };
        engine.entry(SiteAddr::new(site), func, &mut fregs, RetAddr::new(HOOKER));
        if fregs.return_address().get() == HOOKER {
            // SAFETY: as above.
            let mut fregs = unsafe { T::Regs::ret(self.sp, 0, self.task) };
            // SAFETY: nothing runs with these registers.
            unsafe { engine.leave(&mut fregs) };
            assert_eq!(fregs.ip(), 0x7000);
        }
    }
}

/// A user that counts what it is told in a counter of its own.
fn counting<T: Runs>(filter: Filter) -> (&'static Ops<T::Regs>, &'static AtomicUsize) {
    let count: &'static AtomicUsize = keep(AtomicUsize::new(0));
    let note = |_: FuncAddr, _: RetAddr, ops: &Ops<T::Regs>, _: &mut T::Regs| {
        let count = core::ptr::with_exposed_provenance::<AtomicUsize>(ops.private());
        // SAFETY: the counter lives for ever.
        unsafe { &*count }.fetch_add(1, Ordering::SeqCst);
    };
    let private = core::ptr::from_ref(count).expose_provenance();
    (keep(Ops::new(note, OpsFlags::empty(), filter).with_private(private)), count)
}

/// CPU 1 comes through a function that a user wants before and after its set is changed by CPU 0. However the two take turns,
/// it is told of each call once.
fn a_change_on_another_cpu_misses_and_doubles_no_call<T: Runs>() {
    const CALLS: usize = 3;
    storm(250, 2, |random| {
        let machine = Machine::<T>::start(random);
        let wanted = machine.function(1).clone();
        let other = machine.function(2).clone();
        let (one, both) = (funcs([wanted.addr]), funcs([wanted.addr, other.addr]));
        let sets = [
            (SetChange::All, SetChange::Replace(one)),
            (SetChange::Replace(one), SetChange::All),
            (SetChange::Replace(both), SetChange::Replace(one)),
            (SetChange::Replace(one), SetChange::Add(both)),
            (SetChange::All, SetChange::Remove(funcs([other.addr]))),
            (SetChange::All, SetChange::All),
        ];
        let (from, to) = *random.pick(&sets);
        let (ops, count) = counting::<T>(Filter::NONE);
        assert_eq!(machine.engine.register_ops(ops), Ok(()));
        assert_eq!(machine.engine.change_ops(ops, WhichSet::Filter, from), Ok(()));
        machine.shared.turns.with(|turn| turn.free = false);
        let by_turns = |cpu: usize, run: &dyn Fn()| {
            let turns = &machine.shared.turns;
            machine.become_cpu(cpu);
            turns.wait(cpu);
            let pass = || {
                turns.pass(cpu);
                Some(0)
            };
            let _over = Over(turns);
            with_interrupts_at(0, pass, run);
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                let task = Task::new();
                by_turns(1, &|| {
                    for call in 1..=CALLS {
                        task.call(machine.engine, wanted.site, wanted.addr);
                        assert_eq!(count.load(Ordering::SeqCst), call, "from {from:?} to {to:?}");
                    }
                });
            });
            by_turns(0, &|| {
                assert_eq!(machine.engine.change_ops(ops, WhichSet::Filter, to), Ok(()));
            });
        });
    });
}

/// Whom a callback waits for, and what it tells.
#[derive(Debug, Default)]
struct Meeting {
    /// A callback is under way.
    inside: AtomicBool,
    /// The control side has got as far as waiting.
    waits: AtomicBool,
    /// It has done with waiting.
    waited: AtomicBool,
    /// The callback has come to its end.
    done: AtomicBool,
}

impl Meeting {
    fn of(private: usize) -> &'static Self {
        // SAFETY: made by `new`.
        unsafe { &*core::ptr::with_exposed_provenance::<Self>(private) }
    }

    fn new() -> (&'static Self, usize) {
        let this: &'static Self = keep(Self::default());
        (this, core::ptr::from_ref(this).expose_provenance())
    }

    /// A callback that lasts until somebody waits for it, and then a while.
    fn last(&self) {
        if self.inside.swap(true, Ordering::SeqCst) {
            return;
        }
        while !self.waits.load(Ordering::SeqCst) && !self.waited.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        (0..100).for_each(|_| thread::yield_now());
        self.done.store(true, Ordering::SeqCst);
    }
}

/// Takes something away while CPU 1 is in a callback: that must have ended before.
fn take_away<T: Runs>(
    machine: &Machine<T>,
    meeting: &Meeting,
    call: impl FnOnce() + Send,
    take: impl FnOnce(),
    how: &str,
) {
    thread::scope(|scope| {
        scope.spawn(|| {
            machine.become_cpu(1);
            call();
        });
        while !meeting.inside.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        let before = machine.syncs();
        let (done, shared) = (AtomicBool::new(false), machine.shared.clone());
        thread::scope(|scope| {
            // Tells the callback once the grace period has begun: as late as it can be known from outside.
            scope.spawn(|| {
                while shared.syncs.load(Ordering::SeqCst) == before && !done.load(Ordering::SeqCst) {
                    thread::yield_now();
                }
                meeting.waits.store(true, Ordering::SeqCst);
            });
            take();
            let ended = meeting.done.load(Ordering::SeqCst);
            meeting.waited.store(true, Ordering::SeqCst);
            done.store(true, Ordering::SeqCst);
            assert!(ended, "{how}: it was taken away under a callback");
        });
    });
}

fn a_callback_on_another_cpu_is_waited_for<T: Runs>() {
    let random = &mut Random::new(5);
    type Take<T> = fn(&Machine<T>, &'static Ops<<T as crate::machine::Machine>::Regs>);
    let ways: [(&str, Take<T>); 3] = [
        ("unregistered", |machine, ops| assert_eq!(machine.engine.unregister_ops(ops), Ok(()))),
        ("unregistered when there is no text to change", |machine, ops| {
            let (stays, _) = counting::<T>(Filter::ALL);
            let before = machine.syncs();
            assert_eq!(machine.engine.register_ops(stays), Ok(()));
            assert_eq!(machine.syncs(), before, "no text changes");
            assert_eq!(machine.engine.unregister_ops(ops), Ok(()));
        }),
        ("unregistered when all is over", |machine, ops| {
            machine.engine.stop();
            assert_eq!(machine.engine.unregister_ops(ops), Err(Error::Stopped));
        }),
    ];
    for (how, take) in ways {
        let machine = Machine::<T>::start(random);
        let (meeting, private) = Meeting::new();
        let last = |_: FuncAddr, _: RetAddr, ops: &Ops<T::Regs>, _: &mut T::Regs| {
            Meeting::of(ops.private()).last();
        };
        let ops: &'static Ops<T::Regs> =
            keep(Ops::new(last, OpsFlags::empty(), Filter::ALL).with_private(private));
        assert_eq!(machine.engine.register_ops(ops), Ok(()));
        let function = machine.function(0);
        let call = || Task::new().call(machine.engine, function.site, function.addr);
        take_away(&machine, meeting, call, || take(&machine, ops), how);
    }
}

fn a_graph_callback_on_another_cpu_is_waited_for<T: Runs>() {
    let random = &mut Random::new(6);
    for at_return in [false, true] {
        let machine = Machine::<T>::start(random);
        let (meeting, private) = Meeting::new();
        let ops: GraphOps<T::Regs> = if at_return {
            GraphOps::new(|_, _| Want::Return, |_, ops| Meeting::of(ops.private()).last(), Filter::ALL)
        } else {
            let entry: crate::graph::GraphEntryFunc<T::Regs> = |_, ops| {
                Meeting::of(ops.private()).last();
                Want::Return
            };
            GraphOps::new(entry, |_, _| {}, Filter::ALL)
        };
        let ops: &'static GraphOps<T::Regs> = keep(ops.with_private(private));
        assert_eq!(machine.engine.register_graph(ops), Ok(()));
        let function = machine.function(0);
        let call = || Task::new().call(machine.engine, function.site, function.addr);
        let take = || assert_eq!(machine.engine.unregister_graph(ops), Ok(()));
        take_away(&machine, meeting, call, take, if at_return { "at the return" } else { "at the entry" });
    }
}

/// A module of one function, whose table can be overwritten.
struct Loaded {
    entries: *mut usize,
    states: *mut u64,
    text: core::ops::Range<usize>,
}

impl Loaded {
    fn new(function: &Function, sled: usize) -> Self {
        let entries = keep_all(vec![function.site]).as_mut_ptr();
        let states = keep_all(vec![0u64]).as_mut_ptr();
        Self { entries, states, text: function.addr..function.site + sled }
    }

    /// As a source, once more.
    fn source(&self, site: usize) -> SiteSource {
        // SAFETY: one element that lives for ever, and that the engine has let go of.
        let (entries, states) = unsafe {
            (
                core::slice::from_raw_parts_mut(self.entries, 1),
                core::slice::from_raw_parts_mut(self.states, 1),
            )
        };
        entries[0] = site;
        SiteSource {
            entries,
            states,
            text: self.text.clone(),
            notrace: 0..0,
            layouts: Layouts::Plain,
            hooking: Hooking::Classic,
        }
    }

    /// The memory is used for something else: bits that would mean that everybody wants the function.
    fn reuse(&self) {
        // SAFETY: as above.
        unsafe { self.states.write(u64::MAX >> 24 & !0xffff) };
    }
}

/// The kernel is all functions but the last; that is the module.
fn with_a_module<T: Runs>(random: &mut Random) -> (Machine<T>, Function) {
    let mut whole = Image::new::<T>(4, random);
    let function = whole.traceable().last().expect("a function").clone();
    whole.functions.retain(|there| there.addr != function.addr);
    let turns = Turns::new(random.clone());
    let text = Mutex::new(whole.bytes.clone());
    let shared = Arc::new(Shared { base: whole.base, text, syncs: AtomicUsize::new(0), turns });
    let machine = Machine { image: whole, engine: keep(Engine::<Smp, T>::new()), shared };
    machine.become_cpu(0);
    let source = machine.image.source(machine.image.entries(), machine.image.functions.len());
    // SAFETY: nothing executes this text.
    unsafe { machine.engine.init(source, machine.image.trampolines) }.expect("a good image");
    (machine, function)
}

/// What a lookup of another CPU found in a module's table stays until the lookup has ended.
fn a_module_removed_during_a_lookup_is_not_used_after<T: Runs>() {
    let (machine, function) = with_a_module::<T>(&mut Random::new(7));
    let (meeting, private) = Meeting::new();
    let last = |_: FuncAddr, _: RetAddr, ops: &Ops<T::Regs>, _: &mut T::Regs| {
        Meeting::of(ops.private()).last();
    };
    let ops = keep(Ops::new(last, OpsFlags::empty(), Filter::ALL).with_private(private));
    assert_eq!(machine.engine.register_ops(ops), Ok(()));
    let module = Loaded::new(&function, T::SLED);
    // SAFETY: nothing executes this text, and its table stays.
    let (id, _) = unsafe { machine.engine.add_module(module.source(function.site)) }.expect("a good module");
    let call = || Task::new().call(machine.engine, function.site, function.addr);
    let take = || assert_eq!(machine.engine.remove_module(id), Ok(()));
    take_away(&machine, meeting, call, take, "the module");
}

/// A module that comes and goes while another CPU looks for its function, as late entries do.
fn a_module_that_comes_and_goes_is_seen_whole_or_not_at_all<T: Runs>() {
    storm(3, 1, |random| {
        let (machine, function) = with_a_module::<T>(random);
        let (wants, wanted) = counting::<T>(Filter::ALL);
        let (wants_not, unwanted) = counting::<T>(Filter::only(funcs([machine.function(0).addr])));
        assert_eq!(machine.engine.register_ops(wants), Ok(()));
        assert_eq!(machine.engine.register_ops(wants_not), Ok(()));
        let module = Loaded::new(&function, T::SLED);
        let (over, start) = (AtomicBool::new(false), Barrier::new(2));
        thread::scope(|scope| {
            {
                let (machine, function, over, start) = (&machine, &function, &over, &start);
                scope.spawn(move || {
                    machine.become_cpu(1);
                    let task = Task::new();
                    start.wait();
                    with_barriers(|| {
                        while !over.load(Ordering::SeqCst) {
                            task.call(machine.engine, function.site, function.addr);
                        }
                    });
                });
            }
            let rounds = if cfg!(miri) { 3 } else { 200 };
            start.wait();
            let sled = function.site - machine.image.base..function.site - machine.image.base + T::SLED;
            for _ in 0..rounds {
                machine.shared.text.lock().unwrap_or_else(PoisonError::into_inner)[sled.clone()]
                    .copy_from_slice(&function.sled);
                // SAFETY: nothing executes this text, and its table stays until it is removed.
                let added = unsafe { machine.engine.add_module(module.source(function.site)) };
                let (id, _) = added.expect("a good module");
                assert_eq!(machine.engine.remove_module(id), Ok(()));
                module.reuse();
            }
            over.store(true, Ordering::SeqCst);
        });
        assert_eq!(unwanted.load(Ordering::SeqCst), 0, "told of what it does not want");
        std::println!("{} calls of the module were told", wanted.load(Ordering::SeqCst));
    });
}

/// Two CPUs whose users come, go and change their sets at once; both ask for the lists meanwhile.
fn users_that_come_and_go_on_two_cpus_leave_no_trace<T: Runs>() {
    storm(4, 1, |random| {
        let machine = Machine::<T>::start(random);
        let seeds = [random.word(), random.word()];
        thread::scope(|scope| {
            for (cpu, seed) in seeds.into_iter().enumerate() {
                let machine = &machine;
                scope.spawn(move || {
                    machine.become_cpu(cpu);
                    let random = &mut Random::new(seed);
                    let (task, function) = (Task::new(), machine.function(cpu));
                    // Both use one list.
                    let set = funcs(machine.image.traceable().map(|function| function.addr));
                    for _ in 0..if cfg!(miri) { 3 } else { 100 } {
                        let (ops, count) = counting::<T>(Filter::only(set));
                        assert_eq!(machine.engine.register_ops(ops), Ok(()));
                        with_barriers(|| task.call(machine.engine, function.site, function.addr));
                        assert!(count.load(Ordering::SeqCst) > 0);
                        let some = &set[random.below(set.len())..];
                        assert_eq!(
                            machine.engine.change_ops(ops, WhichSet::Filter, SetChange::Remove(some)),
                            Ok(())
                        );
                        machine.engine.functions(|info| assert!(info.users <= 2, "{info:?}"));
                        assert_eq!(machine.engine.unregister_ops(ops), Ok(()));
                        let told = count.load(Ordering::SeqCst);
                        with_barriers(|| task.call(machine.engine, function.site, function.addr));
                        assert_eq!(count.load(Ordering::SeqCst), told, "told after it was out");
                    }
                });
            }
        });
        assert_eq!(machine.engine.stats().patched, 0);
        assert_eq!(machine.text(), machine.image.text_with::<T>(|_| Flavor::Off));
    });
}

/// Who lists functions sees a set as it was before or as it is after, although another CPU changes it meanwhile.
fn a_listing_sees_a_set_before_or_after_a_change<T: Runs>() {
    storm(3, 1, |random| {
        let machine = Machine::<T>::start(random);
        let (ops, _) = counting::<T>(Filter::NONE);
        assert_eq!(machine.engine.register_ops(ops), Ok(()));
        let changed = AtomicBool::new(false);
        thread::scope(|scope| {
            let (mut listed, mut other) = (Vec::new(), None);
            machine.engine.functions(|info| {
                // In the middle of the list another CPU begins.
                other.get_or_insert_with(|| {
                    scope.spawn(|| {
                        machine.become_cpu(1);
                        let all = machine.engine.change_ops(ops, WhichSet::Filter, SetChange::All);
                        changed.store(true, Ordering::SeqCst);
                        assert_eq!(all, Ok(()));
                    })
                });
                (0..5).for_each(|_| thread::yield_now());
                assert!(!changed.load(Ordering::SeqCst), "the set changed under a reader");
                listed.push((info.users, info.flavor));
            });
            assert!(listed.iter().all(|there| *there == (0, Flavor::Off)), "{listed:?}");
        });
        let mut listed = Vec::new();
        machine.engine.functions(|info| listed.push((info.users, info.flavor)));
        assert!(listed.iter().all(|there| *there == (1, Flavor::Args)), "{listed:?}");
    });
}

for_plain_sites! {
    a_change_on_another_cpu_misses_and_doubles_no_call
    a_callback_on_another_cpu_is_waited_for
    a_graph_callback_on_another_cpu_is_waited_for
    a_module_removed_during_a_lookup_is_not_used_after
    a_module_that_comes_and_goes_is_seen_whole_or_not_at_all
    users_that_come_and_go_on_two_cpus_leave_no_trace
    a_listing_sees_a_set_before_or_after_a_change
}
