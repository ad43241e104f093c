//! Page, `why`, limits and metrics are answered from one picture of what is: under load no two answers of one time say
//! different numbers of the same thing.

use std::collections::BTreeSet;

use super::prelude::*;
use crate::sidecar::process::Ends;

/// So many tenants have a key each, all of one queue. One job of a key runs at a time.
const TENANTS: usize = 300;
const CONFIG: &str = "[[policy]]\nname = \"all\"\nmatch = { queue = \"mail\" }\nconcurrency = 1000\n\
    [[queue]]\nname = \"mail\"\nmax_depth = 100000\n";
/// So many numbers must have been told at one time by two kinds of answers, of each of these things.
const MET: usize = 20;
const THINGS: [&str; 5] = [
    "held",
    "held mail",
    "depth mail",
    "waiting all",
    "waiting t:1",
];

/// What was said of which thing, when, and by which answer.
#[derive(Default)]
struct Said {
    numbers: BTreeMap<(u64, String), (u64, &'static str)>,
    met: BTreeMap<String, BTreeSet<u64>>,
}

impl Said {
    fn note(&mut self, at: u64, thing: &str, number: u64, by: &'static str) {
        let place = (at, thing.to_owned());
        let (known, other) = *self.numbers.entry(place).or_insert((number, by));
        assert_eq!(number, known, "{thing} at {at} by {by}, and by {other}");
        if by != other {
            self.met.entry(thing.to_owned()).or_default().insert(at);
        }
    }

    fn is_enough(&self) -> bool {
        let met = |thing: &&str| self.met.get(*thing).map_or(0, BTreeSet::len);
        THINGS.iter().all(|thing| met(thing) >= MET)
    }
}

/// The microseconds of an answer's time.
fn at(answer: &Value) -> u64 {
    let at = answer["at"].as_str();
    let at = at.unwrap_or_else(|| panic!("it has no time: {answer}"));
    ojs_throttle::duration::moment(at).unwrap()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

fn list(of: &Value) -> &[Value] {
    of.as_array().unwrap()
}

/// The limits of an answer, as each says of itself.
fn note_limits<'a>(said: &mut Said, limits: impl Iterator<Item = &'a Value>, by: &'static str) {
    for limit in limits {
        let name = limit["key"].as_str().or(limit["queue"].as_str()).unwrap();
        let waiting = number(&limit["waiting_count"]);
        said.note(at(limit), &format!("waiting {name}"), waiting, by);
    }
}

fn note_state(said: &mut Said, state: &Value) {
    let when = at(state);
    said.note(when, "held", number(&state["sidecar"]["held"]), "state");
    for row in list(&state["queues"]["rows"]) {
        let queue = row["queue"].as_str().unwrap();
        said.note(
            when,
            &format!("held {queue}"),
            number(&row["held"]),
            "state",
        );
        if let Some(depth) = row["depth"].as_u64() {
            said.note(when, &format!("depth {queue}"), depth, "state");
        }
    }
    let rows = list(&state["keys"]["rows"]).iter();
    note_limits(said, rows.map(|row| &row["state"]), "state");
}

fn note_why(said: &mut Said, why: &Value) {
    let (when, queue) = (at(why), &why["queue"]);
    if let Some(name) = queue["name"].as_str() {
        let held = number(&queue["held_here"]);
        said.note(when, &format!("held {name}"), held, "why");
        if let Some(depth) = queue["depth"].as_u64() {
            said.note(when, &format!("depth {name}"), depth, "why");
        }
    }
    let limits = list(&why["limits"]).iter();
    note_limits(said, limits.map(|limit| &limit["state"]), "why");
}

fn note_metrics(said: &mut Said, page: &str) {
    let of = |line: &str, series: &str| {
        let number: f64 = line.strip_prefix(series)?.trim().parse().ok()?;
        Some((number * 1e6).round() as u64)
    };
    let taken = "ojs_throttle_snapshot_timestamp_seconds ";
    let when = page.lines().find_map(|line| of(line, taken));
    let when = when.expect("the page has no time");
    for line in page.lines() {
        if let Some(held) = of(line, "ojs_throttle_held_jobs ") {
            said.note(when, "held", held / 1_000_000, "metrics");
        }
        let waiting = line.strip_prefix("ojs_rate_limit_waiting{key=\"");
        if let Some((key, rest)) = waiting.and_then(|rest| rest.split_once("\"}"))
            && !key.starts_with('_')
        {
            let waiting = of(rest, "").unwrap() / 1_000_000;
            said.note(when, &format!("waiting {key}"), waiting, "metrics");
        }
    }
}

/// A job of one of the tenants.
fn send(data: SocketAddr, nth: usize) {
    let limits = json!({"key": format!("t:{}", nth % TENANTS), "concurrency": 1});
    enqueue(data, "mail", json!({"rate_limit": limits}));
}

/// Jobs come, start and end all the time.
fn work(data: SocketAddr, nth: usize, is_over: &AtomicBool) {
    for round in 0.. {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        send(data, round * 7 + nth);
        if round % 3 == 0 {
            for job in fetch(data, "mail", 3, "w").jobs() {
                ack(data, &job, "w");
            }
        }
    }
}

#[test]
fn answers_of_one_time_say_the_same() {
    let (_backend, sidecar) = pair("max_in_flight = 1000", CONFIG);
    for nth in 0..2 * TENANTS {
        send(sidecar.data, nth);
    }
    let (data, admin) = (sidecar.data, sidecar.admin);
    let (said, is_over) = (Mutex::new(Said::default()), AtomicBool::new(false));
    let (said, is_over) = (&said, &is_over);
    std::thread::scope(|scope| {
        let _ends = Ends(is_over);
        for nth in 0..2 {
            scope.spawn(move || work(data, nth, is_over));
        }
        let read = |from: SocketAddr, path: &'static str, note: fn(&mut Said, &str)| {
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let answer = get(from, path);
                    note(&mut said.lock().unwrap(), &answer.body);
                }
            })
        };
        fn json(text: &str) -> Value {
            serde_json::from_str(text).unwrap()
        }
        let readers = [
            read(admin, "/metrics", note_metrics),
            read(admin, "/throttle/v1/state", |said, text| {
                note_state(said, &json(text))
            }),
            read(admin, "/throttle/v1/state?search=t:1", |said, text| {
                note_state(said, &json(text))
            }),
            read(admin, "/throttle/v1/why?queue=mail", |said, text| {
                note_why(said, &json(text))
            }),
            read(admin, "/throttle/v1/why?key=t:1", |said, text| {
                note_why(said, &json(text))
            }),
            read(data, "/ojs/v1/rate-limits/all", |said, text| {
                note_limits(said, [&json(text)].into_iter(), "one")
            }),
            read(data, "/ojs/v1/rate-limits?per_page=100", |said, text| {
                note_limits(said, list(&json(text)["items"]).iter(), "list");
            }),
        ];
        wait("answers of one time", || {
            said.lock().unwrap().is_enough() || readers.iter().any(|reader| reader.is_finished())
        });
    });
    assert!(said.lock().unwrap().is_enough());
}

/// A page is shared for a second, and its time says of when its numbers are.
#[test]
fn a_time_is_that_of_the_numbers() {
    let (_backend, sidecar) = pair("", "");
    let limits = json!({"rate_limit": {"key": "k", "concurrency": 1}});
    let come = || {
        enqueue(sidecar.data, "mail", limits.clone());
        fetch(sidecar.data, "mail", 9, "w")
    };
    for _ in 0..2 {
        come();
    }
    for held in 2..6 {
        get(sidecar.admin, "/throttle/v1/state");
        come();
        let since_epoch = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
        let state = until("a page of now", || {
            let nth = since_epoch.as_nanos();
            let page = get(sidecar.admin, &format!("/throttle/v1/state?search={nth}")).json();
            (u128::from(at(&page)) >= since_epoch.as_micros()).then_some(page)
        });
        assert_eq!(state["sidecar"]["held"], held, "{state}");
    }
}
