//! A second try beside the first. A connection may be dead without a sign (its peer was replaced, a firewall forgot
//! it): then an ACK hears nothing although the backend answers everybody else, and when `server.upstream_timeout` is
//! over its claim may be too.

use std::pin::{Pin, pin};
use std::time::Duration;

use http::StatusCode;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{Doubt, Ended, PAUSES, Settling, Verb};
use crate::metrics::Counted;
use crate::proxy::{Proxy, call};
use crate::upstream::{Reply, UpstreamError};

/// The least time that an ACK is waited for before it is asked whether others are answered.
const PATIENCE: Duration = Duration::from_secs(1);

type Answer = Result<Reply, UpstreamError>;

impl Proxy {
    /// Sends an ACK or nack. An ACK of which nothing is heard for a third of `settle.retry_for` is sent once more on
    /// another connection, if the backend answers there and the job is not over; the first word of the backend counts.
    /// A nack is not: the second one might end the run of who has the job after the first. Says too whether two were
    /// sent.
    pub(super) async fn try_once(
        &self,
        settling: &Settling<'_>,
        deadline: Instant,
    ) -> (Answer, bool) {
        let begun = Instant::now();
        let mut first = pin!(call(self, "settle", settling.call.clone()));
        let patience = self.sidecar.live().settings.settle_retry_for / 3;
        let patience = patience.max(PATIENCE);
        if settling.verb == Verb::Nack || begun + patience >= deadline {
            return (first.await, false);
        }
        match timeout(patience, first.as_mut()).await {
            Ok(answer) => (answer, false),
            Err(_) => Box::pin(self.try_beside(first, begun, settling, deadline)).await,
        }
    }

    async fn try_beside(
        &self,
        mut first: Pin<&mut (impl Future<Output = Answer> + Send)>,
        begun: Instant,
        settling: &Settling<'_>,
        deadline: Instant,
    ) -> (Answer, bool) {
        loop {
            // What lies idle since before may be as dead.
            self.upstream.close_idle_since_before(begun);
            let seen = tokio::select! {
                biased;
                answer = first.as_mut() => return (answer, false),
                seen = self.seen(settling, Doubt::Tried) => seen,
            };
            match seen {
                Ended::Done(done) => return (Ok(done), false),
                Ended::Open => break,
                // Others wait too: it is slow, or away.
                Ended::Unheard if Instant::now() + PAUSES.1 >= deadline => {
                    return (first.await, false);
                }
                Ended::Unheard => {}
            }
            tokio::select! {
                biased;
                answer = first.as_mut() => return (answer, false),
                () = sleep(PAUSES.1) => {}
            }
        }
        self.sidecar.metrics.count(Counted::SettleRetried);
        let mut second = pin!(call(self, "settle", settling.call.clone()));
        let answer = tokio::select! {
            biased;
            answer = first.as_mut() => better(answer, second, deadline).await,
            answer = second.as_mut() => better(answer, first, deadline).await,
        };
        (answer, true)
    }
}

/// The first answer of two if it is the backend's word. What a gateway says of the one that is stuck, or of one too
/// many, says nothing of the other: until `deadline` that one may be carried out.
async fn better(
    answer: Answer,
    other: impl Future<Output = Answer> + Send,
    deadline: Instant,
) -> Answer {
    let Ok(reply) = answer else {
        return other.await;
    };
    let is_word = !reply.status.is_server_error() && reply.status != StatusCode::TOO_MANY_REQUESTS;
    if is_word {
        return Ok(reply);
    }
    match timeout_at(deadline, other).await {
        Ok(Ok(other)) => Ok(other),
        _ => Ok(reply),
    }
}
