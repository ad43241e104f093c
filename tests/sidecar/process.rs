//! The program as processes that end with the test, and the embedded backend behind them on a thread of its own. No other
//! file of the tests names the program.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ojs_throttle::backend::{self, Event, EventKind, Lax};
use ojs_throttle::net::Net;
use tokio_util::sync::CancellationToken;

use crate::process::http::get;
use crate::servers::port;

/// The most that any wait may take.
pub const LONG: Duration = Duration::from_secs(60);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(5);

/// Looks until there is something to see.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LONG;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < deadline, "not within {LONG:?}: {what}");
        std::thread::sleep(LOOK);
    }
}

/// Looks until it is so.
pub fn wait(what: &str, mut is_so: impl FnMut() -> bool) {
    let look: &mut dyn FnMut() -> Option<()> = &mut || is_so().then_some(());
    until(what, look);
}

/// Fails, and shows the text, unless it has this part.
#[track_caller]
pub fn has(text: impl AsRef<str>, part: &str) {
    let text = text.as_ref();
    assert!(text.contains(part), "no {part:?} in: {text}");
}

/// Tells threads to stop whatever becomes of the test: a scope waits for them also where it fails.
pub struct Ends<'a>(pub &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A backend on a runtime of its own, which may go away and come back with what it knew.
pub struct Backend {
    pub addr: SocketAddr,
    backend: backend::Backend,
    serving: Option<(CancellationToken, JoinHandle<()>)>,
}

impl Backend {
    pub fn start(lax: Lax) -> Backend {
        let mut backend = Backend::absent(lax);
        backend.come();
        backend
    }

    /// Not there yet; its address is one that was free.
    pub fn absent(lax: Lax) -> Backend {
        Backend {
            addr: port::own(),
            backend: backend::Backend::new(lax, 1),
            serving: None,
        }
    }

    pub fn come(&mut self) {
        let (gone, backend, addr) = (CancellationToken::new(), self.backend.clone(), self.addr);
        let (ended, (give, take)) = (gone.clone(), std::sync::mpsc::channel());
        let thread = std::thread::spawn(move || {
            let runtime = crate::servers::runtime();
            runtime.block_on(async {
                // A program that another test starts has copies of this one's sockets for a moment, also of the one
                // by which the port was found to be free.
                let patience = Instant::now() + Duration::from_secs(10);
                let listener = loop {
                    match Net::Tcp.bind(addr).await {
                        Err(error)
                            if error.kind() == ErrorKind::AddrInUse
                                && Instant::now() < patience =>
                        {
                            tokio::time::sleep(Duration::from_millis(1)).await;
                        }
                        bound => break bound.unwrap(),
                    }
                };
                give.send(()).unwrap();
                // Not asked to stop but dropped, with all its connections.
                tokio::select! {
                    () = backend.serve(listener, CancellationToken::new()) => {}
                    () = ended.cancelled() => {}
                }
            });
        });
        take.recv().unwrap();
        self.serving = Some((gone, thread));
    }

    pub fn go(&mut self) {
        if let Some((gone, thread)) = self.serving.take() {
            gone.cancel();
            thread.join().unwrap();
        }
    }

    pub fn ledger(&self) -> Vec<Event> {
        self.backend.ledger()
    }

    /// How often this happened to a job.
    pub fn count(&self, kind: EventKind, job: &str) -> usize {
        let ledger = self.ledger();
        let of = ledger.iter().filter(|event| *event.job == *job);
        of.filter(|event| event.kind == kind).count()
    }

    /// How often this happened at all.
    pub fn total(&self, kind: EventKind) -> usize {
        let ledger = self.ledger();
        ledger.iter().filter(|event| event.kind == kind).count()
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        if let Some((gone, thread)) = self.serving.take() {
            gone.cancel();
            // A panic there has failed the test already.
            drop(thread.join());
        }
    }
}

/// The program, without anything of this process's environment that it reads; another build of it where
/// `OJS_THROTTLE_PROGRAM` names one.
pub fn program() -> Command {
    let built = env!("CARGO_BIN_EXE_ojs-throttle");
    let other = std::env::var_os("OJS_THROTTLE_PROGRAM");
    let mut command = Command::new(other.unwrap_or_else(|| built.into()));
    for (name, _) in std::env::vars_os() {
        let is_read = |begin: &&[u8]| name.as_encoded_bytes().starts_with(begin);
        if [&b"OJS_THROTTLE_"[..], b"OTEL_"].iter().any(is_read) {
            command.env_remove(name);
        }
    }
    command.env_remove("COLUMNS").env_remove("NO_COLOR");
    command.stdin(Stdio::null());
    command
}

/// What a run that ended by itself left.
pub struct Ran {
    pub status: Option<i32>,
    pub out: String,
    pub err: String,
}

/// Runs the program to its end; one that does not end fails the test.
pub fn ran(command: &mut Command) -> Ran {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let read = |from: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut text = String::new();
            from.unwrap().read_to_string(&mut text).unwrap();
            text
        })
    };
    let out = read(child.stdout.take().map(|out| Box::new(out) as _));
    let err = read(child.stderr.take().map(|err| Box::new(err) as _));
    let deadline = Instant::now() + LONG;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("it runs on: {}", err.join().unwrap());
        }
        std::thread::sleep(LOOK);
    };
    Ran {
        status: status.code(),
        out: out.join().unwrap(),
        err: err.join().unwrap(),
    }
}

/// A folder of the test's own, and a file in it.
pub fn file(text: impl AsRef<[u8]>) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("throttle.toml");
    std::fs::write(&path, text).unwrap();
    (dir, path)
}

/// Runs the program with these words to its end.
pub fn run(words: &str) -> Ran {
    ran(program().args(words.split_whitespace()))
}

/// The program that runs with this config, and the folder of that.
pub fn run_with(config: impl AsRef<[u8]>) -> (tempfile::TempDir, Command) {
    let (dir, path) = file(config);
    (dir, run_at(path))
}

/// The program that runs with the config at this path.
pub fn run_at(path: impl AsRef<OsStr>) -> Command {
    let mut command = program();
    command.arg("run").arg("--config").arg(path);
    command
}

/// A config before this backend: `server` is added to `[server]`, `rest` stands behind it. A stop waits for
/// nothing but limited jobs, unless `server` says how long, and an empty FETCH for half a second, unless `rest` does.
pub fn config(upstream: SocketAddr, server: &str, rest: &str) -> String {
    let least = match server.contains("drain_min") {
        true => "",
        false => "drain_min = \"0s\"",
    };
    let wait = match rest.contains("[fetch]") {
        true => "",
        false => "[fetch]\nmax_wait = \"500ms\"\n",
    };
    let rest = format!("{least}\n{server}\n{rest}\n{wait}");
    super::config(&format!("http://{upstream}"), &rest)
}

/// A backend by the text, and the program before it; the words as in [`config`].
pub fn pair(server: &str, rest: &str) -> (Backend, Sidecar) {
    let backend = Backend::start(Lax::spec());
    let sidecar = Sidecar::run(&config(backend.addr, server, rest));
    (backend, sidecar)
}

/// A running program.
pub struct Sidecar {
    /// Nowhere, if it has no backend.
    pub data: SocketAddr,
    pub admin: SocketAddr,
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
    /// Reads the log to its end.
    reads: Option<JoinHandle<()>>,
    _dir: tempfile::TempDir,
}

impl Sidecar {
    /// `run` with this config.
    pub fn run(config: &str) -> Sidecar {
        let (dir, command) = run_with(config);
        Sidecar::spawn(command, dir)
    }

    /// Starts a command and waits until it is ready.
    pub fn spawn(command: Command, dir: tempfile::TempDir) -> Sidecar {
        let sidecar = Sidecar::begin(command, dir);
        sidecar.state("ready");
        sidecar
    }

    /// Starts a command and waits until it says where it listens.
    pub fn begin(command: Command, dir: tempfile::TempDir) -> Sidecar {
        let mut sidecar = Sidecar::launch(command, dir);
        sidecar.listens();
        sidecar
    }

    /// Starts a command; nobody knows yet where it listens.
    pub fn launch(mut command: Command, dir: tempfile::TempDir) -> Sidecar {
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::<Mutex<Vec<String>>>::default();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let noted = Arc::clone(&log);
        let reads = std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                noted.lock().unwrap().push(line);
            }
        });
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        Sidecar {
            data: nowhere,
            admin: nowhere,
            child,
            log,
            reads: Some(reads),
            _dir: dir,
        }
    }

    /// Waits until it says where it listens.
    pub fn listens(&mut self) {
        let line = until("the line that says where it listens", || {
            let line = self
                .lines()
                .into_iter()
                .find(|line| line.contains("point SDKs at") || line.contains("no backend:"));
            assert!(
                line.is_some() || self.child.try_wait().unwrap().is_none(),
                "it ended: {}",
                self.log()
            );
            line
        });
        if line.contains("point SDKs at") {
            self.data = address(&line, "data");
        }
        self.admin = address(&line, "admin");
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A number of `/proc/PID/status`: threads, or memory in KiB.
    pub fn status(&self, name: &str) -> usize {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let number = line.unwrap().trim_start_matches(':').split_whitespace();
        number.into_iter().next().unwrap().parse().unwrap()
    }

    pub fn lines(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    pub fn log(&self) -> String {
        self.lines().join("\n")
    }

    /// Waits for the first line of its log with these words.
    pub fn line(&self, words: &str) -> String {
        let has = |line: &String| line.contains(words);
        until(words, || self.lines().into_iter().find(has))
    }

    /// Waits until `/readyz` says this.
    pub fn state(&self, word: &str) {
        let status = if word == "ready" { 200 } else { 503 };
        wait(word, || {
            let page = get(self.admin, "/readyz");
            page.body.trim() == word && page.status == status
        });
    }

    pub fn metrics(&self) -> String {
        get(self.admin, "/metrics").body
    }

    /// The value of one series; 0 if there is none.
    pub fn metric(&self, series: &str) -> f64 {
        let page = self.metrics();
        let value = |line: &str| Some(line.strip_prefix(series)?.strip_prefix(' ')?.to_owned());
        let value = page.lines().find_map(value);
        value.map_or(0.0, |value| value.trim().parse().unwrap())
    }

    /// Waits until a series has this value.
    pub fn shows(&self, series: &str, value: f64) {
        wait(series, || self.metric(series) == value);
    }

    pub fn signal(&self, name: &str) {
        let sent = Command::new("sh")
            .args(["-c", &format!("kill -s {name} {}", self.pid())])
            .status();
        assert!(sent.unwrap().success(), "{name}");
    }

    pub fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for its end, and for the last line of its log.
    pub fn ended(&mut self) -> ExitStatus {
        let log = Arc::clone(&self.log);
        let deadline = Instant::now() + LONG;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                if let Some(reads) = self.reads.take() {
                    reads.join().unwrap();
                }
                return status;
            }
            let lines = || log.lock().unwrap().join("\n");
            assert!(Instant::now() < deadline, "it runs on: {}", lines());
            std::thread::sleep(LOOK);
        }
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.ended();
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
        if std::thread::panicking() {
            eprintln!("the sidecar said:\n{}", self.log());
        }
    }
}

/// The address behind `name` in a log line of either format.
fn address(line: &str, name: &str) -> SocketAddr {
    let json = format!("\"{name}\":\"");
    let human = format!("{name}=");
    let (_, rest) = line
        .split_once(&json)
        .or_else(|| line.split_once(&human))
        .unwrap_or_else(|| panic!("no {name} in {line}"));
    let end = rest.find(['"', ' ']).unwrap_or(rest.len());
    rest[..end].parse().unwrap()
}
