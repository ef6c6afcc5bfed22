//! The events of a trace file: pages are read one by one, and the CPUs' events merged by their time.

use std::collections::VecDeque;
use std::io::{self, Read, Seek, SeekFrom};

use fgraph::wire::file::ticks_to_ns;

use super::event::{Call, Event, What};
use super::names::Names;
use super::order;
use super::scan::{self, Index, Page};

/// One CPU.
struct Cpu {
    cpu: u32,
    pages: std::vec::IntoIter<Page>,
    events: VecDeque<Event>,
    lost_at_end: u64,
    /// The latest time so far: what the merging goes by, since a CPU's own order stands.
    time: u64,
}

/// Reads events.
pub(super) struct Merged<'r, R> {
    reader: &'r mut R,
    ticks_per_second: u64,
    cpus: Vec<Cpu>,
}

impl<'r, R: Read + Seek> Merged<'r, R> {
    pub(super) fn new(reader: &'r mut R, index: Index) -> Self {
        let mut lost = index.lost_at_end;
        let cpus = index.pages.into_iter().map(|(cpu, pages)| Cpu {
            cpu,
            pages: pages.into_iter(),
            events: VecDeque::new(),
            lost_at_end: lost.remove(&cpu).unwrap_or(0),
            time: 0,
        });
        Self { ticks_per_second: index.ticks_per_second, cpus: cpus.collect(), reader }
    }

    /// The next event; how many records were read for it, for the progress.
    pub(super) fn next(&mut self, names: &mut Names) -> io::Result<Option<(Event, u64)>> {
        let mut read = 0;
        let mut best: Option<(u64, usize)> = None;
        for (at, cpu) in self.cpus.iter_mut().enumerate() {
            while cpu.events.is_empty() {
                let Some(page) = cpu.pages.next() else { break };
                read += page.records;
                let mut bytes = vec![0; page.len as usize];
                self.reader.seek(SeekFrom::Start(page.at))?;
                self.reader.read_exact(&mut bytes)?;
                let items = scan::items(&scan::words(&bytes), page.from, names);
                let mut events = order::events(cpu.cpu, items, &page.openings);
                for event in &mut events {
                    to_ns(event, self.ticks_per_second);
                }
                if page.lost > 0 {
                    let time = events.first().map_or(cpu.time, |event| event.time);
                    cpu.events.push_back(Event { cpu: cpu.cpu, time, task: 0, what: What::Lost(page.lost) });
                }
                cpu.events.extend(events);
            }
            if cpu.events.is_empty() && cpu.lost_at_end > 0 {
                let what = What::Lost(std::mem::take(&mut cpu.lost_at_end));
                cpu.events.push_back(Event { cpu: cpu.cpu, time: cpu.time, task: 0, what });
            }
            if let Some(event) = cpu.events.front() {
                let time = event.time.max(cpu.time);
                if best.is_none_or(|(earliest, _)| time < earliest) {
                    best = Some((time, at));
                }
            }
        }
        let Some((time, at)) = best else { return Ok(None) };
        let Some(cpu) = self.cpus.get_mut(at) else { return Ok(None) };
        cpu.time = time;
        Ok(cpu.events.pop_front().map(|event| (event, read)))
    }
}

fn to_ns(event: &mut Event, rate: u64) {
    event.time = ticks_to_ns(event.time, rate);
    if let What::Enter(call) | What::Leave(call) | What::Leaf(call) = &mut event.what {
        let Call { start, end, .. } = call;
        *start = ticks_to_ns(*start, rate);
        *end = end.map(|end| ticks_to_ns(end, rate));
    }
}
