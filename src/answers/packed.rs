//! Answers in gzip, for those who take that: what a browser gets through a tunnel.

use std::io::Write as _;
use std::mem;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::{HeaderMap, HeaderValue, header};

/// Packs one answer, part by part.
#[derive(Debug)]
pub struct Packer(GzEncoder<Vec<u8>>);

impl Packer {
    /// `None`: who asks so takes no gzip. Else the headers of the answer say what it is.
    pub fn new(asked: &HeaderMap, answer: &mut HeaderMap) -> Option<Packer> {
        let takes = asked.get_all(header::ACCEPT_ENCODING).iter();
        let takes = takes.filter_map(|value| value.to_str().ok());
        let mut codings = takes.flat_map(|value| value.split(','));
        let is_gzip = |coding: &str| {
            let (name, rest) = coding.split_once(';').unwrap_or((coding, "q=1"));
            let named = rest.trim().strip_prefix(['q', 'Q']);
            let weight = named.and_then(|rest| rest.strip_prefix('='));
            let is_taken = weight.and_then(|q| q.parse().ok()) > Some(0.0);
            name.trim().eq_ignore_ascii_case("gzip") && is_taken
        };
        codings.any(is_gzip).then(|| {
            answer.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            Packer(GzEncoder::new(Vec::new(), Compression::fast()))
        })
    }

    /// The next part, so that whoever reads it has all of it at once.
    pub fn part(&mut self, text: &[u8]) -> Bytes {
        // Writing to memory cannot fail.
        let _ = self.0.write_all(text).and_then(|()| self.0.flush());
        mem::take(self.0.get_mut()).into()
    }

    /// The only part.
    pub fn whole(mut self, text: &[u8]) -> Bytes {
        // Writing to memory cannot fail.
        let _ = self.0.write_all(text);
        self.0.finish().unwrap_or_default().into()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::GzDecoder;

    use super::*;

    #[test]
    fn who_takes_gzip_reads_each_part_as_it_comes() {
        let mut answer = HeaderMap::new();
        let asked = |text: &'static str| {
            let value = HeaderValue::from_static(text);
            HeaderMap::from_iter([(header::ACCEPT_ENCODING, value)])
        };
        for other in ["br, deflate", "gzip;q=0", "GZIP; Q=0.00", "x-gzip", ""] {
            assert!(Packer::new(&asked(other), &mut answer).is_none(), "{other}");
        }
        assert!(answer.is_empty());
        for gzip in ["GZip", "gzip;Q=1", "gzip; q=0.001"] {
            let (asked, mut answer) = (asked(gzip), HeaderMap::new());
            assert!(Packer::new(&asked, &mut answer).is_some(), "{gzip}");
        }
        let mut packer = Packer::new(&asked("br, gzip;q=0.5"), &mut answer).unwrap();
        assert_eq!(answer[header::CONTENT_ENCODING], "gzip");
        let (mut packed, mut read) = (Vec::new(), String::new());
        for (part, all) in [("one ", "one "), ("two", "one two")] {
            packed.extend_from_slice(&packer.part(part.as_bytes()));
            read.clear();
            // The stream goes on, so its end lacks.
            GzDecoder::new(&packed[..])
                .read_to_string(&mut read)
                .unwrap_err();
            assert_eq!(read, all);
        }
        let whole = Packer::new(&asked("gzip"), &mut answer)
            .unwrap()
            .whole(b"page");
        read.clear();
        GzDecoder::new(&whole[..])
            .read_to_string(&mut read)
            .unwrap();
        assert_eq!(read, "page");
    }
}
