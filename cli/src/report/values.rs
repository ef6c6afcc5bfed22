//! Values of calls as text, for formats that have a place for each of them: the same text as on the lines of function_graph.

use fgraph::text::Options;

use super::event::{Args, Call};
use super::names::Names;
use super::types::Typed;

/// How values are shown.
#[derive(Clone, Copy)]
pub(super) struct Values<'k> {
    typed: Option<&'k Typed<'k>>,
    is_hex: bool,
}

impl<'k> Values<'k> {
    /// By these types, unless the options do not want them.
    pub(super) fn new(typed: Option<&'k Typed<'k>>, options: Options) -> Self {
        let is_hex = options.contains(Options::RETVAL_HEX);
        Self { typed: typed.filter(|_| options.contains(Options::TYPED)), is_hex }
    }

    /// What the call returned: `None` if it is not known, or nothing.
    pub(super) fn retval(&self, call: &Call, names: &Names) -> Option<String> {
        let value = call.retval?;
        let function = names.get(call.func);
        if function.is_some_and(|function| function.void) {
            return None;
        }
        if self.is_hex {
            return Some(format!("{value:#x}"));
        }
        let addr = function.map_or(0, |function| function.addr);
        if let Some(typed) = self.typed
            && let Some(has_retval) = typed.has_retval(addr, &call.memory)
        {
            return if has_retval { typed.retval(addr, &call.registers(), &call.memory) } else { None };
        }
        Some(call.error().map_or_else(|| format!("{value:#x}"), |error| error.to_string()))
    }

    /// What the call was called with, each with its name: `arg0` where there is none, `args` for all together where a trace has one text.
    pub(super) fn args(&self, call: &Call, names: &Names) -> Vec<(String, String)> {
        let words = match &call.args {
            Args::None => return Vec::new(),
            Args::Text(text) => return vec![("args".to_owned(), text.to_string())],
            Args::Words(words) => words,
        };
        let addr = names.get(call.func).map_or(0, |function| function.addr);
        let named = self.typed.and_then(|typed| typed.named_args(addr, words));
        let mut named =
            named.unwrap_or_else(|| words.iter().map(|word| (String::new(), format!("{word:#x}"))).collect());
        for (number, (name, _)) in named.iter_mut().enumerate().filter(|(_, (name, _))| name.is_empty()) {
            *name = format!("arg{number}");
        }
        named
    }
}
