//! Several sidecars on one store, and a queue with subqueues; judged from when workers got jobs and from the backend's
//! records.

use std::collections::BTreeSet;

use super::http::poll;
use super::on_redis::fleet::know_each_other;
use ojs_throttle::policy::subqueue::Spread;

use super::prelude::*;
use crate::sidecar::process::Ends;

/// So many slots has each tenant.
const SLOTS: usize = 2;
const POLL: Duration = Duration::from_millis(100);

fn text(upstream: SocketAddr, url: &str, more: &str) -> String {
    let rest = format!(
        "[[policy]]\nname = \"crm\"\nmatch = {{ queue = \"q\" }}\nkey = \"crm:{{meta.tenant_id}}\"\n\
         concurrency = {SLOTS}\n{more}\n[store]\nurl = \"{url}\"\ntimeout = \"2s\"\n"
    );
    config(upstream, "", &rest)
}

/// What the file says of the queue.
fn splits(on: bool) -> &'static str {
    match on {
        true => "[[queue]]\nname = \"q\"\nsubqueues = true\n",
        false => "",
    }
}

/// Sidecars that follow files, and the files.
struct Followers {
    sidecars: Vec<Sidecar>,
    paths: Vec<PathBuf>,
}

impl Followers {
    fn start(count: usize, upstream: SocketAddr, url: &str, on: bool) -> Followers {
        let files: Vec<_> = (0..count)
            .map(|_| file(text(upstream, url, splits(on))))
            .collect();
        let paths = files.iter().map(|(_, path)| path.clone()).collect();
        let run = |(dir, path)| Sidecar::spawn(run_at(path), dir);
        let sidecars: Vec<Sidecar> = files.into_iter().map(run).collect();
        know_each_other(&sidecars, count as f64 - 1.0);
        Followers { sidecars, paths }
    }

    /// Gives one of them another file and waits until it follows that.
    fn reload(&self, nth: usize, text: &str) {
        let followed = || {
            let of = "ojs_throttle_config_reloads_total{result=\"applied\"}";
            self.sidecars[nth].metric(of)
        };
        let before = followed();
        let beside = self.paths[nth].with_extension("new");
        std::fs::write(&beside, text).unwrap();
        std::fs::rename(&beside, &self.paths[nth]).unwrap();
        wait("it follows the file", || followed() > before);
    }
}

/// Stores a job of a tenant; says its id.
fn store(to: SocketAddr, tenant: &str, options: Value) -> String {
    let mut all = json!({"queue": "q"});
    let members = options.as_object().unwrap().clone();
    all.as_object_mut().unwrap().extend(members);
    let job = json!({"type": "t", "args": [], "meta": {"tenant_id": tenant}, "options": all});
    let reply = ask(to, "POST", "/ojs/v1/jobs", &job.to_string());
    assert_eq!(reply.status, 201, "{reply:?}");
    reply.json()["job"]["id"].as_str().unwrap().to_owned()
}

/// When jobs were stored and when workers got them.
#[derive(Default)]
struct Book {
    stored: Mutex<BTreeMap<String, Instant>>,
    got: Mutex<BTreeMap<String, Instant>>,
}

impl Book {
    fn store(&self, to: SocketAddr, tenant: &str, options: Value) -> String {
        let job = store(to, tenant, options);
        self.stored
            .lock()
            .unwrap()
            .insert(job.clone(), Instant::now());
        job
    }

    /// Polls, runs and acknowledges until it is told to stop.
    fn work(&self, to: SocketAddr, name: &str, stop: &AtomicBool) {
        while !stop.load(Ordering::SeqCst) {
            let jobs = fetch(to, "q", 4, name).jobs();
            if jobs.is_empty() {
                std::thread::sleep(POLL);
            }
            for job in jobs {
                let before = self.got.lock().unwrap().insert(job.clone(), Instant::now());
                assert!(before.is_none(), "{job} came twice");
                assert_eq!(ack(to, &job, name).status, 200);
            }
        }
    }

    /// How many jobs wait that are noted as stored.
    fn waiting(&self) -> usize {
        let (stored, got) = (self.stored.lock().unwrap(), self.got.lock().unwrap());
        stored.keys().filter(|job| !got.contains_key(*job)).count()
    }

    fn has(&self, job: &str) -> bool {
        self.got.lock().unwrap().contains_key(job)
    }

    /// Whether all jobs are done that are noted as stored. A worker may have a job before that is noted.
    fn is_empty(&self) -> bool {
        self.waiting() == 0
    }

    /// How long jobs waited that are done, the longest.
    fn longest(&self) -> Duration {
        let (stored, got) = (self.stored.lock().unwrap(), self.got.lock().unwrap());
        let waited = stored
            .iter()
            .filter_map(|(job, at)| Some(got.get(job)?.saturating_duration_since(*at)));
        waited.max().unwrap()
    }
}

/// In how many of the backend's queues jobs wait that are subqueues of `q`.
fn waiting_apart(backend: &Backend) -> u64 {
    let of = |number: u8| {
        let path = format!("/ojs/v1/queues/q-ojst-{number:02x}/stats");
        let stats = get(backend.addr, &path);
        let available = stats.body.split_once("\"available\":").map(|(_, rest)| {
            let digits = rest
                .trim_start()
                .split(|c: char| !c.is_ascii_digit())
                .next();
            digits.unwrap().parse::<u64>().unwrap()
        });
        available.unwrap_or(0)
    };
    (0..=u8::MAX).map(of).sum()
}

/// The setting comes and goes at one sidecar after the other, under load. A tenant whose slots are taken has a backlog
/// in subqueues, and a job of another comes due after the setting is gone.
pub fn the_setting_comes_and_goes(url: &str) {
    let backend = Backend::start(Lax::redis());
    let fleet = Followers::start(3, backend.addr, url, false);
    let to: Vec<SocketAddr> = fleet.sidecars.iter().map(|sidecar| sidecar.data).collect();
    let (book, stop) = (Book::default(), AtomicBool::new(false));
    let stopped = AtomicBool::new(false);
    let lasts = json!({"visibility_timeout_ms": 600_000});
    for _ in 0..SLOTS {
        store(to[0], "shut", lasts.clone());
    }
    assert_eq!(fetch(to[0], "q", SLOTS, "long").jobs().len(), SLOTS);
    std::thread::scope(|threads| {
        let _ends = Ends(&stop);
        let (book, stop, stopped) = (&book, &stop, &stopped);
        for (nth, to) in to.iter().copied().enumerate() {
            threads.spawn(move || book.work(to, &format!("w{nth}"), stop));
            threads.spawn(move || {
                for number in 0.. {
                    if stop.load(Ordering::SeqCst) || stopped.load(Ordering::SeqCst) {
                        break;
                    }
                    // On a busy machine producers are faster than workers. How long a job waits would then say how
                    // many are before it.
                    if book.waiting() < 40 {
                        book.store(to, &format!("t{}", number % 20), json!({}));
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
        }
        let turn = |on: bool| {
            for nth in 0..3 {
                let done = book.got.lock().unwrap().len();
                fleet.reload(nth, &text(backend.addr, url, splits(on)));
                wait("jobs are done", || {
                    book.got.lock().unwrap().len() >= done + 40
                });
            }
        };
        turn(true);
        let backlog = (0..100).map(|nth| store(to[nth % 3], "shut", json!({})));
        let backlog: Vec<String> = backlog.collect();
        // All but the heads wait in the backend.
        assert!(waiting_apart(&backend) > 60);
        let at = std::time::SystemTime::now() + Duration::from_secs(20);
        let at = at.duration_since(std::time::UNIX_EPOCH).unwrap();
        let at = ojs_throttle::duration::rfc3339(at.as_micros() as u64);
        let late = store(
            to[0],
            "late",
            json!({"scheduled_at": at, "delay_until": at}),
        );
        turn(false);
        assert!(!book.has(&late), "it came due before the setting went");
        wait("what comes due where nobody writes any more", || {
            book.has(&late)
        });
        turn(true);
        turn(false);
        stopped.store(true, Ordering::SeqCst);
        wait("all jobs are done", || book.is_empty());
        assert!(backlog.iter().all(|job| !book.has(job)), "no slot is free");
    });
    let longest = book.longest();
    eprintln!("the longest that a job waited: {longest:?}");
    assert!(longest < Duration::from_secs(10), "{longest:?}");
    assert_eq!(backend.total(EventKind::Expired), 0);
}

/// A job comes to a subqueue that was silent, through one sidecar, and a worker polls another.
pub fn a_job_is_heard_of(url: &str) {
    let backend = Backend::start(Lax::redis());
    let fleet = Followers::start(2, backend.addr, url, true);
    let [here, there] = [0, 1].map(|nth| fleet.sidecars[nth].data);
    // The mark stands, and the subqueues are known to be silent: each was asked twice.
    store(here, "first", json!({}));
    until("the first", || {
        let jobs = fetch(there, "q", 1, "w").jobs();
        let job = jobs.first()?;
        assert_eq!(ack(there, job, "w").status, 200);
        Some(())
    });
    let mut waits = Vec::new();
    for nth in 0..10 {
        let tenant = format!("t{nth}");
        let (job, at) = (store(here, &tenant, json!({})), Instant::now());
        until("a worker elsewhere has it", || {
            std::thread::sleep(POLL);
            let jobs = fetch(there, "q", 1, "w").jobs();
            let got = jobs.first()?;
            assert_eq!((got, ack(there, got, "w").status), (&job, 200));
            Some(())
        });
        waits.push(at.elapsed());
    }
    eprintln!("from a sidecar to a worker at another: {waits:?}");
    waits.sort();
    // The machine may be busy once or twice.
    assert!(waits[7] < 5 * POLL, "{waits:?}");
}

/// A sidecar is killed with its worker, with jobs out and heads held; its sibling's worker does all of them.
pub fn one_is_killed_with_its_worker(url: &str) {
    const LASTS: Duration = Duration::from_secs(3);
    const TENANTS: usize = 30;
    let backend = Backend::start(Lax::redis());
    let mut fleet = Followers::start(2, backend.addr, url, true);
    let lasts = json!({"visibility_timeout_ms": LASTS.as_millis() as u64});
    let jobs: BTreeSet<String> = (0..5 * TENANTS)
        .map(|nth| {
            store(
                fleet.sidecars[0].data,
                &format!("t{}", nth % TENANTS),
                lasts.clone(),
            )
        })
        .collect();
    let first = fleet.sidecars[0].data;
    let mut out = 0;
    wait("jobs are out, and heads are held", || {
        let body = json!({"queues": ["q"], "count": 20, "worker_id": "w1",
            "visibility_timeout_ms": LASTS.as_millis() as u64});
        let got = ask(first, "POST", "/ojs/v1/workers/fetch", &body.to_string()).jobs();
        out += got.len();
        out >= SLOTS * TENANTS / 2 && fleet.sidecars[0].metric("ojs_throttle_held_jobs") >= 3.0
    });
    let held = fleet.sidecars[0].metric("ojs_throttle_held_jobs");
    fleet.sidecars[0].kill();
    let (second, killed) = (fleet.sidecars[1].data, Instant::now());
    let mut done = BTreeSet::new();
    until("all jobs are done", || {
        for job in fetch(second, "q", 20, "w2").jobs() {
            assert_eq!(ack(second, &job, "w2").status, 200);
            assert!(done.insert(job), "a job came twice");
        }
        (done == jobs).then_some(())
    });
    let took = killed.elapsed();
    eprintln!("{out} out and {held} held: all done {took:?} after the kill");
    assert!(took < LASTS + Duration::from_secs(10), "{took:?}");
    let once = |job: &String| backend.count(EventKind::Acked, job) == 1;
    assert!(jobs.iter().all(once));
    assert_eq!(backend.total(EventKind::Discarded), 0);
}

/// The files of one sidecar after the other give a queue 256 subqueues, 1,024 and a salt, 512, 256 and none. What lies in
/// any of them is found by the last within 13 s, and nobody shows the salt.
pub fn numbers_and_salts_come_and_go(url: &str) {
    const TENANTS: usize = 40;
    const SALT: &str = "nobody-knows-this-salt";
    let backend = Backend::start(Lax::redis());
    let queue = |says: &str| format!("[[queue]]\nname = \"q\"\nsubqueues = {says}\n");
    let salted = format!("1024\nsubqueues_salt = \"{SALT}\"");
    let files = ["true", &salted, "512", "true", "false"];
    let mut jobs = BTreeSet::new();
    for (nth, says) in files.into_iter().enumerate() {
        let mut sidecar = Sidecar::run(&text(backend.addr, url, &queue(says)));
        // Else it would wait until it knows that nobody writes otherwise.
        sidecar.shows("ojs_throttle_siblings", 0.0);
        if nth > 0 {
            wait("it knows what lies in any of them", || {
                read_by(&sidecar) >= if nth > 1 { 1_024 } else { 256 }
            });
        }
        jobs.extend((0..TENANTS).map(|of| store(sidecar.data, &format!("t{of}"), json!({}))));
        let pages = [
            "/throttle/v1/settings",
            "/throttle/v1/subqueues",
            "/metrics",
        ];
        let shown = pages.map(|path| get(sidecar.admin, path).body).concat();
        let written = nth < 4;
        assert_eq!(
            shown.contains("\"written\":true"),
            written,
            "{says}: {shown}"
        );
        sidecar.signal("TERM");
        sidecar.ended();
        assert!(!(shown + &sidecar.log()).contains(SALT));
    }
    let events = backend.ledger().into_iter();
    let names = events.filter(|event| event.kind == EventKind::Stored);
    let names: Vec<String> = names.map(|event| event.queue.to_string()).collect();
    let of_length = |length: usize| names.iter().filter(|name| name.len() == length).count();
    let [base, two, three] = ["q", "q-ojst-00", "q-ojst-100"].map(|name| of_length(name.len()));
    assert_eq!(
        (base, base + two + three),
        (TENANTS, 5 * TENANTS),
        "{names:?}"
    );
    assert!(
        two > 2 * TENANTS && three > TENANTS / 2,
        "{two} and {three}"
    );
    let sidecar = Sidecar::run(&text(backend.addr, url, ""));
    let (begun, mut done) = (Instant::now(), BTreeSet::new());
    wait("all jobs are done", || {
        for job in fetch(sidecar.data, "q", 20, "w").jobs() {
            assert_eq!(ack(sidecar.data, &job, "w").status, 200);
            assert!(done.insert(job), "a job came twice");
        }
        done == jobs
    });
    let took = begun.elapsed();
    eprintln!("all were found {took:?} after the start");
    // 13 s, and what a store costs that is slow beside all other tests.
    assert!(took < Duration::from_secs(26), "{took:?}");
}

/// A reload that sends later jobs elsewhere says so in the log, and none else does.
#[test]
fn a_reload_that_moves_later_jobs_is_told() {
    let backend = Backend::start(Lax::redis());
    let fleet = Followers::start(1, backend.addr, "memory:", true);
    let said = |words: &str| fleet.sidecars[0].log().matches(words).count();
    let other_number = splits(true).replace("true", "512");
    let files = [
        (splits(true).to_owned() + "max_depth = 9\n", 0),
        (other_number.clone(), 1),
        (other_number + "subqueues_salt = \"0123456789abcdef\"\n", 2),
    ];
    for (nth, (more, times)) in files.iter().enumerate() {
        fleet.reload(0, &text(backend.addr, "memory:", more));
        // It stands before this line, and lines are written a moment later.
        wait("the line", || said("config reloaded") == nth + 1);
        assert_eq!(said("id=subqueues_moved"), *times);
    }
}

/// How many subqueues of `q` a sidecar reads.
fn read_by(sidecar: &Sidecar) -> u64 {
    let listed: Value = get(sidecar.admin, "/throttle/v1/subqueues").json();
    listed["queues"][0]["subqueues"].as_u64().unwrap_or(0)
}

#[test]
fn numbers_and_salts_come_and_go_in_memory() {
    numbers_and_salts_come_and_go("memory:");
}

/// The reading of subqueues ends by hand: not while the file writes them, and where jobs wait only by force.
#[test]
fn the_reading_ends_by_hand() {
    let (backend, dir) = (Backend::start(Lax::redis()), tempfile::tempdir().unwrap());
    let url = format!("sqlite:{}", dir.path().join("limits.db").display());
    let run = |on| {
        let text = text(backend.addr, &url, splits(on));
        let token = "[server]\ncontrol_token = \"s3cret\"";
        Sidecar::run(&text.replacen("[server]", token, 1))
    };
    let told = |sidecar: &Sidecar, line: &str| {
        let mut command = program();
        command.env("OJS_THROTTLE_TOKEN", "s3cret");
        command.args(["subqueues", "--admin", &format!("http://{}", sidecar.admin)]);
        command.args(line.split_whitespace());
        let ran = ran(&mut command);
        (ran.status, ran.out + &ran.err)
    };
    let all_of = |sidecar: &Sidecar| {
        let jobs = fetch(sidecar.data, "q", 9, "w").jobs();
        for job in &jobs {
            assert_eq!(ack(sidecar.data, job, "w").status, 200);
        }
        jobs.len()
    };
    let on = run(true);
    assert_eq!(
        told(&on, "--all").1,
        "q: to be written, and not marked in the store yet; 0 jobs wait in 0 of 256 subqueues, 0 are held; 0 shared, \
         0 out of reach\n"
    );
    for _ in 0..3 {
        store(on.data, "acme", json!({}));
    }
    let begins = "q: written and read; 3 jobs wait in 1 of 256 subqueues, 0 are held; 0 shared, 0 out of reach\n";
    let (status, said) = told(&on, "--all");
    assert!(status == Some(0) && said.starts_with(begins), "{said}");
    let (status, said) = told(&on, "forget q --force");
    assert!(
        status == Some(1) && said.contains("take `subqueues = true` out"),
        "{said}"
    );
    drop(on);

    let off = run(false);
    let begins =
        "q: read, and not written by this sidecar; 3 jobs wait in 1 of 256 subqueues, 0 are held; ";
    let (status, said) = told(&off, "--all");
    assert!(status == Some(0) && said.starts_with(begins), "{said}");
    let (status, said) = told(&off, "forget q");
    assert!(status == Some(1) && said.contains("3 jobs wait"), "{said}");
    assert_eq!(told(&off, "forget other").0, Some(1));
    assert_eq!(told(&off, "forget q --force").0, Some(0));
    let begins = "no queue has subqueues\n! 3 jobs wait in \"q-ojst-";
    let (status, said) = told(&off, "");
    assert!(status == Some(0) && said.starts_with(begins), "{said}");
    assert_eq!(all_of(&off), 0, "nobody reads them");
    drop(off);

    let on = run(true);
    store(on.data, "acme", json!({}));
    let mut done = 0;
    wait("all jobs are done", || {
        done += all_of(&on);
        done == 4
    });
    drop(on);
    let off = run(false);
    assert_eq!(told(&off, "forget q").0, Some(0));
    assert_eq!(
        told(&off, ""),
        (Some(0), "no queue has subqueues\n".to_owned())
    );
}

/// What the command lists at each of two sidecars is what the backend has: a tenant out of reach behind another one's
/// jobs, with the key that is shut in front, and a tenant by itself.
#[test]
fn what_lies_where_is_listed_as_the_backend_has_it() {
    let (backend, dir) = (Backend::start(Lax::redis()), tempfile::tempdir().unwrap());
    let url = format!("sqlite:{}", dir.path().join("limits.db").display());
    let fleet = Followers::start(2, backend.addr, &url, true);
    let to = fleet.sidecars[0].data;
    let place = |tenant: &str| {
        Spread::default()
            .flow(&format!("crm:{tenant}"), None)
            .subqueue
    };
    let mut names = (0..).map(|nth| format!("n{nth}"));
    let other = names.find(|name| place(name) == place("evil")).unwrap();
    let lasts = json!({"visibility_timeout_ms": 600_000});
    for _ in 0..SLOTS {
        store(to, "evil", lasts.clone());
        store(to, "alone", lasts.clone());
    }
    let mut out = 0;
    wait("their slots are taken", || {
        out += fetch(to, "q", 1, "long").jobs().len();
        out == 2 * SLOTS
    });
    // So many through this one alone that it never looks past them.
    for nth in 0..60 {
        store(fleet.sidecars[nth / 50].data, "evil", lasts.clone());
    }
    for _ in 0..9 {
        store(to, "alone", lasts.clone());
    }
    store(to, &other, lasts.clone());
    let listed = |nth: usize, option: &str| {
        let mut command = program();
        command.args([
            "subqueues",
            "--admin",
            &format!("http://{}", fleet.sidecars[nth].admin),
        ]);
        command.args(option.split_whitespace());
        let ran = ran(&mut command);
        assert_eq!(ran.status, Some(0), "{}", ran.err);
        ran.out
    };
    let row = |listed: &str, name: &str| {
        let all: Value = serde_json::from_str(listed).unwrap();
        let rows = all["queues"][0]["rows"].as_array().unwrap().iter();
        let mut found = rows.filter(|row| row["name"] == name).cloned();
        found.next().unwrap_or_default()
    };
    let [evil, alone] = ["evil", "alone"].map(|tenant| place(tenant).name_in("q"));
    let available = |name: &str| {
        let stats = get(backend.addr, &format!("/ojs/v1/queues/{name}/stats")).json();
        stats["queue"]["available"].clone()
    };
    wait("the sidecar that workers ask tells all of it", || {
        for _ in 0..4 {
            assert!(fetch(to, "q", 1, "w").jobs().is_empty());
        }
        let text = listed(0, "--json");
        let [of_evil, of_alone] = [&evil, &alone].map(|name| row(&text, name));
        let told = json!([of_evil["shared"], of_evil["out_of_reach"], of_evil["shut"]]);
        told == json!([true, true, ["crm:evil"]])
            && json!([of_alone["shared"], of_alone["out_of_reach"]]) == json!([false, false])
            && of_evil["waiting"] == available(&evil)
            && of_alone["waiting"] == available(&alone)
    });
    wait("the other one tells what waits", || {
        let text = listed(1, "--json --all");
        [&evil, &alone].map(|name| row(&text, name)["waiting"].clone())
            == [&evil, &alone].map(|name| available(name))
    });
    let text = listed(0, "");
    let of_evil = text.lines().find(|line| line.starts_with(&evil)).unwrap();
    for words in ["true    true", "crm:evil"] {
        assert!(of_evil.contains(words), "{words}: {text}");
    }
    assert!(text.contains("1 shared, 1 out of reach"), "{text}");
    assert!(text.contains("per_key"), "{text}");
}

/// Three groups of weights 3, 1 and 1 share a window, and two what jobs of 10 and of 1 cost, at one sidecar and at three.
/// Each has more jobs than may start. Judged by which the backend was told are done.
pub fn a_window_is_shared_by_weight(url: &str, sidecars: usize) {
    let [limit, period, seconds]: [u32; 3] = match std::env::var_os("WHOLE") {
        Some(_) => [600, 10, 40],
        None => [120, 2, 10],
    };
    let groups = [("a", 3, 1), ("b", 1, 1), ("c", 1, 10)];
    let backend = Backend::start(Lax::redis());
    let rest = format!(
        "[[policy]]\nname = \"v\"\nmatch = {{ queue = \"*\" }}\nkey = \"v:{{meta.vendor}}\"\n\
         rate = {{ limit = {limit}, period = \"{period}s\" }}\n\
         cost = {{ from = \"meta.tokens\", max = {limit} }}\n\
         fair = {{ by = \"{{meta.group}}\", weights = {{ a = 3 }} }}\n{}\n\
         [store]\nurl = \"{url}\"\ntimeout = \"2s\"\n",
        splits(true)
    );
    let run = |_| Sidecar::run(&config(backend.addr, "", &rest));
    let fleet: Vec<Sidecar> = (0..sidecars).map(run).collect();
    know_each_other(&fleet, sidecars as f64 - 1.0);
    let mut jobs = BTreeMap::new();
    let most = u64::from(limit * (seconds / period + 1));
    for vendor in ["weights", "costs"] {
        for (group, weight, cost) in groups {
            let (cost, shares) = match vendor {
                "costs" => (cost, group != "a"),
                _ => (1, true),
            };
            let n = if shares {
                most * weight / 3 / cost + most / 5
            } else {
                0
            };
            for nth in 0..n {
                let meta = json!({"vendor": vendor, "group": group, "tokens": cost});
                let job = json!({"type": "t", "args": [], "meta": meta, "options": {"queue": "q"}});
                let to = fleet[nth as usize % sidecars].data;
                let reply = ask(to, "POST", "/ojs/v1/jobs", &job.to_string());
                let id = reply.json()["job"]["id"].as_str().unwrap().to_owned();
                jobs.insert(id, (vendor, group, cost));
            }
        }
    }
    let (stop, begun) = (AtomicBool::new(false), Instant::now());
    std::thread::scope(|threads| {
        let _ends = Ends(&stop);
        for (nth, sidecar) in fleet.iter().enumerate() {
            for worker in 0..3 {
                let (stop, to, name) = (&stop, sidecar.data, format!("w{nth}-{worker}"));
                threads.spawn(move || {
                    while !stop.load(Ordering::SeqCst) {
                        let jobs = poll(to, "q", 20, &name);
                        jobs.iter().for_each(|job| drop(ack(to, job, &name)));
                    }
                });
            }
        }
        std::thread::sleep(Duration::from_secs(seconds.into()).saturating_sub(begun.elapsed()));
    });
    let mut got = BTreeMap::new();
    for event in backend.ledger() {
        if let Some((vendor, group, cost)) = jobs
            .get(&*event.job)
            .filter(|_| event.kind == EventKind::Acked)
        {
            *got.entry((*vendor, *group)).or_insert(0) += cost;
        }
    }
    let of = |vendor: &str| {
        let of = got.iter().filter(|((of, _), _)| *of == vendor);
        of.map(|(_, got)| *got).sum::<u64>() as f64
    };
    let part = |vendor, group| got.get(&(vendor, group)).copied().unwrap_or(0) as f64 / of(vendor);
    let used = |vendor| of(vendor) / f64::from(limit * seconds / period);
    let (heavy, cheap) = (part("weights", "a"), part("costs", "b"));
    eprintln!(
        "{got:?}: {heavy:.3} and {cheap:.3}, {:.3} and {:.3} used",
        used("weights"),
        used("costs")
    );
    // In a short run one job of 10 more or less in each window is a part of it that is seen.
    let [weights, costs] = match std::env::var_os("WHOLE") {
        Some(_) => [0.03, 0.03],
        None => [0.05, 0.1],
    };
    assert!((heavy - 0.6).abs() <= weights, "{heavy}: {got:?}");
    assert!((cheap - 0.5).abs() <= costs, "{cheap}: {got:?}");
}
