//! Redirects of the service, and the token of the way out.

use super::prelude::*;

/// Where a redirect from `to` leads a caller of an entry whose upstream has this base path.
async fn location(base: &str, status: u16, to: &str) -> String {
    told(base, status, ("location", to)).await
}

/// What a caller of an entry whose upstream has this base path reads in a header that the service has set so.
async fn told(base: &str, status: u16, (header, text): (&'static str, &str)) -> String {
    let text = text.to_owned();
    let world = World::start("", "", move |call| {
        let vendor = call.header("host").unwrap().to_owned();
        let (_, port) = vendor.split_once(':').unwrap();
        let text = text.replace("PORT", port).replace("VENDOR", &vendor);
        Answer::new(status, "").header(header, &text)
    })
    .await;
    let upstream = format!("http://{}", world.vendor.addr);
    let named = format!("vendor.example:{}", world.vendor.addr.port());
    let entry = super::entry(world.vendor.addr, "");
    let entry = entry.replace(&upstream, &format!("http://{named}{base}"));
    let start = crate::sidecar::simulated::Start::before(&world.net, "http://127.0.0.1:9", &entry);
    let sidecar = start.start().await;
    let reply = sidecar.caller().get("/old").await;
    assert_eq!(reply.status, status);
    let text = reply.headers[header].to_str().unwrap();
    text.replace(&named, "VENDOR")
}

/// Callers follow links to the next page as they stand: those to the service itself lead here too.
#[tokio::test(start_paused = true)]
async fn a_link_to_the_service_itself_leads_here() {
    let two =
        "<http://VENDOR/issues?page=2>; rel=\"next\", <http://VENDOR/issues?page=9>; rel=\"last\"";
    for (base, from, to) in [
        ("", two, two.replace("VENDOR", "HERE")),
        (
            "/base",
            "<http://VENDOR/base/a>; rel=next",
            "<http://HERE/a>; rel=next".to_owned(),
        ),
        ("", "<//VENDOR/a>", "<http://HERE/a>".to_owned()),
    ] {
        let told = told(base, 200, ("link", from)).await;
        // The test calls by this name.
        let (_, after) = told.split_once("http://").unwrap();
        let (here, _) = after.split_once('/').unwrap();
        assert_ne!(here, "VENDOR", "{told}");
        assert_eq!(told, to.replace("HERE", here));
    }
    for link in [
        "</issues?page=2>; rel=\"next\"",
        "<https://VENDOR/a>; rel=next",
        "<http://elsewhere.example/a>; rel=next; title=\"a < b\"",
        "<http://VENDOR@elsewhere.example/a>",
        "http://VENDOR/a",
        "<http://VENDOR/a",
    ] {
        assert_eq!(told("", 200, ("link", link)).await, link);
    }
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
