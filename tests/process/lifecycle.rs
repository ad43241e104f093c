//! Start, pages, drain.

use super::http::{Reply, nack};
use super::prelude::*;
use crate::harness::assert_within;

const ONE: &str = "[[policy]]\nname = \"one\"\nmatch = { queue = \"q\" }\nkey = \"{meta.who}\"\nconcurrency = 1\n";
const TWO: &str =
    "[[policy]]\nname = \"two\"\nmatch = { queue = \"q\" }\nkey = \"{type}\"\nconcurrency = 2\n";

#[test]
fn the_pages_of_the_admin_port() {
    let (_backend, sidecar) = pair("", ONE);
    let page = get(sidecar.admin, "/livez");
    assert_eq!((page.status, page.body.trim()), (200, "alive"));
    let nowhere = get(sidecar.admin, "/nowhere");
    assert_eq!(nowhere.status, 404);
    for member in ["code", "message", "hint", "request_id"] {
        let said = nowhere.json()["error"][member].as_str().map(str::is_empty);
        assert_eq!(said, Some(false), "{member}: {nowhere:?}");
    }
    let wrong = ask(sidecar.admin, "POST", "/livez", "");
    assert_eq!(wrong.status, 405);
    assert_eq!(wrong.json()["error"]["code"], "method_not_allowed");
    assert!(wrong.head.contains("allow: GET, HEAD\r\n"), "{wrong:?}");
    // Never a proxy.
    assert_eq!(get(sidecar.admin, "/ojs/v1/health").status, 404);

    for n in 0..60 {
        let job = json!({"type": "t", "args": [], "meta": {"who": format!("k{n}")}, "options": {"queue": "q"}});
        let stored = ask(sidecar.data, "POST", "/ojs/v1/jobs", &job.to_string());
        assert_eq!(stored.status, 201, "{stored:?}");
    }
    let mut out = Vec::new();
    while out.len() < 60 {
        let jobs = fetch(sidecar.data, "q", 20, "w").jobs();
        assert!(!jobs.is_empty(), "{}", out.len());
        out.extend(jobs);
    }
    // One more of a key that has no place.
    let job = json!({"type": "t", "args": [], "meta": {"who": "k0"}, "options": {"queue": "q"}});
    ask(sidecar.data, "POST", "/ojs/v1/jobs", &job.to_string());
    assert!(fetch(sidecar.data, "q", 1, "w").jobs().is_empty());

    let page = sidecar.metrics();
    for (name, kind) in [
        ("ojs_rate_limit_active", "gauge"),
        ("ojs_rate_limit_waiting", "gauge"),
        ("ojs_rate_limit_exceeded_total", "counter"),
        ("ojs_rate_limit_wait_duration_seconds", "histogram"),
    ] {
        assert!(page.contains(&format!("# HELP {name} ")), "{name}: {page}");
        assert!(
            page.contains(&format!("# TYPE {name} {kind}\n")),
            "{name}: {page}"
        );
    }
    let series = page
        .lines()
        .filter(|line| line.starts_with("ojs_rate_limit_active{"));
    assert_eq!(series.count(), 51, "50 keys and the rest: {page}");
    assert_eq!(
        sidecar.metric("ojs_rate_limit_active{key=\"_other\"}"),
        10.0
    );
    assert_eq!(sidecar.metric("ojs_rate_limit_active{key=\"k0\"}"), 1.0);
    assert_eq!(sidecar.metric("ojs_rate_limit_waiting{key=\"k0\"}"), 1.0);
    assert_eq!(
        sidecar.metric("ojs_rate_limit_exceeded_total{key=\"k0\",strategy=\"concurrency\"}"),
        1.0
    );
    assert_eq!(sidecar.metric("ojs_throttle_slots"), 60.0);
    assert_eq!(sidecar.metric("ojs_throttle_held_jobs"), 1.0);
    for line in page
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
    {
        let (_, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().is_ok(), "{line}");
    }
    for job in &out {
        assert_eq!(ack(sidecar.data, job, "w").status, 200);
    }
    assert_eq!(sidecar.metric("ojs_throttle_slots"), 0.0);
    assert_eq!(sidecar.metric("ojs_rate_limit_active{key=\"_other\"}"), 0.0);
}

/// Whether the worker's next request comes on a new connection, which may lead to a sibling.
fn closes(reply: &Reply) -> bool {
    reply
        .head
        .to_ascii_lowercase()
        .contains("\r\nconnection: close\r\n")
}

/// Two out, three held, and a stop: whoever is out ends in peace.
#[test]
fn a_stop_waits_for_who_is_out_and_gives_back_what_is_held() {
    let backend = Backend::start(Lax::redis());
    let patient = format!("{TWO}[fetch]\nmax_wait = \"20s\"\n");
    let mut sidecar = Sidecar::run(&config(backend.addr, "", &patient));
    let data = sidecar.data;
    let jobs: Vec<String> = (0..5).map(|_| enqueue(data, "q", json!({}))).collect();
    let out = fetch(data, "q", 5, "w").jobs();
    assert_eq!(out.len(), 2);
    let held = backend.total(EventKind::Claimed) - out.len();
    assert!(
        held > 0,
        "nothing held: {}",
        backend.total(EventKind::Claimed)
    );

    let mut kept = Conn::open(data);
    sidecar.signal("TERM");
    sidecar.state("draining");
    let begun = Instant::now();
    let body = r#"{"queues":["q"],"count":5,"worker_id":"w"}"#;
    let nothing = kept.ask("POST", "/ojs/v1/workers/fetch", body);
    assert!(nothing.jobs().is_empty());
    assert!(closes(&nothing), "{nothing:?}");
    assert!(begun.elapsed() < Duration::from_secs(10), "it waited");
    wait("held jobs given back", || {
        backend.total(EventKind::Requeued) == held
    });
    assert_eq!(get(sidecar.admin, "/livez").status, 200);
    let beat = heartbeat(data, &[&out[0], &out[1]], "w");
    assert_eq!(beat.status, 200);
    assert!(
        out.iter().all(|job| beat.body.contains(job.as_str())),
        "{beat:?}"
    );
    assert_eq!(nack(data, &out[0], "w").status, 200);
    assert!(sidecar.runs());
    let done = ack(data, &out[1], "w");
    assert_eq!(done.status, 200, "{done:?}");
    assert!(sidecar.ended().success(), "{}", sidecar.log());
    assert_eq!(backend.count(EventKind::Acked, &out[1]), 1);
    assert_eq!(backend.count(EventKind::Nacked, &out[0]), 1);
    assert_eq!(backend.total(EventKind::Requeued), held);
    assert_eq!(backend.total(EventKind::Discarded), 0);
    let started = jobs
        .iter()
        .filter(|job| backend.count(EventKind::Claimed, job) > 0);
    assert_eq!(started.count(), held + 2);
    let log = sidecar.log();
    assert!(!log.contains("still out"), "{log}");
    assert!(log.contains(&format!("given_back={held}")), "{log}");
    // Straight from the backend: they are there for anyone, as they were; the one that failed may be
    // there again too.
    let mut there = fetch(backend.addr, "q", 5, "x").jobs();
    there.retain(|job| *job != out[0]);
    assert_eq!(there.len(), 3);
}

/// What nothing limits is not counted, so nobody knows whether it is out; and who sends learns late of a stop.
#[test]
fn a_stop_serves_those_who_learn_late_of_it() {
    let (backend, mut sidecar) = pair("drain_min = \"8s\"", ONE);
    let data = sidecar.data;
    let free = enqueue(data, "free", json!({}));
    assert_eq!(fetch(data, "free", 1, "w").jobs().concat(), free);
    let begun = Instant::now();
    sidecar.signal("TERM");
    sidecar.state("draining");
    wait("two seconds of the stop", || {
        begun.elapsed() >= Duration::from_secs(2)
    });
    assert_eq!(ack(data, &free, "w").status, 200);
    assert_eq!(backend.count(EventKind::Acked, &free), 1);
    enqueue(data, "q", json!({}));
    let later = enqueue(data, "free", json!({}));
    for (queues, jobs) in [
        (json!(["q"]), 0),
        (json!(["free"]), 1),
        (json!(["free"]), 0),
        (json!(["free", "q"]), 0),
    ] {
        let body = json!({"queues": queues, "count": 1, "worker_id": "w"}).to_string();
        let reply = ask(data, "POST", "/ojs/v1/workers/fetch", &body);
        let got = (reply.jobs().len(), closes(&reply));
        assert_eq!(got, (jobs, true), "{queues}: {reply:?}");
    }
    assert_eq!(ack(data, &later, "w").status, 200);
    sidecar.state("draining");
    assert!(sidecar.ended().success(), "{}", sidecar.log());
    let took = begun.elapsed();
    assert!(
        took >= Duration::from_secs(8) && took < Duration::from_secs(20),
        "{took:?}"
    );
}

#[test]
fn a_stop_does_not_wait_for_ever() {
    let (_backend, mut sidecar) = pair("drain_timeout = \"1s\"", ONE);
    enqueue(sidecar.data, "q", json!({}));
    assert_eq!(fetch(sidecar.data, "q", 1, "w").jobs().len(), 1);
    let begun = Instant::now();
    sidecar.signal("TERM");
    assert!(sidecar.ended().success());
    let took = begun.elapsed();
    assert!(
        took >= Duration::from_secs(1) && took < Duration::from_secs(15),
        "{took:?}"
    );
    let log = sidecar.log();
    assert!(log.contains("still out"), "{log}");
    assert!(log.contains(" out=1"), "{log}");
}

/// What still goes on when the drain is over has 3 s.
#[test]
fn connections_have_three_seconds_to_end() {
    // It takes connections and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let text = config(silent.local_addr().unwrap(), "drain_timeout = \"0s\"", "");
    let (dir, command) = run_with(text);
    let mut sidecar = Sidecar::begin(command, dir);
    let mut asking = Conn::open(sidecar.data);
    asking
        .write(b"GET /ojs/v1/cron HTTP/1.1\r\nHost: h\r\n\r\n")
        .unwrap();
    wait("the request", || {
        let page = sidecar.metrics();
        let mut lines = page.lines();
        lines.any(|line| {
            line.starts_with("ojs_throttle_requests_in_flight{") && !line.ends_with(" 0")
        })
    });
    let begun = Instant::now();
    sidecar.signal("TERM");
    assert!(sidecar.ended().success(), "{}", sidecar.log());
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(2_900), "{took:?}");
    assert_within(took, Duration::from_secs(10), "");
}

/// The id under which a sidecar claims is made of the host and the port: a restart keeps it, and one beside has another.
/// What the memory counted is gone.
#[test]
fn a_restart_claims_under_the_same_id_and_counts_anew() {
    let backend = Backend::start(Lax::spec());
    let rate = "[[queue]]\nname = \"q\"\nrate = { limit = 1, period = \"1h\" }\n";
    let claimer = |at: SocketAddr| {
        let text = config(backend.addr, "", rate).replace(
            "listen = \"127.0.0.1:0\"\nadmin",
            &format!("listen = \"{at}\"\nadmin"),
        );
        let mut sidecar = Sidecar::run(&text);
        for _ in 0..2 {
            enqueue(at, "q", json!({}));
        }
        let jobs = fetch(at, "q", 2, "w").jobs();
        assert_eq!(jobs.len(), 1);
        assert!(fetch(at, "q", 2, "w").jobs().is_empty());
        assert_eq!(ack(at, &jobs[0], "w").status, 200);
        sidecar.signal("TERM");
        assert!(sidecar.ended().success());
        let ledger = backend.ledger();
        let is_it = |event: &&ojs_throttle::backend::Event| {
            event.kind == EventKind::Claimed && *event.job == *jobs[0]
        };
        ledger.iter().find(is_it).unwrap().worker.clone().unwrap()
    };
    let [one, other] = [(); 2].map(|()| crate::servers::port::own());
    let first = claimer(one);
    assert_eq!(claimer(one), first);
    let beside = claimer(other);
    assert_ne!(beside, first);
    assert!(first.starts_with("ojs-throttle-") && first.ends_with(&one.port().to_string()));
}

#[test]
fn a_second_signal_ends_at_once() {
    for server in ["threads = 1\ndrain_min = \"20s\"", "threads = 2"] {
        let (_backend, mut sidecar) = pair(server, ONE);
        enqueue(sidecar.data, "q", json!({}));
        assert_eq!(fetch(sidecar.data, "q", 1, "w").jobs().len(), 1);
        // Open event streams on both threads, which never end by themselves.
        let mut streams: Vec<Conn> = (0..8).map(|_| Conn::open(sidecar.data)).collect();
        for stream in &mut streams {
            stream
                .write(b"GET /ojs/v1/queues/q/events HTTP/1.1\r\nHost: h\r\n\r\n")
                .unwrap();
        }
        sidecar.signal("TERM");
        sidecar.state("draining");
        assert!(sidecar.runs());
        let begun = Instant::now();
        sidecar.signal("INT");
        assert!(sidecar.ended().success(), "{}", sidecar.log());
        assert_within(begun.elapsed(), Duration::from_secs(10), "");
    }
}

/// A rolling restart on one host: the next process starts while the one before it still drains.
#[test]
fn a_start_waits_for_the_ports_of_a_predecessor_that_drains() {
    for threads in [1, 2] {
        let backend = Backend::start(Lax::spec());
        let threads = format!("threads = {threads}");
        let text = config(backend.addr, &threads, TWO);
        let mut first = Sidecar::run(&text);
        let job = enqueue(first.data, "q", json!({}));
        assert_eq!(fetch(first.data, "q", 1, "w").jobs(), [job.as_str()]);
        first.signal("TERM");
        first.state("draining");

        let (data, admin) = (first.data, first.admin);
        let same = text
            .replace(
                "listen = \"127.0.0.1:0\"\nadmin",
                &format!("listen = \"{data}\"\nadmin"),
            )
            .replace(
                "admin_listen = \"127.0.0.1:0\"",
                &format!("admin_listen = \"{admin}\""),
            );
        let (dir, command) = run_with(&same);
        let mut second = Sidecar::launch(command, dir);
        until("the second says that it waits", || {
            assert!(second.runs(), "{}", second.log());
            second.log().contains("is in use").then_some(())
        });
        // The first one still serves its worker.
        assert_eq!(ack(data, &job, "w").status, 200);
        assert!(first.ended().success(), "{}", first.log());
        second.listens();
        second.state("ready");
        assert_eq!((second.data, second.admin), (data, admin));
        assert_eq!(ask(data, "GET", "/ojs/v1/health", "").status, 200);
        let log = second.log();
        assert_eq!(
            log.matches("(server.listen) is in use: waiting").count(),
            1,
            "{log}"
        );
        assert!(log.matches("is in use").count() <= 2, "{log}");
    }
}

#[test]
fn threads_share_the_port_and_the_limits() {
    // Held jobs, which nobody asks for, keep it no longer.
    let server = "threads = 2\ndrain_timeout = \"2s\"";
    let (backend, mut sidecar) = pair(server, TWO);
    let data = sidecar.data;
    for _ in 0..6 {
        enqueue(data, "q", json!({}));
    }
    let mut out: Vec<(String, String)> = Vec::new();
    // Which thread gets a connection is the kernel's choice; sixteen do not all go to one.
    for worker in (0..16).map(|n| format!("w{n}")) {
        let jobs = fetch(data, "q", 1, &worker).jobs();
        out.extend(jobs.into_iter().map(|job| (job, worker.clone())));
    }
    assert_eq!(out.len(), 2, "concurrency over both threads");
    let busy = std::fs::read_dir(format!("/proc/{}/task", sidecar.pid())).unwrap();
    let names: Vec<String> = busy
        .map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap())
        .collect();
    assert!(
        names.iter().any(|name| name.trim() == "data-2"),
        "{names:?}"
    );

    for threads in [1, 2] {
        let server = format!("threads = {threads}\ndrain_timeout = \"200ms\"");
        let text = config(backend.addr, &server, "").replace(
            "listen = \"127.0.0.1:0\"\nadmin",
            &format!("listen = \"{data}\"\nadmin"),
        );
        let (_dir, path) = crate::sidecar::process::file(text);
        let mut second = crate::sidecar::process::program();
        second.args(["run", "--config"]).arg(path);
        let refused = crate::sidecar::process::ran(&mut second);
        assert_eq!(refused.status, Some(1), "{}", refused.err);
        assert!(refused.err.contains("in use"), "{}", refused.err);
    }
    for (job, worker) in &out {
        assert_eq!(ack(data, job, worker).status, 200);
    }
    // Slots freed on either thread are free on both.
    let mut more = Vec::new();
    for worker in (0..8).map(|n| format!("x{n}")) {
        let jobs = fetch(data, "q", 1, &worker).jobs();
        more.extend(jobs.into_iter().map(|job| (job, worker.clone())));
    }
    assert_eq!(more.len(), 2);
    sidecar.signal("TERM");
    sidecar.state("draining");
    for (job, worker) in &more {
        assert_eq!(ack(data, job, worker).status, 200);
    }
    assert!(sidecar.ended().success());
}

#[test]
fn the_first_line_names_the_store() {
    let store = "[store]\nnamespace = \"staging\"\n";
    let (_backend, sidecar) = pair("", store);
    let log = sidecar.log();
    let line = log.lines().find(|line| line.contains("point SDKs at"));
    let told = "store=\"memory\" namespace=\"staging\"";
    assert!(line.is_some_and(|line| line.contains(told)), "{log}");
}
