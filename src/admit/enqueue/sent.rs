//! Reads what a producer sends: the jobs of an enqueue, and why some bodies are refused.

use std::borrow::Cow;

use crate::answers::respond::Fault;
use crate::duration;
use crate::inquiry::bases::unreadable;
use crate::json::{self, Json, Kind, Member};
use crate::policy::JobView;
use crate::policy::job::{filed, meta_of};
use crate::wire::ojs::DEPTH;

/// The most jobs or templates of one body: each takes a hundred times what it may take in the body.
const MOST_JOBS: usize = 100_000;
/// So many templates may stand inside one another: all that is inside is looked at once for each.
const NESTED: usize = 8;

/// The options whose value backends do not give back: in milliseconds, and as an ISO 8601 duration.
const VISIBILITY_MS: &str = "visibility_timeout_ms";
pub(super) const VISIBILITY: &str = "visibility_timeout";

/// A job's own visibility timeout, in milliseconds.
pub(super) fn visibility(options: Json<'_>) -> Option<i64> {
    let written = || duration::parse(&options.text_of(VISIBILITY)?).ok();
    let of_ms = options.get(VISIBILITY_MS).and_then(|ms| ms.int());
    of_ms.or_else(|| i64::try_from(written()? / 1_000).ok())
}

/// The kind of body of an enqueue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sends {
    /// One job.
    Job,
    /// Jobs, in `jobs`.
    Batch,
    /// What jobs are made from later, at any depth: a cron entry, a workflow.
    Templates,
}

/// A job as a producer sends it.
pub(super) struct SentJob<'a> {
    /// What stands before its fields in messages.
    pub(super) at: String,
    pub(super) json: Json<'a>,
    pub(super) options: Option<Json<'a>>,
    /// The queue that backends file it in.
    pub(super) queue: Cow<'a, str>,
    /// Whether it has several `options`, or a queue several times in them, in whatever spelling. Some backends take
    /// the last, some the one in their own spelling, and some put them together, so its queue is not known.
    pub(super) is_ambiguous: bool,
    /// Whether it says a queue beside its `options`, and another than the one that they file it in. Backends written
    /// in Go do not read it, and show it in place of the real one ever after.
    pub(super) is_flat: bool,
    /// What it says that only backends know. Those written in Go show it in place of the truth ever after.
    pub(super) untrue: Vec<Member<'a>>,
}

/// What a job says of itself and a backend alone knows: it is read when the job comes back, and when it is looked up.
const OF_BACKEND: [&str; 3] = ["state", "attempt", "expires_at"];

impl<'a> SentJob<'a> {
    pub(super) fn read(at: String, json: Json<'a>) -> SentJob<'a> {
        let (mut options, mut several, mut beside) = (None, false, Vec::new());
        let mut untrue = Vec::new();
        for member in json.members() {
            if member.is_named("options") {
                several |= options.replace(member.value).is_some();
            } else if member.is_named("queue") {
                beside.push(member.value);
            } else if OF_BACKEND.contains(&&*member.name.text().unwrap_or_default()) {
                // In other letters it is the producer's own, and no backend takes it for this.
                untrue.push(member);
            }
        }
        let inside = options.into_iter().flat_map(|options| options.members());
        let mut queue = None;
        for member in inside.filter(|member| member.is_named("queue")) {
            several |= queue.replace(member.value).is_some();
        }
        let queue = filed(queue);
        let is_other = |value: &Json<'_>| value.text().as_deref() != Some(&*queue);
        SentJob {
            at,
            json,
            options,
            is_ambiguous: several,
            is_flat: beside.iter().any(is_other),
            untrue,
            queue,
        }
    }

    /// Whether some backends show another queue of it, or another state, than it has.
    pub(super) fn is_odd(&self) -> bool {
        self.is_flat || !self.untrue.is_empty()
    }

    /// Its type.
    pub(super) fn kind(&self) -> Cow<'a, str> {
        let kind = self.json.get("type").and_then(|kind| kind.text());
        kind.unwrap_or_default()
    }

    /// What limits and bounds look at in it, beside its type; `tenant`: whose header is trusted.
    pub(super) fn view<'v>(&'v self, kind: &'v str, tenant: Option<&'v str>) -> JobView<'v> {
        JobView {
            id: None,
            queue: &self.queue,
            kind,
            meta: meta_of(self.json, self.options),
            tenant,
        }
    }
}

/// Whether a body may have a job that [is odd](SentJob::is_odd).
pub(super) fn may_be_odd(body: &[u8]) -> bool {
    let mut names = ["queue"].iter().chain(&OF_BACKEND);
    names.any(|name| json::may_name(body, name))
}

/// The jobs of an enqueue. `None`: the body is JSON to nobody, and the backend will say what is wrong with it.
///
/// # Errors
/// Backends read it in different ways, or it has too many jobs.
pub(super) fn read_jobs(body: &[u8], sends: Sends) -> Result<Option<Vec<SentJob<'_>>>, Fault> {
    let whole = match Json::parse(body, DEPTH) {
        Ok(whole) => whole,
        Err(error) => return unreadable(body, error).map_or(Ok(None), Err),
    };
    let named = |member: &Member<'_>| member.is_named("jobs");
    if sends == Sends::Batch && whole.members().filter(named).nth(1).is_some() {
        let why = "is there several times: say everything in one";
        return Err(Fault::field("jobs", why));
    }
    let jobs = jobs_in(whole, sends)?;
    match jobs.iter().find(|job| job.is_ambiguous) {
        Some(job) => {
            let why =
                "is there several times, or says its queue several times: say everything in one";
            Err(Fault::field(&format!("{}options", job.at), why))
        }
        None => Ok(Some(jobs)),
    }
}

/// The jobs of a body.
///
/// # Errors
/// There are too many.
fn jobs_in(whole: Json<'_>, sends: Sends) -> Result<Vec<SentJob<'_>>, Fault> {
    if sends == Sends::Job {
        return Ok(vec![SentJob::read(String::new(), whole)]);
    }
    if sends == Sends::Templates {
        let mut templates = Templates::default();
        templates.find(whole, "", NESTED)?;
        return Ok(templates.found);
    }
    let mut found = Vec::new();
    let jobs = whole.get("jobs").into_iter().flat_map(|jobs| jobs.items());
    for (nth, job) in jobs.enumerate() {
        if nth >= MOST_JOBS {
            return Err(too_many());
        }
        found.push(SentJob::read(format!("jobs[{nth}]."), job));
    }
    Ok(found)
}

fn too_many() -> Fault {
    let why = format!("has more than {MOST_JOBS} jobs: send them in several requests");
    Fault::field("jobs", &why)
}

/// What has a `type` in the `job_template`, `steps`, `jobs` and `callbacks` of a body, and inside of those. A cron may have
/// the members of its job itself.
#[derive(Default)]
struct Templates<'a> {
    found: Vec<SentJob<'a>>,
    /// Looked at so far.
    seen: usize,
}

impl<'a> Templates<'a> {
    /// Looks at a template or a body, and at what is inside so many `levels` down.
    fn find(&mut self, json: Json<'a>, at: &str, levels: usize) -> Result<(), Fault> {
        self.seen += 1;
        if self.seen > MOST_JOBS {
            return Err(too_many());
        }
        let names = ["type", "job_template", "steps", "jobs", "callbacks"];
        let [kind, template, steps, jobs, callbacks] = json.pick(names);
        let is_typed = kind.is_some_and(|kind| kind.kind() == Kind::String);
        // That of a whole workflow is no job's.
        let is_workflow = at.is_empty() && template.or(steps).or(jobs).is_some();
        if is_typed && !is_workflow {
            self.found.push(SentJob {
                is_flat: false,
                ..SentJob::read(at.to_owned(), json)
            });
        }
        let template = template.map(|template| (format!("{at}job_template."), template));
        let lists = [("steps", steps), ("jobs", jobs)].into_iter();
        let items = lists.flat_map(|(name, list)| {
            let items = list.into_iter().flat_map(|list| list.items()).enumerate();
            items.map(move |(nth, item)| (format!("{at}{name}[{nth}]."), item))
        });
        let callbacks = callbacks.into_iter().flat_map(|named| named.members());
        let callbacks = callbacks.map(|callback| {
            let name = callback.name.text().unwrap_or_default();
            (format!("{at}callbacks.{name}."), callback.value)
        });
        for (at, inner) in template.into_iter().chain(items).chain(callbacks) {
            let Some(levels) = levels.checked_sub(1) else {
                let why = format!("stands inside of more than {NESTED} templates: flatten them");
                return Err(Fault::field(at.trim_end_matches('.'), &why));
            };
            self.find(inner, &at, levels)?;
        }
        Ok(())
    }
}

/// Why a body is refused for a number in it: one that JSON does not have, or that no double holds. Some backends write
/// both back as what JSON does not have, and then no FETCH that brings the job can be read.
pub(super) fn odd_number(body: &[u8]) -> Option<Fault> {
    if !json::may_have_odd_number(body) {
        return None;
    }
    let why = match Json::parse(body, usize::MAX) {
        Ok(whole) => {
            let at = json::overflow(whole.raw())? + whole.range().start;
            format!("the number at byte {at} of the body is larger than any double")
        }
        Err(error) => return unreadable(body, error),
    };
    Some(
        Fault::bad_request(why).hinting("send it as text: not every reader can hold such a number"),
    )
}

/// As [`json::may_name`], in whatever encoding the body is.
pub(super) fn may_name(body: &[u8], needle: &str) -> bool {
    if !json::is_wide(body) {
        return json::may_name(body, needle);
    }
    let narrow: Vec<u8> = body.iter().copied().filter(|byte| *byte != 0).collect();
    json::may_name(&narrow, needle)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Option<bool> {
        let jobs = read_jobs(body.as_bytes(), Sends::Job).ok()??;
        Some(jobs[0].is_flat)
    }

    #[test]
    fn the_queue_is_where_backends_file_the_job() {
        for (body, queue) in [
            (r#"{"type":"a","options":{"queue":"q","priority":1}}"#, "q"),
            (
                r#"{"Options":{"QUEUE":"q"},"args":[{"options":{"queue":"no"}}]}"#,
                "q",
            ),
            (r#"{"options":{"queue":""}}"#, "default"),
            (r#"{"options":{"queue":7}}"#, "default"),
            (r#"{"options":[{"queue":"no"}],"queue":"no"}"#, "default"),
            (r#"{"options":null}"#, "default"),
            (r#"["options"]"#, "default"),
            (" {} ", "default"),
        ] {
            let jobs = read_jobs(body.as_bytes(), Sends::Job).ok().flatten();
            assert_eq!(jobs.unwrap()[0].queue, queue, "{body}");
        }
    }

    #[test]
    fn what_is_said_several_times_is_refused() {
        for body in [
            r#"{"options":{"queue":"a"},"options":{"queue":"b"}}"#,
            r#"{"options":{"queue":"a"},"Options":{}}"#,
            r#"{"options":{"queue":"a","Queue":"b"}}"#,
        ] {
            assert!(read_jobs(body.as_bytes(), Sends::Job).is_err(), "{body}");
            let batch = format!(r#"{{"jobs":[{body}]}}"#);
            let refused = read_jobs(batch.as_bytes(), Sends::Batch);
            assert!(refused.is_err(), "{batch}");
        }
        assert!(read_jobs(b"{} {}", Sends::Job).is_err());
        let deep = format!("{{\"args\":{}{}}}", "[".repeat(DEPTH), "]".repeat(DEPTH));
        assert!(read_jobs(deep.as_bytes(), Sends::Job).is_err());
        assert!(read("{").is_none(), "that is the backend's to refuse");
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
            assert_eq!(read(job), Some(flat), "{job}");
        }
    }
}
