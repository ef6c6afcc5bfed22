//! One value as text, by its type.
//!
//! Invariant: nothing is shown that is not known: a scalar with a byte that was in no kept register, or in memory that cannot be read,
//! is `?`. The text ends whatever the types are: nesting, elements and characters are limited, and `...` stands for the rest.

use core::fmt::{self, Write};

use super::remarks::{self, Fat, Special, Style};
use super::source::Source;
use super::{MAX_ERRNO, Values, errno_name};
use crate::btf::{Btf, Constants, Encoding, Int, Kind, Member, Members};

/// Deepest nesting that is shown.
const MAX_DEPTH: u32 = 6;
/// Scalars that are shown of one value.
const MAX_SCALARS: u32 = 48;
/// Elements that are shown of one array.
const MAX_ELEMENTS: u32 = 8;
/// Bytes that are shown of a text.
const MAX_TEXT: usize = 64;

/// Whether negative numbers are errors, which have names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Errors {
    Named,
    Numbers,
}

/// Writes one value.
pub(super) struct Show<'s, 'a> {
    values: &'s Values<'a>,
    style: Style,
    source: Source<'s>,
    left: u32,
    out: &'s mut dyn Write,
}

impl<'s, 'a> Show<'s, 'a> {
    pub(super) fn new(
        values: &'s Values<'a>,
        style: Style,
        source: Source<'s>,
        out: &'s mut dyn Write,
    ) -> Self {
        Self { values, style, source, left: MAX_SCALARS, out }
    }

    fn btf(&self) -> &'s Btf<'a> {
        &self.values.btf
    }

    /// The whole value.
    pub(super) fn whole(&mut self, ty: u32, errors: Errors) -> fmt::Result {
        match self.btf().size(ty) {
            Ok(size) if self.source.is_known(size) => self.value(ty, 0, errors, MAX_DEPTH),
            _ => self.out.write_char('?'),
        }
    }

    /// Whether the whole value is an error; `None` if it is not known.
    pub(super) fn is_error(&self, ty: u32, errors: Errors) -> Option<bool> {
        let ty = self.btf().resolve(ty).ok()?;
        let is_errno = |value: i64| (-i64::from(MAX_ERRNO)..0).contains(&value);
        match (ty.kind, errors) {
            (Kind::Int(int), Errors::Named)
                if int.encoding == Encoding::SIGNED && matches!(int.size, 4 | 8) =>
            {
                let value = self.number(0, int.size)?;
                Some(is_errno(sign_extend(cut(value, int.size * 8), int.size * 8)))
            }
            (Kind::Ptr(_), Errors::Named) => Some(is_errno(self.number(0, 8)? as i64)),
            (Kind::Enum { size, constants }, Errors::Named) if size <= 8 => {
                let (value, bits) = (self.number(0, size)?, size * 8);
                let is_named = constants.iter().any(|constant| cut(constant.value, bits) == cut(value, bits));
                let is_error = is_errno(sign_extend(cut(value, bits), bits));
                Some(is_error && (constants.signed() || !is_named))
            }
            (Kind::Union { members, .. }, _) => match remarks::special(self.btf(), ty.id) {
                Some(Special::Variants { at, size }) => {
                    let discriminant = match size {
                        0 => None,
                        size => Some(self.number(at.into(), size)?),
                    };
                    let member = remarks::variant(self.btf(), ty.id, discriminant)?;
                    Some(members.get(member as usize)?.name == "Err")
                }
                _ => Some(false),
            },
            // What says nothing of errors is none, if it can be known at all.
            _ => Some(false),
        }
    }

    /// The value of this type at byte `at`.
    fn value(&mut self, ty: u32, at: u64, errors: Errors, depth: u32) -> fmt::Result {
        if depth == 0 || self.left == 0 {
            return self.out.write_str("...");
        }
        self.left -= 1;
        let Ok(ty) = self.btf().resolve(ty) else { return self.out.write_char('?') };
        match ty.kind {
            Kind::Int(int) => self.int(ty.name, int, at, errors),
            Kind::Ptr(to) => self.pointer(to, at),
            Kind::Enum { size, constants } => self.enumeration(size, &constants, at, errors),
            Kind::Float { size } => self.float(size, at),
            Kind::Array { element, len, .. } => self.array(element, len, at, depth),
            Kind::Struct { members, .. } => match remarks::special(self.btf(), ty.id) {
                Some(Special::Text(fat)) => self.text(fat, &members, at),
                Some(Special::Slice(fat)) => self.slice(fat, &members, at),
                _ => self.structure(ty.name, &members, at, errors, depth),
            },
            Kind::Union { members, .. } => match remarks::special(self.btf(), ty.id) {
                Some(Special::Variants { at: tag, size }) => {
                    self.variant(ty.id, &members, at, (tag, size), depth)
                }
                _ => self.structure(ty.name, &members, at, Errors::Numbers, depth),
            },
            _ => self.out.write_char('?'),
        }
    }

    fn number(&self, at: u64, size: u32) -> Option<u64> {
        self.source.number(at, usize::try_from(size).ok()?)
    }

    fn int(&mut self, name: &str, int: Int, at: u64, errors: Errors) -> fmt::Result {
        if int.size > 8 {
            return self.wide(int, at);
        }
        let Some(raw) = self.number(at, int.size) else { return self.out.write_char('?') };
        let bits = u32::from(int.bits).min(int.size * 8);
        self.bits(name, int, raw.checked_shr(int.offset.into()).unwrap_or(0), bits, errors)
    }

    /// The lowest `bits` of `raw`, as a number of this type. What stands above them is not defined.
    fn bits(&mut self, name: &str, int: Int, raw: u64, bits: u32, errors: Errors) -> fmt::Result {
        let value = cut(raw, bits);
        let signed = sign_extend(value, bits);
        if int.encoding.contains(Encoding::BOOL) && value <= 1 {
            return self.out.write_str(if value == 1 { "true" } else { "false" });
        }
        let is_char = int.encoding.contains(Encoding::CHAR) || name == "char";
        if self.style == Style::Rust && is_char && int.size == 4 {
            return match u32::try_from(value).ok().and_then(char::from_u32) {
                Some(c) => self.quoted_char(c),
                None => write!(self.out, "{value:#x}"),
            };
        }
        let is_signed = int.encoding.contains(Encoding::SIGNED);
        if is_char && int.size == 1 {
            if is_signed { write!(self.out, "{signed}") } else { write!(self.out, "{value}") }?;
            let printable = char::from(value as u8);
            if printable.is_ascii_graphic() || printable == ' ' {
                self.out.write_char(' ')?;
                self.quoted_char(printable)?;
            }
            return Ok(());
        }
        match (is_signed, errors) {
            (true, Errors::Named) if int.size >= 4 => self.error_number(signed),
            (true, _) => write!(self.out, "{signed}"),
            (false, _) => write!(self.out, "{value:#x}"),
        }
    }

    fn quoted_char(&mut self, c: char) -> fmt::Result {
        self.out.write_char('\'')?;
        self.escaped(c, '\'')?;
        self.out.write_char('\'')
    }

    /// A number, with its name if it is an error.
    fn error_number(&mut self, value: i64) -> fmt::Result {
        write!(self.out, "{value}")?;
        let errno = value.checked_neg().and_then(|errno| u32::try_from(errno).ok());
        match errno.filter(|errno| *errno <= MAX_ERRNO).and_then(errno_name) {
            Some(name) => write!(self.out, " {name}"),
            None => Ok(()),
        }
    }

    /// 128 bits, always hexadecimal: division of that width needs a library.
    fn wide(&mut self, int: Int, at: u64) -> fmt::Result {
        let words = self.source.number(at, 8).zip(self.source.number(at.saturating_add(8), 8));
        let (Some((low, high)), 16) = (words, int.size) else { return self.out.write_char('?') };
        let mut value = u128::from(high) << 64 | u128::from(low);
        if int.encoding.contains(Encoding::SIGNED) && high >> 63 == 1 {
            self.out.write_char('-')?;
            value = value.wrapping_neg();
        }
        match ((value >> 64) as u64, value as u64) {
            (0, low) => write!(self.out, "{low:#x}"),
            (high, low) => write!(self.out, "{high:#x}{low:016x}"),
        }
    }

    /// The bits of a floating-point number: a kernel may have nothing to compute its digits with.
    fn float(&mut self, size: u32, at: u64) -> fmt::Result {
        match self.number(at, size) {
            Some(bits) if size <= 8 => write!(self.out, "float:{bits:#x}"),
            _ => self.out.write_char('?'),
        }
    }

    fn pointer(&mut self, to: u32, at: u64) -> fmt::Result {
        let Some(addr) = self.number(at, 8) else { return self.out.write_char('?') };
        if addr == 0 && self.style == Style::C {
            return self.out.write_str("NULL");
        }
        let error = addr as i64;
        if (-i64::from(MAX_ERRNO)..0).contains(&error) && self.style == Style::C {
            self.out.write_str("ERR_PTR(")?;
            self.error_number(error)?;
            return self.out.write_char(')');
        }
        write!(self.out, "{addr:#x}")?;
        if self.is_text(to) {
            return self.c_text(addr);
        }
        let mut named = Named { out: self.out, started: false };
        self.values.names.symbol(addr, &mut named)?;
        if named.started { self.out.write_char('>') } else { Ok(()) }
    }

    /// Whether this is `const char`.
    fn is_text(&self, to: u32) -> bool {
        let mut at = to;
        let mut constant = false;
        for _ in 0..4 {
            match self.btf().get(at).map(|ty| (ty.name, ty.kind)) {
                Some((_, Kind::Const(next))) => (constant, at) = (true, next),
                Some((name, Kind::Int(int))) => return constant && int.size == 1 && name == "char",
                _ => return false,
            }
        }
        false
    }

    /// ` "text"`, if it can be read and is text as far as it is shown.
    fn c_text(&mut self, addr: u64) -> fmt::Result {
        let mut text = [0; MAX_TEXT];
        let mut len = 0;
        for (n, byte) in (0..).zip(&mut text) {
            let mut read = [0];
            if !addr.checked_add(n).is_some_and(|addr| self.values.memory.read(addr, &mut read)) {
                return Ok(());
            }
            [*byte] = read;
            if *byte == 0 {
                break;
            }
            len += 1;
        }
        self.out.write_char(' ')?;
        self.quoted(text.get(..len).unwrap_or_default())?;
        if len == MAX_TEXT { self.out.write_str("...") } else { Ok(()) }
    }

    /// Text in quotes, whatever its bytes are.
    fn quoted(&mut self, text: &[u8]) -> fmt::Result {
        self.out.write_char('"')?;
        for chunk in text.utf8_chunks() {
            for c in chunk.valid().chars() {
                self.escaped(c, '"')?;
            }
            for byte in chunk.invalid() {
                write!(self.out, "\\x{byte:02x}")?;
            }
        }
        self.out.write_char('"')
    }

    fn escaped(&mut self, c: char, quote: char) -> fmt::Result {
        match c {
            '\\' => self.out.write_str("\\\\"),
            '\n' => self.out.write_str("\\n"),
            '\t' => self.out.write_str("\\t"),
            '\r' => self.out.write_str("\\r"),
            c if c == quote => write!(self.out, "\\{c}"),
            c if c.is_control() => write!(self.out, "\\x{:02x}", u32::from(c)),
            c => self.out.write_char(c),
        }
    }

    fn enumeration(&mut self, size: u32, constants: &Constants<'_>, at: u64, errors: Errors) -> fmt::Result {
        match self.number(at, size) {
            Some(raw) => self.constant(raw, size.min(8) * 8, constants, errors),
            None => self.out.write_char('?'),
        }
    }

    /// The lowest `bits` of `raw` by the names that they have.
    fn constant(&mut self, raw: u64, bits: u32, constants: &Constants<'_>, errors: Errors) -> fmt::Result {
        let value = cut(raw, bits);
        if let Some(constant) = constants.iter().find(|constant| cut(constant.value, bits) == value) {
            return self.out.write_str(constant.name);
        }
        if value != 0 && are_flags(constants) {
            let (mut rest, mut first) = (value, true);
            for flag in constants.iter().filter(|flag| flag.value.is_power_of_two()) {
                if rest & flag.value != 0 {
                    write!(self.out, "{}{}", if first { "" } else { "|" }, flag.name)?;
                    first = false;
                    rest &= !flag.value;
                }
            }
            return match (rest, first) {
                (0, _) => Ok(()),
                (_, true) => write!(self.out, "{rest:#x}"),
                (_, false) => write!(self.out, "|{rest:#x}"),
            };
        }
        // Compilers may have taken an unsigned type for an enumeration whose functions return errors.
        let signed = sign_extend(value, bits);
        let is_error = (-i64::from(MAX_ERRNO)..0).contains(&signed);
        match (constants.signed(), errors) {
            (_, Errors::Named) if is_error => self.error_number(signed),
            (true, _) => write!(self.out, "{signed}"),
            (false, _) => write!(self.out, "{value}"),
        }
    }

    fn array(&mut self, element: u32, len: u32, at: u64, depth: u32) -> fmt::Result {
        let Ok(each) = self.btf().size(element) else { return self.out.write_char('?') };
        let is_char = self.btf().resolve(element).is_ok_and(|ty| {
            ty.name == "char" && matches!(ty.kind, Kind::Int(Int { size: 1, .. })) && self.style == Style::C
        });
        if is_char {
            return self.char_array(len, at);
        }
        self.out.write_char('[')?;
        for n in 0..len {
            if n > 0 {
                self.out.write_str(", ")?;
            }
            if n == MAX_ELEMENTS || self.left == 0 {
                self.out.write_str("...")?;
                break;
            }
            let at = each.checked_mul(n.into()).and_then(|offset| at.checked_add(offset));
            match at {
                Some(at) => self.value(element, at, Errors::Numbers, depth - 1)?,
                None => self.out.write_char('?')?,
            }
        }
        self.out.write_char(']')
    }

    fn char_array(&mut self, len: u32, at: u64) -> fmt::Result {
        let mut text = [0; MAX_TEXT];
        let mut used = 0;
        for (n, to) in (0..u64::from(len)).zip(&mut text) {
            let Some(byte) = at.checked_add(n).and_then(|at| self.source.number(at, 1)) else {
                return self.out.write_char('?');
            };
            *to = byte as u8;
            if byte == 0 {
                break;
            }
            used += 1;
        }
        self.quoted(text.get(..used).unwrap_or_default())?;
        if used == MAX_TEXT && len as usize > MAX_TEXT { self.out.write_str("...") } else { Ok(()) }
    }

    fn structure(
        &mut self,
        name: &str,
        members: &Members<'_>,
        at: u64,
        errors: Errors,
        depth: u32,
    ) -> fmt::Result {
        match self.style {
            Style::C if members.is_empty() => self.out.write_str("{}"),
            Style::C => {
                self.out.write_str("{ ")?;
                self.members(members, at, Errors::Numbers, depth, Separator::C)?;
                self.out.write_str(" }")
            }
            Style::Rust => self.rust_structure(name, members, at, errors, depth),
        }
    }

    fn rust_structure(
        &mut self,
        name: &str,
        members: &Members<'_>,
        at: u64,
        errors: Errors,
        depth: u32,
    ) -> fmt::Result {
        let head = name.split(['<', '{']).next().unwrap_or_default();
        // Their inside is nobody's business.
        if head.starts_with("NonZero") || ["NonNull", "Unique", "Wrapping", "ManuallyDrop"].contains(&head) {
            let mut filled = members.iter().filter(|member| self.btf().size(member.ty) != Ok(0));
            if let (Some(inner), None) = (filled.next(), filled.next()) {
                self.left += 1;
                return self.value(
                    inner.ty,
                    at.saturating_add(u64::from(inner.bit_offset / 8)),
                    errors,
                    depth - 1,
                );
            }
        }
        // A type of errors in the manner of Linux holds an error number.
        let errors =
            if head.ends_with("Error") || head.ends_with("Errno") { Errors::Named } else { Errors::Numbers };
        let is_tuple = name.starts_with('(');
        if !is_tuple {
            // As a derived `Debug` has it: what the type's parameters are, the prototype says.
            self.out.write_str(
                name.split_once('<').map_or(name, |(bare, _)| if bare.is_empty() { name } else { bare }),
            )?;
        }
        let numbered = members.iter().all(|member| is_numbered(member.name));
        let is_empty =
            members.is_empty() || !numbered && members.iter().all(|member| is_nothing(self.btf(), &member));
        match (is_empty, numbered) {
            (true, _) if is_tuple => self.out.write_str("()"),
            (true, _) => Ok(()),
            (false, true) => {
                self.out.write_char('(')?;
                self.members(members, at, errors, depth, Separator::Tuple)?;
                self.out.write_char(')')
            }
            (false, false) => {
                self.out.write_str(" { ")?;
                self.members(members, at, errors, depth, Separator::Rust)?;
                self.out.write_str(" }")
            }
        }
    }

    fn members(
        &mut self,
        members: &Members<'_>,
        at: u64,
        errors: Errors,
        depth: u32,
        separator: Separator,
    ) -> fmt::Result {
        // Members of tuples stand in the order of their offsets, and are shown in that of their numbers.
        let order = |n: usize| match separator {
            Separator::Tuple => {
                members.iter().find(|member| number_of(member.name) == Some(n)).or(members.get(n))
            }
            _ => members.get(n),
        };
        // Markers and allocators, say. A place in a tuple is a place, whatever is there.
        let btf = self.btf();
        let is_shown = |member: &Member<'_>| separator != Separator::Rust || !is_nothing(btf, member);
        let shown = (0..members.len()).map_while(order).filter(is_shown);
        let mut is_first = true;
        for member in shown {
            if !core::mem::take(&mut is_first) {
                self.out.write_str(", ")?;
            }
            if self.left == 0 {
                return self.out.write_str("...");
            }
            match separator {
                Separator::C if !member.name.is_empty() => write!(self.out, ".{} = ", member.name)?,
                Separator::Rust => write!(self.out, "{}: ", member.name)?,
                _ => {}
            }
            match member.bits {
                Some(bits) => self.bit_field(member.ty, at, member.bit_offset, bits.into())?,
                None => {
                    let at = at.saturating_add(u64::from(member.bit_offset / 8));
                    self.value(member.ty, at, errors, depth - 1)?;
                }
            }
        }
        Ok(())
    }

    fn bit_field(&mut self, ty: u32, at: u64, bit_offset: u32, bits: u32) -> fmt::Result {
        self.left -= 1;
        let from = at.saturating_add(u64::from(bit_offset / 8));
        let skip = bit_offset % 8;
        // At most 9 bytes: 64 bits that start inside of a byte.
        let len = (skip + bits).div_ceil(8) as usize;
        let (Some(bytes), true) = (self.source.read(from, len), bits <= 64) else {
            return self.out.write_char('?');
        };
        let raw = cut((u128::from_le_bytes(bytes) >> skip) as u64, bits);
        match self.btf().resolve(ty).map(|ty| (ty.name, ty.kind)) {
            Ok((name, Kind::Int(int))) => self.bits(name, int, raw, bits, Errors::Numbers),
            Ok((_, Kind::Enum { constants, .. })) => self.constant(raw, bits, &constants, Errors::Numbers),
            _ => self.out.write_char('?'),
        }
    }

    /// The variant of an enum that holds.
    fn variant(
        &mut self,
        ty: u32,
        members: &Members<'_>,
        at: u64,
        (tag, size): (u32, u32),
        depth: u32,
    ) -> fmt::Result {
        let discriminant = match size {
            0 => None,
            _ => match at.checked_add(tag.into()).and_then(|at| self.number(at, size)) {
                None => return self.out.write_char('?'),
                known => known,
            },
        };
        let member = remarks::variant(self.btf(), ty, discriminant).and_then(|n| members.get(n as usize));
        let Some(member) = member else { return self.out.write_char('?') };
        let at = at.saturating_add(u64::from(member.bit_offset / 8));
        match self.btf().resolve(member.ty).map(|ty| ty.kind) {
            Ok(Kind::Struct { members, .. }) => {
                self.rust_structure(member.name, &members, at, Errors::Numbers, depth)
            }
            _ => self.out.write_char('?'),
        }
    }

    /// A pointer and a length; of nothing else, by the order of their offsets.
    fn fat(&self, fat: Fat, members: &Members<'_>, at: u64) -> Option<(u64, u64)> {
        if let Fat::At { pointer, len } = fat {
            let word = |offset: u32| self.number(at.checked_add(offset.into())?, 8);
            return word(pointer).zip(word(len));
        }
        let word = |n| self.number(at.checked_add(u64::from(members.get(n)?.bit_offset / 8))?, 8);
        let (first, second) = (word(0)?, word(1)?);
        let pointer = members.get(0).and_then(|member| self.btf().resolve(member.ty).ok());
        let pointer_first = pointer.is_some_and(|ty| matches!(ty.kind, Kind::Ptr(_)));
        Some(if pointer_first { (first, second) } else { (second, first) })
    }

    fn text(&mut self, fat: Fat, members: &Members<'_>, at: u64) -> fmt::Result {
        let Some((addr, len)) = self.fat(fat, members, at) else { return self.out.write_char('?') };
        let mut text = [0; MAX_TEXT];
        let shown = usize::try_from(len).unwrap_or(MAX_TEXT).min(MAX_TEXT);
        let to = text.get_mut(..shown).unwrap_or_default();
        if shown > 0 && !self.values.memory.read(addr, to) {
            return write!(self.out, "{addr:#x}[..{len}]");
        }
        // A character that is cut by the limit is left out.
        let mut whole: &[u8] = to;
        if shown as u64 != len
            && let Err(error) = core::str::from_utf8(whole)
            && error.error_len().is_none()
        {
            whole = whole.get(..error.valid_up_to()).unwrap_or_default();
        }
        let mut copy = [0; MAX_TEXT];
        let used = whole.len();
        if let Some(to) = copy.get_mut(..used) {
            to.copy_from_slice(whole);
        }
        self.quoted(copy.get(..used).unwrap_or_default())?;
        if shown as u64 != len { self.out.write_str("...") } else { Ok(()) }
    }

    fn slice(&mut self, fat: Fat, members: &Members<'_>, at: u64) -> fmt::Result {
        match self.fat(fat, members, at) {
            Some((addr, len)) => write!(self.out, "{addr:#x}[..{len}]"),
            None => self.out.write_char('?'),
        }
    }
}

/// Whether a member has no bytes.
fn is_nothing(btf: &Btf<'_>, member: &Member<'_>) -> bool {
    member.bits.is_none() && btf.size(member.ty) == Ok(0)
}

/// What stands before a member's value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Separator {
    C,
    Rust,
    Tuple,
}

/// The place in a tuple that a field's name says: `__0`.
fn number_of(name: &str) -> Option<usize> {
    name.strip_prefix("__")?.parse().ok()
}

fn is_numbered(name: &str) -> bool {
    number_of(name).is_some()
}

/// The lowest bits of a word.
fn cut(value: u64, bits: u32) -> u64 {
    match bits {
        0 => 0,
        1..64 => value & (u64::MAX >> (64 - bits)),
        _ => value,
    }
}

/// A number of so many bits, whose highest is its sign.
fn sign_extend(value: u64, bits: u32) -> i64 {
    match bits {
        1..64 => (value << (64 - bits)) as i64 >> (64 - bits),
        _ => value as i64,
    }
}

/// Whether the constants are bits that are joined: at least three single bits, others only of these, and not just 1, 2, 3, 4.
fn are_flags(constants: &Constants<'_>) -> bool {
    let (mut single, mut all, mut many, mut largest) = (0u64, 0u64, 0u64, 0u64);
    for constant in constants.iter().filter(|constant| constant.value != 0) {
        if constant.value.is_power_of_two() {
            single |= constant.value;
        } else {
            all |= constant.value;
        }
        many += 1;
        largest = largest.max(constant.value);
    }
    single.count_ones() >= 3 && all & !single == 0 && many != largest
}

/// Puts ` <` before the first thing that is written.
struct Named<'o> {
    out: &'o mut dyn Write,
    started: bool,
}

impl Write for Named<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if !text.is_empty() && !self.started {
            self.started = true;
            self.out.write_str(" <")?;
        }
        self.out.write_str(text)
    }
}
