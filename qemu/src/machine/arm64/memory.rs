//! The address space: 39 bits, 4 KiB granule, one set of tables for good.
//!
//! | virtual | what | how |
//! | --- | --- | --- |
//! | 0x0800_0000 | GIC, 2 MiB | device |
//! | 0x0900_0000 | UART, 2 MiB | device |
//! | 0x4000_0000 | RAM, 512 MiB | text read-only and executable, rodata read-only, the rest writable |
//! | 0x10_4000_0000 | the same RAM | writable: the alias through which text is patched |
//!
//! Invariant: nothing is both writable and executable; `SCTLR_EL1.WXN` would see to it. Everything else is
//! unmapped, address 0 included.
//!
//! Text is guarded if all of it was compiled with landing pads: then an indirect branch to anywhere else faults, on
//! a CPU that has BTI.

use core::{arch::asm, cell::UnsafeCell, ops::Range, ptr};

use super::guard;
use crate::lock::IrqsOff;

const PAGE_SIZE: usize = 4096;
pub(super) const BLOCK_SIZE: usize = 2 << 20;

/// Start of RAM on the `virt` machine, and how much of it this kernel maps (QEMU's `-m 512M`).
const RAM: usize = 0x4000_0000;
const RAM_SIZE: usize = 512 << 20;

/// The 2 MiB that hold the GIC's distributor and redistributors, and those that hold the UART.
pub(super) const GIC: usize = 0x0800_0000;
const UART: usize = 0x0900_0000;

/// From an address in RAM to its alias.
const ALIAS_OFFSET: usize = 0x10_0000_0000;

/// How many of the first blocks of RAM are mapped by pages; the linker script asserts that the read-only part
/// fits.
const PAGED_BLOCKS: usize = 8;

/// `MAIR_EL1`: 0 is normal write-back memory, 1 is Device-nGnRE.
pub(super) const MAIR: u64 = 0x04_ff;
const NORMAL: u64 = 0;
const DEVICE: u64 = 1 << 2;

/// `TCR_EL1`: 39 bits through TTBR0, walks cacheable and inner shareable, 4 KiB granule; no TTBR1; 40-bit
/// physical.
pub(super) const TCR: u64 = 25 | 0b01 << 8 | 0b01 << 10 | 0b11 << 12 | 1 << 23 | 0b010 << 32;

/// `SCTLR_EL1` with everything off: the bits that are 1 on this CPU whatever one wants.
pub(super) const SCTLR_RES1: u64 = 1 << 11 | 1 << 20 | 1 << 22 | 1 << 23 | 1 << 28 | 1 << 29;
/// `SCTLR_EL1.EnIA`: return addresses are signed, with key A, where code was compiled to do so.
pub(super) const SCTLR_SIGNED_RETURNS: u64 = 1 << 31;
/// `SCTLR_EL1` as the kernel runs: MMU, data cache, stack alignment check, instruction cache, no execution of
/// what is writable.
pub(super) const SCTLR: u64 = SCTLR_RES1 | 1 | 1 << 2 | 1 << 3 | 1 << 12 | 1 << 19;

// Descriptor bits, Arm ARM D8.3.
const TABLE: u64 = 0b11;
const PAGE: u64 = 0b11;
const BLOCK: u64 = 0b01;
const ACCESSED: u64 = 1 << 10;
const INNER_SHAREABLE: u64 = 0b11 << 8;
const READ_ONLY: u64 = 1 << 7;
const GUARDED: u64 = 1 << 50;
const NOT_EXECUTABLE: u64 = 1 << 53;
const NOT_EXECUTABLE_BY_EL0: u64 = 1 << 54;

const WRITABLE_MEMORY: u64 = NORMAL | ACCESSED | INNER_SHAREABLE | NOT_EXECUTABLE | NOT_EXECUTABLE_BY_EL0;
const READ_ONLY_MEMORY: u64 = WRITABLE_MEMORY | READ_ONLY;
const TEXT_MEMORY: u64 = NORMAL | ACCESSED | INNER_SHAREABLE | READ_ONLY | NOT_EXECUTABLE_BY_EL0;
const DEVICE_MEMORY: u64 = DEVICE | ACCESSED | NOT_EXECUTABLE | NOT_EXECUTABLE_BY_EL0;

unsafe extern "C" {
    static __text_start: u8;
    static __text_end: u8;
    static __rodata_end: u8;
}

/// A table of any level.
#[repr(C, align(4096))]
struct Table([u64; 512]);

/// All tables.
#[repr(C)]
struct Tables {
    /// Level 1, an entry for each GiB.
    root: Table,
    /// Level 2: the devices, RAM, and RAM's alias.
    devices: Table,
    ram: Table,
    alias: Table,
    /// Level 3: the first blocks of RAM.
    pages: [Table; PAGED_BLOCKS],
}

/// The tables as a static that only `fill_tables` writes.
pub(super) struct Shared(UnsafeCell<Tables>);

// SAFETY: `fill_tables` runs once, on one CPU, before anything else could look; afterwards only the MMU reads
//         them.
unsafe impl Sync for Shared {}

/// The root comes first: where this is, is what `TTBR0_EL1` says.
pub(super) static TABLES: Shared = Shared(UnsafeCell::new(Tables {
    root: Table([0; 512]),
    devices: Table([0; 512]),
    ram: Table([0; 512]),
    alias: Table([0; 512]),
    pages: [const { Table([0; 512]) }; PAGED_BLOCKS],
}));

/// Fills the tables and returns the address of the root. Called once, by the boot code, with the MMU off.
#[unsafe(link_section = ".text.notrace")]
pub(super) extern "C" fn fill_tables() -> *const u8 {
    // SAFETY: the only reference there ever is, see `Shared`; the static is zero-initialised, so it is valid.
    let tables = unsafe { &mut *TABLES.0.get() };
    let address = |table: &Table| ptr::from_ref(table).addr() as u64;
    let Tables { root, devices, ram, alias, pages } = tables;
    let guarded = if guard::has_landing_pads() { GUARDED } else { 0 };

    root.0[0] = address(devices) | TABLE;
    root.0[RAM >> 30] = address(ram) | TABLE;
    root.0[(RAM + ALIAS_OFFSET) >> 30] = address(alias) | TABLE;

    devices.0[GIC / BLOCK_SIZE] = GIC as u64 | DEVICE_MEMORY | BLOCK;
    devices.0[UART / BLOCK_SIZE] = UART as u64 | DEVICE_MEMORY | BLOCK;

    for index in 0..RAM_SIZE / BLOCK_SIZE {
        let block = (RAM + index * BLOCK_SIZE) as u64 | WRITABLE_MEMORY | BLOCK;
        alias.0[index] = block;
        ram.0[index] = block;
    }
    for (index, table) in pages.iter_mut().enumerate() {
        ram.0[index] = address(table) | TABLE;
        for (number, entry) in table.0.iter_mut().enumerate() {
            let page = RAM + index * BLOCK_SIZE + number * PAGE_SIZE;
            let guarded = if text_range().contains(&page) { guarded } else { 0 };
            *entry = page as u64 | memory_of(page) | guarded | PAGE;
        }
    }
    ptr::from_ref(root).cast()
}

/// How the page at `page` is mapped where it is linked.
#[inline(always)]
fn memory_of(page: usize) -> u64 {
    let text = text_range();
    let rodata_end = (&raw const __rodata_end).addr();
    if text.contains(&page) {
        TEXT_MEMORY
    } else if (text.end..rodata_end).contains(&page) {
        READ_ONLY_MEMORY
    } else {
        WRITABLE_MEMORY
    }
}

/// The executable mapping of the kernel's text.
#[inline(always)]
pub fn text_range() -> Range<usize> {
    (&raw const __text_start).addr()..(&raw const __text_end).addr()
}

/// The writable alias of an address in text. The caller makes the write visible to instruction fetches.
#[inline(always)]
pub fn text_alias(address: usize) -> *mut u8 {
    ptr::with_exposed_provenance_mut(address + ALIAS_OFFSET)
}

/// Whether the `len` bytes at `addr` are memory that can be read. Devices are not: reading them may have
/// effects.
///
/// Asks the MMU, page by page. `PAR_EL1`, where the answer appears, has one owner because interrupts are off.
#[unsafe(link_section = ".text.notrace")]
pub fn readable(addr: usize, len: usize) -> bool {
    if len == 0 {
        return true;
    }
    let Some(last) = addr.checked_add(len - 1) else { return false };
    let mut page = addr & !(PAGE_SIZE - 1);
    loop {
        if !page_is_readable(page) {
            return false;
        }
        match page.checked_add(PAGE_SIZE) {
            Some(next) if next <= last => page = next,
            _ => return true,
        }
    }
}

#[inline(always)]
fn page_is_readable(page: usize) -> bool {
    let _irqs = IrqsOff::new();
    let result: u64;
    // SAFETY: translating an address reads and changes nothing but `PAR_EL1`, which only this function uses.
    unsafe {
        asm!(
            "at s1e1r, {page}",
            "isb",
            "mrs {result}, par_el1",
            page = in(reg) page,
            result = out(reg) result,
            options(nostack, preserves_flags),
        );
    }
    // Bit 0: the translation faults. Top byte: the memory type, as in MAIR, so 0xff is normal memory.
    result & 1 == 0 && result >> 56 == 0xff
}
