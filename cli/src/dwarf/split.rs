//! Units whose types are in files of their own (`-gsplit-dwarf`): a skeleton in the image names a `.dwo` file, which may have been
//! packed with all others into a `.dwp` file beside the image. DWARF 5, 7.3.5, and GNU's extension to DWARF 4 before it.
//!
//! Invariant: a file is taken only if it has the number that the skeleton has; one of another build tells nothing about this one.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use gimli::{
    Dwarf, DwarfPackage, DwarfPackageSections, DwarfSections, DwoId, EndianSlice, LittleEndian, SectionId,
    Unit,
};

use super::sections::{Sections, Slice};
use crate::image::Image;

/// Why a split unit is not read.
#[derive(Debug)]
pub enum SplitError {
    /// Nobody said where the image is, so its files are not looked for.
    NotLookedFor(String),
    /// The file cannot be read.
    Read(PathBuf, io::Error),
    /// It is not an object file of this kind: why.
    NotObject(PathBuf, String),
    /// It has no unit with the number that the image asks for.
    OtherBuild(PathBuf, u64),
    /// The skeleton does not say which file.
    NoName(u64),
}

impl fmt::Display for SplitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLookedFor(name) => write!(f, "{name}: files beside the image are not looked for"),
            Self::Read(path, error) => write!(f, "{}: {error}", path.display()),
            Self::NotObject(path, why) => write!(f, "{}: {why}", path.display()),
            Self::OtherBuild(path, id) => {
                write!(f, "{}: of another build, it has no unit {id:#018x}", path.display())
            }
            Self::NoName(id) => write!(f, "unit {id:#018x} does not say in which file it is"),
        }
    }
}

/// Bytes of the sections of a file.
type Owned = DwarfSections<Vec<u8>>;

/// The split units of an image, as far as they were found.
#[derive(Debug, Default)]
pub struct Split {
    package: Option<DwarfPackageSections<Vec<u8>>>,
    /// By number.
    files: HashMap<u64, Result<Owned, SplitError>>,
}

/// What a skeleton says of its unit.
struct Wanted {
    id: u64,
    name: Option<String>,
    folder: String,
}

impl Split {
    /// Looks for the split units of an image. `image` is the image's own path: a package has that with `.dwp` behind; of a file of its
    /// own, the skeleton tells folder and name, and it is looked for in the image's folder next.
    pub fn of(sections: &Sections<'_>, image: Option<&Path>) -> Self {
        let dwarf = sections.dwarf();
        let wanted = skeletons(&dwarf);
        if wanted.is_empty() {
            return Self::default();
        }
        let mut this = Self::default();
        let mut package_error = None;
        if let Some(image) = image {
            let mut path = image.as_os_str().to_owned();
            path.push(".dwp");
            match read_package(Path::new(&path)) {
                Ok(package) => this.package = Some(package),
                Err(SplitError::Read(_, error)) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => package_error = Some(error),
            }
        }
        for unit in wanted {
            if this.package().is_some_and(|package| package.cu_index.find(unit.id).is_some()) {
                continue;
            }
            let found = find(&unit, image).map_err(|error| package_error.take().unwrap_or(error));
            this.files.insert(unit.id, found);
        }
        this
    }

    /// The package, if there is one.
    pub(super) fn package(&self) -> Option<DwarfPackage<Slice<'_>>> {
        self.package.as_ref()?.borrow(|bytes| slice(bytes), slice(&[])).ok()
    }

    /// The unit with that number.
    pub(super) fn unit<'d>(
        &'d self,
        package: Option<&DwarfPackage<Slice<'d>>>,
        id: DwoId,
        parent: &Dwarf<Slice<'d>>,
    ) -> Result<Dwarf<Slice<'d>>, String> {
        if let Some(package) = package
            && let Some(dwarf) = package.find_cu(id, parent).map_err(|error| error.to_string())?
        {
            return Ok(dwarf);
        }
        match self.files.get(&id.0) {
            Some(Ok(sections)) => {
                let mut dwarf = sections.borrow(|bytes| slice(bytes));
                dwarf.make_dwo(parent);
                Ok(dwarf)
            }
            Some(Err(error)) => Err(error.to_string()),
            None => Err(format!("unit {:#018x} was not looked for", id.0)),
        }
    }
}

fn slice(bytes: &[u8]) -> Slice<'_> {
    EndianSlice::new(bytes, LittleEndian)
}

/// The number of a split unit that this one is the skeleton of.
pub(super) fn skeleton_of(unit: &Unit<Slice<'_>>) -> Option<DwoId> {
    let is_skeleton = matches!(unit.dwo_name(), Ok(Some(_)));
    unit.dwo_id.filter(|_| is_skeleton || matches!(unit.header.type_(), gimli::UnitType::Skeleton(_)))
}

fn skeletons(dwarf: &Dwarf<Slice<'_>>) -> Vec<Wanted> {
    let mut found = Vec::new();
    let mut headers = dwarf.units();
    while let Ok(Some(header)) = headers.next() {
        let Ok(unit) = dwarf.unit(header) else { continue };
        let Some(id) = skeleton_of(&unit) else { continue };
        let name = unit.dwo_name().ok().flatten();
        let name = name.and_then(|name| dwarf.attr_string(&unit, name).ok());
        found.push(Wanted {
            id: id.0,
            name: name.map(|name| name.to_string_lossy().into_owned()),
            folder: unit.comp_dir.map(|folder| folder.to_string_lossy().into_owned()).unwrap_or_default(),
        });
    }
    found
}

/// Reads the file of a unit from the first place where there is one.
fn find(unit: &Wanted, image: Option<&Path>) -> Result<Owned, SplitError> {
    let name = unit.name.as_ref().ok_or(SplitError::NoName(unit.id))?;
    let image = image.ok_or_else(|| SplitError::NotLookedFor(name.clone()))?;
    let told = Path::new(&unit.folder).join(name);
    let beside = image.parent().unwrap_or(Path::new(""));
    let places = [told.clone(), beside.join(name), beside.join(told.file_name().unwrap_or_default())];
    let mut first = None;
    for path in places {
        match read_unit(&path, unit.id) {
            Ok(sections) => return Ok(sections),
            Err(error) => first.get_or_insert(error),
        };
    }
    // What is wrong where it should be says most.
    Err(first.unwrap_or(SplitError::NoName(unit.id)))
}

fn read_unit(path: &Path, id: u64) -> Result<Owned, SplitError> {
    let bytes = fs::read(path).map_err(|error| SplitError::Read(path.to_owned(), error))?;
    let sections = with_sections(&bytes, |load| DwarfSections::load(load))
        .map_err(|why| SplitError::NotObject(path.to_owned(), why.0))?;
    let dwarf = sections.borrow(|bytes| slice(bytes));
    let mut headers = dwarf.units();
    while let Ok(Some(header)) = headers.next() {
        if dwarf.unit(header).is_ok_and(|unit| unit.dwo_id == Some(DwoId(id))) {
            return Ok(sections);
        }
    }
    Err(SplitError::OtherBuild(path.to_owned(), id))
}

fn read_package(path: &Path) -> Result<DwarfPackageSections<Vec<u8>>, SplitError> {
    let bytes = fs::read(path).map_err(|error| SplitError::Read(path.to_owned(), error))?;
    let package = with_sections(&bytes, |load| DwarfPackageSections::load(load));
    let package = package.map_err(|why| SplitError::NotObject(path.to_owned(), why.0))?;
    let index = package.borrow(|bytes| slice(bytes), slice(&[])).map(|_| ());
    index.map_err(|error| SplitError::NotObject(path.to_owned(), error.to_string()))?;
    Ok(package)
}

/// What is wrong with a file, in words.
struct Why(String);

impl From<gimli::Error> for Why {
    fn from(error: gimli::Error) -> Self {
        Self(error.to_string())
    }
}

/// Loads sections by the names that they have in files of split units.
fn with_sections<T>(
    bytes: &[u8],
    load: impl FnOnce(&mut dyn FnMut(SectionId) -> Result<Vec<u8>, Why>) -> Result<T, Why>,
) -> Result<T, Why> {
    let image = Image::parse(bytes).map_err(|error| Why(error.to_string()))?;
    load(&mut |id| {
        let Some(name) = id.dwo_name() else { return Ok(Vec::new()) };
        let section = image.debug_section(name).map_err(|error| Why(format!("{name}: {error}")))?;
        Ok(section.unwrap_or_default().into_owned())
    })
}
