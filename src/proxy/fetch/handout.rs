//! The hand-out: jobs whose slots are taken, on their way to a worker. It is done when the connection
//! polls the reply's body; until then it undoes itself when it is dropped, and the jobs are in the hold
//! again for the next worker.

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Response;
use http::request::Parts;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::hold::Held;
use crate::limit::EARLY;
use crate::metrics::Counted;
use crate::proxy::body::{Body, Watch};
use crate::proxy::{Proxy, ours_under, respond, timed};
use crate::tick;
use crate::upstream::Reply;

/// What the headers of an answer of ours tell.
#[derive(Clone, Default)]
pub(super) struct Hint {
    /// The policy that the next of them waits for.
    pub(super) policy: Option<Arc<str>>,
    /// Whether limits keep jobs of the asked queues back, if any wait there.
    pub(super) limited: bool,
    /// In how long the next of them could start.
    pub(super) next: Option<Duration>,
}

impl Hint {
    /// Writes what it knows into the headers of an answer.
    fn write(self, headers: &mut http::HeaderMap) {
        if !self.limited {
            return;
        }
        headers.insert(
            "ojs-throttle-limited",
            http::HeaderValue::from_static("true"),
        );
        if let Some(Ok(policy)) = self
            .policy
            .map(|policy| http::HeaderValue::try_from(&*policy))
        {
            headers.insert("ojs-throttle-policy", policy);
        }
        if let Some(next) = self.next {
            let text = format!("{:.3}", next.as_secs_f64());
            if let Ok(value) = http::HeaderValue::try_from(text) {
                headers.insert("ojs-throttle-next", value);
            }
        }
    }
}

/// Started jobs and the means to take them back.
#[derive(Debug)]
pub(super) struct HandOut {
    proxy: Proxy,
    jobs: Vec<Held>,
    /// The backend's first answer: its id is ours too, if the worker gave none, and mostly its text is.
    reply: Option<Reply>,
    /// So many jobs are all that it tells, and it may leave as it is where they are those that start.
    whole: Option<usize>,
}

impl HandOut {
    pub(super) fn new(proxy: Proxy) -> HandOut {
        HandOut {
            proxy,
            jobs: Vec::new(),
            reply: None,
            whole: None,
        }
    }

    pub(super) fn extend(&mut self, mut jobs: Vec<Held>) {
        if self.jobs.is_empty() {
            self.jobs = jobs;
        } else {
            self.jobs.append(&mut jobs);
        }
    }

    /// Keeps what the backend answered first, for the answer of ours; `whole` is how many jobs it tells, if it
    /// may be handed on as it is.
    pub(super) fn came(&mut self, reply: Reply, whole: Option<usize>) {
        if self.reply.is_none() {
            (self.reply, self.whole) = (Some(reply), whole);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.jobs.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Takes over what another one has.
    pub(super) fn join(&mut self, mut more: HandOut) {
        self.extend(std::mem::take(&mut more.jobs));
        if let Some(reply) = more.reply.take() {
            self.came(reply, more.whole);
        }
    }

    /// Until when its jobs may wait for more: for `most` at the longest, or a `part` of the visibility that one of
    /// them is granted, since the backend said that it is ours or it came.
    pub(super) fn may_wait(&self, (most, part): (Duration, u32)) -> Instant {
        let until = |job: &Held| job.proven.max(job.since) + most.min(job.granted / part);
        let first = self.jobs.iter().map(until).min();
        first.unwrap_or_else(Instant::now)
    }

    /// Waits until all may leave: where the store's word takes long, spaced starts are granted ahead of
    /// their time. If one would leave more than 5 ms after it, and so stand closer to the next ones than was promised,
    /// or its claim may be over, gives away that one and all that have such a time: what is done about the one makes
    /// the others late.
    pub(super) async fn late(&mut self) -> Vec<Held> {
        let sidecar = &self.proxy.sidecar;
        // Where nothing was waited for since the store's word came, the poll's clock says when that was.
        let mut now = tick::now();
        let is_over = |job: &Held, now| now >= job.deadline;
        if !(self.jobs.iter()).any(|job| timed(&job.claimed.limited) || is_over(job, now)) {
            return Vec::new();
        }
        let is_spaced = |job: &&Held| {
            let mut limited = job.claimed.limited.iter();
            limited.any(|one| one.limits.throttle.is_some())
        };
        let last = self
            .jobs
            .iter()
            .filter(is_spaced)
            .map(|job| job.starts)
            .max();
        let from = last.unwrap_or_default().minus(EARLY);
        if from > sidecar.store.at(now) {
            tokio::time::sleep_until(sidecar.instant_of(from)).await;
            now = Instant::now();
        }
        let stored = sidecar.store.at(now);
        let late = |job: &Held| {
            is_over(job, now) || (stored > job.starts.plus(EARLY) && timed(&job.claimed.limited))
        };
        if !self.jobs.iter().any(late) {
            return Vec::new();
        }
        let goes = |job: &Held| is_over(job, now) || timed(&job.claimed.limited);
        let (late, jobs) = self.jobs.drain(..).partition(goes);
        self.jobs = jobs;
        late
    }

    /// Takes back what was held at `begun` already and whose queue has been paused since it was picked: proving it,
    /// or asking the backend for more, takes time.
    pub(super) fn keep_paused(&mut self, begun: Instant) {
        let paused = &self.proxy.sidecar.paused;
        let stays = |job: &Held| job.since < begun && paused.has(&job.claimed.queue);
        if self.jobs.iter().any(stays) {
            let (stay, go) = self.jobs.drain(..).partition(stays);
            self.jobs = go;
            drop(self.proxy.take_back(stay));
        }
    }

    /// The reply that hands the jobs out.
    pub(super) fn respond(mut self, parts: &Parts, hint: Hint) -> Response<Body> {
        let reply = self.reply.take();
        let (mut headers, text) = reply
            .map(|reply| (reply.headers, reply.body))
            .unwrap_or_default();
        let id = respond::request_id(&headers);
        // A map that has room already.
        headers.clear();
        ours_under(&parts.headers, &mut headers, id);
        hint.write(&mut headers);
        let lacks_jobs = self.jobs.is_empty() && self.proxy.sidecar.draining.is_cancelled();
        let body = match self.jobs.is_empty() {
            true => Body::from(Bytes::from_static(br#"{"jobs":[]}"#)),
            false => Body::watched(self.told(text), self),
        };
        let mut response = Response::new(body);
        *response.headers_mut() = headers;
        match lacks_jobs {
            true => respond::send_elsewhere(response),
            false => response,
        }
    }

    /// `{"jobs":[…]}` with `job` beside it for clients that read only one; the backend's own reply where that
    /// says the same.
    fn told(&self, reply: Bytes) -> Bytes {
        if self.are_all_of(&reply) {
            return reply;
        }
        let beside = self.proxy.sidecar.live().settings.job_beside_jobs;
        let beside = self.jobs.first().filter(|_| beside);
        let copied = self.jobs.iter().chain(beside).map(|job| job.body.len() + 1);
        let mut bytes = BytesMut::with_capacity(copied.sum::<usize>() + 24);
        for (nth, job) in self.jobs.iter().enumerate() {
            bytes.extend_from_slice(if nth == 0 { br#"{"jobs":["# } else { b"," });
            bytes.extend_from_slice(&job.body);
        }
        bytes.extend_from_slice(b"]");
        if let Some(first) = beside {
            bytes.extend_from_slice(br#","job":"#);
            bytes.extend_from_slice(&first.body);
        }
        bytes.extend_from_slice(b"}");
        bytes.freeze()
    }

    /// Whether these are all jobs of the backend's reply, in its order and in its words.
    fn are_all_of(&self, reply: &Bytes) -> bool {
        let mut end = 0;
        self.whole == Some(self.jobs.len())
            && self.jobs.iter().all(|Held { body, .. }| {
                // What the backend's words were not changed in is a part of its reply.
                let start = body.as_ptr().addr().checked_sub(reply.as_ptr().addr());
                let after = start.filter(|start| *start >= end);
                end = after.map_or(usize::MAX, |start| start.saturating_add(body.len()));
                end <= reply.len()
            })
    }
}

impl Watch for HandOut {
    /// The jobs have started. Only now is that counted and told: until here it could be undone.
    fn sent(&mut self) {
        let sidecar = &self.proxy.sidecar;
        sidecar.metrics.started(self.jobs.iter().map(|held| {
            let waited = (held.refused.as_ref()).map(|episode| episode.since.elapsed());
            (&*held.claimed.limited, waited)
        }));
        for of_queue in (self.jobs).chunk_by(|a, b| a.claimed.queue == b.claimed.queue) {
            let queue = of_queue.first().map(|held| &held.claimed.queue);
            let queue = queue.filter(|queue| sidecar.pressure.bounds_any(slice::from_ref(queue)));
            for held in of_queue {
                if let Some(episode) = &held.refused {
                    sidecar.tell_released(held, episode);
                }
                if let Some(queue) = queue {
                    (sidecar.pressure).started(queue, &held.claimed.job, sidecar.now());
                }
            }
        }
        self.jobs.clear();
    }
}

impl Drop for HandOut {
    fn drop(&mut self) {
        if self.jobs.is_empty() {
            return;
        }
        // The store's answer takes time, and a drop has none: nobody waits for it.
        drop(self.proxy.take_back(std::mem::take(&mut self.jobs)));
    }
}

impl Proxy {
    /// Undoes starts in a task of its own, which ends whatever becomes of who waits for it.
    pub(super) fn take_back(&self, jobs: Vec<Held>) -> JoinHandle<()> {
        let proxy = self.clone();
        self.sidecar.tasks.spawn(async move {
            for job in jobs.into_iter().rev() {
                proxy.undo(job).await;
            }
        })
    }

    async fn undo(&self, job: Held) {
        let sidecar = &self.sidecar;
        let claimed = &job.claimed;
        if sidecar.back(claimed).await {
            sidecar.metrics.count(Counted::HandOutUndone);
            let limited = claimed.limited.clone();
            sidecar.hold.undo(job);
            sidecar.hold.wake(&limited);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::limit::{Key, Limited, Limits, Measure, OnLimit, Space, Throttle};
    use crate::metrics::Metrics;
    use crate::policy::{Accept, PolicySet};
    use crate::proxy::job::Shown;
    use crate::proxy::{Backend, Settings, Sidecar};
    use crate::store::Claim;
    use crate::store::memory::MemoryStore;
    use crate::upstream::{self, Target, Upstream};

    /// A hand-out of one job that counts `after` microseconds from now, of ten a second or of no limit.
    fn out(after: u64, spaced: bool) -> HandOut {
        let sidecar = Sidecar::new(
            Settings {
                job_beside_jobs: true,
                ..Settings::default()
            },
            Arc::new(PolicySet::new(vec![], vec![], Accept::default())),
            Arc::new(MemoryStore::new(1_000_000)),
            Backend::default(),
            Metrics::new(10),
            "sidecar",
        );
        let throttle = Throttle {
            limit: 10.try_into().unwrap(),
            period: 1_000_000.try_into().unwrap(),
            burst: 1.try_into().unwrap(),
            measure: Measure::default(),
        };
        let limited = Limited {
            space: Space::Job,
            key: Key::new("k").unwrap(),
            limits: Limits {
                throttle: spaced.then_some(throttle),
                ..Limits::default()
            },
            on_limit: OnLimit::Wait,
            policy: "p".into(),
        };
        let held = Held {
            starts: sidecar.store.now().plus(after),
            ..Held::of(Claim {
                limited: [limited].into(),
                ..Claim::of("j")
            })
        };
        let target = Target::parse("http://127.0.0.1:1", None).unwrap();
        let upstream = Upstream::new(target, Default::default(), upstream::Limits::default());
        let mut out = HandOut::new(Proxy::new(sidecar, upstream));
        out.extend(vec![held]);
        out
    }

    /// Each of `jobs` as a part of the reply behind the one before, or else the same words from elsewhere.
    fn parts(reply: &Bytes, jobs: &[&str]) -> Vec<Bytes> {
        let mut end = 0;
        let part = |job: &&str| match memchr::memmem::find(&reply[end..], job.as_bytes()) {
            Some(at) => {
                let start = end + at;
                end = start + job.len();
                reply.slice(start..end)
            }
            None => Bytes::from(job.to_string()),
        };
        jobs.iter().map(part).collect()
    }

    #[tokio::test]
    async fn a_reply_whose_jobs_all_start_leaves_as_it_came() {
        let [a, b] = [r#"{"id":1}"#, r#"{"id":2}"#];
        for (reply, starts, kept) in [
            (format!(r#"{{"jobs":[{a},{b}]}}"#), vec![a, b], true),
            (format!(r#"{{"jobs":[ {a} , {b} ]}}"#), vec![a, b], true),
            (
                format!(r#"{{"job":{a},"jobs":[{a},{b}]}}"#),
                vec![a, b],
                true,
            ),
            (
                format!(r#"{{"jobs":[{a}],"job":{a},"x":0}}"#),
                vec![a],
                true,
            ),
            // Others start, or in another order.
            (format!(r#"{{"jobs":[{a},{b}]}}"#), vec![b, a], false),
            (format!(r#"{{"jobs":[{a},{b}]}}"#), vec![b], false),
            (format!(r#"{{"jobs":[{a}]}}"#), vec![a, b], false),
            (format!(r#"{{"jobs":[{a},{a}]}}"#), vec![a, b], false),
            // Some client could read other jobs in it.
            (
                format!(r#"{{"jobs":[{a},{b}],"job":{b}}}"#),
                vec![a, b],
                false,
            ),
            (format!(r#"{{"jobs":[{a}],"job":null}}"#), vec![a], false),
            (format!(r#"{{"jobs":[],"jobs":[{a}]}}"#), vec![a], false),
            (format!(r#"{{"jobs":[{a}],"Jobs":[{b}]}}"#), vec![a], false),
            (
                format!(r#"{{"job":{b},"job":{a},"jobs":[{a}]}}"#),
                vec![a],
                false,
            ),
            (format!(r#"{{"job":{a}}}"#), vec![a], false),
        ] {
            let reply = Bytes::from(reply);
            let mut out = out(0, false);
            let held = out.jobs.pop().unwrap();
            let bodies = parts(&reply, &starts).into_iter();
            let started = |body| Held {
                body,
                ..held.clone()
            };
            out.jobs = bodies.map(started).collect();
            let (shown, clear) = Shown::all(&reply, 2).unwrap();
            out.whole = clear.then_some(shown.len());
            let told = out.told(reply.clone());
            out.jobs.clear();
            let (all, first) = (starts.join(","), starts[0]);
            let made = format!(r#"{{"jobs":[{all}],"job":{first}}}"#);
            let expected = if kept { &reply[..] } else { made.as_bytes() };
            assert_eq!(told, expected, "{reply:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_leaves_within_5_ms_of_its_time() {
        // Granted ahead, it waits, and not longer than it must.
        let mut ahead = out(20_000, true);
        let begun = Instant::now();
        assert!(ahead.late().await.is_empty());
        assert_eq!(
            (begun.elapsed(), ahead.len()),
            (Duration::from_millis(15), 1)
        );

        let mut in_time = out(0, true);
        advance(Duration::from_millis(5)).await;
        assert!(in_time.late().await.is_empty());
        let mut late = out(0, true);
        advance(Duration::from_millis(6)).await;
        assert_eq!((late.late().await.len(), late.len()), (1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn only_jobs_that_leave_have_started() {
        for (late, starts, undone) in [(false, 1, 0), (true, 0, 1)] {
            let mut out = out(0, true);
            let sidecar = Arc::clone(&out.proxy.sidecar);
            sidecar
                .store
                .take(&[&out.jobs[0].claimed], 1)
                .await
                .unwrap();
            if late {
                advance(Duration::from_millis(6)).await;
            }
            let given_away = out.late().await;
            assert_eq!(!given_away.is_empty(), late);
            drop(out.proxy.take_back(given_away).await);
            let counted = |name: &str| {
                let page = sidecar.metrics.render();
                let line = page.lines().find(|line| line.starts_with(name));
                line.map_or(0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
            };
            assert_eq!(counted("ojs_throttle_starts_total{"), 0, "it may be undone");
            out.sent();
            assert_eq!(counted("ojs_throttle_starts_total{"), starts);
            assert_eq!(counted("ojs_throttle_handouts_undone_total "), undone);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_no_time_limits_leaves_whenever_it_is_ready() {
        let mut out = out(20_000, false);
        let begun = Instant::now();
        assert!(out.late().await.is_empty());
        assert_eq!(begun.elapsed(), Duration::ZERO);
        advance(Duration::from_secs(1)).await;
        assert!(out.late().await.is_empty());
        assert_eq!(out.len(), 1);
    }
    #[tokio::test(start_paused = true)]
    async fn what_may_be_another_s_by_now_does_not_leave() {
        let mut out = out(0, false);
        let deadline = out.jobs[0].deadline;
        tokio::time::sleep_until(deadline - Duration::from_millis(1)).await;
        assert!(out.late().await.is_empty());
        advance(Duration::from_millis(1)).await;
        assert_eq!((out.late().await.len(), out.len()), (1, 0));
    }
}
