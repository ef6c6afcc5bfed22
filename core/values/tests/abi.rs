//! Where values of C are, by the psABIs: registers, the stack, memory, and what travels in vectors.

use super::*;

/// Functions of C with their parameters, and what they are shown to be called with: on x86_64, then on arm64. Register n holds 0x10 + n,
/// and word n of the stack 0x90 + n.
fn check(make: &mut Make, cases: &[(u32, &[u32], &str, &str)]) {
    let registers: [usize; 8] = core::array::from_fn(|n| 0x10 + n);
    let stack: [u64; 8] = core::array::from_fn(|n| 0x90 + n as u64);
    for (ret, params, on_x86_64, on_arm64) in cases {
        let named: Vec<_> = params.iter().map(|ty| ("", *ty)).collect();
        let func = make.function("f", *ret, &named);
        let shown = |machine| args(make, func, machine, &registers, Some((0x7000, &stack)));
        assert_eq!(shown(X86_64), *on_x86_64, "{params:?} on x86_64");
        assert_eq!(shown(Arm64), *on_arm64, "{params:?} on arm64");
    }
}

#[test]
fn arguments_take_registers_and_then_the_stack() {
    let mut make = Make::new();
    let size = make.int("size_t", 8, NONE);
    let byte = make.int("u8", 1, NONE);
    let wide = make.int("u128", 16, NONE);
    let pair = make.fields("pair", 16, &[("a", size, 0), ("b", size, 8)]);
    let odd = make.fields("odd", 12, &[("a", size, 0), ("b", byte, 8)]);
    let large = make.fields("large", 24, &[("a", size, 0), ("b", size, 8), ("c", size, 16)]);
    let empty = make.structure("empty", 0, &[]);
    check(
        &mut make,
        &[
            (0, &[size, byte, size], "0x10, 0x11, 0x12", "0x10, 0x11, 0x12"),
            (
                0,
                &[size; 10],
                "0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x90, 0x91, 0x92, 0x93",
                "0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x90, 0x91",
            ),
            (0, &[empty, size], "{}, 0x10", "{}, 0x10"),
            (0, &[pair, size], "{ .a = 0x10, .b = 0x11 }, 0x12", "{ .a = 0x10, .b = 0x11 }, 0x12"),
            (0, &[odd, size], "{ .a = 0x10, .b = 0x11 }, 0x12", "{ .a = 0x10, .b = 0x11 }, 0x12"),
            // Two words with one register left: x86_64 gives that to the next one, arm64 to nobody.
            (
                0,
                &[size, size, size, size, size, pair, size],
                "0x10, 0x11, 0x12, 0x13, 0x14, { .a = 0x90, .b = 0x91 }, 0x15",
                "0x10, 0x11, 0x12, 0x13, 0x14, { .a = 0x15, .b = 0x16 }, 0x17",
            ),
            (
                0,
                &[size, size, size, size, size, size, size, pair, size],
                "0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x90, { .a = 0x91, .b = 0x92 }, 0x93",
                "0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, { .a = 0x90, .b = 0x91 }, 0x92",
            ),
            // 128 bits begin at an even register on arm64, and at 16 bytes on both stacks.
            (0, &[size, wide, size], "0x10, 0x120000000000000011, 0x13", "0x10, 0x130000000000000012, 0x14"),
            (
                0,
                &[size, size, size, size, size, size, size, wide, size],
                "0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x90, 0x930000000000000092, 0x94",
                "0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x910000000000000090, 0x92",
            ),
            // Large ones: on the stack of x86_64, behind an address on arm64, which leads nowhere here.
            (0, &[large, size], "{ .a = 0x90, .b = 0x91, .c = 0x92 }, 0x10", "?, 0x11"),
            // The address for a large return value comes first on x86_64; arm64 has a register for it.
            (large, &[size, size], "0x11, 0x12", "0x10, 0x11"),
            (pair, &[size, size], "0x10, 0x11", "0x10, 0x11"),
        ],
    );
}

#[test]
fn large_arguments_are_read_behind_their_address_on_arm64() {
    let mut make = Make::new();
    let size = make.int("size_t", 8, NONE);
    let large = make.fields("large", 24, &[("a", size, 0), ("b", size, 8), ("c", size, 16)]);
    let func = make.function("f", 0, &[("l", large), ("n", size)]);
    let shown = args(&make, func, Arm64, &[0x7000, 5], Some((0x7000, &[1, 2, 3])));
    assert_eq!(shown, "l={ .a = 0x1, .b = 0x2, .c = 0x3 }, n=0x5");
}

#[test]
fn what_was_not_kept_is_not_known() {
    let mut make = Make::new();
    let size = make.int("size_t", 8, NONE);
    let pair = make.fields("pair", 16, &[("a", size, 0), ("b", size, 8)]);
    let func = make.function("f", pair, &[("p", pair), ("n", size), ("m", pair)]);
    for machine in [X86_64, Arm64] {
        let shown = |registers: &[usize]| args(&make, func, machine, registers, None);
        assert_eq!(shown(&[1, 2, 3, 4, 5]), "p={ .a = 0x1, .b = 0x2 }, n=0x3, m={ .a = 0x4, .b = 0x5 }");
        assert_eq!(shown(&[1, 2, 3, 4]), "p={ .a = 0x1, .b = 0x2 }, n=0x3, m={ .a = 0x4, .b = ? }");
        assert_eq!(shown(&[1]), "p={ .a = 0x1, .b = ? }, n=?, m=?");
        assert_eq!(shown(&[]), "p=?, n=?, m=?");
        let values = Values::new(make.btf(), machine);
        for (registers, expected) in
            [(&[1, 2][..], "{ .a = 0x1, .b = 0x2 }"), (&[1], "{ .a = 0x1, .b = ? }"), (&[], "?")]
        {
            let mut text = String::new();
            values.write_retval(func, &Returned { registers, ..Returned::default() }, &mut text).unwrap();
            assert_eq!(text, expected);
        }
    }
    // More words than the machine has registers for arguments are not taken for arguments.
    let many = make.function("g", 0, &[("", size); 9]);
    let shown = args(&make, many, X86_64, &[0; 9], None);
    assert_eq!(shown, "0x0, 0x0, 0x0, 0x0, 0x0, 0x0, ?, ?, ?");
}

#[test]
fn floating_point_numbers_take_no_general_register() {
    let mut make = Make::new();
    let size = make.int("size_t", 8, NONE);
    let int = make.int("int", 4, SIGNED);
    let double = make.float("double", 8);
    let single = make.float("float", 4);
    let extended = make.float("long double", 16);
    let mixed = make.fields("mixed", 16, &[("x", double, 0), ("n", size, 8)]);
    let point = make.fields("point", 8, &[("x", single, 0), ("y", single, 4)]);
    let with_int = make.fields("with_int", 8, &[("x", single, 0), ("n", int, 4)]);
    let five = make.array(double, int, 5);
    let many = make.fields("many", 40, &[("x", five, 0)]);
    check(
        &mut make,
        &[
            (0, &[size, double, size, single, size], "0x10, ?, 0x11, ?, 0x12", "0x10, ?, 0x11, ?, 0x12"),
            (0, &[mixed, size], "{ .x = ?, .n = 0x10 }, 0x11", "{ .x = float:0x10, .n = 0x11 }, 0x12"),
            (0, &[point, size], "?, 0x10", "?, 0x10"),
            (0, &[with_int, size], "{ .x = float:0x10, .n = 0 }, 0x11", "{ .x = float:0x10, .n = 0 }, 0x11"),
            // Nine numbers are one more than there are vector registers.
            (
                0,
                &[double, double, double, double, double, double, double, double, double, size],
                "?, ?, ?, ?, ?, ?, ?, ?, float:0x90, 0x10",
                "?, ?, ?, ?, ?, ?, ?, ?, float:0x90, 0x10",
            ),
        ],
    );
    // What each machine says of such return values.
    for (ty, on_x86_64, on_arm64, registers) in [
        (double, RetvalAt::Lost, RetvalAt::Lost, [1, 1]),
        (point, RetvalAt::Lost, RetvalAt::Lost, [1, 1]),
        (extended, RetvalAt::Lost, RetvalAt::Lost, [1, 1]),
        // The number is in xmm0, so what is not one comes in rax.
        (mixed, RetvalAt::Registers, RetvalAt::Registers, [1, 2]),
        (with_int, RetvalAt::Registers, RetvalAt::Registers, [1, 1]),
        (many, RetvalAt::Behind, RetvalAt::Memory, [1, 1]),
    ] {
        let func = make.function("f", ty, &[]);
        let retval = |machine| Values::new(make.btf(), machine).retval_at(func);
        assert_eq!((retval(X86_64), retval(Arm64)), (Some(on_x86_64), Some(on_arm64)), "{ty}");
        let count = |machine| Values::new(make.btf(), machine).return_registers(func);
        assert_eq!([count(X86_64), count(Arm64)], registers.map(Some), "{ty}");
    }
    let func = make.function("f", mixed, &[]);
    let shown = |machine| ret_with(&make, func, machine, [5, 6], &Pieces::default(), None);
    assert_eq!(shown(X86_64), "{ .x = ?, .n = 0x5 }");
    assert_eq!(shown(Arm64), "{ .x = float:0x5, .n = 0x6 }");
}

#[test]
fn code_without_vectors_has_numbers_in_general_registers() {
    let mut make = Make::new();
    let size = make.int("size_t", 8, NONE);
    let double = make.float("double", 8);
    let func = make.function("f", double, &[("", size), ("", double)]);
    for machine in [X86_64, Arm64] {
        let values = Values::new(make.btf(), machine).with_floats(Floats::General);
        let mut text = String::new();
        values
            .write_args(func, &Entered { registers: &[1, 2, 3], stack: None, indirect: None }, &mut text)
            .unwrap();
        values
            .write_retval(func, &Returned { registers: &[4, 5], ..Returned::default() }, &mut text)
            .unwrap();
        assert_eq!(text, "0x1, float:0x2float:0x4");
    }
}

#[test]
fn unaligned_members_are_in_memory_on_x86_64() {
    let mut make = Make::new();
    let int = make.int("int", 4, SIGNED);
    let byte = make.int("u8", 1, NONE);
    let packed = make.fields("packed", 5, &[("b", byte, 0), ("n", int, 1)]);
    check(&mut make, &[(0, &[packed, byte], "{ .b = 0x90, .n = 0 }, 0x10", "{ .b = 0x10, .n = 0 }, 0x11")]);
    let func = make.function("f", packed, &[]);
    let memory = Pieces(vec![(0x10, vec![1, 2, 0, 0, 0])]);
    assert_eq!(ret_with(&make, func, X86_64, [0x10, 9], &memory, None), "{ .b = 0x1, .n = 2 }");
    assert_eq!(ret_with(&make, func, Arm64, [0x0210, 9], &memory, None), "{ .b = 0x10, .n = 2 }");
}

#[test]
fn behind_a_type_without_a_size_nothing_is_known() {
    let mut make = Make::new();
    let size = make.int("size_t", 8, NONE);
    let hidden = make.fwd("hidden", false);
    check(&mut make, &[(0, &[size, hidden, size], "0x10, ?, ?", "0x10, ?, ?")]);
    // If what is returned has no size, nobody knows whether its address takes the first register of x86_64.
    let func = make.function("f", hidden, &[("", size)]);
    assert_eq!(args(&make, func, X86_64, &[1, 2], None), "?");
    assert_eq!(args(&make, func, Arm64, &[1, 2], None), "0x1");
    assert_eq!(Values::new(make.btf(), X86_64).retval_at(func), Some(RetvalAt::Lost));
}
