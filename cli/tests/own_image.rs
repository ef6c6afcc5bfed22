//! A program that a real compiler and linker made: this one. It embeds names in a copy of itself and runs the
//! copy, which shows that reading the space does not give what the compiler saw there. Only an optimised
//! build can get that wrong.

use std::process::Command;

use fgraph::btf::Kind;
use fgraph::btf::image::ImageError;
use fgraph::symbols::{SymbolsError, layout};
use fgraph_cli::embed::{TypeFiles, Typed};

// Names of the whole standard library come along.
const CAPACITY: usize = 8 << 20;

fgraph::symbol_space!(CAPACITY);
// And types of the part of it that is in this program.
fgraph::type_space!(CAPACITY);

const CHILD: &str = "FGRAPH_TEST_CHILD";

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn fgraph_test_marker(x: u32) -> u32 {
    x ^ 0x5a5a
}

#[inline(never)]
fn rust_marker(x: u32) -> u32 {
    x.rotate_left(3)
}

#[test]
fn embedded_copy_reads_its_own_names() {
    if std::env::var_os(CHILD).is_some() {
        return child();
    }
    assert_eq!(symbols().unwrap_err(), SymbolsError::Empty { capacity: CAPACITY as u64 });

    let copy = std::env::temp_dir().join(format!("fgraph-own-image-{}", std::process::id()));
    let own = std::env::current_exe().unwrap();
    let done = fgraph_cli::embed::embed_typed(&own, &copy, &TypeFiles::default()).unwrap();
    let embedded = done.names.as_ref().expect("it has room for names");
    assert!(embedded.names > 100, "{done}");
    let output = Command::new(&copy)
        .args(["--exact", "embedded_copy_reads_its_own_names", "--nocapture"])
        .env(CHILD, "1")
        .output();
    std::fs::remove_file(&copy).unwrap();
    let output = output.unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{out}{}", String::from_utf8_lossy(&output.stderr));
    assert!(out.contains(&format!("{} names", embedded.names)), "{out}");
    match done.typed {
        Typed::InImage { made, .. } => {
            assert!(out.contains(&format!("{} functions have types", made.functions.len())), "{out}");
        }
        other => println!("skipped types: this program has none: {other:?}"),
    }
}

/// What the copy does: it finds the functions by name and by the addresses at which they run.
fn child() {
    // With a constant index, an optimiser that may answers from the initial value.
    assert_eq!(FGRAPH_SYMBOL_SPACE.bytes()[..8], layout::MAGIC);
    let symbols = symbols().unwrap();
    println!("{} names", symbols.len());
    let here = fgraph_test_marker as *const () as u64;
    let linked = symbols.by_name("fgraph_test_marker").next().unwrap().start;
    // Programs are linked at 0 and run elsewhere.
    let symbols = symbols.with_slide(here.wrapping_sub(linked));
    let found = symbols.by_address(here + 1).unwrap();
    assert_eq!((found.name, found.start, found.offset), ("fgraph_test_marker", here, 1));
    let rust = rust_marker as *const () as u64;
    let found = symbols.by_address(rust).unwrap();
    assert_eq!(found.demangled().to_string(), "own_image::rust_marker");
    assert!(symbols.by_name("own_image::rust_marker").any(|symbol| symbol.start == rust));

    let types = match types() {
        Ok(types) => types.with_slide(here.wrapping_sub(linked)),
        // A program without debug information.
        Err(ImageError::Empty { .. }) => return,
        Err(error) => panic!("{error}"),
    };
    println!("{} functions have types", types.len());
    for (addr, name, bits) in [(here, "fgraph_test_marker", 32), (rust, "rust_marker", 32)] {
        let func = types.btf().get(types.function_at(addr).unwrap()).unwrap();
        assert!(func.name.contains(name), "{}", func.name);
        let Kind::Func { proto, .. } = func.kind else { panic!("{func:?}") };
        let Kind::FuncProto { ret, params } = types.btf().get(proto).unwrap().kind else { panic!("{proto}") };
        assert_eq!((params.len(), params.get(0).unwrap().name, params.get(0).unwrap().ty), (1, "x", ret));
        assert!(matches!(types.btf().get(ret).unwrap().kind, Kind::Int(int) if int.bits == bits));
    }
}
