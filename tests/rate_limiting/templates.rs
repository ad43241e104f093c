//! Templates of jobs in cron and workflow bodies: what they bring is checked and mirrored as jobs' is,
//! and the mirror is never seen.

use super::prelude::*;
use super::upstream::{answering, storing};
use crate::harness::lines::Lines;

const WORKFLOWS: &str = "/ojs/v1/workflows";
const POLICY: &str = r#"{"key":"k","concurrency":1}"#;

fn step(rate_limit: &str) -> String {
    format!(r#"{{"type":"t.step","args":[1.0],"options":{{"rate_limit":{rate_limit}}}}}"#)
}

/// Bodies with a policy at each place where a template may stand, and how messages name it.
fn bodies(rate_limit: &str) -> Vec<(&'static str, String, &'static str)> {
    let rows = [
        (
            "/ojs/v1/cron",
            r#"{"name":"n","cron":"* * * * *","job_template":STEP}"#,
            "job_template.",
        ),
        // As the text on cron has it, a job's members among its own.
        (
            "/ojs/v1/cron",
            r#"{"name":"n","cron":"* * * * *","type":"t","args":[],"options":{"rate_limit":LIMIT}}"#,
            "",
        ),
        (
            WORKFLOWS,
            r#"{"type":"chain","steps":[{"type":"t","args":[]},STEP]}"#,
            "steps[1].",
        ),
        (WORKFLOWS, r#"{"type":"group","jobs":[STEP]}"#, "jobs[0]."),
        (
            WORKFLOWS,
            r#"{"type":"batch","steps":[{"type":"group","jobs":[{"type":"t","args":[]},STEP]}]}"#,
            "steps[0].jobs[1].",
        ),
        (
            WORKFLOWS,
            r#"{"jobs":[],"callbacks":{"on_complete":STEP}}"#,
            "callbacks.on_complete.",
        ),
    ];
    let step = step(rate_limit);
    let rows = rows.map(|(path, body, at)| {
        (
            path,
            body.replace("STEP", &step).replace("LIMIT", rate_limit),
            at,
        )
    });
    rows.into()
}

#[tokio::test(start_paused = true)]
async fn a_wrong_policy_in_a_template_is_named() {
    let (backend, _sidecar, client) = storing("").await;
    for (wrong, member) in [
        (r#"{"key":"k","concurrency":"one"}"#, "concurrency"),
        (r#"{"concurrency":1}"#, "key"),
    ] {
        for (path, body, at) in bodies(wrong) {
            let reply = client.post(path, body).await;
            let error = reply.refuses(400, "invalid_request", at);
            let field = format!("{at}options.rate_limit.{member}");
            assert_eq!(error["details"]["field"], field);
        }
    }
    assert!(backend.bodies().is_empty(), "nothing went on");
}

#[tokio::test(start_paused = true)]
async fn a_template_s_policy_is_mirrored_and_nothing_else_changes() {
    let (backend, _sidecar, client) = storing("").await;
    for (path, body, at) in bodies(POLICY) {
        backend.clear();
        assert_eq!(client.post(path, body.clone()).await.status, 201);
        let sent = String::from_utf8(backend.bodies().pop().unwrap()).unwrap();
        let mirror = format!(
            r#","meta":{{"ojs.rate_limit.mirror":{{"policy":{POLICY},"at":"options.rate_limit","meta":"added"}}}}"#
        );
        assert_eq!(sent.replacen(&mirror, "", 1), body, "{at}");
        assert!(sent.contains(&mirror), "{at}: {sent}");
    }
    for (path, body) in [
        (
            "/ojs/v1/cron",
            r#"{ "job_template" : {"type":"t","args":[1.0]}}"#,
        ),
        (
            WORKFLOWS,
            r#"{"steps":[{"type":"t","args":[{"rate_limit":5}]}]}"#,
        ),
        (WORKFLOWS, "{ not json rate_limit"),
    ] {
        backend.clear();
        assert_eq!(client.post(path, body).await.status, 201);
        assert_eq!(backend.bodies(), [body.as_bytes()]);
    }
    let named = client.get("/ojs/v1/rate-limits/k").await;
    assert_eq!(named.status, 404, "a template is no job that waits");
}

/// Each is read with all that is inside of it: a tower of them would take the thread for seconds.
#[tokio::test(start_paused = true)]
async fn templates_inside_of_very_many_are_refused() {
    let (backend, _sidecar, client) = storing("").await;
    let tower = |floors: usize| {
        let within = r#"{"type":"a","job_template":"#.repeat(floors);
        let innermost = r#"{"type":"a","rate_limit":null}"#;
        format!("{within}{innermost}{}", "}".repeat(floors))
    };
    assert_eq!(client.post("/ojs/v1/cron", tower(8)).await.status, 201);
    backend.clear();
    let refused = client.post("/ojs/v1/cron", tower(9)).await;
    let error = refused.refuses(400, "invalid_request", "");
    let at = ["job_template"; 9].join(".");
    assert_eq!(error["details"]["field"], at);
    assert!(backend.bodies().is_empty(), "nothing went on");
}

/// It is accepted, and limits nothing: somebody is told.
#[tokio::test(start_paused = true)]
async fn a_limit_in_a_template_is_told_to_be_in_vain() {
    let (lines, _logged) = Lines::listen();
    for (config, times) in [("", 1), ("[job_policies]\naccept = \"ignore\"\n", 0)] {
        let (_backend, sidecar, client) = storing(config).await;
        let told = lines.with("id=template_limits").len();
        let plain = r#"{"name":"n","cron":"* * * * *","job_template":{"type":"t","args":[]}}"#;
        assert_eq!(client.post("/ojs/v1/cron", plain).await.status, 201);
        assert_eq!(lines.with("id=template_limits").len(), told);
        for (path, body, _) in bodies(POLICY) {
            assert_eq!(client.post(path, body).await.status, 201);
        }
        let more = lines.with("id=template_limits").len() - told;
        assert_eq!(more, times, "{config}");
        sidecar.stop().await;
    }
}

/// Whatever shape a backend shows templates in; what only looks like a mirror in a job's own data stays.
#[tokio::test(start_paused = true)]
async fn the_mirror_of_a_template_is_not_seen() {
    const SHOWN: &str = r#"{"crons":[{"name":"n","job_template":{"type":"t","args":[{"meta":{"ojs.rate_limit.mirror":1}}],"options":{"rate_limit":{"key":"k"}},"meta":{"ojs.rate_limit.mirror":{"policy":{"key":"k"},"at":"options.rate_limit","meta":"added"}}}}]}"#;
    let expected: Value = json!({"crons": [{"name": "n", "job_template":
        {"type": "t", "args": [{"meta": {"ojs.rate_limit.mirror": 1}}], "options": {"rate_limit": {"key": "k"}}}}]});
    let (_, _sidecar, client) = answering(200, SHOWN, "").await;
    for path in ["/ojs/v1/cron", "/ojs/v1/cron/n", "/ojs/v1/workflows/x"] {
        assert_eq!(client.get(path).await.json(), expected, "{path}");
    }
}

/// A backend without these routes says so, as it would without us.
#[tokio::test(start_paused = true)]
async fn a_backend_without_the_routes_answers_for_itself() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    for (path, body, _) in bodies(POLICY) {
        assert_eq!(client.post(path, body).await.status, 404, "{path}");
    }
}
