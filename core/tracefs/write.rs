//! Writing a file: each write is whole, and does all of what it says or nothing.

use super::control::{FilterFile, FunctionsError, PidFile};
use super::tracing::{SnapshotAct, Tracer};
use super::tree::{File, PerCpu, Top};
use super::value::{mask, number, one_number, switch, word, words};
use super::{Cause, Files, FsError, Open, Refused, TraceOption, Tracefs};

/// The most tasks in `set_ftrace_pid` and in `set_ftrace_notrace_pid`.
pub const MAX_PIDS: usize = 64;

impl Tracefs<'_> {
    /// Writes a file: opens it, truncating or appending, writes `bytes`, and closes it. How many bytes, which is all.
    ///
    /// # Errors
    /// [`FsError::Refused`] says what is wrong, and `error_log` has a line then; [`FsError::NoSuchFile`], [`FsError::IsDirectory`],
    /// [`FsError::NotWritable`].
    pub fn write(&self, path: &str, bytes: &[u8], open: Open) -> Result<usize, FsError> {
        let mut top = self.log.lock();
        let (place, file) = self.file(path)?;
        if !file.access().writes() {
            return Err(FsError::NotWritable);
        }
        let mut own = place.map(|place| place.log.lock());
        let log = own.as_deref_mut().unwrap_or(&mut top);
        if file == File::Top(Top::ErrorLog) {
            if open == Open::Replace {
                log.clear();
            }
            return Ok(bytes.len());
        }
        let files = self.files(place);
        match files.write_file(file, bytes, open) {
            Ok(()) => Ok(bytes.len()),
            Err(refused) => {
                log.note(files.tracing.now_ns(), file, bytes, refused);
                Err(refused.into())
            }
        }
    }
}

impl Files<'_> {
    fn write_file(&self, file: File, bytes: &[u8], open: Open) -> Result<(), Refused> {
        // These take any bytes.
        match file {
            File::Top(Top::Trace) | File::Cpu(PerCpu::Trace, _) => {
                let cpu = if let File::Cpu(_, cpu) = file { Some(cpu) } else { None };
                return if open == Open::Replace { Ok(self.tracing.clear(cpu)?) } else { Ok(()) };
            }
            File::Top(Top::Marker) => {
                let mut lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
                return lines.try_for_each(|line| Ok(self.tracing.mark(line)?));
            }
            _ => {}
        }
        let text = core::str::from_utf8(bytes);
        let text = text.map_err(|error| Refused::at(error.valid_up_to(), Cause::NotText))?;
        match file {
            File::Top(top) => self.write_top(top, text, open),
            File::Option(option) => {
                let on = switch(text)?;
                self.set_option(option, on)
            }
            File::Cpu(PerCpu::BufferSize, cpu) => self.resize(Some(cpu), text),
            File::Cpu(PerCpu::Snapshot, cpu) => self.write_snapshot(Some(cpu), text),
            File::Cpu(..) | File::Stat(_) => Ok(()),
        }
    }

    fn write_top(&self, top: Top, text: &str, open: Open) -> Result<(), Refused> {
        let (tracing, functions) = (self.tracing, self.functions);
        match top {
            Top::BufferSize => self.resize(None, text),
            Top::CurrentTracer => {
                let name = word(text)?;
                let tracer = Tracer::by_name(name.text).ok_or(name.refused(Cause::NoSuchTracer))?;
                let before = tracing.tracer();
                functions.prepare(tracer)?;
                tracing.set_tracer(tracer).map_err(|error| {
                    // It has its sets already, so this changes nothing that can fail.
                    let _ = functions.prepare(before);
                    error.into()
                })
            }
            Top::ProfileEnabled => Ok(functions.set_profiles(switch(text)?)?),
            Top::MaxDepth => {
                functions.set_max_depth(one_number(text, u32::MAX.into())? as u32);
                Ok(())
            }
            Top::Thresh => {
                functions.set_thresh_ns(one_number(text, u64::MAX / 1000)? * 1000);
                Ok(())
            }
            Top::On => {
                tracing.set_on(one_number(text, u64::MAX)? != 0);
                Ok(())
            }
            Top::Filter => functions.write_words(FilterFile::Filter, text, open),
            Top::Notrace => functions.write_words(FilterFile::Notrace, text, open),
            Top::GraphFunction => functions.write_words(FilterFile::GraphFunction, text, open),
            Top::GraphNotrace => functions.write_words(FilterFile::GraphNotrace, text, open),
            Top::Pid => self.write_pids(PidFile::Pid, text, open),
            Top::NotracePid => self.write_pids(PidFile::NotracePid, text, open),
            Top::Snapshot => self.write_snapshot(None, text),
            Top::Clock => {
                let name = word(text)?;
                let place = tracing.clocks().0.iter().position(|clock| *clock == name.text);
                Ok(tracing.set_clock(place.ok_or(name.refused(Cause::NoSuchClock))?)?)
            }
            Top::Options => {
                let name = word(text)?;
                let there = |name| TraceOption::by_name(name).filter(|option| self.option(*option).is_some());
                let off = || name.text.strip_prefix("no").and_then(there).map(|option| (option, false));
                let found = there(name.text).map(|option| (option, true)).or_else(off);
                let (option, on) = found.ok_or(name.refused(Cause::NoSuchOption))?;
                self.set_option(option, on)
            }
            Top::Cpumask => Ok(tracing.set_cpumask(mask(text, tracing.cpus())?)?),
            // Those that can only be read do not come here.
            _ => Ok(()),
        }
    }

    fn resize(&self, cpu: Option<usize>, text: &str) -> Result<(), Refused> {
        let word = word(text)?;
        match number(word, u64::MAX / 1024)? {
            0 => Err(word.refused(Cause::Zero)),
            kb => Ok(self.tracing.set_buffer_kb(cpu, kb)?),
        }
    }

    fn write_snapshot(&self, cpu: Option<usize>, text: &str) -> Result<(), Refused> {
        let act = match one_number(text, u64::MAX)? {
            0 => SnapshotAct::Free,
            1 => SnapshotAct::Take,
            _ => SnapshotAct::Clear,
        };
        Ok(self.tracing.snapshot(act, cpu)?)
    }

    fn write_pids(&self, file: PidFile, text: &str, open: Open) -> Result<(), Refused> {
        let mut pids = Pids { all: [0; MAX_PIDS], len: 0 };
        let mut some = false;
        if open == Open::Append {
            some = self.functions.pids(file, &mut |pid| {
                let _ = pids.add(pid);
            });
        }
        for word in words(text) {
            let pid = number(word, u32::MAX.into())? as u32;
            pids.add(pid).map_err(|error| word.refused(Cause::Functions(error)))?;
            some = true;
        }
        let pids = pids.all.get(..pids.len).filter(|_| some);
        Ok(self.functions.set_pids(file, pids)?)
    }
}

/// Numbers in ascending order, each once.
struct Pids {
    all: [u32; MAX_PIDS],
    len: usize,
}

impl Pids {
    fn add(&mut self, pid: u32) -> Result<(), FunctionsError> {
        let pids = self.all.get(..self.len).unwrap_or(&[]);
        let Err(at) = pids.binary_search(&pid) else { return Ok(()) };
        let count = self.len + 1;
        let room = self.all.get_mut(at..count);
        let room = room.ok_or(FunctionsError::TooMany { count, max: MAX_PIDS })?;
        room.rotate_right(1);
        if let Some(first) = room.first_mut() {
            *first = pid;
        }
        self.len = count;
        Ok(())
    }
}
