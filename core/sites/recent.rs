//! Numbers of the kernel's functions that were asked for lately: guesses, so that most questions need no search.

use crate::addr::FuncAddr;
use crate::sync::{AtomicU32, Ordering};

/// Fewer for tests, so that functions there share them.
const PLACES: usize = if cfg!(test) { 8 } else { 512 };

/// A number for each of [`PLACES`] groups of functions. Whoever reads one looks whether it is right, so any context on any CPU may write.
#[derive(Debug)]
pub(super) struct Recent([AtomicU32; PLACES]);

impl Recent {
    pub(super) const fn new() -> Self {
        Self([const { AtomicU32::new(0) }; PLACES])
    }

    /// What may be the function's number.
    #[inline]
    pub(super) fn guess(&self, func: FuncAddr) -> u32 {
        self.place(func).load(Ordering::Relaxed)
    }

    /// Keeps it, at the expense of another function's.
    pub(super) fn keep(&self, func: FuncAddr, number: u32) {
        self.place(func).store(number, Ordering::Relaxed);
    }

    #[inline]
    fn place(&self, func: FuncAddr) -> &AtomicU32 {
        // Functions lie 16 bytes apart, more or less.
        let hash = (func.get() >> 4) ^ (func.get() >> 13);
        &self.0[hash % PLACES]
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::PLACES;
    use crate::engine::image::{Image, Target, for_both_machines};
    use crate::testing::Random;

    /// More functions than places, so that most guesses are another function's number.
    fn numbers_are_right_whoever_was_asked_for_before<T: Target>() {
        let random = &mut Random::new(5);
        let image = Image::new::<T>(4 * PLACES, random);
        let engine = image.start::<T>();
        let funcs: Vec<_> = crate::engine::image::functions(engine);
        assert!(funcs.len() > PLACES, "{} functions", funcs.len());
        for _ in 0..4 * funcs.len() {
            let func = *random.pick(&funcs);
            let number = engine.function_number(func);
            assert_eq!(engine.numbered_function(number), Some(func));
            assert_eq!(engine.function_number(func), number, "the second time");
        }
        for wrong in image.functions.iter().filter(|function| function.notrace) {
            let func = crate::addr::FuncAddr::new(wrong.addr);
            assert_eq!([0; 2].map(|_| engine.function_number(func)), [crate::wire::NO_FUNC; 2]);
        }
    }

    for_both_machines! {
        numbers_are_right_whoever_was_asked_for_before
    }
}
