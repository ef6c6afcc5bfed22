//! The boot tests: what only a machine can show. Each case is named for the behaviour it holds, prints one line, and
//! leaves no user registered, so that any of them can run alone: `case=NAME`.

mod change;
mod depth;
mod direct;
mod entry;
pub mod guard;
mod instances;
mod load;
mod modules;
mod probe;
mod probes;
mod registers;
mod rings;
mod selftest;
mod shapes;
mod storm;
mod straight;
mod tasks;
mod text;
mod toggle;
mod unwind;
mod words;

use alloc::string::String;
use core::sync::atomic::AtomicBool;

use crate::{
    console::println,
    machine::Exit,
    tracing::{self, Named},
    types,
};

/// Whether cases take their time: the word `long` on the command line.
pub static LONG: AtomicBool = AtomicBool::new(false);

/// How a case ended that did not pass.
pub enum Outcome {
    /// What was not as it should be.
    Failed(String),
    /// Why this machine cannot run the case.
    Skipped(&'static str),
}

impl From<String> for Outcome {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

impl From<fgraph::Error> for Outcome {
    fn from(error: fgraph::Error) -> Self {
        match error.site() {
            Some(site) => Self::Failed(alloc::format!("{error} (in {})", Named(site.get()))),
            None => Self::Failed(alloc::format!("{error}")),
        }
    }
}

/// What a case gives back.
pub type CaseResult = Result<(), Outcome>;

/// Fails the case with a message unless the condition holds.
macro_rules! check {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::cases::Outcome::Failed(alloc::format!($($message)+)));
        }
    };
}

/// Fails the case unless both sides are equal.
macro_rules! check_eq {
    ($left:expr, $right:expr, $what:expr) => {
        match (&$left, &$right) {
            (left, right) => {
                $crate::cases::check!(left == right, "{}: {left:x?} instead of {right:x?}", $what)
            }
        }
    };
}

use {check, check_eq};

type Case = (&'static str, fn() -> CaseResult);

/// Every case, in the order of `test`. The last one ends all tracing.
const CASES: &[Case] = &[
    ("one_call_is_one_entry_and_one_return", entry::one_call_is_one_entry_and_one_return),
    ("an_op_sees_ip_parent_and_arguments", entry::an_op_sees_ip_parent_and_arguments),
    ("both_ends_of_every_call_are_seen_in_order", entry::both_ends_of_every_call_are_seen_in_order),
    ("what_is_not_wanted_is_not_patched", entry::what_is_not_wanted_is_not_patched),
    ("interrupt_handlers_are_traced_as_interrupts", entry::interrupt_handlers_are_traced_as_interrupts),
    ("registers_come_through_args", registers::registers_come_through_args),
    ("registers_come_through_regs", registers::registers_come_through_regs),
    ("registers_come_through_args_and_return", registers::registers_come_through_args_and_return),
    ("registers_come_through_regs_and_return", registers::registers_come_through_regs_and_return),
    ("the_regs_flavour_shows_every_register", registers::the_regs_flavour_shows_every_register),
    (
        "stack_arguments_and_wide_results_come_through",
        registers::stack_arguments_and_wide_results_come_through,
    ),
    ("vector_registers_come_through", registers::vector_registers_come_through),
    ("registers_come_through_the_tracer", registers::registers_come_through_the_tracer),
    ("the_tracer_records_every_call", straight::the_tracer_records_every_call),
    ("trampolines_record_what_rust_would", straight::trampolines_record_what_rust_would),
    ("the_tracer_records_arguments", straight::the_tracer_records_arguments),
    (
        "a_threshold_counts_for_calls_that_change_paths",
        straight::a_threshold_counts_for_calls_that_change_paths,
    ),
    ("the_tracer_leaves_out_short_calls", straight::the_tracer_leaves_out_short_calls),
    ("the_tracer_records_tail_calls", straight::the_tracer_records_tail_calls),
    ("the_tracer_drops_what_a_jump_left", straight::the_tracer_drops_what_a_jump_left),
    ("recursion_beyond_the_shadow_stack_is_counted", depth::recursion_beyond_the_shadow_stack_is_counted),
    ("tail_calls_close_both_frames", depth::tail_calls_close_both_frames),
    ("a_long_jump_leaves_its_frames_behind", depth::a_long_jump_leaves_its_frames_behind),
    ("a_callback_that_calls_traced_code_ends", depth::a_callback_that_calls_traced_code_ends),
    ("a_changed_return_value_takes_effect", change::a_changed_return_value_takes_effect),
    ("a_changed_argument_takes_effect", change::a_changed_argument_takes_effect),
    ("an_early_return_skips_the_function", change::an_early_return_skips_the_function),
    ("an_early_return_is_still_a_return", change::an_early_return_is_still_a_return),
    ("a_changed_ip_runs_another_function", change::a_changed_ip_runs_another_function),
    ("a_direct_trampoline_replaces_a_function", direct::a_direct_trampoline_replaces_a_function),
    ("a_direct_trampoline_may_come_back", direct::a_direct_trampoline_may_come_back),
    ("preempted_calls_stay_with_their_tasks", tasks::preempted_calls_stay_with_their_tasks),
    (
        "a_switch_asked_for_in_a_callback_comes_behind_it",
        tasks::a_switch_asked_for_in_a_callback_comes_behind_it,
    ),
    ("a_function_that_never_returns_harms_nobody", tasks::a_function_that_never_returns_harms_nobody),
    ("a_task_may_die_with_frames_pending", tasks::a_task_may_die_with_frames_pending),
    ("a_task_without_a_stack_runs_unhooked", tasks::a_task_without_a_stack_runs_unhooked),
    ("a_paused_task_runs_unhooked", tasks::a_paused_task_runs_unhooked),
    ("an_nmi_may_come_anywhere", tasks::an_nmi_may_come_anywhere),
    ("sixteen_users_keep_their_data_apart", probes::sixteen_users_keep_their_data_apart),
    ("a_slot_changes_hands_while_calls_sleep", probes::a_slot_changes_hands_while_calls_sleep),
    ("calls_that_a_jump_left_are_told", probes::calls_that_a_jump_left_are_told),
    ("a_probe_sees_both_ends_of_a_call", probes::a_probe_sees_both_ends_of_a_call),
    ("a_probe_takes_functions_by_words", probes::a_probe_takes_functions_by_words),
    ("the_profiler_counts_every_call", probes::the_profiler_counts_every_call),
    ("sleep_is_left_out_of_a_profile", probes::sleep_is_left_out_of_a_profile),
    ("tracing_toggles_under_load", toggle::tracing_toggles_under_load),
    ("trampolines_switch_under_load", toggle::trampolines_switch_under_load),
    ("the_tracer_misses_no_call_while_others_come", toggle::the_tracer_misses_no_call_while_others_come),
    ("the_tracer_comes_and_goes_under_load", toggle::the_tracer_comes_and_goes_under_load),
    ("everything_is_traced_at_once", toggle::everything_is_traced_at_once),
    ("unwind", unwind::every_walk_shows_who_called_whom),
    ("every_walk_is_right_under_the_tracer", unwind::every_walk_is_right_under_the_tracer),
    ("a_module_is_traced_while_it_is_loaded", modules::a_module_is_traced_while_it_is_loaded),
    ("a_module_leaves_no_set_behind", modules::a_module_leaves_no_set_behind),
    ("modules_come_and_go_under_load", modules::modules_come_and_go_under_load),
    ("a_module_with_wrong_bytes_is_refused", modules::a_module_with_wrong_bytes_is_refused),
    ("other_cpus_miss_no_call_while_text_changes", storm::other_cpus_miss_no_call_while_text_changes),
    ("nmis_come_while_text_changes", storm::nmis_come_while_text_changes),
    ("ring_buffers_lose_nothing_uncounted", rings::ring_buffers_lose_nothing_uncounted),
    ("a_branch_to_no_landing_pad_faults", guard::a_branch_to_no_landing_pad_faults),
    ("signed_returns_are_checked_with_the_tasks_key", guard::signed_returns_are_checked_with_the_tasks_key),
    ("words_choose_functions_by_their_names", words::words_choose_functions_by_their_names),
    ("a_file_tells_equal_names_apart", words::a_file_tells_equal_names_apart),
    ("ambiguous_words_are_refused_with_candidates", words::ambiguous_words_are_refused_with_candidates),
    ("what_is_read_of_a_set_makes_the_same_set", words::what_is_read_of_a_set_makes_the_same_set),
    ("values_of_rust_are_shown_by_type", shapes::values_of_rust_are_shown_by_type),
    ("values_of_c_are_shown_by_type", shapes::values_of_c_are_shown_by_type),
    ("text_comes_back_to_the_byte", text::text_comes_back_to_the_byte),
    ("refusals_leave_everything_as_it_was", text::refusals_leave_everything_as_it_was),
    // The users that keep the files' sets have their places from here on.
    ("instances_record_their_own_functions_alone", instances::instances_record_their_own_functions_alone),
    ("instances_come_and_go_under_load", instances::instances_come_and_go_under_load),
    ("changed_text_is_refused_by_name", text::changed_text_is_refused_by_name),
];

/// Runs the cases whose name is `only`, or all of them.
pub fn run(only: Option<&str>) -> Exit {
    match tracing::started() {
        Ok(report) => println!("fgraph: {} sites, {} kept out", report.sites, report.notrace),
        Err(error) => {
            let named = error.site().map(|site| alloc::format!(" (in {})", Named(site.get())));
            println!("FAIL start: {error}{}\n0 passed, 1 failed", named.unwrap_or_default());
            return Exit::Failed;
        }
    }
    guard::show();
    // Without types the cases that need some are skipped.
    let _ = types::tell_tracer();
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    let mut result = |name: &str, result: CaseResult| match result {
        Ok(()) => {
            passed += 1;
            println!("ok {name}");
        }
        Err(Outcome::Failed(why)) => {
            failed += 1;
            println!("FAIL {name}: {why}");
        }
        Err(Outcome::Skipped(why)) => {
            skipped += 1;
            println!("skip {name}: {why}");
        }
    };
    // First, as at any boot.
    if selftest::are_wanted(only) {
        selftest::run(&mut result);
    }
    for (name, case) in CASES.iter().filter(|(name, _)| only.is_none_or(|only| only == *name)) {
        result(name, case());
    }
    if passed + failed + skipped == 0 {
        println!("FAIL: there is no case {}", only.unwrap_or_default());
        failed = 1;
    }
    if skipped > 0 {
        println!("{passed} passed, {failed} failed, {skipped} skipped");
    } else {
        println!("{passed} passed, {failed} failed");
    }
    if failed == 0 { Exit::Success } else { Exit::Failed }
}
