//! Sources compiled by the compilers of this machine, and what the tool makes of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use fgraph::btf::{Btf, Sections, Word};
use fgraph_cli::dwarf::{Report, address};
use fgraph_cli::embed::types;
use fgraph_cli::image::Image;

/// Runs a compiler on these sources, each with its name, in a folder of its own. `None`, and the reason printed, if there is none,
/// or it does not know the flags.
pub(crate) fn run(
    compiler: &str,
    flags: &[&str],
    sources: &[(&str, &str)],
) -> Option<(Vec<u8>, tempfile::TempDir)> {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in sources {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let mut command = Command::new(compiler);
    command
        .current_dir(folder.path())
        .args(flags)
        .args(["-o", "out"])
        .args(sources.iter().map(|(name, _)| *name));
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => {
            println!("skipped: {compiler}: {error}");
            return None;
        }
    };
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success()
        && (said.contains("unrecognized")
            || said.contains("unknown")
            || said.contains("may not be installed"))
    {
        println!("skipped: {compiler} {flags:?}: {said}");
        return None;
    }
    assert!(output.status.success(), "{compiler} {flags:?}: {said}");
    Some((fs::read(folder.path().join("out")).unwrap(), folder))
}

pub(crate) fn c(compiler: &str, flags: &[&str], source: &str) -> Option<Vec<u8>> {
    let flags = [&["-c", "-w", "-ffreestanding"], flags].concat();
    run(compiler, &flags, &[("source.c", source)]).map(|(bytes, _)| bytes)
}

pub(crate) fn rust(flags: &[&str], source: &str) -> Option<Vec<u8>> {
    rust_to("--emit=obj", flags, source)
}

/// The same in LLVM's language.
pub(crate) fn rust_as_llvm(flags: &[&str], source: &str) -> Option<String> {
    rust_to("--emit=llvm-ir", flags, source).map(|text| String::from_utf8(text).unwrap())
}

fn rust_to(emit: &str, flags: &[&str], source: &str) -> Option<Vec<u8>> {
    let compiler = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let flags =
        [&["--edition=2024", emit, "--crate-type=lib", "-Awarnings", "-Ccodegen-units=1"], flags].concat();
    run(&compiler, &flags, &[("source.rs", source)]).map(|(bytes, _)| bytes)
}

/// The compilers of C that are looked for: of this machine, and for the other.
pub(crate) const COMPILERS: [&str; 3] = ["cc", "clang", "aarch64-linux-gnu-gcc"];

/// Types of an image, with their index.
pub(crate) struct Made {
    pub(crate) bytes: Vec<u8>,
    words: Vec<Word>,
    /// Symbols and their FUNCs.
    pub(crate) functions: Vec<(String, u32)>,
    pub(crate) report: Report,
}

impl Made {
    pub(crate) fn of(file: &[u8]) -> Self {
        let image = Image::parse(file).unwrap();
        let made = types::make(&image, None).unwrap().unwrap_or_else(|why| panic!("{why}"));
        let named = |start| {
            let found = image.functions.iter().filter(move |function| address(function.at) == start);
            found.map(|function| function.name.to_owned())
        };
        let functions = made
            .functions
            .iter()
            .flat_map(|function| named(function.start).map(|name| (name, function.id)))
            .collect();
        let counts = Sections::parse(&made.btf).unwrap().count().unwrap();
        let words = vec![[0; 4]; counts.words()];
        let mut made = Self { bytes: made.btf, words, functions, report: made.report };
        Btf::index(Sections::parse(&made.bytes).unwrap(), &mut made.words).unwrap();
        made
    }

    pub(crate) fn with<R>(&self, look: impl FnOnce(Btf<'_>) -> R) -> R {
        let mut words = self.words.clone();
        look(Btf::index(Sections::parse(&self.bytes).unwrap(), &mut words).unwrap())
    }

    /// The FUNC of a symbol, which must be the only one of that name.
    pub(crate) fn id(&self, symbol: &str) -> Option<u32> {
        let mut found = self.functions.iter().filter(|(name, _)| name == symbol).map(|(_, id)| *id);
        let id = found.next();
        assert_eq!(found.next(), None, "{symbol} is there twice");
        id
    }

    /// Why a symbol has no types.
    pub(crate) fn left_out(&self, symbol: &str) -> Option<String> {
        let found = self.report.left_out.iter().find(|(_, name, _)| name == symbol);
        found.map(|(_, _, reason)| reason.to_string())
    }
}

/// A program that is looked for where administrators' programs are, too. The reason is printed if it is not there.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let found = folders.map(|folder: PathBuf| folder.join(name)).find(|path| Path::is_file(path));
    if found.is_none() {
        println!("skipped: {name} is not installed");
    }
    found
}
