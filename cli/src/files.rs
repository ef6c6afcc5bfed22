//! The source file of each function: by the debug information, or else by the file symbol that stands before a local symbol.
//!
//! Invariant: debug information is read as far as it can be; what is damaged, compressed or missing costs files, and nothing else.

use std::collections::HashMap;

use gimli::{
    AttributeValue, DebuggingInformationEntry, Dwarf, EndianSlice, LittleEndian, SectionId, Unit, UnitOffset,
    constants,
};
use object::elf;
use object::read::elf::Sym as _;

use crate::image::Image;

type Slice<'d> = EndianSlice<'d, LittleEndian>;

/// How many references are followed from a function to where it was declared.
const MAX_REFERENCES: usize = 4;

/// The source file of each of the image's functions, in their order; of several at one address all have the same. Paths are
/// as the compiler had them, without the folder that it was started in.
pub fn of(image: &Image<'_>) -> Vec<Option<String>> {
    let by_address = if image.is_linked { by_debug_info(image) } else { HashMap::new() };
    let by_symbol = by_file_symbols(image);
    let file_of = |at: u64, name: &str| {
        by_address.get(&at).cloned().or_else(|| by_symbol.get(&(at, name)).map(|file| (*file).to_owned()))
    };
    image.functions.iter().map(|function| file_of(function.at.offset, function.name)).collect()
}

/// The file symbols that local functions stand behind. Those of Rust name a codegen unit and no file.
fn by_file_symbols<'d>(image: &Image<'d>) -> HashMap<(u64, &'d str), &'d str> {
    let table = image.elf().elf_symbol_table();
    let (mut files, mut file) = (HashMap::new(), None);
    for symbol in table.iter() {
        let Ok(Ok(name)) = table.symbol_name(object::LittleEndian, symbol).map(str::from_utf8) else {
            continue;
        };
        if symbol.st_type() == elf::STT_FILE {
            file = Some(name).filter(|name| !name.is_empty() && !name.contains("-cgu."));
        } else if let (elf::STB_LOCAL, elf::STT_FUNC, Some(file)) = (symbol.st_bind(), symbol.st_type(), file)
        {
            files.insert((symbol.st_value(object::LittleEndian), name), file);
        }
    }
    files
}

fn by_debug_info(image: &Image<'_>) -> HashMap<u64, String> {
    let section = |id: SectionId| -> Result<Slice<'_>, gimli::Error> {
        let data = image.sections_named(id.name()).find_map(|(_, section)| section.data);
        Ok(EndianSlice::new(data.unwrap_or_default(), LittleEndian))
    };
    let mut files = HashMap::new();
    let Ok(dwarf) = Dwarf::load(section) else { return files };
    let mut units = dwarf.units();
    while let Ok(Some(header)) = units.next() {
        // A unit that cannot be read says nothing of the next.
        let _ = dwarf.unit(header).and_then(|unit| read_unit(&dwarf, &unit, &mut files));
    }
    files
}

fn read_unit(
    dwarf: &Dwarf<Slice<'_>>,
    unit: &Unit<Slice<'_>>,
    files: &mut HashMap<u64, String>,
) -> Result<(), gimli::Error> {
    let mut entries = unit.entries();
    while let Some(entry) = entries.next_dfs()? {
        if entry.tag() != constants::DW_TAG_subprogram {
            continue;
        }
        // Of a function in several pieces, the first is where it starts.
        let Some(start) = dwarf.die_ranges(unit, entry)?.next()?.map(|range| range.begin) else { continue };
        if let Some(file) = declared_in(dwarf, unit, entry)? {
            files.entry(start).or_insert(file);
        }
    }
    Ok(())
}

/// The file in which a function was declared, as it says itself or what it refers to.
fn declared_in<'d>(
    dwarf: &Dwarf<Slice<'d>>,
    unit: &Unit<Slice<'d>>,
    entry: &DebuggingInformationEntry<Slice<'d>>,
) -> Result<Option<String>, gimli::Error> {
    let mut entry = entry.clone();
    for _ in 0..MAX_REFERENCES {
        if let Some(AttributeValue::FileIndex(index)) = entry.attr_value(constants::DW_AT_decl_file) {
            return path(dwarf, unit, index);
        }
        let refers = [constants::DW_AT_specification, constants::DW_AT_abstract_origin];
        let Some(next) = refers.into_iter().find_map(|name| within(unit, entry.attr_value(name)?)) else {
            return Ok(None);
        };
        entry = unit.entry(next)?;
    }
    Ok(None)
}

/// The entry of this unit that an attribute refers to; `None` if it is another's.
fn within(unit: &Unit<Slice<'_>>, value: AttributeValue<Slice<'_>>) -> Option<UnitOffset> {
    match value {
        AttributeValue::UnitRef(offset) => Some(offset),
        AttributeValue::DebugInfoRef(offset) => offset.to_unit_offset(&unit.header),
        _ => None,
    }
}

/// A file of the unit's line table, with its folder unless that is where the compiler was started.
fn path(
    dwarf: &Dwarf<Slice<'_>>,
    unit: &Unit<Slice<'_>>,
    index: u64,
) -> Result<Option<String>, gimli::Error> {
    let Some(program) = &unit.line_program else { return Ok(None) };
    let Some(file) = program.header().file(index) else { return Ok(None) };
    let name = dwarf.attr_string(unit, file.path_name())?;
    let name = name.to_string_lossy().into_owned();
    let folder = match file.directory(program.header()) {
        Some(folder) if file.directory_index() != 0 => {
            dwarf.attr_string(unit, folder)?.to_string_lossy().into_owned()
        }
        _ => String::new(),
    };
    let whole = if folder.is_empty() || name.starts_with('/') { name } else { format!("{folder}/{name}") };
    Ok(Some(whole).filter(|whole| !whole.is_empty()))
}
