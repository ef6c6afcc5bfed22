//! Walks of memory that holds anything: they end, and read nothing but the stacks and the code they are told of.

use core::ops::Range;
use std::vec::Vec;

use crate::addr::RetAddr;
use crate::arch::arm64::patch::Arm64;
use crate::arch::x86_64::patch::X86_64;
use crate::platform::ReadFault;
use crate::testing::{Random, storm};
use crate::unwind::{CallFrames, End, Hooks, Inspect, Registers, Start, Unwinder};

const STACKS: [Range<usize>; 3] = [0x1000..0x1400, 0x5000..0x5100, 0x1400..0x1480];
const CODE: Range<usize> = 0x9000..0x9400;

struct Wild {
    words: Vec<usize>,
    code: Vec<u8>,
    trap: Registers,
}

impl Inspect for Wild {
    fn read(&self, addr: usize, bytes: &mut [u8]) -> Result<(), ReadFault> {
        let end = addr + bytes.len();
        if CODE.contains(&addr) && end <= CODE.end {
            bytes.copy_from_slice(&self.code[addr - CODE.start..end - CODE.start]);
            return Ok(());
        }
        // A prefix is looked for before functions.
        if (CODE.start - 32..CODE.end + 32).contains(&addr) {
            return Err(ReadFault { addr });
        }
        assert!(STACKS.iter().any(|stack| stack.start <= addr && end <= stack.end), "read at {addr:#x}");
        if addr == 0x5010 {
            return Err(ReadFault { addr });
        }
        bytes.copy_from_slice(&self.words[addr / 8 % self.words.len()].to_ne_bytes());
        Ok(())
    }

    fn function(&self, pc: usize) -> Option<Range<usize>> {
        let start = CODE.start + (pc.wrapping_sub(CODE.start) & 0x3c0);
        CODE.contains(&pc).then_some(start..start + 0x40)
    }

    fn interrupted(&self, pc: usize, _record: usize) -> Option<Registers> {
        (pc.is_multiple_of(7)).then_some(self.trap)
    }
}

fn somewhere(random: &mut Random) -> usize {
    match random.below(8) {
        0..=3 => {
            let stack = random.pick(&STACKS).clone();
            random.between(stack.start, stack.end) & !(if random.one_in(8) { 0 } else { 7 })
        }
        4 | 5 => random.between(CODE.start, CODE.end),
        6 => *random.pick(&[0, 1, 8, usize::MAX, usize::MAX - 7, 0x9000]),
        _ => random.word() as usize,
    }
}

fn registers(random: &mut Random) -> Registers {
    let mut next = || somewhere(random);
    let (pc, sp, fp, link) = (next(), next(), next(), next());
    Registers { pc, sp, fp, link, scratch: [next(), next()] }
}

fn walks_end<M: CallFrames>() {
    let mut ends = [0; 5];
    storm(4_000, 60, |random| {
        let words = (0..0x200).map(|_| somewhere(random)).collect();
        // Instructions that walks know make wild states; the rest makes none.
        let known: [&[u8]; 8] = [
            &[0x55],
            &[0x48, 0x89, 0xe5],
            &[0x5d],
            &[0x48, 0x83, 0xec, 0x40],
            &[0xfd, 0x7b, 0xbe, 0xa9],
            &[0xfd, 0x03, 0x00, 0x91],
            &[0xff, 0x83, 0x00, 0xd1],
            &[0x1f, 0x20, 0x03, 0xd5],
        ];
        let mut code = Vec::new();
        while code.len() < CODE.len() {
            code.extend_from_slice(known[random.below(known.len())]);
            if random.one_in(6) {
                code.push(random.word() as u8);
            }
        }
        let wild = Wild { words, code, trap: registers(random) };
        let start = if random.one_in(4) {
            Start::Called { pc: somewhere(random), fp: somewhere(random) }
        } else {
            Start::Interrupted(registers(random))
        };
        let hooks = Hooks {
            hookers: [RetAddr::new(0x9080), RetAddr::new(0x90a0), RetAddr::new(0x90c0)],
            trampolines: 0x9000..0x9100,
            jumped: 0x9060..0x9080,
        };
        let mut walk = Unwinder::<M, _>::new(&wild, hooks, None, &STACKS, start);
        let frames = walk.by_ref().take(1_000).count();
        assert!(frames <= 500, "{frames} frames");
        let end = walk.end().expect("an end");
        assert_eq!(walk.next(), None);
        ends[match end {
            End::Bottom => 0,
            End::BadFrame { .. } => 1,
            End::NotUp { .. } => 2,
            End::Unreadable { .. } => 3,
            End::NoShadowFrame { .. } => 4,
        }] += 1;
    });
    if !cfg!(miri) {
        assert!(ends.iter().all(|count| *count > 0), "{ends:?}");
    }
}

#[test]
fn walks_of_anything_end_on_arm64() {
    walks_end::<Arm64>();
}

#[test]
fn walks_of_anything_end_on_x86_64() {
    walks_end::<X86_64>();
}
