//! What a service manager and a container's health check learn of the sidecar, and what the program says of itself.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use clap::{Arg, CommandFactory};
use ojs_throttle::cli::Cli;

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
        .env("WATCHDOG_USEC", "1000000")
        .env_remove("WATCHDOG_PID");
    let mut sidecar = Sidecar::spawn(command, dir);
    assert_eq!(manager.next().trim(), "READY=1");
    let begun = Instant::now();
    for _ in 0..4 {
        assert_eq!(manager.hears().trim(), "WATCHDOG=1");
    }
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "{:?}",
        begun.elapsed()
    );
    let before = monotonic_now();
    sidecar.signal("HUP");
    let reloading = manager.next();
    let mut lines = reloading.lines();
    assert_eq!(lines.next(), Some("RELOADING=1"));
    let line = lines.next().unwrap();
    let at = line.strip_prefix("MONOTONIC_USEC=").unwrap();
    let at: u128 = at.parse().unwrap();
    assert!((before..before + 30_000_000).contains(&at), "{before} {at}");
    assert_eq!(manager.next().trim(), "READY=1");
    sidecar.signal("TERM");
    assert_eq!(manager.next().trim(), "STOPPING=1");
    assert!(sidecar.ended().success());
}

/// Where the file system is read only, managers listen at a name that is no file.
#[test]
fn a_service_manager_without_a_file_hears_it_too() {
    let name = format!("ojs-throttle-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let socket = UnixDatagram::bind_addr(&address).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    let manager = Manager {
        socket,
        dir: tempfile::tempdir().unwrap(),
    };
    let backend = Backend::start(Lax::spec());
    let (dir, mut command) = run_with(config(backend.addr, "", ""));
    command.env("NOTIFY_SOCKET", format!("@{name}"));
    let mut sidecar = Sidecar::spawn(command, dir);
    assert_eq!(manager.next(), "READY=1\n");
    sidecar.signal("TERM");
    assert_eq!(manager.next(), "STOPPING=1\n");
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
    let done = ran(&mut command);
    (done.status, done.err)
}

#[test]
fn a_health_check_asks_the_sidecar_of_its_config() {
    let backend = Backend::start(Lax::spec());
    let admin = crate::servers::port::own().to_string();
    let (dir, path) = file(config(backend.addr, "", ""));
    let mut command = run_at(&path);
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
    // A file that is named goes before a variable, which is for those without one.
    let elsewhere = |command: &mut Command| {
        of_file(command);
        command.env("OJS_THROTTLE_ADMIN", "http://127.0.0.1:1");
    };
    assert_eq!(health(elsewhere).0, Some(0));
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
    // One that is not there says nothing of any port, and another sidecar may have the usual one.
    let none = path.with_file_name("none.toml");
    let (status, told) = health(|command| {
        command.arg("--config").arg(&none);
    });
    assert_eq!(status, Some(1), "{told}");
    assert!(
        told.contains("none.toml") && !told.contains("9091"),
        "{told}"
    );
    let (status, told) = health(|command| {
        let command = command.arg("--config").arg(&none);
        command.env("OJS_THROTTLE_ADMIN_LISTEN", &admin);
    });
    assert_eq!(status, Some(0), "{told}");
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
    has(
        told,
        "503 Service Unavailable: the store has not answered yet",
    );
}

fn said(args: &[&str]) -> String {
    let done = ran(program().args(args));
    assert_eq!(done.status, Some(0), "{args:?}: {}", done.err);
    done.out
}

#[test]
fn the_program_says_what_it_is() {
    assert_eq!(said(&["-V"]).lines().count(), 1);
    let version = said(&["--version"]);
    let lines: Vec<&str> = version.lines().collect();
    assert!(lines[0].starts_with("ojs-throttle "), "{version}");
    assert!(
        lines[1].starts_with("build: ") && lines[2].starts_with("features: "),
        "{version}"
    );
}

/// One page has all: it names no page that is not there, and has each option of each command.
#[test]
fn the_page_for_man_has_each_command() {
    let page = said(&["example", "man"]);
    assert!(!page.contains("(1)"), "{page}");
    let mut cli = Cli::command();
    cli.build();
    for command in cli.get_subcommands() {
        let head = format!("\n.SH {}\n", command.get_bin_name().unwrap());
        let section = page.split(&head).nth(1).expect(&head);
        let section = section.split("\n.SH ").next().unwrap();
        for option in command.get_arguments().filter_map(Arg::get_long) {
            let written = format!("\\-\\-{}", option.replace('-', "\\-"));
            assert!(section.contains(&written), "{head}: --{option}");
        }
    }
}

/// What bash completes at the end of a line, with the program as `ojs-throttle`.
fn completed(line: &str, admin: &str) -> Vec<String> {
    const BASH: &str = r#"
PATH="$1:$PATH"
eval "$(ojs-throttle example completions bash)"
read -ra COMP_WORDS <<<"$2"
[[ $2 == *' ' ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMP_TYPE=9
function=$(complete -p ojs-throttle | sed 's/.*-F \([^ ]*\) .*/\1/')
"$function" ojs-throttle "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\n' "${COMPREPLY[@]}"
"#;
    let folder = tempfile::tempdir().unwrap();
    let named = folder.path().join("ojs-throttle");
    std::os::unix::fs::symlink(program().get_program(), named).unwrap();
    let mut bash = Command::new("bash");
    bash.args(["-c", BASH, "bash"]).arg(folder.path()).arg(line);
    bash.env("OJS_THROTTLE_ADMIN", admin);
    let done = bash.output().unwrap();
    assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");
    let found = String::from_utf8(done.stdout).unwrap();
    found.lines().map(str::to_owned).collect()
}

#[test]
fn a_shell_completes_options_chapters_and_keys() {
    let policy =
        "[[policy]]\nname = \"stripe\"\nmatch = { queue = \"billing\" }\nconcurrency = 1\n";
    let sidecar = Sidecar::run(&config(([127, 0, 0, 1], 1).into(), "", policy));
    let admin = format!("http://{}", sidecar.admin);
    for (line, found) in [
        ("ojs-throttle che", "check"),
        ("ojs-throttle why --q", "--queue"),
        ("ojs-throttle run --up", "--upstream"),
        ("ojs-throttle demo back", "backpressure"),
        ("ojs-throttle subqueues forget --fo", "--force"),
        ("ojs-throttle help inc", "incidents"),
        ("ojs-throttle help pau", "pause"),
        ("ojs-throttle example kube", "kubernetes"),
        ("ojs-throttle pause st", "stripe"),
        ("ojs-throttle why --key st", "stripe"),
    ] {
        assert_eq!(completed(line, &admin), [found], "{line}");
    }
    // Nobody there is nothing to complete, and no error.
    assert!(
        completed("ojs-throttle pause st", "http://127.0.0.1:1")
            .iter()
            .all(String::is_empty)
    );
}

/// What Cargo runs before it builds the program, in a repository with one commit.
#[test]
fn what_is_optimised_knows_its_commit() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/build.rs");
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()));
    let made = rustc
        .args(["--edition", "2024", source, "-o"])
        .arg(&script)
        .status();
    assert!(made.unwrap().success());
    let run = |mut command: Command| {
        let done = command.current_dir(folder.path()).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        String::from_utf8(done.stdout).unwrap()
    };
    let git = |args: &[&str]| {
        let mut git = Command::new("git");
        git.args([
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@b",
            "-c",
            "commit.gpgsign=false",
        ])
        .args(args);
        git.env("GIT_COMMITTER_DATE", "2026-11-28T00:00:00Z");
        run(git)
    };
    let build = |profile: &str| {
        let mut script = Command::new(&script);
        script
            .env("PROFILE", profile)
            .env_remove("OJS_THROTTLE_BUILD");
        run(script)
    };
    // Without a repository of its own it knows nothing, and says nothing.
    assert!(!build("release").contains("rustc-env"));
    git(&["init", "-q"]);
    git(&["commit", "-q", "--allow-empty", "-m", "first"]);
    let commit = git(&["log", "-1", "--format=%h"]);
    let told = format!(
        "rustc-env=OJS_THROTTLE_BUILD={} of 2026-11-28, release\n",
        commit.trim()
    );
    let said = build("release");
    assert!(said.contains(&told), "{said}");
    assert!(said.contains("rerun-if-changed=.git/logs/HEAD"), "{said}");
    assert!(!build("debug").contains("rustc-env"));
    std::fs::write(folder.path().join("Cargo.toml"), "").unwrap();
    assert!(build("release").contains(" of 2026-11-28, changed, release\n"));
}
