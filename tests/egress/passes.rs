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
        let reply = world.raw(call).await;
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
        let called = (seen.method(), seen.target());
        assert_eq!(called, ("PATCH", "//a/../%2F;b?c=%41&d="));
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
    assert_eq!((reply.status, &*reply.text()), (307, "gone there"));
    assert_eq!(reply.headers["location"], "/new");
    assert_eq!(world.vendor.calls().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_no_call_of_the_entry_is_refused_with_a_hint() {
    let world = World::start("", "token = 'open-sesame'", fine).await;
    let known = "OJS-Throttle-Token: open-sesame\r\n";
    let upgrade = "Upgrade: websocket\r\nConnection: upgrade\r\n";
    for (call, more, want, word) in [
        ("CONNECT a:443", "", "405", "http:// endpoint"),
        ("GET http://a/", "", "403", "base URL"),
        ("GET /", upgrade, "400", "WebSockets"),
    ] {
        let lines = format!("Host: a\r\n{more}{known}Connection: close\r\n");
        let reply = world.raw(&format!("{call} HTTP/1.1\r\n{lines}\r\n")).await;
        assert_eq!(status(&reply), want, "{reply}");
        let is_told = reply.contains("\"hint\":") && reply.contains(word);
        assert!(is_told, "{reply}");
    }
    let wrong = "OJS-Throttle-Token: open\r\n";
    for (token, want) in [("", "401"), (wrong, "401"), (known, "200")] {
        let call = format!("GET / HTTP/1.1\r\nHost: a\r\n{token}Connection: close\r\n\r\n");
        assert_eq!(status(&world.raw(&call).await), want, "{token}");
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
    let calls = paths.map(|path| world.begins(path));
    for call in calls {
        assert!([200, 204].contains(&call.await.unwrap()));
    }
    assert_eq!(world.vendor.most_at_once(), 2);
    let took = begun.elapsed();
    assert!(took >= millis(1_600) && took < millis(1_900), "{took:?}");
    // What ends badly has ended.
    for path in ["/never", "/never", "/never", "/cut"] {
        let call = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let reply = world.raw(&call).await;
        let is_lost = reply.contains("service_reply_lost");
        assert!(is_lost == (path == "/never"), "{path} {reply}");
    }
    assert_eq!(world.statuses("/head", 3).await, [200; 3]);
}
