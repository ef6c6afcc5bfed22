//! Other programs read what is written, and find the same in it.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use crate::make::{Made, c, program, rust};

const SOURCE: &str = "
struct list { struct list *next, *prev; };
struct device { int id; unsigned busy : 1, slow : 3; struct list list; const char *name; union { long word; char bytes[8]; }; };
enum mode { OFF, ON = 7, FAST = -2 };
typedef int (*probe_fn)(struct device *, enum mode);
int probe(struct device *device, enum mode mode) { return device->id + mode; }
struct list *first(const struct device *device) { return device->list.next; }
void set(struct device *device, probe_fn fn, unsigned char flags[4]) { device->busy = fn(device, ON) + flags[2]; }
long long sum(int count, ...) { return count; }
";

/// `bpftool` checks all of it when it dumps.
#[test]
fn bpftool_reads_it() {
    let Some(bpftool) = program("bpftool") else { return };
    let objects = [c("cc", &["-g", "-O2"], SOURCE), rust(&["-g", "-O"], include_str!("shapes.rs"))];
    for object in objects.into_iter().flatten() {
        let made = Made::of(&object);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("btf");
        fs::write(&path, &made.bytes).unwrap();
        let output = Command::new(&bpftool).args(["btf", "dump", "file"]).arg(&path).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        let functions = text.lines().filter(|line| line.contains("] FUNC '")).count();
        assert_eq!(functions, made.report.as_written + made.report.changed);
        let types = text.lines().filter(|line| line.starts_with('[')).count();
        made.with(|btf| assert_eq!(types as u32, btf.end() - 1));
    }
}

/// Structs as `pahole` prints them: from our BTF and from the debug information.
#[test]
fn pahole_finds_the_structs_of_the_debug_information() {
    let Some(pahole) = program("pahole") else { return };
    for version in ["-gdwarf-4", "-gdwarf-5"] {
        let Some(object) = c("cc", &["-g", version, "-O2"], SOURCE) else { return };
        let made = Made::of(&object);
        let folder = tempfile::tempdir().unwrap();
        let (ours, theirs) = (folder.path().join("btf"), folder.path().join("object.o"));
        fs::write(&ours, &made.bytes).unwrap();
        fs::write(&theirs, &object).unwrap();
        for name in ["device", "list"] {
            let show = |form: &str, path| {
                let output = Command::new(&pahole).args(["-F", form, "-C", name]).arg(path).output().unwrap();
                String::from_utf8(output.stdout).unwrap()
            };
            let text = show("btf", &ours);
            assert!(text.contains(&format!("struct {name} {{")), "{text}");
            assert_eq!(text, show("dwarf", &theirs), "{version}");
        }
    }
}

/// Prototypes as `pahole` writes them into BTF, and as we do.
#[test]
fn prototypes_are_those_of_pahole() {
    let (Some(pahole), Some(bpftool)) = (program("pahole"), program("bpftool")) else { return };
    let Some(object) = c("cc", &["-g", "-gdwarf-4", "-O2"], SOURCE) else { return };
    let folder = tempfile::tempdir().unwrap();
    let (path, theirs, ours) =
        (folder.path().join("object.o"), folder.path().join("theirs"), folder.path().join("ours"));
    fs::write(&path, &object).unwrap();
    let output = Command::new(&pahole).arg("--btf_encode_detached").arg(&theirs).arg(&path).output().unwrap();
    if !theirs.exists() {
        println!("skipped: pahole writes no file: {}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    fs::write(&ours, &Made::of(&object).bytes).unwrap();
    let prototypes = |path| {
        let output = Command::new(&bpftool).args(["btf", "dump", "-j", "file"]).arg(path).output().unwrap();
        let dump: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let types: BTreeMap<u64, &serde_json::Value> =
            dump["types"].as_array().unwrap().iter().map(|of| (of["id"].as_u64().unwrap(), of)).collect();
        let functions = types.values().filter(|of| of["kind"] == "FUNC").map(|of| {
            let prototype = types[&of["type_id"].as_u64().unwrap()];
            let parameters = prototype["params"].as_array().unwrap().iter();
            let parameters =
                parameters.map(|one| format!("{} {}", one["name"], named(&types, &one["type_id"])));
            (
                of["name"].to_string(),
                (named(&types, &prototype["ret_type_id"]), parameters.collect::<Vec<_>>()),
            )
        });
        functions.collect::<BTreeMap<_, _>>()
    };
    let (theirs, ours) = (prototypes(&theirs), prototypes(&ours));
    assert_eq!(ours.len(), 4, "{ours:?}");
    for (name, prototype) in &theirs {
        assert_eq!(ours.get(name), Some(prototype), "{name}");
    }
    assert!(!theirs.is_empty());
}

fn named(types: &BTreeMap<u64, &serde_json::Value>, id: &serde_json::Value) -> String {
    let Some(of) = id.as_u64().and_then(|id| types.get(&id)) else { return "void".into() };
    let name = of["name"].as_str().filter(|name| !name.contains("anon")).unwrap_or_default();
    match of["type_id"] {
        serde_json::Value::Null => format!("{} {name}", of["kind"]),
        ref behind => format!("{} {name} of {}", of["kind"], named(types, behind)),
    }
}
