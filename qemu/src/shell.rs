//! A shell on the serial line: the tracer's files, and a few commands that make the kernel work.
//!
//! What is typed goes through [`edit`], becomes words in [`words`], and is carried out here. The shell is a task like any other, and is
//! traced like any other.

mod edit;
mod words;

use alloc::{borrow::ToOwned, format, string::String, vec, vec::Vec};
use core::sync::atomic::{AtomicBool, Ordering};

use fgraph::tracefs::{FsError, Open, Tracefs};

use crate::{
    console::{print, println},
    machine::Exit,
    sched, tracefs,
    tracing::{self, Named},
    workload,
};
use edit::{Editor, Typed};
use words::{Command, Target};

const PROMPT: &str = "fgraph# ";

const HELP: &str = "\
ls [DIRECTORY]          the tracer's files
cat FILE...             what files say; trace_pipe waits for more, until ^C
echo WORDS > FILE       writes a file; >> adds to what it has
mkdir instances/NAME    makes a directory with buffers, a tracer and filters of its own
rmdir instances/NAME    removes it, and stops its tracer
run WORKLOAD [N] [&]    makes the kernel work, N times: unpack; & waits for nothing
help                    this text
exit                    powers off
README says what each file is for. Words are quoted as in sh.";

/// How a command went wrong.
enum Trouble {
    /// A file.
    File(String, FsError),
    /// Anything else.
    Other(String),
}

type Done = Result<(), Trouble>;

/// Reads commands until one ends the kernel.
pub fn run() -> Exit {
    if let Err(error) = tracing::started() {
        let site = error.site().map(|site| format!(" (in {})", Named(site.get())));
        println!("fgraph: {error}{}", site.unwrap_or_default());
        return Exit::Failed;
    }
    let fs = match tracefs::begin() {
        Ok(fs) => fs,
        Err(error) => {
            println!("fgraph: {error}");
            return Exit::Failed;
        }
    };
    if let Err(error) = crate::types::tell_tracer() {
        println!("fgraph: {error}");
    }
    println!("The tracer's files are here: `ls` lists them, `help` has the commands.");
    let mut editor = Editor::new();
    loop {
        print!("{PROMPT}");
        let line = match editor.line(PROMPT) {
            Typed::Line(line) => line,
            Typed::Interrupt => continue,
            Typed::End => return Exit::Success,
        };
        let command = match words::parse(&line) {
            Ok(Some(command)) => command,
            Ok(None) => continue,
            Err(error) => {
                println!("{error}");
                continue;
            }
        };
        if command.words.first().is_some_and(|word| word == "exit") {
            return Exit::Success;
        }
        match carry_out(&fs, &command, &mut editor) {
            Ok(()) => {}
            Err(Trouble::File(path, error)) => {
                println!("{path}: {error}");
                if matches!(error, FsError::Refused(_)) {
                    show_refusal(&fs, &path);
                }
            }
            Err(Trouble::Other(what)) => println!("{what}"),
        }
    }
}

fn carry_out(fs: &Tracefs<'_>, command: &Command, editor: &mut Editor) -> Done {
    let words: Vec<&str> = command.words.iter().map(String::as_str).collect();
    if command.in_background && words.first() != Some(&"run") {
        return Err(Trouble::Other("only `run` can be left alone by &".to_owned()));
    }
    let output = match words.as_slice() {
        ["echo", words @ ..] => {
            let text = words.join(" ") + "\n";
            match &command.target {
                None => print!("{text}"),
                Some(target) => write(fs, target, text.as_bytes())?,
            }
            return Ok(());
        }
        ["ls"] => list(fs, ""),
        ["ls", path] => list(fs, path),
        ["cat", paths @ ..] if !paths.is_empty() => {
            let to = command.target.as_ref();
            return paths.iter().try_for_each(|path| cat(fs, path, to, editor));
        }
        ["mkdir", path] => fs.mkdir(path).map(|()| String::new()).map_err(|error| trouble(path, error)),
        ["rmdir", path] => fs.rmdir(path).map(|()| String::new()).map_err(|error| trouble(path, error)),
        ["run", workload] => run_workload(workload, 1, command.in_background),
        ["run", workload, times] => match times.parse() {
            Ok(times) => run_workload(workload, times, command.in_background),
            Err(_) => Err(Trouble::Other(format!("{times} is no number"))),
        },
        ["help"] => Ok(HELP.to_owned() + "\n"),
        // As in sh: the file is emptied.
        [] => Ok(String::new()),
        [name, ..] => Err(Trouble::Other(format!("{name}: no such command; `help` has them"))),
    }?;
    match &command.target {
        None => print!("{output}"),
        Some(target) => write(fs, target, output.as_bytes())?,
    }
    Ok(())
}

fn write(fs: &Tracefs<'_>, target: &Target, bytes: &[u8]) -> Done {
    let open = if target.appends { Open::Append } else { Open::Replace };
    // An empty line is what people write to empty a file.
    let bytes = if bytes == b"\n" { b"" } else { bytes };
    let written = fs.write(&target.path, bytes, open);
    written.map(drop).map_err(|error| Trouble::File(target.path.clone(), error))
}

fn trouble(path: &str, error: FsError) -> Trouble {
    Trouble::File(path.to_owned(), error)
}

/// Shows the last entry of `error_log`, as a person would: of the instance's that has the file.
fn show_refusal(fs: &Tracefs<'_>, path: &str) {
    let mut parts = path.split('/').filter(|part| !matches!(*part, "" | "."));
    let log = match (parts.next(), parts.next()) {
        (Some("instances"), Some(name)) => format!("instances/{name}/error_log"),
        _ => "error_log".to_owned(),
    };
    let mut bytes = vec![0; 4096];
    let got = fs.read_at(&log, 0, &mut bytes).unwrap_or(0);
    let log = String::from_utf8_lossy(bytes.get(..got).unwrap_or(&[])).into_owned();
    let last = log.rfind("\n[").map_or(0, |at| at + 1);
    for line in log.get(last..).unwrap_or("").lines().skip(1) {
        println!("{line}");
    }
}

fn list(fs: &Tracefs<'_>, path: &str) -> Result<String, Trouble> {
    let mut text = String::new();
    let listed = fs.list(path, |entry| {
        text += &format!("{entry}{}\n", if entry.is_dir { "/" } else { "" });
    });
    match listed {
        Ok(()) => Ok(text),
        // One file is a list too.
        Err(FsError::NotDirectory) => Ok(format!("{path}\n")),
        Err(error) => Err(Trouble::File(path.to_owned(), error)),
    }
}

/// Shows a file, or writes it to another. A pipe has no end: it is shown until ^C.
fn cat(fs: &Tracefs<'_>, path: &str, to: Option<&Target>, editor: &mut Editor) -> Done {
    let trouble = |error| Trouble::File(path.to_owned(), error);
    let mut reading = fs.open(path).map_err(trouble)?;
    let (mut bytes, mut all) = (vec![0; 1024], Vec::new());
    let is_pipe = path.ends_with("trace_pipe");
    loop {
        let got = fs.read(&mut reading, &mut bytes).map_err(trouble)?;
        let part = bytes.get(..got).unwrap_or(&[]);
        match to {
            Some(_) => all.extend_from_slice(part),
            // A piece may end in the middle of a character, which the console does not mind.
            None => crate::console::write_bytes(part),
        }
        if is_pipe && editor.is_interrupted() || !is_pipe && got == 0 {
            break;
        }
        if got == 0 {
            sched::sleep_ms(1);
        }
    }
    to.map_or(Ok(()), |target| write(fs, target, &all))
}

/// Whether a workload runs. It is one for all: its tasks meet in queues that are there once.
static RUNS: AtomicBool = AtomicBool::new(false);

fn run_workload(name: &str, times: u32, in_background: bool) -> Result<String, Trouble> {
    if name != "unpack" {
        return Err(Trouble::Other(format!("{name}: no such workload; there is `unpack`")));
    }
    if RUNS.swap(true, Ordering::Acquire) {
        return Err(Trouble::Other("a workload runs already".to_owned()));
    }
    if in_background {
        sched::spawn_with("work", work_alone, times as usize);
        return Ok(String::new());
    }
    let done = work(times);
    RUNS.store(false, Ordering::Release);
    done.map_err(Trouble::Other)
}

/// Works as often as that; what came of it the last time.
fn work(times: u32) -> Result<String, String> {
    let mut text = String::new();
    for _ in 0..times {
        let report = workload::run();
        if let Some(trouble) = &report.trouble {
            return Err(format!("the workload failed: {trouble}"));
        }
        text = format!("{report}\n");
    }
    Ok(text)
}

/// Works in a task of its own, and speaks of trouble only.
fn work_alone(times: usize) {
    let done = work(times as u32);
    RUNS.store(false, Ordering::Release);
    if let Err(trouble) = done {
        println!("{trouble}");
    }
}
