//! Rust: enums with data, niches, pairs, slices, and the convention that they are passed by.

use fgraph::btf::{Btf, Kind};
use fgraph::symbols::Demangled;
use fgraph::values::{Machine, Memory, Returned, Values};

use crate::declare::{body, definition, function, name, tags};
use crate::make::{Made, rust, rust_as_llvm};
use crate::shapes::{Chars, Error, Nested, Shape, Signed, Single, Tagged};

const SHAPES: &str = concat!("#![no_std]\n", include_str!("shapes.rs"));
const TARGETS: [&str; 2] = ["x86_64-unknown-none", "aarch64-unknown-none-softfloat"];
const FLAGS: [&[&str]; 5] = [
    &["-g", "-O"],
    &["-g", "-Copt-level=0"],
    &["-g", "-O", "-Csymbol-mangling-version=v0"],
    &["-g", "-Copt-level=s", "-Cforce-frame-pointers=yes"],
    &["-g", "-Copt-level=3", "-Cpanic=abort"],
];

/// The function of a path, without its linkage name.
fn declared(made: &Made, btf: &Btf<'_>, path: &str) -> Option<String> {
    // The two ways of mangling differ in how they call the methods of a type.
    let (symbol, id) = made.functions.iter().find(|(symbol, _)| {
        Demangled(symbol).to_string().replace("<source::Point>", "source::Point") == path
    })?;
    Some(function(btf, *id).replace(symbol.as_str(), ""))
}

const FUNCTIONS: [(&str, &str); 24] = [
    ("source::unit", "void (u32 x)"),
    ("source::never", "void (u32 x)"),
    ("source::ints", "u128 (u8 a, i16 b, usize c, i64 d, u128 e, bool f, char g, f32 h)"),
    ("source::option", "union Option<u32> (u32 x)"),
    ("source::reference", "union Option<&u32> (u32* x)"),
    ("source::result", "union Result<u64, source::Error> (u32 x)"),
    ("source::unit_result", "union Result<(), source::Error> (u32 x)"),
    ("source::text", "struct &str (struct &str s)"),
    ("source::slice", "usize (struct &mut [u16] s)"),
    ("source::dynamic", "u32 (struct &dyn source::Act s)"),
    ("source::shape", "union Shape (union Shape s)"),
    ("source::tuple", "struct (u64, bool) (struct (u8, u32) p)"),
    ("source::raw", "struct Raw* (struct Raw* r)"),
    ("source::bits", "union Bits (union Bits r)"),
    ("source::array", "u32[2] (u64[5] r)"),
    ("source::pointer", "bool (bool (u32, struct &str)* f)"),
    ("source::uses_generic", "u64 (u8 x)"),
    ("source::pattern", "u64 (struct (u32, u64), u8, struct Both)"),
    ("source::stack", "u64 (u64 a, u64 b, u64 c, u64 d, u64 e, u64 f, u64 g, u64 h, u64 i)"),
    ("source::large", "u64[4] (u64 x)"),
    ("source::largest", "union Option<[u64; 4]> (u64 x)"),
    ("source::Point::method", "u32 (struct Point* self, u32 k)"),
    ("<source::Wrap as source::Act>::act", "u32 (struct Wrap* self)"),
    ("exported", "u32 (u32 x, struct Ends s)"),
];

const BODIES: [(&str, &str, &[&str]); 21] = [
    ("Point", "struct Point { 0 u64 y; 64 u32 x; } 16", &["fgraph:pair=8"]),
    ("Raw", "struct Raw { 0 u8 a; 32 u32 b; 64 u16[3] c; } 16", &[]),
    ("Both", "struct Both { 0 u32 __0; 32 u32 __1; } 8", &["fgraph:pair=4"]),
    ("Bits", "union Bits { 0 f32 f; 0 u32 u; } 4", &[]),
    ("(u8, u32)", "struct (u8, u32) { 0 u8 __0; 32 u32 __1; } 8", &["fgraph:pair=4"]),
    ("&str", "struct &str { 0 u8* data_ptr; 64 usize length; } 16", &["fgraph:str", "fgraph:pair=8"]),
    (
        "&mut [u16]",
        "struct &mut [u16] { 0 u16* data_ptr; 64 usize length; } 16",
        &["fgraph:slice", "fgraph:pair=8"],
    ),
    (
        "Option<u32>",
        "union Option<u32> { 0 struct None None; 0 struct Some Some; } 8",
        &["fgraph:variants=0,4", "fgraph:pair=4", "0:fgraph:variant=0", "1:fgraph:variant=1"],
    ),
    (
        "Option<&u32>",
        "union Option<&u32> { 0 struct None None; 0 struct Some Some; } 8",
        &["fgraph:variants=0,8", "0:fgraph:variant=0", "1:fgraph:variant=default"],
    ),
    (
        "Result<u64, source::Error>",
        "union Result<u64, source::Error> { 0 struct Ok Ok; 0 struct Err Err; } 16",
        &["fgraph:variants=0,1", "0:fgraph:variant=0", "1:fgraph:variant=1"],
    ),
    (
        "Result<(), source::Error>",
        "union Result<(), source::Error> { 0 struct Ok Ok; 0 struct Err Err; } 1",
        &["fgraph:variants=0,1", "0:fgraph:variant=9", "1:fgraph:variant=default"],
    ),
    ("Error", "enum Error { NotFound=0 Busy=7 Denied=8 } 1", &[]),
    (
        "Shape",
        "union Shape { 0 struct Empty Empty; 0 struct Circle Circle; 0 struct Rect Rect; } 8",
        &["fgraph:variants=0,2", "0:fgraph:variant=0", "1:fgraph:variant=1", "2:fgraph:variant=2"],
    ),
    ("Rect", "struct Rect { 16 u16 w; 32 u16 h; } 8", &[]),
    ("Circle", "struct Circle { 32 u32 __0; } 8", &[]),
    (
        "Nested",
        "union Nested { 0 struct One One; 0 struct Two Two; 0 struct Three Three; } 1",
        &["fgraph:variants=0,1", "0:fgraph:variant=default", "1:fgraph:variant=3", "2:fgraph:variant=4"],
    ),
    (
        "Chars",
        "union Chars { 0 struct Char Char; 0 struct A A; 0 struct B B; } 4",
        &[
            "fgraph:variants=0,4",
            "0:fgraph:variant=default",
            "1:fgraph:variant=1114112",
            "2:fgraph:variant=1114113",
        ],
    ),
    (
        "Signed",
        "union Signed { 0 struct Minus Minus; 0 struct Plus Plus; } 16",
        &["fgraph:variants=0,1", "fgraph:pair=8", "0:fgraph:variant=253", "1:fgraph:variant=100"],
    ),
    (
        "Tagged",
        "union Tagged { 0 struct A A; 0 struct B B; } 4",
        &["fgraph:variants=0,1", "fgraph:pair=2", "0:fgraph:variant=4", "1:fgraph:variant=9"],
    ),
    ("char", "char u32 2", &[]),
    ("u128", "u128 u128 0", &[]),
];

#[test]
fn every_shape_is_read_back() {
    for target in TARGETS {
        for flags in FLAGS {
            let Some(object) = rust(&[&["--target", target], flags].concat(), SHAPES) else { continue };
            let made = Made::of(&object);
            made.with(|btf| {
                for (path, expected) in FUNCTIONS {
                    let found = declared(&made, &btf, path);
                    // A small one may be in all its callers.
                    let may_be_gone = path.contains("Act>::act");
                    assert!(may_be_gone || found.is_some(), "{target} {flags:?}: {path}");
                    assert_eq!(found.as_deref().unwrap_or(expected), expected, "{target} {flags:?}: {path}");
                }
                for (called, expected, expected_tags) in BODIES {
                    let id = definition(&btf, called);
                    assert_eq!(body(&btf, id), expected, "{target} {flags:?}");
                    assert_eq!(tags(&btf, id), expected_tags, "{target} {flags:?}: {called}");
                }
                for (symbol, id) in &made.functions {
                    let tags = tags(&btf, *id);
                    let abi =
                        if symbol == "exported" { "fgraph:abi=rust-unknown" } else { "fgraph:abi=rust" };
                    assert_eq!(tags[0], abi, "{target} {flags:?} {symbol}");
                    assert!(tags.len() == 1 || symbol == "exported", "{target} {flags:?} {symbol}: {tags:?}");
                }
            });
            assert_eq!(made.report.changed, 0, "{target} {flags:?}");
        }
    }
}

/// The same code is there once, and described once: never under a name that it does not belong to.
#[test]
fn merged_functions_have_the_types_of_their_name() {
    let source = "#![no_std]
        #[inline(never)] pub fn signed_one(x: i32, y: i32) -> i32 { x.wrapping_mul(y).wrapping_add(7) }
        #[inline(never)] pub fn one(x: u32, y: u32) -> u32 { x.wrapping_mul(y).wrapping_add(7) }
        #[inline(never)] pub fn u(x: u32, y: u32) -> u32 { x.wrapping_mul(y).wrapping_add(7) }";
    for flags in [&["-g", "-O", "-Csymbol-mangling-version=v0"][..], &["-g", "-O"]] {
        let Some(object) = rust(flags, source) else { continue };
        let image = fgraph_cli::image::Image::parse(&object).unwrap();
        let mut shown = image.functions.clone();
        shown.dedup_by_key(|function| function.at);
        let made = Made::of(&object);
        made.with(|btf| {
            for function in shown {
                let id = made.functions.iter().find(|(symbol, _)| symbol == function.name).map(|(_, id)| *id);
                match id {
                    Some(id) => assert_eq!(btf.get(id).unwrap().name, function.name),
                    None => assert_eq!(
                        made.left_out(function.name).as_deref(),
                        Some("one code for functions of different types")
                    ),
                }
            }
        });
    }
}

/// How the compiler itself says that values come back: in LLVM's language, `{ a, b }` is a pair.
#[test]
fn pairs_are_what_the_compiler_has_for_pairs() {
    for target in TARGETS {
        let flags = ["--target", target, "-O", "-g", "-Csymbol-mangling-version=v0"];
        let Some((object, llvm)) = rust(&flags, SHAPES).zip(rust_as_llvm(&flags, SHAPES)) else { continue };
        let made = Made::of(&object);
        let mut pairs = 0;
        made.with(|btf| {
            for line in llvm.lines().filter(|line| line.starts_with("define ")) {
                let symbol = line.split(['@', '(']).nth(1).unwrap().trim_matches('"');
                let found = made.functions.iter().find(|(name, _)| name == symbol);
                let Some((_, id)) = found.filter(|(name, _)| name != "exported") else { continue };
                let Kind::Func { proto, .. } = btf.get(*id).unwrap().kind else { unreachable!() };
                let Kind::FuncProto { ret, .. } = btf.get(proto).unwrap().kind else { unreachable!() };
                let is_pair = tags(&btf, ret).iter().any(|tag| tag.starts_with("fgraph:pair="));
                let has_pair = line.split('@').next().unwrap().contains('{');
                assert_eq!(is_pair, has_pair, "{target}: {} returns {}: {line}", symbol, name(&btf, ret));
                pairs += usize::from(is_pair);
            }
        });
        assert!(pairs >= 6, "{target}: {pairs}");
    }
}

/// The variant that holds in these bytes, as the tags say it.
fn variant(btf: &Btf<'_>, called: &str, bytes: &[u8]) -> String {
    let id = definition(btf, called);
    let Kind::Union { members, .. } = btf.get(id).unwrap().kind else {
        panic!("{called} is no enum with data")
    };
    let (mut holds, mut default, mut found) = (None, None, None);
    for (component, text) in btf.tags(id) {
        if let Some(place) = text.strip_prefix("fgraph:variants=") {
            let (at, size) = place.split_once(',').unwrap();
            let (at, size): (usize, usize) = (at.parse().unwrap(), size.parse().unwrap());
            let mut word = [0; 8];
            word[..size].copy_from_slice(&bytes[at..at + size]);
            holds = Some(u64::from_le_bytes(word));
        } else if text == "fgraph:variant=default" {
            default = component;
        } else if let Some(value) = text.strip_prefix("fgraph:variant=") {
            let (low, high) = value.split_once("..=").unwrap_or((value, value));
            let range = low.parse::<u64>().unwrap()..=high.parse().unwrap();
            found = found.or(component.filter(|_| range.contains(&holds.unwrap())));
        }
    }
    members.get(found.or(default).unwrap() as usize).unwrap().name.to_owned()
}

#[test]
fn variants_are_those_of_real_values() {
    let Some(object) = rust(&["-g", "-O"], SHAPES) else { return };
    let made = Made::of(&object);
    made.with(|btf| {
        macro_rules! check {
            ($called:literal: $of:ty; $($value:expr => $variant:literal),+) => {$(
                // Bytes that are padding are given a value first, which the value leaves or not.
                for fill in [0, 0xff, 0x55] {
                    let mut bytes = [fill; size_of::<$of>()];
                    // SAFETY: the bytes are as many as the value has, and need no alignment.
                    unsafe { std::ptr::write_unaligned(bytes.as_mut_ptr().cast::<$of>(), $value) };
                    assert_eq!(variant(&btf, $called, &bytes), $variant, "{} {bytes:?}", $called);
                }
            )+};
        }
        check!("Option<u32>": Option<u32>; None => "None", Some(0) => "Some", Some(u32::MAX) => "Some");
        check!("Option<&u32>": Option<&u32>; None => "None", Some(&3) => "Some");
        check!("Option<[u64; 4]>": Option<[u64; 4]>; None => "None", Some([0; 4]) => "Some");
        check!("Result<u64, source::Error>": Result<u64, Error>; Ok(0) => "Ok", Ok(u64::MAX) => "Ok", Err(Error::Busy) => "Err");
        check!("Result<(), source::Error>": Result<(), Error>; Ok(()) => "Ok", Err(Error::NotFound) => "Err", Err(Error::Denied) => "Err");
        check!("Shape": Shape; Shape::Empty => "Empty", Shape::Circle(0) => "Circle", Shape::Rect { w: 0, h: u16::MAX } => "Rect");
        check!("Nested": Nested; Nested::One(None) => "One", Nested::One(Some(true)) => "One", Nested::Two => "Two", Nested::Three => "Three");
        check!("Chars": Chars; Chars::Char('\0') => "Char", Chars::Char(char::MAX) => "Char", Chars::A => "A", Chars::B => "B");
        check!("Signed": Signed; Signed::Minus(1) => "Minus", Signed::Plus => "Plus");
        check!("Tagged": Tagged; Tagged::A(0) => "A", Tagged::B => "B");
        check!("Single": Single; Single::Only(9) => "Only");
    });
}

/// Where LLVM knows all callers of a function, it hands the address of the memory for the return value over as any argument.
#[test]
fn large_values_of_local_functions_are_where_the_first_argument_says() {
    let source = "#![no_std]
        use core::hint::black_box;
        #[inline(never)] fn local(x: u64, y: &u64) -> [u64; 4] { black_box(x); black_box([x, *y, 3, 4]) }
        #[inline(never)] pub fn public(x: u64, y: &u64) -> [u64; 4] { black_box(x); black_box([x, *y, 3, 5]) }
        #[unsafe(no_mangle)] pub extern \"C\" fn run(x: u64) -> u64 { local(x, &x)[0] + local(x + 1, &x)[3] + public(x, &x)[2] }";
    for target in TARGETS {
        let flags = ["--target", target, "-g", "-O"];
        let Some((object, llvm)) = rust(&flags, source).zip(rust_as_llvm(&flags, source)) else { continue };
        let made = Made::of(&object);
        let tags_of = |path: &str| {
            let found = made.functions.iter().find(|(symbol, _)| Demangled(symbol).to_string() == path);
            made.with(|btf| tags(&btf, found.unwrap_or_else(|| panic!("{target}: {path}")).1))
        };
        assert_eq!(tags_of("source::public"), ["fgraph:abi=rust"], "{target}");
        let local = llvm.lines().find(|line| line.starts_with("define internal") && line.contains("local"));
        let Some(local) = local else { panic!("{target}: no local function") };
        let is_moved = target.starts_with("aarch64") && !local.contains("sret(");
        let expected: &[&str] = match target.starts_with("x86_64") {
            true => &["fgraph:abi=rust", "fgraph:ret=e0"],
            false if is_moved => &["fgraph:abi=rust", "fgraph:ret=e0", "0:fgraph:loc=r1", "1:fgraph:loc=r2"],
            false => &["fgraph:abi=rust"],
        };
        assert_eq!(tags_of("source::local"), expected, "{target}: {local}");
        println!("{target}: {}", if is_moved { "moved" } else { "in its own register, or the first" });
    }
}

/// The memory of this process, which the test owns as far as it is read.
struct Own;

impl Memory for Own {
    fn read(&self, addr: u64, into: &mut [u8]) -> bool {
        // SAFETY: the addresses are those of values that live in the test, and no more bytes of them are asked for than they have.
        unsafe { std::ptr::copy_nonoverlapping(addr as *const u8, into.as_mut_ptr(), into.len()) };
        true
    }
}

#[test]
fn owned_text_and_elements_look_like_borrowed_ones() {
    let source = "extern crate alloc;
        use alloc::{string::String, vec::Vec};
        pub struct Named { pub name: String, pub ids: Vec<u64> }
        #[inline(never)] pub fn text(n: usize) -> String { \"five!\".repeat(n) }
        #[inline(never)] pub fn list(n: u32) -> Vec<u32> { (0..n).collect() }
        #[inline(never)] pub fn both(n: u32) -> Named { Named { name: text(1), ids: Vec::with_capacity(n as usize) } }
        pub struct Vec2<T> { pub ptr: *const T, pub len: usize }
        #[inline(never)] pub fn other(n: u32) -> Option<(Vec2<u8>, u64)> { (n > 1).then(|| (Vec2 { ptr: 4 as *const u8, len: 3 }, 7)) }";
    struct Named {
        name: String,
        ids: Vec<u64>,
    }
    let (text, list) = (String::from("five!"), vec![1_u32, 2, 3]);
    let both = Named { name: "a\"b".into(), ids: Vec::with_capacity(9) };
    let bytes = |value: *const u8, len| {
        // SAFETY: a value that lives longer than this, with no padding.
        unsafe { std::slice::from_raw_parts(value, len) }.to_vec()
    };
    let cases = [
        ("text", bytes((&raw const text).cast(), 24), "\"five!\"".to_owned()),
        ("list", bytes((&raw const list).cast(), 24), format!("{:p}[..3]", list.as_ptr())),
        (
            "both",
            bytes((&raw const both).cast(), 48),
            format!("Named {{ name: \"a\\\"b\", ids: {:p}[..0] }}", both.ids.as_ptr()),
        ),
    ];
    assert_eq!((both.name.len(), both.ids.len()), (3, 0));
    for flags in [&["-g", "-O"][..], &["-g", "-Copt-level=0"]] {
        let Some(object) = rust(flags, source) else { return };
        let made = Made::of(&object);
        let id = |path: &str| {
            let found = made.functions.iter().find(|(symbol, _)| Demangled(symbol).to_string() == path);
            found.unwrap_or_else(|| panic!("{path}")).1
        };
        made.with(|btf| {
            let machine = Machine::X86_64;
            let values = Values::new(btf, machine).with_memory(&Own);
            for (name, kept, want) in &cases {
                let mut shown = String::new();
                let returned = Returned { registers: &[0, 0], memory: None, kept };
                values.write_retval(id(&format!("source::{name}")), &returned, &mut shown).unwrap();
                assert_eq!(shown, *want, "{flags:?} {name}");
                // Where nothing can be read, address and length are all.
                if *name == "text" {
                    let mut shown = String::new();
                    let nothing = Values::new(btf, machine);
                    nothing.write_retval(id("source::text"), &returned, &mut shown).unwrap();
                    assert_eq!(shown, format!("{:p}[..5]", text.as_ptr()));
                }
            }
            let vec = btf.iter().find(|ty| ty.name.starts_with("Vec2<")).expect("there is one");
            assert_eq!(
                tags(&btf, vec.id),
                ["fgraph:pair=8"],
                "what is only called like it is not taken for it"
            );
        });
    }
}
