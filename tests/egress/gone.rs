//! Callers that hang up while more of theirs stands behind the call: they are gone all the same.

use ojs_throttle::net::Net;

use super::prelude::*;
use crate::sidecar::client::ids;

const CALL: &str = "GET /call HTTP/1.1\r\nHost: a\r\n\r\n";
const NEXT: &str = "GET /behind HTTP/1.1\r\nHost: a\r\n\r\n";

/// What may stand behind a call.
fn behind() -> [String; 4] {
    let posted = format!(
        "POST /behind HTTP/1.1\r\nHost: a\r\nContent-Length: 900\r\n\r\n{}",
        "x".repeat(900)
    );
    [String::new(), "\r\n".to_owned(), NEXT.to_owned(), posted]
}

#[tokio::test(start_paused = true)]
async fn a_slot_comes_back_whatever_stands_behind_the_call() {
    // The vendor works on, and has the slot for as long as the lease lasts.
    let slots = "key = 'vendor'\nconcurrency = 4\nlease = '1s'";
    let world = World::start("", slots, |call| match call.target() {
        "/call" => Answer::ok().after(FOREVER),
        _ => Answer::ok(),
    })
    .await;
    for behind in behind() {
        let before = world.vendor.calls().len();
        let mut out = Vec::new();
        for _ in 0..4 {
            out.push(world.ring(&format!("{CALL}{behind}")).await);
        }
        sleep(millis(100)).await;
        assert_eq!(world.vendor.calls().len(), before + 4, "{behind:?}");
        drop(out);
        sleep(millis(1_010)).await;
        let calls = world.vendor.calls();
        let cut = calls[before..].iter().filter(|call| call.is_cut).count();
        assert_eq!((cut, calls.len()), (4, before + 4), "{behind:?}");
        let begun = Instant::now();
        assert_eq!(world.statuses("/next", 1).await, [200]);
        assert!(begun.elapsed() < millis(100), "{behind:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_hangs_up_in_the_line_never_reaches_the_vendor() {
    let patient = "key = 'vendor'\nconcurrency = 1\nmax_wait = '1h'";
    let world = World::start("", patient, |call| match call.target() {
        "/first" => Answer::ok().after(millis(500)),
        _ => Answer::ok(),
    })
    .await;
    for behind in behind() {
        let before = world.vendor.calls().len();
        let first = world.ring(&CALL.replace("/call", "/first")).await;
        sleep(millis(10)).await;
        // Half of them are dead before they are looked at.
        for _ in 0..10 {
            drop(world.ring(&format!("{CALL}{behind}")).await);
        }
        let mut waiting = Vec::new();
        for _ in 0..10 {
            waiting.push(world.ring(&format!("{CALL}{behind}")).await);
        }
        sleep(millis(10)).await;
        drop(waiting);
        sleep(millis(1_000)).await;
        drop(first);
        assert_eq!(world.statuses("/last", 1).await, [200]);
        let calls = world.vendor.calls();
        let seen: Vec<&str> = calls[before..].iter().map(|call| call.target()).collect();
        assert_eq!(seen, ["/first", "/last"], "{behind:?}");
    }
}

/// Over sockets too: nothing runs between a call's last byte and its caller's end.
#[tokio::test]
async fn who_is_gone_before_it_is_looked_at_costs_no_start() {
    let limits = "key = 'vendor'\nconcurrency = 100";
    let world = World::within(Net::Tcp, "", limits, |_| Answer::ok()).await;
    for behind in behind() {
        for _ in 0..20 {
            drop(world.ring(&format!("{CALL}{behind}")).await);
        }
    }
    assert_eq!(world.statuses("/last", 1).await, [200]);
    let calls = world.vendor.calls();
    let seen: Vec<&str> = calls.iter().map(|call| call.target()).collect();
    assert_eq!(seen, ["/last"]);
}

#[tokio::test(start_paused = true)]
async fn no_job_goes_to_a_worker_that_hung_up() {
    let policies = "[[policy]]\nname = 'mail'\nmatch = { queue = 'mail' }\nconcurrency = 5";
    let world = World::start(policies, "", |_| Answer::ok()).await;
    let client = world.pair.sidecar.client();
    let mail = json!({"type": "t", "args": [], "options": {"queue": "mail"}});
    let body = json!({"queues": ["mail"], "worker_id": "dead"}).to_string();
    let length = body.len();
    let fetch = format!(
        "POST /ojs/v1/workers/fetch HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    let ack = fetch.replace("fetch", "ack");
    let to = world.pair.sidecar.addr;
    for behind in [String::new(), "\r\n".to_owned(), fetch.clone(), ack] {
        // It waits for a slot: five are taken.
        let mut out = Vec::new();
        for _ in 0..5 {
            client.enqueue(mail.clone()).await;
            out.extend(client.fetch("mail", 1).await);
        }
        assert_eq!(out.len(), 5, "{behind:?}");
        let waits = client.enqueue(mail.clone()).await;
        let stream = ring(&world.net, to, format!("{fetch}{behind}")).await;
        sleep(millis(50)).await;
        drop(stream);
        sleep(millis(10)).await;
        for job in &out {
            client.ack(id(job)).await;
        }
        sleep(millis(10)).await;
        let begun = Instant::now();
        let jobs = client.fetch("mail", 1).await;
        assert_eq!(ids(&jobs), [&*waits], "{behind:?}");
        assert!(begun.elapsed() < millis(300), "{behind:?}");
        client.ack(&waits).await;
    }
}
