//! Numbers move while jobs run, and are those that the workers and the backend noted. What has gone is greyed.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;

use ojs_throttle::backend::{EventKind, Lax};
use serde_json::json;

use crate::page::audit;
use crate::page::browser::Browser;
use crate::page::stage::{Record, cell, enqueue_all, fact, number, writable};
use crate::servers::port;
use crate::sidecar::process::{Backend, Ends, Sidecar, config};

const LIMITS: &str = "[[policy]]\nname = \"stripe\"\nmatch = { queue = \"billing\" }\nconcurrency = 3\n\
    rate = { limit = 10000, period = \"1h\" }\n[[queue]]\nname = \"billing\"\nmax_depth = 2000\n";
const JOBS: usize = 1200;
/// The jobs that have slots, each with its worker.
const SLOTS: &str = "return Object.fromEntries([...document.querySelectorAll('#slots [data-row]')]
    .map(row => [row.dataset.row, row.querySelector('[data-cell=worker]').innerText]))";

#[test]
fn numbers_move_and_are_those_of_the_workers() {
    let backend = Backend::start(Lax::spec());
    let places = format!(
        "{}\nlisten = \"{}\"\nadmin_listen = \"{}\"",
        writable(),
        port::own(),
        port::own()
    );
    let config = config(backend.addr, &places, LIMITS);
    let mut sidecar = Sidecar::run(&config);
    let to = sidecar.data;
    let job = json!({"type": "t", "args": ["CANARY-argument"], "options": {"queue": "billing"}});
    enqueue_all(to, &vec![job; JOBS]);
    let browser = Browser::open();
    let page = format!("http://{}/", sidecar.admin);
    browser.go(&page);
    let (record, stop) = (Record::default(), AtomicBool::new(false));
    let [starts, slots, waiting] =
        ["starts", "slots", "waiting"].map(|name| cell("limits", "stripe", name));
    std::thread::scope(|threads| {
        let _ends = Ends(&stop);
        for nth in 0..5 {
            let (record, stop) = (&record, &stop);
            threads.spawn(move || record.work(to, "billing", &format!("w{nth}"), stop));
        }
        let mut seen = BTreeSet::new();
        while seen.len() < 4 {
            let (shown, out) = (browser.text(&starts), browser.text(&slots));
            assert!(number(&shown) <= record.started() + 5, "{shown} starts");
            assert!(out.ends_with(" of 3") && number(&out) <= 3, "{out}");
            seen.insert(number(&shown));
            browser.until(&format!(
                "document.querySelector({}).innerText != {}",
                json!(starts),
                json!(shown)
            ));
        }
    });
    // All is quiet: two workers have what may run, and nobody else asks.
    assert!(record.out().is_empty());
    let have = |count, worker| record.fetch(to, "billing", count, worker).len();
    assert_eq!(
        (have(1, "ana's"), have(5, "bob's"), have(5, "bob's")),
        (1, 2, 0)
    );
    let started = record.started();
    assert!(started < JOBS - 3, "nothing waits any more");
    browser.until(&format!(
        "document.querySelector({}).innerText.replace(',', '') == {started}",
        json!(starts)
    ));
    browser.until_is(&slots, "3 of 3");
    // Those that the backend has and no worker ever got.
    let waits = backend.total(EventKind::Stored) - started;
    browser.until_is(&waiting, &thousands(waits));
    let rate = browser.text(&cell("limits", "stripe", "rate"));
    let used = format!("{} of 10,000", thousands(started));
    assert!(rate.starts_with(&used), "{rate}");
    let depth = format!("{} of 2,000", thousands(JOBS - started));
    browser.until_is(&cell("queues", "billing", "depth"), &depth);
    browser.until(&format!(
        "document.querySelector('#events {}').innerText.startsWith('key stripe')",
        "[data-cell=subject]"
    ));
    let bar = format!(
        "getComputedStyle(document.querySelector({} + ' .bar > i'))",
        json!(slots)
    );
    let whole = format!(
        "getComputedStyle(document.querySelector({} + ' .bar'))",
        json!(slots)
    );
    browser.until(&format!(
        "Math.abs(parseFloat({bar}.width) - parseFloat({whole}.width)) < 3"
    ));
    // The key's own page has who has the slots.
    browser.click(&format!("{} a", cell("limits", "stripe", "name")));
    browser.until_is("#name", "Key stripe");
    browser.until("document.querySelectorAll('#slots [data-row]').length == 3");
    assert_eq!(browser.script(SLOTS), json!(record.out()));
    assert_eq!(number(&browser.text(&fact("starts"))), started);
    assert!(
        browser
            .text("#why")
            .contains("3 of 3 slots of key \"stripe\" are taken")
    );
    what_if(&browser, started);
    assert!(!browser.shown().contains("CANARY"), "arguments are shown");
    // The sidecar goes. What is shown is old, and says so.
    browser.go(&page);
    browser.until_is(&slots, "3 of 3");
    assert_eq!(browser.script(&format!("return {GREYED}")), false);
    sidecar.kill();
    browser.until(
        "document.querySelector('#connection').innerText.startsWith('no connection since ')",
    );
    browser.until("document.body.dataset.connection == 'lost'");
    browser.until(GREYED);
    audit::contrast(&browser, "without a connection");
    // It comes back, with another job less out.
    let mut sidecar = Sidecar::run(&config);
    let ended = record.out().into_keys().next().unwrap();
    record.ack(to, &ended);
    browser.until("document.body.dataset.connection == 'live'");
    browser.until_is("#connection", "");
    browser.until_is(&slots, "2 of 3");
    assert_eq!(record.out().len(), 2);
    browser.until_is(&starts, "0");
    assert!(sidecar.runs());
}

/// Other limits are held against what the workers started in the last hour.
fn what_if(browser: &Browser, started: usize) {
    let told = |most: &str, period: &str| {
        browser.write("#if-most", most);
        browser.write("#if-period", period);
        browser.text("#if-said")
    };
    let hour = told("1", "1h");
    let all = format!(
        "In any 1 h there started at most {}: 1 would have held jobs back in ",
        thousands(started)
    );
    assert!(hour.starts_with(&all), "{hour}");
    let loose = told("10000", "1h");
    assert!(
        loose.ends_with("10,000 would have held nothing back."),
        "{loose}"
    );
    // Three ran at once, for as long as it takes to say so.
    let slots = told("4", "");
    let begins =
        slots.starts_with("Jobs ran for ") && slots.contains("4 would have held nothing back");
    assert!(begins, "{slots}");
    assert!(told("x", "1m").starts_with("Write a whole number"));
}

/// Whether the bars of the table have no colour.
const GREYED: &str = "(() => {
    const colour = getComputedStyle(document.querySelector('#limits .bar > i')).backgroundColor;
    const parts = colour.match(/\\d+/g).slice(0, 3).map(Number);
    return Math.max(...parts) - Math.min(...parts) < 30;
})()";

fn thousands(number: usize) -> String {
    match number {
        0..1000 => number.to_string(),
        _ => format!("{},{:03}", number / 1000, number % 1000),
    }
}
