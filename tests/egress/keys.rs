//! What makes the key of a call: one value is one key, and what can be read in two ways is no call.

use tokio::io::AsyncReadExt as _;

use super::prelude::*;
use crate::servers::vendor::sum;

/// One start an hour, and nobody waits.
const ONE: &str = "rate = { limit = 1, period = '1h' }\non_limit = 'reject'";
const TENANT: &str = "key = 'crm:{header.X-Tenant}'";

/// Calls `path` with these lines, as bytes; the status.
async fn call(world: &World, path: &str, lines: &[&[u8]]) -> u16 {
    let mut head = format!("GET {path} HTTP/1.1\r\n").into_bytes();
    let has = |name: &[u8]| lines.iter().any(|line| line.starts_with(name));
    if !has(b"Host") {
        head.extend(b"Host: a\r\n");
    }
    if !has(b"Connection") {
        head.extend(b"Connection: close\r\n");
    }
    for line in lines {
        head.extend_from_slice(line);
        head.extend(b"\r\n");
    }
    head.extend(b"\r\n");
    let mut stream = ring(&world.net, world.caller.addr, head).await;
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).await.unwrap();
    let status = reply.get(9..12).unwrap_or_default();
    std::str::from_utf8(status).unwrap().parse().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_header_that_can_be_read_in_two_ways_is_refused() {
    let world = World::start("", &format!("{TENANT}\n{ONE}"), |_| Answer::ok()).await;
    for nth in 0..5 {
        let own = format!("X-Tenant: t{nth}");
        let two = call(&world, "/", &[own.as_bytes(), b"x-tenant: victim"]).await;
        assert_eq!(two, 400, "two lines");
        let hop = [own.as_bytes(), b"Connection: X-Tenant, close"];
        assert_eq!(call(&world, "/", &hop).await, 400, "it would not go on");
    }
    assert!(world.vendor.calls().is_empty());
    // Other headers may do both.
    let others: [&[u8]; 4] = [
        b"X-Tenant: a",
        b"X-Other: 1",
        b"X-Other: 2",
        b"Connection: X-Hop, close",
    ];
    assert_eq!(call(&world, "/", &others).await, 200);
    assert_eq!(call(&world, "/", &others).await, 429);
}

#[tokio::test(start_paused = true)]
async fn all_spellings_of_a_path_are_one_key() {
    let world = World::start("", &format!("key = 's:{{path.1}}'\n{ONE}"), fine).await;
    assert_eq!(call(&world, "/v1/charges", &[]).await, 200);
    for same in [
        "/v1/charges",
        "/v1/%63harges",
        "/v1/c%68arges",
        "/v1/charge%73/x",
        "/%76%31/%63%68%61%72%67%65%73?a=b",
        "/v1/charges/",
        "/v1/charges//x",
        "/v1/charges/a%2Fb",
    ] {
        assert_eq!(call(&world, same, &[]).await, 429, "{same}");
    }
    for unclear in [
        "/v1//charges",
        "//v1/charges",
        "/v1/./charges",
        "/v1/%2e/charges",
        "/x/../v1/charges",
        "/v1/charges/../refunds",
        "/v1/charges/%2E%2e/refunds",
        "/v1/charges/x%2F..%2F..%2Frefunds",
        "/v1%2Fcharges",
        "/v1/charges%5cx",
        "/v1/charges%00",
    ] {
        assert_eq!(call(&world, unclear, &[]).await, 400, "{unclear}");
    }
    assert_eq!(call(&world, "/v1/refunds", &[]).await, 200);
    assert_eq!(world.vendor.calls().len(), 2);
    // Where the path is no part of the key, it passes as it is.
    let world = World::start("", &format!("{TENANT}\n{ONE}"), |_| Answer::ok()).await;
    assert_eq!(call(&world, "/v1//./a%2Fb", &[b"X-Tenant: a"]).await, 200);
    assert_eq!(world.vendor.calls()[0].target(), "/v1//./a%2Fb");
}

#[tokio::test(start_paused = true)]
async fn all_spellings_of_a_host_are_one_key() {
    let world = World::start("", &format!("key = 's:{{host}}'\n{ONE}"), |_| Answer::ok()).await;
    assert_eq!(call(&world, "/", &[b"Host: shop.example"]).await, 200);
    for same in [
        "SHOP.example",
        "shop.example.",
        "shop.example:80",
        "shop.example:443",
        "Shop.Example.:80",
    ] {
        let host = format!("Host: {same}");
        assert_eq!(call(&world, "/", &[host.as_bytes()]).await, 429, "{same}");
    }
    assert_eq!(call(&world, "/", &[b"Host: shop.example:81"]).await, 200);
}

/// Node and Python send such a value in Latin-1, Go and Ruby in UTF-8.
#[tokio::test(start_paused = true)]
async fn a_value_beyond_ascii_is_one_key_for_jobs_and_calls() {
    let policy = "[[policy]]\nname = 'crm'\nmatch = { queue = 'q' }\nkey = 'crm:{meta.tenant_id}'\n\
                  rate = { limit = 1, period = '1h' }\n";
    let world = World::start(policy, &format!("{TENANT}\non_limit = 'reject'"), fine).await;
    let client = world.pair.sidecar.client();
    let job = json!({"type": "t", "args": [], "meta": {"tenant_id": "zürich"}, "options": {"queue": "q"}});
    client.enqueue(job).await;
    assert_eq!(client.fetch("q", 1).await.len(), 1);
    for same in ["zürich".as_bytes(), b"z\xFCrich"] {
        let line = [b"X-Tenant: ", same].concat();
        assert_eq!(call(&world, "/", &[&line]).await, 429, "{same:?}");
    }
    // No value is no such value.
    for (lines, status) in [
        (&["X-Tenant: genève".as_bytes()][..], 200),
        (&[b"X-Tenant: gen\xE8ve"], 429),
        (&[], 200),
    ] {
        assert_eq!(call(&world, "/", lines).await, status, "{lines:?}");
    }
}

/// Sends a body without a length; the status, and the code of an error.
async fn chunked(world: &World, path: &str, kind: &str, body: &str) -> String {
    let head = format!("Host: a\r\nConnection: close\r\nContent-Type: {kind}");
    let body = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    let head = format!("POST {path} HTTP/1.1\r\n{head}\r\nTransfer-Encoding: chunked\r\n\r\n");
    let reply = world.raw(&[head, body].concat()).await;
    let code = reply.split("\"code\":\"").nth(1);
    let code = code.and_then(|rest| rest.split('"').next());
    [status(&reply), code.unwrap_or_default()].join(" ")
}

/// Only what makes the key of a call is read whole, however the body comes.
#[tokio::test(start_paused = true)]
async fn a_large_body_without_a_length_passes_unless_it_makes_the_key() {
    let rate = "rate = { limit = 100, period = '1m' }";
    let by_model = format!("key = 'm:{{json.model}}'\n{rate}");
    let by_budget = format!(
        "[[egress.budget]]\nname = 'b'\nkey = 'b:{{json.model}}'\nonly = ['POST /chat']\n{rate}"
    );
    let text = "x".repeat(2 << 20);
    let (json, upload) = ("application/json", "multipart/form-data; boundary=x");
    let said = json!({"model": "a", "text": text}).to_string();
    let packed = format!("{json}\r\nContent-Encoding: gzip");
    let (passes, unread) = ("200 ", "413 key_unreadable");
    for (config, path, kind, body, becomes) in [
        (&by_model, "/files", upload, &text, passes),
        (&by_model, "/files", json, &said, unread),
        (&by_model, "/files", &packed, &said, unread),
        (&by_budget, "/files", json, &said, passes),
        (&by_budget, "/chat", upload, &text, passes),
        (&by_budget, "/chat", json, &said, unread),
    ] {
        let world = World::start("", config, |_| Answer::ok()).await;
        let became = chunked(&world, path, kind, body).await;
        assert_eq!(became, becomes, "{config} {path} {kind}");
        let came = world.vendor.calls().first().map(|call| call.sum);
        assert_eq!(came, (becomes == passes).then(|| sum(body.as_bytes())));
    }
}
