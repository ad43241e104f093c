//! A Postgres of the test's own, on a socket in a folder of its own.

use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use super::only_on;

const MISSING: &str =
    "postgres is missing: apt install postgresql, or tests/run.sh --without postgres";

/// What a test kills is the server and not the machine: nothing need reach the disk, which may be busy.
pub const UNSYNCED: &[&str] = &["-c", "fsync=off"];

/// A server that is ended with this, and by the end of this process however that comes.
pub struct PostgresServer {
    pub dir: tempfile::TempDir,
    /// A shell that has the server as its child and waits for the end of its input.
    shell: Option<Child>,
    user: Option<(u32, u32)>,
    /// Names its socket, and where it listens if `with` says so.
    port: u16,
    with: Vec<String>,
}

/// The newest installed.
pub fn programs() -> PathBuf {
    let mut found: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(|version| Some(version.ok()?.path().join("bin")))
        .filter(|bin| bin.join("initdb").exists())
        .collect();
    found.sort();
    found.pop().unwrap_or_else(|| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found = std::env::split_paths(&path).find(|bin| bin.join("initdb").exists());
        found.expect(MISSING)
    })
}

/// Postgres refuses to run as root: who it is to run as then.
pub fn other_user(dir: &Path) -> Option<(u32, u32)> {
    if std::fs::metadata(dir).unwrap().uid() != 0 {
        return None;
    }
    let users = std::fs::read_to_string("/etc/passwd").unwrap();
    let user = ["postgres:", "nobody:"]
        .iter()
        .find_map(|name| users.lines().find(|line| line.starts_with(name)));
    let mut numbers = user.expect("a user to run Postgres").split(':').skip(2);
    let mut number = || numbers.next().unwrap().parse().unwrap();
    Some((number(), number()))
}

impl PostgresServer {
    pub fn start(with: &[&str]) -> PostgresServer {
        PostgresServer::on(5432, with)
    }

    pub fn on(port: u16, with: &[&str]) -> PostgresServer {
        only_on("postgres");
        let dir = tempfile::tempdir().unwrap();
        let user = other_user(dir.path());
        if let Some((user, group)) = user {
            chown(dir.path(), Some(user), Some(group)).unwrap();
        }
        let mut server = PostgresServer {
            dir,
            shell: None,
            user,
            port,
            with: with.iter().map(|&word| word.to_owned()).collect(),
        };
        let mut initdb = server.command(&programs().join("initdb"));
        initdb.arg("-D").arg(server.data());
        initdb.args([
            "-U",
            "postgres",
            "-A",
            "trust",
            "--no-sync",
            "-E",
            "UTF8",
            "--locale=C",
        ]);
        let made = initdb.output().expect(MISSING);
        assert!(made.status.success(), "{made:?}");
        server.restart();
        server
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        if let Some((user, group)) = self.user {
            command.uid(user).gid(group);
        }
        command.current_dir(self.dir.path());
        command
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// The name of its socket.
    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        let folder = self.dir.path().display();
        format!("postgres://postgres@/postgres?host={folder}")
    }

    /// As `kill -9` of all its processes: the others notice that the first one is gone, and this waits
    /// for the last of them. Until then one may still answer, and keeps a new server from starting.
    pub fn kill(&mut self) {
        let Some(mut shell) = self.shell.take() else {
            return;
        };
        drop(shell.stdin.take());
        // Each of them has the other end, and writes nothing.
        let mut theirs = shell.stdout.take().expect("it is piped");
        let (give, ended) = mpsc::channel();
        std::thread::spawn(move || give.send(theirs.read_to_end(&mut Vec::new())));
        shell.wait().unwrap();
        let ended = ended.recv_timeout(Duration::from_secs(30));
        ended.expect("a process of Postgres runs on").unwrap();
    }

    /// Starts again on the same data.
    pub fn restart(&mut self) {
        let script = "\"$@\" </dev/null 2>/dev/null & read -r end; kill -9 $!; wait $!";
        let mut shell = self.command(Path::new("/bin/sh"));
        shell
            .args(["-c", script, "sh"])
            .arg(programs().join("postgres"));
        shell
            .arg("-D")
            .arg(self.data())
            .arg("-k")
            .arg(self.dir.path());
        shell.args(["-p", &self.port.to_string()]);
        shell.args(["-c", "listen_addresses="]).args(&self.with);
        shell
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        self.shell = Some(shell.spawn().unwrap());
        let ready = programs().join("pg_isready");
        for _ in 0..600 {
            let mut ready = Command::new(&ready);
            ready
                .args(["-q", "-U", "postgres", "-p", &self.port.to_string(), "-h"])
                .arg(self.dir.path());
            if ready.status().unwrap().success() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("postgres does not start")
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.kill();
    }
}
