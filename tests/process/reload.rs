//! A config file that changes under a running process, in every way that files change.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use super::events::Subscriber;
use super::prelude::*;
use crate::sidecar::process::Ends;

const FINE: &str = "ojs_throttle_config_last_reload_successful";
pub const MATCHES: &str = "ojs_throttle_config_file_matches";

/// A sidecar that follows a file, before a backend.
pub struct Following {
    backend: Backend,
    pub sidecar: Sidecar,
    path: PathBuf,
}

/// A policy `k` for queue `q` with these slots.
pub fn slots(slots: u32) -> String {
    format!("[[policy]]\nname = \"k\"\nmatch = {{ queue = \"q\" }}\nconcurrency = {slots}\n")
}

impl Following {
    /// With one slot.
    fn start() -> Following {
        let backend = Backend::start(Lax::spec());
        let (dir, path) = file(config(backend.addr, "", &slots(1)));
        Following::run(backend, dir, path)
    }

    pub fn run(backend: Backend, dir: tempfile::TempDir, path: PathBuf) -> Following {
        let sidecar = Sidecar::spawn(run_at(&path), dir);
        wait("the first look", || sidecar.metric(MATCHES) == 1.0);
        Following {
            backend,
            sidecar,
            path,
        }
    }

    fn text(&self, rest: &str) -> String {
        config(self.backend.addr, "", rest)
    }

    /// Another file in its place.
    pub fn replace(&self, text: impl AsRef<[u8]>) {
        let beside = self.path.with_extension("new");
        fs::write(&beside, text).unwrap();
        fs::rename(&beside, &self.path).unwrap();
    }

    /// The slots of `k` as they are in force.
    fn limit(&self) -> Value {
        get(self.sidecar.data, "/ojs/v1/rate-limits/k").json()["concurrency"]["limit"].clone()
    }

    /// Waits until so many are in force, and says how long that took.
    pub fn live(&self, how: &str, slots: u32, since: Instant) -> Duration {
        wait(how, || self.limit() == slots);
        let took = since.elapsed();
        println!("{how}: live after {took:?}");
        assert!(took < Duration::from_secs(30), "{how}: {took:?}");
        took
    }

    fn results(&self, word: &str) -> f64 {
        let series = format!("ojs_throttle_config_reloads_total{{result=\"{word}\"}}");
        self.sidecar.metric(&series)
    }

    /// Waits until a reload went wrong, and says what the log says.
    fn refused(&self, word: &str) -> String {
        wait(word, || self.results(word) >= 1.0);
        assert_eq!(self.sidecar.metric(FINE), 0.0);
        assert_eq!(self.sidecar.metric(MATCHES), 0.0);
        assert_eq!(self.limit(), 1, "a file that was refused changes nothing");
        until("what is said of it", || {
            let log = self.sidecar.log();
            log.contains("the last good one runs on").then_some(log)
        })
    }

    /// A good file after a bad one is enough.
    fn mended(&self) {
        self.replace(self.text(&slots(7)));
        self.live("mended", 7, Instant::now());
        for series in [FINE, MATCHES] {
            wait("well", || self.sidecar.metric(series) == 1.0);
        }
    }
}

/// "A saved file is live within 300 ms": five of seven saves in a row are, in one of a few rounds, as the machine
/// may be busy. Each is of one slot more, from two on; how many there were.
fn soon(mut save: impl FnMut(u32) -> Duration) -> u32 {
    let mut slowest = Vec::new();
    for round in 0..5 {
        let saves = round * 7..(round + 1) * 7;
        let mut took: Vec<_> = saves.map(|nth| save(nth + 2)).collect();
        took.sort();
        if took[4] < Duration::from_millis(300) {
            return (round + 1) * 7;
        }
        slowest.push(took);
    }
    panic!("{slowest:?}")
}

#[test]
fn renamed_written_deleted() {
    let f = Following::start();
    let when = "ojs_throttle_config_last_reload_success_timestamp_seconds";
    let started = f.sidecar.metric(when);
    assert!(started > 1.7e9, "{started}");
    let renamed = soon(|slots| {
        f.replace(f.text(&self::slots(slots)));
        f.live("renamed over", slots, Instant::now())
    });
    wait("counted", || f.results("applied") == f64::from(renamed));
    assert_eq!(f.results("unchanged"), 0.0, "the look at the start is none");
    assert!(f.sidecar.metric(when) > started);
    let written = soon(|slots| {
        fs::write(&f.path, f.text(&self::slots(slots))).unwrap();
        f.live("written in place", slots, Instant::now())
    });
    until("a line for each", || {
        let lines = f.sidecar.log().matches("config reloaded").count();
        (lines == (renamed + written) as usize).then_some(())
    });
    assert!(f.sidecar.log().contains("policies: 1 changed (k)"));
    fs::remove_file(&f.path).unwrap();
    wait("noticed", || f.results("unreadable") == 1.0);
    assert_eq!(f.limit(), written + 1);
    fs::write(&f.path, f.text(&slots(99))).unwrap();
    f.live("back again", 99, Instant::now());
    wait("well", || f.sidecar.metric(FINE) == 1.0);
}

/// A folder as Kubernetes makes them of ConfigMaps.
struct Mount(PathBuf);

impl Mount {
    fn swap(&self, version: &str, text: &str) {
        let folder = self.0.join(format!("..{version}"));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("throttle.toml"), text).unwrap();
        let new = self.0.join("..data_tmp");
        symlink(format!("..{version}"), &new).unwrap();
        let old = fs::read_link(self.0.join("..data"));
        fs::rename(&new, self.0.join("..data")).unwrap();
        if let Ok(old) = old {
            fs::remove_dir_all(self.0.join(old)).unwrap();
        }
    }
}

#[test]
fn a_config_map_is_swapped() {
    let backend = Backend::start(Lax::spec());
    let dir = tempfile::tempdir().unwrap();
    let mount = Mount(dir.path().join("mount"));
    fs::create_dir(&mount.0).unwrap();
    mount.swap("1", &config(backend.addr, "", &slots(1)));
    symlink("..data/throttle.toml", mount.0.join("throttle.toml")).unwrap();
    let path = mount.0.join("throttle.toml");
    let f = Following::run(backend, dir, path);
    soon(|version| {
        mount.swap(&version.to_string(), &f.text(&slots(version)));
        f.live("..data swapped", version, Instant::now())
    });
    // In the folder behind the link, where nothing happens in the one that is named.
    fs::write(mount.0.join("..data/throttle.toml"), f.text(&slots(99))).unwrap();
    f.live("written behind the link", 99, Instant::now());
    assert_eq!(
        f.sidecar.log().matches("ERROR").count(),
        0,
        "{}",
        f.sidecar.log()
    );
}

#[test]
fn what_no_watch_sees_is_found_by_looking() {
    let f = Following::start();
    let elsewhere = tempfile::tempdir().unwrap();
    let link = elsewhere.path().join("same-file");
    fs::hard_link(&f.path, &link).unwrap();
    // A new name of it makes no noise in the watched folder, nor does writing under that name.
    fs::write(&link, f.text(&slots(3))).unwrap();
    f.live("seen by nobody", 3, Instant::now());
}

/// Half of a file is a good one where it ends between two tables. Who writes in steps of some milliseconds is
/// waited for.
#[test]
fn a_file_that_is_written_in_steps_is_read_when_it_is_quiet() {
    let f = Following::start();
    let (half, rest) = (f.text(&slots(2)), slots(1).replace("\"k\"", "\"other\""));
    let reloads = || f.sidecar.log().matches("config reloaded").count();
    until("a writer whom the machine lets write", || {
        f.replace(f.text(&slots(1)));
        f.live("as at first", 1, Instant::now());
        let (before, begun) = (reloads(), Instant::now());
        let mut file = fs::File::create(&f.path).unwrap();
        file.write_all(half.as_bytes()).unwrap();
        let (mut early, mut slowest) = (false, Duration::ZERO);
        for _ in 0..10 {
            let step = Instant::now();
            file.write_all(b"# and so on\n").unwrap();
            early |= f.limit() != 1;
            slowest = slowest.max(step.elapsed());
        }
        file.write_all(rest.as_bytes()).unwrap();
        drop(file);
        let in_time = slowest < Duration::from_millis(50);
        let in_time = in_time && begun.elapsed() < Duration::from_millis(500);
        f.live("quiet", 2, Instant::now());
        wait("its line", || reloads() > before);
        assert!(!in_time || !early, "half of it came into force");
        in_time.then(|| assert_eq!(reloads(), before + 1, "{}", f.sidecar.log()))
    });
    assert!(f.sidecar.log().contains("1 added (other)"));
}

#[test]
fn bad_then_good() {
    let f = Following::start();
    f.replace(f.text("[[policy]]\nname = \"k\"\nconcurency = 9\n"));
    let log = f.refused("invalid");
    assert!(log.contains("throttle.toml:9"), "the line: {log}");
    assert!(log.contains("concurrency"), "the suggestion: {log}");
    f.replace("[server\n");
    wait("the next", || f.results("invalid") == 2.0);
    f.mended();
    let log = f.sidecar.log();
    assert_eq!(log.matches("not reloaded").count(), 2, "{log}");
    // What ran before is good too.
    f.replace("nonsense");
    wait("the third", || f.results("invalid") == 3.0);
    f.replace(f.text(&slots(7)));
    wait("good again", || f.sidecar.metric(FINE) == 1.0);
    wait("that is said", || f.sidecar.log().contains("good again"));
}

#[test]
fn an_empty_file_does_not_end_all_limits() {
    let f = Following::start();
    fs::write(&f.path, "").unwrap();
    assert!(f.refused("refused").contains("half written"));
    fs::write(&f.path, "\n  \n").unwrap();
    wait("blanks", || f.results("refused") == 2.0);
    f.mended();
    f.replace(f.text(""));
    wait("no limits", || {
        get(f.sidecar.data, "/ojs/v1/rate-limits/k").status == 404
    });
}

#[test]
fn what_cannot_be_read() {
    let f = Following::start();
    fs::remove_file(&f.path).unwrap();
    fs::create_dir(&f.path).unwrap();
    assert!(f.refused("unreadable").contains("a file *.toml"));
    fs::remove_dir(&f.path).unwrap();
    f.replace(b"\xff\xfe");
    wait("no text", || f.sidecar.log().contains("not UTF-8"));
    f.replace("#".repeat((1 << 20) + 1));
    f.sidecar.line("larger than 1 MiB");
    assert_eq!(f.limit(), 1);
    f.mended();
}

/// Makes a file one that whoever runs this cannot read: by its mode, and where that binds nobody (root), by a link
/// that leads nowhere. What is said of it.
fn shut(path: &Path) -> &'static str {
    fs::set_permissions(path, fs::Permissions::from_mode(0o000)).unwrap();
    if fs::File::open(path).is_err() {
        return "Permission denied";
    }
    fs::remove_file(path).unwrap();
    symlink("nowhere", path).unwrap();
    "No such file"
}

#[test]
fn what_may_not_be_read() {
    let f = Following::start();
    let why = shut(&f.path);
    let log = f.refused("unreadable");
    assert!(log.contains(why), "{log}");
    f.mended();
}

#[test]
fn what_is_fixed_is_refused_by_name_and_nothing_else_changes() {
    let f = Following::start();
    let fixed = "threads = 2\nmax_connections = 5\n";
    f.replace(config(f.backend.addr, fixed, &slots(5)));
    let log = f.refused("refused");
    assert!(
        log.contains("`server.threads`, `server.max_connections` cannot change while running"),
        "{log}"
    );
    // `check` finds nothing wrong with such a file.
    let state = get(f.sidecar.admin, "/throttle/v1/state").json();
    let cause = state["causes"][0]["why"].as_str().unwrap();
    assert!(
        cause.contains("`server.threads`, `server.max_connections` cannot"),
        "{state}"
    );
    f.mended();
}

/// At 3 a.m.: an error that is answered has a line while the file says so, and no connection ends for that.
#[test]
fn the_level_of_the_log_changes_while_it_runs() {
    let f = Following::start();
    let mut conn = Conn::open(f.sidecar.data);
    let mut refused = || {
        let reply = conn.ask("GET", "/ojs/v1/rate-limits/none", "").json();
        reply["error"]["request_id"].as_str().unwrap().to_owned()
    };
    let says = |id: &str| f.sidecar.log().contains(id);
    let before = refused();
    f.replace(config(f.backend.addr, "log_level = \"debug\"", &slots(1)));
    wait("debug", || f.results("applied") == 1.0);
    let there = refused();
    until("a line for it", || says(&there).then_some(()));
    assert!(f.sidecar.log().contains("fields: server.log_level"));
    f.replace(f.text(&slots(1)));
    wait("info", || f.results("applied") == 2.0);
    let after = refused();
    // A line that is later than theirs would be.
    f.sidecar.signal("HUP");
    until("asked", || says("looked at as asked").then_some(()));
    assert!(!says(&before) && !says(&after), "{}", f.sidecar.log());
    // The line about a reload is there whichever of the two levels would show it.
    let reloads = || f.sidecar.log().matches("config reloaded: ").count();
    f.replace(config(f.backend.addr, "log_level = \"warn\"", &slots(1)));
    wait("its line", || reloads() == 3);
    f.replace(config(f.backend.addr, "log_level = \"warn\"", &slots(2)));
    wait("warn", || f.results("applied") == 4.0);
    f.replace(f.text(&slots(2)));
    wait("its line", || reloads() == 4);
}

#[test]
fn a_hangup_asks() {
    let mut f = Following::start();
    f.sidecar.signal("HUP");
    wait("asked", || f.results("unchanged") == 1.0);
    f.sidecar.line("looked at as asked: it is what runs");
    // Written under a name that nobody watches, it is found within 2 s. Whoever asks does not mean to wait: some
    // may take as long, where the machine is busy, but without the signal all would.
    let elsewhere = tempfile::tempdir().unwrap();
    let link = elsewhere.path().join("same-file");
    fs::hard_link(&f.path, &link).unwrap();
    let took = (2..6).map(|slots| {
        fs::write(&link, f.text(&self::slots(slots))).unwrap();
        let begun = Instant::now();
        f.sidecar.signal("HUP");
        f.live("hung up", slots, begun)
    });
    let mut took: Vec<_> = took.collect();
    took.sort();
    assert!(took[1] < Duration::from_secs(1), "{took:?}");
    assert!(f.sidecar.runs());
    f.sidecar.signal("TERM");
    assert!(f.sidecar.ended().success());
}

#[test]
fn without_a_file_a_hangup_changes_nothing() {
    let backend = Backend::start(Lax::spec());
    let (dir, _) = file("");
    let mut command = program();
    let upstream = format!("http://{}", backend.addr);
    command.args([
        "run",
        "--listen",
        "127.0.0.1:0",
        "--admin-listen",
        "127.0.0.1:0",
    ]);
    command.args(["--upstream", &upstream]);
    let mut sidecar = Sidecar::spawn(command, dir);
    sidecar.signal("HUP");
    sidecar.line("SIGHUP changes nothing: there is no config file");
    sidecar.state("ready");
    assert!(sidecar.runs());
    assert!(!sidecar.metrics().contains("ojs_throttle_config_"));
}

/// Slots that are out count on, connections stay open, what is held follows the limits of now, and a
/// lower limit is reached as jobs end.
#[test]
fn usage_outlives_a_reload() {
    let f = Following::start();
    let data = f.sidecar.data;
    let mut conn = Conn::open(data);
    let mut ask = |count: usize| {
        let body = json!({"queues": ["q"], "count": count, "worker_id": "w"}).to_string();
        conn.ask("POST", "/ojs/v1/workers/fetch", &body).jobs()
    };
    f.replace(f.text(&slots(3)));
    f.live("raised", 3, Instant::now());
    for _ in 0..6 {
        enqueue(data, "q", json!({}));
    }
    let out = ask(6);
    assert_eq!(out.len(), 3);
    f.replace(f.text(&slots(2)));
    f.live("lowered", 2, Instant::now());
    let usage = get(data, "/ojs/v1/rate-limits/k").json();
    assert_eq!(usage["concurrency"]["active"], 3, "{usage}");
    assert!(ask(6).is_empty());
    assert_eq!(ack(data, &out[0], "w").status, 200);
    assert!(ask(6).is_empty(), "two are out, and two may be");
    assert_eq!(ack(data, &out[1], "w").status, 200);
    let next = ask(6);
    assert_eq!(next.len(), 1);
    // A key by type: these jobs must be looked at, so they are held.
    let keyed =
        "[[policy]]\nname = \"k\"\nkey = \"{type}\"\nmatch = { queue = \"q\" }\nconcurrency = 1\n";
    f.replace(f.text(keyed));
    wait("keyed", || {
        f.sidecar.log().matches("config reloaded").count() == 3
    });
    let first = ask(6);
    assert_eq!(first.len(), 1, "the key is new: nothing of it is out");
    assert!(ask(6).is_empty());
    wait("held", || f.sidecar.metric("ojs_throttle_held_jobs") > 0.0);
    // Without limits everything goes.
    f.replace(f.text(""));
    wait("none", || {
        f.sidecar.log().matches("config reloaded").count() == 4
    });
    let last = ask(6);
    assert_eq!(last.len(), 1);
    let jobs = [&out[2..], &next, &first, &last].concat();
    for job in jobs {
        assert_eq!(ack(data, &job, "w").status, 200);
    }
    assert_eq!(f.sidecar.metric("ojs_throttle_slots"), 0.0);
    assert_eq!(f.backend.total(EventKind::Acked), 6);
}

#[test]
fn an_event_stream_stays_open() {
    let f = Following::start();
    let data = f.sidecar.data;
    // A key by type: these jobs must be looked at, so each is told of.
    let keyed = |slots: u32| {
        let by_type = self::slots(slots) + "key = \"{type}\"\n";
        f.replace(f.text(&by_type));
        wait("keyed", || f.results("applied") == f64::from(slots));
    };
    keyed(1);
    let (mut stream, _) = Subscriber::open(data, "?types=rate_limit.*", "");
    let jobs: Vec<_> = (0..3).map(|_| enqueue(data, "q", json!({}))).collect();
    assert_eq!(fetch(data, "q", 3, "w").jobs(), jobs[..1]);
    let refused = [0; 2].map(|_| stream.event("rate_limit.exceeded").1["subject"].clone());
    assert!(jobs[1..].iter().all(|job| refused.contains(&json!(job))));
    for (slots, next) in (2..).zip(&jobs[1..]) {
        keyed(slots);
        assert_eq!(fetch(data, "q", 3, "w").jobs(), std::slice::from_ref(next));
        let (_, told) = stream.event("rate_limit.released");
        assert_eq!(told["subject"], **next);
    }
}

#[test]
fn a_waiting_fetch_is_under_the_limits_of_now() {
    let f = Following::start();
    let patient = "[fetch]\nmax_wait = \"20s\"\n";
    f.replace(f.text(&format!("{patient}{}", slots(1))));
    wait("a long wait", || f.results("applied") == 1.0);
    let data = f.sidecar.data;
    polls(data, "q", "w2");
    enqueue(data, "q", json!({}));
    enqueue(data, "q", json!({}));
    assert_eq!(fetch(data, "q", 2, "w").jobs().len(), 1);
    let begun = Instant::now();
    let waiting = std::thread::spawn(move || fetch(data, "q", 1, "w2").jobs());
    // Long enough for it to stand in line; if it does not yet, the test says less, not wrong.
    wait("in line", || begun.elapsed().as_millis() > 300);
    f.replace(f.text(&format!("{patient}{}", slots(2))));
    assert_eq!(waiting.join().unwrap().len(), 1);
    let took = begun.elapsed().as_secs();
    assert!(took < 10, "it waited {took} s for what it might have had");
}

#[test]
fn dev_reloads_too() {
    let text = |slots: u32| {
        format!(
            "[server]\nupstream = \"http://127.0.0.1:9\"\nadmin_listen = \"127.0.0.1:0\"\n{}",
            self::slots(slots)
        )
    };
    let (dir, path) = file(text(1));
    let mut command = program();
    command.args([
        "dev",
        "--listen",
        "127.0.0.1:0",
        "--backend-listen",
        "127.0.0.1:0",
    ]);
    command.arg("--config").arg(&path);
    let sidecar = Sidecar::spawn(command, dir);
    fs::write(&path, text(2)).unwrap();
    until("live", || {
        let shown = get(sidecar.data, "/ojs/v1/rate-limits/k").json();
        (shown["concurrency"]["limit"] == 2).then_some(())
    });
}

/// What is open in the process: a watch that leaked would show here.
fn open_files(sidecar: &Sidecar) -> usize {
    fs::read_dir(
        Path::new("/proc")
            .join(sidecar.pid().to_string())
            .join("fd"),
    )
    .map_or(0, Iterator::count)
}

/// Stores, takes and settles jobs until told to stop; how many, and the longest that a request took.
/// Whatever is not answered as it should fails the test.
fn work(data: SocketAddr, stop: &AtomicBool) -> (usize, Duration) {
    let mut conn = Conn::open(data);
    let (mut stored, mut acked, mut longest) = (0, 0, Duration::ZERO);
    let job = json!({"type": "t", "args": [], "options": {"queue": "q"}}).to_string();
    let asked = json!({"queues": ["q"], "count": 3, "worker_id": "w"}).to_string();
    while !stop.load(Ordering::Relaxed) || acked < stored {
        let mut ask = |path: &str, body: &str| {
            let begun = Instant::now();
            let reply = conn.ask("POST", path, body);
            assert!(matches!(reply.status, 200 | 201), "{path}: {reply:?}");
            // A FETCH may be kept open on purpose.
            if !path.ends_with("fetch") {
                longest = longest.max(begun.elapsed());
            }
            reply
        };
        if !stop.load(Ordering::Relaxed) {
            ask("/ojs/v1/jobs", &job);
            stored += 1;
        }
        let jobs = ask("/ojs/v1/workers/fetch", &asked).jobs();
        for job in &jobs {
            let body = json!({"job_id": job, "worker_id": "w", "result": {}});
            ask("/ojs/v1/workers/ack", &body.to_string());
            acked += 1;
        }
        if stop.load(Ordering::Relaxed) && jobs.is_empty() {
            break;
        }
    }
    (stored, longest)
}

/// Reloads under load lose no request, change no count and leak nothing.
#[test]
fn hundreds_of_reloads_under_load() {
    const RELOADS: u32 = 200;
    let f = Following::start();
    let data = f.sidecar.data;
    let stop = AtomicBool::new(false);
    let reload = |nth: u32| {
        f.replace(f.text(&slots(100 + nth)));
        f.sidecar.signal("HUP");
        wait("in force", || f.limit() == 100 + nth);
    };
    let (stored, longest) = std::thread::scope(|scope| {
        let _ends = Ends(&stop);
        let workers: Vec<_> = (0..2).map(|_| scope.spawn(|| work(data, &stop))).collect();
        // What it needs for this load is there before it is measured.
        (0..100).for_each(reload);
        let seen = || {
            let of = |name| f.sidecar.status(name);
            (open_files(&f.sidecar), of("Threads"), of("RssAnon"))
        };
        let before = seen();
        let begun = Instant::now();
        (100..100 + RELOADS).for_each(reload);
        let took = begun.elapsed();
        // Connections of this test may be about to close.
        let after = until("as many files and threads as before", || {
            let after = seen();
            (after.0 <= before.0 + 2 && after.1 <= before.1 + 2).then_some(after)
        });
        println!(
            "{RELOADS} reloads took {took:?}; files, threads, KiB: {before:?}, then {after:?}"
        );
        // The load itself leaves records of its own, of a bounded number; a set of policies that stayed for
        // each reload would be more.
        assert!(after.2 <= before.2 + 8_192, "memory: {before:?} {after:?}");
        stop.store(true, Ordering::Relaxed);
        let each = workers.into_iter().map(|worker| worker.join().unwrap());
        each.fold((0, Duration::ZERO), |all, (stored, longest)| {
            (all.0 + stored, all.1.max(longest))
        })
    });
    while let [job, ..] = fetch(data, "q", 1, "w").jobs().as_slice() {
        assert_eq!(ack(data, job, "w").status, 200);
    }
    println!("{stored} jobs meanwhile; the longest request {longest:?}");
    assert_eq!(f.backend.total(EventKind::Stored), stored);
    assert_eq!(
        f.backend.total(EventKind::Acked),
        stored,
        "none lost, none twice"
    );
    assert_eq!(f.backend.total(EventKind::Expired), 0);
    let starts = f
        .sidecar
        .metric("ojs_throttle_starts_total{policy=\"k\",kind=\"job\"}");
    assert_eq!(starts, stored as f64, "every start was counted, once");
    assert_eq!(f.sidecar.metric("ojs_throttle_slots"), 0.0);
    assert_eq!(f.results("applied"), f64::from(RELOADS + 100));
    for bad in ["invalid", "refused", "unreadable"] {
        assert_eq!(f.results(bad), 0.0, "{bad}");
    }
}

/// Its room grows with it: else such a body is refused for ever, as if it were for now.
#[test]
fn a_larger_body_is_taken_after_a_reload() {
    let backend = Backend::start(Lax::spec());
    let with = |most| {
        config(
            backend.addr,
            &format!("max_bodies = \"1MiB\"\nmax_body = \"{most}\""),
            &slots(1),
        )
    };
    let (dir, path) = file(with("1MiB"));
    let (next, addr) = (with("3MiB"), backend.addr);
    let following = Following::run(backend, dir, path);
    let job = json!({"type": "t", "args": ["x".repeat(700_000)], "options": {"queue": "q"}});
    let batch = json!({"jobs": [job, job, job]}).to_string();
    let data = following.sidecar.data;
    let send = || ask(data, "POST", "/ojs/v1/jobs/batch", &batch).status;
    assert_eq!(send(), 413, "{addr}");
    following.replace(next);
    // The backend's own word on so much.
    let other = until("it is in force", || {
        Some(send()).filter(|status| *status != 413)
    });
    assert_eq!(other, 400);
}
