//! The traced path through the engine: entries to users, returns to graph users, on the register blocks of both machines.

use core::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::thread_local;
use std::vec::Vec;

use super::Engine;
use super::image::{Image, Target, for_both_machines};
use crate::addr::{FuncAddr, RetAddr, SiteAddr, StackKey};
use crate::filter::Filter;
use crate::graph::Want;
use crate::graph::world::{Block, HOOKER, funcs, play, user};
use crate::ops::{Ops, OpsFlags};
use crate::platform::{Context, Fatal};
use crate::regs::Regs;
use crate::task::{TaskStats, TaskTrace};
use crate::testing::kernel::{self, Fake};
use crate::testing::{Random, keep, keep_all};

const RET: usize = 0x7000;

/// A task with a stack for its calls, and an engine.
struct Machine<T: Target> {
    engine: &'static Engine<Fake, T>,
    image: Image,
    task: &'static TaskTrace,
    sp: usize,
}

impl<T: Target> Machine<T> {
    fn start() -> Self {
        let image = Image::new::<T>(4, &mut Random::new(3));
        let task = keep(TaskTrace::new());
        task.give_stack(keep_all(vec![0; 64])).expect("enough words");
        let stack = keep_all(vec![0usize; 64]).as_mut_ptr().expose_provenance();
        Self { engine: image.start::<T>(), image, task, sp: stack + 32 * 8 }
    }

    fn func(&self, index: usize) -> usize {
        self.image.traceable().nth(index).expect("a function").addr
    }

    fn site(&self, func: usize) -> SiteAddr {
        let function = self.image.traceable().find(|function| function.addr == func);
        SiteAddr::new(function.expect("a function").site)
    }

    fn entry(&self, func: usize, depth: usize) -> T::Regs {
        let addr = FuncAddr::new(func);
        // SAFETY: a word of the stack, which lives for ever.
        let mut fregs = unsafe { T::Regs::entry(addr, self.sp - 16 * depth, RET + depth, self.task) };
        self.engine.entry(self.site(func), addr, &mut fregs, RetAddr::new(HOOKER));
        fregs
    }

    fn leave(&self, depth: usize) -> T::Regs {
        // SAFETY: as in `entry`.
        let mut fregs = unsafe { T::Regs::ret(self.sp - 16 * depth, 0, self.task) };
        // SAFETY: nothing runs with these registers.
        unsafe { self.engine.leave(&mut fregs) };
        fregs
    }
}

/// One call of a user of entries: its number, the function, the caller, and whether preemption was off.
type Entry = (usize, usize, usize, bool);

thread_local! {
    static TOLD: RefCell<Vec<Entry>> = const { RefCell::new(Vec::new()) };
}

fn note<R: Regs>(ip: FuncAddr, parent_ip: RetAddr, ops: &Ops<R>, _fregs: &mut R) {
    let preempt_off = kernel::with(|kernel| kernel.preempt_off == 1);
    TOLD.with_borrow_mut(|told| told.push((ops.private(), ip.get(), parent_ip.get(), preempt_off)));
}

fn noting<T: Target>(number: usize, filter: Filter) -> &'static Ops<T::Regs> {
    keep(Ops::new(note::<T::Regs>, OpsFlags::empty(), filter).with_private(number))
}

fn entries_reach_the_users_that_want_them_in_order_of_slots<T: Target>() {
    TOLD.take();
    let machine = Machine::<T>::start();
    let (f, g) = (machine.func(0), machine.func(2));
    let users = [Filter::ALL, Filter::only(funcs([f])), Filter::NONE, Filter::ALL];
    let users: Vec<_> = users.into_iter().enumerate().map(|(n, filter)| noting::<T>(n, filter)).collect();
    users.iter().for_each(|ops| machine.engine.register_ops(ops).expect("registered"));
    machine.entry(f, 0);
    machine.entry(g, 1);
    let first = [(0, f, RET, true), (1, f, RET, true), (3, f, RET, true)];
    let second = [(0, g, RET + 1, true), (3, g, RET + 1, true)];
    assert_eq!(TOLD.take(), [&first[..], &second].concat());

    // The lowest slot is taken again.
    machine.engine.unregister_ops(users[0]).expect("out");
    machine.engine.register_ops(noting::<T>(9, Filter::ALL)).expect("registered");
    machine.entry(g, 0);
    assert_eq!(TOLD.take(), [(9, g, RET, true), (3, g, RET, true)]);

    machine.engine.stop();
    machine.entry(f, 0);
    assert_eq!(TOLD.take(), []);
    kernel::with(|kernel| assert_eq!(kernel.preempt_off, 0));
}

fn a_task_without_a_block_is_not_traced<T: Target>() {
    TOLD.take();
    let machine = Machine::<T>::start();
    machine.engine.register_ops(noting::<T>(0, Filter::ALL)).expect("registered");
    let func = FuncAddr::new(machine.func(0));
    // SAFETY: a word of the stack, which lives for ever.
    let mut fregs = unsafe { T::Regs::entry(func, machine.sp, RET, core::ptr::null()) };
    machine.engine.entry(machine.site(func.get()), func, &mut fregs, RetAddr::new(HOOKER));
    machine.engine.graph_entry(func, &mut fregs, RetAddr::new(HOOKER));
    assert_eq!((TOLD.take(), fregs.return_address().get()), (Vec::new(), RET));
}

/// A user of entries that is traced itself: its own calls reach it once more, then run untraced.
fn a_callback_that_is_traced_is_told_of_one_of_its_own_calls<T: Target>() {
    TOLD.take();
    thread_local! {
        static AGAIN: RefCell<Option<Rc<dyn Fn()>>> = const { RefCell::new(None) };
    }
    let machine = Rc::new(Machine::<T>::start());
    let f = machine.func(0);
    let ops: Ops<T::Regs> = Ops::new(
        |ip, parent_ip, ops, fregs| {
            note(ip, parent_ip, ops, fregs);
            let again = AGAIN.with_borrow(Clone::clone).expect("set below");
            again();
        },
        OpsFlags::empty(),
        Filter::ALL,
    );
    let again = machine.clone();
    AGAIN.set(Some(Rc::new(move || {
        again.entry(f, 1);
    })));
    machine.engine.register_ops(keep(ops)).expect("registered");
    machine.entry(f, 0);
    let told: Vec<usize> = TOLD.take().iter().map(|entry| entry.2).collect();
    assert_eq!(told, [RET, RET + 1]);
    assert_eq!(machine.task.stats().recursed, 1);

    // An interrupt has guards of its own.
    let again = machine.clone();
    AGAIN.set(Some(Rc::new(move || {
        let outer = kernel::with(|kernel| kernel.context.replace(Context::Irq));
        again.entry(f, 2);
        kernel::with(|kernel| kernel.context = outer);
    })));
    machine.entry(f, 0);
    let told: Vec<usize> = TOLD.take().iter().map(|entry| entry.2).collect();
    assert_eq!(told, [RET, RET + 2, RET + 2]);
    AGAIN.set(None);
    kernel::with(|kernel| assert_eq!(kernel.preempt_off, 0));
}

fn graph_users_are_told_of_both_ends<T: Target>() {
    let machine = Machine::<T>::start();
    let told = Rc::new(RefCell::new(Vec::new()));
    let (at_entry, at_return) = (told.clone(), told.clone());
    play::<T::Regs>(
        move |call, _| {
            at_entry.borrow_mut().push(('e', call.func().get(), kernel::with(|kernel| kernel.preempt_off)));
            Want::Return
        },
        move |call, _| {
            at_return.borrow_mut().push(('r', call.func().get(), kernel::with(|kernel| kernel.preempt_off)));
        },
    );
    let (f, g) = (machine.func(0), machine.func(1));
    let only_f = user(0, Filter::only(funcs([f])));
    machine.engine.register_graph(only_f).expect("registered");
    assert_eq!(machine.entry(f, 0).return_address().get(), HOOKER);
    assert_eq!(machine.entry(g, 1).return_address().get(), RET + 1);
    assert_eq!(machine.entry(f, 2).return_address().get(), HOOKER);
    assert_eq!(machine.leave(2).ip(), RET + 2);
    // Its user gone, and tracing stopped: it still returns.
    machine.engine.unregister_graph(only_f).expect("out");
    machine.engine.stop();
    assert_eq!(machine.leave(0).ip(), RET);
    assert_eq!(*told.borrow(), [('e', f, 1), ('e', f, 1), ('r', f, 1)]);
    let should = TaskStats { calls: 2, returns: 2, max_depth: 2, ..TaskStats::default() };
    assert_eq!(machine.task.stats(), should);
    kernel::with(|kernel| assert_eq!(kernel.preempt_off, 0));
}

fn a_return_that_no_call_belongs_to_is_fatal<T: Target>() {
    let machine = Machine::<T>::start();
    play::<T::Regs>(|_, _| Want::Return, |_, _| {});
    machine.engine.register_graph(user(0, Filter::ALL)).expect("registered");
    machine.entry(machine.func(0), 0);
    assert!(!machine.engine.is_stopped());
    assert!(catch_unwind(AssertUnwindSafe(|| machine.leave(3).ip())).is_err());
    let fatal = Fatal::NoFrame {
        key: StackKey::new(machine.sp - 48),
        newest: Some(StackKey::new(machine.sp)),
        newest_return: Some(RetAddr::new(RET)),
    };
    assert_eq!(kernel::with(|kernel| kernel.fatal), Some(fatal));
    assert!(machine.engine.is_stopped(), "stopped before the platform is told");
}

for_both_machines! {
    entries_reach_the_users_that_want_them_in_order_of_slots
    a_task_without_a_block_is_not_traced
    a_callback_that_is_traced_is_told_of_one_of_its_own_calls
    graph_users_are_told_of_both_ends
    a_return_that_no_call_belongs_to_is_fatal
}
