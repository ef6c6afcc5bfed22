//! Types as text, by the reader of the kernel.

use fgraph::btf::{Btf, Encoding, Kind};

/// A type as others refer to it.
pub(crate) fn name(btf: &Btf<'_>, id: u32) -> String {
    let of = btf.get(id).unwrap();
    let behind = |id| name(btf, id);
    match of.kind {
        Kind::Void => "void".into(),
        Kind::Ptr(to) => format!("{}*", behind(to)),
        Kind::Const(of) if is_pointer(btf, of) => format!("{} const", behind(of)),
        Kind::Const(of) => format!("const {}", behind(of)),
        Kind::Volatile(of) => format!("volatile {}", behind(of)),
        Kind::Restrict(of) => format!("{} restrict", behind(of)),
        Kind::Array { element, len, .. } => format!("{}[{len}]", behind(element)),
        Kind::Struct { .. } if of.name.is_empty() => body(btf, id),
        Kind::Union { .. } if of.name.is_empty() => body(btf, id),
        Kind::Struct { .. } => format!("struct {}", of.name),
        Kind::Union { .. } => format!("union {}", of.name),
        Kind::Enum { .. } => format!("enum {}", of.name),
        Kind::Fwd { union } => format!("{} {};", if union { "union" } else { "struct" }, of.name),
        Kind::FuncProto { .. } => prototype(btf, id, ""),
        _ => of.name.into(),
    }
}

fn prototype(btf: &Btf<'_>, id: u32, called: &str) -> String {
    let Kind::FuncProto { ret, params } = btf.get(id).unwrap().kind else { panic!("{id} is no prototype") };
    let params = params.iter().map(|param| match (param.ty, param.name) {
        (0, "") => "...".into(),
        (ty, "") => name(btf, ty),
        (ty, called) => format!("{} {called}", name(btf, ty)),
    });
    format!("{} {called}({})", name(btf, ret), params.collect::<Vec<_>>().join(", "))
}

fn is_pointer(btf: &Btf<'_>, id: u32) -> bool {
    matches!(btf.get(id).unwrap().kind, Kind::Ptr(_) | Kind::Restrict(_))
}

/// A FUNC with its types.
pub(crate) fn function(btf: &Btf<'_>, id: u32) -> String {
    let of = btf.get(id).unwrap();
    let Kind::Func { proto, .. } = of.kind else { panic!("{id} is no function") };
    prototype(btf, proto, of.name)
}

/// What is in a type: members with their first bit and the bits of bitfields, constants with their values.
pub(crate) fn body(btf: &Btf<'_>, id: u32) -> String {
    let of = btf.get(id).unwrap();
    match of.kind {
        Kind::Struct { size, members } | Kind::Union { size, members } => {
            let what = if matches!(of.kind, Kind::Union { .. }) { "union" } else { "struct" };
            let members = members.iter().map(|member| {
                let bits = member.bits.map(|bits| format!(":{bits}")).unwrap_or_default();
                format!("{}{bits} {} {};", member.bit_offset, name(btf, member.ty), member.name)
            });
            format!("{what} {} {{ {} }} {size}", of.name, members.collect::<Vec<_>>().join(" "))
        }
        Kind::Enum { size, constants } => {
            let values = constants.iter().map(|constant| match constants.signed() {
                true => format!("{}={}", constant.name, constant.value.cast_signed()),
                false => format!("{}={}", constant.name, constant.value),
            });
            format!("enum {} {{ {} }} {size}", of.name, values.collect::<Vec<_>>().join(" "))
        }
        Kind::Int(int) => {
            let sign = if int.encoding.contains(Encoding::SIGNED) { "i" } else { "u" };
            format!("{} {sign}{} {:?}", of.name, int.bits, int.encoding.difference(Encoding::SIGNED).bits())
        }
        _ => name(btf, id),
    }
}

/// The only struct, union, enum or integer of that name.
pub(crate) fn definition(btf: &Btf<'_>, called: &str) -> u32 {
    let found = btf.by_name(called).filter(|of| {
        matches!(of.kind, Kind::Struct { .. } | Kind::Union { .. } | Kind::Enum { .. } | Kind::Int(_))
    });
    let found: Vec<_> = found.map(|of| of.id).collect();
    let [one] = found.as_slice() else { panic!("{called}: {found:?}") };
    *one
}

/// What is remarked on a type: `text` for the whole, `1:text` for a member or parameter.
pub(crate) fn tags(btf: &Btf<'_>, id: u32) -> Vec<String> {
    let tags = btf.tags(id).map(|(component, text)| match component {
        None => text.to_owned(),
        Some(n) => format!("{n}:{text}"),
    });
    tags.collect()
}
