//! A pooler of the test's own, before a Postgres of its own.

use std::net::TcpStream;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::postgres::{PostgresServer, UNSYNCED, other_user};
use super::{only_on, port};

const MISSING: &str =
    "pgbouncer is missing: apt install pgbouncer, or tests/run.sh --without pgbouncer";

/// A pooler and what is behind it; both end with this.
pub struct PgBouncer {
    pooler: Child,
    port: u16,
    _dir: tempfile::TempDir,
    _postgres: PostgresServer,
}

impl PgBouncer {
    /// In a `pool_mode`.
    pub fn start(mode: &str) -> PgBouncer {
        only_on("pgbouncer");
        let postgres = PostgresServer::start(UNSYNCED);
        let dir = tempfile::tempdir().unwrap();
        let port = port::own().port();
        let text = format!(
            "[databases]\n* = host={} port={} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = {mode}\n",
            postgres.dir.path().display(),
            postgres.port()
        );
        let file = dir.path().join("pgbouncer.ini");
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new("pgbouncer");
        // It refuses to run as root, as Postgres does.
        if let Some((user, group)) = other_user(dir.path()) {
            chown(dir.path(), Some(user), Some(group)).unwrap();
            chown(&file, Some(user), Some(group)).unwrap();
            command.uid(user).gid(group);
        }
        command.arg(&file).current_dir(dir.path());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let pooler = command.spawn().expect(MISSING);
        let deadline = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < deadline, "the pooler does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        PgBouncer {
            pooler,
            port,
            _dir: dir,
            _postgres: postgres,
        }
    }

    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        self.pooler.kill().ok();
        self.pooler.wait().ok();
    }
}
