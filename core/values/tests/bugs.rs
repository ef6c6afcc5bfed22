//! What others showed wrong, by the numbers of the public reports' list.

use super::*;

#[test]
fn bt_01_upper_bits_of_narrow_values_are_not_looked_at() {
    let mut make = Make::new();
    let byte = make.int("u8", 1, NONE);
    let int = make.int("int", 4, SIGNED);
    let short = make.int("s16", 2, SIGNED);
    let bool = make.int("bool", 1, BOOL);
    let state = make.enumeration("state", 4, false, &[("IDLE", 0), ("BUSY", 1)]);
    all(
        &mut make,
        &[
            (byte, [0x0123_4567_89ab_cdef, 0], "0xef"),
            (int, [0x2_0000_0000, 0], "0"),
            (int, [0xffff_ffea, 0], "-22 EINVAL"),
            (short, [0x8000, 0], "-32768"),
            (bool, [0x100, 0], "false"),
            (state, [0xffff_ffff_0000_0001, 0], "BUSY"),
        ],
    );
}

#[test]
fn bt_02_the_type_decides_what_is_an_error() {
    let mut make = Make::new();
    let int = make.int("int", 4, SIGNED);
    let unsigned = make.int("unsigned int", 4, NONE);
    let long = make.int("long", 8, SIGNED);
    let bool = make.int("bool", 1, BOOL);
    let state = make.enumeration("state", 4, false, &[("IDLE", 0), ("BUSY", 1)]);
    let ptr = make.ptr(int);
    let (narrow, wide) = (0xffff_fff5usize, -11i64 as usize);
    all(
        &mut make,
        &[
            (int, [narrow, 0], "-11 EAGAIN"),
            (int, [wide, 0], "-11 EAGAIN"),
            (unsigned, [narrow, 0], "0xfffffff5"),
            (unsigned, [wide, 0], "0xfffffff5"),
            (long, [narrow, 0], "4294967285"),
            (long, [wide, 0], "-11 EAGAIN"),
            (ptr, [narrow, 0], "0xfffffff5"),
            (ptr, [wide, 0], "ERR_PTR(-11 EAGAIN)"),
            (bool, [wide, 0], "0xf5"),
            (state, [wide, 0], "-11 EAGAIN"),
        ],
    );
    // Arguments are no errors.
    let func = make.function("f", 0, &[("n", int)]);
    assert_eq!(args(&make, func, X86_64, &[narrow], None), "n=-11");
}

#[test]
fn bt_06_plain_char_has_the_sign_that_the_file_says() {
    let mut make = Make::new();
    let signed = make.int("char", 1, SIGNED);
    let unsigned = make.int("char", 1, NONE);
    all(&mut make, &[(signed, [0xe1, 0], "-31"), (unsigned, [0xe1, 0], "225")]);
}

#[test]
fn bt_15_bit_fields_are_cut_where_they_are() {
    let mut make = Make::new();
    let byte = make.int("__u8", 1, NONE);
    let word = make.int("u64", 8, NONE);
    let ip = make.structure("iphdr", 1, &[("ihl", byte, 0, Some(4)), ("version", byte, 4, Some(4))]);
    let across = [("low", word, 0, Some(30)), ("mid", word, 30, Some(10)), ("rest", word, 40, Some(64))];
    let across = make.structure("across", 16, &across);
    all(
        &mut make,
        &[
            (ip, [0x45, 0], "{ .ihl = 0x5, .version = 0x4 }"),
            (
                across,
                [0xab << 40 | 0x3ff << 30 | 7, 0xcd],
                "{ .low = 0x7, .mid = 0x3ff, .rest = 0xcd0000ab }",
            ),
        ],
    );
}

#[test]
fn bt_17_one_odd_member_does_not_hide_the_others() {
    let mut make = Make::new();
    let int = make.int("int", 4, SIGNED);
    let hidden = make.fwd("hidden", false);
    let task = make.structure(
        "task",
        8,
        &[("on", int, 0, Some(1)), ("odd", hidden, 8, None), ("pid", int, 32, None)],
    );
    let holder = make.function("f", task, &[]);
    // Where a value with a member of no size is, nobody knows; but in memory that is said to be one, the rest is there.
    make.tag("fgraph:ret=m0", holder, -1);
    let memory = Pieces(vec![(0x10, vec![1, 0, 0, 0, 42, 0, 0, 0])]);
    let shown = ret_with(&make, holder, X86_64, [0x10, 0], &memory, None);
    assert_eq!(shown, "{ .on = -1, .odd = ?, .pid = 42 }");
}

#[test]
fn bt_21_floats_are_not_printed_from_general_registers() {
    let mut make = Make::new();
    let double = make.float("double", 8);
    let func = make.function("f", double, &[("x", double)]);
    for machine in [X86_64, Arm64] {
        assert_eq!(Values::new(make.btf(), machine).retval_at(func), Some(RetvalAt::Lost));
        assert_eq!(ret_with(&make, func, machine, [1, 2], &Pieces::default(), None), "?");
        assert_eq!(args(&make, func, machine, &[1, 2], None), "x=?");
    }
}

#[test]
fn errors_are_told_by_type() {
    let mut make = Make::new();
    let int = make.int("int", 4, SIGNED);
    let long = make.int("long", 8, SIGNED);
    let short = make.int("short", 2, SIGNED);
    let unsigned = make.int("unsigned int", 4, NONE);
    let bool = make.int("bool", 1, BOOL);
    let double = make.float("double", 8);
    let ptr = make.ptr(int);
    let state = make.enumeration("state", 4, false, &[("IDLE", 0), ("BUSY", 1)]);
    let signed = make.enumeration("result", 4, true, &[("BAD", -1)]);
    let large = make.fields("large", 24, &[("a", long, 0), ("b", long, 8), ("c", long, 16)]);
    let ok = make.fields("Ok", 8, &[("__0", int, 4)]);
    let err = make.fields("Err", 8, &[("__0", unsigned, 4)]);
    let result = make.union("Result<i32, u32>", 8, &[("Ok", ok, 0, None), ("Err", err, 0, None)]);
    for (tag, component) in [("fgraph:variants=0,4", -1), ("fgraph:variant=0", 0), ("fgraph:variant=1", 1)] {
        make.tag(tag, result, component);
    }
    let (narrow, wide) = (0xffff_fff5usize, -11i64 as usize);
    for (abi, ty, value, expected) in [
        ("", int, narrow, Some(true)),
        ("", int, wide, Some(true)),
        ("", int, -4096i64 as usize, Some(false)),
        ("", int, 0, Some(false)),
        ("", long, narrow, Some(false)),
        ("", long, wide, Some(true)),
        ("", short, wide, Some(false)),
        ("", unsigned, narrow, Some(false)),
        ("", bool, wide, Some(false)),
        ("", 0, wide, Some(false)),
        ("", ptr, wide, Some(true)),
        ("", ptr, narrow, Some(false)),
        ("", state, narrow, Some(true)),
        ("", state, 1, Some(false)),
        ("", signed, 0xffff_ffff, Some(true)),
        ("", double, wide, Some(false)),
        ("", large, wide, Some(false)),
        ("fgraph:abi=rust", int, narrow, Some(false)),
        ("fgraph:abi=rust", ptr, wide, Some(false)),
        ("fgraph:abi=rust-c", int, narrow, Some(true)),
        ("fgraph:abi=rust", result, 5 << 32, Some(false)),
        ("fgraph:abi=rust", result, 5 << 32 | 1, Some(true)),
        ("fgraph:abi=rust", result, 5 << 32 | 2, None),
    ] {
        let func = make.function("f", ty, &[]);
        if !abi.is_empty() {
            make.tag(abi, func, -1);
        }
        let returned = Returned { registers: &[value, 0], ..Returned::default() };
        let values = Values::new(make.btf(), X86_64);
        assert_eq!(values.is_error(func, &returned), expected, "{abi} {ty} {value:x}");
        if matches!(expected, Some(true)) {
            assert_eq!(values.is_error(func, &Returned::default()), None, "not recorded");
        }
    }
}

#[test]
fn where_floats_are_must_be_known() {
    let mut make = Make::new();
    let int = make.int("int", 4, SIGNED);
    let double = make.float("double", 8);
    let func = make.function("f", double, &[("n", int), ("x", double), ("m", int)]);
    for machine in [X86_64, Arm64] {
        let values = Values::new(make.btf(), machine).with_floats(Floats::Unknown);
        let mut text = String::new();
        values.write_args(func, &Entered { registers: &[1, 2, 3], ..Entered::default() }, &mut text).unwrap();
        assert_eq!((text.as_str(), values.retval_at(func)), ("n=1, x=?, m=?", Some(RetvalAt::Lost)));
    }
}
