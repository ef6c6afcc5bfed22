//! What the engine asks of a machine: how its sites look and are patched. Pure functions over bytes; `arch` has one
//! implementation per machine, and every host compiles and tests both.

use core::fmt;

use crate::addr::{FuncAddr, SiteAddr};
use crate::regs::Regs;

/// The longest run of bytes that is read or written at a site.
pub const MAX_SLED: usize = 8;

/// A few bytes of code.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Code {
    bytes: [u8; MAX_SLED],
    len: u8,
}

impl Code {
    /// The code `bytes`; at most [`MAX_SLED`] of them.
    pub const fn new(bytes: &[u8]) -> Self {
        assert!(bytes.len() <= MAX_SLED);
        let mut code = Self { bytes: [0; MAX_SLED], len: bytes.len() as u8 };
        let mut i = 0;
        while i < bytes.len() {
            code.bytes[i] = bytes[i];
            i += 1;
        }
        code
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.as_slice().iter().enumerate() {
            let space = if i == 0 { "" } else { " " };
            write!(f, "{space}{byte:02x}")?;
        }
        Ok(())
    }
}

/// How a site is built, in the machine's own code of eight bits: what the engine keeps of a decoded site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout(pub u8);

/// What a site's sled does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sled {
    /// Nothing.
    Off,
    /// Calls the trampoline at this address.
    Call(usize),
}

/// One write of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// The first byte written.
    pub addr: usize,
    /// What must stand there before.
    pub old: Code,
    /// What stands there after.
    pub new: Code,
}

/// The most writes one site takes to change.
pub const MAX_STEPS: usize = 3;

/// How one site changes: its writes in order, every core synchronised after each.
pub type Plan = [Option<Write>; MAX_STEPS];

/// A branch cannot reach its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfRange {
    /// The branch.
    pub from: usize,
    /// Where it should go.
    pub to: usize,
}

impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a branch at {:#x} cannot reach {:#x}", self.from, self.to)
    }
}

/// The sites of one machine.
pub trait Machine: 'static {
    /// Its register block.
    type Regs: Regs;

    /// Bytes of a sled.
    const SLED: usize;

    /// Alignment that every site has.
    const ALIGN: usize;

    /// Bytes before a site that say whether a landing pad stands there.
    const PAD: usize;

    /// What this machine expects at a site, in words, for messages.
    const EXPECTED: &'static str;

    /// Recognises a site. `pad` are the [`PAD`](Self::PAD) bytes before it, `sled` the [`SLED`](Self::SLED) bytes at it. `None` if this is not the
    /// sled of a compiler.
    fn decode(pad: &[u8], sled: &[u8]) -> Option<Layout>;

    /// The function that the site belongs to.
    fn func(site: SiteAddr, layout: Layout) -> FuncAddr;

    /// What stands at the site when its sled does `sled`, [`prepare`](Self::prepare)d.
    ///
    /// # Errors
    /// The trampoline is too far away.
    fn code(site: SiteAddr, layout: Layout, sled: Sled) -> Result<Code, OutOfRange>;

    /// Whether the compiler left something else there than [`Sled::Off`], so that the site must be written at the start, before
    /// anything can be preempted within it.
    fn needs_preparing(layout: Layout) -> bool;

    /// How the site gets from one state to another.
    ///
    /// # Errors
    /// A trampoline is too far away.
    fn plan(site: SiteAddr, layout: Layout, from: Sled, to: Sled) -> Result<Plan, OutOfRange>;

    /// Where a function with the given site goes on behind its sled.
    fn resume(site: SiteAddr) -> usize;
}
