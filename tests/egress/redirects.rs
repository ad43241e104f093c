//! Redirects of the service, and the token of the way out.

use super::prelude::*;

/// Where a redirect from `to` leads a caller of an entry whose upstream has this base path.
async fn location(base: &str, status: u16, to: &str) -> String {
    let to = to.to_owned();
    let world = World::start("", "", move |call| {
        let vendor = call.header("host").unwrap().to_owned();
        let (_, port) = vendor.split_once(':').unwrap();
        let to = to.replace("PORT", port).replace("VENDOR", &vendor);
        Answer::new(status, "").header("Location", &to)
    })
    .await;
    let upstream = format!("http://{}", world.vendor.addr);
    let named = format!("vendor.example:{}", world.vendor.addr.port());
    let entry = super::entry(world.vendor.addr, "");
    let text = entry.replace(&upstream, &format!("http://{named}{base}"));
    let start = crate::sidecar::simulated::Start::before(&world.net, "http://127.0.0.1:9", &text);
    let sidecar = start.start().await;
    let reply = sidecar.caller().get("/old").await;
    assert_eq!(reply.status, status);
    let to = reply.headers["location"].to_str().unwrap();
    to.replace(&named, "VENDOR")
}

/// What leads to the service itself comes back here, so that it stays under the limits.
#[tokio::test(start_paused = true)]
async fn a_redirect_to_the_service_itself_comes_back_here() {
    for (base, status, from, to) in [
        ("", 302, "http://VENDOR/new?a=%2F#x", "/new?a=%2F#x"),
        ("", 307, "HTTP://VENDOR", "/"),
        ("", 308, "//VENDOR/new", "/new"),
        ("", 301, "http://VENDOR?a", "/?a"),
        // As other servers spell its name.
        ("", 302, "http://Vendor.Example.:PORT/new", "/new"),
        ("", 303, "/new", "/new"),
        ("", 302, "new?x", "new?x"),
        ("/base", 302, "http://VENDOR/base/new", "/new"),
        ("/base", 302, "/base/new", "/new"),
        ("/base", 302, "/base?a", "/?a"),
        // These lead elsewhere.
        (
            "",
            302,
            "http://VENDOR.example/new",
            "http://VENDOR.example/new",
        ),
        ("", 302, "http://VENDOR@example/", "http://VENDOR@example/"),
        ("", 302, "https://VENDOR/new", "https://VENDOR/new"),
        ("", 302, "http://elsewhere/", "http://elsewhere/"),
        (
            "",
            302,
            "http://VENDOR//elsewhere/x",
            "http://VENDOR//elsewhere/x",
        ),
        ("/base", 302, "http://VENDOR/other", "http://VENDOR/other"),
        (
            "/base",
            302,
            "http://VENDOR/baseless",
            "http://VENDOR/baseless",
        ),
        // And this is no redirect.
        ("", 201, "http://VENDOR/new", "http://VENDOR/new"),
    ] {
        assert_eq!(location(base, status, from).await, to, "{base} {from}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_is_never_sent_on() {
    for (token, sent) in [("", "any"), ("token = 'known'", "known")] {
        let world = World::start("", token, |_| Answer::ok()).await;
        let header = [("ojs-throttle-token", sent)];
        let reply = world.caller.send(http::Method::GET, "/", &header, "").await;
        assert_eq!(reply.status, 200);
        assert_eq!(world.vendor.calls()[0].header("ojs-throttle-token"), None);
    }
}
