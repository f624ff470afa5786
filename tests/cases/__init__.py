"""The cases of ``cases.md``, group by group, and the weak spots of chronos-go.

A case that the other tests already try is not tried again here. Where each case of the groups A to J
and M to Q is held (``b`` tests/broker, ``d`` tests/daemon, ``u`` tests/unit, ``c`` here):

A. Fetch, acknowledgement, pending list
    1    c test_group_a; d test_worker_drain: a_slow_handler_is_never_followed_by_a_hoard
    3    c test_group_a;
         d test_worker_garbage: an_entry_deleted_while_its_task_runs_is_a_lost_lease_and_no_more
    4    c test_group_a (one protocol is spoken, by readers of our own, with the compiled parser)
    6    c test_group_a; d test_worker_garbage: a_payload_of_64_megabytes_...; d test_worker_faults
    7    c test_group_a; d test_worker_faults: a_hung_server_delays_no_timeout_and_ends_no_task
    9    c test_group_a; b test_client: a_full_server_refuses_and_an_operator_has_to_act
    10   c test_group_a; u test_supervisor_incarnation: consumer_names_are_unique_...

B. Recovery and duplicates
    12   c test_group_b; d test_two_daemons: a_daemon_that_vanished_with_all_it_knew_is_succeeded_by_the_other
    13   d test_blocked_loops: whatever_blocks_the_loop_for_four_leases_costs_nobody_a_second_run
    15   c test_group_b
    16   b test_supervisor_rounds: another_hosts_dead_are_recovered_behind_many_live_entries;
         b test_settle: the_cursor_is_carried_so_that_orphans_behind_live_entries_are_found
    18   c test_group_b; b test_sweep: renewal_keeps_leases_and_counts_no_delivery
    19   b test_sweep: a_dead_consumer_is_deleted_only_when_nothing_is_pending_for_it;
         b test_supervisor_rounds: an_estate_is_settled_again_and_again_and_the_consumer_deleted_at_the_last;
         d test_frozen: a_worker_frozen_alone_keeps_its_leases
    21   d test_killed_workers: twenty_thousand_tasks_survive_a_worker_killed_every_300_ms
    22   c test_group_b; b test_settle: a_stale_snapshot_moves_nothing
    24   d test_supervisor_recovery: a_killed_workers_task_runs_again_at_once_and_is_charged;
         tests/bench/recovery.py measures it
    25   c test_group_b; d test_finished; d test_chaos
    27   b test_runner_sync, test_runner_async: only_what_may_be_repeated_is_sent_again_over_a_new_connection;
         b test_enqueue: a_resend_of_the_same_call_stores_nothing_twice;
         d test_worker_faults: lost_replies_under_load_neither_lose_strand_nor_repeat_a_task

C. Forwarder, delayed tasks
    28   c test_group_c
    30   d test_delayed: a_hundred_thousand_tasks_due_at_once_drain_and_sigterm_is_heard_meanwhile (scaled);
         b test_sweep: no_more_than_the_limit_is_moved_and_more_is_due_now
    31   d test_refusing_redis: a_command_forbidden_for_a_while_is_missed_once_in_the_log_and_all_goes_on_...;
         b test_schedule: a_failing_server_costs_no_trigger;
         u test_supervisor_steps: a_fault_in_the_work_backs_the_step_off_and_does_not_count_as_progress
    33   c test_group_c; b test_sweep: a_message_goes_through_the_set_byte_for_byte;
         u test_payload: args_survive_the_wire_and_read_alike_by_any_json_reader
    34   c test_group_c
    36   u test_submission: at_is_the_same_instant_whatever_its_zone_and_the_process_s,
         a_past_instant_means_now, a_wrong_option_is_refused_with_its_name_and_what_is_expected
         ([choice] a datetime without a zone is refused)
    37   d test_two_daemons: two_daemons_share_ready_and_due_tasks_and_run_none_twice

D. Schedules, cron, clocks
    39   d test_schedules: with_leaders_killed_and_a_clock_that_is_wrong_every_second_fires_once;
         b test_schedule: two_leaders_that_both_believe_it_fire_each_trigger_once
    40   b test_schedule: a_clock_that_wakes_it_early_or_jumps_makes_no_trigger_fire_twice_or_skips_one
    42   b test_schedule: two_leaders_that_both_believe_it_fire_each_trigger_once,
         the_lease_is_its_owner_s_until_it_ends_and_only_lengthened_by_it,
         letting_go_gives_back_what_is_its_own_and_forgets_what_nobody_else_has
    43   c test_group_d ([choice] nothing keeps two times of a schedule from overlapping)
    45   d test_schedules: reloads_change_rename_and_remove_schedules_and_none_of_that_fires;
         b test_schedule: restarting_it_adds_no_copy_and_fires_nothing_by_itself,
         an_edit_makes_it_another_schedule_and_the_one_before_fires_no_more
    46   u test_misfire; b test_schedule: after_a_long_downtime_at_most_one_of_the_missed_times_fires
         ([choice] skip or run once, by misfire; up to 10 s late it fires anyway)
    48   u test_cron: a_time_that_daylight_saving_skips_does_not_come_that_day_and_the_next_day_is_normal
    49   u test_cron: the_times_of_a_year_are_those_that_a_minute_by_minute_look_at_the_clock_finds
    51   u test_cron: day_of_month_and_day_of_week_are_joined_by_or_where_both_are_restricted
         (7 for Sunday is refused, as in Go, with 0 and SUN in the message)
    52   u test_cron: two_ways_of_writing_the_same_times, what_is_no_spec_is_refused_in_one_sentence_...,
         minute_star_with_an_hour_fires_sixty_times; d test_schedules: the_schedules_of_a_daemon_are_listed
    54   c test_group_d
    55   c test_group_d

E. Retry, backoff, dead letter
    57   d test_poison
    58   c test_group_e; d test_stop: what_still_runs_at_shutdown_timeout_is_handed_back_uncharged;
         d test_reload_code: running_tasks_finish_with_the_old_code_and_none_is_cut
    60   c test_group_e; u test_outcome: a_delay_out_of_range_is_clamped, a_delay_that_is_no_duration_...;
         u test_retry
    61   u test_outcome: every_exception_becomes_a_bounded_text_that_utf8_can_hold;
         d test_worker_exceptions: whatever_a_handler_raises_fails_its_task_with_a_safe_text
    63   d test_worker_garbage: an_unknown_kind_is_put_off_and_runs_once_somebody_knows_it,
         an_unknown_kind_is_archived_after_a_day_uncharged
    64   c test_group_e; b test_supervisor_rounds: the_janitor_deletes_until_the_limits_are_met;
         b test_settle: a_task_whose_retries_are_spent_is_archived_with_the_cause_or_discarded;
         b test_operate: e64_one_that_had_ended_begins_anew_under_its_id, all_dead_letters_of_a_queue_run_...

F. Unique tasks
    66   c test_group_f; b test_unique: every_end_lets_go_of_the_lock_in_its_own_script
    67   c test_group_f; b test_operate: f67_a_deleted_task_leaves_nothing_and_its_twin_is_accepted_at_once
    69   c test_group_f ([choice] one mode, "until it has ended"; `RetryIn` runs the same task again)
    70   c test_group_f; b test_ends: the_unique_lock_goes_with_the_task_if_it_is_its_own;
         b test_unique: the_lock_of_a_task_that_runs_is_taken_again_unless_a_twin_has_it
    72   c test_group_f ([choice] the table in README.md)
    73   c test_group_f; b test_unique: the_key_is_go_s_byte_for_byte; u test_payload

G. Workflows (chains, groups)
    75   c test_group_g; b test_workflow: a_second_call_changes_nothing, a_successor_that_is_there_is_left_...
    76   c test_group_g; b test_workflow: a_member_that_runs_twice_counts_once;
         d test_workflows: every_chain_ends_once_though_workers_are_killed_all_the_time
    78   c test_group_g; b test_group_ends
    79   c test_group_g;
         b test_new_groups: of_a_group_whose_producer_died_halfway_nothing_runs_and_nothing_stays

H. Supervisor, forks, signals, reload
    81   d test_supervisor_process: all_workers_killed_at_once_all_come_back_and_no_zombie_is_left;
         d test_reload_signals: kills_resizes_and_reloads_together_leave_the_right_number_and_no_zombie
    82   d test_supervisor_process: a_signal_right_after_the_fork_meets_no_handler_of_the_parent,
         a_stop_while_a_child_has_not_begun_ends_at_once
    84   d test_reload_signals: a_hup_at_any_moment_after_it_is_caught_neither_kills_nor_is_lost,
         signals_before_the_start_is_over_are_obeyed_when_it_is
    85   d test_reload_code: a_changed_module_that_the_handlers_import_is_new_as_well
    87   c test_group_h; d test_reload_broken: broken_files_change_nothing_under_load,
         term_during_a_reload_is_obeyed_at_once
    88   d test_scale_workers: from_one_to_five_to_two_to_five_every_200_ms_with_tasks_of_3_s
    90   d test_supervisor_process: a_worker_that_dies_right_after_it_was_ready_is_backed_off,
         a_worker_that_cannot_load_at_first_start_ends_the_daemon
    91   d test_supervisor_process: the_workers_die_with_their_supervisor; d test_killed_daemon
    93   c test_group_h; d test_supervisor_process: orphans_are_reaped_and_their_exit_code_means_nothing
    94   d test_supervisor_process: a_launcher_that_ignores_sigchld_hides_no_death
    96   d test_supervisor_process: a_child_has_no_descriptor_but_its_own_and_the_lock,
         the_connection_to_redis_survives_the_exit_of_a_child_that_inherited_it
    97   c test_group_h; d test_supervisor_process:
         a_worker_that_hangs_while_it_loads_is_killed_when_its_time_is_up
    99   d test_supervisor_process: what_a_killed_worker_had_started_dies_with_it;
         d test_scale_workers: a_worker_that_loads_when_it_is_one_too_many_is_ended_at_once
    100  d test_overruns; d test_supervisor_process: a_worker_whose_loop_stands_still_is_killed
    102  c test_group_h; u test_log
    103  d test_reload_signals: twenty_hups_to_supervisor_and_worker_and_the_log_goes_on
         (logs go to stderr: there is no file of ours to be rotated)

I. systemd
    105  d test_reload_broken, test_reload_signals: a_hup_during_a_reload_is_remembered_and_the_pairs_...;
         d test_reload_broken: term_during_a_reload_is_obeyed_at_once;
         d test_systemd_reload: a_bare_hangup_is_a_reload_too_and_closed_whatever_comes_of_it
    106  d test_systemd_life: start_returns_when_every_worker_can_work_and_stop_drains,
         a_start_that_has_to_wait_waits_and_says_for_what, handlers_that_cannot_be_loaded_just_now_...
         ([choice] READY follows the last worker's; a Redis that is down at the start is waited for, with
         the reason in STATUS, and after startup_timeout the daemon exits 3 and is started again)
    108  d test_systemd_life: a_frozen_supervisor_..., a_mute_redis_is_no_reason_for_the_watchdog_...;
         d test_supervisor_process: the_watchdog_is_fed_also_while_redis_says_nothing;
         u test_supervisor_report; u test_supervisor_notify: the_watchdog_is_ours_only_if_it_names_us
    109  d test_systemd_unit: a_handler_can_do_its_work_and_nothing_else_and_cannot_speak_for_the_service;
         u test_supervisor_notify ([choice] sockets other than path and abstract are named in a warning)
    111  d test_systemd_life: a_mute_redis_is_no_reason_for_the_watchdog_or_a_restart,
         a_mistake_in_the_file_fails_the_start_with_78_and_no_second_try

J. Configuration
    112  u test_config_values: a_duplicate_key_is_told_with_both_lines_at_any_depth,
         merge_keys_merge_and_own_keys_win
    114  u test_config_files; u test_config_syntax
    115  d test_reload_settings: a_half_written_file_that_is_valid_is_told_loudly,
         a_file_that_is_swapped_under_a_symbolic_link_is_read_anew;
         u test_config_files: relative_paths_keep_to_the_directory_of_the_link_and_not_of_its_target
    117  d test_reload_settings: a_removed_queue_keeps_what_it_has_and_resumes_when_it_is_put_back
         (a schedule: d test_schedules: reloads_change_rename_and_remove_schedules_and_none_of_that_fires)
    118  u test_handlers; u test_cli_check: the_verdict_is_the_same_from_every_directory

M. Memory, leaks
    138  c test_group_m; c test_weak_spots: weak_22_twenty_restarts_leave_no_consumer;
         d test_supervisor_recovery: a_dead_workers_consumer_is_deleted_once_nothing_is_pending
    139  c test_group_m; d test_worker_runs: every_way_to_end_acknowledges_its_entry
    141  c test_group_m; b test_supervisor_rounds: the_janitor_deletes_until_the_limits_are_met
    142  c test_group_m
    144  d test_recycle_workers: four_that_leak_to_the_limit_together_are_recycled_one_by_one;
         d test_scale_workers: a_worker_is_a_better_victim_of_the_oom_killer_than_its_supervisor

N. Command line, inspection
    145  c test_group_n (a million by CHRONOSD_TEST_MANY=1000000)
    147  c test_group_n; b test_inspect: what_cannot_be_decoded_is_shown_as_such_among_its_neighbours
    148  c test_group_n;
         b test_consumers: consumers_are_shown_with_what_they_have_and_how_long_they_are_silent;
         b test_examination: what_the_dead_hold_is_told_before_it_counts_as_stuck
    150  c test_group_n; d test_doctor: a_daemon_whose_worker_was_stopped_is_no_sound_one,
         the_five_troubles_of_the_night_are_named_with_what_to_do;
         b test_examination: a_user_who_may_only_ping_is_told_what_is_missing

O. Client and enqueueing, as far as it is about queues
    154  c test_group_o; d test_weights: weights_hold_within_a_tenth_while_every_queue_has_work,
         strict_priority_drains_the_heavier_queue_first; u test_pick

P. Sync handlers and blocking the loop
    156  d test_overruns
    157  c test_group_p; d test_worker_exceptions: the_timeout_counts_from_the_start_of_the_handler,
         as_many_sync_handlers_run_at_once_as_concurrency_says
    159  c test_group_p; d test_overruns;
         d test_worker_exceptions: a_timeout_that_the_handler_turns_into_something_else_is_still_a_timeout
    160  d test_overruns: a_stuck_thread_takes_no_capacity_for_good

Q. Shutdown
    162  d test_stop: after_sigterm_nothing_starts_what_runs_finishes_and_the_rest_goes_back
    163  d test_stop: tasks_in_full_flow_stop_anywhere_and_none_is_lost_or_late
    165  d test_killed_daemon: a_kill_during_the_hand_back_neither_loses_nor_multiplies_tasks
    166  c test_group_q;
         d test_supervisor_process: a_drain_ends_with_a_kill_of_the_worker_that_does_not_heed_it,
         a_second_int_ends_a_drain_now, a_stopped_worker_is_continued_so_that_it_can_drain,
         orphans_are_reaped_and_their_exit_code_means_nothing
         ([choice] a second TERM does not shorten a drain, for `timeout` and init programs send two; a second
         INT does)
    168  c test_group_q; d test_supervisor_recovery: a_stop_that_redis_missed_is_made_good_at_the_next_start

Weak spots of chronos-go, by their numbers
    1    d test_stop: tasks_in_full_flow_stop_anywhere_and_none_is_lost_or_late
    2    c test_group_e: e58_a_reload_or_a_restart_that_gives_it_time_does_not_even_interrupt_it
    3    c test_weak_tasks; b test_enqueue: an_id_in_use_is_refused_and_nothing_is_changed,
         an_id_that_has_ended_is_replaced_with_nothing_left_of_the_old_task;
         b test_go_interop: an_id_enqueued_anew_while_it_runs_here_survives_the_end_of_the_old_run
    4    b test_schedule: what_cannot_be_read_is_not_taken_for_never_fired, a_failing_server_costs_no_trigger
    5    c test_group_g (and 78, 79); b test_group_ends:
         the_trimming_of_a_member_ends_its_group_with_a_dead_letter
    6    u test_misfire: what_came_while_it_was_watched_and_is_noticed_late_fires_each_in_order
    7    c test_weak_spots
    8    d test_frozen: a_host_that_wakes_up_late_...; d test_worker_leases: a_late_end_of_a_stale_owner_...
    9    c test_group_b (22); b test_settle: a_stale_snapshot_moves_nothing
    10   c test_group_g (75); d test_workflows
    11   b test_sweep: the_lock_of_a_running_task_is_lengthened_for_its_owner_and_never_shortened;
         b test_unique: w11_in_retry_for_longer_than_its_ttl_it_still_refuses_a_twin
    12   c test_weak_spots; b test_fetch: an_id_that_is_in_the_stream_twice_runs_once_at_a_time
    13   b test_schedule: a_crash_after_firing_fires_nothing_again_however_long_it_is_away,
         the_mark_grows_and_never_shrinks
    14   u test_cron: a_spec_that_go_refuses_or_that_never_comes_there_is_refused
    15   d test_worker_garbage: messages_that_cannot_be_read_are_archived_as_they_are_with_the_reason;
         b test_settle: an_undecodable_message_is_archived_as_it_is_with_the_reason
    16   as case 16
    17   d test_redis_restarts: after_flushall_the_groups_are_back_within_two_seconds_and_nothing_spins
    18   b test_sweep: ids_without_a_message_leave_the_set_and_no_zombie_stays;
         b test_fetch: a_hash_that_has_a_state_and_no_message_is_removed_with_its_entry
    19   d test_delayed: a_hundred_thousand_tasks_due_at_once_drain_and_sigterm_is_heard_meanwhile
    20   c test_kept;
         u test_supervisor_passes: between_its_sweeps_a_janitor_looks_and_deletes_only_full_batches
    21   c test_weak_spots
    22   c test_weak_spots; d test_supervisor_recovery: a_dead_workers_consumer_is_deleted_...;
         b test_schedule: an_edit_makes_it_another_schedule_and_the_one_before_fires_no_more,
         what_was_taken_out_of_the_file_while_no_daemon_ran_is_forgotten_at_the_start
    23   c test_group_g; u test_workflows: what_a_chain_or_group_cannot_hold_is_refused_with_its_place
    24   d test_worker_garbage: odd_but_readable_messages_run
    25   c test_group_e (64); b test_settle: a_task_whose_retries_are_spent_...;
         b test_dead_letter: what_a_lost_host_left_is_followed_by_its_recovery
    26   c test_weak_tasks; b test_ends: a_retry_is_due_after_its_delay_to_the_millisecond_and_keeps_...
    27   c test_weak_tasks;
         b test_inspect: one_task_is_shown_with_its_place, a_listing_tells_what_the_tasks_are
    28   b test_unique: w28_a_lock_whose_holder_has_ended_holds_nothing, every_end_lets_go_of_the_lock_...
    29   d test_overruns (a hung handler); u test_supervisor_steps:
         a_fault_in_the_work_backs_the_step_off_and_does_not_count_as_progress (nothing of the user's runs
         in the supervisor)
"""
