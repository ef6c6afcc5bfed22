//! Types for the call graphs of [`Printer`](crate::text::Printer): a [`Resolve`] that adds them to another one.

use core::fmt;

use super::{Entered, Returned, RetvalAt, Values};
use crate::btf::image::Types;
use crate::text::{Resolve, Retval, RetvalForm};

/// Which FUNC the function at an address has.
pub trait Functions {
    /// The id of the FUNC; `None` if its types are not known for certain.
    fn function_at(&self, addr: u64) -> Option<u32>;
}

impl Functions for Types<'_> {
    fn function_at(&self, addr: u64) -> Option<u32> {
        Types::function_at(self, addr)
    }
}

/// Names as another [`Resolve`] has them, arguments and return values by type. Functions without types are left to the other one.
///
/// The words of an entry are the argument registers in their order, as many as the machine has; one more, if there is one, is the
/// address of the first argument on the stack.
#[derive(Clone, Copy)]
pub struct Typed<'a> {
    inner: &'a dyn Resolve,
    functions: &'a dyn Functions,
    values: Values<'a>,
}

impl fmt::Debug for Typed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Typed").field("values", &self.values).finish_non_exhaustive()
    }
}

impl<'a> Typed<'a> {
    /// Adds types to `inner`.
    pub fn new(inner: &'a dyn Resolve, functions: &'a dyn Functions, values: Values<'a>) -> Self {
        Self { inner, functions, values }
    }

    fn function(&self, func: usize) -> Option<u32> {
        self.functions.function_at(func as u64).filter(|id| self.values.retval_at(*id).is_some())
    }
}

impl Resolve for Typed<'_> {
    fn name(&self, func: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.name(func, f)
    }

    fn place(&self, addr: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.place(addr, f)
    }

    fn caller(&self, addr: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.caller(addr, f)
    }

    fn is_irq_entry(&self, func: usize) -> bool {
        self.inner.is_irq_entry(func)
    }

    fn has_retval(&self, func: usize) -> bool {
        match self.function(func).and_then(|id| self.values.retval_at(id)) {
            Some(retval) => retval == RetvalAt::Registers,
            None => self.inner.has_retval(func),
        }
    }

    fn write_retval(
        &self,
        func: usize,
        retval: Retval<'_>,
        form: RetvalForm,
        f: &mut fmt::Formatter<'_>,
    ) -> fmt::Result {
        self.inner.write_retval(func, retval, form, f)
    }

    fn write_typed_retval(&self, func: usize, retval: Retval<'_>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(id) = self.function(func) else { return self.inner.write_typed_retval(func, retval, f) };
        let registers = [retval.first, retval.second.unwrap_or_default()];
        let registers = if retval.second.is_some() { &registers[..] } else { &registers[..1] };
        self.values.write_retval(id, &Returned { registers, memory: None, kept: retval.memory }, f)
    }

    fn write_args(&self, func: usize, args: &[usize], f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.write_args(func, args, f)
    }

    fn write_typed_args(&self, func: usize, args: &[usize], f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(id) = self.function(func) else { return self.inner.write_typed_args(func, args, f) };
        let stack = args.get(self.values.machine.argument_registers()).copied();
        self.values.write_args(id, &Entered { registers: args, stack, indirect: None }, f)
    }

    fn write_comment(&self, event: u32, data: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.write_comment(event, data, f)
    }
}
