//! What tells one official SDK from another: what it sends, when, and how it takes the answers.

use std::ops::Range;

use super::prelude::*;

/// An official SDK of OJS, as it was observed.
pub struct Sdk {
    pub name: &'static str,
    /// Which one was observed.
    pub version: &'static str,
    /// Headers of a request in their order and case.
    pub head: fn(&Call) -> Vec<(&'static str, String)>,
    pub enqueue: fn(&NewJob) -> String,
    pub batch: fn(&[NewJob]) -> String,
    pub fetch: fn(&Fetch) -> String,
    /// Of a job, with what its handler gave.
    pub ack: fn(&str, Option<&str>) -> String,
    /// Of a job, with what its handler threw.
    pub nack: fn(&str, &Thrown) -> String,
    pub heartbeat: fn(&Beat) -> String,
    /// The name of its nth worker.
    pub worker_id: fn(u64) -> String,
    /// How a queue is written in a path.
    pub in_path: fn(&str) -> String,

    /// Which replies it can read.
    pub reads: Reads,
    /// How often a request is sent that is answered 429 or 503.
    pub tries: u32,
    /// When it gives up on a reply.
    pub patience: Option<Duration>,

    /// The most jobs that a FETCH asks for.
    pub most: usize,
    /// The visibility that a FETCH asks for unless it is told another.
    pub visibility: Option<u64>,
    /// Whether it waits for a free slot, or looks again after a poll interval.
    pub waits_for_a_slot: bool,
    /// Milliseconds between polls that brought nothing.
    pub polls: Range<u64>,
    /// The pause after so many FETCHes that failed in a row.
    pub after_failures: fn(u32) -> Duration,

    /// Whether the first heartbeat comes at once instead of after an interval.
    pub beats_at_once: bool,
    /// Whether a heartbeat goes out while an earlier one is not answered.
    pub beats_overlap: bool,
    /// How often an ACK or a nack is sent that is answered badly or not at all.
    pub settles: u32,
    /// Whether a job is nacked when its ACK failed.
    pub nacks_after_a_failed_ack: bool,
    /// Whether its process ends when a nack failed.
    pub dies_of_a_failed_nack: bool,
    /// What SIGTERM does.
    pub on_sigterm: OnSignal,
    /// What SIGINT does.
    pub on_sigint: OnSignal,
}

/// What an SDK demands of a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reads {
    /// JSON, whatever its media type; a 2xx without a body is a failure.
    Json,
    /// JSON if it says `application/json`, else it is taken as empty.
    OnlyApplicationJson,
    /// JSON where it needs any.
    Whatever,
    /// JSON with the members that it expects, where it needs any; a job must stand there bare.
    Typed,
}

/// What a worker does after a signal. Heartbeats stop in each case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnSignal {
    /// Its running jobs are finished and ACKed; then an open FETCH is dropped.
    Finishes,
    /// The same, but an open FETCH is waited for, and what it brings after the last running job has
    /// ended is nacked as cancelled.
    Cancels,
    /// The same as [`OnSignal::Finishes`], but what an open FETCH brings is run and finished too.
    Awaits,
    /// All requests are dropped; running jobs are finished, and nobody is told.
    FallsSilent,
    /// The process is gone at once.
    Dies,
}

/// A request in the making.
pub struct Call<'a> {
    pub host: &'a str,
    pub token: &'a str,
    pub id: &'a str,
    pub method: &'a str,
    pub body: Option<&'a str>,
}

impl Call<'_> {
    /// `Content-Length`, for a body or, where the SDK says so for an empty POST too, for none.
    pub fn length(&self) -> String {
        self.body.map_or(0, str::len).to_string()
    }

    pub fn is_post(&self) -> bool {
        self.method == "POST"
    }
}

/// A job to enqueue. Values are JSON texts.
#[derive(Clone, Default, Debug)]
pub struct NewJob {
    pub kind: String,
    pub args: String,
    pub meta: Option<String>,
    /// In any order.
    pub options: Vec<(String, String)>,
}

impl NewJob {
    /// A job of a type, in a queue, told from others by a number in its args.
    pub fn new(kind: &str, queue: &str, number: usize) -> NewJob {
        NewJob {
            kind: kind.into(),
            args: format!("[{{\"i\":{number}}}]"),
            meta: None,
            options: vec![("queue".into(), quoted(queue))],
        }
    }

    pub fn meta(mut self, meta: &str) -> NewJob {
        self.meta = Some(meta.into());
        self
    }

    pub fn option(mut self, name: &str, value: &str) -> NewJob {
        self.options.push((name.into(), value.into()));
        self
    }

    /// A member if it has a value.
    pub fn meta_member(&self) -> String {
        let meta = self.meta.as_ref();
        meta.map_or(String::new(), |meta| format!(",\"meta\":{meta}"))
    }

    /// `options` in an SDK's order, or nothing.
    pub fn options_member(&self, order: &str) -> String {
        let mut options = self.options.clone();
        options.sort_by_key(|(name, _)| order.split(' ').position(|known| known == *name));
        let members: Vec<String> = (options.iter())
            .map(|(name, value)| format!("\"{name}\":{value}"))
            .collect();
        match members.is_empty() {
            true => String::new(),
            false => format!(",\"options\":{{{}}}", members.join(",")),
        }
    }
}

pub struct Fetch<'a> {
    pub queues: &'a [String],
    pub count: usize,
    pub worker: &'a str,
    pub visibility: Option<u64>,
}

/// What a handler threw.
#[derive(Clone, Debug)]
pub struct Thrown {
    pub code: &'static str,
    pub message: String,
    pub retryable: bool,
    /// Where it was thrown, where the SDK tells; the class of the error stands in it.
    pub trace: Option<String>,
}

impl Thrown {
    /// Any failure of a handler.
    pub fn new(message: &str) -> Thrown {
        Thrown {
            code: "handler_error",
            message: message.into(),
            retryable: true,
            trace: None,
        }
    }
}

pub struct Beat<'a> {
    pub worker: &'a str,
    pub jobs: &'a [String],
    pub queues: &'a [String],
    pub concurrency: usize,
    pub visibility: u64,
    /// JSON text of its labels, and its process id.
    pub labels: &'a str,
    pub pid: u64,
}

/// A text in JSON.
pub fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A list of texts in JSON.
pub fn list(texts: &[String]) -> String {
    serde_json::Value::from(texts).to_string()
}

/// A batch of jobs, each as `one` writes it.
pub fn jobs(jobs: &[NewJob], one: impl Fn(&NewJob) -> String) -> String {
    let jobs: Vec<String> = jobs.iter().map(one).collect();
    format!("{{\"jobs\":[{}]}}", jobs.join(","))
}

/// A job as three of the four SDKs write it, with `options` in this order.
pub fn type_first(job: &NewJob, options: &str) -> String {
    let (meta, options) = (job.meta_member(), job.options_member(options));
    format!(
        "{{\"type\":\"{}\",\"args\":{}{meta}{options}}}",
        job.kind, job.args
    )
}

/// An ACK as all four write it.
pub fn ack(job: &str, result: Option<&str>) -> String {
    let result = result.map_or(String::new(), |result| format!(",\"result\":{result}"));
    format!("{{\"job_id\":\"{job}\"{result}}}")
}

/// A nack as three of the four write it.
pub fn nack(job: &str, thrown: &Thrown, trace: &str) -> String {
    format!(
        "{{\"job_id\":\"{job}\",\"error\":{}}}",
        error(thrown, trace)
    )
}

/// The `error` of a nack, with the trace in `details` under this name.
pub fn error(thrown: &Thrown, trace: &str) -> String {
    let details = thrown.trace.as_ref().map_or(String::new(), |text| {
        format!(",\"details\":{{\"{trace}\":{}}}", quoted(text))
    });
    format!(
        "{{\"code\":\"{}\",\"message\":{},\"retryable\":{}{details}}}",
        thrown.code,
        quoted(&thrown.message),
        thrown.retryable
    )
}

/// The media type of everything that is sent.
pub const MEDIA: &str = "application/openjobspec+json";

/// What OJS workers promise, in all four SDKs.
pub const BEAT: Duration = Duration::from_secs(5);
/// How long running jobs may take after a signal.
pub const GRACE: Duration = Duration::from_secs(25);
