//! The units of the debug information, and entries anywhere in them.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use gimli::{
    AbbreviationsCacheStrategy, AttributeValue, DebuggingInformationEntry, DwAt, Dwarf, Unit, UnitHeader,
    UnitOffset, UnitSectionOffset, UnitType,
};

use super::Reason;
use super::sections::Slice;
use super::split::{Split, skeleton_of};

/// An entry's attributes.
pub(crate) type Entry<'d> = DebuggingInformationEntry<Slice<'d>>;
/// An attribute's value.
pub(crate) type Value<'d> = AttributeValue<Slice<'d>>;

/// Where an entry is: which unit, and its offset in that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Die {
    pub(crate) unit: u32,
    pub(crate) at: usize,
}

/// What a unit is written in, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Language {
    C,
    Cpp,
    Rust,
    Assembly,
    Other,
}

/// A compiler, as far as it matters how it tells that it changed a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Maker {
    /// Gives the function another name.
    Gnu,
    /// LLVM before it said so.
    SilentLlvm,
    /// Says so in the debug information.
    Other,
}

impl Maker {
    fn of(producer: &str) -> Self {
        if producer.starts_with("GNU ") {
            return Self::Gnu;
        }
        let version = producer.split_once("clang version ").map(|(_, version)| version);
        let major = version.and_then(|version| version.split('.').next()?.parse::<u32>().ok());
        if major.is_some_and(|major| major < FIRST_CLANG_THAT_TELLS) { Self::SilentLlvm } else { Self::Other }
    }
}

/// `DW_CC_nocall` for functions with arguments removed came in a version that is not known for certain, and not after this one.
const FIRST_CLANG_THAT_TELLS: u32 = 17;

pub(crate) struct Slot<'d> {
    pub(crate) unit: Unit<Slice<'d>>,
    pub(crate) language: Language,
    /// Who made it.
    pub(crate) maker: Maker,
    /// Which of the files it is in.
    file: usize,
    /// What a split unit has in the image.
    skeleton: Option<Rc<Unit<Slice<'d>>>>,
}

pub(crate) struct Units<'d> {
    /// The image, and each file with split units, or what a package has of it.
    files: Vec<Dwarf<Slice<'d>>>,
    pub(crate) slots: Vec<Slot<'d>>,
    /// Why split units were not read.
    pub(crate) split: Vec<String>,
    pub(crate) malformed: Vec<String>,
    /// Units by their file, and where their headers are in its `.debug_info`.
    starts: BTreeMap<(usize, usize), u32>,
    signatures: HashMap<u64, Die>,
}

impl<'d> Units<'d> {
    pub(crate) fn load(mut dwarf: Dwarf<Slice<'d>>, split: &'d Split) -> Self {
        dwarf.populate_abbreviations_cache(AbbreviationsCacheStrategy::Duplicates);
        let mut this = Self {
            files: vec![dwarf],
            slots: Vec::new(),
            split: Vec::new(),
            malformed: Vec::new(),
            starts: BTreeMap::new(),
            signatures: HashMap::new(),
        };
        let package = split.package();
        for skeleton in this.add_all(0, None) {
            let Some(id) = skeleton_of(&skeleton) else { continue };
            match split.unit(package.as_ref(), id, &this.files[0]) {
                Ok(dwarf) => {
                    this.files.push(dwarf);
                    this.add_all(this.files.len() - 1, Some(&skeleton));
                }
                Err(why) => this.split.push(why),
            }
        }
        if let Some(package) = package {
            for row in 1..=package.tu_index.unit_count() {
                match package.tu_sections(row, &this.files[0]) {
                    Ok(dwarf) => {
                        this.files.push(dwarf);
                        this.add_all(this.files.len() - 1, None);
                    }
                    Err(error) => this.malformed.push(format!("type unit {row} of the package: {error}")),
                }
            }
        }
        this
    }

    /// Adds the units of a file, and gives the skeletons among them.
    fn add_all(&mut self, file: usize, skeleton: Option<&Rc<Unit<Slice<'d>>>>) -> Vec<Rc<Unit<Slice<'d>>>> {
        let mut skeletons = Vec::new();
        let mut headers = self.files[file].units();
        loop {
            match headers.next() {
                Ok(Some(header)) => skeletons.extend(self.add(file, header, skeleton).map(Rc::new)),
                Ok(None) => break,
                Err(error) => {
                    // Without the length of a unit there is no way to the next.
                    self.malformed.push(format!("the rest of .debug_info: {error}"));
                    break;
                }
            }
        }
        let mut headers = self.files[file].type_units();
        while let Ok(Some(header)) = headers.next() {
            self.add(file, header, skeleton);
        }
        skeletons
    }

    /// Adds a unit, or gives it back if it is a skeleton.
    fn add(
        &mut self,
        file: usize,
        header: UnitHeader<Slice<'d>>,
        skeleton: Option<&Rc<Unit<Slice<'d>>>>,
    ) -> Option<Unit<Slice<'d>>> {
        let start = match header.offset() {
            UnitSectionOffset(at) if header.section() == gimli::SectionId::DebugInfo => Some(at),
            UnitSectionOffset(_) => None,
        };
        let kind = header.type_();
        let loaded = self.files[file].unit(header).and_then(|unit| {
            let root = unit.entry(header.root_offset())?;
            Ok((unit, root))
        });
        let (mut unit, root) = match loaded {
            Ok(loaded) => loaded,
            Err(error) => {
                self.malformed.push(format!("unit at {start:#x?}: {error}"));
                return None;
            }
        };
        if skeleton.is_none() && skeleton_of(&unit).is_some() {
            return Some(unit);
        }
        let is_type = matches!(kind, UnitType::Type { .. } | UnitType::SplitType { .. });
        // A type unit has no code, and a line program of its own.
        let skeleton = skeleton.filter(|_| !is_type).cloned();
        if let Some(skeleton) = &skeleton {
            unit.copy_relocated_attributes(skeleton);
        }
        let language = match root.attr_value(gimli::DW_AT_language) {
            Some(AttributeValue::Language(language)) => match language {
                gimli::DW_LANG_Rust => Language::Rust,
                gimli::DW_LANG_C89 | gimli::DW_LANG_C | gimli::DW_LANG_C99 | gimli::DW_LANG_C11 => {
                    Language::C
                }
                gimli::DW_LANG_C17 => Language::C,
                gimli::DW_LANG_C_plus_plus
                | gimli::DW_LANG_C_plus_plus_03
                | gimli::DW_LANG_C_plus_plus_11
                | gimli::DW_LANG_C_plus_plus_14
                | gimli::DW_LANG_C_plus_plus_17
                | gimli::DW_LANG_C_plus_plus_20 => Language::Cpp,
                gimli::DW_LANG_Mips_Assembler => Language::Assembly,
                _ => Language::Other,
            },
            _ => Language::Other,
        };
        let index = self.slots.len() as u32;
        if let UnitType::Type { type_signature, type_offset }
        | UnitType::SplitType { type_signature, type_offset } = kind
        {
            self.signatures.insert(type_signature.0, Die { unit: index, at: type_offset.0 });
        }
        let producer = root.attr_value(gimli::DW_AT_producer);
        let producer = producer.and_then(|value| self.files[file].attr_string(&unit, value).ok());
        let maker = producer.map_or(Maker::Other, |producer| Maker::of(&producer.to_string_lossy()));
        if let Some(start) = start {
            self.starts.insert((file, start), index);
        }
        self.slots.push(Slot { unit, language, maker, file, skeleton });
        None
    }

    /// The sections that a unit is in.
    pub(crate) fn dwarf(&self, of: Die) -> &Dwarf<Slice<'d>> {
        &self.files[self.slot(of).file]
    }

    pub(crate) fn slot(&self, die: Die) -> &Slot<'d> {
        &self.slots[die.unit as usize]
    }

    pub(crate) fn entry(&self, die: Die) -> Result<Entry<'d>, Reason> {
        let entry = self.slot(die).unit.entry(UnitOffset(die.at))?;
        if entry.is_null() { Err(Reason::Malformed(format!("no entry at {:#x}", die.at))) } else { Ok(entry) }
    }

    /// The entries directly below one.
    pub(crate) fn children(&self, die: Die) -> Result<Vec<(Die, Entry<'d>)>, Reason> {
        let mut children = Vec::new();
        let mut raw = self.slot(die).unit.entries_raw(Some(UnitOffset(die.at)))?;
        let mut entry = Entry::null();
        raw.read_entry(&mut entry)?;
        while raw.next_depth() > 0 && !raw.is_empty() {
            if raw.next_depth() == 1 {
                let at = raw.next_offset().0;
                if raw.read_entry(&mut entry)? {
                    children.push((Die { unit: die.unit, at }, entry.clone()));
                }
            } else if let Some(abbreviation) = raw.read_abbreviation()? {
                raw.skip_attributes(abbreviation.attributes())?;
            }
        }
        Ok(children)
    }

    /// The entry that an attribute refers to.
    pub(crate) fn follow(&self, from: Die, value: &Value<'d>) -> Result<Die, Reason> {
        match *value {
            AttributeValue::UnitRef(at) => Ok(Die { unit: from.unit, at: at.0 }),
            AttributeValue::DebugInfoRef(at) => {
                let file = self.slot(from).file;
                let before = self.starts.range((file, 0)..=(file, at.0)).next_back();
                let ((_, start), unit) =
                    before.ok_or(Reason::Malformed(format!("reference to {:#x}", at.0)))?;
                Ok(Die { unit: *unit, at: at.0 - start })
            }
            AttributeValue::DebugTypesRef(signature) => self
                .signatures
                .get(&signature.0)
                .copied()
                .ok_or_else(|| Reason::Type(format!("type unit {:#x} is not in the file", signature.0))),
            AttributeValue::DebugInfoRefSup(_) => Err(Reason::Type("it is in a supplementary file".into())),
            _ => Err(Reason::Malformed("a reference of another form".into())),
        }
    }

    pub(crate) fn refers(&self, from: Die, entry: &Entry<'d>, name: DwAt) -> Result<Option<Die>, Reason> {
        entry.attr_value(name).map(|value| self.follow(from, &value)).transpose()
    }

    /// A source file of a unit by its number: folder and name.
    pub(crate) fn file(&self, of: Die, index: u64) -> Option<String> {
        let slot = self.slot(of);
        // The files of a split unit are those of its skeleton.
        let (dwarf, unit) = match &slot.skeleton {
            Some(skeleton) => (&self.files[0], &**skeleton),
            None => (self.dwarf(of), &slot.unit),
        };
        let program = unit.line_program.as_ref()?;
        let file = program.header().file(index)?;
        let text = |value| Some(dwarf.attr_string(unit, value).ok()?.to_string_lossy().into_owned());
        let folder = file.directory(program.header()).and_then(text).unwrap_or_default();
        Some(format!("{folder}/{}", text(file.path_name())?))
    }

    pub(crate) fn text(&self, from: Die, entry: &Entry<'d>, name: DwAt) -> Option<String> {
        let value = entry.attr_value(name)?;
        let text = self.dwarf(from).attr_string(&self.slot(from).unit, value).ok()?;
        Some(String::from_utf8_lossy(text.slice()).into_owned())
    }
}

/// A number that does not depend on where something is.
pub(crate) fn number(entry: &Entry<'_>, name: DwAt) -> Option<u64> {
    entry.attr_value(name)?.udata_value()
}

pub(crate) fn flag(entry: &Entry<'_>, name: DwAt) -> bool {
    matches!(entry.attr_value(name), Some(AttributeValue::Flag(true)))
}
