//! Calls that name one of many hosts, in a simulated network with names of its own.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ojs_throttle::net::{Net, sim};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::prelude::*;
use crate::sidecar::simulated::{Sidecar, Start};

/// An address of nobody's.
const PUBLIC: &str = "93.184.215.14";

struct World {
    net: Net,
    network: sim::Network,
    sidecar: Sidecar,
}

impl World {
    /// Without a backend, and with this entry.
    async fn start(entry: &str) -> World {
        let network = sim::Network::default();
        let net = Net::Sim(network.clone());
        let entry = format!("[[egress]]\nname = 'out'\nlisten = '127.0.0.1:0'\n{entry}\n");
        let start = Start::before(&net, "http://127.0.0.1:9", &entry);
        let sidecar = start.start().await;
        World {
            net,
            network,
            sidecar,
        }
    }

    fn name(&self, host: &str, found: &[&[&str]]) {
        let address = |text: &&str| text.parse::<IpAddr>().unwrap();
        let found = found.iter().map(|of| of.iter().map(address).collect());
        self.network.name(host, found);
    }

    async fn vendor(&self, port: u16, answer: fn() -> Answer) -> Vendor {
        let at = SocketAddr::from(([127, 0, 0, 1], port));
        Vendor::within(&self.net, at, move |_| answer()).await
    }

    /// How many connections came to this port.
    async fn listens(&self, port: u16) -> Arc<AtomicUsize> {
        let at = SocketAddr::from(([127, 0, 0, 1], port));
        let mut listener = self.net.bind(at).await.unwrap();
        let seen = Arc::<AtomicUsize>::default();
        let counts = Arc::clone(&seen);
        tokio::spawn(async move {
            while listener.accept().await.is_ok() {
                counts.fetch_add(1, Ordering::Relaxed);
            }
        });
        seen
    }

    /// The answer to a call with this first line and `Host`.
    async fn said(&self, first: &str, host: &str) -> String {
        let call = format!("GET {first} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        raw(&self.net, self.sidecar.egress[0], &call).await
    }

    async fn status(&self, first: &str, host: &str) -> String {
        status(&self.said(first, host).await).to_owned()
    }

    /// What a call gets has these headers.
    async fn has_lines(&self, first: &str, host: &str, lines: [(&str, &str); 2]) {
        let reply = self.said(first, host).await;
        for (name, value) in lines {
            let line = format!("\r\n{name}: {value}\r\n");
            assert!(reply.contains(&line), "{first} {host}: {reply}");
        }
    }
}

fn has(reply: &str, status: u16, code: &str) {
    let code = format!("\"code\":\"{code}\"");
    assert_eq!(self::status(reply), status.to_string(), "{reply}");
    assert!(reply.contains(&code), "{reply}");
}

#[tokio::test(start_paused = true)]
async fn each_of_five_hundred_hosts_has_a_key_of_its_own() {
    let limit = "key = 'shop:{host}'\nrate = { limit = 3, period = '1h' }\non_limit = 'reject'";
    let world = World::start(&format!("hosts = ['*.myshopify.com']\n{limit}")).await;
    let vendor = world.vendor(443, Answer::ok).await;
    for nth in 0..500 {
        let name = format!("s{nth}.myshopify.com");
        world.name(&name, &[&[PUBLIC]]);
        // Three spellings and two ways, and one limit.
        for (first, host, target) in [
            (
                "http://HOST/a?b=%2F",
                format!("S{nth}.MyShopify.com"),
                "/a?b=%2F",
            ),
            ("/b", format!("{name}."), "/b"),
            ("https://NAME/c", format!("{name}:443"), "/c"),
        ] {
            let first = first.replace("HOST", &host).replace("NAME", &name);
            assert_eq!(world.status(&first, &host).await, "200", "{first}");
            let call = vendor.calls().pop().unwrap();
            assert_eq!((call.target(), call.header("host")), (target, Some(&*host)));
        }
        let refused = world.said("/d", &name).await;
        assert_eq!(status(&refused), "429");
        let key = format!("ojs-throttle-limited: shop:{name}\r\n");
        assert!(refused.contains(&key), "{refused}");
    }
    assert_eq!(vendor.calls().len(), 3 * 500);
}

#[tokio::test(start_paused = true)]
async fn a_port_is_of_the_entry_and_nothing_of_the_proxy_goes_on() {
    let world = World::start("hosts = ['*.a.example:8443', 'b.example', '10.0.0.7:8443', '[fd00::7]']\nscheme = 'http'\nkey = '{host}'\nconcurrency = 9").await;
    let odd = world.vendor(8443, Answer::ok).await;
    let plain = world.vendor(80, Answer::ok).await;
    for name in ["x.a.example", "b.example"] {
        world.name(name, &[&[PUBLIC]]);
    }
    for (host, want) in [
        ("x.a.example:8443", "200"),
        ("x.a.example", "403"),
        ("b.example:80", "200"),
        ("B.example.", "200"),
        ("b.example:8443", "403"),
        ("10.0.0.7:8443", "200"),
        ("10.0.0.7", "403"),
        ("[FD00:0::7]", "200"),
        ("y.b.example", "403"),
        ("a.example:8443", "403"),
        ("xa.example:8443", "403"),
    ] {
        assert_eq!(world.status("/", host).await, want, "{host}");
    }
    assert_eq!((odd.calls().len(), plain.calls().len()), (2, 3));
    let call = "PUT http://b.example/x HTTP/1.1\r\nHost: b.example\r\nProxy-Connection: keep-alive\r\nProxy-Authorization: Basic eDp5\r\n\
                Authorization: AWS4-HMAC-SHA256 x\r\nX-Hop: 1\r\nConnection: close, x-hop\r\nContent-Length: 1\r\n\r\nx";
    let reply = raw(&world.net, world.sidecar.egress[0], call).await;
    assert_eq!(status(&reply), "200");
    let seen = plain.calls().pop().unwrap();
    let via = seen.header("via").unwrap();
    let lines = format!(
        "PUT /x HTTP/1.1\r\nhost: b.example\r\nauthorization: AWS4-HMAC-SHA256 x\r\ncontent-length: 1\r\nvia: {via}\r\n\r\n"
    );
    assert_eq!(seen.head, lines);
}

/// What leads to the host itself comes back as its caller calls: by whole URLs of http, or by the host's name. By that
/// name a link of https is left, which would send the caller's credentials to the host without TLS.
#[tokio::test(start_paused = true)]
async fn what_leads_to_the_host_itself_comes_back_as_it_was_called() {
    let world = World::start("hosts = ['*.a.example']\nkey = '{host}'\nconcurrency = 9").await;
    world.name("x.a.example", &[&[PUBLIC]]);
    let _vendor = world
        .vendor(443, || {
            Answer::new(302, "")
                .header("Location", "https://x.a.example/new")
                .header("Link", "<https://x.a.example/p?page=2>; rel=next, </q>")
        })
        .await;
    let by_tls = "<https://x.a.example/p?page=2>; rel=next, </q>";
    let clear = "<http://x.a.example/p?page=2>; rel=next, </q>";
    for (first, location, link) in [
        ("http://x.a.example/old", "http://x.a.example/new", clear),
        ("https://x.a.example/old", "https://x.a.example/new", by_tls),
        ("/old", "/new", by_tls),
    ] {
        let lines = [("location", location), ("link", link)];
        world.has_lines(first, "x.a.example", lines).await;
    }
}

/// A caller that takes the way out for its proxy names all of the path, and so does what it follows.
#[tokio::test(start_paused = true)]
async fn whole_urls_keep_the_base_of_an_upstream() {
    let world = World::start("upstream = 'https://api.example/base'").await;
    world.name("api.example", &[&[PUBLIC]]);
    let vendor = world
        .vendor(443, || {
            Answer::new(201, "")
                .header("Location", "https://api.example/base/new")
                .header(
                    "Link",
                    "<https://api.example/base/p>, </base/q>, <https://api.example/r>",
                )
        })
        .await;
    let whole = "http://api.example/base";
    for (first, host, base, path) in [
        (
            "http://api.example/base/old",
            "api.example",
            whole,
            "/base/q",
        ),
        ("/old", "here:8082", "http://here:8082", "/q"),
        // It was sent here by its name.
        ("/old", "API.example", "https://api.example/base", "/q"),
    ] {
        let location = format!("{base}/new");
        let link = format!("<{base}/p>, <{path}>, <https://api.example/r>");
        let lines = [("location", &*location), ("link", &link)];
        world.has_lines(first, host, lines).await;
        assert_eq!(vendor.calls().pop().unwrap().target(), "/base/old");
    }
    let new = format!("{whole}/new");
    assert_eq!(world.status(&new, "api.example").await, "201");
}

/// What is wrong with a reply is not told as if it were none, and advice names what the entry has.
#[tokio::test(start_paused = true)]
async fn only_what_is_no_http_is_asked_for_tls() {
    let clear = "hosts = ['b.example']\nscheme = 'http'\nkey = '{host}'\nconcurrency = 9";
    let world = World::start(clear).await;
    world.name("b.example", &[&[PUBLIC]]);
    let at = SocketAddr::from(([127, 0, 0, 1], 80));
    let mut listener = world.net.bind(at).await.unwrap();
    const TWICE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx";
    for (reply, asks) in [
        ("HTTP/1.1 200 OK\r\nX-Long: a\r\n b\r\n\r\n", false),
        (TWICE, false),
        ("\u{15}\u{3}\u{1}\0\u{2}\u{2}F", true),
        ("SSH-2.0-OpenSSH\r\n", true),
    ] {
        let answers = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut call = [0; 1_000];
            let _read = stream.read(&mut call).await.unwrap();
            stream.write_all(reply.as_bytes()).await.unwrap();
        };
        let (told, ()) = tokio::join!(world.said("/", "b.example"), answers);
        has(&told, 502, "service_reply_lost");
        let advice = "must the entry have scheme = \\\"https\\\"?";
        assert_eq!(told.contains(advice), asks, "{reply:?}: {told}");
        assert!(!told.contains("upstream"), "{told}");
    }
    let told = world.said("https://b.example/", "b.example").await;
    has(&told, 400, "host_mismatch");
    let advice = "or scheme = \\\"https\\\" in the entry";
    assert!(told.contains(advice), "{told}");
}

/// What leads to this host or to the credentials of a cloud, in all that somebody made of it.
const SPELLINGS: &str = "
    127.0.0.1 127.1 127.0.1 0 0.0.0.0 2130706433 0x7f000001 0x7f.0.0.1 017700000001 0177.0.0.1 127.0.0.1.
    localhost localhost. LOCALHOST ip6-localhost
    [::1] [::] [0:0:0:0:0:0:0:1] [::ffff:127.0.0.1] [::ffff:7f00:1] [::127.0.0.1] [64:ff9b::127.0.0.1] [2002:7f00:1::]
    169.254.169.254 2852039166 0xa9fea9fe 0251.0376.0251.0376 [::ffff:169.254.169.254] [64:ff9b::a9fe:a9fe]
    [fd00:ec2::254] [fe80::a9fe:a9fe] metadata.google.internal 168.63.129.16 100.100.100.200
    127.0.0.1.a.b a.example.127.0.0.1";

#[tokio::test(start_paused = true)]
async fn what_is_not_listed_is_refused_however_it_is_spelled() {
    let world =
        World::start("hosts = ['*.a.example', 'b.example']\nkey = '{host}'\nconcurrency = 9").await;
    let mut seen = Vec::new();
    for port in [443, 80, 8443] {
        seen.push(world.listens(port).await);
    }
    let spelled = SPELLINGS.split_whitespace().flat_map(|spelled| {
        [
            ("http://NAME/latest/meta-data", "NAME"),
            ("https://NAME:443/", "NAME"),
            ("/", "NAME:8443"),
            ("/", "NAME"),
        ]
        .map(|(first, host)| {
            (
                first.replace("NAME", spelled),
                host.replace("NAME", spelled),
            )
        })
    });
    let others = [
        ("http://b.example/", "127.0.0.1"),
        ("http://127.0.0.1/", "b.example"),
        ("http://b.example@127.0.0.1/", "127.0.0.1"),
        ("http://127.0.0.1%2eb.example/", "127.0.0.1%2eb.example"),
        ("http://[b.example]/", "[b.example]"),
        ("//b.example/", "x"),
        ("/", "x..a.example"),
        ("/", ".a.example"),
        ("/", "a.example"),
    ];
    let others = others.map(|(first, host)| (first.to_owned(), host.to_owned()));
    let all: Vec<_> = spelled.chain(others).collect();
    assert!(all.len() >= 100, "{}", all.len());
    for (first, host) in all {
        let reply = world.said(&first, &host).await;
        let is_refused = ["400", "403"].contains(&status(&reply));
        assert!(is_refused, "{first} {host}: {reply}");
    }
    assert!(seen.iter().all(|seen| seen.load(Ordering::Relaxed) == 0));
    let told = world.said("/", "127.0.0.1:8082").await;
    let listed = "*.a.example:443, b.example:443";
    assert!(told.contains(listed), "it says what is listed: {told}");
    // HTTP/1.0 may name nobody.
    let nameless = "GET / HTTP/1.0\r\n\r\n";
    let none = raw(&world.net, world.sidecar.egress[0], nameless).await;
    has(&none, 403, "host_not_listed");
}

/// What listed names may not be found to be.
const CLOSED: &str = "
    127.0.0.1 127.255.255.254 0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.127.255.255 169.254.169.254
    172.16.0.1 172.31.255.255 192.0.0.1 192.0.0.192 192.0.2.1 192.31.196.1 192.52.193.1 192.88.99.1 192.168.1.1
    192.175.48.1 198.18.0.1 198.19.255.255 198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.255 240.0.0.1
    255.255.255.255 168.63.129.16
    :: ::1 ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 64:ff9b::7f00:1
    64:ff9b::169.254.169.254 64:ff9b:1::1 100::1 2001::1 2001:2::1 2001:20::1 2001:db8::1 2002:7f00:1:: 3fff::1
    5f00::1 fc00::1 fd00:ec2::254 fe80::1 fec0::1 ff02::1";

#[tokio::test(start_paused = true)]
async fn a_listed_name_with_an_address_that_is_not_public_is_refused() {
    let world =
        World::start("hosts = ['*.a.example']\nkey = '{host}'\nconcurrency = 9\nretry = 2").await;
    let seen = world.listens(443).await;
    for (nth, bad) in CLOSED.split_whitespace().enumerate() {
        // Alone, and as the last of several.
        for (kind, found) in [
            ("alone", &[bad][..]),
            ("last", &[PUBLIC, "2606:4700::1", bad]),
        ] {
            let name = format!("{kind}{nth}.a.example");
            world.name(&name, &[found]);
            let reply = world.said("/", &name).await;
            has(&reply, 403, "address_refused");
            let address = bad.parse::<IpAddr>().unwrap();
            let line = format!("allow = [\\\"{address}\\\"]");
            assert!(reply.contains(&line), "{bad}: {reply}");
        }
    }
    assert_eq!(seen.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn public_addresses_are_open_and_so_is_what_the_entry_allows() {
    let entry = "key = '{host}'\nconcurrency = 9\nhosts = ['*.a.example']\nallow = ['10.1.0.0/16', 'fd00::/8', '169.254.169.254']";
    let world = World::start(entry).await;
    let _vendor = world.vendor(443, Answer::ok).await;
    let open = "93.184.215.14 1.1.1.1 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 168.63.129.17 172.15.255.255
        172.32.0.0 223.255.255.255 ::ffff:1.1.1.1 64:ff9b::101:101 2001:200::1 2606:4700::1 2a00::1 3ffe::1";
    let allowed = "10.1.0.0 10.1.255.255 ::ffff:10.1.2.3 64:ff9b::10.1.2.3 fd12::1 169.254.169.254";
    let closed = "10.0.255.255 10.2.0.0 fc00::1 169.254.169.253 127.0.0.1";
    let each =
        |all: &'static str, want: &'static str| all.split_whitespace().map(move |one| (one, want));
    let all = each(open, "200").chain(each(allowed, "200"));
    for (nth, (address, want)) in all.chain(each(closed, "403")).enumerate() {
        let name = format!("n{nth}.a.example");
        world.name(&name, &[&[address]]);
        assert_eq!(world.status("/", &name).await, want, "{address}");
    }
}

/// One look-up for a connection: what was looked at is what is connected to.
#[tokio::test(start_paused = true)]
async fn a_name_that_changes_its_address_leads_nowhere_else() {
    let world = World::start("hosts = ['*.a.example']\nkey = '{host}'\nconcurrency = 9").await;
    let vendor = world.vendor(443, || Answer::ok().without_reading()).await;
    for nth in 0..50 {
        let name = format!("n{nth}.a.example");
        world.name(&name, &[&[PUBLIC], &["127.0.0.1"]]);
        for want in ["200", "403", "200", "403"] {
            assert_eq!(world.status("/", &name).await, want, "{name}");
        }
    }
    assert_eq!(vendor.calls().len(), 100);
}

/// With one upstream, who wrote the file chose where it is.
#[tokio::test(start_paused = true)]
async fn an_upstream_may_be_anywhere() {
    let world = World::start("upstream = 'http://inside.example'").await;
    world.name("inside.example", &[&["10.0.0.1"]]);
    let _vendor = world.vendor(80, Answer::ok).await;
    assert_eq!(
        world
            .status("http://INSIDE.example./", "INSIDE.example.")
            .await,
        "200"
    );
}

/// What is listed, and where it may be, counts from a reload on, for open connections too.
#[tokio::test(start_paused = true)]
async fn hosts_and_allow_reload() {
    let text = |more: &str| {
        format!(
            "[[egress]]\nname = 'out'\nlisten = '127.0.0.1:0'\nkey = '{{host}}'\nconcurrency = 9\n{more}\n"
        )
    };
    let world = World::start(
        "key = '{host}'\nconcurrency = 9\nhosts = ['*.a.example']\nallow = ['10.0.0.1']",
    )
    .await;
    for name in ["x.a.example", "b.example"] {
        world.name(name, &[&["10.0.0.1"]]);
    }
    let vendor = world.vendor(443, Answer::ok).await;
    let both = async || {
        [
            world.status("/", "x.a.example").await,
            world.status("/", "b.example").await,
        ]
    };
    assert_eq!(both().await, ["200", "403"]);
    for (more, want) in [
        (
            "hosts = ['*.a.example', 'b.example']\nallow = ['10.0.0.0/8']",
            ["200", "200"],
        ),
        ("hosts = ['*.a.example', 'b.example']", ["403", "403"]),
        (
            "hosts = ['b.example']\nallow = ['10.0.0.1']",
            ["403", "200"],
        ),
    ] {
        let settings = crate::sidecar::settings("http://127.0.0.1:9", &text(more));
        assert!(world.sidecar.reload.apply(settings).is_good());
        assert_eq!(both().await, want, "{more}");
    }
    assert_eq!(vendor.calls().len(), 4);
}

/// A call that waits for its start goes nowhere that its way out does not lead to any more.
#[tokio::test(start_paused = true)]
async fn a_call_that_waits_heeds_a_reload() {
    let slow = "key = 'all'\nthrottle = { limit = 1, period = '6s' }\n";
    for more in [
        "hosts = ['b.example']\nallow = ['10.0.0.1']",
        "hosts = ['*.a.example']",
        "hosts = ['*.a.example']\nallow = ['10.0.0.1']\ntoken = 'open-sesame'",
    ] {
        let budget = "[[egress.budget]]\nname = 'b'\nrate = { limit = 100, period = '24h' }\n";
        let entry = format!("{slow}hosts = ['*.a.example']\nallow = ['10.0.0.1']\n{budget}");
        let world = Arc::new(World::start(&entry).await);
        world.name("x.a.example", &[&["10.0.0.1"]]);
        let vendor = world.vendor(443, Answer::ok).await;
        assert_eq!(world.status("/", "x.a.example").await, "200");
        let of_world = Arc::clone(&world);
        let waits = tokio::spawn(async move { of_world.said("/", "x.a.example").await });
        sleep(Duration::from_secs(2)).await;
        let listen = "[[egress]]\nname = 'out'\nlisten = '127.0.0.1:0'\n";
        let text = format!("{listen}{slow}{more}\n{budget}");
        let settings = crate::sidecar::settings("http://127.0.0.1:9", &text);
        assert!(world.sidecar.reload.apply(settings).is_good());
        has(&waits.await.unwrap(), 403, "host_not_listed");
        assert_eq!(vendor.calls().len(), 1, "{more}");
        // A start that is taken back has paid nothing.
        let paid = "ojs_throttle_egress_settled_total{budget=\"b\",how=\"kept\"}";
        assert_eq!(world.sidecar.admin().metric(paid).await, Some(1.0));
    }
}
