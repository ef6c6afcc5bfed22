//! The host tool of fgraph, as a library that its binary and its tests call.
//!
//! A kernel is linked in one step and looked at in three others: [`embed`] puts function names into the
//! finished image, [`sites`] lists what can be traced, [`check`] finds an image that was built or linked
//! wrongly. [`report`] shows what the kernel recorded. All of them see the file through [`image`] and nothing else, so that what one of them takes for a
//! function or a site, the others do too.
//!
//! Invariant: a file's content never makes the tool panic. What cannot be used is an [`Error`], exit code 2;
//! what can be used and is wrong is a finding, exit code 1.

mod args;
pub mod blob;
pub mod btf;
pub mod check;
pub mod dwarf;
pub mod embed;
mod error;
pub mod files;
pub mod image;
pub mod pads;
pub mod report;
pub mod sites;

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use args::{Args, Command};
pub use error::Error;
use image::Image;

/// What a command has to say: text for standard output, and whether it found something wrong.
struct Outcome {
    text: String,
    findings: bool,
}

/// Runs the tool with a command line, the name of the program first.
pub fn run(command_line: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args = match Args::try_parse_from(command_line) {
        Ok(args) => args,
        Err(error) => {
            // Help and version come here too, and go to standard output. A closed pipe is no reason to
            // complain.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    let result = outcome(&args.command).and_then(|outcome| {
        print(&outcome.text)?;
        Ok(outcome.findings)
    });
    match result {
        Ok(findings) => ExitCode::from(u8::from(findings)),
        Err(error) => {
            // Not `eprintln!`, which panics if nobody listens.
            let _ = writeln!(io::stderr(), "fgraph: {error}");
            ExitCode::from(2)
        }
    }
}

fn outcome(command: &Command) -> Result<Outcome, Error> {
    match command {
        Command::Embed { kernel, output, types, btf, no_types, verbose } => {
            let output = output.as_deref().unwrap_or(kernel);
            if *no_types {
                let done = embed::embed_file(kernel, Some(output))?;
                return Ok(Outcome { text: format!("{done}\n"), findings: false });
            }
            let files = embed::TypeFiles { types: types.as_deref(), btf: btf.as_deref() };
            let done = embed::embed_typed(kernel, output, &files)?;
            let text = if *verbose { format!("{done}\n{}", done.left_out()) } else { format!("{done}\n") };
            Ok(Outcome { text, findings: false })
        }
        Command::Sites { kernel, raw } => {
            let bytes = read(kernel)?;
            let image = Image::parse(&bytes)?;
            let listing = sites::Listing::new(&image).map_err(Error::Table)?;
            let names = if *raw { sites::Names::Raw } else { sites::Names::Demangled };
            Ok(Outcome { text: listing.text(names), findings: false })
        }
        Command::Check { kernel, without_symbols, landing_pads, without_pad } => {
            let bytes = read(kernel)?;
            let image = Image::parse(&bytes)?;
            let wants = if *without_symbols { check::Symbols::Ignored } else { check::Symbols::Expected };
            let pads = if *landing_pads {
                check::LandingPads::Expected(without_pad.clone())
            } else {
                check::LandingPads::Ignored
            };
            let report = check::check(&image, wants, &pads)?;
            Ok(Outcome { text: report.text(&kernel.display()), findings: !report.findings.is_empty() })
        }
        Command::Report(args) => {
            // It writes while it reads.
            let findings = report::run(args)?;
            Ok(Outcome { text: String::new(), findings })
        }
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut Args::command(), "fgraph", &mut text);
            Ok(Outcome { text: String::from_utf8_lossy(&text).into_owned(), findings: false })
        }
        Command::Man => Ok(Outcome { text: manual().map_err(Error::Print)?, findings: false }),
    }
}

/// The manual page, with a section for each command.
fn manual() -> io::Result<String> {
    let mut command = Args::command();
    command.build();
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut text)?;
    for part in command.get_subcommands().filter(|part| part.get_name() != "help") {
        let name = part.get_name().to_uppercase();
        writeln!(text, ".SH \"COMMAND {name}\"")?;
        let man = clap_mangen::Man::new(part.clone());
        man.render_synopsis_section(&mut text)?;
        man.render_description_section(&mut text)?;
        man.render_options_section(&mut text)?;
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).map_err(|error| Error::Read(path.to_owned(), error))
}

/// Writes to standard output. A reader that has seen enough and closed the pipe does not change the outcome.
fn print(text: &str) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Error::Print(error)),
        _ => Ok(()),
    }
}
