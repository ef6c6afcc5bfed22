//! Probes against a plain list of them, in random histories: probes come, go and are disabled, calls return or are jumped out of.

use std::vec::Vec;

use super::bench::{Bench, Call, Event, Handlers, left, probe, told, vetoes};
use super::{Fprobe, FprobeError, MAX_FPROBE_WORDS};
use crate::engine::image::{Target, for_plain_sites};
use crate::shadow::MAX_DATA_WORDS;
use crate::testing::{Random, storm};

struct PlainProbe {
    handlers: Handlers,
    funcs: Vec<usize>,
    words: usize,
    /// Its place and which registration it is, while it is registered.
    there: Option<(usize, usize)>,
    disabled: bool,
    missed: u64,
}

impl PlainProbe {
    fn has_exit(&self) -> bool {
        self.handlers != Handlers::Entry
    }
}

struct PlainFrame {
    serial: usize,
    func: usize,
    ret: usize,
    words: usize,
    /// Probe and registration.
    armed: Vec<(usize, usize)>,
}

struct Plain {
    probes: Vec<PlainProbe>,
    frames: Vec<PlainFrame>,
    capacity: usize,
    registrations: usize,
    events: Vec<Event>,
}

impl Plain {
    /// The registered probes of one kind that want `func`, by place.
    fn wanting(&self, func: usize, has_exit: bool) -> Vec<usize> {
        let mut wanting: Vec<usize> = (0..self.probes.len())
            .filter(|n| {
                let probe = &self.probes[*n];
                probe.there.is_some() && probe.has_exit() == has_exit && probe.funcs.contains(&func)
            })
            .collect();
        wanting.sort_by_key(|n| self.probes[*n].there);
        wanting
    }

    fn enabled(&self, wanting: &[usize]) -> Vec<usize> {
        wanting.iter().copied().filter(|n| !self.probes[*n].disabled).collect()
    }

    fn enter(&mut self, func: usize, ret: usize, serial: usize) -> bool {
        for number in self.enabled(&self.wanting(func, false)) {
            self.events.push(Event::Entry { probe: number, ip: func, parent: ret, words: 0 });
        }
        let wanting = self.wanting(func, true);
        let used: usize = self.frames.iter().map(|frame| frame.words).sum();
        if wanting.is_empty() || used + 4 > self.capacity {
            return false;
        }
        let (mut here, mut words) = (Vec::new(), 0);
        for number in self.enabled(&wanting) {
            let needed = 1 + self.probes[number].words;
            if words + needed > MAX_DATA_WORDS {
                self.probes[number].missed += 1;
            } else {
                words += needed;
                here.push(number);
            }
        }
        if used + 4 + 1 + words > self.capacity {
            here.drain(..).for_each(|number| self.probes[number].missed += 1);
        }
        let mut armed = Vec::new();
        for number in here {
            let probe = &self.probes[number];
            let mut arms = true;
            if probe.handlers == Handlers::Both {
                self.events.push(Event::Entry { probe: number, ip: func, parent: ret, words: probe.words });
                arms = !vetoes(number, serial);
            }
            if arms {
                armed.push((number, probe.there.expect("registered").1));
            }
        }
        let hooked = !armed.is_empty();
        if hooked {
            self.frames.push(PlainFrame { serial, func, ret, words: 4 + 1 + words, armed });
        }
        hooked
    }

    fn ret(&mut self, serial: usize, value: usize) {
        let index = self.frames.iter().rposition(|frame| frame.serial == serial).expect("a frame");
        self.frames.truncate(index + 1);
        let PlainFrame { func, ret, armed, .. } = self.frames.pop().expect("found above");
        for (number, registration) in armed {
            let probe = &self.probes[number];
            if probe.there.is_none_or(|(_, now)| now != registration) || probe.disabled {
                continue;
            }
            let filled = probe.handlers == Handlers::Both;
            let data = (0..probe.words).map(|n| if filled { left(number, func, n) } else { 0 }).collect();
            self.events.push(Event::Exit { probe: number, ip: func, parent: ret, value, data });
        }
    }
}

struct Pair<T: Target> {
    bench: Bench<T>,
    funcs: Vec<usize>,
    real: Vec<&'static Fprobe<T::Regs>>,
    plain: Plain,
    /// Calls under way, and their serial numbers.
    calls: Vec<(Call, usize)>,
}

impl<T: Target> Pair<T> {
    fn new(random: &mut Random) -> Self {
        let capacity = *random.pick(&[30, 80, 200, 900]);
        let bench = Bench::<T>::new(6, capacity, random);
        let funcs = bench.funcs();
        let (mut real, mut probes) = (Vec::new(), Vec::new());
        for number in 0..10 {
            let handlers = *random.pick(&[Handlers::Entry, Handlers::Exit, Handlers::Both, Handlers::Both]);
            let words = *random.pick(&[0, 1, 2, 5, 10, MAX_FPROBE_WORDS]);
            let mut wanted: Vec<usize> = funcs.iter().copied().filter(|_| random.one_in(2)).collect();
            if wanted.is_empty() {
                wanted.push(funcs[0]);
            }
            real.push(probe(number, handlers, &wanted, words));
            let (there, disabled, missed) = (None, false, 0);
            probes.push(PlainProbe { handlers, funcs: wanted, words, there, disabled, missed });
        }
        let plain = Plain { probes, frames: Vec::new(), capacity, registrations: 0, events: Vec::new() };
        Self { bench, funcs, real, plain, calls: Vec::new() }
    }

    fn call(&mut self, random: &mut Random) {
        let (func, ret) = (*random.pick(&self.funcs), 0x7000 + 16 * random.below(99));
        let call = self.bench.call(func, ret);
        let serial = Bench::<T>::serial();
        assert_eq!(call.hooked(), self.plain.enter(func, ret, serial), "{func:#x}");
        self.calls.push((call, serial));
    }

    fn ret(&mut self, random: &mut Random) {
        let Some((call, serial)) = self.calls.pop() else { return };
        let value = random.word() as usize;
        self.bench.ret(call, value);
        if call.hooked() {
            self.plain.ret(serial, value);
        }
    }

    fn jump(&mut self, random: &mut Random) {
        let left = random.below(self.calls.len() + 1);
        if let Some((lowest, _)) = self.calls.get(left) {
            self.bench.unwind_to(*lowest);
            self.calls.truncate(left);
        }
    }

    fn change(&mut self, random: &mut Random) {
        let number = random.below(self.real.len());
        let (real, place) = (self.real[number], self.free_place());
        let plain = &mut self.plain.probes[number];
        match random.below(5) {
            0 if plain.disabled => {
                real.enable();
                plain.disabled = false;
            }
            0 => {
                real.disable();
                plain.disabled = true;
            }
            1 | 2 => {
                let registered = self.bench.register(real);
                if plain.there.is_some() {
                    assert_eq!(registered, Err(FprobeError::AlreadyRegistered));
                } else {
                    assert_eq!(registered, Ok(()));
                    self.plain.registrations += 1;
                    plain.there = Some((place, self.plain.registrations));
                }
            }
            _ => {
                let known = if plain.there.is_some() { Ok(()) } else { Err(FprobeError::NotRegistered) };
                assert_eq!(self.bench.unregister(real), known);
                plain.there = None;
            }
        }
    }

    fn free_place(&self) -> usize {
        let taken = |place| self.plain.probes.iter().any(|probe| probe.there.is_some_and(|at| at.0 == place));
        (0..).find(|place| !taken(*place)).expect("more than enough")
    }

    fn check(&mut self) -> usize {
        assert_eq!(told(), self.plain.events);
        let wanted =
            |func: &usize| [false, true].iter().any(|kind| !self.plain.wanting(*func, *kind).is_empty());
        let patched: Vec<usize> = self.funcs.iter().copied().filter(wanted).collect();
        assert_eq!(self.bench.patched(), patched, "what is patched");
        for (real, plain) in self.real.iter().zip(&self.plain.probes) {
            assert_eq!(real.nmissed(), plain.missed, "missed by {}", real.private());
        }
        let events = self.plain.events.len();
        self.plain.events.clear();
        events
    }
}

fn random_histories_agree_with_the_model<T: Target>() {
    let (mut events, mut missed) = (0, 0);
    storm(60, 1, |random| {
        let mut pair = Pair::<T>::new(random);
        (0..12).for_each(|_| pair.change(random));
        for _ in 0..if cfg!(miri) { 60 } else { 300 } {
            match random.below(12) {
                0..=4 => pair.call(random),
                5..=8 => pair.ret(random),
                9 if random.one_in(3) => pair.jump(random),
                9 => {}
                _ => pair.change(random),
            }
            events += pair.check();
        }
        for (real, plain) in pair.real.iter().zip(&pair.plain.probes) {
            let known = if plain.there.is_some() { Ok(()) } else { Err(FprobeError::NotRegistered) };
            assert_eq!(pair.bench.unregister(real), known);
        }
        assert_eq!(pair.bench.patched(), [], "no probe, no function");
        missed += pair.plain.probes.iter().map(|probe| probe.missed).sum::<u64>();
    });
    std::println!("{events} handlers called, {missed} calls missed");
    assert!(events > 0 && (missed > 0 || cfg!(miri)));
}

for_plain_sites! { random_histories_agree_with_the_model }
