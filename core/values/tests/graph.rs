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
fn leaf(make: &Make, func: u32, options: Options, args: &[usize], retval: Option<Retval<'_>>) -> String {
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
    let retval = Some(Retval { first: 0xffff_fffe, second: None, memory: &[] });
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
    let (one, two) = (
        Some(Retval { first: 5, second: None, memory: &[] }),
        Some(Retval { first: 5, second: Some(6), memory: &[] }),
    );
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
fn memory_that_was_recorded_is_shown_by_type_only() {
    let mut make = Make::new();
    let size = make.int("size_t", 8, NONE);
    let large = make.fields("large", 24, &[("a", size, 0), ("b", size, 8), ("c", size, 16)]);
    let (func, number) = (make.function("f", large, &[]), make.function("g", size, &[]));
    let bytes: Vec<u8> = [0x10_u64, 0x20, 0x30].iter().flat_map(|word| word.to_le_bytes()).collect();
    let of = |len: usize| Some(Retval { first: 0x7000, second: None, memory: &bytes[..len] });
    for (func, len, expected) in [
        (func, 24, "(); /* ret={ .a = 0x10, .b = 0x20, .c = 0x30 } */"),
        (func, 16, "(); /* ret={ .a = 0x10, .b = 0x20, .c = ? } */"),
        (func, 7, "(); /* ret={ .a = ?, .b = ?, .c = ? } */"),
        (func, 0, "();"),
        // What is in registers is not in memory, whatever a trace says.
        (number, 24, "(); /* ret=0x7000 */"),
    ] {
        let typed = leaf(&make, func, Options::RETVAL | Options::TYPED, &[], of(len));
        assert_eq!(typed.lines().next(), Some(std::format!("0x1000{expected}").as_str()), "{len}");
    }
    for options in [Options::RETVAL, Options::RETVAL | Options::TYPED | Options::RETVAL_HEX] {
        let raw = leaf(&make, func, options, &[], of(24));
        assert_eq!(raw, "0x1000();\n0x2000(); /* ret=0x7000 */\n");
    }
}

#[test]
fn where_what_is_returned_in_memory_is_kept_from() {
    let mut make = Make::new();
    let size = make.int("size_t", 8, NONE);
    let pair = make.fields("pair", 16, &[("a", size, 0), ("b", size, 8)]);
    let large = make.fields("large", 24, &[("p", pair, 0), ("c", size, 16)]);
    let array = make.array(size, size, 20);
    let huge = make.fields("huge", 160, &[("all", array, 0)]);
    let at = |at, bytes| Some(ResultAt { at, bytes });
    for (ty, remark, on_x86_64, on_arm64) in [
        (0, None, None, None),
        (size, None, None, None),
        (pair, None, None, None),
        (large, None, at(AddressAt::Returned(0), 24), at(AddressAt::Indirect, 24)),
        (huge, None, at(AddressAt::Returned(0), 64), at(AddressAt::Indirect, 64)),
        (large, Some("fgraph:ret=e0"), at(AddressAt::Argument(0), 24), at(AddressAt::Argument(0), 24)),
        (large, Some("fgraph:ret=m1"), at(AddressAt::Returned(1), 24), at(AddressAt::Returned(1), 24)),
        (large, Some("fgraph:ret=none"), None, None),
    ] {
        let func = make.function("f", ty, &[]);
        if let Some(remark) = remark {
            make.tag(remark, func, -1);
        }
        let result = |machine| Values::new(make.btf(), machine).result_at(func);
        assert_eq!((result(X86_64), result(Arm64)), (on_x86_64, on_arm64), "{ty} {remark:?}");
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
        values
            .write_retval(func, &Returned { registers: &[0x1000], ..Returned::default() }, &mut shown)
            .unwrap();
        assert_eq!(shown, expected);
        assert!(!within.read(u64::MAX, &mut [0; 2]));
    }
}
