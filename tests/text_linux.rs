//! The text printer against whole traces that Linux recorded: their lines are read back into events, and printed
//! again from these they must be the same, byte for byte.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::{self, Write};
use std::path::Path;

use fgraph::text::{CpuState, Event, Kind, Options, Printer, Resolve, Task};

/// Function names of a recorded trace; an address is a name's place in the list.
#[derive(Default)]
struct Names {
    list: Vec<String>,
    addresses: HashMap<String, usize>,
    irq_entries: BTreeSet<usize>,
}

impl Names {
    fn address(&mut self, name: &str) -> usize {
        *self.addresses.entry(name.to_owned()).or_insert_with(|| {
            self.list.push(name.to_owned());
            self.list.len()
        })
    }
}

impl Resolve for Names {
    fn name(&self, func: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.list[func - 1])
    }

    fn is_irq_entry(&self, func: usize) -> bool {
        self.irq_entries.contains(&func)
    }
}

fn entry(func: usize, depth: u32) -> Kind<'static> {
    Kind::Entry { func, depth, ret_addr: None, args: &[] }
}

fn back(func: usize, depth: u32, duration_ns: u64) -> Kind<'static> {
    Kind::Return { func, depth, duration_ns, retval: None, overrun: 0 }
}

/// The columns of one line.
struct Columns<'t> {
    time_us: Option<u64>,
    cpu: u32,
    task: Option<&'t str>,
    duration: &'t str,
    depth: u32,
    body: &'t str,
}

fn columns(line: &str, options: Options) -> Option<Columns<'_>> {
    let (mut time_us, mut task, mut rest) = (None, None, line);
    if options.contains(Options::ABSTIME) {
        let (time, after) = rest.split_once(" |  ")?;
        let (s, us) = time.trim_start().split_once('.')?;
        time_us = Some(s.parse::<u64>().ok()? * 1_000_000 + us.parse::<u64>().ok()?);
        rest = after;
    }
    let (cpu, after) = rest.split_once(") ")?;
    rest = after;
    if options.contains(Options::PROC) {
        let (name, after) = rest.split_once(" | ")?;
        task = Some(name.trim());
        rest = after;
    }
    let (duration, after) = rest.split_once('|')?;
    let body = after.trim_start();
    let depth = (after.len() - body.len()).saturating_sub(2) as u32 / 2;
    let cpu = cpu.trim_start().parse().ok()?;
    Some(Columns { time_us, cpu, task, duration: duration.trim_end(), depth, body })
}

/// `+ 12.345 us` in nanoseconds. Decimals that the column had no room for are taken for zero.
fn duration_ns(text: &str) -> Option<u64> {
    let number = text.get(2..)?.trim().strip_suffix(" us")?;
    let (us, fraction) = number.split_once('.').unwrap_or((number, ""));
    Some(us.parse::<u64>().ok()? * 1000 + format!("{fraction:0<3}").parse::<u64>().ok()?)
}

fn task(text: &str) -> Option<Task> {
    let (comm, pid) = text.rsplit_once('-')?;
    Some(Task::new(pid.parse().ok()?, comm))
}

/// An event whose place is known by the line that it was read from.
struct Read {
    cpu: u32,
    line: usize,
    event: Event<'static>,
}

/// Turns the lines of a trace back into the events they came from. Arrows, marks, task switches, and when a brace
/// says its name, are not kept: the printer has to find these again.
fn read(text: &str, options: Options, names: &mut Names) -> Result<Vec<Read>, String> {
    let lines: Vec<&str> = text.lines().collect();
    let bad = |i: usize, what: &str| format!("line {}: {what}: {:?}", i + 1, lines[i]);

    // Without a task column tasks are known from the switches only, and the first one of a CPU from the first switch.
    let mut switches: BTreeMap<usize, (u32, Task)> = BTreeMap::new();
    let mut tasks: HashMap<u32, Task> = HashMap::new();
    for (i, line) in lines.iter().enumerate().filter(|(_, line)| line.contains(" => ")) {
        let switch = line.split_once(") ").and_then(|(cpu, both)| {
            let (from, to) = both.split_once(" => ")?;
            Some((cpu.trim().parse::<u32>().ok()?, task(from.trim())?, task(to.trim())?))
        });
        let (cpu, from, to) = switch.ok_or_else(|| bad(i, "not a task switch"))?;
        tasks.entry(cpu).or_insert(from);
        switches.insert(i, (cpu, to));
    }

    let mut reads: Vec<Read> = Vec::new();
    let mut opened: HashMap<(u32, u32), usize> = HashMap::new();
    let mut irq_begins: BTreeSet<u32> = BTreeSet::new();
    let mut last_us = 0;
    let mut same_us = 0;
    for (i, line) in lines.iter().enumerate() {
        if let Some((cpu, to)) = switches.get(&i) {
            tasks.insert(*cpu, *to);
            continue;
        }
        if line.starts_with('#') || line.is_empty() || line.starts_with(" -----") {
            continue;
        }
        let Columns { time_us, cpu, task: name, duration, depth, body } =
            columns(line, options).ok_or_else(|| bad(i, "not a line of this layout"))?;
        match duration.trim() {
            "==========>" => {
                irq_begins.insert(cpu);
                continue;
            }
            "<==========" => continue,
            _ => {}
        }
        let task = match name {
            Some(name) => task(name).ok_or_else(|| bad(i, "not a task"))?,
            None => *tasks.entry(cpu).or_insert(Task::new(1, "first")),
        };
        // Lines of the same microsecond stay in their order by the nanoseconds, which are not shown. Every second
        // one is free for the return of a leaf.
        let time_us = time_us.unwrap_or(i as u64);
        if time_us < last_us {
            return Err(bad(i, "time goes backwards"));
        }
        same_us = if time_us == last_us { same_us + 2 } else { 2 };
        last_us = time_us;
        if same_us >= 1000 {
            return Err(bad(i, "too many lines in this microsecond"));
        }
        let time_ns = time_us * 1000 + same_us;
        let ns = || duration_ns(duration).ok_or_else(|| bad(i, "not a duration"));
        let mut push = |kind| {
            reads.push(Read { cpu, line: i, event: Event { cpu, time_ns, task, kind } });
        };
        if let Some(name) = body.strip_suffix("() {") {
            let func = names.address(name);
            if irq_begins.remove(&cpu) {
                names.irq_entries.insert(func);
            }
            opened.insert((cpu, depth), func);
            push(entry(func, depth));
        } else if let Some(name) = body.strip_suffix("();") {
            let func = names.address(name);
            push(entry(func, depth));
            push(back(func, depth, ns()?));
        } else if body == "}" {
            let func = opened.remove(&(cpu, depth)).ok_or_else(|| bad(i, "closes what was not opened"))?;
            push(back(func, depth, ns()?));
        } else if let Some(name) = body.strip_prefix("} /* ").and_then(|name| name.strip_suffix(" */")) {
            opened.remove(&(cpu, depth));
            push(back(names.address(name), depth, ns()?));
        } else {
            return Err(bad(i, "not a call"));
        }
    }

    // A leaf's return was recorded some time before whatever came next on that CPU, while other CPUs went on.
    let mut next: HashMap<u32, u64> = HashMap::new();
    for i in (0..reads.len()).rev() {
        let Read { cpu, line, .. } = reads[i];
        if i > 0 && reads[i - 1].line == line {
            let last = reads[i].event.time_ns + 1;
            reads[i].event.time_ns = next.get(&cpu).map_or(last, |time| time - 1);
        }
        next.insert(cpu, reads[i].event.time_ns);
    }
    Ok(reads)
}

#[test]
fn traces_recorded_by_linux_come_out_as_they_went_in() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/samples/traces");
    if !directory.is_dir() {
        println!("skipped: there are no recorded traces at ../shared/samples/traces");
        return;
    }
    let all = Options::default() | Options::PROC | Options::ABSTIME | Options::TAIL;
    let files = [
        ("linux-6.12-arm64-fg-all.txt", Options::default()),
        ("linux-6.12-arm64-fg-default-vfs_read.txt", Options::default()),
        ("linux-6.12-arm64-fg-proc-abstime-tail.txt", all),
        ("linux-6.12-x86_64-fg-all.txt", Options::default()),
        ("linux-6.12-x86_64-fg-default-vfs_read.txt", Options::default()),
        ("linux-6.12-x86_64-fg-proc-abstime-tail.txt", all),
    ];
    let (mut total, mut different) = (0, 0);
    for (file, options) in files {
        let text = std::fs::read_to_string(directory.join(file)).unwrap();
        let mut names = Names::default();
        let reads = read(&text, options, &mut names).unwrap_or_else(|error| panic!("{file}: {error}"));

        let cpus = reads.iter().map(|read| read.cpu + 1).max().unwrap_or(0);
        let buffer =
            |cpu| reads.iter().map(|read| read.event).filter(move |event| event.cpu == cpu).peekable();
        let mut buffers: Vec<_> = (0..cpus).map(buffer).collect();
        let mut states = vec![CpuState::NEW; cpus as usize];
        let mut printer = Printer::new(options, &mut states);
        let mut out = String::new();
        printer.header(&mut out).unwrap();
        printer.merged(&mut buffers, &names, &mut out).unwrap();

        let (want, got): (Vec<&str>, Vec<&str>) = (text.lines().collect(), out.lines().collect());
        let mut shown = 0;
        for i in 0..want.len().max(got.len()) {
            let (want, got) = (want.get(i), got.get(i));
            if want != got {
                different += 1;
                shown += 1;
                if shown <= 5 {
                    println!("{file}:{}:\n  want {want:?}\n  got  {got:?}", i + 1);
                }
            }
        }
        total += want.len();
        println!("{file}: {} lines compared, {} events, {cpus} CPUs", want.len(), reads.len());
        if shown == 0 {
            assert_eq!(out, text, "{file}");
        }
    }
    println!("{total} lines compared, {different} different");
    assert!(total > 0 && different == 0, "{different} of {total} lines are different");
}

/// The reader above must be able to find fault with a printer: it keeps what a line says, and nothing else.
#[test]
fn reading_back_keeps_what_the_line_says() {
    assert_eq!(duration_ns("! 224.168"), None);
    assert_eq!(duration_ns("! 224.168 us"), Some(224_168));
    assert_eq!(duration_ns("* 73186.78 us"), Some(73_186_780));
    assert_eq!(duration_ns("@ 388523.7 us"), Some(388_523_700));
    assert_eq!(duration_ns("$ 2500000 us"), Some(2_500_000_000));
    let text = " 3) ! 224.168 us  |      leaf();\n 3)   1.000 us    |    } /* name */\n";
    let mut names = Names::default();
    let reads = read(text, Options::default(), &mut names).unwrap();
    let mut seen = String::new();
    for Read { cpu, event, .. } in &reads {
        match event.kind {
            Kind::Entry { func, depth, .. } => write!(seen, "{cpu} +{func}@{depth} ").unwrap(),
            Kind::Return { func, depth, duration_ns, .. } => {
                write!(seen, "{cpu} -{func}@{depth}:{duration_ns} ").unwrap();
            }
            _ => unreachable!(),
        }
    }
    assert_eq!(seen, "3 +1@2 3 -1@2:224168 3 -2@1:1000 ");
    assert!(read(" 3)   1.000 us    |    }\n", Options::default(), &mut names).is_err());
}
