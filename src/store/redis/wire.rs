//! What scripts are given and what they answer.

use std::sync::Arc;

use redis::{Cmd, Value};

use super::super::fleet;
use super::super::record::{self, Written};
use super::super::{Change, Claimed, End, Gen, Place, Row, Verdict};
use ojs_limit::{
    KeyState, Limited, Limits, Measure, Rate, Refusal, Reserved, Served, Shares, Space, Strategy,
    Timestamp, Turn, WindowKind, each_paid_key,
};

/// What is later is never: up to here a script's numbers are exact.
const NEVER: u64 = 1 << 53;

/// A time or a length as a script has it.
pub(super) fn time(time: u64) -> u64 {
    time.min(NEVER)
}

/// A time as a script gave it.
pub(super) fn read_time(time: i64) -> Timestamp {
    match u64::try_from(time) {
        Ok(time) if time < NEVER => Timestamp(time),
        Ok(_) => Timestamp::NEVER,
        Err(_) => Timestamp(0),
    }
}

/// A number that may be missing.
pub(super) fn optional(number: Option<impl ToString>) -> String {
    number.map_or(String::new(), |number| number.to_string())
}

/// The limits of a job. A script cannot reckon with calendars, so the edges of the windows around `now`
/// go with them.
///
/// A cost and a share stand at the end of a limit, where it has one: the action says so.
pub(super) fn write_limits(to: &mut Cmd, limited: &[Limited], now: Timestamp) {
    to.arg(limited.len());
    for one in limited {
        let pays = one.cost.pays.get();
        let has = u8::from(pays > 1) << 2
            | u8::from(one.share.is_some()) << 3
            | u8::from(one.cost.by_calls) << 4;
        to.arg(record::name(one.space, &one.key))
            .arg(one.on_limit as u8 | has)
            .arg(one.limits.concurrency.map_or(-1, i64::from));
        write_spacing(to, &one.limits);
        to.arg(one.limits.rates.len());
        for rate in &one.limits.rates {
            to.arg(rate.limit.get())
                .arg(time(rate.period.get()))
                .arg(rate.window.code());
            write_edges(to, rate, now);
        }
        if pays > 1 {
            let throttle = one.limits.throttle;
            let (more, rest) = throttle.map_or((0, 0), |throttle| throttle.price(pays));
            to.arg(pays);
            for nanos in [more, rest] {
                to.arg(nanos / 1000).arg(nanos % 1000);
            }
        }
        if let Some(share) = &one.share {
            to.arg(&*share.group).arg(share.weight.get());
        }
    }
}

fn write_spacing(to: &mut Cmd, limits: &Limits) {
    let Some(throttle) = &limits.throttle else {
        to.arg(0);
        return;
    };
    let (step, ahead) = throttle.spacing();
    to.arg(throttle.limit.get())
        .arg(u8::from(throttle.measure == Measure::Completion))
        .arg(step / 1000)
        .arg(step % 1000)
        .arg(ahead / 1000)
        .arg(ahead % 1000);
}

/// The windows of a calendar: the one before, the one of now, and two more.
fn write_edges(to: &mut Cmd, rate: &Rate, now: Timestamp) {
    let at = |now| rate.window.edges(rate.period.get(), now);
    let calendar = matches!(rate.window, WindowKind::Calendar(..));
    let Some(current) = at(now).filter(|_| calendar) else {
        to.arg(0);
        return;
    };
    let before = at(current.starts.minus(1)).unwrap_or(current);
    let next = at(current.ends).unwrap_or(current);
    let last = at(next.ends).unwrap_or(next);
    to.arg(5);
    for edge in [
        before.starts,
        current.starts,
        current.ends,
        next.ends,
        last.ends,
    ] {
        to.arg(time(edge.0));
    }
}

/// What `reserve` granted.
pub(super) fn reserved(told: &[Value]) -> Option<Reserved> {
    let times = ints(list(told.get(1)?)?)?;
    let (turns, _) = times.as_chunks::<2>();
    let turns = turns.iter().map(|[from, at]| Turn {
        from: read_time(*from),
        at: read_time(*at),
    });
    let refused = match told.get(2) {
        None | Some(Value::Nil) => None,
        Some(why) => Some(refusal(ints(list(why)?)?.try_into().ok()?)?),
    };
    Some(Reserved {
        turns: turns.collect(),
        refused,
    })
}

/// Why a key refused.
fn refusal([strategy, limit, current, at, slot]: [i64; 5]) -> Option<Refusal> {
    Some(Refusal {
        strategy: match strategy {
            1 => Strategy::Concurrency,
            2 => Strategy::Rate,
            3 => Strategy::Throttle,
            5 => Strategy::Line,
            _ => Strategy::Shut,
        },
        limit: u32::try_from(limit).ok()?,
        current: u32::try_from(current).ok()?,
        at: known_time(at),
        slot: slot == 1,
    })
}

/// A time as a script gave it, if there is one; below zero: there is none.
fn known_time(time: i64) -> Option<Timestamp> {
    (time >= 0).then(|| read_time(time))
}

/// A verdict of `take`.
pub(super) fn verdict(of: &Value) -> Option<Verdict> {
    Some(match *ints(list(of)?)? {
        [0] => Verdict::HasRow,
        [4] => Verdict::Outdated,
        [1, at] => Verdict::Started { at: read_time(at) },
        [2, which, strategy, limit, current, own, slot, opens, action] => Verdict::Refused {
            which: usize::try_from(which).ok()?,
            why: refusal([strategy, limit, current, own, slot])?,
            at: known_time(opens),
            action: record::on_limit(action)?,
        },
        [3] => Verdict::Unasked,
        _ => return None,
    })
}

/// What groups were served, as `take` says.
pub(super) fn served(of: &Value) -> Option<Vec<Served>> {
    let each = list(of)?.iter().map(|one| {
        let [key, group, served, virtual_time] = list(one)? else {
            return None;
        };
        let (space, key) = record::of_name(text(key)?)?;
        Some(Served {
            space,
            key,
            group: Arc::from(text(group)?),
            served: u64::try_from(int(served)?).ok()?,
            virtual_time: u64::try_from(int(virtual_time)?).ok()?,
        })
    });
    each.collect()
}

/// What is kept of a key, of which shares are kept apart, and as of when.
pub(super) fn state(kept: Option<&Value>, shares: Option<&Value>) -> Option<(KeyState, Timestamp)> {
    let (mut state, seen) = match kept {
        None | Some(Value::Nil) => (KeyState::default(), Timestamp(0)),
        Some(kept) => KeyState::unpack(bytes(kept)?)?,
    };
    let (fields, _) = shares.and_then(list).unwrap_or_default().as_chunks::<2>();
    let rows = fields.iter().map(|[name, numbers]| {
        let numbers = text(numbers)?.split(' ').map(str::parse);
        Some((text(name)?, numbers.collect::<Result<Vec<u64>, _>>().ok()?))
    });
    let rows = rows.collect::<Option<Vec<_>>>()?;
    if !rows.is_empty() {
        *state.shares_mut() = Shares::of_rows(rows);
    }
    Some((state, seen))
}

/// A row, as the sidecar of this name sees it.
pub(super) fn row(of: &Value, owner: &str) -> Option<Row> {
    let [
        job,
        generation,
        place,
        until,
        of_owner,
        lasts,
        started,
        claim,
        limits,
    ] = list(of)?
    else {
        return None;
    };
    let texts = (text(claim)?, text(limits)?);
    let generation = Gen(u64::try_from(int(generation)?).ok()?);
    let visibility = u64::try_from(int(lasts)?).ok()?;
    let until = read_time(int(until)?);
    Some(Row {
        claimed: record::claimed(text(job)?, generation, visibility, texts)?,
        place: match text(place)? {
            "h" => Place::of_held(until),
            "o" => Place::Out(until.into()),
            _ => return None,
        },
        started: known_time(int(started)?),
        ours: text(of_owner)? == owner,
    })
}

/// What comes before a job's limits in `take` and in `set adopt`, and all that `set offer` says of it.
pub(super) fn write_job(to: &mut Cmd, claimed: &Claimed) {
    to.arg(time(claimed.visibility))
        .arg(record::lane(claimed.scope, &claimed.queue))
        .arg(record::claim(claimed))
        .arg(record::limits(&claimed.limited));
}

pub(super) fn list(of: &Value) -> Option<&[Value]> {
    match of {
        Value::Array(all) => Some(all),
        _ => None,
    }
}

pub(super) fn int(of: &Value) -> Option<i64> {
    match of {
        Value::Int(number) => Some(*number),
        Value::BulkString(text) => std::str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    }
}

/// Numbers and nothing else.
pub(super) fn ints(of: &[Value]) -> Option<Vec<i64>> {
    of.iter().map(int).collect()
}

pub(super) fn bytes(of: &Value) -> Option<&[u8]> {
    match of {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.as_bytes()),
        _ => None,
    }
}

pub(super) fn text(of: &Value) -> Option<&str> {
    std::str::from_utf8(bytes(of)?).ok()
}

/// The arguments of one change.
pub(super) fn write_change(to: &mut Cmd, change: &Change, now: Timestamp) {
    match change {
        Change::Until {
            job,
            generation,
            until,
            visibility,
        } => write_times(to, "till", job, [generation.0, until.at().0, *visibility]),
        Change::Doubt { job } => to.arg("say").arg(format!("row\n{job}")),
        Change::Came { queue, subqueues } => to.arg("say").arg(record::came(queue, subqueues)),
        Change::Moved { queue, moved } => to.arg("say").arg(record::moved(queue, moved)),
        Change::Holds { queue, jobs } => to.arg("holding").arg(&**queue).arg(*jobs),
        Change::Offer { claimed } => write_claim(to, "offer", claimed, claimed.claimed_at),
        Change::Shut {
            key,
            until,
            at_least,
        } => to
            .arg("shut")
            .arg(record::name(Space::Job, key))
            .arg(time(until.0))
            .arg(u8::from(*at_least)),
        Change::Unused { key } => to.arg("unused").arg(record::name(Space::Job, key)),
        Change::Adopt { claimed, until } => {
            write_claim(to, "adopt", claimed, until.at());
            write_limits(to, &claimed.limited, now);
            to
        }
        Change::Override { .. } | Change::Setting { .. } => match record::written(change) {
            Some((_, Some(written))) => write_written(to.arg("override"), &written),
            // Without a text it is taken away.
            gone => {
                let name = gone.map(|(name, _)| name).unwrap_or_default();
                to.arg("override").arg(name).arg("").arg(-1)
            }
        },
        Change::Own {
            job,
            generation,
            next,
            until,
        } => write_times(to, "own", job, [generation.0, next.0, until.0]),
        Change::Paused { queue, paused } => to
            .arg("paused")
            .arg(fleet::paused(queue))
            .arg(&**queue)
            .arg(u8::from(*paused)),
        Change::Clear => to.arg("clear"),
    };
}

/// What `end` is told of one job.
pub(super) fn write_end(to: &mut Cmd, end: &End, now: Timestamp) {
    to.arg(&*end.job);
    match end.claim {
        Some(claim) => to.arg(time(claim.0)),
        None => to.arg(-1),
    };
    to.arg(end.used.len());
    for used in &end.used {
        to.arg(record::name(used.space, &used.key))
            .arg(used.amount)
            .arg(u8::from(used.counts_now));
    }
    if !end.used.is_empty() {
        write_limits(to, &end.limited, now);
    }
    to.arg(each_paid_key(&end.limited).count());
    for (_, one) in each_paid_key(&end.limited) {
        to.arg(record::name(one.space, &one.key))
            .arg(one.cost.pays.get());
    }
}

/// A claimed job, and a time that matters to what is done with it.
fn write_claim<'c>(to: &'c mut Cmd, verb: &str, claimed: &Claimed, at: Timestamp) -> &'c mut Cmd {
    to.arg(verb)
        .arg(&*claimed.job)
        .arg(time(claimed.generation.0))
        .arg(time(at.0));
    write_job(to, claimed);
    to
}

/// A change of a job that is said in numbers: the generations and the times of its claim.
fn write_times<'c>(to: &'c mut Cmd, verb: &str, job: &str, numbers: [u64; 3]) -> &'c mut Cmd {
    to.arg(verb).arg(job);
    numbers.into_iter().for_each(|number| {
        to.arg(time(number));
    });
    to
}

/// What was set over HTTP, and when it ends.
pub(super) fn write_written<'c>(to: &'c mut Cmd, written: &Written) -> &'c mut Cmd {
    to.arg(&written.name).arg(&written.text);
    match written.ends {
        Some(at) => to.arg(time(at.0)),
        None => to.arg(-1),
    }
}
