//! Site states and instruction words of arm64.
//!
//! A plain site is two NOPs, at the function's entry or behind its BTI landing pad. A prefixed site has two more before the
//! function, which at the start become the address of the site's state word. Prepared, the first word at the site is
//!
//! * for the balanced way `adr x17, site`, with what the site is in the two low bits (a landing pad, a prefix); on, the second is
//!   `b trampoline`: x17 has the site, and x30 is still the caller's;
//! * for the classic way `mov x17, x30`; on, the second is `bl trampoline`: x17 has where the function returns to, and x30 comes
//!   from the `bl`.
//!
//! x16 and x17 are the only registers that every calling convention leaves free at an entry (AAPCS64 6.1.1: a veneer may use them
//! between a call and its target).
//!
//! The balanced way calls the function's body, which is no landing pad. So where functions have landing pads (BTI) all are
//! hooked the classic way.
//!
//! # Changing it
//! One aligned word. NOP, B and BL are among the instructions that may be replaced by one another while other cores execute
//! them (Arm ARM B2.2.5), so no core need be stopped; the synchronisation after the write bounds how long the old word is seen.
//! The first word and the prefix are written once, before anything can be preempted between the two words, and stay.

use core::ops::Range;

use crate::addr::{FuncAddr, SiteAddr};
use crate::arch::arm64::insn::{MOV_X17_LR, NOP, adr_x17, b, bl, is_landing_pad};
use crate::arch::arm64::regs::FtraceRegs;
use crate::machine::{
    Code, Decoded, Hooking, Layout, Layouts, Machine, OutOfRange, Pair, Path, Plan, Preparation, Sled,
    Trampolines, Window, Write,
};

/// The arm64 machine.
#[derive(Debug)]
pub enum Arm64 {}

/// Layout bit, and bit of what balanced sites load: a landing pad stands before the sled.
pub(crate) const TAG_PAD: u8 = 1;

/// Layout bit, and bit of what balanced sites load: a prefixed site.
pub(crate) const TAG_PREFIX: u8 = 2;

/// Layout bit: the site is hooked the balanced way.
const BALANCED_BIT: u8 = 4;

/// Layout bit of sites that could take the straight path: their calls never do.
const GENERAL_BIT: u8 = 8;

/// Bytes of the sled.
pub(crate) const SLED: usize = 8;

/// Bytes before the function of a prefixed site: one address.
pub(crate) const PREFIX: usize = 8;

fn word(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

fn pair(first: u32, second: u32) -> Code {
    let [a, b, c, d] = first.to_le_bytes();
    let [e, f, g, h] = second.to_le_bytes();
    Code::new(&[a, b, c, d, e, f, g, h])
}

fn is_sled(bytes: &[u8]) -> Option<()> {
    (word(bytes.get(..4)?)? == NOP && word(bytes.get(4..8)?)? == NOP).then_some(())
}

fn plain(window: Window<'_>) -> Option<Decoded> {
    is_sled(window.at)?;
    let pad = word(window.before).is_some_and(is_landing_pad);
    Some(Decoded { layout: Layout(if pad { TAG_PAD } else { 0 }), offset: 0 })
}

fn prefixed(window: Window<'_>) -> Option<Decoded> {
    is_sled(window.at)?;
    let pad = word(window.at.get(PREFIX..PREFIX + 4)?).is_some_and(is_landing_pad);
    let offset = PREFIX + if pad { 4 } else { 0 };
    is_sled(window.at.get(offset..)?)?;
    Some(Decoded { layout: Layout(TAG_PREFIX | if pad { TAG_PAD } else { 0 }), offset })
}

fn is_balanced(layout: Layout) -> bool {
    layout.0 & BALANCED_BIT != 0
}

impl Machine for Arm64 {
    type Regs = FtraceRegs;

    const MIN_SITE: usize = SLED;
    const ALIGN: usize = 4;
    const PAD: usize = 4;
    const EXPECTED: &'static str = "two NOPs (1f 20 03 d5 1f 20 03 d5), or two before the function as well";

    fn window(layouts: Layouts) -> usize {
        match layouts {
            Layouts::Plain => Self::MIN_SITE,
            Layouts::Prefixed | Layouts::Mixed(_) => PREFIX + 4 + SLED,
        }
    }

    fn decode(window: Window<'_>, layouts: Layouts) -> Option<Decoded> {
        let func = |found: Decoded| Self::func(SiteAddr::new(window.addr + found.offset), found.layout);
        layouts.choose(plain(window), prefixed(window), func)
    }

    fn has_pad(layout: Layout) -> bool {
        layout.0 & TAG_PAD != 0
    }

    fn hooked(layout: Layout, hooking: Hooking, guarded: bool) -> Layout {
        let balanced = hooking == Hooking::Balanced && !guarded;
        Layout(layout.0 & !BALANCED_BIT | if balanced { BALANCED_BIT } else { 0 })
    }

    fn on_path(layout: Layout, path: Path) -> Layout {
        match path {
            _ if !is_balanced(layout) || layout.0 & TAG_PREFIX == 0 => layout,
            Path::General => Layout(layout.0 | GENERAL_BIT),
            Path::Any => Layout(layout.0 & !GENERAL_BIT),
        }
    }

    fn func(site: SiteAddr, layout: Layout) -> FuncAddr {
        let pad = if Self::has_pad(layout) { 4 } else { 0 };
        FuncAddr::new(site.get().wrapping_sub(pad))
    }

    fn span(site: SiteAddr, layout: Layout) -> Range<usize> {
        let prefix = if layout.0 & TAG_PREFIX != 0 { PREFIX } else { 0 };
        Self::func(site, layout).get().wrapping_sub(prefix)..site.get().wrapping_add(SLED)
    }

    fn trampolines(layout: Layout, all: &Trampolines) -> Pair {
        match (is_balanced(layout), layout.0 & GENERAL_BIT) {
            (false, _) => all.classic,
            (true, 0) => all.balanced,
            (true, _) => Pair { args: all.balanced.regs, ..all.balanced },
        }
    }

    fn prepare(
        site: SiteAddr,
        layout: Layout,
        _all: &Trampolines,
        state: usize,
    ) -> Result<Preparation, OutOfRange> {
        let sled = Some((site.get(), Self::code(site, layout, Sled::Off)?));
        let prefix = Self::func(site, layout).get().wrapping_sub(PREFIX);
        let literal = (layout.0 & TAG_PREFIX != 0).then(|| (prefix, Code::new(&state.to_le_bytes())));
        Ok([literal, sled])
    }

    fn code(site: SiteAddr, layout: Layout, sled: Sled) -> Result<Code, OutOfRange> {
        let from = site.get() + 4;
        let second = match sled {
            Sled::Off => NOP,
            Sled::Call(to) if is_balanced(layout) => b(from, to).ok_or(OutOfRange { from, to })?,
            Sled::Call(to) => bl(from, to).ok_or(OutOfRange { from, to })?,
            Sled::Jump(to) => b(from, to).ok_or(OutOfRange { from, to })?,
        };
        let first = if is_balanced(layout) { adr_x17(layout.0 & (TAG_PAD | TAG_PREFIX)) } else { MOV_X17_LR };
        Ok(pair(first, second))
    }

    fn jumps(_layout: Layout) -> bool {
        true
    }

    fn plan(site: SiteAddr, layout: Layout, from: Sled, to: Sled) -> Result<Plan, OutOfRange> {
        let old = Self::code(site, layout, from)?;
        let new = Self::code(site, layout, to)?;
        if old == new {
            return Ok([None; 3]);
        }
        let write = Write {
            addr: site.get() + 4,
            old: Code::new(&old.as_slice()[4..]),
            new: Code::new(&new.as_slice()[4..]),
        };
        Ok([Some(write), None, None])
    }

    fn resume(site: SiteAddr, _layout: Layout) -> usize {
        site.get().wrapping_add(SLED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::arm64::insn::{BTI_C, BTI_JC};
    use crate::testing::apply;
    use std::vec::Vec;

    const SITE: SiteAddr = SiteAddr::new(0x4000_1004);
    const ENTRY: usize = 0x4000_1000;
    const NO_TRAMPOLINES: Trampolines = {
        let pair = Pair { args: 0x4010_0000, regs: 0x4010_0100 };
        Trampolines { classic: pair, balanced: pair, guarded: pair }
    };

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn decode(before: u32, at: &[u32], layouts: Layouts) -> Option<Decoded> {
        Arm64::decode(Window { addr: ENTRY, before: &before.to_le_bytes(), at: &words(at) }, layouts)
    }

    fn layouts() -> [Layout; 3] {
        let plain = decode(0, &[NOP, NOP], Layouts::Plain).expect("a site").layout;
        let prefixed = decode(0, &[NOP, NOP, NOP, NOP], Layouts::Prefixed).expect("a site").layout;
        [
            Arm64::hooked(plain, Hooking::Classic, false),
            Arm64::hooked(plain, Hooking::Balanced, false),
            Arm64::hooked(prefixed, Hooking::Balanced, false),
        ]
    }

    #[test]
    fn a_landing_pad_belongs_to_the_function() {
        for pad in [BTI_C, BTI_JC] {
            let found = decode(pad, &[NOP, NOP], Layouts::Plain).expect("a site");
            assert_eq!(found.offset, 0);
            assert_eq!(Arm64::func(SITE, found.layout), FuncAddr::new(0x4000_1000));
            let found = decode(0, &[NOP, NOP, pad, NOP, NOP], Layouts::Prefixed).expect("a site");
            assert_eq!(found.offset, 12);
            assert_eq!(Arm64::span(SITE, found.layout), 0x4000_0ff8..0x4000_100c);
        }
        for layout in layouts() {
            assert_eq!(Arm64::func(SITE, layout), FuncAddr::new(0x4000_1004));
        }
    }

    #[test]
    fn other_words_are_no_site() {
        for sled in [[NOP, MOV_X17_LR], [MOV_X17_LR, NOP], [BTI_C, NOP], [0, 0]] {
            assert_eq!(decode(0, &sled, Layouts::Plain), None, "{sled:x?}");
            assert_eq!(decode(0, &[NOP, NOP, sled[0], sled[1]], Layouts::Prefixed), None, "{sled:x?}");
            assert_eq!(decode(0, &[sled[0], sled[1], NOP, NOP], Layouts::Prefixed), None, "{sled:x?}");
        }
        assert_eq!(decode(0, &[NOP], Layouts::Plain), None);
        assert_eq!(decode(0, &[NOP, NOP, NOP], Layouts::Prefixed), None);
    }

    /// NOPs that align a loop at the start of a function look like the sled of a prefixed one.
    #[test]
    fn symbols_tell_a_loop_that_was_aligned_from_a_prefix() {
        let plain = decode(0, &[NOP; 4], Layouts::Mixed(|func| func.get() == ENTRY)).expect("a site");
        assert_eq!((plain.offset, plain.layout), (0, Layout(0)));
        let prefixed = decode(0, &[NOP; 4], Layouts::Mixed(|func| func.get() == ENTRY + 8)).expect("a site");
        assert_eq!((prefixed.offset, prefixed.layout), (8, Layout(TAG_PREFIX)));
        let padded =
            decode(BTI_C, &[NOP; 4], Layouts::Mixed(|func| func.get() == ENTRY - 4)).expect("a site");
        assert_eq!((padded.offset, padded.layout), (0, Layout(TAG_PAD)));
        assert_eq!(decode(0, &[NOP; 4], Layouts::Mixed(|_| false)), None);
    }

    #[test]
    fn every_plan_is_one_aligned_word() {
        let states = [Sled::Off, Sled::Call(0x4010_0000), Sled::Call(0x4000_0000), Sled::Jump(0x4020_0000)];
        for layout in layouts() {
            for from in states {
                for to in states {
                    let old = Arm64::code(SITE, layout, from).expect("in range");
                    let new = Arm64::code(SITE, layout, to).expect("in range");
                    let plan = Arm64::plan(SITE, layout, from, to).expect("in range");
                    let seen = apply(SITE, old, &plan);
                    assert_eq!(seen.last().copied().unwrap_or(old), new, "{from:?} to {to:?}");
                    assert_eq!(seen.len(), usize::from(old != new));
                    for write in plan.iter().flatten() {
                        assert_eq!((write.addr % 4, write.new.as_slice().len()), (0, 4));
                    }
                }
            }
        }
    }

    #[test]
    fn preparing_writes_the_first_word_and_the_address_of_the_state() {
        let state = 0xffff_0000_1234_5678;
        let [classic, balanced, prefixed] = layouts();
        for (layout, first) in [(classic, MOV_X17_LR), (balanced, 0x1000_0011)] {
            let code = Code::new(&words(&[first, NOP]));
            let done = Arm64::prepare(SITE, layout, &NO_TRAMPOLINES, state);
            assert_eq!(done, Ok([None, Some((SITE.get(), code))]));
        }
        let done = Arm64::prepare(SITE, prefixed, &NO_TRAMPOLINES, state).expect("in range");
        let literal = Code::new(&state.to_le_bytes());
        assert_eq!(
            done,
            [Some((SITE.get() - 8, literal)), Some((SITE.get(), Code::new(&words(&[0x5000_0011, NOP]))))]
        );
    }

    #[test]
    fn landing_pads_and_who_asks_for_it_get_the_classic_way() {
        let [classic, ..] = layouts();
        let plain = decode(0, &[NOP, NOP], Layouts::Plain).expect("a site").layout;
        assert_eq!(Arm64::hooked(plain, Hooking::Balanced, true), classic);
        assert_eq!(Arm64::hooked(plain, Hooking::Classic, true), classic);
    }

    #[test]
    fn range_ends_where_the_branch_does() {
        let from = SITE.get() + 4;
        let far = from + 0x0800_0000;
        for layout in layouts() {
            assert!(Arm64::code(SITE, layout, Sled::Call(from + 0x07ff_fffc)).is_ok());
            for to in [Sled::Call(far), Sled::Jump(far)] {
                assert_eq!(Arm64::plan(SITE, layout, Sled::Off, to), Err(OutOfRange { from, to: far }));
            }
        }
    }
}
