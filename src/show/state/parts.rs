//! What a state is made of: each member is declared once, with what it means.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde_json::value::RawValue;

use crate::desk::shadow::ShadowTally;
use crate::inquiry::shape::rfc3339;
use crate::show::why::Cause;

/// Declares the parts of a state: each a struct, and its members with what they mean, for the manual.
macro_rules! parts {
    ($(
        $(#[doc = $about:literal])*
        $Part:ident at $at:literal {
            $( $(#[doc = $doc:literal])* $(#[serde($($serde:tt)*)])? $field:ident: $Type:ty, )*
        }
    )*) => {
        $(
            $(#[doc = $about])*
            #[derive(Clone, Debug, Serialize)]
            pub(super) struct $Part {
                $( $(#[doc = $doc])* $(#[serde($($serde)*)])? pub(super) $field: $Type, )*
            }
        )*

        /// The members of a state: where they stand, and what each means.
        pub const MEMBERS: &[(&str, &[(&str, &str)])] = &[
            $( ($at, &[ $( (stringify!($field), concat!($($doc),*)), )* ]), )*
        ];
    };
}

parts! {
    /// Which sidecar it is.
    SidecarPart at "sidecar" {
        /// Its name: the worker id of its claims.
        name: Arc<str>,
        /// The program's version.
        version: &'static str,
        /// When it started.
        since: String,
        /// `starting`, `ready`, `draining`, or `not ready` where `/readyz` says 503 for another reason.
        ready: &'static str,
        /// Where SDKs connect: to the data port, or where there is no backend to the ways out.
        listens: Arc<str>,
        /// Jobs that are held.
        held: usize,
        /// The most that may be held.
        held_max: usize,
        /// Whether `server.control_token` is set, without which this port changes nothing.
        writes: bool,
    }
    /// The store.
    StorePart at "store" {
        /// `memory`, `sqlite`, `redis` or `postgres`.
        kind: &'static str,
        /// Whether it answers.
        up: bool,
        /// Other sidecars that share it.
        siblings: usize,
        /// How often it failed since the start.
        errors: u64,
    }
    /// The backend.
    BackendPart at "backend" {
        /// Its address; `null`: there is none, and calls are all that is limited.
        url: Option<Arc<str>>,
        /// Whether it answers.
        up: bool,
    }
    /// The file of the settings.
    ConfigPart at "config" {
        /// Its path; `null` without a file.
        file: Option<Arc<str>>,
        /// Whether what it says is in force.
        in_force: bool,
        /// Since when what is in force is so.
        since: String,
        /// `[[policy]]` entries.
        policies: usize,
        /// `[[queue]]` entries with limits of starts.
        queues: usize,
    }
    /// A cause for which jobs do not start (chapter `incidents`).
    CausePart at "causes" {
        /// Its short name.
        name: &'static str,
        /// The sentence.
        why: Box<str>,
        /// What to do.
        r#do: Box<str>,
        /// When it lets go, as far as time goes; `null`: nobody knows.
        next_start: Option<String>,
        /// Whether jobs start all the same: it tells of something else.
        lets_start: bool,
    }
    /// An entry that is only tried (`mode = "shadow"`): what it would have done here since its numbers are in force.
    ShadowPart at "shadow" {
        /// The name of the policy; `queue` stands for all `[[queue]]` entries.
        policy: Arc<str>,
        /// Jobs that would have started at once.
        started: u64,
        /// Jobs that would have waited, and started by now.
        waited: u64,
        /// Jobs that would have been dropped.
        dropped: u64,
        /// Jobs that found more waiting than are followed.
        unknown: u64,
        /// Jobs that would wait now.
        waiting: usize,
        /// The longest wait that came to its end, in milliseconds.
        longest_ms: u64,
        /// Of those that would have waited, how many for which limit.
        waited_for: BTreeMap<&'static str, u64>,
        /// The most jobs of one key that really ran at once, each counted by its cost.
        peak_at_once: u32,
        /// The most starts of one key that were really seen in the period of the first rate, else of the throttle, each
        /// counted by its cost.
        peak_starts: u32,
        /// Starts of keys beyond the 10,000 whose use is followed: if there are any, both peaks may be too low.
        peak_unfollowed: u64,
    }
    /// The keys.
    KeysPart at "keys" {
        /// Keys that are known.
        total: usize,
        /// Those that match `search` or `key`. A search finds them by their own names, and by that of a queue all of whose
        /// jobs have the key.
        found: usize,
        /// The page that is shown, from 1.
        page: usize,
        /// Rows of a page.
        per_page: usize,
        /// The rows.
        rows: Vec<KeyRow>,
        /// Why there are no rows: the store does not answer.
        #[serde(skip_serializing_if = "Option::is_none")]
        problem: Option<String>,
    }
    /// One key. Rows stand in this order: most refused, longest waited, most started, name.
    KeyRow at "keys.rows" {
        /// The key; `_queue:NAME` is a queue as a whole, `_policy:NAME` what is set by hand for all keys of a policy.
        name: Box<str>,
        /// The policy that has it.
        policy: Arc<str>,
        /// What was seen here in the last minute.
        minute: MinutePart,
        /// Jobs and calls that started here in the last two minutes, in steps of 10 s, oldest first.
        recent: Vec<u32>,
        /// What `GET /ojs/v1/rate-limits/KEY` says.
        state: Box<RawValue>,
        /// What keeps its next job from starting, as one of `causes`; `null`: nothing that is known.
        cause: Option<CausePart>,
        /// What was seen here in the last hour; only with `key`, and of the first `metrics.top_keys` keys.
        #[serde(skip_serializing_if = "Option::is_none")]
        history: Option<HistoryPart>,
    }
    /// What this sidecar saw of a key in the last 50 to 60 seconds.
    MinutePart at "keys.rows.minute" {
        /// Jobs that started.
        starts: u32,
        /// Questions for a start that were refused.
        refused: u32,
        /// The longest wait of a job that started, in milliseconds.
        waited_ms: u32,
    }
    /// What this sidecar saw of a key in the last hour, oldest first.
    HistoryPart at "keys.rows.history" {
        /// Seconds from one number to the next.
        step_s: u64,
        /// When the last step began, or a little later.
        until: String,
        /// Jobs that started.
        starts: Vec<u32>,
        /// Questions for a start that were refused.
        refused: Vec<u32>,
        /// The steps, from 0, in which a start was refused because the key was shut or paused.
        closed: Vec<usize>,
        /// How long the last jobs of a key with slots ran, in the mean; `null`: not known.
        run_ms: Option<u64>,
        /// Who had the starts, of a key whose turns are shared.
        groups: Vec<BandPart>,
    }
    /// What one group had of a key in the last hour.
    BandPart at "keys.rows.history.groups" {
        /// Its name; `null`: all groups that are not named.
        group: Option<Arc<str>>,
        /// Its starts in each minute, oldest first.
        starts: Vec<u32>,
    }
    /// The queues that have limits or a bound, are paused, or have jobs that wait.
    QueuesPart at "queues" {
        /// How many there are.
        total: usize,
        /// The rows, most pressed first, 50 at most. Queues with the text of `search` in their names come before all.
        rows: Vec<QueueRow>,
    }
    /// One queue.
    QueueRow at "queues.rows" {
        /// Its name.
        queue: Arc<str>,
        /// Whether it is paused.
        paused: bool,
        /// Its jobs that are held here.
        held: usize,
        /// Its jobs that wait: those that are held here, and those that the backend has available.
        waiting: u64,
        /// Its depth, of a bounded queue.
        depth: Option<u64>,
        /// The bound of that.
        max_depth: Option<u64>,
        /// What was set over HTTP of its bounds; it stands until somebody takes it away.
        bounds_over_http: Option<Box<RawValue>>,
        /// How much of its nearest bound is used, from 0 to 1.
        pressure: Option<f64>,
        /// Enqueues that were refused in the last minute.
        refused: u32,
        /// What is known of it, as one of `causes`, or what holds back one of its keys that is on this page; `null`: nothing
        /// that keeps its jobs.
        cause: Option<CausePart>,
        /// When the last of those that wait now starts, as far as the limits on this page decide; `null`: nobody can say.
        waiting_done: Option<String>,
    }
    /// The ways out of calls.
    WayRow at "ways" {
        /// The name of its `[[egress]]`.
        name: Arc<str>,
        /// Where callers connect.
        listen: String,
        /// Where calls go: its upstream, or the hosts that it lists.
        to: String,
        /// Whether a service behind it answers.
        up: bool,
        /// Calls that are out.
        out: usize,
        /// Calls that wait.
        waiting: usize,
        /// What was answered in the last minute, by status; `_other`: by one that HTTP does not have.
        answers: BTreeMap<String, u32>,
        /// The key of its calls, as the file has it.
        key: String,
        /// What keeps its next call from starting, as one of `causes`, if its key is on this page; `null`: nothing.
        cause: Option<CausePart>,
    }
    /// What happened while somebody watched the stream. What is alike stands in one row.
    EventsPart at "events" {
        /// Events that came too quickly to be shown.
        missed: u64,
        /// The last rows, newest first, 20 at most.
        last: Vec<EventRow>,
    }
    /// One event (chapter `event-stream`).
    EventRow at "events.last" {
        /// When the last of them happened.
        time: String,
        /// How many of this type, limit and queue came since the row is here.
        times: u64,
        /// Its type.
        r#type: String,
        /// What it is about: a job, a key or a queue.
        subject: String,
        /// Its queue, if it happened in one.
        queue: Option<String>,
        /// The id of the job to which the last of them happened.
        job: Option<String>,
        /// Its key, if it happened to one.
        key: Option<String>,
        /// Which limit it is about, if it is about one.
        strategy: Option<String>,
    }
}

impl From<(&Arc<str>, &ShadowTally)> for ShadowPart {
    fn from((policy, tally): (&Arc<str>, &ShadowTally)) -> ShadowPart {
        ShadowPart {
            policy: Arc::clone(policy),
            started: tally.started,
            waited: tally.waited,
            dropped: tally.dropped,
            unknown: tally.unknown,
            waiting: tally.waiting,
            longest_ms: tally.longest_ms,
            waited_for: tally.waited_for.clone(),
            peak_at_once: tally.peak.at_once,
            peak_starts: tally.peak.starts,
            peak_unfollowed: tally.peak.unfollowed,
        }
    }
}

impl From<&Cause> for CausePart {
    fn from(cause: &Cause) -> CausePart {
        CausePart {
            name: cause.kind.name,
            why: cause.why.as_str().into(),
            r#do: cause.advice.as_str().into(),
            next_start: cause.until.map(rfc3339),
            lets_start: cause.lets_start(),
        }
    }
}

/// One state.
#[derive(Debug, Serialize)]
pub(super) struct State<'a> {
    /// As of when what waits and what is held is known.
    pub(super) at: String,
    #[serde(flatten)]
    pub(super) head: StateHead,
    pub(super) keys: KeysPart,
    pub(super) queues: QueuesPart,
    pub(super) ways: Vec<WayRow>,
    pub(super) events: &'a EventsPart,
    /// With `key`: what `GET /throttle/v1/why` says of it, as of the same moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) why: Option<Box<RawValue>>,
}

/// What is the same for every question.
#[derive(Debug, Serialize)]
pub(super) struct StateHead {
    pub(super) sidecar: SidecarPart,
    pub(super) store: StorePart,
    pub(super) backend: BackendPart,
    pub(super) config: ConfigPart,
    /// What is wrong with the sidecar as a whole.
    pub(super) causes: Vec<CausePart>,
    /// The entries that are only tried.
    pub(super) shadow: Vec<ShadowPart>,
}
