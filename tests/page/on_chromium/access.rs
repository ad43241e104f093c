//! Everyone can read and work each page: in both themes, by the keyboard, on a phone, without seeing it.

use ojs_throttle::backend::Lax;
use serde_json::json;

use crate::page::audit;
use crate::page::browser::Browser;
use crate::page::stage::{Record, enqueue_all, writable};
use crate::process::http::ask;
use crate::sidecar::process::{Backend, Sidecar, config};

/// What is long is a test of what is narrow.
fn long() -> String {
    "k".repeat(100)
}

#[test]
fn each_page_is_for_everyone() {
    let backend = Backend::start(Lax::spec());
    let limits = format!(
        "[[policy]]\nname = \"stripe\"\nkey = \"{}\"\nmatch = {{ queue = \"billing\" }}\nconcurrency = 2\n\
         rate = {{ limit = 100, period = \"1m\" }}\nthrottle = {{ limit = 9999, period = \"1s\" }}\n\
         [[queue]]\nname = \"billing\"\nmax_depth = 2000\nconcurrency = 5\n",
        long()
    );
    let sidecar = Sidecar::run(&config(backend.addr, &writable(), &limits));
    let record = Record::default();
    let job = json!({"type": "t", "args": [], "options": {"queue": "billing"}});
    enqueue_all(sidecar.data, &vec![job; 5]);
    assert_eq!(record.fetch(sidecar.data, "billing", 5, &long()).len(), 2);
    let set = json!({"concurrency": 1, "reason": long(), "by": "ana"}).to_string();
    let path = format!("/ojs/v1/rate-limits/{}", long());
    assert_eq!(ask(sidecar.data, "PUT", &path, &set).status, 200);
    let browser = Browser::open();
    let key = format!("#key={}", long());
    for (route, ready) in [
        ("", "('#limits [data-row]')"),
        (&*key, "('#slots [data-row]')"),
        ("#queue=billing", "('#applies [data-row]')"),
        ("#settings", "('#settings [data-row]')"),
        (&key, "('#limit').click() || true"),
    ] {
        browser.go("about:blank");
        browser.go(&format!("http://{}/{route}", sidecar.admin));
        browser.until(&format!("document.querySelector{ready}"));
        audit::names(&browser, route);
        audit::narrow(&browser, route);
        audit::reachable(&browser, route);
        for theme in ["dark", "light"] {
            browser.theme(theme);
            audit::contrast(&browser, &format!("{route} {theme}"));
        }
    }
    // What a token is asked by, too.
    browser.until("document.querySelector('#ask').showModal() || true");
    audit::names(&browser, "token");
    audit::contrast(&browser, "token");
}
