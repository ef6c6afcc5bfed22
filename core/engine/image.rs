//! Images of both machines for the tests of the engine: a text with functions and sites, and, written down plainly, what must
//! stand at a site in each state.

use core::cell::Cell;
use core::ops::Range;
use std::vec::Vec;

use super::{Engine, Error};
use crate::addr::{FuncAddr, SiteAddr};
use crate::arch::arm64::patch::Arm64;
use crate::arch::x86_64::patch::X86_64;
use crate::graph::world::Block;
use crate::machine::{Hooking, Layouts, Machine, Pair, Trampolines};
use crate::site::{Flavor, SiteReport, SiteSource};
use crate::testing::kernel::{self, Fake};
use crate::testing::{Random, keep, keep_all};

/// How the sites of an image are built and hooked. A test runs in one style at a time; see [`for_both_machines`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// NOPs at the entry, hooked the classic way; landing pads in some places.
    Plain,
    /// NOPs at the entry and no landing pads, hooked the balanced way where the machine can.
    Balanced,
    /// NOPs before the function too, hooked the balanced way.
    Prefixed,
    /// The same with landing pads in some places.
    Guarded,
}

std::thread_local! {
    static STYLE: Cell<Style> = const { Cell::new(Style::Plain) };
}

/// The style of this thread's images.
pub(crate) fn style() -> Style {
    STYLE.get()
}

/// Runs a test with images of a style.
pub(crate) fn in_style(style: Style, test: fn()) {
    STYLE.set(style);
    test();
    STYLE.set(Style::Plain);
}

fn is_prefixed() -> bool {
    matches!(style(), Style::Prefixed | Style::Guarded)
}

fn is_classic() -> bool {
    matches!(style(), Style::Plain | Style::Guarded)
}

/// What a compiler leaves of a function before its body.
#[derive(Clone, Debug)]
pub(crate) struct Begin {
    pub(crate) prefix: Vec<u8>,
    pad: Vec<u8>,
    pub(crate) sled: Vec<u8>,
}

fn begins(prefixes: &[&[u8]], pads: &[&[u8]], sleds: &[&[u8]]) -> Vec<Begin> {
    let mut all = Vec::new();
    for pad in pads {
        for (number, sled) in sleds.iter().enumerate() {
            let prefix = prefixes[number % prefixes.len()].to_vec();
            all.push(Begin { prefix, pad: pad.to_vec(), sled: sled.to_vec() });
        }
    }
    all
}

/// A machine, with its facts stated once more, without its own code.
pub(crate) trait Target: Machine<Regs: Block> {
    /// What compilers leave, in this style.
    fn begins() -> Vec<Begin>;

    /// Bytes of the sled of a plain site.
    const SLED: usize;

    /// Bytes that are no site.
    const NO_SLEDS: &'static [&'static [u8]];

    /// The longest branch, in bytes, from its own address.
    const REACH: usize;

    /// The prefix and the sled of a function, made ready.
    fn prepared(function: &Function, all: &Trampolines, state: usize) -> (Vec<u8>, Vec<u8>);

    /// The sled of a function, calling a trampoline.
    fn calling(function: &Function, to: usize) -> Vec<u8>;

    /// The sled of a function, jumping to `to`; `None` where it cannot.
    fn jumping(function: &Function, to: usize) -> Option<Vec<u8>>;

    /// Everything that may stand at a site on the way from `old` to `new`.
    fn on_the_way(old: &[u8], new: &[u8]) -> Vec<Vec<u8>>;
}

impl Target for X86_64 {
    fn begins() -> Vec<Begin> {
        const ENDBR: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa];
        const LONG: &[u8] =
            &[0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0x00, 0, 0, 0, 0, 0x0f, 0x1f, 0x44, 0x00, 0x00];
        let pads: &[&[u8]] = if is_classic() { &[ENDBR, &[]] } else { &[&[]] };
        if is_prefixed() {
            return begins(&[&[0x90; 16], LONG], pads, &[&[0x66, 0x90], &[0x90, 0x90]]);
        }
        let sleds: &[&[u8]] = &[
            &[0x0f, 0x1f, 0x44, 0x00, 0x08],
            &[0x0f, 0x1f, 0x44, 0x00, 0x00],
            &[0x90, 0x90, 0x90, 0x90, 0x90],
            &[0x66, 0x90, 0x0f, 0x1f, 0x00],
        ];
        begins(&[&[]], pads, sleds)
    }

    const NO_SLEDS: &'static [&'static [u8]] = &[
        &[0xe8, 0x10, 0x00, 0x00, 0x00],
        &[0xcc, 0x1f, 0x44, 0x00, 0x00],
        &[0x55, 0x48, 0x89, 0xe5, 0xc3],
        &[0x90, 0x90, 0x90, 0x90, 0xc3],
        &[0; 5],
    ];

    const SLED: usize = 5;

    const REACH: usize = 0x7fff_ffff + 5;

    fn prepared(function: &Function, all: &Trampolines, state: usize) -> (Vec<u8>, Vec<u8>) {
        let sled = &function.sled;
        if !is_prefixed() {
            let one = sled[0] == 0x0f && sled[2] == 0x44;
            return (vec![], if one { sled.to_vec() } else { vec![0x0f, 0x1f, 0x44, 0x00, 0x00] });
        }
        let to = if is_classic() { all.guarded.args } else { all.balanced.args };
        let mut prefix = vec![0x4c, 0x8d, 0x1d, 9, 0, 0, 0, 0xe9];
        prefix.extend((to.wrapping_sub(function.addr - 4) as u32).to_le_bytes());
        prefix.extend((state.wrapping_sub(function.addr) as u32).to_le_bytes());
        (prefix, vec![0x66, 0x90])
    }

    fn calling(function: &Function, to: usize) -> Vec<u8> {
        if is_prefixed() {
            return vec![0xeb, (function.addr - 16).wrapping_sub(function.site + 2) as u8];
        }
        let distance = to.wrapping_sub(function.site + 5) as u32;
        [&[0xe8][..], &distance.to_le_bytes()].concat()
    }

    fn jumping(function: &Function, to: usize) -> Option<Vec<u8>> {
        let distance = to.wrapping_sub(function.site + 5) as u32;
        (!is_prefixed()).then(|| [&[0xe9][..], &distance.to_le_bytes()].concat())
    }

    fn on_the_way(old: &[u8], new: &[u8]) -> Vec<Vec<u8>> {
        let (int3, old_tail, new_tail) = (&[0xcc][..], &old[1..], &new[1..]);
        vec![old.to_vec(), [int3, old_tail].concat(), [int3, new_tail].concat(), new.to_vec()]
    }
}

const ARM64_NOPS: &[u8] = &[0x1f, 0x20, 0x03, 0xd5, 0x1f, 0x20, 0x03, 0xd5];

/// What the first word of a prepared arm64 sled is: `mov x17, x30`, or `adr x17, .` with the tag of prefixed sites.
fn arm64_first() -> [u8; 4] {
    if is_classic() {
        return [0xf1, 0x03, 0x1e, 0xaa];
    }
    [0x11, 0x00, 0x00, if is_prefixed() { 0x50 } else { 0x10 }]
}

fn arm64_branch(opcode: u32, function: &Function, to: usize) -> Vec<u8> {
    let distance = to.wrapping_sub(function.site + 4) as u32;
    [arm64_first(), (opcode | distance >> 2 & 0x03ff_ffff).to_le_bytes()].concat()
}

impl Target for Arm64 {
    fn begins() -> Vec<Begin> {
        const BTI_C: &[u8] = &[0x5f, 0x24, 0x03, 0xd5];
        const BTI_JC: &[u8] = &[0xdf, 0x24, 0x03, 0xd5];
        let pads: &[&[u8]] = if is_classic() { &[BTI_C, &[], BTI_JC] } else { &[&[]] };
        begins(&[if is_prefixed() { ARM64_NOPS } else { &[] }], pads, &[ARM64_NOPS])
    }

    const NO_SLEDS: &'static [&'static [u8]] = &[
        &[0x1f, 0x20, 0x03, 0xd5, 0xc0, 0x03, 0x5f, 0xd6],
        &[0xc0, 0x03, 0x5f, 0xd6, 0x1f, 0x20, 0x03, 0xd5],
        &[0xf1, 0x03, 0x1e, 0xaa, 0x1f, 0x20, 0x03, 0xd5],
        &[0xf1, 0x03, 0x1e, 0xaa, 0x00, 0x00, 0x00, 0x94],
        &[0; 8],
    ];

    const SLED: usize = 8;

    const REACH: usize = 0x07ff_fffc + 4;

    fn prepared(_function: &Function, _all: &Trampolines, state: usize) -> (Vec<u8>, Vec<u8>) {
        let prefix = if is_prefixed() { state.to_le_bytes().to_vec() } else { vec![] };
        (prefix, [&arm64_first()[..], &ARM64_NOPS[..4]].concat())
    }

    fn calling(function: &Function, to: usize) -> Vec<u8> {
        arm64_branch(if is_classic() { 0x9400_0000 } else { 0x1400_0000 }, function, to)
    }

    fn jumping(function: &Function, to: usize) -> Option<Vec<u8>> {
        Some(arm64_branch(0x1400_0000, function, to))
    }

    fn on_the_way(old: &[u8], new: &[u8]) -> Vec<Vec<u8>> {
        vec![old.to_vec(), new.to_vec()]
    }
}

/// Makes a module of each test, with one function for each machine and style.
macro_rules! in_styles {
    ([$($case:ident: $machine:ident, $style:ident;)*] $($(#[$attribute:meta])* $name:ident)*) => {
        $crate::engine::image::in_styles! { @each [$($case: $machine, $style;)*] $($(#[$attribute])* $name)* }
    };
    (@each $cases:tt $($(#[$attribute:meta])* $name:ident)*) => {
        $( $crate::engine::image::in_styles! { @one $cases [$(#[$attribute])*] $name } )*
    };
    (@one [$($case:ident: $machine:ident, $style:ident;)*] $attributes:tt $name:ident) => {
        mod $name {
            use $crate::arch::{arm64::patch::Arm64, x86_64::patch::X86_64};
            use $crate::engine::image::{Style, in_style};
            $( $crate::engine::image::in_styles! { @case $case, $machine, $style, $attributes, $name } )*
        }
    };
    (@case $case:ident, $machine:ident, $style:ident, [$(#[$attribute:meta])*], $name:ident) => {
        #[test]
        $(#[$attribute])*
        fn $case() {
            in_style(Style::$style, super::$name::<$machine>);
        }
    };
}
pub(crate) use in_styles;

/// Runs a generic test for both machines, in every style.
macro_rules! for_both_machines {
    ($($tests:tt)*) => {
        $crate::engine::image::in_styles! {
            [
                x86_64: X86_64, Plain;
                x86_64_prefixed: X86_64, Prefixed;
                x86_64_guarded: X86_64, Guarded;
                arm64: Arm64, Plain;
                arm64_balanced: Arm64, Balanced;
                arm64_prefixed: Arm64, Prefixed;
                arm64_guarded: Arm64, Guarded;
            ]
            $($tests)*
        }
    };
}
pub(crate) use for_both_machines;

/// Runs a generic test with plain sites, some of them behind landing pads.
macro_rules! for_plain_sites {
    ($($tests:tt)*) => {
        $crate::engine::image::in_styles! { [x86_64: X86_64, Plain; arm64: Arm64, Plain;] $($tests)* }
    };
}
pub(crate) use for_plain_sites;

/// Runs a generic test where the sleds themselves branch to the trampolines.
macro_rules! for_branching_sleds {
    ($($tests:tt)*) => {
        $crate::engine::image::in_styles! {
            [
                x86_64: X86_64, Plain;
                arm64: Arm64, Plain;
                arm64_balanced: Arm64, Balanced;
                arm64_prefixed: Arm64, Prefixed;
            ]
            $($tests)*
        }
    };
}
pub(crate) use for_branching_sleds;

/// A function of an image.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    /// Where the compiler's table points to.
    pub(crate) entry: usize,
    pub(crate) addr: usize,
    pub(crate) site: usize,
    /// What the compiler left at the site.
    pub(crate) sled: Vec<u8>,
    pub(crate) notrace: bool,
}

impl Function {
    /// The bytes at which it is patched.
    pub(crate) fn sled_range(&self) -> Range<usize> {
        self.site..self.site + self.sled.len()
    }

    /// All bytes of its site.
    pub(crate) fn span(&self) -> Range<usize> {
        self.entry.min(self.site)..self.sled_range().end
    }
}

/// A text with functions.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    pub(crate) base: usize,
    pub(crate) bytes: Vec<u8>,
    /// In ascending order.
    pub(crate) functions: Vec<Function>,
    pub(crate) notrace: Range<usize>,
    pub(crate) trampolines: Trampolines,
    /// Memory for the state words, which the text of prefixed sites leads to.
    pub(crate) states: usize,
}

const STATES: usize = 256;

impl Image {
    /// `count` traceable functions, and a few in the notrace range, somewhere between them; their sites may be anything.
    pub(crate) fn new<T: Target>(count: usize, random: &mut Random) -> Self {
        let states = keep_all(vec![0_u64; STATES]).as_mut_ptr();
        let states = states.expose_provenance();
        let mut base = 0x4000_0000 + 16 * random.below(0x1000);
        if is_prefixed() {
            // Within reach of the state words.
            base += states & !0xffff;
        }
        // Nothing before the first function of some images, so nothing can be read there.
        let mut bytes = vec![0xc3; 16 * random.below(2)];
        let mut functions = Vec::new();
        let notrace_at = random.below(count + 1);
        let mut notrace = 0..0;
        // A few functions in a row have sites of every kind.
        // One landing pad makes all of a table guarded.
        let first_kind = if style() == Style::Guarded { 0 } else { random.below(10) };
        for index in 0..=count {
            if index == notrace_at {
                notrace.start = base + bytes.len();
                for _ in 0..3 {
                    let kind = random.below(10);
                    functions.push(Self::function::<T>(base, &mut bytes, true, kind, random));
                }
                notrace.end = base + bytes.len();
            }
            if index < count {
                functions.push(Self::function::<T>(base, &mut bytes, false, index + first_kind, random));
            }
        }
        let pair = |offset| Pair { args: base + 0x10_0000 + offset, regs: base - 0x8_0000 + offset };
        let trampolines = Trampolines { classic: pair(0), balanced: pair(0x100), guarded: pair(0x200) };
        Self { base, bytes, functions, notrace, trampolines, states }
    }

    fn function<T: Target>(
        base: usize,
        bytes: &mut Vec<u8>,
        notrace: bool,
        kind: usize,
        random: &mut Random,
    ) -> Function {
        let begins = T::begins();
        let mut begin = begins[kind % begins.len()].clone();
        if notrace && random.one_in(2) {
            begin.sled = random.pick(T::NO_SLEDS).to_vec();
        }
        let prefix = base + bytes.len();
        let addr = prefix + begin.prefix.len();
        let site = addr + begin.pad.len();
        let entry = if begin.prefix.is_empty() { site } else { prefix };
        for part in [&begin.prefix, &begin.pad, &begin.sled] {
            bytes.extend(part);
        }
        // A body, filled up to the next function.
        for _ in 0..random.between(1, 20) {
            bytes.push(0x20 + random.below(0x20) as u8);
        }
        bytes.resize(bytes.len().next_multiple_of(16), 0xc3);
        // Of what need not be understood the table's entry is all that is known.
        let (addr, site) = if notrace { (entry, entry) } else { (addr, site) };
        Function { entry, addr, site, sled: begin.sled, notrace }
    }

    pub(crate) fn text(&self) -> Range<usize> {
        self.base..self.base + self.bytes.len()
    }

    pub(crate) fn traceable(&self) -> impl Iterator<Item = &Function> {
        self.functions.iter().filter(|function| !function.notrace)
    }

    /// What the compiler left of a function's site.
    #[cfg(feature = "symbols")]
    pub(crate) fn compiled(&self, function: &Function) -> &[u8] {
        let span = function.span();
        &self.bytes[span.start - self.base..span.end - self.base]
    }

    /// What the compiler was told.
    pub(crate) fn layouts(&self) -> Layouts {
        if is_prefixed() { Layouts::Prefixed } else { Layouts::Plain }
    }

    /// How many traceable functions begin with a landing pad.
    pub(crate) fn landing_pads(&self) -> usize {
        self.traceable().filter(|function| function.addr != function.site).count()
    }

    /// The trampolines that this style's sleds call.
    pub(crate) fn pair<T: Target>(&self) -> Pair {
        match style() {
            Style::Plain => self.trampolines.classic,
            Style::Guarded if T::ALIGN > 1 => self.trampolines.classic,
            Style::Guarded => self.trampolines.guarded,
            Style::Balanced if T::ALIGN == 1 => self.trampolines.classic,
            Style::Balanced | Style::Prefixed => self.trampolines.balanced,
        }
    }

    /// What must stand at the site of `function`.
    pub(crate) fn sled<T: Target>(&self, function: &Function, flavor: Flavor) -> Vec<u8> {
        let pair = self.pair::<T>();
        match flavor {
            Flavor::Off => T::prepared(function, &self.trampolines, 0).1,
            Flavor::Args => T::calling(function, pair.args),
            Flavor::Regs => T::calling(function, pair.regs),
            Flavor::Direct => unreachable!("no user of this image has a trampoline of its own"),
        }
    }

    /// The whole text, with each traceable function in the state that `flavor` gives.
    pub(crate) fn text_with<T: Target>(&self, flavor: impl Fn(&Function) -> Flavor) -> Vec<u8> {
        self.text_with_sleds::<T>(|function| self.sled::<T>(function, flavor(function)))
    }

    /// The whole text, with each traceable function's sled as `sled` gives it.
    pub(crate) fn text_with_sleds<T: Target>(&self, sled: impl Fn(&Function) -> Vec<u8>) -> Vec<u8> {
        let mut text = self.bytes.clone();
        let mut put = |addr: usize, bytes: &[u8]| {
            text[addr - self.base..][..bytes.len()].copy_from_slice(bytes);
        };
        for (index, function) in self.functions.iter().enumerate().filter(|(_, function)| !function.notrace) {
            let state = self.states + 8 * index;
            put(function.entry, &T::prepared(function, &self.trampolines, state).0);
            put(function.site, &sled(function));
        }
        text
    }

    /// Makes this thread's kernel run this image.
    pub(crate) fn boot<T: Target>(&self) {
        let sleds = self.traceable().map(Function::span).collect();
        kernel::boot(self.base, self.bytes.clone(), sleds);
    }

    /// The table as the compiler would leave it.
    pub(crate) fn entries(&self) -> Vec<usize> {
        self.functions.iter().map(|function| function.entry).collect()
    }

    /// What `init` is given, with `entries` for the table and so many words of state.
    pub(crate) fn source(&self, entries: Vec<usize>, states: usize) -> SiteSource {
        assert!(states <= STATES);
        let words = core::ptr::with_exposed_provenance_mut(self.states);
        let states = if is_prefixed() {
            // SAFETY: the image's own words, which its text leads to; engines of earlier boots are not used any more.
            unsafe { core::slice::from_raw_parts_mut(words, states) }
        } else {
            keep_all(vec![0; states])
        };
        states.fill(u64::MAX / 5);
        SiteSource {
            entries: keep_all(entries),
            states,
            text: self.text(),
            notrace: self.notrace.clone(),
            layouts: self.layouts(),
            hooking: self.hooking(),
        }
    }

    /// A table of these entries only, with state words of its own.
    #[cfg(feature = "symbols")]
    pub(crate) fn source_of(&self, entries: Vec<usize>, notrace: Range<usize>) -> SiteSource {
        let states = keep_all(vec![0; entries.len()]);
        let (layouts, hooking) = (self.layouts(), self.hooking());
        SiteSource { entries: keep_all(entries), states, text: self.text(), notrace, layouts, hooking }
    }

    fn hooking(&self) -> Hooking {
        if style() == Style::Plain { Hooking::Classic } else { Hooking::Balanced }
    }

    /// A booted engine with all sites.
    pub(crate) fn start<T: Target>(&self) -> &'static Engine<Fake, T> {
        self.boot::<T>();
        let engine = new_engine::<T>();
        init(engine, self.source(self.entries(), self.functions.len()), self.trampolines)
            .expect("a good image");
        engine
    }
}

/// An engine that was not initialised.
pub(crate) fn new_engine<T: Target>() -> &'static Engine<Fake, T> {
    keep(Engine::<Fake, T>::new())
}

/// Initialises an engine.
pub(crate) fn init<T: Target>(
    engine: &Engine<Fake, T>,
    source: SiteSource,
    trampolines: Trampolines,
) -> Result<SiteReport, Error> {
    // SAFETY: nothing executes this text.
    unsafe { engine.init(source, trampolines) }
}

/// The functions that can be traced, in the engine's own view.
pub(crate) fn functions<T: Target>(engine: &Engine<Fake, T>) -> Vec<FuncAddr> {
    let mut funcs = Vec::new();
    engine.functions(|info| funcs.push(info.func));
    funcs
}

/// The state of a site in the engine's own view.
pub(crate) fn target<T: Target>(engine: &Engine<Fake, T>, function: &Function) -> Option<Flavor> {
    engine.target_of(SiteAddr::new(function.site)).map(|(flavor, _)| flavor)
}
