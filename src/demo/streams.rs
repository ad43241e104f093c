//! The four streams of jobs and their limits.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};

/// Whether the sidecar enforces the limits. `--break` runs the same jobs without them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Enforcement {
    /// As always.
    On,
    /// Every limit is off, so that the judge has breaches to see.
    Off,
}

/// The queue that all streams share: held jobs of one stream must not hold up another.
pub const QUEUE: &str = "default";

/// How one stream is limited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamLimit {
    /// At most `limit` starts in any interval of `period`.
    Rate {
        /// Starts.
        limit: u32,
        /// Length of the interval.
        period: Duration,
    },
    /// At most so many jobs with workers at once.
    AtOnce(u32),
    /// Starts are at least `period / limit` apart.
    Spaced {
        /// Starts.
        limit: u32,
        /// How long so many take.
        period: Duration,
    },
    /// Nothing.
    Free,
}

/// One stream of jobs.
#[derive(Clone, Copy, Debug)]
pub struct JobStream {
    /// Its name in the report, and its rate-limit key.
    pub name: &'static str,
    /// The type of its jobs.
    pub kind: &'static str,
    /// Its limit.
    pub limit: StreamLimit,
    /// Jobs enqueued per second while fewer than [`BACKLOG`] wait: well above the limit.
    pub offered: u32,
    /// How long its jobs run, in milliseconds: the shortest and the longest.
    pub runs: (u64, u64),
    /// Where its limit is written, in words.
    pub told: &'static str,
}

/// How many of its jobs may wait before a producer pauses, so that a long run does not pile up.
pub const BACKLOG: usize = 60;

/// The streams, in the order in which they are shown.
pub const STREAMS: [JobStream; 4] = [
    JobStream {
        name: "stripe",
        kind: "payment.charge",
        limit: StreamLimit::Rate {
            limit: 20,
            period: Duration::from_secs(2),
        },
        offered: 40,
        runs: (5, 25),
        told: "a [[policy]] in the config",
    },
    JobStream {
        name: "render",
        kind: "video.render",
        limit: StreamLimit::AtOnce(3),
        offered: 50,
        runs: (100, 300),
        told: "a [[policy]] in the config",
    },
    JobStream {
        name: "mail",
        kind: "mail.send",
        limit: StreamLimit::Spaced {
            limit: 10,
            period: Duration::from_secs(1),
        },
        offered: 40,
        runs: (5, 25),
        told: "sent along with each job",
    },
    JobStream {
        name: "free",
        kind: "report.build",
        limit: StreamLimit::Free,
        offered: 100,
        runs: (5, 25),
        told: "nowhere",
    },
];

/// The sidecar's config. With the limits off it has none, and heeds none that jobs bring.
pub fn config(upstream: SocketAddr, limits: Enforcement) -> String {
    let policies = match limits {
        Enforcement::On => POLICIES,
        Enforcement::Off => UNLIMITED,
    };
    format!("{}\nupstream = \"http://{upstream}\"\n{policies}", SERVER)
}

/// Where the sidecar of a scene listens, and how it ends.
pub(super) const SERVER: &str = r#"[server]
listen = "127.0.0.1:0"
admin_listen = "127.0.0.1:0"
drain_timeout = "3s"
drain_min = "0s""#;

const POLICIES: &str = r#"
[[policy]]
name = "stripe"
match = { type = "payment.*" }
rate = { limit = 20, period = "2s" }

[[policy]]
name = "render"
match = { type = "video.*" }
concurrency = 3
"#;

const UNLIMITED: &str = r#"
[job_policies]
accept = "ignore"
"#;

impl JobStream {
    /// The enqueue body of its `nth` job. Mail brings its limit with it.
    pub fn job(&self, nth: u64) -> Value {
        let mut options = json!({ "queue": QUEUE });
        if let StreamLimit::Spaced { limit, period } = self.limit {
            let period = format!("PT{}S", period.as_secs_f64());
            let throttle = json!({ "limit": limit, "period": period });
            options = json!({
                "queue": QUEUE,
                "rate_limit": { "key": self.name, "throttle": throttle },
            });
        }
        json!({ "type": self.kind, "args": [nth], "options": options })
    }

    /// How long its `nth` job runs: spread over the range, and the same in every run.
    pub fn run_time(&self, nth: u64) -> Duration {
        let (shortest, longest) = self.runs;
        // 37 shares no factor with the widths of the ranges, so all of them is used.
        Duration::from_millis(shortest + nth * 37 % (longest - shortest + 1))
    }
}

impl StreamLimit {
    /// The number that its starts are counted against, if there is one.
    pub fn number(self) -> Option<u32> {
        match self {
            StreamLimit::Rate { limit, .. }
            | StreamLimit::AtOnce(limit)
            | StreamLimit::Spaced { limit, .. } => Some(limit),
            StreamLimit::Free => None,
        }
    }
}

impl fmt::Display for StreamLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StreamLimit::Rate { limit, period } => write!(f, "{limit} in any {period:?}"),
            StreamLimit::AtOnce(limit) => write!(f, "{limit} at once"),
            StreamLimit::Spaced { limit, period } => write!(f, "1 every {:?}", *period / *limit),
            StreamLimit::Free => f.write_str("no limit"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

    #[test]
    fn the_config_says_what_the_streams_promise() {
        let upstream = SocketAddr::from(([127, 0, 0, 1], 9));
        let settings = Settings::parse(&config(upstream, Enforcement::On), "demo").unwrap();
        assert_eq!(settings.warnings.warnings(), 0, "{}", settings.warnings);
        for stream in STREAMS {
            let policies = settings.policies.policies();
            let policy = policies.iter().find(|policy| &*policy.name == stream.name);
            match stream.limit {
                StreamLimit::Rate { limit, period } => {
                    let rate = &policy.unwrap().limits.rates[0];
                    assert_eq!(
                        (rate.limit.get(), u128::from(rate.period.get())),
                        (limit, period.as_micros())
                    );
                }
                StreamLimit::AtOnce(limit) => {
                    assert_eq!(policy.unwrap().limits.concurrency, Some(limit))
                }
                StreamLimit::Spaced { .. } => {
                    assert!(stream.job(1)["options"]["rate_limit"].is_object())
                }
                StreamLimit::Free => assert!(policy.is_none()),
            }
        }
        let settings = Settings::parse(&config(upstream, Enforcement::Off), "demo").unwrap();
        assert!(settings.policies.is_empty());
    }

    #[test]
    fn jobs_take_as_long_as_their_range_says() {
        for stream in STREAMS {
            let all: std::collections::BTreeSet<u128> =
                (0..1_000).map(|n| stream.run_time(n).as_millis()).collect();
            assert_eq!(*all.first().unwrap(), u128::from(stream.runs.0));
            assert_eq!(*all.last().unwrap(), u128::from(stream.runs.1));
        }
    }
}
