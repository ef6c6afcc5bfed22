//! Functions of Rust that take and return values of every shape.
//!
//! Each does something that no other one does: the compiler makes one of those that are alike.

use alloc::boxed::Box;
use core::cmp::Ordering;
use core::hint::black_box;
use core::num::NonZero;
use core::ptr;

use super::{Shape, shape};

/// Whether this target has floating-point numbers in registers that are not kept.
const VECTORS: bool = cfg!(any(target_feature = "neon", target_feature = "sse2"));

#[derive(Clone, Copy)]
#[repr(u8)]
pub enum Problem {
    NotFound = 3,
    Busy = 7,
}

#[derive(Clone, Copy)]
#[repr(i16)]
pub enum Level {
    Low = -5,
    High = 300,
}

/// An error in the manner of Linux.
#[expect(dead_code, reason = "what is in it is read by the tracer alone")]
pub struct Errno(NonZero<i32>);

pub struct Pid(u32);

pub struct Point {
    x: i32,
    y: i32,
}

/// 16 bytes that are no pair of scalars.
pub struct Three {
    a: u64,
    b: u32,
    c: u16,
}

pub struct Large {
    a: u64,
    b: u64,
    c: u64,
    text: &'static str,
}

pub struct Empty;

#[expect(dead_code, reason = "what is in it is read by the tracer alone")]
pub enum Event {
    Quit,
    Key(char),
    Moved { x: i16, y: i16 },
}

#[expect(dead_code, reason = "what is in it is read by the tracer alone")]
pub enum Message {
    Nothing,
    Text(&'static str),
    Numbers([u64; 3]),
}

#[expect(dead_code, reason = "what is in it is read by the tracer alone")]
pub union Either {
    small: u8,
    wide: u32,
}

static SEVEN: u32 = 7;
static NUMBERS: [u16; 3] = [1, 2, 3];

#[inline(never)]
fn nothing(n: u32) {
    black_box(n ^ 0x101);
}

#[inline(never)]
fn narrow(n: u64) -> u8 {
    black_box(n) as u8
}

#[inline(never)]
fn negative(n: i32) -> i16 {
    black_box(-n) as i16
}

#[inline(never)]
fn size(n: usize) -> usize {
    black_box(n + 0x103)
}

#[inline(never)]
fn truth(a: bool, b: bool) -> bool {
    black_box(a) ^ black_box(b)
}

#[inline(never)]
fn letter(c: char) -> char {
    black_box(c)
}

#[inline(never)]
fn wide(n: u128, m: i128) -> u128 {
    black_box(n).wrapping_add(black_box(m) as u128)
}

#[inline(never)]
fn odd_wide(a: u8, n: u128, b: u8) -> i128 {
    -(black_box(n) as i128) - i128::from(black_box(a)) - i128::from(black_box(b))
}

#[inline(never)]
fn wide_behind_others(a: u64, b: u64, c: u64, d: u64, e: u64, n: u128, f: u64) -> u64 {
    black_box(a + b + c + d + e + f) ^ black_box(n) as u64
}

#[inline(never)]
fn real(x: f64, n: u32, y: f32) -> f64 {
    black_box(y);
    black_box(n);
    black_box(x)
}

#[inline(never)]
fn order(a: u32, b: u32) -> Ordering {
    black_box(a).cmp(&black_box(b))
}

#[inline(never)]
fn level(level: Level) -> Level {
    match black_box(level) {
        Level::Low => Level::High,
        Level::High => Level::Low,
    }
}

#[inline(never)]
fn some(n: u32) -> Option<u32> {
    let n = black_box(n);
    if n == 0 { None } else { Some(n ^ 0x107) }
}

#[inline(never)]
fn some_ref(r: Option<&'static u32>) -> Option<&'static u32> {
    black_box(r)
}

#[inline(never)]
fn some_nonzero(n: Option<NonZero<u16>>) -> Option<NonZero<u16>> {
    black_box(n).and_then(|n| n.checked_add(0x109))
}

#[inline(never)]
fn some_bool(n: Option<bool>) -> Option<bool> {
    black_box(n).map(|n| !n)
}

#[inline(never)]
fn some_char(c: Option<char>) -> Option<char> {
    black_box(c).filter(|c| *c != 'q')
}

#[inline(never)]
fn result(n: usize) -> Result<usize, Problem> {
    let n = black_box(n);
    if n == 0 { Err(Problem::Busy) } else { Ok(n ^ 0x10b) }
}

#[inline(never)]
fn done(n: u32) -> Result<(), Problem> {
    if black_box(n) == 0x10d { Err(Problem::NotFound) } else { Ok(()) }
}

#[inline(never)]
fn errno(n: i32) -> Result<&'static str, Errno> {
    match NonZero::new(black_box(n)) {
        None => Ok("fine"),
        Some(n) => Err(Errno(n)),
    }
}

#[inline(never)]
fn text(s: &'static str) -> &'static str {
    black_box(s).get(1..).unwrap_or("none")
}

#[inline(never)]
fn some_text(s: Option<&'static str>) -> Option<&'static str> {
    black_box(s).filter(|s| s.len() > 2)
}

#[inline(never)]
fn slice(s: &'static [u16]) -> &'static [u16] {
    black_box(s).get(1..).unwrap_or_default()
}

#[inline(never)]
fn pid(pid: Pid) -> Pid {
    Pid(black_box(pid.0) + 0x10f)
}

#[inline(never)]
fn point(p: Point) -> Point {
    Point { x: black_box(p.y), y: black_box(p.x) }
}

#[inline(never)]
fn three(t: Three) -> Three {
    Three { a: black_box(t.a) + 1, b: black_box(t.b) + 1, c: black_box(t.c) + 1 }
}

#[inline(never)]
fn large(l: Large, n: u32) -> Large {
    Large { a: black_box(l.c), b: black_box(l.b), c: black_box(l.a) + u64::from(n), text: black_box(l.text) }
}

#[inline(never)]
fn bytes(a: [u8; 3]) -> [u8; 3] {
    let [a, b, c] = black_box(a);
    [c, b, a]
}

#[inline(never)]
fn words(a: [u16; 8]) -> [u16; 8] {
    black_box(a).map(|n| n + 0x111)
}

#[inline(never)]
fn event(e: Event) -> Event {
    match black_box(e) {
        Event::Quit => Event::Key('q'),
        Event::Key(c) => Event::Moved { x: c as i16, y: -1 },
        Event::Moved { .. } => Event::Quit,
    }
}

#[inline(never)]
fn message(m: Message) -> Message {
    match black_box(m) {
        Message::Nothing => Message::Text("text"),
        Message::Text(text) => Message::Numbers([text.len() as u64, 2, 3]),
        Message::Numbers(_) => Message::Nothing,
    }
}

#[inline(never)]
fn two_bytes(p: (u8, u8)) -> (u8, u8) {
    (black_box(p.1), black_box(p.0))
}

#[inline(never)]
fn uneven(p: (u8, u64)) -> (u64, u8) {
    (black_box(p.1), black_box(p.0))
}

#[expect(clippy::too_many_arguments, reason = "more than there are registers")]
#[inline(never)]
fn many(a: u8, b: u16, c: u32, s: &str, p: (u32, u32), d: i8, e: i16, t: Three, f: bool) -> Large {
    let sum = u64::from(black_box(a)) + u64::from(black_box(b)) + u64::from(black_box(c));
    black_box((s, d, e, p));
    Large { a: sum, b: black_box(t.a), c: u64::from(black_box(f)), text: "" }
}

#[inline(never)]
fn nested(n: u8) -> Option<Result<u8, Problem>> {
    match black_box(n) {
        0 => None,
        1 => Some(Err(Problem::Busy)),
        n => Some(Ok(n ^ 0x13)),
    }
}

#[inline(never)]
fn without_bytes(unit: (), n: u32, empty: Empty) -> Empty {
    black_box((unit, n ^ 0x115));
    empty
}

#[inline(never)]
fn function(f: fn(u32)) -> fn(u32) {
    black_box(f)
}

#[inline(never)]
fn pointer(p: *const u8) -> *const u8 {
    black_box(p).wrapping_add(9)
}

#[inline(never)]
fn generic<T: Copy>(value: T) -> T {
    black_box(value)
}

#[expect(clippy::boxed_local, reason = "the box is what is shown")]
#[inline(never)]
fn boxed(b: Box<u32>) -> u32 {
    black_box(*b) ^ 0x117
}

#[inline(never)]
fn either(e: Either) -> Either {
    // SAFETY: all bits of `wide` were given a value.
    let wide = unsafe { black_box(e).wide };
    Either { wide: wide + 1 }
}

#[inline(never)]
fn dynamic(shown: &dyn core::fmt::Debug) -> usize {
    black_box(size_of_val(shown)) ^ 0x119
}

#[inline(never)]
extern "C" fn as_c(n: i32) -> i32 {
    black_box(n) - 0x11b
}

pub(super) const SHAPES: &[Shape] = &[
    shape!(nothing, (5) => "n=0x5", ""),
    shape!(narrow, (0x0123_4567_89ab_cdef) => "n=0x123456789abcdef", "0xef"),
    shape!(negative, (5) => "n=5", "-5"),
    shape!(size, (0x1000) => "n=0x1000", "0x1103"),
    shape!(truth, (true, false) => "a=true, b=false", "true"),
    shape!(letter, ('\u{20ac}') => "c='\u{20ac}'", "'\u{20ac}'"),
    shape!(wide, (1 << 64, -1) => "n=0x10000000000000000, m=-0x1", "0xffffffffffffffff"),
    shape!(odd_wide, (1, 5, 2) => "a=0x1, n=0x5, b=0x2", "-0x8"),
    shape!(
        wide_behind_others, (1, 2, 3, 4, 5, 0x30, 6) => "a=0x1, b=0x2, c=0x3, d=0x4, e=0x5, n=0x30, f=0x6", "0x25"
    ),
    shape!(
        real, (1.0, 9, 2.0) =>
        if VECTORS { "x=?, n=0x9, y=?" } else { "x=float:0x3ff0000000000000, n=0x9, y=float:0x40000000" },
        if VECTORS { "?" } else { "float:0x3ff0000000000000" }
    ),
    shape!(order, (1, 2) => "a=0x1, b=0x2", "Less"),
    shape!(level, (Level::Low) => "level=Low", "High"),
    shape!(level, (Level::High) => "level=High", "Low"),
    shape!(some, (0) => "n=0x0", "None"),
    shape!(some, (0x101) => "n=0x101", "Some(0x6)"),
    shape!(some_ref, (None) => "r=None", "None"),
    shape!(some_ref, (Some(&SEVEN)) => "r=Some(#)", "Some(#)"),
    shape!(some_nonzero, (NonZero::new(1)) => "n=Some(0x1)", "Some(0x10a)"),
    shape!(some_nonzero, (None) => "n=None", "None"),
    shape!(some_bool, (Some(true)) => "n=Some(true)", "Some(false)"),
    shape!(some_bool, (None) => "n=None", "None"),
    shape!(some_char, (Some('x')) => "c=Some('x')", "Some('x')"),
    shape!(some_char, (Some('q')) => "c=Some('q')", "None"),
    shape!(result, (1) => "n=0x1", "Ok(0x10a)"),
    shape!(result, (0) => "n=0x0", "Err(Busy)"),
    shape!(done, (1) => "n=0x1", "Ok(())"),
    shape!(done, (0x10d) => "n=0x10d", "Err(NotFound)"),
    shape!(errno, (0) => "n=0", "Ok(\"fine\")"),
    shape!(errno, (-2) => "n=-2", "Err(Errno(-2 ENOENT))"),
    shape!(text, ("seth0") => "s=\"seth0\"", "\"eth0\""),
    shape!(some_text, (Some("abc")) => "s=Some(\"abc\")", "Some(\"abc\")"),
    shape!(some_text, (Some("ab")) => "s=Some(\"ab\")", "None"),
    shape!(slice, (&NUMBERS) => "s=#[..3]", "#[..2]"),
    shape!(pid, (Pid(1)) => "pid=Pid(0x1)", "Pid(0x110)"),
    shape!(point, (Point { x: 1, y: -2 }) => "p=Point { x: 1, y: -2 }", "Point { x: -2, y: 1 }"),
    shape!(
        three, (Three { a: 1, b: 2, c: 3 }) => "t=Three { a: 0x1, b: 0x2, c: 0x3 }", "Three { a: 0x2, b: 0x3, c: 0x4 }"
    ),
    shape!(
        large, (Large { a: 1, b: 2, c: 3, text: "x" }, 9) => "l=Large { text: \"x\", a: 0x1, b: 0x2, c: 0x3 }, n=0x9",
        "Large { text: \"x\", a: 0x3, b: 0x2, c: 0xa }"
    ),
    shape!(bytes, ([1, 2, 3]) => "a=[0x1, 0x2, 0x3]", "[0x3, 0x2, 0x1]"),
    shape!(
        words, ([1, 2, 3, 4, 5, 6, 7, 8]) => "a=[0x1, 0x2, 0x3, 0x4, 0x5, 0x6, 0x7, 0x8]",
        "[0x112, 0x113, 0x114, 0x115, 0x116, 0x117, 0x118, 0x119]"
    ),
    shape!(event, (Event::Quit) => "e=Quit", "Key('q')"),
    shape!(event, (Event::Key('A')) => "e=Key('A')", "Moved { x: 65, y: -1 }"),
    shape!(event, (Event::Moved { x: 3, y: 4 }) => "e=Moved { x: 3, y: 4 }", "Quit"),
    shape!(message, (Message::Nothing) => "m=Nothing", "Text(\"text\")"),
    shape!(message, (Message::Text("abcd")) => "m=Text(\"abcd\")", "Numbers([0x4, 0x2, 0x3])"),
    shape!(message, (Message::Numbers([7, 8, 9])) => "m=Numbers([0x7, 0x8, 0x9])", "Nothing"),
    shape!(two_bytes, ((1, 2)) => "p=(0x1, 0x2)", "(0x2, 0x1)"),
    shape!(uneven, ((1, 2)) => "p=(0x1, 0x2)", "(0x2, 0x1)"),
    shape!(
        many, (1, 2, 3, "four", (5, 6), -7, -8, Three { a: 9, b: 10, c: 11 }, true) =>
        "a=0x1, b=0x2, c=0x3, s=\"four\", p=(0x5, 0x6), d=-7, e=-8, t=Three { a: 0x9, b: 0xa, c: 0xb }, f=true",
        "Large { text: \"\", a: 0x6, b: 0x9, c: 0x1 }"
    ),
    shape!(nested, (0) => "n=0x0", "None"),
    shape!(nested, (1) => "n=0x1", "Some(Err(Busy))"),
    shape!(nested, (2) => "n=0x2", "Some(Ok(0x11))"),
    shape!(without_bytes, ((), 3, Empty) => "(), n=0x3, Empty", ""),
    shape!(function, (nothing) => "f=#", "#"),
    shape!(pointer, (ptr::null()) => "p=0x0", "0x9"),
    shape!(generic::<u8>, (9) => "value=0x9", "0x9"),
    shape!(generic::<i64>, (-9) => "value=-9", "-9"),
    shape!(boxed, (Box::new(1)) => "b=#", "0x116"),
    shape!(either, (Either { wide: 0x0102 }) => "e=Either { small: 0x2, wide: 0x102 }", "Either { small: 0x3, wide: 0x103 }"),
    shape!(dynamic, (&SEVEN) => "shown=&dyn core::fmt::Debug { pointer: #, vtable: # }", "0x11d"),
    shape!(as_c, (0) => "n=0", "-283"),
];
