//! Kernels made in memory, the way a linker would lay them out, with whatever is wrong that a test wants.

#![expect(dead_code, reason = "each test file uses another part of this")]

use fgraph::symbols::layout;
use object::build::elf::{Builder, DynamicRelocation, SectionData, SectionId};
use object::elf;

/// Where the code is linked.
pub(crate) const TEXT: u64 = 0xffff_ffff_8100_0000;
/// Bytes of code.
pub(crate) const TEXT_LEN: u64 = 0x400;
/// Where the table of sites is linked.
pub(crate) const TABLE: u64 = TEXT + 0x1000;
/// Where data and the reserved space are linked.
pub(crate) const DATA: u64 = TEXT + 0x2000;

/// What a symbol is defined in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum In {
    Text,
    Data,
    Nothing,
    Absolute,
}

#[derive(Clone, Debug)]
pub(crate) struct Symbol {
    pub(crate) name: &'static str,
    pub(crate) home: In,
    pub(crate) value: u64,
    pub(crate) size: u64,
    pub(crate) bind: elf::SymbolBind,
    pub(crate) kind: elf::SymbolType,
}

/// A global function at an offset of the code.
pub(crate) fn function(name: &'static str, offset: u64, size: u64) -> Symbol {
    Symbol { name, home: In::Text, value: TEXT + offset, size, bind: elf::STB_GLOBAL, kind: elf::STT_FUNC }
}

/// A mark of the linker script.
pub(crate) fn mark(name: &'static str, value: u64) -> Symbol {
    Symbol { name, home: In::Text, value, size: 0, bind: elf::STB_GLOBAL, kind: elf::STT_NOTYPE }
}

#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub(crate) machine: elf::Machine,
    pub(crate) file_type: elf::FileType,
    pub(crate) symbols: Vec<Symbol>,
    /// The entries of the table, if there is one.
    pub(crate) table: Option<Vec<u64>>,
    /// Whether the entries are in relocations only, as in a position-independent image.
    pub(crate) relocated: bool,
    /// The content of `.fgraph_symbols`, if there is one.
    pub(crate) space: Option<Vec<u8>>,
    pub(crate) with_symbol_table: bool,
}

/// The function of the tracer that `Kernel::good` has in its notrace range.
pub(crate) const OWN: &str = "_RNvMNtCs1234_6fgraph6shadowNtB2_6Shadow4push";

impl Kernel {
    /// A kernel that has everything right but its names, which are reserved and empty.
    pub(crate) fn good() -> Self {
        let sites = vec![TEXT + 0x10, TEXT + 0x44, TEXT + 0x200];
        Self {
            machine: elf::EM_X86_64,
            file_type: elf::ET_EXEC,
            symbols: vec![
                function("main", 0x10, 0x20),
                function("_RNvCshp5d4tyNz3J_1r7ret_big", 0x40, 0x10),
                function("untraced", 0x60, 0x10),
                function(OWN, 0x200, 0x40),
                mark("__fgraph_text_start", TEXT + 0x200),
                mark("__fgraph_text_stop", TEXT + 0x300),
                mark("__fgraph_sites_start", TABLE),
                mark("__fgraph_sites_stop", TABLE + 8 * sites.len() as u64),
            ],
            table: Some(sites),
            relocated: false,
            space: Some(reserved(4096)),
            with_symbol_table: true,
        }
    }

    /// Replaces the table and moves its end mark along.
    pub(crate) fn with_table(mut self, entries: &[u64]) -> Self {
        self.table = Some(entries.to_vec());
        for symbol in &mut self.symbols {
            if symbol.name == "__fgraph_sites_stop" {
                symbol.value = TABLE + 8 * entries.len() as u64;
            }
        }
        self
    }

    pub(crate) fn with(mut self, symbol: Symbol) -> Self {
        self.symbols.push(symbol);
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.symbols.retain(|symbol| symbol.name != name);
        self
    }

    pub(crate) fn moved(mut self, name: &str, value: u64) -> Self {
        for symbol in self.symbols.iter_mut().filter(|symbol| symbol.name == name) {
            symbol.value = value;
        }
        self
    }

    /// The file.
    pub(crate) fn build(&self) -> Vec<u8> {
        let mut builder = Builder::new(object::Endianness::Little, true);
        builder.header.e_type = self.file_type;
        builder.header.e_machine = self.machine;
        builder.header.e_phoff = 0x40;
        let code = elf::SHF_ALLOC | elf::SHF_EXECINSTR;
        let text = add(&mut builder, ".text", code, TEXT, 0x1000, vec![0x90; TEXT_LEN as usize]);
        let data = add(&mut builder, ".data", elf::SHF_ALLOC | elf::SHF_WRITE, DATA, 0x3000, vec![7; 64]);
        if let Some(entries) = &self.table {
            let bytes = entries.iter().map(|entry| if self.relocated { 0 } else { *entry });
            let bytes = bytes.flat_map(u64::to_le_bytes).collect();
            add(&mut builder, "__patchable_function_entries", elf::SHF_ALLOC, TABLE, 0x8000, bytes);
            if self.relocated {
                let relocations = entries.iter().zip((TABLE..).step_by(8));
                let relocations = relocations.map(|(entry, at)| DynamicRelocation {
                    r_offset: at,
                    symbol: None,
                    r_type: elf::R_X86_64_RELATIVE,
                    r_addend: *entry as i64,
                });
                let data = SectionData::DynamicRelocation(relocations.collect());
                let section = builder.sections.add();
                section.name = ".rela.dyn".into();
                section.sh_type = elf::SHT_RELA;
                section.sh_flags = elf::SHF_ALLOC;
                section.sh_addr = TABLE + 0x800;
                section.sh_offset = 0x2000;
                section.sh_addralign = 8;
                section.data = data;
            }
        }
        if let Some(space) = &self.space {
            add(&mut builder, layout::SECTION, elf::SHF_ALLOC, DATA + 0x1000, 0x4000, space.clone());
        }
        for (name, kind, data) in [
            (".symtab", elf::SHT_SYMTAB, SectionData::Symbol),
            (".strtab", elf::SHT_STRTAB, SectionData::String),
            (".shstrtab", elf::SHT_STRTAB, SectionData::SectionString),
        ] {
            if name == ".shstrtab" || self.with_symbol_table {
                let section = builder.sections.add();
                section.name = name.into();
                section.sh_type = kind;
                section.sh_addralign = 8;
                section.data = data;
            }
        }
        for symbol in self.symbols.iter().filter(|_| self.with_symbol_table) {
            let entry = builder.symbols.add();
            entry.name = symbol.name.into();
            entry.set_st_info(symbol.bind, symbol.kind);
            entry.st_value = symbol.value;
            entry.st_size = symbol.size;
            match symbol.home {
                In::Text => entry.section = Some(text),
                In::Data => entry.section = Some(data),
                In::Nothing => entry.st_shndx = elf::SHN_UNDEF,
                In::Absolute => entry.st_shndx = elf::SHN_ABS,
            }
        }
        builder.set_section_sizes();
        let loaded: Vec<_> = builder
            .sections
            .iter()
            .filter(|section| section.is_alloc())
            .map(|section| section.id())
            .collect();
        let segment = builder.segments.add();
        segment.p_type = elf::PT_LOAD;
        segment.p_flags = elf::PF_R | elf::PF_W | elf::PF_X;
        segment.p_align = 0x1000;
        segment.sections = loaded;
        segment.recalculate_ranges(&builder.sections);
        let mut file = Vec::new();
        builder.write(&mut file).expect("the test kernel can be written");
        file
    }
}

fn add(
    builder: &mut Builder<'_>,
    name: &'static str,
    flags: elf::SectionFlags,
    address: u64,
    offset: u64,
    data: Vec<u8>,
) -> SectionId {
    let section = builder.sections.add();
    section.name = name.into();
    section.sh_type = elf::SHT_PROGBITS;
    section.sh_flags = flags;
    section.sh_addr = address;
    section.sh_offset = offset;
    section.sh_addralign = 8;
    section.data = SectionData::Data(data.into());
    section.id()
}

/// A space as `symbol_space!` leaves it.
pub(crate) fn reserved(capacity: usize) -> Vec<u8> {
    let mut space = vec![0; capacity];
    space[..8].copy_from_slice(&layout::MAGIC_RESERVED);
    space[layout::AT_VERSION..][..4].copy_from_slice(&layout::VERSION.to_le_bytes());
    space[layout::AT_CAPACITY..][..8].copy_from_slice(&(capacity as u64).to_le_bytes());
    space
}
