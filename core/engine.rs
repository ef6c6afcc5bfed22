//! The engine: sites, users of entries, users of the graph, and the control side that joins them.
//!
//! Generic over the platform and the machine, so that host tests drive it with fakes of both; the one instance of a kernel
//! is `arch::live::ENGINE`. The control side (everything that takes the lock) runs in task context; the traced path is
//! [`Engine::entry`] and [`Engine::leave`].

use core::fmt;
use core::marker::PhantomData;

use spin::Mutex;

use crate::addr::{FuncAddr, RetAddr, SiteAddr};
use crate::graph::{Graph, GraphOps};
use crate::machine::{Code, Machine, OutOfRange, Sled};
use crate::ops::{MAX_OPS, Ops, OpsFlags, Slots};
use crate::platform::{Platform, TextWriteError};
use crate::recursion::Group;
use crate::regs::Regs;
use crate::site::{Flavor, SiteError, SiteReport, SiteSource, SiteTable, State, read_site};
use crate::sync::{AtomicBool, Ordering};

/// Why something asked of the tracer was not done. Unless it says so, everything is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The site table was not accepted.
    Sites(SiteError),
    /// `init` was called before, successfully or not.
    AlreadyInitialised,
    /// `init` has not been called, or failed.
    NotInitialised,
    /// The user is registered already.
    AlreadyRegistered,
    /// The user is not registered.
    NotRegistered,
    /// All slots are taken.
    TooManyUsers {
        /// How many there are.
        max: usize,
    },
    /// A set of functions is not in ascending order.
    UnsortedFilter {
        /// The first function that is not above the one before it.
        func: FuncAddr,
    },
    /// A trampoline is too far from a site.
    OutOfRange(OutOfRange),
    /// A site's text is not what the engine left there. Tracing has stopped for good.
    Surprise {
        /// The site.
        site: SiteAddr,
        /// What should stand there.
        expected: Code,
        /// What was found; empty if it could not be read.
        found: Code,
    },
    /// The platform failed to write text. Tracing has stopped for good.
    Write(TextWriteError),
    /// Tracing had been stopped for good before.
    Stopped,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sites(error) => error.fmt(f),
            Self::AlreadyInitialised => f.write_str("the tracer has been initialised before"),
            Self::NotInitialised => f.write_str("the tracer has not been initialised"),
            Self::AlreadyRegistered => f.write_str("the user is registered already"),
            Self::NotRegistered => f.write_str("the user is not registered"),
            Self::TooManyUsers { max } => write!(f, "all {max} slots for users are taken"),
            Self::UnsortedFilter { func } => {
                write!(f, "a set of functions must be sorted: {func} is not above the one before it")
            }
            Self::OutOfRange(error) => error.fmt(f),
            Self::Surprise { site, expected, found } => {
                write!(
                    f,
                    "text at site {site} was changed by someone else: expected {expected}, found {found}; tracing has stopped"
                )
            }
            Self::Write(error) => write!(f, "{error}; tracing has stopped"),
            Self::Stopped => f.write_str("tracing has been stopped for good"),
        }
    }
}

impl core::error::Error for Error {}

impl Error {
    /// The site that is to blame, if it is one.
    pub fn site(&self) -> Option<SiteAddr> {
        match self {
            Self::Sites(error) => error.site(),
            Self::Surprise { site, .. } => Some(*site),
            _ => None,
        }
    }
}

/// The entry points of the trampolines.
#[derive(Clone, Copy, Debug)]
pub struct Trampolines {
    /// Saves argument registers.
    pub args: usize,
    /// Saves every register.
    pub regs: usize,
}

/// Figures about the sites.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Sites that can be traced.
    pub sites: usize,
    /// Sites whose sled calls a trampoline now.
    pub patched: usize,
    /// Sites that are kept out.
    pub notrace: usize,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Fresh,
    Failed,
    Ready { trampolines: Trampolines, report: SiteReport },
}

/// The tracer of one image. An embedder whose entries come through this crate's trampolines uses the free functions at the
/// crate root, which work on an instance of their own; one whose entries are delivered in another way makes a `static` of this.
#[derive(Debug)]
pub struct Engine<P: Platform, M: Machine> {
    control: Mutex<Phase>,
    sites: SiteTable,
    ops: Slots<Ops<M::Regs>>,
    graph: Graph<M::Regs>,
    /// The `ftrace_ops` whose callback is `ftrace_graph_func`: registered while there are graph users.
    graph_ops: &'static Ops<M::Regs>,
    stopped: AtomicBool,
    _platform: PhantomData<fn(P, M)>,
}

impl<P: Platform, M: Machine> Engine<P, M> {
    /// A tracer that has no sites yet. `graph_ops` is the graph as a user of entries: its callback must end in
    /// [`graph_entry`](Self::graph_entry) of this same engine.
    pub const fn new(graph_ops: &'static Ops<M::Regs>) -> Self {
        Self {
            control: Mutex::new(Phase::Fresh),
            sites: SiteTable::new(),
            ops: Slots::new(),
            graph: Graph::new(),
            graph_ops,
            stopped: AtomicBool::new(false),
            _platform: PhantomData,
        }
    }

    /// Takes the sites over and prepares their text.
    ///
    /// # Safety
    /// 1. `source.entries` and `source.states` are what they say, and `source.text` is this image's text.
    /// 2. No task is preempted, and no CPU runs, inside a sled: call it before tasks and other CPUs start, or with them stopped
    ///    elsewhere.
    /// 3. `trampolines` are this crate's.
    pub unsafe fn init(&self, source: SiteSource, trampolines: Trampolines) -> Result<SiteReport, Error> {
        let mut phase = self.control.lock();
        if !matches!(*phase, Phase::Fresh) {
            return Err(Error::AlreadyInitialised);
        }
        *phase = Phase::Failed;
        let report = self.sites.build::<M, P>(source).map_err(Error::Sites)?;
        for (_, site, _, state) in self.sites.iter::<M>() {
            let from = M::original(state.layout);
            let to = M::code(site, state.layout, Sled::Off).map_err(Error::OutOfRange)?;
            if from != to {
                self.write(site.get(), to)?;
            }
        }
        P::sync_cores();
        *phase = Phase::Ready { trampolines, report };
        Ok(report)
    }

    /// A function's entry: tells the users who want it. From a trampoline, in any context.
    #[inline]
    pub fn entry(&self, ip: FuncAddr, fregs: &mut M::Regs) {
        let Some(task) = fregs.task() else { return };
        if self.is_stopped() {
            return;
        }
        let Some(_guard) = task.enter(Group::Ops, P::context()) else { return };
        P::preempt_disable();
        self.ops.dispatch(ip, fregs.return_address(), fregs);
        P::preempt_enable();
    }

    /// The graph's part of an entry: from the callback of `graph_ops`.
    #[inline]
    pub fn graph_entry(&self, ip: FuncAddr, fregs: &mut M::Regs, hooker: RetAddr) {
        if let Some(task) = fregs.task() {
            self.graph.enter(task, P::context(), ip, fregs, hooker);
        }
    }

    /// A hooked function returned.
    ///
    /// # Safety
    /// `fregs` lies in the frame of a return trampoline, and says where it was entered.
    #[inline]
    pub unsafe fn leave(&self, fregs: &mut M::Regs) {
        P::preempt_disable();
        let left = self.graph.leave(fregs.task(), P::context(), self.is_stopped(), fregs);
        if let Err(why) = left {
            self.stop();
            P::fatal(why);
        }
        P::preempt_enable();
    }

    /// Whether tracing has stopped for good.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Stops tracing for good: no callback is called any more; hooked calls still return.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Registers a user of entries: see [`register_ftrace_function`](crate::register_ftrace_function).
    ///
    /// # Errors
    /// See there.
    pub fn register_ops(&self, ops: &'static Ops<M::Regs>) -> Result<(), Error> {
        let phase = self.control.lock();
        let trampolines = self.ready(&phase)?;
        self.add_ops(ops, trampolines)
    }

    fn add_ops(&self, ops: &'static Ops<M::Regs>, trampolines: Trampolines) -> Result<(), Error> {
        if let Some(func) = ops.filter().first_unsorted() {
            return Err(Error::UnsortedFilter { func });
        }
        let slot = self.ops.free_slot().ok_or(Error::TooManyUsers { max: MAX_OPS })?;
        if !ops.claim() {
            return Err(Error::AlreadyRegistered);
        }
        // Before the text, so that no CPU comes through a site and finds nobody.
        self.ops.publish(slot, ops);
        if let Err(error) = self.update(trampolines) {
            self.ops.retract(ops);
            ops.release();
            return Err(error);
        }
        Ok(())
    }

    /// Takes a user of entries out. Callbacks that are under way on other CPUs, or in tasks preempted in a trampoline, may still
    /// finish.
    ///
    /// # Errors
    /// [`Error::NotRegistered`], and what goes wrong with the text; the user is out even then.
    pub fn unregister_ops(&self, ops: &'static Ops<M::Regs>) -> Result<(), Error> {
        let phase = self.control.lock();
        let trampolines = self.ready(&phase)?;
        self.remove_ops(ops, trampolines)
    }

    fn remove_ops(&self, ops: &'static Ops<M::Regs>, trampolines: Trampolines) -> Result<(), Error> {
        self.ops.retract(ops).ok_or(Error::NotRegistered)?;
        let updated = self.update(trampolines);
        ops.release();
        updated
    }

    /// Registers a graph user.
    ///
    /// # Errors
    /// As for users of entries.
    pub fn register_graph(&self, user: &'static GraphOps<M::Regs>) -> Result<(), Error> {
        let phase = self.control.lock();
        let trampolines = self.ready(&phase)?;
        if let Some(func) = user.filter().first_unsorted() {
            return Err(Error::UnsortedFilter { func });
        }
        if !user.claim() {
            return Err(Error::AlreadyRegistered);
        }
        let first = self.graph.users().is_empty();
        if !self.graph.publish(user) {
            user.release();
            return Err(Error::TooManyUsers { max: MAX_OPS });
        }
        let done = if first { self.add_ops(self.graph_ops, trampolines) } else { self.update(trampolines) };
        if done.is_err() {
            self.graph.users().retract(user);
            user.release();
        }
        done
    }

    /// Takes a graph user out. Calls that are under way still return through their hooks; their returns are not told any more.
    ///
    /// # Errors
    /// As for users of entries.
    pub fn unregister_graph(&self, user: &'static GraphOps<M::Regs>) -> Result<(), Error> {
        let phase = self.control.lock();
        let trampolines = self.ready(&phase)?;
        self.graph.users().retract(user).ok_or(Error::NotRegistered)?;
        let done = if self.graph.users().is_empty() {
            self.remove_ops(self.graph_ops, trampolines)
        } else {
            self.update(trampolines)
        };
        user.release();
        done
    }

    /// Figures about the sites.
    pub fn stats(&self) -> Stats {
        let phase = self.control.lock();
        let Phase::Ready { report, .. } = *phase else { return Stats::default() };
        let patched = self.sites.iter::<M>().filter(|(.., state)| state.current != Flavor::Off).count();
        Stats { sites: report.sites, patched, notrace: report.notrace }
    }

    /// The functions that can be traced, in ascending order of their sites.
    pub fn functions(&self) -> impl Iterator<Item = FuncAddr> {
        self.sites.iter::<M>().map(|(_, _, func, _)| func)
    }

    /// What the sled at `site` will do when the update that is under way is done; from a trap.
    pub fn target_of(&self, site: SiteAddr) -> Option<Flavor> {
        let state = self.sites.state(self.sites.find(site)?);
        (!state.notrace).then_some(state.target)
    }

    fn ready(&self, phase: &Phase) -> Result<Trampolines, Error> {
        match *phase {
            _ if self.is_stopped() => Err(Error::Stopped),
            Phase::Ready { trampolines, .. } => Ok(trampolines),
            Phase::Fresh | Phase::Failed => Err(Error::NotInitialised),
        }
    }

    /// What the registered users need of `func`.
    fn wanted(&self, func: FuncAddr) -> Flavor {
        let mut wanted = Flavor::Off;
        for (_, ops) in self.ops.iter() {
            let wants = if core::ptr::eq(ops, self.graph_ops) {
                self.graph.wants(func)
            } else {
                ops.filter().wants(func)
            };
            if wants {
                let needs =
                    if ops.flags().contains(OpsFlags::SAVE_REGS) { Flavor::Regs } else { Flavor::Args };
                wanted = wanted.max(needs);
            }
        }
        wanted
    }

    /// Brings every site's text to what the registered users need. Under the lock.
    ///
    /// First everything is planned and the text compared with what should stand there; nothing is written before all of
    /// it is right. Then the plans' first writes, a core sync, their second writes, and so on: with INT3 that is the batch
    /// protocol, with the table itself as the batch.
    fn update(&self, trampolines: Trampolines) -> Result<(), Error> {
        let planned = self.plan_all(trampolines);
        if let Err(error) = planned {
            for (index, .., state) in self.sites.iter::<M>() {
                self.sites.set_state(index, State { target: state.current, ..state });
            }
            if matches!(error, Error::Surprise { .. }) {
                self.stop();
            }
            return Err(error);
        }
        if !planned? {
            return Ok(());
        }
        for step in 0..crate::machine::MAX_STEPS {
            let mut wrote = false;
            for (_, site, _, state) in self.sites.iter::<M>().filter(|(.., s)| s.current != s.target) {
                let plan = M::plan(
                    site,
                    state.layout,
                    sled(state.current, trampolines),
                    sled(state.target, trampolines),
                )
                .map_err(Error::OutOfRange)?;
                if let Some(write) = plan[step] {
                    self.write(write.addr, write.new)?;
                    wrote = true;
                }
            }
            if wrote {
                P::sync_cores();
            }
        }
        for (index, .., state) in self.sites.iter::<M>() {
            self.sites.set_state(index, State { current: state.target, ..state });
        }
        Ok(())
    }

    /// Sets every site's target, and checks that it can be reached from what stands in the text. Whether any site changes.
    fn plan_all(&self, trampolines: Trampolines) -> Result<bool, Error> {
        let mut changes = false;
        for (index, site, func, state) in self.sites.iter::<M>() {
            let target = self.wanted(func);
            if target == state.current {
                continue;
            }
            let from = sled(state.current, trampolines);
            M::plan(site, state.layout, from, sled(target, trampolines)).map_err(Error::OutOfRange)?;
            let expected = M::code(site, state.layout, from).map_err(Error::OutOfRange)?;
            let found = read_site::<M, P>(site).map_or(Code::new(&[]), |(_, found)| found);
            if found != expected {
                return Err(Error::Surprise { site, expected, found });
            }
            self.sites.set_state(index, State { target, ..state });
            changes = true;
        }
        Ok(changes)
    }

    /// Writes text, or stops tracing for good.
    fn write(&self, addr: usize, code: Code) -> Result<(), Error> {
        // SAFETY: the bytes are a plan's, for a site that was decoded and compared under the lock that is held.
        unsafe { P::write_text(addr, code.as_slice()) }.map_err(|error| {
            self.stop();
            Error::Write(error)
        })
    }
}

fn sled(flavor: Flavor, trampolines: Trampolines) -> Sled {
    match flavor {
        Flavor::Off => Sled::Off,
        Flavor::Args => Sled::Call(trampolines.args),
        Flavor::Regs => Sled::Call(trampolines.regs),
    }
}

#[cfg(test)]
mod failures;
#[cfg(test)]
mod image;
#[cfg(test)]
mod init;
#[cfg(test)]
mod model;
#[cfg(test)]
mod traced;
