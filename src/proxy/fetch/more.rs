//! More for a worker that has jobs already. Nobody keeps their claims while they wait to go out, so they do not wait
//! long for what may hang: it goes on alone then, and what it brings is held.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::claim::{Allowance, Answer, Section, Wanted};
use super::handout::HandOut;
use crate::boxed::boxed;
use crate::hold::Lane;
use crate::proxy::outlive::{Client, to_the_end};
use crate::proxy::{PROOF, Proxy};
use crate::upstream::UpstreamError;

/// How long jobs wait while the backend is asked for more: so long, and such a part of their visibility.
const FOR_MORE: (Duration, u32) = (PROOF, 20);

/// The same while it is asked whether held jobs are ours still. Longer: before a backend that is always slow, jobs
/// of a later queue would never go out otherwise.
const FOR_HELD: (Duration, u32) = (Duration::from_secs(10), 3);

/// What ends a round: a moment in any case, or a client that has gone.
pub(super) type Ends<'a> = (Instant, &'a Client);

impl Proxy {
    /// [`Proxy::claim`] while jobs are `out` already; `None`: they cannot wait for it.
    pub(super) async fn claim_more(
        &self,
        wanted: &Wanted,
        section: &Section,
        allowed: Allowance,
        out: &mut HandOut,
        ends: Ends<'_>,
    ) -> Result<Option<Answer>, UpstreamError> {
        let (proxy, section) = (self.clone(), section.clone());
        let wanted = Wanted {
            count: wanted.count.saturating_sub(out.len()),
            ..wanted.clone()
        };
        let mut more = HandOut::new(self.clone());
        let asking = boxed(|| async move {
            let answer = proxy.claim(&wanted, &section, &allowed, &mut more).await;
            (answer, more)
        });
        let until = out.may_wait(FOR_MORE);
        let Some((answer, more)) = self.beside(asking, until, ends).await else {
            return Ok(None);
        };
        out.join(more);
        answer.map(Some)
    }

    /// Starts held jobs while others are `out` already; `false`: those cannot wait for it.
    pub(super) async fn start_more(
        &self,
        lane: &Lane,
        wanted: &Wanted,
        out: &mut HandOut,
        ends: Ends<'_>,
    ) -> bool {
        let (proxy, lane) = (self.clone(), lane.clone());
        let missing = wanted.count.saturating_sub(out.len());
        let visibility = wanted.visibility();
        let mut more = HandOut::new(self.clone());
        let starting = boxed(|| async move {
            more.extend(proxy.start(&lane, missing, visibility).await);
            more
        });
        let until = out.may_wait(FOR_HELD);
        let more = self.beside(starting, until, ends).await;
        more.map(|more| out.join(more)).is_some()
    }

    /// Waits for `work` until both moments are over or the client has gone; `None`: it goes on alone.
    async fn beside<T: Send + 'static>(
        &self,
        work: Pin<Box<dyn Future<Output = T> + Send>>,
        until: Instant,
        (at_least, client): Ends<'_>,
    ) -> Option<T> {
        let work = to_the_end(&self.sidecar.left, Client::default(), work);
        tokio::select! {
            biased;
            done = work => Some(done),
            () = sleep_until(until.max(at_least)) => None,
            () = client.gone() => None,
        }
    }
}
