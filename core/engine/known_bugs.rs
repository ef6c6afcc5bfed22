//! Bugs that other tracers have had, and what keeps this one from them.
//!
//! The numbers count bugs of Linux's ftrace, by the subject of the change that mended them; those that begin with PT (patching),
//! FL (filters and names) and SM (several CPUs, interrupts, recursion) were reported against it and others, where the line
//! says. Each line says what went wrong, then names the tests that would see it here, or, behind "None", why it cannot come
//! up. `tests/known_bugs.rs` holds that the list is whole and that the tests exist.
//!
//! # Users and their sets
//! * 18: "Handle tracing when switching between context": events of an interrupt were dropped as recursion as long as the
//!   kernel did not count itself as interrupted. `each_context_enters_once_and_one_of_them_once_more`,
//!   `a_callback_that_is_traced_is_told_of_one_of_its_own_calls`
//! * 19: "Fix NULL pointer dereference in is_ftrace_trampoline when ftrace is dead": who failed to start stayed on the list.
//!   `a_user_whose_start_failed_is_not_left_behind`, `a_user_whose_text_failed_is_not_left_behind`
//! * 20: "Fix use-after-free for dynamic ftrace_ops": who left while no text had to change was not waited for.
//!   `who_leaves_is_waited_for_even_if_no_text_changes`, `a_callback_on_another_cpu_is_waited_for`,
//!   `a_graph_callback_on_another_cpu_is_waited_for`
//! * 21: "Fix null pointer dereference in ftrace_add_mod()": what was made half was used when the other half failed. Nothing is
//!   allocated here, but a user has two sets. `a_user_refused_for_its_second_set_leaves_no_first_one`
//! * 22: "Fix possible use-after-free issue in ftrace_location()": a module's records were freed under a search.
//!   `a_module_removed_during_a_lookup_is_not_used_after`, `a_module_that_comes_and_goes_is_seen_whole_or_not_at_all`
//! * 23: "Fix accounting of adding subops to a manager ops": "none yet" was taken for "everything".
//!   `a_second_user_added_to_none_does_not_become_everything`, `the_next_user_of_a_slot_inherits_no_set`
//! * 24: "Do not add duplicate entries in subops manager ops": a function of two users was there twice.
//!   `a_function_that_two_users_share_is_there_until_both_are_gone`
//! * 25: notrace sets of several graph users were cut with each other, their filters joined (fgraph-multi-filter).
//!   `notrace_sets_of_several_users_are_not_mixed`
//! * 26: "Correct preemption accounting for function tracing": the recorded depth counted the tracer's own. None: no
//!   preemption depth is recorded.
//! * 27: "Disable preemption in the tracepoint callbacks handling filtered pids": a CPU's own verdict was read while the task
//!   could move to another. There is no filter by task yet; what is per CPU is used with preemption off.
//!   `entries_reach_the_users_that_want_them_in_order_of_slots`
//! * 28: "Also allocate and copy hash for reading of filter files": a reader walked what a writer freed.
//!   `a_listing_sees_a_set_before_or_after_a_change`
//! * 29: "Add missing ftrace_lock to update_ftrace_direct_add/del": the list of users was walked without the lock.
//!   `users_that_come_and_go_on_two_cpus_leave_no_trace`
//! * 30: "Fix NULL pointer dereference in free_ftrace_func_mapper()" and "in t_probe_next()": commands on an empty set. None:
//!   commands on functions are read, but not carried out yet.
//!
//! # Machines
//! * 40: "arm64: ftrace: fix branch range checks": the far end was off by one. `branch_range_is_half_open`,
//!   `bl_reaches_exactly_128_mebibytes`, `calls_reach_exactly_two_gibibytes`
//! * 41: "arm64: ftrace: consistently handle PLTs": disabling expected another instruction than enabling had written.
//!   `disable_expects_what_enable_wrote`, `every_plan_is_one_aligned_word`,
//!   `every_plan_leads_from_each_state_to_each_other_by_the_int3_protocol`
//! * 42: "arm64: stacktrace: fix the usage of ftrace_graph_ret_addr()": return addresses of a stack walk were not translated.
//!   `a_stack_walker_finds_the_address_at_every_step_of_an_entry`,
//!   `a_stack_walker_finds_the_address_at_every_step_of_a_return`
//! * 43: "x86/ibt,ftrace: Make function-graph play nice": an indirect jump to the return address needs a landing pad there and
//!   spoils the predictions of the callers. `hooked_functions_return_by_a_return`
//! * 44: "x86/ftrace: Use alternative RET encoding": copied trampolines had a return that was not mitigated. None: no
//!   trampoline is copied or made at run time.
//! * 45: "x86/ibt,ftrace: Search for __fentry__ location": the symbol was taken for the site although a landing pad comes
//!   first. `a_function_behind_a_landing_pad_is_found_by_its_symbol`, `a_landing_pad_belongs_to_the_function`
//! * 46: "x86/livepatch: Validate __fentry__ location": the same where a function was named. `what_is_no_function_cannot_be_named`
//! * 47: "x86/ftrace: Remove return_to_handler() function designation": the trampoline is no function that a walker may take
//!   for one. None: its unwind rows are written where the stack changes, and it has no start that is called.
//! * 48: "Fix function type mismatches of ftrace_graph_return using ftrace_stub": one stub stood for several prototypes. None:
//!   a free slot is a null pointer that is never called.
//! * 49: "x86/ftrace: Fix use of flags in ftrace_replace_code()": flags were passed for a truth value. None: they are types of
//!   their own, and the compiler refuses it.
//!
//! # Patching
//! * PT-01: the single long NOP of LLVM was not taken for a sled, or another one put back.
//!   `nops_of_compilers_and_of_the_manual_are_known`, `a_single_nop_comes_back_to_the_byte_and_several_become_one`
//! * PT-02: uftrace 1613: nothing could be patched behind ENDBR64. `a_landing_pad_belongs_to_the_function`,
//!   `a_function_behind_a_landing_pad_is_found_by_its_symbol`
//! * PT-03: functions with and without a landing pad in one object. `every_layout_of_a_record_leads_to_its_function`,
//!   `a_function_that_is_only_called_directly_has_no_landing_pad`
//! * PT-04: GCC PR110729: records of dropped functions. `an_odd_table_is_sorted_out_and_counted`
//! * PT-06: records that are not in order were not found. `both_ends_of_an_unsorted_table_are_found`,
//!   `the_linked_sample_is_unsorted_and_found_at_both_ends`
//! * PT-07: DragonOS 2201: live text was overwritten in place.
//!   `every_plan_leads_from_each_state_to_each_other_by_the_int3_protocol`, `the_text_is_always_what_the_users_need`,
//!   `other_cpus_miss_no_call_while_text_changes`
//! * PT-08: Linux 8a4d0a687a59: the call in the shared trampoline was changed under running CPUs. Nothing in a trampoline is
//!   changed. `trampolines_switch_under_load`
//! * PT-10: Linux 8fe88a4145cd: a branch out of range was found out when it was written. `branch_range_is_half_open`,
//!   `a_trampoline_out_of_reach_is_refused_and_all_stays_as_it_was`, `a_module_out_of_reach_is_refused_and_leaves_nothing`
//! * PT-11: kpatch 385: registration succeeded although a site could not be patched.
//!   `a_surprise_at_any_site_writes_nothing_and_stops_for_good`, `a_failing_write_at_any_step_stops_for_good`
//! * PT-14: Linux 93eb677d74a4: sites were prepared when a module's code ran already; and what is gone is not forgotten.
//!   `everything_holds_for_modules_that_come_later`, `a_module_that_is_gone_leaves_no_site_and_no_member`,
//!   `a_module_that_is_refused_takes_no_place`, `a_module_leaves_no_set_behind`
//! * PT-17: uftrace 1630: the static chain was lost at an entry. `registers_come_through_args`, `registers_come_through_regs`
//! * PT-19: rust 92109: without one site, tracing ran and saw nothing. `tables_without_a_site_are_refused`,
//!   `an_image_without_sites_is_told_which_flag_and_fragment`
//! * PT-20: rust 105170: the tracer's own functions were instrumented. `each_defect_of_the_sites_is_found`,
//!   `a_notrace_range_must_be_part_of_the_text`
//! * PT-21: linuxppc 391: anything could be patched, not only text. `an_odd_table_is_sorted_out_and_counted`,
//!   `a_site_that_is_there_already_is_refused`, `a_site_that_shares_bytes_with_one_of_another_table_is_refused`
//! * PT-22: Linux bce0b6c51ac7: counts went wrong when users shared a set, or came at once.
//!   `whatever_is_asked_the_text_and_the_calls_are_as_the_model_says`,
//!   `a_function_that_two_users_share_is_there_until_both_are_gone`, `users_that_come_and_go_on_two_cpus_leave_no_trace`
//! * PT-23: Linux 9440155ccb: records that name padding, not a sled. `records_that_name_padding_are_refused`
//!
//! # Filters and names
//! * FL-01: tracee 3653: a name that several functions have. `names_that_several_functions_have_are_refused_and_told_apart`
//! * FL-03: bpftrace 5035: the module of a name was dropped. `words_take_the_functions_they_name`,
//!   `what_is_not_there_is_an_error_at_its_column`
//! * FL-04: bcc 5007: names with a suffix of the optimiser. `the_better_rank_wins`, `only_the_promotion_suffix_is_hidden`,
//!   `a_function_that_has_only_variants_is_refused_and_they_are_listed`
//! * FL-05: Linux ca26554a14: the last of two users left a set that was empty and so meant everything.
//!   `an_emptied_filter_never_means_everything`, `a_function_that_two_users_share_is_there_until_both_are_gone`,
//!   `whatever_is_asked_the_text_and_the_calls_are_as_the_model_says`
//! * FL-06: fgraph-multi-filter: see 25. `notrace_sets_of_several_users_are_not_mixed`
//! * FL-07: dialects of globs. `globs_select_what_linux_selected`, `random_globs_match_as_the_model_does`
//! * FL-10: pwru 98: one function that cannot be traced among many. `a_refused_change_leaves_everything_as_it_was`,
//!   `what_is_not_there_is_an_error_at_its_column`
//! * FL-12: cilium/ebpf 600: a dot in a symbol's name. `words_take_the_functions_they_name`
//! * FL-13: uftrace 1626: mangled names. `cut_and_bent_names_never_panic`, `paths_match_as_people_write_them`,
//!   `names_that_cannot_be_demangled_match_raw_only`
//! * FL-15: crash 149: absolute symbols took part in a lookup. `only_functions_in_executable_sections_are_embedded`
//! * FL-17: ipftrace2 12: callbacks were told the site, which no symbol has.
//!   `a_function_behind_a_landing_pad_is_found_by_its_symbol`
//! * FL-19: uftrace 1975: a pattern that was not understood traced everything. `errors_point_at_the_column`,
//!   `a_wrong_word_does_not_hide_the_next`, `what_is_not_there_is_an_error_at_its_column`
//!
//! # Several CPUs, interrupts, recursion
//! * SM-01: bpftrace 3206: callbacks met themselves in locks that were traced.
//!   `a_callback_that_is_traced_is_told_of_one_of_its_own_calls`, `a_callback_that_calls_traced_code_ends`
//! * SM-02: bpftrace 3204: tracing everything hung the machine. `everything_is_traced_at_once`,
//!   `everything_at_once_can_be_traced`, `a_notrace_range_must_be_part_of_the_text`
//! * SM-04: Linux 868baf07b1a2: an idle task was given a second stack. Here whoever gives one is told.
//!   `memory_is_taken_and_given_back_as_it_was`
//! * SM-06: raspberrypi 1567: code ran into the tracer before its CPU was set up. `a_task_without_a_block_is_not_traced`,
//!   `an_unknown_cpu_is_refused`
//! * SM-08: DragonOS 2278: a site was patched before its user could be found, and who left was not waited for.
//!   `who_comes_through_a_patched_site_finds_its_user`, `at_every_step_of_a_change_who_stays_misses_and_doubles_no_call`,
//!   `a_change_on_another_cpu_misses_and_doubles_no_call`, `a_callback_on_another_cpu_is_waited_for`,
//!   `a_user_that_left_is_told_of_no_return_and_neither_is_who_took_its_slot`
//! * SM-09: tgoskits 847: one stack of returns for several tasks. `preempted_calls_stay_with_their_tasks`

pub(super) mod cpu;

mod cpus;
mod interrupts;
mod modules;
mod sites;
mod users;
