//! Site states and instruction bytes of x86_64.
//!
//! A plain site is five bytes of NOP, at the function's entry or behind its ENDBR64. On, it is `call trampoline`.
//!
//! # Changing it
//! A five-byte write is not atomic, so it is done as Intel and AMD allow for cross-modifying code (SDM 3A 9.1.3): INT3 over
//! the first byte, every core synchronised, the tail, synchronised, the first byte. A core that runs into the INT3 meanwhile
//! traps, and the trap handler goes on as the new instruction would ([`Machine::plan`]'s target).

use crate::addr::{FuncAddr, SiteAddr};
use crate::arch::x86_64::insn::{CALL_LEN, ENDBR64, INT3, NOP5, call, nops_filling};
use crate::arch::x86_64::regs::FtraceRegs;
use crate::machine::{Code, Layout, Machine, OutOfRange, Plan, Sled, Write};

/// The x86_64 machine.
#[derive(Debug)]
pub enum X86_64 {}

/// Layout bit: a landing pad stands before.
const PAD_BIT: u8 = 1 << 7;

/// Layout bits 0 to 6: which of [`SINGLE`] the compiler left; this value: something else, which is made [`NOP5`] at the start.
const OTHER: u8 = 0x7f;

/// The five-byte NOPs of one instruction that compilers emit; a site that has one gets it back.
const SINGLE: [[u8; CALL_LEN]; 4] = [
    NOP5,
    // LLVM
    [0x0f, 0x1f, 0x44, 0x00, 0x08],
    // LLVM for processors without long NOPs, and old assemblers
    [0x66, 0x66, 0x66, 0x66, 0x90],
    [0x66, 0x0f, 0x1f, 0x40, 0x00],
];

impl Machine for X86_64 {
    type Regs = FtraceRegs;

    const SLED: usize = CALL_LEN;
    const ALIGN: usize = 1;
    const PAD: usize = ENDBR64.len();
    const EXPECTED: &'static str = "five bytes of NOPs";

    fn decode(pad: &[u8], sled: &[u8]) -> Option<Layout> {
        if sled.len() != CALL_LEN {
            return None;
        }
        nops_filling(sled)?;
        let single = SINGLE.iter().position(|nop| nop == sled);
        let single = single.map_or(OTHER, |index| index as u8);
        let pad = if pad == ENDBR64 { PAD_BIT } else { 0 };
        Some(Layout(single | pad))
    }

    fn func(site: SiteAddr, layout: Layout) -> FuncAddr {
        let pad = if layout.0 & PAD_BIT != 0 { ENDBR64.len() } else { 0 };
        FuncAddr::new(site.get() - pad)
    }

    fn code(site: SiteAddr, layout: Layout, sled: Sled) -> Result<Code, OutOfRange> {
        match sled {
            Sled::Off => Ok(Code::new(SINGLE.get(usize::from(layout.0 & OTHER)).unwrap_or(&NOP5))),
            Sled::Call(to) => {
                let bytes = call(site.get(), to).ok_or(OutOfRange { from: site.get(), to })?;
                Ok(Code::new(&bytes))
            }
        }
    }

    fn needs_preparing(layout: Layout) -> bool {
        // Several NOPs become one, before anything can be preempted between them: a task that stopped at the second would
        // go on in the middle of a call.
        layout.0 & OTHER == OTHER
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

    fn resume(site: SiteAddr) -> usize {
        site.get() + CALL_LEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::apply;
    use std::vec::Vec;

    const SITE: SiteAddr = SiteAddr::new(0x40_1004);
    const FAR: usize = 0x40_1004 + 5 + 0x8000_0000;

    fn layouts() -> Vec<(&'static str, Layout)> {
        [
            ("rustc", &[0u8; 4], [0x0f, 0x1f, 0x44, 0x00, 0x08]),
            ("rustc behind endbr64", &ENDBR64, [0x0f, 0x1f, 0x44, 0x00, 0x08]),
            ("gcc", &[0x55; 4], [0x90; 5]),
            ("mixed", &[0x55; 4], [0x66, 0x90, 0x0f, 0x1f, 0x00]),
        ]
        .into_iter()
        .map(|(name, pad, sled)| (name, X86_64::decode(pad, &sled).expect(name)))
        .collect()
    }

    #[test]
    fn a_landing_pad_belongs_to_the_function() {
        let layout = X86_64::decode(&ENDBR64, &NOP5).expect("a site");
        assert_eq!(X86_64::func(SITE, layout), FuncAddr::new(0x40_1000));
        let layout = X86_64::decode(&[0xc3, 0x90, 0x90, 0x90], &NOP5).expect("a site");
        assert_eq!(X86_64::func(SITE, layout), FuncAddr::new(0x40_1004));
    }

    #[test]
    fn other_bytes_are_no_site() {
        for sled in
            [[0x55, 0x48, 0x89, 0xe5, 0x90], [0x90, 0x90, 0x90, 0x90, 0xc3], [0xe8, 0, 0, 0, 0], [0; 5]]
        {
            assert_eq!(X86_64::decode(&[0; 4], &sled), None, "{sled:02x?}");
        }
        assert_eq!(X86_64::decode(&[0; 4], &[0x90; 4]), None);
        assert_eq!(X86_64::decode(&[0; 4], &[0x90; 6]), None);
    }

    #[test]
    fn every_plan_leads_from_each_state_to_each_other_by_the_int3_protocol() {
        let states = [Sled::Off, Sled::Call(0x50_0000), Sled::Call(0x10_0000)];
        for (name, layout) in layouts() {
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
            let layout = X86_64::decode(&[0; 4], &sled).expect(name);
            assert_eq!(X86_64::code(SITE, layout, Sled::Off).expect(name).as_slice(), off, "{name}");
            assert_eq!(X86_64::needs_preparing(layout), sled != off, "{name}");
        }
    }

    #[test]
    fn a_far_trampoline_is_refused_with_both_addresses() {
        let (_, layout) = layouts()[0];
        let refused = OutOfRange { from: SITE.get(), to: FAR };
        assert_eq!(X86_64::code(SITE, layout, Sled::Call(FAR)), Err(refused));
        assert_eq!(X86_64::plan(SITE, layout, Sled::Off, Sled::Call(FAR)), Err(refused));
        assert!(X86_64::code(SITE, layout, Sled::Call(FAR - 1)).is_ok());
    }
}
