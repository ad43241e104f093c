//! Each official case, as it is and changed, directly and through a sidecar without limits: the same statuses, bodies and
//! effects at the backend.

use std::collections::HashMap;
use std::sync::Mutex;

use http::Uri;
use ojs_throttle::backend::{Backend, Lax};
use ojs_throttle::net::Net;
use ojs_throttle::net::sim::Network;

use super::rig::{Chance, try_so_many};
use crate::conformance::on_official::{MADE_TO_PASS, as_shipped, cases};
use crate::conformance::runner::{Case, Sent, Twist, run_twisted};
use crate::sidecar::client::Client;
use crate::sidecar::simulated::{Pair, backend};

/// What one run left: of each step what was sent, its status and body, and what happened at the backend.
struct Left {
    steps: Vec<Step>,
    effects: Vec<String>,
}

#[derive(PartialEq, Eq, Debug)]
struct Step {
    id: String,
    asked: String,
    status: u16,
    body: String,
}

/// What stands behind this is by chance.
const BY_CHANCE: &[u8] = b"\"retry_delay_ms\":";

/// Names and times differ from run to run: each name becomes its number, and each time a letter.
#[derive(Default)]
struct Alike(HashMap<Vec<u8>, usize>);

impl Alike {
    fn text(&mut self, bytes: &[u8]) -> String {
        let (mut text, mut at) = (Vec::new(), 0);
        while at < bytes.len() {
            let rest = &bytes[at..];
            if let Some(id) = rest.get(..36).filter(|id| is_id(id)) {
                let next = self.0.len();
                let nth = *self.0.entry(id.to_ascii_lowercase()).or_insert(next);
                text.extend(format!("id{nth}").bytes());
                at += 36;
            } else if is_time(rest) {
                text.push(b'T');
                at += rest
                    .iter()
                    .position(|byte| *byte == b'Z')
                    .map_or(19, |end| end + 1);
            } else if let Some(number) = rest.strip_prefix(BY_CHANCE) {
                text.extend(BY_CHANCE);
                at += BY_CHANCE.len()
                    + number
                        .iter()
                        .take_while(|byte| byte.is_ascii_digit())
                        .count();
            } else {
                text.push(rest[0]);
                at += 1;
            }
        }
        text.escape_ascii().to_string()
    }
}

fn is_id(bytes: &[u8]) -> bool {
    let fits = |(at, byte): (usize, &u8)| match at {
        8 | 13 | 18 | 23 => *byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    };
    bytes.iter().enumerate().all(fits)
}

fn is_time(bytes: &[u8]) -> bool {
    let shape = b"0000-00-00T00:00:00";
    bytes.len() > shape.len()
        && shape.iter().zip(bytes).all(|(want, byte)| match want {
            b'0' => byte.is_ascii_digit(),
            want => want == byte,
        })
}

fn left(backend: &Backend, twist: &Twist<'_>) -> Left {
    let mut alike = Alike::default();
    let seen = twist.seen.lock().unwrap();
    let steps = seen.iter().map(|(id, sent, reply)| {
        let asked = alike.text(format!("{} ", sent.path).as_bytes())
            + &alike.text(sent.body.as_deref().unwrap_or_default());
        Step {
            id: id.clone(),
            asked,
            status: reply.status,
            body: alike.text(&reply.body),
        }
    });
    let steps = steps.collect();
    let ledger = backend.ledger();
    let effects = ledger.iter().map(|event| {
        alike.text(
            format!(
                "{:?} {} {} {} {}",
                event.kind, event.job, event.queue, event.attempt, event.priority
            )
            .as_bytes(),
        )
    });
    Left {
        effects: effects.collect(),
        steps,
    }
}

fn run(case: &Case, change: &(dyn Fn(&str, Sent) -> Sent + Sync), through: bool) -> Left {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let net = Net::Sim(Network::default());
        let twist = Twist {
            change,
            seen: Mutex::default(),
        };
        if !through {
            let side = backend(&net, Lax::spec()).await;
            run_twisted(&Client::new(&net, side.addr), case, Some(&twist)).await;
            return left(&side.stop().await, &twist);
        }
        let pair = Pair::start(net, Lax::spec(), &as_shipped("")).await;
        run_twisted(&pair.sidecar.client(), case, Some(&twist)).await;
        left(&pair.stop().await, &twist)
    })
}

const WORDS: [&str; 24] = [
    "{",
    "}",
    "[",
    "]",
    "\"",
    ",",
    ":",
    "null",
    "true",
    "\"type\":\"v\",",
    "\"args\":[],",
    "\"queue\":\"b\",",
    "\"options\":{",
    "\"meta\":{",
    "\"count\":0,",
    "\\u0000",
    "\\ud800",
    "\u{e9}",
    "-",
    "\"priority\":99,",
    "\"unknown\":{},",
    "?limit=1",
    "/",
    "%41",
];

/// What a step sends, changed; the same for both ways.
fn changed(own: u64, id: &str, mut sent: Sent) -> Sent {
    let step = id
        .bytes()
        .fold(0, |sum: u64, byte| sum.wrapping_mul(31) + u64::from(byte));
    let mut chance = Chance::new(own, step);
    if chance.below(3) > 0 {
        return sent;
    }
    match sent.body.take() {
        Some(body) if chance.below(8) > 0 => {
            sent.body = Some(chance.change(
                &body,
                &WORDS,
                &[
                    "{\"type\":\"x\",\"args\":[1]}",
                    "{\"queues\":[\"q\"],\"count\":1}",
                ],
            ));
        }
        body => {
            sent.body = body;
            let path = chance.change(
                sent.path.as_bytes(),
                &WORDS,
                &["/ojs/v1/jobs", "/ojs/v1/queues"],
            );
            let path = String::from_utf8(path).unwrap_or_default();
            let as_sent = path.replace('{', "%7B").replace('}', "%7D");
            if path.starts_with('/') && as_sent.parse::<Uri>().is_ok() {
                sent.path = path;
            }
        }
    }
    sent
}

/// Whether a step may differ so: the manual says it of these.
fn is_named(direct: &Step, through: &Step) -> bool {
    // The sidecar tells of itself there.
    let tells = ["/ojs/v1/health", "/ojs/manifest"];
    let tells = tells.iter().any(|path| direct.asked.starts_with(path));
    // What a backend could read in two ways stops here, a path or a body; the backend has nothing there.
    let two_ways = ["the path has", "a JSON value with something behind it"];
    let two_ways = two_ways.iter().any(|why| through.body.contains(why));
    let stops = through.status == 400 && two_ways && direct.status == 404;
    (direct.status == through.status && tells) || stops
}

/// The first difference that has no name.
fn difference(direct: &Left, through: &Left) -> Option<String> {
    let steps = direct.steps.iter().zip(&through.steps);
    let step = steps
        .into_iter()
        .find(|(direct, through)| direct != through && !is_named(direct, through));
    if let Some((direct, through)) = step {
        return Some(format!(
            "directly {direct:#?}, through the sidecar {through:#?}"
        ));
    }
    let (direct, through) = (&direct.effects, &through.effects);
    (direct != through)
        .then(|| format!("at the backend directly {direct:#?}, through the sidecar {through:#?}"))
}

#[test]
fn official_cases_do_the_same_through_a_sidecar() {
    // Limits that jobs bring are the sidecar's part.
    let brings = |case: &Case| format!("{case:?}").contains("rate_limit");
    let mut all = cases();
    all.retain(|case| !MADE_TO_PASS.contains(&case.file.as_str()) && !brings(case));
    assert!(all.len() > 250, "{}", all.len());
    let same = |_: &str, sent: Sent| sent;
    let mut found = Vec::new();
    let as_they_are = all.len() as u64;
    let tried = try_so_many(as_they_are + 10_000, |nth, chance, told| {
        let case = &all[usize::try_from(nth).unwrap() % all.len()];
        told.trying(case.file.as_bytes());
        let own = chance.next();
        let twisted = |id: &str, sent: Sent| changed(own, id, sent);
        let change: &(dyn Fn(&str, Sent) -> Sent + Sync) =
            if nth < as_they_are { &same } else { &twisted };
        let difference = difference(&run(case, change, false), &run(case, change, true));
        found.extend(difference.map(|what| format!("FUZZ_CASE={nth} {}: {what}", case.file)));
    });
    assert!(
        found.is_empty(),
        "{} of {tried} differ:\n{}",
        found.len(),
        found.join("\n")
    );
}
