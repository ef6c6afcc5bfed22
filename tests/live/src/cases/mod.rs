//! The cases: each is named for the behaviour it holds, and starts in a process that can be traced but is not yet.

mod change;
mod depth;
mod entry;
mod foreign;
mod interrupts;
mod pairs;
mod registers;
mod straight;
mod text;
mod threads;

use crate::runner::Case;

/// Every case.
pub const CASES: &[Case] = &[
    ("one_call_is_one_entry_and_one_return", entry::one_call_is_one_entry_and_one_return),
    ("what_is_not_wanted_is_not_patched", entry::what_is_not_wanted_is_not_patched),
    ("text_is_as_before_when_nobody_is_left", entry::text_is_as_before_when_nobody_is_left),
    ("a_thread_without_a_block_is_not_traced", entry::a_thread_without_a_block_is_not_traced),
    ("a_thread_without_a_stack_reaches_ops_only", entry::a_thread_without_a_stack_reaches_ops_only),
    ("a_callback_that_calls_is_told_once_more", entry::a_callback_that_calls_is_told_once_more),
    ("a_tracer_that_traces_itself_is_stopped", entry::a_tracer_that_traces_itself_is_stopped),
    ("registers_come_through", registers::registers_come_through),
    ("the_regs_flavour_shows_every_register", registers::the_regs_flavour_shows_every_register),
    ("flavours_follow_the_users", registers::flavours_follow_the_users),
    (
        "arguments_and_results_of_every_kind_come_through",
        registers::arguments_and_results_of_every_kind_come_through,
    ),
    ("an_op_reads_arguments_on_the_stack", registers::an_op_reads_arguments_on_the_stack),
    ("callbacks_run_on_an_aligned_stack", registers::callbacks_run_on_an_aligned_stack),
    ("functions_of_a_c_compiler_are_traced", foreign::functions_of_a_c_compiler_are_traced),
    (
        "recursion_deeper_than_the_stack_costs_the_trace_only",
        depth::recursion_deeper_than_the_stack_costs_the_trace_only,
    ),
    ("data_stays_with_its_call", depth::data_stays_with_its_call),
    ("tail_calls_close_every_frame", depth::tail_calls_close_every_frame),
    (
        "a_loop_of_tail_calls_fills_the_stack_and_empties_it",
        depth::a_loop_of_tail_calls_fills_the_stack_and_empties_it,
    ),
    (
        "a_jump_over_calls_is_noticed_at_the_next_return",
        depth::a_jump_over_calls_is_noticed_at_the_next_return,
    ),
    (
        "jumps_to_where_nothing_is_traced_leave_the_calls_right",
        depth::jumps_to_where_nothing_is_traced_leave_the_calls_right,
    ),
    ("a_changed_result_reaches_the_caller", change::a_changed_result_reaches_the_caller),
    ("a_changed_argument_reaches_the_function", change::a_changed_argument_reaches_the_function),
    ("a_call_can_return_before_it_starts", change::a_call_can_return_before_it_starts),
    ("a_call_can_be_sent_to_another_function", change::a_call_can_be_sent_to_another_function),
    ("a_site_between_two_steps_does_what_it_will_do", text::a_site_between_two_steps_does_what_it_will_do),
    ("a_changed_site_is_refused_when_a_user_comes", text::a_changed_site_is_refused_when_a_user_comes),
    ("a_site_that_is_no_sled_is_refused_at_start", text::a_site_that_is_no_sled_is_refused_at_start),
    ("text_that_cannot_be_written_stops_tracing", text::text_that_cannot_be_written_stops_tracing),
    (
        "calls_that_are_under_way_return_after_tracing_has_stopped",
        text::calls_that_are_under_way_return_after_tracing_has_stopped,
    ),
    ("signals_on_the_same_stack_are_traced_on_top", interrupts::signals_on_the_same_stack_are_traced_on_top),
    (
        "signals_on_a_stack_of_their_own_are_traced_on_top",
        interrupts::signals_on_a_stack_of_their_own_are_traced_on_top,
    ),
    ("signals_are_recorded_by_the_tracer_alone", interrupts::signals_are_recorded_by_the_tracer_alone),
    (
        "an_interrupt_after_every_instruction_is_recorded_by_the_tracer_alone",
        interrupts::an_interrupt_after_every_instruction_is_recorded_by_the_tracer_alone,
    ),
    ("every_return_goes_where_its_call_said", pairs::every_return_goes_where_its_call_said),
    (
        "an_interrupt_after_every_instruction_disturbs_nothing",
        interrupts::an_interrupt_after_every_instruction_disturbs_nothing,
    ),
    ("everything_at_once_can_be_traced", interrupts::everything_at_once_can_be_traced),
    ("trampolines_record_what_rust_would", straight::trampolines_record_what_rust_would),
    (
        "a_switch_that_is_due_is_made_behind_the_record",
        straight::a_switch_that_is_due_is_made_behind_the_record,
    ),
    ("users_come_and_go_while_threads_call", threads::users_come_and_go_while_threads_call),
    (
        "users_come_and_go_while_threads_are_interrupted",
        threads::users_come_and_go_while_threads_are_interrupted,
    ),
];
