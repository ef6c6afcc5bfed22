//! BTF as this tool makes it: types that are kept once each, and the bytes that say them.
//!
//! What C cannot say is said in DECL_TAGs whose text begins with `fgraph:`; the form is documented where it is read,
//! in `fgraph::btf`. Users: [`dwarf`](crate::dwarf), which fills a [`Types`](types::Types).

pub mod types;
pub mod write;
