//! Which functions a word of a filter takes.
//!
//! Invariant: nothing is taken unless the word was understood and something matches it, and never a function
//! that was not meant: a word that matches nothing is an error, and so is a name without wildcards that
//! several functions have. [`candidates`] lists those. A word asks for all that match by a wildcard in its
//! name, its module or its file, by an inverted or empty module pattern, or by `#*`. What a name means is
//! said in [`names`](crate::names).
//!
//! Called when filters are written, with the functions that have a site, never with all symbols: a function
//! that cannot be traced is not there. Each call looks at every function once or twice.

use core::fmt;

use crate::addr::FuncAddr;
use crate::filter_text::{Copies, FilterLine, ModuleScope, NameTarget, Part, Target};
use crate::names::{Rank, WrittenName, is_variant};
use crate::pattern::Pattern;

#[cfg(test)]
mod tests;

/// How a word names the image itself where others have a module: `vmlinux:schedule`.
pub const KERNEL_MODULE: &str = "vmlinux";

/// The functions that can be traced, in the order of `available_filter_functions`: those of the kernel and then those of each
/// module, by address. It is gone through from the start, so the next function should cost little, and one before may cost more.
pub trait FunctionTable {
    /// Number of functions.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The name in the symbol table. `index` counts from 0 and is below [`len`](Self::len), here and below.
    fn raw_name(&self, index: usize) -> &str;

    /// The loadable module that it is part of; `None` for the image itself.
    fn module(&self, index: usize) -> Option<&str>;

    /// The source file, if that is known.
    fn file(&self, index: usize) -> Option<&str>;

    /// Where it starts. Neighbours with one address are one function under several names.
    fn addr(&self, index: usize) -> FuncAddr;
}

/// What a word has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// So many functions.
    Functions(usize),
    /// The module behind `:mod:` is not there. The word is to be kept, and selected from again when a module
    /// comes.
    Pending,
}

/// Why a word takes no function. Every variant has the column of what is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the columns are described above")]
pub enum SelectError {
    /// No function has the name.
    NoFunction { column: usize },
    /// No function's name matches the pattern.
    NothingMatches { column: usize },
    /// No function belongs to such a module.
    NoModule { column: usize },
    /// No function comes from such a file.
    NoFile { column: usize },
    /// The list of functions is shorter.
    IndexBeyondEnd {
        column: usize,
        /// The index that was written.
        index: usize,
        /// Functions there are.
        len: usize,
    },
    /// There are fewer functions of that name.
    CopyBeyondEnd {
        column: usize,
        /// The number that was written.
        copy: usize,
        /// Functions of that name.
        count: usize,
    },
    /// Several functions have the name, and one was asked for.
    Ambiguous {
        column: usize,
        /// Functions of that name.
        count: usize,
    },
}

impl SelectError {
    /// Where it is, in bytes from the start of the text that the word was read from.
    pub fn column(&self) -> usize {
        match *self {
            Self::NoFunction { column }
            | Self::NothingMatches { column }
            | Self::NoModule { column }
            | Self::NoFile { column }
            | Self::IndexBeyondEnd { column, .. }
            | Self::CopyBeyondEnd { column, .. }
            | Self::Ambiguous { column, .. } => column,
        }
    }
}

impl fmt::Display for SelectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NoFunction { .. } => f.write_str("no function that can be traced has this name"),
            Self::NothingMatches { .. } => f.write_str(
                "this pattern, a glob and no regular expression, matches no function that can be traced",
            ),
            Self::NoModule { .. } => f.write_str(
                "no such module is there; `NAME:mod:MODULE` waits for one, and commands stand behind a name",
            ),
            Self::NoFile { .. } => f.write_str("no function is known to come from this file"),
            Self::IndexBeyondEnd { index, len, .. } => {
                write!(f, "there are {len} functions and no function {index}")
            }
            Self::CopyBeyondEnd { copy, count, .. } => {
                write!(f, "{count} functions match and there is no copy {copy}")
            }
            Self::Ambiguous { count, .. } => write!(
                f,
                "{count} functions have this name: NAME#1 to NAME#{count}, MODULE:NAME or NAME@FILE is one of \
                 them, NAME#* is all"
            ),
        }
    }
}

impl core::error::Error for SelectError {}

/// Calls `found` with the index of every function that a word takes, in ascending order; of several names of
/// one address with the first that matches. Nothing is called unless the result is [`Selection::Functions`].
pub fn select<T: FunctionTable + ?Sized>(
    line: &FilterLine<'_>,
    table: &T,
    found: &mut impl FnMut(usize),
) -> Result<Selection, SelectError> {
    let target = match line.target {
        Target::Index { number, column } => {
            let (index, len) = (number.get(), table.len());
            if index > len {
                return Err(SelectError::IndexBeyondEnd { column, index, len });
            }
            found(index - 1);
            return Ok(Selection::Functions(1));
        }
        Target::Name(target) => target,
    };
    let pattern = target.name.pattern;
    let scope = Scope { module: target.module, file: target.file };
    let literal = Search::literally(scope, pattern, table);
    if literal.is_none() && !pattern.is_exact() && !matches!(target.copies, Copies::Number { .. }) {
        // Nothing can be wrong but that nothing matches, so there is no need to count first.
        let mut count = 0;
        Search::everything(scope, pattern).matches(table).for_each(|index| {
            count += 1;
            found(index);
        });
        return if count > 0 { Ok(Selection::Functions(count)) } else { nothing_found(&target, table) };
    }
    let Some(search) = literal.or_else(|| Search::best(scope, WrittenName::new(pattern), table)) else {
        return nothing_found(&target, table);
    };
    match target.copies {
        Copies::Number { number, column } if number.get() > search.count => {
            Err(SelectError::CopyBeyondEnd { column, copy: number.get(), count: search.count })
        }
        Copies::Number { number, .. } => {
            search.matches(table).skip(number.get() - 1).take(1).for_each(found);
            Ok(Selection::Functions(1))
        }
        Copies::Unstated if search.count > 1 && search.wants_one => {
            Err(SelectError::Ambiguous { column: target.name.column, count: search.count })
        }
        Copies::Unstated | Copies::All => {
            search.matches(table).for_each(found);
            Ok(Selection::Functions(search.count))
        }
    }
}

/// A function that a word may mean. Shown, it is a line of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate<'t> {
    /// Which function of the table.
    pub index: usize,
    /// The `#n` that takes this one of all that match; `None` if its name is only similar.
    pub number: Option<usize>,
    /// Its name in the symbol table.
    pub raw_name: &'t str,
    /// Its module.
    pub module: Option<&'t str>,
    /// Its source file.
    pub file: Option<&'t str>,
    /// Where it starts.
    pub addr: FuncAddr,
}

impl fmt::Display for Candidate<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(number) = self.number {
            write!(f, "#{number} ")?;
        }
        #[cfg(feature = "symbols")]
        write!(f, "{}", crate::symbols::Demangled(self.raw_name))?;
        #[cfg(not(feature = "symbols"))]
        f.write_str(self.raw_name)?;
        if let Some(module) = self.module {
            write!(f, " [{module}]")?;
        }
        if let Some(file) = self.file {
            write!(f, " {file}")?;
        }
        write!(f, " {}", self.addr)
    }
}

/// What a person may choose from after [`select`] refused a word: every function that matches it, numbered as
/// `#n` counts. If there is none, the functions that differ from the name only in what compilers append, such
/// as `foo.isra.0` for `foo`; in all modules and files.
pub fn candidates<'t, T: FunctionTable + ?Sized>(
    line: &FilterLine<'_>,
    table: &'t T,
    found: &mut impl FnMut(Candidate<'t>),
) {
    let Target::Name(target) = &line.target else { return };
    let candidate = |index, number| Candidate {
        index,
        number,
        raw_name: table.raw_name(index),
        module: table.module(index),
        file: table.file(index),
        addr: table.addr(index),
    };
    let pattern = target.name.pattern;
    let scope = Scope { module: target.module, file: target.file };
    let search = Search::literally(scope, pattern, table)
        .or_else(|| Search::best(scope, WrittenName::new(pattern), table));
    match search {
        Some(search) => {
            search.matches(table).zip(1..).for_each(|(index, number)| found(candidate(index, Some(number))));
        }
        None => {
            let similar =
                |index: &usize| pattern.is_exact() && is_variant(pattern.text(), table.raw_name(*index));
            (0..table.len()).filter(similar).for_each(|index| found(candidate(index, None)));
        }
    }
}

/// What a word turned out to mean in a table.
struct Search<'a> {
    scope: Scope<'a>,
    name: WrittenName<'a>,
    /// The best rank at which there is a function; for patterns, the last.
    rank: Rank,
    /// Functions that match at this rank; 0 if they were not counted.
    count: usize,
    /// Nothing in the word asks for more than one.
    wants_one: bool,
}

impl<'a> Search<'a> {
    /// Whatever matches a pattern, not counted yet.
    fn everything(scope: Scope<'a>, pattern: Pattern<'a>) -> Self {
        Self { scope, name: WrittenName::new(pattern), rank: Rank::LAST, count: 0, wants_one: false }
    }

    /// The functions that have a pattern as their name, if there are any.
    fn literally<T: FunctionTable + ?Sized>(
        scope: Scope<'a>,
        pattern: Pattern<'a>,
        table: &T,
    ) -> Option<Self> {
        Self::best(scope, WrittenName::read_literally(&pattern)?, table)
    }

    /// The functions that a name means, if there are any.
    fn best<T: FunctionTable + ?Sized>(scope: Scope<'a>, name: WrittenName<'a>, table: &T) -> Option<Self> {
        let is_exact = name.pattern().is_exact();
        let wants_one = is_exact && !scope.asks_for_many();
        let mut search = Self { scope, name, rank: Rank::LAST, count: 0, wants_one };
        let mut last = None;
        for index in (0..table.len()).filter(|&index| scope.has(table, index)) {
            let Some(rank) = name.rank(table.raw_name(index), search.rank) else { continue };
            if is_exact && rank < search.rank {
                (search.rank, search.count, last) = (rank, 0, None);
            }
            let addr = Some(table.addr(index));
            search.count += usize::from(addr != last);
            last = addr;
        }
        (search.count > 0).then_some(search)
    }

    /// The functions that match, each address once.
    fn matches<T: FunctionTable + ?Sized>(&self, table: &T) -> impl Iterator<Item = usize> {
        let mut last = None;
        (0..table.len()).filter(move |&index| {
            let matches =
                self.scope.has(table, index) && self.name.rank(table.raw_name(index), self.rank).is_some();
            let addr = matches.then(|| table.addr(index));
            let is_new = matches && addr != last;
            last = addr.or(last);
            is_new
        })
    }
}

/// Where functions are looked for.
#[derive(Clone, Copy)]
struct Scope<'a> {
    module: ModuleScope<'a>,
    file: Option<Part<'a>>,
}

impl Scope<'_> {
    fn has<T: FunctionTable + ?Sized>(&self, table: &T, index: usize) -> bool {
        self.has_module(table, index) && self.has_file(table, index)
    }

    fn has_module<T: FunctionTable + ?Sized>(&self, table: &T, index: usize) -> bool {
        match &self.module {
            ModuleScope::Everywhere => true,
            ModuleScope::Loaded(wanted) => {
                wanted.pattern.matches(table.module(index).unwrap_or(KERNEL_MODULE))
            }
            ModuleScope::WhenLoaded { module: wanted, inverted } => {
                let is_any = wanted.pattern.text().is_empty();
                let has = table.module(index).is_some_and(|module| is_any || wanted.pattern.matches(module));
                has != *inverted
            }
        }
    }

    /// Whether the file matches, or what stands behind one of its slashes.
    fn has_file<T: FunctionTable + ?Sized>(&self, table: &T, index: usize) -> bool {
        let Some(wanted) = &self.file else { return true };
        let Some(file) = table.file(index) else { return false };
        let tails = file.match_indices('/').filter_map(|(at, _)| file.get(at + 1..));
        core::iter::once(file).chain(tails).any(|tail| wanted.pattern.matches(tail))
    }

    fn asks_for_many(&self) -> bool {
        let many_modules = match &self.module {
            ModuleScope::Everywhere => false,
            ModuleScope::Loaded(module) => !module.pattern.is_exact(),
            ModuleScope::WhenLoaded { module, inverted } => {
                *inverted || module.pattern.text().is_empty() || !module.pattern.is_exact()
            }
        };
        many_modules || self.file.is_some_and(|file| !file.pattern.is_exact())
    }
}

/// Says what it was that is not there: the module, the file or the function.
fn nothing_found<T: FunctionTable + ?Sized>(
    target: &NameTarget<'_>,
    table: &T,
) -> Result<Selection, SelectError> {
    let scope = Scope { module: target.module, file: target.file };
    let mut in_module = (0..table.len()).filter(|&index| scope.has_module(table, index)).peekable();
    if in_module.peek().is_none() {
        match target.module {
            ModuleScope::WhenLoaded { inverted: false, .. } => return Ok(Selection::Pending),
            ModuleScope::WhenLoaded { module, .. } | ModuleScope::Loaded(module) => {
                return Err(SelectError::NoModule { column: module.column });
            }
            // An empty table has no function.
            ModuleScope::Everywhere => {}
        }
    }
    if let Some(file) = target.file
        && !in_module.any(|index| scope.has_file(table, index))
    {
        return Err(SelectError::NoFile { column: file.column });
    }
    let column = target.name.column;
    Err(match target.name.pattern.is_exact() {
        true => SelectError::NoFunction { column },
        false => SelectError::NothingMatches { column },
    })
}
