//! The function profiler: how often each function ran, and for how long, by CPU.
//!
//! A graph user like any other, with a table per CPU in memory that the embedder lends. What it counts is settled by its
//! [`Limits`]: with graph-time off, for example, a function's own time. A call counts when it returns, on the CPU where it does, so
//! the average and the variance are those of whole calls; Linux counts hits at the entry.

use core::fmt;
use core::marker::PhantomData;

use crate::addr::FuncAddr;
use crate::filter::Filter;
use crate::graph::{AbandonedCall, EntryCall, GraphOps, ReturnCall, Want};
use crate::limits::Limits;
use crate::platform::Platform;
use crate::quiesce::MAX_CPUS;
use crate::regs::Regs;

use table::Table;

pub use stat::{write_profile, write_profile_head, write_profile_row};
pub use table::PROFILE_WORDS;

/// Something was asked of a profiler that it cannot do. Nothing is changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProfileError {
    /// There is no such CPU.
    NoSuchCpu {
        /// The number.
        cpu: usize,
        /// How many there can be.
        max: usize,
    },
    /// Less memory than one function takes.
    TooFewWords {
        /// How many words were given.
        words: usize,
        /// How many one function takes.
        needed: usize,
    },
    /// The CPU has a table already.
    AlreadyThere {
        /// For how many functions.
        functions: usize,
    },
    /// Not as many rows as there are functions.
    TooFewRows {
        /// How many were given.
        rows: usize,
        /// How many it takes now.
        needed: usize,
    },
}

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchCpu { cpu, max } => write!(f, "there is no CPU {cpu}: {max} are possible"),
            Self::TooFewWords { words, needed } => {
                write!(f, "a table of {words} words: one function takes {needed}")
            }
            Self::AlreadyThere { functions } => {
                write!(f, "the CPU already has a table for {functions} functions")
            }
            Self::TooFewRows { rows, needed } => write!(f, "{needed} functions do not fit into {rows} rows"),
        }
    }
}

impl core::error::Error for ProfileError {}

/// What is known of one function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfileRow {
    /// The function.
    pub func: FuncAddr,
    /// How many of its calls have returned.
    pub hits: u64,
    /// How long they took together, in nanoseconds.
    pub time_ns: u64,
    /// The sum of the squares of their times.
    pub squares: u128,
}

impl ProfileRow {
    /// A row for a buffer.
    pub const EMPTY: Self = Self { func: FuncAddr::new(0), hits: 0, time_ns: 0, squares: 0 };

    /// How long a call takes on average, in nanoseconds; 0 without any.
    pub fn average_ns(&self) -> u64 {
        self.time_ns.checked_div(self.hits).unwrap_or(0)
    }

    /// The variance of the times (of a sample: divided by one less than the hits), in square nanoseconds; 0 below two calls.
    pub fn variance(&self) -> u128 {
        if self.hits < 2 {
            return 0;
        }
        let (hits, time) = (u128::from(self.hits), u128::from(self.time_ns));
        self.squares.saturating_sub(time * time / hits) / (hits - 1)
    }

    fn add(&mut self, other: &Self) {
        self.hits = self.hits.wrapping_add(other.hits);
        self.time_ns = self.time_ns.wrapping_add(other.time_ns);
        self.squares = self.squares.wrapping_add(other.squares);
    }
}

/// A function profiler, kept in a `static`. [`ops`](Self::ops) is what to register.
///
/// Generic over the embedder's platform, for its clock and its CPU numbers; the callbacks keep this crate's names, so the linker
/// fragment leaves them out of what is traced.
#[derive(Debug)]
pub struct Profiler<P: Platform, R: Regs> {
    ops: GraphOps<R>,
    limits: Limits,
    tables: [Table; MAX_CPUS],
    _platform: PhantomData<fn(P)>,
}

impl<P: Platform, R: Regs> Profiler<P, R> {
    /// A profiler of the functions that `filter` lets through.
    pub const fn new(filter: Filter) -> Self {
        Self {
            ops: GraphOps::new(entry::<P, R>, ret::<P, R>, filter).with_abandoned(abandoned::<P, R>),
            limits: Limits::new(),
            tables: [const { Table::new() }; MAX_CPUS],
            _platform: PhantomData,
        }
    }

    /// The profiler as a graph user, to be registered and taken out.
    pub fn ops(&'static self) -> &'static GraphOps<R> {
        self.ops.owner.set(self);
        &self.ops
    }

    /// What it counts.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Lends a CPU its table: [`PROFILE_WORDS`] for each function, and better a third more, so that looking for one is short. Calls
    /// that return on a CPU without a table are counted as [`lost`](Self::lost).
    ///
    /// # Errors
    /// [`ProfileError::NoSuchCpu`], [`ProfileError::TooFewWords`], [`ProfileError::AlreadyThere`].
    pub fn lend(&self, cpu: usize, words: &'static mut [usize]) -> Result<(), ProfileError> {
        self.table(cpu)?.lend(words)
    }

    /// How many calls that returned on this CPU found no room in its table.
    ///
    /// # Errors
    /// [`ProfileError::NoSuchCpu`].
    pub fn lost(&self, cpu: usize) -> Result<u64, ProfileError> {
        Ok(self.table(cpu)?.lost())
    }

    /// What is known of the functions that returned on one CPU, longest time first. Any context; exact when the profiler is not
    /// registered, otherwise each number is one that was right a moment ago.
    ///
    /// # Errors
    /// [`ProfileError::NoSuchCpu`], [`ProfileError::TooFewRows`].
    pub fn rows<'r>(&self, cpu: usize, out: &'r mut [ProfileRow]) -> Result<&'r [ProfileRow], ProfileError> {
        let table = self.table(cpu)?;
        let count = fill(out, table.rows())?;
        Ok(sorted(&mut out[..count]))
    }

    /// The same of all CPUs together. It takes a row for each function and CPU.
    ///
    /// # Errors
    /// [`ProfileError::TooFewRows`].
    pub fn rows_of_all<'r>(&self, out: &'r mut [ProfileRow]) -> Result<&'r [ProfileRow], ProfileError> {
        let count = fill(out, self.tables.iter().flat_map(Table::rows))?;
        let rows = &mut out[..count];
        rows.sort_unstable_by_key(|row| row.func);
        let mut last = 0;
        for next in 1..count {
            let row = rows[next];
            if rows[last].func == row.func {
                rows[last].add(&row);
            } else {
                last += 1;
                rows[last] = row;
            }
        }
        let functions = count.min(last + 1);
        Ok(sorted(&mut out[..functions]))
    }

    /// Forgets all counts. While the profiler is not registered; of a call that returns meanwhile a part may stay.
    pub fn clear(&self) {
        self.tables.iter().for_each(Table::clear);
    }

    fn table(&self, cpu: usize) -> Result<&Table, ProfileError> {
        self.tables.get(cpu).ok_or(ProfileError::NoSuchCpu { cpu, max: MAX_CPUS })
    }

    #[inline]
    fn of(ops: &GraphOps<R>) -> Option<&'static Self> {
        // SAFETY: the callbacks below are private, and only `new` makes ops with them: those of a `Self`, which leave it through
        // `Self::ops` alone, by shared reference. That is who sets their owner.
        unsafe { ops.owner.get() }
    }
}

fn entry<P: Platform, R: Regs>(call: &mut EntryCall<'_, R>, ops: &GraphOps<R>) -> Want {
    let Some(profiler) = Profiler::<P, R>::of(ops) else { return Want::Nothing };
    let limits = &profiler.limits;
    let begun = match limits.admit(call, P::task_id()) {
        // The clock as late as possible: what runs before belongs to the tracer.
        Ok(admitted) => limits.begin(call, admitted, P::clock_ns(), 0),
        Err(want) => return want,
    };
    match begun {
        Ok(_) => Want::Return,
        Err(want) => want,
    }
}

fn ret<P: Platform, R: Regs>(call: &mut ReturnCall<'_, R>, ops: &GraphOps<R>) {
    let now = P::clock_ns();
    let Some(profiler) = Profiler::<P, R>::of(ops) else { return };
    if let Some(done) = profiler.limits.finish(call, now)
        && let Some(table) = profiler.tables.get(P::cpu_id())
    {
        table.add(call.func(), done.duration_ns);
    }
}

fn abandoned<P: Platform, R: Regs>(call: &mut AbandonedCall<'_, R>, ops: &GraphOps<R>) {
    if let Some(profiler) = Profiler::<P, R>::of(ops) {
        profiler.limits.forget(call);
    }
}

fn fill(out: &mut [ProfileRow], rows: impl Iterator<Item = ProfileRow>) -> Result<usize, ProfileError> {
    let mut needed = 0;
    for row in rows {
        if let Some(place) = out.get_mut(needed) {
            *place = row;
        }
        needed += 1;
    }
    if needed > out.len() {
        return Err(ProfileError::TooFewRows { rows: out.len(), needed });
    }
    Ok(needed)
}

fn sorted(rows: &mut [ProfileRow]) -> &[ProfileRow] {
    rows.sort_unstable_by(|a, b| (b.time_ns, b.hits).cmp(&(a.time_ns, a.hits)).then(a.func.cmp(&b.func)));
    rows
}

mod stat;
mod table;

#[cfg(test)]
mod model;
