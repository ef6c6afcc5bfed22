//! Names go into an image and are read back by the code that reads them in the kernel.

mod common;

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use common::{DATA, In, Kernel, OWN, Symbol, TEXT, function, mark, reserved};
use fgraph::symbols::{Symbols, SymbolsError, layout};
use fgraph_cli::check::{self, LandingPads, check};
use fgraph_cli::embed::{embed, embed_file};
use fgraph_cli::image::{Binding, Function, Image, Place};
use fgraph_cli::sites::Listing;
use fgraph_cli::{Error, blob};
use object::elf;

/// The bytes of `.fgraph_symbols`, found by other code than the tool's own.
fn space_of(file: &[u8]) -> &[u8] {
    use object::{Object, ObjectSection};
    let file = object::read::elf::ElfFile64::<object::LittleEndian>::parse(file).unwrap();
    file.section_by_name(layout::SECTION).unwrap().data().unwrap()
}

#[test]
fn embedded_names_are_read_back() {
    let mut file = Kernel::good().build();
    assert_eq!(Symbols::parse(space_of(&file)).unwrap_err(), SymbolsError::Empty { capacity: 4096 });
    let before = file.clone();
    let embedded = embed(&mut file).unwrap();
    assert_eq!((embedded.names, embedded.unnamed, embedded.capacity), (4, 0, 4096));

    let symbols = Symbols::parse(space_of(&file)).unwrap();
    let read: Vec<_> = symbols.iter().map(|symbol| (symbol.start - TEXT, symbol.size, symbol.name)).collect();
    let expected = [
        (0x10, 0x20, "main"),
        (0x40, 0x10, "_RNvCshp5d4tyNz3J_1r7ret_big"),
        (0x60, 0x10, "untraced"),
        (0x200, 0x40, OWN),
    ];
    assert_eq!(read, expected);
    assert_eq!(symbols.by_address(TEXT + 0x4f).unwrap().demangled().to_string(), "r::ret_big");

    let start = 0x4000;
    let space = start..start + 4096;
    let changed = (0..file.len()).filter(|index| file[*index] != before[*index]);
    assert!(changed.into_iter().all(|index| space.contains(&index)), "only the space changes");

    let once = file.clone();
    embed(&mut file).unwrap();
    assert!(file == once, "a second time gives the same bytes");
}

#[test]
fn a_second_embed_leaves_nothing_of_a_longer_first() {
    let mut long = Kernel::good().build();
    embed(&mut long).unwrap();
    let space = space_of(&long).to_vec();
    let mut short = Kernel { space: Some(space), ..Kernel::good().without("main") }.build();
    embed(&mut short).unwrap();
    let mut fresh = Kernel::good().without("main").build();
    embed(&mut fresh).unwrap();
    assert!(space_of(&short) == space_of(&fresh));
}

#[test]
fn only_functions_in_executable_sections_are_embedded() {
    let absolute = |name, kind| Symbol { home: In::Absolute, kind, ..function(name, 0x11, 4) };
    let mut file = Kernel::good()
        .with(absolute("__kcfi_typeid_main", elf::STT_FUNC))
        .with(absolute("__kcfi_typeid_notype", elf::STT_NOTYPE))
        .with(Symbol { home: In::Data, value: DATA + 8, ..function("function_in_data", 0, 4) })
        .with(Symbol { home: In::Nothing, ..function("undefined", 0x12, 4) })
        .with(function("behind_its_section", 0x400, 4))
        .with(Symbol { value: TEXT - 0x10, ..function("before_its_section", 0, 4) })
        .with(Symbol { kind: elf::STT_OBJECT, ..function("object_in_text", 0x14, 4) })
        .with(mark("label", TEXT + 0x18))
        .with(function("", 0x1c, 4))
        .build();
    let embedded = embed(&mut file).unwrap();
    assert_eq!((embedded.names, embedded.unnamed), (4, 1));
    let symbols = Symbols::parse(space_of(&file)).unwrap();
    for addr in TEXT + 0x10..TEXT + 0x30 {
        assert_eq!(symbols.by_address(addr).unwrap().name, "main", "{addr:#x}");
    }
}

#[test]
fn of_several_names_the_preferred_one_is_shown() {
    let (global, local, weak) = (elf::STB_GLOBAL, elf::STB_LOCAL, elf::STB_WEAK);
    for (case, names, expected) in [
        ("global before local", [("a", local), ("longer", global)], "longer"),
        ("local before weak", [("a", weak), ("longer", local)], "longer"),
        ("global before weak", [("a", weak), ("longer", global)], "longer"),
        ("shorter", [("aaa", global), ("zz", global)], "zz"),
        ("by text", [("b", local), ("a", local)], "a"),
    ] {
        for flip in [false, true] {
            let mut kernel = Kernel::good();
            let mut names = names;
            if flip {
                names.reverse();
            }
            for (name, bind) in names {
                kernel = kernel.with(Symbol { bind, ..function(name, 0x100, 8) });
            }
            let mut file = kernel.build();
            embed(&mut file).unwrap();
            let symbols = Symbols::parse(space_of(&file)).unwrap();
            assert_eq!(symbols.by_address(TEXT + 0x104).unwrap().name, expected, "{case}");
            for (name, _) in names {
                let found: Vec<_> = symbols.by_name(name).map(|symbol| symbol.start - TEXT).collect();
                assert_eq!(found, [0x100], "{case}: {name} is found as an alias");
            }
        }
    }
}

#[test]
fn sizes_are_made_good() {
    let mut file = Kernel::good()
        .with(function("no_size", 0x100, 0))
        .with(function("no_size_alias", 0x100, 0))
        .with(function("next", 0x120, 8))
        .with(function("too_long", 0x380, 0x1_0000_0000))
        .with(function("no_size_at_the_end", 0x3f0, 0))
        .build();
    embed(&mut file).unwrap();
    let symbols = Symbols::parse(space_of(&file)).unwrap();
    let size = |name| symbols.by_name(name).next().unwrap().size;
    assert_eq!(size("no_size"), 0x20, "up to the next");
    assert_eq!(size("no_size_alias"), 0x20);
    assert_eq!(size("too_long"), 0x80, "up to the end of the section");
    assert_eq!(size("no_size_at_the_end"), 0x10);
}

#[test]
fn a_space_that_is_too_small_says_what_is_needed() {
    let space = |bytes| Kernel { space: Some(reserved(bytes)), ..Kernel::good() };
    let mut file = space(64).build();
    let before = file.clone();
    let Err(Error::SpaceTooSmall { have: 64, need }) = embed(&mut file) else {
        panic!("64 bytes are too few")
    };
    assert!(file == before, "the image stays as it was");
    assert!(embed(&mut space(need as usize - 1).build()).is_err());
    let embedded = embed(&mut space(need as usize).build()).unwrap();
    assert_eq!((embedded.used, embedded.capacity), (need, need));
    let text = Error::SpaceTooSmall { have: 64, need }.to_string();
    assert!(text.contains(&need.to_string()) && text.contains("symbol_space!(4096)"), "{text}");
}

#[test]
fn each_unusable_input_has_its_own_error() {
    let good = Kernel::good();
    let edited = |at: usize, value: u8| {
        let mut file = Kernel::good().build();
        file[at] = value;
        file
    };
    let damaged = |at: usize, value: u8| {
        let mut space = reserved(4096);
        space[at] = value;
        Kernel { space: Some(space), ..Kernel::good() }.build()
    };
    type Expect = fn(&Error) -> bool;
    let cases: [(&str, Vec<u8>, Expect); 13] = [
        ("empty", vec![], |e| matches!(e, Error::NotElf)),
        ("text", b"int main(void) { return 0; }".to_vec(), |e| matches!(e, Error::NotElf)),
        ("32-bit", edited(4, 1), |e| matches!(e, Error::NotLittle64(1, 1))),
        ("big-endian", edited(5, 2), |e| matches!(e, Error::NotLittle64(2, 2))),
        ("RISC-V", edited(18, 243), |e| matches!(e, Error::Machine(243))),
        ("core dump", edited(16, 4), |e| matches!(e, Error::FileType(4))),
        ("object file", edited(16, 1), |e| matches!(e, Error::NotLinked)),
        ("stripped", Kernel { with_symbol_table: false, ..good.clone() }.build(), |e| {
            matches!(e, Error::NoSymbolTable)
        }),
        ("no function", Kernel { symbols: vec![mark("main", TEXT)], ..good.clone() }.build(), |e| {
            matches!(e, Error::NoFunctions)
        }),
        ("no section", Kernel { space: None, ..good.clone() }.build(), |e| matches!(e, Error::NoSpace)),
        ("another content", damaged(0, b'X'), |e| {
            matches!(e, Error::SpaceNotReserved(SymbolsError::BadMagic(_)))
        }),
        ("another version", damaged(layout::AT_VERSION, 9), |e| {
            matches!(e, Error::SpaceNotReserved(SymbolsError::Version(9)))
        }),
        ("capacity beyond the section", damaged(layout::AT_CAPACITY + 1, 0xff), |e| {
            matches!(e, Error::SpaceCapacity { capacity: 0xff00, section: 4096 })
        }),
    ];
    for (case, mut file, expect) in cases {
        let before = file.clone();
        let error = embed(&mut file).expect_err(case);
        assert!(expect(&error), "{case}: {error:?}");
        assert!(file == before, "{case}");
        assert!(!error.to_string().is_empty());
    }
}

#[test]
fn functions_too_far_apart_are_refused() {
    let at = |offset| Function {
        at: Place { section: 0, offset },
        size: 4,
        room: 4,
        binding: Binding::Global,
        name: "f",
    };
    const LOW: u64 = 0x4008_0000;
    const HIGH: u64 = LOW + u32::MAX as u64;
    assert!(blob::build(&[at(LOW), at(HIGH)], &[], 0).is_ok());
    let error = blob::build(&[at(LOW), at(HIGH + 1)], &[], 0).unwrap_err();
    assert!(matches!(error, Error::Span(LOW, end) if end == HIGH + 1), "{error}");
}

/// Everything that the tool does with a file.
fn exercise(file: &[u8]) {
    if let Ok(image) = Image::parse(file) {
        if let Ok(listing) = Listing::new(&image) {
            listing.text(fgraph_cli::sites::Names::Demangled);
        }
        if let Ok(report) = check(&image, check::Symbols::Expected, &LandingPads::Ignored) {
            report.text(&"kernel");
        }
    }
    if let Ok(embedded) = embed(&mut file.to_vec()) {
        assert!(embedded.used <= embedded.capacity);
    }
}

#[test]
fn truncated_images_never_panic() {
    for relocated in [false, true] {
        let file = Kernel { relocated, ..Kernel::good() }.build();
        for length in (0..file.len()).step_by(7).chain(0..256) {
            exercise(&file[..length]);
        }
    }
}

#[test]
fn damaged_images_never_panic() {
    for relocated in [false, true] {
        let mut file = Kernel { relocated, ..Kernel::good() }.build();
        embed(&mut file).unwrap();
        // The code itself is only copied; what matters is headers, tables, the blob, symbols and strings.
        let interesting = (0..file.len()).filter(|at| file[*at] != 0 && !(0x1000..0x1400).contains(at));
        for at in interesting.collect::<Vec<_>>() {
            let right = file[at];
            for value in [0, 1, right.wrapping_add(1), right ^ 0x80, 0x7f, 0xff] {
                file[at] = value;
                exercise(&file);
            }
            file[at] = right;
        }
    }
}

/// A folder of its own for one test.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("fgraph-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_kernel_is_replaced_as_a_whole() {
    let folder = Folder::new("replace");
    let kernel = folder.0.join("kernel");
    let link = folder.0.join("link");
    let before = Kernel::good().build();
    fs::write(&kernel, &before).unwrap();
    fs::set_permissions(&kernel, fs::Permissions::from_mode(0o750)).unwrap();
    std::os::unix::fs::symlink(&kernel, &link).unwrap();
    // Whoever has the old file open keeps it.
    let mut held = fs::File::open(&kernel).unwrap();
    embed_file(&link, None).unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink(), "the link stays a link");
    assert_eq!(fs::metadata(&kernel).unwrap().permissions().mode() & 0o777, 0o750);
    assert_eq!(folder.names(), ["kernel", "link"], "no temporary file stays");
    assert_eq!(Symbols::parse(space_of(&fs::read(&kernel).unwrap())).unwrap().len(), 4);
    let mut old = Vec::new();
    held.read_to_end(&mut old).unwrap();
    assert!(old == before, "the old file is untouched");
}

#[test]
fn with_an_output_the_kernel_stays_as_it_was() {
    let folder = Folder::new("output");
    let (kernel, output) = (folder.0.join("kernel"), folder.0.join("named"));
    let bytes = Kernel::good().build();
    fs::write(&kernel, &bytes).unwrap();
    embed_file(&kernel, Some(&output)).unwrap();
    assert!(fs::read(&kernel).unwrap() == bytes);
    assert_eq!(Symbols::parse(space_of(&fs::read(&output).unwrap())).unwrap().len(), 4);
    assert_eq!(folder.names(), ["kernel", "named"]);
}

#[test]
fn a_failure_leaves_no_file_behind() {
    let folder = Folder::new("failure");
    let kernel = folder.0.join("kernel");
    let bytes = Kernel { space: Some(reserved(64)), ..Kernel::good() }.build();
    fs::write(&kernel, &bytes).unwrap();
    assert!(embed_file(&kernel, None).is_err());
    assert!(fs::read(&kernel).unwrap() == bytes);
    fs::write(&kernel, Kernel::good().build()).unwrap();
    let missing = folder.0.join("no folder").join("named");
    assert!(matches!(embed_file(&kernel, Some(&missing)), Err(Error::Write(path, _)) if path == missing));
    assert!(matches!(embed_file(&missing, None), Err(Error::Read(path, _)) if path == missing));
    let taken = folder.0.join("taken");
    fs::create_dir(&taken).unwrap();
    assert!(matches!(embed_file(&kernel, Some(&taken)), Err(Error::Write(..))));
    assert_eq!(folder.names(), ["kernel", "taken"]);
}

#[test]
fn file_symbols_name_the_files_of_local_functions() {
    let file = |name| Symbol {
        home: In::Absolute,
        value: 0,
        bind: elf::STB_LOCAL,
        kind: elf::STT_FILE,
        ..mark(name, 0)
    };
    let local = |offset| Symbol { bind: elf::STB_LOCAL, ..function("id_show", offset, 8) };
    let mut image = Kernel::good();
    let globals = std::mem::take(&mut image.symbols);
    for symbol in
        [file("drivers/one.c"), local(0x100), file("two.c"), local(0x120), file("k.1-cgu.0"), local(0x140)]
    {
        image = image.with(symbol);
    }
    image.symbols.extend(globals);
    let mut bytes = image.build();
    let embedded = embed(&mut bytes).unwrap();
    assert_eq!((embedded.names, embedded.files), (7, 2));
    let symbols = Symbols::parse(space_of(&bytes)).unwrap();
    let files: Vec<_> = symbols.by_name("id_show").map(|symbol| symbol.file).collect();
    assert_eq!(files, [Some("drivers/one.c"), Some("two.c"), None]);
    assert_eq!(symbols.by_name("main").next().unwrap().file, None, "a global one");
    let report =
        check(&Image::parse(&bytes).unwrap(), check::Symbols::Expected, &LandingPads::Ignored).unwrap();
    assert_eq!(report.findings, []);
}
