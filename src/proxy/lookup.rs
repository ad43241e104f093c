//! One job, looked up in the backend: here is judged when it says that there is none.

use bytes::Bytes;
use http::StatusCode;

use super::{Proxy, REPLY_DEPTH};
use crate::json::Json;

/// What the backend says of a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Lookup {
    /// A reply in which the job is, beside others or alone.
    Found(Bytes),
    /// It knows no such job.
    Gone,
    /// It says something else, or something else answered.
    Unknown,
    /// It did not answer, or not now.
    Unanswered,
}

impl Proxy {
    /// Asks for a job under a scope's credentials.
    pub(super) async fn look_up(&self, scope: u64, job: &str) -> Lookup {
        let target = format!("/ojs/v1/jobs/{}", crate::ojs::encoded(job));
        let Ok(reply) = super::call(self, "get_job", super::get(self, scope, target)).await else {
            return Lookup::Unanswered;
        };
        match reply.status {
            StatusCode::OK => Lookup::Found(reply.body),
            // A backend without this route answers 404 too, and so does what stands before it, but not in JSON.
            StatusCode::NOT_FOUND | StatusCode::GONE
                if Json::parse(&reply.body, REPLY_DEPTH).is_ok() =>
            {
                Lookup::Gone
            }
            // Of somebody before it, or for now.
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => Lookup::Unanswered,
            _ => Lookup::Unknown,
        }
    }
}

/// The job in such a reply: in `job`, or the whole.
pub(super) fn job_in(reply: &[u8]) -> Option<Json<'_>> {
    let whole = Json::parse(reply, REPLY_DEPTH).ok()?;
    Some(whole.get_exact("job").unwrap_or(whole))
}
