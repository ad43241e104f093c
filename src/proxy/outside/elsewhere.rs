//! Jobs that a sibling holds, seen through this sidecar.

use http::StatusCode;

use crate::json::{Json, Splice};
use crate::proxy::{Proxy, REPLY_DEPTH, mirror};
use crate::store::Place;
use crate::upstream::Reply;

impl Proxy {
    /// One job, which the backend shows as active, as what it is if a sibling holds it; `None`: none does.
    /// The store is asked about jobs only that may be another's.
    pub(super) async fn held_elsewhere(&self, reply: &Reply) -> Option<Vec<u8>> {
        let sidecar = &self.sidecar;
        if reply.status != StatusCode::OK || sidecar.store.siblings() == 0 {
            return None;
        }
        let id = active(one_job(Json::parse(&reply.body, REPLY_DEPTH).ok()?)?)?;
        if sidecar.hold.has(&id) {
            return None;
        }
        let row = sidecar.row_of(&id).await.ok()??;
        if row.place != Place::Held {
            return None;
        }
        let job = one_job(Json::parse(&reply.body, REPLY_DEPTH).ok()?)?;
        let mut splice = Splice::new();
        mirror::hide(job, &mut splice);
        self.relabel(job, row.claimed.attempt, None, &mut splice);
        Some(splice.apply(&reply.body))
    }
}

/// The job of a reply that shows one; `None`: it shows many, or none.
fn one_job(whole: Json<'_>) -> Option<Json<'_>> {
    let job = whole.get_exact("job");
    job.or_else(|| whole.get_exact("id").map(|_| whole))
}

/// The id of a job that is active.
fn active(job: Json<'_>) -> Option<String> {
    (job.says("state", "active")).then(|| job.text_of("id").map(|id| id.into_owned()))?
}
