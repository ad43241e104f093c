//! The page for people: one file with its style and script in it, and the policy that lets a browser run only those.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, header};
use sha2::{Digest, Sha256};

use crate::answers::body::Body;
use crate::answers::packed::Packer;

/// The whole page.
const PAGE: &str = include_str!("page.html");

/// The policy of the page: nothing but its own style and script, which are known by their hashes, and only this port
/// is asked.
pub(super) fn security_policy() -> HeaderValue {
    let hash = |tag: &str| {
        let text = inside(tag).unwrap_or_default();
        format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)))
    };
    let policy = format!(
        "default-src 'none'; script-src {}; style-src {}; connect-src 'self'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'",
        hash("script"),
        hash("style")
    );
    // Base64 has no letter that a header cannot have.
    HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static("default-src 'none'"))
}

/// What stands in the page's only element of this tag.
fn inside(tag: &str) -> Option<&'static str> {
    let (_, after) = PAGE.split_once(&format!("<{tag}>"))?;
    after.split_once(&format!("</{tag}>")).map(|(text, _)| text)
}

/// The page, for who asks with these headers.
pub(super) fn reply(asked: &HeaderMap, policy: &HeaderValue) -> Response<Body> {
    let mut page = Response::new(Body::empty());
    *page.body_mut() = match Packer::new(asked, page.headers_mut()) {
        Some(packer) => packer.whole(PAGE.as_bytes()).into(),
        None => Bytes::from_static(PAGE.as_bytes()).into(),
    };
    let text = |value| HeaderValue::from_static(value);
    for (name, value) in [
        (header::CONTENT_TYPE, text("text/html; charset=utf-8")),
        (header::CONTENT_SECURITY_POLICY, policy.clone()),
        (header::CACHE_CONTROL, text("no-store")),
        (header::REFERRER_POLICY, text("no-referrer")),
        (header::X_CONTENT_TYPE_OPTIONS, text("nosniff")),
    ] {
        page.headers_mut().insert(name, value);
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_one_small_file() {
        assert!(PAGE.len() <= 150 * 1024, "{} bytes", PAGE.len());
        for tag in ["script", "style"] {
            assert_eq!(PAGE.matches(&format!("<{tag}")).count(), 1);
            assert!(inside(tag).is_some_and(|text| !text.is_empty()), "{tag}");
        }
    }
}
