//! Arguments and return values as text, by their types: for C, and for Rust with what BTF alone cannot say.
//!
//! [`Values`] takes what a trampoline kept of a call, the types ([`Btf`]), and ways to read memory and to name addresses, and writes what
//! a person wants to see: `-2 ENOENT`, `ERR_PTR(-12 ENOMEM)`, `{ .start = 0x10, .end = 0x20 }`, `Err(NotFound)`, `"eth0"`. Nothing
//! returned is nothing shown; what is not known is `?`, and is never guessed from a register that something else may be in.
//!
//! Called by whoever shows a trace, at any time; never on the traced path. Nothing allocates. Memory is read when a value is written, so
//! [`Memory`] must be of the moment of the call, or there should be none: what a pointer leads to changes.
//!
//! # How values look
//! * Signed integers are decimal, and errors have their names where the function returns them; unsigned ones are hexadecimal. All are cut
//!   to the width of their type, since nothing is defined above it.
//! * Pointers are hexadecimal, with `<symbol+0x10>` if they lead to one, and the text that a `const char *` leads to; `NULL` in C.
//! * Enumerations by name, joined by `|` where they are flags. `bool` is `true` or `false`. `char` is its number and itself.
//! * Structures and unions by member, as both languages write them; Rust's enums by variant. `NonZero` and the like show their inside.
//! * Floating-point numbers as their bits, where they are known at all: no trampoline keeps vector registers.
//!
//! # The form of Rust in BTF
//! Everything is ordinary BTF. What C has no word for is said by DECL_TAGs:
//!
//! | on | tag | what it says |
//! |----|-----|--------------|
//! | FUNC | `fgraph:abi=rust` | called and shown as Rust does. Without it: as C |
//! | | `fgraph:abi=rust-c` | called as C does, shown as Rust |
//! | | `fgraph:abi=rust-unknown`, `=unknown` | called as either: only what both have in the same place is shown |
//! | | `fgraph:ret=WHERE` | where the return value is, if not where the convention has it |
//! | FUNC, parameter | `fgraph:loc=WHERE` | where the parameter is at entry; all behind it should say so too |
//! | STRUCT, UNION | `fgraph:pair=OFF` | two scalars, the second at byte OFF: each in a register of its own, in Rust's convention |
//! | STRUCT | `fgraph:str`, `fgraph:slice` | a pointer and a length: text, or elements |
//! | STRUCT | `fgraph:str=P,L`, `fgraph:slice=P,L` | owns text or elements: the pointer is at byte P, the length at byte L |
//! | UNION | `fgraph:variants=OFF,SIZE` | an enum; its discriminant is SIZE bytes at OFF; `0,0`: there is none |
//! | UNION, member | `fgraph:variant=N`, `=N..=M`, `=default` | this variant holds for N, or for what no other holds for |
//!
//! WHERE is `none`, or one or two pieces: `rN` (argument or return register N), `sN` (N bytes above the first stack argument); or `mN`:
//! register N has the address; or, of a return value, `eN`: argument register N had the address when the function was entered. The members of an enum's UNION are STRUCTs named like the variants, all at offset 0; fields of tuples are
//! named `__0`, `__1`; `()` is a STRUCT of no bytes; `char` is an INT of four bytes with the encoding CHAR.

mod errno;
mod layout;
mod place;
mod remarks;
mod resolve;
mod result;
mod show;
mod source;
#[cfg(test)]
mod tests;

use core::fmt::{self, Write};
use core::marker::PhantomData;

pub use errno::{MAX_ERRNO, errno_name};
pub use resolve::{Functions, Typed};
pub use result::{AddressAt, ResultAt};

use crate::btf::{Btf, Kind, Params};
use crate::platform::Platform;
use crate::wire::MAX_MEMORY;
use place::{Arguments, Piece, Place, Rules};
use remarks::{Convention, OfFunction};
use show::{Errors, Show};
use source::Source;

/// Parameters that are shown of one function.
const MAX_PARAMS: usize = 32;

/// The machine whose calling convention it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// AAPCS64.
    Arm64,
    /// System V, AMD64.
    X86_64,
}

impl Machine {
    /// How many arguments travel in integer registers.
    pub const fn argument_registers(self) -> usize {
        match self {
            Self::Arm64 => 8,
            Self::X86_64 => 6,
        }
    }
}

/// Which registers floating-point numbers travel in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Floats {
    /// In vector registers, which are not kept.
    #[default]
    Vector,
    /// In general registers, as code for targets without vectors has it.
    General,
    /// One or the other: only what is in the same place either way is shown.
    Unknown,
}

impl Floats {
    /// The two that it may be.
    fn either(self) -> (Self, Self) {
        match self {
            Self::Unknown => (Self::Vector, Self::General),
            known => (known, known),
        }
    }
}

/// Memory that is read without faulting.
pub trait Memory {
    /// Fills `into` from `addr` on; `false` if a byte of it cannot be read, and then `into` may hold anything.
    fn read(&self, addr: u64, into: &mut [u8]) -> bool;
}

/// No memory can be read.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoMemory;

impl Memory for NoMemory {
    fn read(&self, _addr: u64, _into: &mut [u8]) -> bool {
        false
    }
}

/// The memory of the kernel that this runs in, as it is now.
pub struct Live<P>(PhantomData<P>);

impl<P> Live<P> {
    /// Reads by [`Platform::read`].
    pub const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<P> Default for Live<P> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P> fmt::Debug for Live<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Live")
    }
}

impl<P: Platform> Memory for Live<P> {
    fn read(&self, addr: u64, into: &mut [u8]) -> bool {
        usize::try_from(addr).is_ok_and(|addr| P::read(addr, into).is_ok())
    }
}

/// Only this part of memory: the part that nobody writes, when what was recorded is shown later.
#[derive(Clone, Copy)]
pub struct Within<'m> {
    memory: &'m dyn Memory,
    start: u64,
    end: u64,
}

impl<'m> Within<'m> {
    /// The bytes of `memory` from `start` up to `end`.
    pub fn new(memory: &'m dyn Memory, start: u64, end: u64) -> Self {
        Self { memory, start, end }
    }
}

impl fmt::Debug for Within<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Within({:#x}..{:#x})", self.start, self.end)
    }
}

impl Memory for Within<'_> {
    fn read(&self, addr: u64, into: &mut [u8]) -> bool {
        let end = addr.checked_add(into.len() as u64);
        addr >= self.start && end.is_some_and(|end| end <= self.end) && self.memory.read(addr, into)
    }
}

/// What addresses are called.
pub trait Names {
    /// Writes the symbol that `addr` lies in, `name` or `name+0x10`; nothing if it lies in none.
    fn symbol(&self, addr: u64, out: &mut dyn Write) -> fmt::Result;
}

/// Addresses have no names.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nameless;

impl Names for Nameless {
    fn symbol(&self, _addr: u64, _out: &mut dyn Write) -> fmt::Result {
        Ok(())
    }
}

#[cfg(feature = "symbols")]
impl Names for crate::symbols::Symbols<'_> {
    fn symbol(&self, addr: u64, out: &mut dyn Write) -> fmt::Result {
        match self.by_address(addr) {
            Some(symbol) if symbol.offset == 0 => write!(out, "{}", symbol.demangled()),
            Some(symbol) => write!(out, "{}+{:#x}", symbol.demangled(), symbol.offset),
            None => Ok(()),
        }
    }
}

/// What was kept when a function was entered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Entered<'r> {
    /// The registers for arguments in their order: rdi, rsi, rdx, rcx, r8, r9, or x0 to x7. What was not kept is left out at the end.
    pub registers: &'r [usize],
    /// The address of the first argument on the stack, if what stands there is still what stood there.
    pub stack: Option<usize>,
    /// x8, which leads to the memory for a large return value on arm64.
    pub indirect: Option<usize>,
}

/// What was kept when a function returned.
#[derive(Clone, Copy, Debug, Default)]
pub struct Returned<'r> {
    /// x0 and x1, or rax and rdx. What was not kept is left out at the end.
    pub registers: &'r [usize],
    /// What [`Values::result_address`] said at the entry.
    pub memory: Option<usize>,
    /// The first bytes of a value that was returned in memory, if they were kept: then nothing is read for them.
    pub kept: &'r [u8],
}

/// Takes the arguments of a call one by one, from [`Values::each_arg`].
pub trait TakeArgs {
    /// Begins the next argument: its name, which may be empty; its value goes to what is returned.
    fn next(&mut self, name: &str) -> Result<&mut dyn Write, fmt::Error>;

    /// There are more, which are not shown.
    fn more(&mut self) -> fmt::Result;
}

/// Arguments on one line.
struct Line<'o> {
    out: &'o mut dyn Write,
    is_first: bool,
}

impl Line<'_> {
    fn separate(&mut self) -> fmt::Result {
        if core::mem::take(&mut self.is_first) { Ok(()) } else { self.out.write_str(", ") }
    }
}

impl TakeArgs for Line<'_> {
    fn next(&mut self, name: &str) -> Result<&mut dyn Write, fmt::Error> {
        self.separate()?;
        if !name.is_empty() {
            write!(self.out, "{name}=")?;
        }
        Ok(self.out)
    }

    fn more(&mut self) -> fmt::Result {
        self.separate()?;
        self.out.write_str("...")
    }
}

/// Text that nobody wants.
struct Nowhere;

impl Write for Nowhere {
    fn write_str(&mut self, _text: &str) -> fmt::Result {
        Ok(())
    }
}

/// What becomes of a function's return value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetvalAt {
    /// It returns nothing: void, `()`, or any type without bytes.
    Nothing,
    /// It is in x0 and x1, or rax and rdx, or a part of it at least.
    Registers,
    /// It is in memory whose address is in rax, while that memory is still what it was.
    Behind,
    /// It is in memory whose address must be kept at the entry: see [`Values::result_address`].
    Memory,
    /// It is in registers that are not kept, or nobody knows where.
    Lost,
}

/// Writes arguments and return values.
#[derive(Clone, Copy)]
pub struct Values<'a> {
    btf: Btf<'a>,
    machine: Machine,
    floats: Floats,
    memory: &'a dyn Memory,
    names: &'a dyn Names,
}

impl fmt::Debug for Values<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Values")
            .field("types", &self.btf.end())
            .field("machine", &self.machine)
            .field("floats", &self.floats)
            .finish_non_exhaustive()
    }
}

impl<'a> Values<'a> {
    /// Values by these types on this machine, without memory and names.
    pub fn new(btf: Btf<'a>, machine: Machine) -> Self {
        Self { btf, machine, floats: Floats::default(), memory: &NoMemory, names: &Nameless }
    }

    /// The same, with memory to read.
    #[must_use]
    pub fn with_memory(self, memory: &'a dyn Memory) -> Self {
        Self { memory, ..self }
    }

    /// The same, with names for addresses.
    #[must_use]
    pub fn with_names(self, names: &'a dyn Names) -> Self {
        Self { names, ..self }
    }

    /// The same, with floating-point numbers in those registers.
    #[must_use]
    pub fn with_floats(self, floats: Floats) -> Self {
        Self { floats, ..self }
    }

    /// The types.
    pub fn btf(&self) -> Btf<'a> {
        self.btf
    }

    fn rules(&self) -> Rules<'_, 'a> {
        Rules { btf: &self.btf, machine: self.machine, floats: self.floats }
    }

    /// What a FUNC returns, and its parameters.
    fn prototype(&self, func: u32) -> Option<(u32, Params<'a>)> {
        let Kind::Func { proto, .. } = self.btf.get(func)?.kind else { return None };
        match self.btf.get(proto)?.kind {
            Kind::FuncProto { ret, params } => Some((ret, params)),
            _ => None,
        }
    }

    /// What becomes of this FUNC's return value. `None` if it is no function.
    pub fn retval_at(&self, func: u32) -> Option<RetvalAt> {
        let (ret, _) = self.prototype(func)?;
        let is_void = self.btf.resolve(ret).is_ok_and(|ty| matches!(ty.kind, Kind::Void));
        if is_void || self.btf.size(ret) == Ok(0) {
            return Some(RetvalAt::Nothing);
        }
        Some(match self.returned(func, ret).1 {
            Place::Nothing => RetvalAt::Nothing,
            Place::Indirect | Place::Given(_) => RetvalAt::Memory,
            Place::At(Piece::Register(_)) => RetvalAt::Behind,
            Place::Pieces { first: Piece::Register(_), .. } => RetvalAt::Registers,
            Place::Pieces { second: Some(Piece::Register(_)), .. } => RetvalAt::Registers,
            Place::At(_) | Place::Pieces { .. } | Place::OnStack(_) | Place::Unknown => RetvalAt::Lost,
        })
    }

    /// How many return registers tell what this FUNC returned, at most two: none of a function that returns nothing, and one of one
    /// whose value is elsewhere or not known, for who shows registers as they are. `None` if it is no function.
    pub fn return_registers(&self, func: u32) -> Option<u8> {
        let (ret, _) = self.prototype(func)?;
        if self.retval_at(func) == Some(RetvalAt::Nothing) {
            return Some(0);
        }
        let uses_second = |piece| matches!(piece, Piece::Register(1..));
        Some(match self.returned(func, ret).1 {
            Place::Pieces { first, second, .. } if uses_second(first) || second.is_some_and(uses_second) => 2,
            Place::At(piece) if uses_second(piece) => 2,
            _ => 1,
        })
    }

    /// The remarks on a FUNC, and where what it returns is.
    fn returned(&self, func: u32, ret: u32) -> (OfFunction, Place) {
        let remarks = remarks::of_function(&self.btf, func);
        let place = match remarks.ret {
            Some(place) => place.place(self.split_of(ret)),
            None => self.rules().returned(remarks.convention, ret),
        };
        (remarks, place)
    }

    /// Whether this is an error: a number or pointer from -1 to -4095 of a function that returns these as C does, or `Err`. `None` if
    /// it is not known.
    pub fn is_error(&self, func: u32, returned: &Returned<'_>) -> Option<bool> {
        let (ret, _) = self.prototype(func)?;
        if self.retval_at(func) == Some(RetvalAt::Nothing) {
            return Some(false);
        }
        let (OfFunction { convention, style, .. }, place) = self.returned(func, ret);
        let source = self.retval_source(place, returned);
        let errors = if convention == Convention::C { Errors::Named } else { Errors::Numbers };
        Show::new(self, style, source, &mut Nowhere).is_error(ret, errors)
    }

    fn retval_source<'r>(&self, place: Place, returned: &Returned<'r>) -> Source<'r>
    where
        'a: 'r,
    {
        if place.is_in_memory() && !returned.kept.is_empty() {
            return Source::Kept(returned.kept);
        }
        let register = |n: u8| returned.registers.get(usize::from(n)).map(|word| *word as u64);
        self.source(place, register, None, returned.memory.map(|addr| addr as u64))
    }

    /// Where this FUNC will put what it returns, if the registers at its return do not say it any more: to be kept until then.
    pub fn result_address(&self, func: u32, entered: &Entered<'_>) -> Option<usize> {
        let (ret, _) = self.prototype(func)?;
        match self.returned(func, ret).1 {
            Place::Indirect => entered.indirect,
            Place::Given(n) => entered.registers.get(usize::from(n)).copied(),
            _ => None,
        }
    }

    /// Writes what this FUNC returned: nothing for void, `?` if it is not known.
    pub fn write_retval(&self, func: u32, returned: &Returned<'_>, out: &mut dyn Write) -> fmt::Result {
        let Some((ret, _)) = self.prototype(func) else { return out.write_char('?') };
        if self.retval_at(func) == Some(RetvalAt::Nothing) {
            return Ok(());
        }
        let (OfFunction { convention, style, .. }, place) = self.returned(func, ret);
        let source = self.retval_source(place, returned);
        // What is called as C does may be a callback of C code, and returns what that expects.
        let errors = if convention == Convention::C { Errors::Named } else { Errors::Numbers };
        Show::new(self, style, source, out).whole(ret, errors)
    }

    /// Writes what this FUNC was called with: `name=value, name=value`, `?` for values that are not known.
    pub fn write_args(&self, func: u32, entered: &Entered<'_>, out: &mut dyn Write) -> fmt::Result {
        if self.prototype(func).is_none() {
            return out.write_char('?');
        }
        self.each_arg(func, entered, &mut Line { out, is_first: true })
    }

    /// Gives what this FUNC was called with to `to`, one argument after the other: nothing if it is no function.
    pub fn each_arg(&self, func: u32, entered: &Entered<'_>, to: &mut dyn TakeArgs) -> fmt::Result {
        let Some((ret, params)) = self.prototype(func) else { return Ok(()) };
        let OfFunction { convention, style, .. } = remarks::of_function(&self.btf, func);
        let (one, other) = match convention {
            Convention::Unknown => (Convention::C, Convention::Rust),
            known => (known, known),
        };
        let (vectors, general) = self.floats.either();
        let rules = |floats| Rules { floats, ..self.rules() };
        let mut ways = [(one, vectors), (other, vectors), (one, general), (other, general)]
            .map(|(convention, floats)| Arguments::new(rules(floats), convention, ret));
        let registers =
            entered.registers.get(..self.machine.argument_registers()).unwrap_or(entered.registers);
        for (n, param) in params.iter().enumerate() {
            if n == MAX_PARAMS || (param.ty == 0 && n + 1 == params.len()) {
                return to.more();
            }
            let places = ways.each_mut().map(|way| way.place(param.ty));
            let place = match remarks::of_parameter(&self.btf, func, n as u32) {
                Some(place) => place.place(self.split_of(param.ty)),
                None if places == [places[0]; 4] => places[0],
                None => Place::Unknown,
            };
            let register = |n: u8| registers.get(usize::from(n)).map(|word| *word as u64);
            let source = self.source(place, register, entered.stack.map(|stack| stack as u64), None);
            let out = to.next(param.name)?;
            Show::new(self, style, source, out).whole(param.ty, Errors::Numbers)?;
        }
        Ok(())
    }

    /// Where the second piece of a value starts that is said to be in two.
    fn split_of(&self, ty: u32) -> u64 {
        let whole = self.btf.resolve(ty).ok();
        whole.and_then(|ty| remarks::pair(&self.btf, ty.id)).filter(|split| *split <= 8).unwrap_or(8)
    }

    /// The bytes that are at a place.
    fn source(
        &self,
        place: Place,
        register: impl Fn(u8) -> Option<u64>,
        stack: Option<u64>,
        given: Option<u64>,
    ) -> Source<'a> {
        let on_stack = |offset: u64| stack.and_then(|stack| stack.checked_add(offset));
        let memory = |addr: Option<u64>| match addr {
            Some(addr) => Source::Read { memory: self.memory, addr },
            None => Source::UNKNOWN,
        };
        let word = |piece| match piece {
            Piece::Register(n) => register(n),
            Piece::Stack(offset) => {
                let mut word = [0; 8];
                let read = on_stack(offset).is_some_and(|addr| self.memory.read(addr, &mut word));
                read.then(|| u64::from_le_bytes(word))
            }
            Piece::Lost => None,
        };
        match place {
            Place::Nothing | Place::Unknown => Source::UNKNOWN,
            Place::OnStack(offset) => memory(on_stack(offset)),
            Place::At(piece) => memory(word(piece)),
            Place::Indirect | Place::Given(_) => memory(given),
            Place::Pieces { first, second, split } => {
                let mut source = Source::UNKNOWN;
                if let Some(word) = word(first) {
                    source.put(0, word, split);
                }
                if let Some(word) = second.and_then(word) {
                    source.put(split, word, 8);
                }
                source
            }
        }
    }
}
