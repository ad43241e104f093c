//! That these clients react as the official SDKs were seen to react: each meets answers by a script, and
//! what it sends, and when, is what was observed.

use super::prelude::*;
use super::stage::Answer::{self, Closes, Jobs, JobsAfter, Says};
use super::stage::{ALWAYS, Script, Stage};
use super::worker::Process;

const REFUSED: &str = r#"{"error":{"code":"QUEUE_FULL","message":"full","retryable":true}}"#;

/// Whether times are these, within a hundredth.
#[track_caller]
fn at(sdk: &Sdk, times: &[f64], expected: &[f64]) {
    let near = |(a, b): (&f64, &f64)| (a - b).abs() < 0.011;
    let same = times.len() >= expected.len() && times.iter().zip(expected).all(near);
    assert!(same, "{}: {times:?} instead of {expected:?}", sdk.name);
}

const ALL: [&Sdk; 4] = [&JAVASCRIPT, &PYTHON, &GO, &RUST];

/// A worker of this SDK on a stage, after so many milliseconds.
async fn play(sdk: &'static Sdk, script: &Script, millis: u64) -> (Stage, Process) {
    let stage = Stage::set(sdk, script).await;
    let worker = stage.worker();
    sleep(Duration::from_millis(millis)).await;
    (stage, worker)
}

/// When a worker polls for nothing, what it asks for, and when its heart beats.
#[tokio::test(start_paused = true)]
async fn polls_and_heartbeats() {
    for sdk in ALL {
        let (stage, _worker) = play(sdk, &[], 31_000).await;
        let fetches = stage.heard("fetch");
        for pair in fetches.windows(2) {
            let gap = pair[1].at - pair[0].at;
            let expected = if sdk.name == "python" {
                1.6..2.41
            } else {
                0.99..1.01
            };
            assert!(expected.contains(&gap), "{}: {gap}", sdk.name);
        }
        let count = if sdk.name == "python" { 1 } else { 10 };
        assert_eq!(fetches[0].body["count"], count, "{}", sdk.name);
        let first = if sdk.name == "python" { 0.0 } else { 5.0 };
        let beats: Vec<f64> = (0..5).map(|n| first + 5.0 * f64::from(n)).collect();
        at(sdk, &stage.times("heartbeat"), &beats);
    }
}

/// A job is polled after at once; a worker that is full looks again after 1 s, or waits for a slot.
#[tokio::test(start_paused = true)]
async fn polls_after_jobs() {
    for sdk in ALL {
        let script = [("fetch", 1, Jobs(1))];
        let (stage, _worker) = play(sdk, &script, 1_000).await;
        at(sdk, &stage.times("fetch"), &[0.0, 0.0]);
    }
}

/// How often an enqueue is sent, and with which pauses.
#[tokio::test(start_paused = true)]
async fn refused_enqueues() {
    let enqueue = async |sdk, answer: Answer| {
        let stage = Stage::set(sdk, &[("jobs", ALWAYS, answer)]).await;
        let stored = stage.client().enqueue(&NewJob::new("t", "q", 1)).await;
        assert!(stored.is_err());
        stage.times("jobs")
    };
    for sdk in ALL {
        let retries = sdk.name != "go";
        let told = enqueue(sdk, Says(429, 2, REFUSED)).await;
        let expected: &[f64] = if retries {
            &[0.0, 2.0, 4.0, 6.0]
        } else {
            &[0.0]
        };
        at(sdk, &told, expected);
        assert_eq!(told.len(), expected.len(), "{}", sdk.name);
        // Nobody waits longer than 30 s.
        let long = enqueue(sdk, Says(429, 45, REFUSED)).await;
        at(
            sdk,
            &long[..long.len().min(2)],
            if retries { &[0.0, 30.0] } else { &[0.0] },
        );
        // On a 503 the header is not heeded.
        let busy = enqueue(sdk, Says(503, 20, REFUSED)).await;
        assert_eq!(busy.len(), expected.len(), "{}", sdk.name);
        assert!(busy.iter().all(|at| *at < 3.51), "{}: {busy:?}", sdk.name);
        // JavaScript wants JSON, or takes it for a broken connection.
        let bare = enqueue(sdk, Says(429, 1, "")).await;
        let tries = if matches!(sdk.name, "python" | "rust") {
            4
        } else {
            1
        };
        assert_eq!(bare.len(), tries, "{}", sdk.name);
        for answer in [Says(500, 0, REFUSED), Closes] {
            assert_eq!(enqueue(sdk, answer).await.len(), 1, "{}", sdk.name);
        }
    }
}

/// When a worker comes back after its FETCH was refused.
#[tokio::test(start_paused = true)]
async fn refused_fetches() {
    for sdk in ALL {
        let script = [("fetch", 5, Says(429, 2, REFUSED))];
        let (stage, _worker) = play(sdk, &script, 32_000).await;
        let expected: &[f64] = match sdk.name {
            "go" => &[0.0, 1.0, 3.0, 7.0, 15.0, 31.0],
            "rust" => &[0.0, 2.0, 4.0, 6.0, 7.0, 9.0],
            _ => &[0.0, 2.0, 4.0, 6.0, 8.0, 10.0],
        };
        at(sdk, &stage.times("fetch"), expected);
    }
    for sdk in ALL {
        let script = [("fetch", 2, Closes)];
        let (stage, _worker) = play(sdk, &script, 8_000).await;
        let expected: &[f64] = match sdk.name {
            "go" => &[0.0, 1.0, 3.0],
            "rust" => &[0.0, 1.0, 2.0],
            _ => &[0.0, 2.0, 6.0],
        };
        at(sdk, &stage.times("fetch"), expected);
    }
}

/// What follows an ACK that failed: Go and Rust do nothing, JavaScript and Python nack what is done.
#[tokio::test(start_paused = true)]
async fn failed_acks() {
    for sdk in ALL {
        for answer in [Says(500, 0, REFUSED), Says(409, 0, REFUSED), Closes] {
            let script = [("fetch", 1, Jobs(1)), ("ack", ALWAYS, answer)];
            let (stage, worker) = play(sdk, &script, 12_000).await;
            let (acks, nacks) = (stage.times("ack"), stage.heard("nack"));
            if sdk.settles == 1 {
                at(sdk, &acks, &[6.0]);
                assert_eq!((acks.len(), nacks.len()), (1, 0), "{}", sdk.name);
            } else {
                at(sdk, &acks, &[6.0, 6.5, 7.5]);
                at(sdk, &stage.times("nack"), &[7.5]);
                assert_eq!((acks.len(), nacks.len()), (3, 1), "{}", sdk.name);
                let error = &nacks[0].body["error"];
                assert_eq!(error["code"], "handler_error");
                assert_eq!(error["retryable"], true);
            }
            assert!(!worker.is_over(), "{}", sdk.name);
        }
    }
}

/// An ACK that is answered 503 is sent again by each layer that does so.
#[tokio::test(start_paused = true)]
async fn overloaded_acks() {
    for sdk in ALL {
        let script = [
            ("fetch", 1, Jobs(1)),
            ("ack", ALWAYS, Says(503, 1, REFUSED)),
        ];
        let (stage, _worker) = play(sdk, &script, 60_000).await;
        let sent = (stage.times("ack").len(), stage.times("nack").len());
        let expected = match sdk.name {
            "go" => (1, 0),
            "rust" => (4, 0),
            _ => (12, 1),
        };
        assert_eq!(sent, expected, "{}", sdk.name);
    }
}

/// Three failed nacks end the process of JavaScript, and of nobody else.
#[tokio::test(start_paused = true)]
async fn failed_nacks() {
    for sdk in ALL {
        let script = [
            ("fetch", 1, Jobs(1)),
            ("ack", ALWAYS, Says(409, 0, REFUSED)),
            ("nack", ALWAYS, Says(409, 0, REFUSED)),
        ];
        let (stage, worker) = play(sdk, &script, 12_000).await;
        if sdk.settles == 3 {
            at(sdk, &stage.times("nack"), &[7.5, 8.0, 9.0]);
        }
        let dies = sdk.name == "javascript";
        assert_eq!(
            (worker.is_over(), worker.has_died()),
            (dies, dies),
            "{}",
            sdk.name
        );
        let polls = stage.times("fetch").into_iter().filter(|at| *at > 9.5);
        assert_eq!(polls.count() == 0, dies, "{}", sdk.name);
    }
}

/// Who gives up on a FETCH, and when.
#[tokio::test(start_paused = true)]
async fn held_fetches() {
    for sdk in ALL {
        let script = [("fetch", 1, JobsAfter(40, 1))];
        let (stage, worker) = play(sdk, &script, 41_000).await;
        let (again, running) = match sdk.name {
            "go" => (40.0, 1),
            "rust" => (31.0, 0),
            _ => (32.0, 0),
        };
        at(sdk, &stage.times("fetch"), &[0.0, again]);
        assert_eq!(worker.running(), running, "{}", sdk.name);
        let beats = stage.times("heartbeat").len();
        assert!(beats >= 8, "{}: {beats} heartbeats meanwhile", sdk.name);
    }
}

/// `quiet` ends the polling, `terminate` the worker; Go stays.
#[tokio::test(start_paused = true)]
async fn told_by_heartbeats() {
    for sdk in ALL {
        let script = [("heartbeat", ALWAYS, Says(200, 0, r#"{"state":"quiet"}"#))];
        let (stage, worker) = play(sdk, &script, 21_000).await;
        let last = stage.times("fetch").pop().unwrap();
        assert!(last < 6.0, "{}: polled at {last}", sdk.name);
        assert!(stage.times("heartbeat").len() >= 4, "{}", sdk.name);
        assert!(!worker.is_over(), "{}", sdk.name);
    }
    for sdk in ALL {
        let script = [(
            "heartbeat",
            ALWAYS,
            Says(200, 0, r#"{"state":"terminate"}"#),
        )];
        let (stage, worker) = play(sdk, &script, 21_000).await;
        assert_eq!(worker.is_over(), sdk.name != "go", "{}", sdk.name);
        let last = stage.times("fetch").pop().unwrap();
        assert!(last < 6.0, "{}: polled at {last}", sdk.name);
    }
}

/// A signal while a job runs: who still ACKs it.
#[tokio::test(start_paused = true)]
async fn signals_while_jobs_run() {
    for sdk in ALL {
        for signal in [Signal::Term, Signal::Int] {
            let script = [("fetch", 1, Jobs(1))];
            let (stage, worker) = play(sdk, &script, 2_500).await;
            let fetches = stage.times("fetch").len();
            worker.signal(signal);
            sleep(Duration::from_secs(8)).await;
            let acks = match (sdk.name, signal) {
                ("go", _) | ("rust", Signal::Term) => 0,
                _ => 1,
            };
            assert_eq!(stage.times("ack").len(), acks, "{} {signal:?}", sdk.name);
            assert_eq!(
                stage.times("fetch").len(),
                fetches,
                "{} {signal:?}",
                sdk.name
            );
            let beats = stage.times("heartbeat");
            assert!(beats.iter().all(|at| *at < 2.5), "{}: {beats:?}", sdk.name);
            assert!(worker.is_over(), "{} {signal:?}", sdk.name);
        }
    }
}

/// A signal while a FETCH waits, which brings a job afterwards: dropped, run, or nacked as cancelled.
#[tokio::test(start_paused = true)]
async fn signals_while_a_fetch_waits() {
    for sdk in ALL {
        let script = [("fetch", 1, JobsAfter(10, 1))];
        let (stage, worker) = play(sdk, &script, 3_500).await;
        worker.signal(Signal::Int);
        sleep(Duration::from_secs(1)).await;
        let waits = matches!(sdk.name, "python" | "rust");
        assert_eq!(worker.is_over(), !waits, "{}", sdk.name);
        sleep(Duration::from_secs(20)).await;
        assert!(worker.is_over(), "{}", sdk.name);
        let codes: Vec<Value> = (stage.heard("nack").into_iter())
            .map(|nack| nack.body["error"]["code"].clone())
            .collect();
        let cancelled: &[&str] = if sdk.name == "python" {
            &["cancelled"]
        } else {
            &[]
        };
        assert_eq!(codes, cancelled, "{}", sdk.name);
        let acks = usize::from(sdk.name == "rust");
        assert_eq!(stage.times("ack").len(), acks, "{}", sdk.name);
    }
}
