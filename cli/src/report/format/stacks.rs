//! Time by stack: folded lines, as flame graph programs take them, and the flame graph itself.

use std::collections::HashMap;
use std::io::{self, Write};

use super::super::event::{Event, Thread, What};
use super::super::names::Names;
use super::{Format, flame};

/// A function, called by the one above it.
pub(super) struct Node {
    pub(super) name: String,
    pub(super) children: Vec<usize>,
    /// Nanoseconds in it alone.
    pub(super) own: u64,
}

/// What is made of the stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Shape {
    Folded,
    Svg,
}

/// Adds up. Memory: one node for each different stack.
pub(in super::super) struct Stacks<W> {
    out: W,
    shape: Shape,
    nodes: Vec<Node>,
    /// Children by their parent and what they are: a function, or a thread's name below the root.
    places: HashMap<(usize, Key), usize>,
    open: HashMap<Thread, Vec<(u32, usize)>>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum Key {
    Task(String),
    Func(u32),
}

impl<W: Write> Stacks<W> {
    pub(in super::super) fn new(out: W, shape: Shape) -> Self {
        let root = Node { name: "all".into(), children: Vec::new(), own: 0 };
        Self { out, shape, nodes: vec![root], places: HashMap::new(), open: HashMap::new() }
    }

    fn child(&mut self, parent: usize, key: Key, names: &Names) -> usize {
        let next = self.nodes.len();
        let name = match &key {
            Key::Task(name) => name.clone(),
            Key::Func(func) => names.function(*func).to_owned(),
        };
        let at = *self.places.entry((parent, key)).or_insert(next);
        if at == next {
            self.nodes.push(Node { name, children: Vec::new(), own: 0 });
            self.nodes[parent].children.push(at);
        }
        at
    }
}

impl<W: Write> Format for Stacks<W> {
    fn event(&mut self, event: &Event, names: &Names) -> io::Result<()> {
        let Some(call) = event.call() else { return Ok(()) };
        let mut open = self.open.remove(&event.thread()).unwrap_or_default();
        let leaves = matches!(event.what, What::Leave(_));
        while open
            .pop_if(|(depth, _)| if leaves { *depth > call.depth } else { *depth >= call.depth })
            .is_some()
        {}
        let node = match open.last() {
            Some((depth, node)) if leaves && *depth == call.depth => *node,
            other => {
                let parent = other.map(|(_, node)| *node);
                let parent =
                    parent.unwrap_or_else(|| self.child(0, Key::Task(names.comm(event.task)), names));
                self.child(parent, Key::Func(call.func), names)
            }
        };
        match event.what {
            What::Enter(_) => open.push((call.depth, node)),
            _ => {
                open.pop_if(|(depth, _)| leaves && *depth == call.depth);
                self.nodes[node].own = self.nodes[node].own.saturating_add(call.self_ns);
            }
        }
        self.open.insert(event.thread(), open);
        Ok(())
    }

    fn finish(&mut self, _: &Names) -> io::Result<()> {
        match self.shape {
            Shape::Svg => flame::write(&mut self.out, &self.nodes)?,
            Shape::Folded => {
                let mut lines = Vec::new();
                let mut todo = vec![(0, String::new())];
                while let Some((at, path)) = todo.pop() {
                    let node = &self.nodes[at];
                    if node.own > 0 {
                        lines.push(format!("{path} {}\n", node.own));
                    }
                    for child in &node.children {
                        let separator = if at == 0 { "" } else { ";" };
                        // These two would be taken for the format's own.
                        let name = self.nodes[*child].name.replace([';', '\n'], ":");
                        todo.push((*child, format!("{path}{separator}{name}")));
                    }
                }
                lines.sort();
                lines.iter().try_for_each(|line| self.out.write_all(line.as_bytes()))?;
            }
        }
        self.out.flush()
    }
}
