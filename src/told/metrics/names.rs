//! The names of all series, with what they mean.

macro_rules! counted {
    ($( $(#[doc = $what:literal])* $What:ident $name:literal $([$label:ident $value:literal])?; )*) => {
        /// Events that are counted, each by one word.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Counted {
            $( $(#[doc = $what])* $What, )*
        }

        impl Counted {
            /// Each of them.
            pub(super) const ALL: &[Counted] = &[$(Counted::$What),*];

            /// The series that counts it, with its label.
            pub(super) fn name_and_label(self) -> (&'static str, Option<(&'static str, &'static str)>) {
                match self {
                    $( Counted::$What => {
                        let labels: &[_] = &[$((stringify!($label), $value))?];
                        ($name, labels.first().copied())
                    } )*
                }
            }
        }
    };
}

counted! {
    /// A held job was given back to the backend.
    Returned "ojs_throttle_returned_jobs_total";
    /// A held job was cancelled, deleted, settled or lost behind our back.
    HoldLost "ojs_throttle_hold_lost_total";
    /// A held job expired before it could start.
    HeldExpired "ojs_throttle_hold_expired_total";
    /// A slot ended without an ACK or a nack: its deadline passed and the backend said so.
    SlotReclaimed "ojs_throttle_slots_reclaimed_total";
    /// A running job was found that this sidecar had not handed out, and was given its slots.
    SlotAdopted "ojs_throttle_slots_adopted_total";
    /// A held job of a sibling was taken over.
    HoldAdopted "ojs_throttle_hold_adopted_total";
    /// The backend answered FETCH with something that is no FETCH reply, or has what is no job.
    Nonsense "ojs_throttle_upstream_nonsense_total";
    /// An ACK or nack was sent again inside the sidecar.
    SettleRetried "ojs_throttle_settle_retries_total";
    /// An ACK or nack that came again, and had been carried out, was answered with success.
    SettleReplayed "ojs_throttle_settle_replays_total";
    /// A heartbeat's number in `active_jobs` was mended.
    HeartbeatMended "ojs_throttle_repairs_total" [repair "heartbeat_active_jobs"];
    /// A reply's media type was mended.
    MediaTypeMended "ojs_throttle_repairs_total" [repair "media_type"];
    /// An over-encoded queue name in a path was mended.
    PathMended "ojs_throttle_repairs_total" [repair "queue_paths"];
    /// A start was undone: the job would have left too late, or the worker hung up first.
    HandOutUndone "ojs_throttle_handouts_undone_total";
    /// A job's own `rate_limit` was refused at enqueue.
    PolicyRefused "ojs_throttle_job_policies_refused_total";
    /// A job said no cost that is a number from 1, and pays the default.
    CostUnsaid "ojs_throttle_costs_replaced_total" [by "default"];
    /// A job said a cost above the most, and pays that.
    CostOverMax "ojs_throttle_costs_replaced_total" [by "max"];
    /// An ACK said that its job used more beside its cost than a limit of its key.
    UsedOverLimit "ojs_throttle_costs_replaced_total" [by "limit"];
}

/// What is declared of a series.
#[derive(Clone, Copy, Debug)]
pub struct Series {
    /// Its name, which ends with its unit.
    pub name: &'static str,
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    /// The labels that it may have.
    pub labels: &'static [&'static str],
    /// What it says, for `# HELP` and for the manual.
    pub help: &'static str,
    /// Whether it is 0, and not absent, before anything has happened.
    pub from_start: bool,
    /// Whether it tells of jobs alone: where there is no backend it is not shown.
    pub of_jobs: bool,
}

macro_rules! series {
    ($(
        $(#[doc = $help:literal])*
        $kind:ident $name:literal [$($label:ident)*] $(from $zero:literal)? $(of $jobs:ident)?;
    )*) => {
        /// All series, in the order of the manual. The comment of each is its help.
        pub const SERIES: &[Series] = &[$(
            Series {
                name: $name,
                kind: stringify!($kind),
                labels: &[$(stringify!($label)),*],
                help: concat!($($help),*).trim_ascii(),
                from_start: !stringify!($($zero)?).is_empty(),
                of_jobs: !stringify!($($jobs)?).is_empty(),
            },
        )*];
    };
}

series! {
    /// Jobs of the key that are out with workers now.
    gauge "ojs_rate_limit_active" [key];
    /// Jobs that wait for the key's limits, held here or in the backend's queues, and calls that wait here, as in
    /// waiting_count, but for what siblings hold. The backlog is as the backend said it last, while workers or readers ask.
    gauge "ojs_rate_limit_waiting" [key];
    /// In how many seconds the last job or call that waits for the key now has started, as far as the key's limits decide. It
    /// is absent where nothing waits, and where nobody can say. At most 100 keys are looked at, those for which most wait.
    gauge "ojs_throttle_waiting_done_seconds" [key];
    /// Jobs that could not start at once, once for each wait. The strategy is the limit that refused: concurrency,
    /// rate, throttle or shut. It is line where there is room, and it is kept for a job that is first in line, or for a
    /// group whose turn it is.
    counter "ojs_rate_limit_exceeded_total" [key strategy];
    /// How long limited jobs were held, and calls waited, before they started.
    histogram "ojs_rate_limit_wait_duration_seconds" [key];
    /// Jobs that were ended because a limit refused them (on_limit = "drop").
    counter "ojs_rate_limit_dropped_total" [policy] of jobs;
    /// Nacks, and answers to calls, that shut a key, because the service behind it asked for a pause.
    counter "ojs_throttle_downstream_rate_limited_total" [policy];
    /// Enqueues that a bound or rate of the queue refused, or the bound of a tenant.
    counter "ojs_backpressure_rejected_total" [queue] of jobs;
    /// Jobs that were dropped to make room for others (strategy = "drop_oldest").
    counter "ojs_backpressure_dropped_total" [queue] of jobs;
    /// The part of the queue's nearest bound that is used, 0 to 1. It is absent once nothing is known of the queue: it
    /// is empty, was not used for 10 to 20 minutes, and has no entry of its own. It is absent
    /// too where no bound needs the depth any more. Of 10,000 queues those that were used last are known.
    gauge "ojs_backpressure_pressure" [queue] of jobs;
    /// Enqueues that wait for room.
    gauge "ojs_throttle_blocked_enqueues" [] of jobs;
    /// Jobs that went to workers under the policy, and calls that went out (kind).
    counter "ojs_throttle_starts_total" [policy kind];
    /// Answers of the policy's limits, each time a job or a call (kind) was to start. The verdict is allowed (it went to
    /// a worker), limited (it waits), rescheduled or dropped (the backend has ended it). A job that waits is asked about
    /// again. A queue without room is not asked about its jobs: for limits of a whole queue see
    /// ojs_rate_limit_exceeded_total.
    counter "ojs_throttle_decisions_total" [policy kind verdict];
    /// What jobs and calls paid at their starts under a policy or a budget with a cost, and what they used beyond that
    /// (cost.settle).
    counter "ojs_throttle_cost_charged_total" [policy];
    /// What jobs and calls paid and, by their ACKs and answers, did not use (cost.settle).
    counter "ojs_throttle_cost_refunded_total" [policy];
    /// Calls that paid to a budget and are over. What they used was told by the answer, or is free: the service has not done
    /// them. Else what they paid is kept, also where the prices do not name the model (unpriced), or nobody does
    /// (unnamed). A POST that is not known to ask a model pays nothing where only is not set (unpaid).
    counter "ojs_throttle_egress_settled_total" [budget how];
    /// Jobs that count another cost than they say. They pay the default, where they say no number from 1, or the max. An
    /// ACK with cost.settle adds no more to a window than its limit.
    counter "ojs_throttle_costs_replaced_total" [by] of jobs;
    /// Starts by groups of a key whose turns are shared (fair). Only the first metrics.top_keys groups have series of
    /// their own.
    counter "ojs_throttle_group_starts_total" [key group];
    /// Jobs that went to workers, by what the policy would have done with them (mode = "shadow"). The verdict is started
    /// (at once), waited, dropped, or unknown where more would wait than are followed. Entries of [[queue]] are the
    /// policy "queue".
    counter "ojs_throttle_shadow_jobs_total" [policy verdict] of jobs;
    /// How long jobs would have waited for the policy, of those that would have waited (mode = "shadow").
    histogram "ojs_throttle_shadow_wait_seconds" [policy] of jobs;
    /// Jobs that would wait for the policy now (mode = "shadow").
    gauge "ojs_throttle_shadow_waiting" [policy] of jobs;
    /// Enqueues that were stored, and that a bound of the queue would have refused (mode = "shadow").
    counter "ojs_throttle_shadow_refused_total" [queue] of jobs;
    /// Limits of keys, queues and policies that were set over HTTP. Bounds that were set over HTTP do not count.
    gauge "ojs_throttle_overrides_active" [] from 0;
    /// Keys, queues and policies that a limit set over HTTP pauses (concurrency 0). One that nothing has any more does
    /// not count.
    gauge "ojs_throttle_paused_keys" [] from 0;
    /// Jobs and calls that may be out at once by a limit of the config (concurrency). An override of the policy counts,
    /// and one of its key where it has one only. A limit of [[egress]] has the name of the entry as its policy. A limit
    /// of [[queue]] has policy "queue" and its name or glob in queue.
    gauge "ojs_throttle_slots_limit" [policy queue];
    /// Starts that a limit of the config allows in its period, with an override of the policy, or of its key where it has
    /// one only. The strategy is rate, which has a window, or throttle. A limit of [[egress]] has the name of the entry as
    /// its policy. A limit of [[queue]] has policy "queue" and its name or glob in queue. Budgets have no series: they
    /// limit what calls use.
    gauge "ojs_throttle_starts_limit" [policy strategy period window queue];
    /// Claimed jobs that wait in this sidecar.
    gauge "ojs_throttle_held_jobs" [] from 0 of jobs;
    /// Bytes of the claimed jobs that wait in this sidecar.
    gauge "ojs_throttle_held_bytes" [] from 0 of jobs;
    /// Jobs that may wait in this sidecar (hold.max). Queues that find it full of others may hold a quarter more. As
    /// many again may wait in queues that no worker asks for.
    gauge "ojs_throttle_hold_capacity" [] from 0 of jobs;
    /// Queues of which the jobs in front fill what may be held of them. Jobs of other keys behind them are not seen.
    gauge "ojs_throttle_lookahead_full_queues" [] from 0 of jobs;
    /// Subqueues to which jobs of several keys came since nothing waited there, or of which several keys' are held.
    gauge "ojs_throttle_subqueues_shared" [] from 0 of jobs;
    /// Subqueues with more jobs than are looked past, behind held jobs that have no room. They may be of other keys, and
    /// do not start although they may.
    gauge "ojs_throttle_subqueues_out_of_reach" [] from 0 of jobs;
    /// Calls that are out through this sidecar.
    gauge "ojs_throttle_calls_out" [] from 0;
    /// Calls that wait here for a start.
    gauge "ojs_throttle_calls_waiting" [] from 0;
    /// Limited jobs that are out with workers.
    gauge "ojs_throttle_slots" [] from 0 of jobs;
    /// How long FETCHes were kept open for a start.
    histogram "ojs_throttle_fetch_wait_seconds" [] of jobs;
    /// Jobs that were claimed from the backend to wait here.
    counter "ojs_throttle_claimed_jobs_total" [] of jobs;
    /// Held jobs that were given back to the backend.
    counter "ojs_throttle_returned_jobs_total" [] of jobs;
    /// Held jobs that were cancelled, settled or taken back by the backend, or that no worker asked for. Jobs that a
    /// sibling took over do not count.
    counter "ojs_throttle_hold_lost_total" [] of jobs;
    /// Held jobs whose `expires_at` came before a limit had room for them. The backend discards them, as it does with
    /// what expires in its queues.
    counter "ojs_throttle_hold_expired_total" [] of jobs;
    /// Slots that ended because their job had ended without a word. Its worker died, or it had ended through a sibling.
    counter "ojs_throttle_slots_reclaimed_total" [] of jobs;
    /// Running jobs that were found and given their slots, after a restart, a reload or a first limit of their queue
    /// over HTTP.
    counter "ojs_throttle_slots_adopted_total" [] of jobs;
    /// Held jobs of other sidecars that were taken over.
    counter "ojs_throttle_hold_adopted_total" [] of jobs;
    /// As of when what waits and what is held is shown, in seconds since 1970. Answers whose `at` is the same time say the
    /// same.
    gauge "ojs_throttle_snapshot_timestamp_seconds" [];
    /// 1 while the store answers, else 0. At 0 limits go on as store.on_store_error says.
    gauge "ojs_throttle_store_up" [] from 0;
    /// How often the store came back empty, or older than it was.
    counter "ojs_throttle_store_wiped_total" [] from 0;
    /// Failures of calls to the store. Those that were under way together count as one. After two in a row the store is
    /// lost, and is not asked until it is back.
    counter "ojs_throttle_store_errors_total" [] from 0;
    /// Other sidecars that share the store and live.
    gauge "ojs_throttle_siblings" [] from 0;
    /// Other sidecars that start jobs of the same limits and share no store with this one, which keeps its usage in
    /// memory. Looked for every 20 s; who is seen for a minute counts.
    gauge "ojs_throttle_unshared_sidecars" [] from 0 of jobs;
    /// Other sidecars on the same store whose files set other limits. They say so every 5 s; who is silent for 12 s does not
    /// count.
    gauge "ojs_throttle_other_files" [] from 0;
    /// Workers that get jobs of limited queues from the backend itself: no limit holds for those jobs. Looked for every
    /// 20 s in the backend's list of active jobs; a queue counts of which they had jobs for a minute.
    gauge "ojs_throttle_workers_around" [] from 0 of jobs;
    /// Policies that have limited no job since the file came into force. It is told after an hour.
    gauge "ojs_throttle_unmatched_policies" [] from 0 of jobs;
    /// Start times that the store granted ahead (sync = "reserved").
    counter "ojs_throttle_reserved_turns_total" [] from 0 of jobs;
    /// Start times that the store granted ahead and that passed unused.
    counter "ojs_throttle_reserved_turns_unused_total" [] from 0 of jobs;
    /// FETCH replies that could not be read, for which the worker got 502, and jobs in others that have no id.
    counter "ojs_throttle_upstream_nonsense_total" [] of jobs;
    /// ACKs and nacks that the sidecar sent again.
    counter "ojs_throttle_settle_retries_total" [] of jobs;
    /// ACKs and nacks that a worker sent again and that had been carried out. The backend refused them, and the sidecar
    /// answered with success.
    counter "ojs_throttle_settle_replays_total" [] of jobs;
    /// Misunderstandings between SDKs and backends that were mended.
    counter "ojs_throttle_repairs_total" [repair] of jobs;
    /// Starts that were taken back and count nowhere else. The job would have left too late, its queue was paused, or
    /// the worker had hung up.
    counter "ojs_throttle_handouts_undone_total" [] of jobs;
    /// Enqueues that were refused because their rate_limit is not valid.
    counter "ojs_throttle_job_policies_refused_total" [] of jobs;
    /// Calls that the sidecar itself made to the backend. The code is the status, none where no answer came, or _other for
    /// a status outside 100 to 599.
    histogram "ojs_throttle_upstream_request_duration_seconds" [op code];
    /// 0 since a request got no answer from the backend, until one does and 5 s have passed without a failure; else 1.
    /// While nobody else asks, the sidecar asks for the backend's /ojs/v1/health every 5 s.
    gauge "ojs_throttle_backend_up" [] of jobs;
    /// 1, or 0 while the service of an [[egress]] answers none of its calls: one answer makes it 1 again, also one such as
    /// 503. So it is when nobody has called it for five minutes.
    gauge "ojs_throttle_service_up" [egress];
    /// Answers of the services behind each [[egress]]. The code is the status, or _other for one outside 100 to 599. A call
    /// that got none is not among them.
    counter "ojs_throttle_egress_answers_total" [egress code];
    /// Requests that the sidecar itself answered with an error.
    counter "ojs_throttle_responses_total" [status code];
    /// Requests without a reply, of all threads. The kind is urgent (ACKs, nacks and heartbeats) or ordinary. A thread
    /// at server.max_in_flight answers 503.
    gauge "ojs_throttle_requests_in_flight" [kind] of jobs;
    /// Open connections of clients to the data port, WebSockets among them, of all threads. A thread at
    /// server.max_connections lets more wait unseen, and the log says so.
    gauge "ojs_throttle_connections" [] of jobs;
    /// 1 if the last look at the config file left it in force, else 0.
    gauge "ojs_throttle_config_last_reload_successful" [];
    /// When the config file last came into force, in seconds since the Unix epoch.
    gauge "ojs_throttle_config_last_reload_success_timestamp_seconds" [];
    /// Looks at a config file that had changed, or that were asked for. The result is applied, unchanged, refused,
    /// invalid or unreadable.
    counter "ojs_throttle_config_reloads_total" [result];
    /// 1 if what runs is what the config file says, else 0. It is absent without a file.
    gauge "ojs_throttle_config_file_matches" [];
    /// For how many seconds more the first certificate in a file is good; below 0 it has ended. The setting is the one
    /// that names the file.
    gauge "ojs_throttle_tls_certificate_expiry_seconds" [setting];
    /// For how many seconds that certificate is good in all.
    gauge "ojs_throttle_tls_certificate_lifetime_seconds" [setting];
    /// Open event streams.
    gauge "ojs_throttle_event_subscribers" [] from 0;
    /// Events of the sidecar's own that were put into event streams.
    counter "ojs_throttle_events_sent_total" [];
    /// Events that went past subscribers which did not keep up. They count when the subscriber reads on or is cut off.
    counter "ojs_throttle_events_lost_total" [] from 0;
    /// 1, with the version as a label.
    gauge "ojs_throttle_build_info" [version];
    /// Processor time of the process, user and system.
    counter "process_cpu_seconds_total" [];
    /// Memory of the process that is in use.
    gauge "process_resident_memory_bytes" [];
    /// Address space of the process.
    gauge "process_virtual_memory_bytes" [];
    /// Open files and connections of the process.
    gauge "process_open_fds" [];
    /// Open files and connections that the process may have.
    gauge "process_max_fds" [];
    /// Threads of the process.
    gauge "process_threads" [];
    /// When the process began, in seconds since the Unix epoch.
    gauge "process_start_time_seconds" [];
}
