//! Where the function_graph tracer keeps what it saw: one buffer per CPU, filled until it is full.
//!
//! Writers run with preemption off on the buffer's CPU, and interrupts on top of them write too: each takes a slot of its own, and
//! commits it by writing its kind last. A reader, anywhere and at any time, sees the committed records in order up to the first
//! that is not. Nothing is overwritten; what finds no room is counted.

use crate::sync::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use crate::text::{Event, Kind, Task};

/// Words of one record.
const WORDS: usize = 8;

/// Memory for one record.
#[derive(Debug)]
#[repr(transparent)]
pub struct Record([AtomicU64; WORDS]);

const EMPTY: u64 = 0;
const ENTRY: u64 = 1;
const RETURN: u64 = 2;

/// What happened, and to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct When {
    /// Nanoseconds.
    pub time_ns: u64,
    /// The task's number.
    pub pid: u32,
    /// Hooked calls around it.
    pub depth: u32,
}

impl Record {
    /// Memory without a record.
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; WORDS])
    }

    /// The words stand as: kind, time, pid and depth, function, then what the kind needs.
    fn commit(&self, kind: u64, when: When, func: usize, rest: [u64; 4]) {
        let place = u64::from(when.pid) << 32 | u64::from(when.depth);
        let words = [when.time_ns, place, func as u64, rest[0], rest[1], rest[2], rest[3]];
        for (word, value) in self.0[1..].iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
        self.0[0].store(kind, Ordering::Release);
    }

    fn event(&self, cpu: u32, comm: &dyn Fn(u32) -> Task) -> Option<Event<'static>> {
        let kind = self.0[0].load(Ordering::Acquire);
        let word = |n: usize| self.0[n].load(Ordering::Relaxed);
        let (time_ns, place, func) = (word(1), word(2), word(3) as usize);
        let depth = place as u32;
        let kind = match kind {
            ENTRY => Kind::Entry { func, depth, ret_addr: Some(word(4) as usize), args: &[] },
            RETURN => Kind::Return {
                func,
                depth,
                duration_ns: time_ns.saturating_sub(word(4)),
                retval: [word(5) as usize, word(6) as usize],
                overrun: word(7) as u32,
            },
            _ => return None,
        };
        Some(Event { cpu, time_ns, task: comm((place >> 32) as u32), kind })
    }
}

impl Default for Record {
    fn default() -> Self {
        Self::new()
    }
}

/// The records of one CPU.
#[derive(Debug)]
pub struct CpuLog {
    records: AtomicPtr<Record>,
    /// 0 without memory; then `records` leads to this many that live for ever.
    len: AtomicUsize,
    /// Slots taken, those that did not exist included.
    taken: AtomicUsize,
}

impl CpuLog {
    /// A log without memory: everything is lost, and counted.
    pub const fn new() -> Self {
        Self {
            records: AtomicPtr::new(core::ptr::null_mut()),
            len: AtomicUsize::new(0),
            taken: AtomicUsize::new(0),
        }
    }

    /// Gives the log its memory; the memory it had, if any, is never used again. Task context.
    pub fn give(&self, records: &'static mut [Record]) {
        for record in &mut *records {
            *record = Record::new();
        }
        self.len.store(0, Ordering::Relaxed);
        self.records.store(records.as_mut_ptr(), Ordering::Release);
        self.taken.store(0, Ordering::Relaxed);
        self.len.store(records.len(), Ordering::Release);
    }

    /// Forgets all records. Nothing may be writing.
    pub fn clear(&self) {
        for record in self.records() {
            record.0[0].store(EMPTY, Ordering::Relaxed);
        }
        self.taken.store(0, Ordering::Release);
    }

    fn records(&self) -> &'static [Record] {
        let len = self.len.load(Ordering::Acquire);
        if len == 0 {
            return &[];
        }
        // SAFETY: `give` stored a pointer to `len` records out of a `&'static mut [Record]` before it released `len`; they
        // are only accessed as atomics since.
        unsafe { core::slice::from_raw_parts(self.records.load(Ordering::Relaxed), len) }
    }

    #[inline]
    fn slot(&self) -> Option<&'static Record> {
        // One step, because an interrupt may come and take the next.
        let slot = self.taken.fetch_add(1, Ordering::Relaxed);
        self.records().get(slot)
    }

    /// Records an entry. `false` when there is no room: the call need not be followed then.
    #[inline]
    pub fn entry(&self, when: When, func: usize, ret_addr: usize) -> bool {
        let slot = self.slot();
        if let Some(slot) = slot {
            slot.commit(ENTRY, when, func, [ret_addr as u64, 0, 0, 0]);
        }
        slot.is_some()
    }

    /// Records a return.
    #[inline]
    pub fn ret(&self, when: When, func: usize, call_time_ns: u64, retval: [usize; 2], overrun: u32) -> bool {
        let slot = self.slot();
        if let Some(slot) = slot {
            let [first, second] = retval;
            slot.commit(RETURN, when, func, [call_time_ns, first as u64, second as u64, overrun.into()]);
        }
        slot.is_some()
    }

    /// How many records there are, and how many found no room.
    pub fn counts(&self) -> (usize, usize) {
        let taken = self.taken.load(Ordering::Relaxed);
        let recorded = taken.min(self.len.load(Ordering::Acquire));
        (recorded, taken - recorded)
    }

    /// The records in their order, for [`Printer`](crate::text::Printer). `cpu` is whose log this is; `task` names tasks.
    pub fn events<'a>(
        &'a self,
        cpu: u32,
        task: &'a dyn Fn(u32) -> Task,
    ) -> impl Iterator<Item = Event<'static>> + 'a {
        self.records().iter().map_while(move |record| record.event(cpu, task))
    }
}

impl Default for CpuLog {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::boxed::Box;
    use alloc::vec::Vec;

    fn log(records: usize) -> CpuLog {
        let log = CpuLog::new();
        log.give(Box::leak((0..records).map(|_| Record::new()).collect()));
        log
    }

    fn at(time_ns: u64) -> When {
        When { time_ns, pid: 7, depth: 2 }
    }

    fn nobody(pid: u32) -> Task {
        Task::new(pid, "nobody")
    }

    #[test]
    fn records_come_back_in_order_with_all_they_said() {
        let log = log(4);
        assert!(log.entry(at(10), 0x1000, 0x2000));
        assert!(log.ret(at(30), 0x1000, 10, [5, 6], 3));
        let events: Vec<_> = log.events(1, &nobody).collect();
        assert_eq!(events.len(), 2);
        assert_eq!((events[0].cpu, events[0].time_ns, events[0].task.pid), (1, 10, 7));
        assert!(matches!(
            events[0].kind,
            Kind::Entry { func: 0x1000, depth: 2, ret_addr: Some(0x2000), args: &[] }
        ));
        assert!(matches!(
            events[1].kind,
            Kind::Return { func: 0x1000, depth: 2, duration_ns: 20, retval: [5, 6], overrun: 3 }
        ));
    }

    #[test]
    fn what_finds_no_room_is_counted_and_loses_nothing_else() {
        let log = log(2);
        for n in 0..5 {
            assert_eq!(log.entry(at(n), 1, 2), n < 2);
        }
        assert_eq!(log.counts(), (2, 3));
        assert_eq!(log.events(0, &nobody).count(), 2);
        log.clear();
        assert_eq!((log.counts(), log.events(0, &nobody).count()), ((0, 0), 0));
        assert!(log.entry(at(9), 1, 2));
        assert_eq!(log.events(0, &nobody).count(), 1);
    }

    #[test]
    fn a_reader_stops_at_a_record_that_is_being_written() {
        let log = log(3);
        assert!(log.entry(at(1), 1, 2));
        // An interrupted writer has taken its slot, and the interrupt records behind it.
        let pending = log.slot().expect("room");
        assert!(log.entry(at(3), 1, 2));
        assert_eq!(log.events(0, &nobody).count(), 1);
        pending.commit(ENTRY, at(2), 1, [0; 4]);
        let times: Vec<_> = log.events(0, &nobody).map(|event| event.time_ns).collect();
        assert_eq!(times, [1, 2, 3]);
    }

    #[test]
    fn a_log_without_memory_counts() {
        let log = CpuLog::new();
        assert!(!log.entry(at(1), 1, 2));
        assert_eq!(log.counts(), (0, 1));
    }
}
