//! What a service manager and a container's health check learn of the sidecar, and what the program says of itself.

use std::os::unix::net::UnixDatagram;

use super::prelude::*;

/// The socket of a service manager.
struct Manager {
    socket: UnixDatagram,
    dir: tempfile::TempDir,
}

impl Manager {
    fn new() -> Manager {
        let dir = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(dir.path().join("notify")).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        Manager { socket, dir }
    }

    fn hears(&self) -> String {
        let mut said = [0; 1024];
        let length = self.socket.recv(&mut said).expect("it says something");
        String::from_utf8(said[..length].to_vec()).unwrap()
    }

    /// The next that is no sign of life, within 30 s.
    fn next(&self) -> String {
        let begun = Instant::now();
        loop {
            let said = self.hears();
            if !said.contains("WATCHDOG=1") {
                return said;
            }
            let lives = begun.elapsed() < Duration::from_secs(30);
            assert!(lives, "it lives, and says nothing else");
        }
    }
}

#[test]
fn a_service_manager_hears_how_it_is() {
    let backend = Backend::start(Lax::spec());
    let manager = Manager::new();
    let (dir, mut command) = run_with(config(backend.addr, "", ""));
    command.env("NOTIFY_SOCKET", manager.dir.path().join("notify"));
    command
        .env("WATCHDOG_USEC", "100000")
        .env_remove("WATCHDOG_PID");
    let mut sidecar = Sidecar::spawn(command, dir);
    assert_eq!(manager.next().trim(), "READY=1");
    let begun = Instant::now();
    for _ in 0..4 {
        assert_eq!(manager.hears().trim(), "WATCHDOG=1");
    }
    assert!(
        begun.elapsed() < Duration::from_secs(2),
        "{:?}",
        begun.elapsed()
    );
    let before = monotonic_now();
    sidecar.signal("HUP");
    let reloading = manager.next();
    let mut lines = reloading.lines();
    assert_eq!(lines.next(), Some("RELOADING=1"));
    let at = lines
        .next()
        .unwrap()
        .strip_prefix("MONOTONIC_USEC=")
        .unwrap();
    let at: u128 = at.parse().unwrap();
    assert!((before..before + 30_000_000).contains(&at), "{before} {at}");
    assert_eq!(manager.next().trim(), "READY=1");
    sidecar.signal("TERM");
    assert_eq!(manager.next().trim(), "STOPPING=1");
    assert!(sidecar.ended().success());
}

/// The monotonic clock, as the system shows it, in microseconds.
fn monotonic_now() -> u128 {
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
    let seconds: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
    // It is given in hundredths.
    ((seconds - 0.02) * 1e6) as u128
}

fn health(set: impl FnOnce(&mut Command)) -> (Option<i32>, String) {
    let mut command = program();
    command.arg("healthcheck");
    set(&mut command);
    let done = ran(command);
    (done.status, done.err)
}

#[test]
fn a_health_check_asks_the_sidecar_of_its_config() {
    let backend = Backend::start(Lax::spec());
    let admin = crate::servers::port::own().to_string();
    let (dir, path) = file(config(backend.addr, "", ""));
    let mut command = program();
    command.arg("run").arg("--config").arg(&path);
    command
        .args(["--listen", "127.0.0.1:0"])
        .env("OJS_THROTTLE_ADMIN_LISTEN", &admin);
    let sidecar = Sidecar::spawn(command, dir);
    let of_file = |command: &mut Command| {
        command
            .arg("--config")
            .arg(&path)
            .env("OJS_THROTTLE_ADMIN_LISTEN", &admin);
    };
    assert_eq!(health(of_file).0, Some(0));
    let said = format!("http://{admin}");
    assert_eq!(
        health(|command| {
            command.args(["--admin", &said]);
        })
        .0,
        Some(0)
    );
    // A file that became wrong is not what runs.
    std::fs::write(
        &path,
        format!("[server]\nlog = 7\nadmin_listen = \"{admin}\"\n"),
    )
    .unwrap();
    assert_eq!(
        health(|command| {
            command.env("OJS_THROTTLE_CONFIG", &path);
        })
        .0,
        Some(0)
    );
    drop(sidecar);
    let (status, told) = health(of_file);
    assert_eq!(status, Some(1), "{told}");
    assert!(told.contains(&admin), "{told}");
}

/// Nothing takes its work before the store has answered.
#[test]
fn who_is_not_ready_is_not_healthy() {
    let backend = Backend::start(Lax::spec());
    let rest = "[store]\nurl = \"redis://127.0.0.1:1\"\n";
    let (dir, command) = run_with(config(backend.addr, "", rest));
    let sidecar = Sidecar::begin(command, dir);
    let admin = format!("http://{}", sidecar.admin);
    let (status, told) = health(|command| {
        command.env("OJS_THROTTLE_ADMIN", &admin);
    });
    assert_eq!(status, Some(1));
    assert!(told.contains("503"), "{told}");
}

#[test]
fn the_program_says_what_it_is() {
    let said = |args: &[&str]| {
        let mut command = program();
        command.args(args);
        let done = ran(command);
        assert_eq!(done.status, Some(0), "{args:?}: {}", done.err);
        done.out
    };
    assert_eq!(said(&["-V"]).lines().count(), 1);
    let version = said(&["--version"]);
    let lines: Vec<&str> = version.lines().collect();
    assert!(lines[0].starts_with("ojs-throttle "), "{version}");
    assert!(
        lines[1].starts_with("build: ") && lines[2].starts_with("features: "),
        "{version}"
    );
    assert!(said(&["example", "man"]).contains(".SH SUBCOMMANDS"));
    for (shell, words) in [
        ("bash", "complete -F"),
        ("zsh", "#compdef"),
        ("fish", "complete -c"),
    ] {
        let completions = said(&["example", "completions", shell]);
        assert!(
            completions.contains(words) && completions.contains("healthcheck"),
            "{shell}"
        );
    }
    let done = {
        let mut command = program();
        command.args(["example", "completions"]);
        ran(command)
    };
    assert_eq!(done.status, Some(2));
    assert!(done.err.contains("completions bash"), "{}", done.err);
    // Bash reads what is for it.
    let mut bash = Command::new("bash");
    bash.args(["-n", "/dev/stdin"]).stdin(Stdio::piped());
    let mut bash = bash.spawn().unwrap();
    let text = said(&["example", "completions", "bash"]);
    bash.stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    assert!(bash.wait().unwrap().success());
}
