//! Traces as a kernel would send them: written by its ring buffers and its file writer.

use std::sync::atomic::AtomicU64;

use fgraph::Context;
use fgraph::ring::{Brief, Buffer, Mode, Ring};
use fgraph::wire::Who;
use fgraph::wire::file::{CpuTotals, Function, FunctionFlags, MarkName, Meta, TaskName, Writer};

/// CPUs whose rings are written.
pub(crate) struct Kernel {
    pub(crate) rings: Vec<Ring>,
}

/// What its functions are called.
pub(crate) const NAMES: [&str; 5] = [
    "sys_open",
    "path_lookup",
    "_RNvCs1234_7mycrate3foo",
    "find_inode",
    "_ZN4core3fmt9Formatter3pad17h0123456789abcdefE",
];
impl Kernel {
    pub(crate) fn new(cpus: usize, page_words: usize, pages: usize, mode: Mode) -> Self {
        let rings = (0..cpus).map(|cpu| {
            let words = (0..page_words * pages).map(|_| AtomicU64::new(0)).collect::<Vec<_>>().leak();
            let buffer = Box::leak(Box::new(Buffer::new(cpu as u16, words, page_words, mode).unwrap()));
            let ring = Ring::new();
            ring.swap(Some(buffer)).unwrap();
            ring.on();
            ring
        });
        Self { rings: rings.collect() }
    }

    pub(crate) fn call(&self, cpu: usize, task: u32, func: u32, depth: u32, times: (u64, u64), retval: u64) {
        let who = Who { task, context: Context::Task };
        let (start, end) = times;
        self.rings[cpu].call(&Brief { func, depth, who, start, end, retval: Some(retval) });
    }

    /// The trace, as the kernel would send it.
    pub(crate) fn trace(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut sink = |part: &[u8]| bytes.extend_from_slice(part);
        let mut writer = Writer::new(&mut sink);
        writer.meta(&Meta {
            machine: 62,
            cpus: self.rings.len() as u32,
            ticks_per_second: 1_000_000_000,
            start: 0,
            wall_ns: 0,
            slide: 0,
            kernel: "test",
        });
        for (index, name) in (0..).zip(NAMES) {
            let addr = 0xffff_ffff_8100_0000 + u64::from(index) * 0x40;
            writer.function(&Function { index, addr, name, module: "", flags: FunctionFlags::empty() });
        }
        writer.task(&TaskName { task: 77, comm: *b"door\0\0\0\0\0\0\0\0\0\0\0\0" });
        writer.task(&TaskName { task: 78, comm: *b"gate\0\0\0\0\0\0\0\0\0\0\0\0" });
        writer.mark(&MarkName { id: 5, name: "here" });
        for (cpu, ring) in (0..).zip(&self.rings) {
            let buffer = ring.buffer().unwrap();
            let mut copy = vec![0; buffer.page_len()];
            for sequence in buffer.page_range() {
                let len = buffer.copy_page(sequence, &mut copy).unwrap();
                writer.page(&copy[..len]).unwrap();
            }
            let counts = buffer.counts();
            let pages = buffer.page_range().end;
            writer.totals(&CpuTotals { cpu, records: counts.records, refused: counts.refused, pages });
        }
        writer.finish();
        bytes
    }
}

/// Four calls for each of `rounds`, three of them in the fourth, on four CPUs in turn: 20 ns for each call inside, of which it takes 10.
pub(crate) fn million(rounds: u64) -> Vec<u8> {
    let kernel = Kernel::new(4, 512, 4096, Mode::Overwrite);
    let mut time = 0;
    for n in 0..rounds {
        let (cpu, start) = ((n % 4) as usize, time);
        for leaf in 0..3 {
            kernel.call(cpu, 77 + cpu as u32, 1 + leaf, 1, (time + 10, time + 20), leaf.into());
            time += 20;
        }
        kernel.call(cpu, 77 + cpu as u32, 0, 0, (start, time), 0);
    }
    kernel.trace()
}
