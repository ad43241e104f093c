//! The names of all series, and their help texts.

/// Events that are counted, each by one word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counted {
    /// A held job was given back to the backend.
    Returned,
    /// A held job was cancelled, deleted, settled or lost behind our back.
    HoldLost,
    /// A slot ended without an ACK or a nack: its deadline passed and the backend said so.
    SlotReclaimed,
    /// A running job was found that this sidecar had not handed out, and was given its slots.
    SlotAdopted,
    /// A held job of a sibling was taken over.
    HoldAdopted,
    /// The backend answered FETCH with something that is no FETCH reply; it was passed on.
    Nonsense,
    /// An ACK or nack was sent again inside the sidecar.
    SettleRetried,
    /// An ACK or nack that came again, and had been carried out, was answered with success.
    SettleReplayed,
    /// A heartbeat's number in `active_jobs` was mended.
    HeartbeatMended,
    /// A reply's media type was mended.
    MediaTypeMended,
    /// An over-encoded queue name in a path was mended.
    PathMended,
    /// A start was undone: the job would have left too late, or the worker hung up first.
    HandOutUndone,
    /// A job's own `rate_limit` was refused at enqueue.
    PolicyRefused,
}

impl Counted {
    /// Each of them.
    pub(super) const ALL: [Counted; 13] = [
        Counted::Returned,
        Counted::HoldLost,
        Counted::SlotReclaimed,
        Counted::SlotAdopted,
        Counted::HoldAdopted,
        Counted::Nonsense,
        Counted::SettleRetried,
        Counted::SettleReplayed,
        Counted::HeartbeatMended,
        Counted::MediaTypeMended,
        Counted::PathMended,
        Counted::HandOutUndone,
        Counted::PolicyRefused,
    ];

    /// The series that counts it, with its label.
    pub(super) fn name_and_label(self) -> (&'static str, Option<(&'static str, &'static str)>) {
        match self {
            Counted::Returned => ("ojs_throttle_returned_jobs_total", None),
            Counted::HoldLost => ("ojs_throttle_hold_lost_total", None),
            Counted::SlotReclaimed => ("ojs_throttle_slots_reclaimed_total", None),
            Counted::SlotAdopted => ("ojs_throttle_slots_adopted_total", None),
            Counted::HoldAdopted => ("ojs_throttle_hold_adopted_total", None),
            Counted::Nonsense => ("ojs_throttle_upstream_nonsense_total", None),
            Counted::SettleRetried => ("ojs_throttle_settle_retries_total", None),
            Counted::SettleReplayed => ("ojs_throttle_settle_replays_total", None),
            Counted::HeartbeatMended => (
                "ojs_throttle_repairs_total",
                Some(("repair", "heartbeat_active_jobs")),
            ),
            Counted::MediaTypeMended => {
                ("ojs_throttle_repairs_total", Some(("repair", "media_type")))
            }
            Counted::PathMended => (
                "ojs_throttle_repairs_total",
                Some(("repair", "queue_paths")),
            ),
            Counted::HandOutUndone => ("ojs_throttle_handouts_undone_total", None),
            Counted::PolicyRefused => ("ojs_throttle_job_policies_refused_total", None),
        }
    }
}

/// Each series with its help, a line each.
pub(super) const DESCRIPTIONS: &str = r#"
ojs_rate_limit_active: Jobs of the key that are out with workers.
ojs_rate_limit_waiting: Jobs that wait for the key's limits, held or in the backend's queues, as in waiting_count.
ojs_rate_limit_exceeded_total: Jobs that could not start at once, by the limit that refused.
ojs_rate_limit_wait_duration_seconds: How long limited jobs were held before they started.
ojs_rate_limit_dropped_total: Jobs ended because a limit refused them (on_limit = "drop").
ojs_throttle_downstream_rate_limited_total: Nacks that shut a key because the service behind it limits us.
ojs_backpressure_rejected_total: Enqueues refused by a bound or rate of the queue, or by the bound of a tenant of theirs.
ojs_backpressure_dropped_total: Jobs dropped to make room for others (strategy = "drop_oldest").
ojs_backpressure_pressure: The part of the queue's nearest bound that is used, 0 to 1.
ojs_throttle_blocked_enqueues: Enqueues that wait for room.
ojs_throttle_starts_total: Jobs that went to workers under the policy.
ojs_throttle_decisions_total: Questions asked of the policy's limits, by answer.
ojs_throttle_overrides_active: Limits set over HTTP, of keys and queues.
ojs_throttle_paused_keys: Keys and queues that a limit set over HTTP pauses (concurrency 0).
ojs_throttle_limit: The number of a limit of the config, with an override where there is one key only.
ojs_throttle_held_jobs: Claimed jobs that wait in this sidecar.
ojs_throttle_held_bytes: Bytes of the claimed jobs that wait in this sidecar.
ojs_throttle_hold_capacity: hold.max: jobs that may wait here, beside a quarter more for queues that find it full, and as many again of queues that no worker asks for.
ojs_throttle_slots: Limited jobs that are out with workers.
ojs_throttle_fetch_wait_seconds: How long FETCHes were kept open for a start.
ojs_throttle_claimed_jobs_total: Jobs claimed from the backend for the hold.
ojs_throttle_returned_jobs_total: Held jobs given back to the backend.
ojs_throttle_hold_lost_total: Held jobs that were cancelled, settled or taken back by the backend, or that no worker asked for.
ojs_throttle_slots_reclaimed_total: Slots that ended because their job had ended without a word.
ojs_throttle_slots_adopted_total: Running jobs found after a restart and given their slots.
ojs_throttle_hold_adopted_total: Held jobs of other sidecars that were taken over.
ojs_throttle_store_up: Whether the store answers; at 0 limits go on as store.on_store_error says.
ojs_throttle_store_wiped_total: How often the store came back empty, or older than it was.
ojs_throttle_store_errors_total: Failures of calls to the store; those that were under way together count as one.
ojs_throttle_siblings: Other sidecars that share the store and live.
ojs_throttle_reserved_turns_total: Start times that the store granted ahead (sync = "reserved").
ojs_throttle_reserved_turns_unused_total: Start times that the store granted ahead and that passed unused.
ojs_throttle_upstream_nonsense_total: FETCH replies that could not be read and were passed on.
ojs_throttle_settle_retries_total: ACKs and nacks sent again inside the sidecar.
ojs_throttle_settle_replays_total: ACKs and nacks whose answer was lost on its way, that came again, were refused then, and had been carried out.
ojs_throttle_repairs_total: Misunderstandings between SDKs and backends that were mended.
ojs_throttle_handouts_undone_total: Starts taken back, and counted nowhere else: the job would have left too late, its queue was paused meanwhile, or the worker had hung up.
ojs_throttle_job_policies_refused_total: Enqueues refused because their rate_limit is not valid.
ojs_throttle_upstream_request_duration_seconds: Calls to the backend made by the sidecar itself.
ojs_throttle_backend_up: 0 since a request got no answer from the backend, until one does and 5 s have passed without a failure; else 1.
ojs_throttle_responses_total: Requests answered by the sidecar itself with an error, by status and code.
ojs_throttle_requests_in_flight: Requests without a reply; urgent ones are ACKs, nacks and heartbeats.
ojs_throttle_connections: Open connections of clients, WebSockets among them.
ojs_throttle_config_last_reload_successful: 1 if the last look at the config file left it in force, else 0.
ojs_throttle_config_last_reload_success_timestamp_seconds: When the config file last came into force, in seconds since the Unix epoch.
ojs_throttle_config_reloads_total: Looks at a config file that had changed, or that were asked for, by what came of them.
ojs_throttle_config_file_matches: 1 if what runs is what the config file says, else 0.
ojs_throttle_event_subscribers: Open event streams.
ojs_throttle_events_sent_total: Events of the sidecar's own put into event streams.
ojs_throttle_events_lost_total: Events that went past subscribers which did not keep up.
ojs_throttle_build_info: 1, with the version as a label.
"#;
