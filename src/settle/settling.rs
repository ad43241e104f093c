//! One ACK or nack: the job that it names, and what is known of that job before anything is sent.

use std::ops::Range;
use std::sync::Arc;

use tokio::time::Instant;

use super::unheard::{Request, Verb};
use crate::desk::Sidecar;
use crate::json::Reader;
use crate::store::{Claimed, Gen, Row, StoreError};
use crate::wire::ojs::REPLY_DEPTH;
use crate::wire::upstream::Call;

/// An ACK or nack of a job.
pub(super) struct Settling<'a> {
    /// As the worker sent it.
    pub(super) call: &'a Call,
    pub(super) scope: u64,
    pub(super) verb: Verb,
    pub(super) names: &'a NamedJob,
    /// As it was before anything was sent.
    pub(super) found: RowFound,
    /// When it began: what was claimed later is another run.
    pub(super) begun: Gen,
    /// How long it is tried.
    pub(super) deadline: Instant,
}

impl Settling<'_> {
    /// Notes of which run it is, for the next time that the same request comes. Returns `true` if the job is out with
    /// another worker than the one that asks, or in a later run.
    pub(super) fn note_run(&self, request: &Request) -> bool {
        let Some(run) = self.found.run() else {
            return false;
        };
        request.note_run(&run.claimed);
        run.claimed.is_with_another(self.names.worker()) || request.is_of_earlier_run(&run.claimed)
    }
}

/// The row of a job, as far as it could be found.
pub(super) enum RowFound {
    /// This one.
    Row(Row),
    /// It has none. It may be held here, under this claim: that one is newer than the worker's, whose job is done all
    /// the same.
    NoRow { held: Option<Claimed> },
    /// The store cannot say.
    Unsure { held: Option<Claimed> },
}

impl RowFound {
    /// By what the store says, and the hold.
    pub(super) fn of(
        sidecar: &Sidecar,
        job: &str,
        says: Result<Option<Row>, StoreError>,
    ) -> RowFound {
        let held = || sidecar.hold.claimed(job);
        match says {
            Ok(Some(row)) => RowFound::Row(row),
            Ok(None) if !sidecar.store.may_miss_rows() => RowFound::NoRow { held: held() },
            _ => RowFound::Unsure { held: held() },
        }
    }

    /// The last claim of the job that is known.
    pub(super) fn claimed(&self) -> Option<&Claimed> {
        match self {
            RowFound::Row(row) => Some(&row.claimed),
            RowFound::NoRow { held } | RowFound::Unsure { held } => held.as_ref(),
        }
    }

    /// The row of a job that is out with a worker.
    pub(super) fn run(&self) -> Option<&Row> {
        match self {
            RowFound::Row(row) if row.is_out() => Some(row),
            _ => None,
        }
    }
}

/// What an ACK or nack names.
pub(super) struct NamedJob {
    pub(super) job: Arc<str>,
    /// Its worker, and where that name stands in the body.
    worker: Option<(Box<str>, Range<usize>)>,
}

impl NamedJob {
    /// The worker's name, if it says one.
    fn worker(&self) -> Option<&str> {
        self.worker.as_ref().map(|(name, _)| &**name)
    }

    /// Where the worker's name stands in the body.
    pub(super) fn worker_id(&self) -> Option<&Range<usize>> {
        self.worker.as_ref().map(|(_, at)| at)
    }
}

/// The job that an ACK or nack names, and its worker if it says one.
pub(super) fn named(body: &[u8]) -> Option<NamedJob> {
    // The backend says how deep a result may nest: the job has run already.
    let mut reader = Reader::new(body, REPLY_DEPTH);
    let (_, [job, worker_id]) = reader.pick(["job_id", "worker_id"]).ok()?;
    // Where two jobs are named, nobody knows whose slot would be free.
    let is_clear = !reader.repeats();
    reader.end().ok().filter(|()| is_clear)?;
    let job = Arc::from(job?.text()?.as_ref());
    // What is no text is no name; it stands there all the same.
    let worker = worker_id.map(|id| (id.text().unwrap_or_default().into(), id.range()));
    Some(NamedJob { job, worker })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_job_is_named_however_deep_its_result_is() {
        let deep = format!("{}{}", "[".repeat(5_000), "]".repeat(5_000));
        let ack = format!(r#"{{"job_id":"a","result":{deep},"worker_id":"w"}}"#);
        let NamedJob { job, worker } = named(ack.as_bytes()).unwrap();
        assert_eq!(&*job, "a");
        let (name, at) = worker.unwrap();
        assert_eq!((&*name, ack.get(at)), ("w", Some("\"w\"")));
        for ack in [
            r#"{"job_id":"a","job_id":"b"}"#,
            r#"{"job_id":"a","Job_ID":"b","worker_id":"w"}"#,
            r#"{"job_id":"a","worker_id":"w","WORKER_ID":"v"}"#,
            r#"{"job_id":7}"#,
            r#"{"worker_id":"w"}"#,
        ] {
            assert!(named(ack.as_bytes()).is_none(), "{ack}");
        }
    }
}
