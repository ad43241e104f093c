//! The backend's own event streams of one job or one queue: they pass, without mirrors.

use bytes::BytesMut;
use http::request::Parts;
use http::{Response, StatusCode, header};
use hyper::body::Incoming;

use super::super::Proxy;
use super::super::body::Body;
use super::relay::{is_stream, without_mirrors};
use crate::events::Frames;

impl Proxy {
    /// Passes the request, and what comes frame by frame; signs of life between them at once.
    pub(in crate::proxy) async fn backends_stream(
        &self,
        mut parts: Box<Parts>,
        body: Incoming,
    ) -> Response<Body> {
        // What is read must not come packed.
        parts.headers.remove(header::ACCEPT_ENCODING);
        let reply = self.pass(parts, body).await;
        if reply.status() != StatusCode::OK || !is_stream(reply.headers()) {
            return reply;
        }
        let (mut head, body) = reply.into_parts();
        head.headers.remove(header::CONTENT_LENGTH);
        let mut frames = Frames::default();
        let shown = move |bytes: &[u8]| {
            let mut out = BytesMut::new();
            frames.push(bytes);
            loop {
                match frames.next() {
                    Ok(Some(frame)) => out.extend_from_slice(&without_mirrors(frame)),
                    Ok(None) => {
                        out.extend_from_slice(&frames.comments());
                        return out.freeze();
                    }
                    Err(error) => {
                        tracing::warn!(%error, "an event of the backend's is left out of its stream");
                    }
                }
            }
        };
        Response::from_parts(head, body.changed(shown))
    }
}
