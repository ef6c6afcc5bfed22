//! How many events of a large trace are reported in a second, by format. Times are of this machine and decide nothing.

use std::io::Cursor;
use std::time::Instant;

use clap::{Parser, ValueEnum};
use fgraph_cli::report::args::{Format, ReportArgs};
use fgraph_cli::report::report;

#[path = "../tests/common/trace.rs"]
mod trace;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: ReportArgs,
}

fn main() {
    let mut bytes = Cursor::new(trace::million(250_000));
    println!("{:<12}{:>12}{:>16}", "format", "seconds", "events/second");
    for format in Format::value_variants() {
        let mut args = Line::parse_from(["report", "-"]).args;
        args.format = *format;
        let start = Instant::now();
        let outcome = report(&mut bytes, &args, None, &mut std::io::sink(), false).expect("a trace");
        let took = start.elapsed().as_secs_f64();
        bytes.set_position(0);
        assert_eq!(outcome.problems.count, 0);
        let name = format.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        println!("{name:<12}{took:>12.3}{:>16.0}", outcome.events as f64 / took);
    }
}
