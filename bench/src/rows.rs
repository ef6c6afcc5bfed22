//! The costs as rows of the table that `make bench` ends with: group, figure, column and value, with tabs between.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use crate::sites::{Costs, OPERATIONS};

/// Writes the file, and its folder if it is not there.
pub(crate) fn write(file: &Path, all: &[Costs]) -> io::Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(file, text(all))
}

fn text(all: &[Costs]) -> String {
    let mut rows = String::new();
    let mut row = |group: &str, figure: &str, costs: &Costs, value: String| {
        writeln!(rows, "{group}\t{figure}\t{} sites\t{value}", costs.sites).expect("a string takes all");
    };
    for costs in all {
        row("bytes by sites", "of the engine itself", costs, costs.engine_bytes.to_string());
        let of_a_site = format!("{:.2}", costs.state_bytes as f64 / costs.sites as f64);
        row("bytes by sites", "of a site beside the compiler's", costs, of_a_site);
        for (operation, time) in OPERATIONS.iter().zip(&costs.times) {
            row("milliseconds by sites", operation, costs, format!("{:.2}", time.as_secs_f64() * 1e3));
            // What goes through all of them.
            if operation.ends_with("everything") {
                let a_second = costs.sites as f64 / time.as_secs_f64();
                row("sites a second", operation, costs, format!("{a_second:.0}"));
            }
        }
    }
    rows
}
