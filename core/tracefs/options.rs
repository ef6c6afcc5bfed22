//! The options: what `trace_options` lists and what the files of `options/` switch.

/// An option of a trace, by the name that people type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceOption {
    /// A full buffer overwrites its oldest records; off, it refuses new ones (`overwrite`).
    Overwrite,
    /// Texts can be written to `trace_marker` (`markers`).
    Markers,
    /// The function tracer shows interrupts and preemption (`irq-info`).
    IrqInfo,
    /// Reading `trace` holds the recording up (`pause-on-trace`).
    PauseOnTrace,
    /// The function tracer shows who called (`print-parent`).
    PrintParent,
    /// It shows where in a function an address is (`sym-offset`).
    SymOffset,
    /// It shows the address behind each name (`sym-addr`).
    SymAddr,
    /// A text written to `trace_marker` stands alone in its line (`printk-msg-only`).
    PrintkMsgOnly,
    /// Each line says who, where and when (`context-info`).
    ContextInfo,
    /// The function tracer records a stack trace of each entry (`func_stack_trace`).
    FuncStackTrace,
    /// Entries that repeat are counted instead (`func-no-repeats`).
    FuncNoRepeats,
    /// The function tracer records arguments (`func-args`).
    FuncArgs,
    /// `funcgraph-overrun`
    Overrun,
    /// `funcgraph-cpu`
    Cpu,
    /// `funcgraph-overhead`
    Overhead,
    /// `funcgraph-proc`
    Proc,
    /// `funcgraph-duration`
    Duration,
    /// `funcgraph-abstime`
    Abstime,
    /// `funcgraph-irqs`
    Irqs,
    /// `funcgraph-tail`
    Tail,
    /// `funcgraph-retval`
    Retval,
    /// `funcgraph-retval-hex`
    RetvalHex,
    /// `funcgraph-retaddr`
    Retaddr,
    /// `funcgraph-args`
    Args,
    /// The time that a task slept within a call counts (`sleep-time`).
    SleepTime,
    /// The profiler counts the time of calls inside (`graph-time`).
    GraphTime,
}

impl TraceOption {
    /// All of them, in the order in which `trace_options` has them.
    pub const ALL: [Self; 26] = [
        Self::PrintParent,
        Self::SymOffset,
        Self::SymAddr,
        Self::PrintkMsgOnly,
        Self::ContextInfo,
        Self::Overwrite,
        Self::IrqInfo,
        Self::Markers,
        Self::PauseOnTrace,
        Self::FuncStackTrace,
        Self::FuncNoRepeats,
        Self::FuncArgs,
        Self::Overrun,
        Self::Cpu,
        Self::Overhead,
        Self::Proc,
        Self::Duration,
        Self::Abstime,
        Self::Irqs,
        Self::Tail,
        Self::Retval,
        Self::RetvalHex,
        Self::Retaddr,
        Self::Args,
        Self::SleepTime,
        Self::GraphTime,
    ];

    /// What it is called. Switched off, `trace_options` has a `no` before that.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Overwrite => "overwrite",
            Self::Markers => "markers",
            Self::IrqInfo => "irq-info",
            Self::PauseOnTrace => "pause-on-trace",
            Self::PrintParent => "print-parent",
            Self::SymOffset => "sym-offset",
            Self::SymAddr => "sym-addr",
            Self::PrintkMsgOnly => "printk-msg-only",
            Self::ContextInfo => "context-info",
            Self::FuncStackTrace => "func_stack_trace",
            Self::FuncNoRepeats => "func-no-repeats",
            Self::FuncArgs => "func-args",
            Self::Overrun => "funcgraph-overrun",
            Self::Cpu => "funcgraph-cpu",
            Self::Overhead => "funcgraph-overhead",
            Self::Proc => "funcgraph-proc",
            Self::Duration => "funcgraph-duration",
            Self::Abstime => "funcgraph-abstime",
            Self::Irqs => "funcgraph-irqs",
            Self::Tail => "funcgraph-tail",
            Self::Retval => "funcgraph-retval",
            Self::RetvalHex => "funcgraph-retval-hex",
            Self::Retaddr => "funcgraph-retaddr",
            Self::Args => "funcgraph-args",
            Self::SleepTime => "sleep-time",
            Self::GraphTime => "graph-time",
        }
    }

    /// The option of that name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|option| option.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_option_is_there_once_and_found_by_its_name() {
        for option in TraceOption::ALL {
            assert_eq!(TraceOption::by_name(option.name()), Some(option));
            assert!(!option.name().starts_with("no"), "{} would be taken for a negation", option.name());
        }
        assert_eq!(TraceOption::by_name("nofuncgraph-cpu"), None);
    }
}
