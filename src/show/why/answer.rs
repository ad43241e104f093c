//! What `why` says of a job, and of the limits that apply.

use std::fmt::Display;
use std::time::Duration;

use serde_json::{Value, json};

use super::applied::Applied;
use crate::inquiry::calls;
use crate::inquiry::shape::rfc3339;
use crate::json::Json;
use crate::limit::{Cost, Limited, Share, Space, Timestamp};
use crate::store::{Due, Gen, Row};
use crate::subqueues::{LOOKED_PAST, ShownSubqueue};
use crate::told::causes::{self, Cause, CauseKind};

/// So many jobs that have slots are shown of a limit.
const SHOWN: usize = 100;

/// Where the job is that is asked about.
pub(super) enum JobPlace {
    Held,
    /// With a worker.
    Out(Cause),
    /// Neither here nor out; the backend says this of it.
    Backend(String),
    /// A sidecar has discarded it, with these words.
    Dropped(String),
    /// It is not there yet. It would stand behind all others of its queue.
    Coming,
    /// It waits in a subqueue of this queue.
    Subqueue(String, WhichHead),
}

/// Whose jobs of a subqueue are held here.
pub(super) enum WhichHead {
    Held,
    /// Jobs of other keys alone, which have no room; what waits behind them.
    Others(Box<ShownSubqueue>),
    NotHere,
}

impl JobPlace {
    /// Whether it may be one of those that the next FETCH brings.
    pub(super) fn is_behind(&self) -> bool {
        matches!(self, JobPlace::Backend(_) | JobPlace::Coming)
    }

    /// Whether jobs of other keys stand in front of it that have no room.
    pub(super) fn is_behind_others(&self) -> bool {
        matches!(self, JobPlace::Subqueue(_, WhichHead::Others(_)))
    }

    /// What is said of the job, where this is what is said of its queue and its limits.
    pub(super) fn cause(self, of_queue: Cause) -> Cause {
        match self {
            JobPlace::Out(cause) => cause,
            JobPlace::Dropped(message) => Cause::new(&causes::DROPPED, &[("message", &message)]),
            JobPlace::Held | JobPlace::Coming => of_queue,
            JobPlace::Subqueue(..) if of_queue.kind == &causes::QUEUE_PAUSED => of_queue,
            JobPlace::Subqueue(queue, head) => {
                let queue = format!("{queue:?}");
                match head {
                    WhichHead::Held => waits_behind(&causes::BEHIND_HEAD, &queue, of_queue),
                    WhichHead::NotHere => waits_behind(&causes::IN_SUBQUEUE, &queue, of_queue),
                    WhichHead::Others(there) => behind_others(&queue, &there),
                }
            }
            JobPlace::Backend(state) => match &*state {
                "available" | "pending" if of_queue.kind == &causes::QUEUE_PAUSED => of_queue,
                "available" | "pending" => waits_behind(&causes::AT_BACKEND, "", of_queue),
                "active" => Cause::new(&causes::ELSEWHERE, &[]),
                _ => Cause::new(&causes::OTHER_STATE, &[("state", &state)]),
            },
        }
    }
}

/// That a sidecar has discarded a job, where the backend says that of one in this state.
pub(super) fn dropped_by(job: Json<'_>, state: &str) -> Option<JobPlace> {
    if !matches!(state, "discarded" | "cancelled") {
        return None;
    }
    let [error, errors] = job.pick_exact(["error", "errors"]);
    let last = errors.and_then(|errors| errors.items().last());
    let each = [error, last].into_iter().flatten();
    let mut said = each.filter_map(|error| error.text_of("message"));
    let said = said.find(|said| said.starts_with(calls::DROPPED))?;
    Some(JobPlace::Dropped(said.into_owned()))
}

/// What is said of a job in whose subqueue jobs of other keys are held alone.
fn behind_others(queue: &str, there: &ShownSubqueue) -> Cause {
    let jobs = there.waiting;
    let fewer = "wait until fewer wait there, or bound how many a tenant may have: `per_key` of the `[[queue]]`";
    let (rest, todo) = if jobs == 0 && there.told_s.is_none() {
        (
            "the backend did not say yet how many wait there".to_owned(),
            fewer,
        )
    } else if jobs > LOOKED_PAST as u64 {
        let rest = format!("{jobs} jobs wait there, and up to {LOOKED_PAST} are looked past");
        (rest, fewer)
    } else if there.out_of_reach {
        let rest = format!("{jobs} jobs wait there, and no more may be held to look past them");
        (
            rest,
            "raise max in [hold], or let more of the keys in front start",
        )
    } else {
        let rest = format!("{jobs} jobs wait there, and all of them are looked past");
        (
            rest,
            "nothing: a worker that asks for the queue gets it past them",
        )
    };
    let known: [(&str, &dyn Display); 3] = [("queue", &queue), ("rest", &rest), ("do", &todo)];
    Cause::new(&causes::BEHIND_OTHERS, &known)
}

/// What is said of a job that nobody has claimed. That its limits leave room is not all that it waits for.
fn waits_behind(kind: &'static CauseKind, queue: &str, of_queue: Cause) -> Cause {
    let rest = match of_queue.kind == &causes::OPEN {
        true => Cause::new(&causes::UNSEEN, &[]),
        false => of_queue,
    };
    let known: [(&str, &dyn Display); 3] =
        [("queue", &queue), ("rest", &rest.why), ("do", &rest.advice)];
    Cause::new(kind, &known).until(rest.until)
}

/// A worker has the job.
pub(super) fn out(row: &Row, since: Timestamp, due: Due) -> JobPlace {
    let worker = row.claimed.worker.as_deref();
    let worker = worker.map(|worker| format!("worker {worker:?}"));
    let worker = worker.unwrap_or_else(|| "a worker that did not say its name".into());
    let until = match row.claimed.generation {
        Gen::ADOPTED => "not known here: the backend is asked again and again".to_owned(),
        _ => rfc3339(due.at()),
    };
    let since = rfc3339(since);
    let known: [(&str, &dyn Display); 3] =
        [("worker", &worker), ("since", &since), ("until", &until)];
    JobPlace::Out(Cause::new(&causes::RUNS, &known))
}

/// The limit by which the job of a row has a slot of a key, or of any key of a policy; `None`: it has none.
pub(super) fn slot_of<'a>(row: &'a Row, limited: &Limited) -> Option<&'a Limited> {
    let mut limits = row.claimed.limited.iter();
    limits.find(|one| match limited.space {
        Space::Policy => one.policy == limited.policy,
        Space::Job | Space::Queue => one.shares_key(limited),
    })
}

/// A limit as it is shown: its numbers as `GET /ojs/v1/rate-limits/KEY` shows them, and which of these rows, those
/// of the jobs that have its slots.
pub(super) fn limit_facts<'a>(
    Applied {
        view, cause, hung, ..
    }: &Applied,
    rows: impl Iterator<Item = &'a Row>,
) -> Value {
    let limited = &view.limited;
    let hangs = |row: &Row| {
        let age = row.started.map(|since| view.now.since(since));
        let age = age.map(Duration::from_micros);
        hung.as_ref()
            .zip(age)
            .is_some_and(|(hung, age)| hung.has(age))
    };
    let mut rows: Vec<&Row> = rows.collect();
    rows.sort_by_key(|row| !hangs(row));
    let slots = rows.iter().take(SHOWN).map(|row| {
        let of = slot_of(row, limited);
        json!({
            "job": row.claimed.job,
            "key": of.map(|one| one.space.name_of(&one.key)),
            "egress": row.claimed.egress(),
            "worker": row.claimed.worker,
            // Calls have none.
            "queue": row.claimed.egress().is_none().then_some(&row.claimed.queue),
            "since": row.started.map(rfc3339),
            "by_sibling": !row.ours,
            "may_hang": hangs(row),
            "cost": of.map(|one| one.cost.pays),
        })
    });
    let mut facts = json!({
        "policy": limited.policy,
        "cause": cause.as_ref().map(Cause::to_json),
        "state": serde_json::from_str::<Value>(&view.to_json()).unwrap_or_default(),
        "slots": slots.collect::<Vec<_>>(),
    });
    // Not every row is read where very many are out.
    let known = match view.unit {
        "starts" => rows.len().max(view.usage.active as usize),
        _ => rows.len(),
    };
    let more = known.saturating_sub(rows.len().min(SHOWN));
    if let Some(facts) = facts.as_object_mut().filter(|_| more > 0) {
        facts.insert("more_slots".to_owned(), more.into());
    }
    facts
}

/// The groups that share a limit and have held jobs or calls that wait, each with what its next one adds to what it was
/// served and how many they are, in the order of their turns.
pub(super) fn group_facts(
    one: &Applied,
    held: Vec<(Share, Cost, usize)>,
    calls: Vec<(Share, u64, usize)>,
) -> Vec<Value> {
    let shares = one.view.state.shares();
    let held = held.into_iter().map(|(share, cost, jobs)| {
        let price = share.price(&cost);
        (share, price, ("held", jobs))
    });
    let calls = calls.into_iter();
    let calls = calls.map(|(share, price, calls)| (share, price, ("calls", calls)));
    let mut groups: Vec<_> = (held.chain(calls))
        .map(|(share, price, waits)| {
            let served = shares.map_or(0, |shares| shares.of(&share.group));
            (served.saturating_add(price), share, waits)
        })
        .collect();
    groups.sort_by(|a, b| (a.0, &a.1.group).cmp(&(b.0, &b.1.group)));
    let waits: Vec<_> = groups
        .iter()
        .map(|(_, share, (_, waiting))| (share, *waiting))
        .collect();
    let ends = ends_of_groups(one, &waits);
    let groups = groups.iter().zip(ends).take(SHOWN);
    groups
        .map(|((_, share, (what, waiting)), ends)| {
            let mut group = json!({"group": share.group, "weight": share.weight, *what: waiting});
            if let Some((at, group)) = ends.zip(group.as_object_mut()) {
                group.insert("waiting_done".to_owned(), rfc3339(at).into());
            }
            group
        })
        .collect()
}

/// When the last of each group starts, where all that wait are known: who still waits has its part of the pace, until it
/// has none that waits.
fn ends_of_groups(one: &Applied, groups: &[(&Share, usize)]) -> Vec<Option<Timestamp>> {
    let view = &one.view;
    let all: u64 = groups.iter().map(|(_, waiting)| *waiting as u64).sum();
    let known = view
        .done
        .filter(|_| all == view.waiting + view.calls.1 as u64);
    let Some(done) = known.filter(|_| all > 0) else {
        return vec![None; groups.len()];
    };
    let pace = done.at.since(view.now) as f64 / all as f64;
    let share = |(share, waiting): &(&Share, usize)| {
        let weight = f64::from(share.weight.get());
        (*waiting as f64 / weight, weight)
    };
    let each: Vec<_> = groups.iter().map(share).collect();
    // By then a group has started its own, and others as many for their weight, or all that they have.
    let starts = |turns: f64| {
        each.iter()
            .map(|(own, weight)| own.min(turns) * weight)
            .sum::<f64>()
    };
    let ends = each.iter().map(|(turns, _)| starts(*turns) * pace);
    ends.map(|after| Some(view.now.plus(after as u64)))
        .collect()
}
