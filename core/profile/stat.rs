//! The profiler's table as text, in the layout of Linux's `trace_stat/function0`.

use core::fmt::{self, Write};

use super::ProfileRow;
use crate::text::{Resolve, write_time};

/// Characters of a function's name.
const NAME: usize = 30;

/// Writes the rows, with the two lines above them that Linux writes. Times are in microseconds, `s^2` in square microseconds; names are
/// cut after 30 characters.
///
/// # Errors
/// Those of `out`.
pub fn write_profile(out: &mut dyn Write, rows: &[ProfileRow], resolve: &dyn Resolve) -> fmt::Result {
    write_profile_head(out)?;
    rows.iter().try_for_each(|row| write_profile_row(out, row, resolve))
}

/// Writes the two lines above the rows.
///
/// # Errors
/// Those of `out`.
pub fn write_profile_head(out: &mut dyn Write) -> fmt::Result {
    out.write_str("  Function                               Hit    Time            Avg             s^2\n")?;
    out.write_str("  --------                               ---    ----            ---             ---\n")
}

/// Writes one row.
///
/// # Errors
/// Those of `out`.
pub fn write_profile_row(out: &mut dyn Write, row: &ProfileRow, resolve: &dyn Resolve) -> fmt::Result {
    out.write_str("  ")?;
    let mut name = Cut { out, left: NAME };
    write!(name, "{}", Name { func: row.func.get(), resolve })?;
    let pad = name.left;
    write!(out, "{:pad$}  {:>10}", "", row.hits)?;
    // The writer of times takes thousandths.
    let thousandths = u64::try_from(row.variance() / 1000).unwrap_or(u64::MAX);
    for time in [row.time_ns, row.average_ns(), thousandths] {
        out.write_str("    ")?;
        write_time(out, time)?;
    }
    out.write_str("\n")
}

struct Name<'a> {
    func: usize,
    resolve: &'a dyn Resolve,
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.resolve.name(self.func, f)
    }
}

/// Lets so many characters through.
struct Cut<'a> {
    out: &'a mut dyn Write,
    left: usize,
}

impl Write for Cut<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars().take(self.left) {
            self.out.write_char(c)?;
            self.left -= 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::FuncAddr;
    use std::string::String;

    struct Names;

    impl Resolve for Names {
        fn name(&self, func: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match func {
                1 => f.write_str("open_gate"),
                2 => f.write_str("a_name_of_more_than_thirty_characters_é"),
                _ => write!(f, "{func:#x}"),
            }
        }

        fn place(&self, addr: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.name(addr, f)
        }
    }

    #[test]
    fn the_table_has_the_columns_that_linux_writes() {
        let row = |func, times: &[u64]| ProfileRow {
            func: FuncAddr::new(func),
            hits: times.len() as u64,
            time_ns: times.iter().sum(),
            squares: times.iter().map(|ns| u128::from(*ns) * u128::from(*ns)).sum(),
        };
        let rows = [
            row(1, &[1_000_000, 3_000_000]),
            row(2, &[742]),
            row(0xabc, &[]),
            row(3, &[123_456_789_012_345]),
        ];
        let mut text = String::new();
        write_profile(&mut text, &rows, &Names).expect("written");
        let should = "  Function                               Hit    Time            Avg             s^2\n  \
             --------                               ---    ----            ---             ---\n  \
             open_gate                                2    4000.000 us     2000.000 us     2000000 us  \n  \
             a_name_of_more_than_thirty_cha           1    0.742 us        0.742 us        0.000 us    \n  \
             0xabc                                    0    0.000 us        0.000 us        0.000 us    \n  \
             0x3                                      1    123456789012 us     123456789012 us     0.000 us    \n";
        assert_eq!(text, should);
    }
}
