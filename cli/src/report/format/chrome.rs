//! Chrome's trace events as JSON, which ui.perfetto.dev, speedscope and chrome://tracing open. Times are microseconds.

use std::collections::BTreeSet;
use std::io::{self, Write};

use serde::Serialize;

use super::super::event::{Call, Event, Thread, What};
use super::super::names::Names;
use super::{Format, Open};

/// Writes one object after another into an array.
pub(in super::super) struct Chrome<W> {
    out: W,
    first: bool,
    threads: BTreeSet<Thread>,
    open: Open,
}

#[derive(Default, Serialize)]
struct Object<'a> {
    name: &'a str,
    cat: &'a str,
    ph: &'a str,
    ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    pid: u32,
    tid: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'a str>,
    args: Details,
}

#[derive(Default, Serialize)]
struct Details {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ret: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    caller: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stack: Vec<String>,
}

/// What a recorded stack is called; it stands in its arguments.
pub(super) const STACK: &str = "stack trace";

/// A number for a thread that no task has: idle tasks stand behind all others.
pub(super) fn tid(thread: Thread) -> u64 {
    if thread.task == 0 { (1 << 32) + u64::from(thread.cpu) } else { thread.task.into() }
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

impl<W: Write> Chrome<W> {
    pub(in super::super) fn new(mut out: W) -> io::Result<Self> {
        out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
        Ok(Self { out, first: true, threads: BTreeSet::new(), open: Open::default() })
    }

    fn object(&mut self, object: &Object<'_>) -> io::Result<()> {
        self.out.write_all(if std::mem::take(&mut self.first) { b"\n" } else { b",\n" })?;
        serde_json::to_writer(&mut self.out, object).map_err(io::Error::from)
    }
}

impl<W: Write> Format for Chrome<W> {
    fn event(&mut self, event: &Event, names: &Names) -> io::Result<()> {
        let thread = event.thread();
        let tid = tid(thread);
        let closes = self.open.see(event);
        if !matches!(event.what, What::Lost(_)) {
            self.threads.insert(thread);
        }
        let details = |call: &Call| Details {
            cpu: Some(event.cpu),
            ret: call
                .retval
                .map(|value| call.error().map_or_else(|| format!("{value:#x}"), |e| e.to_string())),
            caller: call.caller.map(|caller| names.caller(caller)),
            ..Details::default()
        };
        let base = Object { cat: "function", ts: us(event.time), tid, ..Object::default() };
        let at_cpu = Details { cpu: Some(event.cpu), ..Details::default() };
        let text;
        match &event.what {
            What::Enter(call) => {
                let args = Details { ret: None, ..details(call) };
                self.object(&Object { name: names.function(call.func), ph: "B", args, ..base })
            }
            // Its entry was lost: it comes as a whole.
            What::Leave(call) if !closes => {
                let (ts, dur) = (us(call.start), Some(us(call.duration().unwrap_or(0))));
                let args = details(call);
                self.object(&Object { name: names.function(call.func), ph: "X", ts, dur, args, ..base })
            }
            What::Leave(call) => {
                self.object(&Object { name: names.function(call.func), ph: "E", args: details(call), ..base })
            }
            What::Leaf(call) => {
                let dur = Some(us(call.duration().unwrap_or(0)));
                self.object(&Object {
                    name: names.function(call.func),
                    ph: "X",
                    dur,
                    args: details(call),
                    ..base
                })
            }
            What::Hit { func, .. } => self.object(&Object {
                name: names.function(*func),
                ph: "i",
                s: Some("t"),
                args: at_cpu,
                ..base
            }),
            What::Mark { id, data } => {
                text = names.mark(*id, data);
                self.object(&Object { name: &text, cat: "mark", ph: "i", s: Some("t"), args: at_cpu, ..base })
            }
            What::Stack { addrs, cut } => {
                let mut stack: Vec<String> = addrs.iter().map(|addr| names.code(*addr)).collect();
                stack.extend(cut.then(|| "...".into()));
                let args = Details { stack, ..at_cpu };
                self.object(&Object { name: STACK, cat: "mark", ph: "i", s: Some("t"), args, ..base })
            }
            What::Note(note) => {
                self.object(&Object { name: note, cat: "mark", ph: "i", s: Some("t"), args: at_cpu, ..base })
            }
            What::Lost(count) => {
                text = format!("CPU {}: {count} records lost", event.cpu);
                self.object(&Object {
                    name: &text,
                    cat: "lost",
                    ph: "i",
                    s: Some("g"),
                    tid: 0,
                    args: at_cpu,
                    ..base
                })
            }
        }
    }

    fn finish(&mut self, names: &Names) -> io::Result<()> {
        for thread in std::mem::take(&mut self.threads) {
            let args = Details { name: Some(names.thread(thread)), ..Details::default() };
            self.object(&Object {
                name: "thread_name",
                cat: "__metadata",
                ph: "M",
                tid: tid(thread),
                args,
                ..Object::default()
            })?;
        }
        self.out.write_all(b"\n]}\n")?;
        self.out.flush()
    }
}
