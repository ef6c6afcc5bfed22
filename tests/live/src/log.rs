//! What callbacks were told, in the order in which they were told it. One log for the process, which runs one case.
//!
//! Callbacks of every thread and every signal handler write side by side: each takes a slot of its own.

use std::cell::UnsafeCell;
use std::sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use fgraph::{EntryCall, FgraphOps, FtraceOps, FtraceRegs, FuncAddr, Regs, RetAddr, ReturnCall, Saved, Want};

use crate::machine;

/// Which callback was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Of a user of entries.
    Op,
    /// Of a graph user, at the entry.
    Entry,
    /// Of a graph user, at the return.
    Return,
}

/// What it was told.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// Which it was.
    pub kind: Kind,
    /// The function.
    pub func: FuncAddr,
    /// `parent_ip`, or where the call returns to.
    pub parent: RetAddr,
    /// The first arguments at an entry, as many as travel in registers on every machine; the results at a return.
    pub values: [usize; 6],
    /// Hooked calls around this one; 0 for [`Kind::Op`].
    pub depth: u32,
    /// Which trampoline it was.
    pub saved: Saved,
    /// What the block says of the stack pointer.
    pub sp: usize,
    /// Every general register, by its number.
    pub general: [usize; machine::GENERAL],
}

const SLOTS: usize = 4096;

struct Slot {
    written: AtomicBool,
    event: UnsafeCell<Option<Event>>,
}

// SAFETY: a slot is written once, by whoever got its number, before `written`; and read only after.
unsafe impl Sync for Slot {}

static LOG: [Slot; SLOTS] =
    [const { Slot { written: AtomicBool::new(false), event: UnsafeCell::new(None) } }; SLOTS];
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Events that have been taken.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

#[inline(always)]
fn write(event: Event) {
    if let Some(slot) = LOG.get(COUNT.fetch_add(1, Relaxed)) {
        // SAFETY: the number is ours alone, and nobody reads the slot yet.
        unsafe { *slot.event.get() = Some(event) };
        slot.written.store(true, Release);
    }
}

/// The events since the last call.
pub fn take() -> Vec<Event> {
    let end = COUNT.load(Relaxed);
    assert!(end <= SLOTS, "{end} events, and room for {SLOTS}");
    let start = TAKEN.swap(end, Relaxed);
    LOG[start..end]
        .iter()
        .map(|slot| {
            assert!(slot.written.load(Acquire), "an event that is still being written");
            // SAFETY: written, and never again.
            unsafe { *slot.event.get() }.expect("a slot that was written")
        })
        .collect()
}

#[inline(always)]
fn event(kind: Kind, func: FuncAddr, parent: RetAddr, depth: u32, fregs: &FtraceRegs) -> Event {
    let mut values = [0; 6];
    if kind == Kind::Return {
        let [first, second] = fregs.return_values();
        (values[0], values[1]) = (first, second);
    } else {
        let mut n = 0;
        while n < values.len() {
            values[n] = fregs.argument(n).unwrap_or(0);
            n += 1;
        }
    }
    let general = machine::general_of(fregs);
    Event { kind, func, parent, values, depth, saved: fregs.saved(), sp: fregs.sp(), general }
}

/// A user of entries that notes them.
#[unsafe(link_section = ".text.notrace")]
pub fn op(ip: FuncAddr, parent_ip: RetAddr, _ops: &FtraceOps, fregs: &mut FtraceRegs) {
    write(event(Kind::Op, ip, parent_ip, 0, fregs));
    machine::clobber();
}

/// A graph user that notes entries and wants every return.
#[unsafe(link_section = ".text.notrace")]
pub fn entry(call: &mut EntryCall<'_, FtraceRegs>, _ops: &FgraphOps) -> Want {
    write(event(Kind::Entry, call.func(), call.ret_addr(), call.depth(), call.fregs()));
    machine::clobber();
    Want::Return
}

/// Its other half.
#[unsafe(link_section = ".text.notrace")]
pub fn ret(call: &mut ReturnCall<'_, FtraceRegs>, _ops: &FgraphOps) {
    write(event(Kind::Return, call.func(), call.ret_addr(), call.depth(), call.fregs()));
    machine::clobber();
}

/// A graph user that counts, and nothing else: of any number of calls.
#[unsafe(link_section = ".text.notrace")]
pub fn count_entry(_call: &mut EntryCall<'_, FtraceRegs>, _ops: &FgraphOps) -> Want {
    ENTRIES.fetch_add(1, Relaxed);
    machine::clobber();
    Want::Return
}

/// Its other half.
#[unsafe(link_section = ".text.notrace")]
pub fn count_return(_call: &mut ReturnCall<'_, FtraceRegs>, _ops: &FgraphOps) {
    RETURNS.fetch_add(1, Relaxed);
    machine::clobber();
}

/// A graph user that wants nothing, but only after it has reserved something.
#[unsafe(link_section = ".text.notrace")]
pub fn no_entry(call: &mut EntryCall<'_, FtraceRegs>, _ops: &FgraphOps) -> Want {
    if let Some(data) = call.reserve(5) {
        data[0].store(1, Relaxed);
    }
    machine::clobber();
    Want::Nothing
}

/// A user of entries that counts.
#[unsafe(link_section = ".text.notrace")]
pub fn count_op(_ip: FuncAddr, _parent_ip: RetAddr, _ops: &FtraceOps, _fregs: &mut FtraceRegs) {
    OPS.fetch_add(1, Relaxed);
    machine::clobber();
}

/// What the counting users have counted.
pub static ENTRIES: AtomicUsize = AtomicUsize::new(0);
/// As above.
pub static RETURNS: AtomicUsize = AtomicUsize::new(0);
/// As above.
pub static OPS: AtomicUsize = AtomicUsize::new(0);
