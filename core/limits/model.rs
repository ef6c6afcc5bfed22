//! Limits against a plain model that looks at the whole stack of calls each time: random calls in all contexts, returns, jumps, sleeps,
//! changes of everything that can be set, and another user that hooks calls in between.

use core::cell::{Cell, RefCell};
use std::rc::Rc;
use std::vec::Vec;

use super::{LIMIT_WORDS, LimitOptions, Limits, PidSet};
use crate::filter::{Filter, FuncSet};
use crate::graph::world::{Block, Call, World, funcs, on_both_machines, play_all, user};
use crate::graph::{GraphOps, Want};
use crate::platform::Context;
use crate::sync::Ordering;
use crate::testing::{Random, keep, keep_all, storm};

const FUNCS: [usize; 6] = [0x1000, 0x1100, 0x1200, 0x1300, 0x1400, 0x1500];
/// What the limited user is not asked about.
const UNSEEN: usize = 0x1500;
/// What the other user wants the returns of.
const OTHERS: [usize; 3] = [0x1100, 0x1300, 0x1500];
const CONTEXTS: [Context; 4] = [Context::Task, Context::SoftIrq, Context::Irq, Context::Nmi];
const PIDS: [u32; 3] = [7, 8, 9];
const OWN_WORDS: usize = 2;
const RET: usize = 0x4_0000;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Event {
    Began { func: usize },
    Finished { func: usize, began: u64, duration: u64, slept: u64, data: Vec<usize> },
}

/// What is set, in plain words.
#[derive(Clone)]
struct Set {
    inside: Option<Vec<usize>>,
    never: Vec<usize>,
    max_depth: u32,
    thresh: u64,
    options: LimitOptions,
    pids: Option<Vec<u32>>,
    no_pids: Vec<u32>,
}

struct PlainFrame {
    func: usize,
    key: usize,
    /// The registration of the limited user, if it wants this return.
    wanted: Option<u64>,
    never: bool,
    inside: bool,
    inside_irq: bool,
    counted: Option<Counted>,
}

struct Counted {
    began: u64,
    slept: u64,
    /// Time of the calls inside, if it is to be left out.
    children: Option<u64>,
}

struct Plain {
    set: Set,
    frames: Vec<PlainFrame>,
    capacity: usize,
    /// The registration of the limited user.
    user: Option<u64>,
    slept: u64,
    pid: u32,
    events: Vec<Event>,
}

impl Plain {
    fn any(&self, is: impl Fn(&PlainFrame) -> bool) -> bool {
        self.frames.iter().any(|frame| frame.wanted.is_some() && frame.wanted == self.user && is(frame))
    }

    fn used(&self) -> usize {
        let words =
            |frame: &PlainFrame| 4 + if frame.counted.is_some() { 1 + LIMIT_WORDS + OWN_WORDS } else { 0 };
        self.frames.iter().map(words).sum()
    }

    /// Whether the call is hooked.
    fn enter(&mut self, func: usize, key: usize, context: Context, now: u64) -> bool {
        if self.used() + 4 > self.capacity {
            return false;
        }
        let mut frame = PlainFrame {
            func,
            key,
            wanted: None,
            never: false,
            inside: false,
            inside_irq: false,
            counted: None,
        };
        if self.user.is_some() && func != UNSEEN {
            self.ask(&mut frame, context, now);
        }
        let hooked = frame.wanted.is_some() || OTHERS.contains(&func);
        if hooked {
            self.frames.push(frame);
        }
        hooked
    }

    fn ask(&mut self, frame: &mut PlainFrame, context: Context, now: u64) {
        let (set, func, depth) = (&self.set, frame.func, self.frames.len() as u32);
        let pid_counts = set.pids.as_ref().is_none_or(|pids| pids.contains(&self.pid));
        if !pid_counts || set.no_pids.contains(&self.pid) || self.any(|frame| frame.never) {
            return;
        }
        if set.never.contains(&func) {
            (frame.never, frame.wanted) = (true, self.user);
            return;
        }
        let listed = set.inside.as_ref().is_some_and(|funcs| funcs.contains(&func));
        let in_irq = matches!(context, Context::Irq | Context::Nmi);
        let inside_irq = in_irq && self.any(|frame| frame.inside_irq);
        let inside = self.any(|frame| frame.inside);
        if set.max_depth != 0 && depth >= set.max_depth
            || in_irq && !listed && !inside_irq && !set.options.contains(LimitOptions::IRQS)
            || set.inside.is_some() && !listed && !inside && !inside_irq
            || self.used() + 4 + 1 + LIMIT_WORDS + OWN_WORDS > self.capacity
        {
            return;
        }
        frame.inside = listed && !in_irq && !inside;
        frame.inside_irq = listed && in_irq && !inside_irq;
        frame.wanted = self.user;
        let children = (!set.options.contains(LimitOptions::GRAPH_TIME)).then_some(0);
        frame.counted = Some(Counted { began: now, slept: self.slept, children });
        self.events.push(Event::Began { func });
    }

    fn ret(&mut self, key: usize, now: u64) {
        let index = self.frames.iter().rposition(|frame| frame.key == key).expect("a frame");
        self.frames.truncate(index + 1);
        let frame = self.frames.pop().expect("found above");
        let (true, Some(counted)) = (frame.wanted == self.user, frame.counted) else { return };
        let slept = self.slept - counted.slept;
        let mut duration = now - counted.began;
        if !self.set.options.contains(LimitOptions::SLEEP_TIME) {
            duration -= slept;
        }
        let caller = self.frames.iter_mut().rev().find(|frame| frame.wanted == self.user);
        let caller = caller.and_then(|frame| frame.counted.as_mut());
        if let Some(children) = caller.and_then(|counted| counted.children.as_mut()) {
            *children += duration;
        }
        if duration >= self.set.thresh {
            duration = duration.saturating_sub(counted.children.unwrap_or(0));
            let data = vec![frame.func; OWN_WORDS];
            self.events.push(Event::Finished {
                func: frame.func,
                began: counted.began,
                duration,
                slept,
                data,
            });
        }
    }
}

struct Pair<R: Block> {
    world: Rc<World<R>>,
    limits: &'static Limits,
    clock: Rc<Cell<u64>>,
    pid: Rc<Cell<u32>>,
    events: Rc<RefCell<Vec<Event>>>,
    limited: &'static GraphOps<R>,
    plain: Plain,
    /// Calls under way, and the context of each.
    calls: Vec<(Call, Context)>,
    registrations: u64,
}

impl<R: Block> Pair<R> {
    fn new(random: &mut Random) -> Self {
        let capacity = *random.pick(&[25, 60, 150, 900]);
        let world = World::<R>::new(capacity);
        let limits: &'static Limits = keep(Limits::new());
        let (clock, pid) = (Rc::new(Cell::new(1000)), Rc::new(Cell::new(PIDS[0])));
        let events = Rc::new(RefCell::new(Vec::new()));
        let at_entry = (events.clone(), clock.clone(), pid.clone());
        let at_return = (events.clone(), clock.clone());
        play_all::<R>(
            move |call, ops| {
                let func = call.func().get();
                if ops.private() == 1 {
                    return if OTHERS.contains(&func) { Want::Return } else { Want::Nothing };
                }
                let (events, clock, pid) = &at_entry;
                let admitted = match limits.admit(call, pid.get()) {
                    Ok(admitted) => admitted,
                    Err(want) => return want,
                };
                match limits.begin(call, admitted, clock.get(), OWN_WORDS) {
                    Ok(own) => {
                        assert_eq!(own.len(), OWN_WORDS);
                        own.iter().for_each(|word| word.store(func, Ordering::Relaxed));
                        events.borrow_mut().push(Event::Began { func });
                        Want::Return
                    }
                    Err(want) => want,
                }
            },
            move |call, ops| {
                let (events, clock) = &at_return;
                if ops.private() == 0
                    && let Some(done) = limits.finish(call, clock.get())
                {
                    events.borrow_mut().push(Event::Finished {
                        func: call.func().get(),
                        began: done.began_ns,
                        duration: done.duration_ns,
                        slept: done.slept_ns,
                        data: done.data.iter().map(|word| word.load(Ordering::Relaxed)).collect(),
                    });
                }
            },
            move |call, ops| {
                if ops.private() == 0 {
                    limits.forget(call);
                }
            },
        );
        let filter = Filter { include: FuncSet::All, exclude: FuncSet::Some(funcs([UNSEEN])) };
        let limited = user(0, filter);
        // The other user is in the way: before the limited one, or behind it.
        let other = user(1, Filter::ALL);
        let order = if random.one_in(2) { [limited, other] } else { [other, limited] };
        assert!(order.into_iter().all(|user| world.graph.publish(user)));
        let set = Set {
            inside: None,
            never: Vec::new(),
            max_depth: 0,
            thresh: 0,
            options: LimitOptions::all(),
            pids: None,
            no_pids: Vec::new(),
        };
        let plain = Plain {
            set,
            frames: Vec::new(),
            capacity,
            user: Some(0),
            slept: 0,
            pid: PIDS[0],
            events: Vec::new(),
        };
        Self { world, limits, clock, pid, events, limited, plain, calls: Vec::new(), registrations: 0 }
    }

    fn call(&mut self, random: &mut Random) {
        let now = self.calls.last().map_or(Context::Task, |(_, context)| *context);
        let context = if random.one_in(4) { (*random.pick(&CONTEXTS)).max(now) } else { now };
        let func = *random.pick(&FUNCS);
        self.world.context.set(context);
        let call = self.world.call(func, RET + self.calls.len());
        let hooked = self.plain.enter(func, call.sp, context, self.clock.get());
        assert_eq!(call.hooked(), hooked, "{func:#x} at depth {}", self.plain.frames.len());
        self.calls.push((call, context));
    }

    fn ret(&mut self) {
        let Some((call, context)) = self.calls.pop() else { return };
        self.world.context.set(context);
        if call.hooked() {
            self.plain.ret(call.sp, self.clock.get());
        }
        assert_eq!(self.world.ret(call, 0).0, RET + self.calls.len());
    }

    fn jump(&mut self, random: &mut Random) {
        let left = random.below(self.calls.len() + 1);
        if let Some((lowest, _)) = self.calls.get(left) {
            self.world.unwind_to(lowest.sp);
            self.calls.truncate(left);
        }
    }

    fn sleep(&mut self, random: &mut Random) {
        self.world.task.switched_out(self.clock.get());
        let slept = random.below(500) as u64;
        self.clock.set(self.clock.get() + slept);
        self.world.task.switched_in(self.clock.get());
        self.plain.slept += slept;
    }

    fn reregister(&mut self, random: &mut Random) {
        if self.plain.user.take().is_some() {
            assert!(self.world.graph.retract(self.limited).is_some());
        }
        if !random.one_in(4) {
            self.registrations += 1;
            self.plain.user = Some(self.registrations);
            assert!(self.world.graph.publish(self.limited));
        }
    }

    fn change(&mut self, random: &mut Random) {
        let set = &mut self.plain.set;
        let some = |random: &mut Random| FUNCS.into_iter().filter(|_| random.one_in(3)).collect::<Vec<_>>();
        match random.below(6) {
            0 => {
                set.inside = random.one_in(2).then(|| some(random));
                self.limits.set_graph_function(keep(match &set.inside {
                    None => FuncSet::All,
                    Some(inside) if inside.is_empty() => FuncSet::None,
                    Some(inside) => FuncSet::Some(funcs(inside.clone())),
                }));
            }
            1 => {
                set.never = if random.one_in(3) { some(random) } else { Vec::new() };
                self.limits.set_graph_notrace(keep(FuncSet::Some(funcs(set.never.clone()))));
            }
            2 => {
                set.max_depth = if random.one_in(2) { 0 } else { random.between(1, 6) as u32 };
                self.limits.set_max_depth(set.max_depth);
            }
            3 => {
                set.thresh = *random.pick(&[0, 0, 1, 300, 1000]);
                self.limits.set_thresh_ns(set.thresh);
            }
            4 => {
                set.options = LimitOptions::from_bits_truncate(random.word() as u32);
                self.limits.set_options(set.options);
                assert_eq!(self.limits.options(), set.options);
            }
            _ => {
                let some = |random: &mut Random| PIDS.into_iter().filter(|_| random.one_in(4)).collect();
                if random.one_in(2) {
                    set.pids = random.one_in(3).then(|| some(random));
                    self.limits.set_pids(keep(match &set.pids {
                        None => PidSet::All,
                        Some(pids) => PidSet::Some(keep_all(pids.clone())),
                    }));
                } else {
                    set.no_pids = if random.one_in(2) { some(random) } else { Vec::new() };
                    self.limits.set_notrace_pids(keep(PidSet::Some(keep_all(set.no_pids.clone()))));
                }
            }
        }
    }
}

fn random_histories_agree_with_the_model<R: Block>() {
    let (mut began, mut finished, mut refused) = (0, 0, 0);
    storm(150, 3, |random| {
        let mut pair = Pair::<R>::new(random);
        // One task, whose number does not change.
        let pid = *random.pick(&PIDS);
        pair.pid.set(pid);
        pair.plain.pid = pid;
        for step in 0..if cfg!(miri) { 80 } else { 400 } {
            pair.clock.set(pair.clock.get() + random.below(300) as u64);
            match random.below(20) {
                0..=8 => pair.call(random),
                9..=15 => pair.ret(),
                16 if random.one_in(2) => pair.jump(random),
                16 => pair.sleep(random),
                17 if random.one_in(4) => pair.reregister(random),
                _ if random.one_in(3) => pair.change(random),
                _ => {}
            }
            assert_eq!(*pair.events.borrow(), pair.plain.events, "step {step}");
            refused += usize::from(pair.plain.events.is_empty());
            for event in pair.plain.events.drain(..) {
                match event {
                    Event::Began { .. } => began += 1,
                    Event::Finished { .. } => finished += 1,
                }
            }
            pair.events.borrow_mut().clear();
        }
    });
    std::println!("{began} calls counted, {finished} ended, {refused} steps without either");
    assert!(began > 0 && finished > 0 && refused > 0);
}

on_both_machines! { random_histories_agree_with_the_model }
