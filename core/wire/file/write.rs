//! Writing a trace. Task context: the sink may take its time, and nothing waits for it.

use super::{
    CRC_32, CpuTotals, End, FileError, Function, FunctionFlags, Head, Kind, MAX_NAME, MAX_PAYLOAD, MarkName,
    Meta, TaskName,
};

/// Bytes of small things that are collected for a chunk.
const ROOM: usize = 1024;
const _: () = assert!(ROOM >= 40 + MAX_NAME && ROOM.is_multiple_of(8));

/// Writes a trace to a sink, in the order of the calls: [`meta`](Self::meta) first, and [`finish`](Self::finish) at the end.
///
/// The sink takes all bytes it is given; one that can fail keeps that to itself, and is asked by its owner afterwards. It is given
/// whole chunks, in pieces of at most 1 KiB. The writer has 1 KiB of its own: where stacks are short, keep it elsewhere.
pub struct Writer<'s> {
    sink: &'s mut dyn FnMut(&[u8]),
    /// What `room` holds, as far as `used` says.
    kind: Kind,
    used: usize,
    room: [u8; ROOM],
    chunks: u64,
    pages: u64,
    bytes: u64,
}

impl core::fmt::Debug for Writer<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut f = f.debug_struct("Writer");
        f.field("chunks", &self.chunks).field("pages", &self.pages).field("bytes", &self.bytes);
        f.finish_non_exhaustive()
    }
}

/// As much of a name as fits, cut between characters.
fn cut(name: &str, len: usize) -> &str {
    let mut len = len.min(name.len());
    loop {
        // At byte 0 there is a boundary.
        if let Some(cut) = name.get(..len) {
            return cut;
        }
        len -= 1;
    }
}

impl<'s> Writer<'s> {
    /// A writer that has written nothing.
    pub fn new(sink: &'s mut dyn FnMut(&[u8])) -> Self {
        Self { sink, kind: Kind::Meta, used: 0, room: [0; ROOM], chunks: 0, pages: 0, bytes: 0 }
    }

    /// Says what the trace is about.
    pub fn meta(&mut self, meta: &Meta<'_>) {
        let kernel = cut(meta.kernel, MAX_NAME);
        self.item(
            Kind::Meta,
            &[
                &meta.machine.to_le_bytes(),
                &(kernel.len() as u16).to_le_bytes(),
                &meta.cpus.to_le_bytes(),
                &meta.ticks_per_second.to_le_bytes(),
                &meta.start.to_le_bytes(),
                &meta.wall_ns.to_le_bytes(),
                &meta.slide.to_le_bytes(),
                kernel.as_bytes(),
            ],
        );
        self.flush();
    }

    /// Names a function. Any order; what is not named is shown by its number.
    pub fn function(&mut self, function: &Function<'_>) {
        let module = cut(function.module, u8::MAX.into());
        let name = cut(function.name, MAX_NAME - module.len());
        let mut flags = function.flags;
        flags.set(FunctionFlags::CUT, flags.contains(FunctionFlags::CUT) || name.len() < function.name.len());
        self.item(
            Kind::Functions,
            &[
                &function.addr.to_le_bytes(),
                &function.index.to_le_bytes(),
                &(name.len() as u16).to_le_bytes(),
                &[module.len() as u8, flags.bits()],
                name.as_bytes(),
                module.as_bytes(),
            ],
        );
    }

    /// Names a task.
    pub fn task(&mut self, task: &TaskName) {
        self.item(Kind::Tasks, &[&task.task.to_le_bytes(), &task.comm]);
    }

    /// Names a mark.
    pub fn mark(&mut self, mark: &MarkName<'_>) {
        let name = cut(mark.name, MAX_NAME);
        let len = (name.len() as u16).to_le_bytes();
        self.item(Kind::Marks, &[&mark.id.to_le_bytes(), &len, &[0; 2], name.as_bytes()]);
    }

    /// Says what went into a CPU's buffer, when it is not written any more: so that what is missing at its end is known.
    pub fn totals(&mut self, totals: &CpuTotals) {
        self.item(
            Kind::Totals,
            &[
                &totals.cpu.to_le_bytes(),
                &[0; 4],
                &totals.records.to_le_bytes(),
                &totals.refused.to_le_bytes(),
                &totals.pages.to_le_bytes(),
            ],
        );
    }

    /// Writes a page, as [`copy_page`](crate::ring::Buffer::copy_page) gave it. A page that is still being written may be written again
    /// later, when there is more in it.
    pub fn page(&mut self, words: &[u64]) -> Result<(), FileError> {
        if words.len() > MAX_PAYLOAD / 8 {
            return Err(FileError::Page(words.len()));
        }
        self.flush();
        let mut sum = CRC_32.digest();
        words.iter().for_each(|word| sum.update(&word.to_le_bytes()));
        self.head(Kind::Page, words.len() * 8, sum.finalize());
        for part in words.chunks(ROOM / 8) {
            let (room, _) = self.room.as_chunks_mut::<8>();
            for (bytes, word) in room.iter_mut().zip(part) {
                *bytes = word.to_le_bytes();
            }
            self.give(part.len() * 8);
        }
        self.pages += 1;
        Ok(())
    }

    /// Writes the end, without which a reader takes the trace for cut off.
    pub fn finish(mut self) -> End {
        self.flush();
        let end = End { chunks: self.chunks, pages: self.pages, bytes: self.bytes };
        let End { chunks, pages, bytes } = end;
        self.item(Kind::End, &[&chunks.to_le_bytes(), &pages.to_le_bytes(), &bytes.to_le_bytes()]);
        self.flush();
        end
    }

    /// Writes what has been collected. Before a long pause; everything else does it by itself.
    pub fn flush(&mut self) {
        if self.used == 0 {
            return;
        }
        let len = self.used;
        let sum = super::checksum(self.room.get(..len).unwrap_or(&[]));
        self.head(self.kind, len, sum);
        let padded = len.next_multiple_of(8).min(ROOM);
        for byte in self.room.iter_mut().take(padded).skip(len) {
            *byte = 0;
        }
        self.give(padded);
        self.used = 0;
    }

    /// Collects the parts of something that is written as one. They fit into `room` together, since names are cut.
    fn item(&mut self, kind: Kind, parts: &[&[u8]]) {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if kind != self.kind || self.used + len > ROOM {
            self.flush();
        }
        self.kind = kind;
        let bytes = parts.iter().flat_map(|part| part.iter());
        for (byte, value) in self.room.iter_mut().skip(self.used).zip(bytes) {
            *byte = *value;
        }
        self.used = (self.used + len).min(ROOM);
    }

    fn head(&mut self, kind: Kind, len: usize, checksum: u32) {
        let head = Head { kind, len: len as u32, number: self.chunks as u32, checksum };
        (self.sink)(&head.encode());
        self.bytes += super::HEAD_LEN as u64;
        self.chunks += 1;
    }

    fn give(&mut self, len: usize) {
        (self.sink)(self.room.get(..len).unwrap_or(&self.room));
        self.bytes += len as u64;
    }
}
