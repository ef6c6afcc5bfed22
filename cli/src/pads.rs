//! Landing pads: functions whose address is taken and that do not begin with one, in an image for CPUs that look for them (IBT, BTI).
//!
//! Relocations tell who takes an address, so the image must be linked with `--emit-relocs`. A relocation of a direct call or jump takes
//! none, and neither does the table of sites.
//!
//! Invariant: what is not reported has a pad, or is reached by no address that the linker filled in.

use std::collections::{BTreeMap, HashMap};

use object::elf;
use object::read::elf::{SectionHeader as _, Sym as _};
use object::{LittleEndian, SectionIndex, SymbolIndex};

use crate::image::{Function, Image, Machine, Place};
use crate::sites::TABLE_MARKS;

const LE: LittleEndian = LittleEndian;

/// What a look at the pads found.
#[derive(Clone, Debug)]
pub struct Pads<'d> {
    /// Functions whose address is taken.
    pub taken: usize,
    /// Those of them that begin with no pad.
    pub missing: Vec<Function<'d>>,
}

/// Looks at every function of a linked image; `None` if it has no relocations to look at.
pub fn of<'d>(image: &Image<'d>) -> object::read::Result<Option<Pads<'d>>> {
    let functions: HashMap<u64, Function<'d>> =
        image.functions.iter().rev().map(|function| (function.at.offset, *function)).collect();
    let sites = (image.mark(TABLE_MARKS.0)?.unwrap_or(0))..(image.mark(TABLE_MARKS.1)?.unwrap_or(0));
    let file = image.elf();
    let (symbols, sections) = (file.elf_symbol_table(), file.elf_section_table());
    let (mut taken, mut has_relocations) = (BTreeMap::new(), false);
    for header in sections.iter().filter(|header| !header.sh_flags(LE).contains(elf::SHF_ALLOC)) {
        let Some((relocations, link)) = header.rela(LE, file.data())? else { continue };
        let SectionIndex(about) = header.info_link(LE);
        let is_loaded = sections.section(SectionIndex(about))?.sh_flags(LE).contains(elf::SHF_ALLOC);
        if link != symbols.section() || !is_loaded {
            continue;
        }
        has_relocations = true;
        for relocation in relocations {
            let at = relocation.r_offset.get(LE);
            let symbol = symbols.symbol(SymbolIndex(relocation.r_sym(LE, false) as usize))?;
            let target = symbol.st_value(LE).wrapping_add(relocation.r_addend.get(LE) as u64);
            let target = match image.machine {
                Machine::X86_64 => x86_64(image, relocation.r_type(LE, false), at, target),
                Machine::Arm64 => arm64(relocation.r_type(LE, false), target),
            };
            if let Some(function) = target.and_then(|target| functions.get(&target))
                && !sites.contains(&at)
            {
                taken.insert(function.at.offset, *function);
            }
        }
    }
    let missing = taken.values().filter(|function| !begins_with_pad(image, function.at)).copied().collect();
    Ok(has_relocations.then_some(Pads { taken: taken.len(), missing }))
}

/// The address that a relocation at `at` gives away.
fn x86_64(image: &Image<'_>, kind: elf::RelocationType, at: u64, target: u64) -> Option<u64> {
    match kind {
        elf::R_X86_64_64 | elf::R_X86_64_32 | elf::R_X86_64_32S => Some(target),
        elf::R_X86_64_PC32 | elf::R_X86_64_PLT32 => {
            let before = image.bytes_at(Place { section: 0, offset: at.wrapping_sub(2) }, 2);
            let is_branch = matches!(before, [_, 0xe8 | 0xe9] | [0x0f, 0x80..=0x8f]);
            // The distance counts from behind the four bytes of it.
            (!is_branch).then_some(target.wrapping_add(4))
        }
        _ => None,
    }
}

fn arm64(kind: elf::RelocationType, target: u64) -> Option<u64> {
    match kind {
        elf::R_AARCH64_CALL26 | elf::R_AARCH64_JUMP26 | elf::R_AARCH64_CONDBR19 | elf::R_AARCH64_TSTBR14 => {
            None
        }
        _ => Some(target),
    }
}

fn begins_with_pad(image: &Image<'_>, at: Place) -> bool {
    let bytes = image.bytes_at(at, 4);
    match image.machine {
        Machine::X86_64 => bytes == [0xf3, 0x0f, 0x1e, 0xfa],
        // bti c, bti jc, paciasp, pacibsp
        Machine::Arm64 => bytes.first_chunk().is_some_and(|word| {
            matches!(u32::from_le_bytes(*word), 0xd503_245f | 0xd503_24df | 0xd503_233f | 0xd503_237f)
        }),
    }
}
