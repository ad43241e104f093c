//! `pause`, `resume`, `limit`, `clear`, `slots` and `top`: what they do, print and leave, and that the command which
//! each prints brings back what stood.

use super::prelude::*;
use crate::sidecar::process::Ran;

const LIMITS: &str = "[[policy]]\nname = \"stripe\"\nmatch = { queue = \"billing\" }\nconcurrency = 1\n\
    [[policy]]\nname = \"calm\"\nmatch = { queue = \"calm\" }\nrate = { limit = 100, period = \"1m\" }\n";
pub const TOKEN: &str = "control_token = \"s3cret\"";

/// A sidecar, and a shell that knows the program.
pub struct Desk {
    backend: Backend,
    pub sidecar: Sidecar,
    bin: tempfile::TempDir,
}

impl Desk {
    fn new() -> Desk {
        Desk::with(LIMITS)
    }

    pub fn with(limits: &str) -> Desk {
        let (backend, sidecar) = pair(TOKEN, limits);
        Desk::before(backend, sidecar)
    }

    /// Of a sidecar that has [`TOKEN`].
    pub fn before(backend: Backend, sidecar: Sidecar) -> Desk {
        let bin = tempfile::tempdir().unwrap();
        let built = program().get_program().to_owned();
        std::os::unix::fs::symlink(built, bin.path().join("ojs-throttle")).unwrap();
        Desk {
            backend,
            sidecar,
            bin,
        }
    }

    fn admin(&self) -> String {
        format!("http://{}", self.sidecar.admin)
    }

    /// Runs a line in a shell.
    pub fn shell(&self, line: &str) -> Ran {
        let path = std::env::var("PATH").unwrap();
        let mut command = Command::new("bash");
        command.args(["-o", "pipefail", "-c", line]);
        command.env("PATH", format!("{}:{path}", self.bin.path().display()));
        command.env("USER", "ana").env_remove("COLUMNS");
        command.env("OJS_THROTTLE_ADMIN", self.admin());
        command.env("OJS_THROTTLE_TOKEN", "s3cret");
        ran(&mut command)
    }

    /// A command that is done; what it prints.
    pub fn done(&self, line: &str) -> String {
        let said = self.shell(&format!("ojs-throttle {line}"));
        assert_eq!(said.status, Some(0), "{line}: {}", said.err);
        said.out
    }

    /// What is set by hand for a key, as the data port shows it.
    fn set(&self, key: &str) -> [Value; 2] {
        let path = match key.strip_prefix("_queue:") {
            Some(queue) => format!("/ojs/v1/admin/queues/{queue}/rate-limit"),
            None => format!("/ojs/v1/rate-limits/{key}"),
        };
        let state = get(self.sidecar.data, &path).json();
        ["override", "shut_until"].map(|member| state[member].clone())
    }
}

/// The command of the line that begins `undo: `.
pub fn undo_of(said: &str) -> &str {
    let mut lines = said.lines();
    lines
        .find_map(|line| line.strip_prefix("undo: "))
        .unwrap_or_else(|| panic!("{said}"))
}

#[test]
fn each_change_is_undone_by_the_command_that_it_prints() {
    let desk = Desk::new();
    let odd = "limit KEY --override '{\"rate\":[{\"limit\":9,\"period\":\"month\",\"window\":\"calendar\",\"tz\":\"Asia/Tokyo\"}],\
        \"throttle\":{\"limit\":5,\"period\":\"1s\",\"burst\":3},\"reason\":\"it'\\''s\",\"by\":\"eve\",\"expires_at\":\"2999-01-01T00:00:00Z\"}'";
    let odd = &*odd.replace("2999-01-01T00:00:00Z", &in_an_hour());
    let pause = "pause KEY --reason \"it's broken\" --for 1h";
    let shut = "limit KEY --next-start 1h";
    let mut changed = 0;
    for key in ["stripe", "_queue:calm"] {
        for before in [
            &[][..],
            &[odd],
            &["pause KEY"],
            &[shut],
            &[odd, shut],
            &["pause KEY", shut],
        ] {
            for change in [
                pause,
                "limit KEY --concurrency 3 --rate 10/1m --rate 100/1h --throttle 1/1s",
                "limit KEY --rate 5/1m --by '' --for 30m",
                "limit KEY --next-start 30m",
                "resume KEY",
                "clear KEY",
                "clear KEY --override",
                "clear KEY --next-start",
            ] {
                let needs_more = match change {
                    "resume KEY" => !before.contains(&"pause KEY"),
                    "clear KEY" => before.is_empty(),
                    "clear KEY --override" => before.iter().all(|one| *one == shut),
                    "clear KEY --next-start" => !before.contains(&shut),
                    _ => false,
                };
                // A queue as a whole has overrides alone.
                let all = || before.iter().copied().chain([change]);
                if needs_more || (key != "stripe" && all().any(|one| one.contains("next-start"))) {
                    continue;
                }
                for line in before {
                    desk.done(&line.replace("KEY", key));
                }
                let stood = desk.set(key);
                let said = desk.done(&change.replace("KEY", key));
                let now = desk.set(key);
                let what = format!("{before:?} {change}: {said}: {now:?}");
                assert_ne!(now, stood, "{what}");
                let undo = undo_of(&said);
                let undone = desk.shell(undo);
                assert_eq!(undone.status, Some(0), "{what}{}", undone.err);
                assert_eq!(desk.set(key), stood, "{what}");
                changed += 1;
                if stood != [Value::Null, Value::Null] {
                    desk.done(&format!("clear {key}"));
                }
                assert_eq!(desk.set(key), [Value::Null, Value::Null], "{what}");
            }
        }
    }
    assert_eq!(changed, 38 + 14);
}

fn in_an_hour() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let then = now.unwrap() + Duration::from_secs(3_600);
    ojs_throttle::duration::rfc3339(u64::try_from(then.as_micros()).unwrap())
}

#[test]
fn a_pause_stops_starts_and_says_who_and_why() {
    let desk = Desk::new();
    let data = desk.sidecar.data;
    enqueue(data, "billing", json!({}));
    let said = desk.done("pause stripe --reason INC-42 --for 1h");
    assert_eq!(undo_of(&said), "ojs-throttle resume stripe");
    let begins = "override of stripe: {\"by\":\"ana\",\"concurrency\":0,\"expires_at\":\"";
    assert!(said.starts_with(begins), "{said}");
    let [set, _] = desk.set("stripe");
    assert_eq!([&set["by"], &set["reason"]], ["ana", "INC-42"]);
    let ends = set["expires_at"].as_str().unwrap();
    let ends = ojs_throttle::duration::moment(ends).unwrap();
    let hour = ojs_throttle::duration::moment(&in_an_hour()).unwrap();
    assert!(hour.abs_diff(ends) < 60_000_000, "{set}");
    assert!(fetch(data, "billing", 1, "w").jobs().is_empty());
    let why = desk.done("why --key stripe");
    let paused = "is paused: its concurrency is 0; set by hand by \"ana\" because \"INC-42\"";
    has(&why, paused);
    desk.done("resume stripe");
    assert_eq!(fetch(data, "billing", 1, "w").jobs().len(), 1);
    let slots = desk.done("slots stripe");
    has(&slots, " at worker w since ");
    has(&slots, "slots      1 of 1");
    assert_eq!(desk.backend.total(EventKind::Claimed), 1);
}

/// Who stops a key in a hurry, or gives it slots, takes away nothing that somebody else has set.
#[test]
fn a_pause_and_another_number_leave_what_was_set_before() {
    let desk = Desk::new();
    let set = || {
        let [set, _] = desk.set("stripe");
        [&set["rate"]["limit"], &set["concurrency"]].map(Clone::clone)
    };
    desk.done("limit stripe --rate 10/1m --reason INC-42");
    let said = desk.done("limit stripe --concurrency 6 --for 1h");
    has(&said, "note: what was set before ends at ");
    assert_eq!(set(), [json!(10), json!(6)]);
    desk.shell(undo_of(&said));
    // Nor is a pause said to be for the reason of another number.
    let said = desk.done("pause stripe");
    has(&said, "note: until now the reason was \"INC-42\"");
    assert!(desk.set("stripe")[0]["reason"].is_null());
    desk.done("pause stripe --reason INC-43");
    assert_eq!(set(), [json!(10), json!(0)]);
    let said = desk.done("limit stripe --throttle 1/1s");
    has(&said, "it stays paused, until `ojs-throttle resume stripe`");
    assert_eq!(desk.set("stripe")[0]["reason"], "INC-43");
    let said = desk.done("limit stripe --throttle 1/1s --reason asked --for 1h");
    has(&said, "note: until now the reason was \"INC-43\"");
    has(&said, "Z or `ojs-throttle resume stripe`");
    desk.done("resume stripe");
    assert_eq!(set(), [json!(10), Value::Null]);
    // Nor does what was to end for itself become endless unseen.
    desk.done("limit stripe --rate 10/1m --for 1h");
    let said = desk.done("pause stripe");
    has(&said, ": this has no end");
    desk.done("resume stripe");
    desk.done("limit stripe --rate 10/1m --for 1h");
    has(desk.done("limit stripe --rate 10/1m"), ": this has no end");
    desk.done("limit stripe --override '{\"rate\":{\"limit\":10,\"period\":\"1m\"}}' --for 1h");
    assert!(desk.set("stripe")[0]["expires_at"].is_string());
    // Opening a key leaves its numbers.
    desk.done("limit stripe --next-start 1h");
    let why = desk.shell("ojs-throttle why --key stripe").out;
    has(&why, "`ojs-throttle clear stripe --next-start`");
    // `resume` brings back no number that the pause has replaced, and that is said.
    desk.done("limit stripe --concurrency 4");
    let said = desk.done("pause stripe");
    has(&said, "note: concurrency 4 was set by hand");
    desk.done("resume stripe");
    desk.done("clear stripe --next-start");
    assert_eq!(desk.set("stripe")[1], Value::Null);
    assert_eq!(set(), [json!(10), Value::Null]);
}

/// A pause of the queue is told before slots that workers have.
#[test]
fn a_paused_queue_is_told_before_full_slots() {
    let desk = Desk::new();
    let data = desk.sidecar.data;
    for _ in 0..2 {
        enqueue(data, "billing", json!({}));
    }
    assert_eq!(fetch(data, "billing", 2, "w").jobs().len(), 1);
    desk.done("pause _queue:billing --reason INC-9 --for 1h");
    let why = desk.shell("ojs-throttle why --queue billing").out;
    let paused = "why:   queue \"billing\" is paused";
    assert!(why.starts_with(paused), "{why}");
}

/// With `memory:` a pause ends with the process, and the log says so.
#[test]
fn a_stop_tells_that_what_was_set_by_hand_ends() {
    let mut desk = Desk::new();
    desk.done("pause stripe --reason INC-42");
    desk.sidecar.signal("TERM");
    assert!(desk.sidecar.ended().success());
    let log = desk.sidecar.log();
    assert!(log.contains("id=overrides_end overrides=1"), "{log}");
}

/// What was counted is forgotten for good, and that is said.
#[test]
fn usage_is_cleared() {
    let desk = Desk::new();
    let data = desk.sidecar.data;
    desk.done("limit calm --rate 1/1h");
    for _ in 0..2 {
        enqueue(data, "calm", json!({}));
    }
    assert_eq!(fetch(data, "calm", 2, "w").jobs().len(), 1);
    assert!(fetch(data, "calm", 1, "w").jobs().is_empty());
    let said = desk.done("clear calm --usage");
    assert_eq!(undo_of(&said), "nothing brings back what was counted");
    assert_eq!(fetch(data, "calm", 1, "w").jobs().len(), 1);
}

/// Whoever pauses a key wants its jobs to be there later.
#[test]
fn a_pause_of_what_discards_its_jobs_says_so() {
    let drops = "[[policy]]\nname = 'd'\nmatch = { queue = 'q' }\nconcurrency = 1\non_limit = 'drop'\n\
        [[policy]]\nname = 'w'\nmatch = { queue = 'r' }\nconcurrency = 1\n";
    let desk = Desk::with(drops);
    for of in ["d", "--policy d"] {
        let said = desk.done(&format!("pause {of}"));
        assert!(said.contains("note: JOBS ARE DISCARDED"), "{said}");
        desk.done(&format!("resume {of}"));
        let said = desk.done(&format!("pause {}", of.replace('d', "w")));
        assert!(!said.contains("DISCARDED"), "{said}");
    }
}

/// What a budget has used is set as it was paid, and what was set is brought back as an amount.
#[test]
fn what_a_budget_has_used_is_set() {
    let port = crate::servers::port::own();
    let desk = Desk::with(&format!(
        "[[egress]]\nname = 'model'\nlisten = '{port}'\nupstream = 'http://127.0.0.1:9'\n\
         [[egress.budget]]\nname = 'month'\nkey = 'month:{{header.X-Team}}'\n\
         cost = {{ use = 'money', max = '2 USD', prices = {{ m = {{ input = 1, output = 2 }} }} }}\n\
         rate = {{ limit = '800 USD', period = 'P1M', window = 'calendar' }}\n"
    ));
    let said = desk.done("limit month:a --used 431.20USD");
    assert_eq!(undo_of(&said), "nothing brings back what was counted");
    // It exits with 1 where something does not start.
    let why = || desk.shell("ojs-throttle why --key month:a").out;
    has(why(), "money      431.20 USD of 800.00 USD in P1M");
    has(desk.done("top --once"), "431.20/800.00 USD");
    desk.done("limit month:a --used 800USD");
    let told = why();
    let spent = "why:   800.00 USD of 800.00 USD";
    assert!(told.starts_with(spent), "{told}");
    wait("the table says so", || {
        let top = desk.done("top --once");
        top.contains("! 800.00 USD of 800.00 USD") && top.contains("  -> wait, or raise")
    });
    desk.done("limit month:a --rate 900USD/1d");
    let said = desk.done("limit month:a --rate 1000USD/1d");
    desk.shell(undo_of(&said));
    let state = get(desk.sidecar.data, "/ojs/v1/rate-limits/month:a").json();
    assert_eq!(state["override"]["rate"]["limit"], "900.00 USD");
    // It counts in the window that holds.
    desk.done("limit month:a --used 300USD");
    has(why(), "300.00 USD of 900.00 USD in PT24H");
    // And in that of the file, for what was set ends.
    desk.done("clear month:a");
    has(why(), "300.00 USD of 800.00 USD in P1M");
    // A pause has no say in what was used.
    desk.done("pause month:a");
    desk.done("limit month:a --used 500USD");
    desk.done("resume month:a");
    has(why(), "500.00 USD of 800.00 USD in P1M");
    desk.done("limit month:a --rate 1000USD/1d");
    desk.done("limit month:a --used 0USD");
    for (line, why) in [
        ("limit month:a --used 5", "is an amount"),
        ("limit month:a --used 5EUR", "EUR"),
        ("limit month:a --used 1000.01USD", "1000.00 USD"),
        ("limit other --used 5", "is of no budget"),
    ] {
        let ran = desk.shell(&format!("ojs-throttle {line}"));
        let is_told = ran.status != Some(0) && ran.err.contains(why);
        assert!(is_told, "{line}: {}", ran.err);
    }
}

#[test]
fn the_answer_is_printed_as_it_came_and_a_hint_beside_text() {
    let desk = Desk::new();
    let out = desk.done("pause stripe --json");
    // Each of the two says of when it is.
    let timeless = |text: &str| {
        let (head, rest) = text.split_once("\"at\":\"").unwrap();
        head.to_owned() + rest.split_once('"').unwrap().1
    };
    let shown = get(desk.sidecar.data, "/ojs/v1/rate-limits/stripe").body + "\n";
    assert_eq!(timeless(&out), timeless(&shown));
    let none = desk.done("resume stripe --json");
    let none: Value = serde_json::from_str(&none).unwrap();
    assert!(none["override"].is_null(), "{none}");
    let note = "\nnote: this binds nothing yet: no policy and no [[egress]] has this key";
    has(desk.done("pause stirpe"), note);
    has(
        desk.done("pause _queue:biling"),
        "\nnote: no [[queue]] names it",
    );
    enqueue(desk.sidecar.data, "billing", json!({}));
    let known = desk.done("pause _queue:billing");
    assert!(!known.contains("note: no [[queue]]"), "{known}");
}

/// A number that is not the file's is told where nothing waits for it, too.
#[test]
fn what_is_set_by_hand_is_told_where_there_is_room() {
    let desk = Desk::new();
    desk.done("limit stripe --rate 1000/1h");
    let why = desk.done("why --key stripe");
    assert!(why.contains("): has room\n"), "{why}");
    let set = "\n  set by hand: rate {\"limit\":1000,\"period\":\"PT1H\"} by ana\n";
    assert!(why.contains(set), "{why}");
}

/// The command that undoes one goes to the same sidecar.
#[test]
fn the_sidecar_is_named_again() {
    let desk = Desk::new();
    let (dir, _) = file("");
    let path = dir.path().join("it's here.toml");
    let text = format!(
        "[server]\nupstream = \"http://h\"\nadmin_listen = \"{}\"\n{TOKEN}\n",
        desk.sidecar.admin
    );
    std::fs::write(&path, text).unwrap();
    let shown = path.display().to_string().replace('\'', r"'\''");
    let nowhere = "OJS_THROTTLE_ADMIN=http://127.0.0.1:1 OJS_THROTTLE_TOKEN=wrong";
    for there in [
        format!("--config '{shown}'"),
        format!("--admin {} --config '{shown}'", desk.admin()),
    ] {
        let said = desk.shell(&format!("{nowhere} ojs-throttle pause stripe {there}"));
        assert_eq!(said.status, Some(0), "{}", said.err);
        let undo = format!("ojs-throttle resume stripe {there}");
        assert_eq!(undo_of(&said.out), undo);
        let asked = format!("{nowhere} ojs-throttle");
        let why = desk.shell(&format!("{asked} why --key stripe {there}"));
        has(&why.out, &format!("`{undo}`"));
        let undone = desk.shell(&format!("export {nowhere}; {undo}"));
        assert_eq!(undone.status, Some(0), "{}", undone.err);
    }
}

#[test]
fn the_exit_status_says_what_went_wrong() {
    let desk = Desk::new();
    let commands = [
        "pause stripe",
        "limit stripe --rate 1/1s",
        "clear stripe --usage",
    ];
    for line in commands {
        for (token, words) in [
            ("wrong", "what was sent as Authorization is another one"),
            ("", "no Authorization was sent"),
        ] {
            let line = format!("OJS_THROTTLE_TOKEN={token} ojs-throttle {line}");
            is_refused(&desk, &line, 1, words);
            is_refused(&desk, &line, 1, "else OJS_THROTTLE_TOKEN");
        }
    }
    let data = desk.sidecar.data;
    let line = format!("ojs-throttle why --key stripe --admin http://{data}");
    is_refused(&desk, &line, 1, "is no admin port");
    let nowhere = "no sidecar answers at http://127.0.0.1:1";
    let others = [
        "resume stripe",
        "clear stripe",
        "slots stripe",
        "top --once",
    ];
    for line in others.iter().chain(&commands) {
        for (option, status, words) in [
            ("--admin http://127.0.0.1:1", 3, nowhere),
            ("--admin nonsense", 2, "\"nonsense\" is no URL"),
            ("--so", 2, "--so"),
        ] {
            let line = format!("ojs-throttle {line} {option}");
            is_refused(&desk, &line, status, words);
        }
    }
    let as_whole = "stands for a queue as a whole";
    let both = "limit stripe --override '{}' --concurrency 1";
    for (line, status, words) in [
        ("resume stripe", 1, "not paused by hand"),
        ("clear stripe", 1, "nothing is set by hand"),
        ("slots nobody", 1, "nobody"),
        ("slots _queue:calm", 1, "no limits of its own"),
        ("pause -- -bad", 1, "a key is letters"),
        ("limit _queue:calm --next-start 1h", 1, as_whole),
        ("clear _queue:calm --usage", 1, as_whole),
        ("limit stripe --override '{\"burst\":1}'", 1, "burst"),
        ("limit stripe --next-start yesterday", 1, "at: "),
        ("limit stripe --throttle 0/1s", 1, "throttle"),
        ("pause", 2, "<KEY>"),
        ("limit stripe", 2, "--concurrency"),
        ("limit stripe --reason x", 2, "--concurrency"),
        ("limit stripe --rate 100", 2, "write NUMBER/PERIOD"),
        ("limit stripe --rate 1/5", 2, "without a unit"),
        ("limit stripe --override '{'", 2, "--override"),
        ("limit stripe --override '{}' --reason x", 2, "--reason"),
        (both, 2, "--concurrency"),
        ("limit stripe --next-start 1h --for 1h", 2, "--for"),
        ("limit stripe --next-start 1h --rate 1/1s", 2, "--rate"),
        ("pause stripe --for long", 2, "is not a duration"),
        ("top --once --sort size", 2, "size"),
    ] {
        is_refused(&desk, &format!("ojs-throttle {line}"), status, words);
    }
    assert_eq!(desk.set("stripe"), [Value::Null, Value::Null]);
}

/// A file that is wrong does not run: what runs is asked all the same, and what could not be read is said.
#[test]
fn a_wrong_file_keeps_no_command_from_the_sidecar() {
    let desk = Desk::new();
    let (dir, path) = file("");
    let admin = desk.sidecar.admin;
    let nowhere = "OJS_THROTTLE_ADMIN=http://127.0.0.1:1";
    let server = format!("[server]\nupstream = \"http://h\"\nadmin_listen = \"{admin}\"\n");
    let of_file = format!("{nowhere} OJS_THROTTLE_TOKEN=wrong");
    let of_shell = format!("{nowhere} OJS_THROTTLE_TOKEN=s3cret");
    let odd = format!("{TOKEN}\nlog = 7\n[[policy]]\nnam = 1\n");
    let broken = format!("{TOKEN}\n[[policy]]\nname = \"a\nconcurrency = 1\n");
    let variable = "control_token = \"${NOT_SET_HERE}\"\n";
    let of_nowhere = "control_token = \"file:/nowhere/token\"\n";
    for (text, set, words) in [
        (&*odd, &of_file, "server.log"),
        (&broken, &of_file, "not valid TOML"),
        (variable, &of_shell, "NOT_SET_HERE"),
        (of_nowhere, &of_shell, "/nowhere/token"),
    ] {
        std::fs::write(&path, format!("{server}{text}")).unwrap();
        for line in [
            "why --queue billing",
            "top --once",
            "pause stripe",
            "resume stripe",
            "limit stripe --concurrency 2",
            "slots stripe",
            "clear stripe",
            "subqueues",
        ] {
            let line = format!("{set} ojs-throttle {line} --config {}", path.display());
            let said = desk.shell(&line);
            assert_eq!(said.status, Some(0), "{line}: {}", said.err);
            let path = path.display();
            let told = format!("{path} is wrong, and what can be read of it counts");
            let is_told = said.err.contains(&told) && said.err.contains(words);
            assert!(is_told, "{line}: {}", said.err);
        }
    }
    // Of a file that is not there nothing is known, and no other sidecar is asked in its place.
    let none = dir.path().join("none.toml").display().to_string();
    let unset = "OJS_THROTTLE_ADMIN= OJS_THROTTLE_TOKEN=s3cret ojs-throttle pause stripe";
    is_refused(&desk, &format!("{unset} --config {none}"), 78, "none.toml");
    let there = format!("{unset} --config {none} --admin {}", desk.admin());
    let said = desk.shell(&there);
    assert_eq!(said.status, Some(0), "{}", said.err);
    assert!(said.err.contains("none.toml"), "{}", said.err);
}

pub fn is_refused(desk: &Desk, line: &str, status: i32, words: &str) {
    let said = desk.shell(line);
    let what = format!("{line}: {}{}", said.out, said.err);
    assert_eq!(said.status, Some(status), "{what}");
    assert!(said.err.contains(words), "{words}: {what}");
    assert!(said.out.is_empty(), "{what}");
}

/// The row of a limit in what `top` prints: its words.
fn row<'a>(table: &'a str, name: &str) -> Vec<&'a str> {
    let mut rows = (table.lines()).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let found = rows.find(|row| row[0] == name);
    found.unwrap_or_else(|| panic!("{name}: {table}"))
}

fn names(table: &str) -> Vec<&str> {
    let rows = table.lines().skip(2);
    let rows = rows.take_while(|line| !line.starts_with("QUEUE"));
    rows.map(|line| line.split(' ').next().unwrap()).collect()
}

#[test]
fn the_table_says_what_workers_saw() {
    let desk = Desk::new();
    let data = desk.sidecar.data;
    for queue in ["billing", "billing", "calm", "calm", "calm"] {
        enqueue(data, queue, json!({}));
    }
    let started = fetch(data, "billing", 5, "w").jobs().len();
    let calm = fetch(data, "calm", 5, "w").jobs().len();
    let table = until("numbers of now", || {
        let table = desk.done("top --once");
        (row(&table, "calm")[3] == calm.to_string()).then_some(table)
    });
    assert!(table.starts_with("20"), "{table}");
    has(&table, "; store up; backend up; ");
    let stripe = row(&table, "stripe");
    let (slots, started) = (format!("{started}/1"), started.to_string());
    assert_eq!(stripe[..5], ["stripe", "slots", &slots, "1", &started]);
    assert!(stripe[5].parse::<u32>().unwrap() >= 1, "refused: {table}");
    let (used, calm) = (format!("{calm}/100"), calm.to_string());
    assert_eq!(row(&table, "calm")[1..5], [&used, "0", &*calm, "0"]);
    assert!(!table.contains('\x1b'), "no terminal");

    assert_eq!(names(&table), ["stripe", "calm"]);
    for (option, order) in [
        ("--sort name", &["calm", "stripe"][..]),
        ("--sort starts", &["calm", "stripe"]),
        ("--sort waiting", &["stripe", "calm"]),
        ("--filter TRI", &["stripe"]),
    ] {
        let table = desk.done(&format!("top --once {option}"));
        assert_eq!(names(&table), order, "{option}");
    }
    let narrow = desk.shell("COLUMNS=20 ojs-throttle top --once").out;
    assert!(narrow.lines().all(|line| line.len() <= 20), "{narrow}");
    desk.done("pause stripe");
    wait("the pause", || {
        row(&desk.done("top --once"), "stripe")[1] == "paused"
    });

    let json = desk.done("top --once --json");
    let state: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json.lines().count(), 1);
    assert_eq!(state["keys"]["total"], 2);
}

#[test]
fn the_table_ends_with_its_reader() {
    let desk = Desk::new();
    for option in ["", "--json"] {
        let line = format!("timeout 30 ojs-throttle top {option} | head -1");
        let said = desk.shell(&line);
        assert_eq!((said.status, &*said.err), (Some(0), ""), "{line}");
        assert_eq!(said.out.lines().count(), 1, "{line}");
    }
}

#[test]
fn the_table_says_that_it_leaves_out_limits() {
    let policy = |nth| {
        format!(
            "[[policy]]\nname = \"p{nth}\"\nmatch = {{ queue = \"q{nth}\" }}\nconcurrency = 1\n"
        )
    };
    let desk = Desk::with(&(0..51).map(policy).collect::<String>());
    let told = "\n50 of 51 limits: --filter TEXT shows others\n";
    has(desk.done("top --once"), told);
    let some = desk.done("top --once --filter p5");
    assert!(
        some.contains("\np50 ") && !some.contains("--filter"),
        "{some}"
    );
}

/// It says so, and goes on where the sidecar is there again.
#[test]
fn the_table_outlives_the_sidecar() {
    let mut desk = Desk::new();
    let mut command = program();
    command.args(["top", "--admin", &desk.admin()]);
    let mut top = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(top.stdout.take().unwrap()).lines();
    let mut next = |words: &str| {
        let line = lines.find(|line| line.as_ref().unwrap().contains(words));
        line.unwrap().unwrap()
    };
    let begun = next(" ready; store up; ");
    let at = begun.split(' ').next().unwrap();
    desk.sidecar.kill();
    let away = next("no connection since ");
    let since = away.split(' ').nth(3).unwrap().trim_end_matches(':');
    assert!(since >= at, "{at}: {away}");
    let server = format!("{TOKEN}\nadmin_listen = \"{}\"", desk.sidecar.admin);
    let text = config(desk.backend.addr, &server, LIMITS);
    desk.sidecar = Sidecar::run(&text);
    let back = next(" ready; store up; ");
    assert!(back.split(' ').next().unwrap() > at, "{back}");
    top.kill().unwrap();
    top.wait().unwrap();
}

/// A queue may have any name, and is shown under it.
#[test]
fn a_queue_is_shown_under_its_name() {
    let desk = Desk::new();
    let long = "long ".repeat(60);
    for queue in ["a b", "a/b", "gr\u{fc}n", "x_20", &*long] {
        let name = format!("_queue:{queue}");
        desk.done(&format!("pause '{name}'"));
        // A state is a second old at most.
        wait("it is found by its name", || {
            let top = desk.done(&format!("top --once --json --filter '{queue}'"));
            let state: Value = serde_json::from_str(&top).unwrap();
            let row = &state["keys"]["rows"][0];
            queue == long || row["name"] == name && row["state"]["queue"] == queue
        });
        let asked = ojs_throttle::wire::ojs::encoded(&name);
        let state = until("it is found by its key", || {
            let path = format!("/throttle/v1/state?key={asked}");
            let state = get(desk.sidecar.admin, &path).json();
            (state["keys"]["found"] == 1).then_some(state)
        });
        assert_eq!(state["why"]["cause"], "paused", "{state}");
        assert_eq!(state["why"]["limited_at"], name, "{state}");
        desk.done(&format!("resume '{name}'"));
    }
}

/// A bound that was set over HTTP stands in place of the file's: everybody says so, and how it goes.
#[test]
fn a_bound_over_http_is_told_and_taken_away() {
    let desk = Desk::with("[[queue]]\nname = \"email\"\nmax_depth = 5000\n");
    let data = desk.sidecar.data;
    let set = |path: &str, body: Value| {
        let path = format!("/ojs/v1/admin/{path}");
        let set = ask(data, "PUT", &path, &body.to_string());
        assert_eq!(set.status, 200, "{set:?}");
    };
    let offer = || {
        let job = json!({"type": "t", "args": [], "options": {"queue": "email"}});
        ask(data, "POST", "/ojs/v1/jobs", &job.to_string()).status
    };
    let one = json!({"backpressure": {"max_depth": 1}});
    set("queues/email/config", one);
    assert_eq!([offer(), offer()], [201, 429]);
    let why = desk.done("why --queue email");
    has(&why, "a bound over HTTP is in force now");
    has(&why, "`ojs-throttle clear _queue:email --bounds`");
    has(&why, "max_depth 1; undo");
    assert!(!why.contains("in the file"), "{why}");
    wait("it is in the table", || {
        let top = desk.done("top --once");
        top.contains("bounds set over HTTP: max_depth 1")
    });
    // To undo a limit takes away no bound.
    let said = desk.done("limit _queue:email --concurrency 3");
    assert_eq!(undo_of(&said), "ojs-throttle clear _queue:email --override");
    desk.shell(undo_of(&said));
    assert_eq!(offer(), 429);
    // What takes away a bound ends no pause.
    desk.done("pause _queue:email");
    let said = desk.done("clear _queue:email --bounds");
    assert_eq!(offer(), 201, "the file's bound is in force");
    let undone = desk.shell(undo_of(&said));
    assert_eq!(undone.status, Some(0), "{}", undone.err);
    desk.done("resume _queue:email");
    assert_eq!(offer(), 429);
    let said = desk.done("clear _queue:email");
    assert_eq!(offer(), 201, "the file's bound is in force");
    let undone = desk.shell(undo_of(&said));
    assert_eq!(undone.status, Some(0), "{}", undone.err);
    assert_eq!(offer(), 429);
    set("tenants/acme", json!({"limits": {"max_queue_depth": 1}}));
    let said = desk.done("clear _tenant:acme");
    assert_eq!(undo_of(&said), "ojs-throttle limit _tenant:acme --bounds 1");
    let typo = "limit _queue:email --bounds '{\"max_dept\":1}'";
    for (line, words) in [
        ("clear _tenant:acme", "nothing is set by hand"),
        ("limit _tenant:acme --bounds [1]", "how many jobs"),
        (typo, "backpressure.max_dept"),
        ("limit stripe --bounds 1", "has no bounds"),
        ("pause _tenant:acme", "only bounds are set"),
    ] {
        is_refused(&desk, &format!("ojs-throttle {line}"), 1, words);
    }
}
