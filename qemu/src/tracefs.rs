//! The tracer's files: what an embedder gives for them, and the files themselves.
//!
//! Memory of buffers is never freed; a buffer that is given back waits for the next one of its CPU that has its size.

use alloc::{boxed::Box, vec, vec::Vec};
use core::sync::atomic::AtomicU64;

use fgraph::ring::{Buffer, Mode};
use fgraph::text::{CpuState, Resolve};
use fgraph::trace::{Part, PartMemory};
use fgraph::tracefs::recording::{Host, InstanceMemory, ReaderMemory, RingTracing, TracingMemory};
use fgraph::tracefs::tracing::TracingError;
use fgraph::tracefs::{FileSets, InstancePlace, SetsMemory, Tracefs};
use fgraph::wire::tree::{Key, Node};
use fgraph::{FuncAddr, LiveFunctions, LiveInstance, LiveRecorder, MAX_INSTANCES, PROFILE_WORDS, ProfileRow};

use crate::{
    buffers::{self, PAGE_WORDS},
    lock::IrqLock,
    machine,
    percpu::MAX_CPUS,
    sched, smp,
    tracing::{self, Names},
};

/// KiB of each CPU's buffer at first, and at most.
const BUFFER_KB: u64 = 256;
const MOST_KB: u64 = 1024;

/// Records of a CPU that are put in order together. A call with more inside of it is shown without its opening.
const NODES: usize = 2048;

/// Words for what those have beside themselves.
const EXTRA_WORDS: usize = 8192;

/// Functions of modules that there is room for beside the kernel's own.
const MODULE_FUNCTIONS: usize = 64;

static TRACING: RingTracing = RingTracing::new(&Kernel, &LiveRecorder);
static FUNCTIONS: LiveFunctions = LiveFunctions::new(&TRACING, &Names);

static TRACINGS: [RingTracing; MAX_INSTANCES] = LiveInstance::tracings(&Kernel);
static INSTANCES: [LiveInstance; MAX_INSTANCES] = LiveInstance::all(&TRACINGS, &Names, BUFFER_KB);
static PLACES: [InstancePlace<'static>; MAX_INSTANCES] = LiveInstance::places(&INSTANCES);

/// This kernel.
struct Kernel;

/// Buffers that are in no ring.
static SPARE: IrqLock<Vec<&'static Buffer>> = IrqLock::new(Vec::new());

impl Host for Kernel {
    fn cpus(&self) -> usize {
        smp::count()
    }

    fn now_ns(&self) -> u64 {
        machine::clock_ns()
    }

    fn key(&self) -> &dyn Key {
        &buffers::Key
    }

    fn names(&self) -> &dyn Resolve {
        &Names
    }

    fn tasks(&self, each: &mut dyn FnMut(u32, &str)) {
        for pid in 0..sched::NAMED_TASKS as u32 {
            if let Some(name) = sched::name_of(pid) {
                each(pid, name);
            }
        }
    }

    fn buffer(&self, cpu: usize, kb: u64) -> Result<&'static Buffer, u64> {
        let kb = kb.max(PAGE_WORDS as u64 / 128).checked_next_power_of_two().filter(|kb| *kb <= MOST_KB);
        let words = kb.ok_or(MOST_KB)? as usize * 128;
        let is_it = |buffer: &&'static Buffer| usize::from(buffer.cpu()) == cpu && buffer.len() == words;
        let mut spare = SPARE.lock();
        if let Some(at) = spare.iter().position(is_it) {
            return Ok(spare.swap_remove(at));
        }
        drop(spare);
        let mut memory = Vec::new();
        memory.try_reserve_exact(words).map_err(|_| BUFFER_KB)?;
        memory.resize_with(words, || AtomicU64::new(0));
        let memory = Box::leak(memory.into_boxed_slice());
        let buffer = Buffer::new(cpu as u16, memory, PAGE_WORDS, Mode::Overwrite).map_err(|_| MOST_KB)?;
        Ok(Box::leak(Box::new(buffer)))
    }

    fn give_back(&self, buffer: &'static Buffer) {
        SPARE.lock().push(buffer);
    }

    fn instance_memory(&self) -> Option<InstanceMemory> {
        let sets = SetsMemory { sets: Box::leak(Box::new(FileSets::new())), functions: [&mut [], &mut []] };
        Some(InstanceMemory { readers: readers(), sets })
    }
}

fn leak<T>(values: Vec<T>) -> &'static mut [T] {
    Box::leak(values.into_boxed_slice())
}

fn reader() -> ReaderMemory {
    let part = |_| {
        let (page, nodes) = (leak(vec![0; PAGE_WORDS]), leak(vec![Node::EMPTY; NODES]));
        Part::idle(PartMemory { page, nodes, words: leak(vec![0; EXTRA_WORDS]) })
    };
    ReaderMemory {
        parts: leak((0..MAX_CPUS).map(part).collect()),
        printed: leak(vec![CpuState::NEW; MAX_CPUS]),
    }
}

fn readers() -> TracingMemory {
    TracingMemory { text: reader(), pipe: reader(), page: leak(vec![0; PAGE_WORDS]) }
}

/// Gives the files their memory. Once.
///
/// # Errors
/// [`TracingError::NoMemory`].
pub fn begin() -> Result<Tracefs<'static>, TracingError> {
    let functions = tracing::started().map_or(0, |report| report.sites) + MODULE_FUNCTIONS;
    let set = || leak(vec![FuncAddr::new(0); 2 * functions]);
    FUNCTIONS.lend_sets(SetsMemory { sets: Box::leak(Box::new(FileSets::new())), functions: [set(), set()] });
    FUNCTIONS.lend_profile_rows(leak(vec![ProfileRow::EMPTY; functions]));
    for cpu in 0..smp::count() {
        // There is no CPU with a table yet.
        let _ = FUNCTIONS.lend_profile(cpu, leak(vec![0; PROFILE_WORDS * functions]));
    }
    TRACING.begin(readers(), BUFFER_KB)?;
    Ok(Tracefs::new(&TRACING, FUNCTIONS.functions()).with_instances(&PLACES))
}
