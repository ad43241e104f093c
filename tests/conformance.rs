//! The official OJS conformance cases, judged by the rules of the official runner: directly against
//! the embedded backend, and through a sidecar before it, which must not change a verdict.

#[path = "conformance/runner.rs"]
mod runner;

#[path = "sidecar/pair.rs"]
mod pair;
#[path = "sidecar/mod.rs"]
mod sidecar;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use ojs_throttle::backend::Lax;
use ojs_throttle::net::Net;
use tokio::sync::{OnceCell, Semaphore};
use tokio::task::JoinSet;

use pair::{Pair, backend};
use runner::{Case, Verdict, load, run_case};

/// Where the suites are.
fn suites() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/conformance/suites")
}

/// Cases that are under way at once: most of their time is waiting, but each first starts servers.
static AT_ONCE: Semaphore = Semaphore::const_new(96);

/// Runs all cases, each against a backend of its own. With a `config` each backend has a sidecar before it, and the case is run through that.
async fn run_all(cases: Vec<Case>, lax: fn() -> Lax, config: Option<&'static str>) -> Vec<Verdict> {
    let mut running = JoinSet::new();
    for (seed, case) in cases.into_iter().enumerate() {
        running.spawn(async move {
            let _turn = AT_ONCE.acquire().await.unwrap();
            match config {
                Some(config) => {
                    let pair = Pair::start(Net::Tcp, lax(), seed as u64, config).await;
                    let verdict = run_case(&format!("http://{}", pair.sidecar.addr), &case).await;
                    pair.stop().await;
                    verdict
                }
                None => {
                    let side = backend(&Net::Tcp, lax(), seed as u64).await;
                    let verdict = run_case(&side.base(), &case).await;
                    side.stop().await;
                    verdict
                }
            }
        });
    }
    running.join_all().await
}

/// They wait minutes for a schedule that the embedded backend does not have (its cron routes are
/// unrouted), so nothing is learnt from their end. The only cases that are not run.
const NOT_RUN: [&str; 2] = [
    "level-2-scheduled/cron/cron-fires-on-schedule.json",
    "level-2-scheduled/cron/cron-overlap-prevention.json",
];

/// All cases that are run, those that wait longest first.
fn cases() -> Vec<Case> {
    let mut cases = load(&suites());
    assert_eq!(
        cases.len(),
        267,
        "the suites are not those that the lists below were made for"
    );
    cases.retain(|case| !NOT_RUN.contains(&case.file.as_str()));
    assert_eq!(cases.len(), 267 - NOT_RUN.len());
    cases.sort_by_key(|case| std::cmp::Reverse(case.waits()));
    cases
}

/// The verdicts directly against the backend, found once for all tests.
async fn directly() -> &'static [Verdict] {
    static FOUND: OnceCell<Vec<Verdict>> = OnceCell::const_new();
    FOUND
        .get_or_init(|| run_all(cases(), Lax::spec, None))
        .await
}

/// The verdicts of some levels, by their folders.
async fn of(folders: &[&str]) -> Vec<Verdict> {
    let mut verdicts = directly().await.to_vec();
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn levels_0_and_1() {
    let verdicts = of(&["level-0-core/", "level-1-reliable/"]).await;
    let failing = [(
        "level-1-reliable/retry/retry-error-history-tracked.json",
        "L1-RTR-014 wants error types that it never sends",
    )];
    compare(&verdicts, &failing);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_built_of_levels_2_and_4() {
    let verdicts = of(&[
        "level-2-scheduled/delay/",
        "level-2-scheduled/ttl/",
        "level-4-advanced/",
    ])
    .await;
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
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_can_be_judged() {
    for verdict in of(&["ext-", "agent/", "attest/", "wasi/", "level-3-workflows/"]).await {
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
const MADE_TO_PASS: [&str; 7] = [
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
async fn differences(
    direct: &[Verdict],
    lax: fn() -> Lax,
    config: &'static str,
) -> BTreeMap<String, String> {
    let through = run_all(cases(), lax, Some(config)).await;
    let (direct_by_file, through_by_file) = (outcomes(direct), outcomes(&through));
    assert_eq!(direct_by_file.len(), 265);
    assert_eq!(through_by_file.len(), 265);
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

/// A sidecar without policies changes no verdict but those it is there to change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn through_a_sidecar_as_directly() {
    assert_only_made_to_pass(&differences(directly().await, Lax::spec, "").await);
}

/// Nor does one whose limits touch everything and hold nothing up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn through_limits_that_nothing_reaches_as_directly() {
    assert_only_made_to_pass(&differences(directly().await, Lax::spec, GENEROUS).await);
}

/// Nor with backends that have ways of their own: whatever a case says of them directly, it says
/// through such a sidecar.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn through_limits_before_laxer_backends_as_directly() {
    let laxer: [fn() -> Lax; 4] = [Lax::redis, Lax::postgres, Lax::lite, Lax::amqp];
    let mut running = JoinSet::new();
    for lax in laxer {
        running.spawn(async move {
            let direct = run_all(cases(), lax, None).await;
            assert_only_made_to_pass(&differences(&direct, lax, GENEROUS).await);
        });
    }
    running.join_all().await;
}
