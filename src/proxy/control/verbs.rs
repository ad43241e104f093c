//! `/throttle/v1/keys/{key}/…` of the admin port: what people do to a key by hand. Only methods that
//! no web page can send to another site, and only under a Host that is no page's: then being on loopback is
//! enough to be allowed.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;

use super::host;
use super::limits::store_failed;
use super::overrides::{field, json};
use super::shape::rfc3339;
use crate::json::quote;
use crate::limit::{Key, Space, Timestamp};
use crate::ojs;
use crate::policy::NextStart;
use crate::proxy::body::{self, Body};
use crate::proxy::outlive::{Client, to_the_end};
use crate::proxy::respond::Fault;
use crate::proxy::{Sidecar, ours, refuse};
use crate::store::Change;

/// The longest body in bytes.
const LONGEST: usize = 4096;

impl Sidecar {
    /// Answers a request below `/throttle/v1/`.
    pub async fn verb(self: &Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let (parts, incoming) = request.into_parts();
        match self.do_verb(&parts, incoming).await {
            Ok(text) => {
                let mut response = Response::new(Body::from(Bytes::from(text)));
                ours(&parts.headers, response.headers_mut());
                response
            }
            Err(fault) => refuse(&parts, fault),
        }
    }

    async fn do_verb(self: &Arc<Self>, parts: &Parts, incoming: Incoming) -> Result<String, Fault> {
        let rest = parts.uri.path().strip_prefix("/throttle/v1/keys/");
        let Some((key, what)) = rest.and_then(|rest| rest.rsplit_once('/')) else {
            return Err(unknown());
        };
        let next_start = match what {
            "next-start" => true,
            "usage" => false,
            _ => return Err(unknown()),
        };
        let set = match (&parts.method, next_start) {
            (&Method::PUT, true) => true,
            (&Method::DELETE, _) => false,
            _ => return Err(not_allowed(next_start)),
        };
        self.may_control(parts)?;
        let key = ojs::decoded(key).unwrap_or_default();
        let key = Key::new(&key).map_err(|bad| Fault::field("key", &bad.to_string()))?;
        let until = match set {
            true => {
                let patience = self.live().settings.body_timeout;
                let body = body::read(incoming, LONGEST, patience).await?;
                let next = NextStart::read(json(&body)?, self.store.now()).map_err(field)?;
                self.may_bind(&key).await?;
                Some(next.at)
            }
            false => None,
        };
        let sidecar = Arc::clone(self);
        // To its end: once it is done, what waits for the key is asked again.
        let work = Box::pin(async move {
            match next_start {
                true => sidecar.next_start(key, until).await,
                false => sidecar.unused(key).await,
            }
        });
        to_the_end(&self.left, Client::default(), work).await
    }

    /// No start before `until`, whatever stood before; or the key is open.
    async fn next_start(&self, key: Key, until: Option<Timestamp>) -> Result<String, Fault> {
        let change = Change::Shut {
            key: key.clone(),
            until: until.unwrap_or_default(),
            at_least: false,
            probe: None,
        };
        self.store
            .set(change)
            .await
            .map_err(|error| store_failed(&error))?;
        let shown = until.map_or("null".into(), |until| quote(&rfc3339(until)).to_string());
        tracing::info!(%key, next_start = %shown, "set on the admin port");
        let text = format!(r#"{{"key":{},"next_start":{shown}}}"#, quote(key.as_str()));
        if until.is_some() {
            self.named.know(&key);
        }
        self.changed(Space::Job, key);
        Ok(text)
    }

    /// Forgets what the key has used but its slots.
    async fn unused(&self, key: Key) -> Result<String, Fault> {
        let change = Change::Unused { key: key.clone() };
        self.store
            .set(change)
            .await
            .map_err(|error| store_failed(&error))?;
        self.vendors.forget(&key);
        tracing::info!(%key, "its usage was cleared on the admin port");
        let text = format!(r#"{{"key":{},"cleared":true}}"#, quote(key.as_str()));
        self.changed(Space::Job, key);
        Ok(text)
    }

    /// Whether this request to the admin port may change something.
    fn may_control(&self, parts: &Parts) -> Result<(), Fault> {
        let on_loopback = self.live().settings.admin_loopback;
        if self.has_control_token(parts) || (on_loopback && host::is_no_pages(&parts.headers)) {
            return Ok(());
        }
        if on_loopback {
            return Err(host::refused());
        }
        let message = "this is for an admin port on loopback or with the control token only";
        let mut fault = Fault::new(StatusCode::FORBIDDEN, "forbidden", message);
        fault.hint = Some(match self.live().settings.control_token {
            Some(_) => "send Authorization: Bearer and the text of server.control_token",
            None => "set server.control_token, or admin_listen on 127.0.0.1",
        });
        Err(fault)
    }
}

fn unknown() -> Fault {
    let message = "here are /throttle/v1/keys/KEY/next-start and /throttle/v1/keys/KEY/usage";
    let mut fault = Fault::new(StatusCode::NOT_FOUND, "not_found", message);
    fault.hint = Some("use one of these; KEY is a key of GET /ojs/v1/rate-limits");
    fault
}

fn not_allowed(next_start: bool) -> Fault {
    match next_start {
        true => Fault::not_allowed("PUT, DELETE", "next-start takes PUT and DELETE"),
        false => Fault::not_allowed("DELETE", "usage takes DELETE"),
    }
}
