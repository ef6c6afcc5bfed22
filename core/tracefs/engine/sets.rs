//! Sets that callbacks look at without a lock, in lent memory.
//!
//! Callbacks borrow a set for ever, so one that is replaced stays as it is: a new one is written beside it, and takes the memory of the
//! one before when nobody can be looking at that any more, which the caller knows.

use super::super::control::{FunctionsError, PidFile};
use super::super::write::MAX_PIDS;
use crate::addr::FuncAddr;
use crate::engine::{Error, Members, WhichSet};
use crate::filter::FuncSet;
use crate::limits::PidSet;

/// The sets themselves, without the functions that are in them.
#[derive(Debug)]
pub struct FileSets {
    functions: [[FuncSet; 2]; 2],
    tasks: [[PidSet; 2]; 2],
    pids: [[[u32; MAX_PIDS]; 2]; 2],
}

impl FileSets {
    /// Empty ones.
    pub const fn new() -> Self {
        Self {
            functions: [[FuncSet::None; 2]; 2],
            tasks: [[PidSet::None; 2]; 2],
            pids: [[[0; MAX_PIDS]; 2]; 2],
        }
    }
}

impl Default for FileSets {
    fn default() -> Self {
        Self::new()
    }
}

/// What is lent for sets.
#[derive(Debug)]
pub struct SetsMemory {
    /// For the sets.
    pub sets: &'static mut FileSets,
    /// For the functions of `set_graph_function`, and for those of `set_graph_notrace`: twice as many as can be traced.
    pub functions: [&'static mut [FuncAddr]; 2],
}

/// Two halves of lent memory that are written in turn.
#[derive(Debug)]
struct Twin<T: 'static> {
    /// The half that is written next, and the other one. Invariant: valid for ever, equally long, and nobody else's but for shared
    /// references that `write` gave out.
    spare: *mut [T],
    used: *mut [T],
}

// SAFETY: it stands for two `&'static mut [T]`, which can be sent where `T` can; what `write` gives out can be where `T` is shared.
unsafe impl<T: Send + Sync> Send for Twin<T> {}

impl<T: Copy> Twin<T> {
    fn new(memory: &'static mut [T]) -> Self {
        let half = memory.len() / 2;
        let (spare, rest) = memory.split_at_mut(half);
        Self { spare, used: rest.split_at_mut(half).0 }
    }

    fn room(&self) -> usize {
        self.spare.len()
    }

    /// Writes the spare half, and gives out as much of it as `fill` says; the halves change places. On an error they do not.
    ///
    /// # Safety
    /// Nobody uses what the call before the last one gave out.
    unsafe fn write<E>(
        &mut self,
        fill: impl FnOnce(&mut [T]) -> Result<usize, E>,
    ) -> Result<&'static [T], E> {
        // SAFETY: valid by the invariant. What was given out of it was by the call before the last one, or by an earlier one, and by the
        // caller's promise nobody uses that.
        let spare: &'static mut [T] = unsafe { &mut *self.spare };
        let len = fill(spare)?;
        core::mem::swap(&mut self.spare, &mut self.used);
        let spare: &'static [T] = spare;
        Ok(spare.get(..len).unwrap_or(spare))
    }
}

/// A set's members, and the set.
#[derive(Debug)]
struct Published<T: 'static, S: 'static> {
    members: Twin<T>,
    set: Twin<S>,
}

impl<T: Copy, S: Copy> Published<T, S> {
    fn new(members: &'static mut [T], set: &'static mut [S; 2]) -> Self {
        Self { members: Twin::new(members), set: Twin::new(set) }
    }

    /// # Safety
    /// As for [`Twin::write`], of the set and of its members.
    unsafe fn write<E>(
        &mut self,
        fill: impl FnOnce(&mut [T]) -> Result<usize, E>,
        make: impl FnOnce(&'static [T]) -> S,
    ) -> Result<&'static S, E> {
        // SAFETY: the caller's promise.
        let members = unsafe { self.members.write(fill) }?;
        // SAFETY: as above.
        let set = unsafe {
            self.set.write(|room| {
                room.fill(make(members));
                Ok(room.len())
            })
        }?;
        // The halves are one long.
        Ok(&set[0])
    }
}

/// All sets of the files.
#[derive(Debug)]
pub(super) struct Sets {
    functions: [Published<FuncAddr, FuncSet>; 2],
    tasks: [Published<u32, PidSet>; 2],
    listed: [Option<&'static [u32]>; 2],
}

impl Sets {
    pub(super) fn new(memory: SetsMemory) -> Self {
        let FileSets { functions: [first, second], tasks: [only, never], pids: [some, others] } = memory.sets;
        let [inside, outside] = memory.functions;
        Self {
            functions: [Published::new(inside, first), Published::new(outside, second)],
            tasks: [
                Published::new(some.as_flattened_mut(), only),
                Published::new(others.as_flattened_mut(), never),
            ],
            listed: [None; 2],
        }
    }

    /// How many functions such a set may have.
    pub(super) fn room(&self, which: WhichSet) -> usize {
        self.functions[place(which)].members.room()
    }

    /// The tasks of a set, if there is one.
    pub(super) fn listed(&self, file: PidFile) -> Option<&'static [u32]> {
        self.listed[file as usize]
    }

    /// Makes a set of what `fill` writes.
    ///
    /// # Safety
    /// Nobody uses the set that was made like this before the last one.
    pub(super) unsafe fn functions(
        &mut self,
        which: WhichSet,
        fill: impl FnOnce(&mut [FuncAddr]) -> Result<Members, Error>,
    ) -> Result<&'static FuncSet, Error> {
        let mut all = false;
        let count = |room: &mut [FuncAddr]| match fill(room)? {
            Members::All => {
                all = true;
                Ok(0)
            }
            Members::Some(count) => Ok(count),
        };
        // SAFETY: the caller's promise.
        unsafe {
            let members = self.functions[place(which)].members.write(count)?;
            let set = match members {
                _ if all => FuncSet::All,
                [] => FuncSet::None,
                members => FuncSet::Some(members),
            };
            let made = self.functions[place(which)].set.write(|room| {
                room.fill(set);
                Ok::<_, Error>(room.len())
            })?;
            Ok(&made[0])
        }
    }

    /// Makes a set of tasks; `None` for what an empty file means.
    ///
    /// # Safety
    /// As for [`functions`](Self::functions).
    pub(super) unsafe fn tasks(
        &mut self,
        file: PidFile,
        pids: Option<&[u32]>,
    ) -> Result<&'static PidSet, FunctionsError> {
        let (mut listed, count) = (None, pids.map_or(0, <[u32]>::len));
        let fill = |room: &mut [u32]| -> Result<usize, FunctionsError> {
            let max = room.len();
            let place = room.get_mut(..count).ok_or(FunctionsError::TooMany { count, max })?;
            place.copy_from_slice(pids.unwrap_or(&[]));
            Ok(count)
        };
        let make = |members: &'static [u32]| match (pids, file) {
            (Some(_), _) => {
                listed = Some(members);
                PidSet::Some(members)
            }
            (None, PidFile::Pid) => PidSet::All,
            (None, PidFile::NotracePid) => PidSet::None,
        };
        // SAFETY: the caller's promise.
        let set = unsafe { self.tasks[file as usize].write(fill, make) }?;
        self.listed[file as usize] = listed;
        Ok(set)
    }
}

fn place(which: WhichSet) -> usize {
    match which {
        WhichSet::Filter => 0,
        WhichSet::Notrace => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{keep, keep_all};

    #[test]
    fn a_set_stays_as_it_is_until_the_one_after_the_next() {
        let functions = [keep_all(vec![FuncAddr::new(0); 4]), keep_all(vec![FuncAddr::new(0); 4])];
        let mut sets = Sets::new(SetsMemory { sets: keep(FileSets::new()), functions });
        assert_eq!(sets.room(WhichSet::Notrace), 2);
        let mut make = |addr| {
            let fill = |room: &mut [FuncAddr]| {
                room.fill(FuncAddr::new(addr));
                Ok(if addr == 9 { Members::All } else { Members::Some(addr) })
            };
            // SAFETY: the test looks at one of them at most one step later.
            unsafe { sets.functions(WhichSet::Filter, fill) }.expect("it is made")
        };
        let one = make(1);
        assert!(one.contains(FuncAddr::new(1)));
        let two = make(2);
        assert!(one.contains(FuncAddr::new(1)) && !one.contains(FuncAddr::new(2)));
        assert!(two.contains(FuncAddr::new(2)));
        assert_eq!((*make(0), *make(9)), (FuncSet::None, FuncSet::All));
    }

    #[test]
    fn tasks_are_listed_as_they_were_set() {
        let memory = SetsMemory { sets: keep(FileSets::new()), functions: [&mut [], &mut []] };
        let mut sets = Sets::new(memory);
        // SAFETY: no set is looked at after the next call.
        let mut set = |file, pids| unsafe { sets.tasks(file, pids) }.copied();
        assert_eq!(set(PidFile::Pid, Some(&[3, 5])), Ok(PidSet::Some(&[3, 5])));
        assert_eq!(set(PidFile::NotracePid, Some(&[])), Ok(PidSet::Some(&[])));
        let many = [0; MAX_PIDS + 1];
        let refused = Err(FunctionsError::TooMany { count: MAX_PIDS + 1, max: MAX_PIDS });
        assert_eq!(set(PidFile::Pid, Some(&many)), refused);
        assert_eq!(sets.listed(PidFile::Pid), Some(&[3, 5][..]));
        // SAFETY: as above.
        let mut set = |file, pids| unsafe { sets.tasks(file, pids) }.copied();
        assert_eq!(
            (set(PidFile::Pid, None), set(PidFile::NotracePid, None)),
            (Ok(PidSet::All), Ok(PidSet::None))
        );
        assert_eq!(sets.listed(PidFile::NotracePid), None);
    }
}
