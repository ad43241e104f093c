//! What crosses, and what does not.

use super::prelude::*;

const LIMITED: &str = "key = 'vendor'\nconcurrency = 100";

#[tokio::test(start_paused = true)]
async fn heads_and_bodies_cross_byte_for_byte() {
    for limits in ["", LIMITED] {
        let world = World::start("", limits, |_| {
            Answer::new(418, "short and stout")
                .header("X-Vendor", "a,  b")
                .header("Location", "http://elsewhere/")
                .header("Connection", "x-hop")
                .header("X-Hop", "1")
                .with_hints(2)
        })
        .await;
        let call = "PATCH //a/../%2F;b?c=%41&d= HTTP/1.1\r\nHost: of.caller\r\nAuthorization: Bearer s3cret\r\n\
                    X-Twice: 1\r\nX-Twice: 2\r\nContent-Length: 3\r\nConnection: close, x-mine\r\nX-Mine: 1\r\n\
                    TE: trailers\r\nUpgrade: h2c\r\n\r\nabc";
        let reply = raw(&world.net, world.caller.addr, call).await;
        assert!(reply.starts_with("HTTP/1.1 418 "), "{reply}");
        assert!(reply.ends_with("\r\n\r\nshort and stout"), "{reply}");
        for line in ["x-vendor: a,  b\r\n", "location: http://elsewhere/\r\n"] {
            assert!(reply.to_lowercase().contains(line), "{line} {reply}");
        }
        assert!(reply.contains("\r\nvia: 1.1 ojs-throttle\r\n"), "{reply}");
        for word in ["x-hop", "\nojs-"] {
            assert!(!reply.to_lowercase().contains(word), "{word} {reply}");
        }
        let seen = world.vendor.calls().remove(0);
        assert_eq!(
            (seen.method(), seen.target()),
            ("PATCH", "//a/../%2F;b?c=%41&d=")
        );
        let host = world.vendor.addr.to_string();
        let via = seen.header("via").unwrap();
        assert!(via.starts_with("1.1 0."), "{via}");
        let lines = format!(
            "host: {host}\r\nauthorization: Bearer s3cret\r\nx-twice: 1\r\nx-twice: 2\r\ncontent-length: 3\r\nvia: {via}\r\n\r\n"
        );
        assert_eq!(seen.head.split_once("\r\n").unwrap().1, lines);
        assert_eq!(seen.body, b"abc");
    }
}

/// Its caller follows it, or not: what it names may be another vendor.
#[tokio::test(start_paused = true)]
async fn a_redirect_is_an_answer() {
    let world = World::start("", LIMITED, |call| match call.target() {
        "/old" => Answer::new(307, "gone there").header("Location", "/new"),
        _ => Answer::ok(),
    })
    .await;
    let reply = world.caller.get("/old").await;
    let (to, said) = (reply.headers["location"].clone(), reply.text());
    assert_eq!(
        (reply.status, to.to_str().unwrap(), &*said),
        (307, "/new", "gone there")
    );
    assert_eq!(world.vendor.calls().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_no_call_of_the_entry_is_refused_with_a_hint() {
    let token = "token = 'open sesame'"
        .replace(' ', "-")
        .replace("-=-", " = ");
    let world = World::start("", &token, |_| Answer::ok()).await;
    let (net, to) = (&world.net, world.caller.addr);
    let known = "OJS-Throttle-Token: open-sesame\r\n";
    for (call, status, word) in [
        (
            "CONNECT a:443 HTTP/1.1\r\nHost: a\r\n",
            405,
            "http:// endpoint",
        ),
        ("GET http://a/ HTTP/1.1\r\nHost: a\r\n", 403, "base URL"),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: upgrade, close\r\n",
            400,
            "WebSockets",
        ),
    ] {
        let close = if call.contains("Connection:") {
            ""
        } else {
            "Connection: close\r\n"
        };
        let reply = raw(net, to, &format!("{call}{known}{close}\r\n")).await;
        assert!(reply.starts_with(&format!("HTTP/1.1 {status} ")), "{reply}");
        assert!(
            reply.contains("\"hint\":") && reply.contains(word),
            "{reply}"
        );
    }
    for (token, status) in [
        ("", 401),
        ("OJS-Throttle-Token: open\r\n", 401),
        (known, 200),
    ] {
        let call = format!("GET / HTTP/1.1\r\nHost: a\r\n{token}Connection: close\r\n\r\n");
        let reply = raw(net, to, &call).await;
        assert!(reply.starts_with(&format!("HTTP/1.1 {status} ")), "{reply}");
    }
    let calls = world.vendor.calls();
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0].header("ojs-throttle-token"), None);
}

#[tokio::test(start_paused = true)]
async fn a_slot_lasts_as_long_as_the_reply_streams() {
    let world = World::start("", "key = 'vendor'\nconcurrency = 2", |call| {
        let path = call.target().to_owned();
        let body = vec![b'x'; 1_000];
        match &*path {
            "/stream" => Answer::new(200, body).streamed(10, millis(10)),
            "/cut" => Answer::new(200, body).cut(500, Stops::Closes),
            "/never" => Answer::ok().never(Stops::Closes),
            "/head" => Answer::ok().after(millis(300)),
            _ => Answer::new(204, "").after(millis(300)),
        }
    })
    .await;
    let begun = Instant::now();
    let paths = ["/stream", "/stream", "/head", "/empty", "/head", "/empty"];
    let calls = paths.map(|path| {
        let caller = world.caller.clone();
        tokio::spawn(async move { caller.get(path).await.status })
    });
    for call in calls {
        assert!([200, 204].contains(&call.await.unwrap()));
    }
    assert_eq!(world.vendor.most_at_once(), 2);
    let took = begun.elapsed();
    assert!(took >= millis(1_600) && took < millis(1_900), "{took:?}");
    // What ends badly has ended.
    for path in ["/never", "/never", "/never", "/cut"] {
        let call = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let reply = raw(&world.net, world.caller.addr, &call).await;
        let is_lost = reply.contains("service_reply_lost");
        assert!(is_lost == (path == "/never"), "{path} {reply}");
    }
    assert_eq!(world.statuses("/head", 3).await, [200; 3]);
}
