//! Several sidecars on one Redis: one budget for the jobs and the calls of a key.

mod stock_on_tools;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;

use ojs_throttle::backend::Lax;

use super::entry;
use super::prelude::*;
use crate::process::http::{Conn, ack, enqueue, get, poll};
use crate::servers::port;
use crate::servers::redis::RedisServer;
use crate::servers::vendor::VendorCall;
use crate::sidecar::process::{Backend, Ends, Sidecar, config, wait};

/// A sidecar, and where its calls go in.
struct Way {
    sidecar: Sidecar,
    calls: SocketAddr,
}

impl Way {
    fn start(
        backend: &Backend,
        store: &RedisServer,
        vendor: &Vendor,
        (rest, egress): (&str, &str),
    ) -> Way {
        let calls = port::own();
        let egress = format!("  listen = '{calls}'\n{egress}");
        let store = format!("[store]\nurl = '{}'\n", store.url());
        let rest = format!("{rest}\n{store}{}", entry(vendor.addr, &egress));
        let sidecar = Sidecar::run(&config(backend.addr, "", &rest));
        Way { sidecar, calls }
    }
}

const JOBS: &str = "[[policy]]\nname = 'p'\nkey = 'vendor'\nmatch = { queue = 'q' }\n";

/// Works off the queue through this sidecar. A job's work is one call to the vendor itself, so that the vendor's record
/// has its start.
fn works(way: &Way, vendor: SocketAddr, name: &str, ends: &AtomicBool) {
    let mut direct = Conn::open(vendor);
    while !ends.load(Ordering::SeqCst) {
        for job in poll(way.sidecar.data, "q", 1, name) {
            assert!(direct.ask("GET", "/job", "").status < 500);
            assert_eq!(ack(way.sidecar.data, &job, name).status, 200);
        }
    }
}

/// Calls until it ends, whatever the answers are.
fn calls(way: &Way, path: &str, ends: &AtomicBool) {
    while !ends.load(Ordering::SeqCst) {
        get(way.calls, path);
    }
}

/// Jobs and calls of one key at three sidecars for a while: at each so many workers, and as many callers. Returns for how
/// long this machine's other work kept a thread waiting meanwhile, in milliseconds.
fn at_three(limit: &str, vendor: &Vendor, each: usize, time: Duration) -> u64 {
    let (backend, store) = (Backend::start(Lax::redis()), RedisServer::start());
    let policy = format!("{JOBS}{limit}");
    let both = (&*policy, "key = 'vendor'\nmax_wait = '20s'");
    let ways = [(); 3].map(|()| Way::start(&backend, &store, vendor, both));
    for _ in 0..600.max(50 * time.as_secs()) {
        enqueue(backend.addr, "q", json!({}));
    }
    let (ends, stalled) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|threads| {
        let _ends = Ends(&ends);
        threads.spawn(|| {
            while !ends.load(Ordering::SeqCst) {
                let begun = Instant::now();
                thread::sleep(millis(1));
                let took = begun.elapsed().as_millis();
                stalled.fetch_max(u64::try_from(took).unwrap(), Ordering::SeqCst);
            }
        });
        for (nth, way) in ways.iter().enumerate() {
            for of in 0..each {
                let (ends, name) = (&ends, format!("w{nth}-{of}"));
                threads.spawn(move || works(way, vendor.addr, &name, ends));
                threads.spawn(move || calls(way, "/call", ends));
            }
        }
        wait("both have begun", || {
            ["/job", "/call"].iter().all(|path| has(vendor, path))
        });
        thread::sleep(time);
    });
    stalled.into_inner()
}

/// Whether a call of this path came.
fn has(vendor: &Vendor, path: &str) -> bool {
    vendor.calls().iter().any(|call| call.target() == path)
}

/// How many more came than `each` second lets, in the interval in which these were the most.
pub fn most_over(times: &[Instant], each: f64) -> f64 {
    let (mut least, mut most) = (f64::MAX, 0.0_f64);
    for (nth, at) in times.iter().enumerate() {
        let over = nth as f64 - (*at - times[0]).as_secs_f64() * each;
        least = least.min(over);
        most = most.max(over - least);
    }
    most
}

/// Starts are few where this runs with all others; `STARTS` says how many else, by twice as many workers and callers. The
/// limit holds however busy the machine is; whether it is used is seen in one of three tries.
#[test]
fn three_sidecars_keep_one_throttle_for_both() {
    let starts = std::env::var("STARTS").ok().and_then(|of| of.parse().ok());
    let (each, least) = starts.map_or((2, 0.9), |_| (4, 0.97));
    let time = Duration::from_secs(starts.unwrap_or(300_u64) / 50);
    let is_used = (0..3).any(|_| used_of_a_throttle(each, time) >= least);
    assert!(is_used, "less than {least} of it each time");
}

/// Which part of a throttle jobs and calls use at three sidecars.
fn used_of_a_throttle(each: usize, time: Duration) -> f64 {
    let vendor = Vendor::start(|_| Answer::ok());
    let limit = "throttle = { limit = 50, period = '1s' }\n";
    at_three(limit, &vendor, each, time);
    let seen = vendor.calls();
    let mut times: Vec<_> = seen.iter().map(|call| call.at).collect();
    times.sort_unstable();
    let last = times[times.len() - 1] - times[0];
    let allowed = last.as_secs_f64() * 50.0;
    let jobs = seen.iter().filter(|call| call.target() == "/job").count();
    let over = most_over(&times, 50.0);
    let all = seen.len();
    let told = format!("{all} of {allowed:.0}, {jobs} jobs, {over:.1} over");
    eprintln!("{told}");
    // The way to the vendor and this machine's other work may bring some together.
    assert!(all as f64 <= allowed + 1.0 + 0.1 * 50.0, "{told}");
    assert!((all..=3 * all).contains(&(4 * jobs)), "{told}");
    all as f64 / allowed
}

/// Groups take turns over three sidecars: a minute of them is within a twentieth, and a few seconds within some starts.
#[test]
fn three_sidecars_share_one_throttle_by_weight() {
    let starts = std::env::var("STARTS").ok().and_then(|of| of.parse().ok());
    let seconds = starts.unwrap_or(400_u64) / 50;
    let vendor = Vendor::start(|_| Answer::ok());
    let (backend, store) = (Backend::start(Lax::redis()), RedisServer::start());
    let fair = "key = 'vendor'\nthrottle = { limit = 50, period = '1s' }\nmax_wait = '1m'\n\
                fair = { by = '{path.0}', weights = { acme = 3 } }";
    let ways = [(); 3].map(|()| Way::start(&backend, &store, &vendor, ("", fair)));
    let weights = [("/acme", 3.0), ("/b", 1.0), ("/c", 1.0)];
    let ends = AtomicBool::new(false);
    let mut from = Instant::now();
    thread::scope(|threads| {
        let (_ends, ends) = (Ends(&ends), &ends);
        for way in &ways {
            for path in weights.iter().flat_map(|(path, _)| [path; 4]) {
                threads.spawn(move || calls(way, path, ends));
            }
        }
        wait("all wait", || vendor.calls().len() > 50);
        from = Instant::now();
        thread::sleep(Duration::from_secs(seconds));
    });
    let to = from + Duration::from_secs(seconds);
    let seen = vendor.calls();
    let seen = seen.iter().filter(|call| call.at >= from && call.at < to);
    let seen: Vec<_> = seen.map(VendorCall::target).collect();
    for (path, weight) in weights {
        let has = seen.iter().filter(|target| **target == path).count() as f64;
        let due = seen.len() as f64 * weight / 5.0;
        eprintln!("{path}: {has} of {due}");
        let is_near = (has - due).abs() <= (due / 20.0).max(6.0);
        assert!(is_near, "{path}: {has} of {due}");
    }
}

#[test]
fn a_429_shuts_the_key_for_jobs_and_calls_everywhere() {
    let refused = Arc::new(AtomicUsize::new(0));
    let first = Arc::clone(&refused);
    // A call's, for the answer to a job's own call is the worker's to tell.
    let vendor = Vendor::start(move |call| {
        let is_it = call.nth >= 100 && call.target() == "/call";
        let told = first.load(Ordering::SeqCst);
        if !is_it || told > 0 {
            return Answer::ok();
        }
        first.store(call.nth, Ordering::SeqCst);
        Answer::new(429, "slow down").header("Retry-After", "2")
    });
    let limit = "throttle = { limit = 100, period = '1s' }\n";
    let stalled = at_three(limit, &vendor, 2, Duration::from_secs(5));
    let seen = vendor.calls();
    let refused = seen[refused.load(Ordering::SeqCst)].ended.unwrap();
    let after = |from: u64, to: u64| {
        let within = |at: Instant| at > refused + millis(from) && at < refused + millis(to);
        seen.iter().filter(|call| within(call.at)).count()
    };
    // A start that was granted before may be kept on its way.
    assert_eq!(after(50 + 2 * stalled, 1_990), 0, "{stalled} ms");
    assert!(after(1_990, 3_000) > 30, "{}", after(1_990, 3_000));
}

#[test]
fn a_killed_sidecar_gives_the_slots_of_its_calls_back() {
    let vendor = Vendor::start(|call| {
        let wait = 50 + 90 * (call.nth as u64 % 5);
        Answer::new(200, vec![b'x'; 100]).streamed(10, millis(wait / 10))
    });
    let (backend, store) = (Backend::start(Lax::redis()), RedisServer::start());
    let slots = "key = 'vendor'\nconcurrency = 4\nlease = '1s'\nmax_wait = '30s'";
    let [kept, mut killed] = [(); 2].map(|()| Way::start(&backend, &store, &vendor, ("", slots)));
    let (ends, dies) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|threads| {
        let _ends = Ends(&ends);
        let to = killed.calls;
        let dies = &dies;
        for _ in 0..4 {
            threads.spawn(|| calls(&kept, "/kept", &ends));
            threads.spawn(move || {
                // It breaks off when the sidecar is killed.
                let mut conn = Conn::open(to);
                while conn.try_ask("GET", "/killed", "").is_ok() {}
                dies.store(true, Ordering::SeqCst);
            });
        }
        wait("both call", || {
            ["/kept", "/killed"].iter().all(|path| has(&vendor, path))
        });
        thread::sleep(Duration::from_secs(2));
        killed.sidecar.kill();
        wait("its callers have heard", || dies.load(Ordering::SeqCst));
        let died = Instant::now();
        wait("all slots are used again", || {
            let calls = vendor.calls();
            calls.iter().filter(|call| call.ended.is_none()).count() == 4
        });
        let took = died.elapsed();
        assert!(took < Duration::from_secs(9), "{took:?}");
    });
    assert_eq!(vendor.most_at_once(), 4);
}

#[test]
fn without_the_store_calls_go_on_as_the_policy_says() {
    let vendor = Vendor::start(|_| Answer::ok());
    let (backend, mut store) = (Backend::start(Lax::redis()), RedisServer::start());
    let entries = ["closed", "open"].map(|mode| {
        let limit = "throttle = { limit = 1, period = '2s' }\nmax_wait = '1s'";
        let listen = port::own();
        let more = format!("  listen = '{listen}'\n{limit}\non_store_error = '{mode}'");
        let entry = entry(vendor.addr, &more);
        (listen, entry.replace("'out'", &format!("'{mode}'")))
    });
    let both = [&*entries[0].1, &entries[1].1].concat();
    let text = format!("[store]\nurl = '{}'\n{both}", store.url());
    let sidecar = Sidecar::run(&config(backend.addr, "", &text));
    let [closed, open] = entries.map(|(listen, _)| listen);
    assert_eq!((get(closed, "/").status, get(open, "/").status), (200, 200));
    store.kill();
    wait("it knows", || sidecar.metric("ojs_throttle_store_up") < 0.5);
    let refused = get(closed, "/");
    assert_eq!(refused.status, 503, "{refused:?}");
    assert!(refused.body.contains("store_unavailable"), "{refused:?}");
    for _ in 0..5 {
        assert_eq!(get(open, "/").status, 200);
    }
    store.restart(&[]);
    wait("it is back", || get(closed, "/").status == 200);
}

/// The most of these calls that were there at once.
fn most_at_once<'a>(calls: impl Iterator<Item = &'a VendorCall> + Clone) -> usize {
    let at = |when: Instant| {
        let there =
            |call: &&VendorCall| call.at <= when && call.ended.is_none_or(|ended| ended > when);
        calls.clone().filter(there).count()
    };
    calls.clone().map(|call| at(call.at)).max().unwrap_or(0)
}

/// Each has the slots that it had at the loss, and half of the rate: together never more than with the store.
#[test]
fn without_the_store_sidecars_share_what_they_had() {
    let vendor = Vendor::start(|call| match call.target() {
        "/long" => Answer::new(200, vec![b'x'; 20]).streamed(1, millis(100)),
        _ => Answer::ok().after(millis(20)),
    });
    let (backend, mut store) = (Backend::start(Lax::redis()), RedisServer::start());
    let limits = (
        "",
        "key = 'vendor'\nconcurrency = 4\nthrottle = { limit = 40, period = '1s' }\nmax_wait = '30s'\n\
         on_store_error = 'share'",
    );
    let ways = [(); 2].map(|()| Way::start(&backend, &store, &vendor, limits));
    let is = |series: &str, value: f64| {
        let is = |way: &Way| (way.sidecar.metric(series) - value).abs() < 0.5;
        ways.iter().all(is)
    };
    wait("they know each other", || is("ojs_throttle_siblings", 1.0));
    let ends = AtomicBool::new(false);
    let (alone, healed) = thread::scope(|threads| {
        let _ends = Ends(&ends);
        for way in [&ways[0], &ways[0], &ways[0], &ways[1]] {
            threads.spawn(|| assert_eq!(get(way.calls, "/long").status, 200));
        }
        wait("all slots are taken", || vendor.calls().len() == 4);
        store.kill();
        wait("both know that it is lost", || {
            is("ojs_throttle_store_up", 0.0)
        });
        for (way, path) in ways.iter().zip(["/a", "/b"]) {
            for _ in 0..4 {
                threads.spawn(|| calls(way, path, &ends));
            }
        }
        let ended = |call: &VendorCall| call.ended.is_some();
        wait("their calls end", || vendor.calls()[..4].iter().all(ended));
        let from = Instant::now();
        thread::sleep(Duration::from_secs(1));
        let alone = (from, Instant::now());
        store.restart(&[]);
        wait("both have it back", || is("ojs_throttle_store_up", 1.0));
        let healed = Instant::now();
        let after = |path: &str| {
            let calls = vendor.calls();
            let after = |call: &&VendorCall| call.target() == path && call.at > healed;
            calls.iter().filter(after).count()
        };
        wait("both go on", || after("/a") >= 20 && after("/b") >= 20);
        (alone, healed)
    });
    let seen = vendor.calls();
    assert!(most_at_once(seen.iter()) <= 4);
    let times: Vec<_> = seen.iter().map(|call| call.at).collect();
    let over = most_over(&times, 40.0);
    assert!(over <= 6.0, "{over}");
    for (path, slots) in [("/a", 3), ("/b", 1)] {
        let within =
            |call: &&VendorCall| call.target() == path && call.at >= alone.0 && call.at < alone.1;
        let calls: Vec<_> = seen.iter().filter(within).collect();
        let most = most_at_once(calls.iter().copied());
        let count = calls.len();
        eprintln!("{path}: {count} of 20 in 1 s, {most} at once of {slots}");
        assert!((12..=22).contains(&count), "{path}: {count}");
        assert!(most <= slots, "{path}: {most}");
    }
    eprintln!("{over:.1} over; back after {:?}", healed - alone.1);
}
