//! Reads back what Linux's function_graph printed, whatever its columns.
//!
//! Without a time column, a CPU's time goes by as its calls say they took: what is made of it has the right durations, and no other
//! times.

use std::collections::HashMap;
use std::io::{self, BufRead, Read, Seek, SeekFrom};

use super::event::{Args, Call, Event, What};
use super::names::Names;
use super::problem::{Problem, Problems};
use fgraph::text::Task;

/// What a CPU's lines said so far.
#[derive(Debug)]
struct Cpu {
    task: u32,
    time: u64,
    /// Calls that are open: depth, function, start.
    opened: Vec<(u32, u32, u64)>,
    irq_begins: bool,
}

/// The task of a CPU of which no line says who it is.
const NOBODY: u32 = i32::MAX as u32;

/// When a CPU's time begins if no line says it: what returns first was entered before.
const INVENTED: u64 = 1_000_000_000_000;

impl Default for Cpu {
    fn default() -> Self {
        Self { task: NOBODY, time: INVENTED, opened: Vec::new(), irq_begins: false }
    }
}

/// Who ran first on each CPU, as the first task switch tells it.
fn first_tasks(reader: &mut dyn BufRead, names: &mut Names) -> io::Result<HashMap<u32, u32>> {
    let mut tasks = HashMap::new();
    let mut bytes = Vec::new();
    while { reader.take(1 << 16) }.read_until(b'\n', &mut bytes)? > 0 {
        let line = String::from_utf8_lossy(&bytes);
        if let Some((from, _)) = line.split_once(" => ")
            && let Some((cpu, from)) = from.split_once(") ")
            && let Ok(cpu) = cpu.trim().parse()
            && let Some(pid) = named(from, names)
        {
            tasks.entry(cpu).or_insert(pid);
        }
        bytes.clear();
    }
    Ok(tasks)
}

/// Which columns there are.
#[derive(Clone, Copy, Debug, Default)]
struct Columns {
    time: bool,
    cpu: bool,
    task: bool,
    duration: bool,
}

/// A file of text.
pub(super) struct Lines<R> {
    reader: R,
    columns: Option<Columns>,
    cpus: HashMap<u32, Cpu>,
    number: u64,
}

/// If these bytes are how a file of function_graph text begins.
pub(super) fn is_text(start: &[u8]) -> bool {
    let text = String::from_utf8_lossy(start);
    let mut lines = text.lines();
    text.starts_with("# tracer: function_graph")
        || lines.any(|line| {
            !line.starts_with('#') && line.contains(" us  ") && line.contains('|') && line.contains(") ")
        })
}

impl<R: BufRead + Seek> Lines<R> {
    pub(super) fn new(mut reader: R, names: &mut Names) -> io::Result<Self> {
        reader.seek(SeekFrom::Start(0))?;
        let tasks = first_tasks(&mut reader, names)?;
        reader.seek(SeekFrom::Start(0))?;
        let cpus = tasks.into_iter().map(|(cpu, task)| (cpu, Cpu { task, ..Cpu::default() })).collect();
        Ok(Self { reader, columns: None, cpus, number: 0 })
    }

    /// The next event, and how many bytes were read for it.
    pub(super) fn next(
        &mut self,
        names: &mut Names,
        problems: &mut Problems,
    ) -> io::Result<Option<(Event, u64)>> {
        let mut read = 0;
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            // A line may be as long as it likes, but a file without lines is not kept whole.
            let len = self.reader.by_ref().take(1 << 16).read_until(b'\n', &mut bytes)?;
            if len == 0 {
                return Ok(None);
            }
            read += len as u64;
            self.number += 1;
            let line = String::from_utf8_lossy(&bytes);
            let line = line.trim_end_matches(['\n', '\r']);
            match self.line(line, names) {
                Ok(Some(event)) => {
                    return Ok(Some((event, read)));
                }
                Ok(None) => {}
                Err(()) => problems.add(Problem::Line(self.number, line.chars().take(60).collect())),
            }
        }
    }

    fn head(&mut self, line: &str) {
        if line.contains("FUNCTION CALLS") {
            self.columns = Some(Columns {
                time: line.contains("TIME"),
                cpu: line.contains("CPU"),
                task: line.contains("TASK/PID"),
                duration: line.contains("DURATION"),
            });
        }
    }

    fn line(&mut self, line: &str, names: &mut Names) -> Result<Option<Event>, ()> {
        if line.starts_with('#') {
            self.head(line);
            return Ok(None);
        }
        if line.trim().is_empty()
            || line.trim().bytes().all(|byte| byte == b'-')
            || line.starts_with(" (Overruns: ")
        {
            return Ok(None);
        }
        if let Some(rest) = line.strip_prefix("CPU:") {
            let (cpu, rest) = rest.split_once(" [LOST ").ok_or(())?;
            let cpu = cpu.parse().map_err(drop)?;
            let count = rest.split(' ').next().and_then(|count| count.parse().ok()).unwrap_or(0);
            let time = self.cpus.entry(cpu).or_default().time;
            return Ok(Some(Event { cpu, time, task: 0, what: What::Lost(count) }));
        }
        if let Some((from, to)) = line.split_once(" => ")
            && let Some((cpu, from)) = from.split_once(") ")
        {
            let cpu = cpu.trim().parse().map_err(drop)?;
            named(from, names).ok_or(())?;
            self.cpus.entry(cpu).or_default().task = named(to, names).ok_or(())?;
            return Ok(None);
        }
        let columns = *self.columns.get_or_insert_with(|| Columns {
            time: line.split_once(" |  ").is_some_and(|(time, _)| time.trim().parse::<f64>().is_ok()),
            cpu: true,
            task: line.matches('|').count() > 1 && line.contains('-'),
            duration: true,
        });
        let mut rest = line;
        let mut time = None;
        if columns.time {
            let (text, after) = rest.split_once(" | ").ok_or(())?;
            let (s, us) = text.trim().split_once('.').ok_or(())?;
            let (s, us): (u64, u64) = (s.parse().map_err(drop)?, us.parse().map_err(drop)?);
            time = s.checked_mul(1_000_000).and_then(|s| s.checked_add(us)?.checked_mul(1000));
            rest = after;
        }
        let mut number = 0;
        if columns.cpu {
            let (text, after) = rest.split_once(')').ok_or(())?;
            number = text.trim().parse().map_err(drop)?;
            rest = after;
        }
        let cpu = self.cpus.entry(number).or_default();
        if columns.task {
            let (text, after) = rest.split_once(" | ").ok_or(())?;
            cpu.task = named(text, names).ok_or(())?;
            rest = after;
        }
        let mut duration = "";
        if columns.duration {
            let (text, after) = rest.split_once('|').ok_or(())?;
            duration = text.trim();
            rest = after;
        }
        match duration {
            "==========>" => {
                cpu.irq_begins = true;
                return Ok(None);
            }
            "<==========" => return Ok(None),
            _ => {}
        }
        let body = rest.trim_start();
        let indent = rest.len() - body.len();
        let depth = (indent.saturating_sub(if columns.duration { 2 } else { 0 }) / 2) as u32;
        let took = duration_ns(duration);
        if let Some(time) = time {
            cpu.time = time;
        }
        let what = cpu.what(body, depth, took, time.is_none(), names).ok_or(())?;
        let time = what.1;
        Ok(Some(Event { cpu: number, time, task: cpu.task, what: what.0 }))
    }
}

impl Cpu {
    /// What a line says behind its columns, and when that was.
    fn what(
        &mut self,
        body: &str,
        depth: u32,
        took: Option<u64>,
        invent: bool,
        names: &mut Names,
    ) -> Option<(What, u64)> {
        let now = self.time;
        if let Some(closing) = body.strip_prefix('}') {
            let took = took.unwrap_or(0);
            let end = self.opened.iter().rposition(|(level, ..)| *level <= depth);
            let open = end.map(|at| self.opened[at]).filter(|(level, ..)| *level == depth);
            self.opened.truncate(end.map_or(0, |at| at + usize::from(open.is_none())));
            if let Some((_, _, start)) = open
                && invent
            {
                self.time = now.max(start.saturating_add(took));
            }
            let now = self.time;
            let comment = comment(closing)?;
            let mut call = Call::new(0, depth, 0, None);
            let said = annotate(comment, &mut call, names);
            call.func = match (said, open) {
                ("", Some((_, func, _))) => func,
                ("", None) => return None,
                (name, _) => names.by_name(name),
            };
            call.start = now.saturating_sub(took);
            call.end = Some(now);
            return Some((What::Leave(call), now));
        }
        if let Some(note) = body.strip_prefix("/* ").and_then(|note| note.strip_suffix(" */")) {
            return Some((What::Note(note.into()), now));
        }
        // The name ends at the parenthesis whose partner closes the arguments; C's names have none.
        let (head, opens) = match (body.find(") {"), body.find(");")) {
            (Some(at), semicolon) if semicolon.is_none_or(|other| at < other) => (at, true),
            (_, Some(at)) => (at, false),
            _ => return None,
        };
        let (call_text, rest) = (body.get(..head)?, body.get(head + if opens { 3 } else { 2 }..)?);
        let (name, args) = call_text.split_once('(')?;
        let func = names.by_name(name);
        if std::mem::take(&mut self.irq_begins) {
            names.set_irq_entry(func);
        }
        let mut call = Call::new(func, depth, now, None);
        if !args.is_empty() {
            call.args = Args::Text(args.into());
        }
        annotate(comment(rest)?, &mut call, names);
        while self.opened.last().is_some_and(|(level, ..)| *level >= depth) {
            self.opened.pop();
        }
        if opens {
            self.opened.push((depth, func, now));
            return Some((What::Enter(call), now));
        }
        let took = took.unwrap_or(0);
        call.end = Some(now + took);
        if invent {
            self.time += took;
        }
        Some((What::Leaf(call), now))
    }
}

/// What stands in the comment behind a call; nothing if there is none.
fn comment(text: &str) -> Option<&str> {
    match text.trim() {
        "" => Some(""),
        text => text.strip_prefix("/*")?.strip_suffix("*/").map(str::trim),
    }
}

/// Takes caller and return value from a comment; gives the name in it.
fn annotate<'t>(comment: &'t str, call: &mut Call, names: &mut Names) -> &'t str {
    let mut rest = comment;
    if let Some((before, value)) = rest.rsplit_once("ret=").or_else(|| rest.rsplit_once("= ")) {
        let value = value.trim();
        call.retval = match value.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => value.parse::<i64>().ok().map(|value| value as u64),
        };
        if call.retval.is_some() {
            rest = before.trim();
        }
    }
    match rest.split_once("<-") {
        Some((name, caller)) => {
            call.caller = Some(names.place(caller.trim()));
            name.trim()
        }
        None => rest,
    }
}

/// `name-77`, which says what the task is called.
fn named(text: &str, names: &mut Names) -> Option<u32> {
    let (comm, pid) = text.trim().rsplit_once('-')?;
    let pid = pid.parse().ok()?;
    let comm = if pid == 0 && comm == "<idle>" { "" } else { comm };
    names.set_task(pid, Task::new(pid, comm).comm);
    Some(pid)
}

/// `+ 12.345 us` in nanoseconds. Decimals that the column had no room for are taken for zero.
fn duration_ns(text: &str) -> Option<u64> {
    let number = text.strip_suffix(" us")?.trim_start_matches(['+', '!', '#', '*', '@', '$']).trim();
    let (us, fraction) = number.split_once('.').unwrap_or((number, ""));
    let fraction = format!("{:0<3}", fraction.get(..fraction.len().min(3))?);
    us.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(fraction.parse().ok()?)
}
