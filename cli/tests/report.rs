//! `fgraph report`, from traces that the kernel's own ring buffers and writer made, and from text of Linux; its outputs opened by
//! programs that are not ours.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use fgraph::Context;
use fgraph::ring::Mode;
use fgraph::wire::file::{Chunks, Kind};
use fgraph::wire::{self, Mark, Record, STACK_MARK, TEXT_MARK, Who, pieces};

#[path = "common/trace.rs"]
mod trace;

use trace::{Kernel, million};

/// A file that does not stay.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str, bytes: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("fgraph-report-{name}-{}", std::process::id()));
        fs::write(&path, bytes).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn fgraph(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fgraph")).args(args).stdin(Stdio::null()).output().unwrap()
}

/// Exit code, standard output, standard error.
fn report(file: &str, args: &[&str]) -> (i32, String, String) {
    let output = fgraph(&[&["report", file], args].concat());
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

const SHOWN: [&str; 5] =
    ["sys_open", "path_lookup", "mycrate::foo", "find_inode", "core::fmt::Formatter::pad"];

/// A small trace of two CPUs.
fn small() -> Vec<u8> {
    let kernel = Kernel::new(2, 64, 8, Mode::Overwrite);
    kernel.call(0, 77, 2, 2, (1_200, 1_700), 1);
    kernel.call(0, 77, 1, 1, (1_100, 2_000), -2_i64 as u64);
    kernel.call(1, 78, 3, 0, (1_500, 2_500), 0x1234);
    let who = Who { task: 77, context: Context::Task };
    kernel.rings[0].record(&Record::Mark(Mark { id: 5, who, time: 2_100, data: &[7], cut: false }));
    kernel.call(0, 77, 4, 1, (2_200, 14_600), 0);
    kernel.call(0, 77, 0, 0, (1_000, 20_000), -2_i64 as u64);
    kernel.trace()
}

#[test]
fn a_trace_is_printed_as_linux_prints_it() {
    let trace = Temporary::new("text", &small());
    let (code, out, err) = report(trace.path(), &["--show", "retval"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let want = "# tracer: function_graph
#
# CPU  DURATION                  FUNCTION CALLS
# |     |   |                     |   |   |   |
 0)               |  sys_open() {
 0)               |    path_lookup() {
 0)   0.500 us    |      mycrate::foo(); /* ret=0x1 */
 1)   1.000 us    |  find_inode(); /* ret=0x1234 */
 0)   0.900 us    |    } /* path_lookup ret=-2 */
 0)               |    /* here: 0x7 */
 0) + 12.400 us   |    core::fmt::Formatter::pad(); /* ret=0x0 */
 0) + 19.000 us   |  } /* sys_open ret=-2 */
";
    // What stands one level deeper than the innermost call does so except in the outermost.
    let want = want.replace("|    /* here", "|  /* here");
    assert_eq!(out, want);
}

/// What the kernel's own files record as marks: a stack, and a text in several records.
fn marks() -> Vec<u8> {
    let kernel = Kernel::new(1, 64, 8, Mode::Overwrite);
    let who = Who { task: 77, context: Context::Task };
    let mark = |id, time, data: &[u64], cut| {
        assert!(kernel.rings[0].record(&Record::Mark(Mark { id, who, time, data, cut })));
    };
    let base = 0xffff_ffff_8100_0000;
    mark(STACK_MARK, 1_100, &[base + 0x40, base + 0x9c, base + 7, 0x1000], false);
    mark(STACK_MARK, 1_200, &[base + 0x40], true);
    kernel.call(0, 77, 0, 0, (1_000, 2_000), 0);
    for piece in pieces("é".repeat(100).as_bytes()) {
        assert!(kernel.rings[0].record(&Record::Mark(piece.mark(who, 2_100))));
    }
    mark(TEXT_MARK, 2_200, &[u64::from(b'x')], false);
    kernel.trace()
}

#[test]
fn stacks_and_texts_are_shown_as_such() {
    let trace = Temporary::new("marks", &marks());
    let (code, out, err) = report(trace.path(), &["--hide", "cpu,duration"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let want = format!(
        "sys_open() {{
/* <stack trace>
 => path_lookup
 => mycrate::foo
 => sys_open
 => 0x1000 */
/* <stack trace>
 => path_lookup
 => ... */
}}
/* {} */
/* x */
",
        "é".repeat(100)
    );
    let shown = out.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n"));
    assert_eq!(shown.collect::<String>(), want);

    let (code, out, err) = report(trace.path(), &["--format", "chrome"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    let of = |name: &str| -> Vec<_> {
        let events = json["traceEvents"].as_array().unwrap().iter();
        events.filter(|event| event["name"] == name).map(|event| event["args"]["stack"].to_string()).collect()
    };
    let stacks = [r#"["path_lookup","mycrate::foo","sys_open","0x1000"]"#, r#"["path_lookup","..."]"#];
    assert_eq!(of("stack trace"), stacks);
    assert_eq!(of(&"é".repeat(100)).len(), 1);

    let (code, out, err) = report(trace.path(), &["--format", "perfetto"]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.contains("path_lookup <- mycrate::foo <- sys_open <- 0x1000") && out.contains("stack trace"));
}

#[test]
fn what_is_not_wanted_is_left_out() {
    let trace = Temporary::new("select", &small());
    let lines = |args: &[&str]| {
        let (code, out, err) = report(trace.path(), &[args, &["--hide", "cpu,duration"]].concat());
        assert_eq!((code, err.as_str()), (0, ""), "{args:?}");
        let lines = out.lines().filter(|line| !line.starts_with('#')).map(str::trim).collect::<Vec<_>>();
        lines.join(" ")
    };
    assert_eq!(lines(&["--function", "*_i*"]), "find_inode();");
    assert_eq!(lines(&["--function", "mycrate::*"]), "mycrate::foo();");
    assert_eq!(lines(&["--not", "sys_*", "--cpu", "1"]), "find_inode();");
    assert_eq!(lines(&["--graph", "path_lookup"]), "path_lookup() { mycrate::foo(); }");
    assert_eq!(lines(&["--graph", "path_lookup", "--max-depth", "1"]), "path_lookup() { }");
    assert_eq!(lines(&["--task", "gate"]), "find_inode();");
    assert_eq!(lines(&["--task", "78"]), "find_inode();");
    assert_eq!(lines(&["--min-duration", "10"]), "sys_open() { core::fmt::Formatter::pad(); }");
    assert_eq!(
        lines(&["--from", "0.0000022"]),
        "find_inode() { core::fmt::Formatter::pad(); }"
            .replace("find_inode() { ", "")
            .replace(" }", " } /* sys_open */")
    );
    assert_eq!(lines(&["--to", "0.0000012"]), "sys_open() { path_lookup() { mycrate::foo();");
    assert_eq!(
        lines(&["--errors"]),
        "sys_open() { path_lookup() { } /* path_lookup ret=-2 */ } /* sys_open ret=-2 */"
    );
}

#[test]
fn tables_and_stacks_add_up() {
    let trace = Temporary::new("sums", &small());
    let (code, out, _) = report(trace.path(), &["--format", "table"]);
    assert_eq!(code, 0);
    let rows: Vec<Vec<&str>> = out.lines().map(|line| line.split_whitespace().collect()).collect();
    let row = |name| rows.iter().find(|row| row.last() == Some(&name)).unwrap();
    assert_eq!(row("sys_open")[..8], ["1", "19.000", "5.700", "19.000", "19.000", "19.000", "19.000", "1"]);
    assert_eq!(row("path_lookup")[..3], ["1", "0.900", "0.400"]);
    assert_eq!(rows[1].last(), Some(&"sys_open"), "the longest comes first");
    let (_, out, _) = report(trace.path(), &["--format", "table", "--sort", "name", "--limit", "1"]);
    assert!(out.contains(" core::fmt::Formatter::pad\nand 4 functions more\n"), "{out}");

    let (code, out, _) = report(trace.path(), &["--format", "folded"]);
    let want = "door;sys_open 5700\ndoor;sys_open;core::fmt::Formatter::pad 12400\n\
                door;sys_open;path_lookup 400\ndoor;sys_open;path_lookup;mycrate::foo 500\ngate;find_inode 1000\n";
    assert_eq!((code, out.as_str()), (0, want));

    let (code, out, _) = report(trace.path(), &["--format", "svg"]);
    assert_eq!(code, 0);
    assert!(out.contains("<title>mycrate::foo: 0.500 us, 2.50 %, alone 0.500 us</title>"), "{out}");
    assert_eq!(out.matches("<g>").count(), out.matches("</g>").count());
}

#[test]
fn chrome_json_has_what_its_viewers_ask_for() {
    let trace = Temporary::new("chrome", &small());
    let (code, out, _) = report(trace.path(), &["--format", "chrome"]);
    assert_eq!(code, 0);
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    let events = json["traceEvents"].as_array().unwrap();
    let mut open: HashMap<u64, Vec<&str>> = HashMap::new();
    for event in events {
        let (phase, tid) = (event["ph"].as_str().unwrap(), event["tid"].as_u64().unwrap());
        assert!(event["pid"].is_u64() && event["ts"].is_f64() && event["name"].is_string(), "{event}");
        match phase {
            "B" => open.entry(tid).or_default().push(event["name"].as_str().unwrap()),
            "E" => assert_eq!(open.get_mut(&tid).unwrap().pop(), event["name"].as_str(), "{event}"),
            "X" => assert!(event["dur"].is_f64()),
            "i" => assert!(event["s"].is_string()),
            "M" => assert!(event["args"]["name"].is_string()),
            other => panic!("{other}"),
        }
    }
    assert!(open.values().all(Vec::is_empty));
    let foo = events.iter().find(|event| event["name"] == "mycrate::foo").unwrap();
    assert_eq!(
        (foo["ts"].as_f64(), foo["dur"].as_f64(), foo["tid"].as_u64()),
        (Some(1.2), Some(0.5), Some(77))
    );
}

#[test]
fn perfetto_is_protobuf_that_protoc_can_read() {
    let trace = Temporary::new("perfetto", &small());
    let out = Temporary::new("perfetto-out", b"");
    assert_eq!(
        report(trace.path(), &["--format", "perfetto", "--output", out.path()]),
        (0, String::new(), String::new())
    );
    let file = fs::File::open(&out.0).unwrap();
    let Ok(decoded) = Command::new("protoc").arg("--decode_raw").stdin(file).output() else {
        println!("skipped: protoc is not installed");
        return;
    };
    assert!(decoded.status.success());
    let text = String::from_utf8_lossy(&decoded.stdout);
    for name in SHOWN {
        assert_eq!(text.matches(&format!("2: \"{name}\"")).count(), 1, "{name}: {text}");
    }
    // Type of event: as many begin as end.
    let begins = text.lines().filter(|line| line.trim() == "9: 1").count();
    assert_eq!((begins, text.lines().filter(|line| line.trim() == "9: 2").count()), (5, 5));
    assert_eq!(text.lines().filter(|line| line.trim() == "9: 3").count(), 1);
    assert!(text.contains("8: 1200\n"), "{text}");
}

#[test]
fn trace_cmd_shows_the_same_calls() {
    let trace = Temporary::new("trace-dat", &small());
    let out = Temporary::new("trace-dat-out", b"");
    assert_eq!(
        report(trace.path(), &["--format", "trace-dat", "--output", out.path()]),
        (0, String::new(), String::new())
    );
    let Ok(shown) = Command::new("trace-cmd").args(["report", out.path()]).output() else {
        println!("skipped: trace-cmd is not installed");
        return;
    };
    let text = String::from_utf8_lossy(&shown.stdout);
    assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
    let calls: Vec<String> = text
        .lines()
        .filter_map(|line| {
            let (_, call) = line.split_once("funcgraph_")?;
            Some(call.split_whitespace().skip(1).collect::<Vec<_>>().join(" "))
        })
        .collect();
    // It folds a leaf only if no other CPU did anything meanwhile, and something always did here.
    let want = [
        "| sys_open() {",
        "| path_lookup() {",
        "| mycrate::foo() {",
        "| find_inode() {",
        "0.500 us | }",
        "0.900 us | }",
        "| core::fmt::Formatter::pad() {",
        "1.000 us | }",
        "+ 12.400 us | }",
        "+ 19.000 us | }",
    ];
    assert_eq!(calls, want, "{text}");
    assert!(text.contains("door-77") && text.contains("here: 0x7"), "{text}");
}

/// Every page that is lost is told where it is missing, and everything else is there.
#[test]
fn a_damaged_trace_gives_the_rest_and_says_so() {
    let kernel = Kernel::new(2, 64, 32, Mode::Overwrite);
    for n in 0..600 {
        kernel.call(n % 2, 77, 1, 0, (100 * n as u64, 100 * n as u64 + 50), 1);
    }
    let bytes = kernel.trace();
    let pages: Vec<(usize, usize, u64)> = Chunks::new(&bytes)
        .flatten()
        .filter(|chunk| chunk.head.kind == Kind::Page)
        .map(|chunk| {
            let words: Vec<u64> =
                chunk.payload.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
            let count = wire::page(&words).unwrap().1.count() as u64;
            (chunk.at as usize, chunk.head.chunk_len(), count)
        })
        .collect();
    assert!(pages.len() > 10);
    for (hit, &(at, len, records)) in pages.iter().enumerate() {
        let mut damaged = bytes.clone();
        let place = at + hit * 7 % len.min(200);
        damaged[place] ^= 0x10;
        let trace = Temporary::new("damaged", &damaged);
        let (code, out, err) = report(trace.path(), &[]);
        assert_eq!(code, 1, "page {hit}");
        assert!(err.contains(&format!("byte {at}: ")), "page {hit}: {err}");
        assert_eq!(out.matches("path_lookup();").count() as u64, 600 - records, "page {hit}");
        assert_eq!(out.matches(&format!("[LOST {records} EVENTS]")).count(), 1, "page {hit}: {out}");
    }
    for cut in (0..bytes.len()).step_by(bytes.len() / 40) {
        let trace = Temporary::new("cut", &bytes[..cut]);
        let (code, out, err) = report(trace.path(), &[]);
        let whole: u64 = pages.iter().filter(|(at, len, _)| at + len <= cut).map(|page| page.2).sum();
        if Chunks::new(&bytes[..cut]).any(|chunk| chunk.is_ok()) {
            assert_eq!(code, 1, "{cut} bytes: {err}");
            assert!(err.contains("the trace has no end"), "{cut} bytes: {err}");
        } else {
            assert_eq!(code, 2, "{cut} bytes: {err}");
        }
        assert_eq!(out.matches("path_lookup();").count() as u64, whole, "{cut} bytes");
    }
}

#[test]
fn a_file_that_is_no_trace_is_named_for_what_it_is() {
    for (bytes, want) in [
        (&b""[..], " is empty"),
        (b"\x7fELF\x02\x01", "an ELF file"),
        (b"\x17\x08\x44tracing6", "trace.dat"),
        (b"# tracer: function\n#\n", "text of the function tracer"),
        (b"# tracer: nop\n#\n", "text of another tracer"),
        (b"hello world\n", "it begins with hello world"),
    ] {
        let trace = Temporary::new("foreign", bytes);
        let (code, out, err) = report(trace.path(), &[]);
        assert_eq!((code, out.as_str()), (2, ""));
        assert!(err.starts_with("fgraph: ") && err.contains(want), "{err}");
    }
}

#[test]
fn traces_of_linux_come_out_as_they_went_in() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/samples/traces");
    if !directory.is_dir() {
        println!("skipped: there are no recorded traces at ../../shared/samples/traces");
        return;
    }
    for machine in ["arm64", "x86_64"] {
        for (kind, args) in [
            ("fg-all", &[][..]),
            ("fg-default-vfs_read", &[]),
            ("fg-proc-abstime-tail", &["--show", "proc,abstime,tail"]),
        ] {
            let path = directory.join(format!("linux-6.12-{machine}-{kind}.txt"));
            let (code, out, err) = report(path.to_str().unwrap(), args);
            assert_eq!((code, err.as_str()), (0, ""), "{}", path.display());
            assert!(out == fs::read_to_string(&path).unwrap(), "{} differs", path.display());
        }
    }
}

#[test]
fn lines_of_text_that_make_no_sense_are_told_and_the_others_are_shown() {
    let text = "# tracer: function_graph\n#\n# CPU  DURATION                  FUNCTION CALLS\n 0)   1.000 us    |  one();\n\
                garbage\n 0)   1.000 us    |  two(); /* <-three+0x1/0x2 ret=-22 */\n";
    let trace = Temporary::new("lines", text.as_bytes());
    let (code, out, err) = report(trace.path(), &["--show", "retval,retaddr"]);
    assert_eq!(code, 1);
    assert!(err.contains("line 5: ") && err.contains("garbage"), "{err}");
    assert!(out.ends_with("|  one();\n 0)   1.000 us    |  two(); /* <-three+0x1/0x2 ret=-22 */\n"), "{out}");
}

/// A million calls on four CPUs, nested, with more pages than a buffer of a small machine has.
#[test]
fn a_million_calls_are_counted_exactly() {
    let trace = Temporary::new("million", &million(250_000));
    let (code, out, err) = report(trace.path(), &["--format", "table", "--sort", "name"]);
    assert_eq!((code, err.as_str()), (0, ""));
    for name in ["sys_open", "path_lookup", "find_inode", "mycrate::foo"] {
        let row = out.lines().find(|line| line.ends_with(&format!(" {name}"))).unwrap();
        assert!(row.trim_start().starts_with("250000 "), "{row}");
    }
    let row: Vec<&str> = out.lines().find(|l| l.ends_with(" sys_open")).unwrap().split_whitespace().collect();
    assert_eq!(row[1..3], ["15000.000", "7500.000"], "total and self");
}

#[test]
fn completions_and_the_manual_are_there() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = fgraph(&["completions", shell]);
        assert!(
            output.status.success() && String::from_utf8_lossy(&output.stdout).contains("report"),
            "{shell}"
        );
    }
    let output = fgraph(&["man"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains(".TH") && text.contains("trace\\-dat"), "{text}");
}
