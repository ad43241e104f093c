//! A Prometheus of the test's own, and its tool.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{only_on, port};

const MISSING: &str =
    "prometheus is missing: apt install prometheus, or tests/run.sh --without prometheus";

/// What comes before the config's own lines: it looks every second.
const EVERY_SECOND: &str =
    "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\n";

/// A server in a folder of its own; ended with this.
pub struct PrometheusServer {
    child: Child,
    addr: SocketAddr,
    _dir: tempfile::TempDir,
}

impl PrometheusServer {
    /// Scrapes this address every second, as `job`, and evaluates these rules as often.
    pub fn scraping(job: &str, target: SocketAddr, rules: &Path) -> PrometheusServer {
        only_on("prometheus");
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("prometheus.yml");
        let scrapes = format!(
            "rule_files: [{rules:?}]\nscrape_configs: [{{job_name: {job}, static_configs: [{{targets: [\"{target}\"]}}]}}]\n"
        );
        std::fs::write(&config, EVERY_SECOND.to_owned() + &scrapes).unwrap();
        let addr = port::own();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", dir.path().display()))
            .arg(format!("--web.listen-address={addr}"))
            .arg("--log.level=error")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect(MISSING);
        let mut server = PrometheusServer {
            child,
            addr,
            _dir: dir,
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        while server.get("/-/ready").is_none_or(|(head, _)| !is_ok(&head)) {
            let ended = server.child.try_wait().unwrap();
            assert!(ended.is_none(), "prometheus ended: {ended:?}");
            assert!(Instant::now() < deadline, "prometheus is not ready");
            std::thread::sleep(Duration::from_millis(50));
        }
        server
    }

    /// The head and the body of an answer.
    fn get(&self, path: &str) -> Option<(String, String)> {
        let mut stream = TcpStream::connect(self.addr).ok()?;
        // In this version the body ends with the connection.
        let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.to_owned(), body.to_owned()))
    }

    /// The `data` that a path of the API answers; what `fields` say is escaped.
    pub fn api(&self, path: &str, fields: &[(&str, &str)]) -> Value {
        let fields: Vec<String> = fields
            .iter()
            .map(|(name, value)| format!("{name}={}", escaped(value)))
            .collect();
        let path = format!("/api/v1/{path}?{}", fields.join("&"));
        let (head, body) = self.get(&path).expect("prometheus answers");
        assert!(is_ok(&head), "{path}: {body}");
        let mut answer: Value = serde_json::from_str(&body).unwrap();
        answer["data"].take()
    }
}

impl Drop for PrometheusServer {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn is_ok(head: &str) -> bool {
    head.split(' ').nth(1) == Some("200")
}

/// As a part of a query.
fn escaped(text: &str) -> String {
    let each = text.bytes().map(|byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    });
    each.collect()
}

/// Runs `promtool` in this folder, which must be content. It may read the file `page` there as its input.
pub fn promtool(folder: &Path, arguments: &[&str]) {
    only_on("prometheus");
    let mut command = Command::new("promtool");
    command.current_dir(folder).args(arguments);
    if let Ok(page) = std::fs::File::open(folder.join("page")) {
        command.stdin(page);
    }
    let done = command.output().expect(MISSING);
    let said = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{arguments:?}: {said}");
}
