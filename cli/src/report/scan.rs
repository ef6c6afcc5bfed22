//! The first look at a trace file: where its pages are, what things are called, and what is damaged.
//!
//! Memory: a few words for each page, and for each call that returned in another page than it was entered in.

use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom};

use fgraph::wire::file::{self, CpuTotals, Damage, Found, HEAD_LEN, Head, Kind, Meta};
use fgraph::wire::{self, Record};

use super::event::{Args, Call, Caller, What};
use super::names::{Function, Names};
use super::order::{Item, Opening};
use super::problem::{Problem, Problems};

/// A page in the file.
#[derive(Debug)]
pub(super) struct Page {
    /// Where its words begin in the file, and how many bytes they have.
    pub(super) at: u64,
    pub(super) len: u32,
    pub(super) sequence: u64,
    /// Ticks: what was entered from here on was entered in it.
    pub(super) from: u64,
    /// Ticks: when the first call in it was entered, and when the last thing in it happened.
    first: u64,
    last: u64,
    /// Records and refusals before it, and records in it.
    before: u64,
    refused: u64,
    pub(super) records: u64,
    /// Records that are missing before it.
    pub(super) lost: u64,
    /// Calls that are entered in it and return elsewhere; times in ticks.
    pub(super) openings: Vec<Opening>,
    /// Calls recorded in it that may have been entered elsewhere, and on which CPU if that was another.
    elsewhere: Vec<(Option<u32>, Opening)>,
}

/// What the first look found.
#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) ticks_per_second: u64,
    pub(super) slide: u64,
    pub(super) cpus: u32,
    pub(super) pages: BTreeMap<u32, Vec<Page>>,
    totals: BTreeMap<u32, CpuTotals>,
    /// Records that are missing behind the last page of a CPU.
    pub(super) lost_at_end: BTreeMap<u32, u64>,
    pub(super) records: u64,
    found_meta: bool,
    found_end: bool,
    chunks: u64,
}

/// The call of a record, times in ticks; and if it has not returned.
pub(super) fn call_of(record: &Record<'_>, names: &mut Names) -> Option<(u32, Call, Option<u32>)> {
    let args = |words: &[u64]| match words {
        [] => Args::None,
        words => Args::Words(words.iter().map(|word| *word as usize).collect()),
    };
    match record {
        Record::Call(call) => {
            let mut made = Call::new(names.by_index(call.func), call.depth, call.start, Some(call.end));
            made.retval = call.retval;
            made.retval2 = call.retval2;
            let memory = call.memory.iter().flat_map(|word| word.to_le_bytes());
            made.memory = memory.take(call.memory_len.into()).collect();
            made.overrun = call.overrun;
            made.caller = call.ret_addr.map(Caller::Addr);
            made.args = args(call.args);
            Some((call.who.task, made, call.from_cpu))
        }
        Record::Entry(entry) => {
            let mut made = Call::new(names.by_index(entry.func), entry.depth, entry.time, None);
            made.caller = entry.ret_addr.map(Caller::Addr);
            made.args = args(entry.args);
            Some((entry.who.task, made, None))
        }
        _ => None,
    }
}

/// The records of a page, times in ticks. Calls that were entered elsewhere are so marked; those that have not returned are left out:
/// they are openings.
pub(super) fn items(words: &[u64], from: u64, names: &mut Names) -> Vec<Item> {
    let Ok((_, records)) = wire::page(words) else { return Vec::new() };
    let mut items: Vec<Item> = Vec::new();
    // Whether the last item is a text that goes on.
    let mut goes_on = false;
    for record in records.flatten() {
        let continued = std::mem::take(&mut goes_on);
        match record {
            Record::Entry(_) => {}
            Record::Mark(mark) if mark.id == wire::STACK_MARK => {
                let what = What::Stack { addrs: mark.data.into(), cut: mark.cut };
                items.push(Item { task: mark.who.task, time: mark.time, what, opens_here: false });
            }
            Record::Mark(mark) => {
                let is_text = mark.id == wire::TEXT_MARK;
                goes_on = is_text && mark.cut;
                if let Some(Item { task, what: What::Mark { id: wire::TEXT_MARK, data }, .. }) =
                    items.last_mut()
                    && continued
                    && is_text
                    && *task == mark.who.task
                {
                    *data = [data, mark.data].concat().into();
                    continue;
                }
                let what = What::Mark { id: mark.id, data: mark.data.into() };
                items.push(Item { task: mark.who.task, time: mark.time, what, opens_here: false });
            }
            Record::Hit(hit) => {
                let what =
                    What::Hit { func: names.by_index(hit.func), caller: Some(Caller::Addr(hit.parent_ip)) };
                items.push(Item { task: hit.who.task, time: hit.time, what, opens_here: false });
            }
            _ => {
                let Some((task, call, from_cpu)) = call_of(&record, names) else { continue };
                let opens_here = from_cpu.is_none() && call.start >= from;
                let time = call.end.unwrap_or(call.start);
                items.push(Item { task, time, what: What::Leave(call), opens_here });
            }
        }
    }
    items
}

/// Reads a file through a window that moves on.
struct Window<'r, R> {
    reader: &'r mut R,
    bytes: Vec<u8>,
    /// Where the window begins in the file.
    at: u64,
    ended: bool,
}

impl<R: Read> Window<'_, R> {
    /// Makes the window this long, or as long as the file goes on.
    fn want(&mut self, len: usize) -> io::Result<()> {
        while self.bytes.len() < len && !self.ended {
            let more = (len - self.bytes.len()).max(1 << 16) as u64;
            self.ended = self.reader.by_ref().take(more).read_to_end(&mut self.bytes)? == 0;
        }
        Ok(())
    }

    fn skip(&mut self, len: usize) {
        let len = len.min(self.bytes.len());
        self.bytes.drain(..len);
        self.at += len as u64;
    }
}

/// Looks through a whole file. `progress` is told how far it is.
pub(super) fn scan<R: Read + Seek>(
    reader: &mut R,
    names: &mut Names,
    problems: &mut Problems,
    progress: &dyn Fn(u64),
) -> io::Result<Index> {
    reader.seek(SeekFrom::Start(0))?;
    let mut index = Index { ticks_per_second: 1_000_000_000, ..Index::default() };
    let mut window = Window { reader, bytes: Vec::new(), at: 0, ended: false };
    let mut next_number = 0_u32;
    // Bytes that belong to no chunk, and if a damaged one before has told of them.
    let (mut noise, mut told) = (0, false);
    let mut noise_at = 0;
    loop {
        window.want(HEAD_LEN)?;
        progress(window.at);
        let found = file::find(&window.bytes);
        let (skip, head) = match found {
            Found::Head(skip, head) => (skip, Some(Ok(head))),
            Found::Version(skip, version) => (skip, Some(Err(version))),
            Found::More(skip) => (if window.ended { window.bytes.len() } else { skip }, None),
        };
        if noise == 0 {
            noise_at = window.at;
        }
        noise += skip as u64;
        window.skip(skip);
        let Some(head) = head else {
            if window.ended {
                break;
            }
            let len = window.bytes.len() + 1;
            window.want(len)?;
            continue;
        };
        if noise > 0 && !told {
            problems.add(Problem::Damage(Damage::Noise { at: noise_at, bytes: noise }));
        }
        (noise, told) = (0, false);
        let at = window.at;
        let damage = match head {
            Err(version) => Damage::Version { at, version },
            Ok(head) => {
                window.want(head.chunk_len())?;
                match window.bytes.get(HEAD_LEN..head.chunk_len()) {
                    None => Damage::Truncated { at, missing: (head.chunk_len() - window.bytes.len()) as u64 },
                    Some(padded) => {
                        let payload = padded.get(..head.len as usize).unwrap_or(padded);
                        if file::checksum(payload) == head.checksum {
                            let missing = head.number.wrapping_sub(next_number);
                            // What stands twice, or out of turn, is nothing missing.
                            if missing > 0 && missing < 1 << 31 {
                                problems.add(Problem::Missing(missing.into()));
                            }
                            next_number = head.number.wrapping_add(1);
                            index.chunk(at, &head, payload, names, problems);
                            window.skip(head.chunk_len());
                            continue;
                        }
                        Damage::Payload { at, kind: head.kind }
                    }
                }
            }
        };
        problems.add(Problem::Damage(damage));
        window.skip(HEAD_LEN);
        told = true;
    }
    if noise > 0 && !told {
        problems.add(Problem::Damage(Damage::Noise { at: noise_at, bytes: noise }));
    }
    if index.chunks > 0 {
        if !index.found_end {
            problems.add(Problem::NoEnd);
        }
        if !index.found_meta {
            problems.add(Problem::NoMeta);
        }
    }
    index.settle();
    Ok(index)
}

impl Index {
    /// If the file had anything of a trace.
    pub(super) fn is_trace(&self) -> bool {
        self.chunks > 0
    }

    fn chunk(&mut self, at: u64, head: &Head, payload: &[u8], names: &mut Names, problems: &mut Problems) {
        self.chunks += 1;
        let mut wrong = |error| problems.add(Problem::Content(at, head.kind, error));
        match head.kind {
            Kind::Meta => match Meta::decode(payload) {
                Ok(meta) => {
                    self.found_meta = true;
                    self.ticks_per_second = meta.ticks_per_second;
                    self.slide = meta.slide;
                    // More CPUs than there can be would only make the CPU column wide.
                    self.cpus = self.cpus.max(meta.cpus.min(1 << 16));
                }
                Err(error) => wrong(error),
            },
            Kind::Functions => {
                for function in file::functions(payload) {
                    match function {
                        Ok(function) => {
                            let flags = function.flags;
                            names.define(
                                function.index,
                                Function {
                                    raw: function.name.into(),
                                    module: function.module.into(),
                                    addr: function.addr,
                                    irq_entry: flags.contains(file::FunctionFlags::IRQ_ENTRY),
                                    void: flags.contains(file::FunctionFlags::VOID),
                                    ..Function::default()
                                },
                            );
                        }
                        Err(error) => wrong(error),
                    }
                }
            }
            Kind::Tasks => file::tasks(payload).for_each(|task| match task {
                Ok(task) => names.set_task(task.task, task.comm),
                Err(error) => wrong(error),
            }),
            Kind::Marks => file::marks(payload).for_each(|mark| match mark {
                Ok(mark) => names.set_mark(mark.id, mark.name),
                Err(error) => wrong(error),
            }),
            Kind::Totals => file::totals(payload).for_each(|totals| match totals {
                Ok(totals) => {
                    self.totals.insert(totals.cpu, totals);
                }
                Err(error) => wrong(error),
            }),
            Kind::Page => {
                if let Err(error) = self.page(at + HEAD_LEN as u64, payload, names) {
                    problems.add(Problem::Page(at, error));
                }
            }
            Kind::End => self.found_end = true,
            Kind::Unknown(_) => {}
        }
    }

    fn page(&mut self, at: u64, payload: &[u8], names: &mut Names) -> Result<(), wire::WireError> {
        let words = words(payload);
        let (header, records) = wire::page(&words)?;
        let cpu = u32::from(header.cpu);
        let mut page = Page {
            at,
            len: payload.len() as u32,
            sequence: header.sequence,
            from: 0,
            first: u64::MAX,
            last: 0,
            before: header.records,
            refused: header.refused,
            records: 0,
            lost: 0,
            openings: Vec::new(),
            elsewhere: Vec::new(),
        };
        let mut result = Ok(());
        for record in records {
            let record = match record {
                Ok(record) => record,
                Err(error) => {
                    result = Err(error);
                    continue;
                }
            };
            page.records += 1;
            match &record {
                Record::Mark(mark) => page.last = page.last.max(mark.time),
                Record::Hit(hit) => page.last = page.last.max(hit.time),
                _ => {}
            }
            let Some((task, call, from_cpu)) = call_of(&record, names) else { continue };
            page.last = page.last.max(call.end.unwrap_or(call.start));
            if page.first == u64::MAX {
                page.first = call.start;
            }
            if call.end.is_none() || from_cpu.is_some() || call.start < header.base {
                page.elsewhere.push((from_cpu, Opening { task, call }));
            }
        }
        self.cpus = self.cpus.max(cpu + 1);
        let pages = self.pages.entry(cpu).or_default();
        pages.push(page);
        result
    }

    /// Puts the pages into their order, counts what is missing, and gives calls to the pages that they were entered in.
    fn settle(&mut self) {
        let mut openings = Vec::new();
        for (cpu, pages) in &mut self.pages {
            // Of the same page the longest stays.
            pages.sort_by_key(|page| (page.sequence, std::cmp::Reverse(page.len)));
            pages.dedup_by_key(|page| page.sequence);
            let (mut before, mut refused, mut last) = (0, 0, 0);
            for page in &mut *pages {
                page.lost = page.before.saturating_sub(before) + page.refused.saturating_sub(refused);
                (before, refused) = (page.before.saturating_add(page.records), page.refused);
                self.records += page.records;
                // Behind a loss, what was entered before the first call that is there has its opening in what is lost.
                page.from = if page.lost == 0 { last } else { page.first.max(last) };
                last = last.max(page.last);
                let from = page.from;
                let elsewhere = page.elsewhere.drain(..);
                let elsewhere = elsewhere.filter(|(from_cpu, Opening { call, .. })| {
                    from_cpu.is_some() || call.end.is_none() || call.start < from
                });
                openings.extend(elsewhere.map(|(from_cpu, opening)| (from_cpu.unwrap_or(*cpu), opening)));
            }
            if let Some(totals) = self.totals.get(cpu) {
                let lost = totals.records.saturating_sub(before) + totals.refused.saturating_sub(refused);
                self.lost_at_end.insert(*cpu, lost);
            }
        }
        for (cpu, opening) in openings {
            let Some(pages) = self.pages.get_mut(&cpu) else { continue };
            let start = opening.call.start;
            let mut at = pages.partition_point(|page| page.from <= start).saturating_sub(1);
            // In what is missing between two pages: it belongs behind that.
            let gap = pages.get(at + 1).is_some_and(|next| next.lost > 0);
            at += usize::from(gap && pages[at].last < start);
            // Entered before the first page: only its return is seen, if there is one.
            if pages.first().is_some_and(|first| first.from <= start) || opening.call.end.is_none() {
                pages[at].openings.push(opening);
            }
        }
    }
}

/// The words of a payload.
pub(super) fn words(payload: &[u8]) -> Vec<u64> {
    payload.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect()
}
