//! The backends that SDKs meet: each of the real kinds, and OJS itself with one thing laxer at a time.

use ojs_throttle::backend::{Duplicate, Extended, Lax, Liveness, Requeue};

/// The real kinds: each with how it came to be known.
pub fn real() -> [(Lax, &'static str); REAL - 1] {
    [
        (Lax::redis(), "recorded, February 2026"),
        (Lax::postgres(), "recorded, February 2026"),
        (Lax::lite(), "its source, April 2026"),
        (Lax::amqp(), "its source, April 2026"),
    ]
}

/// How many there are, and how many of them are of the real kinds.
const BACKENDS: usize = 41;
const REAL: usize = 5;

/// The nth of an SDK, from 1 on, and the settings that a sidecar needs there. Each SDK meets the real ones; the others
/// are dealt out among the four.
pub fn backend(nth: u64, sdk: &str) -> (Lax, &'static str) {
    let nth = usize::try_from(nth - 1).expect("a small number");
    let of_four = ["javascript", "python", "go", "rust"];
    let place = of_four.iter().position(|name| *name == sdk);
    let place = place.expect("one of the four");
    let index = match nth.checked_sub(REAL) {
        None => nth,
        Some(other) => REAL + (4 * other + place) % (BACKENDS - REAL),
    };
    let (name, lax) = all().swap_remove(index);
    // What is known of lite and amqp by their names, and cannot be seen.
    let settings = match name {
        "liveness start" => "[upstream]\nheartbeat = \"from_start\"",
        "liveness worker" => "[upstream]\nliveness = \"worker\"",
        _ => "",
    };
    (lax, settings)
}

fn all() -> Vec<(&'static str, Lax)> {
    let mut all = vec![
        ("redis", Lax::redis()),
        ("spec", Lax::spec()),
        ("postgres", Lax::postgres()),
        ("lite", Lax::lite()),
        ("amqp", Lax::amqp()),
    ];
    let mut with = |name, switch: fn(&mut Lax)| {
        let mut lax = Lax::spec();
        switch(&mut lax);
        all.push((name, lax));
    };
    with("counts_at_nack", |lax| lax.counts_at_nack = true);
    with("requeue head", |lax| lax.requeue = Requeue::Head);
    with("requeue discards", |lax| {
        lax.requeue = Requeue::DiscardsLast
    });
    with("requeue delays", |lax| lax.requeue = Requeue::Delays);
    with("expiry_discards", |lax| lax.expiry_discards = false);
    with("liveness start", |lax| lax.liveness = Liveness::SinceStart);
    with("liveness worker", |lax| lax.liveness = Liveness::Worker);
    with("reaps", |lax| lax.reaps = false);
    with("beats_whole_seconds", |lax| lax.beats_whole_seconds = true);
    with("checks_owner", |lax| lax.checks_owner = false);
    with("shows_claimer", |lax| lax.shows_claimer = false);
    with("wrong_state_is_500", |lax| lax.wrong_state_is_500 = true);
    with("settle_shows_job", |lax| lax.settle_shows_job = false);
    with("extended absent", |lax| {
        lax.extended = Extended::AbsentIfNone
    });
    with("extended echo", |lax| lax.extended = Extended::Echo);
    with("heartbeat_state", |lax| {
        lax.heartbeat_state = Some("active")
    });
    with("heartbeat_state running", |lax| {
        lax.heartbeat_state = Some("running")
    });
    with("unordered", |lax| lax.unordered = true);
    with("unknown_wins", |lax| lax.unknown_wins = true);
    with("folds_case", |lax| lax.folds_case = true);
    with("heeds_fetch_visibility", |lax| {
        lax.heeds_fetch_visibility = false
    });
    with("heeds_job_visibility", |lax| {
        lax.heeds_job_visibility = false
    });
    with("heeds_non_retryable", |lax| lax.heeds_non_retryable = false);
    with("discards_without_retry", |lax| {
        lax.discards_without_retry = true
    });
    with("heeds_expiry", |lax| lax.heeds_expiry = false);
    with("heeds_timeout", |lax| lax.heeds_timeout = false);
    with("accepts_any_time", |lax| lax.accepts_any_time = true);
    with("duplicate overwrites", |lax| {
        lax.duplicate = Duplicate::Overwrites
    });
    with("duplicate fails", |lax| lax.duplicate = Duplicate::Fails);
    with("counts_expired", |lax| lax.counts_expired = true);
    with("skips_locked", |lax| lax.skips_locked = 4);
    with("counts_all", |lax| lax.counts_all = false);
    with("admin_queues", |lax| lax.admin_queues = false);
    with("unknown_queue_is_404", |lax| {
        lax.unknown_queue_is_404 = true
    });
    with("bad_json", |lax| lax.bad_json = "invalid_request");
    with("version", |lax| lax.version = "1.0.0-rc.1");
    all
}

/// Every switch is in the list; a new one does not compile until it is named here.
#[test]
fn every_switch_is_tried() {
    let Lax {
        name: _,
        version: _,
        counts_at_nack: _,
        requeue: Requeue::Tail | Requeue::Head | Requeue::DiscardsLast | Requeue::Delays,
        expiry_discards: _,
        liveness: Liveness::Job | Liveness::SinceStart | Liveness::Worker,
        reaps: _,
        beats_whole_seconds: _,
        checks_owner: _,
        shows_claimer: _,
        wrong_state_is_500: _,
        settle_shows_job: _,
        extended: Extended::Named | Extended::AbsentIfNone | Extended::Echo,
        heartbeat_state: _,
        unordered: _,
        unknown_wins: _,
        folds_case: _,
        heeds_fetch_visibility: _,
        heeds_job_visibility: _,
        heeds_non_retryable: _,
        discards_without_retry: _,
        heeds_expiry: _,
        counts_expired: _,
        skips_locked: _,
        heeds_timeout: _,
        accepts_any_time: _,
        duplicate: Duplicate::Refused | Duplicate::Overwrites | Duplicate::Fails,
        counts_all: _,
        admin_queues: _,
        unknown_queue_is_404: _,
        bad_json: _,
        visibility: _,
    } = Lax::spec();
    let all = all();
    assert_eq!(all.len(), BACKENDS);
    // Each of them is another backend than the rest.
    let mut shapes: Vec<String> = (all.iter().map(|(_, lax)| format!("{lax:?}"))).collect();
    shapes.sort_unstable();
    shapes.dedup();
    assert_eq!(shapes.len(), BACKENDS);
}
