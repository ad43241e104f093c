//! The mirror: what a job brought along at enqueue and backends forget, kept in its `meta` and never
//! shown to workers or readers.
//!
//! No backend gives `options.rate_limit` or a job's own visibility back at FETCH, and some show a
//! top-level `queue` of the producer's in place of the queue that the job is in; all keep `meta`. So
//! at enqueue the sidecar writes `meta["ojs.rate_limit.mirror"]`, and takes it out of every job it
//! lets pass in the other direction, where `rate_limit` then reads as it was sent.

use std::borrow::Cow;
use std::sync::LazyLock;

use bytes::Bytes;
use memchr::memmem::Finder;

use super::Subqueues;
use ojs_json::{Json, Member, Splice, quote};
use ojs_wire::ojs::{DEPTH, REPLY_DEPTH};

pub use ojs_policy::MIRROR;

/// What a search for jobs with limits of their own looks for.
pub const NEEDLE: &str = "rate_limit";

// Every reply is searched for one of these, and a search that is prepared once costs half of it.
static BRINGS: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(NEEDLE));
static SHOWS: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(MIRROR));
static POLICY: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"policy\""));

/// Whether a text may have a job with limits of its own in it; `false` is certain, as an enqueue through here
/// leaves no escapes in the name.
pub fn may_bring(text: &[u8]) -> bool {
    BRINGS.find(text).is_some()
}

/// Whether a text may have a job with limits of its own in it, where a mirror without limits does not count.
pub fn may_limit(text: &[u8]) -> bool {
    let (mut all, mut mirrors) = (BRINGS.find_iter(text), SHOWS.find_iter(text));
    // Each mirror has one in its name.
    let elsewhere = all.by_ref().count() > mirrors.by_ref().count();
    elsewhere || POLICY.find(text).is_some()
}

/// Whether a text may have a mirror in it; `false` is certain.
fn may_show(text: &[u8]) -> bool {
    SHOWS.find(text).is_some()
}

/// What a backend would forget of a job.
#[derive(Clone, Copy, Debug, Default)]
pub struct Forgotten<'a> {
    /// The policy as sent, and where it stood.
    pub policy: Option<(&'a str, &'a [u8])>,
    /// Its own visibility timeout, in milliseconds.
    pub visibility_ms: Option<i64>,
    /// The queue that it is in, where it would be shown in another.
    pub queue: Option<&'a str>,
}

/// Who wrote the `meta` that has the mirror.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MetaOf {
    /// It is made for the mirror alone.
    Ours,
    /// The producer, for other things too.
    Producer,
}

impl Forgotten<'_> {
    /// Whether there is nothing to keep.
    pub fn is_empty(&self) -> bool {
        self.policy.is_none() && self.visibility_ms.is_none() && self.queue.is_none()
    }

    /// The member to write into `meta`, which says too whether `meta` itself is ours.
    pub fn value(&self, meta: MetaOf) -> Vec<u8> {
        let mut members: Vec<Vec<u8>> = Vec::new();
        if let Some((at, raw)) = self.policy {
            members.push([br#""policy":"#, raw].concat());
            members.push(format!("\"at\":{}", quote(at)).into_bytes());
        }
        if let Some(ms) = self.visibility_ms {
            members.push(format!("\"visibility_timeout_ms\":{ms}").into_bytes());
        }
        if let Some(queue) = self.queue {
            members.push(format!("\"queue\":{}", quote(queue)).into_bytes());
        }
        if meta == MetaOf::Ours {
            members.push(br#""meta":"added""#.to_vec());
        }
        [b"{".as_slice(), &members.join(&b","[..]), b"}"].concat()
    }
}

/// A member of a job's mirror.
fn member<'a>(job: Json<'a>, name: &str) -> Option<Json<'a>> {
    // Most jobs have none, and a search costs less than a walk.
    if !may_show(job.raw()) {
        return None;
    }
    job.get_exact("meta")?.get_exact(MIRROR)?.get_exact(name)
}

/// A job's visibility timeout as its mirror has it, in milliseconds.
pub fn visibility(job: Json<'_>) -> Option<u64> {
    u64::try_from(member(job, "visibility_timeout_ms")?.int()?)
        .ok()
        .filter(|ms| *ms > 0)
}

/// The queue that a job is in, where its mirror says that it shows another.
pub fn filed<'a>(job: Json<'a>) -> Option<Cow<'a, str>> {
    member(job, "queue")?.text()
}

/// The queue of a job that a backend shows: the one that it is in, and else the one that it shows. Of a subqueue it is
/// the base.
pub fn queue<'a>(job: Json<'a>, subqueues: &Subqueues) -> Option<Cow<'a, str>> {
    let name = filed(job).or_else(|| job.text_of("queue"))?;
    let base = subqueues.base_of(&name);
    Some(match base.len() == name.len() {
        true => name,
        false => Cow::Owned(base.to_owned()),
    })
}

/// The last member of exactly this name.
fn last_of<'a>(value: Json<'a>, name: &str) -> Option<Member<'a>> {
    let members = value.members();
    let named = members.filter(|m| m.name.text().as_deref() == Some(name));
    named.last()
}

/// Writes into `splice` what hides the mirror of one job; `false`: it has none.
pub fn hide(job: Json<'_>, splice: &mut Splice) -> bool {
    let Some(meta_member) = last_of(job, "meta") else {
        return false;
    };
    let meta = meta_member.value;
    let Some(mirror) = last_of(meta, MIRROR) else {
        return false;
    };
    let added = mirror.value.get_exact("meta").is_some();
    if added && meta.members().count() == 1 {
        splice.remove_member(job, meta_member);
    } else {
        splice.remove_member(meta, mirror);
    }
    if let Some(sent) = mirror
        .value
        .get_exact("policy")
        .filter(|_| job.get(NEEDLE).is_none())
        // A template keeps the option.
        .filter(|_| job.get("options").and_then(|o| o.get(NEEDLE)).is_none())
    {
        splice.add_member(job, NEEDLE, sent.raw());
    }
    true
}

/// A text with jobs or templates of jobs, wherever they stand in it, without their mirrors; `None`:
/// there is nothing to hide, or it is not JSON.
pub fn hide_all(text: &[u8]) -> Option<Vec<u8>> {
    if !may_show(text) {
        return None;
    }
    let whole = Json::parse(text, REPLY_DEPTH).ok()?;
    let mut splice = Splice::new();
    hide_inside(whole, &mut splice, DEPTH);
    (!splice.is_empty()).then(|| splice.apply(text))
}

/// What is a job's own, and may look like anything.
pub const OWN: [&str; 5] = ["args", "meta", "result", "error", "errors"];

/// Whether a member is a job's own, whatever it looks like.
pub fn is_own(member: &Member<'_>) -> bool {
    OWN.iter().any(|own| member.is_named(own))
}

/// Hides the mirrors of a value and of what is in it, so many levels deep: each looks at all below it, and
/// jobs stand near the top.
fn hide_inside(value: Json<'_>, splice: &mut Splice, levels: usize) {
    let Some(levels) = levels.checked_sub(1).filter(|_| may_show(value.raw())) else {
        return;
    };
    hide(value, splice);
    for member in value.members() {
        if !is_own(&member) {
            hide_inside(member.value, splice, levels);
        }
    }
    let items = value.items();
    items.for_each(|item| hide_inside(item, splice, levels));
}

/// One job as a worker gets it.
pub fn shown(job: Json<'_>) -> Bytes {
    let raw = job.raw();
    if may_show(raw)
        && let Ok(alone) = Json::parse(raw, REPLY_DEPTH)
    {
        let mut splice = Splice::new();
        if hide(alone, &mut splice) {
            return Bytes::from(splice.apply(raw));
        }
    }
    Bytes::copy_from_slice(raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_alone_is_no_limit() {
        for (text, limits) in [
            (r#"{"meta":{"ojs.rate_limit.mirror":{"queue":"q"}}}"#, false),
            (
                r#"{"ojs.rate_limit.mirror": {"visibility_timeout_ms": 7}}"#,
                false,
            ),
            (
                r#"{"ojs.rate_limit.mirror": {"at": "rate_limit", "policy": {}}}"#,
                true,
            ),
            (
                r#"{"ojs.rate_limit.mirror":{"queue":"q"},"ojs.rate_limit":{}}"#,
                true,
            ),
            (r#"[{"ojs.rate_limit.mirror":{}},{"rate_limit":{}}]"#, true),
        ] {
            assert_eq!(may_limit(text.as_bytes()), limits, "{text}");
        }
    }

    #[test]
    fn a_job_of_a_subqueue_is_one_of_its_base() {
        let subqueues = Subqueues::of_file(&["mail"]);
        for text in [
            r#"{"queue":"mail-ojst-7f"}"#,
            r#"{"queue":"m\u0061il-ojst-7f"}"#,
            r#"{"queue":"x","meta":{"ojs.rate_limit.mirror":{"queue":"mail"}}}"#,
        ] {
            let job = Json::parse(text.as_bytes(), 8).unwrap();
            assert_eq!(queue(job, &subqueues).as_deref(), Some("mail"), "{text}");
        }
    }

    /// Each level is looked through anew, on a stack that has an end.
    #[test]
    fn what_is_nested_absurdly_deep_is_left_as_it_is() {
        let (open, close) = (r#"{"x":"#.repeat(9_000), "}".repeat(9_000));
        let deep = format!(r#"{open}{{"meta":{{"ojs.rate_limit.mirror":{{}}}}}}{close}"#);
        assert!(Json::parse(deep.as_bytes(), REPLY_DEPTH).is_ok());
        assert!(hide_all(deep.as_bytes()).is_none());
        let near = r#"{"x":{"meta":{"ojs.rate_limit.mirror":{}}}}"#;
        assert!(hide_all(near.as_bytes()).is_some());
    }
}
