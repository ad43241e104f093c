//! The four streams of jobs in the scene of limits, and their limits.

use std::time::Duration;

use super::scene::{Enforcement, JobStream, StreamLimit, Workers};

/// How many of a stream's jobs may wait before its producer pauses.
const BACKLOG: usize = 60;

/// The streams, in the order in which they are shown. They share a queue: held jobs of one must not hold up another.
/// Each is offered well above its limit.
pub(super) const STREAMS: [JobStream; 4] = [
    JobStream {
        name: "stripe",
        kind: "payment.charge",
        limit: StreamLimit::Rate {
            limit: 20,
            period: Duration::from_secs(2),
        },
        batch: 4,
        backlog: BACKLOG,
        runs: (5, 25),
        ..JobStream::PLAIN
    },
    JobStream {
        name: "render",
        kind: "video.render",
        limit: StreamLimit::AtOnce(3),
        batch: 5,
        backlog: BACKLOG,
        runs: (100, 300),
        ..JobStream::PLAIN
    },
    JobStream {
        name: "mail",
        kind: "mail.send",
        limit: StreamLimit::Spaced {
            limit: 10,
            period: Duration::from_secs(1),
        },
        batch: 4,
        backlog: BACKLOG,
        runs: (5, 25),
        ..JobStream::PLAIN
    },
    JobStream {
        name: "free",
        kind: "report.build",
        batch: 10,
        backlog: BACKLOG,
        runs: (5, 25),
        ..JobStream::PLAIN
    },
];

/// They poll as seldom as most SDKs.
pub(super) const WORKERS: [Workers; 1] = [Workers {
    queue: JobStream::PLAIN.queue,
    workers: 3,
    slots: 10,
    poll: Duration::from_secs(1),
}];

/// The sidecar's policies. With the limits off it has none, and heeds none that jobs bring.
pub(super) fn policies(limits: Enforcement) -> &'static str {
    match limits {
        Enforcement::On => POLICIES,
        Enforcement::Off => UNLIMITED,
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

    fn settings(limits: Enforcement) -> Settings {
        let server = "[server]\nupstream = \"http://127.0.0.1:9\"\n";
        Settings::parse(&format!("{server}{}", policies(limits)), "demo").unwrap()
    }

    #[test]
    fn the_config_says_what_the_streams_promise() {
        let settings = settings(Enforcement::On);
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
        assert!(self::settings(Enforcement::Off).policies.is_empty());
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
