//! The debug sections of an image, decompressed, and with relocations applied in an object file.

use std::borrow::Cow;

use gimli::{Dwarf, DwarfSections, EndianSlice, LittleEndian, SectionId};

use crate::image::{Image, Place};

/// How bytes are read here.
pub(crate) type Slice<'d> = EndianSlice<'d, LittleEndian>;

/// The sections of one file.
#[derive(Debug)]
pub struct Sections<'d>(DwarfSections<Cow<'d, [u8]>>);

impl<'d> Sections<'d> {
    /// Takes them out of an image; sections that it lacks are empty.
    pub fn load(image: &Image<'d>) -> Result<Self, String> {
        let load = |id: SectionId| -> Result<Cow<'d, [u8]>, String> {
            image
                .debug_section(id.name())
                .map(Option::unwrap_or_default)
                .map_err(|error| format!("{}: {error}", id.name()))
        };
        DwarfSections::load(load).map(Self)
    }

    /// Whether there is any debug information.
    pub fn is_empty(&self) -> bool {
        matches!(self.dwarf().units().next(), Ok(None))
    }

    pub(crate) fn dwarf(&self) -> Dwarf<Slice<'_>> {
        self.0.borrow(|section| EndianSlice::new(section, LittleEndian))
    }
}

/// The addresses of places: those of the image, or in an object file, whose sections all start at 0, made up so
/// that they differ. [`Image::debug_section`] uses the same.
pub fn address(place: Place) -> u64 {
    match place.section as u64 {
        0 => place.offset,
        section => section << 32 | place.offset & u64::from(u32::MAX),
    }
}
