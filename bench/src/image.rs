//! An image of any number of functions: their text, their sites, and names like those of a kernel with some Rust in it.

use std::ops::Range;

use fgraph::FuncAddr;
use fgraph::select::FunctionTable;

use crate::text::BASE;

/// Bytes from one function to the next.
const STRIDE: usize = 16;

/// `endbr64`, a sled as rustc leaves it for `-Zpatchable-function-entry=5`, and `ret`.
const FUNCTION: [u8; STRIDE] =
    [0xf3, 0x0f, 0x1e, 0xfa, 0x0f, 0x1f, 0x44, 0x00, 0x08, 0xc3, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc];

/// Where the sled is.
const SLED: usize = 4;

const PARTS: [&[&str]; 3] = [
    &[
        "vfs", "ext4", "tcp", "udp", "sched", "mm", "blk", "irq", "dev", "rcu", "net", "xfs", "btrfs", "usb",
        "pci",
    ],
    &["inode", "page", "task", "queue", "buffer", "entry", "group", "lock", "state", "list", "tree", "slot"],
    &["read", "write", "alloc", "free", "init", "exit", "lookup", "insert", "remove", "update", "get", "put"],
];

/// The image.
pub(crate) struct Image {
    count: usize,
    names: String,
    /// Where each name ends.
    ends: Vec<usize>,
}

impl Image {
    /// An image of `count` functions that can be traced.
    pub(crate) fn new(count: usize) -> Self {
        let mut names = String::new();
        let mut ends = Vec::new();
        for index in 0..count {
            // Neighbours differ, as in an image whose functions were sorted by nothing.
            let mixed = index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
            let part = |which: usize| PARTS[which][(mixed >> (8 * which)) % PARTS[which].len()];
            let (first, second, third) = (part(0), part(1), part(2));
            if index % 8 == 0 {
                let last = format!("{third}_{index}");
                let path = [first, second, &last].map(|part| format!("{}{part}", part.len())).concat();
                names.push_str(&format!("_ZN{path}17h0123456789abcdefE"));
            } else {
                names.push_str(&format!("{first}_{second}_{third}_{index}"));
            }
            ends.push(names.len());
        }
        Self { count, names, ends }
    }

    /// Its text: the functions, and behind them one that must not be traced.
    pub(crate) fn text(&self) -> Vec<u8> {
        FUNCTION.repeat(self.count + 1)
    }

    pub(crate) fn text_range(&self) -> Range<usize> {
        BASE..BASE + STRIDE * (self.count + 1)
    }

    pub(crate) fn notrace(&self) -> Range<usize> {
        BASE + STRIDE * self.count..self.text_range().end
    }

    /// The compiler's table, in order.
    pub(crate) fn entries(&self) -> Vec<usize> {
        (0..self.count).map(|index| BASE + STRIDE * index + SLED).collect()
    }

    /// The compiler's table, in no order.
    pub(crate) fn shuffled_entries(&self) -> Vec<usize> {
        let mut entries = self.entries();
        let mut seed = 1usize;
        for last in (1..entries.len()).rev() {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            entries.swap(last, (seed >> 33) % (last + 1));
        }
        entries
    }
}

impl FunctionTable for Image {
    fn len(&self) -> usize {
        self.count
    }

    fn raw_name(&self, index: usize) -> &str {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.names[start..self.ends[index]]
    }

    fn module(&self, _index: usize) -> Option<&str> {
        None
    }

    fn file(&self, _index: usize) -> Option<&str> {
        None
    }

    fn addr(&self, index: usize) -> FuncAddr {
        FuncAddr::new(BASE + STRIDE * index)
    }
}
