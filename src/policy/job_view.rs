//! What limits may know of a job.

use std::borrow::Cow;

use super::json_path::{find, scalar};
use ojs_json::Json;

/// What a policy may look at in a job.
#[derive(Clone, Copy, Debug)]
pub struct JobView<'a> {
    /// Its id, where it has one already.
    pub id: Option<&'a str>,
    /// Its queue.
    pub queue: &'a str,
    /// Its type; nobody looks at it unless [`PolicySet::sees_types`](super::PolicySet::sees_types).
    pub kind: &'a str,
    /// The job's `meta` object, if it has one.
    pub meta: Option<Json<'a>>,
    /// The `X-OJS-Tenant` it was fetched with, if that header is trusted.
    pub tenant: Option<&'a str>,
}

impl<'a> JobView<'a> {
    /// A job of which no more is known than its queue.
    pub fn of_queue(queue: &'a str) -> JobView<'a> {
        JobView {
            id: None,
            queue,
            kind: "",
            meta: None,
            tenant: None,
        }
    }

    /// Whose the job is, as it says: the trusted header, else `meta.tenant_id`.
    pub fn tenant_id(&self) -> Option<Cow<'a, str>> {
        let header = self.tenant.filter(|text| !text.is_empty());
        header.map(Cow::Borrowed).or_else(|| {
            let named = find(self.meta?, "tenant_id")?;
            scalar(named)
        })
    }
}
