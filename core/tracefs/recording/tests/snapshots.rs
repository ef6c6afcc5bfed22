//! Snapshots that are taken on top of whatever the files are doing.

use std::thread;

use super::*;
use crate::testing::{Random, with_interrupt_at};

/// The functions in a text, by their numbers.
fn functions(text: &str) -> Vec<u32> {
    // `0x1f();`, or `} /* 0x1f */` where its entry was before the batch.
    let hex = |text: &str| text.split(|c: char| !c.is_ascii_hexdigit()).next().map(String::from);
    let number = |line: &str| u32::from_str_radix(&hex(line.split_once("0x")?.1)?, 16).ok();
    text.lines().filter(|line| !line.starts_with('#')).filter_map(number).collect()
}

fn read(fs: &Tracefs<'_>, path: &str) -> Vec<u32> {
    functions(&cat(fs, path))
}

/// Something that a file is asked, or told, while a command comes on top of it: its name, the file, and the text that is written.
const DOING: [(&str, &str, Option<&str>); 9] = [
    ("trace", "trace", None),
    ("snapshot", "snapshot", None),
    ("a CPU", "per_cpu/cpu0/snapshot", None),
    ("stats", "per_cpu/cpu0/stats", None),
    ("emptied", "snapshot", Some("2")),
    ("taken", "snapshot", Some("1")),
    ("one taken", "per_cpu/cpu0/snapshot", Some("1")),
    ("resized", "buffer_size_kb", Some("4")),
    ("option", "trace_options", Some("nooverwrite")),
];

#[test]
fn a_snapshot_comes_at_any_moment_and_the_files_go_on() {
    for (name, path, text) in DOING {
        for step in 0.. {
            let (world, tracing, fs) = kernel_and_tracing(4);
            echo(&fs, "function_graph", "current_tracer").expect("a tracer");
            tracing.make_spares().expect("memory");
            assert!(world.call(0, 1) && world.call(1, 2));
            tracing.snapshot_now();
            assert!(world.call(0, 3) && world.call(2, 4));
            let command = || {
                assert!(world.call(0, 5));
                tracing.snapshot_now();
            };
            let ((), came) = with_interrupt_at(step, command, || match text {
                None => assert!(!cat(&fs, path).is_empty()),
                Some(text) => assert_eq!(echo(&fs, text, path), Ok(text.len())),
            });
            assert!(!tracing.spares.wanted.load(Ordering::Relaxed), "{name}, {step}: it was left to nobody");
            let (live, snapshot) = (read(&fs, "trace"), read(&fs, "snapshot"));
            if !came {
                assert!(step > 0 || name == "option" || name == "emptied", "{name} has no points");
                break;
            }
            match name {
                // The command's buffers are set aside, or were on their way there when others were.
                "taken" => {
                    assert!([&[3, 4, 5][..], &[5], &[]].contains(&&snapshot[..]), "{step}: {snapshot:?}")
                }
                "one taken" => {
                    let some = [&[3, 4, 5][..], &[4, 5], &[4], &[5]];
                    assert!(some.contains(&&snapshot[..]), "{step}: {snapshot:?}");
                }
                "emptied" => assert!(snapshot == [3, 4, 5] || snapshot.is_empty(), "{step}: {snapshot:?}"),
                // What was there goes, whenever the snapshot came.
                "resized" => {
                    assert!([&[3, 4, 5][..], &[5], &[]].contains(&&snapshot[..]), "{step}: {snapshot:?}")
                }
                _ => assert_eq!((&live[..], &snapshot[..]), (&[][..], &[3, 4, 5][..]), "{name}, {step}"),
            }
            // Everything goes on, in buffers that are still two for each CPU.
            assert!(world.call(0, 6));
            tracing.snapshot_now();
            assert_eq!(
                (read(&fs, "trace").len(), read(&fs, "snapshot").last()),
                (0, Some(&6)),
                "{name}, {step}"
            );
        }
    }
}

/// The second finds the buffer that the first has set aside, which is just being emptied: it is left to who does that.
#[test]
fn a_snapshot_that_was_held_up_is_taken_by_who_did() {
    let cleared = ("cleared", "trace", Some(""));
    let mut held_up = 0;
    for (name, path, text) in DOING.into_iter().chain([cleared]) {
        for step in 0.. {
            let (world, tracing, fs) = kernel_and_tracing(4);
            echo(&fs, "function_graph", "current_tracer").expect("a tracer");
            tracing.make_spares().expect("memory");
            assert!(world.call(0, 1));
            tracing.snapshot_now();
            assert!(world.call(0, 2));
            let commands = || {
                tracing.snapshot_now();
                assert!(world.call(0, 3));
                tracing.snapshot_now();
                held_up += u32::from(tracing.spares.wanted.load(Ordering::Relaxed));
            };
            let ((), came) = with_interrupt_at(step, commands, || match text {
                None => drop(cat(&fs, path)),
                Some(text) => drop(echo(&fs, text, path)),
            });
            assert!(!tracing.spares.wanted.load(Ordering::Relaxed), "{name}, {step}: it was left to nobody");
            assert!(world.call(0, 4));
            tracing.snapshot_now();
            assert_eq!(
                (read(&fs, "trace").len(), read(&fs, "snapshot").last()),
                (0, Some(&4)),
                "{name}, {step}"
            );
            if !came {
                break;
            }
        }
    }
    assert!(held_up > 0, "none was held up");
}

#[test]
fn a_pipe_gives_what_it_has_read_before_it_follows() {
    storm(200, 6, |random| {
        let nodes = 1 + random.below(9);
        let (world, tracing, fs) = kernel_and_tracing(nodes);
        echo(&fs, "function_graph", "current_tracer").expect("a tracer");
        tracing.make_spares().expect("memory");
        let mut next = 1;
        let mut piped = Vec::new();
        let mut forgotten = Vec::new();
        let mut pipe = fs.open("trace_pipe").expect("open");
        let mut text = Vec::new();
        for _ in 0..30 {
            (0..random.below(6)).for_each(|_| {
                assert!(world.call(0, next));
                next += 1;
            });
            match random.below(4) {
                0 => {
                    // The snapshot that was there goes; what was not piped of the live one is the next.
                    forgotten.extend(read(&fs, "snapshot").into_iter().filter(|_| tracing.has_snapshot()));
                    tracing.snapshot_now();
                }
                _ => {
                    let mut bytes = [0; 90];
                    let len = random.below(bytes.len());
                    let got = fs.read(&mut pipe, &mut bytes[..len]).expect("read");
                    text.extend_from_slice(&bytes[..got]);
                }
            }
        }
        loop {
            let mut bytes = [0; 100];
            match fs.read(&mut pipe, &mut bytes).expect("read") {
                0 => break,
                got => text.extend_from_slice(&bytes[..got]),
            }
        }
        piped.extend(functions(core::str::from_utf8(&text).expect("text")));
        assert!(piped.is_sorted_by(|a, b| a < b), "{piped:?}");
        let mut all = piped;
        all.extend(forgotten);
        all.extend(read(&fs, "snapshot"));
        all.sort_unstable();
        assert_eq!(all, (1..next).collect::<Vec<_>>(), "each is given by the pipe, or is in one snapshot");
    });
}

#[test]
fn cpus_that_take_snapshots_at_once_keep_two_buffers_each() {
    let rounds = if cfg!(miri) { 20 } else { 3000 };
    let (world, tracing, fs) = kernel_and_tracing(64);
    echo(&fs, "function_graph", "current_tracer").expect("a tracer");
    tracing.make_spares().expect("memory");
    thread::scope(|scope| {
        for cpu in 0..CPUS {
            scope.spawn(move || {
                let mut random = Random::new(cpu as u64);
                for _ in 0..rounds {
                    assert!(world.call(cpu, 1));
                    if random.one_in(3) {
                        tracing.snapshot_now();
                    }
                }
            });
        }
        scope.spawn(|| {
            for round in 0..rounds / 20 {
                let _ = (cat(&fs, "trace_pipe"), cat(&fs, "snapshot"));
                echo(&fs, ["1", "2"][round % 2], "snapshot").expect("done");
            }
        });
    });
    assert!(!tracing.spares.wanted.load(Ordering::Relaxed));
    for cpu in 0..CPUS {
        let (live, spare) = (tracing.live(cpu).expect("a buffer"), tracing.spares.get(cpu).expect("a spare"));
        assert!(!core::ptr::eq(live, spare) && live.cpu() == spare.cpu());
        assert_eq!(live.len(), spare.len());
    }
    // A claim that was never given up would make this hang.
    echo(&fs, "0", "snapshot").expect("freed");
    let spare = world.spare.lock().expect("spare");
    assert_eq!(spare.len(), CPUS);
}
