//! The types that `fgraph embed` put into this image, and values shown by them.
//!
//! A trace is shown long after its calls, so of memory only what nobody writes is read for it: text and rodata, where literals are. What
//! functions return in memory is recorded, as far as there is room in a record.

use alloc::{boxed::Box, vec::Vec};
use core::fmt;

use fgraph::FuncAddr;
use fgraph::btf::image::{ImageError, Types};
use fgraph::text::{NoNames, Resolve};
use fgraph::tracer::{self, Results, ReturnRegisters};
use fgraph::values::{Floats, Live, Machine, Memory, Nameless, Names, ResultAt, Typed, Values, Within};

use crate::{lock::IrqLock, machine, platform::Kernel, tracing};

fgraph::type_space!(512 * 1024);

unsafe extern "C" {
    /// Where the linker script ends what cannot be written.
    static __rodata_end: u8;
}

/// What was found when types were first asked for: that takes a walk over all of them.
static OPENED: IrqLock<Option<Result<Types<'static>, ImageError>>> = IrqLock::new(None);

/// The types, or why there are none.
pub fn opened() -> Result<Types<'static>, ImageError> {
    if let Some(opened) = *OPENED.lock() {
        return opened;
    }
    // Outside of the lock, as it takes its time. A second one finds the same.
    let opened = types();
    *OPENED.lock() = Some(opened);
    opened
}

/// This machine's convention; numbers are in vector registers where the target lets the compiler use them.
fn values<'a>(types: &Types<'a>, memory: &'a dyn Memory, names: &'a dyn Names) -> Values<'a> {
    let machine = if cfg!(target_arch = "x86_64") { Machine::X86_64 } else { Machine::Arm64 };
    let vectors = cfg!(any(target_feature = "neon", target_feature = "sse2"));
    let floats = if vectors { Floats::Vector } else { Floats::General };
    Values::new(types.btf(), machine).with_memory(memory).with_names(names).with_floats(floats)
}

/// Why the tracer does not know what functions return.
#[derive(Debug)]
pub enum Untold {
    /// There are no types.
    Types(ImageError),
    /// The text could not be changed.
    Text(fgraph::Error),
}

impl fmt::Display for Untold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Types(error) => write!(f, "no types: {error}"),
            Self::Text(error) => write!(f, "what is returned in memory is not recorded: {error}"),
        }
    }
}

/// Tells the tracer which functions return what in how many registers, or in memory. Before anything is traced. Of how many functions it
/// comes too late to record memory.
pub fn tell_tracer() -> Result<usize, Untold> {
    let told = with_live(|types, values| {
        let returned = |func: FuncAddr| {
            let id = types.function_at(func.get() as u64);
            let count = id.and_then(|id| values.return_registers(id));
            // One is shown as it is.
            (count.unwrap_or(1), id.and_then(|id| values.result_at(id)))
        };
        (0..)
            .map_while(tracer::numbered_function)
            .map(returned)
            .unzip::<_, _, Vec<u8>, Vec<Option<ResultAt>>>()
    });
    let (counts, results) = told.map_err(Untold::Types)?;
    tracer::set_return_registers(Box::leak(Box::new(ReturnRegisters::new(counts.leak()))));
    tracer::set_results(Box::leak(Box::new(Results::new(results.leak())))).map_err(Untold::Text)
}

/// Lets `with` show values of the moment by their types.
pub fn with_live<R>(with: impl FnOnce(&Types<'_>, Values<'_>) -> R) -> Result<R, ImageError> {
    let types = opened()?;
    let memory = Live::<Kernel>::new();
    let symbols = tracing::symbols();
    let names: &dyn Names = symbols.as_ref().map_or(&Nameless, |symbols| symbols);
    Ok(with(&types, values(&types, &memory, names)))
}

/// Lets `with` ask for values of recorded calls.
pub fn with_recorded<R>(with: impl FnOnce(&dyn Resolve) -> R) -> R {
    let Ok(types) = opened() else { return with(&NoNames) };
    let memory = Live::<Kernel>::new();
    let (start, end) = (machine::text_range().start as u64, (&raw const __rodata_end).addr() as u64);
    let constant = Within::new(&memory, start, end);
    let symbols = tracing::symbols();
    let names: &dyn Names = symbols.as_ref().map_or(&Nameless, |symbols| symbols);
    with(&Typed::new(&NoNames, &types, values(&types, &constant, names)))
}
