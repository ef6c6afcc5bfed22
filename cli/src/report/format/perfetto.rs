//! Perfetto's trace as protobuf: a track for each task, and a slice for each call. Names are written once and numbered.
//!
//! The few messages are written by hand: their numbers are those of Perfetto's `trace.proto` (Apache-2.0).

use std::collections::HashSet;
use std::io::{self, Write};

use super::super::event::{Call, Event, Thread, What};
use super::super::names::Names;
use super::super::values::Values;
use super::chrome::{STACK, tid};
use super::{Format, Open};

/// A message being written.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn number(mut self, field: u64, value: u64) -> Self {
        self.varint(field << 3);
        self.varint(value);
        self
    }

    fn bytes(mut self, field: u64, bytes: &[u8]) -> Self {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    fn message(self, field: u64, message: Self) -> Self {
        self.bytes(field, &message.0)
    }
}

/// A note on a slice: a value with its name. What is only a number stays one, so that queries can count with it.
fn note(name: &str, value: &str) -> Message {
    let note = Message::default().bytes(10, name.as_bytes());
    if let Ok(number) = value.parse::<i64>() {
        return note.number(4, number as u64);
    }
    let hex = value.strip_prefix("0x").map(|digits| u64::from_str_radix(digits, 16));
    match hex {
        Some(Ok(number)) => note.number(7, number),
        _ => note.bytes(6, value.as_bytes()),
    }
}

const SEQUENCE: u64 = 1;
const CLEARED: u64 = 1;
const NEEDS_STATE: u64 = 2;
const SLICE_BEGIN: u64 = 1;
const SLICE_END: u64 = 2;
const INSTANT: u64 = 3;
/// The track of the kernel, which those of the tasks belong to. No thread has this number.
const KERNEL: u64 = u64::MAX;

/// Writes one packet after another.
pub(in super::super) struct Perfetto<'k, W> {
    out: W,
    values: Values<'k>,
    threads: HashSet<Thread>,
    interned: HashSet<u32>,
    open: Open,
}

impl<'k, W: Write> Perfetto<'k, W> {
    pub(in super::super) fn new(out: W, values: Values<'k>) -> io::Result<Self> {
        let (threads, interned, open) = (HashSet::new(), HashSet::new(), Open::default());
        let mut this = Self { out, values, threads, interned, open };
        let process = Message::default().number(1, 1).bytes(6, b"kernel");
        let track = Message::default().number(1, KERNEL).bytes(2, b"kernel").message(3, process);
        this.packet(Message::default().number(13, CLEARED).message(60, track))?;
        Ok(this)
    }

    fn packet(&mut self, packet: Message) -> io::Result<()> {
        let packet = packet.number(10, SEQUENCE);
        self.out.write_all(&Message::default().message(1, packet).0)
    }

    fn track_event(&mut self, time: u64, event: Message, interned: Option<Message>) -> io::Result<()> {
        let packet = Message::default().number(8, time).number(13, NEEDS_STATE).message(11, event);
        let packet = match interned {
            Some(interned) => packet.message(12, interned),
            None => packet,
        };
        self.packet(packet)
    }

    /// The name of a function, if it has not been written yet.
    fn intern(&mut self, func: u32, names: &Names) -> Option<Message> {
        self.interned.insert(func).then(|| {
            let name = Message::default().number(1, u64::from(func) + 1);
            Message::default().message(2, name.bytes(2, names.function(func).as_bytes()))
        })
    }

    fn begin(&mut self, call: &Call, cpu: u32, track: u64, names: &Names) -> io::Result<()> {
        let cpu = Message::default().bytes(10, b"cpu").number(3, cpu.into());
        let event = Message::default().number(9, SLICE_BEGIN).number(11, track);
        let mut event = event.number(10, u64::from(call.func) + 1).bytes(22, b"function").message(4, cpu);
        // At the beginning too if it is known: there it can be seen whatever was lost.
        if let Some(caller) = call.caller {
            let caller = names.caller(caller);
            event = event.message(4, Message::default().bytes(10, b"caller").bytes(6, caller.as_bytes()));
        }
        let args = self.values.args(call, names);
        if !args.is_empty() {
            let all = Message::default().bytes(10, b"args");
            let all = args.iter().fold(all, |all, (name, value)| all.message(11, note(name, value)));
            event = event.message(4, all);
        }
        if call.has_failed() {
            event = event.bytes(22, b"error");
        }
        let interned = self.intern(call.func, names);
        self.track_event(call.start, event, interned)
    }

    fn end(&mut self, call: &Call, time: u64, track: u64, names: &Names) -> io::Result<()> {
        let mut event = Message::default().number(9, SLICE_END).number(11, track);
        if let Some(value) = self.values.retval(call, names) {
            event = event.message(4, note("ret", &value));
        }
        self.track_event(time, event, None)
    }

    fn instant(&mut self, time: u64, track: u64, name: &str) -> io::Result<()> {
        self.instant_with(time, track, name, None)
    }

    fn instant_with(
        &mut self,
        time: u64,
        track: u64,
        name: &str,
        annotation: Option<Message>,
    ) -> io::Result<()> {
        let event = Message::default().number(9, INSTANT).number(11, track).bytes(23, name.as_bytes());
        let event = match annotation {
            Some(annotation) => event.message(4, annotation),
            None => event,
        };
        self.track_event(time, event, None)
    }
}

impl<W: Write> Format for Perfetto<'_, W> {
    fn event(&mut self, event: &Event, names: &Names) -> io::Result<()> {
        let thread = event.thread();
        let track = tid(thread);
        let closes = self.open.see(event);
        if !matches!(event.what, What::Lost(_)) && self.threads.insert(thread) {
            let name = names.thread(thread);
            let description = Message::default().number(1, 1).number(2, track).bytes(5, name.as_bytes());
            let track = Message::default().number(1, track).bytes(2, name.as_bytes()).number(5, KERNEL);
            self.packet(Message::default().message(60, track.message(4, description)))?;
        }
        match &event.what {
            What::Enter(call) => self.begin(call, event.cpu, track, names),
            What::Leaf(call) => {
                self.begin(call, event.cpu, track, names)?;
                self.end(call, call.end.unwrap_or(event.time), track, names)
            }
            What::Leave(call) => {
                // Its entry was lost.
                if !closes {
                    self.begin(call, event.cpu, track, names)?;
                }
                self.end(call, event.time, track, names)
            }
            What::Hit { func, .. } => self.instant(event.time, track, names.function(*func)),
            What::Mark { id, data } => self.instant(event.time, track, &names.mark(*id, data)),
            What::Stack { addrs, cut } => {
                let stack = names.stack(addrs, *cut);
                let stack = Message::default().bytes(10, b"stack").bytes(6, stack.as_bytes());
                self.instant_with(event.time, track, STACK, Some(stack))
            }
            What::Note(note) => self.instant(event.time, track, note),
            What::Lost(count) => {
                self.instant(event.time, KERNEL, &format!("CPU {}: {count} records lost", event.cpu))
            }
        }
    }

    fn finish(&mut self, _: &Names) -> io::Result<()> {
        self.out.flush()
    }
}
