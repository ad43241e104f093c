//! Garbage, crowds, and little to live on.

use std::os::unix::fs::MetadataExt;

use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};

use super::prelude::*;
use crate::servers::port;
use crate::servers::vendor::{Answer, FOREVER, Vendor};
use crate::sidecar::process::Ran;

const ONE: &str = "[[policy]]\nname = \"one\"\nmatch = { queue = \"q\" }\nconcurrency = 1\n";

/// Hundredths of seconds of processor time used.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, rest) = stat.rsplit_once(')').unwrap();
    let fields: Vec<&str> = rest.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

fn works(data: SocketAddr) {
    let job = enqueue(data, "q", json!({}));
    assert_eq!(fetch(data, "q", 1, "w").jobs(), std::slice::from_ref(&job));
    assert_eq!(ack(data, &job, "w").status, 200);
}

#[test]
fn garbage_on_both_ports() {
    let (_backend, mut sidecar) = pair("header_timeout = \"1s\"", ONE);
    let mut chance = SmallRng::seed_from_u64(7);
    let mut open = Vec::new();
    for to in [sidecar.data, sidecar.admin] {
        for _ in 0..50 {
            let mut bytes = vec![0; chance.random_range(1..3000)];
            chance.fill_bytes(&mut bytes);
            let mut conn = Conn::open(to);
            // It may have been refused after the first of them.
            drop(conn.write(&bytes));
            open.push(conn);
        }
        let huge = format!(
            "GET /livez HTTP/1.1\r\nHost: h\r\nX-Huge: {}\r\n\r\n",
            "x".repeat(200_000)
        );
        let many = format!(
            "GET /livez HTTP/1.1\r\nHost: h\r\n{}\r\n",
            "X-Many: x\r\n".repeat(5_000)
        );
        let nested = "[".repeat(100_000);
        let deep = format!(
            "POST /ojs/v1/workers/fetch HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{nested}",
            nested.len()
        );
        for request in [
            huge.as_str(),
            &many,
            &deep,
            "GET / HTTP/9.9\r\n\r\n",
            "GET /livez HTTP/1.1\r\n",
            "POST /ojs/v1/jobs HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999999999999\r\n\r\n",
            "POST /ojs/v1/jobs HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n",
            "POST /ojs/v1/jobs HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            "\r\n\r\n\r\n\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "\u{16}\u{3}\u{1}\u{2}\0\u{1}",
        ] {
            let mut conn = Conn::open(to);
            drop(conn.write(request.as_bytes()));
            open.push(conn);
        }
        // Half a request, and gone.
        let half = TcpStream::connect(to).unwrap();
        half.shutdown(Shutdown::Write).unwrap();
    }
    works(sidecar.data);
    assert_eq!(get(sidecar.admin, "/livez").status, 200);
    drop(open);
    works(sidecar.data);
    assert!(
        sidecar.runs() && !sidecar.log().contains("panicked"),
        "{}",
        sidecar.log()
    );
    let memory = sidecar.status("RssAnon");
    assert!(memory < 60 * 1024, "{memory} KiB");
}

/// A call may wait for long, and has its body for as long.
#[test]
fn bodies_of_calls_that_wait_keep_no_job_out() {
    let vendor = Vendor::start(|_| Answer::ok().after(FOREVER));
    let backend = Backend::start(Lax::spec());
    let calls = port::own();
    let egress = format!(
        "[[egress]]\nname = \"e\"\nlisten = \"{calls}\"\nupstream = \"http://{}\"\nconcurrency = 1\nmax_wait = \"1h\"\n",
        vendor.addr
    );
    let server = "max_body = \"1MiB\"\nmax_bodies = \"2MiB\"";
    let sidecar = Sidecar::run(&config(backend.addr, server, &egress));
    let mut open = Vec::new();
    for _ in 0..40 {
        let mut conn = Conn::open(calls);
        conn.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 60000\r\n\r\n")
            .unwrap();
        conn.write(&[b' '; 60_000]).unwrap();
        open.push(conn);
    }
    let refused = "ojs_throttle_responses_total{status=\"503\",code=\"overloaded\"}";
    wait("there is no room for more calls", || {
        sidecar.metric(refused) > 0.0
    });
    let job = json!({"type": "t", "args": [" ".repeat(60_000)], "options": {"queue": "q"}});
    let reply = ask(sidecar.data, "POST", "/ojs/v1/jobs", &job.to_string());
    assert_eq!(reply.status, 201, "{reply:?}");
}

/// Bodies come slowly on both planes, or wait: together they take what they may, and who settles is not kept out.
#[test]
fn slow_bodies_take_no_more_memory_than_they_may() {
    let vendor = Vendor::start(|_| Answer::ok().after(FOREVER));
    let backend = Backend::start(Lax::spec());
    let calls = port::own();
    let egress = format!(
        "{ONE}[[egress]]\nname = \"e\"\nlisten = \"{calls}\"\nupstream = \"http://{}\"\nconcurrency = 1\nmax_wait = \"1s\"\n",
        vendor.addr
    );
    // Less than max_body would not count.
    let server = "max_body = \"1MiB\"\nmax_bodies = \"4MiB\"";
    let sidecar = Sidecar::run(&config(backend.addr, server, &egress));
    let job = enqueue(sidecar.data, "q", json!({}));
    assert_eq!(
        fetch(sidecar.data, "q", 1, "w").jobs(),
        std::slice::from_ref(&job)
    );
    // This one has the slot for ever, so that all others wait.
    let mut first = Conn::open(calls);
    first
        .write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n ")
        .unwrap();
    wait("the slot is taken", || vendor.calls().len() == 1);
    let before = sidecar.status("RssAnon");
    let mut open = Vec::new();
    let mut slow = |to, path: &str| {
        let mut conn = Conn::open(to);
        let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 65536\r\n\r\n");
        conn.write(head.as_bytes()).unwrap();
        // It may have been refused meanwhile.
        drop(conn.write(&[b' '; 60_000]));
        open.push(conn);
    };
    let planes = [(calls, "/v1/x"), (sidecar.data, "/ojs/v1/jobs")];
    for _ in 0..200 {
        planes.iter().for_each(|(to, path)| slow(*to, path));
    }
    let [of_calls, reply] = planes.map(|(to, path)| {
        until("no more bodies are taken", || {
            // Those that are refused leave what they had, until one more takes it.
            slow(to, path);
            let reply = ask(to, "POST", path, &" ".repeat(60_000));
            (reply.status == 503).then_some(reply)
        })
    });
    assert_eq!(of_calls.json()["error"]["code"], "overloaded");
    let error = &reply.json()["error"];
    assert_eq!(error["code"], "overloaded", "{reply:?}");
    for (member, word) in [
        ("message", "server.max_bodies"),
        ("hint", "server.max_bodies"),
    ] {
        assert!(error[member].as_str().unwrap().contains(word), "{reply:?}");
    }
    assert!(
        reply.head.to_lowercase().contains("retry-after: 1\r\n"),
        "{reply:?}"
    );
    // The work that is out is not lost.
    assert_eq!(heartbeat(sidecar.data, &[&job], "w").status, 200);
    assert_eq!(ack(sidecar.data, &job, "w").status, 200);
    let grown = sidecar.status("RssAnon").saturating_sub(before);
    eprintln!("{grown} KiB more");
    // All of them would be 24 MB, and each connection has buffers.
    assert!(grown < 36 * 1024, "{grown} KiB");
    drop(open);
    let taken = || ask(sidecar.data, "POST", "/ojs/v1/jobs", &" ".repeat(60_000)).status != 503;
    wait("there is room again", taken);
    works(sidecar.data);
}

/// A backend that takes connections and answers none; how many it has taken.
fn hung() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (addr, taken) = (
        listener.local_addr().unwrap(),
        Arc::<AtomicUsize>::default(),
    );
    let count = Arc::clone(&taken);
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for stream in listener.incoming().map_while(Result::ok) {
            open.push(stream);
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    (addr, taken)
}

/// Whoever sends an ACK or an enqueue that counts and hangs up leaves work behind, and that keeps its place.
#[test]
fn hanging_up_frees_no_place_while_the_work_goes_on() {
    let (addr, taken) = hung();
    let sidecar = Sidecar::run(&config(addr, "max_in_flight = 8", ""));
    let before = taken.load(Ordering::SeqCst);
    let ack = json!({"job_id": "j", "worker_id": "w"}).to_string();
    let limits = json!({"rate_limit": {"key": "k", "concurrency": 1}});
    let job = json!({"type": "t", "args": [], "options": limits}).to_string();
    for (path, body) in [("/ojs/v1/workers/ack", ack), ("/ojs/v1/jobs", job)] {
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        // Each gives up before the next comes, so that nobody who is still there takes a place.
        let give_up = || {
            let mut conn = Conn::open(sidecar.data);
            conn.write(request.as_bytes()).unwrap();
            conn.wait(Duration::from_millis(20));
            conn.reply()
        };
        for _ in 0..100 {
            drop(give_up());
        }
        wait("a request is refused", || {
            give_up().is_ok_and(|reply| reply.status == 503)
        });
    }
    let more = taken.load(Ordering::SeqCst) - before;
    // The sidecar has questions of its own.
    assert!(more <= 2 * 8 + 8, "{more} connections");
}

/// ACKs get through whatever else takes all places.
#[test]
fn an_ack_has_a_place_of_its_own() {
    let (_backend, sidecar) = pair("max_in_flight = 4", ONE);
    let job = enqueue(sidecar.data, "q", json!({}));
    assert_eq!(
        fetch(sidecar.data, "q", 1, "w").jobs(),
        std::slice::from_ref(&job)
    );
    let half = "POST /ojs/v1/workers/fetch HTTP/1.1\r\nHost: h\r\nContent-Length: 99\r\n\r\n{";
    let open: Vec<Conn> = (0..4)
        .map(|_| {
            let mut conn = Conn::open(sidecar.data);
            conn.write(half.as_bytes()).unwrap();
            conn
        })
        .collect();
    wait("all places are taken", || {
        get(sidecar.data, "/ojs/v1/health").status == 503
    });
    assert_eq!(ack(sidecar.data, &job, "w").status, 200);
    drop(open);
}

#[test]
fn idle_it_uses_next_to_nothing() {
    let (_backend, sidecar) = pair("", ONE);
    works(sidecar.data);
    let crowd: Vec<Conn> = (0..300)
        .map(|_| {
            let mut conn = Conn::open(sidecar.data);
            assert_eq!(conn.ask("GET", "/ojs/v1/health", "").status, 200);
            conn
        })
        .collect();
    // Of a debug build, and without its text, of which the system maps as much as it likes; the bench has the real figure.
    let memory = sidecar.status("RssAnon");
    println!("{memory} KiB, {} with its text", sidecar.status("VmRSS"));
    assert!(memory < 12 * 1024, "{memory} KiB");
    let before = ticks(sidecar.pid());
    std::thread::sleep(Duration::from_secs(1));
    let used = ticks(sidecar.pid()) - before;
    assert!(used < 5, "{used} % of a processor for nothing");
    works(sidecar.data);
    drop(crowd);
}

#[test]
fn without_descriptors_it_waits_and_recovers() {
    let backend = Backend::start(Lax::spec());
    let (dir, path) = file(config(backend.addr, "", ONE));
    let program = program();
    let bin = program.get_program().to_str().unwrap();
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "ulimit -n 64; exec \"$0\" run --config \"$1\"", bin]);
    shell.arg(path).env_remove("OJS_THROTTLE_CONFIG");
    let mut sidecar = Sidecar::spawn(shell, dir);
    let mut crowd: Vec<TcpStream> = (0..100)
        .map(|_| TcpStream::connect(sidecar.data).unwrap())
        .collect();
    let here = format!("listen={} ", sidecar.data);
    wait("it says so, and at which port", || {
        let lines = sidecar.lines();
        let mut full = lines.iter().filter(|line| line.contains("cannot accept"));
        full.any(|line| line.contains(&here))
    });
    let before = ticks(sidecar.pid());
    std::thread::sleep(Duration::from_secs(1));
    let used = ticks(sidecar.pid()) - before;
    assert!(used < 50, "{used} % of a processor");
    assert!(sidecar.runs());
    crowd
        .iter_mut()
        .for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
    drop(crowd);
    works(sidecar.data);
    assert_eq!(get(sidecar.admin, "/livez").status, 200);
    let lines = sidecar.lines();
    let said = lines
        .iter()
        .filter(|line| line.contains("cannot accept"))
        .count();
    assert!(said <= 2, "{}", sidecar.log());
}

/// The program, where its user may have so many threads in all. Root is under no such limit: it runs as another user.
fn with_threads(most: usize) -> Command {
    let is_root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    // Nobody else has a process under this one.
    let user = 20_000 + std::process::id() % 40_000;
    let other = match is_root {
        true => format!("setpriv --reuid {user} --regid {user} --clear-groups"),
        false => String::new(),
    };
    // By a descriptor, for its folder may be shut to that user.
    let script =
        format!("exec 3<\"$0\"; exec {other} prlimit --nproc={most}:{most} /proc/self/fd/3 \"$@\"");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).arg(program().get_program());
    shell.env_remove("OJS_THROTTLE_CONFIG");
    shell
}

#[test]
fn without_threads_it_does_not_start_instead_of_breaking_at_a_request() {
    for most in [1, 2] {
        let mut command = with_threads(most);
        command.args(["run", "--upstream", "http://localhost:1"]);
        command.args(["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]);
        let Ran { status, err, .. } = ran(&mut command);
        assert_eq!(status, Some(1), "{most}: {err}");
        assert!(err.contains("a limit of processes?"), "{most}: {err}");
        assert!(!err.contains("panicked"), "{most}: {err}");
    }
}

#[test]
fn a_client_that_says_nothing_is_let_go() {
    let (_backend, sidecar) = pair("header_timeout = \"1s\"", ONE);
    for start in ["", "GET /ojs/v1/health HTTP/1.1\r\nHo"] {
        let mut stream = TcpStream::connect(sidecar.data).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        std::io::Write::write_all(&mut stream, start.as_bytes()).unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
    }
}
