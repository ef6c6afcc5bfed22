//! How long a task has been without a CPU. Written by the scheduler at task switches, read by callbacks on the task itself, which
//! then runs; each word is read and written whole.

use crate::sync::{AtomicU64, Ordering};

/// `since` of a task that has a CPU, or was never told of.
const AWAKE: u64 = u64::MAX;

/// See the module.
#[derive(Debug)]
pub(super) struct Sleep {
    since: AtomicU64,
    total_ns: AtomicU64,
}

impl Sleep {
    pub(super) const fn new() -> Self {
        Self { since: AtomicU64::new(AWAKE), total_ns: AtomicU64::new(0) }
    }

    pub(super) fn begin(&self, now: u64) {
        self.since.store(now.min(AWAKE - 1), Ordering::Relaxed);
    }

    pub(super) fn end(&self, now: u64) {
        let since = self.since.load(Ordering::Relaxed);
        if since == AWAKE {
            return;
        }
        self.since.store(AWAKE, Ordering::Relaxed);
        // Clocks of two CPUs may differ: a sleep is never negative.
        let slept = now.saturating_sub(since);
        let total = self.total_ns.load(Ordering::Relaxed).saturating_add(slept);
        self.total_ns.store(total, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn total_ns(&self) -> u64 {
        self.total_ns.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_add_up_and_none_is_counted_twice() {
        let sleep = Sleep::new();
        sleep.end(50);
        assert_eq!(sleep.total_ns(), 0, "a task that was never switched out");
        sleep.begin(100);
        assert_eq!(sleep.total_ns(), 0, "a sleep counts when it ends");
        sleep.end(130);
        sleep.end(200);
        assert_eq!(sleep.total_ns(), 30);
        sleep.begin(200);
        sleep.end(190);
        assert_eq!(sleep.total_ns(), 30, "the clock of another CPU is behind");
        sleep.begin(u64::MAX);
        sleep.end(u64::MAX);
        assert_eq!(sleep.total_ns(), 31, "the largest time is kept as the one before it");
    }
}
