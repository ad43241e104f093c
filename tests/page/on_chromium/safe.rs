//! What others write on the page stays text, and what others open beside it reads and changes nothing.

use serde_json::{Value, json};

use crate::page::browser::Browser;
use crate::page::stage::{Record, TOKEN, writable};
use crate::process::http::{Conn, ask, get};
use crate::servers::vendor::{Answer, Vendor};
use crate::sidecar::process::{Backend, Sidecar, config};

const LIMITED: &str =
    "[[policy]]\nname = \"stripe\"\nkey = \"stripe\"\nmatch = { queue = \"*\" }\nconcurrency = 1\n";

fn set(sidecar: &Sidecar) -> Value {
    get(sidecar.data, "/ojs/v1/rate-limits/stripe").json()["override"].take()
}

#[test]
fn who_is_elsewhere_reads_and_writes_nothing() {
    let backend = Backend::start(ojs_throttle::backend::Lax::spec());
    let sidecar = Sidecar::run(&config(backend.addr, &writable(), LIMITED));
    let page = "<!doctype html><title>elsewhere</title>";
    let elsewhere =
        Vendor::start(move |_| Answer::new(200, page).header("Content-Type", "text/html"));
    let browser = Browser::open();
    browser.go(&format!("http://{}/", elsewhere.addr));
    let tried = browser.script(&format!(
        "const at = 'http://{}', put = {{method: 'PUT', body: '{{\"concurrency\":9}}'}};
        const mine = {{'Authorization': 'Bearer {TOKEN}', 'Content-Type': 'application/json'}};
        const call = (path, init) => fetch(at + path, init).then(reply => reply.text(), error => error.name);
        const key = '/throttle/v1/keys/stripe/override';
        const stream = new Promise(done => {{
            const source = new EventSource(at + '/throttle/v1/state');
            source.addEventListener('state', event => done(event.data));
            source.onerror = () => done('TypeError');
        }});
        return Promise.all([stream, call('/'), call('/throttle/v1/state'), call('/throttle/v1/settings'),
            call('/throttle/v1/why?key=stripe'), call(key, put), call(key, {{...put, headers: mine}}),
            call('/throttle/v1/keys/stripe/usage', {{method: 'DELETE', headers: mine}}),
            call('/throttle/v1/state', {{mode: 'no-cors'}}).then(text => text || 'TypeError'),
            call(key, {{method: 'POST', mode: 'no-cors', body: put.body}}).then(text => text || 'TypeError')]);",
        sidecar.admin
    ));
    assert_eq!(tried, json!(vec!["TypeError"; 10]));
    assert_eq!(set(&sidecar), Value::Null);
    // Nor does one whose name leads here.
    for path in [
        "/",
        "/throttle/v1/state",
        "/throttle/v1/settings",
        "/throttle/v1/why?key=stripe",
    ] {
        for (host, status) in [
            ("rebound.example", 403),
            ("localhost", 200),
            ("127.0.0.1:1", 200),
        ] {
            let mut conn = Conn::open(sidecar.admin);
            let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
            conn.write(request.as_bytes()).unwrap();
            assert_eq!(conn.reply().unwrap().status, status, "{host} {path}");
        }
    }
}

const EVIL: &str = "<img src=x onerror=alert(1)>";

#[test]
fn what_others_named_is_text() {
    // A backend that names things so.
    let backend = Vendor::start(|call| match call.target() {
        "/ojs/v1/workers/fetch" => {
            let job = |id: &str| json!({"id": id, "type": "t", "queue": EVIL, "state": "active", "attempt": 1, "args": []});
            Answer::ojs(json!({"jobs": [job(EVIL), job("second")]}))
        }
        _ => Answer::ojs("{}"),
    });
    let sidecar = Sidecar::run(&config(backend.addr, &writable(), LIMITED));
    let record = Record::default();
    record.fetch(sidecar.data, EVIL, 2, EVIL);
    assert_eq!(record.started(), 1);
    let set = json!({"concurrency": 1, "reason": EVIL, "by": EVIL}).to_string();
    assert_eq!(
        ask(sidecar.data, "PUT", "/ojs/v1/rate-limits/stripe", &set).status,
        200
    );
    let browser = Browser::open();
    let encoded = browser.script(&format!("return encodeURIComponent({})", json!(EVIL)));
    let encoded = encoded.as_str().unwrap().to_owned();
    for (route, times) in [
        (String::new(), 1),
        ("#key=stripe".to_owned(), 4),
        (format!("#queue={encoded}"), 1),
        (format!("#key={encoded}"), 1),
    ] {
        browser.go(&format!("http://{}/{route}", sidecar.admin));
        browser.until(&format!(
            "document.body.innerText.split({}).length > {times}",
            json!(EVIL)
        ));
        assert_eq!(
            browser.script("return document.querySelectorAll('img').length"),
            0,
            "{route}"
        );
    }
    // Even an element that came in could do nothing.
    let hit = browser.script(
        "return new Promise(done => {
            document.addEventListener('securitypolicyviolation', event => done(event.effectiveDirective));
            document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"document.title = 1\">');
        })",
    );
    assert!(
        ["img-src", "script-src-attr"].contains(&hit.as_str().unwrap()),
        "{hit}"
    );
    let policy = get(sidecar.admin, "/").head.to_ascii_lowercase();
    let policy = policy
        .lines()
        .find_map(|line| line.strip_prefix("content-security-policy: "))
        .unwrap();
    for part in policy.split("; ") {
        let (what, from) = part.split_once(' ').unwrap();
        let is_narrow = match what {
            "script-src" | "style-src" => from.starts_with("'sha256-") && !from.contains(' '),
            "connect-src" => from == "'self'",
            _ => from == "'none'",
        };
        assert!(is_narrow, "{part}");
    }
    assert!(
        policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"),
        "{policy}"
    );
}
