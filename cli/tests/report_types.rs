//! `fgraph report --kernel`: values by the types of an image, from its debug information, and which calls failed.

use std::fs;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicU64;

use fgraph::Context;
use fgraph::ring::{Buffer, Mode, Ring};
use fgraph::wire::file::{Function, FunctionFlags, Meta, Writer};
use fgraph::wire::{Call, Record, Who};
use fgraph_cli::image::Image;

const SOURCE: &str = r#"
enum state { IDLE, BUSY };
struct pair { long first, second; };
struct large { long words[4]; };
const char name[] = "eth0";
__attribute__((noinline)) void nothing(int n) { __asm__ volatile("" : "+r"(n)); }
__attribute__((noinline)) int fails(int fd, enum state state) { __asm__ volatile("" : "+r"(fd)); return fd + state; }
__attribute__((noinline)) unsigned large_number(unsigned n) { __asm__ volatile("" : "+r"(n)); return n * 3; }
__attribute__((noinline)) const char *named(void) { const char *s = name; __asm__ volatile("" : "+r"(s)); return s; }
__attribute__((noinline)) struct pair both(long n) { __asm__ volatile("" : "+r"(n)); return (struct pair){ n, 5 }; }
__attribute__((noinline)) struct large build(long n) { __asm__ volatile("" : "+r"(n)); return (struct large){ { n } }; }
__attribute__((noinline)) void *allocate(long n) { __asm__ volatile("" : "+r"(n)); return (void *)(n * 7); }
long _start(void) { nothing(1); fails(1, IDLE); large_number(1); named(); both(1); build(1); allocate(1); return 0; }
"#;

/// The kernel runs so far above where it is linked.
const SLIDE: u64 = 0x1000_0000;

const MINUS: u64 = u64::MAX;

/// An image and where things are in it; `None`, and the reason printed, without a compiler for x86_64.
fn image(folder: &std::path::Path) -> Option<(std::path::PathBuf, Vec<u8>)> {
    if !cfg!(target_arch = "x86_64") {
        println!("skipped: the C compiler here is not for x86_64");
        return None;
    }
    let (source, path) = (folder.join("kernel.c"), folder.join("kernel"));
    fs::write(&source, SOURCE).unwrap();
    let flags = ["-O2", "-g", "-nostdlib", "-static", "-ffreestanding", "-fno-pie", "-no-pie", "-o"];
    let compiled = Command::new("cc").args(flags).arg(&path).arg(&source).output();
    match compiled {
        Ok(output) if output.status.success() => {}
        Ok(output) => panic!("cc: {}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => {
            println!("skipped: cc cannot be run: {error}");
            return None;
        }
    }
    let bytes = fs::read(&path).unwrap();
    Some((path, bytes))
}

/// A call: function, depth, what the two registers held, and what it was called with.
type Recorded<'c> = (&'c str, u32, u64, Option<u64>, &'c [u64]);

/// A trace of calls in one task, one after the other inside of the last.
fn trace(image: &Image<'_>, calls: &[Recorded<'_>]) -> Vec<u8> {
    let words = (0..64 * 8).map(|_| AtomicU64::new(0)).collect::<Vec<_>>().leak();
    let ring = Ring::new();
    ring.swap(Some(Box::leak(Box::new(Buffer::new(0, words, 64, Mode::Overwrite).unwrap())))).unwrap();
    ring.on();
    let who = Who { task: 1, context: Context::Task };
    let mut names: Vec<&str> = calls.iter().map(|(name, ..)| *name).collect();
    names.sort_unstable();
    names.dedup();
    // Records stand in the order of returns: the deepest of each group first, all inside of the last.
    let last = calls.len() as u64;
    for (n, (name, depth, retval, retval2, args)) in (1..).zip(calls) {
        let func = names.iter().position(|other| other == name).unwrap() as u32;
        let start = if *depth == 0 { 0 } else { n * 1000 };
        let end = if *depth == 0 { (last + 1) * 1000 } else { n * 1000 + 500 };
        // What `build` and `checked` return in memory is the words that they were called with, as far as those are recorded.
        let in_memory = if ["build", "checked"].contains(name) { *args } else { &[] };
        let call = Call {
            retval: Some(*retval),
            retval2: *retval2,
            memory: in_memory,
            memory_len: in_memory.len() as u8 * 8,
            args: if in_memory.is_empty() { args } else { &[] },
            ..Call::new(func, *depth, who, start, end)
        };
        assert!(ring.record(&Record::Call(call)));
    }
    let mut bytes = Vec::new();
    let mut sink = |part: &[u8]| bytes.extend_from_slice(part);
    let mut writer = Writer::new(&mut sink);
    writer.meta(&Meta {
        machine: 62,
        cpus: 1,
        ticks_per_second: 1_000_000_000,
        start: 0,
        wall_ns: 0,
        slide: SLIDE,
        kernel: "test",
    });
    for (index, name) in (0..).zip(&names) {
        let found = image.functions.iter().find(|function| function.name == *name).unwrap();
        let addr = found.at.offset + SLIDE;
        writer.function(&Function { index, addr, name, module: "", flags: FunctionFlags::empty() });
    }
    let buffer = ring.buffer().unwrap();
    let mut copy = vec![0; buffer.page_len()];
    for sequence in buffer.page_range() {
        let len = buffer.copy_page(sequence, &mut copy).unwrap();
        writer.page(&copy[..len]).unwrap();
    }
    writer.finish();
    bytes
}

/// The lines of a report without columns.
fn report(args: &[&str]) -> Vec<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_fgraph"))
        .arg("report")
        .args(args)
        .args(["--hide", "cpu,duration"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.code().is_some_and(|code| code < 2), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter(|line| !line.starts_with('#')).map(|line| line.trim().to_owned()).collect()
}

#[test]
fn values_are_shown_by_the_types_of_the_kernel() {
    let folder = tempfile::tempdir().unwrap();
    let Some((kernel, bytes)) = image(folder.path()) else { return };
    let image = Image::parse(&bytes).unwrap();
    let name = image.mark("name").unwrap().unwrap() + SLIDE;
    let trace = trace(
        &image,
        &[
            ("nothing", 1, 77, None, &[]),
            ("fails", 1, 0xffff_fff7, None, &[3, 0xdead_0000_0001]),
            ("large_number", 1, 0xffff_fff7, None, &[]),
            ("named", 1, name, None, &[]),
            ("both", 1, 7, Some(8), &[]),
            ("both", 1, 7, None, &[]),
            ("build", 1, 0x7000, None, &[]),
            ("build", 1, 0x7000, None, &[1, u64::MAX, 3, 4]),
            ("build", 1, 0x7000, None, &[1]),
            ("allocate", 1, -12_i64 as u64, None, &[]),
            ("_start", 0, 0, None, &[]),
        ],
    );
    let file = folder.path().join("trace");
    fs::write(&file, trace).unwrap();
    let (file, kernel) = (file.to_str().unwrap(), kernel.to_str().unwrap());
    let shown = report(&[file, "--kernel", kernel, "--show", "retval,args"]);
    let text = format!("named(); /* ret={name:#x} \"eth0\" */");
    let wanted = [
        "_start() {",
        "nothing();",
        "fails(fd=3, state=BUSY); /* ret=-9 EBADF */",
        "large_number(); /* ret=0xfffffff7 */",
        &text,
        "both(); /* ret={ .first = 7, .second = 8 } */",
        "both(); /* ret={ .first = 7, .second = ? } */",
        "build();",
        "build(); /* ret={ .words = [1, -1, 3, 4] } */",
        "build(); /* ret={ .words = [1, ?, ?, ?] } */",
        "allocate(); /* ret=ERR_PTR(-12 ENOMEM) */",
        "} /* _start ret=0 */",
    ];
    assert_eq!(shown, wanted);

    // As they came, and without a kernel, which is the same but for what returns nothing.
    let raw = report(&[file, "--kernel", kernel, "--show", "retval,args", "--hide", "typed"]);
    assert_eq!(raw[1], "nothing();");
    assert_eq!(raw[2], "fails(0x3, 0xdead00000001); /* ret=-9 */");
    let without = report(&[file, "--show", "retval,args"]);
    assert_eq!((without[1].as_str(), &without[2]), ("nothing(); /* ret=0x4d */", &raw[2]));
    let hex = report(&[file, "--kernel", kernel, "--show", "retval,retval-hex"]);
    assert_eq!(hex[2], "fails(); /* ret=0xfffffff7 */");
}

/// Calls of all kinds, in files with the kernel: a trace's and the kernel's path.
fn typed_calls(folder: &std::path::Path) -> Option<(String, String)> {
    let (kernel, bytes) = image(folder)?;
    let image = Image::parse(&bytes).unwrap();
    let trace = trace(
        &image,
        &[
            ("nothing", 1, 77, None, &[]),
            ("fails", 1, 0xffff_fff7, None, &[3, 0xdead_0000_0001]),
            ("large_number", 1, 0xffff_fff7, None, &[]),
            ("both", 1, 7, Some(8), &[]),
            ("build", 1, 0x7000, None, &[5, 6, 7, 8]),
            ("allocate", 0, -12_i64 as u64, None, &[9]),
        ],
    );
    let file = folder.join("trace");
    fs::write(&file, trace).unwrap();
    Some((file.to_str().unwrap().to_owned(), kernel.to_str().unwrap().to_owned()))
}

fn report_to_bytes(args: &[&str]) -> Vec<u8> {
    let output = Command::new(env!("CARGO_BIN_EXE_fgraph"))
        .arg("report")
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

#[test]
fn chrome_json_has_values_by_type_and_errors_in_a_category() {
    let folder = tempfile::tempdir().unwrap();
    let Some((file, kernel)) = typed_calls(folder.path()) else { return };
    let json = |args: &[&str]| -> Vec<serde_json::Value> {
        let out = report_to_bytes(&[&[file.as_str(), "--format", "chrome"], args].concat());
        let json: serde_json::Value = serde_json::from_slice(&out).unwrap();
        json["traceEvents"].as_array().unwrap().clone()
    };
    let typed = json(&["--kernel", &kernel]);
    let of = |events: &[serde_json::Value], name: &str, phase: &str| {
        let found = events.iter().find(|event| event["name"] == name && event["ph"] == phase);
        found.unwrap_or_else(|| panic!("{phase} {name}")).clone()
    };
    for (name, phase, ret, args, category) in [
        ("nothing", "X", None, None, "function"),
        ("fails", "X", Some("-9 EBADF"), Some(vec![("fd", "3"), ("state", "BUSY")]), "function,error"),
        ("large_number", "X", Some("0xfffffff7"), None, "function"),
        ("both", "X", Some("{ .first = 7, .second = 8 }"), None, "function"),
        ("build", "X", Some("{ .words = [5, 6, 7, 8] }"), None, "function"),
        ("allocate", "B", None, Some(vec![("n", "9")]), "function,error"),
        ("allocate", "E", Some("ERR_PTR(-12 ENOMEM)"), None, "function,error"),
    ] {
        let event = of(&typed, name, phase);
        assert_eq!(event["args"]["ret"].as_str(), ret, "{name}");
        assert_eq!(event["cat"], category, "{name}");
        assert_eq!(event["cname"].is_string(), category == "function,error", "{name}");
        let wanted = args.map(|args| args.into_iter().collect::<std::collections::BTreeMap<_, _>>());
        assert_eq!(event["args"]["args"], serde_json::json!(wanted), "{name}");
    }

    // As they came.
    let raw = json(&["--kernel", &kernel, "--hide", "typed"]);
    let fails = of(&raw, "fails", "X");
    assert_eq!((&fails["args"]["ret"], &fails["args"]["args"]["arg0"]), (&"-9".into(), &"0x3".into()));
    let hex = json(&["--kernel", &kernel, "--show", "retval-hex"]);
    assert_eq!(of(&hex, "fails", "X")["args"]["ret"], "0xfffffff7");
    let without = json(&[]);
    assert_eq!(of(&without, "nothing", "X")["args"]["ret"], "0x4d");
}

#[test]
fn perfetto_has_values_by_type_and_errors_in_a_category() {
    let folder = tempfile::tempdir().unwrap();
    let Some((file, kernel)) = typed_calls(folder.path()) else { return };
    let out = folder.path().join("perfetto");
    let written = out.to_str().unwrap();
    report_to_bytes(&[&file, "--format", "perfetto", "--kernel", &kernel, "--output", written]);
    let input = fs::File::open(&out).unwrap();
    let Ok(decoded) = Command::new("protoc").arg("--decode_raw").stdin(input).output() else {
        println!("skipped: protoc is not installed");
        return;
    };
    assert!(decoded.status.success());
    let text = String::from_utf8_lossy(&decoded.stdout);
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let text = lines.join("\n");
    // Bytes that protoc takes for a message, since they could be one.
    let text = text.replace("22 {\n12: 0x726f7272\n}", "22: \"error\"");
    // A note: its name, and text (6) or a number (4, 7); arguments in a note of their own (11).
    for wanted in [
        "4 {\n10: \"args\"\n11 {\n10: \"fd\"\n4: 3\n}\n11 {\n10: \"state\"\n6: \"BUSY\"\n}\n}\n22: \"error\"",
        "10: \"ret\"\n6: \"-9 EBADF\"",
        "10: \"ret\"\n7: 4294967287",
        "10: \"ret\"\n6: \"{ .first = 7, .second = 8 }\"",
        "10: \"ret\"\n6: \"ERR_PTR(-12 ENOMEM)\"",
        "10: \"ret\"\n6: \"{ .words = [5, 6, 7, 8] }\"",
    ] {
        assert_eq!(text.matches(wanted).count(), 1, "{wanted}: {text}");
    }
    // Of six calls one returned nothing.
    assert_eq!(text.matches("10: \"ret\"").count(), 5);
    assert_eq!(text.matches("22: \"error\"").count(), 2);
}

#[test]
fn errors_are_calls_whose_type_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let Some((kernel, bytes)) = image(folder.path()) else { return };
    let image = Image::parse(&bytes).unwrap();
    let trace = trace(
        &image,
        &[
            // Nothing, a large number, a part of a structure: none of them is an error.
            ("nothing", 1, MINUS, None, &[]),
            ("large_number", 1, 0xffff_fff7, None, &[]),
            ("both", 1, MINUS, Some(0), &[]),
            ("fails", 2, 0xffff_fff7, None, &[]),
            ("allocate", 1, -12_i64 as u64, None, &[]),
            ("_start", 0, 0, None, &[]),
        ],
    );
    let file = folder.path().join("trace");
    fs::write(&file, trace).unwrap();
    let (file, kernel) = (file.to_str().unwrap(), kernel.to_str().unwrap());
    let shown = report(&[file, "--kernel", kernel, "--errors"]);
    assert!(shown.iter().all(|line| !["nothing", "large_number", "both"].iter().any(|no| line.contains(no))));
    for wanted in ["fails(); /* ret=-9 EBADF */", "allocate(); /* ret=ERR_PTR(-12 ENOMEM) */", "_start() {"] {
        assert!(shown.iter().any(|line| line == wanted), "{wanted}: {shown:#?}");
    }
    let without = report(&[file, "--errors"]);
    assert!(without.iter().any(|line| line.starts_with("nothing()")), "{without:#?}");
}

const RUST: &str = r#"
#![no_std]
#![no_main]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! { loop {} }
#[unsafe(no_mangle)]
#[inline(never)]
pub fn checked(n: u64) -> Result<[u64; 4], u32> { core::hint::black_box(if n > 5 { Ok([n; 4]) } else { Err(n as u32) }) }
#[unsafe(no_mangle)]
pub extern "C" fn _start() -> u64 { checked(core::hint::black_box(1)).map_or(7, |all| all[2]) }
"#;

/// `Err` in memory is an error, as one in registers is.
#[test]
fn errors_that_are_returned_in_memory_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let (source, path) = (folder.path().join("kernel.rs"), folder.path().join("kernel"));
    fs::write(&source, RUST).unwrap();
    let flags = [
        "--edition=2024",
        "-g",
        "-O",
        "-Cpanic=abort",
        "-Crelocation-model=static",
        "-Clink-args=-nostdlib -static -no-pie",
        "-o",
    ];
    let Ok(compiled) = Command::new("rustc").args(flags).arg(&path).arg(&source).output() else {
        println!("skipped: rustc cannot be run");
        return;
    };
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let bytes = fs::read(&path).unwrap();
    let image = Image::parse(&bytes).unwrap();
    // The discriminant stands in the lower half of the first word, the error in the upper; the rest as in memory.
    let calls = [
        ("checked", 1, 0x7000, None, &[0, 2, 3, 4, 5][..]),
        ("checked", 1, 0x7000, None, &[9 << 32 | 1, 0, 0, 0, 0]),
        // Not recorded: the register is no error, though it looks like one.
        ("checked", 1, MINUS, None, &[]),
        ("_start", 0, 0, None, &[]),
    ];
    let file = folder.path().join("trace");
    fs::write(&file, trace(&image, &calls)).unwrap();
    let (file, kernel) = (file.to_str().unwrap(), path.to_str().unwrap());
    let shown = report(&[file, "--kernel", kernel, "--show", "retval"]);
    let wanted = [
        "_start() {",
        "checked(); /* ret=Ok([0x2, 0x3, 0x4, 0x5]) */",
        "checked(); /* ret=Err(0x9) */",
        "checked();",
        "} /* _start ret=0x0 */",
    ];
    assert_eq!(shown, wanted);
    let errors = report(&[file, "--kernel", kernel, "--errors"]);
    let checked: Vec<&String> = errors.iter().filter(|line| line.starts_with("checked")).collect();
    assert_eq!(checked, ["checked(); /* ret=Err(0x9) */"]);
}
