"""What the dashboard shows, row by row, in the order of an event's way: from the call over the topics to the credit, then what works
beside it. A panel is its title, its description, the unit, and queries with their legends. dashboard.py makes JSON of it.
"""

QUANTILES = [("0.5", "p50"), ("0.99", "p99"), ("0.999", "p99.9")]


def per_s(metric, by=""):
    """What a counter counts in a second, by these labels."""
    return f"sum{f' by ({by})' if by else ''} (rate({metric}[$__rate_interval]))"


def quantiles(metric, by=""):
    """p50, p99 and p99.9 of a histogram, whose buckets may end in anything."""
    labels, legend = (f"le, {by}", f"{{{{{by}}}}} ") if by else ("le", "")
    return [(f"histogram_quantile({part}, {per_s(metric, labels)})", f"{legend}{name}") for part, name in QUANTILES]


OVERVIEW = [
    ("Rewards taken", "A second, by all gateways and SDKs.", "ops", [(per_s("windfall_sent_events_total"), "")]),
    ("Credited", "A second.", "ops", [(per_s("windfall_grants_total{answer='credited'}"), "")]),
    ("Records that wait", "In all topics, not committed.", "short", [("sum(max by (topic) (windfall_queue_lag_records))", "")]),
    (
        "Lag in seconds",
        "For how long the records that wait last at the pace at which they are read now: the slowest topic.",
        "s",
        [("max(max by (topic) (windfall_queue_lag_records) / (sum by (topic) (rate(windfall_fetched_records_total[5m])) > 0))", "")],
    ),
    ("Archived", "Rewards that ended without a credit, in an hour.", "short", [("sum(increase(windfall_archived_events_total[1h]))", "")]),
    ("Parts missing", "Brokers, stores and databases that a process cannot reach.", "short", [("sum(windfall_part_ready == bool 0)", "")]),
]

ROWS = [
    (
        "Calls",
        [
            ("Calls", "By service and method.", "reqps", [(per_s("windfall_edge_calls_total", "service, method"), "{{service}}/{{method}}")]),
            (
                "Not OK",
                "By code, and refused before they reached their service.",
                "reqps",
                [
                    (per_s("windfall_edge_calls_total{code!='OK'}", "code"), "{{code}}"),
                    (per_s("windfall_edge_refused_calls_total", "reason"), "refused: {{reason}}"),
                ],
            ),
            (
                "Time, p99",
                "To the head of the answer, by service and method.",
                "s",
                [(f"histogram_quantile(0.99, {per_s('windfall_edge_call_seconds_bucket', 'le, service, method')})", "{{service}}/{{method}}")],
            ),
            ("Time of sends", "To the head of the answer: the user has the token.", "s", quantiles("windfall_edge_call_seconds_bucket{service='Send'}")),
            ("Time of calls, by service", "To the head of the answer.", "s", quantiles("windfall_edge_call_seconds_bucket", "service")),
            (
                "Connections",
                "Open ones, those without an authenticated call, and those that the server ended, a second.",
                "short",
                [
                    ("sum(windfall_edge_connections)", "open"),
                    ("sum(windfall_edge_unauthenticated_connections)", "unauthenticated"),
                    (per_s("windfall_edge_cut_connections_total", "reason"), "ended: {{reason}}"),
                    ("sum by (listener) (windfall_listener_connections)", "open, {{listener}}"),
                    ("sum by (listener) (windfall_listener_unauthenticated_connections)", "unauthenticated, {{listener}}"),
                    (per_s("windfall_listener_cut_connections_total", "listener, reason"), "ended, {{listener}}: {{reason}}"),
                ],
            ),
        ],
    ),
    (
        "Sending",
        [
            (
                "Rewards taken",
                "Sent and durable in the spool; refused, because it is full.",
                "ops",
                [
                    (per_s("windfall_sent_events_total", "app"), "{{app}}"),
                    (per_s("windfall_refused_calls_total", "app"), "refused: {{app}}"),
                ],
            ),
            (
                "Spool",
                "Slots that no broker has acknowledged; at 100 % sends are refused.",
                "percentunit",
                [("windfall_spool_slots{state='used'} / ignoring(state) windfall_spool_slots{state='all'}", "{{instance}} {{app}}")],
            ),
            (
                "Packs that wait",
                "No broker has them yet; without_route: until rules take them.",
                "short",
                [("sum by (state) (windfall_packs)", "{{state}}"), ("sum(windfall_queue_waiting_packs)", "in the virtual queues")],
            ),
            (
                "Records to topics",
                "By what became of them; a breaker that is open counts 1.",
                "ops",
                [
                    (per_s("windfall_queue_records_total", "topic, fate"), "{{topic}} {{fate}}"),
                    ("max by (topic) (windfall_queue_breaker_open)", "{{topic}} breaker"),
                ],
            ),
            (
                "Sent again",
                "Packs after a failure, a lost answer or a wait; topics that could not be opened.",
                "ops",
                [
                    (per_s("windfall_queue_retries_total"), "packs"),
                    (per_s("windfall_queue_open_failures_total", "topic"), "cannot be opened: {{topic}}"),
                ],
            ),
            (
                "Tokens to their store",
                "By state; those that wait.",
                "ops",
                [
                    (per_s("windfall_tokens_total", "state"), "{{state}}"),
                    ("sum(windfall_waiting_tokens)", "waiting"),
                ],
            ),
        ],
    ),
    (
        "Topics",
        [
            ("Lag", "Records written and not committed.", "short", [("max by (topic) (windfall_queue_lag_records)", "{{topic}}")]),
            (
                "Lag in seconds",
                "For how long the records that wait last at the pace of the last five minutes. No line: nothing is read.",
                "s",
                [("max by (topic) (windfall_queue_lag_records) / (sum by (topic) (rate(windfall_fetched_records_total[5m])) > 0)", "{{topic}}")],
            ),
            (
                "Oldest record in flight",
                "A partition commits nothing past it.",
                "ms",
                [("max by (topic) (windfall_window_oldest_milliseconds)", "{{topic}}")],
            ),
            (
                "Window",
                "Records delivered and not finished, and those of them that wait for their due time.",
                "short",
                [
                    ("sum by (topic) (windfall_window_records)", "{{topic}}"),
                    ("sum by (topic) (windfall_delayed_records)", "not due: {{topic}}"),
                ],
            ),
            (
                "Partitions",
                "Owned, paused, and without progress.",
                "short",
                [
                    ("sum by (topic) (windfall_partitions)", "{{topic}}"),
                    ("sum by (topic) (windfall_paused_partitions)", "paused: {{topic}}"),
                    ("sum by (topic) (windfall_stuck_partitions)", "stuck: {{topic}}"),
                ],
            ),
            (
                "Trouble of consumers",
                "Polls and commits that failed, sessions that were over, records that brokers lost.",
                "ops",
                [
                    (per_s("windfall_polls_failed_total", "topic"), "polls: {{topic}}"),
                    (per_s("windfall_commits_failed_total", "topic"), "commits: {{topic}}"),
                    (per_s("windfall_consumer_frozen_total", "topic"), "frozen: {{topic}}"),
                    (per_s("windfall_broker_lost_records_total", "topic"), "lost: {{topic}}"),
                ],
            ),
        ],
    ),
    (
        "Lanes and limits",
        [
            ("Lanes", "Events that wait in their type's lane.", "short", [("sum by (type) (windfall_lane_events)", "{{type}}")]),
            (
                "Oldest in lanes",
                "The age of the oldest record of which events wait in their type's lane.",
                "ms",
                [("max by (type) (windfall_lane_oldest_milliseconds)", "{{type}}")],
            ),
            (
                "Fetched, and limits",
                "Events a second, and what the rules let through.",
                "ops",
                [
                    (per_s("windfall_fetched_events_total", "topic"), "{{topic}}"),
                    ("max by (type) (windfall_limit_rate_per_second)", "limit {{type}}"),
                ],
            ),
            (
                "Left their lane",
                "By outcome; credited by this call or before.",
                "ops",
                [(per_s("windfall_lane_finished_events_total", "type, outcome"), "{{type}} {{outcome}}")],
            ),
            (
                "Written back",
                "Events requeued, by cause; records salvaged to a file.",
                "ops",
                [
                    (per_s("windfall_requeued_events_total", "cause"), "{{cause}}"),
                    (per_s("windfall_salvaged_records_total"), "salvaged"),
                ],
            ),
            (
                "Tried again",
                "Events that are asked for again in their lane. How old the oldest is: the oldest record in flight.",
                "ops",
                [
                    (per_s("windfall_undecided_events_total", "topic"), "{{topic}}"),
                    ("max by (type) (windfall_lane_breaker_open)", "nothing is decided: {{type}}"),
                ],
            ),
            (
                "Salvage files and late rewards",
                "Records that no broker has stored yet; records due long after now that wait to be handed over.",
                "short",
                [
                    ("sum(windfall_salvage_pending_records)", "salvaged"),
                    ("sum by (topic) (windfall_waiting_for_hand_over_records)", "to hand over: {{topic}}"),
                ],
            ),
        ],
    ),
    (
        "Grants",
        [
            ("Grants", "By answer.", "ops", [(per_s("windfall_grants_total", "answer"), "{{answer}}")]),
            ("Credited", "By type.", "ops", [(per_s("windfall_grants_total{answer='credited'}", "type"), "{{type}}")]),
            (
                "Time from send to credit",
                "Of orders that were credited; from when their sender wants it where that is later.",
                "s",
                quantiles("windfall_send_to_credit_seconds_bucket"),
            ),
            (
                "Time of grant calls",
                "Of callers that grant over the wire, to the head of the answer.",
                "s",
                quantiles("windfall_edge_call_seconds_bucket{service='Rewards'}"),
            ),
            (
                "Ledger",
                "Transactions by outcome, and events that wait.",
                "short",
                [
                    (per_s("windfall_ledger_commits_total", "outcome"), "{{outcome}} a second"),
                    ("sum(windfall_ledger_waiting_events)", "waiting"),
                ],
            ),
            (
                "Budget left",
                "In the smallest unit.",
                "short",
                [("min by (activity, scene, type) (windfall_budget_left)", "{{activity}}/{{scene}}/{{type}}")],
            ),
            (
                "Archived",
                "Rewards that are final and not credited.",
                "short",
                [("increase(windfall_archived_events_total[1h])", "{{instance}}, in an hour")],
            ),
            (
                "Downstream answers",
                "By connector and answer.",
                "ops",
                [(per_s("windfall_connector_answers_total", "connector, answer"), "{{connector}} {{answer}}")],
            ),
            ("Time of downstream calls", "By connector.", "s", quantiles("windfall_connector_seconds_bucket", "connector")),
            (
                "Downstream: nobody knows",
                "Calls that may have paid, by cause, and calls without a connection.",
                "ops",
                [
                    (per_s("windfall_connector_unknown_total", "connector, cause"), "{{connector}} {{cause}}"),
                    (per_s("windfall_connector_unreachable_total", "connector"), "unreachable: {{connector}}"),
                ],
            ),
        ],
    ),
    (
        "Tokens and wallets",
        [
            ("Verified", "Tokens judged, by verdict.", "ops", [(per_s("windfall_verified_tokens_total", "verdict"), "{{verdict}}")]),
            (
                "Token store",
                "Writes that it did not take, reads that it did not answer.",
                "ops",
                [
                    (per_s("windfall_token_store_errors_total"), "writes"),
                    (per_s("windfall_token_reads_failed_total"), "reads"),
                ],
            ),
            (
                "Withdrawals",
                "By answer; those that are held, counted up to 1,000.",
                "ops",
                [
                    (per_s("windfall_withdrawals_total", "answer"), "{{answer}}"),
                    ("max(windfall_held_withdrawals)", "held"),
                    ("max(windfall_undecided_withdrawals)", "undecided for 10 minutes"),
                    ("max(windfall_payouts_to_acknowledge)", "not acknowledged"),
                ],
            ),
            (
                "Credited by a withdrawal",
                "Tokens whose event had not arrived: asked for, and credited by that.",
                "ops",
                [(per_s("windfall_forced_tokens_total", "state"), "{{state}}")],
            ),
            ("Looks at wallets", "By outcome.", "ops", [(per_s("windfall_wallet_looks_total", "outcome"), "{{outcome}}")]),
            (
                "Time of wallet calls",
                "To the head of the answer.",
                "s",
                quantiles("windfall_edge_call_seconds_bucket{service='Wallet'}"),
            ),
        ],
    ),
    (
        "Rules and processes",
        [
            (
                "Rules",
                "The version that each process runs; fuses that are not closed.",
                "short",
                [("windfall_rules_version", "{{instance}}"), ("windfall_fuse_state{state!='closed'}", "{{type}} {{state}}")],
            ),
            (
                "Rules that are refused",
                "1 while a process refuses the newest rules; 1 while it grants nothing because it runs older ones than the ledger has seen.",
                "short",
                [("windfall_rules_refuses", "{{instance}} refuses"), ("windfall_ledger_rules_behind", "{{instance}} is behind")],
            ),
            ("Parts that are missing", "What a process cannot reach.", "short", [("windfall_part_ready == 0", "{{instance}} {{part}}")]),
            (
                "Panics",
                "Each was caught, and the task started again.",
                "ops",
                [
                    (per_s("windfall_task_panics_total", "task"), "{{task}}"),
                    (per_s("windfall_sdk_panics_total", "thread"), "SDK: {{thread}}"),
                    (per_s("windfall_consumer_panics_total", "topic"), "consumer: {{topic}}"),
                ],
            ),
            (
                "Callers and certificates",
                "Versions of the access file that were refused, and renewed certificates that cannot be used.",
                "ops",
                [
                    (per_s("windfall_edge_access_refused_total"), "access files"),
                    (per_s("windfall_edge_certificates_refused_total"), "certificates"),
                    (per_s("windfall_listener_certificates_refused_total", "listener"), "certificates, {{listener}}"),
                ],
            ),
            (
                "The ledger's mark",
                "1 while payouts are stopped; seconds since the ledger was compared with its mark.",
                "short",
                [
                    ("max(windfall_ledger_payouts_stopped)", "payouts stopped"),
                    ("max(windfall_ledger_back_in_time)", "back in time"),
                    ("max(windfall_ledger_mark_age_seconds)", "compared, s ago"),
                ],
            ),
            (
                "The auditor",
                "Differences that nobody has resolved; seconds since the ledger was compared with its transfers; age of the oldest transfer that is in no seal.",
                "short",
                [
                    ("max by (kind, state) (windfall_audit_differences)", "{{kind}}, {{state}}"),
                    ("min(windfall_audit_age_seconds)", "compared, s ago"),
                    ("max(windfall_audit_unread)", "unread transfers"),
                    ("min(windfall_journal_unsealed_age_seconds)", "not sealed, s"),
                ],
            ),
        ],
    ),
    (
        "Signed records",
        [
            (
                "Not verified",
                "Records that were archived because their signature was missing or wrong.",
                "ops",
                [(per_s("windfall_unverified_records_total", "topic, reason"), "{{topic}} {{reason}}")],
            ),
            (
                "Not signed",
                "Records that were taken without a signature. It must stand still before they are refused.",
                "ops",
                [(per_s("windfall_unsigned_records_total", "topic"), "{{topic}}")],
            ),
            (
                "Keys",
                "The newest key in the ring of each process, and the one that it signs with.",
                "short",
                [("windfall_signing_ring_newest_key", "{{instance}} ring"), ("windfall_signing_process_key", "{{instance}} signs")],
            ),
            (
                "What becomes of unsigned records",
                "Consumers, by what they do. In a fleet with keys `unverified` is 0.",
                "short",
                [("sum by (unsigned) (windfall_record_verification)", "{{unsigned}}")],
            ),
        ],
    ),
    (
        "Timers",
        [
            (
                "Timers that wait",
                "Waiting timers of each tenant, and those that are due and have not gone out.",
                "short",
                [
                    ("max by (tenant) (windfall_scheduler_waiting_tasks)", "{{tenant}}"),
                    ("sum by (tenant, target) (windfall_scheduler_due_tasks)", "due: {{tenant}} {{target}}"),
                ],
            ),
            (
                "Timers fired",
                "Attempts by what the target said, and timers that were given up.",
                "ops",
                [
                    ("sum by (outcome) (rate(windfall_scheduler_attempts_total[1m]))", "{{outcome}}"),
                    ("sum(rate(windfall_scheduler_dead_tasks_total[1m]))", "given up"),
                ],
            ),
            (
                "Timers late",
                "The share of timers that went out more than a second late, and targets that take nothing.",
                "short",
                [
                    ("sum(rate(windfall_scheduler_late_tasks_total[5m])) / sum(rate(windfall_scheduler_attempts_total[5m]))", "late"),
                    ("max by (tenant, target) (windfall_scheduler_target_away)", "away: {{tenant}} {{target}}"),
                ],
            ),
            ("Lateness", "From a timer's time to the first attempt.", "s", quantiles("windfall_scheduler_lateness_total")),
            (
                "Tried again",
                "Timers that wait for their next attempt.",
                "short",
                [("sum by (tenant, target) (windfall_scheduler_retrying_tasks)", "{{tenant}} {{target}}")],
            ),
            (
                "Shards and the store",
                "Shards with an owner, and all of them; calls of the store without an answer.",
                "short",
                [
                    ("sum(windfall_scheduler_owned_shards)", "owned"),
                    ("max(windfall_scheduler_shards)", "all"),
                    (per_s("windfall_scheduler_store_errors_total"), "errors a second"),
                ],
            ),
        ],
    ),
    (
        "Task queues",
        [
            (
                "Jobs that wait",
                "By queue and state. Each process reports the whole queue, so the largest report counts.",
                "short",
                [("max by (namespace, queue, state) (windfall_taskqueue_jobs)", "{{namespace}}/{{queue}} {{state}}")],
            ),
            (
                "Jobs published and taken",
                "Jobs that were published, and jobs that were handed to a consumer, each time.",
                "ops",
                [
                    (per_s("windfall_taskqueue_produced_jobs_total", "namespace, queue"), "published: {{namespace}}/{{queue}}"),
                    (per_s("windfall_taskqueue_consumed_jobs_total", "namespace, queue"), "taken: {{namespace}}/{{queue}}"),
                ],
            ),
            (
                "Oldest ready job",
                "For how long the job that comes next has been ready.",
                "ms",
                [("max by (namespace, queue) (windfall_taskqueue_oldest_ready_milliseconds)", "{{namespace}}/{{queue}}")],
            ),
            ("Wait", "From the publishing of a job to each time that it is taken, delay included.", "s", quantiles("windfall_taskqueue_wait_seconds_bucket", "queue")),
            (
                "Leases that ended",
                "Jobs that nobody acknowledged in time, by what became of them, and jobs whose ttl ended while they waited.",
                "ops",
                [
                    (per_s("windfall_taskqueue_ended_leases_total", "pool, then"), "{{pool}}: {{then}}"),
                    (per_s("windfall_taskqueue_expired_jobs_total", "pool"), "{{pool}}: expired before they were taken"),
                ],
            ),
            (
                "Polls and the store",
                "Consumers that wait for a job, and calls of the store that failed.",
                "short",
                [
                    ("sum by (pool) (windfall_taskqueue_polls)", "polls: {{pool}}"),
                    (per_s("windfall_taskqueue_store_errors_total", "pool"), "errors: {{pool}}"),
                ],
            ),
        ],
    ),
    (
        "Jobs",
        [
            (
                "Occurrences of jobs",
                "Occurrences that were started, and those that the misfire strategy of their job left out.",
                "ops",
                [(per_s("windfall_jobs_started_total"), "started"), (per_s("windfall_jobs_left_out_total"), "left out")],
            ),
            (
                "Runs that ended",
                "Runs of jobs by how they ended. Those that failed, timed out or were missed are dead: windfall jobs dead lists them.",
                "ops",
                [(per_s("windfall_jobs_ended_total", "outcome"), "{{outcome}}")],
            ),
            (
                "Runs start late",
                "From when an occurrence was due to when its run was started.",
                "s",
                quantiles("windfall_jobs_start_lateness_seconds_bucket"),
            ),
            (
                "Runs sent",
                "Runs that were sent to an executor or a target; those that were sent again because nobody knew whether they had been, "
                "and attempts after a failed one, are among them.",
                "ops",
                [
                    (per_s("windfall_jobs_sent_total"), "sent"),
                    (per_s("windfall_jobs_sent_again_total"), "sent again"),
                    (per_s("windfall_jobs_retried_total"), "tried again"),
                ],
            ),
            (
                "Executors and runs that wait",
                "Executors that are registered, and runs that wait in a process to be sent.",
                "short",
                [
                    ("max(windfall_jobs_executors)", "executors"),
                    ("sum by (instance) (windfall_jobs_waiting_runs)", "waiting: {{instance}}"),
                ],
            ),
            (
                "Trouble of jobs",
                "Calls of the store that failed, due tasks that were missing, reports about runs that are not known, and calls of XXL-JOB "
                "executors that were not taken.",
                "ops",
                [
                    (per_s("windfall_jobs_store_errors_total"), "store errors"),
                    (per_s("windfall_jobs_overdue_found_total"), "due tasks missing"),
                    (per_s("windfall_jobs_reports_unknown_total"), "unknown reports"),
                    (per_s("windfall_jobs_xxl_calls_total{answer=~'wrong_token|bad|failed'}", "answer"), "XXL-JOB: {{answer}}"),
                ],
            ),
        ],
    ),
]
# Rows of what not every fleet has: their panels ask for nothing until somebody opens them.
FOLDED = {"Signed records", "Timers", "Task queues", "Jobs"}
