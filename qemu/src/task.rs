//! A task: what the scheduler, the context switch and the tracer know about a thread of execution.
//!
//! Invariant: a `Task` is never freed or reused, so a `&'static Task` names the same task for ever; only its
//! stack goes to another task after it has exited. Made by [`crate::sched::spawn`]; the idle tasks are
//! static.

use alloc::{alloc::alloc_zeroed, boxed::Box};
use core::{
    alloc::Layout,
    ops::Range,
    ptr,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering},
};

use fgraph::TaskTrace;

use crate::machine;

/// Bytes of a task's stack. Interrupts run on it as well, and the shell's names of functions are made of mangled ones there.
pub const STACK_SIZE: usize = 64 << 10;

/// The CPUs of a task that may run anywhere.
pub(crate) const ANY_CPU: u32 = !0;

/// How much of a name is shown, as in the `comm` of other kernels.
const NAME_SHOWN: usize = 16;

/// What the lowest words of every stack hold until an overflow overwrites them.
const CANARY: [u64; 2] = [0x6b63_6174_735f_6f6e, 0x2165_6c70_6565_6421];

/// One task. `repr(C)`: the context switch and the tracer's trampolines reach `saved_sp` and `trace` by
/// offset.
#[repr(C, align(16))]
pub struct Task {
    /// Stack pointer while the task does not run; owned by `machine::switch`.
    pub saved_sp: AtomicUsize,
    /// `trace_block` once that is ready for use, or null: then the task's calls are not traced.
    pub trace: AtomicPtr<TaskTrace>,
    /// What the machine counts of the task's context; its part of this structure.
    pub counts: machine::TaskCounts,
    /// What the CPU signs return addresses with while the task runs; owned by `machine::switch`.
    pub keys: machine::Keys,
    /// Number of the task, from 1; idle tasks are 0.
    pub pid: u32,
    name: &'static str,
    entry: Entry,
    stack: Option<Stack>,
    /// A [`State`]; written under the scheduler's lock.
    state: AtomicU32,
    /// The CPUs it may run on, by bit; guarded by the scheduler's lock.
    pub(crate) cpus: AtomicU32,
    /// Somebody has unparked the task and it has not parked since; guarded by the scheduler's lock.
    pub(crate) unparked: AtomicBool,
    /// When a sleeping task is due, in nanoseconds since boot; guarded by the scheduler's lock.
    pub(crate) wakeup_ns: AtomicU64,
    /// The next task in whatever one list this task is in; guarded by the scheduler's lock.
    pub(crate) next: AtomicPtr<Task>,
    /// The tasks that wait for this one to exit, linked by their `next`; guarded by the scheduler's lock.
    pub(crate) joiners: AtomicPtr<Task>,
    /// How often the task was switched to.
    pub(crate) switches: AtomicU64,
    /// What the tracer keeps for the task.
    trace_block: TaskTrace,
}

/// What a task runs.
#[derive(Clone, Copy)]
pub(crate) enum Entry {
    /// Nothing: an idle task exists already when it becomes a task.
    Boot,
    /// A function without an argument.
    Plain(fn()),
    /// A function and what to call it with.
    WithArg(fn(usize), usize),
}

/// What a task is doing.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It runs or waits for its turn.
    Runnable,
    /// It waits for a time.
    Sleeping,
    /// It waits for another task to exit.
    Blocked,
    /// It waits for somebody to unpark it.
    Parked,
    /// It has exited and never runs again.
    Dead,
}

/// The memory a task runs on: `STACK_SIZE` bytes of the heap that are never given back to it.
#[derive(Clone, Copy)]
pub(crate) struct Stack {
    /// The lowest address.
    bottom: usize,
}

impl Stack {
    /// A new stack, or `None` if the heap is exhausted.
    pub(crate) fn allocate() -> Option<Self> {
        let layout = Layout::from_size_align(STACK_SIZE, 16).ok()?;
        // SAFETY: the layout's size is not zero.
        let block = unsafe { alloc_zeroed(layout) };
        (!block.is_null()).then(|| Self { bottom: block.expose_provenance() })
    }

    /// One past the highest address.
    fn top(self) -> usize {
        self.bottom + STACK_SIZE
    }

    /// Writes the canary. Nobody may run on the stack.
    fn seal(self) {
        // SAFETY: `bottom` is 16-aligned memory of this stack, which no task runs on yet.
        unsafe { ptr::with_exposed_provenance_mut::<[u64; 2]>(self.bottom).write_volatile(CANARY) }
    }

    /// Whether the canary is as it was written.
    #[inline(always)]
    fn is_sealed(self) -> bool {
        // SAFETY: `bottom` is 16-aligned memory of this stack that stays allocated for ever.
        unsafe { ptr::with_exposed_provenance::<[u64; 2]>(self.bottom).read_volatile() == CANARY }
    }
}

impl Task {
    /// The task that a CPU's boot context becomes, on the boot stack.
    pub(crate) const fn idle(name: &'static str) -> Self {
        Self::with(0, name, Entry::Boot, ANY_CPU, None, machine::Keys::BOOT)
    }

    /// A task on `stack` that will start at `start` when it is switched to for the first time. It begins with
    /// one preemption hold, which [`crate::sched`] takes for every switch and drops behind it.
    pub(crate) fn new(
        pid: u32,
        name: &'static str,
        entry: Entry,
        cpus: u32,
        stack: Stack,
        start: extern "C" fn() -> !,
    ) -> &'static Self {
        stack.seal();
        let mut task = Self::with(pid, name, entry, cpus, Some(stack), machine::Keys::new(pid));
        task.saved_sp.store(machine::prepare_stack(stack.top(), start), Ordering::Relaxed);
        task.counts = machine::TaskCounts::held();
        Box::leak(Box::new(task))
    }

    const fn with(
        pid: u32,
        name: &'static str,
        entry: Entry,
        cpus: u32,
        stack: Option<Stack>,
        keys: machine::Keys,
    ) -> Self {
        Self {
            saved_sp: AtomicUsize::new(0),
            trace: AtomicPtr::new(ptr::null_mut()),
            counts: machine::TaskCounts::new(),
            keys,
            pid,
            name,
            entry,
            stack,
            state: AtomicU32::new(State::Runnable as u32),
            cpus: AtomicU32::new(cpus),
            unparked: AtomicBool::new(false),
            wakeup_ns: AtomicU64::new(0),
            next: AtomicPtr::new(ptr::null_mut()),
            joiners: AtomicPtr::new(ptr::null_mut()),
            switches: AtomicU64::new(0),
            trace_block: TaskTrace::new(),
        }
    }

    /// The task's name, as much of it as is shown.
    pub fn name(&self) -> &'static str {
        let end = self.name.floor_char_boundary(NAME_SHOWN);
        self.name.get(..end).unwrap_or(self.name)
    }

    /// What the task is doing. Another CPU may change it at any time, unless it is [`State::Dead`].
    pub fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            0 => State::Runnable,
            1 => State::Sleeping,
            2 => State::Blocked,
            3 => State::Parked,
            _ => State::Dead,
        }
    }

    /// Sets the state. The caller holds the scheduler's lock; Release so that who sees `Dead` sees all the
    /// task did.
    pub(crate) fn set_state(&self, state: State) {
        self.state.store(state as u32, Ordering::Release);
    }

    /// The addresses of the task's stack; empty for an idle task, whose stack is its CPU's boot stack.
    pub fn stack_range(&self) -> Range<usize> {
        self.stack.map_or(0..0, |stack| stack.bottom..stack.top())
    }

    /// How often the task was switched to.
    pub fn switches(&self) -> u64 {
        self.switches.load(Ordering::Relaxed)
    }

    /// Whether the task has never written below its stack, as far as the canary tells.
    #[inline(always)]
    pub(crate) fn stack_is_sealed(&self) -> bool {
        self.stack.is_none_or(Stack::is_sealed)
    }

    /// What the tracer keeps for the task.
    pub fn trace_block(&'static self) -> &'static TaskTrace {
        &self.trace_block
    }

    /// Lets the tracer see the task from now on. The task is not running yet, or is the caller.
    pub fn publish_trace_block(&'static self) {
        let block = ptr::from_ref(&self.trace_block).cast_mut();
        self.trace.store(block, Ordering::Release);
        crate::context::preempt_disable();
        if ptr::eq(self, machine::current()) {
            // Otherwise the switch to the task does it.
            machine::per_cpu().trace.store(block, Ordering::Relaxed);
        }
        crate::context::preempt_enable();
    }

    /// What the task runs.
    pub(crate) fn entry(&self) -> Entry {
        self.entry
    }

    /// The stack of a dead task, for its next owner.
    pub(crate) fn stack(&self) -> Option<Stack> {
        self.stack
    }
}
