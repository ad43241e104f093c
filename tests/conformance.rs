//! The official OJS conformance cases, judged by the rules of the official runner.

#[path = "conformance/runner.rs"]
mod runner;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use ojs_throttle::backend::{Backend, Lax};
use ojs_throttle::net::Net;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use runner::{Case, Verdict, load, run_case};

/// Where the suites are.
fn suites() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/conformance/suites")
}

/// Runs all cases at once, each against a backend of its own: most of their time is waiting.
async fn run_all(cases: Vec<Case>) -> Vec<Verdict> {
    let mut running = JoinSet::new();
    for (seed, case) in cases.into_iter().enumerate() {
        running.spawn(async move {
            let listener = Net::Tcp
                .bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
                .await
                .unwrap();
            let base = format!("http://{}", listener.local_addr().unwrap());
            let stop = CancellationToken::new();
            let backend = Backend::new(Lax::spec(), seed as u64);
            let served = tokio::spawn(backend.serve(listener, stop.clone()));
            let verdict = run_case(&base, &case).await;
            stop.cancel();
            served.await.unwrap();
            verdict
        });
    }
    running.join_all().await
}

/// The cases of some levels, by their folders.
fn cases(folders: &[&str]) -> Vec<Case> {
    let mut cases = load(&suites());
    assert_eq!(
        cases.len(),
        267,
        "the suites are not those that the lists below were made for"
    );
    cases.retain(|case| folders.iter().any(|folder| case.file.starts_with(folder)));
    cases
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
    let cases = cases(&["level-0-core/", "level-1-reliable/"]);
    let failing = [(
        "level-1-reliable/retry/retry-error-history-tracked.json",
        "L1-RTR-014 wants error types that it never sends",
    )];
    compare(&run_all(cases).await, &failing);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_built_of_levels_2_and_4() {
    let cases = cases(&[
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
    compare(&run_all(cases).await, &failing);
}

/// All the rest, but for the minutes that cron waits: whatever the verdict, it must be about an
/// answer of the backend, and every rule that a case uses must be one that the runner here knows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_case_can_be_judged() {
    let mut cases = cases(&["ext-", "agent/", "attest/", "wasi/", "level-3-workflows/"]);
    cases.retain(|case| !case.file.contains("cron"));
    let wanted = cases.len();
    let verdicts = run_all(cases).await;
    assert_eq!(verdicts.len(), wanted);
    for verdict in verdicts {
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
