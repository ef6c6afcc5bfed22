//! The memory of the trace: a ring buffer for each CPU, and reading all of them together.

use alloc::{boxed::Box, vec, vec::Vec};
use core::sync::atomic::AtomicU64;

use fgraph::ring::{Buffer, Mode};
use fgraph::text::Task;
use fgraph::trace::{Part, PartMemory, Reading, Trace};
use fgraph::tracer;
use fgraph::wire::tree::{self, Node};

use crate::{machine, percpu::MAX_CPUS, tracing};

/// Words of a page of a buffer: 4 KiB.
pub const PAGE_WORDS: usize = 512;

/// Records of a CPU that are put in order together, at most. A call with more inside of it is shown without its opening.
const NODES: u64 = 16 * 1024;

/// Nodes beyond the records that are there: losses, and what is recorded meanwhile.
const SPARE_NODES: u64 = 64;

/// Words for what records have beside themselves, of those.
const EXTRA_WORDS: usize = 4096;

/// Gives each CPU a buffer of so many KiB, a power of two. Memory of buffers is never freed.
pub fn make(kb: usize) {
    for cpu in 0..MAX_CPUS {
        let words: Vec<AtomicU64> = (0..kb * 128).map(|_| AtomicU64::new(0)).collect();
        let buffer =
            Buffer::new(cpu as u16, Box::leak(words.into_boxed_slice()), PAGE_WORDS, Mode::Overwrite);
        let Ok(buffer) = buffer else { continue };
        if let Some(ring) = tracer::ring(cpu) {
            // A new buffer is nobody else's.
            let _ = ring.swap(Some(Box::leak(Box::new(buffer))));
        }
    }
}

/// Lets records be written, or not.
pub fn switch(on: bool) {
    for ring in (0..MAX_CPUS).filter_map(tracer::ring) {
        if on { ring.on() } else { ring.off() }
    }
}

/// The buffers that are recorded into.
pub fn all() -> impl Iterator<Item = &'static Buffer> {
    (0..MAX_CPUS).filter_map(|cpu| tracer::ring(cpu)?.buffer())
}

/// Lets `with` read what is recorded, from the beginning of what is there.
pub fn with_trace(reading: Reading, with: impl FnOnce(&mut Trace<'_, '_>)) {
    let mut memory: Vec<_> = all()
        .map(|buffer| {
            let nodes = vec![Node::EMPTY; (buffer.counts().records + SPARE_NODES).min(NODES) as usize];
            (buffer, vec![0; PAGE_WORDS], nodes, vec![0; EXTRA_WORDS])
        })
        .collect();
    let mut parts: Vec<Part<'_>> = memory
        .iter_mut()
        .filter_map(|(buffer, page, nodes, words)| {
            Part::new(buffer, reading, PartMemory { page, nodes, words }).ok()
        })
        .collect();
    with(&mut Trace::new(&mut parts));
}

/// What numbers in records mean in this kernel.
pub struct Key;

impl tree::Key for Key {
    fn addr(&self, func: u32) -> usize {
        tracer::numbered_function(func).map_or(func as usize, |func| func.get())
    }

    fn task(&self, number: u32) -> Task {
        tracing::task_of(number)
    }

    fn time_ns(&self, time: u64) -> u64 {
        machine::ns_of(time)
    }
}
