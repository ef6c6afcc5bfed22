//! Who is inside of whom: gives each returning call the time that nothing in it was running.

use std::collections::HashMap;

use super::event::{Event, Thread, What};

/// A call that is open, and how long what it called took.
struct Frame {
    depth: u32,
    children: u64,
}

#[derive(Default)]
struct Stack {
    frames: Vec<Frame>,
    /// What returned and whose caller has not been seen: depth, and how long it took.
    orphans: Vec<(u32, u64)>,
}

/// The stacks of all tasks.
#[derive(Default)]
pub(super) struct Tracker {
    stacks: HashMap<Thread, Stack>,
}

impl Tracker {
    /// Looks at the next event, and completes it.
    pub(super) fn see(&mut self, event: &mut Event) {
        let thread = event.thread();
        match &mut event.what {
            What::Enter(call) => {
                let stack = self.stacks.entry(thread).or_default();
                stack.unwind(call.depth);
                stack.frames.push(Frame { depth: call.depth, children: 0 });
            }
            What::Leave(call) | What::Leaf(call) => {
                let stack = self.stacks.entry(thread).or_default();
                while stack.frames.last().is_some_and(|frame| frame.depth > call.depth) {
                    stack.frames.pop();
                }
                let duration = call.duration().unwrap_or(0);
                let children = match stack.frames.pop_if(|frame| frame.depth == call.depth) {
                    Some(frame) => frame.children,
                    None => {
                        let of = stack.orphans.iter().filter(|(depth, _)| *depth == call.depth + 1);
                        of.map(|(_, time)| *time).fold(0, u64::saturating_add)
                    }
                };
                stack.orphans.retain(|(depth, _)| *depth <= call.depth);
                call.self_ns = duration.saturating_sub(children);
                match stack.frames.last_mut() {
                    Some(caller) => caller.children = caller.children.saturating_add(duration),
                    None => match stack.orphans.iter_mut().find(|(depth, _)| *depth == call.depth) {
                        Some((_, time)) => *time = time.saturating_add(duration),
                        None => stack.orphans.push((call.depth, duration)),
                    },
                }
            }
            _ => {}
        }
    }
}

impl Stack {
    /// Forgets what cannot be open any more, and orphans whose caller was lost.
    fn unwind(&mut self, depth: u32) {
        while self.frames.last().is_some_and(|frame| frame.depth >= depth) {
            self.frames.pop();
        }
        self.orphans.retain(|(orphan, _)| *orphan <= depth);
    }
}
