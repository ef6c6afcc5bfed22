//! Chrome's trace events as JSON, which ui.perfetto.dev, speedscope and chrome://tracing open. Times are microseconds.

use std::collections::BTreeSet;
use std::io::{self, Write};

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::super::event::{Call, Event, Thread, What};
use super::super::names::Names;
use super::super::values::Values;
use super::{Format, Open};

/// Writes one object after another into an array.
pub(in super::super) struct Chrome<'k, W> {
    out: W,
    values: Values<'k>,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    cname: Option<&'a str>,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<Named>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stack: Vec<String>,
}

/// Arguments of a call: an object of their own, so that their names are in the way of nothing.
struct Named(Vec<(String, String)>);

impl Serialize for Named {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

/// The category of calls, and the one more of those that returned an error: to be searched for.
const FUNCTION: &str = "function";
const FAILED: &str = "function,error";

/// The colour of calls that returned an error, by its name in chrome://tracing.
const RED: &str = "terrible";

/// What a recorded stack is called; it stands in its arguments.
pub(super) const STACK: &str = "stack trace";

/// A number for a thread that no task has: idle tasks stand behind all others.
pub(super) fn tid(thread: Thread) -> u64 {
    if thread.task == 0 { (1 << 32) + u64::from(thread.cpu) } else { thread.task.into() }
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

impl<'k, W: Write> Chrome<'k, W> {
    pub(in super::super) fn new(mut out: W, values: Values<'k>) -> io::Result<Self> {
        out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
        Ok(Self { out, values, first: true, threads: BTreeSet::new(), open: Open::default() })
    }

    fn object(&mut self, object: &Object<'_>) -> io::Result<()> {
        self.out.write_all(if std::mem::take(&mut self.first) { b"\n" } else { b",\n" })?;
        serde_json::to_writer(&mut self.out, object).map_err(io::Error::from)
    }
}

impl<W: Write> Format for Chrome<'_, W> {
    fn event(&mut self, event: &Event, names: &Names) -> io::Result<()> {
        let thread = event.thread();
        let tid = tid(thread);
        let closes = self.open.see(event);
        if !matches!(event.what, What::Lost(_)) {
            self.threads.insert(thread);
        }
        let values = self.values;
        let details = |call: &Call| Details {
            cpu: Some(event.cpu),
            ret: values.retval(call, names),
            caller: call.caller.map(|caller| names.caller(caller)),
            args: Some(values.args(call, names)).filter(|args| !args.is_empty()).map(Named),
            ..Details::default()
        };
        let failed = event.call().is_some_and(Call::has_failed);
        let (cat, cname) = if failed { (FAILED, Some(RED)) } else { (FUNCTION, None) };
        let base = Object { cat, cname, ts: us(event.time), tid, ..Object::default() };
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
                // Of a viewer's two halves, the arguments are in the first.
                let args = Details { args: None, ..details(call) };
                self.object(&Object { name: names.function(call.func), ph: "E", args, ..base })
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
