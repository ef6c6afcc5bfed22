//! Every file: what it says, what it takes, what it refuses and what `error_log` has then.

use super::mock::Mock;
use super::tracing::{Tracer, TracingError};
use super::*;
use crate::testing::storm;
use std::string::{String, ToString};
use std::vec::Vec;

fn cat_in(fs: &Tracefs<'_>, path: &str, piece: usize) -> Result<String, FsError> {
    let mut reading = fs.open(path)?;
    let (mut all, mut bytes) = (Vec::new(), vec![0; piece]);
    loop {
        match fs.read(&mut reading, &mut bytes)? {
            0 => return Ok(String::from_utf8(all).expect("text")),
            got => all.extend_from_slice(&bytes[..got]),
        }
    }
}

fn cat(fs: &Tracefs<'_>, path: &str) -> String {
    cat_in(fs, path, 4096).expect("a file that can be read")
}

fn echo(fs: &Tracefs<'_>, text: &str, path: &str) -> Result<usize, FsError> {
    fs.write(path, text.as_bytes(), Open::Replace)
}

/// All files, by path.
fn files(fs: &Tracefs<'_>) -> Vec<(String, Entry)> {
    let (mut dirs, mut files) = (vec![String::new()], Vec::new());
    while let Some(dir) = dirs.pop() {
        fs.list(&dir, |entry| {
            let path = if dir.is_empty() { entry.to_string() } else { std::format!("{dir}/{entry}") };
            if entry.is_dir { dirs.push(path) } else { files.push((path, entry)) }
        })
        .expect("a directory");
    }
    files
}

#[test]
fn what_each_file_says_at_first() {
    let mock = Mock::new();
    let fs = Tracefs::new(&mock, &mock);
    for (path, text) in [
        ("available_tracers", "function_graph function nop\n"),
        ("current_tracer", "nop\n"),
        ("buffer_size_kb", "64\n"),
        ("buffer_total_size_kb", "256\n"),
        ("per_cpu/cpu3/buffer_size_kb", "64\n"),
        ("error_log", ""),
        ("function_profile_enabled", "0\n"),
        ("max_graph_depth", "0\n"),
        ("tracing_thresh", "0\n"),
        ("tracing_on", "1\n"),
        ("tracing_cpumask", "f\n"),
        ("trace_clock", "[local]\n"),
        ("set_ftrace_pid", "no pid\n"),
        ("set_ftrace_notrace_pid", "no pid\n"),
        ("saved_cmdlines", "1 main\n12 a b\n"),
        ("set_ftrace_filter", "f:traceoff:count=3\n"),
        ("set_ftrace_notrace", ""),
        ("available_filter_functions", "A"),
        ("enabled_functions", "E"),
        ("touched_functions", "T"),
        ("trace", "# tracer: mock\none {\n} /* one */\n"),
        ("per_cpu/cpu1/trace", "# tracer: mock\none {\n} /* one */\n"),
        ("trace_stat/function2", "23"),
        ("options/funcgraph-cpu", "1\n"),
        ("options/funcgraph-tail", "0\n"),
        (
            "per_cpu/cpu0/stats",
            "entries: 2\noverrun: 0\ncommit overrun: 0\nbytes: 96\noldest event ts:     0.001500\n\
             now ts:     2.345678\ndropped events: 0\nread events: 0\n",
        ),
    ] {
        assert_eq!(cat(&fs, path), text, "{path}");
    }
    let options = cat(&fs, "trace_options");
    assert!(options.contains("nofuncgraph-tail\nno") && options.contains("\nfuncgraph-cpu\n"), "{options}");
    assert!(!options.contains("func-args"));
    assert!(cat(&fs, "snapshot").contains("# * Snapshot is freed *\n"));
    assert!(cat(&fs, "README").contains("set_graph_function"));
    assert_eq!(cat(&fs, "trace_pipe"), "one {\n} /* one */\n");
    assert_eq!((cat(&fs, "trace_pipe"), cat(&fs, "trace")), (String::new(), "# tracer: mock\n".into()));
}

#[test]
fn what_is_written_is_read_back() {
    let mock = Mock::new();
    let fs = Tracefs::new(&mock, &mock);
    for (path, written, read) in [
        ("current_tracer", "function_graph\n", "function_graph\n"),
        ("buffer_size_kb", "128", "128\n"),
        ("per_cpu/cpu1/buffer_size_kb", "4\n", "4\n"),
        ("buffer_size_kb", "16\n", "16\n"),
        ("function_profile_enabled", "1", "1\n"),
        ("max_graph_depth", " 3 ", "3\n"),
        ("tracing_thresh", "100\n", "100\n"),
        ("tracing_on", "0\n", "0\n"),
        ("tracing_on", "5", "1\n"),
        ("tracing_cpumask", "5\n", "5\n"),
        ("trace_clock", "local", "[local]\n"),
        ("set_ftrace_pid", "7 3 7\n", "3\n7\n"),
        ("set_ftrace_notrace_pid", "9", "9\n"),
        ("set_ftrace_pid", "\n", "no pid\n"),
        ("set_ftrace_notrace", "a b", "a\nb\n"),
        ("set_graph_function", "c", "c\n"),
        ("set_graph_notrace", "d", "d\n"),
        ("set_ftrace_filter", "x", "x\nf:traceoff:count=3\n"),
        ("options/funcgraph-tail", "1", "1\n"),
        ("options/sleep-time", "0", "0\n"),
    ] {
        assert_eq!(echo(&fs, written, path), Ok(written.len()), "{path}");
        assert_eq!(cat(&fs, path), read, "{path}");
    }
    echo(&fs, "nofuncgraph-tail", "trace_options").expect("an option");
    assert_eq!(cat(&fs, "options/funcgraph-tail"), "0\n");
    echo(&fs, "graph-time", "trace_options").expect("an option");
    fs.write("set_ftrace_pid", b"4", Open::Append).expect("a pid");
    fs.write("set_ftrace_pid", b"2", Open::Append).expect("a pid");
    assert_eq!(cat(&fs, "set_ftrace_pid"), "2\n4\n");
    fs.write("set_graph_function", b"e", Open::Append).expect("a word");
    assert_eq!(cat(&fs, "set_graph_function"), "c\ne\n");
    echo(&fs, "hello\n\nyou\n", "trace_marker").expect("a marker");
    assert!(cat(&fs, "trace").ends_with("/* hello */\n/* you */\n"));
    fs.write("trace", b"x", Open::Append).expect("nothing happens");
    assert!(cat(&fs, "trace").ends_with("you */\n"));
    echo(&fs, "", "trace").expect("cleared");
    assert_eq!(cat(&fs, "trace"), "# tracer: mock\n");
    echo(&fs, "1", "snapshot").expect("a snapshot");
    assert_eq!(cat(&fs, "snapshot"), "# tracer: mock\n");
    echo(&fs, "4", "per_cpu/cpu2/buffer_size_kb").expect("a size");
    assert_eq!(cat(&fs, "buffer_size_kb"), "X\n");
}

#[test]
fn what_is_refused_changes_nothing_and_is_logged_with_a_caret() {
    let mock = Mock::new();
    let fs = Tracefs::new(&mock, &mock);
    let before = mock.facts();
    for (path, text, column, cause) in [
        ("current_tracer", "nope\n", 0, Cause::NoSuchTracer),
        ("current_tracer", "", 0, Cause::Empty),
        ("current_tracer", "nop nop", 4, Cause::SecondWord),
        ("buffer_size_kb", "0", 0, Cause::Zero),
        ("buffer_size_kb", "2k", 1, Cause::NotNumber),
        ("buffer_size_kb", "9999", 0, Cause::Tracing(TracingError::NoMemory { kb: 9999, most_kb: 1024 })),
        ("function_profile_enabled", "2", 0, Cause::NotSwitch),
        ("max_graph_depth", "4294967296", 0, Cause::TooLarge { most: u32::MAX.into() }),
        ("tracing_thresh", "-1", 0, Cause::NotNumber),
        ("tracing_on", "on", 0, Cause::NotNumber),
        ("tracing_cpumask", "10", 0, Cause::NoSuchCpus { cpus: 4 }),
        ("trace_clock", "tai", 0, Cause::NoSuchClock),
        ("trace_options", "func-args", 0, Cause::NoSuchOption),
        ("options/overwrite", "2", 0, Cause::NotSwitch),
        ("set_ftrace_pid", "1 x", 2, Cause::NotNumber),
        ("set_ftrace_filter", "good bad", 5, Cause::NoSuchCommand),
        ("per_cpu/cpu0/snapshot", "1", 0, Cause::Tracing(TracingError::NotSupported)),
    ] {
        echo(&fs, "", "error_log").expect("emptied");
        let refused = Refused { column, cause };
        assert_eq!(echo(&fs, text, path), Err(FsError::Refused(refused)), "{path} {text:?}");
        let line = text.lines().next().unwrap_or("");
        let caret = " ".repeat("  Command: ".len() + column);
        let logged = std::format!("[    7.000042] {path}: error: {cause}\n  Command: {line}\n{caret}^\n");
        assert_eq!(cat(&fs, "error_log"), logged);
        assert_eq!(mock.facts(), before, "{path} {text:?}");
    }
    let many: String = (0..=MAX_PIDS).map(|pid| std::format!("{pid} ")).collect();
    assert!(matches!(echo(&fs, &many, "set_ftrace_pid"), Err(FsError::Refused(_))));
    assert!(matches!(
        fs.write("set_ftrace_notrace", b"a\xff", Open::Append),
        Err(FsError::Refused(Refused { column: 1, cause: Cause::NotText }))
    ));
    assert_eq!(mock.facts(), before);
}

#[test]
fn what_is_not_there_or_cannot_be_done_says_so_and_is_not_logged() {
    let mock = Mock::new();
    let fs = Tracefs::new(&mock, &mock);
    assert_eq!(cat_in(&fs, "nothing", 1), Err(FsError::NoSuchFile));
    assert_eq!(cat_in(&fs, "options", 1), Err(FsError::IsDirectory));
    assert_eq!(cat_in(&fs, "trace_marker", 1), Err(FsError::NotReadable));
    assert_eq!(echo(&fs, "x", "trace_pipe"), Err(FsError::NotWritable));
    assert_eq!(echo(&fs, "x", "README"), Err(FsError::NotWritable));
    assert_eq!(fs.list("trace", |_| {}), Err(FsError::NotDirectory));
    assert_eq!(fs.mkdir("instances/foo"), Err(FsError::TooManyInstances { max: 0 }));
    assert_eq!(fs.read_at("trace_pipe", 0, &mut [0; 4]), Err(FsError::NoOffsets));
    assert_eq!(cat(&fs, "error_log"), "");
    assert_eq!(FsError::NoSuchFile.errno(), 2);
    assert_eq!(FsError::Refused(Refused::at(0, Cause::Zero)).errno(), 22);
}

#[test]
fn a_file_read_in_pieces_is_the_file() {
    let mock = Mock::new();
    let fs = Tracefs::new(&mock, &mock);
    echo(&fs, "nope", "current_tracer").expect_err("no such tracer");
    echo(&fs, "some words of it", "set_ftrace_filter").expect("words");
    for (path, entry) in files(&fs) {
        if !entry.reads || path.ends_with("trace_pipe") {
            continue;
        }
        let whole = cat(&fs, &path);
        for piece in [1, 7, 100] {
            assert_eq!(cat_in(&fs, &path, piece).as_ref(), Ok(&whole), "{path} by {piece}");
        }
        for offset in [0, 1, whole.len() / 2, whole.len(), whole.len() + 9] {
            let mut bytes = vec![0; whole.len() + 1];
            let mut all = 0;
            while let Ok(got @ 1..) = fs.read_at(&path, offset + all, &mut bytes[all..]) {
                all += got;
            }
            assert_eq!(
                bytes.get(..all),
                Some(whole.as_bytes().get(offset..).unwrap_or(&[])),
                "{path} {offset}"
            );
        }
    }
}

#[test]
fn an_event_with_a_long_text_is_cut_and_ends_its_line() {
    let mock = Mock::new();
    let fs = Tracefs::new(&mock, &mock);
    mock.0.lock().expect("mock").events = vec!["x".repeat(MAX_TEXT * 2) + "\n", "next\n".into()];
    let text = cat_in(&fs, "trace_pipe", 1000).expect("a pipe");
    assert_eq!(text, "x".repeat(MAX_TEXT - 1) + "\nnext\n");
}

#[test]
fn no_bytes_are_too_much_for_any_file() {
    let mock = Mock::new();
    let fs = Tracefs::new(&mock, &mock);
    let files = files(&fs);
    let likely = b"0123456789abf \n:!*,#-no\xc3\xa9\xff";
    storm(400, 4, |random| {
        let (path, entry) = random.pick(&files);
        let bytes: Vec<u8> = (0..random.below(30)).map(|_| *random.pick(likely)).collect();
        let open = if random.one_in(2) { Open::Replace } else { Open::Append };
        let before = mock.facts();
        match fs.write(path, &bytes, open) {
            Ok(len) => assert!(entry.writes && len == bytes.len()),
            Err(FsError::Refused(refused)) => {
                assert!(refused.column <= bytes.len(), "{path}: {refused:?}");
                assert_eq!(mock.facts(), before, "{path}");
                let log = cat(&fs, "error_log");
                assert!(log.contains(&refused.cause.to_string()) && log.ends_with("^\n"), "{log}");
            }
            Err(error) => assert_eq!((error, entry.writes), (FsError::NotWritable, false)),
        }
        assert!(Tracer::ALL.contains(&mock.facts().tracer));
    });
}
