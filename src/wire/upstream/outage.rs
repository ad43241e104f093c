//! Tracks whether the backend answers. The log gets one line for an outage and one a minute after it: a line for each
//! failed request would hide everything else just when it is needed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::error::UpstreamError;

/// How long nothing must fail before an outage of the backend is over: it goes on while every second request fails. That
/// of a service is over with its next answer.
const STEADY: Duration = Duration::from_secs(5);
/// How often a lasting outage is logged.
const LOGGED_EVERY: Duration = Duration::from_secs(60);

/// When nobody has called a service for so long, it is not known whether it answers.
const FORGOTTEN: Duration = Duration::from_secs(300);

/// Shared by all threads.
#[derive(Debug, Default)]
pub(super) struct Outage {
    /// The way out whose service it is; `None`: it is the backend.
    egress: Option<Arc<str>>,
    /// Outside the lock, because every answer reads it.
    on: AtomicBool,
    last: Mutex<OutageRecord>,
}

/// The current outage, or the last one.
#[derive(Clone, Copy, Debug, Default)]
struct OutageRecord {
    /// The requests that failed in it.
    failures: u64,
    /// When the last one failed.
    failed: Option<Instant>,
    /// Whether a request was answered since then.
    answered: bool,
    /// When the log was told last.
    told: Option<Instant>,
    /// Whether it was told of this one.
    is_told: bool,
}

impl Outage {
    /// Of the service of a way out.
    pub(super) fn of_egress(egress: Arc<str>) -> Outage {
        Outage {
            egress: Some(egress),
            ..Outage::default()
        }
    }

    /// The way out whose service it is, if it is not the backend.
    pub(super) fn egress(&self) -> Option<&str> {
        self.egress.as_deref()
    }

    /// Whether there is an outage.
    pub(super) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Notes a request without an answer. It is logged at the start of an outage, and then once a minute.
    pub(super) fn failed(&self, error: &UpstreamError) {
        let now = Instant::now();
        let mut last = self.last.lock();
        let begins = !self.on.swap(true, Ordering::Relaxed);
        if begins {
            (last.failures, last.is_told) = (0, false);
        }
        last.failures += 1;
        last.failed = Some(now);
        last.answered = false;
        let failures = last.failures;
        // A service may drop a call now and then.
        let begins = begins && self.egress.is_none();
        let due = begins || last.told.is_none_or(|told| now - told >= LOGGED_EVERY);
        if due {
            (last.told, last.is_told) = (Some(now), true);
        }
        drop(last);
        match (due, self.egress()) {
            (true, None) => {
                tracing::warn!(id = %"backend_down", %error, failures, "no answer from the backend")
            }
            (true, Some(egress)) => {
                let error = error.said_of("the service", "egress");
                tracing::warn!(id = %"service_down", egress, error, failures, "no answer from the service of a way out");
            }
            (false, egress) => tracing::debug!(%error, egress, "no answer"),
        }
    }

    /// Notes a request with an answer.
    pub(super) fn answered(&self) {
        if !self.is_on() {
            return;
        }
        let mut last = self.last.lock();
        last.answered = true;
        if self.egress.is_some() {
            self.end(&last, "the service of a way out answers again");
        }
    }

    /// The outage is over, for this reason. The log is told if it was told of the outage.
    fn end(&self, last: &OutageRecord, why: &str) {
        let was_on = self.on.swap(false, Ordering::Relaxed);
        if was_on && last.is_told {
            let failures = last.failures;
            tracing::info!(failures, egress = self.egress(), "{why}");
        }
    }

    /// Ends an outage that is over. Returns `true` if it goes on and nobody has asked for a while.
    pub(super) fn end_if_over(&self) -> bool {
        if !self.is_on() {
            return false;
        }
        let last = self.last.lock();
        if last.failed.is_some_and(|failed| failed.elapsed() < STEADY) {
            return false;
        }
        let is_forgotten = last
            .failed
            .is_none_or(|failed| failed.elapsed() > FORGOTTEN);
        let over = match self.egress() {
            None if last.answered => "the backend answers again",
            Some(_) if is_forgotten => "nobody calls the service of a way out that gave no answer",
            _ => return true,
        };
        self.end(&last, over);
        false
    }
}

#[cfg(test)]
mod tests {

    use tokio::time::sleep;

    use super::*;
    use crate::lines::Lines;

    /// Those since the last look: how many failures each tells of, and whether it tells of the end.
    fn told(lines: &Lines) -> Vec<(u64, bool)> {
        let text = lines.text();
        lines.0.lock().unwrap().clear();
        let line = |line: &str| {
            let (_, failures) = line.split_once("failures=").unwrap();
            let failures = failures.split(' ').next().unwrap();
            (failures.parse().unwrap(), line.contains("answers again"))
        };
        text.lines().map(line).collect()
    }

    #[test]
    fn the_rest_of_a_budget_is_told_as_the_budget() {
        let told = |nanos| UpstreamError::Timeout(Duration::from_nanos(nanos)).to_string();
        for (nanos, within) in [(9_999_980_661, "10s"), (1_234_567_890, "1.235s")] {
            assert!(told(nanos).ends_with(within), "{}", told(nanos));
        }
    }

    /// It is away while nothing is answered, and is told of once a minute with its end.
    #[tokio::test(start_paused = true)]
    async fn a_service_that_drops_a_call_now_and_then_answers() {
        let (lines, _logged) = Lines::listen();
        let outage = Outage::of_egress("out".into());
        let error = UpstreamError::Lost("reset".into());
        for _ in 0..61 {
            outage.failed(&error);
            assert!(outage.is_on());
            outage.answered();
            assert!(!outage.is_on());
            sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(told(&lines), [(1, false), (1, true), (1, false), (1, true)]);
    }

    #[tokio::test(start_paused = true)]
    async fn half_a_backend_is_one_outage() {
        let (lines, _logged) = Lines::listen();
        let outage = Outage::default();
        let error = UpstreamError::Lost("reset".into());
        let second = Duration::from_secs(1);

        outage.answered();
        assert!(!outage.is_on());
        for _ in 0..130 {
            outage.failed(&error);
            outage.answered();
            sleep(second).await;
            assert!(!outage.end_if_over());
            assert!(outage.is_on());
        }
        assert_eq!(told(&lines), [(1, false), (61, false), (121, false)]);
        // It is over without another answer.
        sleep(STEADY - second).await;
        assert!(!outage.end_if_over());
        assert!(!outage.is_on());
        assert_eq!(told(&lines), [(130, true)]);

        // The next one is told at once, and is not over while nothing is answered.
        outage.failed(&error);
        assert_eq!(told(&lines), [(1, false)]);
        assert!(!outage.end_if_over(), "somebody asked just now");
        sleep(2 * STEADY).await;
        assert!(outage.end_if_over());
        outage.answered();
        assert!(!outage.end_if_over());
        assert!(!outage.is_on());
        assert_eq!(told(&lines), [(1, true)]);

        // One that failed after the last answer.
        outage.failed(&error);
        outage.answered();
        sleep(second).await;
        outage.failed(&error);
        sleep(2 * STEADY).await;
        assert!(outage.end_if_over());
        assert_eq!(told(&lines), [(1, false)]);
        outage.answered();
        assert!(!outage.end_if_over());
        assert_eq!(told(&lines), [(2, true)]);
    }
}
