//! The program as a user runs it: exit codes, where text goes, and a reader that stops reading.

mod common;

use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use common::{Kernel, TEXT};

fn fgraph(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fgraph")).args(args).stdin(Stdio::null()).output().unwrap()
}

/// A kernel in a file of its own, removed afterwards.
struct File(PathBuf);

impl File {
    fn new(test: &str, kernel: &Kernel) -> Self {
        let path = std::env::temp_dir().join(format!("fgraph-tool-{test}-{}", std::process::id()));
        fs::write(&path, kernel.build()).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Exit code, standard output, standard error.
fn seen(output: &Output) -> (i32, &str, &str) {
    let text = |bytes| str::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_kernel_goes_from_findings_to_fine() {
    let kernel = File::new("fine", &Kernel::good());
    let output = fgraph(&["check", kernel.path()]);
    let (code, out, err) = seen(&output);
    assert_eq!((code, err), (1, ""), "{out}");
    assert!(out.contains("1 finding") && out.contains("run `fgraph embed KERNEL`"), "{out}");
    let output = fgraph(&["embed", kernel.path()]);
    let (code, out, err) = seen(&output);
    assert_eq!((code, err), (0, ""));
    assert!(out.starts_with("4 names in ") && out.ends_with(" of 4096 bytes\n"), "{out}");
    let output = fgraph(&["check", kernel.path()]);
    assert_eq!(seen(&output).0, 0, "{}", seen(&output).1);
    let output = fgraph(&["sites", kernel.path()]);
    let (code, out, err) = seen(&output);
    assert_eq!((code, err), (0, ""));
    assert!(out.contains("  r::ret_big+0x4\n") && out.contains("\nsites: 3, "), "{out}");
    let output = fgraph(&["sites", "--raw", kernel.path()]);
    assert!(seen(&output).1.contains("  _RNvCshp5d4tyNz3J_1r7ret_big+0x4\n"));
}

#[test]
fn unusable_input_is_said_on_standard_error() {
    let kernel = File::new("unusable", &Kernel { space: None, ..Kernel::good() });
    for (args, expected) in [
        (&["sites", "/nonexistent/kernel"][..], "fgraph: cannot read /nonexistent/kernel: "),
        (&["check", file!()], "fgraph: "),
        (&["sites", env!("CARGO_MANIFEST_PATH")], "fgraph: not an ELF file"),
        (&["embed", kernel.path()], "fgraph: the image has no section .fgraph_symbols: "),
        (&["embed"], "error: "),
        (&["frobnicate"], "error: "),
        (&[], "Puts function names into a kernel image"),
    ] {
        let output = fgraph(args);
        let (code, out, err) = seen(&output);
        assert_eq!((code, out), (2, ""), "{args:?}");
        assert!(err.starts_with(expected), "{args:?}: {err}");
    }
}

#[test]
fn help_and_version_are_said_on_standard_output() {
    for (args, expected) in [
        (&["--version"][..], concat!("fgraph ", env!("CARGO_PKG_VERSION"))),
        (&["--help"], "Usage: fgraph <COMMAND>"),
        (&["embed", "--help"], "--output <OUT>"),
        (&["sites", "--help"], "--raw"),
        (&["check", "--help"], "--without-symbols"),
    ] {
        let output = fgraph(args);
        let (code, out, err) = seen(&output);
        assert_eq!((code, err), (0, ""), "{args:?}");
        assert!(out.contains(expected), "{args:?}: {out}");
    }
}

#[test]
fn a_reader_that_stops_reading_is_no_failure() {
    // Far more text than a pipe holds, so that the tool is still writing when the reader goes.
    let sites: Vec<u64> = (0..20_000).map(|site| TEXT + site % 0x400).collect();
    let kernel = Kernel { table: None, ..Kernel::good() }
        .without("__fgraph_sites_start")
        .without("__fgraph_sites_stop");
    let long = File::new("pipe", &Kernel { space: None, table: Some(sites), relocated: false, ..kernel });
    let mut child = Command::new(env!("CARGO_BIN_EXE_fgraph"))
        .args(["sites", long.path()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut [0; 10]).unwrap();
    drop(out);
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), seen(&output).2), (Some(0), ""));
}

#[test]
fn output_that_cannot_be_written_is_a_failure() {
    let Ok(full) = fs::File::options().write(true).open("/dev/full") else {
        println!("skipped: this system has no /dev/full");
        return;
    };
    let kernel = File::new("full", &Kernel::good());
    let mut command = Command::new(env!("CARGO_BIN_EXE_fgraph"));
    let output = command.args(["sites", kernel.path()]).stdout(full).stderr(Stdio::piped()).output().unwrap();
    let (code, _, err) = seen(&output);
    assert_eq!(code, 2);
    assert!(err.starts_with("fgraph: cannot write to standard output: "), "{err}");
}
