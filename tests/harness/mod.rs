//! The standing harness: one world a run, with an embedded backend behind a layer that goes wrong on
//! command, one sidecar after another, workers and producers that keep ledgers, and judges that join
//! the ledgers of both sides afterwards and never look at the sidecar's own counters.
//!
//! A scenario is an async function from a [`Ctx`] to a [`Judge`]:
//!
//! ```ignore
//! async fn concurrency_alone(ctx: Ctx) -> Judge {
//!     let w = ctx.world().limits("[[policy]]\nname='p'\nconcurrency = 3").start().await;
//!     w.enqueue_all(40, |_| Job::new("email.send").label("p")).await;
//!     w.workers(3, Worker::js(10).runs(100..900));
//!     w.until_done(60).await;
//!     let mut judge = w.judge().await;
//!     judge.concurrency("p", 3);
//!     judge.settled()
//! }
//! ```

pub mod backend;
pub mod check;
pub mod dress;
pub mod fleet;
pub mod http;
pub mod judge;
pub mod ledger;
pub mod lines;
pub mod producer;
pub mod runner;
pub mod unique;
pub mod worker;
pub mod world;

pub use backend::{Fault, Op};
pub use fleet::Way;
pub use judge::Judge;
pub use producer::Job;
pub use runner::{Ctx, Scenario, pick};
pub use worker::Worker;
pub use world::{Sidecar, World};

/// The rows of a table that is written as text: a line each, with `=>` between what is given and what comes of it. Lines
/// that begin as comments do say why.
pub fn table(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = text.lines().map(str::trim);
    let rows = lines.filter(|line| !line.is_empty() && !line.starts_with("//"));
    rows.map(|row| {
        row.split_once(" => ")
            .unwrap_or_else(|| panic!("no row: {row}"))
    })
}

/// How early a start may leave, as the manual says it, and so how much closer two may stand than was said: to all judges
/// of the tests.
pub const EARLY: std::time::Duration = std::time::Duration::from_millis(5);

/// Asserts that something took less than that.
#[track_caller]
pub fn assert_within(took: std::time::Duration, most: std::time::Duration, what: &str) {
    assert!(took < most, "{took:?}, not within {most:?} {what}");
}
