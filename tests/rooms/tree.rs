//! The sources as the room rules see them, and what the rules find in them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::asm::{self, Line};
use crate::rust::{self, Token};

/// The sources by path.
pub(crate) struct Tree(pub(crate) BTreeMap<String, File>);

pub(crate) struct File {
    pub(crate) text: String,
    /// Of Rust; empty for others.
    pub(crate) tokens: Vec<Token>,
}

/// Something that a rule objects to.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    pub(crate) path: String,
    line: usize,
    /// The exported macro that it is in, or `cfg(test)`, or nothing.
    pub(crate) place: String,
    what: String,
}

/// What one rule objects to. A set: text in a macro is seen once for each call.
#[derive(Default)]
pub(crate) struct Findings(pub(crate) BTreeSet<Finding>);

impl Findings {
    pub(crate) fn add(&mut self, path: &str, line: usize, what: impl Into<String>) {
        self.0.insert(Finding { path: path.to_owned(), line, place: String::new(), what: what.into() });
    }

    pub(crate) fn token(&mut self, path: &str, token: &Token) {
        self.0.insert(Finding {
            path: path.to_owned(),
            line: token.line,
            place: match &token.exported {
                Some(name) => name.clone(),
                None if token.test => "cfg(test)".to_owned(),
                None => String::new(),
            },
            what: format!("`{}`", token.text),
        });
    }

    pub(crate) fn line(&mut self, line: &Line, what: &str) {
        self.add(&line.path, line.number, format!("{what}: `{}`", line.code));
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

impl Tree {
    /// The repository's sources.
    pub(crate) fn read() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut files = Vec::new();
        for room in ["core", "arch", "asm", "link", "qemu", "cli", "tests", "scripts", ".ci"] {
            list(&root.join(room), &mut files);
        }
        let files = files.iter().map(|path| {
            let name = path.strip_prefix(root).unwrap().to_str().unwrap();
            (name, fs::read_to_string(path).unwrap_or_else(|error| panic!("{name}: {error}")))
        });
        Self::of(files.collect::<Vec<_>>().iter().map(|(name, text)| (*name, text.as_str())))
    }

    pub(crate) fn of<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let file = |path: &str, text: &str| File {
            text: text.to_owned(),
            tokens: if path.ends_with(".rs") { rust::tokens(text) } else { Vec::new() },
        };
        let mut tree: BTreeMap<_, _> =
            files.into_iter().map(|(path, text)| (path.to_owned(), file(path, text))).collect();

        // A module that only tests see is one with all its files.
        let mut test_only = Vec::new();
        for (path, file) in &tree {
            let folder = match path.rsplit_once('/') {
                Some((folder, "lib.rs" | "mod.rs" | "main.rs")) => folder,
                _ => path.trim_end_matches(".rs"),
            };
            for (at, token) in file.tokens.iter().enumerate() {
                if token.test
                    && token.text == "mod"
                    && file.tokens.get(at + 2).is_some_and(|end| end.text == ";")
                {
                    test_only.push(format!("{folder}/{}", file.tokens[at + 1].text));
                }
            }
        }
        for (path, file) in &mut tree {
            let belongs = |module: &String| {
                path.strip_prefix(module.as_str()).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
            };
            if test_only.iter().any(belongs) {
                file.tokens.iter_mut().for_each(|token| token.test = true);
            }
        }
        Self(tree)
    }

    /// The files whose path starts like this.
    pub(crate) fn under<'t>(&'t self, room: &'t str) -> impl Iterator<Item = (&'t str, &'t File)> {
        self.0
            .iter()
            .filter(move |(path, _)| path.starts_with(room))
            .map(|(path, file)| (path.as_str(), file))
    }

    /// The lines of each assembly file.
    pub(crate) fn assembly(&self) -> impl Iterator<Item = Line> {
        self.under("asm/")
            .filter(|(path, _)| path.ends_with(".s"))
            .flat_map(|(path, file)| asm::lines(path, &file.text))
    }

    /// The lines of a machine's assembly, in the order in which they are included.
    pub(crate) fn assembly_of(&self, machine: &str) -> Vec<Line> {
        let included = self.included_by(machine);
        included.iter().filter_map(|path| Some(asm::lines(path, &self.0.get(path)?.text))).flatten().collect()
    }

    /// The paths of the assembly files that a machine's binding includes.
    pub(crate) fn included_by(&self, machine: &str) -> Vec<String> {
        let Some(tramp) = self.0.get(&format!("arch/{machine}/tramp.rs")) else { return Vec::new() };
        tramp
            .tokens
            .iter()
            .filter_map(Token::string)
            .filter_map(|path| path.strip_prefix("../../"))
            .map(str::to_owned)
            .collect()
    }
}

/// Everything below a folder that is a source.
fn list(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.unwrap().path();
        let is_source = match path.extension() {
            Some(extension) => ["rs", "s", "ld"].iter().any(|known| extension == *known),
            None => true,
        };
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "target") {
                list(&path, files);
            }
        } else if is_source {
            files.push(path);
        }
    }
}
