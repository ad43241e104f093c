//! `pause`, `resume`, `limit` and `clear` with `--policy`: they bind all keys of a policy, also those that come later, on
//! all sidecars. Judged by what workers and the vendor got.

use super::by_hand::{Desk, TOKEN, is_refused, undo_of};
use super::prelude::*;
use crate::servers::port;
use crate::servers::vendor::{Answer, Vendor};

pub const CRM: &str = "[[policy]]\nname = \"per-customer\"\nmatch = { queue = \"crm\" }\nkey = \"crm:{meta.tenant_id}\"\n\
    concurrency = 5\n";
const OTHERS: &str = "[[queue]]\nname = \"email\"\nconcurrency = 20\n[[policy]]\nname = \"calm\"\nmatch = { queue = \"calm\" }\nconcurrency = 5\n\
    [[policy]]\nname = \"tried\"\nmode = \"shadow\"\nmatch = { queue = \"calm\" }\nconcurrency = 5\n";

/// The tenants whose jobs a worker gets, in order.
pub fn started(to: SocketAddr, worker: &str) -> Vec<String> {
    let jobs = fetch(to, "crm", 20, worker).json();
    let jobs = jobs["jobs"].as_array().unwrap().iter();
    let mut tenants: Vec<_> = jobs
        .map(|job| job["meta"]["tenant_id"].as_str().unwrap().to_owned())
        .collect();
    tenants.sort();
    tenants
}

pub fn of_tenants(to: SocketAddr, tenants: &[&str]) {
    for tenant in tenants {
        enqueue(to, "crm", json!({"metadata": {"tenant_id": tenant}}));
    }
}

#[test]
fn a_pause_of_a_policy_stops_keys_that_are_known_and_keys_that_come() {
    let desk = Desk::with(&[CRM, OTHERS].concat());
    let data = desk.sidecar.data;
    of_tenants(data, &["a", "b"]);
    assert_eq!(started(data, "w"), ["a", "b"]);
    of_tenants(data, &["a", "b"]);
    desk.done("pause _queue:email");
    let said = desk.done("pause --policy per-customer --reason INC-42 --for 1h");
    assert_eq!(undo_of(&said), "ojs-throttle resume --policy per-customer");
    of_tenants(data, &["a", "b", "new"]);
    enqueue(data, "calm", json!({}));
    for _ in 0..3 {
        assert!(started(data, "w").is_empty());
    }
    assert_eq!(fetch(data, "calm", 1, "w").jobs().len(), 1);

    // It is seen wherever somebody looks.
    let set = "; set by hand for policy \"per-customer\" by \"ana\" because \"INC-42\" until ";
    for question in [
        "--key crm:a",
        "--key crm:new",
        "--type t --queue crm --meta tenant_id=else",
    ] {
        let why = desk.done(&format!("why {question}"));
        for part in [
            "is paused: its concurrency is 0",
            set,
            "`ojs-throttle resume --policy per-customer` ends the pause",
        ] {
            assert!(why.contains(part), "{question}: {part}: {why}");
        }
    }
    let why = desk.done("why --policy per-customer");
    let paused =
        "why:   policy \"per-customer\" is paused: its concurrency is 0; set by hand by \"ana\"";
    assert!(why.starts_with(paused), "{why}");
    let slots = desk.done("slots --policy per-customer");
    assert_eq!(slots.matches(" at worker w since ").count(), 2, "{slots}");
    let top = desk.done("top --once --columns 200");
    has(&top, "\n_policy:per-customer ");
    let set = "  set by hand for policy per-customer: concurrency 0 by ana because INC-42 until ";
    assert_eq!(top.matches(set).count(), 3, "{top}");
    let state = get(data, "/ojs/v1/rate-limits/crm:new").json();
    let set = &state["policy_overrides"]["per-customer"];
    assert_eq!(set["reason"], "INC-42", "{state}");
    assert_eq!(state["concurrency"]["limit"], 0, "{state}");
    for (series, value) in [
        ("ojs_throttle_paused_keys", 2.0),
        ("ojs_throttle_overrides_active", 2.0),
        (
            "ojs_throttle_slots_limit{policy=\"queue\",queue=\"email\"}",
            0.0,
        ),
        ("ojs_throttle_slots_limit{policy=\"per-customer\"}", 0.0),
        ("ojs_throttle_slots_limit{policy=\"calm\"}", 5.0),
    ] {
        assert_eq!(desk.sidecar.metric(series), value, "{series}");
    }

    // A worker that waits meanwhile is woken.
    std::thread::scope(|threads| {
        let waits = threads.spawn(|| {
            until("jobs", || {
                let tenants = started(data, "w2");
                (!tenants.is_empty()).then_some(tenants)
            })
        });
        assert_eq!(desk.shell(undo_of(&said)).status, Some(0));
        assert_eq!(waits.join().unwrap(), ["a", "a", "b", "b", "new"]);
    });
    assert_eq!(desk.sidecar.metric("ojs_throttle_paused_keys"), 1.0);
}

#[test]
fn a_limit_of_a_policy_is_each_keys_and_a_keys_own_cannot_loosen_it() {
    let desk = Desk::with(CRM);
    let data = desk.sidecar.data;
    desk.done("limit crm:a --concurrency 4");
    desk.done("limit crm:b --concurrency 1");
    desk.done("limit --policy per-customer --concurrency 2 --reason slow");
    for tenant in ["a", "b", "c"] {
        of_tenants(data, &[tenant; 4]);
    }
    assert_eq!(started(data, "w"), ["a", "a", "b", "c", "c"]);
    assert!(started(data, "w").is_empty());
    let limit = |key: &str| {
        get(data, &format!("/ojs/v1/rate-limits/{key}")).json()["concurrency"]["limit"].clone()
    };
    assert_eq!(["crm:a", "crm:b", "crm:c"].map(limit), [2, 1, 2]);
    // Nobody has named it yet.
    let of_next = desk.done("why --type t --queue crm --meta tenant_id=d");
    has(&of_next, "slots      0 of 2");
    let why = desk.done("why --key crm:c");
    has(
        &why,
        "`ojs-throttle clear --policy per-customer --override`",
    );

    // What stood before is brought back by the command that is printed.
    let said = desk.done("limit --policy per-customer --concurrency 1");
    assert_eq!(limit("crm:a"), 1);
    desk.shell(undo_of(&said));
    assert_eq!(limit("crm:a"), 2);
    let said = desk.done("clear --policy per-customer");
    assert_eq!(["crm:a", "crm:b", "crm:c"].map(limit), [4, 1, 5]);
    assert_eq!(started(data, "w"), ["a", "a", "c", "c"]);
    desk.shell(undo_of(&said));
    assert_eq!(limit("crm:c"), 2);
}

/// Nothing is used of a policy as a whole: what is said of it is true of each of its keys.
#[test]
fn a_policy_as_a_whole_tells_which_of_its_keys_have_no_room() {
    let desk = Desk::with(CRM);
    let data = desk.sidecar.data;
    let says = |full: &str| {
        let why = desk.done("why --policy per-customer");
        let says = "why:   policy \"per-customer\" limits each of its keys alone: ";
        assert!(why.starts_with(&format!("{says}{full}\n")), "{why}");
        for word in ["has room", "may start now", "next:", "0 of 5"] {
            assert!(!why.contains(word), "{word}: {why}");
        }
        why
    };
    says("0 of 0 that are known here have no room");
    of_tenants(data, &["a", "a", "a", "a", "a", "a", "b"]);
    assert_eq!(started(data, "w").len(), 6);
    let why = says("1 of 2 that are known here have no room: \"crm:a\"");
    let whole = "\npolicy per-customer: each of its keys has these limits\n  slots      5\n";
    has(&why, whole);
    let slots = desk.done("slots --policy per-customer");
    for (key, jobs) in [("crm:a", 5), ("crm:b", 1)] {
        let row = format!("  job        key {key}: ");
        assert_eq!(slots.matches(&row).count(), jobs, "{slots}");
    }
    assert!(!slots.contains("has room"), "{slots}");
}

/// What binds less than was meant is noted where it is set.
#[test]
fn what_binds_a_part_or_nothing_is_noted() {
    let tenth = "[[policy]]\nname = \"tenth\"\nmode = \"shadow\"\nenforce_percent = 10\n\
        match = { queue = \"calm\" }\nconcurrency = 5\n";
    let desk = Desk::with(&[CRM, tenth].concat());
    for line in [
        "pause --policy tenth",
        "pause tenth",
        "why --policy tenth",
        "why --key tenth",
    ] {
        let said = desk.done(line);
        let is_noted = said.contains("binds 10 in a hundred of its jobs");
        assert!(is_noted, "{line}: {said}");
    }
    of_tenants(desk.sidecar.data, &["a"]);
    assert_eq!(started(desk.sidecar.data, "w").len(), 1);
    desk.done("limit --policy per-customer --concurrency 2");
    let said = desk.done("limit crm:a --concurrency 1");
    assert!(!said.contains("note:"), "{said}");
    let note = "note: what is set for all keys of its policy is stricter";
    has(desk.done("limit crm:a --concurrency 5"), note);
}

#[test]
fn what_no_policy_is_called_is_refused() {
    let desk = Desk::with(&[CRM, OTHERS].concat());
    let meant = "no policy is called \"per-custmer\": did you mean \"per-customer\"?";
    let of_a_key = "limit --policy crm:a --concurrency 1";
    let of_tried = "key \"tried\" is of policy \"tried\", which is only tried";
    let wrong = "OJS_THROTTLE_TOKEN=wrong ojs-throttle pause --policy per-customer";
    is_refused(&desk, wrong, 1, "is another one");
    for (line, status, words) in [
        ("pause --policy per-custmer", 1, meant),
        (of_a_key, 1, "a key goes without --policy"),
        ("pause --policy tried", 1, "policy \"tried\" is only tried"),
        ("pause tried", 1, of_tried),
        ("pause --policy 'a b'", 1, "no policy is called \"a b\""),
        ("pause per-customer", 1, "--policy"),
        ("limit per-customer --rate 10/s", 1, "--policy"),
        ("resume --policy per-customer", 1, "not paused by hand"),
        ("clear --policy per-customer", 1, "nothing is set by hand"),
        ("why --policy per-custmer", 1, "did you mean \"per-custom"),
        ("pause crm:a --policy per-customer", 2, "--policy"),
        ("limit --policy per-customer --next-start 1h", 2, "--policy"),
        ("limit --policy per-customer --used 5", 2, "--policy"),
        ("clear --policy per-customer --usage", 2, "--policy"),
    ] {
        is_refused(&desk, &format!("ojs-throttle {line}"), status, words);
    }
    assert_eq!(desk.sidecar.metric("ojs_throttle_overrides_active"), 0.0);
}

/// What is set outlives the sidecar, and the policy: then it binds nothing, is seen, and can be taken away.
#[test]
fn it_outlives_a_restart_and_a_policy_that_leaves_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.db");
    let store = format!("[store]\nurl = \"sqlite:{}\"\n", path.display());
    let backend = Backend::start(Lax::spec());
    let run =
        |limits: &str| Sidecar::run(&config(backend.addr, TOKEN, &format!("{limits}{store}")));
    let mut desk = Desk::before(Backend::start(Lax::spec()), run(CRM));
    desk.done("pause --policy per-customer --reason INC-42");
    desk.sidecar.kill();
    desk.sidecar = run(CRM);
    let data = desk.sidecar.data;
    of_tenants(data, &["a"]);
    assert!(started(data, "w").is_empty());
    desk.sidecar.kill();
    desk.sidecar = run(&CRM.replace("per-customer", "each"));
    let data = desk.sidecar.data;
    wait("the job is back", || started(data, "w") == ["a"]);
    let top = desk.done("top --once --columns 200");
    has(&top, "\n_policy:per-customer ");
    let why = desk.done("why --policy per-customer");
    has(&why, "because \"INC-42\"");
    has(&why, "limits nothing");
    let said = desk.done("clear --policy per-customer --json");
    assert_eq!(said.trim(), "{\"key\":\"_policy:per-customer\"}");
    assert_eq!(desk.sidecar.metric("ojs_throttle_paused_keys"), 0.0);
    let line = "ojs-throttle pause --policy per-customer";
    is_refused(&desk, line, 1, "no policy is called");
}

/// Ways out and their budgets have names too.
#[test]
fn calls_of_a_way_out_and_of_a_budget_wait() {
    let vendor = Vendor::start(|_| Answer::ok());
    let calls = port::own();
    let desk = Desk::with(&format!(
        "[[egress]]\nname = \"api\"\nlisten = \"{calls}\"\nupstream = \"http://{}\"\nkey = \"api:{{header.X-Team}}\"\n\
         concurrency = 5\nmax_wait = \"300ms\"\n\
         [[egress.budget]]\nname = \"tokens\"\nkey = \"tokens:{{header.X-Team}}\"\ncost = {{ default = 5, max = 10 }}\n\
         rate = {{ limit = 100000, period = \"1m\" }}\n",
        vendor.addr
    ));
    let call = |team: &str| {
        let mut conn = Conn::open(calls);
        conn.write(format!("GET /{team} HTTP/1.1\r\nHost: a\r\nX-Team: {team}\r\n\r\n").as_bytes())
            .unwrap();
        conn.reply().unwrap().status
    };
    assert_eq!(call("a"), 200);
    for policy in ["api", "tokens"] {
        desk.done(&format!("pause --policy {policy}"));
        assert_eq!([call("a"), call("new")], [429, 429], "{policy}");
        desk.done(&format!("resume --policy {policy}"));
        assert_eq!([call("a"), call("new")], [200, 200], "{policy}");
    }
    // A smaller budget for each team, for a while.
    desk.done("limit --policy tokens --rate 20/1m");
    let answers: Vec<_> = (0..4).map(|_| call("b")).collect();
    assert_eq!(answers, [200, 200, 200, 200]);
    assert_ne!(call("b"), 200, "20 are used");
    assert_eq!(call("c"), 200);
    let seen = vendor.calls().len();
    assert_eq!(seen, 1 + 4 + 4 + 1);
}
