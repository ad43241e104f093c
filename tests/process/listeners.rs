//! Both listeners over TLS, asked by `curl`, by `openssl` and by an HTTP/2 client: what is refused, what passes, and
//! what becomes of it when the files change.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use ojs_throttle::tls::{ClientFiles, ClientTls, PlatformRoots};
use rustls::pki_types::ServerName;
use tokio_rustls::TlsConnector;

use super::prelude::*;
use crate::servers::certs::{Ca, Signed};
use crate::sidecar::process::Ends;

const ONE: &str = "[[policy]]\nname = \"one\"\nmatch = { queue = \"q\" }\nconcurrency = 1\n";
const FETCH: &str = "/ojs/v1/workers/fetch";
const ACK: &str = "/ojs/v1/workers/ack";
const HEALTH: &str = "/ojs/v1/health";
const PAUSE: &str = "/ojs/v1/rate-limits/one";

/// What curl got.
#[derive(Debug)]
struct Got {
    /// Its exit status: 35 and 56 if there is no TLS, 60 for a certificate that it does not trust.
    exit: i32,
    /// Of the last reply; 0: there was none.
    status: u16,
    /// `1.1` or `2`.
    version: String,
    body: String,
}

impl Got {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

fn curl(port: SocketAddr, path: &str, args: &[&str]) -> Got {
    let mut curl = Command::new("curl");
    curl.args(["-sS", "-m", "30", "-H", "Content-Type: application/json"]);
    curl.args(["-w", "\n%{http_code} %{http_version}"])
        .args(args);
    let ran = curl
        .arg(format!("https://localhost:{}{path}", port.port()))
        .output()
        .unwrap();
    let text = String::from_utf8(ran.stdout).unwrap();
    let (body, last) = text.rsplit_once('\n').unwrap();
    let (status, version) = last.split_once(' ').unwrap();
    Got {
        exit: ran.status.code().unwrap(),
        status: status.parse().unwrap(),
        version: version.to_owned(),
        body: body.to_owned(),
    }
}

/// The arguments with which curl trusts this CA, and shows this certificate.
fn with(ca: &Ca, shown: Option<&Signed>) -> Vec<String> {
    let mut args = vec!["--cacert".to_owned(), ca.file().display().to_string()];
    if let Some(Signed { cert, key }) = shown {
        for (name, file) in [("--cert", cert), ("--key", key)] {
            args.extend([name.to_owned(), file.display().to_string()]);
        }
    }
    args
}

/// What `openssl s_client` is told when it has sent this.
pub(super) fn s_client(port: SocketAddr, args: &[&str], sends: &str) -> String {
    let mut client = Command::new("openssl");
    client
        .args(["s_client", "-connect", &port.to_string()])
        .args(args);
    let mut client = client
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut into = client.stdin.take().unwrap();
    // It may have ended already.
    drop(into.write_all(sends.as_bytes()));
    let mut text = Vec::new();
    if sends.is_empty() {
        drop(into);
    }
    client
        .stdout
        .take()
        .unwrap()
        .read_to_end(&mut text)
        .unwrap();
    client.wait().unwrap();
    String::from_utf8_lossy(&text).into_owned()
}

/// The name in the certificate that is shown there.
pub(super) fn shown(port: SocketAddr) -> String {
    let told = s_client(port, &[], "");
    let line = told.lines().find(|line| line.starts_with("subject="));
    line.unwrap_or_else(|| panic!("{told}")).to_owned()
}

#[test]
fn work_passes_over_tls_in_either_version_of_http() {
    let ca = Ca::new();
    let server = ca.server("server");
    let backend = Backend::start(Lax::spec());
    let tls = format!(
        "log_level = \"debug\"\nheader_timeout = \"1s\"\ntls = {{ {} }}",
        server.as_listener()
    );
    let sidecar = Sidecar::run(&config(backend.addr, &tls, ONE));
    has(sidecar.log(), "point SDKs at https://");
    let trusting = with(&ca, None);
    let ask = |version: &str, path: &str, more: &[&str]| {
        let trusting = trusting.iter().map(String::as_str);
        let args = trusting.chain([version]);
        let args: Vec<&str> = args.chain(more.iter().copied()).collect();
        curl(sidecar.data, path, &args)
    };
    // None of these says anything, and none keeps others waiting.
    let mut silent = [(); 20].map(|()| Conn::open(sidecar.data));
    for (version, number) in [("--http1.1", "1.1"), ("--http2", "2")] {
        let job = json!({"type": "t", "args": [], "options": {"queue": "q"}}).to_string();
        let stored = [(); 2].map(|()| ask(version, "/ojs/v1/jobs", &["-d", &job]));
        for one in stored {
            assert_eq!((one.status, &*one.version), (201, number), "{one:?}");
        }
        for _ in 0..2 {
            let wants = json!({"queues": ["q"], "count": 2, "worker_id": "w"}).to_string();
            let got = ask(version, FETCH, &["-d", &wants]);
            assert_eq!((got.status, &*got.version), (200, number), "{got:?}");
            let jobs = got.json()["jobs"].as_array().unwrap().clone();
            assert_eq!(jobs.len(), 1, "{jobs:?}");
            let job = jobs[0]["id"].as_str().unwrap();
            let ack = json!({"job_id": job, "worker_id": "w", "result": {}}).to_string();
            let done = ask(version, ACK, &["-d", &ack]);
            assert_eq!(done.status, 200, "{done:?}");
            assert_eq!(backend.count(EventKind::Acked, job), 1);
        }
        // The rules for heads hold as without TLS.
        for (header, status) in [
            ("Content-Type: application/grpc", 415),
            ("X-OJS-Tenant: a\r\nX-OJS-Tenant: b", 400),
            (
                "Transfer-Encoding: gzip, chunked",
                if number == "2" { 200 } else { 501 },
            ),
        ] {
            let got = ask(version, HEALTH, &["-H", header]);
            let is_ours = got.json()["error"]["request_id"].is_string();
            assert_eq!(
                (got.status, is_ours),
                (status, status != 200),
                "{header}: {got:?}"
            );
        }
        let large = format!("A: {}", "x".repeat(60 * 1024));
        let refused = ask(version, HEALTH, &["-H", &large]);
        assert_eq!(refused.status, 431, "{refused:?}");
    }
    for conn in &mut silent {
        assert!(conn.reply().is_err());
    }
    let twice = "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n";
    let told = s_client(sidecar.data, &["-quiet"], twice);
    assert!(
        told.contains("HTTP/1.1 400 ") && told.contains("two Host headers"),
        "{told}"
    );
    let agreed = s_client(sidecar.data, &["-alpn", "h2"], "");
    assert!(agreed.contains("ALPN protocol: h2"), "{agreed}");
    // The log is the sidecar's: no library says in it what each frame was.
    let log = sidecar.log();
    assert!(log.contains("DEBUG") && !log.contains("frame"), "{log}");
    // Nobody is taken for whom it is not.
    assert_eq!(curl(sidecar.data, HEALTH, &[]).exit, 60);
    assert!(Conn::open(sidecar.data).try_ask("GET", HEALTH, "").is_err());
}

#[test]
fn clients_must_show_a_certificate_that_is_good() {
    let (ca, other) = (Ca::new(), Ca::new());
    let server = ca.server("server");
    let backend = Backend::start(Lax::spec());
    let table = format!(
        "{{ {}, client_ca_file = \"{}\", admin_names = [\"ops\", \"ops.example\", \"spiffe://a/ops\"] }}",
        server.as_listener(),
        ca.file().display()
    );
    let settings = format!("tls = {table}\nadmin_tls = {table}\ncontrol_token = \"s3cret\"");
    let text = config(backend.addr, &settings, ONE).replace("127.0.0.1:0", "0.0.0.0:0");
    let (dir, command) = run_with(&text);
    let path = dir.path().join("throttle.toml");
    let mut sidecar = Sidecar::begin(command, dir);
    let good = ca.client("worker", "DNS:worker");
    let ask = |port: SocketAddr, path: &str, shown: Option<&Signed>, more: &[&str]| {
        let args = with(&ca, shown);
        let args = args.iter().map(String::as_str);
        let args: Vec<&str> = args.chain(more.iter().copied()).collect();
        curl(port, path, &args)
    };
    for (port, path) in [(sidecar.data, HEALTH), (sidecar.admin, "/livez")] {
        for bad in [
            None,
            Some(other.client("x", "DNS:worker")),
            Some(ca.expired("old")),
        ] {
            for version in ["--http1.1", "--http2"] {
                let got = ask(port, path, bad.as_ref(), &[version]);
                assert!(got.exit != 0 && got.status == 0, "{bad:?}: {got:?}");
            }
        }
        let got = ask(port, path, Some(&good), &[]);
        assert_eq!(got.status, 200, "{got:?}");
    }
    for port in [sidecar.data, sidecar.admin].map(|addr| addr.port()) {
        let listen = format!("listen=0.0.0.0:{port} ");
        wait("the log says at which port", || {
            let lines = sidecar.lines();
            let mut refused = lines.iter().filter(|line| line.contains("tls_refused"));
            refused.any(|line| line.contains(&listen))
        });
    }
    // Who may change limits: the name or the token, and no web page.
    let put = ["-X", "PUT", "-d", "{\"concurrency\":0}"];
    let token = [&put[..], &["-H", "Authorization: Bearer s3cret"]].concat();
    let page = [&put[..], &["-H", "Origin: https://evil.example"]].concat();
    for (named, others, args, may) in [
        ("worker", "DNS:worker", &put[..], false),
        ("worker", "DNS:worker", &token, true),
        ("ops", "DNS:other", &put, true),
        ("alice", "DNS:ops.example", &put, true),
        ("bob", "URI:spiffe://a/ops", &put, true),
        (
            "eve",
            "URI:spiffe://a/ops2,DNS:ops.example.org",
            &put,
            false,
        ),
        ("ops", "DNS:other", &page, false),
    ] {
        let shown = ca.client(named, others);
        for (port, path) in [
            (sidecar.data, PAUSE),
            (sidecar.admin, "/throttle/v1/keys/one/override"),
        ] {
            let got = ask(port, path, Some(&shown), args);
            assert_eq!(got.status != 403, may, "{named} {others} {path}: {got:?}");
            assert!(got.status < 500 && got.status > 199, "{got:?}");
        }
    }
    // What is told of it is not for everybody where others reach the port.
    let state = "/throttle/v1/state";
    let ops = ca.client("ops", "DNS:other");
    for (shown, status) in [(&good, 401), (&ops, 200)] {
        let got = ask(sidecar.admin, state, Some(shown), &[]);
        assert_eq!(got.status, status, "{got:?}");
    }
    // The commands of the same file are let in.
    let mut why = program();
    why.args(["why", "--queue", "q", "--config"]).arg(&path);
    let sent = fs::read_to_string(&path).unwrap();
    let real = sent.replacen(
        "admin_listen = \"0.0.0.0:0\"",
        &format!("admin_listen = \"{}\"", sidecar.admin),
        1,
    );
    fs::write(&path, real).unwrap();
    let why = ran(&mut why);
    assert_eq!(why.status, Some(0), "{} {}", why.out, why.err);
    assert!(sidecar.runs());
}

/// Who watches through a tunnel gets the page and its states in gzip, each state as soon as it is there.
#[test]
fn a_browser_gets_page_and_states_in_gzip() {
    let (_backend, sidecar) = pair("", "");
    let curl = |path: &str, more: &[&str]| {
        let url = format!("http://{}{path}", sidecar.admin);
        let mut curl = Command::new("curl");
        curl.args(["-sSN", "-D", "-", "--max-time", "5", &url])
            .args(more);
        String::from_utf8_lossy(&curl.output().unwrap().stdout).into_owned()
    };
    let packed = ["--compressed"];
    for (more, is_packed) in [(&packed[..], true), (&[], false)] {
        let page = curl("/", more);
        let says = page.to_lowercase().contains("content-encoding: gzip");
        assert!(
            says == is_packed && page.contains("</html>"),
            "{more:?}: {}",
            page.len()
        );
    }
    let watched = curl(
        "/throttle/v1/state",
        &["--compressed", "-H", "Accept: text/event-stream"],
    );
    let states = watched.matches("event: state\ndata: {\"at\":").count();
    has(watched.to_lowercase(), "content-encoding: gzip");
    assert!((3..=6).contains(&states), "{states} in five seconds");
}

/// Kubernetes swaps a link to the folder of a secret, under a link for each file.
#[test]
fn certificates_are_swapped_without_a_failed_request() {
    let ca = Ca::new();
    let dir = tempfile::tempdir().unwrap();
    let put = |folder: &str, signed: &Signed, key: &[u8]| {
        let folder = dir.path().join(folder);
        fs::create_dir(&folder).unwrap();
        fs::copy(&signed.cert, folder.join("tls.crt")).unwrap();
        fs::write(folder.join("tls.key"), key).unwrap();
        symlink(&folder, dir.path().join("..new")).unwrap();
        fs::rename(dir.path().join("..new"), dir.path().join("..data")).unwrap();
    };
    let [first, second, third] = ["first", "second", "third"].map(|name| ca.server(name));
    let key = |of: &Signed| fs::read(&of.key).unwrap();
    put("1", &first, &key(&first));
    for name in ["tls.crt", "tls.key"] {
        symlink(Path::new("..data").join(name), dir.path().join(name)).unwrap();
    }
    let linked = Signed {
        cert: dir.path().join("tls.crt"),
        key: dir.path().join("tls.key"),
    };
    let backend = Backend::start(Lax::spec());
    let tls = format!("tls = {{ {} }}", linked.as_listener());
    let sidecar = Sidecar::run(&config(backend.addr, &tls, ONE));
    let fine = "ojs_throttle_config_last_reload_successful";
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Ends(&over);
        let mut loads = Vec::new();
        for version in ["--http1.1", "--http2", "--http1.1"] {
            let (trusting, over, data) = (with(&ca, None), &over, sidecar.data);
            loads.push(scope.spawn(move || {
                let mut runs = 0;
                while !over.load(Ordering::SeqCst) {
                    // Each run connects anew, and keeps its connection for all of these.
                    let args = [&trusting[0], &trusting[1], version].map(|arg| arg as &str);
                    let got = curl(data, &format!("{HEALTH}?[1-20]"), &args);
                    assert_eq!((got.exit, got.status), (0, 200), "{got:?}");
                    let fine = got.body.matches("\n200 ").count();
                    assert_eq!(fine, 19, "{got:?}");
                    runs += 1;
                }
                runs
            }));
        }
        assert!(shown(sidecar.data).ends_with("first"));
        put("2", &second, &key(&second));
        wait("the second one", || shown(sidecar.data).ends_with("second"));
        // Half a file, and the key of another: the last good ones go on, and it is told like a bad config.
        let half = key(&third);
        for (folder, key) in [("3", &half[..half.len() / 2]), ("4", &key(&first))] {
            put(folder, &third, key);
            wait("it is told", || sidecar.metric(fine) == 0.0);
            let refusals = || sidecar.log().matches("config_refused").count();
            wait("the log says which", || {
                sidecar.log().contains("server.tls.key_file") && refusals() > 0
            });
            let health = curl(
                sidecar.data,
                HEALTH,
                &[&with(&ca, None)[0], &with(&ca, None)[1]],
            );
            assert_eq!(health.json()["throttle"]["config_file"], "refused");
            assert!(shown(sidecar.data).ends_with("second"));
        }
        put("5", &third, &key(&third));
        wait("the third one", || shown(sidecar.data).ends_with("third"));
        assert_eq!(sidecar.metric(fine), 1.0);
        over.store(true, Ordering::SeqCst);
        for load in loads {
            assert!(load.join().unwrap() > 0);
        }
    });
}

/// A connection over HTTP/2, and when it ended.
async fn h2(sidecar: &Sidecar, ca: &Ca) -> (SendRequest<Full<Bytes>>, tokio::task::JoinHandle<()>) {
    let files = ClientFiles {
        ca: Some(ca.file()),
        ..ClientFiles::default()
    };
    let tls = ClientTls::new(files, PlatformRoots::WithoutOthers, &[b"h2"]).unwrap();
    let socket = tokio::net::TcpStream::connect(sidecar.data).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let connector = TlsConnector::from(tls.config());
    let stream = connector.connect(name, socket).await.unwrap();
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .unwrap();
    let ended = tokio::spawn(async move { drop(connection.await) });
    (sender, ended)
}

fn post(path: &str, body: Value) -> Request<Full<Bytes>> {
    let request = Request::post(format!("https://localhost{path}"));
    let request = request.header("Content-Type", "application/json");
    request.body(Full::from(body.to_string())).unwrap()
}

/// Requests of one connection overlap, and each may end without the others.
#[test]
fn over_http_2_a_worker_that_hangs_up_one_request_gets_no_job_by_it_and_a_drain_is_told() {
    let ca = Ca::new();
    let backend = Backend::start(Lax::spec());
    let tls = format!(
        "tls = {{ {} }}\ndrain_min = \"20s\"",
        ca.server("server").as_listener()
    );
    let rest = format!("{ONE}[fetch]\nmax_wait = \"20s\"\n");
    let sidecar = Sidecar::run(&config(backend.addr, &tls, &rest));
    let runtime = crate::servers::runtime();
    runtime.block_on(async {
        let (mut sender, ended) = h2(&sidecar, &ca).await;
        let wants = |worker: &str| {
            post(
                FETCH,
                json!({"queues": ["q"], "count": 1, "worker_id": worker}),
            )
        };
        let job = || {
            post(
                "/ojs/v1/jobs",
                json!({"type": "t", "args": [], "options": {"queue": "q"}}),
            )
        };
        // Who was sent away empty and comes back after a pause waits long.
        for worker in ["gone", "stays"] {
            assert_eq!(
                sender.send_request(wants(worker)).await.unwrap().status(),
                200
            );
        }
        tokio::time::sleep(Duration::from_millis(150)).await;
        // Two wait for the only slot; one of them goes.
        for _ in 0..2 {
            assert_eq!(sender.send_request(job()).await.unwrap().status(), 201);
        }
        let reply = sender.send_request(wants("a")).await.unwrap();
        let first: Value =
            serde_json::from_slice(&reply.into_body().collect().await.unwrap().to_bytes()).unwrap();
        let first = first["jobs"][0]["id"].as_str().unwrap().to_owned();
        let gone = tokio::spawn(sender.send_request(wants("gone")));
        let waiting = || sidecar.metric("ojs_throttle_requests_in_flight{kind=\"ordinary\"}");
        let until = async |many: f64| {
            while waiting() != many {
                tokio::time::sleep(Duration::from_millis(5)).await
            }
        };
        until(1.0).await;
        let stays = tokio::spawn(sender.send_request(wants("stays")));
        until(2.0).await;
        gone.abort();
        until(1.0).await;
        let done = json!({"job_id": first, "worker_id": "a", "result": {}});
        assert_eq!(
            sender.send_request(post(ACK, done)).await.unwrap().status(),
            200
        );
        let got = stays
            .await
            .unwrap()
            .unwrap()
            .into_body()
            .collect()
            .await
            .unwrap()
            .to_bytes();
        let got: Value = serde_json::from_slice(&got).unwrap();
        assert_eq!(got["jobs"].as_array().unwrap().len(), 1, "{got}");
        // Host and authority say one thing.
        let mut two = post("/ojs/v1/jobs", json!({}));
        two.headers_mut().insert("host", "other".parse().unwrap());
        assert_eq!(sender.send_request(two).await.unwrap().status(), 400);
        drop(ended);

        let (mut sender, ended) = h2(&sidecar, &ca).await;
        let health = || {
            Request::get(format!("https://localhost{HEALTH}"))
                .body(Full::default())
                .unwrap()
        };
        assert_eq!(sender.send_request(health()).await.unwrap().status(), 200);
        sidecar.signal("TERM");
        sidecar.state("draining");
        let last = sender.send_request(health()).await.unwrap();
        assert_eq!(last.status(), 200);
        drop(last);
        // It was told to go elsewhere.
        let ended = tokio::time::timeout(Duration::from_secs(60), ended).await;
        ended.expect("the connection stays open").unwrap();
    });
}
