//! An engine with an image and one task, for the tests of probes: calls come through a function's site when it is patched, as they
//! would on a machine, and handlers note what they are told.

use core::cell::{Cell, RefCell};
use std::rc::Rc;
use std::thread_local;
use std::vec::Vec;

use super::{Arm, Fprobe, FprobeError, FprobeHit, Fprobes};
use crate::addr::{FuncAddr, RetAddr, SiteAddr};
use crate::engine::Engine;
use crate::engine::image::{Function, Image, Target, init, new_engine, target};
use crate::graph::world::{Block, HOOKER};
use crate::regs::Regs;
use crate::site::{Flavor, SiteSource};
use crate::sites::ModuleId;
use crate::sync::Ordering;
use crate::task::TaskTrace;
use crate::testing::kernel::{self, Fake};
use crate::testing::{Random, keep, keep_all};

pub(super) const RET: usize = 0x7000;
const STACK_WORDS: usize = 4096;

/// What a handler was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Entry { probe: usize, ip: usize, parent: usize, words: usize },
    Exit { probe: usize, ip: usize, parent: usize, value: usize, data: Vec<usize> },
}

type Deed = dyn Fn(usize, usize);

thread_local! {
    static TOLD: RefCell<Vec<Event>> = const { RefCell::new(Vec::new()) };
    /// Which call this is, for handlers that veto.
    static SERIAL: Cell<usize> = const { Cell::new(0) };
    static MEANWHILE: RefCell<Option<Rc<Deed>>> = const { RefCell::new(None) };
}

/// What happened since the last time this was asked.
pub(super) fn told() -> Vec<Event> {
    TOLD.take()
}

/// Whether probe `number` says no to the exit of call `serial`. Probe 0 never does.
pub(super) fn vetoes(number: usize, serial: usize) -> bool {
    number != 0 && Random::new((number << 32 | serial) as u64).one_in(3)
}

/// What an entry handler leaves for the exit in word `index`.
pub(super) fn left(number: usize, ip: usize, index: usize) -> usize {
    ip ^ number << 8 ^ index
}

/// From now on entry handlers do this too, with the probe's number and the function.
pub(super) fn meanwhile(deed: impl Fn(usize, usize) + 'static) {
    MEANWHILE.set(Some(Rc::new(deed)));
}

fn entry<R: Regs>(probe: &Fprobe<R>, hit: &mut FprobeHit<'_, R>) -> Arm {
    let (number, ip) = (probe.private(), hit.ip().get());
    assert_eq!(kernel::with(|kernel| kernel.preempt_off), 1, "preemption is off");
    assert_eq!(hit.fregs().return_address(), hit.parent_ip());
    for (index, word) in hit.data().iter().enumerate() {
        assert_eq!(word.swap(left(number, ip, index), Ordering::Relaxed), 0, "data of {number}");
    }
    let (parent, words) = (hit.parent_ip().get(), hit.data().len());
    TOLD.with_borrow_mut(|told| told.push(Event::Entry { probe: number, ip, parent, words }));
    let deed = MEANWHILE.with_borrow(Clone::clone);
    deed.inspect(|deed| deed(number, ip));
    if vetoes(number, SERIAL.get()) { Arm::Nothing } else { Arm::Exit }
}

fn exit<R: Regs>(probe: &Fprobe<R>, hit: &mut FprobeHit<'_, R>) {
    assert_eq!(kernel::with(|kernel| kernel.preempt_off), 1, "preemption is off");
    assert_eq!(hit.fregs().ip(), hit.parent_ip().get(), "the ip is where it returns to");
    let data = hit.data().iter().map(|word| word.load(Ordering::Relaxed)).collect();
    let (ip, parent) = (hit.ip().get(), hit.parent_ip().get());
    let value = hit.fregs().return_value();
    TOLD.with_borrow_mut(|told| told.push(Event::Exit { probe: probe.private(), ip, parent, value, data }));
}

/// What handlers a probe has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handlers {
    Entry,
    Exit,
    Both,
}

/// A probe that lives for ever.
pub(super) fn probe<R: Regs>(
    number: usize,
    handlers: Handlers,
    funcs: &[usize],
    words: usize,
) -> &'static Fprobe<R> {
    let funcs = keep_all(funcs.iter().copied().map(FuncAddr::new).collect());
    let probe = match handlers {
        Handlers::Entry => Fprobe::entry(funcs, entry::<R>),
        Handlers::Exit => Fprobe::exit(funcs, exit::<R>),
        Handlers::Both => Fprobe::both(funcs, entry::<R>, exit::<R>),
    };
    keep(probe.with_data(words).with_private(number))
}

/// A call under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    sp: usize,
    addr: usize,
}

pub(super) struct Bench<T: Target> {
    pub(super) engine: &'static Engine<Fake, T>,
    pub(super) probes: &'static Fprobes<T::Regs>,
    pub(super) image: Image,
    pub(super) task: &'static TaskTrace,
    sp: Cell<usize>,
}

impl<T: Target> Bench<T> {
    /// An engine with so many functions, and a task with so many words of shadow stack.
    pub(super) fn new(functions: usize, words: usize, random: &mut Random) -> Self {
        let image = Image::new::<T>(functions, random);
        let engine = image.start::<T>();
        Self::on(engine, image, words)
    }

    /// The same with as many functions in the kernel as in a module that is not loaded yet.
    pub(super) fn with_module(functions: usize, random: &mut Random) -> Self {
        let image = Image::new::<T>(2 * functions, random);
        image.boot::<T>();
        let engine = new_engine::<T>();
        let entries = image.traceable().take(functions).map(|function| function.site).collect();
        init(engine, image.source(entries, functions), image.trampolines).expect("a good image");
        Self::on(engine, image, 200)
    }

    /// Loads the module, as the compiler left it.
    pub(super) fn load(&self) -> ModuleId {
        let functions = self.image.traceable().count() / 2;
        self.image.traceable().skip(functions).for_each(|new| kernel::poke(new.site, &new.sled));
        let entries = self.image.traceable().skip(functions).map(|function| function.site).collect();
        let source = SiteSource { notrace: 0..0, ..self.image.source(entries, functions) };
        // SAFETY: nothing executes this text.
        unsafe { self.engine.add_module(source) }.expect("a good module").0
    }

    fn on(engine: &'static Engine<Fake, T>, image: Image, words: usize) -> Self {
        TOLD.take();
        MEANWHILE.set(None);
        SERIAL.set(0);
        let task = keep(TaskTrace::new());
        task.give_stack(keep_all(vec![0; words])).expect("enough words");
        let stack = keep_all(vec![0usize; STACK_WORDS]).as_mut_ptr().expose_provenance();
        let sp = Cell::new(stack + (STACK_WORDS - 2) * size_of::<usize>());
        Self { engine, probes: keep(Fprobes::new()), image, task, sp }
    }

    pub(super) fn funcs(&self) -> Vec<usize> {
        self.image.traceable().map(|function| function.addr).collect()
    }

    fn function(&self, func: usize) -> &Function {
        self.image.traceable().find(|function| function.addr == func).expect("a function")
    }

    pub(super) fn register(&self, probe: &'static Fprobe<T::Regs>) -> Result<(), FprobeError> {
        self.probes.register(self.engine, probe)
    }

    pub(super) fn unregister(&self, probe: &'static Fprobe<T::Regs>) -> Result<(), FprobeError> {
        self.probes.unregister(self.engine, probe)
    }

    fn is_patched(&self, function: &Function) -> bool {
        target(self.engine, function).is_some_and(|flavor| flavor != Flavor::Off)
    }

    /// The functions whose sites are patched.
    pub(super) fn patched(&self) -> Vec<usize> {
        let is = |function: &&Function| self.is_patched(function);
        self.image.traceable().filter(is).map(|function| function.addr).collect()
    }

    pub(super) fn call(&self, func: usize, ret: usize) -> Call {
        SERIAL.set(SERIAL.get() + 1);
        self.sp.set(self.sp.get() - 16);
        let function = self.function(func);
        let (addr, sp) = (FuncAddr::new(func), self.sp.get());
        // SAFETY: a word of the stack, which lives for ever.
        let mut fregs = unsafe { T::Regs::entry(addr, sp, ret, self.task) };
        if self.is_patched(function) {
            self.engine.entry(SiteAddr::new(function.site), addr, &mut fregs, RetAddr::new(HOOKER));
        }
        Call { sp, addr: fregs.return_address().get() }
    }

    /// The number of the last call.
    pub(super) fn serial() -> usize {
        SERIAL.get()
    }

    pub(super) fn ret(&self, call: Call, value: usize) -> usize {
        let mut at = call.addr;
        if at == HOOKER {
            // SAFETY: as in `call`.
            let mut fregs = unsafe { T::Regs::ret(call.sp, value, self.task) };
            // SAFETY: nothing runs with these registers.
            unsafe { self.engine.leave(&mut fregs) };
            at = fregs.ip();
        }
        self.unwind_to(call);
        at
    }

    /// A non-local jump out of `call`.
    pub(super) fn unwind_to(&self, call: Call) {
        self.sp.set(call.sp + 16);
    }

    /// Calls and returns at once.
    pub(super) fn run(&self, func: usize) -> bool {
        let call = self.call(func, RET);
        assert_eq!(self.ret(call, 5), RET);
        call.addr == HOOKER
    }
}

impl Call {
    pub(super) fn hooked(&self) -> bool {
        self.addr == HOOKER
    }
}
