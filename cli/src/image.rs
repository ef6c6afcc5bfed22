//! An ELF file as this tool sees it: sections, functions, marks of the linker script, and bytes at a place.
//!
//! Invariant: a [`Function`] lies in an executable section; absolute symbols and data never count as
//! functions, whatever their type says. Functions are sorted by place, and of several at one place the first
//! is the one to show.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashMap;

use object::elf;
use object::read::elf::{ElfFile64, FileHeader as _, SectionHeader as _, Sym as _};
use object::{LittleEndian, Object as _, ObjectSection as _, SectionIndex, SymbolIndex};

use crate::Error;

type Le = LittleEndian;
const LE: Le = LittleEndian;

/// A machine that fgraph knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// 64-bit x86.
    X86_64,
    /// 64-bit Arm.
    Arm64,
}

impl Machine {
    /// The relocations that put an address into 8 bytes: of a symbol, and of the image itself.
    fn word_relocations(self) -> (elf::RelocationType, elf::RelocationType) {
        match self {
            Self::X86_64 => (elf::R_X86_64_64, elf::R_X86_64_RELATIVE),
            Self::Arm64 => (elf::R_AARCH64_ABS64, elf::R_AARCH64_RELATIVE),
        }
    }

    /// Every instruction starts at a multiple of this.
    pub fn instruction_alignment(self) -> u64 {
        match self {
            Self::X86_64 => 1,
            Self::Arm64 => 4,
        }
    }
}

/// A place in the code. In a linked image all have section 0 and `offset` is the address; in an object file,
/// where every section starts at 0, the section tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Section of an object file, else 0.
    pub section: usize,
    /// Offset into it, or address.
    pub offset: u64,
}

/// A section header.
#[derive(Clone, Debug)]
pub struct Section<'d> {
    /// Its name, with what is not UTF-8 replaced.
    pub name: String,
    /// Link address, 0 in an object file.
    pub address: u64,
    /// Bytes in memory.
    pub size: u64,
    /// Whether it is loaded and executable.
    pub is_code: bool,
    /// Where its bytes begin in the file.
    pub file_offset: u64,
    /// Its bytes in the file, or `None` if it has none or they lie outside it.
    pub data: Option<&'d [u8]>,
}

/// Linkage of a symbol, in the order in which a name is preferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Binding {
    /// Visible everywhere.
    Global,
    /// Of one object file.
    Local,
    /// Gives way to a global one.
    Weak,
}

/// A symbol of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function<'d> {
    /// Its first byte.
    pub at: Place,
    /// Its bytes as the symbol says, 0 if it does not say.
    pub size: u64,
    /// How many bytes it can have at most: up to the end of its section.
    pub room: u64,
    /// Linkage.
    pub binding: Binding,
    /// The raw name.
    pub name: &'d str,
}

/// An address that a table in the file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    /// The number, as far as the file tells it.
    pub value: u64,
    /// Where it points: nowhere if it is zero, or a symbol that the file does not define.
    pub target: Option<Place>,
}

/// A parsed ELF file.
#[derive(Debug)]
pub struct Image<'d> {
    /// What machine the code is for.
    pub machine: Machine,
    /// Linked, or an object file.
    pub is_linked: bool,
    /// All sections; the index is that of the file, the first one is empty.
    pub sections: Vec<Section<'d>>,
    /// All symbols of functions.
    pub functions: Vec<Function<'d>>,
    /// Functions left out because their name is not UTF-8 or is empty.
    pub unnamed_functions: usize,
    /// Whether there is a symbol table at all.
    pub has_symbols: bool,
    file: ElfFile64<'d, Le>,
}

impl<'d> Image<'d> {
    /// Reads the headers and the symbol table.
    pub fn parse(bytes: &'d [u8]) -> Result<Self, Error> {
        // The identification is looked at by hand, so that each kind of wrong file gets an answer of its own.
        let ident = bytes.first_chunk::<20>().filter(|ident| ident.starts_with(&elf::ELFMAG));
        let &[_, _, _, _, class, encoding, .., machine_low, machine_high] = ident.ok_or(Error::NotElf)?;
        if class != elf::ELFCLASS64.0 || encoding != elf::ELFDATA2LSB.0 {
            return Err(Error::NotLittle64(class, encoding));
        }
        let machine = match elf::Machine(u16::from_le_bytes([machine_low, machine_high])) {
            elf::EM_X86_64 => Machine::X86_64,
            elf::EM_AARCH64 => Machine::Arm64,
            other => return Err(Error::Machine(other.0)),
        };
        let file = ElfFile64::<Le>::parse(bytes)?;
        let is_linked = match file.elf_header().e_type(LE) {
            elf::ET_REL => false,
            elf::ET_EXEC | elf::ET_DYN => true,
            other => return Err(Error::FileType(other.0)),
        };
        let mut image = Self {
            machine,
            is_linked,
            sections: Vec::new(),
            functions: Vec::new(),
            unnamed_functions: 0,
            has_symbols: !file.elf_symbol_table().is_empty(),
            file,
        };
        image.read_sections(bytes)?;
        image.read_functions()?;
        Ok(image)
    }

    fn read_sections(&mut self, bytes: &'d [u8]) -> object::read::Result<()> {
        let table = self.file.elf_section_table();
        for header in table.iter() {
            let flags = header.sh_flags(LE);
            let in_file = header.sh_type(LE) != elf::SHT_NULL && header.file_range(LE).is_some();
            self.sections.push(Section {
                name: String::from_utf8_lossy(table.section_name(LE, header)?).into_owned(),
                address: header.sh_addr(LE),
                size: header.sh_size(LE),
                is_code: flags.contains(elf::SHF_ALLOC) && flags.contains(elf::SHF_EXECINSTR),
                file_offset: header.sh_offset(LE),
                data: header.data(LE, bytes).ok().filter(|_| in_file),
            });
        }
        Ok(())
    }

    fn read_functions(&mut self) -> object::read::Result<()> {
        let table = self.file.elf_symbol_table();
        for (index, symbol) in table.enumerate() {
            if symbol.st_type() != elf::STT_FUNC {
                continue;
            }
            let Some(SectionIndex(section_index)) = table.symbol_section(LE, symbol, index)? else {
                continue;
            };
            let Some(section) = self.sections.get(section_index).filter(|section| section.is_code) else {
                continue;
            };
            let value = symbol.st_value(LE);
            let start = if self.is_linked { section.address } else { 0 };
            let Some(offset) = value.checked_sub(start).filter(|offset| *offset < section.size) else {
                continue;
            };
            let name = str::from_utf8(table.symbol_name(LE, symbol)?).unwrap_or("");
            if name.is_empty() {
                self.unnamed_functions += 1;
                continue;
            }
            let binding = match symbol.st_bind() {
                elf::STB_LOCAL => Binding::Local,
                elf::STB_WEAK => Binding::Weak,
                _ => Binding::Global,
            };
            self.functions.push(Function {
                at: self.place(section_index, value),
                size: symbol.st_size(LE),
                room: section.size - offset,
                binding,
                name,
            });
        }
        self.functions.sort_by_key(|f| (f.at, f.binding, f.name.len(), f.name, Reverse(f.size)));
        self.functions.dedup_by(|later, kept| (later.at, later.name) == (kept.at, kept.name));
        Ok(())
    }

    fn place(&self, section: usize, offset: u64) -> Place {
        Place { section: if self.is_linked { 0 } else { section }, offset }
    }

    /// The file itself, for what only one module asks.
    pub(crate) fn elf(&self) -> &ElfFile64<'d, Le> {
        &self.file
    }

    /// If debug information tells where functions come from.
    pub fn has_debug_info(&self) -> bool {
        self.sections_named(".debug_info").next().is_some()
    }

    /// The executable section that a place lies in.
    pub fn code_at(&self, at: Place) -> Option<&Section<'d>> {
        let holds = |section: &&Section<'d>| {
            let start = if self.is_linked { section.address } else { 0 };
            section.is_code && at.offset.checked_sub(start).is_some_and(|offset| offset < section.size)
        };
        if self.is_linked {
            self.sections.iter().find(holds)
        } else {
            self.sections.get(at.section).filter(holds)
        }
    }

    /// Up to `count` bytes of code at a place.
    pub fn bytes_at(&self, at: Place, count: usize) -> &'d [u8] {
        let bytes = self.code_at(at).and_then(|section| {
            let start = if self.is_linked { section.address } else { 0 };
            section.data?.get(usize::try_from(at.offset.checked_sub(start)?).ok()?..)
        });
        let bytes = bytes.unwrap_or_default();
        bytes.get(..count).unwrap_or(bytes)
    }

    /// A place as people write it: an address, or section and offset.
    pub fn show(&self, at: Place) -> String {
        match self.sections.get(at.section) {
            Some(section) if !self.is_linked => format!("{}+{:#x}", section.name, at.offset),
            _ => format!("{:#x}", at.offset),
        }
    }

    /// The value of a symbol that the linker script defines, whatever its type. Nothing for an object file,
    /// where it is no address yet.
    pub fn mark(&self, name: &str) -> object::read::Result<Option<u64>> {
        let table = self.file.elf_symbol_table();
        for symbol in table.iter().filter(|_| self.is_linked) {
            if symbol.st_shndx(LE) != elf::SHN_UNDEF && table.symbol_name(LE, symbol)? == name.as_bytes() {
                return Ok(Some(symbol.st_value(LE)));
            }
        }
        Ok(None)
    }

    /// The sections of that name, with their indices.
    pub fn sections_named(&self, name: &str) -> impl Iterator<Item = (usize, &Section<'d>)> {
        self.sections.iter().enumerate().filter(move |(_, section)| section.name == name)
    }

    /// The loaded section whose bytes in the file cover a range of addresses.
    pub fn section_over(&self, start: u64, stop: u64) -> Option<(usize, &Section<'d>)> {
        self.sections.iter().enumerate().find(|(_, section)| {
            let end = section.data.and_then(|data| section.address.checked_add(data.len() as u64));
            section.address != 0 && section.address <= start && end.is_some_and(|end| stop <= end)
        })
    }

    /// A section of debug information, decompressed; `None` if there is none. In an object file the relocations are
    /// applied, to addresses as [`crate::dwarf::address`] has them; and there it may be in pieces, of which each type unit is one.
    pub fn debug_section(&self, name: &str) -> Result<Option<Cow<'d, [u8]>>, String> {
        let mut pieces = self.sections_named(name).map(|(index, _)| self.debug_piece(index));
        let Some(first) = pieces.next() else { return Ok(None) };
        let mut bytes = first?;
        for piece in pieces {
            bytes.to_mut().extend_from_slice(&piece?);
        }
        Ok(Some(bytes))
    }

    fn debug_piece(&self, index: usize) -> Result<Cow<'d, [u8]>, String> {
        let text = |error: object::read::Error| error.to_string();
        let section = self.file.section_by_index(SectionIndex(index)).map_err(text)?;
        let data = section.compressed_data().map_err(text)?;
        // Nothing that is true compresses better than this; a wrong size must not take the memory.
        if data.uncompressed_size / 2048 > data.data.len() as u64 {
            return Err(format!("{} bytes cannot become {}", data.data.len(), data.uncompressed_size));
        }
        let mut bytes = data.decompress().map_err(text)?;
        if self.is_linked {
            return Ok(bytes);
        }
        let symbols = self.file.elf_symbol_table();
        for header in self.file.elf_section_table().iter() {
            let Some((relocations, _)) = header.rela(LE, self.file.data()).map_err(text)? else { continue };
            if header.info_link(LE) != SectionIndex(index) {
                continue;
            }
            for relocation in relocations {
                let symbol_index = SymbolIndex(relocation.r_sym(LE, false) as usize);
                let symbol = symbols.symbol(symbol_index).map_err(text)?;
                let addend = relocation.r_addend.get(LE) as u64;
                let mut value = symbol.st_value(LE).wrapping_add(addend);
                if let Some(home) = symbols.symbol_section(LE, symbol, symbol_index).map_err(text)?
                    && self.sections.get(home.0).is_some_and(|section| section.is_code)
                {
                    value = crate::dwarf::address(Place { section: home.0, offset: value });
                }
                let kind = relocation.r_type(LE, false);
                let width = if kind == self.machine.word_relocations().0 { 8 } else { 4 };
                let at = usize::try_from(relocation.r_offset.get(LE)).unwrap_or(usize::MAX);
                if let Some(place) = bytes.to_mut().get_mut(at..).and_then(|rest| rest.get_mut(..width)) {
                    place.copy_from_slice(&value.to_le_bytes()[..width]);
                }
            }
        }
        Ok(bytes)
    }

    /// The addresses that fill a section, from `offset` on, `count` bytes of them; with the relocations that
    /// the linker or the loader would apply.
    pub fn words(&self, section: usize, offset: u64, count: u64) -> object::read::Result<Vec<Word>> {
        let Some((data, address)) = self.sections.get(section).and_then(|s| Some((s.data?, s.address)))
        else {
            return Ok(Vec::new());
        };
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let bytes = data.get(start..).unwrap_or_default();
        let bytes = bytes.get(..usize::try_from(count).unwrap_or(usize::MAX)).unwrap_or(bytes);
        let relocated = self.relocations_of(section)?;
        let base = if self.is_linked { address } else { 0 };
        let words = bytes.as_chunks().0.iter().zip((base.wrapping_add(offset)..).step_by(8));
        Ok(words
            .map(|(bytes, at)| {
                let value = u64::from_le_bytes(*bytes);
                let plain = Word { value, target: Some(self.place(0, value)).filter(|_| value != 0) };
                match relocated.get(&at) {
                    Some(word) => *word,
                    // Without a relocation, a number in an object file points nowhere.
                    None if !self.is_linked => Word { value, target: None },
                    None => plain,
                }
            })
            .collect())
    }

    /// What relocations put into a section, by offset (object file) or by address (linked image). A linked
    /// image that is position independent keeps its own addresses in relocations and zeros in the section.
    fn relocations_of(&self, section: usize) -> object::read::Result<HashMap<u64, Word>> {
        let (absolute, relative) = self.machine.word_relocations();
        let symbols = self.file.elf_symbol_table();
        let mut words = HashMap::new();
        for header in self.file.elf_section_table().iter() {
            let applies = if self.is_linked {
                header.sh_flags(LE).contains(elf::SHF_ALLOC)
            } else {
                header.info_link(LE) == SectionIndex(section)
            };
            let Some((relocations, link)) = header.rela(LE, self.file.data())? else { continue };
            if !applies || (!self.is_linked && link != symbols.section()) {
                continue;
            }
            for relocation in relocations {
                let addend = relocation.r_addend.get(LE) as u64;
                let kind = relocation.r_type(LE, false);
                let word = if self.is_linked && kind == relative {
                    Word { value: addend, target: Some(self.place(0, addend)).filter(|_| addend != 0) }
                } else if !self.is_linked && kind == absolute {
                    let index = SymbolIndex(relocation.r_sym(LE, false) as usize);
                    let symbol = symbols.symbol(index)?;
                    let value = symbol.st_value(LE).wrapping_add(addend);
                    let target = symbols.symbol_section(LE, symbol, index)?;
                    Word { value, target: target.map(|section| self.place(section.0, value)) }
                } else {
                    continue;
                };
                words.insert(relocation.r_offset.get(LE), word);
            }
        }
        Ok(words)
    }
}
