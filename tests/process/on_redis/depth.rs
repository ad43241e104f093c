//! A bounded queue that a fleet fills: how many jobs waited at each moment, by the backend's ledger.

use crate::process::on_redis::fleet::know_each_other;
use crate::process::prelude::*;
use crate::sidecar::process::Ends;

const JOB: &str = r#"{"type":"t","args":[1],"options":{"queue":"q"}}"#;

fn sidecar(upstream: SocketAddr, store: &str, bounds: &str) -> Sidecar {
    let rest = format!("{bounds}[store]\nurl = \"{store}\"\ntimeout = \"2s\"\n");
    Sidecar::run(&config(upstream, "upstream_timeout = \"10s\"", &rest))
}

/// Whatever is asked through it comes this much later.
fn slowly(backend: SocketAddr, by: Duration) -> SocketAddr {
    connections::each(move |mut client| {
        let Ok(mut server) = TcpStream::connect(backend) else {
            return;
        };
        let (mut back, mut from) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        std::thread::spawn(move || {
            drop(std::io::copy(&mut from, &mut back));
            drop(back.shutdown(Shutdown::Both));
        });
        let mut bytes = [0; 16 * 1024];
        while let Ok(read @ 1..) = client.read(&mut bytes) {
            std::thread::sleep(by);
            if server.write_all(&bytes[..read]).is_err() {
                break;
            }
        }
        drop(server.shutdown(Shutdown::Both));
    })
}

/// How many jobs of the queue waited at most, and wait now.
fn depths(backend: &Backend) -> (i64, i64) {
    let (mut depth, mut most) = (0_i64, 0_i64);
    for event in backend.ledger() {
        depth += match event.kind {
            EventKind::Stored | EventKind::Requeued | EventKind::Expired => 1,
            EventKind::Claimed => -1,
            _ => 0,
        };
        most = most.max(depth);
    }
    (most, depth)
}

/// Enqueues one job after the other until told to stop; how often each status was answered.
fn produce(to: SocketAddr, stop: &AtomicBool) -> BTreeMap<u16, usize> {
    let mut answers = BTreeMap::new();
    let mut conn = Conn::open(to);
    while !stop.load(Ordering::Relaxed) {
        // A sidecar that was killed answers nobody.
        let Ok(reply) = conn.try_ask("POST", "/ojs/v1/jobs", JOB) else {
            *answers.entry(0).or_default() += 1;
            break;
        };
        *answers.entry(reply.status).or_default() += 1;
        if reply.status != 201 {
            std::thread::sleep(Duration::from_millis(30));
        }
    }
    answers
}

/// A worker takes jobs, and is done with them before they could come back.
fn take(from: SocketAddr, jobs: usize, backend: &Backend) {
    for job in fetch(from, "q", jobs, "w").jobs() {
        assert_eq!(ack(backend.addr, &job, "w").status, 200);
    }
}

/// So many producers fill the queue through these sidecars, over and over, as jobs leave it. They bring it over its
/// bound by no more than what they have on their way at once. `meanwhile` comes at the end, while they still offer.
fn fill(
    (backend, sidecars): (&Backend, &mut [Sidecar]),
    (producers, bound): (usize, i64),
    meanwhile: impl FnOnce(&mut [Sidecar]),
) {
    let (stop, all) = (AtomicBool::new(false), Mutex::new(BTreeMap::new()));
    let few = usize::try_from(bound / 10).unwrap();
    std::thread::scope(|threads| {
        let _ends = Ends(&stop);
        for nth in 0..producers {
            let (to, stop, all) = (sidecars[nth % sidecars.len()].data, &stop, &all);
            threads.spawn(move || {
                for (status, count) in produce(to, stop) {
                    *all.lock().unwrap().entry(status).or_insert(0) += count;
                }
            });
        }
        let is_full = || (depths(backend).1 >= bound).then_some(());
        until("the queue is full", is_full);
        // What workers take at any of them is filled by all.
        for sidecar in sidecars.iter().cycle().take(10 * sidecars.len()) {
            take(sidecar.data, few, backend);
            until("it is full again", is_full);
        }
        // What leaves behind their back too.
        take(backend.addr, few, backend);
        until("it is full once more", is_full);
        meanwhile(sidecars);
    });
    let (most, now) = depths(backend);
    let answers = all.into_inner().unwrap();
    eprintln!("at most {most}, at the end {now}; answers {answers:?}");
    let most_over = i64::try_from(producers).unwrap();
    assert!((bound..=bound + most_over).contains(&most), "{most}");
    assert!(answers.keys().all(|status| [0, 201, 429].contains(status)));
}

/// `count` sidecars on a store, before a backend that takes 20 ms.
fn sidecars(backend: &Backend, store: &str, count: usize, bound: i64) -> Vec<Sidecar> {
    let slow = slowly(backend.addr, Duration::from_millis(20));
    let bounds = format!("[[queue]]\nname = \"q\"\nmax_depth = {bound}\n");
    (0..count).map(|_| sidecar(slow, store, &bounds)).collect()
}

#[test]
fn no_fleet_of_producers_gets_a_queue_far_over_its_bound_or_is_kept_below_it() {
    let (backend, store) = (Backend::start(Lax::spec()), RedisServer::start());
    let mut three = sidecars(&backend, &store.url(), 3, 1_000);
    fill((&backend, &mut three), (64, 1_000), |sidecars| {
        // One dies with enqueues on their way: what it had added is gone with the next look.
        sidecars[2].kill();
        take(sidecars[0].data, 100, &backend);
        let near = || (depths(&backend).1 >= 1_000 - 64).then_some(());
        until("the others go on", near);
    });
}

/// One sidecar holds jobs back for their limit while producers hammer at the others: what is held waits, and is
/// in the depth that each of them goes by and tells. When it starts, its places are filled again.
#[test]
fn what_a_sibling_holds_is_in_the_depth() {
    const BOUND: usize = 150;
    const HOLD: usize = 60;
    /// One lane may hold three times as many as there are places free.
    const HELD: usize = HOLD * 3 / 4;
    const PRODUCERS: usize = 12;
    let (backend, store) = (Backend::start(Lax::spec()), RedisServer::start());
    let slow = slowly(backend.addr, Duration::from_millis(20));
    // By key, so that more is claimed than may start.
    let limits = format!(
        "[hold]\nmax = {HOLD}\n[[queue]]\nname = \"q\"\nmax_depth = {BOUND}\n\
         [[policy]]\nname = \"one\"\nmatch = {{ queue = \"q\" }}\nkey = \"of:{{type}}\"\n\
         rate = {{ limit = 1, period = \"1h\" }}\n"
    );
    let three: Vec<Sidecar> = (0..3)
        .map(|_| sidecar(slow, &store.url(), &limits))
        .collect();
    let [a, b, c] = [three[0].data, three[1].data, three[2].data];
    // The only one that may start.
    assert_eq!(ask(b, "POST", "/ojs/v1/jobs", JOB).status, 201);
    for job in fetch(b, "q", 1, "w").jobs() {
        assert_eq!(ack(b, &job, "w").status, 200);
    }
    let stored = || backend.total(EventKind::Stored) - 1;
    let claimed = || backend.total(EventKind::Claimed) - 1;
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let _ends = Ends(&stop);
        for nth in 0..PRODUCERS {
            let (to, stop) = ([a, c][nth % 2], &stop);
            threads.spawn(move || drop(produce(to, stop)));
        }
        wait("it is full", || stored() >= BOUND);
        until("much of it is held", || {
            assert_eq!(fetch(b, "q", 5, "w").jobs(), Vec::<String>::new());
            (claimed() >= HELD - 5).then_some(())
        });
        // Nothing has left. Producers would have had many looks to find room.
        std::thread::sleep(Duration::from_secs(1));
        let held = claimed();
        let waits = stored();
        eprintln!("{held} of {BOUND} are held; {waits} were stored");
        // A claim is on its way into the hold for 100 ms, unless the machine is too busy: what each producer sends
        // meanwhile may be over.
        assert!((BOUND..=BOUND + PRODUCERS).contains(&waits), "{waits}");
        for to in [a, b, c] {
            let stats = get(to, "/ojs/v1/queues/q/stats").json();
            assert_eq!(stats["stats"]["depth"], waits, "{stats}");
            let numbers = (&stats["queue"]["available"], &stats["queue"]["active"]);
            assert_eq!(numbers, (&json!(waits), &json!(0)), "{stats}");
        }
        let refused = ask(a, "POST", "/ojs/v1/jobs", JOB);
        assert_eq!(
            (refused.status, &refused.json()["error"]["depth"]),
            (429, &json!(waits))
        );
        // Their limit goes, they start, and the queue is filled again.
        let loose = json!({"rate": {"limit": 100_000, "period": "PT1S"}}).to_string();
        let set = ask(b, "PUT", "/ojs/v1/rate-limits/of:t", &loose);
        assert_eq!(set.status, 200, "{}", set.json());
        let mut out = 0;
        until("they start", || {
            for job in fetch(b, "q", 10, "w").jobs() {
                assert_eq!(ack(b, &job, "w").status, 200);
                out += 1;
            }
            (out >= HELD).then_some(())
        });
        wait("it is full again", || stored() >= BOUND + out);
        std::thread::sleep(Duration::from_millis(500));
        // What starts while a sibling looks may be taken off twice: a batch of each worker, and what is on its way.
        let over = stored() - (BOUND + out);
        assert!(over <= 10 + PRODUCERS, "{over} over the bound");
    });
}

/// A sidecar dies with held jobs. They wait on: first in their rows, then at the backend, which takes them back
/// when their visibility is over, and they are not counted twice for long.
#[test]
fn what_a_dead_sibling_held_is_in_the_depth_until_the_backend_has_it_back() {
    const BOUND: usize = 60;
    const PRODUCERS: usize = 4;
    let (backend, store) = (Backend::start(Lax::spec()), RedisServer::start());
    let limits = format!(
        "[hold]\nmax = 30\n[[queue]]\nname = \"q\"\nmax_depth = {BOUND}\n\
         [[policy]]\nname = \"one\"\nmatch = {{ queue = \"q\" }}\nkey = \"of:{{type}}\"\n\
         rate = {{ limit = 1, period = \"1h\" }}\n"
    );
    let mut two: Vec<Sidecar> = (0..2)
        .map(|_| sidecar(backend.addr, &store.url(), &limits))
        .collect();
    let [a, b] = [two[0].data, two[1].data];
    let body =
        json!({"queues": ["q"], "count": 5, "worker_id": "w", "visibility_timeout_ms": 4_000});
    let fetch_from = |to| ask(to, "POST", "/ojs/v1/workers/fetch", &body.to_string()).jobs();
    assert_eq!(ask(b, "POST", "/ojs/v1/jobs", JOB).status, 201);
    for job in fetch_from(b) {
        assert_eq!(ack(b, &job, "w").status, 200);
    }
    let stored = || backend.total(EventKind::Stored) - 1;
    let claimed = || backend.total(EventKind::Claimed) - 1;
    // A claim is on its way into the hold for 100 ms, unless the machine is too busy: what each producer sends meanwhile
    // may be over.
    let is_full = |jobs: usize| (BOUND..=BOUND + PRODUCERS).contains(&jobs);
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let _ends = Ends(&stop);
        for _ in 0..PRODUCERS {
            let stop = &stop;
            threads.spawn(move || drop(produce(a, stop)));
        }
        wait("it is full", || stored() >= BOUND);
        until("much of it is held", || {
            assert_eq!(fetch_from(b), Vec::<String>::new());
            // Three quarters of the hold.
            (claimed() >= 20).then_some(())
        });
        two[1].kill();
        let held = claimed();
        until("the backend has them back", || {
            let stored = stored();
            assert!(is_full(stored), "{stored}, while {held} are held by nobody");
            (backend.total(EventKind::Expired) >= 20).then_some(())
        });
        let depth = || get(a, "/ojs/v1/queues/q/stats").json()["stats"]["depth"].clone();
        let waits = stored();
        assert!(is_full(waits), "{waits}");
        wait("they are counted once", || depth() == waits);
        // What leaves now is room again.
        take(backend.addr, 10, &backend);
        wait("it is full again", || stored() == BOUND + 10);
    });
    let (most, now) = depths(&backend);
    assert!(is_full(usize::try_from(most).unwrap()), "{most}");
    assert_eq!(now, 60);
}

/// A producer that waits gets the room that a worker makes: within 20 ms at its own sidecar (the best of some
/// tries, as the machine may be busy), with the next look where the worker is at another.
#[test]
fn a_blocked_enqueue_gets_room_that_is_made_anywhere() {
    let (backend, store) = (Backend::start(Lax::spec()), RedisServer::start());
    let bounds = "[[queue]]\nname = \"q\"\nmax_depth = 3\nstrategy = \"block\"\n";
    let (a, b) = (
        sidecar(backend.addr, &store.url(), bounds),
        sidecar(backend.addr, &store.url(), bounds),
    );
    for _ in 0..3 {
        assert_eq!(ask(a.data, "POST", "/ojs/v1/jobs", JOB).status, 201);
    }
    // The backend is asked about a queue every 100 ms at most, so room that is made meanwhile is seen after that.
    for (worker, most) in [(a.data, 150), (b.data, 1_000)] {
        let mut best = Duration::MAX;
        for nth in 0..40 {
            if nth >= 8 && best < Duration::from_millis(most) {
                break;
            }
            let to = a.data;
            let blocked = std::thread::spawn(move || {
                let length = JOB.len();
                let mut conn = Conn::open(to);
                let request = format!(
                    "POST /ojs/v1/jobs HTTP/1.1\r\nHost: ojs\r\nContent-Type: application/json\r\n\
                     OJS-Block-Timeout: 15\r\nContent-Length: {length}\r\n\r\n{JOB}"
                );
                conn.write(request.as_bytes()).unwrap();
                (conn.reply().unwrap().status, Instant::now())
            });
            until("it waits", || {
                let health = get(a.data, "/ojs/v1/health").json();
                (health["throttle"]["blocked"] == 1).then_some(())
            });
            let job = fetch(worker, "q", 1, "w").jobs().remove(0);
            let room = Instant::now();
            assert_eq!(ack(worker, &job, "w").status, 200);
            let (status, at) = blocked.join().unwrap();
            assert_eq!(status, 201);
            best = best.min(at.saturating_duration_since(room));
        }
        eprintln!("after {best:?}");
        assert!(best < Duration::from_millis(most), "{best:?}");
    }
    assert_eq!(depths(&backend), (3, 3));
}

/// 30 producers at two sidecars fill empty queues as quickly as they can, so that each sidecar admits many before it hears
/// of the other. Half of the queues have subqueues. How many jobs came into each.
fn burst(backend: &Backend, stores: [String; 2], each: usize) -> Vec<usize> {
    let bounds = "[[policy]]\nname = \"tenants\"\nkey = \"{meta.tenant_id}\"\nconcurrency = 1\n\
        [[queue]]\nname = \"burst.*\"\nmax_depth = 300\n";
    let split =
        |nth| format!("[[queue]]\nname = \"split.{nth}\"\nmax_depth = 300\nsubqueues = true\n");
    let bounds = [bounds.to_owned(), (0..each).map(split).collect()].concat();
    let two = stores.map(|store| sidecar(backend.addr, &store, &bounds));
    know_each_other(&two, 1.0);
    let names = (0..each).flat_map(|nth| [format!("burst.{nth}"), format!("split.{nth}")]);
    let stored = names.map(|queue| {
        // Two of the queues are known to both before.
        for one in two.iter().filter(|_| queue.ends_with('1')) {
            let job = json!({"type": "t", "args": [], "options": {"queue": queue}}).to_string();
            let reply = ask(one.data, "POST", "/ojs/v1/jobs", &job);
            assert_eq!(reply.status, 201);
        }
        std::thread::scope(|threads| {
            for nth in 0..30 {
                let (to, queue) = (two[nth % 2].data, &queue);
                threads.spawn(move || {
                    let (mut conn, mut refused) = (Conn::open(to), 0);
                    for job in 0.. {
                        let tenant = format!("t{}", nth * 1_000 + job);
                        let job = json!({"type": "t", "args": [], "meta": {"tenant_id": tenant},
                            "options": {"queue": queue}});
                        let reply = conn.ask("POST", "/ojs/v1/jobs", &job.to_string());
                        refused += usize::from(reply.status != 201);
                        if refused == 3 {
                            break;
                        }
                    }
                });
            }
        });
        let is_of = |name: &str| name == queue || name.starts_with(&format!("{queue}-ojst-"));
        let stored = backend.ledger().into_iter();
        let stored = stored.filter(|event| event.kind == EventKind::Stored && is_of(&event.queue));
        let stored = stored.count();
        eprintln!("{queue}: {stored}");
        stored
    });
    stored.collect()
}

/// Each queue has its bound in it, and half of them no more than a twentieth over (seven of eight in the mean); where the
/// machine had no turn for one of the sidecars, so that it heard of the other late, a tenth.
#[test]
fn a_burst_at_two_fills_a_queue_to_its_bound() {
    let (backend, store) = (Backend::start(Lax::redis()), RedisServer::start());
    let stored = burst(&backend, [store.url(), store.url()], 4);
    assert!(stored.iter().all(|jobs| (270..=330).contains(jobs)));
    let close = stored.iter().filter(|jobs| **jobs <= 315).count();
    assert!(close >= 4, "{close} of 8");
}

/// One of two is far from the store, and hears late of what the other admits. Each enqueue has its answer all the same.
#[test]
fn a_burst_at_one_that_hears_late_goes_a_tenth_over_the_bound_at_most() {
    let (backend, store) = (Backend::start(Lax::redis()), RedisServer::start());
    let far = slowly(
        SocketAddr::from(([127, 0, 0, 1], store.port)),
        Duration::from_millis(100),
    );
    let stored = burst(&backend, [store.url(), format!("redis://{far}")], 2);
    assert!(stored.iter().all(|jobs| (270..=330).contains(jobs)));
}

fn calls(store: &RedisServer) -> u64 {
    let told = crate::process::on_redis::fleet::told(store, "INFO commandstats");
    let line = told
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

#[test]
fn away_from_the_bound_there_is_one_call_for_many_enqueues() {
    let (backend, store) = (Backend::start(Lax::spec()), RedisServer::start());
    let bounds = "[[queue]]\nname = \"q\"\nmax_depth = 100000\n";
    let one = sidecar(backend.addr, &store.url(), bounds);
    let mut conn = Conn::open(one.data);
    assert_eq!(conn.ask("POST", "/ojs/v1/jobs", JOB).status, 201);
    let (before, begun) = (calls(&store), Instant::now());
    for _ in 0..400 {
        assert_eq!(conn.ask("POST", "/ojs/v1/jobs", JOB).status, 201);
    }
    let (calls, took) = (calls(&store) - before, begun.elapsed());
    eprintln!("400 enqueues: {calls} scripts in {took:?}");
    // Some are due each second, however few enqueues there were in it.
    assert!(calls < 100 + 10 * took.as_secs(), "{calls} in {took:?}");
}
