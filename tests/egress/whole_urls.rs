//! Calls that name their service by a whole URL, as programs send them to a proxy.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::prelude::*;
use super::{entry, raw};
use crate::sidecar::simulated::Start;

/// The first line and the lines after it; the reply.
async fn said(world: &World, first: &str, lines: &str) -> String {
    let call = format!("{first} HTTP/1.1\r\n{lines}Connection: close\r\n\r\n");
    raw(&world.net, world.caller.addr, &call).await
}

fn status(reply: &str) -> &str {
    reply.get(9..12).unwrap_or_default()
}

/// A proxy's client signs the `Host` that it sends.
#[tokio::test(start_paused = true)]
async fn what_names_the_upstream_goes_there_and_its_host_stays_as_it_is() {
    let world = World::start("", "", |_| Answer::ok()).await;
    let port = world.vendor.addr.port();
    for (url, host, target) in [
        (
            "http://127.0.0.1:PORT/x?y=%2F",
            "127.0.0.1:PORT",
            "/x?y=%2F",
        ),
        ("http://127.0.0.1:PORT", "127.0.0.1:PORT", "/"),
        ("http://127.0.0.1:PORT?x=/y", "127.0.0.1:PORT", "/?x=/y"),
        (
            "http://127.0.0.1:PORT//a/../b",
            "127.0.0.1:PORT",
            "//a/../b",
        ),
        ("HTTP://127.0.0.1.:PORT/a", "127.0.0.1.:PORT", "/a"),
        ("http://127.0.0.1:0PORT/a", "127.0.0.1:PORT", "/a"),
    ] {
        let [url, host] = [url, host].map(|text| text.replace("PORT", &port.to_string()));
        let reply = said(&world, &format!("GET {url}"), &format!("Host: {host}\r\n")).await;
        assert_eq!(status(&reply), "200", "{url} {reply}");
        let seen = world.vendor.calls().pop().unwrap();
        assert_eq!((seen.target(), seen.header("host")), (target, Some(&*host)));
    }
    // As a base URL it is the service's, as ever.
    let reply = said(&world, "GET /x", "Host: of.caller\r\n").await;
    assert_eq!(status(&reply), "200");
    let seen = world.vendor.calls().pop().unwrap();
    assert_eq!(seen.header("host"), Some(&*world.vendor.addr.to_string()));
}

/// In small letters, without the default port and without the dot at the end it is the same name.
#[tokio::test(start_paused = true)]
async fn all_spellings_of_the_upstream_name_it_and_its_base_is_not_doubled() {
    let vendor = World::start("", "", |_| Answer::ok()).await;
    let at = format!("http://{}", vendor.vendor.addr);
    let text = entry(
        vendor.vendor.addr,
        "key = 's:{host}'\nrate = { limit = 10, period = '1h' }\non_limit = 'reject'",
    );
    let port = vendor.vendor.addr.port();
    let text = text.replace(&at, &format!("http://API.Example.com:{port}/base"));
    let sidecar = Start::before(&vendor.net, "http://127.0.0.1:9", &text)
        .start()
        .await;
    let to = sidecar.egress[0];
    for (nth, name) in [
        "api.example.com",
        "API.example.COM",
        "api.example.com.",
        "Api.Example.com.",
    ]
    .iter()
    .enumerate()
    {
        let name = format!("{name}:{port}");
        let call = format!(
            "GET http://{name}/base/x HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n"
        );
        assert_eq!(status(&raw(&vendor.net, to, &call).await), "200", "{name}");
        let seen = vendor.vendor.calls().pop().unwrap();
        assert_eq!(
            (seen.target(), seen.header("host")),
            ("/base/x", Some(&*name)),
            "{nth}"
        );
    }
    // A base may be all of a path, as of GraphQL, and what is only read is not sent otherwise.
    for target in ["/base", "/base?a=1", "/base/", "/base/?a=1", "/base//x"] {
        let name = format!("api.example.com:{port}");
        let call = format!(
            "GET http://{name}{target} HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n"
        );
        assert_eq!(
            status(&raw(&vendor.net, to, &call).await),
            "200",
            "{target}"
        );
        assert_eq!(vendor.vendor.calls().pop().unwrap().target(), target);
    }
    // Beside the base there is nothing of this way out.
    for path in ["/x", "/basement", "/"] {
        let name = format!("api.example.com:{port}");
        let call = format!(
            "GET http://{name}{path} HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n"
        );
        let reply = raw(&vendor.net, to, &call).await;
        assert_eq!(status(&reply), "403", "{path} {reply}");
    }
    // One key for all of them: one start is left, and nobody finds a second.
    for want in ["200", "429"] {
        let call =
            format!("GET / HTTP/1.1\r\nHost: aPI.example.com.:{port}\r\nConnection: close\r\n\r\n");
        assert_eq!(status(&raw(&vendor.net, to, &call).await), want);
    }
}

#[tokio::test(start_paused = true)]
async fn any_other_host_is_refused_and_nothing_is_sent() {
    let world = World::start("", "", |_| Answer::ok()).await;
    let own = world.vendor.addr.to_string();
    let not_listed = ("403", "host_not_listed");
    let (mismatch, invalid) = (("400", "host_mismatch"), ("400", "invalid_request"));
    for (first, host, (want, code)) in [
        ("GET http://other.example/x", "other.example", not_listed),
        ("GET http://127.0.0.1/x", "127.0.0.1", not_listed),
        ("GET http://[::1]/x", "[::1]", not_listed),
        ("GET http://OWN/x", "other.example", mismatch),
        ("GET http://other.example/x", "OWN", mismatch),
        ("GET http://u:p@OWN/x", "OWN", invalid),
        ("GET http://OWN@other.example/x", "other.example", invalid),
        ("GET https://OWN/x", "OWN", mismatch),
        ("GET ftp://OWN/x", "OWN", invalid),
        ("GET OWN", "OWN", invalid),
        ("GET http://a%2eb/x", "a%2eb", invalid),
        ("GET http://a..b/x", "a..b", invalid),
        ("CONNECT OWN", "OWN", ("405", "http:// endpoint")),
    ] {
        let [first, host] = [first, host].map(|text| text.replace("OWN", &own));
        let reply = said(&world, &first, &format!("Host: {host}\r\n")).await;
        assert_eq!(status(&reply), want, "{first}: {reply}");
        assert!(
            reply.contains(code) && reply.contains("\"hint\":"),
            "{first}: {reply}"
        );
    }
    let told = said(
        &world,
        "GET http://other.example/x",
        "Host: other.example\r\n",
    )
    .await;
    assert!(told.contains(&own), "it says what is listed: {told}");
    for garbage in [
        "GET http:// HTTP/1.1",
        "GET http://a b/ HTTP/1.1",
        "http://a/ GET",
        "GET",
        "\0\u{1}\u{2}",
        "GET http://[::1/x HTTP/1.1",
        "GET http://a:99999/ HTTP/1.1",
        "GET http://@/ HTTP/1.1",
    ] {
        let reply = raw(
            &world.net,
            world.caller.addr,
            &format!("{garbage}\r\nHost: a\r\nConnection: close\r\n\r\n"),
        )
        .await;
        assert!(
            ["400", ""].contains(&status(&reply)),
            "{garbage:?}: {reply}"
        );
    }
    assert!(world.vendor.calls().is_empty());
}

/// So no header is added that would be signed.
#[tokio::test(start_paused = true)]
async fn the_token_may_be_the_password_for_a_proxy() {
    let world = World::start("", "token = 'open-sesame'", |_| Answer::ok()).await;
    let own = world.vendor.addr.to_string();
    let basic = |login: &str| format!("Proxy-Authorization: basic {}\r\n", STANDARD.encode(login));
    for (lines, want) in [
        (basic("x:open-sesame"), "200"),
        (basic(":open-sesame"), "200"),
        (basic("x:open"), "407"),
        (basic("open-sesame"), "407"),
        ("Proxy-Authorization: Basic ???\r\n".to_owned(), "407"),
        (
            "Proxy-Authorization: Bearer open-sesame\r\n".to_owned(),
            "407",
        ),
        (
            format!("{}{}", basic("x:open"), basic("x:open-sesame")),
            "407",
        ),
        (
            format!("OJS-Throttle-Token: open-sesame\r\n{}", basic("x:y")),
            "200",
        ),
    ] {
        let reply = said(
            &world,
            &format!("GET http://{own}/"),
            &format!("Host: {own}\r\n{lines}"),
        )
        .await;
        assert_eq!(status(&reply), want, "{lines} {reply}");
        let asks = reply.contains("\r\nproxy-authenticate: Basic realm=\"ojs-throttle\"\r\n");
        assert_eq!(asks, want == "407", "{reply}");
    }
    // As a base URL it is no proxy.
    let reply = said(&world, "GET /", &format!("Host: {own}\r\n")).await;
    assert_eq!(status(&reply), "401");
    assert!(reply.contains("\r\nwww-authenticate: "), "{reply}");
    for seen in world.vendor.calls() {
        assert_eq!(seen.header("proxy-authorization"), None);
        assert_eq!(seen.header("ojs-throttle-token"), None);
    }
    assert_eq!(world.vendor.calls().len(), 3);
}
