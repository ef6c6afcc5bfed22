//! Values in the call graph: by type, raw, hexadecimal or not at all, with whatever was recorded.

use super::*;
use crate::text::{CpuState, Event, Kind as What, NoNames, Options, Printer, Retval, Task};

/// FUNCs by address.
struct At(Vec<(u64, u32)>);

impl Functions for At {
    fn function_at(&self, addr: u64) -> Option<u32> {
        self.0.iter().find(|(at, _)| *at == addr).map(|(_, id)| *id)
    }
}

/// A call as a leaf, without columns.
fn leaf(make: &Make, func: u32, options: Options, args: &[usize], retval: Option<Retval>) -> String {
    let functions = At(vec![(0x1000, func)]);
    let values = Values::new(make.btf(), X86_64);
    let typed = Typed::new(&NoNames, &functions, values);
    let event = |kind| Event { cpu: 0, time_ns: 0, task: Task::new(1, "t"), kind };
    let entry = |func| event(What::Entry { func, depth: 0, ret_addr: None, args });
    let back = |func| event(What::Return { func, depth: 0, duration_ns: 0, retval, overrun: 0 });
    let mut cpus = [CpuState::NEW];
    let mut printer = Printer::new(options, &mut cpus);
    let mut text = String::new();
    for func in [0x1000, 0x2000] {
        printer.event(&entry(func), Some(&back(func)), &typed, &mut text).unwrap();
        printer.event(&back(func), None, &typed, &mut text).unwrap();
    }
    text
}

#[test]
fn options_choose_how_values_look() {
    let mut make = Make::new();
    let int = make.int("int", 4, SIGNED);
    let func = make.function("f", int, &[("fd", int), ("n", int)]);
    let retval = Some(Retval { first: 0xffff_fffe, second: None });
    let shown = |options| leaf(&make, func, options, &[3, 0xffff_ffff], retval);
    let (args, ret) = (Options::ARGS, Options::RETVAL);
    for (options, known, unknown) in [
        (Options::TYPED, "();", "();"),
        (args | ret, "(0x3, 0xffffffff); /* ret=-2 */", "(0x3, 0xffffffff); /* ret=-2 */"),
        (ret | Options::RETVAL_HEX, "(); /* ret=0xfffffffe */", "(); /* ret=0xfffffffe */"),
        (args | ret | Options::TYPED, "(fd=3, n=-1); /* ret=-2 ENOENT */", "(0x3, 0xffffffff); /* ret=-2 */"),
        (ret | Options::TYPED | Options::RETVAL_HEX, "(); /* ret=0xfffffffe */", "(); /* ret=0xfffffffe */"),
    ] {
        let expected = std::format!("0x1000{known}\n0x2000{unknown}\n");
        assert_eq!(shown(options), expected, "{options:?}");
    }
}

#[test]
fn nothing_and_what_is_not_known_shows_no_value() {
    let mut make = Make::new();
    let int = make.int("int", 4, SIGNED);
    let double = make.float("double", 8);
    let size = make.int("size_t", 8, NONE);
    let pair = make.fields("pair", 16, &[("a", size, 0), ("b", size, 8)]);
    let large = make.fields("large", 24, &[("p", pair, 0), ("c", size, 16)]);
    let options = Options::RETVAL | Options::TYPED;
    let (one, two) = (Some(Retval { first: 5, second: None }), Some(Retval { first: 5, second: Some(6) }));
    for (ret, retval, expected) in [
        (0, one, "();"),
        (double, one, "();"),
        (int, None, "();"),
        (int, one, "(); /* ret=5 */"),
        (pair, two, "(); /* ret={ .a = 0x5, .b = 0x6 } */"),
        // Memory that is something else by the time it is shown.
        (large, two, "();"),
        // The second register was not recorded: nobody knows what was in it.
        (pair, one, "(); /* ret={ .a = 0x5, .b = ? } */"),
    ] {
        let func = make.function("f", ret, &[]);
        let shown = leaf(&make, func, options, &[], retval);
        assert_eq!(shown.lines().next(), Some(std::format!("0x1000{expected}").as_str()));
        // The registers of such functions say nothing in any form.
        let raw = leaf(&make, func, Options::RETVAL, &[], retval);
        assert_eq!(raw.lines().next().unwrap().contains("ret="), expected.contains("ret="));
    }
}

#[test]
fn memory_that_others_write_is_left_out() {
    let mut make = Make::new();
    let char = make.int("char", 1, NONE);
    let constant = make.constant(char);
    let text = make.ptr(constant);
    let func = make.function("f", text, &[]);
    let all = Pieces(vec![(0x1000, b"name\0".to_vec())]);
    for (range, expected) in [
        ((0x1000, 0x1005), "0x1000 \"name\""),
        ((0x1000, 0x1004), "0x1000"),
        ((0x1001, 0x2000), "0x1000"),
        ((0, u64::MAX), "0x1000 \"name\""),
    ] {
        let within = Within::new(&all, range.0, range.1);
        let values = Values::new(make.btf(), Arm64).with_memory(&within);
        let mut shown = String::new();
        values.write_retval(func, &Returned { registers: &[0x1000], memory: None }, &mut shown).unwrap();
        assert_eq!(shown, expected);
        assert!(!within.read(u64::MAX, &mut [0; 2]));
    }
}
