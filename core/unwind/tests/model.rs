//! Random histories of calls, compared with a list of callers that the test keeps: some calls hooked, some not, tail calls, non-local
//! jumps; with a walk at every step of every entry and every return.

use core::cell::RefCell;
use std::rc::Rc;
use std::vec::Vec;

use crate::addr::RetAddr;
use crate::arch::arm64::patch::Arm64;
use crate::arch::x86_64::patch::X86_64;
use crate::filter::Filter;
use crate::graph::Want;
use crate::graph::world::{Block, Call, HOOKER, World, on_both_machines, play, user};
use crate::platform::ReadFault;
use crate::sync::Ordering;
use crate::testing::{Random, storm, with_interrupt_at};
use crate::unwind::{CallFrames, End, Hooks, Inspect, Kind, PtrAuth, StackFrame, Start, Unwinder};

const TRAMPOLINE: usize = HOOKER - 0x100;
const AUTH: PtrAuth = PtrAuth::arm64(48, false);

/// What a machine's trampolines leave on the stack.
trait Records: Block {
    type Frames: CallFrames;
    /// Signs return addresses.
    const SIGNS: bool;

    /// The records that an entry trampoline builds: where they begin, and their words from there on.
    fn entry_records(sp: usize, fp: usize, parent: usize, resume: usize) -> (usize, [usize; 4]);
}

impl Records for crate::arch::x86_64::regs::FtraceRegs {
    type Frames = X86_64;
    const SIGNS: bool = false;

    fn entry_records(sp: usize, fp: usize, parent: usize, resume: usize) -> (usize, [usize; 4]) {
        // The sled's call pushed a word.
        (sp - 40, [sp - 24, resume, fp, parent])
    }
}

impl Records for crate::arch::arm64::regs::FtraceRegs {
    type Frames = Arm64;
    const SIGNS: bool = true;

    fn entry_records(sp: usize, fp: usize, parent: usize, resume: usize) -> (usize, [usize; 4]) {
        (sp - 32, [sp - 16, resume, fp, parent])
    }
}

/// The stack, as memory.
struct Memory(core::ops::Range<usize>);

impl Memory {
    fn write(&self, addr: usize, words: &[usize]) {
        for (n, word) in words.iter().enumerate() {
            let addr = addr + n * size_of::<usize>();
            assert!(self.0.contains(&addr));
            // SAFETY: a word of the world's stack.
            unsafe { core::ptr::with_exposed_provenance_mut::<usize>(addr).write(*word) };
        }
    }
}

impl Inspect for Memory {
    fn read(&self, addr: usize, bytes: &mut [u8]) -> Result<(), ReadFault> {
        assert!(
            self.0.contains(&addr) && addr + bytes.len() <= self.0.end,
            "a read beyond the stack: {addr:#x}"
        );
        // SAFETY: words of the world's stack.
        let from = unsafe {
            core::slice::from_raw_parts(core::ptr::with_exposed_provenance::<u8>(addr), bytes.len())
        };
        bytes.copy_from_slice(from);
        Ok(())
    }
}

/// A function that is under way.
#[derive(Clone, Copy, Debug)]
struct Frame {
    call: Call,
    /// Where it will really return to.
    ret: usize,
    record: usize,
    caller_fp: usize,
}

/// What a walk must show now: where it starts, and the callers from there.
#[derive(Clone, Debug)]
struct Expected {
    start: Start,
    callers: Vec<usize>,
}

struct Task<R: Records> {
    world: Rc<World<R>>,
    memory: Memory,
    frames: Vec<Frame>,
    expected: Rc<RefCell<Expected>>,
    random: Random,
    calls: usize,
}

/// Hooked frames that walks have come by.
type Hooked = core::cell::Cell<usize>;

fn walk<R: Records>(world: &World<R>, memory: &Memory, expected: &Expected, hooked: &Hooked) {
    let hooks = Hooks {
        hookers: [RetAddr::new(HOOKER + 0x40), RetAddr::new(HOOKER), RetAddr::new(HOOKER + 0x80)],
        trampolines: TRAMPOLINE..HOOKER + 0x100,
        jumped: HOOKER..HOOKER,
    };
    let stacks = [memory.0.clone()];
    let mut walk = Unwinder::<R::Frames, _>::new(memory, hooks, Some(world.task), &stacks, expected.start)
        .with_auth(if R::SIGNS { AUTH } else { PtrAuth::NONE });
    let frames: Vec<StackFrame> = walk.by_ref().collect();
    let callers: Vec<usize> =
        frames.iter().filter(|frame| frame.kind != Kind::Trampoline).map(|frame| frame.pc).collect();
    hooked.set(hooked.get() + frames.iter().filter(|frame| frame.hooked).count());
    assert_eq!((&callers, walk.end()), (&expected.callers, Some(End::Bottom)), "{expected:x?}: {frames:x?}");
}

impl<R: Records> Task<R> {
    fn new(seed: u64) -> Self {
        let world = World::<R>::new(300);
        for number in 0..2 {
            assert!(world.graph.publish(user(number, Filter::ALL)));
        }
        let memory = Memory(world.stack_range());
        let expected = Expected { start: Start::Called { pc: 1, fp: 0 }, callers: vec![1] };
        Self {
            world,
            memory,
            frames: Vec::new(),
            expected: Rc::new(RefCell::new(expected)),
            random: Random::new(seed),
            calls: 0,
        }
    }

    fn fp(&self) -> usize {
        self.frames.last().map_or(0, |frame| frame.record)
    }

    fn returns(&self) -> Vec<usize> {
        self.frames.iter().rev().map(|frame| frame.ret).collect()
    }

    fn signed(&mut self, addr: usize) -> usize {
        if R::SIGNS { addr ^ self.random.word() as usize & AUTH.mask } else { addr }
    }

    /// In the entry trampoline of `func`, which was called with `sp`, to return to `found`.
    fn at_entry(&self, func: usize, sp: usize, fp: usize, found: usize, callers: Vec<usize>) {
        let (at, words) = R::entry_records(sp, fp, found, func + 8);
        self.memory.write(at, &words);
        let callers = [vec![func + 8], callers].concat();
        self.expected.replace(Expected { start: Start::Called { pc: TRAMPOLINE, fp: at }, callers });
    }

    /// In the function that has been entered or returned to.
    fn in_function(&self) {
        let callers = [vec![1], self.returns()].concat();
        self.expected.replace(Expected { start: Start::Called { pc: 1, fp: self.fp() }, callers });
    }

    fn build_record(&mut self, call: Call, ret: usize, caller_fp: usize) {
        let record = R::resume_slot(call.sp) - 8;
        let addr = self.signed(call.addr);
        self.memory.write(record, &[caller_fp, addr]);
        self.frames.push(Frame { call, ret, record, caller_fp });
    }

    fn call(&mut self) {
        self.calls += 1;
        let (func, ret) = (0x1_0000 + 0x100 * self.calls, 0x40_0000 + 0x10 * self.calls);
        let sp = self.frames.last().map_or(self.memory.0.end - 16, |frame| frame.call.sp) - 16;
        let callers = [vec![ret], self.returns()].concat();
        self.at_entry(func, sp, self.fp(), ret, callers);
        let caller_fp = self.fp();
        let call = self.world.call(func, ret);
        assert_eq!(call.sp, sp, "the world calls where the test thinks it does");
        self.build_record(call, ret, caller_fp);
        self.in_function();
    }

    fn tail_call(&mut self) {
        let Some(frame) = self.frames.pop() else { return };
        self.calls += 1;
        let func = 0x1_0000 + 0x100 * self.calls;
        let callers = [vec![frame.ret], self.returns()].concat();
        self.at_entry(func, frame.call.sp, frame.caller_fp, frame.call.addr, callers);
        let call = self.world.tail_call(frame.call, func);
        self.build_record(call, frame.ret, frame.caller_fp);
        self.in_function();
    }

    fn ret(&mut self) {
        let Some(frame) = self.frames.pop() else { return };
        if frame.call.hooked() {
            // The hooker's record is where the function's own was, and holds its own address first.
            self.memory.write(frame.record, &[frame.caller_fp, HOOKER]);
            let callers = [vec![frame.ret], self.returns()].concat();
            let start = Start::Called { pc: HOOKER + 0x20, fp: frame.record };
            self.expected.replace(Expected { start, callers });
        }
        assert_eq!(self.world.ret(frame.call, 0).0, frame.ret);
        self.in_function();
    }

    /// A non-local jump back into a random function.
    fn jump(&mut self) {
        let left = self.random.below(self.frames.len() + 1);
        if let Some(frame) = self.frames.get(left) {
            self.world.unwind_to(frame.call.sp);
            self.frames.truncate(left);
            self.in_function();
        }
    }

    fn run(&mut self, hooked: &Hooked) {
        for _ in 0..14 {
            match self.random.below(10) {
                0..=4 => self.call(),
                5 | 6 => self.tail_call(),
                7 | 8 => self.ret(),
                _ => self.jump(),
            }
            walk(&self.world, &self.memory, &self.expected.borrow(), hooked);
        }
        while !self.frames.is_empty() {
            self.ret();
        }
        walk(&self.world, &self.memory, &self.expected.borrow(), hooked);
    }
}

/// Users that want some returns, and reserve some data.
fn wanting<R: Records>() {
    play::<R>(
        |call, ops| {
            let choice = call.func().get() >> 8 ^ ops.private();
            if choice % 3 != 0 {
                for word in call.reserve(choice % 5).into_iter().flatten() {
                    word.store(choice, Ordering::Relaxed);
                }
            }
            if choice % 4 < 2 { Want::Return } else { Want::Nothing }
        },
        |_, _| {},
    );
}

fn a_walk_at_any_step_of_any_history_shows_who_called_whom<R: Records>() {
    wanting::<R>();
    let (hooked, mut interrupts) = (Hooked::new(0), 0);
    storm(8, 1, |random| {
        let seed = random.word();
        for at in (0..).step_by(if cfg!(miri) { 23 } else { 1 }) {
            let mut task = Task::<R>::new(seed);
            let (world, memory, expected) =
                (task.world.clone(), Memory(task.memory.0.clone()), task.expected.clone());
            let interrupt = || walk(&world, &memory, &expected.borrow(), &hooked);
            let ((), came) = with_interrupt_at(at, interrupt, || task.run(&hooked));
            if !came {
                break;
            }
            interrupts += 1;
        }
    });
    std::println!("{interrupts} walks in the middle; {} hooked frames", hooked.get());
    assert!(interrupts > 10 && hooked.get() > 100);
}

on_both_machines! {
    a_walk_at_any_step_of_any_history_shows_who_called_whom
}
