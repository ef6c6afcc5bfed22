//! Which functions a user wants. Everything and nothing are values of their own: an empty set never means everything.

use crate::addr::FuncAddr;
use crate::engine::SetChange;

/// A set of functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FuncSet {
    /// Every function that has a site.
    All,
    /// No function.
    None,
    /// These, sorted by address.
    Some(&'static [FuncAddr]),
}

impl FuncSet {
    /// Whether `func` is in the set.
    #[inline]
    pub fn contains(&self, func: FuncAddr) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::Some(funcs) => funcs.binary_search(&func).is_ok(),
        }
    }
}

/// What a user wants: the functions of `include` without those of `exclude`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Functions to trace.
    pub include: FuncSet,
    /// Functions not to trace even so.
    pub exclude: FuncSet,
}

impl Filter {
    /// Every function.
    pub const ALL: Self = Self { include: FuncSet::All, exclude: FuncSet::None };

    /// No function.
    pub const NONE: Self = Self { include: FuncSet::None, exclude: FuncSet::None };

    /// Only these functions, sorted by address.
    pub const fn only(funcs: &'static [FuncAddr]) -> Self {
        Self { include: FuncSet::Some(funcs), exclude: FuncSet::None }
    }

    /// Whether the user wants `func`.
    #[inline]
    pub fn wants(&self, func: FuncAddr) -> bool {
        self.include.contains(func) && !self.exclude.contains(func)
    }
}

impl From<FuncSet> for SetChange<'static> {
    fn from(set: FuncSet) -> Self {
        match set {
            FuncSet::All => Self::All,
            FuncSet::None => Self::Clear,
            FuncSet::Some(funcs) => Self::Replace(funcs),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static TWO: [FuncAddr; 2] = [FuncAddr::new(0x10), FuncAddr::new(0x20)];

    #[test]
    fn an_empty_set_is_no_function() {
        assert!(!Filter::only(&[]).wants(FuncAddr::new(0x10)));
        assert!(!Filter::NONE.wants(FuncAddr::new(0x10)));
        assert!(Filter::ALL.wants(FuncAddr::new(0x10)));
    }

    #[test]
    fn exclude_wins() {
        let filter = Filter { include: FuncSet::All, exclude: FuncSet::Some(&TWO) };
        assert!(!filter.wants(FuncAddr::new(0x20)));
        assert!(filter.wants(FuncAddr::new(0x21)));
    }
}
