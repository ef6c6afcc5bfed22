//! Gives the kernel its linker script, and beside it the tracer's fragments that the script includes; and its functions in C. On a hosted
//! target there is no kernel, only a stub, and nothing to do.

#[path = "build/initrd.rs"]
mod initrd;
#[path = "build/shapes.rs"]
mod shapes;

use std::{env, fs, path::PathBuf};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if var("CARGO_CFG_TARGET_OS") != "none" {
        return;
    }
    let machine = match var("CARGO_CFG_TARGET_ARCH").as_str() {
        "aarch64" => "arm64",
        "x86_64" => "x86_64",
        other => panic!("the demo kernel runs on aarch64 and x86_64, not on {other}"),
    };
    let script: PathBuf =
        [&var("CARGO_MANIFEST_DIR"), "src", "machine", machine, "kernel.ld"].iter().collect();
    println!("cargo:rerun-if-changed={}", script.display());
    println!("cargo:rustc-link-arg-bins=-T{}", script.display());
    let out = PathBuf::from(var("OUT_DIR"));
    for (name, fragment) in fgraph::linker::FILES {
        let path = out.join(name);
        fs::write(&path, fragment).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
    println!("cargo:rustc-link-arg-bins=-L{}", out.display());
    let manifest = PathBuf::from(var("CARGO_MANIFEST_DIR"));
    shapes::compile(&var("CARGO_CFG_TARGET_ARCH"), &manifest.join("c").join("shapes.c"));
    initrd::write(&manifest.join(".."), &out);
    println!("cargo:rustc-link-arg-bins=--gc-sections");
    // A missing script symbol is an error here rather than a jump to zero in the kernel.
    println!("cargo:rustc-link-arg-bins=--no-undefined");
}

/// An environment variable that Cargo always sets for build scripts.
fn var(name: &str) -> String {
    env::var(name).unwrap_or_else(|error| panic!("{name}: {error}"))
}
