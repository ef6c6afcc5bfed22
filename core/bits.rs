//! Sets of small numbers as the bits of a word.

/// The numbers in a set, ascending.
#[inline]
pub(crate) fn ones(mut bits: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        (bits != 0).then(|| {
            let number = bits.trailing_zeros() as usize;
            bits &= bits - 1;
            number
        })
    })
}
