//! The address space: 4-level paging, one set of tables for good.
//!
//! | virtual | what | how |
//! | --- | --- | --- |
//! | 0x1000 | RAM below 640 KiB; in it the page where other CPUs start | writable |
//! | 0xc_0000 | ROMs, 256 KiB; PVH start info | read-only |
//! | 0x10_0000 | RAM up to 512 MiB | text read-only and executable, rodata read-only, the rest writable |
//! | 0xfee0_0000 | local APIC, 2 MiB | device |
//! | 0x10_0020_0000 | RAM from 2 MiB to 512 MiB again | writable: the alias through which text is patched |
//!
//! Invariant: nothing is both writable and executable. Everything else is unmapped, page 0 included.

use core::{arch::asm, cell::UnsafeCell, ops::Range, ptr};

const PAGE_SIZE: usize = 4096;
/// What an entry of a level 2 table maps by itself.
pub(super) const BLOCK_SIZE: usize = 2 << 20;

/// How much RAM this kernel maps (QEMU's `-m 512M`).
const RAM_SIZE: usize = 512 << 20;

/// The page where the other CPUs start, in real mode. Nothing of the loader or of the firmware is there.
pub(super) const START_PAGE: usize = 0x8000;

/// Where video memory is, reading which may have an effect, and where the ROMs behind it end.
const VIDEO: Range<usize> = 0xa_0000..0xc_0000;
const ROMS_END: usize = 0x10_0000;

/// The local APIC's registers.
pub(super) const APIC: usize = 0xfee0_0000;

/// From an address in RAM to its alias.
const ALIAS_OFFSET: usize = 0x10_0000_0000;

/// How many of the first blocks are mapped by pages; the linker script asserts that the read-only part fits.
const PAGED_BLOCKS: usize = 8;

/// The lowest address that the tables cannot translate: the root's lower half, and its upper half is empty.
const ADDRESS_BITS: u32 = 47;

// Bits of an entry, Intel SDM volume 3, 5.5.4.
const PRESENT: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
const WRITE_THROUGH: u64 = 1 << 3;
const UNCACHED: u64 = 1 << 4;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
/// A block rather than a table.
const LARGE: u64 = 1 << 7;
const NOT_EXECUTABLE: u64 = 1 << 63;
/// Where the entry leads.
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// An entry for a table; its entries take away what is not allowed.
pub(super) const TABLE: u64 = PRESENT | WRITABLE | ACCESSED;
/// A block in the tables of the boot code.
pub(super) const BOOT_BLOCK: u64 = PRESENT | WRITABLE | ACCESSED | DIRTY | LARGE;

const NOTHING: u64 = 0;
const TEXT_MEMORY: u64 = PRESENT | ACCESSED;
const READ_ONLY_MEMORY: u64 = PRESENT | ACCESSED | NOT_EXECUTABLE;
const WRITABLE_MEMORY: u64 = READ_ONLY_MEMORY | WRITABLE | DIRTY;
const DEVICE_MEMORY: u64 = WRITABLE_MEMORY | UNCACHED | WRITE_THROUGH;

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
    /// Level 4, an entry for each 512 GiB.
    root: Table,
    /// Level 3: the first 512 GiB, an entry for each GiB.
    first: Table,
    /// Level 2: RAM, the devices, and RAM's alias.
    ram: Table,
    devices: Table,
    alias: Table,
    /// Level 1: the first blocks of RAM.
    pages: [Table; PAGED_BLOCKS],
}

/// The tables as a static that only `init` writes.
struct Shared(UnsafeCell<Tables>);

// SAFETY: `init` runs once, on one CPU, before anything else could look; afterwards everybody only reads.
unsafe impl Sync for Shared {}

static TABLES: Shared = Shared(UnsafeCell::new(Tables {
    root: Table([0; 512]),
    first: Table([0; 512]),
    ram: Table([0; 512]),
    devices: Table([0; 512]),
    alias: Table([0; 512]),
    pages: [const { Table([0; 512]) }; PAGED_BLOCKS],
}));

/// Fills the tables and changes over to them. Called once, by the boot code, on tables of its own.
#[unsafe(link_section = ".text.notrace")]
pub(super) fn init() {
    // SAFETY: the only reference there ever is, see `Shared`; the static is zero-initialised, so it is valid.
    let tables = unsafe { &mut *TABLES.0.get() };
    let address = |table: &Table| ptr::from_ref(table).expose_provenance() as u64;
    let Tables { root, first, ram, devices, alias, pages } = tables;

    root.0[0] = address(first) | TABLE;
    first.0[0] = address(ram) | TABLE;
    first.0[APIC >> 30] = address(devices) | TABLE;
    first.0[ALIAS_OFFSET >> 30] = address(alias) | TABLE;

    devices.0[APIC / BLOCK_SIZE % 512] = APIC as u64 | DEVICE_MEMORY | LARGE;

    for index in 1..RAM_SIZE / BLOCK_SIZE {
        let block = (index * BLOCK_SIZE) as u64 | WRITABLE_MEMORY | LARGE;
        alias.0[index] = block;
        ram.0[index] = block;
    }
    for (index, table) in pages.iter_mut().enumerate() {
        ram.0[index] = address(table) | TABLE;
        for (number, entry) in table.0.iter_mut().enumerate() {
            let page = index * BLOCK_SIZE + number * PAGE_SIZE;
            *entry = match memory_of(page) {
                NOTHING => NOTHING,
                memory => page as u64 | memory,
            };
        }
    }

    activate();
}

/// Changes over to the tables that [`init`] has filled. Called once on each CPU, on the boot code's tables.
#[unsafe(link_section = ".text.notrace")]
pub(super) fn activate() {
    let root = TABLES.0.get().expose_provenance();
    // SAFETY: these tables map everything in use as the old ones do, but for what nobody may do with it. The root is
    //         their first field.
    unsafe { asm!("mov cr3, {}", in(reg) root, options(nostack, preserves_flags)) };
}

/// How the page at `page` is mapped where it is linked.
#[inline(always)]
fn memory_of(page: usize) -> u64 {
    let text = text_range();
    let rodata_end = (&raw const __rodata_end).addr();
    if page == 0 || VIDEO.contains(&page) {
        NOTHING
    } else if text.contains(&page) {
        TEXT_MEMORY
    } else if (VIDEO.end..ROMS_END).contains(&page) || (text.end..rodata_end).contains(&page) {
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

/// Walks the tables as the CPU does.
#[inline(always)]
fn page_is_readable(page: usize) -> bool {
    if page >> ADDRESS_BITS != 0 {
        return false;
    }
    let mut table = TABLES.0.get().cast_const().cast::<u64>();
    let mut shift = 39;
    loop {
        // SAFETY: 1. `table` is the root or what an entry leads to that is no block and not of the lowest
        //         level: a table, mapped where it is in memory. 2. The index is below its 512 entries. 3. The
        //         CPU may write to an entry meanwhile, so the read is volatile.
        let entry = unsafe { table.add(page >> shift & 511).read_volatile() };
        if entry & PRESENT == 0 {
            return false;
        }
        if shift == 12 || entry & LARGE != 0 {
            return entry & UNCACHED == 0;
        }
        table = ptr::with_exposed_provenance((entry & ADDRESS) as usize);
        shift -= 9;
    }
}
