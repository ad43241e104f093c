//! One event: as it happened, and as it is sent.

use bytes::Bytes;

use ojs_limit::Timestamp;

/// Something that happened.
#[derive(Clone, Copy, Default, Debug)]
pub struct NewEvent<'a> {
    /// Its type, one of [`KINDS`](super::KINDS).
    pub kind: &'static str,
    /// The subject: the id of a job, a key, or a queue.
    pub subject: &'a str,
    /// The queue, if it happened in one.
    pub queue: Option<&'a str>,
    /// The id of the job, if it happened to one.
    pub job: Option<&'a str>,
    /// The type of that job.
    pub job_type: Option<&'a str>,
    /// The scope that claimed that job, if it is known.
    pub scope: Option<u64>,
    /// The members of `data`, exactly.
    pub data: &'a [(&'static str, EventValue<'a>)],
}

/// A member of an event's `data`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventValue<'a> {
    /// A string.
    Text(&'a str),
    /// A number.
    Number(u64),
    /// A time, written as RFC 3339.
    Time(Timestamp),
}

/// An encoded event, and the members that filters look at.
#[derive(Debug)]
pub struct EncodedEvent {
    /// Its id: `evt_` and a UUIDv7.
    pub id: String,
    pub(super) kind: &'static str,
    pub(super) queue: Option<Box<str>>,
    /// The id of the job, if it is about one.
    pub job: Option<Box<str>>,
    pub(super) job_type: Option<Box<str>>,
    /// The scope that claimed its job, if it has one and that is known.
    pub scope: Option<u64>,
    /// Its `id:`, `event:` and `data:` lines, and the empty line.
    pub frame: Bytes,
}

impl EncodedEvent {
    /// Its envelope, as JSON.
    pub fn envelope(&self) -> &[u8] {
        let begin = memchr::memmem::find(&self.frame, b"\ndata: ");
        let data = begin.and_then(|begin| self.frame.get(begin + "\ndata: ".len()..));
        data.unwrap_or_default().trim_ascii_end()
    }

    /// The frame under another id, for a stream whose ids must carry more.
    pub fn frame_as(&self, id: &str) -> Bytes {
        let rest = self.frame.get("id: ".len() + self.id.len()..);
        [b"id: ", id.as_bytes(), rest.unwrap_or_default()]
            .concat()
            .into()
    }
}
