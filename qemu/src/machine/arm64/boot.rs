//! From QEMU's loader to [`crate::kernel_main`].
//!
//! QEMU enters `_start` on CPU 0 with the MMU and caches off and everything masked, at EL1, or at EL2 if the
//! machine has `virtualization=on`. The other CPUs stay off until somebody asks PSCI for them.

use core::arch::global_asm;

use super::{clock, gic, memory, serial, trap};

// State at each label: no stack until `sp` is set, no Rust before; x0-x18 free. Rust runs with the MMU off
// once, to fill the page tables: that code has no atomics and no unaligned access, which Device memory would
// not take.
global_asm!(
    ".pushsection .text.notrace.boot, \"ax\", %progbits",
    ".global _start",
    ".type _start, %function",
    ".balign 16",
    "_start:",
    "    mrs  x9, CurrentEL",
    "    cmp  x9, #(2 << 2)",
    "    b.ne 3f",
    // EL2: give EL1 everything a guest could be denied, and go there.
    "    mov  x9, #(1 << 31)",
    "    msr  hcr_el2, x9",               // EL1 is AArch64, nothing of it is trapped
    "    mrs  x9, cnthctl_el2",
    "    orr  x9, x9, #3",
    "    msr  cnthctl_el2, x9",           // EL1 may use the physical counter and timer
    "    msr  cntvoff_el2, xzr",          // the virtual counter is the physical one
    "    mov  x9, #0x33ff",
    "    msr  cptr_el2, x9",              // floating point is EL1's affair
    "    msr  hstr_el2, xzr",
    "    mrs  x9, midr_el1",
    "    msr  vpidr_el2, x9",
    "    mrs  x9, mpidr_el1",
    "    msr  vmpidr_el2, x9",
    "    msr  vttbr_el2, xzr",
    "    mov  x9, #0xf",
    "    msr  S3_4_C12_C9_5, x9",         // ICC_SRE_EL2: EL1 may use the GIC's system registers
    "    isb",
    "    ldr  x9, ={sctlr_off}",
    "    msr  sctlr_el1, x9",
    "    mov  x9, #0x3c5",
    "    msr  spsr_el2, x9",              // EL1 with SP_EL1, all masked
    "    adr  x9, 3f",
    "    msr  elr_el2, x9",
    "    eret",

    // EL1, MMU off.
    "3:  msr  daifset, #0xf",
    "    msr  spsel, #1",
    "    msr  cpacr_el1, xzr",            // floating point traps
    "    msr  sp_el0, xzr",               // no current task
    "    msr  tpidr_el1, xzr",            // no per-CPU block
    "    ldr  x9, ={vectors}",
    "    msr  vbar_el1, x9",
    "    ldr  x9, =__bss_start",
    "    ldr  x10, =__bss_end",
    "4:  stp  xzr, xzr, [x9], #16",       // both ends are 16-aligned by the linker script
    "    cmp  x9, x10",
    "    b.lo 4b",
    "    ldr  x9, =__boot_stack_top",
    "    mov  sp, x9",
    "    mov  x29, xzr",                  // the frame chain ends here
    "    bl   {fill_tables}",             // x0: the root table

    "    ldr  x9, ={mair}",
    "    msr  mair_el1, x9",
    "    ldr  x9, ={tcr}",
    "    msr  tcr_el1, x9",
    "    msr  ttbr0_el1, x0",
    "    dsb  sy",                        // the tables are in memory before the walker may look
    "    tlbi vmalle1",
    "    ic   iallu",
    "    dsb  sy",
    "    isb",
    "    ldr  x9, ={sctlr_on}",
    "    msr  sctlr_el1, x9",
    "    isb",                            // from here on through the tables, identically mapped
    "    mov  x30, xzr",
    "    b    {boot}",
    "    .ltorg",
    "    .size _start, . - _start",
    ".popsection",
    sctlr_off = const memory::SCTLR_RES1,
    sctlr_on = const memory::SCTLR,
    mair = const memory::MAIR,
    tcr = const memory::TCR,
    vectors = sym trap::fgraph_demo_vectors,
    fill_tables = sym memory::fill_tables,
    boot = sym boot,
);

/// The rest of the machine, in Rust, on the boot stack with the MMU on.
#[unsafe(link_section = ".text.notrace")]
extern "C" fn boot() -> ! {
    serial::init();
    clock::init();
    gic::init_distributor();
    gic::init_cpu(0);
    crate::kernel_main()
}
