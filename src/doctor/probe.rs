//! Runs jobs of the doctor's own in a queue of its own. What the backend does with them shows its habits.

use std::time::Duration;

use anyhow::Context;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::client::JsonClient;
use crate::desk::BackendFacts;

/// The visibility that is asked for.
const VISIBILITY_MS: u64 = 2_000;
const VISIBILITY: Duration = Duration::from_millis(VISIBILITY_MS);
/// When the heartbeat is sent.
const BEAT: Duration = Duration::from_millis(1200);
/// How long the probe waits for a claim to end. After that the backend did not heed so short a visibility.
const PATIENCE: Duration = Duration::from_secs(8);
/// How long the probe waits where the backend itself says how long claims last, which is half a minute mostly.
const LONG: Duration = Duration::from_secs(45);
/// For how long a heartbeat then asks.
const KEPT_MS: u64 = 120_000;
/// Between two looks.
const LOOK: Duration = Duration::from_millis(100);

/// The results of a probe.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Probed {
    /// The attempt that the first FETCH of a job showed, if it showed one.
    pub(super) first_attempt: Option<u32>,
    /// Whether giving a job back is harmless, or why not. `None` if no FETCH showed the attempt.
    pub(super) requeue: Option<Result<(), String>>,
    /// How long a claim for [`VISIBILITY`] lasted. `None` if it lasted longer than [`PATIENCE`].
    pub(super) lasted: Option<Duration>,
    /// How long it lasted then, where the probe saw its end.
    pub(super) by_itself: Option<Duration>,
    /// For how long the probe looked for that end.
    pub(super) waited: Duration,
    /// Whether a heartbeat kept a job that it did not name. `None` if nothing ran out to compare with, or everything
    /// ran out at once: then nobody knows.
    pub(super) worker_liveness: Option<bool>,
    /// Whether a heartbeat did not move the end of the claim that it named.
    pub(super) from_start: Option<bool>,
    /// Whether the queue's stats are right, or what is wrong with them.
    pub(super) stats: Result<(), String>,
}

impl Probed {
    /// For people.
    pub(super) fn visibility(&self) -> String {
        let asked = VISIBILITY.as_secs();
        let heeded = match self.lasted {
            Some(_) => "heeded",
            None => "not heeded",
        };
        let over = match self.lasted.or(self.by_itself) {
            Some(lasted) => format!("over after {:.1} s", lasted.as_secs_f64()),
            None => format!("not over after {} s", self.waited.as_secs()),
        };
        format!("{heeded} at FETCH: a claim for {asked} s was {over}")
    }
}

/// Judges a heartbeat by the two jobs that are looked at so long `after` it: the one it named and the one it did not.
/// Returns whether it kept both, and whether it left the end of the named claim where it was. `None` where a backend
/// that looks seldom has ended the moved claim with the others.
fn heeded(named: bool, unnamed: bool, after: Duration) -> Option<(bool, bool)> {
    (named || after < VISIBILITY).then_some((named && unnamed, !named))
}

/// A run of the probe.
pub(super) struct Probe<'a> {
    backend: &'a JsonClient,
    queue: String,
    jobs: Vec<String>,
}

impl<'a> Probe<'a> {
    pub(super) fn new(backend: &'a JsonClient, seed: u64) -> Probe<'a> {
        Probe {
            backend,
            queue: format!("{}{seed:016x}", BackendFacts::PROBED),
            jobs: Vec::new(),
        }
    }

    pub(super) fn queue(&self) -> &str {
        &self.queue
    }

    /// Runs the probe. It takes about [`VISIBILITY`] and a second, or up to [`LONG`] where the backend says how long claims
    /// last.
    pub(super) async fn run(&mut self) -> anyhow::Result<Probed> {
        let (first_attempt, requeue) = self.requeue().await?;
        for _ in 0..3 {
            self.enqueue(3).await?;
        }
        let waiting = self.stats("available").await;
        let (alone, _) = self.fetch("alone").await?;
        let claimed = Instant::now();
        let (named, _) = self.fetch("beats").await?;
        let (unnamed, _) = self.fetch("beats").await?;
        let active = self.stats("active").await;
        let stats = judge_stats(&waiting, &active);
        sleep(BEAT.saturating_sub(claimed.elapsed())).await;
        let beaten = Instant::now();
        self.beat(&named, VISIBILITY_MS).await?;
        let lasted = self.runs_out(&alone, claimed, PATIENCE).await?;
        let (mut worker_liveness, mut from_start, mut by_itself) = (None, None, None);
        if lasted.is_some() {
            // The backend may look at these claims a moment later.
            sleep(LOOK * 3).await;
            let (named, unnamed) = (self.active(&named).await?, self.active(&unnamed).await?);
            if let Some((by_worker, unmoved)) = heeded(named, unnamed, beaten.elapsed()) {
                (worker_liveness, from_start) = (Some(by_worker), Some(unmoved));
            }
        } else {
            (worker_liveness, by_itself) = self
                .keeps_unnamed(&alone, &named, &unnamed, claimed)
                .await?;
        }
        Ok(Probed {
            first_attempt,
            requeue,
            lasted,
            by_itself,
            waited: claimed.elapsed(),
            worker_liveness,
            from_start,
            stats,
        })
    }

    /// One heartbeat of the worker that has two jobs; it names one of them.
    async fn beat(&self, named: &str, ms: u64) -> anyhow::Result<()> {
        let beat = json!({
            "worker_id": self.worker("beats"),
            "active_jobs": [named],
            "visibility_timeout_ms": ms,
        });
        self.post("workers/heartbeat", beat).await.map(drop)
    }

    /// Whether a heartbeat keeps a job that it does not name, where claims do not last as long as the FETCH says; and how
    /// long one lasts.
    async fn keeps_unnamed(
        &self,
        alone: &str,
        named: &str,
        unnamed: &str,
        claimed: Instant,
    ) -> anyhow::Result<(Option<bool>, Option<Duration>)> {
        // The first heartbeat was for a short time: where that was heeded, it has shown for whom.
        match (self.active(named).await?, self.active(unnamed).await?) {
            (true, true) => {}
            (false, unnamed) => return Ok((Some(!unnamed), None)),
            (true, false) => return Ok((None, None)),
        }
        self.beat(named, KEPT_MS).await?;
        let Some(lasted) = self.runs_out(alone, claimed, LONG).await? else {
            return Ok((None, None));
        };
        // The backend may look at these claims a moment later.
        sleep(LOOK * 3).await;
        let (named, unnamed) = (self.active(named).await?, self.active(unnamed).await?);
        Ok((named.then_some(unnamed), Some(lasted)))
    }

    /// Gives back a job on its last attempt, and sees what that costs it.
    async fn requeue(&mut self) -> anyhow::Result<(Option<u32>, Option<Result<(), String>>)> {
        let id = self.enqueue(1).await?;
        let (_, first) = self.fetch("requeue").await?;
        let nack = json!({
            "job_id": id,
            "worker_id": self.worker("requeue"),
            "requeue": true,
            "error": {"code": "requeued", "message": "a probe of ojs-throttle doctor", "retryable": true},
        });
        self.post("workers/nack", nack).await?;
        let state = self.state(&id).await?;
        if state != "available" {
            let why = format!("a job on its last attempt is {state} afterwards");
            return Ok((first, Some(Err(why))));
        }
        let (_, again) = self.fetch("requeue").await?;
        let requeued = first.zip(again).map(|(first, again)| match again == first {
            true => Ok(()),
            false => Err(format!(
                "the next claim shows attempt {again} after {first}"
            )),
        });
        let ack = json!({"job_id": id, "worker_id": self.worker("requeue"), "result": {}});
        self.post("workers/ack", ack).await?;
        Ok((first, requeued))
    }

    /// Ends all jobs that are not over. Returns how many could not be ended.
    pub(super) async fn clean(&self) -> usize {
        let mut left = 0;
        for id in &self.jobs {
            let path = format!("/ojs/v1/jobs/{id}");
            // The job's state shows whether this worked.
            drop(self.backend.exchange(Method::DELETE, &path, None).await);
            let state = self.state(id).await;
            match state.as_deref() {
                Ok("completed" | "cancelled") => {}
                Ok("discarded") => {
                    let path = format!("/ojs/v1/dead-letter/{id}");
                    drop(self.backend.exchange(Method::DELETE, &path, None).await);
                }
                Ok("gone") => {}
                _ => left += 1,
            }
        }
        left
    }

    fn worker(&self, role: &str) -> String {
        format!("{}-{role}", self.queue)
    }

    async fn post(&self, what: &str, body: Value) -> anyhow::Result<Value> {
        let path = format!("/ojs/v1/{what}");
        self.backend.post(&path, &body).await
    }

    async fn enqueue(&mut self, attempts: u32) -> anyhow::Result<String> {
        let job = json!({
            "type": "ojs_throttle.doctor",
            "args": [],
            "options": {"queue": self.queue, "retry": {"max_attempts": attempts}},
        });
        let stored = self.post("jobs", job).await?;
        let id = stored.pointer("/job/id").or_else(|| stored.get("id"));
        let id = id
            .and_then(Value::as_str)
            .context("a stored job has no id")?;
        self.jobs.push(id.to_owned());
        Ok(id.to_owned())
    }

    /// Claims one job. Returns its id, and its attempt where that is shown.
    async fn fetch(&self, role: &str) -> anyhow::Result<(String, Option<u32>)> {
        let fetch = json!({
            "queues": [self.queue],
            "count": 1,
            "worker_id": self.worker(role),
            "visibility_timeout_ms": VISIBILITY_MS,
        });
        let deadline = Instant::now() + VISIBILITY;
        loop {
            let reply = self.post("workers/fetch", fetch.clone()).await?;
            let job = reply.pointer("/jobs/0").or_else(|| reply.get("job"));
            let id = job.and_then(|job| job.get("id")?.as_str());
            if let Some((job, id)) = job.zip(id) {
                let attempt = job.get("attempt").and_then(Value::as_u64);
                let attempt = attempt.and_then(|attempt| u32::try_from(attempt).ok());
                return Ok((id.to_owned(), attempt));
            }
            if Instant::now() > deadline {
                anyhow::bail!("a FETCH of a job that waits brings none");
            }
            sleep(LOOK).await;
        }
    }

    /// The state of a job; `gone` where the backend knows it no more.
    async fn state(&self, id: &str) -> anyhow::Result<String> {
        let path = format!("/ojs/v1/jobs/{id}");
        let (status, body) = self.backend.exchange(Method::GET, &path, None).await?;
        if status == StatusCode::NOT_FOUND {
            return Ok("gone".to_owned());
        }
        let job: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        let state = job.pointer("/job/state").or_else(|| job.get("state"));
        let state = state.and_then(Value::as_str).map(str::to_owned);
        state.with_context(|| format!("GET of a job says no state ({status})"))
    }

    async fn active(&self, id: &str) -> anyhow::Result<bool> {
        Ok(self.state(id).await? == "active")
    }

    /// How long the claim lasted, if it ended within `patience`.
    async fn runs_out(
        &self,
        id: &str,
        claimed: Instant,
        patience: Duration,
    ) -> anyhow::Result<Option<Duration>> {
        while self.active(id).await? {
            if claimed.elapsed() > patience {
                return Ok(None);
            }
            sleep(LOOK).await;
        }
        Ok(Some(claimed.elapsed()))
    }

    async fn stats(&self, of: &str) -> anyhow::Result<u64> {
        let path = format!("/ojs/v1/queues/{}/stats", self.queue);
        let stats = self.backend.get(&path).await?;
        let inner = stats.get("queue").filter(|queue| queue.is_object());
        let number = |of: &str| {
            let at = |value: &Value| value.get(of).and_then(Value::as_u64);
            let nested = stats.pointer(&format!("/stats/{of}"));
            inner
                .and_then(at)
                .or_else(|| at(&stats))
                .or_else(|| nested?.as_u64())
        };
        number(of).with_context(|| format!("the queue's stats have no {of}"))
    }
}

/// Whether the stats were right: three jobs waited, and three were out.
fn judge_stats(waiting: &anyhow::Result<u64>, active: &anyhow::Result<u64>) -> Result<(), String> {
    match (waiting, active) {
        (Ok(3), Ok(3)) => Ok(()),
        (Ok(waiting), Ok(active)) => Err(format!(
            "the queue's stats are wrong: 3 waited and they said {waiting}, 3 were out and they said {active}"
        )),
        (Err(why), _) | (_, Err(why)) => Err(format!("the queue's stats cannot be read: {why:#}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_over_with_the_others_says_nothing() {
        let (soon, late) = (Duration::from_millis(1_300), Duration::from_millis(2_900));
        // By worker, by job, and from the start.
        assert_eq!(heeded(true, true, soon), Some((true, false)));
        assert_eq!(heeded(true, false, soon), Some((false, false)));
        assert_eq!(heeded(false, false, soon), Some((false, true)));
        // Of one that is looked at so late that its time was over anyway, only that it lives says something.
        assert_eq!(heeded(false, false, late), None);
        assert_eq!(heeded(true, false, late), Some((false, false)));
    }
}
