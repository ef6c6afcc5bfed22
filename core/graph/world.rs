//! A machine that runs nothing, for the tests of the graph: a stack of plain words, traced calls that are made by hand on
//! register blocks of either machine, and graph users whose callbacks are closures of the test.

use core::cell::{Cell, RefCell};
use std::any::Any;
use std::boxed::Box;
use std::rc::Rc;
use std::thread_local;
use std::vec::Vec;

use super::{AbandonedCall, Callbacks, EntryCall, GraphOps, ReturnCall, Want};
use crate::addr::{FuncAddr, RetAddr, StackKey};
use crate::arch::{arm64, x86_64};
use crate::filter::Filter;
use crate::platform::{Context, Fatal};
use crate::regs::{Regs, Saved};
use crate::task::TaskTrace;
use crate::testing::{keep, keep_all};
use crate::users::{Enabled, Mask, User, Users, slots};

/// Where hooked functions return to.
pub(crate) const HOOKER: usize = 0x00ff_f000;

/// Words of the fake stack.
const WORDS: usize = 4096;

/// A register block that tests can fill as its trampolines would.
pub(crate) trait Block: Regs + Sized {
    /// At the entry of `func`, called with the stack pointer at `sp` and to return to `ret`.
    ///
    /// # Safety
    /// `sp` is in the middle of a stack that lives for ever and that only this thread uses.
    unsafe fn entry(func: FuncAddr, sp: usize, ret: usize, task: *const TaskTrace) -> Self;

    /// In the return hooker, for a function that was entered with the stack pointer at `sp`.
    ///
    /// # Safety
    /// As for `entry`.
    unsafe fn ret(sp: usize, value: usize, task: *const TaskTrace) -> Self;

    /// Where stack walkers find the address that the return hooker returns to.
    fn resume_slot(sp: usize) -> usize;

    /// What `return_early` makes of the ip.
    const RETURN_EARLY: usize;
}

impl Block for x86_64::regs::FtraceRegs {
    unsafe fn entry(func: FuncAddr, sp: usize, ret: usize, task: *const TaskTrace) -> Self {
        // SAFETY: the caller's stack has a word at `sp`.
        unsafe { core::ptr::with_exposed_provenance_mut::<usize>(sp).write(ret) };
        // SAFETY: the caller's stack and task last.
        unsafe { Self::from_raw(Saved::Args, func.get() + 5, sp, task) }
    }

    unsafe fn ret(sp: usize, value: usize, task: *const TaskTrace) -> Self {
        // SAFETY: the caller's stack and task last.
        let mut fregs = unsafe { Self::from_raw(Saved::Return, HOOKER, sp + 8, task) };
        fregs.rax = value;
        fregs
    }

    fn resume_slot(sp: usize) -> usize {
        sp
    }

    const RETURN_EARLY: usize = x86_64::regs::RETURN_EARLY;
}

impl Block for arm64::regs::FtraceRegs {
    unsafe fn entry(func: FuncAddr, sp: usize, ret: usize, task: *const TaskTrace) -> Self {
        // SAFETY: the caller's stack and task last.
        let mut fregs = unsafe { Self::from_raw(Saved::Args, func.get() + 8, sp, task) };
        fregs.lr = ret;
        fregs
    }

    unsafe fn ret(sp: usize, value: usize, task: *const TaskTrace) -> Self {
        // SAFETY: the caller's stack and task last.
        let mut fregs = unsafe { Self::from_raw(Saved::Return, HOOKER, sp, task) };
        fregs.x[0] = value;
        fregs
    }

    fn resume_slot(sp: usize) -> usize {
        sp - 8
    }

    const RETURN_EARLY: usize = arm64::regs::RETURN_EARLY;
}

/// Runs a generic test with the register blocks of both machines.
macro_rules! on_both_machines {
    ($($name:ident)*) => {$(
        mod $name {
            #[test]
            fn x86_64() {
                super::$name::<$crate::arch::x86_64::regs::FtraceRegs>();
            }
            #[test]
            fn arm64() {
                super::$name::<$crate::arch::arm64::regs::FtraceRegs>();
            }
        }
    )*};
}
pub(crate) use on_both_machines;

type EntryScript<R> = dyn Fn(&mut EntryCall<'_, R>, &GraphOps<R>) -> Want;
type ReturnScript<R> = dyn Fn(&mut ReturnCall<'_, R>, &GraphOps<R>);
type AbandonedScript<R> = dyn Fn(&mut AbandonedCall<'_, R>, &GraphOps<R>);

/// What the callbacks of this thread's graph users do.
struct Script<R: Regs> {
    entry: Rc<EntryScript<R>>,
    ret: Rc<ReturnScript<R>>,
    abandoned: Rc<AbandonedScript<R>>,
}

thread_local! {
    static SCRIPT: RefCell<Option<Rc<dyn Any>>> = const { RefCell::new(None) };
}

/// From now on callbacks do this.
pub(crate) fn play<R: Regs>(
    entry: impl Fn(&mut EntryCall<'_, R>, &GraphOps<R>) -> Want + 'static,
    ret: impl Fn(&mut ReturnCall<'_, R>, &GraphOps<R>) + 'static,
) {
    play_all(entry, ret, |_, _| {});
}

/// The same with what is done about calls that never return.
pub(crate) fn play_all<R: Regs>(
    entry: impl Fn(&mut EntryCall<'_, R>, &GraphOps<R>) -> Want + 'static,
    ret: impl Fn(&mut ReturnCall<'_, R>, &GraphOps<R>) + 'static,
    abandoned: impl Fn(&mut AbandonedCall<'_, R>, &GraphOps<R>) + 'static,
) {
    let script: Rc<dyn Any> =
        Rc::new(Script { entry: Rc::new(entry), ret: Rc::new(ret), abandoned: Rc::new(abandoned) });
    SCRIPT.set(Some(script));
}

fn with_script<R: Regs, T>(run: impl FnOnce(&Script<R>) -> T) -> T {
    let script = SCRIPT.with_borrow(Clone::clone).expect("a script");
    run(script.downcast_ref().expect("a script for this machine"))
}

fn entry<R: Regs>(call: &mut EntryCall<'_, R>, ops: &GraphOps<R>) -> Want {
    with_script(|script: &Script<R>| (script.entry)(call, ops))
}

fn ret<R: Regs>(call: &mut ReturnCall<'_, R>, ops: &GraphOps<R>) {
    with_script(|script: &Script<R>| (script.ret)(call, ops));
}

fn abandoned<R: Regs>(call: &mut AbandonedCall<'_, R>, ops: &GraphOps<R>) {
    with_script(|script: &Script<R>| (script.abandoned)(call, ops));
}

/// A user that lives for ever, with a number of its own.
pub(crate) fn user<R: Regs>(number: usize, filter: Filter) -> &'static GraphOps<R> {
    let ops = GraphOps::new(entry::<R>, ret::<R>, filter).with_abandoned(abandoned::<R>);
    keep(ops.with_private(number))
}

/// Functions, as a set that lives for ever.
pub(crate) fn funcs(addrs: impl IntoIterator<Item = usize>) -> &'static [FuncAddr] {
    keep_all(addrs.into_iter().map(FuncAddr::new).collect::<Vec<_>>())
}

/// What waits for the end of the sections.
type Later<R> = Box<dyn FnOnce(&Graph<R>)>;

/// Graph users as the engine keeps them, with their filters asked at each entry instead of bits in the sites' states.
pub(crate) struct Graph<R: Regs> {
    pub(crate) users: Users<R>,
    /// How many sections are under way, one on top of another.
    sections: Cell<usize>,
    /// What the control side does when there is none any more.
    later: RefCell<Vec<Later<R>>>,
}

impl<R: Block> Graph<R> {
    fn new() -> Self {
        Self { users: Users::new(), sections: Cell::new(0), later: RefCell::default() }
    }

    /// Gives the user a slot, and enables it. Whether there was one.
    pub(crate) fn publish(&self, user: &'static GraphOps<R>) -> bool {
        let slot = self.users.attach(User::Graph(user));
        slot.inspect(|slot| self.users.set_enabled(*slot, Enabled::Yes)).is_some()
    }

    /// Takes a user out, outside sections; its slot, if it was there.
    pub(crate) fn retract(&self, user: &'static GraphOps<R>) -> Option<usize> {
        assert_eq!(self.sections.get(), 0, "within a section a slot does not change hands");
        let slot = self.disable(user)?;
        self.users.detach(slot);
        Some(slot)
    }

    /// The first half of that, which may be done at any time.
    pub(crate) fn disable(&self, user: &'static GraphOps<R>) -> Option<usize> {
        let slot = self.users.slot_of(User::Graph(user))?;
        self.users.set_enabled(slot, Enabled::No);
        Some(slot)
    }

    /// Does this when every section has ended: the control side, behind its `synchronize`.
    pub(crate) fn when_quiescent(&self, then: impl FnOnce(&Self) + 'static) {
        if self.sections.get() == 0 {
            then(self);
        } else {
            self.later.borrow_mut().push(Box::new(then));
        }
    }

    fn section<T>(&self, run: impl FnOnce() -> T) -> T {
        self.sections.set(self.sections.get() + 1);
        let result = run();
        self.sections.set(self.sections.get() - 1);
        if self.sections.get() == 0 {
            self.later.take().into_iter().for_each(|then| then(self));
        }
        result
    }

    /// The enabled users that want `func`.
    pub(crate) fn candidates(&self, func: FuncAddr) -> Mask {
        let wants = |slot: &usize| self.users.graph(*slot).is_some_and(|user| user.filter().wants(func));
        slots(self.users.graphs()).filter(wants).fold(0, |mask, slot| mask | 1 << slot)
    }

    /// Whether any user wants `func`.
    pub(crate) fn wants(&self, func: FuncAddr) -> bool {
        self.candidates(func) != 0
    }

    pub(crate) fn enter(&self, task: &TaskTrace, context: Context, func: FuncAddr, fregs: &mut R) {
        self.section(|| {
            let candidates = self.candidates(func);
            // The engine does not ask the graph about what nobody wants.
            if candidates != 0 {
                super::enter(&self.users, candidates, task, context, func, fregs, RetAddr::new(HOOKER));
            }
        });
    }

    pub(crate) fn leave(
        &self,
        task: Option<&TaskTrace>,
        context: Context,
        callbacks: Callbacks,
        fregs: &mut R,
    ) -> Result<(), Fatal> {
        self.section(|| super::leave(&self.users, task, context, callbacks, fregs))
    }
}

/// One task on one CPU, and a graph.
pub(crate) struct World<R: Block> {
    pub(crate) graph: &'static Graph<R>,
    pub(crate) task: &'static TaskTrace,
    pub(crate) context: Cell<Context>,
    pub(crate) stopped: Cell<bool>,
    stack: usize,
    /// Index of the lowest word in use; a call takes two.
    sp: Cell<usize>,
}

/// A call that is under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) func: usize,
    /// Its stack pointer at entry.
    pub(crate) sp: usize,
    /// Where it returns to, as it stands on the stack or in the link register.
    pub(crate) addr: usize,
    /// Whether it is to return at once.
    pub(crate) early: bool,
}

impl Call {
    pub(crate) fn hooked(&self) -> bool {
        self.addr == HOOKER
    }

    pub(crate) fn key(&self) -> StackKey {
        StackKey::new(self.sp)
    }
}

impl<R: Block> World<R> {
    /// A task with a shadow stack of so many words; 0 for none.
    pub(crate) fn new(shadow_words: usize) -> Rc<Self> {
        let task = keep(TaskTrace::new());
        if shadow_words != 0 {
            task.give_stack(keep_all(vec![0; shadow_words])).expect("enough words");
        }
        Rc::new(Self {
            graph: Box::leak(Box::new(Graph::new())),
            task,
            context: Cell::new(Context::Task),
            stopped: Cell::new(false),
            stack: keep_all(vec![0usize; WORDS]).as_mut_ptr().expose_provenance(),
            sp: Cell::new(WORDS - 2),
        })
    }

    /// The addresses of the fake stack.
    pub(crate) fn stack_range(&self) -> core::ops::Range<usize> {
        self.stack..self.stack + WORDS * size_of::<usize>()
    }

    fn addr_of(&self, index: usize) -> usize {
        assert!((2..WORDS - 1).contains(&index), "the fake stack is too small");
        self.stack + index * size_of::<usize>()
    }

    /// Calls `func` from `ret`.
    pub(crate) fn call(&self, func: usize, ret: usize) -> Call {
        self.sp.set(self.sp.get() - 2);
        self.enter(func, self.addr_of(self.sp.get()), ret)
    }

    /// The function of `call` ends in a jump to `func`.
    pub(crate) fn tail_call(&self, call: Call, func: usize) -> Call {
        self.enter(func, call.sp, call.addr)
    }

    fn enter(&self, func: usize, sp: usize, ret: usize) -> Call {
        let addr = FuncAddr::new(func);
        // SAFETY: `sp` is of this world's stack.
        let mut fregs = unsafe { R::entry(addr, sp, ret, self.task) };
        assert_eq!((fregs.return_address(), fregs.key()), (RetAddr::new(ret), StackKey::new(sp)));
        self.graph.enter(self.task, self.context.get(), addr, &mut fregs);
        let early = fregs.ip() == R::RETURN_EARLY;
        Call { func, sp, addr: fregs.return_address().get(), early }
    }

    /// The function of `call` returns `value`. Where execution ends up, and with which value.
    pub(crate) fn ret(&self, call: Call, value: usize) -> (usize, usize) {
        let (mut at, mut value) = (call.addr, value);
        while at == HOOKER {
            (at, value) = self.leave(call.sp, value).expect("a frame");
        }
        self.unwind_to(call.sp);
        (at, value)
    }

    /// What the return hooker does: where it returns to, and with which value.
    pub(crate) fn leave(&self, sp: usize, value: usize) -> Result<(usize, usize), Fatal> {
        // SAFETY: `sp` is of this world's stack, or one that nothing will be written to, since no frame has it.
        let mut fregs = unsafe { R::ret(sp, value, self.task) };
        let callbacks = if self.stopped.get() { Callbacks::Skip } else { Callbacks::Call };
        self.graph.leave(Some(self.task), self.context.get(), callbacks, &mut fregs)?;
        let slot = core::ptr::with_exposed_provenance::<usize>(R::resume_slot(sp));
        // SAFETY: a word of this world's stack.
        let walkers_see = unsafe { slot.read() };
        assert_eq!(fregs.ip(), walkers_see, "ip, and what a stack walker finds");
        Ok((fregs.ip(), fregs.return_value()))
    }

    /// A non-local jump: all calls below `sp` are left, and the one that was entered with it.
    pub(crate) fn unwind_to(&self, sp: usize) {
        self.sp.set((sp - self.stack) / size_of::<usize>() + 2);
    }
}
