//! Users for the cases: they note what they are told in atomics, and are registered for as long as a guard lives.

use alloc::{boxed::Box, vec::Vec};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use fgraph::{
    EntryCall, Error, FgraphOps, Filter, FtraceOps, FtraceRegs, FuncAddr, OpsFlags, Regs, RetAddr,
    ReturnCall, SetChange, Want, WhichSet,
};

use crate::machine;

/// How many calls a probe keeps in full.
const KEPT: usize = 64;

/// What a probe saw of one event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The function.
    pub func: usize,
    /// `parent_ip`, or where the call returns to.
    pub parent: usize,
    /// Six arguments at an entry; the return registers first at a return.
    pub values: [usize; 6],
    /// The task.
    pub pid: u32,
    /// Hooked calls around it.
    pub depth: u32,
    /// A return.
    pub is_return: bool,
}

/// Notes what happens.
pub struct Probe {
    /// Entries.
    pub entries: AtomicU64,
    /// Returns.
    pub returns: AtomicU64,
    /// Returns whose function was not the one that was noted at their entry.
    pub mismatches: AtomicU64,
    /// Entries in another context than a task's.
    pub interrupts: AtomicU64,
    count: AtomicUsize,
    log: [Slot; KEPT],
}

/// One [`Seen`], word by word, because callbacks of different contexts write side by side.
struct Slot([AtomicUsize; 9]);

impl Probe {
    /// A probe that has seen nothing. Never freed: callbacks may outlive a registration.
    pub fn new() -> &'static Self {
        Box::leak(Box::new(Self {
            entries: AtomicU64::new(0),
            returns: AtomicU64::new(0),
            mismatches: AtomicU64::new(0),
            interrupts: AtomicU64::new(0),
            count: AtomicUsize::new(0),
            log: [const { Slot([const { AtomicUsize::new(0) }; 9]) }; KEPT],
        }))
    }

    /// The word by which callbacks find the probe.
    pub fn word(&'static self) -> usize {
        core::ptr::from_ref(self).expose_provenance()
    }

    /// The probe of a user.
    #[inline(always)]
    fn of(word: usize) -> &'static Self {
        // SAFETY: every user in this module was made with the word of a probe, which is never freed.
        unsafe { &*core::ptr::with_exposed_provenance::<Self>(word) }
    }

    #[inline(always)]
    fn note(&self, seen: Seen) {
        if let Some(slot) = self.log.get(self.count.fetch_add(1, Relaxed)) {
            let [a, b, c, d, e, f] = seen.values;
            let place = (seen.pid as usize) << 33 | (seen.depth as usize) << 1 | usize::from(seen.is_return);
            for (word, value) in slot.0.iter().zip([seen.func, seen.parent, a, b, c, d, e, f, place]) {
                word.store(value, Relaxed);
            }
        }
    }

    /// The first events that were noted.
    pub fn log(&self) -> Vec<Seen> {
        let seen = |slot: &Slot| {
            let [func, parent, a, b, c, d, e, f, place] = slot.0.each_ref().map(|word| word.load(Relaxed));
            let (pid, depth) = ((place >> 33) as u32, (place >> 1) as u32);
            Seen { func, parent, values: [a, b, c, d, e, f], pid, depth, is_return: place & 1 == 1 }
        };
        self.log.iter().take(self.count.load(Relaxed)).map(seen).collect()
    }

    /// Entries and returns.
    pub fn counts(&self) -> (u64, u64) {
        (self.entries.load(Relaxed), self.returns.load(Relaxed))
    }
}

/// A sorted set of functions, for a filter.
pub fn only(funcs: &[usize]) -> Filter {
    let mut funcs: Vec<FuncAddr> = funcs.iter().map(|func| FuncAddr::new(*func)).collect();
    funcs.sort_unstable();
    funcs.dedup();
    Filter::only(Box::leak(funcs.into_boxed_slice()))
}

/// The address of a function.
macro_rules! addr {
    ($func:expr) => {
        $func as *const () as usize
    };
}
pub(crate) use addr;

/// A user of entries, until dropped.
pub struct Op(&'static FtraceOps);

impl Op {
    /// Registers `func` as a user of entries.
    pub fn register(
        func: fgraph::OpsFunc<FtraceRegs>,
        flags: OpsFlags,
        filter: Filter,
        word: usize,
    ) -> Result<Self, Error> {
        let ops: &'static FtraceOps =
            Box::leak(Box::new(FtraceOps::new(func, flags, filter).with_private(word)));
        fgraph::register_ftrace_function(ops)?;
        Ok(Self(ops))
    }

    /// Changes which functions it wants.
    pub fn change(&self, which: WhichSet, to: SetChange<'_>) -> Result<(), Error> {
        fgraph::ftrace_set_filter(self.0, which, to)
    }
}

impl Drop for Op {
    fn drop(&mut self) {
        let _ = fgraph::unregister_ftrace_function(self.0);
    }
}

/// A graph user, until dropped.
pub struct Graph(&'static FgraphOps);

impl Graph {
    /// Registers a graph user.
    pub fn register(
        entry: fgraph::GraphEntryFunc<FtraceRegs>,
        ret: fgraph::GraphReturnFunc<FtraceRegs>,
        filter: Filter,
        word: usize,
    ) -> Result<Self, Error> {
        let ops: &'static FgraphOps =
            Box::leak(Box::new(FgraphOps::new(entry, ret, filter).with_private(word)));
        fgraph::register_ftrace_graph(ops)?;
        Ok(Self(ops))
    }

    /// Registers the function_graph tracer.
    pub fn tracing(filter: Filter) -> Result<Self, Error> {
        let ops: &'static FgraphOps = Box::leak(Box::new(fgraph::tracer::function_graph(filter)));
        fgraph::register_ftrace_graph(ops)?;
        Ok(Self(ops))
    }

    /// Registers a graph user that notes everything in `probe`.
    pub fn probing(probe: &'static Probe, filter: Filter) -> Result<Self, Error> {
        Self::register(graph_entry, graph_return, filter, probe.word())
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let _ = fgraph::unregister_ftrace_graph(self.0);
    }
}

/// Overwrites every register that a callback may overwrite, so that a trampoline that forgot one is caught.
#[inline(always)]
pub fn clobber_scratch() {
    #[cfg(target_arch = "aarch64")]
    // SAFETY: only writes registers that are declared.
    unsafe {
        core::arch::asm!(
            "mov x0, #-1", "mov x1, #-2", "mov x2, #-3", "mov x3, #-4", "mov x4, #-5", "mov x5, #-6",
            "mov x6, #-7", "mov x7, #-8", "mov x8, #-9", "mov x9, #-10", "mov x10, #-11", "mov x11, #-12",
            "mov x12, #-13", "mov x13, #-14", "mov x14, #-15", "mov x15, #-16", "mov x16, #-17",
            "mov x17, #-18", "mov x18, #-19",
            out("x0") _, out("x1") _, out("x2") _, out("x3") _, out("x4") _, out("x5") _, out("x6") _,
            out("x7") _, out("x8") _, out("x9") _, out("x10") _, out("x11") _, out("x12") _, out("x13") _,
            out("x14") _, out("x15") _, out("x16") _, out("x17") _, out("x18") _,
            options(nomem, nostack)
        );
    }
    #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!(
            "movi v0.16b, #0xa0", "movi v1.16b, #0xa1", "movi v2.16b, #0xa2", "movi v3.16b, #0xa3",
            "movi v4.16b, #0xa4", "movi v5.16b, #0xa5", "movi v6.16b, #0xa6", "movi v7.16b, #0xa7",
            "movi v16.16b, #0xb0", "movi v17.16b, #0xb1", "movi v18.16b, #0xb2", "movi v19.16b, #0xb3",
            "movi v20.16b, #0xb4", "movi v21.16b, #0xb5", "movi v22.16b, #0xb6", "movi v23.16b, #0xb7",
            "movi v24.16b, #0xb8", "movi v25.16b, #0xb9", "movi v26.16b, #0xba", "movi v27.16b, #0xbb",
            "movi v28.16b, #0xbc", "movi v29.16b, #0xbd", "movi v30.16b, #0xbe", "movi v31.16b, #0xbf",
            out("v0") _, out("v1") _, out("v2") _, out("v3") _, out("v4") _, out("v5") _, out("v6") _,
            out("v7") _, out("v16") _, out("v17") _, out("v18") _, out("v19") _, out("v20") _,
            out("v21") _, out("v22") _, out("v23") _, out("v24") _, out("v25") _, out("v26") _,
            out("v27") _, out("v28") _, out("v29") _, out("v30") _, out("v31") _,
            options(nomem, nostack)
        );
    }
    #[cfg(target_arch = "x86_64")]
    // SAFETY: only writes registers that are declared.
    unsafe {
        core::arch::asm!(
            "mov rax, -1", "mov rcx, -2", "mov rdx, -3", "mov rsi, -4", "mov rdi, -5", "mov r8, -6",
            "mov r9, -7", "mov r10, -8", "mov r11, -9",
            out("rax") _, out("rcx") _, out("rdx") _, out("rsi") _, out("rdi") _, out("r8") _, out("r9") _,
            out("r10") _, out("r11") _,
            options(nomem, nostack)
        );
    }
}

#[inline(always)]
fn arguments(fregs: &FtraceRegs) -> [usize; 6] {
    core::array::from_fn(|n| fregs.argument(n).unwrap_or(0))
}

/// A user of entries that notes them.
#[unsafe(link_section = ".text.notrace")]
pub fn note_entry(ip: FuncAddr, parent_ip: RetAddr, ops: &FtraceOps, fregs: &mut FtraceRegs) {
    let probe = Probe::of(ops.private());
    probe.entries.fetch_add(1, Relaxed);
    let pid = machine::current().pid;
    let (func, parent, values) = (ip.get(), parent_ip.get(), arguments(fregs));
    probe.note(Seen { func, parent, values, pid, depth: 0, is_return: false });
    clobber_scratch();
}

/// A graph user that notes entries, and what it must see again at the return.
#[unsafe(link_section = ".text.notrace")]
fn graph_entry(call: &mut EntryCall<'_, FtraceRegs>, ops: &FgraphOps) -> Want {
    let probe = Probe::of(ops.private());
    let (func, pid) = (call.func().get(), machine::current().pid);
    let Some(data) = call.reserve(2) else { return Want::Nothing };
    data[0].store(func, Relaxed);
    data[1].store(pid as usize, Relaxed);
    probe.entries.fetch_add(1, Relaxed);
    if crate::context::level() != crate::context::Level::Task {
        probe.interrupts.fetch_add(1, Relaxed);
    }
    let (parent, values) = (call.ret_addr().get(), arguments(call.fregs()));
    probe.note(Seen { func, parent, values, pid, depth: call.depth(), is_return: false });
    clobber_scratch();
    Want::Return
}

/// The other end of [`graph_entry`].
#[unsafe(link_section = ".text.notrace")]
fn graph_return(call: &mut ReturnCall<'_, FtraceRegs>, ops: &FgraphOps) {
    let probe = Probe::of(ops.private());
    let (func, pid) = (call.func().get(), machine::current().pid);
    let noted = call.data().map(|data| [data[0].load(Relaxed), data[1].load(Relaxed)]);
    if noted != Some([func, pid as usize]) {
        probe.mismatches.fetch_add(1, Relaxed);
    }
    probe.returns.fetch_add(1, Relaxed);
    let [first, second] = call.fregs().return_values();
    let values = [first, second, 0, 0, 0, 0];
    probe.note(Seen {
        func,
        parent: call.ret_addr().get(),
        values,
        pid,
        depth: call.depth(),
        is_return: true,
    });
    clobber_scratch();
}
