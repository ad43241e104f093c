//! The causes for which jobs do not start: each is declared once. `why`, the page, `top`, `doctor` and the chapter
//! `incidents` all say it in these words.

use std::fmt::Display;

use serde_json::{Value, json};

use ojs_duration as duration;
use ojs_limit::{Space, Timestamp};

/// A cause, as it is declared. Names in braces stand for what is known of the case.
#[derive(PartialEq, Eq, Debug)]
pub struct CauseKind {
    /// Its short name, for tables.
    pub name: &'static str,
    /// The sentence.
    pub says: &'static str,
    /// What to do, by commands of our own where there is one.
    pub advice: &'static str,
    /// What the manual says of it.
    pub means: &'static str,
    /// Whether jobs start all the same.
    pub lets_start: bool,
    /// Whether it keeps every job from starting, whatever its limits.
    pub stops_all: bool,
}

impl CauseKind {
    /// Whether it keeps every call from starting too.
    pub fn stops_calls(&self) -> bool {
        self.name == DRAINING.name
    }
}

macro_rules! causes {
    ($(
        $(#[doc = $means:literal])*
        $KIND:ident $name:literal $(lets $start:ident)? $(stops $all:ident)?: $says:literal => $advice:literal;
    )*) => {
        $(
            $(#[doc = $means])*
            pub static $KIND: CauseKind = CauseKind {
                name: $name,
                says: $says,
                advice: $advice,
                means: concat!($($means),*),
                lets_start: !stringify!($($start)?).is_empty(),
                stops_all: !stringify!($($all)?).is_empty(),
            };
        )*

        /// All causes, in the order of the manual.
        pub static CAUSES: &[&CauseKind] = &[$( &$KIND ),*];
    };
}

causes! {
    /// Workers are slow or dead. The jobs with their workers are listed. See "Slots are full, and workers are idle".
    SLOTS "slots": "{taken} of {slots} slots of {what} are taken{needs}{set}"
        => "wait until one of the {out} ends, or {raise}; {dead}";
    /// They have run three times as long as any of the last 100 jobs of the key, and for 5 s at least. A worker that sends
    /// heartbeats keeps its slot as long as it does so. It is said once 20 jobs of the key have ended here. The same is
    /// said of calls.
    HUNG "may hang": "{jobs} run since {age}, usual is {usual}: {workers} may hang, with slots of {what}"
        => "look at {whom}, and restart what hangs: {free}";
    /// Someone paused the key, or all keys of its policy. The line says who, why and until when.
    /// `ojs_throttle_paused_keys` counts keys, queues and policies that were paused over HTTP.
    PAUSED "paused": "{what} is paused: its concurrency is 0{set}"
        => "`ojs-throttle resume {name}` ends the pause";
    /// The policy says so for jobs that its limit lets not start now. They are lost. The rest of the line says what keeps
    /// them. The log has `jobs_dropped`, and `ojs_rate_limit_dropped_total` counts them.
    DROPS "drops jobs": "jobs of {what} are discarded, because on_limit is \"drop\"; {rest}"
        => "{do}; `on_limit = \"wait\"` in the file keeps them";
    /// The policy, `[[egress]]` or budget left the file. What was set by hand for all of its keys is kept until it ends
    /// or somebody takes it away.
    NOT_IN_FILE "not in file" lets start: "policy {policy} limits nothing, because nothing in the file has this name{set}"
        => "`ojs-throttle clear --policy {of_policy}` takes away what was set by hand";
    /// Nothing that the file enforces has the key any more, as where a policy was renamed or put in shadow, and no job that
    /// came here brought it itself. What was set by hand for the key is kept until it ends or somebody takes it away.
    BINDS_NOTHING "binds nothing" lets start: "{what} limits nothing now: the file does not enforce it, and no job here brought it{set}"
        => "`ojs-throttle clear {name} --override` takes away what was set by hand";
    /// So it is said of a policy, `[[egress]]` or budget as a whole. Its numbers hold for each of its keys alone.
    /// At most 1,000 of these are looked at.
    EACH_KEY "each key" lets start: "policy {policy} limits each of its keys alone: {full} of {keys} that are known here have no room{names}"
        => "`ojs-throttle why --key KEY` says what keeps one of them";
    /// The file, or the job itself, allows no start.
    NO_SLOTS "no slots": "{what} has no slots: its limit says concurrency = 0" => "{raise}";
    /// The service said that it has had enough, in a nack or in its answer to a call. Or someone set the next start.
    SHUT "shut": "{what} is shut until {until}: the service said so, or somebody by hand"
        => "wait, or open it: `ojs-throttle clear {name} --next-start`";
    /// The `rate` is used up until the time in the line.
    RATE "rate": "{what} has started as many as its window allows, until {until}{set}" => "wait, or {raise}";
    /// The job or the call needs more of a limit than is left of it.
    COST "cost": "{used} of {limit} of {what} are used{needs}: there is room at {until}{set}" => "wait, or {raise}";
    /// A `throttle` allows the next start at the time in the line. Slots have nothing to do with it.
    SPACING "spacing": "{what} spaces its starts, and the next one is at {until}{set}" => "wait, or {raise}";
    /// See the chapter `cost`.
    LINE "line": "another job is first in line of {what}, because its cost needs more room than there is"
        => "wait, or {raise}";
    /// The sidecar looks no further into the queue, because the jobs in front of it fill what it may hold. Jobs of other
    /// keys behind them do not start, although they may. The log said so as `lookahead_full`. On nats only a queue of its
    /// own helps, because the lookahead ends near 1,000.
    LOOKAHEAD "lookahead full": "the lookahead of queue {queue} is full: {held} jobs are held for {keys}, and {behind} behind them"
        => "{cures}";
    /// The queue has subqueues (see the chapter `subqueues`). Of each key that has no room one job is held, its head, or a
    /// few that may start at once. The others wait behind it, in order. Jobs of other keys do not wait for them, unless
    /// they share the subqueue.
    BEHIND_HEAD "behind the head": "the job waits in a subqueue of queue {queue}, behind the head of its key; {rest}" => "{do}";
    /// Jobs of another key without room wait in the same subqueue, and the job is behind them. They are looked past if no
    /// more wait there than the line says. See the chapter `subqueues`.
    BEHIND_OTHERS "behind others": "the job waits in a subqueue of queue {queue} with jobs of other keys, which have no room; {rest}"
        => "{do}";
    /// More jobs wait in a subqueue than are looked past, and those in front have no room. Those behind may be of other
    /// keys. After a restart nobody knows whose they are. `ojs-throttle subqueues` says where, and which keys are in front.
    OUT_OF_REACH "out of reach" lets start: "queue {queue} has jobs out of reach: {names} of its subqueues have {jobs} that wait behind jobs without room, and may be of other keys"
        => "wait until fewer wait there, or let more of the keys in front start (`ojs-throttle subqueues` names them); bound how many a tenant may have by `per_key` of the `[[queue]]`";
    /// The queue has subqueues, and this sidecar holds no job of that key. It comes when it is asked for, at most some
    /// seconds after a worker asks.
    IN_SUBQUEUE "in a subqueue": "the job waits in a subqueue of queue {queue}, and no job of its key is held here; {rest}"
        => "{do}";
    /// Someone paused the queue at the backend.
    QUEUE_PAUSED "queue paused": "queue {queue} is paused: none of its jobs starts"
        => "resume the queue as it was paused: by the backend's own commands or page";
    /// Jobs of the queue may start, but no more of them come in. Where it has more than the bound, jobs came around the
    /// sidecar or failed and came back, or the bound was made smaller.
    QUEUE_FULL "queue full" lets start: "queue {queue} is full: {happens}{set}{over}" => "start more workers, or {larger}";
    /// The queue is not full. Producers of that tenant, of that key or at that rate get 429, or those whose enqueue needs
    /// more than is left: a batch, or a large job. Others do not. It is said for a minute.
    REFUSED "refused" lets start: "an enqueue into queue {queue} was refused {ago} s ago: {message}" => "{first}, or {larger}";
    /// Workers ask another sidecar or the backend itself, name another queue, or are dead.
    NOBODY_ASKS "nobody asks": "no worker has asked this sidecar for queue {queue}{lately}"
        => "start workers of this queue, and give them the sidecar's address (server.listen)";
    /// The jobs were fetched with another `Authorization` or `X-OJS-Tenant`. Only a worker with the same ones gets them.
    CREDENTIALS "credentials" lets start: "jobs are held for credentials with which no worker has asked for {seconds} s ({jobs} jobs)"
        => "start a worker with the same Authorization and X-OJS-Tenant, or wait until the backend takes the jobs back";
    /// Either all jobs of the queue run, or they came to another queue.
    NO_JOBS "no jobs": "the backend has no job of queue {queue} that can be fetched"
        => "look at the queue that producers name{near}; scheduled jobs wait for their time";
    /// They wait there for a start, or for a worker. The backend has no others. Only their sidecars know their keys.
    HELD_ELSEWHERE "held elsewhere": "other sidecars hold {jobs} jobs of queue {queue}"
        => "ask those sidecars what keeps them: `ojs-throttle why --queue NAME --admin URL`";
    /// Nothing is fetched while the backend is away. The log has the reason.
    BACKEND_AWAY "backend away" stops all: "the backend does not answer: nothing can be fetched"
        => "bring it back; `ojs-throttle doctor` says what is wrong with it";
    /// A web server answers there, or an admin port, or this sidecar itself. Nothing can be fetched, and `/readyz` is 503.
    WRONG_UPSTREAM "wrong upstream" stops all: "server.upstream leads to no backend: {who}"
        => "write the backend's address in server.upstream; `ojs-throttle doctor` says more";
    /// Workers get the same answer. 404 speaks of a wrong `server.upstream`. Else look at the backend and its log.
    /// `ojs-throttle doctor` says more. The log says it as `backend_refuses`.
    BACKEND_REFUSES "backend refuses" stops all: "the backend answers a FETCH with {status}: nothing can be fetched"
        => "{do}; `ojs-throttle doctor` says more";
    /// It did so in the last 30 s. Workers with other credentials may get jobs. The log says it as `backend_refuses`.
    LOGIN_REFUSED "login refused" lets start: "the backend refuses the credentials of a worker: its FETCH gets {status}"
        => "correct the credentials of that worker; the backend's log may say which it is";
    /// Calls through the way out get 502 or 504. This alone keeps no job from starting. The log has the reason.
    SERVICE_AWAY "service away": "the service of way out {egress} does not answer: calls to it fail"
        => "`ojs-throttle doctor` says whether it can be reached from here; if it lasts, pause the key of its calls and jobs";
    /// Limits are not known while the store is away, and `closed` was chosen for this case.
    STORE_CLOSED "store closed": "the store does not answer, and on_store_error is \"closed\": no job of {what} starts{error}"
        => "bring the store back; `ojs-throttle doctor` says what is wrong with it";
    /// With `share`, a sidecar goes on with the slots that it had, and with its part of a rate or a throttle. The line has
    /// the part; a sidecar that had no slot has none.
    STORE_SHARE "store share": "the store does not answer, and this sidecar's part of {what} leaves no room{part}{error}"
        => "bring the store back; `ojs-throttle doctor` says what is wrong with it";
    /// Nothing that is limited starts before the store has answered once, whatever `on_store_error` says.
    STORE_NEVER "store never there": "the store has not answered since the start: no job of {what} starts{error}"
        => "look at store.url; `ojs-throttle doctor` says what is wrong with the store";
    /// What starts without the store is said by `on_store_error` of each policy.
    STORE_LOST "store lost" lets start: "the store does not answer: these are the numbers of this sidecar alone{error}"
        => "bring the store back; `ojs-throttle doctor` says what is wrong with it";
    /// It waits for the backend's manifest and the list of jobs that run.
    STARTING "starting" stops all: "the sidecar takes no work yet: it starts" => "wait; the log says what it waits for";
    /// Somebody stops it.
    DRAINING "draining" stops all: "the sidecar stops: no job that has limits starts, and soon no call"
        => "let workers and callers ask another sidecar, or wait for the next start of this one";
    /// The last good settings are in force. This alone keeps no job from starting. `ojs-throttle check FILE` says what is
    /// wrong with the file. Where it is right, and needs a restart, the line says so.
    FILE_REFUSED "file refused" lets start: "the config file is not in force: it was refused{why}, and what it said before stands since {since}"
        => "{do}";
    /// Each of them gives out the whole limit. See "More jobs run than may".
    UNSHARED "unshared" lets start: "other sidecars start jobs of the same limits, and each has a store of its own"
        => "give all of them one store.url";
    /// Each limits by its own file what comes through it, so more may start than one of them says. In a rollout it ends by
    /// itself. Ways out are compared where both have one of the name. The log says it as `files_differ` after a minute.
    FILES_DIFFER "files differ" lets start: "sidecars on the same store have other limits in their files: {sidecars}"
        => "give all of them the same file; `ojs-throttle check FILE` says what one sets";
    /// Their jobs start whatever the limits say, and take no slots. See "More jobs run than may".
    AROUND "around" lets start: "workers get jobs of queue {queues} around the sidecar, and no limit holds for them: {workers}"
        => "give these workers the sidecar's address (server.listen) in place of the backend's";
    /// The entry limits nothing, and the jobs that it is meant for have no limits.
    UNUSED "queue unused" lets start: "{entry} is for queue {queue}, which the backend lacks: did you mean {near}?"
        => "correct the queue's name in the file; where it is right, this ends with its first job";
    /// No worker has fetched the job through this sidecar. The rest of the line says what is known of its queue and its
    /// limits.
    AT_BACKEND "at the backend": "the job waits at the backend, or another sidecar holds it; {rest}" => "{do}";
    /// The job has started. If its worker is dead, the next line says when the slot is free.
    RUNS "runs": "the job runs: {worker} has it since {since}"
        => "nothing; if the worker is dead, the job's slots are free after its visibility timeout ({until})";
    /// A worker got it around the sidecar. Or another sidecar holds it, and the store cannot say so.
    ELSEWHERE "elsewhere": "the backend says that the job is active, and it has no slot here"
        => "give all workers of a limited queue the sidecar's address";
    /// A limit with `on_limit = "drop"`, or a full queue with `strategy = "drop_oldest"`, had no room for it.
    DROPPED "dropped": "the job was discarded: it was {message}"
        => "enqueue it again if it is needed; `on_limit = \"wait\"`, or a strategy such as \"reject\", discards no job";
    /// Finished and scheduled jobs are in such a state.
    OTHER_STATE "other state": "no limit matters: the backend says that the job is {state}" => "nothing; a job starts when it is available";
    /// No policy matches. If one should, see "Limits have no effect".
    NO_LIMIT "no limit" lets start: "no limit applies{but}"
        => "if nothing starts: does a worker ask for this queue here, and has the backend jobs?";
    /// Its limits have room, but nobody here sees how many jobs stand in front of it. Or a FETCH comes soon.
    UNSEEN "not seen": "its limits leave room, and it starts when the jobs in front of it have gone"
        => "if nothing starts: do workers ask often enough, and does another sidecar hold it?";
    /// Store, backend, pause, lookahead and limits were looked at. A job starts when a worker asks.
    OPEN "nothing" lets start: "every limit leaves room: the next job may start now"
        => "if nothing starts: has the backend jobs of the queue, and do workers ask often enough?";
    /// A call pays at its start what it may use, so a budget refuses some while something of it is left.
    LITTLE_LEFT "little left" lets start: "a call that may use more than is left of {what} waits, or is refused: {left} of {limit} are left"
        => "let calls say what they may use, such as `max_tokens`, or have the limit raised";
    /// So it is said where there is no backend (`server.upstream = "none"`).
    OPEN_TO_CALLS "no calls" lets start: "every limit leaves room: the next call may start now"
        => "if no call comes: set http:// and the address of its `listen` as the base URL in the program";
}

/// A cause, as it stands now.
#[derive(Clone, Debug)]
pub struct Cause {
    /// Which of the declared ones it is.
    pub kind: &'static CauseKind,
    /// The sentence.
    pub why: String,
    /// What to do.
    pub advice: String,
    /// When it lets go, as far as time goes; `None`: nobody knows.
    pub until: Option<Timestamp>,
}

impl Cause {
    /// A cause with what is known of the case, by the names in its sentences.
    pub fn new(kind: &'static CauseKind, known: &[(&str, &dyn Display)]) -> Cause {
        Cause {
            kind,
            why: filled(kind.says, known),
            advice: filled(kind.advice, known),
            until: None,
        }
    }

    /// Lets go at this time.
    pub fn until(mut self, until: Option<Timestamp>) -> Cause {
        self.until = until;
        self
    }

    /// Whether jobs start all the same.
    pub fn lets_start(&self) -> bool {
        self.kind.lets_start
    }

    /// Whether tables show it although jobs start.
    pub fn is_shown(&self) -> bool {
        [
            &QUEUE_FULL,
            &REFUSED,
            &OUT_OF_REACH,
            &CREDENTIALS,
            &LOGIN_REFUSED,
        ]
        .contains(&self.kind)
    }

    /// Whether it is worth telling beside what decides.
    pub fn is_a_note(&self) -> bool {
        ![&NO_LIMIT, &OPEN, &LITTLE_LEFT, &OPEN_TO_CALLS].contains(&self.kind)
    }

    /// As JSON has it.
    pub fn to_json(&self) -> Value {
        json!({
            "name": self.kind.name,
            "why": self.why,
            "do": self.advice,
            "next_start": self.until.map(|at| duration::rfc3339(at.0)),
        })
    }
}

/// These workers get jobs of these queues around the sidecar.
pub fn around(queues: &str, workers: &str) -> Cause {
    Cause::new(&AROUND, &[("queues", &queues), ("workers", &workers)])
}

/// An entry names a queue that nobody uses.
pub fn unused(entry: &str, queue: &str, near: &str) -> Cause {
    let (queue, near) = (quoted(queue), quoted(near));
    Cause::new(
        &UNUSED,
        &[("entry", &entry), ("queue", &queue), ("near", &near)],
    )
}

/// A key, a queue or a policy, as a sentence names it.
pub fn named(space: Space, name: &str) -> String {
    match space {
        Space::Job => format!("key {name:?}"),
        Space::Queue => format!("queue {name:?}"),
        Space::Policy => format!("policy {name:?}"),
    }
}

/// A name, as a sentence has it.
pub fn quoted(name: &str) -> String {
    format!("{name:?}")
}

/// A sentence with what is `known` in place of the names in braces. What is filled in is not looked at again: it may
/// have braces of its own.
fn filled(sentence: &str, known: &[(&str, &dyn Display)]) -> String {
    let mut text = String::with_capacity(sentence.len());
    for (nth, part) in sentence.split('{').enumerate() {
        let Some((name, rest)) = part.split_once('}').filter(|_| nth > 0) else {
            text += part;
            continue;
        };
        if let Some((_, value)) = known.iter().find(|(known, _)| *known == name) {
            text += &value.to_string();
        }
        text += rest;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_braces_stay_as_they_are() {
        let known: [(&str, &dyn Display); 2] = [("what", &"key \"{until}\""), ("until", &"noon")];
        assert_eq!(
            filled("{what} is shut until {until}{set}", &known),
            "key \"{until}\" is shut until noon"
        );
    }

    #[test]
    fn no_advice_sends_requests_by_hand() {
        for kind in CAUSES {
            let both = format!("{} {}", kind.says, kind.advice);
            assert!(
                !both.contains("/ojs/v1") && !both.contains("PUT "),
                "{}",
                kind.name
            );
            let same = CAUSES.iter().filter(|other| other.name == kind.name);
            assert_eq!(same.count(), 1, "{}", kind.name);
        }
    }
}
