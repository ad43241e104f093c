//! Claims for unit tests of several crates.

use ojs_limit::{Key, Limited, Limits, Space, Timestamp};
use ojs_store::{Claim, Gen};

/// Makes claims for tests.
pub trait TestClaim {
    /// The first claim of a job, for 30 s and of a queue `q` of scope 1, that nothing limits.
    fn of(job: &str) -> Claim {
        Claim {
            claim_id: "sidecar".into(),
            scope: 1,
            attempt: Some(1),
            // Later than any start of a test, so that a newer claim ends the row of an older one.
            claimed_at: Timestamp(4_000_000_000_000_000),
            visibility: 30_000_000,
            ..Claim::new(job.into(), Gen(1), "q".into())
        }
    }

    /// The first claim of a job under these limits of a key `k`, which this policy brings.
    fn under(job: &str, limits: Limits, policy: &str) -> Claim {
        let key = Key::new("k").unwrap();
        let limited = Limited::new(Space::Job, key, limits, policy.into());
        Claim {
            limited: [limited].into(),
            ..Claim::of(job)
        }
    }

    /// The first claim of a job under a key `k` that limits nothing: the job has a row while it is out.
    fn limited(job: &str) -> Claim {
        Claim::under(job, Limits::default(), "p")
    }
}

impl TestClaim for Claim {}
