//! A Linux process as fgraph's [`Platform`]. Every thread counts as a CPU of its own that runs one task, its
//! [`Thread`]; a signal handler counts as an interrupt, once it has said so.
//!
//! Invariant: the word at [`machine::CURRENT`] is null or leads to the [`Thread`] that was made for this very thread,
//! and is never freed. All that the impl runs is outside tracing.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering::Relaxed};

use fgraph::{
    Context, CpuWords, CurrentTask, Fatal, Layouts, Platform, ReadFault, SiteReport, SiteSource, TaskTrace,
    TextWriteError,
};

use crate::machine;
use crate::signals::Timer;

/// In a thread's counts: no switch of tasks is due.
const NO_SWITCH_DUE: u32 = 1 << 31;

/// A thread that can be traced.
#[repr(C)]
pub struct Thread {
    /// First, so that the pointer to it is one to the thread.
    pub trace: TaskTrace,
    /// This, for where a register leads to the thread.
    pub(crate) current: AtomicPtr<Self>,
    context: AtomicU8,
    /// What [`fgraph::CpuWords::preempt_count`] says: holds of preemption, and contexts.
    pub(crate) counts: AtomicU32,
    pub(crate) id: u32,
    /// Switches of tasks that were asked for and made: nothing is switched to.
    switches: AtomicU32,
    /// What interrupts it.
    pub timers: [Timer; 2],
}

impl Thread {
    /// Makes the calling thread one that is traced, with a shadow stack of so many words (0 for none).
    pub fn enter(shadow_words: usize) -> &'static Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let thread: &'static Self = Box::leak(Box::new(Self {
            trace: TaskTrace::new(),
            current: AtomicPtr::new(std::ptr::null_mut()),
            context: AtomicU8::new(Context::Task as u8),
            counts: AtomicU32::new(NO_SWITCH_DUE),
            switches: AtomicU32::new(0),
            id: NEXT.fetch_add(1, Relaxed),
            timers: Timer::pair(),
        }));
        if shadow_words != 0 {
            let words = Box::leak(vec![0xdead_usize; shadow_words].into_boxed_slice());
            thread.trace.give_stack(words).expect("a new block takes a stack");
        }
        assert!((thread.id as usize) < fgraph::MAX_CPUS, "a CPU for each thread");
        thread.current.store(std::ptr::from_ref(thread).cast_mut(), Relaxed);
        machine::set_current(thread);
        thread
    }

    /// The calling thread; `None` if it is not traced.
    #[inline(always)]
    pub fn current() -> Option<&'static Self> {
        // SAFETY: null, or from `enter`, which made it for this thread and for ever.
        unsafe { machine::current().as_ref() }
    }

    /// Runs `body` as an interrupt of this context: what a signal handler does first.
    #[inline(always)]
    pub fn interrupted(&self, context: Context, body: impl FnOnce()) {
        let one = match context {
            Context::Task => 0,
            Context::SoftIrq => 1 << 8,
            Context::Irq => 1 << 16,
            Context::Nmi => 1 << 20,
        };
        let outer = self.context.swap(context as u8, Relaxed);
        self.counts.fetch_add(one, Relaxed);
        body();
        self.counts.fetch_sub(one, Relaxed);
        self.context.store(outer, Relaxed);
    }

    /// Preemption holds that have not been given back.
    pub fn holds(&self) -> u32 {
        self.counts.load(Relaxed) & 0xff
    }

    /// Asks for a switch of tasks at the end of the last hold.
    pub fn ask_for_switch(&self) {
        self.counts.fetch_and(!NO_SWITCH_DUE, Relaxed);
    }

    /// How many were made.
    pub fn switches(&self) -> u32 {
        self.switches.load(Relaxed)
    }

    #[inline(always)]
    fn context(&self) -> Context {
        match self.context.load(Relaxed) {
            0 => Context::Task,
            1 => Context::SoftIrq,
            2 => Context::Irq,
            _ => Context::Nmi,
        }
    }
}

/// This process.
pub struct Process;

fgraph::bind_platform!(Process);

// SAFETY:
// 1. `CURRENT`: the word is the thread's own, null or what `Thread::enter` made for this thread and for ever.
// 2. `context`: handlers of signals are outside tracing and say which context they are before they call anything traced.
// 3. A thread is its own CPU.
// 4. `write_text` writes the bytes it was given, after checking that they are text.
// 5. `WORDS` are the thread's own, which `preempt_disable`, `interrupted` and `enter` write as told there.
unsafe impl Platform for Process {
    const CURRENT: CurrentTask = machine::CURRENT;
    const WORDS: Option<CpuWords> = machine::WORDS;

    #[inline(always)]
    fn context() -> Context {
        let hook = CONTEXT_HOOK.load(Relaxed);
        if !hook.is_null() {
            call(hook);
        }
        Thread::current().map_or(Context::Task, Thread::context)
    }

    #[inline(always)]
    fn cpu_id() -> usize {
        Thread::current().map_or(0, |thread| thread.id as usize)
    }

    #[inline(always)]
    fn clock_ns() -> u64 {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `now` can be written.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }

    /// So that the tracer alone takes the straight path.
    #[inline(always)]
    fn counts_time() -> bool {
        true
    }

    #[inline(always)]
    fn task_id() -> u32 {
        Thread::current().map_or(0, |thread| thread.id)
    }

    #[inline(always)]
    fn preempt_disable() {
        if let Some(thread) = Thread::current() {
            // Signals leave it as they find it.
            thread.counts.store(thread.counts.load(Relaxed) + 1, Relaxed);
        }
    }

    #[inline(always)]
    fn preempt_enable() {
        let Some(thread) = Thread::current() else { return };
        let counts = thread.counts.load(Relaxed) - 1;
        thread.counts.store(counts, Relaxed);
        // It was the last hold, and a switch is due.
        if counts == 0 {
            thread.counts.store(NO_SWITCH_DUE, Relaxed);
            thread.switches.fetch_add(1, Relaxed);
        }
    }

    #[unsafe(link_section = ".text.notrace")]
    unsafe fn write_text(addr: usize, bytes: &[u8]) -> Result<(), TextWriteError> {
        let text = text();
        let end = addr.checked_add(bytes.len());
        if addr < text.start || end.is_none_or(|end| end > text.end) || FAIL_WRITES.load(Relaxed) {
            return Err(TextWriteError { addr, len: bytes.len() });
        }
        // SAFETY: `open_text` made all of the text writable.
        unsafe { store(addr, bytes) };
        Ok(())
    }

    #[unsafe(link_section = ".text.notrace")]
    fn sync_cores() {
        if SYNC_WORKS.load(Relaxed) {
            let done = membarrier(MEMBARRIER_SYNC_CORE);
            assert!(done, "membarrier(2), which was registered for, failed");
        }
        let hook = SYNC_HOOK.load(Relaxed);
        if !hook.is_null() {
            call(hook);
        }
    }

    #[unsafe(link_section = ".text.notrace")]
    fn read(addr: usize, bytes: &mut [u8]) -> Result<(), ReadFault> {
        read_by_system(addr, bytes).ok_or(ReadFault { addr })
    }

    #[unsafe(link_section = ".text.notrace")]
    fn fatal(why: Fatal) -> ! {
        eprintln!("the tracer cannot go on: {why}");
        std::process::abort()
    }
}

/// What a case wants called whenever the tracer synchronises cores, that is between the steps of patching; null for nothing.
/// A [`fn()`], kept as a pointer.
pub static SYNC_HOOK: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// What a case wants called whenever the tracer asks for the context. A [`fn()`], kept as a pointer.
pub static CONTEXT_HOOK: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// Whether text cannot be written.
pub static FAIL_WRITES: AtomicBool = AtomicBool::new(false);

/// Whether [`Platform::sync_cores`] synchronises other threads: without it only one thread may run traced code while
/// text changes.
pub static SYNC_WORKS: AtomicBool = AtomicBool::new(false);

/// Sets one of the hooks.
pub fn set_hook(hook: &AtomicPtr<()>, to: Option<fn()>) {
    hook.store(to.map_or(std::ptr::null_mut(), |to| to as *mut ()), Relaxed);
}

#[inline(always)]
fn call(hook: *mut ()) {
    // SAFETY: hooks are set by `set_hook` only, from a `fn()`.
    let hook: fn() = unsafe { std::mem::transmute(hook) };
    hook();
}

/// The text of this program, what must not be traced being first.
pub fn text() -> Range<usize> {
    unsafe extern "C" {
        static __fgraph_text_start: u8;
        static etext: u8;
    }
    (&raw const __fgraph_text_start).addr()..(&raw const etext).addr()
}

/// The part of it that must not be traced.
pub fn notrace_end() -> usize {
    unsafe extern "C" {
        static __fgraph_text_stop: u8;
    }
    (&raw const __fgraph_text_stop).addr()
}

/// Writes text, whoever may be running it: a word that can be stored in one piece is.
///
/// # Safety
/// The bytes are text, and [`open_text`] has been called.
#[unsafe(link_section = ".text.notrace")]
unsafe fn store(addr: usize, bytes: &[u8]) {
    let to = std::ptr::with_exposed_provenance_mut::<u8>(addr);
    match *bytes {
        [a, b, c, d] if addr.is_multiple_of(4) => {
            // SAFETY: text that is writable, by the caller; aligned.
            unsafe { to.cast::<u32>().write_volatile(u32::from_le_bytes([a, b, c, d])) };
        }
        _ => {
            for (i, byte) in bytes.iter().enumerate() {
                // SAFETY: as above; `i` is within the bytes.
                unsafe { to.add(i).write_volatile(*byte) };
            }
        }
    }
}

/// Changes text behind the tracer's back.
///
/// # Safety
/// Nobody runs it, or it can be run whichever part of it has been changed.
pub unsafe fn overwrite(addr: usize, bytes: &[u8]) {
    // SAFETY: the cases start with their text open; the rest is the caller's.
    unsafe { store(addr, bytes) };
    machine::flush(addr, bytes.len());
}

/// Makes the text writable, for ever and while it runs. A kernel writes through an alias; here the pages themselves are
/// opened once, so that no later system call hides from a core that its instructions have changed.
pub fn open_text() {
    // SAFETY: asks for a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let text = text();
    let start = text.start & !(page - 1);
    let len = text.end.next_multiple_of(page) - start;
    let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    // SAFETY: whole pages of this program's text get one more right.
    let done = unsafe { libc::mprotect(std::ptr::with_exposed_provenance_mut(start), len, all) };
    assert_eq!(done, 0, "text cannot be made writable: {}", std::io::Error::last_os_error());
}

/// Reads memory that may not be there: the kernel takes the fault, on the way into a pipe.
#[unsafe(link_section = ".text.notrace")]
fn read_by_system(addr: usize, bytes: &mut [u8]) -> Option<()> {
    let mut pipe = [0; 2];
    // SAFETY: `pipe` can be written.
    if unsafe { libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } != 0 {
        return None;
    }
    let from = std::ptr::with_exposed_provenance(addr);
    // SAFETY: a bad address is an error of the system call. The pipe was just opened.
    let written = unsafe { libc::write(pipe[1], from, bytes.len()) };
    // SAFETY: `bytes` can be written.
    let read = unsafe { libc::read(pipe[0], bytes.as_mut_ptr().cast(), bytes.len()) };
    for end in pipe {
        // SAFETY: opened above, and nobody else knows of it.
        unsafe { libc::close(end) };
    }
    (written == read && usize::try_from(read) == Ok(bytes.len())).then_some(())
}

/// membarrier(2): MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE.
const MEMBARRIER_SYNC_CORE: libc::c_int = 1 << 5;
/// membarrier(2): MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE.
const MEMBARRIER_REGISTER_SYNC_CORE: libc::c_int = 1 << 6;

#[unsafe(link_section = ".text.notrace")]
fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: a barrier changes nothing.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// The bytes of this program's text.
pub fn snapshot() -> Vec<u8> {
    let text = text();
    let mut bytes = vec![0; text.len()];
    for (i, byte) in bytes.iter_mut().enumerate() {
        // SAFETY: text can be read.
        *byte = unsafe { std::ptr::with_exposed_provenance::<u8>(text.start + i).read_volatile() };
    }
    bytes
}

/// The bytes of a sled.
pub fn text_at(addr: usize) -> [u8; machine::SLED] {
    let at = addr - text().start;
    snapshot()[at..][..machine::SLED].try_into().expect("as many as it has")
}

/// How many times traps were ours.
pub static TRAPS: AtomicUsize = AtomicUsize::new(0);

/// Makes a process that can be traced, all but [`init`]; the calling thread gets a shadow stack of a usual size.
pub fn prepare() {
    open_text();
    SYNC_WORKS.store(membarrier(MEMBARRIER_REGISTER_SYNC_CORE), Relaxed);
    machine::catch_traps();
    Thread::enter(USUAL_STACK);
}

/// Words of a shadow stack that no case fills by accident.
pub const USUAL_STACK: usize = 4096;

/// What compilers were told to leave, and assembly does.
const LAYOUTS: Layouts = if cfg!(prefixed_sites) { Layouts::Prefixed } else { Layouts::Plain };

/// Lets the tracer take over this program's sites.
///
/// # Errors
/// The tracer's.
pub fn init() -> Result<SiteReport, fgraph::Error> {
    // SAFETY: the program was linked with the fragments (`live.ld`), and every case, a process of its own, is the only
    // caller.
    let source = unsafe { fgraph::linker::site_source(text()) };
    let source = SiteSource { layouts: LAYOUTS, ..source };
    // SAFETY: the source describes this program; no other thread has been started yet.
    unsafe { fgraph::init(source) }
}

/// The functions that can be traced.
pub fn functions() -> Vec<fgraph::FuncAddr> {
    let mut functions = Vec::new();
    fgraph::functions(|info| functions.push(info.func));
    functions
}
