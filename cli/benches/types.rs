//! How long it takes to make types of an image, and how much memory: of the images that are named, or of this program. Times are of this
//! machine and decide nothing.

use std::path::PathBuf;
use std::time::Instant;
use std::{env, fs};

use fgraph_cli::embed::types;
use fgraph_cli::image::Image;

fn main() {
    let named: Vec<_> = env::args_os().skip(1).map(PathBuf::from).filter(|path| path.is_file()).collect();
    let paths = if named.is_empty() { vec![env::current_exe().expect("a path")] } else { named };
    println!(
        "{:>9}{:>12}{:>12}{:>12}{:>10}{:>12}",
        "seconds", "debug MB", "functions", "types KB", "left out", "memory MB"
    );
    for path in paths {
        let bytes = fs::read(&path).expect("a file");
        let image = Image::parse(&bytes).expect("an image");
        let debug = image.sections.iter().filter(|section| section.name.starts_with(".debug_"));
        let debug: u64 = debug.map(|section| section.size).sum();
        let start = Instant::now();
        let made = match types::make(&image, Some(&path)).expect("an image") {
            Ok(made) => made,
            Err(why) => {
                println!("skipped: {}: {why}; name an image that has", path.display());
                continue;
            }
        };
        let took = start.elapsed().as_secs_f64();
        let blob = made.blob(0).map_or(0, |blob| blob.len());
        println!(
            "{took:>9.2}{:>12.1}{:>12}{:>12}{:>10}{:>12}",
            debug as f64 / 1e6,
            made.functions.len(),
            blob / 1000,
            made.report.left_out.len(),
            peak_memory().map_or_else(|| "?".into(), |kilobytes| (kilobytes / 1000).to_string()),
        );
    }
}

/// The most memory that this program has had, the image included; in kB.
fn peak_memory() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}
