//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use clap_complete::Shell;

use crate::report::args::ReportArgs;

/// Puts function names into a kernel image, lists its patch sites, checks it, and reports traces.
#[derive(Debug, Parser)]
#[command(
    name = "fgraph",
    version,
    after_help = "Exit code: 0 fine, 1 something was found, 2 the input cannot be used."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Write the names of all functions into the space that the kernel reserved with `symbol_space!`.
    ///
    /// Their types, which the debug information has, go into the space that was reserved with `type_space!`, if it was.
    ///
    /// The kernel must be linked and must still have its symbol table. Do this before it is stripped or
    /// turned into a flat binary. The file is replaced as a whole, or not at all.
    Embed {
        /// Linked kernel, ELF for x86_64 or arm64.
        kernel: PathBuf,
        /// Where to write the result; KERNEL itself if not given.
        #[arg(short, long, value_name = "OUT")]
        output: Option<PathBuf>,
        /// Write the types of functions into a file of their own, to be loaded beside the kernel.
        #[arg(long, value_name = "FILE")]
        types: Option<PathBuf>,
        /// Write the types as plain BTF too, for programs that read it.
        #[arg(long, value_name = "FILE")]
        btf: Option<PathBuf>,
        /// Leave the types alone: names only.
        #[arg(long, conflicts_with_all = ["types", "btf"])]
        no_types: bool,
        /// List the functions that have no types, and why.
        #[arg(short, long)]
        verbose: bool,
    },
    /// List the patch sites in the order of their table, and sum them up.
    ///
    /// Columns: address, the bytes that stand there, function and offset. `notrace` marks a site inside the
    /// range that the tracer never patches.
    Sites {
        /// Kernel or object file, ELF for x86_64 or arm64.
        kernel: PathBuf,
        /// Show names as the symbol table has them.
        #[arg(long)]
        raw: bool,
    },
    /// Find out whether a linked kernel can be traced: its sites, the range that stays untraced, its function
    /// names.
    Check {
        /// Linked kernel, ELF for x86_64 or arm64.
        kernel: PathBuf,
        /// Do not ask for function names in the image.
        #[arg(long)]
        without_symbols: bool,
        /// Ask that every function whose address is taken begins with a landing pad (ENDBR64, BTI).
        ///
        /// The kernel must be linked with `--emit-relocs`.
        #[arg(long)]
        landing_pads: bool,
        /// Functions that need none, separated by commas: they are returned to, or entered by the CPU.
        #[arg(long, value_name = "NAMES", value_delimiter = ',', requires = "landing_pads")]
        without_pad: Vec<String>,
    },
    /// Show a recorded trace: as text, tables, flame graphs, or for other programs.
    ///
    /// Reads the traces of fgraph, and text that Linux's function_graph printed. Of a damaged trace everything is
    /// shown that can be read; what cannot is said on standard error, and the exit code is 1.
    Report(Box<ReportArgs>),
    /// Write the completions for a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write the manual page.
    Man,
}
