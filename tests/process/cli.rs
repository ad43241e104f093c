//! What the command line says, and how it ends.

use super::prelude::*;
use crate::sidecar::process::run;

#[test]
fn help_is_help() {
    let files = ["config", "kubernetes", "grafana", "completions"];
    for (args, words) in [
        ("--help", &["run", "check", "dev", "demo", "config.ex"][..]),
        ("run --help", &["--upstream", "OJS_THROTTLE_CONFIG", "78"]),
        ("check --help", &["78"]),
        ("egress --help", &["--to", "--rate", "--print"]),
        ("help", &["demo", "--help", "incidents"]),
        ("help check", &["Usage: ojs-throttle check", "78"]),
        ("help incidents", &["# Something is wrong"]),
        ("example", &files),
        ("example alerts", &["OjsThrottleStoreDown"]),
        ("schema", &["json-schema.org", "claim_budget"]),
        ("schema openapi", &["\"3.1.0\"", "/livez"]),
        ("--version", &["ojs-throttle "]),
    ] {
        let done = run(args);
        assert_eq!(done.status, Some(0), "{args}");
        for word in words {
            assert!(done.out.contains(word), "{args}: {word}: {}", done.out);
        }
        assert_eq!(done.err, "", "{args}");
    }
}

#[test]
fn what_was_not_understood_is_named() {
    for (args, word) in [
        ("", "Examples"),
        ("frobnicate", "frobnicate"),
        ("help frobnicate", "neither a command nor a chapter"),
        ("example frobnicate", "no example called"),
        ("check", "<PATH>"),
        ("run --upstream ojs:80", "http://"),
        ("run --listen localhost", "--listen"),
        ("limit k --concurrency -1", "-1 is not in 0..="),
        ("limit k --rate -1/1m", "write NUMBER/PERIOD"),
        ("limit k --throttle -1/1m", "NUMBER/PERIOD"),
        ("pause k --for -1h", "for '--for <DURATION>'"),
        ("top --columns -1", "-1 is not in"),
        ("demo --seconds -1", "-1 is not in 1..=300"),
        ("run --upstream http://a --nonsense", "--nonsense"),
    ] {
        let done = run(args);
        assert_eq!(done.status, Some(2), "{args}");
        assert!(done.err.contains(word), "{args}: {}", done.err);
        assert_eq!(done.out, "", "{args}");
    }
}

/// What goes to stderr stays in the logs of containers.
#[test]
fn no_password_of_a_url_on_the_command_line_is_printed() {
    for args in [
        "run --upstream",
        "doctor --upstream",
        "egress --rate 5/1s --to",
        "why --queue q --admin",
        "healthcheck --admin",
    ] {
        let done = run(&format!("{args} http://user:pw-in-url@127.0.0.1:1"));
        assert_ne!(done.status, Some(0), "{args}");
        let said = done.err + &done.out;
        let is_named = said.contains("127.0.0.1:1");
        assert!(is_named && !said.contains("pw-in-url"), "{args}: {said}");
    }
}

/// Nobody who wrote no `--config` looks for it in the environment.
#[test]
fn an_empty_variable_is_named() {
    let mut command = program();
    command.env("OJS_THROTTLE_CONFIG", "");
    let done = ran(command.args(["run", "--upstream", "http://a"]));
    assert_eq!(done.status, Some(2));
    has(&done.err, "OJS_THROTTLE_CONFIG is set, and empty");
}

#[test]
fn check_says_what_is_wrong_and_where() {
    let upstream = "[server]\nupstream = \"http://127.0.0.1:1\"\n";
    let many = "[[policy]]\nnonsense = 1\n".repeat(4_000);
    let two = b"[server]\nupstream = 7\nlog = \"xml\"\n";
    let cases: &[(&[u8], i32, &[&str])] = &[
        (upstream.as_bytes(), 0, &["ok: 0 policies, 0 queues"]),
        (b"", 78, &["upstream", "required"]),
        (b"\xff\xfe\x00\x01", 78, &["not UTF-8"]),
        (two, 78, &[":2:12", ":3:7", "2 problems"]),
        (b"nonsense", 78, &["TOML", ":1:"]),
        (b"a = \"\0\"", 78, &["TOML"]),
        (&vec![b'#'; 10 << 20], 78, &["larger than 1 MiB"]),
        (many.as_bytes(), 78, &["more", "problems in"]),
    ];
    for (text, status, words) in cases {
        let (_dir, path) = file(text);
        let done = run(&format!("check {}", path.display()));
        let start = String::from_utf8_lossy(&text[..text.len().min(40)]);
        assert_eq!(done.status, Some(*status), "{start}: {}", done.out);
        for word in *words {
            assert!(done.out.contains(word), "{start}: {word}: {}", done.out);
        }
        assert_eq!(done.err, "", "{start}");
    }
    let (dir, path) = file("");
    std::fs::remove_file(&path).unwrap();
    for (path, word) in [
        (path.to_str().unwrap(), "No such file"),
        (dir.path().to_str().unwrap(), "a folder without a file *.t"),
        ("/dev/zero", "larger than 1 MiB"),
    ] {
        let done = run(&format!("check {path}"));
        assert_eq!(done.status, Some(78), "{path}");
        has(&done.out, word);
        has(&done.out, path);
    }
}

#[test]
fn check_takes_several_files_and_prints_json() {
    let good = "[server]\nupstream = \"http://127.0.0.1:1\"\n[[policy]]\nname = \"mail\"\nmatch = { type = \"mail.*\" }\n\
                throttle = { limit = 10, period = \"1s\" }\n";
    let (_dir, path) = file(good);
    let (_other, wrong) = file("[server]\nupstream = 7\n");
    let (path, wrong) = (path.to_str().unwrap(), wrong.to_str().unwrap());
    let said = run(&format!("check --config {path}"));
    assert_eq!(said.status, Some(0));
    let means =
        "mail: jobs of type mail.*: at least 100ms apart, key \"mail\"\nok: 1 policy, 0 queues\n";
    assert_eq!(said.out, means);
    let both = run(&format!("check {path} {wrong}"));
    let named = format!("{path}:\n{means}{wrong}:\nerror: ");
    assert!(both.out.starts_with(&named), "{}", both.out);
    let both = run(&format!("check --json {path} {wrong}"));
    assert_eq!(both.status, Some(78));
    let lines = both.out.lines();
    let lines: Vec<Value> = lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!([&lines[0]["ok"], &lines[1]["ok"]], [true, false]);
    let problem = &lines[1]["problems"][0];
    assert_eq!([&problem["line"], &problem["column"]], [2, 12]);
    let stdin = std::fs::File::open(path).unwrap();
    let from_stdin = ran(program().args(["check", "-"]).stdin(stdin));
    assert_eq!(from_stdin.out, means);
    assert_eq!(run("check").status, Some(2), "nothing to check");
    // The variable stands for a file that is not said, and for no more.
    let by_variable = |args: &[&str]| {
        let mut command = program();
        command.arg("check").args(args);
        command.env("OJS_THROTTLE_CONFIG", wrong);
        ran(&mut command).status
    };
    assert_eq!(by_variable(&[]), Some(78));
    assert_eq!(by_variable(&[path]), Some(0));
    assert_eq!(by_variable(&["--config", path]), Some(0));
    assert_eq!(by_variable(&[path, wrong]), Some(78));
}

#[test]
fn run_with_a_wrong_file_says_all_of_it_and_does_not_start() {
    let (_dir, path) = file("[server]\nupstream = \"ftp://x\"\nlisten = \"8080\"\n[[policy]]\n");
    let path = path.to_str().unwrap();
    let done = run(&format!("run --config {path}"));
    assert_eq!(done.status, Some(78));
    for at in ["2:12", "3:10", "4:1"] {
        has(&done.err, &format!("{path}:{at}"));
    }
    assert_eq!(done.out, "");
    let none = run("run");
    assert_eq!(none.status, Some(78));
    has(&none.err, "--upstream");
}

/// A Redis that is older than any that can be used.
fn old_redis() -> SocketAddr {
    connections::each(|stream| {
        let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
        while let Some(line) = lines.next() {
            // An array of so many words, each with its length before it.
            let words = line.strip_prefix('*').and_then(|n| n.parse::<usize>().ok());
            let Some(words) = words else { continue };
            let words: Vec<String> = (0..words).filter_map(|_| lines.by_ref().nth(1)).collect();
            let answer = match words.first().map(|word| word.to_ascii_uppercase()) {
                Some(word) if word == "HELLO" => "%1\r\n$5\r\nproto\r\n:3\r\n",
                Some(word) if word == "INFO" => "$21\r\nredis_version:6.0.9\r\n\r\n",
                _ => "+OK\r\n",
            };
            // Whether it is still there to hear it does not matter.
            drop((&stream).write_all(answer.as_bytes()));
        }
    })
}

#[test]
fn a_redis_that_is_too_old_is_no_store() {
    // On a busy machine it may be late.
    let url = format!("redis://{}", old_redis());
    let rest = format!("[store]\nurl = \"{url}\"\ntimeout = \"5s\"\n");
    let (_dir, path) = file(config(([127, 0, 0, 1], 1).into(), "", &rest));
    let done = run(&format!("run --config {}", path.display()));
    assert_eq!(done.status, Some(1), "{}", done.err);
    has(&done.err, "6.0 is too old, 6.2 is needed");
}

#[test]
fn a_port_in_use_is_named_with_its_setting() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    // A draining predecessor might have it, so it is waited for, but not for ever.
    let patient = "drain_timeout = \"300ms\"";
    let (_dir, path) = file(config(([127, 0, 0, 1], 1).into(), patient, ""));
    let path = path.to_str().unwrap();
    for (option, setting) in [
        ("--listen", "server.listen"),
        ("--admin-listen", "server.admin_listen"),
    ] {
        let begun = Instant::now();
        let done = run(&format!("run --config {path} {option} {addr}"));
        assert_eq!(done.status, Some(1), "{}", done.err);
        for word in [
            setting,
            &addr,
            "in use",
            "another process had the port for 300ms",
            &format!("{option} takes another: "),
        ] {
            assert!(done.err.contains(word), "{word}: {}", done.err);
        }
        assert!(begun.elapsed() >= Duration::from_millis(300));
        assert!(!done.err.contains("point SDKs"), "{}", done.err);
    }
    let done = run(&format!("dev --config {path} --backend-listen {addr}"));
    assert_eq!(done.status, Some(1), "{}", done.err);
    let told = "(--backend-listen): another process had the port for 300ms";
    has(&done.err, &format!("cannot listen on {addr} {told}"));
}

#[test]
fn the_environment_names_the_file_and_the_command_line_wins() {
    let (dir, path) = file(
        "[server]\nlisten = \"127.0.0.1:1\"\nadmin_listen = \"127.0.0.1:2\"\nupstream = \"http://file.invalid\"\n",
    );
    let mut command = program();
    command.env("OJS_THROTTLE_CONFIG", &path);
    let args = "run --listen 127.0.0.1:0 --admin-listen 127.0.0.1:0 --upstream http://127.0.0.1:9";
    command.args(args.split(' '));
    let sidecar = Sidecar::spawn(command, dir);
    assert!(sidecar.data.port() > 2 && sidecar.admin.port() > 2);
    has(sidecar.log(), "http://127.0.0.1:9");
    assert!(!sidecar.log().contains("file.invalid"), "{}", sidecar.log());

    let nowhere = "/nowhere/throttle.toml";
    let done = ran(program().env("OJS_THROTTLE_CONFIG", nowhere).arg("run"));
    assert_eq!(done.status, Some(78));
    has(&done.err, nowhere);
}

#[test]
fn a_log_that_nobody_reads_is_no_panic() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let (_dir, mut command) = run_with(format!(
        "[server]\nlisten = \"{}\"\nadmin_listen = \"127.0.0.1:0\"\nupstream = \"http://127.0.0.1:1\"\n\
         drain_timeout = \"200ms\"\n",
        taken.local_addr().unwrap()
    ));
    let done = command.stderr(closed()).output().unwrap();
    assert_eq!(done.status.code(), Some(1), "{:?}", done.status);
}

/// The end of a pipe whose other end is closed.
fn closed() -> std::io::PipeWriter {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer
}

#[test]
fn a_closed_pipe_is_no_panic() {
    let valid = concat!(env!("CARGO_MANIFEST_DIR"), "/config.example.toml");
    for (args, status) in [
        (&["--help"][..], 0),
        (&["check", valid], 0),
        (&["check", "/nowhere"], 78),
        (&["demo", "backpressure", "--record", "/nowhere"], 2),
    ] {
        let done = program().args(args).stdout(closed()).output().unwrap();
        let said = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(status), "{args:?}: {said}");
        assert!(!said.contains("panicked"), "{args:?}: {said}");
        let done = program().args(args).stderr(closed()).output().unwrap();
        assert_eq!(done.status.code(), Some(status), "{args:?}, stderr");
    }
}
