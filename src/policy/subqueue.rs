//! The names of subqueues. Where a `[[queue]]` says `subqueues = true`, a job with a key of its own waits in one of 256
//! queues of the backend that stand beside its own, its base: `mail-ojst-7f` beside `mail`. Nobody but the sidecar sees
//! those names.
//!
//! This is stochastic fairness queueing (McKenney, 1990): work of many flows lies in a fixed number of queues by a hash of
//! its flow, so that one flow's backlog stands in the way of few others. A queue for each key would stand in nobody's
//! way, but no official backend ever forgets a queue's name, and the reapers of some pay for each name for ever.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use ojs_limit::fingerprint;

/// How many subqueues a queue has. It is a constant: another number would send the jobs of a key elsewhere.
pub const COUNT: usize = 256;

/// The most queues of a file that may have subqueues: with their names a pass of a backend's reaper stays short.
pub const MOST_BASES: usize = 8;

/// The longest name of a queue that may have subqueues, in bytes: official backends allow 128.
pub const LONGEST_BASE: usize = 120;

/// What stands between a base and the number of a subqueue.
const MARKER: &str = "-ojst-";

/// What a subqueue's name has more than its base.
const ADDED: usize = MARKER.len() + 2;

static MARKERS: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(MARKER));

/// One of the subqueues of a queue.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Subqueue(pub u8);

impl Subqueue {
    /// Where jobs of a key wait, and of a group that shares it by weight. Every version gives the same answer, for the
    /// order of a tenant's jobs depends on it.
    pub fn of(key: &str, group: Option<&str>) -> Subqueue {
        let parts = [key.as_bytes(), group.unwrap_or_default().as_bytes()];
        let [last, ..] = fingerprint(parts).to_le_bytes();
        Subqueue(last)
    }

    /// Its name in the backend.
    pub fn name_in(self, base: &str) -> String {
        format!("{base}{MARKER}{:02x}", self.0)
    }
}

/// The base and the number that a name has; `None`: it is no subqueue's name.
pub fn split(name: &str) -> Option<(&str, Subqueue)> {
    let at = name.len().checked_sub(ADDED).filter(|at| *at > 0)?;
    let (base, rest) = name.split_at_checked(at)?;
    let digits = rest.strip_prefix(MARKER)?;
    let is_number = digits.bytes().all(|byte| is_digit(&byte));
    let number = u8::from_str_radix(digits, 16).ok().filter(|_| is_number)?;
    Some((base, Subqueue(number)))
}

/// The queue that a name stands for outside the backend: the base of a subqueue, and any other as it is.
pub fn base_of(name: &str) -> &str {
    split(name).map_or(name, |(base, _)| base)
}

/// Whether a text may name a subqueue; `false` is certain.
pub fn may_name(text: &[u8]) -> bool {
    MARKERS.find(text).is_some()
}

/// A text of JSON, or of events, with the bases of the subqueues that it names; `None`: it names none. A name ends where
/// no longer one can go on.
pub fn with_bases(text: &[u8]) -> Option<Vec<u8>> {
    let mut out: Option<Vec<u8>> = None;
    let mut done = 0;
    for at in MARKERS.find_iter(text) {
        let digits = text.get(at + MARKER.len()..at + ADDED).unwrap_or_default();
        let is_number = digits.len() == 2 && digits.iter().all(is_digit);
        let rest = text.get(at + ADDED..).unwrap_or_default();
        if is_number && is_end(rest) && at >= done {
            let out = out.get_or_insert_with(|| Vec::with_capacity(text.len()));
            out.extend_from_slice(text.get(done..at).unwrap_or_default());
            done = at + ADDED;
        }
    }
    let mut out = out?;
    out.extend_from_slice(text.get(done..).unwrap_or_default());
    Some(out)
}

/// How many bytes at the end of a text may be a part of a name that goes on after it. They decide nothing alone.
pub fn undecided(text: &[u8]) -> usize {
    let may_go_on = |length: &usize| {
        let tail = text.len().checked_sub(*length);
        let tail = tail.and_then(|at| text.get(at..)).unwrap_or_default();
        !tail.is_empty()
            && tail
                .iter()
                .enumerate()
                .all(|(nth, byte)| may_stand(nth, byte))
    };
    // One more: behind a whole name a full stop may be the next letter, or the end of a sentence.
    (1..=ADDED + 1).rev().find(may_go_on).unwrap_or(0)
}

/// Whether a byte may stand at this place of what a subqueue's name has more than its base.
fn may_stand(nth: usize, byte: &u8) -> bool {
    match MARKER.as_bytes().get(nth) {
        Some(wanted) => byte == wanted,
        None if nth < ADDED => is_digit(byte),
        None => *byte == b'.',
    }
}

fn is_digit(byte: &u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

/// Whether a name ends before this.
fn is_end(rest: &[u8]) -> bool {
    let goes_on = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    match rest {
        [b'.', next, ..] => !goes_on(next),
        [next, ..] => !goes_on(next),
        [] => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Jobs lie in backends under these names: whoever changes one hides them.
    #[test]
    fn golden_names() {
        for (key, group, name) in [
            ("crm:acme", None, "mail-ojst-a0"),
            ("crm:acme", Some("gold"), "mail-ojst-5f"),
            ("crm:bolt", None, "mail-ojst-a2"),
        ] {
            assert_eq!(Subqueue::of(key, group).name_in("mail"), name);
        }
    }

    #[test]
    fn only_names_of_its_shape_are_subqueues() {
        for number in 0..=u8::MAX {
            let name = Subqueue(number).name_in("a.b-c");
            assert_eq!(split(&name), Some(("a.b-c", Subqueue(number))));
        }
        for name in [
            "mail",
            "-ojst-7f",
            "mail-ojst-7F",
            "mail-ojst-+1",
            "mail-ojst-7",
            "mail-ojst-7f0",
            "é-ojst7f",
            "",
        ] {
            assert_eq!((split(name), base_of(name)), (None, name));
        }
    }

    #[test]
    fn texts_show_bases() {
        for (text, shown) in [
            (
                r#"{"queue":"mail-ojst-7f","a":"no mail-ojst-7f. \"b-ojst-00\""}"#,
                Some(r#"{"queue":"mail","a":"no mail. \"b\""}"#),
            ),
            (
                "a-ojst-00.eu a-ojst-000 a-ojst-0_ a-ojst-00-ojst-01",
                Some("a-ojst-00.eu a-ojst-000 a-ojst-0_ a-ojst-00"),
            ),
            ("</queues/b-ojst-ff>", Some("</queues/b>")),
            ("b-ojst-ff", Some("b")),
            (
                r#"["a-ojst-00","/queues/b-ojst-ff/stats","c-ojst-zz"]"#,
                Some(r#"["a","/queues/b/stats","c-ojst-zz"]"#),
            ),
            (r#"{"queue":"mail"}"#, None),
            ("-ojst-", None),
        ] {
            let found = with_bases(text.as_bytes());
            assert_eq!(found.as_deref(), shown.map(str::as_bytes), "{text}");
        }
    }

    #[test]
    fn what_may_go_on_is_undecided() {
        for (text, rest) in [
            ("mail", ""),
            ("mail-", "-"),
            ("a--oj", "-oj"),
            ("mail-ojst-7", "-ojst-7"),
            ("mail-ojst-7f", "-ojst-7f"),
            ("mail-ojst-7f.", "-ojst-7f."),
            ("mail-ojst-7f. ", ""),
            ("mail-ojst-7g", ""),
            ("mail-ojst-7f-", "-"),
        ] {
            assert_eq!(undecided(text.as_bytes()), rest.len(), "{text}");
        }
    }
}
