//! From a hooked return address to the real one.

use core::ops::RangeInclusive;

use crate::addr::{RetAddr, StackKey};
use crate::shadow::Walk;
use crate::task::TaskTrace;

/// What is known of the key of the frame whose return address was found: all keys that it can have.
pub type Keys = RangeInclusive<usize>;

/// A return address that a walk found, translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Translated {
    /// It was not the return hooker's.
    AsFound(RetAddr),
    /// The shadow stack has the real one.
    Hooked(RetAddr),
    /// It is the return hooker's, but the shadow stack has no frame for it.
    NotThere,
}

/// A place in a task's shadow stack, for one walk of its stack, from the innermost frame out. The addresses of a whole
/// walk are found in one pass over the shadow stack.
///
/// It borrows the task, so it cannot be asked about another one's frames.
#[derive(Clone, Debug)]
pub struct Cursor<'a>(Walk<'a>);

impl<'a> Cursor<'a> {
    /// Before the task's newest frame. The task is the caller, interrupted by the caller, or stopped.
    pub fn new(task: &'a TaskTrace) -> Self {
        Self(task.frames())
    }

    /// What the return address `found` really is. `hookers` are what hooked functions return to; `keys` holds the key of the
    /// frame, which is the stack pointer at the function's entry: where that is not known exactly, what lies between
    /// the function's own frame record and its caller's.
    ///
    /// Several frames have one key where a function ended in a jump to another one (the later frame is the newer one), or
    /// where two users of this crate's trampolines hooked one call. Of them only the oldest knows an address that is not
    /// a hooker's, and that one is where control goes in the end. All of them are passed.
    ///
    /// Frames with other keys on the way are of functions that were left by a non-local jump, or returned already in
    /// all but name. A search that finds nothing leaves the cursor where it was.
    pub fn ret_addr(&mut self, hookers: [RetAddr; 3], found: RetAddr, keys: &Keys) -> Translated {
        if !hookers.contains(&found) {
            return Translated::AsFound(found);
        }
        let mut walk = self.0.clone();
        let mut key: Option<StackKey> = None;
        for frame in &mut walk {
            match key {
                None if keys.contains(&frame.key.get()) => key = Some(frame.key),
                Some(key) if key == frame.key => {}
                _ => continue,
            }
            if !hookers.contains(&frame.ret_addr) {
                self.0 = walk;
                return Translated::Hooked(frame.ret_addr);
            }
        }
        Translated::NotThere
    }
}
