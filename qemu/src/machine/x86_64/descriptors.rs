//! The descriptor tables: flat segments, a stack of its own for each trap that may come anywhere, and a gate
//! for each of the 256 vectors. The gates are the same for all CPUs; the rest each CPU has for itself.
//!
//! Invariant: an NMI, a double fault and a machine check find a good stack whatever `rsp` is. Everything else
//! stays on the interrupted stack. All gates keep interrupts off.

use core::{
    arch::asm,
    cell::UnsafeCell,
    mem::{offset_of, size_of},
    ptr,
};

use super::trap;
use crate::percpu::MAX_CPUS;

/// Selector of the kernel's code.
pub(super) const CODE: u16 = 8;
/// Selector of everything else.
pub(super) const DATA: u16 = 16;
/// Selector of the task state segment.
const TASK_STATE: u16 = 24;

/// 64-bit code, present, for ring 0, accessed.
const CODE_SEGMENT: u64 = 0x00af_9b00_0000_ffff;
/// Data, present, writable, for ring 0, accessed.
const DATA_SEGMENT: u64 = 0x00cf_9300_0000_ffff;
/// A task state segment that is present and in nobody's use; base and limit are 0.
const TASK_STATE_SEGMENT: u64 = 0x0000_8900_0000_0000;
/// An interrupt gate for ring 0; no offset and no selector yet.
const INTERRUPT_GATE: u64 = 0x0000_8e00_0000_0000;

/// Bytes of each stack of [`STACKS`]. The tracer runs in NMI handlers, and faults print.
const STACK_SIZE: usize = 16 << 10;

/// The traps with a stack of their own, by the number of their stack, which counts from 1.
const OWN_STACKS: [usize; 3] = [trap::NMI, trap::DOUBLE_FAULT, trap::MACHINE_CHECK];

/// A table, or a table for each CPU, that only [`init`] writes, and that belongs to the hardware afterwards.
#[repr(transparent)]
pub(super) struct Shared<T>(UnsafeCell<T>);

// SAFETY: `init` runs once on each CPU and writes what is this CPU's before the CPU could look; what is for all CPUs
//         the first one writes before there are others. Afterwards only the hardware reads and writes.
unsafe impl<T> Sync for Shared<T> {}

/// What `lgdt` is told besides the address.
pub(super) const GDT_LIMIT: u16 = 5 * 8 - 1;

/// The segments of each CPU. Without the last segment, which takes two entries, those of CPU 0 serve the boot code of
/// all CPUs too.
pub(super) static GDT: Shared<[[u64; 5]; MAX_CPUS]> =
    Shared(UnsafeCell::new([[0, CODE_SEGMENT, DATA_SEGMENT, 0, 0]; MAX_CPUS]));
const _: () = assert!(size_of::<[u64; 5]>() == GDT_LIMIT as usize + 1);

static IDT: Shared<[[u64; 2]; 256]> = Shared(UnsafeCell::new([[0; 2]; 256]));

static STACKS: [[Shared<Stack>; OWN_STACKS.len()]; MAX_CPUS] =
    [const { [const { Shared(UnsafeCell::new(Stack([0; STACK_SIZE]))) }; OWN_STACKS.len()] }; MAX_CPUS];

#[repr(C, align(16))]
struct Stack([u8; STACK_SIZE]);

/// The hardware's task state segment, of which long mode uses the stacks.
#[repr(C, packed(4))]
struct TaskState {
    reserved: u32,
    privilege_stacks: [u64; 3],
    reserved_2: u64,
    stacks: [u64; 7],
    reserved_3: u64,
    reserved_4: u16,
    /// Where the port permissions are: behind the segment, so there are none.
    ports: u16,
}

const _: () = assert!(size_of::<TaskState>() == 104 && offset_of!(TaskState, stacks) == 36);

static STATES: [Shared<TaskState>; MAX_CPUS] = [const {
    Shared(UnsafeCell::new(TaskState {
        reserved: 0,
        privilege_stacks: [0; 3],
        reserved_2: 0,
        stacks: [0; 7],
        reserved_3: 0,
        reserved_4: 0,
        ports: size_of::<TaskState>() as u16,
    }))
}; MAX_CPUS];

/// What `lgdt` and `lidt` read.
#[repr(C, packed(2))]
struct Pointer {
    limit: u16,
    address: usize,
}

/// Fills the tables of CPU `cpu`, which is the caller's, and makes the CPU use them. Called once on each CPU, by the
/// boot code, which uses the first [`GDT`] already; on CPU 0 before the others start.
#[unsafe(link_section = ".text.notrace")]
pub(super) fn init(cpu: usize) {
    if cpu == 0 {
        init_gates();
    }
    let state = STATES[cpu].0.get();
    let mut tops = [0; 7];
    for (top, stack) in tops.iter_mut().zip(&STACKS[cpu]) {
        *top = (stack.0.get().expose_provenance() + STACK_SIZE) as u64;
    }
    // SAFETY: this CPU's, and nobody uses it yet, see `Shared`.
    unsafe { (*state).stacks = tops };

    let base = state.expose_provenance() as u64;
    // SAFETY: as above; no other reference to this CPU's entry of the array is ever made.
    let gdt = unsafe { &mut *GDT.0.get().cast::<[u64; 5]>().add(cpu) };
    let entry = usize::from(TASK_STATE / 8);
    gdt[entry] = TASK_STATE_SEGMENT
        | (size_of::<TaskState>() as u64 - 1)
        | (base & 0xff_ffff) << 16
        | (base >> 24 & 0xff) << 56;
    gdt[entry + 1] = base >> 32;

    let segments = Pointer { limit: GDT_LIMIT, address: ptr::from_ref(gdt).expose_provenance() };
    let gates =
        Pointer { limit: size_of::<[[u64; 2]; 256]>() as u16 - 1, address: IDT.0.get().expose_provenance() };
    // SAFETY: 1. The segments in use are the same in this GDT. 2. All gates lead to handlers and all their stacks
    //         exist. 3. The selector is that of the segment described above. 4. No `nomem`: the tables are written
    //         before.
    unsafe {
        asm!(
            "lgdt [{segments}]",
            "lidt [{gates}]",
            "ltr {selector:x}",
            segments = in(reg) &raw const segments,
            gates = in(reg) &raw const gates,
            selector = in(reg) TASK_STATE,
            options(nostack, preserves_flags),
        );
    }
}

/// Fills the gates.
#[unsafe(link_section = ".text.notrace")]
fn init_gates() {
    // SAFETY: the only reference there ever is, see `Shared`.
    let idt = unsafe { &mut *IDT.0.get() };
    for (vector, gate) in idt.iter_mut().enumerate() {
        let handler = trap::stub(vector) as u64;
        let stack = OWN_STACKS.iter().position(|&own| own == vector).map_or(0, |index| index as u64 + 1);
        gate[0] = INTERRUPT_GATE
            | handler & 0xffff
            | u64::from(CODE) << 16
            | stack << 32
            | (handler >> 16 & 0xffff) << 48;
        gate[1] = handler >> 32;
    }
}
