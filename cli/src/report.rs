//! `fgraph report`: what a trace tells, in a form that people or other programs look at.
//!
//! A source gives events in the order of time ([`event`]); each goes through who-is-inside-of-whom, the selection, and into a format.
//! Memory is bounded by what is open at one time and by how many different things there are, not by how long the trace is: of a
//! trace file a few words are kept for each page.
//!
//! Invariant: whatever the file holds, what could be read is reported, and what could not is told.

pub mod args;
pub mod event;
mod format;
mod linux;
mod merge;
pub mod names;
mod order;
pub mod problem;
mod scan;
pub mod select;
mod track;
pub mod types;
mod values;

use std::fs::File;
use std::io::{self, BufReader, BufWriter, IsTerminal, Read, Seek, SeekFrom, Write};
use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};

use crate::Error;
use crate::image::Image;
use crate::sites::Listing;
use args::{Format as Wanted, ReportArgs};
use event::Event;
use format::Format;
use names::Names;
use problem::Problems;
use select::Selector;
use track::Tracker;
use types::Typed;
use values::Values;

/// What a report came to.
#[derive(Debug)]
pub struct Outcome {
    /// What could not be read.
    pub problems: Problems,
    /// Events that the trace had.
    pub events: u64,
}

/// Why there is no report.
#[derive(Debug)]
pub enum Failure {
    /// The trace cannot be read.
    Read(io::Error),
    /// The report cannot be written.
    Write(io::Error),
    /// The file is no trace; how it begins, and what it seems to be.
    Foreign(Vec<u8>, Option<&'static str>),
}

/// Where events come from.
enum Source<'r, R> {
    File(Box<merge::Merged<'r, R>>),
    Text(linux::Lines<BufReader<&'r mut R>>),
}

impl<R: Read + Seek> Source<'_, R> {
    fn next(&mut self, names: &mut Names, problems: &mut Problems) -> io::Result<Option<(Event, u64)>> {
        match self {
            Self::File(merged) => merged.next(names),
            Self::Text(lines) => lines.next(names, problems),
        }
    }
}

/// What a file that is no trace seems to be.
fn guess(start: &[u8]) -> Option<&'static str> {
    let starts: [(&[u8], &str); 5] = [
        (b"\x7fELF", "an ELF file: give the kernel with --kernel, and the trace as FILE"),
        (b"\x17\x08\x44tracing", "a trace.dat of trace-cmd: open it with `trace-cmd report`"),
        (
            b"# tracer: function\n",
            "text of the function tracer: it has no durations; function_graph is needed",
        ),
        (b"# tracer: ", "text of another tracer than function_graph"),
        (b"{", "JSON"),
    ];
    starts.iter().find(|(magic, _)| start.starts_with(magic)).map(|(_, what)| *what)
}

/// A bar on standard error, if that is a terminal.
fn bar(what: &'static str, len: u64, shown: bool) -> ProgressBar {
    if !shown || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(len).with_message(what);
    let style = ProgressStyle::with_template("{msg:9} [{bar:40}] {percent:>3} % ({eta} left)");
    if let Ok(style) = style {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}

/// Reports a trace. `out` is given everything that could be read, whatever the outcome. Progress goes to standard error if `progress`,
/// and if that is a terminal.
pub fn report<R: Read + Seek>(
    reader: &mut R,
    args: &ReportArgs,
    kernel: Option<&Image<'_>>,
    out: &mut dyn Write,
    progress: bool,
) -> Result<Outcome, Failure> {
    let mut names = Names::default();
    let mut problems = Problems::default();
    let mut start = Vec::new();
    reader.by_ref().take(4096).read_to_end(&mut start).map_err(Failure::Read)?;
    let len = reader.seek(SeekFrom::End(0)).map_err(Failure::Read)?;
    let (mut source, cpus, work);
    let blob = kernel.and_then(|kernel| types::blob(kernel, args.kernel.as_deref()));
    let mut typed = None;
    if linux::is_text(&start) {
        work = bar("Reporting", len, progress);
        cpus = 1;
        source = Source::Text(linux::Lines::new(BufReader::new(reader), &mut names).map_err(Failure::Read)?);
    } else {
        let looking = bar("Looking", len, progress);
        let index = scan::scan(reader, &mut names, &mut problems, &|at| looking.set_position(at));
        let index = index.map_err(Failure::Read)?;
        looking.finish_and_clear();
        if !index.is_trace() {
            let seems = guess(&start);
            start.truncate(16);
            return Err(Failure::Foreign(start, seems));
        }
        if let Some(image) = kernel {
            names.add_kernel(image, &sites(image), index.slide);
            typed = blob.as_deref().and_then(|blob| Typed::new(blob, image, index.slide));
        }
        names.index_addresses();
        work = bar("Reporting", index.records, progress);
        cpus = index.cpus;
        source = Source::File(Box::new(merge::Merged::new(reader, index)));
    }

    let mut format = format_for(args, out, cpus, typed.as_ref()).map_err(Failure::Write)?;
    let mut tracker = Tracker::default();
    let mut selector = Selector::new(args.selection());
    let mut events = 0;
    loop {
        // What comes behind an error of reading cannot be had; what came before it is finished.
        let next = source.next(&mut names, &mut problems);
        let (failed, next) = match next {
            Ok(next) => (None, next),
            Err(error) => (Some(error), None),
        };
        let Some((mut event, read)) = next else {
            format.finish(&names).map_err(Failure::Write)?;
            work.finish_and_clear();
            return failed.map_or(Ok(Outcome { problems, events }), |error| Err(Failure::Read(error)));
        };
        events += 1;
        work.inc(read);
        if let (Some(typed), Some(call)) = (&typed, event.call_mut()) {
            let addr = names.get(call.func).map_or(0, |function| function.addr);
            let is_error = typed.is_error(addr, &call.registers(), &call.memory);
            call.failed = is_error.filter(|_| call.retval.is_some());
        }
        tracker.see(&mut event);
        let mut result = Ok(());
        selector.push(event, &names, &mut |event| {
            if result.is_ok() {
                result = format.event(&event, &names);
            }
        });
        result.map_err(Failure::Write)?;
    }
}

/// The addresses of the site table, sorted as the tracer sorts it; none if there is none that can be read.
fn sites(image: &Image<'_>) -> Vec<u64> {
    let Ok(listing) = Listing::new(image) else { return Vec::new() };
    let mut sites: Vec<u64> = listing.sites.iter().map(|site| site.word.value).collect();
    sites.sort_unstable();
    sites
}

fn format_for<'o>(
    args: &ReportArgs,
    out: &'o mut dyn Write,
    cpus: u32,
    typed: Option<&'o Typed<'o>>,
) -> io::Result<Box<dyn Format + 'o>> {
    use format::stacks::{Shape, Stacks};
    let values = Values::new(typed, args.options());
    Ok(match args.format {
        Wanted::Text => Box::new(format::text::Text::new(out, args.options(), cpus, typed)?),
        Wanted::Table => {
            Box::new(format::table::Table::new(out, args.sort, args.limit.unwrap_or(usize::MAX)))
        }
        Wanted::Folded => Box::new(Stacks::new(out, Shape::Folded)),
        Wanted::Svg => Box::new(Stacks::new(out, Shape::Svg)),
        Wanted::Chrome => Box::new(format::chrome::Chrome::new(out, values)?),
        Wanted::Perfetto => Box::new(format::perfetto::Perfetto::new(out, values)?),
        Wanted::TraceDat => Box::new(format::trace_dat::TraceDat::new(out, cpus)),
    })
}

/// Runs the command: what was wrong with the trace has been said on standard error, and is the answer.
pub(crate) fn run(args: &ReportArgs) -> Result<bool, Error> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        |error| Error::Read(path, error)
    };
    let kernel = args.kernel.as_deref().map(crate::read).transpose()?;
    let image = kernel.as_deref().map(Image::parse).transpose()?;
    for pattern in args.function.iter().chain(&args.not).chain(&args.graph).chain(&args.task) {
        fgraph::pattern::Pattern::parse(pattern).map_err(Error::Pattern)?;
    }
    let mut file = File::open(&args.file).map_err(failed(&args.file))?;
    let to_file = |path: &Path| {
        let created = File::create(path).map_err(|error| Error::Write(path.to_owned(), error))?;
        Ok::<Box<dyn Write>, Error>(Box::new(created))
    };
    let out: Box<dyn Write> = match &args.output {
        Some(path) => to_file(path)?,
        None if args.format.is_binary() && io::stdout().is_terminal() => return Err(Error::BinaryToTerminal),
        None => Box::new(io::stdout().lock()),
    };
    let mut out = BufWriter::with_capacity(1 << 16, out);
    // Bars and text on one terminal would be in each other's way.
    let progress = args.output.is_some() || !io::stdout().is_terminal();
    let result = report(&mut file, args, image.as_ref(), &mut out, progress);
    let result = match (result, out.flush()) {
        (Err(Failure::Write(error)), _) | (Ok(_), Err(error)) => Err(Failure::Write(error)),
        (result, _) => result,
    };
    match result {
        Ok(outcome) => {
            let mut said = io::stderr().lock();
            // Standard error that nobody reads is no reason to fail.
            for problem in &outcome.problems.first {
                let _ = writeln!(said, "fgraph: {}: {problem}", args.file.display());
            }
            let more = outcome.problems.count - outcome.problems.first.len() as u64;
            if more > 0 {
                let _ = writeln!(said, "fgraph: {}: and {more} more", args.file.display());
            }
            Ok(outcome.problems.count > 0)
        }
        Err(Failure::Read(error)) => Err(Error::Read(args.file.clone(), error)),
        // A reader that has seen enough.
        Err(Failure::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(Failure::Write(error)) => Err(match &args.output {
            Some(path) => Error::Write(path.clone(), error),
            None => Error::Print(error),
        }),
        Err(Failure::Foreign(start, seems)) => Err(Error::Foreign(args.file.clone(), start, seems)),
    }
}
