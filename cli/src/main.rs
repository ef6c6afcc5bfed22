//! The host tool `fgraph`. Everything is in the library beside it, where tests reach it.

use std::process::ExitCode;

fn main() -> ExitCode {
    fgraph_cli::run(std::env::args_os())
}
