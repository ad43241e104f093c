//! What a worker asked for: its FETCH, as head and body say it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http::request::Parts;

use super::asked::Asked;
use crate::hold::Lane;
use crate::proxy::respond;
use crate::upstream::{Call, Path};

/// What a worker asked for.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// The FETCH as it came.
    pub(super) body: Bytes,
    pub(super) target: Path,
    pub(super) headers: HeaderMap,
    /// How long the backend may take.
    pub(super) timeout: Duration,
    /// Whose credentials it carries, once that matters.
    pub(super) scope: u64,
    /// Whether the backend gave jobs to them before.
    pub(super) accepted: bool,
    /// The most jobs it may get.
    pub(super) count: usize,
    /// What it says; `None`: nothing that we understand, or that matters so far, and no more can be
    /// claimed in its name.
    pub(super) asked: Option<Asked>,
}

impl Wanted {
    /// One FETCH, as its head and body say it. Path and headers are taken out of the head.
    pub(super) fn take(
        parts: &mut Parts,
        body: Bytes,
        asked: Option<Asked>,
        timeout: Duration,
    ) -> Wanted {
        Wanted {
            body,
            target: Path::Read(std::mem::take(&mut parts.uri)),
            headers: respond::take_headers(parts),
            timeout,
            scope: 0,
            accepted: false,
            count: asked.as_ref().map_or(1, |asked| asked.count),
            asked,
        }
    }

    /// The queues that it names.
    pub(super) fn queues(&self) -> &[Arc<str>] {
        self.asked.as_ref().map_or(&[], |asked| &asked.queues)
    }

    /// The visibility it asked for.
    pub(super) fn visibility(&self) -> Option<Duration> {
        self.asked.as_ref()?.visibility
    }

    /// Asks for the queues of these lanes only, under the worker's own id; says whether there are any.
    pub(super) fn keep<'a>(&mut self, lanes: impl Iterator<Item = &'a Lane>) -> bool {
        let lanes: Vec<Lane> = lanes.cloned().collect();
        let Some(asked) = self.asked.as_ref().filter(|_| !lanes.is_empty()) else {
            return false;
        };
        let own = asked.worker_id(&self.body);
        let own = own.as_deref();
        self.body = asked.rewritten(&self.body, &lanes, self.count, own).into();
        self.asked = Asked::read(&self.body);
        true
    }

    /// The FETCH with another body.
    pub(super) fn call(&self, body: Bytes) -> Call {
        Call {
            method: http::Method::POST,
            target: self.target.clone(),
            headers: self.headers.clone(),
            body,
            timeout: self.timeout,
        }
    }
}
