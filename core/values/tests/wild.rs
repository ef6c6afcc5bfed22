//! Types that may be anything: nothing panics, and the work and the text have an end.

use std::println;

use super::*;
use crate::btf::{Sections, tests::make::open, tests::real::sample};
use crate::testing::{Random, storm};

/// Longest text of one value or argument list that is right: names of 64 values, with what they hold.
const LONGEST: usize = 1 << 17;

/// Memory that has the same byte everywhere.
struct Everywhere(u8);

impl Memory for Everywhere {
    fn read(&self, _addr: u64, into: &mut [u8]) -> bool {
        into.fill(self.0);
        true
    }
}

/// Shows every type as a value and every function as a call.
fn show_everything(btf: Btf<'_>, random: &mut Random) -> usize {
    let mut shown = 0;
    let words: [usize; 9] = core::array::from_fn(|_| random.word() as usize >> random.below(64));
    for machine in [X86_64, Arm64] {
        for memory in [&Everywhere(random.word() as u8) as &dyn Memory, &NoMemory] {
            for floats in [Floats::Vector, Floats::General] {
                let values = Values::new(btf, machine).with_memory(memory).with_floats(floats);
                for id in 0..btf.end() + 2 {
                    let mut text = String::new();
                    let entered = Entered {
                        registers: &words[..random.below(9)],
                        stack: Some(words[8]),
                        indirect: Some(words[8]),
                    };
                    values.write_args(id, &entered, &mut text).unwrap();
                    let returned =
                        Returned { registers: &words[..random.below(3)], memory: Some(words[7]), kept: &[] };
                    values.write_retval(id, &returned, &mut text).unwrap();
                    assert!(text.len() < LONGEST, "{id}: {}", text.len());
                    if values.retval_at(id) == Some(RetvalAt::Nothing) {
                        let mut nothing = String::new();
                        values.write_retval(id, &returned, &mut nothing).unwrap();
                        assert_eq!(nothing, "", "{id}");
                    }
                    shown += text.len();
                }
            }
        }
    }
    shown
}

/// A type of any kind, out of types that were made before or will be made.
fn any_type(make: &mut Make, random: &mut Random, types: u32) {
    const TAGS: [&str; 14] = [
        "fgraph:str",
        "fgraph:slice",
        "fgraph:pair=8",
        "fgraph:pair=1",
        "fgraph:pair=99999999999",
        "fgraph:variants=0,1",
        "fgraph:variants=4294967295,8",
        "fgraph:variants=0,0",
        "fgraph:variant=0..=99",
        "fgraph:variant=default",
        "fgraph:abi=rust",
        "fgraph:abi=unknown",
        "fgraph:ret=m0",
        "fgraph:loc=s4,r7",
    ];
    const SIZES: [u32; 10] = [0, 1, 3, 8, 9, 16, 17, 24, 4096, u32::MAX];
    let ty = |random: &mut Random| random.below(types as usize + 1) as u32;
    let size = |random: &mut Random| *random.pick(&SIZES);
    match random.below(16) {
        0 | 1 => make.int(["int", "char", "u8"][random.below(3)], size(random), random.below(8) as u32),
        2 => make.float("long double", size(random)),
        3 => make.ptr(ty(random)),
        4 => make.array(ty(random), 1, size(random)),
        5 => make.typedef("t", ty(random)),
        6 => make.constant(ty(random)),
        7 => make.enumeration("e", size(random), random.one_in(2), &[("A", 0), ("B", 1), ("C", 2), ("D", 8)]),
        8 => make.fwd("hidden", false),
        9..=11 => {
            let fields: Vec<_> = (0..random.below(5))
                .map(|_| {
                    let at = if random.one_in(4) { random.below(1 << 24) } else { 8 * random.below(20) };
                    let bits = Some(random.below(256) as u8).filter(|_| random.one_in(6));
                    (*random.pick(&["__0", "__1", "", "m"]), ty(random), at as u32, bits)
                })
                .collect();
            let name = *random.pick(&["()", "NonZero<", "Error", "S"]);
            let make_it = if random.one_in(3) { Make::union } else { Make::structure };
            make_it(make, name, size(random), &fields)
        }
        12 | 13 => {
            let params: Vec<_> = (0..random.below(12)).map(|_| ("p", ty(random))).collect();
            make.function("f", ty(random), &params)
        }
        _ => make.tag(TAGS[random.below(TAGS.len())], ty(random), random.below(4) as i32 - 1),
    };
}

#[test]
fn any_types_are_shown_or_not_known() {
    let mut shown = 0;
    storm(400, 4, |random| {
        let types = random.between(2, 60) as u32;
        let mut make = Make::new();
        while make.next <= types {
            any_type(&mut make, random, types);
        }
        shown += show_everything(make.btf(), random);
    });
    assert!(shown > 1000);
}

#[test]
fn circles_end() {
    let mut make = Make::new();
    // A structure in itself, a typedef of itself, an array of itself, a newtype in a circle of two.
    make.structure("s", 8, &[("a", 1, 0, None), ("b", 1, 32, None)]);
    make.typedef("t", 2);
    make.array(3, 1, u32::MAX);
    make.structure("n", 8, &[("__0", 5, 0, None)]);
    make.structure("m", 8, &[("__0", 4, 0, None)]);
    make.union("u", 8, &[("__0", 6, 0, None), ("x", 5, 0, None)]);
    make.tag("fgraph:variants=0,1", 6, -1);
    make.tag("fgraph:variant=default", 6, 0);
    make.tag("fgraph:pair=1", 4, -1);
    for ty in 1..7 {
        for abi in ["fgraph:abi=rust", "fgraph:abi=c", "fgraph:abi=unknown"] {
            let func = make.function("f", ty, &[("p", ty); 40]);
            make.tag(abi, func, -1);
        }
    }
    let mut random = Random::new(1);
    assert!(show_everything(make.btf(), &mut random) > 0);
}

#[test]
fn members_without_end_are_cut() {
    let mut make = Make::new();
    let hidden = make.fwd("hidden", false);
    let fields: Vec<_> = (0..100_000).map(|_| ("m", hidden, 0, None)).collect();
    let many = make.structure("many", 8, &fields);
    let func = make.function("f", many, &[]);
    make.tag("fgraph:ret=r0", func, -1);
    assert!(ret(&make, func, [1, 0]).len() < 1000);
}

#[test]
fn bt_04_05_every_function_of_real_kernels_is_shown() {
    if cfg!(miri) {
        println!("skipped: millions of bytes in Miri");
        return;
    }
    for (file, machine) in [("linux-6.12-x86_64.btf.xz", X86_64), ("linux-6.12-arm64.btf.xz", Arm64)] {
        let Some(bytes) = sample(file) else { continue };
        let btf = open(bytes).unwrap();
        let values = Values::new(btf, machine);
        let mut counts = [0u32; 5];
        let words: [usize; 8] = core::array::from_fn(|n| 0x11 * (n + 1));
        for id in 1..btf.end() {
            let Some(retval) = values.retval_at(id) else { continue };
            let mut text = String::new();
            let returned = Returned { registers: &words[..2], ..Returned::default() };
            values.write_retval(id, &returned, &mut text).unwrap();
            counts[retval as usize] += 1;
            assert_eq!(text.is_empty(), retval == RetvalAt::Nothing, "{file}: {id}");
            assert!(retval != RetvalAt::Lost || text == "?", "{file}: {id}: {text}");
            let mut text = String::new();
            values
                .write_args(id, &Entered { registers: &words, stack: None, indirect: None }, &mut text)
                .unwrap();
        }
        println!("{file}: nothing, registers, behind, memory, lost: {counts:?}");
        assert!(counts[0] > 10_000 && counts[1] > 20_000 && counts[4] < 100, "{counts:?}");
        for (name, expected) in [
            ("arch_get_mappable_range", "{ .start = 0x11, .end = 0x22 }"),
            ("vm_get_page_prot", "{ .pgprot = 0x11 }"),
            ("build_open_how", "?"),
        ] {
            let Some(func) = btf.by_name(name).find(|ty| matches!(ty.kind, Kind::Func { .. })) else {
                println!("{file} has no {name}");
                continue;
            };
            let mut text = String::new();
            values
                .write_retval(func.id, &Returned { registers: &words[..2], ..Returned::default() }, &mut text)
                .unwrap();
            assert_eq!(text, expected, "{file}: {name}");
        }
    }
}

#[test]
fn mutated_bytes_are_refused_or_shown() {
    let mut make = Make::new();
    let int = make.int("int", 4, SIGNED);
    let pair = make.fields("pair", 16, &[("a", int, 0), ("b", int, 8)]);
    let union = make.union("u", 8, &[("x", pair, 0, None), ("y", int, 0, None)]);
    make.tag("fgraph:variants=0,4", union, -1);
    make.tag("fgraph:variant=1", union, 0);
    make.tag("fgraph:pair=8", pair, -1);
    let func = make.function("f", union, &[("p", pair), ("q", union)]);
    make.tag("fgraph:abi=rust", func, -1);
    let bytes = make.bytes();
    let mut opened = 0;
    storm(2000, 20, |random| {
        let mut bytes = bytes.clone();
        for _ in 0..random.between(1, 6) {
            let at = random.below(bytes.len());
            bytes[at] = random.word() as u8;
        }
        let Ok(sections) = Sections::parse(&bytes) else { return };
        let Ok(counts) = sections.count() else { return };
        let mut memory = vec![[0; 4]; counts.words()];
        if let Ok(btf) = Btf::index(sections, &mut memory) {
            opened += 1;
            show_everything(btf, random);
        }
    });
    assert!(cfg!(miri) || opened > 100, "{opened}");
}
