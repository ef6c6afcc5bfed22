//! The tracefs: the files that people who trace with Linux know, as functions that read and write.

pub mod functions;
mod options;
pub mod tracing;

pub use options::TraceOption;
