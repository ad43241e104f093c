//! What entries that are only tried would have done, beside what workers really got.

use ojs_throttle::backend::Lax;
use serde_json::json;

use crate::page::browser::Browser;
use crate::page::stage::{Record, cell};
use crate::process::http::enqueue;
use crate::sidecar::process::{Backend, Sidecar, config};

const TRIED: &str = "[[policy]]\nname = \"one\"\nmatch = { queue = \"q\" }\nconcurrency = 1\nmode = \"shadow\"\n\
    [[policy]]\nname = \"lossy\"\nmatch = { queue = \"r\" }\nconcurrency = 1\non_limit = \"drop\"\nmode = \"shadow\"\n";

#[test]
fn what_would_have_been_stands_in_a_table() {
    let backend = Backend::start(Lax::redis());
    let sidecar = Sidecar::run(&config(backend.addr, "", TRIED));
    let enforced = TRIED.replace("mode = \"shadow\"", "");
    let other = Sidecar::run(&config(backend.addr, "", &enforced));
    let (to, record) = (sidecar.data, Record::default());
    for queue in ["q", "q", "q", "r", "r"] {
        enqueue(to, queue, json!({}));
    }
    let jobs = record.fetch(to, "q", 3, "w");
    record.fetch(to, "r", 2, "w");
    assert_eq!(record.out().len(), 5, "nothing is held back");

    let browser = Browser::open();
    browser.go(&format!("http://{}/", sidecar.admin));
    let shows = |policy: &str, cells: &[(&str, &str)]| {
        for (column, text) in cells {
            browser.until_is(&cell("shadow", policy, column), text);
        }
    };
    shows(
        "one",
        &[
            ("started", "1"),
            ("waited", "0"),
            ("longest", "–"),
            ("waiting", "2"),
        ],
    );
    shows(
        "lossy",
        &[("started", "1"), ("dropped", "1"), ("waiting", "0")],
    );
    // Each would have run as long as it really did, one after the other.
    jobs.iter().for_each(|job| record.ack(to, job));
    shows(
        "one",
        &[("started", "1"), ("waited", "2"), ("waiting", "0")],
    );
    let longest = browser.text(&cell("shadow", "one", "longest"));
    assert!(longest.ends_with('s'), "{longest}");

    browser.go(&format!("http://{}/", other.admin));
    browser.until("document.querySelector('#limits [data-row]') !== null");
    let hidden = browser.script("return document.querySelector('#shadow').hidden");
    assert_eq!(hidden, true, "{}", browser.shown());
}
