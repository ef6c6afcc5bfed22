//! From QEMU's loader to [`crate::kernel_main`].
//!
//! QEMU finds the entry in an ELF note (the PVH boot ABI of Xen) and enters it in 32-bit protected mode: flat
//! segments, no paging, interrupts off, `ebx` the address of the start info.

use core::arch::global_asm;

use super::{apic, clock, descriptors, host, memory, serial};

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

// State at each label: ebx is the start info; no stack until esp is set; everything else is free.
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
    "    lgdt [fgraph_demo_boot_gdt]",

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
    "    mov  esp, offset __boot_stack_top", // all of rsp, whose upper half was undefined
    "    mov  edi, ebx",                     // start info
    "    xor  ebp, ebp",                     // the frame chain ends here
    "    push 0",
    "    jmp  {boot}",
    ".size _start, . - _start",
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
);

/// The rest of the machine, in Rust, on the boot stack. A trap before the descriptors are there resets the
/// machine.
#[unsafe(link_section = ".text.notrace")]
extern "C" fn boot(start_info: usize) -> ! {
    descriptors::init();
    serial::init();
    memory::init();
    host::init(start_info);
    apic::init();
    clock::init();
    crate::kernel_main()
}
