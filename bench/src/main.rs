//! What fgraph costs by the number of sites: memory, and the time of what goes through all of them.
//!
//! ```text
//! fgraph-bench FILE [MOST]
//! ```
//!
//! prints a table for an eighth, a quarter, a half and all of MOST sites (a million if not given), and writes it to FILE as
//! rows. Each size is twice the one before, so what is linear has ratios of about two. Times are of this machine and decide
//! nothing; what can be counted (writes, reads, core syncs, allocations) is checked.

mod count;
mod image;
mod rows;
mod sites;
mod text;

use std::path::Path;
use std::process::ExitCode;

use sites::{Costs, OPERATIONS};

#[global_allocator]
static ALLOCATOR: count::Counting = count::Counting;

/// Sites if no number is given.
const MOST: usize = 1_000_000;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let (Some(file), most, None) = (args.next(), args.next(), args.next()) else {
        eprintln!("usage: fgraph-bench FILE [MOST]");
        return ExitCode::from(64);
    };
    let Ok(most) = most.map_or(Ok(MOST), |most| most.parse::<usize>()) else {
        eprintln!("fgraph-bench: MOST is a number of sites");
        return ExitCode::from(64);
    };

    let sizes = [most / 8, most / 4, most / 2, most];
    let costs: Vec<Costs> = sizes.into_iter().map(sites::measure).collect();
    print_table(&costs);
    match rows::write(Path::new(&file), &costs) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fgraph-bench: {file}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn print_table(all: &[Costs]) {
    let row = |name: &str, cell: &dyn Fn(usize, &Costs) -> String| {
        print!("{name:<34}");
        all.iter().enumerate().for_each(|(at, costs)| print!("{:>18}", cell(at, costs)));
        println!();
    };
    row("sites", &|_, costs| costs.sites.to_string());
    row("bytes a site, compiler's table", &|_, costs| per_site(costs.table_bytes, costs));
    row("bytes a site, besides", &|_, costs| per_site(costs.state_bytes, costs));
    row("bytes of the engine itself", &|_, costs| costs.engine_bytes.to_string());
    row("functions that the glob takes", &|_, costs| costs.globbed.to_string());
    println!("\nmilliseconds, the best of {}, and how many times those of the size before", sites::ROUNDS);
    for (index, operation) in OPERATIONS.iter().enumerate() {
        row(operation, &|at, costs| {
            let millis = |costs: &Costs| costs.times[index].as_secs_f64() * 1e3;
            let now = millis(costs);
            match at.checked_sub(1) {
                Some(before) => format!("{now:.2} ({:.2}x)", now / millis(&all[before])),
                None => format!("{now:.2}"),
            }
        });
    }
}

fn per_site(bytes: usize, costs: &Costs) -> String {
    format!("{:.2}", bytes as f64 / costs.sites as f64)
}
