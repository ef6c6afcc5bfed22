//! Functions of every shape: compiled by the test as a crate of its own, and part of the test, which so has the values.

use core::hint::black_box;
use core::num::NonZeroU32;
pub struct Point {
    pub x: u32,
    pub y: u64,
}
pub struct Wrap(pub u32);
pub struct Both(pub u32, pub u32);
#[repr(C)]
pub struct Ends(pub u32, pub u32);
#[repr(C)]
pub struct Raw {
    pub a: u8,
    pub b: u32,
    pub c: [u16; 3],
}
#[repr(C)]
pub union Bits {
    pub f: f32,
    pub u: u32,
}
pub enum Shape {
    Empty,
    Circle(u32),
    Rect { w: u16, h: u16 },
}
pub enum Error {
    NotFound,
    Busy = 7,
    Denied,
}
pub enum Nested {
    One(Option<bool>),
    Two,
    Three,
}
pub enum Chars {
    Char(char),
    A,
    B,
}
#[repr(i8)]
pub enum Signed {
    Minus(u64) = -3,
    Plus = 100,
}
#[repr(u8)]
pub enum Tagged {
    A(u16) = 4,
    B = 9,
}
pub enum Never {}
#[derive(Clone, Copy)]
pub enum Single {
    Only(u32),
}
#[repr(align(8))]
pub struct Aligned(pub u32, pub u32);
pub struct Nothing;
pub enum WithNothing {
    A(Nothing, u32),
    B(u32, [u64; 0]),
    C,
}
pub enum Half {
    A(Nothing, u32),
    B((), u32),
}
pub trait Act {
    fn act(&self) -> u32;
}
impl Act for Wrap {
    fn act(&self) -> u32 {
        self.0
    }
}
#[inline(never)]
pub fn unit(x: u32) {
    black_box(x);
}
#[inline(never)]
pub fn never(x: u32) -> ! {
    black_box(x);
    loop {}
}
#[inline(never)]
pub fn ints(a: u8, b: i16, c: usize, d: i64, e: u128, f: bool, g: char, h: f32) -> u128 {
    black_box((a, b, c, d, f, g, h));
    e
}
#[inline(never)]
pub fn option(x: u32) -> Option<u32> {
    if black_box(x) > 3 { Some(x) } else { None }
}
#[inline(never)]
pub fn niche(x: u32) -> Option<NonZeroU32> {
    NonZeroU32::new(black_box(x))
}
#[inline(never)]
pub fn reference(x: &u32) -> Option<&u32> {
    Some(black_box(x))
}
#[inline(never)]
pub fn result(x: u32) -> Result<u64, Error> {
    if x > 3 { Ok(black_box(7)) } else { Err(Error::Busy) }
}
#[inline(never)]
pub fn unit_result(x: u32) -> Result<(), Error> {
    if black_box(x) > 3 { Ok(()) } else { Err(Error::Denied) }
}
#[inline(never)]
pub fn text(s: &'static str) -> &'static str {
    black_box(s)
}
#[inline(never)]
pub fn slice(s: &mut [u16]) -> usize {
    black_box(s).len()
}
#[inline(never)]
pub fn dynamic(s: &dyn Act) -> u32 {
    black_box(s).act()
}
#[inline(never)]
pub fn shape(s: Shape) -> Shape {
    black_box(s)
}
#[inline(never)]
pub fn nested(s: Nested) -> Nested {
    black_box(s)
}
#[inline(never)]
pub fn chars(s: Chars) -> Chars {
    black_box(s)
}
#[inline(never)]
pub fn signed(s: Signed) -> Signed {
    black_box(s)
}
#[inline(never)]
pub fn tagged(s: Tagged) -> Tagged {
    black_box(s)
}
#[inline(never)]
pub fn single(s: Single, k: u8) -> Single {
    black_box(k);
    black_box(s)
}
#[inline(never)]
pub fn error(s: Error) -> Error {
    black_box(s)
}
#[inline(never)]
pub fn point(p: Point) -> Point {
    black_box(p)
}
#[inline(never)]
pub fn wrap(p: Wrap) -> Wrap {
    black_box(p)
}
#[inline(never)]
pub fn both(p: Both) -> Both {
    black_box(p)
}
#[inline(never)]
pub fn tuple(p: (u8, u32)) -> (u64, bool) {
    black_box((p.1.into(), p.0 > 3))
}
#[inline(never)]
pub fn raw(r: &Raw) -> *const Raw {
    black_box(r)
}
#[inline(never)]
pub fn bits(r: Bits) -> Bits {
    black_box(r)
}
#[inline(never)]
pub fn array(r: [u64; 5]) -> [u32; 2] {
    black_box([r[0] as u32, r[4] as u32])
}
#[inline(never)]
pub fn pointer(f: fn(u32, &str) -> bool) -> bool {
    black_box(f)(1, "x")
}
#[inline(never)]
pub fn generic<T>(t: T) -> T {
    black_box(t)
}
#[inline(never)]
pub fn uses_generic(x: u8) -> u64 {
    generic(x) as u64 + generic(x as u64)
}
#[inline(never)]
pub fn pattern((a, b): (u32, u64), _: u8, Both(c, _): Both) -> u64 {
    black_box(a as u64 + b + c as u64)
}
#[inline(never)]
pub fn stack(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64, g: u64, h: u64, i: u64) -> u64 {
    black_box(i + a + b + c + d + e + f + g + h)
}
#[inline(never)]
pub fn large(x: u64) -> [u64; 4] {
    black_box([x, x, x, 1])
}
#[inline(never)]
pub fn largest(x: u64) -> Option<[u64; 4]> {
    if x > 3 { black_box(Some([x, x, x, 1])) } else { None }
}
#[unsafe(no_mangle)]
pub extern "C" fn exported(x: u32, s: Ends) -> u32 {
    black_box(x + s.0)
}
impl Point {
    #[inline(never)]
    pub fn method(&self, k: u32) -> u32 {
        black_box(self.x + k)
    }
}

#[inline(never)]
pub fn with_nothing(x: u32) -> (Nothing, WithNothing) {
    (Nothing, if x > 3 { black_box(WithNothing::A(Nothing, x)) } else { black_box(WithNothing::B(x, [])) })
}

#[inline(never)]
pub fn aligned(x: u32) -> Aligned {
    black_box(Aligned(x, 2))
}
#[inline(never)]
pub fn with_unit(x: u32) -> Result<(Nothing, u32), ((), u32)> {
    if black_box(x) > 3 { Ok((Nothing, x)) } else { Err(((), 3)) }
}

#[inline(never)]
pub fn half(x: u32) -> Half {
    if x > 3 { black_box(Half::A(Nothing, x)) } else { black_box(Half::B((), x)) }
}
