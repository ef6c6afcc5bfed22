//! A line for each function: how often, and how long.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use clap::ValueEnum;

use super::super::event::{Event, Func, What};
use super::super::names::Names;
use super::Format;

/// What the lines are sorted by, the largest first; names alphabetically.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// How often it returned.
    Calls,
    /// All time in it.
    #[default]
    Total,
    /// Time in it alone, not in what it called.
    #[value(name = "self")]
    Own,
    /// The mean.
    Avg,
    /// The longest call.
    Max,
    /// Errors returned.
    Errors,
    /// The name.
    Name,
}

/// What is known of a function's calls.
#[derive(Default)]
struct Row {
    calls: u64,
    total: u64,
    own: u64,
    min: u64,
    max: u64,
    errors: u64,
    /// How many calls took so long, by bucket.
    buckets: BTreeMap<u16, u64>,
}

/// Buckets for each power of two: a duration is known to 1.6 % from its bucket.
const FINE: u32 = 6;

fn bucket(value: u64) -> u16 {
    let exponent = value.max(1).ilog2();
    if exponent < FINE {
        return value as u16;
    }
    let shift = exponent - FINE;
    // At most 58 * 64 + 127.
    ((u64::from(shift) << FINE) + (value >> shift)) as u16
}

/// The largest value of a bucket.
fn largest(bucket: u16) -> u64 {
    let bucket = u64::from(bucket);
    let fine = 1 << FINE;
    if bucket < 2 * fine {
        return bucket;
    }
    let shift = bucket / fine - 1;
    let value = u128::from(bucket % fine + fine + 1) << shift;
    u64::try_from(value - 1).unwrap_or(u64::MAX)
}

impl Row {
    fn add(&mut self, took: u64, own: u64, error: bool) {
        self.min = if self.calls == 0 { took } else { self.min.min(took) };
        self.max = self.max.max(took);
        self.calls += 1;
        self.total = self.total.saturating_add(took);
        self.own = self.own.saturating_add(own);
        self.errors += u64::from(error);
        *self.buckets.entry(bucket(took)).or_default() += 1;
    }

    /// What 99 of 100 calls did not exceed.
    fn p99(&self) -> u64 {
        let want = self.calls - self.calls / 100;
        let mut seen = 0;
        let found = self.buckets.iter().find(|(_, count)| {
            seen += **count;
            seen >= want
        });
        found.map_or(0, |(bucket, _)| largest(*bucket)).min(self.max)
    }
}

/// Counts, and prints at the end.
pub(in super::super) struct Table<W> {
    out: W,
    sort: Sort,
    limit: usize,
    rows: HashMap<Func, Row>,
    lost: u64,
}

impl<W: Write> Table<W> {
    /// At most `limit` lines.
    pub(in super::super) fn new(out: W, sort: Sort, limit: usize) -> Self {
        Self { out, sort, limit, rows: HashMap::new(), lost: 0 }
    }
}

fn us(ns: u64) -> String {
    format!("{}.{:03}", ns / 1000, ns % 1000)
}

impl<W: Write> Format for Table<W> {
    fn event(&mut self, event: &Event, _: &Names) -> io::Result<()> {
        match &event.what {
            What::Leave(call) | What::Leaf(call) => {
                let row = self.rows.entry(call.func).or_default();
                row.add(call.duration().unwrap_or(0), call.self_ns, call.has_failed());
            }
            What::Lost(count) => self.lost += count,
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self, names: &Names) -> io::Result<()> {
        let mut rows: Vec<_> = self.rows.iter().map(|(func, row)| (names.function(*func), row)).collect();
        rows.sort_by_key(|(name, row)| {
            let key = match self.sort {
                Sort::Calls => row.calls,
                Sort::Total => row.total,
                Sort::Own => row.own,
                Sort::Avg => row.total / row.calls.max(1),
                Sort::Max => row.max,
                Sort::Errors => row.errors,
                Sort::Name => 0,
            };
            (std::cmp::Reverse(key), *name)
        });
        let heads = ["calls", "total us", "self us", "min us", "avg us", "p99 us", "max us", "errors"];
        let cells = rows.iter().take(self.limit).map(|(_, row)| {
            let avg = row.total / row.calls.max(1);
            let times = [row.total, row.own, row.min, avg, row.p99(), row.max].map(us);
            let [total, own, min, avg, p99, max] = times;
            [row.calls.to_string(), total, own, min, avg, p99, max, row.errors.to_string()]
        });
        let cells: Vec<_> = cells.collect();
        let mut widths = heads.map(str::len);
        for row in &cells {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.len());
            }
        }
        for (head, width) in heads.iter().zip(widths) {
            write!(self.out, "{head:>width$}  ")?;
        }
        writeln!(self.out, "function")?;
        for (row, (name, _)) in cells.iter().zip(&rows) {
            for (cell, width) in row.iter().zip(widths) {
                write!(self.out, "{cell:>width$}  ")?;
            }
            writeln!(self.out, "{name}")?;
        }
        if let Some(more) = rows.len().checked_sub(self.limit).filter(|more| *more > 0) {
            writeln!(self.out, "and {more} functions more")?;
        }
        if self.lost > 0 {
            writeln!(self.out, "{} records were lost", self.lost)?;
        }
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_its_values_and_is_narrow() {
        let mut last = 0;
        for exponent in 0..64 {
            for part in 0..64_u128 {
                let value = (1_u64 << exponent) | ((part << exponent) >> 6) as u64;
                let top = largest(bucket(value));
                assert!(top >= value && top - value <= value / 64 + 1, "{value}: {top}");
                assert_eq!(bucket(top), bucket(value));
                assert!(bucket(value) >= last);
                last = bucket(value);
            }
        }
        assert_eq!(largest(bucket(u64::MAX)), u64::MAX);
        assert_eq!((bucket(0), largest(0)), (0, 0));
    }

    #[test]
    fn of_a_hundred_calls_the_longest_is_left_out() {
        let mut row = Row::default();
        for took in 1..=100 {
            row.add(took, took, false);
        }
        assert_eq!((row.p99(), row.min, row.max, row.total), (99, 1, 100, 5050));
        row.add(1 << 40, 0, true);
        assert_eq!((row.p99(), row.errors), (100, 1));
    }
}
