//! Stops that meet a backend which does not answer.

use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, ExitStatus};

use super::hole::Hole;
use super::prelude::*;
use crate::servers::vendor::{Answer, Stops, Vendor, VendorCall};

const ONE: &str =
    "[[policy]]\nname = \"one\"\nmatch = { queue = \"q\" }\nkey = \"{type}\"\nconcurrency = 1\n";

#[test]
fn a_backend_that_takes_nothing_back_does_not_hold_up_a_stop() {
    let backend = Backend::start(Lax::redis());
    let hole = Hole::before(backend.addr);
    let mut sidecar = Sidecar::run(&config(hole.addr, "drain_timeout = \"1s\"", ONE));
    for _ in 0..8 {
        enqueue(sidecar.data, "q", json!({}));
    }
    let out = fetch(sidecar.data, "q", 8, "w").jobs();
    assert_eq!(out.len(), 1);
    assert_eq!(backend.total(EventKind::Claimed), 8);
    assert_eq!(ack(sidecar.data, &out[0], "w").status, 200);
    hole.swallow();
    let begun = Instant::now();
    sidecar.signal("TERM");
    assert!(sidecar.ended().success(), "{}", sidecar.log());
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}");
}

/// A backend where a fetch counts as an attempt, and a sidecar that holds 19 jobs on their last one beside one that is
/// out.
fn nineteen_held(server: &str) -> (Backend, Sidecar, String) {
    let patient = format!("{ONE}[fetch]\nmax_wait = \"20s\"\n");
    let (backend, sidecar) = pair(server, &patient);
    for _ in 0..20 {
        enqueue(sidecar.data, "q", json!({"retry": {"max_attempts": 1}}));
    }
    let mut out = fetch(sidecar.data, "q", 20, "w").jobs();
    assert_eq!(out.len(), 1);
    assert_eq!(backend.total(EventKind::Claimed), 20);
    (backend, sidecar, out.remove(0))
}

#[test]
fn held_jobs_on_their_last_attempt_run_while_it_stops() {
    let (backend, mut sidecar, out) = nineteen_held("");
    let data = sidecar.data;
    sidecar.signal("INT");
    sidecar.state("draining");
    enqueue(data, "q", json!({}));
    let first = std::thread::spawn(move || fetch(data, "q", 1, "w").jobs());
    assert_eq!(ack(data, &out, "w").status, 200);
    let mut next = first.join().unwrap();
    for _ in 0..19 {
        assert_eq!(next.len(), 1, "{}", sidecar.log());
        let last = backend.total(EventKind::Acked) == 19;
        assert_eq!(ack(data, &next[0], "w").status, 200);
        if !last {
            next = fetch(data, "q", 1, "w").jobs();
        }
    }
    assert!(sidecar.ended().success(), "{}", sidecar.log());
    assert_eq!(backend.total(EventKind::Acked), 20);
    assert_eq!(
        backend.total(EventKind::Claimed),
        20,
        "nothing new is claimed"
    );
    assert_eq!(backend.total(EventKind::Requeued), 0);
    let log = sidecar.log();
    assert!(!log.contains("held_jobs_left"), "{log}");
}

#[test]
fn held_jobs_that_nobody_fetches_are_kept_to_the_end_and_named() {
    let (backend, mut sidecar, out) = nineteen_held("drain_timeout = \"2s\"");
    let begun = Instant::now();
    sidecar.signal("TERM");
    assert_eq!(ack(sidecar.data, &out, "w").status, 200);
    assert!(sidecar.ended().success(), "{}", sidecar.log());
    assert!(
        begun.elapsed() >= Duration::from_secs(2),
        "they were let go early"
    );
    assert_eq!(backend.total(EventKind::Discarded), 0);
    let lines = sidecar.lines();
    let line = lines.iter().find(|line| line.contains("held_jobs_left"));
    let line = line.unwrap_or_else(|| panic!("{}", sidecar.log()));
    assert!(
        line.contains("left=19") && line.contains("discards"),
        "{line}"
    );
    let held = backend.ledger().into_iter();
    let held = held.filter(|event| event.kind == EventKind::Claimed && *event.job != *out);
    let named = held.filter(|event| line.contains(&*event.job)).count();
    assert_eq!(named, 19, "{line}");
}

#[test]
fn a_stop_is_heard_while_the_backend_is_asked_what_runs() {
    // It says what it is, and answers nothing else.
    let backend = Vendor::start(|call| match call.target() {
        "/ojs/manifest" => Answer::ojs("{}"),
        _ => Answer::ok().never(Stops::Hangs),
    });
    let (dir, command) = run_with(config(backend.addr, "", ONE));
    let mut sidecar = Sidecar::begin(command, dir);
    let asks = |call: &VendorCall| call.target().contains("state=active");
    wait("it asks what runs", || backend.calls().iter().any(asks));
    let ready = |line: &String| line.ends_with(" ready");
    assert!(!sidecar.lines().iter().any(ready), "{}", sidecar.log());
    let begun = Instant::now();
    sidecar.signal("TERM");
    assert!(sidecar.ended().success(), "{}", sidecar.log());
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(6), "{took:?}");
}

/// A command that waits for whoever listens here, in vain.
fn waits_in_vain(mut command: Command, there: &TcpListener) {
    let child = command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = child.spawn().unwrap();
    // By then it heeds signals.
    let _open = there.accept().unwrap();
    let begun = Instant::now();
    let kill = format!("kill -s TERM {}", child.id());
    assert!(
        Command::new("sh")
            .args(["-c", &kill])
            .status()
            .unwrap()
            .success()
    );
    let ended = until("it ends", || child.try_wait().unwrap());
    // Not killed by it: as the first process of a container it would not be.
    assert!(ended.code().is_some(), "{ended:?}");
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(6), "{took:?}");
}

#[test]
fn a_stop_is_heard_while_the_store_is_opened() {
    let store = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("postgres://u:p@{}/d", store.local_addr().unwrap());
    let rest = format!("[store]\nurl = \"{url}\"\ntimeout = \"5s\"\n");
    let (_dir, command) = run_with(config("127.0.0.1:1".parse().unwrap(), "", &rest));
    waits_in_vain(command, &store);
}

#[test]
fn a_doctor_hears_that_it_is_to_end() {
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut command = program();
    let upstream = format!("http://{}", backend.local_addr().unwrap());
    command.args(["doctor", "--upstream", &upstream]);
    waits_in_vain(command, &backend);
}

/// A program that reads its config from a pipe: it waits there until the text comes.
struct Early {
    child: Child,
    pipe: PathBuf,
    _dir: tempfile::TempDir,
}

impl Early {
    /// Starts it and waits until it reads. `wrap` stands before the program.
    fn reads(wrap: &[&str], what: &[&str]) -> Early {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("throttle.toml");
        let made = Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        let program = program();
        let mut words = wrap.iter().map(|word| (*word).to_owned());
        let mut command = match words.next() {
            Some(first) => {
                let mut command = Command::new(first);
                command.args(words).arg(program.get_program());
                command.env_remove("OJS_THROTTLE_CONFIG");
                command
            }
            None => program,
        };
        command.args(what).arg("--config").arg(&pipe);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        Early {
            child,
            pipe,
            _dir: dir,
        }
    }

    /// Sends signals while it reads. Nothing comes by the pipe, and its end does not either.
    fn hears(mut self, signals: &[&str]) -> ExitStatus {
        // Without waiting: it may never read.
        let mut asks = std::fs::File::options();
        asks.write(true).custom_flags(0o4000);
        let _pipe = until("it reads", || asks.open(&self.pipe).ok());
        // The innermost: under `unshare` that is the first process of its own space.
        let pid = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let inner = children.unwrap_or_default().trim().to_owned();
        let of = if inner.is_empty() {
            pid.to_string()
        } else {
            inner
        };
        for signal in signals {
            let kill = format!("kill -s {signal} {of}");
            let sent = Command::new("sh").args(["-c", &kill]).status().unwrap();
            assert!(sent.success(), "{kill}");
        }
        until("it ends", || self.child.try_wait().unwrap())
    }
}

impl Drop for Early {
    fn drop(&mut self) {
        // It has ended already, unless the test has failed.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn a_stop_is_heard_while_the_config_is_read() {
    let status = Early::reads(&[], &["run"]).hears(&["HUP", "TERM"]);
    assert_eq!(status.code(), Some(0), "{status:?}");
    // `doctor` says that it did not look at everything.
    let status = Early::reads(&[], &["doctor"]).hears(&["TERM"]);
    assert_eq!(status.code(), Some(1), "{status:?}");
}

/// The kernel drops a signal that the first process of a container does not watch yet.
#[test]
fn the_first_process_of_a_container_hears_a_stop_while_it_reads_its_config() {
    let unshare = [
        "unshare",
        "--user",
        "--map-root-user",
        "--pid",
        "--fork",
        "--kill-child",
    ];
    let status = Early::reads(&unshare, &["run"]).hears(&["TERM"]);
    assert_eq!(status.code(), Some(0), "{status:?}");
}

#[test]
fn acks_of_workers_that_hung_up_arrive_whichever_thread_has_them() {
    acks_arrive_after(|workers| workers.clear());
}

#[test]
fn acks_of_workers_that_wait_arrive_whichever_thread_has_them() {
    acks_arrive_after(|_| {});
}

/// Which thread has which connection is the kernel's choice; sixteen do not all go to one.
fn acks_arrive_after(what: impl Fn(&mut Vec<Conn>)) {
    let (mut backend, mut sidecar) = pair("threads = 2", ONE);
    for _ in 0..16 {
        enqueue(sidecar.data, "free", json!({}));
    }
    let jobs = fetch(sidecar.data, "free", 16, "w").jobs();
    assert_eq!(jobs.len(), 16);
    backend.go();
    let mut workers = Vec::new();
    for job in &jobs {
        let body = json!({"job_id": job, "worker_id": "w", "result": {}}).to_string();
        let ack = format!(
            "POST /ojs/v1/workers/ack HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut worker = Conn::open(sidecar.data);
        worker.write(ack.as_bytes()).unwrap();
        workers.push(worker);
    }
    wait("each is tried again and again", || {
        sidecar.metric("ojs_throttle_settle_retries_total") > 64.0
    });
    what(&mut workers);
    sidecar.signal("TERM");
    wait("it accepts nothing any more", || {
        TcpStream::connect(sidecar.data).is_err()
    });
    backend.come();
    assert!(sidecar.ended().success(), "{}", sidecar.log());
    let lost = jobs.iter();
    let lost = lost.filter(|job| backend.count(EventKind::Acked, job) == 0);
    assert_eq!(lost.count(), 0, "of 16 ACKs: {}", sidecar.log());
}
