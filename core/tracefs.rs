//! The tracefs: the files that people who trace with Linux know, as functions that read and write.

mod error;
pub mod functions;
mod options;
pub mod tracing;

pub use error::{Cause, FsError, Refused};
pub use options::TraceOption;
