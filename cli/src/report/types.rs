//! Types of the traced kernel: those that are embedded in its image, or else those that its debug information gives.
//!
//! A trace keeps registers, and the first bytes of values that were returned in memory; of other memory only what nobody writes is read: the sections of the image that are not writable. Which
//! registers floating-point numbers travel in an image does not say.

use std::fmt::Write;
use std::path::Path;

use fgraph::btf::image::layout::SECTION;
use fgraph::btf::image::{ImageError, Types};
use fgraph::symbols::Demangled;
use fgraph::values::{Entered, Floats, Machine, Memory, Names, Returned, RetvalAt, TakeArgs, Values};
use object::read::elf::SectionHeader as _;

use crate::embed::types::make;
use crate::image::{self, Image};

/// The bytes of the types: from the image, which is at `path`, or made of its debug information. `None` if it has neither.
pub fn blob(image: &Image<'_>, path: Option<&Path>) -> Option<Vec<u8>> {
    let embedded = image.sections_named(SECTION).find_map(|(_, section)| section.data);
    match embedded.map(|bytes| (bytes, Types::parse(bytes))) {
        Some((bytes, Ok(_))) => return Some(bytes.to_vec()),
        // Neither is a reason to give up: names and numbers are still shown.
        Some((_, Err(ImageError::Empty { .. }))) | None => {}
        Some((_, Err(_))) => return None,
    }
    make(image, path).ok()?.ok()?.blob(0).ok()
}

/// Types, and what they are shown with.
#[derive(Debug)]
pub struct Typed<'k> {
    types: Types<'k>,
    machine: Machine,
    constant: Constant<'k>,
    symbols: Symbols<'k>,
}

/// What of the image cannot be written, by address.
#[derive(Debug)]
struct Constant<'k> {
    slide: u64,
    sections: Vec<(u64, &'k [u8])>,
}

impl Memory for Constant<'_> {
    fn read(&self, addr: u64, into: &mut [u8]) -> bool {
        let addr = addr.wrapping_sub(self.slide);
        self.sections.iter().any(|(start, bytes)| {
            let from = addr.checked_sub(*start).and_then(|from| usize::try_from(from).ok());
            let there = from.and_then(|from| bytes.get(from..from.checked_add(into.len())?));
            there.map(|there| into.copy_from_slice(there)).is_some()
        })
    }
}

/// The functions of the image.
#[derive(Debug)]
struct Symbols<'k> {
    slide: u64,
    functions: &'k [image::Function<'k>],
}

impl Names for Symbols<'_> {
    fn symbol(&self, addr: u64, out: &mut dyn Write) -> std::fmt::Result {
        let addr = addr.wrapping_sub(self.slide);
        let after = self.functions.partition_point(|function| function.at.offset <= addr);
        let Some(last) = after.checked_sub(1).and_then(|last| self.functions.get(last)) else {
            return Ok(());
        };
        match addr - last.at.offset {
            0 => write!(out, "{}", Demangled(last.name)),
            offset if offset < last.size => write!(out, "{}+{offset:#x}", Demangled(last.name)),
            _ => Ok(()),
        }
    }
}

impl<'k> Typed<'k> {
    /// Types for an image that ran `slide` bytes above its link address. `None` if `blob` has none.
    pub fn new(blob: &'k [u8], image: &'k Image<'k>, slide: u64) -> Option<Self> {
        let types = Types::parse(blob).ok()?.with_slide(slide);
        let machine = match image.machine {
            image::Machine::X86_64 => Machine::X86_64,
            image::Machine::Arm64 => Machine::Arm64,
        };
        Some(Self {
            types,
            machine,
            constant: Constant { slide, sections: constant_sections(image) },
            symbols: Symbols { slide, functions: &image.functions },
        })
    }

    /// The FUNC of the function at this address, and values of its calls.
    fn at(&self, addr: u64) -> Option<(u32, Values<'_>)> {
        let id = self.types.function_at(addr)?;
        let values = Values::new(self.types.btf(), self.machine).with_floats(Floats::Unknown);
        Some((id, values.with_memory(&self.constant).with_names(&self.symbols)))
    }

    /// Whether what was recorded of the return of the function at this address shows what it returned: registers, or `kept`, the
    /// first bytes of a value in memory.
    pub fn has_retval(&self, addr: u64, kept: &[u8]) -> Option<bool> {
        let (id, values) = self.at(addr)?;
        Some(match values.retval_at(id)? {
            RetvalAt::Registers => true,
            RetvalAt::Behind | RetvalAt::Memory => !kept.is_empty(),
            RetvalAt::Nothing | RetvalAt::Lost => false,
        })
    }

    /// Whether the function at this address returned an error.
    pub fn is_error(&self, addr: u64, registers: &[usize], kept: &[u8]) -> Option<bool> {
        let (id, values) = self.at(addr)?;
        let is_error = values.is_error(id, &Returned { registers, memory: None, kept });
        // A register that does not have the value is not taken for an error either.
        let has_registers = values.retval_at(id)? == RetvalAt::Registers;
        if has_registers { is_error } else { Some(is_error.unwrap_or(false)) }
    }

    /// What the function at this address returned.
    pub fn retval(&self, addr: u64, registers: &[usize], kept: &[u8]) -> Option<String> {
        let (id, values) = self.at(addr)?;
        let mut text = String::new();
        values.write_retval(id, &Returned { registers, memory: None, kept }, &mut text).ok()?;
        Some(text)
    }

    /// What the function at this address was called with.
    pub fn args(&self, addr: u64, words: &[usize]) -> Option<String> {
        let (id, values) = self.at(addr)?;
        let mut text = String::new();
        values.write_args(id, &self.entered(words), &mut text).ok()?;
        Some(text)
    }

    /// The same, each argument with its name, which may be empty.
    pub fn named_args(&self, addr: u64, words: &[usize]) -> Option<Vec<(String, String)>> {
        let (id, values) = self.at(addr)?;
        let mut named = Named(Vec::new());
        values.each_arg(id, &self.entered(words), &mut named).ok()?;
        Some(named.0)
    }

    fn entered<'r>(&self, words: &'r [usize]) -> Entered<'r> {
        let stack = words.get(self.machine.argument_registers()).copied();
        Entered { registers: words, stack, indirect: None }
    }
}

/// Arguments with their names.
struct Named(Vec<(String, String)>);

impl TakeArgs for Named {
    fn next(&mut self, name: &str) -> Result<&mut dyn Write, std::fmt::Error> {
        self.0.push((name.to_owned(), String::new()));
        self.0.last_mut().map(|(_, value)| value as &mut dyn Write).ok_or(std::fmt::Error)
    }

    fn more(&mut self) -> std::fmt::Result {
        self.next("")?.write_str("...")
    }
}

/// The sections that are in memory and cannot be written, with their addresses.
fn constant_sections<'k>(image: &Image<'k>) -> Vec<(u64, &'k [u8])> {
    let elf = image.elf();
    let endian = elf.endian();
    let sections = elf.elf_section_table().iter().filter(|section| {
        let flags = section.sh_flags(endian);
        flags & (object::elf::SHF_ALLOC | object::elf::SHF_WRITE) == object::elf::SHF_ALLOC
    });
    let data = elf.data();
    sections.filter_map(|section| Some((section.sh_addr(endian), section.data(endian, data).ok()?))).collect()
}
