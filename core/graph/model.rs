//! The graph against a plain model, in random sequences: calls, tail calls, returns, non-local jumps, users that come and go, and
//! callbacks that call traced functions themselves.
//!
//! What a callback does follows from the user's number and the call's serial number, so the model can foretell it.

use core::cell::{Cell, RefCell};
use std::rc::Rc;
use std::vec::Vec;

use super::world::{Block, Call, HOOKER, World, funcs, on_both_machines, play_all, user};
use super::{GraphOps, Want};
use crate::filter::{Filter, FuncSet};
use crate::platform::{Context, Fatal};
use crate::sync::{AtomicUsize, Ordering};
use crate::task::TaskStats;
use crate::testing::{Random, storm};
use crate::users::MAX_USERS;

const FUNCS: [usize; 8] = [0x1000, 0x1100, 0x1200, 0x1300, 0x1400, 0x1500, 0x1600, 0x1700];
const CONTEXTS: [Context; 4] = [Context::Task, Context::SoftIrq, Context::Irq, Context::Nmi];

/// What one callback does.
struct Choice {
    /// Words to reserve.
    words: usize,
    want: Want,
    /// A traced function that is called first, and the context it runs in.
    nested: Option<(usize, Context)>,
    /// A return value to put in place.
    value: Option<usize>,
    fill: usize,
    /// How many calls up to look for data.
    up: usize,
    /// What is put into the user's word in the task.
    word: Option<usize>,
}

fn choose(user: usize, serial: usize, at_return: bool) -> Choice {
    let mut random = Random::new((user as u64) << 40 | (serial as u64) << 1 | u64::from(at_return));
    Choice {
        words: *random.pick(&[0, 0, 1, 1, 2, 3, 15, 31, 32, 33]),
        want: if random.one_in(3) { Want::Nothing } else { Want::Return },
        nested: random.one_in(6).then(|| (*random.pick(&FUNCS), *random.pick(&CONTEXTS))),
        value: random.one_in(3).then(|| random.word() as usize),
        fill: random.word() as usize,
        up: random.below(4),
        word: random.one_in(2).then(|| random.word() as usize),
    }
}

fn values(data: Option<&[AtomicUsize]>) -> Option<Vec<usize>> {
    data.map(|data| data.iter().map(|word| word.load(Ordering::Relaxed)).collect())
}

/// Looks at a word and puts another value into it.
fn replaced(word: &AtomicUsize, by: Option<usize>) -> usize {
    let was = word.load(Ordering::Relaxed);
    word.store(by.unwrap_or(was), Ordering::Relaxed);
    was
}

/// What a callback was told.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Event {
    Entry {
        user: usize,
        func: usize,
        ret: usize,
        depth: u32,
        reserved: bool,
        word: usize,
        parent: Option<Vec<usize>>,
    },
    Return {
        user: usize,
        func: usize,
        ret: usize,
        depth: u32,
        value: usize,
        data: Option<Vec<usize>>,
        overrun: u64,
        word: usize,
        parent: Option<Vec<usize>>,
    },
    Abandoned {
        user: usize,
        func: usize,
        ret: usize,
        depth: u32,
        data: Option<Vec<usize>>,
        word: usize,
        parent: Option<Vec<usize>>,
    },
}

/// Numbers calls, in the real world and in the model.
#[derive(Default)]
struct Serials {
    last: Cell<usize>,
    current: Cell<usize>,
}

impl Serials {
    /// Runs a part of call `serial`; a part of another call may be around it.
    fn within<T>(&self, serial: usize, run: impl FnOnce() -> T) -> T {
        let outer = self.current.replace(serial);
        let result = run();
        self.current.set(outer);
        result
    }

    fn next(&self) -> usize {
        self.last.set(self.last.get() + 1);
        self.last.get()
    }
}

/// The real graph, with its events.
struct Real<R: Block> {
    world: Rc<World<R>>,
    serials: Rc<Serials>,
    events: Rc<RefCell<Vec<Event>>>,
}

impl<R: Block> Real<R> {
    fn new(shadow_words: usize) -> Self {
        let world = World::<R>::new(shadow_words);
        let serials = Rc::new(Serials::default());
        let events = Rc::new(RefCell::new(Vec::new()));
        let entry = {
            let (world, serials, events) = (world.clone(), serials.clone(), events.clone());
            move |call: &mut super::EntryCall<'_, R>, ops: &GraphOps<R>| {
                let serial = serials.current.get();
                let choice = choose(ops.private(), serial, false);
                nested_call(&world, &serials, choice.nested);
                let data = call.reserve(choice.words);
                if let Some(data) = data {
                    data.iter()
                        .enumerate()
                        .for_each(|(i, word)| word.store(choice.fill ^ i, Ordering::Relaxed));
                }
                let reserved = data.is_some();
                assert!(!reserved || call.reserve(1).is_none(), "a second reservation");
                events.borrow_mut().push(Event::Entry {
                    user: ops.private(),
                    func: call.func().get(),
                    ret: call.ret_addr().get(),
                    depth: call.depth(),
                    reserved,
                    word: replaced(call.task_word(), choice.word),
                    parent: values(call.parent_data(choice.up)),
                });
                choice.want
            }
        };
        let ret = {
            let (world, serials, events) = (world.clone(), serials.clone(), events.clone());
            move |call: &mut super::ReturnCall<'_, R>, ops: &GraphOps<R>| {
                let choice = choose(ops.private(), serials.current.get(), true);
                nested_call(&world, &serials, choice.nested);
                events.borrow_mut().push(Event::Return {
                    user: ops.private(),
                    func: call.func().get(),
                    ret: call.ret_addr().get(),
                    depth: call.depth(),
                    value: call.retval(),
                    data: values(call.data()),
                    overrun: call.overrun(),
                    word: replaced(call.task_word(), choice.word),
                    parent: values(call.parent_data(choice.up)),
                });
                if let Some(value) = choice.value {
                    // SAFETY: nothing runs with these registers.
                    unsafe { call.fregs_mut().set_return_value(value) };
                }
            }
        };
        let abandoned = {
            let (world, serials, events) = (world.clone(), serials.clone(), events.clone());
            move |call: &mut super::AbandonedCall<'_, R>, ops: &GraphOps<R>| {
                let choice = choose(ops.private(), serials.current.get(), true);
                nested_call(&world, &serials, choice.nested);
                events.borrow_mut().push(Event::Abandoned {
                    user: ops.private(),
                    func: call.func().get(),
                    ret: call.ret_addr().get(),
                    depth: call.depth(),
                    data: values(call.data()),
                    word: replaced(call.task_word(), choice.word),
                    parent: values(call.parent_data(choice.up)),
                });
            }
        };
        play_all(entry, ret, abandoned);
        Self { world, serials, events }
    }

    fn call(&self, func: usize, ret: usize) -> Call {
        self.serials.within(self.serials.next(), || self.world.call(func, ret))
    }

    fn tail_call(&self, call: Call, func: usize) -> Call {
        self.serials.within(self.serials.next(), || self.world.tail_call(call, func))
    }

    fn ret(&self, call: Call, serial: usize, value: usize) -> (usize, usize) {
        self.serials.within(serial, || self.world.ret(call, value))
    }
}

/// A callback calls a traced function, which returns at once.
fn nested_call<R: Block>(world: &World<R>, serials: &Serials, nested: Option<(usize, Context)>) {
    let Some((func, context)) = nested else { return };
    let outer = world.context.replace(context);
    let serial = serials.next();
    let (at, _) = serials.within(serial, || {
        let call = world.call(func, serial);
        world.ret(call, 0)
    });
    assert_eq!(at, serial, "a nested call returns to its caller");
    world.context.set(outer);
}

struct PlainUser {
    number: usize,
    /// Which functions it wants.
    wants: Vec<usize>,
    /// Which registration this is.
    generation: usize,
    /// Its word in the task.
    word: usize,
}

struct PlainFrame {
    func: usize,
    ret: usize,
    key: usize,
    /// Slot, registration, and data of each user that wants the return or is still being asked.
    wanted: Vec<(usize, usize, Option<Vec<usize>>)>,
    /// Its entry is complete.
    sealed: bool,
}

impl PlainFrame {
    fn words(&self) -> usize {
        4 + self
            .wanted
            .iter()
            .filter_map(|(.., data)| data.as_ref())
            .map(|data| 1 + data.len())
            .sum::<usize>()
    }
}

/// The model.
#[derive(Default)]
struct Plain {
    users: Vec<Option<PlainUser>>,
    generations: usize,
    capacity: usize,
    frames: Vec<PlainFrame>,
    paused: bool,
    stopped: bool,
    context: usize,
    /// Which contexts are in callbacks; the last is the transition.
    busy: [bool; 5],
    stats: TaskStats,
    events: Vec<Event>,
    serials: Serials,
}

impl Plain {
    fn used(&self) -> usize {
        self.frames.iter().map(PlainFrame::words).sum()
    }

    fn guard(&mut self) -> Option<usize> {
        let free = [self.context, 4].into_iter().find(|bit| !self.busy[*bit]);
        match free {
            Some(bit) => self.busy[bit] = true,
            None => self.stats.recursed += 1,
        }
        free
    }

    /// Where the function returns to after its entry.
    fn enter(&mut self, func: usize, key: usize, ret: usize, serial: usize) -> usize {
        let asked: Vec<(usize, usize, usize)> = (self.users.iter().enumerate())
            .filter_map(|(slot, user)| {
                let user = user.as_ref().filter(|user| user.wants.contains(&func))?;
                Some((slot, user.number, user.generation))
            })
            .collect();
        if self.paused || asked.is_empty() {
            return ret;
        }
        let Some(guard) = self.guard() else { return ret };
        if self.used() + 4 > self.capacity {
            self.stats.overrun += 1;
            self.busy[guard] = false;
            return ret;
        }
        self.frames.push(PlainFrame { func, ret, key, wanted: Vec::new(), sealed: false });
        let depth = self.frames.len() as u32 - 1;
        for (slot, number, generation) in asked {
            let choice = choose(number, serial, false);
            self.nested(choice.nested, key);
            let reserved =
                (1..=32).contains(&choice.words) && self.used() + 1 + choice.words <= self.capacity;
            let data = reserved.then(|| (0..choice.words).map(|i| choice.fill ^ i).collect());
            self.frames.last_mut().expect("pushed above").wanted.push((slot, generation, data));
            let (word, parent) = (self.word(slot, choice.word), self.parent(slot, generation, choice.up));
            self.events.push(Event::Entry { user: number, func, ret, depth, reserved, word, parent });
            if choice.want == Want::Nothing {
                self.frames.last_mut().expect("pushed above").wanted.pop();
            }
        }
        self.busy[guard] = false;
        self.frames.last_mut().expect("pushed above").sealed = true;
        if self.frames.last().is_some_and(|frame| frame.wanted.is_empty()) {
            self.frames.pop();
            return ret;
        }
        self.stats.calls += 1;
        self.stats.max_depth = self.stats.max_depth.max(depth + 1);
        HOOKER
    }

    /// The index of the newest frame with this key.
    fn find(&self, key: usize) -> Option<usize> {
        self.frames.iter().rposition(|frame| frame.key == key)
    }

    fn leave(&mut self, key: usize, mut value: usize, serial: usize) -> Option<(usize, usize)> {
        let index = self.find(key)?;
        let guard = if self.stopped { None } else { self.guard() };
        let abandoned = (self.frames.len() - 1 - index) as u64;
        while guard.is_some() && self.frames.len() > index + 1 {
            self.abandon(key, serial);
        }
        self.stats.abandoned += abandoned;
        self.frames.truncate(index + 1);
        let PlainFrame { func, ret, .. } = self.frames[index];
        if let Some(guard) = guard {
            for (slot, generation, data) in self.frames[index].wanted.clone() {
                let now = self.users[slot].as_ref().filter(|user| user.generation == generation);
                let Some(number) = now.map(|user| user.number) else { continue };
                let choice = choose(number, serial, true);
                self.nested(choice.nested, key);
                let (depth, overrun) = (index as u32, self.stats.overrun);
                let (word, parent) = (self.word(slot, choice.word), self.parent(slot, generation, choice.up));
                self.events.push(Event::Return {
                    user: number,
                    func,
                    ret,
                    depth,
                    value,
                    data,
                    overrun,
                    word,
                    parent,
                });
                value = choice.value.unwrap_or(value);
            }
            self.busy[guard] = false;
        }
        self.frames.pop();
        self.stats.returns += 1;
        Some((ret, value))
    }

    /// Tells of the newest frame, which was jumped over, and takes it off.
    fn abandon(&mut self, key: usize, serial: usize) {
        let depth = self.frames.len() as u32 - 1;
        let PlainFrame { func, ret, .. } = self.frames[depth as usize];
        for (slot, generation, data) in self.frames[depth as usize].wanted.clone() {
            let now = self.users[slot].as_ref().filter(|user| user.generation == generation);
            let Some(number) = now.map(|user| user.number) else { continue };
            let choice = choose(number, serial, true);
            self.nested(choice.nested, key);
            let (word, parent) = (self.word(slot, choice.word), self.parent(slot, generation, choice.up));
            self.events.push(Event::Abandoned { user: number, func, ret, depth, data, word, parent });
        }
        self.frames.pop();
    }

    /// The word of the user in `slot`, which is replaced by another value.
    fn word(&mut self, slot: usize, by: Option<usize>) -> usize {
        let word = &mut self.users[slot].as_mut().expect("a user").word;
        core::mem::replace(word, by.unwrap_or(*word))
    }

    /// What the user reserved so many calls up from the newest.
    fn parent(&self, slot: usize, generation: usize, up: usize) -> Option<Vec<usize>> {
        let newest = self.frames.len() - 1;
        let of = |(index, frame): (usize, &PlainFrame)| {
            let wanted = frame.wanted.iter().find(|(s, g, _)| (*s, *g) == (slot, generation));
            wanted.filter(|_| frame.sealed || index == newest).map(|(.., data)| data.clone())
        };
        self.frames.iter().enumerate().rev().filter_map(of).nth(up).flatten()
    }

    fn ret(&mut self, call: Call, serial: usize, mut value: usize) -> (usize, usize) {
        let mut at = call.addr;
        while at == HOOKER {
            (at, value) = self.leave(call.sp, value, serial).expect("a frame in the model");
        }
        (at, value)
    }

    /// Nested calls have keys of their own; any below all others does, because each is gone before the next.
    fn nested(&mut self, nested: Option<(usize, Context)>, key: usize) {
        let Some((func, context)) = nested else { return };
        let outer = core::mem::replace(&mut self.context, context as usize);
        let serial = self.serials.next();
        let key = key - 1;
        let addr = self.enter(func, key, serial, serial);
        if addr == HOOKER {
            self.leave(key, 0, serial);
        }
        self.context = outer;
    }

    fn stats(&self) -> TaskStats {
        TaskStats { depth: self.frames.len() as u32, ..self.stats }
    }
}

/// A random filter, and the functions it lets through.
fn filter(random: &mut Random) -> (Filter, Vec<usize>) {
    let half = |random: &mut Random| FUNCS.into_iter().filter(|_| random.one_in(2)).collect::<Vec<_>>();
    let (include, exclude) = (half(random), half(random));
    match random.below(5) {
        0 => (Filter::ALL, FUNCS.to_vec()),
        1 if random.one_in(4) => (Filter::NONE, Vec::new()),
        2 => {
            let filter = Filter { include: FuncSet::All, exclude: FuncSet::Some(funcs(exclude.clone())) };
            (filter, FUNCS.into_iter().filter(|func| !exclude.contains(func)).collect())
        }
        3 => {
            let exclude_set = FuncSet::Some(funcs(exclude.clone()));
            let filter = Filter { include: FuncSet::Some(funcs(include.clone())), exclude: exclude_set };
            (filter, include.into_iter().filter(|func| !exclude.contains(func)).collect())
        }
        _ => (Filter::only(funcs(include.clone())), include),
    }
}

/// The real graph and the model, side by side.
struct Pair<R: Block> {
    real: Real<R>,
    plain: Plain,
    users: Vec<(&'static GraphOps<R>, Vec<usize>)>,
    /// Calls under way, oldest first, with the serial number of each.
    calls: Vec<(Call, usize)>,
}

impl<R: Block> Pair<R> {
    fn new(random: &mut Random) -> Self {
        let capacity = *random.pick(&[4, 9, 40, 61, 150, 512, 900]);
        let users = (0..random.between(1, 30)).map(|number| {
            let (filter, wants) = filter(random);
            (user(number, filter), wants)
        });
        let users = users.collect();
        let plain = Plain { users: (0..MAX_USERS).map(|_| None).collect(), capacity, ..Plain::default() };
        Self { real: Real::new(capacity), plain, users, calls: Vec::new() }
    }

    /// Registers a user, or takes one out.
    fn change_users(&mut self, random: &mut Random) {
        let index = random.below(self.users.len());
        let (ops, wants) = &self.users[index];
        let there = self.plain.users.iter().position(|u| u.as_ref().is_some_and(|u| u.number == index));
        match there {
            Some(slot) => {
                assert_eq!(self.real.world.graph.retract(ops), Some(slot));
                self.plain.users[slot] = None;
            }
            None => {
                let free = self.plain.users.iter().position(Option::is_none);
                assert_eq!(self.real.world.graph.publish(ops), free.is_some());
                if let Some(slot) = free {
                    self.plain.generations += 1;
                    let (wants, generation) = (wants.clone(), self.plain.generations);
                    self.plain.users[slot] = Some(PlainUser { number: index, wants, generation, word: 0 });
                }
            }
        }
    }

    fn call(&mut self, random: &mut Random) {
        let func = *random.pick(&FUNCS);
        let ret = 0x4_0000 + 16 * random.below(0x1000);
        let real = self.real.call(func, ret);
        let serial = self.plain.serials.next();
        let addr = self.plain.enter(func, real.sp, ret, serial);
        assert_eq!(real.addr, addr, "where {func:#x} returns to");
        self.calls.push((real, serial));
    }

    fn tail_call(&mut self, random: &mut Random) {
        let Some((caller, _)) = self.calls.pop() else { return };
        let func = *random.pick(&FUNCS);
        let real = self.real.tail_call(caller, func);
        let serial = self.plain.serials.next();
        let addr = self.plain.enter(func, real.sp, caller.addr, serial);
        assert_eq!(real.addr, addr, "where {func:#x} returns to, tail-called");
        self.calls.push((real, serial));
    }

    fn ret(&mut self, random: &mut Random) {
        let Some((call, serial)) = self.calls.pop() else { return };
        let stopped = random.one_in(20);
        (self.plain.stopped, self.plain.context) = (stopped, random.below(4));
        self.real.world.stopped.set(stopped);
        self.real.world.context.set(CONTEXTS[self.plain.context]);
        let value = random.word() as usize;
        let expected = self.plain.ret(call, serial, value);
        assert_eq!(self.real.ret(call, serial, value), expected, "where {:#x} returned to", call.func);
        self.real.world.context.set(Context::Task);
        self.plain.context = 0;
    }

    /// Leaves some calls by a non-local jump.
    fn jump(&mut self, random: &mut Random) {
        let left = random.below(self.calls.len() + 1);
        if let Some((lowest, _)) = self.calls.get(left) {
            self.real.world.unwind_to(lowest.sp);
            self.calls.truncate(left);
        }
    }

    /// The return hooker runs with a stack pointer that no frame has.
    fn stray_return(&self) {
        let newest = self.plain.frames.last();
        let found = self.real.world.leave(3, 0);
        let Err(Fatal::NoFrame { key, newest: newest_key, newest_return }) = found else {
            panic!("a return that no call belongs to gave {found:?}");
        };
        assert_eq!(key.get(), 3);
        assert_eq!(newest_key.map(|key| key.get()), newest.map(|frame| frame.key));
        assert_eq!(newest_return.map(|ret| ret.get()), newest.map(|frame| frame.ret));
    }

    fn check(&self) {
        let frames = self.real.world.task.frames().map(|view| {
            assert!(view.sealed);
            (view.func.get(), view.ret_addr.get(), view.key.get())
        });
        let plain = self.plain.frames.iter().rev().map(|frame| (frame.func, frame.ret, frame.key));
        assert_eq!(frames.collect::<Vec<_>>(), plain.collect::<Vec<_>>(), "frames");
        assert_eq!(*self.real.events.borrow(), self.plain.events, "what callbacks were told");
        assert_eq!(self.real.world.task.stats(), self.plain.stats(), "counters");
        self.real.events.borrow_mut().clear();
    }
}

fn random_sequences_agree_with_the_model<R: Block>() {
    let mut totals = TaskStats::default();
    let mut told = 0;
    storm(80, 2, |random| {
        let mut pair = Pair::<R>::new(random);
        for _ in 0..if cfg!(miri) { 80 } else { 400 } {
            match random.below(20) {
                0..=6 => pair.call(random),
                7 => pair.tail_call(random),
                8..=13 => pair.ret(random),
                14 => pair.jump(random),
                15 => pair.stray_return(),
                16 if pair.plain.paused || random.one_in(3) => {
                    pair.plain.paused = !pair.plain.paused;
                    if pair.plain.paused {
                        pair.real.world.task.pause()
                    } else {
                        pair.real.world.task.resume()
                    }
                }
                16 => {}
                _ => pair.change_users(random),
            }
            told += pair.plain.events.len();
            pair.check();
            pair.plain.events.clear();
        }
        while !pair.calls.is_empty() {
            pair.ret(random);
        }
        pair.check();
        let stats = pair.plain.stats();
        totals.calls += stats.calls;
        totals.returns += stats.returns;
        totals.overrun += stats.overrun;
        totals.abandoned += stats.abandoned;
        totals.recursed += stats.recursed;
    });
    std::println!("{told} events, {totals:?}");
    for count in [totals.calls, totals.returns, totals.overrun, totals.abandoned, totals.recursed] {
        assert!(count > 0 || cfg!(miri), "something never happened: {totals:?}");
    }
}

on_both_machines! { random_sequences_agree_with_the_model }
