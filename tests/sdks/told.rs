//! What the manual says of SDKs and backends is what the tests play.

use ojs_throttle::backend::{Lax, Liveness, Requeue};
use serde_json::json;

use super::backends;
use super::prelude::*;
use crate::docs::page::{prose, section_must_be, table};
use crate::sidecar::simulated::simulated;

const SDKS: &str =
    "Tests play these SDKs as they were recorded: what they send, when, and how they take answers.";

#[test]
fn the_manual_has_the_sdks_that_were_tested() {
    let rows = [JAVASCRIPT, PYTHON, GO, RUST].map(|sdk| {
        let most = match sdk.most {
            usize::MAX => "as many as are free".to_owned(),
            most => most.to_string(),
        };
        let seconds = |millis: u64| f64::from(u32::try_from(millis).unwrap()) / 1000.0;
        let (from, to) = (seconds(sdk.polls.start), seconds(sdk.polls.end - 1));
        let polls = match to - from < 0.1 {
            true => format!("{from} s"),
            false => format!("{from} to {to:.1} s"),
        };
        let head = [sdk.name, sdk.version].map(str::to_owned);
        let tries = [sdk.tries, sdk.settles].map(|times| times.to_string());
        head.into_iter().chain([most, polls]).chain(tries).collect()
    });
    let head = [
        "SDK",
        "version",
        "jobs of a FETCH, at most",
        "polls every",
        "tries after 429",
        "tries of an ACK",
    ];
    let text = format!("{}\n\n{}", prose(SDKS), table(&head, &rows));
    section_must_be("workers", "## SDKs that were tested", &text);
}

const BACKENDS: &str = "Tests play these kinds of backends, and each SDK before them.

- Counts a fetch: handing a job out counts as an attempt.
- Given back: a held job may go back to the backend without harm, so that is done.
- Keeps a claim: what a heartbeat must do so that a running job stays with its worker.
- Depth: exact, or leaving out scheduled and retryable jobs that did not pass through here.";

#[tokio::test(start_paused = true)]
async fn the_manual_has_the_backends_that_were_tested() {
    let spec = [(Lax::spec(), "`ojs-throttle dev`")];
    let mut rows = Vec::new();
    for (lax, known) in backends::real().into_iter().chain(spec) {
        let claim = match lax.liveness {
            Liveness::Job => "name the job",
            Liveness::SinceStart => "name the job, with a growing time",
            Liveness::Worker => "name the worker",
        };
        let depth = if lax.counts_all && lax.admin_queues {
            "exact"
        } else {
            "leaves out"
        };
        let name = lax
            .name
            .trim_start_matches("ojs-backend-")
            .replace("ojs-throttle-", "");
        let counts = if lax.counts_at_nack { "no" } else { "yes" };
        let harmless = matches!(lax.requeue, Requeue::Tail | Requeue::Head);
        let (held, given_back) = held_and_given_back(lax.clone()).await;
        assert!(harmless || !given_back, "{name}");
        let given_back = if given_back { "yes" } else { "no" };
        let cells = [
            &*name,
            known,
            counts,
            given_back,
            claim,
            depth,
            &held.to_string(),
        ];
        rows.push(cells.map(str::to_owned).to_vec());
    }
    let head = [
        "backend",
        "known from",
        "counts a fetch",
        "given back",
        "keeps a claim",
        "depth",
        "`hold.max`",
    ];
    let text = format!("{}\n\n{}", prose(BACKENDS), table(&head, &rows));
    section_must_be("backends", "## What was tested", &text);
}

/// How many jobs a sidecar may hold before this backend, and whether it gives one back that no worker asks for.
async fn held_and_given_back(lax: Lax) -> (usize, bool) {
    let config = "[[policy]]\nname = 'one'\nkey = '{type}'\nconcurrency = 1\n[hold]\nidle = '1s'";
    let (pair, client) = simulated(lax, config).await;
    for _ in 0..2 {
        client.enqueue(json!({"type": "t", "args": []})).await;
    }
    assert_eq!(client.fetch("default", 2).await.len(), 1);
    sleep(Duration::from_secs(10)).await;
    let page = pair.sidecar.admin().get("/metrics").await.text();
    let number = |name: &str| -> usize {
        let line = page
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
    };
    let back = number("ojs_throttle_returned_jobs_total");
    (number("ojs_throttle_hold_capacity"), back > 0)
}
