//! Redirects of the service, and the token of the way out.

use super::prelude::*;
use crate::harness::table;

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
    let text = std::str::from_utf8(reply.headers[header].as_bytes()).unwrap();
    let here = sidecar.egress[0].to_string();
    text.replace(&named, "VENDOR").replace(&here, "HERE")
}

const LINKS: &str = r#"
<http://VENDOR/a?page=2>; rel="next", <http://VENDOR/a?page=9>; rel="last" => <http://HERE/a?page=2>; rel="next", <http://HERE/a?page=9>; rel="last"
<//VENDOR/a> => <http://HERE/a>
<http://VENDOR//a> => <http://HERE//a>
// What stands in quotes is no link, and bytes are not read as letters.
<http://VENDOR/a>; title="a < b, <http://VENDOR/t>", <http://VENDOR/c>; title="\"<", <http://VENDOR/d> => <http://HERE/a>; title="a < b, <http://VENDOR/t>", <http://HERE/c>; title="\"<", <http://HERE/d>
<http://VENDOR/größe>; title="größe", <http://VENDOR/b> => <http://HERE/größe>; title="größe", <http://HERE/b>
"#;
const LINKS_OF_BASE: &str = "
<http://VENDOR/base/a>; rel=next => <http://HERE/a>; rel=next
// One without a name would have the base twice.
</base/x?page=2>; rel=next => </x?page=2>; rel=next
</base?u=http://VENDOR/base/a> => </?u=http://VENDOR/base/a>
// Here a path that the base does not lead to would be another one.
</other/a>, <http://VENDOR/baseless> => <http://VENDOR/other/a>, <http://VENDOR/baseless>
";

/// Callers follow links to the next page as they stand: those to the service itself lead here too.
#[tokio::test(start_paused = true)]
async fn a_link_to_the_service_itself_leads_here() {
    for (from, to) in table(LINKS) {
        assert_eq!(told("", 200, ("link", from)).await, to, "{from}");
    }
    for (from, to) in table(LINKS_OF_BASE) {
        assert_eq!(told("/base", 200, ("link", from)).await, to, "{from}");
    }
    for link in [
        "</issues?page=2>; rel=\"next\"",
        "<?page=2>; rel=\"next\"",
        "<https://VENDOR/a>; rel=next",
        "<http:/VENDOR/a>; rel=next",
        "<http://elsewhere.example/a>; rel=next; title=\"a < b\"",
        "<http://elsewhere.example/a>; anchor=<http://VENDOR/a>",
        "<http://VENDOR@elsewhere.example/a>",
        "http://VENDOR/a",
        "<http://VENDOR/a",
    ] {
        assert_eq!(told("", 200, ("link", link)).await, link);
    }
}

/// A program that made something polls it where the service says, as it stands there.
#[tokio::test(start_paused = true)]
async fn what_was_made_is_looked_at_through_here() {
    for (base, status, from, to) in [
        ("", 201, "http://VENDOR/made/1", "http://HERE/made/1"),
        ("/base", 202, "http://VENDOR/base/1", "http://HERE/1"),
        ("/base", 202, "/base/made/1", "/made/1"),
        ("/base", 201, "/made/1", "http://VENDOR/made/1"),
        ("", 202, "made/1", "made/1"),
        ("", 201, "http://elsewhere/1", "http://elsewhere/1"),
        // Of these it says nothing.
        ("", 200, "http://VENDOR/made/1", "http://VENDOR/made/1"),
    ] {
        assert_eq!(location(base, status, from).await, to, "{base} {from}");
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
        ("", 302, "http://VENDOR/größe", "/größe"),
        ("", 302, "new?x", "new?x"),
        ("/base", 302, "http://VENDOR/base/new", "/new"),
        ("/base", 302, "/base/new", "/new"),
        ("/base", 302, "/base?a", "/?a"),
    ] {
        assert_eq!(location(base, status, from).await, to, "{base} {from}");
    }
    for (base, elsewhere) in [
        ("", "http://VENDOR.example/new"),
        ("", "http://VENDOR@example/"),
        ("", "https://VENDOR/new"),
        ("", "http://elsewhere/"),
        ("", "http://VENDOR//elsewhere/x"),
        ("/base", "http://VENDOR/other"),
        ("/base", "http://VENDOR/baseless"),
    ] {
        assert_eq!(location(base, 302, elsewhere).await, elsewhere, "{base}");
    }
}

/// A caller that follows it gets what the service means, or nothing.
#[tokio::test(start_paused = true)]
async fn a_redirect_out_of_the_base_leads_to_no_other_resource() {
    for (from, to) in [
        ("/other", "http://VENDOR/other"),
        ("/baseless?u=/../", "http://VENDOR/baseless?u=/../"),
        ("/base/../other", "http://VENDOR/base/../other"),
        ("/base/a/%2E./.%2e/b", "http://VENDOR/base/a/%2E./.%2e/b"),
        ("/base/a/../b?u=/../../", "/a/../b?u=/../../"),
        ("//elsewhere.example/x", "//elsewhere.example/x"),
    ] {
        assert_eq!(location("/base", 302, from).await, to, "{from}");
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
