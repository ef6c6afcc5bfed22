//! Types go into an image, or into files, and are read back by the code that reads them in the kernel.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use fgraph::btf::image::{ImageError, Types, layout};
use fgraph::symbols;
use fgraph_cli::Error;
use fgraph_cli::dwarf::Reason;
use fgraph_cli::embed::{TypeFiles, embed_file, embed_typed};
use fgraph_cli::image::Image;

use crate::make::run;

/// A kernel in C, with room for names, and `room` bytes for types.
fn kernel(flags: &[&str], room: Option<usize>) -> Option<Kernel> {
    let space = |name: &str, magic: [u8; 8], section: &str, room: usize| {
        let magic = str::from_utf8(&magic).unwrap().to_owned();
        format!(
            "struct {{ char magic[8]; unsigned version, flags; unsigned long capacity; char rest[{room} - 24]; }} {name}
             __attribute__((section(\"{section}\"), used, aligned(8))) = {{ \"{magic}\", 1, 0, {room} }};\n"
        )
    };
    let mut source = space("names", symbols::layout::MAGIC_RESERVED, symbols::layout::SECTION, 4096);
    if let Some(room) = room {
        source += &space("types", layout::MAGIC_RESERVED, layout::SECTION, room);
    }
    source += "struct pair { int a; long b; };
        static __attribute__((noinline)) long swap(struct pair *pair, int by) { return pair->b * by + pair->a; }
        long run(struct pair *pair) { return swap(pair, pair->a); }
        void _start(void) { for (;;) { struct pair pair = { 1, 2 }; run(&pair); } }";
    let flags = [&["-O1", "-w", "-ffreestanding", "-nostdlib", "-static", "-no-pie"], flags].concat();
    let (bytes, folder) = run("cc", &flags, &[("kernel.c", &source)])?;
    let path = folder.path().join("out");
    Some(Kernel { bytes, path, folder })
}

struct Kernel {
    bytes: Vec<u8>,
    path: PathBuf,
    folder: tempfile::TempDir,
}

impl Kernel {
    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn tool(&self, args: &[&str]) -> (i32, String, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_fgraph"))
            .current_dir(self.folder.path())
            .args(["embed", "out"])
            .args(args)
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
    }
}

fn space<'d>(image: &Image<'d>) -> &'d [u8] {
    image.sections_named(layout::SECTION).next().unwrap().1.data.unwrap()
}

fn address(image: &Image<'_>, name: &str) -> (u64, u64) {
    let function = image.functions.iter().find(|function| function.name == name).unwrap();
    (function.at.offset, function.size)
}

#[test]
fn types_are_found_by_address_in_the_image() {
    let Some(kernel) = kernel(&["-g"], Some(8192)) else { return };
    assert_eq!(
        Types::parse(space(&Image::parse(&kernel.bytes).unwrap())).unwrap_err(),
        ImageError::Empty { capacity: 8192 }
    );
    let (code, out, err) = kernel.tool(&[]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(out.contains("\n3 prototypes from 1 units, in ") && out.ends_with(" of 8192 bytes\n"), "{out}");
    let once = fs::read(&kernel.path).unwrap();
    let image = Image::parse(&once).unwrap();
    let types = Types::parse(space(&image)).unwrap();
    assert_eq!(types.len(), 3);
    for name in ["swap", "run", "_start"] {
        let (start, size) = address(&image, name);
        for at in start..start + size {
            let id = types.function_at(at).unwrap();
            assert_eq!(types.btf().get(id).unwrap().name, name);
        }
    }
    let (swap, _) = address(&image, "swap");
    let text = crate::declare::function(&types.btf(), types.function_at(swap).unwrap());
    assert_eq!(text, "long int swap(struct pair* pair, int by)");
    assert_eq!(types.function_at(0), None);

    let sections = [symbols::layout::SECTION, layout::SECTION].map(|name| {
        let section = image.sections_named(name).next().unwrap().1;
        section.file_offset as usize..(section.file_offset + section.size) as usize
    });
    let mut changed = (0..once.len()).filter(|at| once[*at] != kernel.bytes[*at]);
    assert!(changed.all(|at| sections.iter().any(|section| section.contains(&at))), "only the spaces change");

    assert_eq!(kernel.tool(&["--verbose"]).0, 0);
    assert!(fs::read(&kernel.path).unwrap() == once, "a second time gives the same bytes");
}

#[test]
fn types_go_to_files_when_asked() {
    let Some(kernel) = kernel(&["-g"], None) else { return };
    let (code, out, _) = kernel.tool(&["--output", "named"]);
    assert_eq!(code, 0);
    assert!(out.contains("\nno types: the image has no section .fgraph_types; "), "{out}");
    let (code, out, err) = kernel.tool(&["--types", "types", "--btf", "btf", "--verbose"]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let blob = fs::read(kernel.file("types")).unwrap();
    let types = Types::parse(&blob).unwrap();
    assert_eq!(types.len(), 3);
    let btf = fs::read(kernel.file("btf")).unwrap();
    assert!(blob.ends_with(&btf), "the blob ends in the same BTF");

    let (code, out, _) = kernel.tool(&["--no-types"]);
    assert_eq!((code, out.lines().count()), (0, 1), "{out}");
    assert_eq!(kernel.tool(&["--no-types", "--btf", "btf"]).0, 2, "one or the other");
}

#[test]
fn without_debug_information_the_reason_is_said() {
    let Some(kernel) = kernel(&["-g0"], Some(8192)) else { return };
    let (code, out, _) = kernel.tool(&[]);
    assert_eq!(code, 0);
    assert!(out.ends_with("\nno types: the image has no debug information\n"), "{out}");
    let (code, _, err) = kernel.tool(&["--types", "types"]);
    assert_eq!((code, err.as_str()), (2, "fgraph: no types: the image has no debug information\n"));
    assert!(!kernel.file("types").exists());
}

#[test]
fn what_is_left_out_is_listed() {
    let Some(kernel) = kernel(&["-g", "-gsplit-dwarf", "-dumpdir", "./"], Some(8192)) else { return };
    for file in fs::read_dir(kernel.folder.path()).unwrap().map(|file| file.unwrap().path()) {
        if file.extension().is_some_and(|extension| extension == "dwo") {
            fs::remove_file(file).unwrap();
        }
    }
    let (code, out, _) = kernel.tool(&["--verbose"]);
    assert_eq!(code, 0, "{out}");
    assert!(out.contains("left out 3: no debug information; 1 split units not read"), "{out}");
    assert!(out.contains("\nnot read: ") && out.contains(".dwo: No such file"), "{out}");
    assert!(out.contains(" swap: no debug information\n"), "{out}");
    let image = fs::read(&kernel.path).unwrap();
    assert!(Types::parse(space(&Image::parse(&image).unwrap())).unwrap().is_empty());
}

#[test]
fn a_space_that_is_too_small_says_what_is_needed() {
    let Some(small) = kernel(&["-g"], Some(100)) else { return };
    let files = TypeFiles::default();
    let Err(Error::TypesTooSmall { have: 100, need }) = embed_typed(&small.path, &small.path, &files) else {
        panic!("100 bytes are too few")
    };
    assert!(fs::read(&small.path).unwrap() == small.bytes, "the image stays as it was, without names too");
    let text = Error::TypesTooSmall { have: 100, need }.to_string();
    assert!(text.contains("use `type_space!(4096)`"), "{text}");
    for (room, fits) in [(need as usize - 1, false), (need as usize, true)] {
        let kernel = kernel(&["-g"], Some(room)).unwrap();
        assert_eq!(embed_typed(&kernel.path, &kernel.path, &files).is_ok(), fits, "{room} of {need}");
    }
}

#[test]
fn a_space_of_another_make_is_refused() {
    let Some(kernel) = kernel(&["-g"], Some(8192)) else { return };
    let at = {
        let image = Image::parse(&kernel.bytes).unwrap();
        image.sections_named(layout::SECTION).next().unwrap().1.file_offset as usize
    };
    type Expect = fn(&Error) -> bool;
    let cases: [(usize, u8, Expect); 3] = [
        (0, b'X', |error| matches!(error, Error::TypesNotReserved(ImageError::BadMagic(_)))),
        (layout::AT_VERSION, 9, |error| matches!(error, Error::TypesNotReserved(ImageError::Version(9)))),
        (layout::AT_CAPACITY + 2, 1, |error| {
            matches!(error, Error::TypesCapacity { capacity: 0x1_2000, section: 8192 })
        }),
    ];
    for (offset, value, expect) in cases {
        let mut bytes = kernel.bytes.clone();
        bytes[at + offset] = value;
        fs::write(&kernel.path, &bytes).unwrap();
        let error = embed_typed(&kernel.path, &kernel.path, &TypeFiles::default()).unwrap_err();
        assert!(expect(&error), "{error}");
        assert!(fs::read(&kernel.path).unwrap() == bytes, "the image stays as it was");
        assert!(embed_file(&kernel.path, None).is_ok(), "names do not mind");
    }
}

/// A kernel that was not made for this: Linux, say.
#[test]
fn of_an_image_without_room_for_names_files_are_made() {
    let Some(kernel) = kernel(&["-g"], None) else { return };
    let types = |kernel: &Kernel| {
        let (status, out, error) = kernel.tool(&["--types", "types", "--btf", "btf"]);
        assert_eq!(status, 0, "{error}");
        (out, fs::read(kernel.file("types")).unwrap(), fs::read(kernel.file("btf")).unwrap())
    };
    let (_, blob, btf) = types(&kernel);
    let mut bytes = kernel.bytes.clone();
    let name = symbols::layout::SECTION.as_bytes();
    let at = bytes.windows(name.len()).rposition(|here| here == name).expect("sections have names");
    bytes[at + 1] = b'X';
    fs::write(&kernel.path, &bytes).unwrap();
    let (out, same_blob, same_btf) = types(&kernel);
    assert!(out.starts_with("no names: the image has no section .fgraph_symbols\n3 prototypes"), "{out}");
    assert!(same_blob == blob && same_btf == btf);
    assert!(fs::read(&kernel.path).unwrap() == bytes, "the image stays as it was");
    assert!(matches!(embed_typed(&kernel.path, &kernel.path, &TypeFiles::default()), Err(Error::NoSpace)));
}

/// Compressed sections of a linked image, and the kernels of the demo where they are built.
#[test]
fn a_compressed_image_has_the_same_types() {
    let Some(plain) = kernel(&["-g"], Some(8192)) else { return };
    let Some(packed) = kernel(&["-g", "-gz=zlib", "-Wl,--compress-debug-sections=zlib"], Some(8192)) else {
        return;
    };
    let types = |kernel: &Kernel| {
        assert_eq!(kernel.tool(&["--btf", "btf"]).0, 0);
        fs::read(kernel.file("btf")).unwrap()
    };
    assert!(types(&plain) == types(&packed));
}

#[test]
fn the_demo_kernels_have_types() {
    for target in ["aarch64-unknown-none-softfloat", "x86_64-unknown-none"] {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let path = root.join("target/kernel").join(target).join("kernel/kernel");
        let Ok(bytes) = fs::read(&path) else {
            println!("skipped: {} is not built", path.display());
            continue;
        };
        let made = crate::make::Made::of(&bytes);
        let report = &made.report;
        let (with, without) = (report.as_written + report.changed, report.left_out.len());
        assert!(with > 300 && without < with / 10, "{target}: {report}");
        assert_eq!((report.split.len(), report.malformed.len()), (0, 0), "{target}: {report}");
        // A changed signature is no reason: registers would be shown that may hold nothing.
        assert!(report.changed > 0, "{target}: {report}");
        let unknown = report.left_out.iter().find(|(_, _, why)| *why != Reason::NoDebugInfo);
        assert_eq!(unknown, None, "{target}");
        made.with(|btf| {
            let id = made.id("fgraph_selftest_six").expect("of the selftest");
            let text = crate::declare::function(&btf, id);
            assert!(text.contains("fgraph_selftest_six(") && text.matches(',').count() == 5, "{text}");
            // What the sled does before the body must not hide where arguments are.
            assert!(crate::declare::tags(&btf, id).contains(&"5:fgraph:loc=r5".to_owned()));
        });
    }
}

/// A linker that keeps one of functions with the same code: each of them has its entry at that address.
#[test]
fn code_of_several_functions_has_types_only_if_they_agree() {
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).output();
    let sysroot = sysroot.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let linkers =
        ["x86_64", "aarch64"].map(|host| format!("lib/rustlib/{host}-unknown-linux-gnu/bin/rust-lld"));
    let linker = sysroot.ok().and_then(|root| {
        linkers.iter().map(|linker| Path::new(&root).join(linker)).find(|linker| linker.is_file())
    });
    let Some(linker) = linker else {
        println!("skipped: the toolchain has no rust-lld");
        return;
    };
    let source = "__attribute__((noinline)) int one(int a) { return a * 77; }
        __attribute__((noinline)) unsigned two(unsigned a) { return a * 77; }
        __attribute__((noinline)) long three(long *p) { return *p * 77; }
        __attribute__((noinline)) long four(long *p) { return *p * 77; }
        long _start(long *p) { return one(1) + two(2) + three(p) + four(p); }";
    let flags = ["-c", "-g", "-O1", "-w", "-ffreestanding", "-ffunction-sections", "-fno-ipa-icf"];
    let Some((_, folder)) = run("cc", &flags, &[("source.c", source)]) else { return };
    let output = Command::new(linker)
        .current_dir(folder.path())
        .args(["-flavor", "gnu", "--icf=all", "-static", "out", "-o", "linked"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let image = fs::read(folder.path().join("linked")).unwrap();
    let parsed = Image::parse(&image).unwrap();
    assert_eq!(address(&parsed, "one").0, address(&parsed, "two").0, "the linker has merged them");
    assert_eq!(address(&parsed, "three").0, address(&parsed, "four").0, "the linker has merged them");
    let made = crate::make::Made::of(&image);
    assert_eq!((made.id("one"), made.id("two")), (None, None), "which of them it is, nobody knows");
    let reasons: Vec<_> = made.report.left_out.iter().map(|(_, _, reason)| reason.to_string()).collect();
    assert_eq!(reasons, ["one code for functions of different types"]);
    made.with(|btf| {
        let text = crate::declare::function(&btf, made.id("three").unwrap());
        assert!(text.ends_with("(long int* p)"), "{text}");
    });
}
