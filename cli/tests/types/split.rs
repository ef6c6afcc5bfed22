//! Split units: the same types are found in files of their own as in the image.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use fgraph_cli::embed::types;
use fgraph_cli::image::Image;

use crate::make::{program, run};

const FIRST: &str = "struct pair { int a; long b; };
    static __attribute__((noinline)) long swap(struct pair *pair, int by) { return pair->b * by + pair->a; }
    long run(struct pair *pair) { return swap(pair, pair->a); }";
const SECOND: &str = "struct pair { int a; long b; };
    long run(struct pair *pair);
    enum mode { OFF, ON = 7 };
    int pick(enum mode mode) { return mode; }
    void _start(void) { for (;;) { struct pair pair = { 1, 2 }; run(&pair); pick(ON); } }";

struct Linked {
    folder: tempfile::TempDir,
}

impl Linked {
    /// Two units, compiled on their own and linked. `None`, and the reason printed, if the compiler cannot do that.
    fn of(compiler: &str, flags: &[&str]) -> Option<Self> {
        program(compiler)?;
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("first.c"), FIRST).unwrap();
        fs::write(folder.path().join("second.c"), SECOND).unwrap();
        let compile = [flags, &["-O1", "-w", "-ffreestanding", "-c", "first.c", "second.c"]].concat();
        let link = ["-w", "-nostdlib", "-static", "-no-pie", "-o", "image", "first.o", "second.o"];
        for args in [&compile[..], &link] {
            let output = Command::new(compiler).current_dir(folder.path()).args(args).output().unwrap();
            if !output.status.success() {
                println!("skipped: {compiler} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
                return None;
            }
        }
        Some(Self { folder })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn split_files(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(self.folder.path()).unwrap().map(|file| file.unwrap().path());
        files.filter(|file| file.extension().is_some_and(|extension| extension == "dwo")).collect()
    }

    fn made(&self) -> types::Made {
        made(&self.path("image"))
    }
}

fn made(path: &Path) -> types::Made {
    let bytes = fs::read(path).unwrap();
    let image = Image::parse(&bytes).unwrap();
    types::make(&image, Some(path)).unwrap().unwrap_or_else(|why| panic!("{why}"))
}

/// Each compiler, with each way to say it that it has.
fn each(check: impl Fn(&Linked, &types::Made, &str)) {
    let mut checked = 0;
    for compiler in ["cc", "clang"] {
        for version in ["-gdwarf-4", "-gdwarf-5"] {
            for units in ["", "-fdebug-types-section"] {
                let Some(whole) = Linked::of(compiler, &["-g", version]) else { continue };
                let flags: Vec<_> = ["-g", version, "-gsplit-dwarf", units]
                    .into_iter()
                    .filter(|flag| !flag.is_empty())
                    .collect();
                let Some(split) = Linked::of(compiler, &flags) else {
                    continue;
                };
                assert_eq!(split.split_files().len(), 2, "{compiler} {version}");
                check(&split, &whole.made(), &format!("{compiler} {version} {units}"));
                checked += 1;
            }
        }
    }
    if checked == 0 {
        println!("skipped: no compiler splits");
    }
}

#[test]
fn split_units_have_the_types_of_whole_ones() {
    each(|split, whole, what| {
        let made = split.made();
        assert_eq!(
            (made.report.split.as_slice(), made.functions.len()),
            (&[][..], 4),
            "{what}: {}",
            made.report
        );
        assert_eq!(made.functions, whole.functions, "{what}");
        assert!(made.btf == whole.btf, "{what}");
    });
}

#[test]
fn a_package_is_as_good() {
    let Some(pack) = program("llvm-dwp") else { return };
    each(|split, whole, what| {
        let image = split.path("image");
        let output = Command::new(&pack)
            .arg("-e")
            .arg(&image)
            .arg("-o")
            .arg(split.path("image.dwp"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        split.split_files().iter().for_each(|file| fs::remove_file(file).unwrap());
        let made = split.made();
        assert_eq!(made.functions, whole.functions, "{what}: {}", made.report);
        assert!(made.btf == whole.btf, "{what}");

        // What is wrong with the package is said, and costs types only.
        let package = fs::read(split.path("image.dwp")).unwrap();
        for len in [0, 10, package.len() / 2] {
            fs::write(split.path("image.dwp"), &package[..len]).unwrap();
            let made = split.made();
            assert_eq!((made.report.split.len(), made.functions.len()), (2, 0), "{what}: {}", made.report);
            assert!(made.report.split[0].contains("image.dwp: "), "{what}: {}", made.report);
        }
    });
}

#[test]
fn what_is_missing_or_of_another_build_is_told() {
    let Some(split) = Linked::of("cc", &["-g", "-gsplit-dwarf"]) else { return };
    let first = split.path("first.dwo");
    let bytes = fs::read(&first).unwrap();
    let told = || {
        let made = split.made();
        assert_eq!((made.report.split.len(), made.functions.len()), (1, 2), "{}", made.report);
        let text = made.report.to_string();
        assert!(text.contains("; 1 split units not read: "), "{text}");
        text
    };
    fs::remove_file(&first).unwrap();
    let text = told();
    assert!(text.contains("/first.dwo: No such file"), "{text}");
    fs::copy(split.path("second.dwo"), &first).unwrap();
    let text = told();
    assert!(text.contains("/first.dwo: of another build, it has no unit 0x"), "{text}");
    fs::write(&first, b"text").unwrap();
    let text = told();
    assert!(text.contains("/first.dwo: "), "{text}");

    // The image went elsewhere, and its files with it.
    let elsewhere = tempfile::tempdir().unwrap();
    fs::write(elsewhere.path().join("first.dwo"), &bytes).unwrap();
    fs::remove_file(&first).unwrap();
    fs::rename(split.path("second.dwo"), elsewhere.path().join("second.dwo")).unwrap();
    fs::copy(split.path("image"), elsewhere.path().join("image")).unwrap();
    assert_eq!(made(&elsewhere.path().join("image")).functions.len(), 4);

    // Who has bytes only is told so.
    let bytes = fs::read(split.path("image")).unwrap();
    let made = types::make(&Image::parse(&bytes).unwrap(), None).unwrap().unwrap();
    assert_eq!((made.report.split.len(), made.functions.len()), (2, 0));
    assert!(
        made.report.split[0].ends_with(".dwo: files beside the image are not looked for"),
        "{}",
        made.report
    );
}

/// Cut off or changed at many places, a file costs the types of its unit, and nothing else.
#[test]
fn a_damaged_file_costs_its_own_types_only() {
    let Some(split) = Linked::of("cc", &["-g", "-gsplit-dwarf"]) else { return };
    let first = split.path("first.dwo");
    let bytes = fs::read(&first).unwrap();
    for at in (0..bytes.len()).step_by(13) {
        fs::write(&first, &bytes[..at]).unwrap();
        assert!(split.made().functions.len() >= 2, "cut at {at}");
        let mut changed = bytes.clone();
        changed[at] ^= 0xff;
        fs::write(&first, &changed).unwrap();
        assert!(split.made().functions.len() >= 2, "changed at {at}");
    }
}

#[test]
fn a_split_image_of_rust_has_types() {
    let source = "#[inline(never)] #[unsafe(no_mangle)] pub fn half(x: u32) -> Option<u32> { (x % 2 == 0).then_some(x / 2) }";
    let names = |split: &str| {
        let compiler = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
        let flags = [
            "--edition=2024",
            "--crate-type=cdylib",
            "-Cpanic=abort",
            "-g",
            "-O",
            "-Ccodegen-units=1",
            split,
        ];
        let (_, folder) = run(&compiler, &flags, &[("source.rs", source)])?;
        let made = made(&folder.path().join("out"));
        assert!(made.report.split.is_empty(), "{split}: {}", made.report);
        Some((made.functions.len(), made.btf))
    };
    let Some(whole) = names("-Csplit-debuginfo=off") else { return };
    for split in ["-Csplit-debuginfo=unpacked", "-Csplit-debuginfo=packed"] {
        let Some(split_units) = names(split) else { continue };
        assert!(split_units == whole, "{split}: {} of {} functions", split_units.0, whole.0);
    }
}
