//! A whole Linux: what is made of its debug information, against the BTF that its makers put into it.

use std::collections::HashMap;
use std::fs;

use fgraph::btf::{Btf, Kind, Sections};
use fgraph_cli::image::Image;

use crate::make::Made;

/// A prototype in words: what is returned, and each parameter.
type Prototype = (String, Vec<String>);

/// How a type would be written in C, without qualifiers and tags, which the two makers keep in different places.
fn spelled(btf: &Btf<'_>, id: u32, depth: u32) -> String {
    let Some(of) = btf.get(id).filter(|_| depth < 8) else { return "...".into() };
    let behind = |id| spelled(btf, id, depth + 1);
    match of.kind {
        Kind::Void => "void".into(),
        Kind::Ptr(to) => format!("{} *", behind(to)),
        Kind::Const(of) | Kind::Volatile(of) | Kind::Restrict(of) | Kind::TypeTag(of) => behind(of),
        Kind::Array { element, len, .. } => format!("{} [{len}]", behind(element)),
        Kind::FuncProto { .. } => {
            let (ret, params) = prototype(btf, id, depth + 1);
            format!("{ret} ({})", params.join(", "))
        }
        _ => of.name.into(),
    }
}

fn prototype(btf: &Btf<'_>, id: u32, depth: u32) -> Prototype {
    let Some(Kind::FuncProto { ret, params }) = btf.get(id).map(|of| of.kind) else {
        return Prototype::default();
    };
    let params = params.iter().map(|param| format!("{} {}", spelled(btf, param.ty, depth), param.name));
    (spelled(btf, ret, depth), params.collect())
}

/// The prototypes of the names of functions, of static ones perhaps several.
fn prototypes<'b>(btf: &Btf<'b>) -> HashMap<&'b str, Vec<Prototype>> {
    let mut all: HashMap<_, Vec<_>> = HashMap::new();
    for of in btf.iter() {
        if let Kind::Func { proto, .. } = of.kind {
            all.entry(of.name).or_default().push(prototype(btf, proto, 0));
        }
    }
    all
}

/// Ours go by address, theirs by name: they differ where several static functions have one name, of which theirs keeps one, where one
/// address has several names, and where a name was declared otherwise before it was defined. Theirs has functions, too, whose code the
/// compiler made a jump to another one's. `scripts/embed-linux` says how to have such a file.
#[test]
fn the_prototypes_of_a_whole_linux_are_those_in_its_btf() {
    let Some(path) = std::env::var_os("FGRAPH_VMLINUX") else {
        println!("skipped: FGRAPH_VMLINUX names no Linux with debug information");
        return;
    };
    let file = fs::read(&path).unwrap();
    let image = Image::parse(&file).unwrap();
    let theirs =
        image.sections_named(".BTF").next().and_then(|(_, section)| section.data).expect("it has BTF");
    let sections = || Sections::parse(theirs).unwrap();
    let mut words = vec![[0; 4]; sections().count().unwrap().words()];
    let theirs = prototypes(&Btf::index(sections(), &mut words).unwrap());

    let made = Made::of(&file);
    made.with(|btf| {
        let ours = prototypes(&btf);
        let both = ours.iter().filter_map(|(name, ours)| Some((name, ours, theirs.get(name)?)));
        let (same, others): (Vec<_>, Vec<_>) =
            both.partition(|(_, ours, theirs)| ours.iter().any(|one| theirs.contains(one)));
        println!(
            "{} names of functions here, {} there, {} in both: {} of them with the same prototype, {} with another",
            ours.len(),
            theirs.len(),
            same.len() + others.len(),
            same.len(),
            others.len()
        );
        for (name, ours, theirs) in &others {
            println!("{name}\n    ours   {ours:?}\n    theirs {theirs:?}");
        }
        assert!(same.len() > 1000, "it is a whole kernel");
        assert!(others.len() * 50 < same.len(), "two of a hundred may differ");
        assert!(same.len() * 100 > theirs.len() * 95, "five of a hundred may be missing");
    });
}
