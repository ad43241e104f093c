//! What a nack, or a vendor's answer to a call, says of when to come back: every form of it, without a sidecar.

use ojs_throttle::json::Json;
use ojs_throttle::limit::Timestamp;
use ojs_throttle::policy::{Backoff, Feedback, Pattern, Vendor, back_at, unread_signal};

use super::prelude::*;
use crate::harness::lines::Lines;

/// 2026-02-13T12:00:00Z.
const NOW: Timestamp = Timestamp(1_770_984_000_000_000);

/// Seconds until which an error shuts, and why.
fn pause(feedback: &Feedback, error: &str) -> Option<(f64, &'static str)> {
    let error = Json::parse(error.as_bytes(), 16).unwrap();
    let pause = feedback.pause(error, "key", NOW, ("job", 1))?;
    Some((pause.until.since(NOW) as f64 / 1e6, pause.reason))
}

/// An error, and for how many seconds it shuts by which signal.
const SIGNALS: &str = r#"
{"type":"RateLimitExceeded","rate_limit_until":"2026-02-13T12:05:00Z"} => 300 rate_limit_until
{"rate_limit_until":"2026-02-13T13:00:30.5+01:00"} => 30.5 rate_limit_until
{"details":{"rate_limit_until":"2026-02-13T12:00:09Z"}} => 9 rate_limit_until
{"rate_limit_until":"2026-02-13T11:59:59Z"} => -
{"rate_limit_until":"2087-01-01T00:00:00Z"} => 900 rate_limit_until
{"rate_limit_until":"9999-12-31T23:59:59Z"} => 900 rate_limit_until
{"rate_limit_until":"2026-02-13T12:05:00"} => -
{"rate_limit_until":"1950-01-01T00:00:00Z"} => -
{"rate_limit_until":"soon"} => -
{"rate_limit_until":null} => -
{"rate_limit_until":12} => -
{"retry_after":12} => 12 retry_after
{"retry_after":0.25} => 0.25 retry_after
{"retry_after":"12"} => 12 retry_after
{"retry_after":"PT1M"} => 60 retry_after
{"retry_after":"1500ms"} => 1.5 retry_after
{"details":{"retry_after":3}} => 3 retry_after
{"retry_after":0} => -
{"retry_after":-5} => -
{"retry_after":1e300} => 900 retry_after
{"retry_after":"NaN"} => -
{"retry_after":true} => -
{"retry_after":"Fri, 13 Feb 2026 12:00:20 GMT"} => 20 retry_after
{"retry_after":"Fri, 13 Feb 2026 11:00:00 GMT"} => -
{"details":{"Retry-After":"7"}} => 7 headers
{"details":{"retry-after":7}} => 7 headers
{"details":{"headers":{"retry-after":["7"]}}} => 7 headers
{"details":{"Retry-After":"Fri, 13 Feb 2026 12:00:20 GMT"}} => 20 headers
{"details":{"Retry-After":"Friday, 13-Feb-26 12:00:20 GMT"}} => 20 headers
{"details":{"Retry-After":"Fri, 13 Feb 2026 11:00:00 GMT"}} => -
{"details":{"Retry-After":"later"}} => -
{"details":{"RateLimit":"\"default\";r=0;t=12"}} => 12 headers
{"details":{"RateLimit":"\"a\";r=0;t=12, \"b\";t=40;r=0"}} => 40 headers
{"details":{"RateLimit":"\"a\";r=5;t=12"}} => -
{"details":{"RateLimit":"\"a\";r=0;t=12, \"b\";r=5;t=40"}} => 12 headers
{"details":{"RateLimit":"limit=100, remaining=0, reset=12"}} => 12 headers
{"details":{"RateLimit":"limit=100, remaining=4, reset=12"}} => -
{"details":{"RateLimit":"limit=100"}} => -
{"details":{"RateLimit-Remaining":0,"RateLimit-Reset":9}} => 9 headers
{"details":{"X-RateLimit-Reset":"12"}} => 12 headers
{"details":{"X-RateLimit-Reset":"1770984015"}} => 15 headers
{"details":{"x-ratelimit-reset":1770984015500}} => 15.5 headers
{"details":{"X-RateLimit-Reset":"1770983000"}} => -
{"details":{"X-RateLimit-Reset":"60","X-RateLimit-Remaining":"4999"}} => -
{"details":{"X-RateLimit-Reset":"60","X-RateLimit-Remaining":"0"}} => 60 headers
{"retry_after":5,"rate_limit_until":"2026-02-13T12:00:09Z","details":{"Retry-After":"7"}} => 9 rate_limit_until
{"retry_after":5,"rate_limit_until":"2026-02-13T11:00:00Z"} => 5 retry_after
{"code":"handler_error","message":"429"} => -
{"details":"Retry-After: 7"} => -
{} => -
[] => -
"rate_limit_until" => -
"#;

#[test]
fn every_form_of_every_signal() {
    for line in SIGNALS.trim().lines() {
        let (error, expected) = line.split_once(" => ").unwrap();
        let said = pause(&Feedback::default(), error);
        let said = said.map_or("-".to_owned(), |(seconds, why)| format!("{seconds} {why}"));
        assert_eq!(said, expected, "{error}");
    }
}

#[test]
fn what_no_signal_says_is_told() {
    for (error, told) in [
        (
            r#"{"rate_limit_until":"soon","retry_after":"x"}"#,
            "rate_limit_until soon",
        ),
        (
            r#"{"retry_after":"in a minute"}"#,
            "retry_after in a minute",
        ),
        (r#"{"details":{"retry_after":true}}"#, "retry_after true"),
        (r#"{"retry_after":"NaN"}"#, "retry_after NaN"),
        (r#"{"retry_after":{}}"#, "retry_after no text"),
        (r#"{"retry_after":null}"#, "-"),
        (r#"{"retry_after":0}"#, "-"),
        (r#"{"retry_after":"-5"}"#, "-"),
        (r#"{"retry_after":1e300}"#, "-"),
        (r#"{"retry_after":"PT1M"}"#, "-"),
        (r#"{"retry_after":"Fri, 13 Feb 2026 11:00:00 GMT"}"#, "-"),
    ] {
        let said = unread_signal(Json::parse(error.as_bytes(), 16).unwrap());
        let said = said.map_or("-".to_owned(), |(name, text)| format!("{name} {text}"));
        assert_eq!(said, told, "{error}");
    }
}

#[test]
fn what_is_not_honoured_is_not_heeded() {
    let none = Feedback {
        until: false,
        retry_after: false,
        headers: false,
        ..Feedback::default()
    };
    let after = Feedback {
        retry_after: true,
        ..none.clone()
    };
    let all = r#"{"retry_after":5,"rate_limit_until":"2026-02-13T12:00:09Z","details":{"Retry-After":"7"}}"#;
    assert_eq!(pause(&none, all), None);
    assert_eq!(pause(&after, all), Some((5.0, "retry_after")));
}

fn with_codes(codes: &[&str]) -> Feedback {
    Feedback {
        codes: codes.iter().map(|code| Pattern::new(code)).collect(),
        jitter: 0.0,
        ..Feedback::default()
    }
}

#[test]
fn codes_name_errors_as_the_sdks_send_them() {
    let js = r#"{"code":"handler_error","message":"429 too many","retryable":true,"details":{"stack":"RateLimitError: 429 too many\n    at send (/app/mail.js:429:11)\n    at process.processTicksAndRejections (node:internal/process/task_queues:95:5)"}}"#;
    let python = r#"{"code":"handler_error","message":"slow down","retryable":true,"details":{"traceback":"Traceback (most recent call last):\n  File \"/app/w.py\", line 429, in run\n    send()\nstripe.error.RateLimitError: slow down\n"}}"#;
    let go = r#"{"code":"rate_limited","message":"429 from smtp","retryable":true}"#;
    let rust = r#"{"code":"handler_error","message":"RateLimited: try later","retryable":true}"#;
    let ruby = r#"{"code":"handler_error","message":"no","details":{"error_class":"Stripe::RateLimitError"}}"#;
    let php = r#"{"type":"App\\Exceptions\\TooManyRequests","message":"no","backtrace":[]}"#;
    let plain = r#"{"code":"handler_error","message":"disk full","retryable":true,"details":{"stack":"Error: disk full\n    at RateLimitError (/app/x.js:429:1)","status":500}}"#;
    let status = r#"{"code":"handler_error","message":"no","details":{"status":429}}"#;
    let table: &[(&[&str], &str, bool)] = &[
        (&["RateLimitError"], js, true),
        (&["RateLimitError"], python, true),
        (&["stripe.error.RateLimitError"], python, true),
        (&["stripe.error.*"], python, true),
        (&["rate_limited"], go, true),
        (&["rate_*"], go, true),
        (&["429*"], go, true),
        (&["RateLimited"], rust, true),
        (&["*try later*"], rust, true),
        (&["RateLimitError"], ruby, true),
        (&["Stripe::RateLimitError"], ruby, true),
        (&["TooManyRequests"], php, true),
        (&["429"], status, true),
        // Not a line number, not a frame.
        (&["429"], python, false),
        (&["429", "RateLimitError"], plain, false),
        (&["rate_limit"], go, false),
        (&[], js, false),
    ];
    for (codes, error, expected) in table {
        let expected = expected.then_some((10.0, "codes"));
        let found = pause(&with_codes(codes), error);
        assert_eq!(found, expected, "{codes:?} {error}");
    }
}

#[test]
fn a_time_goes_before_a_code_and_jitter_only_adds() {
    let feedback = with_codes(&["x"]);
    let timed = pause(&feedback, r#"{"code":"x","retry_after":2}"#);
    assert_eq!(timed, Some((2.0, "retry_after")));
    let jittered = Feedback {
        jitter: 0.1,
        ..feedback.clone()
    };
    let error = Json::parse(br#"{"code":"x"}"#, 16).unwrap();
    let pauses: Vec<u64> = (0..200)
        .filter_map(|job| jittered.pause(error, "key", NOW, (&job.to_string(), 1)))
        .map(|pause| pause.until.since(NOW))
        .collect();
    let (least, most) = (pauses.iter().min().unwrap(), pauses.iter().max().unwrap());
    let is_within = *least >= 10_000_000 && *most <= 11_000_000;
    assert!(is_within, "{least} {most}");
    assert!(most - least > 500_000, "{least} {most}");
    let short = Feedback {
        max_pause: 3_000_000,
        ..jittered
    };
    assert_eq!(pause(&short, r#"{"code":"x"}"#), Some((3.0, "codes")));
}

#[test]
fn backoff_grows_to_its_end_with_full_jitter() {
    let backoff = Backoff {
        initial: 2_000_000,
        multiplier: 3.0,
        max: 60_000_000,
    };
    let feedback = Feedback {
        backoff: Some(backoff),
        ..with_codes(&["x"])
    };
    let pauses = |times, error: &str| -> Vec<u64> {
        let error = Json::parse(error.as_bytes(), 16).unwrap();
        let pause = |job: u32| feedback.pause(error, "key", NOW, (&job.to_string(), times));
        (0..200)
            .map(|job| pause(job).unwrap().until.since(NOW))
            .collect()
    };
    let least = |p: &[u64]| *p.iter().min().unwrap();
    let most = |p: &[u64]| *p.iter().max().unwrap();
    for (times, seconds) in [(1, 2), (2, 6), (3, 18), (4, 54), (5, 60), (u32::MAX, 60)] {
        let whole = seconds * 1_000_000;
        let spread = pauses(times, r#"{"code":"x"}"#);
        let (least, most) = (least(&spread), most(&spread));
        assert!(least >= whole && most <= 2 * whole, "{spread:?}");
        assert!(most - least > whole * 9 / 10, "all of it is used");
    }
    let named = pauses(1, r#"{"code":"x","retry_after":30}"#);
    let as_said = named.iter().all(|pause| *pause == 30_000_000);
    assert!(as_said, "the service knows better");
    let named = pauses(9, r#"{"code":"x","retry_after":30}"#);
    let least = least(&named);
    assert!(least >= 60_000_000, "unless it has said so too often");
}

#[test]
fn no_pause_is_longer_than_the_longest() {
    let feedback = Feedback {
        backoff: Some(Backoff::default()),
        max_pause: 5_000_000,
        ..with_codes(&["x"])
    };
    let error = Json::parse(br#"{"code":"x"}"#, 16).unwrap();
    let pause = feedback.pause(error, "key", NOW, ("job", 20)).unwrap();
    assert_eq!(pause.until, NOW.plus(5_000_000));
    assert_eq!(pause.counts_until, Some(NOW.plus(605_000_000)));
}

#[test]
fn times_of_vendors_in_every_unit() {
    let table = "12 12|0.25 0.25|1e2 100|12ms 0.012|6m0s 360|1m30.5s 90.5|7.659999999s 7.659999|1h 3600|PT1M 60|\
        1770984015 15|1770984015500 15.5|1770984015.25 15.25|2026-02-13T12:00:09Z 9|2026-02-13T13:00:09+01:00 9|\
        Fri, 13 Feb 2026 12:00:20 GMT 20|Friday, 13-Feb-26 12:00:20 GMT 20|\
        999999999 999999999|9e99 never|1e999 never|99999999999999999999999999 never";
    let unknown = Some(Vendor::of_host(""));
    let at = |text| {
        let headers = [("x-ratelimit-reset", text)].into_iter();
        back_at(unknown, (429, headers), NOW, 0)
    };
    for row in table.split('|') {
        let (text, seconds) = row.rsplit_once(' ').unwrap();
        let at = at(text).unwrap_or_else(|| panic!("{text}"));
        match seconds.parse::<f64>() {
            Ok(seconds) => assert_eq!(at.since(NOW), (seconds * 1e6).round() as u64, "{text}"),
            Err(_) => assert_eq!(at, Timestamp::NEVER, "{text}"),
        }
    }
    for none in [
        "", "0", "0s", "-5", "-5s", "inf", "NaN", "soon", "12:00", "1,5", "+5", "6m0",
    ] {
        assert_eq!(at(none), None, "{none}");
    }
}

/// 9.1: who asks for longer than `max_pause` does not get it, and must hear so. A worker whose time cannot be read believes
/// that it has shut its keys.
#[tokio::test(start_paused = true)]
async fn a_time_that_is_cut_is_told_in_the_log() {
    let (log, _logged) = Lines::listen();
    let rig = Rig::with("").await;
    for (key, until) in [
        ("cut", "2026-02-14T12:00:00Z"),
        ("kept", "2026-02-13T12:10:00Z"),
        ("unread", "soon"),
    ] {
        let options = json!({"queue": key, "rate_limit": {"key": key, "concurrency": 9}});
        let job = json!({"type": "t", "args": [], "options": options});
        let job = rig.client.enqueue(job).await;
        rig.client.fetch(key, 1).await;
        let error =
            json!({"type": "RateLimitExceeded", "message": "no", "rate_limit_until": until});
        rig.client.nack_with(&job, error).await;
    }
    let told = log.with("the service behind this key limits us");
    let [cut, kept] = &*told else {
        panic!("{told:?}");
    };
    assert!(cut.contains(" seconds=900.0 asked_seconds=86"), "{cut}");
    assert!(kept.contains(" seconds="), "{kept}");
    assert!(!kept.contains("asked_seconds"), "{kept}");
    let unread = log.with("id=signal_unread").concat();
    assert_eq!(
        unread
            .matches("signal=\"rate_limit_until\" said=\"soon\"")
            .count(),
        1,
        "{unread}"
    );
}
