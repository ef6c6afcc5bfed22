//! Directories that are made and removed, and whose files are whose.

use super::super::mock::{Mock, MockInstance};
use super::super::tracing::Tracer;
use super::super::{Cause, Open, Refused, Tracefs};
use super::*;
use std::string::{String, ToString};
use std::vec::Vec;

/// The files of a kernel with places for so many instances; the last one has no memory.
fn with_places(count: usize, test: impl FnOnce(&Tracefs<'_>, &Mock, &[MockInstance])) {
    let instances: Vec<MockInstance> = (0..count).map(|n| MockInstance::new(n + 1 == count)).collect();
    let places: Vec<InstancePlace<'_>> =
        instances.iter().map(|instance| InstancePlace::new(instance)).collect();
    let top = Mock::new();
    test(&Tracefs::new(&top, &top).with_instances(&places), &top, &instances);
}

fn list(fs: &Tracefs<'_>, path: &str) -> Vec<String> {
    let mut names = Vec::new();
    fs.list(path, |entry| names.push(entry.to_string())).expect("a directory");
    names
}

fn cat(fs: &Tracefs<'_>, path: &str) -> String {
    let mut bytes = vec![0; 4096];
    let got = fs.read_at(path, 0, &mut bytes).expect("a file");
    String::from_utf8(bytes[..got].to_vec()).expect("text")
}

fn echo(fs: &Tracefs<'_>, text: &str, path: &str) -> Result<usize, FsError> {
    fs.write(path, text.as_bytes(), Open::Replace)
}

#[test]
fn an_instance_has_the_files_that_linux_gives_it() {
    with_places(2, |fs, _, _| {
        assert_eq!(list(fs, "instances"), [""; 0]);
        assert_eq!(fs.mkdir("instances/foo"), Ok(()));
        assert_eq!(list(fs, "instances"), ["foo"]);
        // As Linux 6.12 lists them, as far as this crate has them at the top.
        let files = [
            "available_tracers",
            "buffer_size_kb",
            "buffer_total_size_kb",
            "current_tracer",
            "error_log",
            "set_ftrace_filter",
            "set_ftrace_notrace",
            "set_ftrace_notrace_pid",
            "set_ftrace_pid",
            "snapshot",
            "trace",
            "trace_clock",
            "trace_marker",
            "trace_options",
            "trace_pipe",
            "tracing_cpumask",
            "tracing_on",
            "options",
            "per_cpu",
        ];
        assert_eq!(list(fs, "instances/foo"), files);
        assert_eq!(list(fs, "instances/foo/per_cpu/cpu1"), list(fs, "per_cpu/cpu1"));
        let mut options = list(fs, "options");
        options.retain(|option| !["graph-time", "printk-msg-only"].contains(&option.as_str()));
        assert_eq!(list(fs, "instances/foo/options"), options);
        for path in ["max_graph_depth", "set_graph_function", "instances", "trace_stat", "options/graph-time"]
        {
            let path = std::format!("instances/foo/{path}");
            assert_eq!(fs.open(&path).map(drop), Err(FsError::NoSuchFile), "{path}");
        }
    });
}

#[test]
fn each_has_its_own_of_everything() {
    with_places(3, |fs, top, instances| {
        assert_eq!((fs.mkdir("instances/a"), fs.mkdir("/instances//./b/")), (Ok(()), Ok(())));
        let before = (top.facts(), instances[0].mock.facts());
        for (text, path) in [
            ("function", "current_tracer"),
            ("vfs_*", "set_ftrace_filter"),
            ("7", "set_ftrace_pid"),
            ("0", "tracing_on"),
            ("128", "per_cpu/cpu1/buffer_size_kb"),
            ("1", "options/funcgraph-tail"),
            ("hello", "trace_marker"),
        ] {
            let path = std::format!("instances/b/{path}");
            assert_eq!(echo(fs, text, &path), Ok(text.len()), "{path}");
        }
        assert_eq!((top.facts(), instances[0].mock.facts()), before);
        assert_eq!(instances[1].mock.facts().tracer, Tracer::Function);
        assert_eq!(cat(fs, "instances/b/set_ftrace_pid"), "7\n");
        assert_eq!(cat(fs, "instances/a/set_ftrace_pid"), "no pid\n");
        assert_eq!(cat(fs, "set_ftrace_pid"), "no pid\n");
        // What is refused is in the log of who refused it.
        let refused = Refused { column: 0, cause: Cause::NoSuchTracer };
        assert_eq!(echo(fs, "nope", "instances/b/current_tracer"), Err(FsError::Refused(refused)));
        assert!(cat(fs, "instances/b/error_log").contains("current_tracer: error: no such tracer"));
        assert_eq!((cat(fs, "error_log"), cat(fs, "instances/a/error_log")), (String::new(), String::new()));
        assert_eq!(fs.rmdir("instances/b"), Ok(()));
        assert_eq!(fs.mkdir("instances/c"), Ok(()));
        assert_eq!(cat(fs, "instances/c/error_log"), "", "the log of who was there before");
    });
}

#[test]
fn directories_are_made_where_and_as_linux_does() {
    let long = std::format!("instances/{}", "x".repeat(MAX_INSTANCE_NAME + 1));
    let longest = &long[..long.len() - 1];
    with_places(4, |fs, _, instances| {
        assert_eq!(fs.mkdir("instances/.x"), Ok(()));
        assert_eq!(fs.mkdir(longest), Ok(()));
        assert_eq!(cat(fs, &std::format!("{longest}/current_tracer")), "nop\n");
        for (path, error, errno) in [
            ("", FsError::NoSuchFile, 2),
            ("/", FsError::Exists, 17),
            ("instances/", FsError::Exists, 17),
            ("instances/.", FsError::Exists, 17),
            ("instances/..", FsError::Exists, 17),
            ("instances/.x", FsError::Exists, 17),
            ("instances/.x/trace", FsError::Exists, 17),
            ("trace", FsError::Exists, 17),
            ("new", FsError::NotPermitted, 1),
            ("options/new", FsError::NotPermitted, 1),
            ("instances/.x/new", FsError::NotPermitted, 1),
            ("instances/none/new", FsError::NoSuchFile, 2),
            ("trace/new", FsError::NotDirectory, 20),
            (&long, FsError::NameTooLong { len: MAX_INSTANCE_NAME + 1, max: MAX_INSTANCE_NAME }, 36),
        ] {
            assert_eq!(fs.mkdir(path), Err(error), "{path}");
            assert_eq!(error.errno(), errno, "{path}");
        }
        for (path, error, errno) in [
            ("instances", FsError::NotPermitted, 1),
            ("/", FsError::NotPermitted, 1),
            ("options", FsError::NotPermitted, 1),
            ("instances/.x/options", FsError::NotPermitted, 1),
            ("instances/none", FsError::NoSuchFile, 2),
            ("instances/.x/trace", FsError::NotDirectory, 20),
        ] {
            assert_eq!(fs.rmdir(path), Err(error), "{path}");
            assert_eq!(error.errno(), errno, "{path}");
        }
        // The last place has no memory; without a place there is none to ask.
        assert_eq!(fs.mkdir("instances/third"), Ok(()));
        let no_memory = FsError::Tracing(TracingError::NoMemory { kb: 64, most_kb: 0 });
        assert_eq!((fs.mkdir("instances/fourth"), no_memory.errno()), (Err(no_memory), 12));
        assert_eq!(list(fs, "instances").len(), 3);
        let counts: Vec<_> = instances.iter().map(|instance| *instance.made.lock().expect("mock")).collect();
        assert_eq!(counts, [(1, 0), (1, 0), (1, 0), (0, 0)]);
    });
}

#[test]
fn all_places_taken_is_an_error_and_a_place_is_given_out_again() {
    with_places(0, |fs, _, _| {
        let none = FsError::TooManyInstances { max: 0 };
        assert_eq!((fs.mkdir("instances/a"), none.errno()), (Err(none), 28));
    });
    with_places(3, |fs, _, instances| {
        for round in 0..3 {
            assert_eq!((fs.mkdir("instances/a"), fs.mkdir("instances/b")), (Ok(()), Ok(())));
            assert_eq!(fs.rmdir("instances/a"), Ok(()));
            assert_eq!(fs.open("instances/a/trace").map(drop), Err(FsError::NoSuchFile));
            assert_eq!(list(fs, "instances"), ["b"]);
            assert_eq!(fs.rmdir("instances/b"), Ok(()));
            assert_eq!(*instances[1].made.lock().expect("mock"), (round + 1, round + 1));
        }
    });
}

#[test]
fn an_instance_that_is_read_is_busy() {
    with_places(2, |fs, _, instances| {
        assert_eq!(fs.mkdir("instances/a"), Ok(()));
        let mut pipe = fs.open("instances/a/trace_pipe").expect("a pipe");
        let tracer = fs.open("instances/a/current_tracer").expect("a file");
        let top = fs.open("trace").expect("a file");
        assert_eq!(fs.rmdir("instances/a"), Err(FsError::Busy { readings: 2 }));
        assert_eq!(fs.read(&mut pipe, &mut [0; 64]).map(|got| got > 0), Ok(true));
        drop(pipe);
        assert_eq!(fs.rmdir("instances/a"), Err(FsError::Busy { readings: 1 }));
        assert_eq!(instances[0].made.lock().expect("mock").1, 0);
        drop(tracer);
        assert_eq!(fs.rmdir("instances/a"), Ok(()));
        drop(top);
        assert_eq!(FsError::Busy { readings: 1 }.errno(), 16);
        // What cannot be opened holds nothing, and neither does a reading at an offset.
        assert_eq!(fs.mkdir("instances/a"), Ok(()));
        assert_eq!(fs.open("instances/a/trace_marker").map(drop), Err(FsError::NotReadable));
        assert_eq!(cat(fs, "instances/a/current_tracer"), "nop\n");
        assert_eq!(fs.rmdir("instances/a"), Ok(()));
    });
}
