//! What is set about a graph user: which of the calls that reach it count, and which time of theirs.
//!
//! A [`Limits`] is asked by the user's own callbacks: [`admit`](Limits::admit) and [`begin`](Limits::begin) at an entry,
//! [`finish`](Limits::finish) at the return, [`forget`](Limits::forget) for a call that will never return. Every return
//! callback ends in `finish`, whatever it does with the result: there alone a task's state is put back and times are adjusted.
//!
//! # State
//! Which listed function a task is in stands in the user's word of that task: for each of three marks the depth of the call
//! that set it, one more, or 0. The call at that depth takes it away again. Interrupts on top of a change may set marks, and
//! have taken them away when they are done. A mark whose call ended untold (the tracer was in a callback already, or had
//! stopped) is found out at the next entry that is not deeper.

use bitflags::bitflags;

use crate::filter::FuncSet;
use crate::graph::{AbandonedCall, EntryCall, ReturnCall, Want};
use crate::platform::Context;
use crate::regs::Regs;
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use state::{Mark, State};

/// Words that [`Limits::begin`] reserves for itself, beside the user's.
pub const LIMIT_WORDS: usize = 3;

/// In the third word: the time of calls inside is to be left out.
const SELF_TIME: usize = 1 << 63;

/// Among the options: graph-time was off once, so calls may be under way that leave out the time of those inside.
const WAS_SELF_TIME: u32 = 1 << 31;

bitflags! {
    /// Switches of a user; the names are the field's own. All of them are on at first.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct LimitOptions: u32 {
        /// Calls in interrupts count (`funcgraph-irqs`). Off, only those within a function of `set_graph_function` that was called
        /// in the interrupt do.
        const IRQS = 1 << 0;
        /// The time that a task slept within a call counts (`sleep-time`).
        const SLEEP_TIME = 1 << 1;
        /// The time of the calls inside counts (`graph-time`). Off, a call's own time remains. What counts as a call inside is what this
        /// user was told of. A change is for calls that begin after it.
        const GRAPH_TIME = 1 << 2;
    }
}

/// A set of tasks, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PidSet {
    /// Every task.
    All,
    /// No task.
    None,
    /// These, in ascending order.
    Some(&'static [u32]),
}

impl PidSet {
    fn contains(&self, pid: u32) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::Some(pids) => pids.binary_search(&pid).is_ok(),
        }
    }
}

/// What is set about one graph user. Kept in a `static`; each setter may be called in any context while calls are
/// traced. Sets are borrowed for ever.
#[derive(Debug)]
pub struct Limits {
    options: AtomicU32,
    max_depth: AtomicU32,
    thresh_ns: AtomicU64,
    /// Null for everything.
    inside: AtomicPtr<FuncSet>,
    /// Null for nothing.
    never: AtomicPtr<FuncSet>,
    /// Null for all.
    pids: AtomicPtr<PidSet>,
    /// Null for none.
    no_pids: AtomicPtr<PidSet>,
    /// Changes of the last two: what a task was told before the last one is to be asked again.
    pid_changes: AtomicU32,
}

/// Proof that a call counts, for [`Limits::begin`].
#[must_use = "the call only counts once it has begun"]
#[derive(Debug)]
pub struct Admitted(());

/// A call that counts and has returned.
#[derive(Clone, Copy, Debug)]
pub struct Finished<'a> {
    /// When it began.
    pub began_ns: u64,
    /// How long it took, without the times that are to be left out.
    pub duration_ns: u64,
    /// How long its task slept in it, left out or not.
    pub slept_ns: u64,
    /// The user's own words.
    pub data: &'a [AtomicUsize],
}

impl Limits {
    /// Nothing is limited.
    pub const fn new() -> Self {
        Self {
            options: AtomicU32::new(LimitOptions::all().bits()),
            max_depth: AtomicU32::new(0),
            thresh_ns: AtomicU64::new(0),
            inside: AtomicPtr::new(core::ptr::null_mut()),
            never: AtomicPtr::new(core::ptr::null_mut()),
            pids: AtomicPtr::new(core::ptr::null_mut()),
            no_pids: AtomicPtr::new(core::ptr::null_mut()),
            pid_changes: AtomicU32::new(0),
        }
    }

    /// The switches.
    #[inline]
    pub fn options(&self) -> LimitOptions {
        LimitOptions::from_bits_truncate(self.options.load(Ordering::Relaxed))
    }

    /// Sets the switches.
    pub fn set_options(&self, options: LimitOptions) {
        let self_time = if options.contains(LimitOptions::GRAPH_TIME) { 0 } else { WAS_SELF_TIME };
        let _ = self.options.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |was| {
            Some(options.bits() & LimitOptions::all().bits() | was & WAS_SELF_TIME | self_time)
        });
    }

    /// How many calls deep to look (`max_graph_depth`); 0 for no limit. Counted are all hooked calls of the task, as in
    /// [`EntryCall::depth`].
    #[inline]
    pub fn max_depth(&self) -> u32 {
        self.max_depth.load(Ordering::Relaxed)
    }

    /// Sets [`max_depth`](Self::max_depth).
    pub fn set_max_depth(&self, calls: u32) {
        self.max_depth.store(calls, Ordering::Relaxed);
    }

    /// Shorter calls are left out (`tracing_thresh`), in nanoseconds; 0 for none.
    #[inline]
    pub fn thresh_ns(&self) -> u64 {
        self.thresh_ns.load(Ordering::Relaxed)
    }

    /// Sets [`thresh_ns`](Self::thresh_ns).
    pub fn set_thresh_ns(&self, ns: u64) {
        self.thresh_ns.store(ns, Ordering::Relaxed);
    }

    /// Only calls of these functions, and inside them, count (`set_graph_function`). At first everything.
    #[inline]
    pub fn graph_function(&self) -> &'static FuncSet {
        loaded(&self.inside, &FuncSet::All)
    }

    /// Sets [`graph_function`](Self::graph_function). A task that is in a function of the old set stays in it until that returns.
    pub fn set_graph_function(&self, funcs: &'static FuncSet) {
        stored(&self.inside, funcs);
    }

    /// Calls of these functions, and inside them, do not count (`set_graph_notrace`). At first none.
    #[inline]
    pub fn graph_notrace(&self) -> &'static FuncSet {
        loaded(&self.never, &FuncSet::None)
    }

    /// Sets [`graph_notrace`](Self::graph_notrace).
    pub fn set_graph_notrace(&self, funcs: &'static FuncSet) {
        stored(&self.never, funcs);
    }

    /// Sets the tasks whose calls count (`set_ftrace_pid`). At first all.
    pub fn set_pids(&self, pids: &'static PidSet) {
        stored(&self.pids, pids);
        self.pid_changes.fetch_add(1, Ordering::Release);
    }

    /// Sets the tasks whose calls do not count even so (`set_ftrace_notrace_pid`). At first none.
    pub fn set_notrace_pids(&self, pids: &'static PidSet) {
        stored(&self.no_pids, pids);
        self.pid_changes.fetch_add(1, Ordering::Release);
    }

    /// Whether anything is limited at all, or any time left out. [`LimitOptions::GRAPH_TIME`] is not asked for: where it is off, who
    /// counts with it has to ask anyway.
    pub fn are_any(&self) -> bool {
        self.thresh_ns() != 0 || self.are_any_but_thresh()
    }

    /// The same, apart from [`thresh_ns`](Self::thresh_ns), which asks nothing at a call's entry.
    pub fn are_any_but_thresh(&self) -> bool {
        !self.options().contains(LimitOptions::IRQS | LimitOptions::SLEEP_TIME)
            || self.max_depth() != 0
            || *self.graph_function() != FuncSet::All
            || *self.graph_notrace() != FuncSet::None
            || *loaded(&self.pids, &PidSet::All) != PidSet::All
            || *loaded(&self.no_pids, &PidSet::None) != PidSet::None
    }

    /// Whether calls of this task count, as far as the sets of tasks go: for who knows nothing of calls. Traced path.
    #[inline]
    pub fn counts_task(&self, pid: u32) -> bool {
        // As for `judge`.
        self.pid_changes.load(Ordering::Acquire) == 0
            || loaded(&self.pids, &PidSet::All).contains(pid)
                && !loaded(&self.no_pids, &PidSet::None).contains(pid)
    }

    /// Whether a call counts, for the entry callback to ask first. `pid` is the task's number, of which the task remembers what
    /// became of it. `Err` is what the callback has to say; then it has nothing else to do.
    ///
    /// # Errors
    /// The call does not count. [`Want::Return`] even so when its return has to be noticed.
    pub fn admit<R: Regs>(&self, call: &EntryCall<'_, R>, pid: u32) -> Result<Admitted, Want> {
        let (word, depth) = (call.task_word(), call.depth());
        let before = State::of(word.load(Ordering::Relaxed));
        let mut state = before.without_stale(depth);
        let verdict =
            if self.judge(&mut state, pid) { self.place(call, &mut state) } else { Err(Want::Nothing) };
        if state != before {
            word.store(state.word(), Ordering::Relaxed);
        }
        verdict
    }

    /// Whether the task's calls count at all.
    fn judge(&self, state: &mut State, pid: u32) -> bool {
        // Before the sets: who sees a change counted sees the set.
        let changes = self.pid_changes.load(Ordering::Acquire);
        if changes == 0 {
            return true;
        }
        state.verdict(changes).unwrap_or_else(|| {
            let counts = loaded(&self.pids, &PidSet::All).contains(pid)
                && !loaded(&self.no_pids, &PidSet::None).contains(pid);
            state.set_verdict(changes, counts);
            counts
        })
    }

    /// Whether the call counts where it stands.
    fn place<R: Regs>(&self, call: &EntryCall<'_, R>, state: &mut State) -> Result<Admitted, Want> {
        let (func, depth) = (call.func(), call.depth());
        if state.is_in(Mark::Never) {
            return Err(Want::Nothing);
        }
        if self.graph_notrace().contains(func) {
            state.set(Mark::Never, depth);
            return Err(Want::Return);
        }
        let max_depth = self.max_depth();
        if max_depth != 0 && depth >= max_depth {
            return Err(Want::Nothing);
        }
        let functions = self.graph_function();
        let listed = *functions != FuncSet::All && functions.contains(func);
        let in_irq = call.context() >= Context::Irq;
        if in_irq && !listed && !state.is_in(Mark::InsideIrq) && !self.options().contains(LimitOptions::IRQS)
        {
            return Err(Want::Nothing);
        }
        let inside = state.is_in(Mark::Inside) || in_irq && state.is_in(Mark::InsideIrq);
        if *functions != FuncSet::All && !listed && !inside {
            return Err(Want::Nothing);
        }
        let mark = if in_irq { Mark::InsideIrq } else { Mark::Inside };
        if listed && !state.is_in(mark) {
            state.set(mark, depth);
        }
        Ok(Admitted(()))
    }

    /// Begins an admitted call at `now`, in nanoseconds, with so many words of the user's own, at most
    /// [`MAX_DATA_WORDS`](crate::MAX_DATA_WORDS) - [`LIMIT_WORDS`]: the call's one reservation. The callback then says
    /// [`Want::Return`].
    ///
    /// # Errors
    /// There is no room, and the call does not count: [`Want::Nothing`], for the callback to say.
    pub fn begin<'a, R: Regs>(
        &self,
        call: &mut EntryCall<'a, R>,
        _admitted: Admitted,
        now: u64,
        words: usize,
    ) -> Result<&'a [AtomicUsize], Want> {
        let data = call.reserve(words.saturating_add(LIMIT_WORDS));
        let Some([began, slept, inside, own @ ..]) = data else {
            leave(call.task_word(), call.depth());
            return Err(Want::Nothing);
        };
        began.store(now as usize, Ordering::Relaxed);
        slept.store(call.task().slept_ns() as usize, Ordering::Relaxed);
        if !self.options().contains(LimitOptions::GRAPH_TIME) {
            inside.store(SELF_TIME, Ordering::Relaxed);
        }
        Ok(own)
    }

    /// Ends a call at `now`: to be called by the return callback, always, and once. `None` for a call that does not count, or
    /// was too short.
    pub fn finish<'a, R: Regs>(&self, call: &ReturnCall<'a, R>, now: u64) -> Option<Finished<'a>> {
        leave(call.task_word(), call.depth());
        let [began, slept, inside, data @ ..] = call.data()? else { return None };
        let began_ns = began.load(Ordering::Relaxed) as u64;
        let slept_ns = call.task().slept_ns().saturating_sub(slept.load(Ordering::Relaxed) as u64);
        let mut duration_ns = now.saturating_sub(began_ns);
        if !self.options().contains(LimitOptions::SLEEP_TIME) {
            duration_ns = duration_ns.saturating_sub(slept_ns);
        }
        let inside = inside.load(Ordering::Relaxed);
        if self.options.load(Ordering::Relaxed) & WAS_SELF_TIME != 0 {
            add_to_caller(call, duration_ns);
        }
        if duration_ns < self.thresh_ns() {
            return None;
        }
        if inside & SELF_TIME != 0 {
            duration_ns = duration_ns.saturating_sub((inside & !SELF_TIME) as u64);
        }
        Some(Finished { began_ns, duration_ns, slept_ns, data })
    }

    /// Ends a call that will never return: for the callback of [`GraphOps::with_abandoned`](crate::GraphOps::with_abandoned).
    pub fn forget<R: Regs>(&self, call: &AbandonedCall<'_, R>) {
        leave(call.task_word(), call.depth());
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::new()
    }
}

/// Takes away the marks of the call at `depth`.
fn leave(word: &AtomicUsize, depth: u32) {
    let before = State::of(word.load(Ordering::Relaxed));
    let after = before.without(depth);
    if after != before {
        word.store(after.word(), Ordering::Relaxed);
    }
}

/// Nobody else writes this word meanwhile: for a call in an interrupt, the caller is the frame that is on top now.
fn add_to_caller<R: Regs>(call: &ReturnCall<'_, R>, ns: u64) {
    if let Some([_, _, inside, ..]) = call.parent_data(1) {
        let had = inside.load(Ordering::Relaxed);
        if had & SELF_TIME != 0 {
            let sum = (had & !SELF_TIME).saturating_add(ns as usize).min(!SELF_TIME);
            inside.store(SELF_TIME | sum, Ordering::Relaxed);
        }
    }
}

fn loaded<T>(set: &AtomicPtr<T>, null: &'static T) -> &'static T {
    // SAFETY: null, or from a `&'static T` in `stored`.
    unsafe { set.load(Ordering::Acquire).as_ref() }.unwrap_or(null)
}

fn stored<T>(set: &AtomicPtr<T>, to: &'static T) {
    set.store(core::ptr::from_ref(to).cast_mut(), Ordering::Release);
}

mod state;

#[cfg(test)]
mod cases;
#[cfg(test)]
mod model;
