//! From the records of a page, which stand in the order of returns, to events in the order of time.
//!
//! A page is read from its end: then a call's return comes before what is inside of it, and its entry is due when something comes
//! that was not. What was entered here and returned in a later page is given as an *opening*.

use super::event::{Call, Event, What};

/// A record, in its place.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) task: u32,
    pub(super) time: u64,
    pub(super) what: What,
    /// If it is a call that was entered in this page.
    pub(super) opens_here: bool,
}

/// A call whose entry is in another page, or on another CPU, than its return; or that has not returned.
#[derive(Clone, Debug)]
pub(super) struct Opening {
    pub(super) task: u32,
    pub(super) call: Call,
}

/// An entry that is still to come (the page being read from its end).
struct Pending {
    task: u32,
    call: Call,
}

/// The events of one page of a CPU, in order.
pub(super) fn events(cpu: u32, items: Vec<Item>, openings: &[Opening]) -> Vec<Event> {
    let mut out: Vec<Event> = Vec::with_capacity(items.len() * 2);
    let mut pending: Vec<Pending> = Vec::new();
    let insert = |pending: &mut Vec<Pending>, new: Pending| {
        let key = (new.call.start, new.call.depth);
        let at = pending.partition_point(|other| (other.call.start, other.call.depth) <= key);
        pending.insert(at, new);
    };
    for opening in openings {
        insert(&mut pending, Pending { task: opening.task, call: opening.call.clone() });
    }
    let enter = |out: &mut Vec<Event>, entry: Pending| {
        let Pending { task, call } = entry;
        // Its return was the last that was given: nothing is in between.
        if let Some(last) = out.last_mut()
            && let What::Leave(left) = &last.what
            && last.task == task
            && (left.func, left.depth, left.start, left.end) == (call.func, call.depth, call.start, call.end)
        {
            last.time = call.start;
            last.what = What::Leaf(call);
            return;
        }
        out.push(Event { cpu, time: call.start, task, what: What::Enter(call) });
    };
    for item in items.into_iter().rev() {
        let comes_after = |entry: &Pending| match &item.what {
            // The depth says first who is around whom, because a clock may stand still.
            What::Leave(call) if entry.task == item.task => {
                entry.call.depth >= call.depth || entry.call.start > item.time
            }
            _ => entry.call.start >= item.time,
        };
        let mut at = pending.len();
        while at > 0 {
            at -= 1;
            if comes_after(&pending[at]) {
                enter(&mut out, pending.remove(at));
            }
        }
        let opened = match &item.what {
            What::Leave(call) if item.opens_here => Some(Pending { task: item.task, call: call.clone() }),
            _ => None,
        };
        out.push(Event { cpu, time: item.time, task: item.task, what: item.what });
        if let Some(opened) = opened {
            insert(&mut pending, opened);
        }
    }
    while let Some(entry) = pending.pop() {
        enter(&mut out, entry);
    }
    out.reverse();
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(task: u32, func: u32, depth: u32, start: u64, end: u64) -> Item {
        let what = What::Leave(Call::new(func, depth, start, Some(end)));
        Item { task, time: end, what, opens_here: true }
    }

    fn show(events: &[Event]) -> String {
        let show = |event: &Event| match &event.what {
            What::Enter(call) => format!("{}+{}", event.task, call.func),
            What::Leave(call) => format!("{}-{}", event.task, call.func),
            What::Leaf(call) => format!("{}={}", event.task, call.func),
            _ => format!("{}?", event.task),
        };
        events.iter().map(show).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn calls_stand_around_what_they_called() {
        let items =
            vec![call(1, 3, 2, 20, 30), call(1, 4, 2, 40, 50), call(1, 2, 1, 15, 60), call(1, 1, 0, 10, 90)];
        assert_eq!(show(&events(0, items, &[])), "1+1 1+2 1=3 1=4 1-2 1-1");
    }

    #[test]
    fn a_clock_that_stands_still_does_not_change_the_order() {
        let items = vec![
            call(1, 3, 2, 5, 5),
            call(1, 4, 2, 5, 5),
            call(1, 2, 1, 5, 5),
            call(1, 5, 1, 5, 5),
            call(1, 1, 0, 5, 5),
        ];
        assert_eq!(show(&events(0, items, &[])), "1+1 1+2 1=3 1=4 1-2 1=5 1-1");
    }

    #[test]
    fn tasks_take_turns_by_time() {
        let items =
            vec![call(1, 3, 1, 12, 14), call(2, 9, 1, 22, 24), call(2, 8, 0, 20, 26), call(1, 1, 0, 10, 40)];
        assert_eq!(show(&events(0, items, &[])), "1+1 1=3 2+8 2=9 2-8 1-1");
    }

    #[test]
    fn what_began_elsewhere_has_its_return_only_and_what_ends_elsewhere_its_entry() {
        let mut items = vec![call(1, 3, 1, 2, 14), call(1, 4, 1, 16, 18)];
        items[0].opens_here = false;
        let openings = [
            Opening { task: 1, call: Call::new(7, 1, 20, None) },
            Opening { task: 1, call: Call::new(8, 2, 21, None) },
        ];
        assert_eq!(show(&events(0, items, &openings)), "1-3 1=4 1+7 1+8");
        assert_eq!(show(&events(0, Vec::new(), &openings)), "1+7 1+8");
    }
}
