//! Held jobs as they are seen from outside: what the OJS text says they are, `available` (or
//! `scheduled`, where `on_limit` is `reschedule`), with the attempt they had before the claim. Pausing,
//! cancelling and deleting them works at once.

mod elsewhere;
mod list;

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{Response, StatusCode};

use super::body::Body;
use super::control::shape::rfc3339;
use super::outlive::{Client, to_the_end};
use super::refuse;
use super::respond::{self, Fault};
use super::{Proxy, REPLY_DEPTH, mirror, paused};
use crate::hold::Tally;
use crate::json::{Json, Kind, Splice, quote};
use crate::limit::Timestamp;
use crate::upstream::{Call, Reply, UpstreamError};
use list::Query;

impl Proxy {
    /// `GET` of one job or a list of jobs.
    pub(super) async fn show_jobs(&self, parts: Box<Parts>) -> Response<Body> {
        let mut reply = match self
            .upstream
            .call(self.plain_call(&parts, Bytes::new()))
            .await
        {
            Ok(reply) => reply,
            Err(error) => return refuse(&parts, Fault::backend(&error, false)),
        };
        let shown = match self.held_elsewhere(&reply).await {
            None => self.shown(&parts, &reply).await,
            shown => shown,
        };
        if let Some(shown) = shown {
            reply.body = shown.into();
        }
        respond::theirs(reply)
    }

    /// `GET` of one queue's numbers or of all.
    pub(super) async fn show_queues(
        &self,
        parts: Box<Parts>,
        queue: Option<&str>,
    ) -> Response<Body> {
        let answer = self.queues(&parts, queue).await;
        respond::answer(&parts, answer, false)
    }

    /// The backend's reply with its counts put right.
    pub(super) async fn queues(
        &self,
        parts: &Parts,
        queue: Option<&str>,
    ) -> Result<Reply, UpstreamError> {
        let call = self.plain_call(parts, Bytes::new());
        let mut reply = self.upstream.call(call).await?;
        let sight = self.sidecar.scopes.sight(&parts.headers);
        let mut tallies = self.sidecar.tallies(&sight);
        if let Some(queue) = queue
            && reply.status == StatusCode::OK
            && sight.is_whole()
        {
            let elsewhere = self.sidecar.held_by_siblings(queue).await;
            if elsewhere > 0 {
                tallies.entry(Arc::from(queue)).or_default().held += elsewhere;
            }
        }
        if !tallies.is_empty()
            && reply.status == StatusCode::OK
            && let Some(body) = recounted(&reply.body, queue, &tallies)
        {
            reply.body = body.into();
        }
        if let Some(queue) = queue
            && reply.status == StatusCode::OK
            && let Some(body) = self.with_depth(&reply.body, queue).await
        {
            reply.body = body.into();
        }
        Ok(reply)
    }

    /// Cancel or delete of a job: a held one is hidden first, then the call goes on.
    pub(super) async fn cancel(&self, parts: Box<Parts>, body: Bytes, job: &str) -> Response<Body> {
        let proxy = self.clone();
        let call = self.plain_call(&parts, body);
        let name: Arc<str> = Arc::from(job);
        // To its end: a job that is hidden for a client that hangs up must be shown again.
        let work = Box::pin(async move {
            let hiding = proxy.sidecar.hide(&name).await;
            let hidden = hiding.is_some();
            let mark = proxy.sidecar.pressure.mark();
            let mut answer = super::call(&proxy, "cancel", call).await;
            let shown = match &answer {
                Ok(reply) if hidden => proxy.relabelled(&reply.body),
                _ => None,
            };
            match &answer {
                Ok(reply) if reply.status.is_success() => {
                    proxy.sidecar.hold.forget(&name);
                    proxy.sidecar.end(&name, None).await;
                    let sent = (!hidden).then_some(mark);
                    proxy.sidecar.cancelled(reply, sent);
                    proxy.sidecar.made_room();
                }
                // Gone or in another state: the next proof tells, if it is still ours.
                _ => {
                    if let Some(hiding) = hiding {
                        hiding.show().await;
                    }
                }
            }
            if let (Ok(reply), Some(shown)) = (&mut answer, shown) {
                reply.body = shown.into();
            }
            answer
        });
        let answer = to_the_end(&self.sidecar.left, Client::default(), work).await;
        respond::answer(&parts, answer, false)
    }

    /// Retry of a job by hand: it waits again, or is available before its time.
    pub(super) async fn revive(&self, parts: &Parts, body: Bytes, job: &str) -> Response<Body> {
        let proxy = self.clone();
        let call = self.plain_call(parts, body);
        let name = job.to_owned();
        // To its end: it waits again whether the client hears of it or not.
        let work = Box::pin(async move {
            let answer = proxy.upstream.call(call).await;
            if let Ok(reply) = &answer {
                proxy.sidecar.revived(reply, &name);
            }
            answer
        });
        let answer = to_the_end(&self.sidecar.left, Client::default(), work).await;
        respond::answer(parts, answer, false)
    }

    /// Retry of whatever has failed: the answer says how many jobs wait again, but not where.
    pub(super) async fn revive_many(&self, parts: &Parts, body: Bytes) -> Response<Body> {
        let proxy = self.clone();
        let call = self.plain_call(parts, body);
        // To its end, as the retry of one.
        let work = Box::pin(async move {
            let answer = proxy.upstream.call(call).await;
            // Without an answer it may have been carried out too.
            proxy.sidecar.pressure.doubt_all();
            answer
        });
        let answer = to_the_end(&self.sidecar.left, Client::default(), work).await;
        respond::answer(parts, answer, false)
    }

    /// Pause and resume: held jobs of a paused queue stay from the moment the call comes.
    pub(super) async fn pause(
        &self,
        parts: Box<Parts>,
        body: Bytes,
        queue: &str,
        pause: bool,
    ) -> Response<Body> {
        let proxy = self.clone();
        let call = self.plain_call(&parts, body);
        let scope = self.sidecar.scopes.of(&parts.headers);
        let queue: Arc<str> = Arc::from(queue);
        // To its end: what comes of it counts here, whether the client hears of it or not.
        let work = Box::pin(async move {
            match pause {
                true => proxy.paused(call, scope, &queue).await,
                false => proxy.resumed(call, &queue).await,
            }
        });
        let answer = to_the_end(&self.sidecar.left, Client::default(), work).await;
        respond::answer(&parts, answer, false)
    }

    async fn paused(
        &self,
        call: Call,
        scope: u64,
        queue: &Arc<str>,
    ) -> Result<Reply, UpstreamError> {
        let sidecar = &self.sidecar;
        sidecar.paused.begin(queue);
        sidecar.share_pause(queue, true).await;
        let answer = super::call(self, "pause", call).await;
        let stands = match &answer {
            Ok(reply) if reply.status.is_success() => true,
            Ok(reply) if !reply.status.is_server_error() => false,
            Err(error) if !error.in_doubt() => false,
            // It may have been carried out.
            _ => self.says_paused(scope, queue).await,
        };
        let _nobody_reads = sidecar.paused.reading.write().await;
        sidecar.paused.end(queue, stands);
        if stands {
            // A resume that came between may have told them otherwise.
            sidecar.share_pause(queue, true).await;
        } else if !sidecar.paused.has(queue) {
            sidecar.share_pause(queue, false).await;
            sidecar.hold.wake_all();
        }
        answer
    }

    async fn resumed(&self, call: Call, queue: &Arc<str>) -> Result<Reply, UpstreamError> {
        let sidecar = &self.sidecar;
        let answer = super::call(self, "pause", call).await;
        if answer.as_ref().is_ok_and(|reply| reply.status.is_success()) {
            let _nobody_reads = sidecar.paused.reading.write().await;
            sidecar.paused.set(queue, false);
            sidecar.share_pause(queue, false).await;
            sidecar.hold.wake_all();
        }
        answer
    }

    /// Whether the backend's numbers of a queue say that it is paused.
    async fn says_paused(&self, scope: u64, queue: &str) -> bool {
        let path = crate::ojs::encoded(queue);
        let call = super::get(self, scope, format!("/ojs/v1/queues/{path}/stats"));
        let stats = super::call(self, "queue_stats", call).await;
        stats.is_ok_and(|stats| paused::told(&stats.body) == Some(true))
    }

    /// `POST /ojs/v1/admin/reset` of the embedded backend, which clears the sidecar too.
    pub(super) async fn reset(&self, parts: Box<Parts>, body: Bytes) -> Response<Body> {
        self.sidecar.clear().await;
        let answer = self.upstream.call(self.plain_call(&parts, body)).await;
        self.sidecar.clear().await;
        respond::answer(&parts, answer, false)
    }

    /// The request as it came, for a reply that is read whole.
    pub(super) fn plain_call(&self, parts: &Parts, body: Bytes) -> Call {
        Call {
            method: parts.method.clone(),
            target: self.target(&parts.uri),
            headers: parts.headers.clone(),
            body,
            timeout: self.sidecar.live().settings.upstream_timeout,
        }
    }

    /// The reply with held jobs shown as what they are and mirrors hidden; `None`: as it came.
    async fn shown(&self, parts: &Parts, reply: &Reply) -> Option<Vec<u8>> {
        if reply.status != StatusCode::OK {
            return None;
        }
        if self.sidecar.hold.is_empty() {
            return mirror::hide_all(&reply.body);
        }
        let asked = Query::of(parts.uri.query().unwrap_or_default());
        let sight = || self.sidecar.scopes.sight(&parts.headers);
        match asked.state.as_deref() {
            Some("active") => {
                let sight = sight();
                Box::pin(self.without_held(parts, &reply.body, &asked, &sight)).await
            }
            Some("available" | "scheduled") => self.with_held(&reply.body, &asked, &sight()),
            _ => self.relabelled(&reply.body),
        }
    }

    /// Every held job in a text as `available` or `scheduled`, mirrors hidden.
    fn relabelled(&self, text: &[u8]) -> Option<Vec<u8>> {
        let whole = Json::parse(text, REPLY_DEPTH).ok()?;
        let mut splice = Splice::new();
        let lists = ["items", "jobs"]
            .into_iter()
            .filter_map(|name| whole.get_exact(name));
        let jobs = lists
            .flat_map(|list| list.items())
            .chain(whole.get_exact("job"))
            .chain([whole]);
        for job in jobs {
            mirror::hide(job, &mut splice);
            let id = job.text_of("id");
            let now = self.sidecar.store.now();
            if let Some((attempt, at)) = id.and_then(|id| self.sidecar.hold.seen(&id, now)) {
                self.relabel(job, attempt, at, &mut splice);
            }
        }
        (!splice.is_empty()).then(|| splice.apply(text))
    }

    /// Shows an active job as `available`, or as `scheduled` at this time, as it was before its claim.
    pub(super) fn relabel(
        &self,
        job: Json<'_>,
        attempt: Option<u32>,
        scheduled_at: Option<Timestamp>,
        splice: &mut Splice,
    ) {
        let is_active = |job: Json<'_>| job.get("state")?.text().map(|state| state == "active");
        let scheduled_at = scheduled_at.filter(|_| is_active(job) == Some(true));
        let (state, at) = match scheduled_at {
            Some(at) => ("\"scheduled\"", Some(quote(&rfc3339(at)))),
            None => ("\"available\"", None),
        };
        if let Some(at) = &at
            && job.get("scheduled_at").is_none()
        {
            splice.add_member(job, "scheduled_at", at.as_bytes());
        }
        for member in job.members() {
            if member.is_named("state") {
                if member.value.text().as_deref() == Some("active") {
                    splice.replace(member.value.range(), state);
                }
            } else if let (true, Some(at)) = (member.is_named("scheduled_at"), &at) {
                splice.replace(member.value.range(), at.clone());
            } else if member.is_named("attempt") {
                // Its claim may have shown none.
                if let Some(attempt) = attempt.or_else(|| member.value.u32()) {
                    let before = self.sidecar.backend.before_claim(attempt);
                    splice.replace(member.value.range(), before.to_string());
                }
            } else if member.is_named("started_at") || member.is_named("worker_id") {
                splice.remove_member(job, member);
            }
        }
    }
}

/// Queue numbers with held jobs as available or scheduled instead of active: of one queue, of a list
/// (`items`, `queues`), or totals. `None`: no numbers were found.
fn recounted(
    text: &[u8],
    queue: Option<&str>,
    tallies: &HashMap<Arc<str>, Tally>,
) -> Option<Vec<u8>> {
    let of = |name: &str| tallies.get(name).copied().unwrap_or_default();
    let whole = Json::parse(text, REPLY_DEPTH).ok()?;
    let mut splice = Splice::new();
    if let Some(queue) = queue {
        shift(whole, of(queue), &mut splice);
    } else {
        let lists = ["items", "queues"]
            .into_iter()
            .filter_map(|name| whole.get_exact(name));
        let mut found = false;
        for entry in lists.flat_map(|list| list.items()) {
            found = true;
            if let Some(name) = entry.text_of("name") {
                shift(entry, of(&name), &mut splice);
            }
        }
        if !found {
            let all = Tally {
                held: tallies.values().map(|tally| tally.held).sum(),
                scheduled: tallies.values().map(|tally| tally.scheduled).sum(),
            };
            shift(whole, all, &mut splice);
        }
    }
    (!splice.is_empty()).then(|| splice.apply(text))
}

/// Moves jobs from `active` to `available` and `scheduled`, in the object or one level into it.
fn shift(object: Json<'_>, moved: Tally, splice: &mut Splice) {
    if moved.held == 0 {
        return;
    }
    let count = |jobs: usize| i64::try_from(jobs).unwrap_or(i64::MAX);
    let (held, later) = (count(moved.held), count(moved.scheduled));
    let inner = ["queue", "stats", "counts", "jobs"]
        .into_iter()
        .filter_map(|name| object.get_exact(name));
    for place in inner
        .filter(|inner| inner.kind() == Kind::Object)
        .chain([object])
    {
        let (Some(available), Some(active)) =
            (place.get_exact("available"), place.get_exact("active"))
        else {
            continue;
        };
        let (Some(many), Some(few)) = (available.int(), active.int()) else {
            continue;
        };
        let waiting = many.saturating_add(held.saturating_sub(later).max(0));
        splice.replace(available.range(), waiting.to_string());
        if let Some((scheduled, now)) = place
            .get_exact("scheduled")
            .and_then(|scheduled| Some((scheduled, scheduled.int()?)))
        {
            splice.replace(scheduled.range(), now.saturating_add(later).to_string());
        }
        splice.replace(active.range(), few.saturating_sub(held).max(0).to_string());
    }
}
