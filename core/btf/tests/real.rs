//! The reader on BTF of real kernels: the samples, and that of the machine the tests run on. Compared with a plain walker that shares
//! no code with the reader, and with `bpftool` where it is installed.
//!
//! `FGRAPH_SAMPLES` says where the samples are; what is not there is skipped with its reason.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::string::{String, ToString};
use std::vec::Vec;
use std::{fs, println};

use super::make::{open, open_split};
use super::*;
use crate::testing::keep_all;

/// Bytes that live for ever, or why there are none.
pub(crate) fn sample(name: &str) -> Option<&'static [u8]> {
    let folder = std::env::var("FGRAPH_SAMPLES").map(PathBuf::from);
    let folder = folder.unwrap_or_else(|_| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/samples"));
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/samples");
    let folder = if folder.exists() { folder } else { beside };
    let path = folder.join("btf").join(name);
    if !path.exists() {
        println!("skipped: {} is not there (FGRAPH_SAMPLES is where samples are)", path.display());
        return None;
    }
    if path.extension().is_none_or(|extension| extension != "xz") {
        return Some(keep_all(fs::read(&path).unwrap()));
    }
    match Command::new("xz").args(["-dkc"]).arg(&path).output() {
        Ok(output) if output.status.success() => Some(keep_all(output.stdout)),
        Ok(output) => panic!("xz: {}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => {
            println!("skipped: xz cannot be run: {error}");
            None
        }
    }
}

const X86_64: &str = "linux-6.12-x86_64.btf.xz";
const ARM64: &str = "linux-6.12-arm64.btf.xz";
const OVERLAY: &str = "linux-6.12-x86_64-overlay.split.btf";

/// BTF of this machine's kernel.
fn running() -> Option<&'static [u8]> {
    let bytes = fs::read("/sys/kernel/btf/vmlinux");
    bytes
        .map(|bytes| &*keep_all(bytes))
        .inspect_err(|error| println!("skipped: no BTF of this kernel: {error}"))
        .ok()
}

fn files() -> Vec<(&'static str, &'static [u8])> {
    let named = [X86_64, ARM64].into_iter().filter_map(|name| Some((name, sample(name)?)));
    let mut files: Vec<_> = named.chain(running().map(|bytes| ("/sys/kernel/btf/vmlinux", bytes))).collect();
    if cfg!(miri) {
        println!("skipped: millions of bytes in Miri");
        files.clear();
    }
    files
}

/// Name, kind, vlen, size or type, and the words behind, of every type: as the format's description says, and no more.
fn plain_walk(bytes: &[u8]) -> Vec<(String, u32, u32, u32, Vec<u32>)> {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let body = word(4) as usize;
    let (mut at, end, strings) =
        (body + word(8) as usize, body + (word(8) + word(12)) as usize, body + word(16) as usize);
    let mut types = vec![(String::new(), 0, 0, 0, Vec::new())];
    while at < end {
        let name = strings + word(at) as usize;
        let len = bytes[name..].iter().position(|byte| *byte == 0).unwrap();
        let name = String::from_utf8(bytes[name..name + len].to_vec()).unwrap();
        let (info, size) = (word(at + 4), word(at + 8));
        let (kind, vlen) = (info >> 24 & 31, info & 0xffff);
        let words = match kind {
            1 | 14 | 17 => 1,
            3 => 3,
            4 | 5 | 15 | 19 => 3 * vlen,
            6 | 13 => 2 * vlen,
            _ => 0,
        } as usize;
        let tail = (0..words).map(|n| word(at + 12 + 4 * n)).collect();
        types.push((name, kind, vlen, size, tail));
        at += 12 + 4 * words;
    }
    types
}

fn number_of(kind: &Kind<'_>) -> u32 {
    match kind {
        Kind::Void => 0,
        Kind::Int(_) => 1,
        Kind::Ptr(_) => 2,
        Kind::Array { .. } => 3,
        Kind::Struct { .. } => 4,
        Kind::Union { .. } => 5,
        Kind::Enum { .. } => 6,
        Kind::Fwd { .. } => 7,
        Kind::Typedef(_) => 8,
        Kind::Volatile(_) => 9,
        Kind::Const(_) => 10,
        Kind::Restrict(_) => 11,
        Kind::Func { .. } => 12,
        Kind::FuncProto { .. } => 13,
        Kind::Var { .. } => 14,
        Kind::DataSec { .. } => 15,
        Kind::Float { .. } => 16,
        Kind::DeclTag { .. } => 17,
        Kind::TypeTag(_) => 18,
    }
}

#[test]
fn real_kernels_are_read_like_by_a_plain_walker() {
    for (file, bytes) in files() {
        let btf = open(bytes).unwrap();
        let plain = plain_walk(bytes);
        assert_eq!(btf.end() as usize, plain.len(), "{file}");
        let (mut functions, mut members) = (0, 0);
        for (id, (name, kind, vlen, size, tail)) in plain.iter().enumerate().skip(1) {
            let ty = btf.get(id as u32).unwrap();
            assert_eq!((ty.id as usize, ty.name), (id, name.as_str()), "{file}");
            assert_eq!(number_of(&ty.kind), if *kind == 19 { 6 } else { *kind }, "{file}: {id}");
            match ty.kind {
                Kind::Struct { size: bytes, members: list } | Kind::Union { size: bytes, members: list } => {
                    assert_eq!((bytes, list.len()), (*size, *vlen as usize), "{file}: {id}");
                    for (n, member) in list.iter().enumerate() {
                        members += 1;
                        let at = member.bit_offset | u32::from(member.bits.unwrap_or(0)) << 24;
                        assert_eq!([member.ty, at], tail[3 * n + 1..3 * n + 3], "{file}: {id}");
                    }
                }
                Kind::FuncProto { ret, params } => {
                    let types: Vec<u32> = params.iter().map(|param| param.ty).collect();
                    assert_eq!(ret, *size, "{file}: {id}");
                    assert!(tail.iter().skip(1).step_by(2).eq(types.iter()), "{file}: {id}");
                }
                Kind::Func { proto, .. } => {
                    functions += 1;
                    assert_eq!(proto, *size, "{file}: {id}");
                }
                _ => {}
            }
        }
        // All of one name, found by the index.
        let mut by_name: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        for (id, (name, kind, ..)) in (0..).zip(&plain).filter(|(_, (name, ..))| !name.is_empty()) {
            if *kind != 17 && *kind != 18 {
                by_name.entry(name).or_default().push(id);
            }
        }
        for (name, ids) in &by_name {
            assert!(btf.by_name(name).map(|ty| ty.id).eq(ids.iter().copied()), "{file}: {name}");
        }
        println!("{file}: {} types, {functions} functions, {members} members", btf.end() - 1);
        look_at_everything(&btf);
    }
}

/// `bpftool btf dump` of a file, or why there is none.
fn bpftool(name: &str, bytes: &[u8]) -> Option<String> {
    let path = std::env::temp_dir().join(std::format!("fgraph-{}-{name}.btf", std::process::id()));
    fs::write(&path, bytes).unwrap();
    let sbin = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin";
    let output = Command::new("bpftool").env("PATH", sbin).args(["btf", "dump", "file"]).arg(&path).output();
    fs::remove_file(&path).unwrap();
    match output {
        Ok(output) if output.status.success() => Some(String::from_utf8(output.stdout).unwrap()),
        Ok(output) => panic!("bpftool: {}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => {
            println!("skipped: bpftool cannot be run: {error}");
            None
        }
    }
}

/// The line that bpftool has for a FUNC or FUNC_PROTO, and those of its parameters.
fn like_bpftool(btf: &Btf<'_>, ty: &Type<'_>) -> Option<String> {
    let name = |name: &str| if name.is_empty() { "(anon)" } else { name }.to_string();
    Some(match ty.kind {
        Kind::Func { proto, linkage } => {
            let linkage = ["static", "global", "extern"][linkage as usize];
            std::format!("[{}] FUNC '{}' type_id={proto} linkage={linkage}", ty.id, ty.name)
        }
        Kind::FuncProto { ret, params } => {
            let mut text =
                std::format!("[{}] FUNC_PROTO '(anon)' ret_type_id={ret} vlen={}", ty.id, params.len());
            for param in params.iter() {
                text += &std::format!("\n\t'{}' type_id={}", name(param.name), param.ty);
            }
            text
        }
        Kind::Struct { size, members } => {
            let mut text =
                std::format!("[{}] STRUCT '{}' size={size} vlen={}", ty.id, name(ty.name), members.len());
            for member in members.iter() {
                let at = member.bit_offset;
                text += &std::format!("\n\t'{}' type_id={} bits_offset={at}", name(member.name), member.ty);
                text += &member.bits.map_or(String::new(), |bits| std::format!(" bitfield_size={bits}"));
            }
            text
        }
        _ if btf.get(ty.id).is_none() => return None,
        _ => return None,
    })
}

#[test]
fn real_kernels_are_read_like_by_bpftool() {
    for (n, (file, bytes)) in files().into_iter().enumerate() {
        let Some(dump) = bpftool(&n.to_string(), bytes) else { return };
        let btf = open(bytes).unwrap();
        let heads: Vec<&str> = dump.lines().filter(|line| line.starts_with('[')).collect();
        assert_eq!(heads.len(), btf.end() as usize - 1, "{file}");
        let of =
            |kind: &str| dump.lines().filter(|line| line.starts_with('[') && line.contains(kind)).count();
        let ours = |wanted: fn(&Kind<'_>) -> bool| btf.iter().filter(|ty| wanted(&ty.kind)).count();
        assert_eq!(ours(|kind| matches!(kind, Kind::Func { .. })), of("] FUNC '"), "{file}");
        let mut wanted = String::new();
        let mut taking = false;
        for line in dump.lines() {
            if line.starts_with('[') {
                taking = ["] FUNC '", "] FUNC_PROTO '", "] STRUCT '"].iter().any(|kind| line.contains(kind));
            }
            if taking {
                wanted += line;
                wanted.push('\n');
            }
        }
        let got: String = btf
            .iter()
            .filter_map(|ty| like_bpftool(&btf, &ty))
            .fold(String::new(), |all, one| all + &one + "\n");
        let differs = wanted.lines().zip(got.lines()).find(|(want, got)| want != got);
        assert_eq!((differs, wanted.len()), (None, got.len()), "{file}");
        println!("{file}: {} lines like bpftool", got.lines().count());
    }
}

#[test]
fn bt_06_plain_char_has_the_sign_that_the_file_says() {
    for (file, bytes) in files() {
        let btf = open(bytes).unwrap();
        let char = btf.by_name("char").find_map(|ty| match ty.kind {
            Kind::Int(int) => Some(int),
            _ => None,
        });
        let plain = plain_walk(bytes);
        let (.., tail) = plain.iter().find(|(name, kind, ..)| name == "char" && *kind == 1).unwrap();
        assert_eq!(char.unwrap().encoding.contains(Encoding::SIGNED), tail[0] >> 24 & 1 == 1, "{file}");
    }
}

#[test]
fn bt_11_functions_of_one_name_and_different_types_are_ambiguous() {
    let mut ambiguous = 0;
    for (file, bytes) in files() {
        let btf = open(bytes).unwrap();
        let functions = btf.iter().filter(|ty| matches!(ty.kind, Kind::Func { .. }));
        let (mut all, mut here) = (0, 0);
        for function in functions {
            all += 1;
            match btf.function(function.name) {
                FunctionByName::None => panic!("{file}: {} is not found", function.name),
                FunctionByName::Ambiguous => here += 1,
                FunctionByName::One(_) => {}
            }
        }
        println!("{file}: {here} of {all} functions have an ambiguous name");
        ambiguous += here;
        assert!(here < all / 10, "{file}");
    }
    println!("{ambiguous} ambiguous in all");
}

#[test]
fn bt_12_a_module_is_read_on_its_base_only() {
    let (Some(base), Some(other), Some(module)) = (sample(X86_64), sample(ARM64), sample(OVERLAY)) else {
        return;
    };
    if cfg!(miri) {
        println!("skipped: millions of bytes in Miri");
        return;
    }
    let base = open(base).unwrap();
    let split = open_split(module, base).unwrap();
    assert!(split.first() == base.end() && split.end() > split.first());
    let own: Vec<_> = (split.first()..split.end()).filter_map(|id| split.get(id)).collect();
    assert!(own.iter().any(|ty| ty.name.starts_with("ovl_") && matches!(ty.kind, Kind::Func { .. })));
    // A name in the base's strings is found as well.
    assert!(matches!(split.function("vfs_read"), FunctionByName::One(_)));
    look_at_everything(&split);

    let alone = open(module).unwrap_err();
    let wrong = open_split(module, open(other).unwrap()).unwrap_err();
    println!("alone: {alone}; on another base: {wrong}");
    assert!(matches!(
        alone,
        BtfError::NameRange { .. } | BtfError::Strings { .. } | BtfError::NoSuchType { .. }
    ));
    assert!(matches!(
        wrong,
        BtfError::NameSplit { .. } | BtfError::NameRange { .. } | BtfError::NoSuchType { .. }
    ));
    if let Some(running) = running() {
        open_split(module, open(running).unwrap()).unwrap_err();
    }
}

#[test]
fn bt_15_bit_fields_of_the_ip_header_are_four_bits_each() {
    for (file, bytes) in files() {
        let btf = open(bytes).unwrap();
        let fields = |name: &str| {
            btf.by_name(name).find_map(|ty| match ty.kind {
                Kind::Struct { members, .. } => Some(members),
                _ => None,
            })
        };
        let Some(members) = fields("iphdr") else {
            println!("skipped: {file} has no struct iphdr");
            continue;
        };
        let field = |name| members.iter().find(|m| m.name == name).map(|m| (m.bit_offset, m.bits));
        assert_eq!((field("ihl"), field("version")), (Some((0, Some(4))), Some((4, Some(4)))), "{file}");
        // BT-17: other members of a structure with bit fields are found.
        assert_eq!((field("tos"), field("id")), (Some((8, None)), Some((32, None))), "{file}");
    }
}
