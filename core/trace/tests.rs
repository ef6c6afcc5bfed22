//! Traces of several CPUs, batch by batch, against those of one tree for each.

use std::string::String;
use std::vec::Vec;

use super::*;
use crate::platform::Context;
use crate::ring::{Mode, Ring};
use crate::sync::AtomicU64;
use crate::testing::{Random, keep, keep_all, storm};
use crate::text::{CpuState, Kind, NoNames, Options, Task};
use crate::wire::{Call, Hit, Mark, Record, Who};

pub(super) struct Plain;

impl Key for Plain {
    fn addr(&self, func: u32) -> usize {
        func as usize
    }
    fn task(&self, number: u32) -> Task {
        Task::new(number, "t")
    }
    fn time_ns(&self, time: u64) -> u64 {
        time * 2
    }
}

pub(super) fn buffer(cpu: u16, words: usize) -> (&'static Ring, &'static Buffer) {
    let words = keep_all((0..words).map(|_| AtomicU64::new(0)).collect::<Vec<_>>());
    let buffer = Buffer::new(cpu, words, Buffer::MIN_PAGE_WORDS, Mode::Overwrite).expect("it fits");
    let (ring, buffer): (&Ring, &Buffer) = (keep(Ring::new()), keep(buffer));
    ring.swap(Some(buffer)).expect("it is new");
    ring.on();
    (ring, buffer)
}

struct Memory {
    page: Vec<u64>,
    nodes: Vec<Node>,
    words: Vec<u64>,
}

impl Memory {
    fn new(nodes: usize) -> Self {
        Self { page: vec![0; 1024], nodes: vec![Node::EMPTY; nodes], words: vec![0; 256] }
    }
    fn lend(&mut self) -> PartMemory<'_> {
        PartMemory { page: &mut self.page, nodes: &mut self.nodes, words: &mut self.words }
    }
}

pub(super) const WHO: Who = Who { task: 1, context: Context::Task };

#[test]
fn cpus_come_in_the_order_of_time_and_nothing_is_missing() {
    storm(200, 3, |random: &mut Random| {
        let cpus: Vec<_> = (0..3).map(|cpu| buffer(cpu, 4096)).collect();
        let mut want = Vec::new();
        let mut time = 0;
        for number in 0..random.below(300) as u32 {
            time += random.between(1, 9) as u64;
            let cpu = random.below(3);
            let hit = Hit { func: number, who: WHO, time, parent_ip: 7 };
            assert!(cpus[cpu].0.record(&Record::Hit(hit)));
            want.push((cpu as u32, number as usize, time * 2));
        }
        let nodes = random.between(1, 20);
        let mut memory: Vec<_> = (0..3).map(|_| Memory::new(nodes)).collect();
        // What is consumed can still be looked at.
        for reading in [Reading::Peek, Reading::Consume, Reading::Peek] {
            let lent = memory.iter_mut().map(Memory::lend);
            let mut parts: Vec<_> = cpus
                .iter()
                .zip(lent)
                .map(|((_, b), memory)| Part::new(b, reading, memory).unwrap())
                .collect();
            let mut trace = Trace::new(&mut parts);
            let mut seen = Vec::new();
            let mut refuse = false;
            let mut each = |event: &Event<'_>, _: Option<&Event<'_>>| {
                refuse = !refuse;
                if refuse {
                    return Err(());
                }
                let Kind::Hit { func, .. } = event.kind else { panic!("{event:?}") };
                seen.push((event.cpu, func, event.time_ns));
                Ok(())
            };
            while trace.next(&Plain, &mut each).is_some() {}
            assert_eq!(seen, want, "{reading:?}");
        }
    });
}

#[test]
fn a_call_its_arguments_and_a_mark_are_printed() {
    let (ring, buffer) = buffer(0, 1024);
    let inner = Call { args: &[3, 4], retval: Some(9), ..Call::new(2, 1, WHO, 510, 550) };
    assert!(ring.record(&Record::Call(inner)));
    let data = [u64::from_le_bytes(*b"hello wo"), u64::from_le_bytes(*b"rld\0\0\0\0\0")];
    assert!(ring.record(&Record::Mark(Mark { id: 0, who: WHO, time: 560, data: &data, cut: false })));
    let outer = Call { retval: Some(0), ..Call::new(1, 0, WHO, 500, 600) };
    assert!(ring.record(&Record::Call(outer)));
    let mut memory = Memory::new(8);
    let mut parts = [Part::new(buffer, Reading::Peek, memory.lend()).unwrap()];
    let mut states = [CpuState::NEW];
    let mut printer = Printer::new(Options::default() | Options::RETVAL | Options::ARGS, &mut states);
    let mut text = String::new();
    Trace::new(&mut parts).print(&mut printer, &Plain, &NoNames, &mut text).unwrap();
    let lines: Vec<_> = text.lines().filter(|line| line.starts_with(' ')).collect();
    assert_eq!(
        lines,
        [
            " 0)               |  0x1() {",
            " 0)   0.080 us    |    0x2(0x3, 0x4); /* ret=0x9 */",
            " 0)               |  /* hello world */",
            " 0)   0.200 us    |  } /* 0x1 ret=0x0 */",
        ]
    );
}

#[test]
fn a_value_that_was_not_recorded_is_not_shown() {
    let (ring, buffer) = buffer(0, 1024);
    assert!(ring.record(&Record::Call(Call::new(2, 1, WHO, 510, 550))));
    assert!(ring.record(&Record::Call(Call::new(1, 0, WHO, 500, 600))));
    let mut memory = Memory::new(8);
    let mut parts = [Part::new(buffer, Reading::Peek, memory.lend()).unwrap()];
    let mut states = [CpuState::NEW];
    let mut printer = Printer::new(Options::default() | Options::RETVAL, &mut states);
    let mut text = String::new();
    Trace::new(&mut parts).print(&mut printer, &Plain, &NoNames, &mut text).unwrap();
    assert!(text.contains("0x2();") && !text.contains("ret="), "{text}");
}

#[test]
fn a_refused_page_and_a_second_consumer_are_told() {
    let (_, buffer) = buffer(0, 1024);
    let (mut memory, mut other) = (Memory::new(1), Memory::new(1));
    let mut small = memory.lend();
    small.page = &mut small.page[..3];
    assert_eq!(Part::new(buffer, Reading::Peek, small).unwrap_err(), RingError::Room(3));
    let first = buffer.consume(&mut memory.page).unwrap();
    assert_eq!(Part::new(buffer, Reading::Consume, other.lend()).unwrap_err(), RingError::Consumed);
    drop(first);
    assert!(Part::new(buffer, Reading::Consume, other.lend()).is_ok());
}

#[test]
fn a_part_begins_anew_and_leaves_out_what_was_consumed() {
    let (ring, first) = buffer(0, 1024);
    let (mut memory, mut other, mut states) = (Memory::new(4), Memory::new(4), [CpuState::NEW]);
    let mut shown = |part: &mut Part<'_>| {
        let (mut printer, mut text) = (Printer::new(Options::default(), &mut states), String::new());
        let mut trace = Trace::new(core::slice::from_mut(part));
        trace.print(&mut printer, &Plain, &NoNames, &mut text).unwrap();
        text
    };
    assert!(ring.record(&Record::Call(Call::new(1, 0, WHO, 10, 20))));
    let mut part = Part::new(first, Reading::PeekRest, memory.lend()).unwrap();
    let mut pipe = Part::new(first, Reading::Consume, other.lend()).unwrap();
    assert!(shown(&mut part).contains("0x1();"));
    assert_eq!(shown(&mut part), "");
    part.start(first, Reading::PeekRest).unwrap();
    assert!(shown(&mut part).contains("0x1();"));
    assert!(shown(&mut pipe).contains("0x1();"));
    part.start(first, Reading::PeekRest).unwrap();
    assert_eq!(shown(&mut part), "");
    part.start(first, Reading::Peek).unwrap();
    assert!(shown(&mut part).contains("0x1();"));
    part.stop();
    assert_eq!((part.is_idle(), shown(&mut part)), (true, String::new()));
}
