//! The trace as a file of the host, for `fgraph report`.

use alloc::vec;
use core::fmt;

use fgraph::text;
use fgraph::wire::file::{CpuTotals, FileError, Function, FunctionFlags, Meta, TaskName, Writer};
use fgraph::{SiteReport, tracer};

use crate::{
    buffers::{self, PAGE_WORDS},
    machine::{self, HostFile},
    sched, smp, tracing,
};

/// The machine's number in ELF files.
const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };

/// Why a trace did not get out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportError {
    /// The host makes no such file.
    NoFile,
    /// The host did not take all bytes.
    Refused,
    /// A page does not fit.
    File(FileError),
}

impl fmt::Display for ExportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFile => f.write_str("the host makes no such file"),
            Self::Refused => f.write_str("the host did not take all of it"),
            Self::File(error) => error.fmt(f),
        }
    }
}

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Bytes of the file.
    pub bytes: usize,
    /// Pages of records in it.
    pub pages: u64,
}

/// Writes what the buffers have. Nothing is recorded meanwhile.
pub fn to_host(path: &str) -> Result<Written, ExportError> {
    let mut file = HostFile::create(path).ok_or(ExportError::NoFile)?;
    let (mut took_all, mut written) = (true, 0);
    let mut sink = |bytes: &[u8]| {
        took_all &= file.write(bytes);
        written += bytes.len();
    };
    let mut writer = Writer::new(&mut sink);
    let (start, ticks_per_second) = machine::clock_rate();
    writer.meta(&Meta {
        machine: MACHINE,
        cpus: smp::count() as u32,
        ticks_per_second,
        start,
        wall_ns: 0,
        slide: 0,
        kernel: "fgraph demo kernel",
    });
    let sites = tracing::started().map_or(0, |SiteReport { sites, notrace, .. }| sites + notrace);
    for index in 0..sites as u32 {
        name_function(&mut writer, index);
    }
    for task in 0..sched::NAMED_TASKS as u32 {
        if let Some(name) = sched::name_of(task) {
            writer.task(&TaskName { task, comm: text::Task::new(task, name).comm });
        }
    }
    let mut page = vec![0; PAGE_WORDS];
    for buffer in buffers::all() {
        let pages = buffer.page_range();
        let end = pages.end;
        for sequence in pages {
            // One that was overwritten is among the lost.
            let Ok(len) = buffer.copy_page(sequence, &mut page) else { continue };
            writer.page(page.get(..len).unwrap_or(&[])).map_err(ExportError::File)?;
        }
        let counts = buffer.counts();
        let (cpu, records, refused) = (buffer.cpu().into(), counts.records, counts.refused);
        writer.totals(&CpuTotals { cpu, records, refused, pages: end });
    }
    let pages = writer.finish().pages;
    if took_all { Ok(Written { bytes: written, pages }) } else { Err(ExportError::Refused) }
}

fn name_function(writer: &mut Writer<'_>, index: u32) {
    let Some(func) = tracer::numbered_function(index) else { return };
    let addr = func.get() as u64;
    let found = tracing::symbols().ok().and_then(|symbols| symbols.by_address(addr));
    let name = found.filter(|symbol| symbol.offset == 0).map_or("", |symbol| symbol.name);
    let mut flags = FunctionFlags::empty();
    flags.set(FunctionFlags::IRQ_ENTRY, func.get() == sched::tick as *const () as usize);
    writer.function(&Function { index, addr, name, module: "", flags });
}
