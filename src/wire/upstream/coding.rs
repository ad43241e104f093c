//! Undoes what a backend, or something before it, packs although it was asked not to.

use std::io::Read;

use brotli_decompressor::Decompressor;
use bytes::Bytes;
use flate2::bufread::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use http::header::{self, HeaderMap};
use ruzstd::decoding::StreamingDecoder;
use tokio::task::yield_now;

use super::error::UpstreamError;

/// So many bytes are undone at once: then others have their turn.
const PART: usize = 64 * 1024;

/// A content coding (RFC 9110, 8.4.1; RFC 7932; RFC 8878).
#[derive(Clone, Copy)]
enum Coding {
    Gzip,
    Deflate,
    Brotli,
    Zstd,
}

impl Coding {
    fn named(name: &str) -> Option<Coding> {
        match name.to_ascii_lowercase().as_str() {
            "gzip" | "x-gzip" => Some(Coding::Gzip),
            "deflate" => Some(Coding::Deflate),
            "br" => Some(Coding::Brotli),
            "zstd" => Some(Coding::Zstd),
            _ => None,
        }
    }

    /// Reads what was packed; `None`: it was not.
    fn reader(self, packed: &[u8]) -> Option<Box<dyn Read + Send + '_>> {
        Some(match self {
            Coding::Gzip => Box::new(MultiGzDecoder::new(packed)),
            // Many servers leave out the head of zlib.
            Coding::Deflate if has_zlib_head(packed) => Box::new(ZlibDecoder::new(packed)),
            Coding::Deflate => Box::new(DeflateDecoder::new(packed)),
            Coding::Brotli => Box::new(Decompressor::new(packed, PART)),
            Coding::Zstd => Box::new(StreamingDecoder::new(packed).ok()?),
        })
    }
}

/// Whether a text begins as RFC 1950 has it.
fn has_zlib_head(packed: &[u8]) -> bool {
    packed.first_chunk().is_some_and(|[first, second]| {
        first & 0x0f == 8 && u16::from_be_bytes([*first, *second]).is_multiple_of(31)
    })
}

/// Whether a body is packed, so that nobody here can read it as it stands.
pub fn is_packed(headers: &HeaderMap) -> bool {
    codings(headers).is_none_or(|codings| !codings.is_empty())
}

/// The codings of a body, the outermost last; `None`: there is one that nobody here knows.
fn codings(headers: &HeaderMap) -> Option<Vec<Coding>> {
    let lines = headers.get_all(header::CONTENT_ENCODING).iter();
    let mut all = Vec::new();
    for line in lines {
        // Empty ones count as none (RFC 9110, 5.6.1).
        let names = line.to_str().ok()?.split(',').map(str::trim);
        for name in names.filter(|name| !name.is_empty() && !name.eq_ignore_ascii_case("identity"))
        {
            all.push(Coding::named(name)?);
        }
    }
    Some(all)
}

/// Undoes the codings of a reply that was read whole, of at most `cap` bytes after each of them. What cannot be undone
/// stays as it came, with its header: whoever must read it says so.
///
/// # Errors
/// It is larger than `cap`.
pub(super) async fn unpack(
    headers: &mut HeaderMap,
    body: Bytes,
    cap: usize,
) -> Result<Bytes, UpstreamError> {
    if !headers.contains_key(header::CONTENT_ENCODING) || body.is_empty() {
        return Ok(body);
    }
    let Some(codings) = codings(headers) else {
        return Ok(body);
    };
    let mut plain = body.clone();
    for coding in codings.into_iter().rev() {
        match undone(coding, &plain, cap).await? {
            Some(inner) => plain = inner,
            None => return Ok(body),
        }
    }
    headers.remove(header::CONTENT_ENCODING);
    Ok(plain)
}

/// Undoes one coding; `None`: it is not packed so.
async fn undone(coding: Coding, packed: &[u8], cap: usize) -> Result<Option<Bytes>, UpstreamError> {
    let Some(mut reader) = coding.reader(packed) else {
        return Ok(None);
    };
    let (mut plain, mut part) = (Vec::new(), vec![0; PART]);
    loop {
        match reader.read(&mut part) {
            Ok(0) => return Ok(Some(plain.into())),
            Ok(n) if plain.len() + n > cap => return Err(UpstreamError::TooLarge(cap)),
            Ok(n) => plain.extend_from_slice(part.get(..n).unwrap_or_default()),
            Err(_) => return Ok(None),
        }
        yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    #[test]
    fn a_body_is_packed_where_a_coding_says_so() {
        for (codings, packed) in [
            ("| , ", false),
            ("identity,|Identity", false),
            ("|gzip", true),
            ("identity, , br", true),
        ] {
            let mut headers = HeaderMap::new();
            for coding in codings.split('|') {
                let coding = http::HeaderValue::from_static(coding);
                headers.append(header::CONTENT_ENCODING, coding);
            }
            assert_eq!(is_packed(&headers), packed, "{codings}");
        }
    }

    async fn plain(coding: &str, packed: &[u8]) -> Option<Bytes> {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_ENCODING, coding.parse().unwrap());
        let packed = Bytes::copy_from_slice(packed);
        let body = unpack(&mut headers, packed, 240).await.unwrap();
        let is_undone = !headers.contains_key(header::CONTENT_ENCODING);
        is_undone.then_some(body)
    }

    /// As Node's zlib and the `zstd` command pack the same text.
    #[tokio::test]
    async fn what_others_pack_is_undone_and_what_is_broken_stays() {
        let text = "{\"jobs\":[]} ".repeat(20);
        for (coding, packed) in [
            ("gzip", "H4sIAAAAAAAAA6tWyspPKlayio6tVageAWwAah67xfAAAAA="),
            ("deflate", "eJyrVsrKTypWsoqOrVWoHgFsAJvfT7E="),
            ("deflate", "q1bKyk8qVrKKjq1VqB4BbAA="),
            ("br", "G+8A+B0HbizHRrN4ZsaXInN7rbPVpaZBxN76xICxgJ6dwQY="),
            ("zstd", "KLUv/QBYnQAAYHsiam9icyI6W119IAEA4VMlCQ=="),
            ("zstd", "KLUv/QRYnQAAYHsiam9icyI6W119IAEA4VMlCZq5SFw="),
        ] {
            let packed = STANDARD.decode(packed).unwrap();
            assert_eq!(plain(coding, &packed).await.unwrap(), text, "{coding}");
            let half = packed.get(..packed.len() / 2).unwrap();
            assert_eq!(plain(coding, half).await, None, "{coding}");
        }
    }
}
