//! What the callbacks of the self-tests note, and users that are registered for as long as a value lives.
//!
//! Callbacks run anywhere: whatever function a user of everything wants, on any CPU, in interrupts. Counted is what the task
//! under test called among the [`Target`]s, which nobody else does; so the numbers are exact whatever else runs.

use super::targets::Target;
use super::{Failure, NotRun, Stop, done, same};
use crate::addr::{FuncAddr, RetAddr};
use crate::arch::{FtraceRegs, live};
use crate::engine::{Error, SetChange, WhichSet};
use crate::graph::{EntryCall, GraphOps, ReturnCall, Want};
use crate::ops::Ops;
use crate::regs::Regs;
use crate::sync::{AtomicPtr, AtomicUsize, Ordering};
use crate::task::TaskTrace;

/// The task under test. Null when no case runs.
static TASK: AtomicPtr<TaskTrace> = AtomicPtr::new(core::ptr::null_mut());

/// More than any case has users.
const PROBES: usize = 6;

static ALL: [Probe; PROBES] = [const { Probe::new() }; PROBES];

/// Nested calls of targets that a probe follows.
const OPEN: usize = 8;

/// What one user has been told. Written by its callbacks, in the task under test alone but for `elsewhere`.
#[derive(Debug)]
pub(super) struct Probe {
    entries: [AtomicUsize; Target::ALL.len()],
    returns: [AtomicUsize; Target::ALL.len()],
    /// Entries of any other function, or in another task.
    elsewhere: AtomicUsize,
    /// Returns that are not the newest open call's, or not where it was called from, or not as deep.
    unpaired: AtomicUsize,
    /// Data that was not there at an entry, not zero, or not at its return what the entry wrote.
    wrong_data: AtomicUsize,
    /// The newest return value.
    retval: AtomicUsize,
    /// Function, caller and depth of each call of a target that has not returned.
    open: [[AtomicUsize; 3]; OPEN],
    level: AtomicUsize,
}

impl Probe {
    const fn new() -> Self {
        Self {
            entries: [const { AtomicUsize::new(0) }; Target::ALL.len()],
            returns: [const { AtomicUsize::new(0) }; Target::ALL.len()],
            elsewhere: AtomicUsize::new(0),
            unpaired: AtomicUsize::new(0),
            wrong_data: AtomicUsize::new(0),
            retval: AtomicUsize::new(0),
            open: [const { [const { AtomicUsize::new(0) }; 3] }; OPEN],
            level: AtomicUsize::new(0),
        }
    }

    fn clear(&self) {
        for word in self.entries.iter().chain(&self.returns).chain(self.open.iter().flatten()) {
            word.store(0, Ordering::Relaxed);
        }
        for word in [&self.elsewhere, &self.unpaired, &self.wrong_data, &self.retval, &self.level] {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Entries of `target` by the task under test.
    #[inline]
    pub(super) fn entries(&self, target: Target) -> usize {
        self.entries[target as usize].load(Ordering::Relaxed)
    }

    /// Returns from `target`.
    #[inline]
    pub(super) fn returns(&self, target: Target) -> usize {
        self.returns[target as usize].load(Ordering::Relaxed)
    }

    /// Entries of anything else, on all CPUs.
    pub(super) fn elsewhere(&self) -> usize {
        self.elsewhere.load(Ordering::Relaxed)
    }

    /// The newest return value that was seen.
    pub(super) fn retval(&self) -> usize {
        self.retval.load(Ordering::Relaxed)
    }

    /// Counts an entry; how many there are now. `None` for what is not counted as one of a target.
    #[inline]
    pub(super) fn note_entry(&self, ip: FuncAddr, fregs: &FtraceRegs) -> Option<usize> {
        let under_test = TASK.load(Ordering::Relaxed).cast_const();
        let ours = fregs.task().is_some_and(|task| core::ptr::eq(task, under_test));
        let Some(target) = Target::at(ip).filter(|_| ours) else {
            self.elsewhere.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        Some(self.entries[target as usize].fetch_add(1, Ordering::Relaxed) + 1)
    }

    #[inline]
    fn begin(&self, place: [usize; 3]) {
        let level = self.level.fetch_add(1, Ordering::Relaxed);
        if let Some(open) = self.open.get(level) {
            for (word, value) in open.iter().zip(place) {
                word.store(value, Ordering::Relaxed);
            }
        }
        // Nothing but targets is hooked between nested targets.
        let outermost = self.open[0][2].load(Ordering::Relaxed);
        if place[2] != outermost + level {
            self.unpaired.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[inline]
    fn end(&self, place: [usize; 3]) {
        let level = self.level.load(Ordering::Relaxed).wrapping_sub(1);
        let newest =
            self.open.get(level).map(|open| open.each_ref().map(|word| word.load(Ordering::Relaxed)));
        if newest == Some(place) {
            self.level.store(level, Ordering::Relaxed);
        } else {
            self.unpaired.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// That every call had one return, in order, with its own data.
    pub(super) fn check_paired(&self, when: &'static str) -> Result<(), Stop> {
        same("calls left open", when, self.level.load(Ordering::Relaxed), 0)?;
        same(
            "entries and returns that do not belong together",
            when,
            self.unpaired.load(Ordering::Relaxed),
            0,
        )?;
        same("reservations with wrong data", when, self.wrong_data.load(Ordering::Relaxed), 0)
    }
}

/// The probe of a user, by the user's own word.
#[inline]
pub(super) fn of(word: usize) -> &'static Probe {
    &ALL[word % PROBES]
}

/// Starts a case: all probes have seen nothing, and count what `task` does.
pub(super) fn reset(task: Option<&TaskTrace>) {
    ALL.iter().for_each(Probe::clear);
    TASK.store(
        task.map_or(core::ptr::null_mut(), |task| core::ptr::from_ref(task).cast_mut()),
        Ordering::Relaxed,
    );
}

/// A callback of users of entries: counts.
pub(super) fn count(ip: FuncAddr, _parent_ip: RetAddr, ops: &Ops<FtraceRegs>, fregs: &mut FtraceRegs) {
    of(ops.private()).note_entry(ip, fregs);
}

/// How many words each graph user with [`entry`] reserves, by its word.
pub(super) const DATA_WORDS: [usize; 4] = [1, 2, 4, 8];

/// What a user writes into a word at a call's entry. Never 0.
#[inline]
fn datum(user: usize, word: usize, place: [usize; 3]) -> usize {
    let [func, caller, depth] = place;
    (func ^ caller.rotate_left(21)).wrapping_add(depth << 40 | user << 32 | word << 48) | 1
}

/// The entry callback of graph users: counts, and fills as many words as the user should have.
pub(super) fn entry(call: &mut EntryCall<'_, FtraceRegs>, ops: &GraphOps<FtraceRegs>) -> Want {
    let (user, probe) = (ops.private(), of(ops.private()));
    if probe.note_entry(call.func(), call.fregs()).is_none() {
        // Hooked all the same: what is traced is to be traced to the end.
        return Want::Return;
    }
    let place = [call.func().get(), call.ret_addr().get(), call.depth() as usize];
    probe.begin(place);
    let words = DATA_WORDS[user % DATA_WORDS.len()];
    match call.reserve(words) {
        Some(data) if data.len() >= words && data.iter().all(|word| word.load(Ordering::Relaxed) == 0) => {
            for (n, word) in data.iter().enumerate() {
                word.store(datum(user, n, place), Ordering::Relaxed);
            }
        }
        _ => {
            probe.wrong_data.fetch_add(1, Ordering::Relaxed);
        }
    }
    Want::Return
}

/// The other end of [`entry`].
pub(super) fn ret(call: &mut ReturnCall<'_, FtraceRegs>, ops: &GraphOps<FtraceRegs>) {
    let (user, probe) = (ops.private(), of(ops.private()));
    let under_test = TASK.load(Ordering::Relaxed).cast_const();
    let ours = call.fregs().task().is_some_and(|task| core::ptr::eq(task, under_test));
    let Some(target) = Target::at(call.func()).filter(|_| ours) else { return };
    let place = [call.func().get(), call.ret_addr().get(), call.depth() as usize];
    probe.end(place);
    probe.returns[target as usize].fetch_add(1, Ordering::Relaxed);
    probe.retval.store(call.retval(), Ordering::Relaxed);
    let words = DATA_WORDS[user % DATA_WORDS.len()];
    let right = call.data().is_some_and(|data| {
        data.len() >= words
            && data.iter().enumerate().all(|(n, word)| word.load(Ordering::Relaxed) == datum(user, n, place))
    });
    if !right {
        probe.wrong_data.fetch_add(1, Ordering::Relaxed);
    }
}

#[derive(Clone, Copy, Debug)]
enum User {
    Entry(&'static Ops<FtraceRegs>),
    Graph(&'static GraphOps<FtraceRegs>),
}

/// A registered user; it goes when this is dropped.
#[derive(Debug)]
#[must_use]
pub(super) struct Registered {
    user: User,
    is_out: bool,
}

impl Registered {
    /// Registers a user of entries that wants `functions`.
    pub(super) fn op(ops: &'static Ops<FtraceRegs>, functions: SetChange<'_>) -> Result<Self, Stop> {
        Self::new(User::Entry(ops), functions)
            .map_err(|error| refused("registering a user of entries", error))
    }

    /// The same for a user that the tracer may refuse: its answer.
    pub(super) fn try_op(ops: &'static Ops<FtraceRegs>, functions: SetChange<'_>) -> Result<Self, Error> {
        Self::new(User::Entry(ops), functions)
    }

    /// Registers a graph user that wants `functions`.
    pub(super) fn graph(ops: &'static GraphOps<FtraceRegs>, functions: SetChange<'_>) -> Result<Self, Stop> {
        Self::new(User::Graph(ops), functions).map_err(|error| refused("registering a graph user", error))
    }

    fn new(user: User, functions: SetChange<'_>) -> Result<Self, Error> {
        // From the first change on it has a slot, which goes back when this is dropped.
        let registered = Self { user, is_out: false };
        match user {
            User::Entry(ops) => {
                live::ftrace_set_filter(ops, WhichSet::Filter, functions)?;
                live::register_ftrace_function(ops)?;
            }
            User::Graph(ops) => {
                live::fgraph_set_filter(ops, WhichSet::Filter, functions)?;
                live::register_ftrace_graph(ops)?;
            }
        }
        Ok(registered)
    }

    /// Takes the user out now.
    pub(super) fn out(mut self) -> Result<(), Stop> {
        done("taking a user out", self.take_out())
    }

    fn take_out(&mut self) -> Result<(), Error> {
        self.is_out = true;
        match self.user {
            User::Entry(ops) => live::unregister_ftrace_function(ops),
            User::Graph(ops) => live::unregister_ftrace_graph(ops),
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if !self.is_out {
            // Either a case has failed, which says why, or a registration was refused and there may be nothing to take out.
            let _ = self.take_out();
        }
    }
}

/// Why a case ends when a registration was refused: without a free slot there is nothing to be seen.
fn refused(what: &'static str, error: Error) -> Stop {
    match error {
        Error::TooManyUsers { max } => Stop::NotRun(NotRun::NoSlot { max }),
        error => Stop::Failed(Failure::Refused { what, error }),
    }
}
