//! Compiles the C functions of `c/shapes.c` with the system's compiler, as a kernel in C would be: without vector registers, and
//! with the same sleds and landing pads that the Rust of this build has.
//!
//! GCC and Clang take the sled as rustc does: `-fpatchable-function-entry=N,M` is N NOPs, M of them before the entry, and both put
//! the place of the first into `__patchable_function_entries`, in a section that is linked or dropped with its function.

use std::env;
use std::path::Path;
use std::process::Command;

/// Compiles, and says by `cfg(shapes_c)` that it did; otherwise why not, in `SHAPES_NO_C`.
pub(crate) fn compile(arch: &str, source: &Path) {
    println!("cargo:rustc-check-cfg=cfg(shapes_c)");
    println!("cargo:rerun-if-changed={}", source.display());
    println!("cargo:rerun-if-env-changed=PATH");
    match try_compile(arch, source) {
        Ok(()) => println!("cargo:rustc-cfg=shapes_c"),
        Err(why) => println!("cargo:rustc-env=SHAPES_NO_C={}", why.replace('\n', " ")),
    }
}

fn try_compile(arch: &str, source: &Path) -> Result<(), String> {
    let (compiler, target) = compiler(arch).ok_or_else(|| {
        format!("there is no C compiler for {arch}: {arch}-linux-gnu-gcc or clang (scripts/setup qemu installs one)")
    })?;
    let mut build = cc::Build::new();
    build.file(source).compiler(compiler).no_default_flags(true).cargo_warnings(false);
    if let Some(target) = target {
        build.flag(target);
    }
    for flag in ["-std=gnu11", "-O2", "-g", "-ffreestanding", "-fno-pic", "-fno-pie", "-fno-stack-protector"]
    {
        build.flag(flag);
    }
    for flag in [
        "-fno-asynchronous-unwind-tables",
        "-ffunction-sections",
        "-fno-omit-frame-pointer",
        "-mgeneral-regs-only",
    ] {
        build.flag(flag);
    }
    let is_x86 = arch == "x86_64";
    if is_x86 {
        // Interrupts run on the stack of what they hit.
        build.flag("-mno-red-zone");
    }
    let mut guard = if is_x86 { "-fcf-protection=none" } else { "-mbranch-protection=none" }.to_string();
    for flag in rustflags() {
        if let Some(sled) = flag.strip_prefix("patchable-function-entry=") {
            build.flag(format!("-fpatchable-function-entry={sled}"));
        } else if let Some(what) = flag.strip_prefix("cf-protection=") {
            guard = format!("-fcf-protection={what}");
        } else if let Some(what) = flag.strip_prefix("branch-protection=") {
            guard = format!("-mbranch-protection={}", what.replace(',', "+"));
        }
    }
    build.flag(guard);
    build.try_compile("shapes").map_err(|error| error.to_string())
}

/// The values of `-Z` in the flags that this build's Rust is compiled with.
fn rustflags() -> Vec<String> {
    println!("cargo:rerun-if-env-changed=CARGO_ENCODED_RUSTFLAGS");
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let mut unstable = Vec::new();
    let mut flags = flags.split('\u{1f}');
    while let Some(flag) = flags.next() {
        match flag.strip_prefix("-Z") {
            Some("") => unstable.extend(flags.next().map(String::from)),
            Some(rest) => unstable.push(rest.to_string()),
            None => {}
        }
    }
    unstable
}

/// A compiler for this machine, and the flag that tells one of many machines about it.
fn compiler(arch: &str) -> Option<(String, Option<String>)> {
    let works =
        |program: &str| Command::new(program).arg("--version").output().is_ok_and(|out| out.status.success());
    let is_host = env::var("HOST").is_ok_and(|host| host.starts_with(arch));
    let cross = format!("{arch}-linux-gnu-gcc");
    if works(&cross) {
        Some((cross, None))
    } else if is_host && works("cc") {
        Some(("cc".into(), None))
    } else if works("clang") {
        Some(("clang".into(), Some(format!("--target={arch}-linux-gnu"))))
    } else {
        None
    }
}
