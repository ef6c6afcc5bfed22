//! Graph users: told of a function's entry, and of its return if they asked for it.
//!
//! [`enter`] runs at a traced function's entry, [`leave`] when the function returned to the return hooker; both with
//! preemption off, in any context, and on top of each other in interrupts.

use crate::addr::{FuncAddr, RetAddr};
use crate::filter::Filter;
use crate::platform::{Context, Fatal};
use crate::recursion::Group;
use crate::regs::Regs;
use crate::shadow::{Frame, Shadow};
use crate::sync::{AtomicUsize, Ordering};
use crate::task::TaskTrace;
use crate::users::{Mask, Users, slots};

/// What a graph user says at a function's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Want {
    /// Tell me when this call returns.
    Return,
    /// This call is of no interest; what was reserved for it is given back.
    Nothing,
}

/// A function's entry, as a graph user sees it. Preemption is off; must not sleep.
pub type GraphEntryFunc<R> = fn(call: &mut EntryCall<'_, R>, ops: &GraphOps<R>) -> Want;

/// A function's return, as a graph user sees it. Preemption is off; must not sleep.
pub type GraphReturnFunc<R> = fn(call: &mut ReturnCall<'_, R>, ops: &GraphOps<R>);

/// One user of the function graph (`fgraph_ops`). Kept in a `static` by whoever registers it.
#[derive(Debug)]
pub struct GraphOps<R: Regs> {
    entry: GraphEntryFunc<R>,
    ret: GraphReturnFunc<R>,
    filter: Filter,
    private: usize,
}

impl<R: Regs> GraphOps<R> {
    /// A user that wants to know of calls of the functions that `filter` lets through.
    pub const fn new(entry: GraphEntryFunc<R>, ret: GraphReturnFunc<R>, filter: Filter) -> Self {
        Self { entry, ret, filter, private: 0 }
    }

    /// The same with a word of the user's own.
    pub const fn with_private(mut self, private: usize) -> Self {
        self.private = private;
        self
    }

    /// The user's own word.
    #[inline]
    pub fn private(&self) -> usize {
        self.private
    }

    /// Which functions the user wants.
    pub fn filter(&self) -> &Filter {
        &self.filter
    }

    /// The callbacks at an entry and at a return.
    pub(crate) fn callbacks(&self) -> (GraphEntryFunc<R>, GraphReturnFunc<R>) {
        (self.entry, self.ret)
    }
}

/// One call at its entry.
#[derive(Debug)]
pub struct EntryCall<'a, R: Regs> {
    func: FuncAddr,
    ret_addr: RetAddr,
    depth: u32,
    slot: usize,
    frame: Frame,
    shadow: &'a Shadow,
    fregs: &'a mut R,
}

impl<R: Regs> EntryCall<'_, R> {
    /// The function that is being entered.
    #[inline]
    pub fn func(&self) -> FuncAddr {
        self.func
    }

    /// Where it will return to. If another tool hooked this call before, its trampoline.
    #[inline]
    pub fn ret_addr(&self) -> RetAddr {
        self.ret_addr
    }

    /// How many hooked calls of this task are under way around this one.
    #[inline]
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// The registers.
    #[inline]
    pub fn fregs(&self) -> &R {
        self.fregs
    }

    /// The registers, to be changed.
    #[inline]
    pub fn fregs_mut(&mut self) -> &mut R {
        self.fregs
    }

    /// Reserves `words` zeroed words, to be read at this call's return; one reservation a user and call, at most
    /// [`MAX_DATA_WORDS`](crate::MAX_DATA_WORDS). `None` if there is no room: then say [`Want::Nothing`], or do without.
    #[inline]
    pub fn reserve(&mut self, words: usize) -> Option<&[AtomicUsize]> {
        self.shadow.reserve(self.frame, self.slot, words)
    }
}

/// One call at its return.
#[derive(Debug)]
pub struct ReturnCall<'a, R: Regs> {
    func: FuncAddr,
    ret_addr: RetAddr,
    depth: u32,
    slot: usize,
    frame: Frame,
    task: &'a TaskTrace,
    fregs: &'a mut R,
}

impl<R: Regs> ReturnCall<'_, R> {
    /// The function that returned.
    #[inline]
    pub fn func(&self) -> FuncAddr {
        self.func
    }

    /// Where it returns to.
    #[inline]
    pub fn ret_addr(&self) -> RetAddr {
        self.ret_addr
    }

    /// The depth its entry had.
    #[inline]
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// The registers.
    #[inline]
    pub fn fregs(&self) -> &R {
        self.fregs
    }

    /// The registers, to be changed: a changed return value takes effect.
    #[inline]
    pub fn fregs_mut(&mut self) -> &mut R {
        self.fregs
    }

    /// The first return register. Whether the function returns anything, its type says.
    #[inline]
    pub fn retval(&self) -> usize {
        self.fregs.return_value()
    }

    /// What this user reserved at the call's entry.
    #[inline]
    pub fn data(&self) -> Option<&[AtomicUsize]> {
        self.task.shadow.data(self.frame, self.slot)
    }

    /// How many calls of this task have found the shadow stack full so far.
    pub fn overrun(&self) -> u64 {
        self.task.stats().overrun
    }
}

/// A function is entered that the graph users of `candidates` want: asks them, and if one wants the return, sends it to
/// `hooker`. Preemption is off, within a section of `quiesce`.
#[inline]
pub(crate) fn enter<R: Regs>(
    users: &Users<R>,
    candidates: Mask,
    task: &TaskTrace,
    context: Context,
    func: FuncAddr,
    fregs: &mut R,
    hooker: RetAddr,
) {
    if !task.shadow.has_memory() || task.is_paused() {
        return;
    }
    let stamp = users.stamp();
    let Some(_guard) = task.enter(Group::Graph, context) else {
        return;
    };
    let ret_addr = fregs.return_address();
    let Ok(frame) = task.shadow.push(ret_addr, func, fregs.key()) else {
        task.overrun.add(context, 1);
        return;
    };
    let depth = task.depth.load(Ordering::Relaxed);
    task.depth.store(depth + 1, Ordering::Relaxed);

    let mut want = 0;
    for slot in slots(candidates) {
        // Within a section a slot does not change hands.
        let Some(user) = users.graph(slot) else { continue };
        let mark = task.shadow.mark();
        let mut call =
            EntryCall { func, ret_addr, depth, slot, frame, shadow: &task.shadow, fregs: &mut *fregs };
        match (user.entry)(&mut call, user) {
            Want::Return => want |= 1 << slot,
            Want::Nothing => task.shadow.rewind(frame, mark),
        }
    }
    if want == 0 {
        task.shadow.pop(frame);
        task.depth.store(depth, Ordering::Relaxed);
        return;
    }
    task.shadow.seal(frame, want, stamp);
    // SAFETY: `hooker` is the return hooker, which gives control back to `ret_addr` through the frame just sealed.
    unsafe { fregs.set_return_address(hooker) };
    task.calls.add(context, 1);
    if depth + 1 > task.max_depth.load(Ordering::Relaxed) {
        task.max_depth.fetch_max(depth + 1, Ordering::Relaxed);
    }
}

/// Whether callbacks are called at a return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Callbacks {
    /// They are.
    Call,
    /// Tracing has stopped: only the address comes back.
    Skip,
}

/// A hooked function returned: tells the users that wanted it, and finds where it goes on. The frame stays on the stack until
/// the real address stands in the trampoline's frame, so a stack walker finds it in one place or the other. Preemption is
/// off, within a section of `quiesce`.
#[inline]
pub(crate) fn leave<R: Regs>(
    users: &Users<R>,
    task: Option<&TaskTrace>,
    context: Context,
    callbacks: Callbacks,
    fregs: &mut R,
) -> Result<(), Fatal> {
    let key = fregs.key();
    let Some(task) = task.filter(|task| task.shadow.has_memory()) else {
        return Err(Fatal::NoStack { key });
    };
    let Some(found) = task.shadow.find(key) else {
        let newest = task.shadow.newest();
        return Err(Fatal::NoFrame {
            key,
            newest: newest.map(|frame| frame.key),
            newest_return: newest.map(|frame| frame.ret_addr),
        });
    };
    let (ret_addr, func, want, stamp) = task.shadow.settle(found);
    let left = found.abandoned as u32 + 1;
    let depth = task.depth.load(Ordering::Relaxed).saturating_sub(left);
    if found.abandoned != 0 {
        task.abandoned.add(context, found.abandoned as u64);
        task.depth.store(depth + 1, Ordering::Relaxed);
    }
    // SAFETY: this is where the function was called from.
    unsafe { fregs.set_ip(ret_addr.get()) };

    // A refused guard or a stopped tracer costs the callbacks, never the address.
    if callbacks == Callbacks::Call
        && let Some(_guard) = task.enter(Group::Graph, context)
    {
        for slot in slots(want & users.graphs()) {
            let Some(user) = users.graph(slot).filter(|_| users.was_there(slot, stamp)) else { continue };
            let mut call =
                ReturnCall { func, ret_addr, depth, slot, frame: found.frame, task, fregs: &mut *fregs };
            (user.ret)(&mut call, user);
        }
    }
    // SAFETY: `fregs` lies in the return trampoline's frame, whose contract this is called under.
    unsafe { fregs.resume_at(ret_addr) };
    task.depth.store(depth, Ordering::Relaxed);
    task.shadow.pop(found.frame);
    task.returns.add(context, 1);
    Ok(())
}

#[cfg(test)]
mod cases;
#[cfg(test)]
mod interrupts;
#[cfg(test)]
mod model;
#[cfg(test)]
pub(crate) mod world;
