//! What `why` says: a sentence for each case, and what to do.

use serde_json::{Value, json};

use super::Applied;
use crate::limit::{Refusal, Share, Space, Strategy, Timestamp};
use crate::proxy::control::shape::rfc3339;
use crate::store::{Override, Row};

/// So many jobs that have slots are shown of a limit.
const SHOWN: usize = 100;

/// Why nothing starts, and what to do about it.
pub(super) type Sentences = (String, String);

/// Where the job is that is asked about.
pub(super) enum JobPlace {
    Held,
    /// With a worker, as these sentences say.
    Out(Sentences),
    /// Neither here nor out; the backend says this of it.
    Backend(String),
}

/// Nothing that applies keeps a job from starting. `has_keys` says that single jobs may have limits.
pub(super) fn say_open(applied: &[Applied], has_keys: bool) -> Sentences {
    let why = match applied {
        [] if has_keys => "no limit applies to all jobs of the queue; single jobs may have keys",
        [] => "no limit applies",
        _ => "every limit leaves room: the next job may start now",
    };
    let advice =
        "if nothing starts: does a worker ask for this queue here, and has the backend jobs?";
    (why.into(), advice.into())
}

/// No limit binds, but nothing can be fetched.
pub(super) fn say_away() -> Sentences {
    let why = "the backend does not answer: nothing can be fetched";
    let advice = "bring it back; `ojs-throttle doctor` says what is wrong with it";
    (why.into(), advice.into())
}

/// What the limit that binds has used up, and what helps.
pub(super) fn say_limited(one: &Applied, refused: &Refusal) -> Sentences {
    let Applied { limited, view, .. } = one;
    let (key, queue) = (limited.key.as_str(), &view.name);
    let (name, path) = match limited.space {
        Space::Job => (format!("key {key:?}"), format!("/ojs/v1/rate-limits/{key}")),
        Space::Queue => (
            format!("queue {queue:?}"),
            format!("/ojs/v1/admin/queues/{queue}/rate-limit"),
        ),
    };
    let until = refused.at.map(rfc3339).unwrap_or_default();
    let (taken, slots) = (view.usage.active, view.limits.concurrency.unwrap_or(0));
    let raise = format!("raise the limit in the file, or for a while by PUT {path}");
    let pays = limited.cost.pays.get();
    let needs = match pays {
        1 => String::new(),
        _ => format!(", and the job costs {pays}"),
    };
    let why = match refused.strategy {
        Strategy::Concurrency if slots == 0 => {
            let said = view.set.as_deref().map(who_and_why).unwrap_or_default();
            format!("{name} is paused: its concurrency is 0{said}")
        }
        Strategy::Concurrency => format!("{taken} of {slots} slots of {name} are taken{needs}"),
        Strategy::Rate if refused.current < refused.limit => {
            let Refusal { current, limit, .. } = refused;
            format!("{current} of {limit} of {name} are used{needs}: there is room at {until}")
        }
        Strategy::Rate => {
            format!("{name} has started as many jobs as its window allows, until {until}")
        }
        Strategy::Throttle => format!("{name} spaces its starts, and the next one is at {until}"),
        Strategy::Shut => {
            format!("{name} is shut until {until}: a nack said so, or somebody by hand")
        }
        Strategy::Line => format!(
            "another job is first in line of {name}, because its cost needs more room than there is"
        ),
    };
    let advice = match refused.strategy {
        Strategy::Concurrency if slots == 0 && view.set.is_none() => {
            "give it slots in the file".into()
        }
        Strategy::Concurrency if slots == 0 => {
            let of_queue = if view.what == "queue" { "_queue:" } else { "" };
            format!("`ojs-throttle resume {of_queue}{queue}` or DELETE {path} ends the pause")
        }
        Strategy::Concurrency => format!(
            "wait until one of the jobs below ends, or {raise}; the slot of a dead worker is free after its visibility timeout"
        ),
        Strategy::Rate | Strategy::Throttle | Strategy::Line => format!("wait, or {raise}"),
        Strategy::Shut => {
            format!(
                "wait; `ojs-throttle clear {key}` or DELETE /throttle/v1/keys/{key}/next-start on the admin port opens it"
            )
        }
    };
    (why, advice)
}

fn who_and_why(set: &Override) -> String {
    let told = [("by", &set.by), ("because", &set.reason)].into_iter();
    told.filter_map(|(word, text)| Some(format!(" {word} {:?}", text.as_ref()?)))
        .collect()
}

/// A worker has the job.
pub(super) fn say_out(row: &Row, since: Timestamp) -> Sentences {
    let worker = row.claimed.worker.as_deref();
    let by = worker.map(|worker| format!("worker {worker:?}"));
    let by = by.unwrap_or_else(|| "a worker that did not say its name".into());
    let (since, until) = (rfc3339(since), rfc3339(row.until));
    (
        format!("the job runs: {by} has it since {since}"),
        format!(
            "nothing; if the worker is dead, the job's slots are free after its visibility timeout ({until})"
        ),
    )
}

/// What is said in the end: where a job is, or that its queue is paused, counts for more than limits.
pub(super) fn say_place(
    place: Option<JobPlace>,
    paused_queue: Option<&str>,
    limits: Sentences,
) -> Sentences {
    let state = match place {
        Some(JobPlace::Out(sentences)) => return sentences,
        Some(JobPlace::Backend(state)) => state,
        Some(JobPlace::Held) | None => "held".into(),
    };
    let (why, advice) = match (state.as_str(), paused_queue) {
        ("held" | "available", Some(queue)) => (
            format!("queue {queue:?} is paused: none of its jobs starts"),
            &*format!("resume it: POST /ojs/v1/queues/{queue}/resume"),
        ),
        ("held", None) => return limits,
        ("available" | "pending", _) => (
            format!("the job waits at the backend, or another sidecar holds it; {}", limits.0),
            &*limits.1,
        ),
        ("active", _) => (
            "the backend says that the job is active, and it has no slot here: a worker got it around the sidecar, or another sidecar holds it".into(),
            "give all workers of a limited queue the sidecar's address",
        ),
        _ => (
            format!("the backend says that the job is {state}"),
            "no limit keeps a job in this state",
        ),
    };
    (why, advice.to_owned())
}

/// A limit as it is shown: its numbers as `GET /ojs/v1/rate-limits/KEY` shows them, and which of these rows, those
/// of the jobs that have its slots.
pub(super) fn limit_facts<'a>(
    Applied { limited, view, .. }: &Applied,
    rows: impl Iterator<Item = &'a Row>,
) -> Value {
    let slots = rows.take(SHOWN).map(|row| {
        json!({
            "job": row.claimed.job,
            "worker": row.claimed.worker,
            "queue": row.claimed.queue,
            "since": row.started.map(rfc3339),
            "by_sibling": !row.ours,
            "cost": row.claimed.limited.iter().find(|one| one.shares_key(limited)).map(|one| one.cost.pays),
        })
    });
    json!({
        "policy": limited.policy,
        "state": serde_json::from_str::<Value>(&view.to_json()).unwrap_or_default(),
        "slots": slots.collect::<Vec<_>>(),
    })
}

/// The groups that share a limit and have held jobs, with these numbers of jobs, in the order of their turns.
pub(super) fn group_facts(one: &Applied, groups: Vec<(Share, usize)>) -> Vec<Value> {
    let shares = one.view.state.shares();
    let served = |share: &Share| shares.map_or(0, |shares| shares.of(&share.group));
    let mut groups: Vec<_> = (groups.into_iter())
        .map(|(share, held)| (served(&share), share, held))
        .collect();
    groups.sort_by(|a, b| (a.0, &a.1.group).cmp(&(b.0, &b.1.group)));
    let groups = groups.into_iter().take(SHOWN);
    groups
        .map(|(_, share, held)| json!({"group": share.group, "weight": share.weight, "held": held}))
        .collect()
}
