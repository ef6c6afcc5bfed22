//! Users that are registered for as long as a value lives.

use fgraph::{
    FgraphOps, Filter, FtraceOps, FtraceRegs, FuncAddr, GraphEntryFunc, GraphReturnFunc, OpsFlags, OpsFunc,
};

use crate::log;
use crate::process::Thread;

/// The address of a function, as the tracer names it.
macro_rules! addr {
    ($func:expr) => {
        ::fgraph::FuncAddr::new($func as *const () as usize)
    };
}
pub(crate) use addr;

/// Exactly these functions.
pub fn only(funcs: &[FuncAddr]) -> Filter {
    let mut funcs = funcs.to_vec();
    funcs.sort_unstable();
    funcs.dedup();
    Filter::only(Box::leak(funcs.into_boxed_slice()))
}

/// A user of entries, that is never freed.
pub fn new_op(func: OpsFunc<FtraceRegs>, flags: OpsFlags, filter: Filter) -> &'static FtraceOps {
    Box::leak(Box::new(FtraceOps::new(func, flags, filter)))
}

/// A graph user, that is never freed.
pub fn new_graph(
    entry: GraphEntryFunc<FtraceRegs>,
    ret: GraphReturnFunc<FtraceRegs>,
    filter: Filter,
) -> &'static FgraphOps {
    Box::leak(Box::new(FgraphOps::new(entry, ret, filter)))
}

/// A registered user, which goes when this is dropped.
pub enum User {
    /// Of entries.
    Op(&'static FtraceOps),
    /// Of the graph.
    Graph(&'static FgraphOps),
}

impl User {
    /// Registers a user of entries.
    pub fn op(func: OpsFunc<FtraceRegs>, flags: OpsFlags, filter: Filter) -> Self {
        let op = new_op(func, flags, filter);
        fgraph::register_ftrace_function(op).expect("a new user can be registered");
        Self::Op(op)
    }

    /// Registers a graph user.
    pub fn graph(
        entry: GraphEntryFunc<FtraceRegs>,
        ret: GraphReturnFunc<FtraceRegs>,
        filter: Filter,
    ) -> Self {
        let graph = new_graph(entry, ret, filter);
        fgraph::register_ftrace_graph(graph).expect("a new user can be registered");
        Self::Graph(graph)
    }

    /// Registers a graph user that notes every entry and return.
    pub fn noting(filter: Filter) -> Self {
        Self::graph(log::entry, log::ret, filter)
    }

    /// Registers the function_graph tracer.
    pub fn tracing(filter: Filter) -> Self {
        let graph = Box::leak(Box::new(fgraph::tracer::function_graph(filter)));
        fgraph::register_ftrace_graph(graph).expect("a new user can be registered");
        Self::Graph(graph)
    }

    /// Registers a graph user that wants no return.
    pub fn uninterested(filter: Filter) -> Self {
        Self::graph(log::no_entry, log::count_return, filter)
    }

    /// Registers a graph user that counts entries and returns.
    pub fn counting(filter: Filter) -> Self {
        Self::graph(log::count_entry, log::count_return, filter)
    }
}

impl Drop for User {
    fn drop(&mut self) {
        match self {
            Self::Op(op) => fgraph::unregister_ftrace_function(op),
            Self::Graph(graph) => fgraph::unregister_ftrace_graph(graph),
        }
        .expect("a registered user can be taken out");
    }
}

/// The calling thread has nothing under way: every hooked call returned, every hold was given back.
pub fn assert_settled(thread: &Thread) {
    let stats = thread.trace.stats();
    assert_eq!(stats.calls, stats.returns + stats.abandoned, "{stats:?}");
    assert_eq!((stats.depth, thread.trace.frames().count()), (0, 0), "{stats:?}");
    assert_eq!(thread.holds(), 0, "holds of preemption");
}
