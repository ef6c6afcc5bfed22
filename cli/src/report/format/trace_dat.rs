//! trace-cmd's trace.dat, version 6, which `trace-cmd report` and KernelShark open. The format is that of trace-cmd.dat.v6(5).
//!
//! A CPU's data is one piece of the file whose size stands before it, so it is kept in a file of its own until the end.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};

use super::super::event::{Call, Caller, Event, What};
use super::super::names::Names;
use super::Format;

const PAGE: usize = 4096;
const PAGE_HEAD: usize = 16;
/// Events, by the numbers that Linux gives them.
const FUNCTION: u16 = 1;
const PRINT: u16 = 5;
const ENTRY: u16 = 11;
const EXIT: u16 = 10;
/// Events of a page were lost before it; and how many stands behind them.
const MISSED: u64 = 1 << 31;
const MISSED_COUNT: u64 = 1 << 30;
const DELTA_BITS: u32 = 27;
const TIME_EXTEND: u32 = 30;

/// One CPU's pages.
struct Cpu {
    file: BufWriter<File>,
    bytes: u64,
    page: Vec<u8>,
    page_time: u64,
    time: u64,
    missed: u64,
}

impl Cpu {
    fn new() -> io::Result<Self> {
        let file = BufWriter::new(tempfile::tempfile()?);
        Ok(Self { file, bytes: 0, page: Vec::new(), page_time: 0, time: 0, missed: 0 })
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.page.is_empty() {
            return Ok(());
        }
        let mut commit = self.page.len() as u64;
        if self.missed > 0 {
            commit |= MISSED;
            if self.page.len() + 8 <= PAGE - PAGE_HEAD {
                commit |= MISSED_COUNT;
                self.page.extend(self.missed.to_le_bytes());
            }
        }
        self.page.resize(PAGE - PAGE_HEAD, 0);
        self.file.write_all(&self.page_time.to_le_bytes())?;
        self.file.write_all(&commit.to_le_bytes())?;
        self.file.write_all(&self.page)?;
        self.bytes += PAGE as u64;
        self.page.clear();
        self.missed = 0;
        Ok(())
    }

    /// Adds an event. `data` is shorter than a page by far.
    fn push(&mut self, time: u64, data: &[u8]) -> io::Result<()> {
        let len = data.len().next_multiple_of(4);
        // The head, and a time that does not fit, and a length that does not fit.
        if self.page.len() + len + 16 > PAGE - PAGE_HEAD {
            self.flush()?;
        }
        // Times of a page never go back.
        let time = time.max(self.time);
        if self.page.is_empty() {
            self.page_time = time;
            self.time = time;
        }
        let mut delta = time - self.time;
        self.time = time;
        if delta >> DELTA_BITS != 0 {
            let low = (delta as u32) & ((1 << DELTA_BITS) - 1);
            self.page.extend((TIME_EXTEND | low << 5).to_le_bytes());
            self.page.extend(((delta >> DELTA_BITS) as u32).to_le_bytes());
            delta = 0;
        }
        let words = len as u32 / 4;
        if words <= 28 {
            self.page.extend((words | (delta as u32) << 5).to_le_bytes());
        } else {
            self.page.extend(((delta as u32) << 5).to_le_bytes());
            self.page.extend((len as u32 + 4).to_le_bytes());
        }
        self.page.extend(data);
        self.page.resize(self.page.len() + len - data.len(), 0);
        Ok(())
    }
}

/// Writes the file at the end.
pub(in super::super) struct TraceDat<W> {
    out: W,
    cpus: BTreeMap<u32, Cpu>,
    tasks: BTreeSet<u32>,
    cpu_count: u32,
    /// If any call said what it returned: otherwise the file has no field for that, as those of kernels that do not record it.
    has_retvals: bool,
}

/// A field of an event: its type and name, where it is, how long.
type Field = (&'static str, usize, usize, bool);

const COMMON: [Field; 4] = [
    ("unsigned short common_type", 0, 2, false),
    ("unsigned char common_flags", 2, 1, false),
    ("unsigned char common_preempt_count", 3, 1, false),
    ("int common_pid", 4, 4, true),
];

fn description(name: &str, id: u16, fields: &[Field], print: &str) -> String {
    let mut text = format!("name: {name}\nID: {id}\nformat:\n");
    let field = |(name, offset, size, signed): &Field| {
        format!("\tfield:{name};\toffset:{offset};\tsize:{size};\tsigned:{};\n", u8::from(*signed))
    };
    COMMON.iter().for_each(|one| text += &field(one));
    text += "\n";
    fields.iter().for_each(|one| text += &field(one));
    text + "\nprint fmt: " + print + "\n"
}

impl<W: Write> TraceDat<W> {
    pub(in super::super) fn new(out: W, cpu_count: u32) -> Self {
        Self { out, cpus: BTreeMap::new(), tasks: BTreeSet::new(), cpu_count, has_retvals: false }
    }

    fn cpu(&mut self, cpu: u32) -> io::Result<&mut Cpu> {
        use std::collections::btree_map::Entry;
        Ok(match self.cpus.entry(cpu) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(free) => free.insert(Cpu::new()?),
        })
    }
}

/// The address that a function has, or is given for want of one.
fn addr(func: u32, names: &Names) -> u64 {
    let known = names.get(func).map_or(0, |function| function.addr);
    if known == 0 { 0xffff_ffff_8000_0000 + u64::from(func) * 16 } else { known }
}

fn common(kind: u16, task: u32) -> Vec<u8> {
    let mut data = Vec::from(kind.to_le_bytes());
    data.extend([0; 2]);
    data.extend(task.to_le_bytes());
    data
}

fn enter(call: &Call, task: u32, names: &Names) -> Vec<u8> {
    let mut data = common(ENTRY, task);
    data.extend(addr(call.func, names).to_le_bytes());
    data.extend(call.depth.to_le_bytes());
    data
}

fn leave(call: &Call, end: u64, task: u32, names: &Names) -> Vec<u8> {
    let mut data = common(EXIT, task);
    data.extend(addr(call.func, names).to_le_bytes());
    for word in [call.retval.unwrap_or(0), call.start, end] {
        data.extend(word.to_le_bytes());
    }
    data.extend(call.overrun.to_le_bytes());
    data.extend(call.depth.to_le_bytes());
    data
}

impl<W: Write> Format for TraceDat<W> {
    fn event(&mut self, event: &Event, names: &Names) -> io::Result<()> {
        let task = event.task;
        if !matches!(event.what, What::Lost(_)) {
            self.tasks.insert(task);
        }
        self.has_retvals |= event.call().is_some_and(|call| call.retval.is_some());
        let note = |text: &str| {
            let mut data = common(PRINT, task);
            data.extend(0_u64.to_le_bytes());
            let mut end = text.len().min(1000);
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            data.extend(text.as_bytes().get(..end).unwrap_or(&[]));
            data.extend(b"\n\0");
            data
        };
        let cpu = self.cpu(event.cpu)?;
        match &event.what {
            What::Enter(call) => cpu.push(event.time, &enter(call, task, names)),
            What::Leave(call) => cpu.push(event.time, &leave(call, event.time, task, names)),
            What::Leaf(call) => {
                let end = call.end.unwrap_or(event.time);
                cpu.push(event.time, &enter(call, task, names))?;
                cpu.push(end, &leave(call, end, task, names))
            }
            What::Hit { func, caller } => {
                let mut data = common(FUNCTION, task);
                data.extend(addr(*func, names).to_le_bytes());
                let parent = match caller {
                    Some(Caller::Addr(addr)) => *addr,
                    _ => 0,
                };
                data.extend(parent.to_le_bytes());
                cpu.push(event.time, &data)
            }
            What::Mark { id, data } => cpu.push(event.time, &note(&names.mark(*id, data))),
            What::Stack { addrs, cut } => {
                let text = format!("stack trace: {}", names.stack(addrs, *cut));
                cpu.push(event.time, &note(&text))
            }
            What::Note(text) => cpu.push(event.time, &note(text)),
            What::Lost(count) => {
                cpu.flush()?;
                cpu.missed = cpu.missed.saturating_add((*count).max(1));
                Ok(())
            }
        }
    }

    fn finish(&mut self, names: &Names) -> io::Result<()> {
        let mut head = Vec::from(*b"\x17\x08\x44tracing6\0");
        head.extend([0, 8]);
        head.extend((PAGE as u32).to_le_bytes());
        let sized = |head: &mut Vec<u8>, text: &str| {
            head.extend((text.len() as u64).to_le_bytes());
            head.extend(text.as_bytes());
        };
        head.extend(b"header_page\0");
        sized(
            &mut head,
            "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
             \tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
             \tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;\n\
             \tfield: char data;\toffset:16;\tsize:4080;\tsigned:1;\n",
        );
        head.extend(b"header_event\0");
        sized(
            &mut head,
            "# compressed entry header\n\ttype_len    :    5 bits\n\ttime_delta  :   27 bits\n\tarray       :   32 bits\n\n\
             \tpadding     : type == 29\n\ttime_extend : type == 30\n\ttime_stamp : type == 31\n\
             \tdata max type_len  == 28\n",
        );
        let retval = self.has_retvals.then_some(("unsigned long retval", 16, 8, false));
        let func: Field = ("unsigned long func", 8, 8, false);
        let behind: [Field; 4] = [
            ("unsigned long long calltime", 24, 8, false),
            ("unsigned long long rettime", 32, 8, false),
            ("unsigned int overrun", 40, 4, false),
            ("int depth", 44, 4, true),
        ];
        let exit_fields: Vec<Field> = std::iter::once(func).chain(retval).chain(behind).collect();
        let (shown, value) = if self.has_retvals { (" retval: %lx", ", REC->retval") } else { ("", "") };
        let exit_print = format!(
            "\"<-- %ps (%d) (start: %llx  end: %llx) over: %u{shown}\", (void *)REC->func, REC->depth, \
             REC->calltime, REC->rettime, REC->overrun{value}"
        );
        let formats = [
            description(
                "function",
                FUNCTION,
                &[("unsigned long ip", 8, 8, false), ("unsigned long parent_ip", 16, 8, false)],
                "\" %ps <-- %ps\", (void *)REC->ip, (void *)REC->parent_ip",
            ),
            description(
                "funcgraph_entry",
                ENTRY,
                &[("unsigned long func", 8, 8, false), ("int depth", 16, 4, true)],
                "\"--> %ps (%d)\", (void *)REC->func, REC->depth",
            ),
            description("funcgraph_exit", EXIT, &exit_fields, &exit_print),
            description(
                "print",
                PRINT,
                &[("unsigned long ip", 8, 8, false), ("char buf[]", 16, 0, false)],
                "\"%ps: %s\", (void *)REC->ip, REC->buf",
            ),
        ];
        head.extend((formats.len() as u32).to_le_bytes());
        formats.iter().for_each(|text| sized(&mut head, text));
        head.extend(0_u32.to_le_bytes());

        let mut symbols: Vec<_> =
            (0..).zip(names.functions()).map(|(func, f)| (addr(func, names), f)).collect();
        symbols.sort_by_key(|(addr, _)| *addr);
        let mut text = String::new();
        for (addr, function) in symbols {
            // White space would end the name.
            let name = function.name.replace(char::is_whitespace, "_");
            text += &format!("{addr:016x} t {name}");
            if !function.module.is_empty() {
                text += &format!("\t[{}]", function.module);
            }
            text += "\n";
        }
        head.extend((text.len() as u32).to_le_bytes());
        head.extend(text.as_bytes());
        head.extend(0_u32.to_le_bytes());
        let tasks = self.tasks.iter().filter(|task| **task != 0);
        let tasks: String = tasks.map(|task| format!("{task} {}\n", names.comm(*task))).collect();
        sized(&mut head, &tasks);

        let count = self.cpus.keys().next_back().map_or(0, |last| last + 1).max(self.cpu_count).max(1);
        head.extend(count.to_le_bytes());
        head.extend(b"flyrecord\0");
        let mut at = (head.len() + count as usize * 16).next_multiple_of(PAGE);
        let padded = at;
        for number in 0..count {
            let bytes = match self.cpus.get_mut(&number) {
                Some(cpu) => {
                    cpu.flush()?;
                    cpu.bytes
                }
                None => 0,
            };
            head.extend((at as u64).to_le_bytes());
            head.extend(bytes.to_le_bytes());
            at += bytes as usize;
        }
        head.resize(padded, 0);
        self.out.write_all(&head)?;
        for cpu in self.cpus.values_mut() {
            cpu.file.seek(SeekFrom::Start(0))?;
            io::copy(cpu.file.get_mut(), &mut self.out)?;
        }
        self.out.flush()
    }
}
