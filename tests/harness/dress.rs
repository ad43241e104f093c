//! Replies in forms that not everybody reads: compressed, with something before or behind them, very deep.

use std::io::Write;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};

/// A form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dress {
    Gzip,
    /// `deflate` as RFC 9110 has it, with the head of zlib.
    Deflate,
    /// `deflate` as many servers send it, without.
    BareDeflate,
    Brotli,
    Zstd,
    /// Two codings, one over the other.
    Twice,
    /// A member that is 100,000 arrays deep.
    Deep,
    /// Labelled as compressed, and plain.
    Label,
    /// Compressed, and cut.
    Broken,
    /// A coding that nobody knows.
    Unknown,
    /// Something behind the value.
    Trailing,
    /// A byte order mark before it.
    Marked,
    /// The list of jobs without the object around it.
    List,
    /// A number that JSON does not have, as some backends write back one that is too large.
    Infinity,
    /// Text in two bytes a character.
    Wide,
    /// Statistics of a queue as the HTTP binding writes them.
    Binding,
}

impl Dress {
    /// Those that every HTTP client undoes, or that are JSON.
    pub const READ: [Dress; 8] = [
        Dress::Gzip,
        Dress::Deflate,
        Dress::BareDeflate,
        Dress::Brotli,
        Dress::Zstd,
        Dress::Twice,
        Dress::Deep,
        Dress::Label,
    ];

    /// Those that cannot be read, and what each is called.
    pub const UNREAD: [(Dress, &str); 7] = [
        (Dress::Broken, "\"gzip\""),
        (Dress::Unknown, "\"pack200\""),
        (Dress::Trailing, "something behind it"),
        (Dress::Marked, "byte order mark"),
        (Dress::List, "an array"),
        (Dress::Infinity, "such as NaN or Infinity"),
        (Dress::Wide, "UTF-16"),
    ];

    /// A reply in this form, and what it says of its coding.
    pub fn put_on(self, body: &Bytes) -> (Option<&'static str>, Bytes) {
        let text = || String::from_utf8(body.to_vec()).unwrap();
        match self {
            Dress::Gzip => (Some("gzip"), gzip(body)),
            Dress::Deflate => {
                let mut packed = ZlibEncoder::new(Vec::new(), Compression::fast());
                packed.write_all(body).unwrap();
                (Some("deflate"), packed.finish().unwrap().into())
            }
            Dress::BareDeflate => {
                let mut packed = DeflateEncoder::new(Vec::new(), Compression::fast());
                packed.write_all(body).unwrap();
                (Some("deflate"), packed.finish().unwrap().into())
            }
            Dress::Brotli => (Some("br"), brotli(body)),
            Dress::Zstd => (Some("zstd"), zstd(body)),
            Dress::Twice => (Some("zstd, x-gzip"), gzip(&zstd(body))),
            Dress::Deep => {
                let deep = ["[".repeat(100_000), "]".repeat(100_000)].concat();
                let text = text();
                let (before, last) = text.trim_end().split_at(text.trim_end().len() - 1);
                (None, format!("{before},\"x\":{deep}{last}").into())
            }
            Dress::Label => (Some("gzip, utf-8"), body.clone()),
            Dress::Broken => (Some("gzip"), gzip(body).split_to(body.len() / 4)),
            Dress::Unknown => (Some("pack200"), gzip(body)),
            Dress::Trailing => (None, [body, b" {}".as_slice()].concat().into()),
            Dress::Marked => (None, [b"\xEF\xBB\xBF", &body[..]].concat().into()),
            Dress::List => {
                let whole: serde_json::Value = serde_json::from_slice(body).unwrap();
                (None, whole["jobs"].to_string().into())
            }
            Dress::Infinity => (None, text().replace("[\"far\"]", "[-Infinity]").into()),
            Dress::Wide => {
                let wide = text().encode_utf16().flat_map(u16::to_le_bytes).collect();
                (None, Vec::into(wide))
            }
            Dress::Binding => {
                let whole: serde_json::Value = serde_json::from_slice(body).unwrap();
                let queue = &whole["queue"];
                let stats = serde_json::json!({
                    "queue": queue["name"],
                    "status": if queue["paused"] == true { "paused" } else { "active" },
                    "stats": { "available": queue["available"], "active": queue["active"] },
                });
                (None, stats.to_string().into())
            }
        }
    }
}

fn gzip(body: &[u8]) -> Bytes {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(body).unwrap();
    packed.finish().unwrap().into()
}

/// Brotli without compression: one block of bytes as they are (RFC 7932, 9.2), and an empty last one.
fn brotli(body: &[u8]) -> Bytes {
    let length = u32::try_from(body.len()).unwrap();
    assert!((1..=1 << 16).contains(&length));
    let head = (((length - 1) << 4) | (1 << 20)).to_le_bytes();
    [&head[..3], body, &[3]].concat().into()
}

/// Zstandard without compression: a head with the length, and one raw block (RFC 8878, 3.1.1).
fn zstd(body: &[u8]) -> Bytes {
    let length = u32::try_from(body.len()).unwrap();
    assert!(length <= 1 << 17);
    let block = ((length << 3) | 1).to_le_bytes();
    let head = [&[0x28, 0xB5, 0x2F, 0xFD, 0xA0], &length.to_le_bytes()[..]].concat();
    [&head, &block[..3], body].concat().into()
}
