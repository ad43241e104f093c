//! Every setting that stands in a table of its own, a line each: what it is for, its field and type, its
//! default, its name in the file, whether a reload can change it (`live`, else `restart`), and what it may be.
//! The structs, the reading, what a reload compares and what is shown of what is in force are made from these
//! lines, so whoever adds a setting adds one line here and one to `config.example.toml`.
//!
//! Why one table and a macro: a setting has a type, a default, a name, a reader, a way to be shown, and a moment from
//! which another value counts. Were each of them said where it is used, a new setting would need six places, and no
//! compiler would miss the one that was forgotten. To derive the reading with serde was the other way: it stops at the
//! first problem of a file, and it does not know what a reload may change.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use super::budget::Budget;
use super::choices::{LogFormat, MediaType, StoreUrl};
use super::egress::EgressSettings;
use super::kinds::{
    HOUR, SettingKind, address, backend, certificates, count, flag, name, namespace, path, size,
    some_url, store, time, token, word,
};
use super::origins::Origins;
use super::policies::{ACCEPTS, Limiting};
use super::tls::{TlsSettings, secured};
use ojs_bounds::FileBounds;
use ojs_limit::Key;
use ojs_policy::{Accept, PolicySet};
use ojs_reader::{Report, Secret, Sources, TomlTable};
use ojs_store::guard::{Declared, OnStoreError};
use ojs_store::reserved;
use ojs_wire::upstream::BaseUrl;

/// The longest that an answer may be kept back: the SDKs give up after 30 s.
pub const LONGEST_WAIT: Duration = Duration::from_secs(25);

/// The shortest timeout that makes sense.
const LEAST: Duration = Duration::from_millis(1);

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A port of this machine that others do not reach.
fn local(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// One setting, as a reload looks at it, and as it is shown.
#[derive(Debug)]
pub struct Setting {
    /// Its name in the file.
    pub name: &'static str,
    /// When another value counts.
    pub effect: TakesEffect,
    /// Whether it is the same in both.
    pub same: fn(&Settings, &Settings) -> bool,
    /// Its value as the file would write it.
    pub(super) shown: fn(&Settings) -> Value,
    /// Its default likewise.
    pub(super) default: fn() -> Value,
}

/// When another value of a setting counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TakesEffect {
    /// For the next decision.
    Live,
    /// After a restart: something was built from it at the start.
    Restart,
}

/// The tables at the top of the file, each of which is read setting by setting.
pub(super) struct TablesByName<'r> {
    root: TomlTable<'r>,
    tables: BTreeMap<&'static str, TomlTable<'r>>,
}

impl<'r> TablesByName<'r> {
    pub(super) fn new(root: TomlTable<'r>) -> TablesByName<'r> {
        TablesByName {
            root,
            tables: BTreeMap::new(),
        }
    }

    /// The whole file.
    pub(super) fn root(&mut self) -> &mut TomlTable<'r> {
        &mut self.root
    }

    pub(super) fn table(&mut self, name: &'static str) -> &mut TomlTable<'r> {
        let root = &mut self.root;
        self.tables.entry(name).or_insert_with(|| root.table(name))
    }

    /// Reads the setting of this name, such as `fetch.max_wait`.
    pub(super) fn read<T>(
        &mut self,
        name: &'static str,
        default: T,
        kind: impl SettingKind<T>,
    ) -> T {
        let (table, field) = name.split_once('.').unwrap_or(("", name));
        kind.read(self.table(table), field, default)
    }
}

macro_rules! settings {
    ($(
        $(#[$about:meta])*
        $table:ident: $Table:ident {
            $(
                $(#[$doc:meta])*
                $field:ident: $Type:ty = $default:expr, $name:literal $effect:ident $kind:expr;
            )*
        }
    )*) => {
        $(
            $(#[$about])*
            #[derive(Clone, PartialEq, Eq, Debug)]
            pub struct $Table {
                $( $(#[$doc])* pub $field: $Type, )*
            }

            impl Default for $Table {
                fn default() -> $Table {
                    $Table { $( $field: $default, )* }
                }
            }
        )*

        /// Everything, ready to run with.
        #[derive(Clone, Debug)]
        pub struct Settings {
            $( $(#[$about])* pub $table: $Table, )*
            /// `[[policy]]`, `[[queue]]` and `[job_policies]`.
            pub policies: Arc<PolicySet>,
            /// The bounds of `[[queue]]` and `[[tenant]]`.
            pub bounds: Arc<FileBounds>,
            /// What happens to single policies while the store is lost.
            pub on_store_error_by_policy: Declared,
            /// The policies whose start times are reserved ahead (`sync = "reserved"`).
            pub reserved: reserved::Policies,
            /// `[[egress]]`: ways out for the calls that workers make.
            pub egress: Vec<EgressSettings>,
            /// What is doubtful in the file but no reason to stop.
            pub warnings: Report,
            /// Who said it.
            pub(super) origins: Origins,
        }

        impl Settings {
            /// The way out of this name.
            pub fn way(&self, name: &str) -> Option<&EgressSettings> {
                self.egress.iter().find(|entry| *entry.name == *name)
            }

            /// The budget that has this key: of names that go on where others end, the longest one.
            pub fn budget_of(&self, key: &Key) -> Option<&Budget> {
                let budgets = self.egress.iter().flat_map(|entry| &entry.budgets);
                let fits = |budget: &&Arc<Budget>| {
                    key.as_str().starts_with(&*budget.name) && budget.key.may_give(key)
                };
                // Of several that are of one name the first.
                let budget = budgets.rev().filter(fits).max_by_key(|budget| budget.name.len());
                budget.map(|budget| &**budget)
            }

            /// The budget of this name, if one has it.
            pub fn budget_named(&self, name: &str) -> Option<&Budget> {
                let mut budgets = self.egress.iter().flat_map(|entry| &entry.budgets);
                budgets.find(|budget| *budget.name == *name).map(|budget| &**budget)
            }

            /// Whether there is no backend, so that calls are all that is limited (`server.upstream = "none"`).
            pub fn calls_only(&self) -> bool {
                self.upstream.url.is_none()
            }

            /// Reads each setting from its table.
            pub(super) fn read(file: &mut TablesByName<'_>, limiting: Limiting) -> Settings {
                Settings {
                    $( $table: {
                        let default = $Table::default();
                        $Table { $( $field: file.read($name, default.$field, $kind), )* }
                    }, )*
                    policies: Arc::new(limiting.policies),
                    bounds: Arc::new(limiting.bounds),
                    on_store_error_by_policy: limiting.on_store_error,
                    reserved: limiting.reserved,
                    egress: limiting.egress,
                    warnings: Report::new(&Sources::default(), Vec::new()),
                    origins: Origins::default(),
                }
            }
        }

        /// All of them, in the order of the lines.
        pub const SETTINGS: &[Setting] = &[
            $( $(
                Setting {
                    name: $name,
                    effect: TakesEffect::$effect,
                    same: |a, b| a.$table.$field == b.$table.$field,
                    shown: |settings| $kind.show(&settings.$table.$field),
                    default: || $kind.show(&$Table::default().$field),
                },
            )* )*
            // Policies are compiled with it.
            Setting {
                name: "job_policies.accept",
                effect: TakesEffect::Live,
                same: |a, b| a.policies.accept() == b.policies.accept(),
                shown: |settings| word(&ACCEPTS).show(&settings.policies.accept()),
                default: || word(&ACCEPTS).show(&Accept::default()),
            },
        ];
    };
}

settings! {
    /// `[server]`: listeners and their bounds.
    server: ServerSettings {
        /// Where SDKs connect.
        listen: SocketAddr = local(8080), "server.listen" Restart address;
        /// Where metrics, health and control are.
        admin_listen: SocketAddr = local(9091), "server.admin_listen" Restart address;
        /// How `listen` is secured. `None`: not at all.
        tls: Option<TlsSettings> = None, "server.tls" Live secured();
        /// How `admin_listen` is secured.
        admin_tls: Option<TlsSettings> = None, "server.admin_tls" Live secured();
        /// Threads, each with its own listener and connections.
        threads: usize = 1, "server.threads" Restart count(1..=64);
        /// The longest that a stop waits for limited jobs that are out, or held where that costs attempts.
        drain_timeout: Duration = seconds(25), "server.drain_timeout" Live time(Duration::ZERO..=HOUR);
        /// The least that a stop goes on serving, whatever is out; at most `drain_timeout`.
        drain_min: Duration = seconds(5), "server.drain_min" Live time(Duration::ZERO..=HOUR);
        /// The largest body that is read whole, in bytes; a larger one gets 413.
        max_body: usize = 8 << 20, "server.max_body" Live size(64 << 10..=1 << 30);
        /// The bytes of all bodies that are read whole, until their requests are answered; a body beyond gets 503.
        max_bodies: usize = 128 << 20, "server.max_bodies" Restart size(1 << 20..=64 << 30);
        /// Connections at once, of each thread.
        max_connections: usize = 10_000, "server.max_connections" Restart count(1..=1_000_000);
        /// Requests at once, of each thread; one more gets 503.
        max_in_flight: usize = 1_024, "server.max_in_flight" Restart count(1..=1_000_000);
        /// From the first byte of a request to the end of its head.
        header_timeout: Duration = seconds(5), "server.header_timeout" Restart time(LEAST..=HOUR);
        /// How long an idle connection is kept; longer than SDKs keep theirs, so that they close first.
        idle_timeout: Duration = seconds(125), "server.idle_timeout" Restart time(LEAST..=24 * HOUR);
        /// From the head of a request to the end of its body.
        body_timeout: Duration = seconds(10), "server.body_timeout" Live time(LEAST..=HOUR);
        /// The bearer token with which limits may be changed on the admin port, and where others reach the data port.
        control_token: Option<Secret> = None, "server.control_token" Live token();
        /// Whether `X-OJS-Tenant` says which tenant a FETCH or an enqueue is for.
        trust_tenant_header: bool = false, "server.trust_tenant_header" Live flag;
        /// Whether requests go on with `X-Forwarded-*` that say who sent them.
        adds_forwarded: bool = false, "server.forwarded" Restart word(&[("off", false), ("add", true)]);
        /// How log lines look.
        log: LogFormat = LogFormat::Human, "server.log" Restart word(&LogFormat::WORDS);
        /// Which log lines there are.
        log_level: tracing::Level = tracing::Level::INFO, "server.log_level" Live word(&LEVELS);
    }

    /// `[upstream]`, and what `[server]` says of the backend: how it is reached and what is known of it.
    upstream: UpstreamSettings {
        /// The backend. `None`: there is none, and calls are all that is limited.
        url: Option<BaseUrl> = Some(BaseUrl::default()), "server.upstream" Restart backend();
        /// From the first byte sent to the last byte read, of calls whose reply is read whole.
        timeout: Duration = seconds(30), "server.upstream_timeout" Restart time(LEAST..=HOUR);
        /// To make a connection, TLS included.
        connect_timeout: Duration = seconds(2), "server.connect_timeout" Restart time(LEAST..=seconds(60));
        /// How long a connection is kept idle; shorter than backends keep theirs, or a request meets a close.
        idle_timeout: Duration = seconds(4), "upstream.idle_timeout" Restart time(LEAST..=HOUR);
        /// The bearer token of the sidecar's own calls.
        token: Option<Secret> = None, "upstream.token" Live token();
        /// The worker id of the sidecar's own claims. `None`: made from the host's name and the port.
        worker_id: Option<String> = None, "upstream.worker_id" Restart name;
        /// Roots to trust beside the system's, in PEM.
        ca_file: Option<PathBuf> = None, "upstream.ca_file" Restart path;
        /// What is shown to a backend that asks who we are, in PEM.
        client_cert_file: Option<PathBuf> = None, "upstream.client_cert_file" Restart path;
        /// The key of that.
        client_key_file: Option<PathBuf> = None, "upstream.client_key_file" Restart path;
        /// Whether a nack with `requeue` leaves the job as it was; else it costs an attempt, or is ignored.
        /// `None`: as the backend is known, else not.
        requeue_harmless: Option<bool> = None, "upstream.requeue" Restart
            word(&[("auto", None), ("harmless", Some(true)), ("burns", Some(false))]);
        /// Whether handing a job out counts as an attempt; else its end does. `None`: as the first claimed job
        /// shows.
        claims_count: Option<bool> = None, "upstream.claims_count" Restart
            word(&[("auto", None), ("yes", Some(true)), ("no", Some(false))]);
        /// Whether any heartbeat of the worker id that claimed a job keeps its claim alive; else one that names
        /// the job. `None`: as the backend is known; of another each limited job is claimed by itself.
        worker_liveness: Option<bool> = None, "upstream.liveness" Restart
            word(&[("auto", None), ("job", Some(false)), ("worker", Some(true))]);
        /// Whether a heartbeat's visibility counts from the start of the job; else from the heartbeat. `None`:
        /// as the backend is known, else not.
        heartbeat_from_start: Option<bool> = None, "upstream.heartbeat" Restart
            word(&[("auto", None), ("from_now", Some(false)), ("from_start", Some(true))]);
    }

    /// `[store]`: where usage is kept.
    store: StoreSettings {
        /// Which store.
        url: StoreUrl = StoreUrl::Memory, "store.url" Restart store();
        /// The password in `url`, where that has none.
        password: Option<Secret> = None, "store.password" Restart token();
        /// Sidecars with the same one on the same store share their budgets.
        namespace: String = "ojs-throttle".to_owned(), "store.namespace" Restart namespace;
        /// The longest that a call may take.
        timeout: Duration = millis(250), "store.timeout" Restart time(LEAST..=seconds(10));
        /// What happens while the store is lost.
        on_store_error: OnStoreError = OnStoreError::default(), "store.on_store_error" Restart
            word(&OnStoreError::words());
        /// The PEM file of the roots to trust in place of the system's.
        ca_file: Option<PathBuf> = None, "store.ca_file" Restart certificates;
        /// What is shown to a store that asks who we are, in PEM.
        client_cert_file: Option<PathBuf> = None, "store.client_cert_file" Restart path;
        /// The key of that.
        client_key_file: Option<PathBuf> = None, "store.client_key_file" Restart path;
    }

    /// `[fetch]`: how long a FETCH may take on our account.
    fetch: FetchSettings {
        /// How long an empty FETCH may wait for a start.
        max_wait: Duration = seconds(2), "fetch.max_wait" Live time(Duration::ZERO..=LONGEST_WAIT);
        /// How long one FETCH may go on claiming.
        claim_budget: Duration = millis(200), "fetch.claim_budget" Live time(LEAST..=LONGEST_WAIT);
    }

    /// `[hold]`: claimed jobs that wait.
    hold: HoldSettings {
        /// After how long without a FETCH for its queue a held job is offered or given back.
        idle: Duration = seconds(10), "hold.idle" Live time(LEAST..=HOUR);
        /// The most held jobs, beside a quarter more for queues that find it full; `None`: 1024, or 256 where
        /// claims count as attempts.
        max: Option<usize> = None, "hold.max" Live count(1..=50_000);
        /// The most bytes of held jobs, and a quarter more likewise.
        max_bytes: usize = 64 << 20, "hold.max_bytes" Live size(1 << 20..=16 << 30);
    }

    /// `[settle]`: ACK and nack.
    settle: SettleSettings {
        /// How long an ACK or nack is tried again.
        retry_for: Duration = seconds(10), "settle.retry_for" Live time(Duration::ZERO..=LONGEST_WAIT);
    }

    /// `[repairs]`: what is mended between SDKs and backends.
    repairs: RepairSettings {
        /// A heartbeat with a number in `active_jobs` gets its list of ids there.
        heartbeat_active_jobs: bool = true, "repairs.heartbeat_active_jobs" Live flag;
        /// Over-encoded queue names in paths go upstream plain.
        queue_paths: bool = true, "repairs.queue_paths" Live flag;
        /// `job` and `jobs` of a FETCH reply say the same.
        job_and_jobs: bool = true, "repairs.job_and_jobs" Live flag;
        /// Replies as `application/json`.
        media_type: MediaType = MediaType::Auto, "repairs.media_type" Live word(&MediaType::WORDS);
    }

    /// `[traces]`: where spans go.
    traces: TracesSettings {
        /// The base URL of a collector that takes OTLP over HTTP; `OTEL_*` variables win. `None`: as those say.
        endpoint: Option<BaseUrl> = None, "traces.endpoint" Restart some_url();
    }

    /// `[metrics]`: what is measured.
    metrics: MetricsSettings {
        /// How many keys have series of their own.
        top_keys: usize = 50, "metrics.top_keys" Restart count(0..=10_000);
    }
}

impl HoldSettings {
    /// The most held jobs, by whether handing one out counts as an attempt: each end of the sidecar costs them one.
    pub fn most(&self, claims_count: bool) -> usize {
        self.max.unwrap_or(if claims_count { 256 } else { 1024 })
    }

    /// How many of them may be of one queue where no other has any. Turns are shared among these.
    pub fn of_one_queue(&self, claims_count: bool) -> usize {
        self.most(claims_count) / 4 * 3
    }
}

const LEVELS: [(&str, tracing::Level); 4] = [
    ("error", tracing::Level::ERROR),
    ("warn", tracing::Level::WARN),
    ("info", tracing::Level::INFO),
    ("debug", tracing::Level::DEBUG),
];
