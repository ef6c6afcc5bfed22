//! The descriptor tables: flat segments, a stack of its own for each trap that may come anywhere, and a gate
//! for each of the 256 vectors.
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

/// A table that only the boot CPU writes, in [`init`], and that belongs to the CPU afterwards.
#[repr(transparent)]
pub(super) struct Shared<T>(UnsafeCell<T>);

// SAFETY: `init` runs once, on one CPU, before anything else could look; afterwards only the CPU reads and
//         writes.
unsafe impl<T> Sync for Shared<T> {}

/// What `lgdt` is told besides the address.
pub(super) const GDT_LIMIT: u16 = 5 * 8 - 1;

/// The segments. Without the last, which takes two entries, it serves the boot code too.
pub(super) static GDT: Shared<[u64; 5]> = Shared(UnsafeCell::new([0, CODE_SEGMENT, DATA_SEGMENT, 0, 0]));
const _: () = assert!(size_of::<Shared<[u64; 5]>>() == GDT_LIMIT as usize + 1);

static IDT: Shared<[[u64; 2]; 256]> = Shared(UnsafeCell::new([[0; 2]; 256]));

static STACKS: [Shared<Stack>; OWN_STACKS.len()] =
    [const { Shared(UnsafeCell::new(Stack([0; STACK_SIZE]))) }; OWN_STACKS.len()];

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

static STATE: Shared<TaskState> = Shared(UnsafeCell::new(TaskState {
    reserved: 0,
    privilege_stacks: [0; 3],
    reserved_2: 0,
    stacks: [0; 7],
    reserved_3: 0,
    reserved_4: 0,
    ports: size_of::<TaskState>() as u16,
}));

/// What `lidt` reads.
#[repr(C, packed(2))]
struct Pointer {
    limit: u16,
    address: usize,
}

/// Fills the tables and makes them those of this CPU. Called once, by the boot code, which uses [`GDT`]
/// already.
pub(super) fn init() {
    // SAFETY: of this and the next two: the only reference there ever is, see `Shared`.
    let state = unsafe { &mut *STATE.0.get() };
    // SAFETY: as above; the CPU reads the GDT again when a selector is loaded, and the entries it uses now
    //         are left alone.
    let gdt = unsafe { &mut *GDT.0.get() };
    // SAFETY: as above.
    let idt = unsafe { &mut *IDT.0.get() };

    let mut tops = [0; 7];
    for (top, stack) in tops.iter_mut().zip(&STACKS) {
        *top = (stack.0.get().expose_provenance() + STACK_SIZE) as u64;
    }
    state.stacks = tops;

    let base = ptr::from_ref(state).expose_provenance() as u64;
    let entry = usize::from(TASK_STATE / 8);
    gdt[entry] = TASK_STATE_SEGMENT
        | (size_of::<TaskState>() as u64 - 1)
        | (base & 0xff_ffff) << 16
        | (base >> 24 & 0xff) << 56;
    gdt[entry + 1] = base >> 32;

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

    let pointer = Pointer {
        limit: size_of::<[[u64; 2]; 256]>() as u16 - 1,
        address: ptr::from_ref(idt).expose_provenance(),
    };
    // SAFETY: 1. All gates lead to handlers and all their stacks exist. 2. The selector is that of the
    //         segment described above. 3. No `nomem`: the tables are written before.
    unsafe {
        asm!(
            "lidt [{pointer}]",
            "ltr {selector:x}",
            pointer = in(reg) &raw const pointer,
            selector = in(reg) TASK_STATE,
            options(nostack, preserves_flags),
        );
    }
}
