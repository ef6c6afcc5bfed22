//! Bugs that the function graph of Linux, its profiler and its probes once had, and what holds them off here: a test, or the reason
//! why they cannot be. Those of patching and of event text (18 to 30, 39 on) are
//! elsewhere. Modules without a root are of `graph`.
//!
//! | what went wrong there | here |
//! |---|---|
//! | 1. ran in real mode at resume | the block is null there: `cases::a_task_without_a_shadow_stack_is_left_alone` |
//! | 2. the return slot was a direct trampoline's | there are none; the address is taken at the first instruction |
//! | 3. starting reset a raised pause | [`starting_leaves_a_pause_alone`] |
//! | 4. unwinding took the wrong slot after tail calls | [`tail_calls_unwind_to_the_one_real_address`] |
//! | 5. another task's stack was walked | by type, the walk is the block's: [`a_walk_is_of_the_task_that_is_asked`] |
//! | 6. a slot was loaded twice | `interrupts::a_slot_that_changes_hands_at_any_step_mixes_no_users` |
//! | 7. an error path kept the lock | locks are guards: `fprobe::cases::a_refused_probe_leaves_nothing_behind` |
//! | 8. idle tasks had no stacks | the embedder gives every block its stack, idle tasks' too; none depends on who is registered |
//! | 9. a bit's number was used as its mask | marks are an enum: `limits::state::tests::marks_and_verdict_do_not_touch_each_other` |
//! | 10. a failed start left state raised | `fprobe::cases::a_refused_probe_leaves_nothing_behind`, `engine::failures` |
//! | 11. a return callback recursed without end | `cases::a_callback_that_calls_traced_functions_is_told_of_one_of_them` |
//! | 12. with a threshold a task stayed in notrace | one `finish`: `limits::cases::a_threshold_does_not_keep_a_task_in_notrace` |
//! | 13. with a threshold sleep was subtracted twice | `limits::cases::sleep_is_subtracted_once_with_a_threshold_too` |
//! | 14. the count of users without sleep time went below zero | nothing is counted: each user has its own switch |
//! | 15. a reader copied part of a record | not of the graph: the log and its reader |
//! | 16. arguments were printed from the wrong index | not of the graph: the text |
//! | 17. the tracer and the profiler together crashed | [`a_tracer_and_a_profiler_share_a_call`], and a boot case |
//! | 31. a pool of return probes had no members | there is no pool: `fprobe::cases::a_full_shadow_stack_is_a_miss` |
//! | 32. the last probe left a user that traced everything | `fprobe::cases::a_function_stays_until_its_last_probe_goes` |
//! | 33. a module went between look-up and registration | one lock: `fprobe::cases::a_probe_outlives_the_module_of_its_functions` |
//! | 34. a module's addresses stayed in the filter | the same test |
//! | 35. the table was walked without protection | `unregister` waits for callbacks: `fprobe::cases::a_call_outlives_its_probe` |
//! | 36. the table was used before it was made | `Fprobes::new` is `const` |
//! | 37. a probe of the other kind kept a function | `fprobe::cases::an_entry_only_probe_and_one_with_an_exit_share_a_function` |
//! | 38. a probe came between counting and running | `fprobe::cases::a_probe_may_come_at_any_step_of_an_entry` |
//!
//! Beside these: a user in the first slot is told of no return it did not want, which `model` checks; the slot's user is replaced
//! often under an outstanding frame: [`forty_users_of_a_slot_pass_by_a_call`]; three and more users of which some say no:
//! `data::users_that_say_no_cost_the_others_nothing`; the stack is full at exactly the limit: `shadow::capacity`; a walker at
//! every step: `shadow::interrupts`; a task that dies with frames: `cases::a_dead_task_is_stripped_of_its_frames`; one user too many:
//! `cases::every_user_finds_its_own_data`.

use core::cell::Cell;
use std::rc::Rc;
use std::vec::Vec;

use super::Want;
use super::world::{Block, HOOKER, World, on_both_machines, play, user};
use crate::filter::Filter;
use crate::profile::{PROFILE_WORDS, ProfileRow, Profiler};
use crate::testing::kernel::{self, Fake};
use crate::testing::{keep, keep_all};

const F: usize = 0x1000;
const G: usize = 0x2000;
const H: usize = 0x3000;
const RET: usize = 0x4_0000;

/// Users that want everything; how many entries and returns they were told of.
fn counting<R: Block>() -> Rc<Cell<(u32, u32)>> {
    let counts = Rc::new(Cell::new((0, 0)));
    let (at_entry, at_return) = (counts.clone(), counts.clone());
    play::<R>(
        move |_, _| {
            at_entry.set((at_entry.get().0 + 1, at_entry.get().1));
            Want::Return
        },
        move |_, _| at_return.set((at_return.get().0, at_return.get().1 + 1)),
    );
    counts
}

fn starting_leaves_a_pause_alone<R: Block>() {
    let counts = counting::<R>();
    let world = World::<R>::new(64);
    world.task.pause();
    let first = user(0, Filter::ALL);
    assert!(world.graph.publish(first));
    assert!(!world.call(F, RET).hooked());
    assert!(world.graph.retract(first).is_some());
    assert!(world.graph.publish(first));
    assert!(!world.call(F, RET).hooked(), "a second start");
    world.task.resume();
    world.task.resume();
    let call = world.call(F, RET);
    assert_eq!((call.hooked(), world.ret(call, 0).0), (true, RET), "one resume too many");
    world.task.pause();
    assert!(!world.call(F, RET).hooked(), "and a pause still is one");
    assert_eq!(counts.get(), (1, 1));
}

fn tail_calls_unwind_to_the_one_real_address<R: Block>() {
    counting::<R>();
    let world = World::<R>::new(64);
    assert!(world.graph.publish(user(0, Filter::ALL)));
    let mut call = world.call(F, RET);
    for func in [G, H, F] {
        call = world.tail_call(call, func);
    }
    let frames: Vec<_> = world.task.frames().filter(|frame| frame.key == call.key()).collect();
    let returns: Vec<_> = frames.iter().map(|frame| frame.ret_addr.get()).collect();
    // What the walker finds on the stack is the hooker; the first other address is where the call really returns to.
    assert_eq!(returns, [HOOKER, HOOKER, HOOKER, RET]);
    assert_eq!(world.ret(call, 0).0, RET);
}

fn a_walk_is_of_the_task_that_is_asked<R: Block>() {
    counting::<R>();
    let (one, other) = (World::<R>::new(64), World::<R>::new(64));
    assert!(one.graph.publish(user(0, Filter::ALL)) && other.graph.publish(user(1, Filter::ALL)));
    let (f, g) = (one.call(F, RET), other.call(G, RET + 16));
    let walk = |world: &World<R>| {
        world.task.frames().map(|frame| (frame.func.get(), frame.ret_addr.get())).collect::<Vec<_>>()
    };
    assert_eq!((walk(&one), walk(&other)), (vec![(F, RET)], vec![(G, RET + 16)]));
    assert_eq!((one.ret(f, 0).0, other.ret(g, 0).0), (RET, RET + 16));
}

fn a_tracer_and_a_profiler_share_a_call<R: Block>() {
    for profiler_first in [true, false] {
        kernel::boot(0, Vec::new(), Vec::new());
        let counts = counting::<R>();
        let world = World::<R>::new(200);
        let profiler: &'static Profiler<Fake, R> = keep(Profiler::new(Filter::ALL));
        profiler.lend(0, keep_all(vec![0; 8 * PROFILE_WORDS])).expect("memory");
        let tracer = user(0, Filter::ALL);
        let order = if profiler_first { [profiler.ops(), tracer] } else { [tracer, profiler.ops()] };
        assert!(order.into_iter().all(|ops| world.graph.publish(ops)));
        let outer = world.call(F, RET);
        let inner = world.call(G, RET);
        kernel::with(|kernel| kernel.clock_ns += 10);
        world.ret(inner, 0);
        assert!(world.graph.retract(tracer).is_some());
        kernel::with(|kernel| kernel.clock_ns += 5);
        world.ret(outer, 0);
        let mut rows = [ProfileRow::EMPTY; 8];
        let rows = profiler.rows(0, &mut rows).expect("rows");
        let rows: Vec<_> = rows.iter().map(|row| (row.func.get(), row.hits, row.time_ns)).collect();
        assert_eq!((rows, counts.get()), (vec![(F, 1, 15), (G, 1, 10)], (2, 1)));
    }
}

fn forty_users_of_a_slot_pass_by_a_call<R: Block>() {
    let counts = counting::<R>();
    let world = World::<R>::new(200);
    let first = user(0, Filter::ALL);
    assert!(world.graph.publish(first));
    let sleeping = world.call(F, RET);
    let mut last = first;
    for number in 1..40 {
        let slot = world.graph.retract(last);
        last = user(number, Filter::ALL);
        assert!(world.graph.publish(last));
        assert_eq!(slot, Some(0), "the same slot each time");
        let call = world.call(G, RET + 16);
        assert_eq!(world.ret(call, 0).0, RET + 16);
    }
    assert_eq!(counts.get(), (40, 39));
    assert_eq!(world.ret(sleeping, 0).0, RET);
    assert_eq!(counts.get(), (40, 39), "nobody is told of the first call's return");
}

on_both_machines! {
    starting_leaves_a_pause_alone
    tail_calls_unwind_to_the_one_real_address
    a_walk_is_of_the_task_that_is_asked
    a_tracer_and_a_profiler_share_a_call
    forty_users_of_a_slot_pass_by_a_call
}
