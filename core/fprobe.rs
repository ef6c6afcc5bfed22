//! `fprobe`: handlers at the entry and the exit of many functions.
//!
//! A layer over the engine. All probes of a [`Fprobes`] share two users: those with an exit handler a graph user, the others a user
//! of entries, so that they cost no shadow frame. Each user's filter is what its registered probes want, function by
//! function; when the last probe goes, so does the user, and its filter with it: an empty filter is never left behind.
//!
//! # Who runs here
//! The control side, under the lock, in task context. Callbacks, in any context, with preemption off and inside a section of
//! `quiesce`: a probe that a callback found is there until the callback ends, because [`Fprobes::unregister`] waits for it.

use spin::Mutex;

use crate::addr::{FuncAddr, RetAddr};
use crate::bits::ones;
use crate::filter::Filter;
use crate::graph::{EntryCall, GraphOps, ReturnCall, Want};
use crate::ops::{Ops, OpsFlags};
use crate::regs::Regs;
use crate::sync::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, interrupt_point};

use crate::shadow::MAX_DATA_WORDS;

pub use error::FprobeError;

/// The most probes of one [`Fprobes`].
pub const MAX_FPROBES: usize = 64;

/// The most words of data that one probe may have for a call. Two such probes on one function still have room.
pub const MAX_FPROBE_WORDS: usize = MAX_DATA_WORDS / 2 - 1;

/// What an entry handler says of the exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Arm {
    /// Call the exit handler when this call returns.
    Exit,
    /// Do not; this is not a miss.
    Nothing,
}

/// An entry handler. Preemption is off; must not sleep.
pub type FprobeEntryFunc<R> = fn(probe: &Fprobe<R>, hit: &mut FprobeHit<'_, R>) -> Arm;

/// An exit handler. Preemption is off; must not sleep.
pub type FprobeExitFunc<R> = fn(probe: &Fprobe<R>, hit: &mut FprobeHit<'_, R>);

/// One entry or exit, as a handler sees it.
#[derive(Debug)]
pub struct FprobeHit<'a, R: Regs> {
    ip: FuncAddr,
    parent_ip: RetAddr,
    data: &'a [AtomicUsize],
    fregs: &'a mut R,
}

impl<'a, R: Regs> FprobeHit<'a, R> {
    /// The function.
    #[inline]
    pub fn ip(&self) -> FuncAddr {
        self.ip
    }

    /// Where it returns to.
    #[inline]
    pub fn parent_ip(&self) -> RetAddr {
        self.parent_ip
    }

    /// The probe's own words for this call: zero at the entry, at the exit as the entry handler left them. Empty for a probe that
    /// has no exit handler or asked for none.
    #[inline]
    pub fn data(&self) -> &'a [AtomicUsize] {
        self.data
    }

    /// The registers; at the exit their ip is where the function returns to.
    #[inline]
    pub fn fregs(&self) -> &R {
        self.fregs
    }

    /// The registers, to be changed.
    #[inline]
    pub fn fregs_mut(&mut self) -> &mut R {
        self.fregs
    }
}

/// One probe. Kept in a `static` by whoever registers it.
#[derive(Debug)]
pub struct Fprobe<R: Regs> {
    entry: Option<FprobeEntryFunc<R>>,
    exit: Option<FprobeExitFunc<R>>,
    funcs: &'static [FuncAddr],
    data_words: usize,
    private: usize,
    missed: AtomicU64,
    disabled: AtomicBool,
}

impl<R: Regs> Fprobe<R> {
    const fn new(
        funcs: &'static [FuncAddr],
        entry: Option<FprobeEntryFunc<R>>,
        exit: Option<FprobeExitFunc<R>>,
    ) -> Self {
        let (missed, disabled) = (AtomicU64::new(0), AtomicBool::new(false));
        Self { entry, exit, funcs, data_words: 0, private: 0, missed, disabled }
    }

    /// A probe of the entries of `funcs`, which are in ascending order. What its handler says of the exit does not matter.
    pub const fn entry(funcs: &'static [FuncAddr], handler: FprobeEntryFunc<R>) -> Self {
        Self::new(funcs, Some(handler), None)
    }

    /// A probe of the exits.
    pub const fn exit(funcs: &'static [FuncAddr], handler: FprobeExitFunc<R>) -> Self {
        Self::new(funcs, None, Some(handler))
    }

    /// A probe of both.
    pub const fn both(
        funcs: &'static [FuncAddr],
        entry: FprobeEntryFunc<R>,
        exit: FprobeExitFunc<R>,
    ) -> Self {
        Self::new(funcs, Some(entry), Some(exit))
    }

    /// The same, with so many words from each entry to its exit; at most [`MAX_FPROBE_WORDS`].
    pub const fn with_data(mut self, words: usize) -> Self {
        self.data_words = words;
        self
    }

    /// The same, with a word of the user's own.
    pub const fn with_private(mut self, private: usize) -> Self {
        self.private = private;
        self
    }

    /// The user's own word.
    #[inline]
    pub fn private(&self) -> usize {
        self.private
    }

    /// The functions.
    pub fn funcs(&self) -> &'static [FuncAddr] {
        self.funcs
    }

    /// How many calls were missed for want of room, entry and exit: the shadow stack had none for the data, or probes of the same function
    /// together wanted more than [`MAX_DATA_WORDS`](crate::MAX_DATA_WORDS). Calls that had no frame at all are counted by their task.
    pub fn nmissed(&self) -> u64 {
        self.missed.load(Ordering::Relaxed)
    }

    /// Keeps the handlers from being called, without changing any text, until [`enable`](Self::enable). Any context.
    pub fn disable(&self) {
        self.disabled.store(true, Ordering::Relaxed);
    }

    /// Undoes [`disable`](Self::disable). Of calls that were entered meanwhile the exits are not told.
    pub fn enable(&self) {
        self.disabled.store(false, Ordering::Relaxed);
    }

    /// Whether handlers are kept from being called.
    #[inline]
    pub fn is_disabled(&self) -> bool {
        self.disabled.load(Ordering::Relaxed)
    }

    #[inline]
    fn wants(&self, func: FuncAddr) -> bool {
        self.funcs.binary_search(&func).is_ok()
    }

    fn kind(&self) -> Kind {
        if self.exit.is_some() { Kind::Exit } else { Kind::Entry }
    }

    #[cold]
    fn miss(&self) {
        self.missed.fetch_add(1, Ordering::Relaxed);
    }
}

/// Which of the two users a probe belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Entry,
    Exit,
}

/// A probe's place.
#[derive(Debug)]
struct Place<R: Regs> {
    probe: AtomicPtr<Fprobe<R>>,
    /// Which registration this is, from 1.
    stamp: AtomicUsize,
}

/// Probes that share two users of an engine. Kept in a `static`, and used with one engine only.
#[derive(Debug)]
pub struct Fprobes<R: Regs> {
    /// How often a probe was registered.
    control: Mutex<usize>,
    places: [Place<R>; MAX_FPROBES],
    /// The places of probes without an exit handler, and of those with one.
    masks: [AtomicU64; 2],
    entries: Ops<R>,
    exits: GraphOps<R>,
}

impl<R: Regs> Fprobes<R> {
    /// No probes.
    pub const fn new() -> Self {
        Self {
            control: Mutex::new(0),
            places: [const { Place { probe: AtomicPtr::new(core::ptr::null_mut()), stamp: AtomicUsize::new(0) } };
                MAX_FPROBES],
            masks: [const { AtomicU64::new(0) }; 2],
            entries: Ops::new(at_plain_entry::<R>, OpsFlags::empty(), Filter::NONE),
            exits: GraphOps::new(at_entry::<R>, at_return::<R>, Filter::NONE),
        }
    }

    #[inline]
    fn mask(&self, kind: Kind) -> &AtomicU64 {
        &self.masks[kind as usize]
    }

    /// The probe in a place whose bit was found in a mask, or under the lock.
    #[inline]
    fn probe(&self, place: usize) -> Option<&'static Fprobe<R>> {
        // SAFETY: null, or from a `&'static Fprobe` in `register`.
        unsafe { self.places.get(place)?.probe.load(Ordering::Acquire).as_ref() }
    }

    /// The probes of one kind that want `func`, from one look at who is registered.
    #[inline]
    fn hit(&self, kind: Kind, func: FuncAddr) -> impl Iterator<Item = (usize, &'static Fprobe<R>)> {
        let mask = self.mask(kind).load(Ordering::Acquire);
        interrupt_point();
        ones(mask)
            .filter_map(|place| Some((place, self.probe(place)?)))
            .filter(move |(_, probe)| !probe.is_disabled() && probe.wants(func))
    }

    /// Who took the place with this stamp, if it is still there.
    #[inline]
    fn still(&self, Header { place, stamp, .. }: Header) -> Option<&'static Fprobe<R>> {
        let same = self.places.get(place)?.stamp.load(Ordering::Relaxed) == stamp;
        let there = same && self.mask(Kind::Exit).load(Ordering::Acquire) >> place & 1 == 1;
        self.probe(place).filter(|probe| there && !probe.is_disabled())
    }
}

impl<R: Regs> Default for Fprobes<R> {
    fn default() -> Self {
        Self::new()
    }
}

/// The word before a probe's data in a frame: 63..16 stamp, never 0 | 15..8 words of data | 7..0 place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    place: usize,
    words: usize,
    stamp: usize,
}

impl Header {
    #[inline]
    const fn encode(self) -> usize {
        self.stamp << 16 | self.words << 8 | self.place
    }

    /// `None` behind the last one.
    #[inline]
    const fn decode(word: usize) -> Option<Self> {
        if word == 0 {
            return None;
        }
        Some(Self { place: word & 0xff, words: word >> 8 & 0xff, stamp: word >> 16 })
    }
}

fn at_plain_entry<R: Regs>(ip: FuncAddr, parent_ip: RetAddr, ops: &Ops<R>, fregs: &mut R) {
    // SAFETY: only `Fprobes::new` makes ops with this callback; they never leave it but as its own user, with it as owner.
    let Some(probes) = (unsafe { ops.owner.get::<Fprobes<R>>() }) else { return };
    for (_, probe) in probes.hit(Kind::Entry, ip) {
        if let Some(entry) = probe.entry {
            let _ = entry(probe, &mut FprobeHit { ip, parent_ip, data: &[], fregs: &mut *fregs });
        }
    }
}

fn at_entry<R: Regs>(call: &mut EntryCall<'_, R>, ops: &GraphOps<R>) -> Want {
    // SAFETY: as in `at_plain_entry`.
    let Some(probes) = (unsafe { ops.owner.get::<Fprobes<R>>() }) else { return Want::Nothing };
    let (ip, parent_ip) = (call.func(), call.ret_addr());
    // First who is there and how much they need, since a call has one reservation. The second round goes by what the first one
    // found, whoever was registered in between.
    let (mut here, mut words) = (0, 0);
    for (place, probe) in probes.hit(Kind::Exit, ip) {
        let needed = 1 + probe.data_words;
        if words + needed > MAX_DATA_WORDS {
            probe.miss();
            continue;
        }
        words += needed;
        here |= 1 << place;
    }
    if here == 0 {
        return Want::Nothing;
    }
    let Some(mut free) = call.reserve(words) else {
        ones(here).filter_map(|place| probes.probe(place)).for_each(Fprobe::miss);
        return Want::Nothing;
    };
    let mut want = Want::Nothing;
    for place in ones(here) {
        let Some(probe) = probes.probe(place) else { continue };
        let Some((header, rest)) = free.split_first() else { break };
        let Some((data, rest)) = rest.split_at_checked(probe.data_words) else { break };
        let mut hit = FprobeHit { ip, parent_ip, data, fregs: call.fregs_mut() };
        if probe.entry.is_none_or(|entry| entry(probe, &mut hit) == Arm::Exit) {
            let stamp = probes.places[place].stamp.load(Ordering::Relaxed);
            header.store(Header { place, words: data.len(), stamp }.encode(), Ordering::Relaxed);
            (free, want) = (rest, Want::Return);
        } else {
            // The next one begins here, and finds zeros.
            data.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        }
    }
    want
}

fn at_return<R: Regs>(call: &mut ReturnCall<'_, R>, ops: &GraphOps<R>) {
    // SAFETY: as in `at_plain_entry`.
    let Some(probes) = (unsafe { ops.owner.get::<Fprobes<R>>() }) else { return };
    let (ip, parent_ip) = (call.func(), call.ret_addr());
    let mut rest = call.data().unwrap_or(&[]);
    while let Some((header, behind)) = rest.split_first() {
        let Some(header) = Header::decode(header.load(Ordering::Relaxed)) else { break };
        let Some((data, behind)) = behind.split_at_checked(header.words) else { break };
        rest = behind;
        if let Some(probe) = probes.still(header)
            && let Some(exit) = probe.exit
        {
            exit(probe, &mut FprobeHit { ip, parent_ip, data, fregs: call.fregs_mut() });
        }
    }
}

mod control;
mod error;

#[cfg(test)]
mod bench;
#[cfg(test)]
mod cases;
#[cfg(test)]
mod model;
