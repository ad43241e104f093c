//! What the heads of each vendor shut, and what not; judged by when the vendor sees the next call.

use ojs_throttle::policy::Vendor;

use super::prelude::*;
use super::signals::{call, head, pause_after};
use crate::servers::vendor::VendorCall;

/// Heads as vendors send them, each with the seconds for which it shuts the key.
const HEADS: &str = include_str!("vendors.txt");

#[tokio::test(start_paused = true)]
async fn each_head_shuts_the_key_for_as_long_as_its_vendor_means() {
    let rows = HEADS.lines().filter(|line| !line.starts_with('#'));
    let rows = rows.flat_map(|row| {
        let cells: Vec<&str> = row.split(" | ").collect();
        let &[vendor, statuses, lines, seconds, _] = &cells[..] else {
            panic!("{row}");
        };
        let each = move |status| (vendor, status, lines, seconds, row);
        statuses.split(' ').map(each)
    });
    let mut count = 0;
    for (vendor, status, lines, seconds, row) in rows {
        let entry = format!(
            "key = 'vendor'\nconcurrency = 100\nvendor = '{vendor}'\n\
             feedback = {{ max_pause = '24h', jitter = 0 }}"
        );
        let said = [status, lines].join(" & ").replace(" & ", " | ");
        let said = said.trim_end_matches([' ', '|']);
        let pause = pause_after(&entry, "", head(said)).await;
        let least = match seconds {
            "-" => 0,
            _ => (seconds.parse::<f64>().unwrap() * 1_000.0) as u64,
        };
        let within = least.saturating_sub(60)..=least + 60;
        assert!(within.contains(&pause), "{status}: {row}: {pause} ms");
        count += 1;
    }
    assert!(count >= 200, "{count}");
}

/// GitHub's search has a budget of its own. What is spent of it is no other call's.
#[tokio::test(start_paused = true)]
async fn a_spent_search_leaves_the_rest_of_github_open() {
    let github =
        "key = 'github:{header.X-User}'\nconcurrency = 100\nvendor = 'github'\nmax_wait = '1h'";
    let world = World::start("", github, |call: &VendorCall| {
        match call.target().starts_with("/search") {
            true => head(
                "403 | X-RateLimit-Remaining: 0 | X-RateLimit-Reset: 1770003600 | X-RateLimit-Resource: search",
            ),
            false => Answer::ok(),
        }
    })
    .await;
    let begun = Instant::now();
    for _ in 0..100 {
        assert_eq!(world.statuses("/search/issues", 1).await, [403]);
        assert_eq!(world.statuses("/repos/a/b", 10).await, [200; 10]);
    }
    assert_eq!(world.vendor.calls().len(), 1_100);
    assert!(begun.elapsed() < Duration::from_secs(10));
}

/// A part that has a name of several words, as `/search/code` has.
#[tokio::test(start_paused = true)]
async fn a_spent_part_shuts_the_key_that_names_it() {
    let keyed =
        "key = 'github:{path.0}:{path.1}'\nconcurrency = 100\nvendor = 'github'\nmax_wait = '1h'";
    let spent = "200 | X-RateLimit-Remaining: 0 | X-RateLimit-Reset: 45 | X-RateLimit-Resource: code_search";
    let world = World::start("", keyed, move |_| head(spent)).await;
    let mut took = Vec::new();
    for path in ["/search/code", "/search/issues", "/search/code"] {
        let begun = Instant::now();
        assert_eq!(world.statuses(path, 1).await, [200]);
        took.push(begun.elapsed().as_secs());
    }
    assert!(matches!(took[..], [0, 0, 44..=46]), "{took:?}");
}

#[test]
fn a_vendor_is_known_by_its_hosts_alone() {
    for (host, name) in [
        ("api.openai.com", "openai"),
        ("eu.api.openai.com", "openai"),
        ("api.anthropic.com", "anthropic"),
        ("api.github.com", "github"),
        ("files.stripe.com", "stripe"),
        ("slack.com", "slack"),
        ("a-shop.myshopify.com", "shopify"),
        ("myshopify.com", "generic"),
        (".myshopify.com", "generic"),
        ("a.myshopify.com.example.com", "generic"),
        ("xmyshopify.com", "generic"),
        ("github.com", "generic"),
        ("my-api.openai.com", "generic"),
        ("api.openai.com.example.com", "generic"),
        ("127.0.0.1", "generic"),
        ("", "generic"),
    ] {
        assert_eq!(Vendor::of_host(host).name, name, "{host}");
    }
}

/// An entry with limits of its own says itself which answers shut its key.
#[tokio::test(start_paused = true)]
async fn an_entry_says_what_is_heeded() {
    let is = "default_pause = '3s', jitter = 0";
    for (more, said, pause) in [
        ("honor = []", "429 | Retry-After: 60", 3_000),
        ("honor = []", "503 | Retry-After: 60", 0),
        ("honor = ['headers']", "429 | Retry-After: 60", 60_000),
        ("codes = ['5??']", "529", 3_000),
        ("max_pause = '20s'", "429 | Retry-After: 60", 20_000),
        ("backoff = { initial = '4s', max = '4s' }", "429", 4_000),
    ] {
        let entry = format!("key = 'vendor'\nconcurrency = 100\nfeedback = {{ {is}, {more} }}");
        let took = pause_after(&entry, "", head(said)).await;
        // Backoff is up to twice as long, by chance.
        let times = if more.contains("backoff") { 2 } else { 1 };
        let within = pause..=times * pause + 60;
        assert!(within.contains(&took), "{more} {said}: {took} ms");
    }
}

/// What is made again waits as its vendor says, too.
#[tokio::test(start_paused = true)]
async fn a_call_is_made_again_when_its_vendor_says() {
    let resource = "429 | Stripe-Rate-Limited-Reason: resource-specific";
    for (vendor, said, seconds) in [
        ("github", "429", 60),
        ("stripe", resource, 0),
        ("openai", "429 | x-ratelimit-reset-requests: 6m0s", 10),
        ("generic", "429 | x-ratelimit-reset-requests: 6m0s", 360),
    ] {
        let entry = format!(
            "key = 'vendor'\nconcurrency = 100\nvendor = '{vendor}'\nretry = 1\nmax_wait = '1h'\n\
             feedback = {{ jitter = 0 }}"
        );
        let refused = head(said);
        let world = World::start("", &entry, move |call: &VendorCall| match call.nth {
            0 => refused.clone(),
            _ => Answer::ok(),
        })
        .await;
        assert!(call(&world, "/a").await.starts_with("HTTP/1.1 200"));
        let calls = world.vendor.calls();
        let waited = (calls[1].at - calls[0].ended.unwrap()).as_secs();
        let within = seconds..=seconds + 1;
        assert!(within.contains(&waited), "{vendor} {said}: {waited} s");
        world.pair.stop().await;
    }
}
