//! The one engine of an image: bound to the embedder's platform and to this machine. What an embedder calls is here.

use core::fmt;
use core::ops::Range;

use crate::addr::{FuncAddr, RetAddr, SiteAddr};
use crate::arch::{FtraceRegs, tramp};
use crate::engine::{Engine, Error, FunctionInfo, LoadedModule, SetChange, Stats, WhichSet};
use crate::filter_text::ParseError;
use crate::fprobe::{Fprobe, FprobeError, Fprobes};
use crate::graph::GraphOps;
use crate::ops::Ops;
use crate::platform::{Context, CurrentTask, Fatal, Platform, ReadFault, TaskRegister, TextWriteError};
use crate::select::Candidate;
use crate::site::{SiteReport, SiteSource};
use crate::sites::ModuleId;
use crate::task::TaskTrace;
use crate::unwind::{Cursor, Hooks, Inspect, Keys, Start, Translated, Unwinder};
use crate::words::{List, Mode, ModuleNames, Place, WordError};

unsafe extern "Rust" {
    // What `bind_platform!` defines.
    safe fn __fgraph_context() -> Context;
    safe fn __fgraph_cpu_id() -> usize;
    safe fn __fgraph_clock_ns() -> u64;
    safe fn __fgraph_counts_time() -> bool;
    safe fn __fgraph_has_words() -> bool;
    safe fn __fgraph_counts_of_ns(ns: u64) -> Option<u64>;
    safe fn __fgraph_task_id() -> u32;
    safe fn __fgraph_preempt_disable();
    safe fn __fgraph_preempt_enable();
    fn __fgraph_write_text(addr: usize, bytes: &[u8]) -> Result<(), TextWriteError>;
    safe fn __fgraph_sync_cores();
    safe fn __fgraph_read(addr: usize, bytes: &mut [u8]) -> Result<(), ReadFault>;
    safe fn __fgraph_fatal(why: Fatal) -> !;
}

/// The platform that was bound, by its symbols. Not generic, so all traced-path code is compiled here.
#[derive(Debug)]
pub(crate) enum Bound {}

// SAFETY: every function is the one of the bound platform, whose implementor made these promises.
unsafe impl Platform for Bound {
    /// Not asked here: the binding gave it to the linker.
    const CURRENT: CurrentTask = CurrentTask { register: TaskRegister::Gs, offset: 0 };

    #[inline(always)]
    fn context() -> Context {
        __fgraph_context()
    }
    #[inline(always)]
    fn cpu_id() -> usize {
        __fgraph_cpu_id()
    }
    #[inline(always)]
    fn clock_ns() -> u64 {
        __fgraph_clock_ns()
    }
    #[inline(always)]
    fn counts_time() -> bool {
        __fgraph_counts_time()
    }
    fn has_words() -> bool {
        __fgraph_has_words()
    }
    fn counts_of_ns(ns: u64) -> Option<u64> {
        __fgraph_counts_of_ns(ns)
    }
    #[inline(always)]
    fn task_id() -> u32 {
        __fgraph_task_id()
    }
    #[inline(always)]
    fn preempt_disable() {
        __fgraph_preempt_disable();
    }
    #[inline(always)]
    fn preempt_enable() {
        __fgraph_preempt_enable();
    }
    unsafe fn write_text(addr: usize, bytes: &[u8]) -> Result<(), TextWriteError> {
        // SAFETY: the caller keeps the trait's contract.
        unsafe { __fgraph_write_text(addr, bytes) }?;
        tramp::flush(addr, bytes.len());
        Ok(())
    }
    fn sync_cores() {
        __fgraph_sync_cores();
    }
    fn read(addr: usize, bytes: &mut [u8]) -> Result<(), ReadFault> {
        __fgraph_read(addr, bytes)
    }
    #[cold]
    fn fatal(why: Fatal) -> ! {
        __fgraph_fatal(why)
    }
}

pub(crate) static ENGINE: Engine<Bound, tramp::Live> = Engine::new();

/// The graph as an `ftrace_ops` callback, for a kernel whose own ftrace delivers the entries: asks the graph users about this
/// call, and if one wants its return, replaces the return address in `fregs` by the return hooker. (This crate's own trampolines come
/// the same way, without the detour through a callback.)
pub fn ftrace_graph_func(ip: FuncAddr, _parent_ip: RetAddr, _ops: &Ops<FtraceRegs>, fregs: &mut FtraceRegs) {
    ENGINE.graph_entry(ip, fregs, tramp::return_hooker());
}

/// Takes over the image's sites, checks every one of them, and prepares their text. Once, at start.
///
/// # Errors
/// [`Error::Sites`] says what is wrong with the table or with a site; nothing was written to any text then, and tracing stays off
/// for good, as it does when the platform fails to write ([`Error::Write`]). [`Error::AlreadyInitialised`].
///
/// # Safety
/// 1. `source` describes this image: `entries` are its site table, `text` its text.
/// 2. No task is preempted inside a traceable function's first instructions, and no other CPU runs one. Best before tasks
///    and other CPUs are started.
pub unsafe fn init(source: SiteSource) -> Result<SiteReport, Error> {
    // SAFETY: 1. and 2. are the caller's; the trampolines are this crate's.
    unsafe { ENGINE.init(source, tramp::trampolines()) }
}

/// Registers a user of function entries, and patches the functions it wants. Task context; may wait for another CPU that does
/// the like.
///
/// # Errors
/// Nothing is changed, except that after [`Error::Surprise`] and [`Error::Write`] tracing has stopped for good.
pub fn register_ftrace_function(ops: &'static Ops<FtraceRegs>) -> Result<(), Error> {
    ENGINE.register_ops(ops)
}

/// Takes a user of function entries out again. When this returns, no callback of it is under way on any CPU, and none will
/// come. Not from a callback.
///
/// # Errors
/// [`Error::NotRegistered`]; and as for registering, but the user is out even so.
pub fn unregister_ftrace_function(ops: &'static Ops<FtraceRegs>) -> Result<(), Error> {
    ENGINE.unregister_ops(ops)
}

/// Registers a graph user. Tasks that have a shadow stack show up from now on.
///
/// # Errors
/// As for [`register_ftrace_function`].
pub fn register_ftrace_graph(ops: &'static GraphOps<FtraceRegs>) -> Result<(), Error> {
    ENGINE.register_graph(ops)
}

/// Takes a graph user out again. Calls that are under way still return through the return hooker, which must stay mapped as long
/// as any task has frames; their returns are not told any more.
///
/// # Errors
/// As for [`unregister_ftrace_function`].
pub fn unregister_ftrace_graph(ops: &'static GraphOps<FtraceRegs>) -> Result<(), Error> {
    ENGINE.unregister_graph(ops)
}

/// Returns when no callback is under way that began before: what callbacks could use until now, such as a set that
/// [`Limits`](crate::Limits) had, can be reused then. Task context, not from a callback.
pub fn ftrace_synchronize() {
    ENGINE.synchronize();
}

/// The probes of this image.
static FPROBES: Fprobes<FtraceRegs> = Fprobes::new();

/// Registers a probe: see [`Fprobes::register`].
///
/// # Errors
/// See there.
pub fn register_fprobe(probe: &'static Fprobe<FtraceRegs>) -> Result<(), FprobeError> {
    FPROBES.register(&ENGINE, probe)
}

/// Takes a probe out: see [`Fprobes::unregister`].
///
/// # Errors
/// See there.
pub fn unregister_fprobe(probe: &'static Fprobe<FtraceRegs>) -> Result<(), FprobeError> {
    FPROBES.unregister(&ENGINE, probe)
}

/// Stops tracing for good, from any context: no callback is called any more, hooked calls still return. For a kernel that
/// is about to panic.
pub fn ftrace_kill() {
    ENGINE.stop();
}

/// Whether tracing has stopped for good.
pub fn is_dead() -> bool {
    ENGINE.is_stopped()
}

/// Figures about the sites.
pub fn stats() -> Stats {
    ENGINE.stats()
}

/// The functions that can be traced, and what is known of them (`available_filter_functions`, `enabled_functions`,
/// `touched_functions`).
pub fn functions(each: impl FnMut(FunctionInfo)) {
    ENGINE.functions(each);
}

/// The function whose entry or site is exactly `addr`, and its site.
pub fn ftrace_location(addr: usize) -> Option<(FuncAddr, SiteAddr)> {
    ENGINE.location(addr)
}

/// Whether any patchable site overlaps `range`.
pub fn ftrace_text_reserved(range: Range<usize>) -> bool {
    ENGINE.text_reserved(range)
}

/// Changes which functions a user of entries wants. A user that is not registered yet keeps a slot until it is unregistered.
///
/// # Errors
/// The sets are as they were; see [`Error`].
pub fn ftrace_set_filter(
    ops: &'static Ops<FtraceRegs>,
    which: WhichSet,
    change: SetChange<'_>,
) -> Result<(), Error> {
    ENGINE.change_ops(ops, which, change)
}

/// Lets the functions of a user with a trampoline of its own ([`Ops::direct`]) go on elsewhere (`modify_ftrace_direct`). Each call
/// goes to the one or to the other. A task may be inside the old one still: when none is, the tracer cannot know.
///
/// # Errors
/// [`Error::NotDirect`] and what goes wrong with the text.
///
/// # Safety
/// As for [`Ops::direct`].
pub unsafe fn ftrace_modify_direct(ops: &'static Ops<FtraceRegs>, target: usize) -> Result<(), Error> {
    // SAFETY: the caller's promise.
    unsafe { ENGINE.modify_direct(ops, target) }
}

/// Where a function goes on behind its sled: where a trampoline of [`Ops::direct`] continues with the function itself. `func` is
/// its entry or its site.
pub fn ftrace_resume_address(func: FuncAddr) -> Option<usize> {
    ENGINE.resume_address(func)
}

/// Changes which functions a graph user wants.
///
/// # Errors
/// As for [`ftrace_set_filter`].
pub fn fgraph_set_filter(
    ops: &'static GraphOps<FtraceRegs>,
    which: WhichSet,
    change: SetChange<'_>,
) -> Result<(), Error> {
    ENGINE.change_graph(ops, which, change)
}

/// Gives the kernel's functions their names, for words and lists: once, when the symbols are there. Until then words take functions
/// by wildcards and by index only.
#[cfg(feature = "symbols")]
pub fn set_symbols(symbols: crate::symbols::Symbols<'static>) {
    ENGINE.set_symbols(symbols);
}

/// Writes words to a set of a user of entries (`set_ftrace_filter`, `set_ftrace_notrace`), as
/// [`filter_text`](crate::filter_text) describes them, separated by blanks or newlines. All of them take effect together, in one store
/// for each function, or none does. A user that is not registered yet keeps a slot until it is unregistered. Task context; looks at
/// every function a few times for each word.
///
/// A lone `*` is everything, later modules included. `NAME:mod:MODULE` waits for a module that is not there, and takes its functions
/// whenever one of that name is added, until the word is taken back (`!NAME:mod:MODULE`, `!*:mod:MODULE`) or the set is replaced.
///
/// # Errors
/// The set is as it was; see [`WordError`]. After [`Error::Surprise`] and [`Error::Write`] tracing has stopped.
pub fn ftrace_set_filter_words(
    ops: &'static Ops<FtraceRegs>,
    which: WhichSet,
    text: &str,
    mode: Mode,
) -> Result<(), WordError> {
    ENGINE.write_ops_words(ops, which, text, mode)
}

/// The same for a graph user: the functions whose calls it is told of. (What is called inside some function, as
/// `set_graph_function` has it, [`Limits`](crate::Limits) say.)
///
/// # Errors
/// As for [`ftrace_set_filter_words`].
pub fn fgraph_set_filter_words(
    ops: &'static GraphOps<FtraceRegs>,
    which: WhichSet,
    text: &str,
    mode: Mode,
) -> Result<(), WordError> {
    ENGINE.write_graph_words(ops, which, text, mode)
}

/// Shows a set of a user of entries as words, one a line: writing them with [`Mode::Replace`] makes the same set. `out` is called under
/// the tracer's lock, and must not ask the tracer for anything.
///
/// # Errors
/// [`Error::NotRegistered`] if the user has no slot. What `out` refuses ends it early, and is the inner result.
pub fn ftrace_show_filter_words(
    ops: &'static Ops<FtraceRegs>,
    which: WhichSet,
    out: &mut dyn fmt::Write,
) -> Result<fmt::Result, Error> {
    ENGINE.show_ops_words(ops, which, out)
}

/// The same for a graph user.
///
/// # Errors
/// As for [`ftrace_show_filter_words`].
pub fn fgraph_show_filter_words(
    ops: &'static GraphOps<FtraceRegs>,
    which: WhichSet,
    out: &mut dyn fmt::Write,
) -> Result<fmt::Result, Error> {
    ENGINE.show_graph_words(ops, which, out)
}

/// Reads the next bytes of what [`ftrace_show_filter_words`] shows, and moves `place` on. How many; 0 at the end.
///
/// # Errors
/// [`Error::NotRegistered`].
pub fn ftrace_read_filter_words(
    ops: &'static Ops<FtraceRegs>,
    which: WhichSet,
    place: &mut Place,
    bytes: &mut [u8],
) -> Result<usize, Error> {
    ENGINE.read_ops_words(ops, which, place, bytes)
}

/// The same for a graph user.
///
/// # Errors
/// [`Error::NotRegistered`].
pub fn fgraph_read_filter_words(
    ops: &'static GraphOps<FtraceRegs>,
    which: WhichSet,
    place: &mut Place,
    bytes: &mut [u8],
) -> Result<usize, Error> {
    ENGINE.read_graph_words(ops, which, place, bytes)
}

/// Calls `each` with every function that a word may mean, numbered as `NAME#n` counts: what to choose from when a name was
/// ambiguous. Under the tracer's lock.
///
/// # Errors
/// What is wrong with the word.
pub fn word_candidates(word: &str, each: impl FnMut(Candidate<'_>)) -> Result<(), ParseError> {
    ENGINE.word_candidates(word, each)
}

/// The functions that words take now, in ascending order, each once: for a probe, whose functions are a list
/// ([`Fprobe`]). The words are those of [`ftrace_set_filter_words`], written to an empty set; but none can wait for a module. The
/// addresses stand at the start of `room`. Task context; takes the tracer's lock.
///
/// # Errors
/// What is wrong with a word; [`Cause::NoRoom`](crate::words::Cause::NoRoom) at the word that takes more than there is room for.
pub fn functions_of_words<'r>(text: &str, room: &'r mut [FuncAddr]) -> Result<&'r [FuncAddr], WordError> {
    ENGINE.functions_of_words(text, room)
}

/// Shows a list of functions (`available_filter_functions`, `enabled_functions`, ...). `out` is called under the tracer's lock, and
/// must not ask the tracer for anything.
///
/// # Errors
/// What `out` refuses ends it early.
pub fn show_list(list: List, out: &mut dyn fmt::Write) -> fmt::Result {
    ENGINE.show_list(list, out)
}

/// Reads the next bytes of a list, and moves `place` on. How many; 0 at the end.
pub fn read_list(list: List, place: &mut Place, bytes: &mut [u8]) -> usize {
    ENGINE.read_list(list, place, bytes)
}

/// Adds the sites of a module by name, and gives its functions to the sets whose words have waited for it, in the update that
/// patches it.
///
/// # Errors
/// As [`add_module`].
///
/// # Safety
/// As [`add_module`]; what `names` refers to stays as long as the text.
pub unsafe fn add_named_module(source: SiteSource, names: ModuleNames) -> Result<LoadedModule, Error> {
    // SAFETY: the caller's promise.
    unsafe { ENGINE.add_named_module(source, names) }
}

/// Adds the sites of code that was loaded at run time, before any of it runs.
///
/// # Errors
/// As [`init`]; [`Error::TooManyModules`]. Nothing here refers to the module's memory then. Its code may run all the same, but not
/// after [`Error::Write`]: some of its sites may lead to a trampoline, and their state words are the caller's again.
///
/// # Safety
/// As [`init`], for the module's text, which is as it was compiled: loaded anew if it was added before. The tables and the text stay
/// as they are until [`remove_module`] has returned.
pub unsafe fn add_module(source: SiteSource) -> Result<(ModuleId, SiteReport), Error> {
    // SAFETY: the caller's promise.
    unsafe { ENGINE.add_module(source) }
}

/// Takes the sites of a module out again; its code must not be running any more.
///
/// # Errors
/// [`Error::NoSuchModule`]; what goes wrong with the text, but the module is out even so.
pub fn remove_module(module: ModuleId) -> Result<(), Error> {
    ENGINE.remove_module(module)
}

/// The global switch (`ftrace_enabled`): off, no user is called and no site is patched. Users stay registered.
///
/// # Errors
/// [`Error::Permanent`] when a permanent user is registered.
pub fn ftrace_set_enabled(enabled: bool) -> Result<(), Error> {
    ENGINE.set_enabled(enabled)
}

/// The addresses that a hooked function's return address is replaced by, and of the code around them: a stack walker that finds the
/// return hooker's address asks [`ret_addr`] for the real one; [`stack_walk`] does all of it.
pub fn trampoline_range() -> Range<usize> {
    unsafe extern "C" {
        static fgraph_trampolines_start: u8;
        static fgraph_trampolines_stop: u8;
    }
    (&raw const fgraph_trampolines_start).addr()..(&raw const fgraph_trampolines_stop).addr()
}

/// A stack walk on this machine.
pub type StackWalk<'a, I> = Unwinder<'a, tramp::Live, I>;

/// Walks a task's stack, from `start` out; see [`Unwinder::new`]. `task` is the trace block of the task whose stack it is. Any
/// context; the task is the caller's, interrupted by the caller, or stopped.
pub fn stack_walk<'a, I: Inspect>(
    inspect: &'a I,
    task: Option<&'a TaskTrace>,
    stacks: &'a [Range<usize>],
    start: Start,
) -> StackWalk<'a, I> {
    Unwinder::new(inspect, hooks(), task, stacks, start)
}

/// For a kernel with a stack walker of its own (`ftrace_graph_ret_addr`): what a return address that it `found` really is; see
/// [`Cursor::ret_addr`].
pub fn ret_addr(cursor: &mut Cursor<'_>, found: RetAddr, keys: &Keys) -> Translated {
    cursor.ret_addr(tramp::return_hookers(), found, keys)
}

/// What a stack walker must know of the trampolines.
pub fn hooks() -> Hooks {
    unsafe extern "C" {
        static fgraph_jumped_start: u8;
        static fgraph_jumped_stop: u8;
    }
    let jumped = (&raw const fgraph_jumped_start).addr()..(&raw const fgraph_jumped_stop).addr();
    Hooks { hookers: tramp::return_hookers(), trampolines: trampoline_range(), jumped }
}

#[cfg(target_arch = "x86_64")]
pub use tramp::{TrapResume, breakpoint};
