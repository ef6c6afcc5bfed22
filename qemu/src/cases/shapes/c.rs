//! Functions of C that take and return values of every shape: `c/shapes.c`, compiled by the system's compiler.

use core::ffi::{c_char, c_int, c_long, c_short, c_void};
use core::hint::black_box;
use core::ptr;

use super::{Shape, shape};

#[derive(Clone, Copy)]
#[repr(C)]
struct Pair {
    start: usize,
    end: usize,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Small {
    a: c_int,
    b: u8,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Twelve {
    a: u32,
    b: u32,
    c: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Large {
    a: usize,
    b: usize,
    c: usize,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Named {
    name: [u8; 6],
    kind: u16,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Outer {
    inner: Small,
    n: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
union Number {
    wide: u32,
    narrow: u8,
}

// SAFETY: as `c/shapes.c` defines them. None does anything that could be unsafe: where they take an address, they hand it back or
// read a byte of text that the table below gives.
unsafe extern "C" {
    safe fn c_nothing(n: u32);
    safe fn c_narrow(n: usize) -> u8;
    safe fn c_short(n: c_int) -> c_short;
    safe fn c_signed(n: i8) -> i8;
    safe fn c_error(n: c_int) -> c_int;
    safe fn c_long(n: isize) -> isize;
    safe fn c_unsigned(n: u32) -> u32;
    safe fn c_bool(b: bool) -> bool;
    safe fn c_char(c: c_char) -> c_char;
    safe fn c_state(state: u32) -> u32;
    safe fn c_flags(flags: u32) -> u32;
    safe fn c_wide_enum(wide: u64) -> u64;
    safe fn c_pointer(p: *mut c_void) -> *mut c_void;
    safe fn c_pointer_error(errno: c_long) -> *mut c_void;
    safe fn c_text(text: *const c_char) -> *const c_char;
    safe fn c_hidden(hidden: *mut c_void) -> *mut c_void;
    safe fn c_function(function: extern "C" fn(u32)) -> extern "C" fn(u32);
    safe fn c_int128(skipped: u8, n: i128) -> u128;
    safe fn c_pair(p: Pair) -> Pair;
    safe fn c_small(s: Small) -> Small;
    safe fn c_twelve(t: Twelve) -> Twelve;
    safe fn c_large(l: Large, n: c_int) -> Large;
    safe fn c_named(n: Named) -> Named;
    safe fn c_bits(b: u32) -> u32;
    safe fn c_outer(o: Outer) -> Outer;
    safe fn c_union(u: Number) -> Number;
    safe fn c_variadic(format: *const c_char, ...) -> c_int;
    safe fn c_many(a: u8, b: u16, p: Pair, c: u32, l: Large, d: c_int, q: Pair, e: c_char) -> usize;
    safe fn c_hidden_pointer(a: u8, p: Pair, b: u32) -> Large;
    /// A function that only its file knows by name.
    safe static c_static_address: extern "C" fn(c_int) -> c_int;
}

extern "C" fn target(_: u32) {}

const PAIR: Pair = Pair { start: 0x10, end: 0x20 };
const LARGE: Large = Large { a: 1, b: 2, c: 3 };

pub(super) const SHAPES: &[Shape] = &[
    Shape {
        name: "c_static",
        func: || c_static_address as usize,
        call: || {
            let _ = black_box(c_static_address(black_box(3)));
        },
        args: "n=3",
        ret: "-5 EIO",
    },
    shape!(c_nothing, (5) => "n=0x5", ""),
    shape!(c_narrow, (0x0123_4567_89ab_cdef) => "n=0x123456789abcdef", "0xef"),
    shape!(c_short, (5) => "n=5", "-5"),
    shape!(c_signed, (-128) => "n=-128", "127"),
    shape!(c_error, (10) => "n=10", "-2 ENOENT"),
    shape!(c_error, (-500) => "n=-500", "-512 ERESTARTSYS"),
    shape!(c_error, (12) => "n=12", "0"),
    shape!(c_long, (0) => "n=0", "-22 EINVAL"),
    shape!(c_unsigned, (0) => "n=0x0", "0xfffffffe"),
    shape!(c_bool, (false) => "b=false", "true"),
    shape!(c_char, (b'@' as c_char) => "c=64 '@'", "65 'A'"),
    shape!(c_state, (0) => "state=STATE_OFF", "STATE_ON"),
    shape!(c_state, (2) => "state=STATE_STUCK", "3"),
    shape!(c_flags, (1) => "flags=FLAG_READ", "FLAG_READ|FLAG_EXEC"),
    shape!(c_wide_enum, (1) => "wide=WIDE_LOW", "WIDE_TOP"),
    shape!(c_pointer, (ptr::null_mut()) => "p=NULL", "NULL"),
    shape!(c_pointer, (ptr::without_provenance_mut(0x1000)) => "p=0x1000", "0x1000"),
    shape!(c_pointer_error, (12) => "errno=12", "ERR_PTR(-12 ENOMEM)"),
    shape!(c_text, (c"seth0".as_ptr()) => "text=# \"seth0\"", "# \"eth0\""),
    shape!(c_hidden, (ptr::without_provenance_mut(0x2000)) => "hidden=0x2000", "0x2010"),
    shape!(c_function, (target) => "function=#", "#"),
    shape!(c_int128, (2, -5) => "skipped=0x2, n=-0x5", "0xfffffffffffffffffffffffffffffffd"),
    shape!(c_pair, (PAIR) => "p={ .start = 0x10, .end = 0x20 }", "{ .start = 0x20, .end = 0x11 }"),
    shape!(c_small, (Small { a: 0, b: 255 }) => "s={ .a = 0, .b = 0xff }", "{ .a = -1, .b = 0x0 }"),
    shape!(
        c_twelve, (Twelve { a: 1, b: 2, c: 3 }) => "t={ .a = 0x1, .b = 0x2, .c = 0x3 }", "{ .a = 0x3, .b = 0x2, .c = 0x3 }"
    ),
    shape!(
        c_large, (LARGE, 4) => "l={ .a = 0x1, .b = 0x2, .c = 0x3 }, n=4", "{ .a = 0x3, .b = 0x2, .c = 0x5 }"
    ),
    shape!(
        c_named, (Named { name: *b"eth0\0\0", kind: 2 }) => "n={ .name = \"eth0\", .kind = 0x2 }",
        "{ .name = \"eth0\", .kind = 0x7 }"
    ),
    // low 5, mid 0x3fe, sign -3, state on
    shape!(
        c_bits, (5 | 0x3fe << 3 | 13 << 13 | 1 << 17) => "b={ .low = 0x5, .mid = 0x3fe, .sign = -3, .state = STATE_ON }",
        "{ .low = 0x5, .mid = 0x3ff, .sign = -3, .state = STATE_ON }"
    ),
    shape!(
        c_outer, (Outer { inner: Small { a: -1, b: 2 }, n: 0x101 }) =>
        "o={ .inner = { .a = -1, .b = 0x2 }, { .n = 0x101, .byte = 0x1 } }",
        "{ .inner = { .a = -1, .b = 0x2 }, { .n = 0x107, .byte = 0x7 } }"
    ),
    shape!(
        c_union, (Number { wide: 0x101 }) => "u={ .wide = 0x101, .narrow = 0x1 }", "{ .wide = 0x108, .narrow = 0x8 }"
    ),
    shape!(c_variadic, (c"*".as_ptr(), 5) => "format=# \"*\", ...", "42"),
    shape!(
        c_many, (1, 2, PAIR, 3, LARGE, 4, PAIR, 5) =>
        "a=0x1, b=0x2, p={ .start = 0x10, .end = 0x20 }, c=0x3, l={ .a = 0x1, .b = 0x2, .c = 0x3 }, d=4, \
         q={ .start = 0x10, .end = 0x20 }, e=5",
        "0x73"
    ),
    shape!(
        c_hidden_pointer, (1, PAIR, 2) => "a=0x1, p={ .start = 0x10, .end = 0x20 }, b=0x2",
        "{ .a = 0x1, .b = 0x10, .c = 0x2 }"
    ),
];
