//! Runs every case in a process of its own, so that one that crashes or hangs is named, and none finds what another left.
//!
//! A child is forked, not started anew: that also works where an emulator runs this program.

use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::process;

/// A case: its name, and what it does. It fails by panicking.
pub type Case = (&'static str, fn());

/// How long one case may take.
const LIMIT: Duration = Duration::from_secs(300);

const FAILED: libc::c_int = 1;
const SKIPPED: libc::c_int = 77;

/// Ends the case: it cannot be run here, and this is why.
pub fn skip(why: &str) -> ! {
    print!("({why}) ");
    leave(SKIPPED)
}

/// How much longer than usual the storms are to last.
pub fn storm() -> usize {
    let Ok(times) = std::env::var("FGRAPH_STORM") else { return 1 };
    times.parse().unwrap_or_else(|_| panic!("FGRAPH_STORM must be a number, not {times:?}"))
}

fn leave(status: libc::c_int) -> ! {
    // With nothing to write left there is nothing to report a failure to.
    let _ = std::io::stdout().flush();
    // SAFETY: ends the process without running anything else of it, since more than this thread may be there.
    unsafe { libc::_exit(status) }
}

/// Runs the cases that the command line names, or all.
pub fn main(cases: &[Case]) -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    if let Some(unknown) = wanted.iter().find(|name| cases.iter().all(|case| case.0 != **name)) {
        eprintln!("there is no case {unknown}");
        return ExitCode::from(64);
    }
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for (name, run) in cases {
        if !wanted.is_empty() && !wanted.iter().any(|wanted| wanted == name) {
            continue;
        }
        print!("{name} ... ");
        // A child must not inherit what is still to be written.
        std::io::stdout().flush().expect("standard output can be written");
        match in_child(*run) {
            Outcome::Passed => {
                println!("ok");
                passed += 1;
            }
            Outcome::Skipped => {
                println!("skipped");
                skipped += 1;
            }
            Outcome::Failed(how) => {
                println!("FAILED: {how}");
                failed += 1;
            }
        }
    }
    let and_skipped = if skipped == 0 { String::new() } else { format!(", {skipped} skipped") };
    println!("{passed} passed, {failed} failed{and_skipped}");
    ExitCode::from(u8::from(failed != 0))
}

enum Outcome {
    Passed,
    Skipped,
    Failed(String),
}

fn in_child(run: fn()) -> Outcome {
    // SAFETY: this process has one thread, so the child's copy of everything is whole.
    let child = unsafe { libc::fork() };
    if child == 0 {
        std::panic::set_hook(Box::new(|panic| {
            eprintln!("\n{panic}");
            // Not unwinding: frames of traced functions return through the tracer, which an unwinder does not know.
            leave(FAILED)
        }));
        process::prepare();
        run();
        leave(0)
    }
    if child < 0 {
        return Outcome::Failed(format!("fork(2): {}", std::io::Error::last_os_error()));
    }
    let start = Instant::now();
    let mut status = 0;
    loop {
        // SAFETY: `status` can be written; the child is ours.
        let ended = unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) };
        if ended == child {
            break;
        }
        if start.elapsed() > LIMIT {
            // SAFETY: the child has not been waited for, so its number is still its own.
            unsafe { libc::kill(child, libc::SIGKILL) };
            // SAFETY: as above.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            return Outcome::Failed(format!("not done after {} s", LIMIT.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    if libc::WIFSIGNALED(status) {
        return Outcome::Failed(format!("ended by signal {}", libc::WTERMSIG(status)));
    }
    match libc::WEXITSTATUS(status) {
        0 => Outcome::Passed,
        SKIPPED => Outcome::Skipped,
        status => Outcome::Failed(format!("status {status}")),
    }
}
