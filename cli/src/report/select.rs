//! Which events are shown.

use std::collections::HashMap;

use fgraph::pattern::Pattern;

use super::event::{Call, Event, Func, Thread, What};
use super::names::Names;

/// What is wanted. Everything that is empty or `None` wants everything.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Functions, by glob.
    pub functions: Vec<String>,
    /// Functions that are left out, by glob.
    pub not: Vec<String>,
    /// Functions that are shown with everything inside of them, by glob.
    pub graph: Vec<String>,
    /// Tasks, by number or by glob.
    pub tasks: Vec<String>,
    /// CPUs.
    pub cpus: Vec<u32>,
    /// Not before this time, in nanoseconds.
    pub from: Option<u64>,
    /// Not after this time, in nanoseconds.
    pub to: Option<u64>,
    /// How many levels: of all, or from each function of `graph` on.
    pub max_depth: Option<u32>,
    /// Calls that took this long at least, in nanoseconds.
    pub min_duration: Option<u64>,
    /// Calls that returned an error, and those around them.
    pub errors: bool,
}

/// A call that is open.
struct Frame {
    depth: u32,
    /// Its entry, until that is shown.
    held: Option<Event>,
}

#[derive(Default)]
struct Stack {
    frames: Vec<Frame>,
    /// The depth of the function of `graph` that all this is inside of.
    graph: Option<u32>,
}

/// Lets through what is wanted.
pub(super) struct Selector {
    wanted: Selection,
    stacks: HashMap<Thread, Stack>,
    verdicts: HashMap<Func, (bool, bool)>,
    task_verdicts: HashMap<u32, bool>,
}

fn any(patterns: &[String], text: &str) -> bool {
    patterns.iter().any(|pattern| Pattern::parse(pattern).is_ok_and(|pattern| pattern.matches(text)))
}

impl Selector {
    pub(super) fn new(wanted: Selection) -> Self {
        Self { wanted, stacks: HashMap::new(), verdicts: HashMap::new(), task_verdicts: HashMap::new() }
    }

    /// If a function is wanted, and if it is one of `graph`.
    fn verdict(&mut self, func: Func, names: &Names) -> (bool, bool) {
        let wanted = &self.wanted;
        *self.verdicts.entry(func).or_insert_with(|| {
            let (name, raw) = names.get(func).map_or(("?", ""), |function| (&*function.name, &*function.raw));
            let in_list = |list: &[String]| any(list, name) || any(list, raw);
            let shown = (wanted.functions.is_empty() || in_list(&wanted.functions)) && !in_list(&wanted.not);
            (shown, in_list(&wanted.graph))
        })
    }

    /// If a call is wanted by what is known of it when it returned.
    fn wants(&self, call: &Call) -> bool {
        let long = |min| call.duration().is_some_and(|took| took >= min);
        self.wanted.min_duration.is_none_or(long) && (!self.wanted.errors || call.has_failed())
    }

    /// Takes an event and gives what is to be shown now.
    pub(super) fn push(&mut self, event: Event, names: &Names, out: &mut dyn FnMut(Event)) {
        let wanted = &self.wanted;
        if !wanted.cpus.is_empty() && !wanted.cpus.contains(&event.cpu)
            || wanted.from.is_some_and(|from| event.time < from)
            || wanted.to.is_some_and(|to| event.time > to)
        {
            return;
        }
        let picky = wanted.errors || wanted.min_duration.is_some();
        let chosen = !wanted.functions.is_empty() || !wanted.graph.is_empty();
        if !wanted.tasks.is_empty() && !matches!(event.what, What::Lost(_)) {
            let list = &wanted.tasks;
            let task = event.task;
            let shown = self.task_verdicts.entry(task);
            if !*shown.or_insert_with(|| any(list, &task.to_string()) || any(list, &names.comm(task))) {
                return;
            }
        }
        let Some(call) = event.call() else {
            let shown = match event.what {
                What::Hit { func, .. } => self.verdict(func, names).0 && !picky,
                What::Lost(_) => true,
                _ => !picky && !chosen,
            };
            if shown {
                out(event);
            }
            return;
        };
        let (func, depth) = (call.func, call.depth);
        let (shown, is_graph) = self.verdict(func, names);
        let thread = event.thread();
        let mut stack = self.stacks.remove(&thread).unwrap_or_default();
        self.step(&mut stack, event, (shown, is_graph, depth), out);
        self.stacks.insert(thread, stack);
    }

    fn step(
        &self,
        stack: &mut Stack,
        event: Event,
        (shown, is_graph, depth): (bool, bool, u32),
        out: &mut dyn FnMut(Event),
    ) {
        let wanted = &self.wanted;
        let is_leave = matches!(event.what, What::Leave(_));
        let stale = |frame: &mut Frame| if is_leave { frame.depth > depth } else { frame.depth >= depth };
        while stack.frames.pop_if(stale).is_some() {}
        if stack.graph.is_some_and(|from| if is_leave { from > depth } else { from >= depth }) {
            stack.graph = None;
        }
        if is_graph && stack.graph.is_none() && matches!(event.what, What::Enter(_) | What::Leaf(_)) {
            stack.graph = Some(depth);
        }
        let inside = wanted.graph.is_empty() || stack.graph.is_some();
        let level = depth - stack.graph.filter(|from| *from <= depth).unwrap_or(0);
        let shown = shown && inside && wanted.max_depth.is_none_or(|most| level < most);
        let own = if is_leave { stack.frames.pop_if(|frame| frame.depth == depth) } else { None };
        if !matches!(event.what, What::Enter(_)) && stack.graph == Some(depth) {
            stack.graph = None;
        }
        match &event.what {
            What::Enter(call) if shown => {
                // What is not known yet is decided at the return, or when something inside of it is shown.
                let picky = wanted.errors || wanted.min_duration.is_some();
                let known = call.end.is_some();
                let held = if !picky || known && self.wants(call) {
                    Self::show_path(stack, wanted.errors, out);
                    out(event);
                    None
                } else {
                    Some(event)
                };
                stack.frames.push(Frame { depth, held });
            }
            What::Leave(call) if shown => {
                let was_shown = own.as_ref().is_some_and(|frame| frame.held.is_none());
                if self.wants(call) {
                    Self::show_path(stack, wanted.errors, out);
                    if let Some(entry) = own.and_then(|frame| frame.held) {
                        out(entry);
                    }
                    out(event);
                } else if was_shown {
                    out(event);
                }
            }
            What::Leaf(call) if shown && self.wants(call) => {
                Self::show_path(stack, wanted.errors, out);
                out(event);
            }
            _ => {}
        }
    }

    /// Shows the calls around, if they were not yet, with `--errors`.
    fn show_path(stack: &mut Stack, path: bool, out: &mut dyn FnMut(Event)) {
        if path {
            stack.frames.iter_mut().filter_map(|frame| frame.held.take()).for_each(out);
        }
    }
}
