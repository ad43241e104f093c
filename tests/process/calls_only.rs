//! A sidecar without a backend: it limits calls, and nobody needs to know what a job is.

use std::fs;

use super::doctor::{doctor, finding};
use super::prelude::*;
use super::ways_out::way_out;
use crate::servers::port;
use crate::servers::vendor::{Answer, FOREVER, Vendor};
use crate::sidecar::process::run;

/// A file that limits the calls to this address, and where they go in.
fn alone(to: SocketAddr, server: &str, more: &str) -> (String, SocketAddr) {
    let (entry, calls) = way_out(to, more);
    let admin = port::own();
    let server = format!("[server]\nupstream = \"none\"\nadmin_listen = \"{admin}\"\n{server}\n");
    (format!("{server}{entry}"), calls)
}

/// `egress` with these options, on ports of its own, and where calls go in.
fn command(to: SocketAddr, more: &str) -> (Command, SocketAddr) {
    let calls = port::own();
    let mut command = program();
    command.args(["egress", "--to", &format!("http://{to}")]);
    command.args(["--listen", &calls.to_string(), "--admin", "127.0.0.1:0"]);
    command.args(more.split(' '));
    (command, calls)
}

/// A sidecar of this command, and where calls go in.
fn limits(to: SocketAddr, more: &str) -> (Sidecar, SocketAddr) {
    let (command, calls) = command(to, more);
    (Sidecar::spawn(command, tempfile::tempdir().unwrap()), calls)
}

/// What a vendor says that counts these tokens.
fn used(tokens: u32) -> Answer {
    Answer::json(json!({"usage": {"total_tokens": tokens}}).to_string())
}

fn why(sidecar: &Sidecar, question: &str) -> Value {
    get(sidecar.admin, &format!("/throttle/v1/why?{question}")).json()
}

fn tool(sidecar: &Sidecar, args: &[&str]) -> String {
    let mut command = program();
    let admin = format!("http://{}", sidecar.admin);
    command.args(args).args(["--admin", &admin]);
    let done = ran(&mut command);
    assert_eq!(done.status, Some(0), "{args:?}: {}", done.err);
    done.out
}

#[test]
fn a_command_without_a_file_limits_calls() {
    let vendor = Vendor::start(|_| Answer::ok());
    let (mut sidecar, calls) = limits(vendor.addr, "--rate 3/1h --max-wait 0s");
    let key = vendor.addr.to_string();
    // Before the first call it is seen what there is.
    let top = tool(&sidecar, &["top", "--once"]);
    assert!(top.contains("no backend: calls only"), "{top}");
    assert!(top.contains(&key) && top.contains("0/3"), "{top}");
    let open = why(&sidecar, &format!("key={key}"));
    has(open["why"].to_string(), "the next call may start now");
    let statuses = [(); 5].map(|()| get(calls, "/v1").status);
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
    assert_eq!(vendor.calls().len(), 3);
    let used = why(&sidecar, &format!("key={key}"));
    has(used["why"].to_string(), "as its window allows");
    let unknown = why(&sidecar, "key=nobody").to_string();
    has(&unknown, "no call has named the key");
    let is_of_jobs = unknown.contains("job") || unknown.contains("worker");
    assert!(!is_of_jobs, "{unknown}");
    for question in ["queue=q", "job=j", "type=t"] {
        has(why(&sidecar, question).to_string(), "no backend");
    }
    // A state is a second old at most.
    let state = until("it shows the answers", || {
        let state = get(sidecar.admin, "/throttle/v1/state").json();
        (state["ways"][0]["answers"] == json!({"200": 3})).then_some(state)
    });
    assert_eq!(state["backend"]["url"], Value::Null, "{state}");
    assert_eq!(state["sidecar"]["listens"], calls.to_string(), "{state}");
    assert_eq!(state["causes"], json!([]), "{state}");
    let way = &state["ways"][0];
    assert_eq!(
        [&way["key"], &way["cause"]["name"]],
        [&*key, "rate"],
        "{way}"
    );
    assert_eq!(way["up"], true, "{way}");
    // No series speaks of a backend or of jobs, whatever there is of them.
    let metrics = sidecar.metrics();
    for series in "backend held slots fetch claimed subqueues settle".split(' ') {
        let is_told = metrics.contains(&format!("ojs_throttle_{series}"));
        assert!(!is_told, "{series}: {metrics}");
    }
    let answers = format!("ojs_throttle_egress_answers_total{{egress=\"{key}\",code=\"200\"}}");
    assert!((sidecar.metric(&answers) - 3.0).abs() < 0.1, "{metrics}");
    let starts = format!("ojs_throttle_starts_total{{policy=\"{key}\",kind=\"call\"}}");
    assert!((sidecar.metric(&starts) - 3.0).abs() < 0.1, "{metrics}");
    let labels = format!("policy=\"{key}\",strategy=\"rate\",period=\"PT1H\",window=\"sliding\"");
    let most = format!("ojs_throttle_starts_limit{{{labels}}}");
    assert!((sidecar.metric(&most) - 3.0).abs() < 0.1, "{metrics}");
    assert!(!sidecar.log().contains("WARN"), "{}", sidecar.log());
    // Nobody is waited for: the second signal only says so.
    sidecar.signal("TERM");
    sidecar.signal("TERM");
    assert!(sidecar.ended().success(), "{}", sidecar.log());
}

#[test]
fn what_the_command_prints_is_a_file_that_does_the_same() {
    let vendor = Vendor::start(|_| Answer::ok());
    let options = "--rate 100/1m --rate 4/1h --throttle 1000/1s --concurrency 9 --tokens 1000000/1m \
                   --key shop:{header.X-Shop} --max-wait 0s --token a\"b\\c";
    let (mut printing, calls) = command(vendor.addr, options);
    printing.arg("--print");
    let printed = ran(&mut printing);
    assert_eq!((printed.status, &*printed.err), (Some(0), ""));
    let (dir, path) = file(&printed.out);
    let said = ran(program().arg("check").arg(&path));
    assert_eq!(said.status, Some(0), "{}", said.out);
    has(&said.out, "ok: calls only, 1 egress entry\n");
    let sidecar = Sidecar::spawn(run_at(path), dir);
    // Its name is no key, and there is no data port that lists those that it makes.
    let named = why(&sidecar, &format!("key={}", vendor.addr));
    has(
        named.to_string(),
        "`ojs-throttle top` shows those that are known",
    );
    let of = |shop: &str| {
        let mut conn = Conn::open(calls);
        let head = format!("Host: a\r\nX-Shop: {shop}\r\nOJS-Throttle-Token: a\"b\\c");
        let call = format!("GET / HTTP/1.1\r\n{head}\r\n\r\n");
        conn.write(call.as_bytes()).unwrap();
        conn.reply().unwrap().status
    };
    assert_eq!([(); 5].map(|()| of("a")), [200, 200, 200, 200, 429]);
    assert_eq!(of("b"), 200);
    assert_eq!(get(calls, "/").status, 401, "without the token");
}

/// A call of a model.
fn chat(calls: SocketAddr) -> super::http::Reply {
    let body = r#"{"model":"m","max_tokens":500}"#;
    ask(calls, "POST", "/v1/chat/completions", body)
}

/// A call may cost all tokens, and so it waits for as long as those need to come free.
#[test]
fn tokens_are_limited_without_a_file() {
    let vendor = Vendor::start(|_| used(900));
    let (_sidecar, calls) = limits(vendor.addr, "--tokens 1000/3s");
    assert_eq!([(); 2].map(|()| chat(calls).status), [200, 200]);
    let seen = vendor.calls();
    let apart = seen[1].at - seen[0].at;
    assert!(apart >= Duration::from_millis(2_900), "{seen:?}");
}

/// What `--key` parts is parted for tokens, too.
#[test]
fn each_key_of_the_command_has_its_own_tokens() {
    let vendor = Vendor::start(|_| Answer::new(200, r#"{"usage":{"total_tokens":900}}"#));
    let options = "--tokens 1000/1m --key shop:{header.X-Shop} --max-wait 0s";
    let (sidecar, calls) = limits(vendor.addr, options);
    let of = |shop: &str| {
        let body = r#"{"model":"m","max_tokens":500}"#;
        let length = body.len();
        let head = format!("Host: a\r\nX-Shop: {shop}\r\nContent-Length: {length}");
        let mut conn = Conn::open(calls);
        let call = format!("POST /v1/chat/completions HTTP/1.1\r\n{head}\r\n\r\n{body}");
        conn.write(call.as_bytes()).unwrap();
        conn.reply().unwrap().status
    };
    assert_eq!([of("a"), of("a"), of("b")], [200, 429, 200]);
    let budget = format!("{}:tokens", vendor.addr);
    let why = why(&sidecar, &format!("key={budget}:shop:b"));
    assert_eq!(why["limits"][0]["policy"], budget);
}

/// Of a window that is longer than any `max_wait` no call waits for all.
#[test]
fn tokens_of_any_window_start_the_command() {
    let vendor = Vendor::start(|_| Answer::new(200, r#"{"usage":{"total_tokens":9}}"#));
    for tokens in ["1000/1h", "1000/90m", "1000/30d"] {
        let (_sidecar, calls) = limits(vendor.addr, &format!("--tokens {tokens}"));
        assert_eq!(get(calls, "/v1").status, 200, "{tokens}");
    }
    let (mut command, _) = command(vendor.addr, "--tokens 1000/1h --max-wait 5m");
    let refused = ran(&mut command);
    has(&refused.err, "(--max-wait), or 0s");
}

/// The operator who reads the line finds out whose call it was.
#[test]
fn a_call_whose_model_nobody_names_is_told_with_its_key() {
    let vendor = Vendor::start(|call| match call.header("x-model") {
        Some(_) => Answer::new(200, r#"{"usage":{"total_tokens":9},"model":"dear"}"#),
        None => Answer::new(200, r#"{"usage":{"total_tokens":9}}"#),
    });
    let budget = "[[egress.budget]]\nname = \"month\"\n\
        rate = { limit = \"9 USD\", period = \"24h\" }\n\
        cost = { use = \"money\", max = \"2 USD\", prices = { m = { input = 1, output = 1 } } }";
    let dear = ["cost.prices do not name its model", "model=\"dear\""];
    for (more, whys) in [
        ("", &["model", "could not be read"]),
        ("X-Model: a\r\n", &dear),
    ] {
        let (config, calls) = alone(vendor.addr, "", budget);
        let sidecar = Sidecar::run(&config);
        let mut conn = Conn::open(calls);
        let head = format!("Host: a\r\n{more}Transfer-Encoding: chunked");
        let call = format!("POST /v1/messages HTTP/1.1\r\n{head}\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n");
        conn.write(call.as_bytes()).unwrap();
        assert_eq!(conn.reply().unwrap().status, 200);
        let line = sidecar.line("id=usage_untold");
        for word in whys.iter().chain(&["budget=\"month\"", "key=\"month\""]) {
            has(&line, word);
        }
    }
}

/// Whoever pays estimates for ever has half of a limit, and is told.
#[test]
fn answers_that_do_not_say_what_was_used_are_told() {
    let vendor = Vendor::start(|call| match call.target() {
        "/told/v1/chat/completions" => Answer::new(200, r#"{"usage":{"total_tokens":9}}"#),
        "/fails/v1/chat/completions" => Answer::new(500, "{}"),
        _ => Answer::json(r#"{"used":9}"#),
    });
    let (sidecar, calls) = limits(vendor.addr, "--tokens 100000/1m");
    let ask = |path: &str| {
        let mut conn = Conn::open(calls);
        let path = format!("{path}/v1/chat/completions");
        conn.ask("POST", &path, r#"{"max_tokens":500}"#).status
    };
    assert_eq!([ask("/told"), ask("/fails")], [200, 500]);
    let told = "id=usage_untold";
    let kept = format!("budget=\"{}:tokens\",how=\"kept\"", vendor.addr);
    sidecar.shows(&format!("ojs_throttle_egress_settled_total{{{kept}}}"), 1.0);
    assert!(!sidecar.log().contains(told), "{}", sidecar.log());
    assert_eq!([ask(""), ask("")], [200, 200]);
    let line = sidecar.line(told);
    has(line, "does not say it where the budget looks");
    assert_eq!(sidecar.log().matches(told).count(), 1, "{}", sidecar.log());
}

#[test]
fn a_command_that_limits_nothing_or_is_wrong_says_so() {
    let limits = "--rate <N/PERIOD>|--throttle <N/PERIOD>|--concurrency <N>";
    for (more, status, word) in [
        ("", 2, limits),
        ("--rate 100", 2, "such as 100/1m"),
        ("--rate 1/1s --max-wait 5", 2, "write \"5s\""),
        ("--rate 1/1s --listen 0.0.0.0:1", 78, "there is no `token`"),
        ("--rate 1/1s --key k{", 78, "must come in pairs"),
        ("--rate 1/1s --store http://a", 78, "it names no store"),
        ("--rate 1/1s --listen 127.0.0.1:9091", 78, "its own port"),
    ] {
        let done = run(&format!("egress --to http://127.0.0.1:9 {more}"));
        assert_eq!(done.status, Some(status), "{more}: {}", done.err);
        assert!(done.err.contains(word), "{more}: {}", done.err);
    }
}

/// The environment of a container may name a backend for other sidecars. Who writes the command means what it says.
#[test]
fn options_win_over_the_environment_and_a_backend_there_is_not_ours() {
    let vendor = Vendor::start(|_| Answer::ok());
    let (mut command, calls) = command(vendor.addr, "--rate 3/1h --store memory:");
    command.env("OJS_THROTTLE_UPSTREAM", "http://127.0.0.1:9");
    command.env("OJS_THROTTLE_LISTEN", "127.0.0.1:9");
    command.env("OJS_THROTTLE_STORE_URL", "redis://127.0.0.1:9");
    command.env("OJS_THROTTLE_ADMIN_LISTEN", "127.0.0.1:9");
    command.env("OJS_THROTTLE_LOG", "json");
    command.env("OJS_THROTTLE_TOKEN", "secret");
    let sidecar = Sidecar::spawn(command, tempfile::tempdir().unwrap());
    assert_eq!(get(calls, "/").status, 200);
    assert!(sidecar.log().starts_with('{'), "{}", sidecar.log());
    let mut pause = program();
    pause.env("OJS_THROTTLE_TOKEN", "secret");
    let admin = format!("http://{}", sidecar.admin);
    pause.args(["pause", &vendor.addr.to_string(), "--admin", &admin]);
    let paused = ran(&mut pause);
    assert_eq!(paused.status, Some(0), "{}", paused.err);
}

#[test]
fn the_doctor_connects_and_calls_nobody() {
    let vendor = Vendor::start(|_| Answer::ok());
    let limit = "rate = { limit = 1, period = \"1m\" }";
    let (config, _) = alone(vendor.addr, "", limit);
    let (report, status) = doctor(&config, &[]);
    assert_eq!(status, Some(0), "{report}");
    for (part, what, says) in [
        ("backend", "address", "only calls are limited"),
        ("egress", "service", "can be reached"),
    ] {
        has(finding(&report, part, what)["says"].to_string(), says);
    }
    assert!(vendor.calls().is_empty(), "no request");
    let (config, _) = alone(port::own(), "", limit);
    let (report, status) = doctor(&config, &[]);
    assert_eq!(status, Some(1), "{report}");
    let (config, _) = alone(vendor.addr, "", limit);
    let config = config.replace("http://127.0.0.1", "http://no-such-host.invalid");
    let (report, status) = doctor(&config, &[]);
    assert_eq!(status, Some(1), "{report}");
}

/// Whether there is a backend is decided once.
#[test]
fn a_reload_changes_limits_and_not_whether_there_is_a_backend() {
    let vendor = Vendor::start(|_| Answer::ok());
    let hour =
        |limit: u32| format!("max_wait = \"0s\"\nrate = {{ limit = {limit}, period = \"1h\" }}");
    let (config, calls) = alone(vendor.addr, "", &hour(1));
    let (dir, path) = file(&config);
    let sidecar = Sidecar::spawn(run_at(&path), dir);
    assert_eq!([(); 2].map(|()| get(calls, "/").status), [200, 429]);
    let more = config.replace("limit = 1,", "limit = 2,");
    fs::write(&path, &more).unwrap();
    sidecar.line("config reloaded");
    assert_eq!([(); 2].map(|()| get(calls, "/").status), [200, 429]);
    for (from, to, told) in [
        (
            "\"none\"",
            "\"http://127.0.0.1:9\"",
            "`server.upstream` cannot change while running",
        ),
        (
            "[[egress]]",
            "[[queue]]\nname = \"q\"\nconcurrency = 1\n[[egress]]",
            "`[[queue]]` is about jobs",
        ),
        (
            "[[egress]]",
            "[[egress]]\nname = \"more\"\nlisten = \"127.0.0.1:0\"\nupstream = \"http://127.0.0.1:9\"\n[[egress]]",
            "`[[egress]]`: 1 added (more): an entry cannot come or go while running: restart",
        ),
    ] {
        fs::write(&path, more.replace(from, to)).unwrap();
        sidecar.line(told);
        // The last good file is in force.
        assert_eq!(get(calls, "/").status, 429, "{told}");
    }
}

/// Each thread has listeners of its own.
#[test]
fn several_threads_serve_calls() {
    let vendor = Vendor::start(|_| Answer::ok());
    let limit = "rate = { limit = 20, period = \"1h\" }\nmax_wait = \"0s\"";
    let (config, calls) = alone(vendor.addr, "threads = 3", limit);
    let mut sidecar = Sidecar::run(&config);
    let statuses: Vec<_> = (0..24).map(|_| get(calls, "/").status).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 20);
    sidecar.signal("TERM");
    sidecar.signal("TERM");
    assert!(sidecar.ended().success(), "{}", sidecar.log());
}

/// A call whose size nobody knows counts as much as one may, and that may be less than all.
#[test]
fn one_call_takes_not_all_of_many_tokens() {
    let vendor = Vendor::start(|_| used(150).after(Duration::from_secs(3)));
    for (more, at_once) in [("", 1), (" --max-tokens 50000", 4)] {
        let options = format!("--tokens 200000/1m --max-wait 0s{more}");
        let (sidecar, calls) = limits(vendor.addr, &options);
        let ask = || {
            let body = r#"{"model":"m","previous_response_id":"r"}"#;
            let reply = Conn::open(calls).ask("POST", "/v1/responses", body);
            (reply.status, reply.body)
        };
        let all: Vec<_> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..5).map(|_| scope.spawn(ask)).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let done = all.iter().filter(|(status, _)| *status == 200).count();
        assert_eq!(done, at_once, "{all:?}");
        if at_once > 1 {
            // They have used next to nothing.
            assert_eq!(ask().0, 200, "{}", sidecar.log());
        }
    }
}

/// What is out has all the time that it may need.
const SLOWLY: &str = "drain_min = \"1s\"\ndrain_timeout = \"30m\"";

/// A stream that is out keeps the ports from nobody who comes next: they are closed with the last call that starts.
#[test]
fn who_comes_next_waits_for_no_stream() {
    let vendor = Vendor::start(|_| Answer::ok().after(FOREVER));
    let limits = "rate = { limit = 100, period = \"1m\" }\n";
    let (text, calls) = alone(vendor.addr, SLOWLY, limits);
    let (dir, path) = file(&text);
    let mut sidecar = Sidecar::spawn(run_at(path), dir);
    let mut stream = Conn::open(calls);
    stream.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    wait("the call is out", || vendor.calls().len() == 1);
    sidecar.signal("TERM");
    for port in [calls, sidecar.admin] {
        wait("the port is free", || TcpListener::bind(port).is_ok());
    }
    assert!(sidecar.runs(), "the stream is still out");
    sidecar.signal("TERM");
    sidecar.ended();
}

/// Slots that are counted in the memory of one process are known to no other: whoever comes next waits for them. So it is
/// also where a reload has brought them.
#[test]
fn slots_that_a_reload_brought_keep_the_ports() {
    let vendor = Vendor::start(|call| match call.target() {
        "/hangs" => Answer::ok().after(FOREVER),
        _ => Answer::ok(),
    });
    let limits = "rate = { limit = 100, period = \"1m\" }\n";
    let (text, calls) = alone(vendor.addr, SLOWLY, limits);
    let (dir, path) = file(&text);
    let mut sidecar = Sidecar::spawn(run_at(path.clone()), dir);
    let limited = text.replace("rate = ", "concurrency = 5\nrate = ");
    std::fs::write(&path, limited).unwrap();
    sidecar.line("config reloaded");
    let (mut stream, hangs) = (Conn::open(calls), b"GET /hangs HTTP/1.1\r\nHost: a\r\n\r\n");
    stream.write(hangs).unwrap();
    wait("the call is out", || vendor.calls().len() == 1);
    sidecar.signal("TERM");
    let refused = || Conn::open(calls).ask("GET", "/", "").status == 503;
    wait("no call starts", refused);
    // Each of its threads would have closed its port by then.
    assert!((0..500).all(|_| refused()));
    assert!(TcpListener::bind(calls).is_err());
    sidecar.signal("TERM");
    sidecar.ended();
}

/// What is left of a budget is hardly ever nothing, and calls are refused all the same.
#[test]
fn why_says_that_little_is_left_of_a_budget() {
    let vendor = Vendor::start(|_| used(900));
    let (sidecar, calls) = limits(vendor.addr, "--tokens 1000/1h --max-wait 0s");
    assert_eq!(chat(calls).status, 200);
    let refused = chat(calls);
    assert_eq!(refused.status, 429);
    let error = &refused.json()["error"];
    has(error["message"].to_string(), "and 100 are left until");
    let key = error["details"]["key"].as_str().unwrap();
    let why = why(&sidecar, &format!("key={key}"));
    assert_eq!(why["cause"], "little left", "{why}");
    has(why["why"].to_string(), "100 of 1000 are left\"");
}
