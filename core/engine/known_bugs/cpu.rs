//! A CPU for the tests of the engine: it runs functions as their text says at that moment, and writes down who is told.
//!
//! Kernel and modules are images in one text. A call reads its site as a core would: it goes on, enters a trampoline, or runs
//! into a breakpoint and asks the engine where the sled leads.

use core::cell::{Cell, RefCell};
use std::thread_local;
use std::vec::Vec;

use crate::addr::{FuncAddr, RetAddr, SiteAddr};
use crate::arch::arm64::patch::Arm64;
use crate::arch::x86_64::patch::X86_64;
use crate::arch::{arm64, x86_64};
use crate::engine::image::{Function, Image, Target, init, new_engine};
use crate::engine::{Engine, Error};
use crate::filter::Filter;
use crate::graph::world::{Block, HOOKER, play};
use crate::graph::{GraphOps, Want};
use crate::ops::{Ops, OpsFlags};
use crate::regs::{Regs, Saved};
use crate::site::{Flavor, SiteReport};
use crate::sites::ModuleId;
use crate::task::TaskTrace;
use crate::testing::kernel::{self, Fake};
use crate::testing::{Random, keep, keep_all};

/// A machine whose calls can be run.
pub(in crate::engine) trait Runs: Target {
    /// The registers as the trampoline that saves `saved` hands them over.
    ///
    /// # Safety
    /// `sp` is in the middle of a stack that lives for ever and that only this thread uses.
    unsafe fn fregs(
        saved: Saved,
        func: FuncAddr,
        sp: usize,
        ret: usize,
        task: *const TaskTrace,
    ) -> Self::Regs;

    /// Whether a core that comes through here traps.
    fn traps(there: &[u8]) -> bool;
}

impl Runs for X86_64 {
    unsafe fn fregs(
        saved: Saved,
        func: FuncAddr,
        sp: usize,
        ret: usize,
        task: *const TaskTrace,
    ) -> Self::Regs {
        // SAFETY: the caller's stack has a word at `sp`.
        unsafe { core::ptr::with_exposed_provenance_mut::<usize>(sp).write(ret) };
        // SAFETY: the caller's stack and task last.
        unsafe { x86_64::regs::FtraceRegs::from_raw(saved, func.get() + 5, sp, task) }
    }

    fn traps(there: &[u8]) -> bool {
        there[0] == 0xcc
    }
}

impl Runs for Arm64 {
    unsafe fn fregs(
        saved: Saved,
        func: FuncAddr,
        sp: usize,
        ret: usize,
        task: *const TaskTrace,
    ) -> Self::Regs {
        // SAFETY: the caller's stack and task last.
        let mut fregs = unsafe { arm64::regs::FtraceRegs::from_raw(saved, func.get() + 8, sp, task) };
        fregs.lr = ret;
        fregs
    }

    fn traps(_there: &[u8]) -> bool {
        false
    }
}

/// Someone was told of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::engine) enum What {
    /// A user of entries, of an entry.
    Entry,
    /// A graph user, of an entry.
    GraphEntry,
    /// A graph user, of a return.
    Return,
}

/// What, which user by its number, and of which function.
pub(in crate::engine) type Told = (What, usize, usize);

thread_local! {
    static TOLD: RefCell<Vec<Told>> = const { RefCell::new(Vec::new()) };
}

fn tell(what: What, number: usize, func: FuncAddr) {
    TOLD.with_borrow_mut(|told| told.push((what, number, func.get())));
}

/// What was told since this was asked last.
pub(in crate::engine) fn told() -> Vec<Told> {
    TOLD.take()
}

/// A user of entries that writes down what it is told.
pub(in crate::engine) fn ops<T: Runs>(
    number: usize,
    flags: OpsFlags,
    filter: Filter,
) -> &'static Ops<T::Regs> {
    let note = |ip: FuncAddr, _: RetAddr, ops: &Ops<T::Regs>, fregs: &mut T::Regs| {
        assert!(!ops.needs_regs() || fregs.saved() == Saved::Regs, "called without the registers it needs");
        assert!(kernel::with(|kernel| kernel.preempt_off) > 0, "preemption is off while a callback runs");
        tell(What::Entry, ops.private(), ip);
    };
    keep(Ops::new(note, flags, filter).with_private(number))
}

/// A user of the graph that does; [`Cpu::new`] gives its callbacks their work.
pub(in crate::engine) fn graph<T: Runs>(number: usize, filter: Filter) -> &'static GraphOps<T::Regs> {
    crate::graph::world::user(number, filter)
}

/// A call that is under way.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Call {
    pub(in crate::engine) func: usize,
    sp: usize,
    ret: usize,
    pub(in crate::engine) hooked: bool,
}

/// Words of a task's stack; a call takes two.
const WORDS: usize = 512;

/// A task, and the CPU that runs it.
pub(in crate::engine) struct Cpu<T: Runs> {
    engine: &'static Engine<Fake, T>,
    pub(in crate::engine) task: &'static TaskTrace,
    stack: usize,
    sp: Cell<usize>,
    calls: Cell<usize>,
}

impl<T: Runs> Cpu<T> {
    pub(in crate::engine) fn new(engine: &'static Engine<Fake, T>) -> Self {
        play::<T::Regs>(
            |call, ops| {
                tell(What::GraphEntry, ops.private(), call.func());
                Want::Return
            },
            |call, ops| tell(What::Return, ops.private(), call.func()),
        );
        TOLD.take();
        let task = keep(TaskTrace::new());
        task.give_stack(keep_all(vec![0; 2 * WORDS])).expect("enough words");
        let stack = keep_all(vec![0usize; WORDS]).as_mut_ptr().expose_provenance();
        Self { engine, task, stack, sp: Cell::new(WORDS - 2), calls: Cell::new(0) }
    }

    /// Which trampoline a core that comes through the site ends up in, if in any.
    pub(in crate::engine) fn trampoline(&self, image: &Image, function: &Function) -> Option<Saved> {
        let there = kernel::with(|kernel| kernel.at(function.site, T::SLED).to_vec());
        let is = |flavor| there == image.sled::<T>(function, flavor);
        let flavor = if there == function.sled {
            Flavor::Off
        } else if let Some(flavor) = [Flavor::Off, Flavor::Args, Flavor::Regs].into_iter().find(|f| is(*f)) {
            flavor
        } else {
            assert!(T::traps(&there), "{there:02x?} was not written by the engine");
            self.engine.target_of(SiteAddr::new(function.site)).expect("a site of the engine's").0
        };
        match flavor {
            Flavor::Off => None,
            Flavor::Args => Some(Saved::Args),
            Flavor::Regs => Some(Saved::Regs),
            Flavor::Direct => unreachable!("no user here has a trampoline of its own"),
        }
    }

    /// Calls a function.
    pub(in crate::engine) fn call(&self, image: &Image, function: &Function) -> Call {
        self.sp.set(self.sp.get() - 2);
        self.calls.set(self.calls.get() + 1);
        let sp = self.stack + self.sp.get() * size_of::<usize>();
        let ret = 0x70_0000 + 16 * self.calls.get();
        let mut call = Call { func: function.addr, sp, ret, hooked: false };
        if let Some(saved) = self.trampoline(image, function) {
            let (func, hooker) = (FuncAddr::new(function.addr), RetAddr::new(HOOKER));
            // SAFETY: a word of this task's stack.
            let mut fregs = unsafe { T::fregs(saved, func, sp, ret, self.task) };
            self.engine.entry(SiteAddr::new(function.site), func, &mut fregs, hooker);
            let goes_to = fregs.return_address().get();
            assert!(goes_to == ret || goes_to == HOOKER, "{goes_to:#x}");
            call.hooked = goes_to == HOOKER;
        }
        call
    }

    /// The newest call returns; it must get to where it was called from.
    pub(in crate::engine) fn finish(&self, call: Call) {
        assert_eq!(call.sp, self.stack + self.sp.get() * size_of::<usize>(), "not the newest call");
        if call.hooked {
            // SAFETY: the call's own word of the stack.
            let mut fregs = unsafe { T::Regs::ret(call.sp, 0, self.task) };
            // SAFETY: nothing runs with these registers.
            unsafe { self.engine.leave(&mut fregs) };
            assert_eq!(fregs.ip(), call.ret, "where the call returned to");
        }
        self.sp.set(self.sp.get() + 2);
    }

    /// Calls a function, and lets it return.
    pub(in crate::engine) fn run(&self, image: &Image, function: &Function) {
        self.finish(self.call(image, function));
    }

    /// Calls all traceable functions of an image, and tells who was told.
    pub(in crate::engine) fn run_all(&self, image: &Image) -> Vec<Told> {
        told();
        image.traceable().for_each(|function| self.run(image, function));
        told()
    }
}

/// The kernel's image, and modules' images behind it, in one text.
#[derive(Debug)]
pub(in crate::engine) struct Loadable {
    pub(in crate::engine) kernel: Image,
    pub(in crate::engine) modules: Vec<Image>,
}

impl Loadable {
    /// A kernel with about `sites` functions, and so many modules with at most `in_modules` each.
    pub(in crate::engine) fn new<T: Runs>(
        sites: usize,
        modules: usize,
        in_modules: usize,
        random: &mut Random,
    ) -> Self {
        let kernel = Image::new::<T>(sites, random);
        let mut end = kernel.text().end;
        let mut later = Vec::new();
        for _ in 0..modules {
            let mut image = Image::new::<T>(random.between(1, in_modules), random);
            let base = end.next_multiple_of(64) + 64;
            let by = base.wrapping_sub(image.base);
            image.base = base;
            image.notrace = image.notrace.start.wrapping_add(by)..image.notrace.end.wrapping_add(by);
            for function in &mut image.functions {
                function.addr = function.addr.wrapping_add(by);
                function.site = function.site.wrapping_add(by);
                function.entry = function.entry.wrapping_add(by);
            }
            image.trampolines = kernel.trampolines;
            end = image.text().end;
            later.push(image);
        }
        Self { kernel, modules: later }
    }

    /// The kernel, then the modules.
    pub(in crate::engine) fn images(&self) -> impl Iterator<Item = &Image> {
        core::iter::once(&self.kernel).chain(&self.modules)
    }

    /// The whole text, with each image as `of` gives it.
    pub(in crate::engine) fn text(&self, of: impl Fn(usize, &Image) -> Vec<u8>) -> Vec<u8> {
        let mut text = Vec::new();
        for (index, image) in self.images().enumerate() {
            text.resize(image.base - self.kernel.base, 0xee);
            text.extend(of(index, image));
        }
        text
    }

    /// Makes this thread's kernel run the kernel, with the modules' bytes behind it.
    pub(in crate::engine) fn start<T: Runs>(&self) -> &'static Engine<Fake, T> {
        let of = |image: &Image| -> Vec<_> {
            image.traceable().map(|function| function.site..function.site + T::SLED).collect()
        };
        let sleds = self.images().flat_map(of).collect();
        kernel::boot(self.kernel.base, self.text(|_, image| image.bytes.clone()), sleds);
        let engine = new_engine::<T>();
        let source = self.kernel.source(self.kernel.entries(), self.kernel.functions.len());
        init(engine, source, self.kernel.trampolines).expect("a good image");
        engine
    }
}

/// Loads a module: its bytes as the compiler left them, then its sites.
pub(in crate::engine) fn load<T: Runs>(
    engine: &Engine<Fake, T>,
    image: &Image,
) -> Result<(ModuleId, SiteReport), Error> {
    kernel::poke(image.base, &image.bytes);
    add(engine, image)
}

/// Adds a module's sites, with the bytes as they are.
pub(in crate::engine) fn add<T: Runs>(
    engine: &Engine<Fake, T>,
    image: &Image,
) -> Result<(ModuleId, SiteReport), Error> {
    // SAFETY: nothing executes this text, and its memory stays.
    unsafe { engine.add_module(image.source(image.entries(), image.functions.len())) }
}
