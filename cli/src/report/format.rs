//! What a trace is turned into. Each format is told one event after another, and then that there are no more.

use std::collections::HashMap;
use std::io;

use super::event::{Event, Thread, What};
use super::names::Names;

pub(super) mod chrome;
pub(super) mod flame;
pub(super) mod perfetto;
pub(super) mod stacks;
pub(super) mod table;
pub(super) mod text;
pub(super) mod trace_dat;

/// Writes a trace in one format.
pub(super) trait Format {
    /// Takes the next event.
    fn event(&mut self, event: &Event, names: &Names) -> io::Result<()>;

    /// Writes what is left.
    fn finish(&mut self, names: &Names) -> io::Result<()>;
}

/// The calls of every task that are open, for formats in which a return needs its entry.
#[derive(Default)]
pub(super) struct Open(HashMap<Thread, Vec<u32>>);

impl Open {
    /// Takes an event; if it is a return, says if its entry was there.
    pub(super) fn see(&mut self, event: &Event) -> bool {
        let Some(call) = event.call() else { return false };
        let open = self.0.entry(event.thread()).or_default();
        let leaves = matches!(event.what, What::Leave(_));
        while open.pop_if(|depth| if leaves { *depth > call.depth } else { *depth >= call.depth }).is_some() {
        }
        if let What::Enter(_) = event.what {
            open.push(call.depth);
        }
        leaves && open.pop_if(|depth| *depth == call.depth).is_some()
    }
}
