//! What is not ours passes: bodies stream both ways, WebSocket goes through, and a failure is told
//! by whose it is.
//!
//! Why bodies stream, and are not read first. Most requests are none of ours, and what is read must fit into memory, in
//! an encoding that we know, within a size that we choose: each of these would refuse something that the backend takes.
//! Reading all of them would give one path for everything, which is less code. It would also make the sidecar the
//! narrowest part of the way for requests that it has nothing to say about.

use http::request::Parts;
use http::{Request, Response, StatusCode, header};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncWriteExt as _, copy_bidirectional};

use super::body::Body;
use super::respond::{self, BackendFault, Fault};
use ojs_wire::upstream::{self, ReplyBody, RequestBody, Upstream, UpstreamError};

/// Sends a request on as it is and streams the reply back. The body may have been read already
/// ([`bytes::Bytes`]) or not ([`hyper::body::Incoming`]). `fault`: where the request may make the
/// backend store a job, doubt is 500 and not retryable, never 502 to 504, on which SDKs would send it again.
pub fn pass<B: Into<RequestBody>>(
    to: &Upstream,
    parts: Box<Parts>,
    body: B,
    fault: BackendFault,
) -> impl Future<Output = Response<Body>> + Send + use<'_, B> {
    let mut request = Box::new(Request::from_parts(*parts, body.into()));
    let id = respond::request_id(request.headers());
    // Set for any `Upgrade`; only WebSocket's goes on to the backend.
    let client = request.extensions_mut().remove::<OnUpgrade>();
    let client = client.filter(|_| upstream::wants_websocket(request.headers()));
    let sending = to.send(request);
    async move {
        match sending.await {
            Ok(reply) if reply.status() == StatusCode::SWITCHING_PROTOCOLS => {
                let why = "it switched protocols unasked".to_owned();
                let unasked = || fault(&UpstreamError::Lost(why)).reply(id);
                switch(reply, client).unwrap_or_else(unasked)
            }
            Ok(reply) => reply.map(Body::from),
            Err(error) => Fault::sending(&error, fault).reply(id),
        }
    }
}

/// The reply to the client, with what joins both connections once it is written. `None`: the client did not
/// ask.
fn switch(reply: Response<ReplyBody>, client: Option<OnUpgrade>) -> Option<Response<Body>> {
    let client = client?;
    let (mut parts, body) = reply.into_parts();
    // A 101 has no body, so it can have no length.
    parts.headers.remove(header::CONTENT_LENGTH);
    parts.headers.remove(header::TRANSFER_ENCODING);
    let tunnel = async move {
        let Some((mut backend, early)) = body.into_stream().await else {
            return;
        };
        let Ok(client) = client.await else { return };
        let mut client = TokioIo::new(client);
        // What the backend sent right behind its 101 was read with it.
        if client.write_all(&early).await.is_ok() {
            // Either side breaking is how these connections end.
            let _ = copy_bidirectional(&mut client, &mut backend).await;
        }
    };
    Some(Response::from_parts(parts, Body::before(Box::pin(tunnel))))
}
