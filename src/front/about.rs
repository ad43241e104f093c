//! What the backend says of itself, with what the sidecar adds to it: the manifest names the
//! extension, health has an object of ours. Every other byte stays.

use bytes::Bytes;
use http::Response;
use http::request::Parts;

use crate::answers::body::Body;
use crate::answers::respond::{self, Fault, refuse};
use crate::desk::Proxy;
use crate::inquiry::calls;
use crate::json::{Json, Kind, Splice};
use crate::policy::Accept;
use crate::wire::ojs::REPLY_DEPTH;

/// The extensions that the sidecar adds: what backends call the capability, and the end of its name.
const EXTENSIONS: [(&str, &str); 2] = [
    ("rate_limiting", "rate-limiting"),
    ("backpressure", "backpressure"),
];

/// `GET /ojs/manifest`.
pub(crate) async fn manifest(proxy: &Proxy, parts: Box<Parts>) -> Response<Body> {
    let call = calls::plain_call(proxy, &parts, Bytes::new());
    let mut answer = calls::call(proxy, "manifest", call).await;
    let accept = proxy.sidecar.live().policies.accept();
    if let Ok(reply) = &mut answer
        && reply.status.is_success()
        && let Some(manifest) = with_extensions(&reply.body, accept)
    {
        reply.body = manifest.into();
    }
    respond::answer(&parts, answer, Fault::backend)
}

/// `GET /ojs/v1/health`: the backend's answer, whatever it says, with `throttle` in it.
pub(crate) async fn health(proxy: &Proxy, parts: Box<Parts>) -> Response<Body> {
    let sidecar = &proxy.sidecar;
    let call = calls::plain_call(proxy, &parts, Bytes::new());
    let mut reply = match calls::call(proxy, "health", call).await {
        Ok(reply) => reply,
        Err(error) => return refuse(&parts, Fault::backend(&error)),
    };
    let slots = sidecar.jobs_out().await;
    let status = match &slots {
        _ if sidecar.tasks.draining.is_cancelled() => "draining",
        _ if sidecar.store.is_lost() => "store_lost",
        Ok(_) => "ok",
        Err(_) => "store_unavailable",
    };
    let slots = slots.map_or_else(|_| "null".to_owned(), |slots| slots.to_string());
    let file = match sidecar.file.is_in_force() {
        true => "in_force",
        false => "refused",
    };
    let throttle = format!(
        r#"{{"status":"{status}","config_file":"{file}","held":{},"slots":{slots},"near_bound":{},"blocked":{},"version":"{}"}}"#,
        sidecar.hold.len(),
        sidecar.admit.pressure.near_bound(),
        sidecar.admit.pressure.blocked(),
        env!("CARGO_PKG_VERSION"),
    );
    if let Ok(health) = Json::parse(&reply.body, REPLY_DEPTH)
        && health.kind() == Kind::Object
    {
        let mut splice = Splice::new();
        splice.set(health, "throttle", &throttle);
        reply.body = splice.apply(&reply.body).into();
    }
    respond::theirs(reply)
}

/// A manifest that names the extensions; `None`: it is no JSON object. Whoever ignores the limits that jobs bring may not
/// declare the first (rate-limiting text, 12.1).
fn with_extensions(text: &[u8], accept: Accept) -> Option<Vec<u8>> {
    let mut manifest = text.to_vec();
    let undeclared = usize::from(accept == Accept::Ignore);
    for (capability, name) in EXTENSIONS.into_iter().skip(undeclared) {
        manifest = with_extension(&manifest, capability, name)?;
    }
    Some(manifest)
}

fn with_extension(text: &[u8], capability: &str, name: &str) -> Option<Vec<u8>> {
    let uri = format!("urn:ojs:ext:{name}");
    let entry = format!(r#"{{"name":"{name}","uri":"{uri}","version":"1.0.0-rc.1"}}"#);
    let manifest = Json::parse(text, REPLY_DEPTH).ok()?;
    if manifest.kind() != Kind::Object {
        return None;
    }
    let mut splice = Splice::new();
    // Some backends list the names of what they can do, others say yes or no to each.
    match manifest.get_exact("capabilities") {
        Some(list) if list.kind() == Kind::Array => {
            append(list, &format!("\"{capability}\""), &mut splice, |item| {
                item.text().as_deref() == Some(capability)
            });
        }
        _ => splice.set_in(manifest, "capabilities", &[(capability, "true".to_owned())]),
    }
    let extensions = manifest.get_exact("extensions");
    let official = extensions.and_then(|extensions| extensions.get_exact("official"));
    let mut places = extensions.into_iter().chain(official);
    match places.find(|place| place.kind() == Kind::Array) {
        Some(list) => add_extension(list, &uri, &entry, &mut splice),
        None => {
            let ours = [("official", format!("[{entry}]"))];
            splice.set_in(manifest, "extensions", &ours);
        }
    }
    Some(splice.apply(text))
}

/// Adds an extension to a list of URIs or of objects, as its first item is.
fn add_extension(list: Json<'_>, uri: &str, entry: &str, splice: &mut Splice) {
    let first = list.items().next();
    let item = match first.is_some_and(|first| first.kind() == Kind::String) {
        true => format!("\"{uri}\""),
        false => entry.to_owned(),
    };
    append(list, &item, splice, |item| {
        let of_item = item.get_exact("uri").unwrap_or(item);
        of_item.text().as_deref() == Some(uri)
    });
}

/// Adds an item to a list unless it is there.
fn append(list: Json<'_>, item: &str, splice: &mut Splice, is_it: impl Fn(Json<'_>) -> bool) {
    if list.items().any(is_it) {
        return;
    }
    let (end, comma) = match list.items().last() {
        Some(last) => (last.range().end, ","),
        None => (list.range().start + 1, ""),
    };
    splice.replace(end..end, format!("{comma}{item}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(text: &str) -> String {
        String::from_utf8(with_extensions(text.as_bytes(), Accept::Tighten).unwrap()).unwrap()
    }

    #[test]
    fn both_shapes_of_manifests_name_the_extensions() {
        let both = r#"{"name":"rate-limiting","uri":"urn:ojs:ext:rate-limiting","version":"1.0.0-rc.1"},{"name":"backpressure","uri":"urn:ojs:ext:backpressure","version":"1.0.0-rc.1"}"#;
        let object = r#"{ "n": 1.0, "capabilities": {"rate_limiting": false, "x":true}, "extensions":{"official": [{"uri":"urn:other"} ]} }"#;
        assert_eq!(
            manifest(object),
            format!(
                r#"{{ "n": 1.0, "capabilities": {{"rate_limiting": true, "x":true,"backpressure":true}}, "extensions":{{"official": [{{"uri":"urn:other"}},{both} ]}} }}"#
            )
        );
        let list = r#"{"capabilities":["batch", "retry" ],"levels":[0,1]}"#;
        assert_eq!(
            manifest(list),
            format!(
                r#"{{"capabilities":["batch", "retry","rate_limiting","backpressure" ],"levels":[0,1],"extensions":{{"official":[{both}]}}}}"#
            )
        );
        let lists = r#"{"capabilities":[],"extensions":["urn:a"]}"#;
        assert_eq!(
            manifest(lists),
            r#"{"capabilities":["rate_limiting","backpressure"],"extensions":["urn:a","urn:ojs:ext:rate-limiting","urn:ojs:ext:backpressure"]}"#
        );
        assert_eq!(
            manifest("{}"),
            format!(
                r#"{{"capabilities":{{"rate_limiting":true,"backpressure":true}},"extensions":{{"official":[{both}]}}}}"#
            )
        );
        assert_eq!(with_extensions(b"[]", Accept::Tighten), None);
        assert_eq!(with_extensions(b"<html>", Accept::Tighten), None);
    }

    #[test]
    fn one_that_names_them_already_stays_as_it_is() {
        for text in [
            r#"{"capabilities":["rate_limiting","backpressure"],"extensions":["urn:ojs:ext:backpressure","urn:ojs:ext:rate-limiting"]}"#,
            r#"{"capabilities":{"rate_limiting":true,"backpressure":true},"extensions":{"official":[{"uri":"urn:ojs:ext:rate-limiting","version":"2"},{"uri":"urn:ojs:ext:backpressure"}]}}"#,
        ] {
            assert_eq!(manifest(text), text);
        }
    }
}
