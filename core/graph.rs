//! Graph users: told of a function's entry, and of its return if they asked for it.
//!
//! [`enter`] runs at a traced function's entry, [`leave`] when the function returned to the return hooker; both with
//! preemption off, in any context, and on top of each other in interrupts.
//!
//! # What a user can keep
//! * For one call: words it reserves at the entry, there again at the return ([`EntryCall::reserve`]), and from the entries and
//!   returns of the calls inside ([`EntryCall::parent_data`]).
//! * For one task: one word, zero when the user is registered ([`EntryCall::task_word`]).

use crate::addr::{FuncAddr, RetAddr};
use crate::filter::Filter;
use crate::owner::Owner;
use crate::platform::{Context, Fatal};
use crate::recursion::Group;
use crate::regs::Regs;
use crate::shadow::Frame;
use crate::straight::Plain;
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

/// A call whose return a graph user wanted, and that will never return. Preemption is off; must not sleep.
pub type GraphAbandonedFunc<R> = fn(call: &mut AbandonedCall<'_, R>, ops: &GraphOps<R>);

/// One user of the function graph (`fgraph_ops`). Kept in a `static` by whoever registers it.
#[derive(Debug)]
pub struct GraphOps<R: Regs> {
    entry: GraphEntryFunc<R>,
    ret: GraphReturnFunc<R>,
    abandoned: Option<GraphAbandonedFunc<R>>,
    filter: Filter,
    private: usize,
    /// What this is a part of, if it is one of this crate's own.
    pub(crate) owner: Owner,
    /// If the straight path can do what the callbacks do.
    straight: Option<Plain>,
}

impl<R: Regs> GraphOps<R> {
    /// A user that wants to know of calls of the functions that `filter` lets through.
    pub const fn new(entry: GraphEntryFunc<R>, ret: GraphReturnFunc<R>, filter: Filter) -> Self {
        Self { entry, ret, abandoned: None, filter, private: 0, owner: Owner::none(), straight: None }
    }

    /// The same, which is also told of calls that it waits for in vain: a non-local jump left them, or the stack was unwound. That is
    /// found out when a call around them returns, newest first, before that return is told. Of calls whose task dies nobody is told.
    pub const fn with_abandoned(mut self, abandoned: GraphAbandonedFunc<R>) -> Self {
        self.abandoned = Some(abandoned);
        self
    }

    /// The same with a word of the user's own.
    pub const fn with_private(mut self, private: usize) -> Self {
        self.private = private;
        self
    }

    /// The same, for which the straight path does what the callbacks do as long as `plain` says so. Who changes what it says calls
    /// [`Engine::path_changed`](crate::Engine::path_changed) afterwards.
    #[cfg_attr(not(any(feature = "trampolines", test)), expect(dead_code, reason = "the tracer is one"))]
    pub(crate) const fn straight(mut self, plain: Plain) -> Self {
        self.straight = Some(plain);
        self
    }

    /// What the straight path asks the user, if it has one. Control side.
    pub(crate) fn plain(&self) -> Option<Plain> {
        self.straight
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

/// What one user has in one frame and one task.
#[derive(Debug)]
struct Own<'a, R: Regs> {
    users: &'a Users<R>,
    task: &'a TaskTrace,
    slot: usize,
    frame: Frame,
}

impl<'a, R: Regs> Own<'a, R> {
    fn data_above(&self, depth: usize) -> Option<&'a [AtomicUsize]> {
        let theirs = |want, stamp| want & 1 << self.slot != 0 && self.users.was_there(self.slot, stamp);
        self.task.shadow.data_above(self.frame, self.slot, depth, theirs)
    }

    fn word(&self) -> &'a AtomicUsize {
        self.task.words.of(self.users, self.slot)
    }
}

/// One call at its entry.
#[derive(Debug)]
pub struct EntryCall<'a, R: Regs> {
    func: FuncAddr,
    ret_addr: RetAddr,
    depth: u32,
    context: Context,
    own: Own<'a, R>,
    /// Where the frame ended when this user's turn came.
    mark: u32,
    fregs: &'a mut R,
}

impl<'a, R: Regs> EntryCall<'a, R> {
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
    pub fn reserve(&mut self, words: usize) -> Option<&'a [AtomicUsize]> {
        let shadow = &self.own.task.shadow;
        // The first block is the one that would be found again.
        if shadow.mark() != self.mark {
            return None;
        }
        shadow.reserve(self.own.frame, self.own.slot, words)
    }

    /// What this user reserved `depth` calls up: 0 is this call, 1 the innermost one around it whose return this user wants, and
    /// so on. `None` if there is no such call, or nothing was reserved. Calls that a non-local jump has left count until a return
    /// around them finds it out.
    pub fn parent_data(&self, depth: usize) -> Option<&'a [AtomicUsize]> {
        self.own.data_above(depth)
    }

    /// The word that this user has in this task: zero at first, and again after each registration.
    pub fn task_word(&self) -> &'a AtomicUsize {
        self.own.word()
    }

    /// How deep in interrupts the call is.
    #[inline]
    pub fn context(&self) -> Context {
        self.context
    }

    /// The task.
    #[inline]
    pub fn task(&self) -> &'a TaskTrace {
        self.own.task
    }
}

/// One call at its return.
#[derive(Debug)]
pub struct ReturnCall<'a, R: Regs> {
    func: FuncAddr,
    ret_addr: RetAddr,
    depth: u32,
    context: Context,
    own: Own<'a, R>,
    fregs: &'a mut R,
}

impl<'a, R: Regs> ReturnCall<'a, R> {
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
    pub fn data(&self) -> Option<&'a [AtomicUsize]> {
        self.own.task.shadow.data(self.own.frame, self.own.slot)
    }

    /// As [`EntryCall::parent_data`]; 0 is the same as [`data`](Self::data).
    pub fn parent_data(&self, depth: usize) -> Option<&'a [AtomicUsize]> {
        self.own.data_above(depth)
    }

    /// As [`EntryCall::task_word`].
    pub fn task_word(&self) -> &'a AtomicUsize {
        self.own.word()
    }

    /// How deep in interrupts the return is.
    #[inline]
    pub fn context(&self) -> Context {
        self.context
    }

    /// The task.
    #[inline]
    pub fn task(&self) -> &'a TaskTrace {
        self.own.task
    }

    /// How many calls of this task have found the shadow stack full so far.
    pub fn overrun(&self) -> u64 {
        self.own.task.overrun()
    }
}

/// One call that will never return.
#[derive(Debug)]
pub struct AbandonedCall<'a, R: Regs> {
    func: FuncAddr,
    ret_addr: RetAddr,
    depth: u32,
    own: Own<'a, R>,
}

impl<'a, R: Regs> AbandonedCall<'a, R> {
    /// The function that was left.
    pub fn func(&self) -> FuncAddr {
        self.func
    }

    /// Where it would have returned to.
    pub fn ret_addr(&self) -> RetAddr {
        self.ret_addr
    }

    /// The depth its entry had.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// What this user reserved at the call's entry.
    pub fn data(&self) -> Option<&'a [AtomicUsize]> {
        self.own.data_above(0)
    }

    /// As [`EntryCall::parent_data`].
    pub fn parent_data(&self, depth: usize) -> Option<&'a [AtomicUsize]> {
        self.own.data_above(depth)
    }

    /// As [`EntryCall::task_word`].
    pub fn task_word(&self) -> &'a AtomicUsize {
        self.own.word()
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
        let _ = task.overrun.fetch_add(1, Ordering::Relaxed);
        task.forget_who();
        return;
    };
    let depth = task.depth.load(Ordering::Relaxed);
    task.depth.store(depth + 1, Ordering::Relaxed);

    let mut want = 0;
    for slot in slots(candidates) {
        // Within a section a slot does not change hands.
        let Some(user) = users.graph(slot) else { continue };
        let mark = task.shadow.mark();
        let own = Own { users, task, slot, frame };
        let mut call = EntryCall { func, ret_addr, depth, context, own, mark, fregs: &mut *fregs };
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
    // A refused guard or a stopped tracer costs the callbacks, never the address.
    let guard = (callbacks == Callbacks::Call).then(|| task.enter(Group::Graph, context)).flatten();
    let left = found.abandoned as u32 + 1;
    let depth = task.depth.load(Ordering::Relaxed).saturating_sub(left);
    if found.abandoned != 0 && guard.is_some() {
        tell_abandoned(users, task, found.frame, depth);
    }
    let (ret_addr, func, want, stamp) = task.shadow.settle(found);
    if found.abandoned != 0 {
        task.abandoned.add(context, found.abandoned as u64);
        task.depth.store(depth + 1, Ordering::Relaxed);
    }
    // SAFETY: this is where the function was called from.
    unsafe { fregs.set_ip(ret_addr.get()) };

    if let Some(_guard) = guard {
        for slot in slots(want & users.graphs()) {
            let Some(user) = users.graph(slot).filter(|_| users.was_there(slot, stamp)) else { continue };
            let own = Own { users, task, slot, frame: found.frame };
            let mut call = ReturnCall { func, ret_addr, depth, context, own, fregs: &mut *fregs };
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

/// Takes the frames above `frame`, whose depth is `depth`, off one by one, and tells who wanted their returns. Under the guard.
#[cold]
fn tell_abandoned<R: Regs>(users: &Users<R>, task: &TaskTrace, frame: Frame, depth: u32) {
    while let Some(left) = task.shadow.left_above(frame) {
        // Frames lie one for each step of depth, so what is left tells each one's; an interrupt's calls count from there.
        let above = task.depth.load(Ordering::Relaxed).saturating_sub(1).max(depth + 1);
        for slot in slots(left.want & users.graphs()) {
            let Some(user) = users.graph(slot).filter(|_| users.was_there(slot, left.stamp)) else {
                continue;
            };
            let Some(abandoned) = user.abandoned else { continue };
            let own = Own { users, task, slot, frame: left.frame };
            let mut call = AbandonedCall { func: left.func, ret_addr: left.ret_addr, depth: above, own };
            abandoned(&mut call, user);
        }
        task.shadow.pop(left.frame);
        task.depth.store(above, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod bugs;
#[cfg(test)]
mod cases;
#[cfg(test)]
mod data;
#[cfg(test)]
mod interrupts;
#[cfg(test)]
mod model;
#[cfg(test)]
pub(crate) mod world;
