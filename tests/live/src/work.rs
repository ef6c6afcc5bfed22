//! Functions to trace that call each other, with results and numbers of calls that are known.

use std::hint::black_box;

use fgraph::FuncAddr;

use crate::users::addr;

/// Fibonacci, by the definition: `fib(n)` is [`fib_calls`] calls.
#[inline(never)]
pub extern "C" fn fib(n: usize) -> usize {
    if n < 2 {
        return n;
    }
    // Opaque, so that no call is made into a loop.
    let again = black_box(fib as extern "C" fn(usize) -> usize);
    again(n - 1) + again(n - 2)
}

/// What [`fib`] should give back.
pub const fn fib_result(n: usize) -> usize {
    let (mut a, mut b, mut i) = (0, 1, 0);
    while i < n {
        (a, b) = (b, a + b);
        i += 1;
    }
    a
}

/// How many calls of itself it is, the first included.
pub const fn fib_calls(n: usize) -> usize {
    2 * fib_result(n + 1) - 1
}

/// n + ... + 1, n calls below the first.
#[inline(never)]
pub extern "C" fn down(n: usize) -> usize {
    if n == 0 {
        return 0;
    }
    black_box(down as extern "C" fn(usize) -> usize)(n - 1) + black_box(n)
}

/// Takes floating-point arguments down and results up: `n + 1` calls.
#[inline(never)]
pub extern "C" fn floats(n: usize, a: f64, b: f64, c: f64) -> f64 {
    if n == 0 {
        return a + b + c;
    }
    let again = black_box(floats as extern "C" fn(usize, f64, f64, f64) -> f64);
    again(n - 1, b, c, a + 1.0) + black_box(b) * 0.5
}

/// Two words up and down: `n + 1` calls.
#[inline(never)]
pub fn pair(n: usize, words: (u64, u64)) -> (u64, u64) {
    if n == 0 {
        return words;
    }
    let again = black_box(pair as fn(usize, (u64, u64)) -> (u64, u64));
    let (a, b) = again(n - 1, (words.1, words.0 + 1));
    (b.wrapping_mul(3), a ^ black_box(n as u64))
}

/// All of them.
pub fn funcs() -> [FuncAddr; 4] {
    [addr!(fib), addr!(down), addr!(floats), addr!(pair)]
}

/// What one [`round`] should give back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Results(usize, usize, f64, (u64, u64));

/// A bit of everything.
#[inline(always)]
pub fn round() -> Results {
    Results(
        fib(black_box(8)),
        down(black_box(20)),
        floats(black_box(10), 1.0, 2.0, 3.0),
        pair(black_box(10), (1, 2)),
    )
}

/// How many calls one [`round`] is.
pub const ROUND_CALLS: usize = fib_calls(8) + 21 + 11 + 11;
