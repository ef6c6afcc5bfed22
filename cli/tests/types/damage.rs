//! Debug information that is cut off or wrong: it costs types, and nothing else.

use fgraph::btf::image::Types;
use fgraph_cli::embed::types;
use fgraph_cli::image::Image;

use crate::make::{c, rust};

/// Makes types of a file; those that are made must be well formed.
fn exercise(file: &[u8]) {
    let Ok(image) = Image::parse(file) else { return };
    if let Ok(Ok(mut made)) = types::make(&image, None) {
        let _ = made.report.to_string();
        // In an object file the sections lie too far apart for a blob.
        made.functions.retain(|function| function.start < 2 << 32);
        match made.blob(0) {
            Ok(blob) => assert!(Types::parse(&blob).is_ok()),
            Err(error) => panic!("{error}"),
        }
    }
}

fn sections(object: &[u8]) -> Vec<std::ops::Range<usize>> {
    let image = Image::parse(object).unwrap();
    let debug = image.sections.iter().filter(|section| section.name.starts_with(".debug_"));
    debug
        .map(|section| {
            section.file_offset as usize..section.file_offset as usize + section.data.unwrap().len()
        })
        .collect()
}

fn objects() -> impl Iterator<Item = Vec<u8>> {
    let source = "struct s { int a : 3; struct s *next; union { long l; char c[4]; } u; }; enum e { A, B = -1 };
        static __attribute__((noinline)) int inner(struct s *s, enum e e, int (*f)(struct s, ...)) { return s->a + e; }
        int outer(struct s *s) { return inner(s, A, 0) + inner(s->next, B, 0); }";
    let rust_source = "#![no_std] pub struct P(pub u8, pub u32);
        #[inline(never)] pub fn f(x: &str, p: P) -> Option<Result<u32, u8>> { if x.len() > 3 { Some(Ok(p.1)) } else { None } }";
    let four = c("cc", &["-g", "-gdwarf-4", "-O2"], source);
    let five = c("cc", &["-g", "-gdwarf-5", "-O2"], source);
    let packed = c("cc", &["-g", "-gz=zlib", "-O2"], source);
    [four, five, packed, rust(&["-g", "-O"], rust_source)].into_iter().flatten()
}

#[test]
fn damaged_debug_information_never_panics() {
    for object in objects() {
        exercise(&object);
        let mut object = object;
        for range in sections(&object) {
            // All bytes of what is short, of the rest enough.
            let step = (range.len() / 200).max(1);
            for at in range.step_by(step) {
                let right = object[at];
                for value in [0, right.wrapping_add(1), right ^ 0x80, 0xff] {
                    object[at] = value;
                    exercise(&object);
                }
                object[at] = right;
            }
        }
    }
}

#[test]
fn sections_that_are_cut_off_never_panic() {
    for object in objects() {
        let image = Image::parse(&object).unwrap();
        // The headers of sections stand at the end of the file: each has its size at 32.
        let headers = u64::from_le_bytes(object[40..48].try_into().unwrap()) as usize;
        for (index, section) in image.sections.iter().enumerate() {
            if !section.name.starts_with(".debug_") {
                continue;
            }
            let at = headers + index * 64 + 32;
            let mut cut = object.clone();
            for size in (0..section.size).step_by((section.size as usize / 200).max(1)) {
                cut[at..at + 8].copy_from_slice(&size.to_le_bytes());
                exercise(&cut);
            }
        }
    }
}
