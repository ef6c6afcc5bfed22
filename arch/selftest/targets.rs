//! The functions that the self-tests trace: the only ones of this crate that can be.
//!
//! They stand in a section of their own, and under plain names that the linker fragment's patterns for this crate do not
//! take, so they get a site like any function of the embedder's, if this crate is compiled with patchable entries. Nobody
//! but the self-tests calls them: so what a callback is told of them belongs to the case that runs.
//!
//! Always called by a pointer the compiler knows nothing of, so that each call is one, with its arguments where the calling
//! convention has them.

use core::hint::black_box;

use crate::addr::FuncAddr;

/// A function to trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum Target {
    /// `n + 1`.
    One = 0,
    /// `2 * n`.
    Two = 1,
    /// `n` calls of itself below the first, and one of [`One`](Self::One) at the bottom.
    Nest = 2,
    /// Takes [`ARGUMENTS`].
    Six = 3,
}

impl Target {
    pub(super) const ALL: [Self; 4] = [Self::One, Self::Two, Self::Nest, Self::Six];

    /// The function's address, as callbacks are told it.
    #[inline]
    pub(super) fn addr(self) -> FuncAddr {
        FuncAddr::new(match self {
            Self::One => fgraph_selftest_one as *const () as usize,
            Self::Two => fgraph_selftest_two as *const () as usize,
            Self::Nest => fgraph_selftest_nest as *const () as usize,
            Self::Six => fgraph_selftest_six as *const () as usize,
        })
    }

    /// Which of them this is.
    #[inline]
    pub(super) fn at(ip: FuncAddr) -> Option<Self> {
        Self::ALL.into_iter().find(|target| target.addr() == ip)
    }

    /// The addresses of several, as filters want them.
    pub(super) fn sorted<const N: usize>(targets: [Self; N]) -> [FuncAddr; N] {
        let mut addrs = targets.map(Self::addr);
        addrs.sort_unstable();
        addrs
    }
}

type Unary = extern "C" fn(usize) -> usize;
type Senary = extern "C" fn(usize, usize, usize, usize, usize, usize) -> usize;

/// Calls [`Target::One`].
#[inline(always)]
pub(super) fn one(n: usize) -> usize {
    black_box(fgraph_selftest_one as Unary)(n)
}

/// Calls [`Target::Two`].
#[inline(always)]
pub(super) fn two(n: usize) -> usize {
    black_box(fgraph_selftest_two as Unary)(n)
}

/// Calls [`Target::Nest`]: `n + 1` calls of it and one of [`Target::One`], with `n + 11` for a result.
#[inline(always)]
pub(super) fn nest(n: usize) -> usize {
    black_box(fgraph_selftest_nest as Unary)(n)
}

/// What [`six`] gives [`Target::Six`].
pub(super) const ARGUMENTS: [usize; 6] = [0x1111, 0x2222, 0x3333, 0x4444, 0x5555, 0x6666];

/// What [`six`] gives back.
pub(super) const SIX: usize = 0x1111 + 2 * 0x2222 + 3 * 0x3333 + 4 * 0x4444 + 5 * 0x5555 + 6 * 0x6666;

/// Calls [`Target::Six`].
#[inline(always)]
pub(super) fn six() -> usize {
    let [a, b, c, d, e, f] = ARGUMENTS;
    black_box(fgraph_selftest_six as Senary)(a, b, c, d, e, f)
}

#[unsafe(no_mangle)]
#[unsafe(link_section = ".text.fgraph_selftest")]
#[inline(never)]
extern "C" fn fgraph_selftest_one(n: usize) -> usize {
    black_box(n) + 1
}

#[unsafe(no_mangle)]
#[unsafe(link_section = ".text.fgraph_selftest")]
#[inline(never)]
extern "C" fn fgraph_selftest_two(n: usize) -> usize {
    black_box(n).wrapping_mul(2)
}

#[unsafe(no_mangle)]
#[unsafe(link_section = ".text.fgraph_selftest")]
#[inline(never)]
extern "C" fn fgraph_selftest_nest(n: usize) -> usize {
    if n == 0 {
        // Opaque behind the call too, so that it is no jump.
        return black_box(one(10));
    }
    black_box(nest(n - 1)) + 1
}

#[unsafe(no_mangle)]
#[unsafe(link_section = ".text.fgraph_selftest")]
#[inline(never)]
extern "C" fn fgraph_selftest_six(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> usize {
    black_box(a) + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f
}
