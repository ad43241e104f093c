//! Several sidecars on one store, and a queue with subqueues; judged from when workers got jobs and from the backend's
//! records.

use std::collections::BTreeSet;

use super::on_redis::fleet::know_each_other;
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
        let run = |(dir, path)| {
            let mut command = program();
            command.arg("run").arg("--config").arg(path);
            Sidecar::spawn(command, dir)
        };
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
        let at = std::time::SystemTime::now() + Duration::from_secs(8);
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
        let ran = ran(command_with(command, line));
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
        told(&on, "").1,
        "q: to be written, and not marked in the store yet; 0 jobs wait there, 0 are held; jobs came to 0 of 256 here\n"
    );
    for _ in 0..3 {
        store(on.data, "acme", json!({}));
    }
    let listed = "q: written and read; 3 jobs wait there, 0 are held; jobs came to 1 of 256 here\n";
    assert_eq!(told(&on, ""), (Some(0), listed.to_owned()));
    let (status, said) = told(&on, "forget q --force");
    assert!(
        status == Some(1) && said.contains("take `subqueues = true` out"),
        "{said}"
    );
    drop(on);

    let off = run(false);
    let listed = "q: read, and not written by this sidecar; 3 jobs wait there, 0 are held; jobs came to 0 of 256 here\n";
    assert_eq!(told(&off, ""), (Some(0), listed.to_owned()));
    let (status, said) = told(&off, "forget q");
    assert!(status == Some(1) && said.contains("3 jobs wait"), "{said}");
    assert_eq!(told(&off, "forget other").0, Some(1));
    assert_eq!(told(&off, "forget q --force").0, Some(0));
    assert_eq!(
        told(&off, ""),
        (Some(0), "no queue has subqueues\n".to_owned())
    );
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

fn command_with(mut command: Command, line: &str) -> Command {
    command.args(line.split_whitespace());
    command
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
                        let jobs = fetch(to, "q", 20, &name).jobs();
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
    assert!((heavy - 0.6).abs() <= 0.03, "{heavy}: {got:?}");
    assert!((cheap - 0.5).abs() <= 0.03, "{cheap}: {got:?}");
}
