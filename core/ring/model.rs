//! Random histories of nested writers and readers against plain rules: nothing is lost without being counted, nothing comes twice,
//! nothing is altered, and what was done before something began stands before it.

use core::cell::{Cell, RefCell};
use std::vec::Vec;

use super::{Brief, Buffer, Counts, Item, Mode, Ring, RingError};
use crate::platform::Context;
use crate::sync::{AtomicU64, Ordering};
use crate::testing::{Random, keep, keep_all, storm, with_interrupt_at, with_interrupts_at};
use crate::wire::{Call, Entry, Hit, Mark, Record, Who};

const PAGE: usize = Buffer::MIN_PAGE_WORDS;

pub(super) fn buffer(pages: usize, page_words: usize, mode: Mode) -> &'static Buffer {
    // Dirty memory: what it holds before must not matter.
    let words = (0..pages * page_words).map(|i| AtomicU64::new(0x0123_4567_89ab_cdef ^ i as u64)).collect();
    keep(Buffer::new(3, keep_all(words), page_words, mode).unwrap())
}

/// One attempt to record something. Its number is in the record.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    start: u64,
    end: u64,
    who: Who,
    begun: u64,
    /// When it was done, and if it was taken.
    done: Option<(u64, bool)>,
}

/// A buffer and all that was ever tried on it.
struct World {
    buffer: &'static Buffer,
    tried: RefCell<Vec<Attempt>>,
    steps: Cell<u64>,
    clock: Cell<u64>,
    random: RefCell<Random>,
    /// Calls are all short, and of one task.
    plain: bool,
}

/// What a reader has seen.
#[derive(Clone, Default, Debug)]
struct Seen {
    ids: Vec<usize>,
    lost: u64,
    /// The latest beginning of anything seen so far.
    begun: u64,
}

impl World {
    fn new(buffer: &'static Buffer, random: &mut Random) -> Self {
        Self {
            buffer,
            tried: RefCell::default(),
            steps: Cell::new(1),
            clock: Cell::new(1 << 40),
            random: RefCell::new(Random::new(random.word())),
            plain: random.one_in(3),
        }
    }

    fn step(&self) -> u64 {
        self.steps.set(self.steps.get() + 1);
        self.steps.get()
    }

    fn below(&self, end: usize) -> usize {
        self.random.borrow_mut().below(end)
    }

    /// The record of an attempt: its number decides all but who and when.
    fn with_record<R>(&self, id: usize, attempt: Attempt, f: impl FnOnce(Record<'_>) -> R) -> R {
        let mut random = Random::new(id as u64);
        let Attempt { start, end, who, .. } = attempt;
        let words: [u64; 8] = core::array::from_fn(|_| random.word());
        let mut call = Call::new(id as u32, random.below(40) as u32, who, start, end);
        call.retval = [None, Some(0), Some(1), Some(2), Some(words[0])][random.below(5)];
        let kind = if self.plain { 0 } else { random.below(13) };
        f(match kind {
            0..7 => Record::Call(call),
            7 => Record::Mark(Mark {
                id: id as u32,
                who,
                time: end,
                data: &words[..random.below(9)],
                cut: false,
            }),
            8 => Record::Entry(Entry {
                func: id as u32,
                depth: call.depth,
                who,
                time: end,
                ret_addr: random.one_in(2).then_some(words[1]),
                args: &words[..random.below(9)],
                cut: random.one_in(2),
            }),
            9 => Record::Hit(Hit { func: id as u32, who, time: end, parent_ip: words[1] }),
            _ => {
                call.retval2 = random.one_in(2).then_some(words[2]);
                call.overrun = random.below(2) as u32;
                call.from_cpu = random.one_in(2).then_some(7);
                call.ret_addr = random.one_in(2).then_some(words[3]);
                call.args = if random.one_in(2) { &words[..random.below(9)] } else { &[] };
                Record::Call(call)
            }
        })
    }

    /// Tries to record something.
    fn write(&self, context: Context) -> bool {
        let gap = match self.below(12) {
            0 if !self.plain => 1 << 33,
            1 if !self.plain => 100_000,
            2 => 0,
            _ => self.below(3000) as u64,
        };
        let end = self.clock.get() + gap;
        self.clock.set(end);
        let duration = match self.below(8) {
            0 if !self.plain => 1 << 34,
            1 if !self.plain => 70_000,
            _ => self.below(500) as u64,
        };
        let task = if self.plain || self.below(8) != 0 { 1 } else { 2 };
        let who = Who { task, context };
        let attempt = Attempt { start: end - duration, end, who, begun: self.step(), done: None };
        let id = self.tried.borrow().len();
        self.tried.borrow_mut().push(attempt);
        let taken = self.with_record(id, attempt, |record| match record {
            Record::Call(Call { func, depth, who, start, end, retval, .. })
                if record == Record::Call(Call { retval, ..Call::new(func, depth, who, start, end) }) =>
            {
                self.buffer.call(&Brief { func, depth, who, start, end, retval })
            }
            Record::Hit(hit) if id.is_multiple_of(2) => self.buffer.hit(&hit),
            record => self.buffer.record(&record),
        });
        self.tried.borrow_mut()[id].done = Some((self.step(), taken));
        taken
    }

    fn see(&self, seen: &mut Seen, item: Item<'_>) {
        let record = match item {
            Item::Lost(count) => {
                assert_ne!(count, 0, "a loss of nothing");
                seen.lost += count;
                return;
            }
            Item::Record(record) => record,
        };
        let id = match record {
            Record::Call(call) => call.func,
            Record::Entry(entry) => entry.func,
            Record::Hit(hit) => hit.func,
            Record::Mark(mark) => mark.id,
            Record::Unknown(words) => panic!("unknown record {words:x?}"),
        } as usize;
        let attempt = *self.tried.borrow().get(id).unwrap_or_else(|| panic!("number {id} was never written"));
        self.with_record(id, attempt, |want| assert_eq!(record, want));
        if let Some((done, taken)) = attempt.done {
            assert!(taken, "{id} was refused and is there");
            assert!(done > seen.begun, "{id} was done before something began that stands before it");
        }
        assert!(!seen.ids.contains(&id), "{id} comes twice");
        seen.begun = seen.begun.max(attempt.begun);
        seen.ids.push(id);
    }

    /// Reads to the end, from the beginning.
    fn read_all(&self) -> Seen {
        let mut room = vec![0; self.buffer.page_len()];
        let mut reader = self.buffer.peek(&mut room).unwrap();
        let mut seen = Seen::default();
        while let Some(item) = reader.next() {
            self.see(&mut seen, item);
        }
        seen
    }

    /// When nobody writes: everything is there or counted, and what is gone is the oldest.
    fn check(&self) {
        let seen = self.read_all();
        let tried = self.tried.borrow();
        assert_eq!(seen.ids.len() as u64 + seen.lost, tried.len() as u64, "{seen:?}");
        let refused = tried.iter().filter(|attempt| attempt.done.is_some_and(|done| !done.1)).count() as u64;
        let counts = Counts { records: tried.len() as u64 - refused, refused };
        assert_eq!(self.buffer.counts(), counts);
        let oldest = seen.ids.iter().map(|&id| tried[id].done.unwrap().0).min();
        for (id, attempt) in tried.iter().enumerate() {
            if attempt.done.unwrap().1 && !seen.ids.contains(&id) {
                assert!(
                    oldest.is_none_or(|oldest| attempt.begun < oldest),
                    "{id} is gone, and older ones are not"
                );
            }
        }
        // Each page says the same by itself.
        let mut alone = 0;
        let mut page = vec![0; self.buffer.page_len()];
        for sequence in self.buffer.page_range() {
            let Ok(len) = self.buffer.copy_page(sequence, &mut page) else { continue };
            let (header, records) = crate::wire::page(&page[..len]).unwrap();
            assert_eq!((header.sequence, header.cpu), (sequence, 3));
            assert_eq!(header.records, counts.records - (seen.ids.len() - alone) as u64, "page {sequence}");
            for record in records {
                self.see(&mut Seen::default(), Item::Record(record.unwrap()));
                alone += 1;
            }
        }
        assert_eq!(alone, seen.ids.len());
    }

    /// An interrupt that writes, and may be interrupted.
    fn interrupt(&self, context: Context, most: usize) {
        let next = if context == Context::Irq { Context::Nmi } else { Context::Irq };
        for _ in 0..self.below(most) + 1 {
            if context != Context::Nmi && self.below(2) == 0 {
                with_interrupt_at(self.below(30), || self.interrupt(next, 3), || self.write(context));
            } else {
                self.write(context);
            }
        }
    }
}

/// All of these; in Miri, which is slow and finds other things, a few.
fn few<T>(all: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
    let every = if cfg!(miri) { 19 } else { 1 };
    all.into_iter().step_by(every)
}

/// How the pages of a history without interrupts must have come out: which records are there.
fn survivors(world: &World, pages: usize) -> Vec<usize> {
    use crate::wire::{Chain, HEADER_WORDS, MAX_WORDS, encode};
    let mut all: Vec<Vec<usize>> = Vec::new();
    let mut used = world.buffer.page_len();
    let mut chain = Chain { base: 0, who: Who::NOBODY };
    for (id, attempt) in world.tried.borrow().iter().enumerate() {
        world.with_record(id, *attempt, |record| {
            let mut words = [0; MAX_WORDS];
            let before = chain;
            let mut len = encode(&record, Some(&mut chain), &mut words);
            if used + len > world.buffer.page_len() {
                if world.buffer.mode() == Mode::StopWhenFull && all.len() == pages {
                    chain = before;
                    return;
                }
                chain = Chain { base: attempt.end, who: attempt.who };
                len = encode(&record, Some(&mut chain), &mut words);
                used = HEADER_WORDS;
                all.push(Vec::new());
            }
            used += len;
            all.last_mut().unwrap().push(id);
        });
    }
    let gone = all.len().saturating_sub(pages);
    all.split_off(gone).concat()
}

#[test]
fn without_interrupts_the_pages_are_those_of_a_plain_model() {
    storm(60, 3, |random| {
        let pages = 1 << random.below(4);
        let mode = *random.pick(&[Mode::Overwrite, Mode::StopWhenFull]);
        let world = World::new(buffer(pages, PAGE << random.below(2), mode), random);
        for _ in 0..random.below(200) {
            world.write(Context::Task);
            if random.one_in(20) {
                assert_eq!(world.read_all().ids, survivors(&world, pages));
            }
        }
        assert_eq!(world.read_all().ids, survivors(&world, pages));
        world.check();
    });
}

#[test]
fn a_full_buffer_refuses_exactly_what_has_no_room() {
    let random = &mut Random::new(1);
    for pages in [1, 2, 4] {
        let world = World { plain: true, ..World::new(buffer(pages, PAGE, Mode::StopWhenFull), random) };
        let call = |end: u64, retval| {
            let who = Who { task: 1, context: Context::Task };
            let id = world.tried.borrow().len() as u32;
            let taken = world.buffer.call(&Brief { func: id, depth: 0, who, start: end, end, retval });
            world.tried.borrow_mut().push(Attempt { start: end, end, who, begun: 0, done: Some((1, taken)) });
            taken
        };
        // Pages take exactly one word for each of these.
        for n in 0..pages * (PAGE - 6) - 1 {
            assert!(call(5, None), "{n}");
        }
        assert!(!call(5, Some(9)), "two words where one is left");
        assert!(call(5, Some(1)));
        assert!(!call(5, Some(1)));
        assert_eq!(world.buffer.counts(), Counts { records: (pages * (PAGE - 6)) as u64, refused: 2 });
        // A consumer makes room for a page when it has read one.
        let mut room = vec![0; PAGE];
        let mut consumer = world.buffer.consume(&mut room).unwrap();
        for n in 0..PAGE - 6 {
            assert!(!call(5, None), "{n}");
            assert!(matches!(consumer.next(), Some(Item::Record(_))));
        }
        for _ in 0..PAGE - 6 {
            assert!(call(5, None));
        }
        assert!(!call(5, None));
    }
}

/// A buffer that refuses, and a consumer: what was read makes room, and no more than that.
#[test]
fn reading_all_of_a_page_makes_room_even_if_it_ends_in_padding() {
    for pages in [1, 2] {
        let buffer = buffer(pages, PAGE, Mode::StopWhenFull);
        let who = Who { task: 1, context: Context::Task };
        let call =
            |retval| buffer.call(&Brief { func: 1, depth: 0, who, start: 5, end: 5, retval: Some(retval) });
        // Two words each but for one, so that each page has one word left.
        let in_page = (PAGE - 6) / 2;
        for n in 0..pages * in_page {
            assert!(call(if n % in_page == 1 { 0 } else { 9 }), "{n}");
        }
        let mut room = vec![0; PAGE];
        let mut consumer = buffer.consume(&mut room).unwrap();
        for n in 0..in_page {
            assert!(!call(9), "{pages} pages, {n} read");
            assert!(matches!(consumer.next(), Some(Item::Record(_))));
        }
        assert!(call(9), "{pages} pages");
    }
}

#[test]
fn an_interrupt_may_come_anywhere() {
    // How full the page is, where the interrupt comes, and how much it writes.
    for pages in few([2, 1]) {
        for mode in few([Mode::Overwrite, Mode::StopWhenFull]) {
            for filled in few(0..PAGE + 4) {
                for most in few([4, 1, 60]) {
                    let mut step = 0;
                    loop {
                        let random = &mut Random::new((filled * 1000 + step * 10 + most) as u64);
                        let world = World::new(buffer(pages, PAGE, mode), random);
                        for _ in 0..filled {
                            world.write(Context::Task);
                        }
                        let interrupt = || {
                            for _ in 0..most {
                                world.write(Context::Irq);
                            }
                        };
                        let (_, came) = with_interrupt_at(step, interrupt, || world.write(Context::Task));
                        world.check();
                        world.write(Context::Task);
                        world.check();
                        if !came {
                            break;
                        }
                        step += if cfg!(miri) { 19 } else { 1 };
                    }
                }
            }
        }
    }
}

#[test]
fn two_interrupts_may_come_anywhere_near_the_end_of_a_page() {
    storm(4, 1, |random| {
        let seed = random.word();
        for filled in few(PAGE - 40..PAGE) {
            for first in few(0..40) {
                for later in few((0..12).step_by(2)) {
                    let random = &mut Random::new(seed ^ (filled * 10_000 + first * 100 + later) as u64);
                    let world = World::new(buffer(2, PAGE, Mode::Overwrite), random);
                    while (world.buffer.writer.commit.load(Ordering::Relaxed) as usize) < filled {
                        world.write(Context::Task);
                    }
                    let mut left = 2;
                    let interrupt = || {
                        world.write(Context::Irq);
                        left -= 1;
                        (left > 0).then_some(later)
                    };
                    with_interrupts_at(first, interrupt, || world.write(Context::Task));
                    world.check();
                }
            }
        }
    });
}

#[test]
fn a_reader_may_look_at_every_step() {
    for most in few([1, 3, 30]) {
        for filled in few(0..3 * PAGE) {
            for step in few(0..14) {
                let random = &mut Random::new((filled * 100 + step * 10 + most) as u64);
                let world = World::new(buffer(2, PAGE, Mode::Overwrite), random);
                while (world.buffer.writer.commit.load(Ordering::Relaxed) as usize) < filled {
                    world.write(Context::Task);
                }
                // An interrupt writes; from then on another CPU looks at each step.
                let mut written = false;
                let interrupt = || {
                    if !written {
                        written = true;
                        for _ in 0..most {
                            world.write(Context::Irq);
                        }
                    }
                    world.read_all();
                    Some(0)
                };
                with_interrupts_at(step, interrupt, || world.write(Context::Task));
            }
        }
    }
}

#[test]
fn random_histories_of_interrupts_and_readers_lose_nothing_uncounted() {
    storm(400, 3, |random| {
        let pages = 1 << random.below(4);
        let mode = *random.pick(&[Mode::Overwrite, Mode::StopWhenFull]);
        let world = World::new(buffer(pages, PAGE, mode), random);
        let (mut room, mut other_room) = (vec![0; PAGE], vec![0; PAGE]);
        let peek = RefCell::new((world.buffer.peek(&mut room).unwrap(), Seen::default()));
        let consume = RefCell::new((world.buffer.consume(&mut other_room).unwrap(), Seen::default()));
        // A step of a reader on another CPU.
        let read = |random: &mut Random| {
            let consumes = random.one_in(2);
            if let Ok(mut reader) = if consumes { &consume } else { &peek }.try_borrow_mut() {
                let (reader, seen) = &mut *reader;
                if let Some(item) = reader.next() {
                    world.see(seen, item);
                }
            }
        };
        for _ in 0..random.below(120) {
            let mut at = Random::new(random.word());
            let interrupt = || {
                match at.below(3) {
                    0 => read(&mut at),
                    1 => world.interrupt(Context::SoftIrq, 4),
                    _ => world.interrupt(Context::Irq, 40),
                }
                at.one_in(2).then(|| at.below(30))
            };
            let first = random.below(40);
            if random.one_in(3) {
                // The reader is slow, and its CPU's writers go on meanwhile.
                with_interrupts_at(first, interrupt, || read(random));
            } else {
                with_interrupts_at(first, interrupt, || world.write(Context::Task));
            }
        }
        for (mut reader, mut seen) in [peek.into_inner(), consume.into_inner()] {
            while let Some(item) = reader.next() {
                world.see(&mut seen, item);
            }
            assert_eq!(seen.ids.len() as u64 + seen.lost, world.tried.borrow().len() as u64);
        }
        if mode == Mode::Overwrite {
            world.check();
        }
    });
}

#[test]
fn a_consumer_goes_on_where_the_last_one_stopped() {
    let world = World::new(buffer(4, PAGE, Mode::Overwrite), &mut Random::new(5));
    let (mut room, mut other) = (vec![0; PAGE], vec![0; PAGE]);
    let mut seen = Seen::default();
    for n in 0..60 {
        world.write(Context::Task);
        if n % 3 == 0 {
            let mut consumer = world.buffer.consume(&mut room).unwrap();
            assert_eq!(world.buffer.consume(&mut other).unwrap_err(), RingError::Consumed);
            let item = consumer.next().unwrap();
            world.see(&mut seen, item);
        }
    }
    let mut consumer = world.buffer.consume(&mut room).unwrap();
    while let Some(item) = consumer.next() {
        world.see(&mut seen, item);
    }
    assert_eq!(seen.ids.len() as u64 + seen.lost, 60);
}

#[test]
fn a_reset_forgets_what_was_before_and_nothing_else() {
    storm(100, 3, |random| {
        let pages = 1 << random.below(3);
        let mode = *random.pick(&[Mode::Overwrite, Mode::StopWhenFull]);
        let world = World::new(buffer(pages, PAGE, mode), random);
        let (mut room, mut other_room) = (vec![0; PAGE], vec![0; PAGE]);
        let mut early = world.buffer.peek(&mut room).unwrap();
        for _ in 0..random.below(150) {
            world.interrupt(Context::Task, 3);
        }
        let before = world.tried.borrow().len();
        world.buffer.reset();
        for _ in 0..random.below(20) {
            world.interrupt(Context::Task, 2);
        }
        let (mut seen, mut seen_early) = (world.read_all(), Seen::default());
        while let Some(item) = early.next() {
            world.see(&mut seen_early, item);
        }
        assert!(seen.ids.iter().all(|&id| id >= before), "{before}: {seen:?}");
        assert_eq!(before as u64 + seen.ids.len() as u64 + seen.lost, world.tried.borrow().len() as u64);
        assert_eq!((&seen.ids, seen.lost), (&seen_early.ids, seen_early.lost));
        seen = Seen::default();
        let mut consumer = world.buffer.consume(&mut other_room).unwrap();
        while let Some(item) = consumer.next() {
            world.see(&mut seen, item);
        }
        assert_eq!(seen.ids, seen_early.ids);
    });
}

#[test]
fn who_interrupts_a_writer_may_forget_everything() {
    // The page of what is committed last may be overwritten by then: by the writer if there is one page, else by what comes on top.
    for pages in [1, 2] {
        for filled in few(1..PAGE + 4) {
            for most in few([0, 1, 2 * PAGE]) {
                for step in 0.. {
                    let random = &mut Random::new((filled * 1000 + step * 10 + most) as u64);
                    let world =
                        World { plain: true, ..World::new(buffer(pages, PAGE, Mode::Overwrite), random) };
                    for _ in 0..filled {
                        world.write(Context::Task);
                    }
                    let interrupt = || {
                        for _ in 0..most {
                            world.write(Context::Irq);
                        }
                        assert!(world.buffer.try_reset());
                    };
                    let ((), came) = with_interrupt_at(step, interrupt, || {
                        world.write(Context::Task);
                        world.write(Context::Task);
                    });
                    if !came {
                        break;
                    }
                    let seen = world.read_all();
                    let since = world.tried.borrow().len() - filled;
                    assert!(seen.ids.iter().all(|&id| id >= filled), "{pages}, {filled}, {step}: {seen:?}");
                    let all = seen.ids.len() as u64 + seen.lost;
                    assert!(all <= since as u64, "{pages}, {filled}, {step}: {seen:?}");
                    world.write(Context::Task);
                    let last = world.tried.borrow().len() - 1;
                    assert_eq!(world.read_all().ids.last(), Some(&last));
                }
            }
        }
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let words = |n: usize| keep_all((0..n).map(|_| AtomicU64::new(0)).collect());
    let new = |n, page| Buffer::new(0, words(n), page, Mode::Overwrite).map(|_| ()).unwrap_err();
    assert_eq!(new(64, 32), RingError::PageWords(32));
    assert_eq!(new(192, 96), RingError::PageWords(96));
    assert_eq!(new(192, 64), RingError::Words(192));
    assert_eq!(new(64, 128), RingError::Words(64));
    assert_eq!(new(0, 64), RingError::Words(0));
    let buffer = buffer(2, 64, Mode::Overwrite);
    assert_eq!(buffer.peek(&mut [0; 63]).unwrap_err(), RingError::Room(63));
    assert_eq!(buffer.copy_page(0, &mut [0; 64]), Err(RingError::NoPage(0)));
    assert_eq!(buffer.copy_page(u64::MAX, &mut [0; 64]), Err(RingError::NoPage(u64::MAX)));
}

#[test]
fn a_ring_writes_when_it_is_on_and_has_a_buffer() {
    let ring = Ring::new();
    let who = Who { task: 1, context: Context::Task };
    let write = || ring.call(&Brief { func: 1, depth: 0, who, start: 1, end: 2, retval: None });
    let records = |buffer: &Buffer| buffer.counts().records;
    assert!(!write());
    ring.on();
    assert!(!write());
    let (a, b) = (buffer(1, PAGE, Mode::Overwrite), buffer(2, PAGE, Mode::Overwrite));
    assert!(ring.swap(Some(a)).unwrap().is_none());
    assert!(write());
    assert_eq!(Ring::new().swap(Some(a)).unwrap_err(), RingError::InUse);
    // A snapshot: the spare one is written from now on.
    assert!(core::ptr::eq(ring.swap(Some(b)).unwrap().unwrap(), a));
    assert!(write() && write());
    assert_eq!((records(a), records(b)), (1, 2));
    ring.off();
    assert!(!write() && !ring.is_on());
    assert!(core::ptr::eq(ring.swap(Some(a)).unwrap().unwrap(), b));
    assert!(!write());
    ring.on();
    assert!(write() && ring.is_on());
    assert_eq!((records(a), records(b)), (2, 2));
    assert!(!ring.record(&Record::Unknown(&[7])));
    assert!(ring.swap(None).unwrap().is_some() && !write());
}
