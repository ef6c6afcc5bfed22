//! Who calls a function that is being entered, as a record.

use super::array::{Top, TraceArray};
use super::{now, who};
use crate::arch::live::{Bound, ret_addr, stack_walk};
use crate::platform::{Platform, ReadFault};
use crate::tracefs::recording::Entered;
use crate::unwind::{Cursor, Inspect, Kind, Start, Translated};
use crate::wire::{MAX_DATA, Mark, Record, STACK_MARK};

/// How much of a stack is looked at, at most, in bytes. Where a stack ends, its chain of frame records does; this is for chains that are
/// broken.
const MOST_STACK: usize = 1 << 20;

/// Memory is all that the walk needs: it begins at a call.
struct Memory;

impl Inspect for Memory {
    fn read(&self, addr: usize, bytes: &mut [u8]) -> Result<(), ReadFault> {
        Bound::read(addr, bytes)
    }
}

/// Records the function and its callers on this CPU, up to [`MAX_DATA`] in all. Any context, with preemption off.
pub(crate) fn mark_stack(entered: &Entered) {
    mark_stack_in(Top, entered);
}

pub(super) fn mark_stack_in(array: impl TraceArray, entered: &Entered) {
    let Some(ring) = array.here().filter(|ring| ring.is_on()) else { return };
    let mut addrs = [0; MAX_DATA];
    let (count, cut) = callers(entered, &mut addrs);
    let data = addrs.get(..count).unwrap_or(&[]);
    let mark = Mark { id: STACK_MARK, who: who(Bound::context()), time: now(), data, cut };
    // A refusal is counted.
    let _ = ring.record(&Record::Mark(mark));
}

/// How many addresses there are, and whether there were more.
fn callers(entered: &Entered, addrs: &mut [u64; MAX_DATA]) -> (usize, bool) {
    addrs[0] = entered.func.get() as u64;
    let key = entered.key.get();
    // The hooker's, if another function jumped here that is hooked.
    let parent =
        match entered.task.map(|task| ret_addr(&mut Cursor::new(task), entered.parent_ip, &(key..=key))) {
            None => entered.parent_ip,
            Some(Translated::AsFound(parent) | Translated::Hooked(parent)) => parent,
            Some(Translated::NotThere) => return (1, true),
        };
    let stack = entered.sp..entered.sp.saturating_add(MOST_STACK);
    let start = Start::Called { pc: parent.get(), fp: entered.fp };
    let walk = stack_walk(&Memory, entered.task, core::slice::from_ref(&stack), start);
    let mut count = 1;
    for frame in walk {
        if frame.kind != Kind::Certain {
            continue;
        }
        let Some(addr) = addrs.get_mut(count) else { return (count, true) };
        *addr = frame.pc as u64;
        count += 1;
    }
    (count, false)
}
