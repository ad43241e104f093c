//! Ten thousand keys: found by search and page by page, and the page stays fluid.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::assert_within;
use crate::page::browser::Browser;
use crate::page::stage::{Record, enqueue_all, pushes, writable};
use crate::sidecar::process::{Ends, pair};

const KEYS: usize = 10_000;
const TENANTS: &str = "[[policy]]\nname = \"crm\"\nkey = \"crm:{meta.tenant}\"\nconcurrency = 1\n\
    rate = { limit = 100, period = \"1h\" }\n";
/// The longest task of each of five times two seconds, in milliseconds. A page that is slow is so in most of them;
/// where something else had the processor is one of them.
const LONGEST: &str = "return new Promise(done => {
    const longest = [0, 0, 0, 0, 0], begin = performance.now();
    new PerformanceObserver(list => list.getEntries().forEach(task => {
        const nth = Math.min(4, Math.floor((task.startTime - begin) / 2000));
        longest[nth] = Math.max(longest[nth], task.duration);
    })).observe({type: 'longtask'});
    setTimeout(() => done(longest), 10_000);
})";

fn jobs(of: std::ops::Range<usize>) -> Vec<Value> {
    of.map(|nth| json!({"type": "t", "args": [], "meta": {"tenant": format!("t{nth:04}")}}))
        .collect()
}

/// The keys that are shown.
fn rows(browser: &Browser) -> BTreeSet<String> {
    let rows = browser.script(
        "return [...document.querySelectorAll('#limits [data-row]')].map(row => row.dataset.row)",
    );
    let rows = rows.as_array().unwrap().iter();
    rows.map(|row| row.as_str().unwrap().to_owned()).collect()
}

#[test]
fn ten_thousand_keys_are_searched_and_stay_fluid() {
    let (_backend, sidecar) = pair(&writable(), TENANTS);
    let (record, stop, to) = (Record::default(), AtomicBool::new(false), sidecar.data);
    enqueue_all(to, &jobs(0..KEYS));
    while record.started() < KEYS {
        record.fetch(to, "default", 100, "w");
    }
    // Each begins with no state made: nobody watches.
    let mut states = [(); 3].map(|()| pushes(sidecar.admin, 1)[0].0);
    states.sort();
    assert_within(states[1], Duration::from_millis(200), "for the first state");
    let seen = pushes(sidecar.admin, 4);
    // The first one comes at once, the others with the seconds.
    for (before, after) in seen[1..].iter().zip(&seen[2..]) {
        assert!(after.0 - before.0 > Duration::from_millis(800), "{seen:?}");
    }
    assert!(seen.iter().all(|(_, size)| *size <= 64 * 1024), "{seen:?}");
    let browser = Browser::open();
    browser.go(&format!("http://{}/", sidecar.admin));
    browser.until_is("#found", "10,000 limits");
    browser.until_is("#page", "page 1 of 200");
    let first = rows(&browser);
    browser.click("#next-page");
    browser.until_is("#page", "page 2 of 200");
    let second = rows(&browser);
    assert_eq!(
        (
            first.len(),
            second.len(),
            first.intersection(&second).count()
        ),
        (50, 50, 0)
    );
    browser.click("#previous");
    browser.until_is("#page", "page 1 of 200");
    browser.write("#search", "T012");
    browser.until_is("#found", "10 of 10,000 limits");
    let expected: BTreeSet<String> = (120..130).map(|nth| format!("crm:t{nth:04}")).collect();
    assert_eq!(rows(&browser), expected);
    browser.write("#search", "");
    browser.until_is("#found", "10,000 limits");
    let longest = std::thread::scope(|threads| {
        let _ends = Ends(&stop);
        let (record, stop) = (&record, &stop);
        // Keys whose slot is taken refuse, and those that free theirs start: all rows change.
        threads.spawn(move || {
            let mut nth = 0;
            while !stop.load(Ordering::SeqCst) {
                enqueue_all(to, &jobs(nth..nth + 10));
                let mut out = record.out().into_keys();
                out.by_ref().take(5).for_each(|job| record.ack(to, &job));
                record.fetch(to, "default", 20, "w");
                nth = (nth + 10) % KEYS;
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        browser.script(LONGEST)
    });
    let longest = longest.as_array().unwrap().iter();
    let mut longest: Vec<f64> = longest.map(|task| task.as_f64().unwrap()).collect();
    longest.sort_by(f64::total_cmp);
    assert!(longest[2] <= 200.0, "tasks of {longest:?} ms");
    eprintln!(
        "the longest tasks took {longest:?} ms, the first states {states:?}, the pushes {seen:?}"
    );
}
