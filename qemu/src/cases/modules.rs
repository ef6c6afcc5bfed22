//! Code that comes and goes while the kernel runs: its sites, its users, and nothing left behind.
//!
//! A module here is two small functions that are copied into a place kept free in the text, so that each load can put them
//! elsewhere and each unload can overwrite them with traps.

use alloc::{boxed::Box, vec, vec::Vec};
use core::hint::black_box;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

use fgraph::{
    Error, Filter, FtraceOps, FtraceRegs, FuncAddr, Hooking, Layouts, ModuleId, OpsFlags, RetAddr, SetChange,
    SiteSource, WhichSet,
};

use super::load;
use super::probe::{Graph, Op, Probe, note_entry, only};
use super::{CaseResult, Outcome, check, check_eq};
use crate::{machine, sched};

unsafe extern "C" {
    static case_module_space: u8;
    static case_module_space_end: u8;
    static case_module_template: u8;
    static case_module_padded: u8;
    static case_module_template_end: u8;
}

/// The second function, behind the first in the template.
const SECOND: usize = 32;

// The first function adds 100, the second 200. Once without landing pads, and once with them, for a kernel that has them.
#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(
    ".macro case_module_functions pad",
    ".balign 32",
    "\\pad",
    "nop",
    "nop",
    "add x0, x0, #100",
    "ret",
    ".balign 32",
    "\\pad",
    "nop",
    "nop",
    "add x0, x0, #200",
    "ret",
    ".balign 32",
    ".endm",
    ".pushsection .rodata.case_module, \"a\", @progbits",
    ".balign 32",
    "case_module_template:",
    "case_module_functions",
    "case_module_padded:",
    "case_module_functions \"hint #34\"", // bti c
    "case_module_template_end:",
    ".popsection",
    ".purgem case_module_functions",
    ".pushsection .text.case_module, \"ax\", @progbits",
    ".balign 64",
    "case_module_space:",
    ".fill 64, 4, 0xd4200000", // brk #0
    "case_module_space_end:",
    ".popsection",
);

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".macro case_module_functions pad",
    ".balign 32, 0xcc",
    "\\pad",
    ".byte 0x0f, 0x1f, 0x44, 0x00, 0x08",
    "lea rax, [rdi + 100]",
    "ret",
    ".balign 32, 0xcc",
    "\\pad",
    ".byte 0x90, 0x90, 0x90, 0x90, 0x90",
    "lea rax, [rdi + 200]",
    "ret",
    ".balign 32, 0xcc",
    ".endm",
    ".pushsection .rodata.case_module, \"a\", @progbits",
    ".balign 32",
    "case_module_template:",
    "case_module_functions",
    "case_module_padded:",
    "case_module_functions endbr64",
    "case_module_template_end:",
    ".popsection",
    ".purgem case_module_functions",
    ".pushsection .text.case_module, \"ax\", @progbits",
    ".balign 64",
    "case_module_space:",
    ".fill 256, 1, 0xcc", // int3
    "case_module_space_end:",
    ".popsection",
);

/// Bytes of a landing pad, on both machines.
const PAD: usize = 4;

/// How far behind its start a function's sled begins.
fn pad() -> usize {
    if machine::has_landing_pads() { PAD } else { 0 }
}

fn template() -> &'static [u8] {
    let [plain, padded, end] =
        [&raw const case_module_template, &raw const case_module_padded, &raw const case_module_template_end];
    let (start, end) = if machine::has_landing_pads() { (padded, end) } else { (plain, padded) };
    // SAFETY: the symbols bound the templates in read-only memory.
    unsafe { core::slice::from_raw_parts(start, end.addr() - start.addr()) }
}

#[unsafe(link_section = ".text.notrace")]
fn space() -> Range<usize> {
    (&raw const case_module_space).addr()..(&raw const case_module_space_end).addr()
}

/// The sites of a module, which are plain ones, whatever the kernel's are.
fn source(entries: &'static mut [usize], states: &'static mut [u64], text: Range<usize>) -> SiteSource {
    SiteSource { entries, states, text, notrace: 0..0, layouts: Layouts::Plain, hooking: Hooking::Balanced }
}

/// Writes text that nobody runs, and makes it visible to instruction fetch.
fn write_text(addr: usize, bytes: &[u8]) {
    for (n, byte) in bytes.iter().enumerate() {
        // SAFETY: the place is kept for this, and its alias is writable.
        unsafe { machine::text_alias(addr + n).write_volatile(*byte) };
    }
    #[cfg(target_arch = "aarch64")]
    for line in (addr & !15..addr + bytes.len()).step_by(16) {
        // SAFETY: cache maintenance of mapped text.
        unsafe {
            core::arch::asm!("dc cvau, {0}", "dsb ish", "ic ivau, {0}", "dsb ish", "isb", in(reg) line)
        };
    }
    machine::sync_cores();
}

/// A module that is loaded.
struct Module {
    id: ModuleId,
    base: usize,
    tables: (*mut usize, *mut u64),
}

impl Module {
    /// Copies the template to `offset` in the module space, and hands its sites over.
    fn load(offset: usize) -> Result<Self, Outcome> {
        let base = space().start + offset;
        write_text(base, template());
        let entries = Box::leak(Box::new([base + SECOND, base].map(|func| func + pad())));
        let states = Box::leak(Box::new([0; 2]));
        let tables = (entries.as_mut_ptr(), states.as_mut_ptr());
        let text = base..base + template().len();
        let source = source(entries, states, text);
        // SAFETY: nobody runs the module yet; tables and text stay until `unload`.
        let (id, report) = unsafe { fgraph::add_module(source) }?;
        check_eq!(report.sites, 2, "sites of the module");
        Ok(Self { id, base, tables })
    }

    fn funcs(&self) -> [usize; 2] {
        [self.base, self.base + SECOND]
    }

    fn call(&self, n: usize, value: usize) -> usize {
        call(self.funcs()[n], value)
    }

    /// Gives the sites back, overwrites the code, and frees the tables.
    fn unload(self) -> CaseResult {
        fgraph::remove_module(self.id)?;
        write_text(self.base, &vec![TRAP; template().len()]);
        // SAFETY: `load` leaked this box, and the tracer refers to it no more.
        drop(unsafe { Box::from_raw(self.tables.0.cast::<[usize; 2]>()) });
        // SAFETY: as above.
        drop(unsafe { Box::from_raw(self.tables.1.cast::<[u64; 2]>()) });
        Ok(())
    }
}

/// A byte that traps wherever a core begins to execute it (four make an undefined word on arm64).
const TRAP: u8 = if cfg!(target_arch = "x86_64") { 0xcc } else { 0 };

fn call(func: usize, value: usize) -> usize {
    // SAFETY: the template's functions take and return one number, and the module is loaded.
    let func: extern "C" fn(usize) -> usize = unsafe { core::mem::transmute(func) };
    func(black_box(value))
}

/// How many of the functions that can be traced are in the module space.
fn listed() -> usize {
    let mut listed = 0;
    fgraph::functions(|info| listed += usize::from(space().contains(&info.func.get())));
    listed
}

/// Entries in the module space.
static SEEN: AtomicUsize = AtomicUsize::new(0);

#[unsafe(link_section = ".text.notrace")]
fn count_in_space(ip: FuncAddr, _parent_ip: RetAddr, _ops: &FtraceOps, _fregs: &mut FtraceRegs) {
    SEEN.fetch_add(usize::from(space().contains(&ip.get())), Relaxed);
}

pub fn a_module_is_traced_while_it_is_loaded() -> CaseResult {
    SEEN.store(0, Relaxed);
    let _everything = Op::register(count_in_space, OpsFlags::empty(), Filter::ALL, 0)?;
    check_eq!(listed(), 0, "functions before");
    let module = Module::load(0)?;
    check_eq!(listed(), 2, "functions");
    let probe = Probe::new();
    {
        let _user = Graph::probing(probe, only(&module.funcs()))?;
        check_eq!(module.call(0, 1), 101, "first");
        check_eq!(module.call(1, 1), 201, "second");
    }
    let funcs: Vec<usize> = probe.log().iter().map(|event| event.func).collect();
    let [first, second] = module.funcs();
    check_eq!(funcs, [first, first, second, second], "functions seen");
    check_eq!(SEEN.load(Relaxed), 2, "entries seen by a user of everything that was there before");
    check_eq!(fgraph::ftrace_location(second).map(|found| found.0), Some(FuncAddr::new(second)), "location");
    module.unload()?;
    check_eq!(listed(), 0, "functions after");
    check_eq!(fgraph::ftrace_location(second), None, "location after");
    Ok(())
}

pub fn a_module_leaves_no_set_behind() -> CaseResult {
    let probe = Probe::new();
    let ops = FtraceOps::new(note_entry, OpsFlags::empty(), Filter::NONE).with_private(probe.word());
    let ops: &'static FtraceOps = Box::leak(Box::new(ops));
    fgraph::register_ftrace_function(ops)?;
    let result = (|| {
        let module = Module::load(0)?;
        let first = FuncAddr::new(module.funcs()[0]);
        fgraph::ftrace_set_filter(ops, WhichSet::Filter, SetChange::Add(&[first]))?;
        check_eq!(module.call(0, 1), 101, "result");
        check_eq!(probe.counts().0, 1, "entries");
        module.unload()?;
        // Another module at the same place is another module.
        let heir = Module::load(0)?;
        check_eq!(heir.call(0, 1), 101, "result");
        check_eq!(probe.counts().0, 1, "entries of the next module");
        heir.unload()?;
        let gone = fgraph::ftrace_set_filter(ops, WhichSet::Filter, SetChange::Add(&[first]));
        check_eq!(gone, Err(Error::NotTraceable { func: first }), "a function that is gone");
        Ok(())
    })();
    fgraph::unregister_ftrace_function(ops)?;
    result
}

/// Where the loaded module's first function is, or 0; and who is inside.
static LOADED: AtomicUsize = AtomicUsize::new(0);
static INSIDE: AtomicUsize = AtomicUsize::new(0);
static CALLS: AtomicU64 = AtomicU64::new(0);
static WRONG: AtomicU64 = AtomicU64::new(0);
static STOP: AtomicBool = AtomicBool::new(false);

fn load_task() {
    while !STOP.load(Relaxed) {
        INSIDE.fetch_add(1, SeqCst);
        let func = LOADED.load(SeqCst);
        if func != 0 {
            if call(func, 5) != 105 {
                WRONG.fetch_add(1, Relaxed);
            }
            CALLS.fetch_add(1, Relaxed);
        }
        INSIDE.fetch_sub(1, SeqCst);
        if func == 0 {
            sched::yield_now();
        }
    }
}

pub fn modules_come_and_go_under_load() -> CaseResult {
    // A module comes and goes in each.
    let rounds = load::rounds(100, 10_000);
    for counter in [&CALLS, &WRONG] {
        counter.store(0, Relaxed);
    }
    STOP.store(false, Relaxed);
    let probe = Probe::new();
    let user = Graph::probing(probe, Filter::ALL)?;
    let tasks: [_; 3] = core::array::from_fn(|_| sched::spawn("module user", load_task));
    let mut result = Ok(());
    for round in 0..rounds {
        let offset = if round % 2 == 0 { 0 } else { 64 };
        result = Module::load(offset).and_then(|module| {
            LOADED.store(module.funcs()[0], SeqCst);
            let target = CALLS.load(Relaxed) + 5;
            while CALLS.load(Relaxed) < target {
                sched::yield_now();
            }
            LOADED.store(0, SeqCst);
            // The module's owner knows when nobody is in it any more, return through the hooker included.
            while INSIDE.load(SeqCst) != 0 {
                sched::yield_now();
            }
            module.unload()
        });
        if result.is_err() {
            break;
        }
    }
    STOP.store(true, Relaxed);
    tasks.into_iter().for_each(sched::join);
    drop(user);
    result?;
    check_eq!(WRONG.load(Relaxed), 0, "wrong results");
    check!(CALLS.load(Relaxed) >= 5 * rounds, "only {} calls", CALLS.load(Relaxed));
    check_eq!(probe.mismatches.load(Relaxed), 0, "mismatches");
    check_eq!(listed(), 0, "functions left");
    Ok(())
}

pub fn a_module_with_wrong_bytes_is_refused() -> CaseResult {
    let base = space().start;
    write_text(base, template());
    // The second function's sled begins with something else.
    write_text(base + SECOND + pad(), &[0x12]);
    let entries = Box::leak(Box::new([base, base + SECOND].map(|func| func + pad())));
    let states = Box::leak(Box::new([0; 2]));
    let source = source(entries, states, base..base + template().len());
    // SAFETY: nobody runs the module; the tables are leaked.
    let refused = unsafe { fgraph::add_module(source) };
    let Err(error) = refused else {
        return Err(Outcome::Failed("a wrong module was taken".into()));
    };
    check_eq!(error.site().map(|site| site.get()), Some(base + SECOND + pad()), "the site named");
    check_eq!(listed(), 0, "functions");
    // Tracing goes on, and the place can be used.
    let module = Module::load(0)?;
    check_eq!(module.call(1, 1), 201, "result");
    module.unload()
}
