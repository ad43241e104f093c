//! A lost store is seen on the page, and so is that it is back.

use ojs_throttle::backend::Lax;
use serde_json::json;

use crate::page::browser::Browser;
use crate::page::stage::{Record, cell, enqueue_all};
use crate::process::http::get;
use crate::servers::port;
use crate::servers::redis::RedisServer;
use crate::sidecar::process::{Backend, Sidecar, config};

#[test]
fn a_lost_store_on_redis_is_shown_until_it_is_back() {
    let (backend, mut store) = (Backend::start(Lax::redis()), RedisServer::start());
    let rest = format!(
        "[[policy]]\nname = \"stripe\"\nmatch = {{ queue = \"billing\" }}\nconcurrency = 2\n\
        [store]\nurl = \"{}\"\n",
        store.url()
    );
    let sidecar = Sidecar::run(&config(backend.addr, "", &rest));
    let record = Record::default();
    let job = json!({"type": "t", "args": [], "options": {"queue": "billing"}});
    enqueue_all(sidecar.data, &vec![job; 5]);
    assert_eq!(record.fetch(sidecar.data, "billing", 5, "w").len(), 2);
    let browser = Browser::open();
    browser.go(&format!("http://{}/", sidecar.admin));
    let slots = cell("limits", "stripe", "slots");
    browser.until_is(&slots, "2 of 2");
    assert!(!browser.text("#status [data-fact=store]").contains("lost"));
    store.kill();
    browser.until(
        "document.querySelector('#problems [data-problem=\"store lost\"]').checkVisibility()",
    );
    browser.until_is(&cell("limits", "stripe", "mark"), "this sidecar alone");
    store.restart(&[]);
    browser.until("!document.querySelector('#problems [data-problem=\"store lost\"]')");
    // It came back empty, and has been told what is out.
    record.ack(sidecar.data, record.out().keys().next().unwrap());
    browser.until_is(&slots, "1 of 2");
    assert_eq!(record.out().len(), 1);
}

#[test]
fn each_service_that_is_away_has_a_line() {
    let backend = Backend::start(Lax::redis());
    let calls = [port::own(), port::own()];
    let way = |name: &str, calls| {
        let to = port::own();
        format!("[[egress]]\nname = \"{name}\"\nlisten = \"{calls}\"\nupstream = \"http://{to}\"\n")
    };
    let ways = way("mail", calls[0]) + &way("crm", calls[1]);
    let sidecar = Sidecar::run(&config(backend.addr, "", &ways));
    for calls in calls {
        assert_eq!(get(calls, "/").status, 502);
    }
    let browser = Browser::open();
    browser.go(&format!("http://{}/", sidecar.admin));
    let away = "[...document.querySelectorAll('#problems [data-problem=\"service away\"]')]";
    for name in ["mail", "crm"] {
        browser.until(&format!(
            "{away}.some(line => line.innerText.includes('way out \"{name}\"'))"
        ));
    }
}
