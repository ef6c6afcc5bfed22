//! Values of Rust: by variant, in pairs of registers, behind addresses.

use super::*;

/// A function called and shown as Rust does.
fn rust(make: &mut Make, ret: u32, params: &[(&str, u32)]) -> u32 {
    let func = make.function("f", ret, params);
    make.tag("fgraph:abi=rust", func, -1);
    func
}

/// The same for each type, and what it returns.
fn all_rust(make: &mut Make, cases: &[(u32, [usize; 2], &str)]) {
    for (ty, registers, expected) in cases {
        let func = rust(make, *ty, &[]);
        assert_eq!(ret(make, func, *registers), *expected, "type {ty} in {registers:x?}");
    }
}

/// An enum: its variants with their types, and what they hold for.
fn variants(make: &mut Make, name: &str, size: u32, tag: &str, all: &[(&str, u32, &str)]) -> u32 {
    let fields: Vec<_> = all.iter().map(|(name, ty, _)| (*name, *ty, 0, None)).collect();
    let union = make.union(name, size, &fields);
    make.tag(&std::format!("fgraph:variants={tag}"), union, -1);
    for (n, (.., holds)) in all.iter().enumerate() {
        make.tag(&std::format!("fgraph:variant={holds}"), union, n as i32);
    }
    union
}

fn pair(make: &mut Make, ty: u32, at: u32) -> u32 {
    make.tag(&std::format!("fgraph:pair={at}"), ty, -1);
    ty
}

/// `&str`
fn str_ref(make: &mut Make) -> u32 {
    let byte = make.int("u8", 1, NONE);
    let (ptr, size) = (make.ptr(byte), make.int("usize", 8, NONE));
    let text = make.fields("&str", 16, &[("data_ptr", ptr, 0), ("length", size, 8)]);
    make.tag("fgraph:str", text, -1);
    pair(make, text, 8)
}

#[test]
fn scalars_as_rust_writes_them() {
    let mut make = Make::new();
    let int = make.int("i32", 4, SIGNED);
    let size = make.int("usize", 8, NONE);
    let char = make.int("char", 4, CHAR);
    let bool = make.int("bool", 1, BOOL);
    let wide = make.int("i128", 16, SIGNED);
    let unit = make.structure("()", 0, &[]);
    let ptr = make.ptr(int);
    let never = make.structure("!", 0, &[]);
    let ordering = make.enumeration("Ordering", 1, true, &[("Less", -1), ("Equal", 0), ("Greater", 1)]);
    let nonzero_inner = make.fields("NonZeroInner", 4, &[("__0", int, 0)]);
    let nonzero = make.fields("NonZero<i32>", 4, &[("__0", nonzero_inner, 0)]);
    let newtype = make.fields("Pid", 4, &[("__0", int, 0)]);
    let named = make.fields("Wrapped", 8, &[("inner", size, 0)]);
    let marker = make.structure("PhantomData<kernel::File>", 0, &[]);
    let marked = [("phantom", marker, 0), ("inner", size, 0), ("alloc", marker, 8)];
    let marked = make.fields("Marked<kernel::File, Global>", 8, &marked);
    let numbered = make.fields("Pair<u64>", 8, &[("__0", marker, 0), ("__1", size, 0)]);
    all_rust(
        &mut make,
        &[
            (int, [0xffff_fffe, 0], "-2"),
            (size, [0xffff, 0], "0xffff"),
            (char, [0x41, 0], "'A'"),
            (char, [0x27, 0], "'\\''"),
            (char, [0xdead_0000_20ac, 0], "'\u{20ac}'"),
            (char, [0xd800, 0], "0xd800"),
            (bool, [0xff01, 0], "true"),
            (wide, [MINUS - 1, MINUS], "-0x2"),
            (unit, [1, 2], ""),
            (never, [1, 2], ""),
            (ptr, [0, 0], "0x0"),
            (ptr, [0xffff_0000, 0], "0xffff0000 <thing+0x0>"),
            (ordering, [0xff, 0], "Less"),
            (ordering, [1, 0], "Greater"),
            (nonzero, [7, 0], "7"),
            (newtype, [7, 0], "Pid(7)"),
            (named, [7, 0], "Wrapped { inner: 0x7 }"),
            (marked, [7, 0], "Marked { inner: 0x7 }"),
            (numbered, [7, 0], "Pair(PhantomData, 0x7)"),
        ],
    );
}

#[test]
fn options_and_results_by_variant() {
    let mut make = Make::new();
    let int = make.int("u32", 4, NONE);
    let signed = make.int("i32", 4, SIGNED);
    let short = make.int("i16", 2, SIGNED);
    let unit = make.structure("()", 0, &[]);
    let none = make.structure("None", 8, &[]);
    let some = make.fields("Some", 8, &[("__0", int, 4)]);
    let option = variants(&mut make, "Option<u32>", 8, "0,4", &[("None", none, "0"), ("Some", some, "1")]);
    pair(&mut make, option, 4);

    let error = make.enumeration("Error", 1, false, &[("NotFound", 0), ("Busy", 1)]);
    let ok = make.fields("Ok", 8, &[("__0", int, 4)]);
    let err = make.fields("Err", 8, &[("__0", error, 1)]);
    let result = variants(&mut make, "Result<u32, Error>", 8, "0,1", &[("Ok", ok, "0"), ("Err", err, "1")]);

    // A niche: 2 of a `bool`, or of such an enum.
    let ok_unit = make.fields("Ok", 1, &[("__0", unit, 1)]);
    let err_only = make.fields("Err", 1, &[("__0", error, 0)]);
    let niche = variants(
        &mut make,
        "Result<(), Error>",
        1,
        "0,1",
        &[("Ok", ok_unit, "2"), ("Err", err_only, "default")],
    );

    // The niche of a pointer.
    let target = make.ptr(int);
    let some_ref = make.fields("Some", 8, &[("__0", target, 0)]);
    let reference =
        variants(&mut make, "Option<&u32>", 8, "0,8", &[("None", none, "0"), ("Some", some_ref, "default")]);

    // Errors in the manner of Linux.
    let errno = make.fields("NonZero<i32>", 4, &[("__0", signed, 0)]);
    let kernel = make.fields("Error", 4, &[("__0", errno, 0)]);
    let err_kernel = make.fields("Err", 4, &[("__0", kernel, 0)]);
    let ok_kernel = make.fields("Ok", 4, &[("__0", unit, 0)]);
    let linux = variants(
        &mut make,
        "Result<(), Error>",
        4,
        "0,4",
        &[("Ok", ok_kernel, "0"), ("Err", err_kernel, "default")],
    );
    let point = make.fields("Moved", 8, &[("x", short, 4), ("y", short, 6)]);
    let quit = make.structure("Quit", 8, &[]);
    let ranges =
        variants(&mut make, "Event", 8, "0,4", &[("Quit", quit, "3..=5"), ("Moved", point, "4294967295")]);
    all_rust(
        &mut make,
        &[
            (option, [0, 77], "None"),
            (option, [1, 0x2a], "Some(0x2a)"),
            (option, [0xffff_0000_0000_0001, 0x2a], "Some(0x2a)"),
            (option, [2, 0x2a], "?"),
            (result, [0x1000 << 32, 0], "Ok(0x1000)"),
            (result, [0x0101, 0], "Err(Busy)"),
            (niche, [2, 0], "Ok(())"),
            (niche, [0, 0], "Err(NotFound)"),
            (niche, [9, 0], "Err(9)"),
            (reference, [0, 0], "None"),
            (reference, [0xffff_0040, 0], "Some(0xffff0040 <thing+0x40>)"),
            (linux, [0, 0], "Ok(())"),
            (linux, [0xffff_fffe, 0], "Err(Error(-2 ENOENT))"),
            (ranges, [4, 0], "Quit"),
            (ranges, [6, 0], "?"),
            (ranges, [0xffff_0005_ffff_ffff, 0], "Moved { x: 5, y: -1 }"),
        ],
    );
}

#[test]
fn text_and_slices() {
    let mut make = Make::new();
    let text = str_ref(&mut make);
    let int = make.int("u32", 4, NONE);
    let (ptr, size) = (make.ptr(int), make.int("usize", 8, NONE));
    let slice = make.fields("&[u32]", 16, &[("data_ptr", ptr, 0), ("length", size, 8)]);
    make.tag("fgraph:slice", slice, -1);
    pair(&mut make, slice, 8);
    let none = make.structure("None", 16, &[]);
    let some = make.fields("Some", 16, &[("__0", text, 0)]);
    let option =
        variants(&mut make, "Option<&str>", 16, "0,8", &[("None", none, "0"), ("Some", some, "default")]);
    pair(&mut make, option, 8);
    let memory = Pieces(vec![
        (0x1000, b"eth0 and more".to_vec()),
        (0x2000, "x".repeat(63).into_bytes().into_iter().chain("\u{20ac}y".bytes()).collect()),
    ]);
    let long = std::format!("\"{}\"...", "x".repeat(63));
    for (ty, registers, expected) in [
        (text, [0x1000, 4], "\"eth0\""),
        (text, [0x1000, 0], "\"\""),
        (text, [0x9000, 4], "0x9000[..4]"),
        (text, [0x1000, 1000], "0x1000[..1000]"),
        // A character that the limit cuts is left out.
        (text, [0x2000, 67], long.as_str()),
        (slice, [0x1000, 4], "0x1000[..4]"),
        (option, [0, 4], "None"),
        (option, [0x1000, 4], "Some(\"eth0\")"),
    ] {
        let func = rust(&mut make, ty, &[]);
        for machine in [X86_64, Arm64] {
            assert_eq!(ret_with(&make, func, machine, registers, &memory, None), expected);
        }
    }
}

#[test]
fn arguments_by_scalar_pair_and_address() {
    let mut make = Make::new();
    let text = str_ref(&mut make);
    let size = make.int("usize", 8, NONE);
    let int = make.int("u32", 4, NONE);
    let byte = make.int("u8", 1, NONE);
    let two = make.fields("(u8, u32)", 8, &[("__0", byte, 0), ("__1", int, 4)]);
    pair(&mut make, two, 4);
    let three = make.fields("(u8, u8, u8)", 3, &[("__0", byte, 0), ("__1", byte, 1), ("__2", byte, 2)]);
    let large = make.fields("Large", 24, &[("a", size, 0), ("b", size, 8), ("c", size, 16)]);
    let unit = make.structure("()", 0, &[]);
    let memory: &[u64] = &[1, 2, 3];
    let func = rust(
        &mut make,
        large,
        &[("s", text), ("u", unit), ("t", two), ("three", three), ("l", large), ("n", size)],
    );
    let words = [0x7000, 8, 5, 6, 0x030201, 0x7000, 9, 10];
    let expected = "s=\"\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00\", u=(), t=(0x5, 0x6), three=(0x1, 0x2, 0x3), \
        l=Large { a: 0x1, b: 0x2, c: 0x3 }, n=0x9";
    // The address for the return value is an argument of its own on x86_64; so `l` and `n` are on the stack.
    assert_eq!(args(&make, func, Arm64, &words, Some((0x7000, memory))), expected);
    let mut shifted = vec![0xdead];
    shifted.extend(&words[..5]);
    let memory: &[u64] = &[0x7010, 9, 1, 2, 3];
    let expected = "s=\"\\x10p\\x00\\x00\\x00\\x00\\x00\\x00\", u=(), t=(0x5, 0x6), three=(0x1, 0x2, 0x3), \
        l=Large { a: 0x1, b: 0x2, c: 0x3 }, n=0x9";
    assert_eq!(args(&make, func, X86_64, &shifted, Some((0x7000, memory))), expected);
}

#[test]
fn halves_of_pairs_have_registers_of_their_own() {
    let mut make = Make::new();
    let byte = make.int("u8", 1, NONE);
    let double = make.float("f64", 8);
    let size = make.int("usize", 8, NONE);
    let bytes = make.fields("(u8, u8)", 2, &[("__0", byte, 0), ("__1", byte, 1)]);
    pair(&mut make, bytes, 1);
    // Fields of a tuple may stand in any order.
    let swapped = make.fields("(u8, usize)", 16, &[("__1", size, 0), ("__0", byte, 8)]);
    pair(&mut make, swapped, 8);
    let mixed = make.fields("(f64, u8)", 16, &[("__0", double, 0), ("__1", byte, 8)]);
    pair(&mut make, mixed, 8);
    let plain = make.fields("Two", 2, &[("a", byte, 0), ("b", byte, 1)]);
    all_rust(
        &mut make,
        &[
            (bytes, [0xff01, 0xff02], "(0x1, 0x2)"),
            (swapped, [5, 6], "(0x6, 0x5)"),
            (mixed, [5, 6], "(?, 0x5)"),
            (plain, [0x0201, 7], "Two { a: 0x1, b: 0x2 }"),
        ],
    );
}

#[test]
fn conventions_by_tag() {
    let mut make = Make::new();
    let int = make.int("i32", 4, SIGNED);
    let size = make.int("usize", 8, NONE);
    let byte = make.int("u8", 1, NONE);
    let two = make.fields("Two", 16, &[("a", size, 0), ("b", size, 8)]);
    let bytes = make.fields("Bytes", 2, &[("a", byte, 0), ("b", byte, 1)]);
    pair(&mut make, two, 8);
    pair(&mut make, bytes, 1);
    let mut of = |abi: &str, ret: u32, params: &[(&str, u32)]| {
        let func = make.function("f", ret, params);
        make.tag(abi, func, -1);
        func
    };
    let c = of("fgraph:abi=rust-c", int, &[("b", bytes), ("n", int)]);
    let unknown = of("fgraph:abi=rust-unknown", bytes, &[("t", two), ("n", int), ("b", bytes), ("m", int)]);
    let later = of("fgraph:abi=of-tomorrow", int, &[("n", int), ("b", bytes)]);
    let odd = of("kernel:something", int, &[("n", int)]);
    for machine in [X86_64, Arm64] {
        let args = |func| args(&make, func, machine, &[0x0201, 2, 3, 4, 5], None);
        let ret = |func| ret_with(&make, func, machine, [0xffff_fffe, 0], &Pieces::default(), None);
        assert_eq!((args(c).as_str(), ret(c).as_str()), ("b=Bytes { a: 0x1, b: 0x2 }, n=2", "-2 ENOENT"));
        // Both conventions have `t` and `n` in the same registers; behind `b` they differ.
        assert_eq!(args(unknown), "t=Two { a: 0x201, b: 0x2 }, n=3, b=?, m=?");
        assert_eq!(ret(unknown), "?");
        assert_eq!(Values::new(make.btf(), machine).retval_at(unknown), Some(RetvalAt::Lost));
        assert_eq!((args(later).as_str(), ret(later).as_str()), ("n=513, b=?", "-2"));
        assert_eq!((args(odd).as_str(), ret(odd).as_str()), ("n=513", "-2 ENOENT"));
    }
}

#[test]
fn places_that_tags_say() {
    let mut make = Make::new();
    let size = make.int("usize", 8, NONE);
    let two = make.fields("Two", 16, &[("a", size, 0), ("b", size, 8)]);
    let bytes = make.int("u8", 1, NONE);
    let small = make.fields("Small", 2, &[("a", bytes, 0), ("b", bytes, 1)]);
    pair(&mut make, small, 1);
    let func =
        rust(&mut make, two, &[("a", size), ("b", two), ("c", two), ("d", size), ("e", small), ("f", two)]);
    make.tag("fgraph:ret=r1,r0", func, -1);
    for (n, place) in ["r3", "s8,r0", "m2", "none", "r1,r2", "s0"].iter().enumerate() {
        make.tag(&std::format!("fgraph:loc={place}"), func, n as i32);
    }
    for machine in [X86_64, Arm64] {
        assert_eq!(
            args(&make, func, machine, &[1, 2, 0x7000, 4], Some((0x7000, &[7, 8]))),
            "a=0x4, b=Two { a: 0x8, b: 0x1 }, c=Two { a: 0x7, b: 0x8 }, d=?, e=Small { a: 0x2, b: 0x0 }, \
             f=Two { a: 0x7, b: 0x8 }"
        );
        let shown = ret_with(&make, func, machine, [1, 2], &Pieces::default(), None);
        assert_eq!(shown, "Two { a: 0x2, b: 0x1 }");
    }
    let none = rust(&mut make, size, &[]);
    make.tag("fgraph:ret=none", none, -1);
    assert_eq!(ret(&make, none, [1, 2]), "?");
    assert_eq!(Values::new(make.btf(), X86_64).retval_at(none), Some(RetvalAt::Lost));
}

#[test]
fn owners_of_text_and_elements() {
    let mut make = Make::new();
    let size = make.int("usize", 8, NONE);
    let mut owner = |tag: &str| {
        let ty = make.fields("String", 24, &[("cap", size, 0), ("ptr", size, 8), ("len", size, 16)]);
        make.tag(tag, ty, -1);
        rust(&mut make, ty, &[])
    };
    let functions =
        ["fgraph:str=8,16", "fgraph:slice=16,0", "fgraph:str=8", "fgraph:slice=8,99"].map(&mut owner);
    let mut kept = [0; 24];
    for (word, value) in kept.as_chunks_mut().0.iter_mut().zip([7_u64, 0x7000, 3]) {
        *word = value.to_le_bytes();
    }
    let shown = functions.map(|func| {
        let mut text = String::new();
        let returned = Returned { registers: &[0], memory: None, kept: &kept };
        Values::new(make.btf(), Arm64)
            .write_retval(func, &returned, &mut text)
            .expect("strings take everything");
        text
    });
    let plain = "String { cap: 0x7, ptr: 0x7000, len: 0x3 }";
    assert_eq!(shown, ["0x7000[..3]", "0x3[..7]", plain, "?"]);
}

#[test]
fn unreadable_tags_make_values_unknown() {
    let mut make = Make::new();
    let byte = make.int("u8", 1, NONE);
    let unit = make.structure("None", 1, &[]);
    let some = make.fields("Some", 1, &[("__0", byte, 0)]);
    for (tag, holds) in [("0,3", "1"), ("9,1", "1"), ("0,1", "x"), ("0,1", "1..=x"), ("0", "1")] {
        let union = variants(&mut make, "Odd", 1, tag, &[("None", unit, holds), ("Some", some, "0..=9")]);
        let func = rust(&mut make, union, &[]);
        let shown = ret(&make, func, [1, 0]);
        // One that does not say where its discriminant is, is a plain union.
        let plain = ["0,3", "0"].contains(&tag);
        assert_eq!(shown == "?", !plain, "{tag} {holds}: {shown}");
        assert!(!plain || shown.starts_with("Odd {"), "{shown}");
    }
}

#[test]
fn larger_than_a_register_is_returned_in_memory() {
    let mut make = Make::new();
    let size = make.int("usize", 8, NONE);
    let int = make.int("u32", 4, NONE);
    let wide = make.int("u128", 16, NONE);
    let double = make.float("f64", 8);
    let three = make.fields("Three", 16, &[("a", size, 0), ("b", int, 8), ("c", int, 12)]);
    let two = make.fields("Two", 16, &[("a", size, 0), ("b", size, 8)]);
    pair(&mut make, two, 8);
    let wides = make.fields("Wides", 32, &[("a", wide, 0), ("b", wide, 16)]);
    pair(&mut make, wides, 16);
    let mixed = make.fields("Mixed", 16, &[("x", double, 0), ("n", size, 8)]);
    pair(&mut make, mixed, 8);
    use RetvalAt::{Behind, Memory as InMemory, Registers};
    for (ty, [vectors_x86, vectors_arm], [general_x86, general_arm]) in [
        (three, [Behind, InMemory], [Behind, InMemory]),
        (two, [Registers, Registers], [Registers, Registers]),
        (wide, [Registers, Registers], [Registers, Registers]),
        (wides, [Behind, InMemory], [Behind, InMemory]),
        // Without vectors, rustc makes an aggregate of a pair with a number in it on arm64.
        (mixed, [Registers, Registers], [Registers, InMemory]),
    ] {
        let func = rust(&mut make, ty, &[]);
        for (machine, floats, expected) in [
            (X86_64, Floats::Vector, vectors_x86),
            (Arm64, Floats::Vector, vectors_arm),
            (X86_64, Floats::General, general_x86),
            (Arm64, Floats::General, general_arm),
        ] {
            let values = Values::new(make.btf(), machine).with_floats(floats);
            assert_eq!(values.retval_at(func), Some(expected), "{ty}: {machine:?}, {floats:?}");
        }
    }
    // On x86_64, rax has the address; what is there is the value.
    let func = rust(&mut make, three, &[("n", size)]);
    let memory = Pieces(vec![(0x5000, (0..16).collect())]);
    let shown = "Three { a: 0x706050403020100, b: 0xb0a0908, c: 0xf0e0d0c }";
    assert_eq!(ret_with(&make, func, X86_64, [0x5000, 0], &memory, None), shown);
    assert_eq!(args(&make, func, X86_64, &[0x5000, 2], None), "n=0x2");
}

#[test]
fn the_address_for_a_return_value_is_kept_from_the_entry() {
    let mut make = Make::new();
    let size = make.int("usize", 8, NONE);
    let large = make.fields("Large", 24, &[("a", size, 0), ("b", size, 8), ("c", size, 16)]);
    let by_convention = rust(&mut make, large, &[("n", size)]);
    let given = rust(&mut make, large, &[("n", size)]);
    make.tag("fgraph:ret=e0", given, -1);
    let none = rust(&mut make, size, &[("n", size)]);
    let memory = Pieces(vec![(0x5000, vec![1; 24])]);
    let shown = "Large { a: 0x101010101010101, b: 0x101010101010101, c: 0x101010101010101 }";
    let entered = Entered { registers: &[0x5000, 2], stack: None, indirect: Some(0x6000) };
    for (machine, func, address) in [
        (Arm64, by_convention, Some(0x6000)),
        (X86_64, by_convention, None),
        (Arm64, given, Some(0x5000)),
        (X86_64, given, Some(0x5000)),
        (Arm64, none, None),
        (X86_64, none, None),
    ] {
        assert_eq!(Values::new(make.btf(), machine).result_address(func, &entered), address);
        if address == Some(0x5000) {
            assert_eq!(ret_with(&make, func, machine, [7, 8], &memory, address), shown);
            assert_eq!(ret_with(&make, func, machine, [0x5000, 8], &memory, None), "?");
        }
    }
    let nothing_kept = Entered::default();
    assert_eq!(Values::new(make.btf(), Arm64).result_address(given, &nothing_kept), None);
    // As an argument, such a place makes no sense.
    make.tag("fgraph:loc=e0", given, 0);
    assert_eq!(args(&make, given, X86_64, &[1, 2], None), "n=?");
}
