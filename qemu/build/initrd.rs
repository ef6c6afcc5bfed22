//! Packs the archive that the demo unpacks: real files of this repository, as a zlib-compressed tar, and what the kernel
//! must find in them, counted here by other code than the kernel's.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

/// What is packed, in this order; all of it is in every checkout.
const FILES: &[&str] = &["LICENSE-APACHE", "DESIGN.md", "core/shadow.rs", "asm/x86_64/entry.s"];

/// Writes `initrd.z` and `manifest.rs` to `out`.
pub(crate) fn write(repository: &Path, out: &Path) {
    let mut archive = tar::Builder::new(Vec::new());
    let mut manifest = String::from("pub const MANIFEST: &[Expected] = &[\n");
    for name in FILES {
        let path: PathBuf = repository.join(name);
        println!("cargo:rerun-if-changed={}", path.display());
        let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut header = tar::Header::new_ustar();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        archive
            .append_data(&mut header, name, bytes.as_slice())
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let words = String::from_utf8_lossy(&bytes).split_ascii_whitespace().count();
        writeln!(
            manifest,
            "    Expected {{ name: {name:?}, bytes: {}, crc: {:#010x}, words: {words} }},",
            bytes.len(),
            crc32(&bytes)
        )
        .expect("a string takes everything");
    }
    manifest.push_str("];\n");
    let archive = archive.into_inner().expect("a vector takes everything");
    let compressed = miniz_oxide::deflate::compress_to_vec_zlib(&archive, 9);
    for (name, bytes) in [("initrd.z", compressed.as_slice()), ("manifest.rs", manifest.as_bytes())] {
        let path = out.join(name);
        fs::write(&path, bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

/// CRC-32 (ISO-HDLC), a bit at a time: slow, and written from the definition.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & 0u32.wrapping_sub(crc & 1)))
    })
}
