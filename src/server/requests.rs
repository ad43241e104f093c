//! The requests of a listener: heads that can be read in two ways are refused, and so are more at once than there are
//! places for.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;

use http::Response;
use http::request::Parts;
use hyper::body::Incoming;

use super::bounds::ListenerBounds;
use super::rules;
use ojs_answers::body::Body;
use ojs_answers::load::{Load, Seldom, Service, Urgency};
use ojs_answers::respond::{self, Fault};
use ojs_wire::traces;

/// What all connections of a listener share.
#[derive(Debug)]
pub(super) struct Listening<S> {
    pub(super) service: S,
    pub(super) limits: ListenerBounds,
    pub(super) load: Arc<Load>,
    /// Where it listens, for the log: each port has as many places.
    pub(super) listen: String,
    /// Limits the log line about requests that were refused because there were too many.
    pub(super) overloaded: Seldom,
    /// Whether a head had more lines than most: from then on each may.
    pub(super) long_heads: AtomicBool,
    /// Likewise about clients with whom there is no TLS.
    pub(super) unsecured: Seldom,
}

impl<S: Service> Listening<S> {
    /// The answer, in a span of its own; the head may be refused.
    pub(super) async fn traced(&self, head: Box<Parts>, body: Incoming) -> Response<Body> {
        let span = traces::request(&head, self.service.tells_paths());
        let answer = pin!(self.answer(head, body));
        let reply = traces::within(&span, answer).await;
        traces::answered(&span, reply.status());
        reply
    }

    async fn answer(&self, head: Box<Parts>, body: Incoming) -> Response<Body> {
        if let Err(fault) = rules::check(&head) {
            return fault.reply(respond::request_id(&head.headers));
        }
        let urgency = self.service.urgency(&head);
        let places = match urgency {
            Urgency::Urgent => &self.load.urgent,
            Urgency::Ordinary => &self.load.ordinary,
        };
        let before = places.fetch_add(1, Ordering::Relaxed);
        let _place = RequestPlace(places);
        let taken = before + self.service.left_behind(urgency);
        if taken >= self.limits.in_flight {
            if self.overloaded.now() {
                tracing::warn!(
                    id = %"requests_full",
                    listen = %self.listen,
                    requests = taken,
                    "more requests at once than server.max_in_flight allows: answered 503 `overloaded`"
                );
            }
            return Fault::overloaded().reply(respond::request_id(&head.headers));
        }
        let mut answer = pin!(self.service.call(head, body));
        std::future::poll_fn(|cx| {
            // The request is not touched again after a panic, so nobody sees half-done state.
            match catch_unwind(AssertUnwindSafe(|| answer.as_mut().poll(cx))) {
                Ok(polled) => polled,
                Err(_) => Poll::Ready(Fault::internal().closing().reply(None)),
            }
        })
        .await
    }
}

/// One request in flight; dropping it frees the place.
struct RequestPlace<'a>(&'a AtomicUsize);

impl Drop for RequestPlace<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
