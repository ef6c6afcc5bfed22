//! From QEMU's loader to [`crate::kernel_main`], and on the other CPUs from PSCI to [`crate::smp::secondary_main`].
//!
//! QEMU enters `_start` on CPU 0 with the MMU and caches off and everything masked, at EL1, or at EL2 if the
//! machine has `virtualization=on`. The other CPUs stay off until `cpus` asks PSCI for them, which enters
//! [`fgraph_demo_secondary`] in the same state, with the CPU's number in x0.

use core::{arch::global_asm, cell::UnsafeCell};

use super::{clock, cpu, cpus, gic, guard::Keys, memory, serial, trap};
use crate::{percpu::MAX_CPUS, smp};

/// Bytes of each stack of [`STACKS`]; a power of two, as the boot code shifts by its logarithm.
const STACK_SIZE: usize = 32 << 10;
const _: () = assert!(STACK_SIZE.is_power_of_two());

/// What the idle tasks of the other CPUs run on.
#[repr(C, align(16))]
struct Stacks(UnsafeCell<[[u8; STACK_SIZE]; MAX_CPUS - 1]>);

// SAFETY: nothing touches the bytes through this static; each CPU has one stack for itself.
unsafe impl Sync for Stacks {}

static STACKS: Stacks = Stacks(UnsafeCell::new([[0; STACK_SIZE]; MAX_CPUS - 1]));

/// `HCR_EL2`: EL1 is AArch64, and neither keys nor instructions that sign addresses are trapped, nor anything else.
const HCR: u64 = 1 << 31 | 1 << 41 | 1 << 40;

// State at each label: x20 is the CPU's number; from 3 on, x21 is CurrentEL as it was entered with; no stack until `sp`
// is set, no Rust before; x0-x18 free. Rust runs with the MMU off
// once, to fill the page tables: that code has no atomics and no unaligned access, which Device memory would
// not take.
global_asm!(
    ".pushsection .text.notrace.boot, \"ax\", %progbits",
    ".global _start",
    ".type _start, %function",
    ".balign 16",
    "_start:",
    "    mov  x20, xzr",
    "2:  mrs  x21, CurrentEL",
    "    cmp  x21, #(2 << 2)",
    "    b.ne 3f",
    // EL2: give EL1 everything a guest could be denied, and go there.
    "    ldr  x9, ={hcr}",
    "    msr  hcr_el2, x9",
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
    "    ldr  x9, ={cpacr}",              // on every CPU: compiled code may use vector registers anywhere
    "    msr  cpacr_el1, x9",
    "    isb",
    "    msr  sp_el0, xzr",               // no current task
    "    msr  tpidr_el1, xzr",            // no per-CPU block
    "    ldr  x9, ={vectors}",
    "    msr  vbar_el1, x9",
    "    cbnz x20, 6f",
    "    ldr  x9, =__bss_start",
    "    ldr  x10, =__bss_end",
    "4:  stp  xzr, xzr, [x9], #16",       // both ends are 16-aligned by the linker script
    "    cmp  x9, x10",
    "    b.lo 4b",
    "    ldr  x9, =__boot_stack_top",
    "    mov  sp, x9",
    "    mov  x29, xzr",                  // the frame chain ends here
    "    bl   {fill_tables}",             // x0: the root table
    "    b    7f",

    // Another CPU; memory is as the first one made it. CPU 1 has the first stack, which ends one size behind the start.
    "6:  ldr  x9, ={stacks}",
    "    add  x9, x9, x20, lsl #{stack_shift}",
    "    mov  sp, x9",
    "    mov  x29, xzr",
    "    ldr  x0, ={tables}",

    "7:  ldr  x9, ={mair}",
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
    "    mrs  x10, id_aa64isar1_el1",
    "    ubfx x10, x10, #4, #8",          // API, APA: signing of addresses by one algorithm or another
    "    mrs  x11, S3_0_C0_C6_2",         // ID_AA64ISAR2_EL1
    "    ubfx x11, x11, #12, #4",         // APA3: a third
    "    orr  x10, x10, x11",
    "    cbz  x10, 5f",
    "    ldr  x10, ={key}",               // the idle task's; the switch to a task brings the task's own
    "    msr  S3_0_C2_C1_0, x10",         // APIAKeyLo_EL1
    "    mvn  x10, x10",
    "    msr  S3_0_C2_C1_1, x10",         // APIAKeyHi_EL1
    "    ldr  x10, ={signed_returns}",
    "    orr  x9, x9, x10",
    "5:  msr  sctlr_el1, x9",
    "    isb",                            // from here on through the tables, identically mapped
    "    mov  x30, xzr",
    "    mov  x0, x20",
    "    mov  x1, x21",
    "    cbnz x20, 8f",
    "    b    {boot}",
    "8:  b    {boot_secondary}",
    "    .ltorg",
    "    .size _start, . - _start",

    ".global fgraph_demo_secondary",
    ".type fgraph_demo_secondary, %function",
    "fgraph_demo_secondary:",
    "    mov  x20, x0",
    "    b    2b",
    "    .size fgraph_demo_secondary, . - fgraph_demo_secondary",
    ".popsection",
    hcr = const HCR,
    key = const Keys::BOOT_LOW,
    signed_returns = const memory::SCTLR_SIGNED_RETURNS,
    sctlr_off = const memory::SCTLR_RES1,
    sctlr_on = const memory::SCTLR,
    cpacr = const cpu::CPACR,
    mair = const memory::MAIR,
    tcr = const memory::TCR,
    vectors = sym trap::fgraph_demo_vectors,
    fill_tables = sym memory::fill_tables,
    boot = sym boot,
    boot_secondary = sym boot_secondary,
    tables = sym memory::TABLES,
    stacks = sym STACKS,
    stack_shift = const STACK_SIZE.trailing_zeros(),
);

unsafe extern "C" {
    /// Where the other CPUs start; not a function to call.
    pub(super) fn fgraph_demo_secondary();
}

/// The rest of the machine, in Rust, on the boot stack with the MMU on. `entered` is `CurrentEL` as it was at `_start`.
#[unsafe(link_section = ".text.notrace")]
extern "C" fn boot(_cpu: usize, entered: u64) -> ! {
    cpus::init(entered);
    serial::init();
    clock::init();
    gic::init_distributor();
    gic::init_cpu(0);
    crate::kernel_main()
}

/// The rest of CPU `cpu`, in Rust, on its boot stack with the MMU on, while the others run.
#[unsafe(link_section = ".text.notrace")]
extern "C" fn boot_secondary(cpu: usize) -> ! {
    gic::init_cpu(cpu);
    smp::secondary_main(cpu)
}
