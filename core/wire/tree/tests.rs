//! Lines against what really happened: tasks and interrupts that call, return and switch at random.

use std::string::String;
use std::vec::Vec;

use super::*;
use crate::platform::Context;
use crate::testing::{Random, storm};
use crate::text::{CpuState, NoNames, Options, Printer};

/// A CPU that runs some tasks.
#[derive(Default)]
struct Cpu {
    now: u64,
    /// Each task's calls that have not returned.
    stacks: Vec<Vec<Entry<'static>>>,
    current: usize,
    records: Vec<Record<'static>>,
    /// What happened: an entry or an exit, with the record's number.
    events: Vec<(bool, Call<'static>)>,
    calls: u32,
}

impl Cpu {
    fn who(&self) -> Who {
        Who { task: self.current as u32, context: Context::Task }
    }

    fn enter(&mut self) {
        let depth = self.stacks[self.current].len() as u32;
        let (func, who, time) = (self.calls, self.who(), self.now);
        self.calls += 1;
        let entry = Entry { func, depth, who, time, ret_addr: None, args: &[], cut: false };
        self.stacks[self.current].push(entry);
        self.events.push((true, Call::new(func, depth, who, time, 0)));
    }

    fn leave(&mut self) {
        let who = self.who();
        if let Some(entry) = self.stacks[self.current].pop() {
            let call = Call::new(entry.func, entry.depth, who, entry.time, self.now);
            self.records.push(Record::Call(call));
            self.events.push((false, call));
        }
    }

    /// What the lines must be: (entered, left, function).
    fn lines(&self) -> Vec<(bool, bool, u32)> {
        let mut lines: Vec<(bool, bool, u32)> = Vec::new();
        for (enters, call) in &self.events {
            match lines.last_mut() {
                Some((true, left @ false, func)) if !enters && *func == call.func => *left = true,
                _ => lines.push((*enters, !enters, call.func)),
            }
        }
        lines
    }
}

fn plain(line: &Line) -> (bool, bool, u32) {
    match line {
        Line::Entry(call) => (true, false, call.func),
        Line::Open(entry) => (true, false, entry.func),
        Line::Leaf(call) => (true, true, call.func),
        Line::Exit(call) => (false, true, call.func),
        Line::Mark(_) | Line::Hit(_) | Line::Lost(_) => panic!("none was pushed"),
    }
}

/// Runs tasks; the clock may stand still if there is only one.
fn run(random: &mut Random) -> Cpu {
    let tasks = random.between(1, 3);
    let mut cpu = Cpu { stacks: vec![Vec::new(); tasks], ..Cpu::default() };
    for _ in 0..random.below(200) {
        cpu.now += if tasks == 1 { random.below(2) } else { random.between(1, 5) } as u64;
        match random.below(5) {
            0 => cpu.current = random.below(tasks),
            1 | 2 if cpu.stacks[cpu.current].len() < 20 => cpu.enter(),
            _ => cpu.leave(),
        }
    }
    cpu
}

fn open(cpu: &Cpu, random: &mut Random) -> Vec<Record<'static>> {
    let mut open: Vec<_> = cpu.stacks.iter().flatten().map(|&entry| Record::Entry(entry)).collect();
    if random.one_in(2) {
        open.reverse();
    }
    open
}

#[test]
fn lines_come_in_the_order_in_which_things_happened() {
    storm(1000, 5, |random| {
        let cpu = run(random);
        let mut nodes = [Node::EMPTY; 260];
        let mut tree = Tree::new(&mut nodes);
        for record in cpu.records.iter().chain(&open(&cpu, random)) {
            tree.push(record).unwrap();
        }
        let lines: Vec<_> = tree.lines().map(|line| plain(&line)).collect();
        assert_eq!(lines, cpu.lines());
        assert!(tree.is_empty());
    });
}

#[test]
fn what_is_lost_takes_only_its_own_lines() {
    storm(600, 3, |random| {
        let cpu = run(random);
        // Where the clock stands still, only the depth tells what was inside, and that needs whole calls.
        let anywhere = cpu.stacks.len() > 1 && random.one_in(2);
        let first = random.below(cpu.records.len() + 1);
        let lost: Vec<_> =
            (0..cpu.records.len()).filter(|&i| if anywhere { random.one_in(3) } else { i < first }).collect();
        let mut want = Cpu { events: cpu.events.clone(), ..Cpu::default() };
        let mut records = Vec::new();
        for (i, record) in cpu.records.iter().enumerate() {
            match record {
                Record::Call(call) if lost.contains(&i) => {
                    want.events.retain(|(_, other)| other.func != call.func)
                }
                record => records.push(*record),
            }
        }
        records.extend(open(&cpu, random));
        let mut nodes = [Node::EMPTY; 260];
        let mut tree = Tree::new(&mut nodes);
        records.iter().for_each(|record| tree.push(record).unwrap());
        let lines: Vec<_> = tree.lines().map(|line| plain(&line)).collect();
        assert_eq!(lines, want.lines());
    });
}

#[test]
fn little_memory_costs_openings_and_nothing_else() {
    storm(300, 3, |random| {
        let cpu = run(random);
        let mut nodes = vec![Node::EMPTY; random.between(1, 20)];
        let room = nodes.len();
        let mut tree = Tree::new(&mut nodes);
        let mut lines = Vec::new();
        for record in &cpu.records {
            if let Err(full) = tree.push(record) {
                assert_eq!((full, tree.len()), (Full { room }, room));
                lines.extend(tree.lines());
                tree.push(record).unwrap();
            }
        }
        lines.extend(tree.lines());
        // All that ended ends, and what is shown comes in the order in which it happened.
        let mut happened = cpu.events.iter().map(|(enters, call)| (*enters, call.func));
        let mut ended = 0;
        for (enters, leaves, func) in lines.iter().map(plain) {
            ended += usize::from(leaves);
            for event in [(true, func), (false, func)] {
                let shown = if event.0 { enters } else { leaves };
                assert!(!shown || happened.any(|other| other == event), "{event:?} comes out of turn");
            }
        }
        assert_eq!(ended, cpu.records.len());
    });
}

struct Plain;

impl Key for Plain {
    fn addr(&self, func: u32) -> usize {
        func as usize * 16
    }
    fn task(&self, number: u32) -> Task {
        Task::new(number, "t")
    }
}

#[test]
fn the_text_of_a_small_trace() {
    let who = Who { task: 7, context: Context::Task };
    let call = |func, depth, start, end| Record::Call(Call::new(func, depth, who, start, end));
    let other = Who { task: 8, context: Context::Task };
    let records = [
        call(3, 2, 1100, 1842),
        Record::Mark(Mark { id: 5, who, time: 1900, data: &[1], cut: false }),
        call(2, 1, 1050, 2000),
        Record::Call(Call::new(9, 0, other, 2500, 2600)),
        call(4, 1, 2200, 3000),
        call(1, 0, 1000, 14_000),
        Record::Unknown(&[7]),
        Record::Entry(Entry { func: 6, depth: 0, who, time: 15_000, ret_addr: None, args: &[], cut: false }),
    ];
    let mut nodes = [Node::EMPTY; 16];
    let mut tree = Tree::new(&mut nodes);
    tree.push_lost(40).unwrap();
    for record in &records {
        tree.push(record).unwrap();
    }
    let lines: Vec<_> = tree.lines().collect();
    let mut rooms = vec![ExtraRoom::NEW; lines.len()];
    let events = lines.iter().zip(&mut rooms).flat_map(|(line, room)| line.events(0, &Plain, &[], room));
    let events: Vec<_> = events.flatten().collect();
    let (mut states, mut text) = ([CpuState::NEW], String::new());
    let mut printer = Printer::new(Options::default(), &mut states);
    for (i, event) in events.iter().enumerate() {
        printer.event(event, events.get(i + 1), &NoNames, &mut text).unwrap();
    }
    let shown: Vec<_> = text.lines().filter(|line| line.contains(['|', 'L'])).collect();
    assert_eq!(
        shown,
        [
            "CPU:0 [LOST 40 EVENTS]",
            " 0)               |  0x10() {",
            " 0)               |    0x20() {",
            " 0)   0.742 us    |      0x30();",
            " 0)               |      /*  */",
            " 0)   0.950 us    |    }",
            " 0)               |    0x40() {",
            " 0)   0.100 us    |  0x90();",
            " 0)   0.800 us    |    }",
            " 0) + 13.000 us   |  } /* 0x10 */",
            " 0)               |  0x60() {",
        ]
    );
}

/// Function, arguments, and what was returned in memory, of each call; words of which there are not enough are left out with all others
/// of their call.
fn shown(calls: &[Call<'_>], words: usize) -> Vec<(usize, Vec<usize>, Vec<u8>)> {
    let (mut nodes, mut words) = ([Node::EMPTY; 8], vec![0; words]);
    let mut tree = Tree::new(&mut nodes).with_words(&mut words);
    for call in calls {
        tree.push(&Record::Call(*call)).unwrap();
    }
    tree.close();
    let mut shown = Vec::new();
    while let Some((line, extra)) = tree.next_line() {
        let mut room = ExtraRoom::NEW;
        let [Some(entry), Some(back)] = line.events(0, &Plain, tree.extra(extra), &mut room) else {
            panic!("{line:?} is no leaf");
        };
        let (Kind::Entry { func, args, .. }, Kind::Return { retval: Some(retval), .. }) =
            (entry.kind, back.kind)
        else {
            panic!("{line:?}");
        };
        shown.push((func / 16, args.to_vec(), retval.memory.to_vec()));
    }
    shown
}

#[test]
fn what_was_returned_in_memory_stands_behind_the_arguments() {
    let args: Vec<u64> = (1..=MAX_ARGS as u64).collect();
    let memory: Vec<u64> = (0..MAX_MEMORY as u64 / 8).map(|n| n << 56 | 0x11).collect();
    let bytes: Vec<u8> = memory.iter().flat_map(|word| word.to_le_bytes()).collect();
    let calls: Vec<Call<'_>> = [(0, 0), (2, 0), (0, 9), (8, 64), (1, 8)]
        .into_iter()
        .zip(0..)
        .map(|((arg_count, len), func)| {
            let mut call = Call::new(func, 0, Who::NOBODY, func.into(), func.into());
            call.retval = Some(5);
            call.args = &args[..arg_count];
            (call.memory, call.memory_len) = (&memory[..usize::div_ceil(len, 8)], len as u8);
            call
        })
        .collect();
    for words in 0..40 {
        let mut room = words;
        for ((call, (func, args, memory)), n) in calls.iter().zip(shown(&calls, words)).zip(0..) {
            assert_eq!((func, n), (n, call.func as usize));
            let needed = call.args.len() + call.memory.len();
            let fits = needed <= room;
            room -= if fits { needed } else { 0 };
            let wanted: Vec<usize> = call.args.iter().map(|arg| *arg as usize).collect();
            assert_eq!(args, if fits { wanted } else { vec![] }, "{n} of {words}");
            assert_eq!(memory, bytes[..if fits { call.memory_len.into() } else { 0 }], "{n} of {words}");
        }
    }
}
