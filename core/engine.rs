//! The engine: sites, users, and the control side that joins them.
//!
//! Generic over the platform and the machine, so that host tests drive it with fakes of both; the one instance of a kernel
//! is `arch::live::ENGINE`. The control side (everything that takes the lock) runs in task context; the traced path is
//! [`Engine::entry`] and [`Engine::leave`].

use core::marker::PhantomData;

use spin::Mutex;

use crate::addr::{FuncAddr, RetAddr, SiteAddr};
use crate::graph::{self, Callbacks};
use crate::machine::{Machine, Trampolines};
use crate::platform::{Context, Platform};
use crate::quiesce::Quiesce;
use crate::recursion::Group;
use crate::regs::{Regs, Saved};
use crate::site::{SiteReport, SiteSource, State, StateWord};
use crate::sites::{Groups, ModuleId};
use crate::straight::Plain;
use crate::sync::{AtomicBool, Ordering, signal_fence};
use crate::task::{MAX_NEST, TaskTrace};
use crate::users::{Mask, Users, slots};
use crate::wire::SHORT_FUNCS;
use crate::words::Desk;

#[derive(Clone, Copy, Debug)]
enum Phase {
    Fresh,
    Failed,
    Ready { trampolines: Trampolines },
}

#[derive(Debug)]
struct Control {
    phase: Phase,
    /// Users that are enabled, whether or not the tracer is switched on.
    enabled: Mask,
    /// The global switch (`ftrace_enabled`).
    switched_off: bool,
}

/// The tracer of one image. An embedder whose entries come through this crate's trampolines uses the free functions at the
/// crate root, which work on an instance of their own; one whose entries are delivered in another way makes a `static` of this.
#[derive(Debug)]
pub struct Engine<P: Platform, M: Machine> {
    control: Mutex<Control>,
    sites: Groups,
    users: Users<M::Regs>,
    /// Locked behind `control`, if both are.
    desk: Mutex<Desk>,
    quiesce: Quiesce,
    stopped: AtomicBool,
    _platform: PhantomData<fn(P, M)>,
}

impl<P: Platform, M: Machine> Engine<P, M> {
    /// A tracer that has no sites yet.
    pub const fn new() -> Self {
        Self {
            control: Mutex::new(Control { phase: Phase::Fresh, enabled: 0, switched_off: false }),
            sites: Groups::new(),
            users: Users::new(),
            desk: Mutex::new(Desk::new()),
            quiesce: Quiesce::new(),
            stopped: AtomicBool::new(false),
            _platform: PhantomData,
        }
    }

    /// From the engine to the words of the straight path.
    #[cfg_attr(not(feature = "trampolines"), expect(dead_code, reason = "the trampolines use it"))]
    pub(crate) const STRAIGHT: usize = core::mem::offset_of!(Self, users) + Users::<M::Regs>::STRAIGHT;

    /// Takes the sites over and prepares their text.
    ///
    /// # Errors
    /// See [`init`](crate::init).
    ///
    /// # Safety
    /// 1. `source.entries` and `source.states` are what they say, and `source.text` is this image's text.
    /// 2. No task is preempted, and no CPU runs, inside a sled: call it before tasks and other CPUs start, or with them stopped
    ///    elsewhere.
    /// 3. `trampolines` are this crate's.
    pub unsafe fn init(&self, source: SiteSource, trampolines: Trampolines) -> Result<SiteReport, Error> {
        let mut control = self.control.lock();
        if !matches!(control.phase, Phase::Fresh) {
            return Err(Error::AlreadyInitialised);
        }
        control.phase = Phase::Failed;
        let report = self.sites.kernel().build::<M, P>(source).map_err(Error::Sites)?;
        self.sites.number(ModuleId::KERNEL);
        self.prepare(ModuleId::KERNEL, trampolines)?;
        control.phase = Phase::Ready { trampolines };
        Ok(report)
    }

    /// A function's entry: tells the users who want it, and catches its return if a graph user wants that. From a
    /// trampoline, in any context. `hooker` is where hooked functions return to.
    #[inline]
    pub fn entry(&self, site: SiteAddr, ip: FuncAddr, fregs: &mut M::Regs, hooker: RetAddr) {
        self.dispatch(|| self.sites.state(site), ip, fregs, hooker);
    }

    /// The same for a site whose text leads to its state word.
    #[cfg_attr(not(feature = "trampolines"), expect(dead_code, reason = "the trampolines call it"))]
    #[inline]
    pub(crate) fn entry_of(&self, state: &StateWord, ip: FuncAddr, fregs: &mut M::Regs, hooker: RetAddr) {
        self.dispatch(|| Some(state.load()), ip, fregs, hooker);
    }

    #[inline(always)]
    fn dispatch(
        &self,
        state: impl FnOnce() -> Option<State>,
        ip: FuncAddr,
        fregs: &mut M::Regs,
        hooker: RetAddr,
    ) {
        let Some(task) = fregs.task() else { return };
        if self.is_stopped() {
            return;
        }
        P::preempt_disable();
        if let Some(_section) = self.quiesce.enter(P::cpu_id()) {
            let context = P::context();
            let all = self.users.all();
            let wanted = state().map_or(0, |state| state.wanted_by(all));
            let (entries, graphs) = (wanted & self.users.entries(), wanted & self.users.graphs());
            // Two ways, so that neither asks at its end whether it has the guard.
            if entries == 0 {
                // The graph has one of its own.
                if graphs != 0 {
                    graph::enter(&self.users, graphs, task, context, ip, fregs, hooker);
                }
            } else if let Some(_guard) = task.enter(Group::Ops, context) {
                self.call_ops(entries, ip, fregs);
                if graphs != 0 {
                    graph::enter(&self.users, graphs, task, context, ip, fregs, hooker);
                }
            }
        }
        // Another task may run now, and what runs until then can be traced.
        P::preempt_enable();
    }

    /// Tells the users of entries in `wanted`. Under the guard, within a section.
    #[inline(always)]
    fn call_ops(&self, wanted: Mask, ip: FuncAddr, fregs: &mut M::Regs) {
        for slot in slots(wanted) {
            let Some(ops) = self.users.entry(slot) else { continue };
            // A user that needs every register waits until the text brings them.
            if !ops.needs_regs() || fregs.saved() == Saved::Regs {
                (ops.func())(ip, fregs.return_address(), ops, fregs);
            }
        }
    }

    /// The graph's part of an entry that another tracer delivered: what a kernel's own `ftrace_ops` callback calls. `ip` is the
    /// function or its site.
    #[inline]
    pub fn graph_entry(&self, ip: FuncAddr, fregs: &mut M::Regs, hooker: RetAddr) {
        let Some(task) = fregs.task() else { return };
        if self.is_stopped() {
            return;
        }
        P::preempt_disable();
        if let Some(_section) = self.quiesce.enter(P::cpu_id()) {
            let all = self.users.all();
            let state =
                self.sites.find_func::<M>(ip).map(|(module, index)| self.sites.table(module).state(index));
            let graphs = state.map_or(0, |state| state.wanted_by(all)) & self.users.graphs();
            if graphs != 0 {
                graph::enter(&self.users, graphs, task, P::context(), ip, fregs, hooker);
            }
        }
        P::preempt_enable();
    }

    /// A hooked function returned.
    ///
    /// # Safety
    /// `fregs` lies in the frame of a return trampoline, and says where it was entered.
    #[inline]
    pub unsafe fn leave(&self, fregs: &mut M::Regs) {
        P::preempt_disable();
        let section = self.quiesce.enter(P::cpu_id());
        let callbacks =
            if self.is_stopped() || section.is_none() { Callbacks::Skip } else { Callbacks::Call };
        let left = graph::leave(&self.users, fregs.task(), P::context(), callbacks, fregs);
        if let Err(why) = left {
            self.stop();
            P::fatal(why);
        }
        drop(section);
        P::preempt_enable();
    }

    /// A function returned whose call the straight path hooked, and that took so many counts: `record` is told, if calls as long are
    /// recorded. The assembly has lowered the task's depth, and pops the frame behind this, so what runs if this switches tasks is not the
    /// call's.
    #[cfg_attr(
        not(any(feature = "trampolines", test)),
        expect(dead_code, reason = "the trampolines call it")
    )]
    #[inline(always)]
    pub(crate) fn record_straight(&self, task: &TaskTrace, took: u64, record: impl FnOnce(u32, Context)) {
        let depth = task.depth.load(Ordering::Relaxed);
        if depth >= task.usual_depth.load(Ordering::Relaxed) {
            task.now_so_deep(depth + 1);
        }
        if !self.is_straight_long(took) {
            return;
        }
        let Some(nest) = Self::nest_straight(task) else { return };
        P::preempt_disable();
        record(depth, P::context());
        P::preempt_enable();
        Self::unnest_straight(task, nest);
    }

    /// Does the rest for the assembly, which holds preemption, and gives the hold back: `rest` is told the depth, if the call may be recorded.
    #[cfg_attr(not(feature = "trampolines"), expect(dead_code, reason = "the trampolines call it"))]
    pub(crate) fn finish_straight(&self, task: &TaskTrace, rest: impl FnOnce(Option<u32>)) {
        let nest = Self::nest_straight(task);
        rest(nest.map(|_| task.depth.load(Ordering::Relaxed)));
        P::preempt_enable();
        if let Some(nest) = nest {
            Self::unnest_straight(task, nest);
        }
    }

    /// Switches tasks for the assembly, which found that this is due when it gave its hold back.
    #[cfg_attr(not(feature = "trampolines"), expect(dead_code, reason = "the trampolines call it"))]
    pub(crate) fn switch_straight(&self, task: &TaskTrace) {
        let Some(nest) = Self::nest_straight(task) else { return };
        P::preempt_disable();
        P::preempt_enable();
        Self::unnest_straight(task, nest);
    }

    /// Counts this as a trampoline that is under way; `None` where there are too many. Nothing is called meanwhile that may be traced. If the
    /// embedder's functions are all the same, this ends the recursion, as the count in assembly does for entries.
    #[inline(always)]
    fn nest_straight(task: &TaskTrace) -> Option<u32> {
        let nest = task.nest.load(Ordering::Relaxed);
        if nest >= MAX_NEST {
            task.nest_refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        // What interrupts these lines leaves the word as it found it.
        task.nest.store(nest + 1, Ordering::Relaxed);
        signal_fence();
        Some(nest)
    }

    #[inline(always)]
    fn unnest_straight(task: &TaskTrace, nest: u32) {
        signal_fence();
        task.nest.store(nest, Ordering::Relaxed);
    }

    /// Whether calls of so many counts are recorded, if they began on the straight path: by what was wanted when it was taken last.
    #[inline(always)]
    pub(crate) fn is_straight_long(&self, took: u64) -> bool {
        took >= self.users.straight.least.load(Ordering::Relaxed)
    }

    /// The number of the function whose state word this is.
    #[cfg_attr(not(feature = "trampolines"), expect(dead_code, reason = "the trampolines call it"))]
    #[inline(always)]
    pub(crate) fn number_of_state(&self, word: *const StateWord) -> u32 {
        self.sites.number_of_state(word)
    }

    /// The number that a function has in records, by its entry or its site: [`NO_FUNC`](crate::wire::NO_FUNC) if it cannot be
    /// traced. From a callback, whose section keeps modules' tables from being forgotten.
    #[cfg_attr(not(any(feature = "trampolines", test)), expect(dead_code, reason = "the tracers ask"))]
    pub(crate) fn function_number(&self, func: FuncAddr) -> u32 {
        self.sites.number_of::<M>(func)
    }

    /// The function that has a number in records, if its module is still there. Any context.
    pub fn numbered_function(&self, number: u32) -> Option<FuncAddr> {
        P::preempt_disable();
        // Modules' tables are not forgotten within a section.
        let func = self.quiesce.enter(P::cpu_id()).and_then(|_section| self.sites.numbered::<M>(number));
        P::preempt_enable();
        func
    }

    /// Whether tracing has stopped for good.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Stops tracing for good: no callback is called any more; hooked calls still return.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.users.straight.off();
    }

    /// Returns when no callback is under way that began before: what callbacks used until now can be reused then. Task context, not
    /// from a callback.
    pub fn synchronize(&self) {
        self.quiesce.synchronize::<P>();
    }

    /// Lets the trampolines do by themselves what the users want, if they can. Under the lock, when a change of users is complete.
    fn choose_path(&self) {
        if P::counts_time() && !self.is_stopped() {
            self.users.choose_path(|plain| self.record_in_assembly(plain));
            // `stop` comes from any context, and so perhaps just now. Its `off` is behind ours: then it stays off. Or it is before:
            // then our read-modify-write has seen what it stored, and so the load here sees what was stored before that.
            if self.is_stopped() {
                self.users.straight.off();
            }
        }
    }

    /// Lets the trampolines record what they can of the calls of the kernel's functions.
    fn record_in_assembly(&self, plain: Plain) {
        if !P::has_words() {
            return;
        }
        let kernel = self.sites.kernel();
        // Before any state says so.
        if let Some(first) = kernel.states().first() {
            let states = core::ptr::from_ref(first).expose_provenance();
            self.users.straight.states.store(states, Ordering::Release);
        }
        // Numbers behind do not fit into a record in short.
        for index in 0..kernel.len().min(SHORT_FUNCS as usize) {
            let (state, kept) = (kernel.state(index), (plain.kept)(index as u32));
            if state.kept != kept {
                kernel.set_state(index, State { kept, ..state });
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn straight(&self) -> &crate::straight::Straight {
        &self.users.straight
    }

    fn ready(&self, control: &Control) -> Result<Trampolines, Error> {
        match control.phase {
            _ if self.is_stopped() => Err(Error::Stopped),
            Phase::Ready { trampolines } => Ok(trampolines),
            Phase::Fresh | Phase::Failed => Err(Error::NotInitialised),
        }
    }
}

impl<P: Platform, M: Machine> Default for Engine<P, M> {
    fn default() -> Self {
        Self::new()
    }
}

/// Users whose sites are to be patched.
fn patched(control: &Control) -> Mask {
    if control.switched_off { 0 } else { control.enabled }
}

mod error;
mod listing;
mod lists;
mod members;
mod modules;
mod paths;
mod table;
mod update;
mod users;
mod words;

pub use error::Error;
pub use listing::{FunctionInfo, Stats};
pub(crate) use members::Members;
pub use modules::LoadedModule;
pub use users::{SetChange, WhichSet};

#[cfg(test)]
mod changes;
#[cfg(test)]
mod direct;
#[cfg(test)]
mod failures;
#[cfg(test)]
pub(crate) mod image;
#[cfg(test)]
mod init;
#[cfg(test)]
mod known_bugs;
#[cfg(test)]
mod model;
#[cfg(test)]
mod traced;
