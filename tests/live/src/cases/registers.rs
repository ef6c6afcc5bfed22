//! What is in registers and on the stack comes through trampolines whose callbacks overwrite all that they may.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use fgraph::{
    EntryCall, FgraphOps, FtraceOps, FtraceRegs, FuncAddr, OpsFlags, Regs, RetAddr, ReturnCall, Saved, Want,
};

use crate::log::{self, Kind};
use crate::machine::{self, CALLEE_SAVED, NOT_KEPT, Registers, live_call, live_probe};
use crate::process::{self, Thread};
use crate::records;
use crate::users::{User, addr, assert_settled, only};

/// A block in which every register has a value of its own.
fn pattern(seed: usize) -> Registers {
    let mut registers = Registers::ZERO;
    for (number, word) in registers.general.iter_mut().enumerate() {
        *word = (0x0101_0101_0101_0101 * seed) ^ (number << 8) ^ 0xa5;
    }
    for (number, words) in registers.vector.iter_mut().enumerate() {
        *words = [(0x1111_0000 * seed + number) as u64, (0x2222_0000_0000 * seed + number) as u64];
    }
    registers
}

/// What is done under a set of users, by their name; who knows which functions they were told of since that was last asked.
type UnderUsers<'b> = &'b mut dyn FnMut(&str, fn() -> Vec<FuncAddr>);

/// The set of no users.
const NOBODY: &str = "nobody";

/// Runs `body` under each set of users whose trampolines save and restore in a different way, [`NOBODY`] first.
fn with_each_set_of_users(funcs: &[FuncAddr], body: UnderUsers<'_>) {
    for (name, flags, graph) in [
        (NOBODY, None, false),
        ("args", Some(OpsFlags::empty()), false),
        ("regs", Some(OpsFlags::SAVE_REGS), false),
        ("graph", None, true),
        ("args and graph", Some(OpsFlags::empty()), true),
        ("regs and graph", Some(OpsFlags::SAVE_REGS), true),
    ] {
        let op = flags.map(|flags| User::op(log::op, flags, only(funcs)));
        let graph = graph.then(|| User::noting(only(funcs)));
        body(name, || log::take().iter().map(|event| event.func).collect());
        drop((op, graph));
    }
    records::open();
    let _tracer = User::tracing(only(funcs));
    body("tracer", || records::take().iter().map(|(func, _)| *func).collect());
}

/// Calls `live_probe` with every register of one pattern; it leaves those of another. Gives back what it was entered with,
/// and what its caller got.
fn call_probe(before: &Registers, gives: &Registers) -> (Registers, Registers) {
    let mut after = Registers::ZERO;
    // SAFETY: the case is the only one that runs, so nobody else uses what it shares with the assembly; `live_probe` takes any
    // registers.
    unsafe {
        machine::GIVES = *gives;
        live_call(addr!(live_probe).get(), before, &mut after);
        (machine::SAW, after)
    }
}

pub fn registers_come_through() {
    process::init().expect("the sites are good");
    let (before, gives) = (pattern(3), pattern(7));
    let mut untraced_sp = None;
    with_each_set_of_users(&[addr!(live_probe)], &mut |users, told| {
        let (saw, after) = call_probe(&before, &gives);
        assert_eq!(told().is_empty(), users == NOBODY, "{users}: whether it is traced");
        for number in (0..machine::GENERAL).filter(|number| !NOT_KEPT.contains(number)) {
            let (saw, after) = (saw.general[number], after.general[number]);
            assert_eq!(saw, before.general[number], "{users}: general register {number} at the entry");
            let from = if CALLEE_SAVED.contains(&number) { &before } else { &gives };
            assert_eq!(after, from.general[number], "{users}: general register {number} at the return");
        }
        for number in 0..machine::VECTORS_KEPT {
            assert_eq!(
                saw.vector[number], before.vector[number],
                "{users}: vector register {number} at the entry"
            );
            assert_eq!(
                after.vector[number], gives.vector[number],
                "{users}: vector register {number} at the return"
            );
        }
        let sp = [&saw, &after].map(|registers| registers.general[machine::SP]);
        let untraced_sp = *untraced_sp.get_or_insert(sp);
        assert_eq!(sp, untraced_sp, "{users}: the stack pointer at the entry, and at the return");
    });
    assert_settled(Thread::current().expect("this thread is traced"));
}

pub fn the_regs_flavour_shows_every_register() {
    process::init().expect("the sites are good");
    let before = pattern(5);
    let _op = User::op(log::op, OpsFlags::SAVE_REGS, only(&[addr!(live_probe)]));
    let (saw, _) = call_probe(&before, &pattern(9));
    let [event] = log::take()[..] else { panic!("not one event") };
    assert_eq!((event.kind, event.saved), (Kind::Op, Saved::Regs));
    for number in (0..machine::GENERAL).filter(|number| !NOT_KEPT.contains(number)) {
        assert_eq!(event.general[number], before.general[number], "general register {number}");
    }
    assert_eq!(event.sp, saw.general[machine::SP], "the stack pointer");
    assert_eq!(event.general[machine::SP], event.sp, "the stack pointer, as a register");
}

pub fn flavours_follow_the_users() {
    process::init().expect("the sites are good");
    let funcs = [addr!(live_probe)];
    let saved = || {
        call_probe(&pattern(1), &pattern(2));
        log::take().iter().map(|event| (event.kind, event.saved)).collect::<Vec<_>>()
    };
    let args = User::op(log::op, OpsFlags::empty(), only(&funcs));
    assert_eq!(saved(), [(Kind::Op, Saved::Args)]);
    // On a site that is on already.
    let regs = User::op(log::op, OpsFlags::SAVE_REGS, only(&funcs));
    assert_eq!(saved(), [(Kind::Op, Saved::Regs); 2]);
    let graph = User::noting(only(&funcs));
    let entry_and_return = [(Kind::Entry, Saved::Regs), (Kind::Return, Saved::Return)];
    assert_eq!(saved(), [[(Kind::Op, Saved::Regs); 2], entry_and_return].concat());
    drop(regs);
    assert_eq!(saved(), [(Kind::Op, Saved::Args), (Kind::Entry, Saved::Args), (Kind::Return, Saved::Return)]);
    drop(args);
    assert_eq!(saved(), [(Kind::Entry, Saved::Args), (Kind::Return, Saved::Return)]);
    drop(graph);
    assert_eq!(saved(), []);
}

#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
struct Large([u64; 9]);

#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
struct TwoFloats(f64, f64);

#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
struct Mixed(f64, u64);

#[inline(never)]
extern "C" fn on_the_stack(
    a: u64,
    b: u64,
    c: u64,
    d: u64,
    e: u64,
    f: u64,
    g: u64,
    h: u64,
    i: u64,
    j: u8,
    k: u64,
) -> u64 {
    [a, b, c, d, e, f, g, h, i, u64::from(j), k].iter().fold(0, |sum, n| sum * 31 + black_box(n))
}

#[inline(never)]
extern "C" fn floats(a: f64, b: f64, c: f64, d: f64, e: f64, f: f64, g: f64, h: f64, i: f64) -> f64 {
    [a, b, c, d, e, f, g, h, i].iter().fold(0.0, |sum, n| sum * 3.0 + black_box(n))
}

#[inline(never)]
extern "C" fn in_memory(seed: u64) -> Large {
    Large(std::array::from_fn(|n| black_box(seed) * 7 + n as u64))
}

#[inline(never)]
fn wide(a: u128, b: u128) -> u128 {
    black_box(a).wrapping_mul(b)
}

#[inline(never)]
fn pair(a: u64, b: u64) -> (u64, u64) {
    (black_box(a) + 1, b * 2)
}

#[inline(never)]
extern "C" fn two_floats(a: f64, b: f64) -> TwoFloats {
    TwoFloats(black_box(a) * 2.0, b / 2.0)
}

#[inline(never)]
extern "C" fn mixed(a: u64, b: f32, c: u8, d: f64) -> Mixed {
    Mixed(black_box(f64::from(b)) + d, a + u64::from(c))
}

#[inline(never)]
extern "C" fn by_value(large: Large, n: u64) -> u64 {
    large.0.iter().fold(n, |sum, n| sum * 5 + black_box(n))
}

#[inline(never)]
fn text(words: &[&str], times: usize) -> String {
    black_box(words).concat().repeat(times)
}

#[inline(never)]
fn fallible(n: i32) -> Result<u8, String> {
    u8::try_from(black_box(n)).map_err(|error| format!("{n}: {error}"))
}

#[inline(never)]
#[cold]
fn cold(n: u32) -> Option<u32> {
    black_box(n).checked_sub(5)
}

/// The results of all of the functions above, as text.
fn results() -> String {
    let n = black_box(3u64);
    let x = black_box(1.5f64);
    [
        format!("{}", on_the_stack(n, n + 1, n + 2, n + 3, n + 4, n + 5, n + 6, n + 7, n + 8, 9, n + 10)),
        format!("{}", floats(x, x + 1.0, x + 2.0, x + 3.0, x + 4.0, x + 5.0, x + 6.0, x + 7.0, x + 8.0)),
        format!("{:?}", in_memory(n)),
        format!("{:x}", wide(u128::from(n) << 70 | 5, u128::MAX / 3)),
        format!("{:?}", pair(n, n)),
        format!("{:?}", two_floats(x, x)),
        format!("{:?}", mixed(n, 0.25, 200, x)),
        format!("{}", by_value(Large([n; 9]), n)),
        text(&["a", "bc"], 3),
        format!("{:?}", fallible(-1)),
        format!("{:?}", fallible(255)),
        format!("{:?}", cold(4)),
        format!("{:?}", cold(7)),
    ]
    .join("\n")
}

pub fn arguments_and_results_of_every_kind_come_through() {
    process::init().expect("the sites are good");
    let funcs = [
        addr!(on_the_stack),
        addr!(floats),
        addr!(in_memory),
        addr!(wide),
        addr!(pair),
        addr!(two_floats),
        addr!(mixed),
        addr!(by_value),
        addr!(text),
        addr!(fallible),
        addr!(cold),
    ];
    let untraced = results();
    with_each_set_of_users(&funcs, &mut |users, told| {
        assert_eq!(results(), untraced, "{users}");
        let mut told = told();
        told.sort_unstable();
        told.dedup();
        let traced = if users == NOBODY { 0 } else { funcs.len() };
        assert_eq!(told.len(), traced, "{users}: functions that were traced");
    });
    assert_settled(Thread::current().expect("this thread is traced"));
}

static FIRST_ON_STACK: AtomicUsize = AtomicUsize::new(0);

#[unsafe(link_section = ".text.notrace")]
fn read_stack(_ip: FuncAddr, _parent_ip: RetAddr, _ops: &FtraceOps, fregs: &mut FtraceRegs) {
    let first = std::ptr::with_exposed_provenance::<usize>(fregs.stack_arguments());
    // SAFETY: the traced function has arguments on the stack.
    FIRST_ON_STACK.store(unsafe { first.read() }, Relaxed);
}

pub fn an_op_reads_arguments_on_the_stack() {
    process::init().expect("the sites are good");
    let _op = User::op(read_stack, OpsFlags::empty(), only(&[addr!(on_the_stack)]));
    on_the_stack(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10);
    assert_eq!(FIRST_ON_STACK.load(Relaxed), machine::ARGUMENTS.len());
}

/// The worst alignment that a callback was called with, as the stack pointer's last bits.
static MISALIGNED: AtomicUsize = AtomicUsize::new(0);

#[inline(always)]
fn note_alignment() {
    MISALIGNED.fetch_or(machine::live_misalignment(), Relaxed);
    log::OPS.fetch_add(1, Relaxed);
    machine::clobber();
}

#[unsafe(link_section = ".text.notrace")]
fn aligned_op(_ip: FuncAddr, _parent_ip: RetAddr, _ops: &FtraceOps, _fregs: &mut FtraceRegs) {
    note_alignment();
}

#[unsafe(link_section = ".text.notrace")]
fn aligned_entry(_call: &mut EntryCall<'_, FtraceRegs>, _ops: &FgraphOps) -> Want {
    note_alignment();
    Want::Return
}

#[unsafe(link_section = ".text.notrace")]
fn aligned_return(_call: &mut ReturnCall<'_, FtraceRegs>, _ops: &FgraphOps) {
    note_alignment();
}

pub fn callbacks_run_on_an_aligned_stack() {
    process::init().expect("the sites are good");
    for flags in [OpsFlags::empty(), OpsFlags::SAVE_REGS] {
        let _op = User::op(aligned_op, flags, only(&[addr!(live_probe)]));
        let _graph = User::graph(aligned_entry, aligned_return, only(&[addr!(live_probe)]));
        call_probe(&pattern(1), &pattern(2));
    }
    assert_eq!((MISALIGNED.load(Relaxed), log::OPS.load(Relaxed)), (0, 6));
}
