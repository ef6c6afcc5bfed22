//! Where a tracer finds what functions return in memory, to keep it until it is shown.

use super::place::Piece;
use super::{MAX_MEMORY, Place, Values};

/// Where the address of a value is that a function returns in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressAt {
    /// In this return register, when the function returns.
    Returned(u8),
    /// In x8, when it is entered: to be kept until it returns.
    Indirect,
    /// In the register for this argument, when it is entered.
    Argument(u8),
}

/// A value that a function returns in memory, as far as it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResultAt {
    /// Where its address is.
    pub at: AddressAt,
    /// Its size in bytes, or [`MAX_MEMORY`] if it is larger. Not 0.
    pub bytes: u8,
}

impl Values<'_> {
    /// Where this FUNC leaves what it returns in memory: `None` if it returns nothing there, or nobody knows where, or how much.
    pub fn result_at(&self, func: u32) -> Option<ResultAt> {
        let (ret, _) = self.prototype(func)?;
        let at = match self.returned(func, ret).1 {
            Place::At(Piece::Register(n)) => AddressAt::Returned(n),
            Place::Indirect => AddressAt::Indirect,
            Place::Given(n) => AddressAt::Argument(n),
            _ => return None,
        };
        let bytes = self.btf.size(ret).ok()?.min(MAX_MEMORY as u64) as u8;
        (bytes != 0).then_some(ResultAt { at, bytes })
    }
}
