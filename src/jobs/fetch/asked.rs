//! A FETCH as its worker sent it, and as the backend is asked.

use std::collections::HashSet;
use std::hash::Hash;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http::request::Parts;
use smallvec::SmallVec;

use crate::answers::respond::{self, Fault};
use crate::desk::shadow::Went;
use crate::hold::Lane;
use crate::inquiry::job::{self, DEFAULT_VISIBILITY};
use crate::json::{Json, JsonError, Kind, Name, Reader, quote_to};
use crate::wire::ojs::DEPTH;
use crate::wire::tick;
use crate::wire::upstream::{Call, Path};

/// The most queues in a FETCH where limits or bounds are in force: each may cost the backend a question, and room
/// here.
const MOST_QUEUES: usize = 1_000;

/// What a FETCH asks for.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    /// The queues, in order; at least one.
    pub(super) queues: Vec<Arc<str>>,
    /// The most jobs.
    pub(super) count: usize,
    /// The visibility it asks for.
    pub(super) visibility: Option<Duration>,
    places: AskedPlaces,
}

/// What of a FETCH is said to the backend in other words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Queues,
    Count,
    /// `batch_size`, which official backends do not read; to us it is `count` where there is none.
    Batch,
    WorkerId,
}

/// Where a FETCH says what is said in other words, in the order of its text.
#[derive(Debug, Default, Clone)]
struct AskedPlaces {
    found: SmallVec<[(What, Range<usize>); 3]>,
    /// Where the object ends; there is at least one member in it.
    end: usize,
}

impl What {
    fn of(name: Name<'_>) -> Option<What> {
        let each = [What::Queues, What::Count, What::Batch, What::WorkerId];
        each.into_iter().find(|what| name.folds_to(what.name()))
    }

    fn name(self) -> &'static str {
        match self {
            What::Queues => "queues",
            What::Count => "count",
            What::Batch => "batch_size",
            What::WorkerId => "worker_id",
        }
    }
}

impl AskedPlaces {
    fn said_once(&self, what: What) -> bool {
        let said = self.found.iter().filter(|(found, _)| *found == what);
        said.count() == 1
    }
}

impl Asked {
    /// Reads a FETCH; `None`: it is not one that we understand, and the backend will say so.
    pub(super) fn read(body: &[u8]) -> Option<Asked> {
        let mut reader = Reader::new(body, DEPTH);
        let mut places = AskedPlaces::default();
        let (mut queues, mut count, mut batch) = (None, None, None);
        let mut visibility = None;
        let whole = reader.members(|name, reader| {
            let what = What::of(name);
            let value = match what {
                Some(What::Queues) => names(reader, &mut queues)?,
                _ => reader.value()?,
            };
            match what {
                Some(What::Count) => count = Some(value),
                Some(What::Batch) => batch = Some(value),
                None if name.folds_to("visibility_timeout_ms") => visibility = value.int(),
                _ => {}
            }
            places.found.extend(what.map(|what| (what, value.range())));
            Ok(())
        });
        places.end = whole.ok()?.range().end;
        reader.end().ok()?;
        let count = count.or(batch).filter(|count: &Json<'_>| !count.is_null());
        let visibility = visibility.and_then(|ms| u64::try_from(ms).ok());
        Some(Asked {
            queues: queues.filter(|names| !names.is_empty())?,
            // The backend answers anything else than a whole number by itself; zero and less mean one.
            count: count.map_or(Some(1), |count| count.int())?.clamp(1, 10_000) as usize,
            visibility: visibility.filter(|ms| *ms > 0).map(Duration::from_millis),
            places,
        })
    }

    /// The worker's own id, if it says one in `body`, its text: mostly nobody asks.
    pub(super) fn worker_id(&self, body: &[u8]) -> Option<Arc<str>> {
        let id = Json::parse(self.worker_as_sent(body)?, DEPTH)
            .ok()?
            .text()?;
        Some(Arc::from(&*id))
    }

    /// The JSON text of the worker's own id.
    pub(super) fn worker_as_sent<'b>(&self, body: &'b [u8]) -> Option<&'b [u8]> {
        let mut found = self.places.found.iter();
        let (_, said) = found.rfind(|(what, _)| *what == What::WorkerId)?;
        body.get(said.clone())
    }

    /// Why it is refused where there are limits or bounds: it names too many queues, or has several lists of them,
    /// in whatever spelling: the backend may take another than we.
    pub(super) fn fault(&self) -> Option<Fault> {
        if !self.places.said_once(What::Queues) {
            let why = "is there several times: say everything in one";
            return Some(Fault::field("queues", why));
        }
        (self.queues.len() > MOST_QUEUES).then(|| {
            let why = format!(
                "must be at most {MOST_QUEUES} where limits or bounds are in force; ask for the others in another \
                 FETCH"
            );
            Fault::field("queues", &why)
        })
    }

    /// How many jobs the backend gives at most for it as it came.
    pub(super) fn given(&self) -> usize {
        let mut said = self.places.found.iter();
        match said.any(|(what, _)| *what == What::Count) {
            true => self.count,
            false => 1,
        }
    }

    /// This FETCH, of which `body` is the text, for these queues and this many jobs, under `claim_id` if there is one.
    /// Everything else stays as it came, and so do the queues where they are those that it named.
    pub(super) fn rewritten(
        &self,
        body: &[u8],
        lanes: &[Lane],
        count: usize,
        claim_id: Option<&str>,
    ) -> Vec<u8> {
        let mut text = Vec::with_capacity(body.len() + 64);
        let say = |what: What, text: &mut Vec<u8>| match what {
            What::Queues => {
                for (nth, lane) in lanes.iter().enumerate() {
                    text.push(if nth == 0 { b'[' } else { b',' });
                    quote_to(&lane.queue, text);
                }
                text.push(b']');
            }
            What::Count | What::Batch => {
                text.extend_from_slice(count.to_string().as_bytes());
            }
            What::WorkerId => quote_to(claim_id.unwrap_or_default(), text),
        };
        let asks_all = self.places.said_once(What::Queues)
            && lanes.iter().map(|lane| &lane.queue).eq(&self.queues);
        let said = |what: What| match what {
            What::Queues => !asks_all,
            What::Count | What::Batch => true,
            What::WorkerId => claim_id.is_some(),
        };
        let piece = |range: Range<usize>| body.get(range).unwrap_or_default();
        let mut done = 0;
        let found = self.places.found.iter().filter(|(what, _)| said(*what));
        for (what, range) in found {
            text.extend_from_slice(piece(done..range.start));
            say(*what, &mut text);
            done = range.end;
        }
        // `queues` was found, so there is a member before these.
        let brace = self.places.end.saturating_sub(1);
        text.extend_from_slice(piece(done..brace));
        for what in [What::Count, What::WorkerId] {
            if said(what) && !self.places.found.iter().any(|(found, _)| *found == what) {
                text.extend_from_slice(b",\"");
                text.extend_from_slice(what.name().as_bytes());
                text.extend_from_slice(b"\":");
                say(what, &mut text);
            }
        }
        text.extend_from_slice(piece(brace..body.len()));
        text
    }
}

/// What a worker asked for.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// The FETCH as it came.
    pub(super) body: Bytes,
    pub(super) target: Path,
    pub(super) headers: HeaderMap,
    /// How long the backend may take.
    pub(super) timeout: Duration,
    /// Whose credentials it carries, once that matters.
    pub(super) scope: u64,
    /// Whether the backend gave jobs to them before.
    pub(super) accepted: bool,
    /// The most jobs it may get.
    pub(super) count: usize,
    /// What it says; `None`: nothing that we understand, or that matters so far, and no more can be
    /// claimed in its name.
    pub(super) asked: Option<Asked>,
}

impl Wanted {
    /// One FETCH, as its head and body say it. Path and headers are taken out of the head.
    pub(super) fn take(
        parts: &mut Parts,
        body: Bytes,
        asked: Option<Asked>,
        timeout: Duration,
    ) -> Wanted {
        Wanted {
            body,
            target: Path::Read(std::mem::take(&mut parts.uri)),
            headers: respond::take_headers(parts),
            timeout,
            scope: 0,
            accepted: false,
            count: asked.as_ref().map_or(1, |asked| asked.count),
            asked,
        }
    }

    /// The queues that it names.
    pub(super) fn queues(&self) -> &[Arc<str>] {
        self.asked.as_ref().map_or(&[], |asked| &asked.queues)
    }

    /// What tells its worker from others: credentials and name. Those that say no name are told apart by their queues.
    pub(super) fn worker(&self) -> impl Hash {
        let name = self.asked.as_ref();
        let name = name.and_then(|asked| asked.worker_as_sent(&self.body));
        let queues = name.is_none().then(|| self.queues());
        (self.scope, name, queues)
    }

    /// The visibility it asked for.
    pub(super) fn visibility(&self) -> Option<Duration> {
        self.asked.as_ref()?.visibility
    }

    /// How its jobs go out, if they do so now.
    pub(super) fn went(&self) -> Went {
        Went {
            queues: self.queues().to_vec(),
            tenant: job::tenant(&self.headers).map(Arc::from),
            lasts: self.visibility().unwrap_or(DEFAULT_VISIBILITY),
            at: tick::now(),
        }
    }

    /// Asks for the queues of these lanes only, under the worker's own id; says whether there are any.
    pub(super) fn keep<'a>(&mut self, lanes: impl Iterator<Item = &'a Lane>) -> bool {
        let lanes: Vec<Lane> = lanes.cloned().collect();
        let Some(asked) = self.asked.as_ref().filter(|_| !lanes.is_empty()) else {
            return false;
        };
        let own = asked.worker_id(&self.body);
        let own = own.as_deref();
        self.body = asked.rewritten(&self.body, &lanes, self.count, own).into();
        self.asked = Asked::read(&self.body);
        true
    }

    /// The FETCH with another body.
    pub(super) fn call(&self, body: Bytes) -> Call {
        Call {
            method: http::Method::POST,
            target: self.target.clone(),
            headers: self.headers.clone(),
            body,
            timeout: self.timeout,
        }
    }
}

/// Why a FETCH is refused, as it was read; `limits`: there are some. One that is JSON and cannot be read the backend
/// may understand all the same, and would give as much as it says: more than may be claimed, or held. So may one with
/// something behind its first value, which is all that some read. What is no JSON is the backend's to refuse.
pub(super) fn fault(body: &[u8], asked: Option<&Asked>, limits: bool) -> Option<Fault> {
    match asked {
        None if limits => match Json::parse(body, DEPTH) {
            Err(JsonError::Malformed(_)) => None,
            _ => Some(unread()),
        },
        asked => asked.and_then(Asked::fault),
    }
}

fn unread() -> Fault {
    Fault::bad_request(format!(
        "this FETCH cannot be read, and its jobs may be limited: it must be one JSON object and nothing behind it, at \
         most {DEPTH} levels deep, whose `queues` is a list of at least one name, and whose `count`, if there is one, \
         is a whole number"
    ))
}

/// Reads a list of names; `None` where it is something else.
fn names<'a>(
    reader: &mut Reader<'a>,
    names: &mut Option<Vec<Arc<str>>>,
) -> Result<Json<'a>, JsonError> {
    let mut found = Some(Vec::new());
    let list = reader.items(|reader| {
        let name = reader.value()?.text().map(|name| Arc::from(name.as_ref()));
        found = found.take().zip(name).map(|(mut found, name)| {
            found.push(name);
            found
        });
        Ok(())
    })?;
    *names = found.filter(|_| list.kind() == Kind::Array);
    Ok(list)
}

/// Each name once, where it stands first.
pub(super) fn once(names: &[Arc<str>]) -> impl Iterator<Item = &Arc<str>> {
    let mut seen: HashSet<&str> = HashSet::new();
    names.iter().filter(move |name| seen.insert(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_once() {
        let names = |text: &str| -> Vec<Arc<str>> { text.split(' ').map(Arc::from).collect() };
        for (all, first) in [
            ("a", "a"),
            ("b a b b c a", "b a c"),
            (
                "q w e r t y u i o p a s d f g h j a q w k",
                "q w e r t y u i o p a s d f g h j k",
            ),
        ] {
            let all = names(all);
            let once: Vec<Arc<str>> = once(&all).cloned().collect();
            assert_eq!(once, names(first));
        }
    }

    fn asked_again(body: &str, queues: &[&str], count: usize, claim_id: Option<&str>) -> String {
        let lanes: Vec<Lane> = queues
            .iter()
            .map(|queue| Lane {
                scope: 0,
                queue: Arc::from(*queue),
            })
            .collect();
        let asked = Asked::read(body.as_bytes()).unwrap();
        let text = asked.rewritten(body.as_bytes(), &lanes, count, claim_id);
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn what_is_asked() {
        let body = br#" {"Queues":["a","b\n"],"batch_size":7,"worker_id":"w","visibility_timeout_ms":5e3} "#;
        let asked = Asked::read(body).unwrap();
        assert_eq!(asked.queues, [Arc::from("a"), Arc::from("b\n")]);
        assert_eq!((asked.count, asked.given()), (7, 1));
        assert_eq!(asked.worker_id(body), Some(Arc::from("w")));
        assert_eq!(asked.visibility, Some(Duration::from_secs(5)));
        for (body, count) in [
            (r#"{"queues":["a"]}"#, 1),
            (r#"{"queues":["a"],"count":null,"batch_size":3}"#, 1),
            (r#"{"queues":["a"],"count":-4}"#, 1),
            (r#"{"queues":[1],"queues":["a"],"count":99999}"#, 10_000),
        ] {
            let asked = Asked::read(body.as_bytes()).unwrap();
            assert_eq!((asked.count, asked.given()), (count, count), "{body}");
        }
        for body in [
            "",
            "[]",
            "{}",
            r#"{"queues":[]}"#,
            r#"{"queues":"a"}"#,
            r#"{"queues":["a",1]}"#,
            r#"{"queues":["a"],"count":1.5}"#,
            r#"{"queues":["a"]} x"#,
            r#"{"queues":["a"],"x":}"#,
        ] {
            assert!(Asked::read(body.as_bytes()).is_none(), "{body}");
        }
    }

    #[test]
    fn only_what_is_said_in_other_words_changes() {
        let body = r#" {"x": [1 ], "worker_id" :"w", "queues":["a","b"] ,"count": 5,"y":{} } "#;
        assert_eq!(
            asked_again(body, &["b\""], 2, Some("me")),
            r#" {"x": [1 ], "worker_id" :"me", "queues":["b\""] ,"count": 2,"y":{} } "#
        );
        assert_eq!(
            asked_again(
                r#"{"queues":[ "a" , "\u0062" ],"worker_id":"w"}"#,
                &["a", "b"],
                3,
                Some("me")
            ),
            r#"{"queues":[ "a" , "\u0062" ],"worker_id":"me","count":3}"#
        );
        assert_eq!(
            asked_again(body, &["a", "b"], 5, None),
            r#" {"x": [1 ], "worker_id" :"w", "queues":["a","b"] ,"count": 5,"y":{} } "#
        );
        assert_eq!(
            asked_again(r#"{"queues":["a"] }"#, &["a"], 1, Some("me")),
            r#"{"queues":["a"] ,"count":1,"worker_id":"me"}"#
        );
        assert_eq!(
            asked_again(
                r#"{"queues":[],"queues":["a"],"batch_size":3,"count":4}"#,
                &["a"],
                1,
                None
            ),
            r#"{"queues":["a"],"queues":["a"],"batch_size":1,"count":1}"#
        );
        assert_eq!(
            asked_again(
                r#"{"queues":["a"],"batch_size":3,"worker_id":"w"}"#,
                &["a"],
                2,
                Some("me")
            ),
            r#"{"queues":["a"],"batch_size":2,"worker_id":"me","count":2}"#,
            "backends read no `batch_size`"
        );
    }
}
