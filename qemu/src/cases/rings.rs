//! Every CPU writes to its ring buffer as fast as it can, with interrupts and NMIs that write on top, while another task reads all of
//! them: each record comes whole and in the order of its writer, and those that are missing are counted.

use alloc::{boxed::Box, vec, vec::Vec};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use fgraph::Context;
use fgraph::ring::{Brief, Buffer, Item, Mode, Reader, Ring};
use fgraph::wire::{Mark, Record, Who};

use super::{CaseResult, Outcome, check, check_eq, load};
use crate::{context, machine, nmi, percpu::MAX_CPUS, sched, smp, start::TICK_HZ};

/// Words of a buffer: small, so that writers overtake the reader often. And of its pages.
const WORDS: usize = 2048;
const PAGE_WORDS: usize = 256;

/// Timer interrupts a second, each of which writes too.
const STORM_HZ: u32 = 1000;

/// Who writes on a CPU: its task, an interrupt, an NMI.
const WRITERS: usize = 3;

static RINGS: [Ring; MAX_CPUS] = [const { Ring::new() }; MAX_CPUS];
/// How many records each writer of each CPU has begun.
static BEGUN: [[AtomicU64; WRITERS]; MAX_CPUS] = [const { [const { AtomicU64::new(0) }; WRITERS] }; MAX_CPUS];
static STOP: AtomicBool = AtomicBool::new(false);

/// Bits of a record's first word that say which record it is; the rest says when.
const NUMBER_BITS: u32 = 40;
const WRITER_BITS: u32 = 4;

/// Writes the next record of a writer; every third is a long one. Preemption is off.
#[unsafe(link_section = ".text.notrace")]
fn write(writer: usize, context: Context) {
    let cpu = machine::per_cpu().cpu;
    let (Some(ring), Some(begun)) = (RINGS.get(cpu), BEGUN.get(cpu).and_then(|begun| begun.get(writer)))
    else {
        return;
    };
    // Nobody else of this CPU counts here.
    let number = begun.load(Relaxed);
    begun.store(number + 1, Relaxed);
    let time = machine::clock_ns();
    let who = Who { task: writer as u32, context };
    let word = sealed(number, writer, time);
    if number.is_multiple_of(3) {
        let data = [word, !word, time, 7, 7, 7];
        ring.record(&Record::Mark(Mark { id: writer as u32, who, time, data: &data, cut: false }));
    } else {
        let (func, depth) = (writer as u32, (number % 30) as u32);
        ring.call(&Brief { func, depth, who, start: time - number % 50, end: time, retval: Some(word) });
    }
}

/// Everything that a record must agree with, in one word.
#[inline(always)]
fn sealed(number: u64, writer: usize, time: u64) -> u64 {
    (time << (NUMBER_BITS + WRITER_BITS)) | (writer as u64) << NUMBER_BITS | number & ((1 << NUMBER_BITS) - 1)
}

#[unsafe(link_section = ".text.notrace")]
fn on_tick() {
    write(1, Context::Irq);
}

#[unsafe(link_section = ".text.notrace")]
fn on_nmi(_frame: &mut machine::TrapFrame) {
    write(2, Context::Nmi);
}

fn write_for_ever(_cpu: usize) {
    while !STOP.load(Relaxed) {
        context::preempt_disable();
        write(0, Context::Task);
        context::preempt_enable();
    }
}

/// What a reader has seen of one CPU.
#[derive(Default)]
struct Seen {
    read: u64,
    lost: u64,
    /// Of each writer, the number after its last record.
    next: [u64; WRITERS],
    /// Records that came in another context than that of a task.
    nested: u64,
}

impl Seen {
    /// Reads what there is for now, at most so many records.
    fn take(&mut self, reader: &mut Reader<'_>, most: usize) -> Result<(), Outcome> {
        for _ in 0..most {
            match reader.next() {
                None => break,
                Some(Item::Lost(count)) => self.lost += count,
                Some(Item::Record(record)) => self.look(&record)?,
            }
        }
        Ok(())
    }

    fn look(&mut self, record: &Record<'_>) -> Result<(), Outcome> {
        let (word, who, time, long) = match *record {
            Record::Mark(mark) => match *mark.data {
                [word, not, at, 7, 7, 7] if not == !word && at == mark.time && !mark.cut => {
                    (word, mark.who, mark.time, true)
                }
                ref data => return Err(alloc::format!("a mark has {data:x?}").into()),
            },
            Record::Call(call) => (call.retval.unwrap_or(0), call.who, call.end, false),
            ref other => return Err(alloc::format!("nobody wrote {other:?}").into()),
        };
        let writer = who.task as usize;
        let number = word & ((1 << NUMBER_BITS) - 1);
        check!(word == sealed(number, writer, time), "{record:?} is not what was written");
        if let Record::Call(call) = record {
            let (depth, took) = ((number % 30) as u32, number % 50);
            check!(
                call.depth == depth && call.end - call.start == took && call.func as usize == writer,
                "{call:?} is not what was written as number {number}"
            );
        }
        check_eq!(long, number.is_multiple_of(3), "the kind of a record");
        let Some(next) = self.next.get_mut(writer) else {
            return Err(alloc::format!("writer {writer}").into());
        };
        check!(number >= *next, "record {number} of writer {writer} comes after {}", *next);
        *next = number + 1;
        self.read += 1;
        self.nested += u64::from(writer != 0);
        Ok(())
    }
}

fn buffers(mode: Mode) -> Result<Vec<&'static Buffer>, Outcome> {
    let mut buffers = Vec::new();
    for (cpu, ring) in RINGS.iter().enumerate().take(smp::count()) {
        let words: Vec<_> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
        let buffer = Buffer::new(cpu as u16, Box::leak(words.into_boxed_slice()), PAGE_WORDS, mode);
        let buffer = Box::leak(Box::new(buffer.map_err(|error| alloc::format!("{error}"))?));
        ring.swap(Some(buffer)).map_err(|error| alloc::format!("{error}"))?;
        buffers.push(&*buffer);
    }
    Ok(buffers)
}

fn storm(mode: Mode) -> CaseResult {
    let buffers = buffers(mode)?;
    BEGUN.as_flattened().iter().for_each(|begun| begun.store(0, Relaxed));
    STOP.store(false, Relaxed);
    smp::cpus(smp::online()).for_each(|cpu| RINGS[cpu].on());
    nmi::set_hook(on_nmi);
    sched::set_tick_hook(Some(on_tick));
    machine::timer_set_hz(STORM_HZ);
    let tasks: Vec<_> =
        (0..buffers.len()).map(|cpu| sched::spawn_on(cpu, "writing", write_for_ever, cpu)).collect();

    let mut seen: Vec<Seen> = buffers.iter().map(|_| Seen::default()).collect();
    let mut rooms = vec![[0; PAGE_WORDS]; buffers.len()];
    let begun = |writer: usize| (0..buffers.len()).map(|cpu| BEGUN[cpu][writer].load(Relaxed)).min();
    let mut read = || {
        // All of them must get through all of it, interrupts too.
        let enough = load::rounds(200_000, 4_000_000);
        for turn in 0_usize.. {
            if begun(0) >= Some(enough) && begun(1) >= Some(enough / 2_000) && begun(2) >= Some(enough / 200)
            {
                break;
            }
            for (cpu, ((buffer, room), seen)) in buffers.iter().zip(&mut rooms).zip(&mut seen).enumerate() {
                machine::send_nmi(cpu);
                let mut reader = buffer.consume(room).map_err(|error| alloc::format!("{error}"))?;
                seen.take(&mut reader, 1 + (turn * 37 + cpu * 11) % 400)?;
            }
            if turn.is_multiple_of(16) {
                sched::yield_now();
            }
        }
        Ok::<(), Outcome>(())
    };
    let result = read();
    STOP.store(true, Relaxed);
    tasks.into_iter().for_each(sched::join);
    sched::set_tick_hook(None);
    nmi::set_hook(|_| {});
    machine::timer_set_hz(TICK_HZ);
    // An interrupt that was under way has come to its end when its CPU answers.
    machine::sync_cores();
    for (cpu, (buffer, seen)) in buffers.iter().zip(&mut seen).enumerate() {
        RINGS[cpu].off();
        if result.is_ok() {
            let mut reader = buffer.consume(&mut rooms[cpu]).map_err(|error| alloc::format!("{error}"))?;
            seen.take(&mut reader, usize::MAX)?;
        }
        RINGS[cpu].swap(None).map_err(|error| alloc::format!("{error}"))?;
    }
    result?;
    for (cpu, (buffer, seen)) in buffers.iter().zip(&seen).enumerate() {
        let begun: u64 = BEGUN[cpu].iter().map(|begun| begun.load(Relaxed)).sum();
        let counts = buffer.counts();
        check_eq!(seen.read + seen.lost, begun, alloc::format!("records of CPU {cpu}, read and lost"));
        check_eq!(counts.records + counts.refused, begun, alloc::format!("records of CPU {cpu}, counted"));
        check!(seen.read > 0 && seen.nested > 0, "of CPU {cpu} {} records were read", seen.read);
        check!(seen.lost > 0, "nothing was lost on CPU {cpu}: this was no storm");
    }
    Ok(())
}

pub fn ring_buffers_lose_nothing_uncounted() -> CaseResult {
    if !machine::nmi_self() {
        return Err(Outcome::Skipped("this machine has no NMI yet"));
    }
    storm(Mode::Overwrite)?;
    storm(Mode::StopWhenFull)
}
