//! Where is the return address, at this instruction? Found by following a function's instructions from its start to there.
//!
//! The values that matter (the return address, the caller's frame pointer, addresses in the frame) are followed through a few registers and
//! stack slots; everything else is [`Value::Other`]. One pass, in the order of addresses: the state at a forward
//! branch is kept for its target. Code that nothing before it leads to (behind a `ret`, in a loop that is entered from
//! below) is taken to have the state that the function had when it first branched, if it had its frame by then; and else the state there
//! is not known, and no answer is given.

use core::ops::Range;

/// Bytes of a stack slot.
pub const WORD: i32 = 8;

/// Numbers of the registers that are followed: the stack pointer,
pub const SP: usize = 0;
/// the frame pointer,
pub const FP: usize = 1;
/// the link register, where there is one,
pub const LINK: usize = 2;
/// two registers that this crate's trampolines carry addresses in,
pub const SCRATCH: [usize; 2] = [3, 4];
/// and two that they compute with.
pub const TEMP: [usize; 2] = [5, 6];

const REGS: usize = 7;
const SLOTS: usize = 12;

/// What a register or a stack slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// Nothing that matters.
    Other,
    /// The canonical frame address (the caller's stack pointer behind the call) and so many bytes.
    Cfa(i32),
    /// The frame pointer as it was at the function's entry.
    Fp,
    /// The return address.
    Return,
    /// In an entry trampoline: the return address of the function that it was called from.
    Parent,
}

impl Value {
    /// The value and `n`.
    pub fn plus(self, n: i32) -> Self {
        match self {
            Self::Cfa(offset) => offset.checked_add(n).map_or(Self::Other, Self::Cfa),
            same if n == 0 => same,
            _ => Self::Other,
        }
    }
}

/// Where a value is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the register of this number.
    Register(usize),
    /// On the stack, at this offset from the frame address.
    Slot(i32),
}

/// How a function comes to be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    /// By a call.
    Called,
    /// An entry trampoline: by the call in a function's sled.
    BySled,
    /// x86_64: by a breakpoint trap at a function's sled.
    ByTrap,
    /// The return hooker: by the return of a hooked function.
    AtReturn,
}

/// The values at one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    regs: [Value; REGS],
    /// By offset from the frame address; the newest last.
    slots: [(i32, Value); SLOTS],
    used: usize,
    /// The slot in which the return address stands whatever is written there, and whether anything was yet.
    home: Option<(i32, bool)>,
}

impl State {
    /// Nothing is known but the frame pointer, and the stack pointer at `sp` from the frame address.
    pub fn at_entry(sp: i32) -> Self {
        let mut regs = [Value::Other; REGS];
        regs[SP] = Value::Cfa(sp);
        regs[FP] = Value::Fp;
        Self { regs, slots: [(0, Value::Other); SLOTS], used: 0, home: None }
    }

    /// The return address stands in the slot at `offset`, whatever is written there: at once, or when something is.
    #[must_use]
    pub fn with_home(mut self, offset: i32, written: bool) -> Self {
        self.home = Some((offset, written));
        self
    }

    /// The same with `value` in register `reg`.
    #[must_use]
    pub fn with(mut self, reg: usize, value: Value) -> Self {
        self.regs[reg] = value;
        self
    }

    /// What a register holds.
    pub fn get(&self, reg: Option<usize>) -> Value {
        reg.map_or(Value::Other, |reg| self.regs[reg])
    }

    /// Writes a register; one that is not followed is `None`.
    pub fn set(&mut self, reg: Option<usize>, value: Value) {
        if let Some(reg) = reg {
            self.regs[reg] = value;
        }
    }

    /// Writes a register that a call does not preserve.
    pub fn clobber(&mut self, regs: &[usize]) {
        for reg in regs {
            self.regs[*reg] = Value::Other;
        }
    }

    /// What stands on the stack at the address `at`.
    pub fn load(&self, at: Value) -> Value {
        let Value::Cfa(offset) = at else { return Value::Other };
        match self.home {
            Some((home, true)) if home == offset => Value::Return,
            _ => self.slots[..self.used]
                .iter()
                .rev()
                .find(|slot| slot.0 == offset)
                .map_or(Value::Other, |s| s.1),
        }
    }

    /// Writes a word of the stack.
    pub fn store(&mut self, at: Value, value: Value) {
        self.write(at, WORD, value);
    }

    /// Overwrites so many bytes of the stack with something that does not matter.
    pub fn overwrite(&mut self, at: Value, len: i32) {
        self.write(at, len, Value::Other);
    }

    fn write(&mut self, at: Value, len: i32, value: Value) {
        let Value::Cfa(offset) = at else { return };
        if let Some((home, written)) = &mut self.home
            && *home == offset
        {
            *written = true;
            return;
        }
        // What was there is gone, if only in part.
        let mut kept = 0;
        for index in 0..self.used {
            let slot = self.slots[index].0;
            if slot.saturating_add(WORD) <= offset || offset.saturating_add(len) <= slot {
                self.slots[kept] = self.slots[index];
                kept += 1;
            }
        }
        self.used = kept;
        if !matches!(value, Value::Fp | Value::Return | Value::Parent) {
            return;
        }
        if self.used == SLOTS {
            self.slots.copy_within(1.., 0);
            self.used -= 1;
        }
        self.slots[self.used] = (offset, value);
        self.used += 1;
    }

    /// Moves the stack pointer.
    pub fn add_sp(&mut self, n: i32) {
        self.regs[SP] = self.regs[SP].plus(n);
    }

    /// Where `value` is. On the stack, if it is there: this state is that of one way to the instruction, and where ways
    /// meet, a register that was saved on all of them may have been used on another one.
    pub(crate) fn place(&self, value: Value) -> Option<Place> {
        let slot = self.slot_with(value).map(Place::Slot);
        slot.or_else(|| self.register_with(value).map(Place::Register))
    }

    /// The same in code that has one way only, where the stack may still have what a register has the successor of.
    pub(super) fn straight_place(&self, value: Value) -> Option<Place> {
        let register = self.register_with(value).map(Place::Register);
        register.or_else(|| self.slot_with(value).map(Place::Slot))
    }

    /// Of the registers that a walk starts with.
    fn register_with(&self, value: Value) -> Option<usize> {
        self.regs[..TEMP[0]].iter().position(|held| *held == value)
    }

    /// The slot that holds `value`, the newest of several, which must lie on the stack proper: what lies below the
    /// stack pointer may have been overwritten by an interrupt.
    fn slot_with(&self, value: Value) -> Option<i32> {
        let lowest = match self.regs[SP] {
            Value::Cfa(offset) => offset,
            _ => i32::MIN,
        };
        let home = self.home.filter(|home| home.1 && value == Value::Return).map(|home| (home.0, value));
        let slots = self.slots[..self.used].iter().rev().copied();
        home.into_iter().chain(slots).find(|slot| slot.1 == value && slot.0 >= lowest).map(|slot| slot.0)
    }

    /// Whether the function's frame is set up: a frame pointer of its own.
    fn has_frame(&self) -> bool {
        matches!(self.regs[FP], Value::Cfa(_))
    }

    /// Whether a function that has no frame pointer of its own has changed anything that a walk relies on since `then`.
    fn moved_since(&self, then: &Self) -> bool {
        !self.has_frame()
            && (self.regs[SP] != then.regs[SP]
                || self.regs[FP] != then.regs[FP]
                || self.regs[LINK] != then.regs[LINK])
    }
}

/// Where control goes behind an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// To the next one.
    Next,
    /// To the next one, or there.
    Branch(usize),
    /// There; not known where.
    Jump(Option<usize>),
    /// Back to the caller, or nowhere.
    Stop,
}

/// An instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its bytes.
    pub len: usize,
    /// Where control goes.
    pub flow: Flow,
}

impl Step {
    /// An instruction of `len` bytes that goes on behind it.
    pub fn next(len: usize) -> Self {
        Self { len, flow: Flow::Next }
    }
}

/// An instruction to be looked at, and where.
#[derive(Clone, Copy, Debug)]
pub struct Code<'a> {
    /// At least its bytes, unless the function ends before.
    pub bytes: &'a [u8],
    /// Its address.
    pub at: usize,
    /// The start of its function.
    pub start: usize,
    /// Whether the function has a prefix, as [`CallFrames::is_prefix`] says.
    pub prefixed: bool,
    /// This crate's trampolines: what goes there from a sled comes back with everything as it was.
    pub trampolines: &'a Range<usize>,
}

/// What a machine's instructions do to frames.
pub trait CallFrames {
    /// The longest instruction.
    const LONGEST: usize;

    /// The lowest key, from its frame record, of a function that has one.
    const KEY_ABOVE_RECORD: usize;

    /// The same from the record that an entry trampoline builds for the traced function.
    const KEY_ABOVE_TRACED: usize;

    /// From the frame address to the key.
    const KEY: i32;

    /// The state at the first instruction of what is reached this way.
    fn entry(reached: Reached) -> State;

    /// Where the instructions of a site's prefix stand in it, which are run before a function's own.
    const PREFIX_CODE: &'static [usize];

    /// Whether what stands before a function is the prefix of a site.
    fn is_prefix(before: &[u8; PREFIX]) -> bool;

    /// How the trampoline that begins with these bytes is reached, which is not the return hooker.
    fn trampoline(bytes: &[u8]) -> Reached;

    /// Follows one instruction; `None` if it is not known, or may do anything.
    fn step(code: Code<'_>, state: &mut State) -> Option<Step>;
}

/// Bytes before a function that may be a site's.
pub const PREFIX: usize = 16;

/// The most bytes of one function that are looked at.
const MOST: usize = 32 << 10;

/// Forward branches that are remembered at a time.
const PENDING: usize = 8;

/// The state of a function at the instruction `pc`, if it can be told. `fetch` reads the code at an address and says how
/// much of it.
pub(super) fn sweep<M: CallFrames>(
    function: &Range<usize>,
    pc: usize,
    reached: Reached,
    trampolines: &Range<usize>,
    mut fetch: impl FnMut(usize, &mut [u8]) -> bool,
) -> Option<State> {
    if !function.contains(&pc) || pc - function.start > MOST {
        return None;
    }
    let mut before = [0; PREFIX];
    let prefixed = fetch(function.start.wrapping_sub(PREFIX), &mut before) && M::is_prefix(&before);
    let mut text = Window::new(function.end);
    let entry = M::entry(reached);
    let mut state = Some(entry);
    // The state of code that nothing before it leads to.
    let mut elsewhere = Some(entry);
    let mut branched = false;
    let mut pending = [(0, entry); PENDING];
    let mut waiting = 0;
    let mut at = function.start;
    loop {
        if let Some(index) = pending[..waiting].iter().position(|(target, _)| *target == at) {
            state = Some(pending[index].1);
            waiting -= 1;
            pending[index] = pending[waiting];
        }
        let mut now = match state.or(elsewhere) {
            _ if at > pc => return None,
            known if at == pc => return known,
            known => known.unwrap_or(entry),
        };
        let known = state.or(elsewhere).is_some();
        let bytes = text.at(at, M::LONGEST, &mut fetch)?;
        let step = M::step(Code { bytes, at, start: function.start, prefixed, trampolines }, &mut now)?;
        if !branched {
            elsewhere = Some(now);
            branched = step.flow != Flow::Next;
        } else if elsewhere.is_some_and(|elsewhere| {
            !elsewhere.has_frame() && (now.has_frame() || now.moved_since(&elsewhere))
        }) {
            // A frame that is set up on some ways only.
            elsewhere = None;
        }
        at += step.len;
        let (target, goes_on) = match step.flow {
            Flow::Next => (None, true),
            Flow::Branch(target) => (Some(target), true),
            Flow::Jump(target) => (target, false),
            Flow::Stop => (None, false),
        };
        if let Some(target) = target
            && known
            && (at..=pc).contains(&target)
            && pending[..waiting].iter().all(|(other, _)| *other != target)
            && waiting < PENDING
        {
            pending[waiting] = (target, now);
            waiting += 1;
        }
        state = (known && goes_on).then_some(now);
    }
}

/// Bytes of text that were read already.
struct Window {
    bytes: [u8; 64],
    start: usize,
    len: usize,
    end: usize,
}

impl Window {
    fn new(end: usize) -> Self {
        Self { bytes: [0; 64], start: 0, len: 0, end }
    }

    /// `longest` bytes at `at`, or what there is of them before the end.
    fn at(
        &mut self,
        at: usize,
        longest: usize,
        fetch: &mut impl FnMut(usize, &mut [u8]) -> bool,
    ) -> Option<&[u8]> {
        let wanted = longest.min(self.end.checked_sub(at)?);
        if at < self.start || at + wanted > self.start + self.len {
            let len = self.bytes.len().min(self.end - at);
            if !fetch(at, &mut self.bytes[..len]) {
                return None;
            }
            (self.start, self.len) = (at, len);
        }
        self.bytes.get(at - self.start..at - self.start + wanted)
    }
}
