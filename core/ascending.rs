//! Functions in ascending order, each once, in lent room: how lists of functions are made of what comes in any order.

use crate::addr::FuncAddr;

/// See the module.
#[derive(Debug)]
pub(crate) struct Ascending<'r> {
    room: &'r mut [FuncAddr],
    len: usize,
    /// Functions that there was no room for.
    refused: usize,
}

impl<'r> Ascending<'r> {
    /// None yet.
    pub(crate) fn new(room: &'r mut [FuncAddr]) -> Self {
        Self { room, len: 0, refused: 0 }
    }

    /// Functions that there was no room for.
    pub(crate) fn refused(&self) -> usize {
        self.refused
    }

    /// How many there is room for.
    pub(crate) fn room(&self) -> usize {
        self.room.len()
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    fn place(&self, func: FuncAddr) -> Result<usize, usize> {
        self.room.get(..self.len).unwrap_or_default().binary_search(&func)
    }

    pub(crate) fn add(&mut self, func: FuncAddr) {
        let Err(at) = self.place(func) else { return };
        let end = self.len + 1;
        match self.room.get_mut(at..end) {
            Some(behind) => {
                // The room that is free comes to the front, where it is wanted.
                behind.rotate_right(1);
                behind[0] = func;
                self.len = end;
            }
            None => self.refused += 1,
        }
    }

    pub(crate) fn remove(&mut self, func: FuncAddr) {
        if let Ok(at) = self.place(func) {
            self.room[at..self.len].rotate_left(1);
            self.len -= 1;
        }
    }

    /// All of them.
    pub(crate) fn into_slice(self) -> &'r [FuncAddr] {
        self.room.get(..self.len).unwrap_or_default()
    }
}
