//! A text as marks: pieces that are each a text of their own, since they may stand apart when they are read.

use super::{MAX_DATA, Mark, TEXT_MARK, Who};

/// One record's part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    words: [u64; MAX_DATA],
    len: usize,
    goes_on: bool,
}

impl Piece {
    /// The mark that records it.
    pub fn mark(&self, who: Who, time: u64) -> Mark<'_> {
        let data = self.words.get(..self.len).unwrap_or(&[]);
        Mark { id: TEXT_MARK, who, time, data, cut: self.goes_on }
    }
}

/// The pieces of a text, which need not be UTF-8. No character is in two; zeros, which would end a text, become `?`.
pub fn pieces(text: &[u8]) -> impl Iterator<Item = Piece> {
    let mut rest = text;
    core::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (part, behind) = rest.split_at(text_len(rest, MAX_DATA * 8));
        rest = behind;
        let mut words = [0; MAX_DATA];
        for (word, bytes) in words.iter_mut().zip(part.chunks(8)) {
            let mut all = [0; 8];
            all.iter_mut().zip(bytes).for_each(|(to, from)| *to = if *from == 0 { b'?' } else { *from });
            *word = u64::from_le_bytes(all);
        }
        Some(Piece { words, len: part.len().div_ceil(8), goes_on: !behind.is_empty() })
    })
}

/// How much of a text comes first if it is to be at most `most` bytes, 4 or more: up to where a character begins.
pub(crate) fn text_len(text: &[u8], most: usize) -> usize {
    let begins = |at: &usize| text.get(*at).is_some_and(|byte| byte & 0xc0 != 0x80);
    if text.len() <= most { text.len() } else { (most - 3..=most).rev().find(begins).unwrap_or(most) }
}
