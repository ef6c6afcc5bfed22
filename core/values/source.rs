//! The bytes of a value: those that registers held, those of memory that were kept, or memory that is read when it is asked for.

use super::Memory;

/// Bytes that registers can hold of one value.
pub(super) const HELD: usize = 16;

/// Where the bytes of a value come from.
#[derive(Clone, Copy)]
pub(super) enum Source<'m> {
    /// These bytes, of which those with a bit in `known` are right.
    Held { bytes: [u8; HELD], known: u16 },
    /// These, and no more.
    Kept(&'m [u8]),
    /// The bytes from this address on.
    Read { memory: &'m dyn Memory, addr: u64 },
}

impl Source<'_> {
    /// Nothing.
    pub(super) const UNKNOWN: Self = Self::Held { bytes: [0; HELD], known: 0 };

    /// Puts the lowest `len` bytes of a word into a value that is held, at byte `at`. Bytes that do not fit are dropped.
    pub(super) fn put(&mut self, at: u64, word: u64, len: u64) {
        let len = usize::try_from(len).unwrap_or(8);
        if let Self::Held { bytes, known } = self {
            for (n, byte) in word.to_le_bytes().into_iter().enumerate().take(len) {
                let to = usize::try_from(at).ok().and_then(|at| at.checked_add(n));
                if let Some((to, place)) = to.and_then(|to| Some((to, bytes.get_mut(to)?))) {
                    *place = byte;
                    *known |= 1 << to;
                }
            }
        }
    }

    /// `len` bytes from byte `at` on, the rest 0; `None` if one of them is not known.
    pub(super) fn read(&self, at: u64, len: usize) -> Option<[u8; HELD]> {
        let mut read = [0; HELD];
        let to = read.get_mut(..len)?;
        match self {
            Self::Held { bytes, known } => {
                let at = usize::try_from(at).ok()?;
                to.copy_from_slice(bytes.get(at..at.checked_add(len)?)?);
                let wanted = ((1u32 << len) - 1).checked_shl(at as u32)?;
                (u32::from(*known) & wanted == wanted).then_some(read)
            }
            Self::Kept(bytes) => {
                let at = usize::try_from(at).ok()?;
                to.copy_from_slice(bytes.get(at..at.checked_add(len)?)?);
                Some(read)
            }
            Self::Read { memory, addr } => memory.read(addr.checked_add(at)?, to).then_some(read),
        }
    }

    /// A number of up to eight bytes.
    pub(super) fn number(&self, at: u64, len: usize) -> Option<u64> {
        let bytes = self.read(at, len)?;
        (len <= 8).then(|| bytes.first_chunk().map(|low| u64::from_le_bytes(*low))).flatten()
    }

    /// Whether any of `size` bytes can be known.
    pub(super) fn is_known(&self, size: u64) -> bool {
        match self {
            Self::Held { known, .. } => *known != 0 || size == 0,
            Self::Kept(bytes) => !bytes.is_empty() || size == 0,
            Self::Read { .. } => size == 0 || self.read(0, 1).is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_put_is_not_known() {
        let mut source = Source::UNKNOWN;
        assert!(!source.is_known(1) && source.is_known(0));
        source.put(4, 0x0807_0605_0403_0201, 8);
        assert_eq!(source.number(4, 8), Some(0x0807_0605_0403_0201));
        assert_eq!(source.number(5, 2), Some(0x0302));
        for (at, len) in [(0, 1), (3, 2), (12, 1), (11, 2), (16, 1), (u64::MAX, 1)] {
            assert_eq!(source.read(at, len), None, "{at} {len}");
        }
        source.put(12, u64::MAX, 8);
        assert_eq!(source.number(12, 4), Some(0xffff_ffff));
        assert_eq!((source.number(4, 9), source.read(0, 17)), (None, None));
        source.put(0, 0, 4);
        assert_eq!(source.read(0, 16).map(|all| all[15]), Some(0xff));
    }
}
