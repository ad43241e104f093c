//! Other settings for a running sidecar: from a file that is followed, all of them or none.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{Registry, reload};

use super::proxy_settings;
use crate::config::{Diff, File, QUIET, Report, Seen, Settings, Watch};
use crate::metrics::Metrics;
use crate::proxy::{Live, Sidecar};

/// How often the file is looked at although nothing was seen: some mounts tell nothing.
const EVERY: Duration = Duration::from_secs(2);
/// The longest that a file which is never the same twice is left alone.
const LONGEST: Duration = Duration::from_secs(2);
/// How often it is said that the file is bad, for as long as it is.
const REMIND: Duration = Duration::from_secs(60);

/// The level of the log, which whoever made the log lets us change.
pub type LogLevel = reload::Handle<LevelFilter, Registry>;

/// What became of new settings.
#[derive(Debug)]
pub enum Outcome {
    /// They are in force.
    Applied(Diff),
    /// They say what is in force already.
    Unchanged,
    /// These fields cannot change while running, so nothing did.
    Refused(Vec<&'static str>),
    /// There is nothing in the file: taken for half written, not for the end of all limits.
    Empty,
    /// They are wrong.
    Invalid(Report),
    /// The file could not be read; why.
    Unreadable(String),
}

impl Outcome {
    /// The word in metrics.
    pub fn word(&self) -> &'static str {
        match self {
            Outcome::Applied(_) => "applied",
            Outcome::Unchanged => "unchanged",
            Outcome::Refused(_) | Outcome::Empty => "refused",
            Outcome::Invalid(_) => "invalid",
            Outcome::Unreadable(_) => "unreadable",
        }
    }

    /// Whether what runs is what the settings say.
    pub fn is_good(&self) -> bool {
        matches!(self, Outcome::Applied(_) | Outcome::Unchanged)
    }
}

/// What is wrong and what to do, for the log.
impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Applied(diff) => write!(f, "{diff}"),
            Outcome::Unchanged => f.write_str("unchanged"),
            Outcome::Refused(fields) => {
                let each = fields.iter().map(|field| format!("`{field}`"));
                let fields = each.collect::<Vec<_>>().join(", ");
                write!(
                    f,
                    "{fields} cannot change while running: restart, or put back what it was"
                )
            }
            Outcome::Empty => f.write_str(
                "the file is empty, as one that is half written; \
                 to run without limits leave its [server] table there",
            ),
            Outcome::Invalid(report) => write!(f, "{report}"),
            Outcome::Unreadable(why) => write!(f, "it cannot be read: {why}"),
        }
    }
}

/// Changes the settings of a running sidecar. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Reload(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    sidecar: Arc<Sidecar>,
    reset: bool,
    running: Mutex<InForce>,
}

/// What runs, and what did until just now.
#[derive(Debug)]
struct InForce {
    settings: Arc<Settings>,
    /// Policies that requests may still be using. Dropping thousands takes longer than a request may
    /// wait, so none of those is to be the last that holds them.
    retired: Vec<Arc<Live>>,
}

impl Reload {
    pub(super) fn new(settings: Settings, sidecar: Arc<Sidecar>, reset: bool) -> Reload {
        Reload(Arc::new(Inner {
            sidecar,
            reset,
            running: Mutex::new(InForce {
                settings: Arc::new(settings),
                retired: Vec::new(),
            }),
        }))
    }

    fn running(&self) -> MutexGuard<'_, InForce> {
        self.0.running.lock()
    }

    /// The settings in force.
    pub fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.running().settings)
    }

    /// Puts other settings in force, all of them or none. Usage, slots, held jobs and connections stay;
    /// what is over a lower limit ends by itself. The log is not ours: who follows a file changes its level.
    ///
    /// Takes as long as there are policies and held jobs; not for a thread that serves requests.
    pub fn apply(&self, settings: Settings) -> Outcome {
        let mut running = self.running();
        let diff = Diff::between(&running.settings, &settings);
        if !diff.fixed.is_empty() {
            return Outcome::Refused(diff.fixed);
        }
        if diff.is_empty() {
            return Outcome::Unchanged;
        }
        let next = match proxy_settings(&settings, self.0.reset) {
            Ok(next) => next,
            Err(field) => return Outcome::Refused(vec![field]),
        };
        // Nothing can fail from here on.
        let declared = settings.store.by_policy.clone();
        self.0.sidecar.store().declare(declared);
        let reserved = settings.store.reserved.clone();
        self.0.sidecar.store().reserve_for(reserved);
        let last = self.0.sidecar.publish(next, Arc::clone(&settings.policies));
        running.retired.push(last);
        running.settings = Arc::new(settings);
        running.let_go();
        Outcome::Applied(diff)
    }
}

impl InForce {
    /// Drops what no request uses any more.
    fn let_go(&mut self) {
        self.retired.retain(|old| Arc::strong_count(old) > 1);
    }
}

/// Follows a file: when it changes, what runs changes.
#[derive(Debug)]
pub(super) struct Following {
    file: File,
    reload: Reload,
    metrics: Metrics,
    ask: Arc<Notify>,
    level: LogLevel,
    watch: Watch,
    /// Whether the watch works, as was last said.
    sighted: bool,
    /// What was last found in the file, and acted upon.
    last: Option<Result<String, String>>,
    /// What was found since and may be half written, and since when there is something new.
    unsettled: Option<(Result<String, String>, Instant)>,
    /// Since the file is bad: when that was last said.
    bad: Option<Instant>,
}

/// Why the file is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Why {
    /// It is time to.
    Time,
    /// Something happened beside it, and it has been quiet since.
    Seen,
    /// It is being written, for all that is known.
    Busy,
    /// Somebody asks.
    Asked,
}

impl Following {
    pub(super) fn new(
        file: File,
        reload: Reload,
        metrics: Metrics,
        ask: Arc<Notify>,
        level: LogLevel,
    ) -> Following {
        Following {
            watch: Watch::new(&file.path),
            file,
            reload,
            metrics,
            ask,
            level,
            sighted: true,
            last: None,
            unsettled: None,
            bad: None,
        }
    }

    /// Follows the file until `stop`.
    pub(super) async fn follow(mut self, stop: CancellationToken) {
        // At once: it may have changed since it was read for the start.
        let mut why = Why::Seen;
        loop {
            let metrics = self.metrics.clone();
            // What waits for disks or takes long runs beside the thread that serves.
            let look = tokio::task::spawn_blocking(move || {
                let again = self.look(why);
                (self, again)
            });
            let Ok((back, again)) = look.await else {
                tracing::error!(
                    "a bug: the config file is not followed any more; restart to change it"
                );
                metrics.config(false, None);
                return;
            };
            self = back;
            if again {
                why = tokio::select! {
                    () = stop.cancelled() => return,
                    () = self.ask.notified() => Why::Asked,
                    () = tokio::time::sleep(QUIET) => Why::Busy,
                };
                continue;
            }
            why = tokio::select! {
                () = stop.cancelled() => return,
                () = self.ask.notified() => Why::Asked,
                seen = self.watch.seen(EVERY) => match seen {
                    None => Why::Time,
                    Some(Seen::Change) => Why::Seen,
                    Some(Seen::Busy) => Why::Busy,
                    Some(Seen::Blind(error)) => {
                        self.sight(Err(error));
                        Why::Time
                    }
                },
            };
        }
    }

    /// Looks at the file and does what follows. `true`: it has changed, and may be half written; look again
    /// after [`QUIET`].
    fn look(&mut self, why: Why) -> bool {
        // Before the file is read, so that nothing can happen unseen in between.
        let watching = self.watch.renew();
        self.sight(watching);
        self.reload.running().let_go();
        // Before the file is read: what is closed then is whole.
        let open = self.watch.is_being_written();
        let found = self.file.read().map_err(|error| error.to_string());
        let remind = self.bad.is_some_and(|since| since.elapsed() >= REMIND);
        let same = self.last.as_ref() == Some(&found);
        if !same && self.is_unsettled(why, open, &found) {
            return true;
        }
        self.unsettled = None;
        if same && why != Why::Asked && !remind {
            return false;
        }
        let begun = Instant::now();
        let was_bad = self.bad.is_some();
        let outcome = match &found {
            Ok(text) => self.outcome(text),
            Err(why) => Outcome::Unreadable(why.clone()),
        };
        let first = self.last.replace(found).is_none();
        let reminder = same && why != Why::Asked;
        self.tell(&outcome, begun.elapsed(), first, reminder);
        if why == Why::Asked && !was_bad && matches!(outcome, Outcome::Unchanged) {
            let file = self.file.path.display();
            tracing::info!(%file, "the config file was looked at as asked: it is what runs");
        }
        false
    }

    /// Whether what was found may be half written: until it is closed, and until two looks agree where it was
    /// not quiet or nothing was seen; at most for [`LONGEST`].
    fn is_unsettled(&mut self, why: Why, open: bool, found: &Result<String, String>) -> bool {
        match why {
            Why::Asked => return false,
            Why::Seen if !open => return false,
            // A watch that missed it is made anew.
            Why::Time if !open => self.watch.close(),
            Why::Time | Why::Seen | Why::Busy => {}
        }
        let before = self.unsettled.as_ref();
        let since = before.map_or_else(Instant::now, |(_, since)| *since);
        let agree = !open && before.is_some_and(|(text, _)| text == found);
        if agree || since.elapsed() >= LONGEST {
            return false;
        }
        self.unsettled = Some((found.clone(), since));
        true
    }

    fn outcome(&self, text: &str) -> Outcome {
        let blank = text.trim().is_empty();
        match self.file.parse(text) {
            Err(_) if blank => Outcome::Empty,
            Err(report) => Outcome::Invalid(report),
            Ok(new) => {
                let running = self.reload.settings();
                if blank && !Diff::between(&running, &new).is_empty() {
                    return Outcome::Empty;
                }
                let warnings = new.warnings.clone();
                let (level, before) = (new.server.log_level, running.server.log_level);
                let outcome = self.reload.apply(new);
                if matches!(outcome, Outcome::Applied(_)) {
                    // One that is to say less has this reload's own lines still.
                    if level > before {
                        self.log_from(level);
                    }
                    if warnings.warnings() > 0 {
                        tracing::warn!("the config has warnings\n{warnings}");
                    }
                }
                outcome
            }
        }
    }

    /// Logs what is of this level or worse.
    fn log_from(&self, level: tracing::Level) {
        if let Err(error) = self.level.reload(LevelFilter::from_level(level)) {
            tracing::error!(%error, "a bug: the log's level is as it was; restart to change it");
        }
    }

    /// Says in the log and in metrics what happened. `first`: the look at the start, which is no reload
    /// unless there is something to say. `reminder`: nobody changed the file nor asked, which is none either
    /// unless the file is good now.
    fn tell(&mut self, outcome: &Outcome, took: Duration, first: bool, reminder: bool) {
        let file = self.file.path.display();
        let was_bad = self.bad.is_some();
        match outcome {
            Outcome::Applied(diff) => {
                let ms = took.as_secs_f64() * 1_000.0;
                tracing::info!(%file, took_ms = format!("{ms:.1}"), "config reloaded: {diff}");
                self.log_from(self.reload.settings().server.log_level);
            }
            Outcome::Unchanged if was_bad => {
                tracing::info!(%file, "the config file is good again, and as it runs");
            }
            Outcome::Unchanged => {}
            bad => tracing::error!(%file, "config not reloaded, the last good one runs on\n{bad}"),
        }
        self.bad = (!outcome.is_good()).then(Instant::now);
        let counts = match outcome {
            Outcome::Unchanged => !first,
            Outcome::Applied(_) => true,
            _ => !reminder,
        };
        self.metrics
            .config(outcome.is_good(), counts.then(|| outcome.word()));
        if first || was_bad || matches!(outcome, Outcome::Applied(_)) {
            let now = self.reload.0.sidecar.store().now();
            if outcome.is_good() {
                self.metrics.config_good_at(now.0);
            }
        }
    }

    /// Says once that the watch does not work, and once that it does again.
    fn sight(&mut self, watching: Result<(), String>) {
        let sighted = watching.is_ok();
        if let Err(error) = watching
            && self.sighted
        {
            tracing::warn!(
                error,
                "the config's folder cannot be watched; the file is read every 2 s"
            );
        } else if sighted && !self.sighted {
            tracing::info!("the config's folder is watched again");
        }
        self.sighted = sighted;
    }
}

#[cfg(test)]
mod tests;
