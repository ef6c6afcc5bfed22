//! Site states and instruction words of arm64.
//!
//! A plain site is two NOPs, at the function's entry or behind its BTI landing pad. Prepared, it is `mov x17, x30` and a NOP;
//! on, the NOP is `bl trampoline`: x17 has where the function returns to, and x30 comes from the `bl`. x16 and x17 are the only
//! registers that every calling convention leaves free at an entry (AAPCS64 6.1.1: a veneer may use them between a call and its target).
//!
//! # Changing it
//! One aligned word. NOP and BL are among the instructions that may be replaced by one another while other cores execute
//! them (Arm ARM B2.2.5), so no core need be stopped; the synchronisation after the write bounds how long the old word is seen.
//! `mov x17, x30` is written once, before anything can be preempted between the two, and stays.

use crate::addr::{FuncAddr, SiteAddr};
use crate::arch::arm64::insn::{MOV_X17_LR, NOP, bl, is_landing_pad};
use crate::arch::arm64::regs::FtraceRegs;
use crate::machine::{Code, Layout, Machine, OutOfRange, Plan, Sled, Write};

/// The arm64 machine.
#[derive(Debug)]
pub enum Arm64 {}

/// Layout bit: a landing pad stands before the site.
const PAD_BIT: u8 = 1;

fn word(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

fn pair(first: u32, second: u32) -> Code {
    let [a, b, c, d] = first.to_le_bytes();
    let [e, f, g, h] = second.to_le_bytes();
    Code::new(&[a, b, c, d, e, f, g, h])
}

impl Machine for Arm64 {
    type Regs = FtraceRegs;

    const SLED: usize = 8;
    const ALIGN: usize = 4;
    const PAD: usize = 4;
    const EXPECTED: &'static str = "two NOPs (1f 20 03 d5 1f 20 03 d5)";

    fn decode(pad: &[u8], sled: &[u8]) -> Option<Layout> {
        if sled.len() != Self::SLED || word(&sled[..4])? != NOP || word(&sled[4..])? != NOP {
            return None;
        }
        let pad = word(pad).is_some_and(is_landing_pad);
        Some(Layout(if pad { PAD_BIT } else { 0 }))
    }

    fn func(site: SiteAddr, layout: Layout) -> FuncAddr {
        let pad = if layout.0 & PAD_BIT != 0 { 4 } else { 0 };
        FuncAddr::new(site.get() - pad)
    }

    fn code(site: SiteAddr, _layout: Layout, sled: Sled) -> Result<Code, OutOfRange> {
        let second = match sled {
            Sled::Off => NOP,
            Sled::Call(to) => {
                let from = site.get() + 4;
                bl(from, to).ok_or(OutOfRange { from, to })?
            }
        };
        Ok(pair(MOV_X17_LR, second))
    }

    fn needs_preparing(_layout: Layout) -> bool {
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

    fn resume(site: SiteAddr) -> usize {
        site.get() + Self::SLED
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::arm64::insn::{BTI_C, BTI_JC};
    use crate::testing::apply;

    const SITE: SiteAddr = SiteAddr::new(0x4000_1004);

    fn plain() -> Layout {
        Arm64::decode(&[0; 4], pair(NOP, NOP).as_slice()).expect("a site")
    }

    #[test]
    fn a_landing_pad_belongs_to_the_function() {
        for pad in [BTI_C, BTI_JC] {
            let layout = Arm64::decode(&pad.to_le_bytes(), pair(NOP, NOP).as_slice()).expect("a site");
            assert_eq!(Arm64::func(SITE, layout), FuncAddr::new(0x4000_1000));
        }
        assert_eq!(Arm64::func(SITE, plain()), FuncAddr::new(0x4000_1004));
    }

    #[test]
    fn other_words_are_no_site() {
        for sled in [pair(NOP, MOV_X17_LR), pair(MOV_X17_LR, NOP), pair(BTI_C, NOP), pair(0, 0)] {
            assert_eq!(Arm64::decode(&[0; 4], sled.as_slice()), None, "{sled}");
        }
        assert_eq!(Arm64::decode(&[0; 4], &pair(NOP, NOP).as_slice()[..4]), None);
    }

    #[test]
    fn every_plan_is_one_aligned_word() {
        let states = [Sled::Off, Sled::Call(0x4010_0000), Sled::Call(0x4000_0000)];
        for from in states {
            for to in states {
                let old = Arm64::code(SITE, plain(), from).expect("in range");
                let new = Arm64::code(SITE, plain(), to).expect("in range");
                let plan = Arm64::plan(SITE, plain(), from, to).expect("in range");
                let seen = apply(SITE, old, &plan);
                assert_eq!(seen.last().copied().unwrap_or(old), new, "{from:?} to {to:?}");
                assert_eq!(seen.len(), usize::from(old != new));
                for write in plan.iter().flatten() {
                    assert_eq!((write.addr % 4, write.new.as_slice().len()), (0, 4));
                }
            }
        }
    }

    #[test]
    fn range_ends_where_the_branch_does() {
        let from = SITE.get() + 4;
        assert!(Arm64::code(SITE, plain(), Sled::Call(from + 0x07ff_fffc)).is_ok());
        let far = from + 0x0800_0000;
        assert_eq!(Arm64::plan(SITE, plain(), Sled::Off, Sled::Call(far)), Err(OutOfRange { from, to: far }));
    }
}
