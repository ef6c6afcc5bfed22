//! How events look, by the options that say so.

use super::TraceOption;
use crate::text::{LineOptions, Options};

/// The options of both layouts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    graph: Options,
    lines: LineOptions,
}

impl Look {
    /// What is shown at first. Types are where there are any.
    pub(super) const FIRST: Self = Self {
        graph: Options::CPU
            .union(Options::DURATION)
            .union(Options::OVERHEAD)
            .union(Options::IRQS)
            .union(Options::TYPED),
        lines: LineOptions::CONTEXT_INFO.union(LineOptions::IRQ_INFO).union(LineOptions::PRINT_PARENT),
    };

    /// For the printer of call graphs.
    pub(super) fn graph(self) -> Options {
        let bare = !self.lines.contains(LineOptions::CONTEXT_INFO);
        if bare { self.graph | Options::BARE } else { self.graph }
    }

    /// For lines that stand for one event each.
    pub(super) fn lines(self) -> LineOptions {
        self.lines
    }

    /// Whether an option is on; `None` if it is no matter of looks.
    pub(super) fn has(self, option: TraceOption) -> Option<bool> {
        let line = of_lines(option).map(|option| self.lines.contains(option));
        line.or_else(|| Some(self.graph.contains(of_graph(option)?)))
    }

    /// Switches an option; `None` if it is no matter of looks.
    pub(super) fn set(&mut self, option: TraceOption, on: bool) -> Option<()> {
        match of_lines(option) {
            Some(option) => self.lines.set(option, on),
            None => self.graph.set(of_graph(option)?, on),
        }
        Some(())
    }
}

fn of_graph(option: TraceOption) -> Option<Options> {
    Some(match option {
        TraceOption::Overrun => Options::OVERRUN,
        TraceOption::Cpu => Options::CPU,
        TraceOption::Overhead => Options::OVERHEAD,
        TraceOption::Proc => Options::PROC,
        TraceOption::Duration => Options::DURATION,
        TraceOption::Abstime => Options::ABSTIME,
        TraceOption::Irqs => Options::IRQS,
        TraceOption::Tail => Options::TAIL,
        TraceOption::Retval => Options::RETVAL,
        TraceOption::RetvalHex => Options::RETVAL_HEX,
        TraceOption::Retaddr => Options::RETADDR,
        TraceOption::Args => Options::ARGS,
        _ => return None,
    })
}

fn of_lines(option: TraceOption) -> Option<LineOptions> {
    Some(match option {
        TraceOption::PrintParent => LineOptions::PRINT_PARENT,
        TraceOption::SymOffset => LineOptions::SYM_OFFSET,
        TraceOption::SymAddr => LineOptions::SYM_ADDR,
        TraceOption::PrintkMsgOnly => LineOptions::MSG_ONLY,
        TraceOption::ContextInfo => LineOptions::CONTEXT_INFO,
        TraceOption::IrqInfo => LineOptions::IRQ_INFO,
        _ => return None,
    })
}
