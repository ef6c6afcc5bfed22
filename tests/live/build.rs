//! Links the program with the tracer's fragments (`live.ld`), and compiles the C functions if there is a C compiler.

use std::{env, fs, path::PathBuf};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-check-cfg=cfg(live_c)");
    if var("CARGO_CFG_TARGET_OS") != "linux" {
        return;
    }
    let script: PathBuf = [&var("CARGO_MANIFEST_DIR"), "live.ld"].iter().collect();
    println!("cargo:rerun-if-changed={}", script.display());
    let out = PathBuf::from(var("OUT_DIR"));
    for (name, fragment) in fgraph::linker::FILES {
        let path = out.join(name);
        fs::write(&path, fragment).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
    println!("cargo:rustc-link-arg-bins=-L{}", out.display());
    println!("cargo:rustc-link-arg-bins=-Wl,-T,{}", script.display());

    println!("cargo:rustc-check-cfg=cfg(prefixed_sites)");
    println!("cargo:rustc-check-cfg=cfg(landing_pads)");
    println!("cargo:rerun-if-env-changed=LIVE_SITES");
    let sites = env::var("LIVE_SITES").unwrap_or_default();
    let prefixed = matches!(sites.as_str(), "prefixed" | "guarded");
    // One landing pad anywhere, and every function is hooked in a way that lands on none.
    let landing = matches!(sites.as_str(), "" | "plain" | "guarded");
    if prefixed {
        println!("cargo:rustc-cfg=prefixed_sites");
    }
    if landing {
        println!("cargo:rustc-cfg=landing_pads");
    }
    let (sled, mut pads) = match (var("CARGO_CFG_TARGET_ARCH").as_str(), prefixed) {
        ("x86_64", false) => ("5", ["-fcf-protection=none", "-fcf-protection=full"]),
        ("x86_64", true) => ("18,16", ["-fcf-protection=none", "-fcf-protection=full"]),
        ("aarch64", false) => ("2", ["-mbranch-protection=none", "-mbranch-protection=bti"]),
        ("aarch64", true) => ("4,2", ["-mbranch-protection=none", "-mbranch-protection=bti"]),
        (other, _) => panic!("the tracer runs on aarch64 and x86_64, not on {other}"),
    };
    if !landing {
        pads[1] = pads[0];
    }
    println!("cargo:rerun-if-changed=c/functions.c");
    for (prefix, pad) in ["plain_", "landing_"].into_iter().zip(pads) {
        let compiled = cc::Build::new()
            .file("c/functions.c")
            .flag(format!("-fpatchable-function-entry={sled}"))
            .flag(pad)
            .flag("-std=gnu11")
            .define("PREFIX", prefix)
            .opt_level(2)
            .cargo_warnings(false)
            .try_compile(&format!("live_{prefix}functions"));
        if let Err(error) = compiled {
            println!("cargo:rustc-env=LIVE_NO_C={}", error.to_string().replace('\n', " "));
            return;
        }
    }
    println!("cargo:rustc-cfg=live_c");
}

/// An environment variable that Cargo always sets for build scripts.
fn var(name: &str) -> String {
    env::var(name).unwrap_or_else(|error| panic!("{name}: {error}"))
}
