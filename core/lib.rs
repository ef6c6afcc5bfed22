//! A kernel-style function-graph tracer: `ftrace_ops` dispatch, a per-task shadow stack of return addresses, and
//! trampolines for arm64 and x86_64 that catch a function's entry and its return with its return registers.
//!
//! # How it is used
//! 1. Build the kernel with `-Zpatchable-function-entry=5` (x86_64) or `=2` (arm64), and include the linker fragments of
//!    [`linker`] in its linker script.
//! 2. Implement [`Platform`] and bind it with [`bind_platform!`].
//! 3. Keep a [`TaskTrace`] beside each task, with a shadow stack given by [`TaskTrace::give_stack`].
//! 4. Call [`init`] once with the linker's site table, then register users: [`FtraceOps`] for entries, [`FgraphOps`] for entries and
//!    returns.
//!
//! Nothing is allocated. `README.md` has a whole example, `DESIGN.md` the reasons.
#![no_std]
#![cfg_attr(test, expect(clippy::unwrap_used, reason = "tests"))]

#[cfg(test)]
extern crate std;
#[cfg(test)]
#[macro_use]
extern crate alloc;

#[cfg(not(target_pointer_width = "64"))]
compile_error!("fgraph keeps addresses in 64-bit words");

mod addr;
#[path = "../arch/mod.rs"]
mod arch;
mod ascending;
mod bits;
pub mod btf;
mod engine;
mod filter;
pub mod filter_text;
mod fprobe;
mod frame;
mod graph;
mod limits;
pub mod linker;
pub mod machine;
pub mod names;
mod ops;
mod owner;
pub mod pattern;
mod platform;
mod profile;
mod quiesce;
mod recursion;
mod regs;
pub mod ring;
pub mod select;
mod shadow;
mod site;
mod sites;
mod straight;
#[cfg(feature = "symbols")]
pub mod symbols;
mod sync;
mod task;
#[cfg(test)]
mod testing;
pub mod text;
pub mod trace;
pub mod tracefs;
pub mod unwind;
mod users;
pub mod values;
pub mod wire;
pub mod words;

pub use addr::{FuncAddr, RetAddr, SiteAddr, StackKey};
pub use arch::{FtraceRegs, arm64, x86_64};
pub use engine::{Engine, Error, FunctionInfo, LoadedModule, SetChange, Stats, WhichSet};
pub use filter::{Filter, FuncSet};
pub use fprobe::{
    Arm, Fprobe, FprobeEntryFunc, FprobeError, FprobeExitFunc, FprobeHit, Fprobes, MAX_FPROBE_WORDS,
    MAX_FPROBES,
};
pub use graph::{
    AbandonedCall, EntryCall, GraphAbandonedFunc, GraphEntryFunc, GraphOps, GraphReturnFunc, ReturnCall, Want,
};
pub use limits::{Admitted, Finished, LIMIT_WORDS, LimitOptions, Limits, PidSet};
pub use machine::{Hooking, Layouts, Pair, Trampolines};
pub use ops::{Ops, OpsFlags, OpsFunc};
pub use platform::{
    Context, CpuWords, CurrentTask, Fatal, Platform, ReadFault, TaskRegister, TextWriteError,
};
pub use profile::{
    PROFILE_WORDS, ProfileError, ProfileRow, Profiler, write_profile, write_profile_head, write_profile_row,
};
pub use quiesce::MAX_CPUS;
pub use regs::{Regs, Saved};
pub use shadow::{FrameView, MAX_DATA_WORDS, StackError, Walk};
pub use site::{Flavor, SiteError, SiteReport, SiteSource};
pub use sites::ModuleId;
pub use task::{TaskStats, TaskTrace};
pub use users::MAX_USERS;

#[cfg(all(feature = "trampolines", target_arch = "x86_64"))]
pub use arch::live::{TrapResume, breakpoint};
#[cfg(feature = "selftest")]
pub use arch::selftest;
#[cfg(feature = "trampolines")]
pub use arch::tracefs::{LiveFunctions, LiveInstance, LiveRecorder};
#[cfg(feature = "trampolines")]
pub use arch::tracer::{self, MAX_INSTANCES};

#[cfg(all(feature = "trampolines", feature = "symbols"))]
pub use arch::live::set_symbols;
#[cfg(feature = "trampolines")]
pub use arch::live::{
    StackWalk, add_module, add_named_module, fgraph_read_filter_words, fgraph_set_filter,
    fgraph_set_filter_words, fgraph_show_filter_words, ftrace_graph_func, ftrace_kill, ftrace_location,
    ftrace_modify_direct, ftrace_read_filter_words, ftrace_resume_address, ftrace_set_enabled,
    ftrace_set_filter, ftrace_set_filter_words, ftrace_show_filter_words, ftrace_synchronize,
    ftrace_text_reserved, functions, functions_of_words, hooks, init, is_dead, read_list, register_fprobe,
    register_ftrace_function, register_ftrace_graph, remove_module, ret_addr, show_list, stack_walk, stats,
    trampoline_range, unregister_fprobe, unregister_ftrace_function, unregister_ftrace_graph,
    word_candidates,
};

/// A user of function entries, on this machine.
pub type FtraceOps = Ops<FtraceRegs>;

/// A probe of functions, on this machine.
pub type FtraceFprobe = Fprobe<FtraceRegs>;

/// A user of the function graph, on this machine.
pub type FgraphOps = GraphOps<FtraceRegs>;

/// For the expansion of this crate's macros.
#[doc(hidden)]
pub mod __private {
    pub use crate::arch::{check_words, cpu_words, register_fits};
}
