//! The shadow stack against a plain model: a list of frames, each with a list of data blocks.
//!
//! `interrupts` drives the same operations; there, an interrupt's model starts on top of what the interrupt found.

use std::vec::Vec;

use super::*;
use crate::frame::MAX_STAMP;
use crate::testing::{Random, keep_all, storm};
use crate::users::{ALL_SLOTS, MAX_USERS};

/// The users that reserve.
const SLOTS: [usize; 5] = [0, 1, 2, 7, MAX_USERS - 1];

/// A frame as the model keeps it.
#[derive(Clone, Debug)]
pub(super) struct Plain {
    view: FrameView,
    want: u32,
    stamp: u64,
    /// User and data, in the order of reservation.
    blocks: Vec<(usize, Vec<usize>)>,
}

impl Plain {
    fn words(&self) -> usize {
        FRAME_WORDS + self.blocks.iter().map(|(_, data)| 1 + data.len()).sum::<usize>()
    }

    fn data(&self, slot: usize) -> Option<&Vec<usize>> {
        self.blocks.iter().find(|(owner, _)| *owner == slot).map(|(_, data)| data)
    }
}

/// What is done to a stack.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Push {
        ret: usize,
        func: usize,
        key: usize,
    },
    Reserve {
        slot: usize,
        words: usize,
        fill: usize,
    },
    /// Gives back all but the first `kept` blocks of the newest frame.
    Rewind {
        kept: usize,
    },
    Seal {
        want: u32,
        stamp: u64,
    },
    /// Takes the newest frame off although it was never sealed.
    Cancel,
    Return {
        key: usize,
    },
    Walk,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Fits(bool),
    Done,
    Returned(Option<Returned>),
    Chain(Vec<FrameView>),
}

/// What a return finds out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Returned {
    ret: usize,
    func: usize,
    want: u32,
    stamp: u64,
    abandoned: usize,
    /// What each user reserved.
    data: Vec<Option<Vec<usize>>>,
}

impl Returned {
    /// What must come back whatever happens.
    pub(super) fn addresses(&self) -> (usize, usize) {
        (self.ret, self.func)
    }
}

/// What stack walkers may see while an operation is under way: its states in order, each a whole chain.
pub(super) type Chains = Vec<Vec<FrameView>>;

/// The model of a stack, or of what an interrupt put on top of one.
#[derive(Clone, Debug)]
pub(super) struct Model {
    capacity: usize,
    base_newest: u32,
    base_top: usize,
    /// Newest first.
    below: Vec<FrameView>,
    /// Oldest first.
    pub(super) frames: Vec<Plain>,
}

impl Model {
    pub(super) fn empty(capacity: usize) -> Self {
        Self { capacity, base_newest: NONE, base_top: 0, below: Vec::new(), frames: Vec::new() }
    }

    /// The model of an interrupt that finds `shadow` like this.
    pub(super) fn on_top_of(shadow: &Shadow) -> Self {
        let found = shadow.position();
        Self {
            capacity: shadow.len.load(Ordering::Relaxed),
            base_newest: found.newest,
            base_top: found.top as usize,
            below: shadow.walk().collect(),
            frames: Vec::new(),
        }
    }

    fn top(&self) -> usize {
        self.base_top + self.frames.iter().map(Plain::words).sum::<usize>()
    }

    /// Where the newest frame of the model starts.
    pub(super) fn newest(&self) -> Option<Frame> {
        self.frames.last().map(|newest| Frame((self.top() - newest.words()) as u32))
    }

    /// Newest first.
    pub(super) fn chain(&self) -> Vec<FrameView> {
        self.frames.iter().rev().map(|frame| frame.view).chain(self.below.iter().copied()).collect()
    }

    pub(super) fn building(&self) -> Option<&Plain> {
        self.frames.last().filter(|newest| !newest.view.sealed)
    }

    fn newest_mut(&mut self) -> &mut Plain {
        self.frames.last_mut().expect("an operation on the newest frame needs one")
    }

    fn keys(&self) -> Vec<usize> {
        self.frames.iter().map(|frame| frame.view.key.get()).collect()
    }

    /// Does `op`, and says what comes of it and what walkers may see meanwhile.
    pub(super) fn apply(&mut self, op: &Op) -> (Outcome, Chains) {
        let mut chains = vec![self.chain()];
        let room = self.capacity - self.top();
        let outcome = match *op {
            Op::Push { ret, func, key } => {
                let fits = room >= FRAME_WORDS;
                if fits {
                    let view = FrameView {
                        ret_addr: RetAddr::new(ret),
                        func: FuncAddr::new(func),
                        key: StackKey::new(key),
                        sealed: false,
                    };
                    self.frames.push(Plain { view, want: 0, stamp: 0, blocks: Vec::new() });
                }
                Outcome::Fits(fits)
            }
            Op::Reserve { slot, words, fill } => {
                let newest = self.newest_mut();
                let fits = (1..=32).contains(&words) && room > words && newest.words() + 1 + words <= 1023;
                if fits {
                    newest.blocks.push((slot, (0..words).map(|i| fill ^ i).collect()));
                }
                Outcome::Fits(fits)
            }
            Op::Rewind { kept } => {
                self.newest_mut().blocks.truncate(kept);
                Outcome::Done
            }
            Op::Seal { want, stamp } => {
                let newest = self.newest_mut();
                (newest.view.sealed, newest.want, newest.stamp) = (true, want, stamp);
                Outcome::Done
            }
            Op::Cancel => {
                self.frames.pop();
                Outcome::Done
            }
            Op::Return { key } => Outcome::Returned(self.give_back(key, &mut chains)),
            Op::Walk => Outcome::Chain(self.chain()),
        };
        chains.push(self.chain());
        (outcome, chains)
    }

    fn give_back(&mut self, key: usize, chains: &mut Chains) -> Option<Returned> {
        let index = self.keys().iter().rposition(|there| *there == key)?;
        let abandoned = self.frames.len() - 1 - index;
        self.frames.truncate(index + 1);
        chains.push(self.chain());
        let frame = self.frames.pop()?;
        Some(Returned {
            ret: frame.view.ret_addr.get(),
            func: frame.view.func.get(),
            want: frame.want,
            stamp: frame.stamp,
            abandoned,
            data: SLOTS.iter().map(|slot| frame.data(*slot).cloned()).collect(),
        })
    }

    /// The words of the frames as they must be in memory.
    fn image(&self) -> Vec<usize> {
        let mut image = Vec::new();
        let mut below = if self.base_newest == NONE { 0 } else { self.base_top - self.base_newest as usize };
        for frame in &self.frames {
            let state = if frame.view.sealed { State::Sealed } else { State::Building };
            let control = Control { distance: below, state, want: frame.want, stamp: frame.stamp };
            image.extend([frame.view.ret_addr.get(), frame.view.func.get(), frame.view.key.get()]);
            image.push(control.encode() as usize);
            for (slot, data) in &frame.blocks {
                image.push(DataHeader { slot: *slot, words: data.len() }.encode() as usize);
                image.extend(data);
            }
            below = frame.words();
        }
        image
    }

    /// Compares the words with the real stack's. No interrupt can come in here.
    pub(super) fn check_words(&self, shadow: &Shadow) {
        let position = Position::unpack(shadow.state.load(Ordering::Relaxed));
        let newest = self.newest().map_or(self.base_newest, |frame| frame.0);
        assert_eq!((position.newest, position.top as usize), (newest, self.top()), "newest frame and top");
        let words = shadow.slice(self.base_top, self.top() - self.base_top);
        assert_eq!(copied(words), self.image(), "the words of the frames");
    }

    /// Compares everything with the real stack.
    pub(super) fn check(&self, shadow: &Shadow) {
        self.check_words(shadow);
        assert_eq!(shadow.walk().collect::<Vec<_>>(), self.chain(), "the chain of frames");
        if let (Some(newest), Some(plain)) = (self.newest(), self.frames.last()) {
            for slot in 0..MAX_USERS {
                let data = shadow.data(newest, slot).map(copied);
                assert_eq!(data.as_ref(), plain.data(slot), "data of user {slot}");
            }
        }
    }
}

fn copied(data: &[AtomicUsize]) -> Vec<usize> {
    data.iter().map(|word| word.load(Ordering::Relaxed)).collect()
}

/// Does `op` to the real stack, as the engine does it. `newest` is the frame that is being built, if one is.
pub(super) fn run(op: &Op, shadow: &Shadow, newest: Option<Frame>) -> Outcome {
    let building = || newest.expect("an operation on the newest frame needs one");
    match *op {
        Op::Push { ret, func, key } => {
            let pushed = shadow.push(RetAddr::new(ret), FuncAddr::new(func), StackKey::new(key));
            Outcome::Fits(pushed.is_ok())
        }
        Op::Reserve { slot, words, fill } => {
            let data = shadow.reserve(building(), slot, words);
            if let Some(data) = data {
                assert!(copied(data).iter().all(|word| *word == 0), "reserved words are not zero");
                assert_eq!(data.len(), words);
                data.iter().enumerate().for_each(|(i, word)| word.store(fill ^ i, Ordering::Relaxed));
            }
            Outcome::Fits(data.is_some())
        }
        Op::Rewind { kept } => {
            let frame = building();
            let mut mark = frame.0 as usize + FRAME_WORDS;
            for _ in 0..kept {
                mark += 1 + DataHeader::decode(shadow.word(mark).load(Ordering::Relaxed) as u64).words;
            }
            shadow.rewind(frame, mark as u32);
            Outcome::Done
        }
        Op::Seal { want, stamp } => {
            shadow.seal(building(), want, stamp);
            Outcome::Done
        }
        Op::Cancel => {
            shadow.pop(building());
            Outcome::Done
        }
        Op::Return { key } => Outcome::Returned(shadow.find(StackKey::new(key)).map(|found| {
            let (ret, func, want, stamp) = shadow.settle(found);
            let data = SLOTS.iter().map(|slot| shadow.data(found.frame, *slot).map(copied)).collect();
            shadow.pop(found.frame);
            Returned { ret: ret.get(), func: func.get(), want, stamp, abandoned: found.abandoned, data }
        })),
        Op::Walk => Outcome::Chain(shadow.walk().collect()),
    }
}

/// Chooses operations that make sense for the model as it is.
pub(super) struct Chooser {
    /// Where the next call's stack pointer is; each chooser has a range of its own.
    next_key: usize,
    /// Of ten steps, how many go up.
    climb: usize,
    /// How many pushes are left.
    pub(super) pushes: usize,
}

impl Chooser {
    pub(super) fn new(first_key: usize, pushes: usize, random: &mut Random) -> Self {
        Self { next_key: first_key, climb: random.between(3, 8), pushes }
    }

    pub(super) fn choose(&mut self, model: &Model, random: &mut Random) -> Op {
        if random.one_in(200) {
            self.climb = random.between(3, 8);
        }
        if random.one_in(40) {
            return Op::Walk;
        }
        let push = self.pushes > 0;
        match model.building() {
            Some(frame) => match random.below(10) {
                0 | 1 if push => self.push(model, random),
                2..=4 => self.reserve(random),
                5 => Op::Rewind { kept: random.below(frame.blocks.len() + 1) },
                6 => Op::Cancel,
                _ => Op::Seal { want: random.word() as u32 & ALL_SLOTS, stamp: random.word() & MAX_STAMP },
            },
            None if push && (model.frames.is_empty() || random.below(10) < self.climb) => {
                self.push(model, random)
            }
            None => Op::Return { key: Self::return_key(model, random) },
        }
    }

    fn push(&mut self, model: &Model, random: &mut Random) -> Op {
        self.pushes -= 1;
        self.next_key -= 16;
        let tail_call = model.frames.last().filter(|_| random.one_in(4)).map(|frame| frame.view.key.get());
        let key = tail_call.unwrap_or(self.next_key);
        Op::Push { ret: random.word() as usize, func: random.word() as usize, key }
    }

    fn reserve(&self, random: &mut Random) -> Op {
        let words = *random.pick(&[0, 1, 1, 2, 3, 5, 15, 31, 32, 33]);
        Op::Reserve { slot: *random.pick(&SLOTS), words, fill: random.word() as usize }
    }

    /// Mostly the newest frame's, sometimes one further down, sometimes one that no frame has.
    fn return_key(model: &Model, random: &mut Random) -> usize {
        let keys = model.keys();
        match (keys.last(), random.below(12)) {
            (None, _) | (_, 0) => 8 + 16 * random.below(100),
            (_, 1 | 2) => *random.pick(&keys),
            (Some(newest), _) => *newest,
        }
    }
}

/// A stack of so many words.
pub(super) fn stack(words: usize) -> Shadow {
    let shadow = Shadow::new();
    // What the words hold before must not matter.
    shadow.give(keep_all(vec![usize::MAX / 3; words])).expect("enough words");
    shadow
}

#[test]
fn long_random_sequences_agree_with_a_plain_list() {
    let capacities = [4, 5, 7, 8, 9, 11, 12, 13, 37, 38, 64, 99, 200, 511, 512, 513, 2000];
    let (mut refused, mut skipped, mut unknown) = (0, 0, 0);
    storm(60, 2, |random| {
        let capacity = *random.pick(&capacities);
        let shadow = stack(capacity);
        let mut model = Model::empty(capacity);
        let mut chooser = Chooser::new(0x7fff_0000, usize::MAX, random);
        for step in 0..if cfg!(miri) { 150 } else { 1500 } {
            let op = chooser.choose(&model, random);
            let newest = model.newest();
            let before = model.frames.len();
            let (expected, _) = model.apply(&op);
            let outcome = run(&op, &shadow, newest);
            assert_eq!(outcome, expected, "step {step}: {op:?} with {before} frames in {capacity} words");
            model.check(&shadow);
            match outcome {
                Outcome::Fits(false) => refused += 1,
                Outcome::Returned(None) => unknown += 1,
                Outcome::Returned(Some(Returned { abandoned: 1.., .. })) => skipped += 1,
                _ => {}
            }
        }
        if !model.frames.is_empty() {
            let frames = model.frames.len();
            assert_eq!(shadow.take().err(), Some(StackError::InUse { frames }));
        }
        while let Some(frame) = model.frames.last() {
            let op = Op::Return { key: frame.view.key.get() };
            let newest = model.newest();
            assert_eq!(run(&op, &shadow, newest), model.apply(&op).0);
        }
        assert_eq!(shadow.take().map(|words| words.len()), Ok(capacity));
        assert!(!shadow.has_memory());
    });
    assert!(
        refused > 0 && skipped > 0 && unknown > 0,
        "{refused} refused, {skipped} skipped, {unknown} unknown"
    );
}

fn push(shadow: &Shadow, key: usize) -> Frame {
    shadow.push(RetAddr::new(key + 1), FuncAddr::new(key + 2), StackKey::new(key)).expect("room")
}

#[test]
fn only_the_newest_frame_can_be_added_to_and_rewound() {
    let shadow = stack(64);
    let lower = push(&shadow, 0x200);
    assert!(shadow.reserve(lower, 3, 2).is_some());
    let mark = shadow.mark();
    let upper = push(&shadow, 0x100);
    let before = shadow.position();
    assert!(shadow.reserve(lower, 4, 1).is_none(), "a reservation under another frame");
    assert!(shadow.data(lower, 3).is_none(), "data under another frame");
    shadow.rewind(lower, mark);
    shadow.rewind(upper, before.top + 1);
    shadow.rewind(upper, upper.0 + FRAME_WORDS as u32 - 1);
    assert!(shadow.position() == before, "a rewind to a mark that is not in the newest frame");
    shadow.pop(upper);
    assert_eq!(shadow.data(lower, 3).map(<[AtomicUsize]>::len), Some(2));
}

#[test]
fn one_frame_is_at_most_what_its_distance_can_tell() {
    let shadow = stack(2000);
    let frame = push(&shadow, 0x200);
    let blocks = (0..).take_while(|slot| shadow.reserve(frame, slot % MAX_USERS, MAX_DATA_WORDS).is_some());
    // 4 + 30 * 33 words, and a 31st block would end at 1027.
    assert_eq!(blocks.count(), 30);
    assert!(shadow.reserve(frame, 0, 29).is_none(), "1024 words");
    assert!(shadow.reserve(frame, 0, 28).is_some(), "1023 words");
    shadow.seal(frame, 1, 1);
    let above = push(&shadow, 0x100);
    shadow.seal(above, 1, 1);
    let keys: Vec<usize> = shadow.walk().map(|view| view.key.get()).collect();
    assert_eq!(keys, [0x100, 0x200]);
}

#[test]
fn memory_is_taken_and_given_back_as_it_was() {
    let shadow = Shadow::new();
    assert_eq!(shadow.take().err(), Some(StackError::NotThere));
    assert_eq!(shadow.give(keep_all(vec![0; 3])), Err(StackError::BadSize { words: 3 }));
    assert_eq!(shadow.push(RetAddr::new(1), FuncAddr::new(1), StackKey::new(1)).err(), Some(Full));
    assert_eq!((shadow.walk().count(), shadow.find(StackKey::new(1))), (0, None));
    let words = keep_all(vec![7; 9]);
    let there = words.as_ptr();
    assert_eq!(shadow.give(words), Ok(()));
    assert_eq!(shadow.give(keep_all(vec![0; 8])), Err(StackError::AlreadyThere { words: 9 }));
    let frame = push(&shadow, 0x10);
    assert_eq!(shadow.take().err(), Some(StackError::InUse { frames: 1 }));
    shadow.pop(frame);
    let back = shadow.take().expect("an empty stack");
    assert_eq!((back.as_ptr(), back.len()), (there, 9));
    assert_eq!(shadow.give(back), Ok(()));
}
