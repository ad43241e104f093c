//! Reads an enqueued job in one pass, while its text is checked. Nearly all enqueues are of one job that brings no
//! limits, and this is all that they cost.

use super::Sends;
use crate::json::{self, Json, JsonError, Member, MemberName, Reader};
use crate::policy::job::queue_of;
use crate::proxy::DEPTH;
use crate::proxy::mirror::NEEDLE;
use crate::proxy::respond::Fault;

/// The option whose value backends do not give back.
pub(super) const VISIBILITY: &str = "visibility_timeout_ms";

/// The byte order marks of UTF-8 and of UTF-16; that of UTF-32 begins as one of them or with NUL.
const BYTE_ORDER_MARKS: [&[u8]; 3] = [b"\xEF\xBB\xBF", b"\xFE\xFF", b"\xFF\xFE"];

/// Numbers that JSON does not have, as some backends read them: Python's do by default.
const NO_NUMBERS: [&[u8]; 2] = [b"nan", b"inf"];

/// A job as a producer sends it.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentJob<'a> {
    pub(super) whole: Json<'a>,
    /// Its `options.queue`.
    pub(super) queue: Option<Json<'a>>,
    /// Whether it may bring limits, or have a mirror in it that is not ours; `false` is certain.
    pub(super) brings: bool,
    /// Whether it may say how long its worker has; `false` is certain.
    pub(super) has_visibility: bool,
    /// See [`is_ambiguous`].
    pub(super) ambiguous: bool,
    /// See [`is_flat`].
    pub(super) flat: bool,
}

/// Whether a job has several `options`, or a queue several times in them, in whatever spelling. Some backends take the
/// last, some the one in their own spelling, and some put them together, so its queue is not known.
pub(super) fn is_ambiguous(job: Json<'_>) -> bool {
    has_several(job, "options") || (job.get("options")).is_some_and(|all| has_several(all, "queue"))
}

/// Whether a job says a queue beside its `options`, and another than the one that they file it in. Backends written
/// in Go do not read it, and show it in place of the real one ever after.
pub(super) fn is_flat(job: Json<'_>) -> bool {
    let filed = queue_of(job);
    let beside = job.members().filter(|member| member.is_named("queue"));
    let mut others = beside.filter(|member| member.value.text().as_deref() != Some(&*filed));
    others.next().is_some()
}

/// Whether a body may have such a job in it, as far as its text goes on: what is no JSON is the backend's to refuse.
pub(super) fn may_have_flat(body: &[u8], sends: Sends) -> bool {
    if sends == Sends::Templates || !json::may_name(body, "queue") {
        return false;
    }
    match sends {
        Sends::Job => read_job(body).is_ok_and(|job| job.flat),
        _ => Json::parse(body, DEPTH).is_ok_and(|whole| {
            let mut jobs = whole.get("jobs").into_iter().flat_map(|jobs| jobs.items());
            jobs.any(is_flat)
        }),
    }
}

/// 400 for a body that some backends understand and we do not: its jobs would go round limits and bounds. `None`: it
/// is no JSON to any backend, which will say so.
pub(super) fn unreadable(body: &[u8], error: JsonError) -> Option<Fault> {
    let why = match error {
        JsonError::Deep(_) => return Some(Fault::deep()),
        JsonError::Trailing(_) => return Some(Fault::bad_request(error.to_string())),
        JsonError::Malformed(_) if BYTE_ORDER_MARKS.iter().any(|mark| body.starts_with(mark)) => {
            "the body begins with a byte order mark"
        }
        JsonError::Malformed(_) if is_wide(body) => "the body is in UTF-16 or UTF-32",
        JsonError::Malformed(at) if is_no_number(body.get(at..).unwrap_or_default()) => {
            "the body has a number in it that JSON does not have, such as NaN or Infinity"
        }
        JsonError::Malformed(_) => return None,
    };
    let hint = "send JSON as RFC 8259 has it: in UTF-8, without a byte order mark";
    Some(Fault::bad_request(why).hinting(hint))
}

/// Whether a body is JSON in UTF-16 or UTF-32: then a character of its first two has a NUL byte.
fn is_wide(body: &[u8]) -> bool {
    body.iter().take(4).any(|byte| *byte == 0)
}

/// Whether a text begins with such a number, or with what follows its sign.
fn is_no_number(text: &[u8]) -> bool {
    let text = text.strip_prefix(b"-").unwrap_or(text);
    let first = text.get(..3).unwrap_or_default();
    NO_NUMBERS
        .iter()
        .any(|word| first.eq_ignore_ascii_case(word))
}

/// As [`json::may_name`], in whatever encoding the body is.
pub(super) fn may_name(body: &[u8], needle: &str) -> bool {
    if !is_wide(body) {
        return json::may_name(body, needle);
    }
    let narrow: Vec<u8> = body.iter().copied().filter(|byte| *byte != 0).collect();
    json::may_name(&narrow, needle)
}

/// Whether an object has several members of this name, in whatever spelling.
pub(super) fn has_several(object: Json<'_>, name: &str) -> bool {
    let named = |member: &Member<'_>| member.is_named(name);
    object.members().filter(named).nth(1).is_some()
}

/// Reads the body of an enqueue of one job.
///
/// # Errors
/// It is no JSON, or nested too deep.
pub(super) fn read_job(body: &[u8]) -> Result<SentJob<'_>, JsonError> {
    let mut reader = Reader::new(body, DEPTH);
    let (mut queue, mut brings, mut has_visibility) = (None, false, false);
    let (mut options, mut several, mut beside) = (0, false, false);
    let whole = reader.members(|name, reader| {
        brings |= name.may_contain(NEEDLE);
        if name.folds_to("options") {
            options += 1;
            let (mut last, mut queues) = (None, 0);
            reader.members(|name, reader| {
                brings |= name.may_contain(NEEDLE);
                has_visibility |= name.may_contain(VISIBILITY);
                if name.folds_to("metadata") {
                    brings |= names_limits(reader)?;
                    return Ok(());
                }
                let value = reader.value()?;
                if name.folds_to("queue") {
                    last = Some(value);
                    queues += 1;
                }
                Ok(())
            })?;
            queue = last;
            several |= queues > 1;
        } else if name.folds_to("meta") {
            brings |= names_limits(reader)?;
        } else {
            beside |= name.folds_to("queue");
            reader.value()?;
        }
        Ok(())
    })?;
    reader.end()?;
    Ok(SentJob {
        whole,
        queue,
        brings,
        has_visibility,
        ambiguous: several || options > 1,
        flat: beside && is_flat(whole),
    })
}

/// Reads a `meta`: whether one of its members may be a limit, or a mirror.
fn names_limits(reader: &mut Reader<'_>) -> Result<bool, JsonError> {
    let mut found = false;
    reader.members(|name: MemberName<'_>, reader| {
        found |= name.may_contain(NEEDLE);
        reader.value()?;
        Ok(())
    })?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy;
    use crate::policy::job::{filed, queue_of};

    #[test]
    fn the_queue_is_the_same_in_one_pass() {
        for body in [
            r#"{"type":"a","options":{"queue":"q","priority":1}}"#,
            r#"{"Options":{"QUEUE":"q"},"args":[{"options":{"queue":"no"}}]}"#,
            r#"{"options":{"queue":"a"},"options":{"queue":"b"}}"#,
            r#"{"options":{"queue":"a"},"options":{}}"#,
            r#"{"options":{"queue":""}}"#,
            r#"{"options":{"queue":7}}"#,
            r#"{"options":[{"queue":"no"}],"queue":"no"}"#,
            r#"{"options":null}"#,
            r#"["options"]"#,
            " {} ",
        ] {
            let job = read_job(body.as_bytes()).unwrap();
            let whole = Json::parse(body.as_bytes(), DEPTH).unwrap();
            assert_eq!(job.whole.raw(), whole.raw(), "{body}");
            assert_eq!(job.ambiguous, is_ambiguous(whole), "{body}");
            assert_eq!(
                job.ambiguous,
                body.matches("\"options\":{\"queue\":\"a\"},").count() == 1
            );
            assert_eq!(filed(job.queue), queue_of(whole), "{body}");
            assert!(!job.brings && !job.has_visibility, "{body}");
            assert_eq!(job.flat, is_flat(whole), "{body}");
        }
        assert_eq!(
            filed(read_job(br#"{"options":{"queue":"q"}}"#).unwrap().queue),
            "q"
        );
        assert!(matches!(read_job(b"{} {}"), Err(JsonError::Trailing(3))));
        let deep = format!("{{\"args\":{}{}}}", "[".repeat(DEPTH), "]".repeat(DEPTH));
        assert!(matches!(read_job(deep.as_bytes()), Err(JsonError::Deep(_))));
    }

    #[test]
    fn a_queue_beside_the_options_is_seen() {
        for (job, flat) in [
            (r#"{"queue":"q"}"#, true),
            (r#"{"Queue":"q","queue":"default"}"#, true),
            (r#"{"queue":"q","Queue":"default"}"#, true),
            (r#"{"\u0071ueue":7}"#, true),
            (r#"{"queue":"a","options":{"queue":"b"}}"#, true),
            (r#"{"queue":"default"}"#, false),
            (r#"{"queue":"b","options":{"queue":"b"}}"#, false),
            (r#"{"args":[{"queue":"q"}],"options":{"queue":"b"}}"#, false),
        ] {
            assert_eq!(read_job(job.as_bytes()).unwrap().flat, flat, "{job}");
            assert_eq!(may_have_flat(job.as_bytes(), Sends::Job), flat, "{job}");
            let batch = format!(r#"{{"jobs":[{{}},{job}]}}"#);
            assert_eq!(may_have_flat(batch.as_bytes(), Sends::Batch), flat, "{job}");
            assert!(!may_have_flat(job.as_bytes(), Sends::Templates));
        }
    }

    #[test]
    fn what_a_job_may_bring_is_seen() {
        for body in [
            r#"{"rate_limit":1}"#,
            r#"{"Rate_Limit":1}"#,
            r#"{"\u0072ate_limit":1}"#,
            r#"{"options":{"rate_limit":1}}"#,
            r#"{"OPTIONS":{"RATE_LIMIT":1}}"#,
            r#"{"options":{"rate_limit":1},"options":{}}"#,
            r#"{"options":{"metadata":{"ojs.rate_limit":1}}}"#,
            r#"{"meta":{"ojs.rate_limit.mirror":1}}"#,
            r#"{"meta":{"\u006fjs.rate_limit":1}}"#,
        ] {
            assert!(read_job(body.as_bytes()).unwrap().brings, "{body}");
        }
        for body in [
            r#"{"args":[{"rate_limit":1}]}"#,
            r#"{"type":"rate_limit","meta":"rate_limit"}"#,
            r#"{"meta":{"x":{"ojs.rate_limit":1}}}"#,
        ] {
            let whole = Json::parse(body.as_bytes(), DEPTH).unwrap();
            assert!(!read_job(body.as_bytes()).unwrap().brings, "{body}");
            assert!(policy::sent_policies(whole).unwrap().is_empty(), "{body}");
        }
        let own = r#"{"options":{"visibility_timeout_ms":1}}"#;
        assert!(read_job(own.as_bytes()).unwrap().has_visibility);
        let elsewhere = r#"{"visibility_timeout_ms":1,"meta":{"visibility_timeout_ms":1}}"#;
        assert!(!read_job(elsewhere.as_bytes()).unwrap().has_visibility);
    }
}
