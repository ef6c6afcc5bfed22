//! The context switch.

use core::{
    arch::global_asm,
    mem::{offset_of, size_of},
    ptr,
    sync::atomic::Ordering,
};

use fgraph::unwind::Start;

use crate::{percpu::PerCpu, sched::Task};

/// What a task that does not run has on top of its stack; `Task::saved_sp` points here.
#[repr(C)]
struct Switched {
    r15: u64,
    r14: u64,
    r13: u64,
    r12: u64,
    rbx: u64,
    /// The frame record: rbp, and where `switch` returns to.
    record: [u64; 2],
}

/// What a task that never ran has on top of its stack.
#[repr(C)]
struct Prepared {
    /// `switch` returns into the entry.
    switched: Switched,
    /// Where the entry's return address would be: nobody called it.
    caller: u64,
}

const _: () = assert!(size_of::<Switched>() == 56 && offset_of!(Switched, record) == 40);
// The entry finds rsp as every function does, 8 below a multiple of 16.
const _: () = assert!(size_of::<Prepared>().is_multiple_of(16) && offset_of!(Prepared, caller) == 56);

// fgraph_demo_switch(rdi: prev, rsi: next). Interrupts are off. By the calling convention the caller expects
// rbx, rbp, r12-r15 and rsp back, which it gets when somebody switches to prev.
//
//      rsp on entry ->  +--------------------+
//                       | return address     |
//                       | rbp                |  <- rbp meanwhile
//                       | rbx                |
//                       | r12 ... r15        |
//  Task::saved_sp   ->  +--------------------+
//
// Between the writes that make next current and the change of stacks only an NMI can look. It finds next as the
// current task, restores what it changes of it, and uses a stack of its own.
global_asm!(
    ".set TASK_SAVED_SP, {saved_sp}",
    ".set TASK_TRACE, {task_trace}",
    ".set PER_CPU_CURRENT, {current}",
    ".set PER_CPU_TRACE, {trace}",
    ".pushsection .text.notrace.switch, \"ax\", @progbits",
    ".global fgraph_demo_switch",
    ".type fgraph_demo_switch, @function",
    ".balign 16",
    "fgraph_demo_switch:",
    "    push rbp",
    "    mov  rbp, rsp",
    "    push rbx",
    "    push r12",
    "    push r13",
    "    push r14",
    "    push r15",
    "    mov  [rdi + TASK_SAVED_SP], rsp",      // prev is as it will be found again
    "    mov  rax, [rsi + TASK_TRACE]",
    "    mov  gs:[PER_CPU_CURRENT], rsi",       // next is current
    "    mov  gs:[PER_CPU_TRACE], rax",
    "    mov  rsp, [rsi + TASK_SAVED_SP]",      // and runs on its own stack
    "    pop  r15",
    "    pop  r14",
    "    pop  r13",
    "    pop  r12",
    "    pop  rbx",
    "    pop  rbp",
    "    ret",                                  // into next's call of this, or its entry
    "    .size fgraph_demo_switch, . - fgraph_demo_switch",
    ".popsection",
    saved_sp = const offset_of!(Task, saved_sp),
    task_trace = const offset_of!(Task, trace),
    current = const offset_of!(PerCpu, current),
    trace = const offset_of!(PerCpu, trace),
);

unsafe extern "C" {
    fn fgraph_demo_switch(prev: *const u8, next: *const u8);
}

/// Stops running `prev`, runs `next`, and returns when something switches back. The caller holds the
/// scheduler's lock, with interrupts off, and `next` is a task that was switched away from or prepared.
#[inline(always)]
pub fn switch(prev: &'static Task, next: &'static Task) {
    // SAFETY: `next.saved_sp` is what this function or `prepare_stack` left there, and the scheduler's lock
    //         keeps every other CPU from running it.
    unsafe { fgraph_demo_switch(ptr::from_ref(prev).cast(), ptr::from_ref(next).cast()) }
}

/// Where a walk of the stack of `task` starts, which has been switched away from and stays so.
pub fn stopped_at(task: &Task) -> Start {
    let saved = task.saved_sp.load(Ordering::Relaxed);
    // SAFETY: what a task that does not run has on top of its stack.
    let switched = unsafe { &*ptr::with_exposed_provenance::<Switched>(saved) };
    let [fp, pc] = switched.record.map(|word| word as usize);
    Start::Called { pc, fp }
}

/// Builds what [`switch`] expects at the top of a new task's stack; returns the saved stack pointer. `top` is
/// the 16-aligned end of a stack on which nobody runs.
pub fn prepare_stack(top: usize, entry: extern "C" fn() -> !) -> usize {
    let saved_sp = top - size_of::<Prepared>();
    let record = [0, entry as usize as u64];
    let switched = Switched { r15: 0, r14: 0, r13: 0, r12: 0, rbx: 0, record };
    // SAFETY: the bytes below `top` belong to the new task, which does not run yet; 16-aligned as `top` is.
    unsafe {
        ptr::with_exposed_provenance_mut::<Prepared>(saved_sp).write(Prepared { switched, caller: 0 });
    }
    saved_sp
}
