//! What `fgraph report` can be told.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use fgraph::text::Options;

use super::format::table::Sort;
use super::select::Selection;

/// What a trace is turned into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// The layout of function_graph.
    #[default]
    Text,
    /// A line for each function.
    Table,
    /// A stack on each line, with its nanoseconds, for flame graph programs.
    Folded,
    /// A flame graph.
    Svg,
    /// JSON for ui.perfetto.dev, speedscope, chrome://tracing.
    Chrome,
    /// Protobuf for ui.perfetto.dev.
    Perfetto,
    /// The file of trace-cmd (version 6), for `trace-cmd report` and KernelShark.
    TraceDat,
}

impl Format {
    /// If it is for programs only.
    pub(super) fn is_binary(self) -> bool {
        matches!(self, Self::Perfetto | Self::TraceDat)
    }
}

/// What the lines of text have: the `funcgraph-` options of Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Column {
    /// The CPU.
    Cpu,
    /// The time a call took.
    Duration,
    /// A mark before long durations.
    Overhead,
    /// The task.
    Proc,
    /// Names at all closing braces.
    Tail,
    /// Return values.
    Retval,
    /// Return values in hexadecimal always.
    RetvalHex,
    /// Values by type, with --kernel; shown unless hidden.
    Typed,
    /// Where each call was made.
    Retaddr,
    /// The time of each line.
    Abstime,
    /// Interrupts.
    Irqs,
    /// How many calls could not be followed.
    Overrun,
    /// Arguments.
    Args,
}

impl Column {
    fn option(self) -> Options {
        match self {
            Self::Cpu => Options::CPU,
            Self::Duration => Options::DURATION,
            Self::Overhead => Options::OVERHEAD,
            Self::Proc => Options::PROC,
            Self::Tail => Options::TAIL,
            Self::Retval => Options::RETVAL,
            Self::RetvalHex => Options::RETVAL_HEX,
            Self::Typed => Options::TYPED,
            Self::Retaddr => Options::RETADDR,
            Self::Abstime => Options::ABSTIME,
            Self::Irqs => Options::IRQS,
            Self::Overrun => Options::OVERRUN,
            Self::Args => Options::ARGS,
        }
    }
}

/// The command line of `fgraph report`.
#[derive(Clone, Debug, Args)]
pub struct ReportArgs {
    /// Trace of fgraph, or text that Linux's function_graph printed.
    pub file: PathBuf,
    /// What to make of it.
    #[arg(short, long, value_enum, default_value_t)]
    pub format: Format,
    /// Where to write it; standard output if not given.
    #[arg(short, long, value_name = "OUT")]
    pub output: Option<PathBuf>,
    /// The kernel that was traced, ELF with its symbols: for names that the trace does not have.
    #[arg(long, value_name = "KERNEL")]
    pub kernel: Option<PathBuf>,

    /// Text: show these as well.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "OPTION", help_heading = "Text and tables")]
    pub show: Vec<Column>,
    /// Text: do not show these. `typed` and `retval-hex` count for chrome and perfetto as well.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "OPTION", help_heading = "Text and tables")]
    pub hide: Vec<Column>,
    /// Table: the largest of this first.
    #[arg(long, value_enum, default_value_t, value_name = "COLUMN", help_heading = "Text and tables")]
    pub sort: Sort,
    /// Table: at most so many functions.
    #[arg(long, value_name = "COUNT", help_heading = "Text and tables")]
    pub limit: Option<usize>,

    /// Only calls of these functions; `*`, `?` and `[a-z]` as in set_ftrace_filter. May be given several times.
    #[arg(long, value_name = "GLOB", help_heading = "What is shown")]
    pub function: Vec<String>,
    /// No calls of these functions.
    #[arg(long, value_name = "GLOB", help_heading = "What is shown")]
    pub not: Vec<String>,
    /// Only calls of these functions and what is inside of them, as with set_graph_function.
    #[arg(long, value_name = "GLOB", help_heading = "What is shown")]
    pub graph: Vec<String>,
    /// Only these tasks, by number or name.
    #[arg(long, value_name = "NUMBER|GLOB", help_heading = "What is shown")]
    pub task: Vec<String>,
    /// Only these CPUs.
    #[arg(long, value_delimiter = ',', value_name = "CPU", help_heading = "What is shown")]
    pub cpu: Vec<u32>,
    /// Not before this time, in seconds of the trace's clock.
    #[arg(long, value_parser = seconds, value_name = "SECONDS", help_heading = "What is shown")]
    pub from: Option<u64>,
    /// Not after this time.
    #[arg(long, value_parser = seconds, value_name = "SECONDS", help_heading = "What is shown")]
    pub to: Option<u64>,
    /// Only so many levels: of all, or from each function of --graph on.
    #[arg(long, value_name = "LEVELS", help_heading = "What is shown")]
    pub max_depth: Option<u32>,
    /// Only calls that took so many microseconds.
    #[arg(long, value_parser = microseconds, value_name = "US", help_heading = "What is shown")]
    pub min_duration: Option<u64>,
    /// Only calls that returned an error, with the calls that led to them: by type with --kernel (`Err`, negative numbers and
    /// pointers), else what looks like -1 to -4095.
    #[arg(long, help_heading = "What is shown")]
    pub errors: bool,
}

impl ReportArgs {
    pub(super) fn options(&self) -> Options {
        let mut options = Options::default() | Options::TYPED;
        // Whoever asks for errors wants to see which.
        options.set(Options::RETVAL, self.errors);
        self.show.iter().for_each(|column| options |= column.option());
        self.hide.iter().for_each(|column| options -= column.option());
        options
    }

    pub(super) fn selection(&self) -> Selection {
        Selection {
            functions: self.function.clone(),
            not: self.not.clone(),
            graph: self.graph.clone(),
            tasks: self.task.clone(),
            cpus: self.cpu.clone(),
            from: self.from,
            to: self.to,
            max_depth: self.max_depth,
            min_duration: self.min_duration,
            errors: self.errors,
        }
    }
}

/// A decimal number, times a power of ten.
fn decimal(text: &str, digits: usize) -> Result<u64, String> {
    let wrong = || format!("not a decimal number, or too large: {text}");
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let padded = format!("{:0<digits$}", fraction.get(..fraction.len().min(digits)).ok_or_else(wrong)?);
    let whole: u64 = whole.parse().map_err(|_| wrong())?;
    let fraction: u64 = padded.parse().map_err(|_| wrong())?;
    whole.checked_mul(10_u64.pow(digits as u32)).and_then(|n| n.checked_add(fraction)).ok_or_else(wrong)
}

fn seconds(text: &str) -> Result<u64, String> {
    decimal(text, 9)
}

fn microseconds(text: &str) -> Result<u64, String> {
    decimal(text, 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_exact() {
        assert_eq!(seconds("96.192351"), Ok(96_192_351_000));
        assert_eq!(microseconds("1.5"), Ok(1500));
        assert_eq!(seconds("3"), Ok(3_000_000_000));
        for wrong in ["", "x", "-1", "1.x", "99999999999999999999", "1.é"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
