//! What is set on the page binds the workers, and the command that the page shows takes it away again.

use std::process::Command;

use serde_json::{Value, json};

use crate::page::browser::{Browser, ENTER};
use crate::page::stage::{Record, TOKEN, cell, enqueue_all, fact, writable};
use crate::process::http::get;
use crate::sidecar::process::{Backend, Sidecar, pair, program, ran};

const SLOTS: &str =
    "[[policy]]\nname = \"stripe\"\nmatch = { queue = \"billing\" }\nconcurrency = 3\n";

struct Rig {
    _backend: Backend,
    sidecar: Sidecar,
    record: Record,
    browser: Browser,
}

impl Rig {
    /// Twenty jobs wait; the page of their key is open.
    fn start() -> Rig {
        let (backend, sidecar) = pair(&writable(), SLOTS);
        let job = json!({"type": "t", "args": [], "options": {"queue": "billing"}});
        enqueue_all(sidecar.data, &vec![job; 20]);
        let browser = Browser::open();
        browser.go(&format!("http://{}/#key=stripe", sidecar.admin));
        let rig = Rig {
            _backend: backend,
            sidecar,
            record: Record::default(),
            browser,
        };
        assert_eq!(rig.may_start(), 3);
        rig.browser.until_is(&fact("slots"), "3 of 3");
        rig
    }

    /// How many jobs start, with none running before.
    fn may_start(&self) -> usize {
        self.record.ack_all(self.sidecar.data);
        self.record
            .fetch(self.sidecar.data, "billing", 5, "w")
            .len()
    }

    /// What is in force besides the file.
    fn set_by_hand(&self) -> Value {
        get(self.sidecar.data, "/ojs/v1/rate-limits/stripe").json()["override"].take()
    }

    /// Runs the command that the page shows, as it stands there.
    fn undo(&self) {
        let command = self.browser.text("#undo");
        let built = program().get_program().to_owned();
        let folder = std::path::Path::new(&built).parent().unwrap().to_owned();
        let mut shell = Command::new("sh");
        shell
            .args(["-c", &command])
            .env("OJS_THROTTLE_TOKEN", TOKEN);
        shell.env(
            "PATH",
            format!("{}:{}", folder.display(), std::env::var("PATH").unwrap()),
        );
        let said = ran(&mut shell);
        assert_eq!(said.status, Some(0), "{command}: {}{}", said.out, said.err);
    }
}

#[test]
fn what_is_set_binds_until_it_is_taken_away() {
    let rig = Rig::start();
    let browser = &rig.browser;
    browser.click("#limit");
    browser.write("#concurrency", "1");
    browser.write("#reason", "incident 7");
    browser.write("#by", "ana");
    browser.click("#send");
    // A wrong token changes nothing, and the page says what is wrong.
    browser.write("#token", "no such token");
    browser.click("#token-use");
    browser.until("document.querySelector('#token-hint').innerText.includes('control_token')");
    assert_eq!(rig.set_by_hand(), Value::Null);
    browser.write("#token", TOKEN);
    browser.keys(ENTER);
    browser.until("document.querySelector('#undo').innerText.includes('clear stripe --override')");
    let set = rig.set_by_hand();
    for (name, value) in [
        ("concurrency", json!(1)),
        ("reason", json!("incident 7")),
        ("by", json!("ana")),
    ] {
        assert_eq!(set[name], value, "{set}");
    }
    let expires: jiff::Timestamp = set["expires_at"].as_str().unwrap().parse().unwrap();
    let left = expires.duration_since(jiff::Timestamp::now()).as_secs();
    assert!((3_500..=3_600).contains(&left), "one hour: {set}");
    assert_eq!(rig.may_start(), 1);
    browser.until_is(&fact("slots"), "1 of 1");
    browser.until_is("#mark", "override");
    browser.until("document.querySelector('#numbers').innerText.includes('incident 7')");
    rig.undo();
    browser.until_is("#mark", "");
    assert_eq!(rig.may_start(), 3);
    browser.until_is(&fact("slots"), "3 of 3");
    // The token is known by now.
    browser.click("#pause");
    browser.write("#reason", "the bank is closed");
    browser.click("#send");
    browser.until_is("#mark", "paused");
    assert_eq!(rig.may_start(), 0);
    browser.until_is(&fact("binds"), "paused");
    browser.until_is(&fact("next"), "when resumed");
    rig.undo();
    browser.until_is("#mark", "");
    assert_eq!(rig.may_start(), 3);
    browser.click("#limit");
    browser.write("#concurrency", "2");
    browser.click("#send");
    browser.until_is("#mark", "override");
    assert_eq!(rig.may_start(), 2);
    browser.click("#clear");
    browser.click("#send");
    browser.until_is("#mark", "");
    assert_eq!(rig.may_start(), 3);
    browser.click("#next-start");
    browser.write("#after", "1h");
    browser.click("#send");
    browser.until("document.querySelector('#numbers [data-fact=shut]')");
    assert_eq!(rig.may_start(), 0);
    rig.undo();
    browser.until("!document.querySelector('#numbers [data-fact=shut]')");
    assert_eq!(rig.may_start(), 3);
}

#[test]
fn a_key_is_paused_and_resumed_by_tab_and_enter_alone() {
    let rig = Rig::start();
    let browser = &rig.browser;
    browser.go(&format!("http://{}/", rig.sidecar.admin));
    browser.until_is(&cell("limits", "stripe", "slots"), "3 of 3");
    let link = format!(
        "document.querySelector({}).id = 'stripe'",
        json!(cell("limits", "stripe", "name") + " a")
    );
    browser.script(&link);
    browser.tab_to("stripe");
    browser.keys(ENTER);
    browser.until_is("#name", "Key stripe");
    browser.tab_to("pause");
    browser.keys(ENTER);
    browser.tab_to("reason");
    browser.keys("by keys");
    browser.tab_to("send");
    browser.keys(ENTER);
    browser.until("document.activeElement.id == 'token'");
    browser.keys(TOKEN);
    browser.keys(ENTER);
    browser.until_is("#mark", "paused");
    assert_eq!(rig.set_by_hand()["reason"], "by keys");
    assert_eq!(rig.may_start(), 0);
    browser.tab_to("resume");
    browser.keys(ENTER);
    browser.tab_to("send");
    browser.keys(ENTER);
    browser.until_is("#mark", "");
    assert_eq!(rig.may_start(), 3);
}

/// From one key the page leads to all keys of its policy. What is set there binds keys that come later, and the command
/// that the page shows takes it away again.
#[test]
fn all_keys_of_a_policy_are_paused_from_the_page_of_one() {
    let policy = "[[policy]]\nname = \"per-customer\"\nmatch = { queue = \"billing\" }\nkey = \"crm:{meta.tenant_id}\"\n\
        concurrency = 3\n";
    let (_backend, sidecar) = pair(&writable(), policy);
    let jobs = |tenant: &str| {
        let meta = json!({"tenant_id": tenant});
        json!({"type": "t", "args": [], "meta": meta, "options": {"queue": "billing"}})
    };
    let record = Record::default();
    let starts = || record.fetch(sidecar.data, "billing", 5, "w").len();
    enqueue_all(sidecar.data, &vec![jobs("a"); 3]);
    assert_eq!(starts(), 3);
    record.ack_all(sidecar.data);
    let browser = Browser::open();
    browser.go(&format!("http://{}/#key=crm:a", sidecar.admin));
    browser.until_is("#of-policy", "All keys of policy per-customer");
    // Nothing of it stands under the name of another key, also before the first state of that one.
    let left = browser.script(
        "const shown = () => ['history', 'trying', 'of-policy'].filter(id => $(id).checkVisibility());
        const before = shown();
        location.hash = '#key=other';
        go();
        const after = shown();
        location.hash = '#key=crm:a';
        return [before, after]",
    );
    assert_eq!(left, json!([["history", "trying", "of-policy"], []]));
    browser.until_is("#of-policy", "All keys of policy per-customer");
    browser.click("#of-policy");
    browser.until_is("#name", "All keys of policy per-customer");
    browser.click("#pause");
    browser.write("#reason", "INC-42");
    browser.click("#send");
    browser.write("#token", TOKEN);
    browser.keys(ENTER);
    browser.until_is("#mark", "paused");
    let undo = browser.text("#undo");
    let words = "ojs-throttle resume --policy=per-customer";
    assert!(undo.starts_with(words), "{undo}");
    enqueue_all(sidecar.data, &vec![jobs("new"); 3]);
    assert_eq!([(); 3].map(|()| starts()), [0; 3]);
    browser.go(&format!("http://{}/#key=crm:new", sidecar.admin));
    browser.until("document.querySelector('#numbers').innerText.includes('INC-42')");
    browser.until_is(&fact("binds"), "paused");
    let mut undoing = program();
    undoing
        .args(undo.split(' ').skip(1))
        .env("OJS_THROTTLE_TOKEN", TOKEN);
    let said = ran(&mut undoing);
    assert_eq!(said.status, Some(0), "{}{}", said.out, said.err);
    browser.until("!document.querySelector('#numbers').innerText.includes('INC-42')");
    assert_eq!(starts(), 3);
}
