//! The reader on small BTF made here: every kind, everything that can be wrong, and bytes that may be anything.

pub(crate) mod make;
pub(crate) mod real;

use std::string::{String, ToString};
use std::vec::Vec;

use super::image::{Function, ImageError, Types, blob_len, layout, write};
use super::raw::kinds;
use super::*;
use crate::testing::{Random, storm};
use make::{Make, with_header};

/// One type of each kind, and the ids of void's neighbours.
fn every_kind() -> Make {
    let mut make = Make::new();
    let int = make.int("int", 4, 1);
    let char = make.int("char", 1, 0);
    let ptr = make.ptr(int);
    let array = make.array(char, int, 16);
    let bits = [("a", int, 0, Some(3)), ("b", int, 3, Some(30)), ("c", array, 64, None)];
    let structure = make.structure("bits", 24, &bits);
    let union = make.union("both", 8, &[("p", ptr, 0, None), ("n", int, 0, None)]);
    let small = make.enumeration("small", 4, true, &[("MINUS", -1), ("ONE", 1)]);
    make.enumeration64("large", false, &[("TOP", i64::MIN), ("ONE_", 1)]);
    make.fwd("hidden", false);
    let typedef = make.typedef("t", int);
    let volatile = make.volatile(typedef);
    let constant = make.constant(volatile);
    let restrict = make.restrict(constant);
    let tagged = make.type_tag("user", restrict);
    let function = make.function("f", small, &[("x", tagged), ("", union), ("", 0)]);
    let variable = make.variable("v", structure);
    make.section(".data", 24, &[[variable, 0, 24]]);
    make.float("double", 8);
    make.tag("whole", structure, -1);
    make.tag("second", function, 1);
    make.tag("first", function, 0);
    make
}

/// Everything the reader can say about BTF, which must come to an end.
pub(crate) fn look_at_everything(btf: &Btf<'_>) -> usize {
    let mut seen = 0;
    for ty in btf.iter() {
        seen +=
            btf.size(ty.id).map_or(0, |_| 1) + btf.resolve(ty.id).map_or(0, |_| 1) + btf.tags(ty.id).count();
        seen += match ty.kind {
            Kind::Struct { members, .. } | Kind::Union { members, .. } => members.iter().count(),
            Kind::Enum { constants, .. } => constants.iter().count(),
            Kind::FuncProto { params, .. } => params.iter().count(),
            Kind::DataSec { variables, .. } => {
                (0..variables.len()).filter(|n| variables.get(*n).is_some()).count()
            }
            _ => 1,
        };
        if !ty.name.is_empty() && !matches!(ty.kind, Kind::DeclTag { .. } | Kind::TypeTag(_)) {
            // A name that is not text cannot be asked for.
            seen += btf.by_name(ty.name).take(100).count();
            btf.function(ty.name);
        }
    }
    seen
}

fn check(bytes: &[u8]) -> Result<usize, BtfError> {
    let sections = Sections::parse(bytes)?;
    let mut memory = vec![[0; 4]; sections.count()?.words()];
    Ok(look_at_everything(&Btf::index(sections, &mut memory)?))
}

#[test]
fn every_kind_is_read() {
    let make = every_kind();
    let btf = make.btf();
    assert_eq!((btf.first(), btf.end(), btf.iter().count()), (1, make.next, make.next as usize - 1));
    let one = |name: &str| {
        let found: Vec<_> = btf.by_name(name).collect();
        assert_eq!(found.len(), 1, "{name}");
        found[0]
    };
    let kind = |name| std::format!("{:?}", one(name).kind);
    assert_eq!(kind("int"), "Int(Int { size: 4, bits: 32, offset: 0, encoding: Encoding(SIGNED) })");
    assert_eq!(kind("t"), "Typedef(1)");
    assert_eq!(kind("hidden"), "Fwd { union: false }");
    assert_eq!(kind("double"), "Float { size: 8 }");
    assert!(matches!(one("v").kind, Kind::Var { linkage: 1, .. }));
    let Kind::DataSec { size: 24, variables } = one(".data").kind else { panic!("{}", kind(".data")) };
    assert_eq!(variables.get(0), Some(Variable { ty: one("v").id, offset: 0, size: 24 }));
    let Kind::Struct { size: 24, members } = one("bits").kind else { panic!("{}", kind("bits")) };
    let fields: Vec<_> = members.iter().map(|m| (m.name, m.bit_offset, m.bits)).collect();
    assert_eq!(fields, [("a", 0, Some(3)), ("b", 3, Some(30)), ("c", 64, None)]);
    assert_eq!(btf.size(members.get(2).unwrap().ty), Ok(16));
    let Kind::Union { size: 8, members } = one("both").kind else { panic!("{}", kind("both")) };
    assert_eq!(members.iter().map(|m| btf.size(m.ty).unwrap()).collect::<Vec<_>>(), [8, 4]);
    for (name, signed, values) in [
        ("small", true, [("MINUS", u64::MAX), ("ONE", 1)]),
        ("large", false, [("TOP", 1 << 63), ("ONE_", 1)]),
    ] {
        let Kind::Enum { constants, .. } = one(name).kind else { panic!("{}", kind(name)) };
        assert_eq!(constants.signed(), signed);
        assert_eq!(constants.iter().map(|c| (c.name, c.value)).collect::<Vec<_>>(), values);
    }
    let Kind::Func { proto, linkage: 1 } = one("f").kind else { panic!("{}", kind("f")) };
    let Kind::FuncProto { ret, params } = btf.get(proto).unwrap().kind else { panic!("no prototype") };
    assert_eq!((ret, params.len()), (one("small").id, 3));
    let x = params.get(0).unwrap();
    assert_eq!((x.name, btf.resolve(x.ty).unwrap().name, btf.size(x.ty)), ("x", "int", Ok(4)));
    assert_eq!(btf.tags(one("bits").id).collect::<Vec<_>>(), [(None, "whole")]);
    assert_eq!(btf.tags(one("f").id).collect::<Vec<_>>(), [(Some(0), "first"), (Some(1), "second")]);
    assert_eq!(btf.tags(1).count(), 0);
    // A remark is no name of a type.
    assert_eq!(btf.by_name("whole").count() + btf.by_name("user").count() + btf.by_name("").count(), 0);
    assert!(matches!(btf.get(0), Some(Type { kind: Kind::Void, .. })));
    assert!(btf.get(btf.end()).is_none() && btf.get(u32::MAX).is_none());
    assert_eq!(btf.size(one("f").id), Err(BtfError::NoSize { id: one("f").id }));
    assert_eq!(btf.size(0), Err(BtfError::NoSize { id: 0 }));
}

#[test]
fn what_is_cut_anywhere_is_refused_or_whole() {
    let make = every_kind();
    let bytes = make.bytes();
    for len in 0..bytes.len() {
        let error = check(&bytes[..len]).expect_err("cut, and taken");
        assert!(
            matches!(error, BtfError::TooShort { .. } | BtfError::SectionRange { .. }),
            "{len}: {error:?}"
        );
    }
    // The header knows of the cut.
    let mut starts = Vec::new();
    for record in Sections::parse(&bytes).unwrap().records(1) {
        starts.push(record.unwrap().at as usize);
    }
    for len in 0..make.types.len() {
        let result = check(&with_header(&make.types[..len], &make.strings));
        if starts.contains(&len) {
            assert!(!matches!(result, Err(BtfError::Truncated { .. })), "{len}: {result:?}");
        } else {
            let id = starts.iter().filter(|start| **start < len).count() as u32;
            let offset = starts[id as usize - 1] as u32;
            assert_eq!(result, Err(BtfError::Truncated { id, offset }), "{len}");
        }
    }
    for len in 0..make.strings.len() {
        let error = check(&with_header(&make.types, &make.strings[..len])).expect_err("a name is missing");
        assert!(matches!(error, BtfError::NameRange { .. } | BtfError::Strings { .. }), "{len}: {error:?}");
    }
}

#[test]
fn headers_are_refused_with_their_reason() {
    let good = every_kind().bytes();
    let with = |at: usize, value: &[u8]| {
        let mut bytes = good.clone();
        bytes[at..at + value.len()].copy_from_slice(value);
        check(&bytes).expect_err("a bad header")
    };
    let words = |at: usize| u32::from_le_bytes(good[at..at + 4].try_into().unwrap());
    assert_eq!(with(0, b"ELF"), BtfError::BadMagic(*b"EL"));
    assert_eq!(with(0, &[0xeb, 0x9f]), BtfError::BigEndian);
    assert_eq!(with(2, &[2]), BtfError::Version(2));
    assert_eq!(with(3, &[1]), BtfError::Flags(1));
    assert_eq!(with(4, &[20]), BtfError::HeaderLength { len: 20 });
    assert_eq!(with(4, &[0xff; 4]), BtfError::HeaderLength { len: u32::MAX });
    let section = |section, offset, len| BtfError::SectionRange { section, offset, len };
    assert_eq!(with(8, &[2]), section(Section::Types, 2, words(12)));
    assert_eq!(with(12, &[0xff; 4]), section(Section::Types, 0, u32::MAX));
    assert_eq!(with(20, &[0xff; 4]), section(Section::Strings, words(16), u32::MAX));
    assert_eq!(with(good.len() - 1, b"x"), BtfError::Strings { len: words(20) as usize });
    for error in [BtfError::BigEndian, BtfError::TooManyTypes, section(Section::Types, 1, 2)] {
        assert!(!error.to_string().is_empty());
    }
    // A longer header of a later format is skipped.
    let mut longer = good.clone();
    longer[4] = 32;
    longer.splice(24..24, [7; 8]);
    assert_eq!(check(&longer), check(&good));
}

#[test]
fn references_must_exist_and_chains_must_end() {
    let mut make = Make::new();
    make.ptr(7);
    assert_eq!(check(&make.bytes()), Err(BtfError::NoSuchType { id: 1, refers_to: 7 }));
    let mut make = Make::new();
    make.proto(0, &[("a", 0), ("b", 2)]);
    assert_eq!(check(&make.bytes()), Err(BtfError::NoSuchType { id: 1, refers_to: 2 }));

    let mut make = Make::new();
    let circle = make.typedef("t", 1);
    let one = make.array(2, 1, 1);
    let many = make.array(4, 1, u32::MAX);
    let wide = make.array(many, 1, u32::MAX);
    let btf = make.btf();
    assert_eq!((circle, one), (1, 2));
    assert!(matches!(btf.resolve(circle), Err(BtfError::TooDeep { .. })));
    assert!(matches!(btf.size(circle), Err(BtfError::TooDeep { .. })));
    assert!(matches!(btf.size(one), Err(BtfError::TooDeep { .. })));
    assert!(matches!(btf.size(wide), Err(BtfError::NoSize { .. } | BtfError::TooDeep { .. })));
    // Exactly as long as allowed, and one longer.
    let mut make = Make::new();
    let mut at = make.int("int", 4, 1);
    for _ in 1..MAX_CHAIN {
        at = make.constant(at);
    }
    let longer = make.constant(at);
    let btf = make.btf();
    assert_eq!(btf.resolve(at).map(|ty| ty.id), Ok(1));
    assert_eq!(btf.resolve(longer).map(|ty| ty.id), Err(BtfError::TooDeep { id: 1 }));
}

#[test]
fn too_little_memory_is_refused_and_too_much_left_alone() {
    let bytes = every_kind().bytes();
    let sections = Sections::parse(&bytes).unwrap();
    let counts = sections.count().unwrap();
    let need = counts.words();
    for have in 0..need {
        let error = Btf::index(sections, &mut vec![[0; 4]; have]).unwrap_err();
        assert_eq!(error, BtfError::NoRoom { need, have });
    }
    let mut memory = vec![[0xaa; 4]; need + 3];
    Btf::index(sections, &mut memory).unwrap();
    assert_eq!(memory[need..], [[0xaa; 4]; 3]);
}

#[test]
fn names_are_found_as_by_a_plain_walk() {
    storm(40, 2, |random| {
        let mut make = Make::new();
        for _ in 0..random.below(60) {
            let name = *random.pick(&["a", "b", "ab", "abc", "", "b\u{e9}", "z"]);
            match random.below(3) {
                0 => make.int(name, 4, 0),
                1 => make.fwd(name, true),
                _ => make.typedef(name, 0),
            };
        }
        let btf = make.btf();
        for name in ["a", "b", "ab", "abc", "b\u{e9}", "z", "nothing", "A"] {
            let plain: Vec<u32> = btf.iter().filter(|ty| ty.name == name).map(|ty| ty.id).collect();
            assert_eq!(btf.by_name(name).map(|ty| ty.id).collect::<Vec<_>>(), plain, "{name}");
        }
    });
}

#[test]
fn long_names_and_names_that_are_no_text_are_cut() {
    let mut make = Make::new();
    let long: String = "x".repeat(MAX_NAME + 10);
    make.int(&long, 4, 0);
    make.int("good", 4, 0);
    let at = make.strings.len() - 3;
    make.strings[at] = 0xff;
    let btf = make.btf();
    assert_eq!(btf.get(1).map(|ty| ty.name.len()), Some(MAX_NAME));
    assert_eq!(btf.by_name(&long).map(|ty| ty.id).collect::<Vec<_>>(), [1]);
    assert_eq!(btf.get(2).map(|ty| ty.name), Some("go"));
}

#[test]
fn changed_bytes_never_do_harm() {
    let good = every_kind().bytes();
    storm(3000, 20, |random| {
        let mut bytes = good.clone();
        for _ in 0..random.between(1, 8) {
            let at = random.below(bytes.len());
            bytes[at] = if random.one_in(2) { random.word() as u8 } else { bytes[at] ^ 1 << random.below(8) };
        }
        let _ = check(&bytes);
    });
}

/// A blob of two functions over BTF of every kind.
fn blob() -> (Vec<u8>, [Function; 2]) {
    let mut make = every_kind();
    let f = make.btf().by_name("f").next().unwrap().id;
    let g = make.function("g", 0, &[]);
    let functions = [Function { start: 0x1000, size: 16, id: f }, Function { start: 0x1020, size: 0, id: g }];
    let btf = make.bytes();
    let mut blob = vec![0xee; blob_len(&functions, &btf).unwrap() + 5];
    let len = write(&functions, &btf, 0x800, 0, &mut blob).unwrap();
    assert_eq!((len + 5, &blob[len..]), (blob.len(), &[0xee; 5][..]));
    blob.truncate(len);
    (blob, functions)
}

#[test]
fn a_blob_gives_functions_their_types() {
    let (blob, [f, g]) = blob();
    let types = Types::parse(&blob).unwrap();
    assert_eq!((types.len(), types.is_empty()), (2, false));
    for slide in [0, 0x10_0000, 0u64.wrapping_sub(0x400)] {
        let types = types.with_slide(slide);
        for (addr, expected) in [
            (0, None),
            (0x0fff, None),
            (0x1000, Some(f.id)),
            (0x100f, Some(f.id)),
            (0x1010, None),
            (0x1020, Some(g.id)),
            (0x1021, None),
            (u64::MAX, None),
        ] {
            assert_eq!(types.function_at(u64::wrapping_add(addr, slide)), expected, "{addr:#x} + {slide:#x}");
        }
    }
    assert!(types.btf().by_name("g").eq_by_id([g.id]));
}

trait EqById {
    fn eq_by_id<const N: usize>(self, ids: [u32; N]) -> bool;
}

impl<'a, I: Iterator<Item = Type<'a>>> EqById for I {
    fn eq_by_id<const N: usize>(self, ids: [u32; N]) -> bool {
        self.map(|ty| ty.id).eq(ids)
    }
}

#[test]
fn wrong_blobs_are_refused() {
    let (blob, [f, g]) = blob();
    for len in 0..blob.len() {
        let error = Types::parse(&blob[..len]).expect_err("a cut blob");
        assert!(
            matches!(error, ImageError::TooShort { .. } | ImageError::Truncated { .. }),
            "{len}: {error:?}"
        );
    }
    let with = |at: usize, value: &[u8]| {
        let mut blob = blob.clone();
        blob[at..at + value.len()].copy_from_slice(value);
        Types::parse(&blob).expect_err("a bad blob")
    };
    assert_eq!(with(0, b"FGSYMTAB"), ImageError::BadMagic(*b"FGSYMTAB"));
    assert_eq!(with(0, b"FGTYPRSV"), ImageError::Empty { capacity: 0 });
    assert_eq!(with(layout::AT_VERSION, &[2]), ImageError::Version(2));
    assert_eq!(with(layout::AT_FLAGS, &[4]), ImageError::Flags(4));
    assert!(matches!(with(layout::AT_COUNTS, &[1]), ImageError::LengthMismatch { .. }));
    let starts = layout::HEADER_LEN;
    assert_eq!(with(starts + 4, &0x800u32.to_le_bytes()), ImageError::Address { index: 1, start: 0x800 });
    assert_eq!(with(starts + 16, &1u32.to_le_bytes()), ImageError::NotAFunction { index: 0, id: 1 });
    let bad = |table, entry| ImageError::Btf(BtfError::BadIndex { table, entry });
    assert_eq!(with(starts + 24 + 8, &[1]), bad(Table::Offsets, 2));
    // Every word of the index is checked.
    let btf_at = blob.len() - every_kind().bytes().len();
    let index_end =
        (starts + 24..blob.len()).find(|at| blob[*at..].starts_with(&[0x9f, 0xeb, 1, 0])).unwrap();
    assert!(index_end < btf_at);
    for at in (starts + 24..index_end).step_by(4) {
        assert!(matches!(with(at, &[0xee]), ImageError::Btf(BtfError::BadIndex { .. })), "{at}");
    }

    let btf = every_kind().bytes();
    let mut out = vec![0; 4096];
    let mut try_write = |functions: &[Function], base| write(functions, &btf, base, 0, &mut out);
    assert_eq!(try_write(&[f], 0x1001), Err(ImageError::FarFromBase { index: 0, start: 0x1000 }));
    assert_eq!(try_write(&[f, f], 0), Err(ImageError::Address { index: 1, start: 0x1000 }));
    let not = Function { id: 1, ..g };
    assert_eq!(try_write(&[not], 0), Err(ImageError::NotAFunction { index: 0, id: 1 }));
    let need = blob_len(&[f], &btf).unwrap();
    let error = write(&[f], &btf, 0, 0, &mut vec![0; need - 1]);
    assert_eq!(error, Err(ImageError::NoRoom { need, have: need - 1 }));
}

#[test]
fn changed_blobs_never_do_harm() {
    let (good, _) = blob();
    storm(2000, 10, |random: &mut Random| {
        let mut blob = good.clone();
        for _ in 0..random.between(1, 4) {
            let at = random.below(blob.len());
            blob[at] ^= 1 << random.below(8);
        }
        if let Ok(types) = Types::parse(&blob) {
            look_at_everything(&types.btf());
            let _ = types.function_at(random.word());
        }
    });
}

#[test]
fn a_reserved_space_is_empty() {
    static SPACE: super::image::TypeSpace<64> = super::image::TypeSpace::reserved();
    assert_eq!(SPACE.types().unwrap_err(), ImageError::Empty { capacity: 64 });
}

#[test]
fn bt_07_an_unknown_kind_is_named_with_its_place() {
    let mut make = every_kind();
    let offset = make.types.len() as u32;
    let id = make.raw("new", 20 << 24 | 3, 0, &[1, 2, 3]);
    assert_eq!(check(&make.bytes()), Err(BtfError::UnknownKind { id, offset, kind: 20 }));
    for kind in [0, 20, 31, 32, 0x7f] {
        let mut make = Make::new();
        make.raw("", kind << 24, 0, &[]);
        assert_eq!(check(&make.bytes()), Err(BtfError::UnknownKind { id: 1, offset: 0, kind }));
    }
}

#[test]
fn bt_10_functions_of_one_name_must_agree() {
    let mut make = Make::new();
    let int = make.int("int", 4, 1);
    let long = make.int("long", 8, 1);
    let known = make.fields("regs", 8, &[("a", long, 0)]);
    let hidden = make.fwd("regs", false);
    let (to_known, to_hidden) = (make.ptr(known), make.ptr(hidden));
    let pid = make.typedef("pid", int);
    // A pointer is a pointer, whatever is known of what it leads to.
    let first = make.function("sys", long, &[("regs", to_known)]);
    make.function("sys", long, &[("regs", to_hidden)]);
    make.function("named", int, &[("a", int)]);
    make.function("named", int, &[("b", int)]);
    make.function("wide", int, &[]);
    make.function("wide", long, &[]);
    make.function("more", pid, &[]);
    make.function("more", int, &[("a", int)]);
    make.function("same", int, &[("a", pid)]);
    make.function("same", pid, &[("a", int)]);
    make.typedef("alone", int);
    let btf = make.btf();
    assert!(matches!(btf.function("sys"), FunctionByName::One(Type { id, .. }) if id == first));
    assert!(matches!(btf.function("same"), FunctionByName::One(_)));
    for name in ["named", "wide", "more"] {
        assert!(matches!(btf.function(name), FunctionByName::Ambiguous), "{name}");
    }
    assert!(matches!(btf.function("alone"), FunctionByName::None));
    assert!(matches!(btf.function("nothing"), FunctionByName::None));
}

#[test]
fn bt_12_split_types_need_their_base() {
    let base = every_kind();
    let mut split = Make::split(&base);
    let own = split.typedef("own", 1);
    split.function("f", own, &[]);
    split.tag("late", 5, 0);
    split.tag("ours", own, -1);
    let on = split.btf_on(base.btf());
    assert_eq!((on.first(), on.end()), (base.next, split.next));
    assert_eq!(on.resolve(own).unwrap().name, "int");
    assert_eq!(on.by_name("f").count(), 2);
    assert_eq!(on.by_name("int").count(), 1);
    assert_eq!(on.tags(5).collect::<Vec<_>>(), [(None, "whole"), (Some(0), "late")]);
    assert_eq!(on.tags(own).collect::<Vec<_>>(), [(None, "ours")]);
    assert_eq!(on.iter().count(), split.next as usize - 1);

    assert!(matches!(check(&split.bytes()), Err(BtfError::NameRange { .. } | BtfError::Strings { .. })));
    let bytes = crate::testing::keep_all(split.bytes());
    let mut longer = every_kind();
    longer.int("another", 4, 0);
    let error = make::open_split(bytes, longer.btf()).unwrap_err();
    assert!(matches!(error, BtfError::NameSplit { .. }), "{error}");
    assert_eq!(make::open_split(bytes, on).unwrap_err(), BtfError::BaseIsSplit);
}

#[test]
fn bt_14_offsets_and_widths_are_where_the_format_has_them() {
    let mut make = Make::new();
    make.raw("odd", kinds::INT << 24, 4, &[1 << 24 | 5 << 16 | 7]);
    let large = 0x0123_4567;
    make.structure("plain", 4, &[("m", 1, large, None)]);
    make.structure("sized", 4, &[("m", 1, 0x23_4567, Some(9))]);
    make.structure("mixed", 4, &[("m", 1, 3, Some(9)), ("n", 1, 64, None)]);
    let btf = make.btf();
    let odd = Int { size: 4, bits: 7, offset: 5, encoding: Encoding::SIGNED };
    assert!(matches!(btf.get(1).unwrap().kind, Kind::Int(int) if int == odd));
    for (id, expected) in [
        (2, &[(large, None)][..]),
        (3, &[(0x23_4567, Some(9))]),
        // Without a width in a structure that has such: a plain member.
        (4, &[(3, Some(9)), (64, None)]),
    ] {
        let Kind::Struct { members, .. } = btf.get(id).unwrap().kind else { panic!("{id}") };
        assert_eq!(members.iter().map(|m| (m.bit_offset, m.bits)).collect::<Vec<_>>(), expected);
    }
}
