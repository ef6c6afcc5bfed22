//! Arguments and return values by type: functions of Rust and of C that take and return every shape, and what is shown of them.
//!
//! Values are written in the callbacks, while what they lead to is still there: arguments at the entry, what was returned at the
//! return. The same calls are shown once more from the trace, which keeps registers and the beginning of what was returned in memory.

#[cfg(shapes_c)]
mod c;
mod rust;

use alloc::{boxed::Box, string::String, vec::Vec};
use core::fmt::Write;
use core::sync::atomic::Ordering::Relaxed;

use fgraph::btf::image::ImageError;
use fgraph::text::{CpuState, Options, Printer};
use fgraph::trace::Reading;
use fgraph::tracer::{self, Recorded};
use fgraph::values::{Entered, Returned, RetvalAt};
use fgraph::{EntryCall, FgraphOps, Filter, FtraceRegs, Regs, ReturnCall, Want};

use super::probe::{Graph, only};
use super::{CaseResult, Outcome, check, check_eq};
use crate::buffers::{self, Key};
use crate::lock::IrqLock;
use crate::percpu::MAX_CPUS;
use crate::tracing::Names;
use crate::types;

/// A call, and what is shown of it.
struct Shape {
    /// Which function.
    name: &'static str,
    func: fn() -> usize,
    /// Calls it.
    call: fn(),
    /// Its arguments. `#` stands for any address.
    args: &'static str,
    /// What it returned; empty where nothing is shown.
    ret: &'static str,
}

/// `shape!(function(arguments) => "what is shown of them", "what is shown of what it returned")`
macro_rules! shape {
    ($func:path, ($($arg:expr),*) => $args:expr, $ret:expr) => {
        $crate::cases::shapes::Shape {
            name: stringify!($func),
            func: || $crate::cases::probe::addr!($func),
            call: || {
                let _ = ::core::hint::black_box($func($(::core::hint::black_box($arg)),*));
            },
            args: $args,
            ret: $ret,
        }
    };
}
use shape;

/// Bytes of text that are kept of a call.
const ROOM: usize = 1024;

/// What was shown of the last call. Callbacks may not allocate.
struct Shown {
    args: Text,
    ret: Text,
    calls: usize,
}

struct Text {
    bytes: [u8; ROOM],
    len: usize,
}

impl Text {
    const EMPTY: Self = Self { bytes: [0; ROOM], len: 0 };

    fn string(&self) -> String {
        String::from_utf8_lossy(self.bytes.get(..self.len).unwrap_or_default()).into_owned()
    }
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let to = self.bytes.get_mut(self.len..self.len + text.len()).ok_or(core::fmt::Error)?;
        to.copy_from_slice(text.as_bytes());
        self.len += text.len();
        Ok(())
    }
}

static SHOWN: IrqLock<Shown> = IrqLock::new(Shown { args: Text::EMPTY, ret: Text::EMPTY, calls: 0 });

/// Where a large value is returned: arm64 has a register for it.
fn indirect(fregs: &FtraceRegs) -> Option<usize> {
    #[cfg(target_arch = "aarch64")]
    return Some(fregs.x[8]);
    #[cfg(target_arch = "x86_64")]
    return Some(fregs).and(None);
}

#[unsafe(link_section = ".text.notrace")]
fn entry(call: &mut EntryCall<'_, FtraceRegs>, _: &FgraphOps) -> Want {
    let Some(data) = call.reserve(1) else { return Want::Nothing };
    let fregs = call.fregs();
    let mut registers = [0; 8];
    let mut count = 0;
    for (n, register) in registers.iter_mut().enumerate() {
        let Some(value) = fregs.argument(n) else { break };
        *register = value;
        count += 1;
    }
    let entered = Entered {
        registers: &registers[..count],
        stack: Some(fregs.stack_arguments()),
        indirect: indirect(fregs),
    };
    let mut shown = SHOWN.lock();
    shown.args.len = 0;
    let _ = types::with_live(|types, values| match types.function_at(call.func().get() as u64) {
        Some(id) => {
            data[0].store(values.result_address(id, &entered).unwrap_or(0), Relaxed);
            values.write_args(id, &entered, &mut shown.args)
        }
        None => shown.args.write_str("no types"),
    });
    Want::Return
}

#[unsafe(link_section = ".text.notrace")]
fn ret(call: &mut ReturnCall<'_, FtraceRegs>, _: &FgraphOps) {
    let memory = call.data().map(|data| data[0].load(Relaxed));
    let registers = call.fregs().return_values();
    let returned = Returned { registers: &registers, memory, kept: &[] };
    let mut shown = SHOWN.lock();
    shown.ret.len = 0;
    shown.calls += 1;
    let _ = types::with_live(|types, values| match types.function_at(call.func().get() as u64) {
        Some(id) => values.write_retval(id, &returned, &mut shown.ret),
        None => shown.ret.write_str("no types"),
    });
}

/// Whether `shown` is `wanted`, in which `#` stands for hexadecimal digits, and the symbol behind them if there is one.
fn is_like(shown: &str, wanted: &str) -> bool {
    let Some((before, behind)) = wanted.split_once('#') else { return shown == wanted };
    let Some(rest) = shown.strip_prefix(before).and_then(|rest| rest.strip_prefix("0x")) else {
        return false;
    };
    let rest = rest.trim_start_matches(|c: char| c.is_ascii_hexdigit());
    let named = rest.strip_prefix(" <").and_then(|name| name.split_once('>')).map(|(_, rest)| rest);
    is_like(rest, behind) || named.is_some_and(|rest| is_like(rest, behind))
}

fn all_are_shown(shapes: &[Shape]) -> CaseResult {
    match types::opened() {
        Ok(_) => {}
        Err(ImageError::Empty { .. }) => return Err(Outcome::Skipped("no types are embedded in this image")),
        Err(error) => return Err(Outcome::Failed(alloc::format!("{error}"))),
    }
    let funcs: Vec<usize> = shapes.iter().map(|shape| (shape.func)()).collect();
    let user = Graph::register(entry, ret, only(&funcs), 0)?;
    let mut wrong = String::new();
    for shape in shapes {
        let before = SHOWN.lock().calls;
        (shape.call)();
        let (calls, args, ret) = {
            let shown = SHOWN.lock();
            (shown.calls - before, shown.args.string(), shown.ret.string())
        };
        check_eq!(calls, 1, shape.name);
        if !is_like(&args, shape.args) || !is_like(&ret, shape.ret) {
            let _ = write!(
                wrong,
                "\n    {}: `{args}` -> `{ret}` instead of `{}` -> `{}`",
                shape.name, shape.args, shape.ret
            );
        }
    }
    check!(wrong.is_empty(), "shown wrong:{wrong}");
    drop(user);
    all_are_in_the_trace(shapes, only(&funcs))
}

/// Memory for each CPU's records.
const BUFFER_KB: usize = 64;

/// The return values once more, from the records of function_graph. What was in vectors is not there.
fn all_are_in_the_trace(shapes: &[Shape], filter: Filter) -> CaseResult {
    // From here on each call has the registers that its function uses.
    let told = types::tell_tracer();
    check!(matches!(told, Ok(0)), "what functions return was told too late, or not: {told:?}");
    let before = tracer::recorded();
    tracer::set_recorded(Recorded::RETVAL | Recorded::SECOND);
    buffers::make(BUFFER_KB);
    buffers::switch(true);
    let ops: &'static FgraphOps = Box::leak(Box::new(tracer::function_graph(filter)));
    fgraph::register_ftrace_graph(ops)?;
    for shape in shapes {
        (shape.call)();
    }
    fgraph::unregister_ftrace_graph(ops)?;
    buffers::switch(false);
    tracer::set_recorded(before);

    let mut text = String::new();
    let mut cpus = [const { CpuState::NEW }; MAX_CPUS];
    let mut printer = Printer::new(Options::RETVAL | Options::TYPED, &mut cpus);
    buffers::with_trace(Reading::Peek, |trace| {
        let _ = trace.print(&mut printer, &Key, &Names, &mut text);
    });
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("();")).collect();
    check_eq!(lines.len(), shapes.len(), "calls in the trace");
    for (line, shape) in lines.iter().zip(shapes) {
        let at = types::with_live(|types, values| {
            values.retval_at(types.function_at((shape.func)() as u64).unwrap_or(0))
        });
        let wanted = if at == Ok(Some(RetvalAt::Lost)) { "" } else { shape.ret };
        let shown = line.split_once(" /* ret=").and_then(|(_, ret)| ret.strip_suffix(" */")).unwrap_or("");
        check!(is_like(shown, wanted), "{}: `{line}` in the trace instead of `{wanted}`", shape.name);
    }
    Ok(())
}

pub fn values_of_rust_are_shown_by_type() -> CaseResult {
    all_are_shown(rust::SHAPES)
}

pub fn values_of_c_are_shown_by_type() -> CaseResult {
    #[cfg(shapes_c)]
    return all_are_shown(c::SHAPES);
    #[cfg(not(shapes_c))]
    Err(Outcome::Skipped(env!("SHAPES_NO_C")))
}
