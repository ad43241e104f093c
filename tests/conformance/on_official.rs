//! Directly against the embedded backend, and through a sidecar before it, which must not change a verdict.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use ojs_throttle::backend::Lax;
use ojs_throttle::config::Settings;
use ojs_throttle::net::Net;
use ojs_throttle::net::sim::Network;

use super::runner::{Case, Verdict, load, run_case};
use crate::servers::official;
use crate::sidecar::client::Client;
use crate::sidecar::simulated::{Pair, backend};

/// How many cases there are.
const ALL: usize = 267;

/// Cases have times in them, which a busy machine misses: each is run in a network and a time of its own.
fn run(case: &Case, lax: Lax, config: Option<&str>) -> Verdict {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let net = Net::Sim(Network::default());
        let Some(config) = config else {
            let side = backend(&net, lax).await;
            let verdict = run_case(&Client::new(&net, side.addr), case).await;
            side.stop().await;
            return verdict;
        };
        let pair = Pair::start(net, lax, &as_shipped(config)).await;
        let verdict = run_case(&pair.sidecar.client(), case).await;
        pair.stop().await;
        verdict
    })
}

/// A config in which an empty FETCH waits as long as it does where nobody says how long.
pub fn as_shipped(config: &str) -> String {
    let default = Settings::parse("server.upstream = 'http://a'", "t").unwrap();
    let wait = default.fetch.max_wait.as_millis();
    format!("[fetch]\nmax_wait = \"{wait}ms\"\n{config}")
}

/// Runs all cases, each against a backend of its own. With a `config` each backend has a sidecar before
/// it, and the case is run through that.
fn run_all(cases: &[Case], lax: fn() -> Lax, config: Option<&str>) -> Vec<Verdict> {
    cases.iter().map(|case| run(case, lax(), config)).collect()
}

/// All cases.
pub fn cases() -> Vec<Case> {
    let cases = load(&official("suites"));
    assert_eq!(
        cases.len(),
        ALL,
        "the suites are not those that the lists below were made for"
    );
    cases
}

/// The verdicts directly against the backend, found once for all tests.
fn directly() -> &'static [Verdict] {
    static FOUND: LazyLock<Vec<Verdict>> = LazyLock::new(|| run_all(&cases(), Lax::spec, None));
    &FOUND
}

/// The verdicts of some levels, by their folders.
fn of(folders: &[&str]) -> Vec<Verdict> {
    let mut verdicts = directly().to_vec();
    verdicts.retain(|v| folders.iter().any(|folder| v.file.starts_with(folder)));
    verdicts
}

/// Asserts that exactly the files in `failing` fail.
fn compare(verdicts: &[Verdict], failing: &[(&str, &str)]) {
    let failed: BTreeMap<&str, &Verdict> = verdicts
        .iter()
        .filter(|v| !v.passed)
        .map(|v| (v.file.as_str(), v))
        .collect();
    let expected: BTreeSet<&str> = failing.iter().map(|(file, _)| *file).collect();
    let surprises: Vec<String> = failed
        .iter()
        .filter(|(file, _)| !expected.contains(*file))
        .map(|(file, v)| format!("{} ({file}) fails: {}", v.id, v.why.join("; ")))
        .chain(
            expected
                .iter()
                .filter(|file| !failed.contains_key(*file))
                .map(|file| format!("{file} passes")),
        )
        .collect();
    assert!(surprises.is_empty(), "\n{}", surprises.join("\n"));
}

#[test]
fn levels_0_and_1() {
    let verdicts = of(&["level-0-core/", "level-1-reliable/"]);
    let failing = [(
        "level-1-reliable/retry/retry-error-history-tracked.json",
        "L1-RTR-014 wants error types that it never sends",
    )];
    compare(&verdicts, &failing);
}

#[test]
fn what_is_built_of_levels_2_and_4() {
    let verdicts = of(&[
        "level-2-scheduled/delay/",
        "level-2-scheduled/ttl/",
        "level-4-advanced/",
    ]);
    let unique = "unique jobs are not built";
    let failing = [
        (
            "level-4-advanced/rate-limit/rate-limit-per-queue.json",
            "rate limits are the sidecar's part",
        ),
        (
            "level-4-advanced/unique/unique-by-type-and-args.json",
            unique,
        ),
        (
            "level-4-advanced/unique/unique-ignore-duplicate.json",
            unique,
        ),
        ("level-4-advanced/unique/unique-period-expiry.json", unique),
        (
            "level-4-advanced/unique/unique-reject-duplicate.json",
            unique,
        ),
        (
            "level-4-advanced/unique/unique-replace-duplicate.json",
            unique,
        ),
    ];
    compare(&verdicts, &failing);
}

/// All the rest: whatever the verdict, it must be about an
/// answer of the backend, and every rule that a case uses must be one that the runner here knows.
#[test]
fn every_case_can_be_judged() {
    for verdict in of(&["ext-", "agent/", "attest/", "wasi/", "level-3-workflows/"]) {
        for why in &verdict.why {
            let about_reply = [
                "wanted",
                "none of $or",
                "missing",
                "is there",
                "no object",
                "no array",
                "index",
            ];
            assert!(
                about_reply.iter().any(|words| why.contains(words)),
                "{}: {why}",
                verdict.id
            );
        }
    }
}

/// What the sidecar is there to make pass.
pub const MADE_TO_PASS: [&str; 7] = [
    "ext-backpressure/backpressure-batch-partial-reject.json",
    "ext-backpressure/backpressure-headers-on-reject.json",
    "ext-backpressure/backpressure-queue-stats-depth.json",
    "ext-backpressure/backpressure-reject-when-full.json",
    "ext-backpressure/backpressure-warning-headers.json",
    "ext-rate-limiting/rate-limit-inspect.json",
    "level-4-advanced/rate-limit/rate-limit-per-queue.json",
];

/// Limits that touch every job and queue, and that no case reaches: every FETCH takes the way
/// through the hold, every job has slots, windows and spacing.
const GENEROUS: &str = r#"
[[policy]]
name = "everything"
concurrency = 100000
rate = { limit = 1000000, period = "1s" }

[[policy]]
name = "by-type"
key = "{queue}:{type}"
concurrency = 50000
throttle = { limit = 1000000, period = "1s", burst = 1000 }

[[policy]]
name = "by-tenant"
key = "tenant:{meta.tenant_id}"
rate = [{ limit = 100000, period = "1s" }, { limit = 10000000, period = "1h" }]

[[queue]]
name = "*"
concurrency = 40000
max_depth = 1000000
max_size = "1GiB"
enqueue_rate = { limit = 1000000, period = "1s" }
"#;

/// By file: whether it passed, and which steps failed.
fn outcomes(verdicts: &[Verdict]) -> BTreeMap<&str, (bool, Vec<&str>)> {
    verdicts
        .iter()
        .map(|v| {
            let steps = v.why.iter().filter_map(|why| why.split(':').next());
            (v.file.as_str(), (v.passed, steps.collect()))
        })
        .collect()
}

/// Runs all cases through a sidecar with `config`; says which files differ from `direct`, and how.
fn differences(
    direct: &[Verdict],
    lax: fn() -> Lax,
    config: &'static str,
) -> BTreeMap<String, String> {
    let through = run_all(&cases(), lax, Some(config));
    let (direct_by_file, through_by_file) = (outcomes(direct), outcomes(&through));
    assert_eq!(direct_by_file.len(), ALL);
    assert_eq!(through_by_file.len(), ALL);
    through
        .iter()
        .filter(|v| direct_by_file[v.file.as_str()] != through_by_file[v.file.as_str()])
        .map(|v| {
            let directly = direct.iter().find(|d| d.file == v.file).unwrap();
            let told = format!(
                "directly {:?}, through the sidecar {:?}",
                directly.why, v.why
            );
            (v.file.clone(), told)
        })
        .collect()
}

fn assert_only_made_to_pass(differences: &BTreeMap<String, String>) {
    let files: Vec<&str> = differences.keys().map(String::as_str).collect();
    assert_eq!(files, MADE_TO_PASS, "{differences:#?}");
    for file in MADE_TO_PASS {
        let told = &differences[file];
        assert!(told.ends_with("through the sidecar []"), "{file}: {told}");
    }
}

/// What the limits are for passes through a sidecar, not only as it does directly: before each backend, with
/// limits of its own and without.
#[test]
fn rate_limiting_passes_through_a_sidecar() {
    let folder = "ext-rate-limiting/";
    let failing = [(
        "ext-rate-limiting/rate-limit-wait-behavior.json",
        "EXT-RL-003 looks up a job by what it captured, and the official runner captures nothing",
    )];
    let mut cases = cases();
    cases.retain(|case| case.file.starts_with(folder));
    let ids: Vec<&str> = cases.iter().map(|case| case.id.as_str()).collect();
    let all = [1, 2, 3, 4, 5].map(|nth| format!("EXT-RL-00{nth}"));
    assert_eq!(ids, all);
    let backends: [fn() -> Lax; 5] = [Lax::spec, Lax::redis, Lax::postgres, Lax::lite, Lax::amqp];
    for lax in backends {
        for config in ["", GENEROUS] {
            compare(&run_all(&cases, lax, Some(config)), &failing);
        }
    }
}

/// The case of a limit that a job brings: a second worker gets nothing at once, and a third one its job later.
#[test]
fn delivery_is_throttled_before_each_backend() {
    let mut cases = cases();
    cases.retain(|case| case.id == "L4-RL-001");
    assert_eq!(cases.len(), 1);
    let backends: [fn() -> Lax; 5] = [Lax::spec, Lax::redis, Lax::postgres, Lax::lite, Lax::amqp];
    for lax in backends {
        for config in ["", GENEROUS] {
            compare(&run_all(&cases, lax, Some(config)), &[]);
        }
    }
}

/// A sidecar without policies changes no verdict but those it is there to change.
#[test]
fn through_a_sidecar_as_directly() {
    assert_only_made_to_pass(&differences(directly(), Lax::spec, ""));
}

/// Nor does one whose limits touch everything and hold nothing up.
#[test]
fn through_limits_that_nothing_reaches_as_directly() {
    assert_only_made_to_pass(&differences(directly(), Lax::spec, GENEROUS));
}

/// A case that fails before some backends in any case: its second worker acknowledges a job that the first one still
/// has. Through a sidecar with limits that is refused too.
const ACKED_BY_ANOTHER: &str = "level-1-reliable/visibility/job-requeued-after-timeout.json";

/// Nor with backends that have ways of their own: whatever a case says of them directly, it says
/// through such a sidecar.
#[test]
fn through_limits_before_laxer_backends_as_directly() {
    let laxer: [fn() -> Lax; 4] = [Lax::redis, Lax::postgres, Lax::lite, Lax::amqp];
    for lax in laxer {
        let direct = run_all(&cases(), lax, None);
        let mut differences = differences(&direct, lax, GENEROUS);
        if let Some(told) = differences.remove(ACKED_BY_ANOTHER) {
            let (directly, through) = told.split_once("through the sidecar").unwrap();
            assert!(directly.contains("step-5: $.jobs[0].id"), "{told}");
            assert!(
                through.contains("step-6: wanted status 200, got 409"),
                "{told}"
            );
        }
        assert_only_made_to_pass(&differences);
    }
}
