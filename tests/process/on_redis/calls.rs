//! What sidecars ask of a Redis that they share, counted by the server.

use crate::process::on_redis::fleet::know_each_other;
use crate::process::prelude::*;
use crate::process::trace::{Plan, is_long, trace};

/// Every command from now on, but not those that scripts run.
fn overhear(store: &RedisServer) -> Arc<AtomicUsize> {
    let mut stream = TcpStream::connect(("127.0.0.1", store.port)).unwrap();
    stream.write_all(b"MONITOR\r\n").unwrap();
    let mut lines = BufReader::new(stream).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "+OK");
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            let by_script = line.contains(" lua] ");
            counted.fetch_add(usize::from(!by_script), Ordering::Relaxed);
        }
    });
    count
}

fn fleet<const N: usize>(backend: &Backend, store: &RedisServer, policy: &str) -> [Sidecar; N] {
    let rest = format!("{policy}\n[store]\nurl = \"{}\"\n", store.url());
    let sidecars = [(); N].map(|()| Sidecar::run(&config(backend.addr, "", &rest)));
    know_each_other(&sidecars, N as f64 - 1.0);
    sidecars
}

#[test]
fn an_idle_sidecar_makes_less_than_one_call_a_second() {
    let (backend, store) = (Backend::start(Lax::redis()), RedisServer::start());
    let policy = "[[policy]]\nname = \"p\"\nmatch = { queue = \"q\" }\nconcurrency = 2\n";
    let sidecars = fleet::<2>(&backend, &store, policy);
    let count = overhear(&store);
    let began = Instant::now();
    std::thread::sleep(Duration::from_secs(6));
    let (calls, seconds) = (count.load(Ordering::Relaxed), began.elapsed().as_secs_f64());
    let each = calls as f64 / seconds / sidecars.len() as f64;
    eprintln!("{calls} calls of two sidecars in {seconds:.1} s: {each:.2} a second each");
    assert!(calls > 0, "they say that they live");
    assert!(each < 1.0, "{each}");
}

/// Unevenly busy: from one worker at the first to four at the last. A fleet without CPU to spare loses start
/// times and asks more often, up to five times a start as in strict mode, so a short run has three tries.
#[test]
fn eight_sidecars_reserve_one_saturated_key_ahead() {
    let (limit, starts) = if is_long() {
        (1_000, 20_000)
    } else {
        (200, 1_000)
    };
    let mut plan = Plan::spacing(limit, Duration::from_secs(1), starts);
    plan.policy += "sync = \"reserved\"\n";
    let (backend, store) = (Backend::start(Lax::redis()), RedisServer::start());
    let sidecars = fleet::<8>(&backend, &store, &plan.of_queue());
    let count = overhear(&store);
    let mut fewest = f64::INFINITY;
    for _ in 0..3 {
        let before = count.load(Ordering::Relaxed);
        let runs = trace(&plan, &backend, &sidecars);
        let calls = (count.load(Ordering::Relaxed) - before) as f64 / runs.len() as f64;
        let used = plan.judge(&runs);
        eprintln!("{calls:.2} calls a start");
        fewest = calls.min(fewest);
        if is_long() {
            assert!(calls <= 0.4 && used >= 0.98, "{calls} {used}");
        }
        if is_long() || calls <= 0.4 {
            break;
        }
    }
    assert!(fewest <= 1.5, "{fewest} calls a start");
}
