//! The walk itself.
//!
//! # Invariant
//! Every step goes up: to a higher address of the stack that the walk is on, or to a stack that it has not been on. What
//! is read of the stacks lies within them. So a walk ends, whatever the memory holds.

use core::ops::Range;

use crate::addr::RetAddr;
use crate::task::TaskTrace;
use crate::unwind::cursor::{Cursor, Keys, Translated};
use crate::unwind::sweep::{
    CallFrames, FP, LINK, PREFIX, Place, Reached, SCRATCH, SP, State, Value, WORD, sweep,
};
use crate::unwind::{End, Hooks, Inspect, Kind, PtrAuth, Registers, StackFrame, Start};

/// The size of a word, as addresses have it.
const BYTES: usize = WORD as usize;

/// What the walk does next.
#[derive(Clone, Copy, Debug)]
enum Next {
    /// Shows interrupted code; its caller is found by its instructions. Whether its address came from the shadow stack.
    Interrupted(Registers, Provenance),
    /// Shows a caller; its own caller is found by the frame record at `fp`.
    Caller { pc: usize, hooked: bool, fp: usize, of: Of },
    /// Shows what may be a caller, and goes on by the frame record at `fp`.
    Perhaps { pc: usize, hooked: bool, fp: usize },
    /// Finds the caller by the frame record at `fp`.
    Record { fp: usize, of: Of },
    /// Shows nothing more.
    End(End),
}

/// Whose a frame record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    /// A function's, or the return hooker's in its place.
    Function,
    /// An entry trampoline's own.
    Entry,
    /// A traced function's that has not begun yet, built by the entry trampoline.
    Traced,
}

/// How the walk came to code that it treats as interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Provenance {
    /// By its registers.
    Registers,
    /// It called an entry trampoline, by its sled.
    Sled,
}

/// The caller of interrupted code.
struct Caller {
    found: Found,
    keys: Keys,
    /// The stack pointer behind the call.
    cfa: usize,
    fp: usize,
    /// What the caller's own return address is in, if the interrupted code is an entry trampoline.
    parent: Option<usize>,
    reached: Reached,
}

/// A return address.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    /// As it stands in a register or on the stack.
    Address(usize),
    /// It was the return hooker's, and has been used up: the function has just returned there.
    Hooker,
}

/// A walk along one task's stack, from the innermost frame out. An iterator; [`end`](Self::end) says why it ended.
#[derive(Debug)]
pub struct Unwinder<'a, M, I> {
    inspect: &'a I,
    hooks: Hooks,
    auth: PtrAuth,
    stacks: &'a [Range<usize>],
    cursor: Option<Cursor<'a>>,
    next: Next,
    /// The stack that the walk is on, and the lowest address that the next frame may have there.
    place: Option<(usize, usize)>,
    /// The stacks that it has been on, by bit.
    visited: u64,
    machine: core::marker::PhantomData<fn() -> M>,
}

impl<'a, M: CallFrames, I: Inspect> Unwinder<'a, M, I> {
    /// A walk from `start` along `stacks`: the task's own and those of the interrupts on top of it, in any order (64 at
    /// most; frames on others end the walk). `task` is the trace block of the task whose stack it is, `None` if it has none.
    pub fn new(
        inspect: &'a I,
        hooks: Hooks,
        task: Option<&'a TaskTrace>,
        stacks: &'a [Range<usize>],
        start: Start,
    ) -> Self {
        let next = match start {
            Start::Interrupted(registers) => Next::Interrupted(registers, Provenance::Registers),
            Start::Called { pc, fp } => {
                let of = if hooks.is_entry(pc) { Of::Entry } else { Of::Function };
                Next::Caller { pc, hooked: false, fp, of }
            }
        };
        let cursor = task.map(Cursor::new);
        let auth = PtrAuth::NONE;
        let machine = core::marker::PhantomData;
        Self { inspect, hooks, auth, stacks, cursor, next, place: None, visited: 0, machine }
    }

    /// The same where return addresses are signed.
    #[must_use]
    pub fn with_auth(mut self, auth: PtrAuth) -> Self {
        self.auth = auth;
        self
    }

    /// Why the walk ended; `None` as long as it has not.
    pub fn end(&self) -> Option<End> {
        match self.next {
            Next::End(end) => Some(end),
            _ => None,
        }
    }

    /// Goes on at `addr`, of which `len` bytes must lie on a stack.
    fn advance(&mut self, addr: usize, len: usize) -> Result<(), End> {
        let lies_on = |stack: &Range<usize>| {
            stack.start <= addr && addr.checked_add(len).is_some_and(|end| end <= stack.end)
        };
        let Some(stack) = self.stacks.iter().take(64).position(lies_on) else {
            return Err(End::BadFrame { fp: addr });
        };
        match self.place {
            Some((here, floor)) if here == stack => {
                if addr < floor {
                    return Err(End::NotUp { fp: addr });
                }
            }
            _ => {
                if self.visited & 1 << stack != 0 {
                    return Err(End::NotUp { fp: addr });
                }
                self.visited |= 1 << stack;
            }
        }
        self.place = Some((stack, addr));
        Ok(())
    }

    /// A word of the stack that the walk is on.
    fn word(&self, addr: usize) -> Result<usize, End> {
        let stack = self.place.and_then(|(stack, _)| self.stacks.get(stack));
        let within = |stack: &Range<usize>| {
            stack.start <= addr && addr.checked_add(BYTES).is_some_and(|end| end <= stack.end)
        };
        if !stack.is_some_and(within) || !addr.is_multiple_of(BYTES) {
            return Err(End::BadFrame { fp: addr });
        }
        let mut bytes = [0; BYTES];
        self.inspect.read(addr, &mut bytes).map_err(|_| End::Unreadable { addr })?;
        Ok(usize::from_ne_bytes(bytes))
    }

    /// Takes a return address for what it really is. 0 stays 0: nobody is there.
    fn translate(&mut self, found: Found, keys: &Keys) -> Result<(usize, bool), End> {
        let found = match found {
            Found::Address(addr) => RetAddr::new(self.auth.strip(addr)),
            Found::Hooker => self.hooks.hookers[0],
        };
        let translated = match &mut self.cursor {
            Some(cursor) => cursor.ret_addr(self.hooks.hookers, found, keys),
            None if self.hooks.is_hooker(found) => Translated::NotThere,
            None => Translated::AsFound(found),
        };
        match translated {
            Translated::AsFound(addr) => Ok((addr.get(), false)),
            Translated::Hooked(addr) => Ok((self.auth.strip(addr.get()), true)),
            Translated::NotThere => Err(End::NoShadowFrame { key: *keys.start() }),
        }
    }

    /// The caller of interrupted code, by its instructions.
    fn caller(&mut self, registers: &Registers) -> Option<Caller> {
        let read = |addr: usize, bytes: &mut [u8]| self.inspect.read(addr, bytes).is_ok();
        let (state, reached) = if self.is_in_prefix(registers.pc) {
            (M::entry(Reached::Called), Reached::Called)
        } else {
            let function = self.inspect.function(registers.pc)?;
            let reached = self.reached(&function)?;
            (sweep::<M>(&function, registers.pc, reached, &self.hooks.trampolines, read)?, reached)
        };
        let by = |reg: usize, held: usize| match state.get(Some(reg)) {
            Value::Cfa(offset) => Some(held.wrapping_sub(offset as usize)),
            _ => None,
        };
        let cfa = match (by(SP, registers.sp), by(FP, registers.fp)) {
            // A function that is not what its instructions say.
            (Some(by_sp), Some(by_fp)) if by_sp != by_fp => return None,
            (by_sp, by_fp) => by_fp.or(by_sp)?,
        };
        if cfa < registers.sp {
            return None;
        }
        let value = |value: Value| self.value(&state, registers, cfa, value);
        let found = match value(Value::Return) {
            Some(addr) => Found::Address(addr),
            None if reached == Reached::AtReturn => Found::Hooker,
            None => return None,
        };
        let key = cfa.wrapping_add(M::KEY as usize);
        let (fp, parent) = (value(Value::Fp)?, value(Value::Parent));
        Some(Caller { found, keys: key..=key, cfa, fp, parent, reached })
    }

    /// Whether `pc` lies in what a site has before its function. Nothing has changed since the call then.
    fn is_in_prefix(&self, pc: usize) -> bool {
        let mut before = [0; PREFIX];
        M::PREFIX_CODE.iter().any(|offset| {
            let start = pc.wrapping_sub(*offset);
            let func = start.wrapping_add(PREFIX);
            self.inspect.function(func).is_some_and(|function| function.start == func)
                && self.inspect.read(start, &mut before).is_ok()
                && M::is_prefix(&before)
        })
    }

    /// How interrupted code is reached.
    fn reached(&self, function: &Range<usize>) -> Option<Reached> {
        if !self.hooks.trampolines.contains(&function.start) {
            return Some(Reached::Called);
        }
        // The call of a function that was jumped from leaves the stack as that function's return will.
        let [straight, _, balanced] = self.hooks.hookers;
        if self.hooks.hookers.iter().any(|hooker| hooker.get() == function.start)
            || [straight, balanced].iter().any(|behind_call| behind_call.get() == function.end)
        {
            return Some(Reached::AtReturn);
        }
        if self.hooks.jumped.contains(&function.start) {
            return Some(Reached::Called);
        }
        let mut bytes = [0; 16];
        let len = bytes.len().min(function.end.checked_sub(function.start)?);
        self.inspect.read(function.start, &mut bytes[..len]).ok()?;
        Some(M::trampoline(&bytes[..len]))
    }

    /// What `value` is, wherever it is kept.
    fn value(&self, state: &State, registers: &Registers, cfa: usize, value: Value) -> Option<usize> {
        // The trampolines have no loops that move what is followed, and x86_64's return hooker keeps the real address in a register while another one stands in
        // its place.
        let straight = self.hooks.trampolines.contains(&registers.pc);
        match if straight { state.straight_place(value) } else { state.place(value) }? {
            Place::Register(FP) => Some(registers.fp),
            Place::Register(LINK) => Some(registers.link),
            Place::Register(reg) => {
                SCRATCH.iter().position(|scratch| *scratch == reg).map(|n| registers.scratch[n])
            }
            Place::Slot(offset) => self.word(cfa.wrapping_add(offset as usize)).ok(),
        }
    }

    /// Behind interrupted code.
    fn behind(&mut self, registers: &Registers, provenance: Provenance) -> Result<Next, End> {
        let Some(caller) = self.caller(registers) else {
            return Ok(self.perhaps(registers));
        };
        let (pc, hooked) = self.translate(caller.found, &caller.keys)?;
        if pc == 0 {
            return Err(End::Bottom);
        }
        let from_sled = matches!(caller.reached, Reached::BySled | Reached::ByTrap);
        if from_sled && provenance != Provenance::Sled {
            // The traced function has not begun yet, so its record cannot be relied on either.
            let link = caller.parent.unwrap_or_default();
            let registers = Registers { pc, sp: caller.cfa, fp: caller.fp, link, scratch: [0; 2] };
            return Ok(Next::Interrupted(registers, Provenance::Sled));
        }
        Ok(Next::Caller { pc, hooked, fp: caller.fp, of: self.of(pc) })
    }

    /// Behind interrupted code whose caller cannot be told: a guess, that is marked as one.
    fn perhaps(&self, registers: &Registers) -> Next {
        let on_stack = M::KEY < 0;
        let found = if on_stack { self.word(registers.sp).unwrap_or_default() } else { registers.link };
        let found = RetAddr::new(self.auth.strip(found));
        let keys = registers.sp..=registers.sp;
        // The next frames are searched from the same place on: this one may be none.
        let mut cursor = self.cursor.clone();
        let (pc, hooked) =
            match cursor.as_mut().map(|cursor| cursor.ret_addr(self.hooks.hookers, found, &keys)) {
                Some(Translated::Hooked(addr)) => (self.auth.strip(addr.get()), true),
                Some(Translated::NotThere) => (0, false),
                None if self.hooks.is_hooker(found) => (0, false),
                Some(Translated::AsFound(_)) | None => (found.get(), false),
            };
        Next::Perhaps { pc, hooked, fp: registers.fp }
    }

    fn of(&self, pc: usize) -> Of {
        if self.hooks.is_entry(pc) { Of::Entry } else { Of::Function }
    }

    /// The caller by the frame record at `fp`.
    fn by_record(&mut self, fp: usize, of: Of) -> Result<Next, End> {
        if fp == 0 {
            return Err(End::Bottom);
        }
        if !fp.is_multiple_of(BYTES) {
            return Err(End::BadFrame { fp });
        }
        self.advance(fp, 2 * BYTES)?;
        let caller_fp = self.word(fp)?;
        let found = self.word(fp + BYTES)?;
        if self.auth.strip(found) == 0 {
            return Err(End::Bottom);
        }
        // The key lies between this record and the caller's, where that is on the same stack.
        let stack = self.place.and_then(|(stack, _)| self.stacks.get(stack)).map_or(fp..fp, Clone::clone);
        let up = caller_fp > fp && stack.contains(&caller_fp);
        let last = if up { caller_fp } else { stack.end };
        let first = fp + if of == Of::Traced { M::KEY_ABOVE_TRACED } else { M::KEY_ABOVE_RECORD };
        let (pc, hooked) = self.translate(Found::Address(found), &(first..=last))?;
        self.leave_record(fp);
        let of = if of == Of::Entry { Of::Traced } else { self.of(pc) };
        Ok(Next::Caller { pc, hooked, fp: caller_fp, of })
    }

    /// Behind a caller whose own caller the record at `fp` names, unless it is the trap entry.
    fn behind_caller(&mut self, pc: usize, fp: usize, of: Of) -> Result<Next, End> {
        let Some(registers) = self.inspect.interrupted(pc, fp) else { return Ok(Next::Record { fp, of }) };
        self.advance(fp, 2 * BYTES)?;
        self.leave_record(fp);
        Ok(Next::Interrupted(registers, Provenance::Registers))
    }

    /// What comes next on this stack lies above the record at `fp`.
    fn leave_record(&mut self, fp: usize) {
        if let Some((_, floor)) = &mut self.place {
            *floor = fp + 2 * BYTES;
        }
    }

    fn kind(&self, pc: usize) -> Kind {
        if self.hooks.trampolines.contains(&pc) { Kind::Trampoline } else { Kind::Certain }
    }
}

impl<M: CallFrames, I: Inspect> Iterator for Unwinder<'_, M, I> {
    type Item = StackFrame;

    fn next(&mut self) -> Option<StackFrame> {
        loop {
            match self.next {
                Next::Interrupted(registers, provenance) => {
                    let on_stack = self.advance(registers.sp, 0);
                    let next = on_stack.and_then(|()| self.behind(&registers, provenance));
                    self.next = next.unwrap_or_else(Next::End);
                    let pc = registers.pc;
                    let (is_return, hooked) = (false, false);
                    return Some(StackFrame { pc, kind: self.kind(pc), is_return, hooked });
                }
                Next::Caller { pc, hooked, fp, of } => {
                    self.next = self.behind_caller(pc, fp, of).unwrap_or_else(Next::End);
                    return Some(StackFrame { pc, kind: self.kind(pc), is_return: true, hooked });
                }
                Next::Perhaps { pc, hooked, fp } => {
                    self.next = Next::Record { fp, of: Of::Function };
                    return Some(StackFrame { pc, kind: Kind::Uncertain, is_return: true, hooked });
                }
                Next::Record { fp, of } => self.next = self.by_record(fp, of).unwrap_or_else(Next::End),
                Next::End(_) => return None,
            }
        }
    }
}
