//! Calls that name their service by a whole URL, as programs send them to a proxy.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::entry;
use super::prelude::*;
use crate::sidecar::simulated::Start;

/// The first line and the lines after it; the reply.
async fn said(world: &World, first: &str, lines: &str) -> String {
    let call = format!("{first} HTTP/1.1\r\n{lines}Connection: close\r\n\r\n");
    world.raw(&call).await
}

/// A proxy's client signs the `Host` that it sends.
#[tokio::test(start_paused = true)]
async fn what_names_the_upstream_goes_there_and_its_host_stays_as_it_is() {
    let world = World::start("", "", |_| Answer::ok()).await;
    let (own, port) = (world.vendor.addr.to_string(), world.vendor.addr.port());
    for (url, host, target) in [
        ("http://OWN/x?y=%2F", "OWN", "/x?y=%2F"),
        ("http://OWN", "OWN", "/"),
        ("http://OWN?x=/y", "OWN", "/?x=/y"),
        ("http://OWN//a/../b", "OWN", "//a/../b"),
        ("HTTP://127.0.0.1.:PORT/a", "127.0.0.1.:PORT", "/a"),
        ("http://127.0.0.1:0PORT/a", "OWN", "/a"),
    ] {
        let real = |text: &str| text.replace("OWN", &own).replace("PORT", &port.to_string());
        let [url, host] = [url, host].map(real);
        let reply = said(&world, &format!("GET {url}"), &format!("Host: {host}\r\n")).await;
        assert_eq!(status(&reply), "200", "{url} {reply}");
        let seen = world.vendor.calls().pop().unwrap();
        assert_eq!((seen.target(), seen.header("host")), (target, Some(&*host)));
    }
    // As a base URL it is the service's, as ever.
    let reply = said(&world, "GET /x", "Host: of.caller\r\n").await;
    assert_eq!(status(&reply), "200");
    let seen = world.vendor.calls().pop().unwrap();
    assert_eq!(seen.header("host"), Some(&*own));
}

/// In small letters, without the default port and without the dot at the end it is the same name.
#[tokio::test(start_paused = true)]
async fn all_spellings_of_the_upstream_name_it_and_its_base_is_not_doubled() {
    let mut world = World::start("", "", fine).await;
    let (at, port) = (world.vendor.addr, world.vendor.addr.port());
    let limit = "key = 's:{host}'\nrate = { limit = 10, period = '1h' }\non_limit = 'reject'";
    let named = format!("http://API.Example.com:{port}/base");
    let text = entry(at, limit).replace(&format!("http://{at}"), &named);
    let start = Start::before(&world.net, "http://127.0.0.1:9", &text);
    let sidecar = start.start().await;
    world.caller = sidecar.caller();
    for name in [
        "api.example.com",
        "API.example.COM",
        "api.example.com.",
        "Api.Example.com.",
    ] {
        let (url, host) = (format!("http://{name}:{port}"), format!("{name}:{port}"));
        let first = format!("GET {url}/base/x");
        let reply = said(&world, &first, &format!("Host: {host}\r\n")).await;
        assert_eq!(status(&reply), "200", "{name}");
        let seen = world.vendor.calls().pop().unwrap();
        assert_eq!(seen.target(), "/base/x", "{name}");
        assert_eq!(seen.header("host"), Some(&*host), "{name}");
    }
    // A base may be all of a path, as of GraphQL, and what is only read is not sent otherwise.
    for target in ["/base", "/base?a=1", "/base/", "/base/?a=1", "/base//x"] {
        let host = format!("api.example.com:{port}");
        let first = format!("GET http://{host}{target}");
        let reply = said(&world, &first, &format!("Host: {host}\r\n")).await;
        assert_eq!(status(&reply), "200", "{target}");
        assert_eq!(world.vendor.calls().pop().unwrap().target(), target);
    }
    // Beside the base there is nothing of this way out. One key for all of them: one start is left, and nobody finds a
    // second.
    for (url, name, want) in [
        ("http://HOST/x", "api.example.com", "403"),
        ("http://HOST/basement", "api.example.com", "403"),
        ("http://HOST/", "api.example.com", "403"),
        ("/", "aPI.example.com.", "200"),
        ("/", "aPI.example.com.", "429"),
    ] {
        let host = format!("{name}:{port}");
        let first = format!("GET {}", url.replace("HOST", &host));
        let reply = said(&world, &first, &format!("Host: {host}\r\n")).await;
        assert_eq!(status(&reply), want, "{first} {reply}");
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
        let is_told = reply.contains(code) && reply.contains("\"hint\":");
        assert!(is_told, "{first}: {reply}");
        let is_listed = (want, code) == not_listed;
        assert!(!is_listed || reply.contains(&own), "{first}: {reply}");
    }
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
        let call = format!("{garbage}\r\nHost: a\r\nConnection: close\r\n\r\n");
        let reply = world.raw(&call).await;
        let is_refused = ["400", ""].contains(&status(&reply));
        assert!(is_refused, "{garbage:?}: {reply}");
    }
    assert!(world.vendor.calls().is_empty());
}

/// So no header is added that would be signed.
#[tokio::test(start_paused = true)]
async fn the_token_may_be_the_password_for_a_proxy() {
    let world = World::start("", "token = 'open-sesame'", |_| Answer::ok()).await;
    let own = world.vendor.addr.to_string();
    let proxy = |value: &str| format!("Proxy-Authorization: {value}\r\n");
    let basic = |login: &str| proxy(&format!("basic {}", STANDARD.encode(login)));
    let token = "OJS-Throttle-Token: open-sesame\r\n".to_owned();
    for (lines, want) in [
        (basic("x:open-sesame"), "200"),
        (basic(":open-sesame"), "200"),
        (basic("x:open"), "407"),
        (basic("open-sesame"), "407"),
        (proxy("Basic ???"), "407"),
        (proxy("Bearer open-sesame"), "407"),
        (basic("x:open") + &basic("x:open-sesame"), "407"),
        (token + &basic("x:y"), "200"),
    ] {
        let (first, lines) = (
            format!("GET http://{own}/"),
            format!("Host: {own}\r\n{lines}"),
        );
        let reply = said(&world, &first, &lines).await;
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
