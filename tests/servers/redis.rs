//! A Redis of the test's own.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::{only_on, port};

/// A server in a folder of its own, on a free port; ended with this.
pub struct RedisServer {
    child: Child,
    program: PathBuf,
    pub port: u16,
    pub dir: tempfile::TempDir,
}

impl RedisServer {
    pub fn start() -> RedisServer {
        RedisServer::with(&[])
    }

    pub fn with(more: &[&str]) -> RedisServer {
        RedisServer::of("redis-server".into(), more)
    }

    fn of(program: PathBuf, more: &[&str]) -> RedisServer {
        only_on("redis");
        let dir = tempfile::tempdir().unwrap();
        // Somebody else may take the port in between; then it does not start, and another is tried.
        for _ in 0..20 {
            let port = free_port();
            if let Some(child) = serve(&program, port, dir.path(), more) {
                return RedisServer {
                    child,
                    program,
                    port,
                    dir,
                };
            }
        }
        panic!("redis-server does not start")
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// As `kill -9`.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts again on the same port.
    pub fn restart(&mut self, more: &[&str]) {
        let child = serve(&self.program, self.port, self.dir.path(), more);
        self.child = child.expect("its port is still free");
    }
}

/// A server of the oldest version that will do, 6.2, from where `tests/run.sh` puts it.
pub struct OldRedis;

impl OldRedis {
    pub fn start() -> RedisServer {
        only_on("redis_6");
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("redis-6.2/redis-server");
        let missing = "Redis 6.2 is missing: bash tests/run.sh fetches it, or --without redis_6";
        assert!(program.exists(), "{missing}");
        RedisServer::of(program, &[])
    }
}

/// A port that is free, and stays so while its server is away.
pub fn free_port() -> u16 {
    port::own().port()
}

fn serve(program: &Path, port: u16, dir: &Path, more: &[&str]) -> Option<Child> {
    let mut child = Command::new(program)
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args(["--save", "", "--appendonly", "no", "--dir"])
        .arg(dir)
        .args(more)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect(
            "redis-server is missing: apt install redis-server, or tests/run.sh --without redis",
        );
    let said = child.stdout.take().expect("it is piped");
    let mut lines = BufReader::new(said).lines();
    let ready = lines.any(|line| line.is_ok_and(|line| line.contains("Ready to accept")));
    if ready {
        // It must not wait for someone to read what it says.
        std::thread::spawn(move || lines.for_each(drop));
        return Some(child);
    }
    child.wait().ok();
    None
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
