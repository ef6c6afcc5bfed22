//! Site states and instruction bytes of x86_64.
//!
//! A plain site is five bytes of NOP, at the function's entry or behind its ENDBR64. On, it is `call trampoline`.
//!
//! A prefixed site is sixteen bytes of NOP before the function and two at its entry, or behind its ENDBR64. The prefix is
//! written once, at the start:
//!
//! ```text
//! -16  lea r11, [rip + 9]     the function
//!  -9  jmp trampoline         the balanced one
//!  -4  .long state - function where the site's state word is
//! ```
//!
//! On, the two-byte NOP is a short jump to it. The trampoline finds the caller's return address on top of the stack, as the function
//! would, and learns the rest from the state word; so the site has one way to be on, whatever its users need.
//!
//! # Changing it
//! A write of several bytes is not atomic for instruction fetch, so it is done as Intel and AMD allow for cross-modifying code
//! (SDM 3A 9.1.3): INT3 over the first byte, every core synchronised, the tail, synchronised, the first byte. A core that runs into
//! the INT3 meanwhile traps, and the trap handler goes on as the new instruction would ([`Machine::plan`]'s target).

use core::ops::Range;

use crate::addr::{FuncAddr, SiteAddr};
use crate::arch::x86_64::insn::{
    CALL_LEN, ENDBR64, INT3, JMP_SHORT, NOP2, NOP5, call, jmp, lea_r11, nops_filling,
};
use crate::arch::x86_64::regs::FtraceRegs;
use crate::machine::{
    Code, Decoded, Hooking, Layout, Layouts, Machine, OutOfRange, Pair, Path, Plan, Preparation, Sled,
    Trampolines, Window, Write,
};

/// The x86_64 machine.
#[derive(Debug)]
pub enum X86_64 {}

/// Layout bit: a landing pad stands before the sled.
const PAD_BIT: u8 = 1 << 7;

/// Layout bit: a prefixed site.
const PREFIX_BIT: u8 = 1 << 6;

/// Layout bit of prefixed sites: landing pads may be checked, so the body cannot be called.
const GUARDED_BIT: u8 = 1 << 5;

/// Layout bit of prefixed sites that are not guarded: calls never take the straight path.
const GENERAL_BIT: u8 = 1 << 4;

/// Layout bits of the NOP: of plain sites which of [`SINGLE`] the compiler left, of prefixed ones 0 for [`NOP2`]; this value:
/// something else, which is made one NOP at the start.
const OTHER: u8 = 0x0f;

/// The five-byte NOPs of one instruction that compilers emit; a site that has one gets it back.
const SINGLE: [[u8; CALL_LEN]; 4] = [
    NOP5,
    // LLVM
    [0x0f, 0x1f, 0x44, 0x00, 0x08],
    // LLVM for processors without long NOPs, and old assemblers
    [0x66, 0x66, 0x66, 0x66, 0x90],
    [0x66, 0x0f, 0x1f, 0x40, 0x00],
];

/// Bytes before the function of a prefixed site.
pub(crate) const PREFIX: usize = 16;

/// Bytes of the sled of a prefixed site.
pub(crate) const SHORT: usize = 2;

/// Bytes from the prefix to its `jmp`.
pub(crate) const PREFIX_JMP: usize = 7;

/// From behind the prefix's `lea` to the function.
pub(crate) const LEA_DISTANCE: i32 = (PREFIX - PREFIX_JMP) as i32;

/// Bytes from the prefix to its distance of the state word, and the function behind it.
pub(crate) const PREFIX_STATE: usize = PREFIX - 4;

fn plain(window: Window<'_>) -> Option<Decoded> {
    let sled = window.at.get(..CALL_LEN)?;
    nops_filling(sled)?;
    let single = SINGLE.iter().position(|nop| nop == sled);
    let single = single.map_or(OTHER, |index| index as u8);
    let pad = if window.before == ENDBR64 { PAD_BIT } else { 0 };
    Some(Decoded { layout: Layout(single | pad), offset: 0 })
}

fn prefixed(window: Window<'_>) -> Option<Decoded> {
    let (prefix, entry) = window.at.split_at_checked(PREFIX)?;
    nops_filling(prefix)?;
    let (pad, offset) =
        if entry.starts_with(&ENDBR64) { (PAD_BIT, PREFIX + ENDBR64.len()) } else { (0, PREFIX) };
    let sled = window.at.get(offset..offset + SHORT)?;
    nops_filling(sled)?;
    let nop = if sled == NOP2 { 0 } else { OTHER };
    Some(Decoded { layout: Layout(PREFIX_BIT | pad | nop), offset })
}

fn is_prefixed(layout: Layout) -> bool {
    layout.0 & PREFIX_BIT != 0
}

fn sled_len(layout: Layout) -> usize {
    if is_prefixed(layout) { SHORT } else { CALL_LEN }
}

impl X86_64 {
    /// Where the prefix of a prefixed site is.
    pub(crate) fn prefix(site: SiteAddr, layout: Layout) -> Option<usize> {
        is_prefixed(layout).then(|| Self::func(site, layout).get().wrapping_sub(PREFIX))
    }
}

impl Machine for X86_64 {
    type Regs = FtraceRegs;

    const MIN_SITE: usize = CALL_LEN;
    const ALIGN: usize = 1;
    const PAD: usize = ENDBR64.len();
    const EXPECTED: &'static str = "five bytes of NOPs, or sixteen before the function and two in it";

    fn window(layouts: Layouts) -> usize {
        match layouts {
            Layouts::Plain => Self::MIN_SITE,
            Layouts::Prefixed | Layouts::Mixed(_) => PREFIX + ENDBR64.len() + SHORT,
        }
    }

    fn decode(window: Window<'_>, layouts: Layouts) -> Option<Decoded> {
        let func = |found: Decoded| Self::func(SiteAddr::new(window.addr + found.offset), found.layout);
        layouts.choose(plain(window), prefixed(window), func)
    }

    fn has_pad(layout: Layout) -> bool {
        layout.0 & PAD_BIT != 0
    }

    fn hooked(layout: Layout, hooking: Hooking, guarded: bool) -> Layout {
        let by_call = hooking == Hooking::Balanced && !guarded;
        if is_prefixed(layout) && !by_call { Layout(layout.0 | GUARDED_BIT) } else { layout }
    }

    fn on_path(layout: Layout, path: Path) -> Layout {
        match (layout.0 & (PREFIX_BIT | GUARDED_BIT), path) {
            (PREFIX_BIT, Path::General) => Layout(layout.0 | GENERAL_BIT),
            (PREFIX_BIT, Path::Any) => Layout(layout.0 & !GENERAL_BIT),
            _ => layout,
        }
    }

    fn func(site: SiteAddr, layout: Layout) -> FuncAddr {
        let pad = if Self::has_pad(layout) { ENDBR64.len() } else { 0 };
        FuncAddr::new(site.get().wrapping_sub(pad))
    }

    fn span(site: SiteAddr, layout: Layout) -> Range<usize> {
        let start = Self::prefix(site, layout).unwrap_or(Self::func(site, layout).get());
        start..site.get().wrapping_add(sled_len(layout))
    }

    fn trampolines(layout: Layout, all: &Trampolines) -> Pair {
        match layout.0 & (PREFIX_BIT | GUARDED_BIT) {
            0 => all.classic,
            PREFIX_BIT if layout.0 & GENERAL_BIT != 0 => Pair { args: all.balanced.regs, ..all.balanced },
            PREFIX_BIT => all.balanced,
            _ => all.guarded,
        }
    }

    fn prepare(
        site: SiteAddr,
        layout: Layout,
        all: &Trampolines,
        state: usize,
    ) -> Result<Preparation, OutOfRange> {
        // Several NOPs become one, before anything can be preempted between them: a task that stopped at the second would
        // go on in the middle of an instruction.
        let sled = if layout.0 & OTHER == OTHER {
            Some((site.get(), Self::code(site, layout, Sled::Off)?))
        } else {
            None
        };
        let Some(prefix) = Self::prefix(site, layout) else { return Ok([sled, None]) };
        let func = Self::func(site, layout).get();
        let to = Self::trampolines(layout, all).args;
        let from = prefix + PREFIX_JMP;
        let jmp = jmp(from, to).ok_or(OutOfRange { from, to })?;
        let distance = i32::try_from(state.wrapping_sub(func) as isize)
            .map_err(|_| OutOfRange { from: func, to: state })?;
        let mut bytes = [0; PREFIX];
        bytes[..PREFIX_JMP].copy_from_slice(&lea_r11(LEA_DISTANCE));
        bytes[PREFIX_JMP..PREFIX_STATE].copy_from_slice(&jmp);
        bytes[PREFIX_STATE..].copy_from_slice(&distance.to_le_bytes());
        Ok([Some((prefix, Code::new(&bytes))), sled])
    }

    fn code(site: SiteAddr, layout: Layout, sled: Sled) -> Result<Code, OutOfRange> {
        let from = site.get();
        match (sled, Self::prefix(site, layout)) {
            (Sled::Off, None) => Ok(Code::new(SINGLE.get(usize::from(layout.0 & OTHER)).unwrap_or(&NOP5))),
            (Sled::Call(to), None) => Ok(Code::new(&call(from, to).ok_or(OutOfRange { from, to })?)),
            (Sled::Jump(to), None) => Ok(Code::new(&jmp(from, to).ok_or(OutOfRange { from, to })?)),
            (Sled::Off, Some(_)) => Ok(Code::new(&NOP2)),
            (Sled::Call(_) | Sled::Jump(_), Some(prefix)) => {
                let distance = prefix.wrapping_sub(from.wrapping_add(SHORT)) as u8;
                Ok(Code::new(&[JMP_SHORT, distance]))
            }
        }
    }

    fn jumps(layout: Layout) -> bool {
        !is_prefixed(layout)
    }

    fn plan(site: SiteAddr, layout: Layout, from: Sled, to: Sled) -> Result<Plan, OutOfRange> {
        let old = Self::code(site, layout, from)?;
        let new = Self::code(site, layout, to)?;
        if old == new {
            return Ok([None; 3]);
        }
        let (old, new) = (old.as_slice(), new.as_slice());
        let addr = site.get();
        Ok([
            Some(Write { addr, old: Code::new(&old[..1]), new: Code::new(&[INT3]) }),
            Some(Write { addr: addr + 1, old: Code::new(&old[1..]), new: Code::new(&new[1..]) }),
            Some(Write { addr, old: Code::new(&[INT3]), new: Code::new(&new[..1]) }),
        ])
    }

    fn resume(site: SiteAddr, layout: Layout) -> usize {
        site.get().wrapping_add(sled_len(layout))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::apply;
    use std::vec::Vec;

    const SITE: SiteAddr = SiteAddr::new(0x40_1004);
    const FAR: usize = 0x40_1004 + 5 + 0x8000_0000;
    const TRAMPOLINES: Trampolines = {
        Trampolines {
            classic: Pair { args: 0x50_0000, regs: 0x50_0100 },
            balanced: Pair { args: 0x50_0200, regs: 0x50_0280 },
            guarded: Pair { args: 0x50_0300, regs: 0x50_0300 },
        }
    };
    const NOPS16: [u8; 16] =
        [0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, 0x0f, 0x1f, 0x44, 0x00, 0x00];

    fn decode(before: &[u8], at: &[u8], layouts: Layouts) -> Option<Decoded> {
        X86_64::decode(Window { addr: 0x40_1000, before, at }, layouts)
    }

    fn plain(before: &[u8], at: &[u8]) -> Option<Layout> {
        Some(decode(before, at, Layouts::Plain)?.layout)
    }

    fn layouts() -> Vec<(&'static str, Layout)> {
        [
            ("rustc", &[0u8; 4], [0x0f, 0x1f, 0x44, 0x00, 0x08]),
            ("rustc behind endbr64", &ENDBR64, [0x0f, 0x1f, 0x44, 0x00, 0x08]),
            ("gcc", &[0x55; 4], [0x90; 5]),
            ("mixed", &[0x55; 4], [0x66, 0x90, 0x0f, 0x1f, 0x00]),
        ]
        .into_iter()
        .map(|(name, pad, sled)| (name, plain(pad, &sled).expect(name)))
        .collect()
    }

    fn prefixed_layouts() -> Vec<(&'static str, Layout, usize)> {
        let mut all = Vec::new();
        for (name, pad, sled) in [
            ("rustc", &[][..], NOP2),
            ("gcc", &[][..], [0x90, 0x90]),
            ("rustc behind endbr64", &ENDBR64[..], NOP2),
        ] {
            let at = [&NOPS16[..], pad, &sled].concat();
            let found = decode(&[0xc3; 4], &at, Layouts::Prefixed).expect(name);
            assert_eq!(found.offset, 16 + pad.len());
            all.push((name, found.layout, pad.len()));
        }
        all
    }

    #[test]
    fn a_landing_pad_belongs_to_the_function() {
        let layout = plain(&ENDBR64, &NOP5).expect("a site");
        assert_eq!(X86_64::func(SITE, layout), FuncAddr::new(0x40_1000));
        let layout = plain(&[0xc3, 0x90, 0x90, 0x90], &NOP5).expect("a site");
        assert_eq!(X86_64::func(SITE, layout), FuncAddr::new(0x40_1004));
        for (name, layout, pad) in prefixed_layouts() {
            assert_eq!(X86_64::func(SITE, layout).get(), SITE.get() - pad, "{name}");
            assert_eq!(X86_64::span(SITE, layout), SITE.get() - pad - 16..SITE.get() + 2, "{name}");
        }
    }

    #[test]
    fn other_bytes_are_no_site() {
        for sled in
            [[0x55, 0x48, 0x89, 0xe5, 0x90], [0x90, 0x90, 0x90, 0x90, 0xc3], [0xe8, 0, 0, 0, 0], [0; 5]]
        {
            assert_eq!(plain(&[0; 4], &sled), None, "{sled:02x?}");
            let behind = [&NOPS16[..], &sled].concat();
            let is_nop = sled.starts_with(&[0x90, 0x90]);
            assert_eq!(decode(&[0; 4], &behind, Layouts::Prefixed).is_some(), is_nop, "{sled:02x?}");
        }
        assert_eq!(plain(&[0; 4], &[0x90; 4]), None);
        // A NOP that reaches from the prefix into the function, and a prefix cut off.
        let across = [&NOPS16[5..], &NOPS16[..7]].concat();
        assert_eq!(decode(&[0; 4], &across, Layouts::Prefixed), None);
        assert_eq!(decode(&[0; 4], &NOPS16, Layouts::Prefixed), None);
        assert_eq!(decode(&[0; 4], &NOPS16[..12], Layouts::Prefixed), None);
    }

    /// NOPs that align a loop at the start of a function look like the sled of a prefixed one.
    #[test]
    fn symbols_tell_a_loop_that_was_aligned_from_a_prefix() {
        let at = [0x90; 18];
        let found = decode(&[0; 4], &at, Layouts::Mixed(|func| func.get() == 0x40_1000)).expect("a site");
        assert_eq!((found.offset, is_prefixed(found.layout)), (0, false));
        let found = decode(&[0; 4], &at, Layouts::Mixed(|func| func.get() == 0x40_1010)).expect("a site");
        assert_eq!((found.offset, is_prefixed(found.layout)), (16, true));
        assert_eq!(decode(&[0; 4], &at, Layouts::Mixed(|_| false)), None);
    }

    #[test]
    fn every_plan_leads_from_each_state_to_each_other_by_the_int3_protocol() {
        let states = [Sled::Off, Sled::Call(0x50_0000), Sled::Call(0x10_0000), Sled::Jump(0x60_0000)];
        let prefixed = prefixed_layouts().into_iter().map(|(name, layout, _)| (name, layout));
        for (name, layout) in layouts().into_iter().chain(prefixed) {
            for from in states {
                for to in states {
                    let old = X86_64::code(SITE, layout, from).expect("in range");
                    let new = X86_64::code(SITE, layout, to).expect("in range");
                    let plan = X86_64::plan(SITE, layout, from, to).expect("in range");
                    let seen = apply(SITE, old, &plan);
                    assert_eq!(seen.last().copied().unwrap_or(old), new, "{name}: {from:?} to {to:?}");
                    if old != new {
                        // A core sees the old instruction, an INT3, or the new one; never a mixture.
                        assert_eq!(seen.len(), 3);
                        assert_eq!(seen[0].as_slice()[0], INT3);
                        assert_eq!(seen[1].as_slice()[0], INT3);
                        assert_eq!(&seen[1].as_slice()[1..], &new.as_slice()[1..]);
                    }
                }
            }
        }
    }

    #[test]
    fn a_single_nop_comes_back_to_the_byte_and_several_become_one() {
        for (name, sled, off) in [
            ("rustc", [0x0f, 0x1f, 0x44, 0x00, 0x08], [0x0f, 0x1f, 0x44, 0x00, 0x08]),
            ("prefixes", [0x66, 0x66, 0x66, 0x66, 0x90], [0x66, 0x66, 0x66, 0x66, 0x90]),
            ("gcc", [0x90; 5], NOP5),
            ("mixed", [0x66, 0x90, 0x0f, 0x1f, 0x00], NOP5),
            ("odd displacement", [0x0f, 0x1f, 0x44, 0x00, 0x77], NOP5),
        ] {
            let layout = plain(&[0; 4], &sled).expect(name);
            assert_eq!(X86_64::code(SITE, layout, Sled::Off).expect(name).as_slice(), off, "{name}");
            let written = (sled != off).then(|| (SITE.get(), Code::new(&off)));
            assert_eq!(X86_64::prepare(SITE, layout, &TRAMPOLINES, 0), Ok([written, None]), "{name}");
        }
    }

    #[test]
    fn a_prefix_loads_the_function_jumps_and_knows_the_state() {
        let state = 0x80_0000;
        for (name, layout, pad) in prefixed_layouts() {
            for (hooking, guarded, to) in [
                (Hooking::Balanced, false, TRAMPOLINES.balanced),
                (Hooking::Balanced, true, TRAMPOLINES.guarded),
                (Hooking::Classic, false, TRAMPOLINES.guarded),
            ] {
                let layout = X86_64::hooked(layout, hooking, guarded);
                let func = SITE.get() - pad;
                let [prefix, sled] = X86_64::prepare(SITE, layout, &TRAMPOLINES, state).expect("in range");
                let (at, code) = prefix.expect("a prefix");
                let code = code.as_slice();
                assert_eq!(at, func - 16);
                assert_eq!(code[..7], [0x4c, 0x8d, 0x1d, 9, 0, 0, 0], "{name}");
                let jmp = [&[0xe8][..], &code[8..12]].concat();
                assert_eq!(code[7], 0xe9);
                assert_eq!(crate::arch::x86_64::insn::call_target(at + 7, &jmp), Some(to.args), "{name}");
                let distance = i32::from_le_bytes(code[12..].try_into().expect("four bytes"));
                assert_eq!(func.wrapping_add_signed(distance as isize), state, "{name}");
                assert_eq!(sled, (name == "gcc").then(|| (SITE.get(), Code::new(&NOP2))), "{name}");
                let on = X86_64::code(SITE, layout, Sled::Call(to.args)).expect("in range");
                let there = SITE.get() + 2;
                assert_eq!(there.wrapping_add_signed(isize::from(on.as_slice()[1] as i8)), at, "{name}");
            }
            let far = SITE.get() + 0x1_0000_0000;
            assert!(X86_64::prepare(SITE, layout, &TRAMPOLINES, far).is_err());
        }
    }

    #[test]
    fn only_prefixes_of_bodies_that_are_called_have_two_ways() {
        let general = |layout| X86_64::on_path(layout, Path::General);
        for (name, layout, _) in prefixed_layouts() {
            assert_ne!(general(layout), layout, "{name}");
            assert_eq!(X86_64::on_path(general(layout), Path::Any), layout, "{name}");
            assert_eq!(
                X86_64::trampolines(general(layout), &TRAMPOLINES).args,
                TRAMPOLINES.balanced.regs,
                "{name}"
            );
            let jmp = |layout| {
                let [prefix, _] = X86_64::prepare(SITE, layout, &TRAMPOLINES, 0x80_0000).expect("in range");
                let (at, code) = prefix.expect("a prefix");
                let jmp = [&[0xe8][..], &code.as_slice()[8..12]].concat();
                crate::arch::x86_64::insn::call_target(at + 7, &jmp)
            };
            let both = [layout, general(layout)].map(jmp);
            assert_eq!(both, [TRAMPOLINES.balanced.args, TRAMPOLINES.balanced.regs].map(Some), "{name}");
            let guarded = X86_64::hooked(layout, Hooking::Classic, false);
            assert_eq!(general(guarded), guarded, "{name}");
        }
        for (name, layout) in layouts() {
            assert_eq!(general(layout), layout, "{name}");
        }
    }

    #[test]
    fn a_far_trampoline_is_refused_with_both_addresses() {
        let (_, layout) = layouts()[0];
        let refused = OutOfRange { from: SITE.get(), to: FAR };
        for sled in [Sled::Call, Sled::Jump] {
            assert_eq!(X86_64::code(SITE, layout, sled(FAR)), Err(refused));
            assert_eq!(X86_64::plan(SITE, layout, Sled::Off, sled(FAR)), Err(refused));
            assert!(X86_64::code(SITE, layout, sled(FAR - 1)).is_ok());
        }
    }
}
