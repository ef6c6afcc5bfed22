//! Reading a file, from its beginning in pieces of any size.

use core::fmt::{self, Write};

use super::control::{FilterFile, PidFile};
use super::instances::Hold;
use super::log::Log;
use super::tracing::{Buffers, Shown, TextPlace, TraceText, Tracer};
use super::tree::{File, PerCpu, ROWS, Top};
use super::{Files, FsError, TraceOption, Tracefs};
use crate::words::place::Window;
use crate::words::{List, Place};

/// The longest text of one event, in bytes; what is longer is cut.
pub const MAX_TEXT: usize = 2048;

/// A file that is being read, and how far it has been. An instance with such a file cannot be removed.
#[derive(Debug)]
pub struct Reading<'a> {
    /// If it is a file of an instance.
    hold: Option<Hold<'a>>,
    file: File,
    at: At,
    held: Held,
}

#[derive(Clone, Copy, Debug)]
enum At {
    /// So many bytes of a text that is made anew each time.
    Offset(usize),
    List(List, Place),
    Words(FilterFile, Place),
    Commands(TextPlace),
    Text(TraceText, TextPlace),
    Profile(usize, TextPlace),
    Piped(Option<usize>),
}

/// A text on its way out.
#[derive(Debug)]
struct Held {
    bytes: [u8; MAX_TEXT],
    len: usize,
    given: usize,
}

impl Held {
    fn give(&mut self, bytes: &mut [u8]) -> usize {
        let rest = self.bytes.get(self.given..self.len).unwrap_or(&[]);
        let count = rest.len().min(bytes.len());
        bytes.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
        self.given += count;
        count
    }

    fn clear(&mut self) {
        (self.len, self.given) = (0, 0);
    }
}

/// Takes all, and keeps what fits; the last byte of a text that is cut is the end of its line.
impl Write for Held {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            match self.bytes.get_mut(self.len) {
                Some(to) => (*to, self.len) = (byte, self.len + 1),
                None => self.bytes[MAX_TEXT - 1] = b'\n',
            }
        }
        Ok(())
    }
}

impl<'a> Tracefs<'a> {
    /// Opens a file to be read from its beginning. It is closed when the reading is dropped.
    ///
    /// # Errors
    /// [`FsError::NoSuchFile`], [`FsError::IsDirectory`], [`FsError::NotReadable`].
    pub fn open(&self, path: &str) -> Result<Reading<'a>, FsError> {
        let _one = self.log.lock();
        let (place, file) = self.file(path)?;
        if !file.access().reads() {
            return Err(FsError::NotReadable);
        }
        let tracing = self.files(place).tracing;
        let list = |list| At::List(list, Place::START);
        let words = |file| At::Words(file, Place::START);
        let text = |buffers, cpu| At::Text(TraceText { buffers, cpu }, TextPlace::START);
        let snapshot = |cpu| match tracing.has_snapshot() {
            true => text(Buffers::Snapshot, cpu),
            false => At::Offset(0),
        };
        let at = match file {
            File::Top(Top::Available) => list(List::Available),
            File::Top(Top::AvailableAddrs) => list(List::AvailableAddrs),
            File::Top(Top::Enabled) => list(List::Enabled),
            File::Top(Top::Touched) => list(List::Touched),
            File::Top(Top::Filter) => words(FilterFile::Filter),
            File::Top(Top::Notrace) => words(FilterFile::Notrace),
            File::Top(Top::GraphFunction) => words(FilterFile::GraphFunction),
            File::Top(Top::GraphNotrace) => words(FilterFile::GraphNotrace),
            File::Top(Top::Trace) => text(Buffers::Live, None),
            File::Cpu(PerCpu::Trace, cpu) => text(Buffers::Live, Some(cpu)),
            File::Top(Top::Snapshot) => snapshot(None),
            File::Cpu(PerCpu::Snapshot, cpu) => snapshot(Some(cpu)),
            File::Top(Top::Pipe) => At::Piped(None),
            File::Cpu(PerCpu::Pipe, cpu) => At::Piped(Some(cpu)),
            File::Stat(cpu) => At::Profile(cpu, TextPlace::START),
            _ => At::Offset(0),
        };
        let hold = place.map(|place| place.hold());
        Ok(Reading { hold, file, at, held: Held { bytes: [0; MAX_TEXT], len: 0, given: 0 } })
    }

    /// Reads the next bytes. How many; 0 at the end, or when there is nothing in a pipe for now.
    ///
    /// # Errors
    /// [`FsError::Tracing`], [`FsError::Functions`].
    pub fn read(&self, reading: &mut Reading<'a>, bytes: &mut [u8]) -> Result<usize, FsError> {
        let top = self.log.lock();
        let Reading { hold, file, at, held } = reading;
        let place = hold.as_ref().map(Hold::place);
        let own = place.map(|place| place.log.lock());
        let log = own.as_deref().unwrap_or(&top);
        let files = self.files(place);
        let (tracing, functions) = (files.tracing, files.functions);
        let mut filled = held.give(bytes);
        while filled < bytes.len() {
            let room = bytes.get_mut(filled..).unwrap_or(&mut []);
            held.clear();
            let shown = match at {
                At::Offset(offset) => {
                    let mut window = Window::new(*offset, room);
                    // What does not fit ends it early.
                    let shown = files.show(*file, log, &mut window);
                    let got = window.filled();
                    if got == 0 && !window.is_full() {
                        shown?;
                    }
                    *offset += got;
                    return Ok(filled + got);
                }
                At::List(list, place) => return Ok(filled + functions.read_list(*list, place, room)),
                At::Words(file, place) => {
                    let got = functions.read_words(*file, place, room)?;
                    if got > 0 || *file != FilterFile::Filter {
                        return Ok(filled + got);
                    }
                    *at = At::Commands(TextPlace::START);
                    continue;
                }
                At::Commands(place) => functions.next_command(place, held),
                At::Text(text, place) => tracing.next_text(*text, place, held)?,
                At::Profile(cpu, place) => functions.next_profile(*cpu, place, held)?,
                At::Piped(cpu) => tracing.next_piped(*cpu, held)?,
            };
            if shown == Shown::End {
                break;
            }
            filled += held.give(bytes.get_mut(filled..).unwrap_or(&mut []));
        }
        Ok(filled)
    }

    /// Reads bytes of a file from an offset on, without a reading: it makes all that stands before anew. How many; 0 at the end.
    ///
    /// # Errors
    /// As [`open`](Self::open) and [`read`](Self::read); [`FsError::NoOffsets`] for a pipe.
    pub fn read_at(&self, path: &str, offset: usize, bytes: &mut [u8]) -> Result<usize, FsError> {
        let mut reading = self.open(path)?;
        match &mut reading.at {
            At::Piped(_) => return Err(FsError::NoOffsets),
            At::Offset(at) => *at = offset,
            _ => {
                let (mut left, mut piece) = (offset, [0; 256]);
                while left > 0 {
                    let len = left.min(piece.len());
                    let got = self.read(&mut reading, piece.get_mut(..len).unwrap_or(&mut []))?;
                    if got == 0 {
                        return Ok(0);
                    }
                    left -= got;
                }
            }
        }
        self.read(&mut reading, bytes)
    }
}

impl Files<'_> {
    /// Makes the text of a file that is short.
    fn show(&self, file: File, log: &Log, out: &mut dyn Write) -> Result<(), FsError> {
        let (tracing, functions) = (self.tracing, self.functions);
        let cpus = tracing.cpus();
        let result = match file {
            File::Option(option) => writeln!(out, "{}", u8::from(self.option(option) == Some(true))),
            File::Cpu(PerCpu::BufferSize, cpu) => writeln!(out, "{}", tracing.buffer_kb(cpu)?),
            File::Cpu(PerCpu::Stats, cpu) => {
                let stats = tracing.stats(cpu)?;
                let time = |ns: u64| (ns / 1_000_000_000, ns / 1000 % 1_000_000);
                let ((old_s, old_us), (now_s, now_us)) = (time(stats.oldest_ns), time(stats.now_ns));
                writeln!(
                    out,
                    "entries: {}\noverrun: {}\ncommit overrun: {}\nbytes: {}\noldest event ts: {old_s:>5}.{old_us:06}\n\
                     now ts: {now_s:>5}.{now_us:06}\ndropped events: {}\nread events: {}",
                    stats.entries,
                    stats.overrun,
                    stats.commit_overrun,
                    stats.bytes,
                    stats.dropped,
                    stats.read,
                )
            }
            File::Top(top) => return self.show_top(top, log, out, cpus),
            File::Cpu(PerCpu::Snapshot, _) => out.write_str(NO_SNAPSHOT),
            File::Cpu(PerCpu::Trace | PerCpu::Pipe, _) | File::Stat(_) => Ok(()),
        };
        // What `out` refuses is read next.
        let _ = (result, functions);
        Ok(())
    }

    fn show_top(&self, top: Top, log: &Log, out: &mut dyn Write, cpus: usize) -> Result<(), FsError> {
        let (tracing, functions) = (self.tracing, self.functions);
        let result = match top {
            Top::AvailableTracers => {
                let [first, second, third] = Tracer::ALL.map(Tracer::name);
                writeln!(out, "{first} {second} {third}")
            }
            Top::CurrentTracer => writeln!(out, "{}", tracing.tracer().name()),
            Top::BufferSize => {
                let first = tracing.buffer_kb(0)?;
                let mut same = true;
                for cpu in 1..cpus {
                    same &= tracing.buffer_kb(cpu)? == first;
                }
                if same { writeln!(out, "{first}") } else { writeln!(out, "X") }
            }
            Top::BufferTotal => {
                let mut total = 0;
                for cpu in 0..cpus {
                    total += tracing.buffer_kb(cpu)?;
                }
                writeln!(out, "{total}")
            }
            Top::ErrorLog => write!(out, "{log}"),
            Top::ProfileEnabled => writeln!(out, "{}", u8::from(functions.profiles())),
            Top::MaxDepth => writeln!(out, "{}", functions.max_depth()),
            Top::Thresh => writeln!(out, "{}", functions.thresh_ns() / 1000),
            Top::On => writeln!(out, "{}", u8::from(tracing.is_on())),
            Top::Readme => write_readme(out),
            Top::SavedCmdlines => {
                let mut result = Ok(());
                tracing.tasks(&mut |pid, comm| {
                    if result.is_ok() {
                        result = writeln!(out, "{pid} {comm}");
                    }
                });
                result
            }
            Top::Pid => self.show_pids(PidFile::Pid, out),
            Top::NotracePid => self.show_pids(PidFile::NotracePid, out),
            Top::Snapshot => out.write_str(NO_SNAPSHOT),
            Top::Clock => {
                let (clocks, used) = tracing.clocks();
                let mut result = Ok(());
                for (at, clock) in clocks.iter().enumerate() {
                    let blank = if at == 0 { "" } else { " " };
                    let (open, close) = if at == used { ("[", "]") } else { ("", "") };
                    result = result.and_then(|()| write!(out, "{blank}{open}{clock}{close}"));
                }
                result.and_then(|()| out.write_str("\n"))
            }
            Top::Options => TraceOption::ALL.into_iter().try_for_each(|option| match self.option(option) {
                Some(on) => writeln!(out, "{}{}", if on { "" } else { "no" }, option.name()),
                None => Ok(()),
            }),
            Top::Cpumask => write_mask(tracing.cpumask(), cpus, out),
            Top::Available
            | Top::AvailableAddrs
            | Top::Enabled
            | Top::Touched
            | Top::Filter
            | Top::Notrace
            | Top::GraphFunction
            | Top::GraphNotrace
            | Top::Trace
            | Top::Pipe
            | Top::Marker => Ok(()),
        };
        let _ = result;
        Ok(())
    }

    fn show_pids(&self, file: PidFile, out: &mut dyn Write) -> fmt::Result {
        let mut result = Ok(());
        let some = self.functions.pids(file, &mut |pid| {
            if result.is_ok() {
                result = writeln!(out, "{pid}");
            }
        });
        if some { result } else { out.write_str("no pid\n") }
    }
}

const NO_SNAPSHOT: &str = "# tracer: nop\n#\n#\n# * Snapshot is freed *\n#\n\
     # echo 1 > snapshot   sets aside what was recorded\n\
     # echo 2 > snapshot   empties the snapshot\n\
     # echo 0 > snapshot   gives its memory back\n";

fn write_readme(out: &mut dyn Write) -> fmt::Result {
    out.write_str("The files of this tracer, as function tracing has them everywhere:\n\n")?;
    for row in ROWS {
        let access = match (row.name, File::Top(row.top).access()) {
            (_, access) if !access.writes() => "r ",
            (_, access) if !access.reads() => " w",
            _ => "rw",
        };
        writeln!(out, "  {access} {:<32} {}", row.name, row.help)?;
    }
    out.write_str(
        "\n     options/, per_cpu/, trace_stat/   a file for each option, each CPU, each CPU's profile\
         \n     instances/   mkdir makes a directory there, with buffers, a tracer and filters of its own\n\n\
         Words of set_ftrace_filter: NAME, a glob like vfs_*, !NAME to take away, NAME:mod:MODULE.\n\
         What was refused is in error_log.\n",
    )
}

/// As Linux: so many digits as the CPUs take, with a comma before every 8.
fn write_mask(mask: u64, cpus: usize, out: &mut dyn Write) -> fmt::Result {
    let digits = cpus.clamp(1, 64).div_ceil(4);
    match digits {
        9.. => writeln!(out, "{:0width$x},{:08x}", mask >> 32, mask & 0xffff_ffff, width = digits - 8),
        _ => writeln!(out, "{mask:0digits$x}"),
    }
}
