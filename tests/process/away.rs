//! The sidecar is taken away as the chapter `operate` says, while workers have jobs: nothing is lost, refused or run
//! twice.

use super::prelude::*;
use super::terminal::Terminal;
use crate::docs::blocks;
use crate::servers::port;

const LIMITED: &str = "[server]\nupstream = \"http://127.0.0.1:9090\"\n\
    [[policy]]\nname = \"stripe\"\nmatch = { queue = \"billing\" }\nkey = \"stripe:{type}\"\nconcurrency = 1\n";

/// A worker: it takes all that it gets.
fn takes(at: SocketAddr, jobs: usize) -> Vec<String> {
    let mut took = Vec::new();
    wait("all jobs", || {
        took.extend(fetch(at, "billing", jobs, "w").jobs());
        took.len() >= jobs
    });
    assert_eq!(took.len(), jobs);
    took
}

fn ends(at: SocketAddr, jobs: &[String]) {
    for job in jobs {
        let reply = ack(at, job, "w");
        assert_eq!(reply.status, 200, "{reply:?}");
    }
}

#[test]
fn it_goes_as_the_chapter_says_and_no_job_is_lost_on_tools() {
    let steps = blocks::of("src/manual/operate.md").into_iter();
    let steps: Vec<_> = steps
        .filter(|block| block.heading == "Take it away")
        .collect();
    let [emptied, until_all_ended] = &steps[..] else {
        panic!("{steps:?}");
    };
    let backend = Backend::start(Lax::spec());
    let [data, admin] = [(); 2].map(|()| port::own());
    let ports = [data.port(), backend.addr.port(), admin.port()];
    let mut terminal = Terminal::open(ports);
    let file = terminal.write("throttle.toml", LIMITED);
    let mut command = run_at(file);
    command.args([
        "--listen",
        &data.to_string(),
        "--admin-listen",
        &admin.to_string(),
    ]);
    let mut sidecar = Sidecar::spawn(command, tempfile::tempdir().unwrap());

    let mut jobs: Vec<String> = (0..4)
        .map(|_| enqueue(data, "billing", json!({})))
        .collect();
    let mut out = takes(data, 1);
    wait("held jobs", || {
        fetch(data, "billing", 4, "w");
        sidecar.metric("ojs_throttle_held_jobs") > 0.0
    });

    terminal.write("throttle.toml", &emptied.text);
    wait("the reload", || sidecar.log().contains("config reloaded"));
    out.extend(takes(data, 3));
    // All of them were claimed by the sidecar: their ACKs must come through it.
    let said = get(data, "/ojs/v1/health").json()["throttle"].clone();
    let left = said["held"].as_u64().unwrap() + said["slots"].as_u64().unwrap();
    assert_eq!(left, 4, "{said}");
    ends(data, &out);
    terminal.run(&until_all_ended.place, &until_all_ended.text, "");

    // A worker that moved, and one that did not yet.
    jobs.extend([data, backend.addr].map(|at| enqueue(at, "billing", json!({}))));
    for at in [backend.addr, data] {
        let job = takes(at, 1);
        ends(backend.addr, &job);
    }
    sidecar.signal("TERM");
    assert!(sidecar.ended().success(), "{}", sidecar.log());
    for job in &jobs {
        let each = [EventKind::Claimed, EventKind::Acked].map(|kind| backend.count(kind, job));
        assert_eq!(each, [1, 1], "{job}");
    }
    assert_eq!(backend.total(EventKind::Acked), jobs.len());
}

const SPLIT: &str = "[server]\nupstream = \"http://127.0.0.1:9090\"\n\
    [[policy]]\nname = \"crm\"\nmatch = { queue = \"billing\" }\nkey = \"crm:{meta.tenant_id}\"\nconcurrency = 2\n\
    [[queue]]\nname = \"billing\"\nsubqueues = true\n";

fn of_tenant(at: SocketAddr, tenant: &str, more: &str) -> String {
    let job = format!(
        "{{\"type\":\"t\",\"args\":[],\"meta\":{{\"tenant_id\":\"{tenant}\"}},\"options\":{{\"queue\":\"billing\"{more}}}}}"
    );
    let reply = ask(at, "POST", "/ojs/v1/jobs", &job);
    assert_eq!(reply.status, 201, "{reply:?}");
    reply.json()["job"]["id"].as_str().unwrap().to_owned()
}

/// Jobs lie in subqueues, one of them for later. None is stranded there, and none runs twice.
#[test]
fn subqueues_are_emptied_as_the_chapter_says_on_tools() {
    let steps = blocks::of("src/manual/subqueues.md").into_iter();
    let steps: Vec<_> = steps
        .filter(|block| block.heading == "Taken away again")
        .collect();
    let [off, until_empty, later, at_once] = &steps[..] else {
        panic!("{steps:?}");
    };
    let backend = Backend::start(Lax::spec());
    let [data, admin] = [(); 2].map(|()| port::own());
    let mut terminal = Terminal::open([data.port(), backend.addr.port(), admin.port()]);
    let file = terminal.write("throttle.toml", SPLIT);
    let mut command = run_at(file);
    command.args([
        "--listen",
        &data.to_string(),
        "--admin-listen",
        &admin.to_string(),
    ]);
    let mut sidecar = Sidecar::spawn(command, tempfile::tempdir().unwrap());

    // Without a sidecar: a worker that asks the backend for all names.
    let found = of_tenant(data, "acme", "");
    assert_eq!(fetch(backend.addr, "billing", 1, "w").jobs(), [""; 0]);
    terminal.run(&at_once.place, &at_once.text, "");
    let names = std::fs::read_to_string(terminal.path("queues.json")).unwrap();
    let body = format!("{{\"queues\":{names},\"count\":1,\"worker_id\":\"w\"}}");
    let reply = ask(backend.addr, "POST", "/ojs/v1/workers/fetch", &body);
    assert_eq!(reply.jobs(), [&*found]);
    ends(backend.addr, std::slice::from_ref(&found));

    let mut jobs: Vec<String> = (0..12)
        .map(|nth| of_tenant(data, ["acme", "bolt", "coil"][nth % 3], ""))
        .collect();
    let scheduled = of_tenant(data, "acme", ",\"delay_until\":\"2099-01-01T00:00:00Z\"");
    terminal.write("throttle.toml", &off.text);
    wait("the reload", || sidecar.log().contains("config reloaded"));
    jobs.push(of_tenant(data, "acme", ""));
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let mut ended = 0;
            wait("all jobs", || {
                let got = fetch(data, "billing", 2, "w").jobs();
                ended += got.len();
                ends(data, &got);
                ended == jobs.len()
            });
        });
        terminal.run(&until_empty.place, &until_empty.text, "");
    });
    terminal.run(&later.place, &later.text, "ID billing-ojst-…");
    let gone = ask(data, "DELETE", &format!("/ojs/v1/jobs/{scheduled}"), "");
    assert_eq!(gone.status, 200, "{gone:?}");
    terminal.run(&later.place, &later.text, "");
    // What came after the setting went is in the queue itself.
    let last = of_tenant(data, "bolt", "");
    assert_eq!(fetch(backend.addr, "billing", 1, "w").jobs(), [&*last]);
    sidecar.signal("TERM");
    assert!(sidecar.ended().success(), "{}", sidecar.log());
    for job in &jobs {
        let each = [EventKind::Claimed, EventKind::Acked].map(|kind| backend.count(kind, job));
        assert_eq!(each, [1, 1], "{job}");
    }
}
