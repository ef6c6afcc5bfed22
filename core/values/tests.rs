//! Values of every shape, on both machines, in C and in Rust; what is not known; and types that may be anything.

mod abi;
mod bugs;
mod graph;
mod rust;
mod wild;

use std::string::String;
use std::vec::Vec;

use super::*;
use crate::btf::tests::make::Make;

pub(super) use Machine::{Arm64, X86_64};

/// Encodings of integers.
pub(super) const NONE: u32 = 0;
pub(super) const SIGNED: u32 = 1;
pub(super) const CHAR: u32 = 2;
pub(super) const BOOL: u32 = 4;

/// Memory at some addresses, and nothing in between.
#[derive(Clone, Debug, Default)]
pub(super) struct Pieces(pub(super) Vec<(u64, Vec<u8>)>);

impl Memory for Pieces {
    fn read(&self, addr: u64, into: &mut [u8]) -> bool {
        self.0.iter().any(|(start, bytes)| {
            let from = addr.checked_sub(*start).and_then(|from| usize::try_from(from).ok());
            let there = from.and_then(|from| bytes.get(from..from.checked_add(into.len())?));
            there.is_some_and(|there| {
                into.copy_from_slice(there);
                true
            })
        })
    }
}

/// One symbol, `thing`, of 0x100 bytes at 0xffff_0000.
pub(super) struct OneName;

impl Names for OneName {
    fn symbol(&self, addr: u64, out: &mut dyn Write) -> fmt::Result {
        match addr.checked_sub(0xffff_0000) {
            Some(offset @ 0..0x100) => write!(out, "thing+{offset:#x}"),
            _ => Ok(()),
        }
    }
}

/// What a function is shown to return.
pub(super) fn ret_with(
    make: &Make,
    func: u32,
    machine: Machine,
    registers: [usize; 2],
    memory: &Pieces,
    indirect: Option<usize>,
) -> String {
    let values = Values::new(make.btf(), machine).with_memory(memory).with_names(&OneName);
    let mut text = String::new();
    values
        .write_retval(
            func,
            &Returned { registers: &registers, memory: indirect, ..Returned::default() },
            &mut text,
        )
        .unwrap();
    text
}

/// The same on a machine where it does not matter which.
pub(super) fn ret(make: &Make, func: u32, registers: [usize; 2]) -> String {
    let [one, other] = [X86_64, Arm64].map(|m| ret_with(make, func, m, registers, &Pieces::default(), None));
    assert_eq!(one, other, "x86_64 and arm64");
    one
}

/// What a function is shown to be called with.
pub(super) fn args(
    make: &Make,
    func: u32,
    machine: Machine,
    registers: &[usize],
    stack: Option<(usize, &[u64])>,
) -> String {
    let bytes = stack.map(|(_, words)| words.iter().flat_map(|word| word.to_le_bytes()).collect());
    let memory = Pieces(stack.zip(bytes).map(|((at, _), bytes)| (at as u64, bytes)).into_iter().collect());
    let values = Values::new(make.btf(), machine).with_memory(&memory).with_names(&OneName);
    let mut text = String::new();
    let entered = Entered { registers, stack: stack.map(|(at, _)| at), indirect: None };
    values.write_args(func, &entered, &mut text).unwrap();
    text
}

/// A function without parameters for each type, and what it returns.
pub(super) fn all(make: &mut Make, cases: &[(u32, [usize; 2], &str)]) {
    for (ty, registers, expected) in cases {
        let func = make.function("f", *ty, &[]);
        assert_eq!(ret(make, func, *registers), *expected, "type {ty} in {registers:x?}");
    }
}

const MINUS: usize = usize::MAX;

#[test]
fn scalars_of_c() {
    let mut make = Make::new();
    let int = make.int("int", 4, SIGNED);
    let long = make.int("long", 8, SIGNED);
    let short = make.int("short", 2, SIGNED);
    let byte = make.int("unsigned char", 1, NONE);
    let unsigned = make.int("unsigned int", 4, NONE);
    let size = make.int("unsigned long", 8, NONE);
    let bool = make.int("_Bool", 1, BOOL);
    let char = make.int("char", 1, SIGNED);
    let wide = make.int("__int128", 16, SIGNED);
    let uwide = make.int("unsigned __int128", 16, NONE);
    let modifier = make.constant(int);
    let typedef = make.typedef("ssize_t", long);
    let volatile = make.volatile(typedef);
    all(
        &mut make,
        &[
            (int, [0, 0], "0"),
            (int, [0xffff_fffe, 0], "-2 ENOENT"),
            (int, [MINUS - 1, 0], "-2 ENOENT"),
            (modifier, [0xdead_0000_ffff_fff5, 9], "-11 EAGAIN"),
            (int, [0x7fff_ffff, 0], "2147483647"),
            (int, [(-4096i64) as usize, 0], "-4096"),
            (int, [(-4095i64) as usize, 0], "-4095"),
            (int, [(-512i64) as usize, 0], "-512 ERESTARTSYS"),
            (volatile, [(-22i64) as usize, 0], "-22 EINVAL"),
            (long, [0xffff_ffea, 0], "4294967274"),
            (short, [0x1_fffe, 0], "-2"),
            (byte, [0x1234_56ef, 0], "0xef"),
            (unsigned, [0xffff_ffff_ffff_fff5, 0], "0xfffffff5"),
            (size, [(-2i64) as usize, 0], "0xfffffffffffffffe"),
            (bool, [0xff00, 0], "false"),
            (bool, [0xff01, 0], "true"),
            (bool, [2, 0], "0x2"),
            (char, [0x41, 0], "65 'A'"),
            (char, [0x27, 0], "39 '\\''"),
            (char, [0xe1, 0], "-31"),
            (wide, [MINUS, MINUS], "-0x1"),
            (wide, [5, 1], "0x10000000000000005"),
            (uwide, [MINUS, MINUS], "0xffffffffffffffffffffffffffffffff"),
            (uwide, [7, 0], "0x7"),
        ],
    );
}

#[test]
fn enumerations_by_name() {
    let mut make = Make::new();
    let state =
        make.enumeration("state", 4, false, &[("OFF", 0), ("ON", 1), ("STUCK", 2), ("GONE", 3), ("LAST", 4)]);
    let flags = make.enumeration("flags", 4, false, &[("READ", 1), ("WRITE", 2), ("EXEC", 4), ("ALL", 7)]);
    let signed = make.enumeration("result", 4, true, &[("BAD", -1), ("GOOD", 1)]);
    let large = make.enumeration64("large", false, &[("TOP", i64::MIN), ("LOW", 1)]);
    let tiny = make.enumeration("tiny", 1, true, &[("NEG", -2)]);
    all(
        &mut make,
        &[
            (state, [2, 0], "STUCK"),
            (state, [0x1_0000_0000, 0], "OFF"),
            (state, [5, 0], "5"),
            (flags, [0, 0], "0"),
            (flags, [4, 0], "EXEC"),
            (flags, [5, 0], "READ|EXEC"),
            (flags, [7, 0], "ALL"),
            (flags, [0x42, 0], "WRITE|0x40"),
            (flags, [0x40, 0], "0x40"),
            (signed, [0xffff_ffff, 0], "BAD"),
            (signed, [0xffff_ffea, 0], "-22 EINVAL"),
            (large, [1 << 63, 0], "TOP"),
            (large, [9, 0], "9"),
            (tiny, [0xfe, 0], "NEG"),
        ],
    );
}

#[test]
fn pointers_with_symbols_errors_and_text() {
    let mut make = Make::new();
    let char = make.int("char", 1, NONE);
    let constant = make.constant(char);
    let (plain, text) = (make.ptr(char), make.ptr(constant));
    let void = make.ptr(0);
    all(
        &mut make,
        &[
            (void, [0, 0], "NULL"),
            (void, [0x1000, 0], "0x1000"),
            (void, [0xffff_0010, 0], "0xffff0010 <thing+0x10>"),
            (void, [(-12i64) as usize, 0], "ERR_PTR(-12 ENOMEM)"),
            (void, [(-4095i64) as usize, 0], "ERR_PTR(-4095)"),
            (void, [(-4096i64) as usize, 0], "0xfffffffffffff000"),
            // Without memory to read.
            (text, [0x1000, 0], "0x1000"),
        ],
    );
    let memory = Pieces(vec![
        (0x1000, b"eth0\0".to_vec()),
        (0x2000, b"a\"\n\x01\xff\0".to_vec()),
        (0x3000, vec![b'x'; 100]),
        (0x4000, b"no end".to_vec()),
    ]);
    let long = std::format!("0x3000 \"{}\"...", "x".repeat(64));
    for (ty, addr, expected) in [
        (text, 0x1000, "0x1000 \"eth0\""),
        (text, 0x1004, "0x1004 \"\""),
        (text, 0x2000, "0x2000 \"a\\\"\\n\\x01\\xff\""),
        (text, 0x3000, long.as_str()),
        (text, 0x4000, "0x4000"),
        (text, 0x9000, "0x9000"),
        // What may be written to need not be text yet.
        (plain, 0x1000, "0x1000"),
    ] {
        let func = make.function("f", ty, &[]);
        assert_eq!(ret_with(&make, func, X86_64, [addr, 0], &memory, None), expected);
    }
}

#[test]
fn nothing_returned_is_nothing_shown() {
    let mut make = Make::new();
    let void = make.typedef("nothing", 0);
    let modified = make.constant(void);
    let empty = make.structure("empty", 0, &[]);
    for ty in [0, void, modified, empty] {
        let func = make.function("f", ty, &[]);
        assert_eq!(ret(&make, func, [5, 6]), "");
        let values = Values::new(make.btf(), X86_64);
        assert_eq!(values.retval_at(func), Some(RetvalAt::Nothing));
        assert_eq!(values.return_registers(func), Some(0));
    }
    let wide = make.int("__int128", 16, SIGNED);
    let func = make.function("f", wide, &[]);
    assert_eq!([X86_64, Arm64].map(|m| Values::new(make.btf(), m).return_registers(func)), [Some(2); 2]);
    let int = make.int("int", 4, SIGNED);
    let func = make.function("f", int, &[]);
    let values = Values::new(make.btf(), Arm64);
    assert_eq!(values.retval_at(func), Some(RetvalAt::Registers));
    assert_eq!([int, 9999].map(|id| values.retval_at(id)), [None, None]);
    assert_eq!([func, int].map(|id| values.return_registers(id)), [Some(1), None]);
}

#[test]
fn structures_by_member() {
    let mut make = Make::new();
    let int = make.int("int", 4, SIGNED);
    let size = make.int("unsigned long", 8, NONE);
    let byte = make.int("unsigned char", 1, NONE);
    let char = make.int("char", 1, SIGNED);
    let range = make.fields("range", 16, &[("start", size, 0), ("end", size, 8)]);
    let small = make.fields("small", 8, &[("a", int, 0), ("b", byte, 4)]);
    let inner = make.fields("outer", 12, &[("s", small, 0), ("n", int, 8)]);
    let union = make.union("either", 8, &[("n", int, 0, None), ("w", size, 0, None)]);
    let name = make.array(char, int, 6);
    let named = make.fields("named", 8, &[("name", name, 0), ("k", byte, 6)]);
    let numbers = make.array(byte, int, 3);
    let holds = make.fields("", 3, &[("", numbers, 0)]);
    let bits = [
        ("lo", byte, 0, Some(4)),
        ("hi", byte, 4, Some(4)),
        ("s", int, 8, Some(3)),
        ("on", byte, 11, Some(1)),
    ];
    let bits = make.structure("bits", 4, &bits);
    all(
        &mut make,
        &[
            (range, [0x10, 0x20], "{ .start = 0x10, .end = 0x20 }"),
            (small, [0xffee_dd07_0000_0005, 1], "{ .a = 5, .b = 0x7 }"),
            (inner, [0x07_0000_0005, 0xffff_ffff_ffff_fffe], "{ .s = { .a = 5, .b = 0x7 }, .n = -2 }"),
            (union, [0xffff_fffe, 1], "{ .n = -2, .w = 0xfffffffe }"),
            (named, [0x0900_0000_316c, 0], "{ .name = \"l1\", .k = 0x0 }"),
            (holds, [0x030201, 0], "{ [0x1, 0x2, 0x3] }"),
            (bits, [0x0e45, 0], "{ .lo = 0x5, .hi = 0x4, .s = -2, .on = 0x1 }"),
        ],
    );
}

#[test]
fn large_values_are_read_where_they_were_returned() {
    let mut make = Make::new();
    let size = make.int("unsigned long", 8, NONE);
    let how = make.fields("how", 24, &[("flags", size, 0), ("mode", size, 8), ("resolve", size, 16)]);
    let func = make.function("build", how, &[]);
    let bytes = [1u64, 2, 3].iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    let memory = Pieces(vec![(0x5000, bytes.clone())]);
    let shown = "{ .flags = 0x1, .mode = 0x2, .resolve = 0x3 }";
    assert_eq!(ret_with(&make, func, X86_64, [0x5000, 7], &memory, None), shown);
    // x0 holds anything on arm64.
    assert_eq!(ret_with(&make, func, Arm64, [0x5000, 7], &memory, None), "?");
    assert_eq!(ret_with(&make, func, Arm64, [7, 7], &memory, Some(0x5000)), shown);
    for (machine, indirect) in [(X86_64, None), (Arm64, Some(0x6000))] {
        assert_eq!(ret_with(&make, func, machine, [0x6000, 7], &memory, indirect), "?");
    }
    // Memory that ends inside of the value.
    let cut = Pieces(vec![(0x5000, bytes[..17].to_vec())]);
    let expected = "{ .flags = 0x1, .mode = 0x2, .resolve = ? }";
    assert_eq!(ret_with(&make, func, X86_64, [0x5000, 7], &cut, None), expected);
}

#[test]
fn what_is_large_or_deep_is_cut() {
    let mut make = Make::new();
    let byte = make.int("unsigned char", 1, NONE);
    let many = make.array(byte, byte, 16);
    let list = make.fields("list", 16, &[("bytes", many, 0)]);
    all(&mut make, &[(list, [0, 0], "{ .bytes = [0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, ...] }")]);
    let mut at = byte;
    for _ in 0..10 {
        at = make.fields("s", 1, &[("m", at, 0)]);
    }
    all(&mut make, &[(at, [1, 0], "{ .m = { .m = { .m = { .m = { .m = { .m = ... } } } } } }")]);
    let fields: Vec<_> = (0..100).map(|_| ("m", byte, 0, None)).collect();
    let wide = make.union("wide", 1, &fields);
    let func = make.function("f", wide, &[]);
    let text = ret(&make, func, [1, 0]);
    assert!(text.ends_with(", ... }") && text.len() < 800, "{text}");
}

#[test]
fn without_names_parameters_are_values_and_the_rest_is_dots() {
    let mut make = Make::new();
    let int = make.int("int", 4, SIGNED);
    let char = make.int("char", 1, NONE);
    let constant = make.constant(char);
    let text = make.ptr(constant);
    let func = make.function("f", int, &[("fmt", text), ("", int), ("", 0)]);
    for machine in [X86_64, Arm64] {
        assert_eq!(args(&make, func, machine, &[0x1000, 0xffff_fffe], None), "fmt=0x1000, -2, ...");
        assert_eq!(args(&make, func, machine, &[0x1000], None), "fmt=0x1000, ?, ...");
    }
    let none = make.function("g", int, &[]);
    assert_eq!(args(&make, none, X86_64, &[1, 2, 3], None), "");
    let int_is_no_function = args(&make, int, X86_64, &[1], None);
    assert_eq!(int_is_no_function, "?");
}
