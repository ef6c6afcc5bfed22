//! A program that a real compiler and linker made: this one. It embeds names in a copy of itself and runs the
//! copy, which shows that reading the space does not give what the compiler saw there. Only an optimised
//! build can get that wrong.

use std::process::Command;

use fgraph::symbols::{SymbolsError, layout};

// Names of the whole standard library come along.
const CAPACITY: usize = 8 << 20;

fgraph::symbol_space!(CAPACITY);

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
    let embedded = fgraph_cli::embed::embed_file(&std::env::current_exe().unwrap(), Some(&copy)).unwrap();
    assert!(embedded.names > 100, "{embedded}");
    let output = Command::new(&copy)
        .args(["--exact", "embedded_copy_reads_its_own_names", "--nocapture"])
        .env(CHILD, "1")
        .output();
    std::fs::remove_file(&copy).unwrap();
    let output = output.unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{out}{}", String::from_utf8_lossy(&output.stderr));
    assert!(out.contains(&format!("{} names", embedded.names)), "{out}");
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
}
