//! Images of both machines for the tests of the engine: a text with functions and sites, and, written down plainly, what must
//! stand at a site in each state.

use core::ops::Range;
use std::vec::Vec;

use super::{Engine, Error, Trampolines};
use crate::addr::{FuncAddr, SiteAddr};
use crate::arch::arm64::patch::Arm64;
use crate::arch::x86_64::patch::X86_64;
use crate::graph::world::Block;
use crate::machine::Machine;
use crate::site::{Flavor, SiteReport, SiteSource};
use crate::testing::kernel::{self, Fake};
use crate::testing::{Random, keep, keep_all};

/// A machine, with its facts stated once more, without its own code.
pub(crate) trait Target: Machine<Regs: Block> {
    /// Bytes that a compiler puts before and at a site.
    const SLEDS: &'static [(&'static [u8], &'static [u8])];

    /// Bytes that are no site.
    const NO_SLEDS: &'static [&'static [u8]];

    /// The longest branch, in bytes, from its own address.
    const REACH: usize;

    /// The site with these bytes, made ready.
    fn prepared(sled: &[u8]) -> Vec<u8>;

    /// The site calling `to`.
    fn calling(site: usize, to: usize) -> Vec<u8>;

    /// Everything that may stand at a site on the way from `old` to `new`.
    fn on_the_way(old: &[u8], new: &[u8]) -> Vec<Vec<u8>>;
}

impl Target for X86_64 {
    const SLEDS: &'static [(&'static [u8], &'static [u8])] = &[
        (&[], &[0x0f, 0x1f, 0x44, 0x00, 0x08]),
        (&[0xf3, 0x0f, 0x1e, 0xfa], &[0x0f, 0x1f, 0x44, 0x00, 0x08]),
        (&[], &[0x0f, 0x1f, 0x44, 0x00, 0x00]),
        (&[], &[0x90, 0x90, 0x90, 0x90, 0x90]),
        (&[0xf3, 0x0f, 0x1e, 0xfa], &[0x66, 0x90, 0x0f, 0x1f, 0x00]),
    ];

    const NO_SLEDS: &'static [&'static [u8]] = &[
        &[0xe8, 0x10, 0x00, 0x00, 0x00],
        &[0xcc, 0x1f, 0x44, 0x00, 0x00],
        &[0x55, 0x48, 0x89, 0xe5, 0xc3],
        &[0x90, 0x90, 0x90, 0x90, 0xc3],
        &[0; 5],
    ];

    const REACH: usize = 0x7fff_ffff + 5;

    fn prepared(sled: &[u8]) -> Vec<u8> {
        let one_instruction = sled[0] == 0x0f && sled[2] == 0x44;
        if one_instruction { sled.to_vec() } else { vec![0x0f, 0x1f, 0x44, 0x00, 0x00] }
    }

    fn calling(site: usize, to: usize) -> Vec<u8> {
        let distance = to.wrapping_sub(site + 5) as u32;
        [&[0xe8][..], &distance.to_le_bytes()].concat()
    }

    fn on_the_way(old: &[u8], new: &[u8]) -> Vec<Vec<u8>> {
        let (int3, old_tail, new_tail) = (&[0xcc][..], &old[1..], &new[1..]);
        vec![old.to_vec(), [int3, old_tail].concat(), [int3, new_tail].concat(), new.to_vec()]
    }
}

impl Target for Arm64 {
    const SLEDS: &'static [(&'static [u8], &'static [u8])] = &[
        (&[], &[0x1f, 0x20, 0x03, 0xd5, 0x1f, 0x20, 0x03, 0xd5]),
        (&[0x5f, 0x24, 0x03, 0xd5], &[0x1f, 0x20, 0x03, 0xd5, 0x1f, 0x20, 0x03, 0xd5]),
        (&[0xdf, 0x24, 0x03, 0xd5], &[0x1f, 0x20, 0x03, 0xd5, 0x1f, 0x20, 0x03, 0xd5]),
    ];

    const NO_SLEDS: &'static [&'static [u8]] = &[
        &[0x1f, 0x20, 0x03, 0xd5, 0xc0, 0x03, 0x5f, 0xd6],
        &[0xc0, 0x03, 0x5f, 0xd6, 0x1f, 0x20, 0x03, 0xd5],
        &[0xf1, 0x03, 0x1e, 0xaa, 0x1f, 0x20, 0x03, 0xd5],
        &[0xf1, 0x03, 0x1e, 0xaa, 0x00, 0x00, 0x00, 0x94],
        &[0; 8],
    ];

    const REACH: usize = 0x07ff_fffc + 4;

    fn prepared(_sled: &[u8]) -> Vec<u8> {
        vec![0xf1, 0x03, 0x1e, 0xaa, 0x1f, 0x20, 0x03, 0xd5]
    }

    fn calling(site: usize, to: usize) -> Vec<u8> {
        let distance = to.wrapping_sub(site + 4) as u32;
        let bl = 0x9400_0000 | (distance >> 2 & 0x03ff_ffff);
        [&[0xf1, 0x03, 0x1e, 0xaa][..], &bl.to_le_bytes()].concat()
    }

    fn on_the_way(old: &[u8], new: &[u8]) -> Vec<Vec<u8>> {
        vec![old.to_vec(), new.to_vec()]
    }
}

/// Runs a generic test for both machines.
macro_rules! for_both_machines {
    ($($(#[$attribute:meta])* $name:ident)*) => {$(
        mod $name {
            #[test]
            $(#[$attribute])*
            fn x86_64() {
                super::$name::<$crate::arch::x86_64::patch::X86_64>();
            }
            #[test]
            $(#[$attribute])*
            fn arm64() {
                super::$name::<$crate::arch::arm64::patch::Arm64>();
            }
        }
    )*};
}
pub(crate) use for_both_machines;

/// A function of an image.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    pub(crate) addr: usize,
    pub(crate) site: usize,
    /// What the compiler left at the site.
    pub(crate) sled: Vec<u8>,
    pub(crate) notrace: bool,
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
}

impl Image {
    /// `count` traceable functions, and a few in the notrace range, somewhere between them; their sites may be anything.
    pub(crate) fn new<T: Target>(count: usize, random: &mut Random) -> Self {
        let base = 0x4000_0000 + 16 * random.below(0x1000);
        // Nothing before the first function of some images, so nothing can be read there.
        let mut bytes = vec![0xc3; 16 * random.below(2)];
        let mut functions = Vec::new();
        let notrace_at = random.below(count + 1);
        let mut notrace = 0..0;
        // A few functions in a row have sites of every kind.
        let first_kind = random.below(10);
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
        let trampolines = Trampolines { args: base + 0x10_0000, regs: base - 0x8_0000 };
        Self { base, bytes, functions, notrace, trampolines }
    }

    fn function<T: Target>(
        base: usize,
        bytes: &mut Vec<u8>,
        notrace: bool,
        kind: usize,
        random: &mut Random,
    ) -> Function {
        let addr = base + bytes.len();
        let (pad, mut sled) = T::SLEDS[kind % T::SLEDS.len()];
        if notrace && random.one_in(2) {
            sled = *random.pick(T::NO_SLEDS);
        }
        bytes.extend(pad);
        let site = base + bytes.len();
        bytes.extend(sled);
        // A body, filled up to the next function.
        for _ in 0..random.between(1, 20) {
            bytes.push(0x20 + random.below(0x20) as u8);
        }
        bytes.resize(bytes.len().next_multiple_of(16), 0xc3);
        Function { addr, site, sled: sled.to_vec(), notrace }
    }

    pub(crate) fn text(&self) -> Range<usize> {
        self.base..self.base + self.bytes.len()
    }

    pub(crate) fn traceable(&self) -> impl Iterator<Item = &Function> {
        self.functions.iter().filter(|function| !function.notrace)
    }

    /// What must stand at the site of `function`.
    pub(crate) fn sled<T: Target>(&self, function: &Function, flavor: Flavor) -> Vec<u8> {
        match flavor {
            Flavor::Off => T::prepared(&function.sled),
            Flavor::Args => T::calling(function.site, self.trampolines.args),
            Flavor::Regs => T::calling(function.site, self.trampolines.regs),
        }
    }

    /// The whole text, with each traceable function in the state that `flavor` gives.
    pub(crate) fn text_with<T: Target>(&self, flavor: impl Fn(&Function) -> Flavor) -> Vec<u8> {
        let mut text = self.bytes.clone();
        for function in self.traceable() {
            let start = function.site - self.base;
            let sled = self.sled::<T>(function, flavor(function));
            text[start..start + sled.len()].copy_from_slice(&sled);
        }
        text
    }

    /// Makes this thread's kernel run this image.
    pub(crate) fn boot<T: Target>(&self) {
        let sleds = self.traceable().map(|function| function.site..function.site + T::SLED).collect();
        kernel::boot(self.base, self.bytes.clone(), sleds);
    }

    /// The table as the compiler would leave it.
    pub(crate) fn entries(&self) -> Vec<usize> {
        self.functions.iter().map(|function| function.site).collect()
    }

    /// What `init` is given, with `entries` for the table and so many words of state.
    pub(crate) fn source(&self, entries: Vec<usize>, states: usize) -> SiteSource {
        SiteSource {
            entries: keep_all(entries),
            states: keep_all(vec![u64::MAX / 5; states]),
            text: self.text(),
            notrace: self.notrace.clone(),
        }
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
    engine.target_of(SiteAddr::new(function.site))
}
