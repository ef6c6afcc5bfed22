//! Instances: tracers of several directories at once, each with functions and buffers of its own.

use alloc::{boxed::Box, format, string::String, vec, vec::Vec};
use core::hint::black_box;

use fgraph::MAX_INSTANCES;
use fgraph::tracefs::{FsError, Open, Tracefs};

use super::load;
use super::{CaseResult, Outcome, check, check_eq};
use crate::lock::IrqLock;
use crate::task::Task;
use crate::{buffers, sched, smp, tracefs, tracing};

// What each computes is unlike any other function: the compiler makes one of those that are alike.

#[inline(never)]
extern "C" fn alpha_outer(n: u64) -> u64 {
    black_box(alpha_inner(black_box(n)) ^ 0xa1)
}

#[inline(never)]
extern "C" fn alpha_inner(n: u64) -> u64 {
    black_box(n.rotate_left(3) ^ 0xa2)
}

#[inline(never)]
extern "C" fn beta(n: u64) -> u64 {
    black_box(n.rotate_left(5) ^ 0xb1)
}

#[inline(never)]
extern "C" fn gamma(n: u64) -> u64 {
    black_box(n.rotate_left(7) ^ 0xc1)
}

const NAMES: [&str; 4] = ["alpha_outer", "alpha_inner", "beta", "gamma"];

fn call_all() {
    black_box(alpha_outer(black_box(1)) ^ beta(black_box(2)) ^ gamma(black_box(3)));
}

/// The files, which are made once.
static FILES: IrqLock<Option<&'static Tracefs<'static>>> = IrqLock::new(None);

/// The files, with nothing recorded or traced.
struct Files(&'static Tracefs<'static>);

impl Files {
    fn new() -> Result<Self, Outcome> {
        if tracing::symbols().is_err() {
            return Err(Outcome::Skipped("no symbols are embedded in this kernel"));
        }
        let there = *FILES.lock();
        let fs = match there {
            Some(fs) => fs,
            None => {
                let made = tracefs::begin().map_err(|error| Outcome::Failed(format!("{error}")))?;
                let made: &'static Tracefs<'static> = Box::leak(Box::new(made));
                *FILES.lock() = Some(made);
                made
            }
        };
        let files = Self(fs);
        files.write("tracing_on", "1")?;
        files.write("trace", "")?;
        Ok(files)
    }

    fn write(&self, path: &str, text: &str) -> CaseResult {
        let written = self.0.write(path, text.as_bytes(), Open::Replace);
        written.map(drop).map_err(|error| Outcome::Failed(format!("{text:?} > {path}: {error}")))
    }

    fn mkdir(&self, path: &str) -> CaseResult {
        self.0.mkdir(path).map_err(|error| Outcome::Failed(format!("mkdir {path}: {error}")))
    }

    fn rmdir(&self, path: &str) -> CaseResult {
        self.0.rmdir(path).map_err(|error| Outcome::Failed(format!("rmdir {path}: {error}")))
    }

    /// How often each of the four functions is in a directory's trace.
    fn seen(&self, dir: &str) -> Result<[usize; 4], Outcome> {
        let path = format!("{dir}trace");
        let read = |error: FsError| Outcome::Failed(format!("{path}: {error}"));
        let mut reading = self.0.open(&path).map_err(read)?;
        let (mut bytes, mut text) = (vec![0; 4096], Vec::new());
        while let got @ 1.. = self.0.read(&mut reading, &mut bytes).map_err(read)? {
            text.extend_from_slice(&bytes[..got]);
        }
        let text = String::from_utf8_lossy(&text);
        // The function tracer writes `NAME <-CALLER`, the other `NAME(...)`; this file's other functions are not traced.
        let of =
            |name: &str| [" <-", "("].map(|end| text.matches(&format!("::instances::{name}{end}")).count());
        Ok(NAMES.map(|name| of(name).iter().sum()))
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // Of a case that failed half-way.
        for n in 0..MAX_INSTANCES {
            let _ = self.0.rmdir(&format!("instances/{n}"));
        }
        let _ = self.write("current_tracer", "nop");
        let _ = self.write("set_ftrace_filter", "");
        buffers::switch(false);
    }
}

/// Function_graph at the top and in an instance, function in another; one function is recorded by two of them.
pub fn instances_record_their_own_functions_alone() -> CaseResult {
    const CALLS: usize = 20;
    let files = Files::new()?;
    files.write("set_ftrace_filter", "*::instances::alpha_*")?;
    files.write("current_tracer", "function_graph")?;
    call_all();
    check_eq!(files.seen("")?, [1, 1, 0, 0], "calls in the only trace");
    for (dir, filter, tracer) in [
        ("instances/0/", "*::instances::beta", "function"),
        ("instances/1/", "*::instances::gamma *::instances::alpha_inner", "function_graph"),
    ] {
        files.mkdir(dir)?;
        files.write(&format!("{dir}set_ftrace_filter"), filter)?;
        files.write(&format!("{dir}current_tracer"), tracer)?;
    }
    check_eq!(fgraph::stats().patched, 4, "functions that are patched");
    (0..CALLS).for_each(|_| call_all());
    check_eq!(files.seen("")?, [CALLS + 1, CALLS + 1, 0, 0], "calls in the top directory's trace");
    check_eq!(files.seen("instances/0/")?, [0, 0, CALLS, 0], "calls in the function tracer's trace");
    check_eq!(files.seen("instances/1/")?, [0, CALLS, 0, CALLS], "calls in the other instance's trace");
    // What one leaves out, or forgets, the others have.
    files.write("instances/1/tracing_on", "0")?;
    files.write("trace", "")?;
    call_all();
    check_eq!(files.seen("")?, [1, 1, 0, 0], "calls in the trace that was emptied");
    check_eq!(files.seen("instances/1/")?, [0, CALLS, 0, CALLS], "calls where nothing is recorded");
    check_eq!(files.seen("instances/0/")?, [0, 0, CALLS + 1, 0], "calls where something is");
    // The top directory's limits hold for all, and its tasks for itself.
    files.write("instances/1/tracing_on", "1")?;
    files.write("instances/1/trace", "")?;
    files.write("max_graph_depth", "1")?;
    files.write("instances/1/set_ftrace_pid", "4294967295")?;
    call_all();
    files.write("max_graph_depth", "0")?;
    check_eq!(files.seen("")?, [2, 1, 0, 0], "calls within the depth");
    check_eq!(files.seen("instances/1/")?, [0; 4], "calls of a task that is not there");

    let pipe = files.0.open("instances/0/trace_pipe").map_err(|error| Outcome::Failed(format!("{error}")))?;
    let refused = files.0.rmdir("instances/0");
    check_eq!(refused, Err(FsError::Busy { readings: 1 }), "rmdir of an instance with an open pipe");
    drop(pipe);
    // With their tracers running.
    files.rmdir("instances/0")?;
    files.rmdir("instances/1")?;
    check_eq!(fgraph::stats().patched, 2, "functions that are patched without the instances");
    call_all();
    check_eq!(files.seen("")?, [3, 2, 0, 0], "calls in the trace that is left");
    drop(files);
    check_eq!(fgraph::stats().patched, 0, "functions that are left patched");
    Ok(())
}

/// Tasks on all CPUs call what is traced, while instances are made and removed with their tracers on.
pub fn instances_come_and_go_under_load() -> CaseResult {
    let files = Files::new()?;
    load::begin();
    let tasks: Vec<&'static Task> = (0..smp::count()).map(|_| sched::spawn("load", load::work)).collect();
    let done = (0..load::rounds(4, 100)).try_for_each(|round| {
        for n in 0..MAX_INSTANCES {
            let dir = format!("instances/{n}");
            files.mkdir(&dir)?;
            files.write(&format!("{dir}/set_ftrace_filter"), "*::load::outer *::load::inner")?;
            let tracer = if (n as u64 + round).is_multiple_of(2) { "function_graph" } else { "function" };
            files.write(&format!("{dir}/current_tracer"), tracer)?;
        }
        // Until each of them has something.
        for n in 0..MAX_INSTANCES {
            let path = format!("instances/{n}/trace_pipe");
            let failed = |error: FsError| Outcome::Failed(format!("{path}: {error}"));
            let mut pipe = files.0.open(&path).map_err(failed)?;
            while files.0.read(&mut pipe, &mut [0; 64]).map_err(failed)? == 0 {
                sched::yield_now();
            }
        }
        (0..MAX_INSTANCES).try_for_each(|n| files.rmdir(&format!("instances/{n}")))
    });
    load::end(&tasks);
    drop(files);
    done?;
    check!(fgraph::stats().patched == 0, "{} functions are left patched", fgraph::stats().patched);
    load::check(&tasks)
}
