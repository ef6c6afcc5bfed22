//! The table of patch sites: the compiler's addresses, sorted, and one word of state for each.
//!
//! It is built once, before tracing, from memory the embedder gives, and never moves again; so lookups need no lock and work
//! from traps. State words are written by the control side under its lock, and read anywhere.

use core::fmt;
use core::ops::Range;

use static_assertions::const_assert_eq;

use crate::addr::{FuncAddr, SiteAddr};
use crate::machine::{Code, Decoded, Hooking, Layout, Layouts, MAX_CODE, Machine, Window};
use crate::platform::Platform;
use crate::sync::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, interrupt_point};
use crate::users::{ALL_SLOTS, Mask, SLOTS};

/// What a site's function needs, and so which trampoline its sled calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Flavor {
    /// Not traced.
    Off = 0,
    /// The args trampoline.
    Args = 1,
    /// The regs trampoline.
    Regs = 2,
    /// A user's own trampoline, straight from the sled ([`Ops::direct`](crate::Ops::direct)).
    Direct = 3,
}

impl Flavor {
    const fn from_bits(bits: u64) -> Self {
        match bits & 3 {
            1 => Self::Args,
            2 => Self::Regs,
            3 => Self::Direct,
            _ => Self::Off,
        }
    }
}

const TARGET_SHIFT: u32 = 2;
const NOTRACE: u64 = 1 << 4;
const TOUCHED: u64 = 1 << 5;
const KEPT_SHIFT: u32 = 6;
const LAYOUT_SHIFT: u32 = 8;
const LAYOUT_BITS: u32 = 8;
const INCLUDE_SHIFT: u32 = LAYOUT_SHIFT + LAYOUT_BITS;
const EXCLUDE_SHIFT: u32 = INCLUDE_SHIFT + SLOTS as u32;

const_assert_eq!(EXCLUDE_SHIFT + SLOTS as u32, u64::BITS);

/// What the tracer records of a function's calls, beside their times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kept {
    /// More than the trampolines record by themselves, or nobody has said yet.
    More = 0,
    /// One return register.
    Value = 1,
    /// Nothing.
    Nothing = 2,
}

impl Kept {
    const fn from_bits(bits: u64) -> Self {
        match bits & 3 {
            1 => Self::Value,
            2 => Self::Nothing,
            _ => Self::More,
        }
    }
}

/// The bits of a state word's lowest byte that say what is kept.
#[cfg(feature = "trampolines")]
pub(crate) const KEPT_NOTHING: u8 = (Kept::Nothing as u8) << KEPT_SHIFT;
#[cfg(feature = "trampolines")]
pub(crate) const KEPT_VALUE: u8 = (Kept::Value as u8) << KEPT_SHIFT;

/// The state word of a site, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    /// What the text does.
    pub(crate) current: Flavor,
    /// What it will do when the update that is under way is done; the same as `current` when none is.
    pub(crate) target: Flavor,
    /// The site must not be patched.
    pub(crate) notrace: bool,
    /// The site has been patched since the start.
    pub(crate) touched: bool,
    /// What the function_graph tracer records, for the trampolines that do it.
    pub(crate) kept: Kept,
    pub(crate) layout: Layout,
    /// Users whose set of functions has this one.
    pub(crate) include: Mask,
    /// Users that leave this one out even so.
    pub(crate) exclude: Mask,
}

impl State {
    const fn encode(self) -> u64 {
        self.current as u64
            | (self.target as u64) << TARGET_SHIFT
            | if self.notrace { NOTRACE } else { 0 }
            | if self.touched { TOUCHED } else { 0 }
            | (self.kept as u64) << KEPT_SHIFT
            | (self.layout.0 as u64) << LAYOUT_SHIFT
            | ((self.include & ALL_SLOTS) as u64) << INCLUDE_SHIFT
            | (self.exclude as u64) << EXCLUDE_SHIFT
    }

    #[inline]
    const fn decode(word: u64) -> Self {
        Self {
            current: Flavor::from_bits(word),
            target: Flavor::from_bits(word >> TARGET_SHIFT),
            notrace: word & NOTRACE != 0,
            touched: word & TOUCHED != 0,
            kept: Kept::from_bits(word >> KEPT_SHIFT),
            layout: Layout((word >> LAYOUT_SHIFT) as u8),
            include: (word >> INCLUDE_SHIFT) as Mask & ALL_SLOTS,
            exclude: (word >> EXCLUDE_SHIFT) as Mask & ALL_SLOTS,
        }
    }

    /// The users that want this function; `all` are those that want everything.
    #[inline]
    pub(crate) const fn wanted_by(self, all: Mask) -> Mask {
        (self.include | all) & !self.exclude
    }
}

/// Where an image's sites are: what the linker fragment placed, or what an embedder collected in another way.
#[derive(Debug)]
pub struct SiteSource {
    /// The compiler's table: one address per instrumented function, in any order. It is sorted in place.
    pub entries: &'static mut [usize],
    /// One word for each entry, for the engine.
    pub states: &'static mut [u64],
    /// The kernel's text; entries outside are left out.
    pub text: Range<usize>,
    /// The part of the text that must not be traced: this crate's own functions, and what they call.
    pub notrace: Range<usize>,
    /// Which sites the compiler was told to leave.
    pub layouts: Layouts,
    /// How returns are to be caught.
    pub hooking: Hooking,
}

/// The state word of one site, where it stands for as long as the site does.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct StateWord(AtomicU64);

impl StateWord {
    #[inline]
    pub(crate) fn load(&self) -> State {
        State::decode(self.0.load(Ordering::Relaxed))
    }
}

/// What was found in a site table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SiteReport {
    /// Sites that can be traced.
    pub sites: usize,
    /// Sites in the notrace range.
    pub notrace: usize,
    /// Entries of 0 or all ones, which linkers leave for functions they dropped.
    pub empty: usize,
    /// Entries that stood there more than once.
    pub duplicates: usize,
    /// Entries that do not point into the text, or not to where an instruction can start.
    pub outside: usize,
    /// Sites of functions that begin with a landing pad. With one of them, all are hooked in a way that lands on none.
    pub landing_pads: usize,
    /// Whether the entries had to be sorted.
    pub unsorted: bool,
}

/// A site table that cannot be traced with. Nothing was written to any text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SiteError {
    /// There is no site.
    NoSites {
        /// What stood in the table.
        report: SiteReport,
    },
    /// More entries than state words.
    NoRoom {
        /// Entries.
        entries: usize,
        /// State words.
        states: usize,
    },
    /// The notrace range is empty or not within the text: the tracer would trace itself.
    NoNotraceRange {
        /// Its start.
        start: usize,
        /// Its end.
        end: usize,
    },
    /// A site's bytes are not the sled of a compiler.
    UnexpectedBytes {
        /// The site.
        site: SiteAddr,
        /// What this machine expects there.
        expected: &'static str,
        /// What was found.
        found: Code,
    },
    /// A site's bytes are a compiler's sled, but [`Layouts::Mixed`] knows no function there whose it would be.
    NoFunction {
        /// What the table's entry points to.
        site: SiteAddr,
    },
    /// The table is said to have plain sites, and each of the first ones is also a prefixed one: patching would change padding that
    /// nobody runs.
    LooksPrefixed {
        /// What the first entry points to.
        site: SiteAddr,
    },
    /// A site's bytes cannot be read.
    Unreadable {
        /// The site.
        site: SiteAddr,
    },
    /// Two sites share bytes: patching one would destroy the other.
    Overlapping {
        /// The lower one.
        site: SiteAddr,
        /// The other.
        other: SiteAddr,
    },
}

impl SiteError {
    /// The site that is to blame, if it is one, so that the message can be given its function's name.
    pub fn site(&self) -> Option<SiteAddr> {
        match self {
            Self::UnexpectedBytes { site, .. }
            | Self::NoFunction { site }
            | Self::LooksPrefixed { site }
            | Self::Unreadable { site }
            | Self::Overlapping { site, .. } => Some(*site),
            _ => None,
        }
    }
}

impl fmt::Display for SiteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSites { report } => {
                f.write_str("there is no site to trace: ")?;
                if report.empty + report.outside + report.notrace > 0 {
                    write!(
                        f,
                        "the table has {} empty entries, {} outside the text, {} in the notrace range",
                        report.empty, report.outside, report.notrace
                    )
                } else {
                    f.write_str(
                        "the table is empty (built without -Zpatchable-function-entry, or __patchable_function_entries \
                         was dropped by the linker: include the linker fragment)",
                    )
                }
            }
            Self::NoRoom { entries, states } => {
                write!(f, "{entries} sites but only {states} words for their state")
            }
            Self::NoNotraceRange { start, end } => write!(
                f,
                "the notrace range {start:#x}..{end:#x} is empty or not in the text: include the linker fragment, or the \
                 tracer would trace itself"
            ),
            Self::UnexpectedBytes { site, expected, found } => {
                write!(f, "unexpected bytes at site {site}: expected {expected}, found {found}")
            }
            Self::NoFunction { site } => write!(
                f,
                "no function is known to start at site {site} or behind NOPs there: are the symbols in the image?"
            ),
            Self::LooksPrefixed { site } => write!(
                f,
                "the sites from {site} on look as if the compiler had put NOPs before functions too: say so by `Layouts`"
            ),
            Self::Unreadable { site } => write!(f, "the bytes at site {site} cannot be read"),
            Self::Overlapping { site, other } => write!(f, "the sites {site} and {other} share bytes"),
        }
    }
}

impl core::error::Error for SiteError {}

/// The table, once built.
#[derive(Debug)]
pub(crate) struct SiteTable {
    entries: AtomicPtr<usize>,
    states: AtomicPtr<StateWord>,
    /// Whether functions may be entered at landing pads only.
    guarded: AtomicBool,
    /// The number of the first function: those of the others follow.
    first_number: AtomicU32,
    /// 0 until built; then both pointers lead to this many elements that live for ever.
    len: AtomicUsize,
}

impl SiteTable {
    pub(crate) const fn new() -> Self {
        Self {
            entries: AtomicPtr::new(core::ptr::null_mut()),
            states: AtomicPtr::new(core::ptr::null_mut()),
            guarded: AtomicBool::new(false),
            first_number: AtomicU32::new(0),
            len: AtomicUsize::new(0),
        }
    }

    /// Sorts, checks and publishes the kernel's table. Writes no text. Called once; the caller sees to that.
    pub(crate) fn build<M: Machine, P: Platform>(&self, source: SiteSource) -> Result<SiteReport, SiteError> {
        let (text, notrace) = (&source.text, &source.notrace);
        if notrace.is_empty() || notrace.start < text.start || notrace.end > text.end {
            return Err(SiteError::NoNotraceRange { start: notrace.start, end: notrace.end });
        }
        self.build_module::<M, P>(source, false)
    }

    /// The same for a module, which need not have a notrace range; `guarded` is whether the kernel has landing pads. The table
    /// is empty before; the caller sees to that.
    pub(crate) fn build_module<M: Machine, P: Platform>(
        &self,
        source: SiteSource,
        guarded: bool,
    ) -> Result<SiteReport, SiteError> {
        let SiteSource { entries, states, text, notrace, layouts, hooking } = source;
        let mut report = SiteReport { unsorted: !entries.is_sorted(), ..SiteReport::default() };
        if report.unsorted {
            entries.sort_unstable();
        }
        let mut kept = 0;
        for i in 0..entries.len() {
            let entry = entries[i];
            if entry == 0 || entry == usize::MAX {
                report.empty += 1;
            } else if !is_code::<M>(entry, &text) {
                report.outside += 1;
            } else if kept > 0 && entries[kept - 1] == entry {
                report.duplicates += 1;
            } else {
                entries[kept] = entry;
                kept += 1;
            }
        }
        let entries = &mut entries[..kept];
        if states.len() < kept {
            return Err(SiteError::NoRoom { entries: kept, states: states.len() });
        }

        // `entries` become the sites' addresses, still in ascending order: what stands between two entries belongs to the first.
        let (mut last, mut end) = (SiteAddr::new(0), 0);
        for (index, word) in states[..kept].iter_mut().enumerate() {
            let entry = entries[index];
            let forbidden = notrace.contains(&entry);
            let found = if forbidden {
                // Nobody will write there, so nobody need understand it.
                Decoded { layout: Layout(0), offset: 0 }
            } else {
                decode::<M, P>(entry, &text, layouts)?
            };
            let site = SiteAddr::new(entry + found.offset);
            if !forbidden {
                let span = M::span(site, found.layout);
                if span.start.min(entry) < end {
                    return Err(SiteError::Overlapping { site: last, other: site });
                }
                (last, end) = (site, span.end);
                report.sites += 1;
                report.landing_pads += usize::from(M::has_pad(found.layout));
            } else {
                report.notrace += 1;
            }
            entries[index] = site.get();
            *word = State {
                current: Flavor::Off,
                target: Flavor::Off,
                notrace: forbidden,
                touched: false,
                kept: Kept::More,
                layout: found.layout,
                include: 0,
                exclude: 0,
            }
            .encode();
        }
        if report.sites == 0 {
            return Err(SiteError::NoSites { report });
        }
        if matches!(layouts, Layouts::Plain) {
            let mut sample = (entries.iter().zip(states.iter()))
                .filter(|(_, word)| !State::decode(**word).notrace)
                .map(|(entry, _)| *entry)
                .take(SAMPLE)
                .peekable();
            let first = sample.peek().copied();
            let (mut seen, mut prefixed) = (0, 0);
            for entry in sample {
                seen += 1;
                prefixed += usize::from(decode::<M, P>(entry, &text, Layouts::Prefixed).is_ok());
            }
            if let Some(site) = first
                && seen >= SAMPLE / 2
                && prefixed == seen
            {
                return Err(SiteError::LooksPrefixed { site: SiteAddr::new(site) });
            }
        }
        let guarded = guarded || report.landing_pads > 0;
        for word in &mut states[..kept] {
            let state = State::decode(*word);
            let layout = if state.notrace { state.layout } else { M::hooked(state.layout, hooking, guarded) };
            *word = State { layout, ..state }.encode();
        }
        self.guarded.store(guarded, Ordering::Relaxed);

        self.entries.store(entries.as_mut_ptr(), Ordering::Relaxed);
        self.states.store(states.as_mut_ptr().cast(), Ordering::Relaxed);
        self.len.store(kept, Ordering::Release);
        Ok(report)
    }

    /// Empties the table of a module that is gone. Nobody looks at it any more; the caller sees to that.
    pub(crate) fn forget(&self) {
        self.len.store(0, Ordering::Release);
        self.entries.store(core::ptr::null_mut(), Ordering::Relaxed);
        self.states.store(core::ptr::null_mut(), Ordering::Relaxed);
    }

    /// The sites, sorted; empty until built.
    #[inline]
    fn entries(&self) -> &[usize] {
        let len = self.len.load(Ordering::Acquire);
        if len == 0 {
            return &[];
        }
        // SAFETY: `build` stored a pointer to `len` elements out of a `&'static mut [usize]` before it released `len`,
        // and nothing writes them any more.
        unsafe { core::slice::from_raw_parts(self.entries.load(Ordering::Relaxed), len) }
    }

    /// The words of all sites.
    #[inline]
    pub(crate) fn states(&self) -> &[StateWord] {
        let len = self.len.load(Ordering::Acquire);
        if len == 0 {
            return &[];
        }
        // SAFETY: as in `entries`; `StateWord` has the layout of `u64`, and the words are accessed as atomics only from
        // `build`'s release on.
        unsafe { core::slice::from_raw_parts(self.states.load(Ordering::Relaxed), len) }
    }

    /// The number that the first function has in records.
    pub(crate) fn first_number(&self) -> u32 {
        self.first_number.load(Ordering::Relaxed)
    }

    /// Gives the functions their numbers, before the table is published.
    pub(crate) fn set_first_number(&self, number: u32) {
        self.first_number.store(number, Ordering::Relaxed);
    }

    /// Which of the states is at an address.
    #[inline]
    pub(crate) fn index_of_state(&self, word: *const StateWord) -> Option<usize> {
        let bytes = word.addr().wrapping_sub(self.states.load(Ordering::Relaxed).addr());
        let index = bytes / size_of::<StateWord>();
        (index < self.len.load(Ordering::Acquire)).then_some(index)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries().len()
    }

    pub(crate) fn addr(&self, index: usize) -> SiteAddr {
        SiteAddr::new(self.entries()[index])
    }

    #[inline]
    pub(crate) fn state(&self, index: usize) -> State {
        self.states()[index].load()
    }

    /// Whether this is the site of a function that can be traced.
    #[inline]
    pub(crate) fn is_func<M: Machine>(&self, index: usize, func: FuncAddr) -> bool {
        let Some(site) = self.entries().get(index) else { return false };
        let state = self.state(index);
        !state.notrace && M::func(SiteAddr::new(*site), state.layout) == func
    }

    /// Where the state word is, for the site's own text.
    pub(crate) fn state_addr(&self, index: usize) -> usize {
        (&raw const self.states()[index]).expose_provenance()
    }

    /// Whether functions may be entered at landing pads only.
    pub(crate) fn is_guarded(&self) -> bool {
        self.guarded.load(Ordering::Relaxed)
    }

    /// Control side only.
    pub(crate) fn set_state(&self, index: usize, state: State) {
        self.states()[index].0.store(state.encode(), Ordering::Release);
        interrupt_point();
    }

    /// The site at exactly this address.
    #[inline]
    pub(crate) fn find(&self, site: SiteAddr) -> Option<usize> {
        self.entries().binary_search(&site.get()).ok()
    }

    /// The last site before an address, and the first from there on.
    pub(crate) fn around(&self, site: SiteAddr) -> impl Iterator<Item = usize> + use<> {
        let len = self.len();
        let at = self.entries().partition_point(|entry| *entry < site.get());
        at.saturating_sub(1)..(at + 1).min(len)
    }

    /// Every site that may be patched: its index, its address, its function and its state.
    pub(crate) fn iter<M: Machine>(&self) -> impl Iterator<Item = (usize, SiteAddr, FuncAddr, State)> {
        (0..self.len()).filter_map(|index| {
            let state = self.state(index);
            let site = self.addr(index);
            (!state.notrace).then(|| (index, site, M::func(site, state.layout), state))
        })
    }
}

fn is_code<M: Machine>(addr: usize, text: &Range<usize>) -> bool {
    let end = addr.checked_add(M::MIN_SITE);
    addr.is_multiple_of(M::ALIGN) && text.start <= addr && end.is_some_and(|end| end <= text.end)
}

/// Sites that are looked at twice, since one alone may have an aligned loop behind its sled.
const SAMPLE: usize = 8;

/// More than any machine looks at.
const WINDOW: usize = 32;

/// Recognises the site that a table's entry leads to, from what the compiler left there.
fn decode<M: Machine, P: Platform>(
    entry: usize,
    text: &Range<usize>,
    layouts: Layouts,
) -> Result<Decoded, SiteError> {
    let site = SiteAddr::new(entry);
    let (mut before, mut at) = ([0; WINDOW], [0; WINDOW]);
    let before = &mut before[..M::PAD];
    let at = &mut at[..M::window(layouts).min(text.end - entry)];
    // Before the first function of the text there may be nothing to read: then there is no landing pad.
    if P::read(entry.wrapping_sub(M::PAD), before).is_err() {
        before.fill(0);
    }
    P::read(entry, at).map_err(|_| SiteError::Unreadable { site })?;
    let window = Window { addr: entry, before, at };
    let any =
        || [Layouts::Plain, Layouts::Prefixed].into_iter().any(|only| M::decode(window, only).is_some());
    match (M::decode(window, layouts), layouts) {
        (Some(found), _) => Ok(found),
        (None, Layouts::Mixed(_)) if any() => Err(SiteError::NoFunction { site }),
        (None, _) => Err(SiteError::UnexpectedBytes {
            site,
            expected: M::EXPECTED,
            found: Code::new(&at[..at.len().min(MAX_CODE)]),
        }),
    }
}

/// Reads as many bytes of a site's text as `expected` has.
pub(crate) fn read_site<P: Platform>(site: SiteAddr, expected: Code) -> Code {
    let mut bytes = [0; MAX_CODE];
    let bytes = &mut bytes[..expected.as_slice().len()];
    match P::read(site.get(), bytes) {
        Ok(()) => Code::new(bytes),
        Err(_) => Code::new(&[]),
    }
}
