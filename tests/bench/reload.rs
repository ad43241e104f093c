//! What a reload costs: 5,000 policies read, checked and put in force, and the step that other threads
//! have to wait for. `cargo bench --bench reload`

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ojs_throttle::config::Settings;
use ojs_throttle::hold::{Held, Hold, Proof, Relimited};
use ojs_throttle::limit::{Key, Limited, Limits, OnLimit, Space, Timestamp};
use ojs_throttle::net::Net;
use ojs_throttle::run::{Env, ReloadOutcome, Running, Stop};
use ojs_throttle::store::memory::MemoryStore;
use ojs_throttle::store::{Claim, Claimed, Gen};

const POLICIES: usize = 5_000;
const HELD: usize = 1_024;
const ROUNDS: usize = 9;

fn main() {
    whole();
    beside();
    regroup("one key", |_| 0);
    regroup("a key each", |nth| nth);
}

/// The median and the longest of some times.
fn print(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let (median, most) = (times[times.len() / 2], times[times.len() - 1]);
    println!("{what:<44} median {median:>10.1?}  most {most:>10.1?}");
}

/// Policies for queues of their own, by type, by key, as large files have them.
fn text(round: usize) -> String {
    let head = "[server]\nlisten = '127.0.0.1:0'\nadmin_listen = '127.0.0.1:0'\nupstream = 'http://127.0.0.1:9'\n";
    let policies = (0..POLICIES).map(|n| {
        let slots = 1 + (n + round) % 50;
        format!("[[policy]]\nname = \"p{n}\"\nmatch = {{ queue = \"q-{n}\", type = \"t.*\" }}\nkey = \"k{n}:{{meta.tenant}}\"\nconcurrency = {slots}\n")
    });
    head.to_owned() + &policies.collect::<String>()
}

fn whole() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let env = Env {
        net: Net::Tcp,
        store: Arc::new(MemoryStore::new(0)).into(),
        seed: 1,
        reset: false,
    };
    let settings = Settings::parse(&text(0), "bench.toml").unwrap();
    let running = runtime.block_on(Running::start(settings, env)).unwrap();
    let reload = running.reload();
    let (mut read, mut applied, mut all) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        let text = text(round);
        let begun = Instant::now();
        let settings = Settings::parse(&text, "bench.toml").unwrap();
        read.push(begun.elapsed());
        let then = Instant::now();
        let outcome = reload.apply(settings);
        applied.push(then.elapsed());
        all.push(begun.elapsed());
        assert!(matches!(outcome, ReloadOutcome::Applied(_)), "{outcome:?}");
    }
    print("5,000 policies: read and checked", read);
    print("5,000 policies: compared and swapped", applied);
    print("5,000 policies: reload in all (aim: 100 ms)", all);
}

/// How long requests take while nothing else happens, and while one reload of 5,000 policies follows
/// another on a thread of its own, as in the program (aim: no request delayed by more than 1 ms).
fn beside() {
    let (give, take) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let env = Env {
                net: Net::Tcp,
                store: Arc::new(MemoryStore::new(0)).into(),
                seed: 1,
                reset: false,
            };
            let settings = Settings::parse(&text(0), "bench.toml").unwrap();
            let running = Running::start(settings, env).await.unwrap();
            give.send((running.addr().unwrap(), running.reload()))
                .unwrap();
            running.serve(Stop::default()).await.unwrap();
        });
    });
    let (addr, reload) = take.recv().unwrap();
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut requests = |go_on: &dyn Fn(usize) -> bool| {
        let mut times = Vec::new();
        let mut answer = [0; 4096];
        while go_on(times.len()) {
            let begun = Instant::now();
            // Answered without the backend.
            let request = b"GET /ojs/v1/rate-limits/unknown HTTP/1.1\r\nHost: ojs\r\n\r\n";
            stream.write_all(request).unwrap();
            assert!(stream.read(&mut answer).unwrap() > 0);
            times.push(begun.elapsed());
            std::thread::sleep(Duration::from_micros(200));
        }
        times
    };
    requests(&|done| done < 500);
    let quiet = requests(&|done| done < 4_000);
    let over = AtomicBool::new(false);
    let during = std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=2 * ROUNDS {
                let settings = Settings::parse(&text(round), "bench.toml").unwrap();
                assert!(matches!(reload.apply(settings), ReloadOutcome::Applied(_)));
            }
            over.store(true, Ordering::Relaxed);
        });
        requests(&|_| !over.load(Ordering::Relaxed))
    });
    for (what, mut times) in [("alone", quiet), ("beside reloads", during)] {
        times.sort();
        let high = times[times.len() * 99 / 100];
        print(
            &format!("a request {what} ({} of them)", times.len()),
            times,
        );
        println!("{:<44} 99 % under {high:.1?}", "");
    }
}

fn limits(key: &str, slots: u32) -> Arc<[Limited]> {
    let limited = Limited {
        space: Space::Job,
        key: Key::new(key).unwrap(),
        limits: Limits {
            concurrency: Some(slots),
            ..Limits::default()
        },
        on_limit: OnLimit::Wait,
        policy: "p".into(),
    };
    Arc::from([limited])
}

fn held(nth: usize, key: &str) -> Held {
    let limits = limits(key, 1);
    let now = tokio::time::Instant::now();
    let claimed = Claimed::from(Claim {
        job: format!("job-{nth}").into(),
        generation: Gen(nth as u64),
        claim_id: "sidecar".into(),
        worker: None,
        scope: 1,
        queue: "q".into(),
        priority: 0,
        attempt: Some(0),
        claimed_at: Timestamp(0),
        visibility: 30_000_000,
        limited: limits,
    });
    let proof = Proof::new(now, Duration::from_secs(30));
    Held::new(claimed, 0, Bytes::from_static(b"{}"), proof, now)
}

/// The two steps under the lock of the hold.
fn regroup(what: &str, key: impl Fn(usize) -> usize) {
    let (mut listed, mut regrouped) = (Vec::new(), Vec::new());
    let hold = Hold::default();
    hold.add(
        (0..HELD)
            .map(|n| held(n, &format!("k{}", key(n))))
            .collect(),
    );
    for round in 1..=ROUNDS as u64 {
        let begun = Instant::now();
        let jobs = black_box(hold.before(round));
        listed.push(begun.elapsed());
        assert_eq!(jobs.len(), HELD);
        let new = |held: Held| Relimited {
            job: held.claimed.job.clone(),
            generation: held.claimed.generation,
            limits: limits(held.written[0].key.as_str(), 1 + round as u32),
        };
        let jobs: Vec<Relimited> = jobs.into_iter().map(new).collect();
        let begun = Instant::now();
        hold.relimit(round, jobs);
        regrouped.push(begun.elapsed());
    }
    print(
        &format!("1,024 held, {what}: listed under the lock"),
        listed,
    );
    print(
        &format!("1,024 held, {what}: put under other limits"),
        regrouped,
    );
}
