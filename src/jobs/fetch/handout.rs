//! The hand-out: jobs whose slots are taken, on their way to a worker. It is done when the connection
//! polls the reply's body; until then it undoes itself when it is dropped, and the jobs are in the hold
//! again for the next worker.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Response;
use http::request::Parts;

use crate::answers::body::{Body, Watch};
use crate::answers::respond::ours;
use crate::desk::{Proxy, edges, tell};
use crate::hold::{Held, Lane};
use crate::limit::PolicyAndKey;
use crate::policy::subqueue::Subqueue;
use crate::told::metrics::{Counted, StartKind};
use crate::wire::tick;

/// What the headers of an answer of ours tell.
#[derive(Clone, Default)]
pub(super) struct Hint {
    /// The limit that the next of them waits for.
    pub(super) by: Option<PolicyAndKey>,
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
        let by = self.by.as_ref();
        let policy = by.map(|(policy, ..)| policy.to_string());
        let key = by.map(|(_, space, key)| space.name_of(key).into_owned());
        let next = self.next.map(|next| format!("{:.3}", next.as_secs_f64()));
        for (name, text) in [
            ("ojs-throttle-limited", Some("true".to_owned())),
            ("ojs-throttle-policy", policy),
            ("ojs-throttle-key", key),
            ("ojs-throttle-next", next),
        ] {
            if let Some(Ok(value)) = text.map(http::HeaderValue::try_from) {
                headers.insert(name, value);
            }
        }
    }
}

/// Started jobs and the means to take them back.
#[derive(Debug)]
pub(super) struct HandOut {
    proxy: Proxy,
    jobs: Vec<Held>,
}

impl HandOut {
    pub(super) fn new(proxy: Proxy) -> HandOut {
        HandOut::of(proxy, Vec::new())
    }

    pub(super) fn of(proxy: Proxy, jobs: Vec<Held>) -> HandOut {
        HandOut { proxy, jobs }
    }

    pub(super) fn len(&self) -> usize {
        self.jobs.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Takes over what another one has.
    pub(super) fn join(&mut self, mut more: HandOut) {
        match self.jobs.is_empty() {
            true => self.jobs = std::mem::take(&mut more.jobs),
            false => self.jobs.append(&mut more.jobs),
        }
    }

    /// The subqueues of a lane whose jobs start after a limit had kept them, and how many of each.
    pub(super) fn heads_of(&self, lane: &Lane) -> HashMap<Subqueue, usize> {
        let waited = self.jobs.iter().filter(|held| held.refused.is_some());
        let mut heads = HashMap::new();
        for held in waited {
            if let Some(subqueue) = held.subqueue
                && held.lane() == *lane
            {
                *heads.entry(subqueue).or_default() += 1;
            }
        }
        heads
    }

    /// Whether limits that count time let some of it start: it does not wait for more.
    pub(super) fn is_timed(&self) -> bool {
        let mut limited = self.jobs.iter().flat_map(|job| &*job.claimed.limited);
        limited.any(|one| one.limits.counts_time())
    }

    /// The reply that hands the jobs out.
    pub(super) fn respond(self, parts: &Parts, hint: Hint) -> Response<Body> {
        let mut headers = http::HeaderMap::new();
        ours(&parts.headers, &mut headers);
        hint.write(&mut headers);
        let body = match self.jobs.is_empty() {
            true => Body::from(Bytes::from_static(br#"{"jobs":[]}"#)),
            false => Body::watched(self.told(), self),
        };
        let mut response = Response::new(body);
        *response.headers_mut() = headers;
        response
    }

    /// `{"jobs":[…]}` with `job` beside it for clients that read only one.
    fn told(&self) -> Bytes {
        let beside = self.proxy.sidecar.live().settings.repairs.job_and_jobs;
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
}

impl Watch for HandOut {
    /// The jobs have started. Only now is that counted and told: until here it could be undone.
    fn sent(&mut self) {
        let sidecar = &self.proxy.sidecar;
        if sidecar.live().policies.shadow().is_some() {
            sidecar.shadow.went(&self.jobs, tick::now());
        }
        let jobs = self.jobs.iter().map(|held| {
            let waited = (held.refused.as_ref()).map(|episode| episode.since.elapsed());
            (&*held.claimed.limited, waited)
        });
        sidecar.metrics.started(StartKind::Job, jobs);
        for of_queue in (self.jobs).chunk_by(|a, b| a.claimed.queue == b.claimed.queue) {
            let queue = of_queue.first().map(|held| &held.claimed.queue);
            let queue = queue.filter(|queue| sidecar.admit.pressure.bounds(queue).is_some());
            for held in of_queue {
                if let Some(episode) = &held.refused {
                    tell::released(sidecar, held, episode);
                }
                if let Some(queue) = queue {
                    (sidecar.admit.pressure).started(queue, &held.claimed.job, edges::now(sidecar));
                }
            }
        }
        self.jobs.clear();
    }
}

impl Drop for HandOut {
    /// Undoes the starts in a task of its own: the store's answer takes time, and a drop has none.
    fn drop(&mut self) {
        if self.jobs.is_empty() {
            return;
        }
        let sidecar = Arc::clone(&self.proxy.sidecar);
        let jobs = std::mem::take(&mut self.jobs);
        let _task = self.proxy.sidecar.tasks.spawn(async move {
            for mut job in jobs.into_iter().rev() {
                sidecar.back(&mut job).await;
                sidecar.metrics.count(Counted::HandOutUndone);
                let limited = job.claimed.limited.clone();
                // While it was neither held nor out, a cancel found nothing of it here.
                job.doubt();
                sidecar.hold.take_back(job);
                sidecar.wake(&limited);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use crate::equipment::claims::TestClaim as _;
    use crate::equipment::held::held_of;

    use super::*;
    use crate::store::memory::MemoryStore;
    use crate::store::{Claim, Store};

    fn out() -> HandOut {
        let store = Store::from(Arc::new(MemoryStore::new(1_000_000)));
        HandOut::of(Proxy::on(store), vec![held_of(Claim::limited("j"))])
    }

    #[tokio::test(start_paused = true)]
    async fn only_jobs_that_leave_have_started() {
        for (leaves, starts, undone) in [(true, 1, 0), (false, 0, 1)] {
            let mut out = out();
            let sidecar = Arc::clone(&out.proxy.sidecar);
            let asked = [&out.jobs[0].claimed];
            sidecar.store.take(&asked, 1).await.unwrap();
            let counted = |name: &str| {
                let page = sidecar.metrics.render();
                let line = page.lines().find(|line| line.starts_with(name));
                line.map_or(0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
            };
            assert_eq!(counted("ojs_throttle_starts_total{"), 0, "it may be undone");
            if leaves {
                out.sent();
            }
            drop(out);
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            assert_eq!(counted("ojs_throttle_starts_total{"), starts);
            assert_eq!(counted("ojs_throttle_handouts_undone_total "), undone);
            assert_eq!(sidecar.hold.has("j"), !leaves);
        }
    }

    #[tokio::test]
    async fn each_job_and_the_first_beside_them() {
        let mut out = out();
        out.jobs.push(held_of(Claim::of("k")));
        let (j, k) = (r#"{"id":"j"}"#, r#"{"id":"k"}"#);
        let told = format!(r#"{{"jobs":[{j},{k}],"job":{j}}}"#);
        assert_eq!(out.told(), told.as_bytes());
        out.jobs.clear();
    }
}
