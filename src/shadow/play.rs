//! Plays the virtual queue in real time: jobs come, start when their limits let them, and end.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, interval, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::desk::shadow::{Begun, Shadow, Sighting, Went};
use crate::desk::{Live, Proxy, Sidecar, micros};
use crate::hold::{self, Held, Lane, Pick, PickAsk, Proof, Refused, Relimited};
use crate::inquiry::drop::acting;
use crate::inquiry::job::{self, Shown};
use crate::json::Json;
use crate::limit::{
    Limited, OnLimit, PolicyAndKey, Refusal, Strategy, Timestamp, Window, is_priced,
};
use crate::policy::{LimitCache, PolicySet};
use crate::store::{Change, Claim, Claimed, End, Gen, LedgerExt, Row, Verdict, Wake};
use crate::wire::ojs::REPLY_DEPTH;

/// So many jobs wait in the virtual queue, and so many sightings to be looked at. Of so many keys it is followed what
/// is really used.
const MOST: usize = 10_000;
/// So many jobs of a queue are asked for in one call, and of them so many under the same limits.
const AT_ONCE: usize = 64;
const ASK: PickAsk = PickAsk {
    most: AT_ONCE,
    spare: 0,
    want: 16,
};
/// How long a virtual slot outlives a sidecar that says nothing any more, in microseconds.
const LEASE: u64 = 30_000_000;
/// How often it is looked at what has become old.
const EVERY: Duration = Duration::from_secs(1);
/// Microseconds until a job is asked for again when the store had no word for it.
const NO_WORD: u64 = 250_000;
/// What a worker holds in the virtual queue does not lapse.
const LONG: Duration = Duration::from_secs(366 * 86_400);

/// A job that is really out, virtually out, or both.
#[derive(Debug)]
struct VirtualRun {
    claim: Gen,
    /// When it really started.
    began: Timestamp,
    /// Until when its worker has it without a word.
    until: Timestamp,
    /// How long it really ran, once it has ended.
    ran: Option<u64>,
    /// The entry that first kept it from its virtual start, and by which limit.
    by: Option<PolicyAndKey>,
    limit: Option<Strategy>,
    /// What would limit it: until it ends it is one that really runs.
    limited: Arc<[Limited]>,
    /// It is played no longer, and really runs on.
    is_over: bool,
    /// Its virtual start.
    started: Option<Timestamp>,
}

/// What is really used of a key.
#[derive(Default, Debug)]
struct RealUse {
    /// What jobs that run cost.
    out: u32,
    /// What started in the period of the entry's first rate, else of its throttle. It counts as an enforced rate does,
    /// so that its number is the one that holds nothing back.
    starts: Option<Window>,
    /// What refused its last job.
    refused: Option<Strategy>,
}

struct Play<'a> {
    sidecar: &'a Sidecar,
    shadow: &'a Shadow,
    begun: &'a Begun,
    runs: HashMap<Arc<str>, VirtualRun>,
    /// What really happened, by entry and key.
    really: HashMap<PolicyAndKey, RealUse>,
    /// The settings that were followed last.
    followed: Arc<Live>,
    /// When virtual slots end.
    ends: BTreeMap<(Timestamp, Gen), Arc<str>>,
    known: LimitCache,
    edition: u64,
}

/// Plays until the sidecar is told to stop, from the first entry on that is to be tried.
pub(crate) async fn play(proxy: &Proxy, stop: CancellationToken) {
    let (sidecar, shadow) = (&*proxy.sidecar, &proxy.sidecar.shadow);
    while sidecar.live().policies.shadow().is_none() {
        let wanted = stop.run_until_cancelled(shadow.wanted.notified());
        if wanted.await.is_none() {
            return;
        }
    }
    let (tell, mut seen) = mpsc::channel(MOST);
    let begun = shadow.begun.get_or_init(|| Begun {
        store: sidecar.store.open_beside(),
        hold: Arc::default(),
        tell,
    });
    let mut play = Play {
        sidecar,
        shadow,
        begun,
        runs: HashMap::new(),
        really: HashMap::new(),
        followed: sidecar.control.live.load_full(),
        ends: BTreeMap::new(),
        known: LimitCache::default(),
        edition: 0,
    };
    let mut ticks = interval(EVERY);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => play.look_after().await,
            () = sleep_until(play.next()) => {}
            one = seen.recv() => one.into_iter().for_each(|one| play.note(one)),
            wake = begun.store.wake() => match wake {
                Wake::Freed(keys) => begun.hold.wake_keys(&keys),
                Wake::All | Wake::Set => begun.hold.ask_all(),
                _ => {}
            },
        }
        while let Ok(more) = seen.try_recv() {
            play.note(more);
        }
        play.turn().await;
    }
}

impl Play<'_> {
    fn now(&self) -> Timestamp {
        self.begun.store.now()
    }

    /// The lanes of the virtual queue: it knows no credentials.
    fn lanes(&self) -> impl Iterator<Item = Lane> + use<> {
        let queues = self.begun.hold.counts().into_keys();
        queues.map(|queue| Lane { scope: 0, queue })
    }

    /// When something may be asked for or ends by itself.
    fn next(&self) -> Instant {
        let now = self.now();
        let end = self.ends.keys().next().map(|(at, _)| *at);
        let next = self.begun.hold.next_ask().into_iter().chain(end).min();
        let next = next.map_or(EVERY, |at| Duration::from_micros(at.since(now)));
        Instant::now() + next.max(Duration::from_millis(1))
    }

    fn note(&mut self, seen: Sighting) {
        let store = &self.begun.store;
        match seen {
            Sighting::Job(body, went) => {
                if let Ok(job) = Json::parse(&body, REPLY_DEPTH) {
                    self.came(&Shown::of(job), &went);
                }
            }
            Sighting::Reply(reply, went) => {
                let all = Shown::all(&reply).unwrap_or_default();
                all.iter().for_each(|shown| self.came(shown, &went));
            }
            Sighting::Ended(job, at) => {
                let at = store.at(at);
                self.ended(&job, at);
            }
            Sighting::Heard(jobs, lasts, at) => {
                let until = store.at(at).plus(micros(lasts));
                for job in jobs {
                    if let Some(run) = self.runs.get_mut(&job) {
                        run.until = run.until.max(until);
                    }
                }
            }
        }
    }

    /// A job went to a worker: it comes into the virtual queue.
    fn came(&mut self, shown: &Shown<'_>, went: &Went) {
        let live = self.follow();
        let Some(policies) = live.policies.shadow() else {
            return;
        };
        let Some(seen) = shown.seen(&went.queues) else {
            return;
        };
        let view = seen.view(live.trusted(went.tenant.as_deref()));
        let Some(limits) = self.known.limits(policies, &view) else {
            return;
        };
        let limits = job::priced(limits, &view, shown.job, |_, _| {});
        let (hold, at) = (&self.begun.hold, self.begun.store.at(went.at));
        let mut is_over = false;
        if let Some(earlier) = hold.claimed(&seen.id) {
            // It is tried again: in the virtual queue it would not have run yet.
            let waited = Duration::from_micros(at.since(earlier.claimed_at));
            let by = earlier.limited.first().map(|by| (by, Some(waited)));
            let run = self.runs.get(&earlier.job);
            let limit = run.and_then(|run| run.limit);
            self.shadow.note(&earlier.job, &earlier.limited, by, limit);
            hold.forget(&seen.id);
        } else if hold.len() >= MOST {
            // It is not played, but it really runs.
            is_over = true;
            self.shadow.note_unknown(&limits);
        }
        let job: Arc<str> = Arc::from(&*seen.id);
        let claim = self.sidecar.fetching.next_claim(at);
        self.used(&job, &limits, at);
        let run = VirtualRun {
            by: None,
            limit: None,
            limited: Arc::clone(&limits),
            is_over,
            claim,
            began: at,
            until: at.plus(micros(went.lasts)),
            ran: None,
            started: None,
        };
        if is_over {
            self.runs.insert(job, run);
            return;
        }
        let claimed = Claimed::from(Claim {
            claim_id: Arc::clone(&self.sidecar.fetching.worker_id),
            priority: seen.priority,
            claimed_at: at,
            visibility: LEASE,
            limited: limits,
            ..Claim::new(Arc::clone(&job), claim, Arc::clone(&seen.queue))
        });
        let proof = Proof::new(went.at, LONG);
        let held = Held::new(claimed, live.edition, Default::default(), proof, went.at);
        hold.add(vec![held]);
        let by = hold.waits_behind(&job);
        let limit = by.as_ref().and_then(|by| self.really.get(by)?.refused);
        self.runs.insert(job, VirtualRun { by, limit, ..run });
    }

    /// A job really started under these. An earlier run of it is over.
    fn used(&mut self, job: &str, limited: &[Limited], at: Timestamp) {
        if let Some(earlier) = self.runs.remove(job).filter(|run| run.ran.is_none()) {
            self.left(&earlier.limited);
        }
        for one in limited {
            let names = one.names();
            if self.really.len() >= MOST && !self.really.contains_key(&names) {
                self.shadow.note_unfollowed(&one.policy);
                continue;
            }
            let used = self.really.entry(names).or_default();
            let pays = one.cost.pays.get();
            used.out = used.out.saturating_add(pays);
            let limits = &one.limits;
            let rate = limits.rates.first().map(|rate| rate.period.get());
            let period = rate.or_else(|| limits.throttle.map(|throttle| throttle.period.get()));
            let earlier = used.starts.take();
            used.starts = period.map(|period| {
                let earlier = earlier.filter(|window| window.period() == period);
                let mut window = earlier.unwrap_or_else(|| Window::new(period));
                window.add(at, pays, at);
                window
            });
            let starts = used.starts.as_ref();
            let starts = starts.map(|window| (window.count(at), window.period()));
            self.shadow.note_used(&one.policy, used.out, starts);
        }
    }

    /// A job that was under these really ended.
    fn left(&mut self, limited: &[Limited]) {
        for one in limited {
            if let Some(used) = self.really.get_mut(&one.names()) {
                used.out = used.out.saturating_sub(one.cost.pays.get());
            }
        }
    }

    /// A job really ended: its virtual slot ends as long after its virtual start as it ran.
    fn ended(&mut self, job: &Arc<str>, at: Timestamp) {
        let Some(run) = self.runs.get_mut(job).filter(|run| run.ran.is_none()) else {
            return;
        };
        let ran = at.since(run.began);
        run.ran = Some(ran);
        if let Some(started) = run.started {
            let end = (started.plus(ran), run.claim);
            self.ends.insert(end, Arc::clone(job));
        }
        let (limited, is_over) = (Arc::clone(&run.limited), run.is_over);
        if is_over {
            self.runs.remove(job);
        }
        self.left(&limited);
    }

    /// Ends what is to end by now, and starts what may.
    async fn turn(&mut self) {
        self.end_due().await;
        self.follow();
        loop {
            let (hold, now) = (&self.begun.hold, self.now());
            let pick = |lane: Lane| hold.pick(&lane, ASK, now);
            let picked: Vec<Pick> = self.lanes().flat_map(pick).collect();
            let asks = self.still_tried(picked);
            if asks.is_empty() {
                return;
            }
            self.ask(asks).await;
        }
    }

    /// Goes by the entries of now: jobs that wait keep their limits, and leave where one of these has other numbers.
    fn follow(&mut self) -> Arc<Live> {
        let live = self.sidecar.control.live.load_full();
        if self.edition != live.edition {
            (self.edition, self.known) = (live.edition, LimitCache::default());
            let hold = &self.begun.hold;
            let tried = live.policies.shadow();
            let before = std::mem::replace(&mut self.followed, Arc::clone(&live));
            let changed = changed(&before, &live);
            changed.iter().for_each(|name| self.shadow.restart(name));
            let jobs = hold.before(live.edition).into_iter().map(|held| {
                // Who waited under earlier numbers would have started by now, or not come to wait.
                let is_changed = |one: &Limited| changed.contains(&one.policy);
                let tried = tried.filter(|_| !held.written.iter().any(is_changed));
                let limits = tried.map(|tried| tried.again(&held.written));
                Relimited {
                    job: Arc::clone(&held.claimed.job),
                    generation: held.claimed.generation,
                    limits: limits.unwrap_or_default(),
                }
            });
            hold.relimit(live.edition, jobs.collect());
        }
        live
    }

    /// Those of picked jobs that are tried still. The others leave.
    fn still_tried(&mut self, picked: Vec<Pick>) -> Vec<Pick> {
        let stays = self.now().plus(LEASE);
        let (mut tried, over): (Vec<Pick>, Vec<Pick>) =
            (picked.into_iter()).partition(|pick| !pick.claimed.limited.is_empty());
        over.into_iter().for_each(|pick| self.forget(pick));
        // As for a worker: of those whose costs may differ the first is asked for, and what it needs is kept for it.
        let mut first = HashSet::new();
        tried.retain(|pick| {
            let mut costs = pick.written.iter().map(|one| &one.cost);
            let differ = costs.any(|cost| cost.rule.is_some());
            !differ || first.insert(Arc::clone(&pick.written))
        });
        for pick in &mut tried {
            pick.claimed.stays = stays;
            pick.claimed.followed = pick.claimed.followed.min(stays);
        }
        tried
    }

    async fn ask(&mut self, picked: Vec<Pick>) {
        let Begun { store, hold, .. } = self.begun;
        let taken = {
            let asks: Vec<&Claimed> = picked.iter().map(|pick| &pick.claimed).collect();
            store.take(&asks, asks.len()).await
        };
        let Ok(taken) = taken else {
            let at = store.now().plus(NO_WORD);
            picked
                .into_iter()
                .for_each(|pick| refuse(pick, (Refused::Until(at), None), store.now()));
            return;
        };
        hold.served(&taken.served, store.now());
        let mut started = Vec::new();
        let verdicts = taken.verdicts.into_iter();
        // What the first of a group was told holds for the group.
        let told: Vec<_> = picked.into_iter().zip(verdicts).collect();
        for (pick, verdict) in told.into_iter().rev() {
            match verdict {
                Verdict::Started { at } => {
                    self.started(&pick, at);
                    started.push(pick);
                }
                Verdict::Refused {
                    which,
                    why,
                    at,
                    action,
                } => self.refused(pick, (which, &why, at), action),
                Verdict::Unasked => {}
                Verdict::HasRow | Verdict::Outdated | Verdict::Unfit => self.forget(pick),
            }
        }
        started.reverse();
        hold.start(&mut started);
        for row in taken.ended {
            hold.wake(&row.claimed.limited);
        }
    }

    fn started(&mut self, pick: &Pick, at: Timestamp) {
        let claimed = &pick.claimed;
        let waited = Duration::from_micros(at.since(claimed.claimed_at));
        let run = self.runs.get_mut(&claimed.job);
        let by = run.as_ref().and_then(|run| {
            let by = run.by.as_ref()?;
            claimed.limited.iter().find(|one| one.names() == *by)
        });
        if let Some(by) = by {
            self.sidecar.metrics.shadow_waited(&by.policy, waited);
            // It may have been first in line.
            if is_priced(&claimed.limited) {
                self.begun.hold.wake(&claimed.limited);
            }
        }
        let by = by.map(|by| (by, Some(waited)));
        let limit = run.as_ref().and_then(|run| run.limit);
        self.shadow.note(&claimed.job, &claimed.limited, by, limit);
        if let Some(run) = run {
            run.started = Some(at);
            if let Some(ran) = run.ran {
                let end = (at.plus(ran), run.claim);
                self.ends.insert(end, Arc::clone(&claimed.job));
            }
        }
    }

    fn refused(
        &mut self,
        pick: Pick,
        (which, why, at): (usize, &Refusal, Option<Timestamp>),
        action: OnLimit,
    ) {
        if action == OnLimit::Drop {
            let claimed = &pick.claimed;
            let by = acting(&pick, which, action).map(|by| (by, None));
            let limit = Some(why.strategy);
            self.shadow.note(&claimed.job, &claimed.limited, by, limit);
            return self.forget(pick);
        }
        let by = pick.claimed.limited.get(which).map(Limited::names);
        if let Some(used) = by.as_ref().and_then(|by| self.really.get_mut(by)) {
            used.refused = Some(why.strategy);
        }
        if let Some(run) = self.runs.get_mut(&pick.claimed.job)
            && run.by.is_none()
        {
            run.by.clone_from(&by);
            run.limit = Some(why.strategy);
        }
        refuse(pick, (Refused::by(why, at), by), self.now());
    }

    /// A job is played no longer.
    fn forget(&mut self, pick: Pick) {
        match self.runs.get_mut(&pick.claimed.job) {
            Some(run) if run.ran.is_none() => run.is_over = true,
            _ => drop(self.runs.remove(&pick.claimed.job)),
        }
        pick.gone();
    }

    /// Ends virtual slots whose time has come.
    async fn end_due(&mut self) {
        let now = self.now();
        let mut ends = Vec::new();
        while let Some(first) = self.ends.first_entry().filter(|first| first.key().0 <= now) {
            let ((_, claim), job) = first.remove_entry();
            if self.runs.get(&job).is_some_and(|run| run.claim == claim) {
                self.runs.remove(&job);
            }
            ends.push(End::of(job, Some(claim)));
        }
        self.end(ends).await;
    }

    /// What is not heard of is ended when the store says that it is due.
    async fn end(&self, ends: Vec<End>) {
        if ends.is_empty() {
            return;
        }
        let ended = self.begun.store.end_all(&ends).await;
        for row in ended.unwrap_or_default() {
            self.begun.hold.wake(&row.claimed.limited);
        }
    }

    /// Ends jobs whose workers said nothing for too long, and rows that nobody looks after. Says that we live.
    async fn look_after(&mut self) {
        let is_over = self.sidecar.live().policies.shadow().is_none();
        if is_over && self.ends.is_empty() && self.begun.hold.is_empty() {
            return;
        }
        let now = self.now();
        self.really.retain(|_, used| {
            let starts = used.starts.as_ref();
            used.out > 0 || starts.is_some_and(|window| window.count(now) > 0)
        });
        let silent = |run: &VirtualRun| run.ran.is_none() && run.until <= now;
        let silent = self.runs.iter().filter(|(_, run)| silent(run));
        let silent: Vec<_> = silent.map(|(job, run)| (job.clone(), run.until)).collect();
        silent.iter().for_each(|(job, at)| self.ended(job, *at));
        let rows = self.begun.store.due(AT_ONCE * 4).await.unwrap_or_default();
        let is_ours = |row: &Row| {
            let run = self.runs.get(&row.claimed.job);
            run.is_some_and(|run| run.claim == row.claimed.generation)
        };
        let (ours, over): (Vec<Row>, Vec<Row>) = rows.into_iter().partition(is_ours);
        let renewed = ours.into_iter().filter_map(|row| {
            Some(Change::Until {
                until: row.due()?.moved_to(now.plus(LEASE)),
                visibility: LEASE,
                job: row.claimed.job.clone(),
                generation: row.claimed.generation,
            })
        });
        let renewed: Vec<Change> = renewed.collect();
        if !renewed.is_empty() {
            let _again_when_due = self.begun.store.set_all(renewed).await;
        }
        let over = over.iter().map(|row| End::of_claim(&row.claimed));
        self.end(over.collect()).await;
        if let Some(minute_ago) = Instant::now().checked_sub(Duration::from_secs(60)) {
            self.begun.hold.tidy(minute_ago);
        }
    }
}

/// The entries that are tried now, and were not by the same numbers; `queue` stands for all of queues.
fn changed(before: &Live, now: &Live) -> Vec<Arc<str>> {
    let [before, now] = [before, now].map(|live| live.policies.shadow());
    let policies =
        |tried: Option<&PolicySet>| tried.map_or_else(Vec::new, |set| set.policies().to_vec());
    let queues =
        |tried: Option<&PolicySet>| tried.map_or_else(Vec::new, |set| set.queues().to_vec());
    let known = policies(before);
    let new = policies(now)
        .into_iter()
        .filter(|policy| !known.contains(policy));
    let names = new.map(|policy| policy.name);
    let of_queues = (queues(before) != queues(now)).then(|| Arc::from("queue"));
    names.chain(of_queues).collect()
}

fn refuse(pick: Pick, (refused, by): (Refused, Option<PolicyAndKey>), at: Timestamp) {
    pick.refuse(hold::Refusal {
        refused,
        at,
        by,
        rescheduled: None,
    });
}
