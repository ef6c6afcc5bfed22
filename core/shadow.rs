//! The return-address shadow stack of one task, over words that the embedder gives.
//!
//! # Who runs here
//! The task itself, and interrupts on top of it, at any instruction; each interrupt leaves the stack as it found it. Stack
//! walkers read it from interrupts on the task's CPU, or from elsewhere while the task is stopped. No two CPUs write.
//!
//! # Invariant
//! One word, `state`, holds the start of the newest frame and the first free word, so both change in one store. At any
//! instruction: the newest frame's control word leads to the frame below it, and so on down to the frame at word 0; a frame whose
//! state is not [`State::Dead`] has its real return address, function and key.
//!
//! How a push keeps it: an interrupt before the publishing store may scribble over the words being prepared, and one after it
//! may walk them. So the control word is written (dead, with its distance) before publishing, which is all a walker
//! needs, and everything else after. An interrupt in between that pushes and pops at the same place leaves there the same distance, and dead, because
//! [`Shadow::pop`] marks what it leaves.

use crate::addr::{FuncAddr, RetAddr, StackKey};
use crate::frame::{CONTROL, Control, DataHeader, FRAME_WORDS, FUNC, KEY, MAX_FRAME_WORDS, RET, State};
use crate::sync::{AtomicPtr, AtomicU64, AtomicUsize, Ordering, interrupt_point, signal_fence};

/// `newest` of an empty stack.
const NONE: u32 = u32::MAX;

/// The most words a stack may have: indices fit in 32 bits, with room for arithmetic.
const MAX_WORDS: usize = 1 << 30;

/// The most words one user may reserve in one frame.
pub const MAX_DATA_WORDS: usize = 32;

/// A stack was not accepted, or not given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StackError {
    /// Fewer words than one frame takes, or more than indices can tell.
    BadSize {
        /// How many words were given.
        words: usize,
    },
    /// The task has a stack already.
    AlreadyThere {
        /// How many words it has.
        words: usize,
    },
    /// The task has none.
    NotThere,
    /// Frames are on it: functions that have not returned yet return through it.
    InUse {
        /// How many frames.
        frames: usize,
    },
}

impl core::fmt::Display for StackError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::BadSize { words } => {
                write!(f, "a shadow stack of {words} words: {FRAME_WORDS} to {MAX_WORDS} are possible")
            }
            Self::AlreadyThere { words } => write!(f, "the task already has a shadow stack of {words} words"),
            Self::NotThere => f.write_str("the task has no shadow stack"),
            Self::InUse { frames } => {
                write!(f, "{frames} functions have yet to return through the shadow stack")
            }
        }
    }
}

impl core::error::Error for StackError {}

/// A push found no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// A frame that is on the stack, by the index of its first word. Only this module makes them, and only of frames all of whose words lie
/// within the memory; the memory stays as long as there are frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame(u32);

/// What a stack walker sees of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameView {
    /// Where the function will really return to.
    pub ret_addr: RetAddr,
    /// The function.
    pub func: FuncAddr,
    /// The stack pointer at its entry.
    pub key: StackKey,
    /// Whether its entry is complete; the return address on the real stack is replaced only after that.
    pub sealed: bool,
}

/// A frame found by its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) frame: Frame,
    /// Frames above it, which nothing will return through any more.
    pub(crate) abandoned: usize,
    end: u32,
}

/// A frame that was jumped over, with what it keeps. Who was still being asked at its entry does not want anything.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Left {
    pub(crate) frame: Frame,
    pub(crate) ret_addr: RetAddr,
    pub(crate) func: FuncAddr,
    pub(crate) want: u32,
    pub(crate) stamp: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Position {
    newest: u32,
    top: u32,
}

impl Position {
    const EMPTY: Self = Self { newest: NONE, top: 0 };

    /// An empty stack is 0, which is what a straight pop of the lowest frame leaves.
    const fn pack(self) -> u64 {
        if self.top == 0 { 0 } else { (self.newest as u64) << 32 | self.top as u64 }
    }

    #[inline]
    const fn unpack(word: u64) -> Self {
        if word == 0 {
            return Self::EMPTY;
        }
        Self { newest: (word >> 32) as u32, top: word as u32 }
    }
}

/// What a stack without memory has in the place of its first frame: a dead one. The return trampoline looks there without asking, and nobody
/// writes there.
const NO_WORDS: &[usize; FRAME_WORDS] = &[0; FRAME_WORDS];

/// A task's shadow stack, with or without memory.
#[derive(Debug)]
pub(crate) struct Shadow {
    pub(crate) words: AtomicPtr<AtomicUsize>,
    /// 0 while there is no memory, and `words` is [`NO_WORDS`]; otherwise `words` points to this many words that live for ever.
    pub(crate) len: AtomicUsize,
    pub(crate) state: AtomicU64,
}

const fn no_words() -> *mut AtomicUsize {
    core::ptr::from_ref(NO_WORDS).cast_mut().cast()
}

impl Shadow {
    pub(crate) const fn new() -> Self {
        Self {
            words: AtomicPtr::new(no_words()),
            len: AtomicUsize::new(0),
            state: AtomicU64::new(Position::EMPTY.pack()),
        }
    }

    /// Gives the stack its memory. The task may be running and being traced meanwhile.
    pub(crate) fn give(&self, words: &'static mut [usize]) -> Result<(), StackError> {
        let had = self.len.load(Ordering::Relaxed);
        if had != 0 {
            return Err(StackError::AlreadyThere { words: had });
        }
        let len = words.len();
        if !(FRAME_WORDS..=MAX_WORDS).contains(&len) {
            return Err(StackError::BadSize { words: len });
        }
        self.words.store(words.as_mut_ptr().cast(), Ordering::Relaxed);
        // Pairs with the acquire in `len`: who sees the length sees the pointer.
        self.len.store(len, Ordering::Release);
        Ok(())
    }

    /// Takes the memory back. The task must not run traced code meanwhile: it is the caller, or it is stopped.
    pub(crate) fn take(&self) -> Result<&'static mut [usize], StackError> {
        let len = self.len.load(Ordering::Acquire);
        if len == 0 {
            return Err(StackError::NotThere);
        }
        let frames = self.walk().count();
        if frames != 0 {
            return Err(StackError::InUse { frames });
        }
        self.len.store(0, Ordering::Relaxed);
        let words = self.words.swap(no_words(), Ordering::Relaxed);
        // SAFETY: `words` came out of a `&'static mut [usize]` of `len` elements in `give`; with `len` at 0 nothing in this
        // module makes a reference into it any more, and those made before ended with the functions that made them.
        Ok(unsafe { core::slice::from_raw_parts_mut(words.cast(), len) })
    }

    #[inline]
    pub(crate) fn has_memory(&self) -> bool {
        self.len.load(Ordering::Relaxed) != 0
    }

    #[inline]
    fn position(&self) -> Position {
        interrupt_point();
        Position::unpack(self.state.load(Ordering::Relaxed))
    }

    #[inline]
    fn publish(&self, position: Position) {
        self.publish_word(position.pack());
    }

    #[inline]
    fn publish_word(&self, state: u64) {
        signal_fence();
        interrupt_point();
        self.state.store(state, Ordering::Relaxed);
        signal_fence();
    }

    /// The word at `index`.
    #[inline]
    fn word(&self, index: usize) -> &AtomicUsize {
        let len = self.len.load(Ordering::Acquire);
        assert!(index < len, "shadow stack index out of range");
        // SAFETY: `index < len`, and `words` points to `len` words that live for ever: `give` stored it before it
        // released `len`. They are only ever accessed as atomics while the stack has them.
        unsafe { &*self.words.load(Ordering::Relaxed).add(index) }
    }

    /// The words that every frame has.
    #[inline]
    fn frame(&self, frame: Frame) -> &[AtomicUsize; FRAME_WORDS] {
        // SAFETY: they lie within the memory (see `Frame`), whose words live for ever and are only ever accessed as atomics.
        unsafe { &*self.words.load(Ordering::Relaxed).add(frame.0 as usize).cast() }
    }

    /// The frame that begins at `start`, if all its words are there.
    #[inline]
    fn frame_at(&self, start: u32) -> Option<Frame> {
        (start as usize + FRAME_WORDS <= self.len.load(Ordering::Acquire)).then_some(Frame(start))
    }

    #[inline]
    fn control_of(&self, frame: Frame) -> u64 {
        interrupt_point();
        self.frame(frame)[CONTROL].load(Ordering::Relaxed) as u64
    }

    #[inline]
    fn set_control_of(&self, frame: Frame, control: Control) {
        interrupt_point();
        self.frame(frame)[CONTROL].store(control.encode() as usize, Ordering::Relaxed);
    }

    #[inline]
    fn get(&self, index: usize) -> usize {
        interrupt_point();
        self.word(index).load(Ordering::Relaxed)
    }

    #[inline]
    fn set(&self, index: usize, value: usize) {
        interrupt_point();
        self.word(index).store(value, Ordering::Relaxed);
    }

    #[inline]
    fn control(&self, start: u32) -> Control {
        Control::decode(self.get(start as usize + CONTROL) as u64)
    }

    /// Pushes a frame that is being built.
    #[inline]
    pub(crate) fn push(&self, ret_addr: RetAddr, func: FuncAddr, key: StackKey) -> Result<Frame, Full> {
        interrupt_point();
        let before = self.state.load(Ordering::Relaxed);
        // An empty stack is 0, and so is the distance of its first frame then.
        let (newest, start) = ((before >> 32) as u32, before as u32);
        let Some(frame) = self.frame_at(start) else { return Err(Full) };
        let distance = start.wrapping_sub(newest) as usize;
        let dead = Control { distance, state: State::Dead, want: 0, stamp: 0 };

        self.set_control_of(frame, dead);
        self.publish_word(u64::from(start) << 32 | u64::from(start + FRAME_WORDS as u32));
        // From here on interrupts push above the end. One that came before and never gave back its frames has left a live
        // one here; take it out before anything else is written.
        self.set_control_of(frame, dead);
        signal_fence();
        let words = self.frame(frame);
        for (index, value) in [(RET, ret_addr.get()), (FUNC, func.get()), (KEY, key.get())] {
            interrupt_point();
            words[index].store(value, Ordering::Relaxed);
        }
        signal_fence();
        self.set_control_of(frame, Control { state: State::Building, ..dead });
        Ok(frame)
    }

    /// Appends `words` zeroed words for user `slot` to the newest frame, which must be `frame`.
    #[inline]
    pub(crate) fn reserve(&self, frame: Frame, slot: usize, words: usize) -> Option<&[AtomicUsize]> {
        let before = self.position();
        if before.newest != frame.0 || words == 0 || words > MAX_DATA_WORDS {
            return None;
        }
        let header = before.top as usize;
        let end = header + 1 + words;
        if end > self.len.load(Ordering::Acquire) || end - frame.0 as usize > MAX_FRAME_WORDS {
            return None;
        }
        // The words belong to us only once interrupts push above them. Nobody reads the header meanwhile: data of a
        // frame that is not sealed is read by the context that builds it only.
        self.publish(Position { newest: frame.0, top: end as u32 });
        self.set(header, DataHeader { slot, words }.encode() as usize);
        let data = self.slice(header + 1, words);
        for word in data {
            word.store(0, Ordering::Relaxed);
        }
        Some(data)
    }

    fn slice(&self, start: usize, words: usize) -> &[AtomicUsize] {
        let len = self.len.load(Ordering::Acquire);
        assert!(start <= len && words <= len - start, "shadow stack range out of range");
        // SAFETY: the range lies within the `len` words at `words` (see `word`), which are only accessed as atomics.
        unsafe { core::slice::from_raw_parts(self.words.load(Ordering::Relaxed).add(start), words) }
    }

    /// The data that user `slot` reserved in the newest frame, which must be `frame`.
    pub(crate) fn data(&self, frame: Frame, slot: usize) -> Option<&[AtomicUsize]> {
        let position = self.position();
        if position.newest != frame.0 {
            return None;
        }
        self.block(frame.0, position.top, slot, Control::decode(self.control_of(frame)))
    }

    /// The block of user `slot` in the frame from `start` to `end`.
    #[inline(always)]
    fn block(&self, start: u32, end: u32, slot: usize, control: Control) -> Option<&[AtomicUsize]> {
        let mut at = start as usize + FRAME_WORDS;
        if control.state == State::Straight {
            return self.straight_block(at, end, control.want == 1 << slot);
        }
        while at < end as usize {
            let header = DataHeader::decode(self.get(at) as u64);
            let behind = at + 1 + header.words;
            if header.words == 0 || behind > end as usize {
                return None;
            }
            if header.slot == slot {
                return Some(self.slice(at + 1, header.words));
            }
            at = behind;
        }
        None
    }

    /// The data of a frame of the straight path, which stands there without a header.
    #[cold]
    fn straight_block(&self, at: usize, end: u32, is_theirs: bool) -> Option<&[AtomicUsize]> {
        (is_theirs && at < end as usize).then(|| self.slice(at, end as usize - at))
    }

    /// The data that user `slot` reserved `depth` calls up from `frame`, which must be the newest: 0 is `frame` itself, and then
    /// those sealed frames count whose want bits and stamp are `theirs`.
    pub(crate) fn data_above(
        &self,
        frame: Frame,
        slot: usize,
        depth: usize,
        theirs: impl Fn(u32, u64) -> bool,
    ) -> Option<&[AtomicUsize]> {
        let position = self.position();
        if position.newest != frame.0 {
            return None;
        }
        let (mut at, mut end, mut left) = (frame.0, position.top, depth);
        loop {
            let control = self.control(at);
            let counts = at == frame.0 || control.state.is_sealed() && theirs(control.want, control.stamp);
            match (counts, left) {
                (true, 0) => return self.block(at, end, slot, control),
                (true, _) => left -= 1,
                (false, _) => {}
            }
            (at, end) = (below(at, control.distance), at);
            if at == NONE {
                return None;
            }
        }
    }

    /// The newest frame, if it lies above `frame`: nothing will return through it any more.
    pub(crate) fn left_above(&self, frame: Frame) -> Option<Left> {
        let newest = self.position().newest;
        if newest == NONE || newest <= frame.0 {
            return None;
        }
        let (frame, control) = (self.frame_at(newest)?, self.control(newest));
        let words = self.frame(frame);
        Some(Left {
            frame,
            ret_addr: RetAddr::new(words[RET].load(Ordering::Relaxed)),
            func: FuncAddr::new(words[FUNC].load(Ordering::Relaxed)),
            want: if control.state.is_sealed() { control.want } else { 0 },
            stamp: control.stamp,
        })
    }

    /// Where the newest frame ends now, for [`rewind`](Self::rewind).
    #[inline]
    pub(crate) fn mark(&self) -> u32 {
        interrupt_point();
        // The lower half; 0 for an empty stack as well.
        self.state.load(Ordering::Relaxed) as u32
    }

    /// Gives back what was reserved in the newest frame since `mark`.
    #[inline]
    pub(crate) fn rewind(&self, frame: Frame, mark: u32) {
        let now = self.position();
        if now.newest == frame.0 && mark < now.top && mark as usize >= frame.0 as usize + FRAME_WORDS {
            self.publish(Position { newest: frame.0, top: mark });
        }
    }

    /// Completes a frame: from now on walkers and returns believe it.
    #[inline]
    pub(crate) fn seal(&self, frame: Frame, want: u32, stamp: u64) {
        let distance = Control::decode(self.control_of(frame)).distance;
        signal_fence();
        self.set_control_of(frame, Control { distance, state: State::Sealed, want, stamp });
    }

    /// Finds the newest frame with this key. It has the right one even where tail calls stacked several frames on one key:
    /// the latest returns first.
    #[inline]
    pub(crate) fn find(&self, key: StackKey) -> Option<Found> {
        let position = self.position();
        let mut end = position.top;
        let mut abandoned = 0;
        let mut at = position.newest;
        while at != NONE {
            let frame = self.frame_at(at)?;
            let control = Control::decode(self.control_of(frame));
            if control.state != State::Dead && self.frame(frame)[KEY].load(Ordering::Relaxed) == key.get() {
                return Some(Found { frame, abandoned, end });
            }
            abandoned += 1;
            end = at;
            at = below(at, control.distance);
        }
        None
    }

    /// Leaves out the frames above `found`, and says what the frame keeps.
    #[inline]
    pub(crate) fn settle(&self, found: Found) -> (RetAddr, FuncAddr, u32, u64) {
        if found.abandoned != 0 {
            self.publish(Position { newest: found.frame.0, top: found.end });
        }
        let words = self.frame(found.frame);
        let control = Control::decode(self.control_of(found.frame));
        (
            RetAddr::new(words[RET].load(Ordering::Relaxed)),
            FuncAddr::new(words[FUNC].load(Ordering::Relaxed)),
            control.want,
            control.stamp,
        )
    }

    /// Takes the newest frame, which must be `frame`, off, with its data.
    #[inline]
    pub(crate) fn pop(&self, frame: Frame) {
        let distance = Control::decode(self.control_of(frame)).distance;
        // Dead before it is given up: see the invariant.
        self.set_control_of(frame, Control { distance, state: State::Dead, want: 0, stamp: 0 });
        // Only the frame at word 0 has distance 0: then the stack is empty, and this is 0.
        let newest = frame.0.saturating_sub(distance as u32);
        self.publish_word(u64::from(newest) << 32 | u64::from(frame.0));
    }

    /// The newest frame's key and return address, for a last message.
    pub(crate) fn newest(&self) -> Option<FrameView> {
        self.walk().next()
    }

    /// All frames that say something, newest first. Safe from an interrupt at any instruction of this module.
    pub(crate) fn walk(&self) -> Walk<'_> {
        Walk { shadow: self, at: self.position().newest }
    }
}

/// The frame below the one at `start`.
#[inline]
fn below(start: u32, distance: usize) -> u32 {
    match u32::try_from(distance) {
        Ok(distance) if distance != 0 && distance <= start => start - distance,
        _ => NONE,
    }
}

/// Iterator over the frames of a shadow stack, newest first.
#[derive(Clone, Debug)]
pub struct Walk<'a> {
    shadow: &'a Shadow,
    at: u32,
}

impl Iterator for Walk<'_> {
    type Item = FrameView;

    fn next(&mut self) -> Option<FrameView> {
        while self.at != NONE {
            let start = self.at as usize;
            if start + FRAME_WORDS > self.shadow.len.load(Ordering::Acquire) {
                return None;
            }
            let control = self.shadow.control(self.at);
            self.at = below(self.at, control.distance);
            if control.state != State::Dead {
                return Some(FrameView {
                    ret_addr: RetAddr::new(self.shadow.get(start + RET)),
                    func: FuncAddr::new(self.shadow.get(start + FUNC)),
                    key: StackKey::new(self.shadow.get(start + KEY)),
                    sealed: control.state.is_sealed(),
                });
            }
        }
        None
    }
}

#[cfg(test)]
mod capacity;
#[cfg(test)]
mod interrupts;
#[cfg(test)]
mod model;
