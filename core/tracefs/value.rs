//! What people write into the small files: one word, a number, a switch, a mask.

use super::{Cause, Refused};

/// One word of a text, and the column where it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word<'t> {
    pub(super) text: &'t str,
    pub(super) column: usize,
}

impl Word<'_> {
    pub(super) fn refused(&self, cause: Cause) -> Refused {
        Refused::at(self.column, cause)
    }
}

/// The words between blanks.
pub(super) fn words(text: &str) -> impl Iterator<Item = Word<'_>> {
    text.split_ascii_whitespace()
        // A part of `text`, so the difference is where it stands.
        .map(move |word| Word { text: word, column: word.as_ptr().addr() - text.as_ptr().addr() })
}

/// The one word of a text.
pub(super) fn word(text: &str) -> Result<Word<'_>, Refused> {
    let mut words = words(text);
    let first = words.next().ok_or(Refused::at(0, Cause::Empty))?;
    match words.next() {
        Some(second) => Err(second.refused(Cause::SecondWord)),
        None => Ok(first),
    }
}

/// A decimal number, of at most `most`.
pub(super) fn number(word: Word<'_>, most: u64) -> Result<u64, Refused> {
    let digits = word.text.strip_prefix('+').unwrap_or(word.text);
    let skipped = word.text.len() - digits.len();
    let wrong = digits.bytes().position(|byte| !byte.is_ascii_digit());
    if let Some(at) = wrong.or_else(|| digits.is_empty().then_some(0)) {
        return Err(Refused::at(word.column + skipped + at, Cause::NotNumber));
    }
    let too_large = || word.refused(Cause::TooLarge { most });
    digits.parse().ok().filter(|number| *number <= most).ok_or_else(too_large)
}

/// The one number of a text.
pub(super) fn one_number(text: &str, most: u64) -> Result<u64, Refused> {
    number(word(text)?, most)
}

/// `0` or `1`.
pub(super) fn switch(text: &str) -> Result<bool, Refused> {
    let word = word(text)?;
    match number(word, u64::MAX)? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(word.refused(Cause::NotSwitch)),
    }
}

/// A mask of CPUs: hexadecimal, with a comma before every 8 digits if people like, and one CPU of those that are there at least.
pub(super) fn mask(text: &str, cpus: usize) -> Result<u64, Refused> {
    let word = word(text)?;
    let mut mask: u64 = 0;
    // Digits since the last comma.
    let mut digits = 0;
    let mut last = None;
    for (at, byte) in word.text.bytes().enumerate() {
        let wrong = Refused::at(word.column + at, Cause::NotMask);
        match (char::from(byte).to_digit(16), byte) {
            (Some(digit), _) => {
                digits += 1;
                if digits > 8 && word.text.contains(',') {
                    return Err(wrong);
                }
                if mask >> 60 != 0 {
                    return Err(word.refused(Cause::NoSuchCpus { cpus }));
                }
                mask = mask << 4 | u64::from(digit);
            }
            (None, b',') if digits > 0 && last.is_none_or(|last| at - last == 9) => {
                (digits, last) = (0, Some(at))
            }
            (None, _) => return Err(wrong),
        }
    }
    if let Some(last) = last
        && word.text.len() - last != 9
    {
        return Err(Refused::at(word.column + word.text.len(), Cause::NotMask));
    }
    let there = if cpus < 64 { (1 << cpus) - 1 } else { u64::MAX };
    if mask & there == 0 || mask & !there != 0 {
        return Err(word.refused(Cause::NoSuchCpus { cpus }));
    }
    Ok(mask)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::storm;
    use std::string::String;

    #[test]
    fn numbers_are_decimal_and_say_where_they_are_not() {
        assert_eq!(one_number(" 12\n", 12), Ok(12));
        assert_eq!(one_number("+7", 9), Ok(7));
        assert_eq!(one_number("18446744073709551615", u64::MAX), Ok(u64::MAX));
        for (text, column, cause) in [
            ("", 0, Cause::Empty),
            ("\n", 0, Cause::Empty),
            ("+", 1, Cause::NotNumber),
            ("0x10", 1, Cause::NotNumber),
            (" -1", 1, Cause::NotNumber),
            ("1 2", 2, Cause::SecondWord),
            ("13", 0, Cause::TooLarge { most: 12 }),
            ("18446744073709551616", 0, Cause::TooLarge { most: 12 }),
        ] {
            assert_eq!(one_number(text, 12), Err(Refused::at(column, cause)), "{text:?}");
        }
        assert_eq!(switch("1\n"), Ok(true));
        assert_eq!(switch("2"), Err(Refused::at(0, Cause::NotSwitch)));
    }

    #[test]
    fn masks_name_cpus_that_are_there() {
        assert_eq!(mask("f", 4), Ok(15));
        assert_eq!(mask("00000000,0000000A\n", 4), Ok(10));
        assert_eq!(mask("1,ffffffff", 33), Ok(0x1_ffff_ffff));
        assert_eq!(mask("ffffffffffffffff", 64), Ok(u64::MAX));
        for (text, column, cause) in [
            ("0", 0, Cause::NoSuchCpus { cpus: 4 }),
            ("1f", 0, Cause::NoSuchCpus { cpus: 4 }),
            ("11111111111111111", 0, Cause::NoSuchCpus { cpus: 4 }),
            ("0x1", 1, Cause::NotMask),
            ("1,1", 3, Cause::NotMask),
            ("1,", 2, Cause::NotMask),
            (",1", 0, Cause::NotMask),
            ("000000000,00000001", 8, Cause::NotMask),
            ("1,0000000,00000001", 9, Cause::NotMask),
        ] {
            assert_eq!(mask(text, 4), Err(Refused::at(column, cause)), "{text:?}");
        }
    }

    #[test]
    fn no_text_is_too_much_for_them() {
        storm(300, 20, |random| {
            let text: String = (0..random.below(24))
                .map(|_| *random.pick(&['0', '1', 'f', ',', ' ', '+', 'é', '-', '\n']))
                .collect();
            let inside = |refused: Refused| assert!(refused.column <= text.len(), "{text:?}: {refused:?}");
            if let Err(refused) = one_number(&text, 100) {
                inside(refused);
            }
            if let Err(refused) = mask(&text, random.between(1, 64)) {
                inside(refused);
            }
        });
    }
}
