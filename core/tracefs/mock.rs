//! A tracer and an engine that remember what they are told, for the tests of the files.

use core::fmt::{self, Write};
use std::string::{String, ToString};
use std::sync::Mutex;
use std::vec::Vec;

use super::control::*;
use super::tracing::*;
use super::{Cause, Instance, Refused, TraceOption};
use crate::words::{List, Mode, Place};

/// What both of them know. A copy of it is what tests compare.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Facts {
    pub(super) tracer: Tracer,
    pub(super) on: bool,
    pub(super) options: Vec<TraceOption>,
    pub(super) kb: Vec<u64>,
    pub(super) snapshot: bool,
    pub(super) mask: u64,
    pub(super) events: Vec<String>,
    pub(super) words: [String; 4],
    pub(super) pids: [Option<Vec<u32>>; 2],
    pub(super) depth: u32,
    pub(super) thresh: u64,
    pub(super) sleep_time: bool,
    pub(super) graph_time: bool,
    pub(super) profiles: bool,
}

pub(super) struct Mock(pub(super) Mutex<Facts>);

impl Mock {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Facts {
            tracer: Tracer::Nop,
            on: true,
            options: vec![TraceOption::Cpu, TraceOption::Overwrite],
            kb: vec![64; 4],
            snapshot: false,
            mask: 15,
            events: vec!["one {\n".into(), "} /* one */\n".into()],
            words: Default::default(),
            pids: [None, None],
            depth: 0,
            thresh: 0,
            sleep_time: true,
            graph_time: true,
            profiles: false,
        }))
    }

    pub(super) fn facts(&self) -> Facts {
        self.0.lock().expect("mock").clone()
    }

    fn change<R>(&self, change: impl FnOnce(&mut Facts) -> R) -> R {
        change(&mut self.0.lock().expect("mock"))
    }

    fn check(cpu: Option<usize>) -> Result<(), TracingError> {
        match cpu {
            Some(cpu @ 4..) => Err(TracingError::NoSuchCpu { cpu, cpus: 4 }),
            _ => Ok(()),
        }
    }
}

const MOST_KB: u64 = 1024;

impl Tracing for Mock {
    fn cpus(&self) -> usize {
        4
    }
    fn now_ns(&self) -> u64 {
        7_000_042_000
    }
    fn tracer(&self) -> Tracer {
        self.facts().tracer
    }
    fn set_tracer(&self, tracer: Tracer) -> Result<(), TracingError> {
        self.change(|facts| facts.tracer = tracer);
        Ok(())
    }
    fn is_on(&self) -> bool {
        self.facts().on
    }
    fn set_on(&self, on: bool) {
        self.change(|facts| facts.on = on);
    }
    fn option(&self, option: TraceOption) -> Option<bool> {
        (option != TraceOption::FuncArgs).then(|| self.facts().options.contains(&option))
    }
    fn set_option(&self, option: TraceOption, on: bool) -> Result<(), TracingError> {
        self.change(|facts| {
            facts.options.retain(|there| *there != option);
            if on {
                facts.options.push(option);
            }
        });
        Ok(())
    }
    fn next_text(
        &self,
        text: TraceText,
        place: &mut TextPlace,
        out: &mut dyn Write,
    ) -> Result<Shown, TracingError> {
        Self::check(text.cpu)?;
        let facts = self.facts();
        let at = place.texts as usize;
        let shown = match at.checked_sub(1).map(|at| facts.events.get(at)) {
            None => out.write_str("# tracer: mock\n"),
            Some(Some(event)) => out.write_str(event),
            Some(None) => return Ok(Shown::End),
        };
        if shown.is_ok() {
            place.texts += 1;
        }
        Ok(Shown::Text)
    }
    fn next_piped(&self, cpu: Option<usize>, out: &mut dyn Write) -> Result<Shown, TracingError> {
        Self::check(cpu)?;
        self.change(|facts| {
            if facts.events.is_empty() {
                return Ok(Shown::End);
            }
            if out.write_str(&facts.events[0]).is_ok() {
                facts.events.remove(0);
            }
            Ok(Shown::Text)
        })
    }
    fn clear(&self, cpu: Option<usize>) -> Result<(), TracingError> {
        Self::check(cpu)?;
        self.change(|facts| facts.events.clear());
        Ok(())
    }
    fn buffer_kb(&self, cpu: usize) -> Result<u64, TracingError> {
        Self::check(Some(cpu))?;
        Ok(self.facts().kb[cpu])
    }
    fn set_buffer_kb(&self, cpu: Option<usize>, kb: u64) -> Result<(), TracingError> {
        Self::check(cpu)?;
        if kb > MOST_KB {
            return Err(TracingError::NoMemory { kb, most_kb: MOST_KB });
        }
        self.change(|facts| match cpu {
            Some(cpu) => facts.kb[cpu] = kb,
            None => facts.kb.fill(kb),
        });
        Ok(())
    }
    fn stats(&self, cpu: usize) -> Result<CpuStats, TracingError> {
        Self::check(Some(cpu))?;
        Ok(CpuStats {
            entries: 2,
            bytes: 96,
            oldest_ns: 1_500_000,
            now_ns: 2_345_678_000,
            ..CpuStats::default()
        })
    }
    fn has_snapshot(&self) -> bool {
        self.facts().snapshot
    }
    fn snapshot(&self, act: SnapshotAct, cpu: Option<usize>) -> Result<(), TracingError> {
        if cpu.is_some() && act != SnapshotAct::Clear {
            return Err(TracingError::NotSupported);
        }
        self.change(|facts| match act {
            SnapshotAct::Take => facts.snapshot = true,
            SnapshotAct::Free => facts.snapshot = false,
            SnapshotAct::Clear => {}
        });
        Ok(())
    }
    fn mark(&self, text: &[u8]) -> Result<(), TracingError> {
        let text = String::from_utf8_lossy(text);
        self.change(|facts| facts.events.push(std::format!("/* {text} */\n")));
        Ok(())
    }
    fn tasks(&self, each: &mut dyn FnMut(u32, &str)) {
        each(1, "main");
        each(12, "a b");
    }
    fn cpumask(&self) -> u64 {
        self.facts().mask
    }
    fn set_cpumask(&self, mask: u64) -> Result<(), TracingError> {
        self.change(|facts| facts.mask = mask);
        Ok(())
    }
}

/// The words are kept as they are; one that has `bad` in it is refused there.
impl Functions for Mock {
    fn write_words(&self, file: FilterFile, text: &str, mode: Mode) -> Result<(), Refused> {
        if let Some(column) = text.find("bad") {
            return Err(Refused::at(column, Cause::NoSuchCommand));
        }
        self.change(|facts| {
            let words = &mut facts.words[file as usize];
            if mode == Mode::Replace {
                words.clear();
            }
            text.split_ascii_whitespace().for_each(|word| *words += &std::format!("{word}\n"));
        });
        Ok(())
    }
    fn read_words(
        &self,
        file: FilterFile,
        place: &mut Place,
        bytes: &mut [u8],
    ) -> Result<usize, FunctionsError> {
        // A place stands for a byte here: the number of a word that waits.
        use crate::words::place::Position;
        let at = if let Position::Waiting(at) = place.at { at as usize } else { 0 };
        let words = &self.facts().words[file as usize];
        let rest = words.as_bytes().get(at..).unwrap_or(&[]);
        let count = rest.len().min(bytes.len());
        bytes[..count].copy_from_slice(&rest[..count]);
        place.at = Position::Waiting((at + count) as u64);
        Ok(count)
    }
    fn read_list(&self, list: List, place: &mut Place, bytes: &mut [u8]) -> usize {
        if place.is_end() || bytes.is_empty() {
            return 0;
        }
        // The first letter of the list's name.
        bytes[0] = std::format!("{list:?}").as_bytes()[0];
        place.at = crate::words::place::Position::End;
        1
    }
    fn next_command(&self, place: &mut TextPlace, out: &mut dyn Write) -> Shown {
        if place.texts > 0 {
            return Shown::End;
        }
        let _ = out.write_str("f:traceoff:count=3\n");
        place.texts = 1;
        Shown::Text
    }
    fn pids(&self, file: PidFile, each: &mut dyn FnMut(u32)) -> bool {
        let pids = self.facts().pids[file as usize].clone();
        pids.iter().flatten().for_each(|pid| each(*pid));
        pids.is_some()
    }
    fn set_pids(&self, file: PidFile, pids: Option<&[u32]>) -> Result<(), FunctionsError> {
        self.change(|facts| facts.pids[file as usize] = pids.map(<[u32]>::to_vec));
        Ok(())
    }
    fn max_depth(&self) -> u32 {
        self.facts().depth
    }
    fn set_max_depth(&self, depth: u32) {
        self.change(|facts| facts.depth = depth);
    }
    fn thresh_ns(&self) -> u64 {
        self.facts().thresh
    }
    fn set_thresh_ns(&self, ns: u64) {
        self.change(|facts| facts.thresh = ns);
    }
    fn sleep_time(&self) -> bool {
        self.facts().sleep_time
    }
    fn set_sleep_time(&self, on: bool) {
        self.change(|facts| facts.sleep_time = on);
    }
    fn graph_time(&self) -> bool {
        self.facts().graph_time
    }
    fn set_graph_time(&self, on: bool) {
        self.change(|facts| facts.graph_time = on);
    }
    fn set_irqs(&self, _: bool) {}
    fn prepare(&self, _: Tracer) -> Result<(), FunctionsError> {
        Ok(())
    }
    fn profiles(&self) -> bool {
        self.facts().profiles
    }
    fn set_profiles(&self, on: bool) -> Result<(), FunctionsError> {
        self.change(|facts| facts.profiles = on);
        Ok(())
    }
    fn next_profile(
        &self,
        cpu: usize,
        place: &mut TextPlace,
        out: &mut dyn fmt::Write,
    ) -> Result<Shown, FunctionsError> {
        if place.texts == 2 {
            return Ok(Shown::End);
        }
        let _ = out.write_str(&(cpu + place.texts as usize).to_string());
        place.texts += 1;
        Ok(Shown::Text)
    }
}

/// An instance over a mock of its own.
pub(super) struct MockInstance {
    pub(super) mock: Mock,
    /// How often it was made, and how often removed.
    pub(super) made: Mutex<(usize, usize)>,
    pub(super) refuses: bool,
}

impl MockInstance {
    pub(super) fn new(refuses: bool) -> Self {
        Self { mock: Mock::new(), made: Mutex::new((0, 0)), refuses }
    }
}

impl Instance for MockInstance {
    fn tracing(&self) -> &dyn Tracing {
        &self.mock
    }
    fn functions(&self) -> &dyn Functions {
        &self.mock
    }
    fn make(&self) -> Result<(), TracingError> {
        if self.refuses {
            return Err(TracingError::NoMemory { kb: 64, most_kb: 0 });
        }
        self.made.lock().expect("mock").0 += 1;
        Ok(())
    }
    fn remove(&self) {
        self.made.lock().expect("mock").1 += 1;
    }
}
