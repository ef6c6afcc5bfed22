//! From QEMU's loader to [`crate::kernel_main`], and on the other CPUs from reset to [`crate::smp::secondary_main`].
//!
//! QEMU finds the entry in an ELF note (the PVH boot ABI of Xen) and enters it in 32-bit protected mode: flat
//! segments, no paging, interrupts off, `ebx` the address of the start info. The other CPUs start in real mode, in a
//! copy of [`start_code`] at [`memory::START_PAGE`], when `cpus` says so.

use core::{arch::global_asm, cell::UnsafeCell, slice};

use super::{apic, clock, descriptors, host, memory, serial};
use crate::{percpu::MAX_CPUS, smp};

const CR0_PROTECTED: u32 = 1 << 0;
/// With this and without a floating-point unit to monitor, `x87` instructions trap.
const CR0_EMULATE: u32 = 1 << 2;
const CR0_NUMERIC_ERROR: u32 = 1 << 5;
/// Read-only pages are read-only for the kernel too.
const CR0_WRITE_PROTECT: u32 = 1 << 16;
const CR0_PAGING: u32 = 1 << 31;
const CR0: u32 = CR0_PROTECTED | CR0_EMULATE | CR0_NUMERIC_ERROR | CR0_WRITE_PROTECT | CR0_PAGING;

/// Page tables of 64-bit entries. Without `OSFXSR` next to it, vector instructions trap.
const CR4: u32 = 1 << 5;

const MSR_EFER: u32 = 0xc000_0080;
const EFER_LONG_MODE: u32 = 1 << 8;
const EFER_NO_EXECUTE: u32 = 1 << 11;

/// The type of the note that says where a PVH loader enters.
const NOTE_PHYS32_ENTRY: u32 = 18;

/// Bytes of each stack of [`STACKS`]; a power of two, as the boot code shifts by its logarithm.
const STACK_SIZE: usize = 32 << 10;
const _: () = assert!(STACK_SIZE.is_power_of_two());

/// What the idle tasks of the other CPUs run on.
#[repr(C, align(16))]
struct Stacks(UnsafeCell<[[u8; STACK_SIZE]; MAX_CPUS - 1]>);

// SAFETY: nothing touches the bytes through this static; each CPU has one stack for itself.
unsafe impl Sync for Stacks {}

static STACKS: Stacks = Stacks(UnsafeCell::new([[0; STACK_SIZE]; MAX_CPUS - 1]));

/// 32-bit code, and data, for ring 0, over all of the address space.
const CODE_SEGMENT_32: u64 = 0x00cf_9b00_0000_ffff;
const DATA_SEGMENT_32: u64 = 0x00cf_9300_0000_ffff;

// State at each label: ebx is the start info or, on the other CPUs, the CPU's number; esi is the function that goes on
// with that in 64-bit mode; no stack until esp is set; everything else is free.
//
// What is between `fgraph_demo_start` and `fgraph_demo_start_end` is copied to a page below 1 MiB. It runs there with cs
// being the page's, ip 0, and interrupts off, and may use no address of its own but relative to its start.
//
// The tables below serve from here to `memory::init`: the first 512 MiB, identically, writable and executable.
// They are in rodata, where only the CPU writes, which is how it notes accesses.
global_asm!(
    ".pushsection .note.Xen, \"a\", @note",
    ".balign 4",
    ".long 4, 8, {note}",                    // lengths of name and value, type
    ".asciz \"Xen\"",
    ".quad _start",
    ".popsection",

    ".pushsection .rodata.boot, \"a\", @progbits",
    ".balign 4096",
    "2:  .quad 3f + {table}",
    "    .fill 511, 8, 0",
    "3:  .quad 4f + {table}",
    "    .fill 511, 8, 0",
    "4:",
    ".set fgraph_demo_block, 0",
    ".rept 256",
    "    .quad fgraph_demo_block + {block}",
    ".set fgraph_demo_block, fgraph_demo_block + {block_size}",
    ".endr",
    "    .fill 256, 8, 0",
    ".set fgraph_demo_boot_tables, 2b",
    "5:  .word {gdt_limit}",                 // what lgdt reads
    "    .quad {gdt}",
    ".set fgraph_demo_boot_gdt, 5b",
    ".balign 8",
    "6:  .quad 0, {code_32}, {data_32}",
    ".code16",
    ".global fgraph_demo_start",
    ".global fgraph_demo_start_end",
    "fgraph_demo_start:",
    "    cli",
    "    cld",
    "    mov  ax, cs",
    "    mov  ds, ax",
    "    .byte 0x66",                        // lgdt takes 32 bits of the address
    "    lgdt [fgraph_demo_start_gdt]",
    "    mov  eax, cr0",
    "    or   al, {cr0_protected}",
    "    mov  cr0, eax",
    "    .byte 0x66, 0xea",                  // jmp 8:fgraph_demo_secondary, the offset being 32 bits
    "    .long fgraph_demo_secondary",
    "    .word 8",
    "7:  .word 3 * 8 - 1",                   // what lgdt reads
    "    .long 6b",
    "fgraph_demo_start_end:",
    ".set fgraph_demo_start_gdt, 7b - fgraph_demo_start",
    ".code64",
    ".popsection",

    ".pushsection .data.boot, \"aw\", @progbits",
    ".balign 4",
    "8:  .long 1",                           // the number of the CPU that comes next
    ".set fgraph_demo_next_cpu, 8b",
    ".popsection",

    ".pushsection .text.notrace.boot, \"ax\", @progbits",
    ".global _start",
    ".type _start, @function",
    ".balign 16",
    ".code32",
    "_start:",
    "    cli",
    "    cld",
    "    mov  edi, offset __bss_start",
    "    mov  ecx, offset __bss_end",
    "    sub  ecx, edi",                     // both ends are 16-aligned by the linker script
    "    shr  ecx, 2",
    "    xor  eax, eax",
    "    rep  stosd",
    "    mov  esp, offset __boot_stack_top",
    "    mov  esi, offset {boot}",

    // All CPUs: 32-bit code, flat segments, a stack.
    "3:  lgdt [fgraph_demo_boot_gdt]",
    "    mov  eax, {cr4}",
    "    mov  cr4, eax",
    "    mov  eax, offset fgraph_demo_boot_tables",
    "    mov  cr3, eax",
    "    mov  ecx, {msr_efer}",
    "    xor  edx, edx",
    "    mov  eax, {efer}",
    "    wrmsr",
    "    mov  eax, {cr0}",
    "    mov  cr0, eax",                     // paging, and so long mode, but still 32-bit code
    "    push {code}",
    "    lea  eax, [2f]",
    "    push eax",
    "    retf",

    ".code64",
    "2:  mov  eax, {data}",
    "    mov  ds, eax",
    "    mov  es, eax",
    "    mov  ss, eax",
    "    xor  eax, eax",
    "    mov  fs, eax",
    "    mov  gs, eax",                      // base 0, which is unmapped: no per-CPU block yet
    "    mov  esp, esp",                     // clears the upper half, which was undefined
    "    mov  esi, esi",
    "    mov  edi, ebx",                     // start info or number
    "    xor  ebp, ebp",                     // the frame chain ends here
    "    push 0",
    "    jmp  rsi",
    ".size _start, . - _start",

    // The other CPUs, in 32-bit mode, with the segments of the start code.
    ".type fgraph_demo_secondary, @function",
    ".balign 16",
    ".code32",
    "fgraph_demo_secondary:",
    "    mov  eax, 16",
    "    mov  ds, eax",
    "    mov  es, eax",
    "    mov  ss, eax",
    "    mov  ebx, 1",
    "    lock xadd [fgraph_demo_next_cpu], ebx",
    "    cmp  ebx, {max_cpus}",
    "    jae  2f",
    "    mov  esp, ebx",
    "    shl  esp, {stack_shift}",           // CPU 1 has the first stack, which ends one size behind the start
    "    add  esp, offset {stacks}",
    "    mov  esi, offset {boot_secondary}",
    "    jmp  3b",
    "2:  hlt",                               // nobody knows this CPU
    "    jmp  2b",
    ".size fgraph_demo_secondary, . - fgraph_demo_secondary",
    ".code64",
    ".popsection",
    note = const NOTE_PHYS32_ENTRY,
    table = const memory::TABLE,
    block = const memory::BOOT_BLOCK,
    block_size = const memory::BLOCK_SIZE,
    gdt = sym descriptors::GDT,
    gdt_limit = const descriptors::GDT_LIMIT,
    code = const descriptors::CODE,
    data = const descriptors::DATA,
    cr0 = const CR0,
    cr4 = const CR4,
    msr_efer = const MSR_EFER,
    efer = const EFER_LONG_MODE | EFER_NO_EXECUTE,
    boot = sym boot,
    boot_secondary = sym boot_secondary,
    code_32 = const CODE_SEGMENT_32,
    data_32 = const DATA_SEGMENT_32,
    cr0_protected = const CR0_PROTECTED,
    max_cpus = const MAX_CPUS,
    stacks = sym STACKS,
    stack_shift = const STACK_SIZE.trailing_zeros(),
);

unsafe extern "C" {
    static fgraph_demo_start: u8;
    static fgraph_demo_start_end: u8;
}

/// What the other CPUs start with.
pub(super) fn start_code() -> &'static [u8] {
    let (start, end) = (&raw const fgraph_demo_start, &raw const fgraph_demo_start_end);
    // SAFETY: the bytes between the two labels, which are read-only data.
    unsafe { slice::from_raw_parts(start, end.addr() - start.addr()) }
}

/// The rest of the machine, in Rust, on the boot stack. A trap before the descriptors are there resets the
/// machine.
#[unsafe(link_section = ".text.notrace")]
extern "C" fn boot(start_info: usize) -> ! {
    descriptors::init(0);
    serial::init();
    memory::init();
    host::init(start_info);
    apic::init(0);
    clock::init();
    crate::kernel_main()
}

/// The rest of CPU `cpu`, in Rust, on its boot stack, while the others run.
#[unsafe(link_section = ".text.notrace")]
extern "C" fn boot_secondary(cpu: usize) -> ! {
    descriptors::init(cpu);
    memory::activate();
    apic::init(cpu);
    smp::secondary_main(cpu)
}
