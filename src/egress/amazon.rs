//! Refusals as SDKs of AWS read them: by what they find in no JSON of ours they know neither why nor that they may come
//! back.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};

use crate::answers::body::Body;
use crate::answers::respond::Fault;
use crate::wire::ojs;

/// How the login of a signed call begins (AWS Signature Version 4, and 4A).
const SIGNED: &[u8] = b"AWS4-";
/// Has the code where a protocol of AWS has JSON.
const ERROR_TYPE: HeaderName = HeaderName::from_static("x-amzn-errortype");
/// The code at which each of their SDKs comes back.
const COME_BACK: &str = "ThrottlingException";

/// How a signed call of AWS speaks, and so reads what it is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AmazonProtocol {
    Json,
    Cbor,
    /// What is called by forms, such as SES and SNS.
    Xml,
    /// XML in which the error stands alone.
    S3,
    /// XML with a list of errors.
    Ec2,
}

impl AmazonProtocol {
    /// That of a call with these headers; `None`: it is not signed for AWS.
    pub(super) fn of(headers: &HeaderMap) -> Option<AmazonProtocol> {
        let login = headers.get(header::AUTHORIZATION)?.as_bytes();
        if !login.starts_with(SIGNED) {
            return None;
        }
        let kind = headers.get(header::CONTENT_TYPE);
        let kind = kind.map_or(&b""[..], HeaderValue::as_bytes);
        let has = |text: &[u8], word: &str| memchr::memmem::find(text, word.as_bytes()).is_some();
        // What is put into S3 may be of any type.
        Some(match () {
            () if has(login, "/s3/aws4_") || has(login, "/s3express/aws4_") => AmazonProtocol::S3,
            () if has(login, "/ec2/aws4_") => AmazonProtocol::Ec2,
            () if has(kind, "json") => AmazonProtocol::Json,
            () if has(kind, "cbor") => AmazonProtocol::Cbor,
            () => AmazonProtocol::Xml,
        })
    }

    /// The fault as such a call reads it.
    pub(super) fn reply(self, fault: &Fault, id: Option<HeaderValue>) -> Response<Body> {
        let comes_back = fault.status == StatusCode::TOO_MANY_REQUESTS && fault.retryable;
        let code = if comes_back { COME_BACK } else { fault.code };
        let reply = fault.reply(id);
        let id = reply.headers().get(ojs::REQUEST_ID);
        let id = id.and_then(|id| id.to_str().ok()).unwrap_or_default();
        let (kind, body) = match self {
            AmazonProtocol::Json => {
                let said = serde_json::json!({"__type": code, "message": fault.message});
                ("application/json", said.to_string().into_bytes())
            }
            AmazonProtocol::Cbor => ("application/cbor", cbor(code)),
            AmazonProtocol::Xml | AmazonProtocol::S3 | AmazonProtocol::Ec2 => {
                let (message, id) = (escaped(&fault.message), escaped(id));
                let said = format!("<Code>{code}</Code><Message>{message}</Message>");
                let said = match self {
                    AmazonProtocol::S3 => {
                        format!("<Error>{said}<RequestId>{id}</RequestId></Error>")
                    }
                    AmazonProtocol::Ec2 => format!(
                        "<Response><Errors><Error>{said}</Error></Errors><RequestID>{id}</RequestID></Response>"
                    ),
                    _ => format!(
                        "<ErrorResponse><Error><Type>Sender</Type>{said}</Error>\
                         <RequestId>{id}</RequestId></ErrorResponse>"
                    ),
                };
                ("text/xml", said.into_bytes())
            }
        };
        let mut reply = reply.map(|_| Body::from(bytes::Bytes::from(body)));
        let headers = reply.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        headers.insert(ERROR_TYPE, HeaderValue::from_static(code));
        reply
    }
}

/// A map of one text, as RFC 8949 writes it.
fn cbor(code: &str) -> Vec<u8> {
    const MAP_OF_ONE: u8 = 0xa1;
    /// Of a length that the next byte has.
    const TEXT: u8 = 0x78;
    // Codes are shorter than 256 bytes.
    let text = |text: &str| [&[TEXT, text.len() as u8], text.as_bytes()].concat();
    [vec![MAP_OF_ONE], text("__type"), text(code)].concat()
}

/// As text of XML, which may have no control characters.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            char if char.is_control() => escaped.push('?'),
            char => escaped.push(char),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answers::respond::CODES;

    fn headers(login: &'static str, kind: Option<&'static str>) -> HeaderMap {
        let kind = kind.map(|kind| (header::CONTENT_TYPE, kind));
        let lines = [(header::AUTHORIZATION, login)].into_iter().chain(kind);
        lines
            .map(|(name, value)| (name, HeaderValue::from_static(value)))
            .collect()
    }

    #[test]
    fn who_signs_for_aws_is_told_in_its_own_words() {
        const LOGIN: &str = "AWS4-HMAC-SHA256 Credential=A/20261130/us-east-1/ses/aws4_request";
        let of = |kind| AmazonProtocol::of(&headers(LOGIN, kind));
        let form = "application/x-www-form-urlencoded; charset=utf-8";
        assert_eq!(of(None), Some(AmazonProtocol::Xml));
        assert_eq!(of(Some(form)), Some(AmazonProtocol::Xml));
        assert_eq!(
            of(Some("application/x-amz-json-1.0")),
            Some(AmazonProtocol::Json)
        );
        assert_eq!(of(Some("application/cbor")), Some(AmazonProtocol::Cbor));
        assert_eq!(AmazonProtocol::of(&headers("Bearer sk", Some(form))), None);

        let fault = Fault::new("rate_limited", "key <a&b>\u{1b} is limited")
            .later_exactly(std::time::Duration::from_secs(7));
        let told = |of: AmazonProtocol, fault: &Fault| {
            let reply = of.reply(fault, Some(HeaderValue::from_static("r<1")));
            (
                reply.headers().clone(),
                reply.into_body().as_whole().to_vec(),
            )
        };
        let (headers, body) = told(AmazonProtocol::Xml, &fault);
        assert_eq!(headers[header::RETRY_AFTER], "7");
        assert_eq!(headers[header::CONTENT_TYPE], "text/xml");
        assert_eq!(headers[ERROR_TYPE], COME_BACK);
        assert_eq!(
            String::from_utf8(body).unwrap(),
            "<ErrorResponse><Error><Type>Sender</Type><Code>ThrottlingException</Code>\
             <Message>key &lt;a&amp;b&gt;? is limited</Message></Error><RequestId>r&lt;1</RequestId></ErrorResponse>"
        );
        // S3 and EC2 wrap it as nobody else does: Go's SDK reads no other form.
        for (service, begins, ends) in [
            (
                "s3",
                "<Error><Code>",
                "<RequestId>r&lt;1</RequestId></Error>",
            ),
            (
                "ec2",
                "<Response><Errors><Error><Code>",
                "</Error></Errors><RequestID>r&lt;1</RequestID></Response>",
            ),
        ] {
            let login = LOGIN.replace("/ses/", &format!("/{service}/")) + ", SignedHeaders=host";
            let login = HeaderValue::from_str(&login).unwrap();
            // Of what is put into S3 this is the type.
            let kind = HeaderValue::from_static("application/json");
            let signed = [(header::AUTHORIZATION, login), (header::CONTENT_TYPE, kind)];
            let signed = HeaderMap::from_iter(signed);
            let (_, body) = told(AmazonProtocol::of(&signed).unwrap(), &fault);
            let body = String::from_utf8(body).unwrap();
            let code = format!("{begins}ThrottlingException</Code><Message>key &lt;a&amp;b&gt;?");
            assert!(body.starts_with(&code) && body.ends_with(ends), "{body}");
        }
        let (_, body) = told(AmazonProtocol::Json, &fault);
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["__type"], COME_BACK);
        assert_eq!(body["message"], "key <a&b>\u{1b} is limited");
        let (_, body) = told(AmazonProtocol::Cbor, &fault);
        assert_eq!(body, b"\xa1\x78\x06__type\x78\x13ThrottlingException");
        // What nobody is to try again has its own code.
        let (headers, _) = told(AmazonProtocol::Xml, &Fault::new("budget_spent", "gone"));
        assert_eq!(headers[ERROR_TYPE], "budget_spent");
        assert!(CODES.iter().all(|code| code.word.len() < 256));
    }
}
