//! What the tracer keeps for one task: the block that the trampolines reach first.

use crate::platform::Context;
use crate::recursion::{Group, Guarded, Recursion};
use crate::shadow::{Shadow, StackError, Walk};
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::wire::{SHORT_DEPTHS, Who};

use sleep::Sleep;
use words::Words;

/// How many trampolines may be under way on one task at once: four contexts, twice each. A traced call that comes above
/// it runs untraced. This is what ends the recursion when something that the tracer itself calls is traced by mistake.
pub(crate) const MAX_NEST: u32 = 8;

/// The trace block of one task (or of one CPU's idle task).
///
/// The embedder keeps one beside each task that is to be traced, for as long as the task runs, and lets
/// [`Platform::CURRENT`](crate::Platform::CURRENT) lead to the current task's. A block is usable from the start; functions called in a task without a
/// shadow stack reach `ftrace_ops`, but no graph users.
///
/// All fields are written by the task itself and interrupts on top of it only, except for the pause count.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct TaskTrace {
    /// Trampolines under way; counted in assembly, before any Rust runs.
    pub(crate) nest: AtomicU32,
    recursion: Recursion,
    pub(crate) shadow: Shadow,
    /// Hooked calls that have not returned.
    pub(crate) depth: AtomicU32,
    pub(crate) pause: AtomicU32,
    /// Words of the shadow stack that the trampolines may push frames to by themselves: none while the task is paused.
    pub(crate) room: AtomicUsize,
    pub(crate) max_depth: AtomicU32,
    /// The depths that the trampolines record by themselves are below: those that there were, and that a record in short has.
    pub(crate) usual_depth: AtomicU32,
    /// Who this is in records, of the task without interrupts on top, if the trampolines may record its calls by themselves; else
    /// [`UNKNOWN`](Self::UNKNOWN).
    pub(crate) who: AtomicU64,
    /// Entries that found [`MAX_NEST`] trampolines under way, counted in assembly; and returns of the straight path, which were not
    /// recorded then.
    pub(crate) nest_refused: AtomicU64,
    /// Calls that had no room on the shadow stack. One word, since each record asks for it, and few calls add to it.
    pub(crate) overrun: AtomicU64,
    /// Frames that nothing returned through.
    pub(crate) abandoned: Counter,
    /// Entries that the recursion guards kept out.
    pub(crate) recursed: Counter,
    /// Returns of hooked calls, but those of the straight path.
    pub(crate) returns: Counter,
    /// Those. Counted in assembly by one instruction, which interrupts do not come between; or by several, of the task itself, without
    /// interrupts on top.
    pub(crate) straight_returns: AtomicU64,
    /// Those that are counted by several instructions in an unknown context: so that what comes between is noticed.
    pub(crate) straight_returns_apart: AtomicU64,
    /// A word for each graph user.
    pub(crate) words: Words,
    sleep: Sleep,
}

/// A count kept apart by context, so that what interrupts an increment increments another word: exact without an
/// atomic read-modify-write on the traced path.
#[derive(Debug)]
pub(crate) struct Counter([AtomicU64; 4]);

impl Counter {
    const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; 4])
    }

    #[inline]
    pub(crate) fn add(&self, context: Context, n: u64) {
        let word = &self.0[context as usize];
        word.store(word.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    }

    #[inline]
    fn sum(&self) -> u64 {
        self.0.iter().map(|word| word.load(Ordering::Relaxed)).sum()
    }
}

/// Counters of one task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskStats {
    /// Calls whose return was hooked.
    pub calls: u64,
    /// Hooked calls that returned.
    pub returns: u64,
    /// The deepest nesting of hooked calls; those that only the tracer hooked count when they return.
    pub max_depth: u32,
    /// Hooked calls that have not returned yet.
    pub depth: u32,
    /// Calls that ran unhooked because the shadow stack was full.
    pub overrun: u64,
    /// Hooked calls left by a non-local jump, noticed at a later return.
    pub abandoned: u64,
    /// Calls that ran untraced because the tracer was in a callback already; and calls that the trampolines had hooked for the tracer
    /// alone and that were not recorded, because eight trampolines were under way.
    pub recursed: u64,
}

impl TaskTrace {
    /// The word of nobody.
    const UNKNOWN: u64 = u64::MAX;

    /// A block without a shadow stack.
    pub const fn new() -> Self {
        Self {
            nest: AtomicU32::new(0),
            recursion: Recursion::new(),
            shadow: Shadow::new(),
            depth: AtomicU32::new(0),
            pause: AtomicU32::new(0),
            room: AtomicUsize::new(0),
            max_depth: AtomicU32::new(0),
            usual_depth: AtomicU32::new(0),
            who: AtomicU64::new(Self::UNKNOWN),
            overrun: AtomicU64::new(0),
            abandoned: Counter::new(),
            nest_refused: AtomicU64::new(0),
            recursed: Counter::new(),
            returns: Counter::new(),
            straight_returns: AtomicU64::new(0),
            straight_returns_apart: AtomicU64::new(0),
            words: Words::new(),
            sleep: Sleep::new(),
        }
    }

    /// Gives the task a shadow stack; a frame takes four words. From now on its calls reach graph users. Any task context.
    ///
    /// # Errors
    /// [`StackError::AlreadyThere`] and [`StackError::BadSize`]; nothing is changed then.
    pub fn give_stack(&self, words: &'static mut [usize]) -> Result<(), StackError> {
        // It may be another task that has this block now.
        self.forget_who();
        self.shadow.give(words)?;
        self.settle_room();
        Ok(())
    }

    /// Takes the shadow stack back.
    ///
    /// # Errors
    /// [`StackError::InUse`] while hooked functions have not returned, [`StackError::NotThere`].
    ///
    /// # Safety
    /// The task must not run traced code meanwhile: it is stopped or dead.
    pub unsafe fn take_stack(&self) -> Result<&'static mut [usize], StackError> {
        let words = self.shadow.take();
        self.settle_room();
        words
    }

    /// Forgets what the task left on its shadow stack: it is dead, and none of its functions will return. Returns how many
    /// frames were dropped; the memory can be taken back then. The counters stay.
    ///
    /// # Safety
    /// The task must never run again.
    pub unsafe fn forget_frames(&self) -> usize {
        let mut dropped = 0;
        while let Some(found) = self.shadow.newest().and_then(|newest| self.shadow.find(newest.key)) {
            self.shadow.settle(found);
            self.shadow.pop(found.frame);
            dropped += found.abandoned + 1;
        }
        self.abandoned.add(Context::Task, dropped as u64);
        self.depth.store(0, Ordering::Relaxed);
        self.forget_who();
        dropped
    }

    /// Remembers who this is, if the trampolines need not ask any more: nothing is recorded beside times and what was returned. The task
    /// itself, without interrupts on top.
    #[cfg_attr(not(feature = "trampolines"), expect(dead_code, reason = "the trampolines are the reason"))]
    pub(crate) fn remember_who(&self, who: Who) {
        if self.overrun() == 0 {
            self.who.store(who.word(), Ordering::Relaxed);
        }
    }

    /// Remembers the deepest nesting.
    pub(crate) fn now_so_deep(&self, depth: u32) {
        let deepest = self.max_depth.fetch_max(depth, Ordering::Relaxed).max(depth);
        // An interrupt may have been deeper meanwhile: then its depth is found out once more.
        self.usual_depth.store(deepest.min(SHORT_DEPTHS), Ordering::Relaxed);
    }

    /// Lets the next call ask who this is.
    pub(crate) fn forget_who(&self) {
        self.who.store(Self::UNKNOWN, Ordering::Relaxed);
    }

    /// Whether the task has a shadow stack.
    pub fn has_stack(&self) -> bool {
        self.shadow.has_memory()
    }

    /// Keeps graph users from new calls of this task until [`resume`](Self::resume); calls that are hooked still return through
    /// their hooks. Counts; any context.
    pub fn pause(&self) {
        self.pause.fetch_add(1, Ordering::SeqCst);
        self.settle_room();
    }

    /// Undoes one [`pause`](Self::pause). One too many does nothing.
    pub fn resume(&self) {
        let _ = self.pause.fetch_update(Ordering::SeqCst, Ordering::Relaxed, |n| n.checked_sub(1));
        self.settle_room();
    }

    /// Makes `room` what the pauses and the stack say. Others may do so at the same time: who stores what has become wrong sees that behind
    /// the store, since all accesses are in one order, and stores again.
    fn settle_room(&self) {
        loop {
            let (pauses, len) = (self.pause.load(Ordering::SeqCst), self.shadow.len.load(Ordering::SeqCst));
            self.room.store(if pauses == 0 { len } else { 0 }, Ordering::SeqCst);
            if pauses == self.pause.load(Ordering::SeqCst) && len == self.shadow.len.load(Ordering::SeqCst) {
                return;
            }
        }
    }

    #[inline]
    pub(crate) fn is_paused(&self) -> bool {
        self.pause.load(Ordering::Relaxed) != 0
    }

    /// Tells that the task gives its CPU up at `now`: for the scheduler to call at a task switch, so that users can leave out the
    /// time in which a call slept. `now` is the time of [`Platform::clock_ns`](crate::Platform::clock_ns).
    pub fn switched_out(&self, now: u64) {
        self.sleep.begin(now);
    }

    /// Tells that the task has a CPU again at `now`. Without a [`switched_out`](Self::switched_out) before it does nothing.
    pub fn switched_in(&self, now: u64) {
        self.sleep.end(now);
    }

    /// How long the task has been without a CPU so far, in nanoseconds, as the scheduler told.
    #[inline]
    pub fn slept_ns(&self) -> u64 {
        self.sleep.total_ns()
    }

    /// The task's hooked calls that have not returned, newest first: from the task itself, from an interrupt on top of it,
    /// or while it is stopped.
    pub fn frames(&self) -> Walk<'_> {
        self.shadow.walk()
    }

    /// Calls that ran unhooked because the shadow stack was full.
    #[inline]
    pub(crate) fn overrun(&self) -> u64 {
        self.overrun.load(Ordering::Relaxed)
    }

    /// The counters, each exact when the task is stopped.
    pub fn stats(&self) -> TaskStats {
        let returns = self.returns.sum()
            + self.straight_returns.load(Ordering::Relaxed)
            + self.straight_returns_apart.load(Ordering::Relaxed);
        let abandoned = self.abandoned.sum();
        let depth = self.depth.load(Ordering::Relaxed);
        TaskStats {
            calls: returns + u64::from(depth) + abandoned,
            returns,
            max_depth: self.max_depth.load(Ordering::Relaxed),
            depth,
            overrun: self.overrun(),
            abandoned,
            recursed: self.recursed.sum() + self.nest_refused.load(Ordering::Relaxed),
        }
    }

    /// Takes a recursion guard; a refusal is counted.
    #[inline]
    pub(crate) fn enter(&self, group: Group, context: Context) -> Option<Guarded<'_>> {
        let token = self.recursion.enter(group, context);
        if token.is_none() {
            self.recursed.add(context, 1);
        }
        token
    }
}

impl Default for TaskTrace {
    fn default() -> Self {
        Self::new()
    }
}

mod sleep;
mod words;
