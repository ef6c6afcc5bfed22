//! The costs as JSON: `{"operations": [NAME...], "sizes": [{"sites": N, ..., "nanoseconds": [N...]}...]}`.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use crate::sites::{Costs, OPERATIONS};

/// Writes the file, and its folder if it is not there.
pub(crate) fn write(file: &Path, costs: &[Costs]) -> io::Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(file, text(costs))
}

fn text(costs: &[Costs]) -> String {
    let mut sizes = String::new();
    for costs in costs {
        let times: Vec<String> = costs.times.iter().map(|time| time.as_nanos().to_string()).collect();
        let comma = if sizes.is_empty() { "" } else { "," };
        write!(
            sizes,
            "{comma}\n    {{\"sites\": {}, \"table_bytes\": {}, \"state_bytes\": {}, \"engine_bytes\": {}, \
             \"globbed\": {}, \"nanoseconds\": [{}]}}",
            costs.sites,
            costs.table_bytes,
            costs.state_bytes,
            costs.engine_bytes,
            costs.globbed,
            times.join(", ")
        )
        .expect("a string takes all");
    }
    // None of the names has a character that JSON escapes.
    format!("{{\n  \"operations\": {OPERATIONS:?},\n  \"sizes\": [{sizes}\n  ]\n}}\n")
}
