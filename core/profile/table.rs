//! One CPU's functions, in a hash table with open addresses. Written by that CPU alone: by returns in tasks and by those in interrupts
//! on top of them, at any instruction, which is why sums are made in one step each. A key is never taken away again.

use super::{ProfileError, ProfileRow};
use crate::addr::FuncAddr;
use crate::sync::{AtomicPtr, AtomicU64, AtomicUsize, Ordering, interrupt_point};

/// Words that one function takes in a profiler's table.
pub const PROFILE_WORDS: usize = 5;

/// How many places are looked at for a function before it is given up, so that a full table costs no more.
const MAX_LOOKS: usize = 64;

/// What one function has. All zero when free.
#[derive(Debug)]
#[repr(C)]
struct Record {
    func: AtomicUsize,
    hits: AtomicUsize,
    time_ns: AtomicUsize,
    /// The sum of the squares, its low and its high half.
    squares: [AtomicUsize; 2],
}

static_assertions::const_assert_eq!(size_of::<Record>(), PROFILE_WORDS * size_of::<usize>());

/// See the module. A cache line of its own, since each CPU writes to its own.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Table {
    records: AtomicPtr<Record>,
    /// 0 while there is no memory; otherwise `records` points to this many that live for ever.
    len: AtomicUsize,
    lost: AtomicU64,
}

impl Table {
    pub(super) const fn new() -> Self {
        Self {
            records: AtomicPtr::new(core::ptr::null_mut()),
            len: AtomicUsize::new(0),
            lost: AtomicU64::new(0),
        }
    }

    pub(super) fn lend(&self, words: &'static mut [usize]) -> Result<(), ProfileError> {
        let functions = self.len.load(Ordering::Relaxed);
        if functions != 0 {
            return Err(ProfileError::AlreadyThere { functions });
        }
        let len = words.len() / PROFILE_WORDS;
        if len == 0 {
            return Err(ProfileError::TooFewWords { words: words.len(), needed: PROFILE_WORDS });
        }
        words.fill(0);
        self.records.store(words.as_mut_ptr().cast(), Ordering::Relaxed);
        // Pairs with the acquire in `all`: who sees the length sees the memory, and it zeroed.
        self.len.store(len, Ordering::Release);
        Ok(())
    }

    #[inline]
    fn all(&self) -> &[Record] {
        let len = self.len.load(Ordering::Acquire);
        if len == 0 {
            return &[];
        }
        // SAFETY: `lend` stored a pointer to at least `len` records' words before it released `len`; they live for ever, a record
        // is words only and has their alignment, any bits are good ones, and nobody accesses them but as atomics.
        unsafe { core::slice::from_raw_parts(self.records.load(Ordering::Relaxed), len) }
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Counts a call. On the table's CPU, with preemption off, in any context.
    #[inline]
    pub(super) fn add(&self, func: FuncAddr, ns: u64) {
        let Some(record) = self.record(func) else {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        };
        interrupt_point();
        record.hits.fetch_add(1, Ordering::Relaxed);
        interrupt_point();
        record.time_ns.fetch_add(ns as usize, Ordering::Relaxed);
        let square = u128::from(ns) * u128::from(ns);
        let (low, high) = (square as usize, (square >> usize::BITS) as usize);
        interrupt_point();
        let had = record.squares[0].fetch_add(low, Ordering::Relaxed);
        let carry = usize::from(had.checked_add(low).is_none());
        // Times above four seconds, or many calls: rarely.
        if high + carry != 0 {
            interrupt_point();
            record.squares[1].fetch_add(high + carry, Ordering::Relaxed);
        }
    }

    /// The function's record, which is taken if there is none.
    #[inline]
    fn record(&self, func: FuncAddr) -> Option<&Record> {
        let (records, key) = (self.all(), func.get());
        if key == 0 {
            return None;
        }
        let mut at = place(key, records.len());
        for _ in 0..records.len().min(MAX_LOOKS) {
            let record = &records[at];
            let mut there = record.func.load(Ordering::Relaxed);
            if there == 0 {
                interrupt_point();
                // An interrupt may have taken it in between, for this function or for another.
                there = record
                    .func
                    .compare_exchange(0, key, Ordering::Relaxed, Ordering::Relaxed)
                    .map_or_else(|taken| taken, |_| key);
            }
            if there == key {
                return Some(record);
            }
            at = if at + 1 == records.len() { 0 } else { at + 1 };
        }
        None
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = ProfileRow> {
        let row = |record: &Record| {
            let [low, high] = &record.squares;
            ProfileRow {
                func: FuncAddr::new(record.func.load(Ordering::Relaxed)),
                hits: record.hits.load(Ordering::Relaxed) as u64,
                time_ns: record.time_ns.load(Ordering::Relaxed) as u64,
                squares: low.load(Ordering::Relaxed) as u128
                    | (high.load(Ordering::Relaxed) as u128) << usize::BITS,
            }
        };
        self.all().iter().map(row).filter(|row| row.hits != 0)
    }

    /// Forgets the counts; the functions keep their places.
    pub(super) fn clear(&self) {
        for record in self.all() {
            let [low, high] = &record.squares;
            for word in [&record.hits, &record.time_ns, low, high] {
                word.store(0, Ordering::Relaxed);
            }
        }
        self.lost.store(0, Ordering::Relaxed);
    }
}

/// Where to begin: the upper bits of a product spread neighbouring functions (Knuth, TAOCP 3, 6.4).
#[inline]
fn place(key: usize, len: usize) -> usize {
    let hash = (key as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((u128::from(hash) * len as u128) >> u64::BITS) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{keep_all, with_interrupt_at};
    use std::vec::Vec;

    fn table(functions: usize) -> Table {
        let table = Table::new();
        table.lend(keep_all(vec![usize::MAX; functions * PROFILE_WORDS])).expect("memory");
        table
    }

    #[test]
    fn each_function_has_a_place_until_there_is_none() {
        for functions in [1, 2, 7, 64] {
            let table = table(functions);
            for round in 1..=3 {
                for func in 1..=functions + 2 {
                    table.add(FuncAddr::new(16 * func), 10 * round);
                }
            }
            let rows: Vec<_> = table.rows().collect();
            assert_eq!(rows.len(), functions);
            assert!(rows.iter().all(|row| (row.hits, row.time_ns, row.squares) == (3, 60, 1400)));
            assert_eq!(table.lost(), 6, "two functions, three times");
            table.clear();
            assert_eq!((table.rows().count(), table.lost()), (0, 0));
        }
    }

    #[test]
    fn without_memory_everything_is_lost() {
        let table = Table::new();
        table.add(FuncAddr::new(1), 1);
        assert_eq!((table.rows().count(), table.lost()), (0, 1));
        let few = table.lend(keep_all(vec![0; PROFILE_WORDS - 1]));
        assert_eq!(few, Err(ProfileError::TooFewWords { words: 4, needed: 5 }));
        table.lend(keep_all(vec![0; 2 * PROFILE_WORDS + 1])).expect("memory");
        let again = table.lend(keep_all(vec![0; PROFILE_WORDS]));
        assert_eq!(again, Err(ProfileError::AlreadyThere { functions: 2 }));
    }

    #[test]
    fn large_squares_carry_into_the_upper_half() {
        let table = table(1);
        let times = [u64::from(u32::MAX), 1 << 33, u64::from(u32::MAX), 1 << 40];
        times.iter().for_each(|ns| table.add(FuncAddr::new(1), *ns));
        let row = table.rows().next().expect("a row");
        assert_eq!(row.squares, times.iter().map(|ns| u128::from(*ns) * u128::from(*ns)).sum());
    }

    /// An interrupt at every step counts the same function, or another that wants the same place.
    #[test]
    fn an_interrupt_loses_nothing() {
        for func in [1, 2] {
            for at in 0.. {
                let table = table(3);
                let big = u64::from(u32::MAX);
                let interrupt = || table.add(FuncAddr::new(func), big);
                let ((), came) = with_interrupt_at(at, interrupt, || table.add(FuncAddr::new(1), big));
                let rows: Vec<_> = table.rows().collect();
                let hits: u64 = rows.iter().map(|row| row.hits).sum();
                let squares: u128 = rows.iter().map(|row| row.squares).sum();
                let calls = 1 + u64::from(came);
                assert_eq!((hits, table.lost()), (calls, 0), "{func} at {at}");
                assert_eq!(squares, u128::from(calls) * u128::from(big * big), "{func} at {at}");
                assert_eq!(rows.len(), if came { func } else { 1 }, "{func} at {at}");
                if !came {
                    break;
                }
            }
        }
    }
}
