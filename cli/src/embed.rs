//! `fgraph embed`: names and types of functions into a linked kernel.
//!
//! Invariant: the file is replaced as a whole or stays as it was, and nothing outside the reserved spaces
//! changes.

pub mod types;

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process;

use fgraph::symbols::layout::{AT_CAPACITY, HEADER_LEN, SECTION};
use fgraph::symbols::{Demangled, Symbols, SymbolsError};

use crate::image::{Image, Section};
use crate::{Error, blob, files};
use types::{Made, Without};

/// What was embedded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Embedded {
    /// Names, aliases included.
    pub names: usize,
    /// Names whose source file is known.
    pub files: usize,
    /// Functions left out because their name is not UTF-8 or is empty.
    pub unnamed: usize,
    /// Bytes used.
    pub used: u64,
    /// Bytes reserved.
    pub capacity: u64,
}

impl fmt::Display for Embedded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} names in {} of {} bytes", self.names, self.used, self.capacity)?;
        if self.files != 0 {
            write!(f, ", {} of them with their source files", self.files)?;
        }
        if self.unnamed != 0 {
            write!(f, ", {} functions left out: their name is empty or not UTF-8", self.unnamed)?;
        }
        Ok(())
    }
}

/// The space that an image reserves: its section, and how many of its bytes are ours.
///
/// A space that has been filled before is as good as an empty one, even if its content is damaged: only the
/// header counts.
pub fn space<'i, 'd>(image: &'i Image<'d>) -> Result<(&'i Section<'d>, &'d [u8], u64), Error> {
    let (_, section) = image.sections_named(SECTION).next().ok_or(Error::NoSpace)?;
    let data = section.data.ok_or(Error::SpaceNotInFile)?;
    if let Err(
        error @ (SymbolsError::TooShort { .. } | SymbolsError::BadMagic(_) | SymbolsError::Version(_)),
    ) = Symbols::parse(data)
    {
        return Err(Error::SpaceNotReserved(error));
    }
    let capacity = data.get(AT_CAPACITY..).and_then(|rest| rest.first_chunk()).copied().unwrap_or_default();
    let capacity = u64::from_le_bytes(capacity);
    let section_size = data.len() as u64;
    if capacity < HEADER_LEN as u64 || capacity > section_size {
        return Err(Error::SpaceCapacity { capacity, section: section_size });
    }
    Ok((section, data, capacity))
}

/// Makes the bytes that belong into an image's reserved space, and says where in the file they go.
fn fill(file: &[u8]) -> Result<(Range<usize>, Vec<u8>, Embedded), Error> {
    let image = Image::parse(file)?;
    if !image.is_linked {
        return Err(Error::NotLinked);
    }
    if !image.has_symbols {
        return Err(Error::NoSymbolTable);
    }
    let (section, data, capacity) = space(&image)?;
    let files = files::of(&image);
    let mut blob = blob::build(&image.functions, &files, capacity)?;
    let used = blob.len() as u64;
    let files = files.iter().flatten().count();
    if used > capacity {
        return Err(Error::SpaceTooSmall { have: capacity, need: used });
    }
    // The section's bytes were read from the file, so its range lies in the file, and the capacity in the
    // range.
    blob.resize(capacity as usize, 0);
    let start = section.file_offset as usize;
    debug_assert!(data.len() >= blob.len());
    let names = image.functions.len();
    Ok((
        start..start + blob.len(),
        blob,
        Embedded { names, files, unnamed: image.unnamed_functions, used, capacity },
    ))
}

/// Puts the names of an image's functions into the image.
pub fn embed(file: &mut [u8]) -> Result<Embedded, Error> {
    let (range, blob, embedded) = fill(file)?;
    file[range].copy_from_slice(&blob);
    Ok(embedded)
}

/// Puts the names of a kernel's functions into `output`, or into the kernel itself.
pub fn embed_file(kernel: &Path, output: Option<&Path>) -> Result<Embedded, Error> {
    let read_error = |error| Error::Read(kernel.to_owned(), error);
    let mut file = fs::read(kernel).map_err(read_error)?;
    let permissions = fs::metadata(kernel).map_err(read_error)?.permissions();
    let embedded = embed(&mut file)?;
    let output = output.unwrap_or(kernel);
    replace(output, &file, permissions).map_err(|error| Error::Write(output.to_owned(), error))?;
    Ok(embedded)
}

/// Files that types go to, besides the image.
#[derive(Clone, Copy, Debug, Default)]
pub struct TypeFiles<'p> {
    /// What the kernel would load: functions and types.
    pub types: Option<&'p Path>,
    /// BTF alone.
    pub btf: Option<&'p Path>,
}

impl TypeFiles<'_> {
    fn are_any(&self) -> bool {
        self.types.is_some() || self.btf.is_some()
    }
}

/// What became of the types.
#[derive(Debug)]
pub enum Typed {
    /// Neither space for them, nor files, nor anything to make them of: as with `--no-types`.
    Unasked,
    /// There are none.
    Without(Without),
    /// There are some, and no place for them.
    NoPlace(Made),
    /// They are in files only.
    InFiles(Made),
    /// They are in the image.
    InImage {
        /// What was made.
        made: Made,
        /// Bytes used.
        used: u64,
        /// Bytes reserved.
        capacity: u64,
    },
}

/// What was embedded, names and types.
#[derive(Debug)]
pub struct Done {
    /// The names; `None` if the image reserves no space for them, and files were asked for.
    pub names: Option<Embedded>,
    /// The types.
    pub typed: Typed,
}

impl Done {
    fn made(&self) -> Option<&Made> {
        match &self.typed {
            Typed::NoPlace(made) | Typed::InFiles(made) | Typed::InImage { made, .. } => Some(made),
            Typed::Unasked | Typed::Without(_) => None,
        }
    }

    /// A line for each function without types, and for each unit that was not read.
    pub fn left_out(&self) -> String {
        let report = self.made().map(|made| &made.report);
        let functions = report.into_iter().flat_map(|report| &report.left_out);
        let functions =
            functions.map(|(at, name, reason)| format!("no types: {at:#x} {}: {reason}\n", Demangled(name)));
        let units = report.into_iter().flat_map(|report| report.split.iter().chain(&report.malformed));
        functions.chain(units.map(|unit| format!("not read: {unit}\n"))).collect()
    }
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.names {
            Some(names) => write!(f, "{names}")?,
            None => write!(f, "no names: the image has no section {SECTION}")?,
        }
        match &self.typed {
            Typed::Unasked => Ok(()),
            Typed::Without(why) => write!(f, "\nno types: {why}"),
            Typed::NoPlace(made) => write!(
                f,
                "\nno types: the image has no section {}; `type_space!(BYTES)` reserves it, and `--types FILE` writes \
                 them to a file: {}",
                fgraph::btf::image::layout::SECTION,
                made.report
            ),
            Typed::InFiles(made) => write!(f, "\n{}", made.report),
            Typed::InImage { made, used, capacity } => {
                write!(f, "\n{}, in {used} of {capacity} bytes", made.report)
            }
        }
    }
}

/// Where in a file, and what.
type Patch = (Range<usize>, Vec<u8>);

/// Puts the types of an image's functions where they belong: into the image, or into bytes for files.
fn fill_types(file: &[u8], path: &Path, files: &TypeFiles<'_>) -> Result<(Typed, Option<Patch>), Error> {
    let image = Image::parse(file)?;
    let space = types::space(&image)?;
    let has_files = files.are_any();
    let made = match types::make(&image, Some(path))? {
        Ok(made) => made,
        Err(why) if has_files => return Err(Error::NoTypes(why)),
        Err(Without::NoDebugInfo) if space.is_none() => return Ok((Typed::Unasked, None)),
        Err(why) => return Ok((Typed::Without(why), None)),
    };
    match space {
        // Who wants them in a file needs no room for them in the image.
        _ if files.types.is_some() => Ok((Typed::InFiles(made), None)),
        None if has_files => Ok((Typed::InFiles(made), None)),
        None => Ok((Typed::NoPlace(made), None)),
        Some(range) => {
            let mut blob = made.blob(range.len() as u64)?;
            let (used, capacity) = (blob.len() as u64, range.len() as u64);
            blob.resize(range.len(), 0);
            Ok((Typed::InImage { made, used, capacity }, Some((range, blob))))
        }
    }
}

/// Puts names and types of a kernel's functions into `output`, which may be the kernel itself. Of a kernel that reserves no space for
/// names, files can be made.
pub fn embed_typed(kernel: &Path, output: &Path, files: &TypeFiles<'_>) -> Result<Done, Error> {
    let read_error = |error| Error::Read(kernel.to_owned(), error);
    let mut file = fs::read(kernel).map_err(read_error)?;
    let permissions = fs::metadata(kernel).map_err(read_error)?.permissions();
    let names = match embed(&mut file) {
        Err(Error::NoSpace) if files.are_any() => None,
        embedded => Some(embedded?),
    };
    let (typed, place) = fill_types(&file, kernel, files)?;
    let is_changed = names.is_some() || place.is_some();
    if let Some((range, blob)) = place {
        file[range].copy_from_slice(&blob);
    }
    let done = Done { names, typed };
    if let Some(made) = done.made() {
        for (path, bytes) in [
            (files.types, files.types.map(|_| made.blob(0)).transpose()?),
            (files.btf, files.btf.map(|_| made.btf.clone())),
        ] {
            if let (Some(path), Some(bytes)) = (path, bytes) {
                let mode = fs::Permissions::from_mode(0o644);
                replace(path, &bytes, mode).map_err(|error| Error::Write(path.to_owned(), error))?;
            }
        }
    }
    if is_changed || output != kernel {
        replace(output, &file, permissions).map_err(|error| Error::Write(output.to_owned(), error))?;
    }
    Ok(done)
}

/// Writes beside the file and renames, so that whoever opens the file finds the old one or the new one.
fn replace(path: &Path, content: &[u8], permissions: fs::Permissions) -> io::Result<()> {
    // Renaming onto a symbolic link would replace the link and not the file.
    let path = if path.exists() { fs::canonicalize(path)? } else { path.to_owned() };
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut temporary_name = std::ffi::OsString::from(".");
    temporary_name.push(name);
    temporary_name.push(format!(".fgraph-{}", process::id()));
    let temporary = Temporary(path.with_file_name(temporary_name));

    let mut file = File::options().write(true).create_new(true).open(&temporary.0)?;
    file.write_all(content)?;
    file.set_permissions(permissions)?;
    file.sync_all()?;
    fs::rename(&temporary.0, &path)
}

/// A file that does not stay. Once it has been renamed there is nothing left to remove.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
