//! Two sidecars on one store, whose limits change while their workers work; judged from when the workers got jobs.

use super::ledger::Ledger;
use super::on_redis::fleet::know_each_other;
use super::prelude::*;

/// How often limits change, and how many jobs are done after each time.
const CHANGES: usize = 8;
const JOBS: usize = 40;
/// Without a job for so long, something has stopped the starts.
const PAUSE: Duration = Duration::from_millis(700);

fn text(upstream: SocketAddr, url: &str, number: usize) -> String {
    let rest = format!(
        "[[policy]]\nname = \"two\"\nmatch = {{ queue = \"q\" }}\nkey = \"{{type}}\"\nconcurrency = 2\n\
         [[policy]]\nname = \"x\"\nmatch = {{ queue = \"x\" }}\nconcurrency = {number}\n\
         [fetch]\nmax_wait = \"5s\"\n[store]\nurl = \"{url}\"\ntimeout = \"2s\"\n"
    );
    config(upstream, "", &rest)
}

/// Changes of limits that say nothing of the jobs that run do not stop their starts.
pub fn limits_change_and_starts_go_on(url: &str) {
    let backend = Backend::start(Lax::redis());
    let files = [(); 2].map(|()| file(text(backend.addr, url, 1)));
    let paths = [files[0].1.clone(), files[1].1.clone()];
    let sidecars = files.map(|(dir, path)| Sidecar::spawn(run_at(path), dir));
    know_each_other(&sidecars, 1.0);
    let all = JOBS * (CHANGES + 2);
    for _ in 0..all {
        enqueue(backend.addr, "q", json!({}));
    }
    let ledger = Ledger::default();
    let changed = ledger.all_work(&sidecars, all, || {
        let mut changed = Vec::new();
        for nth in 1..=CHANGES {
            wait("jobs are done", || ledger.done() >= nth * JOBS);
            changed.push(Instant::now());
            match nth % 2 {
                0 => (paths.iter()).for_each(|path| {
                    let beside = path.with_extension("new");
                    std::fs::write(&beside, text(backend.addr, url, nth + 1)).unwrap();
                    std::fs::rename(&beside, path).unwrap();
                }),
                _ => {
                    let path = format!("/ojs/v1/admin/queues/other{nth}/rate-limit");
                    let set = ask(sidecars[0].data, "PUT", &path, r#"{"concurrency":3}"#);
                    assert_eq!(set.status, 200, "{set:?}");
                }
            }
        }
        changed
    });
    assert_eq!(ledger.most.load(Ordering::SeqCst), 2);
    let mut got: Vec<Instant> = ledger
        .runs
        .lock()
        .unwrap()
        .iter()
        .map(|run| run.got)
        .collect();
    got.sort();
    // The longest time without a job after each change, before the next one.
    let longest = |nth: usize| {
        let next = changed.get(nth + 1).copied();
        let until = next.unwrap_or(*got.last().unwrap());
        let within = got
            .windows(2)
            .filter(|of| of[1] > changed[nth] && of[0] < until);
        within.map(|of| of[1] - of[0]).max().unwrap_or_default()
    };
    let longest: Vec<Duration> = (0..CHANGES).map(longest).collect();
    eprintln!("longest without a start after each change: {longest:?}");
    // The machine may be busy once or twice.
    let paused = longest.iter().filter(|longest| **longest > PAUSE).count();
    assert!(paused <= CHANGES / 3, "{longest:?}");
}
