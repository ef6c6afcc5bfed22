//! What the engine asks of a machine: how its sites look and are patched. Pure functions over bytes; `arch` has one
//! implementation per machine, and every host compiles and tests both.

use core::fmt;
use core::ops::Range;

use crate::addr::{FuncAddr, SiteAddr};
use crate::regs::Regs;

/// The longest run of bytes that is written at a site.
pub const MAX_CODE: usize = 16;

/// A few bytes of code.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Code {
    bytes: [u8; MAX_CODE],
    len: u8,
}

impl Code {
    /// The code `bytes`; at most [`MAX_CODE`] of them.
    pub const fn new(bytes: &[u8]) -> Self {
        assert!(bytes.len() <= MAX_CODE);
        let mut code = Self { bytes: [0; MAX_CODE], len: bytes.len() as u8 };
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
    /// Gives control to the trampoline at this address, which knows the site and the function's caller.
    Call(usize),
    /// Goes on at this address as if the function had been called there.
    Jump(usize),
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

/// What is written at a site once, before its code can run: addresses and bytes.
pub type Preparation = [Option<(usize, Code)>; 2];

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

/// The trampolines of one way to hook a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Saves argument registers.
    pub args: usize,
    /// Saves every register, or as many as a site's state asks for; takes no straight path.
    pub regs: usize,
}

/// The entry points of the trampolines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trampolines {
    /// Called by the sled; a hooked function returns to the return hooker by itself.
    pub classic: Pair,
    /// Entered by a jump, with the function's caller untouched; a hooked function is called from there.
    pub balanced: Pair,
    /// The same, but the body is entered in a way that needs no landing pad there.
    pub guarded: Pair,
}

/// Which sites the compiler was told to leave. Bytes alone do not tell the two apart: NOPs that align a loop may follow
/// the sled of a plain site.
#[derive(Clone, Copy, Debug, Default)]
pub enum Layouts {
    /// Only NOPs at the entry.
    #[default]
    Plain,
    /// NOPs before every function, and at its entry.
    Prefixed,
    /// Either. The function says whether one starts at an address, as a symbol table knows, and decides where the bytes could be
    /// both. A site for which it knows neither is refused.
    Mixed(fn(FuncAddr) -> bool),
}

impl Layouts {
    /// Which of two ways to read a site is right; `func` says whose site it would be.
    pub(crate) fn choose(
        self,
        plain: Option<Decoded>,
        prefixed: Option<Decoded>,
        func: impl Fn(Decoded) -> FuncAddr,
    ) -> Option<Decoded> {
        match (self, plain, prefixed) {
            (Self::Plain, plain, _) => plain,
            (Self::Prefixed, _, prefixed) => prefixed,
            (Self::Mixed(is_function), plain, prefixed) => {
                [prefixed, plain].into_iter().flatten().find(|found| is_function(func(*found)))
            }
        }
    }
}

/// How returns are caught.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hooking {
    /// By calling the function from the trampoline, where the site and the machine's landing pads allow it: returns stay
    /// predicted. Elsewhere the classic way.
    #[default]
    Balanced,
    /// By replacing the return address, wherever the site allows it.
    Classic,
}

/// Which ways calls of a function may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// The straight one, where it is open.
    Any,
    /// Always the one by way of callbacks, since what is kept of such a call is more than the trampolines keep by themselves.
    General,
}

/// The text around an entry of the compiler's table.
#[derive(Clone, Copy, Debug)]
pub struct Window<'a> {
    /// What the entry points to.
    pub addr: usize,
    /// The [`Machine::PAD`] bytes before it.
    pub before: &'a [u8],
    /// The bytes from there on: [`Machine::window`] of them, fewer where the text ends.
    pub at: &'a [u8],
}

/// A site that was recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// How it is built.
    pub layout: Layout,
    /// Where the sled stands, in bytes behind what the table's entry points to.
    pub offset: usize,
}

/// The sites of one machine.
pub trait Machine: 'static {
    /// Its register block.
    type Regs: Regs;

    /// Bytes that a site has at least, from the table's entry on.
    const MIN_SITE: usize;

    /// Bytes from a table's entry on that [`decode`](Self::decode) looks at.
    fn window(layouts: Layouts) -> usize;

    /// Alignment that every site has.
    const ALIGN: usize;

    /// Bytes before a plain site that say whether a landing pad stands there.
    const PAD: usize;

    /// What this machine expects at a site, in words, for messages.
    const EXPECTED: &'static str;

    /// Recognises a site. `None` if this is not the sled of a compiler.
    fn decode(window: Window<'_>, layouts: Layouts) -> Option<Decoded>;

    /// Whether the function begins with a landing pad: then the machine may check that others do.
    fn has_pad(layout: Layout) -> bool;

    /// Settles which way functions of this layout are hooked: `guarded` is whether landing pads may be checked.
    fn hooked(layout: Layout, hooking: Hooking, guarded: bool) -> Layout;

    /// The same layout for the other way that calls go; what never goes the straight one stays as it is.
    fn on_path(layout: Layout, path: Path) -> Layout;

    /// The function that the site belongs to.
    fn func(site: SiteAddr, layout: Layout) -> FuncAddr;

    /// All bytes of the site: before the function, its landing pad, the sled.
    fn span(site: SiteAddr, layout: Layout) -> Range<usize>;

    /// The trampolines that this site's sled gives control to.
    fn trampolines(layout: Layout, all: &Trampolines) -> Pair;

    /// What is written at the start, where the compiler left something else. `state` is the address of the site's state word.
    ///
    /// # Errors
    /// A trampoline or the state word is too far away.
    fn prepare(
        site: SiteAddr,
        layout: Layout,
        all: &Trampolines,
        state: usize,
    ) -> Result<Preparation, OutOfRange>;

    /// What stands at the site when its sled does `sled`, [`prepare`](Self::prepare)d.
    ///
    /// # Errors
    /// The target is too far away.
    fn code(site: SiteAddr, layout: Layout, sled: Sled) -> Result<Code, OutOfRange>;

    /// Whether the sled can do [`Sled::Jump`]; otherwise a trampoline does it.
    fn jumps(layout: Layout) -> bool;

    /// How the site gets from one state to another.
    ///
    /// # Errors
    /// A target is too far away.
    fn plan(site: SiteAddr, layout: Layout, from: Sled, to: Sled) -> Result<Plan, OutOfRange>;

    /// Where a function with the given site goes on behind its sled.
    fn resume(site: SiteAddr, layout: Layout) -> usize;
}
